//! Goal: servers join a cluster under load, get shards and leave: no request fails, and nothing is
//! lost, applied twice or out of order. Whoever may not join or leave hears why.
//! Method: whole clusters with their schedulers on the simulated van. Workers push whole numbers to
//! shared keys, and check at once what only they write; the driver has servers join and leave at
//! random instants and moves shards there. In the end each key's sum is that of all acknowledged
//! pushes. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::TIMEOUT;
use crate::support::simulated::{Draws, join, weather};
use caravan_kv::node::{Ended, SchedulerClient, join_server, run_server, run_worker};
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, NodeConfig, Placement, SecretSource,
    Table, TableSpec, Target, TaskId, Timestamp, ValueType, Worker, WorkerNode,
};
use caravan_van::sim::{Faults, Network, Node, for_each_seed};
use caravan_van::{KeyRange, Secret};
use serde_json::{Value, json};

const KEYS: u64 = 300;

/// Most workers of a run; each has a column of its own in the dense table.
const WORKERS: u64 = 3;

/// A sparse table with lists of keys that servers remember, and a dense one, which may have copies.
fn tables(copies: bool) -> [TableSpec; 2] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let sparse = TableSpec::new(1, "sparse", ValueType::I64, 1);
    let sparse = sparse.filters("key-cache".parse().unwrap());
    let dense = TableSpec::new(2, "dense", ValueType::I64, 1 + WORKERS as u32).dense();
    let dense = dense.replicas(u32::from(copies));
    [sparse, dense].map(|spec| spec.keys(keys).placement(Placement::Even(3)))
}

/// A table that workers join while servers come and go.
fn late(number: u64) -> TableSpec {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let spec = TableSpec::new(3 + number as u32, &format!("late {number}"), ValueType::I64, 1);
    spec.keys(keys).placement(Placement::Even(2))
}

/// Late tables of a run.
const LATE: u64 = 4;

/// What the driver tells workers.
#[derive(Default)]
struct Signals {
    /// To stop.
    stop: AtomicBool,
    /// To push less often, so that simulated time passes fast.
    slow: AtomicBool,
}

/// Pushes and pulls until it is told to stop.
struct Adds {
    signals: Arc<Signals>,
}

impl App for Adds {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let seed = body["seed"].as_u64().unwrap();
        let flags = ["late", "copies"].map(|name| body[name].as_bool().unwrap());
        self.add(node, seed, flags).map_err(|error| error.to_string())
    }
}

impl Adds {
    /// Returns what it has pushed to each key, how often to the key of its own, and how many shards
    /// it has found at servers that have joined.
    fn add(
        &self,
        node: &mut WorkerNode,
        seed: u64,
        [has_late, copies]: [bool; 2],
    ) -> caravan_kv::Result<Value> {
        let mut draws = Draws(seed << 8 | node.rank as u64);
        let own_column = 1 + node.rank;
        let worker = &mut node.worker;
        let [sparse, dense] = tables(copies);
        let [sparse, dense] =
            [worker.admin().create_table(&sparse)?, worker.admin().create_table(&dense)?];
        let mut pushed: BTreeMap<u64, i64> = BTreeMap::new();
        let mut own = 0;
        let mut waiting: VecDeque<(Timestamp, Option<i64>)> = VecDeque::new();
        let mut late_pushes = [0i64; LATE as usize];
        while !self.signals.stop.load(Ordering::Relaxed) {
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
            if has_late && draws.below(8) == 0 {
                let number = draws.below(LATE);
                let table = worker.admin().create_table(&late(number))?;
                let keys = [draws.below(KEYS / 2), KEYS / 2 + draws.below(KEYS / 2)];
                waiting.push_back((worker.push(table, &keys, &[1i64, 1])?, None));
                late_pushes[number as usize] += 2;
            }
            while waiting.len() > draws.below(12) as usize {
                let next = draws.below(waiting.len() as u64) as usize;
                let Some((timestamp, expected)) = waiting.remove(next) else { break };
                let answer = worker.wait(timestamp)?;
                if let Some(expected) = expected {
                    let read = answer.values::<i64>()[own_column];
                    // Where there are copies, one that was posted again may see later pushes, too.
                    let is_right = if copies { read >= expected } else { read == expected };
                    assert!(is_right, "it wrote {expected}, and reads {read}");
                }
            }
            let is_slow = self.signals.slow.load(Ordering::Relaxed);
            worker.charge(Duration::from_micros(draws.below(if is_slow { 50_000 } else { 50 })))?;
        }
        for (timestamp, _) in waiting {
            worker.wait(timestamp)?;
        }
        let founders = worker.info().servers();
        let mut further = 0;
        for table in [sparse, dense] {
            further +=
                worker.info().shards(table)?.iter().filter(|it| it.server >= founders).count();
        }
        let pushed: Vec<(u64, i64)> = pushed.into_iter().collect();
        Ok(json!({ "pushed": pushed, "own": own, "further": further, "late": late_pushes }))
    }
}

