//! A custom update rule: servers keep the largest value pushed to each key, at least zero.
//!
//! Run: `cargo run -p caravan-kv --example own_rule`

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, ValueType};

fn main() -> caravan_kv::Result<()> {
    // Called once for each shard of a table; the result is called for each row of each push.
    let make_max = |_: &TableSpec| {
        |_key: u64, stored: &mut [f32], pushed: &[f32]| {
            stored
                .iter_mut()
                .zip(pushed)
                .for_each(|(stored, pushed)| *stored = stored.max(*pushed));
        }
    };
    let handles = Handles::default().with_rule("max", make_max);
    let config = ClusterConfig { servers: 2, ..ClusterConfig::default() };
    let cluster = Cluster::launch(&config, Launch::Threads(handles, Apps::default()))?;

    let mut worker = cluster.client()?; // this thread pushes and pulls as well
    let peaks = TableSpec::new(1, "peaks", ValueType::F32, 2).handle("max");
    let table = worker.create_table(&peaks)?;
    let keys = [3, 1 << 40];
    for values in [[1.0f32, 9.0, 2.0, 4.0], [5.0, 3.0, 1.0, 8.0]] {
        let pushed = worker.push(table, &keys, &values)?;
        worker.wait(pushed)?;
    }
    let pulled = worker.pull(table, &keys)?;
    println!("the peaks are {:?}", worker.wait(pulled)?.values::<f32>());
    drop(worker);
    cluster.shutdown()
}
