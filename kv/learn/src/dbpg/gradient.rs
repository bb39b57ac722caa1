//! The worker's side of a block: computes gradient and curvature, and applies new weights.
//!
//! A [`Worker`] holds its rows' scores x_i·w and its copy of the weights; it never sees another
//! worker's rows. With margins m_i = y_i x_i·w the loss is f(w) = Σ_i c_i log(1 + exp(-m_i)), where
//! c_i > 0 is the weight of row i, which comes with the label, as c_i y_i. Scores are kept
//! additively, so they cannot overflow; the authors' system keeps exp(m_i), which overflows at 709.
//!
//! Place: **gradient** > push > coordinates > pull > **apply**. Neither sends anything.

use std::ops::Range;

use super::rows::{Row, Rows};
use crate::data::Columns;
use crate::numeric::logistic::log_loss;
use crate::numeric::{Pool, Whole};

/// The upper bound of the loss's curvature that a worker pushes.
///
/// With σ'(m) = σ(m)σ(-m), the curvature of one row along its margin: if every column k of a block
/// steps by d_k with |d_k| ≤ δ_k, row i's margin moves by at most R_i = Σ_k |x_ik| δ_k, so
///
/// f(w+d) ≤ f(w) + g·d + ½ Σ_i h_i (Σ_k x_ik d_k)²,   h_i ≥ max σ' over [m_i - R_i, m_i + R_i],
///
/// with all of that times c_i if rows have weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Curvature {
    /// The authors': u_j = Σ_i min(σ'(m_i) exp(|x_ij| δ_j), ¼) x_ij².
    ///
    /// It bounds a step of column j *alone*. Columns of a block that share rows all correct the
    /// same error at once and overshoot together; dense blocks diverge.
    Published,
    /// A bound for the step of the whole block: the objective never rises with delay 0, for any
    /// number of workers and any overlap of columns.
    ///
    /// By Cauchy-Schwarz (Σ_k x_ik d_k)² ≤ r_i Σ_k |x_ik| d_k² with r_i = Σ_k |x_ik| over the
    /// block's active columns, so u_j = Σ_i h_i r_i |x_ij| makes the bound above separable. σ' is
    /// even and falls with |m|, so h_i = σ'(max(|m_i| - R_i, 0)) exactly, which is at most
    /// min(σ'(m_i) exp(R_i), ¼). If no two columns share a row, r_i = |x_ij| and u_j is at most the
    /// published one. Each row is on one worker, so the sum of the workers' bounds is a bound of
    /// the sum. It costs one more sweep over the block.
    #[default]
    Safe,
}

/// How far a coordinate may move in one step: δ starts at `init` and then follows the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrustRegion {
    /// Before the first step.
    pub init: f64,
    /// Upper limit.
    pub max: f64,
}

impl Default for TrustRegion {
    fn default() -> Self {
        Self { init: 1.0, max: 5.0 }
    }
}

impl TrustRegion {
    /// δ after a step: room for twice the step and a little more.
    ///
    /// Worker and server compute it from the same step, so it needs no message.
    pub(super) fn after(&self, step: f64) -> f64 {
        (2.0 * step.abs() + 0.1).min(self.max)
    }
}

