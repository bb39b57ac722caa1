//! A worker's rows on disk: sums of all columns, row by row, and columns of a block of rows.
//!
//! Sums are of integers, so those of blocks add up to those of the columns in memory, to the bit.
//!
//! Place: worker: **disk** > task > scores, blocks.

use std::ops::Range;

use caravan_kv::error::with_sources;

use crate::data::{BLOCK_ROWS, ByKey, Columns, KeptRows};
use crate::memory::Budget;
use crate::numeric::{Pool, Scale, integer};

/// Rows on disk, and the columns that are wanted of them.
#[derive(Debug)]
pub(crate) struct Disk {
    rows: KeptRows,
    /// Number of each wanted key, from 1; 0 for the others.
    numbers: ByKey<u32>,
    /// Entries of each wanted column: `[columns]`.
    entries: Vec<u32>,
    /// The largest |x_ij| of each: `[columns]`.
    largest: Vec<f64>,
    /// What values are multiplied with, of columns of unusual size: `[columns]`, or empty.
    factors: Vec<f64>,
    /// The key of the column of ones, which comes last.
    ones: Option<u64>,
}

/// Bytes of a wanted column: its key, entries, largest value and factor, its weight and what a
/// worker keeps beside it, and its sums and key in messages and lists of them.
const COLUMN_BYTES: usize = 8 + 4 + 8 + 8 + 17 + 16 + 2 * 28;

impl Disk {
    /// Counts the entries of the columns `keys`: sorted, unique.
    ///
    /// # Errors
    /// If the budget has no room for columns and a block, or a block cannot be read.
    pub(crate) fn new(rows: KeptRows, keys: &[u64], budget: &mut Budget) -> Result<Self, String> {
        let mut numbers = ByKey::new(rows.key_range(), rows.nonzeros());
        for (number, &key) in (1..).zip(keys) {
            *numbers.entry(key) = number;
        }
        let entries = vec![0; keys.len()];
        let largest = vec![0.0; keys.len()];
        let factors = Vec::new();
        let mut disk = Disk { rows, numbers, entries, largest, factors, ones: None };
        budget.hold("columns", keys.len() * COLUMN_BYTES + disk.numbers.bytes())?;
        budget.borrow("a block of rows", disk.block_bytes())?;
        for block in 0..disk.rows.blocks() {
            let Disk { rows, numbers, entries, largest, .. } = &mut disk;
            let rows = rows.block(block).map_err(|error| with_sources(&error))?;
            rows.for_each(|_, key, x| {
                if let Some(column) = (numbers.get(key) as usize).checked_sub(1) {
                    entries[column] += 1;
                    largest[column] = x.abs().max(largest[column]);
                }
            });
        }
        Ok(disk)
    }

    /// Appends a column that is 1 in each of `rows` rows, with a key above all others.
    pub(crate) fn push_ones(&mut self, key: u64, rows: usize) {
        self.ones = Some(key);
        self.entries.push(rows as u32);
        self.largest.push(1.0);
        if !self.factors.is_empty() {
            self.factors.push(1.0);
        }
    }

    /// Number of entries of all columns.
    pub(crate) fn nonzeros(&self) -> usize {
        self.entries.iter().map(|&entries| entries as usize).sum()
    }

    /// Number of entries of a column.
    pub(super) fn entries(&self, column: usize) -> usize {
        self.entries[column] as usize
    }

    /// The largest |x_ij|; 1 if all values are.
    pub(crate) fn largest(&self) -> f64 {
        match self.rows.has_values() {
            true => self.largest.iter().fold(0.0, |most: f64, x| most.max(*x)),
            false => 1.0,
        }
    }

    /// The largest |x_ij| of a column.
    pub(crate) fn largest_of(&self, column: usize) -> f64 {
        self.largest[column]
    }

    /// Multiplies the values of a column from now on.
    pub(crate) fn multiply(&mut self, column: usize, factor: f64) {
        self.factors.resize(self.entries.len(), 1.0);
        self.factors[column] = factor;
        self.largest[column] *= factor;
    }

    /// What a column's values are multiplied with.
    fn factor(&self, column: usize) -> f64 {
        self.factors.get(column).copied().unwrap_or(1.0)
    }

