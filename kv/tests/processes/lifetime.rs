//! Goal: clusters of real processes start, fail and end as documented: errors name the node and
//! come soon, nothing is left behind.
//! Method: this program starts itself again in the roles of servers and workers, which are then
//! killed, kept out or left alone.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{
    SOON, Test, config, ends_within, launch, lives, pid_of, pids, signal, tests, this_program,
};
use crate::vans::vans;
use caravan_kv::node::{SchedulerClient, run_worker};
use caravan_kv::{
    App, Apps, Cluster, Error, Handles, JobRole, Launch, SecretSource, TableSpec, Target,
    ValueType, Van, WorkerNode,
};
use caravan_van::Secret;
use serde_json::{Value, json};

/// What workers can be told to do.
enum Job {
    /// Pushes and pulls until that fails.
    Forever,
    /// Waits at a barrier, unless `only` another worker does.
    Barrier,
    /// Fails.
    Fail,
    /// Makes a thread of a server panic.
    Panic,
}

impl App for Job {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let text = |error: Error| error.to_string();
        match self {
            Job::Fail => Err("as it was told".to_owned()),
            Job::Panic => {
                let spec = TableSpec::new(2, "p", ValueType::F64, 1).handle("panics");
                let table = node.worker.admin().create_table(&spec).map_err(text)?;
                let pushed = node.worker.push(table, &[1], &[1f64]).map_err(text)?;
                node.worker.wait(pushed).map(|_| Value::Null).map_err(text)
            }
            Job::Barrier if body["only"].as_u64().is_some_and(|only| only != node.rank as u64) => {
                Ok(Value::Null)
            }
            Job::Barrier => {
                node.config.join_timeout =
                    Duration::from_millis(body["timeout_ms"].as_u64().unwrap());
                node.barrier("here").map(|()| json!(node.rank)).map_err(text)
            }
            Job::Forever => {
                let worker = &mut node.worker;
                let spec = TableSpec::new(1, "t", ValueType::F32, 1000);
                let table = worker.admin().create_table(&spec).map_err(text)?;
                let keys: Vec<u64> = (0..16).map(|i| i * (u64::MAX / 15)).collect();
                loop {
                    let pulled =
                        worker.push_pull(table, &keys, &vec![1f32; 16_000]).map_err(text)?;
                    worker.wait(pulled).map_err(text)?;
                }
            }
        }
    }
}

pub(crate) fn with_apps(apps: Apps) -> Apps {
    apps.with("forever", || Box::new(Job::Forever))
        .with("barrier", || Box::new(Job::Barrier))
        .with("fail", || Box::new(Job::Fail))
        .with("panic", || Box::new(Job::Panic))
}

/// Handles with one that panics at the first push.
pub(crate) fn handles() -> Handles {
    let panics = |_: &_| |_key: u64, _: &mut [f64], _: &[f64]| panic!("as the test wants it");
    Handles::default().with_rule::<f64, _>("panics", panics)
}

/// Kills the node called `name` in the middle of a run, which must end with an error that names it,
/// and leave no process behind.
fn a_killed_node_ends_the_run(name: &str, van: Van) {
    let mut config = config(2, 2);
    config.node.van = van;
    let mut cluster = launch(&config);
    assert_eq!(cluster.config().node.van, van);
    let pids = pids(&cluster);
    assert_eq!(pids.len(), 4);
    let task = cluster.submit(Target::Workers, "forever", &Value::Null).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    signal("KILL", pid_of(&cluster, name));
    let began = Instant::now();
    let error = cluster.wait(task).unwrap_err().to_string();
    println!("  {van}, after {:.3} s: {error}", began.elapsed().as_secs_f64());
    assert!(error.contains(name), "{error}");
    assert!(error.contains("it was ended by signal 9 (SIGKILL)"), "{error}");
    drop(cluster);
    ends_within(SOON, &pids);
    assert!(began.elapsed() < SOON);
}

