//! The method in one thread, which other tests compare a cluster with: known passes of the example,
//! rules against each other, and the reference sets.

use crate::support::example;
use crate::support::reference;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use caravan_learn::data::{self, Columns};
use caravan_learn::dbpg::blocks::{BLOCK_RATIO, Order, default_block_count};
use caravan_learn::dbpg::gradient::Curvature;
use caravan_learn::dbpg::schedule::Stop;

use example::{Example, Part};
use reference::{Settings, solve, solve_with};

fn published(blocks: usize) -> Settings {
    let curvature = Curvature::Published;
    Settings { curvature, reset_every: None, ..Settings::new(1.0, blocks) }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

/// Pass, F, non-zeros, threshold, active, violation, columns computed.
type Row = (usize, f64, usize, f64, usize, f64, usize);

#[test]
fn passes_follow_the_published_table() {
    const TABLE: [Row; 7] = [
        (0, 95.70077799972762, 41, 1e20, 60, 9.0, 60),
        (1, 87.23252551569433, 37, 0.45, 48, 0.49363636475149386, 120),
        (2, 84.52721397934064, 36, 0.02468181823757469, 38, 0.0, 168),
        (3, 83.29322816440124, 33, 0.0, 36, 0.0, 206),
        (4, 82.70322089981511, 32, 0.0, 33, 0.0, 242),
        (13, 82.25907062222784, 31, 0.0, 31, 0.0, 524),
        (14, 82.25904665549493, 31, 0.0, 31, 0.0, 584),
    ];
    let example = Example::new();
    let solution = solve(&[example.part()], &published(6));
    assert_eq!(solution.progress.len(), 15);
    assert!(solution.converged());
    for (pass, objective, nonzeros, threshold, active, violation, columns) in TABLE {
        let row = solution.progress[pass];
        assert!(near(row.objective, objective), "pass {pass}: {row:?}");
        assert!(near(row.threshold, threshold), "pass {pass}: {row:?}");
        assert!(near(row.violation, violation), "pass {pass}: {row:?}");
        assert_eq!(row.nonzeros, nonzeros, "pass {pass}: {row:?}");
        assert_eq!(row.columns_computed, columns, "pass {pass}: {row:?}");
        assert_eq!(row.active, active, "pass {pass}: {row:?}");
    }
}

#[test]
fn the_filter_saves_columns_and_changes_no_answer() {
    let example = Example::new();
    let settings = Settings { kkt_ratio: f64::INFINITY, ..published(6) };
    let unfiltered = solve(&[example.part()], &settings).progress;
    let filtered = solve(&[example.part()], &published(6)).progress;
    assert_eq!(unfiltered.len(), 15);
    assert_eq!(unfiltered[14].columns_computed, 900);
    assert_eq!(filtered[14].columns_computed, 584);
    let ratio = filtered[14].objective / unfiltered[14].objective;
    assert!((ratio - 1.0).abs() < 1e-6);
}

/// Passes to ε = 1e-6; 0 for more than 300. Rows are delays 0, 1, 2, 4, 8; columns are rates 1, .7,
/// .5, .3.
type Grid = [[u64; 5]; 4];

#[test]
fn delay_against_step_is_as_published() {
    const DELAYS: [u64; 5] = [0, 1, 2, 4, 8];
    const RATES: [f64; 4] = [1.0, 0.7, 0.5, 0.3];
    const SIX: Grid =
        [[15, 17, 0, 0, 0], [22, 24, 25, 63, 0], [31, 33, 34, 36, 0], [51, 52, 54, 56, 81]];
    const TWELVE: Grid =
        [[15, 16, 16, 59, 0], [22, 23, 23, 24, 40], [31, 32, 32, 33, 35], [50, 52, 52, 53, 55]];
    const THIRTY: Grid =
        [[15, 15, 15, 16, 19], [21, 22, 22, 23, 25], [30, 31, 31, 32, 34], [50, 50, 51, 52, 54]];
    const SIXTY: Grid =
        [[15, 15, 15, 15, 16], [21, 21, 22, 22, 23], [30, 30, 31, 31, 32], [50, 50, 50, 51, 52]];
    let example = Example::new();
    for (blocks, grid) in [(6, SIX), (12, TWELVE), (30, THIRTY), (60, SIXTY)] {
        let passes = RATES.map(|rate| {
            DELAYS.map(|delay| {
                let mut settings =
                    Settings { delay, kkt_ratio: f64::INFINITY, ..published(blocks) };
                settings.proximal.learning_rate = rate;
                let solution = solve(&[example.part()], &settings);
                if solution.converged() { solution.progress.len() as u64 } else { 0 }
            })
        });
        assert_eq!(passes, grid, "{blocks} blocks");
    }
}

/// The reset must repair a filter that is far too eager in the first passes.
#[test]
fn a_reset_brings_filtered_coordinates_back() {
    let example = Example::new();
    let settings = Settings { epsilon: 1e-4, ..published(6) };
    let progress = solve_with(&[example.part()], &settings, |_| 0.0).progress;
    assert_eq!(progress.len(), 13);
    assert_eq!(progress[9].stop, Stop::Reset);
    assert_eq!((progress[9].nonzeros, progress[10].stop), (30, Stop::Continue));
    assert!((progress[10].violation - 0.375).abs() < 1e-4);
    assert!((progress[10].relative - 2.7e-4).abs() < 1e-5);
    let last = progress[12];
    assert_eq!((last.nonzeros, last.stop), (31, Stop::Done));
    let gap = last.objective / Example::OPTIMUM - 1.0;
    assert!((gap - 5.3e-6).abs() < 1e-7, "{gap}");
}

#[test]
fn workers_share_the_rows_and_find_the_same() {
    let shares: Vec<Example> = (0..3).map(|worker| Example::share(worker, 3)).collect();
    let parts: Vec<Part> = shares.iter().map(Example::part).collect();
    let whole = Example::new();
    for settings in [published(6), Settings::new(1.0, 6)] {
        let one = solve(&[whole.part()], &settings);
        let three = solve(&parts, &settings);
        assert_eq!(three.keys, one.keys);
        // A worker sees the overlap of its own rows only, and a row is on one worker.
        assert_eq!(three.progress.len(), one.progress.len());
        for (a, b) in three.progress.iter().zip(&one.progress) {
            assert!(near(a.objective, b.objective));
        }
    }
}

#[test]
fn safe_steps_never_raise_the_objective() {
    let shares: Vec<Example> = (0..4).map(|worker| Example::share(worker, 4)).collect();
    let parts: Vec<Part> = shares.iter().map(Example::part).collect();
    for blocks in [1, 2, 7, 60] {
        for order in [Order::Key, Order::Shuffled { seed: 3 }, Order::Importance] {
            let settings = Settings { order, ..Settings::new(0.3, blocks) };
            let solution = solve(&parts, &settings);
            assert!(solution.converged(), "{blocks} blocks");
            for pair in solution.progress.windows(2) {
                assert!(pair[1].objective <= pair[0].objective * (1.0 + 1e-14), "{pair:?}");
            }
        }
    }
}

/// 16 equal columns in one block: the published bound makes each of them correct the whole error.
#[test]
fn overlapping_columns_overshoot_with_the_published_bound_only() {
    let keys: Vec<u64> = (0..16).collect();
    let ends: Vec<usize> = (1..=16).map(|j| 10 * j).collect();
    let rows: Vec<u32> = (0..160).map(|i| i % 10).collect();
    let labels: Vec<f64> = (0..10).map(|i| if i < 7 { 1.0 } else { -1.0 }).collect();
    let columns = Columns::new(&keys, &ends, rows, None);
    let part = Part { columns: &columns, labels: &labels };
    let settings = |curvature| Settings { curvature, ..Settings::new(0.01, 1) };
    assert!(!solve(&[part], &settings(Curvature::Published)).converged());
    let safe = solve(&[part], &settings(Curvature::Safe));
    assert!(safe.converged());
    let sum: f64 = safe.weights.iter().sum();
    assert!((sum - (7.0f64 / 3.0).ln()).abs() < 1e-2, "{sum}");
}

#[test]
fn delay_and_filter_together_still_reach_the_optimum() {
    let shares: Vec<Example> = (0..2).map(|worker| Example::share(worker, 2)).collect();
    let parts: Vec<Part> = shares.iter().map(Example::part).collect();
    for seed in 0..10 {
        let order = Order::Shuffled { seed };
        let settings = Settings { order, delay: 4, ..Settings::new(1.0, 30) };
        let solution = solve(&parts, &settings);
        assert!(solution.converged(), "seed {seed}");
        let last = solution.progress[solution.progress.len() - 1];
        assert!(last.objective / Example::OPTIMUM - 1.0 < 1e-5, "seed {seed}: {last:?}");
    }
}

#[test]
fn a_large_penalty_leaves_nothing_and_stops() {
    let example = Example::new();
    let solution = solve(&[example.part()], &Settings::new(1e3, 6));
    assert!(solution.converged());
    assert_eq!(solution.progress.len(), 3);
    assert!(solution.weights.iter().all(|&w| w == 0.0));
}

#[test]
fn no_data_is_no_problem() {
    assert!(solve(&[], &Settings::new(1.0, 6)).weights.is_empty());
    let part = Part { columns: &Columns::default(), labels: &[1.0] };
    let solution = solve(&[part], &Settings::new(1.0, 6));
    assert!(solution.converged() && solution.keys.is_empty());
}

/// Slow: minutes without optimisation. Prints passes and distance to the known optima.
#[test]
#[ignore = "slow; run with --release --ignored --nocapture"]
fn real_sets_reach_their_optima() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let folder = std::env::var("CARAVAN_DATA").unwrap_or(beside.into());
    let Ok(table) = std::fs::read_to_string(format!("{folder}/optima.csv")) else {
        eprintln!("skipped: no {folder}/optima.csv; set CARAVAN_DATA");
        return;
    };
    let mut missed = Vec::new();
    for line in table.lines().filter(|line| line.ends_with(",small")) {
        let fields: Vec<&str> = line.split(',').collect();
        let (lambda, optimum): (f64, f64) =
            (fields[1].parse().unwrap(), fields[5].parse().unwrap());
        let file = PathBuf::from(format!("{folder}/{}.train.xz", fields[0]));
        let examples = data::read(&[file], data::Shard::ALL, NonZeroUsize::MIN).unwrap();
        let (labels, columns) = examples.into_columns().unwrap();
        let labels: Vec<f64> = labels.into_iter().map(f64::from).collect();
        let count =
            default_block_count(columns.nonzeros() as u64, labels.len() as u64, BLOCK_RATIO);
        let settings = Settings { epsilon: 1e-9, passes_max: 1000, ..Settings::new(lambda, count) };
        let solution = solve(&[Part { columns: &columns, labels: &labels }], &settings);
        let gaps = solution.progress.iter().map(|row| row.objective / optimum - 1.0);
        let gaps: Vec<f64> = gaps.collect();
        let reached = gaps.iter().position(|&gap| gap <= 1e-6).map(|pass| pass + 1);
        let (passes, gap) = (gaps.len(), gaps[gaps.len() - 1]);
        println!("{} {lambda}: 1e-6 after {reached:?}, stop {passes}, {gap:.1e}", fields[0]);
        if reached.is_none() {
            missed.push(format!("{} {lambda}: {gap:.1e} after {passes}", fields[0]));
        }
    }
    // Nearly dependent columns with almost no penalty: coordinate steps crawl there.
    println!("not within 1000 passes: {missed:?}");
    assert!(missed.len() <= 2, "criteo_tiny 0.1 and a9a 1 are known: {missed:?}");
}

#[test]
fn the_example_is_the_published_one() {
    let example = Example::new();
    assert_eq!(example.part().labels.iter().filter(|&&y| y > 0.0).count(), 114);
    assert_eq!(example.part().labels[..3], [-1.0, -1.0, 1.0]);
    let row = |row: u32| -> Vec<u64> {
        let has = |j: &usize| example.part().columns.column(*j).0.contains(&row);
        (0..60).filter(has).map(|j| example.part().columns.keys().get(j)).collect()
    };
    assert_eq!(row(0), [14, 30, 33, 35, 36, 54]);
    assert_eq!(row(1), [3, 9, 12, 22, 46]);
    assert_eq!(row(2), [10, 14, 35, 45, 52]);
}
