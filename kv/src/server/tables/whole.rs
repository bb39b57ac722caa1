//! Requests about a whole table, shard or thread: to create and drop tables, to move shards, and
//! the rest of what is neither push nor pull.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::BTreeSet;

use caravan_van::wire::Kind;
use caravan_van::{Connections, Draft, KeyRange, Message, PeerId, Values};
use serde::Serialize;

use super::admission::Waiting;
use super::chain::Chain;
use super::moving::Moving;
use super::replica::Known;
use super::{Client, Step, Tables, Trouble, forward, keep};
use crate::consistency::Admission;
use crate::cost::Cost;
use crate::history::Recorder;
use crate::map::{Created, Numbered, Placed};
use crate::op::Op;
use crate::refusal::{Refusal, Refused};
use crate::server::answer::{ReplyTo, answer, post};
use crate::server::shard::Request;
use crate::table::TableSpec;

impl Tables {
    /// Serves a request that is about a whole table or thread.
    #[inline(never)]
    pub(super) fn serve_other(
        &mut self,
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        op: Option<Op>,
    ) -> Result<Step, Trouble> {
        let peer = client.peer;
        op.map_or(Ok(()), |op| self.check_role(peer, op))?;
        match op {
            Some(Op::Create) => {
                let created = self.create(lanes, message)?;
                post_json(lanes, peer, message, &created)?;
            }
            Some(Op::Drop) => {
                self.check_numbers()?;
                return Ok(Step::Drop);
            }
            Some(Op::Tables) => {
                let of = str::from_utf8(message.values())
                    .map_err(|error| Refusal::Shape.because(error.to_string()))?;
                let is_meant = |known: &Known| of.is_empty() || known.spec.is_within(of);
                let within = self.known.iter().filter(|(_, known)| is_meant(known));
                let pair = |(number, known): (&u32, &Known)| format!("[{number},{}]", known.text);
                let reply = format!("[{}]", within.map(pair).collect::<Vec<_>>().join(","));
                let values = Values::Copied(reply.as_bytes());
                post(lanes, peer, Draft { values, ..answer(Kind::Reply, message) })?;
            }
            Some(Op::Retire) => {
                let successor = serde_json::from_slice(message.values());
                let retired = self.retire(successor?)?;
                post_json(lanes, peer, message, &retired)?;
            }
            Some(Op::Copies) => {
                let copies = self.copies();
                post_json(lanes, peer, message, &copies)?;
            }
            Some(Op::Served) => {
                let served = self.served();
                post_json(lanes, peer, message, &served)?;
            }
            Some(Op::Membership) => {
                self.enter_view(peer, message, lanes.memory())?;
                lanes.answer(peer, message.timestamp())?;
            }
            Some(Op::Command) => return self.serve_command(lanes, client, message),
            Some(Op::Checkpoint) => return self.serve_checkpoint(lanes, client, message),
            Some(Op::Cost) => {
                let cost = Cost::of_this_thread(&lanes.counters());
                post_json(lanes, peer, message, &cost)?;
            }
            Some(Op::Keys) => {
                return Err(Refusal::Internal.because("nobody asked for these keys").into());
            }
            Some(op) => return self.serve_of_shard(lanes, client, message, op),
            None => {
                return Err(Refusal::Unsupported
                    .because(format!("there is no operation {}", message.op()))
                    .into());
            }
        }
        message.advance();
        Ok(Step::Done)
    }

