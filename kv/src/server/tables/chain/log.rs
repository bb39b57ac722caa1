//! The log of a shard with copies: what was applied here and is not acknowledged by the copies
//! behind this one.
//!
//! A record is a request as it was received. Its message is kept, which shares the memory of the
//! frame, and is forwarded from there: nothing is copied for the log. Consecutive records of one
//! message are one entry. Where copies get something else than what came (rows in place of several
//! pushes, decoded values, a refusal), an entry has an [`Effect`].
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Connections, Draft, KeyRange, Message, PeerId, Shared, Values};

use super::sessions::Sender;
use crate::filter::List;
use crate::op::{BITS, DISCLOSES, FINISHES, Op};
use crate::refusal::Refused;
use crate::server::answer::{ReplyTo, post, post_values, refuse};
use crate::server::shard::Request;
use crate::server::tables::Trouble;
use crate::server::tables::outcome::answer_trouble;
use crate::table::SHARED_BYTES_MIN;

/// What was applied here, in its order, up to what is acknowledged.
#[derive(Default)]
pub(super) struct Log {
    entries: VecDeque<LogEntry>,
    /// Number of records in all entries.
    len: usize,
    /// How many of these, from the front, were posted on the present link.
    posted: usize,
    /// The first entry that was not posted whole, and how many of its records were.
    next: usize,
    posted_of_next: usize,
}

/// Records of one sender that follow each other.
pub(super) struct LogEntry {
    pub(super) sender: Sender,
    pub(super) records: Records,
    pub(super) waiting: Awaiter,
    /// Whether it was posted before, to another thread or on a lane that broke.
    was_posted: bool,
}

/// Parts of a sum that were applied and wait for the others.
pub(super) struct Sum {
    pub(super) number: u64,
    pub(super) parts: Vec<LogEntry>,
    /// Number of its parts, of which some may have passed on as they are.
    pub(super) of: usize,
    pub(super) is_complete: bool,
    /// When the first of them came.
    pub(super) since: Duration,
}

/// What the copies get.
pub(super) enum Records {
    /// Requests as they were received, with the operation that they are for copies: of a repeat,
    /// and of a pull that no model counts, that is [`Op::Record`], which does nothing.
    Received { message: Message, list: Option<Rc<List>>, op: u8 },
    /// One record that was made here.
    Made(Box<Effect>),
}

/// What a record does to a shard, where that is not what was received.
#[derive(Default)]
pub(super) struct Effect {
    /// The operation, with the bits of a push that ends its worker's iteration.
    pub(super) op: u8,
    pub(super) timestamp: u64,
    pub(super) command: i32,
    pub(super) clock: u64,
    /// Of a refused request, those of the rows that it has removed nevertheless.
    pub(super) keys: Vec<u64>,
    pub(super) lengths: Vec<u32>,
    pub(super) values: Vec<u8>,
}

/// Who waits for the records of an entry.
pub(super) enum Awaiter {
    Nobody,
    /// A worker at this lane, for an answer without values to each record.
    Worker(PeerId),
    /// The thread before this one.
    Predecessor(PeerId),
    /// Whoever made this request.
    One(Reply),
    /// Whoever made these, which go on together.
    Several(Vec<Reply>),
}

pub(super) struct Reply {
    pub(super) to: ReplyTo,
    /// The answer to a pull or a command, as the shard was when it was its turn; or why there is
    /// none.
    pub(super) answer: Result<Option<(Vec<u32>, Shared)>, Refused>,
}

/// A shard, by the number of its table and its keys.
pub(super) type Place = (u32, KeyRange);

impl Log {
    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether all records were posted.
    pub(super) fn is_posted(&self) -> bool {
        self.posted == self.len
    }

    /// Whether there is a record for which nobody waits.
    pub(super) fn has_unawaited(&self) -> bool {
        self.entries.iter().any(|entry| entry.waiting.is_nobody())
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, entry: LogEntry) {
        self.len += entry.len();
        self.entries.push_back(entry);
    }

    /// Nothing is posted any more, as the link is another one.
    pub(super) fn rewind(&mut self) {
        let posted = self.next + usize::from(self.posted_of_next > 0);
        self.entries.iter_mut().take(posted).for_each(|entry| entry.was_posted = true);
        (self.posted, self.next, self.posted_of_next) = (0, 0, 0);
    }

    /// The entry with the first record that was not posted, and how many of its records were.
    pub(super) fn next(&self) -> Option<(&LogEntry, usize)> {
        self.entries.get(self.next).map(|entry| (entry, self.posted_of_next))
    }

