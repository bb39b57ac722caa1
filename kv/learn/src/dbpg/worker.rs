//! The worker's side of DBPG on a cluster: the driver's orders, and what a worker does between
//! passes. `load` reads its share of the data; `pass` runs a pass.

mod pass;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caravan_kv::objects::is_address;
use caravan_kv::{App, Table, TableSpec, WorkerNode};
use serde::{Deserialize, Serialize};

use super::blocks::KeyBlock;
use super::filters::{Counted, Lossy, Sent};
use super::gradient::{Curvature, TrustRegion, Worker};
use super::job::Straggle;
use super::load::{Data, Dropped, Loaded, Loading};
use super::newton;
use super::orders::Options;
use crate::data_root::DataRoot;
use crate::numeric::Whole;
use pass::Pass;
pub(crate) use pass::Passed;
use pass::Pending;

/// Name of this app.
pub const APP: &str = "dbpg";

/// An order of the driver to the workers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Read your share of these files, and compute with this many threads. With a limit of memory
    /// rows stay on disk. Answered with [`Loaded`].
    Load {
        files: Vec<PathBuf>,
        threads: usize,
        cache: Option<PathBuf>,
        memory: Option<u64>,
        positive_weight: f64,
    },
    /// Push the count of each of your columns: step 1 of [`tail`].
    Count { table: TableSpec },
    /// Drop the columns with at most this total count: step 2. Answered with [`Loaded`].
    Frequent { frequency: u8 },
    /// Name the columns whose bounds are above `share`: step 1 of [`screen`].
    Name { table: TableSpec, share: f64 },
    /// Drop the columns that nobody has named, and add your bounds to the others: step 2.
    Add,
    /// Drop the columns that cannot leave 0 at this λ: step 3. Answered with [`Loaded`].
    Screen { lambda: f64 },
    /// Count the groups named by this many leading bits of a key. Answered with a list of
    /// [`Group`](crate::data::groups::Group).
    Groups { bits: u32 },
    /// Tell the sizes of your columns: step 1 of [`scaling`]. Answered with [`Sizes`].
    Sizes,
    /// Name your columns of unusual size: step 2. Answered with their keys.
    Unusual { bits: i32 },
    /// Tell the largest values of these columns: step 3. Answered with numbers.
    LargestOf { keys: Vec<u64> },
    /// Create the tables and announce your keys, with a column of ones at `intercept`. Answered
    /// with the largest |x_ij|, and whether all are 1.
    Begin {
        table: TableSpec,
        newton: Option<Box<newton::Tables>>,
        curvature: Curvature,
        intercept: Option<u64>,
        straggle: Option<Straggle>,
    },
    /// Start with those of these weights whose keys you have. Sorted by key.
    Start { weights: Vec<(u64, f64)> },
    /// Compute the scores from the weights. Answered with the loss, as a [`Whole`].
    Derive,
    /// Run the tasks numbered from `first`, in the order of `blocks`. Answered with [`Passed`].
    Pass {
        first: u64,
        blocks: Vec<usize>,
        delay: u64,
        exact: bool,
        reset: bool,
        lossy: Option<Lossy>,
    },
    /// Do your part of an outer step of the second-order method. Only between passes.
    Newton(newton::Order),
    /// An outer step is over. Answered with [`Passed`], without the loss.
    Passed,
}

/// One worker.
#[derive(Default)]
pub struct Dbpg {
    loading: Option<Loading>,
    data: Option<Data>,
    training: Option<Training>,
}

/// How training begins.
struct Begin {
    /// Of the table of weights.
    spec: TableSpec,
    options: Options,
    newton: Option<Box<newton::Tables>>,
    curvature: Curvature,
    straggle: Option<Straggle>,
}

struct Training {
    table: Table,
    newton: Option<newton::Task>,
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
    /// Whether pushed values are rounded, so that curvatures are sent as logarithms.
    rounds: bool,
    /// Values sent before, while changes are sent.
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

/// What a worker does between passes.
impl Training {
    fn newton(
        &mut self,
        node: &mut WorkerNode,
        data: &Data,
        order: newton::Order,
    ) -> Result<Vec<Whole>, String> {
        if !self.pending.is_empty() {
            return Err(format!("{} pulls are not applied yet", self.pending.len()));
        }
        let task = self.newton.as_mut().ok_or("this job takes first-order steps only")?;
        let mut run = newton::Run { node, data, state: &mut self.state, task };
        run.run(order).map_err(|error| error.to_string())
    }

