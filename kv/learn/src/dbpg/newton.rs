//! Newton's method on the support: the second-order polish between passes.
//!
//! Block steps quickly find *which* weights are not 0, and crawl when those weights' columns are
//! nearly dependent, because every step bounds the curvature coordinate by coordinate. On the
//! support A, some hundreds of columns among millions, the whole Hessian is affordable. With
//! σ'(m_i) in D, where signs y_i cancel,
//!
//! ```text
//! g_A = -Σ_i y_i σ(-m_i) x_iA        H_A = X_Aᵀ D X_A
//! q(v) = g_A·(v - w) + ½ (v - w)ᵀ H_A (v - w) + λ‖v‖₁
//! ```
//!
//! Row weights multiply σ(-m_i) and D; a ridge adds λ₂ w to g_A and λ₂ to the diagonal of H_A; an
//! intercept's λ is 0.
//!
//! The sums run over rows, so workers' parts just add up. [`Model::minimise`] finds the v that
//! minimises q. F falls on the way from w to v, because F is convex and q agrees with it to first
//! order at w; [`choose`] finds how far. Weights that reach 0 on the way leave the support. None
//! enters: block steps do that, and prove that none is missing (|g| ≤ λ off the support).
//!
//! This is the proximal Newton method with the working set of newGLMNET (Yuan, Ho and Lin, JMLR
//! 2012; convergence with a line search: Lee, Sun and Saunders, SIAM J. Optim. 2014). Its inner
//! coordinate descent crawls for the same reason as block steps, so q is minimised by Bertsekas's
//! projected Newton method (SIAM J. Control Optim. 1982), one orthant at a time as in Andrew and
//! Gao's OWL-QN (ICML 2007).
//!
//! Place: pass > worker: gram (`support`) > driver: **minimise** > worker: losses > driver:
//! **choose** > set. Nothing is sent here.

use super::cholesky::{Factor, Triangle, add, dot, triangle};
use super::support::packed_len;

/// Shares of the step from w to v at which workers measure the loss.
pub(super) const SHARES: [f64; 8] =
    [1.0, 0.5, 0.25, 0.125, 0.0625, 1.0 / 64.0, 1.0 / 256.0, 1.0 / 1024.0];

/// Share of the slope that a step must deliver: Armijo's rule with the usual constant.
const SLOPE_SHARE: f64 = 1e-4;

/// Most faces of the model tried in one minimisation; each costs a factorisation.
const ROUNDS_MAX: usize = 30;

/// A minimisation ends at the minimum of a face that gained less than this share of the total gain
/// over the previous one. The next Newton step, on another model, takes the rest, and convergence
/// stays about as fast (inexact Newton: Lee, Sun and Saunders). Rounds that only stop weights gain
/// little each and do not count.
const FACE_HELPS: f64 = 1e-4;

/// Sweeps of coordinate descent per round: together they cost a small part of a factorisation.
const SWEEPS: usize = 5;

/// A gradient counts as outside ±λ from this factor on.
const OUTSIDE: f64 = 1.0 + 1e-9;

/// A weight has reached 0 when a step leaves at most this share of it.
const ARRIVED: f64 = 1e-14;

/// A weight counts as 0 when the step passes 0 within this share.
const NEAR: f64 = 1e-7;

/// A column may depend on others if its pivot is at most this share of its diagonal: the Hessian
/// comes in single precision.
const DEPENDENT: f64 = 1e-6;

/// The longest share of the step that lowers F as its slope at the start promises, and F there.
///
/// `objective` is F at the start, `slope` its slope towards the end (below 0), `objectives` F at
/// [`SHARES`].
pub(super) fn choose(objective: f64, slope: f64, objectives: &[f64]) -> Option<(f64, f64)> {
    let fits = |&(share, &at): &(f64, &f64)| {
        at < objective && at <= objective + SLOPE_SHARE * share * slope
    };
    SHARES.into_iter().zip(objectives).find(fits).map(|(share, &at)| (share, at))
}

/// q of the module's page: F on the support, to second order.
#[derive(Debug)]
pub(super) struct Model {
    /// λ of each weight: `[n]`.
    pub(super) lambda: Vec<f64>,
    /// w: `[n]`.
    pub(super) weights: Vec<f64>,
    /// g_A: `[n]`.
    pub(super) gradient: Vec<f64>,
    /// H_A.
    pub(super) hessian: Triangle,
}

