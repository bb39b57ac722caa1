//! What a worker knows of servers and tables, and what it counts.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeSet;

use caravan_van::Counters;

use super::lanes::NOBODY;
use super::{Table, Worker};
use crate::cost::Cost;
use crate::error::Result;
use crate::filter::{KeyCacheCounters, Traffic};
use crate::map::Placed;
use crate::server_address::ServerAddress;
use crate::table::TableSpec;

/// What a worker knows and counts ([`Worker::info`]).
#[derive(Clone, Copy)]
pub struct Info<'a> {
    pub(super) worker: &'a Worker,
}

impl<'a> Info<'a> {
    /// Number of server threads on which tables are placed: those that were there when the cluster
    /// was complete.
    pub fn servers(self) -> usize {
        self.worker.founders
    }

    /// All server threads with their addresses: first those on which tables are placed, in order of
    /// key ranges, then those that have joined since, as far as this worker has heard. One that has
    /// left keeps its place.
    pub fn addresses(self) -> impl Iterator<Item = &'a ServerAddress> {
        self.worker.servers.iter().map(|server| &server.at)
    }

    /// Number of server threads to which this worker has a lane. It opens one when a request first
    /// goes there.
    pub fn connections(self) -> usize {
        self.worker.servers.iter().filter(|server| server.peer != NOBODY).count()
    }

    /// The van that carries this worker's messages; in a mixed cluster all of them, as `shm+tcp`.
    pub fn van(self) -> String {
        let vans: BTreeSet<_> = self.vans().into_iter().flatten().collect();
        match vans.is_empty() {
            true => self.worker.endpoint.lanes.van().to_owned(),
            false => Vec::from_iter(vans).join("+"),
        }
    }

    /// The van of the lane to each server thread, in their order; `None` while several vans may
    /// come to carry it, before it is up
    /// ([`Admin::open_connections`](super::Admin::open_connections)).
    pub fn vans(self) -> Vec<Option<&'static str>> {
        self.worker
            .servers
            .iter()
            .map(|server| self.worker.endpoint.lanes.van_of(server.peer))
            .collect()
    }

    /// The port that the lane to each server thread goes over, as "mlx5_0/1", if its van has ports.
    pub fn ports(self) -> Vec<Option<&'a str>> {
        self.worker
            .servers
            .iter()
            .map(|server| self.worker.endpoint.lanes.port_of(server.peer))
            .collect()
    }

    /// The transport's counters so far.
    pub fn counters(self) -> Counters {
        self.worker.endpoint.lanes.counters()
    }

    /// Cost of this thread so far.
    pub fn cost(self) -> Cost {
        Cost::of_this_thread(&self.counters())
    }

    /// The traffic counters of a table's filters.
    ///
    /// # Errors
    /// [`Error::UnknownTable`](crate::Error::UnknownTable).
    pub fn traffic(self, table: Table) -> Result<Traffic> {
        let filters = self.worker.known(table)?.filters.as_ref();
        Ok(filters.map_or_else(Traffic::default, |filters| filters.traffic()))
    }

    /// The counters of this table's key cache; all zero unless
    /// [`TableFilters::cache_keys`](super::TableFilters::cache_keys) was called.
    ///
    /// # Errors
    /// [`Error::UnknownTable`](crate::Error::UnknownTable).
    pub fn key_cache(self, table: Table) -> Result<KeyCacheCounters> {
        let sent =
            self.worker.known(table)?.filters.as_ref().and_then(|filters| filters.sent.as_ref());
        Ok(sent.map_or_else(Default::default, |sent| sent.counters))
    }

    /// The specification of a table.
    ///
    /// # Errors
    /// [`Error::UnknownTable`](crate::Error::UnknownTable).
    pub fn spec(self, table: Table) -> Result<&'a TableSpec> {
        self.worker.known(table).map(|known| &known.spec)
    }

    /// The shards of a table and their owners, as far as this worker knows.
    ///
    /// # Errors
    /// [`Error::UnknownTable`](crate::Error::UnknownTable).
    pub fn shards(self, table: Table) -> Result<&'a [Placed]> {
        Ok(self.worker.known(table)?.map.shards())
    }

    /// The iteration of the next request to a table without a consistency model.
    pub fn clock(self) -> u64 {
        self.worker.clock
    }
}
