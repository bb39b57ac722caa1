//! The driver's side of the scheduler: it starts the thread that schedules
//! (`node/scheduler/thread.rs`) and asks it over a lane of its own.
//!
//! The thread serves the nodes whatever the driver does: a driver that computes for a minute keeps
//! nobody waiting and loses nobody. The lane is one of the control plane, like those of all nodes,
//! so that on a simulated network its messages take simulated time.

mod admission;
mod control_state;
mod exchange;
mod further;
mod jobs;
mod posts;
mod requests;
mod sessions;
mod state;
mod state_store;
mod tasks;
mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::thread::SchedulerThread;
use super::choice::Candidate;
use super::control::{
    self, Command, Gathered, JobStatus, Loss, Losses, Order, Program, Roster, Submitted, Target,
    Waited,
};
use super::lane::{self, Heard, SchedulerLane};
use super::roles::without_threads;
use super::rpc::{AtRpc, Rpc};
use super::thread::NodeThread;
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::{Error, Result};
use crate::node::Van;
use crate::server_address::ServerAddress;
use crate::worker::News;

/// Longest sleep while waiting: how often a caller of [`SchedulerClient::gather`] checks its
/// children.
const BACKOFF: Duration = Duration::from_millis(20);

/// Sleep between two looks at whether the thread listens yet.
const LOOK: Duration = Duration::from_micros(100);

/// How long the driver tries to reach its own thread, which is there already.
const REACH: Duration = Duration::from_secs(60);

/// How long the thread's side of the lane may acknowledge nothing. Both sides are in one kernel, so
/// that only a host that has lost the address between them is silent.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Number of a task, which no other task of the cluster has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskId(pub(super) u64);

/// The cluster's scheduler, as a driver uses it. In the process that started the cluster it serves
/// the nodes on a thread of its own until this is dropped.
pub struct SchedulerClient {
    /// Closed before the thread is joined: it ends with this lane.
    lane: SchedulerLane,
    /// `None` for the scheduler of another process.
    serving: Option<Serving>,
    config: ClusterConfig,
    rpc: Rpc,
    /// The cluster, once it is complete.
    roster: Option<Roster>,
    /// The request to hear of losses, and what was heard.
    watch: u64,
    losses: Losses,
    /// An unanswered [`Command::Gather`].
    gathering: Option<u64>,
    gathered: Option<Gathered>,
    /// The other request that waits for an answer, and the answer.
    asked: u64,
    answer: Option<String>,
}

/// The thread that serves. Dropping this ends it.
struct Serving {
    thread: Option<NodeThread>,
    /// Ends the thread where the driver has no lane to it yet.
    stop: Arc<AtomicBool>,
}

