//! A table, a push and a pull, on a whole cluster of threads in this process.
//!
//! Run: `cargo run -p caravan-kv --example push_pull`

use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, Target, ValueType, WorkerNode,
};
use serde_json::{Value, json};

struct PushPull;

impl App for PushPull {
    fn run(&mut self, node: &mut WorkerNode, _body: Value) -> Result<Value, String> {
        push_pull(node).map_err(|error| error.to_string())
    }
}

fn push_pull(node: &mut WorkerNode) -> caravan_kv::Result<Value> {
    let weights = TableSpec::new(1, "weights", ValueType::F32, 2); // pushes are added
    let table = node.worker.admin().create_table(&weights)?;
    let pushed = node.worker.push(table, &[3, 1 << 40], &[1.0f32, 2.0, 3.0, 4.0])?;
    node.worker.wait(pushed)?;
    node.barrier("pushed")?; // all workers have pushed
    let pulled = node.worker.pull(table, &[3, 4, 1 << 40])?;
    Ok(json!(node.worker.wait(pulled)?.values::<f32>()))
}

fn main() -> caravan_kv::Result<()> {
    let config = ClusterConfig { servers: 2, workers: 2, ..ClusterConfig::default() };
    let apps = Apps::default().with("push-pull", || Box::new(PushPull));
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps))?;
    let task = cluster.submit(Target::Workers, "push-pull", &Value::Null)?;
    for (rank, values) in cluster.wait(task)?.iter().enumerate() {
        println!("worker {rank} pulled {values}");
    }
    cluster.shutdown()
}
