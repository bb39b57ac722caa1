//! Your own trainer: two workers fit a line under stale synchronous parallel. A step reads rows of
//! a table and makes an update of them; `caravan_learn::trainer` pulls, pushes and keeps clocks.
//!
//! Run: `cargo run -p caravan-learn --example own_trainer`

use caravan_kv::consistency::Model;
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, ValueType};
use caravan_learn::trainer::{self, Job, Part, Step, Trainer};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Settings {
    points: usize,
}

/// Fits `y = 3 x + 1`.
struct Line {
    points: Vec<f64>,
}

impl Trainer for Line {
    const NAME: &'static str = "line";
    type Settings = Settings; // the same at all nodes
    type Value = f64; // what the table holds

    fn table(_: &Settings) -> TableSpec {
        let options = json!({"rate": 0.02}); // servers step by gradients
        TableSpec::new(1, "line", ValueType::F64, 1).handle("sgd").options(options)
    }

    fn load(settings: &Settings, part: &Part) -> Result<Self, String> {
        let mine = (0..settings.points).filter(|point| point % part.parts == part.number);
        Ok(Line { points: mine.map(|point| f64::from(point as u32 % 7)).collect() })
    }

    fn steps(&self) -> u64 {
        self.points.len() as u64
    }

    fn keys(&self, _pass: u64, _step: u64) -> Vec<u64> {
        vec![0, 1] // slope and offset
    }

    fn step(&mut self, step: &mut Step<'_, f64>) {
        let x = self.points[step.step as usize];
        let error = step.rows[0] * x + step.rows[1] - (3.0 * x + 1.0);
        step.update.copy_from_slice(&[error * x, error]); // pushed to the keys that were read
        step.sums.loss += 0.5 * error * error;
        step.sums.examples += 1;
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
    let apps = trainer::app::<Line>(Apps::default());
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps))?;
    let consistency = Model::Ssp { staleness: 2 };
    let job = Job { consistency, passes: 5, ..Job::new(Settings { points: 500 }) };
    let trained = trainer::train::<Line>(&mut cluster, &job, |pass| {
        println!("pass {}: loss {:.3e}", pass.pass, pass.objective);
    })?;
    println!("slope and offset are {:.3?}", trained.rows.values);
    assert!(trained.rows.values.iter().zip([3.0, 1.0]).all(|(found, it)| (found - it).abs() < 0.1));
    Ok(cluster.shutdown()?)
}