fn a_killed_server_ends_the_run() {
    for (at, van) in vans().into_iter().enumerate() {
        a_killed_node_ends_the_run(["server 1", "server 0"][at % 2], van);
    }
}

fn a_killed_worker_ends_the_run() {
    vans().into_iter().for_each(|van| a_killed_node_ends_the_run("worker 1", van));
}

/// The first line that a process prints.
fn first_line(process: &mut std::process::Child) -> Value {
    let mut stdout = process.stdout.take().unwrap();
    let mut said = String::new();
    while !said.ends_with('\n') {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        said.push(char::from(byte[0]));
    }
    serde_json::from_str(&said).unwrap()
}

/// A job of another process, which is killed: its tables go, and the cluster stays.
fn another_process_runs_a_job() {
    let mut cluster = launch(&config(2, 2));
    let mut other = Command::new(this_program());
    other.arg("lifetime::drive").stdout(Stdio::piped());
    let mut other = caravan_kv::cluster::spawn_node(&mut other, cluster.config()).unwrap();
    assert_eq!(first_line(&mut other), json!([0, 1]));
    other.kill().unwrap();
    other.wait().unwrap();
    let began = Instant::now();
    let next = loop {
        match Cluster::attach(&cluster.config().node, "outside") {
            Err(Error::Config(why)) if why.contains("has a driver") => {
                assert!(began.elapsed() < SOON, "{why}");
                std::thread::sleep(Duration::from_millis(10));
            }
            attached => break attached.unwrap(),
        }
    };
    let mut client = next.client().unwrap();
    let table = client.admin().create_table(&TableSpec::new(1, "t", ValueType::F32, 1)).unwrap();
    let pulled = client.pull(table, &[5]).unwrap();
    assert_eq!(client.wait(pulled).unwrap().values::<f32>(), [0.0]);
    drop(client);
    next.shutdown().unwrap();
    let task =
        cluster.submit(Target::Workers, "barrier", &json!({ "timeout_ms": 20_000 })).unwrap();
    assert_eq!(cluster.wait(task).unwrap(), [json!(0), json!(1)]);
    cluster.shutdown().unwrap();
}

/// Nobody is left to stop them, so nodes end by themselves.
fn nodes_end_with_their_scheduler() {
    let mut driver = Command::new(this_program());
    let mut driver =
        driver.arg("lifetime::drive").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let pids: Vec<u32> = serde_json::from_value(first_line(&mut driver)).unwrap();
    assert!(pids.len() == 2 && pids.iter().all(|pid| lives(*pid)));
    driver.kill().unwrap();
    driver.wait().unwrap();
    ends_within(SOON, &pids);
}

/// The role of a driver that is killed: prints its nodes, and then does nothing.
/// A driver whose cluster is gone when this process is killed, or one that joins the cluster of
/// another process and tells what the workers answered.
pub(crate) fn drive() {
    if std::env::var_os("CARAVAN_SCHEDULER").is_some() {
        let node = caravan_kv::ClusterConfig::from_env().unwrap().node;
        let mut cluster = Cluster::attach(&node, "outside").unwrap();
        let mut client = cluster.client().unwrap();
        let table =
            client.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 2)).unwrap();
        let pushed = client.push(table, &[5], &[1i64, 2]).unwrap();
        client.wait(pushed).unwrap();
        let body = json!({ "timeout_ms": 20_000 });
        let task = cluster.submit(Target::Workers, "barrier", &body).unwrap();
        println!("{}", json!(cluster.wait(task).unwrap()));
        return std::thread::sleep(Duration::from_secs(60));
    }
    let cluster = launch(&config(1, 1));
    let pids = pids(&cluster);
    println!("{}", json!(pids));
    std::thread::sleep(Duration::from_secs(60));
}

