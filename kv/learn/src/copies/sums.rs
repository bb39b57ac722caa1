//! Sums of workers' pushes, as copies of a shard get them in place of the pushes.
//!
//! Path: worker: push > shard of the first server > **sums** > its copies.

use caravan_kv::server::{Extract, Request};
use caravan_kv::{Refusal, Refused};
use caravan_van::Value;

use crate::data::places;

/// A sum that the server before has passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Summed<'a, V> {
    /// The clock of all parts.
    pub(crate) clock: u64,
    /// Number of parts.
    pub(crate) parts: usize,
    pub(crate) values: &'a [V],
}

impl<'a, V: Value> Summed<'a, V> {
    /// Bytes before the values.
    const HEAD: usize = 16;

    /// Puts a sum of these parts, which have the same clock, into an extract.
    pub(crate) fn write(parts: &[Request<'_>], values: &[V], into: &mut Extract) {
        let clock = parts.first().map_or(0, |part| part.clock);
        into.values.reserve_exact(Self::HEAD + size_of_val(values));
        into.values.extend(clock.to_le_bytes());
        into.values.extend((parts.len() as u64).to_le_bytes());
        into.values.extend(V::bytes(values));
    }

    /// Reads what [`Summed::write`] has written.
    ///
    /// # Errors
    /// If it is cut off.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Refused> {
        let read = || {
            let (clock, rest) = bytes.split_first_chunk()?;
            let (parts, rest) = rest.split_first_chunk()?;
            let parts = usize::try_from(u64::from_le_bytes(*parts)).ok()?;
            Some(Summed { clock: u64::from_le_bytes(*clock), parts, values: V::view(rest)? })
        };
        read().ok_or_else(|| Refusal::Internal.because("the sum of several pushes is cut off"))
    }
}

/// The keys that any of these requests names, sorted.
pub(crate) fn union(parts: &[Request<'_>]) -> Vec<u64> {
    let first = parts.first().map_or(&[][..], |part| part.keys);
    if parts.iter().all(|part| part.keys == first) {
        return first.to_vec();
    }
    let mut keys: Vec<u64> = parts.iter().flat_map(|part| part.keys).copied().collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Adds pairs of integers up by their keys: puts their sums into an extract. `None` if a part is no
/// such push.
pub(crate) fn add_pairs(parts: &[Request<'_>], into: &mut Extract) -> Option<()> {
    let keys = union(parts);
    let mut sums = vec![[0_i64; 2]; keys.len()];
    for part in parts {
        let (pairs, []) = i64::view(part.values)?.as_chunks::<2>() else { return None };
        for (at, [a, b]) in places(&keys, part.keys)?.into_iter().zip(pairs) {
            let sum = &mut sums[at];
            *sum = [sum[0].wrapping_add(*a), sum[1].wrapping_add(*b)];
        }
    }
    Summed::write(parts, sums.as_flattened(), into);
    into.lengths = vec![2; keys.len()];
    into.keys = keys;
    Some(())
}

#[cfg(test)]
pub(crate) mod testing {
    //! Sums of pushes to shards do what the pushes do.

    use caravan_kv::Shard;
    use caravan_kv::server::{Extract, Request};
    use caravan_van::Pool;

    /// Makes one shard get pushes, and an equal one the sum of them that the former adds up;
    /// returns both. The sum also reads as an error when it is cut off anywhere.
    pub(crate) fn add_up<S: Shard>(
        mut first: S,
        new: impl Fn() -> S,
        parts: &[Request<'_>],
    ) -> [S; 2] {
        let pool = Pool::new(1 << 24);
        for (at, request) in parts.iter().enumerate() {
            let part = first.part(request).expect("it is a part");
            assert_eq!((part.of, part.left), (parts.len(), parts.len() - at));
            first.push(request, &pool).expect("it is valid");
        }
        let mut extract = Extract::default();
        assert!(first.add_up(parts, &mut extract), "there is a sum");
        let Extract { keys, lengths, values } = &extract;
        assert!(keys.is_sorted_by(|a, b| a < b));
        for len in 0..values.len() {
            let cut = new().take(keys, lengths, &values[..len], &pool);
            assert!(cut.is_err(), "cut off at {len} of {}", values.len());
        }
        let mut copy = new();
        assert_eq!(copy.take(keys, lengths, values, &pool), Ok(()));
        [first, copy]
    }
}
