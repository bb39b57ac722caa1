//! The worker's side of an outer step: it measures, multiplies, and follows the steps of blocks.
//!
//! Place: driver: step > **task** > scores, blocks.

use std::ops::Range;
use std::time::Duration;

use caravan_kv::WorkerNode;
use serde::{Deserialize, Serialize};

use super::blocks::Units;
use super::working::{Lists, Planned, Working};
use super::{Kind, Open, Tables};
use crate::data::Columns;
use crate::dbpg::gradient::Worker as State;
use crate::dbpg::load::Data;
use crate::memory::Budget;
use crate::numeric::logistic::{log_loss, wrong_probability};
use crate::numeric::{Pool, Scale, Whole, cost, integer};

/// An order of the driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Push gradient and curvature of all columns, for the models of this softness θ.
    Measure { clock: u64, softness: f64, scales: [Scale; 2] },
    /// Sums over rows for these shares of the probabilities of the wrong label, for rows of either
    /// label. Answered with that of their entropy, and those of both labels' shares.
    Dual { positive: f64, negative: f64 },
    /// Gather these many blocks, as the servers have them, and push their Hessians.
    Plan { blocks: usize, free: Option<u64>, scale: Scale, largest: f64, units: Units },
    /// Visit the blocks in this order, in tasks from `first` on. Answered with the sum of the rows'
    /// gradients then, which is infinite if sums have left their range.
    Sweep { first: u64, blocks: Vec<usize> },
    /// Push the gradient on the active set in task `first`; then multiply the direction of the next
    /// task and push the product in the one after it, until a direction is empty.
    Multiply { first: u64 },
    /// Move to the v of this task.
    Move { clock: u64 },
    /// The losses at these shares of the direction to v. Answered with a [`Whole`] each.
    Losses { shares: Vec<f64> },
    /// Go this share of the direction to v.
    Take { share: f64 },
}

/// The method at a worker.
pub(crate) struct Task {
    open: Open,
    curvatures: Vec<f64>,
    working: Working,
    /// Buffers of lists, one a thread.
    lists: Vec<Lists>,
    /// What data on disk takes of memory.
    pub(crate) budget: Option<Budget>,
    /// Columns whose gradients were computed, and blocks visited, since the start.
    pub(crate) columns_computed: usize,
    /// Orders, blocks visited and products since the start.
    pub(crate) rounds: u64,
    /// Time spent computing since the last `Measure`.
    pub(crate) busy: Duration,
}

/// Runs orders on a worker's rows.
pub(crate) struct Run<'a> {
    pub(crate) node: &'a mut WorkerNode,
    pub(crate) data: &'a Data,
    pub(crate) state: &'a mut State,
    pub(crate) task: &'a mut Task,
}

impl Task {
    /// Creates the tables, or finds them.
    pub(crate) fn new(
        node: &mut WorkerNode,
        tables: &Tables,
        budget: Option<Budget>,
    ) -> caravan_kv::Result<Task> {
        Ok(Task {
            open: tables.create(&mut node.worker)?,
            curvatures: Vec::new(),
            working: Working::default(),
            lists: Vec::new(),
            budget,
            columns_computed: 0,
            rounds: 0,
            busy: Duration::ZERO,
        })
    }

    /// The method's tables.
    pub(crate) fn tables(&self) -> [caravan_kv::Table; 2] {
        [self.open.scores, self.open.blocks]
    }
}

