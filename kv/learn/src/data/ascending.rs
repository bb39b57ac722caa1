//! Ascending numbers in few bits, with random access.
//!
//! Keys of columns and the positions where they begin take 8 bytes each uncompressed: more than the
//! entries of a rare feature, and most features are rare. Here 64 numbers make a frame, which
//! stores the first and the others' differences from it, all in as many bits as the last difference
//! needs (frame of reference: Goldstein, Ramakrishnan and Shaft, ICDE 1998). That is one byte or
//! two for close numbers, and never more than 8 and a quarter.

use std::ops::Range;

/// Numbers of a frame: as many as bits of a word, so that a frame has as many words as each
/// difference has bits.
const FRAME: usize = u64::BITS as usize;

/// Numbers in ascending order, possibly with repetitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ascending {
    len: usize,
    /// Also one after the last, for its end; empty without numbers.
    frames: Vec<Frame>,
    /// Differences from the first number of each frame, and two more words, so that two words can
    /// be read anywhere.
    words: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Frame {
    first: u64,
    /// Where its words begin.
    begin: usize,
}

impl Ascending {
    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number `at`, counted from 0.
    ///
    /// # Panics
    /// If there are too few.
    pub fn get(&self, at: usize) -> u64 {
        assert!(at < self.len, "there is no number {at} among {}", self.len);
        let [frame, next] = [self.frames[at / FRAME], self.frames[at / FRAME + 1]];
        let width = next.begin - frame.begin;
        let bit = at % FRAME * width;
        let word = frame.begin + bit / FRAME;
        let both = u128::from(self.words[word]) | u128::from(self.words[word + 1]) << FRAME;
        let mask = u64::MAX.checked_shr((FRAME - width) as u32).unwrap_or(0);
        frame.first + ((both >> (bit % FRAME)) as u64 & mask)
    }

    /// The numbers `range`.
    ///
    /// # Panics
    /// If there are too few.
    pub fn range(&self, range: Range<usize>) -> impl DoubleEndedIterator<Item = u64> + '_ {
        range.map(|at| self.get(at))
    }

    /// All numbers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.range(0..self.len)
    }

    /// How many numbers are below `number`.
    pub fn below(&self, number: u64) -> usize {
        let frames = &self.frames[..self.len.div_ceil(FRAME)];
        let Some(frame) = frames.partition_point(|frame| frame.first < number).checked_sub(1)
        else {
            return 0;
        };
        let mut begin = frame * FRAME + 1;
        let mut end = self.len.min((frame + 1) * FRAME);
        while begin < end {
            let middle = begin.midpoint(end);
            if self.get(middle) < number {
                begin = middle + 1;
            } else {
                end = middle;
            }
        }
        begin
    }

    /// The index of `number`, if it is here.
    pub fn find(&self, number: u64) -> Option<usize> {
        Some(self.below(number)).filter(|&at| at < self.len && self.get(at) == number)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.frames[..]) + size_of_val(&self.words[..])
    }

    /// Appends up to [`FRAME`] numbers; all earlier frames must be full.
    fn push_frame(&mut self, numbers: &[u64]) {
        let first = numbers[0];
        let last = numbers[numbers.len() - 1];
        assert!(numbers.is_sorted(), "numbers ascend");
        let width = (u64::BITS - (last - first).leading_zeros()) as usize;
        let begin = self.words.len();
        self.words.resize(begin + width, 0);
        for (at, number) in numbers.iter().enumerate().filter(|_| width > 0) {
            let word = begin + at * width / FRAME;
            let shift = at * width % FRAME;
            let both = u128::from(number - first) << shift;
            self.words[word] |= both as u64;
            if shift + width > FRAME {
                self.words[word + 1] |= (both >> FRAME) as u64;
            }
        }
        self.frames.push(Frame { first, begin });
        self.len += numbers.len();
    }
}

impl FromIterator<u64> for Ascending {
    /// # Panics
    /// If a number is below the one before it.
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut list = Self::default();
        let mut frame = Vec::with_capacity(FRAME);
        let mut numbers = numbers.into_iter().fuse();
        let mut last = 0;
        loop {
            frame.clear();
            frame.extend(numbers.by_ref().take(FRAME));
            let Some(&end) = frame.last() else { break };
            assert!(last <= frame[0], "numbers ascend");
            last = end;
            list.push_frame(&frame);
        }
        if list.len > 0 {
            list.frames.push(Frame { first: last, begin: list.words.len() });
            list.words.extend([0; 2]);
        }
        list.frames.shrink_to_fit();
        list.words.shrink_to_fit();
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// From all equal to as far apart as possible, with and without a full last frame.
        #[test]
        fn is_as_good_as_a_plain_list(
            mut plain in prop::collection::vec(any::<u64>(), 0..300),
            shift in 0_u32..65,
            others in prop::collection::vec(any::<u64>(), 10),
        ) {
            let small = |number: u64| number.checked_shr(shift).unwrap_or(0);
            plain.iter_mut().for_each(|number| *number = small(*number));
            plain.sort_unstable();
            let list: Ascending = plain.iter().copied().collect();
            prop_assert_eq!((list.len(), list.is_empty()), (plain.len(), plain.is_empty()));
            prop_assert!(list.iter().eq(plain.iter().copied()));
            let asked = others.into_iter().map(small).chain(plain.iter().copied()).chain([u64::MAX]);
            for number in asked.flat_map(|number| [number, number.saturating_add(1)]) {
                prop_assert_eq!(list.below(number), plain.partition_point(|&one| one < number));
                let found = list.find(number).map(|at| plain[at]);
                prop_assert_eq!(found, plain.contains(&number).then_some(number));
            }
        }
    }

    #[test]
    fn takes_few_bits_where_numbers_are_near_and_hardly_more_than_plain_where_they_are_not() {
        let bytes = |list: Ascending| list.bytes() as f64 / list.len() as f64;
        assert!(bytes((0..64_000).map(|number| (7 << 40) + 3 * number).collect()) < 1.26);
        assert!(bytes((0..64_000).map(|number| number << 48).collect()) < 8.3);
        assert_eq!(Ascending::default().bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "numbers ascend")]
    fn a_fall_between_frames_is_refused() {
        let _ = (1..=64).chain([63]).collect::<Ascending>();
    }
}
