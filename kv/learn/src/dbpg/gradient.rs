//! The worker's side of a block: gradient and curvature out, new weights in.
//!
//! A [`Worker`] holds its rows' scores x_i·w and its copy of the weights; it never sees another
//! worker's rows. With margins m_i = y_i x_i·w the loss is f(w) = Σ_i c_i log(1 + exp(-m_i)), where c_i > 0 is the weight of
//! row i; it comes with the label, as c_i y_i. Scores are kept additively, so they cannot overflow; the authors' system keeps
//! exp(m_i), which does at 709.
//!
//! Place: **gradient** > push > proximal > pull > **apply**. Neither sends anything.

use std::ops::Range;

use super::pool::Pool;
use super::rows::{Row, Rows};
use crate::data::Columns;

/// Which upper bound on the loss's curvature a worker pushes.
///
/// With σ'(m) = σ(m)σ(-m) the curvature of one row along its margin, all columns k of a block
/// stepping by d_k with |d_k| ≤ δ_k move row i's margin by at most R_i = Σ_k |x_ik| δ_k, so
///
/// f(w+d) ≤ f(w) + g·d + ½ Σ_i h_i (Σ_k x_ik d_k)²,   h_i ≥ max σ' over [m_i - R_i, m_i + R_i],
///
/// and with weights of rows c_i times all that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Curvature {
    /// The authors': u_j = Σ_i min(σ'(m_i) exp(|x_ij| δ_j), ¼) x_ij².
    ///
    /// A bound for a step of column j *alone*. Columns of a block that share rows all correct the
    /// same error at once and overshoot together; dense blocks diverge.
    Published,
    /// A bound for the step of the whole block: the objective never rises with delay 0, however
    /// many workers there are and however the columns overlap.
    ///
    /// By Cauchy-Schwarz (Σ_k x_ik d_k)² ≤ r_i Σ_k |x_ik| d_k², r_i = Σ_k |x_ik| over the block's
    /// active columns, so u_j = Σ_i h_i r_i |x_ij| makes the bound above separable. And σ' is even
    /// and falls with |m|, so h_i = σ'(max(|m_i| - R_i, 0)) exactly, which is never above
    /// min(σ'(m_i) exp(R_i), ¼). Where no two columns share a row r_i = |x_ij|: then u_j is the
    /// published one or a little below. Rows are split over workers whole, so the sum of the
    /// workers' bounds is a bound of the sum. Costs one more sweep over the block.
    #[default]
    Safe,
}

/// How far a coordinate may move in one step: δ starts at `init`, then follows the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrustRegion {
    /// Before the first step.
    pub init: f64,
    /// Never above this.
    pub max: f64,
}

impl Default for TrustRegion {
    fn default() -> Self {
        Self { init: 1.0, max: 5.0 }
    }
}

impl TrustRegion {
    /// δ after a step: room for twice the step and a little.
    ///
    /// Worker and server both compute it from the same step, so it needs no message.
    pub(super) fn after(&self, step: f64) -> f64 {
        (2.0 * step.abs() + 0.1).min(self.max)
    }
}

/// One worker's state: where its rows stand, and its copy of the weights.
#[derive(Debug, Clone)]
pub struct Worker {
    rows: Rows,
    weights: Vec<f64>,
    deltas: Vec<f64>,
    active: Vec<bool>,
    steps: Vec<(usize, f64)>, // scratch
    trust: TrustRegion,
}

impl Worker {
    /// All weights 0, all columns active. `labels: [rows]`, each +1 or -1 times the weight of its row.
    ///
    /// # Panics
    /// If a label is 0 or not finite.
    pub fn new(labels: Vec<f64>, columns: usize, trust: TrustRegion) -> Self {
        Self::with_threads(labels, columns, trust, Pool::default())
    }

    /// [`Worker::new`] for the threads of `pool`: the same to the bit, on large blocks sooner.
    ///
    /// # Panics
    /// As there.
    pub fn with_threads(labels: Vec<f64>, columns: usize, trust: TrustRegion, pool: Pool) -> Self {
        assert!(labels.iter().all(|y| y.is_finite() && *y != 0.0), "labels must have a sign");
        Self {
            rows: Rows::new(labels, pool),
            weights: vec![0.0; columns],
            deltas: vec![trust.init; columns],
            active: vec![true; columns],
            steps: Vec::new(),
            trust,
        }
    }

