//! The driver of DBPG: has the workers load, cuts the key space into blocks, runs passes until the stop rule is content.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use caravan_kv::error::with_sources;
use caravan_kv::{Apps, Cluster, Handles, Store, Table, TableSpec, Target, ValueType, Worker};
use caravan_van::KeyRange;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::blocks::{self, KeyBlock};
use super::gradient::Curvature;
use super::polish::{self, Polish, Polished, SUPPORT_MAX};
use super::proximal::Proximal;
use super::schedule::{self, KKT_RATIO, RESET_EVERY, Stop, StopRule};
use super::screen;
use super::shard::{self, Command, HANDLE, Options, Report};
use super::worker::{self, APP, Dbpg, Loaded, Passed};
use crate::model::Model;

/// Id of the table of weights.
const TABLE: u32 = 1;

/// What servers need to know to train.
pub fn handles(handles: Handles) -> Handles {
    let handles = handles.with(screen::HANDLE, |_, _, _| Ok(Box::new(screen::Sums::default())));
    handles.with(HANDLE, |spec, _range, _memory| {
        let options: Options =
            serde_json::from_value(spec.options.clone()).map_err(|error| error.to_string())?;
        Ok(Box::new(shard::Shard::new(&options)?))
    })
}

/// What workers need to know to train.
pub fn apps(apps: Apps) -> Apps {
    apps.with(APP, || Box::new(Dbpg::default()))
}

/// What to solve and how.
#[derive(Debug, Clone)]
pub struct Job {
    /// LIBSVM or Criteo text, read in this order.
    pub files: Vec<PathBuf>,
    /// Folder where each worker keeps what it has read, for later runs on the same files.
    pub cache: Option<PathBuf>,
    /// λ and the step.
    pub proximal: Proximal,
    /// The curvature bound.
    pub curvature: Curvature,
    /// Slices of the key space, at most; chosen from the data when `None`.
    pub blocks: Option<usize>,
    /// How a pass goes through them.
    pub order: blocks::Order,
    /// τ: how many tasks may be under way beside the one that computes.
    pub delay: u64,
    /// Whether a task sees the updates of exactly the tasks up to τ + 1 before it, instead of at least those: slower, but the
    /// same whatever the timing.
    pub exact_delay: bool,
    /// ε of the stop rule: relative decrease of the objective in a pass.
    pub epsilon: f64,
    /// Passes, at most.
    pub passes_max: u64,
    /// How weak the KKT filter is; infinite switches it off.
    pub kkt_ratio: f64,
    /// Passes after which the filter is reset in any case.
    pub reset_every: Option<u64>,
    /// Whether columns that are 0 in every solution are dropped first.
    pub screen: bool,
    /// The largest support that Newton's method polishes between passes; `None` is the plain published method.
    pub newton: Option<usize>,
    /// Threads each worker reads and computes with; results do not depend on them.
    pub threads: usize,
}

impl Job {
    /// Safe full steps, no delay, filter on, polished up to [`SUPPORT_MAX`] weights.
    pub fn new(files: Vec<PathBuf>, lambda: f64) -> Self {
        Job {
            files,
            cache: None,
            proximal: Proximal::new(lambda),
            curvature: Curvature::Safe,
            blocks: None,
            order: blocks::Order::Key,
            delay: 0,
            exact_delay: false,
            epsilon: 1e-9,
            passes_max: 1000,
            kkt_ratio: KKT_RATIO,
            reset_every: Some(RESET_EVERY),
            screen: true,
            newton: Some(SUPPORT_MAX),
            threads: 1,
        }
    }
}

