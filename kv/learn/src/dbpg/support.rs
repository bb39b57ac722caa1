//! A worker's rows on the columns of a support: its part of the Hessian, and its losses along a
//! Newton step.
//!
//! Place: pass > worker: **gram** > driver: minimise > worker: **losses** > driver: choose > set.
//! Nothing is sent here.

use std::ops::Range;

use super::cholesky::triangle;
use super::logistic::loss;
use super::newton::SHARES;
use super::pool::Pool;
use crate::data::Columns;

/// Entries of rows that are processed together: 256 KiB of places.
const RUN_ENTRIES: usize = 128 << 10;

/// Numbers of the Hessian in memory at a time, unless one line has more: 2 MiB.
const LINES_NUMBERS: usize = 256 << 10;

/// One worker's rows, restricted to the columns of the support.
#[derive(Debug, Default)]
pub(super) struct Support {
    /// This worker's column of each weight, if it has one: `[n]`.
    columns: Vec<Option<usize>>,
    /// Where each row's entries begin: `[rows + 1]`.
    starts: Vec<u32>,
    /// Index of the entry's column in the support: `[entries]`, ascending within a row.
    places: Vec<u16>,
    /// `None` if all are 1.
    values: Option<Vec<f64>>,
}

impl Support {
    /// Gathers the columns `keys`: `[n]`, sorted, unique; those that the worker lacks are empty.
    ///
    /// # Panics
    /// If there are more than 2^16 of them.
    pub(super) fn new(columns: &Columns, rows: usize, keys: &[u64]) -> Self {
        assert!(keys.len() <= 1 << 16, "places are u16");
        let columns_of: Vec<Option<usize>> =
            keys.iter().map(|&key| columns.keys().find(key)).collect();
        let mut starts = vec![0_u32; rows + 1];
        for &column in columns_of.iter().flatten() {
            columns.for_each(column, |row, _| starts[row + 1] += 1);
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut places = vec![0; starts[rows] as usize];
        let mut values = columns.has_values().then(|| vec![0.0; places.len()]);
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

    /// The entries of a row.
    fn row(&self, row: usize) -> Range<usize> {
        self.starts[row] as usize..self.starts[row + 1] as usize
    }

    /// This worker's part of H_A and g_A for the loss's slopes `pulls` along x_i·w: `[rows]`, like
    /// `labels`, which include the row weights.
    pub(super) fn gram<'a>(
        &'a self,
        columns: &'a Columns,
        labels: &[f64],
        pulls: Vec<f64>,
        pool: &'a Pool,
    ) -> Gram<'a> {
        let bend = |(pull, label): (&f64, &f64)| pull.abs() * (1.0 - (pull / label).abs());
        let bends = pulls.iter().zip(labels).map(bend).collect();
        Gram {
            support: self,
            columns,
            pool,
            pulls,
            bends,
            numbers: Vec::new().into_iter(),
            lines: 0,
            ends: self.starts.clone(),
            gradient: vec![0.0; self.len()],
        }
    }

    /// Moves the ends of rows past their entries of all lines before `line`.
    fn skip_to(&self, line: usize, ends: &mut [u32]) {
        let before = |place: &u16| usize::from(*place) < line;
        for (row, &end) in self.starts[1..].iter().enumerate() {
            let rest = &self.places[ends[row] as usize..end as usize];
            ends[row] += rest.partition_point(before) as u32;
        }
    }

    /// Computes some lines of H_A and g_A, for the slopes `pulls` and curvatures `bends` of rows.
    fn gram_lines(&self, columns: &Columns, pulls: &[f64], bends: &[f64], part: Lines<'_>) {
        let Lines { lines, hessian, gradient, ends } = part;
        let mut cursors = vec![0; lines.len()];
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

    /// This worker's loss after its weights have moved by each of [`SHARES`] of `step`: `[n]`.
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

/// Some lines of H_A, computed by one thread.
struct Lines<'a> {
    lines: Range<usize>,
    /// Their numbers.
    hessian: &'a mut [f64],
    /// Their numbers of g_A.
    gradient: &'a mut [f64],
    /// Ends of rows before these lines, and afterwards behind them.
    ends: &'a mut [u32],
}

/// The numbers of H_A's lower triangle, row by row, then those of g_A: `[n (n + 3) / 2]`. Only some
/// lines are in memory at a time.
pub(super) struct Gram<'a> {
    support: &'a Support,
    columns: &'a Columns,
    pool: &'a Pool,
    pulls: Vec<f64>,
    bends: Vec<f64>,
    /// Numbers that are computed and not returned yet.
    numbers: std::vec::IntoIter<f64>,
    /// Number of computed lines.
    lines: usize,
    /// For each row, the end of its entries that were used.
    ends: Vec<u32>,
    gradient: Vec<f64>,
}

impl Iterator for Gram<'_> {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        if self.numbers.len() == 0 {
            self.numbers = match self.lines {
                lines if lines < self.support.len() => self.next_lines().into_iter(),
                _ => std::mem::take(&mut self.gradient).into_iter(),
            };
        }
        self.numbers.next()
    }
}

