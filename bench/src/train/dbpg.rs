//! `caravan train dbpg`: caravan-learn trains on the cluster; this file prints its progress as rows
//! and writes models.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use caravan_kv::ClusterConfig;
use caravan_learn::data::{Examples, check_shared};
use caravan_learn::dbpg::blocks::Order;
use caravan_learn::dbpg::{self, Driver, Job, Trained};
use caravan_learn::model::{Format, Model};
use caravan_learn::replace_file::{self, replace};
use caravan_learn::sgd::Loss;

use super::plot::{self, Curve, Point};
use super::predict::read;
use super::rows::{self, Outcome};
use super::training::{Rows, finish, spare};
use crate::cli::ending::Usage;
use crate::cli::interrupt::Interrupt;
use crate::cli::{BlockOrder, Common, Dbpg};
use crate::cluster;
use crate::report::{Report, say};

const SMOKE_PASSES: u64 = 3;

/// Runs `caravan train dbpg`.
pub(super) fn run(common: &Common, args: &Dbpg) -> Result<()> {
    let lambdas = lambdas(args)?;
    check_shared(args.cache.as_slice())?;
    let interrupt = Interrupt::watch().context("cannot watch for Ctrl-C")?;
    let mut config = cluster::config(common)?;
    spare(&mut config, args.method.replicas);
    check_restarts(common, args, config.node.role.is_some())?;
    // A wrong name must not cost a training run: outputs are tried, and the test set is read,
    // before.
    check_outputs(args, &lambdas)?;
    let mut job = job(common, args, lambdas[lambdas.len() - 1])?;
    job.threads = worker_threads(args, config.workers);
    job.check().map_err(|error| Usage(error.to_string()))?;
    let saves = output(args).is_some();
    if saves {
        job.stop = interrupt.flag();
    }
    let test = if args.test.is_empty() { None } else { Some(read(Loss::Logistic, &args.test)?) };
    let has_outputs = saves || args.outcome.plot.is_some();
    let stop = (!has_outputs).then(|| job.stop.clone());
    let rows = Rows::new(common, job.passes_max as usize, stop);
    let mut run = Solving {
        common,
        args,
        test,
        lambdas,
        has_loaded: false,
        restarts: args.outcome.restarts,
        kept: None,
        rows,
        curves: Vec::new(),
        saved: None,
        missed: None,
        stopped: false,
    };
    let ended = loop {
        match run.go_on(&config, &job, &interrupt) {
            Ok(ended) => break ended,
            Err(error) if run.has_loaded && run.restarts > 0 => {
                run.restarts -= 1;
                run.rows.report.say(format_args!("{error:#}; a new cluster goes on"));
                job.warm_start = run.kept.take().or(job.warm_start);
            }
            Err(error) => return Err(error),
        }
    };
    let Solving { rows, curves, missed, saved, stopped, .. } = run;
    let plotted = args.outcome.plot.as_deref();
    let plotted = plotted.map_or(Ok(()), |path| replace(path, plot::svg(&curves).as_bytes()));
    let outcome = rows.outcome.and(plotted.map_err(Into::into)).and(ended.map_err(Into::into));
    let outcome = outcome.and(missed.map_or(Ok(()), |missed| bail!(missed)));
    finish(outcome, saved, stopped, &interrupt, |file| format!("; --resume {file} goes on"))
}

/// A run, which may outlive its cluster.
struct Solving<'a> {
    common: &'a Common,
    args: &'a Dbpg,
    test: Option<Examples>,
    /// The largest first. Of a path they are known once data is loaded.
    lambdas: Vec<f64>,
    has_loaded: bool,
    /// How many times it may still go on with a new cluster.
    restarts: u32,
    /// The last weights, if it may.
    kept: Option<Model>,
    rows: Rows,
    /// Of the lambdas that are solved.
    curves: Vec<Curve>,
    /// The file of the last model.
    saved: Option<PathBuf>,
    /// What the first lambda lacks that ended too far from the optimum.
    missed: Option<String>,
    stopped: bool,
}

