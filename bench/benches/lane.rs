//! The steps between a message and a socket, each alone: memory, an endpoint's frames, and their
//! way through a stream. Nothing waits.
//!
//! `cargo bench -p caravan-bench --bench lane` runs all; the steps above are in `steps.rs`.

#![forbid(unsafe_code)]

#[path = "../examples/wire/mod.rs"]
mod wire;

use std::hint::black_box;
use std::rc::Rc;

use caravan_van::handshake::{Credentials, Greeter};
use caravan_van::offers::Offers;
use caravan_van::socket::{CARRIER, Receiver, Sender};
use caravan_van::wire::Kind;
use caravan_van::{
    Arrival, Coding, Draft, Endpoint, FRAME_PREFIX, PeerId, Pool, Shared, Values, VanConfig,
};
use criterion::{Criterion, Throughput};
use wire::{CREDITS, Frames, PEER, Wire};

/// Messages that leave together.
const TOGETHER: usize = 64;

fn main() {
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    memory(&mut criterion);
    endpoint(&mut criterion);
    stream(&mut criterion);
    criterion.final_summary();
}

/// A slot taken and given back, and one that is shared, sliced and let go in parts.
fn memory(criterion: &mut Criterion) {
    let pool = Pool::new(64 << 20);
    let mut group = criterion.benchmark_group("memory");
    for bytes in [64, 4 << 10, 64 << 10, 1 << 20] {
        group.bench_function(format!("allocate/{bytes}_B"), |bench| {
            bench.iter(|| black_box(pool.allocate(bytes).expect("there is room")));
        });
    }
    group.bench_function("share_and_slice", |bench| {
        bench.iter(|| {
            let whole = pool.allocate(4 << 10).expect("there is room").share();
            let parts: [Shared; 2] = [whole.slice(..64), whole.slice(64..)];
            black_box(parts);
        });
    });
    group.finish();
}

/// Requests of one key posted, carried, taken in and answered, one at a time and many: both
/// endpoints, no wire, no table.
fn endpoint(criterion: &mut Criterion) {
    let (there, back) = (Frames::default(), Frames::default());
    let mut server = Endpoint::new(Wire::new(&back, &there), 2, CREDITS);
    let mut worker = Endpoint::new(Wire::new(&there, &back), 1, CREDITS);
    let mut coding = Coding::plain();
    for end in [&mut server, &mut worker] {
        end.poll().expect("the wire holds");
        while end.take().is_some() {} // hello
    }
    let values = [1; 64];
    let mut timestamp = 0;
    let mut exchange = |count: usize| {
        for _ in 0..count {
            timestamp += 1;
            let values = Values::Copied(&values);
            let draft = Draft { timestamp, keys: &[7], values, ..Draft::new(Kind::Request) };
            worker.lanes.post(PEER, draft, &mut coding).expect("there is a credit");
        }
        worker.poll().expect("the wire holds");
        while server.poll().expect("the wire holds") {
            while let Some(arrival) = server.take() {
                let Arrival::Message { peer } = arrival else { continue };
                while !server.inbox.message().is_empty() {
                    let timestamp = server.inbox.message().timestamp();
                    server.lanes.answer(peer, timestamp).expect("the lane is open");
                    server.inbox.message_mut().advance();
                }
            }
        }
        while worker.poll().expect("the wire holds") {
            while worker.take().is_some() {
                while worker.pop().is_some() {}
            }
        }
    };
    let mut group = criterion.benchmark_group("endpoint");
    for count in [1, TOGETHER] {
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("request_and_answer/{count}_together"), |bench| {
            bench.iter(|| exchange(count));
        });
    }
    group.finish();
}

/// What one side of a connection sends with, and the other receives with, once both have proved
/// themselves.
fn halves(config: &VanConfig, peer: PeerId, pool: &Pool) -> (Sender, Receiver) {
    let credentials = || Rc::new(Credentials::new(config, CARRIER));
    let (greeter, call) = Greeter::calling(credentials());
    let mut caller = (Sender::new(peer), Receiver::new(peer, greeter, config.frame_bytes));
    caller.0.greet(call);
    let called = Receiver::new(peer, Greeter::called(credentials()), config.frame_bytes);
    let mut called = (Sender::new(peer), called);
    for _ in 0..2 {
        say(&mut caller, &mut called, config, pool);
        say(&mut called, &mut caller, config, pool);
    }
    (caller.0, called.1)
}

/// Carries what `from` has to say in its handshake to `to`.
fn say(
    from: &mut (Sender, Receiver),
    to: &mut (Sender, Receiver),
    config: &VanConfig,
    pool: &Pool,
) {
    let said: Vec<u8> =
        from.0.with_slices(|slices| slices.iter().flat_map(|slice| slice.to_vec()).collect());
    from.0.sent(said.len());
    if said.is_empty() {
        return;
    }
    let (sender, receiver) = to;
    receiver.spaces().staging[..said.len()].copy_from_slice(&said);
    let mut offers = Offers::default();
    let heard = receiver.received(said.len(), pool, &mut offers, &mut Vec::new());
    heard.expect("both know the secret");
    if let Some(reply) = receiver.take_reply() {
        sender.reply(reply, config.queue_depth);
    }
}

/// Frames queued, listed as slices, copied as a socket would, and cut out again.
fn stream(criterion: &mut Criterion) {
    let config = VanConfig::default();
    let pool = Pool::new(64 << 20);
    let peer = PeerId(0);
    let (mut sender, mut receiver) = halves(&config, peer, &pool);
    let (mut offers, mut events) = (Offers::default(), Vec::new());
    let mut carry = |count: usize, bytes: usize| {
        for _ in 0..count {
            let frame = pool.allocate(FRAME_PREFIX + bytes).expect("there is room");
            sender.frame(frame).expect("the queue has room");
        }
        while !sender.is_empty() {
            let into = receiver.spaces().staging;
            let mut moved = 0;
            sender.with_slices(|slices| {
                for slice in slices {
                    let here = slice.len().min(into.len() - moved);
                    into[moved..moved + here].copy_from_slice(&slice[..here]);
                    moved += here;
                }
            });
            sender.sent(moved);
            receiver
                .received(moved, &pool, &mut offers, &mut events)
                .expect("the stream is well-formed");
        }
        events.clear();
    };
    let mut group = criterion.benchmark_group("stream");
    for (count, bytes) in [(1, 80), (TOGETHER, 80), (1, 16 << 10)] {
        group.throughput(Throughput::Bytes((count * bytes) as u64));
        group.bench_function(format!("{count}_x_{bytes}_B"), |bench| {
            bench.iter(|| carry(count, bytes));
        });
    }
    group.finish();
}
