//! Goal: what trains in steps is, under BSP, the serial run to the bit on any cluster, and trains
//! under every other model, too.
//! Method: real workers and servers as threads, against `trainer::serial`.

use crate::support::example;
use crate::vans;
use std::path::{Path, PathBuf};

use caravan_kv::consistency::Model;
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::sgd::{Loss, Settings, Sgd};
use caravan_learn::trainer::{self, Hint, Job, Progress, Trained, serial, train};
use example::Example;
use serde_json::json;

fn cluster(workers: usize) -> Cluster {
    let node = vans::node(vans::any());
    let config = ClusterConfig { servers: 2, workers, threads: 1, node };
    let apps = trainer::app::<Sgd>(Apps::default());
    Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap()
}

fn example(name: &str) -> PathBuf {
    let name = format!("caravan-trainers-{name}-{}.train", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, Example::new().libsvm()).unwrap();
    path
}

fn job(file: &Path, handle: &str, options: serde_json::Value) -> Job<Settings> {
    let mut settings = Settings::new(vec![file.to_owned()]);
    settings.descent.handle = handle.to_owned();
    settings.descent.options = options;
    settings.descent.batch = 7;
    Job { passes: 2, parts: Some(5), ..Job::new(settings) }
}

fn on_cluster(workers: usize, job: &Job<Settings>) -> (Trained<f64>, Vec<Progress>) {
    let mut cluster = cluster(workers);
    let mut passes = Vec::new();
    let trained = train::<Sgd>(&mut cluster, job, |pass| passes.push(pass.clone())).unwrap();
    cluster.shutdown().unwrap();
    (trained, passes)
}

fn bits(trained: &Trained<f64>) -> Vec<(u64, u64)> {
    trained.rows.iter().map(|(key, row)| (key, row[0].to_bits())).collect()
}

