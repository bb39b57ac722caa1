//! Narrowing: f64 values that are all exact f32s are sent as f32s, without loss. A sender that
//! rounds its numbers to 24 bits sends half the bytes.

/// Whether an f64 is exactly an f32.
#[inline]
pub(super) fn fits(value: f64) -> bool {
    f64::from(value as f32).to_bits() == value.to_bits()
}
