//! Goal: a server that is started by hand joins a running cluster and takes shards under load, and
//! ends with it.
//! Method: nodes and commands are processes over TCP; a driver pushes while `caravan rebalance`
//! moves shards to the process that has joined, and counts what it has pushed.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use caravan_kv::{
    Cluster, ClusterConfig, Launch, NodeConfig, Placement, TableSpec, ValueType, Van,
};
use caravan_van::KeyRange;
use support::{PATIENCE, ended, of_cluster, rows_in, text};

const KEYS: u64 = 10_000;

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
    let mut push = |client: &mut caravan_kv::Worker| {
        let push = client.push(table, &all, &ones).unwrap();
        client.wait(push).unwrap();
        pushed += 1;
    };
    push(&mut client);
    let mut joins = of_cluster(&cluster, "server --join --van tcp");
    let mut joins = joins.stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while client.server_addresses().count() == 2 {
        client.sleep(Duration::from_millis(5)).unwrap();
        assert!(began.elapsed() < PATIENCE && joins.try_wait().unwrap().is_none());
    }
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
