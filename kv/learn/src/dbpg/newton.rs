//! Newton's method on the support: the second-order polish between passes.
//!
//! Block steps find quickly *which* weights are not 0, and crawl when the columns of those are nearly dependent: every step
//! bounds the curvature coordinate by coordinate. On the support A, some hundred columns of millions, the whole Hessian is
//! affordable. With σ'(m_i) in D and signs y_i that cancel,
//!
//! ```text
//! g_A = -Σ_i y_i σ(-m_i) x_iA        H_A = X_Aᵀ D X_A
//! q(v) = g_A·(v - w) + ½ (v - w)ᵀ H_A (v - w) + λ‖v‖₁
//! ```
//!
//! Weights of rows multiply σ(-m_i) and D; a ridge adds λ₂ w to g_A and λ₂ to the diagonal of H_A; λ of an intercept is 0.
//!
//! The sums run over rows, so workers' parts just add up. [`Model::minimise`] finds the v that minimises q. F falls along the
//! way from w to v, because F is convex and q agrees with it to first order at w: [`choose`] looks how far. Weights that
//! reach 0 on the way leave the support; none enters, that is the block steps' business, and so is the proof that none is
//! missing (|g| ≤ λ off the support).
//!
//! This is the proximal Newton method with the working set of newGLMNET (Yuan, Ho and Lin, JMLR 2012; convergence with a line
//! search: Lee, Sun and Saunders, SIAM J. Optim. 2014). Their inner coordinate descent crawls for the same reason as the block
//! steps, so q is minimised by Bertsekas's projected Newton method (SIAM J. Control Optim. 1982), within an orthant at a time
//! as in Andrew and Gao's OWL-QN (ICML 2007).
//!
//! Place: pass > worker: **gram** > driver: **minimise** > worker: **losses** > driver: **choose** > set. Nothing is sent here.

use std::ops::Range;

use super::cholesky::{Factor, Square, dot};
use super::gradient::Columns;
use super::logistic::loss;
use super::pool::Pool;

/// Shares of the way from w to v at which workers measure the loss.
pub(super) const SHARES: [f64; 8] =
    [1.0, 0.5, 0.25, 0.125, 0.0625, 1.0 / 64.0, 1.0 / 256.0, 1.0 / 1024.0];

/// Part of the slope that a step must deliver: Armijo's rule with the usual constant.
const SLOPE_SHARE: f64 = 1e-4;

/// Faces of the model that are tried in one minimisation; each costs a factorisation.
const ROUNDS_MAX: usize = 30;

/// A minimisation ends at the minimum of a face that gained less than this share of all gained so far against the one before:
/// the next Newton step, whose model is another, takes the rest. Convergence stays about that fast (inexact Newton: Lee, Sun
/// and Saunders). Rounds that only stop weights gain little each and say nothing.
const FACE_HELPS: f64 = 1e-4;

/// Sweeps of coordinate descent a round: together they cost a small part of a factorisation.
const SWEEPS: usize = 5;

/// Entries of the rows that are taken together: 256 KiB of places.
const RUN_ENTRIES: usize = 128 << 10;

/// A gradient counts as outside ±λ from here on.
const OUTSIDE: f64 = 1.0 + 1e-9;

/// A weight that a step leaves this share of has arrived at 0.
const ARRIVED: f64 = 1e-14;

/// A weight is as good as 0 when the step passes it after this share.
const NEAR: f64 = 1e-7;

/// A column whose pivot is this share of its diagonal or less may depend on others: the Hessian comes in single precision.
const DEPENDENT: f64 = 1e-6;

/// One worker's rows, cut down to the columns of the support.
#[derive(Debug, Default)]
pub(super) struct Support {
    /// This worker's column of each weight, if it has one: `[n]`.
    columns: Vec<Option<usize>>,
    /// Where each row's entries begin: `[rows + 1]`.
    starts: Vec<u32>,
    /// Place of the entry's column in the support: `[entries]`, ascending within a row.
    places: Vec<u16>,
    /// None when all are 1.
    values: Option<Vec<f64>>,
}

