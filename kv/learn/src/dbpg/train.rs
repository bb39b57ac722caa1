//! The driver of DBPG: has the workers load, cuts the key space into blocks, runs passes until the stop rule is content.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use caravan_kv::error::with_sources;
use caravan_kv::filter::Filters as TableFilters;
use caravan_kv::{Apps, Cluster, Handles, Store, Table, TableSpec, Target, ValueType, Worker};
use caravan_van::KeyRange;
use serde::de::DeserializeOwned;

use super::blocks::{self, KeyBlock};
use super::filters::{self, Counted, LOSSLESS_FROM, Lossy};
use super::hessian::{self, Wire};
use super::job::{Job, PRIOR_ROUNDS, Progress, Times, Trained};
use super::load::Loaded;
use super::pace::Pace;
use super::polish::{Polish, Polished};
use super::proximal::Proximal;
use super::schedule::{self, FILTER_OFF, Stop, StopRule};
use super::screen;
use super::shard::{self, Command, HANDLE, Options, Report};
use super::tail::{self, Tail};
use super::worker::{self, APP, Dbpg, Passed};
use crate::model::Model;

/// Id of the table of weights.
const TABLE: u32 = 1;

/// A λ at which no weight leaves 0, and whose sum with a gradient is below [`FILTER_OFF`].
const LAMBDA_HUGE: f64 = 1e18;

/// What the search for the largest useful λ settles for, where an intercept has to be fitted first.
const LAMBDA_MAX_EPSILON: f64 = 1e-9;

/// Passes it takes at most.
const LAMBDA_MAX_PASSES: u64 = 50;

/// What servers need to know to train.
pub fn handles(handles: Handles) -> Handles {
    let handles = handles
        .with(tail::HANDLE, |spec, _range, _memory| {
            let options = serde_json::from_value(spec.options.clone());
            Ok(Box::new(tail::Counts::new(&options.map_err(|error| error.to_string())?)?))
        })
        .with(screen::HANDLE, |_, _, _| Ok(Box::new(screen::Sums::default())))
        .with(hessian::HANDLE, |_, _, _| Ok(Box::new(hessian::Parts::default())));
    handles.with(HANDLE, |spec, _range, _memory| {
        caravan_numa::return_freed_blocks();
        let options: Options =
            serde_json::from_value(spec.options.clone()).map_err(|error| error.to_string())?;
        Ok(Box::new(shard::Shard::new(&options)?))
    })
}

/// What workers need to know to train.
pub fn apps(apps: Apps) -> Apps {
    apps.with(APP, || Box::new(Dbpg::default()))
}

/// Trains on a cluster whose servers have [`handles`] and whose workers have [`apps`]; `progress` is called after each pass.
///
/// # Errors
/// [`crate::Error::Train`] names the node or the file, and what is wrong.
pub fn train(
    cluster: &mut Cluster,
    job: &Job,
    progress: impl FnMut(&Progress),
) -> crate::Result<Trained> {
    Driver::load(cluster, job)?.solve(job.proximal.lambda, progress)
}

/// A job whose data is loaded and whose weights are at 0, or where [`Job::warm_start`] says.
pub struct Driver<'a> {
    cluster: &'a mut Cluster,
    job: &'a Job,
    /// With the λ that is being solved.
    rule: Proximal,
    servers: Worker,
    table: Table,
    polish: Option<Polish>,
    blocks: Vec<KeyBlock>,
    rows: u64,
    load_seconds: f64,
    /// By the servers' clock, as all times of training.
    began: Duration,
    pace: Pace,
    task: u64,
    /// Whether nothing is left out that counts: from some pass on.
    lossless: bool,
    counted: Counted,
    /// Of all workers, and those that were dropped for being rare.
    columns: [u64; 2],
    left_out: usize,
    rss: BTreeMap<u32, f64>,
}

impl<'a> Driver<'a> {
    /// Loads the data on the cluster and sets the table up.
    ///
    /// # Errors
    /// As [`train`].
    pub fn load(cluster: &'a mut Cluster, job: &'a Job) -> crate::Result<Self> {
        Self::set_up(cluster, job).map_err(failed)
    }

