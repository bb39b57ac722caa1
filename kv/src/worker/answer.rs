//! The outcome of a request: servers' answers and losses, joined after the last answer.
//!
//! Path: the way back, codec > **answer** > tracker. It runs on the caller's thread, inside
//! [`Worker::poll`].

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Buffer, Draft, Message, Pool};

use super::Worker;
use super::lanes::{NOBODY, Server};
use super::table::TableState;
use crate::error::{Error, Result, with_sources};
use crate::filter::{FILTERED, Outstanding};
use crate::op::Op;
use crate::refusal::{Refusal, Refused};
use crate::server_address::ServerAddress;
use crate::tracker::{Callback, Part, Progress};

impl Worker {
    /// Processes arrivals. `poll` calls this function out of line, so that a poll without arrivals
    /// stays short.
    #[inline(never)]
    pub(super) fn drain(&mut self) {
        while let Some(arrival) = self.endpoint.take() {
            let peer = arrival.peer();
            let Some(&Some(server)) = self.by_peer.get(peer.0 as usize) else {
                self.endpoint.disconnect(peer); // not one of the servers
                continue;
            };
            match arrival {
                Arrival::Message { .. } => self.enter_answers(server),
                Arrival::Placed { timestamp, memory, len, .. } => {
                    self.placed(server, timestamp, memory, len);
                }
                Arrival::Connected { .. } => {
                    (self.servers[server].up, self.servers[server].was_up) = (true, true);
                }
                Arrival::Lost { error, .. } => self.lose(server, &error),
            }
        }
    }

    /// Records the answers of a message. Those to short requests are entered in place, others are
    /// taken out.
    #[inline(always)]
    fn enter_answers(&mut self, server: usize) {
        let inbox = &mut self.endpoint.inbox;
        let message = inbox.message();
        let is_plain = message.kind() == Kind::Reply && message.op() & FILTERED == 0;
        let table = message.table();
        let mut passed = 0;
        let forgets = !self.recovery.kept.is_empty();
        while is_plain && !inbox.message().is_empty() {
            let message = inbox.message();
            let values = message.values();
            let timestamp = message.timestamp();
            if !self.tracker.complete(timestamp, server, values) {
                break;
            }
            if forgets {
                self.recovery.forget(timestamp);
            }
            passed += values.len();
            inbox.message_mut().advance();
        }
        if self.has_filters {
            self.count_passed(table, passed);
        }
        if !self.endpoint.inbox.message().is_empty()
            && let Some(message) = self.endpoint.pop()
        {
            self.answer(server, message);
        }
    }

    /// Counts bytes of answers that bypassed the filters of their table, if it has any.
    #[inline(never)]
    fn count_passed(&mut self, table: u32, bytes: usize) {
        let known = self.tables.iter_mut().find(|known| known.number == table);
        if let Some(TableState { filters: Some(filters), .. }) = known {
            filters.passed.received += bytes as u64;
        }
    }

    /// Records a server's reply or failure.
    #[inline(never)]
    fn answer(&mut self, server: usize, message: Message) {
        if message.kind() == Kind::Request {
            let reason = "it sent a request to a worker".to_owned();
            let peer = self.servers[server].peer;
            let address = self.servers[server].at.address.clone();
            self.endpoint.disconnect(peer);
            return self.lose(
                server,
                &caravan_van::Error::PeerLost { peer, address, reason: reason.into() },
            );
        }
        let timestamp = message.timestamp();
        if let Some(named) = self.named(timestamp)
            && message.kind() == Kind::Failure
            && message.op() == Op::Keys as u8
        {
            return self.send_keys(server, timestamp, named);
        }
        if message.kind() == Kind::Failure && message.op() == Op::Drop as u8 {
            return self.enter_dropped(server, &message);
        }
        if message.kind() == Kind::Failure && message.op() == Op::Lost as u8 {
            return self.enter_leaving(server, &message);
        }
        if message.kind() == Kind::Failure && message.op() == Op::Moved as u8 {
            if self.recovery.kept.get(timestamp).is_some() {
                self.recovery.awaits_chain = true;
                self.recovery.is_due = true;
                return;
            }
            return self.take_back(server, message);
        }
        if self.has_filters {
            return self.decode_filtered(server, message);
        }
        self.enter_answer(server, message);
    }

    /// Records the answer of a server that has no such table any more.
    #[cold]
    pub(super) fn enter_dropped(&mut self, server: usize, message: &Message) {
        let number = message.table();
        let known = self.tables.iter().find(|known| known.number == number);
        let table = known.map_or_else(|| format!("number {number}"), |it| it.spec.name.clone());
        self.fail_one(server, message.timestamp(), Error::TableDropped { table });
    }

