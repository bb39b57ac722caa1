//! Goal: servers join a cluster under load and get shards: no request fails, and nothing is lost,
//! applied twice or out of order. Whoever may not join hears why.
//! Method: whole clusters with their schedulers on the simulated van. Workers push whole numbers to
//! shared keys, and check at once what only they write; the driver has servers join at random
//! instants and moves shards there. In the end each key's sum is that of all acknowledged pushes. A
//! failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/simulated.rs"]
mod simulated;
mod support;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_kv::node::{Scheduler, join_server, run_server, run_worker};
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, NodeConfig, Placement, SecretSource,
    Table, TableSpec, Target, Timestamp, ValueType, Worker, WorkerNode,
};
use caravan_van::sim::{Network, Node, for_each_seed};
use caravan_van::{KeyRange, Secret};
use serde_json::{Value, json};
use simulated::{Draws, weather};
use support::TIMEOUT;

const KEYS: u64 = 300;

/// Most workers of a run; each has a column of its own in the dense table.
const WORKERS: u64 = 3;

/// A sparse table with lists of keys that servers remember, and a dense one.
fn tables() -> [TableSpec; 2] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let sparse = TableSpec::new(1, "sparse", ValueType::I64, 1);
    let sparse = sparse.filters("key-cache".parse().unwrap());
    let dense = TableSpec::new(2, "dense", ValueType::I64, 1 + WORKERS as u32).dense();
    [sparse, dense].map(|spec| spec.keys(keys).placement(Placement::Even(3)))
}

/// Pushes and pulls until it is told to stop.
struct Adds {
    stop: Arc<AtomicBool>,
}

impl App for Adds {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let seed = body["seed"].as_u64().unwrap();
        self.add(node, seed).map_err(|error| error.to_string())
    }
}

impl Adds {
    /// Returns what it has pushed to each key, how often to the key of its own, and how many shards
    /// it has found at servers that have joined.
    fn add(&self, node: &mut WorkerNode, seed: u64) -> caravan_kv::Result<Value> {
        let mut draws = Draws(seed << 8 | node.rank as u64);
        let own_column = 1 + node.rank;
        let worker = &mut node.worker;
        let [sparse, dense] = tables();
        let [sparse, dense] = [worker.create_table(&sparse)?, worker.create_table(&dense)?];
        let mut pushed: BTreeMap<u64, i64> = BTreeMap::new();
        let mut own = 0;
        let mut waiting: VecDeque<(Timestamp, Option<i64>)> = VecDeque::new();
        while !self.stop.load(Ordering::Relaxed) {
            let most = [1, 3, 60][draws.below(3) as usize];
            let mut keys: Vec<u64> = (0..=draws.below(most)).map(|_| draws.below(KEYS)).collect();
            keys.sort_unstable();
            keys.dedup();
            let values: Vec<i64> = keys.iter().map(|_| 1 + draws.below(9) as i64).collect();
            let mut rows = vec![0i64; keys.len() * (1 + WORKERS as usize)];
            for (at, (key, value)) in keys.iter().zip(&values).enumerate() {
                *pushed.entry(*key).or_default() += value;
                rows[at * (1 + WORKERS as usize)] = *value;
            }
            waiting.push_back((worker.push(sparse, &keys, &values)?, None));
            let sent = match draws.below(2) {
                0 => worker.push(dense, &keys, &rows)?,
                _ => worker.push_pull(dense, &keys, &rows)?,
            };
            waiting.push_back((sent, None));
            own += 1;
            let mut row = [0i64; 1 + WORKERS as usize];
            row[own_column] = 1;
            waiting.push_back((worker.push(dense, &[7], &row)?, None));
            waiting.push_back((worker.pull(dense, &[7])?, Some(own)));
            while waiting.len() > draws.below(12) as usize {
                let next = draws.below(waiting.len() as u64) as usize;
                let Some((timestamp, expected)) = waiting.remove(next) else { break };
                let answer = worker.wait(timestamp)?;
                if let Some(expected) = expected {
                    let read = answer.values::<i64>()[own_column];
                    assert_eq!(read, expected, "read what it wrote");
                }
            }
            worker.charge(Duration::from_micros(draws.below(50)))?;
        }
        for (timestamp, _) in waiting {
            worker.wait(timestamp)?;
        }
        let founders = worker.servers();
        let mut further = 0;
        for table in [sparse, dense] {
            further += worker.shards(table)?.iter().filter(|it| it.server >= founders).count();
        }
        let pushed: Vec<(u64, i64)> = pushed.into_iter().collect();
        Ok(json!({ "pushed": pushed, "own": own, "further": further }))
    }
}

