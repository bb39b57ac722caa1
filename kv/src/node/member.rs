//! A node that has joined: receives tasks from the scheduler and reports their results.

use std::io;
use std::time::{Duration, Instant};

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Endpoint, PeerId, Wait};

use super::backend;
use super::control::{self, Ask, Join, Order, Report, Role, Roster};
use crate::config::NodeConfig;
use crate::error::{Error, Result, with_sources};

/// Longest sleep while waiting.
const NAP: Duration = Duration::from_millis(100);

/// How long the scheduler may take to name the nodes missing at a barrier.
const SAY_WHO: Duration = Duration::from_secs(2);

/// Time between two attempts to reach the scheduler.
const RETRY: Duration = Duration::from_millis(100);

/// A task from the scheduler.
#[derive(Debug)]
pub struct Task {
    /// Name of the app that runs it.
    pub app: String,
    /// Its input.
    pub body: serde_json::Value,
    number: u64,
}

/// This node's side of the control plane.
pub struct Member {
    endpoint: Endpoint,
    scheduler: PeerId,
    address: String,
    roster: Roster,
    role: Role,
    tasks: std::collections::VecDeque<Task>,
    asked: u64,
    answered: Option<u64>,
    ended: bool,
}

impl Member {
    /// Joins the cluster with the identity in `config`; returns when all nodes have joined.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the scheduler's address and the number of attempts;
    /// [`Error::NodeLost`] says why it refused.
    pub(crate) fn join(config: &NodeConfig, role: Role, join: Join) -> Result<Member> {
        let (endpoint, scheduler) = reach(config)?;
        let address = config.scheduler.clone();
        let roster = Roster {
            node: 0,
            rank: 0,
            van: config.van,
            servers: Vec::new(),
            first_thread: 0,
            workers: 0,
        };
        let tasks = Default::default();
        let mut member = Member {
            endpoint,
            scheduler,
            address,
            roster,
            role,
            tasks,
            asked: 0,
            answered: None,
            ended: false,
        };
        let join = Ask::Join(join);
        let roster = member.ask(&join, config.join_timeout, "joining the cluster: other nodes")?;
        member.roster = serde_json::from_slice(&roster)?;
        Ok(member)
    }

    /// The cluster's nodes.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Waits for the next task; `None` when the job is over, or when `goes_on` returns false
    /// because this node cannot go on.
    ///
    /// # Errors
    /// [`Error::NodeLost`] if the scheduler is gone.
    pub(crate) fn next_task(&mut self, goes_on: impl Fn() -> bool) -> Result<Option<Task>> {
        loop {
            self.poll(&mut None)?;
            if let Some(task) = self.tasks.pop_front() {
                return Ok(Some(task));
            }
            if self.ended || !goes_on() {
                return Ok(None);
            }
            self.endpoint.wait(NAP)?;
        }
    }

    /// Sends the result of a task.
    ///
    /// # Errors
    /// [`Error::NodeLost`] if the scheduler is gone.
    pub fn report(&mut self, task: &Task, report: &Report) -> Result<()> {
        control::answer(&mut self.endpoint, self.scheduler, task.number, report)?;
        self.poll(&mut None)
    }

    /// Waits until all nodes of this role have reached the barrier called `name`.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::NodeLost`].
    pub fn barrier(&mut self, name: &str, timeout: Duration) -> Result<()> {
        let what = format!("the barrier {name}: other {}s", self.role);
        let (seconds, what) =
            match self.ask(&Ask::Barrier { name: name.to_owned() }, timeout, &what) {
                Err(Error::Timeout { seconds, .. }) => (seconds, format!("the barrier {name}")),
                asked => return asked.map(drop),
            };
        let missing = Ask::Missing { name: name.to_owned() };
        let missing = self.ask(&missing, SAY_WHO, "who is missing")?;
        Err(Error::Timeout { what, seconds, missing: serde_json::from_slice(&missing)? })
    }

