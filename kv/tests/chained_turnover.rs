//! Goal: a table with replicas in which rows come and go has the same rows after the loss of a
//! server as without: no acknowledged push is lost or counts twice, no row comes back that went,
//! and none goes that stays. Method: the real worker and server code on the simulated van. Servers
//! crash, and lanes break, at drawn instants; a shard of one thread without a network gets the
//! same pushes. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::oracle::Oracle;
use crate::support::simulated::{Draws, connect, server_endpoint};
use caravan_kv::server::{ChainCounters, Extract, Request};
use caravan_kv::turnover::Turnover;
use caravan_kv::{
    Handles, Placement, ServerAddress, ServerThread, Shard, Table, TableSpec, ValueType, Worker,
};
use caravan_van::sim::{Faults, Network, for_each_seed};
use caravan_van::{KeyRange, Pool, Value};

const KEYS: u64 = 1000;

/// Values of a row.
const WIDTH: u32 = 32;

/// Rounds of a worker, at least and at most; between them it waits for faults to come.
const ROUNDS: [u64; 2] = [25, 1000];

fn start(
    network: &Network,
    oracle: &Oracle,
    count: usize,
) -> (Vec<ServerAddress>, Arc<AtomicBool>) {
    oracle.start(network, count, move |network, index| {
        let endpoint = server_endpoint(network, index as u32);
        ServerThread::new(endpoint, index, count, Handles::default()).move_by(4000)
    })
}

/// Tables of all kinds; the last one has rows of their own lengths. Those of the first worker alone
/// come first, then one that all share.
fn tables(replicas: u32) -> Vec<TableSpec> {
    let none = Turnover::default();
    let capped = Turnover { bytes_max: Some(600_000), ..none };
    let turnovers = [
        (WIDTH, Turnover { pushes_min: Some(2), cells: Some(500), probability: Some(0.8), ..none }),
        (WIDTH, Turnover { idle_max: Some(3), ..capped }),
        (0, Turnover { score_min: Some(0.5), decay: Some(0.7), ..capped }),
        (WIDTH, Turnover { pushes_min: Some(2), cells: Some(500), ..capped }),
    ];
    let spec = |(id, (width, turnover))| {
        let spec = TableSpec::new(id, "t", ValueType::I64, width).turnover(turnover);
        spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Even(1)).replicas(replicas)
    };
    (1..).zip(turnovers).map(spec).collect()
}

/// Shards of one table without copies, in this thread.
struct Reference {
    shards: Vec<(KeyRange, Box<dyn Shard>)>,
    memory: Pool,
}

impl Reference {
    fn new(worker: &Worker, table: Table, spec: &TableSpec) -> Reference {
        let memory = Pool::new(64 << 20);
        let handles = Handles::default();
        let build = |range| (range, handles.build(spec, range, &memory).unwrap());
        let shards = worker.shards(table).unwrap().iter().map(|it| build(it.range)).collect();
        Reference { shards, memory }
    }

    /// Pushes to the shards of these keys; returns whether all take it.
    fn push(&mut self, push: &Push) -> bool {
        let mut is_taken = true;
        for (range, shard) in &mut self.shards {
            let part = push.within(*range);
            let (keys, lengths) = (&part.keys, &part.lengths);
            let (sender, command, clock) = (100, 0, part.clock);
            let (pushes, pulls, rows, values) = (true, false, None, i64::bytes(&part.values));
            let range = *range;
            let request = Request {
                sender,
                command,
                clock,
                range,
                keys,
                lengths,
                values,
                pushes,
                pulls,
                rows,
            };
            is_taken &= keys.is_empty() || shard.push(&request, &self.memory).is_ok();
        }
        is_taken
    }

    /// The first value of each row.
    fn rows(&self) -> BTreeMap<u64, i64> {
        let mut all = BTreeMap::new();
        for (range, shard) in &self.shards {
            let mut rows = Extract::default();
            assert_eq!(shard.give(range.begin(), usize::MAX, &mut rows), Ok(None));
            let values: Vec<i64> =
                rows.values.as_chunks().0.iter().map(|it| i64::from_le_bytes(*it)).collect();
            let mut at = 0;
            for (place, key) in rows.keys.iter().enumerate() {
                all.insert(*key, values[at]);
                at += rows.lengths.get(place).map_or(WIDTH as usize, |it| *it as usize);
            }
        }
        all
    }
}

/// A push to one table.
struct Push {
    clock: u64,
    keys: Vec<u64>,
    lengths: Vec<u32>,
    values: Vec<i64>,
}

