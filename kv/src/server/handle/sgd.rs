//! Stochastic gradient descent, plain and with momentum. Workers push gradients.
//!
//! Path: codec > thread > shard > store (handle, **sgd**) > answer.

use serde::{Deserialize, Serialize};

use super::number::{Float, Number, Real};
use super::options::{Allowed, number};
use super::{Origin, Rule, each};
use crate::refusal::Refused;

/// Options of the handle `sgd`: stochastic gradient descent (Robbins and Monro, 1951).
///
/// A push of gradient g at the worker's clock c takes the weight w to
///
/// ```text
/// w − g · rate / (1 + decay · c)
/// ```
///
/// It has no hidden columns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sgd {
    /// Learning rate, above 0; 0.01 by default.
    pub rate: f64,
    /// How much the rate falls over the worker's clock, 0 or more; 0 by default.
    pub decay: f64,
}

impl Default for Sgd {
    fn default() -> Self {
        Sgd { rate: 0.01, decay: 0.0 }
    }
}

/// The rule of [`Sgd`].
pub(super) struct SgdRule(Sgd);

impl SgdRule {
    pub(super) fn new<R: Real>(options: Sgd) -> Result<Self, Refused> {
        number::<R>("rate", options.rate, Allowed::Positive)?;
        number::<R>("decay", options.decay, Allowed::NotNegative)?;
        Ok(SgdRule(options))
    }
}

impl<V: Float> Rule<V> for SgdRule {
    type Hidden = V;
    const READS_ONCE: bool = true;
    const BY_VALUE: bool = true;

    #[inline]
    fn apply(&mut self, origin: Origin, _: u64, stored: &mut [V], _: &mut [V], pushed: &[V]) {
        let Sgd { rate, decay } = self.0;
        let rate = V::Real::from_f64(rate / (1.0 + decay * origin.clock as f64));
        let step = |(w, g): (&mut V, &V)| *w = V::round(w.widen() - g.widen() * rate);
        stored.iter_mut().zip(pushed).for_each(step);
    }
}

/// Options of the handle `momentum`: gradient descent with momentum (Polyak, 1964, in the form of
/// Sutskever et al., 2013).
///
/// A push of gradient g takes the weight w and its velocity v, 0 at first, to
///
/// ```text
/// v ← momentum · v − rate · g
/// w ← w + v
/// ```
///
/// Each value has one hidden column, v.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Momentum {
    /// Learning rate, above 0; 0.01 by default.
    pub rate: f64,
    /// Share of the velocity that stays, 0 or more and below 1; 0.9 by default.
    pub momentum: f64,
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum { rate: 0.01, momentum: 0.9 }
    }
}

/// The rule of [`Momentum`].
pub(super) struct MomentumRule<R> {
    rate: R,
    momentum: R,
}

impl<R: Real> MomentumRule<R> {
    pub(super) fn new(options: Momentum) -> Result<Self, Refused> {
        Ok(MomentumRule {
            rate: number("rate", options.rate, Allowed::Positive)?,
            momentum: number("momentum", options.momentum, Allowed::Share)?,
        })
    }
}

impl<V: Float> Rule<V> for MomentumRule<V::Real> {
    type Hidden = V::Real;
    const READS_ONCE: bool = true;
    const BY_VALUE: bool = true;

    #[inline]
    fn hidden(&self, width: usize) -> usize {
        width
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
        each(stored, hidden, pushed, |w, [v], g| {
            *v = self.momentum * *v - self.rate * g;
            w + *v
        });
    }
}
