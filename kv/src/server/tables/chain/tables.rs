//! What the tables of a thread do for the chains of their shards: requests, what the thread before
//! passes on, confirmations, and the look after chains between them.

use caravan_van::wire::{Hello, Kind};
use caravan_van::{Endpoint, KeyRange, Lanes, Message, PeerId};

use super::{
    Chain, ChainCounters, Chains, Copies, Follow, Head, Inputs, Lane, Link, Node, Posted, Reply,
    Sender, Unconfirmed, apply,
};
use crate::consistency::Admission;
use crate::filter::List;
use crate::node::{Role, is_client};
use crate::op::{Asker, Op};
use crate::server::answer::ReplyTo;
use crate::server::shard::Request;
use crate::server::tables::image::Incoming;
use crate::server::tables::{Client, Entry, Held, Known, Step, Tables, Trouble};
use crate::table::TableSpec;
use crate::view::View;

impl Tables {
    /// Remembers which start of its node is at the other end of a lane, and its role.
    pub(in crate::server) fn greet(&mut self, peer: PeerId, hello: &Hello) {
        let node = Node { incarnation: hello.incarnation.get(), role: hello.role };
        self.chains.nodes.insert(peer, node);
        self.chains.is_due = true;
    }

    pub(in crate::server) fn chains(&self) -> ChainCounters {
        self.chains.counters
    }

    /// How far the copies of this thread's shards are.
    pub(in crate::server) fn copies(&self) -> Copies {
        let Tables { entries, chains, index, .. } = self;
        let mut copies = Copies { lost: chains.view.lost.len(), ..Copies::default() };
        for entry in entries {
            let Some(chain) = &entry.chain else { continue };
            let lacks = || chain.lacks_copy(chains, *index, (entry.number, entry.range));
            copies.coming += usize::from(!chain.is_whole && chain.comes_from.is_some());
            copies.missing += usize::from(chain.is_whole && lacks());
        }
        copies
    }

    /// Enters what a worker knows of the server threads.
    pub(in crate::server::tables) fn enter_view(
        &mut self,
        message: &Message,
    ) -> Result<(), Trouble> {
        let view: View =
            serde_json::from_slice(message.values()).map_err(|error| error.to_string())?;
        view.check(self.count)?;
        self.join_view(&view);
        Ok(())
    }

    /// Adds what another view has; returns whether this thread did not know all of it.
    pub(in crate::server) fn join_view(&mut self, view: &View) -> bool {
        let is_new = self.chains.view.join(view);
        self.chains.is_due |= is_new;
        is_new
    }

    /// Checks that the node of a lane has proved a role that may ask for this.
    ///
    /// # Errors
    /// If servers alone ask for it, and this is none; or workers and drivers alone, which the
    /// scheduler tells.
    pub(in crate::server::tables) fn check_role(&self, peer: PeerId, op: Op) -> Result<(), String> {
        let role = self.chains.nodes.get(&peer).map_or(0, |node| node.role);
        match op.asker() {
            Asker::Client if !is_client(role) => {
                Err(format!("{op:?} comes from workers and drivers alone, and this is neither"))
            }
            Asker::Server if Role::of(role) != Some(Role::Server) => {
                Err(format!("{op:?} comes from servers alone, and this is none"))
            }
            _ => Ok(()),
        }
    }

