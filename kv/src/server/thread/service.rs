//! The loop of a server thread: serves what comes, and keeps what has to wait.
//!
//! Path: codec > thread (**service**) > tables > shard > store > answer. What waits for the clock
//! of a shard is parked here, what waits for a consistency model with its table.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Draft, Endpoint, Message, PeerId, Values};

use super::clients::Clients;
use super::keys::{Brought, NamedKeys};
use super::parking::{Parked, Parking};
use crate::error::Result;
use crate::filter::List;
use crate::membership::Membership;
use crate::op::Op;
use crate::refusal::Refused;
use crate::server::answer::{ReplyTo, answer, post, refuse, refuse_dropped};
use crate::server::handle::Handles;
use crate::server::tables::{
    Admitted, Client, Held, RETRY, Step, Tables, Trouble, Waiting, serve_forwarded,
};

/// Longest sleep while idle, and so the longest delay until a thread notices that it must stop.
const BACKOFF: Duration = Duration::from_millis(100);

/// How long a thread that has left goes on without any client: one that has opened a lane shows
/// here within this time.
const LINGER: Duration = Duration::from_secs(1);

/// Time between two warnings of a thread that has left and has clients.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// A thread that is never idle looks for news of the scheduler once in so many steps.
const STEPS: u32 = 1 << 10;

/// What one server thread serves, and whom.
pub(super) struct ShardService {
    pub(super) endpoint: Endpoint,
    pub(super) tables: Tables,
    clients: Clients,
    parking: Parking,
    keys: NamedKeys,
    /// Whether there is anything for [`ShardService::advance`] to do, as of the last step.
    is_moving: bool,
    /// Whether `release_held` runs.
    is_releasing: bool,
    /// Brings what the scheduler says of lost nodes.
    pub(super) views: Option<Receiver<Membership>>,
    farewell: Farewell,
}

/// What a thread waits for that has left the cluster.
#[derive(Default)]
struct Farewell {
    /// Whether its node has told it so.
    has_left: bool,
    /// Since when no client has a lane to it.
    alone_since: Option<Duration>,
    /// When it said last that some have.
    warned: Option<Duration>,
}

impl ShardService {
    /// That of thread `index` of `count` in the whole cluster.
    pub(super) fn new(endpoint: Endpoint, index: usize, count: usize, handles: Handles) -> Self {
        ShardService {
            keys: NamedKeys::new(endpoint.lanes.memory()),
            tables: Tables::new(index, count, handles, endpoint.lanes.memory()),
            endpoint,
            clients: Clients::default(),
            parking: Parking::default(),
            is_moving: false,
            is_releasing: false,
            views: None,
            farewell: Farewell::default(),
        }
    }

    /// Limits the lists of keys that are remembered for workers.
    pub(super) fn remember_bytes(&mut self, bytes_max: usize) {
        self.keys.remember_bytes(bytes_max, self.endpoint.lanes.memory());
    }

    /// Number of lanes that workers and other servers have to this thread, and it to servers.
    pub(super) fn lanes(&self) -> usize {
        self.clients.lanes()
    }

