//! The messages of the polish between passes, a Newton step on the support.
//!
//! It takes one step at a time: a pass costs less than another step, and may find more to step on.
//! The driver asks the workers twice: their parts of the Hessian come through a table
//! ([`super::hessian`]); their losses on the way to the new weights come with the answer. Workers
//! and servers then set the weights as after a pass. The computation is in [`super::newton`].

use caravan_kv::filter::Traffic;
use caravan_kv::{Cluster, Table, Worker};

use super::hessian::{self, Wire};
use super::newton::{self, Model};
use super::orders::Command;
use super::proximal::Proximal;
use super::train::{ask_workers, tell_servers};
use super::worker::Order;

/// Largest support that is polished by default: 64 MiB of Hessian a worker.
pub const SUPPORT_MAX: usize = 4096;

/// Upper limit of that setting: 1 GiB of Hessian a worker.
pub(super) const SUPPORT_LIMIT: usize = 16384;

/// A pass that lowered the objective by more than this is still finding its support.
const RELATIVE_MAX: f64 = 0.05;

/// A polish waits while passes of the same cost would lower the objective by more than this, if
/// each gained as much as the last.
const PASSES_GAIN_MAX: f64 = 0.25;

/// Cost of a polish of n weights, in n³: all its factorisations and sweeps, and sending the
/// Hessian. Costs are in seconds of a nominal machine, computed instead of measured so that runs
/// repeat exactly.
const CUBE_COST: f64 = 5e-11;

/// Cost of a block's round trip in a pass, and of one of its non-zeros at the worker with the most.
const BLOCK_COST: f64 = 25e-6;
const NONZERO_COST: f64 = 10e-9;

/// A relative gain of at most this counts as rounding.
const SETTLED: f64 = 1e-13;

/// Largest border whose centre is computed.
const CENTRE_MAX: usize = 2048;

/// An objective that is higher by at most this share counts as the same.
const SAME_OBJECTIVE: f64 = 1e-11;

/// Where a pass or a polish ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Polished {
    pub(super) objective: f64,
    pub(super) nonzeros: usize,
}

/// Polishes the weights of one table.
pub(super) struct Polish {
    support_max: usize,
    /// The rule with the penalties.
    rule: Proximal,
    table: Table,
    pass_cost: f64,
    /// Whether weights are kept to single precision.
    narrow: bool,
    wire: Wire,
    /// Whether the last polish left nothing to gain on its support.
    settled: bool,
    /// Whether it found columns that depend on each other.
    dependent: bool,
}

impl Polish {
    /// For passes over this many blocks, and this many non-zeros at the worker with the most.
    pub(super) fn new(
        support_max: usize,
        rule: Proximal,
        table: Table,
        blocks: usize,
        nonzeros: u64,
        narrow: bool,
        wire: Wire,
    ) -> Self {
        let pass_cost = blocks as f64 * BLOCK_COST + nonzeros as f64 * NONZERO_COST;
        Polish {
            support_max,
            rule,
            table,
            pass_cost,
            narrow,
            wire,
            settled: false,
            dependent: false,
        }
    }

    /// Effect of its table's filters on what the driver pulled.
    pub(super) fn traffic(&self, servers: &Worker) -> caravan_kv::Result<Traffic> {
        servers.traffic(self.table)
    }

    /// Restarts with other penalties.
    pub(super) fn begin(&mut self, rule: Proximal) {
        self.rule = rule;
        self.settled = false;
        self.dependent = false;
    }

    /// Whether a step on a support of this size gains more than the passes it costs, if they went
    /// on like the last.
    fn pays(&self, support: usize, relative: f64) -> bool {
        let passes = CUBE_COST * (support as f64).powi(3) / self.pass_cost;
        relative <= RELATIVE_MAX && relative * passes <= PASSES_GAIN_MAX
    }

    /// Continues after a pass and all its pulls; `previous` is the objective before the pass.
    pub(super) fn run(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        weights_table: Table,
        from: Polished,
        previous: f64,
    ) -> caravan_kv::Result<Polished> {
        let relative = previous / from.objective - 1.0;
        let wanted =
            self.pays(from.nonzeros, relative) && !(self.settled && relative.abs() <= SETTLED);
        if !wanted || !(1..=self.support_max).contains(&from.nonzeros) {
            return Ok(from);
        }
        let weights: Vec<Vec<(u64, f64)>> =
            tell_servers(servers, weights_table, &Command::Weights)?;
        let mut weights: Vec<(u64, f64)> = weights.into_iter().flatten().collect();
        if weights.len() > self.support_max {
            return Ok(from); // the intercept may exceed the limit
        }
        let mut at = from;
        self.settled = !self.step(cluster, servers, weights_table, &mut weights, &mut at)?;
        Ok(at)
    }

