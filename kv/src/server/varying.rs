//! Rows that have their own lengths: the shard of tables of width 0.
//!
//! Each row is a separate block of ordinary memory, which an account bounds; answers gather them.

use caravan_van::{Account, Pool};

use super::handle::{Number, Rule};
use super::index::Index;
use super::initial::Start;
use super::shard::{Extract, Pulled, Request, Shard};
use super::store::{FOUND_BYTES, FOUND_MIN, accounts, make_room_to_find};
use crate::refusal::{Refusal, Refused};
use crate::table::TableSpec;

/// Bytes that the allocator adds to a row's values.
const BLOCK_BYTES: usize = 16;

/// Rows that have their own lengths.
pub(crate) struct VaryingRows<V, R> {
    index: Index,
    stored: Vec<Vec<V>>,
    rule: R,
    start: Start<V>,
    /// Charged for rows and lists of them.
    memory: Account,
    /// Rows of the current request's keys.
    rows: Vec<u32>,
    /// Lengths of those rows.
    lengths: Vec<u32>,
    /// Keys for which `memory` is charged for these two lists.
    found_max: usize,
}

impl<V: Number, R: Rule<V>> VaryingRows<V, R> {
    pub(super) fn new(
        spec: &TableSpec,
        rule: R,
        start: Start<V>,
        memory: &Pool,
    ) -> Result<Self, Refused> {
        let [index, others] = accounts(spec, memory)?;
        Ok(VaryingRows {
            index: Index::new(index),
            stored: Vec::new(),
            rule,
            start,
            memory: others,
            rows: Vec::new(),
            lengths: Vec::new(),
            found_max: FOUND_MIN,
        })
    }

    /// Stores the rows of `keys` in `self.rows`; returns how many are missing.
    fn find(&mut self, keys: &[u64]) -> Result<usize, Refused> {
        if keys.len() > self.found_max {
            make_room_to_find(&mut self.memory, &mut self.found_max, keys.len())?;
        }
        self.rows.clear();
        Ok(self.index.find(keys, &mut self.rows))
    }

    /// The values of a row; empty if there is no row.
    fn stored(&self, row: u32) -> &[V] {
        self.stored.get(row as usize).map_or(&[], |values| values)
    }

    /// Checks that rows can take the pushed lengths.
    fn check_lengths(&self, request: &Request<'_>) -> Result<(), Refused> {
        for ((&row, &key), &length) in self.rows.iter().zip(request.keys).zip(request.lengths) {
            let stored = self.stored(row).len();
            if stored != 0 && stored != length as usize && !R::REPLACES {
                return Err(Refusal::Shape.because(format!(
                    "key {key} holds {stored} values, so {length} cannot be combined with them"
                )));
            }
        }
        Ok(())
    }

    /// The bytes by which rows grow that get these lengths.
    fn growth(&self, lengths: &[u32]) -> usize {
        let grown = self.rows.iter().zip(lengths).map(|(&row, &length)| {
            let room = self.stored.get(row as usize).map_or(0, Vec::capacity);
            row_bytes::<V>(room.max(length as usize)) - row_bytes::<V>(room)
        });
        grown.fold(0, usize::saturating_add)
    }

    /// Makes room for `missing` more rows and `growth` more bytes of values.
    fn make_room(
        &mut self,
        keys: &[u64],
        missing: usize,
        growth: usize,
    ) -> caravan_van::Result<()> {
        let more = (self.index.len() + missing).saturating_sub(self.stored.len());
        self.memory.reserve(&mut self.stored, more)?;
        self.memory.add(growth)?;
        let inserted = self.index.insert(keys, &mut self.rows, missing);
        match inserted {
            Ok(()) => self.stored.resize_with(self.index.rows(), Vec::new),
            Err(_) => self.memory.release(growth),
        }
        inserted
    }
}

/// Bytes of a row with room for `values`, without its place in the list.
fn row_bytes<V: Number>(values: usize) -> usize {
    if values == 0 { 0 } else { BLOCK_BYTES + (values * V::BYTES).next_multiple_of(BLOCK_BYTES) }
}

