//! What comes of a request: servers' answers and losses, put together when the last part has its own.
//!
//! Path: the way back, codec > **answer** > tracker. It runs on the caller's thread, inside [`Worker::poll`].

use caravan_van::wire::{Kind, Record};
use caravan_van::{Arrival, Buffer, Draft, Message, Next, Pool};

use super::table::TableState;
use super::{Server, Worker};
use crate::error::{Error, Result, with_sources};
use crate::filter::{FILTERED, Outstanding};
use crate::op::Op;
use crate::tracker::{Callback, Part, Progress, RequestKind};

impl Worker {
    /// Takes in what the endpoint brought. Kept apart from `poll`, so that a look that finds nothing stays short.
    #[inline(never)]
    pub(super) fn drain(&mut self) {
        while let Some(taken) = self.endpoint.take_batch() {
            let peer = match &taken {
                Next::Batch(peer) => *peer,
                Next::Arrival(arrival) => arrival.peer(),
            };
            match (self.by_peer.get(peer.0 as usize).copied().flatten(), taken) {
                (Some(server), Next::Batch(_)) => self.drain_batch(server),
                (Some(server), Next::Arrival(arrival)) => self.dispatch(server, arrival),
                (None, _) => self.endpoint.disconnect(peer), // a stranger
            }
        }
    }

    /// Takes in messages that are alike, by themselves those that do not complete a short request.
    #[inline(always)]
    fn drain_batch(&mut self, server: usize) {
        while !self.complete_alike(server) {
            let Some(arrival) = self.endpoint.pop() else { return };
            self.dispatch(server, arrival);
        }
    }

    /// Completes short requests, as most are, as long as these are their answers; true if all were.
    #[inline(always)]
    fn complete_alike(&mut self, server: usize) -> bool {
        let run = self.endpoint.batch();
        if run.is_empty() {
            return true;
        }
        let (is_ack, count, header) = (run.are_acks(), run.len(), run.header());
        if run.kind() != Kind::Reply || header.op & FILTERED != 0 {
            return false;
        }
        let (table, value_bytes) = (header.table.get(), run.value_bytes());
        while let Some(Record { timestamp, values, .. }) = self.endpoint.batch().first() {
            let completes = match is_ack {
                true => self.tracker.complete_push(timestamp, server),
                false => self.tracker.complete_pull(timestamp, server, values),
            };
            if !completes {
                break;
            }
            self.endpoint.batch_mut().advance();
        }
        let left = self.endpoint.batch().len();
        if self.has_filters {
            self.count_passed(table, (count - left) * value_bytes);
        }
        left == 0
    }

    /// Counts bytes of answers that came as if there were no filters, if their table has any.
    #[inline(never)]
    fn count_passed(&mut self, table: u32, bytes: usize) {
        let known = self.tables.iter_mut().find(|known| known.spec.id == table);
        if let Some(TableState { filters: Some(filters), .. }) = known {
            filters.passed.received += bytes as u64;
        }
    }

    /// Takes in anything else that came from one of the servers.
    #[inline(never)]
    fn dispatch(&mut self, server: usize, arrival: Arrival) {
        match arrival {
            Arrival::Answered { timestamp, .. } => self.answer_bare(server, timestamp),
            Arrival::Message { message, .. } if message.kind() == Kind::Request => {
                let reason = "it sent a request to a worker".to_owned();
                let Server { at, peer, .. } = &self.servers[server];
                let (peer, address) = (*peer, at.address.clone());
                self.endpoint.disconnect(peer);
                self.lose(server, &caravan_van::Error::PeerLost { peer, address, reason });
            }
            Arrival::Message { message, .. } => self.answer(server, message),
            Arrival::Placed { timestamp, memory, len, .. } => {
                self.placed(server, timestamp, memory, len);
            }
            Arrival::Connected { .. } => self.servers[server].up = true,
            Arrival::Lost { error, .. } => self.lose(server, &error),
        }
    }