    fn set_up(cluster: &'a mut Cluster, job: &'a Job) -> caravan_kv::Result<Self> {
        job.check()?;
        caravan_numa::return_freed_blocks(); // a Hessian is as large as the data, for a moment
        let began = Instant::now();
        let (files, cache) = (job.files.clone(), job.cache.clone());
        let (threads, positive_weight) = (job.threads, job.positive_weight);
        let load = worker::Order::Load { files, threads, cache, positive_weight };
        let loaded: Vec<Loaded> = ask_workers(cluster, &load)?;
        let load_seconds = began.elapsed().as_secs_f64();
        let rows = loaded.iter().map(|loaded| loaded.rows).sum();
        let Some(keys) = key_range(&loaded) else {
            return Err(caravan_kv::Error::Config(format!(
                "{:?} hold no features to train on",
                job.files
            )));
        };
        let rule = Proximal { free: intercept_key(job, keys)?, ..job.proximal };
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
        let nonzeros = loaded.iter().map(|loaded| loaded.nonzeros).sum();
        let most = loaded.iter().map(|loaded| loaded.nonzeros).max().unwrap_or(0);
        // Where nothing is left all weights are 0, which a pass over nothing finds out as well as any.
        let keys = key_range(&loaded).unwrap_or(keys);
        let count = job
            .blocks
            .unwrap_or_else(|| blocks::default_block_count(nonzeros, rows, job.block_ratio));
        let blocks = rule.blocks(keys, count);
        if !job.adapt_delay && schedule::delay_risks_divergence(job.delay, blocks.len()) {
            tracing::warn!(
                delay = job.delay,
                blocks = blocks.len(),
                "a delay of a quarter of the blocks or more may diverge: use more blocks, or let the delay adapt itself"
            );
        }
        let spec = table(&rule, &blocks, keys, (cluster.config().workers, &job.filters.table));
        let table = servers.create_table(&spec)?;
        let filters = &job.filters.table;
        let wire = if filters.quantize.is_some() { Wire::Short } else { Wire::Single };
        let polish = job.newton.map(|support_max| {
            let how = (wire, filters::of_numbers(filters));
            hessian::table(support_max, cluster.config().workers, how)
        });
        let begin = worker::Order::Begin {
            table: spec,
            polish: polish.clone(),
            curvature: job.curvature,
            intercept: rule.free,
            straggle: job.straggle,
        };
        let _ready: Vec<()> = ask_workers(cluster, &begin)?;
        let polish = match (job.newton, polish) {
            (Some(support_max), Some(spec)) => {
                let table = servers.create_table(&spec)?;
                let cost = (blocks.len(), most);
                let how = (filters.narrow, wire);
                Some(Polish::new(support_max, rule, table, cost, how))
            }
            _ => None,
        };
        let mut driver = Driver {
            cluster,
            job,
            rule,
            servers,
            table,
            polish,
            blocks,
            rows,
            load_seconds,
            began,
            pace: Pace::new(job.delay, job.adapt_delay),
            task: 1,
            lossless: false,
            counted: Counted::default(),
            columns,
            left_out: 0,
            rss: BTreeMap::new(),
        };
        job.warm_start.as_ref().map_or(Ok(()), |model| driver.start_from(model))?;
        Ok(driver)
    }

    /// Takes weights that were found before. Those whose keys nobody holds are left out: they are not in the data, where any
    /// penalty puts them to 0, or are 0 in every solution.
    fn start_from(&mut self, model: &Model) -> caravan_kv::Result<()> {
        let intercept = self.rule.free.filter(|_| model.intercept() != 0.0);
        let intercept = intercept.map(|key| (key, model.intercept()));
        let all: Vec<(u64, f64)> =
            model.iter().filter(|&(key, _)| Some(key) != self.rule.free).chain(intercept).collect();
        let set: Vec<usize> = self.tell_servers(&Command::Set { weights: all.clone() })?;
        let _set: Vec<()> =
            ask_workers(self.cluster, &worker::Order::Start { weights: all.clone() })?;
        let dropped_intercept = usize::from(self.rule.free.is_none() && model.intercept() != 0.0);
        self.left_out = all.len() - set.iter().sum::<usize>() + dropped_intercept;
        Ok(())
    }

