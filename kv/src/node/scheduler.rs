//! The scheduler: admits nodes, assigns ranks and key ranges, sends tasks, keeps barriers, detects
//! lost nodes.
//!
//! It has no thread of its own: the driver of the job calls it, and while a call waits it serves
//! all nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Endpoint, Message, PeerId, Wait};

use super::backend::{self, Van};
use super::barriers::{Barriers, Waiting};
use super::choice::{self, Candidate};
use super::control::{self, Ask, Join, Order, Pulse, Report, Role, Roster};
use super::members::{Members, Violation, describe};
use super::roles::without_threads;
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::{Error, Result};
use crate::worker::ServerAddress;

/// Longest sleep while waiting.
const NAP: Duration = Duration::from_millis(20);

/// Time between two warnings of a wait.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// Credits of lanes to the scheduler; a node makes few requests at a time.
const CREDITS: u16 = 64;

/// Number of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(u64);

/// The workers that run a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Every worker.
    Workers,
    /// The worker of this rank.
    Worker(usize),
}

/// The cluster's scheduler.
pub struct Scheduler {
    endpoint: Endpoint,
    config: ClusterConfig,
    /// The vans that this process can use, if it is a client of the servers as well.
    own: Option<Vec<Candidate>>,
    members: Members,
    barriers: Barriers,
    tasks: BTreeMap<TaskId, Running>,
    task_count: u64,
    /// Once all have joined: the common van, or why there is none.
    chosen: Option<Result<Van, String>>,
    ended: Option<String>,
}

struct Running {
    app: String,
    missing: Vec<usize>,
    reports: BTreeMap<usize, Report>,
}

impl Scheduler {
    /// Listens at the address in `config`; port 0 selects a free one.
    ///
    /// # Errors
    /// If the address cannot be bound; [`Error::Config`] if others can reach it and there is no
    /// secret.
    pub fn bind(config: &ClusterConfig) -> Result<Scheduler> {
        let mut config = config.clone();
        let identity = control::identity(control::SCHEDULER, None);
        config.node = NodeConfig { identity, ..config.node.secured()? };
        let mut van = config.node.van_config(0);
        van.listen = config.node.scheduler.clone();
        van.wait = Wait::Block;
        van.credits = CREDITS;
        let endpoint = Endpoint::new(backend::open_control(config.node.van, &van)?, 0, CREDITS);
        config.node.scheduler = endpoint.address().to_owned();
        let members = Members::new(&config, endpoint.now());
        Ok(Scheduler {
            endpoint,
            config,
            own: None,
            members,
            barriers: Barriers::default(),
            tasks: BTreeMap::new(),
            task_count: 0,
            chosen: None,
            ended: None,
        })
    }

    /// The address where nodes join.
    pub fn address(&self) -> &str {
        self.endpoint.address()
    }

    /// Includes this process in the choice of the van, because it will push and pull as well.
    ///
    /// # Errors
    /// If a van was named and does not work here.
    pub(crate) fn take_part(&mut self) -> Result<()> {
        self.own = Some(without_threads(&self.config.node)?);
        Ok(())
    }

    /// Waits until all servers and workers have joined, and returns their common van. Calls `check`
    /// now and then, which may know that a node will never join.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the missing nodes; [`Error::Config`] says which node lacks which
    /// van if none works for all; those of `check`.
    pub fn gather(&mut self, mut check: impl FnMut() -> Result<()>) -> Result<Van> {
        let timeout = self.config.node.join_timeout;
        let began = self.endpoint.now();
        let mut warned = began;
        loop {
            if let Some(chosen) = &self.chosen {
                return chosen.clone().map_err(Error::Config);
            }
            check()?;
            self.look()?;
            let now = self.endpoint.now();
            if now - began > timeout {
                let what = format!("the cluster at {}", self.address());
                return Err(Error::Timeout {
                    what,
                    seconds: timeout.as_secs_f64(),
                    missing: self.members.missing(),
                });
            }
            if now - warned > WARN_EVERY {
                warned = now;
                tracing::warn!(
                    missing = self.members.missing(),
                    scheduler = self.address(),
                    "waiting for nodes to join"
                );
            }
            self.endpoint.wait(NAP)?;
        }
    }

    /// All server threads, in order of key ranges; empty before the cluster is complete.
    pub fn servers(&self) -> Vec<ServerAddress> {
        let complete = matches!(self.chosen, Some(Ok(_)));
        let servers = self.members.iter().filter(|(seat, _)| complete && seat.role == Role::Server);
        let threads = servers.flat_map(|(seat, member)| {
            member.threads().iter().enumerate().map(move |(thread, address)| ServerAddress {
                name: format!("{seat} thread {thread}"),
                address: address.clone(),
            })
        });
        threads.collect()
    }

