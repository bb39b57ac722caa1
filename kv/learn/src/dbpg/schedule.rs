//! The scheduler's decisions: which task waits for which, the KKT filter's threshold, when to stop.
//!
//! Pure functions and one small state machine; sending tasks and gathering progress is elsewhere.

use std::ops::Range;

/// Threshold of the first pass: no gradient is so far inside its bound, so nothing is filtered.
pub const FILTER_OFF: f64 = 1e20;

/// Default share of the last pass's violation per example that the filter leaves as margin. A
/// larger value filters less.
pub const KKT_RATIO: f64 = 10.0;

/// Default number of passes between resets of the KKT filter.
pub const RESET_EVERY: u64 = 20;

/// A relative change of the objective of at most this counts as rounding, not as an increase.
const ROUNDING: f64 = 1e-13;

/// Most of ε left to gain after a pass that gained more than ε and still counts as settled.
const LEFT: f64 = 0.01;

/// The tasks that must have finished on a node before it may start `task` under bounded delay.
///
/// `first` is the number of the last task before training, which everything waits for; `delay` is
/// τ, the number of predecessors that may be outstanding. The list holds at most τ + 1 tasks, which
/// is enough: task - τ - 1 itself could start only after all tasks up to task - 2τ - 2. Empty for
/// `task <= first`.
pub fn wait_list(task: u64, first: u64, delay: u64) -> Range<u64> {
    if task <= first {
        return task..task;
    }
    let oldest = task.saturating_sub(delay.saturating_mul(2).saturating_add(1));
    let newest = task.saturating_sub(delay);
    oldest.max(first)..newest.max(first + 1)
}

/// Whether `delay` is so long, relative to the number of blocks, that full steps may diverge: an
/// eighth of the blocks or more. It deserves a warning and a learning rate below 1. If updates are
/// seldom that late, a long delay may still work. The bound comes from
/// kv/learn/docs/decisions/0004-delay.md.
pub fn delay_risks_divergence(delay: u64, blocks: usize) -> bool {
    delay > 0 && delay.saturating_mul(8) >= blocks as u64
}

/// The KKT filter's threshold for a pass, from the violation that the previous pass reported.
///
/// `None` for the first pass, which filters nothing; an infinite `ratio` never filters. `examples`
/// is the number of rows of all workers together.
pub fn kkt_threshold(previous_violation: Option<f64>, examples: u64, ratio: f64) -> f64 {
    match previous_violation {
        Some(violation) if ratio.is_finite() => violation / examples.max(1) as f64 * ratio,
        _ => FILTER_OFF,
    }
}

/// The scheduler's decision after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Another pass.
    Continue,
    /// Another pass, which first activates every coordinate again.
    Reset,
    /// Converged: the last pass began with all coordinates active and changed almost nothing.
    Done,
}

/// Decides when to stop: only after a pass that began with a reset of the KKT filter.
///
/// With rel = F_before / F - 1: a pass with 0 <= rel <= ε requests a reset, and stops if the
/// previous pass had requested it already; any other pass cancels the request. An increase never
/// stops. No change counts as convergence, as does an increase of the size of rounding; otherwise a
/// solution reached exactly (all weights 0, for example) would never end.
///
/// ε is compared with a pass's gain, which estimates what is left. Newton steps leave far less: if
/// gains fall from 1e-5 to little more than ε, the next one is not worth a pass. So a pass also
/// counts as settled if rel times ρ = rel / rel of the previous pass, which is the next gain if
/// gains keep falling by ρ, is at most a hundredth of ε. Passes that converge linearly never
/// qualify: it takes a ρ of a hundredth or less.
///
/// The authors reset only then. Once the violation is 0, so is their threshold, and a weight that
/// was filtered too early is missed while the others keep improving: with a small ε, for hundreds
/// of passes. [`StopRule::reset_every`] also requests a reset at regular intervals.
#[derive(Debug, Clone)]
pub struct StopRule {
    epsilon: f64,
    reset_every: Option<u64>,
    passes: u64,
    previous: Option<f64>,
    /// Gain of the previous pass, if it is known and above 0.
    gained: Option<f64>,
    reset_requested: bool,
}

