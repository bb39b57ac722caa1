//! The driver's side: loads, runs passes, and reads the table.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_kv::consistency::Model;
use caravan_kv::error::with_sources;
use caravan_kv::{Cluster, Store, Table, TableSpec, Target, Worker};
use serde::de::DeserializeOwned;

use super::worker::{Loaded, Order, Passed};
use super::{Hint, Job, Progress, Reading, Rows, Sums, Trainer};
use super::{diverged, feed, local};
use crate::data::assigner::{self, Assigner};
use crate::data::{Second, SharedFiles};

/// Keys of a pull of the driver.
const PULL_KEYS: usize = 1 << 16;

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained<V> {
    /// The table, unless steps do not read.
    pub rows: Rows<V>,
    /// The last objective; not a number without a pass.
    pub objective: f64,
    /// Passes made.
    pub passes: u64,
    /// Time of training, without loading.
    pub seconds: f64,
    /// Time of loading.
    pub load_seconds: f64,
    /// Whether [`Job::stop`] ended the run.
    pub stopped: bool,
}

/// Trains on a cluster whose workers have [`super::app`]. Calls `progress` after each pass.
///
/// # Errors
/// [`crate::Error::Train`] names the node, the file or the setting, and the reason.
pub fn train<T: Trainer>(
    cluster: &mut Cluster,
    job: &Job<T::Settings>,
    progress: impl FnMut(&Progress),
) -> crate::Result<Trained<T::Value>> {
    train_and::<T, _>(cluster, job, progress, |_, _| Ok(())).map(|(trained, ())| trained)
}

/// As [`train`]; `finish` may ask the servers for more of the table before it is dropped.
///
/// # Errors
/// As [`train`].
pub fn train_and<T: Trainer, R>(
    cluster: &mut Cluster,
    job: &Job<T::Settings>,
    progress: impl FnMut(&Progress),
    finish: impl FnOnce(&mut Worker, Table) -> caravan_kv::Result<R>,
) -> crate::Result<(Trained<T::Value>, R)> {
    let failed = |error: caravan_kv::Error| crate::Error::Train { reason: with_sources(&error) };
    let trained = run_job::<T, _>(cluster, job, progress, finish).map_err(failed)?;
    cluster.end().map_err(failed)?;
    Ok(trained)
}

fn run_job<T: Trainer, R>(
    cluster: &mut Cluster,
    job: &Job<T::Settings>,
    progress: impl FnMut(&Progress),
    finish: impl FnOnce(&mut Worker, Table) -> caravan_kv::Result<R>,
) -> caravan_kv::Result<(Trained<T::Value>, R)> {
    job.check_replicas(Some(cluster.config().servers))?;
    if job.hint != Hint::Ps {
        return run_local::<T, _>(cluster, job, progress, finish);
    }
    let workers = cluster.config().workers;
    let parts = job.parts.unwrap_or(workers);
    let consistency = match job.consistency {
        Model::DataCentric { delay, .. } => {
            let chunk_keys =
                T::chunk_keys(&job.settings, parts).ok_or_else(|| not_owned(T::NAME))?;
            Model::DataCentric { delay, chunk_keys }
        }
        other => other,
    };
    check(job.consistency, workers, parts)?;
    check_reading::<T>(job, workers, parts)?;
    cluster.begin(T::NAME)?;
    let began = Instant::now();
    let files = SharedFiles::watch(T::files(&job.settings));
    let spec = T::table(&job.settings).consistency(consistency, workers as u32);
    let spec = spec.replicas(job.replicas);
    let table = Box::new(spec.clone());
    let reading = job.reading;
    let load = Order::Load { settings: job.settings.clone(), table, parts, reading };
    let loaded: Vec<Loaded> = ask::<T, _>(cluster, &Target::Workers, &load)?;
    let steps = loaded.iter().map(|it| it.steps).try_fold(0, |most, it| Some(most.max(it?)));
    if let (Reading::Near(bytes), Some(rows)) = (reading, T::rows_of(&job.settings)) {
        give_out(cluster, rows.files, loaded, bytes)?;
    }
    let load_seconds = began.elapsed().as_secs_f64();
    let mut servers = cluster.client()?;
    let table = servers.admin().create_table(&spec)?;
    let began = servers.now();
    let target = Target::Workers;
    let algorithm = PhantomData;
    let run = Run::<T> { cluster, target, servers, table, spec, files, algorithm };
    run.all(job, (steps, load_seconds, began), progress, finish)
}

