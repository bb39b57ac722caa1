//! Goal: each pair of nodes takes the first van that works for both, in a cluster where not all
//! take the same, and what is trained does not depend on that, nor on a cable that is cut for a
//! while or a path on which all takes long.
//! Method: two hosts, which are network namespaces, with a server and a worker each; this program
//! starts itself in them. A driver there compares what two workers train with a run over sockets.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{SOON, Test, ends_within, tests, this_program};
use caravan_kv::node::SchedulerClient;
use caravan_kv::{App, Apps, ClusterConfig, TableSpec, Target, ValueType, WorkerNode};
use caravan_van::{KeyRange, Secret};
use serde_json::{Value, json};

/// Numbers of a row: its values do not fit into a frame.
const WIDTH: usize = 10_000;

/// Steps of the training.
const STEPS: u64 = 10;

/// Trains weights by the gradients of all workers, each of which writes its own into a table; the
/// sums are taken in order of ranks, so that every bit is determined.
struct Train;

impl App for Train {
    fn run(&mut self, node: &mut WorkerNode, pause_ms: Value) -> Result<Value, String> {
        let pause = Duration::from_millis(pause_ms.as_u64().unwrap());
        self.train(node, pause).map_err(|error| error.to_string())
    }
}

impl Train {
    /// Pauses before each step.
    fn train(&mut self, node: &mut WorkerNode, pause: Duration) -> caravan_kv::Result<Value> {
        let (rank, workers) = (node.rank as u64, node.workers as u64);
        let before = node.worker.info().vans();
        if rank == 0 {
            node.worker.admin().open_connections()?; // the other's open with its requests
        }
        let opened = node.worker.info().vans();
        let keys = KeyRange::new(0, 2 * workers).unwrap();
        let spec = TableSpec::new(1, "gradients", ValueType::F32, WIDTH as u32);
        let table = node.worker.admin().create_table(&spec.keys(keys).handle("assign"))?;
        let mut weights = vec![0.1f32; WIDTH];
        let mut longest = Duration::ZERO;
        for step in 0..STEPS {
            std::thread::sleep(pause);
            let began = Instant::now();
            let slope = |(at, weight): (usize, &f32)| {
                let target = ((at as u64 * 31 + rank * 7 + step) % 97) as f32 / 97.0;
                0.3 * (weight - target)
            };
            let gradient: Vec<f32> = weights.iter().enumerate().map(slope).collect();
            // One row at each server, so that every pair has a part in it.
            for half in 0..2 {
                let pushed = node.worker.push(table, &[half * workers + rank], &gradient)?;
                node.worker.wait(pushed)?;
            }
            node.barrier(&format!("pushed {step}"))?;
            for half in 0..2 {
                let keys: Vec<u64> = (0..workers).map(|rank| half * workers + rank).collect();
                let pulled = node.worker.pull(table, &keys)?;
                let answer = node.worker.wait(pulled)?;
                for gradient in answer.values::<f32>().chunks(WIDTH) {
                    weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= slope);
                }
            }
            node.barrier(&format!("pulled {step}"))?;
            longest = longest.max(began.elapsed());
        }
        let bits: Vec<u32> = weights.iter().map(|weight| weight.to_bits()).collect();
        let (vans, van) = (node.worker.info().vans(), node.worker.info().van());
        let lanes = json!({ "before": before, "opened": opened });
        let seconds = longest.as_secs_f64();
        Ok(json!({ "vans": vans, "van": van, "lanes": lanes, "bits": bits, "longest": seconds }))
    }
}

pub(crate) fn with_apps(apps: Apps) -> Apps {
    apps.with("train", || Box::new(Train))
}

/// Two hosts, joined by a cable.
struct Hosts([String; 2]);

impl Hosts {
    fn start() -> Option<Hosts> {
        let ip = |words: &str| {
            let run = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
            run.is_ok_and(|status| status.success())
        };
        let id = std::process::id();
        let hosts = Hosts([0, 1].map(|n| format!("caravan-pairs-{id}-{n}")));
        let Hosts([a, b]) = &hosts;
        if !ip(&format!("netns add {a}")) {
            eprintln!("skipped: network namespaces need root and iproute2");
            return None;
        }
        assert!(ip(&format!("netns add {b}")));
        assert!(ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}")));
        for (n, name) in [a, b].into_iter().enumerate() {
            assert!(ip(&format!("-n {name} addr add 192.0.2.{}/24 dev eth0", n + 1)));
            assert!(ip(&format!("-n {name} link set eth0 up")));
            assert!(ip(&format!("-n {name} link set lo up")));
        }
        Some(hosts)
    }

