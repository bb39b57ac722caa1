//! The worker's side of DBPG on a cluster: runs passes over its share of the data for the driver. How that is loaded is
//! `load`'s business.
//!
//! One task a block: gradient, push, pull. The push and the pull leave together; the pull comes back when the server has
//! every worker's push. A task begins when the pulls of all tasks more than τ before it have been applied.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use caravan_kv::{App, Table, TableSpec, Timestamp, WorkerNode};
use serde::{Deserialize, Serialize};

use super::blocks::KeyBlock;
use super::cost;
use super::filters::{Bytes, Counted, Lossy, Sent};
use super::gradient::{Columns, Curvature, TrustRegion, Worker};
use super::hessian::{self, Wire};
use super::job::Straggle;
use super::load::{Data, Dropped, Loading};
use super::proximal;
use super::shard::Options;
use super::support::Support;

/// Name under which workers run this app.
pub const APP: &str = "dbpg";

/// What the driver tells the workers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Read your share of these files, and compute on it with so many threads. Answered with [`Loaded`].
    Load { files: Vec<PathBuf>, threads: usize, cache: Option<PathBuf>, positive_weight: f64 },
    /// Push how often you have each column: step 1 of [`tail`].
    Count { table: TableSpec },
    /// Drop the columns that all have so often, or less: step 2. Answered with [`Loaded`].
    Frequent { frequency: u8 },
    /// Name the columns whose bounds are above `share`: step 1 of [`screen`].
    Name { table: TableSpec, share: f64 },
    /// Drop the columns that nobody has named, and add your bounds to the others: step 2.
    Add,
    /// Drop the columns that can't leave 0 at this λ: step 3. Answered with [`Loaded`].
    Screen { lambda: f64 },
    /// Create the tables and name your keys, with a column of ones at `intercept`.
    Begin {
        table: TableSpec,
        polish: Option<TableSpec>,
        curvature: Curvature,
        intercept: Option<u64>,
        straggle: Option<Straggle>,
    },
    /// Begin with these weights, where you hold their keys. Sorted by key.
    Start { weights: Vec<(u64, f64)> },
    /// Run the tasks numbered from `first`, in the order of `blocks`. Answered with [`Passed`].
    Pass {
        first: u64,
        blocks: Vec<usize>,
        delay: u64,
        exact: bool,
        reset: bool,
        lossy: Option<Lossy>,
    },
    /// Between passes: push your part of the Hessian and gradient on these columns.
    Gram { support: Vec<u64>, wire: Wire },
    /// Say what your loss is on the way to these weights of the support. Answered with a loss for each of `newton::SHARES`.
    Losses { weights: Vec<f64> },
    /// Take these weights of the support.
    Set { weights: Vec<f64> },
}

/// What a worker has to say after a pass.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Passed {
    pub(crate) loss: f64,
    pub(crate) busy_seconds: f64,
    pub(crate) columns_computed: usize,
    /// Since the start.
    pub(crate) counted: Counted,
    pub(crate) peak_rss_mib: f64,
    pub(crate) process: u32,
}

/// One worker.
#[derive(Default)]
pub struct Dbpg {
    loading: Option<Loading>,
    data: Option<Data>,
    training: Option<Training>,
}

struct Training {
    table: Table,
    /// Carries the polish's numbers to the driver.
    polish: Option<Table>,
    /// The columns of the polish under way.
    support: Support,
    state: Worker,
    curvature: Curvature,
    straggle: Option<Straggle>,
    /// Positions of each block's keys among this worker's.
    blocks: Vec<Range<usize>>,
    /// Tasks whose pulls have not been applied, in order.
    pending: VecDeque<Pending>,
    busy: Duration,
    columns_computed: usize,
    /// Whether requests name all columns of a block.
    names_all: bool,
    /// Whether what is pushed is rounded, and so made fit for that.
    rounds: bool,
    /// What was sent before, while changes are.
    sent: Sent,
    counted: Counted,
    dropped: Dropped,
    // Reused from task to task.
    gradient: Vec<f64>,
    curvatures: Vec<f64>,
    keys: Vec<u64>,
    lengths: Vec<u32>,
    values: Vec<f64>,
}