/// As [`run_job`], for a model that one worker has and trains.
fn run_local<T: Trainer, R>(
    cluster: &mut Cluster,
    job: &Job<T::Settings>,
    progress: impl FnMut(&Progress),
    finish: impl FnOnce(&mut Worker, Table) -> caravan_kv::Result<R>,
) -> caravan_kv::Result<(Trained<T::Value>, R)> {
    let (hint, model) = (job.hint, job.consistency);
    let spec = T::table(&job.settings);
    local::check(hint, &spec, model, job.parts).map_err(caravan_kv::Error::Config)?;
    let many = job.parts.unwrap_or(cluster.config().workers);
    let parts = if hint == Hint::Seq { 1 } else { many };
    cluster.begin(T::NAME)?;
    let began = Instant::now();
    let files = SharedFiles::watch(T::files(&job.settings));
    let target = Target::Worker(0);
    let load = Order::Local { settings: job.settings.clone(), hint, model, parts };
    let loaded: Vec<Loaded> = ask::<T, _>(cluster, &target, &load)?;
    let steps = loaded.into_iter().find_map(|loaded| loaded.steps);
    let load_seconds = began.elapsed().as_secs_f64();
    let mut servers = cluster.client()?;
    let spec = local::published(&spec);
    let table = servers.admin().create_table(&spec)?;
    let began = servers.now();
    let algorithm = PhantomData;
    let run = Run::<T> { cluster, target, servers, table, spec, files, algorithm };
    run.all(job, (steps, load_seconds, began), progress, finish)
}

/// Refuses what a model or a cluster cannot do.
fn check(model: Model, workers: usize, parts: usize) -> caravan_kv::Result<()> {
    let wrong = |why: String| Err(caravan_kv::Error::Config(why));
    let many = parts > workers;
    match model {
        _ if parts < workers => wrong(format!(
            "{parts} parts are too few for {workers} workers: take at least one for each"
        )),
        Model::SparseSsp { .. } | Model::DataCentric { .. } if many => wrong(format!(
            "under {model} each worker has one part, so take {workers} parts instead of {parts}"
        )),
        _ if parts.div_ceil(workers) > PARTS_MAX => wrong(format!(
            "{parts} parts on {workers} workers are more than {PARTS_MAX} for one of them"
        )),
        _ => Ok(()),
    }
}

/// Refuses blocks that are given out where parts cannot take them.
fn check_reading<T: Trainer>(
    job: &Job<T::Settings>,
    workers: usize,
    parts: usize,
) -> caravan_kv::Result<()> {
    let Reading::Near(_) = job.reading else { return Ok(()) };
    let why = match job.consistency {
        _ if T::rows_of(&job.settings).is_none() => {
            format!("{} reads its data whole before it trains, and takes no blocks", T::NAME)
        }
        model @ Model::SparseSsp { .. } => {
            format!("{model} counts on parts whose steps are known, and blocks make them vary")
        }
        _ if parts != workers => {
            format!("blocks go to workers, so take {workers} parts instead of {parts}")
        }
        _ => return Ok(()),
    };
    Err(caravan_kv::Error::Config(format!("{why} (--read)")))
}

/// Makes this driver give out blocks of files to the workers that see them.
fn give_out(
    cluster: &mut Cluster,
    files: &[PathBuf],
    loaded: Vec<Loaded>,
    bytes: u64,
) -> caravan_kv::Result<()> {
    let readers = loaded.len();
    let seen: Vec<_> = loaded.into_iter().map(|it| it.sights).collect();
    let blocks = feed::placed(files, &seen, bytes).map_err(caravan_kv::Error::Config)?;
    let answers = assigner::answers(Assigner::new(blocks, readers));
    cluster.rpc(|rpc| rpc.set_handler(feed::BLOCKS, answers))
}

fn not_owned(algorithm: &str) -> caravan_kv::Error {
    caravan_kv::Error::Config(format!(
        "parts of {algorithm} write rows of each other, and data-centric constraints are for parts that write their own: take another model, or linreg"
    ))
}

/// Parts of a worker: the pushes of an iteration that BSP keeps must fit into the credits of a
/// lane.
const PARTS_MAX: usize = 64;

/// A run that has loaded.
struct Run<'a, T> {
    cluster: &'a mut Cluster,
    /// The workers that train.
    target: Target,
    servers: Worker,
    table: Table,
    spec: TableSpec,
    /// Those that the workers read up to the end of the first pass.
    files: SharedFiles,
    algorithm: PhantomData<T>,
}

