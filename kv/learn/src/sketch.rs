//! Approximate counts of many keys in little memory.
//!
//! Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch", 2005, with
//! all hash functions on one table, as in Li et al., OSDI 2014, section 5.3. Cells are found by
//! double hashing (Kirsch and Mitzenmacher, 2006): the j-th is h(key) + j h'(key), modulo the size
//! of the table.

use std::collections::TryReserveError;

use caravan_kv::filter::Draws;

/// Seed of the two hash functions.
const SEED: u64 = 0;

/// Counts of keys, never too small, up to 255, where they saturate.
///
/// With n cells, k hash functions and a total count N, a key is overestimated by more than e k N /
/// n with a probability of at most e^-k. The order of counting makes no difference.
///
/// ```
/// let mut sketch = caravan_learn::sketch::CountMin::new(64, 2)?;
/// sketch.add(7, 3);
/// assert!(sketch.estimate(7) >= 3);
/// # Ok::<(), std::collections::TryReserveError>(())
/// ```
#[derive(Debug, Clone)]
pub struct CountMin {
    cells: Vec<u8>,
    hashes: u8,
    draws: [Draws; 2],
}

impl CountMin {
    /// A sketch of `cells` bytes with `hashes` hash functions, at least one of each.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(cells: usize, hashes: u8) -> Result<Self, TryReserveError> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(cells.max(1))?;
        memory.resize(cells.max(1), 0);
        let draws = [0, 1].map(|number| Draws::new(SEED, number));
        Ok(CountMin { cells: memory, hashes: hashes.max(1), draws })
    }

    /// Cells for the counts of `workers` workers, of which none has more than `keys` keys, if
    /// workers share many of them: `ratio` W / ln(W + 1) times `keys`.
    pub fn cells_for(workers: usize, keys: u64, ratio: f64) -> f64 {
        let workers = workers as f64;
        ratio * workers / workers.ln_1p() * keys as f64
    }

    /// Adds `count` to the count of `key`.
    pub fn add(&mut self, key: u64, count: u8) {
        for at in self.places(key) {
            self.cells[at] = self.cells[at].saturating_add(count);
        }
    }

    /// The count of `key`, or more.
    pub fn estimate(&self, key: u64) -> u8 {
        self.places(key).map(|at| self.cells[at]).min().unwrap_or(0)
    }

    fn places(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
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
                let mut sketch = CountMin::new(cells, hashes).unwrap();
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

    /// Keys by a power law, most of which occur once: no more keys exceed the bound than it allows.
    #[test]
    fn few_are_overestimated_by_much() {
        let keys = 20_000_u64;
        let count = |key: u64| (2_000 / (key + 1)).clamp(1, 100) as u8;
        let all: f64 = (0..keys).map(|key| f64::from(count(key))).sum();
        for hashes in 1..=4 {
            for cells in [20_000, 100_000] {
                let mut sketch = CountMin::new(cells, hashes).unwrap();
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
        let mut sketch = CountMin::new(100, 3).unwrap();
        (0..3).for_each(|_| sketch.add(5, 100));
        assert_eq!(sketch.estimate(5), 255);
        assert!(CountMin::new(usize::MAX, 2).is_err());
        assert_eq!(CountMin::new(0, 0).unwrap().estimate(1), 0);
    }

    #[test]
    fn tables_grow_less_than_workers() {
        assert_eq!(CountMin::cells_for(1, 1000, 2.0).round(), 2885.0);
        assert!(CountMin::cells_for(16, 1000, 2.0) < 16.0 * 2000.0);
    }
}
