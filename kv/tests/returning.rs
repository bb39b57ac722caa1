//! Goal: a scheduler that keeps its state is killed at any time and started again, and the cluster
//! goes on: each task is run once, each request of a node is answered once, barriers meet, and no
//! wait fails. Method: whole clusters on a simulated network whose scheduler crashes at random
//! times and comes back after random pauses; sums in a table and counts of requests are compared
//! with what was done.

#[path = "../src/node/scheduler/state_store/small_disk.rs"]
mod small_disk;

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::simulated::Draws;
use caravan_kv::node::{SchedulerClient, run_server, run_worker};
use caravan_kv::{
    App, Apps, Asked, Cluster, ClusterConfig, Error, Group, Handler, Handles, Jobs, NodeConfig,
    Rpc, SecretSource, TableSpec, Target, ValueType, Van, WorkerNode,
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
    let table = node.worker.admin().create_table(&TableSpec::new(1, "done", ValueType::I64, 1))?;
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
            let asked = node.rpc(|rpc| rpc.ask(Group::WORKERS, "takes", 7, b"it"))??;
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

/// Runs a scheduler for a while; returns why it has ended, unless it goes on.
fn try_for_a_while(network: &Network, config: &ClusterConfig) -> Option<String> {
    let config = config.clone();
    let tried = network.spawn("scheduler", move |_| {
        let mut scheduler = SchedulerClient::bind(&config)?;
        scheduler.gather(|| Ok(()))?;
        scheduler.watch(|| true)
    });
    network.sleep(SECOND);
    if tried.is_finished() {
        let ended = tried.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        return Some(ended.unwrap_err().to_string());
    }
    network.crash("scheduler");
    network.sleep(SECOND / 1000);
    assert!(tried.join().is_err(), "it was killed");
    None
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
    let mut scheduler = SchedulerClient::bind(config).unwrap();
    scheduler.address().clone_into(&mut shared.address.lock().unwrap());
    scheduler.gather(|| Ok(())).unwrap();
    scheduler.watch(|| !shared.is_over.load(Ordering::Relaxed)).unwrap();
    scheduler.end(None).unwrap();
}

/// What is done while the scheduler is away, with random numbers and the number of times that it
/// was.
type Meanwhile<'a> = &'a dyn Fn(&Network, &ClusterConfig, &mut Draws, u64);

/// Runs jobs until `kills` schedulers have died; returns the number of rounds.
fn run(seed: u64, kills: u64, meanwhile: Meanwhile<'_>) -> u64 {
    run_in(tempfile::tempdir().unwrap().path(), seed, kills, meanwhile)
}

/// With the state in this folder.
fn run_in(folder: &Path, seed: u64, kills: u64, meanwhile: Meanwhile<'_>) -> u64 {
    let network = Network::new(seed, Faults::jittery());
    let shared = Arc::new(Shared::default());
    let mut config = config(folder, SERVERS, WORKERS);
    let mut scheduler = start_first(&network, &mut config, &shared);
    let servers = (0..SERVERS).map(|rank| {
        let node = config.node.clone();
        let serve = move |_: &Network| run_server(&node, Some(rank), 1, &Handles::default(), false);
        network.spawn(&format!("server {rank}"), serve)
    });
    let mut nodes: Vec<_> = servers.collect();
    nodes.extend((0..WORKERS).map(|rank| {
        let (node, shared) = (config.node.clone(), shared.clone());
        let takes = move || -> Box<dyn Handler> {
            let shared = shared.clone();
            Box::new(move |rpc: &mut Rpc, asked: Asked| {
                shared.taken.fetch_add(1, Ordering::Relaxed);
                rpc.answer(asked.token, b"taken").unwrap();
            })
        };
        let apps =
            Apps::default().with("works", || Box::new(Works)).with("part", || Box::new(Part));
        let apps = apps.with_handler("takes", takes);
        network
            .spawn(&format!("worker {rank}"), move |_| run_worker(&node, Some(rank), &apps, false))
    }));
    let is_calm = Arc::new(AtomicBool::new(false));
    let driver = {
        let (node, is_calm) = (config.node.clone(), is_calm.clone());
        network.spawn("driver", move |_| drive(&node, &is_calm))
    };
    // All have joined by then.
    network.sleep(SECOND / 4);
    let mut draws = Draws(seed);
    for kill in 0..kills {
        network.sleep(Duration::from_micros(draws.below(200_000)));
        network.crash("scheduler");
        network.sleep(Duration::from_micros(1000 + draws.below(500_000)));
        assert!(scheduler.join().is_err(), "it was killed");
        meanwhile(&network, &config, &mut draws, kill);
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
    let table = client.admin().create_table(&TableSpec::new(1, "done", ValueType::I64, 1)).unwrap();
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
    for_each_seed(4, |seed| rounds += run(seed, 8, &|_, _, _, _| ()));
    println!("{rounds} rounds");
}

/// As many as an hour allows.
#[test]
#[ignore = "takes long"]
fn nothing_is_lost_or_done_twice_in_many_runs() {
    let mut rounds = 0;
    for_each_seed(2000, |seed| rounds += run(seed, 20, &|_, _, _, _| ()));
    println!("{rounds} rounds");
}

/// Runs a scheduler for a while that has its state in this folder.
fn run_other(network: &Network, config: &ClusterConfig, folder: &Path) {
    let shared = Arc::default();
    let mut config = config.clone();
    config.node.state = Some(folder.to_owned());
    let other = start(network, &config, &shared);
    network.sleep(2 * SECOND);
    network.crash("scheduler");
    assert!(other.join().is_err(), "it does not end by itself");
}

/// A scheduler that keeps another cluster's state, or none, is refused by all nodes, which wait for
/// the right one.
#[test]
fn nodes_wait_for_the_scheduler_of_their_cluster() {
    for_each_seed(2, |seed| {
        let others = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let wrong = |network: &Network, config: &ClusterConfig, _: &mut Draws, kill: u64| {
            run_other(network, config, others[kill as usize % 2].path());
        };
        run(seed, 3, &wrong);
    });
}

/// The files of a scheduler's state.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = ["state-0", "state-1"].map(|name| folder.join(name)).into_iter();
    paths.filter_map(|path| Some((path.clone(), fs::read(&path).ok()?))).collect()
}

fn put(files: &[(PathBuf, Vec<u8>)]) {
    files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
}

/// The file that was written last.
fn newest(folder: &Path) -> (PathBuf, Vec<u8>) {
    let number = |bytes: &[u8]| {
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap();
        serde_json::from_slice::<Value>(line).unwrap()["number"].as_u64().unwrap()
    };
    files(folder).into_iter().max_by_key(|(_, bytes)| number(bytes)).unwrap()
}

/// A scheduler whose state was rolled back, cut or changed says so and ends; with the last state
/// all goes on.
#[test]
fn an_older_state_is_refused() {
    let [refused, went_on] = [(); 2].map(|()| Cell::new(0));
    for_each_seed(3, |seed| {
        let first = RefCell::new(Vec::new());
        let wrong = |network: &Network, config: &ClusterConfig, draws: &mut Draws, kill: u64| {
            let folder = config.node.state.as_ref().unwrap();
            let last = files(folder);
            let (path, newest) = newest(folder);
            match kill {
                0 => return first.replace(last).clear(),
                1 => put(&first.borrow()),
                2 => fs::write(&path, &newest[..newest.len() / 2]).unwrap(),
                _ => {
                    let mut damaged = newest.clone();
                    let at = draws.below(damaged.len() as u64) as usize;
                    damaged[at] ^= 1 << draws.below(8);
                    fs::write(&path, damaged).unwrap();
                }
            }
            let Some(error) = try_for_a_while(network, config) else {
                went_on.set(went_on.get() + 1);
                return; // nobody has heard of a later one
            };
            refused.set(refused.get() + 1);
            let is_named = error.contains(&folder.display().to_string());
            let is_why =
                ["is older than number", "has format"].iter().any(|why| error.contains(why));
            assert!(is_named && is_why, "{error}");
            put(&last);
        };
        run(seed, 6, &wrong);
    });
    println!("{} states were refused, with {} all went on", refused.get(), went_on.get());
    assert!(refused.get() > 0);
}

/// While there is no room for the state nothing changes, and whoever asks hears why; then all goes
/// on.
#[test]
fn a_full_disk_is_waited_for() {
    for_each_seed(2, |seed| {
        let Some(disk) = small_disk::SmallDisk::new(3) else { return }; // a lock and two states
        let full = |network: &Network, config: &ClusterConfig, _: &mut Draws, _: u64| {
            let folder = config.node.state.clone().unwrap();
            let node = config.node.clone();
            network.spawn("disk", move |network| {
                network.sleep(SECOND / 5); // the scheduler is back
                let (newest, _) = newest(&folder);
                let next = ["state-0", "state-1"].map(|name| folder.join(name));
                let next = next.into_iter().find(|path| *path != newest).unwrap();
                let filler = small_disk::SmallDisk::fill(&folder, &next);
                network.sleep(SECOND / 5);
                let mut jobs = Jobs::of(&node).unwrap();
                let paused = jobs.paused().unwrap().unwrap();
                assert!(paused.contains("no room for the state"), "{paused}");
                let listed = jobs.list().unwrap();
                network.sleep(10 * SECOND);
                assert_eq!(jobs.list().unwrap(), listed);
                fs::remove_file(&filler).unwrap();
                network.sleep(SECOND);
                assert_eq!(jobs.paused().unwrap(), None);
            });
        };
        run_in(disk.path(), seed, 1, &full);
    });
}

/// The job of a driver that dies while the scheduler is away ends, however often that starts again.
#[test]
fn a_lost_driver_is_not_waited_for_ever() {
    for_each_seed(3, |seed| {
        let network = Network::new(seed, Faults::jittery());
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared::default());
        let mut config = config(folder.path(), 1, 1);
        config.node.scheduler_away = 2 * SECOND;
        let mut scheduler = start_first(&network, &mut config, &shared);
        let [server, worker, driver] = [(); 3].map(|()| config.node.clone());
        let nodes = [
            network.spawn("server 0", move |_| {
                run_server(&server, Some(0), 1, &Handles::default(), false)
            }),
            network
                .spawn("worker 0", move |_| run_worker(&worker, Some(0), &Apps::default(), false)),
        ];
        network.spawn("driver", move |network| {
            let _cluster = Cluster::attach(&driver, "job").unwrap();
            network.sleep(3600 * SECOND);
        });
        network.sleep(SECOND);
        let jobs = || {
            let node = config.node.clone();
            let looks = network.spawn("looks", move |_| Jobs::of(&node).unwrap().list().unwrap());
            looks.join().unwrap_or_else(|stopped| panic!("{stopped}")).len()
        };
        assert_eq!(jobs(), 2);
        network.crash("scheduler");
        network.crash("driver");
        // They live for less time than drivers have to come back.
        for _ in 0..6 {
            network.sleep(SECOND / 1000);
            assert!(scheduler.join().is_err());
            scheduler = start(&network, &config, &shared);
            network.sleep(SECOND);
            network.crash("scheduler");
        }
        network.sleep(SECOND / 1000);
        assert!(scheduler.join().is_err());
        scheduler = start(&network, &config, &shared);
        network.sleep(SECOND);
        // That of the present scheduler's process.
        assert_eq!(jobs(), 1);
        shared.is_over.store(true, Ordering::Relaxed);
        for node in nodes {
            node.join().unwrap_or_else(|stopped| panic!("{stopped}")).unwrap();
        }
        scheduler.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    });
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
