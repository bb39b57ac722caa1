//! What the tables of a thread do for the chains of their shards beside their requests: copies that
//! come, confirmations, and the look after chains between them.

use std::collections::VecDeque;

use caravan_van::wire::{Hello, Kind};
use caravan_van::{Connections, Endpoint, KeyRange, Message, PeerId, Pool};

use super::leaving::leave_chains;
use super::{
    Chain, ChainCounters, Chains, Follow, Lane, Link, Node, Posted, Rest, Standpoint, is_next,
};
use crate::membership::{ChainMember, ChainOf, Membership};
use crate::node::{Role, is_client};
use crate::op::{Asker, Op};
use crate::refusal::{Refusal, Refused};
use crate::server::answer::ReplyTo;
use crate::server::tables::image::Incoming;
use crate::server::tables::versions::VERSIONS;
use crate::server::tables::{Held, Known, Replica, Step, Tables, Trouble};
use crate::table::TableSpec;

impl Tables {
    /// Remembers which start of its node is at the other end of a lane, and its role.
    pub(in crate::server) fn greet(&mut self, peer: PeerId, hello: &Hello) {
        let (number, incarnation) = (hello.node.get(), hello.incarnation.get());
        let node = Node { number, incarnation, role: hello.role, thread: None, heard: 0 };
        self.chains.nodes.insert(peer, node);
        self.chains.is_due = true;
    }

    /// Number of lanes of workers and drivers.
    pub(in crate::server) fn clients(&self) -> usize {
        self.chains.nodes.values().filter(|node| is_client(node.role)).count()
    }

    pub(in crate::server) fn chains(&self) -> ChainCounters {
        self.chains.counters
    }

    /// Records what a worker knows of the server threads.
    pub(in crate::server::tables) fn enter_view(
        &mut self,
        peer: PeerId,
        message: &Message,
        memory: &Pool,
    ) -> Result<(), Trouble> {
        let view: Membership = serde_json::from_slice(message.values())?;
        view.check(self.count).map_err(|why| Refusal::Shape.because(why))?;
        self.join_view(&view, memory);
        if let Some(node) = self.chains.nodes.get_mut(&peer) {
            node.heard = view.events.len() as u64;
        }
        Ok(())
    }

    /// Adds what another view has; returns whether this thread did not know all of it.
    pub(in crate::server) fn join_view(&mut self, view: &Membership, memory: &Pool) -> bool {
        let heard = self.chains.view.events.len();
        let is_new = self.chains.view.join(view);
        if is_new {
            self.chains.note_view();
        }
        self.inherit(heard, memory);
        self.own_from_lost();
        is_new
    }

    /// Checks that the node of a lane has proved a role that may ask for this.
    ///
    /// # Errors
    /// If servers alone ask for it, and this is none; or workers and drivers alone, which the
    /// scheduler tells.
    pub(in crate::server::tables) fn check_role(
        &self,
        peer: PeerId,
        op: Op,
    ) -> Result<(), Refused> {
        let role = self.chains.nodes.get(&peer).map_or(0, |node| node.role);
        match op.asker() {
            Asker::Client if !is_client(role) => Err(Refusal::Unsupported.because(format!(
                "{op:?} comes from workers and drivers alone, and this is neither"
            ))),
            Asker::Server if Role::of(role) != Some(Role::Server) => Err(Refusal::Unsupported
                .because(format!("{op:?} comes from servers alone, and this is none"))),
            _ => Ok(()),
        }
    }

