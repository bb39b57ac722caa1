//! The keys that a request names.

use crate::runs::Runs;

/// The keys of a request: each by itself, strictly ascending, or as runs. Slices, arrays and
/// vectors of `u64` and [`Runs`] become it by reference.
#[derive(Debug, Clone, Copy)]
pub enum Keys<'a> {
    /// Each key.
    Each(&'a [u64]),
    /// Ranges, chunks and single keys. Values lie in the order of the keys.
    Runs(&'a Runs),
}

impl<'a> From<&'a [u64]> for Keys<'a> {
    #[inline(always)]
    fn from(keys: &'a [u64]) -> Self {
        Keys::Each(keys)
    }
}

impl<'a, const N: usize> From<&'a [u64; N]> for Keys<'a> {
    #[inline(always)]
    fn from(keys: &'a [u64; N]) -> Self {
        Keys::Each(keys)
    }
}

impl<'a> From<&'a Vec<u64>> for Keys<'a> {
    #[inline(always)]
    fn from(keys: &'a Vec<u64>) -> Self {
        Keys::Each(keys)
    }
}

impl<'a> From<&'a Runs> for Keys<'a> {
    #[inline(always)]
    fn from(runs: &'a Runs) -> Self {
        Keys::Runs(runs)
    }
}