fn missing_nodes_are_named() {
    let mut config = config(2, 2);
    config.node.join_timeout = Duration::from_secs(1);
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    config.node.scheduler = scheduler.address().to_owned();
    config.node.join_timeout = Duration::from_secs(30);
    let mut server = Command::new(this_program());
    let server =
        server.args(["server", "--rank", "1"]).envs(config.to_vars()).stderr(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let error = scheduler.gather(|| Ok(())).unwrap_err();
    let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, "server 0, worker 0, worker 1");
    // The node that came is not left waiting when the scheduler gives up.
    let address = scheduler.address().to_owned();
    drop(scheduler);
    let began = Instant::now();
    assert!(!server.wait().unwrap().success());
    assert!(began.elapsed() < SOON);
    let mut said = String::new();
    server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains(&address), "{said}");
}

/// Whether a node has its seat: only then it sends heartbeats.
fn has_seat(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let mut names = threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")));
    names.any(|name| name.is_ok_and(|name| name.trim() == "heartbeats"))
}

/// Nodes that come while the driver computes get their seats before it asks for them, and keep
/// them, although it is deaf for many times as long as a node may be silent.
fn a_driver_that_computes_keeps_nobody_waiting() {
    let mut config = config(1, 1);
    config.node.heartbeat = Duration::from_millis(100);
    config.node.van = Van::Tcp;
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    config.node.scheduler = scheduler.address().to_owned();
    let start = |role: &str| {
        let mut node = Command::new(this_program());
        node.args([role, "--rank", "0"]).envs(config.to_vars()).spawn().unwrap()
    };
    let mut nodes = ["server", "worker"].map(start);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) || !nodes.iter().all(|node| has_seat(node.id()))
    {
        assert!(began.elapsed() < 12 * SOON, "the nodes wait for the driver");
        std::hint::spin_loop();
    }
    scheduler.check_members().unwrap();
    assert_eq!(scheduler.gather(|| Ok(())).unwrap(), Van::Tcp);
    let task = scheduler.submit(Target::Workers, "fail", &Value::Null).unwrap();
    assert!(matches!(scheduler.wait(task), Err(Error::TaskFailed { .. })));
    scheduler.end(None).unwrap();
    drop(scheduler);
    assert!(nodes.iter_mut().all(|node| node.wait().unwrap().success()));
}

fn children_that_end_early_are_named() {
    let error =
        Cluster::launch(&config(1, 1), Launch::Processes("/bin/false".into())).err().unwrap();
    assert!(
        error.to_string().contains("r 0 was lost: it ended with status 1 before it joined"),
        "{error}"
    );
    let error = Cluster::launch(&config(1, 1), Launch::Processes("/nowhere".into())).err().unwrap();
    assert!(matches!(&error, Error::Spawn { what, .. } if what == "server 0"), "{error}");
}

fn an_unreachable_scheduler_is_named() {
    let mut config = config(1, 1).node;
    config.scheduler = "127.0.0.1:1".to_owned();
    config.join_timeout = Duration::from_secs(1);
    let began = Instant::now();
    let error = run_worker(&config, None, &Apps::default(), false).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1, tried") && error.contains("refused"), "{error}");
    assert!(began.elapsed() < SOON);
}

/// As when its launcher is killed before it has joined.
fn a_launched_node_does_not_outlive_its_scheduler() {
    let mut config = config(1, 1).node;
    config.scheduler = "127.0.0.1:1".to_owned();
    config.launched = true;
    let began = Instant::now();
    let error = run_worker(&config, None, &Apps::default(), false).unwrap_err();
    let Error::NodeLost { node, reason } = &error else { panic!("{error}") };
    assert!(node.contains("127.0.0.1:1") && reason.contains("refused"), "{error}");
    assert!(began.elapsed() < SOON && SOON < config.join_timeout);
}

