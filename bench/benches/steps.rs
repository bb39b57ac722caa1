//! The steps of a push, each alone: coding, slicing, and the update of a shard. No wire, no
//! threads, nothing waits.
//!
//! `cargo bench -p caravan-bench --bench steps` runs all, with `-- --quick` roughly, with
//! `-- decode` those so named. What a whole push costs is measured by `caravan bench`, not here.

#![forbid(unsafe_code)]

use std::hint::black_box;

use caravan_kv::filter::Signer;
use caravan_kv::server::{FoundRows, Pulled, Request};
use caravan_kv::{Handles, Placement, Shard, TableSpec, ValueType, slicer};
use caravan_van::draws::nth;
use caravan_van::wire::Kind;
use caravan_van::{
    Buffer, Coding, Draft, FRAME_PREFIX, KeyRange, Message, Pool, Value, Values, encode,
};
use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, BenchmarkId, Criterion, Throughput};

/// Of memory, in bytes: more than any step here needs.
const MEMORY_MAX: usize = 2 << 30;

/// Inputs prepared ahead of the clock take about so many bytes at a time.
const PREPARED_BYTES: usize = 4 << 20;

/// Keys of the sparse shard, and of the long request to slice.
const KEYS: usize = 100_000;

/// Keys of messages lie about so far apart: two bytes each when delta-coded.
const GAP: u64 = 1 << 14;

/// Values of the one large row: 1 MiB of `f32`.
const WIDE: usize = 1 << 18;

fn main() {
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    code(&mut criterion);
    compress(&mut criterion);
    slice(&mut criterion);
    update_dense_rows(&mut criterion);
    update_sparse_rows(&mut criterion);
    update_large_row(&mut criterion);
    criterion.final_summary();
}

/// Encode and decode: 1 and 1000 keys with 8 bytes and 16 KiB of values each. Compact coding makes
/// the keys shorter, not the values.
fn code(criterion: &mut Criterion) {
    let pool = Pool::new(MEMORY_MAX);
    for (count, each) in [(1, 8), (1, 16 << 10), (1000, 8), (1000, 16 << 10)] {
        let (keys, values) = (keys(count, GAP), noise(count * each));
        for (name, coding) in
            [("plain", Coding::plain as fn() -> Coding), ("compact", Coding::compact)]
        {
            let id = format!("{name}/{count}_x_{each}_B");
            let (mut group, mut coding) = (criterion.benchmark_group("encode"), coding());
            group.throughput(Throughput::Bytes(values.len() as u64));
            group.bench_function(&id, |bench| {
                bench.iter(|| encode(push(&keys, &values), &mut coding, &pool).expect("room"));
            });
            group.finish();
            let mut group = criterion.benchmark_group("decode");
            group.throughput(Throughput::Bytes(values.len() as u64));
            decode(&mut group, &id, &image(&keys, &values, &mut coding, &pool), &pool);
            group.finish();
        }
    }
}

/// Snappy on 16 KiB of values: when it pays; when it doesn't, on average over the messages that are
/// not even tried, and the tries alone.
fn compress(criterion: &mut Criterion) {
    let pool = Pool::new(MEMORY_MAX);
    let (keys, paying, not_paying) = (keys(1, GAP), half_noise(16 << 10), noise(16 << 10));
    let mut group = criterion.benchmark_group("snappy");
    group.throughput(Throughput::Bytes(16 << 10));
    for (name, values) in [("encode/pays", &paying), ("encode/does_not_pay", &not_paying)] {
        let mut coding = Coding::compact();
        group.bench_function(name, |bench| {
            bench.iter(|| encode(push(&keys, values), &mut coding, &pool).expect("room"));
        });
    }
    group.bench_function("encode/does_not_pay_first_try", |bench| {
        let encode_first = |mut coding| {
            let outgoing = encode(push(&keys, &not_paying), &mut coding, &pool).expect("room");
            (outgoing, coding)
        };
        bench.iter_batched(Coding::compact, encode_first, BatchSize::NumIterations(64));
    });
    decode(&mut group, "decode/pays", &image(&keys, &paying, &mut Coding::compact(), &pool), &pool);
    group.finish();
}