fn pull(worker: &mut Worker, table: Table) -> Vec<i64> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

/// What a run has met.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// Servers that have joined.
    joined: usize,
    /// Shards that were moved to them.
    moved: usize,
    /// Shards that workers have found there.
    found: u64,
    /// Servers that have left again, and shards that went from them to others.
    left: usize,
    handed: usize,
    /// Servers that have left while another driver moved shards, and its moves that were refused.
    disturbed: usize,
    refused: u64,
    /// Tables that a worker has joined again.
    late: i64,
}

impl AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.joined += other.joined;
        self.moved += other.moved;
        self.found += other.found;
        self.left += other.left;
        self.handed += other.handed;
        self.disturbed += other.disturbed;
        self.refused += other.refused;
        self.late += other.late;
    }
}

/// Moves a random shard of each table to the server that has joined last, and then spreads all
/// shards; returns how many have gone to servers that have joined.
fn shift(client: &mut Worker, tables: &[Table], draws: &mut Draws) -> usize {
    let (founders, last) = (client.info().servers(), client.info().addresses().count() - 1);
    let mut moved = 0;
    for &table in tables {
        let shards = client.info().shards(table).unwrap();
        let shard = shards[draws.below(shards.len() as u64) as usize];
        let wish = client.admin().move_shard(table, shard.range.begin(), last).unwrap();
        client.wait(wish).unwrap();
        moved += usize::from(shard.server != last);
        for before in client.admin().rebalance(table, &[]).unwrap() {
            let shards = client.info().shards(table).unwrap();
            let after = shards.iter().find(|it| it.range == before.range).unwrap();
            moved += usize::from(after.server >= founders);
        }
        let shards = client.info().shards(table).unwrap();
        assert!(shards.iter().any(|shard| shard.server == last), "{shards:?}");
    }
    moved
}

pub(crate) fn drive(network: &Network, seed: u64) -> Met {
    let mut draws = Draws(seed);
    let (servers, workers) = (1 + draws.below(3) as usize, 1 + draws.below(WORKERS) as usize);
    let copies = servers > 1 && seed % 4 < 2;
    let (mut cluster, task, signals) = busy(seed, servers, workers, [false, copies]);
    let mut client = cluster.client().unwrap();
    let mut idle = cluster.client().unwrap();
    let specs = tables(copies);
    let [sparse, dense] = specs.each_ref().map(|spec| client.admin().create_table(spec).unwrap());
    let _ = specs.each_ref().map(|spec| idle.admin().create_table(spec).unwrap());
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
    signals.stop.store(true, Ordering::Relaxed);
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
    assert_eq!(reader.info().addresses().count(), servers + met.joined);
    reader.admin().set_namespace("");
    let again = reader.admin().create_table(&specs[0]).unwrap();
    assert_eq!(pull(&mut reader, again), sums);
    drop(reader);
    late.shutdown().unwrap();
    // One that has not listened meanwhile drops the tables wherever their shards are.
    assert_eq!(idle.admin().drop_tables("").unwrap(), 2);
    client.sleep(Duration::ZERO).unwrap();
    let anew = idle.admin().create_table(&specs[0]).unwrap();
    assert_eq!(pull(&mut idle, anew), vec![0; KEYS as usize]);
    drop((client, idle));
    cluster.shutdown().unwrap();
    for node in further {
        assert_eq!(node.join().unwrap_or_else(|why| panic!("{why}")), Ended::Over);
    }
    met
}

