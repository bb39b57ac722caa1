//! The driver's side: an outer step, from measuring to the new weights.
//!
//! Place: train > **step** > orders to workers (`task`), commands to servers (`scores`, `blocks`).

use std::collections::BTreeMap;

use caravan_kv::{Cluster, Worker};
use caravan_van::KeyRange;
use caravan_van::draws::Random;

use super::active_set::{self, RIDGE_BEGIN};
use super::blocks::{self, Stepped, Units};
use super::bound;
use super::plan::Plan;
use super::scores::{self, Column, Selected};
use super::task::{NOW, Order};
use super::{Kind, Open, least_subgradient};
use crate::dbpg::proximal::{Penalties, Proximal};
use crate::dbpg::scaling::Scaling;
use crate::dbpg::train::{ask, derive, tell_servers};
use crate::numeric::{Scale, Whole};

/// Least curvature of a row and of a column.
pub(super) const CURVATURE_MIN: f64 = 1e-12;

/// Columns at 0 that a working set has at least room for; else twice the support.
const OTHERS_MIN: usize = 1000;

/// Most sweeps over the blocks in an outer step.
const SWEEPS_MAX: usize = 15;

/// A sweep crawls if it gains less than this share of what was gained so far, or of what the last
/// step on the active set has gained.
const CRAWLS: f64 = 0.1;

/// How exactly an outer step's model is minimised.
struct Effort {
    /// Until Σ s² / h is this share of what it was.
    distance_end: f64,
    /// Least sweeps before a step on the active set, and most steps there.
    sweeps: usize,
    active_steps_max: usize,
    active_set: active_set::Effort,
}

/// Far from the optimum, where the model is soon another one.
const FROM_AFAR: Effort = Effort {
    distance_end: 0.09,
    sweeps: 2,
    active_steps_max: 3,
    active_set: active_set::Effort {
        residual_end: 0.05,
        gain_end: 0.2,
        products_max: 60,
        rounds_max: 1,
    },
};

/// Once a step has lowered F by less than the share [`NEAR`]: then the model is nearly exact.
const IN_THE_END: Effort = Effort {
    distance_end: 1e-3,
    sweeps: 1,
    active_steps_max: 10,
    active_set: active_set::Effort {
        residual_end: 1e-3,
        gain_end: 0.02,
        products_max: 300,
        rounds_max: 10,
    },
};
const NEAR: f64 = 1e-5;

/// A relative decrease of F from which on a crawling sweep leads to the active set, not to the next
/// outer step.
const ACTIVE_FROM: f64 = 0.02;

/// Armijo's constant, and the shares of a step that are tried after the whole one.
const ARMIJO: f64 = 1e-4;
const SHARES: [f64; 10] =
    [0.5, 0.25, 0.125, 0.0625, 1.0 / 32.0, 1.0 / 64.0, 1.0 / 256.0, 1.0 / 1024.0, 1e-4, 1e-5];

/// θ below which it is 0, and the least that it rises from.
const SOFTNESS_MIN: f64 = 1e-3;
const SOFTNESS_RISE: f64 = 0.02;

/// A change of F of this share is rounding.
const ROUNDING: f64 = 1e-14;

/// The least that can be asked for: below, a bound is the rounding of its sums.
pub(crate) const ASKED_MIN: f64 = 2e-12;

/// Outer steps after which neither F nor its bound will fall further, if neither did in any.
const STALLED: usize = 6;

/// A relative decrease of F from which on the bound is computed: it costs a logarithm a row.
const BOUND_FROM: f64 = 1e-2;

/// Largest sum of integers.
const SUM_MAX: f64 = 9_223_372_036_854_775_807.0; // 2^63

/// How far rows' gradients in the model may be above those of the loss, as a power of 2.
const HEADROOM_BITS: i32 = 8;

/// The method for one table of weights.
pub(crate) struct Newton {
    block_columns: usize,
    open: Open,
    rule: Proximal,
    scaling: Scaling,
    data: Data,
    clock: u64,
    measured: u64,
    softness: f64,
    ridge: f64,
    /// What the last step on the active set has gained.
    active_gain: f64,
    relative: f64,
    stalled: usize,
    /// The weights that are not 0.
    weights: BTreeMap<u64, f64>,
    objective: Option<f64>,
    /// Whether no step has been taken since scores were computed from the weights.
    is_exact: bool,
    /// The best lower bound of F*.
    least: f64,
    random: Random,
}

