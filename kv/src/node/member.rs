//! A node that has joined: receives tasks from the scheduler and reports their results.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::control::{
    Ask, Changes, Envelope, Failure, Join, Loss, Order, Report, Role, Roster, Step, Submitted,
    Target, is_within,
};
use super::lane::{Heard, Home, SchedulerLane};
use super::rpc::{AtRpc, Rpc};
use crate::config::NodeConfig;
use crate::error::{Error, Result};
use crate::worker::News;

/// Longest sleep while waiting.
const BACKOFF: Duration = Duration::from_millis(100);

/// Time between two warnings of a wait.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// A task from the scheduler.
#[derive(Debug)]
pub struct Task {
    /// The job that it belongs to.
    pub job: String,
    /// What to do.
    pub work: Work,
    pub(crate) number: u64,
}

/// What a task is.
#[derive(Debug)]
pub enum Work {
    /// To run the app of this name with this input.
    Run {
        /// The app's name.
        app: String,
        /// Its input.
        body: serde_json::Value,
    },
    /// To run the apps of these steps, in order, unless one that a step waits for has failed.
    Steps(Vec<Step>),
    /// To forget all apps and tables of the job.
    Forget {
        /// Whether this worker drops the tables.
        drops: bool,
    },
}

/// The task that runs.
struct Running {
    number: u64,
    job: String,
}

/// This node's side of the control plane.
pub struct Member {
    lane: SchedulerLane,
    roster: Roster,
    role: Role,
    tasks: VecDeque<Task>,
    /// The task that runs, unless that ends a job.
    running: Option<Running>,
    /// Of tasks that run or wait here, why others have failed at them.
    failures: BTreeMap<u64, Failure>,
    rpc: Rpc,
    /// The request that waits for an answer, and the answer.
    asked: Option<u64>,
    answer: Option<String>,
    ended: bool,
    /// Another node that was lost.
    lost: Option<Loss>,
    changes: Changes,
}

impl Member {
    /// Joins the cluster with the identity in `config`; returns when all nodes have joined.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the scheduler's address and the number of attempts;
    /// [`Error::NodeLost`] says why it refused.
    pub(crate) fn join(config: &NodeConfig, role: Role, join: Join, rpc: Rpc) -> Result<Member> {
        let lane = SchedulerLane::reach(config)?;
        let roster = Roster {
            node: 0,
            rank: 0,
            van: config.van,
            vans: Vec::new(),
            servers: Vec::new(),
            founders: 0,
            threads: 1,
            first_thread: 0,
            workers: 0,
            server_losses_max: 0,
            away_max: Duration::ZERO,
            turn: 0,
        };
        let mut member = Member {
            lane,
            roster,
            role,
            tasks: VecDeque::new(),
            running: None,
            failures: BTreeMap::new(),
            rpc,
            asked: None,
            answer: None,
            ended: false,
            lost: None,
            changes: Changes::default(),
        };
        let join = Ask::Join(join);
        let roster = member.ask(&join, config.join_timeout, "joining the cluster: other nodes")?;
        member.roster = serde_json::from_str(&roster)?;
        member.lane.outlast(member.roster.away_max);
        Ok(member)
    }

    /// The cluster's nodes.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Its scheduler.
    pub(crate) fn home(&self) -> Home {
        self.lane.home()
    }

    /// Waits for the next task; `None` when the job is over, or when `goes_on` returns false
    /// because this node cannot go on, or has to do something else first. It is told who is lost,
    /// has joined or has left so far.
    ///
    /// # Errors
    /// [`Error::NodeLost`] if the scheduler is gone.
    pub(crate) fn next_task(
        &mut self,
        mut goes_on: impl FnMut(&Changes) -> bool,
    ) -> Result<Option<Task>> {
        loop {
            self.poll()?;
            if let Some(task) = self.tasks.pop_front() {
                let ends = matches!(task.work, Work::Forget { .. });
                let running = || Running { number: task.number, job: task.job.clone() };
                self.running = (!ends).then(running);
                match self.check_task() {
                    Ok(()) => return Ok(Some(task)),
                    Err(ended) => self.report(&task, &Err(ended.to_string()))?,
                }
                continue;
            }
            if self.ended || !goes_on(&self.changes) {
                return Ok(None);
            }
            self.lane.wait(BACKOFF)?;
        }
    }

    /// How often it has heard of server threads that leave.
    pub(crate) fn events(&self) -> usize {
        self.changes.events.len()
    }

    /// Sends the result of a task.
    ///
    /// # Errors
    /// [`Error::NodeLost`] if the scheduler is gone.
    pub fn report(&mut self, task: &Task, report: &Report) -> Result<()> {
        self.poll()?;
        self.running = None;
        self.failures.remove(&task.number);
        if self.ended {
            return Ok(()); // nobody waits for it
        }
        self.lane.answer(task.number, report)?;
        self.poll()
    }

    /// Starts a sub-task of task `task`; returns its number.
    ///
    /// # Errors
    /// [`Error::Config`] if it cannot be started; [`Error::NodeLost`].
    pub(crate) fn spawn(
        &mut self,
        task: u64,
        target: Target,
        app: &str,
        body: &serde_json::Value,
        timeout: Duration,
    ) -> Result<u64> {
        let spawn = Ask::Spawn { task, target, app: app.to_owned(), body: body.clone() };
        let answer = self.ask(&spawn, timeout, "the start of a sub-task")?;
        serde_json::from_str::<Submitted>(&answer)?.started()
    }

