//! Delta coding of keys: ascending keys lie close together, so their gaps are short. This is not a
//! general integer code.
//!
//! The code is a count, the distance of the first key from the begin of the range, and for each
//! further key the distance from its predecessor, less one. All are LEB128 varints. Decoded keys
//! therefore always ascend.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::FromBytes;

use super::DecodeError;
use crate::error::Result;
use crate::memory::{Buffer, Pool};
use crate::message::KeyRange;

/// Number of bytes that [`write`] writes.
pub(super) fn len(keys: &[u64], begin: u64) -> usize {
    let gaps: usize = gaps(keys, begin).map(varint_len).sum();
    varint_len(keys.len() as u64) + gaps
}

/// Writes `keys`, which ascend from `begin`, into `out`, which has [`len`] bytes.
pub(super) fn write(keys: &[u64], begin: u64, out: &mut [u8]) {
    let mut rest = out;
    for mut number in std::iter::once(keys.len() as u64).chain(gaps(keys, begin)) {
        let (varint, tail) = rest.split_at_mut(varint_len(number));
        let (last, head) = varint.split_last_mut().expect("a varint has at least one byte");
        for byte in head {
            *byte = number as u8 | 0x80;
            number >>= 7;
        }
        *last = number as u8;
        rest = tail;
    }
}

/// Decodes keys of `range`. It allocates only once the input has at least one byte a key.
///
/// # Errors
/// A [`DecodeError`] for any other input; out of memory if `pool` has no room for 8 bytes a byte.
pub(super) fn read(bytes: &[u8], range: KeyRange, pool: &Pool) -> Result<Buffer> {
    let (count, mut at) = varint(bytes, 0)?;
    let have = bytes.len() - at;
    if count > have as u64 {
        return Err(DecodeError::KeyCount { count, have }.into());
    }
    let mut buffer = pool.allocate(count as usize * size_of::<u64>())?;
    let keys =
        <[u64]>::mut_from_bytes(&mut buffer).expect("slots are aligned, the length is whole");
    let mut next = Some(range.begin());
    for (index, key) in keys.iter_mut().enumerate() {
        let (gap, end) = varint(bytes, at)?;
        at = end;
        let value = next.and_then(|next| next.checked_add(gap));
        *key = value.ok_or(DecodeError::KeyOverflow { index: index as u64, count })?;
        next = key.checked_add(1);
    }
    if at != bytes.len() {
        return Err(DecodeError::KeysTrailing { bytes: bytes.len() - at, count }.into());
    }
    Ok(buffer)
}

/// Gap before each key. Wraps for keys that do not ascend, which the decoder then refuses.
fn gaps(keys: &[u64], begin: u64) -> impl Iterator<Item = u64> {
    keys.iter().scan(begin, |next, &key| {
        let gap = key.wrapping_sub(*next);
        *next = key.wrapping_add(1);
        Some(gap)
    })
}

fn varint_len(number: u64) -> usize {
    let bits = u64::BITS - (number | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Returns the varint at `start`, and its end.
fn varint(bytes: &[u8], start: usize) -> Result<(u64, usize), DecodeError> {
    let mut number = 0;
    for (i, &byte) in bytes[start..].iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && bits > 1 {
            break;
        }
        number |= bits << (7 * i);
        if byte < 0x80 {
            return Ok((number, start + i + 1));
        }
    }
    Err(DecodeError::Varint { at: start })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::error::Error;

    fn coded(keys: &[u64], begin: u64) -> Vec<u8> {
        let mut bytes = vec![0xaa; len(keys, begin)];
        write(keys, begin, &mut bytes);
        bytes
    }

    fn decoded(bytes: &[u8], range: KeyRange) -> Result<Vec<u64>> {
        let keys = read(bytes, range, &Pool::new(1 << 20))?;
        Ok(<[u64]>::ref_from_bytes(&keys).unwrap().to_vec())
    }

    fn refusal(bytes: &[u8]) -> DecodeError {
        match decoded(bytes, KeyRange::ALL).unwrap_err() {
            Error::Decode(error) => error,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_bytes_are_as_documented() {
        assert_eq!(coded(&[10, 11, 13, 141, 400], 10), [5, 0, 0, 1, 127, 0x82, 0x02]);
        assert_eq!(coded(&[], 0), [0]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "a pool for each list takes Miri minutes")]
    fn extreme_keys_survive() {
        for keys in [&[0, u64::MAX][..], &[u64::MAX], &[0], &[u64::MAX - 1, u64::MAX], &[]] {
            assert_eq!(decoded(&coded(keys, 0), KeyRange::ALL).unwrap(), keys);
        }
        let range = KeyRange::new(1 << 40, 0).unwrap();
        assert_eq!(decoded(&coded(&[1 << 40], 1 << 40), range).unwrap(), [1 << 40]);
        for shift in 0..64 {
            let keys = [(1 << shift) - 1, 1 << shift];
            assert_eq!(decoded(&coded(&keys, 0), KeyRange::ALL).unwrap(), keys);
        }
    }

    #[test]
    fn malformed_bytes_are_refused() {
        assert_eq!(refusal(&[]), DecodeError::Varint { at: 0 });
        assert_eq!(refusal(&[1, 0x80]), DecodeError::Varint { at: 1 });
        let mut eleven = vec![1];
        eleven.extend([0x80; 10]);
        eleven.push(0);
        assert_eq!(refusal(&eleven), DecodeError::Varint { at: 1 });
        let mut too_wide = vec![1];
        too_wide.extend([0xff; 9]);
        too_wide.push(2);
        assert_eq!(refusal(&too_wide), DecodeError::Varint { at: 1 });
        assert_eq!(refusal(&[3, 0, 0]), DecodeError::KeyCount { count: 3, have: 2 });
        assert_eq!(refusal(&[1, 0, 0]), DecodeError::KeysTrailing { bytes: 1, count: 1 });
        let mut past_the_end = coded(&[u64::MAX], 0);
        past_the_end[0] = 2;
        past_the_end.push(0);
        assert_eq!(refusal(&past_the_end), DecodeError::KeyOverflow { index: 1, count: 2 });
    }
}
