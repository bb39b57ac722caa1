//! Goal: a table capped in bytes stays under its cap with every handle; what was evicted comes back
//! as new; what is admitted counts once, also while shards move and checkpoints are written.
//! Method: a shard of each handle, real servers, and whole clusters on the simulated van, against
//! maps; memory is what the pool says. A failure of a simulation prints its seed;
//! `CARAVAN_SEED=<seed> cargo test` replays it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::simulated::{Draws, connect, start, weather};
use crate::support::{Servers, any, config, handles};
use caravan_kv::checkpoint::{Checkpoints, Folder};
use caravan_kv::eviction::EvictionRule;
use caravan_kv::server::{Extract, Request};
use caravan_kv::{Handles, Placement, Shard, Table, TableSpec, ValueType, Worker};
use caravan_van::sim::for_each_seed;
use caravan_van::{Account, KeyRange, Pool, Value};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn servers(count: usize) -> Servers {
    Servers::start(any(), count, &config(64, 256 * MIB), &Handles::default())
}

fn table(worker: &mut Worker, eviction: EvictionRule) -> Table {
    let spec = TableSpec::new(1, "sums", ValueType::I64, 1).eviction(eviction);
    worker.admin().create_table(&spec).unwrap()
}

fn push(worker: &mut Worker, table: Table, keys: &[u64]) {
    let pushed = worker.push(table, keys, &vec![1_i64; keys.len()]).unwrap();
    worker.wait(pushed).unwrap();
}

fn pull(worker: &mut Worker, table: Table, keys: &[u64]) -> Vec<i64> {
    let pulled = worker.pull(table, keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

/// A push at this clock; `lengths` is empty if rows have one length.
fn request<'a>(keys: &'a [u64], lengths: &'a [u32], values: &'a [u8], clock: u64) -> Request<'a> {
    let (sender, command, range) = (1, 0, KeyRange::ALL);
    let (pushes, pulls, rows) = (true, false, None);
    Request { sender, command, clock, range, keys, lengths, values, pushes, pulls, rows }
}

/// Bytes of a pool that nobody can have any more. It takes the rest, a slot at a time.
fn taken(pool: &Pool) -> usize {
    let sizes = [64 << 10, 4 << 10, 512].into_iter();
    let slots: Vec<_> =
        sizes.flat_map(|size| std::iter::from_fn(move || pool.allocate(size).ok())).collect();
    pool.bytes_max() - slots.iter().map(|slot| slot.len()).sum::<usize>()
}

/// Each handle, pushed many times as many rows as its cap has room for.
#[test]
fn a_cap_holds_with_every_handle() {
    const ROUNDS: usize = 30;
    let all = "add assign sub mul div min max sgd momentum adagrad adam ftrl";
    let hides = ["momentum", "adagrad", "adam", "ftrl"];
    for handle in all.split(' ') {
        for width in [1, 8, 3000, 0] {
            let spec = TableSpec::new(1, "t", ValueType::F32, width).handle(handle);
            let eviction = EvictionRule { bytes_max: Some(MIB as u64), ..EvictionRule::default() };
            let spec = spec.eviction(eviction);
            let memory = Pool::new(16 * MIB);
            let shard = Handles::default().build(&spec, KeyRange::ALL, &memory);
            if width == 0 && hides.contains(&handle) {
                assert!(shard.is_err(), "{handle}");
                continue;
            }
            let mut shard = shard.unwrap();
            let row = if width == 0 { 5 } else { width as usize };
            let count = (4 * MIB / (row * 4 + 60) / ROUNDS).min(500);
            let values = vec![1_f32; count * row];
            let lengths = if width == 0 { vec![5; count] } else { Vec::new() };
            for round in 0..ROUNDS as u64 {
                let keys: Vec<u64> = (0..count as u64).map(|at| at * 4000 + round).collect();
                let request = request(&keys, &lengths, f32::bytes(&values), round);
                shard.push(&request, &memory).unwrap();
            }
            let taken = taken(&memory);
            assert!(taken <= MIB && taken > MIB / 3, "{handle} of {width}: {taken} bytes");
        }
    }
}

