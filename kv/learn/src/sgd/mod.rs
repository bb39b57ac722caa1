//! Linear models by stochastic gradient descent: logistic regression and least squares, with the
//! update rule of the table's handle: `sgd`, `momentum`, `adagrad`, `adam` or `ftrl`.
//!
//! A step takes a batch of rows, reads the weights of their features, and pushes the gradient of
//! the mean loss over the batch, or of the sum:
//!
//! ```text
//! logistic   log(1 + exp(-y m))    g_j = Σ -y x_j / (1 + exp(y m))
//! squared    ½ (m - y)²            g_j = Σ (m - y) x_j                   m = x·w
//! ```
//!
//! Under BSP it is synchronous SGD; under SSP and bounded delay it is delayed, under ASP
//! asynchronous (Li et al., OSDI'14; Langford, Smola and Zinkevich, "Slow Learners are Fast",
//! 2009).

mod batch;

use std::path::PathBuf;

use caravan_kv::{TableSpec, ValueType};
use serde::{Deserialize, Serialize};

pub(crate) use self::batch::{Batch, Batches};
use crate::data::{Examples, Labels};
use crate::model::Model;
use crate::numeric::logistic::{log_loss, wrong_probability};
use crate::trainer::{Descent, Part, Rows, RowsOf, Step, Trainer};

/// Id of the table of weights.
const TABLE: u32 = 1;

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Logistic regression.
    Logistic,
    /// Least squares, with labels as targets.
    Squared,
}

impl Loss {
    /// What labels are to it.
    pub fn labels(self) -> Labels {
        match self {
            Loss::Logistic => Labels::Classes,
            Loss::Squared => Labels::Targets,
        }
    }

    /// The loss of a margin, and its derivative.
    pub fn of(self, label: f64, margin: f64) -> [f64; 2] {
        match self {
            Loss::Logistic => {
                let right = label * margin;
                [log_loss(right), -label * wrong_probability(right)]
            }
            Loss::Squared => {
                let error = margin - label;
                [0.5 * error * error, error]
            }
        }
    }
}

/// The problem and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// LIBSVM or Criteo text, read in this order.
    pub files: Vec<PathBuf>,
    /// What is minimised.
    pub loss: Loss,
    /// Whether the gradient is the mean over the batch, rather than the sum.
    pub mean: bool,
    /// How gradients change weights.
    pub descent: Descent,
}

impl Settings {
    /// Logistic regression with FTRL-proximal, one update a row.
    pub fn new(files: Vec<PathBuf>) -> Self {
        let options = serde_json::Value::Null;
        let descent = Descent { batch: 64, handle: "ftrl".to_owned(), options };
        Settings { files, loss: Loss::Logistic, mean: false, descent }
    }
}

/// Trains one part.
#[derive(Debug)]
pub struct Sgd {
    loss: Loss,
    mean: bool,
    batches: Batches,
}

impl Trainer for Sgd {
    const NAME: &'static str = "sgd";
    type Settings = Settings;
    type Value = f64;

    fn table(settings: &Settings) -> TableSpec {
        let spec = TableSpec::new(TABLE, "weights", ValueType::F64, 1);
        settings.descent.rule_of(spec)
    }

    fn load(settings: &Settings, _part: &Part) -> Result<Self, String> {
        let Settings { loss, mean, .. } = *settings;
        Ok(Sgd { loss, mean, batches: Batches::new(settings.descent.batch)? })
    }

    fn rows_of(settings: &Settings) -> Option<RowsOf<'_>> {
        let Settings { files, loss, descent, .. } = settings;
        Some(RowsOf { files, labels: loss.labels(), step: descent.batch })
    }

    fn add_rows(&mut self, rows: &Examples) -> Result<(), String> {
        self.batches.add(rows, |_| Ok(()))
    }

    fn end_rows(&mut self) -> Result<(), String> {
        self.batches.end(|_| Ok(()))
    }

    fn steps(&self) -> u64 {
        self.batches.all().len() as u64
    }

    fn keys(&self, _pass: u64, step: u64) -> Vec<u64> {
        self.batches.all()[step as usize].keys.clone()
    }

    fn step(&mut self, step: &mut Step<'_, f64>) {
        let batch = &self.batches.all()[step.step as usize];
        let scale = if self.mean { 1.0 / batch.rows() as f64 } else { 1.0 };
        for (label, row) in batch.iter() {
            let margin: f64 = row.clone().map(|(at, value)| value * step.rows[at]).sum();
            let [loss, gradient] = self.loss.of(label, margin);
            step.sums.loss += loss;
            row.for_each(|(at, value)| step.update[at] += scale * gradient * value);
        }
        step.sums.examples += batch.rows() as u64;
    }
}

/// The trained weights as a model.
///
/// # Errors
/// [`crate::Error::BadWeight`] if training has diverged.
pub fn model(rows: &Rows<f64>) -> crate::Result<Model> {
    Model::new(rows.iter().map(|(key, row)| (key, row[0])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_are_those_of_the_losses() {
        for loss in [Loss::Logistic, Loss::Squared] {
            for (label, margin) in [(1.0, 0.3), (-1.0, 0.3), (1.0, -2.0), (-1.0, 30.0)] {
                let h = 1e-6;
                let [up, _] = loss.of(label, margin + h);
                let [down, _] = loss.of(label, margin - h);
                let [_, gradient] = loss.of(label, margin);
                assert!(((up - down) / (2.0 * h) - gradient).abs() < 1e-6, "{loss:?} {margin}");
            }
        }
        assert_eq!(Loss::Logistic.of(1.0, -1e4), [1e4, -1.0], "no overflow");
    }
}