impl Serving {
    /// Ends the thread and returns its result.
    fn end(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map_or(Ok(()), NodeThread::join)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl SchedulerClient {
    /// Listens at the address in `config`; port 0 selects a free one. Nodes are served from now on.
    /// With a folder for its state ([`NodeConfig::state`]) it goes on with the cluster that an
    /// earlier scheduler has left there, if one has.
    ///
    /// # Errors
    /// If the address cannot be bound; [`Error::Config`] if others can reach it and there is no
    /// secret; [`Error::Spawn`] if the system has no thread.
    pub fn bind(config: &ClusterConfig) -> Result<SchedulerClient> {
        let mut config = config.clone();
        config.node = config.node.secured()?;
        SchedulerClient::start(config, None)
    }

    /// As [`SchedulerClient::bind`], with this process in the choice of the van, because it will
    /// push and pull as well.
    ///
    /// # Errors
    /// As [`SchedulerClient::bind`], and if a van was named and does not work here.
    pub(crate) fn bind_client(config: &ClusterConfig) -> Result<SchedulerClient> {
        let mut config = config.clone();
        // What a driver does in this process ends with it: there is nothing to come back to.
        config.node.state = None;
        config.node = config.node.secured()?;
        let own = without_threads(&config.node)?;
        SchedulerClient::start(config, Some(own))
    }

    fn start(mut config: ClusterConfig, own: Option<Vec<Candidate>>) -> Result<SchedulerClient> {
        let driver = control::identity(control::DRIVER, None);
        let stop = Arc::new(AtomicBool::new(false));
        let (say_address, address) = mpsc::channel();
        let serve = {
            let config = config.clone();
            let stop = stop.clone();
            move || {
                let service = SchedulerThread::bind(config, own, driver, stop)?;
                // The driver that does not wait for the address has set the flag to stop.
                let _ = say_address.send(service.address().to_owned());
                service.run()
            }
        };
        let thread = NodeThread::start("schedule", serve)?;
        let mut serving = Serving { thread: Some(thread), stop };
        let node = NodeConfig { identity: driver, join_timeout: REACH, ..config.node.clone() };
        let mut endpoint = lane::open(&node, SILENCE_MAX)?;
        let address = loop {
            match address.try_recv() {
                Ok(address) => break address,
                Err(TryRecvError::Empty) => endpoint.wait(LOOK)?,
                Err(TryRecvError::Disconnected) => {
                    serving.end()?;
                    return Err(ended("it did not listen"));
                }
            }
        };
        config.node.scheduler = address;
        // The thread was there before, so where nothing listens it has ended, and says why.
        let node = NodeConfig { scheduler: config.node.scheduler.clone(), launched: true, ..node };
        let lane = match SchedulerLane::connect(endpoint, &node, None) {
            Ok(lane) => lane,
            Err(error) => {
                serving.end()?;
                return Err(error);
            }
        };
        let scheduler =
            SchedulerClient { serving: Some(serving), ..SchedulerClient::of(lane, config) };
        scheduler.watching()
    }

    /// The scheduler of a cluster that another process has started, for a driver of the job `job`,
    /// which is a name alone if it `visits`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if nothing listens at the address in `config`; [`Error::Config`] if
    /// another driver has a job of that name; as [`SchedulerClient::gather`].
    pub(crate) fn attach(config: &NodeConfig, job: &str, visits: bool) -> Result<SchedulerClient> {
        let mut scheduler = SchedulerClient::reach(config)?;
        // Until the roster says whether it comes back.
        scheduler.lane.outlast(config.scheduler_away);
        let () = scheduler.ask(&Command::Begin { job: job.to_owned(), visits })?;
        let mut scheduler = scheduler.watching()?;
        let van = scheduler.gather(|| Ok(()))?;
        let SchedulerClient { config, roster: Some(roster), .. } = &mut scheduler else {
            unreachable!("it is gathered");
        };
        config.servers = roster.servers.len();
        config.workers = roster.workers;
        (config.node.van, config.node.vans) = (van, roster.vans.clone());
        Ok(scheduler)
    }

    /// The scheduler of a cluster that another process has started, for a driver without a job.
    ///
    /// # Errors
    /// [`Error::Timeout`] if nothing listens at the address in `config`.
    pub(crate) fn reach(config: &NodeConfig) -> Result<SchedulerClient> {
        let identity = control::identity(control::GUEST, None);
        let node = NodeConfig { identity, launched: false, ..config.secured()? };
        let lane = SchedulerLane::reach(&node)?;
        Ok(SchedulerClient::of(lane, ClusterConfig { node, ..ClusterConfig::default() }))
    }

    /// The jobs of the cluster.
    ///
    /// # Errors
    /// [`Error::NodeLost`].
    pub(crate) fn jobs(&mut self) -> Result<Vec<JobStatus>> {
        self.ask(&Command::Jobs)
    }

    /// Why no changes are taken now, if that is so.
    ///
    /// # Errors
    /// [`Error::NodeLost`].
    pub(crate) fn paused(&mut self) -> Result<Option<String>> {
        self.ask(&Command::Paused)
    }

    /// Ends the job of another driver, and waits until all workers have forgotten it.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such job; [`Error::NodeLost`].
    pub(crate) fn cancel(&mut self, job: &str) -> Result<()> {
        self.ask(&Command::Cancel { job: job.to_owned() })
    }

    fn of(lane: SchedulerLane, config: ClusterConfig) -> SchedulerClient {
        SchedulerClient {
            lane,
            serving: None,
            config,
            rpc: Rpc::default(),
            roster: None,
            watch: 0,
            losses: Losses::default(),
            gathering: None,
            gathered: None,
            asked: 0,
            answer: None,
        }
    }

    /// Asks to be told of losses.
    fn watching(mut self) -> Result<SchedulerClient> {
        self.watch = self.lane.ask(&Command::Watch(control::Heard::default()))?;
        Ok(self)
    }

    /// The settings of the cluster. Of one that another process has started, every server thread
    /// counts as a server.
    pub(crate) fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// The cluster, as this driver sees it.
    ///
    /// # Errors
    /// [`Error::Config`] before [`SchedulerClient::gather`] has returned.
    pub(crate) fn roster(&self) -> Result<Roster> {
        let why = "gather the cluster before you make clients of it";
        self.roster.clone().ok_or_else(|| Error::Config(why.to_owned()))
    }

    /// The address where nodes join.
    pub fn address(&self) -> &str {
        self.lane.address()
    }

    /// Waits until all servers and workers have joined, and returns this driver's van. Calls
    /// `check` now and then, which may know that a node will never join.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the missing nodes; [`Error::Config`] says which node lacks which
    /// van if none works for all; those of `check`.
    pub fn gather(&mut self, mut check: impl FnMut() -> Result<()>) -> Result<Van> {
        if let Some(roster) = &self.roster {
            return Ok(roster.van);
        }
        if self.gathering.is_none() {
            self.gathering = Some(self.lane.ask(&Command::Gather)?);
        }
        let gathered = loop {
            self.poll()?;
            match self.gathered.take() {
                Some(gathered) => break gathered,
                None => check()?,
            }
            self.lane.wait(BACKOFF)?;
        };
        match gathered {
            Gathered::All(roster) => {
                // That of this process does not come back without it.
                if self.serving.is_none() {
                    self.lane.outlast(roster.away_max);
                }
                Ok(self.roster.insert(roster).van)
            }
            Gathered::NoVan(why) => Err(Error::Config(why)),
            Gathered::Missing(missing) => Err(Error::Timeout {
                what: format!("the cluster at {}", self.address()),
                seconds: self.config.node.join_timeout.as_secs_f64(),
                missing,
            }),
        }
    }

    /// All server threads of the roster, in its order; empty before [`SchedulerClient::gather`] has
    /// returned.
    pub fn servers(&self) -> Vec<ServerAddress> {
        self.roster.as_ref().map_or_else(Vec::new, |roster| roster.servers.clone())
    }

    /// Starts `app` with input `body` at the target.
    ///
    /// # Errors
    /// [`Error::NodeLost`]; [`Error::Config`] if there is no such worker, or one has too many tasks
    /// that it has not finished.
    pub fn submit(
        &mut self,
        target: Target,
        app: &str,
        body: &serde_json::Value,
    ) -> Result<TaskId> {
        let program = Program::App { app: app.to_owned(), body: body.clone() };
        self.submit_in("", target, program, &[])
    }

    /// As [`SchedulerClient::submit`], in a part of the job, once the tasks `after` are finished.
    pub(crate) fn submit_in(
        &mut self,
        part: &str,
        target: Target,
        program: Program,
        after: &[TaskId],
    ) -> Result<TaskId> {
        let part = part.to_owned();
        let after = after.iter().map(|task| task.0).collect();
        let submitted: Submitted = self.ask(&Command::Submit { part, target, program, after })?;
        submitted.started().map(TaskId)
    }

    /// Adds a task that nobody runs, and that is finished when the driver says so.
    ///
    /// # Errors
    /// As [`SchedulerClient::submit`].
    pub fn promise(&mut self) -> Result<TaskId> {
        let submitted: Submitted = self.ask(&Command::Promise)?;
        submitted.started().map(TaskId)
    }

    /// Finishes a task of [`SchedulerClient::promise`].
    ///
    /// # Errors
    /// [`Error::UnknownTimestamp`] if there is no such task.
    pub fn finish(&mut self, task: TaskId) -> Result<()> {
        match self.ask(&Command::Finish { task: task.0 })? {
            true => Ok(()),
            false => Err(Error::UnknownTimestamp { timestamp: task.0 }),
        }
    }

    /// Makes the workers forget a part of the job, and drops its tables.
    ///
    /// # Errors
    /// As [`SchedulerClient::wait`].
    pub(crate) fn forget(&mut self, part: &str) -> Result<()> {
        let submitted: Submitted = self.ask(&Command::Forget { part: part.to_owned() })?;
        let task = TaskId(submitted.started()?);
        self.wait(task).map(drop)
    }

    /// Waits for a task and returns the workers' results, in order of rank, without those of
    /// workers that were lost meanwhile and are not needed ([`NodeConfig::losses_max`]).
    ///
    /// # Errors
    /// [`Error::TaskFailed`] and [`Error::NodeLost`] name the node, of several that have failed the
    /// first.
    pub fn wait(&mut self, task: TaskId) -> Result<Vec<serde_json::Value>> {
        let (app, mut reports, first) = match self.ask(&Command::Wait { task: task.0 })? {
            Waited::Done { app, reports, first } => (app, reports, first),
            Waited::Lost(loss) => return Err(loss.into()),
            Waited::Unknown => return Err(Error::UnknownTimestamp { timestamp: task.0 }),
        };
        if reports.values().any(Result::is_err) {
            self.glance()?; // a lost node is the reason of what others report
        }
        let first = first.and_then(|rank| reports.remove_entry(&rank));
        let results = first.into_iter().chain(reports).map(|(rank, report)| {
            let node = format!("worker {rank}");
            report.map_err(|reason| Error::TaskFailed { node, app: app.clone(), reason })
        });
        results.collect()
    }

    /// Waits until one of these tasks is done, or this time is over; returns the first. A wait for
    /// it ends at once.
    ///
    /// # Errors
    /// Only if the control van itself is broken.
    pub fn wait_first(&mut self, tasks: &[TaskId], time: Duration) -> Result<Option<TaskId>> {
        let tasks = tasks.iter().map(|task| task.0).collect();
        self.answer = None;
        self.asked = self.lane.ask(&Command::First { tasks })?;
        let until = self.now().saturating_add(time);
        loop {
            self.poll()?;
            if let Some(answer) = self.answer.take() {
                return Ok(Some(TaskId(serde_json::from_str(&answer)?)));
            }
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return Ok(None);
            }
            self.lane.wait(left.min(self.config.node.heartbeat))?;
        }
    }

    /// Takes in what the scheduler's thread has said, without blocking; returns whether there was
    /// anything.
    ///
    /// # Errors
    /// Only if the control van itself is broken.
    pub fn poll(&mut self) -> Result<bool> {
        let mut any = false;
        loop {
            while let Some(heard) = self.lane.hear()? {
                any = true;
                self.enter(heard)?;
            }
            if !self.rpc.flush(&mut self.lane, Command::Post)? {
                return Ok(any);
            }
        }
    }

    fn enter(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Answer { to, body } if to == self.watch => {
                let losses: Losses = serde_json::from_str(&body)?;
                let Losses { fatal, servers, events, cancelled } = losses;
                self.losses.servers.extend(servers);
                self.losses.events.extend(events);
                if fatal.is_some() {
                    self.lane.outlast(Duration::ZERO); // it does not come back
                }
                self.losses = Losses { fatal, cancelled, ..std::mem::take(&mut self.losses) };
                if self.losses.fatal.is_none() && self.losses.cancelled.is_none() {
                    let Losses { servers, events, .. } = &self.losses;
                    let (lost, events) = (servers.len(), events.len());
                    let heard = control::Heard { lost, events };
                    self.watch = self.lane.ask(&Command::Watch(heard))?;
                }
            }
            Heard::Answer { to, body } if Some(to) == self.gathering => {
                self.gathering = None;
                self.gathered = Some(serde_json::from_str(&body)?);
            }
            Heard::Answer { to, body } if to == self.asked => self.answer = Some(body),
            Heard::Answer { to, body } => self.rpc.acknowledge(to, &body)?,
            Heard::Order { number, order: Order::Envelopes(envelopes) } => {
                self.lane.answer(number, &())?;
                self.rpc.deliver(envelopes);
            }
            Heard::Order { .. } => {} // for nodes only
            Heard::Refused { to, why } if self.rpc.refused(to, &why) => {}
            Heard::Refused { why, .. } => {
                self.cancelled()?;
                return Err(Error::Config(why));
            }
            Heard::Closed(why) => return Err(self.broken(&why)),
        }
        Ok(())
    }

