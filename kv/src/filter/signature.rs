//! Short names for long lists of keys.
//!
//! Two different lists have the same name with a probability of at most 2^-61 over the random words
//! of the signer, whatever the lists are: the sums of products over blocks (NH) distinguish two
//! blocks except with probability 2^-62, the polynomial over blocks modulo 2^127 - 1 (up to 2^57
//! keys) distinguishes two lists of sums except with 2^-70, and the last step to 64 bits adds
//! 2^-64. So the probability of any collision is below 2^-22 among a million lists, and below 2^-48
//! among the hundred that a table usually has. The words come from a fixed seed. An attacker who
//! constructs colliding lists only gets its own pushes applied to wrong keys, which it could do
//! anyway.
//!
//! Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC: Fast and Secure Message Authentication",
//! CRYPTO 1999 (NH); Krovetz, "Message Authentication on 64-Bit Architectures", SAC 2006 (the
//! polynomial over it); Dietzfelbinger, "Universal Hashing and k-Wise Independent Random Variables
//! via Integer Arithmetic without Primes", STACS 1996 (the last step).

use caravan_van::draws::Random;

/// Keys of a block.
const BLOCK: usize = 64;

/// Sums of products keep this many bits, so that they are below [`PRIME`].
const SUM_BITS: u32 = 126;

const PRIME: u128 = (1 << 127) - 1;

/// Signs lists of keys.
pub struct Signer {
    words: [u64; BLOCK],
    point: u128,
    last: [u128; 3],
}

impl Signer {
    /// A signer whose random words come from `seed`: the same seed gives the same signatures.
    pub fn new(seed: u64) -> Signer {
        let mut random = Random::new(seed);
        let words = std::array::from_fn(|_| random.next());
        let mut wide = || u128::from(random.next()) << 64 | u128::from(random.next());
        Signer { words, point: wide() % PRIME, last: std::array::from_fn(|_| wide()) }
    }

    /// The name of a list.
    pub fn sign(&self, keys: &[u64]) -> u64 {
        let (blocks, rest) = keys.as_chunks::<BLOCK>();
        let mut sum = 0;
        for block in blocks {
            sum = append(sum, self.point, self.block(block));
        }
        let mut last = [0; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        sum = append(sum, self.point, self.block(&last));
        // Lists that differ only in trailing zeros get different names here.
        sum = append(sum, self.point, keys.len() as u128);
        let [a, b, c] = self.last;
        let low = sum & u128::from(u64::MAX);
        let high = sum >> 64;
        (a.wrapping_mul(low).wrapping_add(b.wrapping_mul(high)).wrapping_add(c) >> 64) as u64
    }

    /// The sum of products of pairs of keys, each with a random word added.
    #[inline]
    fn block(&self, keys: &[u64; BLOCK]) -> u128 {
        let pairs = keys.as_chunks::<2>().0.iter().zip(self.words.as_chunks::<2>().0);
        let sum = pairs.fold(0u128, |sum, ([a, b], [x, y])| {
            let a = u128::from(a.wrapping_add(*x));
            let b = u128::from(b.wrapping_add(*y));
            sum.wrapping_add(a * b)
        });
        sum & ((1 << SUM_BITS) - 1)
    }
}

/// `sum * point + next`, modulo [`PRIME`].
fn append(sum: u128, point: u128, next: u128) -> u128 {
    let product = fold(multiply(sum, point));
    fold(product + next)
}

/// The product of two numbers below 2^127 modulo [`PRIME`], up to a last fold, because 2^127 is 1
/// there.
fn multiply(a: u128, b: u128) -> u128 {
    let half = |n: u128| (n >> 64, n & u128::from(u64::MAX));
    let ((a1, a0), (b1, b0)) = (half(a), half(b));
    let middle = a1 * b0 + a0 * b1;
    let low = fold(a0 * b0);
    let middle = fold((middle >> 63) + ((middle & (PRIME >> 64)) << 64));
    let high = fold(2 * (a1 * b1));
    fold(low + middle) + high
}

/// Reduces modulo [`PRIME`], to at most that.
fn fold(n: u128) -> u128 {
    (n & PRIME) + (n >> 127)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::collections::HashSet;

    /// The obvious way: bit by bit.
    fn multiply_slowly(a: u128, b: u128) -> u128 {
        let double = |n: u128| if n >= PRIME - n { n - (PRIME - n) } else { n + n };
        let add = |a: u128, b: u128| if a >= PRIME - b { a - (PRIME - b) } else { a + b };
        (0..127).rev().fold(0, |sum, bit| add(double(sum), if b >> bit & 1 == 1 { a } else { 0 }))
    }

    #[test]
    fn products_are_those_modulo_the_prime() {
        let mut numbers = vec![0, 1, 2, u128::from(u64::MAX), 1 << 64, 1 << 126, PRIME - 1];
        let spread = 0x1234_5678_9abc_def1_1357_9bdf_0246_8acf_u128;
        numbers.extend((1..60).map(|n| spread.wrapping_mul(n) % PRIME));
        for &a in &numbers {
            for &b in &numbers {
                assert_eq!(fold(multiply(a, b)) % PRIME, multiply_slowly(a, b), "{a:x} {b:x}");
            }
        }
        assert_eq!(append(PRIME, PRIME, PRIME) % PRIME, 0);
    }

    #[test]
    fn every_key_and_their_number_count() {
        let signer = Signer::new(7);
        let keys: Vec<u64> = (0..1000).map(|i| 5 + i * 977).collect();
        let mut names = HashSet::from([signer.sign(&keys)]);
        for at in 0..keys.len() {
            let mut other = keys.clone();
            other[at] += 1;
            assert!(names.insert(signer.sign(&other)), "key {at} is one more");
            assert!(names.insert(signer.sign(&keys[..at])), "the first {at}");
        }
        let zeros = [0; 300];
        for count in 0..zeros.len() {
            assert!(names.insert(signer.sign(&zeros[..count])) || count == 0, "{count} zeros");
        }
        assert_eq!(Signer::new(7).sign(&keys), signer.sign(&keys));
        assert_ne!(Signer::new(8).sign(&keys), signer.sign(&keys));
    }

    #[test]
    fn bits_of_names_are_fair() {
        let signer = Signer::new(1);
        let mut ones = [0; 64];
        for list in 0..4096u64 {
            let name = signer.sign(&[list, list + 1]);
            (0..64).for_each(|bit| ones[bit] += name >> bit & 1);
        }
        assert!(ones.iter().all(|&ones| (1850..2250).contains(&ones)), "{ones:?}");
    }
}
