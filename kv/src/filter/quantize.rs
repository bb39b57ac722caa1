//! Fixed-point quantisation: a value v of an array is sent as an integer of n bytes, ⌊t + U⌋ with t
//! = (v - low) / step and U uniform in [0, 1), and received as low + step × that. Its mean is v,
//! and its error is at most one step, which is the array's range over 2^8n - 1. An array of equal
//! values has step 0 and is received exactly.
//!
//! A coin flip instead of U, as in the published system, is biased by half a step.

use super::draws::Draws;
use crate::refusal::{Refusal, Refused};

/// Most bytes of an integer.
pub(super) const BYTES_MAX: u8 = 3;

/// Rows of up to this many values have a range for each place; longer rows share one.
const PLACES_MAX: usize = 16;

/// Number of ranges for rows of `width` values.
pub(super) fn places(width: usize) -> usize {
    if width <= PLACES_MAX { width } else { 1 }
}

/// Bytes of a range in a block.
pub(super) const RANGE_BYTES: usize = 16;

/// The values that an array's integers stand for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    low: f64,
    step: f64,
}

/// The largest integer of that many bytes.
fn most(bytes: u8) -> u32 {
    (1 << (8 * bytes)) - 1
}

impl Range {
    /// Bounds of no values.
    pub(super) const EMPTY: (f64, f64) = (f64::INFINITY, f64::NEG_INFINITY);

    /// Creates the range from the smallest to the largest value.
    ///
    /// # Errors
    /// If their difference is not finite.
    pub(super) fn new(low: f64, high: f64, bytes: u8) -> Result<Range, Refused> {
        if low > high {
            return Ok(Range { low: 0.0, step: 0.0 }); // of no values
        }
        let span = high - low;
        if !span.is_finite() {
            return Err(Refusal::Shape
                .because(format!("values from {low} to {high} span more than a finite number")));
        }
        Ok(Range { low, step: span / f64::from(most(bytes)) })
    }

    /// The integer for `value`, which lies within the range.
    #[inline]
    pub(super) fn encode(self, value: f64, bytes: u8, draws: &mut Draws) -> u32 {
        if self.step == 0.0 {
            return 0;
        }
        let number = ((value - self.low) / self.step + draws.next_unit()).floor();
        (number as u32).min(most(bytes)) // rounding may push the largest value past the end
    }

    /// The value of an integer.
    #[inline]
    pub(super) fn decode(self, number: u32) -> f64 {
        self.low + self.step * f64::from(number)
    }

    pub(super) fn to_bytes(self) -> [u8; RANGE_BYTES] {
        let mut bytes = [0; RANGE_BYTES];
        bytes[..8].copy_from_slice(&self.low.to_le_bytes());
        bytes[8..].copy_from_slice(&self.step.to_le_bytes());
        bytes
    }

    /// Reads a range.
    ///
    /// # Errors
    /// If it would yield values that are not finite.
    pub(super) fn from_bytes(bytes: &[u8; RANGE_BYTES]) -> Result<Range, Refused> {
        let number = |at: usize| f64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let low = number(0);
        let step = number(8);
        let high = low + step * f64::from(most(BYTES_MAX));
        if !(low.is_finite() && step >= 0.0 && high.is_finite()) {
            return Err(Refusal::Shape
                .because(format!("its values begin at {low} and go by steps of {step}")));
        }
        Ok(Range { low, step })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn rounding_has_no_bias() {
        // U is uniform, so an error is within a step, with a standard deviation of at most half a
        // step.
        let draws_of_each = 40_000;
        for bytes in 1..=BYTES_MAX {
            let range = Range::new(-1.0, 1.0, bytes).unwrap();
            for value in [-1.0, -0.999, -0.3, 0.0, 0.123_456, 0.777, 1.0] {
                let mut draws = Draws::new(9, u64::from(bytes));
                let mut sum = 0.0;
                for _ in 0..draws_of_each {
                    let error = range.decode(range.encode(value, bytes, &mut draws)) - value;
                    assert!(error.abs() <= range.step * 1.000_001, "{error} of {value}");
                    sum += error;
                }
                let mean = sum / f64::from(draws_of_each);
                let bound = 5.0 * 0.5 * range.step / f64::from(draws_of_each).sqrt();
                assert!(
                    mean.abs() <= bound,
                    "{value} in {bytes} bytes is off by {mean} on average"
                );
            }
        }
    }

    #[test]
    fn equal_values_come_back_exactly() {
        let range = Range::new(0.1, 0.1, 1).unwrap();
        assert_eq!(range.decode(range.encode(0.1, 1, &mut Draws::new(0, 0))), 0.1);
    }

    #[test]
    fn ranges_are_finite_or_refused() {
        assert!(Range::new(-f64::MAX, f64::MAX, 2).is_err());
        assert!(Range::new(f64::NEG_INFINITY, 0.0, 2).is_err());
        assert!(Range::new(Range::EMPTY.0, Range::EMPTY.1, 2).is_ok());
        let bytes = |low, step| Range { low, step }.to_bytes();
        assert!(Range::from_bytes(&bytes(-3.0, 0.5)).is_ok());
        for (low, step) in [(f64::NAN, 1.0), (0.0, f64::NAN), (0.0, -1.0), (f64::MAX, f64::MAX)] {
            assert!(Range::from_bytes(&bytes(low, step)).is_err(), "{low} {step}");
        }
    }
}
