//! A custom update rule: servers keep the mean of all that was pushed to each key. The number of
//! pushes is hidden: it stays at the server.
//!
//! Run: `cargo run -p caravan-kv --example own_rule`

use caravan_kv::server::{Origin, Rule};
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, ValueType};

struct Mean;

impl Rule<f32> for Mean {
    type Hidden = i64;

    fn hidden(&self, _width: usize) -> usize {
        1
    }

    fn apply(
        &mut self,
        _origin: Origin,
        _key: u64,
        stored: &mut [f32],
        hidden: &mut [i64],
        pushed: &[f32],
    ) {
        hidden[0] += 1;
        let share = 1.0 / hidden[0] as f32;
        stored.iter_mut().zip(pushed).for_each(|(mean, value)| *mean += (value - *mean) * share);
    }
}

fn main() -> caravan_kv::Result<()> {
    // The closure is called once for each shard of a table.
    let handles = Handles::default().with_rule("mean", |_| Mean);
    let config = ClusterConfig { servers: 2, ..ClusterConfig::default() };
    let cluster = Cluster::launch(&config, Launch::Threads(handles, Apps::default()))?;

    let mut worker = cluster.client()?; // this thread pushes and pulls as well
    let means = TableSpec::new(1, "means", ValueType::F32, 2).handle("mean");
    let table = worker.admin().create_table(&means)?;
    let keys = [3, 1 << 40];
    for values in [[1.0f32, 9.0, 2.0, 4.0], [5.0, 3.0, 1.0, 8.0]] {
        let pushed = worker.push(table, &keys, &values)?;
        worker.wait(pushed)?;
    }
    let pulled = worker.pull(table, &keys)?;
    println!("the means are {:?}", worker.wait(pulled)?.values::<f32>());
    drop(worker);
    cluster.shutdown()
}
