//! Narrowing: f64 values that are all f32s travel as such. Nothing is lost; whoever keeps its numbers to 24 bits, because
//! nobody needs the others, sends half the bytes.

/// Whether an f64 is an f32.
#[inline]
pub(super) fn fits(value: f64) -> bool {
    f64::from(value as f32).to_bits() == value.to_bits()
}
