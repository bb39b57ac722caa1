//! A server's coordinates: sums the workers' pushes of a block, steps, filters.
//!
//! Place: gradient > push > **coordinates** > pull > apply. Nothing is sent here; the step itself
//! is in [`super::proximal`].

use caravan_kv::{Refusal, Refused};
use std::ops::Range;

use super::blocks::KeyBlock;
use super::proximal::Proximal;
use super::scaling::Scaling;
use crate::copies::image::{self, Reader, Writer};
use crate::data::places;

/// How far inside ±λ a gradient may be, as a share of λ, and still count as on the border. Near the
/// minimum F is exact to rounding long before its gradients are.
const BORDER: f64 = 1e-3;

/// The workers' pushes for one block, summed in the order of the server's own keys.
#[derive(Debug, Clone)]
pub struct BlockSum {
    gradient: Vec<f64>,
    curvature: Vec<f64>,
    parts: Vec<Parts>,
}

/// Whether all workers' parts are in the sums of a coordinate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parts {
    All,
    /// Some worker had filtered it.
    Some,
    /// It does not take part.
    None,
}

impl BlockSum {
    /// Bytes of one coordinate.
    pub(super) const BYTES: usize = 2 * size_of::<f64>() + size_of::<Parts>();

    /// Empty sums for a block of `len` coordinates of the server.
    pub fn new(len: usize) -> Self {
        Self { gradient: vec![0.0; len], curvature: vec![0.0; len], parts: vec![Parts::All; len] }
    }

    /// Adds one worker's push. `positions: [n]` are the positions of its columns in the block (see
    /// [`Coordinates::positions`]); `gradient`, `curvature`, `active`: `[n]`. Coordinates that the
    /// worker lacks are unchanged; those it has but had filtered are marked incomplete.
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
            if !active[i] {
                self.parts[k] = Parts::Some;
            }
        }
    }

    /// Excludes coordinate `k` of the block from the step.
    ///
    /// # Panics
    /// If it is outside the block.
    pub fn skip(&mut self, k: usize) {
        self.parts[k] = Parts::None;
    }

    /// The gradient and curvature of each coordinate: `[block]`; none of those that some worker had
    /// filtered, or that do not take part.
    pub(super) fn sums(&self) -> impl Iterator<Item = Option<[f64; 2]>> {
        let pairs = self.gradient.iter().zip(&self.curvature);
        pairs.zip(&self.parts).map(|((g, u), parts)| (*parts == Parts::All).then_some([*g, *u]))
    }

    /// Treats these sums as changes of `kept`, the block's former sums: `[block]`. Both become the
    /// new sums.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn add_to(&mut self, kept: &mut [[f64; 2]]) {
        assert_eq!(kept.len(), self.gradient.len(), "a pair a coordinate");
        for ((kept, g), u) in kept.iter_mut().zip(&mut self.gradient).zip(&mut self.curvature) {
            *kept = [kept[0] + *g, kept[1] + *u];
            [*g, *u] = *kept;
        }
    }
}

impl BlockSum {
    pub(super) fn write(&self, image: &mut Writer<'_>) {
        let BlockSum { gradient, curvature, parts } = self;
        image.list(gradient);
        image.list(curvature);
        image.flags(parts.iter().map(|parts| *parts as u8));
    }

    /// Reads the sums of a block of `len` coordinates.
    pub(super) fn read(image: &mut Reader<'_>, len: usize) -> Result<BlockSum, Refused> {
        let (gradient, curvature) = (image.list()?, image.list()?);
        let flag = |flag: &u8| [Parts::All, Parts::Some, Parts::None].get(*flag as usize).copied();
        let parts: Option<Vec<Parts>> = image.flags()?.iter().map(flag).collect();
        let parts = parts.ok_or_else(|| {
            Refusal::Internal.because("the image of a shard is damaged: a sum without its parts")
        })?;
        let sum = BlockSum { gradient, curvature, parts };
        let lengths = [sum.gradient.len(), sum.curvature.len(), sum.parts.len()];
        image::check(lengths == [len; 3], "sums of another block").map(|()| sum)
    }
}

