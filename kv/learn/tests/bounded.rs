//! Goal: training with a limit of memory takes the same steps as without one, and keeps the limit.
//! Method: clusters of threads on data of several blocks a worker; models equal to the bit, bytes
//! as counted, and limits that are too low.

use crate::vans;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::data::clicks::{self, Clicks, Format};
use caravan_learn::dbpg::{self, Job, Trained};
use caravan_learn::model::Model;

/// Rows of a block on disk.
const BLOCK: usize = 1 << 16;

fn train(workers: usize, job: &Job) -> caravan_learn::Result<Trained> {
    let node = vans::node(vans::any());
    let config = ClusterConfig { servers: 2, workers, threads: 1, node };
    let launch = Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    let trained = dbpg::train(&mut cluster, job, |_| ());
    if trained.is_ok() {
        cluster.shutdown().unwrap();
    }
    trained
}

/// The job with its rows on disk.
fn bounded(job: &Job, folder: &tempfile::TempDir, bytes: u64) -> Job {
    Job { cache: Some(folder.path().join("cache")), memory: Some(bytes), ..job.clone() }
}

fn clicks(folder: &tempfile::TempDir) -> PathBuf {
    let rows = 2 * BLOCK as u64 + 1000;
    let clicks = Clicks { rows, test_rows: 1, slots: 5, bag: 2, k_max: 12, ..Clicks::default() };
    let (out, stop) = (folder.path().join("c"), AtomicBool::new(false));
    clicks::generate(&clicks, &out, Format::Compact, NonZeroUsize::MIN, &stop).unwrap();
    out.with_extension("train")
}

#[test]
fn rows_on_disk_give_the_same_model_to_the_bit_within_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(vec![clicks(&folder)], 20.0);
    let whole = train(1, &job).unwrap();
    assert!(whole.converged && whole.data_bytes.is_none());
    assert!(whole.model.nonzeros() > 10, "{} weights", whole.model.nonzeros());
    let limit = 80 << 20;
    let mut peak = 0;
    for (workers, threads) in [(1, 2), (2, 1)] {
        let on_disk = train(workers, &Job { threads, ..bounded(&job, &folder, limit) }).unwrap();
        assert_eq!(on_disk.model, whole.model, "{workers} workers");
        assert_eq!(on_disk.objective.to_bits(), whole.objective.to_bits());
        assert_eq!(on_disk.passes, whole.passes);
        peak = on_disk.data_bytes.unwrap();
        assert!(peak < limit, "{workers} workers took {peak} bytes");
    }
    // A byte less than was needed, less than columns need, and less than any worker does.
    for (limit, what) in [(peak - 1, ""), ((48 << 20) + 2_900_000, "columns"), (1 << 20, "rows")] {
        let error = train(2, &bounded(&job, &folder, limit)).unwrap_err();
        let error = caravan_kv::error::with_sources(&error);
        assert!(error.contains(what) && error.contains("is the least that can"), "{error}");
    }
}

/// Values, wide keys, an intercept, weights of rows, and weights to begin with.
#[test]
fn values_and_an_intercept_and_a_warm_start_give_the_same_model_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for row in 0..BLOCK + 5000 {
        let draw = |of: usize, salt: usize| (row * 7919 + salt) % 10_007 % of;
        let label = if draw(7, 1) + draw(9, 5) < 7 { 1 } else { -1 };
        let value = [0.5, 1.0, -1.25, 2.0][draw(4, 2)];
        let last = u64::MAX - 1 - draw(23, 3) as u64;
        writeln!(text, "{label} {}:{value} {}:1 {last}:0.25", draw(40, 4) + 1, draw(9, 5) + 100)
            .unwrap();
    }
    let file = folder.path().join("values");
    std::fs::write(&file, text).unwrap();
    let warm_start = Some(Model::new(vec![(3, 0.5), (104, -0.25), (999, 1.0)]).unwrap());
    let mut job = Job { intercept: true, positive_weight: 1.5, ..Job::new(vec![file], 20.0) };
    job.warm_start = warm_start;
    let whole = train(1, &job).unwrap();
    assert!(whole.converged && whole.model.intercept() != 0.0 && whole.model.nonzeros() > 5);
    for workers in [1, 2] {
        let on_disk = train(workers, &bounded(&job, &folder, 90 << 20)).unwrap();
        assert_eq!(on_disk.model, whole.model, "{workers} workers");
        assert_eq!(on_disk.left_out, whole.left_out);
    }
}

#[test]
fn what_needs_columns_in_memory_is_refused_before_anything_runs() {
    let job = Job::new(vec!["f".into()], 1.0);
    let with = |change: fn(&mut Job)| {
        let mut job = Job { cache: Some("c".into()), memory: Some(1 << 30), ..job.clone() };
        change(&mut job);
        job.check()
    };
    assert!(with(|_| ()).is_ok());
    let changes: [fn(&mut Job); 6] = [
        |job| job.cache = None,
        |job| job.newton = None,
        |job| job.delay = 1,
        |job| job.prior = vec![(1, 2)],
        |job| job.group_bits = 3,
        |job| job.filters = "skip=0.5".parse().unwrap(),
    ];
    for change in changes {
        let error = with(change).unwrap_err().to_string();
        assert!(error.contains("a limit of memory needs"), "{error}");
    }
}
