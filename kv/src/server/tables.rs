//! A server thread's shards: finds the shard of a request and serves it, record by record.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

mod chain;
mod cut;
mod entry;
mod filtered;
mod governor;
mod moving;
mod numbers;

use std::collections::BTreeMap;
use std::io::{self, Write};

use caravan_van::wire::Kind;
use caravan_van::{Draft, KeyRange, Lanes, Message, PeerId, Pool, Values};
use serde::Serialize;

pub use self::chain::ChainCounters;
pub(super) use self::chain::RETRY;
use self::chain::{Chain, Chains};
pub(super) use self::entry::Entry;
use self::entry::Known;
use self::filtered::{apply, serve_filtered};
use self::governor::Turn;
pub(super) use self::governor::{Governor, Waiting};
pub(super) use self::moving::Held;
pub use self::moving::MoveCounters;
pub(crate) use self::moving::{Destination, SentBack};
use self::moving::{Moved, Moves, forward, send_back};
use self::numbers::Numbers;
use super::answer::{ReplyTo, answer, answer_pull, place_pull, post, refuse, refuse_dropped};
use super::handle::Handles;
use super::owed::Owed;
use super::shard::{Extract, Request};
use crate::consistency::{Admission, Blocker};
use crate::cost::Cost;
use crate::filter::{FILTERED, List};
use crate::history::Recorder;
use crate::map::{Created, Placed};
use crate::op::{BITS, FINISHES, Op};
use crate::table::TableSpec;

/// All tables, and one thread's shards of them.
pub(super) struct Tables {
    /// This thread's place among all server threads.
    index: usize,
    /// Number of all server threads.
    count: usize,
    handles: Handles,
    /// Opens the histories of tables with a model, if they are recorded.
    pub(super) histories: Option<Box<OpenHistory>>,
    /// All tables, by number.
    known: BTreeMap<u32, Known>,
    /// The shards of this thread, sorted by table and keys.
    entries: Vec<Entry>,
    numbers: Numbers,
    moves: Moves,
    chains: Chains,
    owed: Owed,
    /// Index of the last request's shard; the next request is probably for it, too.
    last: usize,
}

/// Opens the history of a shard, by its table's number and its place there.
pub(super) type OpenHistory = dyn FnMut((u32, usize), &TableSpec) -> io::Result<Box<dyn Write>>;

/// How far a message was served.
pub(super) enum Step {
    /// All of its records were answered.
    Done,
    /// Likewise, and requests to its table that waited may go on, before any other.
    Release,
    /// The next record waits until its shard's clock has reached this value.
    Park(u64),
    /// The next record waits for this, by its table's model.
    Govern(Blocker),
    /// The shard stores the next record's values, pushed to this key, without a copy.
    Adopt(u64),
    /// The next record drops its table.
    Drop,
    /// The next record has runs of keys, which must be written out.
    Expand,
    /// The next record waits until its shard has moved.
    Hold,
}

/// Whose message is served.
#[derive(Clone, Copy)]
pub(super) struct Client {
    pub(super) peer: PeerId,
    /// The node of its lane's hello. What a header says of its sender is not believed.
    pub(super) node: u32,
}

/// Whether a table's model has admitted a message already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Admitted {
    /// It has just come.
    No,
    /// It was parked, and its turn has come.
    Yes,
}

/// Why a record was not served.
pub(super) enum Trouble {
    /// The request is refused, for this reason.
    Refused(String),
    /// Its table was dropped.
    Dropped,
    /// Its shard has moved to another server thread.
    Moved(Moved),
    /// The server thread that asks counts as lost.
    Lost,
    /// Its answer cannot be posted, and the lane must be closed.
    Lane(caravan_van::Error),
}

impl Trouble {
    /// The reason in words.
    fn into_reason(self) -> String {
        match self {
            Trouble::Refused(reason) => reason,
            Trouble::Dropped => "its table was dropped".to_owned(),
            Trouble::Moved(to) => format!("its shard has moved to server thread {}", to.server),
            Trouble::Lost => "it counts as lost".to_owned(),
            Trouble::Lane(error) => error.to_string(),
        }
    }
}

