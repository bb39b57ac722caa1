//! Goal: a server that is started by hand joins a running cluster and takes shards under load, and
//! ends with it, or leaves it before.
//! Method: nodes and commands are processes over TCP; a driver pushes while `caravan rebalance`
//! moves shards to the process that has joined, or has it leave, and counts what it has pushed.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod support;

use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use caravan_kv::{
    Cluster, ClusterConfig, Launch, NodeConfig, Placement, TableSpec, ValueType, Van, Worker,
};
use caravan_van::KeyRange;
use support::{PATIENCE, ended, of_cluster, rows_in, text};

const KEYS: u64 = 10_000;

/// Starts a server, and waits until a client has heard of it.
fn join(cluster: &Cluster, line: &str, client: &mut Worker) -> Child {
    let known = client.server_addresses().count();
    let mut joins = of_cluster(cluster, line).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while client.server_addresses().count() == known {
        client.sleep(Duration::from_millis(5)).unwrap();
        assert!(began.elapsed() < PATIENCE && joins.try_wait().unwrap().is_none());
    }
    joins
}

#[test]
fn a_server_joins_and_takes_shards_under_load() {
    let node = NodeConfig { van: Van::Tcp, ..NodeConfig::default() };
    let config = ClusterConfig { servers: 2, workers: 1, node, ..ClusterConfig::default() };
    let program = env!("CARGO_BIN_EXE_caravan").into();
    let cluster = Cluster::launch(&config, Launch::Processes(program)).unwrap();
    let mut client = cluster.client().unwrap();
    let keys = KeyRange::new(0, KEYS).unwrap();
    let spec = TableSpec::new(1, "rows", ValueType::I64, 8).keys(keys);
    let table = client.create_table(&spec.placement(Placement::Even(3))).unwrap();
    let all: Vec<u64> = (0..KEYS).collect();
    let ones = vec![1i64; 8 * KEYS as usize];
    let mut pushed = 0;
    let mut push = |client: &mut Worker| {
        let push = client.push(table, &all, &ones).unwrap();
        client.wait(push).unwrap();
        pushed += 1;
    };
    push(&mut client);
    let mut joins = join(&cluster, "server --join --van tcp", &mut client);
    let mut rebalance = of_cluster(&cluster, "rebalance --json");
    let mut rebalance = rebalance.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while rebalance.try_wait().unwrap().is_none() {
        push(&mut client);
    }
    let output = rebalance.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = rows_in(&output);
    assert_eq!(rows.len(), 2, "a third of six shards: {rows:?}");
    assert!(rows.iter().all(|row| row["to"] == 2), "{rows:?}");
    for _ in 0..10 {
        push(&mut client);
    }
    let there = client.shards(table).unwrap().iter().filter(|shard| shard.server == 2).count();
    assert_eq!(there, 2, "the driver has found them");
    let pulled = client.pull(table, &all).unwrap();
    assert!(client.wait(pulled).unwrap().values::<i64>().iter().all(|value| *value == pushed));
    let top = of_cluster(&cluster, "top --once --json --interval 0.1").output().unwrap();
    let nodes = text(&top.stdout);
    assert!(nodes.contains("\"server\"") && nodes.lines().count() >= 4, "{nodes}");
    drop(client);
    cluster.shutdown().unwrap();
    assert!(ended(&mut joins, PATIENCE).success());
}

#[test]
fn servers_leave_under_load() {
    let node = NodeConfig { van: Van::Tcp, ..NodeConfig::default() };
    let config = ClusterConfig { servers: 1, workers: 1, node, ..ClusterConfig::default() };
    let program = env!("CARGO_BIN_EXE_caravan").into();
    let cluster = Cluster::launch(&config, Launch::Processes(program)).unwrap();
    let mut client = cluster.client().unwrap();
    let keys = KeyRange::new(0, KEYS).unwrap();
    let spec = TableSpec::new(1, "rows", ValueType::I64, 8).keys(keys);
    let table = client.create_table(&spec.placement(Placement::Even(6))).unwrap();
    let all: Vec<u64> = (0..KEYS).collect();
    let ones = vec![1i64; 8 * KEYS as usize];
    let mut pushed = 0;
    let mut push = |client: &mut Worker| {
        let push = client.push(table, &all, &ones).unwrap();
        client.wait(push).unwrap();
        pushed += 1;
    };
    let mut first = join(&cluster, "server --join --van tcp --threads 2", &mut client);
    let mut second = join(&cluster, "server --join --van tcp", &mut client);
    let output = of_cluster(&cluster, "rebalance --leave 0").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let founds = "only servers that have come by --join may leave";
    assert!(text(&output.stderr).contains(founds), "{}", text(&output.stderr));
    let mut run = |line: &str, client: &mut Worker| {
        let mut running = of_cluster(&cluster, line);
        let mut running = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while running.try_wait().unwrap().is_none() {
            push(client);
        }
        let output = running.wait_with_output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        (0..10).for_each(|_| push(client));
        rows_in(&output)
    };
    assert!(run("rebalance --json", &mut client).len() >= 3);
    // Threads 1 and 2 are those of the first that has joined, thread 3 is the other's.
    for (rank, threads, joined) in [(1, 1..3, &mut first), (2, 3..4, &mut second)] {
        let rows = run(&format!("rebalance --leave {rank} --json"), &mut client);
        let is_its = |row: &serde_json::Value| {
            let thread = row["from"].as_u64().unwrap();
            threads.contains(&thread) && !threads.contains(&row["to"].as_u64().unwrap())
        };
        assert!(!rows.is_empty() && rows.iter().all(is_its), "{rows:?}");
        let began = Instant::now();
        while joined.try_wait().unwrap().is_none() {
            run("status --json", &mut client);
            assert!(began.elapsed() < PATIENCE, "server {rank} does not end");
        }
        assert!(ended(joined, PATIENCE).success());
        let mut said = String::new();
        joined.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains(&format!("server {rank} has left the cluster")), "{said}");
    }
    assert!(client.shards(table).unwrap().iter().all(|shard| shard.server == 0));
    let pulled = client.pull(table, &all).unwrap();
    assert!(client.wait(pulled).unwrap().values::<i64>().iter().all(|value| *value == pushed));
    let top = of_cluster(&cluster, "top --once --json --interval 0.1").output().unwrap();
    let nodes = text(&top.stdout);
    assert_eq!(nodes.matches("\"role\":\"server\"").count(), 1, "{nodes}");
    drop(client);
    cluster.shutdown().unwrap();
}
