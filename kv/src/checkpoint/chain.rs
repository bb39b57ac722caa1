//! The rows of a table as a chain of checkpoints has them: all rows of a full one, with the changes
//! of the increments behind it.

use std::iter::once;
use std::vec::IntoIter;

use super::records::{Kind, Reading};
use super::{Changes, Disk, Manifest, Parent, Row, SavedShard, SavedTable};
use crate::error::Result;
use crate::table::TableSpec;

/// A checkpoint with those that it is based on.
#[derive(Debug)]
pub(super) struct Chain {
    newest: Link,
    /// Its parent, the parent of that one, and so on.
    older: Vec<Link>,
}

/// A checkpoint of a chain.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) number: u64,
    pub(super) manifest: Manifest,
    /// Checksum of the manifest, by which an increment knows it.
    pub(super) checksum: u32,
}

impl Chain {
    /// A checkpoint and what it is based on.
    pub(super) fn new(newest: Link, older: Vec<Link>) -> Chain {
        Chain { newest, older }
    }

    /// The checkpoint, and then its parent, the parent of that one, and so on.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        once(&self.newest).chain(&self.older)
    }

    /// The number of the checkpoint.
    pub(super) fn number(&self) -> u64 {
        self.newest.number
    }

    /// The manifest of the checkpoint.
    pub(super) fn newest(&self) -> &Manifest {
        &self.newest.manifest
    }

    /// The checkpoint as the parent of another one.
    pub(super) fn parent(&self) -> Parent {
        Parent { number: self.newest.number, checksum: self.newest.checksum }
    }

    /// The rows of a table; `None` if the newest checkpoint of the chain has no such table, or an
    /// older one which that one builds on.
    pub(super) fn rows(&self, spec: &TableSpec) -> Option<ChainRows> {
        let mut layers = Vec::new();
        for Link { manifest, .. } in self.links() {
            let SavedTable { is_increment, shards, .. } = manifest.table(spec)?;
            layers.push(Layer::new(*is_increment, shards.clone()));
            if !is_increment {
                return Some(ChainRows { layers, at: 0 });
            }
        }
        None
    }
}

/// The rows of a table in the order of their keys.
pub(super) struct ChainRows {
    /// The newest first.
    layers: Vec<Layer>,
    /// The layer that has the row at hand.
    at: usize,
}

impl ChainRows {
    /// The row at hand; `None` behind the last one.
    pub(super) fn row(&mut self, disk: &dyn Disk) -> Result<Option<Row<'_>>> {
        loop {
            let mut first = None;
            for (at, layer) in self.layers.iter_mut().enumerate() {
                layer.fill(disk)?;
                let Some(key) = layer.key() else { continue };
                match first {
                    Some((_, lowest)) if lowest < key => {}
                    // A newer layer has this row, or its tombstone.
                    Some((_, lowest)) if lowest == key => layer.skip(),
                    _ => first = Some((at, key)),
                }
            }
            let Some((at, key)) = first else { return Ok(None) };
            self.at = at;
            if self.layers[at].is_gone(key) {
                self.layers[at].skip();
                continue;
            }
            return Ok(self.layers[at].row());
        }
    }

    /// Goes on behind the row at hand.
    pub(super) fn skip(&mut self) {
        self.layers[self.at].skip();
    }
}

/// What one checkpoint of a chain has of a table.
struct Layer {
    kind: Kind,
    /// Files that were not opened yet.
    shards: IntoIter<SavedShard>,
    file: Option<Reading>,
    /// The last key of files that were read.
    last: Option<u64>,
    changes: Changes,
    /// Bytes of a row, or of a row's unit of length.
    unit: usize,
    /// Places of the next row, of its values, and of the next tombstone.
    row_at: usize,
    byte_at: usize,
    gone_at: usize,
}

impl Layer {
    fn new(is_increment: bool, shards: Vec<SavedShard>) -> Layer {
        Layer {
            kind: Kind::of(is_increment),
            shards: shards.into_iter(),
            file: None,
            last: None,
            changes: Changes::default(),
            unit: 0,
            row_at: 0,
            byte_at: 0,
            gone_at: 0,
        }
    }

    /// Reads on if nothing is at hand, up to the end of the last file.
    fn fill(&mut self, disk: &dyn Disk) -> Result<()> {
        while self.key().is_none() {
            let Some(file) = &mut self.file else {
                let Some(shard) = self.shards.next() else { return Ok(()) };
                self.file = Some(Reading::open(disk, self.kind, &shard, self.last)?);
                continue;
            };
            match file.next()? {
                Some(changes) => {
                    self.unit = changes.piece.rows.unit_bytes();
                    self.changes = changes;
                    (self.row_at, self.byte_at, self.gone_at) = (0, 0, 0);
                }
                None => {
                    self.last = file.last();
                    self.file = None;
                }
            }
        }
        Ok(())
    }

    /// The lowest key at hand.
    fn key(&self) -> Option<u64> {
        let row = self.changes.piece.rows.keys.get(self.row_at);
        let gone = self.changes.gone.get(self.gone_at);
        [row, gone].into_iter().flatten().min().copied()
    }

    /// Whether the key at hand is that of a tombstone.
    fn is_gone(&self, key: u64) -> bool {
        self.changes.gone.get(self.gone_at) == Some(&key)
    }

    /// The row of the key at hand.
    fn row(&self) -> Option<Row<'_>> {
        let rows = &self.changes.piece.rows;
        let key = *rows.keys.get(self.row_at)?;
        let values = &rows.values[self.byte_at..][..self.row_bytes()];
        Some(Row { key, length: rows.lengths.get(self.row_at).copied(), values })
    }

    fn row_bytes(&self) -> usize {
        let length = self.changes.piece.rows.lengths.get(self.row_at);
        length.map_or(self.unit, |length| *length as usize * self.unit)
    }

    /// Goes on behind the key at hand.
    fn skip(&mut self) {
        match self.key() {
            Some(key) if self.is_gone(key) => self.gone_at += 1,
            _ => {
                self.byte_at += self.row_bytes();
                self.row_at += 1;
            }
        }
    }
}
