//! Gaussian noise: each pushed value gets a random number with mean 0, so that sums of many pushes
//! stay what they are on average, and no single push shows exactly what it was.

use std::f64::consts::TAU;

use serde::Deserialize;

use super::draws::Draws;
use super::own::{End, Filter};
use crate::refusal::{Refusal, Refused};

/// The filter of one table at one worker.
pub(super) struct Noise {
    deviation: f64,
    draws: Draws,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    deviation: f64,
    #[serde(default)]
    seed: u64,
}

impl Noise {
    /// Makes the filter; workers draw from streams of their own.
    pub(super) fn make(end: &End<'_>) -> Result<Box<dyn Filter>, Refused> {
        let options = Options::deserialize(end.options)?;
        let Options { deviation, seed } = options;
        if !(deviation >= 0.0 && deviation.is_finite()) {
            return Err(Refusal::Shape
                .because(format!("deviation is {deviation}, and must be a number from 0 on")));
        }
        let stream = u64::from(end.worker.unwrap_or(0)) << 34 | u64::from(end.spec.id) << 2 | 2;
        Ok(Box::new(Noise { deviation, draws: Draws::new(seed, stream) }))
    }

    /// Box and Muller, 1958: a standard normal number of two uniform ones.
    fn next(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.draws.next_unit()).ln()).sqrt();
        radius * (TAU * self.draws.next_unit()).cos()
    }
}

impl Filter for Noise {
    fn is_lossy(&self) -> bool {
        true
    }

    fn change(&mut self, values: &mut [f64]) {
        values.iter_mut().for_each(|value| *value += self.deviation * self.next());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::table::{TableSpec, ValueType};

    /// Mean, variance and the share beyond two deviations are those of a normal distribution.
    #[test]
    fn it_is_normal() {
        let spec = TableSpec::new(1, "t", ValueType::F64, 1);
        let options = serde_json::json!({ "deviation": 3.0, "seed": 5 });
        let end = End { spec: &spec, options: &options, worker: Some(9) };
        let mut values = vec![10.0; 100_000];
        Noise::make(&end).unwrap().change(&mut values);
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        assert!((mean - 10.0).abs() < 5.0 * 3.0 / count.sqrt(), "{mean}");
        let variance = values.iter().map(|value| (value - 10.0).powi(2)).sum::<f64>() / count;
        assert!((variance - 9.0).abs() < 5.0 * 9.0 * (2.0 / count).sqrt(), "{variance}");
        let beyond = values.iter().filter(|value| (**value - 10.0).abs() > 6.0).count() as f64;
        let expected = 0.045_500_264;
        let bound = 5.0 * (expected / count).sqrt();
        assert!((beyond / count - expected).abs() < bound, "{beyond}");
    }
}