    /// Starts `app` with input `body` at the target.
    ///
    /// # Errors
    /// [`Error::NodeLost`].
    pub fn submit(
        &mut self,
        target: Target,
        app: &str,
        body: &serde_json::Value,
    ) -> Result<TaskId> {
        let ranks: Vec<usize> = match target {
            Target::Workers => (0..self.config.workers).collect(),
            Target::Worker(rank) if rank < self.config.workers => vec![rank],
            Target::Worker(rank) => {
                return Err(Error::Config(format!(
                    "there is no worker {rank}, there are {}",
                    self.config.workers
                )));
            }
        };
        self.task_count += 1;
        let task = TaskId(self.task_count);
        let order = Order::Run { app: app.to_owned(), body: body.clone() };
        for &rank in &ranks {
            let worker = self.members.worker(rank)?;
            control::ask(&mut self.endpoint, worker.peer, task.0, &order)?;
        }
        self.tasks.insert(
            task,
            Running { app: app.to_owned(), missing: ranks, reports: BTreeMap::new() },
        );
        self.poll()?; // a quick worker's answer may be there already
        Ok(task)
    }

    /// Waits for a task and returns the workers' results, in order of rank.
    ///
    /// # Errors
    /// [`Error::TaskFailed`] and [`Error::NodeLost`] name the node.
    pub fn wait(&mut self, task: TaskId) -> Result<Vec<serde_json::Value>> {
        while self.tasks.get(&task).is_some_and(|running| !running.missing.is_empty()) {
            if !self.look()? {
                self.endpoint.wait(NAP)?;
            }
        }
        let Some(running) = self.tasks.remove(&task) else {
            return Err(Error::UnknownTimestamp { timestamp: task.0 });
        };
        let report = |(rank, report): (usize, Report)| {
            let node = format!("worker {rank}");
            report.map_err(|reason| Error::TaskFailed { node, app: running.app.clone(), reason })
        };
        running.reports.into_iter().map(report).collect()
    }

    /// Serves pending requests without blocking; returns whether there were any.
    ///
    /// # Errors
    /// Only if the control van itself is broken.
    pub fn poll(&mut self) -> Result<bool> {
        self.members.listen(self.endpoint.now());
        let any = self.endpoint.poll()?;
        while let Some(arrival) = self.endpoint.take() {
            let peer = arrival.peer();
            let outcome = match arrival {
                // The scheduler makes no offers, and every answer has a body.
                Arrival::Placed { .. } | Arrival::Answered { .. } => Ok(()),
                Arrival::Connected { hello, .. } => self.members.connected(peer, &hello),
                Arrival::Lost { error, .. } => {
                    self.lose(peer, &error.to_string());
                    Ok(())
                }
                Arrival::Message { message, .. } => self.serve(peer, &message),
            };
            if let Err(violation) = outcome {
                self.reject(peer, &violation);
            }
        }
        Ok(any)
    }

    /// As [`Scheduler::poll`], and checks for lost members now and then. Used by every wait.
    ///
    /// # Errors
    /// As [`Scheduler::check_members`].
    pub(crate) fn look(&mut self) -> Result<bool> {
        let any = self.poll()?;
        if self.ended.is_none() && (!any || self.members.check_is_due()) {
            self.check_members()?;
        }
        Ok(any)
    }

    /// As [`Scheduler::look`], for a caller that waits for something else.
    ///
    /// # Errors
    /// As [`Scheduler::check_members`].
    pub(crate) fn glance(&mut self) -> Result<()> {
        // A transport accepts new connections when it sleeps, and rarely when it is polled.
        self.endpoint.wait(Duration::from_micros(1))?;
        self.look().map(drop)
    }

    /// Checks that all members are alive.
    ///
    /// # Errors
    /// [`Error::NodeLost`] names the first that is not.
    pub fn check_members(&mut self) -> Result<()> {
        for (peer, violation) in self.members.idle_lanes() {
            self.reject(peer, &violation);
        }
        self.members.check()
    }

    /// Tells all nodes that the job is over, and waits briefly for them to end.
    ///
    /// # Errors
    /// Only if the control van itself is broken.
    pub fn end(&mut self, reason: Option<&str>) -> Result<()> {
        self.ended = Some(reason.unwrap_or("the job is over").to_owned());
        self.task_count += 1;
        for (_, member) in self.members.iter().filter(|(_, member)| member.lost.is_none()) {
            // A lane that breaks now belongs to a node that has ended.
            let _ = control::ask(&mut self.endpoint, member.peer, self.task_count, &Order::End);
        }
        let until = self.endpoint.now() + Duration::from_secs(2);
        while self.endpoint.now() < until && !self.members.all_are_gone() {
            self.poll()?;
            self.endpoint.wait(NAP)?;
        }
        Ok(())
    }

    /// Serves the nodes until one is lost.
    ///
    /// # Errors
    /// [`Error::NodeLost`] names it.
    pub fn watch(&mut self) -> Result<()> {
        loop {
            if !self.look()? {
                self.endpoint.wait(NAP)?;
            }
        }
    }

    /// Closes a lane that broke the rules.
    fn reject(&mut self, peer: PeerId, violation: &Violation) {
        let why = violation.to_string();
        tracing::warn!(%peer, why, "closing a lane");
        self.endpoint.disconnect(peer);
        self.lose(peer, &why);
    }

