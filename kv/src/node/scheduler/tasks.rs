//! Tasks of drivers: which wait for others, which workers run them, and what those have reported.
//!
//! This is the task model of Li et al., "Scaling Distributed Machine Learning with the Parameter
//! Server", OSDI 2014, section 3.4. A task is finished at a worker when that has reported and all
//! sub-tasks that it has started there are finished everywhere. A task that waits for others starts
//! at a worker when they are finished there, or everywhere if that worker does not run them. A
//! virtual task is run by nobody, and is finished when its driver says so.
//!
//! Workers of a task may wait for each other. When one has failed at it, the others are told, so
//! that they do not wait for what will never come.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::control::{Failure, Order, Report, Waited};
use super::super::session::SessionId;

/// What a task does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum What {
    /// Runs this app.
    App(String),
    /// Ends this job.
    Forgets(String),
    /// Nothing: its driver finishes it.
    Virtual,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::App(app) => f.write_str(app),
            What::Forgets(job) => write!(f, "ending the job {job}"),
            What::Virtual => f.write_str("a virtual task"),
        }
    }
}

/// A task that is to be added.
#[derive(Serialize, Deserialize)]
pub(super) struct NewTask {
    /// The driver that waits for it, or for the task that it is a part of; `None` if nobody does.
    pub(super) owner: Option<SessionId>,
    pub(super) what: What,
    /// The workers that run it.
    pub(super) ranks: Vec<usize>,
    /// What they are told; `None` for a virtual task.
    pub(super) order: Option<Order>,
    /// The tasks that it waits for.
    pub(super) after: Vec<u64>,
    /// The task that it is a part of, at the worker that has started it.
    pub(super) parent: Option<At>,
}

/// A task at a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct At {
    pub(super) task: u64,
    pub(super) rank: usize,
}

/// All tasks that are not finished, or that their drivers have not waited for.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Tasks {
    running: BTreeMap<u64, Running>,
    /// Number of tasks that each worker has been told and has not reported.
    loads: BTreeMap<usize, usize>,
    count: u64,
    /// Workers that are to hear of a failure.
    unheard: Vec<Unheard>,
}

/// A worker that is to hear that another has failed at a task that it has been told.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Unheard {
    pub(super) rank: usize,
    pub(super) failure: Failure,
}

#[derive(Serialize, Deserialize)]
struct Running {
    task: NewTask,
    /// Workers that have not been told.
    unsent: Vec<usize>,
    /// Workers at which it is not finished.
    missing: Vec<usize>,
    reports: BTreeMap<usize, Report>,
    /// Number of unfinished sub-tasks of each worker, and why one has failed.
    parts: BTreeMap<usize, usize>,
    failed: BTreeMap<usize, String>,
    /// The first worker that has reported that it has failed.
    failure: Option<Failure>,
}

/// Stands for the driver among the workers of a virtual task.
const DRIVER: usize = usize::MAX;

impl Running {
    /// Whether a worker has been told, and has not reported.
    fn is_run_by(&self, rank: usize) -> bool {
        self.missing.contains(&rank)
            && !self.unsent.contains(&rank)
            && !self.reports.contains_key(&rank)
    }

    /// Whether it is finished, as far as a task at worker `rank` waits for it.
    fn is_finished_for(&self, rank: usize) -> bool {
        match self.task.ranks.contains(&rank) {
            true => !self.missing.contains(&rank),
            false => self.missing.is_empty(),
        }
    }

    /// Records that a worker has failed; returns the others that run it, if it is the first.
    fn fail(&mut self, task: u64, rank: usize, why: String) -> Vec<Unheard> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let app = self.task.what.to_string();
        let failure = self.failure.insert(Failure { task, app, rank, why }).clone();
        let others = self.missing.iter().filter(|other| self.is_run_by(**other));
        others.map(|other| Unheard { rank: *other, failure: failure.clone() }).collect()
    }

    /// Finishes it at a worker that has reported and has no unfinished sub-tasks.
    fn finish_if_done(&mut self, rank: usize) {
        if !self.reports.contains_key(&rank) || self.parts.contains_key(&rank) {
            return;
        }
        self.missing.retain(|missing| *missing != rank);
        if let Some(why) = self.failed.remove(&rank) {
            let report = self.reports.entry(rank).or_insert_with(|| Err(why.clone()));
            if report.is_ok() {
                *report = Err(why);
            }
        }
    }
}

