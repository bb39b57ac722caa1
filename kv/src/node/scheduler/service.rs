//! The thread that schedules: admits nodes, assigns ranks and key ranges, notices lost nodes and
//! tells everybody about them. Tasks are in `jobs.rs`, letters and barriers in `posts.rs`, servers
//! that join or leave the complete cluster in `further.rs`.
//!
//! It owns the control plane's endpoint and waits only there. Drivers ask it as nodes do, by
//! messages. The one that started the cluster proves by its incarnation who it is; others have jobs
//! of their own.
//!
//! All that it knows is a [`State`], which does no I/O. Where it is kept, it is saved before what
//! follows from it is sent, and a scheduler that is started again goes on with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_van::wire::Hello;
use caravan_van::{Arrival, Endpoint, Identity, PeerId, VanConfig};
use serde::{Deserialize, Serialize};

use super::super::backend::{self, Van};
use super::super::barriers::Waiting;
use super::super::choice::{self, Candidate, Chooser};
use super::super::control::{
    self, Ask, CREDITS, Command, Gathered, Join, Order, Program, Pulse, Role, Roster,
};
use super::super::group::NodeName;
use super::super::lane::control_config;
use super::super::members::{Members, Seat, Violation, describe};
use super::super::session::{Said, SessionId, Speech};
use super::further;
use super::jobs::{Gathers, Jobs, Submission, Watch};
use super::keeper::Keeper;
use super::plane::Plane;
use super::posts::Posts;
use super::tasks::At;
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::{Error, Result};
use crate::worker::ServerAddress;

/// Time between two warnings of nodes that have not joined.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// Longest sleep before the driver has its lane.
const FIRST_NAP: Duration = Duration::from_millis(20);

/// How long nodes may take to leave when the job ends.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The thread.
pub(super) struct Service {
    endpoint: Endpoint,
    state: State,
    config: ClusterConfig,
    /// The vans that this process can use, if it is a client of the servers as well.
    own: Option<Vec<Candidate>>,
    /// The driver that started the cluster, which ends with it.
    launcher: Launcher,
    /// Where the state is kept, if it is.
    keeper: Option<Keeper>,
    stop: Arc<AtomicBool>,
}

/// What the thread knows.
#[derive(Serialize, Deserialize)]
struct State {
    plane: Plane,
    jobs: Jobs,
    posts: Posts,
    /// Once all have joined: the vans of the drivers, or why some nodes have none in common.
    chosen: Option<Result<Vec<Van>, String>>,
    ended: Option<String>,
}