impl Push {
    /// Ones to random keys, of which those are left out that are not `of`; to keys of a short range
    /// more often. Some rows have a length that others have not.
    fn draw(draws: &mut Draws, clock: u64, width: u32, of: impl Fn(u64) -> bool) -> Push {
        let many = if draws.below(3) == 0 { 120 } else { 8 };
        let range = [KEYS, KEYS, 30][draws.below(3) as usize];
        let begin = draws.below(KEYS - range + 1);
        let mut keys: Vec<u64> = (0..many).map(|_| begin + draws.below(range)).collect();
        keys.retain(|key| of(*key));
        keys.sort_unstable();
        keys.dedup();
        let is_wrong = width == 0 && draws.below(8) == 0;
        let row = WIDTH as usize - usize::from(is_wrong);
        let lengths = if width == 0 { vec![row as u32; keys.len()] } else { Vec::new() };
        let values = vec![1; keys.len() * row];
        Push { clock, keys, lengths, values }
    }

    fn within(&self, range: KeyRange) -> Push {
        let at = |key: &u64| range.contains(*key);
        let begin = self.keys.iter().take_while(|key| !at(key)).count();
        let count = self.keys[begin..].iter().take_while(|key| at(key)).count();
        let row = self.values.len().checked_div(self.keys.len()).unwrap_or(0);
        let lengths = self.lengths.iter().skip(begin).take(count).copied().collect();
        Push {
            clock: self.clock,
            keys: self.keys[begin..begin + count].to_vec(),
            lengths,
            values: self.values[begin * row..(begin + count) * row].to_vec(),
        }
    }
}

/// The first value of each row that is not 0, by key.
fn pull(worker: &mut Worker, table: Table) -> BTreeMap<u64, i64> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    let answer = worker.wait(pulled).unwrap();
    let (lengths, values) = (answer.lengths.clone(), answer.values::<i64>().to_vec());
    let length = |key: usize| lengths.get(key).map_or(WIDTH as usize, |it| *it as usize);
    let mut at = 0;
    let mut firsts = BTreeMap::new();
    for key in keys {
        let row = &values[at..at + length(key as usize)];
        at += row.len();
        firsts.extend(row.first().filter(|first| **first != 0).map(|first| (key, *first)));
    }
    firsts
}

/// Pushes to tables of its own, which have to have the rows of a shard without a network. Returns
/// how many pushes were refused, and how many rows went.
fn work_alone(
    network: &Network,
    worker: &mut Worker,
    oracle: &Oracle,
    specs: &[TableSpec],
    seed: u64,
) -> [usize; 2] {
    let mut draws = Draws(seed);
    let tables: Vec<Table> = specs.iter().map(|it| worker.create_table(it).unwrap()).collect();
    let pairs = tables.iter().zip(specs);
    let mut references: Vec<_> =
        pairs.map(|(table, spec)| Reference::new(worker, *table, spec)).collect();
    oracle.begin();
    let mut before = vec![BTreeMap::new(); specs.len()];
    let (mut refused, mut gone) = (0, 0);
    for round in 0..ROUNDS[1] {
        if round >= ROUNDS[0] && oracle.is_calm() {
            break;
        }
        network.sleep(Duration::from_micros(draws.below(600)));
        worker.set_clock(round / 2);
        let mut waiting = Vec::new();
        for _ in 0..1 + draws.below(4) {
            let of = draws.below(specs.len() as u64) as usize;
            let push = Push::draw(&mut draws, round / 2, specs[of].width, |_| true);
            if push.keys.is_empty() {
                continue;
            }
            let is_taken = references[of].push(&push);
            let Push { keys, lengths, values, .. } = &push;
            let pushed = match lengths.is_empty() {
                true => worker.push(tables[of], keys, values).unwrap(),
                false => worker.push_varying(tables[of], keys, lengths, values).unwrap(),
            };
            waiting.push((pushed, is_taken));
        }
        for (pushed, is_taken) in waiting {
            assert_eq!(worker.wait(pushed).is_ok(), is_taken, "seed {seed}, round {round}");
            refused += usize::from(!is_taken);
        }
        for ((reference, table), before) in references.iter().zip(&tables).zip(&mut before) {
            let (rows, expected) = (pull(worker, *table), reference.rows());
            let keys = rows.keys().chain(expected.keys());
            let found: Vec<_> = keys.filter(|key| rows.get(key) != expected.get(key)).collect();
            let pair = |key: &&u64| (**key, rows.get(key), expected.get(key));
            let found: Vec<_> = found.iter().map(pair).collect();
            assert!(found.is_empty(), "seed {seed}, round {round}, {table:?}: {found:?}");
            gone += before.keys().filter(|key| !rows.contains_key(key)).count();
            *before = rows;
        }
    }
    [refused, gone]
}

