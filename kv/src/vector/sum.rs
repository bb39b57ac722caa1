//! Sums of `f64` without rounding, so that they come out the same in any order and by any parts.
//!
//! Neal, "Fast exact summation using small and large superaccumulators", 2015: a fixed-point number
//! that has a place for every bit of every finite `f64`.

/// Bits of a limb that are its own; the others of its 64 hold what is not carried yet.
const LIMB_BITS: usize = 32;

/// All of a limb's own bits.
const LIMB_MASK: i64 = (1 << LIMB_BITS) - 1;

/// Limbs of the number, in units of 2^-1074. A finite `f64` is below 2^2098 of them; the limbs
/// above have room for a sum of more numbers than memory holds.
const LIMBS: usize = 68;

/// Numbers that can be added before limbs have to be carried: each adds less than 2^32 to a limb.
const ADDS_MAX: u32 = 1 << 30;

/// Bits of the fraction of an `f64`.
const FRACTION_BITS: u32 = 52;

/// The exponent of infinities and of what is not a number.
const EXPONENT_MAX: u64 = 0x7ff;

/// A sum of `f64`, exact until [`ExactSum::value`] rounds it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExactSum {
    /// Little-endian. The sum is negative if the last one is, once all are carried.
    limbs: [i64; LIMBS],
    /// Numbers added since the last carry.
    adds: u32,
    /// [`PLUS`], [`MINUS`] and [`NAN`]: which numbers that are not finite were added.
    special: u8,
}

const PLUS: u8 = 1;
const MINUS: u8 = 2;
const NAN: u8 = 4;

/// In bytes: the sum is below 0.
const NEGATIVE: u8 = 8;

impl Default for ExactSum {
    fn default() -> Self {
        ExactSum { limbs: [0; LIMBS], adds: 0, special: 0 }
    }
}

impl ExactSum {
    /// Adds a number.
    #[inline]
    pub fn add(&mut self, number: f64) {
        let bits = number.to_bits();
        let exponent = bits >> FRACTION_BITS & EXPONENT_MAX;
        if exponent == EXPONENT_MAX {
            return self.add_special(number);
        }
        let fraction = bits & ((1 << FRACTION_BITS) - 1);
        let is_normal = exponent > 0;
        let mantissa = fraction | u64::from(is_normal) << FRACTION_BITS;
        let shift = exponent as usize - usize::from(is_normal);
        let wide = u128::from(mantissa) << (shift % LIMB_BITS);
        let sign = if number.is_sign_negative() { -1 } else { 1 };
        let at = shift / LIMB_BITS;
        self.limbs[at] += sign * i64::from(wide as u32);
        self.limbs[at + 1] += sign * i64::from((wide >> LIMB_BITS) as u32);
        self.limbs[at + 2] += sign * i64::from((wide >> (2 * LIMB_BITS)) as u32);
        self.adds += 1;
        if self.adds == ADDS_MAX {
            self.carry();
        }
    }

    #[cold]
    fn add_special(&mut self, number: f64) {
        self.special |= match number {
            f64::INFINITY => PLUS,
            f64::NEG_INFINITY => MINUS,
            _ => NAN,
        };
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &ExactSum) {
        let mut other = other.clone();
        other.carry();
        self.carry();
        self.limbs.iter_mut().zip(other.limbs).for_each(|(limb, other)| *limb += other);
        self.carry();
        self.special |= other.special;
    }

    /// The nearest `f64`, ties to even. Infinities of both signs are not a number together.
    pub fn value(&self) -> f64 {
        match self.special {
            0 => {}
            PLUS => return f64::INFINITY,
            MINUS => return f64::NEG_INFINITY,
            _ => return f64::NAN,
        }
        let (is_negative, limbs) = self.magnitude();
        let size = round(&limbs);
        if is_negative { -size } else { size }
    }