/// Its scheduler can be reached and never answers: only its launcher could tell that this node is
/// no longer needed.
fn a_launched_node_does_not_outlive_its_launcher() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(1, 1);
    config.node.scheduler = mute.local_addr().unwrap().to_string();
    config.node.secret = SecretSource::Given(Secret::random());
    for (role, launched) in
        [("server", true), ("worker", true), ("server", false), ("worker", false)]
    {
        config.node.launched = launched;
        // An agent starts nodes that wait for the scheduler, and names their role.
        config.node.role = JobRole::named(role).filter(|_| !launched);
        let mut node = Command::new(this_program());
        let node = node.args([role, "--rank", "0"]).envs(config.to_vars()).stdin(Stdio::piped());
        let mut node = node.spawn().unwrap();
        writeln!(node.stdin.as_mut().unwrap(), "{}", Secret::random().to_hex()).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(lives(node.id()), "it waits");
        let began = Instant::now();
        drop(node.stdin.take());
        assert_eq!(node.wait().unwrap().code(), Some(3));
        assert!(began.elapsed() < config.node.join_timeout);
    }
}

/// A server that cannot serve does not keep sending heartbeats.
fn a_server_whose_thread_panicked_ends() {
    let mut config = config(1, 1);
    config.threads = 2;
    let mut cluster = launch(&config);
    let server = pid_of(&cluster, "server 0");
    let task = cluster.submit(Target::Workers, "panic", &Value::Null).unwrap();
    let error = cluster.wait(task).unwrap_err().to_string();
    assert!(error.contains("server 0"), "{error}");
    ends_within(SOON, &[server]);
}

/// The sockets that a process listens on.
fn listens(pid: u32) -> usize {
    let table = |name: &str, at: usize| -> Vec<String> {
        let table = std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
        let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        let is_open = |row: &Vec<&str>| match name {
            "unix" => row.get(3) == Some(&"00010000"),
            _ => row.get(3) == Some(&"0A"),
        };
        rows.filter(is_open).map(|row| format!("socket:[{}]", row[at])).collect()
    };
    let listening = [table("tcp", 9), table("tcp6", 9), table("unix", 6)].concat();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open = open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    open.filter(|at| listening.iter().any(|socket| at.as_os_str() == socket.as_str())).count()
}

/// A process that listens nowhere cannot be made to run an order, or to end.
fn only_server_threads_and_the_scheduler_listen() {
    for van in vans().into_iter().filter(|van| *van != Van::Rdma) {
        let mut config = config(1, 2);
        (config.node.van, config.threads) = (van, 2);
        let cluster = launch(&config);
        let listening =
            ["server 0", "worker 0", "worker 1"].map(|node| listens(pid_of(&cluster, node)));
        assert_eq!(listening, [2, 0, 0], "{van}");
        let own = listens(std::process::id());
        let client = cluster.client().unwrap();
        assert_eq!((own, listens(std::process::id())), (1, 1), "{van}");
        drop(client);
        cluster.shutdown().unwrap();
    }
}

/// Serves a scheduler until `node` returns, and returns its result.
fn beside<T: Send>(scheduler: &mut SchedulerClient, node: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let node = scope.spawn(node);
        while !node.is_finished() {
            scheduler.poll().unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        node.join().unwrap()
    })
}

fn strangers_and_surplus_nodes_are_refused_and_told_why() {
    let mut config = config(1, 1);
    config.node.job = 0xbeef;
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    config.node.scheduler = scheduler.address().to_owned();
    config.node.join_timeout = Duration::from_secs(1);
    let mut stranger = config.node.clone();
    stranger.job = 0xdead;
    for launched in [false, true] {
        // It may come too early if nobody has launched it: its own scheduler may still come.
        stranger.launched = launched;
        let error = beside(&mut scheduler, || run_worker(&stranger, None, &Apps::default(), false));
        let error = error.unwrap_err();
        assert_eq!(matches!(&error, Error::NodeLost { .. }), launched, "{error}");
        assert!(error.to_string().contains("it refused this node"), "{error}");
    }
    for (rank, words) in [(Some(1), "no place for worker 1"), (Some(7), "no place for worker 7")] {
        let error =
            beside(&mut scheduler, || run_worker(&config.node, rank, &Apps::default(), false));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("has 1"), "{error}");
    }
    // A node that leaves before all have joined makes room for another.
    for _ in 0..2 {
        let error =
            beside(&mut scheduler, || run_worker(&config.node, Some(0), &Apps::default(), false));
        assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
        std::thread::sleep(Duration::from_millis(100));
        scheduler.poll().unwrap();
    }
}

