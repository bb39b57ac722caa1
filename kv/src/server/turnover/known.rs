//! The keys that have rows, with a score for each.

use std::mem::take;

use caravan_van::{Account, Pool};

use crate::server::index::{Index, NO_ROW};
use crate::table::TableSpec;

/// The keys that have rows.
pub(super) struct Known {
    pub(super) index: Index,
    /// By number in the index.
    pub(super) entries: Vec<Entry>,
    /// Numbers in the index of the current request's keys.
    pub(super) found: Vec<u32>,
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
    score: f32,
    /// Most values that the row has had.
    pub(super) values: usize,
}

impl Entry {
    pub(super) fn score_at(&self, clock: u64, decay: f32) -> f32 {
        match decay {
            1.0 => self.score,
            _ => self.score * decay.powf(clock.saturating_sub(self.clock) as f32),
        }
    }
}

impl Known {
    /// Bytes of an entry and of its rank.
    pub(super) const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<(f32, u64, u64)>();

    /// There is always room for this many.
    pub(super) const ENTRIES_MIN: usize = 64;

    pub(super) fn new(spec: &TableSpec, pool: &Pool) -> Known {
        let account = || Account::new(pool, format!("rows of table {} that go", spec.name));
        let (entries, found) = (Vec::new(), Vec::new());
        Known { index: Index::new(account()), entries, found, values: 0, memory: account() }
    }

    /// Bytes that this takes for so many keys at most.
    pub(super) fn footprint(keys: usize) -> usize {
        let entries = (keys + keys / 2).max(Self::ENTRIES_MIN);
        Index::footprint(keys) + entries * Self::ENTRY_BYTES
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.index.from(0).map(|(key, row)| (key, &self.entries[row as usize]))
    }

    /// Finds the sorted `keys`.
    pub(super) fn find(&mut self, keys: &[u64]) {
        self.found.clear();
        self.index.find(keys, &mut self.found);
    }

    /// Makes room for more entries.
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), String> {
        let need = (self.index.len() + more).max(Self::ENTRIES_MIN);
        let has = self.entries.capacity();
        if need > has {
            let room = need.max(has + has / 2);
            let bytes = room * Self::ENTRY_BYTES;
            self.memory.set(bytes).map_err(|error| error.to_string())?;
            self.entries.reserve_exact(room - self.entries.len());
        }
        Ok(())
    }

    /// Enters a push of the found keys at `places`: `named` has each with its number of values.
    pub(super) fn enter(
        &mut self,
        places: &[u32],
        named: impl Iterator<Item = (u64, usize)> + Clone,
        clock: u64,
        decay: f32,
    ) -> Result<(), String> {
        for (to, at) in places.iter().enumerate() {
            self.found[to] = self.found[*at as usize]; // places ascend
        }
        self.found.truncate(places.len());
        let missing = self.found.iter().filter(|row| **row == NO_ROW).count();
        if missing > 0 {
            self.reserve(missing)?;
            let keys: Vec<u64> = named.clone().map(|(key, _)| key).collect();
            let inserted = self.index.insert(&keys, &mut self.found, missing);
            inserted.map_err(|error| error.to_string())?;
            self.entries.resize(self.index.rows(), Entry::default());
        }
        for (row, (_, values)) in self.found.iter().zip(named) {
            let entry = &mut self.entries[*row as usize];
            let score = entry.score_at(clock, decay) + 1.0;
            let most = entry.values.max(values);
            self.values += most - entry.values;
            *entry = Entry { clock, score, values: most };
        }
        Ok(())
    }

    /// Forgets the sorted `keys`.
    pub(super) fn remove(&mut self, keys: &[u64]) -> Result<(), String> {
        let Known { index, entries, values, .. } = self;
        let removed = index.remove(keys, |row| *values -= take(&mut entries[row as usize]).values);
        removed.map_err(|error| error.to_string())
    }
}