    /// Sends a request to the scheduler and waits for the answer.
    fn ask(&mut self, what: &Ask, timeout: Duration, missing: &str) -> Result<Vec<u8>> {
        self.asked += 1;
        control::ask(&mut self.endpoint, self.scheduler, self.asked, what)?;
        let began = self.endpoint.now();
        let mut warned = began;
        loop {
            let mut answer = None;
            self.poll(&mut answer)?;
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if self.ended {
                return Err(self.lost("it has ended the job".to_owned()));
            }
            let now = self.endpoint.now();
            if now - began > timeout {
                let seconds = timeout.as_secs_f64();
                let missing = format!("{missing} (the scheduler at {} knows which)", self.address);
                return Err(Error::Timeout {
                    what: "a request to the scheduler".to_owned(),
                    seconds,
                    missing,
                });
            }
            if now - warned > Duration::from_secs(10) {
                warned = now;
                tracing::warn!(scheduler = self.address, "still waiting for {missing}");
            }
            self.endpoint.wait(NAP)?;
        }
    }

    fn lost(&self, reason: String) -> Error {
        Error::NodeLost { node: format!("the scheduler at {}", self.address), reason }
    }

    /// Handles messages of the scheduler; stores an answer in `answer`.
    fn poll(&mut self, answer: &mut Option<Vec<u8>>) -> Result<()> {
        self.endpoint.poll()?;
        while let Some(arrival) = self.endpoint.take() {
            match arrival {
                // This node makes no offers, and every answer has a body.
                Arrival::Connected { .. } | Arrival::Placed { .. } | Arrival::Answered { .. } => {}
                Arrival::Lost { .. } if self.ended => {}
                Arrival::Lost { error, .. } => {
                    return Err(self.lost(with_sources(&error)));
                }
                Arrival::Message { message, .. } if message.kind() == Kind::Request => {
                    match control::read(&message)? {
                        Order::Run { app, body } => {
                            self.tasks.push_back(Task { app, body, number: message.timestamp() });
                        }
                        Order::End => self.ended = true,
                    }
                }
                Arrival::Message { message, .. } if message.kind() == Kind::Failure => {
                    let why = String::from_utf8_lossy(message.values());
                    return Err(self.lost(format!("it refused this {}: {why}", self.role)));
                }
                Arrival::Message { message, .. } => {
                    if message.timestamp() == self.asked && self.answered != Some(self.asked) {
                        self.answered = Some(self.asked);
                        *answer = Some(message.values().to_vec());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Connects to the scheduler, which may not be up yet. Nobody connects to this node.
pub(crate) fn reach(config: &NodeConfig) -> Result<(Endpoint, PeerId)> {
    let mut van = config.van_config(0);
    van.wait = Wait::Block;
    van.credits = 64;
    van.accepts = false;
    let mut endpoint = Endpoint::new(backend::open_control(config.van, &van)?, 0, van.credits);
    let began = Instant::now();
    let mut warned = began;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let why = match endpoint.connect(&config.scheduler) {
            Ok(peer) => match greeted(&mut endpoint, peer, config.join_timeout)? {
                Ok(()) => return Ok((endpoint, peer)),
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
        if began.elapsed() > config.join_timeout {
            let missing = format!(
                "the scheduler at {}, tried {attempts} times: {why} (is it up, and is that its address, CARAVAN_SCHEDULER? \
                 CARAVAN_JOIN_TIMEOUT_S says how long to try)",
                config.scheduler
            );
            let seconds = began.elapsed().as_secs_f64();
            return Err(Error::Timeout {
                what: "joining the cluster".to_owned(),
                seconds,
                missing,
            });
        }
        if warned.elapsed() > Duration::from_secs(5) {
            warned = Instant::now();
            tracing::warn!(
                scheduler = config.scheduler,
                attempts,
                why,
                "cannot reach the scheduler yet"
            );
        }
        std::thread::sleep(RETRY);
    }
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
    let began = Instant::now();
    while began.elapsed() < timeout {
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
