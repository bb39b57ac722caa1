//! One staged job: darts at a circle, with more workers and more darts from stage to stage.
//!
//! Run: `cargo run -p caravan-learn --example staged`

use std::error::Error;

use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, ValueType, WorkerNode,
};
use caravan_learn::task::schedule::Greedy;
use caravan_learn::task::{Engine, Part, Stage, Trigger, Wants};
use serde_json::{Value, json};

/// A worker of a stage.
struct Throws;

impl App for Throws {
    fn run(&mut self, node: &mut WorkerNode, input: Value) -> Result<Value, String> {
        throw(node, input).map_err(|error| error.to_string())
    }
}

/// Throws this worker's share of the darts; returns how many of all darts have hit.
fn throw(node: &mut WorkerNode, input: Value) -> Result<Value, Box<dyn Error>> {
    let (part, rank) = Part::of(node, input)?;
    let [first, last]: [usize; 2] = serde_json::from_value(part.body)?;
    let own = (first + rank..last).step_by(part.workers.len());
    let place = |dart: usize, step: f64| (dart as f64 * step).fract() * 2.0 - 1.0;
    let hits = own.filter(|&it| place(it, 0.41421).hypot(place(it, 0.73205)) < 1.0).count();
    // The table is the job's: what earlier stages have added is there.
    let table = node.worker.admin().create_table(&TableSpec::new(1, "hits", ValueType::I64, 1))?;
    let pushed = node.worker.push(table, &[0], &[hits as i64])?;
    node.worker.wait(pushed)?;
    node.barrier("thrown")?; // of the workers of this stage
    let pulled = node.worker.pull(table, &[0])?;
    Ok(json!(node.worker.wait(pulled)?.values::<i64>()[0]))
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let config = ClusterConfig { workers: 4, ..ClusterConfig::default() };
    let apps = Apps::default().with("throws", || Box::new(Throws));
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps))?;
    let mut engine = Engine::new(&mut cluster, Greedy, Trigger::AT_ONCE);
    let stage = |workers, darts: [u64; 2]| Stage::new("throws", json!(darts), Wants::Any(workers));
    let stages = vec![stage(1, [0, 1000]), stage(2, [1000, 10_000]), stage(4, [10_000, 100_000])];
    engine.submit(stages.into_iter());
    let outcome = engine.run()?.remove(0)?; // of the first task
    let last = outcome.ok_or("a task has stages")?;
    let area = 4.0 * last.results[0].as_f64().ok_or("a number of hits")? / 100_000.0;
    println!("workers {:?} have found an area of {area:.4}", last.workers);
    assert!((area - std::f64::consts::PI).abs() < 0.001);
    Ok(cluster.shutdown()?)
}
