//! The scheduler: takes nodes in, gives out ranks and key ranges, sends tasks, keeps barriers, notices who is gone.
//!
//! It has no thread of its own: whoever drives the job calls it, and while it waits for something it serves everybody.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Endpoint, Message, PeerId, Wait};

use super::backend::{self, Van};
use super::choice::{self, Candidate};
use super::control::{self, Ask, Order, Pulse, Report, Role, Roster};
use super::roles::without_threads;
use crate::config::ClusterConfig;
use crate::error::{Error, Result};
use crate::worker::ServerAddress;

/// One sleep while waiting.
const NAP: Duration = Duration::from_millis(20);

/// Whoever waits says so this often.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Lanes to the scheduler have this many credits: one node asks few things at a time.
const CREDITS: u16 = 64;

/// Number of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(u64);

/// Who runs a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Every worker.
    Workers,
    /// The worker of that rank.
    Worker(usize),
}

/// The cluster's scheduler.
pub struct Scheduler {
    endpoint: Endpoint,
    config: ClusterConfig,
    /// Which vans this process can take, if it is a client of the servers, too.
    own: Option<Vec<Candidate>>,
    /// Nodes that have asked to join, by role and rank.
    members: BTreeMap<(Role, usize), Member>,
    /// Which node a control lane belongs to, signs of life included.
    lanes: HashMap<PeerId, (Role, usize)>,
    /// Who waits at which barrier.
    barriers: BTreeMap<(Role, String), Vec<Waiting>>,
    tasks: BTreeMap<TaskId, Running>,
    task_count: u64,
    /// Once all have joined: the van that all take, or why there is none.
    chosen: Option<Result<Van, String>>,
    ended: Option<String>,
    /// When it last looked for signs of life, by the endpoint's clock.
    looked: Duration,
}

/// A rank at a barrier, and where to answer what.
type Waiting = (usize, PeerId, u64);

struct Member {
    peer: PeerId,
    joined_as: u64,
    pid: u32,
    /// Which vans it can take; only the chosen one when that is known.
    vans: Vec<Candidate>,
    seen: Duration,
    lost: Option<String>,
}

impl Member {
    /// Where its threads listen, for the first of its vans that works.
    fn threads(&self) -> &[String] {
        self.vans.iter().find_map(|van| van.threads.as_deref().ok()).unwrap_or_default()
    }
}

struct Running {
    app: String,
    missing: Vec<usize>,
    reports: BTreeMap<usize, Report>,
}

impl Scheduler {
    /// Listens at the address in `config`; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address cannot be bound; [`Error::Config`] when there is no secret, and others can reach it.
    pub fn bind(config: &ClusterConfig) -> Result<Scheduler> {
        let mut config = config.clone();
        config.node = config.node.secured()?;
        let mut van = config.node.van_config(0);
        van.listen = config.node.scheduler.clone();
        (van.wait, van.credits) = (Wait::Block, CREDITS);
        let endpoint = Endpoint::new(backend::open_control(config.node.van, &van)?, 0, CREDITS);
        config.node.scheduler = endpoint.address().to_owned();
        let looked = endpoint.now();
        Ok(Scheduler {
            endpoint,
            config,
            own: None,
            members: BTreeMap::new(),
            lanes: HashMap::new(),
            barriers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            task_count: 0,
            chosen: None,
            ended: None,
            looked,
        })
    }

    /// Where nodes join.
    pub fn address(&self) -> &str {
        self.endpoint.address()
    }

    /// Has this process count when the van is chosen: it wants to push and pull, too.
    ///
    /// # Errors
    /// When a van was named and does not work here.
    pub(crate) fn take_part(&mut self) -> Result<()> {
        self.own = Some(without_threads(&self.config.node)?);
        Ok(())
    }