/// What is known of all workers' data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) rows: u64,
    /// Largest |x_ij|, and whether all are 1.
    pub(crate) largest: f64,
    pub(crate) ones: bool,
    /// Largest weight of a row.
    pub(crate) row_weight: f64,
}

/// An outer step's outcome.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outer {
    pub(crate) objective: f64,
    pub(crate) nonzeros: usize,
    /// F - F* is at most this; `None` where no dual point bounds it: without any penalty.
    pub(crate) bound: Option<f64>,

    /// Whether that is as small as asked for.
    pub(crate) done: bool,
    /// Whether F does not fall any more.
    pub(crate) stalled: bool,
    /// Largest |g| at a weight of 0.
    pub(crate) steepest: f64,
    pub(crate) columns: usize,
    pub(crate) server_seconds: f64,
    /// Time after measuring.
    pub(crate) step_seconds: f64,
}

impl Newton {
    pub(crate) fn new(
        block_columns: usize,
        rule: Proximal,
        scaling: Scaling,
        data: Data,
        open: Open,
    ) -> Self {
        Newton {
            block_columns,
            open,
            rule,
            scaling,
            data,
            clock: 0,
            measured: 0,
            softness: 1.0,
            ridge: RIDGE_BEGIN,
            active_gain: 0.0,
            relative: 1.0,
            stalled: 0,
            weights: BTreeMap::new(),
            objective: None,
            is_exact: false,
            least: 0.0,
            random: Random::new(1),
        }
    }

    /// Begins at these weights, which workers have as well.
    pub(crate) fn begin(&mut self, rule: Proximal, weights: impl Iterator<Item = (u64, f64)>) {
        *self = Newton {
            rule,
            clock: self.clock,
            measured: self.measured,
            weights: weights.collect(),
            ..Newton::new(
                self.block_columns,
                rule,
                std::mem::take(&mut self.scaling),
                self.data,
                self.open,
            )
        };
    }

    /// The weights that are not 0, sorted by key.
    pub(crate) fn weights(&self) -> &BTreeMap<u64, f64> {
        &self.weights
    }

    /// The traffic of its tables at the driver.
    pub(crate) fn tables(&self) -> [caravan_kv::Table; 2] {
        [self.open.scores, self.open.blocks]
    }

    /// Measures, and unless F is within `asked` of F*, relative to it, takes a step.
    pub(crate) fn step(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        asked: f64,
    ) -> caravan_kv::Result<Outer> {
        let count = OTHERS_MIN.max(2 * self.weights.len());
        let selected = self.measure(cluster, servers, count)?;
        let objective = match self.objective {
            Some(objective) => objective,
            None => self.losses(cluster, &[0.0])?[0] + self.penalty(),
        };
        self.objective = Some(objective);
        let mut outer = Outer {
            objective,
            steepest: selected.steepest_at_zero,
            columns: selected.columns as usize,
            server_seconds: selected.busy_seconds,
            ..Outer::default()
        };
        let least = self.least;
        if self.relative <= BOUND_FROM || selected.others.is_empty() {
            self.least = least.max(self.lower_bound(cluster, servers, &selected)?);
        }
        let is_near = |newton: &Newton, objective: f64| {
            newton.bound(objective).is_some_and(|bound| bound <= asked.max(ASKED_MIN) * objective)
        };
        let mut objective = objective;
        if is_near(self, objective) && !self.is_exact {
            // The steps so far have been rounded; what counts is F of the weights.
            objective = derive(cluster)? + self.penalty();
            (self.objective, self.is_exact) = (Some(objective), true);
            outer.objective = objective;
        }
        outer.done = is_near(self, objective);
        let began = servers.now();
        let mut columns = selected.support;
        columns.extend(selected.others);
        if !outer.done && !columns.is_empty() {
            outer.objective = self.descend(cluster, servers, columns, objective)?;
            self.relative = (objective / outer.objective - 1.0).max(0.0);
            let fell = outer.objective < objective * (1.0 - ROUNDING) || self.least > least;
            self.stalled = if fell { 0 } else { self.stalled + 1 };
            self.objective = Some(outer.objective);
        }
        outer.step_seconds = (servers.now() - began).as_secs_f64();
        outer.stalled = self.stalled >= STALLED;
        outer.nonzeros = self.weights.keys().filter(|key| self.rule.free != Some(**key)).count();
        outer.bound = self.bound(outer.objective);
        Ok(outer)
    }

