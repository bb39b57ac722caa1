//! The kernels against differences of the loss, and their bound against steps.

use super::*;

const KEYS: [u64; 3] = [2, 5, 9];
const ENDS: [usize; 3] = [2, 4, 5];
const ROWS: [u32; 5] = [0, 1, 1, 2, 2];
const VALUES: [f64; 5] = [0.5, -2.0, 1.0, 3.0, -1.0];
const LABELS: [f64; 3] = [1.0, -1.0, 1.0];

fn columns() -> Columns {
    Columns::new(&KEYS, &ENDS, ROWS.to_vec(), Some(VALUES.to_vec()))
}

fn worker() -> Worker {
    Worker::new(LABELS.to_vec(), KEYS.len(), TrustRegion::default())
}

/// Rows of label +1 have weight 2.5.
fn weighted() -> Worker {
    let labels = LABELS.map(|label| if label > 0.0 { 2.5 } else { label });
    Worker::new(labels.to_vec(), KEYS.len(), TrustRegion::default())
}

fn gradient(worker: &mut Worker, rule: Curvature) -> (Vec<f64>, Vec<f64>) {
    let (mut g, mut u) = (vec![f64::NAN; 3], vec![f64::NAN; 3]);
    worker.gradient(&columns(), 0..3, rule, &mut g, &mut u);
    (g, u)
}

#[test]
fn gradient_is_the_slope_of_the_loss() {
    for (mut worker, rule) in [worker(), weighted()]
        .into_iter()
        .flat_map(|worker| [(worker.clone(), Curvature::Published), (worker, Curvature::Safe)])
    {
        worker.apply(&columns(), 0..3, &[0.3, -0.7, 1.1], &[true; 3]);
        let (g, _) = gradient(&mut worker, rule);
        for (j, g) in g.into_iter().enumerate() {
            let loss = |step: f64| {
                let mut moved = worker.clone();
                let weight = moved.weights()[j] + step;
                moved.apply(&columns(), j..j + 1, &[weight], &[true]);
                moved.loss()
            };
            let gradient = (loss(1e-5) - loss(-1e-5)) / 2e-5;
            assert!((gradient - g).abs() < 1e-8, "column {j}: {gradient} is not {g}");
        }
    }
}

/// The guarantee of [`Curvature::Safe`]: it holds for any joint step inside the trust region.
#[test]
fn safe_curvature_bounds_every_joint_step() {
    let starts = [[0.0, 0.0, 0.0], [0.3, -0.7, 1.1], [4.0, -4.0, -4.0]];
    for (mut worker, start) in
        [worker(), weighted()].iter().flat_map(|worker| starts.map(|start| (worker.clone(), start)))
    {
        worker.apply(&columns(), 0..3, &start, &[true; 3]);
        let (g, u) = gradient(&mut worker, Curvature::Safe);
        let deltas = worker.deltas.clone();
        for choice in 0..125 {
            let part = |j: u32| f64::from(choice / 5i32.pow(j) % 5 - 2) / 2.0;
            let step: Vec<f64> = (0..3).map(|j| part(j as u32) * deltas[j]).collect();
            let to: Vec<f64> = (0..3).map(|j| start[j] + step[j]).collect();
            let mut moved = worker.clone();
            moved.apply(&columns(), 0..3, &to, &[true; 3]);
            let model = (0..3).map(|j| (g[j] + 0.5 * u[j] * step[j]) * step[j]).sum::<f64>();
            assert!(moved.loss() <= worker.loss() + model + 1e-12, "{start:?} {step:?}");
        }
    }
}

/// A weight of 3 equals three copies of the row.
#[test]
fn weights_count_rows() {
    let one = Columns::new(&[1], &[2], vec![0, 1], Some(vec![0.5, -2.0]));
    let many = Columns::new(&[1], &[4], vec![0, 1, 2, 3], Some(vec![0.5, 0.5, 0.5, -2.0]));
    let mut found =
        [(vec![3.0, -1.0], one), (vec![1.0, 1.0, 1.0, -1.0], many)].map(|(labels, columns)| {
            let mut worker = Worker::new(labels, 1, TrustRegion::default());
            worker.apply(&columns, 0..1, &[0.3], &[true]);
            let sums = [Curvature::Published, Curvature::Safe].map(|rule| {
                let (mut g, mut u) = ([0.0], [0.0]);
                worker.gradient(&columns, 0..1, rule, &mut g, &mut u);
                [g[0], u[0]]
            });
            [&sums.concat()[..], &[worker.loss()]].concat()
        });
    let expected = found[1].clone();
    for (found, expected) in found[0].iter_mut().zip(expected) {
        assert!((*found / expected - 1.0).abs() < 1e-14, "{found} is not {expected}");
    }
}

