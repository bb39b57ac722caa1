//! Goal: DBPG on a cluster does exactly what the single-threaded reference does, pass by pass.
//! Method: an embedded cluster of threads over real sockets, against `support/reference.rs` and the
//! published figures.

use crate::support::example;
use crate::support::jobs;
use crate::support::reference;
use crate::vans;
use std::path::PathBuf;
use std::sync::OnceLock;

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, NodeConfig, Van};
use caravan_learn::dbpg::blocks::Order;
use caravan_learn::dbpg::{self, Filters, Job, Progress, Trained};
use caravan_learn::replace_file::replace;
use example::Example;
use jobs::{published, reference};
use reference::solve;

/// The example set as a file, written once and whole, because other tests may be reading it.
fn example_file() -> PathBuf {
    static WRITTEN: OnceLock<PathBuf> = OnceLock::new();
    let write = || {
        let path = std::env::temp_dir().join("caravan-example.train");
        replace(&path, Example::new().libsvm().as_bytes()).unwrap();
        path
    };
    WRITTEN.get_or_init(write).clone()
}

fn cluster(servers: usize, workers: usize) -> Cluster {
    cluster_on(vans::any(), servers, workers)
}

fn cluster_on(van: Van, servers: usize, workers: usize) -> Cluster {
    cluster_of(vans::node(van), servers, workers)
}

fn cluster_of(node: NodeConfig, servers: usize, workers: usize) -> Cluster {
    let config = ClusterConfig { servers, workers, threads: 1, node };
    let launch = Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    Cluster::launch(&config, launch).unwrap()
}

fn train(servers: usize, workers: usize, job: &Job) -> (Trained, Vec<Progress>) {
    train_on(cluster(servers, workers), job)
}

