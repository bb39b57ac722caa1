//! A worker's push, pull and wait.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport. Everything happens on the caller's thread:
//! requests leave, and answers are taken in, whenever the worker makes or waits for one.

use std::time::Duration;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{
    Arrival, Buffer, Counters, Draft, Endpoint, KeyRange, Message, PeerId, Pool, Shared, Value,
    Values,
};

use crate::error::{Error, Result, with_sources};
use crate::op::Op;
use crate::slicer;
use crate::table::{TableSpec, ValueType};
use crate::tracker::{Answer, Callback, Part, Slot, Timestamp, Tracker, What};

/// One sleep while waiting; whoever waits looks around at least this often.
const NAP: Duration = Duration::from_millis(100);

/// After so long a wait it is said what is waited for.
const SAY_AFTER: Duration = Duration::from_secs(10);

/// A table as this worker knows it. Cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table(u32);

/// Where a server thread listens.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServerAddress {
    /// "server 0 thread 1".
    pub name: String,
    /// As its van's `connect` takes it.
    pub address: String,
}

/// One node's client of all servers.
pub struct Worker {
    endpoint: Endpoint,
    servers: Vec<Server>,
    /// Index of the server by peer number.
    by_peer: Vec<Option<usize>>,
    tables: Vec<Known>,
    tracker: Tracker,
    arrivals: Vec<Arrival>,
    clock: u64,
}

struct Server {
    at: ServerAddress,
    peer: PeerId,
    up: bool,
    lost: Option<String>,
}

struct Known {
    spec: TableSpec,
    range: KeyRange,
    /// The servers' ranges, in order of servers.
    parts: Vec<KeyRange>,
    coding: Coding,
}

/// What to push.
enum Load<'a> {
    Nothing,
    Bytes(&'a [u8]),
    Shared(&'a Shared),
}

/// One request about to be made.
struct Request<'a> {
    what: What,
    table: Table,
    keys: &'a [u64],
    lengths: &'a [u32],
    load: Load<'a>,
    into: Option<Buffer>,
}

impl Worker {
    /// Connects to all servers; their order is the order of key ranges.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the servers that could not be reached, with their addresses.
    pub fn connect(
        mut endpoint: Endpoint,
        servers: &[ServerAddress],
        timeout: Duration,
    ) -> Result<Worker> {
        if servers.is_empty() {
            return Err(Error::Config(
                "a worker needs at least one server to connect to".to_owned(),
            ));
        }
        let mut connected = Vec::with_capacity(servers.len());
        for at in servers {
            let peer = endpoint.connect(&at.address).map_err(|error| Error::ServerLost {
                server: at.name.clone(),
                address: at.address.clone(),
                reason: with_sources(&error),
            })?;
            connected.push(Server { at: at.clone(), peer, up: false, lost: None });
        }
        let mut worker = Worker {
            endpoint,
            servers: connected,
            by_peer: Vec::new(),
            tables: Vec::new(),
            tracker: Tracker::default(),
            arrivals: Vec::with_capacity(64),
            clock: 0,
        };
        for (index, server) in worker.servers.iter().enumerate() {
            let slot = server.peer.0 as usize;
            if worker.by_peer.len() <= slot {
                worker.by_peer.resize(slot + 1, None);
            }
            worker.by_peer[slot] = Some(index);
        }
        let began = worker.endpoint.now();
        while !worker.servers.iter().all(|server| server.up) {
            worker.poll()?;
            if let Some(lost) = worker.servers.iter().find(|server| server.lost.is_some()) {
                return Err(lost.error());
            }
            let waited = worker.endpoint.now() - began;
            if waited > timeout {
                let missing = worker.servers.iter().filter(|server| !server.up);
                let missing: Vec<_> =
                    missing.map(|s| format!("{} at {}", s.at.name, s.at.address)).collect();
                let what = "connecting to the servers".to_owned();
                return Err(Error::Timeout {
                    what,
                    seconds: waited.as_secs_f64(),
                    missing: missing.join(", "),
                });
            }
            worker.endpoint.wait(NAP.min(timeout))?;
        }
        Ok(worker)
    }

