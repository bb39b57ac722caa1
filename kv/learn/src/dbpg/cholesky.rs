//! Dense linear algebra of the Newton step: a symmetric matrix H, and solutions of H d = b on
//! chosen rows and columns of it.
//!
//! Successive faces differ little, so [`Factor`] keeps the valid part of the previous factor.
//! `newton` gives H and the faces their meaning.
//!
//! Place: pass > worker: gram > driver: minimise (**factor**) > worker: losses > driver: choose >
//! set.

use std::sync::Mutex;
use std::thread;

/// Added to the diagonal, relative to its size, so that rounding makes no pivot negative.
const RIDGE: f64 = 1e-12;

/// A pivot below this share of its diagonal is rounding.
const PIVOT_MIN: f64 = 1e-14;

/// Rows of the factor computed together: they stay in the second-level cache while all rows above
/// are streamed.
const PANEL: usize = 16;

/// Rows above that are streamed together, and how much of them at a time, so that it stays in the
/// first-level cache while the panel's rows are used. With this many sums in progress none waits
/// for another's additions.
const LINES: usize = 4;
const RUN: usize = 512;

/// Partial sums of a dot product: as many as the widest vector registers hold, and the same number
/// on other machines.
const LANES: usize = 8;

/// Rows of a matrix that justify another thread.
const THREAD_ROWS: usize = 256;

/// More threads than this wait for memory.
const THREADS_MAX: usize = 8;

/// Entries of the lower triangle of an n × n matrix, which is also where row n begins in a larger
/// one.
pub(super) const fn triangle(n: usize) -> usize {
    n * (n + 1) / 2
}

/// The Cholesky factor of H on one face, the rows and columns it covers. The next face's factor is
/// computed from it, in the same memory.
#[derive(Default)]
pub(super) struct Factor {
    face: Vec<usize>,
    /// Share of the diagonal that was added.
    ridge: f64,
    /// The smallest pivot so far, as a share of its diagonal; `None` before the first.
    pivot_min: Option<f64>,
    matrix: Triangle,
}

impl Factor {
    /// Solves H d = b on the rows and columns `face`, with a small addition to the diagonal, larger
    /// if H is singular. `None` if H is 0 or not a number.
    pub(super) fn solve(
        &mut self,
        hessian: &Triangle,
        face: &[usize],
        b: &[f64],
    ) -> Option<Vec<f64>> {
        let diagonal: Vec<f64> = face.iter().map(|&k| hessian.at(k, k)).collect();
        let largest = diagonal.iter().copied().fold(0.0, f64::max);
        self.ridge = self.ridge.max(RIDGE);
        while largest > 0.0 && self.ridge < 1.0 {
            let done = self.reuse(face);
            for (row, &k) in face.iter().enumerate() {
                let line = self.matrix.row_mut(row);
                for (entry, &l) in line.iter_mut().zip(face).skip(done[row]) {
                    *entry = hessian.at(k, l);
                }
                if done[row] <= row {
                    line[row] += self.ridge * diagonal[row].max(RIDGE * largest);
                }
            }
            if let Some(pivot) = self.matrix.factor(&done) {
                self.pivot_min = Some(self.pivot_min.map_or(pivot, |known| known.min(pivot)));
                self.face = face.to_vec();
                return Some(self.matrix.solve(b));
            }
            self.ridge *= 1e3;
        }
        None
    }

    /// Whether any column of any face was a combination of others, up to this share of its
    /// diagonal.
    pub(super) fn met_dependence(&self, share: f64) -> bool {
        self.pivot_min.is_some_and(|pivot| pivot <= share)
    }

    /// Keeps the valid part of the last factor for `face`: the rows before the first change, and
    /// that many columns of the others. Returns how many columns of each row are valid.
    fn reuse(&mut self, face: &[usize]) -> Vec<usize> {
        let last = std::mem::take(&mut self.face);
        let same = face.iter().zip(&last).take_while(|(new, old)| new == old).count();
        let mut old = last.iter().enumerate();
        let done = face.iter().enumerate().map(|(row, k)| {
            // Faces keep their order: the old row is further on, or this row and all after it are
            // new.
            let Some((from, _)) = old.find(|(_, old)| *old == k) else { return 0 };
            if row < same {
                return row + 1;
            }
            self.matrix.entries.copy_within(triangle(from)..triangle(from) + same, triangle(row));
            same
        });
        let done = done.collect();
        self.matrix.resize(face.len());
        done
    }
}

/// A symmetric matrix, or its Cholesky factor: the lower triangle, row by row.
#[derive(Debug, Default)]
pub(super) struct Triangle {
    n: usize,
    entries: Vec<f64>,
}

impl Triangle {
    /// Creates it from the lower triangle of an n × n matrix, row by row.
    ///
    /// # Panics
    /// If there are not [`triangle`] entries.
    pub(super) fn new(n: usize, entries: Vec<f64>) -> Self {
        assert_eq!(entries.len(), triangle(n), "the triangle of {n} rows");
        Triangle { n, entries }
    }

