//! `caravan train dbpg`: has caravan-learn train on the cluster, and prints what it says as rows.

mod rows;

use anyhow::{Context, Result};
use caravan_learn::dbpg::{self, Job};
use caravan_learn::model::Format;

pub(crate) use rows::{Outcome, Pass, Prediction, Quality};

use crate::cli::{Common, Dbpg};
use crate::cluster;
use crate::predict::read;
use crate::progress::Progress;
use crate::report::{Report, Row};

/// Passes with `--smoke`.
const SMOKE_PASSES: u64 = 3;

/// Runs `caravan train dbpg`.
///
/// # Errors
/// Names the file or the node; rows that cannot be written.
pub(crate) fn dbpg(common: &Common, args: &Dbpg) -> Result<()> {
    let config = cluster::config(common)?;
    let mut job = job(common, args);
    job.threads = worker_threads(args, config.workers);
    // The test set is read first: a wrong name shall not cost a training run.
    let test = if args.test.is_empty() { None } else { Some(read(&args.test)?) };
    let mut cluster = cluster::launch(&config, common)?;
    let mut report = Report::new(common.json);
    let progress = Progress::new(job.passes_max as usize, common.json);
    progress.doing("loading".to_owned());
    let mut printed = Ok(());
    let trained = dbpg::train(&mut cluster, &job, |pass| {
        progress.step();
        progress.doing(format!("objective {:.6e}", pass.objective));
        if printed.is_ok() {
            printed = report.row(&Row::Progress(Pass::from(pass)), &progress);
        }
    })?;
    printed.context("cannot write to standard output")?;
    cluster.shutdown()?;
    if !trained.converged && !common.smoke {
        let passes = trained.passes;
        progress.hidden(|| {
            eprintln!(
                "caravan: stopped after {passes} passes, before epsilon was reached (see --passes)"
            )
        });
    }
    if let Some(path) = &args.model {
        let format = args.model_format.map_or_else(|| Format::of(path), Format::from);
        let header = format!("dbpg lambda {} objective {}", args.lambda, trained.objective);
        trained.model.write(path, format, &header)?;
    }
    report.row(&Row::Result(Outcome::of(&trained, test.as_ref())), &progress)?;
    Ok(())
}

/// As asked for, or else as many as keep all workers on this machine busy.
fn worker_threads(args: &Dbpg, workers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    args.worker_threads.map_or((cores / workers.max(1)).max(1), |threads| threads as usize)
}

fn job(common: &Common, args: &Dbpg) -> Job {
    let mut job = Job::new(args.data.clone(), args.lambda);
    job.cache = args.cache.clone();
    job.delay = u64::from(args.delay);
    job.blocks = args.blocks.map(|blocks| blocks as usize);
    job.epsilon = args.epsilon;
    job.passes_max = if common.smoke { SMOKE_PASSES } else { args.passes };
    job.newton = job.newton.filter(|_| !args.no_newton);
    job.screen = !args.no_newton;
    job
}