    /// The report after an outer step.
    fn passed(&mut self, node: &mut WorkerNode, data: &Data) -> Result<Passed, String> {
        let task = self.newton.as_mut().ok_or("this job takes first-order steps only")?;
        let busy = task.busy;
        let rounds = task.rounds;
        let data_bytes = task.budget.map(|budget| budget.peak());
        self.columns_computed += std::mem::take(&mut task.columns_computed);
        let columns_computed = self.columns_computed;
        self.counted.measured(data.columns.columns());
        let lossy = Lossy::NONE;
        let mut pass = Pass { node, data, training: self, delay: 0, exact: false, lossy };
        let counted = pass.counted(true).map_err(|error| error.to_string())?;
        let (process, peak_rss_mib) = crate::memory::process();
        let busy_seconds = busy.as_secs_f64();
        let loss = 0.0;
        Ok(Passed {
            loss,
            busy_seconds,
            columns_computed,
            rounds,
            counted,
            peak_rss_mib,
            process,
            data_bytes,
        })
    }

    fn start(&mut self, data: &Data, weights: &[(u64, f64)]) -> Result<(), String> {
        let keys = data.keys();
        let held =
            weights.iter().filter_map(|&(key, weight)| keys.find(key).zip(Some((weight, true))));
        if data.disk.is_none() {
            self.state.set(&data.columns, held);
            return Ok(());
        }
        let weights = self.state.weights();
        let moved = held.filter(|&(j, (weight, _))| weight != weights[j]);
        let to: Vec<(usize, f64)> = moved.map(|(j, (weight, _))| (j, weight)).collect();
        let steps: Vec<_> = to.iter().map(|&(j, weight)| (j, weight - weights[j])).collect();
        let directions = scores(data, &steps)?;
        self.state.shift(directions.into_iter(), 1.0, to.into_iter());
        Ok(())
    }

