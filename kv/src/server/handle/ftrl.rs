//! FTRL-proximal. Workers push gradients.
//!
//! Path: codec > thread > shard > store (handle, **ftrl**) > answer.

use serde::{Deserialize, Serialize};

use super::number::{Float, Real};
use super::options::{Allowed, number};
use super::{Origin, Rule, each};
use crate::refusal::Refused;

/// Options of the handle `ftrl` (McMahan et al., "Ad Click Prediction: a View from the Trenches",
/// 2013, algorithm 1; α there is `rate` here).
///
/// A push of gradient g takes the weight w and its z and n, to
///
/// ```text
/// s ← √(n + g · g)
/// z ← z + (g − (s − √n) / rate · w)
/// n ← n + g · g
/// w ← 0                                                        if |z| ≤ l1
/// w ← (l1 · sign(z) − z) / ((beta + s) / rate + l2)            if not
/// ```
///
/// Each value has two hidden columns, z and n. At first n is 0, and z is 0 or, if the initial w is
/// not, the z that has this w.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ftrl {
    /// α, the learning rate, above 0; 0.1 by default.
    pub rate: f64,
    /// β, above 0; 1 by default.
    pub beta: f64,
    /// λ₁, which keeps weights at 0, 0 or more; 0 by default.
    pub l1: f64,
    /// λ₂, which makes weights smaller, 0 or more; 0 by default.
    pub l2: f64,
}

impl Default for Ftrl {
    fn default() -> Self {
        Ftrl { rate: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 }
    }
}

/// The rule of [`Ftrl`].
pub(super) struct FtrlRule<R> {
    rate: R,
    beta: R,
    l1: R,
    l2: R,
}

impl<R: Real> FtrlRule<R> {
    pub(super) fn new(options: Ftrl) -> Result<Self, Refused> {
        Ok(FtrlRule {
            rate: number("rate", options.rate, Allowed::Positive)?,
            beta: number("beta", options.beta, Allowed::Positive)?,
            l1: number("l1", options.l1, Allowed::NotNegative)?,
            l2: number("l2", options.l2, Allowed::NotNegative)?,
        })
    }

    /// What the weight is divided by if the sum of squares has the root `s`.
    #[inline]
    fn steepness(&self, s: R) -> R {
        (self.beta + s) / self.rate + self.l2
    }

    /// λ₁ with the sign of `of`.
    #[inline]
    fn signed_l1(&self, of: R) -> R {
        if of < R::ZERO { -self.l1 } else { self.l1 }
    }
}

impl<V: Float> Rule<V> for FtrlRule<V::Real> {
    type Hidden = V::Real;
    const READS_ONCE: bool = true;
    const BY_VALUE: bool = true;

    #[inline]
    fn hidden(&self, width: usize) -> usize {
        2 * width
    }

    fn init(&mut self, _key: u64, stored: &[V], hidden: &mut [V::Real]) {
        let steepness = self.steepness(V::Real::ZERO);
        for (w, [z, _]) in stored.iter().zip(hidden.as_chunks_mut().0) {
            let w = w.widen();
            if w != V::Real::ZERO {
                *z = -(w * steepness) - self.signed_l1(w);
            }
        }
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
        each(stored, hidden, pushed, |w, [z, n], g| {
            let root = n.sqrt();
            *n = *n + g * g;
            let s = n.sqrt();
            *z = *z + (g - (s - root) / self.rate * w);
            match z.abs() <= self.l1 {
                true => V::Real::ZERO,
                false => (self.signed_l1(*z) - *z) / self.steepness(s),
            }
        });
    }
}
