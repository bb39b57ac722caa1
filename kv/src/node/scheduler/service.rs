//! The thread that schedules: it hears what nodes and drivers say, notices lost nodes and tells
//! everybody about them. How the cluster comes together is in `admission.rs`, what is asked in
//! `requests.rs`, tasks in `jobs.rs`, letters and barriers in `posts.rs`, servers that join or
//! leave the complete cluster in `further.rs`.
//!
//! It owns the control plane's endpoint and waits only there. Drivers ask it as nodes do, by
//! messages. The one that started the cluster proves by its incarnation who it is; others have jobs
//! of their own.
//!
//! All that it knows is a [`State`], which does no I/O. Where it is kept, it is saved before what
//! follows from it is sent, and a scheduler that is started again goes on with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_van::wire::Hello;
use caravan_van::{Arrival, Endpoint, Identity, PeerId, VanConfig};

use super::super::backend;
use super::super::choice::Candidate;
use super::super::control::{self, CREDITS, Gathered, Order, Role};
use super::super::group::NodeName;
use super::super::lane::control_config;
use super::super::members::{Members, Seat, Violation};
use super::super::session::{Said, SessionId, Speech};
use super::keeper::Keeper;
use super::plane::Plane;
use super::state::{Kept, State};
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::Result;

/// Time between two warnings of nodes that have not joined.
pub(super) const WARN_EVERY: Duration = Duration::from_secs(5);

/// Longest sleep before the driver has its lane.
const FIRST_NAP: Duration = Duration::from_millis(20);

/// How long nodes may take to leave when the job ends.
pub(super) const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The thread.
pub(super) struct Service {
    endpoint: Endpoint,
    pub(super) state: State,
    pub(super) config: ClusterConfig,
    /// The vans that this process can use, if it is a client of the servers as well.
    pub(super) own: Option<Vec<Candidate>>,
    /// The driver that started the cluster, which ends with it.
    pub(super) launcher: Launcher,
    /// Where the state is kept, if it is.
    pub(super) keeper: Option<Keeper>,
    /// Until when drivers of an earlier scheduler may come back. They send no heartbeats.
    drivers_until: Option<Duration>,
    stop: Arc<AtomicBool>,
}

/// The driver that started the cluster.
pub(super) struct Launcher {
    identity: Identity,
    is_gone: bool,
    /// Its request to end the cluster, and until when nodes may leave.
    pub(super) ends: Option<(u64, Duration)>,
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
        let mut keeper = place.map(|place| Keeper::open(place, config.node.job)).transpose()?;
        let kept = keeper.as_mut().map(Keeper::load::<Kept<State>>).transpose()?.flatten();
        let listen = match &kept {
            Some(kept) if config.node.scheduler.ends_with(":0") => kept.address.clone(),
            _ => config.node.scheduler.clone(),
        };
        let van = VanConfig { listen, ..control_config(&config.node) };
        let endpoint = Endpoint::new(backend::open_control(config.node.van, &van)?, 0, CREDITS);
        let now = endpoint.lanes.now();
        let drivers_until = kept.is_some().then_some(now + config.node.scheduler_away);
        let state = match kept {
            Some(kept) => kept.of(&config)?.come_back(now),
            None => State::new(Members::new(&config, now)),
        };
        let launcher = Launcher { identity: driver, is_gone: false, ends: None };
        Ok(Service { endpoint, state, config, own, launcher, keeper, drivers_until, stop })
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
            plane.sessions.keep(session);
        } else if let Err(violation) = plane.members.connected(session, hello) {
            self.reject(session, &violation);
        }
    }

    /// Does what is said in a session.
    fn hear(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        match said.speech {
            Speech::Resume if self.state.plane.sessions.is_new(session) => {
                self.resume(session, said.read().unwrap_or(false));
                Ok(())
            }
            Speech::Resume => Err(Violation::Speech(said.speech)),
            _ if self.state.jobs.drivers.contains_key(&session) => self.obey(session, said),
            _ => self.serve(session, said),
        }
    }

    /// Goes on with the session of a node that has come back, on the lane that it has made for
    /// that. A node of which nothing was acknowledged may have a session that no scheduler has
    /// saved: that one begins.
    fn resume(&mut self, session: SessionId, is_unheard: bool) {
        let Service { endpoint, state, .. } = self;
        let State { plane, jobs, .. } = state;
        if is_unheard && plane.sessions.earlier(session).is_none() {
            return;
        }
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
        if self.drivers_until.take_if(|until| now >= *until).is_some() {
            let State { plane, jobs, .. } = &self.state;
            let gone = jobs.drivers.keys().filter(|driver| !plane.sessions.has_lane(**driver));
            for driver in gone.copied().collect::<Vec<_>>() {
                self.state.plane.sessions.close(driver);
                self.lose(driver, "it did not come back");
            }
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
    pub(super) fn check_members(&mut self) {
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
}

impl Launcher {
    /// Whether a lane with this hello is the launcher's.
    fn is_it(&self, hello: &Hello) -> bool {
        let Identity { role, incarnation, .. } = self.identity;
        hello.role == role && hello.incarnation.get() == incarnation
    }
}
