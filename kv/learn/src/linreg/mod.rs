//! Least squares by gradient descent on all data, with parameters in chunks of one owner each: the
//! program of the Parameter Database (Goel et al., 2015), which its read and write constraints make
//! exact without barriers.
//!
//! ```text
//! w_i ← w_i - rate / L · Σ_rows x_i (x·w - y)        for all i of a part's chunk
//! ```
//!
//! Each part has all rows, and a chunk of the features. A step reads all weights and writes those
//! of the chunk. L is the largest curvature, so that a rate below 2 converges without delay. Under
//! data-centric constraints without delay the result is the serial run's to the bit, for any number
//! of parts.

use std::ops::Range;
use std::path::PathBuf;

use caravan_kv::error::with_sources;
use caravan_kv::{TableSpec, ValueType};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};

use crate::data::{Examples, Labels, Row};
use crate::model::Model;
use crate::trainer::{Part, Rows, Step, Trainer};

/// Id of the table of weights.
const TABLE: u32 = 1;

/// Most features: a step reads all of them.
pub const FEATURES_MAX: u64 = 1 << 24;

/// Steps of power iteration for the largest curvature.
const POWER_STEPS: usize = 50;

/// How much larger the curvature may be than found so.
const POWER_MARGIN: f64 = 1.05;

/// The problem and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// LIBSVM text, read in this order; labels are the targets.
    pub files: Vec<PathBuf>,
    /// One more than the largest feature: [`features`].
    pub features: u64,
    /// Share of the step 1 / L.
    pub rate: f64,
    /// Steps of a pass, at least 1.
    pub steps: u64,
}

/// One more than the largest feature of examples.
///
/// # Errors
/// [`crate::Error::TooMany`] above [`FEATURES_MAX`].
pub fn features(examples: &Examples) -> crate::Result<u64> {
    let count = examples.keys.iter().max().map_or(0, |largest| largest.saturating_add(1));
    if count > FEATURES_MAX {
        return Err(crate::Error::TooMany { what: "features", count, count_max: FEATURES_MAX });
    }
    Ok(count)
}

/// Trains the chunk of one part.
#[derive(Debug)]
pub struct LinReg {
    examples: Examples,
    features: u64,
    chunk: Range<usize>,
    step: f64,
    steps: u64,
    /// Whether it counts the loss, which all parts know.
    counts: bool,
}

impl Trainer for LinReg {
    const NAME: &'static str = "linreg";
    type Settings = Settings;
    type Value = f64;
    const REMEDY: &'static str = "lower --rate";

    fn table(settings: &Settings) -> TableSpec {
        let keys = KeyRange::new(0, settings.features.max(1)).unwrap_or(KeyRange::ALL);
        TableSpec::new(TABLE, "weights", ValueType::F64, 1).keys(keys).dense().handle("assign")
    }

    fn chunk_keys(settings: &Settings, parts: usize) -> Option<u64> {
        Some(settings.features.div_ceil(parts as u64).max(1))
    }

    fn files(settings: &Settings) -> &[PathBuf] {
        &settings.files
    }

    fn load(settings: &Settings, part: &Part) -> Result<Self, String> {
        let Settings { features, rate, steps, .. } = *settings;
        if steps == 0 || !(rate > 0.0 && rate.is_finite()) {
            return Err(format!(
                "{steps} steps at rate {rate}: take 1 or more, and a rate above 0"
            ));
        }
        let examples = part.all_examples(&settings.files, Labels::Targets)?;
        let found = self::features(&examples).map_err(|error| with_sources(&error))?;
        if found > features {
            return Err(format!("feature {} is not below {features}", found - 1));
        }
        let chunk_keys = Self::chunk_keys(settings, part.parts).unwrap_or(1);
        let end = |number: usize| (number as u64 * chunk_keys).min(features) as usize;
        let chunk = end(part.number)..end(part.number + 1);
        if chunk.is_empty() {
            return Err(format!("{features} features are too few for {} parts", part.parts));
        }
        let curvature = curvature(&examples, features as usize);
        if !curvature.is_finite() {
            return Err("the squares of values add up to no finite number: scale them".to_owned());
        }
        let step = rate / curvature;
        Ok(LinReg { examples, features, chunk, step, steps, counts: part.number == 0 })
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn keys(&self, _pass: u64, _step: u64) -> Vec<u64> {
        (0..self.features).collect()
    }

    fn step(&mut self, step: &mut Step<'_, f64>) {
        let chunk = self.chunk.clone();
        let gradient = &mut step.update;
        for row in self.examples.iter() {
            let error = product(row, step.rows) - row.label;
            if self.counts && step.step + 1 == self.steps {
                step.sums.loss += 0.5 * error * error;
                step.sums.examples += 1;
            }
            for (at, value) in entries(row) {
                if chunk.contains(&at) {
                    gradient[at] += error * value;
                }
            }
        }
        let weights = gradient.iter_mut().zip(step.rows);
        weights.for_each(|(gradient, weight)| *gradient = weight - self.step * *gradient);
        step.written = chunk;
    }
}

fn entries(row: Row<'_>) -> impl Iterator<Item = (usize, f64)> {
    let value = move |at: usize| row.values.map_or(1.0, |values| values[at]);
    row.keys.iter().enumerate().map(move |(at, &key)| (key as usize, value(at)))
}

fn product(row: Row<'_>, weights: &[f64]) -> f64 {
    entries(row).map(|(at, value)| value * weights[at]).sum()
}

/// The largest eigenvalue of X'X, or a little more; not finite if it has none.
fn curvature(examples: &Examples, features: usize) -> f64 {
    let mut direction = vec![1.0; features];
    let mut largest = 1.0;
    for _ in 0..POWER_STEPS {
        let length = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() {
            return length;
        }
        if length <= 0.0 {
            return 1.0; // no data, so no steps
        }
        direction.iter_mut().for_each(|x| *x /= length);
        let mut next = vec![0.0; features];
        for row in examples.iter() {
            let product = product(row, &direction);
            entries(row).for_each(|(at, value)| next[at] += product * value);
        }
        largest = next.iter().zip(&direction).map(|(next, x)| next * x).sum();
        direction = next;
    }
    if largest <= 0.0 { 1.0 } else { largest * POWER_MARGIN }
}

/// The trained weights as a model.
///
/// # Errors
/// [`crate::Error::BadWeight`] if training has diverged.
pub fn model(rows: &Rows<f64>) -> crate::Result<Model> {
    crate::sgd::model(rows)
}
