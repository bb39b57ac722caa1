//! Faults of the simulated network, and the random generator that decides when they happen. Crashes
//! and cuts are requested by name: see [`Network`](super::Network).

use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::draws::Random;

/// How a simulated network treats messages. Every draw depends on the network's seed.
///
/// Messages of one connection never overtake each other; those of different connections may,
/// according to their latencies.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    /// One-way latency of a message, drawn uniformly for each.
    pub latency: RangeInclusive<Duration>,
    /// Bandwidth of each direction of a connection; `None` is unlimited.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Share of messages that stall, with all behind them in the same direction: 0 to 1.
    pub stall_probability: f64,
    /// Duration of a stall on top of the latency, drawn uniformly for each.
    pub stall: RangeInclusive<Duration>,
    /// Time until a peer that crashed or was cut off is reported lost.
    pub detection: Duration,
}

impl Faults {
    /// No faults: 10 µs one way for any length; a dead peer is reported after 10 ms.
    pub fn none() -> Faults {
        let latency = Duration::from_micros(10);
        Faults {
            latency: latency..=latency,
            bytes_per_second: None,
            stall_probability: 0.0,
            stall: Duration::ZERO..=Duration::ZERO,
            detection: Duration::from_millis(10),
        }
    }

    /// A busy network: 5 to 500 µs one way, 1 GB/s.
    pub fn jittery() -> Faults {
        Faults {
            latency: Duration::from_micros(5)..=Duration::from_micros(500),
            bytes_per_second: NonZeroU64::new(1_000_000_000),
            ..Faults::none()
        }
    }

    /// Many faults: 1 µs to 5 ms one way, 50 MB/s, one message in 50 stalled for 10 to 200 ms; a
    /// dead peer is reported after 100 ms.
    pub fn harsh() -> Faults {
        Faults {
            latency: Duration::from_micros(1)..=Duration::from_millis(5),
            bytes_per_second: NonZeroU64::new(50_000_000),
            stall_probability: 0.02,
            stall: Duration::from_millis(10)..=Duration::from_millis(200),
            detection: Duration::from_millis(100),
        }
    }

    /// Draws the one-way time of a message.
    pub(super) fn flight(&self, random: &mut Random) -> Duration {
        let latency = between(&self.latency, random);
        if random.chance(self.stall_probability) {
            latency.saturating_add(between(&self.stall, random))
        } else {
            latency
        }
    }

    /// How long a connection is busy sending `bytes`.
    pub(super) fn sending(&self, bytes: usize) -> Duration {
        self.bytes_per_second.map_or(Duration::ZERO, |rate| time_on_wire(bytes, rate))
    }
}

/// How long `bytes` take at this rate.
pub(super) fn time_on_wire(bytes: usize, bytes_per_second: NonZeroU64) -> Duration {
    let nanos = (bytes as u128 * 1_000_000_000).div_ceil(u128::from(bytes_per_second.get()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A time of `range`, uniformly drawn; its start if it is empty.
pub(super) fn between(range: &RangeInclusive<Duration>, random: &mut Random) -> Duration {
    let spread = range.end().saturating_sub(*range.start()).as_nanos();
    if spread == 0 {
        return *range.start();
    }
    let spread = u64::try_from(spread).unwrap_or(u64::MAX);
    range.start().saturating_add(Duration::from_nanos(random.below(spread.saturating_add(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_range_and_reach_its_ends() {
        let mut random = Random::new(1);
        let range = Duration::from_nanos(3)..=Duration::from_nanos(6);
        let drawn: Vec<u128> = (0..200).map(|_| between(&range, &mut random).as_nanos()).collect();
        assert!((3..=6).all(|n| drawn.contains(&n)), "{drawn:?}");
        assert!(drawn.iter().all(|n| (3..=6).contains(n)), "{drawn:?}");
        let [low, high] = [Duration::from_nanos(5), Duration::from_nanos(9)];
        assert_eq!(between(&RangeInclusive::new(high, low), &mut random), high, "an empty range");
    }

    #[test]
    fn sending_takes_time_by_length() {
        assert_eq!(Faults::none().sending(usize::MAX), Duration::ZERO);
        assert_eq!(Faults::jittery().sending(1_000_000), Duration::from_millis(1));
        let slow = Faults { bytes_per_second: NonZeroU64::new(1), ..Faults::none() };
        assert_eq!(slow.sending(usize::MAX), Duration::from_nanos(u64::MAX));
    }
}