impl Support {
    /// Gathers the columns `keys`: `[n]`, sorted, unique; those that the worker lacks are empty.
    ///
    /// # Panics
    /// If there are more than 2^16 of them.
    pub(super) fn new(columns: &Columns<'_>, rows: usize, keys: &[u64]) -> Self {
        assert!(keys.len() <= 1 << 16, "places are u16");
        let columns_of: Vec<Option<usize>> =
            keys.iter().map(|key| columns.keys.binary_search(key).ok()).collect();
        let mut starts = vec![0_u32; rows + 1];
        for &column in columns_of.iter().flatten() {
            columns.for_each(column, |row, _| starts[row + 1] += 1);
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut places = vec![0; starts[rows] as usize];
        let mut values = columns.values.map(|_| vec![0.0; places.len()]);
        for (place, &column) in columns_of.iter().enumerate() {
            let Some(column) = column else { continue };
            columns.for_each(column, |row, x| {
                let at = next[row] as usize;
                next[row] += 1;
                places[at] = place as u16;
                if let Some(values) = &mut values {
                    values[at] = x;
                }
            });
        }
        Support { columns: columns_of, starts, places, values }
    }

    /// Number of weights.
    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }

    /// This worker's column of each weight, if it has one: `[n]`.
    pub(super) fn columns(&self) -> &[Option<usize>] {
        &self.columns
    }

    /// Where the entries of a row lie.
    fn row(&self, row: usize) -> Range<usize> {
        self.starts[row] as usize..self.starts[row + 1] as usize
    }

    /// This worker's part of H_A and g_A where the loss's slope along x_i·w is `pulls`: `[rows]`, as `labels`, which hold the
    /// weights of rows. Returns the lower triangle of H_A row by row, then g_A: `[n (n + 3) / 2]`.
    ///
    /// One line of H_A at a time, so that what is added to stays in the first cache: the entries of its column name the rows
    /// whose other entries go there. Rows are taken in runs that stay in the second. Threads share out the lines.
    pub(super) fn gram(
        &self,
        columns: &Columns<'_>,
        (labels, pulls): (&[f64], &[f64]),
        pool: &Pool,
    ) -> Vec<f64> {
        let mut packed = vec![0.0; packed_len(self.len())];
        let (mut hessian, mut gradient) = packed.split_at_mut(triangle(self.len()));
        let bend = |(pull, label): (&f64, &f64)| pull.abs() * (1.0 - (pull / label).abs());
        let bends: Vec<f64> = pulls.iter().zip(labels).map(bend).collect();
        let threads = pool.threads_for(self.places.len());
        // Line n has n numbers, so half of them lie beyond n / √2.
        let end =
            |part: usize| (self.len() as f64 * (part as f64 / threads as f64).sqrt()) as usize;
        let ends = (1..threads).map(end).chain(std::iter::once(self.len()));
        let mut begin = 0;
        let parts = ends.map(|end| {
            let lines = std::mem::replace(&mut begin, end)..end;
            let numbers = triangle(lines.end) - triangle(lines.start);
            let (h, h_rest) = std::mem::take(&mut hessian).split_at_mut(numbers);
            let (g, g_rest) = std::mem::take(&mut gradient).split_at_mut(lines.len());
            (hessian, gradient) = (h_rest, g_rest);
            (lines, h, g)
        });
        pool.share(parts, |(lines, hessian, gradient)| {
            self.gram_lines(columns, (pulls, &bends), lines, hessian, gradient);
        });
        packed
    }

    /// Some lines of H_A, which begin `hessian`, and their numbers of g_A.
    fn gram_lines(
        &self,
        columns: &Columns<'_>,
        (pulls, bends): (&[f64], &[f64]),
        lines: Range<usize>,
        hessian: &mut [f64],
        gradient: &mut [f64],
    ) {
        let mut cursors = vec![0; lines.len()];
        let mut ends: Vec<u32> = self.starts.clone(); // of each row's entries that have had their turn
        if lines.start > 0 {
            for (row, end) in ends.iter_mut().enumerate().take(pulls.len()) {
                let before = |place: &u16| usize::from(*place) < lines.start;
                *end += self.places[self.row(row)].partition_point(before) as u32;
            }
        }
        let mut end = 0;
        while end < pulls.len() {
            end = self.run_end(end);
            for (at, place) in lines.clone().enumerate() {
                let Some(column) = self.columns[place] else { continue };
                let (rows, values) = columns.column(column);
                let line = &mut hessian[triangle(place) - triangle(lines.start)..][..=place];
                while let Some(&row) = rows.get(cursors[at]).filter(|row| (**row as usize) < end) {
                    let row = row as usize;
                    let x = values.map_or(1.0, |values| values[cursors[at]]);
                    gradient[at] += pulls[row] * x;
                    ends[row] += 1;
                    let entries = self.starts[row] as usize..ends[row] as usize;
                    self.add_row(entries, bends[row] * x, line);
                    cursors[at] += 1;
                }
            }
        }
    }

