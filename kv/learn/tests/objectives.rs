//! Goal: every variant of the objective is minimised, by all parts of the method: an elastic net,
//! an intercept, row weights, a path of λ, a start other than 0.
//! Method: clusters of threads against the single-threaded reference pass by pass, and against the
//! optimality conditions, computed here from the rows themselves.

use crate::support;
use crate::support::example;
use crate::support::reference;
use crate::vans;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::data::{self, Examples};
use caravan_learn::dbpg::gradient::Curvature;
use caravan_learn::dbpg::proximal::Proximal;
use caravan_learn::dbpg::{self, Driver, Filters, Job, Trained};
use caravan_learn::model::Model;
use example::{Example, Part};
use reference::{Settings, solve};

/// λ₂, whether there is an intercept, and the weight of positive rows.
const VARIANTS: [(f64, bool, f64); 5] =
    [(0.5, false, 1.0), (0.0, true, 1.0), (0.0, false, 3.0), (0.3, true, 0.5), (2.0, true, 4.0)];

fn cluster(servers: usize, workers: usize) -> Cluster {
    let node = vans::node(vans::any());
    let config = ClusterConfig { servers, workers, threads: 1, node };
    let launch = Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    Cluster::launch(&config, launch).unwrap()
}

fn train(servers: usize, workers: usize, job: &Job) -> Trained {
    let mut cluster = cluster(servers, workers);
    let trained = dbpg::train(&mut cluster, job, |_| {}).unwrap();
    cluster.shutdown().unwrap();
    trained
}

/// The example set as a separate file for each test.
fn example_file(test: &str) -> PathBuf {
    let name = format!("caravan-objectives-{test}-{}.train", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, Example::new().libsvm()).unwrap();
    path
}

fn job(file: &Path, lambda: f64, (l2, intercept, positive_weight): (f64, bool, f64)) -> Job {
    let mut job = Job::new(vec![file.to_path_buf()], lambda);
    job.proximal.l2 = l2;
    Job { intercept, positive_weight, epsilon: 1e-13, ..job }
}

fn examples(file: &Path) -> Examples {
    data::read(&[file.to_path_buf()], data::Shard::ALL, 1.try_into().unwrap()).unwrap()
}

/// How far a model is from the optimality conditions, and F there, computed from the rows alone.
fn residual(examples: &Examples, job: &Job, lambda: f64, model: &Model) -> (f64, f64) {
    let mut gradient = std::collections::BTreeMap::<u64, f64>::new();
    let (mut objective, mut pull_of_all) = (0.0, 0.0);
    for row in examples.iter() {
        let (y, c) = if row.label > 0.0 { (1.0, job.positive_weight) } else { (-1.0, 1.0) };
        let margin = y * model.margin(row);
        objective += c * (1.0 + (-margin).exp()).ln();
        let pull = -c * y / (1.0 + margin.exp());
        pull_of_all += pull;
        for (at, &key) in row.keys.iter().enumerate() {
            *gradient.entry(key).or_default() += pull * row.values.map_or(1.0, |values| values[at]);
        }
    }
    let l2 = job.proximal.l2;
    let mut worst = if job.intercept { f64::abs(pull_of_all) } else { 0.0 };
    for (key, g) in gradient {
        let w = model.weight(key);
        let off = match w {
            0.0 => (g.abs() - lambda).max(0.0),
            _ => (g + l2 * w + lambda * w.signum()).abs(),
        };
        worst = worst.max(off);
    }
    let penalty = |w: f64| lambda * w.abs() + 0.5 * l2 * w * w;
    (worst, objective + model.iter().map(|(_, weight)| penalty(weight)).sum::<f64>())
}

/// Rows in Criteo's format, whose fields have few values each.
fn fields_file() -> PathBuf {
    let row = |n: u64| {
        let field = |field: u64| match n.wrapping_mul(2 * field + 1) >> 2 & 7 {
            0 => String::new(),
            value => format!("{:x}", value * (field % 3 + 1) % 9),
        };
        let fields: Vec<String> = (0..39).map(field).collect();
        format!("{}\t{}\n", u64::from(n.is_multiple_of(3) ^ (n % 7 > 2)), fields.join("\t"))
    };
    let name = format!("caravan-objectives-fields-{}.train", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, (0..300).map(row).collect::<String>()).unwrap();
    path
}

