//! Consistency models of shards with copies.
//!
//! The first thread of a chain asks the model about each request, and requests wait there alone.
//! One that waited is an input from its turn on: copies apply it without asking. What workers say
//! of their clocks are inputs as well, so that whoever serves next knows how far each has come. A
//! worker's inputs keep their order, since what comes again is known by it; so an input waits
//! behind those of its worker that wait.
//!
//! Under BSP a push waits for the clock that ends its iteration, which its worker announces behind
//! it. So the first thread foresees clocks: they count there for others as soon as they come, and
//! are inputs behind the pushes before them. What waits is served in the order of iterations and
//! ranks, and nothing overtakes it. A thread that serves next knows no clock of a worker whose
//! pushes it lacks, so it waits for both to come again. What waits for room has the same order, as
//! pushes that were released meet reads there that came before.
//!
//! Under data-centric constraints reads are records as well, since a write waits for them. Copies
//! may count one twice, so reads keep no order; but what ends an iteration waits behind the reads
//! of it. `versions.rs` has what a read sees whose answer was lost.
//!
//! A broken lane is no leave: its worker makes it again. The scheduler tells servers which workers
//! are lost, and the first thread of each chain then lets them leave.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::VecDeque;

use caravan_van::Connections;

use super::log::{Awaiter, Effect, LogEntry};
use super::sessions::Sender;
use super::{Chain, Chains};
use crate::consistency::{Access, Order, WaitReason};
use crate::op::{BITS, FINISHES, Op};
use crate::refusal::Refused;
use crate::server::shard::Request;
use crate::server::tables::admission::Turn;
use crate::server::tables::{AdmissionController, Held, Replica, Tables};

/// Stands for the incarnation of a worker in what the scheduler says of it.
const SCHEDULER: u64 = u64::MAX;

/// A request that waits for its table's model.
pub(super) struct Awaiting {
    pub(super) held: Held,
    order: Order,
    /// `None` if an earlier input of its worker waits.
    wait_reason: Option<WaitReason>,
    sender: Sender,
    /// Whether it has to keep its place among its worker's.
    is_input: bool,
    /// Whether it reads or writes in an iteration, so that the model has a place for it among all.
    is_access: bool,
}

/// Whether a worker says something of its clock by this, which all copies hear.
pub(super) fn tells_clock(op: Op) -> bool {
    matches!(op, Op::Join | Op::Clock | Op::Leave | Op::Bound)
}

/// Whether an input keeps its place among its worker's, and is not applied again. A bound may be:
/// it may be what an earlier request of its worker waits for. A read may be counted again.
pub(super) fn keeps_order(op: Op) -> bool {
    !matches!(op, Op::Bound | Op::Pull)
}

/// The iteration below which a request says that its worker has read all, if the model counts that.
pub(super) fn read_below(
    admission: Option<&AdmissionController>,
    op: Op,
    ends: u8,
    clock: u64,
) -> Option<u64> {
    let below = match op {
        Op::Clock => clock,
        Op::Leave => u64::MAX,
        _ if ends & FINISHES != 0 => clock.saturating_add(1),
        _ => return None,
    };
    admission.is_some_and(AdmissionController::counts_reads).then_some(below)
}

/// A request as its table's model sees it.
pub(super) fn access<'a>(request: &Request<'a>) -> Access<'a> {
    let Request { sender: worker, clock, keys, pushes: writes, pulls: reads, .. } = *request;
    Access { worker, clock, reads, writes, keys }
}

impl Chain {
    /// Whether an earlier input of this worker waits for the model, or a read of an iteration below
    /// one that it says it has read.
    pub(super) fn awaits_earlier(
        &self,
        sender: Sender,
        timestamp: u64,
        read_below: Option<u64>,
    ) -> bool {
        let is_earlier = |it: &Awaiting| it.is_before(sender, timestamp, read_below);
        self.awaiting.iter().any(is_earlier)
    }

    /// Lets those requests go that need not wait for the model any longer; returns whether there
    /// were any.
    fn release_awaiting(
        &mut self,
        admission: &AdmissionController,
        released: &mut VecDeque<Held>,
        looks: &mut u64,
    ) -> bool {
        let is_blocked = |it: &Awaiting| it.wait_reason.is_some_and(|it| admission.is_blocked(&it));
        // Where they are served in order, all others wait behind the first, or behind an input of
        // their worker that does.
        if admission.foresees() && self.awaiting.first().is_some_and(is_blocked) {
            *looks += 1;
            return false;
        }
        let before = self.awaiting.len();
        *looks += before as u64;
        for awaiting in std::mem::take(&mut self.awaiting) {
            let Awaiting { sender, ref held, .. } = awaiting;
            let (message, ends) = (&held.message, held.message.op() & BITS);
            let op = op_of(held).unwrap_or(Op::Record);
            let below = read_below(Some(admission), op, ends, message.clock());
            let is_behind =
                awaiting.is_input && self.awaits_earlier(sender, message.timestamp(), below);
            let is_early = awaiting.is_access && self.awaits_lower(awaiting.order);
            match is_behind || is_early || is_blocked(&awaiting) {
                true => self.awaiting.push(awaiting),
                false => released.push_back(awaiting.held),
            }
        }
        self.awaiting.len() < before
    }

    /// Whether a request waits that comes before this one, in the model's order.
    pub(super) fn awaits_lower(&self, order: Order) -> bool {
        self.awaiting.first().is_some_and(|it| it.order < order)
    }

    /// Foresees again what a worker says of its clock in requests that wait.
    pub(super) fn foresee_again(&self, admission: &mut AdmissionController, worker: u32) {
        admission.unforesee(worker);
        for Awaiting { held, sender, .. } in &self.awaiting {
            if let Some(op) = op_of(held).filter(|_| sender.node == worker) {
                admission.foresee(op, held.message.op() & BITS, worker, held.message.clock());
            }
        }
    }

