//! A node's lane to the scheduler: finding it, asking, and hearing what it says. Where the
//! scheduler may come back, a lane that breaks is made again, and the session goes on.

use std::io;
use std::time::Duration;

use caravan_van::wire::Hello;
use caravan_van::{Arrival, Endpoint, Message, PeerId, VanConfig, Wait};
use serde::Serialize;

use super::backend;
use super::control::{self, CREDITS, Order};
use super::session::{self, Incoming, Resume, Said, Session, Speech};
use crate::config::NodeConfig;
use crate::error::{Error, Result, with_sources};

/// Longest sleep while a lane comes up.
const BACKOFF: Duration = Duration::from_millis(100);

/// Time between two attempts to reach the scheduler.
const RETRY: Duration = Duration::from_millis(100);

/// Time between two warnings of an attempt.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// Why a node stays away from a scheduler.
const OTHER_CLUSTER: &str = "the scheduler there keeps the state of another cluster, or has none: \
                             start it with the state of this one";

/// The scheduler that a node belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home {
    /// Identity of its cluster, which the incarnation in its hello is.
    pub(crate) cluster: u64,
    /// How long it may stay away; zero if it does not come back.
    pub(crate) away_max: Duration,
}

/// What the scheduler says on a lane.
#[derive(Debug)]
pub(crate) enum Heard {
    /// An order; its answer carries `number`.
    Order { number: u64, order: Order },
    /// The answer to the request with this number, as JSON.
    Answer { to: u64, body: String },
    /// The scheduler refuses the request with this number, for this reason.
    Refused { to: u64, why: String },
    /// The lane is lost, for this reason. It is said whenever there is nothing else.
    Closed(String),
}

/// A lane to the scheduler.
pub(crate) struct SchedulerLane {
    endpoint: Endpoint,
    peer: PeerId,
    address: String,
    session: Session,
    asked: u64,
    /// Why it is lost.
    closed: Option<String>,
    home: Home,
    /// Set while it is.
    away: Option<Away>,
}

/// A scheduler that is away.
struct Away {
    since: Duration,
    why: String,
    /// The lane of the present attempt, and when the next one is due.
    calls: Option<PeerId>,
    next: Duration,
}

impl SchedulerLane {
    /// Connects to the scheduler, which may not be up yet. Nobody connects to this node.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the scheduler's address and the number of attempts;
    /// [`Error::NodeLost`] if it has refused a node that its process has launched.
    pub(crate) fn reach(config: &NodeConfig) -> Result<SchedulerLane> {
        Self::connect(open(config, VanConfig::SILENCE_MAX)?, config, None)
    }

