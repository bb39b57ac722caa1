//! A server thread's loop: poll, decode, admit, handle, reply.
//!
//! Path: codec > **thread** > shard > store > answer. The thread owns its lanes and its shards. It
//! takes no lock and hands no work to other threads.

mod answer;
mod batch;
mod filtered;
mod table;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Counters, Draft, Endpoint, Message, Next, PeerId, Values};

use self::answer::{ReplyTo, answer, answer_pull, place_pull, post, refuse};
use self::table::{Entry, Wanted, check_keys, find, position, unknown};
use super::handle::Handles;
use super::shard::Request;
use crate::consistency::Admission;
use crate::cost::Cost;
use crate::error::Result;
use crate::filter::{List, REMEMBERED_BYTES_MAX, Remembered, Traffic};
use crate::op::Op;

/// Longest sleep while idle, and so the longest delay until a thread notices that it must stop.
const NAP: Duration = Duration::from_millis(100);

/// One thread of a server, with its shard of every table.
pub struct ServerThread {
    endpoint: Endpoint,
    /// This thread's place among all server threads.
    index: usize,
    /// Number of all server threads.
    count: usize,
    handles: Handles,
    /// Sorted by id.
    tables: Vec<Entry>,
    /// Index of the last request's table; the next request is probably for it, too.
    last_table: usize,
    parked: Vec<Parked>,
    lists: Remembered,
    /// Lanes that were asked for the keys of a signature.
    lacking: HashMap<PeerId, Lacking>,
}

/// A request that waits for its shard's clock.
struct Parked {
    peer: PeerId,
    message: Message,
    list: Option<Rc<List>>,
    clock: u64,
}

/// A request that lacks its keys.
struct Lacking {
    message: Message,
    /// Messages that came after it on its lane.
    held: VecDeque<Message>,
}

/// The next step for a request.
enum Step {
    /// None: it has been answered.
    Done,
    /// Park it until its shard's clock has reached this value.
    Park(u64),
    /// Store its values, pushed to this key, without a copy.
    Adopt(u64),
}

impl ServerThread {
    /// Thread `index` of `count` in the whole cluster, which serves over `endpoint`.
    pub fn new(endpoint: Endpoint, index: usize, count: usize, handles: Handles) -> Self {
        let lists = Remembered::new(REMEMBERED_BYTES_MAX, endpoint.memory());
        ServerThread {
            endpoint,
            index,
            count,
            handles,
            tables: Vec::new(),
            last_table: 0,
            parked: Vec::new(),
            lists,
            lacking: HashMap::new(),
        }
    }

    /// Limits the lists of keys that this thread remembers for workers to `bytes_max`, and to an
    /// eighth of its memory.
    pub fn remember_bytes(mut self, bytes_max: usize) -> Self {
        self.lists = Remembered::new(bytes_max, self.endpoint.memory());
        self
    }

    /// The address that workers connect to.
    pub fn address(&self) -> &str {
        self.endpoint.address()
    }

