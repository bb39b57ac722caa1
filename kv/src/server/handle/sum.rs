//! The sums of [`Add`](super::Add), for every type of values.
//!
//! Path: codec > thread > shard > store (handle, **sum**) > answer.

use caravan_van::{Value, long};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A number that [`Add`](super::Add) can add.
pub trait Sum: Value {
    /// Adds `pushed` to `stored`, which has as many values.
    ///
    /// Integers wrap around, since a worker's numbers must not stop a server. Halves are added as
    /// `f32` and rounded to the nearest, ties to even.
    fn add_up(stored: &mut [Self], pushed: &[Self]);
}

macro_rules! sum {
    ($($of:ty: $plus:expr),*) => {$(
        impl Sum for $of {
            #[inline]
            fn add_up(stored: &mut [Self], pushed: &[Self]) {
                let add = |(a, b): (&mut $of, &$of)| *a = $plus(*a, *b);
                if size_of_val(pushed) < long::LONG_BYTES {
                    return stored.iter_mut().zip(pushed).for_each(add);
                }
                const LINE: usize = long::LINE_BYTES / size_of::<$of>();
                let (lines, rest) = stored.as_chunks_mut::<LINE>();
                let (pushed, pushed_rest) = pushed.as_chunks::<LINE>();
                long::in_four_places(lines, pushed, |line, pushed| {
                    line.iter_mut().zip(pushed).for_each(add);
                });
                rest.iter_mut().zip(pushed_rest).for_each(add);
            }
        }
    )*};
}
sum!(
    f32: |a, b| a + b,
    f64: |a, b| a + b,
    i32: i32::wrapping_add,
    i64: i64::wrapping_add,
    u8: u8::wrapping_add,
    u32: u32::wrapping_add,
    u64: u64::wrapping_add
);

macro_rules! sum_as_f32 {
    ($($of:ty),*) => {$(
        impl Sum for $of {
            fn add_up(stored: &mut [Self], pushed: &[Self]) {
                let mut sums = [0.0; HALVES];
                let mut added = [0.0; HALVES];
                for (stored, pushed) in stored.chunks_mut(HALVES).zip(pushed.chunks(HALVES)) {
                    let sums = &mut sums[..stored.len()];
                    let added = &mut added[..stored.len()];
                    stored.convert_to_f32_slice(sums);
                    pushed.convert_to_f32_slice(added);
                    f32::add_up(sums, added);
                    stored.convert_from_f32_slice(sums);
                }
            }
        }
    )*};
}
sum_as_f32!(f16, bf16);

/// Halves converted at a time.
const HALVES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_around_and_halves_are_rounded_to_even() {
        let mut bytes = [250, 1];
        u8::add_up(&mut bytes, &[10, 2]);
        assert_eq!(bytes, [4, 3]);
        // Neighbouring values differ by two above 2048 in f16, and above 256 in bf16.
        let mut halves = [2048.0, 2050.0, 60_000.0].map(f16::from_f32).repeat(50);
        f16::add_up(&mut halves, &[1.0, 1.0, 60_000.0].map(f16::from_f32).repeat(50));
        let expected = [2048.0, 2052.0, f32::INFINITY].map(f16::from_f32).repeat(50);
        assert_eq!(halves, expected);
        let mut halves = [256.0, 258.0].map(bf16::from_f32);
        bf16::add_up(&mut halves, &[bf16::ONE; 2]);
        assert_eq!(halves.map(bf16::to_f32), [256.0, 260.0]);
    }

    /// Covers values that are prefetched, and the rest behind the last whole cache line.
    #[test]
    fn long_pushes_are_added_as_short_ones() {
        for values in [0, 1, 21].map(|more| long::LONG_BYTES / 4 - 1 + more) {
            let pushed: Vec<i32> = (0..values as i32).map(|n| n * 3).collect();
            let mut sums: Vec<i32> = (0..values as i32).collect();
            i32::add_up(&mut sums, &pushed);
            assert!((0..).zip(&sums).all(|(n, &sum)| sum == 4 * n), "{values}");
        }
    }
}
