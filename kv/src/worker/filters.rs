//! How a worker's requests to a table are made smaller, and what that has saved.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use caravan_van::wire::Coding;

use super::table::TableState;
use super::{Table, Worker};
use crate::error::Result;
use crate::filter::Sent;
use crate::table::ValueType;
use crate::tracker::Timestamp;

/// The filters of a table at one worker ([`Worker::filters`]).
pub struct TableFilters<'a> {
    pub(super) worker: &'a mut Worker,
    pub(super) table: Table,
}

impl TableFilters<'_> {
    /// Delta-codes the keys of this table's requests, and compresses sections that Snappy makes
    /// smaller.
    ///
    /// # Errors
    /// [`Error::UnknownTable`](crate::Error::UnknownTable).
    pub fn compact(&mut self) -> Result<()> {
        self.worker.known(self.table)?;
        self.worker.tables[self.table.0 as usize].coding = Coding::compact();
        Ok(())
    }

    /// Sends each list of keys of this table once. Later requests with the same keys carry its
    /// signature, by which the servers find the list.
    ///
    /// This pays for lists that are used again. `kv/src/filter/key_cache.rs` describes the protocol
    /// and the probability of a collision.
    ///
    /// # Errors
    /// [`Error::UnknownTable`](crate::Error::UnknownTable).
    pub fn cache_keys(&mut self) -> Result<()> {
        self.worker.known(self.table)?;
        let node = self.worker.endpoint.lanes.node();
        self.worker.tables[self.table.0 as usize].filters(node).sent.get_or_insert_with(Sent::new);
        Ok(())
    }

    /// Suspends a table's lossy filters, or resumes them. While they are suspended, values are
    /// pushed exactly, together with what was held back for their keys.
    ///
    /// # Errors
    /// [`Error::UnknownTable`](crate::Error::UnknownTable).
    pub fn set_lossless(&mut self, lossless: bool) -> Result<()> {
        self.worker.known(self.table)?;
        if let Some(filters) = &mut self.worker.tables[self.table.0 as usize].filters {
            filters.set_lossless(lossless);
        }
        Ok(())
    }

    /// Pushes, exactly, everything that the filter `significant` has held back; returns `None` if
    /// there is nothing.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn flush(&mut self) -> Result<Option<Timestamp>> {
        self.worker.known(self.table)?;
        let TableState { spec, filters: Some(filters), .. } =
            &mut self.worker.tables[self.table.0 as usize]
        else {
            return Ok(None);
        };
        let (keys, values) = filters.drain();
        if keys.is_empty() {
            return Ok(None);
        }
        let is_lossless = filters.set_lossless(true);
        let pushed = match spec.value {
            ValueType::F32 => {
                let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
                self.worker.push(self.table, &keys, &values)
            }
            _ => self.worker.push(self.table, &keys, &values),
        };
        self.set_lossless(is_lossless)?;
        pushed.map(Some)
    }
}