impl From<String> for Trouble {
    fn from(reason: String) -> Trouble {
        Trouble::Refused(reason)
    }
}

impl From<caravan_van::Error> for Trouble {
    fn from(error: caravan_van::Error) -> Trouble {
        Trouble::Lane(error)
    }
}

impl Tables {
    pub(super) fn new(index: usize, count: usize, handles: Handles, memory: &Pool) -> Tables {
        Tables {
            index,
            count,
            handles,
            histories: None,
            known: BTreeMap::new(),
            entries: Vec::new(),
            numbers: Numbers::new(memory),
            moves: Moves::default(),
            chains: Chains::default(),
            owed: Owed::default(),
            last: 0,
        }
    }

    /// Index of the shard that has `key` of this table, if it is here.
    fn position(&self, number: u32, key: u64) -> Option<usize> {
        let is_before = |entry: &Entry| (entry.number, entry.range.last()) < (number, key);
        let at = self.entries.partition_point(is_before);
        self.entries.get(at).filter(|entry| entry.has(number, key)).map(|_| at)
    }

    /// The shard that has `key` of this table, if it is here.
    pub(super) fn get(&self, number: u32, key: u64) -> Option<&Entry> {
        self.position(number, key).map(|at| &self.entries[at])
    }

    /// Sets `last` to the shard that has `key` of this table.
    #[inline]
    fn seek(&mut self, number: u32, key: u64) -> Result<(), Trouble> {
        if self.entries.get(self.last).is_none_or(|entry| !entry.has(number, key)) {
            let position = self.position(number, key);
            self.last = position.ok_or_else(|| self.missing(number, key))?;
        }
        Ok(())
    }

    fn find(&mut self, id: u32, key: u64) -> Result<&mut Entry, Trouble> {
        self.seek(id, key)?;
        Ok(&mut self.entries[self.last])
    }

    /// Why there is no shard with `key` of a table.
    #[cold]
    pub(super) fn missing(&self, number: u32, key: u64) -> Trouble {
        if let Some(to) = self.moved(number, key) {
            return Trouble::Moved(to);
        }
        if self.numbers.is_dropped(number) {
            return Trouble::Dropped;
        }
        Trouble::Refused(match self.known.get(&number) {
            None => format!("table number {number} is unknown here (create it first)"),
            Some(known) => {
                format!("key {key} of table {} is not this thread's", known.spec.name)
            }
        })
    }

    /// The number of the table with this id in its namespace, if there is one.
    pub(super) fn named(&self, namespace: &str, id: u32) -> Option<u32> {
        let is_it = |known: &Known| known.spec.id == id && known.spec.namespace == namespace;
        self.known.iter().find(|(_, known)| is_it(known)).map(|(number, _)| *number)
    }