/// What is kept: a state, and of which cluster.
#[derive(Serialize, Deserialize)]
struct Kept<S> {
    job: u64,
    servers: usize,
    workers: usize,
    /// Where the nodes of the cluster look for the scheduler.
    address: String,
    state: S,
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
        let place = config.node.state.as_deref();
        let mut keeper =
            place.map(|place| Keeper::open(place, config.node.job)).transpose()?;
        let kept = keeper.as_mut().map(Keeper::load::<Kept<State>>).transpose()?.flatten();
        let listen = match &kept {
            Some(kept) if config.node.scheduler.ends_with(":0") => kept.address.clone(),
            _ => config.node.scheduler.clone(),
        };
        let van = VanConfig { listen, ..control_config(&config.node) };
        let endpoint = Endpoint::new(backend::open_control(config.node.van, &van)?, 0, CREDITS);
        let now = endpoint.lanes.now();
        let state = match kept {
            Some(kept) => kept.of(&config)?.come_back(now),
            None => State::new(Members::new(&config, now)),
        };
        let launcher = Launcher { identity: driver, is_gone: false, ends: None };
        Ok(Service { endpoint, state, config, own, launcher, keeper, stop })
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
        while !self.launcher.is_gone && !self.stop.load(Ordering::Relaxed) {
            let any = self.poll()?;
            self.keep_time();
            self.commit()?;
            if !any {
                self.endpoint.wait(self.nap())?;
            }
        }
        let has_ended = self.state.ended.is_some() || self.state.plane.lost.is_some();
        if let Some(keeper) = self.keeper.as_mut().filter(|_| has_ended) {
            keeper.clear();
        }
        Ok(())
    }

    /// Saves what has changed, if it is kept, and sends what follows from it.
    fn commit(&mut self) -> Result<()> {
        let Service { endpoint, state, config, keeper, .. } = self;
        let is_complete = matches!(state.chosen, Some(Ok(_)));
        if state.plane.sessions.take_news()
            && let Some(keeper) = keeper.as_mut().filter(|_| is_complete)
        {
            let address = endpoint.lanes.address().to_owned();
            let (job, servers, workers) = (config.node.job, config.servers, config.workers);
            keeper.save(&Kept { job, servers, workers, address, state: &*state })?;
        }
        for deaf in state.plane.sessions.send(endpoint) {
            self.reject(deaf, &Violation::Deaf);
        }
        Ok(())
    }

    /// How long the thread may sleep.
    fn nap(&self) -> Duration {
        let Plane { now, launcher, ref members, .. } = self.state.plane;
        let gathers = self.state.jobs.drivers.values();
        let gathers = gathers.filter_map(|driver| driver.gathers.as_ref());
        let gathers = gathers.map(|gathers| gathers.until.min(gathers.warn_at));
        let ends = self.launcher.ends.map(|(_, until)| until);
        let first = launcher.is_none().then_some(now + FIRST_NAP);
        let timers = gathers.chain(ends).chain(first);
        let naps = timers.map(|until| until.saturating_sub(now));
        naps.fold(members.until_check(), Duration::min)
    }

    /// Serves pending requests; returns whether there were any.
    fn poll(&mut self) -> Result<bool> {
        let now = self.endpoint.lanes.now();
        self.state.plane.now = now;
        self.state.plane.members.listen(now);
        let any = self.endpoint.poll()?;
        while let Some(arrival) = self.endpoint.take() {
            let peer = arrival.peer();
            let message = match arrival {
                Arrival::Placed { .. } => continue, // the scheduler makes no offers
                Arrival::Connected { hello, .. } => {
                    self.connected(peer, &hello);
                    continue;
                }
                Arrival::Lost { error, .. } => {
                    if let Some(session) = self.state.plane.sessions.lose(peer) {
                        self.lose(session, &error.to_string());
                    }
                    continue;
                }
                Arrival::Message { .. } => self.endpoint.pop(),
            };
            let session = self.state.plane.sessions.at(peer);
            let (Some(session), Some(message)) = (session, message) else { continue };
            let heard = self.state.plane.sessions.take_in(session, &message);
            let outcome = match heard {
                Ok(None) => Ok(()),
                Ok(Some(said)) => self.hear(session, &said),
                Err(misheard) => Err(misheard.into()),
            };
            if let Err(violation) = outcome {
                self.reject(session, &violation);
            }
        }
        Ok(any)
    }

    /// Enters a lane that has proved who it is.
    fn connected(&mut self, peer: PeerId, hello: &Hello) {
        let State { plane, jobs, .. } = &mut self.state;
        let session = plane.sessions.begin(peer, hello);
        if plane.launcher.is_none() && self.launcher.is_it(hello) {
            plane.launcher = Some(session);
            jobs.add_driver(session, Some(String::new()));
        } else if hello.role == control::GUEST {
            jobs.add_driver(session, None);
        } else if let Err(violation) = plane.members.connected(session, hello) {
            self.reject(session, &violation);
        }
    }

    /// Does what is said in a session.
    fn hear(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        match said.speech {
            Speech::Resume if self.state.plane.sessions.is_kept(session) => {
                Err(Violation::Speech(said.speech))
            }
            Speech::Resume => {
                self.resume(session);
                Ok(())
            }
            _ if self.state.jobs.drivers.contains_key(&session) => self.obey(session, said),
            _ => self.serve(session, said),
        }
    }

    /// Goes on with the session of a node that has come back, on the lane that it has made for that.
    fn resume(&mut self, session: SessionId) {
        let Service { endpoint, state, .. } = self;
        let State { plane, jobs, .. } = state;
        plane.members.leave(session, "");
        jobs.lose_driver(plane, session);
        match plane.sessions.resume(session) {
            Ok(resumed) => tracing::info!(session = resumed.0, "a node is back"),
            Err(()) => {
                let why = "the scheduler has counted this node as lost, or does not know it";
                plane.sessions.say_gone(session, endpoint, why);
            }
        }
    }

    /// Does what is due: silent nodes and unused lanes are lost, and waits of the driver end.
    fn keep_time(&mut self) {
        let now = self.state.plane.now;
        if self.state.plane.members.until_check().is_zero() {
            for (session, violation) in self.state.plane.members.idle_lanes() {
                self.reject(session, &violation);
            }
            self.check_members();
        }
        let State { plane, jobs, posts, .. } = &mut self.state;
        posts.tell_failures(plane, jobs.tasks.take_unheard());
        for (&session, driver) in &mut jobs.drivers {
            let Some(gathers) = &mut driver.gathers else { continue };
            if now >= gathers.until {
                let missing = Gathered::Missing(plane.members.missing());
                plane.tell(session, gathers.timestamp, &missing);
                driver.gathers = None;
            } else if now >= gathers.warn_at {
                gathers.warn_at = now + WARN_EVERY;
                let missing = plane.members.missing();
                let scheduler = self.endpoint.lanes.address();
                tracing::warn!(missing, scheduler, "waiting for nodes to join");
            }
        }
        if let (Some((timestamp, until)), Some(session)) = (self.launcher.ends, plane.launcher)
            && (now >= until || plane.members.all_are_gone())
        {
            self.launcher.ends = None;
            plane.tell(session, timestamp, &());
        }
    }

    /// Closes the lane of a node that broke the rules.
    fn reject(&mut self, session: SessionId, violation: &Violation) {
        let why = violation.to_string();
        tracing::warn!(session = session.0, why, "closing a lane");
        self.state.plane.sessions.close(session);
        self.lose(session, &why);
    }

    fn lose(&mut self, session: SessionId, reason: &str) {
        self.launcher.is_gone |= self.state.plane.launcher == Some(session);
        let driver = self.state.jobs.name(session).filter(|it| *it != NodeName::Scheduler);
        self.state.jobs.lose_driver(&mut self.state.plane, session);
        driver.into_iter().for_each(|it| self.state.posts.lose(&mut self.state.plane, it, reason));
        if let Some(seat) = self.state.plane.members.leave(session, reason) {
            self.check_members();
            let goes_on = self.state.plane.lost.is_none() && self.state.ended.is_none();
            if goes_on && self.state.plane.members.is_lost(seat) {
                self.go_on_without(seat, reason);
            }
        }
    }

    /// Has the others go on: nobody waits for this worker at barriers, in tasks and for answers.
    fn go_on_without(&mut self, seat: Seat, reason: &str) {
        match self.state.plane.members.has_left(seat) {
            true => tracing::info!(node = %seat, "has left"),
            false => tracing::warn!(node = %seat, "lost; the others go on"),
        }
        match seat.role {
            Role::Server => self.publish_lost_servers(),
            Role::Worker => {
                self.publish_lost_worker();
                self.state.jobs.lose_worker(&mut self.state.plane, seat.rank);
            }
        }
        self.state.posts.lose(&mut self.state.plane, NodeName::of(seat.role, seat.rank), reason);
        self.state.jobs.go_on(&mut self.state.plane);
    }

    /// Tells all members and drivers which server threads are lost.
    fn publish_lost_servers(&mut self) {
        let State { plane, jobs, .. } = &mut self.state;
        plane.publish_lost_threads(jobs.tasks.next_number());
        jobs.answer_watches(plane);
    }

    /// Tells all servers which workers are lost.
    fn publish_lost_worker(&mut self) {
        let State { plane, jobs, .. } = &mut self.state;
        plane.publish_lost_workers(jobs.tasks.next_number());
    }

    /// Looks for lost members. Tells everybody about the first whose loss ends the cluster; closes
    /// the lanes of others.
    fn check_members(&mut self) {
        let silent = self.state.plane.members.check_silence();
        let Some(loss) = self.state.plane.members.fatal_loss() else {
            for session in silent {
                self.state.plane.sessions.close(session);
                self.lose(session, "no heartbeat");
            }
            return;
        };
        if self.state.plane.lost.is_some() || self.state.ended.is_some() {
            return;
        }
        tracing::info!(node = loss.node, reason = loss.reason, "lost");
        self.state.plane.lost = Some(loss.clone());
        let State { plane, jobs, .. } = &mut self.state;
        jobs.answer_watches(plane);
        jobs.answer_waits(plane);
        plane.order_all(jobs.tasks.next_number(), &Order::Lost(loss));
    }

    /// Does what a driver wants.
    fn obey(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        let timestamp = said.of;
        let State { plane, jobs, posts, .. } = &mut self.state;
        let now = plane.now;
        let is_launcher = plane.launcher == Some(session);
        if said.speech != Speech::Ask {
            if let Some(node) = jobs.name(session) {
                posts.taken(plane, node, timestamp);
            }
            return Ok(());
        }
        let command: Command = said.read()?;
        if jobs.answer_any(plane, session, timestamp, &command) {
            return Ok(());
        }
        let driver = jobs.drivers.entry(session).or_default();
        let job = match (&command, &driver.job) {
            (Command::Begin { job }, None) if driver.begins.is_none() => {
                jobs.begin(plane, session, timestamp, job.clone());
                return Ok(());
            }
            (Command::Nodes, _) => {
                let states = plane.members.states();
                plane.tell(session, timestamp, &states);
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
                let submitted = jobs.submit(plane, session, submission);
                plane.tell(session, timestamp, &submitted);
            }
            Command::Promise => {
                let submitted = jobs.promise(plane, session);
                plane.tell(session, timestamp, &submitted);
            }
            Command::Finish { task } => {
                let is_there = jobs.finish(plane, session, task);
                plane.tell(session, timestamp, &is_there);
            }
            Command::Forget { part } => {
                let submitted = jobs.forget(plane, Some(session), control::within(&job, &part));
                plane.tell(session, timestamp, &submitted);
            }
            Command::Post(post) => {
                let node = jobs.name(session).ok_or(Violation::Job)?;
                return posts.take_in(plane, jobs, Waiting { node, session, timestamp }, post);
            }
            Command::Wait { task } => jobs.wait(plane, session, (timestamp, task)),
            Command::First { tasks } => jobs.wait_first(plane, session, (timestamp, tasks)),
            Command::Watch(heard) => {
                driver.watches = Some(Watch { timestamp, heard });
                let losses = plane.losses(heard);
                if losses.is_news() {
                    driver.watches = None;
                    plane.tell(session, timestamp, &losses);
                }
            }
            Command::MayLeave { server } => {
                let threads = further::may_leave(plane, server);
                plane.tell_or_refuse(session, timestamp, threads);
            }
            Command::Leave { server, departed } => {
                let told = further::let_leave(plane, jobs, server, departed);
                plane.tell_or_refuse(session, timestamp, told);
            }
            Command::Check => {
                self.check_members();
                let lost = self.state.plane.lost.clone();
                self.state.plane.tell(session, timestamp, &lost);
            }
            Command::End { .. } if !is_launcher => return Err(Violation::NotLauncher),
            Command::End { reason } => {
                plane.order_all(jobs.tasks.next_number(), &Order::End);
                self.state.ended = Some(reason);
                self.launcher.ends = Some((timestamp, now + LEAVE_WITHIN));
            }
        }
        Ok(())
    }

    /// Answers the drivers that wait for the cluster, if that is complete.
    fn gathered(&mut self) {
        let Some(chosen) = self.state.chosen.clone() else { return };
        // Ids of drivers from outside follow those of the members.
        let members = self.state.plane.members.iter().count() as u32;
        let mut waiting = Vec::new();
        for (&session, driver) in &mut self.state.jobs.drivers {
            let node = if driver.node == 0 { 0 } else { members + driver.node };
            waiting.extend(driver.gathers.take().map(|gathers| (session, gathers.timestamp, node)));
        }
        for (driver, timestamp, node) in waiting {
            let outcome = match &chosen {
                Err(why) => Gathered::NoVan(why.clone()),
                Ok(vans) => Gathered::All(Roster { node, ..self.roster(vans) }),
            };
            self.state.plane.tell(driver, timestamp, &outcome);
        }
    }

    /// Does what a member wants, or takes its report.
    fn serve(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        let timestamp = said.of;
        match said.speech {
            Speech::Ask => {}
            Speech::Answer => return self.report(session, said),
            other => return Err(Violation::Speech(other)),
        }
        match said.read::<Ask>()? {
            Ask::Join(join) => self.join(session, timestamp, join),
            Ask::Post(post) => {
                let Seat { role, rank } = self.state.plane.members.of(session, "other nodes")?;
                let sender = Waiting { node: NodeName::of(role, rank), session, timestamp };
                self.state.posts.take_in(&mut self.state.plane, &self.state.jobs, sender, post)
            }
            Ask::Spawn { task, target, app, body } => {
                let seat = self.state.plane.members.of(session, "a sub-task")?;
                let at = At { task, rank: seat.rank };
                let program = Program::App { app, body };
                let spawned = self.state.jobs.spawn(&mut self.state.plane, at, target, program);
                self.state.plane.tell(session, timestamp, &spawned);
                Ok(())
            }
            Ask::Alive(vitals) => {
                let State { plane, jobs, .. } = &mut self.state;
                plane.members.alive(session, vitals)?;
                plane.members.compare_paces(|rank| jobs.tasks.load(rank) > 0);
                let left = plane.members.farewell(session);
                let pulse = Pulse { ended: self.state.ended.clone().or(left) };
                self.state.plane.tell(session, timestamp, &pulse);
                Ok(())
            }
        }
    }

    /// Admits a node; the last one triggers the choice of vans and its announcement.
    fn join(&mut self, session: SessionId, timestamp: u64, join: Join) -> Result<(), Violation> {
        let pid = join.pid;
        let has_ended = self.state.ended.is_some() || self.state.plane.lost.is_some();
        let is_complete = matches!(self.state.chosen, Some(Ok(_)));
        let choose = || match has_ended {
            true => Err("the cluster has ended".to_owned()),
            false => further::choose(&self.state.plane, is_complete, &join.vans),
        };
        let further = join.is_further.then(choose).transpose();
        let seated = match &further {
            Err(why) => Err(why.clone()),
            Ok(_) => {
                let seated = self.state.plane.members.join(session, timestamp, join)?;
                seated.map_err(|error| error.to_string())
            }
        };
        let seat = match seated {
            Ok(seat) => seat,
            Err(why) => {
                tracing::warn!(why, pid, "refusing a node");
                self.state.plane.refuse(session, timestamp, &why);
                return Ok(());
            }
        };
        self.state.plane.sessions.keep(session);
        if let Ok(Some((vans, entry))) = further {
            self.state.plane.members.equip(seat, vans, entry);
            if let Some(Ok(vans)) = &self.state.chosen {
                let shared = self.roster(vans);
                further::welcome(&mut self.state.plane, &mut self.state.jobs, seat, shared);
            }
            return Ok(());
        }
        if self.state.plane.members.all_are_in() && self.state.chosen.is_none() {
            self.state.chosen = Some(self.choose_vans());
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
        let nodes = self.state.plane.members.iter().map(|(seat, member)| Chooser {
            name: describe(seat, member),
            is_server: seat.role == Role::Server,
            candidates: &member.join.vans,
        });
        let (choice, passed_over) = choice::choose(&nodes.chain(own).collect::<Vec<_>>());
        passed_over.iter().for_each(|line| tracing::info!("{line}"));
        let Some(choice) = choice else {
            self.state.plane.members.complete(|member| member.join.vans.clear());
            return Err(format!("no van works for all nodes; {}", passed_over.join("; ")));
        };
        for (carrier, pairs) in &choice.pairs {
            tracing::info!(pairs, "{carrier}: pairs of nodes that meet over it");
        }
        let mut vans = choice.vans.into_iter();
        self.state.plane.members.complete(|member| {
            member.vans = vans.next().unwrap_or_default();
            match choice.is_mixed {
                true => member.join.vans = vec![choice::joined(&member.join.vans, &member.vans)],
                false => member.join.vans.retain(|known| member.vans.contains(&known.van)),
            }
        });
        // A driver that has not said what works for it does as the first server.
        let first = self.state.plane.members.iter().next().map(|(_, member)| member.vans.clone());
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
            founders: self.state.plane.members.founding_threads(),
            threads: self.state.plane.members.threads_of_each(),
            first_thread: 0,
            workers: self.config.workers,
            server_losses_max: self.config.node.server_losses_max,
            away_max: match self.keeper {
                Some(_) => self.config.node.scheduler_away,
                None => Duration::ZERO,
            },
            turn: 0,
        }
    }

    /// All server threads, those that have joined when all others had behind them.
    fn servers(&self) -> Vec<ServerAddress> {
        let servers = self.state.plane.members.iter().filter(|(seat, _)| seat.role == Role::Server);
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
        let Some(chosen) = &self.state.chosen else { return };
        let shared = chosen.as_ref().map(|vans| self.roster(vans)).map_err(String::clone);
        let Plane { members, sessions, .. } = &mut self.state.plane;
        let mut threads = 0;
        let mut on_host: BTreeMap<(Role, &str), u32> = BTreeMap::new();
        for (node, seat, member) in members.nodes() {
            let (session, joined_as) = (member.session, member.joined_as);
            let first_thread = if seat.role == Role::Server { threads } else { 0 };
            threads += member.threads().len();
            let next = on_host.entry((seat.role, &member.join.host)).or_default();
            let turn = *next;
            *next += 1;
            match &shared {
                Err(why) => sessions.refuse(session, joined_as, why),
                Ok(shared) => {
                    let [van, vans @ ..] = &member.vans[..] else { continue };
                    let (van, vans) = (*van, vans.to_vec());
                    let rank = seat.rank;
                    let shared = shared.clone();
                    let roster = Roster { node, rank, van, vans, first_thread, turn, ..shared };
                    sessions.say(session, Speech::Answer, joined_as, &roster);
                }
            }
        }
    }

    /// Records a worker's result of a task; ignores results that were not requested or came before.
    fn report(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        let seat = self.state.plane.members.of(session, "a report")?;
        let task = said.of;
        if self.state.posts.taken(&mut self.state.plane, NodeName::of(seat.role, seat.rank), task) {
            return Ok(());
        }
        if seat.role != Role::Worker || !self.state.jobs.tasks.is_run_by(task, seat.rank) {
            // It has only heard of lost servers if it says nothing.
            if said.text != "null" {
                tracing::warn!(node = %seat, "a report on a task that the node does not run");
            }
            return Ok(());
        }
        let at = At { task, rank: seat.rank };
        self.state.jobs.report(&mut self.state.plane, at, said.read()?);
        Ok(())
    }
}