    /// The worker's copy of the weights: `[columns]`.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Which columns the KKT filter leaves in: `[columns]`. Push the block's part with its
    /// gradient, so that the server never takes a filtered column's 0 for a gradient.
    pub fn active(&self) -> &[bool] {
        &self.active
    }

    /// Each +1 or -1 times the weight of its row: `[rows]`.
    pub fn labels(&self) -> &[f64] {
        self.rows.labels()
    }

    /// Margins y_i x_i·w, row by row.
    pub fn margins(&self) -> impl Iterator<Item = f64> + Clone {
        self.rows.margins()
    }

    /// Puts every column back in: the worker's half of a KKT filter reset.
    pub fn reset_filter(&mut self) {
        self.active.fill(true);
    }

    /// Gradient and curvature bound of the loss for the columns `block`; returns how many were
    /// computed. Filtered columns get 0 and 0.
    ///
    /// `gradient`, `curvature`: `[block.len()]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn gradient(
        &mut self,
        columns: &Columns,
        block: Range<usize>,
        rule: Curvature,
        gradient: &mut [f64],
        curvature: &mut [f64],
    ) -> usize {
        assert_eq!(gradient.len(), block.len(), "one gradient a column");
        assert_eq!(curvature.len(), block.len(), "one curvature a column");
        let active = block.clone().filter(|&j| self.active[j]);
        let nonzeros = active.clone().map(|j| columns.column(j).0.len()).sum();
        if rule == Curvature::Safe {
            self.rows.measure_overlap(columns, active.clone(), &self.deltas, nonzeros);
        }
        let computed = active.count();
        let cuts = self.cut(columns, block, self.rows.pool().threads_for(nonzeros));
        let parts = split(cuts, gradient, curvature);
        self.rows.pool().share(parts, |(part, gradient, curvature)| {
            for ((j, g), u) in part.zip(gradient).zip(curvature) {
                (*g, *u) = match (self.active[j], rule) {
                    (false, _) => (0.0, 0.0),
                    (true, Curvature::Published) => self.published(columns, j),
                    (true, Curvature::Safe) => self.safe(columns, j),
                };
            }
        });
        computed
    }

    /// Cuts a block into so many runs of columns with about as many non-zeros each.
    fn cut(&self, columns: &Columns, block: Range<usize>, parts: usize) -> Vec<Range<usize>> {
        let (first, last) = (columns.before(block.start), columns.before(block.end));
        let end = |part: usize| {
            columns.column_of(first + (last - first) / parts * part).clamp(block.start, block.end)
        };
        let ends = (1..parts).map(end).chain(std::iter::once(block.end));
        let mut begin = block.start;
        ends.map(|end| std::mem::replace(&mut begin, end)..end).collect()
    }

    fn published(&self, columns: &Columns, j: usize) -> (f64, f64) {
        let (mut g, mut u) = (0.0, 0.0);
        let unit_growth = self.deltas[j].exp();
        columns.for_each(j, |row, x| {
            let (pull, weight) = (self.rows.all()[row].pull, self.rows.weight(row));
            let wrong = pull.abs() / weight;
            let growth = if x == 1.0 { unit_growth } else { (x.abs() * self.deltas[j]).exp() };
            g += pull * x;
            // 0 * infinity is not a number, of which `min` takes the other side: still a bound.
            u += weight * (wrong * (1.0 - wrong) * growth).min(0.25) * x * x;
        });
        (g, u)
    }

    fn safe(&self, columns: &Columns, j: usize) -> (f64, f64) {
        let (rows, values) = columns.column(j);
        match values {
            None => sum_ones(rows, self.rows.all()),
            Some(values) => {
                let (mut g, mut u) = (0.0, 0.0);
                for (&row, &x) in rows.iter().zip(values) {
                    let Row { pull, bend } = self.rows.all()[row as usize];
                    g += pull * x;
                    u += bend * x.abs();
                }
                (g, u)
            }
        }
    }

    /// Takes in pulled weights of the columns `block`: moves the margins and the copy along, and
    /// follows δ and the filter. `weights`, `active`: `[block.len()]`.
    ///
    /// A filtered column's weight is 0 whatever `weights` says. The step is taken from this
    /// worker's own copy, so a block that was in flight twice leaves the margins right too. Pulls
    /// of the same block must be applied in the order in which the server answered them.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn apply(
        &mut self,
        columns: &Columns,
        block: Range<usize>,
        weights: &[f64],
        active: &[bool],
    ) {
        assert_eq!(weights.len(), block.len(), "one weight a column");
        assert_eq!(active.len(), block.len(), "one filter bit a column");
        self.set(columns, block.zip(weights.iter().copied().zip(active.iter().copied())));
    }

    /// [`Worker::apply`] for single columns: each with its weight and filter bit.
    pub(super) fn set(
        &mut self,
        columns: &Columns,
        to: impl Iterator<Item = (usize, (f64, bool))>,
    ) {
        let mut steps = std::mem::take(&mut self.steps);
        for (j, (pulled, active)) in to {
            let weight = if active { pulled } else { 0.0 };
            let step = weight - self.weights[j];
            self.active[j] = active;
            if active {
                self.deltas[j] = self.trust.after(step);
            }
            if step != 0.0 {
                self.weights[j] = weight;
                steps.push((j, step));
            }
        }
        self.rows.follow(columns, &steps);
        steps.clear();
        self.steps = steps;
    }

    /// -c_i y_i σ(-m_i), row by row: the slope of the loss along x_i·w.
    pub(super) fn pulls(&self) -> impl Iterator<Item = f64> {
        self.rows.all().iter().map(|row| row.pull)
    }

    /// Computes the margins afresh from the weights, which drops the rounding errors of all the
    /// steps. Worth doing every few dozen passes.
    pub fn rederive_margins(&mut self, columns: &Columns) {
        self.rows.derive(columns, &self.weights);
    }

    /// This worker's share of the loss, Σ_i c_i log(1 + exp(-m_i)); the server adds the penalty.
    pub fn loss(&self) -> f64 {
        self.rows.loss()
    }
}

