//! What a small request costs in instructions: worker and server in one thread, over a transport
//! that only hands frames over, or over shared memory.
//!
//! `ci/suites/instructions` runs it under callgrind, which counts what happens inside
//! [`stream_pushes`], [`stream_pulls`] and [`stream_sparse`]; by itself it shows nothing. Nothing
//! here waits, so the same program gives the same counts. The argument is the operation, how many
//! are in flight, and options: `shm` for shared memory, the consistency model of the table,
//! `parked` for one where another worker's pull waits, `copy` for one with a copy on a second
//! server, which needs `shm`, the handle of the table, which is `add` by default: `push-1`,
//! `pull-200`, `push-1-shm`, `pull-200-ssp`, `push-200-ftrl`. Under BSP every push ends the
//! iteration of the only worker, or it would wait. `sparse-1000` has iterations of SparseSSP's
//! controller alone, of 1000 keys.

#![forbid(unsafe_code)]

mod wire;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use caravan_kv::consistency::{
    Access, Controller, MapRecorder, Model, Recorder, RingRecorder, SparseSsp, Verdict,
};
use caravan_kv::{
    Handles, Placement, ServerAddress, ServerThread, Table, TableSpec, Timestamp, ValueType, Worker,
};
use caravan_van::shm::Shm;
use caravan_van::wire::Offer;
use caravan_van::{
    About, Buffer, Counters, Endpoint, Event, Frame, Gather, Identity, KeyRange, PeerId, Result,
    Transport, VanConfig, Wait,
};
use wire::{CREDITS, Frames, Wire};

/// Requests of each kind.
const COUNT: usize = 10_000;

/// Handles of tables besides `add`.
const HANDLES: [&str; 11] =
    ["assign", "sub", "mul", "div", "min", "max", "sgd", "momentum", "adagrad", "adam", "ftrl"];

/// `f32`s a key: 64 bytes.
const WIDTH: usize = 16;

#[inline(never)]
fn push(worker: &mut Worker, table: Table, key: u64, values: &[f32]) -> Timestamp {
    worker.push(table, &[key], values).expect("the server is there")
}

#[inline(never)]
fn push_last(worker: &mut Worker, table: Table, key: u64, values: &[f32]) -> Timestamp {
    worker.clocks(table).push_last(&[key], values).expect("the server is there")
}

#[inline(never)]
fn pull(worker: &mut Worker, table: Table, key: u64) -> Timestamp {
    worker.pull(table, &[key]).expect("the server is there")
}

#[inline(never)]
fn wait(worker: &mut Worker, timestamp: Timestamp) {
    worker.wait(timestamp).expect("it is answered");
}

/// The servers' turn: all that has come, and their answers.
#[inline(never)]
fn serve(servers: &mut [ServerThread]) {
    if let [server] = servers {
        while server.step().expect("the wire holds") {}
        return;
    }
    while servers.iter_mut().any(|server| server.step().expect("the wire holds")) {}
}

#[inline(never)]
fn stream_pushes(worker: &mut Worker, table: Table, window: usize, model: Option<Model>) {
    let push = if model == Some(Model::Bsp) { push_last } else { push };
    let values = [1.0; WIDTH];
    let mut made = VecDeque::with_capacity(window);
    for number in 0..COUNT {
        if made.len() == window {
            wait(worker, made.pop_front().expect("the window is not empty"));
        }
        made.push_back(push(worker, table, number as u64 % 64, &values));
    }
    made.into_iter().for_each(|timestamp| wait(worker, timestamp));
}

#[inline(never)]
fn stream_pulls(worker: &mut Worker, table: Table, window: usize) {
    let mut made = VecDeque::with_capacity(window);
    for number in 0..COUNT {
        if made.len() == window {
            wait(worker, made.pop_front().expect("the window is not empty"));
        }
        made.push_back(pull(worker, table, number as u64 % 64));
    }
    made.into_iter().for_each(|timestamp| wait(worker, timestamp));
}

