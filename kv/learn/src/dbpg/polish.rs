//! The polish between passes as messages: a Newton step on the support.
//!
//! One step at a time: a pass costs less than another step, and may find more to step on. It takes two questions to the workers: their parts of the Hessian come through a table, since they are large, and are
//! added up here in the order of ranks, so that a run repeats itself; their losses on the way to the new weights come with
//! the answer. Workers and servers then set the weights, as if by a pass. The numbers are [`super::newton`]'s.

use caravan_kv::filter::{Filters, Traffic};
use caravan_kv::{Cluster, Store, Table, TableSpec, ValueType, Worker};
use caravan_van::{KeyRange, Value};
use serde::{Deserialize, Serialize};

use super::correlations;
use super::newton::{self, Model};
use super::proximal::Proximal;
use super::shard::Command;
use super::train::{ask_workers, tell_servers};
use super::worker::Order;

/// The largest support that is polished unless told otherwise: 64 MiB of Hessian a worker, some
/// 23 GFlop a factorisation.
pub const SUPPORT_MAX: usize = 4096;

/// The largest that may be asked for: 1 GiB of Hessian a worker.
pub(super) const SUPPORT_LIMIT: usize = 16384;

/// Id of the table that carries the workers' parts.
const TABLE: u32 = 2;

/// Numbers in a row of it.
const PIECE: usize = 64 << 10;

/// Rows that are under way at a time: what is sent lies in memory once more while it is, at both ends.
const PIECES: usize = 4;

/// A pass that lowered the objective by more than this still finds its support.
const RELATIVE_MAX: f64 = 0.05;

/// A polish waits while as many passes as cost the same would lower the objective by more than this, each as much as the last.
const PASSES_GAIN_MAX: f64 = 0.25;

/// Cost of a polish of n weights, in n³: all its factorisations and sweeps, and the Hessian's way. Costs are in seconds of
/// some machine, but computed, so that runs repeat themselves.
const CUBE_COST: f64 = 5e-11;

/// Cost of a block's round trip in a pass, and that of one of its non-zeros to the worker with the most.
const BLOCK_COST: f64 = 25e-6;
const NONZERO_COST: f64 = 10e-9;

/// What a step or a pass can gain at most, when it is taken for rounding.
const SETTLED: f64 = 1e-13;

/// The largest border whose centre is looked for: 3 GFlop on one core.
const CENTRE_MAX: usize = 2048;

/// An objective that is higher by no more than this share is the same.
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
    /// For its penalties.
    rule: Proximal,
    table: Table,
    pass_cost: f64,
    /// Whether weights are kept to single precision.
    narrow: bool,
    wire: Wire,
    /// Whether the last polish left nothing to gain on its support.
    settled: bool,
    /// Whether it met columns that depend on each other.
    dependent: bool,
}

impl Polish {
    /// For passes over so many blocks, and over so many non-zeros of the worker that has most.
    pub(super) fn new(
        support_max: usize,
        rule: Proximal,
        table: Table,
        (blocks, nonzeros): (usize, u64),
        (narrow, wire): (bool, Wire),
    ) -> Self {
        let pass_cost = blocks as f64 * BLOCK_COST + nonzeros as f64 * NONZERO_COST;
        let (settled, dependent) = (false, false);
        Polish { support_max, rule, table, pass_cost, narrow, wire, settled, dependent }
    }

    /// What the filters of its table did to what the driver pulled.
    pub(super) fn traffic(&self, servers: &Worker) -> caravan_kv::Result<Traffic> {
        servers.traffic(self.table)
    }

    /// Begins anew, with other penalties.
    pub(super) fn begin(&mut self, rule: Proximal) {
        (self.rule, self.settled, self.dependent) = (rule, false, false);
    }

    /// Whether a step on a support of that size is worth more than the passes it costs, if they went on like the last.
    fn pays(&self, support: usize, relative: f64) -> bool {
        let passes = CUBE_COST * (support as f64).powi(3) / self.pass_cost;
        relative <= RELATIVE_MAX && relative * passes <= PASSES_GAIN_MAX
    }