    /// The transport's counters so far.
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// The traffic counters of a table's filters; all zero for a table without filters.
    pub fn traffic(&self, table: u32) -> Traffic {
        let entry = position(&self.tables, table).ok().map(|at| &self.tables[at]);
        let filters = entry.and_then(|entry| entry.filters.as_ref());
        filters.map_or_else(Traffic::default, |filters| filters.traffic())
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    /// Only if the van itself is broken.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if !self.step()? {
                self.endpoint.wait(NAP)?;
            }
        }
        Ok(())
    }

    /// Processes arrivals without blocking; returns whether there were any.
    ///
    /// # Errors
    /// Only if the van itself is broken.
    pub fn step(&mut self) -> Result<bool> {
        let polled = self.endpoint.poll();
        if let Ok(false) = polled {
            return Ok(false);
        }
        self.drain();
        Ok(polled?)
    }

    /// Processes arrivals. `step` calls this function out of line, so that a step without arrivals
    /// stays short.
    #[inline(never)]
    fn drain(&mut self) {
        while let Some(next) = self.endpoint.take_batch() {
            match next {
                Next::Batch(peer) if self.endpoint.batch().kind() == Kind::Request => {
                    self.serve_batch(peer);
                }
                Next::Batch(peer) => self.reject(peer),
                Next::Arrival(arrival) => self.dispatch(arrival),
            }
        }
    }

    #[inline(never)]
    fn dispatch(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Message { peer, message } if message.kind() == Kind::Request => {
                self.handle(peer, message);
            }
            Arrival::Message { peer, .. }
            | Arrival::Answered { peer, .. }
            | Arrival::Placed { peer, .. } => self.reject(peer),
            Arrival::Lost { peer, error } => {
                tracing::debug!(%error, "a worker's lane is gone");
                self.forget(peer);
            }
            Arrival::Connected { .. } => {}
        }
    }

    #[cold]
    fn reject(&mut self, peer: PeerId) {
        tracing::warn!(%peer, "a worker sent an answer to a server; closing the lane");
        self.endpoint.disconnect(peer);
        self.forget(peer);
    }

    /// Admits a request once its keys are known: asks the worker for the keys of an unknown
    /// signature.
    fn handle(&mut self, peer: PeerId, message: Message) {
        if !self.lacking.is_empty() && self.lacking.contains_key(&peer) {
            return self.hold(peer, message);
        }
        if message.lent().is_some() && !self.reads_once(&message) {
            return self.copy_lent(peer, message);
        }
        let Some(signature) = message.signature() else { return self.admit(peer, message, None) };
        let table = message.table();
        let list = match message.keys() {
            [] => self.lists.recall(peer, table, signature),
            keys => match self.lists.remember((peer, table, signature), keys) {
                Ok(list) => Some(list),
                Err(error) => return self.refuse(peer, &message, &error.to_string()),
            },
        };
        match list {
            Some(list) => self.admit(peer, message, Some(list)),
            None => {
                let asks = Draft { op: Op::Keys as u8, ..answer(Kind::Failure, &message) };
                self.lacking.insert(peer, Lacking { message, held: VecDeque::new() });
                self.post(peer, asks);
            }
        }
    }

    /// Whether the table's rule may read lent values in place, where their sender can still write
    /// them. The values must be unfiltered, and the rule must read each once.
    #[cold]
    fn reads_once(&self, message: &Message) -> bool {
        let is_plain = Op::from_raw(message.op()).is_some_and(Op::pushes);
        let table = position(&self.tables, message.table()).map(|at| &self.tables[at]);
        is_plain && table.is_ok_and(|table| table.shard.reads_once())
    }

    /// Copies a request's lent values, and handles it.
    #[cold]
    fn copy_lent(&mut self, peer: PeerId, message: Message) {
        let reply_to = ReplyTo::of(peer, &message);
        match message.kept(self.endpoint.memory()) {
            Ok(message) => self.handle(peer, message),
            Err(error) => {
                let refused = refuse(&mut self.endpoint, reply_to, &error.to_string());
                self.check(peer, refused);
            }
        }
    }

    /// Holds a message of a lane that was asked for keys. If the message brings them, executes the
    /// request that lacked them, and then all held messages.
    fn hold(&mut self, peer: PeerId, message: Message) {
        let Some(lacking) = self.lacking.get_mut(&peer) else { return };
        let request = &lacking.message;
        let brings_keys = message.op() == Op::Keys as u8
            && (message.table(), message.timestamp(), message.signature())
                == (request.table(), request.timestamp(), request.signature());
        let Some(signature) = message.signature().filter(|_| brings_keys) else {
            return lacking.held.push_back(message);
        };
        let Some(lacking) = self.lacking.remove(&peer) else { return };
        let list = self.lists.remember((peer, message.table(), signature), message.keys());
        drop(message);
        match list {
            Ok(list) => self.admit(peer, lacking.message, Some(list)),
            Err(error) => self.refuse(peer, &lacking.message, &error.to_string()),
        }
        lacking.held.into_iter().for_each(|message| self.handle(peer, message));
    }

    /// Answers a request with the reason why it cannot be executed.
    #[cold]
    fn refuse(&mut self, peer: PeerId, message: &Message, reason: &str) {
        let refused = refuse(&mut self.endpoint, ReplyTo::of(peer, message), reason);
        self.check(peer, refused);
    }

    /// Executes or parks one request, and then executes those that waited for it.
    #[inline(never)]
    fn admit(&mut self, peer: PeerId, message: Message, list: Option<Rc<List>>) {
        let table = message.table();
        // Only parked requests need clocks.
        let before = if self.parked.is_empty() { None } else { self.clock(table) };
        let step = self.execute(peer, &message, list.as_deref());
        self.finish(peer, message, list, step);
        if before.is_some() && before < self.clock(table) {
            self.unpark();
        }
    }

    /// Takes the next step for a request.
    #[inline(never)]
    fn finish(&mut self, peer: PeerId, message: Message, list: Option<Rc<List>>, step: Step) {
        match step {
            Step::Done => {}
            Step::Park(clock) => self.parked.push(Parked { peer, message, list, clock }),
            Step::Adopt(key) => self.adopt(peer, message, key),
        }
    }

    /// Executes parked requests whose clock has come, in the order of arrival. Each may advance the
    /// clock for others.
    #[inline(never)]
    fn unpark(&mut self) {
        let mut at = 0;
        while at < self.parked.len() {
            let Parked { message, clock, .. } = &self.parked[at];
            let table = message.table();
            let before = self.clock(table);
            if before < Some(*clock) {
                at += 1;
                continue;
            }
            let Parked { peer, message, list, .. } = self.parked.remove(at);
            match self.execute(peer, &message, list.as_deref()) {
                Step::Done => {}
                Step::Park(clock) => {
                    let at_most = self.parked.len();
                    self.parked.insert(at.min(at_most), Parked { peer, message, list, clock });
                    at += 1;
                }
                Step::Adopt(key) => self.adopt(peer, message, key),
            }
            if before < self.clock(table) {
                at = 0;
            }
        }
    }

    fn clock(&self, table: u32) -> Option<u64> {
        position(&self.tables, table).ok().map(|at| self.tables[at].shard.clock())
    }

    /// Drops everything held for a lost peer.
    fn forget(&mut self, peer: PeerId) {
        self.parked.retain(|parked| parked.peer != peer);
        self.lacking.remove(&peer);
        self.lists.forget(peer);
    }

    #[inline(always)]
    fn execute(&mut self, peer: PeerId, message: &Message, list: Option<&List>) -> Step {
        let step = match Op::from_raw(message.op()) {
            None => self.serve_block(peer, message, list),
            Some(Op::Create) => self.create(peer, message).map(|()| Step::Done),
            Some(Op::Command) => self.command(peer, message).map(|()| Step::Done),
            Some(Op::Cost) => self.answer_cost(peer, message).map(|()| Step::Done),
            Some(Op::Keys) => Err("nobody asked for these keys".to_owned()),
            Some(op) => self.serve(peer, message, list, op),
        };
        step.unwrap_or_else(|reason| {
            self.refuse(peer, message, &reason);
            Step::Done
        })
    }

    /// Serves a push whose values the shard stores without a copy.
    fn adopt(&mut self, peer: PeerId, message: Message, key: u64) {
        let reply_to = ReplyTo::of(peer, &message);
        let adopted = find(&mut self.tables, reply_to.table).and_then(|entry| {
            entry.shard.adopt(key, message.into_values(), self.endpoint.memory())
        });
        let posted = match adopted {
            Ok(()) => self.endpoint.answer(peer, reply_to.timestamp),
            Err(reason) => refuse(&mut self.endpoint, reply_to, &reason),
        };
        self.check(peer, posted);
    }

    /// Serves a push, a pull or both, unless it has to be parked or its values can be adopted.
    fn serve(
        &mut self,
        peer: PeerId,
        message: &Message,
        list: Option<&List>,
        op: Op,
    ) -> Result<Step, String> {
        let table = message.table();
        if self.tables.get(self.last_table).is_none_or(|entry| entry.spec.id != table) {
            self.last_table = position(&self.tables, table).map_err(|_| unknown(table))?;
        }
        let Entry { range, shard, spec, filters, .. } = &mut self.tables[self.last_table];
        let request = Request::of(message, list, op);
        check_keys(request.keys, *range, &spec.name)?;
        if let Admission::AfterClock(clock) = shard.admit(&request) {
            return Ok(Step::Park(clock));
        }
        if let Some(filters) = filters
            && !filters.pass(message)
        {
            return self.serve_filtered(peer, message, request).map(|()| Step::Done);
        }
        // A shard may only adopt memory that the message owns: lent memory goes back to the worker,
        // and a frame may hold several messages.
        if op == Op::Push && message.owns_values() && shard.adopts(&request) {
            return Ok(Step::Adopt(request.keys[0]));
        }
        if request.pushes {
            shard.push(&request, self.endpoint.memory())?;
        }
        if request.pulls {
            let endpoint = &mut self.endpoint;
            let shard = &mut **shard;
            let reply_to = ReplyTo::of(peer, message);
            let posted = match message.offer() {
                None => answer_pull(endpoint, shard, reply_to, &request),
                Some(offer) => place_pull(endpoint, shard, reply_to, offer, &request),
            };
            if let Some(filters) = filters {
                filters.passed.sent += (request.keys.len() * spec.row_bytes()) as u64;
            }
            self.check(peer, posted);
        } else {
            self.answer(peer, message.timestamp());
        }
        Ok(Step::Done)
    }

    #[inline(never)]
    fn create(&mut self, peer: PeerId, message: &Message) -> Result<(), String> {
        let wanted = Wanted::read(message.values(), self.endpoint.memory())?;
        match position(&self.tables, wanted.spec.id) {
            Ok(at) => self.tables[at].check_same(&wanted)?,
            Err(at) => {
                let memory = self.endpoint.memory();
                let entry = wanted.build(self.index, self.count, &self.handles, memory)?;
                self.tables.insert(at, entry);
            }
        }
        self.answer(peer, message.timestamp());
        Ok(())
    }

    #[inline(never)]
    fn command(&mut self, peer: PeerId, message: &Message) -> Result<(), String> {
        let entry = find(&mut self.tables, message.table())?;
        let reply = entry.shard.command(message.sender(), message.values())?;
        self.post(peer, Draft { values: Values::Copied(&reply), ..answer(Kind::Reply, message) });
        Ok(())
    }

    #[inline(never)]
    fn answer_cost(&mut self, peer: PeerId, message: &Message) -> Result<(), String> {
        let cost = Cost::of_this_thread(&self.endpoint.counters());
        let reply = serde_json::to_vec(&cost).map_err(|error| error.to_string())?;
        self.post(peer, Draft { values: Values::Copied(&reply), ..answer(Kind::Reply, message) });
        Ok(())
    }

    /// Answers a request without values.
    #[inline]
    fn answer(&mut self, peer: PeerId, timestamp: u64) {
        let posted = self.endpoint.answer(peer, timestamp);
        self.check(peer, posted);
    }

    fn post(&mut self, peer: PeerId, draft: Draft<'_>) {
        let posted = post(&mut self.endpoint, peer, draft);
        self.check(peer, posted);
    }

    /// Closes the lane if an answer could not be posted: the peer is lost or broke the protocol.
    #[inline]
    fn check(&mut self, peer: PeerId, posted: caravan_van::Result<()>) {
        if let Err(error) = posted {
            self.give_up(peer, error);
        }
    }

    #[cold]
    fn give_up(&mut self, peer: PeerId, error: caravan_van::Error) {
        tracing::warn!(%error, "an answer could not be sent; closing the lane");
        self.endpoint.disconnect(peer);
        self.forget(peer);
    }
}
