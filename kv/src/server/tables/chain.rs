//! Copies of a shard along a chain of server threads.
//!
//! The first thread of a chain serves the shard's requests. It applies one, passes its inputs on to
//! the next thread (`Replicate`), and answers when that has confirmed it; that one answers when the
//! next has, and the last one at once. A pull passes on no inputs, and its answer waits likewise:
//! no worker ever reads what the death of a thread could undo, or what a thread serves that does
//! not know that it counts as lost. All of a chain apply the same pushes in the same order, so any
//! rule that computes the same from the same inputs has equal copies. Commands are inputs like
//! pushes.
//!
//! Each shard knows of each worker the last timestamp that it has applied, since a worker's
//! requests to a shard come in the order of their timestamps. A push that comes again is not
//! applied again; of commands the answer to a worker's last one is kept, for the same reason. What
//! is not confirmed is kept, and goes again to whoever follows after a loss. So
//! a copy always has the beginning of what the one before it has, and all that was ever answered.
//!
//! Who is in a chain follows from the [`View`], of which the scheduler tells servers, and workers
//! before they ask anything that depends on it. A thread that finds another one behind itself asks
//! it to follow (`Follow`). If that has no copy, it gets one: all rows, a piece at a time beside
//! other work (`Rows`), pushes meanwhile, and at the end what was applied of whom (`Whole`). This
//! is chain replication of van Renesse and Schneider (OSDI 2004), with reads at the head that the
//! tail confirms.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

mod tables;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::AddAssign;
use std::time::Duration;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Account, Draft, Endpoint, KeyRange, Lanes, PeerId, Pool, Shared, Values};
use serde::{Deserialize, Serialize};

use super::Held;
use super::moving::UNANSWERED_MAX;
use crate::op::Op;
use crate::server::answer::{ReplyTo, collect, gather, post_values};
use crate::server::shard::{Extract, Request, Shard};
use crate::view::View;

/// Time between two attempts to reach a thread.
pub(in crate::server) const RETRY: Duration = Duration::from_millis(20);

/// Memory of what was applied of a worker, without an answer.
const SENDER_BYTES: usize = 128;

/// A worker: the node and the incarnation that its lane has proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Sender {
    node: u32,
    incarnation: u64,
}

/// What was applied of a worker.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Applied {
    /// The last timestamp.
    timestamp: u64,
    /// The last command's timestamp, and its answer; a worker has one command to a shard at a time.
    command: u64,
    answer: Vec<u8>,
}

/// The body of [`Op::Follow`].
#[derive(Serialize, Deserialize)]
struct Follow {
    /// The table's specification as JSON.
    table: String,
    /// The thread that asks.
    from: usize,
    /// The thread to which the shard was given first.
    first: usize,
}

/// A shard's place in its chain.
pub(in crate::server) struct Chain {
    /// The thread to which the shard was given first.
    first: usize,
    replicas: u32,
    /// Whether all rows are here.
    is_whole: bool,
    /// The lane on which they come, until they are.
    comes_from: Option<PeerId>,
    applied: BTreeMap<Sender, Applied>,
    /// Charged for that.
    memory: Account,
    /// The thread behind this one.
    next: Option<usize>,
    link: Link,
    /// What the next thread has not confirmed, in the order in which it was applied.
    unconfirmed: VecDeque<Unconfirmed>,
    /// How many of these, from the front, were posted on the present lane.
    posted: usize,
    /// Requests that wait for room or for the next thread.
    held: VecDeque<Held>,
}

/// How far the next thread follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// It was not asked.
    Unasked,
    Asked,
    /// It gets a copy: the rows from this key on are missing. Nothing waits for it.
    Copies {
        next: Option<u64>,
        unanswered: u32,
    },
    /// It has all, and every answer waits for it.
    Follows,
    /// It can have no copy, and has none.
    Failed,
}

/// A request that was applied here.
struct Unconfirmed {
    /// Number of the message that took it to the next thread.
    number: u64,
    inputs: Inputs,
    /// `None` if nobody waits for the answer any more.
    reply: Option<Reply>,
}

/// What a request does to a shard.
struct Inputs {
    /// A push, a command, or a pull, which does nothing.
    op: Op,
    sender: Sender,
    timestamp: u64,
    command: i32,
    clock: u64,
    keys: Vec<u64>,
    lengths: Vec<u32>,
    values: Vec<u8>,
}

