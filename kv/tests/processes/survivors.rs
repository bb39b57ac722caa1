//! Goal: workers go on without one that was killed, if the cluster spares it, and without a
//! server if their table has replicas, and what they have read keeps the model of their table.
//! Method: real processes, one of which is killed in the middle of its iterations; the servers'
//! histories are checked.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::harness::{SOON, Test, config, ends_within, launch, pid_of, pids, signal, tests};
use caravan_kv::consistency::Model;
use caravan_kv::{
    App, Apps, Cluster, Error, Result, TableSpec, Target, ValueType, WorkerNode, history,
};
use serde_json::{Value, json};

/// Iterates over a table with a model: reads the keys of all workers, and adds to its own.
struct Iterate;

impl App for Iterate {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> std::result::Result<Value, String> {
        iterate(node, &body).map_err(|error| error.to_string())
    }
}

/// The table of a task with this input.
fn counters(body: &Value) -> Result<TableSpec> {
    let model: Model = serde_json::from_value(body["model"].clone())?;
    let live = body["live"].as_u64().unwrap_or(0) as u32;
    let id = body["table"].as_u64().unwrap_or(0) as u32;
    let replicas = body["replicas"].as_u64().unwrap_or(0) as u32;
    let spec = TableSpec::new(id, "counters", ValueType::I64, 1).consistency(model, live);
    Ok(spec.replicas(replicas))
}

/// A key for each worker, spread over all servers.
fn keys() -> Vec<u64> {
    (0..8).map(|rank| rank * (u64::MAX / 7)).collect()
}

