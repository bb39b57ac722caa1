//! Turns a job into a [`Driver`]: the workers load, columns are dropped, the key space is cut into
//! blocks, and tables are created.

use std::collections::BTreeMap;
use std::time::Instant;

use caravan_kv::{Cluster, Store, Table, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;

use super::{Driver, ask_workers, failed};
use crate::data::groups::{self, Group};
use crate::data::{self, SharedFiles};
use crate::dbpg::blocks::{self, KeyBlock};
use crate::dbpg::filters::{self, Counted};
use crate::dbpg::job::Job;
use crate::dbpg::load::Loaded;
use crate::dbpg::newton::{self, Newton};
use crate::dbpg::orders::{Command, Options};
use crate::dbpg::pace::Pace;
use crate::dbpg::proximal::Proximal;
use crate::dbpg::scaling::{self, Scaling};
use crate::dbpg::shard::HANDLE;
use crate::dbpg::{schedule, screen, worker};
use crate::model::Model;
use crate::sketch::Tail;

/// The part of a job that trains, whose tables have ids of their own.
const PART: &str = "dbpg";

/// Id of the table of weights.
const TABLE: u32 = 1;

impl<'a> Driver<'a> {
    /// Loads the data on the cluster and creates the tables.
    ///
    /// # Errors
    /// As [`super::train`].
    pub fn load(cluster: &'a mut Cluster, job: &'a Job) -> crate::Result<Self> {
        Self::set_up(cluster, job).map_err(failed)
    }

    fn set_up(cluster: &'a mut Cluster, job: &'a Job) -> caravan_kv::Result<Self> {
        job.check()?;
        cluster.begin(PART)?;
        caravan_numa::return_freed_blocks(); // blocks are briefly as large as the data
        let began = Instant::now();
        let files = SharedFiles::watch(&job.files);
        let load = worker::Order::Load {
            files: job.files.clone(),
            threads: job.threads,
            cache: job.cache.clone(),
            memory: job.memory,
            positive_weight: job.positive_weight,
        };
        let loaded: Vec<Loaded> = ask_workers(cluster, &load)?;
        let read = files.check();
        read.map_err(|error| caravan_kv::Error::Config(error.to_string()))?;
        let load_seconds = began.elapsed().as_secs_f64();
        let Some(keys) = key_range(&loaded) else {
            return Err(caravan_kv::Error::Config(format!(
                "no features to train on are in {}",
                data::listed(&job.files)
            )));
        };
        let rule = Proximal { free: intercept_key(job, keys.last)?, ..job.proximal };
        let mut servers = cluster.client()?;
        let began = servers.now();
        let columns = count_columns(&loaded);
        let loaded = match &job.tail {
            Some(tail) => drop_tail(cluster, &mut servers, job, tail, keys, &loaded)?,
            None => loaded,
        };
        let columns = [columns, columns - count_columns(&loaded)];
        let loaded =
            if job.filters.screen { screen(cluster, &mut servers, job, keys)? } else { loaded };
        // If nothing is left all weights are 0, which a pass over nothing finds as well.
        let keys = key_range(&loaded).unwrap_or(keys);
        let blocks = rule.blocks(cut(cluster, job, keys, &loaded)?);
        warn_of_delay(job, blocks.len());
        let (scaling, largest) = scaling::find(cluster, job)?;
        let parts = Parts { rule, blocks: &blocks, scaling: &scaling, keys };
        let (table, newton) = begin(cluster, &mut servers, job, &parts, &loaded)?;
        let mut driver = Driver {
            cluster,
            job,
            rule,
            scaling,
            largest,
            servers,
            table,
            newton,
            gains: vec![0.0; blocks.len()],
            blocks,
            rows: loaded.iter().map(|loaded| loaded.rows).sum(),
            load_seconds,
            began,
            pace: Pace::new(job.delay, job.adapt_delay),
            task: 1,
            lossless: false,
            counted: Counted::default(),
            columns,
            left_out: 0,
            rss: BTreeMap::new(),
            data_bytes: None,
            before_newton: Vec::new(),
        };
        job.warm_start.as_ref().map_or(Ok(()), |model| driver.start_from(model))?;
        Ok(driver)
    }

    /// Starts from earlier weights. Those whose keys nobody has are dropped: they are not in the
    /// data, where any penalty sets them to 0, or are 0 in every solution.
    fn start_from(&mut self, model: &Model) -> caravan_kv::Result<()> {
        let intercept = self.rule.free.filter(|_| model.intercept() != 0.0);
        let intercept = intercept.map(|key| (key, model.intercept()));
        let own = model.iter().filter(|&(key, _)| Some(key) != self.rule.free);
        let divided = |(key, weight)| (key, weight * self.scaling.factor(key));
        let all: Vec<(u64, f64)> = own.chain(intercept).map(divided).collect();
        let set: Vec<usize> = self.tell_servers(&Command::Set { weights: all.clone() })?;
        let _set: Vec<()> =
            ask_workers(self.cluster, &worker::Order::Start { weights: all.clone() })?;
        let dropped_intercept = usize::from(self.rule.free.is_none() && model.intercept() != 0.0);
        self.left_out = all.len() - set.iter().sum::<usize>() + dropped_intercept;
        Ok(())
    }
}

/// Smallest and largest key of all workers.
fn key_range(loaded: &[Loaded]) -> Option<KeyBlock> {
    let keys = loaded.iter().filter_map(|loaded| loaded.keys);
    let both = keys.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
    both.map(|(first, last)| KeyBlock { first, last })
}

/// Half-open, as tables have it.
fn table_range(keys: KeyBlock) -> KeyRange {
    KeyRange::new(keys.first, keys.last.wrapping_add(1)).unwrap_or(KeyRange::ALL)
}

/// The key of the intercept, if there is one: the one after the largest of the data.
fn intercept_key(job: &Job, last: u64) -> caravan_kv::Result<Option<u64>> {
    match last.checked_add(1) {
        _ if !job.intercept => Ok(None),
        Some(key) => Ok(Some(key)),
        None => Err(caravan_kv::Error::Config(format!(
            "an intercept takes the key after the largest, but {last} is in use: renumber the features, or give every row a feature that is always 1"
        ))),
    }
}

fn count_columns(loaded: &[Loaded]) -> u64 {
    loaded.iter().map(|loaded| loaded.columns).sum()
}

/// Makes the workers drop columns that are too rare; returns what they have left.
fn drop_tail(
    cluster: &mut Cluster,
    servers: &mut Worker,
    job: &Job,
    tail: &Tail,
    keys: KeyBlock,
    loaded: &[Loaded],
) -> caravan_kv::Result<Vec<Loaded>> {
    let most = loaded.iter().map(|loaded| loaded.columns).max().unwrap_or(0);
    let of = cluster.config();
    let filters = filters::of_numbers(&job.filters.table);
    let spec = tail.table(table_range(keys), of.workers, most, of.servers * of.threads, filters)?;
    let spec = spec.replicas(job.replicas);
    let table = servers.admin().create_table(&spec)?;
    let _counted: Vec<()> = ask_workers(cluster, &worker::Order::Count { table: spec })?;
    let frequency = tail.frequency;
    let left = ask_workers(cluster, &worker::Order::Frequent { frequency })?;
    let ended = servers.command(table, &[])?;
    servers.wait(ended)?;
    Ok(left)
}

/// Makes the workers drop columns that stay at 0; returns what they have left.
fn screen(
    cluster: &mut Cluster,
    servers: &mut Worker,
    job: &Job,
    keys: KeyBlock,
) -> caravan_kv::Result<Vec<Loaded>> {
    let spec = screen::table(table_range(keys), filters::of_numbers(&job.filters.table));
    let spec = spec.replicas(job.replicas);
    let table = servers.admin().create_table(&spec)?;
    let lambda = job.proximal.lambda;
    let share = lambda / cluster.config().workers as f64;
    let _named: Vec<()> = ask_workers(cluster, &worker::Order::Name { table: spec, share })?;
    let _added: Vec<()> = ask_workers(cluster, &worker::Order::Add)?;
    let left = ask_workers(cluster, &worker::Order::Screen { lambda })?;
    let ended = servers.command(table, &serde_json::to_vec(&screen::Command::End)?)?;
    servers.wait(ended)?;
    Ok(left)
}

/// Cuts the loaded keys into the blocks of the job.
fn cut(
    cluster: &mut Cluster,
    job: &Job,
    keys: KeyBlock,
    loaded: &[Loaded],
) -> caravan_kv::Result<Vec<KeyBlock>> {
    if job.group_bits > 0 {
        let count = worker::Order::Groups { bits: job.group_bits };
        let counted: Vec<Vec<Group>> = ask_workers(cluster, &count)?;
        let blocks = blocks::blocks_of(groups::of_all(counted.concat()), job.block_ratio);
        return Ok(if blocks.is_empty() { vec![keys] } else { blocks });
    }
    let nonzeros = loaded.iter().map(|loaded| loaded.nonzeros).sum();
    let rows = loaded.iter().map(|loaded| loaded.rows).sum();
    let default = || blocks::default_block_count(nonzeros, rows, job.block_ratio);
    Ok(blocks::even_blocks(keys.first, keys.last, job.blocks.unwrap_or_else(default)))
}

/// Warns of a delay that is long relative to the number of blocks.
fn warn_of_delay(job: &Job, blocks: usize) {
    if !job.adapt_delay && schedule::delay_risks_divergence(job.delay, blocks) {
        tracing::warn!(
            delay = job.delay,
            blocks,
            "a delay of an eighth of the blocks or more may diverge: use more blocks, a smaller learning rate, or let the delay adapt"
        );
    }
}

/// What the tables are made of.
struct Parts<'p> {
    rule: Proximal,
    blocks: &'p [KeyBlock],
    scaling: &'p Scaling,
    keys: KeyBlock,
}

