//! Ratings of items by users as inner products: matrix factorisation by stochastic gradient descent
//! (Koren, Bell and Volinsky, 2009).
//!
//! ```text
//! m = mean + p·q      loss ½ (m - rating)² + ½ l2 (‖p‖² + ‖q‖²)      p of the user, q of the item
//! ```
//!
//! The factors of user u are the row of key 2u, those of item i the row of 2i + 1. A step takes a
//! batch of ratings, reads the rows of their users and items, and pushes the sums of their
//! gradients.

mod ratings;

use std::path::PathBuf;

use caravan_kv::{Initial, TableSpec, ValueType};
use serde::{Deserialize, Serialize};

pub use self::ratings::{KEY_MAX, Rating, Ratings};
use crate::Error;
use crate::model::RowModel;
use crate::trainer::{Descent, Factors, Part, Step, Trainer};

/// Id of the table of factors.
const TABLE: u32 = 1;

/// The problem and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Lines `user item rating`, read in this order.
    pub files: Vec<PathBuf>,
    /// Added to every product: the mean of all ratings ([`Ratings::mean`]).
    pub mean: f64,
    /// Of a user or an item.
    pub factors: Factors,
    /// How gradients change them.
    pub descent: Descent,
}

impl Settings {
    /// Ten factors, by AdaGrad.
    pub fn new(files: Vec<PathBuf>, mean: f64) -> Self {
        let factors = Factors { factors: 10, l2: 0.02, seed: 1 };
        Settings { files, mean, factors, descent: Descent::adagrad() }
    }
}

/// Trains one part.
#[derive(Debug)]
pub struct Mf {
    mean: f64,
    l2: f64,
    factors: usize,
    batches: Vec<Batch>,
}

/// Ratings of a step.
#[derive(Debug)]
struct Batch {
    keys: Vec<u64>,
    ratings: Vec<Placed>,
}

/// A rating with the places of its user and item among the keys.
#[derive(Debug, Clone, Copy)]
struct Placed {
    user: usize,
    item: usize,
    value: f64,
}

impl Trainer for Mf {
    const NAME: &'static str = "mf";
    type Settings = Settings;
    type Value = f32;

    fn table(settings: &Settings) -> TableSpec {
        let Factors { factors, seed, .. } = settings.factors;
        // So that products of first factors are small, and no two factors are alike.
        let high = 1.0 / f64::from(factors.max(1)).sqrt();
        let spec = TableSpec::new(TABLE, "factors", ValueType::F32, factors.max(1));
        let spec = spec.initial(Initial::Uniform { low: -high, high, seed });
        settings.descent.rule_of(spec)
    }

    fn files(settings: &Settings) -> &[PathBuf] {
        &settings.files
    }

    fn load(settings: &Settings, part: &Part) -> Result<Self, String> {
        let Settings { mean, factors: Factors { factors, l2, .. }, .. } = *settings;
        settings.factors.check()?;
        let batch = settings.descent.batch;
        if batch == 0 || !mean.is_finite() {
            return Err(format!(
                "a step of {batch} ratings around {mean}: take 1 or more, around a number"
            ));
        }
        let ratings = part.read(&settings.files, Ratings::read)?;
        let batches = ratings.all.chunks(batch).map(Batch::of).collect();
        Ok(Mf { mean, l2, factors: factors as usize, batches })
    }

    fn steps(&self) -> u64 {
        self.batches.len() as u64
    }

    fn keys(&self, _pass: u64, step: u64) -> Vec<u64> {
        self.batches[step as usize].keys.clone()
    }

    fn step(&mut self, step: &mut Step<'_, f32>) {
        let (factors, l2) = (self.factors, self.l2 as f32);
        for Placed { user, item, value } in &self.batches[step.step as usize].ratings {
            let [user, item] = [user, item].map(|place| place * factors..(place + 1) * factors);
            let (p, q) = (&step.rows[user.clone()], &step.rows[item.clone()]);
            let error = self.mean + product(p, q) - value;
            step.sums.loss += 0.5 * error * error;
            let pairs = || p.iter().zip(q);
            let of_user = step.update[user].iter_mut().zip(pairs());
            of_user.for_each(|(update, (p, q))| *update += error as f32 * q + l2 * p);
            let of_item = step.update[item].iter_mut().zip(pairs());
            of_item.for_each(|(update, (p, q))| *update += error as f32 * p + l2 * q);
            step.sums.examples += 1;
        }
    }
}

