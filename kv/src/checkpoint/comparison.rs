//! What has changed in a table since a checkpoint: its rows are compared with those of the files.
//!
//! So servers keep no account of changes, a push costs what it costs without checkpoints, and it
//! does not matter whether shards have moved or the cluster is another one.

use super::chain::ChainRows;
use super::{Changes, Disk, Piece, Row};
use crate::error::Result;

/// A table that is compared, in the order of its keys.
pub(super) struct Comparison {
    before: ChainRows,
    changes: Changes,
}

impl Comparison {
    /// A table with these rows at its last checkpoint.
    pub(super) fn with(before: ChainRows) -> Comparison {
        Comparison { before, changes: Changes::default() }
    }

    /// Compares the next rows of a shard, whose last key is `last`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](crate::Error::Checkpoint) names the file that is damaged.
    pub(super) fn add(&mut self, disk: &dyn Disk, piece: &Piece, last: u64) -> Result<()> {
        let rows = &piece.rows;
        for (at, (key, values)) in rows.values_of().enumerate() {
            let row = Row { key, length: rows.lengths.get(at).copied(), values };
            self.reap(disk, |before| before < key)?;
            let before = self.before.row(disk)?.filter(|before| before.key == key);
            let (was_there, is_same) = (before.is_some(), before == Some(row));
            if was_there {
                self.before.skip();
            }
            if !is_same {
                self.changes.piece.rows.push(row);
            }
        }
        if piece.is_last {
            self.reap(disk, |before| before <= last)?;
            self.changes.piece.is_last = true;
        }
        Ok(())
    }

    /// Sets tombstones for the next of the rows from before, as long as their keys are meant.
    fn reap(&mut self, disk: &dyn Disk, is_meant: impl Fn(u64) -> bool) -> Result<()> {
        while let Some(row) = self.before.row(disk)?.filter(|row| is_meant(row.key)) {
            self.changes.gone.push(row.key);
            self.before.skip();
        }
        Ok(())
    }

    /// Bytes of the changes that were not taken.
    pub(super) fn bytes(&self) -> usize {
        self.changes.bytes()
    }

    /// The changes since these were taken last.
    pub(super) fn take(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}
