//! A worker's rows on the columns of the working set.
//!
//! Places of entries take 16 bits: rows are cut into tiles of 2^16, each with its part of every
//! column. Rows of a tile are an array of exactly that many, so no index needs a check.
//! Threads divide columns for sums over rows, whose terms are integers (`fixed`), and tiles for
//! sums within a row, which come in the order of the columns: results are the same to the bit for
//! any number of threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::blocks::{Units, both};
use crate::data::{BLOCK_ROWS, Columns};
use crate::numeric::{Pool, Scale, TERM_MAX, Whole, integer};

/// Rows of a tile: those of a block on disk.
const TILE: usize = BLOCK_ROWS;

/// A row's curvature and how far its score moves.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    /// D_i.
    curvature: f64,
    /// Xd_i.
    direction: f64,
}

/// The working set at one worker.
#[derive(Debug, Default)]
pub(super) struct Working {
    /// This worker's column of each, if it has one: `[n]`, block after block.
    pub(super) columns: Vec<Option<u32>>,
    /// v: `[n]`.
    pub(super) iterate: Vec<f64>,
    /// Where v began: `[n]`.
    pub(super) from: Vec<f64>,
    /// The column without a penalty.
    pub(super) free: Option<usize>,
    /// Where each block's columns end.
    pub(super) ends: Vec<usize>,
    /// h of each column: `[n]`.
    curvatures: Vec<f64>,
    /// Number of entries of each column: `[n]`.
    entries: Vec<u32>,
    tiles: Vec<Tile>,
    /// Whether all values are 1.
    ones: bool,
    /// `[tiles * TILE]`, like `gradients`.
    rows: Vec<Row>,
    /// p_i + D_i Xd_i as an integer, of columns of ones; else as a number's bits.
    gradients: Vec<i64>,
    /// -y_i c_i σ(-m_i).
    pulls: Vec<f64>,
    scale: Option<Scale>,
    /// Largest D_i.
    curvature_max: f64,
    /// Largest |p_i + D_i Xd_i| of which a term still fits an integer.
    gradient_max: f64,
    /// Whether one did not.
    beyond: bool,
}

/// The entries of all columns in the rows of a tile.
#[derive(Debug)]
struct Tile {
    /// Where those of each column end: `[n]`.
    ends: Vec<u32>,
    positions: Vec<u16>,
    /// `None` if all are 1.
    values: Option<Vec<f64>>,
}

impl Tile {
    /// The entries of some adjacent columns.
    fn run(&self, columns: Range<usize>) -> Range<usize> {
        let end = |columns: usize| columns.checked_sub(1).map_or(0, |last| self.ends[last]);
        end(columns.start) as usize..end(columns.end) as usize
    }

    /// The positions of a column, and its values.
    #[inline(always)]
    fn column(&self, k: usize) -> (&[u16], Option<&[f64]>) {
        let run = self.run(k..k + 1);
        (&self.positions[run.clone()], self.values.as_ref().map(|values| &values[run]))
    }
}

/// A column of the plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    /// This worker's column.
    pub(super) column: Option<u32>,
    pub(super) weight: f64,
    pub(super) curvature: f64,
    pub(super) is_free: bool,
}

impl Working {
    /// The columns of the blocks, for the gradients and curvatures of rows; their entries are
    /// gathered next. All columns of all workers are of ones, or none is treated as such.
    pub(super) fn new(
        blocks: &[Vec<Planned>],
        ones: bool,
        pulls: Vec<f64>,
        curvatures: &[f64],
        scale: Scale,
        largest: f64,
    ) -> Self {
        let tiles = pulls.len().div_ceil(TILE);
        let all = || blocks.iter().flatten();
        let mut working = Working {
            columns: all().map(|planned| planned.column).collect(),
            iterate: all().map(|planned| planned.weight).collect(),
            from: all().map(|planned| planned.weight).collect(),
            free: all().position(|planned| planned.is_free),
            curvatures: all().map(|planned| planned.curvature).collect(),
            entries: vec![0; all().count()],
            ends: blocks
                .iter()
                .scan(0, |end, block| {
                    *end += block.len();
                    Some(*end)
                })
                .collect(),
            tiles: Vec::with_capacity(tiles),
            ones,
            rows: vec![Row::default(); tiles * TILE],
            gradients: vec![0; tiles * TILE],
            pulls,
            scale: Some(scale),
            curvature_max: curvatures.iter().fold(0.0, |most: f64, curvature| most.max(*curvature)),
            gradient_max: TERM_MAX * scale.down / largest,
            beyond: false,
        };
        for (row, &curvature) in working.rows.iter_mut().zip(curvatures) {
            row.curvature = curvature;
        }
        working.derive_gradients();
        working
    }

