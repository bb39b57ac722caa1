//! Requests to shards with copies: at the first thread of a chain those of workers, at the others
//! what the thread before has applied.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::{Connections, Message, PeerId};

use super::models::{access, keeps_order, tells_clock};
use super::{Chains, Head, Inputs, Reply, Sender, Unconfirmed, apply};
use crate::consistency::{Access, Admission};
use crate::filter::List;
use crate::op::{DISCLOSES, FINISHES, Op};
use crate::server::answer::ReplyTo;
use crate::server::shard::Request;
use crate::server::tables::admission::{AdmissionController, Turn};
use crate::server::tables::served::all_lost;
use crate::server::tables::{Client, Replica, Step, Tables, Trouble, cut};

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
        judged: Result<(), String>,
    },
}

impl Asked {
    /// What of it changes the shard or its model, if anything does.
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
        list: Option<&List>,
        op: Op,
    ) -> Result<Step, Trouble> {
        let Tables { entries, chains, last, index, .. } = self;
        let entry = &mut entries[*last];
        entry.check_first(chains, *index)?;
        let incarnation = chains.nodes.get(&client.peer).map(|node| node.incarnation);
        while !message.is_empty() {
            let request = Request::of(message, op, client.node).with_record(message, list);
            if list.is_none() && !request.lengths.is_empty() && entry.spec.width > 0 {
                return Ok(Step::Expand);
            }
            entry.check_keys(request.keys)?;
            // A removed server does not reply: clients learn of the removal from the scheduler. A
            // worker asks again on another lane than one that is gone.
            if let Some(incarnation) = incarnation.filter(|_| !chains.view.is_gone(*index)) {
                let timestamp = message.timestamp();
                let asked = Asked {
                    op,
                    ends: message.op() & (FINISHES | DISCLOSES),
                    sender: Sender { node: client.node, incarnation },
                    timestamp,
                    to: ReplyTo { peer: client.peer, table: entry.number, timestamp },
                };
                if let Some(step) =
                    entry.serve_copied(lanes, chains, *index, asked, message, request)?
                {
                    return Ok(step);
                }
            }
            message.advance();
        }
        Ok(Step::Done)
    }

    /// Whether a request to the shard found last, which has copies, has to wait.
    ///
    /// # Errors
    /// If this thread is not the one to serve it.
    pub(in crate::server::tables) fn must_hold(
        &self,
        lanes: &Connections,
    ) -> Result<bool, Trouble> {
        let Tables { entries, chains, last, index, .. } = self;
        entries[*last].check_first(chains, *index)?;
        Ok(entries[*last].chain.as_ref().is_some_and(|chain| chain.holds(chains, lanes, *index)))
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
        let Replica { number, range, chain: Some(chain), shard, .. } = &mut entries[*last] else {
            return;
        };
        let incarnation = chains.nodes.get(&client.peer).map(|node| node.incarnation);
        let (Some(incarnation), false) = (incarnation, chains.view.is_gone(*index)) else {
            return;
        };
        let timestamp = message.timestamp();
        let mark = (Sender { node: client.node, incarnation }, timestamp);
        let inputs = Inputs::of(None, 0, mark, &Request::of(message, Op::Pull, client.node));
        let to = ReplyTo { peer: client.peer, table: *number, timestamp };
        let replies = vec![Reply { to, answer: Ok(None) }];
        let item = Unconfirmed { number: 0, inputs, replies };
        let place = (*number, *range);
        chains.pass_gathered(lanes, chain, &**shard, *index, place);
        chains.pass_parts(lanes, chain, *index, place);
        chains.pass_on(lanes, chain, *index, place, item);
    }

    /// Applies what the thread before this one has applied, and passes it on.
    pub(super) fn serve_replicate(
        &mut self,
        lanes: &mut Connections,
        peer: PeerId,
        message: &mut Message,
    ) -> Result<Step, Trouble> {
        let read = Head::read(message.values());
        let read = read.and_then(|(head, values)| Some((head, head.op()?, head.sender()?, values)));
        let Some((head, (op, ends), sender, values)) = read else {
            return Err("its head is cut off, or it is no input".to_owned().into());
        };
        self.check_lost(head.from as usize)?;
        self.seek(message.table(), message.range().begin())?;
        let Tables { entries, chains, last, index, .. } = self;
        let entry = &mut entries[*last];
        let (keys, lengths) = (message.keys(), message.lengths());
        entry.check_keys(keys)?;
        let place = (entry.number, entry.range);
        let Replica { chain: Some(chain), image, .. } = &mut *entry else {
            return Err("this shard has no copies".to_owned().into());
        };
        if !chain.is_whole && (chain.comes_from != Some(peer) || image.is_some()) {
            return Err("no copy comes from there".to_owned().into());
        }
        if chain.is_whole && chain.holds(chains, lanes, *index) {
            return Ok(Step::Hold);
        }
        let is_whole = chain.is_whole;
        let request = Request { keys, lengths, values, ..Request::of(message, op, sender.node) };
        let timestamp = message.timestamp();
        let mark = (sender, head.timestamp);
        let is_new = op != Op::Pull
            && (!is_whole || !keeps_order(op) || chain.applied.is_new(sender, head.timestamp));
        if is_new && let Err(reason) = entry.repeat(lanes, mark, (op, ends), &request) {
            if let Some(chain) = &mut entry.chain {
                chain.is_whole = false; // it is one no longer
            }
            return Err(reason.into());
        }
        if is_whole && let Some(chain) = &mut entry.chain {
            chains.counters.repeated += u64::from(op != Op::Pull && !is_new);
            let to = ReplyTo { peer, table: place.0, timestamp };
            let item = Unconfirmed {
                number: 0,
                inputs: Inputs::of(is_new.then_some(op), ends, mark, &request),
                replies: vec![Reply { to, answer: Ok(None) }],
            };
            chains.pass_on(lanes, chain, *index, place, item);
        } else {
            lanes.answer(peer, timestamp)?;
        }
        message.advance();
        Ok(Step::Done)
    }
}

