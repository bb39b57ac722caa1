//! A worker's part in checkpoints: it cuts tables, reads their rows, and puts rows.

use super::{Table, Worker};
use crate::checkpoint::{Piece, Wish};
use crate::error::Result;
use crate::op::Op;
use crate::slicer;
use crate::table::TableSpec;
use crate::tracker::Timestamp;

impl Worker {
    /// Makes each shard of these tables keep its rows as they are, from between two requests on; or
    /// from the moment when all workers have come to iteration `clock`.
    pub(crate) fn cut(&mut self, tables: &[Table], clock: Option<u64>) -> Result<()> {
        let mut cuts = Vec::new();
        for table in tables {
            let shards = 0..self.known(*table)?.map.shards().len();
            let body = Wish::Cut.body(&[]);
            let op = Op::Checkpoint;
            cuts.push(self.request_shards(op, *table, shards, clock.unwrap_or(0), &body)?);
        }
        cuts.into_iter().try_for_each(|cut| self.wait(cut).map(drop))
    }

    /// Number of the shards that a table would have if it was created here.
    pub(crate) fn shards_of(&self, spec: &TableSpec) -> Result<usize> {
        Ok(spec.placement.map(spec.range()?, self.founders)?.shards().len())
    }

    /// Asks for the next rows of a shard that was cut.
    pub(crate) fn piece(&mut self, table: Table, shard: usize) -> Result<Timestamp> {
        let body = Wish::Piece.body(&[]);
        let shards = shard..shard + 1;
        self.request_shards(Op::Checkpoint, table, shards, self.clock, &body)
    }

    /// Replaces rows of a table by those of a piece.
    pub(crate) fn put(&mut self, table: Table, piece: &Piece) -> Result<()> {
        let keys = &piece.rows.keys;
        let known = self.known(table)?;
        slicer::check(keys, known.range, &known.spec.name)?;
        let mut from = 0;
        while let Some((shard, slice)) = slicer::next(keys, from, &self.known(table)?.map) {
            from = slice.end;
            let part = Piece { rows: piece.rows.part(slice), is_last: false };
            let body = Wish::Put.body(&part.encode());
            let shards = shard..shard + 1;
            let op = Op::Checkpoint;
            let put = self.request_shards(op, table, shards, self.clock, &body)?;
            self.wait(put)?;
        }
        Ok(())
    }
}