    /// Moves from the optimum that the last pass confirmed to the central one, if there are several
    /// ([`super::centre`]). It costs about one more polish of the same size, or nothing if the
    /// optimum is known to be the only one, and is omitted for more than [`CENTRE_MAX`] columns.
    pub(super) fn centre(
        &self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        weights_table: Table,
        at: Polished,
    ) -> caravan_kv::Result<()> {
        // A ridge makes the optimum unique, and rounded numbers do not tell which columns depend on
        // each other.
        if self.rule.l2 > 0.0 || self.narrow || self.wire == Wire::Short {
            return Ok(());
        }
        let border: Vec<Vec<(u64, f64)>> = tell_servers(servers, weights_table, &Command::Border)?;
        let (keys, from): (Vec<u64>, Vec<f64>) = border.into_iter().flatten().unzip();
        let penalised = keys.iter().filter(|&&key| self.rule.free != Some(key)).count();
        let single = penalised == at.nonzeros && !self.dependent;
        if single || !(1..=self.support_max.min(CENTRE_MAX)).contains(&keys.len()) {
            return Ok(());
        }
        let model = self.model(cluster, servers, &keys, from, Wire::Double)?;
        let Some((central, fewest)) = model.centre() else { return Ok(()) };
        let losses: Vec<Vec<f64>> =
            ask_workers(cluster, &Order::Losses { weights: central.clone() })?;
        let loss: f64 = losses.iter().map(|losses| losses[0]).sum(); // at the full step
        let weights = keys.iter().zip(&central);
        let objective =
            loss + weights.map(|(&key, &weight)| self.rule.penalty(key, weight)).sum::<f64>();
        if objective <= at.objective * (1.0 + SAME_OBJECTIVE) {
            let most = central.iter().filter(|weight| **weight != 0.0).count();
            tracing::info!(fewest, most, "there are several optima: taking the central one");
            set(cluster, servers, weights_table, &keys, central)?;
        }
        Ok(())
    }

    /// F to second order around the weights of `keys`.
    fn model(
        &self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        keys: &[u64],
        weights: Vec<f64>,
        wire: Wire,
    ) -> caravan_kv::Result<Model> {
        let workers = cluster.config().workers;
        let gram = Order::Gram { support: keys.to_vec(), wire };
        let _pushed: Vec<()> = ask_workers(cluster, &gram)?;
        let packed = hessian::receive(servers, self.table, workers, keys.len(), wire)?;
        let penalties = keys.iter().map(|&key| self.rule.penalties(key));
        let (lambda, l2): (Vec<f64>, Vec<f64>) = penalties.unzip();
        let mut model = Model::new(lambda, weights, packed);
        model.add_ridge(&l2);
        Ok(model)
    }

    /// Takes one Newton step from `weights`, sorted and non-zero; false if there is nothing to
    /// gain.
    fn step(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        weights_table: Table,
        weights: &mut Vec<(u64, f64)>,
        at: &mut Polished,
    ) -> caravan_kv::Result<bool> {
        let (keys, from): (Vec<u64>, Vec<f64>) = weights.iter().copied().unzip();
        let model = self.model(cluster, servers, &keys, from.clone(), self.wire)?;
        let (mut best, dependent) = model.minimise();
        self.dependent = dependent;
        if self.narrow {
            best.iter_mut().for_each(|weight| *weight = f64::from(*weight as f32));
        }
        let slope = model.slope(&best);
        if slope.is_nan() || slope >= -SETTLED * at.objective {
            return Ok(false);
        }
        let losses: Vec<Vec<f64>> = ask_workers(cluster, &Order::Losses { weights: best.clone() })?;
        let on_the_way = |share: f64| {
            from.iter()
                .zip(&best)
                .map(move |(w, v)| if share == 1.0 { *v } else { w + share * (v - w) })
        };
        let objectives = newton::SHARES.iter().enumerate().map(|(at, &share)| {
            let loss: f64 = losses.iter().map(|losses| losses[at]).sum();
            let weights = keys.iter().zip(on_the_way(share));
            loss + weights.map(|(&key, weight)| self.rule.penalty(key, weight)).sum::<f64>()
        });
        let objectives: Vec<f64> = objectives.collect();
        let Some((share, objective)) = newton::choose(at.objective, slope, &objectives) else {
            return Ok(false);
        };
        let chosen: Vec<f64> = on_the_way(share).collect();
        let pairs = set(cluster, servers, weights_table, &keys, chosen)?;
        *weights = pairs.into_iter().filter(|&(_, weight)| weight != 0.0).collect();
        let penalised = weights.iter().filter(|&&(key, _)| self.rule.free != Some(key));
        *at = Polished { objective, nonzeros: penalised.count() };
        Ok(true)
    }
}

/// Sets these weights of the support at servers and workers; returns them with their keys.
fn set(
    cluster: &mut Cluster,
    servers: &mut Worker,
    weights_table: Table,
    keys: &[u64],
    weights: Vec<f64>,
) -> caravan_kv::Result<Vec<(u64, f64)>> {
    let pairs: Vec<(u64, f64)> = keys.iter().copied().zip(weights.iter().copied()).collect();
    let set: Vec<usize> =
        tell_servers(servers, weights_table, &Command::Set { weights: pairs.clone() })?;
    if set.iter().sum::<usize>() != pairs.len() {
        return Err(caravan_kv::Error::Config(format!(
            "servers hold {set:?} of the {} weights of the support",
            pairs.len()
        )));
    }
    let _set: Vec<()> = ask_workers(cluster, &Order::Set { weights })?;
    Ok(pairs)
}
