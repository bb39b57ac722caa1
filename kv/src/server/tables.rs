//! A server thread's tables: finds the table of a request and serves it, record by record.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

mod entry;
mod filtered;

use caravan_van::wire::Kind;
use caravan_van::{Draft, Lanes, Message, PeerId, Values};

pub(super) use self::entry::Entry;
use self::entry::{Wanted, check_keys};
use self::filtered::serve_filtered;
use super::answer::{ReplyTo, answer, answer_pull, place_pull, post, refuse};
use super::handle::Handles;
use super::shard::Request;
use crate::consistency::Admission;
use crate::cost::Cost;
use crate::filter::{FILTERED, List};
use crate::op::Op;

/// One thread's shards of all tables.
pub(super) struct Tables {
    /// This thread's place among all server threads.
    index: usize,
    /// Number of all server threads.
    count: usize,
    handles: Handles,
    /// Sorted by id.
    entries: Vec<Entry>,
    /// Index of the last request's table; the next request is probably for it, too.
    last: usize,
}

/// How far a message was served.
pub(super) enum Step {
    /// All of its records were answered.
    Done,
    /// The next record waits until its shard's clock has reached this value.
    Park(u64),
    /// The shard stores the next record's values, pushed to this key, without a copy.
    Adopt(u64),
}

/// Why a record was not served.
pub(super) enum Trouble {
    /// The request is refused, for this reason.
    Refused(String),
    /// Its answer cannot be posted, and the lane must be closed.
    Lane(caravan_van::Error),
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
    pub(super) fn new(index: usize, count: usize, handles: Handles) -> Tables {
        Tables { index, count, handles, entries: Vec::new(), last: 0 }
    }

