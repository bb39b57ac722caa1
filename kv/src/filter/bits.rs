//! The mask: a bit for each row or value tells whether it is present.
//!
//! The published system marks what the KKT filter has removed by NaN values. Those do not survive
//! rounding, and a receiver that adds to them keeps them forever. Bits are separate from values and
//! cost an eighth of a byte.

use crate::refusal::{Refusal, Refused};

/// Bytes of a bitmap.
pub(super) fn bytes(count: usize) -> usize {
    count.div_ceil(8)
}

/// Writes `bits` as a bitmap, from the lowest bit of the first byte on; returns how many are set.
///
/// # Panics
/// If `into` is too short.
pub(super) fn write(bits: impl Iterator<Item = bool>, into: &mut [u8]) -> usize {
    let mut set = 0;
    let mut byte = 0_u8;
    let mut count = 0;
    for bit in bits {
        byte |= u8::from(bit) << (count % 8);
        set += usize::from(bit);
        count += 1;
        if count % 8 == 0 {
            into[count / 8 - 1] = byte;
            byte = 0;
        }
    }
    if count % 8 > 0 {
        into[count / 8] = byte;
    }
    set
}

/// A received bitmap.
#[derive(Clone, Copy)]
pub(super) struct Bitmap<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Bitmap<'a> {
    /// The first `count` bits of `bytes`.
    ///
    /// # Errors
    /// If a bit past the last is set.
    pub(super) fn read(bytes: &'a [u8], count: usize) -> Result<Self, Refused> {
        assert_eq!(bytes.len(), self::bytes(count), "the caller cuts it out");
        match (count % 8, bytes.last()) {
            (last @ 1.., Some(byte)) if byte >> last != 0 => Err(Refusal::Shape
                .because(format!("its bitmap of {count} bits has bits set past its end"))),
            _ => Ok(Bitmap { bytes, count }),
        }
    }

    /// Number of set bits.
    pub(super) fn set(self) -> usize {
        self.bytes.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether bit `at` is set.
    pub(super) fn is_set(self, at: usize) -> bool {
        self.bytes[at / 8] >> (at % 8) & 1 == 1
    }

    /// All bits, in order.
    pub(super) fn iter(self) -> impl Iterator<Item = bool> + 'a {
        let bits = self.bytes.iter().flat_map(|byte| (0..8).map(move |at| byte >> at & 1 == 1));
        bits.take(self.count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn bits_come_back_whatever_their_number() {
        for count in 0..40 {
            let bits: Vec<bool> = (0..count).map(|i| i * i % 3 == 1).collect();
            let mut place = vec![0xff; bytes(count)];
            let set = write(bits.iter().copied(), &mut place);
            let bitmap = Bitmap::read(&place, count).unwrap();
            assert_eq!(bitmap.iter().collect::<Vec<_>>(), bits);
            assert_eq!((bitmap.set(), set), (set, bits.iter().filter(|bit| **bit).count()));
        }
    }

    #[test]
    fn bits_behind_the_last_are_refused() {
        assert!(Bitmap::read(&[0b1000], 3).is_err());
        assert!(Bitmap::read(&[0b0111], 3).is_ok());
        assert!(Bitmap::read(&[0xff], 8).is_ok());
    }
}