impl Training {
    /// Leaves what task number `task` is to push for the columns `own` in `keys`, `lengths` and `values`, and returns the
    /// columns: those that filters leave in, or `all`, with nothing for the others.
    fn gradient(
        &mut self,
        columns: &Columns<'_>,
        (task, own): (u64, Range<usize>),
        (all, lossy): (bool, &Lossy),
    ) -> Vec<u32> {
        let Training { state, gradient, curvatures, keys, lengths, values, rounds, sent, .. } =
            self;
        gradient.resize(own.len(), 0.0);
        curvatures.resize(own.len(), 0.0);
        self.columns_computed +=
            state.gradient(columns, own.clone(), self.curvature, gradient, curvatures);
        keys.clear();
        lengths.clear();
        values.clear();
        let mut asked = Vec::new();
        let (mut count, skips) = ([own.len(), 0, 0, 0], lossy.skips(task));
        for ((j, &g), &u) in own.zip(&*gradient).zip(&*curvatures) {
            let active = state.active()[j];
            let takes_part = active && !skips(columns.keys[j]);
            let numbers = match takes_part {
                true if lossy.sends_changes() => {
                    sent.change(lossy, (j, columns.keys.len()), [g, u])
                }
                true => Some([g, if *rounds { proximal::logarithm(u) } else { u }]),
                false => None,
            };
            if takes_part || all {
                asked.push(j as u32);
                keys.push(columns.keys[j]);
                lengths.push(if numbers.is_some() { 2 } else { 0 });
            }
            values.extend(numbers.into_iter().flatten());
            let stages = [active, takes_part, numbers.is_some()];
            count[1..].iter_mut().zip(stages).for_each(|(count, is)| *count += usize::from(is));
        }
        self.counted.block(all, count);
        asked
    }
}

/// The polish between passes.
impl Training {
    fn gram(
        &mut self,
        node: &mut WorkerNode,
        data: &Data,
        keys: &[u64],
        wire: Wire,
    ) -> Result<(), String> {
        let table = self.polish.ok_or("this job runs without a polish")?;
        if !self.pending.is_empty() {
            return Err(format!("{} pulls are not applied yet", self.pending.len()));
        }
        self.support = Support::new(&data.columns(), self.state.labels().len(), keys);
        let pulls: Vec<f64> = self.state.pulls().collect();
        let gram = self.support.gram(data.columns(), (self.state.labels(), pulls), &data.pool);
        let numbers = (keys.len(), gram, wire);
        hessian::send(&mut node.worker, table, (node.rank, node.workers), numbers)
            .map_err(|error| error.to_string())
    }

    fn losses(&self, weights: &[f64]) -> Result<Vec<f64>, String> {
        self.check(weights)?;
        let held = self.support.columns().iter().zip(weights);
        let own = self.state.weights();
        let step: Vec<f64> = held.map(|(j, weight)| j.map_or(0.0, |j| weight - own[j])).collect();
        Ok(self.support.losses(self.state.labels(), self.state.margins(), &step))
    }

    fn start(&mut self, data: &Data, weights: &[(u64, f64)]) {
        let keys = data.keys();
        let held = weights
            .iter()
            .filter_map(|&(key, weight)| keys.binary_search(&key).ok().zip(Some((weight, true))));
        self.state.set(&data.columns(), held);
    }

    fn set(&mut self, data: &Data, weights: &[f64]) -> Result<(), String> {
        self.check(weights)?;
        let held = self.support.columns().iter().zip(weights);
        let to = held.filter_map(|(&j, &weight)| j.zip(Some((weight, true))));
        self.state.set(&data.columns(), to);
        Ok(())
    }

    fn check(&self, weights: &[f64]) -> Result<(), String> {
        let n = self.support.len();
        match weights.len() {
            found if found == n => Ok(()),
            found => Err(format!("the support has {n} weights, not {found}")),
        }
    }
}

struct Pending {
    task: u64,
    lossy: Lossy,
    /// Columns.
    asked: Vec<u32>,
    push: Timestamp,
    pull: Timestamp,
    /// Weight and filter bit of each.
    answer: Option<Vec<(f64, bool)>>,
}

