//! A server thread's shards: finds the shard of a request and serves it, record by record.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

mod admission;
mod chain;
mod cut;
mod filtered;
mod image;
mod moving;
mod numbers;
mod outcome;
mod replica;
mod served;
mod versions;
mod whole;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::rc::Rc;

use caravan_van::wire::Offer;
use caravan_van::{Connections, KeyRange, Message, PeerId, Pool};

use self::admission::Turn;
pub(super) use self::admission::{AdmissionController, Waiting};
pub use self::chain::ChainCounters;
use self::chain::Chains;
pub(super) use self::chain::{RETRY, serve_forwarded};
use self::filtered::{apply, serve_filtered};
pub(super) use self::moving::Held;
pub(crate) use self::moving::{Destination, SentBack};
pub use self::moving::{MoveCounters, MoveStep, ShardStep};
use self::moving::{Moves, forward, send_back};
use self::numbers::Numbers;
use self::outcome::answer_trouble;
pub(super) use self::outcome::{Admitted, Client, Step, Trouble};
use self::replica::Known;
pub(super) use self::replica::Replica;
pub(crate) use self::served::Served;
pub(super) use self::served::logs;
use self::served::missing_copy;
pub use self::served::{Copies, LogStep};
use super::answer::{ReplyTo, answer_pull, place_pull};
use super::handle::Handles;
use super::owed::Owed;
use super::shard::Request;
use crate::consistency::Admission;
use crate::filter::{FILTERED, List};
use crate::op::{BITS, FINISHES, Op};
use crate::refusal::{Refusal, Refused};
use crate::table::TableSpec;

/// All tables, and one thread's shards of them.
pub(super) struct Tables {
    /// This thread's place among all server threads.
    index: usize,
    /// Number of the server threads that have founded the cluster; those that have joined since
    /// have places behind them.
    count: usize,
    handles: Handles,
    /// Opens the histories of tables with a model, if they are recorded.
    pub(super) histories: Option<Box<OpenHistory>>,
    /// All tables, by number.
    known: BTreeMap<u32, Known>,
    /// The shards of this thread, sorted by table and keys.
    entries: Vec<Replica>,
    numbers: Numbers,
    moves: Moves,
    chains: Chains,
    owed: Owed,
    /// Shards that have left this thread, since that was asked last.
    pub(super) left: Vec<(u32, KeyRange)>,
    /// Index of the last request's shard; the next request is probably for it, too.
    last: usize,
}

