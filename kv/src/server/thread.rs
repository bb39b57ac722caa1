//! A server thread: its settings and its counters. `service.rs` has the loop.
//!
//! Path: codec > **thread** > tables > shard > store > answer. The thread owns its lanes and its
//! shards. It takes no lock and hands no work to other threads.

mod clients;
mod keys;
mod parking;
mod service;

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;

use caravan_van::{Counters, Endpoint};

use self::service::ShardService;
use super::handle::Handles;
use super::tables::{ChainCounters, Copies, LogStep, MoveCounters, ShardStep, logs};
use crate::error::Result;
use crate::filter::Traffic;
use crate::membership::Membership;
use crate::table::TableSpec;

/// One thread of a server, with its shard of every table.
pub struct ServerThread {
    service: ShardService,
}

impl ServerThread {
    /// Thread `index` of the whole cluster, on `count` of whose threads tables are placed, which
    /// serves over `endpoint`. Of a thread that joins later the index is `count` or more.
    pub fn new(endpoint: Endpoint, index: usize, count: usize, handles: Handles) -> Self {
        ServerThread { service: ShardService::new(endpoint, index, count, handles) }
    }

    /// Hears from `views` which server threads are lost.
    pub(crate) fn hear_views(mut self, views: Receiver<Membership>) -> Self {
        self.service.views = Some(views);
        self
    }

    /// Limits the lists of keys that this thread remembers for workers to `bytes_max`, and to an
    /// eighth of its memory.
    pub fn remember_bytes(mut self, bytes_max: usize) -> Self {
        self.service.remember_bytes(bytes_max);
        self
    }

    /// Records a history of every shard of a table with a consistency model ([`crate::history`]).
    /// `open` says where to, by the table's number and the shard's place in the table.
    pub fn record_histories(
        mut self,
        open: impl FnMut((u32, usize), &TableSpec) -> io::Result<Box<dyn Write>> + 'static,
    ) -> Self {
        self.service.tables.histories = Some(Box::new(open));
        self
    }

    /// Moves the rows of a shard in pieces of about `bytes` bytes, in place of 32 KiB. Requests are
    /// served between two pieces.
    pub fn move_by(mut self, bytes: usize) -> Self {
        self.service.tables.set_piece_bytes(bytes);
        self
    }

    /// The address that workers connect to.
    pub fn address(&self) -> &str {
        self.service.endpoint.lanes.address()
    }

    /// Number of lanes that workers and other servers have to this thread, and it to servers.
    pub fn lanes(&self) -> usize {
        self.service.lanes()
    }

    /// The transport's counters so far.
    pub fn counters(&self) -> Counters {
        self.service.endpoint.lanes.counters()
    }

    /// The traffic counters of the filters of a table in the default namespace; all zero for a
    /// table without filters.
    pub fn traffic(&self, id: u32) -> Traffic {
        let tables = &self.service.tables;
        let number = tables.named("", id).unwrap_or_default();
        let filters = tables.of(number).filter_map(|entry| entry.filters.as_ref());
        filters.fold(Traffic::default(), |sum, filters| sum.plus(&filters.traffic()))
    }

    /// The counters of the moves of shards from and to this thread.
    pub fn moves(&self) -> MoveCounters {
        self.service.tables.moves()
    }

    /// The shards at this thread, and how far those have come that move.
    pub fn shards(&self) -> Vec<ShardStep> {
        self.service.tables.shard_steps()
    }

    /// The counters of the copies of shards along chains.
    pub fn chains(&self) -> ChainCounters {
        self.service.tables.chains()
    }

    /// How far the copies of this thread's shards are.
    pub fn copies(&self) -> Copies {
        self.service.tables.copies()
    }

    /// How far the logs of this thread's shards with copies have come, for tests that look at them
    /// after each event.
    #[doc(hidden)]
    pub fn logs(&self) -> Vec<LogStep> {
        logs(&self.service.tables)
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    /// Only if the van itself is broken.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        self.service.run(stop)
    }

    /// Processes arrivals without blocking; returns whether there were any.
    ///
    /// # Errors
    /// Only if the van itself is broken.
    pub fn step(&mut self) -> Result<bool> {
        self.service.step()
    }
}
