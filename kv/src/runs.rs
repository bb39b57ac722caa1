//! Keys that are implied: ranges, chunks and single keys, given as runs of consecutive keys.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport. A request with runs is
//! a request for all their keys. Its messages have the first key and the number of keys of each
//! run, in place of the keys; the server writes out the keys and goes on as usual.

use std::ops::{Bound, RangeBounds, RangeInclusive};

use caravan_van::KeyRange;

use crate::error::{Error, Result};
use crate::refusal::{Refusal, Refused};

/// Runs of consecutive keys, ascending and disjoint.
///
/// ```
/// use caravan_kv::Runs;
///
/// let range = Runs::range(1000..2000);
/// assert_eq!(range.keys(), 1000);
/// let chunks = Runs::chunks(64, &[0, 3]); // keys 0 to 63 and 192 to 255
/// let all = chunks.and(500..=500).and(1000..2000);
/// assert_eq!(all.keys(), 64 + 64 + 1 + 1000);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// First and last key of each.
    runs: Vec<(u64, u64)>,
}

impl Runs {
    /// The keys of a range; none if it is empty.
    pub fn range(range: impl RangeBounds<u64>) -> Runs {
        Runs::default().and(range)
    }

    /// The keys `[i * len, (i + 1) * len)` of each chunk i of `chunks`, as far as keys go.
    pub fn chunks(len: u64, chunks: &[u64]) -> Runs {
        let mut all = Runs { runs: Vec::with_capacity(chunks.len()) };
        for chunk in chunks {
            let first = chunk.checked_mul(len).filter(|_| len > 0);
            let keys = first.map(|first| (first, first.saturating_add(len - 1)));
            keys.into_iter().for_each(|(first, last)| all.add(first, last));
        }
        all
    }

