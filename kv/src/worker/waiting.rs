//! Waiting for answers: how long, and what is checked meanwhile.

use std::fmt;
use std::time::Duration;

use super::Worker;
use super::recovery::RETRY;
use crate::error::{Error, Result};
use crate::membership::Event;
use crate::rechain::Rechain;
use crate::server_address::ServerAddress;
use crate::tracker::Timestamp;

/// A wait logs a warning each time this has passed.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// What has become of the server threads since the cluster was complete.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Those that are lost so far.
    pub(crate) lost: Vec<usize>,
    /// What was said so far of those that have joined or leave, in its order.
    pub(crate) events: Vec<Event>,
}

/// Runs now and then while no answer comes; returns the news so far. An error ends the wait.
pub(crate) type Watch = Box<dyn FnMut() -> Result<News>>;

/// Has the scheduler change chains; returns the number of the change, or `None` if one of them is
/// not the one that was seen.
pub(crate) type ChangeChains = Box<dyn FnMut(&[Rechain]) -> Result<Option<usize>>>;

/// Longest sleep while waiting: a waiting worker checks its watch at least this often.
const BACKOFF: Duration = Duration::from_millis(100);

/// Backoffs after which a worker checks its watch even if all its waits are short.
const LOOK_EVERY: u32 = 1024;

/// The same where servers have joined: one that leaves waits until all have heard of it.
const LOOK_EVERY_JOINED: u32 = 32;

/// Decides when a worker stops waiting for an answer.
pub(crate) struct Waits {
    /// Fails once a node is lost.
    watch: Option<Watch>,
    /// How chains are changed, if anybody can.
    pub(super) change_chains: Option<ChangeChains>,
    /// Whether servers may be lost while the others go on.
    pub(super) spares: bool,
    /// Longest sleep between two checks.
    pub(super) backoff: Duration,
    /// Whether the last check failed: the next wait then checks before its first sleep.
    is_failing: bool,
    /// Backoffs until it looks for news, of all waits.
    backoffs_left: u32,
    /// Backoffs between two looks.
    look_every: u32,
    /// Longest time without an answer from any server.
    pub(super) silence_max: Duration,
    /// Longest time that a lane may take to come up.
    pub(super) opening_max: Duration,
}

impl Waits {
    /// Gives up after `silence_max` without any answer.
    pub(crate) fn up_to(silence_max: Duration) -> Waits {
        Waits {
            watch: None,
            change_chains: None,
            spares: false,
            backoff: BACKOFF,
            is_failing: false,
            backoffs_left: LOOK_EVERY,
            look_every: LOOK_EVERY,
            silence_max,
            opening_max: silence_max,
        }
    }

    /// Whether anybody says which servers are lost.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Counts a backoff, or what stands for one; returns whether a worker looks for news at it.
    pub(super) fn is_turn(&mut self) -> bool {
        self.backoffs_left -= 1;
        let is_turn = self.backoffs_left == 0;
        if is_turn {
            self.backoffs_left = self.look_every;
        }
        is_turn
    }

    /// Makes a worker look for news more often, since servers have joined.
    pub(super) fn look_often(&mut self) {
        (self.backoffs_left, self.look_every) = (1, LOOK_EVERY_JOINED);
    }

    /// Asks the watch which server threads are lost, have joined or have left so far.
    pub(super) fn look(&mut self) -> Result<News> {
        let looked = self.watch.as_mut().map_or_else(|| Ok(News::default()), |watch| watch());
        self.is_failing = looked.is_err();
        looked
    }

    /// Replaces the watch, which runs about every `backoff`.
    pub(super) fn watch_by(&mut self, watch: Watch, backoff: Duration) {
        self.watch = Some(watch);
        self.spares = true;
        self.backoff = backoff;
    }

    /// Changes chains by this.
    pub(crate) fn changing_chains(self, change: Option<ChangeChains>) -> Waits {
        Waits { change_chains: change, ..self }
    }

    /// Says whether servers may be lost while the others go on.
    pub(crate) fn sparing(self, spares: bool) -> Waits {
        Waits { spares, ..self }
    }