    /// Records the answer of a server that leaves, and leaves this to others.
    #[cold]
    fn enter_leaving(&mut self, server: usize, message: &Message) {
        let ServerAddress { name, address } = self.servers[server].at.clone();
        let reason = "it leaves the cluster".to_owned();
        let error = Error::ServerLost { server: name, address, reason };
        self.fail_one(server, message.timestamp(), error);
    }

    /// Ends one server's part of a request with an error.
    fn fail_one(&mut self, server: usize, timestamp: u64, error: Error) {
        let Some((progress, _)) = self.answered(server, timestamp) else { return };
        if !progress.abandoned {
            progress.error.get_or_insert(error);
        }
        self.settle(timestamp);
    }

    /// Records a decoded answer.
    #[inline]
    fn enter_answer(&mut self, server: usize, message: Message) {
        let timestamp = message.timestamp();
        let Some((progress, at)) = self.answered(server, timestamp) else { return };
        let timestamp = progress.timestamp;
        let outcome = match (message.kind(), progress.op, &mut progress.parts[at].into) {
            (Kind::Failure, ..) => Err(Refused::read(&message)),
            (_, op, _) if op.is_bare() => Ok(()),
            (.., Some(into)) => fill(into, message.values()),
            (.., None) => keep(progress, at, message),
        };
        self.conclude(server, timestamp, outcome);
    }

    /// Marks the part of a request that `server` has answered by a message, and takes back the
    /// memory offered for it.
    #[inline]
    fn answered(&mut self, server: usize, timestamp: u64) -> Option<(&mut Progress, usize)> {
        let (progress, at) = self.tracker.answered(timestamp, server)?;
        self.recovery.forget(timestamp);
        if let Some(key) = progress.parts[at].offered.take() {
            let peer = self.servers[server].peer;
            progress.parts[at].into = self.endpoint.lanes.withdraw(peer, key).ok();
        }
        Some((progress, at))
    }

    /// Decodes an answer if its table has filters, and enters it.
    #[inline(never)]
    fn decode_filtered(&mut self, server: usize, message: Message) {
        let number = message.table();
        let timestamp = message.timestamp();
        let known = self.tables.iter_mut().find(|known| known.number == number);
        let decoded = match known.map(|TableState { spec, filters, .. }| (spec, filters)) {
            Some((spec, Some(filters))) if message.kind() == Kind::Reply => {
                filters.receive(spec, message, self.endpoint.lanes.memory())
            }
            _ => Ok(message),
        };
        match decoded {
            Ok(message) => self.enter_answer(server, message),
            Err(reason) => {
                if let Some((progress, _)) = self.answered(server, timestamp) {
                    let timestamp = progress.timestamp;
                    let outcome = Err(reason.of("its answer can't be read"));
                    self.conclude(server, timestamp, outcome);
                }
            }
        }
    }

    /// Removes the state of a message that named its keys by a signature, and is answered now.
    fn named(&mut self, timestamp: u64) -> Option<Outstanding> {
        if self.named.is_empty() { None } else { self.named.remove(&timestamp) }
    }

    /// Sends a server the keys of a signature that it does not know. It holds the rest of the
    /// request.
    fn send_keys(&mut self, server: usize, timestamp: u64, named: Outstanding) {
        let Outstanding { list, keys, table, shard, offer, .. } = named;
        let TableState { number, map, coding, filters, .. } = &mut self.tables[table];
        if let Some(sent) = filters.as_mut().and_then(|filters| filters.sent.as_mut()) {
            sent.asked(list.signature, shard, keys.len());
        }
        let range = map.shards()[shard].range;
        let draft = Draft {
            op: Op::Keys as u8,
            range,
            table: *number,
            timestamp,
            offer,
            signature: Some(list.signature),
            keys: &list.keys[keys],
            ..Draft::new(Kind::Request)
        };
        // The server's question returned the credit that this message takes.
        if let Err(error) = self.endpoint.lanes.post(self.servers[server].peer, draft, coding) {
            self.lose(server, &error);
        }
    }

    /// Records values that a server has written to their destination.
    fn placed(&mut self, server: usize, timestamp: u64, memory: Buffer, len: usize) {
        drop(self.named(timestamp));
        let Some((progress, at)) = self.tracker.answered(timestamp, server) else { return };
        let timestamp = progress.timestamp;
        progress.parts[at].offered = None;
        let outcome = land(&mut progress.parts[at], memory, len);
        self.conclude(server, timestamp, outcome);
    }

    /// Ends one server's part of a request.
    pub(super) fn conclude(&mut self, server: usize, timestamp: u64, outcome: Result<(), Refused>) {
        if let Err(Refused { kind, reason }) = outcome
            && let Some(progress) = self.tracker.progress(timestamp)
            && !progress.abandoned
        {
            let server = self.servers[server].at.name.clone();
            let what = progress.op.what();
            progress.error.get_or_insert(Error::Refused { server, what, kind, reason });
        }
        self.settle(timestamp);
    }