impl Solving<'_> {
    /// Starts a cluster, loads the data and solves the lambdas that are not solved yet; returns how
    /// the cluster has ended.
    fn go_on(
        &mut self,
        config: &ClusterConfig,
        job: &Job,
        interrupt: &Interrupt,
    ) -> Result<caravan_kv::Result<()>> {
        let mut cluster = cluster::launch(config, self.common)?;
        self.rows.report.doing("loading".to_owned());
        let mut driver = Driver::load(&mut cluster, job)?;
        if !self.has_loaded {
            if let Some(count) = self.args.objective.lambda_path {
                self.lambdas = path(driver.lambda_max()?, self.lambdas[0], count);
            }
            check_outputs(self.args, &self.lambdas)?;
            if output(self.args).is_some() {
                interrupt.defer();
            }
            self.has_loaded = true;
        }
        while let Some(&lambda) = self.lambdas.get(self.curves.len()) {
            self.solve(&mut driver, job, lambda)?;
            if self.stopped {
                break;
            }
        }
        Ok(cluster.shutdown())
    }

    fn solve(&mut self, driver: &mut Driver<'_>, job: &Job, lambda: f64) -> Result<()> {
        let Solving { args, rows, kept, .. } = self;
        let file = output(args).map(|path| model_file(path, lambda, self.lambdas.len() > 1));
        let mut curve = Curve { name: format!("lambda {lambda}"), points: Vec::new() };
        rows.report.restart();
        let progress = |pass: &dbpg::Progress| {
            curve.points.push(point(pass));
            pass_row(rows, pass);
        };
        let save = |pass: &dbpg::Progress, model: Model| {
            if let (Some(file), Some(_)) = (&file, args.outcome.save_every) {
                let (objective, passes) = (pass.objective, pass.pass + 1);
                let found = Found { model: &model, lambda, objective, passes, end: "going on" };
                if let Err(error) = write(&found, args, job, file) {
                    say(format_args!(
                        "the weights were not saved, and training goes on: {error:#}"
                    ));
                }
            }
            *kept = Some(model);
        };
        let trained = driver.solve_saving(lambda, progress, save)?;
        self.curves.push(curve);
        // Before anything that may fail: nobody should train twice because of a row or a picture.
        if let Some(file) = file {
            write(&Found::of(&trained), args, job, &file)?;
            self.saved = Some(file);
        }
        if self.restarts > 0 {
            self.kept = Some(trained.model.clone());
        }
        remark(&self.rows.report, &trained, args);
        if !trained.converged && !trained.stopped && !self.common.smoke {
            let shortfall = shortfall(&trained, job);
            match args.method.strict {
                true => self.missed = self.missed.take().or(Some(shortfall)),
                false => self.rows.report.say(format_args!("{shortfall}")),
            }
        }
        result_rows(&mut self.rows, &trained, self.test.as_ref());
        self.stopped = trained.stopped;
        Ok(())
    }
}

/// Refuses what cannot be saved, or started again.
fn check_restarts(common: &Common, args: &Dbpg, is_elsewhere: bool) -> Result<()> {
    let crate::cli::Outcome { save_every, restarts, .. } = args.outcome;
    if save_every.is_some() && output(args).is_none() {
        return Err(Usage("--save-every needs --model or --resume, to save into".to_owned()).into());
    }
    if restarts > 0 && (common.external || is_elsewhere) {
        let why = "--restarts starts nodes anew, so it needs nodes that this program starts here; \
                   leave --external and --hosts out";
        return Err(Usage(why.to_owned()).into());
    }
    Ok(())
}

/// Whether all outputs of these lambdas can be written.
fn check_outputs(args: &Dbpg, lambdas: &[f64]) -> Result<()> {
    let several = lambdas.len() > 1;
    let models = output(args)
        .into_iter()
        .flat_map(|path| lambdas.iter().map(move |&lambda| model_file(path, lambda, several)));
    for path in models.chain(args.outcome.plot.clone()) {
        replace_file::check(&path)?;
    }
    Ok(())
}