    /// Goes on from where a pass has led, after it and all its pulls; `previous` is the objective before the pass.
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
            return Ok(from); // with the intercept
        }
        let mut at = from;
        self.settled = !self.step(cluster, servers, weights_table, &mut weights, &mut at)?;
        Ok(at)
    }

    /// Goes from the optimum that the last pass has confirmed to the central one, where there are several
    /// ([`super::centre`]). Costs about as much as one more polish of the same size, nothing when this one is known to be single,
    /// and is left undone for more than [`CENTRE_MAX`] columns.
    pub(super) fn centre(
        &self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        weights_table: Table,
        at: Polished,
    ) -> caravan_kv::Result<()> {
        // With a ridge there is one optimum; with rounded numbers nobody knows which columns depend on each other.
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
        let model = self.model(cluster, servers, (&keys, from), Wire::Double)?;
        let Some((central, fewest)) = model.centre() else { return Ok(()) };
        let losses: Vec<Vec<f64>> =
            ask_workers(cluster, &Order::Losses { weights: central.clone() })?;
        let loss: f64 = losses.iter().map(|losses| losses[0]).sum(); // all the way
        let weights = keys.iter().zip(&central);
        let objective =
            loss + weights.map(|(&key, &weight)| self.rule.penalty(key, weight)).sum::<f64>();
        if objective <= at.objective * (1.0 + SAME_OBJECTIVE) {
            let most = central.iter().filter(|weight| **weight != 0.0).count();
            tracing::info!(fewest, most, "there are several optima: taking the central one");
            set(cluster, servers, weights_table, (&keys, central))?;
        }
        Ok(())
    }

    /// F to second order around the weights of `keys`.
    fn model(
        &self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        (keys, weights): (&[u64], Vec<f64>),
        wire: Wire,
    ) -> caravan_kv::Result<Model> {
        let workers = cluster.config().workers;
        let gram = Order::Gram { support: keys.to_vec(), wire };
        let _pushed: Vec<()> = ask_workers(cluster, &gram)?;
        let packed = receive(servers, self.table, workers, (keys.len(), wire))?;
        let penalties = keys.iter().map(|&key| self.rule.penalties(key));
        let (lambda, l2): (Vec<f64>, Vec<f64>) = penalties.unzip();
        let mut model = Model::new(lambda, weights, &packed);
        model.add_ridge(&l2);
        Ok(model)
    }

    /// One Newton step from `weights`, sorted, none 0; false when there is nothing to gain.
    fn step(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        weights_table: Table,
        weights: &mut Vec<(u64, f64)>,
        at: &mut Polished,
    ) -> caravan_kv::Result<bool> {
        let (keys, from): (Vec<u64>, Vec<f64>) = weights.iter().copied().unzip();
        let model = self.model(cluster, servers, (&keys, from.clone()), self.wire)?;
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
        let pairs = set(cluster, servers, weights_table, (&keys, chosen))?;
        *weights = pairs.into_iter().filter(|&(_, weight)| weight != 0.0).collect();
        let penalised = weights.iter().filter(|&&(key, _)| self.rule.free != Some(key));
        *at = Polished { objective, nonzeros: penalised.count() };
        Ok(true)
    }
}

/// Has servers and workers take these weights of the support; returns them with their keys.
fn set(
    cluster: &mut Cluster,
    servers: &mut Worker,
    weights_table: Table,
    (keys, weights): (&[u64], Vec<f64>),
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

/// How the numbers of a Hessian and a gradient travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wire {
    /// In single precision, which a Newton step does not notice: only the gradient says where the minimum is, and each of its
    /// numbers goes as two, the second what the first leaves.
    Single,
    /// All of them as two: which columns depend on each other only an exact Hessian says.
    Double,
    /// In two bytes (`correlations`).
    Short,
}

impl Wire {
    /// Numbers for a support of n weights.
    fn len(self, n: usize) -> usize {
        match self {
            Wire::Single => newton::packed_len(n) + n,
            Wire::Double => 2 * newton::packed_len(n),
            Wire::Short => correlations::wire_len(n),
        }
    }
}

