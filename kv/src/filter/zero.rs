//! Zero suppression: where zeros are many, a bit for each value says whether it is one, and only the others are sent.
//!
//! A zero is a value whose bytes are all 0, so -0.0 is none, and comes back as it was.

use caravan_van::Value;

use super::bits;

/// Whether it is worth a bitmap: `zeros` of `count` values of `size` bytes can be left out.
pub(super) fn pays(zeros: usize, count: usize, size: usize) -> bool {
    zeros * size > bits::bytes(count)
}

/// Whether all bytes of a value are 0.
#[inline]
pub(super) fn is_zero<V: Value>(value: &V) -> bool {
    // `==` takes -0.0 for a zero as well, and is one instruction for the many that are none.
    *value == V::default() && V::bytes(std::slice::from_ref(value)).iter().all(|byte| *byte == 0)
}