    /// As [`SchedulerLane::reach`], over an endpoint that [`open`] has made. If a cluster is given,
    /// only its scheduler will do.
    ///
    /// # Errors
    /// As [`SchedulerLane::reach`].
    pub(crate) fn connect(
        mut endpoint: Endpoint,
        config: &NodeConfig,
        cluster: Option<u64>,
    ) -> Result<SchedulerLane> {
        let began = endpoint.lanes.now();
        let mut warned = began;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let found = match endpoint.connect(&config.scheduler) {
                Ok(peer) => greeted(&mut endpoint, peer, config.join_timeout)?,
                Err(why) => Err(why),
            };
            let (is_final, why) = match found {
                Ok((peer, found)) if cluster.is_none_or(|it| it == found) => {
                    let home = Home { cluster: found, away_max: Duration::ZERO };
                    return Ok(SchedulerLane::of(endpoint, peer, config, home));
                }
                Ok((peer, _)) => {
                    endpoint.disconnect(peer);
                    (false, OTHER_CLUSTER.to_owned())
                }
                // The scheduler was there before a node that it has launched, so its refusal is
                // final.
                Err(why) => {
                    let is_final = config.launched && (is_refused(&why) || why.is_refusal());
                    (is_final, with_sources(&why))
                }
            };
            if is_final {
                let node = format!("the scheduler at {}", config.scheduler);
                let reason = format!("this node cannot join it: {why}");
                return Err(Error::NodeLost { node, reason });
            }
            let now = endpoint.lanes.now();
            if now - began > config.join_timeout {
                let missing = format!(
                    "the scheduler at {}, tried {attempts} times: {why} (is it up, and is that its address, CARAVAN_SCHEDULER? \
                     CARAVAN_JOIN_TIMEOUT_S says how long to try)",
                    config.scheduler
                );
                return Err(Error::Timeout {
                    what: "joining the cluster".to_owned(),
                    seconds: (now - began).as_secs_f64(),
                    missing,
                });
            }
            if now - warned > WARN_EVERY {
                warned = now;
                tracing::warn!(
                    scheduler = config.scheduler,
                    attempts,
                    why,
                    "cannot reach the scheduler yet"
                );
            }
            pause(&mut endpoint, RETRY)?;
        }
    }

    fn of(endpoint: Endpoint, peer: PeerId, config: &NodeConfig, home: Home) -> SchedulerLane {
        SchedulerLane {
            endpoint,
            peer,
            address: config.scheduler.clone(),
            session: Session::default(),
            asked: 0,
            closed: None,
            home,
            away: None,
        }
    }

    /// The scheduler at the other end.
    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// The scheduler's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Time on this lane's clock.
    pub(crate) fn now(&self) -> Duration {
        self.endpoint.lanes.now()
    }

    /// Lets the scheduler stay away for this long before the lane counts as lost: it keeps its
    /// state, and will come back.
    pub(crate) fn outlast(&mut self, away_max: Duration) {
        self.home.away_max = away_max;
    }

    /// Whether another request can be made now.
    pub(crate) fn has_room(&self) -> bool {
        self.session.unacknowledged() < usize::from(CREDITS)
    }

    /// Makes a request; its answer carries the number that is returned.
    ///
    /// # Errors
    /// Those of the van, if the lane is lost.
    pub(crate) fn ask(&mut self, what: &impl Serialize) -> Result<u64> {
        self.asked += 1;
        self.say(Speech::Ask, self.asked, what)?;
        Ok(self.asked)
    }

    /// Answers the scheduler's order with this number.
    ///
    /// # Errors
    /// Those of the van, if the lane is lost.
    pub(crate) fn answer(&mut self, number: u64, what: &impl Serialize) -> Result<()> {
        self.say(Speech::Answer, number, what)
    }

    fn say(&mut self, speech: Speech, of: u64, what: &impl Serialize) -> Result<()> {
        self.session.say(speech, of, what)?;
        self.send()
    }

    /// Sends what waits, unless the scheduler is away.
    fn send(&mut self) -> Result<()> {
        if self.away.is_some() || !self.session.has_unsent() {
            return Ok(());
        }
        let stamp = self.session.stamp();
        match self.session.send(&mut self.endpoint, self.peer, stamp) {
            // The loss of the lane is still to be heard.
            Err(_) if !self.home.away_max.is_zero() => Ok(()),
            sent => sent,
        }
    }

    /// Sends what is to be sent, and returns the next thing that the scheduler has said, if any.
    ///
    /// # Errors
    /// [`Error::Control`] for an order that cannot be parsed; those of the van itself.
    pub(crate) fn hear(&mut self) -> Result<Option<Heard>> {
        loop {
            while let Some(arrival) = self.endpoint.take() {
                match arrival {
                    Arrival::Placed { .. } => {} // this node makes no offers
                    Arrival::Connected { peer, hello } => self.return_to(peer, &hello),
                    Arrival::Lost { peer, error } => self.lose(peer, with_sources(&error)),
                    Arrival::Message { peer } => {
                        let Some(message) = self.endpoint.pop() else { continue };
                        if peer != self.peer {
                            continue; // of an attempt that was given up
                        }
                        if let Some(heard) = self.ingest(&message)? {
                            return Ok(Some(heard));
                        }
                    }
                }
            }
            self.call_again();
            self.send()?;
            if !self.endpoint.poll()? {
                return Ok(self.closed.clone().map(Heard::Closed));
            }
        }
    }

    /// Takes in a message, and acknowledges it.
    fn ingest(&mut self, message: &Message) -> Result<Option<Heard>> {
        let (number, said) = match self.session.ingest(message) {
            Ok(Incoming::Acknowledged) => return Ok(None),
            Ok(Incoming::Known { number }) => (number, None),
            Ok(Incoming::New { number, said }) => (number, Some(said)),
            Err(misheard) => {
                self.endpoint.disconnect(self.peer);
                self.closed = Some(misheard.to_string());
                return Ok(None);
            }
        };
        // A lane that is lost meanwhile tells so itself.
        let stamp = self.session.stamp();
        let _ = session::acknowledge(&mut self.endpoint, self.peer, stamp, number);
        let Some(Said { speech, of, text }) = said else { return Ok(None) };
        Ok(match speech {
            Speech::Ask => Some(Heard::Order { number: of, order: serde_json::from_str(&text)? }),
            Speech::Answer => Some(Heard::Answer { to: of, body: text }),
            Speech::Refuse => Some(Heard::Refused { to: of, why: text }),
            Speech::Gone => {
                self.closed = Some(text);
                None
            }
            Speech::Resume => None, // only nodes say it
        })
    }

    /// Records that a lane is lost: the scheduler is away, or gone.
    fn lose(&mut self, peer: PeerId, why: String) {
        let now = self.now();
        match &mut self.away {
            Some(away) if away.calls == Some(peer) => {
                (away.calls, away.next) = (None, now + RETRY);
            }
            None if peer == self.peer && self.closed.is_none() => {
                match self.home.away_max.is_zero() {
                    true => self.closed = Some(why),
                    false => {
                        tracing::warn!(scheduler = self.address, why, "the scheduler is away");
                        self.away = Some(Away { since: now, why, calls: None, next: now });
                    }
                }
            }
            _ => {}
        }
    }

    /// Calls a scheduler that is away, unless a call is under way; gives up in time.
    fn call_again(&mut self) {
        let now = self.now();
        let Some(away) = &mut self.away else { return };
        if now.saturating_sub(away.since) > self.home.away_max {
            let Away { why, calls, .. } = away;
            let seconds = self.home.away_max.as_secs_f64();
            let why = format!(
                "{why}; it did not come back within {seconds:.1} s (CARAVAN_SCHEDULER_AWAY_S)"
            );
            calls.iter().for_each(|peer| self.endpoint.disconnect(*peer));
            (self.away, self.closed) = (None, Some(why));
        } else if away.calls.is_none() && now >= away.next {
            match self.endpoint.connect(&self.address) {
                Ok(peer) => away.calls = Some(peer),
                Err(_) => away.next = now + RETRY,
            }
        }
    }

    /// Goes on with the session on a lane that is up, if it is the awaited one. A scheduler of
    /// another cluster is told so, and closes the lane; the right one may still come.
    fn return_to(&mut self, peer: PeerId, hello: &Hello) {
        let now = self.now();
        let Some(away) = self.away.as_mut().filter(|away| away.calls == Some(peer)) else { return };
        if hello.role != control::SCHEDULER {
            self.endpoint.disconnect(peer);
            return self.lose(peer, String::new());
        }
        let found = hello.incarnation.get();
        let is_unheard = self.session.is_unheard();
        let resume = Resume { cluster: self.home.cluster, is_unheard };
        if found == self.home.cluster || is_unheard {
            let away = now - away.since;
            tracing::info!(scheduler = self.address, ?away, "the scheduler is back");
            self.away = None;
            self.home.cluster = found;
            self.peer = peer;
            self.session.begin_lane();
        } else if away.why != OTHER_CLUSTER {
            tracing::warn!(scheduler = self.address, "{OTHER_CLUSTER}");
            OTHER_CLUSTER.clone_into(&mut away.why);
        }
        let Ok(resume) = serde_json::to_string(&resume) else { return };
        // A lane that is lost meanwhile tells so itself.
        let stamp = self.session.stamp();
        let _ = session::post_apart(&mut self.endpoint, peer, stamp, Speech::Resume, &resume);
    }

    /// Sleeps until there may be something to hear, or `timeout` has passed.
    ///
    /// # Errors
    /// Those of the van itself.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<()> {
        let timeout = if self.away.is_some() { timeout.min(RETRY) } else { timeout };
        Ok(self.endpoint.wait(timeout)?)
    }
}