/// Screened or not, with the intercept's block before those of the fields.
#[test]
fn fields_that_are_a_block_each_have_the_optimum_of_the_others() {
    let file = fields_file();
    let examples = examples(&file);
    for (servers, workers, screen) in [(1, 1, true), (2, 3, true), (2, 2, false)] {
        let mut job = Job { group_bits: 6, ..job(&file, 2.0, VARIANTS[1]) };
        job.filters.screen = screen;
        let trained = train(servers, workers, &job);
        let (worst, objective) = residual(&examples, &job, 2.0, &trained.model);
        assert!(worst < 1e-4, "{servers} servers, {workers} workers: {worst}");
        assert!((objective - trained.objective).abs() < 1e-8 * objective);
        assert!(trained.blocks == 40 || screen && trained.blocks < 40, "{}", trained.blocks);
        let other = train(servers, workers, &Job { group_bits: 0, ..job });
        assert!((other.objective - trained.objective).abs() < 1e-8 * objective);
    }
    // More groups than keys, and nothing left of them.
    let job = Job { group_bits: 16, ..job(&file, 1e6, VARIANTS[2]) };
    assert_eq!(train(1, 2, &job).model.iter().count(), 0);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn every_variant_meets_its_optimality_conditions() {
    let file = example_file("conditions");
    let examples = examples(&file);
    for variant in VARIANTS {
        for (lambda, newton) in [(1.0, true), (4.0, true), (1.0, false), (0.0, true)] {
            if lambda == 0.0 && variant.0 == 0.0 {
                continue; // separable or nearly so: no useful minimum
            }
            let mut job = job(&file, lambda, variant);
            job.newton = job.newton.filter(|_| newton);
            let trained = train(2, 3, &job);
            let (worst, objective) = residual(&examples, &job, lambda, &trained.model);
            assert!(trained.converged, "{variant:?}");
            assert!(worst < 1e-4, "{variant:?} lambda {lambda}, newton {newton}: {worst:e} off");
            let off = trained.objective / objective - 1.0;
            assert!(off.abs() < 1e-12, "{variant:?} lambda {lambda}: it says {off:e} else");
            assert_eq!(trained.model.intercept() != 0.0, variant.1, "{variant:?}");
        }
    }
}

/// The example with row weights, and with a column of ones after the others if there is an
/// intercept.
fn with_reference(variant: (f64, bool, f64), servers: usize, workers: usize, file: &Path) {
    let (l2, intercept, positive_weight) = variant;
    let example = Example::new();
    let part = example.part();
    let labels: Vec<f64> =
        part.labels.iter().map(|&y| if y > 0.0 { positive_weight } else { y }).collect();
    let mut columns = part.columns.clone();
    let free = intercept.then_some(60);
    if let Some(key) = free {
        columns.push_ones(key, labels.len());
    }
    let proximal = Proximal { l2, free, ..Proximal::new(1.0) };
    for curvature in [Curvature::Published, Curvature::Safe] {
        let settings = Settings {
            proximal,
            curvature,
            epsilon: 1e-9,
            reset_every: None,
            ..Settings::new(1.0, 12)
        };
        let expected = solve(&[Part { columns: &columns, labels: &labels }], &settings);
        let job = Job {
            curvature,
            epsilon: 1e-9,
            blocks: Some(12),
            reset_every: None,
            passes_max: settings.passes_max,
            filters: Filters { screen: false, ..Filters::default() },
            newton: None,
            ..job(file, 1.0, variant)
        };
        let mut cluster = cluster(servers, workers);
        let mut passes = Vec::new();
        let trained = dbpg::train(&mut cluster, &job, |pass| passes.push(*pass)).unwrap();
        cluster.shutdown().unwrap();
        assert_eq!(passes.len(), expected.progress.len(), "{variant:?} {curvature:?}");
        for (pass, row) in passes.iter().zip(&expected.progress) {
            let off = pass.objective / row.objective - 1.0;
            assert!(off.abs() < 1e-9, "{variant:?}: {pass:?} is not {row:?}");
            assert_eq!((pass.nnz, pass.active), (row.nonzeros, row.active), "{variant:?} {pass:?}");
        }
        for (key, weight) in expected.keys.iter().zip(&expected.weights) {
            let found = match free == Some(*key) {
                true => trained.model.intercept(),
                false => trained.model.weight(*key),
            };
            assert!((found - weight).abs() <= 1e-6, "{variant:?} key {key}: {found}, {weight}");
        }
    }
}

#[test]
fn clusters_follow_the_reference() {
    let file = example_file("reference");
    for variant in VARIANTS {
        with_reference(variant, 1, 1, &file);
        with_reference(variant, 2, 3, &file);
    }
}

#[test]
fn a_dense_set_with_values_meets_its_conditions() {
    let Some(folder) = support::data_folder() else { return };
    let file = folder.join("heart_scale.train.xz");
    let examples = examples(&file);
    for (variant, lambda) in [((1.0, true, 2.0), 1.0), ((0.0, true, 0.3), 10.0)] {
        let job = job(&file, lambda, variant);
        let trained = train(1, 2, &job);
        let (worst, _) = residual(&examples, &job, lambda, &trained.model);
        assert!(trained.converged && worst < 1e-4, "{variant:?}: {worst:e}");
    }
}

#[test]
fn a_path_is_as_good_as_its_lambdas_one_by_one() {
    let file = example_file("path");
    for variant in [(0.0, false, 1.0), (0.3, true, 2.0)] {
        let of_path = job(&file, 1.0, variant);
        let mut cluster = cluster(2, 2);
        let mut driver = Driver::load(&mut cluster, &of_path).unwrap();
        for lambda in [10.0, 3.0, 1.0] {
            let trained = driver.solve(lambda, |pass| assert_eq!(pass.lambda, lambda)).unwrap();
            let alone = train(1, 1, &job(&file, lambda, variant));
            let off = trained.objective / alone.objective - 1.0;
            assert!(trained.converged && off.abs() < 1e-11, "{variant:?} {lambda}: {off:e}");
            assert_eq!(trained.model.nonzeros(), alone.model.nonzeros(), "{variant:?} {lambda}");
            assert_eq!(trained.lambda, lambda);
        }
        let below = driver.solve(0.5, |_| {}).unwrap_err().to_string();
        assert!(below.contains("0.5") && below.contains("screened"), "{below}");
        cluster.shutdown().unwrap();
    }
}

#[test]
fn the_largest_lambda_is_where_weights_begin() {
    let file = example_file("largest");
    for variant in [(0.0, false, 1.0), (0.0, true, 1.0), (0.5, true, 3.0)] {
        let of_path = job(&file, 1.0, variant);
        let mut cluster = cluster(2, 2);
        let mut driver = Driver::load(&mut cluster, &of_path).unwrap();
        let largest = driver.lambda_max().unwrap();
        let above = driver.solve(largest * 1.001, |_| {}).unwrap();
        let below = driver.solve(largest * 0.99, |_| {}).unwrap();
        assert_eq!(above.model.nonzeros(), 0, "{variant:?} {largest}");
        assert!(below.model.nonzeros() > 0, "{variant:?} {largest}");
        cluster.shutdown().unwrap();
    }
}

#[test]
fn a_warm_start_goes_on_where_another_run_has_ended() {
    let file = example_file("warm");
    for variant in [(0.0, false, 1.0), (0.3, true, 2.0)] {
        let cold = Job { newton: None, epsilon: 1e-11, ..job(&file, 1.0, variant) };
        let whole = train(1, 2, &cold);

        let interrupted = Job { stop: Default::default(), ..cold.clone() };
        let mut cluster = cluster(2, 1);
        let half = dbpg::train(&mut cluster, &interrupted, |pass| {
            interrupted.stop.store(pass.pass == 3, Ordering::Relaxed);
        });
        let half = half.unwrap();
        cluster.shutdown().unwrap();
        assert_eq!((half.passes, half.stopped, half.converged), (4, true, false));

        let resumed = Job { warm_start: Some(half.model.clone()), ..cold.clone() };
        let mut cluster = self::cluster(2, 2);
        let mut first = None;
        let trained = dbpg::train(&mut cluster, &resumed, |pass| {
            first.get_or_insert(pass.objective);
        });
        let trained = trained.unwrap();
        cluster.shutdown().unwrap();
        assert!(first.unwrap() < half.objective, "{first:?} from {}", half.objective);
        let off = trained.objective / whole.objective - 1.0;
        assert!(trained.converged && off.abs() < 1e-9, "{off:e}");
        assert!(trained.passes < whole.passes, "{} of {}", trained.passes, whole.passes);
        assert_eq!(trained.left_out, 0);
    }
}

/// A weight whose key is not in the data would be penalised for nothing.
#[test]
fn weights_of_unknown_keys_are_left_out_and_counted() {
    let file = example_file("unknown");
    let known = train(1, 1, &job(&file, 1.0, (0.0, false, 1.0)));
    let weights = known.model.iter().chain([(1000, 5.0), (u64::MAX, -5.0)]).collect();
    let model = Model::new(weights).unwrap().with_intercept(0.5).unwrap();
    let warm = Job { warm_start: Some(model), ..job(&file, 1.0, (0.0, false, 1.0)) };
    let trained = train(2, 2, &warm);
    assert_eq!(trained.left_out, 3, "two keys and an intercept that the job does not have");
    assert_eq!((trained.model.weight(1000), trained.model.intercept()), (0.0, 0.0));
    assert!((trained.objective / known.objective - 1.0).abs() < 1e-11);
}

#[test]
fn variants_that_make_no_sense_are_refused() {
    let file = example_file("refused");
    let text = "+1 18446744073709551615:1\n-1 3:1\n";
    std::fs::write(&file, text).unwrap();
    let mut cluster = cluster(1, 1);
    for (variant, part) in [
        ((-1.0, false, 1.0), "l2"),
        ((f64::NAN, false, 1.0), "l2"),
        ((0.0, false, 0.0), "positive"),
        ((0.0, false, f64::INFINITY), "positive"),
        ((0.0, true, 1.0), "18446744073709551615"),
    ] {
        let refused = dbpg::train(&mut cluster, &job(&file, 1.0, variant), |_| {});
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(part), "{variant:?}: {refused}");
    }
    cluster.shutdown().unwrap();
}
