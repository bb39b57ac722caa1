//! Two workers of two threads each fit a line under stale synchronous parallel: no worker reads
//! weights that miss more than two iterations of the other.
//!
//! Run: `cargo run -p caravan-kv --example stale`

use caravan_kv::consistency::Model;
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Handles, Launch, Sharing, TableSpec, Target, ValueType,
    WorkerNode,
};
use serde_json::{Value, json};

/// Fits `y = 3 x + 1` by gradient descent.
struct Fit;

impl App for Fit {
    fn run(&mut self, node: &mut WorkerNode, _body: Value) -> Result<Value, String> {
        fit(node).map_err(|error| error.to_string())
    }
}

fn fit(node: &mut WorkerNode) -> caravan_kv::Result<Value> {
    let spec = TableSpec::new(1, "line", ValueType::F64, 1);
    let spec = spec.consistency(Model::Ssp { staleness: 2 }, node.workers as u32);
    let table = node.worker.admin().create_table(&spec)?;
    node.worker.clocks(table).join()?;
    let sharing = Sharing { threads: 2, model: Model::Bsp, chunk_keys: 2, age: 0 };
    let first = node.rank * sharing.threads;
    let shared = node.worker.share::<f64, _>(table, &sharing, |sharer| {
        let mut line = [0.0; 2];
        for iteration in 0..300 {
            sharer.get(&[0, 1], &mut line)?;
            let x = (first + sharer.thread() + iteration) as f64 % 4.0;
            let error = 3.0 * x + 1.0 - (line[0] * x + line[1]);
            sharer.inc(&[0, 1], &[0.02 * error * x, 0.02 * error])?;
            sharer.sync()?; // the servers have what both threads have added
        }
        sharer.get(&[0, 1], &mut line)?;
        Ok(line)
    })?;
    let left = node.worker.clocks(table).leave()?;
    node.worker.wait(left)?;
    Ok(json!(shared.results[0]))
}

fn main() -> caravan_kv::Result<()> {
    let config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
    let apps = Apps::default().with("fit", || Box::new(Fit));
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps))?;
    let task = cluster.submit(Target::Workers, "fit", &Value::Null)?;
    for (rank, line) in cluster.wait(task)?.iter().enumerate() {
        println!("worker {rank} has slope and offset {line}");
    }
    cluster.shutdown()
}
