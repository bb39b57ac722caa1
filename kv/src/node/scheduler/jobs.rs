//! The jobs of drivers: their names, their tasks, and what drivers wait for.
//!
//! The driver that started the cluster has the job without a name; drivers from outside name
//! theirs. A job ends with its driver: the workers forget it, and then its name is free again.

use std::collections::BTreeMap;
use std::time::Duration;

use caravan_van::PeerId;

use super::super::barriers::NAME_BYTES_MAX;
use super::super::control::{Order, Program, Report, Role, Submitted, TASKS_MAX, Target, Waited};
use super::plane::Plane;
use super::tasks::{At, NewTask, Tasks, What};

/// Most tasks that are not finished, or that their drivers have not waited for.
const TASKS_KNOWN_MAX: usize = 10_000;

/// A driver, and its requests that wait for an answer, by timestamp.
#[derive(Default)]
pub(super) struct Driver {
    /// Its id as a client of the servers.
    pub(super) node: u32,
    /// The name of its job, once it has one.
    pub(super) job: Option<String>,
    pub(super) begins: Option<(u64, String)>,
    pub(super) gathers: Option<Gathers>,
    waits: Option<(u64, u64)>,
    /// The tasks of which it asks which is done first.
    first: Option<(u64, Vec<u64>)>,
    pub(super) watches: Option<u64>,
}

/// A driver that waits for all nodes.
pub(super) struct Gathers {
    pub(super) timestamp: u64,
    pub(super) until: Duration,
    pub(super) warn_at: Duration,
}

/// All jobs.
#[derive(Default)]
pub(super) struct Jobs {
    /// All drivers, by lane.
    pub(super) drivers: BTreeMap<PeerId, Driver>,
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
    /// Adds a driver, of this job if it has one already.
    pub(super) fn add_driver(&mut self, peer: PeerId, job: Option<String>) {
        self.drivers.insert(peer, Driver { job, ..Driver::default() });
    }

    /// Gives a driver from outside the job of this name, at once or when an earlier one has ended.
    pub(super) fn begin(&mut self, plane: &mut Plane, peer: PeerId, timestamp: u64, job: String) {
        let taken = self.drivers.values().any(|driver| driver.job.as_ref() == Some(&job));
        let why = match job.len() {
            0 => "a job needs a name".to_owned(),
            NAME_BYTES_MAX.. => format!("the name of a job may have {NAME_BYTES_MAX} bytes"),
            _ if job.contains('/') => format!("the name of a job has no slash, and {job:?} has"),
            _ if taken => format!("the job {job} has a driver: take another name"),
            _ => {
                self.drivers.entry(peer).or_default().begins = Some((timestamp, job));
                return self.begin_free(plane);
            }
        };
        plane.refuse(peer, timestamp, &why);
    }

    /// Begins jobs whose earlier namesakes have ended.
    fn begin_free(&mut self, plane: &mut Plane) {
        let Jobs { drivers, tasks, orphans, guests } = self;
        let is_free = |job: &String| !orphans.contains(job) && !tasks.forgets(job);
        for (&peer, driver) in drivers {
            if let Some((timestamp, job)) = driver.begins.take_if(|(_, job)| is_free(job)) {
                *guests += 1;
                driver.node = *guests;
                tracing::info!(job, "begins");
                driver.job = Some(job);
                plane.tell(peer, timestamp, &());
            }
        }
    }

    /// Answers the drivers that watch for losses.
    pub(super) fn answer_watches(&mut self, plane: &mut Plane) {
        let losses = plane.losses();
        for (&peer, driver) in &mut self.drivers {
            let watch = driver.watches.take();
            watch.into_iter().for_each(|timestamp| plane.tell(peer, timestamp, &losses));
        }
    }

    /// Goes on without a driver: nobody waits for its tasks, and its job ends.
    pub(super) fn lose_driver(&mut self, plane: &mut Plane, peer: PeerId) {
        let Some(driver) = self.drivers.remove(&peer) else { return };
        self.tasks.disown(peer);
        self.send_ready(plane);
        self.orphans.extend(driver.job);
        self.end_orphans(plane);
    }

    /// Goes on without a worker: no task waits for it.
    pub(super) fn lose_worker(&mut self, plane: &mut Plane, rank: usize) {
        self.tasks.lose(rank);
        self.send_ready(plane);
    }

    /// Does what became possible because tasks have ended.
    pub(super) fn go_on(&mut self, plane: &mut Plane) {
        self.answer_waits(plane);
        self.end_orphans(plane);
        self.begin_free(plane);
    }

    /// Enters a worker's result of a task that it runs.
    pub(super) fn report(&mut self, plane: &mut Plane, at: At, report: Report) {
        self.tasks.report(at.task, at.rank, report);
        self.send_ready(plane);
        self.go_on(plane);
    }

    /// Makes the workers forget jobs that have lost their drivers.
    fn end_orphans(&mut self, plane: &mut Plane) {
        while let Some(job) = self.orphans.pop() {
            let forgets = self.forget(plane, None, job.clone());
            if let Submitted::Full(_) | Submitted::Refused(_) = forgets {
                return self.orphans.push(job);
            }
        }
    }

