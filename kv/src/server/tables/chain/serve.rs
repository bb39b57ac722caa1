//! Requests to shards with copies, at the head of a chain.
//!
//! The records of a message are served one by one. Pushes in a row of which nothing but the request
//! itself goes to the copies are a run: they are one entry of the log, and go on together.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::rc::Rc;

use caravan_van::{Connections, Message, PeerId};

use super::log::{Awaiter, Effect, LogEntry, Records, Reply};
use super::models::{access, keeps_order, read_below, tells_clock};
use super::sessions::Sender;
use super::{Around, Chain, Chains, Link, apply};
use crate::consistency::{Access, Admission};
use crate::filter::List;
use crate::op::{DISCLOSES, FINISHES, Op};
use crate::refusal::{Refusal, Refused};
use crate::server::answer::ReplyTo;
use crate::server::shard::Request;
use crate::server::tables::admission::{AdmissionController, Turn};
use crate::server::tables::served::all_lost;
use crate::server::tables::{Client, Replica, Step, Tables, Trouble, cut};

impl Around<'_> {
    /// Puts the records of a run into the log of their shard.
    pub(super) fn log_run(&mut self, replica: &mut Replica, run: &mut PushRun<'_>) {
        if let Some(entry) = run.take() {
            self.log(replica, true, entry);
        }
    }

    /// Puts records into the log of their shard, behind all that was applied before them.
    pub(super) fn log(&mut self, replica: &mut Replica, is_input: bool, entry: LogEntry) {
        self.pass_gathered(replica);
        let place = (replica.number, replica.range);
        let Some(chain) = &mut replica.chain else { return };
        let Around { lanes, chains, index } = self;
        if is_input && !chain.sums.is_empty() {
            chains.pass_parts(lanes, chain, *index, place);
        }
        chains.pass_on(lanes, chain, *index, place, entry);
    }
}

/// A request of a worker to a shard with copies.
#[derive(Clone, Copy)]
struct Asked {
    op: Op,
    /// The bits of a push that ends its worker's iteration.
    ends: u8,
    sender: Sender,
    timestamp: u64,
    to: ReplyTo,
}

/// What becomes of it.
enum Fate {
    Waits(Step),
    /// What is new of it is executed, unless it is refused.
    Goes {
        new: Option<Op>,
        judged: Result<(), Refused>,
    },
}

/// Records of a message that were applied one behind the other, and are not in the log yet.
pub(super) struct PushRun<'a> {
    /// Their operation for copies, with the bits of a push that ends its worker's iteration.
    op: u8,
    sender: Sender,
    list: Option<&'a Rc<List>>,
    /// Whether they are of a worker, at the head of a chain, or of the thread before this one.
    is_head: bool,
    /// To whom confirmations of them go.
    peer: PeerId,
    /// The message from the first of them on.
    message: Option<Message>,
    count: usize,
    /// How many may be applied, since nothing was put into the log.
    room: Option<usize>,
}

impl<'a> PushRun<'a> {
    pub(super) fn new(
        op: u8,
        sender: Sender,
        list: Option<&'a Rc<List>>,
        is_head: bool,
        peer: PeerId,
    ) -> PushRun<'a> {
        PushRun { op, sender, list, is_head, peer, message: None, count: 0, room: None }
    }

    /// Adds the next record of a message, which was just applied.
    #[inline]
    pub(super) fn add(&mut self, message: &Message) {
        if self.message.is_none() {
            self.message = Some(message.first(usize::MAX));
        }
        self.count += 1;
    }

    /// How many records it may have. `room` says how many may be applied, with those of this run.
    #[inline]
    pub(super) fn room(&mut self, room: impl FnOnce() -> usize) -> usize {
        *self.room.get_or_insert_with(room)
    }

    /// As [`PushRun::room`], whether another record may be applied.
    #[inline]
    pub(super) fn has_room(&mut self, room: impl FnOnce() -> usize) -> bool {
        self.room(room) > self.count
    }

    /// Takes its records out as an entry, if there are any.
    fn take(&mut self) -> Option<LogEntry> {
        self.room = None;
        let message = self.message.take()?.first(std::mem::take(&mut self.count));
        let records = Records::Received { message, list: self.list.cloned(), op: self.op };
        let waiting = match self.is_head {
            true => Awaiter::Worker(self.peer),
            false => Awaiter::Predecessor(self.peer),
        };
        Some(LogEntry::new(self.sender, records, waiting))
    }
}