/// The worker's end of a van. It runs the servers in place of waiting for them.
struct Served {
    van: Box<dyn Transport>,
    servers: Shared,
}

/// The servers, which every worker runs.
type Shared = Rc<RefCell<Vec<ServerThread>>>;

impl Transport for Served {
    fn about(&self) -> &About {
        self.van.about()
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.van.connect(address)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.van.disconnect(peer);
    }

    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        self.van.post_send(peer, frame)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.van.offer(peer, into)
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.van.withdraw(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        self.van.post_write(peer, data, into, at)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        self.van.poll(events)
    }

    fn wait(&mut self, _: Duration) -> Result<()> {
        serve(&mut self.servers.borrow_mut());
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.van.counters()
    }
}

/// Numbers of roles.
const SERVER: u8 = 2;
const WORKER: u8 = 3;

/// One end of shared memory.
fn shm(node: u32, role: u8) -> Box<dyn Transport> {
    let identity = Identity { role, ..Identity::default() };
    let config = VanConfig { node, identity, wait: Wait::Spin, ..VanConfig::default() };
    Box::new(Shm::new(&config).expect("this machine lets processes share memory"))
}

/// Both ends of a van, the server's first.
fn ends(over_shm: bool) -> [Box<dyn Transport>; 2] {
    if over_shm {
        return [shm(2, SERVER), shm(1, WORKER)];
    }
    let (there, back) = (Frames::default(), Frames::default());
    [Wire::new(&back, &there), Wire::new(&there, &back)]
}

/// What the argument asks for.
struct Asked {
    op: String,
    /// How many requests are in flight, or how many keys one has.
    count: usize,
    options: Vec<String>,
}

impl Asked {
    fn parse(text: &str) -> Asked {
        let mut words = text.split('-').map(str::to_owned);
        let op = words.next().unwrap_or_default();
        let count = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
        Asked { op, count, options: words.collect() }
    }

    /// The handle of the table.
    fn handle(&self) -> &str {
        let known = |option: &&String| HANDLES.contains(&option.as_str());
        self.options.iter().find(known).map_or("add", String::as_str)
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|has| has == option)
    }

    /// The consistency model of the table.
    fn model(&self) -> Option<Model> {
        let models = [
            ("bsp", Model::Bsp),
            ("ssp", Model::Ssp { staleness: 3 }),
            ("asp", Model::Asp),
            ("parked", Model::Ssp { staleness: 0 }),
        ];
        models.into_iter().find(|(name, _)| self.has(name)).map(|(_, model)| model)
    }
}

fn connect(van: Box<dyn Transport>, node: u32, servers: &Shared, at: &[ServerAddress]) -> Worker {
    let served = Served { van, servers: servers.clone() };
    let endpoint = Endpoint::new(Box::new(served), node, CREDITS);
    Worker::connect(endpoint, at, Duration::MAX).expect("the servers are there")
}

fn address(van: &dyn Transport) -> ServerAddress {
    ServerAddress { name: "server".to_owned(), address: van.about().address.clone() }
}

