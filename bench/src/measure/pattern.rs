//! The payloads of requests, made so that a fast wrong answer shows. They are not random: they are
//! cheap to write and to compare.
//!
//! A payload is filled once by position. For each request only its *stamps* change: the first value
//! of every 4 KiB and the last value follow from the request's number. So two requests differ in
//! every page. A payload that did not arrive, came twice or landed elsewhere differs, too. Stamping
//! costs one cache line a page.

/// Values a stamp stands for: 4 KiB of `f32`.
const STAMP_EVERY: usize = 1024;

/// Values a quick check stands for: 64 KiB of `f32`, a multiple of [`STAMP_EVERY`]. Each check of
/// memory that has just landed waits for that memory while the clock runs, so there are few.
const CHECK_EVERY: usize = 16 * STAMP_EVERY;

/// Fills `values` for request `number`.
pub(crate) fn fill(values: &mut [f32], number: u64) {
    for (position, value) in values.iter_mut().enumerate() {
        *value = finite(position as u32);
    }
    stamp(values, number);
}

/// Makes filled `values` those of request `number`; returns the change of their [`sum`].
pub(crate) fn stamp(values: &mut [f32], number: u64) -> u32 {
    let mut change = 0_u32;
    for position in places(values.len(), STAMP_EVERY) {
        let value = &mut values[position];
        let before = value.to_bits();
        *value = finite((number as u32).wrapping_mul(0x9E37_79B1) ^ position as u32);
        change = change.wrapping_add(value.to_bits().wrapping_sub(before));
    }
    change
}

/// The wrapping sum of all values' bits, the cheapest way to read them all. Any single value that
/// differs changes it.
pub(crate) fn sum(values: &[f32]) -> u32 {
    values.iter().fold(0, |sum, value| sum.wrapping_add(value.to_bits()))
}

/// Spoils memory that a pull fills next, so that a payload that never lands shows.
pub(crate) fn spoil(values: &mut [f32]) {
    for position in places(values.len(), CHECK_EVERY) {
        values[position] = -1.0; // no pattern has a negative value
    }
}

/// Whether every value is as expected, bit for bit.
pub(crate) fn same(values: &[f32], expected: &[f32]) -> bool {
    let differ = |(a, b): (&f32, &f32)| a.to_bits() ^ b.to_bits();
    // Whole blocks without an early exit let the compiler compare many values at once.
    values.len() == expected.len()
        && values
            .chunks(STAMP_EVERY)
            .zip(expected.chunks(STAMP_EVERY))
            .all(|(v, e)| v.iter().zip(e).map(differ).fold(0, |all, bits| all | bits) == 0)
}

/// Whether the stamps that [`spoil`] spoiled are as expected: the quick check while the clock runs.
pub(crate) fn stamps_same(values: &[f32], expected: &[f32]) -> bool {
    values.len() == expected.len()
        && places(values.len(), CHECK_EVERY)
            .all(|at| values[at].to_bits() == expected[at].to_bits())
}

/// Every `step`th place in a payload of `len` values, and the last.
fn places(len: usize, step: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(step).chain(len.checked_sub(1))
}

/// Spreads a number over the non-negative floats that hold 24 bits exactly.
fn finite(number: u32) -> f32 {
    (number.wrapping_mul(0x85EB_CA6B).rotate_left(13).wrapping_mul(0xC2B2_AE35) >> 8) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_different_requests_differ_in_every_page() {
        for len in [1, 2, 1023, 1024, 1025, 4096, 5000] {
            let (mut one, mut two) = (vec![0.0; len], vec![0.0; len]);
            fill(&mut one, 7);
            fill(&mut two, 8);
            assert!(!same(&one, &two) && !stamps_same(&one, &two), "{len}");
            let before = sum(&two);
            for page in one.chunks(STAMP_EVERY).zip(two.chunks(STAMP_EVERY)) {
                assert_ne!(page.0[0].to_bits(), page.1[0].to_bits(), "{len}");
            }
            let change = stamp(&mut two, 7);
            assert!(same(&one, &two) && stamps_same(&one, &two), "{len}");
            assert_eq!(change, sum(&one).wrapping_sub(before), "{len}");
        }
    }

    #[test]
    fn a_single_wrong_value_and_a_missing_payload_are_seen() {
        let mut expected = vec![0.0; 3000];
        fill(&mut expected, 1);
        for at in [0, 1, 1500, 2999] {
            let mut values = expected.clone();
            values[at] += 1.0;
            assert!(!same(&values, &expected) && sum(&values) != sum(&expected), "{at}");
        }
        let mut values = expected.clone();
        spoil(&mut values);
        assert!(!stamps_same(&values, &expected));
        assert!(!same(&expected[..2999], &expected));
        assert!(!stamps_same(&[], &expected));
        assert!(same(&[], &[]));
    }
}
