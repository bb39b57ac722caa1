//! Goal: DBPG on a simulated cluster does what the reference does, takes the time of the model, and
//! is the same for the same seed.
//! Method: the real driver, workers and servers as nodes of a simulated network, against
//! `support/reference.rs`.

use crate::support::example;
use crate::support::jobs;
use crate::support::reference;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use caravan_kv::node::{Observer, Role};
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::dbpg::{self, Job, Progress, Tail, Trained};
use caravan_van::sim::{Faults, Hosts, Network, for_each_seed};
use example::Example;
use jobs::{published, reference};
use reference::solve;

/// The example set as a file.
fn example_file(name: &str) -> PathBuf {
    let name = format!("caravan-simulated-{name}-{}.train", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, Example::new().libsvm()).unwrap();
    path
}

/// The passes of a run on 2 servers and 3 workers, and the fingerprint of all events.
fn train(seed: u64, job: &Job) -> (Vec<Progress>, u64) {
    let (_, passes, trace) = train_by(3, seed, job);
    (passes, trace)
}

/// The same with any number of workers, after the model.
fn train_by(workers: usize, seed: u64, job: &Job) -> (Trained, Vec<Progress>, u64) {
    let hosts = Hosts {
        card_bytes_per_second: NonZeroU64::new(1_250_000_000),
        overhead: Duration::from_micros(1),
        ..Hosts::default()
    };
    let network = Network::of_hosts(seed, Faults::jittery(), hosts);
    let job = job.clone();
    let scheduler = network.spawn("scheduler", move |_| {
        let config = ClusterConfig { servers: 2, workers, ..ClusterConfig::default() };
        let launch =
            Launch::Simulated(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        let mut passes = Vec::new();
        let trained = dbpg::train(&mut cluster, &job, |progress| passes.push(*progress)).unwrap();
        cluster.shutdown().unwrap();
        (trained, passes)
    });
    let (trained, passes) = scheduler.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    (trained, passes, network.trace())
}

#[test]
fn it_follows_the_reference_pass_by_pass() {
    let job = published(example_file("reference"), 6);
    let expected = solve(&[Example::new().part()], &reference(&job));
    let (passes, _) = train(1, &job);
    assert_eq!(passes.len(), expected.progress.len());
    for (pass, row) in passes.iter().zip(&expected.progress) {
        assert!((pass.objective - row.objective).abs() <= 1e-9 * row.objective, "{pass:?}");
        assert_eq!((pass.nnz, pass.active), (row.nonzeros, row.active), "{pass:?}");
        assert!(pass.worker_busy > 0.0 && pass.worker_busy < 1.0, "{pass:?}");
    }
    std::fs::remove_file(&job.files[0]).unwrap();
}

/// With a delay the order of arrivals changes the numbers, and outer steps add many messages.
#[test]
fn the_same_seed_is_the_same_run() {
    let plain = Job { delay: 2, ..published(example_file("seed"), 6) };
    let ended = Job { delay: 1, ..Job::new(plain.files.clone(), 1.0) };
    let filtered = Job {
        filters: "kkt,skip=0.5,significant=1,key-cache,snappy".parse().unwrap(),
        tail: Some(Tail::new(15)),
        ..ended.clone()
    };
    for job in [&plain, &ended, &filtered] {
        let first = train(1, job);
        assert_eq!(first, train(1, job));
        assert_ne!(first.1, train(2, job).1);
    }
    std::fs::remove_file(&plain.files[0]).unwrap();
}

/// Without a delay, and with an exact one, the pushes of four workers are added in one order,
/// whatever the order of their arrival: every network gives the same bits.
fn one_result_to_the_bit(seeds: u64) {
    let none = published(example_file(&format!("bits-{seeds}")), 6);
    let exact = Job { delay: 2, exact_delay: true, ..none.clone() };
    for job in [&none, &exact] {
        let mut first = None;
        let mut traces = Vec::new();
        for_each_seed(seeds, |seed| {
            let (trained, passes, trace) = train_by(4, seed, job);
            let weights = trained.model.iter().map(|(key, weight)| (key, weight.to_bits()));
            let numbers = |pass: &Progress| [pass.objective, pass.violation].map(f64::to_bits);
            let bits: (Vec<_>, Vec<_>) = (weights.collect(), passes.iter().map(numbers).collect());
            assert!(!bits.0.is_empty() && bits.1.len() > 3);
            assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits, "seed {seed}");
            traces.push(trace);
        });
        let different: BTreeSet<u64> = traces.iter().copied().collect();
        assert_eq!(different.len(), traces.len(), "every run has another order");
    }
    std::fs::remove_file(&none.files[0]).unwrap();
}