impl Asked {
    /// What of it changes the shard or its clocks, if anything does.
    fn input(self) -> Option<Op> {
        match self.op {
            Op::Pull | Op::Fresh => None,
            Op::PushPull => Some(Op::Push),
            other => Some(other),
        }
    }
}

impl Tables {
    /// Serves the records of a message to a shard with copies.
    pub(in crate::server::tables) fn serve_chained(
        &mut self,
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        list: Option<&Rc<List>>,
        op: Op,
    ) -> Result<Step, Trouble> {
        let Tables { entries, chains, last, index, .. } = self;
        let entry = &mut entries[*last];
        entry.check_first(chains, *index)?;
        let node = chains.nodes.get(&client.peer);
        let since = entry.chain.as_ref().map_or(0, |chain| chain.since);
        if node.is_some_and(|node| node.heard < since) {
            // It is meant for an earlier time in the chain, from which others have gone back.
            return Err(Trouble::Elsewhere);
        }
        let incarnation = node.map(|node| node.incarnation);
        let is_gone = entry.chain.as_mut().is_none_or(|it| it.seen(chains, *index).is_gone);
        let Some(incarnation) = incarnation.filter(|_| !is_gone) else {
            // A removed server does not reply: clients learn of the removal from the scheduler. A
            // worker asks again on another lane than one that is gone.
            message.pass(usize::MAX);
            return Ok(Step::Done);
        };
        let sender = Sender { node: client.node, incarnation };
        let mut around = Around { lanes, chains, index: *index };
        let ends = message.op() & (FINISHES | DISCLOSES);
        let mut run = PushRun::new(Op::Push as u8 | ends, sender, list, true, client.peer);
        let served = entry.serve_records(&mut around, client, message, op, &mut run);
        around.log_run(entry, &mut run);
        served
    }

    /// Whether a request to the shard found last, which has copies, has to wait.
    ///
    /// # Errors
    /// If this thread is not the one to serve it.
    pub(in crate::server::tables) fn must_hold(
        &mut self,
        lanes: &Connections,
    ) -> Result<bool, Trouble> {
        let Tables { entries, chains, last, index, .. } = self;
        entries[*last].check_first(chains, *index)?;
        Ok(entries[*last]
            .chain
            .as_mut()
            .is_some_and(|chain| chain.room(chains, lanes, *index) == 0))
    }

    /// Answers a request to the shard found last without values, when all copies have what it has
    /// here. A thread that counts as lost answers nothing.
    pub(in crate::server::tables) fn answer_confirmed(
        &mut self,
        lanes: &mut Connections,
        client: Client,
        message: &Message,
    ) {
        let Tables { entries, chains, last, index, .. } = self;
        let entry = &mut entries[*last];
        let incarnation = chains.nodes.get(&client.peer).map(|node| node.incarnation);
        let (Some(incarnation), false) = (incarnation, chains.view.is_gone(*index)) else {
            return;
        };
        let timestamp = message.timestamp();
        let sender = Sender { node: client.node, incarnation };
        let to = ReplyTo { peer: client.peer, table: entry.number, timestamp };
        let waiting = Awaiter::One(Reply { to, answer: Ok(None) });
        let record = LogEntry::made(sender, Effect::nothing(timestamp), waiting);
        Around { lanes, chains, index: *index }.log(entry, true, record);
    }
}

/// Notes what an executed request says of its worker's clock. Copies may know less of clocks, so a
/// worker that joins has the one that it was given.
fn note_clock(
    admission: &mut AdmissionController,
    chain: &mut Chain,
    (sender, ends): (Sender, u8),
    op: Op,
    request: &mut Request<'_>,
) {
    if ends & FINISHES != 0 {
        admission.finish(sender.node, request.clock, ends);
    }
    match op {
        Op::Bound => chain.ask_again(),
        Op::Join => request.clock = admission.clock(sender.node).unwrap_or(request.clock),
        _ => {}
    }
}

