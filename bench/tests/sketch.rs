//! Goal: `caravan sketch` counts on a running cluster, and counts nothing twice and loses nothing
//! when a server is killed in the middle.
//! Method: servers and commands are processes; so many cells that keys do not meet, so estimates
//! are exact.

#![cfg(target_os = "linux")]

use crate::support;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use caravan_kv::{Cluster, ClusterConfig};
use support::{PATIENCE, ended, folder, of_cluster, signal, text};

const KEYS: u64 = 300;

fn launch(servers: usize, losses: usize) -> Cluster {
    let mut config = ClusterConfig { servers, workers: 1, ..ClusterConfig::default() };
    config.node.server_losses_max = losses;
    config.node.heartbeat = Duration::from_millis(200);
    support::launch(&config)
}

/// Runs a command that must succeed; returns what it printed.
fn done(cluster: &Cluster, line: &str) -> String {
    let output = of_cluster(cluster, line).output().unwrap();
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command that must fail; returns what it said.
fn failed(cluster: &Cluster, line: &str) -> String {
    let output = of_cluster(cluster, line).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{line}");
    text(&output.stderr)
}

/// The counts of all keys.
fn query(cluster: &Cluster, table: u32) -> BTreeMap<u64, u64> {
    let mut query = of_cluster(cluster, &format!("sketch query --table {table}"));
    let query = query.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut query = query.spawn().unwrap();
    let mut keys = query.stdin.take().unwrap();
    (0..KEYS).for_each(|key| writeln!(keys, "{key}").unwrap());
    drop(keys);
    let output = query.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let pair = |line: &str| {
        let (key, count) = line.split_once(' ').unwrap();
        (key.parse().unwrap(), count.parse().unwrap())
    };
    text(&output.stdout).lines().map(pair).collect()
}

/// Whatever is acknowledged or sent again: each line counts once.
#[test]
fn a_killed_server_neither_loses_nor_doubles_a_count() {
    let cluster = launch(3, 1);
    done(&cluster, &format!("sketch create --table 7 --replicas 1 --keys {KEYS}"));
    let mut insert = of_cluster(&cluster, "sketch insert --table 7 --batch 100 --json");
    let insert = insert.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut insert = insert.spawn().unwrap();
    let mut input = insert.stdin.take().unwrap();
    let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
    let (began, mut is_killed) = (Instant::now(), false);
    for round in 0_u64.. {
        let (key, count) = (round * 7919 % KEYS, 1 + round % 5);
        writeln!(input, "{key} {count}").unwrap();
        *exact.entry(key).or_default() += count;
        if !is_killed && began.elapsed() > Duration::from_millis(600) {
            let processes = cluster.processes();
            signal("KILL", processes.iter().find(|(node, _)| node == "server 0").unwrap().1);
            is_killed = true;
        }
        if began.elapsed() > Duration::from_millis(1800) {
            break;
        }
        if round % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1)); // other processes have work to do as well
        }
    }
    drop(input);
    ended(&mut insert, PATIENCE);
    let output = insert.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(query(&cluster, 7), exact);
    done(&cluster, "sketch halve --table 7");
    assert_eq!(query(&cluster, 7), exact);
    cluster.shutdown().unwrap();
}

#[test]
fn sketches_are_merged_halved_and_dropped() {
    let cluster = launch(2, 0);
    let folder = folder("sketches");
    let create = |table: u32, more: &str| format!("sketch create --table {table} {more}");
    for table in [1, 2] {
        done(&cluster, &create(table, "--cells 65536 --hashes 3 --value u32 --keys 300"));
    }
    done(&cluster, &create(3, "--cells 1001 --keys 300"));
    let lines: String = (0..KEYS).map(|key| format!("{key} {}\n", key + 1)).collect();
    let [file, bad] = ["keys", "bad"].map(|name| folder.join(name));
    std::fs::write(&file, lines).unwrap();
    std::fs::write(&bad, "1\n2 x\n").unwrap();
    let (file, bad) = (file.display(), bad.display());
    done(&cluster, &format!("sketch insert --table 1 {file} {file}"));
    done(&cluster, &format!("sketch insert --table 2 {file}"));
    done(&cluster, "sketch merge --table 1 --into 2");
    done(&cluster, "sketch halve --table 2");
    let tripled = query(&cluster, 2);
    assert!((0..KEYS).all(|key| tripled[&key] == 3 * (key + 1)), "{tripled:?}");
    for (line, says) in [
        (format!("sketch insert --table 1 {bad}"), "bad, line 2"),
        (format!("sketch insert --table 1 {}", folder.display()), "sketches"),
        ("sketch query --table 9 1".to_owned(), "caravan sketch create makes one"),
        ("sketch query --table 1 300".to_owned(), "300"),
        ("sketch merge --table 1 --into 2".to_owned(), "sketches differ"),
        ("sketch merge --table 1 --into 3".to_owned(), "sketches differ"),
        ("sketch halve --table 3".to_owned(), "begin with an even number"),
        (create(1, "--cells 7 --keys 300"), "is another one"),
    ] {
        let said = failed(&cluster, &line);
        assert!(said.contains(says), "{line}: {said}");
    }
    done(&cluster, "sketch drop --table 1");
    assert!(failed(&cluster, "sketch query --table 1 1").contains("no table 1"));
    cluster.shutdown().unwrap();
}
