//! The column-major matrix of training.

use super::ascending::Ascending;

/// A sparse matrix, compact by column: 4 bytes an entry, 12 with values, and two or three bytes a
/// column if keys are dense.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    keys: Ascending,
    /// Where the entries of each column end: `[columns]`.
    ends: Ascending,
    rows: Vec<u32>,
    values: Option<Vec<f64>>,
}

impl Columns {
    /// `keys: [columns]`, strictly ascending; `ends: [columns]`, the number of entries up to the
    /// end of each column; `rows: [nonzeros]`, strictly ascending within a column; `values:
    /// [nonzeros]`, `None` if all are exactly 1.
    ///
    /// # Panics
    /// If lengths differ, or keys or ends are not ascending.
    pub fn new(keys: &[u64], ends: &[usize], rows: Vec<u32>, values: Option<Vec<f64>>) -> Self {
        assert!(keys.is_sorted_by(|a, b| a < b), "keys ascend");
        assert_eq!(keys.len(), ends.len(), "one end a column");
        assert_eq!(ends.last().copied().unwrap_or(0), rows.len(), "columns end with the entries");
        assert!(values.as_ref().is_none_or(|values| values.len() == rows.len()), "one value each");
        let keys = keys.iter().copied().collect();
        let ends = ends.iter().map(|&end| end as u64).collect();
        Self { keys, ends, rows, values }
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.keys.len()
    }

    /// Their keys, strictly ascending: `[columns]`.
    pub fn keys(&self) -> &Ascending {
        &self.keys
    }

    /// Number of stored entries.
    pub fn nonzeros(&self) -> usize {
        self.rows.len()
    }

    /// Whether any value is not 1.
    pub fn has_values(&self) -> bool {
        self.values.is_some()
    }

    /// The largest |x_ij|; 1 if all values are.
    pub fn largest(&self) -> f64 {
        let values = self.values.as_deref();
        values.map_or(1.0, |values| values.iter().fold(0.0, |most: f64, x| most.max(x.abs())))
    }

    /// The largest |x_ij| of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub(crate) fn largest_of(&self, column: usize) -> f64 {
        let (rows, values) = self.column(column);
        match values {
            None => {
                if rows.is_empty() {
                    0.0
                } else {
                    1.0
                }
            }
            Some(values) => values.iter().fold(0.0, |most: f64, x| most.max(x.abs())),
        }
    }

    /// Multiplies the values of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub(crate) fn multiply(&mut self, column: usize, factor: f64) {
        if factor != 1.0 {
            let range = self.before(column)..self.before(column + 1);
            let values = self.values.get_or_insert_with(|| vec![1.0; self.rows.len()]);
            values[range].iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        let values = self.values.as_deref().map_or(0, size_of_val);
        self.keys.bytes() + self.ends.bytes() + size_of_val(&self.rows[..]) + values
    }

    /// Appends a column that is 1 in each of `rows` rows.
    ///
    /// # Panics
    /// If `key` is not above all others.
    pub fn push_ones(&mut self, key: u64, rows: usize) {
        assert!(self.keys.iter().next_back().is_none_or(|last| last < key), "keys ascend");
        self.rows.extend(0..rows as u32);
        if let Some(values) = &mut self.values {
            values.resize(self.rows.len(), 1.0);
        }
        self.keys = self.keys.iter().chain([key]).collect();
        self.ends = self.ends.iter().chain([self.rows.len() as u64]).collect();
    }

    /// Number of entries before those of column `column`, counted from 0; `column` may be the
    /// number of columns.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn before(&self, column: usize) -> usize {
        column.checked_sub(1).map_or(0, |last| self.ends.get(last) as usize)
    }

    /// The column of entry `entry`: the number of columns that end before it.
    pub fn column_of(&self, entry: usize) -> usize {
        self.ends.below(entry as u64 + 1)
    }

    /// The rows and values of column `column`, counted from 0.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn column(&self, column: usize) -> (&[u32], Option<&[f64]>) {
        let range = self.before(column)..self.before(column + 1);
        (&self.rows[range.clone()], self.values.as_ref().map(|values| &values[range]))
    }

    /// Calls `visit(row, value)` for each entry of column `column`.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn for_each(&self, column: usize, visit: impl FnMut(usize, f64)) {
        for_each(self.column(column), visit);
    }
}

/// Calls `visit(row, value)` for each entry of a column, or of a part of one.
pub(crate) fn for_each(
    (rows, values): (&[u32], Option<&[f64]>),
    mut visit: impl FnMut(usize, f64),
) {
    match values {
        None => rows.iter().for_each(|&row| visit(row as usize, 1.0)),
        Some(values) => {
            rows.iter().zip(values).for_each(|(&row, &value)| visit(row as usize, value));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::Examples;

    #[test]
    fn columns_of_a_small_matrix() {
        let text = b"1 7:1 18446744073709551615:2\n1\n1 0:3 7:4\n";
        let (labels, columns) =
            crate::data::parse("t".as_ref(), text).unwrap().into_columns().unwrap();
        assert_eq!(labels, [1, 1, 1]);
        let values = Some(vec![3.0, 1.0, 4.0, 2.0]);
        assert_eq!(columns, Columns::new(&[0, 7, u64::MAX], &[1, 3, 4], vec![2, 0, 2, 0], values));
        assert_eq!(columns.column(1), (&[0, 2][..], Some(&[1.0, 4.0][..])));
        assert_eq!([0, 1, 2, 3].map(|column| columns.before(column)), [0, 1, 3, 4]);
        assert_eq!([0, 1, 2, 3].map(|entry| columns.column_of(entry)), [0, 1, 1, 2]);
        let mut some = Columns::new(&[], &[], Vec::new(), Some(Vec::new()));
        some.push_ones(9, 3);
        assert_eq!(some, Columns::new(&[9], &[3], vec![0, 1, 2], Some(vec![1.0; 3])));
        let (_, none) = Examples::default().into_columns().unwrap();
        assert_eq!((none.columns(), none.nonzeros(), none.before(0)), (0, 0, 0));
    }

    #[test]
    #[should_panic(expected = "keys ascend")]
    fn a_key_that_is_there_is_refused() {
        Columns::new(&[9], &[0], Vec::new(), None).push_ones(9, 3);
    }
}
