//! Factorisation machines: logistic regression with interactions of all pairs of features (Rendle,
//! 2010; DiFacto, Li et al., 2016, runs them on a parameter server).
//!
//! ```text
//! m = b + Σ_j w_j x_j + ½ Σ_f [ (Σ_j v_jf x_j)² - Σ_j v_jf² x_j² ]      loss log(1 + exp(-y m))
//! ```
//!
//! The row of feature j has w_j, then the factors v_j. The row of key 2^64 - 1 has b.

use std::path::PathBuf;

use caravan_kv::{Initial, TableSpec, ValueType};
use serde::{Deserialize, Serialize};

use crate::data::{Examples, Labels, Row};
use crate::model::RowModel;
use crate::sgd::{Batch, Batches, Loss};
use crate::trainer::{Descent, Factors, Part, RowsOf, Step, Trainer};

/// Id of the table.
const TABLE: u32 = 1;

/// Key of the row with b.
const BIAS: u64 = u64::MAX;

/// The problem and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// LIBSVM or Criteo text, read in this order.
    pub files: Vec<PathBuf>,
    /// Of a feature; l2 weighs w as well.
    pub factors: Factors,
    /// How gradients change them.
    pub descent: Descent,
}

impl Settings {
    /// Four factors, by AdaGrad.
    pub fn new(files: Vec<PathBuf>) -> Self {
        let factors = Factors { factors: 4, l2: 0.001, seed: 1 };
        Settings { files, factors, descent: Descent::adagrad() }
    }
}

/// Trains one part.
#[derive(Debug)]
pub struct Fm {
    factors: usize,
    l2: f64,
    batches: Batches,
}

impl Trainer for Fm {
    const NAME: &'static str = "fm";
    type Settings = Settings;
    type Value = f32;

    fn table(settings: &Settings) -> TableSpec {
        let Factors { factors, seed, .. } = settings.factors;
        let spec = TableSpec::new(TABLE, "factors", ValueType::F32, factors.saturating_add(1));
        // At 0 factors have no gradient.
        let spec = spec.initial(Initial::Uniform { low: -FIRST_MAX, high: FIRST_MAX, seed });
        settings.descent.rule_of(spec)
    }

    fn load(settings: &Settings, _part: &Part) -> Result<Self, String> {
        let Factors { factors, l2, .. } = settings.factors;
        settings.factors.check()?;
        let batches = Batches::new(settings.descent.batch)?;
        Ok(Fm { factors: factors as usize, l2, batches })
    }

    fn rows_of(settings: &Settings) -> Option<RowsOf<'_>> {
        let Settings { files, descent, .. } = settings;
        Some(RowsOf { files, labels: Labels::Classes, step: descent.batch })
    }

    fn add_rows(&mut self, rows: &Examples) -> Result<(), String> {
        self.batches.add(rows, with_bias)
    }

    fn end_rows(&mut self) -> Result<(), String> {
        self.batches.end(with_bias)
    }

    fn steps(&self) -> u64 {
        self.batches.all().len() as u64
    }

    fn keys(&self, _pass: u64, step: u64) -> Vec<u64> {
        self.batches.all()[step as usize].keys.clone()
    }

    fn step(&mut self, step: &mut Step<'_, f32>) {
        let batch = &self.batches.all()[step.step as usize];
        let width = self.factors + 1;
        let bias = (batch.keys.len() - 1) * width;
        let mut sums = vec![0.0; self.factors];
        for (label, row) in batch.iter() {
            let entries = row.map(|(place, value)| (&step.rows[place * width..][..width], value));
            let margin = f64::from(step.rows[bias]) + margin(entries.clone(), &mut sums);
            let [loss, gradient] = Loss::Logistic.of(label, margin);
            step.sums.loss += loss;
            step.update[bias] += gradient as f32;
            for ((row, value), place) in entries.zip(batch.places(step.sums.examples as usize)) {
                let update = &mut step.update[place * width..][..width];
                update[0] += (gradient * value + self.l2 * f64::from(row[0])) as f32;
                for ((update, &v), sum) in update[1..].iter_mut().zip(&row[1..]).zip(&sums) {
                    let v = f64::from(v);
                    *update += (gradient * value * (sum - v * value) + self.l2 * v) as f32;
                }
            }
            step.sums.examples += 1;
        }
    }
}

