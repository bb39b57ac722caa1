//! Clusters of real processes: a program without harness that starts itself again as the nodes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use caravan_kv::{Cluster, ClusterConfig, Launch};

use crate::vans::{any, node};

/// How long a process without purpose may take to end.
pub(crate) const SOON: Duration = Duration::from_secs(5);

pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

pub(crate) fn config(servers: usize, workers: usize) -> ClusterConfig {
    let node = node(any());
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

/// A test, by its path.
pub(crate) type Test = (&'static str, fn());

/// Runs the tests whose names contain one of these words, all if there is none, or lists them.
pub(crate) fn run(tests: &[Test], arguments: &[String]) -> ExitCode {
    let words: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(*word));
    let tests = tests.iter().map(|(path, test)| (path.split_once("::").unwrap().1, test));
    let wanted = tests.filter(|(name, _)| is_wanted(name));
    if arguments.iter().any(|argument| argument == "--list") {
        wanted.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in wanted {
        let outcome = catch_unwind(AssertUnwindSafe(test));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        *if outcome.is_ok() { &mut passed } else { &mut failed } += 1;
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Names tests by their paths.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        &[$((concat!(module_path!(), "::", stringify!($name)), $name as fn())),*]
    };
}
pub(crate) use tests;
