//! Goal: `caravan checkpoint` writes the tables of a running cluster, or what changed in them, and
//! brings them back on any number of servers; a writer that is killed leaves the checkpoints from
//! before, and hinders none that follows.
//! Method: servers and commands are processes; a table holds a number for each key.

#![cfg(target_os = "linux")]

use crate::support;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::{Cluster, ClusterConfig, Table, TableSpec, Timestamp, ValueType, Worker};
use caravan_van::KeyRange;
use support::{PATIENCE, ended, folder, of_cluster, rows_in, text};

const KEYS: u64 = 50_000;

fn launch(servers: usize) -> Cluster {
    let config = ClusterConfig { servers, workers: 1, ..ClusterConfig::default() };
    support::launch(&config)
}

fn spec() -> TableSpec {
    TableSpec::new(3, "weights", ValueType::I64, 2).keys(KeyRange::new(0, KEYS).unwrap())
}

/// Begins to push its number to each key.
fn begin_push(client: &mut Worker, table: Table) -> Timestamp {
    let keys: Vec<u64> = (0..KEYS).collect();
    let values: Vec<i64> = keys.iter().flat_map(|key| [*key as i64, 1]).collect();
    client.push(table, &keys, &values).unwrap()
}

/// Pushes its number to each key.
fn push(client: &mut Worker, table: Table) {
    let pushed = begin_push(client, table);
    client.wait(pushed).unwrap();
}

/// The lines of an export when all keys have been pushed to so often.
fn lines(times: u64) -> String {
    (0..KEYS).map(|key| format!("{key} {} {times}\n", key * times)).collect()
}

fn run(cluster: &Cluster, line: &str, folder: &Path) -> Output {
    let line = line.replace("DIR", folder.to_str().unwrap());
    of_cluster(cluster, &line).output().unwrap()
}

/// Runs a command that must succeed; returns what it printed.
fn done(cluster: &Cluster, line: &str, folder: &Path) -> String {
    let output = run(cluster, line, folder);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command that must fail; returns what it said.
fn failed(cluster: &Cluster, line: &str, folder: &Path) -> String {
    let output = run(cluster, line, folder);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{line}");
    text(&output.stderr)
}

#[test]
fn a_checkpoint_comes_back_on_other_numbers_of_servers() {
    let folder = folder("checkpoints");
    let cluster = launch(2);
    assert!(failed(&cluster, "checkpoint create DIR", &folder).contains("no table"));
    assert!(failed(&cluster, "checkpoint verify DIR", &folder).contains("has no checkpoint"));
    let mut client = cluster.client().unwrap();
    let table = client.admin().create_table(&spec()).unwrap();
    push(&mut client, table);
    done(&cluster, "checkpoint create DIR", &folder);
    push(&mut client, table);
    let created = run(&cluster, "checkpoint create DIR --json", &folder);
    let created = &rows_in(&created)[0];
    assert_eq!((&created["checkpoint"], &created["shards"]), (&2.into(), &2.into()), "{created}");
    assert_eq!(created["rows"], KEYS);
    let listed = rows_in(&run(&cluster, "checkpoint list DIR --json", &folder));
    assert_eq!((listed.len(), &listed[1]), (2, created), "{listed:?}");
    let first = done(&cluster, "checkpoint export DIR --table 3 --number 1", &folder);
    let second = done(&cluster, "checkpoint export DIR --table 3", &folder);
    assert!(first == lines(1) && second == lines(2));
    let unknown = failed(&cluster, "checkpoint export DIR --table 4", &folder);
    assert!(unknown.contains("checkpoint 2 has no table 4"), "{unknown}");
    let there = failed(&cluster, "checkpoint restore DIR", &folder);
    assert!(there.contains("drop it first"), "{there}");
    drop(client);
    cluster.shutdown().unwrap();
    for servers in [1, 3] {
        let cluster = launch(servers);
        done(&cluster, "checkpoint restore DIR --number 2", &folder);
        let copy = folder.join(format!("copy-{servers}"));
        done(&cluster, "checkpoint create DIR", &copy);
        assert_eq!(done(&cluster, "checkpoint export DIR --table 3", &copy), second);
        cluster.shutdown().unwrap();
    }
    let rows = folder.join("2.0.1.rows");
    let mut damaged = fs::read(&rows).unwrap();
    damaged[1000] ^= 1;
    fs::write(&rows, damaged).unwrap();
    let verify = format!("checkpoint verify {}", folder.display());
    let output = support::caravan(&verify).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("2.0.1.rows"), "{said}");
}

