//! Examples in memory, in buckets: one for each thread that has read some. Threads then take rows
//! of their own bucket, of all, or an even share, batch by batch.

use std::ops::Range;

use super::{Examples, Row};
use caravan_van::draws::Random;

/// Which rows a thread takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Those of its own bucket.
    Own,
    /// Those of all buckets.
    All,
    /// As many as every other thread, give or take one, in order of the buckets.
    Balanced,
}

/// The examples of a process.
#[derive(Debug, Default)]
pub struct DataStore {
    buckets: Vec<Examples>,
    /// `[buckets + 1]`: the first row of each, counted over all.
    starts: Vec<usize>,
}

impl DataStore {
    /// A store with a bucket for each thread.
    pub fn new(buckets: Vec<Examples>) -> Self {
        let mut starts = vec![0];
        for bucket in &buckets {
            starts.push(starts[starts.len() - 1] + bucket.rows());
        }
        DataStore { buckets, starts }
    }

    /// Number of buckets.
    pub fn threads(&self) -> usize {
        self.buckets.len()
    }

    /// Number of rows in all buckets.
    pub fn rows(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Row `row`, counted over all buckets.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> Row<'_> {
        let bucket = self.starts.partition_point(|start| *start <= row) - 1;
        self.buckets[bucket].row(row - self.starts[bucket])
    }

    /// The rows of a thread.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn rows_of(&self, thread: usize, take: Take) -> Range<usize> {
        assert!(thread < self.threads(), "thread {thread} has no bucket");
        match take {
            Take::Own => self.starts[thread]..self.starts[thread + 1],
            Take::All => 0..self.rows(),
            Take::Balanced => {
                let first = |thread: usize| self.rows() * thread / self.threads();
                first(thread)..first(thread + 1)
            }
        }
    }

    /// Gives out a thread's rows in batches of `rows_max`, in an order that `seed` determines;
    /// without one, in theirs. A batch of 0 is one of all rows.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn sampler(
        &self,
        thread: usize,
        take: Take,
        rows_max: usize,
        seed: Option<u64>,
    ) -> Sampler<'_> {
        let mut order: Vec<usize> = self.rows_of(thread, take).collect();
        seed.into_iter().for_each(|seed| Random::new(seed).shuffle(&mut order));
        let rows_max = if rows_max == 0 { order.len().max(1) } else { rows_max };
        Sampler { store: self, order, next: 0, rows_max }
    }
}

/// Gives out the rows of a thread batch by batch. After `None` the next pass begins.
#[derive(Debug)]
pub struct Sampler<'a> {
    store: &'a DataStore,
    order: Vec<usize>,
    next: usize,
    rows_max: usize,
}

/// Some rows, and what is to be pulled for them.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// The rows.
    pub rows: Vec<Row<'a>>,
    /// The union of their keys, strictly ascending.
    pub keys: Vec<u64>,
}

impl<'a> Iterator for Sampler<'a> {
    type Item = Sample<'a>;

    fn next(&mut self) -> Option<Sample<'a>> {
        let end = self.order.len().min(self.next + self.rows_max);
        let chosen = &self.order[self.next..end];
        self.next = if chosen.is_empty() { 0 } else { end };
        if chosen.is_empty() {
            return None;
        }
        let rows: Vec<Row<'_>> = chosen.iter().map(|row| self.store.row(*row)).collect();
        let mut keys: Vec<u64> = rows.iter().flat_map(|row| row.keys.iter().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        Some(Sample { rows, keys })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::parse;

    /// Buckets of 3, 0 and 4 rows; row `r` over all has key `r`, and key 100 if it is even.
    fn store() -> DataStore {
        let rows = |rows: Range<usize>| {
            let even = |row: usize| if row.is_multiple_of(2) { " 100:1" } else { "" };
            let text: String = rows.map(|row| format!("1 {row}:1{}\n", even(row))).collect();
            parse("t".as_ref(), text.as_bytes()).unwrap()
        };
        DataStore::new(vec![rows(0..3), rows(3..3), rows(3..7)])
    }

    fn first_keys(sample: &Sample<'_>) -> Vec<u64> {
        sample.rows.iter().map(|row| row.keys[0]).collect()
    }

    #[test]
    fn threads_take_their_own_rows_all_or_an_even_share() {
        let store = store();
        assert_eq!((store.threads(), store.rows()), (3, 7));
        assert!((0..7).all(|row| store.row(row).keys[0] == row as u64));
        let taken = |take| (0..3).map(|thread| store.rows_of(thread, take)).collect::<Vec<_>>();
        assert_eq!(taken(Take::Own), [0..3, 3..3, 3..7]);
        assert_eq!(taken(Take::All), [0..7, 0..7, 0..7]);
        assert_eq!(taken(Take::Balanced), [0..2, 2..4, 4..7]);
        assert_eq!(DataStore::default().rows(), 0);
    }

    #[test]
    fn batches_have_the_union_of_their_keys_and_passes_follow_each_other() {
        let store = store();
        let mut sampler = store.sampler(2, Take::Own, 3, None);
        for _pass in 0..3 {
            let batch = sampler.next().unwrap();
            assert_eq!(first_keys(&batch), [3, 4, 5]);
            assert_eq!(batch.keys, [3, 4, 5, 100]);
            assert_eq!(sampler.next().unwrap().keys, [6, 100]);
            assert!(sampler.next().is_none());
        }
        assert!(store.sampler(1, Take::Own, 3, None).next().is_none());
        assert_eq!(store.sampler(1, Take::All, 0, None).next().unwrap().rows.len(), 7);
    }

    #[test]
    fn a_seed_orders_the_rows_and_each_comes_once() {
        let store = store();
        let order = |seed| {
            let sampler = store.sampler(0, Take::All, 2, seed);
            sampler.flat_map(|batch| first_keys(&batch)).collect::<Vec<_>>()
        };
        let (first, again, other) = (order(Some(1)), order(Some(1)), order(Some(2)));
        assert!(first == again && first != other, "{first:?}, {other:?}");
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, order(None));
    }
}