    /// Waits until all servers and workers have joined, and returns the van that all take. `check` is called now and then: it may know that one never will.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the missing nodes; [`Error::Config`] says which node lacks which van when none works for all;
    /// what `check` says.
    pub fn gather(&mut self, mut check: impl FnMut() -> Result<()>) -> Result<Van> {
        let timeout = self.config.node.join_timeout;
        let began = self.endpoint.now();
        let mut said = began;
        loop {
            if let Some(chosen) = &self.chosen {
                return chosen.clone().map_err(Error::Config);
            }
            check()?;
            self.poll()?;
            let now = self.endpoint.now();
            if now - began > timeout {
                let what = format!("the cluster at {}", self.address());
                return Err(Error::Timeout {
                    what,
                    seconds: timeout.as_secs_f64(),
                    missing: self.missing(),
                });
            }
            if now - said > SAY_EVERY {
                said = now;
                tracing::warn!(
                    missing = self.missing(),
                    scheduler = self.address(),
                    "waiting for nodes to join"
                );
            }
            self.endpoint.wait(NAP)?;
        }
    }

    /// All server threads, in the order of key ranges; empty before the cluster is complete.
    pub fn servers(&self) -> Vec<ServerAddress> {
        let complete = matches!(self.chosen, Some(Ok(_)));
        let servers =
            self.members.iter().filter(|((role, _), _)| complete && *role == Role::Server);
        let threads = servers.flat_map(|((_, rank), member)| {
            member.threads().iter().enumerate().map(move |(thread, address)| ServerAddress {
                name: format!("server {rank} thread {thread}"),
                address: address.clone(),
            })
        });
        threads.collect()
    }