impl StopRule {
    /// Stops at relative decreases of at most `epsilon` per pass.
    pub fn new(epsilon: f64) -> Self {
        Self {
            epsilon,
            reset_every: None,
            passes: 0,
            previous: None,
            gained: None,
            reset_requested: false,
        }
    }

    /// Also requests a reset after every `passes` passes; `None` as the authors do.
    pub fn reset_every(self, passes: Option<u64>) -> Self {
        Self { reset_every: passes, ..self }
    }

    /// Records the objective after a pass; returns the relative decrease (1 for the first pass) and
    /// what to do next.
    pub fn after_pass(&mut self, objective: f64) -> (f64, Stop) {
        self.passes += 1;
        let relative = match self.previous.replace(objective) {
            Some(previous) if previous == objective && objective.is_finite() => 0.0, // also 0 / 0
            Some(previous) => previous / objective - 1.0,
            None => return (1.0, Stop::Continue),
        };
        let gained = std::mem::replace(&mut self.gained, Some(relative).filter(|gain| *gain > 0.0));
        let next = gained.map_or(f64::INFINITY, |gained| relative * (relative / gained));
        let settled = (-ROUNDING..=self.epsilon).contains(&relative)
            || relative > 0.0 && next <= LEFT * self.epsilon;
        let stop = match (settled, self.reset_requested) {
            (true, true) => Stop::Done,
            (true, false) => Stop::Reset,
            (false, _) if self.reset_is_due() => Stop::Reset,
            (false, _) => Stop::Continue,
        };
        self.reset_requested = stop == Stop::Reset;
        (relative, stop)
    }

    /// Requests a reset besides the rule: the next pass begins with one, and may be the last.
    pub fn request_reset(&mut self) -> Stop {
        self.reset_requested = true;
        Stop::Reset
    }