/// The row of a pass.
fn pass_row(rows: &mut Rows, pass: &dbpg::Progress) {
    let dbpg::Progress { lambda, objective, .. } = pass;
    rows.report.doing(format!("lambda {lambda}, objective {objective:.6e}"));
    rows.step(pass);
}

/// The rows of a result, and what the filters have saved.
fn result_rows(rows: &mut Rows, trained: &Trained, test: Option<&Examples>) {
    for traffic in &trained.traffic {
        rows.row(traffic);
    }
    match Outcome::of(trained, test) {
        Ok(outcome) => rows.row(&outcome),
        Err(error) if rows.outcome.is_ok() => rows.outcome = Err(error),
        Err(_) => {}
    }
}

fn point(pass: &dbpg::Progress) -> Point {
    Point {
        pass: pass.pass as f64 + 1.0,
        seconds: pass.seconds,
        objective: pass.objective,
        nnz: pass.nnz as f64,
        active: pass.active as f64,
    }
}

/// The given lambdas without repetition, the largest first.
fn lambdas(args: &Dbpg) -> Result<Vec<f64>> {
    let mut lambdas = args.objective.lambda.clone();
    lambdas.sort_by(|a, b| b.total_cmp(a));
    lambdas.dedup();
    let several = lambdas.len() > 1;
    if several && args.objective.lambda_path.is_some() {
        return Err(Usage("--lambda-path takes one --lambda, the smallest".to_owned()).into());
    }
    if several && args.outcome.resume.is_some() {
        let reason = "--resume takes one --lambda: of several each has a model of its own, \
                      of which --warm-start takes one";
        return Err(Usage(reason.to_owned()).into());
    }
    Ok(lambdas)
}

/// `count` values from `largest` to `smallest`, each the same part of the one before; only
/// `smallest` if that is not below.
fn path(largest: f64, smallest: f64, count: u32) -> Vec<f64> {
    if largest <= smallest {
        return vec![smallest];
    }
    let last = f64::from(count - 1);
    // No such series reaches 0: a thousandth of the largest stands for it until the end.
    let bottom = if smallest > 0.0 { smallest } else { largest / 1000.0 };
    let at = |k: u32| largest * (bottom / largest).powf(f64::from(k) / last);
    (0..count - 1).map(at).chain([smallest]).collect()
}

fn job(common: &Common, args: &Dbpg, lambda: f64) -> Result<Job> {
    let (objective, method) = (&args.objective, &args.method);
    let mut job = Job::new(args.data.clone(), lambda);
    job.cache = args.cache.clone();
    job.memory = args.memory;
    job.proximal.l2 = objective.l2;
    job.intercept = objective.intercept;
    job.positive_weight = objective.positive_weight;
    job.delay = u64::from(method.delay.most);
    job.adapt_delay = method.delay.adapts;
    job.block_ratio = method.block_ratio;
    job.group_bits = method.group_bits;
    job.order = match method.order {
        BlockOrder::Key => Order::Key,
        BlockOrder::Random => Order::Shuffled { seed: method.seed },
        BlockOrder::Importance => Order::Importance,
    };
    job.prior.clone_from(&method.prior);
    job.proximal.learning_rate = method.learning_rate;
    job.blocks = method.blocks.map(|blocks| blocks as usize);
    job.epsilon = method.epsilon;
    job.passes_max = if common.smoke { SMOKE_PASSES } else { method.passes };
    job.newton = job.newton.filter(|_| !method.no_newton);
    job.replicas = method.replicas;
    job.straggle = method.straggle;
    let each_pass = u64::from(args.outcome.restarts > 0);
    job.save_every = args.outcome.save_every.unwrap_or(each_pass);
    job.filters = method.filters;
    job.filters.screen &= !method.no_newton;
    let tail = dbpg::Tail {
        frequency: method.tail_frequency,
        hashes: method.countmin_k,
        ratio: method.countmin_ratio,
    };
    job.tail = (tail.frequency > 0).then_some(tail);
    let there = |file: &&PathBuf| file.exists();
    let start = method.warm_start.as_ref().or(args.outcome.resume.as_ref().filter(there));
    job.warm_start = start.map(|file| Model::read(file)).transpose()?;
    Ok(job)
}

