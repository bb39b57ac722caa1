//! The thread that schedules: it hears what nodes and drivers say, notices lost nodes and tells
//! everybody about them. How the cluster comes together is in `admission.rs`, what is asked in
//! `requests.rs`, tasks in `jobs.rs`, envelopes and barriers in `posts.rs`, servers that join or
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
use super::super::session::{Resume, Said, SessionId, Speech};
use super::control_state::ControlState;
use super::state::{Kept, Lineage, State};
use super::state_store::{self, StateStore};
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::{Error, Result};

/// Time between two warnings of nodes that have not joined.
pub(super) const WARN_EVERY: Duration = Duration::from_secs(5);

/// Longest sleep before the driver has its lane.
const FIRST_NAP: Duration = Duration::from_millis(20);

/// How long nodes may take to leave when the job ends.
pub(super) const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The thread.
pub(super) struct SchedulerThread {
    endpoint: Endpoint,
    pub(super) state: State,
    lineage: Lineage,
    pub(super) config: ClusterConfig,
    /// The vans that this process can use, if it is a client of the servers as well.
    pub(super) own: Option<Vec<Candidate>>,
    /// The driver that started the cluster, which ends with it.
    pub(super) launcher: Launcher,
    /// Where the state is kept, if it is.
    pub(super) state_store: Option<StateStore>,
    /// Until when it says nothing, after it has come back, unless all are back before.
    silent_until: Option<Duration>,
    /// When the last state was saved, in time listened.
    saved: Duration,
    /// Whether it has said that nodes of another cluster call.
    has_strangers: bool,
    /// Why it cannot go on.
    failed: Option<Error>,
    stop: Arc<AtomicBool>,
}

/// The driver that started the cluster.
pub(super) struct Launcher {
    identity: Identity,
    is_gone: bool,
    /// Its request to end the cluster, and until when nodes may leave.
    pub(super) ends: Option<(u64, Duration)>,
}

