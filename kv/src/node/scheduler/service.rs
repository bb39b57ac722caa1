//! The thread that schedules: admits nodes, assigns ranks and key ranges, sends tasks, keeps
//! barriers, notices lost nodes and tells everybody about them.
//!
//! It owns the control plane's endpoint and waits only there. The driver asks it as nodes do, by
//! messages, and proves by its incarnation that it is the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Endpoint, Identity, Message, PeerId, VanConfig};
use serde::Serialize;

use super::super::backend::{self, Van};
use super::super::barriers::{Barriers, Waiting};
use super::super::choice::{self, Candidate};
use super::super::control::{
    self, Ask, CREDITS, Command, Gathered, Join, Loss, Order, Pulse, Role, Roster, Submitted,
    Waited,
};
use super::super::lane::control_config;
use super::super::members::{Members, Violation, describe};
use super::tasks::Tasks;
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::Result;
use crate::worker::ServerAddress;

/// Time between two warnings of nodes that have not joined.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// Longest sleep before the driver has its lane.
const FIRST_NAP: Duration = Duration::from_millis(20);

/// How long nodes may take to leave when the job ends.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Most tasks that a worker may have at a time. The credits of its lane carry them, the news of a
/// loss, and the end.
pub(super) const TASKS_MAX: usize = CREDITS as usize - 2;

/// The state of the thread.
pub(super) struct Service {
    endpoint: Endpoint,
    config: ClusterConfig,
    /// The vans that this process can use, if it is a client of the servers as well.
    own: Option<Vec<Candidate>>,
    driver: Driver,
    members: Members,
    barriers: Barriers,
    tasks: Tasks,
    /// Once all have joined: the common van, or why there is none.
    chosen: Option<Result<Van, String>>,
    /// The first node that was lost, which everybody was told.
    lost: Option<Loss>,
    ended: Option<String>,
    stop: Arc<AtomicBool>,
}

/// The driver, and its requests that wait for an answer, by timestamp.
struct Driver {
    identity: Identity,
    lane: Option<PeerId>,
    is_gone: bool,
    gathers: Option<Gathers>,
    waits: Option<(u64, u64)>,
    watches: Option<u64>,
    ends: Option<(u64, Duration)>,
}

/// A driver that waits for all nodes.
struct Gathers {
    timestamp: u64,
    until: Duration,
    warn_at: Duration,
}