/// An endpoint of the control plane to which nobody connects. The scheduler's host may acknowledge
/// nothing for `silence_max` before it counts as dead.
///
/// # Errors
/// If the system has no sockets left.
pub(crate) fn open(config: &NodeConfig, silence_max: Duration) -> Result<Endpoint> {
    let van = VanConfig { accepts: false, silence_max, ..control_config(config) };
    Ok(Endpoint::new(backend::open_control(config.van, &van)?, 0, CREDITS))
}

/// Settings of a transport of the control plane.
pub(crate) fn control_config(config: &NodeConfig) -> VanConfig {
    VanConfig { wait: Wait::Block, credits: CREDITS, ..config.van_config(0) }
}

/// Lets this much time pass.
fn pause(endpoint: &mut Endpoint, time: Duration) -> Result<()> {
    let until = endpoint.lanes.now() + time;
    while endpoint.lanes.now() < until {
        // What lanes of earlier attempts still say does not matter.
        endpoint.poll()?;
        while endpoint.take().is_some() {}
        endpoint.wait(until.saturating_sub(endpoint.lanes.now()))?;
    }
    Ok(())
}

/// Whether nothing listens at the address.
fn is_refused(error: &caravan_van::Error) -> bool {
    let kind = match error {
        caravan_van::Error::Connect { source, .. } => source.kind(),
        _ => return false,
    };
    kind == io::ErrorKind::ConnectionRefused
}

/// Waits for the scheduler's hello; returns its lane and its cluster. The inner error says why none
/// came.
fn greeted(
    endpoint: &mut Endpoint,
    peer: PeerId,
    timeout: Duration,
) -> Result<Result<(PeerId, u64), caravan_van::Error>> {
    let began = endpoint.lanes.now();
    while endpoint.lanes.now() - began < timeout {
        endpoint.poll()?;
        while let Some(arrival) = endpoint.take() {
            match arrival {
                Arrival::Connected { peer: up, hello } if up == peer => {
                    return match hello.role {
                        control::SCHEDULER => Ok(Ok((peer, hello.incarnation.get()))),
                        _ => Err(Error::Config(
                            "CARAVAN_SCHEDULER is the address of another node of this job"
                                .to_owned(),
                        )),
                    };
                }
                Arrival::Lost { peer: lost, error } if lost == peer => return Ok(Err(error)),
                _ => {}
            }
        }
        endpoint.wait(BACKOFF)?;
    }
    Ok(Err(caravan_van::Error::NotConnected { peer }))
}
