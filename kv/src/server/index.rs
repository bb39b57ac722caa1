//! Which row holds a key: sorted arrays, looked up in the order of the sorted keys of a request.
//!
//! Requests come sorted, so each look-up starts where the one before ended and gallops from there: a request for most of
//! the keys costs a merge, one for few keys a binary search each. New keys are collected in a short sorted list, which is
//! merged into the long one when it has grown to a fraction of it: inserting costs amortised logarithmic time.

/// The short list may always hold this many keys.
const RECENT_MIN: usize = 1024;

/// Beyond that it may hold one key for so many of the long list.
const RECENT_SHARE: usize = 8;

/// Sorted keys and their rows.
#[derive(Debug, Default)]
pub(crate) struct Index {
    settled: Sorted,
    recent: Sorted,
}

#[derive(Debug, Default)]
struct Sorted {
    keys: Vec<u64>,
    rows: Vec<u32>,
}

impl Sorted {
    /// Position of the first key that is not below `key`, which is at or behind `from`.
    fn gallop(&self, from: usize, key: u64) -> usize {
        let keys = &self.keys[from..];
        let mut step = 1;
        while step <= keys.len() && keys[step - 1] < key {
            step *= 2;
        }
        let low = step / 2;
        from + low + keys[low..keys.len().min(step)].partition_point(|&k| k < key)
    }

    fn row_at(&self, position: usize, key: u64) -> Option<u32> {
        (self.keys.get(position) == Some(&key)).then(|| self.rows[position])
    }
}

impl Index {
    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.settled.keys.len() + self.recent.keys.len()
    }

    /// Calls `visit` with the position of each of the sorted `keys`, and its row if it has one.
    pub(crate) fn find(&self, keys: &[u64], mut visit: impl FnMut(usize, Option<u32>)) {
        let (mut settled, mut recent) = (0, 0);
        for (position, &key) in keys.iter().enumerate() {
            settled = self.settled.gallop(settled, key);
            let mut row = self.settled.row_at(settled, key);
            if row.is_none() && !self.recent.keys.is_empty() {
                recent = self.recent.gallop(recent, key);
                row = self.recent.row_at(recent, key);
            }
            visit(position, row);
        }
    }

    /// Gives rows, numbered from the current [`Index::len`] on, to those of the sorted `keys` that have none.
    pub(crate) fn insert(&mut self, keys: &[u64]) {
        let mut new = Vec::new();
        self.find(keys, |position, row| {
            if row.is_none() {
                new.push(keys[position]);
            }
        });
        if new.is_empty() {
            return;
        }
        let first = self.len() as u32;
        let fresh = Sorted { rows: (first..first + new.len() as u32).collect(), keys: new };
        self.recent = merge(std::mem::take(&mut self.recent), fresh);
        if self.recent.keys.len() > RECENT_MIN.max(self.settled.keys.len() / RECENT_SHARE) {
            self.settled =
                merge(std::mem::take(&mut self.settled), std::mem::take(&mut self.recent));
        }
    }
}

/// Merges two lists without common keys.
fn merge(a: Sorted, b: Sorted) -> Sorted {
    if a.keys.is_empty() {
        return b;
    }
    let total = a.keys.len() + b.keys.len();
    let mut merged = Sorted { keys: Vec::with_capacity(total), rows: Vec::with_capacity(total) };
    let (mut i, mut j) = (0, 0);
    while merged.keys.len() < total {
        let from_a = j == b.keys.len() || (i < a.keys.len() && a.keys[i] < b.keys[j]);
        let (source, at) = if from_a { (&a, &mut i) } else { (&b, &mut j) };
        merged.keys.push(source.keys[*at]);
        merged.rows.push(source.rows[*at]);
        *at += 1;
    }
    merged
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn equals_a_map_whatever_the_order_of_batches() {
        let mut index = Index::default();
        let mut map = BTreeMap::new();
        let mut state = 1u64;
        for round in 0..200 {
            let mut keys: Vec<u64> = (0..round * 7 % 300)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    state >> 50
                })
                .collect();
            keys.sort_unstable();
            keys.dedup();
            for &key in &keys {
                let row = map.len() as u32;
                map.entry(key).or_insert(row);
            }
            index.insert(&keys);
            assert_eq!(index.len(), map.len());
        }
        let all: Vec<u64> = (0..1 << 14).collect();
        index.find(&all, |position, row| assert_eq!(row, map.get(&all[position]).copied()));
    }

    #[test]
    fn the_last_key_is_a_key() {
        let mut index = Index::default();
        index.insert(&[0, u64::MAX]);
        let mut rows = Vec::new();
        index.find(&[0, 1, u64::MAX], |_, row| rows.push(row));
        assert_eq!(rows, [Some(0), None, Some(1)]);
    }
}