    /// The end of the run of rows that begins at `row`.
    fn run_end(&self, row: usize) -> usize {
        let last = self.starts[row] as usize + RUN_ENTRIES;
        let len = self.starts[row + 1..].partition_point(|&start| start as usize <= last);
        (row + len.max(1)).min(self.starts.len() - 1)
    }

    /// Adds `weight` times some entries of a row to a line of H_A.
    fn add_row(&self, entries: Range<usize>, weight: f64, line: &mut [f64]) {
        let places = &self.places[entries.clone()];
        match &self.values {
            None => places.iter().for_each(|&place| line[place as usize] += weight),
            Some(values) => {
                let entries = places.iter().zip(&values[entries]);
                entries.for_each(|(&place, x)| line[place as usize] += weight * x);
            }
        }
    }

    /// This worker's loss where its weights have moved by each of [`SHARES`] of `step`: `[n]`.
    pub(super) fn losses(
        &self,
        labels: &[f64],
        margins: impl Iterator<Item = f64> + Clone,
        step: &[f64],
    ) -> Vec<f64> {
        let way = |row: usize| -> f64 {
            let places = &self.places[self.row(row)];
            match &self.values {
                None => places.iter().map(|&place| step[place as usize]).sum(),
                Some(values) => {
                    let entries = places.iter().zip(&values[self.row(row)]);
                    entries.map(|(&place, x)| step[place as usize] * x).sum()
                }
            }
        };
        let ways = labels.iter().enumerate().map(|(row, y)| y.signum() * way(row));
        let ways: Vec<f64> = ways.collect();
        let at = |share: f64| margins.clone().zip(&ways).map(move |(m, way)| m + share * way);
        SHARES.iter().map(|&share| loss(labels, at(share))).collect()
    }
}

/// Entries of the lower triangle of an n × n matrix; where its row n begins in a larger one.
const fn triangle(n: usize) -> usize {
    n * (n + 1) / 2
}

/// Numbers in H_A and g_A together.
pub(super) const fn packed_len(n: usize) -> usize {
    triangle(n) + n
}

/// The share of the way that is gone, and F there: the longest that lowers F as its slope at the start promises.
///
/// `objective` is F at the start, `slope` that of F towards the end (below 0), `objectives` F at [`SHARES`].
pub(super) fn choose(objective: f64, slope: f64, objectives: &[f64]) -> Option<(f64, f64)> {
    let fits = |&(share, &at): &(f64, &f64)| {
        at < objective && at <= objective + SLOPE_SHARE * share * slope
    };
    SHARES.into_iter().zip(objectives).find(fits).map(|(share, &at)| (share, at))
}

/// q of the module's page: F on the support, to second order.
#[derive(Debug)]
pub(super) struct Model {
    /// λ of each weight: `[n]`.
    pub(super) lambda: Vec<f64>,
    /// w: `[n]`.
    pub(super) weights: Vec<f64>,
    /// g_A: `[n]`.
    pub(super) gradient: Vec<f64>,
    /// H_A, both triangles.
    pub(super) hessian: Square,
}

impl Model {
    /// From the sum of all workers' parts, laid out as [`Support::gram`] does.
    ///
    /// # Panics
    /// If lengths do not match.
    pub(super) fn new(lambda: Vec<f64>, weights: Vec<f64>, packed: &[f64]) -> Self {
        let n = weights.len();
        assert_eq!(packed.len(), packed_len(n), "a triangle and a line");
        assert_eq!(lambda.len(), n, "one a weight");
        let mut hessian = Square::zero(n);
        for row in 0..n {
            for (column, &h) in packed[triangle(row)..][..=row].iter().enumerate() {
                hessian.row_mut(row)[column] = h;
                hessian.row_mut(column)[row] = h;
            }
        }
        Model { lambda, weights, gradient: packed[triangle(n)..].to_vec(), hessian }
    }