    /// Serves the records of a message to a shard with copies.
    pub(in crate::server::tables) fn serve_chained(
        &mut self,
        lanes: &mut Lanes,
        client: Client,
        message: &mut Message,
        list: Option<&List>,
        op: Op,
    ) -> Result<Step, Trouble> {
        let Tables { entries, chains, last, index, .. } = self;
        let entry = &mut entries[*last];
        entry.check_first(chains, *index)?;
        let place = (entry.number, entry.range);
        let incarnation = chains.nodes.get(&client.peer).map_or(0, |node| node.incarnation);
        let sender = Sender { node: client.node, incarnation };
        while !message.is_empty() {
            let mut request = Request::of(message, op, client.node).with_record(message, list);
            if list.is_none() && !request.lengths.is_empty() && entry.spec.width > 0 {
                return Ok(Step::Expand);
            }
            entry.check_keys(request.keys)?;
            let admission = entry.admit_chained(&request)?;
            let Entry { chain: Some(chain), shard, spec, filters, .. } = &mut *entry else {
                return Ok(Step::Done);
            };
            if chains.view.lost.contains(index) {
                // Whoever asks this thread hears from its own watch that it is lost.
                message.advance();
                continue;
            }
            if chain.holds(chains, lanes, *index) {
                return Ok(Step::Hold);
            }
            if let Admission::AfterClock(clock) = admission {
                return Ok(Step::Park(clock));
            }
            let memory = lanes.memory().clone();
            let decoded = match filters {
                Some(filters) if op.pushes() => {
                    filters.receive(spec, message, request.keys.len(), &memory)?
                }
                _ => None,
            };
            if let Some(decoded) = &decoded {
                request.values = &decoded.values;
                request.lengths = decoded.lengths.as_deref().unwrap_or(request.lengths);
            }
            let timestamp = message.timestamp();
            let input = match op {
                Op::Pull => None,
                Op::Command => Some(Op::Command),
                _ => Some(Op::Push),
            };
            let new = input.filter(|_| chain.applied.is_new(sender, timestamp));
            let mark = (sender, timestamp);
            let outcome = match new {
                None if input.is_none() => Ok(()),
                None => chain.applied.check(mark),
                Some(new) => {
                    let charged = chain.applied.charge(sender);
                    let applied =
                        charged.and_then(|()| apply(&mut **shard, new, &request, &memory));
                    applied
                        .map(|answer| chain.applied.enter(sender, timestamp, answer))
                        .inspect_err(|_| {
                            chain.applied.refuse(sender, timestamp, lanes.credits_max())
                        })
                }
            };
            let effect = if outcome.is_ok() { new } else { new.map(|_| Op::Refused) };
            chains.counters.repeated += u64::from(input.is_some() && new.is_none());
            let to = ReplyTo { peer: client.peer, table: place.0, timestamp };
            let answer =
                outcome.and_then(|()| chain.answer_to(&mut **shard, &memory, mark, &request));
            // It goes on in any case: all copies have applied it, or none.
            let reply = Some(Reply { to, answer });
            let inputs = Inputs::of(effect, sender, timestamp, &request);
            chains.pass_on(lanes, chain, *index, place, Unconfirmed { number: 0, inputs, reply });
            message.advance();
        }
        Ok(Step::Done)
    }

    /// Serves a request of the thread before this one in a chain.
    pub(in crate::server::tables) fn serve_follower(
        &mut self,
        lanes: &mut Lanes,
        peer: PeerId,
        message: &mut Message,
        op: Op,
    ) -> Result<Step, Trouble> {
        match op {
            Op::Follow => {
                let is_whole = self.follow(lanes, peer, message)?;
                let values = [u8::from(is_whole)];
                lanes.reply(peer, message.table(), message.timestamp(), &values)?;
            }
            Op::Replicate => return self.serve_replicate(lanes, peer, message),
            _ => {
                self.seek(message.table(), message.range().begin())?;
                let Tables { entries, chains, last, .. } = self;
                let entry = &mut entries[*last];
                entry.check_keys(message.keys())?;
                if entry.chain.as_ref().is_none_or(|chain| chain.comes_from != Some(peer)) {
                    return Err("no copy comes from there".to_owned().into());
                }
                if op == Op::Rows {
                    entry.take(message, lanes.memory())?;
                } else if let Some(chain) = &mut entry.chain {
                    Incoming::check(entry.image.as_deref())?;
                    chain.applied.take(message.values())?;
                    chain.is_whole = true;
                    chain.comes_from = None;
                    chains.is_due = true;
                }
                lanes.answer(peer, message.timestamp())?;
            }
        }
        message.advance();
        Ok(Step::Done)
    }

    /// Makes room for a copy, unless there is one; returns whether it is whole.
    fn follow(&mut self, lanes: &Lanes, peer: PeerId, message: &Message) -> Result<bool, Trouble> {
        let (number, range) = (message.table(), message.range());
        let Follow { table, from, first } =
            serde_json::from_slice(message.values()).map_err(|error| error.to_string())?;
        self.check_lost(from)?;
        if let Some(at) = self.position(number, range.begin()) {
            match &self.entries[at].chain {
                Some(chain) if chain.is_whole => return Ok(true),
                Some(_) => drop(self.entries.remove(at)),
                None => return Err("this shard has no copies".to_owned().into()),
            }
        }
        let replicas = self.make_room(lanes, (number, range), &table)?.replicas;
        let mut chain = Chain::new(first, replicas, false, lanes.memory());
        chain.comes_from = Some(peer);
        let entry = self.find(number, range.begin())?;
        entry.image = Incoming::of(&*entry.shard, lanes.memory());
        entry.chain = Some(chain);
        Ok(false)
    }

