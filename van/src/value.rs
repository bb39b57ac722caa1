//! The number types of tables, and views of message bytes as slices of them.

use std::fmt::Debug;

use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A number that messages carry: 8-byte aligned sections are read and written as slices of it, in
/// place.
pub trait Value:
    FromBytes
    + IntoBytes
    + Immutable
    + Copy
    + Default
    + PartialEq
    + PartialOrd
    + Debug
    + Send
    + Sync
    + 'static
{
    /// The type's code on the wire.
    const CODE: u8;

    /// Its name in options and messages.
    const NAME: &'static str;

    /// Its size in bytes.
    const BYTES: usize = size_of::<Self>();

    /// Views `bytes` as numbers; `None` if their length is no multiple of the size or they are not
    /// aligned.
    fn view(bytes: &[u8]) -> Option<&[Self]> {
        if bytes.is_empty() {
            return Some(&[]); // whatever its address
        }
        <[Self]>::ref_from_bytes(bytes).ok()
    }

    /// As [`Value::view`], for writing.
    fn view_mut(bytes: &mut [u8]) -> Option<&mut [Self]> {
        if bytes.is_empty() {
            return Some(&mut []);
        }
        <[Self]>::mut_from_bytes(bytes).ok()
    }

    /// The bytes of `values`, as on the wire.
    fn bytes(values: &[Self]) -> &[u8] {
        values.as_bytes()
    }

    /// As [`Value::bytes`], for writing.
    fn bytes_mut(values: &mut [Self]) -> &mut [u8] {
        values.as_mut_bytes()
    }
}

macro_rules! value {
    ($($of:ty = $code:literal),*) => {$(
        impl Value for $of {
            const CODE: u8 = $code;
            const NAME: &'static str = stringify!($of);
        }
    )*};
}
value!(f32 = 1, f64 = 2, i32 = 3, i64 = 4, u8 = 5, f16 = 6, bf16 = 7, u32 = 8, u64 = 9);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::memory::Pool;

    #[test]
    fn views_are_in_place_and_refuse_what_does_not_fit() {
        let mut memory = Pool::new(1 << 20).allocate(24).unwrap();
        f64::view_mut(&mut memory).unwrap().copy_from_slice(&[1.5, -2.0, f64::MAX]);
        assert_eq!(f64::view(&memory).unwrap(), [1.5, -2.0, f64::MAX]);
        assert_eq!(f64::view(&memory).unwrap().as_ptr().cast::<u8>(), memory.as_ptr());
        assert_eq!(i32::view(&memory[4..]).unwrap().len(), 5);
        assert_eq!(i64::view(&memory[4..]), None, "8-byte numbers at 4");
        assert_eq!(f32::view(&memory[..6]), None, "a number and a half");
        assert_eq!(f16::view(&memory[2..8]).unwrap().len(), 3);
        assert_eq!(u8::view(&memory[1..]).unwrap().len(), 23);
        assert_eq!(f32::view(&[]), Some(&[][..]));
    }

    #[test]
    fn bytes_are_those_of_the_wire() {
        assert_eq!(i32::bytes(&[1, -1]), [1, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(f64::bytes(&[1.0]), 1.0f64.to_le_bytes());
        assert_eq!(f16::bytes(&[f16::ONE]), 0x3c00u16.to_le_bytes());
        assert_eq!(bf16::bytes(&[bf16::ONE]), 0x3f80u16.to_le_bytes());
        assert_eq!((f32::BYTES, f64::BYTES, i32::BYTES, i64::BYTES), (4, 8, 4, 8));
        assert_eq!((u8::BYTES, f16::BYTES, bf16::BYTES), (1, 2, 2));
        assert_eq!((u8::NAME, f16::NAME, bf16::NAME), ("u8", "f16", "bf16"));
        let codes = [f32::CODE, f64::CODE, i32::CODE, i64::CODE, u8::CODE, f16::CODE, bf16::CODE];
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!([u32::CODE, u64::CODE], [8, 9]);
    }
}