#[test]
fn servers_join_under_load_and_nothing_is_lost_or_doubled() {
    let mut sum = Met::default();
    for_each_seed(60, |seed| {
        let network = Network::new(seed, weather(seed));
        let driver = network.spawn("driver", move |network| drive(network, seed));
        sum += driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    });
    println!("{sum:?}");
    assert!(sum.moved >= 2 * sum.joined, "each gets shards of both tables: {sum:?}");
    assert!(sum.found > 0, "workers find shards there: {sum:?}");
}

/// Moves a random shard of each table to a server, and then spreads all shards or not; returns how
/// many have moved.
fn lend(client: &mut Worker, tables: &[Table], to: usize, draws: &mut Draws) -> usize {
    let mut moved = 0;
    for &table in tables {
        let shards = client.info().shards(table).unwrap();
        let shard = shards[draws.below(shards.len() as u64) as usize];
        let wish = client.admin().move_shard(table, shard.range.begin(), to).unwrap();
        client.wait(wish).unwrap();
        client.poll().unwrap(); // so that its mark leaves, for which the shard waits if it returns
        moved += usize::from(shard.server != to);
        if draws.below(2) == 0 {
            moved += client.admin().rebalance(table, &[]).unwrap().len();
        }
    }
    moved
}

/// A cluster of these sizes whose workers push until they are told to stop, also to late tables if
/// it has any.
fn busy(
    seed: u64,
    servers: usize,
    workers: usize,
    [has_late, copies]: [bool; 2],
) -> (Cluster, TaskId, Arc<Signals>) {
    let config = ClusterConfig { servers, workers, ..ClusterConfig::default() };
    let signals = Arc::new(Signals::default());
    let heard = signals.clone();
    let apps = Apps::default().with("adds", move || Box::new(Adds { signals: heard.clone() }));
    let launch = Launch::Simulated(Handles::default(), apps);
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    let body = json!({ "seed": seed, "late": has_late, "copies": copies });
    let task = cluster.submit(Target::Workers, "adds", &body).unwrap();
    (cluster, task, signals)
}

/// Moves shards to random servers, as another driver, until it is told to stop; returns how many
/// moves were refused.
fn disturb(
    network: &Network,
    node: &NodeConfig,
    (seed, copies): (u64, bool),
    signals: &Signals,
) -> u64 {
    let cluster = Cluster::attach(node, "moves").unwrap();
    let mut client = cluster.client().unwrap();
    client.admin().set_namespace("");
    let [sparse, dense] = tables(copies);
    let specs = [sparse, dense, late(0), late(1)];
    let tables = specs.each_ref().map(|spec| client.admin().create_table(spec).unwrap());
    let mut draws = Draws(seed << 8);
    let mut refused = 0;
    while !signals.stop.load(Ordering::Relaxed) {
        client.sleep(Duration::ZERO).unwrap();
        let table = tables[draws.below(4) as usize];
        let to = draws.below(client.info().addresses().count() as u64) as usize;
        let wish = client.admin().move_shard(table, draws.below(KEYS), to).unwrap();
        match client.wait(wish) {
            Ok(_) => {}
            Err(Error::Refused { .. }) => refused += 1,
            Err(Error::Config(_)) if copies => refused += 1,
            Err(error) => panic!("a move to server {to}: {error}"),
        }
        network.sleep(Duration::from_micros(draws.below(20_000)));
    }
    drop(client);
    cluster.shutdown().unwrap();
    refused
}