    fn check_lost(&mut self, from: usize) -> Result<(), Trouble> {
        if !self.chains.view.lost.contains(&from) {
            return Ok(());
        }
        self.chains.counters.refused += 1;
        Err(Trouble::Lost)
    }

    /// Applies what the thread before this one has applied, and passes it on.
    fn serve_replicate(
        &mut self,
        lanes: &mut Lanes,
        peer: PeerId,
        message: &mut Message,
    ) -> Result<Step, Trouble> {
        let read = Head::read(message.values());
        let read = read.and_then(|(head, values)| Some((head, head.op()?, head.sender()?, values)));
        let Some((head, op, sender, values)) = read else {
            return Err("its head is cut off, or it is no input".to_owned().into());
        };
        self.check_lost(head.from as usize)?;
        self.seek(message.table(), message.range().begin())?;
        let Tables { entries, chains, last, index, .. } = self;
        let entry = &mut entries[*last];
        let (keys, lengths) = (message.keys(), message.lengths());
        entry.check_keys(keys)?;
        let place = (entry.number, entry.range);
        let Entry { chain: Some(chain), shard, image, .. } = entry else {
            return Err("this shard has no copies".to_owned().into());
        };
        if !chain.is_whole && (chain.comes_from != Some(peer) || image.is_some()) {
            return Err("no copy comes from there".to_owned().into());
        }
        if chain.is_whole && chain.holds(chains, lanes, *index) {
            return Ok(Step::Hold);
        }
        let request = Request { keys, lengths, values, ..Request::of(message, op, sender.node) };
        let timestamp = message.timestamp();
        let does = op != Op::Pull;
        let is_new = does && (!chain.is_whole || chain.applied.is_new(sender, head.timestamp));
        let mut answer = None;
        if is_new && op != Op::Refused {
            let charged = if chain.is_whole { chain.applied.charge(sender) } else { Ok(()) };
            match charged.and_then(|()| apply(&mut **shard, op, &request, lanes.memory())) {
                Ok(applied) => answer = applied,
                Err(reason) => {
                    chain.is_whole = false; // it is one no longer
                    return Err(reason.into());
                }
            }
        }
        if !chain.is_whole {
            lanes.answer(peer, timestamp)?;
        } else {
            match op {
                Op::Refused if is_new => {
                    chain.applied.refuse(sender, head.timestamp, lanes.credits_max());
                }
                _ if is_new => chain.applied.enter(sender, head.timestamp, answer),
                _ => {}
            }
            chains.counters.repeated += u64::from(does && !is_new);
            let to = ReplyTo { peer, table: place.0, timestamp };
            let item = Unconfirmed {
                number: 0,
                inputs: Inputs::of(is_new.then_some(op), sender, head.timestamp, &request),
                reply: Some(Reply { to, answer: Ok(None) }),
            };
            chains.pass_on(lanes, chain, *index, place, item);
        }
        message.advance();
        Ok(Step::Done)
    }

    /// Enters answers of a thread that follows; returns false if `peer` is not one.
    pub(in crate::server) fn enter_confirmed(
        &mut self,
        lanes: &mut Lanes,
        peer: PeerId,
        message: &mut Message,
    ) -> bool {
        let is_it = |lane: &&usize| self.chains.lanes[*lane].peer == Some(peer);
        let Some(server) = self.chains.lanes.keys().find(is_it).copied() else { return false };
        while !message.is_empty() {
            let number = message.timestamp();
            let lane = self.chains.lanes.entry(server).or_default();
            if let Some(at) = lane.posted.iter().position(|it| it.number == number)
                && let Some(posted) = lane.posted.remove(at)
            {
                self.enter_confirmation(lanes, posted, server, message);
            }
            message.advance();
        }
        self.chains.is_due = true;
        true
    }