    /// Adds ½ λ₂ v² of each weight to q. `l2: [n]`.
    pub(super) fn add_ridge(&mut self, l2: &[f64]) {
        for (k, l2) in l2.iter().enumerate() {
            self.gradient[k] += l2 * self.weights[k];
            self.hessian.row_mut(k)[k] += l2;
        }
    }

    /// H (v - w).
    fn bend(&self, v: &[f64]) -> Vec<f64> {
        let step: Vec<f64> = v.iter().zip(&self.weights).map(|(v, w)| v - w).collect();
        (0..v.len()).map(|row| dot(self.hessian.row(row), &step)).collect()
    }

    /// q(v), given H (v - w).
    fn value(&self, v: &[f64], bend: &[f64]) -> f64 {
        let parts = v.iter().zip(&self.weights).zip(&self.gradient).zip(bend).zip(&self.lambda);
        parts.map(|((((v, w), g), b), lambda)| (g + 0.5 * b) * (v - w) + lambda * v.abs()).sum()
    }

    /// The slope of F at w towards v; its length bounds what F can lose on the way.
    pub(super) fn slope(&self, v: &[f64]) -> f64 {
        let parts = v.iter().zip(&self.weights).zip(&self.gradient).zip(&self.lambda);
        parts.map(|(((v, w), g), lambda)| g * (v - w) + lambda * (v.abs() - w.abs())).sum()
    }

    /// The v that minimises q, or where [`ROUNDS_MAX`] rounds lead to: `[n]`. Above q(w) by rounding at most. Also whether
    /// columns were met that may depend on each other, so that there may be other such v.
    ///
    /// A round takes the weights that are not 0 with their signs fixed, where q is quadratic, and goes towards its minimum; a
    /// weight that would change its sign stops at 0. It ends when none does and no weight at 0 is pulled away. A few sweeps of
    /// coordinate descent settle most of what goes to 0 cheaply at first, and bring back what is pulled away later.
    pub(super) fn minimise(&self) -> (Vec<f64>, bool) {
        let mut v = self.weights.clone();
        let mut bend = vec![0.0; v.len()];
        let mut face = self.first_face();
        let mut factor = Factor::default();
        let mut sweeps = true;
        let mut values = [self.value(&v, &bend); 2]; // at the start, and at the last minimum of a face
        for _ in 0..ROUNDS_MAX {
            if sweeps {
                self.sweep(&mut v, &mut bend);
            }
            face.retain(|&k| v[k] != 0.0);
            let mut inside = vec![false; v.len()];
            face.iter().for_each(|&k| inside[k] = true);
            face.extend((0..v.len()).filter(|&k| v[k] != 0.0 && !inside[k]));
            let downhill: Vec<f64> = face
                .iter()
                .map(|&k| -self.gradient[k] - bend[k] - self.lambda[k] * v[k].signum())
                .collect();
            let Some(step) = factor.solve(&self.hessian, &face, &downhill) else { break };
            let path = Path { model: self, face: &face, step: &step };
            if let Some((next, next_bend, whole)) = path.best(&v, &bend) {
                (v, bend, sweeps) = (next, next_bend, whole);
                if whole {
                    let [start, before] = values;
                    values[1] = self.value(&v, &bend);
                    let helped = before - values[1] > FACE_HELPS * (start - values[1]);
                    if !helped || self.rests(&v, &bend) {
                        break;
                    }
                }
            } else if path.stop_nearest(&mut v) {
                (bend, sweeps) = (self.bend(&v), false);
            } else {
                break;
            }
        }
        let dependent = factor.met_dependence(DEPENDENT);
        (v, dependent)
    }

    /// Minimises q in one weight after the other, [`SWEEPS`] times over, and moves H (v - w) along.
    fn sweep(&self, v: &mut [f64], bend: &mut [f64]) {
        let n = v.len();
        for k in (0..SWEEPS).flat_map(|_| 0..n) {
            let row = self.hessian.row(k);
            let pull = row[k] * v[k] - self.gradient[k] - bend[k];
            let to = match pull.abs() - self.lambda[k] {
                rest if rest <= 0.0 => 0.0,
                rest => rest.copysign(pull) / row[k],
            };
            let step = to - v[k];
            if step != 0.0 && step.is_finite() {
                v[k] = to;
                bend.iter_mut().zip(row).for_each(|(bend, h)| *bend += h * step);
            }
        }
    }