/// One server's coordinates and their state.
#[derive(Debug, Clone)]
pub struct Coordinates {
    rule: Proximal,
    scaling: Scaling,
    keys: Vec<u64>,
    weights: Vec<f64>,
    deltas: Vec<f64>,
    active: Vec<bool>,
    steepest: f64,
    narrow: bool,
}

impl Coordinates {
    /// Bytes of one coordinate.
    pub(super) const BYTES: usize = size_of::<u64>() + 2 * size_of::<f64>() + size_of::<bool>();

    /// No coordinates yet.
    pub fn new(rule: Proximal) -> Self {
        Self {
            rule,
            scaling: Scaling::default(),
            keys: Vec::new(),
            weights: Vec::new(),
            deltas: Vec::new(),
            active: Vec::new(),
            steepest: 0.0,
            narrow: false,
        }
    }

    /// The same coordinates with weights rounded to single precision.
    pub fn narrow(mut self, narrow: bool) -> Self {
        self.narrow = narrow;
        self
    }

    /// The same coordinates, of columns divided in this way.
    pub(super) fn scaled(mut self, scaling: Scaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// Adds the coordinates of new `keys` (sorted, unique): weight 0, active. The others keep their
    /// state.
    ///
    /// # Panics
    /// If `keys` is not sorted and unique.
    pub fn insert_keys(&mut self, keys: &[u64]) {
        assert!(keys.is_sorted_by(|a, b| a < b), "keys must be sorted and unique");
        let mut old = std::mem::replace(self, Self::new(self.rule).narrow(self.narrow));
        self.scaling = std::mem::take(&mut old.scaling);
        self.steepest = old.steepest;
        let most = old.keys.len() + keys.len();
        self.keys.reserve_exact(most);
        self.weights.reserve_exact(most);
        self.deltas.reserve_exact(most);
        self.active.reserve_exact(most);
        let mut i = 0;
        let mut j = 0;
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
        drop(old);
        self.keys.shrink_to_fit();
        self.weights.shrink_to_fit();
        self.deltas.shrink_to_fit();
        self.active.shrink_to_fit();
    }

    fn append(&mut self, key: u64, weight: f64, delta: f64, active: bool) {
        self.keys.push(key);
        self.weights.push(weight);
        self.deltas.push(delta);
        self.active.push(active);
    }

    pub(super) fn write(&self, image: &mut Writer<'_>) {
        let Coordinates { rule, keys, weights, deltas, active, steepest, .. } = self;
        image.real(rule.lambda);
        image.real(*steepest);
        image.list(keys);
        image.list(weights);
        image.list(deltas);
        image.flags(active.iter().map(|active| u8::from(*active)));
    }

    /// Takes over coordinates with the same rule, whose λ may be another one.
    pub(super) fn read(&mut self, image: &mut Reader<'_>) -> Result<(), Refused> {
        self.rule.lambda = image.real()?;
        self.steepest = image.real()?;
        self.keys = image::keys(image)?;
        self.weights = image.list()?;
        self.deltas = image.list()?;
        self.active = image.flags()?.iter().map(|active| *active != 0).collect();
        let lengths = [self.weights.len(), self.deltas.len(), self.active.len()];
        image::check(lengths == [self.keys.len(); 3], "weights of other keys")?;
        let is_sane = self.rule.lambda >= 0.0
            && self.weights.iter().all(|weight| weight.is_finite())
            && self.deltas.iter().all(|delta| *delta >= 0.0);
        image::check(is_sane, "numbers that no run has")
    }

    /// All keys, sorted: `[n]`.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Weights, in order of the keys: `[n]`. Filtered coordinates have 0.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Which coordinates the KKT filter leaves in: `[n]`. A pull carries the block's part beside
    /// the weights, as explicit bits and never as a special weight.
    pub fn active(&self) -> &[bool] {
        &self.active
    }

    /// The positions of `keys` (sorted) within `range`, from the range's start. `None` if a key is
    /// missing there, so that the worker never announced it.
    pub fn positions(&self, range: Range<usize>, keys: &[u64]) -> Option<Vec<usize>> {
        places(&self.keys[range], keys)
    }

    /// The positions of a block here: half-open, possibly empty.
    pub fn locate(&self, block: &KeyBlock) -> Range<usize> {
        block.locate(&self.keys)
    }

    /// Continues with another λ from the current weights. The next pass must begin with a reset,
    /// because the filter's bits are those of the old λ.
    pub fn set_lambda(&mut self, lambda: f64) {
        self.rule.lambda = lambda;
    }

    /// Starts a pass: forgets the last one's violation, and with `reset` reactivates every
    /// coordinate. Filtered coordinates have weight 0, so there is nothing else to restore.
    pub fn begin_pass(&mut self, reset: bool) {
        self.steepest = 0.0;
        if reset {
            self.active.fill(true);
        }
    }

    /// Takes one step of the block at positions `range`, with the sums of all workers' pushes.
    /// Returns a lower bound of the decrease of F, if the curvatures are bounds.
    ///
    /// A coordinate at 0 whose gradient is more than `threshold` inside ±λ is filtered: it stays at
    /// 0 and leaves the block until a reset. One on the border, |g| = λ, may be non-zero at another
    /// optimum and stays. One that some worker had filtered keeps its weight, because its sums lack
    /// rows; one that is skipped is ignored.
    ///
    /// # Panics
    /// If `range` is outside the coordinates or `sum` has another length.
    pub fn update(&mut self, range: Range<usize>, sum: &BlockSum, threshold: f64) -> f64 {
        assert_eq!(sum.gradient.len(), range.len(), "one sum a coordinate");
        let mut gain = 0.0;
        for (i, k) in range.enumerate() {
            if !self.active[k] || sum.parts[i] == Parts::None {
                continue;
            }
            let gradient = sum.gradient[i];
            let curvature = sum.curvature[i];
            let step = if sum.parts[i] == Parts::Some {
                0.0
            } else if self.weights[k] == 0.0 && self.filter(k, gradient, threshold) {
                continue;
            } else {
                let penalties = self.rule.penalties(self.keys[k], &self.scaling);
                self.rule.step(penalties, self.weights[k], gradient, curvature, self.deltas[k])
            };
            let weight = self.weights[k] + step;
            // Workers see the rounded step and derive δ from it.
            let rounded = if self.narrow { f64::from(weight as f32) } else { weight };
            let step = if self.narrow { rounded - self.weights[k] } else { step };
            if step != 0.0 {
                let penalties = self.rule.penalties(self.keys[k], &self.scaling);
                gain += penalties.gain(self.weights[k], gradient, curvature, step);
            }
            self.deltas[k] = self.rule.trust.after(step);
            self.weights[k] = rounded;
        }
        gain
    }

    /// Sets weights that were found in another way, as if by a step. `to` names active keys of
    /// these coordinates.
    ///
    /// # Errors
    /// The first key that is missing or filtered. Nothing has been set then.
    pub fn set(&mut self, to: &[(u64, f64)]) -> Result<(), u64> {
        let find = |&(key, _): &(u64, f64)| {
            self.keys.binary_search(&key).ok().filter(|&k| self.active[k]).ok_or(key)
        };
        let positions: Vec<usize> = to.iter().map(find).collect::<Result<_, _>>()?;
        for (k, &(_, weight)) in positions.into_iter().zip(to) {
            self.deltas[k] = self.rule.trust.after(weight - self.weights[k]);
            self.weights[k] = weight;
        }
        Ok(())
    }

    /// Records the gradient of a coordinate at 0, in the units of the data, and filters it if it is
    /// safely inside ±λ.
    fn filter(&mut self, k: usize, gradient: f64, threshold: f64) -> bool {
        if self.rule.free == Some(self.keys[k]) {
            return false; // its weight 0 is not special
        }
        let gradient = gradient.abs() * self.scaling.factor(self.keys[k]);
        self.steepest = self.steepest.max(gradient);
        let inside = self.rule.lambda - gradient;
        let filtered = inside > threshold.max(BORDER * self.rule.lambda);
        self.active[k] = !filtered;
        filtered
    }

    /// The pass's largest violation of |g_k| ≤ λ so far, over coordinates visited at 0.
    pub fn violation(&self) -> f64 {
        (self.steepest - self.rule.lambda).max(0.0)
    }

    /// The pass's largest |g_k| so far, over those coordinates: the smallest λ at which none of
    /// them would move.
    pub fn steepest(&self) -> f64 {
        self.steepest
    }

    /// The non-zero weights with their keys.
    pub fn held(&self) -> impl Iterator<Item = (u64, f64)> {
        let pairs = self.keys.iter().copied().zip(self.weights.iter().copied());
        pairs.filter(|&(_, weight)| weight != 0.0)
    }

    /// Number of non-zero weights, without the intercept.
    pub fn nonzeros(&self) -> usize {
        self.held().filter(|&(key, _)| self.rule.free != Some(key)).count()
    }

    /// λ‖w‖₁ + ½ λ₂‖w‖² of these coordinates.
    pub fn penalty(&self) -> f64 {
        let of = |(key, weight)| self.rule.penalties(key, &self.scaling).of(weight);
        self.held().map(of).sum()
    }

    /// Number of coordinates that the filter leaves in.
    pub fn active_count(&self) -> usize {
        self.active.iter().filter(|&&active| active).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coordinates(lambda: f64, keys: &[u64]) -> Coordinates {
        let mut coordinates = Coordinates::new(Proximal::new(lambda));
        coordinates.insert_keys(keys);
        coordinates
    }

    fn pushed(gradient: &[f64], curvature: &[f64]) -> BlockSum {
        let mut sum = BlockSum::new(gradient.len());
        let positions: Vec<usize> = (0..gradient.len()).collect();
        sum.add(&positions, gradient, curvature, &vec![true; gradient.len()]);
        sum
    }

    #[test]
    fn steps_grow_by_their_trust_region() {
        let mut coordinates = coordinates(1.0, &[7]);
        let mut last = 0.0;
        for expected in [1.0, 2.1, 4.3, 5.0, 5.0] {
            coordinates.update(0..1, &pushed(&[-1e3], &[1.0]), 1e20);
            assert!((coordinates.weights()[0] - last - expected).abs() < 1e-12);
            last = coordinates.weights()[0];
        }
        coordinates.update(0..1, &pushed(&[-1.0], &[1.0]), 1e20);
        assert_eq!(coordinates.deltas, [0.1], "no step, little trust");
    }

    #[test]
    fn new_keys_join_without_touching_the_old() {
        let mut coordinates = coordinates(1.0, &[10, 30]);
        coordinates.update(0..2, &pushed(&[-2.0, 0.0], &[1.0, 1.0]), 0.0);
        assert_eq!(
            (coordinates.weights(), coordinates.active()),
            (&[1.0 - 1e-10, 0.0][..], &[true, false][..])
        );
        coordinates.insert_keys(&[5, 10, 20, u64::MAX]);
        assert_eq!(coordinates.keys(), [5, 10, 20, 30, u64::MAX]);
        assert_eq!(coordinates.active(), [true, true, true, false, true]);
        assert!(coordinates.weights()[1] > 0.9 && coordinates.nonzeros() == 1);
        coordinates.insert_keys(&[]);
        assert_eq!(coordinates.keys().len(), 5);
        assert_eq!(coordinates.positions(1..5, &[10, 30, u64::MAX]), Some(vec![0, 2, 3]));
        assert_eq!(coordinates.positions(1..5, &[5]), None);
        assert_eq!(coordinates.positions(0..5, &[30, 10]), None, "not sorted");
    }

    #[test]
    fn only_zero_weights_inside_the_threshold_are_filtered() {
        let mut coordinates = coordinates(1.0, &[1, 2, 3, 4]);
        coordinates.weights[3] = 0.5;
        coordinates.update(0..4, &pushed(&[0.8, 0.95, -1.25, 0.2], &[1.0; 4]), 0.1);
        assert_eq!(coordinates.active(), [false, true, true, true]);
        assert_eq!(coordinates.violation(), 0.25);
        assert_eq!(coordinates.active_count(), 3);
        // Filtered: it neither moves nor counts, whatever is pushed.
        coordinates.begin_pass(false);
        coordinates.update(0..1, &pushed(&[9.0], &[1.0]), 0.1);
        assert_eq!((coordinates.weights()[0], coordinates.violation()), (0.0, 0.0));
        coordinates.begin_pass(true);
        coordinates.update(0..1, &pushed(&[9.0], &[1.0]), 0.1);
        assert_eq!((coordinates.weights()[0], coordinates.violation()), (-1.0, 8.0));
    }

    #[test]
    fn what_is_free_is_neither_filtered_nor_counted() {
        let mut coordinates =
            Coordinates::new(Proximal { l2: 0.5, free: Some(9), ..Proximal::new(1.0) });
        coordinates.insert_keys(&[4, 9]);
        coordinates.update(0..2, &pushed(&[-0.2, -0.2], &[1.0; 2]), 0.1);
        assert_eq!((coordinates.active(), coordinates.steepest()), (&[false, true][..], 0.2));
        assert!((coordinates.weights()[1] - 0.2).abs() < 1e-9, "a full step, without any penalty");
        assert_eq!((coordinates.nonzeros(), coordinates.penalty()), (0, 0.0));
        assert_eq!(coordinates.held().count(), 1);
        coordinates.set_lambda(0.05);
        coordinates.begin_pass(true);
        coordinates.update(0..1, &pushed(&[-0.2], &[1.0]), 0.1);
        let weight = coordinates.weights()[0];
        assert!((weight - 0.15 / 1.5).abs() < 1e-9, "{weight}");
        assert!((coordinates.penalty() - (0.05 * weight + 0.25 * weight * weight)).abs() < 1e-15);
    }

    #[test]
    fn what_is_skipped_stays_as_it_is() {
        let mut coordinates = coordinates(1.0, &[1, 2]);
        coordinates.weights = vec![0.5, 0.5];
        let mut sum = BlockSum::new(2);
        sum.add(&[0], &[-3.0], &[2.0], &[true]);
        sum.skip(1);
        coordinates.update(0..2, &sum, 0.1);
        assert_eq!(
            (coordinates.weights()[1], coordinates.deltas[1]),
            (0.5, coordinates.rule.trust.init)
        );
        assert!(coordinates.weights()[0] > 0.5);
    }

    #[test]
    fn changes_add_up_to_what_they_are_changes_of() {
        let mut kept = [[0.0; 2]; 2];
        for (changes, expected) in [([2.0, 1.0], [2.0, 1.0]), ([-0.5, 0.0], [1.5, 1.0])] {
            let mut sum = pushed(&changes, &[1.0, 0.0]);
            sum.add_to(&mut kept);
            assert_eq!(sum.gradient, expected);
        }
        assert_eq!(kept, [[1.5, 2.0], [1.0, 0.0]]);
    }

    #[test]
    fn sums_that_lack_a_worker_move_nothing() {
        let mut coordinates = coordinates(1.0, &[1, 2]);
        let mut sum = BlockSum::new(2);
        sum.add(&[0, 1], &[-3.0, -3.0], &[2.0, 2.0], &[true, true]);
        sum.add(&[1], &[0.0], &[0.0], &[false]);
        coordinates.update(0..2, &sum, 0.0);
        assert!(coordinates.weights()[0] > 0.9);
        assert_eq!((coordinates.weights()[1], coordinates.active()), (0.0, &[true, true][..]));
    }

    #[test]
    fn weights_are_set_like_steps() {
        let mut coordinates = coordinates(1.0, &[1, 2, 3]);
        coordinates.update(0..3, &pushed(&[-3.0, -2.0, 0.0], &[1.0; 3]), 0.0);
        assert_eq!(coordinates.set(&[(1, 9.0), (4, 1.0)]), Err(4), "not here");
        assert_eq!(coordinates.set(&[(1, 9.0), (3, 1.0)]), Err(3), "filtered");
        assert!(coordinates.weights()[0] < 1.1, "nothing was set");
        let (old, step) = (coordinates.weights()[0], 0.25);
        assert_eq!(coordinates.set(&[(1, old + step), (2, 0.0)]), Ok(()));
        assert_eq!(coordinates.weights(), [old + step, 0.0, 0.0]);
        assert!((coordinates.deltas[0] - 0.6).abs() < 1e-12 && coordinates.active()[1]);
    }

    #[test]
    #[should_panic(expected = "sorted and unique")]
    fn unsorted_keys_are_refused() {
        coordinates(1.0, &[2, 1]);
    }
}