fn pull(worker: &mut Worker, table: Table) -> Vec<i64> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

/// What a run has met.
#[derive(Debug, Default)]
struct Met {
    /// Servers that have joined.
    joined: usize,
    /// Shards that were moved to them.
    moved: usize,
    /// Shards that workers have found there.
    found: u64,
}

/// Has a server join, and waits until a client has heard of its thread.
fn join(network: &Network, node: &NodeConfig, client: &mut Worker) -> Node<()> {
    let known = client.server_addresses().count();
    let node = node.clone();
    let joins = network.spawn(&format!("server {known}"), move |_| {
        join_server(&node, 1, &Handles::default(), false).unwrap();
    });
    while client.server_addresses().count() == known {
        network.sleep(Duration::from_micros(300));
        client.sleep(Duration::ZERO).unwrap();
    }
    joins
}

/// Moves a random shard of each table to the server that has joined last, and then spreads all
/// shards; returns how many have gone to servers that have joined.
fn shift(client: &mut Worker, tables: &[Table], draws: &mut Draws) -> usize {
    let (founders, last) = (client.servers(), client.server_addresses().count() - 1);
    let mut moved = 0;
    for &table in tables {
        let shards = client.shards(table).unwrap();
        let shard = shards[draws.below(shards.len() as u64) as usize];
        let wish = client.move_shard(table, shard.range.begin(), last).unwrap();
        client.wait(wish).unwrap();
        moved += usize::from(shard.server != last);
        for before in client.rebalance(table, &[]).unwrap() {
            let shards = client.shards(table).unwrap();
            let after = shards.iter().find(|it| it.range == before.range).unwrap();
            moved += usize::from(after.server >= founders);
        }
        let shards = client.shards(table).unwrap();
        assert!(shards.iter().any(|shard| shard.server == last), "{shards:?}");
    }
    moved
}

fn drive(network: &Network, seed: u64) -> Met {
    let mut draws = Draws(seed);
    let (servers, workers) = (1 + draws.below(3) as usize, 1 + draws.below(WORKERS) as usize);
    let config = ClusterConfig { servers, workers, ..ClusterConfig::default() };
    let stop = Arc::new(AtomicBool::new(false));
    let stops = stop.clone();
    let apps = Apps::default().with("adds", move || Box::new(Adds { stop: stops.clone() }));
    let launch = Launch::Simulated(Handles::default(), apps);
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    let task = cluster.submit(Target::Workers, "adds", &json!({ "seed": seed })).unwrap();
    let mut client = cluster.client().unwrap();
    let mut idle = cluster.client().unwrap();
    let specs = tables();
    let [sparse, dense] = specs.each_ref().map(|spec| client.create_table(spec).unwrap());
    let _ = specs.each_ref().map(|spec| idle.create_table(spec).unwrap());
    let node = cluster.config().node.clone();
    let mut met = Met::default();
    let mut further = Vec::new();
    for _ in 0..=draws.below(2) {
        network.sleep(Duration::from_micros(draws.below(3000)));
        further.push(join(network, &node, &mut client));
        met.joined += 1;
        met.moved += shift(&mut client, &[sparse, dense], &mut draws);
        network.sleep(Duration::from_millis(1));
    }
    stop.store(true, Ordering::Relaxed);
    let mut sums = vec![0; KEYS as usize];
    let mut own = Vec::new();
    for done in cluster.wait(task).unwrap() {
        let pushed: Vec<(u64, i64)> = serde_json::from_value(done["pushed"].clone()).unwrap();
        pushed.into_iter().for_each(|(key, value)| sums[key as usize] += value);
        own.push(done["own"].as_i64().unwrap());
        met.found += done["further"].as_u64().unwrap();
    }
    assert_eq!(pull(&mut client, sparse), sums);
    let rows = pull(&mut client, dense);
    let width = 1 + WORKERS as usize;
    assert_eq!(rows.iter().step_by(width).copied().collect::<Vec<_>>(), sums);
    assert_eq!(rows[7 * width + 1..][..workers], own);

    // A driver that comes later finds the shards where they are.
    let late = Cluster::attach(&node, "late").unwrap();
    let mut reader = late.client().unwrap();
    assert_eq!(reader.server_addresses().count(), servers + met.joined);
    reader.set_namespace("");
    let again = reader.create_table(&specs[0]).unwrap();
    assert_eq!(pull(&mut reader, again), sums);
    drop(reader);
    late.shutdown().unwrap();
    // One that has not listened meanwhile drops the tables wherever their shards are.
    assert_eq!(idle.drop_tables("").unwrap(), 2);
    client.sleep(Duration::ZERO).unwrap();
    let anew = idle.create_table(&specs[0]).unwrap();
    assert_eq!(pull(&mut idle, anew), vec![0; KEYS as usize]);
    drop((client, idle));
    cluster.shutdown().unwrap();
    further.into_iter().for_each(|node| node.join().unwrap_or_else(|why| panic!("{why}")));
    met
}

