//! Which workers are slow, by the iterations that they tell with their heartbeats.
//!
//! Workers under SSP or BSP cannot run away from a slow one: they are ahead of it by an iteration
//! or less, but for much of the time. So it is the mean distance over the last heartbeats that
//! counts. Heartbeats come at different times; between two of them an iteration is interpolated, so
//! that all are compared at one time.
//!
//! A heartbeat tells whole iterations. The parts that are missing average out as long as heartbeats
//! come in all phases of an iteration. Where their period is a multiple of the iteration's, to a
//! percent or so, equal workers may seem to be up to an iteration apart.

use std::collections::BTreeMap;
use std::time::Duration;

/// A worker is slow from this many iterations behind the middle one.
const SLOW: f64 = 0.5;

/// It is slow no longer below this many.
const RECOVERED: f64 = 0.25;

/// Share of the newest look in the mean distance: that of about eight looks.
const NEWEST: f64 = 0.125;

/// The paces of all workers that run something, by rank.
#[derive(Default)]
pub(super) struct Paces {
    workers: BTreeMap<usize, Pace>,
    judged: Duration,
}

#[derive(Default, Clone, Copy)]
struct Pace {
    before: Sign,
    last: Sign,
    behind: f64,
    is_slow: bool,
}

/// An iteration and when it was told, in seconds.
#[derive(Default, Clone, Copy)]
struct Sign {
    at: f64,
    clock: f64,
}

/// A worker that has become slow, or has recovered.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    pub(super) rank: usize,
    pub(super) behind: f64,
    pub(super) is_slow: bool,
}

impl Pace {
    /// The iteration at a time between the last two signs; `None` at other times, or with one sign.
    fn clock_at(&self, at: f64) -> Option<f64> {
        let Pace { before, last, .. } = self;
        let part = (at - before.at) / (last.at - before.at);
        let is_between = (0.0..=1.0).contains(&part);
        is_between.then_some(before.clock + (last.clock - before.clock) * part)
    }
}

impl Paces {
    /// Records that a worker is in this iteration at time `now`.
    pub(super) fn enter(&mut self, rank: usize, clock: u64, now: Duration) {
        let sign = Sign { at: now.as_secs_f64(), clock: clock as f64 };
        let first = Pace { before: sign, last: sign, ..Pace::default() };
        let pace = self.workers.entry(rank).or_insert(first);
        // A smaller one belongs to another job.
        let before = if sign.clock < pace.last.clock { sign } else { pace.last };
        *pace = Pace { before, last: sign, ..*pace };
    }

    /// How far a worker is behind, and whether it is slow.
    pub(super) fn of(&self, rank: usize) -> (f64, bool) {
        self.workers.get(&rank).map_or((0.0, false), |pace| (pace.behind, pace.is_slow))
    }

    /// Compares the workers that are busy, once in `every`; returns those that have become slow or
    /// recovered. Others are forgotten: nobody waits for them.
    pub(super) fn judge(
        &mut self,
        now: Duration,
        every: Duration,
        is_busy: impl Fn(usize) -> bool,
    ) -> Vec<Change> {
        if now < self.judged + every {
            return Vec::new();
        }
        self.judged = now;
        self.workers.retain(|rank, _| is_busy(*rank));
        let at = self.workers.values().map(|pace| pace.last.at).fold(f64::INFINITY, f64::min);
        let known = self.workers.values().filter_map(|pace| pace.clock_at(at));
        let mut clocks: Vec<f64> = known.collect();
        clocks.sort_by(f64::total_cmp);
        let Some(&middle) = clocks.get(clocks.len() / 2) else { return Vec::new() };
        let mut changes = Vec::new();
        for (&rank, pace) in &mut self.workers {
            let Some(clock) = pace.clock_at(at) else { continue };
            pace.behind += NEWEST * (middle - clock - pace.behind);
            let is_slow = pace.behind >= if pace.is_slow { RECOVERED } else { SLOW };
            if is_slow != pace.is_slow {
                pace.is_slow = is_slow;
                changes.push(Change { rank, behind: pace.behind, is_slow });
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_secs(1);

    /// Runs 4 workers, whose iterations at a time in seconds `clock` tells, for `seconds`; returns
    /// all changes. Their heartbeats are out of step, and late by up to a quarter of a second.
    fn changes(seconds: u64, clock: impl Fn(usize, f64) -> f64) -> Vec<(usize, bool)> {
        let mut paces = Paces::default();
        let mut all = Vec::new();
        for step in 0..seconds * 4 {
            let late = (step as f64 * 0.618).fract() * 0.249;
            let now = Duration::from_secs_f64(step as f64 * 0.25 + late);
            let rank = (step % 4) as usize;
            paces.enter(rank, clock(rank, now.as_secs_f64()) as u64, now);
            all.extend(paces.judge(now, BEAT, |_| true));
        }
        all.into_iter().map(|change| (change.rank, change.is_slow)).collect()
    }

    #[test]
    fn equal_workers_are_not_slow_however_they_are_synchronized() {
        for iterations_a_second in [0.1, 0.7, 3.0, 100.0] {
            let freely = changes(200, |_, at| at * iterations_a_second);
            assert_eq!(freely, [], "{iterations_a_second}");
            // Each is a tenth of an iteration later than the one before.
            let later = changes(200, |rank, at| at * iterations_a_second - rank as f64 * 0.1);
            assert_eq!(later, [], "{iterations_a_second}");
        }
    }

    #[test]
    fn the_worker_for_which_others_wait_at_barriers_is_slow() {
        // An iteration takes worker 2 all of its time, and the others a fifth; then all wait.
        for iterations_a_second in [0.2, 0.7, 3.0, 100.0] {
            let found = changes(200, |rank, at| {
                let at = at * iterations_a_second;
                let done_at = if rank == 2 { 1.0 } else { 0.2 };
                at.floor() + if at.fract() >= done_at { 1.0 } else { 0.0 }
            });
            assert_eq!(found, [(2, true)], "{iterations_a_second}");
        }
    }

    #[test]
    fn a_worker_that_falls_behind_is_slow_until_it_has_caught_up() {
        let found = changes(400, |rank, at| match rank {
            1 if at < 100.0 => at * 5.0,
            1 => (500.0 + (at - 100.0) * 20.0).min(at * 10.0),
            _ => at * 10.0,
        });
        assert_eq!(found, [(1, true), (1, false)]);
    }

    #[test]
    fn who_has_nothing_to_do_is_forgotten() {
        let mut paces = Paces::default();
        for second in 1..100 {
            let now = Duration::from_secs(second);
            paces.enter(0, second * 10, now);
            paces.enter(1, 50, now);
            assert_eq!(paces.judge(now, BEAT, |rank| rank == 0), []);
        }
        assert_eq!(paces.of(1), (0.0, false));
    }
}
