//! Automatic parallelism: the number of workers of a task is found while it runs. Stages of equally
//! much work are tried with more and more workers, until one takes longer than the best; the number
//! that was best is kept.

use std::time::Duration;

/// Climbs from a few workers to the number with which a stage takes least time.
#[derive(Debug, Clone)]
pub struct Climb {
    next: usize,
    most: usize,
    step: usize,
    best: Option<(Duration, usize)>,
    has_ended: bool,
}

impl Climb {
    /// Tries `least` workers first, then `step` more at a time, and never more than `most`.
    ///
    /// # Errors
    /// If there is nothing to try: no workers, no step, or `least` above `most`.
    pub fn new(least: usize, most: usize, step: usize) -> Result<Self, String> {
        if least == 0 || step == 0 || least > most {
            let why = "it takes at least 1 worker, a step of at least 1, and no more than the most";
            return Err(format!("cannot climb from {least} by {step} to {most}: {why}"));
        }
        Ok(Climb { next: least, most, step, best: None, has_ended: false })
    }

    /// The number of workers of the next stage.
    pub fn workers(&self) -> usize {
        match self.best {
            Some((_, best)) if self.has_ended => best,
            _ => self.next,
        }
    }

    /// Whether the number does not change any more.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Records the time of a stage with that many workers.
    pub fn took(&mut self, time: Duration) {
        if self.has_ended {
            return;
        }
        let is_better = self.best.is_none_or(|(best, _)| time < best);
        if is_better {
            self.best = Some((time, self.next));
        }
        let next = (self.next + self.step).min(self.most);
        self.has_ended = !is_better || next == self.next;
        self.next = next;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Ten iterations: microseconds of work that workers share, of messages to each of them, and a
    /// part that nobody shares.
    fn simulated(work: u64, each: u64, workers: usize) -> Duration {
        let workers = workers as u64;
        Duration::from_nanos(10_000 * work / workers + 10_000 * (each * workers + 50))
    }

    #[test]
    fn it_ends_within_a_step_of_the_best_of_all_fixed_numbers() {
        for work in [0, 500, 10_000, 300_000, 5_000_000] {
            for each in [0, 10, 100, 1000] {
                for (least, step) in [(1, 1), (2, 3), (1, 8)] {
                    let time = |workers| simulated(work, each, workers);
                    let best = (1..=64).min_by_key(|workers| time(*workers)).unwrap();
                    let mut climb = Climb::new(least, 64, step).unwrap();
                    let mut stages = 0;
                    while !climb.has_ended() {
                        climb.took(time(climb.workers()));
                        stages += 1;
                    }
                    let found = climb.workers();
                    let gap = found.abs_diff(best);
                    let equal = time(found) == time(best);
                    assert!(gap <= step || equal, "{work} {each}: {found}, not {best}");
                    assert!(stages <= found / step + 3, "{stages} stages for {found}");
                    climb.took(Duration::ZERO);
                    assert_eq!(climb.workers(), found, "it is fixed");
                }
            }
        }
    }

    #[test]
    fn a_climb_without_anything_to_try_is_refused() {
        for (least, most, step) in [(0, 4, 1), (1, 4, 0), (5, 4, 1)] {
            assert!(Climb::new(least, most, step).unwrap_err().contains("cannot climb"));
        }
        let mut climb = Climb::new(4, 4, 1).unwrap();
        climb.took(Duration::ZERO);
        assert!(climb.has_ended() && climb.workers() == 4);
    }
}
