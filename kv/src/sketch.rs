//! Approximate counts of many keys in little memory.
//!
//! Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch", 2005, with
//! all hash functions on one table, as in Li et al., OSDI 2014, section 5.3. Cells are found by
//! double hashing (Kirsch and Mitzenmacher, 2006): the j-th is h(key) + j h'(key), modulo the size
//! of the table.

use std::collections::TryReserveError;

use caravan_van::Value;

use crate::filter::Draws;

/// The handle of tables that count in sketches, one at each server thread, which `caravan-learn`
/// has. Their values are `u8`, `u32` or `u64`, and saturate. Their width is 1.
pub const HANDLE: &str = "count-min";

/// A count from 0 on, which saturates.
pub trait Cell: Value + Ord {
    /// The sum, or the largest count.
    fn plus(self, other: Self) -> Self;
}

macro_rules! cell {
    ($($of:ty),*) => {$(
        impl Cell for $of {
            #[inline]
            fn plus(self, other: Self) -> Self {
                self.saturating_add(other)
            }
        }
    )*};
}
cell!(u8, u32, u64);

/// Seed of the two hash functions.
const SEED: u64 = 0;

/// Counts of keys, never too small, up to the largest of `C`, where they saturate.
///
/// With n cells, k hash functions and a total count N, a key is overestimated by more than e k N /
/// n with a probability of at most e^-k. The order of counting makes no difference.
///
/// ```
/// let mut sketch = caravan_kv::sketch::CountMin::<u32>::new(64, 2)?;
/// sketch.add(7, 3);
/// assert!(sketch.estimate(7) >= 3);
/// # Ok::<(), std::collections::TryReserveError>(())
/// ```
#[derive(Debug, Clone)]
pub struct CountMin<C = u8> {
    cells: Vec<C>,
    hashes: u8,
    draws: [Draws; 2],
}

impl CountMin {
    /// Cells for the counts of `workers` workers, of which none has more than `keys` keys, if
    /// workers share many of them: `ratio` W / ln(W + 1) times `keys`.
    pub fn cells_for(workers: usize, keys: u64, ratio: f64) -> f64 {
        let workers = workers as f64;
        ratio * workers / workers.ln_1p() * keys as f64
    }
}

