//! The thread that schedules: admits nodes, assigns ranks and key ranges, notices lost nodes and
//! tells everybody about them. Tasks are in `jobs.rs`, letters and barriers in `posts.rs`, servers
//! that join or leave the complete cluster in `further.rs`.
//!
//! It owns the control plane's endpoint and waits only there. Drivers ask it as nodes do, by
//! messages. The one that started the cluster proves by its incarnation who it is; others have jobs
//! of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Endpoint, Identity, Message, PeerId, VanConfig};

use super::super::backend::{self, Van};
use super::super::barriers::Waiting;
use super::super::choice::{self, Candidate, Chooser};
use super::super::control::{
    self, Ask, CREDITS, Command, Gathered, Join, Order, Program, Pulse, Role, Roster,
};
use super::super::group::NodeName;
use super::super::lane::control_config;
use super::super::members::{Members, Seat, Violation, describe};
use super::further;
use super::jobs::{Gathers, Jobs, Submission, Watch};
use super::plane::Plane;
use super::posts::Posts;
use super::tasks::At;
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::Result;
use crate::worker::ServerAddress;

/// Time between two warnings of nodes that have not joined.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// Longest sleep before the driver has its lane.
const FIRST_NAP: Duration = Duration::from_millis(20);

/// How long nodes may take to leave when the job ends.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The state of the thread.
pub(super) struct Service {
    plane: Plane,
    config: ClusterConfig,
    /// The vans that this process can use, if it is a client of the servers as well.
    own: Option<Vec<Candidate>>,
    /// The driver that started the cluster, which ends with it.
    launcher: Launcher,
    jobs: Jobs,
    posts: Posts,
    /// Once all have joined: the vans of the drivers, or why some nodes have none in common.
    chosen: Option<Result<Vec<Van>, String>>,
    ended: Option<String>,
    stop: Arc<AtomicBool>,
}