    /// Fails if the job of the task that runs has ended: the order to forget it waits behind that.
    /// Fails if another worker has failed at the task.
    fn check_task(&self) -> Result<()> {
        let Some(Running { number, job }) = &self.running else { return Ok(()) };
        let ends_it =
            |task: &Task| matches!(task.work, Work::Forget { .. }) && is_within(job, &task.job);
        match self.tasks.iter().any(ends_it) {
            true => Err(Error::Cancelled { job: job.clone() }),
            false => self.failures.get(number).map_or(Ok(()), |it| Err(it.clone().into())),
        }
    }

    /// Records that another worker has failed at a task, if that runs or waits here.
    fn enter_failure(&mut self, failure: Failure) {
        let runs = self.running.as_ref().is_some_and(|it| it.number == failure.task);
        if runs || self.tasks.iter().any(|task| task.number == failure.task) {
            self.failures.insert(failure.task, failure);
        }
    }

    /// Fails if the cluster, the job or the task is over, or a node is known to be lost, so that no
    /// other wait can succeed.
    ///
    /// # Errors
    /// [`Error::NodeLost`] names the node, or the scheduler; [`Error::Cancelled`];
    /// [`Error::TaskFailed`] names the worker that has failed.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.poll()?;
        if self.ended {
            return Err(self.scheduler_lost("it has ended the job".to_owned()));
        }
        match self.lost.clone() {
            Some(loss) => Err(loss.into()),
            None => self.check_task(),
        }
    }

    /// As [`Member::check`]; returns the server threads that are lost, have joined or have left so
    /// far.
    ///
    /// # Errors
    /// As [`Member::check`].
    pub(crate) fn news(&mut self) -> Result<News> {
        self.check()?;
        let Changes { lost, events, .. } = &self.changes;
        Ok(News { lost: lost.clone(), events: events.clone() })
    }

    /// Sends a request to the scheduler and waits for the answer.
    fn ask(&mut self, what: &Ask, timeout: Duration, missing: &str) -> Result<String> {
        self.asked = Some(self.lane.ask(what)?);
        let began = self.lane.now();
        let mut warned = began;
        loop {
            let checked = self.check();
            if let Some(answer) = self.answer.take() {
                return Ok(answer);
            }
            checked?;
            let now = self.lane.now();
            if now - began > timeout {
                let seconds = timeout.as_secs_f64();
                let missing =
                    format!("{missing} (the scheduler at {} knows which)", self.lane.address());
                return Err(Error::Timeout {
                    what: "a request to the scheduler".to_owned(),
                    seconds,
                    missing,
                });
            }
            if now - warned > WARN_EVERY {
                warned = now;
                tracing::warn!(scheduler = self.lane.address(), "still waiting for {missing}");
            }
            self.lane.wait(BACKOFF)?;
        }
    }

    fn scheduler_lost(&self, reason: String) -> Error {
        Error::NodeLost { node: format!("the scheduler at {}", self.lane.address()), reason }
    }

    /// Handles what the scheduler has said.
    fn poll(&mut self) -> Result<()> {
        loop {
            while let Some(heard) = self.lane.hear()? {
                if let (Heard::Closed(_), true) = (&heard, self.ended) {
                    return Ok(());
                }
                self.enter(heard)?;
            }
            if self.ended || !self.rpc.flush(&mut self.lane, Ask::Post)? {
                return Ok(());
            }
        }
    }

    fn enter(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Order { number, order: Order::Run { job, app, body } } => {
                self.tasks.push_back(Task { job, work: Work::Run { app, body }, number });
            }
            Heard::Order { number, order: Order::Steps { job, steps } } => {
                self.tasks.push_back(Task { job, work: Work::Steps(steps), number });
            }
            Heard::Order { number, order: Order::Forget { job, rank } } => {
                let work = Work::Forget { drops: rank == self.roster.rank };
                self.tasks.push_back(Task { job, work, number });
            }
            Heard::Order { number, order: Order::Envelopes(envelopes) } => {
                self.lane.answer(number, &())?;
                let mut others = Vec::with_capacity(envelopes.len());
                for envelope in envelopes {
                    match envelope {
                        Envelope::Failed(failure) => self.enter_failure(failure),
                        other => others.push(other),
                    }
                }
                self.rpc.deliver(others);
            }
            Heard::Order { number, order: Order::LostServers(lost) } => {
                self.lane.answer(number, &())?;
                self.changes.lost.extend(lost);
            }
            Heard::Order { number, order: Order::ServerEvents(events) } => {
                self.lane.answer(number, &())?;
                self.changes.events.extend(events);
            }
            Heard::Order { number, order: Order::LostWorkers(lost) } => {
                self.lane.answer(number, &())?;
                self.changes.workers = lost;
            }
            // A scheduler that has said one of these does not come back.
            Heard::Order { order: Order::Lost(loss), .. } => {
                self.lost = Some(loss);
                self.lane.outlast(Duration::ZERO);
            }
            Heard::Order { order: Order::End, .. } => {
                self.ended = true;
                self.lane.outlast(Duration::ZERO);
            }
            Heard::Answer { to, body } if self.asked == Some(to) => {
                self.asked = None;
                self.answer = Some(body);
            }
            Heard::Answer { to, body } => self.rpc.acknowledge(to, &body)?,
            Heard::Refused { to, why } if self.rpc.refused(to, &why) => {}
            Heard::Refused { why, .. } => {
                let why = format!("it refused this {}: {why}", self.role);
                return Err(self.scheduler_lost(why));
            }
            Heard::Closed(why) => return Err(self.scheduler_lost(why)),
        }
        Ok(())
    }
}

impl AtRpc for Member {
    fn rpc(&mut self) -> &mut Rpc {
        &mut self.rpc
    }

    fn lane(&mut self) -> &mut SchedulerLane {
        &mut self.lane
    }

    fn look(&mut self) -> Result<()> {
        self.check()
    }
}
