//! A conversation of the control plane, which may outlast its lane.
//!
//! Either side numbers what it says, and acknowledges what it has heard. What the other side has
//! not acknowledged is said again on the next lane, and is heard once: its number tells. So a
//! scheduler that is killed and comes back with its sessions loses nothing and does nothing twice.
//! A message is a request of the van, and its acknowledgement is the answer: lanes of the control
//! plane have room for as many messages as they have credits, and the rest waits here.

use std::collections::VecDeque;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, Endpoint, Message, PeerId, Values};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// A session, as the scheduler numbers it. No other gets its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SessionId(pub(crate) u64);

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Speech {
    /// A request, or an order.
    Ask,
    /// The answer to one.
    Answer,
    /// Why there is no answer.
    Refuse,
    /// The first message on a lane that goes on with the session of an earlier one: a [`Resume`].
    Resume,
    /// There is no session that could be resumed, for the reason in it.
    Gone,
}

impl Speech {
    const ALL: [Speech; 5] =
        [Speech::Ask, Speech::Answer, Speech::Refuse, Speech::Resume, Speech::Gone];
}

/// What a node says that goes on with a session.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Resume {
    /// The cluster that it belongs to.
    pub(super) cluster: u64,
    /// Whether neither side has heard anything in the session: then it begins, where nobody knows
    /// it.
    pub(super) is_unheard: bool,
}

/// The saved state of a scheduler from which something follows that is said. The scheduler writes
/// its own before each message and into each acknowledgement, and a node the last that it has heard
/// of: so a scheduler that comes back finds out whether it has an older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp {
    /// The scheduler's process, which has drawn this number.
    pub(crate) run: u64,
    /// The number of the state; 0 before one is saved.
    pub(crate) number: u64,
}

impl Stamp {
    /// Its length.
    const BYTES: usize = 16;

    fn to_bytes(self) -> [u8; Stamp::BYTES] {
        let mut bytes = [0; Stamp::BYTES];
        bytes[..8].copy_from_slice(&self.run.to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The stamp of a message, and what follows it; nothing if the message is too short.
    fn split(bytes: &[u8]) -> Option<(Stamp, &[u8])> {
        let (run, bytes) = bytes.split_first_chunk()?;
        let (number, rest) = bytes.split_first_chunk()?;
        let stamp = Stamp { run: u64::from_le_bytes(*run), number: u64::from_le_bytes(*number) };
        Some((stamp, rest))
    }
}

/// Why nothing more is heard on a lane.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Misheard {
    /// It is none of the known messages.
    #[error("a message of kind {kind:?} and operation {op} is none of the control plane's")]
    Unknown { kind: Kind, op: u8 },
    /// Something is missing before it.
    #[error("message {number} follows message {last}")]
    Gap { number: u64, last: u64 },
    /// It is no text.
    #[error("message {number} is no text")]
    NoText { number: u64 },
    /// It is too short.
    #[error("message {number} does not say from which state of the scheduler it follows")]
    NoStamp { number: u64 },
}

/// A message that was heard.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) speech: Speech,
    /// The number of the request that it is, or that it answers.
    pub(super) of: u64,
    /// JSON, or the reason of a refusal.
    pub(super) text: String,
}

impl Said {
    /// Parses it.
    ///
    /// # Errors
    /// Those of the parser.
    pub(super) fn read<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(&self.text)
    }
}

/// What arrived on the lane of a session.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A message that is new. Its acknowledgement carries the number.
    New { number: u64, said: Said },
    /// One that was heard before; it is to be acknowledged again.
    Known { number: u64 },
    /// An acknowledgement.
    Acknowledged,
}

/// A message that was not acknowledged.
#[derive(Debug, Serialize, Deserialize)]
struct Unacknowledged {
    number: u64,
    speech: Speech,
    of: u64,
    text: String,
}

/// One side of a conversation.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Session {
    /// Number of the last message that was said.
    said: u64,
    /// Number of the last one that was heard.
    heard: u64,
    /// What the other side has not acknowledged, in order.
    unacknowledged: VecDeque<Unacknowledged>,
    /// How many of these went over the present lane.
    #[serde(skip)]
    sent: usize,
    /// The stamp of what was heard last.
    #[serde(skip)]
    stamp: Stamp,
}

impl Session {
    /// Says something, once the lane has room.
    ///
    /// # Errors
    /// If it cannot be written as JSON.
    pub(super) fn say(&mut self, speech: Speech, of: u64, what: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(what)?;
        self.say_text(speech, of, text);
        Ok(())
    }

