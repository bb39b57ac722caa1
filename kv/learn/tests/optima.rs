//! Goal: DBPG reaches the known optimum of every reference set, whatever the shape of the cluster.
//! Method: defaults, clusters of threads over TCP, against optima that another solver found and proved.
//!
//! The sets lie in `CARAVAN_DATA`, or in `shared/data` beside the workspace; without them these tests skip.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, Van};
use caravan_learn::dbpg::{self, Job, Trained};

/// A row of the table of optima.
#[derive(Debug)]
struct Optimum {
    set: String,
    lambda: f64,
    objective: f64,
    nonzeros: usize,
    size: String,
}

/// The folder with the sets, or None, said aloud.
fn data_folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("CARAVAN_DATA").map_or(beside, PathBuf::from);
    if folder.join("optima.csv").exists() {
        return Some(folder);
    }
    eprintln!("skipped: no reference sets in {} (set CARAVAN_DATA)", folder.display());
    None
}

fn optima(folder: &Path) -> Vec<Optimum> {
    let text = std::fs::read_to_string(folder.join("optima.csv")).unwrap();
    let rows = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.map(|fields| Optimum {
        set: fields[0].to_owned(),
        lambda: fields[1].parse().unwrap(),
        objective: fields[5].parse().unwrap(),
        nonzeros: fields[6].parse().unwrap(),
        size: fields[11].to_owned(),
    })
    .collect()
}

fn train(folder: &Path, optimum: &Optimum, (servers, workers): (usize, usize)) -> Trained {
    let mut config = ClusterConfig { servers, workers, ..ClusterConfig::default() };
    config.node.van = Van::Tcp;
    let launch = Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    let file = folder.join(format!("{}.train.xz", optimum.set));
    let job = Job::new(vec![file], optimum.lambda);
    let trained = dbpg::train(&mut cluster, &job, |_| {}).unwrap();
    cluster.shutdown().unwrap();
    trained
}

/// Weights that the table counts.
fn nonzeros(trained: &Trained) -> usize {
    trained.model.iter().filter(|(_, weight)| weight.abs() > 1e-9).count()
}

/// Trains with the defaults on a cluster of that shape and holds the result against the table.
fn check(folder: &Path, optimum: &Optimum, shape: (usize, usize)) -> f64 {
    let Optimum { set, lambda, objective, .. } = optimum;
    let trained = train(folder, optimum, shape);
    let gap = trained.objective / objective - 1.0;
    let (servers, workers) = shape;
    println!(
        "{set:12} lambda {lambda:5}, {workers} workers, {servers} servers: gap {gap:9.1e}, {} passes, {:.2} s, {} of {} weights",
        trained.passes,
        trained.seconds,
        nonzeros(&trained),
        optimum.nonzeros
    );
    assert!(trained.converged, "{optimum:?} {shape:?}: {} passes", trained.passes);
    assert!((-1e-9..=1e-6).contains(&gap), "{optimum:?} {shape:?}: {gap:e}");
    trained.objective
}

fn check_set(set: &str) {
    let Some(folder) = data_folder() else { return };
    let of_set = |optimum: &Optimum| optimum.set == set && optimum.size == "small";
    let optima: Vec<Optimum> = optima(&folder).into_iter().filter(of_set).collect();
    assert!(!optima.is_empty(), "{set} is not in the table");
    for optimum in optima {
        let alone = check(&folder, &optimum, (1, 1));
        for shape in [(1, 2), (1, 4), (3, 1), (3, 2), (3, 4)] {
            let shared = check(&folder, &optimum, shape);
            let apart = shared / alone - 1.0;
            assert!(apart.abs() <= 1e-9, "{optimum:?} {shape:?}: {apart:e}");
        }
    }
}

#[test]
fn heart_scale() {
    check_set("heart_scale");
}

#[test]
fn rcv1_small() {
    check_set("rcv1_small");
}

#[test]
fn criteo_tiny() {
    check_set("criteo_tiny");
}

#[test]
fn agaricus() {
    check_set("agaricus");
}

#[test]
fn a9a() {
    check_set("a9a");
}

/// Not needed for the claim, and slow without optimisation; `--release -- --ignored --nocapture` prints it.
#[test]
#[ignore = "medium"]
fn farm_ads() {
    let Some(folder) = data_folder() else { return };
    for optimum in optima(&folder).into_iter().filter(|optimum| optimum.set == "farm_ads") {
        check(&folder, &optimum, (1, 1));
        check(&folder, &optimum, (1, 2));
    }
}