/// What a pass reports; field by field the program's progress row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Progress {
    /// Number of the pass, from 0.
    pub pass: u64,
    /// Since training began, loading apart.
    pub seconds: f64,
    /// F(w), all updates and the polish included.
    pub objective: f64,
    /// Relative decrease of F against the pass before; 1 for the first.
    pub relative: f64,
    /// Non-zero weights.
    pub nnz: usize,
    /// Coordinates that the KKT filter leaves in.
    pub active: usize,
    /// Largest violation of |g| ≤ λ at a zero weight.
    pub violation: f64,
    /// Share of the pass that the workers computed, on average.
    pub worker_busy: f64,
    /// Bytes all workers have sent so far.
    pub worker_bytes_sent: u64,
    /// Bytes all servers have sent to workers so far.
    pub server_bytes_sent: u64,
    /// The KKT threshold the pass ran with.
    pub threshold: f64,
    /// Where its time went.
    #[serde(flatten)]
    pub times: Times,
    /// Column gradients computed so far.
    #[serde(skip)]
    pub columns_computed: usize,
    /// What the stop rule made of it.
    #[serde(skip)]
    pub stop: Stop,
}

/// Where the time of a pass went, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Times {
    /// What the worker computed that had least to do.
    #[serde(rename = "worker_seconds_min")]
    pub worker_min: f64,
    /// What the one computed that had most.
    #[serde(rename = "worker_seconds_max")]
    pub worker_max: f64,
    /// What the busiest server thread did with pushes and pulls.
    #[serde(rename = "server_seconds")]
    pub server: f64,
    /// The polish after the pass, messages included.
    #[serde(rename = "polish_seconds")]
    pub polish: f64,
    /// All of it.
    #[serde(rename = "pass_seconds")]
    pub total: f64,
}

impl Times {
    /// What is left when the busiest worker, the busiest server thread and the polish are taken off: messages on their way, and
    /// waiting for others. 0 where computing overlaps so well that nothing is left.
    pub fn other(&self) -> f64 {
        (self.total - self.worker_max - self.server - self.polish).max(0.0)
    }
}

/// What came out.
#[derive(Debug)]
pub struct Trained {
    /// The non-zero weights.
    pub model: Model,
    /// F at them.
    pub objective: f64,
    /// Passes made.
    pub passes: u64,
    /// Whether the stop rule ended the run, not the limit on passes.
    pub converged: bool,
    /// Training time.
    pub seconds: f64,
    /// Time to read and arrange the data.
    pub load_seconds: f64,
    /// Largest resident sets of all processes, added up.
    pub peak_rss_mib: f64,
    /// Rows of all workers.
    pub rows: u64,
    /// Blocks the key space was cut into.
    pub blocks: usize,
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
    Driver::new(cluster, job)
        .and_then(|driver| driver.run(progress))
        .map_err(|error| crate::Error::Train { reason: with_sources(&error) })
}

struct Driver<'a> {
    cluster: &'a mut Cluster,
    job: &'a Job,
    servers: Worker,
    table: Table,
    polish: Option<Polish>,
    blocks: Vec<KeyBlock>,
    rows: u64,
    load_seconds: f64,
    began: Instant,
    task: u64,
    rss: BTreeMap<u32, f64>,
}

