//! A server: its entry, its copy of the shard, and its links in the chain.
//!
//! Chain replication (van Renesse and Schneider, 2004), with the chain from an outside service as
//! in Vertical Paxos and PacificA, and client sessions as in Raft's dissertation, section 6.3. A
//! server takes a message or an entry, and says what it wants sent; it waits for nothing.

use crate::entry::{Entry, Epoch, ServerId};
use crate::lanes::{Message, Outbox};
use crate::links::{Predecessor, Successor};
use crate::log::{Log, REQUESTS_MAX, Records, RequestId, RequestSet};
use crate::mutants::Mutant;
use crate::replica::Replica;
use crate::rules::Rules;
use crate::transfer::Feed;
use crate::violation::Violation;
use crate::workload::ClientId;

/// A request whose answer waits for an acknowledgement.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Wait {
    /// How many records have to be acknowledged.
    pub upto: Records,
    /// The version that the request came under.
    pub version: Epoch,
}

/// One server.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its number.
    pub id: ServerId,
    /// Whether it is gone. What it had is gone as well.
    pub is_crashed: bool,
    /// The newest entry that it has heard.
    pub entry: Entry,
    /// The epoch in which it became head.
    pub head_since: Epoch,
    /// What it has of the shard.
    pub replica: Replica,
    /// The transfer that brought it, while it joins.
    pub transfer: Epoch,
    /// Where records come from.
    pub predecessor: Option<Predecessor>,
    /// Where records go.
    pub successor: Option<Successor>,
    /// The joiner that it fills.
    pub feed: Option<Feed>,
    /// The answers that it owes, by request.
    pub waits: [Option<Wait>; REQUESTS_MAX],
}

impl Server {
    /// A server that has nothing of the shard.
    pub fn new(id: ServerId, entry: Entry) -> Server {
        Server {
            id,
            is_crashed: false,
            entry,
            head_since: 0,
            replica: Replica::default(),
            transfer: 0,
            predecessor: None,
            successor: None,
            feed: None,
            waits: [None; REQUESTS_MAX],
        }
    }

    /// A server when the shard begins: an empty copy and ready links, if the entry has it.
    pub fn initial(id: ServerId, entry: Entry) -> Server {
        let mut server = Server::new(id, entry);
        if entry.chain.has(id) {
            let synced = |server| Successor::synced(server, 0);
            let linked = |server| Predecessor { server, epoch: entry.epoch };
            server.replica = Replica::whole();
            server.successor = entry.chain.after(id).map(synced);
            server.predecessor = entry.chain.before(id).map(linked);
        }
        server
    }

    /// Takes a newer entry of the map, from the scheduler or from another server.
    pub fn adopt(&mut self, rules: &Rules, entry: Entry, out: &mut Outbox) {
        if entry.epoch <= self.entry.epoch {
            return;
        }
        let was_head = self.entry.chain.head() == Some(self.id);
        self.entry = entry;
        if !rules.breaks(Mutant::OldLinkAccepted) {
            self.predecessor = None;
        }
        if !entry.chain.has(self.id) {
            self.leave(rules, out);
            return;
        }
        if entry.chain.head() == Some(self.id) && !was_head {
            self.head_since = entry.epoch;
            if rules.breaks(Mutant::TruncateOnPromotion) {
                self.replica.truncate(rules);
            }
        }
        self.successor = entry.chain.after(self.id).map(Successor::new);
        let join = entry.join.filter(|join| join.source == self.id);
        let feed = self.feed.filter(|feed| join.is_some_and(|join| join.transfer == feed.transfer));
        self.feed = feed.or(join.map(Feed::new));
        if let Some(new) = self.feed.filter(|_| feed.is_none()) {
            new.start(entry, &self.replica, out);
        }
        self.successor.iter_mut().for_each(|link| link.sync(entry, out));
        self.pump(rules, out);
    }