impl Run<'_> {
    /// Runs an order; `Dual`, `Losses` and `Sweep` are answered with sums.
    pub(crate) fn run(&mut self, order: Order) -> caravan_kv::Result<Vec<Whole>> {
        self.task.rounds += match &order {
            Order::Sweep { blocks, .. } => blocks.len() as u64,
            _ => 1,
        };
        match order {
            Order::Measure { clock, softness, scales } => self.measure(clock, softness, scales)?,
            Order::Dual { positive, negative } => return self.dual(positive, negative),
            Order::Plan { blocks, free, scale, largest, units } => {
                self.plan(blocks, free, (scale, largest), units)?;
            }
            Order::Sweep { first, blocks } => {
                self.sweep(first, &blocks)?;
                return Ok(vec![self.task.working.strain()]);
            }
            Order::Multiply { first } => self.multiply(first)?,
            Order::Move { clock } => self.follow(clock)?,
            Order::Losses { shares } => return self.losses(&shares),
            Order::Take { share } => self.take(share)?,
        }
        Ok(Vec::new())
    }

    /// Records computation since `began`, by the van's clock; a simulated van is charged for it.
    fn spent(&mut self, began: Duration, cost: Duration) -> caravan_kv::Result<()> {
        self.node.worker.charge(cost)?;
        self.task.busy += self.node.worker.now() - began;
        Ok(())
    }

    fn measure(&mut self, clock: u64, softness: f64, scales: [Scale; 2]) -> caravan_kv::Result<()> {
        self.task.busy = Duration::ZERO;
        self.task.working = Working::default();
        let began = self.node.worker.now();
        let labels = self.state.labels();
        let rows = labels.iter().zip(self.state.margins());
        self.task.curvatures =
            rows.map(|(label, margin)| curvature(label.abs(), margin, softness)).collect();
        let columns = &self.data.columns;
        let sums = self.sums_of_all(scales).map_err(caravan_kv::Error::Config)?;
        self.task.columns_computed += sums.len();
        self.spent(began, cost::gradient(columns, 0..sums.len()))?;
        let keys: Vec<u64> = columns.keys().iter().collect();
        let lengths = vec![2; keys.len()];
        let worker = &mut self.node.worker;
        worker.set_clock(clock);
        let values = sums.as_flattened();
        let pushed = worker.push_varying(self.task.open.scores, &keys, &lengths, values)?;
        worker.wait(pushed).map(drop)
    }

    /// The sums of gradient and curvature of all columns.
    fn sums_of_all(&mut self, scales: [Scale; 2]) -> Result<Vec<[i64; 2]>, String> {
        let Run { data, state, task, .. } = self;
        let gradients = |rows: Range<usize>| -> Vec<[f64; 2]> {
            let pulls = state.pulls(rows.clone());
            pulls.zip(&task.curvatures[rows]).map(|(pull, curvature)| [pull, *curvature]).collect()
        };
        let Some(disk) = &data.disk else {
            let rows = gradients(0..state.labels().len());
            return Ok(sums(&data.columns, &rows, scales, &data.pool));
        };
        let bytes = disk.sums_bytes(&data.pool);
        task.budget.iter_mut().try_for_each(|budget| budget.borrow("sums of columns", bytes))?;
        disk.sums(gradients, scales, &data.pool)
    }

    fn dual(&mut self, positive: f64, negative: f64) -> caravan_kv::Result<Vec<Whole>> {
        let began = self.node.worker.now();
        let mut sums = vec![Whole::default(); 3];
        for (label, margin) in self.state.labels().iter().zip(self.state.margins()) {
            let (share, of_label) = if *label > 0.0 { (positive, 1) } else { (negative, 2) };
            let wrong = share * wrong_probability(margin);
            sums[0].add(label.abs() * entropy(wrong));
            sums[of_label].add(label.abs() * wrong);
        }
        self.spent(began, cost::loss(self.state.labels().len()))?;
        Ok(sums)
    }

    fn plan(
        &mut self,
        blocks: usize,
        free: Option<u64>,
        range: (Scale, f64),
        units: Units,
    ) -> caravan_kv::Result<()> {
        let threads = self.node.worker.info().servers();
        let rows = rows(Kind::Plan, threads, 0..blocks);
        let planned = self.pull(NOW, &rows)?;
        let began = self.node.worker.now();
        let keys = self.data.keys();
        let mut all = vec![Vec::new(); blocks];
        for ((_, block), row) in rows.iter().zip(planned) {
            let column = |&[key, weight, curvature]: &[i64; 3]| Planned {
                column: keys.find(key as u64).map(|j| j as u32),
                weight: f64::from_bits(weight as u64),
                curvature: f64::from_bits(curvature as u64),
                is_free: free == Some(key as u64),
            };
            all[*block] = row.as_chunks::<3>().0.iter().map(column).collect();
        }
        self.gather(&all, units != Units::Own, range).map_err(caravan_kv::Error::Config)?;
        self.spent(began, Duration::ZERO)?;
        let blocks: Vec<usize> = (0..blocks).collect();
        let mut pushed = Vec::new();
        for blocks in blocks.chunks(self.data.pool.threads()) {
            let began = self.node.worker.now();
            let Task { working, lists, .. } = &mut *self.task;
            let parts = grams(working, blocks, units, lists, &self.data.pool);
            let nonzeros = blocks
                .iter()
                .map(|&block| working.block(block).map(|k| working.entries(k)).sum::<usize>());
            let cost = cost::update_of(nonzeros.sum());
            self.spent(began, cost)?;
            // The servers add them up while the next ones are computed.
            for pushed in pushed.drain(..) {
                self.node.worker.wait(pushed)?;
            }
            for (block, part) in blocks.iter().zip(&parts) {
                let row = [(Kind::Gram.key(*block, threads), *block)];
                pushed.push(self.push(NOW, &row, |_| part)?);
            }
        }
        pushed.into_iter().try_for_each(|pushed| self.node.worker.wait(pushed).map(drop))
    }

    /// Gathers the columns of the working set.
    fn gather(
        &mut self,
        all: &[Vec<Planned>],
        ones: bool,
        (scale, largest): (Scale, f64),
    ) -> Result<(), String> {
        let Run { data, state, task, .. } = self;
        let wanted: Vec<Option<u32>> = all.iter().flatten().map(|planned| planned.column).collect();
        if let (Some(disk), Some(budget)) = (&data.disk, &mut task.budget) {
            let entries = wanted.iter().flatten().map(|&j| disk.entries(j as usize)).sum();
            let threads = data.pool.threads();
            let bytes = Working::bytes(state.labels().len(), wanted.len(), entries, ones, threads);
            let what = format!("a working set of {} columns", wanted.len());
            budget.borrow(&what, bytes + disk.block_bytes())?;
        }
        let pulls = state.pulls(0..state.labels().len()).collect();
        let mut working = Working::new(all, ones, pulls, &task.curvatures, scale, largest);
        data.for_each_part(&wanted, |rows, columns, at| working.gather(rows.len(), columns, at))?;
        task.working = working;
        Ok(())
    }

    fn sweep(&mut self, first: u64, blocks: &[usize]) -> caravan_kv::Result<()> {
        let threads = self.node.worker.info().servers();
        let began = self.node.worker.now();
        self.task.working.derive_gradients();
        self.spent(began, Duration::ZERO)?;
        for (clock, &block) in (first..).zip(blocks) {
            let columns: Vec<usize> = self.task.working.block(block).collect();
            let part = self.sums(&columns)?;
            let row = [(Kind::Step.key(block, threads), block)];
            let pushed = self.push(clock, &row, |_| &part)?;
            let to = self.pull(clock, &row)?;
            self.node.worker.wait(pushed)?;
            let began = self.node.worker.now();
            let moved = self.go(&columns, &to.concat());
            self.spent(began, cost::update_of(moved))?;
        }
        Ok(())
    }

    fn multiply(&mut self, first: u64) -> caravan_kv::Result<()> {
        let working = &mut self.task.working;
        working.derive_gradients();
        let active_sets: Vec<Vec<usize>> = (0..working.ends.len())
            .map(|block| working.block(block).filter(|&k| working.is_active(k)).collect())
            .collect();
        let threads = self.node.worker.info().servers();
        let active = || (0..active_sets.len()).filter(|&block| !active_sets[block].is_empty());
        let directions = rows(Kind::Direction, threads, active());
        let sums = rows(Kind::Sum, threads, active());
        let summed: Vec<usize> =
            sums.iter().flat_map(|(_, block)| active_sets[*block].clone()).collect();
        for clock in (first..).step_by(2) {
            self.task.rounds += 1;
            let values = self.sums(&summed)?;
            let (keys, lengths) = of_rows(&sums, |block| active_sets[block].len());
            let worker = &mut self.node.worker;
            worker.set_clock(clock);
            let pushed = worker.push_varying(self.task.open.blocks, &keys, &lengths, &values)?;
            let direction = self.pull(clock + 1, &directions)?;
            self.node.worker.wait(pushed)?;
            if direction.iter().all(Vec::is_empty) {
                break;
            }
            let began = self.node.worker.now();
            let shares = direction.concat().into_iter().map(|bits| f64::from_bits(bits as u64));
            let mut all: Vec<(usize, f64)> = summed.iter().copied().zip(shares).collect();
            all.retain(|(_, share)| *share != 0.0);
            // In the order of blocks, however many servers have them: sums within a row round.
            all.sort_unstable_by_key(|(k, _)| *k);
            let Task { working, .. } = &mut *self.task;
            working.multiply(&all, &self.data.pool);
            let nonzeros = all.iter().map(|&(k, _)| working.entries(k)).sum();
            self.spent(began, cost::update_of(nonzeros))?;
        }
        Ok(())
    }

    fn follow(&mut self, clock: u64) -> caravan_kv::Result<()> {
        let blocks = 0..self.task.working.ends.len();
        let directions = rows(Kind::Direction, self.node.worker.info().servers(), blocks);
        let to = self.pull(clock, &directions)?;
        let began = self.node.worker.now();
        // In the order of blocks, however many servers have them: sums within a row are rounded.
        let mut to: Vec<(usize, Vec<i64>)> =
            directions.iter().map(|(_, block)| *block).zip(to).collect();
        to.sort_unstable_by_key(|(block, _)| *block);
        for (block, to) in to {
            let columns: Vec<usize> = self.task.working.block(block).collect();
            self.go(&columns, &to);
        }
        self.task.working.derive_gradients();
        self.spent(began, Duration::ZERO)
    }

    /// Moves v of some columns to where the bits say; returns the number of their entries.
    fn go(&mut self, columns: &[usize], to: &[i64]) -> usize {
        let to = to.iter().map(|bits| f64::from_bits(*bits as u64));
        self.task.working.go(columns.iter().copied().zip(to), &self.data.pool)
    }

    fn losses(&mut self, shares: &[f64]) -> caravan_kv::Result<Vec<Whole>> {
        let began = self.node.worker.now();
        let sums = shares.iter().map(|&share| self.loss_at(share)).collect();
        self.spent(began, cost::loss(self.state.labels().len() * shares.len()))?;
        Ok(sums)
    }

    fn loss_at(&self, share: f64) -> Whole {
        let rows = self.state.labels().iter().zip(self.state.margins());
        // Without a working set nothing moves.
        let directions = self.task.working.directions().chain(std::iter::repeat(0.0));
        let mut sum = Whole::default();
        for ((label, margin), direction) in rows.zip(directions) {
            sum.add(label.abs() * log_loss(margin + share * label.signum() * direction));
        }
        sum
    }

    fn take(&mut self, share: f64) -> caravan_kv::Result<()> {
        let began = self.node.worker.now();
        let working = &self.task.working;
        let columns = working.columns.iter().zip(working.from.iter().zip(&working.iterate));
        let to = columns.filter_map(|(column, (from, to))| {
            let weight = if share == 1.0 { *to } else { from + share * (to - from) };
            Some((column.map(|j| j as usize)?, weight))
        });
        self.state.shift(working.directions(), share, to);
        self.spent(began, Duration::ZERO)
    }

    /// The sums of some columns over rows.
    fn sums(&mut self, columns: &[usize]) -> caravan_kv::Result<Vec<i64>> {
        let began = self.node.worker.now();
        let working = &self.task.working;
        let sums = working.sums(columns, &self.data.pool);
        let here = columns.iter().filter(|&&k| working.columns[k].is_some()).count();
        let nonzeros = columns.iter().map(|&k| working.entries(k)).sum();
        self.spent(began, cost::gradient_of(here, nonzeros))?;
        Ok(sums)
    }

    fn push<'v>(
        &mut self,
        clock: u64,
        rows: &[(u64, usize)],
        values: impl Fn(usize) -> &'v Vec<i64>,
    ) -> caravan_kv::Result<caravan_kv::Timestamp> {
        let (keys, lengths) = of_rows(rows, |block| values(block).len());
        let all: Vec<i64> = rows.iter().flat_map(|(_, block)| values(*block)).copied().collect();
        self.node.worker.set_clock(clock);
        self.node.worker.push_varying(self.task.open.blocks, &keys, &lengths, &all)
    }

    fn pull(&mut self, clock: u64, rows: &[(u64, usize)]) -> caravan_kv::Result<Vec<Vec<i64>>> {
        pull(&mut self.node.worker, self.task.open.blocks, clock, rows)
    }
}

