//! Goal: any wait of the driver and of a worker names a node that is frozen, whatever the job is
//! doing; a driver that was frozen continues, and a busy host freezes nobody.
//! Method: real processes that SIGSTOP stops while nodes join, tables are created, values are
//! pushed, workers meet, a task runs, or the driver computes.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{
    Test, config, ends_within, launch, lives, pid_of, pids, signal, tests, this_program,
};
use crate::vans::{any, vans};
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Launch, TableSpec, Target, ValueType, Van, WorkerNode,
};
use serde_json::{Value, json};

/// How long any of this may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job that soon notices frozen nodes.
fn quick(servers: usize, workers: usize) -> ClusterConfig {
    let mut config = config(servers, workers);
    config.node.heartbeat = Duration::from_millis(100);
    config.node.join_timeout = PATIENCE;
    config
}

/// What workers do.
enum Job {
    /// Pushes and pulls until that fails, or for some seconds.
    Push,
    /// Waits at a barrier that one of them never reaches.
    Meet,
    /// Computes, without messages.
    Compute,
}

impl App for Job {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        match self {
            Job::Push => told(push_on(node, &body), node, &body),
            Job::Meet if body["stays"] == node.rank => {
                std::thread::sleep(PATIENCE);
                Err("it was to be stopped".to_owned())
            }
            Job::Meet => told(node.barrier("here"), node, &body),
            Job::Compute => {
                let seconds = body["seconds"].as_f64().unwrap();
                std::thread::sleep(Duration::from_secs_f64(seconds));
                Ok(json!(node.rank))
            }
        }
    }
}

fn push_on(node: &mut WorkerNode, body: &Value) -> Result<(), Error> {
    let table = node.worker.admin().create_table(&spec())?;
    let until = body["seconds"].as_f64().map(Duration::from_secs_f64);
    let began = Instant::now();
    while until.is_none_or(|until| began.elapsed() < until) {
        let pushed = node.worker.push_pull(table, &keys(), &values())?;
        node.worker.wait(pushed)?;
    }
    Ok(())
}

/// The report of a worker, which writes an error into a file as well if there is one for it.
fn told(done: Result<(), Error>, node: &WorkerNode, body: &Value) -> Result<Value, String> {
    let error = match done {
        Ok(()) => return Ok(Value::Null),
        Err(error) => error.to_string(),
    };
    if let Some(file) = body["files"].as_str() {
        let part = format!("{file}.part-{}", node.rank);
        std::fs::write(&part, &error).unwrap();
        std::fs::rename(part, format!("{file}.{}", node.rank)).unwrap();
    }
    Err(error)
}

pub(crate) fn with_apps(apps: Apps) -> Apps {
    apps.with("push", || Box::new(Job::Push))
        .with("meet", || Box::new(Job::Meet))
        .with("compute", || Box::new(Job::Compute))
}

fn spec() -> TableSpec {
    TableSpec::new(1, "t", ValueType::F32, 100)
}

/// Keys for every server.
fn keys() -> Vec<u64> {
    (0..16).map(|i| i * (u64::MAX / 15)).collect()
}

fn values() -> Vec<f32> {
    vec![1.0; 1600]
}

/// Stops `name` and expects the wait for it to end with an error that names it, and leave no
/// process behind.
fn is_named<T>(
    mut cluster: Cluster,
    name: &str,
    wait: impl FnOnce(&mut Cluster) -> Result<T, Error>,
) {
    let pids = pids(&cluster);
    let began = Instant::now();
    signal("STOP", pid_of(&cluster, name));
    let error = wait(&mut cluster).err().expect("it stands still").to_string();
    println!("  after {:.3} s: {error}", began.elapsed().as_secs_f64());
    assert!(error.contains(name) && error.contains("no heartbeat"), "{error}");
    drop(cluster);
    ends_within(PATIENCE, &pids);
    assert!(began.elapsed() < PATIENCE);
}