    /// F* is at least this, as far as is known.
    pub(crate) fn least(&self) -> f64 {
        self.least
    }

    /// The bound of an objective that was found by passes, if one is known.
    pub(crate) fn bound_of(&self, objective: f64) -> Option<f64> {
        self.bound(objective).filter(|_| self.least > 0.0)
    }

    /// F - F* is at most this, also with the rounding of both; `None` without any penalty, where
    /// no dual point bounds it.
    pub(crate) fn bound(&self, objective: f64) -> Option<f64> {
        let is_penalised = self.rule.lambda > 0.0 || self.rule.l2 > 0.0;
        is_penalised.then(|| (objective - self.least).max(0.0) + ROUNDING * objective)
    }

    fn penalties(&self, key: u64) -> Penalties {
        self.rule.penalties(key, &self.scaling)
    }

    fn penalty(&self) -> f64 {
        self.weights.iter().map(|(&key, &weight)| self.penalties(key).of(weight)).sum()
    }

    /// Scales of sums of gradients and curvatures.
    fn scales(&self) -> [Scale; 2] {
        let Data { rows, largest, row_weight, .. } = self.data;
        let gradient = row_weight * largest;
        [Scale::new(rows, gradient), Scale::new(rows, 0.25 * gradient * largest)]
    }

    fn measure(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        count: usize,
    ) -> caravan_kv::Result<Selected> {
        self.measured += 1;
        let (clock, scales) = (self.measured, self.scales());
        let keys: Vec<u64> = self.weights.keys().copied().collect();
        let weights: Vec<i64> = self.weights.values().map(|w| w.to_bits() as i64).collect();
        servers.set_clock(clock);
        let pushed =
            servers.push_varying(self.open.scores, &keys, &vec![1; keys.len()], &weights)?;
        servers.wait(pushed)?;
        ask(cluster, &Order::Measure { clock, softness: self.softness, scales })?;
        let Proximal { lambda, l2, free, .. } = self.rule;
        let select = scores::Command::Select { clock, lambda, l2, free, count, scales };
        let asked = servers.command(self.open.scores, &serde_json::to_vec(&select)?)?;
        let mut all = Selected::default();
        for reply in &servers.wait(asked)?.replies {
            let selected = Selected::decode(reply.as_ref());
            let selected = selected.ok_or_else(|| {
                caravan_kv::Error::Config("a server's list of columns is cut off".to_owned())
            })?;
            all.join(selected, |key| self.penalties(key), count);
        }
        // In the order of keys, whatever the order of servers and of equal scores.
        all.support.sort_unstable_by_key(|column| column.key);
        all.others.sort_unstable_by_key(|column| column.key);
        Ok(all)
    }

    /// A lower bound of F*.
    fn lower_bound(
        &self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        selected: &Selected,
    ) -> caravan_kv::Result<f64> {
        let Proximal { lambda, l2, free, .. } = self.rule;
        let mut dual = |positive: f64, negative: f64| {
            let sums = ask(cluster, &Order::Dual { positive, negative })?;
            let total = |at: usize| sums.iter().map(|sums| sums[at]).sum::<Whole>().number();
            Ok::<_, caravan_kv::Error>([total(0), total(1), total(2)])
        };
        let sums = match free {
            Some(_) => dual(1.0, 1.0).map(|[_, positive, negative]| Some([positive, negative]))?,
            None => None,
        };
        let off = sums.map_or(0.0, |[positive, negative]| (positive - negative).abs());
        let off = off * self.data.largest;
        let scale = self.scales()[0];
        let steepest = match self.scaling.is_empty() {
            true => selected.steepest + off,
            // Each gradient is off by another number.
            false => {
                let command = scores::Command::Steepest { off, free, scale };
                let all: Vec<f64> = tell_servers(servers, self.open.scores, &command)?;
                all.into_iter().fold(0.0, f64::max)
            }
        };
        let shares = bound::shares(sums, steepest, lambda, l2 > 0.0);
        let [entropy, ..] = dual(shares.positive, shares.negative)?;
        let mut excess = 0.0;
        if l2 > 0.0 && steepest > lambda {
            let command = scores::Command::Excess { lambda, off, free, scale };
            let parts: Vec<f64> = tell_servers(servers, self.open.scores, &command)?;
            excess = parts.iter().sum::<f64>() / (2.0 * l2);
        }
        Ok(entropy - excess)
    }