    /// Records that so many records of that entry were posted.
    pub(super) fn note_posted(&mut self, count: usize) {
        self.posted += count;
        self.posted_of_next += count;
        if self.entries.get(self.next).is_some_and(|it| it.len() == self.posted_of_next) {
            (self.next, self.posted_of_next) = (self.next + 1, 0);
        }
    }

    /// Records that the copies behind this one have the next `count` posted records, and answers
    /// those who wait for them.
    pub(super) fn acknowledge(
        &mut self,
        count: usize,
        place: Place,
        lanes: &mut Connections,
        broken: &mut Vec<PeerId>,
    ) {
        let mut left = count.min(self.posted);
        self.posted -= left;
        self.len -= left;
        while left > 0
            && let Some(entry) = self.entries.front_mut()
        {
            let count = entry.len().min(left);
            left -= count;
            if entry.len() > count {
                entry.answer(count, place, lanes, broken);
                if self.next == 0 {
                    self.posted_of_next -= count;
                }
            } else if let Some(mut entry) = self.entries.pop_front() {
                self.next -= 1; // it was posted whole
                entry.answer_all(place, lanes, broken);
            }
        }
    }

    /// Takes out all entries.
    pub(super) fn take(&mut self) -> impl Iterator<Item = LogEntry> + use<> {
        std::mem::take(self).entries.into_iter()
    }

    /// Takes out the first record that was not posted, once it was: nobody keeps it for the copy
    /// that gets it.
    pub(super) fn drop_first(&mut self) {
        let Some(entry) = self.entries.front_mut() else { return };
        self.len -= 1;
        match &mut entry.records {
            Records::Received { message, .. } if message.len() > 1 => message.advance(),
            _ => drop(self.entries.pop_front()),
        }
    }

    /// Nobody at this lane waits any more.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.entries.iter_mut().for_each(|entry| entry.waiting.forget(peer));
    }
}

impl LogEntry {
    pub(super) fn new(sender: Sender, records: Records, waiting: Awaiter) -> LogEntry {
        LogEntry { sender, records, waiting, was_posted: false }
    }

    /// A record that was made here.
    pub(super) fn made(sender: Sender, effect: Effect, waiting: Awaiter) -> LogEntry {
        LogEntry::new(sender, Records::Made(Box::new(effect)), waiting)
    }

    /// Number of its records.
    pub(super) fn len(&self) -> usize {
        match &self.records {
            Records::Received { message, .. } => message.len(),
            Records::Made(_) => 1,
        }
    }

    /// Whether its records were posted before.
    pub(super) fn was_posted(&self) -> bool {
        self.was_posted
    }

    /// The operation of its records for copies, and the bits of a push that ends an iteration.
    pub(super) fn op(&self) -> (Option<Op>, u8) {
        let raw = match &self.records {
            Records::Received { op, .. } => *op,
            Records::Made(effect) => effect.op,
        };
        (Op::from_raw(raw & !BITS), raw & (FINISHES | DISCLOSES))
    }

    /// Whether copies do nothing for it to their rows.
    pub(super) fn does_nothing(&self) -> bool {
        matches!(self.op().0, Some(Op::Record | Op::Pull))
    }

    /// Bytes of keys and values that its records take on the link.
    pub(super) fn payload(&self) -> usize {
        self.len() * self.record_payload()
    }

    fn record_payload(&self) -> usize {
        let Request { keys, lengths, values, .. } = self.request();
        size_of_val(keys) + size_of_val(lengths) + values.len()
    }

    /// Bytes of memory that it takes until it is acknowledged.
    pub(super) fn bytes(&self) -> usize {
        size_of::<LogEntry>() + self.payload()
    }

    /// The timestamp of its first record.
    pub(super) fn timestamp(&self) -> u64 {
        match &self.records {
            Records::Received { message, .. } => message.timestamp(),
            Records::Made(effect) => effect.timestamp,
        }
    }

