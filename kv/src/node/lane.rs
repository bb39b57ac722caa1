//! A node's lane to the scheduler: finding it, asking, and hearing what it says.

use std::io;
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Endpoint, PeerId, VanConfig, Wait};
use serde::Serialize;

use super::backend;
use super::control::{self, CREDITS, Order};
use crate::config::NodeConfig;
use crate::error::{Error, Result, with_sources};

/// Longest sleep while a lane comes up.
const NAP: Duration = Duration::from_millis(100);

/// Time between two attempts to reach the scheduler.
const RETRY: Duration = Duration::from_millis(100);

/// Time between two warnings of an attempt.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// What the scheduler says on a lane.
#[derive(Debug)]
pub(crate) enum Heard {
    /// An order; its answer carries `number`.
    Order { number: u64, order: Order },
    /// The answer to the request with this number, as JSON.
    Answer { to: u64, body: Vec<u8> },
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
    asked: u64,
    /// Why it is lost.
    closed: Option<String>,
}

impl SchedulerLane {
    /// Connects to the scheduler, which may not be up yet. Nobody connects to this node.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the scheduler's address and the number of attempts;
    /// [`Error::NodeLost`] if it has refused a node that its process has launched.
    pub(crate) fn reach(config: &NodeConfig) -> Result<SchedulerLane> {
        Self::connect(open(config, VanConfig::SILENCE_MAX)?, config)
    }

    /// As [`SchedulerLane::reach`], over an endpoint that [`open`] has made.
    ///
    /// # Errors
    /// As [`SchedulerLane::reach`].
    pub(crate) fn connect(mut endpoint: Endpoint, config: &NodeConfig) -> Result<SchedulerLane> {
        let began = endpoint.lanes.now();
        let mut warned = began;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let why = match endpoint.connect(&config.scheduler) {
                Ok(peer) => match greeted(&mut endpoint, peer, config.join_timeout)? {
                    Ok(()) => {
                        let address = config.scheduler.clone();
                        return Ok(SchedulerLane {
                            endpoint,
                            peer,
                            address,
                            asked: 0,
                            closed: None,
                        });
                    }
                    Err(why) => why,
                },
                Err(why) => why,
            };
            // The scheduler was there before a node that it has launched, so its refusal is final.
            let is_final = config.launched && (is_refused(&why) || why.is_refusal());
            let why = with_sources(&why);
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

    /// The scheduler's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Time on this lane's clock.
    pub(crate) fn now(&self) -> Duration {
        self.endpoint.lanes.now()
    }

    /// Whether another request can be made now.
    pub(crate) fn has_room(&self) -> bool {
        self.endpoint.lanes.credits(self.peer) > 0
    }

    /// Makes a request; its answer carries the number that is returned.
    ///
    /// # Errors
    /// Those of the van, if the lane is lost or full.
    pub(crate) fn ask(&mut self, what: &impl Serialize) -> Result<u64> {
        self.asked += 1;
        control::ask(&mut self.endpoint, self.peer, self.asked, what)?;
        Ok(self.asked)
    }

    /// Answers the scheduler's order with this number.
    ///
    /// # Errors
    /// Those of the van, if the lane is lost.
    pub(crate) fn answer(&mut self, number: u64, what: &impl Serialize) -> Result<()> {
        control::answer(&mut self.endpoint, self.peer, number, what)
    }

    /// Sends what is to be sent, and returns the next thing that the scheduler has said, if any.
    ///
    /// # Errors
    /// [`Error::Control`] for an order that cannot be parsed; those of the van itself.
    pub(crate) fn hear(&mut self) -> Result<Option<Heard>> {
        loop {
            while let Some(arrival) = self.endpoint.take() {
                match arrival {
                    // This node makes no offers.
                    Arrival::Connected { .. } | Arrival::Placed { .. } => {}
                    Arrival::Lost { error, .. } => self.closed = Some(with_sources(&error)),
                    Arrival::Message { .. } => {
                        let Some(message) = self.endpoint.pop() else { continue };
                        let number = message.timestamp();
                        return Ok(Some(match message.kind() {
                            Kind::Request => {
                                Heard::Order { number, order: control::read(&message)? }
                            }
                            Kind::Failure => {
                                let why = String::from_utf8_lossy(message.values());
                                Heard::Refused { to: number, why: why.into_owned() }
                            }
                            _ => Heard::Answer { to: number, body: message.values().to_vec() },
                        }));
                    }
                }
            }
            if !self.endpoint.poll()? {
                return Ok(self.closed.clone().map(Heard::Closed));
            }
        }
    }

    /// Sleeps until there may be something to hear, or `timeout` has passed.
    ///
    /// # Errors
    /// Those of the van itself.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<()> {
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

/// Waits for the scheduler's hello; the inner error says why none came.
fn greeted(
    endpoint: &mut Endpoint,
    peer: PeerId,
    timeout: Duration,
) -> Result<Result<(), caravan_van::Error>> {
    let began = endpoint.lanes.now();
    while endpoint.lanes.now() - began < timeout {
        endpoint.poll()?;
        while let Some(arrival) = endpoint.take() {
            match arrival {
                Arrival::Connected { peer: up, hello } if up == peer => {
                    return match hello.role {
                        control::SCHEDULER => Ok(Ok(())),
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
        endpoint.wait(NAP)?;
    }
    Ok(Err(caravan_van::Error::NotConnected { peer }))
}