    /// Minimises at `lambda`, from where the weights are; `progress` is called after each pass. For a path of several λ call it
    /// again, the largest first.
    ///
    /// # Errors
    /// As [`train`]; also a λ below that of the job, for which too many columns may have been dropped.
    pub fn solve(
        &mut self,
        lambda: f64,
        progress: impl FnMut(&Progress),
    ) -> crate::Result<Trained> {
        self.run(lambda, progress).map_err(failed)
    }

    fn run(
        &mut self,
        lambda: f64,
        mut progress: impl FnMut(&Progress),
    ) -> caravan_kv::Result<Trained> {
        let smallest = self.job.proximal.lambda;
        if lambda.is_nan() || lambda < smallest {
            return Err(caravan_kv::Error::Config(format!(
                "lambda {lambda} is below {smallest}, for which the data was screened"
            )));
        }
        let mut reset = self.set_lambda(lambda)?;
        self.lossless = false;
        self.visit_prior()?;
        let mut rule = StopRule::new(self.job.epsilon).reset_every(self.job.reset_every);
        self.pace = Pace::new(self.job.delay, self.job.adapt_delay);
        let mut last: Option<Progress> = None;
        let mut stopped = false;
        for pass in 0..self.job.passes_max {
            let (mut report, _) = self.pass(pass, last.as_ref(), reset, &mut rule)?;
            if self.pace.after_pass(report.objective) {
                let delay = self.pace.delay();
                tracing::warn!(pass, delay, "the objective rose: from now on with a smaller delay");
            }
            let was_exact = self.lossless || !self.job.filters.is_lossy();
            if report.stop == Stop::Done && !(self.pace.may_end() && was_exact) {
                report.stop = rule.request_reset();
                self.lossless = true;
            }
            progress(&report);
            last = Some(report);
            reset = report.stop == Stop::Reset;
            stopped = self.job.is_to_stop() && report.stop != Stop::Done;
            if stopped || report.stop == Stop::Done {
                break;
            }
        }
        if let Some(last) = last.filter(|last| last.stop == Stop::Done) {
            self.centre(&last)?;
        }
        let seconds = self.seconds();
        let model = self.model()?;
        self.began = self.servers.now();
        self.rss.insert(std::process::id(), crate::memory::peak_rss_mib());
        Ok(Trained {
            model,
            lambda,
            objective: last.map_or(f64::NAN, |last| last.objective),
            passes: last.map_or(0, |last| last.pass + 1),
            converged: last.is_some_and(|last| last.stop == Stop::Done),
            stopped,
            seconds,
            load_seconds: self.load_seconds,
            peak_rss_mib: self.rss.values().sum(),
            rows: self.rows,
            blocks: self.blocks.len(),
            traffic: self.traffic()?.rows(&self.job.filters),
            columns: self.columns,
            left_out: self.left_out,
        })
    }

    /// What all workers have counted, and what servers have sent to the driver.
    fn traffic(&self) -> caravan_kv::Result<Counted> {
        let mut counted = self.counted;
        if let Some(polish) = &self.polish {
            counted.tables.received = counted.tables.plus(&polish.traffic(&self.servers)?).received;
        }
        counted.frames.pulled += self.servers.counters().bytes_received;
        Ok(counted)
    }

    /// The smallest λ at which all weights are 0: the largest |g_j| there, with the intercept at its best.
    ///
    /// # Errors
    /// As [`train`].
    pub fn lambda_max(&mut self) -> crate::Result<f64> {
        let mut find = || {
            self.set_lambda(LAMBDA_HUGE)?;
            self.lossless = true;
            let mut rule = StopRule::new(LAMBDA_MAX_EPSILON);
            let mut steepest = 0.0;
            for pass in 0..LAMBDA_MAX_PASSES {
                let (report, largest) = self.pass(pass, None, true, &mut rule)?;
                steepest = largest;
                if report.stop != Stop::Continue || self.rule.free.is_none() {
                    break;
                }
            }
            Ok(steepest)
        };
        find().map_err(failed)
    }

