//! Cuts sorted keys at the shards of their table. Views only, no copies.
//!
//! Path: worker > **slicer** > filter > message > codec > endpoint > transport.

use std::ops::Range;

use caravan_van::KeyRange;

use crate::error::{Error, Result};
use crate::map::Map;

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

/// The shard of the first of the checked `keys` from position `from` on, and the positions of all
/// keys in that shard; `None` behind the last key.
pub fn next(keys: &[u64], from: usize, map: &Map) -> Option<(usize, Range<usize>)> {
    let shard = map.find(*keys.get(from)?)?;
    let last = map.shards()[shard].range.last();
    let count = keys[from..].partition_point(|&key| key <= last);
    Some((shard, from..from + count))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::map::Placement;

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
        let map = Placement::Even(1).map(KeyRange::ALL, 3).unwrap();
        let keys = [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX];
        assert_eq!(next(&keys, 0, &map), Some((0, 0..2)));
        assert_eq!(next(&keys, 2, &map), Some((1, 2..3)));
        assert_eq!(next(&keys, 3, &map), Some((2, 3..5)));
        assert_eq!(next(&keys, 5, &map), None);
    }
}