    /// Number of server threads.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// The van that carries this worker's messages.
    pub fn van(&self) -> &'static str {
        self.endpoint.van()
    }

    /// Registered memory, to push from without a copy and to pull into.
    pub fn memory(&self) -> &Pool {
        self.endpoint.memory()
    }

    /// What the transport has done so far.
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// The van's clock: real, or simulated time.
    pub fn now(&self) -> Duration {
        self.endpoint.now()
    }

    /// The iteration that the following requests belong to; consistency models go by it.
    pub fn set_clock(&mut self, clock: u64) {
        self.clock = clock;
    }

    /// Creates a table on all servers, or joins it if there is an equal one.
    ///
    /// # Errors
    /// [`Error::Refused`] when the servers have another table under that id or cannot build it; [`Error::Config`].
    pub fn create_table(&mut self, spec: &TableSpec) -> Result<Table> {
        let range = spec.range()?;
        let text = serde_json::to_vec(spec)?;
        let timestamp = self.broadcast(What::Create, spec.id, &text)?;
        self.wait(timestamp)?;
        let parts = range.cut(self.servers.len()).collect();
        // The servers took it, so one of that number that is known already is equal.
        let known = self.tables.iter().position(|known| known.spec.id == spec.id);
        let index = known.unwrap_or_else(|| {
            let coding = Coding::plain();
            self.tables.push(Known { spec: spec.clone(), range, parts, coding });
            self.tables.len() - 1
        });
        Ok(Table(index as u32))
    }

    /// Delta-codes the keys of this table's requests, and Snappy-compresses what that makes smaller.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn compact(&mut self, table: Table) -> Result<()> {
        self.known(table)?;
        self.tables[table.0 as usize].coding = Coding::compact();
        Ok(())
    }

    /// Pushes `values: [n * width]` for `keys: [n]`, strictly ascending.
    ///
    /// # Errors
    /// Wrong keys or lengths name the position; [`Error::ServerLost`].
    pub fn push<V: Value>(
        &mut self,
        table: Table,
        keys: &[u64],
        values: &[V],
    ) -> Result<Timestamp> {
        self.check_type::<V>(table)?;
        let load = Load::Bytes(V::bytes(values));
        self.request(Request { what: What::Push, table, keys, lengths: &[], load, into: None })
    }

    /// Pushes `lengths[i]` values for each key, to a table whose keys have their own number of values.
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
        self.check_type::<V>(table)?;
        let load = Load::Bytes(V::bytes(values));
        self.request(Request { what: What::Push, table, keys, lengths, load, into: None })
    }

    /// As [`Worker::push`], without copying the values: they are sent from where they lie.
    ///
    /// Keep a clone of `values` and [`Shared::reclaim`] it after [`Worker::wait`] to write there again.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn push_shared(
        &mut self,
        table: Table,
        keys: &[u64],
        values: &Shared,
    ) -> Result<Timestamp> {
        let load = Load::Shared(values);
        self.request(Request { what: What::Push, table, keys, lengths: &[], load, into: None })
    }

    /// Pulls the values of `keys: [n]`, strictly ascending; [`Worker::wait`] returns them.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn pull(&mut self, table: Table, keys: &[u64]) -> Result<Timestamp> {
        self.request(Request {
            what: What::Pull,
            table,
            keys,
            lengths: &[],
            load: Load::Nothing,
            into: None,
        })
    }

    /// As [`Worker::pull`], into the caller's memory, where long values land without a copy; `wait` gives it back.
    ///
    /// # Errors
    /// As [`Worker::push`]; [`Error::WrongLength`] unless `into` holds exactly the values.
    pub fn pull_into(&mut self, table: Table, keys: &[u64], into: Buffer) -> Result<Timestamp> {
        let into = Some(into);
        self.request(Request {
            what: What::Pull,
            table,
            keys,
            lengths: &[],
            load: Load::Nothing,
            into,
        })
    }

    /// Pushes `values` and pulls what the keys hold after that, in one message each way.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn push_pull<V: Value>(
        &mut self,
        table: Table,
        keys: &[u64],
        values: &[V],
    ) -> Result<Timestamp> {
        self.check_type::<V>(table)?;
        let load = Load::Bytes(V::bytes(values));
        self.request(Request { what: What::PushPull, table, keys, lengths: &[], load, into: None })
    }

    /// As [`Worker::push_pull`], without copies on either side.
    ///
    /// # Errors
    /// As [`Worker::pull_into`].
    pub fn push_pull_shared(
        &mut self,
        table: Table,
        keys: &[u64],
        values: &Shared,
        into: Buffer,
    ) -> Result<Timestamp> {
        let (load, into) = (Load::Shared(values), Some(into));
        self.request(Request { what: What::PushPull, table, keys, lengths: &[], load, into })
    }

    /// Sends `body` to the handle of a table on every server; the answer holds one reply a server.
    ///
    /// # Errors
    /// [`Error::ServerLost`].
    pub fn command(&mut self, table: Table, body: &[u8]) -> Result<Timestamp> {
        let id = self.known(table)?.spec.id;
        self.broadcast(What::Command, id, body)
    }

    /// Runs `callback` on this thread as soon as the request has its outcome, before `wait` returns that; at once if it has
    /// it already, with an empty answer if `wait` need not be or was called. Callbacks run in the order of the outcomes.
    ///
    /// # Errors
    /// [`Error::UnknownTimestamp`] when the request was never made.
    pub fn then(&mut self, timestamp: Timestamp, callback: Callback) -> Result<()> {
        let settled = self.is_done(timestamp)?;
        match self.tracker.slot(timestamp.0).filter(|slot| !slot.abandoned) {
            Some(slot) if settled => run(callback, slot),
            Some(slot) => slot.callback = Some(callback),
            None => callback(Ok(&Answer::default())),
        }
        Ok(())
    }

    /// Waits until every server has answered, and returns what they said; nothing when that was returned before.
    ///
    /// A push that succeeded need not be waited for; other requests keep their answer until it is. An error returns at once,
    /// without waiting for servers that have not answered yet.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::ServerLost`] name the server; [`Error::UnknownTimestamp`].
    pub fn wait(&mut self, timestamp: Timestamp) -> Result<Answer> {
        let mut said = self.endpoint.now();
        while !self.is_done(timestamp)? {
            if !self.poll()? {
                self.endpoint.wait(NAP)?;
                if self.endpoint.now() > said + SAY_AFTER {
                    said = self.endpoint.now();
                    self.say_what_is_waited_for(timestamp);
                }
            }
        }
        self.tracker.claim(timestamp)
    }

    /// Whether [`Worker::wait`] would return at once.
    ///
    /// # Errors
    /// [`Error::UnknownTimestamp`].
    pub fn is_done(&mut self, timestamp: Timestamp) -> Result<bool> {
        if !self.tracker.was_made(timestamp.0) {
            return Err(Error::UnknownTimestamp { timestamp: timestamp.count() });
        }
        Ok(self.tracker.is_settled(timestamp.0))
    }

    /// Takes in what has arrived without blocking; true if anything did.
    ///
    /// # Errors
    /// Only when the van itself is broken.
    pub fn poll(&mut self) -> Result<bool> {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let polled = self.endpoint.poll(&mut arrivals);
        for arrival in arrivals.drain(..) {
            self.take_in(arrival);
        }
        self.arrivals = arrivals;
        Ok(polled?)
    }

    /// Sleeps until a poll may find something, or `timeout` has passed.
    ///
    /// # Errors
    /// Only when the van itself is broken.
    pub fn sleep(&mut self, timeout: Duration) -> Result<()> {
        Ok(self.endpoint.wait(timeout)?)
    }

    fn known(&self, table: Table) -> Result<&Known> {
        self.tables.get(table.0 as usize).ok_or(Error::UnknownTable { table: table.0 })
    }

    fn check_type<V: Value>(&self, table: Table) -> Result<()> {
        let spec = &self.known(table)?.spec;
        if spec.value.name() == V::NAME {
            return Ok(());
        }
        Err(Error::WrongType {
            table: spec.name.clone(),
            expected: spec.value.name(),
            found: V::NAME,
        })
    }

    fn request(&mut self, mut request: Request<'_>) -> Result<Timestamp> {
        let place = self.check(&request)?;
        let Request { what, table, keys, .. } = request;
        let mut into = match (what, request.into.take()) {
            (What::Push, _) => None,
            (_, Some(into)) => Some(into),
            (_, None) if place == 0 => None,
            (_, None) => Some(self.endpoint.memory().allocate(place)?),
        };
        let timestamp = self.tracker.begin(what)?;
        let parts = std::mem::take(&mut self.tables[table.0 as usize].parts);
        let mut sent = Ok(());
        let mut value = 0;
        for (server, slice) in slicer::cut(keys, &parts) {
            sent = self.send_part(
                timestamp,
                &request,
                (server, parts[server]),
                slice,
                &mut value,
                &mut into,
            );
            if sent.is_err() {
                break;
            }
        }
        self.tables[table.0 as usize].parts = parts;
        self.seal(timestamp, sent.map(|()| into.filter(|_| keys.is_empty())));
        Ok(timestamp)
    }

    /// Checks a request as a whole; returns the bytes that its answer will hold, 0 when that is not known.
    fn check(&self, request: &Request<'_>) -> Result<usize> {
        let Known { spec, range, .. } = self.known(request.table)?;
        slicer::check(request.keys, *range, &spec.name)?;
        let wrong = |what, expected, found| Error::WrongLength {
            what,
            table: spec.name.clone(),
            expected,
            found,
        };
        let count = request.keys.len();
        let row = spec.row_bytes();
        if row == 0 && request.into.is_some() {
            let (what, instead) = ("pulling into a buffer", "pull");
            return Err(Error::VaryingTable { what, table: spec.name.clone(), instead });
        }
        let pushed = match request.load {
            Load::Nothing => None,
            Load::Bytes(bytes) => Some(bytes.len()),
            Load::Shared(shared) => Some(shared.len()),
        };
        let lengths = if row == 0 && pushed.is_some() { count } else { 0 };
        if request.lengths.len() != lengths {
            return Err(wrong("lengths", lengths, request.lengths.len()));
        }
        let expected = match row {
            0 => request.lengths.iter().map(|&n| n as usize).sum::<usize>() * spec.value.bytes(),
            row => count.saturating_mul(row),
        };
        match pushed {
            Some(found) if found != expected => {
                let size = spec.value.bytes();
                return Err(wrong("values", expected / size, found / size));
            }
            _ => {}
        }
        match &request.into {
            Some(into) if into.len() != count.saturating_mul(row) => {
                Err(wrong("the buffer", count.saturating_mul(row), into.len()))
            }
            _ => Ok(count.saturating_mul(row)),
        }
    }

    /// Sends the keys at `slice` to a server; `value` is the number of value bytes before them.
    fn send_part(
        &mut self,
        timestamp: Timestamp,
        request: &Request<'_>,
        (server, range): (usize, KeyRange),
        slice: std::ops::Range<usize>,
        value: &mut usize,
        into: &mut Option<Buffer>,
    ) -> Result<()> {
        let peer = self.room(server)?;
        let spec = &self.tables[request.table.0 as usize].spec;
        let (table, row) = (spec.id, spec.row_bytes());
        let lengths =
            if request.lengths.is_empty() { &[][..] } else { &request.lengths[slice.clone()] };
        let bytes = match row {
            0 => lengths.iter().map(|&n| n as usize).sum::<usize>() * spec.value.bytes(),
            row => slice.len() * row,
        };
        let load = *value..*value + bytes;
        let mut part = Part {
            server,
            keys: slice.len(),
            into: into.as_mut().map(|into| into.split_to(bytes)),
            ..Part::default()
        };
        let mut offer = None;
        if let Some(place) = part.into.take_if(|place| place.len() > self.endpoint.eager_bytes()) {
            let offered = self.endpoint.offer(peer, place)?;
            part.offered = Some(offered.key.get());
            offer = Some(offered);
        }
        let values = match request.load {
            Load::Nothing => Values::None,
            Load::Bytes(bytes) => Values::Copied(&bytes[load.clone()]),
            Load::Shared(shared) if bytes > self.endpoint.eager_bytes() => {
                Values::Apart(shared.slice(load.clone()))
            }
            Load::Shared(shared) => Values::Copied(&shared[load.clone()]),
        };
        let draft = Draft {
            op: Op::from(request.what) as u8,
            table,
            timestamp: timestamp.0,
            clock: self.clock,
            range,
            offer,
            keys: &request.keys[slice],
            lengths,
            values,
            ..Draft::new(Kind::Request)
        };
        *value = load.end;
        let slot = self.tracker.slot(timestamp.0).expect("begun by the caller");
        slot.missing += 1;
        slot.parts.push(part);
        let coding = &mut self.tables[request.table.0 as usize].coding;
        self.endpoint.post(peer, draft, coding).inspect_err(|_| self.unsend(timestamp, peer))?;
        Ok(())
    }

    /// Sends the same text to every server.
    fn broadcast(&mut self, what: What, table: u32, body: &[u8]) -> Result<Timestamp> {
        let timestamp = self.tracker.begin(what)?;
        let sent = (0..self.servers.len())
            .try_for_each(|server| self.tell(timestamp, what, table, body, server));
        self.seal(timestamp, sent.map(|()| None));
        Ok(timestamp)
    }

    fn tell(
        &mut self,
        timestamp: Timestamp,
        what: What,
        table: u32,
        body: &[u8],
        server: usize,
    ) -> Result<()> {
        let peer = self.room(server)?;
        let slot = self.tracker.slot(timestamp.0).expect("open until it is sealed");
        slot.missing += 1;
        slot.parts.push(Part { server, ..Part::default() });
        let draft = Draft {
            op: Op::from(what) as u8,
            table,
            timestamp: timestamp.0,
            clock: self.clock,
            values: Values::Copied(body),
            ..Draft::new(Kind::Request)
        };
        self.endpoint
            .post(peer, draft, &mut Coding::plain())
            .inspect_err(|_| self.unsend(timestamp, peer))?;
        Ok(())
    }

    /// Takes in answers until the lane to `server` has room for a request.
    fn room(&mut self, server: usize) -> Result<PeerId> {
        loop {
            let Server { peer, lost, .. } = &self.servers[server];
            if lost.is_some() {
                return Err(self.servers[server].error());
            }
            let peer = *peer;
            if self.endpoint.credits(peer) > 0 {
                return Ok(peer);
            }
            if !self.poll()? {
                self.endpoint.wait(NAP)?;
            }
        }
    }

    /// Takes back the last part of a request, which could not be posted.
    fn unsend(&mut self, timestamp: Timestamp, peer: PeerId) {
        let slot = self.tracker.slot(timestamp.0).expect("open until it is sealed");
        slot.missing -= 1;
        if let Some(key) = slot.parts.pop().and_then(|part| part.offered) {
            // A lane that is closed has taken its offers back already.
            let _ = self.endpoint.withdraw(peer, key);
        }
    }

    /// All parts of a request have been sent, or one could not be; from now on it is complete when all sent ones are answered.
    fn seal(&mut self, timestamp: Timestamp, sent: Result<Option<Buffer>>) {
        let slot = self.tracker.slot(timestamp.0).expect("open until it is sealed");
        match sent {
            Ok(values) => slot.answer.values = values,
            Err(error) => slot.error = slot.error.take().or(Some(error)),
        }
        self.settle(timestamp.0);
    }

    /// One thing less is missing; completes the request if it was the last.
    fn settle(&mut self, timestamp: u64) {
        let Some(slot) = self.tracker.slot(timestamp) else { return };
        slot.missing -= 1;
        if slot.missing == 0 {
            complete(slot, self.endpoint.memory());
            self.tracker.release_if_nothing_to_claim(timestamp);
        } else if slot.error.is_some()
            && let Some(callback) = slot.callback.take()
        {
            run(callback, slot);
        }
    }

    fn take_in(&mut self, arrival: Arrival) {
        let peer = match &arrival {
            Arrival::Connected { peer, .. }
            | Arrival::Message { peer, .. }
            | Arrival::Lost { peer, .. } => *peer,
        };
        let server = self.by_peer.get(peer.0 as usize).copied().flatten();
        let Some(server) = server else { return self.endpoint.disconnect(peer) };
        match arrival {
            Arrival::Connected { .. } => self.servers[server].up = true,
            Arrival::Message { message, .. } if message.kind() == Kind::Request => {
                let reason = "it sent a request to a worker".to_owned();
                let address = self.servers[server].at.address.clone();
                self.endpoint.disconnect(peer);
                self.lose(server, &caravan_van::Error::PeerLost { peer, address, reason });
            }
            Arrival::Message { message, .. } => self.answer(server, message),
            Arrival::Lost { error, .. } => self.lose(server, &error),
        }
    }

    /// Enters one server's answer.
    fn answer(&mut self, server: usize, message: Message) {
        let timestamp = message.timestamp();
        let Some(slot) = self.tracker.slot(timestamp) else { return };
        let Some(part) = slot.parts.iter_mut().find(|part| part.server == server && !part.answered)
        else {
            return;
        };
        part.answered = true;
        let offered = part.offered.take();
        if let Some(key) = offered {
            part.into = self.endpoint.withdraw(self.servers[server].peer, key).ok();
        }
        let name = &self.servers[server].at.name;
        let refused =
            |reason| Error::Refused { server: name.clone(), what: slot.what.name(), reason };
        let outcome = match message.kind() {
            Kind::Failure => Err(refused(String::from_utf8_lossy(message.values()).into_owned())),
            _ => fill(part, message, slot.what, offered.is_some()).map_err(refused),
        };
        if let Err(error) = outcome
            && !slot.abandoned
        {
            slot.error.get_or_insert(error);
        }
        self.settle(timestamp);
    }

    /// Lets every request fail that `server` has not answered.
    fn lose(&mut self, server: usize, error: &caravan_van::Error) {
        self.servers[server].lost = Some(with_sources(error));
        // Takes back what was offered to it.
        self.endpoint.disconnect(self.servers[server].peer);
        for timestamp in self.tracker.open_timestamps() {
            let Some(slot) = self.tracker.slot(timestamp) else { continue };
            let unanswered = |part: &&mut Part| part.server == server && !part.answered;
            let Some(part) = slot.parts.iter_mut().find(unanswered) else { continue };
            part.answered = true;
            if !slot.abandoned {
                slot.error.get_or_insert(self.servers[server].error());
            }
            self.settle(timestamp);
        }
    }

    fn say_what_is_waited_for(&mut self, timestamp: Timestamp) {
        let Some(slot) = self.tracker.slot(timestamp.0) else { return };
        for part in slot.parts.iter().filter(|part| !part.answered) {
            let Server { at, .. } = &self.servers[part.server];
            tracing::warn!(request = %timestamp, what = slot.what.name(), server = at.name, address = at.address,
                "still waiting for an answer");
        }
    }
}