    /// Asks again about all requests that wait for the model.
    pub(super) fn ask_again(&mut self) {
        self.awaiting.iter_mut().for_each(|it| it.wait_reason = None);
    }
}

impl Chains {
    /// Records a request that waits for room in the model's order, and behind earlier inputs of its
    /// lane: a worker that leaves and then goes on begins anew with its clocks.
    pub(super) fn hold_in_order(
        &self,
        admission: &AdmissionController,
        all: &mut VecDeque<Held>,
        held: Held,
    ) {
        let order = self.order(admission, &held);
        let is_input = is_input(&held);
        let is_own = |it: &Held| is_input && it.peer == held.peer && self::is_input(it);
        let behind_own = all.iter().rposition(is_own).map_or(0, |at| at + 1);
        let later = all.iter().position(|it| self.order(admission, it) > order);
        all.insert(later.unwrap_or(all.len()).max(behind_own), held);
    }

    /// The place of a request among those that wait.
    fn order(&self, admission: &AdmissionController, held: &Held) -> Order {
        let Some(op) = op_of(held) else { return Order::default() };
        let worker = self.nodes.get(&held.peer).map_or(0, |node| node.number);
        let (clock, reads, writes) = (held.message.clock(), op.pulls(), op.pushes());
        admission.order(op, &Access { worker, clock, reads, writes, keys: &[] })
    }
}

fn op_of(held: &Held) -> Option<Op> {
    Op::from_raw(held.message.op() & !BITS)
}

/// Whether a request changes a shard or its model.
fn is_input(held: &Held) -> bool {
    !matches!(op_of(held), Some(Op::Pull | Op::Fresh))
}

impl Awaiting {
    fn is_before(&self, sender: Sender, timestamp: u64, read_below: Option<u64>) -> bool {
        let is_due = match self.is_input {
            true => self.held.message.timestamp() < timestamp,
            false => read_below.is_some_and(|below| self.held.message.clock() < below),
        };
        self.sender == sender && is_due
    }
}

impl Replica {
    /// What the table's model says of a request, which is an input or not.
    pub(super) fn judge(&mut self, is_input: bool, request: &Request<'_>) -> Result<Turn, Refused> {
        let access = Access { writes: request.pushes && is_input, ..access(request) };
        match &mut self.admission {
            Some(admission) if access.reads || access.writes => admission.judge(&access),
            _ => Ok(Turn::Now),
        }
    }
}

impl Tables {
    /// Keeps a request to a shard with copies until its table's model lets it go on.
    pub(in crate::server) fn await_model(
        &mut self,
        held: Held,
        node: u32,
        wait_reason: Option<WaitReason>,
    ) {
        let (table, key) = (held.message.table(), held.message.range().begin());
        let incarnation = self.chains.nodes.get(&held.peer).map_or(0, |node| node.incarnation);
        let sender = Sender { node, incarnation };
        self.chains.counters.awaited += 1;
        let (Some(op), Some(at)) = (op_of(&held), self.position(table, key)) else {
            return self.moves.released.push_back(held);
        };
        let Replica { chain: Some(chain), admission, .. } = &mut self.entries[at] else {
            return self.moves.released.push_back(held);
        };
        let order =
            admission.as_deref().map_or(Order::default(), |it| self.chains.order(it, &held));
        let is_input = is_input(&held);
        // A worker that leaves and then goes on begins anew with its clocks.
        let is_own = |it: &&Awaiting| is_input && it.is_input && it.sender == sender;
        let own = chain.awaiting.iter().filter(is_own).map(|it| it.order);
        let order = own.fold(order, Order::max);
        let behind = chain.awaiting.partition_point(|it| it.order <= order);
        let is_access = held.message.clock() > 0 && (op.pulls() || op.pushes());
        let awaiting = Awaiting { held, order, wait_reason, sender, is_input, is_access };
        chain.awaiting.insert(behind, awaiting);
        self.chains.is_due |= admission.as_ref().is_some_and(|it| it.foresees());
    }

    /// Lets lost workers leave the tables that this thread serves first, and requests go on that
    /// waited for a model; returns whether there were any.
    pub(super) fn advance_models(&mut self, lanes: &mut Connections) -> bool {
        let Tables { entries, chains, index, moves, .. } = self;
        let mut is_busy = false;
        for entry in entries {
            let place = (entry.number, entry.range);
            let Replica { chain: Some(chain), admission: Some(admission), shard, .. } = entry
            else {
                continue;
            };
            if !(chain.is_whole && chain.seen(chains, *index).is_first) {
                continue;
            }
            let lost =
                chains.view.workers.iter().filter(|worker| admission.clock(**worker).is_some());
            for worker in lost.copied().collect::<Vec<_>>() {
                if chain.room(chains, lanes, *index) == 0 {
                    chains.is_due = true;
                    break;
                }
                tracing::info!(worker, "a lost worker leaves a table");
                // Nothing is wrong with a leave.
                let _ = admission.enter(Op::Leave, worker, 0, &[]);
                let sender = Sender { node: worker, incarnation: SCHEDULER };
                chain.applied.note(sender);
                let leave = Effect { op: Op::Leave as u8, ..Effect::default() };
                chains.pass_gathered(lanes, chain, &**shard, *index, place);
                let entry = LogEntry::made(sender, leave, Awaiter::Nobody);
                chains.pass_on(lanes, chain, *index, place, entry);
            }
            let looks = &mut chains.counters.looks;
            is_busy |= chain.release_awaiting(admission, &mut moves.released, looks);
        }
        is_busy
    }
}
