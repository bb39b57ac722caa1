//! What a small request costs in instructions: worker and server in one thread, over a transport
//! that only hands frames over, or over shared memory.
//!
//! `ci/instructions` runs it under callgrind, which counts what happens inside [`stream_pushes`]
//! and [`stream_pulls`]; by itself it shows nothing. Nothing here waits, so the same program gives
//! the same counts. The argument is the operation, how many are in flight, and `shm` for shared
//! memory: `push-1`, `pull-200`, `push-1-shm`.

#![forbid(unsafe_code)]

mod wire;

use std::collections::VecDeque;
use std::time::Duration;

use caravan_kv::{
    Handles, ServerAddress, ServerThread, Table, TableSpec, Timestamp, ValueType, Worker,
};
use caravan_van::shm::Shm;
use caravan_van::wire::Offer;
use caravan_van::{
    About, Buffer, Counters, Endpoint, Event, Frame, Gather, KeyRange, PeerId, Result, Transport,
    VanConfig, Wait,
};
use wire::{CREDITS, Frames, Wire};

/// Requests of each kind.
const COUNT: usize = 10_000;

/// Requests in flight.
const WINDOW: usize = 200;

/// `f32`s a key: 64 bytes.
const WIDTH: usize = 16;

#[inline(never)]
fn push(worker: &mut Worker, table: Table, key: u64, values: &[f32]) -> Timestamp {
    worker.push(table, &[key], values).expect("the server is there")
}

#[inline(never)]
fn pull(worker: &mut Worker, table: Table, key: u64) -> Timestamp {
    worker.pull(table, &[key]).expect("the server is there")
}

#[inline(never)]
fn wait(worker: &mut Worker, timestamp: Timestamp) {
    worker.wait(timestamp).expect("it is answered");
}

/// The server's turn: all that has come, and its answers.
#[inline(never)]
fn serve(server: &mut ServerThread) {
    while server.step().expect("the wire holds") {}
}

#[inline(never)]
fn stream_pushes(worker: &mut Worker, table: Table, window: usize) {
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

/// The worker's end of a van. It runs the server in place of waiting for it.
struct Served {
    van: Box<dyn Transport>,
    server: ServerThread,
}

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
        serve(&mut self.server);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.van.counters()
    }
}

/// Both ends of a van, the server's first.
fn ends(over_shm: bool) -> [Box<dyn Transport>; 2] {
    if over_shm {
        let config = VanConfig { wait: Wait::Spin, ..VanConfig::default() };
        let van = || Box::new(Shm::new(&config).expect("this machine lets processes share memory"));
        return [van(), van()];
    }
    let (there, back) = (Frames::default(), Frames::default());
    [Wire::new(&back, &there), Wire::new(&there, &back)]
}

fn main() {
    let what = std::env::args().nth(1).unwrap_or_else(|| "push-1".to_owned());
    let (what, over_shm) = what.strip_suffix("-shm").map_or((&*what, false), |what| (what, true));
    let [server_end, van] = ends(over_shm);
    let address = server_end.about().address.clone();
    let endpoint = Endpoint::new(server_end, 2, CREDITS);
    let server = ServerThread::new(endpoint, 0, 1, Handles::default());
    let endpoint = Endpoint::new(Box::new(Served { van, server }), 1, CREDITS);
    let at = ServerAddress { name: "server".to_owned(), address };
    let mut worker = Worker::connect(endpoint, &[at], Duration::MAX).expect("the server is there");
    let range = KeyRange::new(0, 64).expect("64 keys");
    let spec = TableSpec::new(1, "small", ValueType::F32, WIDTH as u32).keys(range).dense();
    let table = worker.create_table(&spec).expect("the server takes it");
    worker.cache_keys(table).expect("it is known"); // as in the benches
    for window in [1, WINDOW] {
        if what == format!("push-{window}") {
            stream_pushes(&mut worker, table, window);
        }
        if what == format!("pull-{window}") {
            stream_pulls(&mut worker, table, window);
        }
    }
}
