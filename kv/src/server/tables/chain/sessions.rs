//! Client sessions: the last request of each worker that was applied, by which repeats are known.

use std::collections::VecDeque;

use caravan_van::wire::Origin;
use caravan_van::{Account, Pool};
use serde::{Deserialize, Serialize};

use crate::refusal::{Refusal, Refused};

/// Memory of what was applied of a worker, without an answer.
const SENDER_BYTES: usize = 128;

/// A worker: the node and the incarnation that its lane has proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Sender {
    pub(super) node: u32,
    pub(super) incarnation: u64,
}

impl Sender {
    /// As messages name it that are forwarded for it.
    pub(super) fn origin(self) -> Origin {
        let Sender { node, incarnation } = self;
        Origin { node, incarnation }
    }
}

impl From<Origin> for Sender {
    fn from(origin: Origin) -> Sender {
        Sender { node: origin.node, incarnation: origin.incarnation }
    }
}

/// What was applied of a worker.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Applied {
    /// The last timestamp.
    timestamp: u64,
    /// The last command's timestamp, and its answer; a worker has one command to a shard at a time.
    command: u64,
    answer: Vec<u8>,
    /// Timestamps of those of its last requests that were refused, ascending.
    refused: VecDeque<u64>,
}

impl Applied {
    /// Whether a record with this timestamp was not seen before.
    #[inline]
    pub(super) fn is_new(&self, timestamp: u64) -> bool {
        self.timestamp < timestamp
    }

    /// Records that a push was applied.
    #[inline]
    pub(super) fn enter(&mut self, timestamp: u64) {
        self.timestamp = timestamp;
    }
}

/// The sessions of a shard.
pub(super) struct ClientSessions {
    /// Sorted by worker.
    applied: Vec<(Sender, Applied)>,
    /// Index of the session that was looked up last.
    last: usize,
    memory: Account,
}

impl ClientSessions {
    pub(super) fn new(pool: &Pool) -> Self {
        let memory = Account::new(pool, "what was applied of whom");
        ClientSessions { applied: Vec::new(), last: 0, memory }
    }

    /// The session of a worker.
    #[inline]
    fn get(&self, sender: Sender) -> Option<&Applied> {
        match self.applied.get(self.last) {
            Some((last, applied)) if *last == sender => Some(applied),
            _ => self.position(sender).ok().map(|at| &self.applied[at].1),
        }
    }

    fn position(&self, sender: Sender) -> Result<usize, usize> {
        self.applied.binary_search_by_key(&sender, |(sender, _)| *sender)
    }

    /// The session of a worker, a new one if it has none.
    #[inline]
    fn entry(&mut self, sender: Sender) -> &mut Applied {
        if self.applied.get(self.last).is_none_or(|(last, _)| *last != sender) {
            self.last = self.position(sender).unwrap_or_else(|at| {
                self.applied.insert(at, (sender, Applied::default()));
                at
            });
        }
        &mut self.applied[self.last].1
    }

    /// Whether nothing was ever applied or refused.
    pub(super) fn is_empty(&self) -> bool {
        self.applied.is_empty()
    }

    /// Charges for a worker of which nothing was applied so far. This comes before its inputs are
    /// applied: what is refused is in no copy.
    pub(super) fn charge(&mut self, sender: Sender) -> Result<(), Refused> {
        if self.get(sender).is_some() {
            return Ok(());
        }
        self.memory.add(SENDER_BYTES).map_err(Refused::from)
    }

    /// The session of a worker, for several of its records.
    pub(super) fn session(&mut self, sender: Sender) -> &mut Applied {
        self.entry(sender)
    }

    /// Takes over those of another thread.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(super) fn take(&mut self, applied: Vec<(Sender, Applied)>) -> Result<(), Refused> {
        let bytes = applied.iter().map(|(_, applied)| SENDER_BYTES + applied.answer.len()).sum();
        self.memory.set(bytes)?;
        self.applied = applied;
        self.applied.sort_by_key(|(sender, _)| *sender);
        Ok(())
    }

    /// Records that a push was applied, or a command with this answer, so that it is known when it
    /// comes again.
    pub(super) fn enter(&mut self, sender: Sender, timestamp: u64, answer: Option<Vec<u8>>) {
        self.entry(sender).timestamp = timestamp;
        let Some(answer) = answer else { return };
        let before = std::mem::take(&mut self.entry(sender).answer);
        self.memory.release(before.len());
        if self.memory.add(answer.len()).is_ok() {
            let applied = self.entry(sender);
            applied.command = timestamp;
            applied.answer = answer;
        }
    }

    /// Records that inputs were refused, so that they are refused again when they come again. No
    /// more may come again than a lane has credits, so it is charged for nothing.
    pub(super) fn refuse(&mut self, sender: Sender, timestamp: u64, credits: u16) {
        let applied = self.entry(sender);
        applied.timestamp = timestamp;
        applied.refused.push_back(timestamp);
        if applied.refused.len() > usize::from(credits) {
            applied.refused.pop_front();
        }
    }

    /// Checks that inputs that come again were applied, and not refused.
    ///
    /// # Errors
    /// That they were.
    pub(super) fn check(&self, (sender, timestamp): (Sender, u64)) -> Result<(), Refused> {
        match self.get(sender).is_some_and(|it| it.refused.binary_search(&timestamp).is_ok()) {
            true => Err(Refusal::Internal
                .because("it was refused before; an answer that was lost said why")),
            false => Ok(()),
        }
    }

    /// Whether inputs were not seen before.
    pub(super) fn is_new(&self, sender: Sender, timestamp: u64) -> bool {
        self.get(sender).is_none_or(|applied| applied.timestamp < timestamp)
    }

    /// The answer to a command that was applied.
    pub(super) fn answer(&self, sender: Sender, timestamp: u64) -> Result<&[u8], Refused> {
        let applied = self.get(sender).filter(|applied| applied.command == timestamp);
        let gone = "this command was executed, and there was no memory to keep its answer";
        applied.map(|applied| &applied.answer[..]).ok_or_else(|| Refusal::Memory.because(gone))
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<(Sender, Applied)> {
        self.applied.clone()
    }

    /// By worker, the last timestamp.
    pub(super) fn timestamps(&self) -> impl Iterator<Item = ((u32, u64), u64)> + '_ {
        let last = |(of, it): &(Sender, Applied)| ((of.node, of.incarnation), it.timestamp);
        self.applied.iter().map(last)
    }

    /// Records that something of a worker was applied that may be applied again when it comes
    /// again.
    pub(super) fn note(&mut self, sender: Sender) {
        self.entry(sender);
    }
}