fn train_on(mut cluster: Cluster, job: &Job) -> (Trained, Vec<Progress>) {
    let mut passes = Vec::new();
    let trained = dbpg::train(&mut cluster, job, |progress| passes.push(*progress)).unwrap();
    cluster.shutdown().unwrap();
    (trained, passes)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

fn assert_follows(job: &Job, servers: usize, workers: usize) {
    let example = Example::new();
    let expected = solve(&[example.part()], &reference(job));
    let (trained, passes) = train(servers, workers, job);
    assert_eq!(
        passes.len(),
        expected.progress.len(),
        "{workers} workers, {servers} servers, {job:?}"
    );
    for (pass, row) in passes.iter().zip(&expected.progress) {
        assert!(near(pass.objective, row.objective), "{pass:?} is not {row:?}");
        assert!(near(pass.violation, row.violation), "{pass:?} is not {row:?}");
        assert_eq!(
            (pass.nnz, pass.active, pass.stop),
            (row.nonzeros, row.active, row.stop),
            "{pass:?}"
        );
        if workers == 1 {
            assert_eq!(pass.columns_computed, row.columns_computed, "{pass:?}");
        }
    }
    assert_eq!(trained.converged, expected.converged());
    for (key, weight) in expected.keys.iter().zip(&expected.weights) {
        assert!((trained.model.weight(*key) - weight).abs() <= 1e-9, "key {key}");
    }
}

#[test]
fn the_published_table() {
    let job = published(example_file(), 6);
    let (trained, passes) = train(1, 1, &job);
    let last = passes[14];
    assert!(
        near(passes[0].objective, 95.70077799972762) && near(last.objective, 82.25904665549493)
    );
    assert_eq!(
        (passes.len(), last.columns_computed, last.nnz, trained.converged),
        (15, 584, 31, true)
    );
    assert_follows(&job, 1, 1);
}

#[test]
fn the_shape_of_the_cluster_changes_nothing() {
    for (servers, workers) in [(1, 2), (1, 4), (3, 1), (3, 2), (3, 4)] {
        assert_follows(&published(example_file(), 6), servers, workers);
    }
}

/// With one request at a time on a lane, blocks follow each other, and servers that ask for unknown
/// keys still get them.
#[test]
fn any_documented_number_of_credits_gives_the_same_model() {
    let filters = Filters { screen: false, .."key-cache".parse().unwrap() };
    let job = Job { delay: 3, exact_delay: true, filters, ..published(example_file(), 12) };
    let (expected, _) = train(2, 2, &job);
    for credits in [1, 2, 47] {
        let node = NodeConfig { credits, ..vans::node(vans::any()) };
        let (trained, _) = train_on(cluster_of(node, 2, 2), &job);
        assert_eq!(trained.converged, expected.converged, "{credits} credits");
        assert_eq!(trained.model, expected.model, "{credits} credits");
    }
}

/// Gains come from all servers, each of which has a part of every block.
#[test]
fn blocks_are_visited_by_importance_whatever_the_shape() {
    let job = Job { order: Order::Importance, ..published(example_file(), 12) };
    assert_follows(&job, 1, 1);
    assert_follows(&job, 3, 2);
    let (_, by_key) = train(1, 1, &published(example_file(), 12));
    let (_, passes) = train(1, 1, &job);
    assert_eq!(passes[0].objective, by_key[0].objective, "nothing is known before the first pass");
    assert_ne!(passes[1].objective, by_key[1].objective);
}

#[test]
fn exact_delays_follow_the_grid() {
    for (blocks, delay, rate) in
        [(6, 1, 1.0), (12, 4, 1.0), (6, 4, 0.7), (30, 8, 1.0), (60, 4, 0.5)]
    {
        let mut job = Job {
            delay,
            exact_delay: true,
            kkt_ratio: f64::INFINITY,
            ..published(example_file(), blocks)
        };
        job.proximal.learning_rate = rate;
        assert_follows(&job, 1, 1);
    }
}

#[test]
fn resets_and_delays_go_together() {
    let job =
        Job { delay: 2, exact_delay: true, reset_every: Some(5), ..published(example_file(), 12) };
    assert_follows(&job, 1, 1);
    assert_follows(&job, 3, 2);
}

/// A threshold of 0 from the second pass on filters far too much; only correct resets repair that.
#[test]
fn an_eager_filter_is_repaired_by_resets() {
    let job = Job { kkt_ratio: 0.0, epsilon: 1e-4, ..published(example_file(), 6) };
    assert_follows(&job, 1, 1);
    assert_follows(&job, 3, 4);
}

#[test]
fn any_freshness_reaches_the_optimum() {
    for delay in [1, 3] {
        let job = Job { delay, epsilon: 1e-10, ..Job::new(vec![example_file()], 1.0) };
        let (trained, _) = train(2, 2, &job);
        let gap = trained.objective / Example::OPTIMUM - 1.0;
        assert!(trained.converged && gap.abs() < 1e-7, "{gap:e}");
    }
}

/// The published grid has no result within 300 passes for these; an adapting delay finds the
/// optimum.
#[test]
fn a_delay_that_diverges_is_halved_until_it_does_not() {
    for (blocks, delay) in [(6, 8), (6, 4), (12, 8)] {
        let fixed = Job {
            delay,
            exact_delay: true,
            kkt_ratio: f64::INFINITY,
            epsilon: 1e-9,
            ..published(example_file(), blocks)
        };
        let (diverged, passes) = train(1, 1, &fixed);
        assert!(!diverged.converged, "{blocks} blocks, delay {delay}");
        assert!(passes.iter().all(|pass| pass.delay == delay));
        let adapting = Job { adapt_delay: true, ..fixed };
        let (trained, passes) = train(2, 2, &adapting);
        let gap = trained.objective / Example::OPTIMUM - 1.0;
        assert!(trained.converged && gap.abs() < 1e-6, "{blocks} blocks, delay {delay}: {gap:e}");
        let delays: Vec<u64> = passes.iter().map(|pass| pass.delay).collect();
        assert!(delays.is_sorted_by(|a, b| a >= b), "{delays:?}");
        assert_eq!((delays[0], delays[delays.len() - 1]), (delay, 0), "{delays:?}");
        let rises =
            passes.windows(2).filter(|pair| pair[1].objective > pair[0].objective * (1.0 + 1e-9));
        assert!(rises.count() <= 5, "{passes:?}");
    }
}

/// With safe steps and the timing of a real cluster, on as few blocks as possible.
#[test]
fn an_adapting_delay_reaches_the_optimum() {
    for delay in [1, 5, 100] {
        let job = Job {
            delay,
            adapt_delay: true,
            blocks: Some(3),
            epsilon: 1e-11,
            ..Job::new(vec![example_file()], 1.0)
        };
        let (trained, passes) = train(2, 2, &job);
        let gap = trained.objective / Example::OPTIMUM - 1.0;
        assert!(trained.converged && gap.abs() < 1e-9, "{gap:e}");
        assert_eq!(passes.last().unwrap().delay, 0);
    }
}

/// Rounds over prior groups are passes over their blocks without filter and delay.
#[test]
fn prior_groups_are_visited_before_the_first_pass() {
    let example = Example::new();
    let job = Job { kkt_ratio: f64::INFINITY, ..published(example_file(), 6) };
    let expected = solve(&[example.part()], &reference(&job));
    let all = Job { prior: vec![(0, 30), (20, 59)], ..job.clone() };
    let (trained, passes) = train(2, 2, &all);
    assert!(near(passes[0].objective, expected.progress[5].objective), "{:?}", passes[0]);
    assert!(
        trained.converged && near(trained.objective, expected.progress.last().unwrap().objective)
    );
    // Keys 5 to 15 lie in the first two of six blocks.
    let some = Job { prior: vec![(5, 15)], delay: 1, ..job };
    let (_, passes) = train(1, 1, &some);
    assert_eq!(passes[0].columns_computed, 5 * 20 + 60);
    assert_eq!(passes[1].columns_computed, 5 * 20 + 2 * 60);
}

#[test]
fn second_order_steps_save_passes_and_change_no_answer() {
    let plain = Job { newton: None, ..Job::new(vec![example_file()], 1.0) };
    let (expected, _) = train(1, 1, &plain);
    for (servers, workers, delay) in [(1, 1, 0), (3, 4, 0), (2, 2, 3)] {
        let job = Job { newton: Job::new(Vec::new(), 1.0).newton, delay, ..plain.clone() };
        let (trained, passes) = train(servers, workers, &job);
        let gap = trained.objective / Example::OPTIMUM - 1.0;
        assert!(trained.converged && gap.abs() < 1e-12, "{gap:e}");
        assert!(trained.passes < expected.passes, "{} passes", trained.passes);
        let last = passes.last().unwrap();
        assert_eq!(last.nnz, trained.model.nonzeros());
    }
}

/// With delay 0 nothing depends on timing: the sum of two workers' pushes does not depend on their
/// order.
#[test]
fn every_van_trains_the_same_model_to_the_bit() {
    for (servers, workers) in [(1, 1), (3, 2)] {
        for job in [published(example_file(), 6), Job::new(vec![example_file()], 1.0)] {
            let bits = |van| {
                let (trained, passes) = train_on(cluster_on(van, servers, workers), &job);
                let numbers = |pass: &Progress| [pass.objective, pass.violation].map(f64::to_bits);
                let weights = trained.model.iter().map(|(key, weight)| (key, weight.to_bits()));
                (weights.collect::<Vec<_>>(), passes.iter().map(numbers).collect::<Vec<_>>())
            };
            let expected = bits(Van::Tcp);
            assert!(!expected.0.is_empty() && expected.1.len() > 3);
            for van in vans::vans() {
                assert!(bits(van) == expected, "{van}, {workers} workers, {servers} servers");
            }
        }
    }
}

/// Sums over rows are of integers, so it does not matter which worker has which rows.
#[test]
fn the_shape_of_the_cluster_changes_no_bit_of_a_second_order_run() {
    let bits = |servers, workers| {
        let job = Job { newton: Some(16), ..Job::new(vec![example_file()], 0.5) };
        let (trained, passes) = train(servers, workers, &job);
        assert!(trained.converged && passes.len() > 3, "{passes:?}");
        let numbers = |pass: &Progress| [pass.objective, pass.bound.unwrap()].map(f64::to_bits);
        let weights = trained.model.iter().map(|(key, weight)| (key, weight.to_bits()));
        (weights.collect::<Vec<_>>(), passes.iter().map(numbers).collect::<Vec<_>>())
    };
    let expected = bits(1, 1);
    for (servers, workers) in [(1, 2), (1, 4), (2, 1), (3, 2), (3, 4)] {
        assert!(bits(servers, workers) == expected, "{workers} workers, {servers} servers");
    }
}

#[test]
fn wrong_jobs_are_refused() {
    let mut cluster = cluster(1, 2);
    let mut refused = |job: &Job| dbpg::train(&mut cluster, job, |_| {}).unwrap_err().to_string();
    let nowhere = refused(&Job::new(vec!["/nowhere.train".into()], 1.0));
    assert!(nowhere.contains("/nowhere.train") && nowhere.contains("worker"), "{nowhere}");
    let negative = refused(&Job::new(vec![example_file()], -1.0));
    assert!(negative.contains("lambda") && negative.contains("-1"), "{negative}");
    let exact = refused(&Job { exact_delay: true, ..Job::new(vec![example_file()], 1.0) });
    assert!(exact.contains("delay") && exact.contains("second-order"), "{exact}");
    let none = refused(&Job { newton: Some(0), ..Job::new(vec![example_file()], 1.0) });
    assert!(none.contains("newton") && none.contains("not 0"), "{none}");
    cluster.shutdown().unwrap();
}