    fn reset_is_due(&self) -> bool {
        self.reset_every.is_some_and(|every| self.passes.is_multiple_of(every.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(task: u64, delay: u64) -> Vec<u64> {
        wait_list(task, 0, delay).collect()
    }

    #[test]
    fn wait_lists_of_the_published_table() {
        for task in 1..20 {
            assert_eq!(waits(task, 0), [task - 1]);
        }
        let delay_1: [&[u64]; 5] = [&[0], &[0], &[0, 1], &[1, 2], &[2, 3]];
        for (task, expected) in (1..).zip(delay_1) {
            assert_eq!(waits(task, 1), expected, "task {task}");
        }
        let delay_2: [&[u64]; 6] = [&[0], &[0], &[0], &[0, 1], &[0, 1, 2], &[1, 2, 3]];
        for (task, expected) in (1..).zip(delay_2) {
            assert_eq!(waits(task, 2), expected, "task {task}");
        }
        for task in 1..=5 {
            assert_eq!(waits(task, 4), [0]);
        }
        assert_eq!(waits(6, 4), [0, 1]);
        assert_eq!(waits(9, 4), [0, 1, 2, 3, 4]);
        assert_eq!(waits(10, 4), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn wait_lists_start_at_the_last_task_before_training() {
        assert_eq!(wait_list(8, 7, 0), 7..8);
        assert_eq!(wait_list(9, 7, 3), 7..8);
        assert_eq!(wait_list(20, 7, 3), 13..17);
        assert!(wait_list(7, 7, 3).is_empty());
        assert!(wait_list(0, 0, 0).is_empty());
        assert_eq!(wait_list(u64::MAX, 0, u64::MAX), 0..1);
    }

    /// Waiting for the list alone must imply that all older tasks have finished.
    #[test]
    fn a_short_list_implies_all_older_tasks() {
        for delay in 0..9 {
            // implied[t]: how many of the tasks 0.. have certainly finished when t starts.
            let mut implied = vec![0u64];
            for task in 1..200u64 {
                let list = wait_list(task, 0, delay);
                assert!(list.end <= task && list.end - list.start <= delay + 1);
                assert!(implied[list.end as usize - 1] >= list.start, "gap below task {task}");
                assert!(list.end + delay >= task, "task {task} could start too early");
                implied.push(list.end);
            }
        }
    }

    #[test]
    fn an_eighth_of_the_blocks_is_a_risky_delay() {
        assert!(!delay_risks_divergence(0, 1));
        assert!(delay_risks_divergence(1, 8));
        assert!(!delay_risks_divergence(1, 9));
        assert!(delay_risks_divergence(u64::MAX, 5));
    }

    #[test]
    fn threshold_is_off_first_and_then_follows_the_violation() {
        assert_eq!(kkt_threshold(None, 200, KKT_RATIO), FILTER_OFF);
        assert!((kkt_threshold(Some(9.0), 200, KKT_RATIO) - 0.45).abs() < 1e-15);
        assert_eq!(kkt_threshold(Some(0.0), 200, KKT_RATIO), 0.0);
        assert_eq!(kkt_threshold(Some(0.0), 0, KKT_RATIO), 0.0);
        assert_eq!(kkt_threshold(Some(0.0), 200, f64::INFINITY), FILTER_OFF);
    }

    #[test]
    fn stops_only_after_a_pass_that_began_with_a_reset() {
        let mut rule = StopRule::new(1e-2);
        assert_eq!(rule.after_pass(100.0), (1.0, Stop::Continue));
        assert_eq!(rule.after_pass(90.0).1, Stop::Continue);
        assert_eq!(rule.after_pass(89.9).1, Stop::Reset);
        assert_eq!(rule.after_pass(80.0).1, Stop::Continue, "cancelled");
        assert_eq!(rule.after_pass(79.9).1, Stop::Reset);
        assert_eq!(rule.after_pass(79.9).1, Stop::Done, "no change counts as settled");
    }

    /// Gains of Newton steps: the last is above ε, and leaves far less than that.
    #[test]
    fn gains_that_fall_fast_are_settled_a_pass_sooner() {
        let after = |gains: [f64; 4]| {
            let mut rule = StopRule::new(1e-9);
            let objectives = gains.iter().scan(1.0, |objective, gain| {
                *objective /= 1.0 + gain;
                Some(*objective)
            });
            rule.after_pass(1.0);
            objectives.map(|objective| rule.after_pass(objective).1).last()
        };
        assert_eq!(after([7e-2, 2e-3, 1e-5, 1.1e-9]), Some(Stop::Reset));
        assert_eq!(after([7e-2, 2e-3, 1e-5, 2e-8]), Some(Stop::Continue));
        assert_eq!(after([1.6e-8, 8e-9, 4e-9, 2e-9]), Some(Stop::Continue), "a steady half");
        assert_eq!(after([2e-3, 1e-5, -1e-5, 1.1e-9]), Some(Stop::Continue), "after a rise");
    }

    #[test]
    fn an_increase_never_stops() {
        let mut rule = StopRule::new(1e-2);
        for objective in [10.0, 10.01, 10.02, 10.03] {
            assert_eq!(rule.after_pass(objective).1, Stop::Continue);
        }
        assert_eq!(rule.after_pass(10.03).1, Stop::Reset);
        assert_eq!(rule.after_pass(10.04).1, Stop::Continue);
        assert_eq!(rule.after_pass(f64::NAN).1, Stop::Continue);
        assert_eq!(rule.after_pass(f64::INFINITY).1, Stop::Continue);
    }

    #[test]
    fn resets_come_round_and_count_for_stopping() {
        let mut rule = StopRule::new(1e-2).reset_every(Some(2));
        let objectives = [100.0, 90.0, 80.0, 70.0, 69.9];
        let stops = objectives.map(|objective| rule.after_pass(objective).1);
        assert_eq!(stops, [Stop::Continue, Stop::Reset, Stop::Continue, Stop::Reset, Stop::Done]);
    }

    #[test]
    fn a_reset_asked_for_beside_the_rule_counts() {
        let mut rule = StopRule::new(1e-2);
        rule.after_pass(10.0);
        assert_eq!(rule.after_pass(5.0).1, Stop::Continue);
        assert_eq!(rule.request_reset(), Stop::Reset);
        assert_eq!(rule.after_pass(5.0).1, Stop::Done);
    }

    #[test]
    fn a_zero_objective_is_a_solution() {
        let mut rule = StopRule::new(0.0);
        rule.after_pass(0.0);
        assert_eq!(rule.after_pass(0.0), (0.0, Stop::Reset));
        assert_eq!(rule.after_pass(0.0), (0.0, Stop::Done));
    }
}