struct Reply {
    to: ReplyTo,
    /// The answer to a pull or a command, as the shard was when it was its turn.
    answer: Option<(Vec<u32>, Shared)>,
}

/// Counters of the copies of a server thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ChainCounters {
    /// Requests passed on.
    pub passed: u64,
    /// Of these, requests that were passed on before, to another thread or on a lane that broke.
    pub passed_again: u64,
    /// Pushes that came again and had been applied.
    pub repeated: u64,
    /// Requests that waited for the next thread.
    pub held: u64,
    /// Pieces of rows sent to new copies.
    pub pieces: u64,
    /// Copies that are whole.
    pub copied: u64,
    /// Messages of threads that count as lost, which were refused.
    pub refused: u64,
}

impl AddAssign for ChainCounters {
    fn add_assign(&mut self, other: ChainCounters) {
        self.passed += other.passed;
        self.passed_again += other.passed_again;
        self.repeated += other.repeated;
        self.held += other.held;
        self.pieces += other.pieces;
        self.copied += other.copied;
        self.refused += other.refused;
    }
}

/// What all chains of a thread share.
#[derive(Default)]
pub(super) struct Chains {
    pub(super) view: View,
    /// Lanes to the threads that follow.
    lanes: BTreeMap<usize, Lane>,
    /// By lane, the node at the other end.
    nodes: HashMap<PeerId, Node>,
    /// Lanes on which an answer could not be sent.
    pub(super) broken: Vec<PeerId>,
    /// Whether there may be anything for [`Tables::advance_chains`] to do.
    pub(super) is_due: bool,
    count: u64,
    counters: ChainCounters,
}

/// What a lane has proved of the node at its other end.
struct Node {
    /// Which start of it this is.
    incarnation: u64,
    /// Its role, by number.
    role: u8,
}

#[derive(Default)]
struct Lane {
    peer: Option<PeerId>,
    /// Messages that were not answered, in order.
    posted: VecDeque<Posted>,
    /// When it may be made again; set by the next look if it has just been lost.
    retry_at: Option<Duration>,
    was_lost: bool,
}

#[derive(Clone, Copy)]
struct Posted {
    number: u64,
    table: u32,
    begin: u64,
    op: Op,
}

/// The lane to the next thread and the place of a shard, to post messages about it.
struct Way<'a> {
    lanes: &'a mut Lanes,
    lane: &'a mut Lane,
    count: &'a mut u64,
    index: usize,
    table: u32,
    range: KeyRange,
}

impl Way<'_> {
    /// Posts a message; returns its number, or `None` if it cannot be posted now.
    fn post(&mut self, draft: Draft<'_>, op: Op) -> Option<u64> {
        let peer = self.lane.peer?;
        let number = *self.count + 1;
        let draft = Draft {
            op: op as u8,
            table: self.table,
            range: self.range,
            timestamp: number,
            ..draft
        };
        let mut coding = if op == Op::Rows { Coding::compact() } else { Coding::plain() };
        if let Err(error) = self.lanes.post(peer, draft, &mut coding) {
            tracing::debug!(%error, "a copy has to wait");
            return None;
        }
        *self.count = number;
        let begin = self.range.begin();
        self.lane.posted.push_back(Posted { number, table: self.table, begin, op });
        Some(number)
    }

    /// Posts the inputs of a request.
    fn replicate(&mut self, inputs: &Inputs) -> Option<u64> {
        let head = Head {
            from: self.index as u64,
            op: inputs.op as u64,
            node: inputs.sender.node.into(),
            incarnation: inputs.sender.incarnation,
            timestamp: inputs.timestamp,
        };
        let values = [&head.bytes()[..], &inputs.values].concat();
        let draft = Draft {
            command: inputs.command,
            clock: inputs.clock,
            keys: &inputs.keys,
            lengths: &inputs.lengths,
            values: Values::Copied(&values),
            ..Draft::new(Kind::Request)
        };
        self.post(draft, Op::Replicate)
    }
}

/// What the values of [`Op::Replicate`] begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    /// The thread that passes it on.
    from: u64,
    /// That of [`Inputs`].
    op: u64,
    node: u64,
    incarnation: u64,
    timestamp: u64,
}

impl Head {
    const BYTES: usize = 40;

    fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let numbers = [self.from, self.op, self.node, self.incarnation, self.timestamp];
        let places = bytes.chunks_exact_mut(8);
        places.zip(numbers).for_each(|(place, it)| place.copy_from_slice(&it.to_le_bytes()));
        bytes
    }

    fn read(values: &[u8]) -> Option<(Head, &[u8])> {
        let (head, values) = values.split_at_checked(Self::BYTES)?;
        let numbers: &[[u8; 8]; 5] = head.as_chunks().0.try_into().ok()?;
        let [from, op, node, incarnation, timestamp] = numbers.map(u64::from_le_bytes);
        Some((Head { from, op, node, incarnation, timestamp }, values))
    }

    fn op(self) -> Option<Op> {
        let op = Op::from_raw(self.op.try_into().ok()?);
        op.filter(|op| matches!(op, Op::Push | Op::Pull | Op::Command))
    }

    fn sender(self) -> Option<Sender> {
        Some(Sender { node: self.node.try_into().ok()?, incarnation: self.incarnation })
    }
}

impl Chain {
    pub(super) fn new(first: usize, replicas: u32, is_whole: bool, pool: &Pool) -> Box<Chain> {
        Box::new(Chain {
            first,
            replicas,
            is_whole,
            comes_from: None,
            applied: BTreeMap::new(),
            memory: Account::new(pool, "what was applied of whom"),
            next: None,
            link: Link::Unasked,
            unconfirmed: VecDeque::new(),
            posted: 0,
            held: VecDeque::new(),
        })
    }

    /// Charges for a worker of which nothing was applied so far. This comes before its inputs are
    /// applied: what is refused is in no copy.
    fn charge(&mut self, sender: Sender) -> Result<(), String> {
        if self.applied.contains_key(&sender) {
            return Ok(());
        }
        self.memory.add(SENDER_BYTES).map_err(|error| error.to_string())
    }

    /// Takes over what was applied.
    fn take_applied(&mut self, applied: Vec<(Sender, Applied)>) -> Result<(), String> {
        let bytes = applied.iter().map(|(_, applied)| SENDER_BYTES + applied.answer.len()).sum();
        self.memory.set(bytes).map_err(|error| error.to_string())?;
        self.applied = applied.into_iter().collect();
        Ok(())
    }

    /// Enters that a push was applied, or a command with this answer, so that it is known when it
    /// comes again.
    fn enter(&mut self, sender: Sender, timestamp: u64, answer: Option<Vec<u8>>) {
        let applied = self.applied.entry(sender).or_default();
        applied.timestamp = timestamp;
        let Some(answer) = answer else { return };
        self.memory.release(applied.answer.len());
        applied.answer = Vec::new();
        if self.memory.add(answer.len()).is_ok() {
            applied.command = timestamp;
            applied.answer = answer;
        }
    }

    /// Whether inputs were not applied before.
    fn is_new(&self, sender: Sender, timestamp: u64) -> bool {
        self.applied.get(&sender).is_none_or(|applied| applied.timestamp < timestamp)
    }

    /// The answer to a command that was applied.
    fn answer(&self, sender: Sender, timestamp: u64) -> Result<&[u8], String> {
        let applied = self.applied.get(&sender).filter(|applied| applied.command == timestamp);
        let gone = "this command was executed, and there was no memory to keep its answer";
        applied.map(|applied| &applied.answer[..]).ok_or_else(|| gone.to_owned())
    }

    /// The answer to a request whose inputs were applied here: pulled values, or a command's.
    fn answer_to(
        &self,
        shard: &mut dyn Shard,
        memory: &Pool,
        (sender, timestamp): (Sender, u64),
        request: &Request<'_>,
    ) -> Result<Option<(Vec<u32>, Shared)>, String> {
        if request.pulls {
            return collect(memory, shard, request).map(Some);
        }
        if request.pushes {
            return Ok(None);
        }
        match self.answer(sender, timestamp)? {
            [] => Ok(None),
            answer => {
                let write = |into: &mut [u8]| into.copy_from_slice(answer);
                Ok(Some((Vec::new(), gather(memory, answer.len(), write)?)))
            }
        }
    }

