//! A cluster in this process, one push and one pull, as the front page shows them.
//!
//! Run: `cargo run -p caravan-kv --example one_process`

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, ValueType};

fn main() -> caravan_kv::Result<()> {
    let nodes = Launch::Threads(Handles::default(), Apps::default());
    let cluster = Cluster::launch(&ClusterConfig::default(), nodes)?;
    let mut worker = cluster.client()?;
    let table = worker.admin().create_table(&TableSpec::new(1, "weights", ValueType::F32, 1))?;
    let pushed = worker.push(table, &[3, 7, u64::MAX], &[1.0f32, 2.0, 3.0])?;
    worker.wait(pushed)?;
    let pulled = worker.pull(table, &[7])?;
    println!("{:?}", worker.wait(pulled)?.values::<f32>()); // [2.0]
    drop(worker);
    cluster.shutdown()
}
