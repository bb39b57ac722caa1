//! The jobs of drivers: their names, their tasks, and what drivers wait for.
//!
//! The driver that started the cluster has the job without a name; drivers from outside name
//! theirs. A job ends with its driver, or when another cancels it: the workers forget it, and then
//! its name is free again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::barriers::NAME_BYTES_MAX;
use super::super::control::{
    Command, Heard, JobStatus, Losses, Order, Program, Report, Role, Submitted, TASKS_MAX, Target,
    Waited,
};
use super::super::group::NodeName;
use super::super::session::SessionId;
use super::control_state::ControlState;
use super::tasks::{At, NewTask, Tasks, What};

/// What a driver is told whose job somebody has cancelled.
const CANCELLED: &str = "the job of this driver was cancelled";

/// Most tasks that are not finished, or that their drivers have not waited for.
const TASKS_KNOWN_MAX: usize = 10_000;

/// A driver, and its requests that wait for an answer, by timestamp.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Driver {
    /// Its id as a client of the servers.
    pub(super) node: u32,
    /// The name of its job, once it has one.
    pub(super) job: Option<String>,
    /// Whether its job is a name alone, which no worker has to forget.
    #[serde(default)]
    pub(super) visits: bool,
    /// The name that its job had before somebody cancelled it.
    cancelled: Option<String>,
    pub(super) begins: Option<(u64, String)>,
    /// The job that it has cancelled.
    cancels: Option<(u64, String)>,
    pub(super) gathers: Option<Gathers>,
    waits: Option<(u64, u64)>,
    /// The tasks of which it asks which is done first.
    first: Option<(u64, Vec<u64>)>,
    pub(super) watches: Option<Watch>,
    /// Since when a scheduler that has come back waits for it, in time listened.
    awaited: Option<Duration>,
}

impl Driver {
    /// Takes its job away; returns the requests that nobody answers any more.
    fn cancel(&mut self) -> impl Iterator<Item = u64> + use<> {
        self.cancelled = self.job.take();
        let waits = self.waits.take().map(|(timestamp, _)| timestamp);
        let first = self.first.take().map(|(timestamp, _)| timestamp);
        let gathers = self.gathers.take().map(|gathers| gathers.timestamp);
        [waits, first, gathers].into_iter().flatten()
    }

    /// Answers it if it watches for losses.
    fn answer_watch(&mut self, control: &mut ControlState, session: SessionId) {
        let Some(Watch { timestamp, heard }) = self.watches.take() else { return };
        let losses = Losses { cancelled: self.cancelled.clone(), ..control.losses(heard) };
        control.tell(session, timestamp, &losses);
    }
}

/// A driver that waits for losses.
#[derive(Serialize, Deserialize)]
pub(super) struct Watch {
    pub(super) timestamp: u64,
    /// What it knows.
    pub(super) heard: Heard,
}

/// A driver that waits for all nodes.
#[derive(Serialize, Deserialize)]
pub(super) struct Gathers {
    pub(super) timestamp: u64,
    pub(super) until: Duration,
    pub(super) warn_at: Duration,
}

/// All jobs.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Jobs {
    /// All drivers, by session.
    pub(super) drivers: BTreeMap<SessionId, Driver>,
    pub(super) tasks: Tasks,
    /// Drivers from outside so far.
    guests: u32,
    /// Jobs that have lost their drivers, and that the workers must be told to forget.
    orphans: Vec<String>,
}

/// What a driver wants to be run.
pub(super) struct Submission {
    pub(super) target: Target,
    /// The job, or the part of it, that it belongs to.
    pub(super) job: String,
    pub(super) program: Program,
    /// The tasks that it waits for.
    pub(super) after: Vec<u64>,
    /// The task that it is a part of, at the worker that has started it.
    pub(super) parent: Option<At>,
}

impl Jobs {
    /// Waits for the drivers whose sessions outlast the scheduler, as long as earlier ones have
    /// not. The others do not come back.
    pub(super) fn await_drivers(&mut self, control: &ControlState) {
        self.drivers.retain(|session, _| control.sessions.has(*session));
        let now = control.members.listened();
        self.drivers.values_mut().for_each(|driver| {
            driver.awaited.get_or_insert(now);
        });
    }

    /// Whether a driver has not come back.
    pub(super) fn awaits_drivers(&self) -> bool {
        self.drivers.values().any(|driver| driver.awaited.is_some())
    }

    /// Records that a driver has come back.
    pub(super) fn is_back(&mut self, session: SessionId) {
        self.drivers.entry(session).and_modify(|driver| driver.awaited = None);
    }