fn rows_of(shard: &dyn Shard) -> BTreeMap<u64, i64> {
    let mut rows = Extract::default();
    assert_eq!(shard.give(0, usize::MAX, &mut rows), Ok(None));
    let values = rows.values.chunks_exact(8).map(|row| i64::from_le_bytes(row.try_into().unwrap()));
    rows.keys.iter().copied().zip(values).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever comes, a row has the sum of what was pushed since it came: it was there before and
    /// got it once, or it is new. Rows that a push names are never evicted for others of it.
    #[test]
    fn a_row_has_what_was_pushed_since_it_came(
        pushes in prop::collection::vec((0_u64..40, prop::collection::btree_set(0_u64..5000, 0..400)), 1..40),
        pushes_min in prop::option::of(1_u8..4),
        probability in prop::option::of(0.2_f64..1.0),
        idle_max in prop::option::of(0_u64..10),
        score_min in prop::option::of(0.0_f32..2.0),
        bytes_max in prop::option::of(310_000_u64..500_000),
        is_varying: bool,
    ) {
        let decay = Some(0.9);
        let cells = Some(1000);
        let eviction =
            EvictionRule { pushes_min, cells, probability, idle_max, score_min, decay, bytes_max };
        let spec = TableSpec::new(1, "t", ValueType::I64, u32::from(!is_varying));
        let memory = Pool::new(16 * MIB);
        let spec = spec.eviction(eviction);
        let mut shard = Handles::default().build(&spec, KeyRange::ALL, &memory).unwrap();
        let mut before = BTreeMap::new();
        for (clock, keys) in pushes {
            let keys: Vec<u64> = keys.into_iter().collect();
            let lengths = if is_varying { vec![1; keys.len()] } else { Vec::new() };
            let ones = vec![1_i64; keys.len()];
            shard.push(&request(&keys, &lengths, i64::bytes(&ones), clock), &memory).unwrap();
            let rows = rows_of(&*shard);
            for (key, sum) in &rows {
                let had: i64 = before.get(key).copied().unwrap_or(0);
                match keys.binary_search(key) {
                    Ok(_) => prop_assert!(*sum == had + 1 || *sum == 1, "{} {} {}", key, had, sum),
                    Err(_) => prop_assert_eq!(*sum, had),
                }
            }
            if idle_max.is_none() && score_min.is_none() {
                prop_assert!(keys.iter().all(|key| rows.contains_key(key) || !before.contains_key(key)));
            }
            if bytes_max.is_none() && probability.is_none() && pushes_min.unwrap_or(1) == 1 {
                prop_assert!(keys.iter().all(|key| rows.contains_key(key)));
            }
            before = rows;
        }
    }
}

/// Rows that are pushed often stay, those that are pushed once go.
#[test]
fn rows_of_the_lowest_scores_go_first() {
    let servers = servers(1);
    let mut worker = servers.worker();
    let eviction = EvictionRule { bytes_max: Some(MIB as u64), ..EvictionRule::default() };
    let table = table(&mut worker, eviction);
    let popular: Vec<u64> = (0..100).map(|key| key << 32).collect();
    (0..2).for_each(|_| push(&mut worker, table, &popular));
    for round in 1..200 {
        worker.set_clock(round);
        let others: Vec<u64> = (0..500).map(|key| key << 32 | round).collect();
        push(&mut worker, table, &others);
    }
    assert_eq!(pull(&mut worker, table, &popular), [2; 100]);
    let firsts: Vec<u64> = (0..500).map(|key| key << 32 | 1).collect();
    assert_eq!(pull(&mut worker, table, &firsts), [0; 500]);
}

/// The last keys of a push that has no room for all of them get no rows.
#[test]
fn a_push_of_more_rows_than_the_cap_keeps_the_first() {
    let servers = servers(1);
    let mut worker = servers.worker();
    let eviction = EvictionRule { bytes_max: Some(MIB as u64), ..EvictionRule::default() };
    let table = table(&mut worker, eviction);
    let keys: Vec<u64> = (0..50_000).collect();
    push(&mut worker, table, &keys);
    let rows = pull(&mut worker, table, &keys);
    let count = rows.iter().sum::<i64>() as usize;
    assert!((1000..49_000).contains(&count) && rows[..count].iter().all(|row| *row == 1));
    push(&mut worker, table, &keys[keys.len() - 10..]);
    assert_eq!(pull(&mut worker, table, &keys[keys.len() - 10..]), [1; 10], "others went for them");
}

#[test]
fn what_was_evicted_comes_back_as_new() {
    let servers = servers(2);
    let mut worker = servers.worker();
    let table = table(&mut worker, EvictionRule { idle_max: Some(4), ..EvictionRule::default() });
    let (old, busy) = ([3, u64::MAX - 3], [5, u64::MAX - 5]);
    push(&mut worker, table, &old);
    for clock in 1..=6 {
        worker.set_clock(clock);
        push(&mut worker, table, &busy);
    }
    assert_eq!(pull(&mut worker, table, &old), [0, 0], "they read as new");
    assert_eq!(pull(&mut worker, table, &busy), [6, 6]);
    push(&mut worker, table, &old);
    assert_eq!(pull(&mut worker, table, &old), [1, 1], "and begin anew");
}