    /// These and the keys of a range, which must follow them.
    pub fn and(mut self, range: impl RangeBounds<u64>) -> Runs {
        let first = match range.start_bound() {
            Bound::Included(first) => Some(*first),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let last = match range.end_bound() {
            Bound::Included(last) => Some(*last),
            Bound::Excluded(end) => end.checked_sub(1),
            Bound::Unbounded => Some(u64::MAX),
        };
        if let (Some(first), Some(last)) = (first, last)
            && first <= last
        {
            self.add(first, last);
        }
        self
    }

    /// Adds a run; one that follows another without a gap extends it.
    fn add(&mut self, first: u64, last: u64) {
        match self.runs.last_mut() {
            Some((_, before)) if before.checked_add(1) == Some(first) => *before = last,
            _ => self.runs.push((first, last)),
        }
    }

    /// Number of keys.
    pub fn keys(&self) -> u128 {
        self.runs.iter().map(|(first, last)| u128::from(last - first) + 1).sum()
    }

    /// The runs, each of one key or more.
    pub fn iter(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        self.runs.iter().map(|&(first, last)| first..=last)
    }

    /// Writes all keys to `keys`, at most `most`.
    ///
    /// # Errors
    /// [`Error::KeysNotAscending`] names the position of the first key that is not above the one
    /// before it; [`Error::Config`] if there are more than `most`.
    pub(crate) fn write(&self, keys: &mut Vec<u64>, most: usize) -> Result<()> {
        keys.clear();
        if self.keys() > most as u128 {
            return Err(Error::Config(format!(
                "{} keys at once are more than {most}, which fit into this worker's memory (take shorter ranges, or raise CARAVAN_MEMORY)",
                self.keys()
            )));
        }
        for &(first, last) in &self.runs {
            if let Some(&previous) = keys.last().filter(|previous| **previous >= first) {
                let position = keys.len();
                return Err(Error::KeysNotAscending { position, key: first, previous });
            }
            keys.extend(first..=last);
        }
        Ok(())
    }
}

impl From<KeyRange> for Runs {
    fn from(range: KeyRange) -> Runs {
        Runs::range(range.begin()..=range.last())
    }
}

/// The runs of ascending keys, as a message has them: first keys and numbers of keys.
#[derive(Debug, Default)]
pub(crate) struct Coded {
    pub(crate) first: Vec<u64>,
    pub(crate) counts: Vec<u32>,
}

impl Coded {
    /// Finds the runs of `keys`.
    pub(crate) fn find(&mut self, keys: &[u64]) {
        self.first.clear();
        self.counts.clear();
        let follows = |a: &u64, b: &u64| b - a == 1;
        for run in keys.chunk_by(follows) {
            for piece in run.chunks(u32::MAX as usize) {
                self.first.push(piece[0]);
                self.counts.push(piece.len() as u32);
            }
        }
    }
}

/// Number of keys of the runs of a message, whose first keys are ascending and within `range`.
///
/// # Errors
/// The reason why they are no runs of that range.
pub(crate) fn count(first: &[u64], counts: &[u32], range: KeyRange) -> Result<usize, Refused> {
    if first.len() != counts.len() {
        return Err(Refusal::Key.because(format!(
            "{} runs of keys come with {} numbers",
            first.len(),
            counts.len()
        )));
    }
    let mut keys: usize = 0;
    for (at, (&begin, &count)) in first.iter().zip(counts).enumerate() {
        let last = begin.checked_add(u64::from(count).wrapping_sub(1)).filter(|_| count > 0);
        let bound = first.get(at + 1).map_or(range.last(), |next| next - 1);
        if last.is_none_or(|last| last > bound) {
            return Err(Refusal::Key.because(format!(
                "a run of {count} keys from {begin} on does not end by {bound}"
            )));
        }
        keys = keys.saturating_add(count as usize);
    }
    Ok(keys)
}

/// All keys of checked runs.
pub(crate) fn keys(first: &[u64], counts: &[u32]) -> impl Iterator<Item = u64> {
    first
        .iter()
        .zip(counts)
        .flat_map(|(&first, &count)| (0..u64::from(count)).map(move |n| first + n))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn written(runs: &Runs) -> Vec<u64> {
        let mut keys = vec![99];
        runs.write(&mut keys, 1000).unwrap();
        assert_eq!(keys.len() as u128, runs.keys());
        keys
    }

    #[test]
    fn runs_are_all_their_keys() {
        assert_eq!(written(&Runs::range(5..8)), [5, 6, 7]);
        assert_eq!(written(&Runs::range(5..=5).and(6..8).and(9..10)), [5, 6, 7, 9]);
        assert_eq!(written(&Runs::range(7..7)), [0; 0]);
        assert_eq!(written(&Runs::range(u64::MAX - 1..)), [u64::MAX - 1, u64::MAX]);
        assert_eq!(written(&Runs::range(..2)), [0, 1]);
        assert_eq!(written(&Runs::chunks(3, &[0, 1, 4])), [0, 1, 2, 3, 4, 5, 12, 13, 14]);
        assert_eq!(written(&Runs::chunks(0, &[1])), [0; 0]);
        assert_eq!(written(&Runs::chunks(u64::MAX, &[2])), [0; 0]);
        assert_eq!(Runs::chunks(u64::MAX, &[1]).keys(), 1, "chunks end with the keys");
        assert_eq!(Runs::range(..).keys(), 1 << 64);
        assert_eq!(Runs::from(KeyRange::ALL), Runs::range(..));
    }

    #[test]
    fn runs_that_overlap_or_are_too_long_are_refused() {
        let mut keys = Vec::new();
        let error = Runs::range(3..6).and(5..9).write(&mut keys, 100).unwrap_err();
        let Error::KeysNotAscending { position: 3, key: 5, previous: 5 } = error else {
            panic!("{error}")
        };
        let error = Runs::range(..).write(&mut keys, 100).unwrap_err().to_string();
        assert!(error.contains("18446744073709551616 keys at once"), "{error}");
    }

    #[test]
    fn coded_runs_come_back_as_their_keys() {
        let mut coded = Coded::default();
        for all in [&[][..], &[4], &[0, 1, 2, 9, 11, 12, u64::MAX - 1, u64::MAX]] {
            coded.find(all);
            let Coded { first, counts } = &coded;
            assert_eq!(count(first, counts, KeyRange::ALL), Ok(all.len()));
            assert!(keys(first, counts).eq(all.iter().copied()));
        }
        assert_eq!(coded.counts, [3, 1, 2, 2]);
    }

    #[test]
    fn a_message_has_runs_of_its_range_only() {
        let range = KeyRange::new(10, 20).unwrap();
        for (first, counts) in [
            (&[10][..], &[][..]),
            (&[10], &[0]),
            (&[15], &[6]),
            (&[10, 12], &[3, 1]),
            (&[10, 11], &[1, 0]),
        ] {
            assert!(count(first, counts, range).is_err(), "{first:?} {counts:?}");
        }
        assert_eq!(count(&[10, 12, 19], &[2, 3, 1], range), Ok(6));
        assert!(count(&[u64::MAX], &[2], KeyRange::ALL).is_err());
        assert_eq!(count(&[0, u64::MAX], &[u32::MAX, 1], KeyRange::ALL), Ok(1 << 32));
    }
}