/// Creates the tables and makes the workers announce their keys.
fn begin(
    cluster: &mut Cluster,
    servers: &mut Worker,
    job: &Job,
    parts: &Parts<'_>,
    loaded: &[Loaded],
) -> caravan_kv::Result<(Table, Option<Newton>)> {
    let &Parts { rule, scaling, keys, .. } = parts;
    let filters = &job.filters.table;
    let workers = cluster.config().workers;
    let weights = weights(job, parts, workers);
    let table = servers.admin().create_table(&weights)?;
    let threads = cluster.config().servers * cluster.config().threads;
    let columns = newton::keys_of(keys.first, rule.free.unwrap_or(keys.last));
    let numbers = filters::of_numbers(filters);
    let tables = newton::Tables::new(columns, threads, workers, scaling, numbers);
    let tables = tables.replicas(job.replicas);
    let begin = worker::Order::Begin {
        table: weights,
        newton: job.newton.map(|_| Box::new(tables.clone())),
        curvature: job.curvature,
        intercept: rule.free,
        straggle: job.straggle,
    };
    let ready: Vec<(f64, bool)> = ask_workers(cluster, &begin)?;
    let Some(block_columns) = job.newton else { return Ok((table, None)) };
    let data = newton::Data {
        rows: loaded.iter().map(|loaded| loaded.rows).sum(),
        largest: ready.iter().map(|(largest, _)| *largest).fold(0.0, f64::max),
        ones: ready.iter().all(|(_, ones)| *ones),
        row_weight: job.positive_weight.max(1.0),
    };
    let open = tables.create(servers)?;
    Ok((table, Some(Newton::new(block_columns, rule, scaling.clone(), data, open))))
}

/// The table of weights.
fn weights(job: &Job, parts: &Parts<'_>, workers: usize) -> TableSpec {
    let filters = job.filters.table;
    let &Parts { rule, blocks, scaling, keys } = parts;
    let Proximal { lambda, l2, free, learning_rate, trust } = rule;
    let blocks = blocks.iter().map(|block| (block.first, block.last)).collect();
    let options = Options {
        lambda,
        l2,
        free,
        learning_rate,
        delta_init: trust.init,
        delta_max: trust.max,
        workers,
        narrow: filters.narrow,
        rounds: filters.quantize.is_some(),
        blocks,
        scaling: scaling.clone(),
    };
    let mut spec =
        TableSpec::new(TABLE, "weights", ValueType::F64, 0).handle(HANDLE).filters(filters);
    if let Some(range) = KeyRange::new(keys.first, free.unwrap_or(keys.last).wrapping_add(1)) {
        spec = spec.keys(range);
    }
    spec.store = Store::Sparse;
    spec.replicas = job.replicas;
    spec.options(serde_json::to_value(options).expect("numbers and lists are JSON"))
}
