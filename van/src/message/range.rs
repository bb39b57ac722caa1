//! Ranges of keys, which cut a table among servers.

use crate::wire::Header;

/// Keys from `begin` up to, not including, `end`; never empty.
///
/// An `end` of 0 stands for 2^64, so that ranges can include the last key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    begin: u64,
    end: u64,
}

impl KeyRange {
    /// All keys.
    pub const ALL: KeyRange = KeyRange { begin: 0, end: 0 };

    /// Creates the range `[begin, end)`, where an `end` of 0 stands for 2^64; `None` if it is
    /// empty.
    #[inline]
    pub fn new(begin: u64, end: u64) -> Option<KeyRange> {
        (begin < end || end == 0).then_some(KeyRange { begin, end })
    }

    /// First key.
    #[inline]
    pub fn begin(self) -> u64 {
        self.begin
    }

    /// One past the last key; 0 stands for 2^64.
    #[inline]
    pub fn end(self) -> u64 {
        self.end
    }

    /// Last key.
    #[inline]
    pub fn last(self) -> u64 {
        self.end.wrapping_sub(1)
    }

    /// Number of keys, up to 2^64.
    pub fn count(self) -> u128 {
        u128::from(self.last() - self.begin) + 1
    }

    /// Whether the range contains `key`.
    #[inline]
    pub fn contains(self, key: u64) -> bool {
        self.begin <= key && key <= self.last()
    }

    /// Returns the keys that are in both ranges, if any.
    pub fn intersect(self, other: KeyRange) -> Option<KeyRange> {
        let begin = self.begin.max(other.begin);
        let last = self.last().min(other.last());
        (begin <= last).then_some(KeyRange { begin, end: last.wrapping_add(1) })
    }

    /// Cuts the range into `parts` of even size, in order; into fewer if there are fewer keys.
    pub fn cut(self, parts: usize) -> impl Iterator<Item = KeyRange> {
        let parts = (parts.max(1) as u128).min(self.count());
        let bound = move |i: u128| self.begin.wrapping_add((self.count() * i / parts) as u64);
        (0..parts).map(move |i| KeyRange {
            begin: bound(i),
            end: if i + 1 == parts { self.end } else { bound(i + 1) },
        })
    }
}

impl Header {
    /// The key range, in which all keys lie.
    #[inline]
    pub(crate) fn range(&self) -> KeyRange {
        KeyRange { begin: self.range_begin.get(), end: self.range_end.get() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_range_reaches_the_last_key() {
        assert!(KeyRange::ALL.contains(u64::MAX) && KeyRange::ALL.contains(0));
        assert_eq!(KeyRange::ALL.count(), 1 << 64);
        assert_eq!(KeyRange::new(5, 5), None);
        assert_eq!(KeyRange::new(u64::MAX, 0).unwrap().count(), 1);
    }

    #[test]
    fn parts_tile_the_range() {
        for range in
            [KeyRange::ALL, KeyRange::new(3, 10).unwrap(), KeyRange::new(u64::MAX - 4, 0).unwrap()]
        {
            for parts in [1, 2, 3, 7, 100] {
                let cut: Vec<_> = range.cut(parts).collect();
                assert_eq!(
                    (cut[0].begin(), cut.last().unwrap().end()),
                    (range.begin(), range.end())
                );
                assert!(cut.windows(2).all(|pair| pair[0].end() == pair[1].begin()));
                assert_eq!(cut.len() as u128, (parts as u128).min(range.count()));
            }
        }
    }

    #[test]
    fn intersections_are_exact() {
        let a = KeyRange::new(3, 10).unwrap();
        let b = KeyRange::new(9, 0).unwrap();
        assert_eq!(a.intersect(b), KeyRange::new(9, 10));
        assert_eq!(a.intersect(KeyRange::new(10, 0).unwrap()), None);
        assert_eq!(KeyRange::ALL.intersect(b), Some(b));
    }
}
