//! Random numbers by count: the n-th draw of a stream depends only on the stream and n, so that the
//! same seed gives the same bytes whatever else the program draws.

use caravan_van::draws::{finish, mix, nth, unit};

/// A stream of draws.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    stream: u64,
    count: u64,
}

impl Draws {
    /// Stream `number` of `seed`, independent of other numbers' streams.
    pub fn new(seed: u64, number: u64) -> Draws {
        Draws { stream: finish(seed ^ mix(number)), count: 0 }
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
        nth(self.stream, self.count - 1)
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
        unit(finish(self.stream ^ mix(key)))
    }
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