    /// Gathers the entries of the next `rows` rows, whole tiles but for the last: `at` says where
    /// each column of the working set is among `columns`.
    pub(super) fn gather(&mut self, rows: usize, columns: &Columns, at: &[Option<usize>]) {
        let mut begins = vec![0; at.len()];
        for tile in 1..=rows.div_ceil(TILE) {
            let mut of = Tile { ends: Vec::new(), positions: Vec::new(), values: None };
            let parts = at.iter().zip(&mut begins).map(|(at, begin)| {
                let (rows, values) = at.map_or((&[][..], None), |at| columns.column(at));
                let rest = &rows[*begin..];
                let end = *begin + rest.partition_point(|&row| (row as usize) < tile * TILE);
                let run = std::mem::replace(begin, end)..end;
                (&rows[run.clone()], values.map(|values| &values[run]))
            });
            let parts: Vec<(&[u32], Option<&[f64]>)> = parts.collect();
            let nonzeros = parts.iter().map(|(rows, _)| rows.len()).sum();
            of.ends.reserve_exact(parts.len());
            of.positions.reserve_exact(nonzeros);
            of.values = (!self.ones).then(|| Vec::with_capacity(nonzeros));
            for ((rows, values), entries) in parts.into_iter().zip(&mut self.entries) {
                of.positions.extend(rows.iter().map(|&row| row as u16));
                of.ends.push(of.positions.len() as u32);
                *entries += rows.len() as u32;
                match (&mut of.values, values) {
                    (None, _) => {}
                    (Some(own), None) => own.resize(of.positions.len(), 1.0),
                    (Some(own), Some(values)) => own.extend_from_slice(values),
                }
            }
            self.tiles.push(of);
        }
    }

    /// Most bytes of a working set, with the lists of its blocks' Hessians on this many threads.
    pub(super) fn bytes(
        rows: usize,
        columns: usize,
        entries: usize,
        ones: bool,
        threads: usize,
    ) -> usize {
        let tiles = rows.div_ceil(TILE);
        let row = size_of::<Row>() + size_of::<i64>();
        let entry = if ones { size_of::<u16>() } else { size_of::<u16>() + size_of::<f64>() };
        let listed = size_of::<u16>() + if ones { 0 } else { size_of::<f32>() };
        // A block has at most all entries of a tile, of which there are as many in all tiles.
        let lists = TILE * size_of::<u32>() + entries.div_ceil(tiles.max(1)) * listed;
        tiles * (TILE * row + columns * size_of::<u32>())
            + rows * size_of::<f64>()
            + columns * COLUMN_BYTES
            + entries * entry
            + threads * lists
    }

    /// The columns of a block.
    pub(super) fn block(&self, block: usize) -> Range<usize> {
        let begin = block.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[block]
    }

    /// Whether a column is on the active set.
    pub(super) fn is_active(&self, k: usize) -> bool {
        self.iterate[k] != 0.0 || self.free == Some(k)
    }

    fn scale(&self) -> Scale {
        self.scale.expect("it is set with the columns")
    }

    /// Computes the rows' gradients from the steps so far, which removes the rounding of all
    /// changes.
    pub(super) fn derive_gradients(&mut self) {
        let (scale, ones) = (self.scale(), self.ones);
        let rows = self.rows.iter().zip(&self.pulls);
        let gradients = rows.map(|(row, pull)| pull + row.curvature * row.direction);
        let (gradient_max, mut fits) = (self.gradient_max, true);
        for (own, gradient) in self.gradients.iter_mut().zip(gradients) {
            fits &= gradient.abs() <= gradient_max;
            *own = if ones { scale.to(gradient) } else { gradient.to_bits() as i64 };
        }
        self.beyond |= !fits;
    }