    /// F's loss at shares of the direction to v.
    fn losses(&self, cluster: &mut Cluster, shares: &[f64]) -> caravan_kv::Result<Vec<f64>> {
        let all = ask(cluster, &Order::Losses { shares: shares.to_vec() })?;
        let at = |at: usize| all.iter().map(|sums| sums[at]).sum::<Whole>().number();
        Ok((0..shares.len()).map(at).collect())
    }

    /// Minimises the model on these columns, and goes there as far as F falls; returns F.
    fn descend(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        columns: Vec<Column>,
        objective: f64,
    ) -> caravan_kv::Result<f64> {
        let plan = self.plan(cluster, servers, columns)?;
        if !self.minimise(cluster, servers, &plan)? {
            self.soften(0.0);
            return Ok(objective);
        }
        let to = plan.iterate(servers, self.open)?;
        let mut gradient = 0.0;
        for (k, (column, to)) in plan.columns.iter().zip(&to).enumerate() {
            let lambda = plan.penalties(k).lambda;
            gradient += column.gradient * (to - column.weight);
            gradient += lambda * (to.abs() - column.weight.abs());
        }
        let at = |share: f64| {
            plan.columns.iter().zip(&to).map(move |(column, to)| {
                let from = column.weight;
                (column.key, if share == 1.0 { *to } else { from + share * (to - from) })
            })
        };
        let penalty =
            |share: f64| at(share).map(|(key, weight)| self.penalties(key).of(weight)).sum::<f64>();
        let falls = |share: f64, value: f64| {
            value <= objective + ARMIJO * share * gradient.min(0.0) + ROUNDING * objective
        };
        let full = self.losses(cluster, &[1.0])?[0] + penalty(1.0);
        let mut taken = Some((1.0, full)).filter(|_| falls(1.0, full) && full.is_finite());
        if taken.is_none() {
            let losses = self.losses(cluster, &SHARES)?;
            let values =
                SHARES.into_iter().zip(losses).map(|(share, loss)| (share, loss + penalty(share)));
            taken =
                values.into_iter().find(|&(share, value)| value < objective && falls(share, value));
        }
        self.soften(taken.map_or(0.0, |(share, _)| share));
        let Some((share, value)) = taken else { return Ok(objective) };
        let changes: Vec<(u64, f64)> = at(share).collect();
        for (key, weight) in changes {
            match weight {
                0.0 => self.weights.remove(&key),
                _ => self.weights.insert(key, weight),
            };
        }
        self.is_exact = false;
        ask(cluster, &Order::Take { share })?;
        Ok(value)
    }

    /// Sets θ after a step of this share of the direction.
    fn soften(&mut self, share: f64) {
        self.softness = match share {
            1.0 if self.softness / 4.0 < SOFTNESS_MIN => 0.0,
            1.0 => self.softness / 4.0,
            _ => {
                let factor = if share < 0.2 {
                    10.0
                } else if share < 0.4 {
                    4.0
                } else {
                    2.0
                };
                (self.softness.max(SOFTNESS_RISE) * factor).min(1.0)
            }
        };
    }

