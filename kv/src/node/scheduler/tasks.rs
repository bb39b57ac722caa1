//! The tasks of a job: which workers have yet to report, and what the others have reported.

use std::collections::BTreeMap;

use caravan_van::PeerId;

use super::super::control::{Report, Waited};

/// What a task does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// Runs this app.
    App(String),
    /// Ends this job.
    Forgets(String),
}

/// All tasks that run, or that their drivers have not waited for.
#[derive(Default)]
pub(super) struct Tasks {
    running: BTreeMap<u64, Running>,
    count: u64,
}

struct Running {
    /// The driver that waits for it; `None` once that is gone.
    owner: Option<PeerId>,
    /// The app that it runs, or the job that it forgets.
    what: What,
    missing: Vec<usize>,
    reports: BTreeMap<usize, Report>,
}

impl Tasks {
    /// The next number, for a task or another order.
    pub(super) fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Adds a task that the workers `ranks` run for `owner`.
    pub(super) fn add(
        &mut self,
        number: u64,
        owner: Option<PeerId>,
        what: What,
        ranks: Vec<usize>,
    ) {
        let reports = BTreeMap::new();
        self.running.insert(number, Running { owner, what, missing: ranks, reports });
        self.drop_unwanted();
    }

    /// Records that a driver is gone: nobody waits for its tasks.
    pub(super) fn disown(&mut self, driver: PeerId) {
        let of_driver = |running: &&mut Running| running.owner == Some(driver);
        self.running.values_mut().filter(of_driver).for_each(|running| running.owner = None);
        self.drop_unwanted();
    }

    /// Whether workers still end a job of this name.
    pub(super) fn forgets(&self, job: &str) -> bool {
        let is_it = |what: &What| matches!(what, What::Forgets(of) if of == job);
        self.running.values().any(|running| is_it(&running.what) && !running.missing.is_empty())
    }

    /// Removes tasks that are done and that nobody waits for.
    fn drop_unwanted(&mut self) {
        self.running.retain(|_, running| running.owner.is_some() || !running.missing.is_empty());
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
        self.drop_unwanted();
    }

    /// Records that a worker was lost: its tasks go on without it. One of its own has failed.
    pub(super) fn lose(&mut self, rank: usize) {
        for running in self.running.values_mut() {
            if !running.missing.contains(&rank) {
                continue;
            }
            running.missing.retain(|missing| *missing != rank);
            if running.missing.is_empty() && running.reports.is_empty() {
                running.reports.insert(rank, Err("it was lost".to_owned()));
            }
        }
        self.drop_unwanted();
    }

    /// Takes the outcome of a driver's task; `None` while it runs.
    pub(super) fn take(&mut self, number: u64, driver: PeerId) -> Option<Waited> {
        let own = self.running.get(&number).filter(|running| running.owner == Some(driver));
        match own {
            None => return Some(Waited::Unknown),
            Some(running) if !running.missing.is_empty() => return None,
            Some(_) => {}
        }
        let Running { what, reports, .. } = self.running.remove(&number)?;
        let app = match what {
            What::App(app) => app,
            What::Forgets(job) => format!("ending the job {job}"),
        };
        Some(Waited::Done { app, reports })
    }
}