    /// Serves a request of the thread before this one in a chain.
    pub(in crate::server::tables) fn serve_follower(
        &mut self,
        lanes: &mut Connections,
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
            _ => {
                self.seek(message.table(), message.range().begin())?;
                let Tables { entries, chains, last, .. } = self;
                let entry = &mut entries[*last];
                entry.check_keys(message.keys())?;
                let chain = entry.chain.as_ref();
                if chain.is_none_or(|chain| chain.comes_from != Some(peer)) {
                    let is_placed = chain.is_some_and(|it| chains.view.has_entry(it.of));
                    let why = || Refusal::Internal.because("no copy comes from there").into();
                    return Err(if is_placed { Trouble::Elsewhere } else { why() });
                }
                if op == Op::Rows && message.command() == VERSIONS {
                    take_versions(entry, message)?;
                } else if op == Op::Rows {
                    entry.take(message, lanes.memory())?;
                } else if let Some(chain) = &mut entry.chain {
                    Incoming::check(entry.image.as_deref())?;
                    let rest = serde_json::from_slice(message.values());
                    let Rest { applied, model } = rest?;
                    chain.applied.take(applied)?;
                    if let (Some(admission), Some(model)) = (&mut entry.admission, model) {
                        admission.take(model)?;
                    }
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

    /// Makes room for a copy, unless there is one; returns whether it is whole, as one is to which
    /// nothing was ever done.
    fn follow(
        &mut self,
        lanes: &mut Connections,
        peer: PeerId,
        message: &Message,
    ) -> Result<bool, Trouble> {
        let (number, range) = (message.table(), message.range());
        let Follow { table, from, of, is_unused, view } = serde_json::from_slice(message.values())?;
        if (of.table, of.begin) != (number, range.begin()) {
            let (ChainOf { table, begin, .. }, key) = (of, range.begin());
            return Err(Refusal::Shape.because(format!(
                "it asks to follow the shard from key {begin} of table number {table} by a message \
                 about that from key {key} of number {number}"
            )).into());
        }
        if let Some(view) = view {
            view.check(self.count).map_err(|why| Refusal::Shape.because(why))?;
            self.join_view(&view, lanes.memory());
        }
        self.check_lost(from)?;
        leave_chains(self, lanes);
        self.chains.check_before(of, from, self.index)?;
        if let Some(node) = self.chains.nodes.get_mut(&peer) {
            node.thread = Some(from);
        }
        if let Some(at) = self.position(number, range.begin()) {
            match &self.entries[at].chain {
                Some(chain) if chain.is_whole => return Ok(true),
                Some(_) => drop(self.entries.remove(at)),
                None => {
                    return Err(Refusal::Unsupported.because("this shard has no copies").into());
                }
            }
        }
        let spec = self.make_room(lanes, (number, range), &table)?;
        let mut chain = Chain::new((of, 0), spec, is_unused, lanes.memory());
        chain.since = self.chains.view.since(of, self.index);
        let entry = self.find(number, range.begin())?;
        if !is_unused {
            chain.comes_from = Some(peer);
            entry.image = Incoming::of(&*entry.shard, lanes.memory());
        }
        entry.chain = Some(chain);
        Ok(is_unused)
    }

    pub(super) fn check_lost(&mut self, from: usize) -> Result<(), Trouble> {
        if !self.chains.view.is_gone(from) {
            return Ok(());
        }
        self.chains.counters.refused += 1;
        Err(Trouble::Lost)
    }

    /// Records answers of a thread that follows; returns false if `peer` is not one.
    pub(in crate::server) fn enter_confirmed(
        &mut self,
        lanes: &mut Connections,
        peer: PeerId,
        message: &mut Message,
    ) -> bool {
        let is_it = |lane: &&usize| self.chains.lanes[*lane].peer == Some(peer);
        let Some(server) = self.chains.lanes.keys().find(is_it).copied() else { return false };
        while !message.is_empty() {
            let op = Op::from_raw(message.op());
            if matches!(op, Some(Op::Record | Op::Lost | Op::Follow)) {
                self.enter_acknowledged(lanes, server, message);
                continue;
            }
            let number = message.timestamp();
            let lane = self.chains.lanes.entry(server).or_default();
            if let Some(at) = lane.posted.iter().position(|it| it.number == number)
                && let Some(posted) = lane.posted.remove(at)
            {
                self.enter_confirmation(lanes, posted, server, message);
                self.chains.is_due = true;
            }
            message.advance();
        }
        let Chains { broken, awaits_room, .. } = &self.chains;
        self.chains.is_due |= *awaits_room || !broken.is_empty();
        true
    }

    /// Records that the next thread has acknowledged the next records of a shard, or has refused
    /// one.
    fn enter_acknowledged(
        &mut self,
        lanes: &mut Connections,
        server: usize,
        message: &mut Message,
    ) {
        let (place, count) = ((message.table(), message.range()), message.len());
        let is_failure = message.kind() == Kind::Failure;
        self.chains.is_due |= is_failure;
        if is_failure && message.op() == Op::Lost as u8 {
            self.chains.count_as_lost(self.index);
        } else if let Some(at) = self.position(place.0, place.1.begin())
            && let Replica { chain: Some(chain), .. } = &mut self.entries[at]
            && is_next(chain.next, server)
        {
            let chains = &mut self.chains;
            // What was posted before the last message of a copy is not in the log.
            let is_of_copy = chains.lanes.get(&server).is_some_and(|lane| lane.completes(place));
            if is_failure {
                chain.enter_refusal(message, (server, place), lanes, &mut chains.broken);
            } else if chain.link == Link::Follows && !is_of_copy {
                chain.log.acknowledge(count, place, lanes, &mut chains.broken);
            }
        }
        message.pass(count);
    }

    /// Records the answer to a message about a shard as a whole.
    fn enter_confirmation(
        &mut self,
        lanes: &mut Connections,
        posted: Posted,
        server: usize,
        message: &Message,
    ) {
        let Some(at) = self.position(posted.table, posted.begin) else { return };
        let Tables { entries, chains, .. } = self;
        let Replica { number, range, chain: Some(chain), shard, admission, .. } = &mut entries[at]
        else {
            return;
        };
        let place = (*number, *range);
        if !is_next(chain.next, server) {
            return;
        }
        if message.kind() == Kind::Failure {
            return chain.enter_refusal(message, (server, place), lanes, &mut chains.broken);
        }
        match (posted.op, &mut chain.link) {
            (Op::Follow, link @ Link::Asked) if message.values() == [1] => *link = Link::Follows,
            (Op::Follow, Link::Asked) => {
                let versions = admission.as_mut().and_then(|it| it.versions.as_mut());
                versions.into_iter().for_each(|versions| versions.begin());
                match chain.begin_copy(&**shard, range.begin(), lanes.memory()) {
                    Ok(()) => chain.answer_all(place, lanes, &mut chains.broken),
                    Err(reason) => {
                        tracing::warn!(server, %reason, "a shard cannot be copied");
                        chain.fail(place, lanes, &mut chains.broken);
                    }
                }
            }
            (Op::Rows, Link::Copies { unanswered, .. }) => {
                *unanswered = unanswered.saturating_sub(1);
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
        if self.chains.view.is_gone(self.index) {
            return false;
        }
        leave_chains(self, &mut endpoint.lanes);
        is_busy |= self.advance_models(&mut endpoint.lanes);
        self.chains.awaits_room = false;
        let Tables { entries, chains, index, count, known, moves, .. } = self;
        for entry in entries {
            let (number, range) = (entry.number, entry.range);
            let Some(chain) = entry.chain.as_mut().filter(|chain| chain.is_whole) else { continue };
            let Standpoint { next, behind, .. } = chain.seen(chains, *index);
            if chain.next != next {
                chain.turn_to(next);
            }
            if let Some(ChainMember { thread: server, .. }) = next {
                // Whoever drops the table tells only founders, and those of which they know.
                if server >= *count
                    && let Some(known) = known.get_mut(&number)
                {
                    known.elsewhere.insert(server);
                }
                // That thread creates an equal copy by itself, with the table.
                if chain.is_unused() && chains.view.was_in_chain(chain.of, server) {
                    continue;
                }
                if !chains.reach(endpoint, server) {
                    continue;
                }
                let text = known.get(&number).map_or("", |known| known.text.as_str());
                let mut counters = chains.counters;
                let place = (number, range);
                let way = chains.way(&mut endpoint.lanes, next, *index, place, behind);
                let Some(mut way) = way else { continue };
                while way.room() > 0 {
                    let piece_bytes = moves.piece_bytes;
                    let copies = matches!(chain.link, Link::Copies { .. });
                    let shard = &mut *entry.shard;
                    let admission = entry.admission.as_deref_mut();
                    let advanced =
                        chain.advance(&mut way, shard, admission, text, piece_bytes, &mut counters);
                    match advanced {
                        Ok(true) if copies => {
                            is_busy = true; // other work comes first
                            break;
                        }
                        Ok(true) => is_busy = true,
                        Ok(false) => break,
                        Err(reason) => {
                            tracing::warn!(server, %reason, "a shard cannot be copied");
                            chain.fail((number, range), way.lanes, &mut broken);
                        }
                    }
                }
                chains.counters = counters;
                chains.is_due |= is_busy;
            } else {
                let place = (number, range);
                chain.answer_all(place, &mut endpoint.lanes, &mut chains.broken);
            }
            release_held(chain, chains, &endpoint.lanes, *index, &mut moves.released);
            chains.awaits_room |= !chain.held.is_empty() || !chain.log.is_posted();
        }
        self.chains.is_due |= !broken.is_empty();
        self.chains.broken.append(&mut broken);
        is_busy
    }

    /// Takes the lanes on which an answer could not be sent.
    pub(in crate::server) fn take_broken(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.chains.broken)
    }

    /// Whether this thread numbers the tables.
    pub(in crate::server::tables) fn gives_numbers(&self) -> bool {
        self.chains.view.catalogue_owner() == self.index
    }

    /// Checks that there are servers, and room on their lanes, for the copies of a table.
    pub(in crate::server::tables) fn check_replicas(
        &self,
        lanes: &Connections,
        spec: &TableSpec,
    ) -> Result<(), Refused> {
        let TableSpec { ref name, replicas, .. } = *spec;
        let most = self.chains.view.processes().saturating_sub(1);
        let credits = usize::from(lanes.credits_max());
        match replicas as usize {
            0 => Ok(()),
            wanted if wanted > most => Err(Refusal::Shape.because(format!(
                "table {name} cannot have {wanted} replicas beside its shards: there is room for {most}, one on each other server"
            ))),
            wanted if wanted >= credits => Err(Refusal::Shape.because(format!(
                "table {name} cannot have {wanted} replicas with {credits} credits: raise CARAVAN_CREDITS"
            ))),
            _ => Ok(()),
        }
    }

    /// Keeps a request until the next thread is ready.
    pub(in crate::server::tables) fn hold_for_chain(
        &mut self,
        at: usize,
        held: Held,
    ) -> Option<Held> {
        let Replica { chain: Some(chain), admission, .. } = &mut self.entries[at] else {
            return Some(held);
        };
        self.chains.counters.held += 1;
        self.chains.is_due = true;
        let admission = admission.as_deref().filter(|admission| admission.foresees());
        match admission.filter(|_| held.message.origin().is_none()) {
            None => chain.held.push_back(held),
            Some(admission) => self.chains.hold_in_order(admission, &mut chain.held, held),
        }
        None
    }

    /// Forgets what chains keep for a lost peer.
    pub(in crate::server::tables) fn forget_in_chains(&mut self, peer: PeerId) {
        let Tables { entries, chains, .. } = self;
        let node = chains.nodes.remove(&peer);
        let mut lost = None;
        for (server, lane) in &mut chains.lanes {
            if lane.peer == Some(peer) {
                *lane = Lane { was_lost: true, ..Lane::default() };
                lost = Some(*server);
            }
        }
        for entry in entries {
            let Replica { chain: Some(chain), admission, .. } = entry else { continue };
            chain.forget(peer);
            if let (Some(admission), Some(node)) = (admission, &node) {
                chain.foresee_again(admission, node.number);
            }
            if lost.is_some_and(|lost| is_next(chain.next, lost)) {
                chain.turn_to(chain.next);
            }
        }
        chains.is_due = true;
    }

    /// Takes out the requests to a table that were served or kept, and are not answered.
    pub(in crate::server) fn unanswered(&mut self, table: u32) -> Vec<ReplyTo> {
        let of = self.entries.iter_mut().filter(|entry| entry.number == table);
        let items = of.filter_map(|entry| entry.chain.as_mut()).flat_map(|chain| {
            self.moves.released.append(&mut chain.held);
            self.moves.released.extend(chain.awaiting.drain(..).map(|awaiting| awaiting.held));
            self.chains.gathered -= chain.gathered.len();
            let parts = chain.take_parts();
            chain.log.take().chain(chain.gathered.drain(..)).chain(parts)
        });
        let logged = items.flat_map(|entry| entry.into_replies(table));
        logged.chain(self.owed.take_of(table)).collect()
    }

    /// A new shard of a table of which another thread tells.
    pub(in crate::server::tables) fn make_room(
        &mut self,
        lanes: &Connections,
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
            |entry: &Replica| entry.number == number && entry.range.intersect(range).is_some();
        if self.entries.iter().any(overlaps) {
            return Err(Refusal::Internal.because("some of its keys are here already").into());
        }
        let entry = wanted.build(number, range, &self.handles, lanes.memory())?;
        wanted.shorten()?;
        let before =
            |entry: &Replica| (entry.number, entry.range.begin()) < (number, range.begin());
        self.entries.insert(self.entries.partition_point(before), entry);
        self.last = 0;
        self.numbers.note(number);
        Ok(&self.known.entry(number).or_insert(wanted).spec)
    }
}

/// Releases the requests that wait for a chain, unless it holds them still.
fn release_held(
    chain: &mut Chain,
    chains: &Chains,
    lanes: &Connections,
    index: usize,
    released: &mut VecDeque<Held>,
) {
    // A chain that has such requests holds others, so they are taken out before it is asked.
    let mut held = std::mem::take(&mut chain.held);
    if !held.is_empty() && chain.room(chains, lanes, index) == 0 {
        chain.held = held;
    } else {
        released.append(&mut held);
    }
}

/// Takes rows that writes have overwritten in another copy.
///
/// # Errors
/// If they are no rows of the table, or it keeps none; if there is no memory for them.
fn take_versions(entry: &mut Replica, message: &Message) -> Result<(), Refused> {
    let versions = entry.admission.as_mut().and_then(|it| it.versions.as_mut());
    let (keys, lengths, values) = (message.keys(), message.lengths(), message.values());
    let Some(versions) = versions.filter(|it| it.fit(keys, lengths, values)) else {
        let count = keys.len();
        return Err(Refusal::Shape
            .because(format!("{count} rows that were overwritten do not fit this table")));
    };
    versions.enter(message.clock(), keys, lengths, values).map_err(Refused::from)
}