impl Service {
    /// Listens at the address in `config` for nodes and for `driver`. It ends with the driver's
    /// lane, or when `stop` is set before that is there.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub(super) fn bind(
        mut config: ClusterConfig,
        own: Option<Vec<Candidate>>,
        driver: Identity,
        stop: Arc<AtomicBool>,
    ) -> Result<Service> {
        let identity = control::identity(control::SCHEDULER, None);
        config.node = NodeConfig { identity, ..config.node };
        let listen = config.node.scheduler.clone();
        let van = VanConfig { listen, ..control_config(&config.node) };
        let endpoint = Endpoint::new(backend::open_control(config.node.van, &van)?, 0, CREDITS);
        let members = Members::new(&config, endpoint.lanes.now());
        let driver = Driver {
            identity: driver,
            lane: None,
            is_gone: false,
            gathers: None,
            waits: None,
            watches: None,
            ends: None,
        };
        Ok(Service {
            endpoint,
            config,
            own,
            driver,
            members,
            barriers: Barriers::default(),
            tasks: Tasks::default(),
            chosen: None,
            lost: None,
            ended: None,
            stop,
        })
    }

    /// The address where nodes join.
    pub(super) fn address(&self) -> &str {
        self.endpoint.lanes.address()
    }

    /// Serves until the driver is gone.
    ///
    /// # Errors
    /// Only if the control van itself is broken.
    pub(super) fn run(mut self) -> Result<()> {
        while !self.driver.is_gone && !self.stop.load(Ordering::Relaxed) {
            let any = self.poll()?;
            self.keep_time();
            if !any {
                self.endpoint.wait(self.nap())?;
            }
        }
        Ok(())
    }

    /// How long the thread may sleep.
    fn nap(&self) -> Duration {
        let now = self.endpoint.lanes.now();
        let gathers =
            self.driver.gathers.as_ref().map(|gathers| gathers.until.min(gathers.warn_at));
        let ends = self.driver.ends.map(|(_, until)| until);
        let first = self.driver.lane.is_none().then_some(now + FIRST_NAP);
        let timers = [gathers, ends, first].into_iter().flatten();
        let naps = timers.map(|until| until.saturating_sub(now));
        naps.fold(self.members.until_check(), Duration::min)
    }

    /// Serves pending requests; returns whether there were any.
    fn poll(&mut self) -> Result<bool> {
        self.members.listen(self.endpoint.lanes.now());
        let any = self.endpoint.poll()?;
        while let Some(arrival) = self.endpoint.take() {
            let peer = arrival.peer();
            let outcome = match arrival {
                Arrival::Placed { .. } => Ok(()), // the scheduler makes no offers
                Arrival::Connected { hello, .. } if self.driver.is_it(&hello) => {
                    self.driver.lane = Some(peer);
                    Ok(())
                }
                Arrival::Connected { hello, .. } => self.members.connected(peer, &hello),
                Arrival::Lost { error, .. } => {
                    self.driver.is_gone |= self.driver.lane == Some(peer);
                    self.lose(peer, &error.to_string());
                    Ok(())
                }
                Arrival::Message { .. } => match self.endpoint.pop() {
                    Some(message) if self.driver.lane == Some(peer) => self.obey(&message),
                    Some(message) => self.serve(peer, &message),
                    None => Ok(()),
                },
            };
            if let Err(violation) = outcome {
                self.reject(peer, &violation);
            }
        }
        Ok(any)
    }

    /// Does what is due: silent nodes and unused lanes are lost, and waits of the driver end.
    fn keep_time(&mut self) {
        let now = self.endpoint.lanes.now();
        if self.members.until_check().is_zero() {
            for (peer, violation) in self.members.idle_lanes() {
                self.reject(peer, &violation);
            }
            self.check_members();
        }
        if let Some(gathers) = &mut self.driver.gathers {
            if now >= gathers.until {
                self.end_gathering(Gathered::Missing(self.members.missing()));
            } else if now >= gathers.warn_at {
                gathers.warn_at = now + WARN_EVERY;
                let missing = self.members.missing();
                let scheduler = self.endpoint.lanes.address();
                tracing::warn!(missing, scheduler, "waiting for nodes to join");
            }
        }
        if let Some((timestamp, until)) = self.driver.ends
            && (now >= until || self.members.all_are_gone())
        {
            self.driver.ends = None;
            self.tell_driver(timestamp, &());
        }
    }

    /// Closes a lane that broke the rules.
    fn reject(&mut self, peer: PeerId, violation: &Violation) {
        let why = violation.to_string();
        tracing::warn!(%peer, why, "closing a lane");
        self.endpoint.disconnect(peer);
        self.driver.is_gone |= self.driver.lane == Some(peer);
        self.lose(peer, &why);
    }

    fn lose(&mut self, peer: PeerId, reason: &str) {
        if let Some(seat) = self.members.leave(peer, reason) {
            self.barriers.forget(seat);
            self.check_members();
        }
    }

    /// Looks for lost members, and tells everybody about the first.
    fn check_members(&mut self) {
        let Some(loss) = self.members.check() else { return };
        if self.lost.is_some() || self.ended.is_some() {
            return;
        }
        tracing::info!(node = loss.node, reason = loss.reason, "lost");
        self.lost = Some(loss.clone());
        if let Some(timestamp) = self.driver.watches.take() {
            self.tell_driver(timestamp, &loss);
        }
        if let Some((timestamp, _)) = self.driver.waits.take() {
            self.tell_driver(timestamp, &Waited::Lost(loss.clone()));
        }
        self.tell_members(&Order::Lost(loss));
    }

    /// Gives an order to every member that is there.
    fn tell_members(&mut self, order: &Order) {
        let number = self.tasks.next_number();
        for (_, member) in self.members.iter().filter(|(_, member)| member.lost.is_none()) {
            // A lane that breaks now is reported separately; the others do not wait for it.
            let _ = control::ask(&mut self.endpoint, member.peer, number, order);
        }
    }

    /// Answers the driver; its lane, if it breaks now, is reported separately.
    fn tell_driver(&mut self, timestamp: u64, what: &impl Serialize) {
        if let Some(lane) = self.driver.lane {
            let _ = control::answer(&mut self.endpoint, lane, timestamp, what);
        }
    }

    /// Does what the driver wants.
    fn obey(&mut self, message: &Message) -> Result<(), Violation> {
        let timestamp = message.timestamp();
        let now = self.endpoint.lanes.now();
        match control::read::<Command>(message)? {
            Command::Gather => {
                let until = now.saturating_add(self.config.node.join_timeout);
                let warn_at = now + WARN_EVERY;
                self.driver.gathers = Some(Gathers { timestamp, until, warn_at });
                self.gathered();
            }
            Command::Submit { ranks, app, body } => {
                let submitted = self.submit(ranks, app, body);
                self.tell_driver(timestamp, &submitted);
            }
            Command::Wait { task } => {
                self.driver.waits = Some((timestamp, task));
                self.waited();
            }
            Command::Watch => match &self.lost {
                Some(loss) => self.tell_driver(timestamp, &loss.clone()),
                None => self.driver.watches = Some(timestamp),
            },
            Command::Check => {
                self.check_members();
                self.tell_driver(timestamp, &self.lost.clone());
            }
            Command::End { reason } => {
                self.ended = Some(reason);
                self.tell_members(&Order::End);
                self.driver.ends = Some((timestamp, now + LEAVE_WITHIN));
            }
        }
        Ok(())
    }

    /// Sends a task to the workers of these ranks, or to none of them.
    fn submit(&mut self, ranks: Vec<usize>, app: String, body: serde_json::Value) -> Submitted {
        if let Some(loss) = &self.lost {
            return Submitted::Lost(loss.clone());
        }
        if let Some(&full) = ranks.iter().find(|&&rank| self.tasks.load(rank) >= TASKS_MAX) {
            return Submitted::Full(full);
        }
        let lanes: Result<Vec<PeerId>, Loss> =
            ranks.iter().map(|&rank| self.members.worker(rank)).collect();
        let lanes = match lanes {
            Ok(lanes) => lanes,
            Err(loss) => return Submitted::Lost(loss),
        };
        let number = self.tasks.next_number();
        let order = Order::Run { app: app.clone(), body };
        for lane in lanes {
            // A lane that breaks now is reported separately, and ends the wait for this task.
            let _ = control::ask(&mut self.endpoint, lane, number, &order);
        }
        self.tasks.add(number, app, ranks);
        Submitted::Task(number)
    }

    /// Answers a driver that waits for a task, if that is done or will never be.
    fn waited(&mut self) {
        let Some((timestamp, task)) = self.driver.waits else { return };
        let lost = || self.lost.clone().map(Waited::Lost);
        if let Some(waited) = self.tasks.take(task).or_else(lost) {
            self.driver.waits = None;
            self.tell_driver(timestamp, &waited);
        }
    }

    /// Answers a driver that waits for the cluster, if that is complete.
    fn gathered(&mut self) {
        match &self.chosen {
            None => {}
            Some(Err(why)) => self.end_gathering(Gathered::NoVan(why.clone())),
            Some(Ok(van)) => {
                let roster = self.roster(*van);
                self.end_gathering(Gathered::All(roster));
            }
        }
    }

    fn end_gathering(&mut self, outcome: Gathered) {
        if let Some(Gathers { timestamp, .. }) = self.driver.gathers.take() {
            self.tell_driver(timestamp, &outcome);
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
            self.gathered();
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

    /// The roster of the driver, which has no rank.
    fn roster(&self, van: Van) -> Roster {
        let servers = self.servers();
        Roster { node: 0, rank: 0, van, servers, first_thread: 0, workers: self.config.workers }
    }

    /// All server threads, in order of key ranges.
    fn servers(&self) -> Vec<ServerAddress> {
        let servers = self.members.iter().filter(|(seat, _)| seat.role == Role::Server);
        let threads = servers.flat_map(|(seat, member)| {
            member.threads().iter().enumerate().map(move |(thread, address)| ServerAddress {
                name: format!("{seat} thread {thread}"),
                address: address.clone(),
            })
        });
        threads.collect()
    }

    /// Sends every node the roster, or why there is no common van.
    fn announce(&mut self) {
        let Some(chosen) = &self.chosen else { return };
        let shared = chosen.as_ref().map(|van| self.roster(*van));
        let mut threads = 0;
        for (node, (seat, member)) in (1..).zip(self.members.iter()) {
            let (peer, joined_as) = (member.peer, member.joined_as);
            let first_thread = if seat.role == Role::Server { threads } else { 0 };
            threads += member.threads().len();
            // A lane that breaks now is reported separately; the others still get their answer.
            let _ = match &shared {
                Err(why) => control::refuse(&mut self.endpoint, peer, joined_as, why),
                Ok(shared) => {
                    let roster = Roster { node, rank: seat.rank, first_thread, ..shared.clone() };
                    control::answer(&mut self.endpoint, peer, joined_as, &roster)
                }
            };
        }
    }

    /// Records a worker's result of a task; ignores results that were not requested or came before.
    fn report(&mut self, peer: PeerId, message: &Message) -> Result<(), Violation> {
        let seat = self.members.of(peer, "a report")?;
        let task = message.timestamp();
        if seat.role != Role::Worker || !self.tasks.is_run_by(task, seat.rank) {
            tracing::warn!(node = %seat, "a report on a task that the node does not run");
            return Ok(());
        }
        self.tasks.report(task, seat.rank, control::read(message)?);
        self.waited();
        Ok(())
    }
}

impl Driver {
    /// Whether a lane with this hello is the driver's, and the first.
    fn is_it(&self, hello: &caravan_van::wire::Hello) -> bool {
        let Identity { role, incarnation, .. } = self.identity;
        self.lane.is_none() && hello.role == role && hello.incarnation.get() == incarnation
    }
}