    /// Adds a watch over nodes that send a heartbeat every `heartbeat`. It runs about ten times as
    /// often.
    pub(crate) fn watching(self, watch: Watch, heartbeat: Duration) -> Waits {
        Waits { watch: Some(watch), backoff: BACKOFF.min(heartbeat / 10), ..self }
    }
}

/// Makes a worker hear of servers, about every `backoff` while it waits, and change chains.
pub(crate) fn hear_by(worker: &mut Worker, watch: Watch, change: ChangeChains, backoff: Duration) {
    worker.waits.watch_by(watch, backoff);
    worker.waits.change_chains = Some(change);
}

/// The time since the last arrival during a wait.
#[derive(Default)]
pub(super) struct Silence {
    backed_off: bool,
    /// When the clock was first read during this silence.
    pub(super) began: Option<Duration>,
    /// When the wait last logged a warning.
    warned: Option<Duration>,
}

/// What a worker waits for.
#[derive(Clone, Copy)]
pub(super) enum Awaited {
    /// The answer to this request.
    Answer(Timestamp),
    /// Room for another request on the lane to this server.
    Room(usize),
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Awaited::Answer(timestamp) => write!(f, "request {timestamp}"),
            Awaited::Room(_) => f.write_str("an earlier request, which this one has to wait for,"),
        }
    }
}

impl Worker {
    /// Sleeps a while; every sleep but the first begins with [`Worker::check_silence`]. Most
    /// answers come during the first sleep, which therefore seldom reads the clock.
    pub(super) fn backoff(&mut self, silence: &mut Silence, what: Awaited) -> Result<()> {
        let is_due = self.recovery.is_due;
        let mut backoff = self.waits.backoff;
        let is_turn = self.waits.is_turn();
        let has_backed_off = std::mem::replace(&mut silence.backed_off, true);
        if has_backed_off || is_turn || self.waits.is_failing || is_due {
            self.check_silence(silence, what)?;
            if is_due {
                backoff = backoff.min(RETRY);
            }
        }
        Ok(self.endpoint.wait(backoff)?)
    }

    /// Ends a wait that cannot succeed or takes too long; logs a long one now and then.
    #[cold]
    fn check_silence(&mut self, silence: &mut Silence, what: Awaited) -> Result<()> {
        self.check_lost_nodes()?;
        let now = self.endpoint.lanes.now();
        self.check_opening(now, |worker| worker.awaited(what))?;
        let silent = now - *silence.began.get_or_insert(now);
        if silent > self.waits.silence_max {
            let missing = self.unanswered(what);
            let seconds = silent.as_secs_f64();
            return Err(Error::Timeout { what: what.to_string(), seconds, missing });
        }
        if now > *silence.warned.get_or_insert(now) + WARN_AFTER {
            silence.warned = Some(now);
            let servers = self.unanswered(what);
            tracing::warn!(%what, servers, "still waiting for an answer");
        }
        Ok(())
    }

    /// Fails if a node that this process watches is lost, and the others cannot go on. Enters which
    /// server threads are lost, have joined or have left.
    pub(super) fn check_lost_nodes(&mut self) -> Result<()> {
        let News { lost, events } = self.waits.look()?;
        self.enter_events(&events);
        lost.into_iter().for_each(|server| self.lose_server(server));
        Ok(())
    }

    /// The servers that have not answered yet, or have no room.
    fn awaited(&mut self, what: Awaited) -> Vec<usize> {
        match what {
            Awaited::Room(server) => vec![server],
            Awaited::Answer(timestamp) => {
                let parts = self.tracker.progress(timestamp.0).map(|progress| &progress.parts[..]);
                let parts = parts.unwrap_or_default().iter().filter(|part| !part.answered);
                parts.map(|part| part.server).collect()
            }
        }
    }

    /// Names those servers.
    fn unanswered(&mut self, what: Awaited) -> String {
        let servers = self.awaited(what);
        let name = |server: usize| {
            let ServerAddress { name, address } = &self.servers[server].at;
            format!("{name} at {address}")
        };
        servers.into_iter().map(name).collect::<Vec<_>>().join(", ")
    }
}
