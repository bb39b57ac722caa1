//! Loops over long values, which lie outside a core's own cache.
//!
//! One loop from start to end has a single stream of loads, and the hardware prefetcher stops at
//! each page, so it waits for most cache lines. These loops work at four places in turn and
//! prefetch the lines of each.
//!
//! Place: beside the path, for values of 256 KiB or more that are copied or summed into place.

use super::prefetch;

/// Shorter values are near enough for a plain loop. Miri, for which all memory is far, has less to
/// do.
pub const LONG_BYTES: usize = if cfg!(miri) { 4 << 10 } else { 256 << 10 };

/// Distance ahead of each place at which lines are prefetched.
const AHEAD_BYTES: usize = 512;

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Copies `from` to `to`.
///
/// # Panics
/// If their lengths differ.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    if from.len() < LONG_BYTES {
        return to.copy_from_slice(from);
    }
    assert_eq!(to.len(), from.len(), "as many bytes as there is room for");
    let (to, to_rest) = to.as_chunks_mut::<LINE_BYTES>();
    let (from, from_rest) = from.as_chunks();
    in_four_places(to, from, |to, from| *to = *from);
    to_rest.copy_from_slice(from_rest);
}

/// Calls `each(&mut to[i], &from[i])` for every `i`, in no particular order, for long slices of
/// whole cache lines.
///
/// # Panics
/// If their lengths differ.
#[inline]
pub fn in_four_places<T, const N: usize>(
    to: &mut [[T; N]],
    from: &[[T; N]],
    each: impl Fn(&mut [T; N], &[T; N]),
) {
    assert_eq!(to.len(), from.len(), "one for each");
    let quarter = to.len() / 4;
    let (to, to_rest) = to.split_at_mut(4 * quarter);
    let (from, from_rest) = from.split_at(4 * quarter);
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| each(to, from));
    let (to, to_behind) = to.split_at_mut(2 * quarter);
    let (from, from_behind) = from.split_at(2 * quarter);
    let to = two(to.split_at_mut(quarter)).zip(two(to_behind.split_at_mut(quarter)));
    let from = two(from.split_at(quarter)).zip(two(from_behind.split_at(quarter)));
    for (((to0, to1), (to2, to3)), ((from0, from1), (from2, from3))) in to.zip(from) {
        for (to, from) in [(to0, from0), (to1, from1), (to2, from2), (to3, from3)] {
            fetch_ahead(to.as_ptr());
            fetch_ahead(from.as_ptr());
            each(to, from);
        }
    }
}

/// Prefetches the line that the loop reaches shortly after `place`.
#[inline(always)]
pub(crate) fn fetch_ahead<T>(place: *const T) {
    prefetch(place.wrapping_byte_add(AHEAD_BYTES));
}

/// Zips the two halves of a split.
fn two<I: IntoIterator>((a, b): (I, I)) -> impl Iterator<Item = (I::Item, I::Item)> {
    a.into_iter().zip(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_goes_where_it_belongs_whatever_the_length() {
        let bytes: Vec<u8> = (0..251).collect(); // a prime: no two lines are alike for long
        for len in
            [0, 1, 100, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 64 * 3 + 5, 3 * LONG_BYTES - 1]
        {
            let from = bytes.repeat(len / bytes.len() + 1);
            let from = &from[..len];
            let mut to = vec![0; len];
            copy(&mut to, from);
            assert!(to == from, "{len} bytes");
        }
    }

    #[test]
    fn each_pair_meets_once() {
        for lines in 0..11 {
            let from: Vec<[u32; 2]> = (0..lines).map(|at| [at, 100 * at]).collect();
            let mut to = vec![[1, 2]; from.len()];
            in_four_places(&mut to, &from, |to, from| *to = [to[0] + from[0], to[1] + from[1]]);
            assert_eq!(to, (0..lines).map(|at| [1 + at, 2 + 100 * at]).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "as many bytes")]
    fn lengths_that_differ_are_refused() {
        copy(&mut vec![0; LONG_BYTES + 64], &vec![0; LONG_BYTES]);
    }
}
