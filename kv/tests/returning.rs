//! Goal: a scheduler that keeps its state is killed at any time and started again, and the cluster
//! goes on: each task is run once, each request of a node is answered once, barriers meet, and no
//! wait fails. Method: whole clusters on a simulated network whose scheduler crashes at random
//! times and comes back after random pauses; sums in a table and counts of requests are compared
//! with what was done.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::node::{Scheduler, run_server, run_worker};
use caravan_kv::{
    App, Apps, Asked, Cluster, ClusterConfig, Desk, Error, Group, Handles, NodeConfig, Responder,
    SecretSource, TableSpec, Target, ValueType, Van, WorkerNode,
};
use caravan_van::Secret;
use caravan_van::sim::{Faults, Network, Node, for_each_seed};
use serde_json::{Value, json};

const SERVERS: usize = 2;
const WORKERS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);

/// What all nodes of a run share besides the network.
#[derive(Default)]
struct Shared {
    address: Mutex<String>,
    /// Ends the cluster.
    is_over: AtomicBool,
    /// Requests that the workers have taken.
    taken: AtomicU64,
}

/// The table of what was done: a key for each worker, and one for sub-tasks.
fn table(node: &mut WorkerNode, key: u64) -> Result<(), Error> {
    let table = node.worker.create_table(&TableSpec::new(1, "done", ValueType::I64, 1))?;
    let pushed = node.worker.push(table, &[key], &[1i64])?;
    node.worker.wait(pushed).map(drop)
}

/// Counts itself, meets the others, asks all of them, and has one start a sub-task.
struct Works;

impl App for Works {
    fn run(&mut self, node: &mut WorkerNode, round: Value) -> Result<Value, String> {
        let mut works = || -> Result<(), Error> {
            table(node, node.rank as u64)?;
            node.barrier("before")?;
            let asked = node.desk(|desk| desk.ask(Group::WORKERS, "takes", 7, b"it"))??;
            let answers = node.wait_for(asked, 60 * SECOND)?;
            assert_eq!(answers.len(), WORKERS);
            assert!(answers.iter().all(|answer| answer.outcome.as_deref() == Ok(b"taken")));
            node.barrier("after")?;
            match node.rank {
                0 => node.spawn(Target::Worker(1), "part", &Value::Null),
                _ => Ok(()),
            }
        };
        works().map(|()| round).map_err(|error| error.to_string())
    }
}

/// A sub-task.
struct Part;

impl App for Part {
    fn run(&mut self, node: &mut WorkerNode, _: Value) -> Result<Value, String> {
        table(node, WORKERS as u64).map(|()| Value::Null).map_err(|error| error.to_string())
    }
}

/// Settings of a cluster that keeps the state of its scheduler in a folder.
fn config(folder: &Path, servers: usize, workers: usize) -> ClusterConfig {
    let node = NodeConfig {
        van: Van::Sim,
        secret: SecretSource::Given(Secret::NONE),
        heartbeat: SECOND / 10,
        state: Some(folder.to_owned()),
        scheduler_away: 20 * SECOND,
        ..NodeConfig::default()
    };
    ClusterConfig { servers, workers, node, ..ClusterConfig::default() }
}

/// Starts a scheduler.
fn start(network: &Network, config: &ClusterConfig, shared: &Arc<Shared>) -> Node<()> {
    let (config, shared) = (config.clone(), shared.clone());
    network.spawn("scheduler", move |_| schedule(&config, &shared))
}

/// Starts the first scheduler, and enters its address.
fn start_first(network: &Network, config: &mut ClusterConfig, shared: &Arc<Shared>) -> Node<()> {
    let scheduler = start(network, config, shared);
    while shared.address.lock().unwrap().is_empty() {
        network.sleep(SECOND / 1000);
    }
    shared.address.lock().unwrap().clone_into(&mut config.node.scheduler);
    scheduler
}

/// Schedules until the cluster is over.
fn schedule(config: &ClusterConfig, shared: &Shared) {
    let mut scheduler = Scheduler::bind(config).unwrap();
    scheduler.address().clone_into(&mut shared.address.lock().unwrap());
    scheduler.gather(|| Ok(())).unwrap();
    scheduler.watch(|| !shared.is_over.load(Ordering::Relaxed)).unwrap();
    scheduler.end(None).unwrap();
}

