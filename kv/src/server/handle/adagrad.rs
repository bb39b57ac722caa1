//! AdaGrad. Workers push gradients.
//!
//! Path: codec > thread > shard > store (handle, **adagrad**) > answer.

use serde::{Deserialize, Serialize};

use super::number::{Float, Real};
use super::options::{Allowed, number};
use super::{Origin, Rule, each};
use crate::refusal::Refused;

/// Options of the handle `adagrad` (Duchi, Hazan and Singer, "Adaptive Subgradient Methods for
/// Online Learning and Stochastic Optimization", 2011, with a diagonal matrix).
///
/// A push of gradient g takes the weight w and its sum of squares n, `squares` at first, to
///
/// ```text
/// n ← n + g · g
/// w ← w − rate · g / (√n + epsilon)
/// ```
///
/// Each value has one hidden column, n.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaGrad {
    /// Learning rate, above 0; 0.01 by default.
    pub rate: f64,
    /// Added to the root, above 0; 1e-10 by default.
    pub epsilon: f64,
    /// The sum of squares of a new row, 0 or more; 0 by default.
    pub squares: f64,
}

impl Default for AdaGrad {
    fn default() -> Self {
        AdaGrad { rate: 0.01, epsilon: 1e-10, squares: 0.0 }
    }
}

/// The rule of [`AdaGrad`].
pub(super) struct AdaGradRule<R> {
    rate: R,
    epsilon: R,
    squares: R,
}

impl<R: Real> AdaGradRule<R> {
    pub(super) fn new(options: AdaGrad) -> Result<Self, Refused> {
        Ok(AdaGradRule {
            rate: number("rate", options.rate, Allowed::Positive)?,
            epsilon: number("epsilon", options.epsilon, Allowed::Positive)?,
            squares: number("squares", options.squares, Allowed::NotNegative)?,
        })
    }
}

impl<V: Float> Rule<V> for AdaGradRule<V::Real> {
    type Hidden = V::Real;
    const READS_ONCE: bool = true;
    const BY_VALUE: bool = true;

    #[inline]
    fn hidden(&self, width: usize) -> usize {
        width
    }

    fn init(&mut self, _key: u64, _stored: &[V], hidden: &mut [V::Real]) {
        hidden.fill(self.squares);
    }

    #[inline]
    fn apply(
        &mut self,
        _origin: Origin,
        _key: u64,
        stored: &mut [V],
        hidden: &mut [V::Real],
        pushed: &[V],
    ) {
        each(stored, hidden, pushed, |w, [n], g| {
            *n = *n + g * g;
            w - self.rate * g / (n.sqrt() + self.epsilon)
        });
    }
}