/// Pushes to keys of its own in a table of all: once a row has come it counts on, or begins anew.
fn work_among_others(
    network: &Network,
    worker: &mut Worker,
    oracle: &Oracle,
    spec: &TableSpec,
    [seed, node]: [u64; 2],
) {
    let mut draws = Draws(seed << 8 | node);
    let table = worker.create_table(spec).unwrap();
    oracle.begin();
    let mut sums = BTreeMap::new();
    for round in 0..ROUNDS[1] {
        if round >= ROUNDS[0] && oracle.is_calm() {
            break;
        }
        network.sleep(Duration::from_micros(draws.below(600)));
        let push = Push::draw(&mut draws, round, spec.width, |key| key % 3 == node);
        let made = worker.push_pull(table, &push.keys, &push.values).unwrap();
        let rows = worker.wait(made).unwrap().values::<i64>().to_vec();
        for (key, row) in push.keys.iter().zip(rows.chunks_exact(WIDTH as usize)) {
            let had = sums.insert(*key, row[0]).unwrap_or(0);
            let is_new = row[0] <= 1;
            assert!(row[0] == had + 1 || is_new, "seed {seed}, key {key}: {had}, {}", row[0]);
            assert!(row.iter().all(|value| *value == row[0]), "seed {seed}: half a push");
        }
    }
}

/// Servers die one after the other until one is left, each when the copies of those before were
/// made good, or as many as there are copies at any time; between that lanes break.
fn act(network: &Network, oracle: &Oracle, [servers, replicas]: [u64; 2], draws: &mut Draws) {
    let waits = draws.below(2) == 0;
    let losses = if waits { servers - 1 } else { replicas };
    for _ in 0..losses {
        network.sleep(Duration::from_micros(draws.below(9000)));
        if draws.below(2) == 0 {
            let [one, other] = [draws.below(servers), draws.below(servers)];
            if one != other {
                let pause = Duration::from_millis(5 + draws.below(10));
                network.cut(&format!("server {one}"), &format!("server {other}"), pause);
            }
            network.cut("worker 0", &format!("server {one}"), Duration::from_millis(5));
        }
        if waits {
            oracle.wait_for_copies(network);
        }
        let server = oracle.living(draws.below(servers), servers);
        network.crash(&format!("server {server}"));
        network.sleep(Duration::from_micros(500 + draws.below(5000)));
        oracle.lose(server);
    }
    oracle.calm_down();
}

/// One run; returns the counters of its servers, how many pushes were refused, and how many rows
/// went.
fn run(seed: u64) -> (ChainCounters, [usize; 2]) {
    let detection = Duration::from_millis(4);
    let network = Network::new(seed, Faults { detection, ..Faults::jittery() });
    let mut draws = Draws(seed);
    let (servers, workers) = (3 + draws.below(2), 3);
    let replicas = 1 + draws.below(2) as u32;
    let oracle = Oracle::default();
    let (addresses, stop) = start(&network, &oracle, servers as usize);
    let nodes: Vec<_> = (0..workers)
        .map(|node| {
            let (addresses, oracle) = (addresses.clone(), oracle.clone());
            network.spawn(&format!("worker {node}"), move |network| {
                let mut worker = oracle.tell(connect(network, 100 + node as u32, &addresses));
                let specs = tables(replicas);
                let (shared, own) = specs.split_last().unwrap();
                let seen = match node {
                    0 => work_alone(network, &mut worker, &oracle, own, seed),
                    _ => {
                        work_among_others(network, &mut worker, &oracle, shared, [seed, node]);
                        [0; 2]
                    }
                };
                oracle.end(network, workers);
                let shared = worker.create_table(shared).unwrap();
                (seen, pull(&mut worker, shared))
            })
        })
        .collect();
    let fate = {
        let oracle = oracle.clone();
        network.spawn("fate", move |network| {
            oracle.wait_for_workers(network, workers);
            act(network, &oracle, [servers, replicas.into()], &mut draws);
        })
    };
    fate.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    let joined = nodes.into_iter().map(|node| node.join());
    let joined: Vec<_> =
        joined.map(|it| it.unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"))).collect();
    assert!(joined.iter().all(|(_, rows)| *rows == joined[0].1), "seed {seed}: all read the same");
    stop.store(true, Ordering::Relaxed);
    network.sleep(Duration::from_millis(2));
    (oracle.counters(), joined[0].0)
}

#[test]
fn rows_come_and_go_alike_on_all_copies() {
    let (mut sum, mut seen) = (ChainCounters::default(), [0; 2]);
    for_each_seed(60, |seed| {
        let (counters, here) = run(seed);
        sum += counters;
        seen.iter_mut().zip(here).for_each(|(sum, here)| *sum += here);
    });
    let [refused, gone] = seen;
    println!("{sum:?}, {refused} pushes were refused, {gone} rows went");
    if std::env::var("CARAVAN_SEED").is_err() {
        assert!(sum.copied > 0 && sum.pieces > sum.copied && sum.repeated > 0);
        assert!(refused > 0 && gone > 0);
    }
}
