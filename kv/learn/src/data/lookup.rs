//! Looks sorted keys up among sorted keys.

/// As `binary_search`, in few steps if the key is near the front: sorted keys are looked up one
/// after the other.
pub(crate) fn gallop(keys: &[u64], key: &u64) -> Result<usize, usize> {
    let mut end = 1;
    while end < keys.len() && keys[end - 1] < *key {
        end *= 2;
    }
    let begin = end / 2;
    let found = keys[begin..end.min(keys.len())].binary_search(key);
    found.map(|at| begin + at).map_err(|at| begin + at)
}

/// The places of sorted `keys` among the sorted keys `all`; `None` if one is not there.
pub(crate) fn places(all: &[u64], keys: &[u64]) -> Option<Vec<usize>> {
    let mut from = 0;
    let mut places = Vec::with_capacity(keys.len().min(all.len()));
    for key in keys {
        from += gallop(&all[from..], key).ok()?;
        places.push(from);
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn galloping_finds_what_searching_finds(
            keys in prop::collection::btree_set(0_u64..200, 0..60),
            key in 0_u64..200,
        ) {
            let keys: Vec<u64> = keys.into_iter().collect();
            prop_assert_eq!(gallop(&keys, &key), keys.binary_search(&key));
        }
    }
}
