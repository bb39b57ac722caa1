//! Goal: shards move while requests go on, and nothing is lost, applied twice or out of order.
//! Method: whole clusters on the simulated van. Workers push whole numbers to shared keys, and
//! check at once what only they write; a node moves random shards at random instants. In the end
//! each key's sum is that of all acknowledged pushes. A failure prints its seed;
//! `CARAVAN_SEED=<seed> cargo test` replays it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::simulated::{Draws, connect, server_endpoint, start_nodes, weather};
use crate::support::ticks::{self, check_ticks, tick, with_ticks};
use caravan_kv::consistency::Model;
use caravan_kv::node::Role;
use caravan_kv::server::MoveCounters;
use caravan_kv::{
    Handles, Placement, Runs, ServerAddress, ServerThread, Table, TableSpec, Timestamp, ValueType,
    Worker,
};
use caravan_van::sim::{Network, Node, for_each_seed};
use caravan_van::{Endpoint, Identity, KeyRange, VanConfig};

const KEYS: u64 = 400;

/// Rounds of requests of a worker.
const ROUNDS: i64 = 25;

/// A sparse table with lists of keys that servers remember, a dense one with blocks, and one whose
/// rows have hidden values, and one whose shards are no rows.
fn tables() -> [TableSpec; 4] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let sparse =
        TableSpec::new(11, "sparse", ValueType::I64, 1).filters("key-cache".parse().unwrap());
    let dense = TableSpec::new(12, "dense", ValueType::I64, 3).dense();
    let dense = dense.filters("mask".parse().unwrap());
    let steps = TableSpec::new(13, "steps", ValueType::F64, 1).handle("momentum");
    let ticks = ticks::ticks(KEYS);
    [sparse, dense, steps, ticks].map(|spec| spec.keys(keys).placement(Placement::Even(3)))
}

/// As `cluster::start`, and each server's moves as its node's result.
fn start(
    network: &Network,
    count: usize,
) -> (Vec<ServerAddress>, Vec<Node<MoveCounters>>, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let (addresses, nodes) = start_nodes(network, count, move |network, index| {
        let endpoint = server_endpoint(network, index as u32);
        let handles = with_ticks(Handles::default());
        let mut server = ServerThread::new(endpoint, index, count, handles).move_by(300);
        server.run(&stopped).unwrap();
        server.moves()
    });
    (addresses, nodes, stop)
}