/// This worker's parts of the Hessians of some blocks, each on a thread.
fn grams(
    working: &Working,
    blocks: &[usize],
    units: Units,
    lists: &mut Vec<Lists>,
    pool: &Pool,
) -> Vec<Vec<i64>> {
    let mut parts = vec![Vec::new(); blocks.len()];
    lists.resize_with(blocks.len().max(lists.len()), Lists::default);
    pool.share(parts.iter_mut().zip(blocks).zip(lists), |((part, &block), lists)| {
        *part = working.gram(block, units, lists);
    });
    parts
}

/// The clock of requests that wait for no task.
pub(super) const NOW: u64 = 0;

/// The rows of a kind of some blocks with their blocks, sorted by key.
pub(super) fn rows(
    kind: Kind,
    threads: usize,
    blocks: impl Iterator<Item = usize>,
) -> Vec<(u64, usize)> {
    let mut rows: Vec<_> = blocks.map(|block| (kind.key(block, threads), block)).collect();
    rows.sort_unstable();
    rows
}

/// Keys and lengths of rows.
pub(super) fn of_rows(
    rows: &[(u64, usize)],
    length: impl Fn(usize) -> usize,
) -> (Vec<u64>, Vec<u32>) {
    rows.iter().map(|&(key, block)| (key, length(block) as u32)).unzip()
}

