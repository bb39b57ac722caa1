//! The rule of a step: λ, λ₂, the learning rate and the trust region, coordinate by coordinate.
//!
//! The step minimises g d + u/(2η) d² + λ|w + d| over |d| ≤ δ in each coordinate: soft
//! thresholding, then a clip. With a ridge, g and u include ½ λ₂ w². (Algorithm 3 of the OSDI'14
//! paper prints this with wrong signs.) [`super::coordinates`] decides which coordinates step, and
//! when.

use super::blocks::KeyBlock;
use super::gradient::TrustRegion;
use super::scaling::Scaling;

/// Keeps the step finite if no row has curvature.
const CURVATURE_FLOOR: f64 = 1e-10;

/// The logarithm of a curvature, which keeps small ones distinct when numbers are rounded to a few
/// bytes between the smallest and the largest; [`from_logarithm`] undoes it.
pub(super) fn logarithm(curvature: f64) -> f64 {
    curvature.max(CURVATURE_FLOOR).ln()
}

/// The curvature with this logarithm.
pub(super) fn from_logarithm(logarithm: f64) -> f64 {
    logarithm.exp()
}

/// The step's constants, the same for every coordinate and pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Proximal {
    /// λ ≥ 0 of λ‖w‖₁, relative to a *sum* of losses.
    pub lambda: f64,
    /// λ₂ ≥ 0 of ½ λ₂‖w‖²: with λ the elastic net.
    pub l2: f64,
    /// The key of a coordinate without any penalty: the intercept.
    pub free: Option<u64>,
    /// η in (0, 1]: 1 is the full bounded Newton step, smaller values damp it.
    pub learning_rate: f64,
    /// Limits of δ; the same as the workers'.
    pub trust: TrustRegion,
}

impl Proximal {
    /// Full steps: η = 1 and the usual trust region.
    pub fn new(lambda: f64) -> Self {
        Self { lambda, l2: 0.0, free: None, learning_rate: 1.0, trust: TrustRegion::default() }
    }

    /// λ and λ₂ of one coordinate.
    pub(super) fn penalties(&self, key: u64, scaling: &Scaling) -> Penalties {
        let (lambda, l2) = match self.free {
            Some(free) if free == key => (0.0, 0.0),
            _ => scaling.penalties(key, self.lambda, self.l2),
        };
        Penalties { lambda, l2 }
    }

    /// Prepends to the blocks of data one for the coordinate without a penalty, on which all others
    /// depend.
    pub fn blocks(&self, of_data: Vec<KeyBlock>) -> Vec<KeyBlock> {
        let free = self.free.map(|key| KeyBlock { first: key, last: key });
        free.into_iter().chain(of_data).collect()
    }
}

/// λ and λ₂ of one coordinate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Penalties {
    pub(super) lambda: f64,
    pub(super) l2: f64,
}

impl Penalties {
    /// A coordinate's contribution to F besides the loss.
    pub(super) fn of(self, weight: f64) -> f64 {
        self.lambda * weight.abs() + 0.5 * self.l2 * weight * weight
    }

    /// The decrease of F by a step of one coordinate if the loss has this curvature; a lower bound
    /// if the curvature is an upper bound.
    pub(super) fn gain(self, weight: f64, gradient: f64, curvature: f64, step: f64) -> f64 {
        let loss = step * (gradient + 0.5 * curvature * step);
        self.of(weight) - self.of(weight + step) - loss
    }
}

impl Proximal {
    /// The step d of one coordinate.
    pub(super) fn step(
        &self,
        penalties: Penalties,
        weight: f64,
        gradient: f64,
        curvature: f64,
        delta: f64,
    ) -> f64 {
        let Penalties { lambda, l2 } = penalties;
        let u = (curvature + l2) / self.learning_rate + CURVATURE_FLOOR;
        let gradient = gradient + l2 * weight;
        let rising = gradient + lambda;
        let falling = gradient - lambda;
        let step = if rising <= u * weight {
            -rising / u
        } else if falling >= u * weight {
            -falling / u
        } else {
            -weight
        };
        step.clamp(-delta, delta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step must be the best of all steps inside the trust region.
    #[test]
    fn steps_minimise_the_model() {
        for (learning_rate, l2, free) in
            [(1.0, 0.0, None), (0.5, 0.0, None), (1.0, 0.7, None), (1.0, 0.7, Some(3))]
        {
            let rule = Proximal { learning_rate, l2, free, ..Proximal::new(1.0) };
            let penalties = rule.penalties(3, &Scaling::default());
            for (w, g, u, delta) in [
                (0.0, 3.0, 2.0, 5.0),
                (0.0, -3.0, 2.0, 0.5),
                (0.0, 0.7, 2.0, 5.0),
                (0.4, 0.9, 2.0, 5.0),
                (-0.4, 2.0, 1.0, 5.0),
                (0.4, 4.0, 2.0, 0.3),
                (2.0, 0.0, 0.0, 1.0),
            ] {
                let model = |d: f64| g * d + u / learning_rate / 2.0 * d * d + penalties.of(w + d);
                let step = rule.step(penalties, w, g, u, delta);
                assert!(step.abs() <= delta);
                let gain = penalties.gain(w, g, u, step);
                assert!(gain >= model(0.0) - model(step) - 1e-9, "a damped step gains more");
                for i in -1000..=1000 {
                    let other = f64::from(i) / 1000.0 * delta;
                    assert!(
                        model(step) <= model(other) + 1e-8,
                        "{w} {g} {u} {delta}: {step} {other}"
                    );
                }
            }
        }
    }
}
