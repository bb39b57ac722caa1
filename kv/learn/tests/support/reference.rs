//! The whole method in one thread and without a network, to compare a cluster with.
//!
//! Workers lag as far as the schedule allows: the gradient of task t sees the updates of tasks up
//! to t - τ - 1 and no more. A real cluster is between this and no delay at all.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::VecDeque;
use std::ops::Range;

use caravan_learn::dbpg::blocks::{KeyBlock, Order, even_blocks};
use caravan_learn::dbpg::coordinates::{BlockSum, Coordinates};
use caravan_learn::dbpg::gradient::{Curvature, Worker};
use caravan_learn::dbpg::proximal::Proximal;
use caravan_learn::dbpg::schedule::{KKT_RATIO, RESET_EVERY, Stop, StopRule, kkt_threshold};

use super::example::Part;

/// The settings of a run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Penalty and step.
    pub(crate) proximal: Proximal,
    /// The curvature bound.
    pub(crate) curvature: Curvature,
    /// Most slices of the key space.
    pub(crate) blocks: usize,
    /// The order of blocks in a pass.
    pub(crate) order: Order,
    /// τ.
    pub(crate) delay: u64,
    /// ε of the stop rule.
    pub(crate) epsilon: f64,
    /// Most passes.
    pub(crate) passes_max: u64,
    /// Weakness of the KKT filter; infinite turns it off.
    pub(crate) kkt_ratio: f64,
    /// Passes between filter resets; `None` resets only before stopping.
    pub(crate) reset_every: Option<u64>,
}

impl Settings {
    /// Full safe steps over `blocks` blocks in key order, no delay, filter on.
    pub(crate) fn new(lambda: f64, blocks: usize) -> Self {
        Self {
            proximal: Proximal::new(lambda),
            curvature: Curvature::Safe,
            blocks,
            order: Order::Key,
            delay: 0,
            epsilon: 1e-6,
            passes_max: 300,
            kkt_ratio: KKT_RATIO,
            reset_every: Some(RESET_EVERY),
        }
    }
}

/// Progress after a pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Progress {
    /// F(w), after all updates so far.
    pub(crate) objective: f64,
    /// Relative decrease of F against the previous pass; 1 for the first.
    pub(crate) relative: f64,
    /// Non-zero weights.
    pub(crate) nonzeros: usize,
    /// The KKT threshold of the pass.
    pub(crate) threshold: f64,
    /// Coordinates that the filter leaves in after the pass.
    pub(crate) active: usize,
    /// Largest violation of |g| ≤ λ at a zero weight.
    pub(crate) violation: f64,
    /// Column gradients computed since the start, by all workers.
    pub(crate) columns_computed: usize,
    /// The stop rule's decision.
    pub(crate) stop: Stop,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub(crate) struct Solution {
    /// Sorted union of the parts' keys.
    pub(crate) keys: Vec<u64>,
    /// Weights, in the order of the keys.
    pub(crate) weights: Vec<f64>,
    /// One entry per pass; the last one's `stop` is [`Stop::Done`] if the run converged.
    pub(crate) progress: Vec<Progress>,
}

impl Solution {
    /// Whether the stop rule ended the run, rather than the limit on passes.
    pub(crate) fn converged(&self) -> bool {
        self.progress.last().is_some_and(|last| last.stop == Stop::Done)
    }
}

/// Solves with one worker per part and one server.
pub(crate) fn solve(parts: &[Part<'_>], settings: &Settings) -> Solution {
    let examples = parts.iter().map(|part| part.labels.len() as u64).sum();
    solve_with(parts, settings, |violation| kkt_threshold(violation, examples, settings.kkt_ratio))
}

/// [`solve`] with the KKT threshold as a function of the previous pass's violation.
pub(crate) fn solve_with(
    parts: &[Part<'_>],
    settings: &Settings,
    threshold: impl Fn(Option<f64>) -> f64,
) -> Solution {
    let mut run = Run::new(parts, settings);
    let mut rule = StopRule::new(settings.epsilon).reset_every(settings.reset_every);
    let mut progress: Vec<Progress> = Vec::new();
    for pass in 0..settings.passes_max {
        let last = progress.last();
        let threshold = threshold(last.map(|last| last.violation));
        run.begin_pass(last.is_some_and(|last| last.stop == Stop::Reset));
        let mut gains = vec![0.0; run.blocks.len()];
        for block in settings.order.of_pass(pass, &run.gains) {
            gains[block] = run.update(block, threshold);
        }
        run.gains = gains;
        let report = run.report(threshold, &mut rule);
        progress.push(report);
        if report.stop == Stop::Done {
            break;
        }
    }
    let Run { coordinates, .. } = run;
    Solution {
        keys: coordinates.keys().to_vec(),
        weights: coordinates.weights().to_vec(),
        progress,
    }
}

/// A block's answer to the pulls of all workers, which they have not applied yet.
struct Pull {
    task: u64,
    block: KeyBlock,
    weights: Vec<f64>, // [n], n coordinates of the block
    active: Vec<bool>,
}

struct Run<'a> {
    parts: &'a [Part<'a>],
    settings: &'a Settings,
    blocks: Vec<KeyBlock>,
    workers: Vec<Worker>,
    coordinates: Coordinates,
    task: u64,
    pulls: VecDeque<Pull>,
    /// Gains of the blocks in the last pass: `[blocks]`.
    gains: Vec<f64>,
    columns_computed: usize,
}

