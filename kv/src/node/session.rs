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
    /// The first message on a lane that goes on with the session of an earlier one. It says whether
    /// neither side has heard anything in that: then it begins, where nobody knows it.
    Resume,
    /// There is no session that could be resumed, for the reason in it.
    Gone,
}

impl Speech {
    const ALL: [Speech; 5] =
        [Speech::Ask, Speech::Answer, Speech::Refuse, Speech::Resume, Speech::Gone];
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

    /// Sends what waits, as far as the lane has room.
    ///
    /// # Errors
    /// Those of the van.
    pub(super) fn send(&mut self, endpoint: &mut Endpoint, peer: PeerId) -> Result<()> {
        while let Some(next) = self.unacknowledged.get(self.sent)
            && endpoint.lanes.credits(peer) > 0
        {
            let Unacknowledged { number, speech, of, text } = next;
            post(endpoint, peer, *speech, (*number, *of), text)?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Takes in what has arrived.
    ///
    /// # Errors
    /// If no honest peer says it.
    pub(super) fn take_in(&mut self, message: &Message) -> Result<Incoming, Misheard> {
        let number = message.timestamp();
        let (kind, op) = (message.kind(), message.op());
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
                let text = std::str::from_utf8(message.values());
                let text = text.map_err(|_| Misheard::NoText { number })?.to_owned();
                self.heard = last.max(number);
                Ok(Incoming::New { number, said: Said { speech, of: message.clock(), text } })
            }
            _ => Err(Misheard::Unknown { kind, op }),
        }
    }
}

/// Sends a message that belongs to no session: it begins or ends one.
///
/// # Errors
/// Those of the van.
pub(super) fn post_apart(
    endpoint: &mut Endpoint,
    peer: PeerId,
    speech: Speech,
    text: &str,
) -> Result<()> {
    post(endpoint, peer, speech, (0, 0), text)
}

fn post(
    endpoint: &mut Endpoint,
    peer: PeerId,
    speech: Speech,
    (number, of): (u64, u64),
    text: &str,
) -> Result<()> {
    let draft = Draft {
        op: speech as u8,
        timestamp: number,
        clock: of,
        values: Values::Copied(text.as_bytes()),
        ..Draft::new(Kind::Request)
    };
    Ok(endpoint.lanes.post(peer, draft, &mut Coding::plain())?)
}