    /// This program in a role on a host.
    fn command(&self, host: usize, role: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host]]).arg(this_program()).arg(role);
        command.env("CARAVAN_HOST", format!("192.0.2.{}", host + 1));
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// What each of two workers has trained, with a server and a worker on each host; `alter` changes
/// the second worker's command.
fn train(hosts: &Hosts, van: &str, alter: fn(Command) -> Command) -> Vec<Value> {
    train_while(hosts, van, alter, Duration::ZERO, || ())
}

/// As [`train`], with a pause before each step, and what is done meanwhile.
fn train_while(
    hosts: &Hosts,
    van: &str,
    alter: fn(Command) -> Command,
    pause: Duration,
    meanwhile: impl FnOnce(),
) -> Vec<Value> {
    let mut config = ClusterConfig { servers: 2, workers: 2, ..ClusterConfig::default() };
    config.node.pin = false;
    config.node.job = std::process::id().into();
    config.node.scheduler = "192.0.2.1:7000".to_owned();
    // The hosts may be apart for some time.
    config.node.heartbeat = Duration::from_secs(20);
    let secret = Secret::random().to_hex();
    let of_cluster = |mut command: Command| -> Command {
        // Each has an address of its own.
        let vars = config.to_vars().filter(|(name, _)| *name != "CARAVAN_HOST");
        command.envs(vars).env("CARAVAN_SECRET", &secret).env("CARAVAN_VAN", van);
        command
    };
    let on = |host: usize, role: &str| {
        let mut command = of_cluster(hosts.command(host, role));
        command.args(["--rank", &host.to_string()]);
        command
    };
    let mut nodes: Vec<Child> = Vec::new();
    for host in [0, 1] {
        nodes.push(on(host, "server").spawn().unwrap());
        let worker = on(host, "worker");
        nodes.push(if host == 1 { alter(worker) } else { worker }.spawn().unwrap());
    }
    let mut driver = of_cluster(hosts.command(0, "pairs::drive"));
    driver.env("CARAVAN_TEST_PAUSE_MS", pause.as_millis().to_string());
    driver.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let driver = driver.spawn().unwrap();
    meanwhile();
    let output = driver.wait_with_output().unwrap();
    let pids: Vec<u32> = nodes.iter().map(Child::id).collect();
    let ended: Vec<_> = nodes.iter_mut().map(|node| node.wait().unwrap()).collect();
    ends_within(SOON, &pids);
    assert!(output.status.success() && ended.iter().all(|it| it.success()), "{ended:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The driver of one training.
pub(crate) fn drive() {
    let config = ClusterConfig::from_env().unwrap();
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    scheduler.gather(|| Ok(())).unwrap();
    let pause = std::env::var("CARAVAN_TEST_PAUSE_MS").unwrap().parse::<u64>().unwrap();
    let task = scheduler.submit(Target::Workers, "train", &json!(pause)).unwrap();
    let trained = scheduler.wait(task).unwrap();
    scheduler.end(None).unwrap();
    println!("{}", Value::Array(trained));
}

/// Whether a van carries bytes over sockets.
fn is_socket(van: &Value) -> bool {
    van == "uring" || van == "tcp"
}

fn each_pair_takes_its_own_van_and_the_same_is_trained() {
    let Some(hosts) = Hosts::start() else { return };
    let mixed = train(&hosts, "auto", |command| command);
    for (rank, worker) in mixed.iter().enumerate() {
        let vans = &worker["vans"];
        assert_eq!(vans[rank], "shm", "on one host: {vans}");
        assert!(is_socket(&vans[1 - rank]), "between hosts: {vans}");
        let van = worker["van"].as_str().unwrap();
        assert!(van == "shm+uring" || van == "shm+tcp", "{van}");
    }
    let none = json!([null, null]);
    let lanes = json!({ "before": none, "opened": mixed[0]["vans"] });
    assert_eq!(mixed[0]["lanes"], lanes, "no van is named that no lane has");
    assert_eq!(mixed[1]["lanes"]["opened"], none);
    let forced = train(&hosts, "tcp", |command| command);
    for (forced, mixed) in forced.iter().zip(&mixed) {
        assert_eq!(forced["vans"], json!(["tcp", "tcp"]));
        assert!(forced["bits"] == mixed["bits"], "the same to the bit");
    }
    assert_eq!(mixed[0]["bits"], mixed[1]["bits"]);
}

/// Goal: hosts that are apart for a while go on as if nothing had been, and nobody is lost. Method:
/// the cable is cut for 3 seconds, or as many as `CARAVAN_TEST_CUT_S` says, in the middle of the
/// steps. TCP looks again after pauses that double, so they go on after up to twice the time.
fn a_cut_cable_heals_without_loss() {
    let Some(hosts) = Hosts::start() else { return };
    let whole = train(&hosts, "tcp", |command| command);
    let seconds = std::env::var("CARAVAN_TEST_CUT_S").map_or(3, |text| text.parse().unwrap());
    let cut = Duration::from_secs(seconds);
    let set = |state: &str| {
        let link = ["-n", &hosts.0[1], "link", "set", "eth0", state];
        assert!(Command::new("ip").args(link).status().unwrap().success());
    };
    let meanwhile = || {
        std::thread::sleep(Duration::from_secs(2));
        set("down");
        std::thread::sleep(cut);
        set("up");
    };
    let pause = Duration::from_millis(500);
    let healed = train_while(&hosts, "tcp", |command| command, pause, meanwhile);
    for (healed, whole) in healed.iter().zip(&whole) {
        assert!(healed["bits"] == whole["bits"], "the same to the bit");
        let longest = healed["longest"].as_f64().unwrap();
        println!("cut for {seconds} s: the longest step took {longest:.1} s");
        assert!(longest > cut.as_secs_f64() * 0.8, "the cut came in no step: {longest}");
    }
}

/// Goal: a path on which everything takes long changes nothing but the time. Method: each packet
/// from one host to the other takes 200 ms, both ways. Few kernels of hosts can do that; that of
/// the machine in which `ci/suites/rdma` runs can.
fn a_slow_path_changes_nothing() {
    let Some(hosts) = Hosts::start() else { return };
    let quick = train(&hosts, "tcp", |command| command);
    let delay = |name: &String| {
        let netem = "qdisc add dev eth0 root netem delay 200ms limit 100000".split(' ');
        let tc = Command::new("tc").args(["-n", name]).args(netem).status();
        tc.is_ok_and(|status| status.success())
    };
    if !hosts.0.iter().all(delay) {
        eprintln!("skipped: this kernel delays no packets, or iproute2 is not installed");
        return;
    }
    for van in ["tcp", "auto"] {
        let slow = train(&hosts, van, |command| command);
        for (slow, quick) in slow.iter().zip(&quick) {
            assert!(slow["bits"] == quick["bits"], "the same to the bit");
            let longest = slow["longest"].as_f64().unwrap();
            println!("{}: the longest step took {longest:.1} s", slow["vans"]);
            assert!(longest > 0.8, "a push and a pull took {longest} s together");
        }
    }
}

/// Goal: a node without the right to share memory with others of its host goes on by sockets.
/// Method: a worker in a user namespace of its own, whose user is another one to the rest.
fn who_may_not_share_memory_takes_sockets() {
    let is_there = Command::new("unshare").args(["-U", "--map-root-user", "true"]).status();
    if !is_there.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system lets nobody make user namespaces");
        return;
    }
    let Some(hosts) = Hosts::start() else { return };
    let apart = |command: Command| {
        // Within the network of its host: only the user is another one.
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let [netns, exec, name, program @ ..] = &words[..] else { panic!("{words:?}") };
        let mut apart = Command::new("ip");
        apart.args([netns, exec, name]).args(["unshare", "-U", "--map-root-user"]).args(program);
        apart.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        apart
    };
    let trained = train(&hosts, "auto", apart);
    assert_eq!(trained[0]["vans"][0], "shm");
    let vans = trained[1]["vans"].as_array().unwrap();
    assert!(vans.iter().all(is_socket), "{vans:?}");
    assert_eq!(trained[0]["bits"], trained[1]["bits"]);
}

/// Goal: a server whose address other hosts cannot reach is refused, and says what to set.
fn an_address_that_other_hosts_cannot_reach_is_refused() {
    let Some(hosts) = Hosts::start() else { return };
    let mut config = ClusterConfig::default();
    config.node.scheduler = "192.0.2.1:7000".to_owned();
    let secret = Secret::random().to_hex();
    let on = |host: usize, role: &str| {
        let mut command = hosts.command(host, role);
        command.envs(config.to_vars()).env("CARAVAN_SECRET", &secret);
        command.env("CARAVAN_HOST", "127.0.0.1").env("CARAVAN_TEST_PAUSE_MS", "0");
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let refused = |node: Child| {
        let output = node.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("set CARAVAN_HOST"), "{said}");
    };
    refused(on(1, "server"));
    // Beside the scheduler the server is wrong only because the worker is not there.
    [on(0, "server"), on(1, "worker"), on(0, "pairs::drive")].into_iter().for_each(refused);
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = tests![
    each_pair_takes_its_own_van_and_the_same_is_trained,
    who_may_not_share_memory_takes_sockets,
    an_address_that_other_hosts_cannot_reach_is_refused,
    a_cut_cable_heals_without_loss,
    a_slow_path_changes_nothing,
];