/// A checkpoint of an iteration waits until the workers have come to it, and for nothing else.
#[test]
fn a_checkpoint_waits_for_an_iteration() {
    let folder = folder("iterations");
    let cluster = launch(2);
    let mut client = cluster.client().unwrap();
    let table = client.admin().create_table(&spec().consistency(Model::Bsp, 1)).unwrap();
    client.clocks(table).join().unwrap();
    let line = format!("checkpoint create {} --clock 3", folder.display());
    let mut create = of_cluster(&cluster, &line).stdout(Stdio::null()).spawn().unwrap();
    let iterate = |client: &mut Worker, times: usize| {
        for _ in 0..times {
            let pushed = begin_push(client, table);
            let advanced = client.clocks(table).advance().unwrap();
            [pushed, advanced].into_iter().for_each(|it| drop(client.wait(it).unwrap()));
        }
    };
    iterate(&mut client, 2);
    assert!(ended(&mut create, PATIENCE).success());
    iterate(&mut client, 2);
    assert!(done(&cluster, "checkpoint export DIR --table 3", &folder) == lines(2));
    let over = failed(&cluster, "checkpoint create DIR --clock 3", &folder);
    assert!(over.contains("in iteration 5 already, so that iteration 3 is over"), "{over}");
    drop(client);
    cluster.shutdown().unwrap();
}

#[test]
fn an_increment_has_what_changed_and_comes_back() {
    let folder = folder("increments");
    let cluster = launch(2);
    let mut client = cluster.client().unwrap();
    let table = client.admin().create_table(&spec()).unwrap();
    push(&mut client, table);
    for parent in [serde_json::Value::Null, 1.into(), 2.into()] {
        let created = run(&cluster, "checkpoint create DIR --incremental --json", &folder);
        let created = &rows_in(&created)[0];
        assert_eq!(created["parent"], parent);
        let changed = if parent.is_null() { KEYS } else { 1 };
        assert_eq!((&created["rows"], &created["gone"]), (&changed.into(), &0.into()), "{created}");
        let pushed = client.push(table, &[7], &[1i64, 1]).unwrap();
        client.wait(pushed).unwrap();
    }
    // Its rows are others, and fewer.
    client.admin().drop_table(table).unwrap();
    let table = client.admin().create_table(&spec()).unwrap();
    let pushed = client.push(table, &[7, 9], &[9i64, 2, 3, 4]).unwrap();
    client.wait(pushed).unwrap();
    done(&cluster, "checkpoint create DIR --incremental", &folder);
    let listed = done(&cluster, "checkpoint list DIR", &folder);
    let last = "checkpoint 4: weights (table 3) has 2 rows and 49998 tombstones since 3";
    assert!(listed.lines().nth(3).is_some_and(|line| line.starts_with(last)), "{listed}");
    assert_eq!(done(&cluster, "checkpoint export DIR --table 3", &folder), "7 9 2\n9 3 4\n");
    drop(client);
    cluster.shutdown().unwrap();
    let cluster = launch(3);
    done(&cluster, "checkpoint restore DIR --number 3", &folder);
    // The chain goes on from the newest, with what has changed since that one.
    done(&cluster, "checkpoint create DIR --incremental", &folder);
    let exported = |number: u64| {
        done(&cluster, &format!("checkpoint export DIR --table 3 --number {number}"), &folder)
    };
    assert_eq!(exported(5), exported(3));
    assert!(exported(3).contains("\n7 9 3\n"), "two pushes after the first");
    assert_eq!(done(&cluster, "checkpoint prune DIR --keep 1", &folder).lines().count(), 5);
    done(&cluster, "checkpoint create DIR", &folder);
    assert_eq!(done(&cluster, "checkpoint prune DIR --keep 2", &folder).lines().count(), 6);
    let left = rows_in(&run(&cluster, "checkpoint prune DIR --keep 1 --json", &folder));
    assert_eq!((left.len(), &left[0]["checkpoint"]), (1, &6.into()), "{left:?}");
    done(&cluster, "checkpoint create DIR --incremental", &folder);
    fs::remove_file(folder.join("6.manifest")).unwrap();
    let said = failed(&cluster, "checkpoint verify DIR", &folder);
    assert!(said.contains("checkpoint 7 has only what changed since checkpoint 6"), "{said}");
    cluster.shutdown().unwrap();
}

#[test]
fn a_writer_that_is_killed_leaves_what_was_there() {
    let folder = folder("killed-writers");
    let cluster = launch(2);
    let mut client = cluster.client().unwrap();
    let table = client.admin().create_table(&spec()).unwrap();
    push(&mut client, table);
    done(&cluster, "checkpoint create DIR", &folder);
    for wait_ms in [0, 20, 40, 60, 80, 100] {
        let way = if wait_ms % 40 == 0 { "--incremental" } else { "" };
        let create = format!("checkpoint create {} {way}", folder.display());
        let mut writer = of_cluster(&cluster, create.trim_end());
        let mut writer = writer.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait_ms));
        let _ = writer.kill();
        ended(&mut writer, PATIENCE);
        push(&mut client, table);
        done(&cluster, "checkpoint verify DIR", &folder);
    }
    let before = done(&cluster, "checkpoint list DIR", &folder).lines().count();
    done(&cluster, "checkpoint create DIR", &folder);
    assert_eq!(done(&cluster, "checkpoint list DIR", &folder).lines().count(), before + 1);
    drop(client);
    cluster.shutdown().unwrap();
}
