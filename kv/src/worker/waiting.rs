//! Waiting for answers: how long, and what is looked at meanwhile.

use std::fmt;
use std::time::Duration;

use super::{ServerAddress, Worker};
use crate::error::{Error, Result};
use crate::tracker::Timestamp;

/// After so long a wait it is said what is waited for.
const SAY_AFTER: Duration = Duration::from_secs(10);

/// What is looked at while nothing comes: an error ends the wait.
pub(crate) type Watch = Box<dyn FnMut() -> Result<()>>;

/// One sleep while waiting; whoever waits looks around at least this often.
const NAP: Duration = Duration::from_millis(100);

/// When a worker stops waiting for an answer that does not come.
pub(crate) struct Waits {
    /// Knows which nodes are lost.
    watch: Option<Watch>,
    /// How long it may sleep between two looks.
    pub(super) nap: Duration,
    /// Whether it has ended a wait: the next ones need not sleep first to find out the same.
    in_vain: bool,
    /// How long no server may answer anything.
    silence_max: Duration,
}

impl Waits {
    /// Gives up after so long without any answer.
    pub(crate) fn up_to(silence_max: Duration) -> Waits {
        Waits { watch: None, nap: NAP, in_vain: false, silence_max }
    }

    /// With a watch over nodes that give signs of life every `heartbeat`: it hears some ten times as often.
    pub(crate) fn watching(self, watch: Watch, heartbeat: Duration) -> Waits {
        Waits { watch: Some(watch), nap: NAP.min(heartbeat / 10), ..self }
    }
}

/// A wait in which nothing has come so far.
#[derive(Default)]
pub(super) struct Silence {
    napped: bool,
    /// When it began, as far as the time was asked for.
    pub(super) began: Option<Duration>,
    /// When it was last said what is waited for.
    said: Option<Duration>,
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
    /// Sleeps a while, and looks around first if it has slept already: most answers come during the first nap, and until then
    /// nobody asks for the time.
    pub(super) fn nap(&mut self, silence: &mut Silence, what: Awaited) -> Result<()> {
        if std::mem::replace(&mut silence.napped, true) || self.waits.in_vain {
            self.look_around(silence, what)?;
        }
        Ok(self.endpoint.wait(self.waits.nap)?)
    }

    /// Ends a wait that is in vain, and says now and then what is waited for.
    #[cold]
    fn look_around(&mut self, silence: &mut Silence, what: Awaited) -> Result<()> {
        self.look_at_the_lost()?;
        let now = self.endpoint.now();
        let silent = now - *silence.began.get_or_insert(now);
        if silent > self.waits.silence_max {
            let (what, missing) = (what.to_string(), self.unanswered(what));
            return Err(Error::Timeout { what, seconds: silent.as_secs_f64(), missing });
        }
        if now > *silence.said.get_or_insert(now) + SAY_AFTER {
            silence.said = Some(now);
            let servers = self.unanswered(what);
            tracing::warn!(%what, servers, "still waiting for an answer");
        }
        Ok(())
    }

    /// Ends a wait when a node is lost that this process watches over.
    pub(super) fn look_at_the_lost(&mut self) -> Result<()> {
        let looked = self.waits.watch.as_mut().map_or(Ok(()), |watch| watch());
        self.waits.in_vain = looked.is_err();
        looked
    }

    /// The servers that have not answered yet.
    fn unanswered(&mut self, what: Awaited) -> String {
        let servers: Vec<_> = match what {
            Awaited::Room(server) => vec![server],
            Awaited::Answer(timestamp) => {
                let parts = self.tracker.progress(timestamp.0).map(|progress| &progress.parts[..]);
                let parts = parts.unwrap_or_default().iter().filter(|part| !part.answered);
                parts.map(|part| part.server).collect()
            }
        };
        let name = |server: &usize| {
            let ServerAddress { name, address } = &self.servers[*server].at;
            format!("{name} at {address}")
        };
        servers.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}
