//! Goal: factors of ratings and features, and weights in chunks, are found on a cluster as in one
//! thread, under stale reads too.
//! Method: data with planted factors; real workers and servers as threads, against
//! `trainer::serial`.

use crate::vans;
use std::fmt::Write;
use std::path::PathBuf;

use caravan_kv::consistency::Model;
use caravan_kv::filter::Draws;
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::data::{self, Examples, Shard};
use caravan_learn::model::{RowModel, predict};
use caravan_learn::trainer::{self, Job, Trained, Trainer, serial, train};
use caravan_learn::{fm, linreg, metrics, mf, sgd};
use serde_json::json;

fn on_cluster<T: Trainer>(workers: usize, job: &Job<T::Settings>) -> Trained<T::Value> {
    let node = vans::node(vans::any());
    let config = ClusterConfig { servers: 2, workers, threads: 1, node };
    let apps = trainer::app::<T>(Apps::default());
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap();
    let trained = train::<T>(&mut cluster, job, |_| {}).unwrap();
    cluster.shutdown().unwrap();
    trained
}

fn alone<T: Trainer>(job: &Job<T::Settings>) -> Trained<T::Value> {
    serial::<T>(job, &Handles::default(), |_| {}).unwrap()
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("caravan-{name}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

/// Numbers from -1 to 1 that depend on their place only.
fn planted(of: u64, factor: u64) -> f64 {
    2.0 * Draws::new(7, of).of(factor) - 1.0
}

/// Ratings by three planted factors and noise.
fn ratings(draws: &mut Draws, count: usize) -> String {
    let mut text = String::new();
    for _ in 0..count {
        let [user, item] = [200.0, 60.0].map(|below| (draws.next_unit() * below) as u64);
        let product: f64 = (0..3).map(|f| planted(user, f) * planted(1000 + item, f)).sum();
        let noise = 0.2 * (draws.next_unit() - 0.5);
        writeln!(text, "{user} {item} {}", 3.0 + product + noise).unwrap();
    }
    text
}

#[test]
fn ratings_under_stale_reads_are_as_near_as_the_serial_run_s() {
    let mut draws = Draws::new(1, 1);
    let train_file = file("ratings-train", &ratings(&mut draws, 20_000));
    let test_file = file("ratings-test", &ratings(&mut draws, 2_000));
    let files = vec![train_file.clone()];
    let mean = mf::Ratings::read(&files, Shard::ALL).unwrap().mean();
    let test = mf::Ratings::read(std::slice::from_ref(&test_file), Shard::ALL).unwrap();
    let mut settings = mf::Settings::new(files, mean);
    settings.factors.factors = 4;
    settings.descent.batch = 16;
    let rmse = |trained: &Trained<f32>| {
        let model = RowModel::new("mf", json!({"mean": mean}), trained);
        mf::rmse(&model, &test).unwrap().unwrap()
    };
    let job = Job { passes: 15, ..Job::new(settings) };
    let expected = rmse(&alone::<mf::Mf>(&job));
    let stale = Job { consistency: Model::Ssp { staleness: 3 }, ..job.clone() };
    let found = rmse(&on_cluster::<mf::Mf>(8, &stale));
    println!("RMSE {found}, alone {expected}");
    assert!(expected < 0.12, "the noise alone is 0.058, the ratings' 0.58: {expected}");
    assert!(found < 1.01 * expected, "{found} against {expected}");
    let parts = Job { passes: 2, parts: Some(4), ..job };
    let rows = |trained: Trained<f32>| (trained.rows.keys, trained.rows.values);
    assert_eq!(rows(on_cluster::<mf::Mf>(2, &parts)), rows(alone::<mf::Mf>(&parts)));
    [train_file, test_file].iter().for_each(|file| std::fs::remove_file(file).unwrap());
}

/// Pairs of features whose label is all in the interaction; and the planted model's margins.
fn pairs(draws: &mut Draws, count: usize) -> (String, Vec<f64>) {
    let mut text = String::new();
    let mut margins = Vec::new();
    for _ in 0..count {
        let [a, b] = [0, 1].map(|_| (draws.next_unit() * 20.0) as u64);
        let margin: f64 = 5.0 * (0..2).map(|f| planted(a, f) * planted(50 + b, f)).sum::<f64>();
        let is_positive = draws.next_unit() < 1.0 / (1.0 + (-margin).exp());
        let label = if is_positive { "+1" } else { "-1" };
        writeln!(text, "{label} {a}:1 {}:1", 50 + b).unwrap();
        margins.push(margin);
    }
    (text, margins)
}

#[test]
fn machines_find_the_interactions_that_linear_models_do_not() {
    let mut draws = Draws::new(2, 1);
    let train_file = file("pairs-train", &pairs(&mut draws, 10_000).0);
    let (text, margins) = pairs(&mut draws, 3_000);
    let test: Examples = data::parse("test".as_ref(), text.as_bytes()).unwrap();
    let auc = |margins: &[f64]| metrics::auc(&test.labels, margins).unwrap();
    let best = auc(&margins);
    let linear = Job { passes: 5, ..Job::new(sgd::Settings::new(vec![train_file.clone()])) };
    let linear = sgd::model(&alone::<sgd::Sgd>(&linear).rows).unwrap();
    let linear = auc(&predict(&linear, &test));
    let settings = fm::Settings::new(vec![train_file.clone()]);
    let consistency = Model::Ssp { staleness: 2 };
    let job = Job { passes: 20, consistency, ..Job::new(settings) };
    let trained = on_cluster::<fm::Fm>(2, &job);
    let found = auc(&fm::margins(&RowModel::new("fm", json!({}), &trained), &test));
    println!("AUC {found}, linear {linear}, planted {best}");
    assert!(best - linear > 0.1, "linear {linear}, planted {best}");
    assert!(found - linear > 0.9 * (best - linear), "{found}, linear {linear}, planted {best}");
    std::fs::remove_file(&train_file).unwrap();
}

/// Parts write chunks of their own; without delay any number of them is the serial run.
#[test]
fn chunks_under_constraints_are_the_serial_run_to_the_bit() {
    let mut draws = Draws::new(3, 1);
    let mut text = String::new();
    for _ in 0..80 {
        let values: Vec<f64> = (0..10).map(|_| draws.next_unit() - 0.4).collect();
        let label = if values.iter().sum::<f64>() > 1.0 { "+1" } else { "-1" };
        write!(text, "{label}").unwrap();
        values.iter().enumerate().for_each(|(at, it)| write!(text, " {at}:{it}").unwrap());
        text.push('\n');
    }
    let file = file("chunks", &text);
    let settings =
        linreg::Settings { files: vec![file.clone()], features: 10, rate: 0.5, steps: 30 };
    let job = Job { passes: 2, ..Job::new(settings) };
    let expected = alone::<linreg::LinReg>(&job);
    for (workers, model) in [(1, "data:0"), (4, "data:0"), (2, "bsp")] {
        let job = Job { consistency: model.parse().unwrap(), ..job.clone() };
        let found = on_cluster::<linreg::LinReg>(workers, &job);
        assert_eq!(found.rows, expected.rows, "{model} on {workers} workers");
        assert_eq!(found.objective.to_bits(), expected.objective.to_bits());
    }
    // Late reads converge too, and to the same weights.
    let long = Job { passes: 60, ..job.clone() };
    let least = alone::<linreg::LinReg>(&long);
    assert!(least.objective < expected.objective);
    for model in ["data:2", "data:none", "ssp:2"] {
        let job = Job { consistency: model.parse().unwrap(), ..long.clone() };
        let found = on_cluster::<linreg::LinReg>(3, &job);
        let gap = found.objective / least.objective - 1.0;
        assert!(gap.abs() < 1e-6, "{model}: {gap:e}");
    }
    let many = Job { parts: Some(11), ..job.clone() };
    let said = serial::<linreg::LinReg>(&many, &Handles::default(), |_| {}).unwrap_err();
    assert!(said.to_string().contains("too few for 11 parts"), "{said}");
    std::fs::remove_file(&file).unwrap();
}
