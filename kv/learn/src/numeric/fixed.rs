//! Sums of numbers as integers: the same whatever their order and however they are divided.
//!
//! Floating-point addition rounds, so a sum over rows depends on which worker has which rows. Here
//! every term is rounded to a multiple of one power of 2, and the multiples are added as integers,
//! which is exact.

use serde::{Deserialize, Serialize};

/// Adding it leaves a number, rounded to an integer, in the low bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// Bits of a term's integer, without its sign: what [`ROUND`] allows.
const TERM_BITS: i32 = 51;

/// Bits of a sum's integer.
const SUM_BITS: i32 = 62;

/// The power of 2 that terms are rounded to multiples of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scale {
    /// Multiples of 1.
    pub(crate) up: f64,
    /// 1 / up.
    pub(crate) down: f64,
}

impl Scale {
    /// For sums of up to `terms` terms, none of which is above `largest`.
    pub(crate) fn new(terms: u64, largest: f64) -> Self {
        Self::with_headroom(terms, largest, 0)
    }

    /// As [`Scale::new`], with terms of up to 2^`bits` times `largest`, whose sum is no larger all
    /// the same: integers wrap around.
    pub(crate) fn with_headroom(terms: u64, largest: f64, bits: i32) -> Self {
        let bits_of_terms = i32::try_from(terms.max(1).ilog2()).unwrap_or(0) + 1;
        let largest = if largest > 0.0 && largest.is_finite() { largest } else { 1.0 };
        let room = (TERM_BITS - bits).min(SUM_BITS - bits_of_terms);
        let up = 2_f64.powi((room - largest.log2().ceil() as i32).clamp(-1000, 1000));
        Scale { up, down: 1.0 / up }
    }

    /// A term's integer.
    #[inline(always)]
    pub(crate) fn to(self, term: f64) -> i64 {
        integer(term * self.up)
    }

    /// A sum's number.
    #[inline(always)]
    pub(crate) fn from(self, sum: i64) -> f64 {
        sum as f64 * self.down
    }
}

/// The nearest integer to a number of at most 2^51.
#[inline(always)]
pub(crate) fn integer(number: f64) -> i64 {
    ((number + ROUND).to_bits() as i64).wrapping_sub(ROUND.to_bits() as i64)
}

/// Bits of a [`Whole`] behind the point.
const FRACTION_BITS: i32 = 62;

/// A sum of numbers of up to 2^51, in multiples of 2^-62, that notices when it holds no longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Whole {
    /// What is before the point.
    integer: i64,
    /// What is behind it, of all terms: at least 0.
    fraction: u64,
    /// Whether a term or the sum was beyond what integers hold, or no number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    beyond: bool,
}

/// Largest term of a [`Whole`], and its largest part before the point. Terms are not below 0, so a
/// sum that has been beyond stays there.
pub(crate) const TERM_MAX: f64 = 2_251_799_813_685_248.0; // 2^51
const WHOLE_MAX: i64 = 1 << 61;

impl Whole {
    /// The sum of a term that is larger than any number.
    pub(crate) fn beyond() -> Self {
        Whole { beyond: true, ..Whole::default() }
    }

    /// Adds a term. Beyond 2^51, or if it is no number, it makes the sum infinite.
    #[inline(always)]
    pub(crate) fn add(&mut self, term: f64) {
        if term.is_nan() || term.abs() > TERM_MAX {
            self.beyond = true;
            return;
        }
        let floor = term.floor();
        self.integer = self.integer.saturating_add(floor as i64);
        self.fraction += ((term - floor) * 2_f64.powi(FRACTION_BITS)) as u64;
        if self.fraction >> 63 != 0 {
            self.carry();
        }
    }

    fn carry(&mut self) {
        self.integer = self.integer.saturating_add((self.fraction >> FRACTION_BITS) as i64);
        self.fraction &= (1 << FRACTION_BITS) - 1;
        self.beyond |= self.integer.unsigned_abs() > WHOLE_MAX as u64;
    }

    /// The sum of two sums.
    pub(crate) fn plus(mut self, mut other: Whole) -> Whole {
        self.carry();
        other.carry();
        self.integer = self.integer.saturating_add(other.integer);
        self.fraction += other.fraction;
        self.beyond |= other.beyond;
        self.carry();
        self
    }

    /// The nearest number; infinite if it is beyond what integers hold.
    pub(crate) fn number(mut self) -> f64 {
        self.carry();
        if self.beyond {
            return f64::INFINITY;
        }
        self.integer as f64 + self.fraction as f64 * 2_f64.powi(-FRACTION_BITS)
    }
}

impl std::iter::Sum for Whole {
    fn sum<I: Iterator<Item = Whole>>(sums: I) -> Whole {
        sums.fold(Whole::default(), Whole::plus)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn terms() -> Vec<f64> {
        (0..10_000).map(|i: i32| f64::from(i * 7919 % 2003 - 1000) / 37.0).collect()
    }

    #[test]
    fn sums_are_near_and_do_not_depend_on_their_order() {
        let terms = terms();
        let scale = Scale::new(10_000, 1003.0 / 37.0);
        let sum: i64 = terms.iter().map(|&term| scale.to(term)).sum();
        let parts: i64 =
            terms.chunks(333).rev().map(|c| c.iter().map(|&x| scale.to(x)).sum::<i64>()).sum();
        let exact: f64 = terms.iter().sum();
        assert_eq!(sum, parts);
        assert!((scale.from(sum) - exact).abs() < 1e-8, "{} {exact}", scale.from(sum));
    }

    #[test]
    fn integers_are_the_nearest() {
        for (number, expected) in [(0.4, 0), (-0.6, -1), (2.5, 2), (2_f64.powi(51), 1 << 51)] {
            assert_eq!(integer(number), expected);
            assert_eq!(integer(-number), -expected);
        }
        assert_eq!(Scale::new(0, 0.0).to(1.0), 1 << 51);
        assert!(Scale::new(u64::MAX, 1e300).up > 0.0);
    }

    #[test]
    fn whole_sums_keep_what_is_behind_the_point() {
        let mut all = Whole::default();
        let mut parts = [Whole::default(); 3];
        for (at, term) in terms().into_iter().enumerate() {
            all.add(term.abs());
            parts[at % 3].add(term.abs());
        }
        assert_eq!(parts.into_iter().sum::<Whole>().number(), all.number());
        let exact: f64 = terms().iter().map(|term| term.abs()).sum();
        assert!((all.number() / exact - 1.0).abs() < 1e-12);
        let mut below = Whole::default();
        below.add(-0.25);
        assert_eq!(below.number(), -0.25);
    }

    #[test]
    fn whole_sums_notice_what_they_cannot_hold() {
        for term in [f64::NAN, f64::INFINITY, -1e16, 1e300] {
            let mut sum = Whole::default();
            sum.add(1.0);
            sum.add(term);
            sum.add(2.0);
            assert_eq!(sum.number(), f64::INFINITY, "{term}");
            let told: Whole = serde_json::from_str(&serde_json::to_string(&sum).unwrap()).unwrap();
            assert_eq!(told.plus(Whole::default()).number(), f64::INFINITY);
        }
        let mut sum = Whole::default();
        (0..1 << 14).for_each(|_| sum.add(TERM_MAX));
        assert_eq!(sum.number(), f64::INFINITY, "its terms are in range, but not their sum");
        let mut sum = Whole::default();
        (0..1 << 9).for_each(|_| sum.add(TERM_MAX));
        assert_eq!(sum.number(), TERM_MAX * 512.0);
        assert_eq!(serde_json::to_string(&Whole::default()).unwrap().find("beyond"), None);
    }
}