    fn resize(&mut self, n: usize) {
        self.n = n;
        self.entries.resize(triangle(n), 0.0);
    }

    /// The entry in row k and column l, on either side of the diagonal.
    pub(super) fn at(&self, k: usize, l: usize) -> f64 {
        self.entries[triangle(k.max(l)) + k.min(l)]
    }

    /// A row up to the diagonal.
    pub(super) fn row(&self, row: usize) -> &[f64] {
        &self.entries[triangle(row)..=triangle(row) + row]
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.entries[triangle(row)..=triangle(row) + row]
    }

    /// The product of a symmetric matrix with `x`: `[n]`.
    pub(super) fn times(&self, x: &[f64]) -> Vec<f64> {
        let mut product = vec![0.0; self.n];
        for (row, &x_row) in x.iter().enumerate() {
            let line = self.row(row);
            product[row] += dot(line, &x[..=row]);
            if x_row != 0.0 {
                add(&mut product[..row], x_row, line);
            }
        }
        product
    }

    /// Replaces the matrix by its factor L, with L Lᵀ equal to it. `None` if it is not positive
    /// definite, else the smallest of the new pivots as a share of its diagonal. `done` tells how
    /// many columns of each row are L's already: `[n]`.
    ///
    /// Rows of a panel only read those above it, so panels can be computed in parallel, except for
    /// the triangle where they meet.
    fn factor(&mut self, done: &[usize]) -> Option<f64> {
        let n = self.n;
        let mut pivot_min = f64::INFINITY;
        let threads = threads(n);
        for begin in (0..n).step_by(PANEL * threads) {
            let end = (begin + PANEL * threads).min(n);
            let (above, mut below) = self.entries.split_at_mut(triangle(begin));
            let above = &*above;
            let panels = (begin..end).step_by(PANEL).map(|first| {
                let end = (first + PANEL).min(end);
                let len = triangle(end) - triangle(first);
                let (rows, rest) = std::mem::take(&mut below).split_at_mut(len);
                below = rest;
                Panel { first, rows, done: &done[first..end] }
            });
            let panels = Mutex::new(panels.collect::<Vec<_>>().into_iter());
            let next = || panels.lock().ok()?.next();
            let extend = &|| {
                while let Some(panel) = next() {
                    panel.extend(above);
                }
            };
            thread::scope(|scope| {
                for _ in 1..threads {
                    // If the system gives no more threads, the existing ones do the work.
                    let _ = thread::Builder::new().spawn_scoped(scope, extend);
                }
                extend();
            });
            for column in begin..end {
                if done[column] <= column {
                    pivot_min = pivot_min.min(self.factor_pivot(column)?);
                }
                let (above, below) = self.entries.split_at_mut(triangle(column + 1));
                let rows = &mut below[..triangle(end) - triangle(column + 1)];
                let mut panel = Panel { first: column + 1, rows, done: &done[column + 1..end] };
                panel.fill(&above[triangle(column)..]);
            }
        }
        Some(pivot_min)
    }

    /// The pivot's share of the diagonal, if it is more than rounding.
    fn factor_pivot(&mut self, column: usize) -> Option<f64> {
        let (left, pivot) = self.row_mut(column).split_at_mut(column);
        let rest = pivot[0] - dot(left, left);
        let share = rest / pivot[0];
        pivot[0] = rest.sqrt();
        (share > PIVOT_MIN).then_some(share)
    }

    /// Solves L Lᵀ x = b.
    fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for row in 0..self.n {
            x[row] = (x[row] - dot(&self.row(row)[..row], &x[..row])) / self.row(row)[row];
        }
        for row in (0..self.n).rev() {
            x[row] /= self.row(row)[row];
            let value = x[row];
            add(&mut x[..row], -value, self.row(row));
        }
        x
    }
}

/// The rows and columns of H, taken in the order of `face`, that are combinations of earlier ones:
/// each with the non-zero coefficients of its combination. `face`: indices into H. Only rows that
/// are no combinations themselves are combined.
///
/// A pivot of at most `share` of its diagonal counts as 0. One factorisation, of the rows that are
/// no combinations.
pub(super) fn dependents(
    hessian: &Triangle,
    face: &[usize],
    share: f64,
) -> Vec<(usize, Vec<(usize, f64)>)> {
    let mut kept = Vec::new();
    let mut factor = Vec::<Vec<f64>>::new();
    let mut combinations = Vec::new();
    for &k in face {
        let mut line: Vec<f64> = kept.iter().map(|&l: &usize| hessian.at(k, l)).collect();
        line.reserve(1);
        for (column, above) in factor.iter().enumerate() {
            let rest = line[column] - dot(&line[..column], &above[..column]);
            line[column] = rest / above[column];
        }
        let diagonal = hessian.at(k, k);
        let rest = diagonal - dot(&line, &line);
        if rest > share * diagonal {
            line.push(rest.sqrt());
            kept.push(k);
            factor.push(line);
            continue;
        }
        for (row, of) in factor.iter().enumerate().rev() {
            line[row] /= of[row];
            let value = line[row];
            line[..row].iter_mut().zip(of).for_each(|(x, l)| *x -= value * l);
        }
        let of = kept.iter().copied().zip(line).filter(|(_, share)| *share != 0.0);
        combinations.push((k, of.collect()));
    }
    combinations
}