impl Gram<'_> {
    /// Computes the next lines of H_A, and their numbers of g_A.
    ///
    /// One line at a time, so that the line being added to stays in the first-level cache: the
    /// entries of its column name the rows whose other entries are added there. Rows are taken in
    /// runs that stay in the second-level cache. Threads divide the lines.
    fn next_lines(&mut self) -> Vec<f64> {
        let Self { support, columns, pool, pulls, bends, ends, gradient, .. } = self;
        let begin = self.lines;
        let whole = |&end: &usize| triangle(end) - triangle(begin) <= LINES_NUMBERS;
        let last = (begin + 1..=support.len()).take_while(whole).last().unwrap_or(begin + 1);
        let mut packed = vec![0.0; triangle(last) - triangle(begin)];
        let threads = pool.threads_for(support.places.len());
        // Line n has n numbers, and each thread gets as many numbers.
        let end = |part: usize| {
            let share = packed.len() as f64 * part as f64 / threads as f64;
            ((2.0 * (triangle(begin) as f64 + share)).sqrt() as usize).clamp(begin, last)
        };
        let cuts: Vec<usize> = (1..threads).map(end).chain([last]).collect();
        let mut ends_of = vec![std::mem::take(ends); threads];
        let mut hessian = &mut packed[..];
        let mut gradient = &mut gradient[begin..last];
        let mut line = begin;
        let parts = cuts.into_iter().zip(&mut ends_of).map(|(end, ends)| {
            let lines = std::mem::replace(&mut line, end)..end;
            let numbers = triangle(lines.end) - triangle(lines.start);
            let (h, h_rest) = std::mem::take(&mut hessian).split_at_mut(numbers);
            let (g, g_rest) = std::mem::take(&mut gradient).split_at_mut(lines.len());
            hessian = h_rest;
            gradient = g_rest;
            Lines { lines, hessian: h, gradient: g, ends }
        });
        pool.share(parts, |part| {
            if part.lines.start > begin {
                support.skip_to(part.lines.start, part.ends);
            }
            support.gram_lines(columns, pulls, bends, part);
        });
        self.ends = ends_of.pop().unwrap_or_default();
        self.lines = last;
        packed
    }
}

/// Numbers of H_A and g_A together.
pub(super) const fn packed_len(n: usize) -> usize {
    triangle(n) + n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dbpg::cholesky::tests::noise;
    use crate::dbpg::gradient::{TrustRegion, Worker};

    const KEYS: [u64; 3] = [2, 5, 9];
    const VALUES: [f64; 6] = [0.5, -2.0, 1.0, 3.0, -1.0, 0.25];
    const LABELS: [f64; 3] = [1.0, -1.0, 1.0];

    fn columns() -> Columns {
        Columns::new(&KEYS, &[2, 4, 6], vec![0, 1, 1, 2, 2, 0], Some(VALUES.to_vec()))
    }

    fn worker_at(weights: [f64; 3]) -> Worker {
        let mut worker = Worker::new(LABELS.to_vec(), 3, TrustRegion::default());
        worker.apply(&columns(), 0..3, &weights, &[true; 3]);
        worker
    }

    /// Nobody has key 7; key 2 is left out.
    #[test]
    fn gram_is_the_second_order_of_the_loss() {
        let at = [0.3, -0.7, 1.1];
        let worker = worker_at(at);
        let support = Support::new(&columns(), 3, &[5, 7, 9]);
        assert_eq!(support.columns(), [Some(1), None, Some(2)]);
        let pulls: Vec<f64> = worker.pulls().collect();
        let pool = Pool::default();
        let packed: Vec<f64> = support.gram(&columns(), &LABELS, pulls, &pool).collect();
        assert_eq!(packed.len(), packed_len(3));
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

    /// Enough entries to wake all threads, and lines for more than one turn.
    #[test]
    fn any_number_of_threads_makes_the_same_gram() {
        let (count, each) = (800_usize, 400_usize);
        let keys: Vec<u64> = (0..count as u64).collect();
        let ends: Vec<usize> = (1..=count).map(|j| j * each).collect();
        let entry = |j: usize| move |at: usize| (at * 3 + j % 3) as u32;
        let rows: Vec<u32> = (0..count).flat_map(|j| (0..each).map(entry(j))).collect();
        let values = noise(rows.len(), 3);
        let pulls: Vec<f64> = noise(3 * each, 4).iter().map(|x| 0.5 * x).collect();
        for values in [None, Some(values)] {
            let columns = Columns::new(&keys, &ends, rows.clone(), values);
            let support = Support::new(&columns, 3 * each, &keys);
            let gram = |threads: usize| {
                let pool = Pool::new(threads.try_into().expect("it is above 0"));
                let labels = vec![1.0; 3 * each];
                support.gram(&columns, &labels, pulls.clone(), &pool).collect::<Vec<f64>>()
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
        let pool = Pool::default();
        assert_eq!(support.gram(&columns(), &LABELS, vec![0.5; 3], &pool).count(), 0);
        assert_eq!(Support::default().len(), 0);
    }
}