    /// The shards of a table that are here.
    pub(super) fn of(&self, number: u32) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.number == number)
    }

    /// The clock of a shard, for which its parked requests wait.
    pub(super) fn clock(&self, number: u32, key: u64) -> Option<u64> {
        self.get(number, key).map(|entry| entry.shard.clock())
    }

    /// Serves the records of a message of `client`, up to one that has to wait or whose values can
    /// be adopted. `list` has its keys if the message names them by a signature.
    ///
    /// # Errors
    /// If an answer cannot be posted and the lane must be closed, as for all functions below.
    #[inline(always)]
    pub(super) fn serve(
        &mut self,
        lanes: &mut Lanes,
        client: Client,
        message: &mut Message,
        list: Option<&List>,
        admitted: Admitted,
    ) -> caravan_van::Result<Step> {
        let peer = client.peer;
        let mut is_whole = true;
        loop {
            let trouble = match self.serve_rows(lanes, client, message, list, admitted) {
                // Records before a refused one may have let parked requests go on.
                Ok(Step::Done) if !is_whole => return Ok(Step::Release),
                Ok(step) => return Ok(step),
                Err(trouble) => trouble,
            };
            is_whole = false;
            let reply_to = ReplyTo { peer, table: message.table(), timestamp: message.timestamp() };
            match trouble {
                Trouble::Moved(to) => {
                    self.note_sent_back(message.table(), message.range().begin(), peer);
                    send_back(lanes, peer, message, list, to)?;
                }
                other => answer_trouble(lanes, reply_to, other)?,
            }
            message.advance();
        }
    }

    /// Serves the records of a message that pushes, pulls or both.
    #[inline(always)]
    fn serve_rows(
        &mut self,
        lanes: &mut Lanes,
        client: Client,
        message: &mut Message,
        list: Option<&List>,
        admitted: Admitted,
    ) -> Result<Step, Trouble> {
        if message.is_empty() {
            return Ok(Step::Done);
        }
        match Op::from_raw(message.op() & !FILTERED) {
            Some(op) if op.pushes() || op.pulls() => {
                self.serve_op(lanes, client, message, list, admitted, op)
            }
            _ if message.op() & FINISHES != 0 => {
                self.serve_last(lanes, client, message, list, admitted)
            }
            other => self.serve_other(lanes, client, message, other),
        }
    }

    /// Serves a push that ends its worker's iteration. One that is parked ends it as well; see
    /// [`Governor::park`].
    #[inline(never)]
    fn serve_last(
        &mut self,
        lanes: &mut Lanes,
        client: Client,
        message: &mut Message,
        list: Option<&List>,
        admitted: Admitted,
    ) -> Result<Step, Trouble> {
        let Some(Op::Push) = Op::from_raw(message.op() & !BITS) else {
            return Err(format!("there is no operation {}", message.op()).into());
        };
        let (clock, raw) = (message.clock(), message.op());
        let (table, key) = (message.table(), message.range().begin());
        let served = self.serve_op(lanes, client, message, list, admitted, Op::Push);
        if !matches!(served, Ok(Step::Govern(_) | Step::Park(_) | Step::Expand | Step::Hold))
            && let Some(governor) = &mut self.find(table, key)?.governor
        {
            governor.finish(client.node, clock, raw);
        }
        match served {
            Ok(Step::Done) => Ok(Step::Release),
            served => served,
        }
    }

    /// Serves the records of a message with operation `op`, which pushes, pulls or both.
    #[inline(always)]
    fn serve_op(
        &mut self,
        lanes: &mut Lanes,
        client: Client,
        message: &mut Message,
        list: Option<&List>,
        admitted: Admitted,
        op: Op,
    ) -> Result<Step, Trouble> {
        self.seek(message.table(), message.range().begin())?;
        match self.entries[self.last].is_alone() {
            true => self.serve_shard::<false>(lanes, client, message, list, admitted, op),
            false => self.serve_in_touch(lanes, client, message, list, admitted, op),
        }
    }

    /// As `serve_op`, for a shard that moves or has copies. It stands alone so that others pay
    /// nothing for it.
    #[inline(never)]
    fn serve_in_touch(
        &mut self,
        lanes: &mut Lanes,
        client: Client,
        message: &mut Message,
        list: Option<&List>,
        admitted: Admitted,
        op: Op,
    ) -> Result<Step, Trouble> {
        if self.entries[self.last].chain.is_some() {
            return self.serve_chained(lanes, client, message, list, op);
        }
        self.serve_shard::<true>(lanes, client, message, list, admitted, op)
    }

    /// Serves the records of a message to the shard at `last`, which moves or does not.
    #[inline(always)]
    fn serve_shard<const MOVES: bool>(
        &mut self,
        lanes: &mut Lanes,
        client: Client,
        message: &mut Message,
        list: Option<&List>,
        admitted: Admitted,
        op: Op,
    ) -> Result<Step, Trouble> {
        let peer = client.peer;
        let table = message.table();
        let range = message.range();
        let Tables { entries, moves, chains, owed, last, .. } = self;
        let entry = &mut entries[*last];
        if message.op() & FILTERED != 0 {
            check_block(op, entry)?;
        }
        let mut common = Request::of(message, op, client.node);
        common.rows = list.map(|list| &list.rows);
        let has_offers = message.has_offers();
        let is_own = entry.range.contains(range.last());
        // A shard may only adopt memory that the message owns: lent memory goes back to the worker,
        // and a frame may hold several messages.
        let is_owned = message.op() == Op::Push as u8
            && message.owns_values()
            && !MOVES
            && entry.governor.as_ref().is_none_or(|governor| !governor.knows_repeats());
        let mut is_admitted = admitted != Admitted::No;
        while !message.is_empty() {
            let request = common.with_record(message, list);
            let keys = request.keys;
            if list.is_none() && !request.lengths.is_empty() && entry.spec.width > 0 {
                return Ok(Step::Expand);
            }
            if !is_own {
                entry.check_keys(keys)?;
            }
            if MOVES && entry.moving.as_ref().is_some_and(|it| it.holds(lanes, op.pushes())) {
                return Ok(Step::Hold);
            }
            match entry.shard.admit(&request) {
                Admission::Now => {}
                Admission::AfterClock(clock) => return Ok(Step::Park(clock)),
                Admission::Kept => {
                    let reply_to = ReplyTo { peer, table, timestamp: message.timestamp() };
                    keep(lanes, (owed, chains), entry, reply_to, &request)?;
                    message.advance();
                    continue;
                }
            }
            if !is_admitted && let Some(governor) = &mut entry.governor {
                match governor.arrive(&request)? {
                    Turn::Now => is_admitted = governor.admits_alike(),
                    Turn::Later(blocker) => return Ok(Step::Govern(blocker)),
                    Turn::Repeated => {
                        lanes.answer(peer, message.timestamp())?;
                        message.advance();
                        continue;
                    }
                }
            }
            let passes = entry.filters.as_mut().is_none_or(|filters| filters.pass(message));
            if !passes {
                serve_filtered(lanes, entry, peer, message, request, &mut moves.counters)?;
                message.advance();
                continue;
            }
            let timestamp = message.timestamp();
            if is_owned && entry.shard.adopts(&request) {
                return Ok(Step::Adopt(keys[0]));
            }
            if op == Op::Push {
                if MOVES {
                    cut::keep(&mut entry.moving, &mut *entry.shard, keys);
                }
                entry.push(&request, lanes.memory())?;
                if MOVES {
                    let shard = (table, entry.range);
                    forward(lanes, &mut entry.moving, &mut moves.counters, shard, &request)?;
                }
                lanes.answer(peer, timestamp)?;
                message.advance();
                continue;
            }
            if request.pushes {
                if MOVES {
                    cut::keep(&mut entry.moving, &mut *entry.shard, keys);
                }
                entry.push(&request, lanes.memory())?;
                if MOVES {
                    let shard = (table, entry.range);
                    forward(lanes, &mut entry.moving, &mut moves.counters, shard, &request)?;
                }
            }
            if let Some(filters) = &mut entry.filters {
                filters.passed.sent += (keys.len() * entry.spec.row_bytes()) as u64;
            }
            let reply_to = ReplyTo { peer, table, timestamp };
            let offer = if has_offers { message.offer() } else { None };
            match offer {
                None => answer_pull(lanes, &mut *entry.shard, reply_to, &request)?,
                Some(offer) => place_pull(lanes, &mut *entry.shard, reply_to, offer, &request)?,
            }
            message.advance();
        }
        match &entry.governor {
            Some(governor) if governor.releases() => Ok(Step::Release),
            _ => Ok(Step::Done),
        }
    }

    /// The model of the shard that has `key` of a table, if it has one.
    pub(super) fn governor(&mut self, table: u32, key: u64) -> Option<&mut Governor> {
        self.find(table, key).ok()?.governor.as_deref_mut()
    }

    /// Takes out the next parked request of a table that its model admits now.
    ///
    /// # Errors
    /// As [`Governor::next_released`].
    pub(super) fn next_released(
        &mut self,
        lanes: &mut Lanes,
        table: u32,
    ) -> Result<Option<Waiting>, (PeerId, caravan_van::Error)> {
        let shards = self.entries.iter_mut().filter(|entry| entry.number == table);
        for governor in shards.filter_map(|entry| entry.governor.as_mut()) {
            let next = governor.next_released(lanes)?;
            if next.is_some() {
                return Ok(next);
            }
        }
        Ok(None)
    }

    /// Applies a parked push whose lane is gone. Nobody hears of its outcome.
    pub(super) fn apply(&mut self, lanes: &Lanes, waiting: &Waiting) {
        let (table, key) = (waiting.message.table(), waiting.message.range().begin());
        let Ok(entry) = self.find(table, key) else { return };
        if let Err(reason) = apply(lanes.memory(), entry, waiting) {
            let worker = waiting.worker;
            tracing::warn!(worker, reason, "a push of a lost worker cannot be applied");
        }
    }

    /// Enters that a node's last lane is gone. Returns the tables whose parked requests may have
    /// become admissible.
    pub(super) fn lose(&mut self, node: u32) -> Vec<u32> {
        let mut governed = Vec::new();
        for entry in &mut self.entries {
            let Some(governor) = &mut entry.governor else { continue };
            governor.lose(node);
            governed.push(entry.number);
        }
        governed.dedup();
        governed
    }

    /// Stores the values of a push without a copy.
    pub(super) fn adopt(
        &mut self,
        lanes: &mut Lanes,
        peer: PeerId,
        message: Message,
        key: u64,
    ) -> caravan_van::Result<()> {
        let table = message.table();
        let timestamp = message.timestamp();
        let adopted = match self.find(table, key) {
            Ok(entry) => entry
                .shard
                .adopt(key, message.into_values(), lanes.memory())
                .map_err(Trouble::Refused),
            Err(trouble) => Err(trouble),
        };
        match adopted {
            Ok(()) => lanes.answer(peer, timestamp),
            Err(trouble) => answer_trouble(lanes, ReplyTo { peer, table, timestamp }, trouble),
        }
    }

    /// Serves a request that is about a whole table or thread.
    #[inline(never)]
    fn serve_other(
        &mut self,
        lanes: &mut Lanes,
        client: Client,
        message: &mut Message,
        op: Option<Op>,
    ) -> Result<Step, Trouble> {
        let peer = client.peer;
        let mut step = Step::Done;
        op.map_or(Ok(()), |op| self.check_role(peer, op))?;
        match op {
            Some(Op::Create) => {
                let number = self.create(lanes, message)?;
                let shards = self.claims(number);
                post_json(lanes, peer, message, &Created { number, shards })?;
            }
            Some(Op::Drop) => return Ok(Step::Drop),
            Some(Op::Tables) => {
                let of = str::from_utf8(message.values()).map_err(|error| error.to_string())?;
                let within = self.known.iter().filter(|(_, known)| known.spec.is_within(of));
                let pair = |(number, known): (&u32, &Known)| format!("[{number},{}]", known.text);
                let reply = format!("[{}]", within.map(pair).collect::<Vec<_>>().join(","));
                let values = Values::Copied(reply.as_bytes());
                post(lanes, peer, Draft { values, ..answer(Kind::Reply, message) })?;
            }
            Some(Op::Move) => {
                let (table, key) = (message.table(), message.range().begin());
                if self.find(table, key)?.moving.is_some() {
                    return Ok(Step::Hold);
                }
                if self.begin_move(lanes, peer, message)? {
                    return Ok(Step::Done);
                }
                lanes.answer(peer, message.timestamp())?;
            }
            Some(Op::View) => {
                self.enter_view(message)?;
                lanes.answer(peer, message.timestamp())?;
            }
            Some(op @ (Op::Follow | Op::Replicate | Op::Whole)) => {
                return self.serve_follower(lanes, peer, message, op);
            }
            Some(Op::Rows)
                if self.find(message.table(), message.range().begin())?.chain.is_some() =>
            {
                return self.serve_follower(lanes, peer, message, Op::Rows);
            }
            Some(Op::Take) if self.waits_for_marks(message.table(), message.range().begin()) => {
                return Ok(Step::Hold);
            }
            Some(op @ (Op::Take | Op::Rows | Op::Forward | Op::Own | Op::Abandon)) => {
                self.serve_owner(lanes, peer, message, op)?;
                lanes.answer(peer, message.timestamp())?;
                step = Step::Release;
            }
            Some(Op::Mark) => {
                self.mark(message.table(), message.range().begin(), peer);
                lanes.answer(peer, message.timestamp())?;
                step = Step::Release;
            }
            Some(Op::Command) => {
                let (table, key) = (message.table(), message.range().begin());
                self.seek(table, key)?;
                let Tables { entries, chains, owed, last, .. } = self;
                let entry = &mut entries[*last];
                if entry.moving.as_ref().is_some_and(|moving| moving.holds(lanes, false)) {
                    return Ok(Step::Hold);
                }
                let values = message.values();
                let request = Request { values, ..Request::of(message, Op::Command, client.node) };
                if entry.shard.admit(&request) == Admission::Kept {
                    let reply_to = ReplyTo { peer, table, timestamp: message.timestamp() };
                    keep(lanes, (owed, chains), entry, reply_to, &request)?;
                } else {
                    let reply = entry.shard.command(client.node, values)?;
                    let values = Values::Copied(&reply);
                    post(lanes, peer, Draft { values, ..answer(Kind::Reply, message) })?;
                }
            }
            Some(Op::Checkpoint) => match self.serve_checkpoint(lanes, peer, message)? {
                Some(reply) => {
                    let values = Values::Copied(&reply);
                    post(lanes, peer, Draft { values, ..answer(Kind::Reply, message) })?;
                    step = Step::Release;
                }
                None => return Ok(Step::Hold),
            },
            Some(Op::Cost) => {
                let cost = Cost::of_this_thread(&lanes.counters());
                post_json(lanes, peer, message, &cost)?;
            }
            Some(op @ (Op::Join | Op::Clock | Op::Leave | Op::Bound | Op::Fresh)) => {
                let entry = self.find(message.table(), message.range().begin())?;
                let Some(governor) = &mut entry.governor else {
                    let name = &entry.spec.name;
                    return Err(format!("table {name} has no consistency model").into());
                };
                governor.serve(lanes, client, message, op)?;
                step = Step::Release;
            }
            Some(Op::Keys) => return Err("nobody asked for these keys".to_owned().into()),
            _ => return Err(format!("there is no operation {}", message.op()).into()),
        }
        message.advance();
        Ok(step)
    }

    /// Creates a table, unless an equal one exists; returns its number.
    fn create(&mut self, lanes: &Lanes, message: &Message) -> Result<u32, Trouble> {
        let memory = lanes.memory();
        let mut wanted = Known::read(message.values(), memory)?;
        let number = match (message.table(), self.named(&wanted.spec.namespace, wanted.spec.id)) {
            (0, Some(number)) => number,
            (0, None) if self.gives_numbers() => self.numbers.next()?,
            (0, None) => {
                let why = "a table gets its number from the first server thread, not from this one";
                return Err(why.to_owned().into());
            }
            (number, _) => number,
        };
        if let Some(known) = self.known.get_mut(&number) {
            known.check_same(&wanted)?;
            if std::mem::replace(&mut known.is_created, true) {
                return Ok(number);
            }
        }
        if self.numbers.is_dropped(number) {
            return Err(Trouble::Dropped);
        }
        let range = wanted.spec.range().map_err(|error| error.to_string())?;
        let map = wanted.spec.placement.map(range, self.count);
        let map = map.map_err(|error| error.to_string())?;
        let replicas = wanted.spec.replicas;
        self.check_replicas(lanes, &wanted.spec)?;
        let Tables { index, handles, histories, chains, entries, .. } = self;
        let is_own = |shard: &Placed| match replicas {
            0 => shard.server == *index,
            _ => chains.view.chain(shard.server, replicas).any(|thread| thread == *index),
        };
        // Another thread may have asked this one to follow before.
        let is_here = |range: KeyRange| {
            entries.iter().any(|entry| entry.number == number && entry.range == range)
        };
        let own = map.shards().iter().enumerate();
        let own = own.filter(|(_, shard)| is_own(shard) && !is_here(shard.range));
        let mut build = |(place, shard): (usize, &Placed)| {
            let mut entry = wanted.build(number, shard.range, handles, memory)?;
            if replicas > 0 {
                entry.shard.give(shard.range.begin(), 0, &mut Extract::default())?;
                entry.chain = Some(Chain::new(shard.server, replicas, true, memory));
            }
            if let (Some(open), Some(governor), Some(consistency)) =
                (&mut *histories, &mut entry.governor, entry.spec.consistency)
            {
                let out = open((number, place), &entry.spec);
                let recorder = out.and_then(|out| Recorder::new(out, consistency));
                governor.record(recorder.map_err(|error| format!("no history: {error}"))?);
            }
            Ok(entry)
        };
        let new = own.map(&mut build).collect::<Result<Vec<_>, String>>()?;
        wanted.shorten()?;
        wanted.is_created = true;
        let at = self.entries.partition_point(|entry| entry.number < number);
        self.entries.splice(at..at, new);
        self.entries.sort_by_key(|entry| (entry.number, entry.range.begin()));
        self.last = 0;
        self.known.insert(number, wanted);
        self.numbers.note(number);
        self.chains.is_due |= replicas > 0;
        Ok(number)
    }

    /// Drops a table with its rows, if it exists; returns the requests that wait for its model. Its
    /// number is never used again.
    ///
    /// # Errors
    /// If there is no memory to remember that.
    pub(super) fn drop(&mut self, number: u32) -> Result<Vec<Waiting>, String> {
        self.numbers.drop(number)?;
        let mut waiting = Vec::new();
        self.known.remove(&number);
        self.forget_moves(number);
        for entry in self.entries.extract_if(.., |entry| entry.number == number) {
            waiting.extend(entry.governor.into_iter().flat_map(|it| it.into_waiting()));
        }
        self.last = 0;
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
        Ok(waiting)
    }
}

