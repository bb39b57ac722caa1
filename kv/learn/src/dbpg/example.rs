//! A small artificial problem with known passes, for tests and first steps; not a benchmark.

use super::reference::Part;
use crate::data::Columns;

/// A small problem with published results: 200 rows, 60 columns, all values 1.
///
/// Each row has the distinct ones of six random keys below 60; keys that end in 5 indicate label
/// +1, keys that end in 0 label -1, with some noise, and the others nothing. At λ = 1 the optimum
/// is [`Example::OPTIMUM`], with 31 non-zero weights.
#[derive(Debug, Clone)]
pub struct Example {
    labels: Vec<f64>,
    columns: Columns,
}

impl Example {
    /// F(w) at the optimum for λ = 1.
    pub const OPTIMUM: f64 = 82.259_034_919_089_54;

    const ROWS: u32 = 200;
    const COLUMNS: u64 = 60;

    /// All rows.
    pub fn new() -> Self {
        Self::with_rows(|_| true)
    }

    /// The rows of worker `worker` of `workers`, dealt in turn, with only the keys they have.
    pub fn share(worker: u32, workers: u32) -> Self {
        Self::with_rows(|row| row % workers == worker)
    }

    /// The form that the reference takes.
    pub fn part(&self) -> Part<'_> {
        Part { columns: &self.columns, labels: &self.labels }
    }

    /// The rows as LIBSVM text, in order.
    pub fn libsvm(&self) -> String {
        let mut rows: Vec<String> = self.labels.iter().map(|label| format!("{label:+}")).collect();
        for (column, key) in self.columns.keys().iter().enumerate() {
            self.columns.for_each(column, |row, _| rows[row].push_str(&format!(" {key}:1")));
        }
        rows.join("\n") + "\n"
    }

    fn with_rows(keep: impl Fn(u32) -> bool) -> Self {
        let mut random = Lcg(1);
        let mut columns = vec![Vec::new(); Self::COLUMNS as usize];
        let mut labels = Vec::new();
        for row in 0..Self::ROWS {
            let (keys, label) = random.row(Self::COLUMNS);
            if keep(row) {
                keys.iter().for_each(|&key| columns[key as usize].push(labels.len() as u32));
                labels.push(label);
            }
        }
        let mut keys = Vec::new();
        let mut ends = Vec::new();
        let mut rows = Vec::new();
        for (key, column) in (0..).zip(columns).filter(|(_, column)| !column.is_empty()) {
            keys.push(key);
            rows.extend(column);
            ends.push(rows.len());
        }
        Self { labels, columns: Columns::new(&keys, &ends, rows, None) }
    }
}

impl Default for Example {
    fn default() -> Self {
        Self::new()
    }
}

/// Knuth's MMIX generator, upper 31 bits.
struct Lcg(u64);

impl Lcg {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Keys (sorted, unique) and label of the next row.
    fn row(&mut self, columns: u64) -> (Vec<u64>, f64) {
        let mut keys: Vec<u64> = (0..6).map(|_| self.next() % columns).collect();
        keys.sort_unstable();
        keys.dedup();
        let weight = |key: &u64| match key % 10 {
            5 => 1.5,
            0 => -1.5,
            _ => 0.0,
        };
        let noise = (self.next() % 1000) as f64 / 1000.0 - 0.5;
        let score = keys.iter().map(weight).sum::<f64>() + noise;
        (keys, if score > 0.0 { 1.0 } else { -1.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_the_published_one() {
        let example = Example::new();
        assert_eq!(example.labels.iter().filter(|&&y| y > 0.0).count(), 114);
        assert_eq!(example.labels[..3], [-1.0, -1.0, 1.0]);
        let row = |row: u32| -> Vec<u64> {
            let has = |j: &usize| example.columns.column(*j).0.contains(&row);
            (0..60).filter(has).map(|j| example.columns.keys().get(j)).collect()
        };
        assert_eq!(row(0), [14, 30, 33, 35, 36, 54]);
        assert_eq!(row(1), [3, 9, 12, 22, 46]);
        assert_eq!(row(2), [10, 14, 35, 45, 52]);
    }
}