    /// Its first record, as copies get it.
    pub(super) fn request(&self) -> Request<'_> {
        let op = self.op().0.unwrap_or(Op::Record);
        match &self.records {
            Records::Received { message, list, .. } => {
                received(message, list.as_deref(), op, self.sender.node)
            }
            Records::Made(effect) => {
                let Effect { command, clock, keys, lengths, values, .. } = &**effect;
                Request {
                    sender: self.sender.node,
                    command: *command,
                    clock: *clock,
                    range: KeyRange::ALL,
                    keys,
                    lengths,
                    values,
                    pushes: op == Op::Push,
                    pulls: false,
                    rows: None,
                }
            }
        }
    }

    /// Posts its records from `from` on, as far as there is room, and at most so many; returns how
    /// many it has posted.
    pub(super) fn post(
        &self,
        from: usize,
        most: usize,
        lanes: &mut Connections,
        peer: PeerId,
        place: Place,
    ) -> usize {
        let (op, ends) = self.op();
        let Some(op) = op else { return 0 };
        let mut coding = if op == Op::Rows { Coding::compact() } else { Coding::plain() };
        let mut post = |lanes: &mut Connections, draft: Draft<'_>| {
            let posted = lanes.post(peer, draft, &mut coding);
            posted.inspect_err(|error| tracing::debug!(%error, "a record has to wait")).is_ok()
        };
        let raw = op as u8 | ends;
        let Records::Received { message, list, .. } = &self.records else {
            let request = self.request();
            let draft = self.draft(raw, place, self.timestamp(), &request);
            return usize::from(from == 0 && most > 0 && post(lanes, draft));
        };
        let mut rest = message.first(from.saturating_add(most));
        rest.pass(from);
        let mut posted = 0;
        while !rest.is_empty() {
            let request = received(&rest, list.as_deref(), op, self.sender.node);
            let mut draft = self.draft(raw, place, rest.timestamp(), &request);
            if request.values.len() >= SHARED_BYTES_MIN {
                draft.values = Values::Apart(rest.share_values());
            }
            if !post(lanes, draft) {
                break;
            }
            // Those behind it go as they lie.
            let passed = 1 + if op == Op::Push { lanes.post_records(peer, &rest) } else { 0 };
            posted += passed;
            rest.pass(passed);
        }
        posted
    }

    /// The message of one of its records.
    #[inline]
    fn draft<'a>(
        &self,
        op: u8,
        (table, range): Place,
        timestamp: u64,
        request: &Request<'a>,
    ) -> Draft<'a> {
        let Request { command, clock, keys, lengths, values, .. } = *request;
        Draft {
            kind: Kind::Request,
            op,
            command,
            table,
            timestamp,
            clock,
            range,
            origin: Some(self.sender.origin()),
            offer: None,
            signature: None,
            keys,
            lengths,
            values: Values::Copied(values),
        }
    }

    /// Answers its first `count` records, of several, and passes them.
    fn answer(
        &mut self,
        count: usize,
        place: Place,
        lanes: &mut Connections,
        broken: &mut Vec<PeerId>,
    ) {
        let Records::Received { message, .. } = &mut self.records else { return };
        self.waiting.answer(&message.first(count), place, lanes, broken);
        message.pass(count);
    }

    /// Answers all who wait for it.
    pub(super) fn answer_all(
        &mut self,
        place: Place,
        lanes: &mut Connections,
        broken: &mut Vec<PeerId>,
    ) {
        let waiting = std::mem::replace(&mut self.waiting, Awaiter::Nobody);
        match (waiting, &self.records) {
            (Awaiter::Nobody, _) => {}
            (Awaiter::One(reply), _) => reply.send(lanes, broken),
            (Awaiter::Several(replies), _) => {
                replies.into_iter().for_each(|reply| reply.send(lanes, broken));
            }
            (waiting, Records::Received { message, .. }) => {
                waiting.answer(message, place, lanes, broken);
            }
            (Awaiter::Worker(peer), Records::Made(effect)) => {
                note(peer, lanes.answer(peer, effect.timestamp), broken);
            }
            (Awaiter::Predecessor(peer), Records::Made(effect)) => {
                note(peer, confirm(lanes, peer, place, effect.timestamp), broken);
            }
        }
    }

    /// Answers all who wait for it that the chain of the shard is another one.
    pub(super) fn send_away(
        self,
        (table, range): Place,
        lanes: &mut Connections,
        broken: &mut Vec<PeerId>,
    ) {
        let predecessor = match &self.waiting {
            Awaiter::Predecessor(peer) => Some(*peer),
            _ => None,
        };
        let draft = Draft { op: Op::Follow as u8, table, range, ..Draft::new(Kind::Failure) };
        match (predecessor, &self.records) {
            (Some(peer), Records::Received { message, .. }) => {
                note(peer, lanes.answer_each(peer, &draft, message), broken);
            }
            (Some(peer), Records::Made(effect)) => {
                let posted = post(lanes, peer, Draft { timestamp: effect.timestamp, ..draft });
                note(peer, posted, broken);
            }
            (None, _) => {
                for to in self.into_replies(table) {
                    note(to.peer, answer_trouble(lanes, to, Trouble::Elsewhere), broken);
                }
            }
        }
    }

    /// Those workers that wait for it.
    pub(super) fn into_replies(self, table: u32) -> Vec<ReplyTo> {
        let mut all = Vec::new();
        match &self.waiting {
            Awaiter::Nobody | Awaiter::Predecessor(_) => {}
            Awaiter::One(reply) => all.push(reply.to),
            Awaiter::Several(replies) => all.extend(replies.iter().map(|reply| reply.to)),
            Awaiter::Worker(peer) => {
                let to = |timestamp| ReplyTo { peer: *peer, table, timestamp };
                match &self.records {
                    Records::Received { message, .. } => {
                        all.extend(message.timestamps().map(to));
                    }
                    Records::Made(effect) => all.push(to(effect.timestamp)),
                }
            }
        }
        all
    }
}