    /// Changes λ on all sides; returns whether the filter's bits are now those of another λ.
    fn set_lambda(&mut self, lambda: f64) -> caravan_kv::Result<bool> {
        self.rule.lambda = lambda;
        if let Some(polish) = &mut self.polish {
            polish.begin(self.rule);
        }
        self.command(&Command::Lambda { lambda })?;
        Ok(self.task > 1)
    }

    /// The weights of all servers.
    fn model(&mut self) -> caravan_kv::Result<Model> {
        let weights: Vec<Vec<(u64, f64)>> = self.tell_servers(&Command::Weights)?;
        let (free, weights): (Vec<_>, Vec<_>) =
            weights.into_iter().flatten().partition(|&(key, _)| Some(key) == self.rule.free);
        let intercept = free.first().map_or(0.0, |&(_, weight)| weight);
        let model = Model::new(weights).and_then(|model| model.with_intercept(intercept));
        model.map_err(|error| caravan_kv::Error::Config(error.to_string()))
    }

    /// Visits the blocks of prior groups, if no task has run yet.
    fn visit_prior(&mut self) -> caravan_kv::Result<()> {
        let job = self.job;
        let overlaps = |block: &KeyBlock| {
            job.prior.iter().any(|&(first, last)| block.first <= last && first <= block.last)
        };
        let prior: Vec<bool> = self.blocks.iter().map(overlaps).collect();
        if self.task > 1 || !prior.contains(&true) {
            return Ok(());
        }
        for round in 0..PRIOR_ROUNDS {
            let mut blocks = job.order.of_pass(round, prior.len());
            blocks.retain(|&block| prior[block]);
            self.tasks(blocks, (FILTER_OFF, Some(Lossy::NONE)), 0, false)?;
        }
        Ok(())
    }

    /// Has workers and servers run a task for each of `blocks`.
    fn tasks(
        &mut self,
        blocks: Vec<usize>,
        (threshold, lossy): (f64, Option<Lossy>),
        delay: u64,
        reset: bool,
    ) -> caravan_kv::Result<Vec<Passed>> {
        let (first, exact) = (self.task, self.job.exact_delay);
        self.task += blocks.len() as u64;
        let all = exact || self.job.filters.table.key_cache;
        let blocks_too = blocks.clone();
        self.command(&Command::Pass { first, blocks: blocks_too, threshold, reset, all, lossy })?;
        let order = worker::Order::Pass { first, blocks, delay, exact, reset, lossy };
        let passed: Vec<Passed> = ask_workers(self.cluster, &order)?;
        let counted = passed.iter().map(|passed| &passed.counted);
        self.counted = counted.fold(Counted::default(), |sum, counted| sum.plus(counted));
        Ok(passed)
    }