impl Tasks {
    /// The next number, for a task or another order.
    pub(super) fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Number of tasks that are known.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// The first number in `after` that no task has had.
    pub(super) fn first_unknown(&self, after: &[u64]) -> Option<u64> {
        after.iter().copied().find(|number| *number == 0 || *number > self.count)
    }

    /// Adds a task, which [`Tasks::next_ready`] returns when its turn has come; returns its number.
    pub(super) fn add(&mut self, task: NewTask) -> u64 {
        let number = self.next_number();
        if let Some(At { task, rank }) = task.parent
            && let Some(parent) = self.running.get_mut(&task)
        {
            *parent.parts.entry(rank).or_insert(0) += 1;
        }
        let unsent = task.ranks.clone();
        let missing = if task.what == What::Virtual { vec![DRIVER] } else { unsent.clone() };
        let (reports, parts, failed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let running = Running { task, unsent, missing, reports, parts, failed, failure: None };
        self.running.insert(number, running);
        self.settle();
        number
    }

    /// Takes the next order that a worker can be told now. A worker that has `most` tasks gets no
    /// other.
    pub(super) fn next_ready(&mut self, most: usize) -> Option<(At, Order)> {
        let is_ready = |running: &Running, rank: usize| {
            let is_finished = |number| {
                let other: Option<&Running> = self.running.get(number);
                other.is_none_or(|other| other.is_finished_for(rank))
            };
            self.load(rank) < most && running.task.after.iter().all(is_finished)
        };
        let at = self.running.iter().find_map(|(number, running)| {
            let rank = running.unsent.iter().find(|rank| is_ready(running, **rank))?;
            Some(At { task: *number, rank: *rank })
        })?;
        let running = self.running.get_mut(&at.task)?;
        running.unsent.retain(|rank| *rank != at.rank);
        let failure = running.failure.clone();
        self.unheard.extend(failure.map(|failure| Unheard { rank: at.rank, failure }));
        *self.loads.entry(at.rank).or_insert(0) += 1;
        Some((at, running.task.order.clone()?))
    }

    /// Finishes a driver's virtual task; returns false if it has none of this number.
    pub(super) fn finish_virtual(&mut self, number: u64, driver: SessionId) -> bool {
        let own = self.running.get_mut(&number).filter(|running| {
            running.task.owner == Some(driver) && running.task.what == What::Virtual
        });
        let is_there = own.is_some();
        own.into_iter().for_each(|running| running.missing.clear());
        self.settle();
        is_there
    }

    /// Records that a driver is gone: nobody waits for its tasks, and those that have not been sent
    /// are not.
    pub(super) fn disown(&mut self, driver: SessionId) {
        for running in self.running.values_mut() {
            if running.task.owner != Some(driver) {
                continue;
            }
            running.task.owner = None;
            let Running { unsent, missing, .. } = running;
            missing.retain(|rank| *rank != DRIVER && !unsent.contains(rank));
            unsent.clear();
        }
        self.settle();
    }

    /// Records that a worker was lost: its tasks go on without it. One of its own has failed.
    pub(super) fn lose(&mut self, rank: usize) {
        self.loads.remove(&rank);
        for running in self.running.values_mut() {
            if !running.missing.contains(&rank) {
                continue;
            }
            running.missing.retain(|missing| *missing != rank);
            running.unsent.retain(|unsent| *unsent != rank);
            if running.missing.is_empty() && running.reports.is_empty() {
                running.reports.insert(rank, Err("it was lost".to_owned()));
            }
        }
        self.settle();
    }

    /// Whether workers still end a job of this name.
    pub(super) fn forgets(&self, job: &str) -> bool {
        let is_it = |what: &What| matches!(what, What::Forgets(of) if of == job);
        self.running.values().any(|it| is_it(&it.task.what) && !it.missing.is_empty())
    }

    /// The job of each task that is not finished, and the workers that have been told it and have
    /// not finished.
    pub(super) fn of_jobs(&self) -> impl Iterator<Item = (&str, Vec<usize>)> {
        let unfinished = self.running.values().filter(|it| !it.missing.is_empty());
        unfinished.filter_map(|it| {
            let (Order::Run { job, .. } | Order::Steps { job, .. } | Order::Forget { job, .. }) =
                it.task.order.as_ref()?
            else {
                return None;
            };
            let told = it.missing.iter().filter(|rank| !it.unsent.contains(rank));
            Some((job.as_str(), told.copied().collect()))
        })
    }

    /// Number of tasks that a worker has been told and has not reported.
    pub(super) fn load(&self, rank: usize) -> usize {
        self.loads.get(&rank).copied().unwrap_or(0)
    }

    /// Whether the worker of this rank runs this task.
    pub(super) fn is_run_by(&self, number: u64, rank: usize) -> bool {
        self.running.get(&number).is_some_and(|running| running.is_run_by(rank))
    }

    /// The workers that run a task or have run it, without those that were lost meanwhile.
    pub(super) fn ranks(&self, number: u64) -> BTreeSet<usize> {
        let running = self.running.get(&number);
        let both = running.map(|it| it.missing.iter().chain(it.reports.keys()).copied());
        both.into_iter().flatten().collect()
    }

    /// Whether a driver's wait for this task ends at once, because it is done or unknown.
    pub(super) fn is_done(&self, number: u64, driver: SessionId) -> bool {
        let own = self.running.get(&number).filter(|it| it.task.owner == Some(driver));
        own.is_none_or(|running| running.missing.is_empty())
    }

    /// The driver and the job of a task that this worker runs, unless nobody waits for it.
    pub(super) fn run_by(&self, at: At) -> Option<(SessionId, String)> {
        let running = self.running.get(&at.task).filter(|running| running.is_run_by(at.rank))?;
        let job = match running.task.order.as_ref()? {
            Order::Run { job, .. } | Order::Steps { job, .. } => job.clone(),
            _ => return None,
        };
        Some((running.task.owner?, job))
    }

    /// Takes the workers that are to hear that others have failed.
    pub(super) fn take_unheard(&mut self) -> Vec<Unheard> {
        std::mem::take(&mut self.unheard)
    }

    /// Records a worker's result.
    pub(super) fn report(&mut self, number: u64, rank: usize, report: Report) {
        if let Some(running) = self.running.get_mut(&number) {
            if let Some(load) = self.loads.get_mut(&rank).filter(|_| running.is_run_by(rank)) {
                *load -= 1;
            }
            let why = report.as_ref().err().cloned();
            running.reports.insert(rank, report);
            self.unheard.extend(why.into_iter().flat_map(|why| running.fail(number, rank, why)));
            running.finish_if_done(rank);
        }
        self.settle();
    }

    /// Records finished sub-tasks at their parents, and removes tasks that are finished and that
    /// nobody waits for.
    fn settle(&mut self) {
        let is_finished_part =
            |(_, it): &(&u64, &Running)| it.missing.is_empty() && it.task.parent.is_some();
        while let Some((&number, _)) = self.running.iter().find(is_finished_part) {
            let Some(Running { task, reports, .. }) = self.running.remove(&number) else { return };
            let Some(At { task: parent, rank }) = task.parent else { return };
            let Some(parent) = self.running.get_mut(&parent) else { continue };
            let failure = reports.iter().find_map(|(at, report)| {
                let why = report.as_ref().err()?;
                Some(format!("its sub-task at worker {at} failed: {why}"))
            });
            failure.into_iter().for_each(|why| drop(parent.failed.insert(rank, why)));
            if let Some(count) = parent.parts.get_mut(&rank) {
                *count -= 1;
                if *count == 0 {
                    parent.parts.remove(&rank);
                }
            }
            parent.finish_if_done(rank);
        }
        let is_wanted = |it: &Running| it.task.owner.is_some() || !it.missing.is_empty();
        self.running.retain(|_, running| is_wanted(running));
    }

    /// Takes the outcome of a driver's task; `None` while it runs.
    pub(super) fn take(&mut self, number: u64, driver: SessionId) -> Option<Waited> {
        let is_own = |it: &&Running| it.task.owner == Some(driver) && it.task.parent.is_none();
        match self.running.get(&number).filter(is_own) {
            None => return Some(Waited::Unknown),
            Some(running) if !running.missing.is_empty() => return None,
            Some(_) => {}
        }
        let Running { task, reports, failure, .. } = self.running.remove(&number)?;
        let first = failure.map(|failure| failure.rank);
        Some(Waited::Done { app: task.what.to_string(), reports, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: SessionId = SessionId(9);

    fn task(ranks: &[usize], after: &[u64]) -> NewTask {
        NewTask {
            owner: Some(DRIVER),
            what: What::App("a".to_owned()),
            ranks: ranks.to_vec(),
            order: Some(Order::End),
            after: after.to_vec(),
            parent: None,
        }
    }

    /// All that can be sent now.
    fn sent(tasks: &mut Tasks) -> Vec<(u64, usize)> {
        let next = || Some(tasks.next_ready(2)?.0);
        std::iter::from_fn(next).map(|At { task, rank }| (task, rank)).collect()
    }

    fn done(tasks: &mut Tasks, number: u64) -> Option<BTreeMap<usize, Report>> {
        match tasks.take(number, DRIVER)? {
            Waited::Done { reports, .. } => Some(reports),
            _ => panic!("task {number} is unknown"),
        }
    }

    #[test]
    fn a_task_starts_at_each_worker_when_others_are_finished_there() {
        let mut tasks = Tasks::default();
        assert_eq!(tasks.add(task(&[0, 1], &[])), 1);
        assert_eq!(tasks.add(task(&[0, 1, 2], &[1])), 2);
        assert_eq!(tasks.add(task(&[2], &[1, 2])), 3);
        assert_eq!(sent(&mut tasks), [(1, 0), (1, 1)]);
        tasks.report(1, 1, Ok(1.into()));
        assert_eq!(sent(&mut tasks), [(2, 1)], "at worker 1 alone; worker 2 waits for both");
        tasks.report(1, 0, Ok(0.into()));
        assert_eq!(sent(&mut tasks), [(2, 0), (2, 2)]);
        assert!(done(&mut tasks, 1).is_some() && done(&mut tasks, 3).is_none());
        tasks.report(2, 2, Err("why".to_owned()));
        assert_eq!(sent(&mut tasks), [(3, 2)], "a failed task is finished");
        assert_eq!(tasks.first_unknown(&[1, 3]), None);
        assert_eq!(tasks.first_unknown(&[3, 4]), Some(4));
    }

    #[test]
    fn a_worker_gets_no_more_than_it_may_have() {
        let mut tasks = Tasks::default();
        for _ in 0..4 {
            tasks.add(task(&[0], &[]));
        }
        assert_eq!(sent(&mut tasks), [(1, 0), (2, 0)]);
        tasks.report(2, 0, Ok(0.into()));
        assert_eq!(sent(&mut tasks), [(3, 0)]);
    }

    #[test]
    fn a_task_is_finished_when_its_sub_tasks_are() {
        let mut tasks = Tasks::default();
        let parent = tasks.add(task(&[0, 1], &[]));
        let next = tasks.add(task(&[0, 1], &[parent]));
        sent(&mut tasks);
        let part = |at: At| NewTask { parent: Some(at), ..task(&[2], &[]) };
        let child = tasks.add(part(At { task: parent, rank: 0 }));
        assert_eq!(sent(&mut tasks), [(child, 2)]);
        let grandchild = tasks.add(part(At { task: child, rank: 2 }));
        tasks.report(parent, 0, Ok(0.into()));
        tasks.report(parent, 1, Ok(1.into()));
        assert_eq!(sent(&mut tasks), [(next, 1), (grandchild, 2)]);
        tasks.report(child, 2, Ok(2.into()));
        assert!(sent(&mut tasks).is_empty() && done(&mut tasks, parent).is_none());
        assert!(matches!(tasks.take(child, DRIVER), Some(Waited::Unknown)));
        tasks.report(grandchild, 2, Err("why".to_owned()));
        assert_eq!(sent(&mut tasks), [(next, 0)]);
        let reports = done(&mut tasks, parent).unwrap_or_default();
        assert_eq!(reports[&1], Ok(1.into()));
        let why = reports[&0].as_ref().err().map_or("", String::as_str);
        assert!(why.contains("sub-task at worker 2") && why.ends_with("why"), "{why}");
    }

    #[test]
    fn a_virtual_task_is_finished_by_its_driver() {
        let mut tasks = Tasks::default();
        let promise = NewTask { what: What::Virtual, order: None, ..task(&[], &[]) };
        let promise = tasks.add(promise);
        let next = tasks.add(task(&[0], &[promise]));
        assert!(sent(&mut tasks).is_empty());
        assert!(
            !tasks.finish_virtual(promise, SessionId(1)) && !tasks.finish_virtual(next, DRIVER)
        );
        assert!(tasks.finish_virtual(promise, DRIVER));
        assert_eq!(sent(&mut tasks), [(next, 0)]);
        assert_eq!(done(&mut tasks, promise), Some(BTreeMap::new()));
    }

    #[test]
    fn nothing_is_sent_for_a_driver_that_is_gone() {
        let mut tasks = Tasks::default();
        let first = tasks.add(task(&[0], &[]));
        tasks.add(task(&[0, 1], &[first]));
        tasks.add(NewTask { what: What::Virtual, order: None, ..task(&[], &[]) });
        assert_eq!(sent(&mut tasks), [(first, 0)]);
        tasks.disown(DRIVER);
        assert_eq!((tasks.len(), tasks.load(0)), (1, 1));
        tasks.report(first, 0, Ok(0.into()));
        assert!(tasks.len() == 0 && sent(&mut tasks).is_empty());
    }

    #[test]
    fn workers_hear_of_the_first_failure() {
        let mut tasks = Tasks::default();
        // Worker 2 has as many as it may have.
        let [first, second] = [(); 2].map(|()| tasks.add(task(&[2], &[])));
        let all = tasks.add(task(&[0, 1, 2, 3], &[]));
        let told = [(first, 2), (second, 2), (all, 0), (all, 1), (all, 3)];
        assert_eq!(sent(&mut tasks), told);
        tasks.report(all, 3, Ok(3.into()));
        tasks.report(all, 1, Err("why".to_owned()));
        let of = |rank| Unheard {
            rank,
            failure: Failure { task: all, app: "a".to_owned(), rank: 1, why: "why".to_owned() },
        };
        assert_eq!(tasks.take_unheard(), [of(0)], "the others have ended it, or know of none");
        tasks.report(all, 0, Err("follows".to_owned()));
        tasks.report(first, 2, Ok(2.into()));
        assert_eq!(sent(&mut tasks), [(all, 2)]);
        assert_eq!(tasks.take_unheard(), [of(2)]);
        tasks.report(all, 2, Err("follows".to_owned()));
        let Some(Waited::Done { first, .. }) = tasks.take(all, DRIVER) else { panic!("it runs") };
        assert_eq!(first, Some(1));
    }

    #[test]
    fn a_lost_worker_keeps_nobody_waiting() {
        let mut tasks = Tasks::default();
        let both = tasks.add(task(&[0, 1], &[]));
        let alone = tasks.add(task(&[1], &[both]));
        sent(&mut tasks);
        tasks.report(both, 0, Ok(0.into()));
        tasks.lose(1);
        assert_eq!(done(&mut tasks, both).map(|reports| reports.len()), Some(1));
        let reports = done(&mut tasks, alone).unwrap_or_default();
        assert_eq!(reports[&1], Err("it was lost".to_owned()));
        assert!(sent(&mut tasks).is_empty());
    }
}