    /// Enters that a server has done what it was asked to, and says no more: it is no pull, or it is wrong.
    fn answer_bare(&mut self, server: usize, timestamp: u64) {
        if self.tracker.complete_push(timestamp, server) {
            return;
        }
        drop(self.named(timestamp, server));
        let Some((progress, at)) = self.tracker.answered(timestamp, server) else { return };
        if let Some(key) = progress.parts[at].offered.take() {
            let _ = self.endpoint.withdraw(self.servers[server].peer, key);
        }
        let outcome = match progress.kind {
            RequestKind::Push | RequestKind::Create | RequestKind::Command | RequestKind::Cost => {
                Ok(())
            }
            RequestKind::Pull | RequestKind::PushPull => {
                Err("it answered with nothing, and was asked for values".to_owned())
            }
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
        if self.has_filters {
            return self.undo_filters(server, message);
        }
        self.enter_answer(server, message);
    }

    /// Enters an answer as it was before filters.
    #[inline]
    fn enter_answer(&mut self, server: usize, message: Message) {
        let timestamp = message.timestamp();
        let Some((progress, at)) = self.answered(server, timestamp) else { return };
        let outcome = match (message.kind(), progress.kind, &mut progress.parts[at].into) {
            (Kind::Failure, ..) => Err(String::from_utf8_lossy(message.values()).into_owned()),
            (.., Some(into)) => fill(into, message.values()),
            (_, RequestKind::Push | RequestKind::Create, None) => Ok(()),
            (.., None) => keep(progress, at, message),
        };
        self.conclude(server, timestamp, outcome);
    }

    /// The part of a request that `server` has answered in a message, with the memory that was offered for it.
    #[inline]
    fn answered(&mut self, server: usize, timestamp: u64) -> Option<(&mut Progress, usize)> {
        let (progress, at) = self.tracker.answered(timestamp, server)?;
        if let Some(key) = progress.parts[at].offered.take() {
            let peer = self.servers[server].peer;
            progress.parts[at].into = self.endpoint.withdraw(peer, key).ok();
        }
        Some((progress, at))
    }

    /// Enters an answer of a worker whose tables have filters, some of them.
    #[inline(never)]
    fn undo_filters(&mut self, server: usize, message: Message) {
        let (id, timestamp) = (message.table(), message.timestamp());
        let known = self.tables.iter_mut().find(|known| known.spec.id == id);
        let undone = match known.map(|TableState { spec, filters, .. }| (spec, filters)) {
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
        let TableState { spec, coding, filters, .. } = &mut self.tables[table];
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
        let Some((progress, at)) = self.tracker.answered(timestamp, server) else { return };
        progress.parts[at].offered = None;
        let outcome = land(&mut progress.parts[at], memory, len);
        self.conclude(server, timestamp, outcome);
    }

    /// One server's part of a request is over.
    fn conclude(&mut self, server: usize, timestamp: u64, outcome: Result<(), String>) {
        if let Err(reason) = outcome
            && let Some(progress) = self.tracker.progress(timestamp)
            && !progress.abandoned
        {
            let (server, what) = (self.servers[server].at.name.clone(), progress.kind.name());
            progress.error.get_or_insert(Error::Refused { server, what, reason });
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
            let Some((progress, _)) = self.tracker.answered(timestamp, server) else { continue };
            if !progress.abandoned {
                progress.error.get_or_insert(self.servers[server].error());
            }
            self.settle(timestamp);
        }
    }

    /// One thing less is missing; completes the request if it was the last.
    pub(super) fn settle(&mut self, timestamp: u64) {
        let Some(progress) = self.tracker.progress(timestamp) else { return };
        progress.missing -= 1;
        if progress.missing == 0 {
            complete(progress, self.endpoint.memory());
            self.tracker.release_if_nothing_to_claim(timestamp);
        } else if progress.error.is_some()
            && let Some(callback) = progress.callback.take()
        {
            run(callback, progress);
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
fn keep(progress: &mut Progress, at: usize, message: Message) -> Result<(), String> {
    let Part { keys, bytes, .. } = progress.parts[at];
    let (found, lengths) = (message.values().len(), message.lengths().len());
    if bytes > 0 && found != bytes {
        return Err(wrong_bytes(found, bytes));
    }
    if bytes == 0
        && !matches!(progress.kind, RequestKind::Command | RequestKind::Cost)
        && lengths != keys
    {
        return Err(format!(
            "it answered with lengths for {lengths} keys where {keys} were asked for"
        ));
    }
    if progress.messages.len() <= at {
        progress.messages.resize_with(at + 1, || None);
    }
    progress.messages[at] = Some(message);
    Ok(())
}

fn wrong_bytes(found: usize, asked: usize) -> String {
    format!("it answered with {found} bytes of values where {asked} were asked for")
}

/// Puts the parts of a request together.
fn complete(progress: &mut Progress, memory: &Pool) {
    if progress.error.is_none()
        && !progress.abandoned
        && let Err(error) = assemble(progress, memory)
    {
        progress.error = Some(error);
    }
    progress.parts.clear();
    progress.messages.clear();
    if let Some(callback) = progress.callback.take() {
        run(callback, progress);
    }
}

fn assemble(progress: &mut Progress, memory: &Pool) -> Result<()> {
    let answer = &mut progress.answer;
    match progress.kind {
        RequestKind::Push | RequestKind::Create => {}
        RequestKind::Command | RequestKind::Cost => {
            progress.messages.resize_with(progress.parts.len(), || None); // those who said nothing
            let said = |message: &Option<Message>| message.as_ref().map(|it| it.values().to_vec());
            answer.replies =
                progress.messages.iter().map(said).map(Option::unwrap_or_default).collect();
        }
        RequestKind::Pull | RequestKind::PushPull => {
            if let [Part { bytes: 1.., .. }] = progress.parts[..]
                && let Some(message) =
                    progress.messages.pop_if(|message| is_kept(message)).flatten()
            {
                answer.lent = message.lent().cloned();
                answer.values = message.lent().is_none().then(|| message.into_values());
                return Ok(());
            }
            if !progress.messages.is_empty() {
                return gather(progress, memory);
            }
            for part in &mut progress.parts {
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

/// Whether a message's values stay where they are.
fn is_kept(message: &Option<Message>) -> bool {
    message.as_ref().is_some_and(|message| message.lent().is_some() || message.owns_values())
}

/// Collects values whose sizes only the servers knew.
fn gather(progress: &mut Progress, memory: &Pool) -> Result<()> {
    let messages = progress.messages.iter().flatten();
    let bytes = messages.clone().map(|message| message.values().len()).sum();
    let mut values = memory.allocate(bytes)?;
    let mut at = 0;
    for message in messages {
        progress.answer.lengths.extend_from_slice(message.lengths());
        let part = message.values();
        values[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    progress.answer.values = Some(values);
    Ok(())
}

pub(super) fn run(callback: Callback, progress: &Progress) {
    callback(progress.error.as_ref().map_or(Ok(&progress.answer), Err));
}