impl SchedulerThread {
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
    ) -> Result<SchedulerThread> {
        let place = config.node.state.as_deref();
        let mut state_store =
            place.map(|place| StateStore::open(place, config.node.job)).transpose()?;
        let kept = state_store.as_mut().map(StateStore::load::<Kept<State>>).transpose()?.flatten();
        kept.as_ref().map_or(Ok(()), |kept| kept.check(&config))?;
        let listen = match &kept {
            Some(kept) if config.node.scheduler.ends_with(":0") => kept.address.clone(),
            _ => config.node.scheduler.clone(),
        };
        let (mut lineage, state) = match kept {
            Some(Kept { lineage, state, .. }) => (lineage, Some(state)),
            None => (Lineage::new(), None),
        };
        if state_store.is_some() {
            lineage.go_on();
        }
        // A node tells by it whether this is the scheduler of its cluster.
        let incarnation = lineage.cluster;
        let identity = Identity { role: control::SCHEDULER, rank: None, incarnation };
        config.node = NodeConfig { identity, ..config.node };
        let van = VanConfig { listen, ..control_config(&config.node) };
        let endpoint = Endpoint::new(backend::open_control(config.node.van, &van)?, 0, CREDITS);
        let now = endpoint.lanes.now();
        let silent_until = state.as_ref().map(|state| now + state.control.members.patience());
        let state = match state {
            Some(state) => state.come_back(now),
            None => State::new(Members::new(&config, now)),
        };
        Ok(SchedulerThread {
            endpoint,
            state,
            lineage,
            config,
            own,
            launcher: Launcher { identity: driver, is_gone: false, ends: None },
            state_store,
            silent_until,
            saved: Duration::ZERO,
            has_strangers: false,
            failed: None,
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
    /// If its state cannot be written, or is older than what a node has heard of; if the control
    /// van itself is broken.
    pub(super) fn run(mut self) -> Result<()> {
        while !self.launcher.is_gone && !self.stop.load(Ordering::Relaxed) {
            let any = self.poll()?;
            self.keep_time();
            if let Some(failed) = self.failed.take() {
                return Err(failed);
            }
            self.commit()?;
            if !any {
                self.endpoint.wait(self.backoff())?;
            }
        }
        let has_ended = self.has_ended();
        if let Some(state_store) = self.state_store.as_mut().filter(|_| has_ended) {
            state_store.clear();
        }
        Ok(())
    }

    /// Whether the cluster has ended, so that nobody needs its state any more.
    fn has_ended(&self) -> bool {
        self.state.ended.is_some() || self.state.control.lost.is_some()
    }

    /// Saves what has changed, if it is kept, and sends what follows from it.
    fn commit(&mut self) -> Result<()> {
        let may_speak = self.save()? && !self.is_silent() || self.has_ended();
        let stamp = may_speak.then(|| self.lineage.stamp());
        for deaf in self.state.control.sessions.send(&mut self.endpoint, stamp) {
            self.reject(deaf, &Violation::Deaf);
        }
        Ok(())
    }

    /// Whether somebody who has not come back may have heard of a later state than this scheduler
    /// has found. It says nothing before it knows.
    fn is_silent(&mut self) -> bool {
        let ControlState { now, ref sessions, .. } = self.state.control;
        self.silent_until.take_if(|until| now >= *until || sessions.all_are_back());
        self.silent_until.is_some()
    }

    /// Saves what has changed, if it is kept; returns false if there is no room for it.
    fn save(&mut self) -> Result<bool> {
        let SchedulerThread { endpoint, state, lineage, config, state_store, .. } = self;
        let is_complete = matches!(state.chosen, Some(Ok(_)));
        let is_due = is_complete && state.control.sessions.has_news();
        let Some(state_store) = state_store.as_mut().filter(|_| is_due) else { return Ok(true) };
        let next = lineage.next();
        let kept = Kept {
            lineage: next.clone(),
            job: config.node.job,
            servers: config.servers,
            workers: config.workers,
            address: endpoint.lanes.address().to_owned(),
            state: &*state,
        };
        let is_saved = state_store.save(state.control.now, next.number(), &kept)?;
        if is_saved {
            *lineage = next;
            self.saved = state.control.members.listened();
            state.control.sessions.saved();
        }
        Ok(is_saved)
    }

    /// How long the thread may sleep.
    fn backoff(&self) -> Duration {
        let ControlState { now, launcher, ref members, .. } = self.state.control;
        let gathers = self.state.jobs.drivers.values();
        let gathers = gathers.filter_map(|driver| driver.gathers.as_ref());
        let gathers = gathers.map(|gathers| gathers.until.min(gathers.warn_at));
        let ends = self.launcher.ends.map(|(_, until)| until);
        let first = launcher.is_none().then_some(now + FIRST_NAP);
        let paused = self.state_store.as_ref().and_then(StateStore::paused);
        let again = paused.map(|_| now + state_store::AGAIN);
        let timers = gathers.chain(ends).chain(first).chain(again);
        let backoffs = timers.map(|until| until.saturating_sub(now));
        backoffs.fold(members.until_check(), Duration::min)
    }

    /// Serves pending requests; returns whether there were any.
    fn poll(&mut self) -> Result<bool> {
        let now = self.endpoint.lanes.now();
        self.state.control.now = now;
        self.state.control.members.listen(now);
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
                    if let Some(session) = self.state.control.sessions.lose(peer) {
                        self.lose(session, &error.to_string());
                    }
                    continue;
                }
                Arrival::Message { .. } => self.endpoint.pop(),
            };
            let session = self.state.control.sessions.at(peer);
            let (Some(session), Some(message)) = (session, message) else { continue };
            let heard = self.state.control.sessions.ingest(session, &message);
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

    /// Records a lane that has proved who it is.
    fn connected(&mut self, peer: PeerId, hello: &Hello) {
        let State { control, jobs, .. } = &mut self.state;
        let session = control.sessions.begin(peer, hello);
        if control.launcher.is_none() && self.launcher.is_it(hello) {
            control.launcher = Some(session);
            jobs.add_driver(session, Some(String::new()));
        } else if hello.role == control::GUEST {
            jobs.add_driver(session, None);
        } else if let Err(violation) = control.members.connected(session, hello) {
            self.reject(session, &violation);
        }
    }

    /// Does what is said in a session.
    fn hear(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        match said.speech {
            Speech::Resume if self.state.control.sessions.is_new(session) => {
                self.resume(session, said.read()?)
            }
            Speech::Resume => Err(Violation::Speech(said.speech)),
            _ if self.state.jobs.drivers.contains_key(&session) => self.dispatch(session, said),
            _ => self.serve(session, said),
        }
    }

    /// Goes on with the session of a node that has come back, on the lane that it has made for
    /// that. A node of which nothing was acknowledged may have a session that no scheduler has
    /// saved: that one begins.
    ///
    /// # Errors
    /// If the node belongs to another cluster.
    fn resume(&mut self, session: SessionId, resume: Resume) -> Result<(), Violation> {
        let SchedulerThread { endpoint, state, lineage, .. } = self;
        let State { control, jobs, .. } = state;
        if resume.is_unheard && control.sessions.earlier(session).is_none() {
            return Ok(());
        }
        if resume.cluster != lineage.cluster {
            return Err(Violation::OtherCluster);
        }
        let heard = control.sessions.stamp(session);
        if !lineage.has(heard) {
            let place = self.state_store.as_ref().map_or("", StateStore::place);
            let known = control.sessions.earlier(session);
            let seat = known.and_then(|known| control.members.of(known, "").ok());
            let node = seat.map_or("a node".to_owned(), |seat| seat.to_string());
            self.failed = Some(lineage.error(place, &node, heard));
            return Ok(());
        }
        control.members.leave(session, "");
        jobs.lose_driver(control, session);
        match control.sessions.resume(session) {
            Ok(resumed) => {
                jobs.is_back(resumed);
                tracing::info!(session = resumed.0, "a node is back");
            }
            Err(()) => {
                let why = "the scheduler has counted this node as lost";
                control.sessions.say_gone(session, endpoint, why);
            }
        }
        Ok(())
    }

    /// Does what is due: silent nodes and unused lanes are lost, and waits of the driver end.
    fn keep_time(&mut self) {
        let now = self.state.control.now;
        if self.state.control.members.until_check().is_zero() {
            for (session, violation) in self.state.control.members.idle_lanes() {
                self.reject(session, &violation);
            }
            self.check_members();
        }
        self.keep_waiting();
        let State { control, jobs, posts, .. } = &mut self.state;
        posts.tell_failures(control, jobs.tasks.take_unheard());
        for (&session, driver) in &mut jobs.drivers {
            let Some(gathers) = &mut driver.gathers else { continue };
            if now >= gathers.until {
                let missing = Gathered::Missing(control.members.missing());
                control.tell(session, gathers.timestamp, &missing);
                driver.gathers = None;
            } else if now >= gathers.warn_at {
                gathers.warn_at = now + WARN_EVERY;
                let missing = control.members.missing();
                let scheduler = self.endpoint.lanes.address();
                tracing::warn!(missing, scheduler, "waiting for nodes to join");
            }
        }
        if let (Some((timestamp, until)), Some(session)) = (self.launcher.ends, control.launcher)
            && (now >= until || control.members.all_are_gone())
        {
            self.launcher.ends = None;
            control.tell(session, timestamp, &());
        }
    }

    /// Waits for drivers that have not come back, which send no heartbeats, and ends the jobs of
    /// those that are away for too long.
    fn keep_waiting(&mut self) {
        let State { control, jobs, .. } = &mut self.state;
        if !jobs.awaits_drivers() {
            return;
        }
        // The next scheduler is to know how long this one has waited.
        if control.members.listened() >= self.saved + self.config.node.heartbeat {
            control.sessions.enter_news();
        }
        for driver in jobs.overdue(control, self.config.node.scheduler_away) {
            self.state.control.sessions.close(driver);
            self.lose(driver, "it did not come back");
        }
    }

    /// Closes the lane of a node that broke the rules.
    fn reject(&mut self, session: SessionId, violation: &Violation) {
        let why = violation.to_string();
        // Such nodes call again and again.
        let is_stranger = matches!(violation, Violation::OtherCluster);
        match is_stranger && std::mem::replace(&mut self.has_strangers, true) {
            true => tracing::debug!(session = session.0, why, "closing a lane"),
            false => tracing::warn!(session = session.0, why, "closing a lane"),
        }
        self.state.control.sessions.close(session);
        self.lose(session, &why);
    }

    fn lose(&mut self, session: SessionId, reason: &str) {
        self.launcher.is_gone |= self.state.control.launcher == Some(session);
        let driver = self.state.jobs.name(session).filter(|it| *it != NodeName::Scheduler);
        self.state.jobs.lose_driver(&mut self.state.control, session);
        driver
            .into_iter()
            .for_each(|it| self.state.posts.lose(&mut self.state.control, it, reason));
        if let Some(seat) = self.state.control.members.leave(session, reason) {
            self.check_members();
            let goes_on = self.state.control.lost.is_none() && self.state.ended.is_none();
            if goes_on && self.state.control.members.is_lost(seat) {
                self.go_on_without(seat, reason);
            }
        }
    }

    /// Makes the others go on: nobody waits for this worker at barriers, in tasks and for answers.
    fn go_on_without(&mut self, seat: Seat, reason: &str) {
        match self.state.control.members.has_left(seat) {
            true => tracing::info!(node = %seat, "has left"),
            false => tracing::warn!(node = %seat, "lost; the others go on"),
        }
        match seat.role {
            Role::Server => self.publish_lost_servers(),
            Role::Worker => {
                self.publish_lost_worker();
                self.state.jobs.lose_worker(&mut self.state.control, seat.rank);
            }
        }
        self.state.posts.lose(&mut self.state.control, NodeName::of(seat.role, seat.rank), reason);
        self.state.jobs.go_on(&mut self.state.control);
    }

    /// Tells all members and drivers which server threads are lost.
    fn publish_lost_servers(&mut self) {
        let State { control, jobs, .. } = &mut self.state;
        control.publish_lost_threads(jobs.tasks.next_number());
        jobs.answer_watches(control);
    }

    /// Tells all servers which workers are lost.
    fn publish_lost_worker(&mut self) {
        let State { control, jobs, .. } = &mut self.state;
        control.publish_lost_workers(jobs.tasks.next_number());
    }

    /// Looks for lost members. Tells everybody about the first whose loss ends the cluster; closes
    /// the lanes of others.
    pub(super) fn check_members(&mut self) {
        let silent = self.state.control.members.check_silence();
        let Some(loss) = self.state.control.members.fatal_loss() else {
            for session in silent {
                self.state.control.sessions.close(session);
                self.lose(session, "no heartbeat");
            }
            return;
        };
        if self.state.control.lost.is_some() || self.state.ended.is_some() {
            return;
        }
        tracing::info!(node = loss.node, reason = loss.reason, "lost");
        self.state.control.lost = Some(loss.clone());
        let State { control, jobs, .. } = &mut self.state;
        jobs.answer_watches(control);
        jobs.answer_waits(control);
        control.order_all(jobs.tasks.next_number(), &Order::Lost(loss));
    }
}

impl Launcher {
    /// Whether a lane with this hello is the launcher's.
    fn is_it(&self, hello: &Hello) -> bool {
        let Identity { role, incarnation, .. } = self.identity;
        hello.role == role && hello.incarnation.get() == incarnation
    }
}