fn barriers_name_who_is_missing_and_are_not_confused_by_it() {
    let mut cluster = launch(&config(1, 3));
    let body = json!({"timeout_ms": 500, "only": 1});
    for _ in 0..2 {
        let task = cluster.submit(Target::Workers, "barrier", &body).unwrap();
        let error = cluster.wait(task).unwrap_err();
        let Error::TaskFailed { node, reason, .. } = &error else { panic!("{error}") };
        assert_eq!(node, "worker 1");
        assert!(
            reason.contains("barrier here") && reason.contains("worker 0, worker 2"),
            "{reason}"
        );
    }
    let body = json!({"timeout_ms": 20_000});
    for _ in 0..3 {
        let task = cluster.submit(Target::Workers, "barrier", &body).unwrap();
        assert_eq!(cluster.wait(task).unwrap(), [json!(0), json!(1), json!(2)]);
    }
    // Tasks may overlap: one that arrives while another is returned is not lost.
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            cluster.submit(Target::Workers, "barrier", &body).unwrap()
        })
        .collect();
    for task in tasks {
        assert_eq!(cluster.wait(task).unwrap().len(), 3);
    }
    let task = cluster.submit(Target::Worker(2), "fail", &Value::Null).unwrap();
    let error = cluster.wait(task).unwrap_err().to_string();
    assert!(error.contains("worker 2") && error.contains("as it was told"), "{error}");
    let task = cluster.submit(Target::Worker(0), "juggle", &Value::Null).unwrap();
    let error = cluster.wait(task).unwrap_err().to_string();
    assert!(error.contains("worker 0") && error.contains("no app of that name"), "{error}");
    assert!(matches!(
        cluster.submit(Target::Worker(3), "fail", &Value::Null),
        Err(Error::Config(_))
    ));
    let pids = pids(&cluster);
    cluster.shutdown().unwrap();
    assert!(!pids.iter().any(|pid| lives(*pid)), "nothing is left");
}

/// CPU time of a process in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Longer than nodes may be silent: they do not count as lost because the scheduler did not listen
/// meanwhile.
fn an_idle_cluster_costs_nothing_and_stays_together() {
    let mut cluster = launch(&config(1, 1));
    let processes = cluster.processes();
    std::thread::sleep(Duration::from_millis(500));
    let before: Vec<_> = processes.iter().map(|(_, pid)| ticks(*pid)).collect();
    let idle = Duration::from_millis(5500);
    std::thread::sleep(idle);
    for ((name, pid), before) in processes.iter().zip(before) {
        let share = (ticks(*pid) - before) as f64 / 100.0 / idle.as_secs_f64();
        println!("  an idle {name} takes {:.2} % of a core", 100.0 * share);
        assert!(share < 0.03, "{name}: {share}");
    }
    let task = cluster.submit(Target::Workers, "fail", &Value::Null).unwrap();
    let error = cluster.wait(task).unwrap_err();
    assert!(matches!(error, Error::TaskFailed { .. }), "{error}");
    cluster.shutdown().unwrap();
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = tests![
    a_killed_server_ends_the_run,
    a_killed_worker_ends_the_run,
    nodes_end_with_their_scheduler,
    another_process_runs_a_job,
    missing_nodes_are_named,
    a_driver_that_computes_keeps_nobody_waiting,
    children_that_end_early_are_named,
    an_unreachable_scheduler_is_named,
    a_launched_node_does_not_outlive_its_scheduler,
    a_launched_node_does_not_outlive_its_launcher,
    a_server_whose_thread_panicked_ends,
    only_server_threads_and_the_scheduler_listen,
    strangers_and_surplus_nodes_are_refused_and_told_why,
    barriers_name_who_is_missing_and_are_not_confused_by_it,
    an_idle_cluster_costs_nothing_and_stays_together,
];
