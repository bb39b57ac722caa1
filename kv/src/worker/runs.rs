//! Requests for ranges, chunks and single keys that are given as runs.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport. Values lie in the
//! order of the keys: `[runs.keys() * width]`.

use caravan_van::{Buffer, Shared, Value};

use super::request::{Payload, Request};
use super::{Table, Worker};
use crate::error::Result;
use crate::op::Op;
use crate::runs::Runs;
use crate::tracker::Timestamp;

impl Worker {
    /// Pushes `values` for all keys of `runs`, as [`Worker::push`] does for keys that are named one
    /// by one.
    ///
    /// # Errors
    /// As [`Worker::push`]; [`Error::VaryingTable`] for a table whose rows have their own lengths;
    /// [`Error::Config`] if the values cannot fit into this worker's memory.
    ///
    /// [`Error::VaryingTable`]: crate::Error::VaryingTable
    /// [`Error::Config`]: crate::Error::Config
    pub fn push_runs<V: Value>(
        &mut self,
        table: Table,
        runs: &Runs,
        values: &[V],
    ) -> Result<Timestamp> {
        let payload = Payload::of(values);
        self.request_runs(runs, Request { payload, ..Request::new(Op::Push, table, &[]) })
    }

    /// As [`Worker::push_runs`], without a copy, as [`Worker::push_shared`] does.
    ///
    /// # Errors
    /// As [`Worker::push_runs`].
    pub fn push_runs_shared(
        &mut self,
        table: Table,
        runs: &Runs,
        values: &Shared,
    ) -> Result<Timestamp> {
        let payload = Payload::Shared(values);
        self.request_runs(runs, Request { payload, ..Request::new(Op::Push, table, &[]) })
    }

    /// Pulls the values of all keys of `runs`; [`Worker::wait`] returns them.
    ///
    /// # Errors
    /// As [`Worker::push_runs`].
    pub fn pull_runs(&mut self, table: Table, runs: &Runs) -> Result<Timestamp> {
        self.request_runs(runs, Request::new(Op::Pull, table, &[]))
    }

    /// As [`Worker::pull_runs`], into the caller's memory, as [`Worker::pull_into`] does.
    ///
    /// # Errors
    /// As [`Worker::push_runs`] and [`Worker::pull_into`].
    pub fn pull_runs_into(&mut self, table: Table, runs: &Runs, into: Buffer) -> Result<Timestamp> {
        let into = Some(into);
        self.request_runs(runs, Request { into, ..Request::new(Op::Pull, table, &[]) })
    }

    /// Pushes `values` and pulls the updated values, in one message each way.
    ///
    /// # Errors
    /// As [`Worker::push_runs`].
    pub fn push_pull_runs<V: Value>(
        &mut self,
        table: Table,
        runs: &Runs,
        values: &[V],
    ) -> Result<Timestamp> {
        let payload = Payload::of(values);
        let request = Request::new(Op::PushPull, table, &[]);
        self.request_runs(runs, Request { payload, ..request })
    }
}
