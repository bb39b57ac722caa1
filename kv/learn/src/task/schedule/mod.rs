//! Which waiting stages start, and at which workers. One strategy a file.

mod greedy;
mod priority;
mod sequential;

use std::collections::{BTreeMap, BTreeSet};

pub use self::greedy::Greedy;
pub use self::priority::Priority;
pub use self::sequential::Sequential;
use super::place::Wants;

/// A stage that waits for workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Number of its task, which are counted in the order in which they came.
    pub task: usize,
    /// The workers that it wants.
    pub wants: Wants,
    /// How many stages of the task each worker has run.
    pub visits: BTreeMap<usize, u64>,
}

/// The workers of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    /// Number of all.
    pub all: usize,
    /// Those that run no stage.
    pub free: BTreeSet<usize>,
}

impl Workers {
    /// Takes free workers for a stage, except those `kept`; `None` if they are too few.
    fn take(&mut self, stage: &Waiting, kept: &BTreeSet<usize>) -> Option<BTreeSet<usize>> {
        let from = &self.free - kept;
        let chosen = stage.wants.choose(&from, self.all, &stage.visits)?;
        self.free = &self.free - &chosen;
        Some(chosen)
    }
}

/// A strategy.
pub trait Schedule {
    /// Chooses stages to start, by their tasks, with their workers. `waiting` is in the order in
    /// which the stages came; a task has one of them at most.
    fn choose(&mut self, waiting: &[Waiting], workers: Workers) -> Vec<(usize, BTreeSet<usize>)>;
}

#[cfg(test)]
mod testing {
    use super::*;

    /// Stages that want any so many workers, of tasks numbered from 0.
    pub(super) fn stages(counts: &[usize]) -> Vec<Waiting> {
        let stage = |(task, count): (usize, &usize)| Waiting {
            task,
            wants: Wants::Any(*count),
            visits: BTreeMap::new(),
        };
        counts.iter().enumerate().map(stage).collect()
    }

    pub(super) fn workers(all: usize, free: impl IntoIterator<Item = usize>) -> Workers {
        Workers { all, free: free.into_iter().collect() }
    }

    pub(super) fn chosen(starts: &[(usize, BTreeSet<usize>)]) -> Vec<(usize, Vec<usize>)> {
        starts.iter().map(|(task, set)| (*task, set.iter().copied().collect())).collect()
    }
}