/// Keys count once from the push that admits them on, whether lists of keys are cached or not.
#[test]
fn what_is_admitted_counts_once() {
    for cached in [false, true] {
        let servers = servers(2);
        let mut worker = servers.worker();
        let eviction = EvictionRule { pushes_min: Some(3), ..EvictionRule::default() };
        let table = table(&mut worker, eviction);
        if cached {
            worker.filters(table).cache_keys().unwrap();
        }
        let mut counts: BTreeMap<u64, i64> = BTreeMap::new();
        for round in 0_u64..40 {
            let step = 1 + round % 3;
            let keys: Vec<u64> =
                (0..200).step_by(step as usize).map(|key| key << 56 | key).collect();
            push(&mut worker, table, &keys);
            keys.iter().for_each(|key| *counts.entry(*key).or_default() += 1);
            let all: Vec<u64> = counts.keys().copied().collect();
            let expected: Vec<i64> = counts.values().map(|count| (count - 2).max(0)).collect();
            assert_eq!(pull(&mut worker, table, &all), expected, "round {round}");
        }
    }
}

#[test]
fn a_probability_admits_its_share() {
    let servers = servers(1);
    let mut worker = servers.worker();
    let table =
        table(&mut worker, EvictionRule { probability: Some(0.25), ..EvictionRule::default() });
    let keys: Vec<u64> = (0..10_000).collect();
    push(&mut worker, table, &keys);
    let admitted = pull(&mut worker, table, &keys).iter().sum::<i64>();
    assert!((2200..2800).contains(&admitted), "{admitted}");
    push(&mut worker, table, &keys);
    let twice = pull(&mut worker, table, &keys).iter().filter(|count| **count == 2).count() as i64;
    assert_eq!(twice, admitted, "all that had a row");
}

/// A decayed count falls below the least.
#[test]
fn rows_of_low_scores_go() {
    let servers = servers(1);
    let mut worker = servers.worker();
    let eviction =
        EvictionRule { score_min: Some(0.4), decay: Some(0.5), ..EvictionRule::default() };
    let table = table(&mut worker, eviction);
    (0..4).for_each(|_| push(&mut worker, table, &[1]));
    push(&mut worker, table, &[2]);
    worker.set_clock(2);
    push(&mut worker, table, &[3]);
    assert_eq!(pull(&mut worker, table, &[1, 2, 3]), [4, 0, 1], "1 has a score of 1, 2 of 0.25");
}

#[test]
fn turnovers_that_cannot_be_are_refused_with_the_reason() {
    let servers = Servers::start(any(), 1, &config(64, 256 * MIB), &handles());
    let mut worker = servers.worker();
    let spec = |eviction| TableSpec::new(1, "t", ValueType::I64, 1).eviction(eviction);
    let none = EvictionRule::default();
    let range = caravan_van::KeyRange::new(0, 9).unwrap();
    for (spec, says) in [
        (spec(EvictionRule { pushes_min: Some(0), ..none }), "pushes_min is 0"),
        (spec(EvictionRule { cells: Some(0), ..none }), "cells is 0"),
        (spec(EvictionRule { probability: Some(0.0), ..none }), "probability is 0"),
        (spec(EvictionRule { decay: Some(1.5), ..none }), "decay is 1.5"),
        (spec(EvictionRule { score_min: Some(f32::NAN), ..none }), "score_min"),
        (spec(EvictionRule { bytes_max: Some(1 << 16), ..none }), "65536 of its bytes_max are for"),
        (spec(none).keys(range).dense(), "a dense table"),
        (spec(none).replicas(1), "room for 0"),
        (spec(none).handle("clocked"), "its handle keep all rows"),
    ] {
        let said = worker.admin().create_table(&spec).unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
    }
}

fn image_of(shard: &dyn Shard) -> Vec<u8> {
    let mut image = Vec::new();
    shard.image(&mut image);
    assert!(image.len() <= shard.image_bytes().unwrap());
    image
}

/// EvictionRules of all kinds, of tables with copies: 16 values a row, or rows of their own
/// lengths.
fn copied() -> Vec<TableSpec> {
    let none = EvictionRule::default();
    let cells = Some(300);
    let (decay, bytes_max) = (Some(0.7), Some(400_000));
    let evictions = [
        EvictionRule { pushes_min: Some(3), cells, probability: Some(0.7), ..none },
        EvictionRule { idle_max: Some(5), bytes_max, ..none },
        EvictionRule { score_min: Some(0.5), decay, pushes_min: Some(2), cells, bytes_max, ..none },
    ];
    let spec = |(width, eviction)| {
        let spec = TableSpec::new(1, "t", ValueType::I64, width).eviction(eviction);
        spec.replicas(1)
    };
    [16, 0].into_iter().flat_map(|width| evictions.map(|it| (width, it))).map(spec).collect()
}

