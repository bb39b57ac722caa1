//! The program as a process, for tests from outside.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use caravan_kv::{Cluster, ClusterConfig, Launch, NodeConfig, SecretSource, Van, Worker};

/// As long as any of this may take on a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// `caravan` with the words of a command line, and no `CARAVAN_` variables.
pub(crate) fn caravan(line: &str) -> Command {
    let mut command = without_variables(env!("CARGO_BIN_EXE_caravan"));
    command.args(line.split_whitespace());
    command
}

/// A cluster whose nodes are processes.
pub(crate) fn launch(config: &ClusterConfig) -> Cluster {
    Cluster::launch(config, Launch::Processes(env!("CARGO_BIN_EXE_caravan").into())).unwrap()
}

/// A cluster of processes that talk over TCP, with one worker, and a client in it.
pub(crate) fn launch_over_tcp(servers: usize) -> (Cluster, Worker) {
    let node = NodeConfig { van: Van::Tcp, ..NodeConfig::default() };
    let cluster = launch(&ClusterConfig { servers, workers: 1, node, ..ClusterConfig::default() });
    let client = cluster.client().unwrap();
    (cluster, client)
}

/// `caravan` with the words of a command line, and the variables that name a running cluster.
pub(crate) fn of_cluster(cluster: &Cluster, line: &str) -> Command {
    let config = cluster.config();
    let mut command = caravan(line);
    command.envs(config.to_vars());
    if let SecretSource::Given(secret) = &config.node.secret {
        command.env("CARAVAN_SECRET", secret.to_hex());
    }
    command
}

/// A program without standard input and without `CARAVAN_` variables.
pub(crate) fn without_variables(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARAVAN_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// An empty folder for one test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Points around four others, as LIBSVM text.
pub(crate) fn points(folder: &Path) -> PathBuf {
    let line = |at: u32| {
        let label = if at.is_multiple_of(2) { "+1" } else { "-1" };
        let (x, y) = (at % 2 * 50 + at * 7 % 11, at / 2 % 2 * 50 + at * 5 % 13);
        format!("{label} 0:{x} 1:{y} 2:1\n")
    };
    let path = folder.join("points");
    std::fs::write(&path, (0..500).map(line).collect::<String>()).unwrap();
    path
}

pub(crate) fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.unwrap().success(), "{name} to {pid}");
}

pub(crate) fn ended(child: &mut Child, within: Duration) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > within {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The rows on standard output.
pub(crate) fn rows_in(output: &std::process::Output) -> Vec<serde_json::Value> {
    text(&output.stdout).lines().map(|row| serde_json::from_str(row).expect(row)).collect()
}

/// An address of this host that nobody uses now.
pub(crate) fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The processes that have `word` as a whole word of their command line.
pub(crate) fn pids_with(word: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_word = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|has| has == word.as_bytes())
    };
    pids.filter(has_word).collect()
}

/// A variable in the environment of a process.
pub(crate) fn variable(pid: u32, name: &str) -> Option<String> {
    let all = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut all = all.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    all.find_map(|one| one.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

/// Seconds for `sleep` that no other process on this machine sleeps for: they find its processes.
pub(crate) fn long(number: u32) -> String {
    format!("{}.{}", 600 + number, std::process::id())
}