impl Awaiter {
    pub(super) fn is_nobody(&self) -> bool {
        matches!(self, Awaiter::Nobody)
    }

    /// Answers each record of a message without values, if a worker or the thread before this one
    /// waits for them.
    fn answer(
        &self,
        message: &Message,
        (table, range): Place,
        lanes: &mut Connections,
        broken: &mut Vec<PeerId>,
    ) {
        let (peer, draft) = match *self {
            Awaiter::Worker(peer) => (peer, Draft::new(Kind::Reply)),
            Awaiter::Predecessor(peer) => {
                let op = Op::Record as u8;
                (peer, Draft { op, table, range, ..Draft::new(Kind::Reply) })
            }
            _ => return,
        };
        note(peer, lanes.answer_each(peer, &draft, message), broken);
    }

    /// Nobody at this lane waits any more.
    pub(super) fn forget(&mut self, peer: PeerId) {
        let is_gone = match self {
            Awaiter::Nobody => false,
            Awaiter::Worker(own) | Awaiter::Predecessor(own) => *own == peer,
            Awaiter::One(reply) => reply.to.peer == peer,
            Awaiter::Several(replies) => {
                replies.retain(|reply| reply.to.peer != peer);
                replies.is_empty()
            }
        };
        if is_gone {
            *self = Awaiter::Nobody;
        }
    }

    /// The replies to those who wait for one record.
    pub(super) fn into_replies(self, table: u32, timestamp: u64) -> Vec<Reply> {
        match self {
            Awaiter::Nobody => Vec::new(),
            Awaiter::Worker(peer) | Awaiter::Predecessor(peer) => {
                vec![Reply { to: ReplyTo { peer, table, timestamp }, answer: Ok(None) }]
            }
            Awaiter::One(reply) => vec![reply],
            Awaiter::Several(replies) => replies,
        }
    }
}

impl Effect {
    /// What a request does, with values that were decoded here.
    pub(super) fn of(op: Op, ends: u8, timestamp: u64, request: &Request<'_>) -> Effect {
        let Request { command, clock, keys, lengths, values, .. } = *request;
        Effect {
            op: op as u8 | ends,
            timestamp,
            command,
            clock,
            keys: keys.to_vec(),
            lengths: lengths.to_vec(),
            values: values.to_vec(),
        }
    }

    /// Nothing.
    pub(super) fn nothing(timestamp: u64) -> Effect {
        Effect { op: Op::Record as u8, timestamp, ..Effect::default() }
    }
}

impl Reply {
    fn send(self, lanes: &mut Connections, broken: &mut Vec<PeerId>) {
        let Reply { to, answer } = self;
        let sent = match answer {
            Ok(None) => lanes.answer(to.peer, to.timestamp),
            Ok(Some((lengths, values))) => post_values(lanes, to, &lengths, values),
            Err(reason) => refuse(lanes, to, &reason),
        };
        note(to.peer, sent, broken);
    }
}

/// The next record of a received message, as copies get it. Of one that does nothing they need
/// nothing; with its key it is of a batch with others.
fn received<'a>(message: &'a Message, list: Option<&'a List>, op: Op, node: u32) -> Request<'a> {
    let request = Request::of(message, op, node).with_record(message, list);
    match (op, request.keys) {
        (Op::Record, [_]) => Request { lengths: &[], values: &[], ..request },
        (Op::Record, _) => Request { keys: &[], lengths: &[], values: &[], ..request },
        _ => request,
    }
}