/// A node freezes before it has joined.
fn while_nodes_join() {
    let mut config = quick(1, 2);
    config.node.join_timeout = Duration::from_secs(3);
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("still.sh");
    let this = this_program();
    let script = format!(
        "#!/bin/sh\n[ \"$1 $3\" = \"worker 1\" ] && kill -STOP $$\nexec '{}' \"$@\"\n",
        this.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let error = Cluster::launch(&config, Launch::Processes(program.clone())).err().unwrap();
    let error = error.to_string();
    // Others may have given up by then as well.
    assert!(error.contains("missing: ") && error.ends_with("worker 1"), "{error}");
    std::fs::remove_file(program).unwrap();
}

/// The driver has no lane to the server that stands still until it needs one.
fn while_lanes_open() {
    for van in vans() {
        let mut config = quick(2, 1);
        config.node.van = van;
        is_named(launch(&config), "server 1", |cluster| {
            let mut client = cluster.client()?;
            assert_eq!(client.info().connections(), 0);
            client.admin().create_table(&spec()).map(drop)
        });
    }
}

fn while_tables_are_made() {
    let cluster = launch(&quick(2, 1));
    let mut client = cluster.client().unwrap();
    is_named(cluster, "server 0", |_| client.admin().create_table(&spec()).map(drop));
}

fn while_the_driver_pushes() {
    for van in vans() {
        let mut config = quick(2, 1);
        (config.node.van, config.node.credits) = (van, 48);
        let cluster = launch(&config);
        let mut client = cluster.client().unwrap();
        let table = client.admin().create_table(&spec()).unwrap();
        // It waits for room, and for answers.
        is_named(cluster, "server 1", |_| {
            let pushes = (0..1000).map(|_| client.push(table, &keys(), &values()));
            let pushes = pushes.collect::<Result<Vec<_>, _>>()?;
            pushes.into_iter().try_for_each(|pushed| client.wait(pushed).map(drop))
        });
    }
}

fn while_workers_push() {
    for (at, van) in vans().into_iter().enumerate() {
        let mut config = quick(2, 2);
        config.node.van = van;
        let mut cluster = launch(&config);
        let task = cluster.submit(Target::Workers, "push", &Value::Null).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let name = ["server 1", "worker 0"][at % 2];
        is_named(cluster, name, |cluster| cluster.wait(task));
    }
}

fn while_workers_meet() {
    let mut cluster = launch(&quick(1, 3));
    signal("STOP", pid_of(&cluster, "worker 1"));
    let task = cluster.submit(Target::Workers, "meet", &json!({ "stays": 1 })).unwrap();
    is_named(cluster, "worker 1", |cluster| cluster.wait(task));
}

fn while_a_task_runs() {
    for name in ["server 0", "worker 1"] {
        let mut cluster = launch(&quick(1, 2));
        let body = json!({ "seconds": 2.0 * PATIENCE.as_secs_f64() });
        let task = cluster.submit(Target::Workers, "compute", &body).unwrap();
        is_named(cluster, name, |cluster| cluster.wait(task));
    }
}

/// A worker that waits names a frozen node by itself, while the driver computes and asks nobody;
/// the driver names it afterwards.
fn while_the_driver_computes() {
    let files = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("told");
    let file = PathBuf::from(format!("{}.0", files.display()));
    let files = files.display().to_string();
    let waits = |van, app: &str, name: &str, body: Value| {
        let _ = std::fs::remove_file(&file);
        let mut config = quick(2, 2);
        config.node.van = van;
        let mut cluster = launch(&config);
        // Both are connected to the servers when they have met.
        let met = cluster.submit(Target::Workers, "meet", &Value::Null).unwrap();
        cluster.wait(met).unwrap();
        let task = cluster.submit(Target::Workers, app, &body).unwrap();
        signal("STOP", pid_of(&cluster, name));
        let began = Instant::now();
        while !file.exists() {
            assert!(began.elapsed() < PATIENCE, "worker 0 waits for {name} for ever");
            std::hint::spin_loop();
        }
        let error = std::fs::read_to_string(&file).unwrap();
        println!("  worker 0, after {:.3} s: {error}", began.elapsed().as_secs_f64());
        assert!(error.contains(name) && error.contains("no heartbeat"), "{error}");
        let error = cluster.wait(task).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("no heartbeat"), "{error}");
    };
    for van in vans() {
        waits(van, "push", "server 1", json!({ "files": files }));
    }
    waits(any(), "meet", "worker 1", json!({ "stays": 1, "files": files }));
}

