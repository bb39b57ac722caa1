//! Goal: trainings that share a cluster find their own optima, in turn and at once, whatever others
//! do there. Method: one cluster of threads; its driver trains, and so do drivers that attach to
//! it, with other data and λ. Their objectives are those of trainings with a cluster of their own.

use crate::support::example;
use crate::vans;
use std::path::{Path, PathBuf};

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::dbpg::{self, Job, Tail, Trained};
use example::Example;

/// Largest relative difference between two optima.
const NEAR: f64 = 1e-12;

fn cluster() -> Cluster {
    let node = vans::node(vans::any());
    let config = ClusterConfig { servers: 2, workers: 2, threads: 1, node };
    let launch = Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    Cluster::launch(&config, launch).unwrap()
}

/// The example set, or every second row of it.
fn file(every: usize) -> PathBuf {
    let name = format!("caravan-shared-{every}-{}.train", std::process::id());
    let path = std::env::temp_dir().join(name);
    let rows = Example::new().libsvm();
    let rows: Vec<&str> = rows.lines().step_by(every).collect();
    std::fs::write(&path, rows.join("\n")).unwrap();
    path
}

fn job(file: &Path, lambda: f64) -> Job {
    Job { epsilon: 1e-13, passes_max: 2000, ..Job::new(vec![file.to_owned()], lambda) }
}

fn train(cluster: &mut Cluster, job: &Job) -> Trained {
    let trained = dbpg::train(cluster, job, |_| {}).unwrap();
    assert!(trained.converged, "{} passes", trained.passes);
    trained
}

fn check(what: &str, trained: &Trained, alone: &Trained) {
    let gap = (trained.objective / alone.objective - 1.0).abs();
    println!(
        "{what}: {} with gap {gap:.1e}, {} weights",
        trained.objective,
        trained.model.iter().count()
    );
    assert!(gap <= NEAR, "{what}: {gap:e}");
    assert_eq!(trained.model.iter().count(), alone.model.iter().count(), "{what}");
}

#[test]
fn trainings_in_turn_and_at_once_find_their_own_optima() {
    let files = [file(1), file(2)];
    let tailed = Job { tail: Some(Tail::new(2)), intercept: true, ..job(&files[1], 0.5) };
    let jobs = [job(&files[0], 1.0), tailed, job(&files[1], 2.0)];
    let alone = jobs.each_ref().map(|job| {
        let mut cluster = cluster();
        let trained = train(&mut cluster, job);
        cluster.shutdown().unwrap();
        trained
    });
    let mut own = cluster();
    for (n, job) in jobs.iter().enumerate() {
        check(&format!("{n} in turn"), &train(&mut own, job), &alone[n]);
    }
    // A training that fails midway leaves nothing in the way of the next.
    assert!(dbpg::train(&mut own, &Job { passes_max: 0, ..jobs[0].clone() }, |_| {}).is_ok());
    let nowhere = job(Path::new("/nowhere"), 1.0);
    dbpg::train(&mut own, &nowhere, |_| {}).unwrap_err();
    let shared = own.config().node.clone();
    std::thread::scope(|scope| {
        let others = [(1, "b"), (2, "c")].map(|(n, name)| {
            let (job, shared) = (&jobs[n], &shared);
            let run = move || {
                let mut cluster = Cluster::attach(shared, name).unwrap();
                let trained = [train(&mut cluster, job), train(&mut cluster, job)];
                cluster.shutdown().unwrap();
                trained
            };
            (n, scope.spawn(run))
        });
        for _ in 0..2 {
            check("0 at once", &train(&mut own, &jobs[0]), &alone[0]);
        }
        for (n, other) in others {
            let trained = other.join().unwrap();
            trained.iter().for_each(|it| check(&format!("{n} at once"), it, &alone[n]));
        }
    });
    let mut client = own.client().unwrap();
    for namespace in ["", "b", "c"] {
        client.admin().set_namespace(namespace);
        assert_eq!(client.admin().drop_tables("").unwrap(), 0, "{namespace:?} left tables");
    }
    drop(client);
    own.shutdown().unwrap();
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
}