impl Launcher {
    /// Whether a lane with this hello is the launcher's.
    fn is_it(&self, hello: &Hello) -> bool {
        let Identity { role, incarnation, .. } = self.identity;
        hello.role == role && hello.incarnation.get() == incarnation
    }
}

impl State {
    fn new(members: Members) -> State {
        State {
            plane: Plane::new(members),
            jobs: Jobs::default(),
            posts: Posts::default(),
            chosen: None,
            ended: None,
        }
    }

    /// Goes on at time `now`, after the process that had this state: its nodes come back, its driver
    /// does not.
    fn come_back(mut self, now: Duration) -> State {
        self.plane.members.come_back(now);
        self.plane.sessions.come_back();
        if let Some(launcher) = self.plane.launcher.take() {
            self.jobs.come_back_without(launcher);
            self.plane.sessions.close(launcher);
        }
        self
    }
}

impl Kept<State> {
    /// The state, if it is of the cluster that is wanted.
    ///
    /// # Errors
    /// [`Error::Config`] names what differs.
    fn of(self, config: &ClusterConfig) -> Result<State> {
        let ClusterConfig { servers, workers, ref node, .. } = *config;
        if (self.job, self.servers, self.workers) == (node.job, servers, workers) {
            tracing::info!(servers, workers, "going on with a cluster that runs");
            return Ok(self.state);
        }
        let place = node.state.as_deref().unwrap_or(Path::new("")).display();
        Err(Error::Config(format!(
            "{place} has the state of job {:x} with {} servers and {} workers, not of job {:x} with \
             {servers} and {workers}: take another place, or remove the state if that cluster is \
             over",
            self.job, self.servers, self.workers, node.job
        )))
    }
}
