//! A worker's push, pull and wait.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport. Everything happens
//! on the caller's thread: a worker sends requests (`worker/request.rs`) and receives answers
//! (`worker/answer.rs`) whenever it makes a request or waits for one.

mod admin;
mod answer;
mod asking;
mod chains;
mod checkpoint;
mod clocks;
mod copies;
mod filters;
mod info;
mod joining;
mod kept;
mod keys;
mod lanes;
mod leaving;
mod moving;
mod recovery;
mod request;
mod table;
mod waiting;

use std::collections::HashMap;
use std::time::Duration;

use caravan_van::{Buffer, Endpoint, Gauge, Pool, Shared, Value};

pub use self::admin::Admin;
use self::answer::run_callback;
pub use self::clocks::Clocks;
pub use self::copies::TableCopies;
pub use self::filters::TableFilters;
pub use self::info::Info;
pub use self::keys::Keys;
use self::lanes::Server;
use self::moving::Moves;
use self::recovery::Recovery;
use self::request::{Payload, Request};
pub use self::table::Table;
use self::table::TableState;
use self::waiting::{Awaited, Silence};
pub(crate) use self::waiting::{ChangeChains, News, Waits, Watch, hear_by};
use crate::config::REQUEST_TIMEOUT;
use crate::error::{Error, Result};
use crate::filter::{Outstanding, OwnFilters};
use crate::op::Op;
use crate::runs::Coded;
use crate::server_address::ServerAddress;
use crate::tracker::{Answer, Callback, Timestamp, Tracker};

/// The server threads that a worker knows at first.
pub(crate) struct Servers<'a> {
    /// All of them, the founders first.
    pub(crate) all: &'a [ServerAddress],
    /// Those that were there when the cluster was complete: tables are placed on them.
    pub(crate) founders: usize,
    /// Threads of each founding process.
    pub(crate) threads: usize,
}

impl Servers<'_> {
    /// Of a cluster that only these have founded, with one thread each.
    pub(crate) fn founding(all: &[ServerAddress]) -> Servers<'_> {
        Servers { all, founders: all.len(), threads: 1 }
    }
}

/// One node's client of all servers.
pub struct Worker {
    endpoint: Endpoint,
    servers: Vec<Server>,
    /// How many of them have founded the cluster.
    founders: usize,
    /// Index of the server by peer number.
    by_peer: Vec<Option<usize>>,
    tables: Vec<TableState>,
    tracker: Tracker,
    /// Unanswered messages that named their keys by a signature, by timestamp.
    named: HashMap<u64, Outstanding>,
    moves: Moves,
    recovery: Recovery,
    command: i32,
    clock: u64,
    /// The namespace that those of its tables are within.
    namespace: String,
    /// The keys of the last request with runs, and those of its last message as runs.
    implied: Vec<u64>,
    coded: Coded,
    /// Whether any table has filters.
    has_filters: bool,
    own_filters: OwnFilters,
    waits: Waits,
}

impl Worker {
    /// A worker of these server threads, which all workers name in the same order. It opens the
    /// lane to one when a request first goes there; that request fails with [`Error::Timeout`] if
    /// the lane is not up after `timeout`.
    ///
    /// # Errors
    /// [`Error::Config`] without servers.
    pub fn new(endpoint: Endpoint, servers: &[ServerAddress], timeout: Duration) -> Result<Worker> {
        let servers = Servers::founding(servers);
        Self::watched(endpoint, &servers, timeout, Waits::up_to(REQUEST_TIMEOUT))
    }

    /// As [`Worker::new`], and connects to all server threads at once.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the servers that could not be reached, with their addresses.
    pub fn connect(
        endpoint: Endpoint,
        servers: &[ServerAddress],
        timeout: Duration,
    ) -> Result<Worker> {
        let mut worker = Self::new(endpoint, servers, timeout)?;
        worker.connect_all(&worker.living(), timeout)?;
        Ok(worker)
    }