/// Random keys; the first of them is the worker's own.
fn draw_keys(draws: &mut Draws) -> Vec<u64> {
    let most = [1, 3, 80][draws.below(3) as usize];
    let mut keys: Vec<u64> = (0..=draws.below(most)).map(|_| draws.below(KEYS)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Pushes, pulls and commands at random; returns what was pushed to each key of the first two
/// tables, and the counts of commands.
fn work(worker: &mut Worker, seed: u64, node: u64) -> (BTreeMap<u64, i64>, Vec<Vec<u64>>) {
    let mut draws = Draws(seed << 8 | node);
    let mut counts: Vec<Vec<u64>> = Vec::new();
    let [sparse, dense, steps, ticks] = tables().map(|spec| worker.create_table(&spec).unwrap());
    let mut pushed = BTreeMap::new();
    let mut own = 0;
    let mut waiting: VecDeque<(Timestamp, Option<i64>)> = VecDeque::new();
    for _ in 0..ROUNDS {
        let keys = draw_keys(&mut draws);
        let values: Vec<i64> = keys.iter().map(|_| 1 + draws.below(9) as i64).collect();
        for (&key, value) in keys.iter().zip(&values) {
            *pushed.entry(key).or_default() += value;
        }
        // Column `node` of the dense table's row 7 is this worker's alone.
        let mut rows = vec![0i64; 3 * keys.len()];
        rows.iter_mut().step_by(3).zip(&values).for_each(|(place, value)| *place = *value);
        waiting.push_back((worker.push(sparse, &keys, &values).unwrap(), None));
        let sent = match draws.below(2) {
            0 => worker.push(dense, &keys, &rows).unwrap(),
            _ => worker.push_pull(dense, &keys, &rows).unwrap(),
        };
        waiting.push_back((sent, None));
        if node < 2 {
            own += 1;
            let mut row = [0i64; 3];
            row[1 + node as usize] = 1;
            waiting.push_back((worker.push(dense, &[7], &row).unwrap(), None));
            waiting.push_back((worker.pull(dense, &[7]).unwrap(), Some(own)));
        }
        waiting.push_back((worker.push(steps, &[keys[0]], &[1.0]).unwrap(), None));
        if draws.below(4) == 0 {
            counts.push(tick(worker, ticks, counts.last().map_or(0, |last| last[0])));
        }
        let run = Runs::range(keys[0]..KEYS.min(keys[0] + 9));
        run.iter().flatten().for_each(|key| *pushed.entry(key).or_default() += 1);
        let ones = vec![1i64; run.keys() as usize];
        waiting.push_back((worker.push_runs(sparse, &run, &ones).unwrap(), None));
        let threes: Vec<i64> = ones.iter().flat_map(|_| [1, 0, 0]).collect();
        waiting.push_back((worker.push_runs(dense, &run, &threes).unwrap(), None));
        while waiting.len() > draws.below(12) as usize {
            let next = draws.below(waiting.len() as u64) as usize;
            let (timestamp, expected) = waiting.remove(next).unwrap();
            let answer = worker.wait(timestamp).unwrap();
            if let Some(expected) = expected {
                assert_eq!(
                    answer.values::<i64>()[1 + node as usize],
                    expected,
                    "read what it wrote"
                );
            }
        }
    }
    for (timestamp, _) in waiting {
        worker.wait(timestamp).unwrap();
    }
    (pushed, counts)
}

/// Moves random shards about.
fn shift(worker: &mut Worker, network: &Network, servers: usize, seed: u64) {
    let mut draws = Draws(seed ^ 77);
    let tables = tables().map(|spec| worker.create_table(&spec).unwrap());
    for _ in 0..12 {
        network.sleep(Duration::from_micros(draws.below(300)));
        let table = tables[draws.below(4) as usize];
        let shards = worker.shards(table).unwrap();
        let shard = shards[draws.below(shards.len() as u64) as usize];
        let server = draws.below(servers as u64) as usize;
        let moved = worker.move_shard(table, shard.range.begin(), server).unwrap();
        worker.wait(moved).unwrap();
        let shards = worker.shards(table).unwrap();
        let now = *shards.iter().find(|it| it.range == shard.range).unwrap();
        let moves = u64::from(server != shard.server);
        assert_eq!((now.server, now.epoch), (server, shard.epoch + moves));
    }
}

fn pull(worker: &mut Worker, table: Table) -> Vec<i64> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

fn run(seed: u64) -> Vec<MoveCounters> {
    let network = Network::new(seed, weather(seed));
    let mut draws = Draws(seed);
    let (servers, workers) = (2 + draws.below(3) as usize, 1 + draws.below(8));
    let (addresses, nodes, stop) = start(&network, servers);
    let working: Vec<_> = (0..workers)
        .map(|node| {
            let addresses = addresses.clone();
            network.spawn(&format!("worker {node}"), move |network| {
                work(&mut connect(network, 100 + node as u32, &addresses), seed, node)
            })
        })
        .collect();
    let to = addresses.clone();
    let mover = network.spawn("mover", move |network| {
        shift(&mut connect(network, 98, &to), network, servers, seed);
    });
    let mut sums = vec![0; KEYS as usize];
    let mut ticked = Vec::new();
    for node in working {
        let (pushed, mut counts) = node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        ticked.append(&mut counts);
        pushed.into_iter().for_each(|(key, value)| sums[key as usize] += value);
    }
    mover.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    check_ticks(&ticked, &format!("seed {seed}"));
    let mut worker = connect(&network, 99, &addresses);
    let [sparse, dense, ..] = tables().map(|spec| worker.create_table(&spec).unwrap());
    assert_eq!(pull(&mut worker, sparse), sums);
    let rows = pull(&mut worker, dense);
    assert_eq!(rows.iter().step_by(3).copied().collect::<Vec<_>>(), sums);
    assert_eq!(rows[7 * 3 + 1..7 * 3 + 3], [ROUNDS, if workers > 1 { ROUNDS } else { 0 }]);
    stop.store(true, Ordering::Relaxed);
    let counters = nodes.into_iter().map(Node::join);
    counters.map(|counters| counters.unwrap_or_else(|stopped| panic!("{stopped}"))).collect()
}

#[test]
fn nothing_is_lost_or_doubled_while_shards_move() {
    let mut sum = MoveCounters::default();
    for_each_seed(200, |seed| {
        for counters in run(seed) {
            sum += counters;
        }
    });
    println!("{sum:?}");
    let MoveCounters {
        left,
        arrived,
        failed,
        asked_again,
        pieces,
        bytes,
        forwarded,
        held_copying,
        held_leaving,
        held_arriving,
        sent_back,
    } = sum;
    assert_eq!((left, failed, asked_again), (arrived, 0, 0));
    let met = [pieces, bytes, forwarded, held_copying, held_leaving, held_arriving, sent_back];
    assert!(met.iter().all(|count| *count > 0), "every step meets requests: {sum:?}");
}

#[test]
fn a_worker_that_joins_again_during_a_move_reads_what_it_wrote() {
    for_each_seed(40, |seed| {
        let network = Network::new(seed, weather(seed));
        let (addresses, _, stop) = start(&network, 2);
        let spec = TableSpec::new(1, "numbers", ValueType::I64, 1);
        let spec = spec.placement(Placement::Cut(vec![(0, 1)]));
        let has_moved = Arc::new(AtomicBool::new(false));
        let (to, moved, end) = (addresses.clone(), spec.clone(), has_moved.clone());
        let mover = network.spawn("mover", move |network| {
            let mut worker = connect(network, 98, &to);
            let table = worker.create_table(&moved).unwrap();
            let mut draws = Draws(seed ^ 77);
            for server in [0, 1].repeat(20) {
                network.sleep(Duration::from_micros(draws.below(100)));
                let moved = worker.move_shard(table, 0, server).unwrap();
                worker.wait(moved).unwrap();
            }
            end.store(true, Ordering::Relaxed);
        });
        let worker = network.spawn("worker", move |network| {
            let mut worker = connect(network, 9, &addresses);
            let table = worker.create_table(&spec).unwrap();
            let mut pushed = 0;
            while !has_moved.load(Ordering::Relaxed) {
                let push = worker.push(table, &[7], &[1i64]).unwrap();
                pushed += 1;
                worker.create_table(&spec).unwrap(); // says where the shard is now
                let pull = worker.pull(table, &[7]).unwrap();
                worker.wait(push).unwrap();
                assert_eq!(worker.wait(pull).unwrap().values::<i64>(), [pushed], "seed {seed}");
            }
        });
        worker.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        mover.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// A table of numbers in three shards, and keys of all of them.
fn numbers() -> (TableSpec, Vec<u64>) {
    let spec = TableSpec::new(1, "numbers", ValueType::I64, 100).placement(Placement::Even(3));
    (spec, (0..300).map(|key| key * (u64::MAX / 300)).collect())
}

/// An endpoint that may have 4,096 requests on each lane.
fn wide_endpoint(network: &Network, node: u32, role: Role) -> Endpoint {
    let identity = Identity { role: role.number(), ..Identity::default() };
    let (credits, memory_bytes) = (4096, 1 << 28);
    let config = VanConfig { node, identity, credits, memory_bytes, ..VanConfig::default() };
    Endpoint::new(Box::new(network.transport(&config)), node, credits)
}

#[test]
fn thousands_of_held_requests_are_sent_back_one_by_one() {
    let network = Network::new(1, weather(0));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let (addresses, servers) = start_nodes(&network, 2, move |network, index| {
        let endpoint = wide_endpoint(network, index as u32, Role::Server);
        let mut server = ServerThread::new(endpoint, index, 2, Handles::default());
        server.run(&stopped).unwrap();
        server.moves()
    });
    let worker = network.spawn("worker", move |network| {
        let endpoint = wide_endpoint(network, 9, Role::Worker);
        let mut worker = Worker::connect(endpoint, &addresses, Duration::from_secs(60)).unwrap();
        let spec = TableSpec::new(1, "numbers", ValueType::I64, 1);
        let spec = spec.placement(Placement::Cut(vec![(0, 0)]));
        let table = worker.create_table(&spec).unwrap();
        let mut pushed = 0;
        for (turn, to) in [1, 0].repeat(30).into_iter().enumerate() {
            let moved = worker.move_shard(table, 0, to).unwrap();
            worker.poll().unwrap();
            network.sleep(Duration::from_micros(2 * turn as u64)); // some meet its end
            let push = |_| {
                let push = worker.push(table, &[7], &[1i64]).unwrap();
                worker.poll().unwrap(); // sends it by itself
                push
            };
            let pushes: Vec<_> = (0..4000).map(push).collect();
            pushed += pushes.len() as i64;
            pushes.into_iter().for_each(|push| drop(worker.wait(push).unwrap()));
            worker.wait(moved).unwrap();
        }
        let pulled = worker.pull(table, &[7]).unwrap();
        assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [pushed]);
    });
    worker.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    stop.store(true, Ordering::Relaxed);
    let moves = servers.into_iter().map(Node::join);
    let moves: Vec<_> = moves.map(|it| it.unwrap_or_else(|why| panic!("{why}"))).collect();
    let held: u64 = moves.iter().map(|it| it.held_leaving).sum();
    assert!(held >= 2000, "{held} requests waited for the end of a move: {moves:?}");
}

#[test]
fn moves_that_cannot_be_are_refused_by_name() {
    let network = Network::new(1, weather(0));
    let (addresses, _, _stop) = start(&network, 2);
    let worker = network.spawn("worker", move |network| {
        let mut worker = connect(network, 9, &addresses);
        let (spec, keys) = numbers();
        let table = worker.create_table(&spec).unwrap();
        let refused = |worker: &mut Worker, server| {
            let moved = worker.move_shard(table, 0, server).unwrap();
            worker.wait(moved).unwrap_err().to_string()
        };
        let error = refused(&mut worker, 2);
        assert!(error.contains("there is no server thread 2, only 2 from 0 on"), "{error}");
        let again = worker.move_shard(table, 0, 0).unwrap();
        worker.wait(again).unwrap();
        assert_eq!(worker.shards(table).unwrap()[0].epoch, 0, "it was there");
        let values = vec![1i64; 100 * keys.len()];
        let pushed = worker.push(table, &keys, &values).unwrap();
        worker.wait(pushed).unwrap();
        let [first, second] = [1, 1].map(|server| worker.move_shard(table, 0, server).unwrap());
        worker.wait(first).unwrap();
        worker.wait(second).unwrap();
        let spec = TableSpec::new(2, "rounds", ValueType::I64, 1).consistency(Model::Bsp, 1);
        let rounds = worker.create_table(&spec).unwrap();
        let moved = worker.move_shard(rounds, 0, 1).unwrap();
        let error = worker.wait(moved).unwrap_err().to_string();
        assert!(error.contains("table rounds has a consistency model"), "{error}");
        let dropped = worker.move_shard(table, 0, 0).unwrap();
        worker.drop_table(table).unwrap();
        let outcome = worker.wait(dropped);
        assert!(outcome.is_ok() || outcome.unwrap_err().to_string().contains("dropped"));
    });
    worker.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

/// Creates a table of 12 shards, of which thread `lost` of 3 has some or none. Then that is lost,
/// and the shards are spread.
fn spread_without(network: &Network, addresses: &[ServerAddress], lost: usize, seed: u64) {
    let mut draws = Draws(seed);
    let mut worker = connect(network, 9, addresses);
    let is_lost = Arc::new(AtomicBool::new(false));
    let is_told = is_lost.clone();
    let watch = move || Ok(Vec::from_iter(is_told.load(Ordering::Relaxed).then_some(lost)));
    worker.watch_servers(watch, Duration::from_micros(300));
    let has_some = draws.below(2) == 0;
    let next = (lost + 1) % 3;
    let owner = |at| if has_some && at % 4 == 0 { lost } else { next };
    let spec = TableSpec::new(1, "t", ValueType::I64, 1).keys(KeyRange::new(0, 1200).unwrap());
    let firsts = (0..12).map(|at| (100 * at, owner(at) as u32)).collect();
    let table = worker.create_table(&spec.placement(Placement::Cut(firsts))).unwrap();
    let keys: Vec<u64> = (0..1200).collect();
    let values: Vec<i64> = (0..1200).collect();
    let pushed = worker.push(table, &keys, &values).unwrap();
    worker.wait(pushed).unwrap();
    network.crash(&format!("server {lost}"));
    is_lost.store(true, Ordering::Relaxed);
    let moved = worker.rebalance(table, &[]).unwrap();
    let shards = worker.shards(table).unwrap().to_vec();
    let of = |server| shards.iter().filter(|shard| shard.server == server).count();
    let stay = if has_some { 3 } else { 0 };
    assert_eq!(of(lost), stay, "no shard goes to a lost thread, or comes from there: {shards:?}");
    assert_eq!(moved.len(), of((lost + 2) % 3), "{moved:?}");
    assert!(of(next).abs_diff(of((lost + 2) % 3)) <= 1, "{shards:?}");
    let living = shards.iter().filter(|shard| shard.server != lost);
    let keys: Vec<u64> = living.flat_map(|it| it.range.begin()..it.range.end()).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    let rows = worker.wait(pulled).unwrap();
    assert!(rows.values::<i64>().iter().map(|row| *row as u64).eq(keys), "they are all there");
    let error = worker.rebalance(table, &[next, (lost + 2) % 3]).unwrap_err().to_string();
    assert!(error.contains("not lost is to be drained; leave one"), "{error}");
}

#[test]
fn shards_are_spread_over_the_threads_that_live() {
    for_each_seed(30, |seed| {
        let network = Network::new(seed, weather(seed));
        let (addresses, _, stop) = start(&network, 3);
        let worker = network.spawn("worker", move |network| {
            spread_without(network, &addresses, seed as usize % 3, seed);
        });
        worker.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// Creates a table at threads 2 and 5 of 8, whose second shard moves on to 6 and 7, and on and on;
/// then another worker joins, and drops it.
fn follow_a_table(network: &Network, addresses: &[ServerAddress]) {
    let at = |server| Placement::Cut(vec![(0, 2), (500, server)]);
    let spec = TableSpec::new(1, "t", ValueType::I64, 1).keys(KeyRange::new(0, 1000).unwrap());
    let mut one = connect(network, 90, addresses);
    let table = one.create_table(&spec.clone().placement(at(5))).unwrap();
    let pushed = one.push(table, &[1, 999], &[3i64, 4]).unwrap();
    one.wait(pushed).unwrap();
    for to in [6, 7, 5, 6, 7] {
        let moved = one.move_shard(table, 999, to).unwrap();
        one.wait(moved).unwrap();
    }
    let mut two = connect(network, 91, addresses);
    let joined = two.create_table(&spec.clone().placement(at(5))).unwrap();
    assert_eq!(two.lanes(), 1, "whoever joins asks the first thread alone");
    let pulled = two.pull(joined, &[1, 999]).unwrap();
    assert_eq!(two.wait(pulled).unwrap().values::<i64>(), [3, 4]);
    let owners: Vec<usize> = two.shards(joined).unwrap().iter().map(|it| it.server).collect();
    assert_eq!(owners, [2, 7], "and follows the shard to where it is");
    two.drop_table(joined).unwrap();
    for key in [1, 999] {
        let late = one.push(table, &[key], &[1i64]).unwrap();
        let error = one.wait(late).unwrap_err();
        assert!(matches!(error, caravan_kv::Error::TableDropped { .. }), "{error}");
    }
    // Those that had the shard on its way have forgotten it as well.
    let again = two.create_table(&spec.placement(at(6))).unwrap();
    let pulled = two.pull(again, &[1, 999]).unwrap();
    assert_eq!(two.wait(pulled).unwrap().values::<i64>(), [0, 0]);
    two.drop_table(again).unwrap();
    assert!(two.list_tables("").unwrap().is_empty());
}

#[test]
fn owners_alone_hear_of_a_table_and_its_drop_follows_the_shards() {
    for_each_seed(6, |seed| {
        let network = Network::new(seed, weather(seed));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (addresses, servers) = start_nodes(&network, 8, move |network, index| {
            let endpoint = server_endpoint(network, index as u32);
            let mut server = ServerThread::new(endpoint, index, 8, Handles::default());
            server.run(&stopped).unwrap();
            server.counters().messages_received
        });
        let worker = network.spawn("worker", move |network| follow_a_table(network, &addresses));
        worker.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        stop.store(true, Ordering::Relaxed);
        let heard = servers.into_iter().map(Node::join);
        let heard: Vec<u64> = heard.map(|it| it.unwrap_or_else(|why| panic!("{why}"))).collect();
        let asked: Vec<usize> = (0..8).filter(|index| heard[*index] > 0).collect();
        assert_eq!(
            asked,
            [0, 2, 5, 6, 7],
            "the first thread, and those that had shards: {heard:?}"
        );
    });
}
