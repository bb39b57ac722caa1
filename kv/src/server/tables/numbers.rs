//! The numbers of tables in messages. The first server thread gives them out; no number is given
//! twice, so that a request for a dropped table never reaches another one.

use std::collections::BTreeMap;

use caravan_van::{Account, Pool};

use crate::refusal::{Refusal, Refused};

/// Bytes of an interval of numbers in the map.
const INTERVAL_BYTES: usize = 64;

/// Numbers that were given, and those of dropped tables.
pub(super) struct Numbers {
    /// The highest number that was given out, as far as this thread knows.
    last: u32,
    /// Dropped numbers as disjoint intervals that do not touch: last number by first.
    dropped: BTreeMap<u32, u32>,
    memory: Account,
}

impl Numbers {
    pub(super) fn new(pool: &Pool) -> Numbers {
        let memory = Account::new(pool, "the numbers of dropped tables");
        Numbers { last: 0, dropped: BTreeMap::new(), memory }
    }

    /// A number that no table has had.
    ///
    /// # Errors
    /// If all are used up.
    pub(super) fn next(&mut self) -> Result<u32, Refused> {
        let last = self.interval(self.last.saturating_add(1)).map_or(self.last, |(_, last)| last);
        self.last = last
            .checked_add(1)
            .ok_or_else(|| Refusal::Internal.because("no number is left for another table"))?;
        Ok(self.last)
    }

    /// Records a number that another thread has given out.
    pub(super) fn note(&mut self, number: u32) {
        self.last = self.last.max(number);
    }

    /// Whether the table of this number was dropped.
    pub(super) fn is_dropped(&self, number: u32) -> bool {
        self.interval(number).is_some()
    }

    /// Records that the table of this number was dropped.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(super) fn drop(&mut self, number: u32) -> Result<(), Refused> {
        self.drop_all(number, number)
    }

    /// Records that the tables of the numbers from `first` to `last` were dropped.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(super) fn drop_all(&mut self, first: u32, last: u32) -> Result<(), Refused> {
        if self.interval(first).is_some_and(|(_, known)| known >= last) {
            return Ok(());
        }
        let bytes = (self.dropped.len() + 1) * INTERVAL_BYTES;
        self.memory.set(bytes)?;
        let before = self.interval(first.saturating_sub(1));
        let first = before.map_or(first, |(before, _)| before);
        let after = self.interval(last.saturating_add(1));
        let last = after.map_or(last, |(_, after)| after);
        self.dropped.retain(|&begin, _| !(first..=last).contains(&begin));
        self.dropped.insert(first, last);
        self.memory.release(bytes - self.dropped.len() * INTERVAL_BYTES);
        Ok(())
    }

    /// Dropped numbers as intervals: the first number and the last of each.
    pub(super) fn dropped(&self) -> Vec<(u32, u32)> {
        self.dropped.iter().map(|(&first, &last)| (first, last)).collect()
    }

    /// The dropped numbers around `number`.
    fn interval(&self, number: u32) -> Option<(u32, u32)> {
        let (&first, &last) = self.dropped.range(..=number).next_back()?;
        (number <= last).then_some((first, last))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_number_is_given_once_and_dropped_ones_are_remembered_in_little_memory() {
        let pool = Pool::new(1 << 20);
        let mut numbers = Numbers::new(&pool);
        let given: Vec<u32> = (0..1000).map(|_| numbers.next().unwrap()).collect();
        assert_eq!(given, (1..=1000).collect::<Vec<_>>());
        let (odd, even): (Vec<u32>, Vec<u32>) = given.iter().partition(|number| **number % 2 == 1);
        odd.iter().for_each(|number| numbers.drop(*number).unwrap());
        assert!(numbers.is_dropped(7) && !numbers.is_dropped(8));
        assert_eq!(numbers.dropped.len(), 500);
        even.iter().rev().for_each(|number| numbers.drop(*number).unwrap());
        numbers.drop(1000).unwrap();
        assert_eq!(numbers.dropped, BTreeMap::from([(1, 1000)]));
        assert_eq!(numbers.memory.bytes(), INTERVAL_BYTES);
        assert_eq!(numbers.next(), Ok(1001));
    }

    #[test]
    fn intervals_that_another_thread_tells_fill_the_gaps() {
        let pool = Pool::new(1 << 20);
        let mut numbers = Numbers::new(&pool);
        [3, 11, 19, 40].iter().for_each(|number| numbers.drop(*number).unwrap());
        numbers.drop_all(1, 18).unwrap();
        assert_eq!(numbers.dropped(), [(1, 19), (40, 40)]);
        numbers.drop_all(5, 9).unwrap();
        numbers.drop_all(20, 30).unwrap();
        assert_eq!(numbers.dropped(), [(1, 30), (40, 40)]);
        numbers.drop_all(0, u32::MAX).unwrap();
        assert_eq!(numbers.dropped(), [(0, u32::MAX)]);
        assert_eq!(numbers.memory.bytes(), INTERVAL_BYTES);
    }

    #[test]
    fn numbers_that_others_drop_before_they_are_given_are_passed_over() {
        let pool = Pool::new(1 << 20);
        let mut numbers = Numbers::new(&pool);
        [0, 2, 3, u32::MAX].iter().for_each(|number| numbers.drop(*number).unwrap());
        assert_eq!([numbers.next(), numbers.next()], [Ok(1), Ok(4)]);
        numbers.last = u32::MAX - 2;
        assert_eq!(numbers.next(), Ok(u32::MAX - 1));
        assert!(numbers.next().unwrap_err().reason.contains("no number is left"));
        let mut scattered = (0..u32::MAX).step_by(2).map(|number| numbers.drop(number));
        assert!(scattered.any(|dropped| dropped.is_err()), "memory is bounded");
    }
}