impl Server {
    fn error(&self) -> Error {
        Error::ServerLost {
            server: self.at.name.clone(),
            address: self.at.address.clone(),
            reason: self.lost.clone().unwrap_or_else(|| "not connected".to_owned()),
        }
    }
}

impl ValueType {
    /// The type that stands for `V`.
    pub fn of<V: Value>() -> Option<ValueType> {
        [ValueType::F32, ValueType::F64, ValueType::I32, ValueType::I64]
            .into_iter()
            .find(|t| t.name() == V::NAME)
    }
}

/// Puts a server's values where they belong; `offered` says that it may have written them there itself.
fn fill(part: &mut Part, message: Message, what: What, offered: bool) -> Result<(), String> {
    let Some(into) = &mut part.into else {
        if offered || message.placed().is_some() {
            return Err("it wrote values where nothing was offered".to_owned());
        }
        let (keys, lengths) = (part.keys, message.lengths().len());
        if matches!(what, What::Pull | What::PushPull) && lengths != keys {
            return Err(format!(
                "it answered with lengths for {lengths} keys where {keys} were asked for"
            ));
        }
        part.message = Some(message);
        return Ok(());
    };
    match message.placed() {
        Some(bytes) if offered && bytes == into.len() => Ok(()),
        None if message.values().len() == into.len() => {
            into.copy_from_slice(message.values());
            Ok(())
        }
        placed => {
            let found = placed.unwrap_or(message.values().len());
            Err(format!(
                "it answered with {found} bytes of values where {} were asked for",
                into.len()
            ))
        }
    }
}

