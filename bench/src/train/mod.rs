//! `caravan train dbpg`: has caravan-learn train on the cluster, prints what it says as rows, and writes models.

mod rows;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use caravan_learn::dbpg::blocks::Order;
use caravan_learn::dbpg::{self, Driver, Job, Straggle, Trained};
use caravan_learn::model::{Format, Model};
use caravan_learn::replace_file::{self, replace};

pub(crate) use rows::{Outcome, Pass, Prediction, Quality, Traffic};

use crate::cli::{BlockOrder, Common, Dbpg};
use crate::cluster;
use crate::interrupt::Interrupt;
use crate::plot::{self, Curve, Point};
use crate::predict::read;
use crate::progress::Progress;
use crate::report::{Report, Row};
use crate::usage::{Interrupted, Usage};

/// Passes with `--smoke`.
const SMOKE_PASSES: u64 = 3;

/// Runs `caravan train dbpg`.
///
/// # Errors
/// Names the file or the node; rows that cannot be written; [`Interrupted`] after Ctrl-C or a plea to end.
pub(crate) fn dbpg(common: &Common, args: &Dbpg) -> Result<()> {
    let lambdas = lambdas(args)?;
    let interrupt = Interrupt::watch().context("cannot watch for Ctrl-C")?;
    let config = cluster::config(common)?;
    let mut job = job(common, args, lambdas[lambdas.len() - 1])?;
    job.threads = worker_threads(args, config.workers);
    job.check().map_err(|error| Usage(error.to_string()))?;
    let saves = output(args).is_some();
    if saves {
        job.stop = interrupt.flag();
    }
    // A wrong name shall not cost a training run: what is to be written is tried, and the test set read, before it.
    for path in output(args).into_iter().chain(args.outcome.plot.as_deref()) {
        replace_file::check(path)?;
    }
    let test = if args.test.is_empty() { None } else { Some(read(&args.test)?) };
    let mut cluster = cluster::launch(&config, common)?;
    let mut report = Report::new(common.json);
    let progress = Progress::new(job.passes_max as usize, common.json);
    progress.doing("loading".to_owned());
    let mut driver = Driver::load(&mut cluster, &job)?;
    let lambdas = match args.objective.lambda_path {
        Some(count) => path(driver.lambda_max()?, lambdas[0], count),
        None => lambdas,
    };
    if saves {
        interrupt.defer();
    }
    let mut stopped = None;
    let mut curves = Vec::new();
    for &lambda in &lambdas {
        progress.restart();
        let mut printed = Ok(());
        let mut curve = Curve { name: format!("lambda {lambda}"), points: Vec::new() };
        let trained = driver.solve(lambda, |pass| {
            progress.step();
            curve.points.push(point(pass));
            progress.doing(format!("lambda {lambda}, objective {:.6e}", pass.objective));
            if printed.is_ok() {
                printed = report.row(&Row::Progress(Pass::from(pass)), &progress);
            }
        })?;
        printed?;
        curves.push(curve);
        let file = output(args).map(|path| model_file(path, lambda, lambdas.len() > 1));
        if let Some(file) = &file {
            write(&trained, args, &job, file)?;
        }
        progress.hidden(|| remark(&trained, common, args));
        for traffic in &trained.traffic {
            report.row(&Row::Traffic(Traffic::from(traffic)), &progress)?;
        }
        report.row(&Row::Result(Outcome::of(&trained, test.as_ref())), &progress)?;
        if trained.stopped {
            stopped = file;
            break;
        }
    }
    if let Some(path) = &args.outcome.plot {
        replace(path, plot::svg(&curves).as_bytes())?;
    }
    cluster.shutdown()?;
    stopped.map_or(Ok(()), |file| {
        let file = file.display();
        let saved = format!("the model so far is in {file}; --resume {file} goes on");
        Err(Interrupted { status: interrupt.status(), saved }.into())
    })
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

/// Those given, without repetition, the largest first.
fn lambdas(args: &Dbpg) -> Result<Vec<f64>> {
    let mut lambdas = args.objective.lambda.clone();
    lambdas.sort_by(|a, b| b.total_cmp(a));
    lambdas.dedup();
    let several = lambdas.len() > 1;
    if several && args.objective.lambda_path.is_some() {
        return Err(Usage("--lambda-path takes one --lambda, the smallest".to_owned()).into());
    }
    if several && args.outcome.resume.is_some() {
        let reason = "--resume takes one --lambda: of several each has a model of its own, of which --warm-start takes one";
        return Err(Usage(reason.to_owned()).into());
    }
    Ok(lambdas)
}

/// `count` values from `largest` to `smallest`, each the same part of the one before; only `smallest` if it is not below.
fn path(largest: f64, smallest: f64, count: u32) -> Vec<f64> {
    if largest <= smallest {
        return vec![smallest];
    }
    let last = f64::from(count - 1);
    // To lambda 0 it would take for ever: a thousandth of the largest stands for it until the end.
    let bottom = if smallest > 0.0 { smallest } else { largest / 1000.0 };
    let at = |k: u32| largest * (bottom / largest).powf(f64::from(k) / last);
    (0..count - 1).map(at).chain([smallest]).collect()
}

/// `SHARE:MS` of `--straggle`.
pub(crate) fn straggle(text: &str) -> std::result::Result<Straggle, String> {
    let parts = text.split_once(':').and_then(|(share, ms)| {
        share.parse::<f64>().ok().zip(ms.parse().ok().map(Duration::from_millis))
    });
    let fits = parts.filter(|(share, _)| (0.0..=1.0).contains(share));
    fits.map(|(share, pause)| Straggle { share, pause }).ok_or_else(|| {
        format!("{text:?} is no share of blocks from 0 to 1 and milliseconds, as 0.05:20")
    })
}

fn job(common: &Common, args: &Dbpg, lambda: f64) -> Result<Job> {
    let (objective, method) = (&args.objective, &args.method);
    let mut job = Job::new(args.data.clone(), lambda);
    job.cache = args.cache.clone();
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
    job.straggle = method.straggle;
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

/// As asked for, or else as many as keep all workers on this machine busy.
fn worker_threads(args: &Dbpg, workers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let share = (cores / workers.max(1)).max(1);
    args.method.worker_threads.map_or(share, |threads| threads as usize)
}

/// Where the model goes.
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

fn write(trained: &Trained, args: &Dbpg, job: &Job, file: &Path) -> Result<()> {
    let format = args.outcome.model_format.map_or_else(|| Format::of(file), Format::from);
    let end = match () {
        () if trained.converged => "converged",
        () if trained.stopped => "interrupted",
        () => "not converged",
    };
    let comment = format!(
        "dbpg lambda {} l2 {} intercept {} positive-weight {}: objective {}, {end} after {} passes",
        trained.lambda,
        job.proximal.l2,
        job.intercept,
        job.positive_weight,
        trained.objective,
        trained.passes
    );
    Ok(trained.model.write(file, format, &comment)?)
}

/// What a reader should know besides the result.
fn remark(trained: &Trained, common: &Common, args: &Dbpg) {
    let [columns, dropped] = trained.columns;
    if dropped > 0 {
        let limit = args.method.tail_frequency;
        eprintln!(
            "caravan: dropped {dropped} of the {columns} columns of all workers, features of {limit} examples at most"
        );
    }
    let begun_with = args.method.warm_start.as_ref().or(args.outcome.resume.as_ref());
    if let (Some(file), 1..) = (begun_with, trained.left_out) {
        eprintln!(
            "caravan: {} weights of {} were left out: the data does not have their keys, they are too rare, or at this lambda they are 0 in every solution",
            trained.left_out,
            file.display()
        );
    }
    if !trained.converged && !trained.stopped && !common.smoke {
        let passes = trained.passes;
        eprintln!(
            "caravan: stopped after {passes} passes, before epsilon was reached (see --passes)"
        );
    }
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
    fn pauses_are_a_share_and_milliseconds() {
        let pause = Duration::from_millis(20);
        assert_eq!(straggle("0.05:20"), Ok(Straggle { share: 0.05, pause }));
        for text in ["", "0.05", "1.5:20", "-1:20", "0.05:20.5", "NaN:1", "0.05:-1"] {
            assert!(straggle(text).is_err(), "{text}");
        }
    }

    #[test]
    fn models_of_several_lambdas_have_their_own_names() {
        let name = |path, lambda, several| model_file(Path::new(path), lambda, several);
        assert_eq!(name("a/out.bin", 0.5, true), Path::new("a/out.0.5.bin"));
        assert_eq!(name("out", 3.0, true), Path::new("out.3"));
        assert_eq!(name("out.model", 3.0, false), Path::new("out.model"));
    }
}