    /// Index of a table, or, as an error, the index to insert it at.
    fn position(&self, id: u32) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&id, |entry| entry.spec.id)
    }

    /// The table with this id, if there is one.
    pub(super) fn get(&self, id: u32) -> Option<&Entry> {
        self.position(id).ok().map(|at| &self.entries[at])
    }

    fn find(&mut self, id: u32) -> Result<&mut Entry, Trouble> {
        if self.entries.get(self.last).is_none_or(|entry| entry.spec.id != id) {
            self.last = self.position(id).map_err(|_| unknown(id))?;
        }
        Ok(&mut self.entries[self.last])
    }

    /// The clock of a table's shard, for which its parked requests wait.
    pub(super) fn clock(&self, id: u32) -> Option<u64> {
        self.get(id).map(|entry| entry.shard.clock())
    }

    /// Serves the records of a message of `peer`, up to one that has to wait or whose values can be
    /// adopted. `list` has its keys if the message names them by a signature.
    ///
    /// # Errors
    /// If an answer cannot be posted and the lane must be closed, as for all functions below.
    #[inline(always)]
    pub(super) fn serve(
        &mut self,
        lanes: &mut Lanes,
        peer: PeerId,
        message: &mut Message,
        list: Option<&List>,
    ) -> caravan_van::Result<Step> {
        loop {
            let trouble = match self.serve_rows(lanes, peer, message, list) {
                Ok(step) => return Ok(step),
                Err(trouble) => trouble,
            };
            let table = message.table();
            let timestamp = message.timestamp();
            message.advance();
            match trouble {
                Trouble::Lane(error) => return Err(error),
                Trouble::Refused(reason) => {
                    refuse(lanes, ReplyTo { peer, table, timestamp }, &reason)?;
                }
            }
        }
    }

    /// Serves the records of a message that pushes, pulls or both.
    #[inline(always)]
    fn serve_rows(
        &mut self,
        lanes: &mut Lanes,
        peer: PeerId,
        message: &mut Message,
        list: Option<&List>,
    ) -> Result<Step, Trouble> {
        if message.is_empty() {
            return Ok(Step::Done);
        }
        let op = match Op::from_raw(message.op() & !FILTERED) {
            Some(op) if op.pushes() || op.pulls() => op,
            other => return self.serve_other(lanes, peer, message, other),
        };
        let table = message.table();
        let entry = self.find(table)?;
        if message.op() & FILTERED != 0 {
            check_block(op, entry)?;
        }
        let range = message.range();
        let mut common = Request::of(message, op);
        common.rows = list.map(|list| &list.rows);
        let has_offers = message.has_offers();
        let is_own = entry
            .range
            .is_some_and(|own| own.contains(range.begin()) && own.contains(range.last()));
        // A shard may only adopt memory that the message owns: lent memory goes back to the worker,
        // and a frame may hold several messages.
        let is_owned = op == Op::Push && message.owns_values();
        while !message.is_empty() {
            let keys = list.map_or(message.keys(), |list| &list.keys);
            let lengths = message.lengths();
            let values = message.values();
            let request = Request { keys, lengths, values, ..common };
            if !is_own {
                check_keys(keys, entry.range, &entry.spec.name)?;
            }
            if let Admission::AfterClock(clock) = entry.shard.admit(&request) {
                return Ok(Step::Park(clock));
            }
            let passes = entry.filters.as_mut().is_none_or(|filters| filters.pass(message));
            if !passes {
                serve_filtered(lanes, entry, peer, message, request)?;
                message.advance();
                continue;
            }
            let timestamp = message.timestamp();
            if is_owned && entry.shard.adopts(&request) {
                return Ok(Step::Adopt(keys[0]));
            }
            if op == Op::Push {
                entry.shard.push(&request, lanes.memory())?;
                lanes.answer(peer, timestamp)?;
                message.advance();
                continue;
            }
            if request.pushes {
                entry.shard.push(&request, lanes.memory())?;
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
        Ok(Step::Done)
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
        let adopted = match self.find(table) {
            Ok(entry) => entry
                .shard
                .adopt(key, message.into_values(), lanes.memory())
                .map_err(Trouble::Refused),
            Err(trouble) => Err(trouble),
        };
        match adopted {
            Ok(()) => lanes.answer(peer, timestamp),
            Err(Trouble::Refused(reason)) => {
                refuse(lanes, ReplyTo { peer, table, timestamp }, &reason)
            }
            Err(Trouble::Lane(error)) => Err(error),
        }
    }

    /// Serves a request that is about a whole table or thread.
    #[inline(never)]
    fn serve_other(
        &mut self,
        lanes: &mut Lanes,
        peer: PeerId,
        message: &mut Message,
        op: Option<Op>,
    ) -> Result<Step, Trouble> {
        match op {
            Some(Op::Create) => {
                self.create(lanes, message.values())?;
                lanes.answer(peer, message.timestamp())?;
            }
            Some(Op::Command) => {
                let entry = self.find(message.table())?;
                let reply = entry.shard.command(message.sender(), message.values())?;
                let values = Values::Copied(&reply);
                post(lanes, peer, Draft { values, ..answer(Kind::Reply, message) })?;
            }
            Some(Op::Cost) => {
                let cost = Cost::of_this_thread(&lanes.counters());
                let reply = serde_json::to_vec(&cost).map_err(|error| error.to_string())?;
                let values = Values::Copied(&reply);
                post(lanes, peer, Draft { values, ..answer(Kind::Reply, message) })?;
            }
            Some(Op::Keys) => return Err("nobody asked for these keys".to_owned().into()),
            _ => return Err(format!("there is no operation {}", message.op()).into()),
        }
        message.advance();
        Ok(Step::Done)
    }

    /// Creates a table, unless an equal one exists.
    fn create(&mut self, lanes: &Lanes, spec: &[u8]) -> Result<(), Trouble> {
        let wanted = Wanted::read(spec, lanes.memory())?;
        match self.position(wanted.spec.id) {
            Ok(at) => self.entries[at].check_same(&wanted)?,
            Err(at) => {
                let entry = wanted.build(self.index, self.count, &self.handles, lanes.memory())?;
                self.entries.insert(at, entry);
            }
        }
        Ok(())
    }
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

#[cold]
fn unknown(table: u32) -> Trouble {
    Trouble::Refused(format!("table {table} is unknown here (create it first)"))
}