/// The driver that started the cluster.
struct Launcher {
    identity: Identity,
    is_gone: bool,
    /// Its request to end the cluster, and until when nodes may leave.
    ends: Option<(u64, Duration)>,
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
        let launcher = Launcher { identity: driver, is_gone: false, ends: None };
        Ok(Service {
            plane: Plane::new(endpoint, members),
            config,
            own,
            launcher,
            jobs: Jobs::default(),
            posts: Posts::default(),
            chosen: None,
            ended: None,
            stop,
        })
    }

    /// The address where nodes join.
    pub(super) fn address(&self) -> &str {
        self.plane.endpoint.lanes.address()
    }

    /// Serves until the driver is gone.
    ///
    /// # Errors
    /// Only if the control van itself is broken.
    pub(super) fn run(mut self) -> Result<()> {
        while !self.launcher.is_gone && !self.stop.load(Ordering::Relaxed) {
            let any = self.poll()?;
            self.keep_time();
            if !any {
                self.plane.endpoint.wait(self.nap())?;
            }
        }
        Ok(())
    }

    /// How long the thread may sleep.
    fn nap(&self) -> Duration {
        let now = self.plane.now();
        let gathers = self.jobs.drivers.values().filter_map(|driver| driver.gathers.as_ref());
        let gathers = gathers.map(|gathers| gathers.until.min(gathers.warn_at));
        let ends = self.launcher.ends.map(|(_, until)| until);
        let first = self.plane.launcher.is_none().then_some(now + FIRST_NAP);
        let timers = gathers.chain(ends).chain(first);
        let naps = timers.map(|until| until.saturating_sub(now));
        naps.fold(self.plane.members.until_check(), Duration::min)
    }

    /// Serves pending requests; returns whether there were any.
    fn poll(&mut self) -> Result<bool> {
        self.plane.members.listen(self.plane.now());
        let any = self.plane.endpoint.poll()?;
        while let Some(arrival) = self.plane.endpoint.take() {
            let peer = arrival.peer();
            let outcome = match arrival {
                Arrival::Placed { .. } => Ok(()), // the scheduler makes no offers
                Arrival::Connected { hello, .. }
                    if self.plane.launcher.is_none() && self.launcher.is_it(&hello) =>
                {
                    self.plane.launcher = Some(peer);
                    self.jobs.add_driver(peer, Some(String::new()));
                    Ok(())
                }
                Arrival::Connected { hello, .. } if hello.role == control::GUEST => {
                    self.jobs.add_driver(peer, None);
                    Ok(())
                }
                Arrival::Connected { hello, .. } => self.plane.members.connected(peer, &hello),
                Arrival::Lost { error, .. } => {
                    self.lose(peer, &error.to_string());
                    Ok(())
                }
                Arrival::Message { .. } => match self.plane.endpoint.pop() {
                    Some(message) if self.jobs.drivers.contains_key(&peer) => {
                        self.obey(peer, &message)
                    }
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
        let now = self.plane.now();
        if self.plane.members.until_check().is_zero() {
            for (peer, violation) in self.plane.members.idle_lanes() {
                self.reject(peer, &violation);
            }
            self.check_members();
        }
        let Service { plane, jobs, posts, .. } = self;
        plane.tell_untold(|| jobs.tasks.next_number());
        plane.tell_unheard(|| jobs.tasks.next_number());
        posts.tell_failures(plane, jobs.tasks.take_unheard());
        for (&peer, driver) in &mut jobs.drivers {
            let Some(gathers) = &mut driver.gathers else { continue };
            if now >= gathers.until {
                let missing = Gathered::Missing(plane.members.missing());
                plane.tell(peer, gathers.timestamp, &missing);
                driver.gathers = None;
            } else if now >= gathers.warn_at {
                gathers.warn_at = now + WARN_EVERY;
                let missing = plane.members.missing();
                let scheduler = plane.endpoint.lanes.address();
                tracing::warn!(missing, scheduler, "waiting for nodes to join");
            }
        }
        if let (Some((timestamp, until)), Some(lane)) = (self.launcher.ends, self.plane.launcher)
            && (now >= until || self.plane.members.all_are_gone())
        {
            self.launcher.ends = None;
            self.plane.tell(lane, timestamp, &());
        }
    }

    /// Closes a lane that broke the rules.
    fn reject(&mut self, peer: PeerId, violation: &Violation) {
        let why = violation.to_string();
        tracing::warn!(%peer, why, "closing a lane");
        self.plane.endpoint.disconnect(peer);
        self.lose(peer, &why);
    }

    fn lose(&mut self, peer: PeerId, reason: &str) {
        self.launcher.is_gone |= self.plane.launcher == Some(peer);
        let driver = self.jobs.name(peer).filter(|it| *it != NodeName::Scheduler);
        self.jobs.lose_driver(&mut self.plane, peer);
        driver.into_iter().for_each(|it| self.posts.lose(&mut self.plane, it, reason));
        if let Some(seat) = self.plane.members.leave(peer, reason) {
            self.check_members();
            let goes_on = self.plane.lost.is_none() && self.ended.is_none();
            if goes_on && self.plane.members.is_lost(seat) {
                self.go_on_without(seat, reason);
            }
        }
    }

    /// Has the others go on: nobody waits for this worker at barriers, in tasks and for answers.
    fn go_on_without(&mut self, seat: Seat, reason: &str) {
        match self.plane.members.has_left(seat) {
            true => tracing::info!(node = %seat, "has left"),
            false => tracing::warn!(node = %seat, "lost; the others go on"),
        }
        match seat.role {
            Role::Server => self.publish_lost_servers(),
            Role::Worker => {
                self.publish_lost_worker();
                self.jobs.lose_worker(&mut self.plane, seat.rank);
            }
        }
        self.posts.lose(&mut self.plane, NodeName::of(seat.role, seat.rank), reason);
        self.jobs.go_on(&mut self.plane);
    }

    /// Tells all members and drivers which server threads are lost.
    fn publish_lost_servers(&mut self) {
        let Service { plane, jobs, .. } = self;
        plane.enter_lost_threads();
        plane.tell_untold(|| jobs.tasks.next_number());
        jobs.answer_watches(plane);
    }

    /// Tells all servers which workers are lost.
    fn publish_lost_worker(&mut self) {
        let Service { plane, jobs, .. } = self;
        plane.enter_lost_worker();
        plane.tell_unheard(|| jobs.tasks.next_number());
    }

    /// Looks for lost members. Tells everybody about the first whose loss ends the cluster; closes
    /// the lanes of others.
    fn check_members(&mut self) {
        let silent = self.plane.members.check_silence();
        let Some(loss) = self.plane.members.fatal_loss() else {
            for peer in silent {
                self.plane.endpoint.disconnect(peer);
                self.lose(peer, "no heartbeat");
            }
            return;
        };
        if self.plane.lost.is_some() || self.ended.is_some() {
            return;
        }
        tracing::info!(node = loss.node, reason = loss.reason, "lost");
        self.plane.lost = Some(loss.clone());
        let Service { plane, jobs, .. } = self;
        jobs.answer_watches(plane);
        jobs.answer_waits(plane);
        plane.order_all(jobs.tasks.next_number(), &Order::Lost(loss));
    }

    /// Does what a driver wants.
    fn obey(&mut self, peer: PeerId, message: &Message) -> Result<(), Violation> {
        let timestamp = message.timestamp();
        let now = self.plane.now();
        let is_launcher = self.plane.launcher == Some(peer);
        if message.kind() != Kind::Request {
            if let Some(node) = self.jobs.name(peer) {
                self.posts.taken(&mut self.plane, node, timestamp);
            }
            return Ok(());
        }
        let Service { plane, jobs, posts, .. } = self;
        let command = control::read::<Command>(message)?;
        if jobs.answer_any(plane, peer, timestamp, &command) {
            return Ok(());
        }
        let driver = jobs.drivers.entry(peer).or_default();
        let job = match (&command, &driver.job) {
            (Command::Begin { job }, None) if driver.begins.is_none() => {
                jobs.begin(plane, peer, timestamp, job.clone());
                return Ok(());
            }
            (Command::Nodes, _) => {
                let states = plane.members.states();
                plane.tell(peer, timestamp, &states);
                return Ok(());
            }
            (Command::Begin { .. }, _) | (_, None) => return Err(Violation::Job),
            (_, Some(job)) => job.clone(),
        };
        match command {
            // These are answered already.
            Command::Begin { .. } | Command::Jobs | Command::Cancel { .. } | Command::Nodes => {}
            Command::Gather => {
                let until = now.saturating_add(self.config.node.join_timeout);
                let warn_at = now + WARN_EVERY;
                driver.gathers = Some(Gathers { timestamp, until, warn_at });
                self.gathered();
            }
            Command::Submit { part, target, program, after } => {
                let job = control::within(&job, &part);
                let submission = Submission { target, job, program, after, parent: None };
                let submitted = jobs.submit(plane, peer, submission);
                plane.tell(peer, timestamp, &submitted);
            }
            Command::Promise => {
                let submitted = jobs.promise(plane, peer);
                plane.tell(peer, timestamp, &submitted);
            }
            Command::Finish { task } => {
                let is_there = jobs.finish(plane, peer, task);
                plane.tell(peer, timestamp, &is_there);
            }
            Command::Forget { part } => {
                let submitted = jobs.forget(plane, Some(peer), control::within(&job, &part));
                plane.tell(peer, timestamp, &submitted);
            }
            Command::Post(post) => {
                let node = jobs.name(peer).ok_or(Violation::Job)?;
                return posts.take_in(plane, jobs, Waiting { node, peer, timestamp }, post);
            }
            Command::Wait { task } => jobs.wait(plane, peer, (timestamp, task)),
            Command::First { tasks } => jobs.wait_first(plane, peer, (timestamp, tasks)),
            Command::Watch(heard) => {
                driver.watches = Some(Watch { timestamp, heard });
                let losses = plane.losses(heard);
                if losses.is_news() {
                    driver.watches = None;
                    plane.tell(peer, timestamp, &losses);
                }
            }
            Command::MayLeave { server } => {
                let threads = further::may_leave(plane, server);
                plane.tell_or_refuse(peer, timestamp, threads);
            }
            Command::Leave { server, departed } => {
                let told = further::let_leave(plane, jobs, server, departed);
                plane.tell_or_refuse(peer, timestamp, told);
            }
            Command::Check => {
                self.check_members();
                let lost = self.plane.lost.clone();
                self.plane.tell(peer, timestamp, &lost);
            }
            Command::End { .. } if !is_launcher => return Err(Violation::NotLauncher),
            Command::End { reason } => {
                self.ended = Some(reason);
                plane.order_all(jobs.tasks.next_number(), &Order::End);
                self.launcher.ends = Some((timestamp, now + LEAVE_WITHIN));
            }
        }
        Ok(())
    }

    /// Answers the drivers that wait for the cluster, if that is complete.
    fn gathered(&mut self) {
        let Some(chosen) = self.chosen.clone() else { return };
        // Ids of drivers from outside follow those of the members.
        let members = self.plane.members.iter().count() as u32;
        let mut waiting = Vec::new();
        for (&peer, driver) in &mut self.jobs.drivers {
            let node = if driver.node == 0 { 0 } else { members + driver.node };
            waiting.extend(driver.gathers.take().map(|gathers| (peer, gathers.timestamp, node)));
        }
        for (driver, timestamp, node) in waiting {
            let outcome = match &chosen {
                Err(why) => Gathered::NoVan(why.clone()),
                Ok(vans) => Gathered::All(Roster { node, ..self.roster(vans) }),
            };
            self.plane.tell(driver, timestamp, &outcome);
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
            Ask::Post(post) => {
                let Seat { role, rank } = self.plane.members.of(peer, "other nodes")?;
                let sender = Waiting { node: NodeName::of(role, rank), peer, timestamp };
                self.posts.take_in(&mut self.plane, &self.jobs, sender, post)
            }
            Ask::Spawn { task, target, app, body } => {
                let seat = self.plane.members.of(peer, "a sub-task")?;
                let at = At { task, rank: seat.rank };
                let program = Program::App { app, body };
                let spawned = self.jobs.spawn(&mut self.plane, at, target, program);
                Ok(control::answer(&mut self.plane.endpoint, peer, timestamp, &spawned)?)
            }
            Ask::Alive(vitals) => {
                let Service { plane, jobs, .. } = self;
                plane.members.alive(peer, vitals)?;
                plane.members.compare_paces(|rank| jobs.tasks.load(rank) > 0);
                let left = plane.members.farewell(peer);
                let pulse = Pulse { ended: self.ended.clone().or(left) };
                Ok(control::answer(&mut self.plane.endpoint, peer, timestamp, &pulse)?)
            }
        }
    }

    /// Admits a node; the last one triggers the choice of vans and its announcement.
    fn join(&mut self, peer: PeerId, timestamp: u64, join: Join) -> Result<(), Violation> {
        let pid = join.pid;
        let has_ended = self.ended.is_some() || self.plane.lost.is_some();
        let is_complete = matches!(self.chosen, Some(Ok(_)));
        let choose = || match has_ended {
            true => Err("the cluster has ended".to_owned()),
            false => further::choose(&self.plane, is_complete, &join.vans),
        };
        let further = join.is_further.then(choose).transpose();
        let seated = match &further {
            Err(why) => Err(why.clone()),
            Ok(_) => {
                let seated = self.plane.members.join(peer, timestamp, join)?;
                seated.map_err(|error| error.to_string())
            }
        };
        let seat = match seated {
            Ok(seat) => seat,
            Err(why) => {
                tracing::warn!(why, pid, "refusing a node");
                return Ok(control::refuse(&mut self.plane.endpoint, peer, timestamp, &why)?);
            }
        };
        if let Ok(Some((vans, entry))) = further {
            self.plane.members.equip(seat, vans, entry);
            if let Some(Ok(vans)) = &self.chosen {
                let shared = self.roster(vans);
                further::welcome(&mut self.plane, &mut self.jobs, seat, shared);
            }
            return Ok(());
        }
        if self.plane.members.all_are_in() && self.chosen.is_none() {
            self.chosen = Some(self.choose_vans());
            self.announce();
            self.gathered();
        }
        Ok(())
    }

    /// Chooses the vans of all nodes; others are forgotten. Returns those of drivers.
    fn choose_vans(&mut self) -> Result<Vec<Van>, String> {
        let own = self.own.iter().map(|own| Chooser {
            name: "the scheduler".to_owned(),
            is_server: false,
            candidates: own,
        });
        let nodes = self.plane.members.iter().map(|(seat, member)| Chooser {
            name: describe(seat, member),
            is_server: seat.role == Role::Server,
            candidates: &member.join.vans,
        });
        let (choice, passed_over) = choice::choose(&nodes.chain(own).collect::<Vec<_>>());
        passed_over.iter().for_each(|line| tracing::info!("{line}"));
        let Some(choice) = choice else {
            self.plane.members.complete(|member| member.join.vans.clear());
            return Err(format!("no van works for all nodes; {}", passed_over.join("; ")));
        };
        for (carrier, pairs) in &choice.pairs {
            tracing::info!(pairs, "{carrier}: pairs of nodes that meet over it");
        }
        let mut vans = choice.vans.into_iter();
        self.plane.members.complete(|member| {
            member.vans = vans.next().unwrap_or_default();
            match choice.is_mixed {
                true => member.join.vans = vec![choice::joined(&member.join.vans, &member.vans)],
                false => member.join.vans.retain(|known| member.vans.contains(&known.van)),
            }
        });
        // A driver that has not said what works for it does as the first server.
        let first = self.plane.members.iter().next().map(|(_, member)| member.vans.clone());
        Ok(vans.next().or(first).unwrap_or_default())
    }

    /// The roster of a driver with these vans, which has no rank.
    fn roster(&self, vans: &[Van]) -> Roster {
        Roster {
            node: 0,
            rank: 0,
            van: vans.first().copied().unwrap_or(Van::Auto),
            vans: vans.get(1..).unwrap_or_default().to_vec(),
            servers: self.servers(),
            founders: self.plane.members.founding_threads(),
            threads: self.plane.members.threads_of_each(),
            first_thread: 0,
            workers: self.config.workers,
            server_losses_max: self.config.node.server_losses_max,
            turn: 0,
        }
    }

    /// All server threads, those that have joined when all others had behind them.
    fn servers(&self) -> Vec<ServerAddress> {
        let servers = self.plane.members.iter().filter(|(seat, _)| seat.role == Role::Server);
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
        let shared = chosen.as_ref().map(|vans| self.roster(vans));
        let mut threads = 0;
        let mut on_host: BTreeMap<(Role, &str), u32> = BTreeMap::new();
        for (node, seat, member) in self.plane.members.nodes() {
            let (peer, joined_as) = (member.peer, member.joined_as);
            let first_thread = if seat.role == Role::Server { threads } else { 0 };
            threads += member.threads().len();
            let next = on_host.entry((seat.role, &member.join.host)).or_default();
            let turn = *next;
            *next += 1;
            // A lane that breaks now is reported separately; the others still get their answer.
            let _ = match &shared {
                Err(why) => control::refuse(&mut self.plane.endpoint, peer, joined_as, why),
                Ok(shared) => {
                    let [van, vans @ ..] = &member.vans[..] else { continue };
                    let (van, vans) = (*van, vans.to_vec());
                    let rank = seat.rank;
                    let shared = shared.clone();
                    let roster = Roster { node, rank, van, vans, first_thread, turn, ..shared };
                    control::answer(&mut self.plane.endpoint, peer, joined_as, &roster)
                }
            };
        }
    }

    /// Records a worker's result of a task; ignores results that were not requested or came before.
    fn report(&mut self, peer: PeerId, message: &Message) -> Result<(), Violation> {
        let seat = self.plane.members.of(peer, "a report")?;
        let task = message.timestamp();
        if self.posts.taken(&mut self.plane, NodeName::of(seat.role, seat.rank), task) {
            return Ok(());
        }
        if seat.role != Role::Worker || !self.jobs.tasks.is_run_by(task, seat.rank) {
            // It has only heard of lost servers if it says nothing.
            if message.values() != b"null" {
                tracing::warn!(node = %seat, "a report on a task that the node does not run");
            }
            return Ok(());
        }
        let at = At { task, rank: seat.rank };
        self.jobs.report(&mut self.plane, at, control::read(message)?);
        Ok(())
    }
}

impl Launcher {
    /// Whether a lane with this hello is the launcher's.
    fn is_it(&self, hello: &caravan_van::wire::Hello) -> bool {
        let Identity { role, incarnation, .. } = self.identity;
        hello.role == role && hello.incarnation.get() == incarnation
    }
}
