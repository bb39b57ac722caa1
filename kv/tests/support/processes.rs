//! Clusters of real processes: a test binary without harness that starts itself again as the nodes.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use caravan_kv::node::{run_server, run_worker};
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, Result};

use crate::support;

/// How long a process without purpose may take to end.
pub(crate) const SOON: Duration = Duration::from_secs(5);

pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

pub(crate) fn config(servers: usize, workers: usize) -> ClusterConfig {
    let node = support::node(support::any());
    let mut config = ClusterConfig { servers, workers, node, ..ClusterConfig::default() };
    config.node.pin = false;
    config.node.join_timeout = Duration::from_secs(60);
    config
}

pub(crate) fn launch(config: &ClusterConfig) -> Cluster {
    Cluster::launch(config, Launch::Processes(this_program())).unwrap()
}

/// Sends a signal, for example "KILL". After "STOP" the process has stopped when this returns.
pub(crate) fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.unwrap().success(), "{name} to {pid}");
    while name == "STOP" && !stands_still(pid) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether every thread of a process is stopped, or the process is gone.
fn stands_still(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states = threads.map(|thread| std::fs::read_to_string(thread.path().join("stat")));
    // The state follows the name, which is in parentheses.
    states.all(|state| {
        state
            .is_ok_and(|line| line.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    })
}

/// The process id of the node called `name`.
pub(crate) fn pid_of(cluster: &Cluster, name: &str) -> u32 {
    let processes = cluster.processes();
    processes.iter().find(|(node, _)| node == name).unwrap().1
}

pub(crate) fn pids(cluster: &Cluster) -> Vec<u32> {
    cluster.processes().iter().map(|(_, pid)| *pid).collect()
}

/// Whether a process exists and is no zombie.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// # Panics
/// If one of these processes still exists after a while.
pub(crate) fn ends_within(patience: Duration, pids: &[u32]) {
    let began = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| lives(**pid)) {
        assert!(began.elapsed() < patience, "process {pid} is left behind");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Plays the role that the command line names, or runs the tests whose names contain one of its
/// words, all if there is none. `drive` is the role of a driver that the test does not play itself.
pub(crate) fn main(
    tests: &[(&str, fn())],
    handles: &Handles,
    apps: &Apps,
    drive: fn(),
) -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let role = arguments.first().map_or("", String::as_str);
    let rank = arguments.get(2).and_then(|rank| rank.parse().ok());
    let node = || ClusterConfig::from_env().unwrap();
    let ended: Result<()> = match role {
        "server" => run_server(&node().node, rank, node().threads, handles, true),
        "worker" => run_worker(&node().node, rank, apps, true),
        "driver" => {
            drive();
            Ok(())
        }
        _ => return run(tests, &arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{role} {rank:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(tests: &[(&str, fn())], arguments: &[String]) -> ExitCode {
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let outcome = catch_unwind(AssertUnwindSafe(test));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        *if outcome.is_ok() { &mut passed } else { &mut failed } += 1;
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Names a test.
macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}
pub(crate) use tests;