    /// Appends the sum: its signs, the first limb that is not 0, how many there are up to the last
    /// one, and these.
    pub fn append(&self, bytes: &mut Vec<u8>) {
        let (is_negative, limbs) = self.magnitude();
        let first = limbs.iter().position(|limb| *limb != 0).unwrap_or(0);
        let end = limbs.iter().rposition(|limb| *limb != 0).map_or(0, |last| last + 1);
        let limbs = &limbs[first.min(end)..end];
        let signs = self.special | if is_negative { NEGATIVE } else { 0 };
        bytes.extend([signs, first as u8, limbs.len() as u8]);
        limbs.iter().for_each(|limb| bytes.extend(limb.to_le_bytes()));
    }

    /// Reads what [`ExactSum::append`] has written from the front of `bytes`, and takes it off.
    /// Returns `None` if that is no sum.
    pub fn read(bytes: &mut &[u8]) -> Option<ExactSum> {
        let ([signs, first, count], rest) = bytes.split_first_chunk()?;
        let (limbs, rest) = rest.split_at_checked(4 * usize::from(*count))?;
        let first = usize::from(*first);
        let mut sum = ExactSum { special: signs & (PLUS | MINUS | NAN), ..ExactSum::default() };
        let places = sum.limbs.get_mut(first..first + usize::from(*count))?;
        let sign = if signs & NEGATIVE == 0 { 1 } else { -1 };
        for (place, limb) in places.iter_mut().zip(limbs.as_chunks().0) {
            *place = sign * i64::from(u32::from_le_bytes(*limb));
        }
        *bytes = rest;
        Some(sum)
    }

    /// Makes all limbs but the last one non-negative and below 2^32.
    fn carry(&mut self) {
        let mut carried = 0;
        let (last, others) = self.limbs.split_last_mut().expect("there are limbs");
        for limb in others {
            let sum = *limb + carried;
            *limb = sum & LIMB_MASK;
            carried = sum >> LIMB_BITS;
        }
        *last += carried;
        self.adds = 0;
    }

    /// Whether the sum is below 0, and its size.
    fn magnitude(&self) -> (bool, [u32; LIMBS]) {
        let mut sum = self.clone();
        sum.carry();
        let is_negative = sum.limbs[LIMBS - 1] < 0;
        if is_negative {
            sum.limbs.iter_mut().for_each(|limb| *limb = -*limb);
            sum.carry();
        }
        (is_negative, sum.limbs.map(|limb| limb as u32))
    }
}