#[test]
fn synchronous_runs_are_the_serial_one_to_the_bit_on_any_cluster() {
    let file = example("bits");
    let rules = [
        ("sgd", json!({"rate": 0.05, "decay": 0.01})),
        ("momentum", json!({"rate": 0.02})),
        ("adagrad", json!({"rate": 0.3})),
        ("adam", json!({"rate": 0.02})),
        ("ftrl", json!({"rate": 0.3, "l1": 0.5})),
    ];
    for (at, (rule, options)) in rules.into_iter().enumerate() {
        let mut job = job(&file, rule, options);
        if at == 1 {
            job.settings.loss = Loss::Squared;
            job.settings.mean = true;
        }
        let mut expected = Vec::new();
        let alone = serial::<Sgd>(&job, &Handles::default(), |pass| expected.push(pass.sums));
        let alone = alone.unwrap();
        assert!(expected[1].loss < expected[0].loss, "{rule}: {expected:?}");
        for workers in [1, 2 + at % 2, 5] {
            let (trained, passes) = on_cluster(workers, &job);
            assert_eq!(bits(&trained), bits(&alone), "{rule} on {workers} workers");
            for (pass, sums) in passes.iter().zip(&expected) {
                // Losses are added in another order.
                assert!((pass.sums.loss / sums.loss - 1.0).abs() < 1e-12, "{rule}");
                assert_eq!(pass.sums.rows_pushed, sums.rows_pushed);
            }
        }
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn every_model_trains() {
    let file = example("models");
    let serial_job = job(&file, "adagrad", json!({"rate": 0.3}));
    let alone = serial::<Sgd>(&serial_job, &Handles::default(), |_| {}).unwrap();
    for model in ["bsp", "ssp:3", "asp", "delay:2", "sparse-ssp:1:4", "sparse-ssp:0:0", "ssp:0"] {
        let consistency: Model = model.parse().unwrap();
        let job = Job { consistency, parts: None, ..serial_job.clone() };
        let (trained, passes) = on_cluster(3, &job);
        assert_eq!(passes.len(), 2, "{model}");
        let ratio = trained.objective / alone.objective;
        assert!((0.8..1.25).contains(&ratio), "{model}: {ratio}");
        assert_eq!(trained.rows.keys, alone.rows.keys, "{model}");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let file = example("refused");
    let good = job(&file, "sgd", json!({}));
    let refused = |change: &dyn Fn(&mut Job<Settings>), says: &str| {
        let mut job = good.clone();
        change(&mut job);
        let mut cluster = cluster(2);
        let error = train::<Sgd>(&mut cluster, &job, |_| {}).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        // The cluster is as good as before.
        train::<Sgd>(&mut cluster, &good, |_| {}).unwrap();
        cluster.shutdown().unwrap();
    };
    refused(&|job| job.parts = Some(1), "1 parts are too few for 2 workers");
    refused(&|job| job.parts = Some(129), "more than 64");
    refused(&|job| job.consistency = "sparse-ssp:1:1".parse().unwrap(), "take 2 parts");
    refused(&|job| job.consistency = "data:1".parse().unwrap(), "parts that write their own");
    refused(&|job| job.settings.descent.batch = 0, "at least 1 row");
    refused(&|job| job.settings.descent.handle = "none".to_owned(), "there is no handle none");
    refused(&|job| job.settings.descent.options = json!({"rate": -1}), "option rate");
    refused(&|job| job.settings.files = vec!["/no/such".into()], "/no/such");
    std::fs::remove_file(&file).unwrap();
}

/// Goal: what is not finite, or not there, ends a run with the pass or the file, the quantity and
/// the remedy, and never as an error between nodes. Method: rates and values that overflow, in each
/// way to train, and in one thread.
#[test]
fn divergence_and_missing_data_are_said() {
    let file = |name: &str, text: &str| {
        let name = format!("caravan-diverges-{name}-{}.train", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let says = |job: &Job<Settings>, says: &[&str]| {
        let alone = serial::<Sgd>(job, &Handles::default(), |_| {}).unwrap_err();
        let mut cluster = cluster(2);
        let mut all = vec![alone.to_string()];
        for hint in [Hint::Ps, Hint::Spmt, Hint::Hogwild] {
            let job = Job { hint, ..job.clone() };
            all.push(train::<Sgd>(&mut cluster, &job, |_| {}).unwrap_err().to_string());
        }
        cluster.shutdown().unwrap();
        for said in all {
            assert!(says.iter().all(|part| said.contains(part)), "{said}");
        }
    };
    let rows = file("rows", &"2.5 1:3\n-7 1:4 2:1\n".repeat(40));
    let steep = |path: &Path, rate: f64, passes| {
        let mut job = job(path, "sgd", json!({"rate": rate}));
        job.settings.loss = Loss::Squared;
        Job { passes, parts: Some(2), ..job }
    };
    says(&steep(&rows, 1e30, 9), &["diverged in pass ", "is not finite", "lower the rate"]);
    // The last step of all overflows the weights, and no loss.
    let steps = file("steps", "1e150 1:1e100\n");
    says(
        &steep(&steps, 1e200, 1),
        &["diverged in pass 0", "the row of key 1 is", "lower the rate"],
    );
    let (none, bare) = (file("none", "# nothing\n"), file("bare", "1\n-1\n"));
    for path in [&none, &bare] {
        says(&steep(path, 0.1, 1), &["no row with a key is in", path.to_str().unwrap()]);
    }
    [rows, steps, none, bare].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// The guide's program runs, and the guide shows it as it is.
#[path = "../examples/own_trainer.rs"]
#[allow(dead_code, reason = "its main is called by a test")]
mod own_trainer;

#[test]
fn the_guide_has_the_program_and_the_program_runs() {
    let program = include_str!("../examples/own_trainer.rs");
    let guide = include_str!("../../docs/trainers.md");
    let shown = guide.split("```rust,ignore\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(program.contains(shown), "kv/docs/trainers.md shows another program");
    assert!(shown.lines().count() <= 50);
    own_trainer::main().unwrap();
}
