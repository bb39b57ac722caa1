//! Simulated machines: the rate of their network cards, the processor time of a message, and
//! stragglers. `faults.rs` holds what happens between machines.

use std::num::NonZeroU64;
use std::time::Duration;

use super::faults::{between, time_on_wire};
use crate::draws::Random;

/// The machines of a simulated network, all alike except for stragglers. The parameters are those
/// of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages into
/// the LogP model", 1995), without the latency, which is
/// [`Faults::latency`](super::Faults::latency).
///
/// By default machines take no time at all; only the network does.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Hosts {
    /// Bytes per second that a node's card sends over all its connections together, and that it
    /// receives (1/G); `None` is unlimited. A message passes the sender's card as a whole, then the
    /// receiver's once that has finished earlier ones.
    pub card_bytes_per_second: Option<NonZeroU64>,
    /// Processor time of each frame or write, on either side (o).
    pub overhead: Duration,
    /// Processor time per byte, in nanoseconds.
    pub overhead_nanos_per_byte: f64,
    /// Factor of [`Clock::charge`](crate::Clock::charge): 1 for machines as fast as the
    /// charge assumes. 0 means 1.
    pub slower: f64,
    /// The nodes that compute more slowly, and when.
    pub stragglers: Stragglers,
}

/// Nodes whose computation takes `factor` times as long: some nodes always, and all nodes now and
/// then.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stragglers {
    /// The slowdown; below 1 counts as 1.
    pub factor: f64,
    /// Share of nodes that are always slow, drawn for each: 0 to 1.
    pub always: f64,
    /// Mean time between two slow spells of a node, drawn uniformly from 0 to twice that. Zero for
    /// no spells.
    pub every: Duration,
    /// Mean length of a spell, drawn in the same way.
    pub spell: Duration,
}

impl Hosts {
    /// How long a card is busy with `bytes`: at least a nanosecond, so that messages stay in order.
    pub(super) fn passing(&self, bytes: usize) -> Option<Duration> {
        let rate = self.card_bytes_per_second?;
        Some(time_on_wire(bytes, rate).max(Duration::from_nanos(1)))
    }

    /// Processor time of a message of `bytes`.
    pub(super) fn handling(&self, bytes: usize) -> Duration {
        self.overhead + Duration::from_nanos((self.overhead_nanos_per_byte * bytes as f64) as u64)
    }
}

/// The speed at which one node computes.
pub(super) struct Pace {
    random: Random,
    always_slow: bool,
    in_spell: bool,
    /// End of this spell, or of the time without one.
    until: Duration,
}

impl Pace {
    /// Draws from a stream of its own, so that a node's spells do not depend on other nodes.
    pub(super) fn new(seed: u64, node: usize, stragglers: &Stragglers) -> Pace {
        let stream = Random::new(seed).next() ^ node as u64;
        let mut random = Random::new(Random::new(stream).next());
        let always_slow = random.chance(stragglers.always);
        // A spell of no length ends at once, and the first time without one begins.
        Pace { random, always_slow, in_spell: true, until: Duration::ZERO }
    }

    /// How long `work` takes a node that starts at `now`. Calls must be in order of time.
    pub(super) fn takes(&mut self, hosts: &Hosts, now: Duration, work: Duration) -> Duration {
        let Hosts { slower, stragglers, .. } = hosts;
        let work = if *slower > 0.0 { work.mul_f64(*slower) } else { work };
        let factor = stragglers.factor.max(1.0);
        if self.always_slow {
            return work.mul_f64(factor);
        }
        if stragglers.every.is_zero() {
            return work;
        }
        let mut at = now;
        let mut left = work;
        loop {
            while self.until <= at {
                self.turn(stragglers);
            }
            let pace = if self.in_spell { factor } else { 1.0 };
            let needs = left.mul_f64(pace);
            let room = self.until - at;
            if needs <= room {
                return at + needs - now;
            }
            left = left.saturating_sub(room.div_f64(pace));
            at = self.until;
        }
    }

    /// Begins or ends a spell.
    fn turn(&mut self, stragglers: &Stragglers) {
        self.in_spell = !self.in_spell;
        let mean = if self.in_spell { stragglers.spell } else { stragglers.every };
        let drawn = between(&(Duration::ZERO..=2 * mean), &mut self.random);
        self.until += drawn.max(Duration::from_nanos(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn the_default_takes_no_time() {
        let hosts = Hosts::default();
        assert_eq!((hosts.passing(1 << 30), hosts.handling(1 << 30)), (None, Duration::ZERO));
        let mut pace = Pace::new(1, 1, &hosts.stragglers);
        assert_eq!(pace.takes(&hosts, MILLI, MILLI), MILLI);
    }

    #[test]
    fn cards_and_processors_count_bytes() {
        let hosts = Hosts {
            card_bytes_per_second: NonZeroU64::new(1_000_000_000),
            overhead: Duration::from_nanos(500),
            overhead_nanos_per_byte: 0.25,
            ..Hosts::default()
        };
        assert_eq!(hosts.passing(1000), Some(Duration::from_micros(1)));
        assert_eq!(hosts.passing(0), Some(Duration::from_nanos(1)));
        assert_eq!(hosts.handling(1000), Duration::from_nanos(750));
    }

    #[test]
    fn who_always_straggles_is_drawn_by_share() {
        let stragglers = Stragglers { factor: 3.0, always: 0.25, ..Stragglers::default() };
        let hosts = Hosts { slower: 2.0, stragglers, ..Hosts::default() };
        let takes = |seed, node| {
            Pace::new(seed, node, &hosts.stragglers).takes(&hosts, Duration::ZERO, MILLI)
        };
        let all: Vec<_> = (0..1000).map(|node| takes(7, node)).collect();
        let slow = all.iter().filter(|&&took| took == 6 * MILLI).count();
        assert!((200..300).contains(&slow), "{slow}");
        assert!(all.iter().all(|&took| took == 6 * MILLI || took == 2 * MILLI));
        assert_ne!(all, (0..1000).map(|node| takes(8, node)).collect::<Vec<_>>());
    }

    /// Spells of a third of the time stretch everything by 1 + (factor - 1) / 3, however it is cut.
    #[test]
    fn spells_slow_down_by_their_share() {
        let (every, spell) = (2 * MILLI, MILLI);
        let stragglers = Stragglers { factor: 4.0, always: 0.0, every, spell };
        let hosts = Hosts { stragglers, ..Hosts::default() };
        let end_of = |work: Duration, times: u32| {
            let mut pace = Pace::new(3, 5, &hosts.stragglers);
            let mut now = Duration::ZERO;
            for _ in 0..times {
                now += pace.takes(&hosts, now, work);
            }
            now.as_secs_f64()
        };
        // Work proceeds at full speed in two thirds of the time and at a quarter of it in the rest:
        // 3/4 on average.
        let whole = end_of(20_000 * MILLI, 1);
        assert!((whole / 20.0 * 0.75 - 1.0).abs() < 0.05, "{whole}");
        let pieces = end_of(MILLI / 10, 200_000);
        assert!((pieces / whole - 1.0).abs() < 1e-3, "{pieces} {whole}");
    }
}