    /// Serves a request that is about one shard as a whole.
    fn serve_of_shard(
        &mut self,
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
        op: Op,
    ) -> Result<Step, Trouble> {
        let peer = client.peer;
        let (table, key) = (message.table(), message.range().begin());
        let mut step = Step::Release;
        match op {
            Op::Move => {
                if self.find(table, key)?.moving.is_some() {
                    return Ok(Step::Hold);
                }
                if self.begin_move(lanes, peer, message)? {
                    return Ok(Step::Done);
                }
                lanes.answer(peer, message.timestamp())?;
                step = Step::Done;
            }
            Op::Follow | Op::Whole => {
                return self.serve_follower(lanes, peer, message, op);
            }
            Op::Rows if self.find(table, key)?.chain.is_some() => {
                return self.serve_follower(lanes, peer, message, Op::Rows);
            }
            Op::Take if self.must_wait(table, key) => {
                return Ok(Step::Hold);
            }
            Op::Take | Op::Rows | Op::Forward | Op::Own | Op::Abandon => {
                self.serve_owner(lanes, peer, message, op)?;
                lanes.answer(peer, message.timestamp())?;
            }
            Op::Mark => {
                // Requests before it may wait here, and come back later.
                let moving = self.position(table, key);
                let moving = moving.and_then(|at| self.entries[at].moving.as_ref());
                if moving.is_some_and(|moving| moving.holds(lanes, false)) {
                    return Ok(Step::Hold);
                }
                self.mark(table, key, peer);
                lanes.answer(peer, message.timestamp())?;
            }
            Op::Join | Op::Clock | Op::Leave | Op::Bound | Op::Fresh => {
                let entry = self.find(table, key)?;
                if entry.chain.is_some() && entry.admission.is_some() {
                    return self.serve_chained(lanes, client, message, None, op);
                }
                let Some(admission) = &mut entry.admission else {
                    let name = &entry.spec.name;
                    return Err(Refusal::Unsupported
                        .because(format!("table {name} has no consistency model"))
                        .into());
                };
                admission.serve(lanes, client, message, op)?;
            }
            _ => {
                return Err(Refusal::Unsupported
                    .because(format!("there is no operation {}", message.op()))
                    .into());
            }
        }
        message.advance();
        Ok(step)
    }

    /// Executes a command, or gives it to a shard that answers later.
    fn serve_command(
        &mut self,
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
    ) -> Result<Step, Trouble> {
        let (table, key) = (message.table(), message.range().begin());
        self.seek(table, key)?;
        let Tables { entries, moves, chains, owed, last, .. } = self;
        let entry = &mut entries[*last];
        if entry.chain.is_some() {
            return self.serve_chained(lanes, client, message, None, Op::Command);
        }
        let values = message.values();
        let changes = entry.moving.is_some() && entry.shard.changes_rows(values);
        let waits = |moving: &Moving| moving.holds(lanes, changes) || changes && moving.is_read();
        if entry.moving.as_ref().is_some_and(|moving| waits(moving)) {
            return Ok(Step::Hold);
        }
        let request = Request { values, ..Request::of(message, Op::Command, client.node) };
        if entry.shard.admit(&request) == Admission::Kept {
            let reply_to = ReplyTo { peer: client.peer, table, timestamp: message.timestamp() };
            keep(lanes, (owed, chains), entry, reply_to, &request)?;
        } else {
            let reply = entry.shard.command(client.node, values)?;
            if changes {
                let shard = (table, entry.range);
                forward(lanes, &mut entry.moving, &mut moves.counters, shard, &request)?;
            }
            let values = Values::Copied(&reply);
            post(lanes, client.peer, Draft { values, ..answer(Kind::Reply, message) })?;
        }
        message.advance();
        Ok(Step::Done)
    }

    /// Creates a table, unless an equal one exists.
    fn create(&mut self, lanes: &Connections, message: &Message) -> Result<Created, Trouble> {
        let is_numbered = message.table() != 0;
        let mut completes = false;
        let wanted = if is_numbered {
            let Numbered { table, dropped, is_complete } =
                serde_json::from_slice(message.values())?;
            completes = is_complete;
            for (first, last) in dropped {
                self.numbers.drop_all(first, last)?;
            }
            Known::read(table.as_bytes(), lanes.memory())?
        } else {
            Known::read(message.values(), lanes.memory())?
        };
        let number = self.create_as(lanes, message.table(), wanted)?;
        let shards = self.claims(number);
        let dropped = if is_numbered { Vec::new() } else { self.numbers.dropped() };
        let heard = self.chains.view.events.len();
        let elsewhere = BTreeSet::new();
        let mut created = Created { number, shards, elsewhere, dropped, is_complete: false, heard };
        if let Some(known) = self.known.get_mut(&number) {
            known.is_complete |= completes;
            created.is_complete = known.is_complete;
            created.elsewhere.clone_from(&known.elsewhere);
        }
        Ok(created)
    }

    /// The number of a table that may have this one, 0 if it has none yet.
    fn number_of(&mut self, number: u32, spec: &TableSpec) -> Result<u32, Trouble> {
        match (number, self.named(&spec.namespace, spec.id)) {
            (0, Some(number)) => Ok(number),
            (0, None) if self.gives_numbers() => {
                self.check_numbers()?;
                // Nobody would begin a chain, since those that have joined only follow.
                if self.index >= self.count && spec.replicas > 0 {
                    let TableSpec { name, replicas, .. } = spec;
                    let why = format!(
                        "table {name} cannot have {replicas} replicas: no server is left that has \
                         founded the cluster"
                    );
                    return Err(Refusal::Draining.because(why).into());
                }
                Ok(self.numbers.next()?)
            }
            (0, None) => {
                self.check_numbers()?;
                let first = self.chains.view.catalogue_owner();
                let what = match self.chains.view.is_gone(first) {
                    true => "which is lost, so there are no new ones",
                    false => "not from this one",
                };
                Err(Refusal::NotHead
                    .because(format!("tables get their numbers from server thread {first}, {what}"))
                    .into())
            }
            (number, _) => Ok(number),
        }
    }

