//! The worker's side of DBPG on a cluster: loads its share of the data, then runs passes for the driver.
//!
//! One task a block: gradient, push, pull. The push and the pull leave together; the pull comes back when the server has
//! every worker's push. A task begins when the pulls of all tasks more than τ before it have been applied.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caravan_kv::error::with_sources;
use caravan_kv::filter::Traffic;
use caravan_kv::{App, Table, TableSpec, Timestamp, WorkerNode};
use serde::{Deserialize, Serialize};

use super::blocks::KeyBlock;
use super::cost;
use super::filters::{Bytes, Counted, Lossy, Sent};
use super::gradient::{Columns, Curvature, TrustRegion, Worker};
use super::newton::Support;
use super::polish::{self, Wire};
use super::pool::Pool;
use super::proximal;
use super::screen;
use super::shard::Options;
use super::tail;
use crate::data;

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

/// A worker's share of the data.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) nonzeros: u64,
    pub(crate) keys: Option<(u64, u64)>,
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
    data: Option<Data>,
    /// Between the steps of [`tail`].
    counted: Option<Table>,
    screening: Option<Screening>,
    dropped: Dropped,
    training: Option<Training>,
}

/// Columns that were dropped before training, and what that took.
#[derive(Clone, Copy, Default)]
struct Dropped {
    tail: u64,
    screened: u64,
    tables: Traffic,
}

/// Between the steps of [`screen`].
struct Screening {
    table: Table,
    /// Of this worker's columns.
    bounds: Vec<[f32; 2]>,
    /// Above it they have been pushed.
    share: f64,
    /// How many columns there were.
    columns: u64,
}

impl Dropped {
    /// Enters what the filters of a table did, which is not used again.
    fn passed(&mut self, node: &WorkerNode, table: Table) -> Result<(), String> {
        let traffic = node.worker.traffic(table).map_err(|error| error.to_string())?;
        self.tables = self.tables.plus(&traffic);
        Ok(())
    }
}

const NOT_LOADED: &str = "there is nothing to drop: load first";
const NOT_COUNTED: &str = "columns are dropped for being rare after they have been counted";
const NOT_NAMED: &str = "columns are screened after they have been named";

/// Pushes the bounds of those columns for which `wanted` holds.
fn push_bounds(
    node: &mut WorkerNode,
    table: Table,
    columns: &data::Columns,
    bounds: &[[f32; 2]],
    wanted: impl Fn([f32; 2]) -> bool,
) -> caravan_kv::Result<()> {
    let pairs = columns.keys.iter().zip(bounds).filter(|(_, bounds)| wanted(**bounds));
    let (keys, bounds): (Vec<u64>, Vec<[f32; 2]>) = pairs.unzip();
    let pushed = node.worker.push(table, &keys, bounds.as_flattened())?;
    node.worker.wait(pushed).map(drop)
}

struct Data {
    /// Each times the weight of its row: `[rows]`.
    labels: Vec<f64>,
    columns: data::Columns,
    /// What computes on them.
    pool: Pool,
}

impl Data {
    fn columns(&self) -> Columns<'_> {
        let data::Columns { keys, starts, rows, values } = &self.columns;
        Columns { keys, starts, rows, values: values.as_deref() }
    }

    fn loaded(&self) -> Loaded {
        let data::Columns { keys, rows, .. } = &self.columns;
        Loaded {
            rows: self.labels.len() as u64,
            columns: keys.len() as u64,
            nonzeros: rows.len() as u64,
            keys: keys.first().copied().zip(keys.last().copied()),
        }
    }
}