impl<'a> Driver<'a> {
    /// Loads the data and sets the table up.
    fn new(cluster: &'a mut Cluster, job: &'a Job) -> caravan_kv::Result<Self> {
        check(job)?;
        let began = Instant::now();
        let (files, cache) = (job.files.clone(), job.cache.clone());
        let load = worker::Order::Load { files, threads: job.threads, cache };
        let loaded: Vec<Loaded> = ask_workers(cluster, &load)?;
        let load_seconds = began.elapsed().as_secs_f64();
        let rows = loaded.iter().map(|loaded| loaded.rows).sum();
        let Some(keys) = key_range(&loaded) else {
            return Err(caravan_kv::Error::Config(format!(
                "{:?} hold no features to train on",
                job.files
            )));
        };
        let mut servers = cluster.client()?;
        let began = Instant::now();
        let loaded = if job.screen { screen(cluster, &mut servers, job, keys)? } else { loaded };
        let nonzeros = loaded.iter().map(|loaded| loaded.nonzeros).sum();
        let most = loaded.iter().map(|loaded| loaded.nonzeros).max().unwrap_or(0);
        // Where nothing is left all weights are 0, which a pass over nothing finds out as well as any.
        let (first, last) = key_range(&loaded).unwrap_or(keys);
        let count = job
            .blocks
            .unwrap_or_else(|| blocks::default_block_count(nonzeros, rows, blocks::BLOCK_RATIO));
        let blocks = blocks::even_blocks(first, last, count);
        if schedule::delay_risks_divergence(job.delay, blocks.len()) {
            tracing::warn!(
                delay = job.delay,
                blocks = blocks.len(),
                "a delay of a quarter of the blocks or more may diverge: use more blocks, or a smaller learning rate"
            );
        }
        let spec = table(job, &blocks, (first, last), cluster.config().workers);
        let table = servers.create_table(&spec)?;
        let polish =
            job.newton.map(|support_max| polish::table(support_max, cluster.config().workers));
        let curvature = job.curvature;
        let begin = worker::Order::Begin { table: spec, polish: polish.clone(), curvature };
        let _ready: Vec<()> = ask_workers(cluster, &begin)?;
        let polish = match (job.newton, polish) {
            (Some(support_max), Some(spec)) => {
                let table = servers.create_table(&spec)?;
                Some(Polish::new(support_max, job.proximal.lambda, table, (blocks.len(), most)))
            }
            _ => None,
        };
        Ok(Driver {
            cluster,
            job,
            servers,
            table,
            polish,
            blocks,
            rows,
            load_seconds,
            began,
            task: 1,
            rss: BTreeMap::new(),
        })
    }