/// Pulls rows of task `clock`.
pub(super) fn pull(
    worker: &mut caravan_kv::Worker,
    table: caravan_kv::Table,
    clock: u64,
    rows: &[(u64, usize)],
) -> caravan_kv::Result<Vec<Vec<i64>>> {
    let keys: Vec<u64> = rows.iter().map(|(key, _)| *key).collect();
    worker.set_clock(clock);
    let pulled = worker.pull(table, &keys)?;
    let answer = worker.wait(pulled)?;
    let mut values = answer.values::<i64>().iter().copied();
    let row = |&length: &u32| values.by_ref().take(length as usize).collect();
    Ok(answer.lengths.iter().map(row).collect())
}

/// D_i of a row of weight `weight`.
fn curvature(weight: f64, margin: f64, softness: f64) -> f64 {
    let size = margin.abs();
    let wrong = wrong_probability(size);
    let newton = wrong * (1.0 - wrong);
    let bound = if size < 1e-4 { 0.25 } else { (1.0 - 2.0 * wrong) / (2.0 * size) };
    weight * (newton + softness * (bound - newton)).max(super::step::CURVATURE_MIN)
}

/// -b log b - (1 - b) log(1 - b).
fn entropy(b: f64) -> f64 {
    let term = |b: f64| if b > 0.0 { -b * b.ln() } else { 0.0 };
    let rest = if b < 1.0 { -(1.0 - b) * (-b).ln_1p() } else { 0.0 };
    term(b) + rest
}

