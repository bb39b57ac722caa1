//! What a small request costs in instructions: worker and server in one thread, over a transport that only hands frames over.
//!
//! `ci/instructions` runs it under callgrind, which counts what happens inside [`push`], [`serve`] and so on; by itself it
//! shows nothing. Nothing here waits, and nothing depends on a clock: the same program gives the same counts.

#![forbid(unsafe_code)]

mod wire;

use std::collections::VecDeque;
use std::time::Duration;

use caravan_kv::{
    Handles, ServerAddress, ServerThread, Table, TableSpec, Timestamp, ValueType, Worker,
};
use caravan_van::{Endpoint, KeyRange};
use wire::{CREDITS, Frames, Wire};

/// Requests of each kind.
const COUNT: usize = 200_000;

/// Requests in flight.
const WINDOW: usize = 64;

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

fn main() {
    let what = std::env::args().nth(1).unwrap_or_else(|| "all".to_owned());
    let (there, back) = (Frames::default(), Frames::default());
    let endpoint = Endpoint::new(Wire::new(&back, &there, || {}), 2, CREDITS);
    let mut server = ServerThread::new(endpoint, 0, 1, Handles::default());
    let wire = Wire::new(&there, &back, move || serve(&mut server));
    let endpoint = Endpoint::new(wire, 1, CREDITS);
    let at = ServerAddress { name: "server".to_owned(), address: "here".to_owned() };
    let mut worker = Worker::connect(endpoint, &[at], Duration::MAX).expect("the server is there");
    let range = KeyRange::new(0, 64).expect("64 keys");
    let spec = TableSpec::new(1, "small", ValueType::F32, WIDTH as u32).keys(range).dense();
    let table = worker.create_table(&spec).expect("the server takes it");
    worker.cache_keys(table).expect("it is known"); // as in the benches
    let _ = what;
    for round in 0..6 {
        for window in [1, WINDOW] {
            let begin = std::time::Instant::now();
            stream_pushes(&mut worker, table, window);
            let push = begin.elapsed().as_nanos() as f64 / COUNT as f64;
            let begin = std::time::Instant::now();
            stream_pulls(&mut worker, table, window);
            let pull = begin.elapsed().as_nanos() as f64 / COUNT as f64;
            if round > 0 {
                print!("{window:3}: push {push:6.1} pull {pull:6.1}   ");
            }
        }
        println!();
    }
}