    /// Has `app` run with `body` at the target.
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
            let member = &self.members[&(Role::Worker, rank)];
            if let Some(reason) = &member.lost {
                return Err(Error::NodeLost {
                    node: describe(Role::Worker, rank, member),
                    reason: reason.clone(),
                });
            }
            control::ask(&mut self.endpoint, member.peer, task.0, &order)?;
        }
        self.tasks.insert(
            task,
            Running { app: app.to_owned(), missing: ranks, reports: BTreeMap::new() },
        );
        self.poll()?; // a quick worker's answer may be there already
        Ok(task)
    }

    /// Waits for a task and returns what the nodes answered, in order of rank.
    ///
    /// # Errors
    /// [`Error::TaskFailed`] and [`Error::NodeLost`] name the node.
    pub fn wait(&mut self, task: TaskId) -> Result<Vec<serde_json::Value>> {
        while self.tasks.get(&task).is_some_and(|running| !running.missing.is_empty()) {
            if !self.poll()? {
                self.check_members()?;
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

    /// Serves whoever asked for something, without blocking; true if anybody did.
    ///
    /// # Errors
    /// Only when the control van itself is broken.
    pub fn poll(&mut self) -> Result<bool> {
        let now = self.endpoint.now();
        if now - self.looked > self.config.node.heartbeat {
            // It was this side that did not listen: nobody counts as silent for that.
            self.members.values_mut().for_each(|member| member.seen = now);
        }
        self.looked = now;
        let any = self.endpoint.poll()?;
        while let Some(arrival) = self.endpoint.take() {
            match arrival {
                // Nothing is offered here, and every answer says something.
                Arrival::Connected { .. } | Arrival::Placed { .. } | Arrival::Answered { .. } => {}
                Arrival::Lost { peer, error } => self.lose(peer, &error.to_string()),
                Arrival::Message { peer, message } => {
                    if let Err(error) = self.serve(peer, &message) {
                        tracing::warn!(%error, "dropping a node that sent what cannot be read");
                        self.endpoint.disconnect(peer);
                        self.lose(peer, &error.to_string());
                    }
                }
            }
        }
        Ok(any)
    }

    /// Tells all nodes that the job is over, and waits a moment for them to take note.
    ///
    /// # Errors
    /// Only when the control van itself is broken.
    pub fn end(&mut self, reason: Option<&str>) -> Result<()> {
        self.ended = Some(reason.unwrap_or("the job is over").to_owned());
        self.task_count += 1;
        for member in self.members.values().filter(|member| member.lost.is_none()) {
            // A lane that breaks now belongs to a node that has ended, too.
            let _ = control::ask(&mut self.endpoint, member.peer, self.task_count, &Order::End);
        }
        let until = self.endpoint.now() + Duration::from_secs(2);
        while self.endpoint.now() < until
            && self.members.values().any(|member| member.lost.is_none())
        {
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
            self.check_members()?;
            if !self.poll()? {
                self.endpoint.wait(NAP)?;
            }
        }
    }

    fn serve(&mut self, peer: PeerId, message: &Message) -> Result<()> {
        let timestamp = message.timestamp();
        if message.kind() != Kind::Request {
            return self.report(peer, message);
        }
        match control::read::<Ask>(message)? {
            Ask::Join { role, rank, pid, vans } => {
                let rank = match self.seat(role, rank) {
                    Ok(rank) => rank,
                    Err(error) => {
                        let why = error.to_string();
                        tracing::warn!(why, pid, "turning a node away");
                        return control::refuse(&mut self.endpoint, peer, timestamp, &why);
                    }
                };
                let member = Member {
                    peer,
                    joined_as: timestamp,
                    pid,
                    vans,
                    seen: self.endpoint.now(),
                    lost: None,
                };
                tracing::info!(node = describe(role, rank, &member), "joined");
                self.members.insert((role, rank), member);
                self.lanes.insert(peer, (role, rank));
                let all = self.config.servers + self.config.workers;
                if self.members.len() == all && self.chosen.is_none() {
                    self.chosen = Some(self.choose_van());
                    self.announce();
                }
            }
            Ask::Barrier { name } => {
                let Some(&(role, rank)) = self.lanes.get(&peer) else { return Ok(()) };
                let size = self.size(role);
                let waiting = self.barriers.entry((role, name.clone())).or_default();
                // Whoever asks again has given up waiting for the first answer.
                waiting.retain(|(waits, ..)| *waits != rank);
                waiting.push((rank, peer, timestamp));
                if waiting.len() == size {
                    let waiting = self.barriers.remove(&(role, name)).unwrap_or_default();
                    for (_, peer, timestamp) in waiting {
                        // A lane that breaks now is reported as such; the others are not kept waiting for it.
                        let _ = control::answer(&mut self.endpoint, peer, timestamp, &());
                    }
                }
            }
            Ask::Missing { name } => {
                let Some(&(role, rank)) = self.lanes.get(&peer) else { return Ok(()) };
                let waiting = self.barriers.entry((role, name)).or_default();
                let came = |rank| waiting.iter().any(|(waits, ..)| *waits == rank);
                let missing =
                    (0..self.config.workers.max(self.config.servers)).filter(|at| !came(*at));
                let missing = missing.filter(|at| self.members.contains_key(&(role, *at)));
                let names: Vec<_> = missing.map(|at| format!("{role} {at}")).collect();
                // It waits no more.
                waiting.retain(|(waits, ..)| *waits != rank);
                control::answer(&mut self.endpoint, peer, timestamp, &names.join(", "))?;
            }
            Ask::Alive { role, rank } => {
                self.lanes.insert(peer, (role, rank));
                if let Some(member) = self.members.get_mut(&(role, rank)) {
                    member.seen = self.endpoint.now();
                }
                let pulse = Pulse { ended: self.ended.clone() };
                control::answer(&mut self.endpoint, peer, timestamp, &pulse)?;
            }
        }
        Ok(())
    }

    /// The rank that a joining node gets: what it wants, or the first that is free.
    fn seat(&self, role: Role, wish: Option<usize>) -> Result<usize> {
        let free = |rank: &usize| !self.members.contains_key(&(role, *rank));
        let rank = match wish {
            Some(rank) => Some(rank).filter(|rank| *rank < self.size(role)).filter(free),
            None => (0..self.size(role)).find(free),
        };
        rank.ok_or_else(|| {
            let wish = wish.map_or(String::new(), |rank| format!(" {rank}"));
            Error::Config(format!(
                "no place for {role}{wish}: this cluster has {} of them",
                self.size(role)
            ))
        })
    }

    fn size(&self, role: Role) -> usize {
        match role {
            Role::Server => self.config.servers,
            Role::Worker => self.config.workers,
        }
    }

    /// The van for the whole cluster; what nodes have said of others is forgotten.
    fn choose_van(&mut self) -> Result<Van, String> {
        let describe = |(&(role, rank), member): (&(Role, usize), &_)| describe(role, rank, member);
        let own = self.own.iter().map(|own| ("the scheduler".to_owned(), &own[..]));
        let nodes = self.members.iter().map(|node| (describe(node), &node.1.vans[..])).chain(own);
        let (van, passed_over) = choice::choose(&nodes.collect::<Vec<_>>());
        passed_over.iter().for_each(|line| tracing::info!("{line}"));
        let van =
            van.ok_or_else(|| format!("no van works for all nodes; {}", passed_over.join("; ")))?;
        tracing::info!(%van, "all nodes take it");
        self.members.values_mut().for_each(|node| node.vans.retain(|known| known.van == van));
        Ok(van)
    }

    /// Tells every node who is who, or why they cannot work together.
    fn announce(&mut self) {
        let servers = self.servers();
        let mut first_thread = 0;
        for (node, (&(role, rank), member)) in (1..).zip(&self.members) {
            // A lane that breaks now is reported as such; the others must hear all the same.
            let (peer, joined_as) = (member.peer, member.joined_as);
            let _ = match &self.chosen {
                Some(Err(why)) => control::refuse(&mut self.endpoint, peer, joined_as, why),
                Some(Ok(van)) => {
                    let (van, servers, workers) = (*van, servers.clone(), self.config.workers);
                    let roster = Roster { node, rank, van, servers, first_thread, workers };
                    control::answer(&mut self.endpoint, peer, joined_as, &roster)
                }
                None => return,
            };
            if role == Role::Server {
                first_thread += member.threads().len();
            }
        }
    }

    fn report(&mut self, peer: PeerId, message: &Message) -> Result<()> {
        let Some(&(_, rank)) = self.lanes.get(&peer) else { return Ok(()) };
        let Some(running) = self.tasks.get_mut(&TaskId(message.timestamp())) else { return Ok(()) };
        running.missing.retain(|missing| *missing != rank);
        running.reports.insert(rank, control::read(message)?);
        Ok(())
    }

    fn lose(&mut self, peer: PeerId, reason: &str) {
        let Some(key) = self.lanes.remove(&peer) else { return };
        if self.chosen.is_none() {
            // Its place is free again: it may come back.
            tracing::warn!(reason, "{} {} left before all had joined", key.0, key.1);
            self.members.remove(&key);
            return;
        }
        if let Some(member) = self.members.get_mut(&key) {
            member.lost.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Whether all that joined are alive.
    ///
    /// # Errors
    /// [`Error::NodeLost`] names the first that is not.
    pub fn check_members(&mut self) -> Result<()> {
        let (patience, now) = (self.config.node.heartbeat * 5, self.endpoint.now());
        for (&(role, rank), member) in &self.members {
            let silent = now.saturating_sub(member.seen);
            let reason = match &member.lost {
                Some(reason) => reason.clone(),
                None if silent > patience && self.hears_hearts() => {
                    format!("no sign of life for {:.1} s", silent.as_secs_f64())
                }
                None => continue,
            };
            return Err(Error::NodeLost { node: describe(role, rank, member), reason });
        }
        Ok(())
    }

    /// Nodes that are threads of this process send no signs of life: they cannot stop without it.
    fn hears_hearts(&self) -> bool {
        let me = std::process::id();
        self.members.values().all(|member| member.pid != me)
    }

    fn missing(&self) -> String {
        let all = [(Role::Server, self.config.servers), (Role::Worker, self.config.workers)];
        let nodes =
            all.into_iter().flat_map(|(role, count)| (0..count).map(move |rank| (role, rank)));
        let missing = nodes.filter(|node| !self.members.contains_key(node));
        let names: Vec<_> = missing.map(|(role, rank)| format!("{role} {rank}")).collect();
        names.join(", ")
    }
}

fn describe(role: Role, rank: usize, member: &Member) -> String {
    match member.threads().first() {
        Some(address) => format!("{role} {rank} (process {} at {address})", member.pid),
        None => format!("{role} {rank} (process {})", member.pid),
    }
}