    /// As [`SchedulerClient::poll`], for a caller that waits for something else.
    ///
    /// # Errors
    /// As [`SchedulerClient::check_members`].
    pub(crate) fn glance(&mut self) -> Result<()> {
        self.poll()?;
        match self.losses.fatal.clone() {
            Some(loss) => Err(loss.into()),
            None => self.cancelled(),
        }
    }

    fn cancelled(&self) -> Result<()> {
        let cancelled = self.losses.cancelled.clone();
        cancelled.map_or(Ok(()), |job| Err(Error::Cancelled { job }))
    }

    /// As [`SchedulerClient::glance`]; returns the server threads that are lost, have joined or
    /// have left so far.
    ///
    /// # Errors
    /// As [`SchedulerClient::check_members`].
    pub(crate) fn news(&mut self) -> Result<News> {
        self.glance()?;
        let Losses { servers, events, .. } = &self.losses;
        Ok(News { lost: servers.clone(), events: events.clone() })
    }

    /// Checks that all members are alive.
    ///
    /// # Errors
    /// [`Error::NodeLost`] names the first that is not.
    pub fn check_members(&mut self) -> Result<()> {
        let lost: Option<Loss> = self.ask(&Command::Check)?;
        lost.map_or(Ok(()), |loss| Err(loss.into()))
    }