/// Iterates 200 times, and from the 100th on only once the file `goes_on` is there.
fn iterate(node: &mut WorkerNode, body: &Value) -> Result<Value> {
    let worker = &mut node.worker;
    let table = worker.admin().create_table(&counters(body)?)?;
    let keys = keys();
    worker.clocks(table).join()?;
    let goes_on = body["goes_on"].as_str().map(PathBuf::from);
    for round in 0..200 {
        // However busy the machine is, nobody ends before the kill.
        while round == 100 && goes_on.as_ref().is_some_and(|file| !file.exists()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let pulled = worker.pull(table, &keys)?;
        worker.wait(pulled)?;
        std::thread::sleep(Duration::from_millis(5));
        worker.clocks(table).push_last(&keys[node.rank..=node.rank], &[1i64])?;
    }
    let left = worker.clocks(table).leave()?;
    worker.wait(left)?;
    node.barrier("done")?;
    Ok(json!(node.rank))
}

pub(crate) fn with_apps(apps: Apps) -> Apps {
    apps.with("iterate", || Box::new(Iterate))
}

/// One worker after another is killed, under one model after another.
fn workers_go_on_without_a_killed_one() {
    let models = [
        Model::Bsp,
        Model::Ssp { staleness: 1 },
        Model::Asp,
        Model::BoundedDelay { delay: 1 },
        Model::SparseSsp { staleness: 1, speculation: 1 },
        Model::DataCentric { delay: Some(0), chunk_keys: u64::MAX / 7 },
    ];
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("survivors");
    let _ = std::fs::remove_dir_all(&folder);
    let mut config = config(2, 8);
    config.node.losses_max = models.len();
    config.node.history = Some(folder.clone());
    let mut cluster = launch(&config);
    let pids = pids(&cluster);
    for (model, lost) in models.into_iter().zip(1..) {
        let goes_on = folder.join(format!("goes-on-{lost}"));
        let body = json!({ "model": model, "live": 9 - lost, "table": lost, "goes_on": goes_on });
        let task = cluster.submit(Target::Workers, "iterate", &body).unwrap();
        // Whoever dies before it has joined is waited for: let all come first.
        let mut client = cluster.client().unwrap();
        let table = client.admin().create_table(&counters(&body).unwrap()).unwrap();
        while client.clocks(table).freshness().unwrap() < 20 {
            std::thread::sleep(Duration::from_millis(5));
        }
        signal("KILL", pid_of(&cluster, &format!("worker {}", lost - 1)));
        let began = Instant::now();
        let killed = client.clocks(table).freshness().unwrap();
        std::fs::write(&goes_on, "").unwrap();
        while client.clocks(table).freshness().unwrap() < killed + 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (goes_on, beat) = (began.elapsed().as_millis(), config.node.heartbeat.as_millis());
        println!("  {model}: two iterations on {goes_on} ms later (a heartbeat is {beat} ms)");
        let ranks = cluster.wait(task).unwrap();
        assert_eq!(ranks, (lost..8).map(|rank| json!(rank)).collect::<Vec<_>>());
        let error = cluster.submit(Target::Worker(0), "iterate", &body).unwrap_err();
        assert!(
            matches!(&error, Error::NodeLost { node, .. } if node.contains("worker 0")),
            "{error}"
        );
    }
    cluster.shutdown().unwrap();
    ends_within(SOON, &pids);
    for (model, table) in models.into_iter().zip(1..) {
        let file = |thread| folder.join(format!("{table}-counters.{thread}.history"));
        let summary = history::check_files(&[file(0), file(1)])
            .unwrap_or_else(|trouble| panic!("{model}: {trouble}"));
        assert_eq!((summary.consistency.model, summary.consistency.workers), (model, 9 - table));
        assert!(summary.writes >= 200 * u64::from(8 - table), "{summary:?}");
    }
}

/// A server is killed, and then a worker: nobody waits for that one at the servers that are left.
fn a_table_with_replicas_outlives_a_server_and_a_worker() {
    let model = Model::Ssp { staleness: 1 };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("survivors-replicas");
    let _ = std::fs::remove_dir_all(&folder);
    let mut config = config(3, 4);
    (config.node.losses_max, config.node.server_losses_max) = (1, 1);
    config.node.history = Some(folder.clone());
    let mut cluster = launch(&config);
    let pids = pids(&cluster);
    let goes_on = folder.join("goes-on");
    let body = json!({ "model": model, "live": 4, "table": 1, "replicas": 1, "goes_on": goes_on });
    let task = cluster.submit(Target::Workers, "iterate", &body).unwrap();
    let mut client = cluster.client().unwrap();
    let table = client.admin().create_table(&counters(&body).unwrap()).unwrap();
    for (fresh, name) in [(20, "server 1"), (40, "worker 0")] {
        while client.clocks(table).freshness().unwrap() < fresh {
            std::thread::sleep(Duration::from_millis(5));
        }
        signal("KILL", pid_of(&cluster, name));
    }
    std::fs::write(&goes_on, "").unwrap();
    let ranks = cluster.wait(task).unwrap();
    assert_eq!(ranks, (1..4).map(|rank| json!(rank)).collect::<Vec<_>>());
    let pulled = client.pull(table, &keys()).unwrap();
    let counts = client.wait(pulled).unwrap().values::<i64>().to_vec();
    assert_eq!(counts[1..4], [200; 3], "{counts:?}");
    assert!((40..=200).contains(&counts[0]), "{counts:?}");
    drop(client);
    cluster.shutdown().unwrap();
    ends_within(SOON, &pids);
    // The killed server's own are cut off.
    let histories = [0, 2].map(|thread| std::fs::read_dir(folder.join(format!("thread-{thread}"))));
    let histories = histories.into_iter().flat_map(Result::unwrap).map(|file| file.unwrap().path());
    let summary = history::check_files(&histories.collect::<Vec<_>>()).unwrap();
    assert!(summary.reads > 0 && summary.writes >= 600, "{summary:?}");
}

/// One more than the cluster spares ends it.
fn too_many_losses_end_the_cluster() {
    let mut config = config(1, 3);
    config.node.losses_max = 1;
    let mut cluster: Cluster = launch(&config);
    let body = json!({ "model": Model::Bsp, "live": 3, "table": 1 });
    let task = cluster.submit(Target::Workers, "iterate", &body).unwrap();
    signal("KILL", pid_of(&cluster, "worker 1"));
    signal("KILL", pid_of(&cluster, "worker 2"));
    let error = cluster.wait(task).unwrap_err();
    assert!(matches!(&error, Error::NodeLost { node, .. } if node.contains("worker")), "{error}");
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = tests![
    workers_go_on_without_a_killed_one,
    a_table_with_replicas_outlives_a_server_and_a_worker,
    too_many_losses_end_the_cluster,
];