    /// Σ |p_i + D_i Xd_i|, which bounds every column's sum; infinite once a term of one has not
    /// fitted its integer, so that sums are not what they should be.
    pub(super) fn strain(&self) -> Whole {
        if self.beyond {
            return Whole::beyond();
        }
        let mut sum = Whole::default();
        let rows = self.rows.iter().zip(&self.pulls);
        rows.for_each(|(row, pull)| sum.add((pull + row.curvature * row.direction).abs()));
        sum
    }

    /// Number of entries of a column.
    pub(super) fn entries(&self, k: usize) -> usize {
        self.entries[k] as usize
    }

    /// Σ over rows of columns' values times `gradients`, as integers: `[columns]`.
    pub(super) fn sums(&self, columns: &[usize], pool: &Pool) -> Vec<i64> {
        let entries = columns.iter().map(|&k| self.entries(k)).sum();
        let part = columns.len().div_ceil(pool.threads_for(entries)).max(1);
        let mut sums = vec![0_i64; columns.len()];
        pool.share(sums.chunks_mut(part).zip(columns.chunks(part)), |(sums, columns)| {
            for (tile, gradients) in self.tiles.iter().zip(self.gradients.as_chunks::<TILE>().0) {
                for (sum, &k) in sums.iter_mut().zip(columns) {
                    *sum = sum.wrapping_add(self.sum(k, tile, gradients));
                }
            }
        });
        sums
    }

    /// A column's sum over the rows of a tile.
    #[inline(always)]
    fn sum(&self, k: usize, tile: &Tile, gradients: &[i64; TILE]) -> i64 {
        let (positions, values) = tile.column(k);
        match values {
            None => {
                let mut sums = [0_i64; 4];
                let (chunks, rest) = positions.as_chunks::<4>();
                for chunk in chunks {
                    for (sum, &position) in sums.iter_mut().zip(chunk) {
                        *sum = sum.wrapping_add(gradients[position as usize]);
                    }
                }
                for &position in rest {
                    sums[0] = sums[0].wrapping_add(gradients[position as usize]);
                }
                sums.into_iter().fold(0, i64::wrapping_add)
            }
            Some(values) => {
                let scale = self.scale();
                let terms = positions.iter().zip(values).map(|(&position, x)| {
                    scale.to(f64::from_bits(gradients[position as usize] as u64) * x)
                });
                terms.fold(0, i64::wrapping_add)
            }
        }
    }

    /// Moves v of columns to numbers, which are then the servers' to the bit, and the rows with it.
    /// Returns the number of entries of columns that moved.
    pub(super) fn go(&mut self, to: impl Iterator<Item = (usize, f64)>, pool: &Pool) -> usize {
        let moved = to.filter(|&(k, to)| to != self.iterate[k]).collect::<Vec<_>>();
        let steps: Vec<(usize, f64)> = moved
            .into_iter()
            .map(|(k, to)| (k, to - std::mem::replace(&mut self.iterate[k], to)))
            .collect();
        let entries = steps.iter().map(|&(k, _)| self.entries(k)).sum();
        let scale = self.scale();
        let gradient_max = self.gradient_max;
        let longest = steps.iter().fold(0.0, |most: f64, (_, step)| most.max(step.abs()));
        let size = longest * self.curvature_max;
        self.beyond |= size.is_nan() || size > gradient_max;
        self.on_tiles(entries, pool, |tile, rows, gradients| {
            let mut fits = true;
            for &(k, step) in &steps {
                let (positions, values) = tile.column(k);
                match values {
                    None => {
                        let scaled = step * scale.up;
                        for &position in positions {
                            let row = &mut rows[position as usize];
                            row.direction += step;
                            let gradient = &mut gradients[position as usize];
                            *gradient = gradient.wrapping_add(integer(row.curvature * scaled));
                        }
                    }
                    Some(values) => {
                        for (&position, x) in positions.iter().zip(values) {
                            let row = &mut rows[position as usize];
                            row.direction += step * x;
                            let gradient = &mut gradients[position as usize];
                            let moved =
                                f64::from_bits(*gradient as u64) + row.curvature * (step * x);
                            fits &= moved.abs() <= gradient_max;
                            *gradient = moved.to_bits() as i64;
                        }
                    }
                }
            }
            fits
        });
        entries
    }

