//! As greedy, but nothing waits for ever.
//!
//! A stage that is passed over often enough becomes *angry*: workers are kept for it, and nothing
//! else starts there. Of stages that are angry the first comes first. So the first angry stage
//! starts when the stages that ran at its workers have ended, each of which had begun before.

use std::collections::{BTreeMap, BTreeSet};

use super::{Schedule, Waiting, Workers};

/// Starts first what has been passed over most often.
#[derive(Debug, Clone)]
pub struct Priority {
    /// A stage that was passed over so often is angry.
    angry_at: u32,
    /// How often each task's stage was passed over.
    passed_over: BTreeMap<usize, u32>,
    /// The workers that are kept for angry stages, by task.
    kept: BTreeMap<usize, BTreeSet<usize>>,
    /// Tasks with angry stages, in the order in which they became so.
    angry: Vec<usize>,
}

impl Default for Priority {
    fn default() -> Self {
        Priority::new(5)
    }
}

impl Priority {
    /// A stage is angry once it was passed over `angry_at` times.
    pub fn new(angry_at: u32) -> Self {
        let (passed_over, kept) = (BTreeMap::new(), BTreeMap::new());
        Priority { angry_at, passed_over, kept, angry: Vec::new() }
    }

    fn times(&self, task: usize) -> u32 {
        self.passed_over.get(&task).copied().unwrap_or(0)
    }

    /// Workers kept for other tasks than this.
    fn kept_from(&self, task: usize) -> BTreeSet<usize> {
        let others = self.kept.iter().filter(|(of, _)| **of != task);
        others.flat_map(|(_, workers)| workers.iter().copied()).collect()
    }

    /// Keeps workers for an angry stage: free ones first, and those that will be.
    fn keep(&mut self, stage: &Waiting, workers: &Workers) {
        let others = self.kept_from(stage.task);
        let from: BTreeSet<usize> = (0..workers.all).filter(|it| !others.contains(it)).collect();
        // Busy workers count as visited most.
        let mut visits = stage.visits.clone();
        for busy in from.difference(&workers.free) {
            *visits.entry(*busy).or_insert(0) += 1 << 32;
        }
        if let Some(chosen) = stage.wants.choose(&from, workers.all, &visits) {
            self.kept.insert(stage.task, chosen);
        }
    }

    fn start(&mut self, stage: &Waiting, workers: &mut Workers) -> Option<BTreeSet<usize>> {
        let chosen = workers.take(stage, &self.kept_from(stage.task))?;
        self.passed_over.remove(&stage.task);
        self.kept.remove(&stage.task);
        self.angry.retain(|task| *task != stage.task);
        Some(chosen)
    }
}

impl Schedule for Priority {
    fn choose(
        &mut self,
        waiting: &[Waiting],
        mut workers: Workers,
    ) -> Vec<(usize, BTreeSet<usize>)> {
        // A task that was given up waits no longer.
        let waits = |task: &usize| waiting.iter().any(|stage| stage.task == *task);
        self.passed_over.retain(|task, _| waits(task));
        self.kept.retain(|task, _| waits(task));
        self.angry.retain(waits);
        let mut order: Vec<&Waiting> = waiting.iter().collect();
        let place = |task| self.angry.iter().position(|it| *it == task).unwrap_or(usize::MAX);
        order.sort_by_key(|stage| (place(stage.task), std::cmp::Reverse(self.times(stage.task))));
        let mut starts = Vec::new();
        for stage in order {
            if let Some(chosen) = self.start(stage, &mut workers) {
                starts.push((stage.task, chosen));
                continue;
            }
            let times = self.passed_over.entry(stage.task).or_insert(0);
            *times += 1;
            if *times >= self.angry_at && !self.angry.contains(&stage.task) {
                self.angry.push(stage.task);
            }
            if self.angry.contains(&stage.task) && !self.kept.contains_key(&stage.task) {
                self.keep(stage, &workers);
            }
        }
        starts
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chosen, stages, workers};
    use super::*;

    #[test]
    fn the_stage_that_was_passed_over_most_comes_first() {
        let mut priority = Priority::new(5);
        let waiting = stages(&[3, 2]);
        assert!(priority.choose(&waiting[..1], workers(3, [0])).is_empty());
        assert_eq!(chosen(&priority.choose(&waiting[1..], workers(3, [0, 1]))), [(1, vec![0, 1])]);
        let mut waiting = stages(&[1, 1]);
        assert!(priority.choose(&waiting[1..], workers(3, [])).is_empty());
        waiting.reverse();
        let starts = priority.choose(&waiting, workers(3, [2]));
        assert_eq!(chosen(&starts), [(1, vec![2])]);
    }

    #[test]
    fn workers_are_kept_for_an_angry_stage() {
        let mut priority = Priority::new(2);
        let waiting = stages(&[3, 1]);
        for _ in 0..2 {
            assert!(priority.choose(&waiting[..1], workers(4, [2])).is_empty());
        }
        // It is angry, and workers 0, 1 and 2 are its own: free ones first.
        assert!(priority.choose(&waiting, workers(4, [0, 2])).is_empty());
        assert_eq!(chosen(&priority.choose(&waiting, workers(4, [0, 2, 3]))), [(0, vec![0, 2, 3])]);
        // The one that waits has been passed over, and is angry now as well.
        assert_eq!(chosen(&priority.choose(&waiting[1..], workers(4, [1]))), [(1, vec![1])]);
        assert!(priority.passed_over.is_empty() && priority.kept.is_empty());
    }

    #[test]
    fn what_is_kept_for_a_task_that_is_gone_is_free_again() {
        let mut priority = Priority::new(1);
        let waiting = stages(&[2, 1]);
        assert!(priority.choose(&waiting[..1], workers(2, [0])).is_empty());
        assert!(priority.choose(&waiting, workers(2, [0])).is_empty(), "both are kept");
        assert_eq!(chosen(&priority.choose(&waiting[1..], workers(2, [0]))), [(1, vec![0])]);
    }
}
