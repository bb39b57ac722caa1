//! What comes of a request: servers' answers and losses, put together when the last part has its own.
//!
//! Path: the way back, codec > **answer** > tracker. It runs on the caller's thread, inside [`Worker::poll`].

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Buffer, Draft, Message, Pool};

use super::{Known, Worker};
use crate::error::{Error, Result, with_sources};
use crate::filter::Outstanding;
use crate::op::Op;
use crate::tracker::{Callback, Part, Slot, What};

impl Worker {
    /// Takes in what the endpoint brought. Kept apart from `poll`, so that a look that finds nothing stays short.
    #[inline(never)]
    pub(super) fn take_in(&mut self) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for arrival in arrivals.drain(..) {
            self.sort_out(arrival);
        }
        self.arrivals = arrivals;
    }

    /// Takes in what came from one of the servers; strangers are turned away.
    fn sort_out(&mut self, arrival: Arrival) {
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
            Arrival::Message { message, .. } if message.kind() == Kind::Replies => {
                for timestamp in message.timestamps() {
                    self.answer_bare(server, timestamp);
                }
            }
            Arrival::Message { message, .. } => self.answer(server, message),
            Arrival::Placed { timestamp, memory, len, .. } => {
                self.placed(server, timestamp, memory, len);
            }
            Arrival::Lost { error, .. } => self.lose(server, &error),
        }
    }

    /// Enters that a server has done what it was asked to, and says no more: it is a push, or it is wrong.
    fn answer_bare(&mut self, server: usize, timestamp: u64) {
        drop(self.named(timestamp, server));
        if self.tracker.complete_push(timestamp, server) {
            return; // as most are
        }
        let Some((slot, at)) = self.tracker.answered(timestamp, server) else { return };
        if let Some(key) = slot.parts[at].offered.take() {
            let _ = self.endpoint.withdraw(self.servers[server].peer, key);
        }
        let outcome = match slot.what {
            What::Push | What::Create => Ok(()),
            _ => Err("it answered with nothing, and was asked for something".to_owned()),
        };
        self.conclude(server, timestamp, outcome);
    }

    /// Enters what a server replied, or why it failed.
    fn answer(&mut self, server: usize, message: Message) {
        let timestamp = message.timestamp();
        if let Some(named) = self.named(timestamp, server)
            && message.kind() == Kind::Failure
            && message.op() == Op::Keys as u8
        {
            return self.send_keys(server, timestamp, named);
        }
        if message.is_bare() && self.tracker.complete_push(timestamp, server) {
            return; // as most are
        }
        if self.has_filters {
            return self.undo_filters(server, message);
        }
        self.enter_answer(server, message);
    }

    /// Enters an answer as it was before filters.
    #[inline]
    fn enter_answer(&mut self, server: usize, message: Message) {
        let timestamp = message.timestamp();
        let Some((slot, at)) = self.answered(server, timestamp) else { return };
        let outcome = match (message.kind(), slot.what, &mut slot.parts[at].into) {
            (Kind::Failure, ..) => Err(String::from_utf8_lossy(message.values()).into_owned()),
            (.., Some(into)) => fill(into, message.values()),
            (_, What::Push | What::Create, None) => Ok(()),
            (.., None) => keep(slot, at, message),
        };
        self.conclude(server, timestamp, outcome);
    }

    /// The part of a request that `server` has answered in a message, with the memory that was offered for it.
    #[inline]
    fn answered(&mut self, server: usize, timestamp: u64) -> Option<(&mut Slot, usize)> {
        let (slot, at) = self.tracker.answered(timestamp, server)?;
        if let Some(key) = slot.parts[at].offered.take() {
            let peer = self.servers[server].peer;
            slot.parts[at].into = self.endpoint.withdraw(peer, key).ok();
        }
        Some((slot, at))
    }

    /// Enters an answer of a worker whose tables have filters, some of them.
    #[inline(never)]
    fn undo_filters(&mut self, server: usize, message: Message) {
        let (id, timestamp) = (message.table(), message.timestamp());
        let known = self.tables.iter_mut().find(|known| known.spec.id == id);
        let undone = match known.map(|Known { spec, filters, .. }| (spec, filters)) {
            Some((spec, Some(filters))) if message.kind() == Kind::Reply => {
                filters.receive(spec, message, self.endpoint.memory())
            }
            _ => Ok(message),
        };
        match undone {
            Ok(message) => self.enter_answer(server, message),
            Err(why) => {
                if self.answered(server, timestamp).is_some() {
                    let outcome = Err(format!("its answer can't be read: {why}"));
                    self.conclude(server, timestamp, outcome);
                }
            }
        }
    }

    /// What is kept of a request that named its keys and is answered now.
    fn named(&mut self, timestamp: u64, server: usize) -> Option<Outstanding> {
        if self.named.is_empty() { None } else { self.named.remove(&(timestamp, server)) }
    }

    /// Sends a server the keys that it was asked about by a signature it does not know. It has the rest of the request.
    fn send_keys(&mut self, server: usize, timestamp: u64, named: Outstanding) {
        let Outstanding { list, keys, table, offer } = named;
        let Known { spec, coding, filters, .. } = &mut self.tables[table];
        if let Some(sent) = filters.as_mut().and_then(|filters| filters.sent.as_mut()) {
            sent.asked(list.signature, server, keys.len());
        }
        let draft = Draft {
            op: Op::Keys as u8,
            table: spec.id,
            timestamp,
            offer,
            signature: Some(list.signature),
            keys: &list.keys[keys],
            ..Draft::new(Kind::Request)
        };
        // What asked for them gave back the credit that they take.
        if let Err(error) = self.endpoint.post(self.servers[server].peer, draft, coding) {
            self.lose(server, &error);
        }
    }

    /// Enters values that a server has put where they were wanted.
    fn placed(&mut self, server: usize, timestamp: u64, memory: Buffer, len: usize) {
        drop(self.named(timestamp, server));
        let Some((slot, at)) = self.tracker.answered(timestamp, server) else { return };
        slot.parts[at].offered = None;
        let outcome = land(&mut slot.parts[at], memory, len);
        self.conclude(server, timestamp, outcome);
    }

    /// One server's part of a request is over.
    fn conclude(&mut self, server: usize, timestamp: u64, outcome: Result<(), String>) {
        if let Err(reason) = outcome
            && let Some(slot) = self.tracker.slot(timestamp)
            && !slot.abandoned
        {
            let (server, what) = (self.servers[server].at.name.clone(), slot.what.name());
            slot.error.get_or_insert(Error::Refused { server, what, reason });
        }
        self.settle(timestamp);
    }

    /// Lets every request fail that `server` has not answered.
    fn lose(&mut self, server: usize, error: &caravan_van::Error) {
        self.servers[server].lost = Some(with_sources(error));
        // Takes back what was offered to it.
        self.endpoint.disconnect(self.servers[server].peer);
        self.named.retain(|(_, at), _| *at != server);
        for timestamp in self.tracker.open_timestamps() {
            let Some((slot, _)) = self.tracker.answered(timestamp, server) else { continue };
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
fn fill(into: &mut Buffer, values: &[u8]) -> Result<(), String> {
    if values.len() != into.len() {
        return Err(wrong_bytes(values.len(), into.len()));
    }
    into.copy_from_slice(values);
    Ok(())
}

/// Keeps the answer to part `at` until all have come and it is known where its values belong.
fn keep(slot: &mut Slot, at: usize, message: Message) -> Result<(), String> {
    let Part { keys, bytes, .. } = slot.parts[at];
    let (found, lengths) = (message.values().len(), message.lengths().len());
    if bytes > 0 && found != bytes {
        return Err(wrong_bytes(found, bytes));
    }
    if bytes == 0 && !matches!(slot.what, What::Command | What::Spent) && lengths != keys {
        return Err(format!(
            "it answered with lengths for {lengths} keys where {keys} were asked for"
        ));
    }
    if slot.messages.len() <= at {
        slot.messages.resize_with(at + 1, || None);
    }
    slot.messages[at] = Some(message);
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
    slot.messages.clear();
    if let Some(callback) = slot.callback.take() {
        run(callback, slot);
    }
}

fn assemble(slot: &mut Slot, memory: &Pool) -> Result<()> {
    let answer = &mut slot.answer;
    match slot.what {
        What::Push | What::Create => {}
        What::Command | What::Spent => {
            let messages = slot.messages.iter().flatten();
            answer.replies = messages.map(|message| message.values().to_vec()).collect();
        }
        What::Pull | What::PushPull => {
            if let [Part { bytes: 1.., .. }] = slot.parts[..] {
                let message = slot.messages.pop().flatten();
                answer.lent = message.as_ref().and_then(Message::lent).cloned();
                answer.values = match &answer.lent {
                    Some(_) => None,
                    None => message.map(Message::into_values),
                };
                return Ok(());
            }
            if !slot.messages.is_empty() {
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
    let messages = slot.messages.iter().flatten();
    let bytes = messages.clone().map(|message| message.values().len()).sum();
    let mut values = memory.allocate(bytes)?;
    let mut at = 0;
    for message in messages {
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
