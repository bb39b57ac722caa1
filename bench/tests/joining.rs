//! Goal: a server that is started by hand joins a running cluster and takes shards under load, and
//! ends with it, or leaves it before; or it gets the copies of one that is killed.
//! Method: nodes and commands are processes over TCP; a driver pushes while `caravan rebalance`
//! moves shards to the process that has joined, or has it leave, or another one is killed, and
//! counts what it has pushed.

#![cfg(target_os = "linux")]

use crate::support;
use std::io::Read;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use caravan_kv::server::Copies;
use caravan_kv::{
    Cluster, ClusterConfig, NodeConfig, Placement, Table, TableSpec, ValueType, Van, Worker,
};
use caravan_van::KeyRange;
use serde_json::{Value, json};
use support::{PATIENCE, ended, launch, launch_over_tcp, of_cluster, rows_in, signal, text};

const KEYS: u64 = 10_000;

/// Starts a server, and waits until a client has heard of it.
fn join(cluster: &Cluster, line: &str, client: &mut Worker) -> Child {
    let known = client.info().addresses().count();
    let mut joins = of_cluster(cluster, line).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while client.info().addresses().count() == known {
        client.sleep(Duration::from_millis(5)).unwrap();
        assert!(began.elapsed() < PATIENCE && joins.try_wait().unwrap().is_none());
    }
    joins
}

/// A driver that pushes ones to all rows of a table, and counts them.
struct Pushes {
    client: Worker,
    table: Table,
    keys: Vec<u64>,
    ones: Vec<i64>,
    pushed: i64,
}

impl Pushes {
    /// With so many shards on each thread, and so many copies of each.
    fn to(mut client: Worker, shards: u32, replicas: u32) -> Pushes {
        let range = KeyRange::new(0, KEYS).unwrap();
        let spec = TableSpec::new(1, "rows", ValueType::I64, 8).keys(range).replicas(replicas);
        let table = client.admin().create_table(&spec.placement(Placement::Even(shards))).unwrap();
        let ones = vec![1; 8 * KEYS as usize];
        Pushes { client, table, keys: (0..KEYS).collect(), ones, pushed: 0 }
    }

    fn push(&mut self, times: usize) {
        for _ in 0..times {
            let push = self.client.push(self.table, &self.keys, &self.ones).unwrap();
            self.client.wait(push).unwrap();
            self.pushed += 1;
        }
    }

    /// Pushes while a command runs, and a few times more; the command succeeds.
    fn while_it_runs(&mut self, cluster: &Cluster, line: &str) -> Output {
        let mut running = of_cluster(cluster, line);
        let mut running = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while running.try_wait().unwrap().is_none() {
            self.push(1);
        }
        let output = running.wait_with_output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        self.push(10);
        output
    }

    /// Each row has what was pushed, no more and no less.
    fn check(&mut self) {
        let pulled = self.client.pull(self.table, &self.keys).unwrap();
        let answer = self.client.wait(pulled).unwrap();
        assert!(answer.values::<i64>().iter().all(|value| *value == self.pushed));
    }

    /// The server thread of each shard.
    fn owners(&mut self) -> Vec<usize> {
        let shards = self.client.info().shards(self.table).unwrap();
        shards.iter().map(|shard| shard.server).collect()
    }
}

/// The process of the server of this rank.
fn pid_of(cluster: &Cluster, rank: usize) -> u32 {
    let top = of_cluster(cluster, "top --once --json --interval 0.1").output().unwrap();
    let is_it = |row: &Value| row["role"] == "server" && row["rank"] == rank;
    let rows = rows_in(&top);
    let row = rows.iter().find(|row| is_it(row)).unwrap_or_else(|| panic!("{rows:?}"));
    u32::try_from(row["pid"].as_u64().unwrap()).unwrap()
}

/// The number of servers that are there.
fn servers_of(cluster: &Cluster) -> usize {
    let top = of_cluster(cluster, "top --once --json --interval 0.1").output().unwrap();
    text(&top.stdout).matches("\"role\":\"server\"").count()
}

#[test]
fn a_server_joins_and_takes_shards_under_load() {
    take_shards(0);
}

#[test]
fn a_server_joins_and_takes_shards_with_copies_under_load() {
    take_shards(1);
}