    /// Whether a request has to wait: for others before it, for the next thread, or for room there.
    /// The last message to each thread that is for others further on leaves room for those that end
    /// there, so that full lanes never wait for each other in a circle.
    fn holds(&self, chains: &Chains, lanes: &Lanes, index: usize) -> bool {
        if !self.held.is_empty() || self.next.is_some() && self.posted < self.unconfirmed.len() {
            return true;
        }
        let Some(next) = self.next else { return self.waits_for_look(chains, index) };
        match self.link {
            Link::Unasked | Link::Asked => true,
            Link::Failed => false,
            Link::Copies { .. } | Link::Follows => {
                let behind = chains.view.behind(self.first, self.replicas, index);
                let peer = chains.lanes.get(&next).and_then(|lane| lane.peer);
                peer.is_none_or(|peer| lanes.credits(peer) < behind.max(1))
            }
        }
    }

    /// Whether there was never a request for the shard.
    fn is_unused(&self) -> bool {
        self.applied.is_empty() && self.held.is_empty() && self.unconfirmed.is_empty()
    }

    /// Whether there is a next thread of which this chain has not heard.
    fn waits_for_look(&self, chains: &Chains, index: usize) -> bool {
        chains.view.next(self.first, self.replicas, index).is_some()
    }

    /// Passes a request on that was applied here, or answers it if nobody has to confirm it.
    fn pass_on(&mut self, way: Option<Way<'_>>, broken: &mut Vec<PeerId>, item: Unconfirmed) {
        let mut item = item;
        match (way, self.link) {
            (Some(mut way), Link::Follows) => {
                if self.posted == self.unconfirmed.len()
                    && let Some(number) = way.replicate(&item.inputs)
                {
                    item.number = number;
                    self.posted += 1;
                }
                self.unconfirmed.push_back(item);
            }
            (Some(mut way), Link::Copies { .. }) => {
                let is_passed = item.inputs.op == Op::Pull || way.replicate(&item.inputs).is_some();
                if !is_passed {
                    // It begins anew.
                    self.link = Link::Unasked;
                }
                item.reply.take().into_iter().for_each(|reply| reply.send(way.lanes, broken));
            }
            (Some(way), Link::Failed) => {
                item.reply.take().into_iter().for_each(|reply| reply.send(way.lanes, broken));
            }
            (Some(_), Link::Unasked | Link::Asked) | (None, _) => self.unconfirmed.push_back(item),
        }
    }

    /// Answers everything, since nobody has to confirm it.
    fn answer_all(&mut self, lanes: &mut Lanes, broken: &mut Vec<PeerId>) {
        self.posted = 0;
        let replies = self.unconfirmed.drain(..).filter_map(|it| it.reply);
        replies.for_each(|reply| reply.send(lanes, broken));
    }

    /// Enters that the next thread is another one, or on another lane.
    fn turn_to(&mut self, next: Option<usize>) {
        self.next = next;
        self.link = Link::Unasked;
        self.posted = 0;
    }

    /// Does the next thing that its next thread needs; returns whether there was anything.
    fn advance(
        &mut self,
        way: &mut Way<'_>,
        shard: &mut dyn Shard,
        text: &str,
        piece_bytes: usize,
        counters: &mut ChainCounters,
    ) -> Result<bool, String> {
        match self.link {
            Link::Asked | Link::Failed => Ok(false),
            Link::Unasked => {
                let follow = Follow { table: text.to_owned(), from: way.index, first: self.first };
                let body = serde_json::to_vec(&follow).map_err(|error| error.to_string())?;
                let values = Values::Copied(&body);
                if way.post(Draft { values, ..Draft::new(Kind::Request) }, Op::Follow).is_some() {
                    self.link = Link::Asked;
                }
                Ok(false)
            }
            Link::Copies { unanswered: UNANSWERED_MAX.., .. } => Ok(false),
            Link::Copies { next: Some(from), unanswered } => {
                let mut piece = Extract::default();
                let next = shard.give(from, piece_bytes, &mut piece)?;
                let draft = Draft {
                    keys: &piece.keys,
                    lengths: &piece.lengths,
                    values: Values::Copied(&piece.values),
                    ..Draft::new(Kind::Request)
                };
                let is_posted = way.post(draft, Op::Rows).is_some();
                if is_posted {
                    counters.pieces += 1;
                    self.link = Link::Copies { next, unanswered: unanswered + 1 };
                }
                Ok(is_posted)
            }
            Link::Copies { next: None, .. } => {
                let applied: Vec<(&Sender, &Applied)> = self.applied.iter().collect();
                let body = serde_json::to_vec(&applied).map_err(|error| error.to_string())?;
                let values = Values::Copied(&body);
                if way.post(Draft { values, ..Draft::new(Kind::Request) }, Op::Whole).is_some() {
                    counters.copied += 1;
                    self.link = Link::Follows;
                }
                Ok(false)
            }
            Link::Follows => {
                let Some(item) = self.unconfirmed.get_mut(self.posted) else { return Ok(false) };
                let Some(number) = way.replicate(&item.inputs) else { return Ok(false) };
                item.number = number;
                self.posted += 1;
                counters.passed_again += 1;
                Ok(true)
            }
        }
    }