    fn enter_confirmation(
        &mut self,
        lanes: &mut Lanes,
        posted: Posted,
        server: usize,
        message: &Message,
    ) {
        let Some(at) = self.position(posted.table, posted.begin) else { return };
        let Tables { entries, chains, index, .. } = self;
        let Entry { range, chain: Some(chain), shard, .. } = &mut entries[at] else { return };
        if chain.next != Some(server) {
            return;
        }
        if message.kind() == Kind::Failure {
            if message.op() == Op::Lost as u8 {
                tracing::warn!("this server thread counts as lost: it serves no longer");
                chains.view.lost.insert(*index);
                return;
            }
            let reason = String::from_utf8_lossy(message.values());
            tracing::warn!(server, %reason, first = range.begin(), "a copy cannot be kept there");
            return chain.fail(lanes, &mut chains.broken);
        }
        match (posted.op, &mut chain.link) {
            (Op::Follow, link @ Link::Asked) if message.values() == [1] => *link = Link::Follows,
            (Op::Follow, Link::Asked) => {
                match chain.begin_copy(&**shard, range.begin(), lanes.memory()) {
                    Ok(()) => chain.answer_all(lanes, &mut chains.broken),
                    Err(reason) => {
                        tracing::warn!(server, reason, "a shard cannot be copied");
                        chain.fail(lanes, &mut chains.broken);
                    }
                }
            }
            (Op::Rows, Link::Copies { unanswered, .. }) => {
                *unanswered = unanswered.saturating_sub(1);
            }
            (Op::Replicate, Link::Follows) => {
                while chain.posted > 0
                    && let Some(item) =
                        chain.unconfirmed.pop_front_if(|item| item.number <= posted.number)
                {
                    chain.posted -= 1;
                    let reply = item.reply;
                    reply.into_iter().for_each(|it| it.send(lanes, &mut chains.broken));
                }
            }
            _ => {}
        }
    }

    /// Lets threads follow that have to; returns whether anything was done.
    pub(in crate::server) fn advance_chains(&mut self, endpoint: &mut Endpoint) -> bool {
        if !std::mem::take(&mut self.chains.is_due) {
            return false;
        }
        let mut is_busy = false;
        let mut broken = Vec::new();
        if self.chains.view.lost.contains(&self.index) {
            return false;
        }
        let Tables { entries, chains, index, known, moves, .. } = self;
        for entry in entries {
            let (number, range) = (entry.number, entry.range);
            let Some(chain) = entry.chain.as_mut().filter(|chain| chain.is_whole) else { continue };
            let next = chains.view.next(chain.first, chain.replicas, *index);
            if chain.next != next {
                chain.turn_to(next);
            }
            if let Some(server) = next {
                // That thread creates an equal copy by itself, with the table.
                if chain.is_unused()
                    && chains.view.was_in_chain(chain.first, chain.replicas, server)
                {
                    continue;
                }
                if !chains.reach(endpoint, server) {
                    continue;
                }
                let behind = chains.view.behind(chain.first, chain.replicas, *index);
                let text = known.get(&number).map_or("", |known| known.text.as_str());
                let mut counters = chains.counters;
                let Some(mut way) = chains.way(&mut endpoint.lanes, next, *index, (number, range))
                else {
                    continue;
                };
                while way.lane.peer.is_some_and(|peer| way.lanes.credits(peer) >= behind.max(1)) {
                    let piece_bytes = moves.piece_bytes;
                    let copies = matches!(chain.link, Link::Copies { .. });
                    match chain.advance(
                        &mut way,
                        &mut *entry.shard,
                        text,
                        piece_bytes,
                        &mut counters,
                    ) {
                        Ok(true) if copies => {
                            is_busy = true; // other work comes first
                            break;
                        }
                        Ok(true) => is_busy = true,
                        Ok(false) => break,
                        Err(reason) => {
                            tracing::warn!(server, reason, "a shard cannot be copied");
                            chain.fail(way.lanes, &mut broken);
                        }
                    }
                }
                chains.counters = counters;
                chains.is_due |= is_busy;
            } else {
                chain.answer_all(&mut endpoint.lanes, &mut chains.broken);
            }
            if !chain.held.is_empty() {
                let mut held = std::mem::take(&mut chain.held);
                if chain.holds(chains, &endpoint.lanes, *index) {
                    chain.held = held;
                } else {
                    moves.released.append(&mut held);
                }
            }
        }
        self.chains.is_due |= !broken.is_empty();
        self.chains.broken.append(&mut broken);
        is_busy
    }

