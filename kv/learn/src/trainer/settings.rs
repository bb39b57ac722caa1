//! Settings that algorithms by gradient descent have in common.

use caravan_kv::TableSpec;
use caravan_kv::filter::Filters;
use serde::{Deserialize, Serialize};

/// How gradients change rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Descent {
    /// Examples of a step of each part, at least 1.
    pub batch: usize,
    /// The update rule: a handle of the table.
    pub handle: String,
    /// The handle's options.
    pub options: serde_json::Value,
}

impl Descent {
    /// Batches of 64, by AdaGrad.
    pub fn adagrad() -> Self {
        let options = serde_json::json!({"rate": 0.1});
        Descent { batch: 64, handle: "adagrad".to_owned(), options }
    }

    /// The table with its update rule. A step pushes to the keys that it has pulled, so servers
    /// look these up once.
    pub(crate) fn rule_of(&self, spec: TableSpec) -> TableSpec {
        let filters = Filters { key_cache: true, ..Filters::default() };
        spec.handle(&self.handle).options(self.options.clone()).filters(filters)
    }
}

/// Vectors of users, items or features.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Factors {
    /// Factors of each, 1 to [`Factors::COUNT_MAX`].
    pub factors: u32,
    /// Weight of half their squared norms in each example, 0 or more.
    pub l2: f64,
    /// Determines the first factors.
    pub seed: u64,
}

impl Factors {
    /// Most factors.
    pub const COUNT_MAX: u32 = 4096;

    /// Refuses invalid settings, with the reason.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Factors { factors, l2, .. } = *self;
        let is_right = (1..=Self::COUNT_MAX).contains(&factors) && l2 >= 0.0 && l2.is_finite();
        let wrong = || {
            format!(
                "{factors} factors and l2 {l2}: take 1 to {}, and a number of 0 or more",
                Self::COUNT_MAX
            )
        };
        is_right.then_some(()).ok_or_else(wrong)
    }
}
