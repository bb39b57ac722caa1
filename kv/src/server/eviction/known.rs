//! The keys that have rows, with a score for each.

use std::mem::take;

use caravan_van::{Account, Pool};

use crate::refusal::Refused;
use crate::server::index::{Index, NO_ROW};
use crate::server::shard::Shard;
use crate::table::TableSpec;

/// The keys that have rows.
pub(super) struct Known {
    pub(super) index: Index,
    /// By number in the index.
    pub(super) entries: Vec<Entry>,
    /// Numbers in the index of the current request's keys.
    pub(super) found: Vec<u32>,
    /// Those of its keys that it has inserted.
    inserted: Vec<u64>,
    /// Most values of all rows.
    pub(super) values: usize,
    /// Charged for entries, and for a rank of each when rows are evicted.
    memory: Account,
}

/// A key that has a row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry {
    /// The clock when a push named it last, and the score then.
    pub(super) clock: u64,
    pub(super) score: f32,
    /// Most values that the row has had.
    pub(super) values: usize,
}

impl Entry {
    pub(super) fn score_at(&self, clock: u64, decay: f32) -> f32 {
        match decay {
            1.0 => self.score,
            _ => self.score * power(decay, clock.saturating_sub(self.clock)),
        }
    }
}

/// `base` to this power, the same number on every machine: products are, logarithms are not.
fn power(base: f32, exponent: u64) -> f32 {
    let (mut square, mut rest, mut product) = (base, exponent, 1.0);
    while rest > 0 {
        if rest % 2 == 1 {
            product *= square;
        }
        square *= square;
        rest /= 2;
    }
    product
}

impl Known {
    /// Bytes of an entry and of its rank.
    pub(super) const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<(f32, u64, u64)>();

    /// There is always room for this many.
    pub(super) const ENTRIES_MIN: usize = 64;

    pub(super) fn new(spec: &TableSpec, pool: &Pool) -> Known {
        let account = || Account::new(pool, format!("rows of table {} that go", spec.name));
        let (entries, found, inserted) = (Vec::new(), Vec::new(), Vec::new());
        let (index, memory) = (Index::new(account()), account());
        Known { index, entries, found, inserted, values: 0, memory }
    }

    /// Bytes that this takes for so many keys at most.
    pub(super) fn footprint(keys: usize) -> usize {
        let entries = (keys + keys / 2).max(Self::ENTRIES_MIN);
        Index::footprint(keys) + entries * Self::ENTRY_BYTES
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.index.from(0).map(|(key, row)| (key, &self.entries[row as usize]))
    }

    /// Finds the sorted `keys`, of which those that go have no rows.
    pub(super) fn find(&mut self, keys: &[u64], goes: &[u64]) {
        self.found.clear();
        self.index.find(keys, &mut self.found);
        if goes.is_empty() {
            return;
        }
        for (key, row) in keys.iter().zip(&mut self.found) {
            if goes.binary_search(key).is_ok() {
                *row = NO_ROW;
            }
        }
    }

    /// Makes room for more entries.
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), Refused> {
        let need = (self.index.len() + more).max(Self::ENTRIES_MIN);
        let has = self.entries.capacity();
        if need > has {
            let room = need.max(has + has / 2);
            let bytes = room * Self::ENTRY_BYTES;
            self.memory.set(bytes)?;
            self.entries.reserve_exact(room - self.entries.len());
        }
        Ok(())
    }

    /// Inserts those of the found `keys` at `places` that have no rows.
    ///
    /// # Errors
    /// If memory is short; nothing has changed then.
    pub(super) fn insert(&mut self, keys: &[u64], places: &[u32]) -> Result<(), Refused> {
        self.inserted.clear();
        for (to, at) in places.iter().enumerate() {
            self.found[to] = self.found[*at as usize]; // places ascend
        }
        self.found.truncate(places.len());
        let missing = self.found.iter().filter(|row| **row == NO_ROW).count();
        if missing == 0 {
            return Ok(());
        }
        self.reserve(missing)?;
        let reserved = self.index.reserve_to_forget(missing);
        reserved?;
        let named: Vec<u64> = places.iter().map(|at| keys[*at as usize]).collect();
        let new = named.iter().zip(&self.found).filter(|(_, row)| **row == NO_ROW);
        self.inserted.extend(new.map(|(key, _)| *key));
        let inserted = self.index.insert(&named, &mut self.found, missing);
        if inserted.is_err() {
            self.inserted.clear();
        }
        inserted?;
        self.entries.resize(self.index.rows(), Entry::default());
        Ok(())
    }

    /// Forgets what was inserted, and removes it from `rows`, which have refused values for it.
    pub(super) fn forget_inserted(&mut self, rows: &mut dyn Shard) {
        let keys = take(&mut self.inserted);
        if keys.is_empty() {
            return;
        }
        // Where there is no memory for that, rows may stay that are as new, and read so.
        let _ = rows.remove(&keys);
        // There is room for it since they were inserted.
        let _ = self.remove(&keys);
    }

    /// Records that the inserted and found keys were named at this clock, with so many values each.
    pub(super) fn note(&mut self, lengths: impl Iterator<Item = usize>, clock: u64, decay: f32) {
        for (row, values) in self.found.iter().zip(lengths) {
            let entry = &mut self.entries[*row as usize];
            let score = entry.score_at(clock, decay) + 1.0;
            let most = entry.values.max(values);
            self.values += most - entry.values;
            *entry = Entry { clock, score, values: most };
        }
    }

    /// Makes room to forget so many keys.
    pub(super) fn reserve_to_remove(&mut self, keys: usize) -> Result<(), Refused> {
        self.index.reserve_to_remove(keys).map_err(Refused::from)
    }

    /// Forgets the sorted `keys`.
    pub(super) fn remove(&mut self, keys: &[u64]) -> Result<(), Refused> {
        let Known { index, entries, values, .. } = self;
        let removed = index.remove(keys, |row| *values -= take(&mut entries[row as usize]).values);
        removed.map_err(Refused::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_library_but_for_rounding() {
        for base in [0.1_f32, 0.5, 0.9, 0.999, 1.0] {
            for exponent in [0, 1, 2, 3, 10, 63, 64, 1000] {
                let [is, expected] = [power(base, exponent), base.powf(exponent as f32)];
                assert!((is - expected).abs() <= 1e-4 * expected, "{base}^{exponent}: {is}");
            }
        }
        assert_eq!(power(0.9, u64::MAX), 0.0);
        assert_eq!(power(1.0, u64::MAX), 1.0);
    }
}