fn product(p: &[f32], q: &[f32]) -> f64 {
    p.iter().zip(q).map(|(p, q)| f64::from(*p) * f64::from(*q)).sum()
}

impl Batch {
    fn of(ratings: &[Rating]) -> Self {
        let both = |rating: &Rating| [2 * rating.user, 2 * rating.item + 1];
        let mut keys: Vec<u64> = ratings.iter().flat_map(both).collect();
        keys.sort_unstable();
        keys.dedup();
        let place = |key: u64| keys.partition_point(|other| *other < key);
        let placed = |rating: &Rating| {
            let [user, item] = both(rating).map(place);
            Placed { user, item, value: rating.value }
        };
        let ratings = ratings.iter().map(placed).collect();
        Batch { keys, ratings }
    }
}

/// Root of the mean squared error of a trained model; users and items that it does not have get the
/// mean. `None` without ratings.
///
/// # Errors
/// [`Error::OtherModel`] says what such a model lacks.
pub fn rmse(model: &RowModel, ratings: &Ratings) -> crate::Result<Option<f64>> {
    let mean = model.settings.get("mean").and_then(serde_json::Value::as_f64);
    let mean = mean.ok_or_else(|| Error::OtherModel {
        algorithm: Mf::NAME,
        reason: "its setting mean is no number".to_owned(),
    })?;
    let error = |rating: &Rating| {
        let rows = model.rows.row(2 * rating.user).zip(model.rows.row(2 * rating.item + 1));
        let product = rows.map_or(0.0, |(p, q)| p.iter().zip(q).map(|(p, q)| p * q).sum());
        (mean + product - rating.value).powi(2)
    };
    let squares: f64 = ratings.all.iter().map(error).sum();
    let count = ratings.all.len();
    Ok((count > 0).then(|| (squares / count as f64).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The update of a step is the derivative of its loss, with the penalty.
    #[test]
    fn gradients_are_those_of_the_loss() {
        let ratings: Vec<Rating> = [(0, 1, 3.0), (0, 2, 1.0), (5, 1, 2.0)]
            .map(|(user, item, value)| Rating { user, item, value })
            .to_vec();
        let (mean, l2, factors) = (2.0, 0.3, 2);
        let mut mf = Mf { mean, l2, factors, batches: vec![Batch::of(&ratings)] };
        let keys = mf.keys(0, 0);
        assert_eq!(keys, [0, 3, 5, 10]);
        let rows = [0.5_f32, -1.0, 0.25, 2.0, -0.75, 1.5, 1.0, 0.125];
        let penalised = |rows: &[f32]| {
            ratings
                .iter()
                .map(|rating| {
                    let row = |key: u64| {
                        let at = keys.iter().position(|it| *it == key).map_or(0, |at| at * 2);
                        [f64::from(rows[at]), f64::from(rows[at + 1])]
                    };
                    let (p, q) = (row(2 * rating.user), row(2 * rating.item + 1));
                    let error = mean + p[0] * q[0] + p[1] * q[1] - rating.value;
                    let norms = p[0] * p[0] + p[1] * p[1] + q[0] * q[0] + q[1] * q[1];
                    0.5 * error * error + 0.5 * l2 * norms
                })
                .sum::<f64>()
        };
        let mut step = Step::new(0, 0, &keys, &rows, 2);
        mf.step(&mut step);
        for at in 0..rows.len() {
            let h = 1.0 / 1024.0;
            let moved = |by: f32| {
                let mut rows = rows;
                rows[at] += by;
                penalised(&rows)
            };
            let gradient = (moved(h) - moved(-h)) / (2.0 * f64::from(h));
            assert!((f64::from(step.update[at]) - gradient).abs() < 1e-4, "{at}: {gradient}");
        }
    }
}