impl Replica {
    /// Serves the records of a message up to one that has to wait. Those of a run are in `run`
    /// afterwards, and not in the log.
    ///
    /// # Errors
    /// The reason why the record at hand is refused.
    fn serve_records(
        &mut self,
        around: &mut Around<'_>,
        client: Client,
        message: &mut Message,
        op: Op,
        run: &mut PushRun<'_>,
    ) -> Result<Step, Trouble> {
        let common = Request::of(message, op, client.node);
        let ends = message.op() & (FINISHES | DISCLOSES);
        while !message.is_empty() {
            if op == Op::Push && ends == 0 {
                let pushed = self.push_run(around, common, message, run);
                if let Some(reason) = pushed {
                    self.refuse_run(around, message, run, reason);
                    message.advance();
                    continue;
                }
                if message.is_empty() {
                    break;
                }
            }
            let request = common.with_record(message, run.list.map(|list| &**list));
            if run.list.is_none() && !request.lengths.is_empty() && self.spec.width > 0 {
                return Ok(Step::Expand);
            }
            self.check_keys(request.keys)?;
            let timestamp = message.timestamp();
            let to = ReplyTo { peer: client.peer, table: self.number, timestamp };
            let asked = Asked { op, ends, sender: run.sender, timestamp, to };
            if let Some(step) = self.serve_one(around, asked, message, request, run)? {
                return Ok(step);
            }
            message.advance();
        }
        Ok(Step::Done)
    }

    /// Applies pushes of a message that are new, that need nothing but to be applied, and of which
    /// copies get nothing but the request; up to the first one that is not so, or has no room.
    ///
    /// Returns the reason why that is refused, if it is. Nothing of it was applied then.
    pub(super) fn push_run(
        &mut self,
        around: &Around<'_>,
        common: Request<'_>,
        message: &mut Message,
        run: &mut PushRun<'_>,
    ) -> Option<Refused> {
        let Replica { chain: Some(chain), shard, filters, admission, moving, spec, range, .. } =
            self
        else {
            return None;
        };
        let is_plain = filters.is_none() && admission.is_none() && moving.is_none();
        let waits = !chain.gathered.is_empty() || !chain.awaiting.is_empty();
        let sender = run.sender;
        if !is_plain || waits {
            return None;
        }
        let is_head = run.is_head;
        let may_be_part = is_head && chain.link == Link::Follows && !chain.is_asynchronous;
        let Around { lanes, chains, index } = around;
        let room = run.room(|| chain.room(chains, lanes, *index));
        if run.count >= room || chain.applied.charge(sender).is_err() {
            return None;
        }
        let list = run.list.map(|list| &**list);
        let session = chain.applied.session(sender);
        while !message.is_empty() && run.count < room {
            let request = common.with_record(message, list);
            let has_runs = list.is_none() && !request.lengths.is_empty() && spec.width > 0;
            let is_inside = |key: Option<&u64>| key.is_some_and(|key| range.contains(*key));
            let is_own = is_inside(request.keys.first()) && is_inside(request.keys.last());
            let timestamp = message.timestamp();
            let is_ready = !is_head
                || shard.admit(&request) == Admission::Now
                    && (!may_be_part || shard.part(&request).is_none());
            if has_runs || !is_own || !is_ready || !session.is_new(timestamp) {
                break;
            }
            if let Err(reason) = shard.push(&request, lanes.memory()) {
                return Some(reason);
            }
            session.enter(timestamp);
            run.add(message);
            message.advance();
        }
        None
    }

    /// Puts a push into the log, behind those of a run, that the shard refuses. Copies refuse it,
    /// too.
    fn refuse_run(
        &mut self,
        around: &mut Around<'_>,
        message: &Message,
        run: &mut PushRun<'_>,
        reason: Refused,
    ) {
        around.log_run(self, run);
        let timestamp = message.timestamp();
        let to = ReplyTo { peer: run.peer, table: self.number, timestamp };
        let records = self.refused(around, (run.sender, timestamp), Op::Refused as u8);
        let waiting = Awaiter::One(Reply { to, answer: Err(reason) });
        around.log(self, true, LogEntry::new(run.sender, records, waiting));
    }

    /// Notes that a record was refused, and returns it as copies get it: with the keys of the rows
    /// that it has removed nevertheless.
    fn refused(
        &mut self,
        around: &Around<'_>,
        (sender, timestamp): (Sender, u64),
        op: u8,
    ) -> Records {
        let mut keys = Vec::new();
        if let Some(chain) = &mut self.chain {
            chain.applied.refuse(sender, timestamp, around.lanes.credits_max());
            keys = self.shard.take_gone();
        }
        Records::Made(Box::new(Effect { op, timestamp, keys, ..Effect::default() }))
    }