impl<V: Number, R: Rule<V>> Shard for VaryingRows<V, R> {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        let total: usize = request.lengths.iter().map(|&n| n as usize).sum();
        let mut pushed = V::view(request.values)
            .ok_or_else(|| Refusal::Shape.because("the values do not fit the table's type"))?;
        if request.lengths.len() != request.keys.len() || pushed.len() != total {
            return Err(Refusal::Shape.because(format!(
                "a push of {} keys came with {} lengths, which add up to {total}, and {} values",
                request.keys.len(),
                request.lengths.len(),
                pushed.len()
            )));
        }
        let missing = self.find(request.keys)?;
        self.check_lengths(request)?;
        let growth = self.growth(request.lengths);
        if missing > 0 || growth > 0 {
            let made = self.make_room(request.keys, missing, growth);
            made?;
        }
        let origin = request.origin();
        for (at, row) in self.rows.iter().enumerate() {
            let (mine, rest) = pushed.split_at(request.lengths[at] as usize);
            let stored = &mut self.stored[*row as usize];
            stored.reserve_exact(mine.len().saturating_sub(stored.len()));
            let key = request.keys[at];
            if stored.is_empty() {
                stored.resize(mine.len(), V::default());
                self.start.fill(key, stored);
            }
            stored.resize(mine.len(), V::default());
            self.rule.apply(origin, key, stored, &mut [], mine);
            pushed = rest;
        }
        Ok(())
    }

    fn reads_once(&self) -> bool {
        R::READS_ONCE
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        self.find(request.keys)?;
        let mut lengths = std::mem::take(&mut self.lengths);
        lengths.clear();
        lengths.extend(self.rows.iter().map(|&row| self.stored(row).len() as u32));
        self.lengths = lengths;
        let total: usize = self.lengths.iter().map(|&n| n as usize).sum();
        Ok(Pulled::Varying(total * V::BYTES))
    }

    fn give(
        &self,
        from: u64,
        bytes_max: usize,
        extract: &mut Extract,
    ) -> Result<Option<u64>, Refused> {
        let mut rows = self.index.from(from);
        for (key, row) in &mut rows {
            extract.keys.push(key);
            extract.lengths.push(self.stored(row).len() as u32);
            extract.values.extend_from_slice(V::bytes(self.stored(row)));
            if extract.values.len() + size_of_val(&extract.keys[..]) >= bytes_max {
                break;
            }
        }
        Ok(rows.next().map(|(key, _)| key))
    }

    fn take(
        &mut self,
        keys: &[u64],
        lengths: &[u32],
        values: &[u8],
        _memory: &Pool,
    ) -> Result<(), Refused> {
        let total: usize = lengths.iter().map(|&n| n as usize).sum();
        if lengths.len() != keys.len() || values.len() != total * V::BYTES {
            return Err(Refusal::Shape.because(format!(
                "{} rows came with {} bytes",
                keys.len(),
                values.len()
            )));
        }
        let missing = self.find(keys)?;
        let growth = self.growth(lengths);
        self.make_room(keys, missing, growth)?;
        let mut rest = values;
        for (&row, &length) in self.rows.iter().zip(lengths) {
            let (mine, others) = rest.split_at(length as usize * V::BYTES);
            rest = others;
            let stored = &mut self.stored[row as usize];
            stored.reserve_exact((length as usize).saturating_sub(stored.len()));
            stored.resize(length as usize, V::default());
            V::bytes_mut(stored).copy_from_slice(mine);
        }
        Ok(())
    }

    fn remove(&mut self, keys: &[u64]) -> Result<(), Refused> {
        let mut freed = 0;
        let stored = &mut self.stored;
        let removed = self.index.remove(keys, |row| {
            let row = std::mem::take(&mut stored[row as usize]);
            freed += row_bytes::<V>(row.capacity());
        });
        self.memory.release(freed);
        removed.map_err(Refused::from)
    }

    fn footprint(&self, rows: usize, values: usize) -> Option<usize> {
        let list = (2 * rows + rows / 2 + 8) * size_of::<Vec<V>>(); // old and new one
        let blocks = rows * 2 * BLOCK_BYTES + values * V::BYTES;
        Some(blocks + list + FOUND_MIN * FOUND_BYTES + Index::footprint(rows))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        let mut at = 0;
        for &row in &self.rows {
            let bytes = V::bytes(self.stored(row));
            into[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }

    fn lengths(&self) -> &[u32] {
        &self.lengths
    }
}
