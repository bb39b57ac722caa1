//! What update rules compute with: the types of values, and the wider ones of hidden values.
//!
//! Path: codec > thread > shard > store (handle, **number**) > answer.

use std::ops::{Add, Div, Mul, Neg, Sub};
use std::str::FromStr;

use caravan_van::Value;
use half::{bf16, f16};

use super::Sum;

/// A number that tables hold.
pub trait Number: Sum + FromStr {
    /// The nearest number to `value`; integers are cut off, and end at their limits.
    fn from_f64(value: f64) -> Self;

    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;

    /// `self - other`. Integers wrap around, here and below.
    fn minus(self, other: Self) -> Self;

    /// `self * other`.
    fn times(self, other: Self) -> Self;

    /// `self / other`. Integers are rounded towards 0, and stay as they are if `other` is 0.
    fn over(self, other: Self) -> Self;
}

macro_rules! floating_number {
    ($($of:ty: $from_f64:expr),*) => {$(
        impl Number for $of {
            #[inline]
            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }

            #[inline]
            fn is_finite(self) -> bool {
                <$of>::is_finite(self)
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                self - other
            }

            #[inline]
            fn times(self, other: Self) -> Self {
                self * other
            }

            #[inline]
            fn over(self, other: Self) -> Self {
                self / other
            }
        }
    )*};
}
floating_number!(f32: |value| value as f32, f64: |value| value, f16: f16::from_f64, bf16: bf16::from_f64);

macro_rules! integer {
    ($($of:ty),*) => {$(
        impl Number for $of {
            #[inline]
            fn from_f64(value: f64) -> Self {
                value as $of
            }

            #[inline]
            fn is_finite(self) -> bool {
                true
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline]
            fn over(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_div(other) }
            }
        }
    )*};
}
integer!(i32, i64, u8, u32, u64);

/// A floating-point number that tables hold. Optimisers compute with its `Real`, which is `f32` for
/// halves, so that small steps and squares do not vanish.
pub(super) trait Float: Number {
    /// The type of computations and of hidden values.
    type Real: Real;

    /// The same number.
    fn widen(self) -> Self::Real;

    /// The nearest number to `real`, ties to even.
    fn round(real: Self::Real) -> Self;
}

macro_rules! float {
    ($($of:ty = $real:ty: $widen:expr, $round:expr;)*) => {$(
        impl Float for $of {
            type Real = $real;

            #[inline]
            fn widen(self) -> $real {
                $widen(self)
            }

            #[inline]
            fn round(real: $real) -> Self {
                $round(real)
            }
        }
    )*};
}
float! {
    f32 = f32: |value| value, |real| real;
    f64 = f64: |value| value, |real| real;
    f16 = f32: f16::to_f32, f16::from_f32;
    bf16 = f32: bf16::to_f32, bf16::from_f32;
}

/// A number that optimisers compute with.
pub(super) trait Real:
    Value
    + Number
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// 0.
    const ZERO: Self;

    /// 1.
    const ONE: Self;

    /// The square root.
    fn sqrt(self) -> Self;

    /// The number without its sign.
    fn abs(self) -> Self;

    /// The same number.
    fn to_f64(self) -> f64;
}

macro_rules! real {
    ($($of:ident),*) => {$(
        impl Real for $of {
            const ZERO: $of = 0.0;
            const ONE: $of = 1.0;

            #[inline]
            fn sqrt(self) -> Self {
                $of::sqrt(self)
            }

            #[inline]
            fn abs(self) -> Self {
                $of::abs(self)
            }

            #[inline]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    )*};
}
real!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_around_and_bear_division_by_zero() {
        assert_eq!((3_u8.minus(5), 100_u8.times(3), 7_u8.over(0)), (254, 44, 7));
        assert_eq!((i32::MIN.over(-1), (-7_i32).over(2)), (i32::MIN, -3));
        assert_eq!((i64::MAX.times(2), i64::MIN.minus(1)), (-2, i64::MAX));
        assert_eq!(u8::from_f64(1e9), 255);
    }

    #[test]
    fn halves_are_computed_as_f32_and_rounded_to_even() {
        let [a, b] = [2049.0, 2051.0].map(|real| f16::round(real).widen());
        assert_eq!([a, b], [2048.0, 2052.0]);
        assert_eq!(f16::from_f64(1.0).over(f16::from_f64(3.0)), f16::from_f32(1.0 / 3.0));
        assert_eq!(bf16::from_f64(3.0).times(bf16::from_f64(5.0)).to_f32(), 15.0);
    }
}