    /// Makes all workers forget a job and drop its tables.
    pub(super) fn forget(
        &mut self,
        plane: &mut Plane,
        driver: Option<PeerId>,
        job: String,
    ) -> Submitted {
        let ranks = plane.members.live_workers();
        let rank = ranks.first().copied().unwrap_or(0);
        let order = Some(Order::Forget { job: job.clone(), rank });
        let what = What::Forgets(job);
        let after = Vec::new();
        self.start(plane, NewTask { owner: driver, what, ranks, order, after, parent: None })
    }

    /// Adds a task that nobody runs.
    pub(super) fn promise(&mut self, plane: &mut Plane, driver: PeerId) -> Submitted {
        let (ranks, after) = (Vec::new(), Vec::new());
        let (owner, what) = (Some(driver), What::Virtual);
        self.start(plane, NewTask { owner, what, ranks, order: None, after, parent: None })
    }

    /// Finishes such a task; returns whether there is one.
    pub(super) fn finish(&mut self, plane: &mut Plane, driver: PeerId, task: u64) -> bool {
        let is_there = self.tasks.finish_virtual(task, driver);
        self.send_ready(plane);
        is_there
    }

    /// Starts a task of a job.
    pub(super) fn submit(
        &mut self,
        plane: &mut Plane,
        owner: PeerId,
        submission: Submission,
    ) -> Submitted {
        let Submission { target, job, program, after, parent } = submission;
        let (app, order) = match program {
            Program::App { app, body } => (app.clone(), Order::Run { job, app, body }),
            Program::Steps(steps) => ("a graph".to_owned(), Order::Steps { job, steps }),
        };
        let workers = plane.members.size(Role::Worker);
        let ranks = match target.ranks(workers, || plane.members.live_workers()) {
            Ok(ranks) => ranks,
            Err(why) => return Submitted::Refused(why),
        };
        let (owner, what, order) = (Some(owner), What::App(app), Some(order));
        self.start(plane, NewTask { owner, what, ranks, order, after, parent })
    }

    /// Starts a sub-task of a task that a worker runs.
    pub(super) fn spawn(
        &mut self,
        plane: &mut Plane,
        at: At,
        target: Target,
        program: Program,
    ) -> Submitted {
        let Some((owner, job)) = self.tasks.run_by(at) else {
            return Submitted::Refused("nobody waits for the task any more".to_owned());
        };
        let (after, parent) = (Vec::new(), Some(at));
        self.submit(plane, owner, Submission { target, job, program, after, parent })
    }

    /// Adds a task, or refuses it; sends it if its turn has come.
    fn start(&mut self, plane: &mut Plane, task: NewTask) -> Submitted {
        if let Some(loss) = &plane.lost {
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
        let lost = task.ranks.iter().find_map(|rank| plane.members.worker(*rank).err());
        if let Some(loss) = lost {
            return Submitted::Lost(loss);
        }
        let number = self.tasks.add(task);
        self.send_ready(plane);
        Submitted::Task(number)
    }

    /// Sends the orders of tasks whose turn has come.
    fn send_ready(&mut self, plane: &mut Plane) {
        while let Some((At { task, rank }, order)) = self.tasks.next_ready(TASKS_MAX) {
            let Ok(lane) = plane.members.worker(rank) else { continue };
            // A lane that breaks now ends the wait for this task.
            plane.order(lane, task, &order);
        }
    }

    /// Answers a driver when this task is done or will never be.
    pub(super) fn wait(&mut self, plane: &mut Plane, driver: PeerId, asked: (u64, u64)) {
        self.drivers.entry(driver).or_default().waits = Some(asked);
        self.answer_waits(plane);
    }

    /// Answers a driver when the first of these tasks is done or will never be.
    pub(super) fn wait_first(&mut self, plane: &mut Plane, driver: PeerId, asked: (u64, Vec<u64>)) {
        self.drivers.entry(driver).or_default().first = Some(asked);
        self.answer_waits(plane);
    }

    /// Answers the drivers that wait for a task which is done or will never be.
    pub(super) fn answer_waits(&mut self, plane: &mut Plane) {
        let Jobs { drivers, tasks, .. } = self;
        for (&peer, driver) in drivers {
            let ends = |task: &&u64| plane.lost.is_some() || tasks.is_done(**task, peer);
            let asked = driver.first.as_ref();
            let found = asked.and_then(|(asked, tasks)| Some((*asked, *tasks.iter().find(ends)?)));
            if let Some((timestamp, task)) = found {
                driver.first = None;
                plane.tell(peer, timestamp, &task);
            }
            let Some((timestamp, task)) = driver.waits else { continue };
            let lost = || plane.lost.clone().map(Waited::Lost);
            if let Some(waited) = tasks.take(task, peer).or_else(lost) {
                driver.waits = None;
                plane.tell(peer, timestamp, &waited);
            }
        }
    }
}
