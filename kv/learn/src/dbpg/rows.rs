//! A worker's per-row state, and how columns change it: the scattered half of the block kernels.
//!
//! Columns of a block share rows, so threads divide the rows, in segments: each thread visits all
//! columns and takes the entries in its segment. Within a row the terms come in the order of the
//! columns, whatever the number of threads. The gathered half, sums over a column's rows, is in
//! `gradient`.

use crate::data::{Columns, for_each};
use crate::numeric::Pool;
use crate::numeric::logistic::{loss, sigmoid_derivative, wrong_probability};

/// A row as the gradient kernel reads it: both numbers lie in one cache line, so that one sweep
/// serves both sums.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// -c_i y_i σ(-m_i): what an entry adds to its column's gradient.
    pub(super) pull: f64,
    /// c_i h_i r_i, valid for the rows of the block measured last: what an entry adds to the
    /// curvature.
    pub(super) curvature: f64,
}

/// The rows of one worker.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    labels: Vec<f64>,      // c_i y_i
    weighted: bool,        // whether any c_i is not 1
    scores: Vec<f64>,      // x_i·w; the margin is this times the label's sign
    rows: Vec<Row>,        // follow from `scores`
    reach: Vec<[f64; 2]>,  // r_i and R_i of the block being measured, else 0
    touched: Vec<Touched>, // scratch, one per segment
    segment: usize,        // rows of a segment; the last may have fewer
    pool: Pool,
}

/// One thread's part of the rows.
struct Segment<'a> {
    first: usize,
    labels: &'a [f64],
    weighted: bool,
    scores: &'a mut [f64],
    rows: &'a mut [Row],
    reach: &'a mut [[f64; 2]],
    touched: &'a mut Touched,
}

impl Rows {
    /// All scores 0.
    pub(super) fn new(labels: Vec<f64>, pool: Pool) -> Self {
        let rows = labels.len();
        let segment = rows.div_ceil(pool.threads()).max(1);
        Self {
            rows: labels.iter().map(|y| Row { pull: -0.5 * y, curvature: 0.0 }).collect(),
            weighted: labels.iter().any(|label| label.abs() != 1.0),
            labels,
            scores: vec![0.0; rows],
            reach: vec![[0.0; 2]; rows],
            touched: vec![Touched::new(segment); rows.div_ceil(segment)],
            segment,
            pool,
        }
    }

    pub(super) fn all(&self) -> &[Row] {
        &self.rows
    }

    /// c_i y_i, row by row.
    pub(super) fn labels(&self) -> &[f64] {
        &self.labels
    }

