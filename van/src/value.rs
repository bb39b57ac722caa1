//! The plain numbers that tables hold, and their views of message bytes. Not their arithmetic.

use std::fmt::Debug;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A number that messages carry: 8-byte aligned sections are read and written as slices of it, in place.
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
    /// What stands for the type on the wire.
    const CODE: u8;

    /// What it is called in options and messages.
    const NAME: &'static str;

    /// Its size in bytes.
    const BYTES: usize = size_of::<Self>();

    /// `bytes` as numbers; `None` when their count is not whole or they are not aligned for it.
    fn view(bytes: &[u8]) -> Option<&[Self]> {
        if bytes.is_empty() {
            return Some(&[]); // wherever it stands
        }
        <[Self]>::ref_from_bytes(bytes).ok()
    }

    /// As [`Value::view`], to write.
    fn view_mut(bytes: &mut [u8]) -> Option<&mut [Self]> {
        if bytes.is_empty() {
            return Some(&mut []);
        }
        <[Self]>::mut_from_bytes(bytes).ok()
    }

    /// The bytes of `values`, as they travel.
    fn bytes(values: &[Self]) -> &[u8] {
        values.as_bytes()
    }
}

impl Value for f32 {
    const CODE: u8 = 1;
    const NAME: &'static str = "f32";
}

impl Value for f64 {
    const CODE: u8 = 2;
    const NAME: &'static str = "f64";
}

impl Value for i32 {
    const CODE: u8 = 3;
    const NAME: &'static str = "i32";
}

impl Value for i64 {
    const CODE: u8 = 4;
    const NAME: &'static str = "i64";
}

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
        assert_eq!(f32::view(&[]), Some(&[][..]));
    }

    #[test]
    fn bytes_are_those_of_the_wire() {
        assert_eq!(i32::bytes(&[1, -1]), [1, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(f64::bytes(&[1.0]), 1.0f64.to_le_bytes());
        assert_eq!((f32::BYTES, f64::BYTES, i32::BYTES, i64::BYTES), (4, 8, 4, 8));
        let codes = [f32::CODE, f64::CODE, i32::CODE, i64::CODE];
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
    }
}