fn main() {
    let asked = Asked::parse(&std::env::args().nth(1).unwrap_or_else(|| "push-1".to_owned()));
    if asked.op == "sparse" {
        return sparse(&asked);
    }
    let [server_end, van] = ends(asked.has("shm"));
    let copies = u32::from(asked.has("copy"));
    let more = (0..copies).map(|more| shm(4 + more, SERVER));
    let vans: Vec<_> = std::iter::once(server_end).chain(more).collect();
    let count = vans.len();
    let at: Vec<ServerAddress> = vans.iter().map(|van| address(&**van)).collect();
    let thread = |(index, van): (usize, Box<dyn Transport>)| {
        let node = if index == 0 { 2 } else { 3 + index as u32 };
        ServerThread::new(Endpoint::new(van, node, CREDITS), index, count, Handles::default())
    };
    let servers: Vec<ServerThread> = vans.into_iter().enumerate().map(thread).collect();
    let servers = Rc::new(RefCell::new(servers));
    let mut worker = connect(van, 1, &servers, &at);
    let range = KeyRange::new(0, 64).expect("64 keys");
    let mut spec = TableSpec::new(1, "small", ValueType::F32, WIDTH as u32).keys(range).dense();
    spec = spec.handle(asked.handle()).replicas(copies);
    if copies > 0 {
        // One shard, so that the second server has nothing but the copy.
        spec = spec.placement(Placement::Cut(vec![(0, 0)]));
    }
    let model = asked.model();
    if let Some(model) = model {
        spec = spec.consistency(model, if asked.has("parked") { 2 } else { 1 });
    }
    let table = worker.admin().create_table(&spec).expect("the server takes it");
    if model.is_some() {
        worker.clocks(table).join().expect("the table has a model");
    }
    let _other = asked.has("parked").then(|| {
        let mut other = connect(shm(3, WORKER), 3, &servers, &at);
        let table = other.admin().create_table(&spec).expect("it is the same");
        other.clocks(table).join().expect("the table has a model");
        other.clocks(table).advance().expect("the server is there");
        other.pull(table, &[7]).expect("the server is there");
        other.poll().expect("the server is there");
        other
    });
    worker.filters(table).cache_keys().expect("it is known"); // as in the benches
    if copies > 0 {
        // The lane between the servers opens with the first request.
        let pushed = push(&mut worker, table, 0, &[1.0; WIDTH]);
        wait(&mut worker, pushed);
    }
    match &*asked.op {
        "push" => stream_pushes(&mut worker, table, asked.count, model),
        _ => stream_pulls(&mut worker, table, asked.count),
    }
}

/// Iterations of 64 workers under SparseSSP, who touch keys of their own.
fn sparse(asked: &Asked) {
    let (staleness, speculation) = (1, 4);
    let keys = asked.count;
    if asked.has("ring") {
        let versions = SparseSsp::<RingRecorder>::versions(staleness, speculation);
        let ring = RingRecorder::new(0, SPARSE_WORKERS * keys, versions);
        stream_sparse(SparseSsp::new(SPARSE_WORKERS, staleness, speculation, ring), keys);
    } else {
        let map = MapRecorder::default();
        stream_sparse(SparseSsp::new(SPARSE_WORKERS, staleness, speculation, map), keys);
    }
}

const SPARSE_WORKERS: usize = 64;

/// Every worker reads, ends and announces an iteration in turn; the first is behind the others.
#[inline(never)]
fn stream_sparse<R: Recorder>(mut controller: SparseSsp<R>, keys: usize) {
    let own = |worker: u32| (0..keys as u64).map(move |key| key * 64 + u64::from(worker));
    let own: Vec<Vec<u64>> = (0..SPARSE_WORKERS as u32).map(|it| own(it).collect()).collect();
    let access = |worker: u32, clock| Access {
        worker,
        clock,
        reads: true,
        writes: false,
        keys: &own[worker as usize],
    };
    for worker in 0..SPARSE_WORKERS as u32 {
        controller.join(worker, 1);
        for clock in 1..=5 {
            let _ = controller.announce(&access(worker, clock));
        }
        controller.advance(worker, 1, 6);
    }
    for number in 0..COUNT {
        let worker = (number % SPARSE_WORKERS) as u32;
        let behind = if worker == 0 { 3 } else { 0 };
        let Some(clock) = ((number / SPARSE_WORKERS) as u64 + 1).checked_sub(behind) else {
            continue;
        };
        if clock == 0 {
            continue;
        }
        let verdict = controller.admit(&access(worker, clock));
        assert_eq!(verdict, Verdict::Admit, "they touch different keys");
        controller.advance(worker, clock + 1, clock + 6);
        let _ = controller.announce(&access(worker, clock + 5));
    }
}