/// Waits until a server has ended that leaves; a client with a lane there goes on meanwhile.
fn wait_for_end(network: &Network, node: Node<Ended>, client: &mut Worker) -> Ended {
    let began = network.now();
    while !node.is_finished() {
        network.sleep(Duration::from_millis(5));
        client.sleep(Duration::ZERO).unwrap();
        client.poll().unwrap();
        assert!(network.now() - began < Duration::from_secs(60), "it does not end");
    }
    node.join().unwrap_or_else(|why| panic!("{why}"))
}

/// Servers come and go; some while another driver moves shards.
#[allow(clippy::too_many_lines, reason = "one scenario, told in its order")]
pub(crate) fn come_and_go(network: &Network, seed: u64) -> Met {
    let mut draws = Draws(seed);
    let (servers, workers) = (1 + draws.below(3) as usize, 1 + draws.below(WORKERS) as usize);
    let copies = servers > 1 && seed % 4 < 2;
    let (mut cluster, task, signals) = busy(seed, servers, workers, [true, copies]);
    let node = cluster.config().node.clone();
    let mut client = cluster.client().unwrap();
    let mut idle = cluster.client().unwrap();
    let specs = tables(copies);
    let [sparse, dense] = specs.each_ref().map(|spec| client.admin().create_table(spec).unwrap());
    let first_late = client.admin().create_table(&late(0)).unwrap();
    let _ = specs.each_ref().map(|spec| idle.admin().create_table(spec).unwrap());
    let mut met = Met::default();
    let moves = (seed % 2 == 1).then(|| {
        let (node, signals) = (node.clone(), signals.clone());
        network.spawn("moves", move |network| disturb(network, &node, (seed, copies), &signals))
    });
    let mut there: Vec<(usize, Node<Ended>)> = Vec::new();
    for round in 0..4 {
        network.sleep(Duration::from_micros(draws.below(3000)));
        if round == 0 || draws.below(2) == 0 {
            let rank = client.info().addresses().count();
            there.push((rank, join(network, &node, &mut client)));
            met.joined += 1;
        }
        if let (None, Some((last, _))) = (&moves, there.last()) {
            met.moved += lend(&mut client, &[sparse, dense, first_late], *last, &mut draws);
        }
        network.sleep(Duration::from_micros(draws.below(5000)));
        if there.is_empty() {
            continue;
        }
        let (rank, left) = there.remove(draws.below(there.len() as u64) as usize);
        met.handed += release(&cluster, rank, moves.is_some());
        signals.slow.store(true, Ordering::Relaxed);
        assert_eq!(wait_for_end(network, left, &mut client), Ended::Left(rank));
        signals.slow.store(false, Ordering::Relaxed);
        met.left += 1;
        met.disturbed += usize::from(moves.is_some());
        for table in [sparse, dense] {
            let shards = client.info().shards(table).unwrap();
            assert!(shards.iter().all(|shard| shard.server != rank), "{shards:?}");
        }
    }
    signals.stop.store(true, Ordering::Relaxed);
    met.refused += moves.map_or(0, |node| node.join().unwrap_or_else(|why| panic!("{why}")));
    let mut sums = vec![0; KEYS as usize];
    let mut own = Vec::new();
    let mut late_sums = [0; LATE as usize];
    for done in cluster.wait(task).unwrap() {
        let pushed: Vec<(u64, i64)> = serde_json::from_value(done["pushed"].clone()).unwrap();
        pushed.into_iter().for_each(|(key, value)| sums[key as usize] += value);
        own.push(done["own"].as_i64().unwrap());
        let late: Vec<i64> = serde_json::from_value(done["late"].clone()).unwrap();
        late_sums.iter_mut().zip(late).for_each(|(sum, pushed)| *sum += pushed);
    }
    // One that has not listened meanwhile finds everything.
    assert_eq!(pull(&mut idle, sparse), sums);
    let rows = pull(&mut idle, dense);
    let width = 1 + WORKERS as usize;
    assert_eq!(rows.iter().step_by(width).copied().collect::<Vec<_>>(), sums);
    assert_eq!(rows[7 * width + 1..][..workers], own);
    for (number, sum) in (0..LATE).zip(late_sums) {
        let table = client.admin().create_table(&late(number)).unwrap();
        assert_eq!(pull(&mut client, table).iter().sum::<i64>(), sum);
        met.late += sum;
    }
    // So does a driver that comes later.
    let late = Cluster::attach(&node, "late").unwrap();
    let mut reader = late.client().unwrap();
    reader.admin().set_namespace("");
    let again = reader.admin().create_table(&specs[0]).unwrap();
    assert_eq!(pull(&mut reader, again), sums);
    drop(reader);
    late.shutdown().unwrap();
    assert_eq!(idle.admin().drop_tables("").unwrap(), 2 + LATE as usize);
    let anew = idle.admin().create_table(&specs[0]).unwrap();
    assert_eq!(pull(&mut idle, anew), vec![0; KEYS as usize]);
    drop((client, idle));
    cluster.shutdown().unwrap();
    for (_, node) in there {
        assert_eq!(node.join().unwrap_or_else(|why| panic!("{why}")), Ended::Over);
    }
    met
}