/// Gives a request to a shard that keeps it, with a token.
///
/// # Errors
/// The reason why its table has to answer at once.
#[cold]
#[inline(never)]
fn keep(
    lanes: &mut Lanes,
    (owed, chains): (&mut Owed, &mut Chains),
    entry: &mut Entry,
    reply_to: ReplyTo,
    request: &Request<'_>,
) -> Result<(), String> {
    let Entry { spec, filters, governor, moving, chain, .. } = &*entry;
    let why = [
        (filters.is_some(), "has filters"),
        (governor.is_some(), "has a consistency model"),
        (chain.is_some(), "has replicas"),
        (moving.is_some(), "has a shard that moves or is being read"),
    ];
    if let Some((_, why)) = why.iter().find(|(is_so, _)| *is_so) {
        return Err(format!("table {} {why}, so its handle cannot answer later", spec.name));
    }
    let token = owed.enter(reply_to);
    entry.shard.keep(request, token, &mut owed.answers(lanes));
    chains.broken.append(&mut owed.broken);
    chains.is_due |= !chains.broken.is_empty();
    Ok(())
}

/// Answers a request that was not served.
///
/// # Errors
/// If the lane must be closed.
#[cold]
pub(super) fn answer_trouble(
    lanes: &mut Lanes,
    reply_to: ReplyTo,
    trouble: Trouble,
) -> caravan_van::Result<()> {
    match trouble {
        Trouble::Refused(reason) => refuse(lanes, reply_to, &reason),
        Trouble::Dropped => refuse_dropped(lanes, reply_to),
        Trouble::Lost => {
            let ReplyTo { peer, table, timestamp } = reply_to;
            let op = Op::Lost as u8;
            post(lanes, peer, Draft { op, table, timestamp, ..Draft::new(Kind::Failure) })
        }
        Trouble::Moved(_) => refuse(lanes, reply_to, &trouble.into_reason()),
        Trouble::Lane(error) => Err(error),
    }
}

/// Answers a request with this value as JSON.
fn post_json(
    lanes: &mut Lanes,
    peer: PeerId,
    request: &Message,
    value: &impl Serialize,
) -> Result<(), Trouble> {
    let reply = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    let values = Values::Copied(&reply);
    Ok(post(lanes, peer, Draft { values, ..answer(Kind::Reply, request) })?)
}

/// Checks a request whose values are a block.
#[cold]
fn check_block(op: Op, entry: &Entry) -> Result<(), Trouble> {
    if !op.pushes() {
        return Err(format!("there is no operation {}", op as u8 | FILTERED).into());
    }
    match entry.filters {
        None => Err("its values came filtered, and the table has no filters".to_owned().into()),
        Some(_) => Ok(()),
    }
}