/// Two shards with the same pushes have the same rows, scores and counts, as has one that was made
/// from an image of the first in between. Pushes that the first refuses, at any point, change no
/// more than the others hear.
#[test]
fn copies_have_the_same_rows_whatever_is_refused() {
    let (mut refused, mut with_rows_gone) = (0, 0);
    for (number, spec) in copied().into_iter().enumerate() {
        let memories = [(); 3].map(|()| Pool::new(32 * MIB));
        let mut shards = memories
            .each_ref()
            .map(|memory| Handles::default().build(&spec, KeyRange::ALL, memory).unwrap());
        let mut everything = Account::new(&memories[0], "everything");
        let mut draws = Draws(number as u64);
        for round in 0..600_u64 {
            if round == 300 {
                shards[2].restore(&image_of(&*shards[0]), &memories[2]).unwrap();
            }
            let many = if draws.below(4) == 0 { 300 } else { 10 };
            let mut keys: Vec<u64> = (0..many).map(|_| draws.below(4000) << 50).collect();
            keys.sort_unstable();
            keys.dedup();
            let length = if draws.below(6) == 0 { 17 } else { 16 };
            let lengths = if spec.width == 0 { vec![length; keys.len()] } else { Vec::new() };
            let values = vec![1_i64; keys.len() * length as usize];
            let push = request(&keys, &lengths, i64::bytes(&values), round / 4);
            if draws.below(3) == 0 {
                let left = memories[0].bytes_left() as u64;
                let _ = everything.set(left.saturating_sub(draws.below(40_000)) as usize);
            }
            let pushed = shards[0].push(&push, &memories[0]);
            everything.set(0).unwrap();
            let gone = shards[0].take_gone();
            assert!(pushed.is_err() || gone.is_empty());
            refused += usize::from(pushed.is_err());
            with_rows_gone += usize::from(!gone.is_empty());
            let image = image_of(&*shards[0]);
            for (shard, memory) in shards[1..].iter_mut().zip(&memories[1..]) {
                match &pushed {
                    _ if round < 300 && std::ptr::eq(memory, &memories[2]) => continue,
                    Ok(()) => shard.push(&push, memory).unwrap(),
                    Err(_) => shard.remove(&gone).unwrap(),
                }
                assert!(image_of(&**shard) == image, "{spec:?}, round {round}, {pushed:?}");
            }
        }
    }
    println!("{refused} pushes were refused, {with_rows_gone} when rows had gone for them");
    assert!(with_rows_gone > 10 && refused > 2 * with_rows_gone);
}

/// Whatever byte of an image is another, and wherever it ends: it is refused, or it is an image.
#[test]
fn damaged_images_are_refused() {
    for spec in copied() {
        let memory = Pool::new(32 * MIB);
        let build = || Handles::default().build(&spec, KeyRange::ALL, &memory).unwrap();
        let mut shard = build();
        let keys: Vec<u64> = (0..20).map(|key| key << 40).collect();
        let lengths = if spec.width == 0 { vec![3; keys.len()] } else { Vec::new() };
        let values = vec![1_i64; keys.len() * if spec.width == 0 { 3 } else { 16 }];
        for clock in 0..4 {
            shard.push(&request(&keys, &lengths, i64::bytes(&values), clock), &memory).unwrap();
        }
        let image = image_of(&*shard);
        assert!(rows_of(&*shard).len() > 5, "the image has rows");
        build().restore(&image, &memory).unwrap();
        for end in 0..image.len() {
            assert!(build().restore(&image[..end], &memory).is_err(), "{end} of {}", image.len());
        }
        for at in 0..image.len() {
            let mut damaged = image.clone();
            damaged[at] ^= 0x80;
            let mut restored = build();
            if restored.restore(&damaged, &memory).is_ok() {
                assert_eq!(image_of(&*restored).len(), image.len());
            }
        }
    }
}

const KEYS: u64 = 300;