fn take_shards(replicas: u32) {
    let (cluster, client) = launch_over_tcp(2);
    let mut pushes = Pushes::to(client, 3, replicas);
    pushes.push(1);
    let mut joins = join(&cluster, "server --join --van tcp", &mut pushes.client);
    let rows = rows_in(&pushes.while_it_runs(&cluster, "rebalance --json"));
    assert_eq!(rows.len(), 2, "a third of six shards: {rows:?}");
    assert!(rows.iter().all(|row| row["to"] == 2), "{rows:?}");
    let there = pushes.owners().iter().filter(|server| **server == 2).count();
    assert_eq!(there, 2, "the driver has found them");
    pushes.check();
    let top = of_cluster(&cluster, "top --once --json --interval 0.1").output().unwrap();
    let nodes = text(&top.stdout);
    assert!(nodes.contains("\"server\"") && nodes.lines().count() >= 4, "{nodes}");
    drop(pushes);
    cluster.shutdown().unwrap();
    assert!(ended(&mut joins, PATIENCE).success());
}

#[test]
fn servers_leave_under_load() {
    let (cluster, client) = launch_over_tcp(2);
    let mut pushes = Pushes::to(client, 3, 0);
    let mut first = join(&cluster, "server --join --van tcp --threads 2", &mut pushes.client);
    let mut second = join(&cluster, "server --join --van tcp", &mut pushes.client);
    assert!(rows_in(&pushes.while_it_runs(&cluster, "rebalance --json")).len() >= 3);
    // Threads 2 and 3 are those of the first that has joined, thread 4 is the other's. Server 0 has
    // founded the cluster, and numbers its tables.
    let servers = [(2, 2..4, Some(&mut first)), (0, 0..1, None), (3, 4..5, Some(&mut second))];
    for (stay, (rank, threads, joined)) in [3, 2, 1].into_iter().zip(servers) {
        let leave = format!("rebalance --leave {rank} --json");
        let rows = rows_in(&pushes.while_it_runs(&cluster, &leave));
        let is_its = |row: &Value| {
            let thread = row["from"].as_u64().unwrap();
            threads.contains(&thread) && !threads.contains(&row["to"].as_u64().unwrap())
        };
        assert!(!rows.is_empty() && rows.iter().all(is_its), "{rows:?}");
        let began = Instant::now();
        while servers_of(&cluster) > stay {
            pushes.while_it_runs(&cluster, "status --json");
            assert!(began.elapsed() < PATIENCE, "server {rank} does not end");
        }
        let Some(joined) = joined else { continue };
        assert!(ended(joined, PATIENCE).success());
        let mut said = String::new();
        joined.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains(&format!("server {rank} has left the cluster")), "{said}");
    }
    assert!(pushes.owners().iter().all(|server| *server == 1));
    pushes.check();
    let output = of_cluster(&cluster, "rebalance --leave 1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let last = "server 1 is the only one left";
    assert!(text(&output.stderr).contains(last), "{}", text(&output.stderr));
    drop(pushes);
    cluster.shutdown().unwrap();
}

/// Servers are killed one after the other, and each time another one joins before, until none is
/// left of those that have founded the cluster.
#[test]
fn servers_that_are_killed_are_replaced() {
    const KILLED: usize = 3;
    const THREADS: usize = 2;
    let node = NodeConfig { van: Van::Tcp, server_losses_max: KILLED, ..NodeConfig::default() };
    let config = ClusterConfig { servers: 2, threads: THREADS, workers: 1, node };
    let cluster = launch(&config);
    let mut pushes = Pushes::to(cluster.client().unwrap(), 1, 1);
    let mut joined = Vec::new();
    for rank in 0..KILLED {
        pushes.push(10);
        joined.push(join(&cluster, "server --join --van tcp --threads 2", &mut pushes.client));
        let began = Instant::now();
        let whole = Copies { lost: rank * THREADS, missing: 0, coming: 0 };
        while pushes.client.admin().copies().unwrap() != whole {
            pushes.push(1);
            assert!(began.elapsed() < PATIENCE, "{:?}", pushes.client.admin().copies());
        }
        signal("KILL", pid_of(&cluster, rank));
        pushes.push(10);
    }
    pushes.check();
    let began = Instant::now();
    loop {
        let rows = rows_in(&pushes.while_it_runs(&cluster, "status --json"));
        let row = rows.iter().find(|row| row["row"] == "table").unwrap();
        assert_eq!((&row["replicas"], &row["lost"]), (&json!(1), &json!([])), "{row}");
        if (&row["missing"], &row["coming"]) == (&json!(0), &json!(0)) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{row}");
    }
    assert!(pushes.owners().iter().all(|thread| *thread >= 2 * THREADS), "{:?}", pushes.owners());
    drop(pushes);
    cluster.shutdown().unwrap();
    for mut joined in joined.into_iter().skip(1) {
        assert!(ended(&mut joined, PATIENCE).success());
    }
}
