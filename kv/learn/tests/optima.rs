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

fn train(folder: &Path, optimum: &Optimum, servers: usize, workers: usize) -> Trained {
    let mut config = ClusterConfig { servers, workers, ..ClusterConfig::default() };
    config.node.van = Van::Tcp;
    let launch = Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    let file = folder.join(format!("{}.train.xz", optimum.set));
    let job = Job::new(vec![file], optimum.lambda);
    let trace = std::env::var_os("TRACE").is_some();
    let trained = dbpg::train(&mut cluster, &job, |p| {
        if trace {
            eprintln!(
                "   {} {:.2}s F {} gap {:.2e} rel {:.2e} nnz {} active {} viol {:.2e}",
                p.pass,
                p.seconds,
                p.objective,
                p.objective / optimum.objective - 1.0,
                p.relative,
                p.nnz,
                p.active,
                p.violation
            );
        }
    })
    .unwrap();
    cluster.shutdown().unwrap();
    trained
}

#[test]
fn table() {
    let Some(folder) = data_folder() else { return };
    let only = std::env::var("ONLY").unwrap_or("small".into());
    let w: usize = std::env::var("W").unwrap_or("1".into()).parse().unwrap();
    for optimum in optima(&folder) {
        if optimum.size != only
            && format!("{},{}", optimum.set, optimum.lambda) != only
            && optimum.set != only
        {
            continue;
        }
        let t = train(&folder, &optimum, 1, w);
        eprintln!(
            "{:12} {:5} w{w}: passes {:4} {:6.2}s load {:.2}s gap {:9.2e} nnz {} / {} blocks {} conv {}",
            optimum.set,
            optimum.lambda,
            t.passes,
            t.seconds,
            t.load_seconds,
            t.objective / optimum.objective - 1.0,
            t.model.nonzeros(),
            optimum.nonzeros,
            t.blocks,
            t.converged
        );
    }
}