/// A table without eviction whose keys get rows with their second push, and one with a cap.
fn moving() -> [TableSpec; 2] {
    let evictions = [
        EvictionRule { pushes_min: Some(2), ..EvictionRule::default() },
        EvictionRule { idle_max: Some(2), bytes_max: Some(3 << 19), ..EvictionRule::default() },
    ];
    let spec = |(id, eviction)| {
        let keys = KeyRange::new(0, KEYS).unwrap();
        let spec = TableSpec::new(id, "t", ValueType::I64, 1).keys(keys);
        spec.placement(Placement::Even(2)).eviction(eviction)
    };
    let [a, b] = evictions;
    [(1, a), (2, b)].map(spec)
}

/// A worker alone pushes ones to keys, and reads each after each push. Once a row has come it
/// counts on, and it is lost only where rows go.
fn count(worker: &mut Worker, seed: u64, node: u64) {
    let mut draws = Draws(seed << 8 | node);
    let tables = moving().map(|spec| worker.admin().create_table(&spec).unwrap());
    let mut sums = [BTreeMap::new(), BTreeMap::new()];
    for clock in 0..30 {
        worker.set_clock(clock);
        let keys: Vec<u64> =
            (0..KEYS).filter(|key| key % 2 == node && draws.below(4) == 0).collect();
        for (place, table) in tables.iter().enumerate() {
            // Both at once: the other worker may be far ahead, and its next push end the rows.
            let made = worker.push_pull(*table, &keys, &vec![1_i64; keys.len()]).unwrap();
            let rows = worker.wait(made).unwrap().values::<i64>().to_vec();
            for (key, sum) in keys.iter().zip(rows) {
                let had = sums[place].insert(*key, sum).unwrap_or(0);
                let is_new = sum == 1 && (place == 1 || had == 0);
                let is_refused = place == 0 && (sum, had) == (0, 0);
                assert!(sum == had + 1 || is_new || is_refused, "{place} {key}: {had}, {sum}");
            }
        }
    }
}

#[test]
fn nothing_admitted_is_lost_or_doubled_while_shards_move_and_are_read() {
    for_each_seed(60, |seed| {
        let network = caravan_van::sim::Network::new(seed, weather(seed));
        let (addresses, stop) =
            start(&network, 3, &Handles::default(), |server| server.move_by(300));
        let workers: Vec<_> = (0..2)
            .map(|node| {
                let to = addresses.clone();
                network.spawn(&format!("worker {node}"), move |network| {
                    count(&mut connect(network, 100 + node as u32, &to), seed, node);
                })
            })
            .collect();
        let to = addresses.clone();
        let mover = network.spawn("mover", move |network| {
            let folder = tempfile::tempdir().unwrap();
            let mut checkpoints = Checkpoints::new(Folder::new(folder.path()));
            let mut draws = Draws(seed ^ 5);
            let mut worker = connect(network, 98, &to);
            let tables = moving().map(|spec| worker.admin().create_table(&spec).unwrap());
            for round in 0..12 {
                network.sleep(Duration::from_micros(draws.below(300)));
                if round % 4 == 3 {
                    checkpoints.create(&mut worker, &moving()).unwrap();
                }
                let table = tables[draws.below(2) as usize];
                let shards = worker.info().shards(table).unwrap();
                let from = shards[draws.below(shards.len() as u64) as usize].range.begin();
                let moved =
                    worker.admin().move_shard(table, from, draws.below(3) as usize).unwrap();
                worker.wait(moved).unwrap();
            }
        });
        for node in workers {
            node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        mover.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// A checkpoint of a table with a cap comes back in another number of servers.
#[test]
fn rows_come_back_from_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::new(Folder::new(folder.path()));
    let eviction =
        EvictionRule { bytes_max: Some(4 << 20), idle_max: Some(3), ..EvictionRule::default() };
    let spec = TableSpec::new(1, "sums", ValueType::I64, 1).eviction(eviction);
    let keys: Vec<u64> = (0..3000).map(|key| key * (u64::MAX / 3000)).collect();
    {
        let servers = servers(2);
        let mut worker = servers.worker();
        let table = table(&mut worker, eviction);
        (0..2).for_each(|_| push(&mut worker, table, &keys));
        checkpoints.create(&mut worker, std::slice::from_ref(&spec)).unwrap();
    }
    let servers = servers(3);
    let mut worker = servers.worker();
    checkpoints.restore(&mut worker, 1).unwrap();
    let table = worker.admin().create_table(&spec).unwrap();
    assert_eq!(pull(&mut worker, table, &keys), [2; 3000]);
    worker.set_clock(9);
    push(&mut worker, table, &keys);
    assert_eq!(pull(&mut worker, table, &keys), [3; 3000], "they are as old as this push");
    worker.set_clock(13);
    push(&mut worker, table, &keys);
    assert_eq!(pull(&mut worker, table, &keys), [1; 3000], "they were idle for too long");
}