    /// Whoever is in no chain has nothing, except what a transfer brings it. Requests that wait go
    /// back to their clients.
    fn leave(&mut self, rules: &Rules, out: &mut Outbox) {
        let waits = std::mem::take(&mut self.waits);
        let joins = self.entry.join.filter(|join| join.joiner == self.id);
        let is_over = joins.is_none_or(|join| join.transfer != self.transfer);
        if is_over && !rules.breaks(Mutant::KeepsOldCopy) {
            *self = Server::new(self.id, self.entry);
        }
        for request in rules.workload.requests() {
            if let Some(wait) = waits[usize::from(request)] {
                let moved = Message::Moved { version: wait.version };
                out.to_client(rules.workload.client(request), moved);
            }
        }
    }

    /// Takes a request of a client.
    pub fn request(&mut self, rules: &Rules, request: RequestId, version: Epoch, out: &mut Outbox) {
        let client = rules.workload.client(request);
        let is_head = self.entry.chain.head() == Some(self.id);
        let is_for_earlier_tenure =
            version < self.head_since && !rules.breaks(Mutant::NoVersionOnLanes);
        if !is_head || is_for_earlier_tenure {
            out.to_client(client, Message::Moved { version });
            return;
        }
        let applied = self.replica.find(rules, request);
        let upto = match applied {
            Some(applied) => applied.upto,
            None => {
                self.replica.append(rules, request);
                self.replica.log.len()
            }
        };
        let is_forgotten = applied.is_some_and(|applied| !applied.is_last);
        if is_forgotten && rules.breaks(Mutant::LastAnswerOnly) && upto <= self.replica.acked {
            let seen = RequestSet::default();
            out.to_client(client, Message::Answer { request, seen, is_refused: false });
        } else {
            self.waits[usize::from(request)] = Some(Wait { upto, version });
        }
        self.pump(rules, out);
    }

    /// Takes a message of another server.
    ///
    /// # Errors
    /// Says which promise the message broke.
    pub fn receive(
        &mut self,
        rules: &Rules,
        from: ServerId,
        message: Message,
        out: &mut Outbox,
    ) -> Result<(), Violation> {
        match message {
            Message::Sync { entry } => self.sync(rules, from, entry, out),
            Message::Synced { epoch, last, acked } if self.succeeds_under(from, epoch) => {
                self.synced(rules, from, last, acked, out)?;
            }
            Message::Record { at, request } if self.accepts_from(rules, from) => {
                self.record(rules, at, request, out)?;
            }
            Message::Ack { epoch, acked, own } if self.succeeds_under(from, epoch) => {
                self.acked(rules, acked, own, out);
            }
            Message::Start { entry, base } => self.start(rules, from, entry, base, out),
            Message::Piece { transfer, at, row } if self.is_joining(transfer) => {
                self.replica.arrive(rules, at, row);
                self.confirm_join(from, out);
            }
            Message::Copied { transfer, at, request } if self.is_joining(transfer) => {
                self.expect_next(at)?;
                self.replica.append(rules, request);
                self.confirm_join(from, out);
            }
            Message::Started { transfer, last, rows } if self.feeds(rules, from, transfer) => {
                self.feed.iter_mut().for_each(|feed| feed.link(last, rows));
                self.pump(rules, out);
            }
            Message::Have { transfer, last, rows } if self.feeds(rules, from, transfer) => {
                self.feed.iter_mut().for_each(|feed| feed.confirm(last, rows));
                self.pump(rules, out);
            }
            _ => {} // of another epoch or transfer
        }
        Ok(())
    }

    /// A predecessor asks what this server has.
    fn sync(&mut self, rules: &Rules, from: ServerId, entry: Entry, out: &mut Outbox) {
        self.adopt(rules, entry, out);
        let is_old = entry.epoch < self.entry.epoch;
        if is_old || self.entry.chain.after(from) != Some(self.id) {
            return;
        }
        self.predecessor = Some(Predecessor { server: from, epoch: entry.epoch });
        let Replica { log, acked, .. } = self.replica;
        out.to_server(from, Message::Synced { epoch: entry.epoch, last: log.len(), acked });
    }