    fn run(mut self, mut progress: impl FnMut(&Progress)) -> caravan_kv::Result<Trained> {
        let mut rule = StopRule::new(self.job.epsilon).reset_every(self.job.reset_every);
        let mut last: Option<Progress> = None;
        for pass in 0..self.job.passes_max {
            let report = self.pass(pass, last.as_ref(), &mut rule)?;
            progress(&report);
            last = Some(report);
            if report.stop == Stop::Done {
                break;
            }
        }
        if let Some(last) = last.filter(|last| last.stop == Stop::Done) {
            self.centre(&last)?;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        let weights: Vec<Vec<(u64, f64)>> = self.tell_servers(&Command::Weights)?;
        let model = Model::new(weights.into_iter().flatten().collect());
        let model = model.map_err(|error| caravan_kv::Error::Config(error.to_string()))?;
        self.rss.insert(std::process::id(), crate::memory::peak_rss_mib());
        Ok(Trained {
            model,
            objective: last.map_or(f64::NAN, |last| last.objective),
            passes: last.map_or(0, |last| last.pass + 1),
            converged: last.is_some_and(|last| last.stop == Stop::Done),
            seconds,
            load_seconds: self.load_seconds,
            peak_rss_mib: self.rss.values().sum(),
            rows: self.rows,
            blocks: self.blocks.len(),
        })
    }

    fn pass(
        &mut self,
        pass: u64,
        last: Option<&Progress>,
        rule: &mut StopRule,
    ) -> caravan_kv::Result<Progress> {
        let (job, first) = (self.job, self.task);
        let began = Instant::now();
        let threshold =
            schedule::kkt_threshold(last.map(|last| last.violation), self.rows, job.kkt_ratio);
        let reset = last.is_some_and(|last| last.stop == Stop::Reset);
        let blocks = job.order.of_pass(pass, self.blocks.len());
        self.task += blocks.len() as u64;
        let (delay, exact) = (job.delay, job.exact_delay);
        let command = Command::Pass { first, blocks: blocks.clone(), threshold, reset, all: exact };
        self.command(&command)?;
        let passed: Vec<Passed> =
            ask_workers(self.cluster, &worker::Order::Pass { first, blocks, delay, exact, reset })?;
        let took = began.elapsed();
        let reports: Vec<Report> = self.tell_servers(&Command::Report)?;
        let seen = passed.iter().map(|passed| (passed.process, passed.peak_rss_mib));
        self.rss
            .extend(seen.chain(reports.iter().map(|report| (report.process, report.peak_rss_mib))));
        let norm: f64 = reports.iter().map(|report| report.norm).sum();
        let after_pass =
            passed.iter().map(|passed| passed.loss).sum::<f64>() + job.proximal.lambda * norm;
        let after_pass = Polished {
            objective: after_pass,
            nonzeros: reports.iter().map(|report| report.nonzeros).sum(),
        };
        let polishing = Instant::now();
        let Polished { objective, nonzeros } =
            self.polish(after_pass, last.map(|last| last.objective))?;
        let polish = polishing.elapsed().as_secs_f64();
        let (relative, mut stop) = rule.after_pass(objective);
        if stop == Stop::Continue && objective < after_pass.objective {
            stop = rule.request_reset();
        }
        Ok(Progress {
            pass,
            seconds: self.began.elapsed().as_secs_f64(),
            objective,
            relative,
            nnz: nonzeros,
            active: reports.iter().map(|report| report.active).sum(),
            violation: reports.iter().map(|report| report.violation).fold(0.0, f64::max),
            worker_busy: busy(&passed, took),
            worker_bytes_sent: passed.iter().map(|passed| passed.bytes_sent).sum(),
            server_bytes_sent: passed.iter().map(|passed| passed.bytes_received).sum(),
            threshold,
            times: times(&passed, &reports, polish, began.elapsed()),
            columns_computed: passed.iter().map(|passed| passed.columns_computed).sum(),
            stop,
        })
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

/// Smallest and largest key of all workers.
fn key_range(loaded: &[Loaded]) -> Option<(u64, u64)> {
    let keys = loaded.iter().filter_map(|loaded| loaded.keys);
    keys.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))
}

/// Has the workers drop the columns that stay at 0; returns what they are left with.
fn screen(
    cluster: &mut Cluster,
    servers: &mut Worker,
    job: &Job,
    (first, last): (u64, u64),
) -> caravan_kv::Result<Vec<Loaded>> {
    let keys = KeyRange::new(first, last.wrapping_add(1)).unwrap_or(KeyRange::ALL);
    let spec = screen::table(keys);
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

fn check(job: &Job) -> caravan_kv::Result<()> {
    let Proximal { lambda, learning_rate, .. } = job.proximal;
    let wrong = |what: &str, value: f64, takes: &str| {
        Err(caravan_kv::Error::Config(format!("{what} must be {takes}, not {value}")))
    };
    match () {
        () if !(lambda >= 0.0 && lambda.is_finite()) => {
            wrong("lambda", lambda, "a finite number, 0 or more")
        }
        () if !(learning_rate > 0.0 && learning_rate <= 1.0) => {
            wrong("the learning rate", learning_rate, "above 0 and at most 1")
        }
        () if !(job.epsilon >= 0.0 && job.epsilon < 1.0) => {
            wrong("epsilon", job.epsilon, "0 or more and below 1")
        }
        () if job.blocks == Some(0) => wrong("blocks", 0.0, "1 or more"),
        () if job.newton.is_some_and(|n| n == 0 || n > polish::SUPPORT_LIMIT) => {
            wrong("newton", job.newton.unwrap_or(0) as f64, "a support of 1 to 16384 weights")
        }
        () if job.newton.is_some() && job.exact_delay => Err(caravan_kv::Error::Config(
            "an exact delay leaves updates under way after a pass, and a polish needs all of them: switch one of them off"
                .to_owned(),
        )),
        () => Ok(()),
    }
}

fn table(job: &Job, blocks: &[KeyBlock], (first, last): (u64, u64), workers: usize) -> TableSpec {
    let Proximal { lambda, learning_rate, trust } = job.proximal;
    let blocks = blocks.iter().map(|block| (block.first, block.last)).collect();
    let options = Options {
        lambda,
        learning_rate,
        delta_init: trust.init,
        delta_max: trust.max,
        workers,
        blocks,
    };
    let mut spec = TableSpec::new(TABLE, "weights", ValueType::F64, 0).handle(HANDLE);
    if let Some(range) = KeyRange::new(first, last.wrapping_add(1)) {
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
