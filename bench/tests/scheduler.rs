//! Goal: a scheduler that keeps its state is killed and started again while jobs run, and nothing
//! that runs notices; nodes end when it stays away, and with the cluster.
//! Method: scheduler, nodes and commands are processes; the models of jobs are compared byte by
//! byte with those of runs whose scheduler lives.

#![cfg(target_os = "linux")]

use crate::support;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use caravan_van::Secret;
use support::{PATIENCE, caravan, ended, folder, free_address, points, signal, text};

/// What nodes say of a scheduler that is not theirs.
const OTHER_CLUSTER: &str = "keeps the state of another cluster, or has none";

/// A cluster whose scheduler is a process of its own.
struct Cluster {
    address: String,
    secret: String,
    /// The flag that says where the state is.
    keeps: String,
    away_s: u32,
    scheduler: Child,
    /// Each with the file of what it says.
    nodes: Vec<(Child, PathBuf)>,
}

impl Cluster {
    /// Starts scheduler, servers and workers, which are two each.
    fn start(folder: &Path, away_s: u32) -> Cluster {
        let keeps = format!("--state {}", folder.join("state").display());
        Cluster::start_with(folder, away_s, keeps)
    }

    /// As [`Cluster::start`], with the flag that says where the state is.
    fn start_with(folder: &Path, away_s: u32, keeps: String) -> Cluster {
        let mut cluster = Cluster {
            address: free_address(),
            secret: Secret::random().to_hex(),
            keeps,
            away_s,
            scheduler: caravan("--version").stdout(Stdio::null()).spawn().unwrap(),
            nodes: Vec::new(),
        };
        cluster.start_scheduler();
        for role in ["server", "server", "worker", "worker"] {
            let log = folder.join(format!("node-{}.log", cluster.nodes.len()));
            let mut node = cluster.command(&format!("{role} --van tcp"));
            node.current_dir(folder).stderr(File::create(&log).unwrap());
            cluster.nodes.push((node.spawn().unwrap(), log));
        }
        cluster
    }

    /// `caravan` with the variables that name this cluster.
    fn command(&self, line: &str) -> Command {
        let mut command = caravan(line);
        command.env("CARAVAN_SCHEDULER", &self.address).env("CARAVAN_SECRET", &self.secret);
        command.env("CARAVAN_SERVERS", "2").env("CARAVAN_WORKERS", "2");
        command.env("CARAVAN_SCHEDULER_AWAY_S", self.away_s.to_string());
        command.env("CARAVAN_HEARTBEAT_MS", "200");
        command
    }

    fn start_scheduler(&mut self) {
        let line = format!("scheduler {}", self.keeps);
        let _ = self.scheduler.wait();
        self.scheduler = self.command(&line).stderr(Stdio::piped()).spawn().unwrap();
    }

    fn kill_scheduler(&mut self) {
        self.scheduler.kill().unwrap();
        self.scheduler.wait().unwrap();
    }

    /// The scheduler's errors, once it has ended; its exit status.
    fn scheduler_ended(&mut self) -> (Option<i32>, String) {
        let status = ended(&mut self.scheduler, PATIENCE).code();
        (status, said_by(&mut self.scheduler))
    }

