//! Random numbers by count: the n-th draw of a stream depends only on the stream and n, so that the
//! same seed gives the same bytes whatever else the program draws.

/// Multiplies counts, so that neighbours differ in all bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of draws.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    stream: u64,
    count: u64,
}

impl Draws {
    /// Stream `number` of `seed`, independent of other numbers' streams.
    pub fn new(seed: u64, number: u64) -> Draws {
        Draws { stream: mix(seed ^ mix(number.wrapping_add(GOLDEN))), count: 0 }
    }

    /// The next draw, uniform in [0, 1).
    #[inline]
    pub fn next_unit(&mut self) -> f64 {
        unit(self.next_bits())
    }

    /// The next draw, uniform over all numbers.
    #[inline]
    pub fn next_bits(&mut self) -> u64 {
        self.count += 1;
        mix(self.stream.wrapping_add(self.count.wrapping_mul(GOLDEN)))
    }

    /// How many there were of the stream.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Goes on as if there had been so many.
    pub(crate) fn go_to(&mut self, count: u64) {
        self.count = count;
    }

    /// The draw for `key`, which never changes.
    #[inline]
    pub fn of(&self, key: u64) -> f64 {
        unit(mix(self.stream ^ mix(key.wrapping_add(GOLDEN))))
    }
}

fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// Stafford's 64-bit mixer number 13, as in SplitMix64: every input bit flips half of the output
/// bits on average.
#[inline]
pub(crate) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_streams_are_apart() {
        let (mut a, mut b) = (Draws::new(1, 0), Draws::new(1, 1));
        let n = 100_000;
        let (mut sum, mut squares, mut product) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let (x, y) = (a.next_unit(), b.next_unit());
            assert!((0.0..1.0).contains(&x));
            sum += x;
            squares += x * x;
            product += (x - 0.5) * (y - 0.5);
        }
        // Five standard deviations of each mean.
        let n = f64::from(n);
        assert!((sum / n - 0.5).abs() < 5.0 * (1.0 / 12.0 / n).sqrt());
        assert!((squares / n - 1.0 / 3.0).abs() < 5.0 * (4.0 / 45.0 / n).sqrt());
        assert!((product / n).abs() < 5.0 / 12.0 / n.sqrt());
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed, number| {
            let mut draws = Draws::new(seed, number);
            [draws.next_unit(), draws.next_unit(), draws.of(7)]
        };
        assert_eq!(draw(3, 4), draw(3, 4));
        assert_ne!(draw(3, 4), draw(4, 4));
        assert_ne!(draw(3, 4), draw(3, 5));
    }
}