/// Opens the history of a shard, by its table's number and its place there.
pub(super) type OpenHistory = dyn FnMut((u32, usize), &TableSpec) -> io::Result<Box<dyn Write>>;

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
            left: Vec::new(),
            last: 0,
        }
    }

    /// Index of the shard that has `key` of this table, if it is here.
    fn position(&self, number: u32, key: u64) -> Option<usize> {
        let is_before = |entry: &Replica| (entry.number, entry.range.last()) < (number, key);
        let at = self.entries.partition_point(is_before);
        self.entries.get(at).filter(|entry| entry.has(number, key)).map(|_| at)
    }

    /// The shard that has `key` of this table, if it is here.
    pub(super) fn get(&self, number: u32, key: u64) -> Option<&Replica> {
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

    fn find(&mut self, id: u32, key: u64) -> Result<&mut Replica, Trouble> {
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
        if let Some(trouble) = missing_copy(self, number, key) {
            return trouble;
        }
        Trouble::Refused(match self.known.get(&number) {
            None if self.index >= self.count => Refusal::Lost.because(format!(
                "the shard of key {key} of table number {number} is lost: this thread has joined \
                 later, and was given no copy before the others were lost"
            )),
            None => Refusal::Unsupported
                .because(format!("table number {number} is unknown here (create it first)")),
            Some(known) => Refusal::Key
                .because(format!("key {key} of table {} is not this thread's", known.spec.name)),
        })
    }

    /// The number of the table with this id in its namespace, if there is one.
    pub(super) fn named(&self, namespace: &str, id: u32) -> Option<u32> {
        let is_it = |known: &Known| known.spec.id == id && known.spec.namespace == namespace;
        self.known.iter().find(|(_, known)| is_it(known)).map(|(number, _)| *number)
    }

    /// The shards of a table that are here.
    pub(super) fn of(&self, number: u32) -> impl Iterator<Item = &Replica> {
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
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        list: Option<&Rc<List>>,
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
                    send_back(lanes, peer, message, list.map(|list| &**list), to)?;
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
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        list: Option<&Rc<List>>,
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
    /// [`AdmissionController::park`].
    #[inline(never)]
    fn serve_last(
        &mut self,
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        list: Option<&Rc<List>>,
        admitted: Admitted,
    ) -> Result<Step, Trouble> {
        let Some(Op::Push) = Op::from_raw(message.op() & !BITS) else {
            return Err(Refusal::Unsupported
                .because(format!("there is no operation {}", message.op()))
                .into());
        };
        let (clock, raw) = (message.clock(), message.op());
        let (table, key) = (message.table(), message.range().begin());
        if self.find(table, key)?.chain.is_some() {
            return self.serve_chained(lanes, client, message, list, Op::Push);
        }
        let served = self.serve_op(lanes, client, message, list, admitted, Op::Push);
        if !matches!(served, Ok(Step::Govern(_) | Step::Park(_) | Step::Expand | Step::Hold))
            && let Some(admission) = &mut self.find(table, key)?.admission
        {
            admission.finish(client.node, clock, raw);
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
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        list: Option<&Rc<List>>,
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
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        list: Option<&Rc<List>>,
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
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        list: Option<&Rc<List>>,
        admitted: Admitted,
        op: Op,
    ) -> Result<Step, Trouble> {
        let (peer, table) = (client.peer, message.table());
        let Tables { entries, moves, chains, owed, last, .. } = self;
        let entry = &mut entries[*last];
        if message.op() & FILTERED != 0 {
            check_block(op, entry)?;
        }
        let list = list.map(|list| &**list);
        let rows = list.map(|list| &list.rows);
        let common = Request { rows, ..Request::of(message, op, client.node) };
        let has_offers = message.has_offers();
        let is_own = entry.range.contains(message.range().last());
        let is_owned = !MOVES && may_adopt(message, entry);
        let mut is_admitted = admitted != Admitted::No || entry.admission.is_none();
        let has_filters = entry.filters.is_some();
        while !message.is_empty() {
            let request = common.with_record(message, list);
            if list.is_none() && !request.lengths.is_empty() && entry.spec.width > 0 {
                return Ok(Step::Expand);
            }
            if !is_own {
                entry.check_keys(request.keys)?;
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
            if !is_admitted && let Some(admission) = &mut entry.admission {
                match admission.arrive(&request)? {
                    Turn::Now => is_admitted = admission.admits_alike(),
                    Turn::Later(wait_reason) => return Ok(Step::Govern(wait_reason)),
                    Turn::Repeated => {
                        lanes.answer(peer, message.timestamp())?;
                        message.advance();
                        continue;
                    }
                }
            }
            if has_filters && !passes(entry, message) {
                serve_filtered(lanes, entry, peer, message, request, &mut moves.counters)?;
                message.advance();
                continue;
            }
            if is_owned && entry.shard.adopts(&request) {
                return Ok(Step::Adopt(request.keys[0]));
            }
            if op.pushes() {
                push_rows::<MOVES>(lanes, entry, &mut moves.counters, &request)?;
            }
            let timestamp = message.timestamp();
            if op == Op::Push {
                lanes.answer(peer, timestamp)?;
            } else {
                let offer = if has_offers { message.offer() } else { None };
                pull_rows(lanes, entry, ReplyTo { peer, table, timestamp }, offer, &request)?;
            }
            message.advance();
        }
        match &entry.admission {
            Some(admission) if admission.releases() => Ok(Step::Release),
            _ => Ok(Step::Done),
        }
    }

    /// The model of the shard that has `key` of a table, if it has one.
    pub(super) fn admission(&mut self, table: u32, key: u64) -> Option<&mut AdmissionController> {
        self.find(table, key).ok()?.admission.as_deref_mut()
    }

    /// Takes out the next parked request of a table that its model admits now.
    ///
    /// # Errors
    /// As [`AdmissionController::next_released`].
    pub(super) fn next_released(
        &mut self,
        lanes: &mut Connections,
        table: u32,
    ) -> Result<Option<Waiting>, (PeerId, caravan_van::Error)> {
        let shards = self.entries.iter_mut().filter(|entry| entry.number == table);
        for admission in shards.filter_map(|entry| entry.admission.as_mut()) {
            let next = admission.next_released(lanes)?;
            if next.is_some() {
                return Ok(next);
            }
        }
        Ok(None)
    }

    /// Applies a parked push whose lane is gone. Nobody hears of its outcome.
    pub(super) fn apply(&mut self, lanes: &Connections, waiting: &Waiting) {
        let (table, key) = (waiting.message.table(), waiting.message.range().begin());
        let Ok(entry) = self.find(table, key) else { return };
        if let Err(reason) = apply(lanes.memory(), entry, waiting) {
            let worker = waiting.worker;
            tracing::warn!(worker, %reason, "a push of a lost worker cannot be applied");
        }
    }

    /// Records that a node's last lane is gone. Returns the tables whose parked requests may have
    /// become admissible.
    pub(super) fn lose(&mut self, node: u32) -> Vec<u32> {
        let mut governed = Vec::new();
        for entry in &mut self.entries {
            // Others may have heard of a worker with copies of its shard: the scheduler tells.
            let Some(admission) = entry.admission.as_mut().filter(|_| entry.chain.is_none()) else {
                continue;
            };
            admission.lose(node);
            governed.push(entry.number);
        }
        governed.dedup();
        governed
    }

    /// Stores the values of a push without a copy.
    pub(super) fn adopt(
        &mut self,
        lanes: &mut Connections,
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
}

/// Whether a message bypasses the filters of its table.
fn passes(entry: &mut Replica, message: &Message) -> bool {
    entry.filters.as_mut().is_none_or(|filters| filters.pass(message))
}

/// Whether a shard may adopt the values of a push. They must be memory that the message owns: lent
/// memory goes back to the worker, and a frame may hold several messages.
#[inline(always)]
fn may_adopt(message: &Message, entry: &Replica) -> bool {
    message.op() == Op::Push as u8
        && message.owns_values()
        && entry.admission.as_ref().is_none_or(|admission| !admission.knows_repeats())
}

/// Pushes the rows of a request, and forwards them where the shard moves.
#[inline(always)]
fn push_rows<const MOVES: bool>(
    lanes: &mut Connections,
    entry: &mut Replica,
    counters: &mut MoveCounters,
    request: &Request<'_>,
) -> Result<(), Trouble> {
    if MOVES {
        cut::keep(&mut entry.moving, &mut *entry.shard, request.keys);
    }
    entry.push(request, lanes.memory())?;
    if MOVES {
        let shard = (entry.number, entry.range);
        let applied = entry.shard.applied(request);
        forward(lanes, &mut entry.moving, counters, shard, &applied)?;
    }
    Ok(())
}

/// Answers a pull, into memory that its worker has offered if there is an offer.
#[inline(always)]
fn pull_rows(
    lanes: &mut Connections,
    entry: &mut Replica,
    reply_to: ReplyTo,
    offer: Option<Offer>,
    request: &Request<'_>,
) -> Result<(), Trouble> {
    if let Some(filters) = &mut entry.filters {
        filters.passed.sent += (request.keys.len() * entry.spec.row_bytes()) as u64;
    }
    match offer {
        None => answer_pull(lanes, &mut *entry.shard, reply_to, request)?,
        Some(offer) => place_pull(lanes, &mut *entry.shard, reply_to, offer, request)?,
    }
    Ok(())
}

/// Gives a request to a shard that keeps it, with a token.
///
/// # Errors
/// The reason why its table has to answer at once.
#[cold]
#[inline(never)]
fn keep(
    lanes: &mut Connections,
    (owed, chains): (&mut Owed, &mut Chains),
    entry: &mut Replica,
    reply_to: ReplyTo,
    request: &Request<'_>,
) -> Result<(), Refused> {
    entry.check_keeps()?;
    let token = owed.enter(reply_to);
    entry.shard.keep(request, token, &mut owed.answers(lanes));
    chains.broken.append(&mut owed.broken);
    chains.is_due |= !chains.broken.is_empty();
    Ok(())
}

/// Checks a request whose values are a block.
#[cold]
fn check_block(op: Op, entry: &Replica) -> Result<(), Trouble> {
    if !op.pushes() {
        return Err(Refusal::Unsupported
            .because(format!("there is no operation {}", op as u8 | FILTERED))
            .into());
    }
    match entry.filters {
        None => Err(Refusal::Unsupported
            .because("its values came filtered, and the table has no filters")
            .into()),
        Some(_) => Ok(()),
    }
}