    /// Waits until all nodes have ended; returns what each has said, and whether it has succeeded.
    fn nodes_ended(&mut self, within: Duration) -> Vec<(bool, String)> {
        let mut nodes = std::mem::take(&mut self.nodes);
        let each = nodes.iter_mut().map(|(node, log)| {
            let status = ended(node, within);
            (status.success(), fs::read_to_string(log).unwrap())
        });
        each.collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().map(|(node, _)| node).chain([&mut self.scheduler]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a process that has ended has written to standard error.
fn said_by(child: &mut Child) -> String {
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    }
    said
}

/// Runs jobs while the scheduler is killed this often, each time after a little longer; they end as
/// those of a cluster whose scheduler lives.
fn survive(folder: &Path, mut cluster: Cluster, kills: u32, meanwhile: &mut dyn FnMut(u32)) {
    let data = points(folder).display().to_string();
    let rounds = 100 + 40 * kills;
    let work = [
        format!("kmeans --data {data} --clusters 4 --stages 1:50:{rounds},2:250:{rounds} --seed 1"),
        format!("sgd --data {data} --parts 2 --passes {rounds} --mean"),
    ];
    let model = |way: &str, at: usize| folder.join(format!("{way}-{at}"));
    for (at, work) in work.iter().enumerate() {
        let model = model("alone", at);
        let line = format!("train {work} --in-process --workers 2 --model {}", model.display());
        let output = caravan(&line).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let submit = |cluster: &Cluster, at: usize| {
        let model = model("killed", at);
        let line = format!("submit job{at} {} --model {}", work[at], model.display());
        let mut command = cluster.command(&line);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    wait_until_complete(&cluster, folder);
    let mut jobs: Vec<Child> = (0..work.len()).map(|at| submit(&cluster, at)).collect();
    let mut met = 0;
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(u64::from(20 + kill % 7 * 31)));
        cluster.kill_scheduler();
        std::thread::sleep(Duration::from_millis(u64::from(kill % 3 * 90)));
        let run = jobs.iter_mut().filter_map(|job| job.try_wait().unwrap().is_none().then_some(()));
        met += u32::from(run.count() > 0);
        meanwhile(kill);
        cluster.start_scheduler();
    }
    for (at, mut job) in jobs.into_iter().enumerate() {
        let status = ended(&mut job, 4 * PATIENCE);
        assert!(status.success(), "job {at}: {}", said_by(&mut job));
        let [alone, killed] = ["alone", "killed"].map(|way| fs::read(model(way, at)).unwrap());
        assert!(alone == killed, "job {at} has another model");
    }
    println!("{kills} kills, {met} of them while jobs ran");
    assert!(met > 0);
    // A job that is submitted afterwards runs as well.
    let later = submit(&cluster, 1).wait_with_output().unwrap();
    assert!(later.status.success(), "{}", text(&later.stderr));
    signal("INT", cluster.scheduler.id());
    let (status, said) = cluster.scheduler_ended();
    assert_eq!(status, Some(130));
    assert!(said.contains("the cluster has ended"), "{said}");
    for (succeeded, said) in cluster.nodes_ended(PATIENCE) {
        assert!(succeeded, "{said}");
    }
}

/// As [`survive`], with a state on disk.
fn survive_on_disk(test: &str, kills: u32) {
    let folder = folder(test);
    survive(&folder, Cluster::start(&folder, 60), kills, &mut |_| ());
    let left = fs::read_dir(folder.join("state")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "nothing is left of the state");
}

#[test]
fn jobs_outlive_their_scheduler() {
    survive_on_disk("scheduler-killed", 8);
}

/// The run of issue 23.
#[test]
#[ignore = "takes some minutes"]
fn jobs_outlive_a_hundred_schedulers() {
    survive_on_disk("scheduler-killed-100", 100);
}

/// A real etcd, which is killed as well.
#[cfg(feature = "etcd")]
#[test]
fn jobs_outlive_their_scheduler_by_an_etcd() {
    let Ok(program) = std::env::var("CARAVAN_TEST_ETCD") else {
        println!("SKIPPED: CARAVAN_TEST_ETCD names no etcd (ci/suites/etcd installs one)");
        return;
    };
    let folder = folder("scheduler-etcd");
    let [client, peer] = [(); 2].map(|()| format!("http://{}", free_address()));
    let start = || {
        let mut etcd = support::without_variables(&program);
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("default={peer}")]);
        etcd.arg("--data-dir").arg(folder.join("etcd"));
        etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let etcd = &mut start();
    let cluster = Cluster::start_with(&folder, 60, format!("--etcd {client}"));
    let again = &mut |kill: u32| {
        if kill % 3 == 1 {
            etcd.kill().unwrap();
            etcd.wait().unwrap();
            *etcd = start();
        }
    };
    survive(&folder, cluster, 6, again);
    // Nothing is left of the state: another cluster may begin.
    let mut other = Cluster::start_with(&folder, 60, format!("--etcd {client}"));
    wait_until_complete(&other, &folder);
    // A second scheduler goes on with it, and the first one finds that out. The job has ended.
    std::thread::sleep(Duration::from_secs(1));
    let mut second = other.command(&format!("scheduler --etcd {client}"));
    second.env("CARAVAN_SCHEDULER", free_address());
    let second = second.stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let line =
        format!("submit second sgd --data {} --parts 2 --passes 1", points(&folder).display());
    let mut job = other.command(&line);
    let job = job.stderr(Stdio::null()).spawn().unwrap();
    let (status, said) = other.scheduler_ended();
    assert_eq!(status, Some(1));
    assert!(said.contains("another scheduler has gone on with this cluster"), "{said}");
    for mut child in [second, job] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    etcd.kill().unwrap();
    etcd.wait().unwrap();
}

/// Waits until the cluster is complete: it has run something. Each call has a job of its own name,
/// as a scheduler that was killed may not have heard that the driver of the last one has ended.
fn wait_until_complete(cluster: &Cluster, folder: &Path) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = JOBS.fetch_add(1, Ordering::Relaxed);
    let data = points(folder);
    let line = format!("submit job{job} sgd --data {} --parts 2 --passes 1", data.display());
    let first = cluster.command(&line).output().unwrap();
    assert!(first.status.success(), "{}", text(&first.stderr));
}

