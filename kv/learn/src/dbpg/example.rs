//! A small made-up problem whose every pass is known, for tests and first steps; not a benchmark.

use super::gradient::Columns;
use super::reference::Part;

/// A small problem with published results: 200 rows, 60 columns, all values 1.
///
/// Each row names the distinct ones of six keys drawn below 60; keys ending in 5 speak for label
/// +1, keys ending in 0 for -1, with a little noise, and the others say nothing. At λ = 1 the
/// optimum is [`Example::OPTIMUM`], with 31 non-zero weights.
#[derive(Debug, Clone)]
pub struct Example {
    labels: Vec<f64>,
    keys: Vec<u64>,
    starts: Vec<usize>,
    rows: Vec<u32>,
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

    /// The rows of worker `worker` of `workers`, dealt out in turn, with only the keys they name.
    pub fn share(worker: u32, workers: u32) -> Self {
        Self::with_rows(|row| row % workers == worker)
    }

    /// The view that a [`Part`] takes.
    pub fn part(&self) -> Part<'_> {
        let columns =
            Columns { keys: &self.keys, starts: &self.starts, rows: &self.rows, values: None };
        Part { columns, labels: &self.labels }
    }

    /// The rows as LIBSVM text, in order.
    pub fn libsvm(&self) -> String {
        let mut rows: Vec<String> = self.labels.iter().map(|label| format!("{label:+}")).collect();
        for (key, range) in self.keys.iter().zip(self.starts.windows(2)) {
            for &row in &self.rows[range[0]..range[1]] {
                rows[row as usize].push_str(&format!(" {key}:1"));
            }
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
        let mut example = Self { labels, keys: Vec::new(), starts: vec![0], rows: Vec::new() };
        for (key, rows) in (0..).zip(columns).filter(|(_, rows)| !rows.is_empty()) {
            example.keys.push(key);
            example.rows.extend(rows);
            example.starts.push(example.rows.len());
        }
        example
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
            let has =
                |j: &usize| example.rows[example.starts[*j]..example.starts[j + 1]].contains(&row);
            (0..60).filter(has).map(|j| example.keys[j]).collect()
        };
        assert_eq!(row(0), [14, 30, 33, 35, 36, 54]);
        assert_eq!(row(1), [3, 9, 12, 22, 46]);
        assert_eq!(row(2), [10, 14, 35, 45, 52]);
    }
}
