//! Numbers in control messages: JSON has none that are not finite, and writes `null` for them.

use serde::{Deserialize, Deserializer};

/// Reads a number; `null` is NaN.
pub(crate) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(from).map(|number| number.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Report {
        #[serde(deserialize_with = "super::number")]
        loss: f64,
    }

    #[test]
    fn numbers_that_are_not_finite_arrive_as_such() {
        for (loss, finite) in [(0.1, true), (f64::NAN, false), (f64::INFINITY, false)] {
            let told = serde_json::to_value(Report { loss }).unwrap();
            let Report { loss: heard } = serde_json::from_value(told).unwrap();
            assert!(heard.is_finite() == finite && (!finite || heard == loss), "{loss}");
        }
    }
}
