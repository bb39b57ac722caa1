//! Goal: tables of sketches count what workers push: never too little, within the bound of the
//! sketch, and in few bytes; a sketch with copies counts on when a server dies, to the cell.
//! Method: a Zipf stream over a real van, against exact counts; the real code on the simulated van,
//! against a run without a death. A failure there prints its seed.

use crate::vans;
use std::collections::BTreeMap;
use std::f64::consts::E;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_kv::checkpoint::{Checkpoints, Folder};
use caravan_kv::filter::Draws;
use caravan_kv::{
    Apps, Cluster, ClusterConfig, Handles, Launch, Table, TableSpec, ValueType, Worker,
};
use caravan_learn::sketch::{self, Inserts, Options};
use caravan_van::KeyRange;
use caravan_van::sim::{Faults, Network, for_each_seed};

/// Distinct keys of the stream.
const KEYS: u64 = 40_000;

/// Inserts of a batch, and batches of the stream.
const BATCH: usize = 10_000;
const BATCHES: usize = 30;

/// A server thread's cells, and its hash functions.
const CELLS: u64 = 1 << 16;
const HASHES: u8 = 3;

/// Most bits that a pair of key and count takes on the wire.
const PAIR_BITS_MAX: u64 = 50;

/// A stream by Zipf's law with exponent 1. Ranks are spread over all servers' keys.
fn keys() -> impl Iterator<Item = u64> {
    let mut draws = Draws::new(3, 1);
    let rank = move || (KEYS as f64).powf(draws.next_unit()) as u64;
    std::iter::repeat_with(rank).map(|rank| rank * 7919 % KEYS).take(BATCHES * BATCH)
}

/// A cluster of this many servers.
fn cluster(servers: usize) -> Cluster {
    let node = vans::node(vans::any());
    let config = ClusterConfig { servers, workers: 0, threads: 1, node };
    let launch = Launch::Threads(sketch::handle(Handles::default()), Apps::default());
    Cluster::launch(&config, launch).unwrap()
}

fn spec(id: u32, value: ValueType) -> TableSpec {
    let keys = KeyRange::new(0, KEYS).unwrap();
    sketch::spec(id, "counts", value, keys, Options { cells: CELLS, hashes: HASHES })
}

/// Checks the estimates of all keys by the bound of sketches with `cells` cells.
fn check(worker: &mut Worker, table: Table, exact: &BTreeMap<u64, u64>, cells: u64) {
    let keys: Vec<u64> = exact.keys().copied().collect();
    let mut all = [0.0; 2];
    let server = |key: u64| usize::from(key >= KEYS / 2);
    exact.iter().for_each(|(key, count)| all[server(*key)] += *count as f64);
    let estimates = sketch::estimates(worker, table, &keys).unwrap();
    let mut over = 0;
    for (key, estimate) in keys.iter().zip(estimates) {
        let bound = E * f64::from(HASHES) * all[server(*key)] / cells as f64;
        assert!(estimate >= exact[key], "key {key}: {estimate}, and there are {}", exact[key]);
        over += usize::from((estimate - exact[key]) as f64 > bound);
    }
    let share = over as f64 / keys.len() as f64;
    println!("{share} of {} keys exceed the bound with {cells} cells", keys.len());
    assert!(share <= E.powi(-i32::from(HASHES)), "{share}");
}

