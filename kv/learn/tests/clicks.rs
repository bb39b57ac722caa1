//! Goal: three passes of `sgd` with the documented settings of FTRL predict the clicks of the test
//! rows as well as the exact optimum of L1 logistic regression does. Method: the reference set,
//! generated here, and the optimum that `dbpg` finds, on clusters of threads.

use crate::vans;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::data::{self, Shard, clicks};
use caravan_learn::dbpg;
use caravan_learn::metrics::auc;
use caravan_learn::model::{Model, predict};
use caravan_learn::sgd::{self, Settings, Sgd};
use caravan_learn::trainer::{self, train};

/// How far below the optimum's AUC a run may be.
const BELOW_MAX: f64 = 0.001;

/// Of the optima in the table of reference sets, the one with the best AUC here.
const LAMBDA: f64 = 4.0;

fn cluster() -> Cluster {
    let node = vans::node(vans::any());
    let config = ClusterConfig { servers: 1, workers: 2, threads: 1, node };
    let apps = dbpg::apps(trainer::app::<Sgd>(Apps::default()));
    let launch = Launch::Threads(dbpg::handles(Handles::default()), apps);
    Cluster::launch(&config, launch).unwrap()
}

fn optimum(file: &Path) -> Model {
    let mut cluster = cluster();
    let job = dbpg::Job { epsilon: 1e-6, ..dbpg::Job::new(vec![file.to_owned()], LAMBDA) };
    let trained = dbpg::train(&mut cluster, &job, |_| {}).unwrap();
    cluster.shutdown().unwrap();
    trained.model
}

fn by_ftrl(file: &Path) -> Model {
    let mut cluster = cluster();
    let mut settings = Settings::new(vec![file.to_owned()]);
    settings.descent.options = serde_json::json!({"rate": 0.14, "beta": 0.1, "l1": 20});
    let job = trainer::Job { passes: 3, ..trainer::Job::new(settings) };
    let trained = train::<Sgd>(&mut cluster, &job, |_| {}).unwrap();
    cluster.shutdown().unwrap();
    sgd::model(&trained.rows).unwrap()
}

/// Slow without optimisation; run it with `--release -- --ignored`.
#[test]
#[ignore = "large"]
fn ftrl_predicts_clicks_as_well_as_the_optimum() {
    let threads = NonZeroUsize::new(2).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("clicks");
    let settings = clicks::Clicks::default();
    let format = clicks::Format::Compact;
    clicks::generate(&settings, &out, format, threads, &AtomicBool::new(false)).unwrap();
    let [file, test]: [PathBuf; 2] = ["train", "test"].map(|part| out.with_extension(part));
    let test = data::read(&[test], Shard::ALL, threads).unwrap();
    let labels: Vec<f64> = test.iter().map(|row| row.label).collect();
    let auc = |model: &Model| auc(&labels, &predict(model, &test)).unwrap();
    let (best, found) = (auc(&optimum(&file)), auc(&by_ftrl(&file)));
    println!("AUC {found:.6} by FTRL, {best:.6} at the optimum");
    assert!(found > best - BELOW_MAX, "{found} is too far below {best}");
}