    /// c_i of a row.
    pub(super) fn weight(&self, row: usize) -> f64 {
        self.labels[row].abs()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Margins y_i x_i·w, row by row.
    pub(super) fn margins(&self) -> impl Iterator<Item = f64> + Clone {
        self.labels.iter().zip(&self.scores).map(|(y, score)| y.signum() * score)
    }

    /// Σ_i c_i log(1 + exp(-m_i)).
    pub(super) fn loss(&self) -> f64 {
        loss(&self.labels, self.margins())
    }

    /// Runs `work` for each segment, in parallel if enough non-zeros are involved.
    fn share(&mut self, nonzeros: usize, work: impl Fn(Segment<'_>) + Sync) {
        let Self { labels, weighted, scores, rows, reach, touched, segment, pool } = self;
        let weighted = *weighted;
        let parts = labels
            .chunks(*segment)
            .zip(scores.chunks_mut(*segment))
            .zip(rows.chunks_mut(*segment))
            .zip(reach.chunks_mut(*segment))
            .zip(touched);
        let parts = parts.enumerate().map(|(at, ((((labels, scores), rows), reach), touched))| {
            Segment { first: at * *segment, labels, weighted, scores, rows, reach, touched }
        });
        match pool.threads_for(nonzeros) {
            1 => parts.for_each(work),
            _ => pool.share(parts, work),
        }
    }

    /// Computes c_i h_i r_i of each row that these columns touch, in its `curvature`. `of` are
    /// indices of columns, `deltas` those of all columns.
    pub(super) fn measure_overlap(
        &mut self,
        columns: &Columns,
        of: impl Iterator<Item = usize> + Clone + Sync,
        deltas: &[f64],
        nonzeros: usize,
    ) {
        self.share(nonzeros, |mut segment| {
            for j in of.clone() {
                segment.add_reach(columns, j, deltas[j]);
            }
            segment.curvature();
        });
    }

    /// Moves the scores by steps of columns, and updates what depends on them, once per row however
    /// many columns moved it.
    pub(super) fn follow(&mut self, columns: &Columns, steps: &[(usize, f64)]) {
        let nonzeros = steps.iter().map(|&(j, _)| columns.column(j).0.len()).sum();
        self.share(nonzeros, |mut segment| {
            steps.iter().for_each(|&(j, step)| segment.move_scores(columns, j, step));
            segment.follow_scores();
        });
    }

    /// Moves each score by `share` of its direction: `[rows]`.
    pub(super) fn shift(&mut self, directions: impl Iterator<Item = f64>, share: f64) {
        let rows = self.rows.iter_mut().zip(&self.labels).zip(&mut self.scores);
        for (((row, label), score), direction) in rows.zip(directions) {
            *score += share * direction;
            row.pull = pull(*label, *score);
        }
    }

    /// Replaces the scores: `[rows]`.
    pub(super) fn set(&mut self, scores: Vec<f64>) {
        self.scores = scores;
        for ((row, label), score) in self.rows.iter_mut().zip(&self.labels).zip(&self.scores) {
            row.pull = pull(*label, *score);
        }
    }

    /// Computes the scores from all weights, which removes the rounding errors of all steps.
    pub(super) fn derive(&mut self, columns: &Columns, weights: &[f64]) {
        self.scores.fill(0.0);
        let steps: Vec<(usize, f64)> =
            weights.iter().copied().enumerate().filter(|&(_, weight)| weight != 0.0).collect();
        self.follow(columns, &steps);
        for ((row, label), score) in self.rows.iter_mut().zip(&self.labels).zip(&self.scores) {
            row.pull = pull(*label, *score);
        }
    }
}

impl Segment<'_> {
    /// The entries of a column within this segment.
    fn entries<'c>(&self, columns: &'c Columns, column: usize) -> (&'c [u32], Option<&'c [f64]>) {
        let (rows, values) = columns.column(column);
        let first = self.first;
        let end = first + self.labels.len();
        if first == 0 && rows.last().is_none_or(|&last| (last as usize) < end) {
            return (rows, values);
        }
        let begin = rows.partition_point(|&row| (row as usize) < first);
        let len = rows[begin..].partition_point(|&row| (row as usize) < end);
        (&rows[begin..begin + len], values.map(|values| &values[begin..begin + len]))
    }

    fn add_reach(&mut self, columns: &Columns, j: usize, delta: f64) {
        let entries = self.entries(columns, j);
        let Self { first, reach, touched, .. } = self;
        for_each(entries, |row, x| {
            let row = row - *first;
            let size = x.abs();
            let [sum, reach] = &mut reach[row];
            touched.note(row, *sum == 0.0);
            *sum += size;
            *reach += size * delta;
        });
    }

    fn curvature(&mut self) {
        for &row in &self.touched.list[..self.touched.len] {
            let row = row as usize;
            let [sum, reach] = std::mem::take(&mut self.reach[row]);
            let weight = if self.weighted { self.labels[row].abs() } else { 1.0 };
            self.rows[row].curvature =
                weight * sigmoid_derivative((self.scores[row].abs() - reach).max(0.0)) * sum;
        }
        self.touched.clear();
    }

    fn move_scores(&mut self, columns: &Columns, j: usize, step: f64) {
        let entries = self.entries(columns, j);
        let Self { first, scores, touched, .. } = self;
        for_each(entries, |row, x| {
            let row = row - *first;
            scores[row] += step * x;
            let new = !touched.seen[row];
            touched.note(row, new);
            touched.seen[row] = true;
        });
    }

    fn follow_scores(&mut self) {
        for &row in &self.touched.list[..self.touched.len] {
            let row = row as usize;
            self.touched.seen[row] = false;
            self.rows[row].pull = pull(self.labels[row], self.scores[row]);
        }
        self.touched.clear();
    }
}

/// -c_i y_i σ(-m_i).
fn pull(label: f64, score: f64) -> f64 {
    -label * wrong_probability(label.signum() * score)
}

/// A list of rows, each once, built without a branch: a row is always written, and kept if it is
/// new.
#[derive(Debug, Clone)]
struct Touched {
    list: Vec<u32>, // `[rows + 1]`
    len: usize,
    seen: Vec<bool>, // all false between uses; marks rows where no other state does
}

impl Touched {
    fn new(rows: usize) -> Self {
        Self { list: vec![0; rows + 1], len: 0, seen: vec![false; rows] }
    }

    fn note(&mut self, row: usize, new: bool) {
        self.list[self.len] = row as u32;
        self.len += usize::from(new);
    }

    fn clear(&mut self) {
        self.len = 0;
    }
}