    /// Sets the rows' gradients to those of XᵀDX times a direction: the share of each of some
    /// columns.
    pub(super) fn multiply(&mut self, direction: &[(usize, f64)], pool: &Pool) {
        let entries = direction.iter().map(|&(k, _)| self.entries(k)).sum();
        let scale = self.scale();
        let gradient_max = self.gradient_max;
        self.on_tiles(entries, pool, |tile, rows, gradients| {
            let mut fits = true;
            gradients.fill(0); // the bits of 0.0
            let mut add = |position: u16, share: f64| {
                let direction = &mut gradients[position as usize];
                *direction = (f64::from_bits(*direction as u64) + share).to_bits() as i64;
            };
            for &(k, share) in direction {
                let (positions, values) = tile.column(k);
                match values {
                    None => positions.iter().for_each(|&position| add(position, share)),
                    Some(values) => {
                        let entries = positions.iter().zip(values);
                        entries.for_each(|(&position, x)| add(position, share * x));
                    }
                }
            }
            for (gradient, row) in gradients.iter_mut().zip(rows) {
                let product = row.curvature * f64::from_bits(*gradient as u64);
                fits &= product.abs() <= gradient_max;
                *gradient = match tile.values {
                    None => scale.to(product),
                    Some(_) => product.to_bits() as i64,
                };
            }
            fits
        });
    }

    /// Calls `work` on each tile, its rows and gradients, on as many threads as `entries` justify,
    /// and notes whether it returns that all gradients fit.
    fn on_tiles(
        &mut self,
        entries: usize,
        pool: &Pool,
        work: impl Fn(&Tile, &mut [Row; TILE], &mut [i64; TILE]) -> bool + Sync,
    ) {
        let Working { tiles, rows, gradients, beyond, .. } = self;
        let fits = AtomicBool::new(true);
        let rows = rows.as_chunks_mut::<TILE>().0;
        let gradients = gradients.as_chunks_mut::<TILE>().0;
        let part = tiles.len().div_ceil(pool.threads_for(entries)).max(1);
        let parts = tiles.chunks(part).zip(rows.chunks_mut(part).zip(gradients.chunks_mut(part)));
        pool.share(parts, |(tiles, (rows, gradients))| {
            for (tile, (rows, gradients)) in tiles.iter().zip(rows.iter_mut().zip(gradients)) {
                if !work(tile, rows, gradients) {
                    fits.store(false, Ordering::Relaxed);
                }
            }
        });
        *beyond |= !fits.into_inner();
    }

    /// How far each row's score has moved: `[rows]`.
    pub(super) fn directions(&self) -> impl Iterator<Item = f64> + Clone {
        self.rows[..self.pulls.len()].iter().map(|row| row.direction)
    }

    /// This worker's part of a block's Hessian: the lower triangle row by row, in multiples of the
    /// units, two numbers of 32 bits in each integer.
    ///
    /// Each entry of a row meets those before it and itself.
    pub(super) fn gram(&self, block: usize, units: Units, lists: &mut Lists) -> Vec<i64> {
        let columns = self.block(block);
        let mut lines = vec![0_i32; triangle(columns.len()).next_multiple_of(2)];
        for (tile, rows) in self.tiles.iter().zip(self.rows[..self.pulls.len()].chunks(TILE)) {
            let factor = |at: usize| units.factor(self.curvatures[columns.start + at]);
            lists.turn(tile, rows.len(), columns.clone(), factor);
            let mut begin = 0;
            for (row, &end) in rows.iter().zip(&lists.ends[..]) {
                let run = std::mem::replace(&mut begin, end as usize)..end as usize;
                let entries = &lists.columns[run.clone()];
                let curvature = row.curvature * units.of_all();
                let line = |at: u16| triangle(at.into())..triangle(usize::from(at) + 1);
                if tile.values.is_none() {
                    let curvature = (curvature + 0.5) as i32;
                    for (last, &at) in entries.iter().enumerate() {
                        let line = &mut lines[line(at)];
                        for &other in &entries[..=last] {
                            line[usize::from(other)] =
                                line[usize::from(other)].wrapping_add(curvature);
                        }
                    }
                } else {
                    let values = &lists.values[run];
                    for (last, (&at, &x)) in entries.iter().zip(values).enumerate() {
                        let (line, curvature) = (&mut lines[line(at)], curvature * f64::from(x));
                        for (&other, &x) in entries[..=last].iter().zip(values) {
                            let sum = &mut line[usize::from(other)];
                            *sum = sum.wrapping_add(integer(curvature * f64::from(x)) as i32);
                        }
                    }
                }
            }
        }
        let (pairs, _) = lines.as_chunks::<2>();
        pairs.iter().map(|pair| both(*pair)).collect()
    }
}