/// Some rows of a triangle that becomes L, from row `first` on.
struct Panel<'a> {
    first: usize,
    rows: &'a mut [f64],
    /// How many columns of each row are L's already.
    done: &'a [usize],
}

impl Panel<'_> {
    /// Computes the columns of L whose own rows are `above`, with the vector instructions of this
    /// machine; the result is the same to the bit on any.
    fn extend(self, above: &[f64]) {
        pulp::Arch::new().dispatch(Extend { panel: self, above });
    }

    /// [`Panel::fill`] for adjacent lines, the first at a multiple of their number.
    #[inline(always)]
    fn fill_all(&mut self, lines: [&[f64]; LINES]) {
        let whole = (lines[0].len() - 1) / LANES * LANES;
        let mut sums = [[[0.0; LANES]; LINES]; PANEL];
        let begin_of = |row: usize| triangle(self.first + row) - triangle(self.first);
        let wanted = |done: usize| done < lines[LINES - 1].len();
        for begin in (0..whole).step_by(RUN) {
            let run = begin..(begin + RUN).min(whole);
            let parts = lines.map(|line| line[run.clone()].as_chunks::<LANES>().0);
            for (row, sums) in sums.iter_mut().enumerate().take(self.done.len()) {
                if wanted(self.done[row]) {
                    let own = &self.rows[begin_of(row)..][run.clone()];
                    add_products(sums, own.as_chunks::<LANES>().0, parts);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate().take(self.done.len()) {
            let begin = begin_of(row);
            let own = &mut self.rows[begin..begin + self.first + row + 1];
            for (line, sums) in lines.iter().zip(sums) {
                let column = line.len() - 1;
                if self.done[row] <= column {
                    let product = total(sums, &own[whole..column], &line[whole..column]);
                    own[column] = (own[column] - product) / line[column];
                }
            }
        }
    }

    /// Computes the column of L whose own row is `line`.
    fn fill(&mut self, line: &[f64]) {
        let column = line.len() - 1;
        let mut begin = 0;
        for (row, &done) in (self.first..).zip(self.done) {
            let own = &mut self.rows[begin..=begin + row];
            begin += row + 1;
            if done <= column {
                let rest = own[column] - dot(&own[..column], &line[..column]);
                own[column] = rest / line[column];
            }
        }
    }
}

/// [`Panel::extend`] in the form that `pulp` compiles for each vector width: everything in it is
/// inlined.
struct Extend<'a, 'b> {
    panel: Panel<'a>,
    above: &'b [f64],
}

impl pulp::NullaryFnOnce for Extend<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let mut columns = 0;
        while triangle(columns) < self.above.len() {
            let line = |at| &self.above[triangle(columns + at)..triangle(columns + at + 1)];
            self.panel.fill_all(std::array::from_fn(line));
            columns += LINES;
        }
    }
}

/// Threads for a matrix of this size: each has enough panels to justify it.
fn threads(n: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    cores.min(n / THREAD_ROWS).clamp(1, THREADS_MAX)
}

/// Adds `share` times `line` to `sums`, up to the shorter length.
pub(super) fn add(sums: &mut [f64], share: f64, line: &[f64]) {
    sums.iter_mut().zip(line).for_each(|(sum, x)| *sum += share * x);
}

/// The dot product of two lines.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    total(&sums, a_rest, b_rest)
}

/// Adds to `sums` as [`dot`] does, for the products of `own` with several lines.
#[inline(always)]
fn add_products(
    sums: &mut [[f64; LANES]; LINES],
    own: &[[f64; LANES]],
    lines: [&[[f64; LANES]]; LINES],
) {
    let [a, b, c, d] = lines;
    let mut local = *sums;
    for ((((own, a), b), c), d) in own.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, line) in local.iter_mut().zip([a, b, c, d]) {
            for lane in 0..LANES {
                sums[lane] += own[lane] * line[lane];
            }
        }
    }
    *sums = local;
}

/// A dot product from the sums of its whole lanes and the rest.
#[inline(always)]
fn total(sums: &[f64; LANES], a_rest: &[f64], b_rest: &[f64]) -> f64 {
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    rest + sums.iter().sum::<f64>()
}

#[cfg(test)]
pub(super) mod tests;