/// Tells the thread before this one that a record is in all copies from here on.
pub(super) fn confirm(
    lanes: &mut Connections,
    peer: PeerId,
    (table, range): Place,
    timestamp: u64,
) -> caravan_van::Result<()> {
    let op = Op::Record as u8;
    let draft = Draft { op, table, range, timestamp, ..Draft::new(Kind::Reply) };
    lanes.post(peer, draft, &mut Coding::plain())
}

fn note(peer: PeerId, posted: caravan_van::Result<()>, broken: &mut Vec<PeerId>) {
    if let Err(error) = posted {
        tracing::debug!(%error, "an answer could not be sent; closing the lane");
        broken.push(peer);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use caravan_van::sim::{Faults, Network};
    use caravan_van::{Endpoint, Transport, VanConfig};

    const SENDER: Sender = Sender { node: 3, incarnation: 9 << 40 };

    /// An entry of pushes to these keys, as one message brings them: each has its key as timestamp
    /// and value.
    fn pushes(keys: std::ops::Range<u64>) -> LogEntry {
        let network = Network::new(1, Faults::none());
        let ends = |_| Endpoint::new(Box::new(network.transport(&VanConfig::default())), 7, 64);
        let [mut a, mut b] = [0, 1].map(ends);
        let peer = a.connect(b.lanes.address()).unwrap();
        while a.lanes.credits(peer) == 0 {
            for end in [&mut a, &mut b] {
                end.wait(std::time::Duration::from_millis(1)).unwrap();
                end.poll().unwrap();
                while end.take().is_some() {}
            }
        }
        for key in keys {
            let value = key.to_le_bytes();
            let (keys, values) = (&[key][..], Values::Copied(&value));
            let draft = Draft { keys, values, timestamp: key, ..Draft::new(Kind::Request) };
            a.lanes.post(peer, draft, &mut Coding::plain()).unwrap();
        }
        a.poll().unwrap();
        while !b.poll().unwrap() {
            b.wait(std::time::Duration::from_millis(1)).unwrap();
        }
        b.take().unwrap();
        let message = b.inbox.message().first(usize::MAX);
        let records = Records::Received { message, list: None, op: Op::Push as u8 };
        LogEntry::new(SENDER, records, Awaiter::Nobody)
    }

    fn lanes() -> Connections {
        let network = Network::new(1, Faults::none());
        let van: Box<dyn Transport> = Box::new(network.transport(&VanConfig::default()));
        Endpoint::new(van, 7, 64).lanes
    }

    fn next(log: &Log) -> Option<(u64, usize)> {
        log.next().map(|(entry, from)| (entry.timestamp(), from))
    }

    #[test]
    fn records_are_posted_and_acknowledged_one_by_one_across_entries() {
        let (mut log, mut lanes, mut broken) = (Log::default(), lanes(), Vec::new());
        let place = (1, KeyRange::ALL);
        [pushes(1..4), pushes(4..5), pushes(5..9)].into_iter().for_each(|it| log.push(it));
        let leave = Effect { op: Op::Leave as u8, ..Effect::default() };
        log.push(LogEntry::made(SENDER, leave, Awaiter::Nobody));
        assert_eq!((log.len(), next(&log), log.is_posted()), (9, Some((1, 0)), false));
        log.note_posted(2);
        assert_eq!(next(&log), Some((1, 2)));
        log.acknowledge(1, place, &mut lanes, &mut broken);
        assert_eq!((log.len(), next(&log)), (8, Some((2, 1))), "the first record is gone");
        log.note_posted(1);
        log.note_posted(1);
        log.note_posted(3);
        assert_eq!(next(&log), Some((5, 3)));
        log.acknowledge(5, place, &mut lanes, &mut broken);
        assert_eq!((log.len(), next(&log)), (3, Some((7, 1))));
        log.acknowledge(100, place, &mut lanes, &mut broken);
        assert_eq!((log.len(), next(&log)), (2, Some((8, 0))), "what was not posted stays");
        log.note_posted(1);
        log.note_posted(1);
        assert!(log.is_posted() && next(&log).is_none());
        log.rewind();
        assert_eq!((next(&log), log.is_posted()), (Some((8, 0)), false));
        assert!(log.next().unwrap().0.was_posted());
        log.drop_first();
        log.drop_first();
        assert!(log.is_empty() && next(&log).is_none() && broken.is_empty());
    }
}