    /// Tells all nodes that the job is over, and waits briefly for them to end.
    ///
    /// # Errors
    /// Only if the control van itself is broken.
    pub fn end(&mut self, reason: Option<&str>) -> Result<()> {
        self.ask(&Command::End { reason: reason.unwrap_or("the job is over").to_owned() })
    }

    /// Waits until a node is lost, or `goes_on` returns false.
    ///
    /// # Errors
    /// [`Error::NodeLost`] names it.
    pub fn watch(&mut self, mut goes_on: impl FnMut() -> bool) -> Result<()> {
        while goes_on() {
            self.glance()?;
            self.lane.wait(self.config.node.heartbeat)?;
        }
        Ok(())
    }

    /// Time on the clock of the control plane.
    pub(crate) fn now(&self) -> Duration {
        self.lane.now()
    }

    /// Lets up to this much time pass.
    ///
    /// # Errors
    /// As [`SchedulerClient::poll`].
    pub(crate) fn backoff(&mut self, time: Duration) -> Result<()> {
        self.poll()?;
        self.lane.wait(time)
    }

    /// Asks the thread and waits for its answer. It answers everything in time, or its lane breaks.
    ///
    /// # Errors
    /// [`Error::Config`] if it refuses, as [`Command`] says; [`Error::NodeLost`].
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, what: &Command) -> Result<T> {
        self.answer = None;
        self.asked = self.lane.ask(what)?;
        loop {
            self.poll()?;
            if let Some(answer) = self.answer.take() {
                return Ok(serde_json::from_str(&answer)?);
            }
            self.lane.wait(self.config.node.heartbeat)?;
        }
    }

    /// The error of a thread that no longer serves.
    fn broken(&mut self, why: &str) -> Error {
        match &mut self.serving {
            Some(serving) => serving.end().err().unwrap_or_else(|| ended(why)),
            None => {
                let node = format!("the scheduler at {}", self.address());
                Error::NodeLost { node, reason: why.to_owned() }
            }
        }
    }
}

impl AtRpc for SchedulerClient {
    fn rpc(&mut self) -> &mut Rpc {
        &mut self.rpc
    }

    fn lane(&mut self) -> &mut SchedulerLane {
        &mut self.lane
    }

    fn look(&mut self) -> Result<()> {
        self.glance()
    }
}

fn ended(why: &str) -> Error {
    let node = "the thread of the scheduler".to_owned();
    Error::NodeLost { node, reason: why.to_owned() }
}