/// Σ over rows of p x and of D x² of all columns, as integers, given p and D of each row.
fn sums(columns: &Columns, rows: &[[f64; 2]], scales: [Scale; 2], pool: &Pool) -> Vec<[i64; 2]> {
    let mut sums = vec![[0_i64; 2]; columns.columns()];
    let threads = pool.threads_for(columns.nonzeros());
    let end = |part: usize| columns.column_of(columns.nonzeros() / threads * part);
    let mut cuts: Vec<usize> = (1..threads).map(end).collect();
    cuts.push(columns.columns());
    let mut rest = &mut sums[..];
    let mut begin = 0;
    let parts = cuts.into_iter().map(|end| {
        let (own, others) = std::mem::take(&mut rest).split_at_mut(end - begin);
        rest = others;
        (std::mem::replace(&mut begin, end), own)
    });
    let scaled =
        rows.iter().map(|[pull, curvature]| [scales[0].up * pull, scales[1].up * curvature]);
    let scaled: Vec<[f64; 2]> = scaled.collect();
    let ones: Vec<[i64; 2]> = match columns.has_values() {
        true => Vec::new(),
        false => scaled.iter().map(|row| row.map(integer)).collect(),
    };
    pool.share(parts, |(first, sums)| {
        for (j, sum) in (first..).zip(sums) {
            let (rows, values) = columns.column(j);
            match values {
                None => {
                    for &row in rows {
                        let [g, h] = ones[row as usize];
                        *sum = [sum[0].wrapping_add(g), sum[1].wrapping_add(h)];
                    }
                }
                Some(values) => {
                    for (&row, &x) in rows.iter().zip(values) {
                        let [g, h] = scaled[row as usize];
                        let parts = [integer(g * x), integer(h * x * x)];
                        *sum = [sum[0].wrapping_add(parts[0]), sum[1].wrapping_add(parts[1])];
                    }
                }
            }
        }
    });
    sums
}
