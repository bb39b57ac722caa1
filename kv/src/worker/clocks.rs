//! A worker's part in tables under a consistency model: joining, announcing clocks, and leaving.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use caravan_van::Value;

use super::request::{Payload, Request};
use super::table::TableState;
use super::{Table, Worker};
use crate::error::{Error, Result};
use crate::op::Op;
use crate::refusal::Refusal;
use crate::tracker::Timestamp;

/// A worker's part in a table that has a consistency model ([`Worker::clocks`]).
pub struct Clocks<'a> {
    pub(super) worker: &'a mut Worker,
    pub(super) table: Table,
}

impl Clocks<'_> {
    /// Takes part in a table that has a consistency model, and returns the first iteration: 1, or
    /// that of the slowest worker if others have begun. Until then, this worker observes: its
    /// requests wait for nobody.
    ///
    /// # Errors
    /// As [`Worker::wait`]; [`Error::Refused`] if the table has no model.
    pub fn join(&mut self) -> Result<u64> {
        let clocks = self.ask(Op::Join, 1)?;
        let first = clocks.iter().copied().max().unwrap_or(1);
        self.worker.tables[self.table.0 as usize].clock = first;
        self.worker.endpoint.lanes.gauge().mark(first);
        if clocks.iter().any(|clock| *clock != first) {
            let announced = self.announce(first)?;
            self.worker.wait(announced)?;
        }
        Ok(first)
    }

    /// Takes part again after [`Admin::reconnect`](super::Admin::reconnect), in iteration `clock`,
    /// which this worker has not ended for certain. Returns the iteration to go on with.
    ///
    /// That is `clock`, unless the others have gone on without this worker: it repeats its pushes
    /// of that iteration, and those that were applied before are only acknowledged if the table is
    /// [`TableSpec::once`](crate::TableSpec::once). A shard that has gone on refuses them.
    ///
    /// # Errors
    /// As [`Clocks::join`].
    pub fn rejoin(&mut self, clock: u64) -> Result<u64> {
        let clock = clock.max(1);
        let clocks = self.ask(Op::Join, clock)?;
        // A shard that has kept its lane may have heard of the end of the iteration.
        let first = clocks.into_iter().max().filter(|first| first - 1 > clock).unwrap_or(clock);
        self.worker.tables[self.table.0 as usize].clock = first;
        self.worker.endpoint.lanes.gauge().mark(first);
        if first > clock {
            let announced = self.announce(first)?;
            self.worker.wait(announced)?;
        }
        Ok(first)
    }

    /// How fresh a table with a model is: whatever the workers that take part have pushed in
    /// iterations up to this one is in all shards. 0 until all expected workers have joined,
    /// `u64::MAX - 1` if none takes part any more.
    ///
    /// # Errors
    /// As [`Worker::wait`]; [`Error::Refused`] if the table has no model.
    pub fn freshness(&mut self) -> Result<u64> {
        let fresh = self.ask(Op::Fresh, 0)?;
        Ok(fresh.into_iter().min().unwrap_or(0))
    }

    /// Each shard's answer to a request of this kind, which is a clock.
    fn ask(&mut self, op: Op, clock: u64) -> Result<Vec<u64>> {
        let shards = 0..self.worker.known(self.table)?.map.shards().len();
        let asked = self.worker.request_shards(op, self.table, shards, clock, &[])?;
        let replies = self.worker.wait(asked)?.replies;
        let clocks = replies.iter().map(|reply| reply[..].try_into().map(u64::from_le_bytes));
        clocks.collect::<Result<_, _>>().map_err(|_| Error::Refused {
            server: "a server".to_owned(),
            what: op.what(),
            kind: Refusal::Internal,
            reason: "its answer is no clock".to_owned(),
        })
    }

    /// The iteration that this worker works on in a table, from 1; 0 if it only observes.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn iteration(&self) -> Result<u64> {
        let known = self.worker.known(self.table)?;
        Ok(if known.follows_worker() { 0 } else { known.clock })
    }

    /// Ends this worker's iteration by a message to every shard. It writes nothing more for
    /// that iteration. The timestamp need not be waited for.
    ///
    /// # Errors
    /// [`Error::Config`] if this worker has not joined the table; [`Error::ServerLost`].
    pub fn advance(&mut self) -> Result<Timestamp> {
        let clock = self.next_iteration()?;
        self.announce(clock)
    }

    /// Tells every shard that this worker has finished its iterations below `clock`.
    fn announce(&mut self, clock: u64) -> Result<Timestamp> {
        let TableState { map, disclosed, .. } = &self.worker.tables[self.table.0 as usize];
        let shards = 0..map.shards().len();
        let disclosed = disclosed.to_le_bytes();
        self.worker.request_shards(Op::Clock, self.table, shards, clock, &disclosed)
    }

    /// As [`Worker::push`], and ends this worker's iteration: the shards that get values learn
    /// it from the push, the others by a message.
    ///
    /// Under BSP, the servers acknowledge pushes when all workers have ended the iteration. Wait
    /// for earlier pushes of the iteration only after this.
    ///
    /// # Errors
    /// As [`Worker::push`] and [`Clocks::advance`].
    pub fn push_last<V: Value>(&mut self, keys: &[u64], values: &[V]) -> Result<Timestamp> {
        let clock = self.next_iteration()?;
        self.worker.tables[self.table.0 as usize].clock = clock - 1;
        let payload = Payload::of(values);
        let last = Request::new(Op::Push, self.table, keys);
        let pushed = self.worker.request_parts(Request { payload, is_last: true, ..last });
        self.worker.tables[self.table.0 as usize].clock = clock;
        pushed
    }

    /// As [`Worker::pull`], for the iteration that is `ahead` ones after this one.
    ///
    /// A model that allows reads ahead answers early. SparseSSP learns from it what this worker
    /// will touch, and answers when it has got there. A worker announces its iterations in order,
    /// and pulls each once.
    ///
    /// # Errors
    /// As [`Worker::pull`].
    pub fn pull_ahead(&mut self, ahead: u64, keys: &[u64]) -> Result<Timestamp> {
        self.worker.known(self.table)?;
        let known = &mut self.worker.tables[self.table.0 as usize];
        if known.follows_worker() || known.clock == 0 {
            return Err(not_joined(&known.spec.name));
        }
        let clock = known.clock;
        known.clock = clock.saturating_add(ahead);
        known.disclosed = known.disclosed.max(known.clock.saturating_add(1));
        let pulled = self.worker.request(Request::new(Op::Pull, self.table, keys));
        self.worker.tables[self.table.0 as usize].clock = clock;
        pulled
    }

    /// Tells the servers up to which iteration this worker has announced its pulls, as the end of
    /// each iteration does anyway. After the first [`Clocks::pull_ahead`]s this spares others that
    /// wait: what is not announced counts as touching every key.
    ///
    /// # Errors
    /// [`Error::Config`] if this worker has not joined; [`Error::UnknownTable`];
    /// [`Error::ServerLost`].
    pub fn disclose(&mut self) -> Result<Timestamp> {
        match self.iteration()? {
            0 => Err(not_joined(&self.worker.tables[self.table.0 as usize].spec.name)),
            clock => self.announce(clock),
        }
    }

    /// Takes part no longer, and observes from now on: nobody waits for this worker.
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::ServerLost`].
    pub fn leave(&mut self) -> Result<Timestamp> {
        let shards = 0..self.worker.known(self.table)?.map.shards().len();
        let left = self.worker.request_shards(Op::Leave, self.table, shards, 0, &[])?;
        let known = &mut self.worker.tables[self.table.0 as usize];
        if !known.follows_worker() {
            known.clock = 0;
        }
        known.disclosed = 0;
        Ok(left)
    }

    /// Changes the bound of a table's model for all workers: the staleness of SSP, or the delay of
    /// bounded delay.
    ///
    /// # Errors
    /// As [`Worker::wait`]; [`Error::Refused`] if the model has no bound that can be changed.
    pub fn set_bound(&mut self, bound: u64) -> Result<()> {
        let shards = 0..self.worker.known(self.table)?.map.shards().len();
        let bound = bound.to_le_bytes();
        let changed =
            self.worker.request_shards(Op::Bound, self.table, shards, self.worker.clock, &bound)?;
        self.worker.wait(changed).map(drop)
    }

    /// Records the next iteration of a table that this worker has joined, and returns it.
    fn next_iteration(&mut self) -> Result<u64> {
        self.worker.known(self.table)?;
        let known = &mut self.worker.tables[self.table.0 as usize];
        if known.follows_worker() || known.clock == 0 {
            return Err(not_joined(&known.spec.name));
        }
        known.clock += 1;
        self.worker.endpoint.lanes.gauge().mark(known.clock);
        Ok(known.clock)
    }
}

fn not_joined(table: &str) -> Error {
    Error::Config(format!("this worker has not joined table {table} (call Clocks::join)"))
}