impl<C: Cell> CountMin<C> {
    /// A sketch of `cells` counts with `hashes` hash functions, at least one of each.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(cells: usize, hashes: u8) -> Result<Self, TryReserveError> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(cells.max(1))?;
        memory.resize(cells.max(1), C::default());
        let draws = [0, 1].map(|number| Draws::new(SEED, number));
        Ok(CountMin { cells: memory, hashes: hashes.max(1), draws })
    }

    /// Its cells.
    pub fn cells(&self) -> &[C] {
        &self.cells
    }

    /// Its cells, to change.
    pub fn cells_mut(&mut self) -> &mut [C] {
        &mut self.cells
    }

    /// Number of its hash functions.
    pub fn hashes(&self) -> u8 {
        self.hashes
    }

    /// Adds `count` to the count of `key`.
    pub fn add(&mut self, key: u64, count: C) {
        for at in self.places(key) {
            self.cells[at] = self.cells[at].plus(count);
        }
    }

    /// Adds the counts of another sketch with as many cells and hash functions: the result is the
    /// sketch of both. Returns whether it has as many.
    pub fn merge(&mut self, other: &Self) -> bool {
        let fits = self.cells.len() == other.cells.len() && self.hashes == other.hashes;
        if fits {
            let cells = self.cells.iter_mut().zip(&other.cells);
            cells.for_each(|(cell, other)| *cell = cell.plus(*other));
        }
        fits
    }

    /// Halves the number of cells, if that is even: the result is the sketch of half as many cells.
    /// Returns whether it is. A cell stands for a share of the hashes, so two neighbours become
    /// one.
    pub fn halve(&mut self) -> bool {
        let is_even = self.cells.len() >= 2 && self.cells.len().is_multiple_of(2);
        if is_even {
            for at in 0..self.cells.len() / 2 {
                self.cells[at] = self.cells[2 * at].plus(self.cells[2 * at + 1]);
            }
            self.truncate(self.cells.len() / 2);
        }
        is_even
    }

    /// Keeps this many cells, at least one, for counts that are replaced.
    pub fn truncate(&mut self, cells: usize) {
        self.cells.truncate(cells.max(1));
        self.cells.shrink_to_fit();
    }

    /// The count of `key`, or more.
    pub fn estimate(&self, key: u64) -> C {
        self.places(key).map(|at| self.cells[at]).min().unwrap_or_default()
    }

    fn places(&self, key: u64) -> impl Iterator<Item = usize> + use<C> {
        let [first, step] = self.draws.map(|draws| draws.of(key));
        let cells = self.cells.len();
        let place = move |j: u8| {
            let share = (first + f64::from(j) * step).fract();
            ((share * cells as f64) as usize).min(cells - 1)
        };
        (0..self.hashes).map(place)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::HashMap;
    use std::f64::consts::E;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_never_underestimates_nor_minds_the_order(
            counted in prop::collection::vec((0_u64..60, 0_u8..90), 0..120),
            cells in 1_usize..200,
            hashes in 1_u8..6,
        ) {
            let sketch = |counted: &mut dyn Iterator<Item = &(u64, u8)>| {
                let mut sketch = CountMin::<u8>::new(cells, hashes).unwrap();
                counted.for_each(|&(key, count)| sketch.add(key, count));
                sketch
            };
            let there = sketch(&mut counted.iter());
            prop_assert_eq!(&there.cells, &sketch(&mut counted.iter().rev()).cells);
            let mut exact: HashMap<u64, u64> = HashMap::new();
            counted.iter().for_each(|&(key, count)| *exact.entry(key).or_default() += u64::from(count));
            for (key, count) in exact {
                prop_assert!(u64::from(there.estimate(key)) >= count.min(255));
            }
        }
    }

    proptest! {
        /// Merged it is the sketch of both, and halved that of half the cells, to the cell.
        #[test]
        fn merged_and_halved_sketches_are_those_that_were_counted_so(
            counted in prop::collection::vec((any::<u64>(), any::<u32>()), 0..60),
            cut in 0_usize..60,
            half in 1_usize..200,
            hashes in 1_u8..6,
        ) {
            let sketch = |counted: &[(u64, u32)], cells: usize| {
                let mut sketch = CountMin::<u32>::new(cells, hashes).unwrap();
                counted.iter().for_each(|&(key, count)| sketch.add(key, count));
                sketch
            };
            let (a, b) = counted.split_at(cut.min(counted.len()));
            let whole = sketch(&counted, 2 * half);
            let mut merged = sketch(a, 2 * half);
            prop_assert!(merged.merge(&sketch(b, 2 * half)));
            prop_assert_eq!(&merged.cells, &whole.cells);
            prop_assert!(!merged.merge(&sketch(b, half)));
            // A key with two places that become one is counted twice there, in both sketches.
            prop_assert!(merged.halve());
            let direct = sketch(&counted, half);
            prop_assert_eq!(&merged.cells, &direct.cells);
        }
    }

    /// Keys by a power law, most of which occur once: no more keys exceed the bound than it allows.
    #[test]
    fn few_are_overestimated_by_much() {
        let keys = 20_000_u64;
        let count = |key: u64| (2_000 / (key + 1)).clamp(1, 100) as u8;
        let all: f64 = (0..keys).map(|key| f64::from(count(key))).sum();
        for hashes in 1..=4 {
            for cells in [20_000, 100_000] {
                let mut sketch = CountMin::<u8>::new(cells, hashes).unwrap();
                (0..keys).for_each(|key| sketch.add(key, count(key)));
                let bound = E * f64::from(hashes) * all / cells as f64;
                let over =
                    |key: &u64| f64::from(sketch.estimate(*key)) > f64::from(count(*key)) + bound;
                let share = (0..keys).filter(over).count() as f64 / keys as f64;
                assert!(share <= E.powi(-i32::from(hashes)), "{hashes} in {cells}: {share}");
                assert!(sketch.estimate(keys + 7) <= 50, "a key that was never counted");
            }
        }
    }

    #[test]
    fn counts_end_at_255_and_memory_where_it_ends() {
        let mut sketch = CountMin::<u8>::new(100, 3).unwrap();
        (0..3).for_each(|_| sketch.add(5, 100));
        assert_eq!(sketch.estimate(5), 255);
        assert!(CountMin::<u8>::new(usize::MAX, 2).is_err());
        assert_eq!(CountMin::<u8>::new(0, 0).unwrap().estimate(1), 0);
    }

    #[test]
    fn tables_grow_less_than_workers() {
        assert_eq!(CountMin::cells_for(1, 1000, 2.0).round(), 2885.0);
        assert!(CountMin::cells_for(16, 1000, 2.0) < 16.0 * 2000.0);
    }
}