impl<'a> Run<'a> {
    fn new(parts: &'a [Part<'a>], settings: &'a Settings) -> Self {
        let mut coordinates = Coordinates::new(settings.proximal);
        for part in parts {
            coordinates.insert_keys(&part.columns.keys().iter().collect::<Vec<u64>>());
        }
        let penalised = coordinates.keys().iter().copied();
        let mut penalised = penalised.filter(|&key| settings.proximal.free != Some(key));
        let ends = penalised.next().map(|first| (first, penalised.next_back().unwrap_or(first)));
        let blocks = ends.map(|(first, last)| even_blocks(first, last, settings.blocks));
        let blocks = settings.proximal.blocks(blocks.unwrap_or_default());
        let workers = parts
            .iter()
            .map(|part| {
                let columns = part.columns.columns();
                Worker::new(part.labels.to_vec(), columns, settings.proximal.trust)
            })
            .collect();
        Self {
            parts,
            settings,
            workers,
            coordinates,
            task: 0,
            pulls: VecDeque::new(),
            gains: vec![0.0; blocks.len()],
            blocks,
            columns_computed: 0,
        }
    }

    /// A reset overtakes outstanding pulls: their weights are valid, but a filter bit from before
    /// it would remove a coordinate again, on one side only.
    fn begin_pass(&mut self, reset: bool) {
        self.coordinates.begin_pass(reset);
        if reset {
            self.workers.iter_mut().for_each(Worker::reset_filter);
            self.pulls.iter_mut().for_each(|pull| pull.active.fill(true));
        }
    }

    /// Runs one block's task; returns the block's gain.
    fn update(&mut self, block: usize, threshold: f64) -> f64 {
        self.task += 1;
        self.apply_pulls(self.task.saturating_sub(self.settings.delay));
        let block = self.blocks[block];
        let range = self.coordinates.locate(&block);
        let sum = self.push_gradients(&block, &range);
        let gain = self.coordinates.update(range.clone(), &sum, threshold);
        self.pulls.push_back(Pull {
            task: self.task,
            block,
            weights: self.coordinates.weights()[range.clone()].to_vec(),
            active: self.coordinates.active()[range].to_vec(),
        });
        gain
    }

    fn push_gradients(&mut self, block: &KeyBlock, range: &Range<usize>) -> BlockSum {
        let mut sum = BlockSum::new(range.len());
        for (part, worker) in self.parts.iter().zip(&mut self.workers) {
            let own = block.locate_in(part.columns.keys());
            let mut g = vec![0.0; own.len()];
            let mut u = vec![0.0; own.len()];
            let rule = self.settings.curvature;
            self.columns_computed +=
                worker.gradient(part.columns, own.clone(), rule, &mut g, &mut u);
            let positions = positions(&self.coordinates, range, part, &own);
            sum.add(&positions, &g, &u, &worker.active()[own]);
        }
        sum
    }

    /// Applies the pulls of all tasks before `task`.
    fn apply_pulls(&mut self, task: u64) {
        while let Some(pull) = self.pulls.pop_front_if(|pull| pull.task < task) {
            self.apply(&pull);
        }
    }

    fn apply(&mut self, pull: &Pull) {
        let range = self.coordinates.locate(&pull.block);
        for (part, worker) in self.parts.iter().zip(&mut self.workers) {
            let own = pull.block.locate_in(part.columns.keys());
            let positions = positions(&self.coordinates, &range, part, &own);
            let weights: Vec<f64> = positions.iter().map(|&k| pull.weights[k]).collect();
            let active: Vec<bool> = positions.iter().map(|&k| pull.active[k]).collect();
            worker.apply(part.columns, own, &weights, &active);
        }
    }

    fn report(&self, threshold: f64, rule: &mut StopRule) -> Progress {
        let objective = self.loss() + self.coordinates.penalty();
        let (relative, stop) = rule.after_pass(objective);
        Progress {
            objective,
            relative,
            nonzeros: self.coordinates.nonzeros(),
            threshold,
            active: self.coordinates.active_count(),
            violation: self.coordinates.violation(),
            columns_computed: self.columns_computed,
            stop,
        }
    }

    /// The loss at the server's weights, whether or not the workers have seen them.
    fn loss(&self) -> f64 {
        let coordinates = &self.coordinates;
        let all = 0..coordinates.keys().len();
        let mut loss = 0.0;
        for part in self.parts {
            let own = 0..part.columns.columns();
            let mut margins = vec![0.0; part.labels.len()];
            for (j, k) in positions(coordinates, &all, part, &own).into_iter().enumerate() {
                let weight = coordinates.weights()[k];
                let sign = |row: usize| part.labels[row].signum();
                part.columns.for_each(j, |row, x| margins[row] += sign(row) * weight * x);
            }
            let losses = part.labels.iter().zip(margins).map(|(label, margin): (&f64, f64)| {
                label.abs() * ((-margin).max(0.0) + (-margin.abs()).exp().ln_1p())
            });
            loss += losses.sum::<f64>();
        }
        loss
    }
}

fn positions(
    coordinates: &Coordinates,
    range: &Range<usize>,
    part: &Part<'_>,
    own: &Range<usize>,
) -> Vec<usize> {
    let keys: Vec<u64> = part.columns.keys().range(own.clone()).collect();
    coordinates.positions(range.clone(), &keys).expect("they are the union of the parts' keys")
}