/// One worker's state: its rows, and its copy of the weights.
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
    /// All weights 0, all columns active. `labels: [rows]`, each +1 or -1 times the weight of its
    /// row.
    ///
    /// # Panics
    /// If a label is 0 or not finite.
    pub fn new(labels: Vec<f64>, columns: usize, trust: TrustRegion) -> Self {
        Self::with_threads(labels, columns, trust, Pool::default())
    }

    /// [`Worker::new`] with the threads of `pool`: the same result to the bit, sooner for large
    /// blocks.
    ///
    /// # Panics
    /// As [`Worker::new`].
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

    /// Which columns the KKT filter leaves in: `[columns]`. They are pushed with the block's
    /// gradient, so that the server never mistakes a filtered column's 0 for a gradient.
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

    /// Reactivates every column: the worker's half of a KKT filter reset.
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

    /// Cuts a block into `parts` runs of columns with about as many non-zeros each.
    fn cut(&self, columns: &Columns, block: Range<usize>, parts: usize) -> Vec<Range<usize>> {
        let first = columns.before(block.start);
        let last = columns.before(block.end);
        let end = |part: usize| {
            columns.column_of(first + (last - first) / parts * part).clamp(block.start, block.end)
        };
        let ends = (1..parts).map(end).chain(std::iter::once(block.end));
        let mut begin = block.start;
        ends.map(|end| std::mem::replace(&mut begin, end)..end).collect()
    }

    fn published(&self, columns: &Columns, j: usize) -> (f64, f64) {
        let mut g = 0.0;
        let mut u = 0.0;
        let unit_growth = self.deltas[j].exp();
        columns.for_each(j, |row, x| {
            let pull = self.rows.all()[row].pull;
            let weight = self.rows.weight(row);
            let wrong = pull.abs() / weight;
            let growth = if x == 1.0 { unit_growth } else { (x.abs() * self.deltas[j]).exp() };
            g += pull * x;
            // 0 * infinity is NaN, for which `min` returns the other argument: still a bound.
            u += weight * (wrong * (1.0 - wrong) * growth).min(0.25) * x * x;
        });
        (g, u)
    }

    fn safe(&self, columns: &Columns, j: usize) -> (f64, f64) {
        let (rows, values) = columns.column(j);
        match values {
            None => sum_ones(rows, self.rows.all()),
            Some(values) => {
                let mut g = 0.0;
                let mut u = 0.0;
                for (&row, &x) in rows.iter().zip(values) {
                    let Row { pull, curvature } = self.rows.all()[row as usize];
                    g += pull * x;
                    u += curvature * x.abs();
                }
                (g, u)
            }
        }
    }

    /// Applies pulled weights of the columns `block`: updates the margins, the copy of the weights,
    /// δ and the filter. `weights`, `active`: `[block.len()]`.
    ///
    /// A filtered column's weight is 0 whatever `weights` says. The step is computed from this
    /// worker's own copy, so a block that was in flight twice leaves correct margins as well. Pulls
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

    /// Moves each score by `share` of its direction, and columns to weights found in another way.
    pub(super) fn shift(
        &mut self,
        directions: impl Iterator<Item = f64>,
        share: f64,
        to: impl Iterator<Item = (usize, f64)>,
    ) {
        self.rows.shift(directions, share);
        to.for_each(|(j, weight)| self.weights[j] = weight);
    }

    /// -c_i y_i σ(-m_i) of some rows: the gradient of the loss along x_i·w.
    pub(super) fn pulls(&self, rows: Range<usize>) -> impl Iterator<Item = f64> {
        self.rows.all()[rows].iter().map(|row| row.pull)
    }

    /// Computes the margins from the weights, which removes the rounding errors of all steps.
    /// Worthwhile every few dozen passes.
    pub fn rederive_margins(&mut self, columns: &Columns) {
        self.rows.derive(columns, &self.weights);
    }

    /// Replaces the scores x_i·w: `[rows]`.
    pub(super) fn set_scores(&mut self, scores: Vec<f64>) {
        self.rows.set(scores);
    }

    /// [`Worker::loss`] as a sum that is the same however rows are divided.
    pub(super) fn exact_loss(&self) -> Whole {
        let mut sum = Whole::default();
        for (label, margin) in self.labels().iter().zip(self.margins()) {
            sum.add(label.abs() * log_loss(margin));
        }
        sum
    }

    /// This worker's share of the loss, Σ_i c_i log(1 + exp(-m_i)); the server adds the penalty.
    pub fn loss(&self) -> f64 {
        self.rows.loss()
    }
}

/// Both sums over the rows of a column of ones, as four independent pairs, so that additions do not
/// wait for each other.
fn sum_ones(rows: &[u32], of: &[Row]) -> (f64, f64) {
    let mut sums = [(0.0, 0.0); 4];
    let (chunks, rest) = rows.as_chunks::<4>();
    for chunk in chunks {
        for (sum, &row) in sums.iter_mut().zip(chunk) {
            let Row { pull, curvature } = of[row as usize];
            *sum = (sum.0 + pull, sum.1 + curvature);
        }
    }
    for (sum, &row) in sums.iter_mut().zip(rest) {
        let Row { pull, curvature } = of[row as usize];
        *sum = (sum.0 + pull, sum.1 + curvature);
    }
    let [a, b, c, d] = sums;
    ((a.0 + b.0) + (c.0 + d.0), (a.1 + b.1) + (c.1 + d.1))
}

/// A part of the block's columns with their gradients and curvatures.
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
pub(super) mod tests;
