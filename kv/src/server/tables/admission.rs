//! A table's consistency model beside its shard: it says of each request whether it is executed
//! now, and holds those that wait.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::rc::Rc;

use caravan_van::wire::Kind;
use caravan_van::{Account, Connections, Draft, KeyRange, Message, PeerId, Pool, Values};

use super::versions::{Form, Versions};
use super::{Client, Trouble};
use crate::consistency::{
    Access, Controller, Members, Model, Order, Parked, Standing, VectorClock, Verdict, WaitReason,
};
use crate::filter::List;
use crate::history::Recorder;
use crate::op::{BITS, DISCLOSES, FINISHES, Op};
use crate::refusal::{Refusal, Refused};
use crate::server::Handles;
use crate::server::answer::{ReplyTo, answer, post, refuse};
use crate::server::shard::Request;
use crate::table::{Store, TableSpec};

/// Memory that a request's keys may take in a controller, for each key and besides.
const KEY_BYTES: usize = 256;
const REQUEST_BYTES: usize = 512;

/// Memory of a range of keys whose pushes were applied up to the same iteration.
const SPAN_BYTES: usize = 96;

/// A table's controller and its parked requests.
pub(in crate::server) struct AdmissionController {
    controller: Box<dyn Controller>,
    parked: Parked<Waiting>,
    /// Announcements behind parked requests of their workers.
    announced: Vec<Announced>,
    /// The iterations that workers announce ahead.
    speculation: u64,
    /// Up to which iteration each worker's pushes were applied, if repeats are told from others.
    applied: Option<VectorClock>,
    /// Whether memory grows with the requests, and for each of their keys by how much.
    grows: bool,
    key_bytes: usize,
    /// Charged for that memory.
    memory: Account,
    /// Whether the shard has copies.
    is_copied: bool,
    /// Committed members under BSP with copies: clocks that all replicas have applied. The head of
    /// a chain knows more: a push waits there for clocks, and clocks are records only behind it.
    settled: Option<Members>,
    /// Under data-centric constraints without delay, with copies: what was overwritten last.
    pub(super) versions: Option<Box<Versions>>,
    /// Where executed requests are recorded, if they are.
    pub(super) history: Option<Recorder>,
}

/// A request that waits for the model.
pub(in crate::server) struct Waiting {
    /// `None` if its lane is gone, and nobody wants the answer.
    pub(in crate::server) peer: Option<PeerId>,
    /// Node id of its worker.
    pub(in crate::server) worker: u32,
    pub(in crate::server) message: Message,
    pub(in crate::server) list: Option<Rc<List>>,
}

/// What a worker has said of its clock.
#[derive(Clone, Copy)]
struct Announced {
    worker: u32,
    /// It has finished its iterations below this one; all if it leaves.
    clock: u64,
    /// It has announced its requests for iterations below this one.
    disclosed: u64,
    leaves: bool,
}

/// What becomes of a request.
pub(in crate::server) enum Turn {
    /// It is executed now.
    Now,
    /// It was executed before: it is answered, and not executed again.
    Repeated,
    /// It waits.
    Later(WaitReason),
}

impl Waiting {
    fn access(&self) -> Access<'_> {
        let Waiting { worker, message, list, .. } = self;
        let op = Op::from_raw(message.op() & !BITS);
        Access {
            worker: *worker,
            clock: message.clock(),
            reads: op.is_some_and(Op::pulls),
            writes: op.is_some_and(Op::pushes),
            keys: list.as_ref().map_or(message.keys(), |list| &list.keys),
        }
    }
}