#[test]
fn without_overlap_safe_is_hardly_below_published() {
    let columns = Columns::new(&KEYS, &[2, 4, 6], (0..6).collect(), None);
    let mut worker = Worker::new(vec![1.0; 6], 3, TrustRegion { init: 0.1, max: 5.0 });
    worker.apply(&columns, 0..3, &[0.0, 1.0, -6.0], &[true; 3]);
    worker.deltas.fill(0.1);
    let (mut g, mut safe, mut published) = ([0.0; 3], [0.0; 3], [0.0; 3]);
    worker.gradient(&columns, 0..3, Curvature::Safe, &mut g, &mut safe);
    worker.gradient(&columns, 0..3, Curvature::Published, &mut g, &mut published);
    for (safe, published) in safe.iter().zip(published) {
        assert!((0.9 * published..=published * (1.0 + 1e-12)).contains(safe));
    }
}

#[test]
fn filtered_columns_are_skipped_and_do_not_count_as_overlap() {
    let mut worker = worker();
    worker.apply(&columns(), 1..3, &[0.0, 0.0], &[true, false]);
    let (mut g, mut u) = ([f64::NAN; 2], [f64::NAN; 2]);
    let rule = Curvature::Safe;
    assert_eq!(worker.gradient(&columns(), 1..3, rule, &mut g, &mut u), 1);
    assert_eq!((g[1], u[1]), (0.0, 0.0));
    let overlapping = u[0];
    worker.reset_filter();
    assert_eq!(worker.gradient(&columns(), 1..3, rule, &mut g, &mut u), 2);
    assert!(u[0] > overlapping, "row 2 is shared again");
}

/// The block was in flight twice: the filter bit arrives while the copy is not 0.
#[test]
fn a_filtered_weight_takes_its_margin_away() {
    let mut worker = worker();
    worker.apply(&columns(), 0..3, &[0.3, -0.7, 1.1], &[true; 3]);
    worker.apply(&columns(), 0..2, &[123.0, -0.7], &[false, true]);
    assert_eq!(worker.weights(), [0.0, -0.7, 1.1]);
    let margins: Vec<f64> = worker.margins().collect();
    worker.rederive_margins(&columns());
    for (moved, derived) in margins.iter().zip(worker.margins()) {
        assert!((moved - derived).abs() < 1e-15);
    }
}

#[test]
fn huge_margins_stay_finite() {
    let columns = Columns::new(&[0], &[2], vec![0, 1], Some(vec![1e4; 2]));
    let mut worker = Worker::new(vec![1.0, -1.0], 1, TrustRegion::default());
    worker.apply(&columns, 0..1, &[3.0], &[true]);
    assert!((worker.loss() - 3e4).abs() < 1e-9);
    for rule in [Curvature::Published, Curvature::Safe] {
        let (mut g, mut u) = ([0.0], [0.0]);
        worker.gradient(&columns, 0..1, rule, &mut g, &mut u);
        assert_eq!(g, [1e4]);
        assert!(u[0].is_finite() && u[0] > 0.0, "{rule:?}: {u:?}");
    }
}

/// Blocks large enough to wake threads, with and without values, filtered columns, empty ones.
#[test]
fn any_number_of_threads_computes_the_same_bits() {
    let (count, rows) = (600, 2000_u32);
    let lengths = (0..count).map(|j| (j * 37) % 1100);
    let ends = lengths.clone().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    let ends: Vec<usize> = ends.collect();
    let spread = |length: usize| {
        let step = rows / length.max(1) as u32;
        (0..length as u32).map(move |at| at * step)
    };
    let entries: Vec<u32> = lengths.flat_map(spread).collect();
    let values = noise(entries.len(), 5);
    let keys: Vec<u64> = (0..count as u64).collect();
    let labels: Vec<f64> = noise(rows as usize, 6).iter().map(|x| x.signum()).collect();
    let weights = noise(count, 7);
    let active: Vec<bool> = (0..count).map(|j| j % 11 > 0).collect();
    for values in [None, Some(values)] {
        let columns = Columns::new(&keys, &ends, entries.clone(), values);
        let compute = |threads: usize| {
            let pool = Pool::new(threads.try_into().expect("it is above 0"));
            let trust = TrustRegion::default();
            let mut worker = Worker::with_threads(labels.clone(), count, trust, pool);
            worker.apply(&columns, 0..count, &weights, &active);
            let (mut g, mut u) = (vec![0.0; count], vec![0.0; count]);
            worker.gradient(&columns, 0..count, Curvature::Safe, &mut g, &mut u);
            worker.reset_filter();
            let (mut g_all, mut u_all) = (vec![0.0; 500], vec![0.0; 500]);
            worker.gradient(&columns, 50..550, Curvature::Published, &mut g_all, &mut u_all);
            let moved: Vec<f64> = worker.margins().collect();
            worker.rederive_margins(&columns);
            [g, u, g_all, u_all, moved, worker.margins().collect(), vec![worker.loss()]]
                .map(|numbers| numbers.into_iter().map(f64::to_bits).collect::<Vec<_>>())
        };
        let alone = compute(1);
        assert!((2..6).all(|threads| compute(threads) == alone));
    }
}

#[test]
#[should_panic(expected = "labels must have a sign")]
fn other_labels_are_refused() {
    Worker::new(vec![0.0], 1, TrustRegion::default());
}

/// Pseudo-random numbers in -1..1.
pub(crate) fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
