//! What comes of a request: servers' answers and losses, put together when the last part has its own.
//!
//! Path: the way back, codec > **answer** > tracker. It runs on the caller's thread, inside [`Worker::poll`].

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Buffer, Message, Pool};

use super::Worker;
use crate::error::{Error, Result, with_sources};
use crate::tracker::{Callback, Part, Slot, What};

/// One server's answer.
enum Came {
    Message(Message),
    /// Its values, where they were wanted.
    Placed {
        timestamp: u64,
        memory: Buffer,
        len: usize,
    },
}

impl Came {
    fn timestamp(&self) -> u64 {
        match self {
            Came::Message(message) => message.timestamp(),
            Came::Placed { timestamp, .. } => *timestamp,
        }
    }
}

impl Worker {
    /// Takes in what the endpoint brought from one of the servers; strangers are turned away.
    pub(super) fn take_in(&mut self, arrival: Arrival) {
        let peer = match &arrival {
            Arrival::Connected { peer, .. }
            | Arrival::Message { peer, .. }
            | Arrival::Placed { peer, .. }
            | Arrival::Lost { peer, .. } => *peer,
        };
        let server = self.by_peer.get(peer.0 as usize).copied().flatten();
        let Some(server) = server else { return self.endpoint.disconnect(peer) };
        match arrival {
            Arrival::Connected { .. } => self.servers[server].up = true,
            Arrival::Message { message, .. } if message.kind() == Kind::Request => {
                let reason = "it sent a request to a worker".to_owned();
                let address = self.servers[server].at.address.clone();
                self.endpoint.disconnect(peer);
                self.lose(server, &caravan_van::Error::PeerLost { peer, address, reason });
            }
            Arrival::Message { message, .. } => self.answer(server, Came::Message(message)),
            Arrival::Placed { timestamp, memory, len, .. } => {
                self.answer(server, Came::Placed { timestamp, memory, len });
            }
            Arrival::Lost { error, .. } => self.lose(server, &error),
        }
    }

    /// Enters one server's answer.
    fn answer(&mut self, server: usize, came: Came) {
        let timestamp = came.timestamp();
        let Some(slot) = self.tracker.slot(timestamp) else { return };
        let Some(part) = slot.parts.iter_mut().find(|part| part.server == server && !part.answered)
        else {
            return;
        };
        part.answered = true;
        let offered = part.offered.take();
        let name = &self.servers[server].at.name;
        let refused =
            |reason| Error::Refused { server: name.clone(), what: slot.what.name(), reason };
        let outcome = match came {
            Came::Placed { memory, len, .. } => land(part, memory, len),
            Came::Message(message) => {
                if let Some(key) = offered {
                    part.into = self.endpoint.withdraw(self.servers[server].peer, key).ok();
                }
                match message.kind() {
                    Kind::Failure => Err(String::from_utf8_lossy(message.values()).into_owned()),
                    _ => fill(part, message, slot.what),
                }
            }
        }
        .map_err(refused);
        if let Err(error) = outcome
            && !slot.abandoned
        {
            slot.error.get_or_insert(error);
        }
        self.settle(timestamp);
    }

    /// Lets every request fail that `server` has not answered.
    fn lose(&mut self, server: usize, error: &caravan_van::Error) {
        self.servers[server].lost = Some(with_sources(error));
        // Takes back what was offered to it.
        self.endpoint.disconnect(self.servers[server].peer);
        for timestamp in self.tracker.open_timestamps() {
            let Some(slot) = self.tracker.slot(timestamp) else { continue };
            let unanswered = |part: &&mut Part| part.server == server && !part.answered;
            let Some(part) = slot.parts.iter_mut().find(unanswered) else { continue };
            part.answered = true;
            if !slot.abandoned {
                slot.error.get_or_insert(self.servers[server].error());
            }
            self.settle(timestamp);
        }
    }

    /// One thing less is missing; completes the request if it was the last.
    pub(super) fn settle(&mut self, timestamp: u64) {
        let Some(slot) = self.tracker.slot(timestamp) else { return };
        slot.missing -= 1;
        if slot.missing == 0 {
            complete(slot, self.endpoint.memory());
            self.tracker.release_if_nothing_to_claim(timestamp);
        } else if slot.error.is_some()
            && let Some(callback) = slot.callback.take()
        {
            run(callback, slot);
        }
    }
}

/// Takes in values that a server has put where they belong: all of them, or it is an error.
fn land(part: &mut Part, memory: Buffer, len: usize) -> Result<(), String> {
    if len != memory.len() {
        return Err(wrong_bytes(len, memory.len()));
    }
    part.into = Some(memory);
    Ok(())
}

/// Puts a server's values where they belong.
fn fill(part: &mut Part, message: Message, what: What) -> Result<(), String> {
    let Some(into) = &mut part.into else {
        let (keys, lengths) = (part.keys, message.lengths().len());
        if matches!(what, What::Pull | What::PushPull) && lengths != keys {
            return Err(format!(
                "it answered with lengths for {lengths} keys where {keys} were asked for"
            ));
        }
        part.message = Some(message);
        return Ok(());
    };
    if message.values().len() != into.len() {
        return Err(wrong_bytes(message.values().len(), into.len()));
    }
    into.copy_from_slice(message.values());
    Ok(())
}

fn wrong_bytes(found: usize, asked: usize) -> String {
    format!("it answered with {found} bytes of values where {asked} were asked for")
}

/// Puts the parts of a request together.
fn complete(slot: &mut Slot, memory: &Pool) {
    if slot.error.is_none()
        && !slot.abandoned
        && let Err(error) = assemble(slot, memory)
    {
        slot.error = Some(error);
    }
    slot.parts.clear();
    if let Some(callback) = slot.callback.take() {
        run(callback, slot);
    }
}

fn assemble(slot: &mut Slot, memory: &Pool) -> Result<()> {
    let answer = &mut slot.answer;
    match slot.what {
        What::Push | What::Create => {}
        What::Command => {
            let messages = slot.parts.iter_mut().filter_map(|part| part.message.take());
            answer.replies = messages.map(|message| message.values().to_vec()).collect();
        }
        What::Pull | What::PushPull => {
            if slot.parts.iter().any(|part| part.message.is_some()) {
                return gather(slot, memory);
            }
            for part in &mut slot.parts {
                let Some(piece) = part.into.take() else { continue };
                match &mut answer.values {
                    None => answer.values = Some(piece),
                    Some(values) => values
                        .join(piece)
                        .expect("pieces are split off in the order of the servers"),
                }
            }
        }
    }
    Ok(())
}

/// Collects values whose sizes only the servers knew.
fn gather(slot: &mut Slot, memory: &Pool) -> Result<()> {
    let messages = || slot.parts.iter().filter_map(|part| part.message.as_ref());
    let bytes = messages().map(|message| message.values().len()).sum();
    let mut values = memory.allocate(bytes)?;
    let mut at = 0;
    for message in messages() {
        slot.answer.lengths.extend_from_slice(message.lengths());
        let part = message.values();
        values[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    slot.answer.values = Some(values);
    Ok(())
}

pub(super) fn run(callback: Callback, slot: &Slot) {
    callback(slot.error.as_ref().map_or(Ok(&slot.answer), Err));
}