    /// All weights, those last that lie nearest to 0 by the curvature's measure: they are the likeliest to leave, and what
    /// comes before them in the factor stays.
    pub(super) fn first_face(&self) -> Vec<usize> {
        let distance = |k: usize| self.weights[k] * self.weights[k] * self.hessian.row(k)[k];
        let mut face: Vec<usize> = (0..self.weights.len()).collect();
        face.sort_by(|&k, &l| distance(l).total_cmp(&distance(k)));
        face
    }

    /// Whether no weight at 0 is pulled away from it.
    fn rests(&self, v: &[f64], bend: &[f64]) -> bool {
        let mut parts = v.iter().zip(&self.gradient).zip(bend).zip(&self.lambda);
        parts.all(|(((&v, g), bend), lambda)| v != 0.0 || (g + bend).abs() <= lambda * OUTSIDE)
    }
}

/// The way from a point of the model along a step, bent where weights stop at 0.
struct Path<'a> {
    model: &'a Model,
    /// Which weights move.
    face: &'a [usize],
    /// Of the weights in `face`.
    step: &'a [f64],
}

impl Path<'_> {
    /// The lowest of some points on it, H (v - w) there, and whether it is the end, with no weight stopped. None when no point
    /// is lower than `from`.
    fn best(&self, from: &[f64], bend: &[f64]) -> Option<(Vec<f64>, Vec<f64>, bool)> {
        let mut lowest = self.model.value(from, bend);
        let mut best = None;
        for share in self.shares(from) {
            let (v, stopped) = self.at(from, share);
            let bend = self.model.bend(&v);
            let value = self.model.value(&v, &bend);
            if value < lowest {
                lowest = value;
                best = Some((v, bend, share == 1.0 && !stopped));
            }
            if share == 1.0 && !stopped {
                break; // the minimum of the face
            }
        }
        best
    }

    fn at(&self, from: &[f64], share: f64) -> (Vec<f64>, bool) {
        let mut v = from.to_vec();
        let mut stopped = false;
        for (&k, step) in self.face.iter().zip(self.step) {
            let to = v[k] + share * step;
            let beyond = self.model.lambda[k] > 0.0 && to * v[k].signum() <= ARRIVED * v[k].abs();
            stopped |= beyond;
            v[k] = if beyond { 0.0 } else { to };
        }
        (v, stopped)
    }

    /// Puts weights at 0 that the step stops before it has begun; false when there are none.
    fn stop_nearest(&self, v: &mut [f64]) -> bool {
        let mut any = false;
        for (&k, step) in self.face.iter().zip(self.step) {
            if v[k] * step < 0.0 && v[k].abs() <= NEAR * step.abs() {
                (v[k], any) = (0.0, true);
            }
        }
        any
    }

    /// Where to look: at halves, and where the first weight stops, the second, the fourth, and so on. Of nearly dependent
    /// columns that rely on each other one may stop at once; then all halves are too far.
    fn shares(&self, from: &[f64]) -> Vec<f64> {
        let stops = self.face.iter().zip(self.step).map(|(&k, step)| -from[k] / step);
        let mut stops: Vec<f64> = stops.filter(|share| (0.0..1.0).contains(share)).collect();
        stops.sort_by(f64::total_cmp);
        let at = |power: usize| stops.get((1 << power) - 1).copied();
        [1.0, 0.5, 0.25].into_iter().chain((0..usize::BITS as usize).map_while(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dbpg::cholesky::tests::noise;
    use crate::dbpg::gradient::{TrustRegion, Worker};

    const KEYS: [u64; 3] = [2, 5, 9];
    const VALUES: [f64; 6] = [0.5, -2.0, 1.0, 3.0, -1.0, 0.25];
    const LABELS: [f64; 3] = [1.0, -1.0, 1.0];

    fn columns() -> Columns<'static> {
        Columns {
            keys: &KEYS,
            starts: &[0, 2, 4, 6],
            rows: &[0, 1, 1, 2, 2, 0],
            values: Some(&VALUES),
        }
    }

    fn worker_at(weights: [f64; 3]) -> Worker {
        let mut worker = Worker::new(LABELS.to_vec(), 3, TrustRegion::default());
        worker.apply(&columns(), 0..3, &weights, &[true; 3]);
        worker
    }

    /// Key 7 is nobody's; key 2 is left out.
    #[test]
    fn gram_is_the_second_order_of_the_loss() {
        let at = [0.3, -0.7, 1.1];
        let worker = worker_at(at);
        let support = Support::new(&columns(), 3, &[5, 7, 9]);
        assert_eq!(support.columns(), [Some(1), None, Some(2)]);
        let pulls: Vec<f64> = worker.pulls().collect();
        let packed = support.gram(&columns(), (&LABELS, &pulls), &Pool::default());
        let loss = |a: f64, b: f64| worker_at([at[0], at[1] + a, at[2] + b]).loss();
        let (e, zero) = (1e-4, loss(0.0, 0.0));
        let slope = |plus: f64, minus: f64| (plus - minus) / (2.0 * e);
        let bend = |plus: f64, minus: f64| (plus - 2.0 * zero + minus) / (e * e);
        let mixed = (loss(e, e) - loss(e, -e) - loss(-e, e) + loss(-e, -e)) / (4.0 * e * e);
        let expected = [
            bend(loss(e, 0.0), loss(-e, 0.0)),
            0.0,
            0.0,
            mixed,
            0.0,
            bend(loss(0.0, e), loss(0.0, -e)),
            slope(loss(e, 0.0), loss(-e, 0.0)),
            0.0,
            slope(loss(0.0, e), loss(0.0, -e)),
        ];
        for (packed, expected) in packed.iter().zip(expected) {
            assert!((packed - expected).abs() < 1e-6, "{packed} is not {expected}");
        }
    }

    /// Enough entries to wake all threads.
    #[test]
    fn any_number_of_threads_makes_the_same_gram() {
        let (count, each) = (90_usize, 2_000_usize);
        let keys: Vec<u64> = (0..count as u64).collect();
        let starts: Vec<usize> = (0..=count).map(|j| j * each).collect();
        let entry = |j: usize| move |at: usize| (at * 3 + j % 3) as u32;
        let rows: Vec<u32> = (0..count).flat_map(|j| (0..each).map(entry(j))).collect();
        let values = noise(rows.len(), 3);
        let pulls: Vec<f64> = noise(3 * each, 4).iter().map(|x| 0.5 * x).collect();
        for values in [None, Some(&values[..])] {
            let columns = Columns { keys: &keys, starts: &starts, rows: &rows, values };
            let support = Support::new(&columns, 3 * each, &keys);
            let gram = |threads: usize| {
                let pool = Pool::new(threads.try_into().expect("it is above 0"));
                support.gram(&columns, (&vec![1.0; 3 * each], &pulls), &pool)
            };
            let alone = gram(1);
            assert!(alone.iter().any(|number| *number != 0.0));
            assert!((2..5).all(|threads| gram(threads) == alone));
        }
    }

    #[test]
    fn losses_are_those_on_the_way() {
        let (from, step) = ([0.3, -0.7, 1.1], [0.4, 0.0, -1.1]);
        let worker = worker_at(from);
        let support = Support::new(&columns(), 3, &KEYS);
        let losses = support.losses(&LABELS, worker.margins(), &step);
        for (share, loss) in SHARES.into_iter().zip(losses) {
            let there = worker_at(std::array::from_fn(|k| from[k] + share * step[k])).loss();
            assert!((loss - there).abs() < 1e-14, "{share}");
        }
    }

    #[test]
    fn an_empty_support_is_no_trouble() {
        let support = Support::new(&columns(), 3, &[]);
        assert!(support.gram(&columns(), (&LABELS, &[0.5; 3]), &Pool::default()).is_empty());
        assert!(Model::new(Vec::new(), Vec::new(), &[]).minimise().0.is_empty());
        let nowhere = Support::default();
        assert_eq!(nowhere.len(), 0);
    }

    /// A model with H = AᵀA of so many rows: singular when they are fewer than `n`.
    fn model(lambda: f64, n: usize, rows: usize, seed: u64) -> Model {
        let a = noise(rows * n, seed);
        let mut packed = Vec::new();
        for k in 0..n {
            for l in 0..=k {
                packed.push((0..rows).map(|row| a[row * n + k] * a[row * n + l]).sum());
            }
        }
        // In the range of H, as gradients of a loss are: else q may have no minimum.
        let g = noise(rows, seed + 1);
        packed.extend((0..n).map(|k| (0..rows).map(|row| a[row * n + k] * g[row]).sum::<f64>()));
        Model::new(vec![lambda; n], noise(n, seed + 2), &packed)
    }

    /// At the minimum no single weight can do better, and q is convex.
    fn assert_minimum(model: &Model, v: &[f64]) {
        let bend = model.bend(v);
        assert!(model.value(v, &bend) <= model.value(&model.weights, &vec![0.0; v.len()]));
        for k in 0..v.len() {
            let g = model.gradient[k] + bend[k];
            let off = if v[k] == 0.0 {
                g.abs() - model.lambda[k]
            } else {
                (g + model.lambda[k] * v[k].signum()).abs()
            };
            assert!(off < 1e-7, "weight {k} is {}: its gradient is {off:e} off", v[k]);
        }
    }

    #[test]
    fn minimise_finds_the_minimum() {
        for seed in 0..40 {
            for lambda in [0.0, 0.1, 1.0, 100.0] {
                let (regular, singular) = (model(lambda, 12, 20, seed), model(lambda, 12, 8, seed));
                assert_minimum(&regular, &regular.minimise().0);
                if lambda > 0.0 {
                    assert_minimum(&singular, &singular.minimise().0);
                }
            }
        }
        assert_eq!(model(100.0, 12, 20, 1).minimise().0, [0.0; 12]);
    }

    #[test]
    fn a_ridge_and_a_free_weight_have_their_minimum() {
        for seed in 0..20 {
            let mut model = model(1.0, 12, 8, seed);
            model.lambda[3] = 0.0;
            let plain = model.value(&[0.5; 12], &model.bend(&[0.5; 12]));
            let l2 = std::array::from_fn::<f64, 12, _>(|k| if k == 3 { 0.0 } else { 0.7 });
            model.add_ridge(&l2);
            let at = |v: f64, w: f64| 0.35 * (v * v - w * w);
            let (w, ridge) = (&model.weights, |k: usize| if k == 3 { 0.0 } else { 1.0 });
            let added: f64 = (0..12).map(|k| ridge(k) * at(0.5, w[k])).sum();
            let with = model.value(&[0.5; 12], &model.bend(&[0.5; 12]));
            assert!((with - plain - added).abs() < 1e-12, "{with} is not {plain} and {added}");
            assert_minimum(&model, &model.minimise().0);
        }
    }

    #[test]
    fn minimise_agrees_with_a_grid() {
        let model = model(0.4, 2, 5, 3);
        let v = model.minimise().0;
        let best = model.value(&v, &model.bend(&v));
        for i in 0..401 * 401 {
            let other = [f64::from(i % 401 - 200) / 100.0, f64::from(i / 401 - 200) / 100.0];
            assert!(best <= model.value(&other, &model.bend(&other)) + 1e-12, "{other:?}");
        }
    }

    #[test]
    fn odd_models_end_as_well() {
        let flat = Model::new(vec![1.0; 2], vec![0.5, -2.0], &[0.0; 5]);
        assert_eq!(flat.minimise().0, [0.0; 2], "nothing but the penalty");
        let broken = Model::new(vec![1.0], vec![0.5], &[f64::NAN, 1.0]);
        assert!(broken.minimise().0 == [0.5] || broken.slope(&broken.minimise().0).is_nan());
    }

    #[test]
    fn the_longest_step_that_delivers_is_chosen() {
        let mut objectives = [9.0; SHARES.len()];
        (objectives[0], objectives[1]) = (11.0, 9.9999999);
        assert_eq!(choose(10.0, -4.0, &objectives), Some((0.25, 9.0)));
        assert_eq!(choose(10.0, -4.0, &[f64::NAN; SHARES.len()]), None);
        assert_eq!(choose(10.0, -4.0, &[10.0; SHARES.len()]), None);
    }
}