    /// Serves a request at the head of its chain, or returns how it has to wait. It goes on in any
    /// case: all copies apply it, or none.
    fn serve_one(
        &mut self,
        around: &mut Around<'_>,
        asked: Asked,
        message: &Message,
        request: Request<'_>,
        run: &mut PushRun<'_>,
    ) -> Result<Option<Step>, Trouble> {
        let Asked { op, ends, sender, timestamp, .. } = asked;
        let (new, judged) = match self.fate(around, asked, &request, run)? {
            Fate::Waits(step) => return Ok(Some(step)),
            Fate::Goes { new, judged } => (new, judged),
        };
        let gathers = new == Some(op) && self.gathers(op);
        let is_run = new == Some(Op::Push) && op == Op::Push && !gathers;
        if !is_run {
            around.log_run(self, run);
        }
        if !gathers {
            around.pass_gathered(self);
        }
        let decoded = match &mut self.filters {
            Some(filters) if op.pushes() => {
                let memory = around.lanes.memory();
                filters.receive(&self.spec, message, request.keys.len(), memory)?
            }
            _ => None,
        };
        let mut request = request;
        if let Some(decoded) = &decoded {
            request.values = &decoded.values;
            request.lengths = decoded.lengths.as_deref().unwrap_or(request.lengths);
        }
        let is_input = asked.input().is_some();
        let part = self.part(new, op, &request);
        let mark = (sender, timestamp);
        let outcome =
            judged.and_then(|()| self.execute(around.lanes, mark, (is_input, new), &request));
        let effect = match (&outcome, new) {
            (Err(_), Some(new)) => keeps_order(new).then_some(Op::Refused),
            (_, new) => new,
        };
        let refused = (effect == Some(Op::Refused))
            .then(|| self.refused(around, mark, Op::Refused as u8 | ends));
        let Replica { chain: Some(chain), shard, admission, .. } = self else { return Ok(None) };
        if let (Some(admission), Some(new)) = (admission.as_mut(), new) {
            note_clock(admission, chain, (sender, ends), new, &mut request);
            around.chains.is_due |= !chain.awaiting.is_empty();
        }
        let is_as_judged = effect == new;
        if is_run && is_as_judged && part.is_none() && decoded.is_none() {
            run.add(message);
            return Ok(None);
        }
        around.chains.counters.repeated += u64::from(is_input && new.is_none());
        let answer = outcome.and_then(|()| {
            let (admission, memory) = (admission.as_deref(), around.lanes.memory());
            chain.answer_to(&mut **shard, admission, memory, mark, (op, &request))
        });
        let records = match (refused, effect) {
            (Some(refused), _) => refused,
            (None, Some(effect)) if decoded.is_some() || effect == Op::Join => {
                Records::Made(Box::new(Effect::of(effect, ends, timestamp, &request)))
            }
            (None, effect) => {
                let op = effect.map_or(Op::Record as u8, |effect| effect as u8 | ends);
                Records::Received { message: message.first(1), list: run.list.cloned(), op }
            }
        };
        let record = LogEntry::new(sender, records, Awaiter::One(Reply { to: asked.to, answer }));
        around.log_run(self, run);
        match part {
            _ if gathers && is_as_judged => around.gather(self, record),
            Some(part) if is_as_judged => around.gather_part(self, part, record),
            _ => around.log(self, is_input, record),
        }
        run.room = None;
        Ok(None)
    }

