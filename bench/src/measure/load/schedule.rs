//! When requests are due.
//!
//! In an open loop they are due at times that no answer moves: users who know nothing of each other
//! do not wait for the slowest one. In a closed loop a request is due when there is room for it.

use std::time::Duration;

use caravan_kv::filter::Draws;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How requests of an open loop follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Arrivals {
    /// At random, as those of many independent users: a Poisson process.
    Random,
    /// At equal distances.
    Even,
}

/// The due times of one worker's requests, since the begin of a run.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    /// Seconds between two requests, on average; `None` in a closed loop.
    interval: Option<f64>,
    arrivals: Arrivals,
    draws: Draws,
    /// In seconds.
    next: f64,
}

impl Schedule {
    /// The part of worker `rank` of `workers`, which together make `rate` requests a second.
    pub(super) fn new(
        rate: Option<f64>,
        arrivals: Arrivals,
        rank: usize,
        workers: usize,
        draws: Draws,
    ) -> Schedule {
        let interval = rate.map(|rate| workers as f64 / rate);
        // Even ones of several workers are even together.
        let next = interval.map_or(0.0, |interval| interval * rank as f64 / workers as f64);
        let mut schedule = Schedule { interval, arrivals, draws, next };
        if arrivals == Arrivals::Random {
            schedule.next = 0.0;
            schedule.advance();
        }
        schedule
    }

    /// When the next request is due, if it is `now`.
    pub(super) fn due(&self, now: Duration) -> Duration {
        self.interval
            .map_or(now, |_| Duration::try_from_secs_f64(self.next).unwrap_or(Duration::MAX))
    }

    /// Goes on to the one after it.
    pub(super) fn advance(&mut self) {
        let Some(interval) = self.interval else { return };
        self.next += match self.arrivals {
            Arrivals::Even => interval,
            Arrivals::Random => -interval * (1.0 - self.draws.next_unit()).ln(),
        };
    }

    /// How many are due before `end` from the next one on, of random ones as many as there are on
    /// average; in a closed loop none. A loop over them would take longer than the run if they are
    /// far more than can be sent.
    pub(super) fn left(&self, end: Duration) -> u64 {
        let Some(interval) = self.interval else { return 0 };
        ((end.as_secs_f64() - self.next) / interval).max(0.0).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, rank: usize, workers: usize, count: usize) -> Vec<f64> {
        let draws = Draws::new(1, rank as u64);
        let mut schedule = Schedule::new(Some(1000.0), arrivals, rank, workers, draws);
        let next = |_| {
            let due = schedule.due(Duration::ZERO).as_secs_f64();
            schedule.advance();
            due
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn even_requests_of_workers_are_even_together() {
        let mut all: Vec<f64> =
            (0..4).flat_map(|rank| times(Arrivals::Even, rank, 4, 100)).collect();
        all.sort_by(f64::total_cmp);
        assert!(all.windows(2).all(|pair| (pair[1] - pair[0] - 1e-3).abs() < 1e-8));
    }

    /// Goal: random arrivals are those of a Poisson process. Method: the gaps have the mean, the
    /// deviation and the share above the mean (1/e) of an exponential distribution.
    #[test]
    fn random_requests_come_as_those_of_many_users() {
        let times = times(Arrivals::Random, 0, 1, 100_001);
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) * 1e3).collect();
        let count = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / count;
        let square = gaps.iter().map(|gap| gap * gap).sum::<f64>() / count;
        let above = gaps.iter().filter(|gap| **gap > 1.0).count() as f64 / count;
        assert!((mean - 1.0).abs() < 0.02 && (square - 2.0).abs() < 0.1, "{mean} {square}");
        assert!((above - (-1.0_f64).exp()).abs() < 0.01, "{above}");
    }

    #[test]
    fn what_is_left_is_counted() {
        let draws = Draws::new(1, 1);
        let even = Schedule::new(Some(1000.0), Arrivals::Even, 0, 1, draws);
        assert_eq!(even.left(Duration::from_micros(99_500)), 100);
        let many = Schedule::new(Some(1e9), Arrivals::Random, 0, 1, draws);
        let left = many.left(Duration::from_secs(86_400));
        assert!(left.abs_diff(86_400_000_000_000) < 1000, "{left}");
        let closed = Schedule::new(None, Arrivals::Random, 0, 1, draws);
        assert_eq!(closed.due(Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(closed.left(Duration::from_secs(3)), 0);
    }
}