    /// Computes the scores from the weights, whatever steps have led to them; returns the loss.
    fn derive(&mut self, data: &Data) -> Result<Whole, String> {
        if data.disk.is_none() {
            self.state.rederive_margins(&data.columns);
            return Ok(self.state.exact_loss());
        }
        let weights = self.state.weights().iter().copied().enumerate();
        let held: Vec<(usize, f64)> = weights.filter(|&(_, weight)| weight != 0.0).collect();
        self.state.set_scores(scores(data, &held)?);
        Ok(self.state.exact_loss())
    }
}

/// Σ_j x_ij s_j of each row, of steps or weights s of some columns.
fn scores(data: &Data, of: &[(usize, f64)]) -> Result<Vec<f64>, String> {
    let mut scores = vec![0.0; data.rows()];
    let wanted: Vec<Option<u32>> = of.iter().map(|&(j, _)| Some(j as u32)).collect();
    if !of.is_empty() {
        data.for_each_part(&wanted, |rows, columns, at| {
            let scores = &mut scores[rows];
            for (&(_, step), at) in of.iter().zip(at) {
                at.iter().for_each(|&at| columns.for_each(at, |row, x| scores[row] += step * x));
            }
        })?;
    }
    Ok(scores)
}

impl App for Dbpg {
    fn run(
        &mut self,
        node: &mut WorkerNode,
        body: serde_json::Value,
    ) -> Result<serde_json::Value, String> {
        let order = serde_json::from_value(body).map_err(|error| error.to_string())?;
        let reply = match order {
            Order::Load { files, threads, cache, memory, positive_weight } => {
                let cache = cache.as_deref();
                let loaded = self.load(node, &files, threads, cache, memory, positive_weight)?;
                serde_json::to_value(loaded)
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
            Order::Groups { bits } => serde_json::to_value(self.loading()?.groups(bits)?),
            Order::Sizes => serde_json::to_value(self.loading()?.sizes()?),
            Order::Unusual { bits } => serde_json::to_value(self.loading()?.unusual(bits)?),
            Order::LargestOf { keys } => serde_json::to_value(self.loading()?.largest_of(&keys)?),
            Order::Begin { table, newton, curvature, intercept, straggle } => {
                let loading = self.loading.take();
                let loading = loading.ok_or("there is nothing to train on: load first")?;
                let options = serde_json::from_value(table.options.clone());
                let options: Options = options.map_err(|error| error.to_string())?;
                let (data, labels) = loading.into_data(intercept, &options.scaling)?;
                let begin = Begin { spec: table, options, newton, curvature, straggle };
                serde_json::to_value(self.begin(node, data, labels, begin)?)
            }
            Order::Start { weights } => {
                let (data, training) = self.training()?;
                serde_json::to_value(training.start(data, &weights)?)
            }
            Order::Derive => {
                let (data, training) = self.training()?;
                let lossy = Lossy::NONE;
                let mut pass = Pass { node, data, training, delay: 0, exact: false, lossy };
                pass.apply_through(u64::MAX).map_err(|error| error.to_string())?;
                serde_json::to_value(training.derive(data)?)
            }
            Order::Newton(order) => {
                let (data, training) = self.training()?;
                serde_json::to_value(training.newton(node, data, order)?)
            }
            Order::Passed => {
                let (data, training) = self.training()?;
                serde_json::to_value(training.passed(node, data)?)
            }
            Order::Pass { first, blocks, delay, exact, reset, lossy } => {
                let (data, training) = self.training()?;
                let suspended = node.worker.filters(training.table).set_lossless(lossy.is_none());
                suspended.map_err(|error| error.to_string())?;
                if data.disk.is_some() {
                    return Err("first-order passes need columns in memory".to_owned());
                }
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
        threads: usize,
        cache: Option<&Path>,
        memory: Option<u64>,
        positive_weight: f64,
    ) -> Result<Loaded, String> {
        let root = DataRoot::of(&node.config)?;
        let files: Result<Vec<_>, _> = files.iter().map(|file| root.allow(file)).collect();
        let cache = cache.map(|folder| root.allow(folder)).transpose()?;
        let cache = cache.as_deref();
        if let Some(folder) = cache.filter(|folder| is_address(folder)) {
            let folder = folder.display();
            return Err(format!("rows are cached in folders, not in {folder}: leave out --cache"));
        }
        self.data = None;
        self.training = None;
        let loading = Loading::read(
            node.rank,
            node.workers,
            &files?,
            threads,
            cache,
            memory,
            positive_weight,
        )?;
        Ok(self.loading.insert(loading).loaded())
    }

    fn loading(&mut self) -> Result<&mut Loading, String> {
        self.loading.as_mut().ok_or_else(|| "there is nothing to drop: load first".to_owned())
    }

    fn begin(
        &mut self,
        node: &mut WorkerNode,
        data: Data,
        labels: Vec<f64>,
        begin: Begin,
    ) -> Result<(f64, bool), String> {
        let Begin { spec, options, newton, curvature, straggle } = begin;
        let keys: Vec<u64> = data.keys().iter().collect();
        let announce = |node: &mut WorkerNode| {
            let table = node.worker.admin().create_table(&spec)?;
            let task = |tables: Box<newton::Tables>| newton::Task::new(node, &tables, data.budget);
            let newton = newton.map(task).transpose()?;
            node.worker.set_clock(0);
            let named = node.worker.push_varying::<f64>(table, &keys, &vec![0; keys.len()], &[])?;
            node.worker.wait(named)?;
            Ok::<_, caravan_kv::Error>((table, newton))
        };
        let (table, newton) = announce(node).map_err(|error| error.to_string())?;
        let trust = TrustRegion { init: options.delta_init, max: options.delta_max };
        let blocks = options
            .blocks
            .iter()
            .map(|&(first, last)| KeyBlock { first, last }.locate_in(data.keys()));
        self.training = Some(Training {
            table,
            newton,
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
        let largest = data.largest();
        let ones = !data.columns.has_values();
        self.data = Some(data);
        Ok((largest, ones))
    }
}