impl<T: Trainer> Run<'_, T> {
    /// Trains all passes, and reads the table.
    fn all<R>(
        mut self,
        job: &Job<T::Settings>,
        (mut steps, load_seconds, began): (Option<u64>, f64, Duration),
        mut progress: impl FnMut(&Progress),
        finish: impl FnOnce(&mut Worker, Table) -> caravan_kv::Result<R>,
    ) -> caravan_kv::Result<(Trained<T::Value>, R)> {
        let mut trained = Trained {
            rows: Rows::default(),
            objective: f64::NAN,
            passes: 0,
            seconds: 0.0,
            load_seconds,
            stopped: false,
        };
        for pass in 0..job.passes {
            let report = self.pass(&job.settings, pass, &mut steps, began)?;
            trained.objective = report.objective;
            trained.passes = pass + 1;
            trained.seconds = report.seconds;
            progress(&report);
            trained.stopped = job.stop.load(Ordering::Relaxed) && pass + 1 < job.passes;
            if trained.stopped {
                break;
            }
        }
        if T::READS {
            trained.rows = self.rows()?;
            diverged::check_rows::<T>(trained.passes.saturating_sub(1), &trained.rows)?;
        }
        let finished = finish(&mut self.servers, self.table)?;
        Ok((trained, finished))
    }

    fn rows(&mut self) -> caravan_kv::Result<Rows<T::Value>> {
        let width = self.spec.width as usize;
        let keys = match self.spec.store {
            _ if self.target != Target::Workers => self.ask::<Vec<u64>>(&Order::Publish)?.concat(),
            Store::Dense => (self.spec.begin..=self.spec.range()?.last()).collect(),
            Store::Sparse => self.keys()?,
        };
        let mut values = Vec::with_capacity(keys.len() * width);
        for keys in keys.chunks(PULL_KEYS) {
            let pulled = self.servers.pull(self.table, keys)?;
            values.extend_from_slice(self.servers.wait(pulled)?.values::<T::Value>());
        }
        Ok(Rows { keys, values, width })
    }

    /// Sends an order to the workers that train, and returns their answers.
    fn ask<A: DeserializeOwned>(
        &mut self,
        order: &Order<T::Settings>,
    ) -> caravan_kv::Result<Vec<A>> {
        ask::<T, A>(self.cluster, &self.target, order)
    }

    fn keys(&mut self) -> caravan_kv::Result<Vec<u64>> {
        let of_workers: Vec<Vec<u64>> = self.ask(&Order::Keys)?;
        let mut keys = of_workers.concat();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    fn pass(
        &mut self,
        settings: &T::Settings,
        pass: u64,
        steps: &mut Option<u64>,
        began: Duration,
    ) -> caravan_kv::Result<Progress> {
        let order = Order::Pass { pass, steps: *steps };
        let passed: Vec<Passed> = self.ask(&order)?;
        // Now all rows are there.
        *steps = passed.iter().map(|passed| passed.steps).max();
        if let Some(clock) = passed.iter().filter_map(|passed| passed.left).max() {
            let _: Vec<u64> = self.ask(&Order::Rejoin { clock })?;
        }
        if pass == 0 {
            self.files.check().map_err(refused)?;
        }
        let mut second = None;
        let mut seconds = passed.iter().map(|passed| passed.second.clone());
        seconds.try_for_each(|next| Second::join(&mut second, next)).map_err(refused)?;
        let mut sums = Sums::default();
        passed.iter().for_each(|passed| sums.add(&passed.sums));
        diverged::check_data::<T>(pass, settings, &sums)?;
        let objective = T::objective(settings, &sums, &mut || self.rows())?;
        diverged::check::<T>(pass, "the objective", objective)?;
        Ok(Progress {
            algorithm: T::NAME,
            pass,
            objective,
            seconds: (self.servers.now() - began).as_secs_f64(),
            sums,
            worker_bytes_sent: passed.iter().map(|passed| passed.bytes_sent).sum(),
            server_bytes_sent: passed.iter().map(|passed| passed.bytes_received).sum(),
        })
    }
}

/// What is wrong with the data of several workers together.
fn refused(error: crate::Error) -> caravan_kv::Error {
    caravan_kv::Error::Config(with_sources(&error))
}

/// Sends an order to workers and returns their answers.
fn ask<T: Trainer, A: DeserializeOwned>(
    cluster: &mut Cluster,
    target: &Target,
    order: &Order<T::Settings>,
) -> caravan_kv::Result<Vec<A>> {
    let task = cluster.submit(target.clone(), T::NAME, &serde_json::to_value(order)?)?;
    let answers = cluster.wait(task)?;
    Ok(answers.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
}
