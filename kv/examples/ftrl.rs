//! Logistic regression by FTRL-proximal: workers pull the weights of an example, and push the
//! gradient; servers step. Only 2 of 1000 features matter, and `l1` keeps most others at 0.
//!
//! Run: `cargo run -p caravan-kv --example ftrl`

use caravan_kv::filter::Draws;
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, Target, ValueType, WorkerNode,
};
use serde_json::{Value, json};

const FEATURES: u64 = 1000;
const EXAMPLES: u64 = 10_000;

/// An example's features, sorted, and whether it is a click: those with feature 0 mostly are, those
/// with feature 1 mostly are not.
fn example(draws: &mut Draws) -> (Vec<u64>, bool) {
    let mut features: Vec<u64> =
        (0..8).map(|_| (draws.next_unit().powi(2) * FEATURES as f64) as u64).collect();
    features.sort_unstable();
    features.dedup();
    let clicks = match (features.contains(&0), features.contains(&1)) {
        (true, false) => 0.9,
        (false, true) => 0.1,
        _ => 0.5,
    };
    (features, draws.next_unit() < clicks)
}

fn weights() -> TableSpec {
    let options = json!({"rate": 0.5, "l1": 15.0});
    TableSpec::new(1, "weights", ValueType::F32, 1).handle("ftrl").options(options)
}

struct Train;

impl App for Train {
    fn run(&mut self, node: &mut WorkerNode, _body: Value) -> Result<Value, String> {
        train(node).map_err(|error| error.to_string())
    }
}

fn train(node: &mut WorkerNode) -> caravan_kv::Result<Value> {
    let table = node.worker.admin().create_table(&weights())?;
    let mut draws = Draws::new(1, node.rank as u64);
    for _ in 0..EXAMPLES {
        let (features, is_click) = example(&mut draws);
        let pulled = node.worker.pull(table, &features)?;
        let margin: f32 = node.worker.wait(pulled)?.values::<f32>().iter().sum();
        let gradient = 1.0 / (1.0 + (-margin).exp()) - f32::from(u8::from(is_click));
        let pushed = node.worker.push(table, &features, &vec![gradient; features.len()])?;
        node.worker.wait(pushed)?;
    }
    Ok(Value::Null)
}

fn main() -> caravan_kv::Result<()> {
    let config = ClusterConfig { servers: 2, workers: 2, ..ClusterConfig::default() };
    let apps = Apps::default().with("train", || Box::new(Train));
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps))?;
    let task = cluster.submit(Target::Workers, "train", &Value::Null)?;
    cluster.wait(task)?;
    let mut worker = cluster.client()?;
    let table = worker.admin().create_table(&weights())?;
    let keys: Vec<u64> = (0..FEATURES).collect();
    let pulled = worker.pull(table, &keys)?;
    let answer = worker.wait(pulled)?;
    let weights = answer.values::<f32>();
    let others = weights[2..].iter().filter(|weight| **weight != 0.0).count();
    println!("weights of 0 and 1: {:?}; {others} others are not 0", &weights[..2]);
    drop(answer);
    drop(worker);
    cluster.shutdown()
}