/// The table that carries parts of supports up to that size. Row `piece * workers + rank` holds a worker's numbers from
/// `piece * PIECE` on; rows are written over by the next step.
pub(super) fn table(
    support_max: usize,
    workers: usize,
    (wire, filters): (Wire, Filters),
) -> TableSpec {
    let (value, longest) = match wire {
        Wire::Single | Wire::Double => (ValueType::F32, Wire::Double),
        Wire::Short => (ValueType::I32, Wire::Short),
    };
    let rows = longest.len(support_max).div_ceil(PIECE) * workers;
    let keys = KeyRange::new(0, rows as u64).expect("there is a worker, and a weight");
    let mut spec = TableSpec::new(TABLE, "hessian", value, 0).handle("assign").keys(keys);
    spec.store = Store::Sparse;
    spec.filters(filters)
}

/// Rows of a worker's numbers from number `from` on, as many as go at once, and how many numbers those are.
fn rows(rank: usize, workers: usize, (from, len): (usize, usize)) -> (Vec<u64>, usize) {
    let count = (len - from).min(PIECES * PIECE);
    let pieces = from / PIECE..(from + count).div_ceil(PIECE);
    (pieces.map(|piece| (piece * workers + rank) as u64).collect(), count)
}

/// Writes a worker's numbers for a support of n weights to its rows; before them come its rank and the number of workers.
pub(super) fn send(
    worker: &mut Worker,
    table: Table,
    place: (usize, usize),
    (n, packed, wire): (usize, &[f64], Wire),
) -> caravan_kv::Result<()> {
    let len = wire.len(n);
    match wire {
        Wire::Single | Wire::Double => {
            let with_rest = &packed[2 * packed.len() - len..];
            let rest = with_rest.iter().map(|number| (number - f64::from(*number as f32)) as f32);
            let numbers = packed.iter().map(|number| *number as f32).chain(rest);
            push(worker, table, place, (numbers, len))
        }
        Wire::Short => push(worker, table, place, (correlations::pack(n, packed).into_iter(), len)),
    }
}

fn push<V: Value>(
    worker: &mut Worker,
    table: Table,
    (rank, workers): (usize, usize),
    (mut numbers, len): (impl Iterator<Item = V>, usize),
) -> caravan_kv::Result<()> {
    for from in (0..len).step_by(PIECES * PIECE) {
        let (rows, count) = rows(rank, workers, (from, len));
        let values: Vec<V> = numbers.by_ref().take(count).collect();
        let lengths: Vec<u32> = values.chunks(PIECE).map(|piece| piece.len() as u32).collect();
        let pushed = worker.push_varying(table, &rows, &lengths, &values)?;
        worker.wait(pushed)?;
    }
    Ok(())
}

/// The sum of all workers' numbers, in the order of ranks, laid out as [`newton::Support::gram`] does.
fn receive(
    servers: &mut Worker,
    table: Table,
    workers: usize,
    (n, wire): (usize, Wire),
) -> caravan_kv::Result<Vec<f64>> {
    let (len, packed_len) = (wire.len(n), newton::packed_len(n));
    let mut sum = vec![0.0; packed_len];
    for rank in 0..workers {
        let place = (rank, workers);
        match wire {
            Wire::Single | Wire::Double => {
                pull(servers, table, place, len, |from, part: &[f32]| {
                    for (at, number) in (from..).zip(part) {
                        // Beyond the gradient lies what the last of the numbers left.
                        let at = if at < packed_len { at } else { at + packed_len - len };
                        sum[at] += f64::from(*number);
                    }
                })?;
            }
            Wire::Short => {
                let mut numbers = Vec::with_capacity(len);
                pull(servers, table, place, len, |_, part: &[i32]| {
                    numbers.extend_from_slice(part);
                })?;
                correlations::add(n, &numbers, &mut sum);
            }
        }
    }
    Ok(sum)
}

/// Calls `take` with all of a worker's numbers, piece by piece, and the place of the first.
fn pull<V: Value>(
    servers: &mut Worker,
    table: Table,
    (rank, workers): (usize, usize),
    len: usize,
    mut take: impl FnMut(usize, &[V]),
) -> caravan_kv::Result<()> {
    for from in (0..len).step_by(PIECES * PIECE) {
        let (rows, count) = rows(rank, workers, (from, len));
        let pulled = servers.pull(table, &rows)?;
        let answer = servers.wait(pulled)?;
        let part = answer.values::<V>();
        if part.len() != count {
            return Err(caravan_kv::Error::Config(format!(
                "worker {rank} has left {} numbers of its Hessian, not {count}",
                part.len()
            )));
        }
        take(from, part);
    }
    Ok(())
}