struct Training {
    table: Table,
    /// Carries the polish's numbers to the driver.
    polish: Option<Table>,
    /// The columns of the polish under way.
    support: Support,
    state: Worker,
    curvature: Curvature,
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
        self.support = Support::new(&data.columns(), data.labels.len(), keys);
        let pulls: Vec<f64> = self.state.pulls().collect();
        let packed = self.support.gram(&data.columns(), (&data.labels, &pulls), &data.pool);
        let numbers = (keys.len(), &packed[..], wire);
        polish::send(&mut node.worker, table, (node.rank, node.workers), numbers)
            .map_err(|error| error.to_string())
    }

    fn losses(&self, data: &Data, weights: &[f64]) -> Result<Vec<f64>, String> {
        self.check(weights)?;
        let held = self.support.columns().iter().zip(weights);
        let own = self.state.weights();
        let step: Vec<f64> = held.map(|(j, weight)| j.map_or(0.0, |j| weight - own[j])).collect();
        Ok(self.support.losses(&data.labels, self.state.margins(), &step))
    }

    fn start(&mut self, data: &Data, weights: &[(u64, f64)]) {
        let keys = &data.columns.keys;
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
                serde_json::to_value(self.load(node, &files, how, positive_weight)?)
            }
            Order::Count { table } => serde_json::to_value(self.count(node, &table)?),
            Order::Frequent { frequency } => serde_json::to_value(self.frequent(node, frequency)?),
            Order::Name { table, share } => serde_json::to_value(self.name(node, &table, share)?),
            Order::Add => serde_json::to_value(self.add(node)?),
            Order::Screen { lambda } => serde_json::to_value(self.screen(node, lambda)?),
            Order::Begin { table, polish, curvature, intercept } => {
                if let (Some(key), Some(data)) = (intercept, self.data.as_mut()) {
                    data.columns.push_ones(key, data.labels.len());
                }
                serde_json::to_value(self.begin(node, &table, polish.as_ref(), curvature)?)
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
                let (data, training) = self.training()?;
                serde_json::to_value(training.losses(data, &weights)?)
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

    fn load(
        &mut self,
        node: &WorkerNode,
        files: &[PathBuf],
        (threads, cache): (usize, Option<&Path>),
        positive_weight: f64,
    ) -> Result<Loaded, String> {
        let text = |error: crate::Error| with_sources(&error);
        let shard = data::Shard::new(node.rank as u32, node.workers as u32).map_err(text)?;
        let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
        let (labels, columns) = data::read_columns(files, shard, threads, cache).map_err(text)?;
        let weighted = |label: i8| if label > 0 { positive_weight } else { -1.0 };
        let labels = labels.into_iter().map(weighted).collect();
        let data = Data { labels, columns, pool: Pool::new(threads) };
        self.training = None;
        self.dropped = Dropped::default();
        Ok(self.data.insert(data).loaded())
    }

    fn count(&mut self, node: &mut WorkerNode, spec: &TableSpec) -> Result<(), String> {
        let Data { columns, .. } = self.data.as_ref().ok_or(NOT_LOADED)?;
        let create = |node: &mut WorkerNode| {
            let table = node.worker.create_table(spec)?;
            tail::count(&mut node.worker, table, columns)?;
            Ok(table)
        };
        let table = create(node).map_err(|error: caravan_kv::Error| error.to_string())?;
        self.counted = Some(table);
        Ok(())
    }

    fn frequent(&mut self, node: &mut WorkerNode, frequency: u8) -> Result<Loaded, String> {
        let data = self.data.as_mut().ok_or(NOT_LOADED)?;
        let table = self.counted.take().ok_or(NOT_COUNTED)?;
        let kept = tail::frequent(&mut node.worker, table, &data.columns, frequency);
        let kept = kept.map_err(|error| error.to_string())?;
        data.columns.retain(|column| kept[column]);
        self.dropped.tail = (kept.len() - data.columns.columns()) as u64;
        self.dropped.passed(node, table)?;
        Ok(data.loaded())
    }

    fn name(&mut self, node: &mut WorkerNode, spec: &TableSpec, share: f64) -> Result<(), String> {
        let Data { labels, columns, .. } = self.data.as_ref().ok_or(NOT_LOADED)?;
        let bounds = screen::bounds(columns, labels);
        let create = |node: &mut WorkerNode| {
            let table = node.worker.create_table(spec)?;
            push_bounds(node, table, columns, &bounds, |bounds| screen::exceeds(bounds, share))?;
            Ok(table)
        };
        let table = create(node).map_err(|error: caravan_kv::Error| error.to_string())?;
        let columns = columns.columns() as u64;
        self.screening = Some(Screening { table, bounds, share, columns });
        Ok(())
    }

    fn add(&mut self, node: &mut WorkerNode) -> Result<(), String> {
        let Data { columns, .. } = self.data.as_mut().ok_or(NOT_LOADED)?;
        let Screening { table, bounds, share, .. } = self.screening.as_mut().ok_or(NOT_NAMED)?;
        let mut exchange = || {
            let body = serde_json::to_vec(&screen::Command::Named)?;
            let asked = node.worker.command(*table, &body)?;
            let named = screen::named(&node.worker.wait(asked)?.replies);
            let mut named = named.into_iter().peekable();
            let kept: Vec<bool> = columns
                .keys
                .iter()
                .map(|key| {
                    while named.next_if(|next| next < key).is_some() {}
                    named.next_if_eq(key).is_some()
                })
                .collect();
            columns.retain(|column| kept[column]);
            let mut kept = kept.into_iter();
            bounds.retain(|_| kept.next().unwrap_or_default());
            push_bounds(node, *table, columns, bounds, |bounds| !screen::exceeds(bounds, *share))
        };
        exchange().map_err(|error: caravan_kv::Error| error.to_string())
    }

    fn screen(&mut self, node: &mut WorkerNode, lambda: f64) -> Result<Loaded, String> {
        let data = self.data.as_mut().ok_or(NOT_LOADED)?;
        let Screening { table, columns, .. } = self.screening.take().ok_or(NOT_NAMED)?;
        let mut receive = || {
            let pulled = node.worker.pull(table, &data.columns.keys)?;
            node.worker.wait(pulled)
        };
        let answer = receive().map_err(|error| error.to_string())?;
        let (sums, _) = answer.values::<f32>().as_chunks::<2>();
        data.columns.retain(|column| screen::exceeds(sums[column], lambda));
        self.dropped.screened = columns - data.columns.columns() as u64;
        self.dropped.passed(node, table)?;
        Ok(data.loaded())
    }

    fn begin(
        &mut self,
        node: &mut WorkerNode,
        spec: &TableSpec,
        polish: Option<&TableSpec>,
        curvature: Curvature,
    ) -> Result<(), String> {
        let data = self.data.as_ref().ok_or("there is nothing to train on: load first")?;
        let options: Options =
            serde_json::from_value(spec.options.clone()).map_err(|error| error.to_string())?;
        let keys = &data.columns.keys;
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
            state: Worker::with_threads(data.labels.clone(), keys.len(), trust, data.pool.clone()),
            curvature,
            blocks: blocks.collect(),
            pending: VecDeque::new(),
            busy: Duration::ZERO,
            columns_computed: 0,
            names_all: spec.filters.key_cache,
            rounds: options.rounds,
            sent: Sent::default(),
            counted: Counted { tables: self.dropped.tables, ..Counted::default() },
            dropped: self.dropped,
            gradient: Vec::new(),
            curvatures: Vec::new(),
            keys: Vec::new(),
            lengths: Vec::new(),
            values: Vec::new(),
        });
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
        self.spent(began, cost::gradient(&columns, computed))?;
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
        let keys = &self.data.columns.keys;
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
        self.spent(began, cost::loss(self.data.labels.len()))?;
        Ok(loss)
    }
}