    /// One pass, and the polish after it. Returns the largest gradient at a zero weight as well.
    fn pass(
        &mut self,
        pass: u64,
        last: Option<&Progress>,
        reset: bool,
        rule: &mut StopRule,
    ) -> caravan_kv::Result<(Progress, f64)> {
        let (job, delay) = (self.job, self.pace.delay());
        let began = self.servers.now();
        let violation = last.map(|last| last.violation);
        let ratio = if job.filters.kkt { job.kkt_ratio } else { f64::INFINITY };
        let threshold = schedule::kkt_threshold(violation, self.rows, ratio);
        self.lossless |= last.is_some_and(|last| last.relative <= LOSSLESS_FROM.max(job.epsilon));
        let blocks = job.order.of_pass(pass, self.blocks.len());
        let lossy = (!self.lossless).then(|| job.filters.lossy(pass));
        let passed = self.tasks(blocks, (threshold, lossy), delay, reset)?;
        let took = self.servers.now() - began;
        let reports: Vec<Report> = self.tell_servers(&Command::Report)?;
        let seen = passed.iter().map(|passed| (passed.process, passed.peak_rss_mib));
        self.rss
            .extend(seen.chain(reports.iter().map(|report| (report.process, report.peak_rss_mib))));
        let loss: f64 = passed.iter().map(|passed| passed.loss).sum();
        let penalty: f64 = reports.iter().map(|report| report.penalty).sum();
        let after_pass = Polished {
            objective: loss + penalty,
            nonzeros: reports.iter().map(|report| report.nonzeros).sum(),
        };
        let polishing = self.servers.now();
        let Polished { objective, nonzeros } =
            self.polish(after_pass, last.map(|last| last.objective))?;
        let polish = (self.servers.now() - polishing).as_secs_f64();
        let (relative, mut stop) = rule.after_pass(objective);
        if stop == Stop::Continue && objective < after_pass.objective {
            stop = rule.request_reset();
        }
        let steepest = reports.iter().map(|report| report.steepest).fold(0.0, f64::max);
        let report = Progress {
            pass,
            seconds: self.seconds(),
            objective,
            relative,
            nnz: nonzeros,
            active: reports.iter().map(|report| report.active).sum(),
            violation: (steepest - self.rule.lambda).max(0.0),
            worker_busy: busy(&passed, took),
            tail_dropped: self.columns[1],
            worker_bytes_sent: self.counted.frames.pushed,
            server_bytes_sent: self.counted.frames.pulled,
            threshold,
            lambda: self.rule.lambda,
            delay,
            times: times(&passed, &reports, polish, self.servers.now() - began),
            columns_computed: passed.iter().map(|passed| passed.columns_computed).sum(),
            stop,
        };
        Ok((report, steepest))
    }

    /// Since training began.
    fn seconds(&self) -> f64 {
        (self.servers.now() - self.began).as_secs_f64()
    }

    /// Polishes what a pass has left, if the job wants that.
    fn polish(&mut self, from: Polished, previous: Option<f64>) -> caravan_kv::Result<Polished> {
        match (&mut self.polish, previous) {
            (Some(polish), Some(previous)) => {
                polish.run(self.cluster, &mut self.servers, self.table, from, previous)
            }
            _ => Ok(from),
        }
    }

    /// Takes the central one of several optima, if the job polishes.
    fn centre(&mut self, last: &Progress) -> caravan_kv::Result<()> {
        let at = Polished { objective: last.objective, nonzeros: last.nnz };
        match &self.polish {
            Some(polish) => polish.centre(self.cluster, &mut self.servers, self.table, at),
            None => Ok(()),
        }
    }

    fn command(&mut self, command: &Command) -> caravan_kv::Result<()> {
        let timestamp = self.servers.command(self.table, &serde_json::to_vec(command)?)?;
        self.servers.wait(timestamp).map(drop)
    }

    fn tell_servers<T: DeserializeOwned>(
        &mut self,
        command: &Command,
    ) -> caravan_kv::Result<Vec<T>> {
        tell_servers(&mut self.servers, self.table, command)
    }
}

fn failed(error: caravan_kv::Error) -> crate::Error {
    crate::Error::Train { reason: with_sources(&error) }
}

/// Smallest and largest key of all workers.
fn key_range(loaded: &[Loaded]) -> Option<(u64, u64)> {
    let keys = loaded.iter().filter_map(|loaded| loaded.keys);
    keys.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))
}

/// The key that stands for the intercept, if there is one: that after the largest of the data.
fn intercept_key(job: &Job, (_, last): (u64, u64)) -> caravan_kv::Result<Option<u64>> {
    match last.checked_add(1) {
        _ if !job.intercept => Ok(None),
        Some(key) => Ok(Some(key)),
        None => Err(caravan_kv::Error::Config(format!(
            "an intercept takes the key after the largest, but {last} is in use: number the features anew, or give every row a feature that is always 1"
        ))),
    }
}

fn count_columns(loaded: &[Loaded]) -> u64 {
    loaded.iter().map(|loaded| loaded.columns).sum()
}