    /// The successor says what it has. What it confirmed goes on to the predecessor: the
    /// confirmation may have been on a lane that broke.
    fn synced(
        &mut self,
        rules: &Rules,
        from: ServerId,
        last: Records,
        acked: Records,
        out: &mut Outbox,
    ) -> Result<(), Violation> {
        if last > self.replica.log.len() {
            return Err(Violation::SuccessorAhead { server: from, predecessor: self.id });
        }
        let sent = if rules.breaks(Mutant::ResendFromAcked) { acked } else { last };
        self.successor = Some(Successor::synced(from, sent));
        self.replica.acked = self.replica.acked.max(acked);
        if rules.breaks(Mutant::SyncedNotPassedOn) {
            self.pump(rules, out);
        } else {
            self.confirm(rules, out);
        }
        Ok(())
    }

    fn accepts_from(&self, rules: &Rules, from: ServerId) -> bool {
        self.predecessor.is_some_and(|link| link.accepts(rules, from, self.entry.epoch))
    }

    fn record(
        &mut self,
        rules: &Rules,
        at: Records,
        request: RequestId,
        out: &mut Outbox,
    ) -> Result<(), Violation> {
        if rules.breaks(Mutant::OldLinkAccepted) && at != self.replica.log.len() {
            return Ok(());
        }
        if !rules.breaks(Mutant::ResendFromAcked) {
            self.expect_next(at)?;
        }
        self.replica.append(rules, request);
        self.confirm(rules, out);
        Ok(())
    }

    fn expect_next(&self, at: Records) -> Result<(), Violation> {
        let length = self.replica.log.len();
        if at == length { Ok(()) } else { Err(Violation::Gap { server: self.id, at, length }) }
    }

    /// Whether a server is the successor under the entry that a message names.
    fn succeeds_under(&self, from: ServerId, epoch: Epoch) -> bool {
        let successor = self.successor.map(|link| link.server);
        epoch == self.entry.epoch && successor == Some(from)
    }

    fn acked(&mut self, rules: &Rules, acked: Records, own: Records, out: &mut Outbox) {
        self.replica.acked = self.replica.acked.max(acked);
        self.successor.iter_mut().for_each(|link| link.own = link.own.max(own));
        self.confirm(rules, out);
    }

    /// A source begins, or goes on where a lane broke.
    fn start(&mut self, rules: &Rules, from: ServerId, entry: Entry, base: Log, out: &mut Outbox) {
        self.adopt(rules, entry, out);
        let is_mine = |of: Entry| of.join.filter(|join| join.joiner == self.id);
        let Some(join) = is_mine(self.entry).filter(|join| join.source == from) else { return };
        if is_mine(entry).is_none_or(|sent| sent.transfer != join.transfer) {
            return;
        }
        if self.transfer != join.transfer {
            let had = self.replica;
            *self = Server::new(self.id, self.entry);
            self.transfer = join.transfer;
            let goes_on = rules.breaks(Mutant::KeepsOldCopy) && !had.log.is_empty();
            self.replica = if goes_on { had } else { Replica::beginning(base) };
        }
        let Replica { log, arrived, .. } = self.replica;
        let started = Message::Started { transfer: join.transfer, last: log.len(), rows: arrived };
        out.to_server(from, started);
    }

    fn is_joining(&self, transfer: Epoch) -> bool {
        self.transfer == transfer && self.entry.join.is_some_and(|join| join.transfer == transfer)
    }

    fn confirm_join(&self, source: ServerId, out: &mut Outbox) {
        let Replica { log, arrived, .. } = self.replica;
        let have = Message::Have { transfer: self.transfer, last: log.len(), rows: arrived };
        out.to_server(source, have);
    }

    fn feeds(&self, rules: &Rules, from: ServerId, transfer: Epoch) -> bool {
        self.feed.is_some_and(|feed| {
            let is_current = feed.transfer == transfer || rules.breaks(Mutant::HaveOfOldTransfer);
            feed.joiner == from && is_current
        })
    }

    /// Sends the joiner its next row.
    pub fn send_row(&mut self, out: &mut Outbox) {
        if let Some(feed) = &mut self.feed {
            feed.send_row(&self.replica.rows, out);
        }
    }

    /// From now on nobody behind this server gets what its joiner has not. The floor is what they
    /// may have by now: a successor that has not said it may have all.
    pub fn turn_joint(&mut self, rules: &Rules, out: &mut Outbox) {
        let floor = match self.successor {
            Some(link) if link.is_synced => link.sent,
            Some(_) => self.replica.log.len(),
            None => self.replica.acked,
        };
        self.feed.iter_mut().for_each(|feed| feed.turn_joint(floor));
        self.pump(rules, out);
    }

