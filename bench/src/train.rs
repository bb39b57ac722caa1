//! `caravan train dbpg` and `caravan predict`: what caravan-learn computes, as rows.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, Result};
use caravan_learn::data::{Examples, Shard, libsvm};
use caravan_learn::dbpg::{self, Job, Trained};
use caravan_learn::metrics;
use caravan_learn::model::{Model, predict};
use serde::{Deserialize, Serialize};

use crate::cli::{Common, Dbpg, Predict};
use crate::cluster;
use crate::progress::Progress;
use crate::report::{Report, Row};

/// Passes with `--smoke`.
const SMOKE_PASSES: u64 = 3;

/// The row after each pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pass {
    pub(crate) pass: u64,
    pub(crate) seconds: f64,
    pub(crate) objective: f64,
    pub(crate) relative: f64,
    pub(crate) nnz: usize,
    pub(crate) active: usize,
    pub(crate) violation: f64,
    pub(crate) worker_busy: f64,
    pub(crate) worker_bytes_sent: u64,
    pub(crate) server_bytes_sent: u64,
}

/// The last row of training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) algorithm: String,
    pub(crate) objective: f64,
    pub(crate) nnz: usize,
    pub(crate) passes: u64,
    pub(crate) seconds: f64,
    pub(crate) load_seconds: f64,
    pub(crate) peak_rss_mib: f64,
    /// Without test examples there is nothing to say.
    pub(crate) test_logloss: Option<f64>,
    pub(crate) test_auc: Option<f64>,
}

/// The row of `caravan predict`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Prediction {
    pub(crate) rows: usize,
    pub(crate) logloss: Option<f64>,
    pub(crate) auc: Option<f64>,
    pub(crate) accuracy: Option<f64>,
}

impl From<&dbpg::Progress> for Pass {
    fn from(progress: &dbpg::Progress) -> Self {
        Pass {
            pass: progress.pass,
            seconds: progress.seconds,
            objective: progress.objective,
            relative: progress.relative,
            nnz: progress.nnz,
            active: progress.active,
            violation: progress.violation,
            worker_busy: progress.worker_busy,
            worker_bytes_sent: progress.worker_bytes_sent,
            server_bytes_sent: progress.server_bytes_sent,
        }
    }
}

/// Runs `caravan train dbpg`.
///
/// # Errors
/// Names the file or the node; rows that cannot be written.
pub(crate) fn dbpg(common: &Common, args: &Dbpg) -> Result<()> {
    let job = job(common, args);
    // The test set is read first: a wrong name shall not cost a training run.
    let test = if args.test.is_empty() { None } else { Some(read(&args.test)?) };
    let config = cluster::config(common)?;
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
        let header = format!("dbpg lambda {} objective {}", args.lambda, trained.objective);
        trained.model.write(path, &header)?;
    }
    report.row(&Row::Result(outcome(&trained, test.as_ref())), &progress)?;
    Ok(())
}

fn job(common: &Common, args: &Dbpg) -> Job {
    let mut job = Job::new(args.data.clone(), args.lambda);
    job.delay = u64::from(args.delay);
    job.blocks = args.blocks.map(|blocks| blocks as usize);
    job.epsilon = args.epsilon;
    job.passes_max = if common.smoke { SMOKE_PASSES } else { args.passes };
    job.newton = job.newton.filter(|_| !args.no_newton);
    job.screen = !args.no_newton;
    job
}

fn outcome(trained: &Trained, test: Option<&Examples>) -> Outcome {
    let margins = test.map(|test| predict(&trained.model, test));
    let measured = test.zip(margins.as_deref());
    Outcome {
        algorithm: "dbpg".to_owned(),
        objective: trained.objective,
        nnz: trained.model.nonzeros(),
        passes: trained.passes,
        seconds: trained.seconds,
        load_seconds: trained.load_seconds,
        peak_rss_mib: trained.peak_rss_mib,
        test_logloss: measured.and_then(|(test, margins)| metrics::log_loss(&test.labels, margins)),
        test_auc: measured.and_then(|(test, margins)| metrics::auc(&test.labels, margins)),
    }
}

/// Runs `caravan predict`.
///
/// # Errors
/// Names the file, and the line that is wrong.
pub(crate) fn run_predict(common: &Common, args: &Predict) -> Result<()> {
    let model = Model::read(&args.model)?;
    let examples = read(&args.data)?;
    let margins = predict(&model, &examples);
    let row = Prediction {
        rows: examples.rows(),
        logloss: metrics::log_loss(&examples.labels, &margins),
        auc: metrics::auc(&examples.labels, &margins),
        accuracy: metrics::accuracy(&examples.labels, &margins),
    };
    let progress = Progress::new(0, true);
    Ok(Report::new(common.json).row(&Row::Predict(row), &progress)?)
}

fn read(files: &[PathBuf]) -> Result<Examples> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Ok(libsvm::read(files, Shard::ALL, threads)?)
}