impl Model {
    /// Creates the model from the sum of all workers' parts, in the order of
    /// [`super::support::Gram`].
    ///
    /// # Panics
    /// If the lengths do not match.
    pub(super) fn new(lambda: Vec<f64>, weights: Vec<f64>, mut packed: Vec<f64>) -> Self {
        let n = weights.len();
        assert_eq!(packed.len(), packed_len(n), "a triangle and a line");
        assert_eq!(lambda.len(), n, "one a weight");
        let gradient = packed.split_off(triangle(n));
        Model { lambda, weights, gradient, hessian: Triangle::new(n, packed) }
    }

    /// Adds ½ λ₂ v² of each weight to q. `l2: [n]`.
    pub(super) fn add_ridge(&mut self, l2: &[f64]) {
        for (k, l2) in l2.iter().enumerate() {
            self.gradient[k] += l2 * self.weights[k];
            self.hessian.row_mut(k)[k] += l2;
        }
    }

    /// H (v - w).
    fn bend(&self, v: &[f64]) -> Vec<f64> {
        let step: Vec<f64> = v.iter().zip(&self.weights).map(|(v, w)| v - w).collect();
        self.hessian.times(&step)
    }

    /// q(v), given H (v - w).
    fn value(&self, v: &[f64], bend: &[f64]) -> f64 {
        let parts = v.iter().zip(&self.weights).zip(&self.gradient).zip(bend).zip(&self.lambda);
        parts.map(|((((v, w), g), b), lambda)| (g + 0.5 * b) * (v - w) + lambda * v.abs()).sum()
    }

    /// The slope of F at w towards v; its absolute value bounds the decrease of F on the way.
    pub(super) fn slope(&self, v: &[f64]) -> f64 {
        let parts = v.iter().zip(&self.weights).zip(&self.gradient).zip(&self.lambda);
        parts.map(|(((v, w), g), lambda)| g * (v - w) + lambda * (v.abs() - w.abs())).sum()
    }

    /// The v that minimises q, or the result of [`ROUNDS_MAX`] rounds: `[n]`. Above q(w) at most by
    /// rounding. Also returns whether some columns may depend on each other, so that there may be
    /// other such v.
    ///
    /// A round fixes the signs of the non-zero weights, so that q is quadratic in them, and steps
    /// towards its minimum; a weight that would change its sign stops at 0. Rounds end when none
    /// does and no weight at 0 is pulled away. A few sweeps of coordinate descent first move most
    /// of the vanishing weights to 0 cheaply, and later bring back those that are pulled away.
    pub(super) fn minimise(&self) -> (Vec<f64>, bool) {
        let mut v = self.weights.clone();
        let mut bend = vec![0.0; v.len()];
        let mut face = self.first_face();
        let mut factor = Factor::default();
        let mut sweeps = true;
        // At the start, and at the last minimum of a face.
        let mut values = [self.value(&v, &bend); 2];
        for _ in 0..ROUNDS_MAX {
            if sweeps {
                self.sweep(&mut v, &mut bend);
            }
            face.retain(|&k| v[k] != 0.0);
            let mut inside = vec![false; v.len()];
            face.iter().for_each(|&k| inside[k] = true);
            face.extend((0..v.len()).filter(|&k| v[k] != 0.0 && !inside[k]));
            let downhill: Vec<f64> = face
                .iter()
                .map(|&k| -self.gradient[k] - bend[k] - self.lambda[k] * v[k].signum())
                .collect();
            let Some(step) = factor.solve(&self.hessian, &face, &downhill) else { break };
            let path = Path { model: self, face: &face, step: &step };
            if let Some((next, next_bend, whole)) = path.best(&v, &bend) {
                (v, bend, sweeps) = (next, next_bend, whole);
                if whole {
                    let [start, before] = values;
                    values[1] = self.value(&v, &bend);
                    let helped = before - values[1] > FACE_HELPS * (start - values[1]);
                    if !helped || self.rests(&v, &bend) {
                        break;
                    }
                }
            } else if path.stop_nearest(&mut v) {
                (bend, sweeps) = (self.bend(&v), false);
            } else {
                break;
            }
        }
        let dependent = factor.met_dependence(DEPENDENT);
        (v, dependent)
    }

