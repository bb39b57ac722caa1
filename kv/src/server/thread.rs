//! A server thread's loop: poll, decode, admit, handle, reply.
//!
//! Path: codec > **thread** > shard > store > answer. The thread owns its lanes and its shards; it takes no lock and hands
//! work to nobody.

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

/// One sleep while idle: how long it takes at most to notice that the server shall stop.
const NAP: Duration = Duration::from_millis(100);

/// One thread of a server, with its shard of every table.
pub struct ServerThread {
    endpoint: Endpoint,
    /// This thread's place among all server threads, and their number.
    index: usize,
    count: usize,
    handles: Handles,
    /// In the order of their ids.
    tables: Vec<Entry>,
    /// Where the table of the last request is: the next one is likely to be for it, too.
    last: usize,
    parked: Vec<Parked>,
    lists: Remembered,
    /// Lanes that were asked for keys.
    asked: HashMap<PeerId, Asked>,
}

/// A request that waits for its shard's clock.
struct Parked {
    peer: PeerId,
    message: Message,
    list: Option<Rc<List>>,
    clock: u64,
}

/// A request whose keys were asked for, and what came behind it.
struct Asked {
    message: Message,
    held: VecDeque<Message>,
}

/// What is left to do for a request.
enum Left {
    /// It has been answered.
    Nothing,
    /// To park it until its shard's clock has come to this.
    Park(u64),
    /// To keep what it pushes to this key as it lies.
    Adopt(u64),
}

impl ServerThread {
    /// Thread `index` of `count` in the whole cluster, answering over `endpoint`.
    pub fn new(endpoint: Endpoint, index: usize, count: usize, handles: Handles) -> Self {
        let lists = Remembered::new(REMEMBERED_BYTES_MAX, endpoint.memory());
        ServerThread {
            endpoint,
            index,
            count,
            handles,
            tables: Vec::new(),
            last: 0,
            parked: Vec::new(),
            lists,
            asked: HashMap::new(),
        }
    }

    /// Remembers at most so many bytes of lists of keys for the workers that name them, or an eighth of its memory.
    pub fn remember_bytes(mut self, bytes_max: usize) -> Self {
        self.lists = Remembered::new(bytes_max, self.endpoint.memory());
        self
    }

    /// Where workers connect to.
    pub fn address(&self) -> &str {
        self.endpoint.address()
    }