impl AdmissionController {
    /// The admission controller of a shard with these keys, if the table has a model.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(super) fn new(
        spec: &TableSpec,
        range: KeyRange,
        handles: &Handles,
        pool: &Pool,
    ) -> Result<Option<Box<AdmissionController>>, Refused> {
        let Some(consistency) = &spec.consistency else { return Ok(None) };
        let controller = handles.controller(consistency, range, spec.store == Store::Dense);
        let mut memory = Account::new(pool, "the consistency model of a table");
        memory.set(controller.bytes())?;
        let parked = Parked::default();
        let speculation = consistency.speculation();
        let grows = matches!(
            consistency.model,
            Model::SparseSsp { .. } | Model::DataCentric { delay: Some(_), .. }
        );
        let applied = spec.once.then(VectorClock::default);
        let is_settled_late = spec.replicas > 0 && consistency.model == Model::Bsp;
        let settled = is_settled_late.then(|| controller.members().clone());
        let versions = versions(spec, pool).map(Box::new);
        let key_bytes = if grows { KEY_BYTES } else { 0 };
        let announced = Vec::new();
        Ok(Some(Box::new(AdmissionController {
            controller,
            parked,
            announced,
            speculation,
            grows: grows || applied.is_some(),
            applied,
            key_bytes,
            memory,
            is_copied: spec.replicas > 0,
            settled,
            versions,
            history: None,
        })))
    }

    /// Whether an executed request may let parked ones be executed.
    #[inline]
    pub(super) fn releases(&self) -> bool {
        !self.parked.is_empty() && self.controller.releases()
    }

    /// Decides on a request that has just come.
    ///
    /// # Errors
    /// The reason why it can never be executed.
    pub(super) fn arrive(&mut self, request: &Request<'_>) -> Result<Turn, Refused> {
        let &Request { sender: worker, clock, keys, pushes: writes, pulls: reads, .. } = request;
        let access = Access { worker, clock, reads, writes, keys };
        if self.is_applied(&access)? {
            return Ok(Turn::Repeated);
        }
        self.charge(keys.len())?;
        let verdict = self.controller.arrive(&access);
        if verdict == Verdict::Admit {
            if self.releases() {
                self.parked.rewind();
            }
            self.record_executed(&access);
        }
        turn(verdict)
    }

    /// Decides on a request to a shard with copies, each time that it is asked about.
    ///
    /// # Errors
    /// As [`AdmissionController::arrive`].
    pub(super) fn judge(&mut self, access: &Access<'_>) -> Result<Turn, Refused> {
        self.charge(access.keys.len())?;
        let AdmissionController { controller, settled: Some(settled), .. } = self else {
            return match self.controller.arrive(access) {
                Verdict::Previous if self.versions.is_some() => Ok(Turn::Repeated),
                // The same push again was known before.
                Verdict::Repeated => Err(Refusal::Order.because(format!(
                    "worker {} has written these chunks in iteration {} before (push all changes \
                     of a chunk at once)",
                    access.worker, access.clock
                ))),
                verdict => turn(verdict),
            };
        };
        // What a request may do depends on the requests of its worker before it, and not on those
        // behind it.
        std::mem::swap(controller.members_mut(), settled);
        let announced = controller.announce(access);
        std::mem::swap(controller.members_mut(), settled);
        announced?;
        if access.reads && (1..controller.members().slowest()).contains(&access.clock) {
            return Err(Refusal::Order.because(format!(
                "iteration {} has ended, and what its pulls saw is gone with an answer that was lost (pull again in a later one)",
                access.clock
            )));
        }
        turn(controller.admit(access))
    }

    /// At the first thread of a chain: has what a worker says of its clock count for those that
    /// wait for it, before it is an input. Returns whether they may have to wait no longer.
    pub(super) fn foresee(&mut self, op: Op, ends: u8, worker: u32, clock: u64) -> bool {
        if self.settled.is_none() {
            return false;
        }
        let members = self.controller.members_mut();
        match op {
            Op::Clock => members.advance(worker, clock),
            Op::Leave => members.leave(worker),
            _ if ends & FINISHES != 0 => members.advance(worker, clock.saturating_add(1)),
            _ => false,
        }
    }

    /// Forgets what was foreseen of a worker: it says all of it again that was no input.
    pub(super) fn unforesee(&mut self, worker: u32) {
        if let Some(settled) = &self.settled {
            self.controller.members_mut().take_from(settled, worker);
        }
    }

    /// Whether clocks are foreseen, and requests are served in the order of
    /// [`AdmissionController::order`].
    pub(super) fn foresees(&self) -> bool {
        self.settled.is_some()
    }

    /// The place of a request among those that wait for the model.
    pub(super) fn order(&self, op: Op, access: &Access<'_>) -> Order {
        let Access { worker, clock, .. } = *access;
        match op {
            _ if self.settled.is_none() || clock == 0 && op != Op::Leave => Order::default(),
            Op::Command => Order { clock, writes: true, worker },
            Op::Clock => Order { clock: clock.saturating_sub(1), writes: true, worker },
            Op::Leave => Order { clock: u64::MAX, writes: true, worker },
            _ => self.controller.order(access),
        }
    }

    /// The clock of a worker that takes part.
    pub(super) fn clock(&self, worker: u32) -> Option<u64> {
        self.controller.members().clock(worker)
    }

    /// Records a request to a shard with copies that was executed.
    pub(super) fn record_executed(&mut self, access: &Access<'_>) {
        self.history.as_mut().into_iter().for_each(|history| history.executed(access));
    }

    /// Whether copies have to hear of reads.
    pub(super) fn counts_reads(&self) -> bool {
        self.controller.counts_reads()
    }

    /// Records a request that the first thread of the chain has executed.
    pub(super) fn repeat(&mut self, access: &Access<'_>) {
        if self.controller.repeat(access) {
            self.record_executed(access);
        }
    }

    /// Whether what a request waits for is still there.
    pub(super) fn is_blocked(&self, wait_reason: &WaitReason) -> bool {
        self.controller.is_blocked(wait_reason)
    }

    /// What a new copy takes over.
    pub(super) fn standing(&self) -> Standing {
        let mut standing = self.controller.standing();
        if let Some(settled) = &self.settled {
            standing.members.clone_from(settled);
        }
        standing
    }

    /// Takes over what another copy has told. No history of this one would be complete.
    ///
    /// # Errors
    /// If its model has another kind of bound; if there is no memory for it.
    pub(super) fn take(&mut self, standing: Standing) -> Result<(), Refused> {
        if let Some(settled) = &mut self.settled {
            settled.clone_from(&standing.members);
        }
        self.history = None;
        self.controller.take(standing)?;
        self.charge(0)
    }

    /// Whether an admitted request stands for those of its message that follow, which differ from
    /// it in keys and values alone: the model looks at no keys, and nobody records them.
    #[inline]
    pub(super) fn admits_alike(&self) -> bool {
        !self.grows && self.history.is_none()
    }

    /// Whether a push was applied before.
    ///
    /// # Errors
    /// If only a part of it was.
    fn is_applied(&self, access: &Access<'_>) -> Result<bool, Refused> {
        let Access { worker, clock, writes, keys, .. } = *access;
        let (Some(applied), Some(range)) = (&self.applied, range(keys)) else { return Ok(false) };
        if !writes || clock == 0 {
            return Ok(false);
        }
        match applied.behind(worker, range, clock)[..] {
            [] => Ok(true),
            [all] if all == range => Ok(false),
            _ => Err(Refusal::Order.because(format!(
                "worker {worker} has pushed some of the keys {} to {} in iteration {clock} before (push the others alone)",
                range.begin(),
                range.last()
            ))),
        }
    }

    /// Whether it knows of each push whether it was applied before.
    #[inline]
    pub(super) fn knows_repeats(&self) -> bool {
        self.applied.is_some()
    }

    /// Records that a push was applied.
    pub(super) fn applied(&mut self, request: &Request<'_>) {
        if let (Some(applied), Some(range)) = (&mut self.applied, range(request.keys)) {
            applied.advance(request.sender, range, request.clock);
        }
    }

    /// The iteration up to which all pushes to `range` of the workers that take part were applied.
    pub(super) fn freshness(&self, range: KeyRange) -> u64 {
        let members = self.members();
        if !members.is_complete() {
            return 0;
        }
        let applied = self.applied.as_ref().map_or(0, |it| it.least(members.workers(), range));
        applied.max(members.slowest() - 1)
    }

    /// How far the workers are, without what is foreseen.
    fn members(&self) -> &Members {
        self.settled.as_ref().unwrap_or(self.controller.members())
    }

    /// What a checkpoint has to wait for that is to be as of iteration `clock`. What is foreseen of
    /// workers does not count: the pushes before it may still wait.
    ///
    /// # Errors
    /// If that iteration is over.
    pub(super) fn reaches(&self, clock: u64) -> Result<Option<WaitReason>, Refused> {
        match self.members().slowest() {
            u64::MAX => Ok(None), // all have left
            slowest if slowest > clock => Err(Refusal::Order.because(format!(
                "all workers are in iteration {slowest} already, so that iteration {clock} is over"
            ))),
            slowest if slowest < clock => Ok(Some(WaitReason::Slowest(clock))),
            _ => Ok(None),
        }
    }

    /// Charges for what a request of `keys` keys may add to the controller.
    pub(super) fn charge(&mut self, keys: usize) -> Result<(), Refused> {
        if !self.grows {
            return Ok(());
        }
        let spans = self.applied.as_ref().map_or(0, VectorClock::len);
        let most =
            self.controller.bytes() + SPAN_BYTES * spans + self.key_bytes * keys + REQUEST_BYTES;
        if most <= self.memory.bytes() {
            return Ok(());
        }
        self.memory.set(most + most / 4).map_err(Refused::from)
    }

    /// Parks a request that has to wait. If it ends its worker's iteration, that is finished
    /// nevertheless.
    pub(in crate::server) fn park(&mut self, wait_reason: WaitReason, waiting: Waiting) {
        let op = waiting.message.op();
        let worker = waiting.worker;
        let clock = waiting.message.clock();
        let order = self.controller.order(&waiting.access());
        self.parked.park(order, wait_reason, waiting);
        if op & FINISHES != 0 {
            self.finish(worker, clock, op);
        }
    }

    /// The requests that wait.
    pub(super) fn into_waiting(self) -> impl Iterator<Item = Waiting> {
        self.parked.into_requests()
    }

    /// Takes out the next parked request that is to be executed now, and answers those before it
    /// that are not.
    ///
    /// # Errors
    /// The peer of an answer that could not be posted, with the reason.
    pub(in crate::server) fn next_released(
        &mut self,
        lanes: &mut Connections,
    ) -> Result<Option<Waiting>, (PeerId, caravan_van::Error)> {
        while let Some((waiting, verdict)) = self.next() {
            let timestamp = waiting.message.timestamp();
            let table = waiting.message.table();
            // One that has waited may have been repeated meanwhile.
            let turned = turn(verdict).and_then(|turned| match turned {
                Turn::Now if self.is_applied(&waiting.access())? => Ok(Turn::Repeated),
                turned => Ok(turned),
            });
            let answered = match (turned, waiting.peer) {
                (Ok(Turn::Now), _) => {
                    if waiting.access().touches() {
                        self.record_executed(&waiting.access());
                    }
                    return Ok(Some(waiting));
                }
                (_, None) => continue,
                (Ok(_), Some(peer)) => lanes.answer(peer, timestamp).map_err(|e| (peer, e)),
                (Err(reason), Some(peer)) => {
                    let reply_to = ReplyTo { peer, table, timestamp };
                    refuse(lanes, reply_to, &reason).map_err(|e| (peer, e))
                }
            };
            answered?;
        }
        Ok(None)
    }

    /// Takes out the next parked request that need not wait any longer, with what the controller
    /// says of it.
    fn next(&mut self) -> Option<(Waiting, Verdict)> {
        loop {
            let next = self.parked.next(&mut *self.controller, Waiting::access);
            if next.is_some() {
                return next;
            }
            let at = self.announced.iter().position(|announced| !self.has_to_wait(announced))?;
            let announced = self.announced.remove(at);
            self.apply(announced);
        }
    }

    /// Records what a worker says of its clock, as soon as its parked requests allow it.
    fn announce(&mut self, announced: Announced) {
        match self.has_to_wait(&announced) {
            true => self.announced.push(announced),
            false => self.apply(announced),
        }
    }

    fn has_to_wait(&self, announced: &Announced) -> bool {
        let Announced { worker, clock, .. } = *announced;
        self.parked.any(|waiting| {
            let access = waiting.access();
            waiting.worker == worker
                && waiting.message.clock() < clock
                && access.touches()
                && self.controller.precedes_clock(&access)
        })
    }

    fn apply(&mut self, announced: Announced) {
        let Announced { worker, clock, disclosed, leaves } = announced;
        // A copy that serves next has heard of no announcements. Of later iterations those come
        // again that wait; of this one the reads may be answered, and come no more.
        let is_next = self.clock(worker).is_some_and(|own| own < clock);
        let disclosed = if self.is_copied && !is_next { 0 } else { disclosed };
        if let Some(settled) = &mut self.settled {
            match leaves {
                true => settled.leave(worker),
                false => settled.advance(worker, clock),
            };
        }
        if leaves {
            self.controller.leave(worker);
            self.applied.as_mut().into_iter().for_each(|applied| applied.forget(worker));
        } else {
            self.controller.advance(worker, clock, disclosed);
        }
        match &mut self.history {
            Some(history) if leaves => history.left(worker),
            Some(history) => history.advanced(worker, clock),
            None => {}
        }
        self.parked.rewind();
    }

    /// Serves a request about the workers' clocks.
    pub(super) fn serve(
        &mut self,
        lanes: &mut Connections,
        client: Client,
        message: &Message,
        op: Op,
    ) -> Result<(), Trouble> {
        let Client { peer, node } = client;
        let answered = match op {
            Op::Fresh => Some(self.freshness(message.range())),
            _ => self.enter(op, node, message.clock(), message.values())?,
        };
        match answered.map(u64::to_le_bytes) {
            None => lanes.answer(peer, message.timestamp())?,
            Some(clock) => {
                let values = Values::Copied(&clock);
                post(lanes, peer, Draft { values, ..answer(Kind::Reply, message) })?;
            }
        }
        Ok(())
    }

    /// Records what a worker says with one of these operations; returns the clock that it is
    /// answered with, if it is.
    ///
    /// # Errors
    /// If it is invalid; nothing has changed then.
    pub(super) fn enter(
        &mut self,
        op: Op,
        worker: u32,
        clock: u64,
        values: &[u8],
    ) -> Result<Option<u64>, Refused> {
        match op {
            Op::Join => {
                let clock = self.controller.join(worker, clock);
                if let Some(settled) = &mut self.settled {
                    settled.join(worker, clock);
                }
                self.history.as_mut().into_iter().for_each(|it| it.joined(worker, clock));
                self.parked.rewind();
                return Ok(Some(clock));
            }
            Op::Bound => {
                let bound = values.try_into().map(u64::from_le_bytes);
                let bound = bound.map_err(|_| Refusal::Shape.because("a bound has 8 bytes"))?;
                self.controller.set_bound(bound)?;
                self.history.as_mut().into_iter().for_each(|it| it.bounded(bound));
                self.parked.ask_again();
            }
            _ => {
                let leaves = op == Op::Leave;
                let clock = if leaves { u64::MAX } else { clock };
                let disclosed = values.try_into().map_or(0, u64::from_le_bytes);
                self.parked.rewind();
                self.announce(Announced { worker, clock, disclosed, leaves });
            }
        }
        Ok(None)
    }

    /// Records that the worker of a push with this operation has finished iteration `clock`.
    pub(super) fn finish(&mut self, worker: u32, clock: u64, op: u8) {
        let next = clock.saturating_add(1);
        let is_disclosed = op & DISCLOSES != 0;
        let disclosed = if is_disclosed { next.saturating_add(self.speculation) } else { 0 };
        self.announce(Announced { worker, clock: next, disclosed, leaves: false });
    }

    /// Records that a worker died. Its parked requests are dropped, except for those that the model
    /// needs.
    pub(super) fn lose(&mut self, worker: u32) {
        self.announced.retain(|announced| announced.worker != worker);
        let AdmissionController { controller, parked, .. } = self;
        parked.retain(|waiting| {
            if waiting.worker != worker {
                return true;
            }
            waiting.peer = None;
            controller.outlives(&waiting.access())
        });
        self.controller.leave(worker);
        if let Some(history) = &mut self.history {
            history.left(worker);
        }
    }
}

/// Where what was overwritten is kept, if readers of a table may ask for it again.
fn versions(spec: &TableSpec, pool: &Pool) -> Option<Versions> {
    let is_copied = spec.replicas > 0;
    let Model::DataCentric { delay: Some(0), chunk_keys } = spec.consistency?.model else {
        return None;
    };
    let has_lengths = spec.width == 0;
    let bytes = if has_lengths { spec.value.bytes() } else { spec.row_bytes() };
    is_copied.then(|| Versions::new(chunk_keys, Form { bytes, has_lengths }, pool))
}

/// The range from the first to the last key.
fn range(keys: &[u64]) -> Option<KeyRange> {
    KeyRange::new(*keys.first()?, keys.last()?.wrapping_add(1))
}

fn turn(verdict: Verdict) -> Result<Turn, Refused> {
    match verdict {
        Verdict::Admit => Ok(Turn::Now),
        Verdict::Park(wait_reason) => Ok(Turn::Later(wait_reason)),
        Verdict::Repeated => Ok(Turn::Repeated),
        Verdict::Previous => Err(Refusal::Order
            .because("the chunk was read in this iteration before, and has been written since")),
        Verdict::Refuse(violation) => Err(violation.into()),
    }
}
