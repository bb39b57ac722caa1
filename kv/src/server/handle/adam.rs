//! Adam. Workers push gradients.
//!
//! Path: codec > thread > shard > store (handle, **adam**) > answer.

use serde::{Deserialize, Serialize};

use super::number::{Float, Real};
use super::options::{Allowed, number};
use super::{Origin, Rule, each};
use crate::refusal::Refused;

/// Options of the handle `adam` (Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014,
/// algorithm 1).
///
/// A push of gradient g takes the weight w, its means m and v, and the row's c₁ and c₂, all 0 at
/// first, to
///
/// ```text
/// c₁ ← c₁ + (1 − beta1) · (1 − c₁)        = 1 − beta1^t in the row's t-th push
/// c₂ ← c₂ + (1 − beta2) · (1 − c₂)        = 1 − beta2^t
/// m ← m + (1 − beta1) · (g − m)
/// v ← v + (1 − beta2) · (g · g − v)
/// w ← w − rate · (m / c₁) / (√(v / c₂) + epsilon)
/// ```
///
/// A row that a push does not name stays as it is, with its means. Each row has two hidden columns,
/// c₁ and c₂, and each value two more, m and v.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adam {
    /// Learning rate, above 0; 0.001 by default.
    pub rate: f64,
    /// Share of the mean of gradients that stays, 0 or more and below 1; 0.9 by default.
    pub beta1: f64,
    /// Share of the mean of their squares that stays, 0 or more and below 1; 0.999 by default.
    pub beta2: f64,
    /// Added to the root, above 0; 1e-8 by default.
    pub epsilon: f64,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { rate: 0.001, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// The rule of [`Adam`].
pub(super) struct AdamRule<R> {
    rate: R,
    /// 1 − beta1 and 1 − beta2.
    shares: [R; 2],
    epsilon: R,
}

impl<R: Real> AdamRule<R> {
    pub(super) fn new(options: Adam) -> Result<Self, Refused> {
        let Adam { rate, beta1, beta2, epsilon } = options;
        number::<R>("beta1", beta1, Allowed::Share)?;
        number::<R>("beta2", beta2, Allowed::Share)?;
        Ok(AdamRule {
            rate: number("rate", rate, Allowed::Positive)?,
            shares: [beta1, beta2].map(|beta| R::from_f64(1.0 - beta)),
            epsilon: number("epsilon", epsilon, Allowed::Positive)?,
        })
    }
}

/// Hidden values of a row beside those of its values.
const CORRECTIONS: usize = 2;

impl<V: Float> Rule<V> for AdamRule<V::Real> {
    type Hidden = V::Real;
    const READS_ONCE: bool = true;

    #[inline]
    fn hidden(&self, width: usize) -> usize {
        CORRECTIONS + 2 * width
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
        let [share1, share2] = self.shares;
        let Some((corrections, hidden)) = hidden.split_first_chunk_mut::<CORRECTIONS>() else {
            return;
        };
        let [c1, c2] = corrections;
        *c1 = *c1 + share1 * (V::Real::ONE - *c1);
        *c2 = *c2 + share2 * (V::Real::ONE - *c2);
        // By value: the loop need not read them again after each store, and can be vectorised.
        let [c1, c2] = *corrections;
        each(stored, hidden, pushed, |w, [m, v], g| {
            *m = *m + share1 * (g - *m);
            *v = *v + share2 * (g * g - *v);
            w - self.rate * (*m / c1) / ((*v / c2).sqrt() + self.epsilon)
        });
    }
}