/// The nearest `f64` to a number in units of 2^-1074, ties to even.
fn round(limbs: &[u32; LIMBS]) -> f64 {
    let Some(last) = limbs.iter().rposition(|limb| *limb != 0) else { return 0.0 };
    let limb = |at: usize| limbs.get(at).copied().unwrap_or(0);
    let top = LIMB_BITS * last + limb(last).ilog2() as usize;
    let Some(cut) = top.checked_sub(FRACTION_BITS as usize).filter(|cut| *cut > 0) else {
        // The unit is that of the smallest numbers, whose bits are the number itself.
        return f64::from_bits(u64::from(limb(0)) | u64::from(limb(1)) << LIMB_BITS);
    };
    let exponent = cut as u64 + 1;
    if exponent >= EXPONENT_MAX {
        return f64::INFINITY;
    }
    let at = cut / LIMB_BITS;
    let words = [limb(at), limb(at + 1), limb(at + 2)].map(u128::from);
    let window = words[0] | words[1] << LIMB_BITS | words[2] << (2 * LIMB_BITS);
    let mantissa = (window >> (cut % LIMB_BITS)) as u64 & ((1 << (FRACTION_BITS + 1)) - 1);
    let is_set = |bit: usize| limb(bit / LIMB_BITS) >> (bit % LIMB_BITS) & 1 == 1;
    let below = cut - 1;
    let is_half = is_set(below);
    let mask = (1_u32 << (below % LIMB_BITS)) - 1;
    let is_above_half = limb(below / LIMB_BITS) & mask != 0
        || limbs[..below / LIMB_BITS].iter().any(|limb| *limb != 0);
    let goes_up = is_half && (is_above_half || mantissa & 1 == 1);
    // The leading bit of the mantissa adds 1 to the exponent, and rounding up may add another.
    let bits = ((exponent - 1) << FRACTION_BITS) + mantissa + u64::from(goes_up);
    f64::from_bits(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(numbers: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        numbers.iter().for_each(|number| sum.add(*number));
        sum
    }

    fn same(found: f64, expected: f64) -> bool {
        found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
    }

    /// By hand: cancellation, ties, the ends of the range, and what is not finite.
    #[test]
    fn known_sums() {
        let (tiny, huge) = (f64::from_bits(1), f64::MAX);
        let [one, half, up] = [1.0, f64::EPSILON / 2.0, f64::EPSILON];
        for (numbers, expected) in [
            (&[][..], 0.0),
            (&[-0.0, -0.0], 0.0),
            (&[1e100, 1.0, -1e100], 1.0),
            (&[one, half], one),
            (&[one, half, tiny], one + up),
            (&[-one, -half, -tiny], -(one + up)),
            (&[one + up, half], one + 2.0 * up),
            (&[one + up, half, -tiny], one + up),
            (&[one, -half / 2.0], one),
            (&[one, -half / 2.0, -tiny], one - half),
            (&[tiny, tiny, tiny], 3.0 * tiny),
            (&[f64::MIN_POSITIVE, -tiny], f64::MIN_POSITIVE - tiny),
            (&[huge, huge, -huge], huge),
            (&[huge, huge], f64::INFINITY),
            (&[-huge, -huge], f64::NEG_INFINITY),
            (&[huge, huge * half], f64::INFINITY),
            (&[huge, huge * half / 2.1], huge),
            (&[f64::INFINITY, -huge], f64::INFINITY),
            (&[f64::INFINITY, f64::NEG_INFINITY], f64::NAN),
            (&[f64::NAN, 1.0], f64::NAN),
            (&[0.1; 10], 1.0),
        ] {
            let found = sum(numbers).value();
            assert!(same(found, expected), "{numbers:?}: {found:e}, not {expected:e}");
        }
    }

    #[test]
    fn what_is_no_sum_is_refused() {
        let mut bytes = Vec::new();
        sum(&[1.0, -3e300]).append(&mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(ExactSum::read(&mut &bytes[..cut]), None);
        }
        let beyond = [0, LIMBS as u8 - 1, 2, 1, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(ExactSum::read(&mut &beyond[..]), None);
    }

    proptest! {
        /// In any order, by any parts that travel, and as integers of 128 bits add up.
        #[test]
        fn order_and_parts_make_no_difference(
            numbers in prop::collection::vec(any::<f64>(), 0..60),
            small in prop::collection::vec((any::<i32>(), 0_u32..60), 0..60),
            cut in 0_usize..60,
        ) {
            let whole = sum(&numbers).value();
            let mut turned = numbers.clone();
            turned.reverse();
            turned.rotate_left(cut.min(numbers.len()));
            prop_assert!(same(sum(&turned).value(), whole));
            let (first, second) = numbers.split_at(cut.min(numbers.len()));
            let mut bytes = Vec::new();
            [first, second].iter().for_each(|part| sum(part).append(&mut bytes));
            let mut rest = &bytes[..];
            let mut merged = ExactSum::default();
            (0..2).for_each(|_| merged.merge(&ExactSum::read(&mut rest).expect("it is whole")));
            prop_assert!(rest.is_empty() && same(merged.value(), whole));

            let integers: i128 = small.iter().map(|(it, bits)| i128::from(*it) << bits).sum();
            let scaled: Vec<f64> =
                small.iter().map(|(it, bits)| f64::from(*it) * (*bits as f64).exp2()).collect();
            prop_assert!(same(sum(&scaled).value(), integers as f64));
        }
    }
}