fn sketches_are_never_under_and_within_their_bound(value: ValueType) {
    let cluster = cluster(2);
    let mut worker = cluster.client().unwrap();
    let table = worker.admin().create_table(&spec(1, value)).unwrap();
    let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
    let before = worker.info().counters().bytes_sent;
    let mut inserts = Inserts::new(&worker, table, BATCH).unwrap();
    for key in keys() {
        inserts.add(&mut worker, key, 1).unwrap();
        *exact.entry(key).or_default() += 1;
    }
    inserts.finish(&mut worker).unwrap();
    let bits = 8 * (worker.info().counters().bytes_sent - before) / inserts.pairs();
    println!("{bits} bits a pair, {} pairs", inserts.pairs());
    assert!(bits <= PAIR_BITS_MAX, "{bits} bits a pair");
    for cells in [CELLS, CELLS / 2] {
        check(&mut worker, table, &exact, cells);
        sketch::halve(&mut worker, table).unwrap();
    }
    let unknown = worker.command(table, b"double").unwrap();
    let said = worker.wait(unknown).unwrap_err().to_string();
    assert!(said.contains("takes the command halve"), "{said}");
    drop(worker);
    cluster.shutdown().unwrap();
}

#[test]
fn sketches_of_u32_are_never_under_and_within_their_bound() {
    sketches_are_never_under_and_within_their_bound(ValueType::U32);
}

#[test]
fn sketches_of_u64_are_never_under_and_within_their_bound() {
    sketches_are_never_under_and_within_their_bound(ValueType::U64);
}

/// Two tables with half of the stream each become one that equals the table of all of it. Shards
/// move meanwhile, with their counts.
#[test]
fn merged_sketches_are_those_of_both_streams() {
    let cluster = cluster(2);
    let mut worker = cluster.client().unwrap();
    let tables =
        [1, 2, 3].map(|id| worker.admin().create_table(&spec(id, ValueType::U64)).unwrap());
    let [all, first, second] = tables;
    let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
    let mut inserts = tables.map(|table| Inserts::new(&worker, table, BATCH).unwrap());
    for (at, key) in keys().enumerate().take(3 * BATCH) {
        inserts[0].add(&mut worker, key, 1 << 40).unwrap();
        inserts[1 + at % 2].add(&mut worker, key, 1 << 40).unwrap();
        *exact.entry(key).or_default() += 1 << 40;
    }
    inserts.iter_mut().for_each(|inserts| inserts.finish(&mut worker).unwrap());
    assert_eq!(worker.admin().rebalance(first, &[0]).unwrap().len(), 1);
    sketch::merge(&mut worker, first, second).unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    let merged = sketch::estimates(&mut worker, second, &keys).unwrap();
    assert_eq!(merged, sketch::estimates(&mut worker, all, &keys).unwrap());
    check(&mut worker, second, &exact, CELLS);

    sketch::halve(&mut worker, first).unwrap();
    let before = sketch::estimates(&mut worker, second, &keys).unwrap();
    let said = sketch::merge(&mut worker, first, second).unwrap_err().to_string();
    assert!(said.contains("sketches differ"), "{said}");
    assert_eq!(sketch::estimates(&mut worker, second, &keys).unwrap(), before);
    drop(worker);
    cluster.shutdown().unwrap();
}

/// A stream into a sketch with one copy, of whose three servers one dies after this time.
struct Dying {
    seed: u64,
    dies: Option<Duration>,
}

/// What comes of it.
struct Outlived {
    estimates: Vec<u64>,
    /// From the first insert to the last.
    took: Duration,
    /// The longest time without a batch that was counted.
    pause: Duration,
    /// Whether the server died meanwhile.
    died: bool,
}