impl Pending {
    /// What has come: columns, each with its weight and filter bit.
    fn updates(&self) -> impl Iterator<Item = (usize, (f64, bool))> {
        let answer = self.answer.iter().flatten().copied();
        self.asked.iter().map(|&j| j as usize).zip(answer)
    }
}

impl App for Dbpg {
    fn run(
        &mut self,
        node: &mut WorkerNode,
        body: serde_json::Value,
    ) -> Result<serde_json::Value, String> {
        let order = serde_json::from_value(body).map_err(|error| error.to_string())?;
        let reply = match order {
            Order::Load { files, threads, cache, positive_weight } => {
                let how = (threads, cache.as_deref());
                (self.data, self.training) = (None, None);
                let loading =
                    Loading::read((node.rank, node.workers), &files, how, positive_weight)?;
                serde_json::to_value(self.loading.insert(loading).loaded())
            }
            Order::Count { table } => serde_json::to_value(self.loading()?.count(node, &table)?),
            Order::Frequent { frequency } => {
                serde_json::to_value(self.loading()?.frequent(node, frequency)?)
            }
            Order::Name { table, share } => {
                serde_json::to_value(self.loading()?.name(node, &table, share)?)
            }
            Order::Add => serde_json::to_value(self.loading()?.add(node)?),
            Order::Screen { lambda } => serde_json::to_value(self.loading()?.screen(node, lambda)?),
            Order::Begin { table, polish, curvature, intercept, straggle } => {
                let loading = self.loading.take();
                let loading = loading.ok_or("there is nothing to train on: load first")?;
                let loaded = loading.into_data(intercept)?;
                let tables = (&table, polish.as_ref());
                serde_json::to_value(self.begin(node, loaded, tables, (curvature, straggle))?)
            }
            Order::Start { weights } => {
                let (data, training) = self.training()?;
                training.start(data, &weights);
                Ok(serde_json::Value::Null)
            }
            Order::Gram { support, wire } => {
                let (data, training) = self.training()?;
                serde_json::to_value(training.gram(node, data, &support, wire)?)
            }
            Order::Losses { weights } => {
                let (_, training) = self.training()?;
                serde_json::to_value(training.losses(&weights)?)
            }
            Order::Set { weights } => {
                let (data, training) = self.training()?;
                serde_json::to_value(training.set(data, &weights)?)
            }
            Order::Pass { first, blocks, delay, exact, reset, lossy } => {
                let (data, training) = self.training()?;
                let suspended = node.worker.set_lossless(training.table, lossy.is_none());
                suspended.map_err(|error| error.to_string())?;
                if let Some(block) = blocks.iter().find(|&&block| block >= training.blocks.len()) {
                    return Err(format!(
                        "there is no block {block}, only {}",
                        training.blocks.len()
                    ));
                }
                let lossy = lossy.unwrap_or(Lossy::NONE);
                let mut pass = Pass { node, data, training, delay, exact, lossy };
                serde_json::to_value(
                    pass.run(first, &blocks, reset).map_err(|error| error.to_string())?,
                )
            }
        };
        reply.map_err(|error| error.to_string())
    }
}

impl Dbpg {
    fn training(&mut self) -> Result<(&Data, &mut Training), String> {
        let both = self.data.as_ref().zip(self.training.as_mut());
        both.ok_or_else(|| "there is nothing to train on: load and begin first".to_owned())
    }

    fn loading(&mut self) -> Result<&mut Loading, String> {
        self.loading.as_mut().ok_or_else(|| "there is nothing to drop: load first".to_owned())
    }

