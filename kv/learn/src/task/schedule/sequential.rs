//! One task after another, in the order in which they came: the baseline.

use std::collections::BTreeSet;

use super::{Schedule, Waiting, Workers};

/// Starts the next stage of the first task, once nothing runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sequential;

impl Schedule for Sequential {
    fn choose(
        &mut self,
        waiting: &[Waiting],
        mut workers: Workers,
    ) -> Vec<(usize, BTreeSet<usize>)> {
        if workers.free.len() < workers.all {
            return Vec::new();
        }
        let first = waiting.iter().min_by_key(|stage| stage.task);
        let chosen = |stage: &Waiting| Some((stage.task, workers.take(stage, &BTreeSet::new())?));
        first.and_then(chosen).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chosen, stages, workers};
    use super::*;

    #[test]
    fn the_next_task_starts_when_the_one_that_runs_has_ended() {
        let mut waiting = stages(&[2, 1, 4]);
        let starts = Sequential.choose(&waiting, workers(4, 0..4));
        assert_eq!(chosen(&starts), [(0, vec![0, 1])], "two workers stay idle");
        assert!(Sequential.choose(&waiting[1..], workers(4, 2..4)).is_empty(), "one task runs");
        // The first task's second stage has come after the others.
        waiting.rotate_left(1);
        assert_eq!(chosen(&Sequential.choose(&waiting, workers(4, 0..4))), [(0, vec![0, 1])]);
        assert!(Sequential.choose(&[], workers(4, 0..4)).is_empty());
    }
}
