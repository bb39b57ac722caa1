//! The server's side of a block: sum the workers' pushes, step, filter.
//!
//! The step minimises, coordinate by coordinate, g d + u/(2η) d² + λ|w + d| over |d| ≤ δ: soft
//! thresholding, then a clip. (Algorithm 3 of the OSDI'14 paper prints this with signs astray.)
//!
//! Place: gradient > push > **proximal** > pull > apply. Nothing is sent from here.

use super::blocks::KeyBlock;
use super::gradient::TrustRegion;
use std::ops::Range;

/// Keeps the step finite where no row bends the loss.
const CURVATURE_FLOOR: f64 = 1e-10;

/// The step's constants, the same for every coordinate and pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Proximal {
    /// λ ≥ 0 of λ‖w‖₁, against a *sum* of losses.
    pub lambda: f64,
    /// η in (0, 1]: 1 is the full bounded Newton step, less is damped.
    pub learning_rate: f64,
    /// Limits of δ; the same as the workers'.
    pub trust: TrustRegion,
}

impl Proximal {
    /// Full steps: η = 1 and the usual trust region.
    pub fn new(lambda: f64) -> Self {
        Self { lambda, learning_rate: 1.0, trust: TrustRegion::default() }
    }

    /// The step d of one coordinate.
    fn step(&self, weight: f64, gradient: f64, curvature: f64, delta: f64) -> f64 {
        let u = curvature / self.learning_rate + CURVATURE_FLOOR;
        let (rising, falling) = (gradient + self.lambda, gradient - self.lambda);
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

/// The workers' pushes for one block, added up in the order of the server's own keys.
#[derive(Debug, Clone)]
pub struct BlockSum {
    gradient: Vec<f64>,
    curvature: Vec<f64>,
    incomplete: Vec<bool>,
}

impl BlockSum {
    /// Nothing pushed yet, for a block of `len` coordinates of the server.
    pub fn new(len: usize) -> Self {
        Self { gradient: vec![0.0; len], curvature: vec![0.0; len], incomplete: vec![false; len] }
    }

    /// Adds one worker's push. `positions: [n]` says where in the block each of its columns lies
    /// (see [`Shard::positions`]); `gradient`, `curvature`, `active`: `[n]`. Coordinates that the
    /// worker lacks gain nothing; those it holds but had filtered are marked incomplete.
    ///
    /// # Panics
    /// If lengths do not match or a position is outside the block.
    pub fn add(
        &mut self,
        positions: &[usize],
        gradient: &[f64],
        curvature: &[f64],
        active: &[bool],
    ) {
        let n = positions.len();
        assert!(gradient.len() == n && curvature.len() == n && active.len() == n, "{n} columns");
        for (i, &k) in positions.iter().enumerate() {
            self.gradient[k] += gradient[i];
            self.curvature[k] += curvature[i];
            self.incomplete[k] |= !active[i];
        }
    }
}

/// One server's coordinates and their state.
#[derive(Debug, Clone)]
pub struct Shard {
    rule: Proximal,
    keys: Vec<u64>,
    weights: Vec<f64>,
    deltas: Vec<f64>,
    active: Vec<bool>,
    violation: f64,
}

impl Shard {
    /// A shard without coordinates.
    pub fn new(rule: Proximal) -> Self {
        Self {
            rule,
            keys: Vec::new(),
            weights: Vec::new(),
            deltas: Vec::new(),
            active: Vec::new(),
            violation: 0.0,
        }
    }

    /// Adds the coordinates among `keys` (sorted, unique) that are new: weight 0, active. The
    /// others keep their state.
    ///
    /// # Panics
    /// If `keys` is not sorted and unique.
    pub fn insert_keys(&mut self, keys: &[u64]) {
        assert!(keys.is_sorted_by(|a, b| a < b), "keys must be sorted and unique");
        let old = std::mem::replace(self, Self::new(self.rule));
        self.violation = old.violation;
        let (mut i, mut j) = (0, 0);
        while i < old.keys.len() || j < keys.len() {
            let kept = i < old.keys.len() && (j == keys.len() || old.keys[i] <= keys[j]);
            if kept {
                j += usize::from(j < keys.len() && keys[j] == old.keys[i]);
                self.append(old.keys[i], old.weights[i], old.deltas[i], old.active[i]);
                i += 1;
            } else {
                self.append(keys[j], 0.0, self.rule.trust.init, true);
                j += 1;
            }
        }
    }

    fn append(&mut self, key: u64, weight: f64, delta: f64, active: bool) {
        self.keys.push(key);
        self.weights.push(weight);
        self.deltas.push(delta);
        self.active.push(active);
    }

    /// All keys, sorted: `[n]`.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Weights, in the order of the keys: `[n]`. Those of filtered coordinates are 0.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Which coordinates the KKT filter leaves in: `[n]`. A pull carries the block's part beside
    /// the weights: explicit bits, never a special value among the weights.
    pub fn active(&self) -> &[bool] {
        &self.active
    }

    /// Where in `range` (of this shard's positions) each of `keys` (sorted) lies, from the
    /// range's start. `None` when a key is missing there: the worker never announced it.
    pub fn positions(&self, range: Range<usize>, keys: &[u64]) -> Option<Vec<usize>> {
        let own = &self.keys[range];
        let mut from = 0;
        let mut positions = Vec::with_capacity(keys.len().min(own.len()));
        for key in keys {
            from += own[from..].binary_search(key).ok()?;
            positions.push(from);
        }
        Some(positions)
    }

    /// This shard's positions in a block: half-open, possibly empty.
    pub fn locate(&self, block: &KeyBlock) -> Range<usize> {
        block.locate(&self.keys)
    }

    /// Starts a pass: forgets the last one's violation, and with `reset` puts every coordinate
    /// back in. Weights of filtered coordinates were 0 all along, so nothing else is to restore.
    pub fn begin_pass(&mut self, reset: bool) {
        self.violation = 0.0;
        if reset {
            self.active.fill(true);
        }
    }

    /// One step of the block at positions `range`, from the sum of all workers' pushes.
    ///
    /// A coordinate at 0 whose gradient is further than `threshold` inside ±λ is filtered: it
    /// stays at 0 and leaves the block until a reset. One that some worker had filtered already
    /// keeps its weight, since its sums lack rows.
    ///
    /// # Panics
    /// If `range` is outside the shard or `sum` is of another length.
    pub fn update(&mut self, range: Range<usize>, sum: &BlockSum, threshold: f64) {
        assert_eq!(sum.gradient.len(), range.len(), "one sum a coordinate");
        for (i, k) in range.enumerate() {
            if !self.active[k] {
                continue;
            }
            let step = if sum.incomplete[i] {
                0.0
            } else if self.weights[k] == 0.0 && self.filter(k, sum.gradient[i], threshold) {
                continue;
            } else {
                let (g, u) = (sum.gradient[i], sum.curvature[i]);
                self.rule.step(self.weights[k], g, u, self.deltas[k])
            };
            self.deltas[k] = self.rule.trust.after(step);
            self.weights[k] += step;
        }
    }

    /// Takes a zero coordinate's violation down; filters it where it is safely inside ±λ.
    fn filter(&mut self, k: usize, gradient: f64, threshold: f64) -> bool {
        let inside = self.rule.lambda - gradient.abs();
        self.violation = self.violation.max(-inside);
        let filtered = inside > threshold;
        self.active[k] = !filtered;
        filtered
    }

    /// The pass's largest violation of |g_k| ≤ λ so far, over coordinates visited at 0.
    pub fn violation(&self) -> f64 {
        self.violation
    }

    /// Number of non-zero weights.
    pub fn nonzeros(&self) -> usize {
        self.weights.iter().filter(|&&w| w != 0.0).count()
    }

    /// ‖w‖₁ of this shard.
    pub fn weight_norm(&self) -> f64 {
        self.weights.iter().map(|w| w.abs()).sum()
    }

    /// Number of coordinates that the filter leaves in.
    pub fn active_count(&self) -> usize {
        self.active.iter().filter(|&&active| active).count()
    }
}