    /// As [`Worker::new`]; `waits` decides when this worker stops waiting.
    ///
    /// # Errors
    /// As [`Worker::new`]; what `waits` says of lost nodes.
    pub(crate) fn watched(
        endpoint: Endpoint,
        servers: &Servers<'_>,
        timeout: Duration,
        waits: Waits,
    ) -> Result<Worker> {
        let Servers { all, founders, threads } = *servers;
        let Some(founding) = all.get(..founders).filter(|founding| !founding.is_empty()) else {
            return Err(Error::Config(
                "a worker needs at least one server to connect to".to_owned(),
            ));
        };
        let addresses = founding.iter().map(|at| at.address.clone()).collect();
        let mut recovery = Recovery::of(addresses, threads);
        let mut waits = waits;
        waits.opening_max = timeout;
        let News { lost, events } = waits.look()?;
        recovery.view.lost.extend(lost);
        events.into_iter().for_each(|event| recovery.view.enter(event));
        // The roster may be younger than the news.
        let known = all[founders..].iter();
        let new = recovery.view.joined().skip(known.len());
        let further: Vec<ServerAddress> = known.chain(new).cloned().collect();
        further.iter().for_each(|_| recovery.enter_joined());
        let has_moved = recovery.view.events.iter().any(|event| !event.entries().is_empty());
        recovery.is_on = has_moved || recovery.view.departed().any(|it| it.thread < founders);
        recovery.view.check(founders).map_err(Error::Config)?;
        let why = |index: usize| match recovery.view.has_left(index) {
            true => Some(leaving::LEFT.to_owned()),
            false => recovery.is_gone(index).then(|| "it counts as lost".to_owned()),
        };
        let servers = founding.iter().chain(&further).enumerate();
        let servers = servers.map(|(index, at)| Server::new(at.clone(), why(index))).collect();
        Ok(Worker {
            endpoint,
            servers,
            founders,
            by_peer: Vec::new(),
            tables: Vec::new(),
            tracker: Tracker::default(),
            named: HashMap::new(),
            moves: Moves::default(),
            recovery,
            command: 0,
            clock: 0,
            namespace: String::new(),
            implied: Vec::new(),
            coded: Coded::default(),
            has_filters: false,
            own_filters: OwnFilters::default(),
            waits,
        })
    }

    /// The server threads that are not lost and have not left.
    fn living(&self) -> Vec<usize> {
        (0..self.servers.len()).filter(|server| !self.recovery.is_gone(*server)).collect()
    }