    fn lose(&mut self, peer: PeerId, reason: &str) {
        if let Some(seat) = self.members.leave(peer, reason) {
            self.barriers.forget(seat);
        }
    }

    fn serve(&mut self, peer: PeerId, message: &Message) -> Result<(), Violation> {
        let timestamp = message.timestamp();
        match message.kind() {
            Kind::Request => {}
            Kind::Failure => return Err(Violation::Failure),
            _ => return self.report(peer, message),
        }
        match control::read::<Ask>(message)? {
            Ask::Join(join) => self.join(peer, timestamp, join),
            Ask::Barrier { name } => {
                let seat = self.members.of(peer, "a barrier")?;
                let size = self.members.size(seat.role);
                let waiting = Waiting { seat, peer, timestamp };
                for Waiting { peer, timestamp, .. } in self.barriers.arrive(name, waiting, size)? {
                    // A lane that breaks now is reported separately; the others do not wait for it.
                    let _ = control::answer(&mut self.endpoint, peer, timestamp, &());
                }
                Ok(())
            }
            Ask::Missing { name } => {
                let seat = self.members.of(peer, "who is missing")?;
                let Some(came) = self.barriers.give_up(name, seat) else {
                    let why = "it does not wait at a barrier of that name";
                    return Ok(control::refuse(&mut self.endpoint, peer, timestamp, why)?);
                };
                let missing = (0..self.members.size(seat.role)).filter(|rank| !came.contains(rank));
                let names: Vec<_> = missing.map(|rank| format!("{} {rank}", seat.role)).collect();
                Ok(control::answer(&mut self.endpoint, peer, timestamp, &names.join(", "))?)
            }
            Ask::Alive => {
                self.members.alive(peer)?;
                let pulse = Pulse { ended: self.ended.clone() };
                Ok(control::answer(&mut self.endpoint, peer, timestamp, &pulse)?)
            }
        }
    }

    /// Admits a node; the last one triggers the choice of the van and its announcement.
    fn join(&mut self, peer: PeerId, timestamp: u64, join: Join) -> Result<(), Violation> {
        let pid = join.pid;
        if let Err(error) = self.members.join(peer, timestamp, join)? {
            let why = error.to_string();
            tracing::warn!(why, pid, "refusing a node");
            return Ok(control::refuse(&mut self.endpoint, peer, timestamp, &why)?);
        }
        if self.members.all_are_in() && self.chosen.is_none() {
            self.chosen = Some(self.choose_van());
            self.announce();
        }
        Ok(())
    }

    /// Chooses the van of the whole cluster; other vans are forgotten.
    fn choose_van(&mut self) -> Result<Van, String> {
        let own = self.own.iter().map(|own| ("the scheduler".to_owned(), &own[..]));
        let nodes = self.members.iter();
        let nodes = nodes.map(|(seat, member)| (describe(seat, member), &member.join.vans[..]));
        let (van, passed_over) = choice::choose(&nodes.chain(own).collect::<Vec<_>>());
        passed_over.iter().for_each(|line| tracing::info!("{line}"));
        let chosen =
            van.ok_or_else(|| format!("no van works for all nodes; {}", passed_over.join("; ")));
        if let Ok(van) = &chosen {
            tracing::info!(%van, "all nodes take it");
        }
        self.members.complete(|member| member.join.vans.retain(|known| Some(known.van) == van));
        chosen
    }

    /// Sends every node the roster, or why there is no common van.
    fn announce(&mut self) {
        let servers = self.servers();
        let mut first_thread = 0;
        for (node, (seat, member)) in (1..).zip(self.members.iter()) {
            // A lane that breaks now is reported separately; the others still get their answer.
            let peer = member.peer;
            let joined_as = member.joined_as;
            let _ = match &self.chosen {
                Some(Err(why)) => control::refuse(&mut self.endpoint, peer, joined_as, why),
                Some(Ok(van)) => {
                    let roster = Roster {
                        node,
                        rank: seat.rank,
                        van: *van,
                        servers: servers.clone(),
                        first_thread,
                        workers: self.config.workers,
                    };
                    control::answer(&mut self.endpoint, peer, joined_as, &roster)
                }
                None => return,
            };
            if seat.role == Role::Server {
                first_thread += member.threads().len();
            }
        }
    }

    /// Records a worker's result of a task; ignores results that were not requested or came before.
    fn report(&mut self, peer: PeerId, message: &Message) -> Result<(), Violation> {
        let seat = self.members.of(peer, "a report")?;
        let asked = self.tasks.get_mut(&TaskId(message.timestamp()));
        let asked = asked
            .filter(|running| seat.role == Role::Worker && running.missing.contains(&seat.rank));
        let Some(running) = asked else {
            tracing::warn!(node = %seat, "a report on a task that the node does not run");
            return Ok(());
        };
        running.reports.insert(seat.rank, control::read(message)?);
        running.missing.retain(|missing| *missing != seat.rank);
        Ok(())
    }
}
