//! Goal: push and pull give back what was pushed, over every van between threads, whatever the shape of the cluster.
//! Method: a whole embedded cluster in this process, real sockets, driven as an application would.
#![allow(clippy::unwrap_used, reason = "tests")]

use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, Target, ValueType, Van,
    WorkerNode,
};
use serde_json::{Value, json};

struct PushPull;

impl App for PushPull {
    fn run(&mut self, node: &mut WorkerNode, _body: Value) -> Result<Value, String> {
        push_pull(node).map_err(|error| error.to_string())
    }
}

fn push_pull(node: &mut WorkerNode) -> caravan_kv::Result<Value> {
    let worker = &mut node.worker;
    let table = worker.create_table(&TableSpec::new(1, "weights", ValueType::F32, 2))?;
    let keys: Vec<u64> = (0..1000).map(|i| i * (u64::MAX / 999)).collect();
    let values: Vec<f32> = (0..2000).map(|i| i as f32).collect();
    let pushed = worker.push(table, &keys, &values)?;
    worker.wait(pushed)?;
    node.barrier("pushed")?;
    let worker = &mut node.worker;
    let pulled = worker.pull(table, &keys)?;
    let answer = worker.wait(pulled)?;
    let workers = node.workers as f32;
    let right =
        answer.values::<f32>().iter().zip(&values).filter(|(a, b)| **a == workers * **b).count();
    Ok(json!({ "right": right }))
}

fn run(van: Van, servers: usize, threads: usize, workers: usize) {
    let mut config = ClusterConfig { servers, threads, workers, ..ClusterConfig::default() };
    config.node.van = van;
    let apps = Apps::default().with("push-pull", || Box::new(PushPull));
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap();
    let task = cluster.submit(Target::Workers, "push-pull", &Value::Null).unwrap();
    let answers = cluster.wait(task).unwrap();
    assert_eq!(answers, vec![json!({ "right": 2000 }); workers]);
    cluster.shutdown().unwrap();
}

#[test]
fn one_of_each() {
    run(Van::Tcp, 1, 1, 1);
    run(Van::Uring, 1, 1, 1);
}

#[test]
fn many_of_each() {
    run(Van::Tcp, 2, 2, 3);
    run(Van::Uring, 3, 1, 4);
}