#[test]
fn nodes_end_when_the_scheduler_stays_away() {
    let folder = folder("scheduler-away");
    let mut cluster = Cluster::start(&folder, 1);
    wait_until_complete(&cluster, &folder);
    signal("TERM", cluster.scheduler.id());
    let (status, said) = cluster.scheduler_ended();
    assert_eq!(status, Some(143));
    assert!(said.contains("the cluster goes on"), "{said}");
    let began = Instant::now();
    for (succeeded, said) in cluster.nodes_ended(PATIENCE) {
        assert!(!succeeded);
        let why = "did not come back within 1.0 s (CARAVAN_SCHEDULER_AWAY_S)";
        assert!(said.contains(why), "{said}");
    }
    assert!(began.elapsed() > Duration::from_millis(900));
}

#[test]
fn a_node_that_is_lost_meanwhile_is_named() {
    let folder = folder("scheduler-lost");
    let mut cluster = Cluster::start(&folder, 60);
    wait_until_complete(&cluster, &folder);
    cluster.kill_scheduler();
    let (mut lost, _) = cluster.nodes.remove(3);
    lost.kill().unwrap();
    lost.wait().unwrap();
    cluster.start_scheduler();
    let (status, said) = cluster.scheduler_ended();
    assert_eq!(status, Some(1));
    assert!(said.contains("worker") && said.contains("no heartbeat"), "{said}");
    for (succeeded, said) in cluster.nodes_ended(PATIENCE) {
        assert!(!succeeded && said.contains("was lost"), "{said}");
    }
}

/// The job of a driver that dies while the scheduler is away ends, and its name is free again.
#[test]
fn a_driver_that_is_lost_meanwhile_loses_its_job() {
    let folder = folder("scheduler-driver");
    let mut cluster = Cluster::start(&folder, 3);
    wait_until_complete(&cluster, &folder);
    let data = points(&folder).display().to_string();
    let endless = format!("submit it kmeans --data {data} --clusters 4 --stages 2:10:100000000");
    let mut driver = cluster.command(&endless).stderr(Stdio::null()).spawn().unwrap();
    let jobs = |cluster: &Cluster| {
        let listed = cluster.command("status --json").output().unwrap();
        text(&listed.stdout).matches("\"it\"").count()
    };
    let began = Instant::now();
    while jobs(&cluster) == 0 {
        assert!(began.elapsed() < PATIENCE);
    }
    cluster.kill_scheduler();
    driver.kill().unwrap();
    driver.wait().unwrap();
    cluster.start_scheduler();
    assert_eq!(jobs(&cluster), 1, "it may still come back");
    while jobs(&cluster) > 0 {
        assert!(began.elapsed() < PATIENCE);
    }
    let again = format!("submit it kmeans --data {data} --clusters 4 --stages 2:10:10");
    let again = cluster.command(&again).output().unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
}

/// Nodes stay away from a scheduler without a state and from one with another, which say so. With
/// the right one they go on.
#[test]
fn nodes_wait_for_the_state_of_their_cluster() {
    let folder = folder("scheduler-other");
    let mut cluster = Cluster::start(&folder, 60);
    wait_until_complete(&cluster, &folder);
    let right = cluster.keeps.clone();
    for wrong in [String::new(), format!("--state {}", folder.join("other").display())] {
        cluster.kill_scheduler();
        cluster.keeps = wrong;
        cluster.start_scheduler();
        let (says, said) = mpsc::channel();
        let stderr = BufReader::new(cluster.scheduler.stderr.take().unwrap());
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| drop(says.send(line)));
        });
        let began = Instant::now();
        loop {
            let line = said.recv_timeout(PATIENCE.saturating_sub(began.elapsed()));
            if line.expect("it says nothing").contains("a node of another cluster calls") {
                break;
            }
        }
        for (_, log) in &cluster.nodes {
            while !fs::read_to_string(log).unwrap().contains(OTHER_CLUSTER) {
                assert!(began.elapsed() < PATIENCE, "{}", log.display());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    cluster.kill_scheduler();
    cluster.keeps = right;
    cluster.start_scheduler();
    wait_until_complete(&cluster, &folder);
    signal("INT", cluster.scheduler.id());
    assert_eq!(cluster.scheduler_ended().0, Some(130));
    for (succeeded, said) in cluster.nodes_ended(PATIENCE) {
        assert!(succeeded, "{said}");
    }
}

#[test]
fn a_state_is_for_one_cluster_and_one_scheduler() {
    let folder = folder("scheduler-state");
    let mut cluster = Cluster::start(&folder, 60);
    wait_until_complete(&cluster, &folder);
    let line = format!("scheduler {}", cluster.keeps);
    let second = cluster.command(&line).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let said = text(&second.stderr);
    assert!(said.contains("another scheduler that runs"), "{said}");
    cluster.kill_scheduler();
    let other = cluster.command(&format!("{line} --workers 3")).output().unwrap();
    assert_eq!(other.status.code(), Some(2));
    let said = text(&other.stderr);
    assert!(said.contains("2 servers and 2 workers") && said.contains("and 3"), "{said}");
}
