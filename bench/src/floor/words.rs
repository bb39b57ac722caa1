//! Numbers in the private data of a connection, which carry all that the two sides agree on.

use anyhow::{Context, Result, ensure};

/// Writes 64-bit words after their kind.
pub(crate) fn pack<const N: usize>(kind: u64, words: [u64; N]) -> Vec<u8> {
    std::iter::once(kind).chain(words).flat_map(u64::to_le_bytes).collect()
}

/// Reads them. The data may be longer: a device fills them up with zeros.
pub(crate) fn unpack<const N: usize>(kind: u64, data: &[u8]) -> Result<[u64; N]> {
    let mut words = data
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("a chunk of eight bytes")));
    let found = words.next().context("the other side said nothing")?;
    ensure!(found == kind, "the other side speaks of something else ({found:#x}, not {kind:#x})");
    let mut unpacked = [0; N];
    for word in &mut unpacked {
        *word = words.next().context("the other side said too little")?;
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn words_come_back_and_may_be_followed_by_zeros() {
        let mut data = pack(7, [1, u64::MAX, 3]);
        assert_eq!(unpack::<3>(7, &data).unwrap(), [1, u64::MAX, 3]);
        data.extend([0; 100]);
        assert_eq!(unpack::<3>(7, &data).unwrap(), [1, u64::MAX, 3]);
    }

    #[test]
    fn another_kind_and_too_few_are_refused() {
        let data = pack(7, [1, 2]);
        assert!(unpack::<2>(8, &data).is_err());
        assert!(unpack::<3>(7, &data).is_err());
        for cut in 0..data.len() {
            assert!(unpack::<2>(7, &data[..cut]).is_err(), "{cut}");
        }
    }
}