    /// The drivers that have not come back for this long.
    pub(super) fn overdue(&self, control: &ControlState, away_max: Duration) -> Vec<SessionId> {
        let now = control.members.listened();
        let is_overdue = |it: &Driver| it.awaited.is_some_and(|since| now - since >= away_max);
        let overdue = self.drivers.iter().filter(|(_, driver)| is_overdue(driver));
        overdue.map(|(session, _)| *session).collect()
    }

    /// Goes on without the driver that had started the cluster, whose process is gone: nobody waits
    /// for its tasks.
    pub(super) fn come_back_without(&mut self, launcher: SessionId) {
        self.drivers.remove(&launcher);
        self.tasks.disown(launcher);
    }

    /// Adds a driver, of this job if it has one already.
    pub(super) fn add_driver(&mut self, session: SessionId, job: Option<String>) {
        self.drivers.insert(session, Driver { job, ..Driver::default() });
    }

    /// What others call the driver at this lane, once it has a job.
    pub(super) fn name(&self, session: SessionId) -> Option<NodeName> {
        let driver = self.drivers.get(&session)?;
        match driver.node {
            0 => driver.job.is_some().then_some(NodeName::Scheduler),
            number => Some(NodeName::Driver(number)),
        }
    }

    /// The driver of a task that this node runs.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(super) fn driver_of(&self, node: NodeName, task: u64) -> Result<NodeName, String> {
        let NodeName::Worker(rank) = node else { return Err(format!("{node} runs no tasks")) };
        let owner = self.tasks.run_by(At { task, rank }).map(|(owner, _)| owner);
        let none = || format!("{node} does not run task {task}, or its driver is gone");
        owner.and_then(|owner| self.name(owner)).ok_or_else(none)
    }

    /// Gives a driver from outside the job of this name, at once or when an earlier one has ended.
    pub(super) fn begin(
        &mut self,
        control: &mut ControlState,
        session: SessionId,
        timestamp: u64,
        job: String,
    ) {
        let taken = self.drivers.values().any(|driver| driver.job.as_ref() == Some(&job));
        let why = match job.len() {
            0 => "a job needs a name".to_owned(),
            NAME_BYTES_MAX.. => format!("the name of a job may have {NAME_BYTES_MAX} bytes"),
            _ if job.contains('/') => format!("the name of a job has no slash, and {job:?} has"),
            _ if taken => format!("the job {job} has a driver: take another name"),
            _ => {
                control.sessions.keep(session);
                self.drivers.entry(session).or_default().begins = Some((timestamp, job));
                return self.settle(control);
            }
        };
        control.refuse(session, timestamp, &why);
    }

    /// Takes the job of this name from another driver, which hears of it first, and then that its
    /// requests are refused. Answered when the job has ended.
    fn cancel(
        &mut self,
        control: &mut ControlState,
        session: SessionId,
        timestamp: u64,
        job: String,
    ) {
        let mut drivers = self.drivers.iter_mut();
        let found = drivers.find(|(_, driver)| driver.job.as_ref() == Some(&job));
        let Some((&owner, driver)) = found.filter(|_| !job.is_empty()) else {
            return control.refuse(session, timestamp, &self.has_no(&job));
        };
        tracing::info!(job, "cancelled");
        let visits = driver.visits;
        let refused = driver.cancel();
        driver.answer_watch(control, owner);
        refused.for_each(|timestamp| control.refuse(owner, timestamp, CANCELLED));
        self.tasks.disown(owner);
        self.send_ready(control);
        self.orphans.extend((!visits).then(|| job.clone()));
        self.end_orphans(control);
        self.drivers.entry(session).or_default().cancels = Some((timestamp, job));
        self.settle(control);
    }

    /// Why a job cannot be cancelled that no driver from outside has.
    fn has_no(&self, job: &str) -> String {
        let jobs = self.drivers.values().filter_map(|driver| driver.job.as_deref());
        let jobs: Vec<&str> = jobs.filter(|job| !job.is_empty()).collect();
        match jobs.is_empty() {
            true => format!("there is no job {job:?}, nor any other from outside"),
            false => format!("there is no job {job:?}, only {}", jobs.join(", ")),
        }
    }

    /// Answers what a driver may ask whatever its job is, and any driver whose job was cancelled;
    /// returns whether that was it.
    pub(super) fn answer_any(
        &mut self,
        control: &mut ControlState,
        session: SessionId,
        timestamp: u64,
        command: &Command,
    ) -> bool {
        let driver = self.drivers.entry(session).or_default();
        match command {
            Command::Jobs => control.tell(session, timestamp, &self.status()),
            Command::Cancel { job } => self.cancel(control, session, timestamp, job.clone()),
            _ if driver.cancelled.is_none() => return false,
            &Command::Watch(heard) => {
                driver.watches = Some(Watch { timestamp, heard });
                driver.answer_watch(control, session);
            }
            _ => control.refuse(session, timestamp, CANCELLED),
        }
        true
    }

    /// All jobs, by name.
    fn status(&self) -> Vec<JobStatus> {
        let new = |job: &str, ends: bool| JobStatus {
            job: job.to_owned(),
            tasks: 0,
            workers: BTreeSet::new(),
            ends,
        };
        let drivers = self.drivers.values().filter_map(|driver| driver.job.as_deref());
        let alive = drivers.map(|job| (job, new(job, false)));
        let orphans = self.orphans.iter().map(|job| (job.as_str(), new(job, true)));
        let mut all: BTreeMap<&str, JobStatus> = orphans.chain(alive).collect();
        for (job, workers) in self.tasks.of_jobs() {
            // A part is the job's.
            let job = job.split('/').next().unwrap_or("");
            let status = all.entry(job).or_insert_with(|| new(job, true));
            status.tasks += 1;
            status.workers.extend(workers);
        }
        all.into_values().collect()
    }

    /// Begins jobs whose earlier namesakes have ended, and answers those that have cancelled one.
    fn settle(&mut self, control: &mut ControlState) {
        let Jobs { drivers, tasks, orphans, guests } = self;
        let has_ended = |job: &String| !orphans.contains(job) && !tasks.forgets(job);
        for (&session, driver) in drivers {
            if let Some((timestamp, _)) = driver.cancels.take_if(|(_, job)| has_ended(job)) {
                control.tell(session, timestamp, &());
            }
            if let Some((timestamp, job)) = driver.begins.take_if(|(_, job)| has_ended(job)) {
                *guests += 1;
                driver.node = *guests;
                control.guests.insert(*guests, session);
                tracing::info!(job, "begins");
                driver.job = Some(job);
                control.tell(session, timestamp, &());
            }
        }
    }

    /// Answers the drivers that watch for losses.
    pub(super) fn answer_watches(&mut self, control: &mut ControlState) {
        self.drivers
            .iter_mut()
            .for_each(|(session, driver)| driver.answer_watch(control, *session));
    }

    /// Goes on without a driver: nobody waits for its tasks, and its job ends.
    pub(super) fn lose_driver(&mut self, control: &mut ControlState, session: SessionId) {
        let Some(driver) = self.drivers.remove(&session) else { return };
        control.guests.remove(&driver.node);
        self.tasks.disown(session);
        self.send_ready(control);
        self.orphans.extend(driver.job.filter(|_| !driver.visits));
        self.end_orphans(control);
    }

    /// Goes on without a worker: no task waits for it.
    pub(super) fn lose_worker(&mut self, control: &mut ControlState, rank: usize) {
        self.tasks.lose(rank);
        self.send_ready(control);
    }

    /// Does what became possible because tasks have ended.
    pub(super) fn go_on(&mut self, control: &mut ControlState) {
        self.answer_waits(control);
        self.end_orphans(control);
        self.settle(control);
    }

    /// Records a worker's result of a task that it runs.
    pub(super) fn report(&mut self, control: &mut ControlState, at: At, report: Report) {
        self.tasks.report(at.task, at.rank, report);
        self.send_ready(control);
        self.go_on(control);
    }

    /// Makes the workers forget jobs that have lost their drivers.
    fn end_orphans(&mut self, control: &mut ControlState) {
        while let Some(job) = self.orphans.pop() {
            let forgets = self.forget(control, None, job.clone());
            if let Submitted::Full(_) | Submitted::Refused(_) = forgets {
                return self.orphans.push(job);
            }
        }
    }

    /// Makes all workers forget a job and drop its tables.
    pub(super) fn forget(
        &mut self,
        control: &mut ControlState,
        driver: Option<SessionId>,
        job: String,
    ) -> Submitted {
        let ranks = control.members.live_workers();
        let rank = ranks.first().copied().unwrap_or(0);
        let order = Some(Order::Forget { job: job.clone(), rank });
        let what = What::Forgets(job);
        let after = Vec::new();
        self.start(control, NewTask { owner: driver, what, ranks, order, after, parent: None })
    }

    /// Adds a task that nobody runs.
    pub(super) fn promise(&mut self, control: &mut ControlState, driver: SessionId) -> Submitted {
        let (ranks, after) = (Vec::new(), Vec::new());
        let (owner, what) = (Some(driver), What::Virtual);
        self.start(control, NewTask { owner, what, ranks, order: None, after, parent: None })
    }

    /// Finishes such a task; returns whether there is one.
    pub(super) fn finish(
        &mut self,
        control: &mut ControlState,
        driver: SessionId,
        task: u64,
    ) -> bool {
        let is_there = self.tasks.finish_virtual(task, driver);
        self.send_ready(control);
        is_there
    }

    /// Starts a task of a job.
    pub(super) fn submit(
        &mut self,
        control: &mut ControlState,
        owner: SessionId,
        submission: Submission,
    ) -> Submitted {
        let Submission { target, job, program, after, parent } = submission;
        let (app, order) = match program {
            Program::App { app, body } => (app.clone(), Order::Run { job, app, body }),
            Program::Steps(steps) => ("a graph".to_owned(), Order::Steps { job, steps }),
        };
        let workers = control.members.size(Role::Worker);
        let ranks = match target.ranks(workers, || control.members.live_workers()) {
            Ok(ranks) => ranks,
            Err(why) => return Submitted::Refused(why),
        };
        let (owner, what, order) = (Some(owner), What::App(app), Some(order));
        self.start(control, NewTask { owner, what, ranks, order, after, parent })
    }

    /// Starts a sub-task of a task that a worker runs.
    pub(super) fn spawn(
        &mut self,
        control: &mut ControlState,
        at: At,
        target: Target,
        program: Program,
    ) -> Submitted {
        let Some((owner, job)) = self.tasks.run_by(at) else {
            return Submitted::Refused("nobody waits for the task any more".to_owned());
        };
        let (after, parent) = (Vec::new(), Some(at));
        self.submit(control, owner, Submission { target, job, program, after, parent })
    }

    /// Adds a task, or refuses it; sends it if its turn has come.
    fn start(&mut self, control: &mut ControlState, task: NewTask) -> Submitted {
        if let Some(loss) = &control.lost {
            return Submitted::Lost(loss.clone());
        }
        if let Some(unknown) = self.tasks.first_unknown(&task.after) {
            return Submitted::Refused(format!("there is no task {unknown} to wait for"));
        }
        if self.tasks.len() >= TASKS_KNOWN_MAX {
            let why = format!("{TASKS_KNOWN_MAX} tasks are not finished, or were not waited for");
            return Submitted::Refused(why);
        }
        let is_full = |rank: &&usize| self.tasks.load(**rank) >= TASKS_MAX;
        if let Some(&full) = task.ranks.iter().find(is_full).filter(|_| task.after.is_empty()) {
            return Submitted::Full(full);
        }
        let lost = task.ranks.iter().find_map(|rank| control.members.worker(*rank).err());
        if let Some(loss) = lost {
            return Submitted::Lost(loss);
        }
        let number = self.tasks.add(task);
        self.send_ready(control);
        Submitted::Task(number)
    }

    /// Sends the orders of tasks whose turn has come.
    fn send_ready(&mut self, control: &mut ControlState) {
        while let Some((At { task, rank }, order)) = self.tasks.next_ready(TASKS_MAX) {
            let Ok(session) = control.members.worker(rank) else { continue };
            control.order(session, task, &order);
        }
    }

    /// Answers a driver when this task is done or will never be.
    pub(super) fn wait(
        &mut self,
        control: &mut ControlState,
        driver: SessionId,
        asked: (u64, u64),
    ) {
        self.drivers.entry(driver).or_default().waits = Some(asked);
        self.answer_waits(control);
    }

    /// Answers a driver when the first of these tasks is done or will never be.
    pub(super) fn wait_first(
        &mut self,
        control: &mut ControlState,
        driver: SessionId,
        asked: (u64, Vec<u64>),
    ) {
        self.drivers.entry(driver).or_default().first = Some(asked);
        self.answer_waits(control);
    }

    /// Answers the drivers that wait for a task which is done or will never be.
    pub(super) fn answer_waits(&mut self, control: &mut ControlState) {
        let Jobs { drivers, tasks, .. } = self;
        for (&session, driver) in drivers {
            let ends = |task: &&u64| control.lost.is_some() || tasks.is_done(**task, session);
            let asked = driver.first.as_ref();
            let found = asked.and_then(|(asked, tasks)| Some((*asked, *tasks.iter().find(ends)?)));
            if let Some((timestamp, task)) = found {
                driver.first = None;
                control.tell(session, timestamp, &task);
            }
            let Some((timestamp, task)) = driver.waits else { continue };
            let lost = || control.lost.clone().map(Waited::Lost);
            if let Some(waited) = tasks.take(task, session).or_else(lost) {
                driver.waits = None;
                control.tell(session, timestamp, &waited);
            }
        }
    }
}