/// Runs jobs until `kills` schedulers have died; returns the number of rounds.
fn run(seed: u64, kills: u64) -> u64 {
    let network = Network::new(seed, Faults::jittery());
    let folder = tempfile::tempdir().unwrap();
    let shared = Arc::new(Shared::default());
    let mut config = config(folder.path(), SERVERS, WORKERS);
    let mut scheduler = start_first(&network, &mut config, &shared);
    let servers = (0..SERVERS).map(|rank| {
        let node = config.node.clone();
        let serve = move |_: &Network| run_server(&node, Some(rank), 1, &Handles::default(), false);
        network.spawn(&format!("server {rank}"), serve)
    });
    let mut nodes: Vec<_> = servers.collect();
    nodes.extend((0..WORKERS).map(|rank| {
        let (node, shared) = (config.node.clone(), shared.clone());
        let takes = move || -> Box<dyn Responder> {
            let shared = shared.clone();
            Box::new(move |desk: &mut Desk, asked: Asked| {
                shared.taken.fetch_add(1, Ordering::Relaxed);
                desk.answer(asked.token, b"taken").unwrap();
            })
        };
        let apps =
            Apps::default().with("works", || Box::new(Works)).with("part", || Box::new(Part));
        let apps = apps.with_responder("takes", takes);
        network
            .spawn(&format!("worker {rank}"), move |_| run_worker(&node, Some(rank), &apps, false))
    }));
    let is_calm = Arc::new(AtomicBool::new(false));
    let driver = {
        let (node, is_calm) = (config.node.clone(), is_calm.clone());
        network.spawn("driver", move |_| drive(&node, &is_calm))
    };
    // All have joined within the first second.
    network.sleep(SECOND);
    for _ in 0..kills {
        network.sleep(Duration::from_micros(network.number() % 400_000));
        network.crash("scheduler");
        network.sleep(Duration::from_micros(1000 + network.number() % 500_000));
        assert!(scheduler.join().is_err(), "it was killed");
        scheduler = start(&network, &config, &shared);
    }
    is_calm.store(true, Ordering::Relaxed);
    let rounds = driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    shared.is_over.store(true, Ordering::Relaxed);
    for node in nodes {
        node.join().unwrap_or_else(|stopped| panic!("{stopped}")).unwrap();
    }
    scheduler.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    let all = (WORKERS * WORKERS) as u64;
    assert_eq!(shared.taken.load(Ordering::Relaxed), rounds * all);
    rounds
}

/// Submits rounds of work until no scheduler is killed any more, and some more; returns how many.
fn drive(node: &NodeConfig, is_calm: &AtomicBool) -> u64 {
    let mut cluster = Cluster::attach(node, "job").unwrap();
    let mut rounds = 0;
    let mut calm = 0;
    while calm < 3 {
        calm += u64::from(is_calm.load(Ordering::Relaxed));
        rounds += 2;
        let first = cluster.promise().unwrap();
        let body = json!(rounds);
        let works = cluster.submit_after(&[first], Target::Workers, "works", &body).unwrap();
        let again = cluster.submit(Target::Workers, "works", &body).unwrap();
        cluster.finish(first).unwrap();
        for task in [works, again] {
            assert_eq!(cluster.wait(task).unwrap(), vec![body.clone(); WORKERS]);
        }
    }
    let mut client = cluster.client().unwrap();
    let table = client.create_table(&TableSpec::new(1, "done", ValueType::I64, 1)).unwrap();
    let keys: Vec<u64> = (0..=WORKERS as u64).collect();
    let pulled = client.pull(table, &keys).unwrap();
    let done = client.wait(pulled).unwrap().values::<i64>().to_vec();
    assert_eq!(done, vec![rounds as i64; WORKERS + 1]);
    drop(client);
    cluster.shutdown().unwrap();
    rounds
}

#[test]
fn nothing_is_lost_or_done_twice() {
    let mut rounds = 0;
    for_each_seed(6, |seed| rounds += run(seed, 8));
    println!("{rounds} rounds");
}

/// As many as an hour allows.
#[test]
#[ignore = "takes long"]
fn nothing_is_lost_or_done_twice_in_many_runs() {
    let mut rounds = 0;
    for_each_seed(2000, |seed| rounds += run(seed, 20));
    println!("{rounds} rounds");
}

/// A cluster whose scheduler stays away ends in time; its nodes say why.
#[test]
fn nodes_end_when_it_stays_away() {
    for_each_seed(5, |seed| {
        let network = Network::new(seed, Faults::jittery());
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared::default());
        let mut config = config(folder.path(), 1, 1);
        config.node.scheduler_away = 2 * SECOND;
        let scheduler = start_first(&network, &mut config, &shared);
        let node = config.node.clone();
        let server = network
            .spawn("server 0", move |_| run_server(&node, Some(0), 1, &Handles::default(), false));
        let node = config.node.clone();
        let worker =
            network.spawn("worker 0", move |_| run_worker(&node, Some(0), &Apps::default(), false));
        network.sleep(SECOND);
        network.crash("scheduler");
        assert!(scheduler.join().is_err());
        let gone = network.now();
        for node in [server, worker] {
            let ended = node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
            let error = ended.unwrap_err().to_string();
            assert!(error.contains("did not come back within 2.0 s"), "{error}");
        }
        let waited = network.now() - gone;
        assert!(waited > 2 * SECOND && waited < 4 * SECOND, "{waited:?}");
    });
}