    /// Takes the lanes on which an answer could not be sent.
    pub(in crate::server) fn take_broken(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.chains.broken)
    }

    /// Whether this thread numbers the tables: it is the first that is not lost.
    pub(in crate::server::tables) fn gives_numbers(&self) -> bool {
        (0..self.index).all(|thread| self.chains.view.lost.contains(&thread))
    }

    /// Checks that there are servers, and room on their lanes, for the copies of a table.
    pub(in crate::server::tables) fn check_replicas(
        &self,
        lanes: &Lanes,
        spec: &TableSpec,
    ) -> Result<(), String> {
        let TableSpec { ref name, replicas, .. } = *spec;
        let most = self.chains.view.processes().saturating_sub(1);
        let credits = usize::from(lanes.credits_max());
        match replicas as usize {
            0 => Ok(()),
            wanted if wanted > most => Err(format!(
                "table {name} cannot have {wanted} replicas beside its shards: there is room for {most}, one on each other server"
            )),
            wanted if wanted >= credits => Err(format!(
                "table {name} cannot have {wanted} replicas with {credits} credits: raise CARAVAN_CREDITS"
            )),
            _ => Ok(()),
        }
    }

    /// Keeps a request until the next thread is ready.
    pub(in crate::server::tables) fn hold_for_chain(
        &mut self,
        at: usize,
        held: Held,
    ) -> Option<Held> {
        let Some(chain) = &mut self.entries[at].chain else { return Some(held) };
        self.chains.counters.held += 1;
        self.chains.is_due = true;
        chain.held.push_back(held);
        None
    }

    /// Forgets what chains keep for a lost peer.
    pub(in crate::server::tables) fn forget_in_chains(&mut self, peer: PeerId) {
        let Tables { entries, chains, .. } = self;
        chains.nodes.remove(&peer);
        let mut lost = None;
        for (server, lane) in &mut chains.lanes {
            if lane.peer == Some(peer) {
                *lane = Lane { was_lost: true, ..Lane::default() };
                lost = Some(*server);
            }
        }
        for chain in entries.iter_mut().filter_map(|entry| entry.chain.as_mut()) {
            chain.forget(peer);
            if lost.is_some() && chain.next == lost {
                chain.turn_to(lost);
            }
        }
        chains.is_due = true;
    }

    /// Takes out the requests to a table that were served or kept, and are not answered.
    pub(in crate::server) fn unanswered(&mut self, table: u32) -> Vec<ReplyTo> {
        let of = self.entries.iter_mut().filter(|entry| entry.number == table);
        let items = of.filter_map(|entry| entry.chain.as_mut()).flat_map(|chain| {
            self.moves.released.append(&mut chain.held);
            chain.unconfirmed.drain(..)
        });
        let unconfirmed = items.filter_map(|item| item.reply).map(|reply| reply.to);
        unconfirmed.chain(self.owed.take_of(table)).collect()
    }

    /// A new shard of a table of which another thread tells.
    pub(in crate::server::tables) fn make_room(
        &mut self,
        lanes: &Lanes,
        (number, range): (u32, KeyRange),
        text: &str,
    ) -> Result<&TableSpec, Trouble> {
        let mut wanted = Known::read(text.as_bytes(), lanes.memory())?;
        if self.numbers.is_dropped(number) {
            return Err(Trouble::Dropped);
        }
        if let Some(known) = self.known.get(&number) {
            known.check_same(&wanted)?;
        }
        let overlaps =
            |entry: &Entry| entry.number == number && entry.range.intersect(range).is_some();
        if self.entries.iter().any(overlaps) {
            return Err("some of its keys are here already".to_owned().into());
        }
        let entry = wanted.build(number, range, &self.handles, lanes.memory())?;
        wanted.shorten()?;
        let before = |entry: &Entry| (entry.number, entry.range.begin()) < (number, range.begin());
        self.entries.insert(self.entries.partition_point(before), entry);
        self.last = 0;
        self.numbers.note(number);
        Ok(&self.known.entry(number).or_insert(wanted).spec)
    }
}

impl Entry {
    /// When a request to a shard with copies is executed.
    ///
    /// # Errors
    /// If inputs would have to wait: what comes again is known by the order of inputs.
    fn admit_chained(&self, request: &Request<'_>) -> Result<Admission, String> {
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
        let (begin, last) = (self.range.begin(), self.range.last());
        let name = &self.spec.name;
        if !chain.is_whole {
            return Err(
                format!("all copies of keys {begin} to {last} of table {name} are lost").into()
            );
        }
        match chains.view.chain(chain.first, chain.replicas).next() {
            Some(first) if first != index && !chains.view.lost.contains(&index) => Err(format!(
                "keys {begin} to {last} of table {name} are served by server thread {first}"
            )
            .into()),
            _ => Ok(()),
        }
    }
}