/// Adds the key of b to a batch.
fn with_bias(batch: &mut Batch) -> Result<(), String> {
    if batch.keys.last() == Some(&BIAS) {
        return Err(format!("feature {BIAS} is the key of the bias: give it another one"));
    }
    batch.keys.push(BIAS);
    Ok(())
}

/// Largest first value.
const FIRST_MAX: f64 = 0.05;

/// The margin of an example without b; leaves Σ_j v_jf x_j in `sums: [factors]`.
fn margin<'a, V: Copy + Into<f64> + 'a>(
    entries: impl Iterator<Item = (&'a [V], f64)>,
    sums: &mut [f64],
) -> f64 {
    sums.fill(0.0);
    let (mut linear, mut squares) = (0.0, 0.0);
    for (row, value) in entries {
        linear += row[0].into() * value;
        for (sum, &v) in sums.iter_mut().zip(&row[1..]) {
            let product = v.into() * value;
            *sum += product;
            squares += product * product;
        }
    }
    linear + 0.5 * (sums.iter().map(|sum| sum * sum).sum::<f64>() - squares)
}

/// The margins of a trained model; features that it does not have count as 0.
pub fn margins(model: &RowModel, examples: &Examples) -> Vec<f64> {
    // No row is as wide as the head of a model without rows may claim.
    let first = model.rows.iter().next();
    let mut sums = vec![0.0; first.map_or(0, |(_, row)| row.len().saturating_sub(1))];
    let bias = model.rows.row(BIAS).map_or(0.0, |row| row[0]);
    let of = |row: Row<'_>| {
        let entries = (0..row.keys.len()).filter_map(|at| {
            let value = row.values.map_or(1.0, |values| values[at]);
            Some((model.rows.row(row.keys[at])?, value))
        });
        bias + margin(entries, &mut sums)
    };
    examples.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data;

    /// The update of a step is the derivative of its loss, with the penalty.
    #[test]
    fn gradients_are_those_of_the_loss() {
        let text = b"+1 1:1 4:2\n-1 1:0.5 9:1\n+1 4:1\n";
        let examples = data::parse("t".as_ref(), text).unwrap();
        let l2 = 0.25;
        let mut fm = Fm { factors: 2, l2, batches: Batches::new(3).unwrap() };
        fm.add_rows(&examples).unwrap();
        fm.end_rows().unwrap();
        let keys = fm.keys(0, 0);
        assert_eq!(keys, [1, 4, 9, BIAS]);
        let rows = [0.5_f32, -1.0, 0.25, 0.75, -0.75, 1.5, 1.0, 0.125, 0.5, -0.25, 0.0, 0.0];
        let penalised = |rows: &[f32]| {
            let row = |key: u64| {
                let at = keys.iter().position(|it| *it == key).unwrap() * 3;
                [0, 1, 2].map(|of| f64::from(rows[at + of]))
            };
            let of = |example: Row<'_>| {
                let terms: Vec<[f64; 3]> = (0..example.keys.len())
                    .map(|at| row(example.keys[at]).map(|it| it * example.values.unwrap()[at]))
                    .collect();
                let mut margin = row(BIAS)[0] + terms.iter().map(|term| term[0]).sum::<f64>();
                for a in 0..terms.len() {
                    for b in 0..a {
                        margin += terms[a][1] * terms[b][1] + terms[a][2] * terms[b][2];
                    }
                }
                let norms: f64 = example.keys.iter().flat_map(|&key| row(key)).map(|v| v * v).sum();
                Loss::Logistic.of(example.label, margin)[0] + 0.5 * l2 * norms
            };
            examples.iter().map(of).sum::<f64>()
        };
        let mut step = Step::new(0, 0, &keys, &rows, 3);
        fm.step(&mut step);
        for at in 0..10 {
            let h = 1.0 / 1024.0;
            let moved = |by: f32| {
                let mut rows = rows;
                rows[at] += by;
                penalised(&rows)
            };
            let gradient = (moved(h) - moved(-h)) / (2.0 * f64::from(h));
            assert!((f64::from(step.update[at]) - gradient).abs() < 1e-4, "{at}: {gradient}");
        }
        assert_eq!(step.update[10..], [0.0; 2], "the bias has no factors");
    }
}