    /// What the transport has done so far.
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// What the filters of a table did to its messages so far; all zero for a table without any.
    pub fn traffic(&self, table: u32) -> Traffic {
        let entry = position(&self.tables, table).ok().map(|at| &self.tables[at]);
        let filters = entry.and_then(|entry| entry.filters.as_ref());
        filters.map_or_else(Traffic::default, |filters| filters.traffic())
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    /// Only when the van itself is broken.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if !self.step()? {
                self.endpoint.wait(NAP)?;
            }
        }
        Ok(())
    }

    /// Handles what has arrived, without blocking; true if anything did.
    ///
    /// # Errors
    /// Only when the van itself is broken.
    pub fn step(&mut self) -> Result<bool> {
        let polled = self.endpoint.poll();
        if let Ok(false) = polled {
            return Ok(false);
        }
        self.drain();
        Ok(polled?)
    }

    /// Kept apart from `step`, so that a look that finds nothing stays short.
    #[inline(never)]
    fn drain(&mut self) {
        while let Some(taken) = self.endpoint.take_batch() {
            match taken {
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
        tracing::warn!(%peer, "it sent an answer to a server; closing the lane");
        self.endpoint.disconnect(peer);
        self.forget(peer);
    }

    /// Finds the keys that a request names, or asks for them; then executes it.
    fn handle(&mut self, peer: PeerId, message: Message) {
        if !self.asked.is_empty() && self.asked.contains_key(&peer) {
            return self.hold(peer, message);
        }
        if message.lent().is_some() && !self.reads_once(&message) {
            return self.keep(peer, message);
        }
        let Some(signature) = message.signature() else { return self.admit(peer, message, None) };
        let table = message.table();
        let list = match message.keys() {
            [] => self.lists.recall(peer, table, signature),
            keys => match self.lists.remember((peer, table, signature), keys) {
                Ok(list) => Some(list),
                Err(error) => return self.turn_down(peer, &message, &error.to_string()),
            },
        };
        match list {
            Some(list) => self.admit(peer, message, Some(list)),
            None => {
                let asks = Draft { op: Op::Keys as u8, ..answer(Kind::Failure, &message) };
                self.asked.insert(peer, Asked { message, held: VecDeque::new() });
                self.post(peer, asks);
            }
        }
    }

    /// Whether values that are lent may be read where they are, though their sender can still write there: they are plain
    /// numbers, each looked at once.
    #[cold]
    fn reads_once(&self, message: &Message) -> bool {
        let is_plain = Op::from_raw(message.op()).is_some_and(Op::pushes);
        let table = position(&self.tables, message.table()).map(|at| &self.tables[at]);
        is_plain && table.is_ok_and(|table| table.shard.reads_once())
    }

    /// Handles a request with values that it has copied from where they were lent.
    #[cold]
    fn keep(&mut self, peer: PeerId, message: Message) {
        let asker = ReplyTo::of(peer, &message);
        match message.kept(self.endpoint.memory()) {
            Ok(message) => self.handle(peer, message),
            Err(error) => {
                let refused = refuse(&mut self.endpoint, asker, &error.to_string());
                self.check(peer, refused);
            }
        }
    }

    /// Takes in a message of a lane that was asked for keys: if it brings them, the request that lacked them is executed, and
    /// then what came behind it.
    fn hold(&mut self, peer: PeerId, message: Message) {
        let Some(asked) = self.asked.get_mut(&peer) else { return };
        let lacking = &asked.message;
        let brings = message.op() == Op::Keys as u8
            && (message.table(), message.timestamp(), message.signature())
                == (lacking.table(), lacking.timestamp(), lacking.signature());
        let Some(signature) = message.signature().filter(|_| brings) else {
            return asked.held.push_back(message);
        };
        let Some(asked) = self.asked.remove(&peer) else { return };
        let list = self.lists.remember((peer, message.table(), signature), message.keys());
        drop(message);
        match list {
            Ok(list) => self.admit(peer, asked.message, Some(list)),
            Err(error) => self.turn_down(peer, &asked.message, &error.to_string()),
        }
        asked.held.into_iter().for_each(|message| self.handle(peer, message));
    }

    /// Answers a request with the reason why it can't be executed.
    #[cold]
    fn turn_down(&mut self, peer: PeerId, message: &Message, reason: &str) {
        let refused = refuse(&mut self.endpoint, ReplyTo::of(peer, message), reason);
        self.check(peer, refused);
    }

    /// Executes one request, or parks it, and then those that waited for it.
    #[inline(never)]
    fn admit(&mut self, peer: PeerId, message: Message, list: Option<Rc<List>>) {
        let table = message.table();
        // Clocks are of interest to those who wait.
        let before = if self.parked.is_empty() { None } else { self.clock(table) };
        let left = self.execute(peer, &message, list.as_deref());
        self.leave(peer, message, list, left);
        if before.is_some() && before < self.clock(table) {
            self.unpark();
        }
    }

    /// Does what is left to do for a request.
    #[inline(never)]
    fn leave(&mut self, peer: PeerId, message: Message, list: Option<Rc<List>>, left: Left) {
        match left {
            Left::Nothing => {}
            Left::Park(clock) => self.parked.push(Parked { peer, message, list, clock }),
            Left::Adopt(key) => self.adopt(peer, message, key),
        }
    }

    /// Executes what has waited long enough, in the order of arrival; one of them may be what others wait for.
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
                Left::Nothing => {}
                Left::Park(clock) => {
                    let at_most = self.parked.len();
                    self.parked.insert(at.min(at_most), Parked { peer, message, list, clock });
                    at += 1;
                }
                Left::Adopt(key) => self.adopt(peer, message, key),
            }
            if before < self.clock(table) {
                at = 0;
            }
        }
    }

    fn clock(&self, table: u32) -> Option<u64> {
        position(&self.tables, table).ok().map(|at| self.tables[at].shard.clock())
    }

    /// Drops what waits for the sake of a peer that is gone.
    fn forget(&mut self, peer: PeerId) {
        self.parked.retain(|parked| parked.peer != peer);
        self.asked.remove(&peer);
        self.lists.forget(peer);
    }

    #[inline(always)]
    fn execute(&mut self, peer: PeerId, message: &Message, list: Option<&List>) -> Left {
        let left = match Op::from_raw(message.op()) {
            None => self.serve_block(peer, message, list),
            Some(Op::Create) => self.create(peer, message).map(|()| Left::Nothing),
            Some(Op::Command) => self.command(peer, message).map(|()| Left::Nothing),
            Some(Op::Cost) => self.answer_cost(peer, message).map(|()| Left::Nothing),
            Some(Op::Keys) => Err("nobody asked for these keys".to_owned()),
            Some(op) => self.serve(peer, message, list, op),
        };
        left.unwrap_or_else(|reason| {
            self.turn_down(peer, message, &reason);
            Left::Nothing
        })
    }

    /// Serves a push that is kept as it lies.
    fn adopt(&mut self, peer: PeerId, message: Message, key: u64) {
        let asker = ReplyTo::of(peer, &message);
        let adopted = find(&mut self.tables, asker.table).and_then(|entry| {
            entry.shard.adopt(key, message.into_values(), self.endpoint.memory())
        });
        let posted = match adopted {
            Ok(()) => self.endpoint.answer(peer, asker.timestamp),
            Err(reason) => refuse(&mut self.endpoint, asker, &reason),
        };
        self.check(peer, posted);
    }

    /// Serves a push, a pull or both, unless it has to be parked or its values can be kept.
    fn serve(
        &mut self,
        peer: PeerId,
        message: &Message,
        list: Option<&List>,
        op: Op,
    ) -> Result<Left, String> {
        let table = message.table();
        if self.tables.get(self.last).is_none_or(|entry| entry.spec.id != table) {
            self.last = position(&self.tables, table).map_err(|_| unknown(table))?;
        }
        let Entry { range, shard, spec, filters, .. } = &mut self.tables[self.last];
        let request = Request::of(message, list, (op.pushes(), op.pulls()));
        check_keys(request.keys, *range, &spec.name)?;
        if let Admission::AfterClock(clock) = shard.admit(&request) {
            return Ok(Left::Park(clock));
        }
        if let Some(filters) = filters
            && !filters.pass(message)
        {
            return self.serve_filtered(peer, message, request).map(|()| Left::Nothing);
        }
        // What a worker lends goes back to it, and so does what came with other messages.
        if op == Op::Push && message.owns_values() && shard.adopts(&request) {
            return Ok(Left::Adopt(request.keys[0]));
        }
        if request.pushes {
            shard.push(&request, self.endpoint.memory())?;
        }
        if request.pulls {
            let (endpoint, shard) = (&mut self.endpoint, &mut **shard);
            let asker = ReplyTo::of(peer, message);
            let posted = match message.offer() {
                None => answer_pull(endpoint, shard, asker, &request),
                Some(offer) => place_pull(endpoint, shard, (asker, offer), &request),
            };
            if let Some(filters) = filters {
                filters.passed.sent += (request.keys.len() * spec.row_bytes()) as u64;
            }
            self.check(peer, posted);
        } else {
            self.answer(peer, message.timestamp());
        }
        Ok(Left::Nothing)
    }

    #[inline(never)]
    fn create(&mut self, peer: PeerId, message: &Message) -> Result<(), String> {
        let wanted = Wanted::read(message.values(), self.endpoint.memory())?;
        match position(&self.tables, wanted.spec.id) {
            Ok(at) => self.tables[at].check_same(&wanted)?,
            Err(at) => {
                let place = (self.index, self.count);
                let entry = wanted.build(place, &self.handles, self.endpoint.memory())?;
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

    /// Answers a request that has nothing more to be told.
    #[inline]
    fn answer(&mut self, peer: PeerId, timestamp: u64) {
        let posted = self.endpoint.answer(peer, timestamp);
        self.check(peer, posted);
    }

    fn post(&mut self, peer: PeerId, draft: Draft<'_>) {
        let posted = post(&mut self.endpoint, peer, draft);
        self.check(peer, posted);
    }

    /// A peer that cannot be sent to has gone or broken the rules; its lane is closed.
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