    /// Forgets what was held for a peer, and its answers.
    fn forget(&mut self, peer: PeerId) {
        self.held.retain(|held| held.peer != peer);
        for item in &mut self.unconfirmed {
            item.reply.take_if(|reply| reply.to.peer == peer);
        }
    }
}

impl Reply {
    fn send(self, lanes: &mut Lanes, broken: &mut Vec<PeerId>) {
        let Reply { to, answer } = self;
        let sent = match answer {
            None => lanes.answer(to.peer, to.timestamp),
            Some((lengths, values)) => post_values(lanes, to, &lengths, values),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "an answer could not be sent; closing the lane");
            broken.push(to.peer);
        }
    }
}

impl Chains {
    /// The lane to the next thread of a chain, if there is one.
    fn way<'a>(
        &'a mut self,
        lanes: &'a mut Lanes,
        next: Option<usize>,
        index: usize,
        (table, range): (u32, KeyRange),
    ) -> Option<Way<'a>> {
        let lane = self.lanes.entry(next?).or_default();
        Some(Way { lanes, lane, count: &mut self.count, index, table, range })
    }

    /// Connects to a thread, or returns that a lane is open.
    fn reach(&mut self, endpoint: &mut Endpoint, server: usize) -> bool {
        let now = endpoint.lanes.now();
        let Chains { lanes, view, is_due, .. } = self;
        let lane = lanes.entry(server).or_default();
        if lane.peer.is_some() {
            return true;
        }
        if std::mem::take(&mut lane.was_lost) {
            lane.retry_at = Some(now + RETRY);
        }
        *is_due = true;
        if lane.retry_at.is_some_and(|at| now < at) {
            return false;
        }
        let address = view.addresses.get(server).map_or("", String::as_str);
        match endpoint.connect(address) {
            Ok(peer) => lane.peer = Some(peer),
            Err(error) => {
                tracing::debug!(server, %error, "no lane to a thread that has to follow");
                lane.was_lost = true;
            }
        }
        lane.peer.is_some()
    }
}

impl Chains {
    fn pass_on(
        &mut self,
        lanes: &mut Lanes,
        chain: &mut Chain,
        index: usize,
        place: (u32, KeyRange),
        item: Unconfirmed,
    ) {
        let mut broken = std::mem::take(&mut self.broken);
        if chain.next.is_none() {
            item.reply.into_iter().for_each(|reply| reply.send(lanes, &mut broken));
        } else {
            self.counters.passed += 1;
            chain.pass_on(self.way(lanes, chain.next, index, place), &mut broken, item);
        }
        self.is_due |= !broken.is_empty() || chain.posted < chain.unconfirmed.len();
        self.broken = broken;
    }
}

impl Inputs {
    /// Of a request that was applied for the first time, or does nothing.
    fn of(op: Option<Op>, sender: Sender, timestamp: u64, request: &Request<'_>) -> Inputs {
        let Request { command, clock, keys, lengths, values, .. } = *request;
        let nothing = Inputs {
            op: Op::Pull,
            sender,
            timestamp,
            command,
            clock,
            keys: Vec::new(),
            lengths: Vec::new(),
            values: Vec::new(),
        };
        let Some(op) = op else { return nothing };
        let (keys, lengths, values) = (keys.to_vec(), lengths.to_vec(), values.to_vec());
        Inputs { op, keys, lengths, values, ..nothing }
    }
}

/// Applies inputs; returns the answer of a command.
///
/// # Errors
/// The reason why they are invalid.
fn apply(
    shard: &mut dyn Shard,
    op: Op,
    request: &Request<'_>,
    memory: &Pool,
) -> Result<Option<Vec<u8>>, String> {
    match op {
        Op::Command => shard.command(request.sender, request.values).map(Some),
        _ => shard.push(request, memory).map(|()| None),
    }
}