/// Check and cut of sorted keys for 8 servers, and the signature that stands for the check of keys
/// that come again.
fn slice(criterion: &mut Criterion) {
    let map = Placement::Even(1).map(KeyRange::ALL, 8).expect("8 servers");
    for count in [1, 1000, KEYS] {
        let keys = keys(count, u64::MAX / count as u64);
        let mut group = criterion.benchmark_group("slice");
        group.bench_function(BenchmarkId::new("cut", count), |bench| {
            bench.iter(|| {
                let (keys, mut parts, mut from) = (black_box(&keys), 0, 0);
                while let Some((_, part)) = slicer::next(keys, from, &map) {
                    (parts, from) = (parts + 1, part.end);
                }
                parts
            });
        });
        group.throughput(Throughput::Elements(count as u64));
        let signer = Signer::new(0);
        group.bench_function(BenchmarkId::new("sign", count), |bench| {
            bench.iter(|| signer.sign(black_box(&keys)));
        });
        group.bench_function(BenchmarkId::new("check", count), |bench| {
            bench.iter(|| slicer::check(black_box(&keys), KeyRange::ALL, "table"));
        });
        group.finish();
    }
}

/// Rows of a dense shard with one value each: one, 4096 that follow each other, and every other of
/// so many.
fn update_dense_rows(criterion: &mut Criterion) {
    let memory = Pool::new(MEMORY_MAX);
    let range = KeyRange::new(0, 2 * KEYS as u64).expect("there are keys");
    let spec = TableSpec::new(1, "steps", ValueType::F32, 1).keys(range).dense();
    let mut group = criterion.benchmark_group("dense_rows");
    for (name, count, step) in
        [("one", 1, 1), ("run", 4096, 1), ("scattered", 4096, 2), ("run", KEYS, 1)]
    {
        let keys: Vec<u64> = (0..count as u64).map(|i| 7 + i * step).collect();
        let values = vec![1.0f32; count];
        let request = request(&keys, f32::bytes(&values));
        let mut shard = Handles::default().build(&spec, range, &memory).expect("a dense one");
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("add/{name}_of_{count}"), |bench| {
            bench.iter(|| shard.push(&request, &memory));
        });
        pull(&mut group, &format!("pull/{name}_of_{count}"), &mut *shard, &request, &memory);
    }
    group.finish();
}

/// 100 000 keys with one value each: rows that exist, in the order of the keys, or in no order;
/// keys that the server remembers; and rows that don't exist yet.
fn update_sparse_rows(criterion: &mut Criterion) {
    let memory = Pool::new(MEMORY_MAX);
    let (keys, values) = (keys(KEYS, u64::MAX / KEYS as u64), vec![1.0f32; KEYS]);
    let unknown = request(&keys, f32::bytes(&values));
    let mut group = criterion.benchmark_group("sparse_rows");
    group.throughput(Throughput::Elements(KEYS as u64));
    for handle in ["add", "assign", "max", "sgd", "adagrad", "adam", "ftrl"] {
        let mut shard = shard(1, handle, &memory);
        shard.push(&unknown, &memory).expect("the request is right");
        group.bench_function(handle, |bench| bench.iter(|| shard.push(&unknown, &memory)));
    }
    group.bench_function("add_new", |bench| {
        let insert = |mut shard: Box<dyn Shard>| {
            shard.push(&unknown, &memory).expect("the request is right");
            shard
        };
        bench.iter_batched(|| shard(1, "add", &memory), insert, BatchSize::NumIterations(8));
    });
    for order in ["in_order", "mixed"] {
        let mut shard = shard(1, "add", &memory);
        if order == "mixed" {
            mix(&mut *shard, &keys, &memory);
        }
        let rows = FoundRows::default();
        let known = Request { rows: Some(&rows), ..unknown };
        for (name, request) in [("", &unknown), ("_known", &known)] {
            shard.push(request, &memory).expect("the request is right");
            group.bench_function(format!("add_{order}{name}"), |bench| {
                bench.iter(|| shard.push(request, &memory));
            });
            pull(&mut group, &format!("pull_{order}{name}"), &mut *shard, request, &memory);
        }
    }
    group.finish();
}

/// Makes rows for `keys` in the order of neighbours that are far apart.
fn mix(shard: &mut dyn Shard, keys: &[u64], memory: &Pool) {
    const STEP: usize = 97;
    for first in 0..STEP {
        let some: Vec<u64> = keys[first..].iter().copied().step_by(STEP).collect();
        let values = vec![0.0f32; some.len()];
        shard.push(&request(&some, f32::bytes(&values)), memory).expect("the request is right");
    }
}