    /// Creates a table of this number, 0 if it has none yet; returns its number.
    fn create_as(
        &mut self,
        lanes: &Connections,
        number: u32,
        mut wanted: Known,
    ) -> Result<u32, Trouble> {
        let memory = lanes.memory();
        let number = self.number_of(number, &wanted.spec)?;
        let mut was_created = false;
        if let Some(known) = self.known.get_mut(&number) {
            known.check_same(&wanted)?;
            was_created = std::mem::replace(&mut known.is_created, true);
            if was_created && self.chains.view.events.is_empty() {
                return Ok(number);
            }
            wanted.elsewhere.clone_from(&known.elsewhere);
            wanted.is_complete = known.is_complete;
        }
        if self.numbers.is_dropped(number) {
            return Err(Trouble::Dropped);
        }
        let range = wanted.spec.range().map_err(Refused::from)?;
        let map = wanted.spec.placement.map(range, self.count);
        let map = map.map_err(Refused::from)?;
        let replicas = wanted.spec.replicas;
        self.check_replicas(lanes, &wanted.spec)?;
        let Tables { index, count, handles, histories, chains, entries, moves, .. } = self;
        let is_own = |shard: &Placed| match replicas {
            0 => {
                // A thread may have left since, before it could create what was placed on it.
                let is_new = !was_created
                    || shard.server != *index && moves.moved(number, shard.range.begin()).is_none();
                let creator = chains.view.creator(shard.server, number, shard.range.begin());
                is_new && creator == Some(*index)
            }
            // One that has joined has no copy before another thread makes it follow.
            _ if was_created || *index >= *count => false,
            _ => {
                let of = shard.chain(number, replicas);
                !chains.view.has_entry(of) && chains.view.chain(of).any(|thread| thread == *index)
            }
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
                entry.chain =
                    Some(Chain::new((shard.chain(number, replicas), 0), &entry.spec, true, memory));
            }
            if let (Some(open), Some(admission), Some(consistency)) =
                (&mut *histories, &mut entry.admission, entry.spec.consistency)
            {
                let out = open((number, place), &entry.spec);
                let recorder = out.and_then(|out| Recorder::new(out, consistency));
                admission.history = Some(recorder.map_err(no_history)?);
            }
            Ok(entry)
        };
        let new = own.map(&mut build).collect::<Result<Vec<_>, Refused>>()?;
        let takes_none = moves.is_retired() && replicas == 0 && !new.is_empty();
        if takes_none || chains.view.has_left(*index) {
            return Err(Trouble::Lost);
        }
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

    /// Drops a table with its rows, if it exists; returns the requests that wait for its model, and
    /// the threads to which shards have moved from here. Its number is never used again.
    ///
    /// # Errors
    /// If there is no memory to remember that.
    pub(in crate::server) fn drop(
        &mut self,
        number: u32,
    ) -> Result<(Vec<Waiting>, BTreeSet<usize>), Refused> {
        self.numbers.drop(number)?;
        let mut waiting = Vec::new();
        let elsewhere = self.known.remove(&number).map(|known| known.elsewhere);
        self.forget_moves(number);
        for entry in self.entries.extract_if(.., |entry| entry.number == number) {
            waiting.extend(entry.admission.into_iter().flat_map(|it| it.into_waiting()));
        }
        self.last = 0;
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
        Ok((waiting, elsewhere.unwrap_or_default()))
    }
}

/// Why a table's history cannot be written.
fn no_history(error: std::io::Error) -> Refused {
    Refusal::Internal.because(format!("no history: {error}"))
}

/// Answers a request with this value as JSON.
fn post_json(
    lanes: &mut Connections,
    peer: PeerId,
    request: &Message,
    value: &impl Serialize,
) -> Result<(), Trouble> {
    let reply = serde_json::to_vec(value)?;
    let values = Values::Copied(&reply);
    Ok(post(lanes, peer, Draft { values, ..answer(Kind::Reply, request) })?)
}