/// Twice as many busy threads as the host has cores, and more, cost nobody its place.
fn a_busy_host_raises_no_alarm() {
    let mut config = quick(2, 2);
    config.node.heartbeat = Duration::from_secs(1);
    let stop = AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let busy = || {
            let mut cluster = Cluster::launch(&config, Launch::Processes(this_program()))?;
            let task = cluster.submit(Target::Workers, "push", &json!({ "seconds": 6.0 }))?;
            let done = cluster.wait(task)?;
            cluster.shutdown().map(|()| done)
        };
        let done = busy();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(done.unwrap(), [Value::Null, Value::Null]);
    });
}

/// A node that was frozen for less than five heartbeats continues unharmed.
fn a_short_stop_costs_nothing() {
    let mut config = quick(1, 1);
    config.node.heartbeat = Duration::from_secs(2);
    let mut cluster = launch(&config);
    let task = cluster.submit(Target::Workers, "compute", &json!({ "seconds": 1.0 })).unwrap();
    for name in ["server 0", "worker 0"] {
        let pid = pid_of(&cluster, name);
        signal("STOP", pid);
        std::thread::sleep(Duration::from_millis(300));
        signal("CONT", pid);
    }
    assert_eq!(cluster.wait(task).unwrap(), [json!(0)]);
    cluster.shutdown().unwrap();
}

/// The role of a driver that is stopped: prints its nodes, then runs a task that takes a second.
pub(crate) fn drive() {
    let mut config = quick(1, 2);
    config.node.van =
        std::env::var("CARAVAN_TEST_VAN").map_or(Van::Auto, |van| van.parse().unwrap());
    let mut cluster = launch(&config);
    let mut client = cluster.client().unwrap();
    let table = client.admin().create_table(&spec()).unwrap();
    println!("{}", json!(pids(&cluster)));
    let task = cluster.submit(Target::Workers, "compute", &json!({ "seconds": 1.0 })).unwrap();
    println!("{}", json!(cluster.wait(task).unwrap()));
    let pushed = client.push_pull(table, &keys(), &values()).unwrap();
    assert_eq!(client.wait(pushed).unwrap().values::<f32>(), values());
    cluster.shutdown().unwrap();
    println!("\"done\"");
}

/// A driver in a process of its own, its output, and its nodes.
fn driver() -> (Child, impl Iterator<Item = Value>, Vec<u32>) {
    let mut driver =
        Command::new(this_program()).arg("frozen::drive").stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let mut said = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let nodes = serde_json::from_value(said.next().unwrap()).unwrap();
    (driver, said, nodes)
}

/// Nodes wait for a driver that was stopped, as by Ctrl-Z; it counts nobody as lost because it did
/// not listen.
fn a_driver_that_stood_still_goes_on() {
    let (mut driver, said, nodes) = driver();
    signal("STOP", driver.id());
    std::thread::sleep(Duration::from_secs(3)); // thirty heartbeats
    assert!(nodes.iter().all(|pid| lives(*pid)));
    signal("CONT", driver.id());
    assert_eq!(said.collect::<Vec<_>>(), [json!([0, 1]), json!("done")]);
    assert!(driver.wait().unwrap().success());
    ends_within(PATIENCE, &nodes);
}

/// A driver that is killed while it is frozen leaves no node behind.
fn a_driver_that_dies_standing_takes_its_nodes_along() {
    let (mut driver, _, nodes) = driver();
    signal("STOP", driver.id());
    driver.kill().unwrap();
    driver.wait().unwrap();
    ends_within(PATIENCE, &nodes);
}

/// The end of a job does not wait for frozen nodes.
fn the_end_of_a_job() {
    let cluster = launch(&quick(2, 2));
    let nodes = pids(&cluster);
    nodes.iter().for_each(|pid| signal("STOP", *pid));
    let error = cluster.shutdown().unwrap_err().to_string();
    assert!(error.contains("server 0") && error.contains("killed"), "{error}");
    ends_within(PATIENCE, &nodes);
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = tests![
    while_nodes_join,
    while_lanes_open,
    while_tables_are_made,
    while_the_driver_pushes,
    while_workers_push,
    while_workers_meet,
    while_a_task_runs,
    while_the_driver_computes,
    a_busy_host_raises_no_alarm,
    a_short_stop_costs_nothing,
    a_driver_that_stood_still_goes_on,
    a_driver_that_dies_standing_takes_its_nodes_along,
    the_end_of_a_job,
];
