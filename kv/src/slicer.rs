//! Cuts sorted keys at the servers' key ranges. Views only, no copies.
//!
//! Path: worker > **slicer** > filter > message > codec > endpoint > transport.

use std::ops::Range;

use caravan_van::KeyRange;

use crate::error::{Error, Result};

/// Checks in one pass that `keys` are strictly ascending and within `range`.
///
/// # Errors
/// [`Error::KeysNotAscending`] and [`Error::KeyOutsideTable`] name the first wrong position.
pub fn check(keys: &[u64], range: KeyRange, table: &str) -> Result<()> {
    if let Some(at) = first_not_ascending(keys) {
        let position = at + 1;
        let key = keys[position];
        return Err(Error::KeysNotAscending { position, key, previous: keys[at] });
    }
    let outside = match keys {
        [first, ..] if !range.contains(*first) => 0,
        [.., last] if !range.contains(*last) => keys.partition_point(|&key| range.contains(key)),
        _ => return Ok(()),
    };
    Err(Error::KeyOutsideTable {
        position: outside,
        key: keys[outside],
        table: table.to_owned(),
        begin: range.begin(),
        last: range.last(),
    })
}

/// Whether `keys` are strictly ascending.
#[inline]
pub(crate) fn are_ascending(keys: &[u64]) -> bool {
    keys.len() == 1 || first_not_ascending(keys).is_none()
}

/// Position of the first key that is not below the next one.
fn first_not_ascending(keys: &[u64]) -> Option<usize> {
    keys.windows(2).position(|pair| pair[0] >= pair[1])
}

/// Cuts checked `keys` at `ranges`, which tile the table in order. Yields each range's index and
/// the positions of its keys; omits ranges without keys.
pub fn cut<'a>(
    keys: &'a [u64],
    ranges: &'a [KeyRange],
) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
    let mut start = 0;
    ranges.iter().enumerate().filter_map(move |(index, range)| {
        let end = match range.end() {
            0 => keys.len(),
            bound => start + keys[start..].partition_point(|&key| key < bound),
        };
        let slice = start..end;
        start = end;
        (!slice.is_empty()).then_some((index, slice))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn wrong_keys_are_named_by_position() {
        let range = KeyRange::new(10, 20).unwrap();
        assert!(check(&[10, 11, 19], range, "t").is_ok());
        assert!(check(&[], range, "t").is_ok());
        let error = check(&[10, 12, 12], range, "t").unwrap_err();
        assert!(
            matches!(error, Error::KeysNotAscending { position: 2, key: 12, previous: 12 }),
            "{error}"
        );
        let error = check(&[10, 12, 11], range, "t").unwrap_err();
        assert!(
            matches!(error, Error::KeysNotAscending { position: 2, key: 11, previous: 12 }),
            "{error}"
        );
        let error = check(&[9, 12], range, "t").unwrap_err();
        assert!(matches!(error, Error::KeyOutsideTable { position: 0, key: 9, .. }), "{error}");
        let error = check(&[12, 20, 30], range, "t").unwrap_err();
        assert!(matches!(error, Error::KeyOutsideTable { position: 1, key: 20, .. }), "{error}");
    }

    #[test]
    fn slices_tile_the_keys_up_to_the_last_one() {
        let ranges: Vec<_> = KeyRange::ALL.cut(3).collect();
        let keys = [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX];
        let slices: Vec<_> = cut(&keys, &ranges).collect();
        assert_eq!(slices, [(0, 0..2), (1, 2..3), (2, 3..5)]);
        assert_eq!(cut(&[], &ranges).count(), 0);
        assert_eq!(cut(&[u64::MAX], &ranges).collect::<Vec<_>>(), [(2, 0..1)]);
    }
}
