//! What a small request costs in instructions: worker and server in one thread, over a transport that only hands frames over.
//!
//! `ci/instructions` runs it under callgrind, which counts what happens inside [`push`], [`serve`] and so on; by itself it
//! shows nothing. Nothing here waits, and nothing depends on a clock: the same program gives the same counts.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use caravan_kv::{
    Handles, ServerAddress, ServerThread, Table, TableSpec, Timestamp, ValueType, Worker,
};
use caravan_van::wire::{Hello, Offer};
use caravan_van::{
    Buffer, Counters, Endpoint, Error, Event, FRAME_PREFIX, Gather, KeyRange, Limits, PeerId, Pool,
    Result, Transport,
};

/// Requests of each kind.
const COUNT: usize = 10_000;

/// Requests in flight.
const WINDOW: usize = 200;

/// As the vans have it.
const CREDITS: u16 = 256;

/// As the vans have it.
const FRAME_BYTES: usize = 24 << 10;

/// `f32`s a key: 64 bytes.
const WIDTH: usize = 16;

/// Frames on their way.
type Frames = Rc<RefCell<VecDeque<Buffer>>>;

/// One end of a wire that costs next to nothing.
struct Wire {
    pool: Pool,
    out: Frames,
    into: Frames,
    greeted: bool,
    /// What to do while waiting: the other end's work.
    other: Option<Rc<RefCell<ServerThread>>>,
}

impl Wire {
    fn new(out: &Frames, into: &Frames, other: Option<Rc<RefCell<ServerThread>>>) -> Box<Wire> {
        let (out, into) = (out.clone(), into.clone());
        Box::new(Wire { pool: Pool::new(64 << 20), out, into, greeted: false, other })
    }
}

const PEER: PeerId = PeerId(0);

impl Transport for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }

    fn address(&self) -> &str {
        "here"
    }

    fn limits(&self) -> Limits {
        Limits { frame_bytes: FRAME_BYTES, queue_depth: 1024, checks_bytes: false }
    }

    fn memory(&self) -> &Pool {
        &self.pool
    }

    fn connect(&mut self, _: &str) -> Result<PeerId> {
        Ok(PEER)
    }

    fn disconnect(&mut self, _: PeerId) {}

    fn post_send(&mut self, _: PeerId, mut frame: Buffer) -> Result<()> {
        frame.advance(FRAME_PREFIX);
        self.out.borrow_mut().push_back(frame);
        Ok(())
    }

    fn offer(&mut self, peer: PeerId, _: Buffer) -> Result<Offer> {
        Err(Error::NotConnected { peer })
    }

    fn withdraw(&mut self, peer: PeerId, _: u64) -> Result<Buffer> {
        Err(Error::NotConnected { peer })
    }

    fn post_write(&mut self, peer: PeerId, _: Gather, _: &Offer, _: u64) -> Result<()> {
        Err(Error::NotConnected { peer })
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        if !std::mem::replace(&mut self.greeted, true) {
            let mut hello = Hello::new(0, 1, CREDITS);
            hello.frame_bytes = (FRAME_BYTES as u32).into();
            events.push(Event::Connected { peer: PEER, hello });
        }
        while let Some(frame) = self.into.borrow_mut().pop_front() {
            events.push(Event::Received { peer: PEER, frame });
        }
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> Result<()> {
        if let Some(other) = &self.other {
            serve(&mut other.borrow_mut());
        }
        Ok(())
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

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

fn main() {
    let what = std::env::args().nth(1).unwrap_or_else(|| "all".to_owned());
    let (there, back) = (Frames::default(), Frames::default());
    let endpoint = Endpoint::new(Wire::new(&back, &there, None), 2, CREDITS);
    let server = ServerThread::new(endpoint, 0, 1, Handles::default());
    let server = Rc::new(RefCell::new(server));
    let endpoint = Endpoint::new(Wire::new(&there, &back, Some(server)), 1, CREDITS);
    let at = ServerAddress { name: "server".to_owned(), address: "here".to_owned() };
    let mut worker = Worker::connect(endpoint, &[at], Duration::MAX).expect("the server is there");
    let range = KeyRange::new(0, 64).expect("64 keys");
    let spec = TableSpec::new(1, "small", ValueType::F32, WIDTH as u32).keys(range).dense();
    let table = worker.create_table(&spec).expect("the server takes it");
    for window in [1, WINDOW] {
        let name = |op: &str| format!("{op}-{window}");
        if what == "all" || what == name("push") {
            stream_pushes(&mut worker, table, window);
        }
        if what == "all" || what == name("pull") {
            stream_pulls(&mut worker, table, window);
        }
    }
}