/// A pull that is not answered from where the values lie.
fn pull(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: &str,
    shard: &mut dyn Shard,
    request: &Request<'_>,
    memory: &Pool,
) {
    let mut into = memory.allocate(request.values.len()).expect("there is room");
    group.bench_function(id, |bench| {
        bench.iter(|| match shard.pull(request) {
            Ok(Pulled::Bytes(_)) => shard.read(request, &mut into),
            pulled => drop(black_box(pulled)),
        });
    });
}

/// One row of 1 MiB: added to, overwritten, and exchanged for a message's own memory.
fn update_large_row(criterion: &mut Criterion) {
    let memory = Pool::new(MEMORY_MAX);
    let (key, values) = ([7], vec![1.0f32; WIDE]);
    let request = request(&key, f32::bytes(&values));
    let mut group = criterion.benchmark_group("row_of_1_MiB");
    let mut large = shard(WIDE as u32, "assign", &memory);
    assert!(large.adopts(&request), "it is as large as a chunk");
    group.bench_function("adopt", |bench| {
        let adopt = |row| large.adopt(key[0], row, &memory);
        bench.iter_batched(|| copy(request.values, &memory), adopt, BatchSize::NumIterations(4));
    });
    group.throughput(Throughput::Bytes(request.values.len() as u64));
    for handle in ["add", "assign"] {
        let mut shard = shard(WIDE as u32, handle, &memory);
        shard.push(&request, &memory).expect("the request is right");
        group.bench_function(handle, |bench| bench.iter(|| shard.push(&request, &memory)));
    }
    group.finish();
}

/// Decodes copies of `image`, which are made while the clock stands.
fn decode(group: &mut BenchmarkGroup<'_, WallTime>, id: &str, image: &[u8], pool: &Pool) {
    let prepared = (PREPARED_BYTES / image.len()).clamp(1, 256) as u64;
    let decode = |image| Message::decode(image, pool).expect("it was encoded here");
    group.bench_function(id, |bench| {
        bench.iter_batched(|| copy(image, pool), decode, BatchSize::NumIterations(prepared));
    });
}

fn push<'a>(keys: &'a [u64], values: &'a [u8]) -> Draft<'a> {
    Draft { keys, values: Values::Copied(values), ..Draft::new(Kind::Request) }
}

/// The message as it arrives, without the van's prefix.
fn image(keys: &[u64], values: &[u8], coding: &mut Coding, pool: &Pool) -> Vec<u8> {
    let outgoing = encode(push(keys, values), coding, pool).expect("there is room");
    outgoing.head[FRAME_PREFIX..].to_vec()
}

fn copy(bytes: &[u8], memory: &Pool) -> Buffer {
    let mut copy = memory.allocate(bytes.len()).expect("there is room");
    copy.copy_from_slice(bytes);
    copy
}

fn shard(width: u32, handle: &str, memory: &Pool) -> Box<dyn Shard> {
    let spec = TableSpec::new(1, "steps", ValueType::F32, width).handle(handle);
    Handles::default().build(&spec, KeyRange::ALL, memory).expect("servers know it")
}

fn request<'a>(keys: &'a [u64], values: &'a [u8]) -> Request<'a> {
    let (range, lengths) = (KeyRange::ALL, &[][..]);
    let (pushes, pulls, rows) = (true, false, None);
    Request { sender: 1, command: 0, clock: 0, range, keys, lengths, values, pushes, pulls, rows }
}

/// `count` keys in order, one at a random place in every `step` of them.
fn keys(count: usize, step: u64) -> Vec<u64> {
    (0..count as u64).map(|i| i * step + nth(0, i) % step).collect()
}

/// Bytes that no compression makes shorter.
fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64).flat_map(|i| nth(0, i).to_le_bytes()).take(bytes).collect()
}

/// As [`noise`], with every other 64 bytes zero: what gradients with rows of zeros look like.
fn half_noise(bytes: usize) -> Vec<u8> {
    let mut values = noise(bytes);
    values.chunks_mut(64).step_by(2).for_each(|part| part.fill(0));
    values
}