    fn begin(
        &mut self,
        node: &mut WorkerNode,
        (data, labels): (Data, Vec<f64>),
        (spec, polish): (&TableSpec, Option<&TableSpec>),
        (curvature, straggle): (Curvature, Option<Straggle>),
    ) -> Result<(), String> {
        let options: Options =
            serde_json::from_value(spec.options.clone()).map_err(|error| error.to_string())?;
        let keys = data.keys();
        let announce = |node: &mut WorkerNode| -> caravan_kv::Result<(Table, Option<Table>)> {
            let table = node.worker.create_table(spec)?;
            let polish = polish.map(|spec| node.worker.create_table(spec)).transpose()?;
            node.worker.set_clock(0);
            let named = node.worker.push_varying::<f64>(table, keys, &vec![0; keys.len()], &[])?;
            node.worker.wait(named)?;
            Ok((table, polish))
        };
        let (table, polish) = announce(node).map_err(|error| error.to_string())?;
        let trust = TrustRegion { init: options.delta_init, max: options.delta_max };
        let blocks =
            options.blocks.iter().map(|&(first, last)| KeyBlock { first, last }.locate(keys));
        self.training = Some(Training {
            table,
            polish,
            support: Support::default(),
            state: Worker::with_threads(labels, keys.len(), trust, data.pool.clone()),
            curvature,
            straggle,
            blocks: blocks.collect(),
            pending: VecDeque::new(),
            busy: Duration::ZERO,
            columns_computed: 0,
            names_all: spec.filters.key_cache,
            rounds: options.rounds,
            sent: Sent::default(),
            counted: Counted { tables: data.dropped.tables, ..Counted::default() },
            dropped: data.dropped,
            gradient: Vec::new(),
            curvatures: Vec::new(),
            keys: Vec::new(),
            lengths: Vec::new(),
            values: Vec::new(),
        });
        self.data = Some(data);
        Ok(())
    }
}

/// One pass under way.
struct Pass<'a> {
    node: &'a mut WorkerNode,
    data: &'a Data,
    training: &'a mut Training,
    delay: u64,
    exact: bool,
    lossy: Lossy,
}