#[test]
fn four_workers_have_one_result_to_the_bit() {
    one_result_to_the_bit(6);
}

/// A run on some servers, and what becomes of them.
struct Fate {
    seed: u64,
    servers: usize,
    /// Losses that the cluster allows.
    losses: usize,
    /// When servers die, each time another one, after the one before.
    dies: Vec<Duration>,
}

/// What comes of a run.
struct Outlived {
    /// The weights and the objectives.
    bits: Vec<[u64; 2]>,
    took: Duration,
    /// Servers that died before its end.
    deaths: usize,
}

/// Trains, or returns why that ended.
fn train_outliving(job: &Job, fate: Fate) -> Result<Outlived, String> {
    let Fate { seed, servers, losses, dies } = fate;
    let network = Network::new(seed, Faults::jittery());
    let (job, began) = (job.clone(), Arc::new(AtomicBool::new(false)));
    let deaths = Arc::new(AtomicUsize::new(0));
    let dying = {
        let (began, deaths) = (began.clone(), deaths.clone());
        network.spawn("fate", move |network| {
            while !began.load(Ordering::Relaxed) {
                network.sleep(Duration::from_micros(20));
            }
            for (at, after) in dies.into_iter().enumerate() {
                network.sleep(after);
                // Neighbours in the chains, or not.
                let server = seed as usize + at * (1 + seed as usize / servers % 2);
                network.crash(&format!("server {}", server % servers));
                deaths.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let scheduler = network.spawn("scheduler", move |_| {
        let mut config = ClusterConfig { servers, workers: 3, ..ClusterConfig::default() };
        config.node.server_losses_max = losses;
        let launch =
            Launch::Simulated(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        began.store(true, Ordering::Relaxed);
        let start = cluster.now();
        let mut bits = Vec::new();
        let passed = |pass: &Progress| bits.push([pass.pass, pass.objective.to_bits()]);
        let trained = dbpg::train(&mut cluster, &job, passed).map_err(|error| error.to_string())?;
        let (took, deaths) = (cluster.now() - start, deaths.load(Ordering::Relaxed));
        bits.extend(trained.model.iter().map(|(key, weight)| [key, weight.to_bits()]));
        cluster.shutdown().unwrap();
        Ok(Outlived { bits, took, deaths })
    });
    let trained = scheduler.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    drop(dying.join());
    trained
}

/// Jobs with one copy of each part: the published method, and one with everything that has tables.
fn jobs_with_copies(test: &str) -> [Job; 2] {
    let plain = Job { replicas: 1, ..published(example_file(test), 6) };
    let all = Job {
        filters: "screen,kkt,key-cache,snappy".parse().unwrap(),
        tail: Some(Tail::new(2)),
        replicas: 1,
        ..Job::new(plain.files.clone(), 1.0)
    };
    [plain, all]
}

/// Wherever a server dies in a run with copies, none of its bits is another one: nothing is lost,
/// and nothing is applied twice.
#[test]
fn a_server_that_dies_changes_no_bit() {
    let jobs = jobs_with_copies("copies");
    for job in &jobs {
        let fate = |seed, dies| Fate { seed, servers: 3, losses: 1, dies };
        let expected = train_outliving(job, fate(1, Vec::new())).unwrap();
        assert!(expected.bits.len() > 5);
        for_each_seed(12, |seed| {
            let dies = expected.took * (1 + seed as u32 * 8 % 97) / 100;
            let found = train_outliving(job, fate(seed, vec![dies])).unwrap();
            assert_eq!(found.bits, expected.bits, "seed {seed}, which takes {:?}", found.took);
        });
    }
    std::fs::remove_file(&jobs[0].files[0]).unwrap();
}

/// Time between two deaths: a loss is noticed, and copies are made anew.
const GAP: Duration = Duration::from_millis(40);

/// Four of five servers die, one after the other, each when the chains of those that are left are
/// filled up: one copy is enough, and no bit is another one.
fn servers_that_die_again_and_again(seeds: u64) {
    let jobs = jobs_with_copies(&format!("again-{seeds}"));
    for job in &jobs {
        let fate = |seed, dies| Fate { seed, servers: 5, losses: 4, dies };
        let expected = train_outliving(job, fate(1, Vec::new())).unwrap();
        let mut deaths = 0;
        for_each_seed(seeds, |seed| {
            let first = GAP * (10 + seed as u32 * 13 % 90) / 100;
            let found = train_outliving(job, fate(seed, vec![first, GAP, GAP, GAP])).unwrap();
            assert_eq!(found.bits, expected.bits, "seed {seed}");
            deaths += found.deaths;
        });
        println!("{deaths} deaths in runs of {:?} without any", expected.took);
        let is_one = std::env::var("CARAVAN_SEED").is_ok();
        assert!(is_one || deaths as u64 == 4 * seeds, "a run ended before its servers died");
    }
    std::fs::remove_file(&jobs[0].files[0]).unwrap();
}

#[test]
fn servers_that_die_again_and_again_change_no_bit() {
    servers_that_die_again_and_again(10);
}

/// `cargo test -p caravan-learn --test learn simulated:: -- --ignored`
#[test]
#[ignore = "minutes"]
fn servers_that_die_again_and_again_change_no_bit_in_a_thousand_runs() {
    servers_that_die_again_and_again(500);
}

/// Where no server is left to copy to, the next death ends the run, and its error says why.
#[test]
fn the_death_of_the_last_copy_ends_the_run() {
    let jobs = jobs_with_copies("last");
    for (losses, why) in [(1, "CARAVAN_SERVER_LOSSES_MAX"), (2, "it counts as lost")] {
        let dies = vec![GAP / 4, GAP];
        let ended = train_outliving(&jobs[0], Fate { seed: 1, servers: 2, losses, dies }).err();
        let ended = ended.unwrap();
        assert!(ended.contains(why), "{ended}");
    }
    std::fs::remove_file(&jobs[0].files[0]).unwrap();
}

/// Rows of which each worker has all columns in its share.
fn dense_file() -> PathBuf {
    let path = std::env::temp_dir().join(format!("caravan-dense-{}.train", std::process::id()));
    let mut state = 1_u64;
    let mut draw = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let row = |_: usize| {
        let columns: BTreeSet<u64> = (0..60).map(|_| draw(800)).collect();
        let is_one = columns.iter().map(|column| column % 7).sum::<u64>() % 41 < 20;
        let columns: String = columns.iter().map(|column| format!(" {column}:1")).collect();
        format!("{}{columns}\n", if is_one { 1 } else { -1 })
    };
    std::fs::write(&path, (0..2000).map(row).collect::<String>()).unwrap();
    path
}

/// Bytes that the workers have sent, and that the servers have received, in a run.
fn bytes(workers: usize, job: &Job) -> [u64; 2] {
    let network = Network::new(3, Faults::jittery());
    let job = job.clone();
    let scheduler = network.spawn("scheduler", move |_| {
        let config = ClusterConfig { servers: 2, workers, ..ClusterConfig::default() };
        let launch =
            Launch::Simulated(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        let mut sent = 0;
        dbpg::train(&mut cluster, &job, |pass| sent = pass.worker_bytes_sent).unwrap();
        let mut observer = Observer::attach(&cluster.config().node).unwrap();
        observer.pause(Duration::from_secs(5)).unwrap();
        let nodes = observer.nodes().unwrap();
        drop(observer);
        cluster.shutdown().unwrap();
        let servers = nodes.iter().filter(|node| node.role == Role::Server);
        [sent, servers.map(|node| node.vitals.unwrap().bytes_received).sum()]
    });
    scheduler.join().unwrap_or_else(|stopped| panic!("{stopped}"))
}

/// Replication after aggregation: copies cost one nth of the bytes of n workers, and what the
/// driver pushes.
#[test]
fn copies_get_one_sum_in_place_of_the_pushes_of_all_workers() {
    let published = Job { passes_max: 30, ..published(dense_file(), 6) };
    let newton = Job::new(published.files.clone(), 1.0);
    for (name, job) in [("published", published), ("newton", newton)] {
        for workers in [2, 4] {
            let [_, plain] = bytes(workers, &job);
            let [sent, received] = bytes(workers, &Job { replicas: 1, ..job.clone() });
            let (copies, by_driver) = (received - plain, plain - sent);
            println!(
                "{name}: {workers} workers send {sent} bytes, the driver {by_driver}, and servers {copies} to copies"
            );
            let most = sent * 102 / 100 / workers as u64 + by_driver;
            assert!(copies < most, "{name}, {workers} workers: {copies} bytes, not {most}");
        }
    }
    std::fs::remove_file(dense_file()).unwrap();
}

/// `cargo test -p caravan-learn --test learn simulated:: -- --ignored`
#[test]
#[ignore = "minutes"]
fn four_workers_have_one_result_in_a_thousand_runs() {
    one_result_to_the_bit(1000);
}