    /// What becomes of a request at the head of its chain, behind those of a run.
    ///
    /// # Errors
    /// If the shard lets inputs wait.
    fn fate(
        &mut self,
        around: &Around<'_>,
        asked: Asked,
        request: &Request<'_>,
        run: &mut PushRun<'_>,
    ) -> Result<Fate, Refused> {
        let Asked { op, ends, sender, timestamp, .. } = asked;
        let admission = self.admit_chained(op, request)?;
        let Around { lanes, chains, index } = around;
        let Some(chain) = &mut self.chain else {
            return Ok(Fate::Goes { new: None, judged: Ok(()) });
        };
        let counts_reads = self.admission.as_ref().is_some_and(|it| it.counts_reads());
        let counted = (op == Op::Pull && counts_reads).then_some(Op::Pull);
        let new = asked.input().or(counted);
        let new = new.filter(|op| !keeps_order(*op) || chain.applied.is_new(sender, timestamp));
        // This comes first: what waits for room must not overtake what waits for the model.
        let below = read_below(self.admission.as_deref(), op, ends, request.clock);
        let is_behind =
            new.is_some_and(keeps_order) && chain.awaits_earlier(sender, timestamp, below);
        if !is_behind && !run.has_room(|| chain.room(chains, lanes, *index)) {
            return Ok(Fate::Waits(Step::Hold));
        }
        if let (Some(admission), Some(new)) = (&mut self.admission, new) {
            admission.foresee(new, ends, sender.node, request.clock);
        }
        let has_turn = |admission: &AdmissionController| {
            let access = access(request);
            let order = admission.order(op, &access);
            !(access.reads || access.writes && new.is_some()) || !chain.awaits_lower(order)
        };
        if is_behind || !self.admission.as_deref().is_none_or(has_turn) {
            return Ok(Fate::Waits(Step::Await(None)));
        }
        if let Admission::AfterClock(clock) = admission {
            return Ok(Fate::Waits(Step::Park(clock)));
        }
        let judged = match self.judge(new.is_some(), request) {
            Ok(Turn::Later(wait_reason)) => return Ok(Fate::Waits(Step::Await(Some(wait_reason)))),
            Ok(_) if op == Op::Join && chains.view.workers.contains(&sender.node) => {
                Err(Refusal::Draining.because("this worker counts as lost"))
            }
            // A read that was counted, whose answer was lost.
            Ok(Turn::Repeated) => return Ok(Fate::Goes { new: None, judged: Ok(()) }),
            judged => judged.map(drop),
        };
        Ok(Fate::Goes { new, judged })
    }

    /// Executes what is `new` of a request here.
    ///
    /// # Errors
    /// The reason why it is refused, now or when it came for the first time.
    fn execute(
        &mut self,
        lanes: &Connections,
        (sender, timestamp): (Sender, u64),
        (is_input, new): (bool, Option<Op>),
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let Replica { chain: Some(chain), shard, admission, moving, .. } = self else {
            return Ok(());
        };
        match new {
            None if is_input => chain.applied.check((sender, timestamp))?,
            None => {}
            Some(new) => {
                chain.applied.charge(sender)?;
                match new {
                    _ if moving.is_none() => {}
                    Op::Push => cut::keep(moving, &mut **shard, request.keys),
                    Op::Checkpoint => cut::spoil(moving, "another checkpoint"),
                    Op::Command if shard.changes_rows(request.values) => {
                        cut::spoil(moving, "a command");
                    }
                    _ => {}
                }
                let admission = admission.as_deref_mut();
                let answer = apply(&mut **shard, admission, new, request, lanes.memory())?;
                match keeps_order(new) {
                    true => chain.applied.enter(sender, timestamp, answer),
                    false => chain.applied.note(sender),
                }
            }
        }
        let writes = request.pushes && new.is_some();
        if let Some(admission) = admission
            && (writes || request.pulls && (new.is_some() || !admission.counts_reads()))
        {
            admission.record_executed(&Access { writes, ..access(request) });
        }
        Ok(())
    }

    /// When a request to a shard with copies is executed, as far as the shard says so.
    ///
    /// # Errors
    /// If inputs would have to wait: what comes again is known by the order of inputs.
    fn admit_chained(&self, op: Op, request: &Request<'_>) -> Result<Admission, Refused> {
        if tells_clock(op) || matches!(op, Op::Fresh | Op::Checkpoint) {
            return Ok(Admission::Now);
        }
        let admission = self.shard.admit(request);
        let is_input = request.pushes || !request.pulls;
        match admission {
            Admission::Kept => self.check_keeps().map(|()| admission),
            Admission::AfterClock(_) if is_input => Err(Refusal::Unsupported.because(format!(
                "table {} has replicas, so its handle lets nothing but pulls wait",
                self.spec.name
            ))),
            _ => Ok(admission),
        }
    }

    /// Checks that thread `index` is the one to serve requests to this shard.
    fn check_first(&mut self, chains: &Chains, index: usize) -> Result<(), Trouble> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let seen = chain.seen(chains, index);
        if seen.is_placed && !(seen.is_first || seen.is_gone) {
            return Err(Trouble::Elsewhere);
        }
        if !chain.is_whole {
            return Err(all_lost(self.range, &self.spec).into());
        }
        if seen.is_first || seen.is_gone {
            return Ok(());
        }
        let Some(first) = chains.view.chain(chain.of).next() else {
            return Ok(());
        };
        let (begin, last) = (self.range.begin(), self.range.last());
        let name = &self.spec.name;
        Err(Refusal::NotHead
            .because(format!(
                "keys {begin} to {last} of table {name} are served by server thread {first}"
            ))
            .into())
    }
}