impl Pass<'_> {
    fn run(&mut self, first: u64, blocks: &[usize], reset: bool) -> caravan_kv::Result<Passed> {
        self.training.support = Support::default(); // the polish is over
        if reset {
            self.reset();
        }
        self.training.busy = Duration::ZERO;
        for (task, &block) in (first..).zip(blocks) {
            self.apply_through(task.saturating_sub(self.delay + 1))?;
            if !self.exact {
                self.apply_what_has_come()?;
            }
            self.compute(task, block)?;
        }
        let loss = self.loss()?;
        let is_whole = blocks.len() == self.training.blocks.len();
        let counted = self.counted(is_whole)?;
        let (process, peak_rss_mib) = crate::memory::process();
        Ok(Passed {
            loss,
            busy_seconds: self.training.busy.as_secs_f64(),
            columns_computed: self.training.columns_computed,
            counted,
            peak_rss_mib,
            process,
        })
    }

    /// What has been counted since the start, after a pass over all blocks or some.
    fn counted(&mut self, is_whole: bool) -> caravan_kv::Result<Counted> {
        let Training { table, polish, counted, dropped, .. } = &mut *self.training;
        if is_whole {
            counted.dropped([dropped.tail, dropped.screened]);
        }
        let worker = &self.node.worker;
        let tables = polish.iter().chain([&*table]).try_fold(counted.tables, |sum, table| {
            worker.traffic(*table).map(|traffic| sum.plus(&traffic))
        })?;
        let counters = worker.counters();
        let frames = Bytes { pushed: counters.bytes_sent, pulled: counters.bytes_received };
        Ok(Counted { tables, frames, ..*counted })
    }

    /// Puts every column back in. The reset overtakes pulls under way: their weights hold, their filter bits do not.
    fn reset(&mut self) {
        self.training.state.reset_filter();
        for answer in self.training.pending.iter_mut().filter_map(|pending| pending.answer.as_mut())
        {
            answer.iter_mut().for_each(|(_, active)| *active = true);
        }
        if self.training.pending.is_empty() {
            self.training.state.rederive_margins(&self.data.columns());
        }
    }

    /// Computes, pushes and pulls one block.
    fn compute(&mut self, task: u64, block: usize) -> caravan_kv::Result<()> {
        let own = self.training.blocks[block].clone();
        if own.is_empty() {
            return Ok(());
        }
        let began = self.node.worker.now();
        let all = self.exact || self.training.names_all;
        let columns = self.data.columns();
        let asked = self.training.gradient(&columns, (task, own.clone()), (all, &self.lossy));
        let computed = own.filter(|&j| self.training.state.active()[j]);
        let pause = self.pause(task);
        self.spent(began, cost::gradient(&columns, computed) + pause)?;
        if asked.is_empty() {
            return Ok(());
        }
        let Training { table, keys, lengths, values, pending, .. } = &mut *self.training;
        let worker = &mut self.node.worker;
        worker.set_clock(task);
        let push = worker.push_varying(*table, keys, lengths, values)?;
        let pull = worker.pull(*table, keys)?;
        let lossy = self.lossy;
        pending.push_back(Pending { task, lossy, asked, push, pull, answer: None });
        Ok(())
    }

    /// Makes the pause that the job has for this worker in a task, if any; where time is simulated it is only charged.
    fn pause(&self, task: u64) -> Duration {
        let straggle = self.training.straggle;
        let pause = straggle.map_or(Duration::ZERO, |straggle| straggle.of(self.node.rank, task));
        if !pause.is_zero() && !caravan_kv::node::is_simulated() {
            std::thread::sleep(pause);
        }
        pause
    }

    /// Applies the pulls of all tasks up to number `task`.
    fn apply_through(&mut self, task: u64) -> caravan_kv::Result<()> {
        while let Some(mut pending) =
            self.training.pending.pop_front_if(|pending| pending.task <= task)
        {
            self.receive(&mut pending)?;
            self.apply(&pending)?;
        }
        Ok(())
    }

    /// Applies the pulls that are there already, in order.
    fn apply_what_has_come(&mut self) -> caravan_kv::Result<()> {
        self.node.worker.poll()?;
        while let Some(first) = self.training.pending.front() {
            if !self.node.worker.is_done(first.pull)? {
                break;
            }
            let task = first.task;
            self.apply_through(task)?;
        }
        Ok(())
    }

    /// Waits for a task's answer.
    fn receive(&mut self, pending: &mut Pending) -> caravan_kv::Result<()> {
        if pending.answer.is_some() {
            return Ok(());
        }
        self.node.worker.wait(pending.push)?;
        let answer = self.node.worker.wait(pending.pull)?;
        let mut pulled = answer.values::<f64>().iter().copied();
        let of = |&length: &u32| match length {
            0 => (0.0, false),
            _ => (pulled.next().unwrap_or(0.0), true),
        };
        let skips = pending.lossy.skips(pending.task);
        let keys = self.data.keys();
        let both = pending.asked.iter().copied().zip(answer.lengths.iter().map(of));
        let kept = both.filter(|&(j, _)| !skips(keys[j as usize]));
        let (asked, answer) = kept.unzip();
        (pending.asked, pending.answer) = (asked, Some(answer));
        Ok(())
    }

    fn apply(&mut self, pending: &Pending) -> caravan_kv::Result<()> {
        let (began, columns) = (self.node.worker.now(), self.data.columns());
        let held = self.training.state.weights();
        let changes = pending.updates().filter(|&(j, (weight, _))| weight != held[j]);
        let cost = cost::update(&columns, changes.map(|(j, _)| j));
        self.training.state.set(&columns, pending.updates());
        self.spent(began, cost)
    }

    /// Enters computing that began at `began`, by the van's clock; a simulated one is told that it takes `cost`.
    fn spent(&mut self, began: Duration, cost: Duration) -> caravan_kv::Result<()> {
        let worker = &mut self.node.worker;
        worker.charge(cost)?;
        self.training.busy += worker.now() - began;
        Ok(())
    }

    /// The loss at the servers' weights: all answers of the pass have come. With an exact delay they are not yet applied to
    /// the state that the next pass begins with.
    fn loss(&mut self) -> caravan_kv::Result<f64> {
        let mut pending = std::mem::take(&mut self.training.pending);
        for pending in &mut pending {
            self.receive(pending)?;
        }
        self.training.pending = pending;
        if !self.exact {
            self.apply_through(u64::MAX)?;
        }
        let began = self.node.worker.now();
        let mut loss = self.training.state.loss();
        if !self.training.pending.is_empty() {
            let mut ahead = self.training.state.clone();
            for pending in &self.training.pending {
                ahead.set(&self.data.columns(), pending.updates());
            }
            loss = ahead.loss();
        }
        self.spent(began, cost::loss(self.training.state.labels().len()))?;
        Ok(loss)
    }
}