    /// Minimises q over one weight after the other, [`SWEEPS`] times, and updates `bend`, H (v -
    /// w).
    ///
    /// Only the lower triangle is stored. When a weight is due, its bend still lacks the moves of
    /// those before it in this sweep, which are their product with its row; its own move is added
    /// to those before it at once.
    fn sweep(&self, v: &mut [f64], bend: &mut [f64]) {
        let n = v.len();
        let mut steps = vec![0.0; n];
        for k in (0..SWEEPS).flat_map(|_| 0..n) {
            let (before, diagonal) = self.hessian.row(k).split_at(k);
            bend[k] += dot(before, &steps[..k]);
            let pull = diagonal[0] * v[k] - self.gradient[k] - bend[k];
            let to = match pull.abs() - self.lambda[k] {
                rest if rest <= 0.0 => 0.0,
                rest => rest.copysign(pull) / diagonal[0],
            };
            steps[k] = Some(to - v[k]).filter(|step| step.is_finite()).unwrap_or(0.0);
            if steps[k] != 0.0 {
                v[k] = to;
                bend[k] += diagonal[0] * steps[k];
                add(&mut bend[..k], steps[k], before);
            }
        }
    }

    /// All weights, in descending distance from 0 by the curvature's measure: the last ones are the
    /// likeliest to leave, and the part of the factor before them stays valid.
    pub(super) fn first_face(&self) -> Vec<usize> {
        let distance = |k: usize| self.weights[k] * self.weights[k] * self.hessian.at(k, k);
        let mut face: Vec<usize> = (0..self.weights.len()).collect();
        face.sort_by(|&k, &l| distance(l).total_cmp(&distance(k)));
        face
    }

    /// Whether no weight at 0 is pulled away from it.
    fn rests(&self, v: &[f64], bend: &[f64]) -> bool {
        let mut parts = v.iter().zip(&self.gradient).zip(bend).zip(&self.lambda);
        parts.all(|(((&v, g), bend), lambda)| v != 0.0 || (g + bend).abs() <= lambda * OUTSIDE)
    }
}

/// The path from a point of the model along a step, bent where weights stop at 0.
struct Path<'a> {
    model: &'a Model,
    /// The weights that move.
    face: &'a [usize],
    /// The step of each weight in `face`.
    step: &'a [f64],
}