    /// Number of blocks, each of [`BLOCK_ROWS`] rows but the last.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.blocks()
    }

    /// Most bytes of a block in memory, with its columns.
    pub(super) fn block_bytes(&self) -> usize {
        let entry = if self.rows.has_values() { 12 } else { 4 };
        self.rows.bytes_max() + self.rows.nonzeros_max() * entry + self.numbers.bytes()
    }

    /// The entries of the columns `keys` in the rows of a block, counted from its first; keys
    /// without any may be left out. `keys`: sorted, unique, wanted.
    pub(crate) fn columns(&self, block: usize, keys: &[u64]) -> Result<Columns, String> {
        let part = || {
            let rows = self.rows.block(block)?;
            let count = rows.labels().len();
            let (first, last) = rows.key_range().unwrap_or((1, 0));
            let inside = keys.iter().copied().filter(|key| (first..=last).contains(key));
            let mut columns = rows.into_columns(inside.collect())?;
            if !self.factors.is_empty() {
                for (at, key) in columns.keys().iter().collect::<Vec<u64>>().into_iter().enumerate()
                {
                    columns.multiply(at, self.factor(self.numbers.get(key) as usize - 1));
                }
            }
            if let Some(ones) = self.ones.filter(|ones| keys.last() == Some(ones)) {
                columns.push_ones(ones, count);
            }
            Ok(columns)
        };
        part().map_err(|error: crate::Error| with_sources(&error))
    }

    /// Most bytes of [`Disk::sums`].
    pub(super) fn sums_bytes(&self, pool: &Pool) -> usize {
        let gradients = BLOCK_ROWS * size_of::<[f64; 2]>();
        let sums = self.entries.len() * size_of::<[i64; 2]>();
        pool.threads() * (self.rows.bytes_max() + gradients + sums)
    }

    /// Σ over rows of p x and of D x² of all columns, as integers, given p and D of a range of
    /// rows.
    pub(super) fn sums(
        &self,
        gradients: impl Fn(Range<usize>) -> Vec<[f64; 2]> + Sync,
        scales: [Scale; 2],
        pool: &Pool,
    ) -> Result<Vec<[i64; 2]>, String> {
        let part = self.blocks().div_ceil(pool.threads()).max(1);
        let mut parts = vec![Ok(Vec::new()); self.blocks().div_ceil(part)];
        pool.share(parts.iter_mut().enumerate(), |(at, sums)| {
            let blocks = at * part..self.blocks().min((at + 1) * part);
            *sums = self.sums_of(blocks, &gradients, scales);
        });
        parts.into_iter().reduce(added).unwrap_or(Ok(Vec::new()))
    }

    fn sums_of(
        &self,
        blocks: Range<usize>,
        gradients: impl Fn(Range<usize>) -> Vec<[f64; 2]>,
        scales: [Scale; 2],
    ) -> Result<Vec<[i64; 2]>, String> {
        let mut sums = vec![[0_i64; 2]; self.entries.len()];
        let add = |sum: &mut [i64; 2], [g, h]: [f64; 2], x: f64| {
            let [gradients, curvatures] = *sum;
            *sum = [
                gradients.wrapping_add(integer(g * x)),
                curvatures.wrapping_add(integer(h * x * x)),
            ];
        };
        for block in blocks {
            let rows = self.rows.block(block).map_err(|error| with_sources(&error))?;
            let first = block * BLOCK_ROWS;
            let mut scaled = gradients(first..first + rows.labels().len());
            scaled.iter_mut().for_each(|[g, h]| {
                *g *= scales[0].up;
                *h *= scales[1].up;
            });
            rows.for_each(|row, key, x| {
                if let Some(column) = (self.numbers.get(key) as usize).checked_sub(1) {
                    add(&mut sums[column], scaled[row], x * self.factor(column));
                }
            });
            if self.ones.is_some()
                && let Some(sum) = sums.last_mut()
            {
                scaled.iter().for_each(|row| add(sum, *row, 1.0));
            }
        }
        Ok(sums)
    }
}

/// The sums of two parts of the rows together.
fn added(
    one: Result<Vec<[i64; 2]>, String>,
    other: Result<Vec<[i64; 2]>, String>,
) -> Result<Vec<[i64; 2]>, String> {
    let mut sums = one?;
    for (sum, more) in sums.iter_mut().zip(other?) {
        *sum = [sum[0].wrapping_add(more[0]), sum[1].wrapping_add(more[1])];
    }
    Ok(sums)
}
