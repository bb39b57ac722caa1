//! A small artificial problem with known passes; not a benchmark.
#![allow(dead_code, reason = "each test uses a part")]

use caravan_learn::data::Columns;

/// One worker's data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Its rows, column by column.
    pub(crate) columns: &'a Columns,
    /// Their labels, +1 or -1, times the row weights: `[rows]`.
    pub(crate) labels: &'a [f64],
}

/// A small problem with published results: 200 rows, 60 columns, all values 1.
///
/// Each row has the distinct ones of six random keys below 60; keys that end in 5 indicate label
/// +1, keys that end in 0 label -1, with some noise, and the others nothing. At λ = 1 the optimum
/// is [`Example::OPTIMUM`], with 31 non-zero weights.
#[derive(Debug, Clone)]
pub(crate) struct Example {
    labels: Vec<f64>,
    columns: Columns,
}

impl Example {
    /// F(w) at the optimum for λ = 1.
    pub(crate) const OPTIMUM: f64 = 82.259_034_919_089_54;

    const ROWS: u32 = 200;
    const COLUMNS: u64 = 60;

    /// All rows.
    pub(crate) fn new() -> Self {
        Self::with_rows(|_| true)
    }

    /// The rows of worker `worker` of `workers`, dealt in turn, with only the keys they have.
    pub(crate) fn share(worker: u32, workers: u32) -> Self {
        Self::with_rows(|row| row % workers == worker)
    }

    /// The form that the reference takes.
    pub(crate) fn part(&self) -> Part<'_> {
        Part { columns: &self.columns, labels: &self.labels }
    }

    /// The rows as LIBSVM text, in order.
    pub(crate) fn libsvm(&self) -> String {
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