    /// Serves until `stop` is set, or this thread has left the cluster and has no clients.
    ///
    /// # Errors
    /// Only if the van itself is broken.
    #[inline(never)]
    pub(super) fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut steps = 0;
        while !stop.load(Ordering::Relaxed) {
            let is_busy = self.step()?;
            steps += 1;
            if is_busy && steps < STEPS {
                continue;
            }
            steps = 0;
            if !self.hear() && !is_busy {
                if self.farewell.has_left && self.has_parted() {
                    return Ok(());
                }
                self.endpoint.wait(if self.is_moving { RETRY } else { BACKOFF })?;
            }
        }
        Ok(())
    }

    /// Records what the scheduler has said of lost nodes; returns whether there was anything. Of
    /// lost servers a busy thread hears from workers, before it can matter.
    fn hear(&mut self) -> bool {
        let view = self.views.as_ref().and_then(|views| views.try_recv().ok());
        let Some(view) = view else { return false };
        self.farewell.has_left |= self.tables.has_left(&view);
        let is_new = self.tables.join_view(&view, self.endpoint.lanes.memory());
        self.is_moving = self.tables.is_moving();
        is_new
    }

    /// Whether all clients have closed their lanes to this thread, which has left. They do so when
    /// nothing is outstanding here.
    #[cold]
    fn has_parted(&mut self) -> bool {
        let now = self.endpoint.lanes.now();
        let Farewell { alone_since, warned, .. } = &mut self.farewell;
        let clients = self.tables.clients();
        if clients == 0 {
            return now - *alone_since.get_or_insert(now) >= LINGER;
        }
        *alone_since = None;
        if now - *warned.get_or_insert(now) >= WARN_EVERY {
            *warned = Some(now);
            tracing::warn!(
                clients,
                "this server thread has left the cluster; it waits for clients that have lanes here"
            );
        }
        false
    }

    /// Processes arrivals without blocking; returns whether there were any.
    ///
    /// # Errors
    /// Only if the van itself is broken.
    pub(super) fn step(&mut self) -> Result<bool> {
        let polled = self.endpoint.poll();
        if let Ok(false) = polled {
            debug_assert!(self.is_moving || !self.tables.is_moving(), "something would wait");
            return Ok(self.is_moving && self.advance());
        }
        self.drain();
        self.is_moving = self.tables.is_moving();
        if self.is_moving {
            self.advance();
        }
        Ok(polled?)
    }

    /// Moves shards along, and serves the requests that need not wait for it any longer; returns
    /// whether there was anything to do.
    #[cold]
    fn advance(&mut self) -> bool {
        self.tables.pass_gathered(&mut self.endpoint.lanes);
        self.tables.pass_late_parts(&mut self.endpoint.lanes);
        let is_busy = self.tables.advance(&mut self.endpoint);
        let is_copying = self.tables.advance_chains(&mut self.endpoint);
        for (table, range) in std::mem::take(&mut self.tables.left) {
            self.keys.forget_shard(table, range.begin());
            for Parked { peer, message, list, .. } in self.parking.take_shard(table, range) {
                self.tables.hold(Held { peer, message, list });
            }
        }
        for peer in self.tables.take_broken() {
            self.endpoint.disconnect(peer);
            self.forget(peer);
        }
        self.release_held();
        self.tables.pass_gathered(&mut self.endpoint.lanes);
        self.is_moving = self.tables.is_moving();
        is_busy || is_copying
    }

    /// Serves the requests that waited for a move which has ended. No later one may overtake them.
    /// One that asks for this again, as it releases others, leaves them to the call that serves it:
    /// as many may wait as all workers have credits.
    fn release_held(&mut self) {
        if std::mem::replace(&mut self.is_releasing, true) {
            return;
        }
        while let Some(Held { peer, message, list }) = self.tables.release() {
            self.admit(peer, message, list);
        }
        self.is_releasing = false;
    }

    /// Processes arrivals. `step` calls this function out of line, so that a step without arrivals
    /// stays short.
    #[inline(never)]
    fn drain(&mut self) {
        while let Some(arrival) = self.endpoint.take() {
            match arrival {
                Arrival::Message { peer } => self.serve(peer),
                Arrival::Placed { peer, memory, .. } => {
                    drop(memory); // moved, so that a message has nothing to drop
                    self.reject(peer);
                }
                Arrival::Lost { peer, error } => {
                    tracing::debug!(%error, "a lane is gone");
                    self.forget(peer);
                }
                Arrival::Connected { peer, hello } => {
                    self.tables.greet(peer, &hello);
                    self.clients.greet(peer, hello.node.get());
                }
            }
        }
    }

    /// Records the answers of a server to which a shard moves.
    #[cold]
    fn answered(&mut self, peer: PeerId) {
        let Endpoint { lanes, inbox } = &mut self.endpoint;
        let is_expected = self.tables.enter_confirmed(lanes, peer, inbox.message_mut())
            || self.tables.enter_answers(peer, inbox.message_mut());
        if !is_expected {
            self.reject(peer);
        }
    }

    #[cold]
    fn reject(&mut self, peer: PeerId) {
        tracing::warn!(%peer, "a worker sent an answer to a server; closing the lane");
        self.endpoint.disconnect(peer);
        self.forget(peer);
    }

    /// Serves the message in the inbox. A record that has to wait, or that takes memory of its own,
    /// is taken out.
    #[inline(always)]
    fn serve(&mut self, peer: PeerId) {
        let message = self.endpoint.inbox.message();
        if message.kind() != Kind::Request {
            return self.answered(peer);
        }
        let table = message.table();
        let stays = self.keys.are_all_known()
            && message.signature().is_none()
            && message.origin().is_none()
            && message.lent().is_none()
            && !self.parking.is_awaited(table);
        if !stays {
            if message.origin().is_some() {
                return follow(self, peer);
            }
            let Some(message) = self.endpoint.pop() else { return };
            return self.handle(peer, message);
        }
        let client = self.clients.at(peer);
        let Endpoint { lanes, inbox } = &mut self.endpoint;
        match self.tables.serve(lanes, client, inbox.message_mut(), None, Admitted::No) {
            Ok(Step::Done) => {}
            Ok(Step::Release) => self.release(table),
            Ok(step) => {
                let Some(message) = self.endpoint.pop() else { return };
                let parked = self.keep(client, message, None, step);
                self.parking.park(table, parked);
            }
            Err(error) => self.give_up(peer, error),
        }
    }

    /// Admits a request once its keys are known: asks the worker for the keys of an unknown
    /// signature.
    #[inline(never)]
    fn handle(&mut self, peer: PeerId, message: Message) {
        if self.keys.are_awaited(peer) {
            return self.hold(peer, message);
        }
        if message.lent().is_some() && !self.reads_once(&message) {
            return self.copy_lent(peer, message);
        }
        let Some(signature) = message.signature() else { return self.admit(peer, message, None) };
        let (table, key) = (message.table(), message.range().begin());
        if self.tables.get(table, key).is_none()
            && (!message.keys().is_empty()
                || !matches!(self.tables.missing(table, key), Trouble::Moved(_)))
        {
            return self.admit(peer, message, None); // which refuses it or sends it back
        }
        match self.keys.find(peer, signature, &message) {
            Ok(Some(list)) => self.admit(peer, message, Some(list)),
            Ok(None) => {
                let asks = Draft { op: Op::Keys as u8, ..answer(Kind::Failure, &message) };
                self.keys.await_keys(peer, message);
                let posted = post(&mut self.endpoint.lanes, peer, asks);
                self.check(peer, posted);
            }
            Err(error) => self.refuse(peer, &message, &error.into()),
        }
    }

    /// Writes out the keys of a request that has runs in their place, and executes it or returns it
    /// as [`ShardService::execute`] does.
    fn expand(&mut self, client: Client, message: Message) -> Option<Parked> {
        match self.keys.write_out(&message) {
            Ok(list) => self.execute(client, message, Some(list)),
            Err(reason) => {
                self.refuse(client.peer, &message, &reason);
                None
            }
        }
    }

    /// Whether the table's rule may read lent values in place, where their sender can still write
    /// them. The values must be unfiltered and go on to no copy, and the rule must read each once.
    #[cold]
    fn reads_once(&self, message: &Message) -> bool {
        let is_plain = Op::from_raw(message.op()).is_some_and(Op::pushes);
        let shard = self.tables.get(message.table(), message.range().begin());
        is_plain && shard.is_some_and(|entry| entry.shard.reads_once() && entry.is_last())
    }

    /// Copies a request's lent values, and handles it.
    #[cold]
    fn copy_lent(&mut self, peer: PeerId, message: Message) {
        let reply_to = reply_to(peer, &message);
        match message.kept(self.endpoint.lanes.memory()) {
            Ok(message) => self.handle(peer, message),
            Err(error) => {
                let refused = refuse(&mut self.endpoint.lanes, reply_to, &error.into());
                self.check(peer, refused);
            }
        }
    }

    /// Holds a message of a lane that was asked for keys. If the message brings them, executes the
    /// request that lacked them, and then all held messages.
    fn hold(&mut self, peer: PeerId, message: Message) {
        let Some(brought) = self.keys.hold(peer, message) else { return };
        let Brought { request, list, shard: (table, key), held } = brought;
        let is_here = self.tables.get(table, key).is_some();
        match list {
            Ok(list) => self.admit(peer, request, Some(list)),
            Err(error) => self.refuse(peer, &request, &error.into()),
        }
        if !is_here {
            self.keys.forget_shard(table, key);
        }
        held.into_iter().for_each(|message| self.handle(peer, message));
    }

    /// Answers a request with the reason why it cannot be executed.
    #[cold]
    fn refuse(&mut self, peer: PeerId, message: &Message, reason: &Refused) {
        let refused = refuse(&mut self.endpoint.lanes, reply_to(peer, message), reason);
        self.check(peer, refused);
    }

    /// Drops a table with everything that is kept for it: its rows, the lists of keys, and the
    /// requests that wait for its clock, which are refused.
    #[cold]
    fn drop_table(&mut self, peer: PeerId, message: &Message) {
        let table = message.table();
        for reply_to in self.tables.unanswered(table) {
            let refused = refuse_dropped(&mut self.endpoint.lanes, reply_to);
            self.check(reply_to.peer, refused);
        }
        let (waiting, elsewhere) = match self.tables.drop(table) {
            Ok(dropped) => dropped,
            Err(reason) => return self.refuse(peer, message, &reason),
        };
        self.keys.forget_table(table);
        let parked = self.parking.take(table).into_iter();
        let parked = parked.map(|parked| (Some(parked.peer), parked.message));
        for (peer, message) in parked.chain(waiting.into_iter().map(|it| (it.peer, it.message))) {
            let Some(peer) = peer else { continue };
            let refused = refuse_dropped(&mut self.endpoint.lanes, reply_to(peer, &message));
            self.check(peer, refused);
        }
        let lanes = &mut self.endpoint.lanes;
        let answered = match elsewhere.is_empty() {
            true => lanes.answer(peer, message.timestamp()),
            false => {
                let elsewhere = serde_json::json!(elsewhere).to_string();
                let values = Values::Copied(elsewhere.as_bytes());
                post(lanes, peer, Draft { values, ..answer(Kind::Reply, message) })
            }
        };
        self.check(peer, answered);
    }

    /// Executes or parks one request, and then executes those that waited for it.
    #[inline(never)]
    fn admit(&mut self, peer: PeerId, message: Message, list: Option<Rc<List>>) {
        let (table, key) = (message.table(), message.range().begin());
        let before =
            if self.parking.is_awaited(table) { self.tables.clock(table, key) } else { None };
        let waits = self.execute(self.clients.at(peer), message, list);
        self.parking.park(table, waits);
        if before.is_some() && before < self.tables.clock(table, key) {
            self.unpark(table);
        }
    }

    /// Executes a table's parked requests whose clock has come, in the order of arrival. Each may
    /// advance the clock for others.
    #[inline(never)]
    fn unpark(&mut self, table: u32) {
        let mut parked = self.parking.take(table);
        let mut at = 0;
        while at < parked.len() {
            let key = parked[at].message.range().begin();
            let before = self.tables.clock(table, key);
            if before < Some(parked[at].clock) {
                at += 1;
                continue;
            }
            let Parked { peer, message, list, .. } = parked.remove(at);
            let waits = self.execute(self.clients.at(peer), message, list);
            if let Some(waits) = waits {
                parked.insert(at, waits);
                at += 1;
            }
            if before < self.tables.clock(table, key) {
                at = 0;
            }
        }
        // Lanes may have been given up meanwhile.
        parked.retain(|parked| self.clients.knows(parked.peer));
        self.parking.put_back(table, parked);
    }

    /// Executes a request, or returns it if it has to wait for its shard's clock.
    #[inline(never)]
    fn execute(
        &mut self,
        client: Client,
        message: Message,
        list: Option<Rc<List>>,
    ) -> Option<Parked> {
        let lanes = &mut self.endpoint.lanes;
        let mut message = message;
        let table = message.table();
        if message.origin().is_some() {
            match serve_forwarded(&mut self.tables, lanes, client.peer, &mut message) {
                Ok(step) => return self.keep(client, message, list, step),
                Err(error) => {
                    self.give_up(client.peer, error);
                    return None;
                }
            }
        }
        match self.tables.serve(lanes, client, &mut message, list.as_ref(), Admitted::No) {
            Ok(Step::Done) => None,
            Ok(Step::Release) => {
                self.release(table);
                None
            }
            Ok(step) => self.keep(client, message, list, step),
            Err(error) => {
                self.give_up(client.peer, error);
                None
            }
        }
    }

    /// Keeps a request that was not executed at once: its values, if the shard stores them without
    /// a copy, or all of it until its table's model admits it. One that waits for its shard's clock
    /// is returned.
    #[inline(never)]
    fn keep(
        &mut self,
        client: Client,
        message: Message,
        list: Option<Rc<List>>,
        step: Step,
    ) -> Option<Parked> {
        let Client { peer, node } = client;
        match step {
            Step::Done | Step::Release => {}
            Step::Park(clock) => return Some(Parked { peer, message, list, clock }),
            Step::Adopt(key) => {
                let table = message.table();
                let served = self.tables.adopt(&mut self.endpoint.lanes, peer, message, key);
                self.check(peer, served);
                self.release(table);
            }
            Step::Drop => self.drop_table(peer, &message),
            Step::Expand => return self.expand(client, message),
            Step::Govern(wait_reason) => {
                let (table, key) = (message.table(), message.range().begin());
                let waiting = Waiting { peer: Some(peer), worker: node, message, list };
                if let Some(admission) = self.tables.admission(table, key) {
                    admission.park(wait_reason, waiting);
                }
                self.release(table);
            }
            Step::Hold => self.tables.hold(Held { peer, message, list }),
            Step::Await(wait_reason) => {
                self.tables.await_model(Held { peer, message, list }, node, wait_reason);
            }
        }
        None
    }

    /// Executes the requests that no longer wait: those of a table that its model admits now, and
    /// those whose shard has moved.
    #[inline(never)]
    fn release(&mut self, table: u32) {
        self.release_held();
        loop {
            let lanes = &mut self.endpoint.lanes;
            let next = self.tables.next_released(lanes, table);
            let Waiting { peer, worker, mut message, list } = match next {
                Ok(Some(waiting)) => waiting,
                Ok(None) => return,
                Err((peer, error)) => {
                    self.give_up(peer, error);
                    continue;
                }
            };
            let Some(peer) = peer else {
                self.tables.apply(lanes, &Waiting { peer, worker, message, list });
                continue;
            };
            let client = Client { peer, node: worker };
            let list = list.as_ref();
            match self.tables.serve(lanes, client, &mut message, list, Admitted::Yes) {
                Ok(Step::Adopt(key)) => {
                    let served = self.tables.adopt(lanes, peer, message, key);
                    self.check(peer, served);
                }
                Ok(_) => {}
                Err(error) => self.give_up(peer, error),
            }
        }
    }

    /// Drops everything held for a lost peer.
    fn forget(&mut self, peer: PeerId) {
        self.parking.forget(peer);
        self.tables.forget(peer);
        self.release_held();
        self.keys.forget(peer);
        if let Some(node) = self.clients.forget(peer) {
            self.tables.lose(node).into_iter().for_each(|table| self.release(table));
        }
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

/// Applies the records in the inbox that the thread before this one in a chain forwards. One that
/// has to wait is taken out.
#[inline(never)]
fn follow(service: &mut ShardService, peer: PeerId) {
    let message = service.endpoint.inbox.message();
    if message.lent().is_some() && !service.reads_once(message) {
        let Some(message) = service.endpoint.pop() else { return };
        return service.copy_lent(peer, message);
    }
    let Endpoint { lanes, inbox } = &mut service.endpoint;
    match serve_forwarded(&mut service.tables, lanes, peer, inbox.message_mut()) {
        Ok(Step::Hold) => {
            while let Some(message) = service.endpoint.pop() {
                service.tables.hold(Held { peer, message, list: None });
            }
        }
        Ok(_) => {}
        Err(error) => service.give_up(peer, error),
    }
}

/// The reply address of a request.
fn reply_to(peer: PeerId, request: &Message) -> ReplyTo {
    ReplyTo { peer, table: request.table(), timestamp: request.timestamp() }
}