fn outlive(run: Dying) -> Outlived {
    let Dying { seed, dies } = run;
    let network = Network::new(seed, Faults::jittery());
    let died = Arc::new(AtomicBool::new(false));
    let dead = died.clone();
    let client = network.spawn("client", move |network| {
        let mut config = ClusterConfig { servers: 3, workers: 0, ..ClusterConfig::default() };
        config.node.server_losses_max = 1;
        let handles = sketch::handle(Handles::default());
        let cluster =
            Cluster::launch(&config, Launch::Simulated(handles, Apps::default())).unwrap();
        let mut worker = cluster.client().unwrap();
        let options = Options { cells: 5000, hashes: HASHES };
        let range = KeyRange::new(0, KEYS).unwrap();
        let spec = sketch::spec(1, "counts", ValueType::U64, range, options).replicas(1);
        let table = worker.admin().create_table(&spec).unwrap();
        let began = network.now();
        if let Some(after) = dies {
            let dead = dead.clone();
            network.spawn("fate", move |network| {
                network.sleep(after);
                network.crash(&format!("server {}", seed % 3));
                dead.store(true, Ordering::Relaxed);
            });
        }
        let mut inserts = Inserts::new(&worker, table, 500).unwrap();
        let (mut last, mut pause) = (began, Duration::ZERO);
        for key in keys().take(40 * 500) {
            inserts.add(&mut worker, key, 1).unwrap();
            pause = pause.max(network.now() - last);
            last = network.now();
        }
        inserts.finish(&mut worker).unwrap();
        let took = network.now() - began;
        pause = pause.max(network.now() - last);
        let died = dead.load(Ordering::Relaxed);
        let all: Vec<u64> = (0..KEYS).collect();
        let estimates = sketch::estimates(&mut worker, table, &all).unwrap();
        drop(worker);
        cluster.shutdown().unwrap();
        Outlived { estimates, took, pause, died }
    });
    client.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"))
}

/// Most time, on the network's clock, until a sketch counts on after the death of a server.
const BACK: Duration = Duration::from_millis(800);

#[test]
fn a_sketch_with_a_copy_counts_on_to_the_cell_when_a_server_dies() {
    let whole = outlive(Dying { seed: 1, dies: None });
    assert!(!whole.died && whole.estimates.iter().sum::<u64>() >= 40 * 500);
    let mut deaths = 0;
    let mut longest = Duration::ZERO;
    for_each_seed(20, |seed| {
        let dies = Some(whole.took * (seed as u32 * 37 % 97) / 97);
        let found = outlive(Dying { seed, dies });
        assert!(found.estimates == whole.estimates, "seed {seed}: counts were lost or doubled");
        assert!(found.pause < BACK, "seed {seed}: no batch was counted for {:?}", found.pause);
        longest = longest.max(found.pause);
        deaths += usize::from(found.died);
    });
    println!("{deaths} deaths; of {:?}, {longest:?} without a batch at most", whole.took);
    assert!(deaths > 0);
}

/// The cells of a server thread cannot be cut: a checkpoint comes back on as many threads as it
/// came from, and is refused by both numbers elsewhere, before there is a table.
#[test]
fn a_checkpoint_comes_back_on_as_many_server_threads() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::new(Folder::new(folder.path()));
    let spec = spec(1, ValueType::U32);
    let counts: Vec<u64> = (1..=100).collect();
    for servers in [2, 1, 3, 2] {
        let cluster = cluster(servers);
        let mut worker = cluster.client().unwrap();
        if checkpoints.list().unwrap().is_empty() {
            let table = worker.admin().create_table(&spec).unwrap();
            let mut inserts = Inserts::new(&worker, table, BATCH).unwrap();
            for count in &counts {
                inserts.add(&mut worker, count * 397, *count).unwrap();
            }
            inserts.finish(&mut worker).unwrap();
            checkpoints.create(&mut worker, std::slice::from_ref(&spec)).unwrap();
        } else if servers == 2 {
            checkpoints.restore(&mut worker, 1).unwrap();
            let table = worker.admin().create_table(&spec).unwrap();
            let keys: Vec<u64> = counts.iter().map(|count| count * 397).collect();
            assert_eq!(sketch::estimates(&mut worker, table, &keys).unwrap(), counts);
        } else {
            let said = checkpoints.restore(&mut worker, 1).unwrap_err().to_string();
            let says = format!("came from 2 server threads, and would go to {servers} (restore");
            assert!(said.contains(&says), "{said}");
            assert!(worker.admin().list_tables("").unwrap().is_empty(), "nothing of it is there");
        }
        drop(worker);
        cluster.shutdown().unwrap();
    }
}