/// Puts the parts of a request together.
fn complete(slot: &mut Slot, memory: &Pool) {
    if slot.error.is_none()
        && !slot.abandoned
        && let Err(error) = assemble(slot, memory)
    {
        slot.error = Some(error);
    }
    slot.parts.clear();
    if let Some(callback) = slot.callback.take() {
        run(callback, slot);
    }
}

fn assemble(slot: &mut Slot, memory: &Pool) -> Result<()> {
    let answer = &mut slot.answer;
    match slot.what {
        What::Push | What::Create => {}
        What::Command => {
            let messages = slot.parts.iter_mut().filter_map(|part| part.message.take());
            answer.replies = messages.map(|message| message.values().to_vec()).collect();
        }
        What::Pull | What::PushPull => {
            if slot.parts.iter().any(|part| part.message.is_some()) {
                return gather(slot, memory);
            }
            for part in &mut slot.parts {
                let Some(piece) = part.into.take() else { continue };
                match &mut answer.values {
                    None => answer.values = Some(piece),
                    Some(values) => values
                        .join(piece)
                        .expect("pieces are split off in the order of the servers"),
                }
            }
        }
    }
    Ok(())
}

/// Collects values whose sizes only the servers knew.
fn gather(slot: &mut Slot, memory: &Pool) -> Result<()> {
    let messages = || slot.parts.iter().filter_map(|part| part.message.as_ref());
    let bytes = messages().map(|message| message.values().len()).sum();
    let mut values = memory.allocate(bytes)?;
    let mut at = 0;
    for message in messages() {
        slot.answer.lengths.extend_from_slice(message.lengths());
        let part = message.values();
        values[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    slot.answer.values = Some(values);
    Ok(())
}

fn run(callback: Callback, slot: &Slot) {
    callback(slot.error.as_ref().map_or(Ok(&slot.answer), Err));
}
