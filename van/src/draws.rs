//! Seeded random numbers, the same on every machine: SplitMix64 (Steele, Lea and Flood, "Fast
//! splittable pseudorandom number generators", OOPSLA 2014).

/// What the state of the generator grows by with each draw.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of numbers that its seed determines.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next number, uniform over all.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        let drawn = mix(self.state);
        self.state = self.state.wrapping_add(STEP);
        drawn
    }

    /// The next number below `bound`, and 0 if that is 0. The bias of the multiplication is at most
    /// `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// The next place in a list of so many, and 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with `probability`. Draws nothing for probability 0.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && unit(self.next()) < probability
    }

    /// Brings `items` into a random order (Fisher and Yates, from the back).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

/// The first number of the sequence of a seed: neighbours differ in half of their bits.
#[inline]
pub fn mix(seed: u64) -> u64 {
    finish(seed.wrapping_add(STEP))
}

/// Number `count` of the sequence of a seed, from 0.
#[inline]
pub fn nth(seed: u64, count: u64) -> u64 {
    mix(seed.wrapping_add(count.wrapping_mul(STEP)))
}

/// A number as one in [0, 1), by its upper 53 bits.
#[inline]
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// Stafford's 64-bit mixer number 13: every input bit flips half of the output bits on average. One
/// to one; 0 stays 0.
#[inline]
pub fn finish(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published first numbers of seed 1234567.
    #[test]
    fn draws_are_those_of_the_paper() {
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
        ];
        let mut random = Random::new(1_234_567);
        for (count, number) in (0..).zip(published) {
            assert_eq!((random.next(), nth(1_234_567, count)), (number, number));
        }
        assert_eq!((mix(1_234_567), finish(0)), (published[0], 0));
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..200).map(|_| random.below(4)).collect();
        assert!((0..4).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| *n < 4), "{drawn:?}");
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        assert_eq!((unit(0), unit(u64::MAX) < 1.0), (0.0, true));
    }

    #[test]
    fn chances_come_true_about_as_often_as_they_say() {
        let mut random = Random::new(2);
        let often = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2_300..2_700).contains(&often), "{often}");
        assert!(!random.chance(0.0) && random.chance(1.0));
    }

    #[test]
    fn an_order_has_all_items_and_depends_on_its_seed() {
        let order = |seed| {
            let mut order: Vec<u32> = (0..100).collect();
            Random::new(seed).shuffle(&mut order);
            order
        };
        let mut sorted = order(1);
        assert_eq!(order(1), sorted);
        assert_ne!(order(1), order(2));
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
    }
}