    /// Fails every request that `server` has not answered and that is not kept.
    pub(super) fn lose(&mut self, server: usize, error: &caravan_van::Error) {
        self.lose_for(server, with_sources(error));
    }

    /// As [`Worker::lose`], for this reason.
    pub(super) fn lose_for(&mut self, server: usize, reason: String) {
        let alone = self.without_replicas(server).map(|alone| format!("; {alone}"));
        let Server { peer, up, lost, .. } = &mut self.servers[server];
        *lost = Some(reason + &alone.unwrap_or_default());
        *up = false;
        let peer = std::mem::replace(peer, NOBODY);
        if peer != NOBODY {
            self.by_peer[peer.0 as usize] = None;
            // This also takes back all memory that was offered to it.
            self.endpoint.disconnect(peer);
        }
        self.recovery.is_due |= self.recovery.is_on;
        self.named.retain(|_, named| named.server != server);
        self.fail_open(server);
    }

    /// Ends every request that a lost server has not answered and that is not kept.
    pub(super) fn fail_open(&mut self, server: usize) {
        for timestamp in self.tracker.open_timestamps() {
            if self.recovery.keeps(timestamp, server) {
                self.recovery.post_later(timestamp);
                continue;
            }
            let Some((progress, _)) = self.tracker.answered(timestamp, server) else { continue };
            let timestamp = progress.timestamp;
            if !progress.abandoned {
                progress.error.get_or_insert(self.servers[server].error());
            }
            self.settle(timestamp);
        }
    }

    /// Counts one missing answer less; completes the request after the last one.
    pub(super) fn settle(&mut self, timestamp: u64) {
        let Some(progress) = self.tracker.progress(timestamp) else { return };
        progress.missing -= 1;
        if progress.missing == 0 {
            complete(progress, self.endpoint.lanes.memory());
            self.tracker.release_if_nothing_to_claim(timestamp);
        } else if progress.error.is_some()
            && let Some(callback) = progress.callback.take()
        {
            run_callback(callback, progress);
        }
    }
}

/// Records values that a server has written to `memory`; fewer than all are an error.
fn land(part: &mut Part, memory: Buffer, len: usize) -> Result<(), Refused> {
    if len != memory.len() {
        return Err(wrong_bytes(len, memory.len()));
    }
    part.into = Some(memory);
    Ok(())
}

/// Copies a server's values to their destination.
fn fill(into: &mut Buffer, values: &[u8]) -> Result<(), Refused> {
    if values.len() != into.len() {
        return Err(wrong_bytes(values.len(), into.len()));
    }
    into.copy_from_slice(values);
    Ok(())
}

/// Keeps the answer to part `at` until all answers have come.
fn keep(progress: &mut Progress, at: usize, message: Message) -> Result<(), Refused> {
    let Part { keys, bytes, .. } = progress.parts[at];
    let found = message.values().len();
    let lengths = message.lengths().len();
    if bytes > 0 && found != bytes {
        return Err(wrong_bytes(found, bytes));
    }
    if bytes == 0 && !progress.op.has_replies() && lengths != keys {
        return Err(Refusal::Internal.because(format!(
            "it answered with lengths for {lengths} keys where {keys} were asked for"
        )));
    }
    if progress.messages.len() <= at {
        progress.messages.resize_with(at + 1, || None);
    }
    progress.messages[at] = Some(message);
    Ok(())
}

fn wrong_bytes(found: usize, asked: usize) -> Refused {
    Refusal::Internal
        .because(format!("it answered with {found} bytes of values where {asked} were asked for"))
}

/// Joins the parts of a request and runs its callback.
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
        run_callback(callback, progress);
    }
}

fn assemble(progress: &mut Progress, memory: &Pool) -> Result<()> {
    let answer = &mut progress.answer;
    match progress.op {
        op if op.is_bare() => {}
        op if op.has_replies() => {
            // Servers that replied without a message get an empty reply.
            progress.messages.resize_with(progress.parts.len(), || None);
            let reply = |message: &Option<Message>| message.as_ref().map(|it| it.values().to_vec());
            answer.replies =
                progress.messages.iter().map(reply).map(Option::unwrap_or_default).collect();
        }
        _ => {
            if let [Part { bytes: 1.., .. }] = progress.parts[..]
                && let Some(message) =
                    progress.messages.pop_if(|message| keeps_values(message)).flatten()
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

/// Whether a message's values can go to the caller without a copy.
fn keeps_values(message: &Option<Message>) -> bool {
    message.as_ref().is_some_and(|message| message.lent().is_some() || message.owns_values())
}

/// Copies the values of all answers into one buffer.
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

pub(super) fn run_callback(callback: Callback, progress: &Progress) {
    callback(progress.error.as_ref().map_or(Ok(&progress.answer), Err));
}
