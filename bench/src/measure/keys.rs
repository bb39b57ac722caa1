//! Which keys requests name: drawn by popularity, ahead of the clock.

use std::collections::HashSet;

use anyhow::{Result, ensure};
use caravan_kv::filter::Draws;

use super::requests::{KEY_GAP, scattered};

/// Draws the ranks 0 to `count` - 1 so that rank r comes in proportion to (r + 1)^-exponent, by
/// rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
/// monotone discrete distributions", 1996): no tables, and fewer than two tries on average. An
/// exponent of 0 draws all ranks evenly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Zipf {
    count: u64,
    exponent: f64,
    /// The integral of the hat from 1.5 on, less the weight of the first rank.
    first: f64,
    /// The integral of the hat to the end of the last rank.
    last: f64,
    /// A draw that lies so close below its rank is taken at once.
    near: f64,
}

impl Zipf {
    /// `count` is 1 or more and at most 2^52, `exponent` 0 or more.
    pub(super) fn new(count: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { count, exponent, first: 0.0, last: 0.0, near: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(count as f64 + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    pub(super) fn draw(&self, draws: &mut Draws) -> u64 {
        loop {
            let area = self.last + draws.next_unit() * (self.first - self.last);
            let at = self.inverse(area);
            let rank = at.round().clamp(1.0, self.count as f64);
            if rank - at <= self.near || area >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// The integral of the weight from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let ln = x.ln();
        let power = (1.0 - self.exponent) * ln;
        if power.abs() < TINY { ln } else { ln * power.exp_m1() / power }
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = ((1.0 - self.exponent) * area).max(-1.0);
        if power.abs() < TINY { area.exp() } else { (area * power.ln_1p() / power).exp() }
    }
}

/// Below this, (e^x - 1) / x is 1 to all digits that matter.
const TINY: f64 = 1e-12;

/// Which keys a worker's requests name.
#[derive(Debug)]
pub(super) enum Named {
    Drawn(Lists),
    New(NewKeys),
}

impl Named {
    /// The keys of a request.
    ///
    /// # Errors
    /// If no keys are new any more.
    pub(super) fn of(&mut self, number: u64) -> Result<&[u64]> {
        match self {
            Named::Drawn(lists) => Ok(lists.of(number)),
            Named::New(keys) => keys.of(number),
        }
    }
}

/// Keys that no other request of any worker names, spread over the whole table.
#[derive(Debug)]
pub(super) struct NewKeys {
    /// Keys of the table for each key of a request.
    step: u64,
    rank: u64,
    workers: u64,
    keys: Vec<u64>,
}

impl NewKeys {
    /// For this worker, whose requests name `each` keys of a table of `count`.
    pub(super) fn new(count: u64, each: usize, rank: usize, workers: usize) -> NewKeys {
        let [rank, workers] = [rank, workers].map(|it| it as u64);
        NewKeys { step: count / each as u64, rank, workers, keys: vec![0; each] }
    }

    fn of(&mut self, number: u64) -> Result<&[u64]> {
        let first = number * self.workers + self.rank;
        ensure!(
            first < self.step,
            "all keys of the table have rows: take more --table-keys, or a shorter --duration"
        );
        let places = (first..).step_by(self.step as usize);
        self.keys.iter_mut().zip(places).for_each(|(key, place)| *key = scattered(place));
        Ok(&self.keys)
    }
}

/// Lists of keys of a table, each sorted and without repetitions.
#[derive(Debug)]
pub(super) struct Lists {
    keys: Vec<u64>,
    each: usize,
}

impl Lists {
    /// Draws lists of `each` keys from a table of `count`, which is at least as many.
    pub(super) fn draw(count: u64, exponent: f64, each: usize, draws: &mut Draws) -> Lists {
        let zipf = Zipf::new(count, exponent);
        let step = step(count);
        let lists = (KEYS_DRAWN / each).clamp(1, LISTS_MAX);
        let mut keys = Vec::with_capacity(lists * each);
        let mut ranks = HashSet::with_capacity(each);
        for _ in 0..lists {
            ranks.clear();
            draw_ranks(&zipf, each, draws, &mut ranks);
            let from = keys.len();
            keys.extend(ranks.iter().map(|rank| scattered(place(*rank, step, count))));
            keys[from..].sort_unstable();
        }
        Lists { keys, each }
    }

    /// The keys of all lists.
    pub(super) fn into_keys(self) -> Vec<u64> {
        self.keys
    }

    /// The list of a request; they come round.
    pub(super) fn of(&self, number: u64) -> &[u64] {
        let lists = (self.keys.len() / self.each) as u64;
        let from = (number % lists) as usize * self.each;
        &self.keys[from..from + self.each]
    }
}

/// Keys that are drawn ahead, about as many.
const KEYS_DRAWN: usize = 1 << 21;
const LISTS_MAX: usize = 1 << 18;
/// A list takes at most so many draws a key.
const DRAWS_OF_KEY: usize = 4;

/// Draws ranks without repetitions until there are `each`, of which the table has as many. A rank
/// that was drawn before is drawn again. What the draws leave out of a steep or a small table is
/// filled with the most popular ranks, which would come next more often than others.
fn draw_ranks(zipf: &Zipf, each: usize, draws: &mut Draws, ranks: &mut HashSet<u64>) {
    for _ in 0..each * DRAWS_OF_KEY {
        if ranks.len() == each {
            return;
        }
        ranks.insert(zipf.draw(draws));
    }
    for rank in 0..zipf.count {
        if ranks.len() == each {
            return;
        }
        ranks.insert(rank);
    }
}

/// The key of this rank by popularity, in a table of `count` keys.
pub(super) fn key_of(rank: u64, count: u64) -> u64 {
    scattered(place(rank, step(count), count))
}

/// One past the last key that a table of `count` keys can have.
pub(super) fn keys_end(count: u64) -> u64 {
    count * KEY_GAP
}

/// Where a rank lies in the sorted keys of a table. Neighbours in popularity lie far apart, so that
/// every server has its share of popular keys.
fn place(rank: u64, step: u64, count: u64) -> u64 {
    (u128::from(rank) * u128::from(step) % u128::from(count)) as u64
}

/// Near the golden section of `count`, and without a common divisor.
fn step(count: u64) -> u64 {
    let from = (count as f64 * 0.618_033_988_75) as u64;
    let fits = |step: &u64| gcd(*step, count) == 1;
    (from.max(1)..).find(fits).expect("a prime is near")
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Goal: popularity is what the name says. Method: frequencies of 400,000 draws against the
    /// exact probabilities, within five standard errors.
    #[test]
    fn ranks_come_as_often_as_zipf_says() {
        for (count, exponent) in
            [(1_u64, 1.0), (2, 0.5), (10, 0.0), (10, 1.0), (1000, 1.05), (1000, 0.99), (50, 3.0)]
        {
            let zipf = Zipf::new(count, exponent);
            let mut draws = Draws::new(7, count);
            let all = 400_000;
            let mut seen = vec![0_u64; count as usize];
            (0..all).for_each(|_| seen[zipf.draw(&mut draws) as usize] += 1);
            let weight = |rank: u64| ((rank + 1) as f64).powf(-exponent);
            let total: f64 = (0..count).map(weight).sum();
            for rank in [0, 1, 2, 9, 49, 499, 999].into_iter().filter(|rank| *rank < count) {
                let share = weight(rank) / total;
                let error = (share * (1.0 - share) / f64::from(all)).sqrt();
                let found = seen[rank as usize] as f64 / f64::from(all);
                assert!(
                    (found - share).abs() <= 5.0 * error,
                    "{exponent} of {count}: rank {rank} has {found}, not {share}"
                );
            }
        }
    }

    #[test]
    fn large_tables_and_steep_slopes_are_no_trouble() {
        let mut draws = Draws::new(1, 1);
        for (count, exponent) in [(100_000_000, 1.05), (100_000_000, 20.0), (3, 20.0), (1, 0.0)] {
            let zipf = Zipf::new(count, exponent);
            assert!((0..1000).all(|_| zipf.draw(&mut draws) < count), "{exponent} of {count}");
        }
    }

    #[test]
    fn lists_are_sorted_and_without_repetitions() {
        let mut draws = Draws::new(1, 2);
        for (count, exponent, each) in [
            (8, 3.0, 8),
            (100, 1.05, 7),
            (65_536, 0.0, 1),
            (1, 1.0, 1),
            (1000, 1.05, 1000),
            (100_000, 20.0, 50_000),
        ] {
            let lists = Lists::draw(count, exponent, each, &mut draws);
            for number in 0..1000 {
                let list = lists.of(number);
                assert_eq!(list.len(), each);
                assert!(list.is_sorted_by(|a, b| a < b), "{list:?}");
            }
        }
    }

    /// Goal: a list never takes more draws than its keys are worth, however few ranks are left.
    /// Method: the draws that a list of all ranks took, against as many by hand.
    #[test]
    fn lists_of_all_keys_take_few_draws() {
        for exponent in [0.0, 1.05, 20.0] {
            let zipf = Zipf::new(1000, exponent);
            let mut ranks = HashSet::new();
            let mut draws = Draws::new(1, 2);
            let mut spare = draws;
            draw_ranks(&zipf, 1000, &mut draws, &mut ranks);
            assert_eq!(ranks.len(), 1000);
            let next = draws.next_bits();
            // A rank takes fewer than two tries of the generator on average.
            let is_next = (0..2 * 1000 * DRAWS_OF_KEY).any(|_| spare.next_bits() == next);
            assert!(is_next, "{exponent}");
        }
    }

    /// Requests of three workers have all keys of a table between them, each once.
    #[test]
    fn new_keys_are_new_until_there_are_none() {
        let mut seen = HashSet::new();
        for rank in 0..3 {
            let mut keys = NewKeys::new(12 * 5, 5, rank, 3);
            for number in 0..4 {
                let keys = keys.of(number).unwrap();
                assert!(keys.is_sorted(), "{keys:?}");
                assert!(keys.iter().all(|key| seen.insert(*key)), "{keys:?}");
            }
            let said = keys.of(4).unwrap_err().to_string();
            assert!(said.contains("--table-keys"), "{said}");
        }
        assert_eq!(seen, (0..60).map(scattered).collect());
    }

    #[test]
    fn every_rank_has_a_place_of_its_own() {
        for count in [1, 2, 3, 10, 64, 1000] {
            let step = step(count);
            let places: HashSet<u64> = (0..count).map(|rank| place(rank, step, count)).collect();
            assert_eq!(places.len() as u64, count);
            assert!(places.iter().all(|place| *place < count));
        }
    }
}
