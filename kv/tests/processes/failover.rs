//! Goal: no acknowledged push to a table with replicas is lost or applied twice when a server
//! process is killed or stopped, and no request fails or is stuck.
//! Method: this program starts itself again as a cluster of real processes, and signals a server
//! while workers push integers. What workers counted is compared with what the table holds.

use std::time::{Duration, Instant, SystemTime};

use crate::harness::{SOON, Test, config, ends_within, launch, lives, pid_of, pids, signal, tests};
use crate::vans::{any, vans};
use caravan_kv::{
    App, Apps, Cluster, Error, TableSpec, Target, ValueType, Van, Worker, WorkerNode,
};
use caravan_van::KeyRange;
use serde_json::{Value, json};

const KEYS: u64 = 60;

fn table(replicas: u32) -> TableSpec {
    let keys = KeyRange::new(0, KEYS).unwrap();
    TableSpec::new(1, "sums", ValueType::I64, 1).keys(keys).replicas(replicas)
}

/// Milliseconds of the clock that all processes of this host share.
fn clock_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Pushes to all ranges for a while; returns what it pushed to each key, and when all ranges had
/// acknowledged.
struct Push;

impl App for Push {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let text = |error: Error| error.to_string();
        let worker = &mut node.worker;
        let replicas = body["replicas"].as_u64().unwrap() as u32;
        let sums = worker.admin().create_table(&table(replicas)).map_err(text)?;
        let until = clock_ms() + body["ms"].as_u64().unwrap();
        let mut pushed = vec![0_i64; KEYS as usize];
        let mut acknowledged = Vec::new();
        for round in 0.. {
            if clock_ms() >= until {
                break;
            }
            let first = round % 7;
            let keys = [first, 20 + first, 40 + first];
            let whole = worker.push(sums, &keys, &[1_i64, 2, 3]).map_err(text)?;
            let short = worker.push(sums, &keys[..1], &[5_i64]).map_err(text)?;
            for timestamp in [whole, short] {
                worker.wait(timestamp).map_err(text)?;
            }
            acknowledged.push(clock_ms());
            keys.iter().zip([6, 2, 3]).for_each(|(key, sum)| pushed[*key as usize] += sum);
        }
        Ok(json!({"pushed": pushed, "acknowledged": acknowledged}))
    }
}

fn pull(worker: &mut Worker, replicas: u32) -> Vec<i64> {
    let sums = worker.admin().create_table(&table(replicas)).unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(sums, &keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

/// A cluster of three servers that may lose one of them.
fn cluster(van: Van, threads: usize) -> Cluster {
    let mut config = config(3, 2);
    config.threads = threads;
    config.node.van = van;
    config.node.heartbeat = Duration::from_millis(400);
    config.node.server_losses_max = 1;
    launch(&config)
}

/// Checks that the table holds what the workers pushed, and returns it.
fn check(cluster: &Cluster, results: &[Value]) -> Vec<i64> {
    let mut sums = vec![0_i64; KEYS as usize];
    for result in results {
        let pushed: Vec<i64> = serde_json::from_value(result["pushed"].clone()).unwrap();
        sums.iter_mut().zip(pushed).for_each(|(sum, pushed)| *sum += pushed);
    }
    let mut client = cluster.client().unwrap();
    assert_eq!(pull(&mut client, 1), sums, "what the table holds, and what was pushed");
    sums
}

/// The longest time in which a worker had no push acknowledged.
fn longest_gap(results: &[Value]) -> u64 {
    let of = |result: &Value| {
        let times: Vec<u64> = serde_json::from_value(result["acknowledged"].clone()).unwrap();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    };
    results.iter().map(of).max().unwrap_or(0)
}

/// Signals a server in the middle of pushes, which go on without it.
fn goes_on(van: Van, threads: usize, what: &str) {
    let mut cluster = cluster(van, threads);
    let pids = pids(&cluster);
    let body = json!({"ms": 3000, "replicas": 1});
    let task = cluster.submit(Target::Workers, "count", &body).unwrap();
    std::thread::sleep(Duration::from_millis(1000));
    let server = pid_of(&cluster, "server 0");
    signal(what, server);
    if what == "STOP" {
        std::thread::sleep(Duration::from_millis(1600));
        signal("CONT", server);
    }
    let results = cluster.wait(task).unwrap();
    println!("  {van}, {threads} threads, {what}: longest gap {} ms", longest_gap(&results));
    let sums = check(&cluster, &results);
    assert!(sums.iter().sum::<i64>() > 0);
    ends_within(SOON, &[server]);
    cluster.shutdown().unwrap();
    assert!(!pids.iter().any(|pid| lives(*pid)), "nothing is left");
}

fn a_killed_server_costs_no_push() {
    vans().into_iter().for_each(|van| goes_on(van, 1, "KILL"));
}

/// One that was stopped counts as lost, and acknowledges nothing when it wakes.
fn a_stopped_server_costs_no_push() {
    vans().into_iter().for_each(|van| goes_on(van, 1, "STOP"));
}

/// Copies are in another process.
fn a_killed_server_with_several_threads_costs_no_push() {
    goes_on(any(), 2, "KILL");
}

/// The job of a table without replicas ends, and names it.
fn a_table_without_replicas_is_named() {
    let mut cluster = cluster(any(), 1);
    let task = cluster.submit(Target::Workers, "count", &json!({"ms": 20_000, "replicas": 0}));
    std::thread::sleep(Duration::from_millis(500));
    signal("KILL", pid_of(&cluster, "server 1"));
    let began = Instant::now();
    let error = cluster.wait(task.unwrap()).unwrap_err().to_string();
    println!("  after {:.3} s: {error}", began.elapsed().as_secs_f64());
    assert!(error.contains("server 1"), "{error}");
    assert!(error.contains("table sums") && error.contains("replicas"), "{error}");
    cluster.shutdown().unwrap();
}

/// The loss of a second server ends the job where one may be lost.
fn one_loss_too_many_ends_the_job() {
    let mut cluster = cluster(any(), 1);
    let body = json!({"ms": 20_000, "replicas": 1});
    let task = cluster.submit(Target::Workers, "count", &body).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    signal("KILL", pid_of(&cluster, "server 1"));
    std::thread::sleep(Duration::from_millis(500));
    signal("KILL", pid_of(&cluster, "server 2"));
    let error = cluster.wait(task).unwrap_err().to_string();
    assert!(error.contains("CARAVAN_SERVER_LOSSES_MAX=1"), "{error}");
}

pub(crate) fn with_apps(apps: Apps) -> Apps {
    apps.with("count", || Box::new(Push))
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = tests![
    a_killed_server_costs_no_push,
    a_stopped_server_costs_no_push,
    a_killed_server_with_several_threads_costs_no_push,
    a_table_without_replicas_is_named,
    one_loss_too_many_ends_the_job,
];