    /// What concerns whole tables: they are created, listed, dropped, moved and looked after by it.
    pub fn admin(&mut self) -> Admin<'_> {
        Admin { worker: self }
    }

    /// This worker's part in a table that has a consistency model.
    pub fn clocks(&mut self, table: Table) -> Clocks<'_> {
        Clocks { worker: self, table }
    }

    /// What this worker knows and counts.
    pub fn info(&self) -> Info<'_> {
        Info { worker: self }
    }

    /// How this worker's requests to a table are made smaller.
    pub fn filters(&mut self, table: Table) -> TableFilters<'_> {
        TableFilters { worker: self, table }
    }

    /// Registered memory: pushes from it and pulls into it need no copy.
    pub fn memory(&self) -> &Pool {
        self.endpoint.lanes.memory()
    }

    /// Shows by this gauge what this worker does: its counters and its iteration.
    pub(crate) fn show_by(&mut self, gauge: Gauge) {
        self.endpoint.lanes.show_by(gauge);
    }

    /// The van's clock: real, or simulated time.
    pub fn now(&self) -> Duration {
        self.endpoint.lanes.now()
    }

    /// Charges this thread for work that it has just done; `work` is its time on a core at full
    /// speed. Simulated time passes; real time has passed already.
    ///
    /// # Errors
    /// Only if the van itself is broken.
    pub fn charge(&mut self, work: Duration) -> Result<()> {
        Ok(self.endpoint.lanes.charge(work)?)
    }

    /// Sets the iteration of the following requests to tables without a consistency model; their
    /// handles may read it.
    pub fn set_clock(&mut self, clock: u64) {
        self.endpoint.lanes.gauge().mark(clock);
        self.clock = clock;
    }

    /// Sets the command number of the following pushes, pulls and commands, 0 at first. Their
    /// handles may read it, and define what it means.
    pub fn set_command(&mut self, command: i32) {
        self.command = command;
    }

    /// The number that [`Worker::set_command`] has set.
    pub(crate) fn command_number(&self) -> i32 {
        self.command
    }

    /// Pushes `values: [n * width]` for `keys: [n]`, strictly ascending: the keys one by one, or
    /// [`Runs`](crate::Runs) of them.
    ///
    /// # Errors
    /// Errors for wrong keys or lengths name the position; [`Error::ServerLost`]. For runs:
    /// [`Error::VaryingTable`] for a table whose rows have their own lengths, and
    /// [`Error::Config`] if the values cannot fit into this worker's memory.
    #[inline(always)]
    pub fn push<'k, V: Value>(
        &mut self,
        table: Table,
        keys: impl Into<Keys<'k>>,
        values: &[V],
    ) -> Result<Timestamp> {
        match keys.into() {
            Keys::Each(keys) => self.push_each(table, keys, values),
            runs @ Keys::Runs(_) => {
                let payload = Payload::of(values);
                self.make(runs, Request { payload, ..Request::new(Op::Push, table, &[]) })
            }
        }
    }

    // Callers' crates inline it, except in tests, which are quicker to build without.
    #[cfg_attr(not(debug_assertions), inline)]
    fn push_each<V: Value>(
        &mut self,
        table: Table,
        keys: &[u64],
        values: &[V],
    ) -> Result<Timestamp> {
        let payload = Payload::of(values);
        self.request(Request { payload, ..Request::new(Op::Push, table, keys) })
    }

    /// As [`Worker::push`], without a copy: the values are sent from their place in memory.
    ///
    /// To write there again, keep a clone of `values` and [`Shared::reclaim`] it after
    /// [`Worker::wait`]. `into()` turns a `bytes::Bytes` into a [`Shared`].
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn push_shared<'k>(
        &mut self,
        table: Table,
        keys: impl Into<Keys<'k>>,
        values: &Shared,
    ) -> Result<Timestamp> {
        let payload = Payload::Shared(values);
        self.make(keys.into(), Request { payload, ..Request::new(Op::Push, table, &[]) })
    }

    /// Pulls the values of `keys: [n]`; [`Worker::wait`] returns them.
    ///
    /// # Errors
    /// As [`Worker::push`].
    #[inline(always)]
    pub fn pull<'k>(&mut self, table: Table, keys: impl Into<Keys<'k>>) -> Result<Timestamp> {
        match keys.into() {
            Keys::Each(keys) => self.pull_each(table, keys),
            runs @ Keys::Runs(_) => self.make(runs, Request::new(Op::Pull, table, &[])),
        }
    }

    #[cfg_attr(not(debug_assertions), inline)]
    fn pull_each(&mut self, table: Table, keys: &[u64]) -> Result<Timestamp> {
        self.request(Request::new(Op::Pull, table, keys))
    }

    /// As [`Worker::pull`], into the caller's memory, where long values land without a copy.
    /// [`Worker::wait`] returns that memory.
    ///
    /// # Errors
    /// As [`Worker::push`]; [`Error::WrongLength`] unless `into` holds exactly the values.
    pub fn pull_into<'k>(
        &mut self,
        table: Table,
        keys: impl Into<Keys<'k>>,
        into: Buffer,
    ) -> Result<Timestamp> {
        let into = Some(into);
        self.make(keys.into(), Request { into, ..Request::new(Op::Pull, table, &[]) })
    }

    /// Pushes `values` and pulls the keys' updated values, in one message each way.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn push_pull<'k, V: Value>(
        &mut self,
        table: Table,
        keys: impl Into<Keys<'k>>,
        values: &[V],
    ) -> Result<Timestamp> {
        let payload = Payload::of(values);
        self.make(keys.into(), Request { payload, ..Request::new(Op::PushPull, table, &[]) })
    }

    /// As [`Worker::push_pull`], without copies on either side.
    ///
    /// # Errors
    /// As [`Worker::pull_into`].
    pub fn push_pull_shared<'k>(
        &mut self,
        table: Table,
        keys: impl Into<Keys<'k>>,
        values: &Shared,
        into: Buffer,
    ) -> Result<Timestamp> {
        let payload = Payload::Shared(values);
        let into = Some(into);
        self.make(keys.into(), Request { payload, into, ..Request::new(Op::PushPull, table, &[]) })
    }

    /// Makes a request for these keys.
    fn make<'r>(&mut self, keys: Keys<'r>, request: Request<'r>) -> Result<Timestamp> {
        match keys {
            Keys::Each(keys) => self.request(Request { keys, ..request }),
            Keys::Runs(runs) => self.request_runs(runs, request),
        }
    }

    /// Pushes `lengths[i]` values for each key, to a table whose rows have their own lengths.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn push_varying<V: Value>(
        &mut self,
        table: Table,
        keys: &[u64],
        lengths: &[u32],
        values: &[V],
    ) -> Result<Timestamp> {
        let payload = Payload::of(values);
        self.request_parts(Request { lengths, payload, ..Request::new(Op::Push, table, keys) })
    }

    /// Sends `body` to a table's handle; the answer holds one reply per shard, in their order.
    ///
    /// # Errors
    /// [`Error::ServerLost`].
    pub fn command(&mut self, table: Table, body: &[u8]) -> Result<Timestamp> {
        let shards = self.known(table)?.map.shards().len();
        self.request_shards(Op::Command, table, 0..shards, self.clock, body)
    }

    /// As [`Worker::command`], to one of [`Info::shards`] by its place there.
    ///
    /// # Errors
    /// As [`Worker::command`]; [`Error::Config`] if there is no such shard.
    pub fn command_to(&mut self, table: Table, shard: usize, body: &[u8]) -> Result<Timestamp> {
        let known = self.known(table)?;
        let shards = known.map.shards().len();
        if shard >= shards {
            let name = &known.spec.name;
            return Err(Error::Config(format!(
                "table {name} has {shards} shards, none is {shard}"
            )));
        }
        self.request_shards(Op::Command, table, shard..shard + 1, self.clock, body)
    }

    /// Runs `callback` on this thread as soon as the request has its outcome, before `wait` returns
    /// it.
    ///
    /// A request that has its outcome runs the callback at once. The callback gets an empty answer
    /// if `wait` has returned the outcome, or if the request is a push that succeeded. Callbacks
    /// run in the order of the outcomes.
    ///
    /// # Errors
    /// [`Error::UnknownTimestamp`] if the request was never made.
    pub fn then(&mut self, timestamp: Timestamp, callback: Callback) -> Result<()> {
        let settled = self.is_done(timestamp)?;
        match self.tracker.progress(timestamp.0).filter(|progress| !progress.abandoned) {
            Some(progress) if settled => run_callback(callback, progress),
            Some(progress) => progress.callback = Some(callback),
            None => callback(Ok(&Answer::default())),
        }
        Ok(())
    }

    /// Waits until every server has answered, and returns the answer; a second call returns an
    /// empty one.
    ///
    /// A push that succeeded need not be waited for; other requests keep their answer until they
    /// are. An error returns at once, without waiting for the remaining servers.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::ServerLost`] name the server; [`Error::UnknownTimestamp`].
    /// [`Error::Timeout`] if no server has answered anything for `CARAVAN_REQUEST_TIMEOUT_S`; the
    /// caller may wait for the request again. A client of
    /// [`Cluster::client`](crate::Cluster::client) reports a lost node as [`Error::NodeLost`].
    #[inline]
    pub fn wait(&mut self, timestamp: Timestamp) -> Result<Answer> {
        loop {
            if let Some(outcome) = self.tracker.claim(timestamp) {
                return outcome;
            }
            self.wait_until_settled(timestamp)?;
        }
    }

    #[inline(never)]
    fn wait_until_settled(&mut self, timestamp: Timestamp) -> Result<()> {
        if self.servers.len() > self.founders {
            self.look_at_times()?;
        }
        let mut silence = Silence::default();
        let mut done = self.is_done(timestamp)?;
        while !done {
            match self.poll()? {
                true => silence.began = None,
                false => self.backoff(&mut silence, Awaited::Answer(timestamp))?,
            }
            done = self.tracker.is_settled(timestamp.0);
        }
        Ok(())
    }

    /// Whether [`Worker::wait`] would return at once.
    ///
    /// # Errors
    /// [`Error::UnknownTimestamp`].
    #[inline]
    pub fn is_done(&mut self, timestamp: Timestamp) -> Result<bool> {
        if !self.tracker.was_made(timestamp.0) {
            return Err(Error::UnknownTimestamp { timestamp: timestamp.count() });
        }
        Ok(self.tracker.is_settled(timestamp.0))
    }

    /// Processes arrivals without blocking; returns whether there were any.
    ///
    /// # Errors
    /// Only if the van itself is broken.
    pub fn poll(&mut self) -> Result<bool> {
        let polled = self.endpoint.poll();
        if let Ok(false) = polled {
            return Ok(self.recovery.is_due && self.recover()?);
        }
        self.drain();
        self.send_returned();
        if self.recovery.is_due {
            self.recover()?;
        }
        Ok(polled?)
    }

    /// Sleeps until something may have arrived, or until `timeout` has passed.
    ///
    /// # Errors
    /// As [`Worker::wait`] for a lost node.
    pub fn sleep(&mut self, timeout: Duration) -> Result<()> {
        self.check_lost_nodes()?;
        self.part();
        Ok(self.endpoint.wait(timeout)?)
    }
}