impl Path<'_> {
    /// The lowest of some points on the path, H (v - w) there, and whether it is the end with no
    /// weight stopped. `None` if no point is lower than `from`.
    fn best(&self, from: &[f64], bend: &[f64]) -> Option<(Vec<f64>, Vec<f64>, bool)> {
        let mut lowest = self.model.value(from, bend);
        let mut best = None;
        for share in self.shares(from) {
            let (v, stopped) = self.at(from, share);
            let bend = self.model.bend(&v);
            let value = self.model.value(&v, &bend);
            if value < lowest {
                lowest = value;
                best = Some((v, bend, share == 1.0 && !stopped));
            }
            if share == 1.0 && !stopped {
                break; // the minimum of the face
            }
        }
        best
    }

    fn at(&self, from: &[f64], share: f64) -> (Vec<f64>, bool) {
        let mut v = from.to_vec();
        let mut stopped = false;
        for (&k, step) in self.face.iter().zip(self.step) {
            let to = v[k] + share * step;
            let beyond = self.model.lambda[k] > 0.0 && to * v[k].signum() <= ARRIVED * v[k].abs();
            stopped |= beyond;
            v[k] = if beyond { 0.0 } else { to };
        }
        (v, stopped)
    }

    /// Sets weights to 0 that the step would stop at once; false if there are none.
    fn stop_nearest(&self, v: &mut [f64]) -> bool {
        let mut any = false;
        for (&k, step) in self.face.iter().zip(self.step) {
            if v[k] * step < 0.0 && v[k].abs() <= NEAR * step.abs() {
                (v[k], any) = (0.0, true);
            }
        }
        any
    }

    /// The shares to try: halves, and where the first, second, fourth, … weight stops. When nearly
    /// dependent columns rely on each other, one may stop at once, and then all halves are too far.
    fn shares(&self, from: &[f64]) -> Vec<f64> {
        let stops = self.face.iter().zip(self.step).map(|(&k, step)| -from[k] / step);
        let mut stops: Vec<f64> = stops.filter(|share| (0.0..1.0).contains(share)).collect();
        stops.sort_by(f64::total_cmp);
        let at = |power: usize| stops.get((1 << power) - 1).copied();
        [1.0, 0.5, 0.25].into_iter().chain((0..usize::BITS as usize).map_while(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dbpg::cholesky::tests::noise;

    #[test]
    fn an_empty_support_is_no_trouble() {
        assert!(Model::new(Vec::new(), Vec::new(), Vec::new()).minimise().0.is_empty());
    }

    /// A model with H = AᵀA of this many rows: singular if they are fewer than `n`.
    fn model(lambda: f64, n: usize, rows: usize, seed: u64) -> Model {
        let a = noise(rows * n, seed);
        let mut packed = Vec::new();
        for k in 0..n {
            for l in 0..=k {
                packed.push((0..rows).map(|row| a[row * n + k] * a[row * n + l]).sum());
            }
        }
        // In the range of H, like a loss's gradients; otherwise q may have no minimum.
        let g = noise(rows, seed + 1);
        packed.extend((0..n).map(|k| (0..rows).map(|row| a[row * n + k] * g[row]).sum::<f64>()));
        Model::new(vec![lambda; n], noise(n, seed + 2), packed)
    }

    /// At the minimum no single weight can improve, and q is convex.
    fn assert_minimum(model: &Model, v: &[f64]) {
        let bend = model.bend(v);
        assert!(model.value(v, &bend) <= model.value(&model.weights, &vec![0.0; v.len()]));
        for k in 0..v.len() {
            let g = model.gradient[k] + bend[k];
            let off = if v[k] == 0.0 {
                g.abs() - model.lambda[k]
            } else {
                (g + model.lambda[k] * v[k].signum()).abs()
            };
            assert!(off < 1e-7, "weight {k} is {}: its gradient is {off:e} off", v[k]);
        }
    }

    #[test]
    fn minimise_finds_the_minimum() {
        for seed in 0..40 {
            for lambda in [0.0, 0.1, 1.0, 100.0] {
                let (regular, singular) = (model(lambda, 12, 20, seed), model(lambda, 12, 8, seed));
                assert_minimum(&regular, &regular.minimise().0);
                if lambda > 0.0 {
                    assert_minimum(&singular, &singular.minimise().0);
                }
            }
        }
        assert_eq!(model(100.0, 12, 20, 1).minimise().0, [0.0; 12]);
    }

    #[test]
    fn a_ridge_and_a_free_weight_have_their_minimum() {
        for seed in 0..20 {
            let mut model = model(1.0, 12, 8, seed);
            model.lambda[3] = 0.0;
            let plain = model.value(&[0.5; 12], &model.bend(&[0.5; 12]));
            let l2 = std::array::from_fn::<f64, 12, _>(|k| if k == 3 { 0.0 } else { 0.7 });
            model.add_ridge(&l2);
            let at = |v: f64, w: f64| 0.35 * (v * v - w * w);
            let (w, ridge) = (&model.weights, |k: usize| if k == 3 { 0.0 } else { 1.0 });
            let added: f64 = (0..12).map(|k| ridge(k) * at(0.5, w[k])).sum();
            let with = model.value(&[0.5; 12], &model.bend(&[0.5; 12]));
            assert!((with - plain - added).abs() < 1e-12, "{with} is not {plain} and {added}");
            assert_minimum(&model, &model.minimise().0);
        }
    }

    #[test]
    fn minimise_agrees_with_a_grid() {
        let model = model(0.4, 2, 5, 3);
        let v = model.minimise().0;
        let best = model.value(&v, &model.bend(&v));
        for i in 0..401 * 401 {
            let other = [f64::from(i % 401 - 200) / 100.0, f64::from(i / 401 - 200) / 100.0];
            assert!(best <= model.value(&other, &model.bend(&other)) + 1e-12, "{other:?}");
        }
    }

    #[test]
    fn odd_models_end_as_well() {
        let flat = Model::new(vec![1.0; 2], vec![0.5, -2.0], vec![0.0; 5]);
        assert_eq!(flat.minimise().0, [0.0; 2], "nothing but the penalty");
        let broken = Model::new(vec![1.0], vec![0.5], vec![f64::NAN, 1.0]);
        assert!(broken.minimise().0 == [0.5] || broken.slope(&broken.minimise().0).is_nan());
    }

    #[test]
    fn the_longest_step_that_delivers_is_chosen() {
        let mut objectives = [9.0; SHARES.len()];
        (objectives[0], objectives[1]) = (11.0, 9.9999999);
        assert_eq!(choose(10.0, -4.0, &objectives), Some((0.25, 9.0)));
        assert_eq!(choose(10.0, -4.0, &[f64::NAN; SHARES.len()]), None);
        assert_eq!(choose(10.0, -4.0, &[10.0; SHARES.len()]), None);
    }
}