impl Replica {
    /// Serves a request at the first thread of its chain, or returns how it has to wait. It goes on
    /// in any case: all copies apply it, or none.
    fn serve_copied(
        &mut self,
        lanes: &mut Connections,
        chains: &mut Chains,
        index: usize,
        asked: Asked,
        message: &Message,
        request: Request<'_>,
    ) -> Result<Option<Step>, Trouble> {
        let Asked { op, ends, sender, timestamp, to } = asked;
        let (mark, place) = ((sender, timestamp), (self.number, self.range));
        let (new, judged) = match self.fate(lanes, chains, index, asked, &request)? {
            Fate::Waits(step) => return Ok(Some(step)),
            Fate::Goes { new, judged } => (new, judged),
        };
        let gathers = new == Some(op) && self.gathers(op);
        if !gathers {
            self.pass_gathered(lanes, chains, index);
        }
        let memory = lanes.memory().clone();
        let decoded = match &mut self.filters {
            Some(filters) if op.pushes() => {
                filters.receive(&self.spec, message, request.keys.len(), &memory)?
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
        let outcome = judged.and_then(|()| self.execute(lanes, mark, (is_input, new), &request));
        let effect = match (&outcome, new) {
            (Err(_), Some(new)) => keeps_order(new).then_some(Op::Refused),
            (_, new) => new,
        };
        let Replica { chain: Some(chain), shard, admission, .. } = self else { return Ok(None) };
        let mut gone = Vec::new();
        if effect == Some(Op::Refused) {
            chain.applied.refuse(sender, timestamp, lanes.credits_max());
            gone = shard.take_gone();
        }
        if let (Some(admission), Some(new)) = (admission.as_mut(), new) {
            if ends & FINISHES != 0 {
                admission.finish(sender.node, request.clock, ends);
            }
            match new {
                Op::Bound => chain.ask_again(),
                // Copies may know less of clocks, so they are told the one that it was given.
                Op::Join => request.clock = admission.clock(sender.node).unwrap_or(request.clock),
                _ => {}
            }
            chains.is_due |= !chain.awaiting.is_empty();
        }
        chains.counters.repeated += u64::from(is_input && new.is_none());
        let answer = outcome.and_then(|()| {
            let admission = admission.as_deref();
            chain.answer_to(&mut **shard, admission, &memory, mark, (op, &request))
        });
        if effect == Some(Op::Refused) {
            request.keys = &gone;
        }
        let inputs = Inputs::of(effect, ends, mark, &request);
        let item = Unconfirmed { number: 0, inputs, replies: vec![Reply { to, answer }] };
        match part {
            _ if gathers && effect == new => {
                chain.gathered.push(item);
                chains.gathered += 1;
                chains.is_due = true;
            }
            Some(part) if effect == new => {
                chains.gather_part(lanes, chain, &**shard, index, place, (part, item));
            }
            _ => {
                chains.pass_gathered(lanes, chain, &**shard, index, place);
                if is_input {
                    chains.pass_parts(lanes, chain, index, place);
                }
                chains.pass_on(lanes, chain, index, place, item);
            }
        }
        Ok(None)
    }

    /// What becomes of a request at the first thread of its chain.
    ///
    /// # Errors
    /// If the shard lets inputs wait.
    fn fate(
        &mut self,
        lanes: &Connections,
        chains: &Chains,
        index: usize,
        asked: Asked,
        request: &Request<'_>,
    ) -> Result<Fate, String> {
        let Asked { op, ends, sender, timestamp, .. } = asked;
        let admission = self.admit_chained(op, request)?;
        let Some(chain) = &self.chain else { return Ok(Fate::Goes { new: None, judged: Ok(()) }) };
        let is_new = |op: &Op| !keeps_order(*op) || chain.applied.is_new(sender, timestamp);
        let new = asked.input().filter(is_new);
        // This comes first: what waits for room must not overtake what waits for the model.
        let is_behind = new.is_some_and(keeps_order) && chain.awaits_earlier(sender, timestamp);
        if !is_behind && chain.holds(chains, lanes, index) {
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
                Err("this worker counts as lost".to_owned())
            }
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
    ) -> Result<(), String> {
        let Replica { chain: Some(chain), shard, admission, moving, .. } = self else {
            return Ok(());
        };
        match new {
            None if is_input => chain.applied.check((sender, timestamp))?,
            None => {}
            Some(new) => {
                chain.applied.charge(sender)?;
                match new {
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
        if (writes || request.pulls)
            && let Some(admission) = admission
        {
            admission.record_executed(&Access { writes, ..access(request) });
        }
        Ok(())
    }

    /// Applies what the thread before this one has applied or refused. A copy that is not whole
    /// hears of the model with the rest; none hears of what is announced.
    fn repeat(
        &mut self,
        lanes: &Connections,
        (sender, timestamp): (Sender, u64),
        (op, ends): (Op, u8),
        request: &Request<'_>,
    ) -> Result<(), String> {
        let Replica { chain: Some(chain), shard, admission, .. } = self else { return Ok(()) };
        let memory = lanes.memory();
        if op == Op::Rows {
            return self.repeat_gathered(request, memory);
        }
        if op == Op::Refused && !request.keys.is_empty() {
            shard.remove(request.keys)?;
        }
        if !chain.is_whole {
            return match tells_clock(op) || op == Op::Refused {
                true => Ok(()),
                false => apply(&mut **shard, None, op, request, memory).map(drop),
            };
        }
        if op == Op::Refused {
            chain.applied.refuse(sender, timestamp, lanes.credits_max());
        } else {
            chain.applied.charge(sender)?;
            let values = if op == Op::Clock { &[] } else { request.values };
            let request = &Request { values, ..*request };
            let answer = apply(&mut **shard, admission.as_deref_mut(), op, request, memory)?;
            match keeps_order(op) {
                true => chain.applied.enter(sender, timestamp, answer),
                false => chain.applied.note(sender),
            }
        }
        let Some(admission) = admission else { return Ok(()) };
        if op == Op::Push {
            admission.record_executed(&access(request));
        }
        if ends & FINISHES != 0 {
            admission.finish(sender.node, request.clock, FINISHES);
        }
        Ok(())
    }

    /// When a request to a shard with copies is executed, as far as the shard says so.
    ///
    /// # Errors
    /// If inputs would have to wait: what comes again is known by the order of inputs.
    fn admit_chained(&self, op: Op, request: &Request<'_>) -> Result<Admission, String> {
        if tells_clock(op) || matches!(op, Op::Fresh | Op::Checkpoint) {
            return Ok(Admission::Now);
        }
        let admission = self.shard.admit(request);
        let is_input = request.pushes || !request.pulls;
        match admission {
            Admission::Kept => self.check_keeps().map(|()| admission),
            Admission::AfterClock(_) if is_input => Err(format!(
                "table {} has replicas, so its handle lets nothing but pulls wait",
                self.spec.name
            )),
            _ => Ok(admission),
        }
    }

    /// Checks that thread `index` is the one to serve requests to this shard.
    fn check_first(&self, chains: &Chains, index: usize) -> Result<(), Trouble> {
        let Some(chain) = &self.chain else { return Ok(()) };
        if !chain.is_whole {
            return Err(all_lost(self.range, &self.spec).into());
        }
        let (begin, last) = (self.range.begin(), self.range.last());
        let name = &self.spec.name;
        match chains.view.chain(chain.first, chain.replicas).next() {
            Some(first) if first != index && !chains.view.is_gone(index) => Err(format!(
                "keys {begin} to {last} of table {name} are served by server thread {first}"
            )
            .into()),
            _ => Ok(()),
        }
    }
}