/// The given number, or as many as the workers on this machine can keep busy.
fn worker_threads(args: &Dbpg, workers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let share = (cores / workers.max(1)).max(1);
    args.method.worker_threads.map_or(share, |threads| threads as usize)
}

/// The file of the model.
fn output(args: &Dbpg) -> Option<&Path> {
    args.outcome.model.as_deref().or(args.outcome.resume.as_deref())
}

/// The file of one lambda of `several`: `out.bin` becomes `out.3.bin`.
fn model_file(path: &Path, lambda: f64, several: bool) -> PathBuf {
    if !several {
        return path.to_path_buf();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{lambda}"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

/// What is written as a model.
struct Found<'a> {
    model: &'a Model,
    lambda: f64,
    objective: f64,
    passes: u64,
    /// How far training is.
    end: &'static str,
}

impl<'a> Found<'a> {
    fn of(trained: &'a Trained) -> Found<'a> {
        let Trained { ref model, lambda, objective, passes, .. } = *trained;
        let end = match () {
            () if trained.converged => "converged",
            () if trained.stopped => "interrupted",
            () => "not converged",
        };
        Found { model, lambda, objective, passes, end }
    }
}

fn write(found: &Found<'_>, args: &Dbpg, job: &Job, file: &Path) -> Result<()> {
    let format = args.outcome.model_format.map_or_else(|| Format::of(file), Format::from);
    let Found { model, lambda, objective, passes, end } = found;
    let comment = format!(
        "dbpg lambda {lambda} l2 {} intercept {} positive-weight {}: \
         objective {objective}, {end} after {passes} passes",
        job.proximal.l2, job.intercept, job.positive_weight,
    );
    Ok(model.write(file, format, &comment)?)
}

/// Tells people what the result does not.
fn remark(report: &Report, trained: &Trained, args: &Dbpg) {
    let [columns, dropped] = trained.columns;
    if dropped > 0 {
        let limit = args.method.tail_frequency;
        report.say(format_args!(
            "dropped {dropped} of the {columns} columns of all workers, \
             features of {limit} examples at most"
        ));
    }
    let begun_with = args.method.warm_start.as_ref().or(args.outcome.resume.as_ref());
    if let (Some(file), 1..) = (begun_with, trained.left_out) {
        report.say(format_args!(
            "{} weights of {} were left out: the data does not have their keys, they are too \
             rare, or at this lambda they are 0 in every solution",
            trained.left_out,
            file.display()
        ));
    }
}

/// What a run has that ended before it was as near the least objective as asked for.
fn shortfall(trained: &Trained, job: &Job) -> String {
    let Trained { lambda, passes, objective, .. } = trained;
    let known = rows::bound(trained).map_or(String::new(), |bound| {
        format!(": the objective may be {:.1e} of it above the least", bound / objective)
    });
    format!(
        "lambda {lambda} ended after {passes} passes, before epsilon {:e} was reached{known} (see \
         --passes)",
        job.epsilon
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_down_evenly_and_ends_where_it_was_told() {
        let near = |found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            let mut pairs = found.iter().zip(expected);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}");
        };
        near(&path(100.0, 1.0, 3), &[100.0, 10.0, 1.0]);
        near(&path(100.0, 0.0, 3), &[100.0, 100.0 / 1000_f64.sqrt(), 0.0]);
        assert_eq!(path(1.0, 1.0, 5), [1.0]);
        assert_eq!(path(0.0, 2.0, 5), [2.0]);
    }

    #[test]
    fn models_of_several_lambdas_have_their_own_names() {
        let name = |path, lambda, several| model_file(Path::new(path), lambda, several);
        assert_eq!(name("a/out.bin", 0.5, true), Path::new("a/out.0.5.bin"));
        assert_eq!(name("out", 3.0, true), Path::new("out.3"));
        assert_eq!(name("out.model", 3.0, false), Path::new("out.model"));
    }
}