/// Makes a server leave; others may move shards there meanwhile, so that it takes several attempts.
fn release(cluster: &Cluster, rank: usize, is_disturbed: bool) -> usize {
    for _ in 0..50 {
        match cluster.release_server(rank) {
            Ok(moved) => return moved.len(),
            Err(Error::Refused { .. } | Error::Config(_)) if is_disturbed => {}
            Err(error) => panic!("server {rank} cannot leave: {error}"),
        }
    }
    panic!("server {rank} gets shards all the time");
}

#[test]
fn servers_leave_under_load_and_nothing_is_lost_or_doubled() {
    let mut sum = Met::default();
    for_each_seed(60, |seed| {
        let network = Network::new(seed, weather(seed));
        let driver = network.spawn("driver", move |network| come_and_go(network, seed));
        sum += driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    });
    println!("{sum:?}");
    let Met { joined, moved, left, handed, disturbed, refused, late, .. } = sum;
    let counts = [joined, moved, left, handed, disturbed, refused as usize, late as usize];
    assert!(counts.iter().all(|count| *count > 0), "{sum:?}");
}

/// Runs this on a cluster of one server and one worker without faults.
fn on_quiet_cluster(body: impl FnOnce(&Network, Cluster) + Send + 'static) {
    let network = Network::new(1, Faults::none());
    let driver = network.spawn("driver", move |network| {
        let config = ClusterConfig { servers: 1, workers: 1, ..ClusterConfig::default() };
        let launch = Launch::Simulated(Handles::default(), Apps::default());
        body(network, Cluster::launch(&config, launch).unwrap());
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

#[test]
fn a_server_waits_for_clients_and_may_die_meanwhile() {
    on_quiet_cluster(|network, cluster| {
        let node = cluster.config().node.clone();
        let mut client = cluster.client().unwrap();
        let mut idle = cluster.client().unwrap();
        let joins = join(network, &node, &mut client);
        let [spec, _] = tables(false);
        let table = client.admin().create_table(&spec).unwrap();
        let same = idle.admin().create_table(&spec).unwrap();
        let wish = client.admin().move_shard(table, 0, 1).unwrap();
        client.wait(wish).unwrap();
        for worker in [&mut client, &mut idle] {
            let pushed = worker.push(same, &[0], &[1i64]).unwrap();
            worker.wait(pushed).unwrap();
        }
        let moved = cluster.release_server(1).unwrap();
        assert_eq!(
            moved.iter().map(|it| (it.before.server, it.server)).collect::<Vec<_>>(),
            [(1, 0)]
        );
        for _ in 0..5000 {
            network.sleep(Duration::from_millis(1));
            client.sleep(Duration::ZERO).unwrap();
            client.poll().unwrap();
        }
        assert!(!joins.is_finished(), "a client has a lane there");
        network.crash("server 1");
        network.sleep(Duration::from_secs(20));
        // Its death is no loss, though none is allowed, and who has not listened goes on.
        for worker in [&mut client, &mut idle] {
            worker.poll().unwrap(); // whose lane is gone
            let pushed = worker.push(same, &[0], &[1i64]).unwrap();
            worker.wait(pushed).unwrap();
        }
        assert_eq!(pull(&mut idle, same)[0], 4);
        drop((client, idle));
        cluster.shutdown().unwrap();
    });
}

/// Makes a driver ask a server to leave and die after a while, and asks again; returns whether that
/// was needed.
fn ask_twice(network: &Network, seed: u64) -> bool {
    let config = ClusterConfig { servers: 1, workers: 1, ..ClusterConfig::default() };
    let launch = Launch::Simulated(Handles::default(), Apps::default());
    let cluster = Cluster::launch(&config, launch).unwrap();
    let node = cluster.config().node.clone();
    let mut client = cluster.client().unwrap();
    let leaves = join(network, &node, &mut client);
    let [spec, _] = tables(false);
    let table = client.admin().create_table(&spec).unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    let pushed = client.push(table, &keys, &[1i64; KEYS as usize]).unwrap();
    client.wait(pushed).unwrap();
    assert!(!client.admin().rebalance(table, &[]).unwrap().is_empty());
    let asker = network.spawn("asker", move |_| {
        let cluster = Cluster::attach(&node, "asks").unwrap();
        cluster.release_server(1).unwrap();
    });
    network.sleep(Duration::from_micros(Draws(seed).below(4000)));
    if !asker.is_finished() {
        network.crash("asker");
    }
    let is_needed = match cluster.release_server(1) {
        Ok(_) => true,
        Err(Error::Config(why)) if why.contains("leaves already") => false,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(wait_for_end(network, leaves, &mut client), Ended::Left(1));
    assert_eq!(pull(&mut client, table), vec![1; KEYS as usize]);
    drop(client);
    cluster.shutdown().unwrap();
    is_needed
}

#[test]
fn a_server_leaves_whenever_the_driver_dies_that_asked_it() {
    let (mut needed, mut spared) = (0, 0);
    for_each_seed(60, |seed| {
        let network = Network::new(seed, Faults::none());
        let driver = network.spawn("driver", move |network| ask_twice(network, seed));
        let is_needed = driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        *(if is_needed { &mut needed } else { &mut spared }) += 1;
    });
    println!("asked again {needed} times of {}", needed + spared);
    assert!(needed > 0 && spared > 0, "{needed} {spared}");
}

#[test]
fn servers_that_may_not_leave_hear_why() {
    on_quiet_cluster(|network, cluster| {
        let node = cluster.config().node.clone();
        let mut client = cluster.client().unwrap();
        let why = |rank| cluster.release_server(rank).unwrap_err().to_string();
        assert!(why(0).contains("server 0 is the only one left"), "{}", why(0));
        assert!(why(1).contains("there is no server 1, the last one is 0"), "{}", why(1));
        let joins = join(network, &node, &mut client);
        let [spec, _] = tables(false);
        let table = client.admin().create_table(&spec).unwrap();
        assert!(cluster.release_server(1).unwrap().is_empty(), "it has no shards");
        assert!(why(1).contains("server 1 leaves already, or has left"), "{}", why(1));
        // Nobody gives it shards any more.
        let wish = client.admin().move_shard(table, 0, 1).unwrap();
        let error = client.wait(wish).unwrap_err().to_string();
        let says = ["it has left the cluster", "leaves the cluster and takes no shards"];
        assert!(says.iter().any(|says| error.contains(says)), "{error}");
        assert_eq!(wait_for_end(network, joins, &mut client), Ended::Left(1));
        assert!(client.admin().rebalance(table, &[]).unwrap().is_empty(), "one server is left");
        drop(client);
        cluster.shutdown().unwrap();
    });
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
    config.node = crate::support::node(crate::support::any());
    config.node.secret = SecretSource::Given(Secret::random());
    config.node.join_timeout = TIMEOUT;
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
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