    /// Shuffles the columns into blocks, which servers and workers then have.
    fn plan(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        mut columns: Vec<Column>,
    ) -> caravan_kv::Result<Plan> {
        self.random.shuffle(&mut columns);
        let Data { rows, largest, ones, row_weight } = self.data;
        let blocks = columns.len().div_ceil(self.block_columns);
        let size = columns.len().div_ceil(blocks);
        let ends = (1..=blocks).map(|block| (block * size).min(columns.len())).collect();
        let scale = Scale::with_headroom(rows, row_weight * largest, HEADROOM_BITS);
        let penalties = columns.iter().map(|column| self.penalties(column.key)).collect();
        let free = self.rule.free;
        let plan = Plan { columns, ends, scale, largest, penalties, free };
        let most = plan.columns.iter().fold(0.0_f64, |most, column| most.max(column.curvature));
        let units = if ones { Units::of_ones(most) } else { Units::Own };
        let Proximal { lambda, l2, free, .. } = self.rule;
        let begin = blocks::Command::Begin { lambda, l2, free, scale, units };
        let begun = servers.command(self.open.blocks, &serde_json::to_vec(&begin)?)?;
        servers.wait(begun)?;
        let numbers = plan.columns.iter().flat_map(|column| {
            let Column { key, weight, curvature, .. } = *column;
            [key as i64, weight.to_bits() as i64, curvature.to_bits() as i64]
        });
        let numbers: Vec<i64> = numbers.collect();
        plan.push(servers, self.open, NOW, Kind::Plan, 3, &numbers)?;
        let blocks = plan.ends.len();
        ask(cluster, &Order::Plan { blocks, free, scale, largest, units })?;
        Ok(plan)
    }

    /// Minimises the model, nearly; returns whether all sums were in their range.
    fn minimise(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        plan: &Plan,
    ) -> caravan_kv::Result<bool> {
        let distances = plan.columns.iter().enumerate().map(|(k, column)| {
            let Penalties { lambda, l2 } = plan.penalties(k);
            let least = least_subgradient(column.weight, column.gradient, lambda);
            least * least / (column.curvature + l2)
        });
        let first: f64 = distances.sum();
        let effort = if self.relative < NEAR { &IN_THE_END } else { &FROM_AFAR };
        let mut gained = 0.0;
        let mut since_active_step = 0;
        let mut active_sets = 0;
        for _ in 0..SWEEPS_MAX {
            let Some((distance, gain)) = self.sweep(cluster, servers, plan)? else {
                return Ok(false);
            };
            gained += gain;
            since_active_step += 1;
            if distance <= effort.distance_end * first {
                break;
            }
            let crawls =
                gain < CRAWLS * gained.max(self.active_gain) && since_active_step >= effort.sweeps;
            if !crawls || self.relative >= ACTIVE_FROM {
                continue;
            }
            if active_sets == effort.active_steps_max {
                break;
            }
            let open = self.open;
            let begin = active_set::Begin {
                ridge: self.ridge,
                effort: effort.active_set,
                clock: self.clock,
            };
            let Some(moved_active) = active_set::run(cluster, servers, open, plan, begin)? else {
                continue;
            };
            gained += moved_active.gain;
            (self.active_gain, self.ridge, self.clock) =
                (moved_active.gain, moved_active.ridge, moved_active.clock);
            since_active_step = 0;
            active_sets += 1;
        }
        Ok(true)
    }

    /// Visits all blocks once; returns Σ s² / h as each was reached, and how much q fell, unless
    /// sums have left their range.
    fn sweep(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        plan: &Plan,
    ) -> caravan_kv::Result<Option<(f64, f64)>> {
        let blocks = plan.ends.len();
        let mut order: Vec<usize> = (0..blocks).collect();
        self.random.shuffle(&mut order);
        let first = self.clock + 1;
        self.clock += blocks as u64;
        let strains = ask(cluster, &Order::Sweep { first, blocks: order })?;
        let strain = strains.into_iter().flatten().sum::<Whole>().number();
        let fits = strain * plan.largest * plan.scale.up <= SUM_MAX;
        let stepped: Vec<Vec<Stepped>> =
            tell_servers(servers, self.open.blocks, &blocks::Command::Stepped)?;
        let threads = stepped.len();
        let mut all = vec![(0.0, 0.0); blocks];
        for (thread, stepped) in stepped.iter().enumerate() {
            for Stepped { block, distance, gain } in stepped {
                all[block * threads + thread] = (*distance, *gain);
            }
        }
        let sums = |sum: (f64, f64), one: (f64, f64)| (sum.0 + one.0, sum.1 + one.1);
        Ok(fits.then(|| all.into_iter().fold((0.0, 0.0), sums)))
    }
}

/// The keys of a table for these blocks of keys.
pub(crate) fn keys_of(first: u64, last: u64) -> KeyRange {
    KeyRange::new(first, last.wrapping_add(1)).unwrap_or(KeyRange::ALL)
}