    /// The lane to another server broke, with all that was under way. Whoever sends records asks
    /// anew what the other has.
    pub fn lose_lane(&mut self, to: ServerId, out: &mut Outbox) {
        if self.predecessor.is_some_and(|link| link.server == to) {
            self.predecessor = None;
        }
        if let Some(feed) = self.feed.as_mut().filter(|feed| feed.joiner == to) {
            feed.unlink();
            feed.start(self.entry, &self.replica, out);
        }
        if let Some(link) = self.successor.as_mut().filter(|link| link.server == to) {
            link.sync(self.entry, out);
        }
    }

    /// The lane to a client broke. It asks again for what it waits for.
    pub fn lose_client(&mut self, rules: &Rules, client: ClientId) {
        for request in rules.workload.requests() {
            if rules.workload.client(request) == client {
                self.waits[usize::from(request)] = None;
            }
        }
    }

    /// Sends all that may be sent, and then tells the predecessor what is acknowledged.
    fn confirm(&mut self, rules: &Rules, out: &mut Outbox) {
        self.pump(rules, out);
        self.acknowledge(rules, out);
    }

    /// Sends all that may be sent: records to those behind, acknowledgements back, answers.
    fn pump(&mut self, rules: &Rules, out: &mut Outbox) {
        if !self.entry.chain.has(self.id) {
            return;
        }
        let acked = self.replica.acked;
        let limit = self.limit(rules);
        match &mut self.successor {
            Some(link) => link.send_records(self.replica.log, limit, out),
            // The tail: what it has, all have.
            None => self.replica.acked = acked.max(limit),
        }
        self.feed.iter_mut().for_each(|feed| feed.send_copies(self.replica.log, out));
        if self.replica.acked != acked {
            self.acknowledge(rules, out);
        }
        if self.entry.chain.head() == Some(self.id) {
            self.answer(rules, out);
        }
    }

    /// How many records those behind may have: where a joiner is about to take its place before
    /// them, as many as it has.
    fn limit(&self, rules: &Rules) -> Records {
        let goes_on = rules.breaks(Mutant::SourceGoesOnAlone)
            || rules.breaks(Mutant::SuccessorBesideJoiner) && self.successor.is_some();
        match self.feed {
            Some(feed) if feed.is_joint && !goes_on => feed.has,
            _ => self.replica.log.len(),
        }
    }

    fn acknowledge(&self, rules: &Rules, out: &mut Outbox) {
        self.predecessor.iter().for_each(|link| link.acknowledge(rules, &self.replica, out));
    }

    /// Answers what the tail has.
    fn answer(&mut self, rules: &Rules, out: &mut Outbox) {
        let refused = rules.workload.refused(self.replica.log);
        for request in rules.workload.requests() {
            let Some(wait) = self.waits[usize::from(request)] else { continue };
            if !self.may_answer(rules, request, wait) {
                continue;
            }
            self.waits[usize::from(request)] = None;
            let is_read = rules.workload.is_read(request);
            let prefix = self.replica.log.prefix(wait.upto);
            let seen = if is_read { rules.workload.seen(prefix) } else { RequestSet::default() };
            let is_refused = refused.has(request);
            out.to_client(
                rules.workload.client(request),
                Message::Answer { request, seen, is_refused },
            );
        }
    }

    /// Whether the tail has the record that an answer waits for, or a mutant takes less for enough.
    fn may_answer(&self, rules: &Rules, request: RequestId, wait: Wait) -> bool {
        let mut acked = self.replica.acked;
        if let Some(feed) = self.feed.filter(|feed| feed.is_joint)
            && rules.breaks(Mutant::SuccessorBesideJoiner)
        {
            acked = acked.min(feed.has);
        }
        let is_read = rules.workload.is_read(request);
        let next_has = self.successor.is_some_and(|link| wait.upto <= link.own);
        wait.upto <= acked
            || rules.breaks(Mutant::AnswerBeforeTail)
            || is_read && rules.breaks(Mutant::StaleReads)
            || is_read && rules.breaks(Mutant::ReadConfirmedByNext) && next_has
    }
}