#[test]
fn servers_join_under_load_and_nothing_is_lost_or_doubled() {
    let mut sum = Met::default();
    for_each_seed(60, |seed| {
        let network = Network::new(seed, weather(seed));
        let driver = network.spawn("driver", move |network| drive(network, seed));
        let met = driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        sum.joined += met.joined;
        sum.moved += met.moved;
        sum.found += met.found;
    });
    println!("{sum:?}");
    assert!(sum.moved >= 2 * sum.joined, "each gets shards of both tables: {sum:?}");
    assert!(sum.found > 0, "workers find shards there: {sum:?}");
}

/// Why a server may not join.
fn refused(node: &NodeConfig) -> String {
    let node = NodeConfig { launched: true, ..node.clone() };
    let error = join_server(&node, 1, &Handles::default(), false).unwrap_err();
    assert!(matches!(error, Error::NodeLost { .. }), "{error}");
    error.to_string()
}

#[test]
fn servers_that_may_not_join_hear_why() {
    let mut config = ClusterConfig { servers: 1, workers: 1, ..ClusterConfig::default() };
    config.node = support::node(support::any());
    config.node.secret = SecretSource::Given(Secret::random());
    config.node.join_timeout = TIMEOUT;
    let mut scheduler = Scheduler::bind(&config).unwrap();
    config.node.scheduler = scheduler.address().to_owned();
    let node = &config.node;
    let error = refused(node);
    let missing = "is not complete, it waits for server 0, worker 0: start this server without";
    assert!(error.contains(missing), "{error}");
    let secret = SecretSource::Given(Secret::random());
    let error = refused(&NodeConfig { secret, ..node.clone() });
    assert!(error.contains("refused this node"), "{error}");
    std::thread::scope(|scope| {
        let server = scope.spawn(|| run_server(node, None, 1, &Handles::default(), false));
        let worker = scope.spawn(|| run_worker(node, None, &Apps::default(), false));
        scheduler.gather(|| Ok(())).unwrap();
        let error = run_server(node, None, 1, &Handles::default(), false).unwrap_err().to_string();
        let hint = "no place for server: this cluster has 1 servers; one more joins with --join";
        assert!(error.contains(hint), "{error}");
        scheduler.end(None).unwrap();
        server.join().unwrap().unwrap();
        worker.join().unwrap().unwrap();
    });
    let error = refused(node);
    assert!(error.contains("the cluster has ended"), "{error}");
    drop(scheduler);
    let node = NodeConfig { join_timeout: Duration::from_millis(300), ..node.clone() };
    let error = join_server(&node, 1, &Handles::default(), false).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}