/// Bytes of a column beside its entries.
const COLUMN_BYTES: usize = size_of::<Option<u32>>() + 3 * size_of::<f64>() + size_of::<u32>();

/// Numbers above line `n` of a lower triangle.
fn triangle(n: usize) -> usize {
    n * (n + 1) / 2
}

/// The entries of a tile's rows in the columns of a block, row after row.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Where each row's entries end: `[TILE]`.
    ends: Vec<u32>,
    /// Columns of the block, ascending in a row.
    columns: Vec<u16>,
    /// Values times their columns' factors; empty if all values are 1.
    values: Vec<f32>,
}

impl Lists {
    /// Turns the columns of a block into rows, of which the tile has `rows`.
    fn turn(
        &mut self,
        tile: &Tile,
        rows: usize,
        block: Range<usize>,
        factor: impl Fn(usize) -> f64,
    ) {
        let run = tile.run(block.clone());
        self.ends.clear();
        self.ends.resize(TILE, 0);
        let ends = &mut self.ends.as_chunks_mut::<TILE>().0[0];
        tile.positions[run.clone()].iter().for_each(|&position| ends[position as usize] += 1);
        let mut end = 0;
        for own in &mut ends[..rows] {
            end += std::mem::replace(own, end); // where the row begins, until its entries are there
        }
        self.columns.resize(run.len(), 0);
        self.values.resize(if tile.values.is_some() { run.len() } else { 0 }, 0.0);
        for (at, k) in block.enumerate() {
            let (positions, values) = tile.column(k);
            let factor = factor(at);
            for (entry, &position) in positions.iter().enumerate() {
                let to = &mut ends[position as usize];
                self.columns[*to as usize] = at as u16;
                if let Some(values) = values {
                    self.values[*to as usize] = (values[entry] * factor) as f32;
                }
                *to += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::dbpg::gradient::tests::noise;

    const ROWS: usize = TILE + 500; // two tiles
    const COLUMNS: usize = 7;

    fn columns(values: bool) -> Columns {
        let rows: Vec<Vec<u32>> = (0..COLUMNS)
            .map(|j| (0..ROWS as u32).filter(|row| row % (j as u32 * 3 + 5) < 2).collect())
            .collect();
        let ends = rows.iter().scan(0, |end, rows| {
            *end += rows.len();
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        let values = values.then(|| noise(ends[COLUMNS - 1], 4));
        Columns::new(&[0, 1, 2, 3, 4, 5, 6], &ends, rows.concat(), values)
    }

    /// Column `COLUMNS` of the working set is not at this worker.
    fn working(columns: &Columns, ones: bool) -> (Working, Vec<f64>, Vec<f64>) {
        let pulls = noise(ROWS, 1);
        let curvatures: Vec<f64> = noise(ROWS, 2).iter().map(|x| 0.125 * (x + 1.0)).collect();
        let planned = |column: Option<u32>| Planned {
            column,
            weight: 0.5,
            curvature: 3000.0,
            is_free: false,
        };
        let all: Vec<Planned> =
            (0..COLUMNS as u32).rev().map(Some).chain([None]).map(planned).collect();
        let blocks = [all[..5].to_vec(), all[5..].to_vec()];
        let scale = Scale::with_headroom(ROWS as u64, 1.0, 8);
        let mut working = Working::new(&blocks, ones, pulls.clone(), &curvatures, scale, 8.0);
        let at: Vec<Option<usize>> = (0..COLUMNS).rev().map(Some).chain([None]).collect();
        working.gather(ROWS, columns, &at);
        (working, pulls, curvatures)
    }

    /// Dense columns of the working set.
    fn dense(columns: &Columns) -> Vec<Vec<f64>> {
        let of = |j: usize| {
            let mut all = vec![0.0; ROWS];
            columns.for_each(j, |row, x| all[row] = x);
            all
        };
        (0..COLUMNS).rev().map(of).chain([vec![0.0; ROWS]]).collect()
    }

    fn dot(a: &[f64], b: impl Fn(usize) -> f64) -> f64 {
        a.iter().enumerate().map(|(row, a)| a * b(row)).sum()
    }

    #[test]
    fn sums_steps_and_products_are_those_of_the_dense_matrix() {
        for (values, threads) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
            let columns = columns(values);
            let x = dense(&columns);
            let (mut working, pulls, curvatures) = working(&columns, !values);
            let scale = working.scale();
            let all: Vec<usize> = (0..=COLUMNS).collect();
            let steps = [0.25, 0.0, -1.0, 0.5, 0.125, 0.0, 2.0, 0.5];
            let pool = Pool::new(NonZeroUsize::new(threads).expect("it is above 0"));
            let to = steps.iter().enumerate().map(|(k, step)| (k, 0.5 + step));
            working.go(to, &pool);
            let direction = |row: usize| (0..=COLUMNS).map(|k| x[k][row] * steps[k]).sum::<f64>();
            for derived in [false, true] {
                if derived {
                    working.derive_gradients();
                }
                let sums = working.sums(&all, &pool);
                for (k, sum) in sums.into_iter().enumerate() {
                    let exact = dot(&x[k], |row| pulls[row] + curvatures[row] * direction(row));
                    let sum = scale.from(sum);
                    assert!((sum - exact).abs() < 1e-6, "{k}: {sum} {exact}");
                    assert_eq!(working.iterate[k], 0.5 + steps[k]);
                }
            }
            assert!(
                working.directions().enumerate().all(|(row, w)| (w - direction(row)).abs() < 1e-12)
            );
            let steps: Vec<(usize, f64)> = steps.into_iter().enumerate().collect();
            working.multiply(&steps, &pool);
            for ((k, sum), x) in working.sums(&all, &pool).into_iter().enumerate().zip(&x) {
                let exact = dot(x, |row| curvatures[row] * direction(row));
                assert!((scale.from(sum) - exact).abs() < 1e-6, "{k}");
            }
        }
    }

    #[test]
    fn hessians_are_those_of_the_dense_matrix() {
        for (values, units) in [(false, Units::of_ones(30_000.0)), (true, Units::Own)] {
            let columns = columns(values);
            let x = dense(&columns);
            let (working, _, curvatures) = working(&columns, !values);
            let mut lists = Lists::default();
            for block in 0..2 {
                let part = working.gram(block, units, &mut lists);
                let halves = part.iter().flat_map(|both| [*both as i32, (*both >> 32) as i32]);
                let mut halves = halves;
                let all = working.block(block);
                let factor = units.factor(3000.0) * units.factor(3000.0) * units.of_all();
                for k in all.clone() {
                    for l in all.start..=k {
                        let exact = dot(&x[k], |row| curvatures[row] * x[l][row]);
                        let entry = halves.next().map_or(f64::NAN, |half| f64::from(half) / factor);
                        let off = (entry - exact).abs() / 3000.0;
                        assert!(off < 1e-3, "{block} {k} {l}: {entry} {exact}");
                    }
                }
                assert!(halves.next().is_none_or(|rest| rest == 0));
            }
        }
    }

    #[test]
    fn a_worker_without_rows_is_no_trouble() {
        let planned = Planned { column: None, weight: 1.0, curvature: 1.0, is_free: true };
        let scale = Scale::new(1, 1.0);
        let mut working = Working::new(&[vec![planned]], true, Vec::new(), &[], scale, 1.0);
        working.gather(0, &Columns::default(), &[None]);
        let pool = Pool::default();
        assert_eq!(working.go(std::iter::once((0, 2.0)), &pool), 0);
        working.multiply(&[(0, 1.0)], &pool);
        assert_eq!((working.sums(&[0], &pool), working.is_active(0)), (vec![0], true));
        assert_eq!(working.gram(0, Units::Own, &mut Lists::default()), [0]);
    }
}
