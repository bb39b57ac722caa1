//! Zero suppression: if there are many zeros, a bit for each value marks them, and only the others
//! are sent.
//!
//! A zero is a value whose bytes are all 0; -0.0 is not one, and is received unchanged.

use caravan_van::Value;

use super::bits;

/// Whether a bitmap pays for omitting `zeros` of `count` values of `size` bytes.
pub(super) fn pays(zeros: usize, count: usize, size: usize) -> bool {
    zeros * size > bits::bytes(count)
}

/// Whether all bytes of a value are 0.
#[inline]
pub(super) fn is_zero<V: Value>(value: &V) -> bool {
    // `==` also matches -0.0, but rejects most values in one instruction.
    *value == V::default() && V::bytes(std::slice::from_ref(value)).iter().all(|byte| *byte == 0)
}