    /// As [`Session::say`], a text.
    pub(super) fn say_text(&mut self, speech: Speech, of: u64, text: String) {
        self.said += 1;
        self.unacknowledged.push_back(Unacknowledged { number: self.said, speech, of, text });
    }

    /// Whether nothing was heard so far.
    pub(super) fn is_new(&self) -> bool {
        self.heard == 0
    }

    /// Whether neither side has heard anything of the other.
    pub(super) fn is_unheard(&self) -> bool {
        self.heard == 0 && self.said == self.unacknowledged.len() as u64
    }

    /// The state that the other side has named last.
    pub(super) fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Number of messages that the other side has not acknowledged.
    pub(super) fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Whether something waits for room on the lane.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.unacknowledged.len()
    }

    /// Goes on over a new lane, where all that was not acknowledged is said again.
    pub(super) fn begin_lane(&mut self) {
        self.sent = 0;
    }

    /// Sends what waits, as far as the lane has room. It follows from the state `stamp`.
    ///
    /// # Errors
    /// Those of the van.
    pub(super) fn send(
        &mut self,
        endpoint: &mut Endpoint,
        peer: PeerId,
        stamp: Stamp,
    ) -> Result<()> {
        while let Some(next) = self.unacknowledged.get(self.sent)
            && endpoint.lanes.credits(peer) > 0
        {
            let Unacknowledged { number, speech, of, text } = next;
            post(endpoint, peer, stamp, *speech, (*number, *of), text)?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Takes in what has arrived.
    ///
    /// # Errors
    /// If no honest peer says it.
    pub(super) fn ingest(&mut self, message: &Message) -> Result<Incoming, Misheard> {
        let number = message.timestamp();
        let (kind, op) = (message.kind(), message.op());
        let split = Stamp::split(message.values());
        let (stamp, text) = split.ok_or(Misheard::NoStamp { number })?;
        self.stamp = stamp;
        match (kind, Speech::ALL.get(usize::from(op))) {
            (Kind::Reply, _) => {
                while self.unacknowledged.front().is_some_and(|it| it.number <= number) {
                    self.unacknowledged.pop_front();
                    self.sent = self.sent.saturating_sub(1);
                }
                Ok(Incoming::Acknowledged)
            }
            (Kind::Request, Some(_)) if (1..=self.heard).contains(&number) => {
                Ok(Incoming::Known { number })
            }
            (Kind::Request, Some(&speech)) => {
                // Those that begin or end a session have no number in it.
                let is_of_it = !matches!(speech, Speech::Resume | Speech::Gone);
                let last = self.heard;
                if number != if is_of_it { last + 1 } else { 0 } {
                    return Err(Misheard::Gap { number, last });
                }
                let text = std::str::from_utf8(text);
                let text = text.map_err(|_| Misheard::NoText { number })?.to_owned();
                self.heard = last.max(number);
                Ok(Incoming::New { number, said: Said { speech, of: message.clock(), text } })
            }
            _ => Err(Misheard::Unknown { kind, op }),
        }
    }
}

/// Acknowledges the message of this number, in the state `stamp`.
///
/// # Errors
/// Those of the van.
pub(super) fn acknowledge(
    endpoint: &mut Endpoint,
    peer: PeerId,
    stamp: Stamp,
    number: u64,
) -> Result<()> {
    Ok(endpoint.lanes.reply(peer, 0, number, &stamp.to_bytes())?)
}

/// Sends a message that belongs to no session: it begins or ends one.
///
/// # Errors
/// Those of the van.
pub(super) fn post_apart(
    endpoint: &mut Endpoint,
    peer: PeerId,
    stamp: Stamp,
    speech: Speech,
    text: &str,
) -> Result<()> {
    post(endpoint, peer, stamp, speech, (0, 0), text)
}

fn post(
    endpoint: &mut Endpoint,
    peer: PeerId,
    stamp: Stamp,
    speech: Speech,
    (number, of): (u64, u64),
    text: &str,
) -> Result<()> {
    let mut write = |place: &mut [u8]| {
        place[..Stamp::BYTES].copy_from_slice(&stamp.to_bytes());
        place[Stamp::BYTES..].copy_from_slice(text.as_bytes());
    };
    let draft = Draft {
        op: speech as u8,
        timestamp: number,
        clock: of,
        values: Values::Written(Stamp::BYTES + text.len(), &mut write),
        ..Draft::new(Kind::Request)
    };
    Ok(endpoint.lanes.post(peer, draft, &mut Coding::plain())?)
}
