//! The tasks of a job: which workers have yet to report, and what the others have reported.

use std::collections::BTreeMap;

use super::super::control::{Report, Waited};

/// All tasks that the driver has not waited for.
#[derive(Default)]
pub(super) struct Tasks {
    running: BTreeMap<u64, Running>,
    count: u64,
}

struct Running {
    app: String,
    missing: Vec<usize>,
    reports: BTreeMap<usize, Report>,
}

impl Tasks {
    /// The next number, for a task or another order.
    pub(super) fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Adds a task that the workers `ranks` run.
    pub(super) fn add(&mut self, number: u64, app: String, ranks: Vec<usize>) {
        self.running.insert(number, Running { app, missing: ranks, reports: BTreeMap::new() });
    }

    /// Number of tasks that a worker has not finished.
    pub(super) fn load(&self, rank: usize) -> usize {
        self.running.values().filter(|running| running.missing.contains(&rank)).count()
    }

    /// Whether the worker of this rank runs this task.
    pub(super) fn is_run_by(&self, number: u64, rank: usize) -> bool {
        self.running.get(&number).is_some_and(|running| running.missing.contains(&rank))
    }

    /// Records a worker's result.
    pub(super) fn report(&mut self, number: u64, rank: usize, report: Report) {
        if let Some(running) = self.running.get_mut(&number) {
            running.reports.insert(rank, report);
            running.missing.retain(|missing| *missing != rank);
        }
    }

    /// Takes the outcome of a task; `None` while it runs.
    pub(super) fn take(&mut self, number: u64) -> Option<Waited> {
        match self.running.get(&number) {
            Some(running) if !running.missing.is_empty() => None,
            _ => Some(self.running.remove(&number).map_or(Waited::Unknown, |running| {
                Waited::Done { app: running.app, reports: running.reports }
            })),
        }
    }
}