/// Both sums over the rows of a column of ones. Four pairs of sums side by side: the additions do not wait for each other.
fn sum_ones(rows: &[u32], of: &[Row]) -> (f64, f64) {
    let mut sums = [(0.0, 0.0); 4];
    let (chunks, rest) = rows.as_chunks::<4>();
    for chunk in chunks {
        for (sum, &row) in sums.iter_mut().zip(chunk) {
            let Row { pull, bend } = of[row as usize];
            *sum = (sum.0 + pull, sum.1 + bend);
        }
    }
    for (sum, &row) in sums.iter_mut().zip(rest) {
        let Row { pull, bend } = of[row as usize];
        *sum = (sum.0 + pull, sum.1 + bend);
    }
    let [a, b, c, d] = sums;
    ((a.0 + b.0) + (c.0 + d.0), (a.1 + b.1) + (c.1 + d.1))
}

/// A part of the block's columns with their places among its sums.
type Part<'a> = (Range<usize>, &'a mut [f64], &'a mut [f64]);

fn split<'a>(
    cuts: Vec<Range<usize>>,
    mut gradient: &'a mut [f64],
    mut curvature: &'a mut [f64],
) -> impl Iterator<Item = Part<'a>> {
    cuts.into_iter().map(move |part| {
        let (g, g_rest) = std::mem::take(&mut gradient).split_at_mut(part.len());
        let (u, u_rest) = std::mem::take(&mut curvature).split_at_mut(part.len());
        (gradient, curvature) = (g_rest, u_rest);
        (part, g, u)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dbpg::cholesky::tests::noise;

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

    /// Rows of label +1 count 2.5 times.
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
                let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                assert!((slope - g).abs() < 1e-8, "column {j}: {slope} is not {g}");
            }
        }
    }

    /// The promise of [`Curvature::Safe`]: for any joint step inside the trust region.
    #[test]
    fn safe_curvature_bounds_every_joint_step() {
        let starts = [[0.0, 0.0, 0.0], [0.3, -0.7, 1.1], [4.0, -4.0, -4.0]];
        for (mut worker, start) in [worker(), weighted()]
            .iter()
            .flat_map(|worker| starts.map(|start| (worker.clone(), start)))
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

    /// A weight of 3 is as good as the row three times.
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

    /// The block was in flight twice: the mark comes while the copy is not 0.
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
}