/// Has the workers drop the columns that are too rare; returns what they are left with.
fn drop_tail(
    cluster: &mut Cluster,
    servers: &mut Worker,
    job: &Job,
    tail: &Tail,
    (first, last): (u64, u64),
    loaded: &[Loaded],
) -> caravan_kv::Result<Vec<Loaded>> {
    let keys = KeyRange::new(first, last.wrapping_add(1)).unwrap_or(KeyRange::ALL);
    let most = loaded.iter().map(|loaded| loaded.columns).max().unwrap_or(0);
    let of = cluster.config();
    let filters = filters::of_numbers(&job.filters.table);
    let spec = tail.table(keys, (of.workers, most), of.servers * of.threads, filters)?;
    let table = servers.create_table(&spec)?;
    let _counted: Vec<()> = ask_workers(cluster, &worker::Order::Count { table: spec })?;
    let frequency = tail.frequency;
    let left = ask_workers(cluster, &worker::Order::Frequent { frequency })?;
    let ended = servers.command(table, &[])?;
    servers.wait(ended)?;
    Ok(left)
}

/// Has the workers drop the columns that stay at 0; returns what they are left with.
fn screen(
    cluster: &mut Cluster,
    servers: &mut Worker,
    job: &Job,
    (first, last): (u64, u64),
) -> caravan_kv::Result<Vec<Loaded>> {
    let keys = KeyRange::new(first, last.wrapping_add(1)).unwrap_or(KeyRange::ALL);
    let spec = screen::table(keys, filters::of_numbers(&job.filters.table));
    let table = servers.create_table(&spec)?;
    let lambda = job.proximal.lambda;
    let share = lambda / cluster.config().workers as f64;
    let _named: Vec<()> = ask_workers(cluster, &worker::Order::Name { table: spec, share })?;
    let _added: Vec<()> = ask_workers(cluster, &worker::Order::Add)?;
    let left = ask_workers(cluster, &worker::Order::Screen { lambda })?;
    let ended = servers.command(table, &serde_json::to_vec(&screen::Command::End)?)?;
    servers.wait(ended)?;
    Ok(left)
}

fn table(
    rule: &Proximal,
    blocks: &[KeyBlock],
    (first, last): (u64, u64),
    (workers, filters): (usize, &TableFilters),
) -> TableSpec {
    let Proximal { lambda, l2, free, learning_rate, trust } = *rule;
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
    };
    let mut spec =
        TableSpec::new(TABLE, "weights", ValueType::F64, 0).handle(HANDLE).filters(*filters);
    if let Some(range) = KeyRange::new(first, free.unwrap_or(last).wrapping_add(1)) {
        spec = spec.keys(range);
    }
    spec.store = Store::Sparse;
    spec.options(serde_json::to_value(options).expect("numbers and lists are JSON"))
}

/// Has all servers do something and returns their answers.
pub(super) fn tell_servers<T: DeserializeOwned>(
    servers: &mut Worker,
    table: Table,
    command: &Command,
) -> caravan_kv::Result<Vec<T>> {
    let timestamp = servers.command(table, &serde_json::to_vec(command)?)?;
    let replies = servers.wait(timestamp)?.replies;
    Ok(replies.iter().map(|reply| serde_json::from_slice(reply)).collect::<Result<_, _>>()?)
}

/// Has all workers do something and returns their answers.
pub(super) fn ask_workers<T: DeserializeOwned>(
    cluster: &mut Cluster,
    order: &worker::Order,
) -> caravan_kv::Result<Vec<T>> {
    let task = cluster.submit(Target::Workers, APP, &serde_json::to_value(order)?)?;
    let answers = cluster.wait(task)?;
    Ok(answers.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
}

fn times(passed: &[Passed], reports: &[Report], polish: f64, total: Duration) -> Times {
    let busy = || passed.iter().map(|passed| passed.busy_seconds);
    Times {
        worker_min: busy().reduce(f64::min).unwrap_or(0.0),
        worker_max: busy().fold(0.0, f64::max),
        server: reports.iter().map(|report| report.busy_seconds).fold(0.0, f64::max),
        polish,
        total: total.as_secs_f64(),
    }
}

/// Share of the time that workers computed, on average.
fn busy(passed: &[Passed], took: Duration) -> f64 {
    let total: f64 = passed.iter().map(|passed| passed.busy_seconds).sum();
    total / passed.len().max(1) as f64 / took.as_secs_f64().max(1e-9)
}
