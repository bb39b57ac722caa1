//! `caravan train sgd` and its like: caravan-learn trains on the cluster in steps; this file prints
//! a row after each pass and the result, and writes the model.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use caravan_learn::data::{Examples, Shard, listed};
use caravan_learn::model::{Format, RowModel, predict};
use caravan_learn::trainer::{Job, Progress, Trained, Trainer, train};
use caravan_learn::{fm, lda, linreg, mf, sgd};
use serde::Serialize;
use serde_json::json;

use super::predict::read;
use super::rows::{Quality, finite};
use super::training::{Run, spare};
use crate::cli::ending::Usage;
use crate::cli::{Common, Factored, Lda, LinReg, Sgd, Steps};
use crate::cluster;
use crate::report::Row;

pub(super) fn sgd(common: &Common, args: &Sgd) -> Result<()> {
    let settings = sgd::Settings {
        files: args.steps.data.clone(),
        loss: args.loss.into(),
        mean: args.mean,
        descent: args.rule.descent("ftrl"),
    };
    let loss = settings.loss;
    let test = examples(loss, &args.test)?;
    train_in_steps::<sgd::Sgd>(common, &args.steps, settings, |trained, out| {
        let model = sgd::model(&trained.rows)?;
        let comment = format!("sgd: objective {}", trained.objective);
        out.map_or(Ok(()), |out| model.write(out, Format::of(out), &comment))?;
        Measured::of(loss, test.as_ref(), |test| predict(&model, test))
    })
}

pub(super) fn lda(common: &Common, args: &Lda) -> Result<()> {
    let files = args.steps.data.clone();
    let words = lda::vocabulary(&files)?;
    ensure!(words > 0, "no words are in {}", listed(&files));
    let Lda { topics, alpha, beta, seed, .. } = *args;
    let step_words = args.step_words as usize;
    let settings = lda::Settings { files, words, topics, alpha, beta, step_words, seed };
    let test = documents(&args.test)?;
    train_in_steps::<lda::Lda>(common, &args.steps, settings, |trained, out| {
        let model = RowModel::new("lda", json!({"alpha": alpha, "beta": beta}), trained);
        out.map_or(Ok(()), |out| model.write(out))?;
        let topics = lda::Topics::of(&model)?;
        let perplexity = test.map(|test| topics.foretell(&test).perplexity);
        let perplexity = perplexity.filter(|perplexity| perplexity.is_finite());
        Ok(Measured { perplexity, ..Measured::default() })
    })
}

pub(super) fn mf(common: &Common, args: &Factored) -> Result<()> {
    let files = args.steps.data.clone();
    let ratings = mf::Ratings::read(&files, Shard::ALL)?;
    ensure!(!ratings.all.is_empty(), "no ratings are in {}", listed(&files));
    let mean = ratings.mean();
    let names = || listed(&files);
    ensure!(mean.is_finite(), "the ratings in {} have no finite mean: scale them", names());
    let factors = (&args.factors).into();
    let descent = args.rule.descent("adagrad");
    let settings = mf::Settings { files, mean, factors, descent };
    let test = mf::Ratings::read(&args.test, Shard::ALL)?;
    let lacks = !args.test.is_empty() && test.all.is_empty();
    ensure!(!lacks, "no ratings are in {}", listed(&args.test));
    train_in_steps::<mf::Mf>(common, &args.steps, settings, |trained, out| {
        let model = RowModel::new("mf", json!({"mean": mean}), trained);
        out.map_or(Ok(()), |out| model.write(out))?;
        let rmse = finite("RMSE", mf::rmse(&model, &test)?)?;
        Ok(Measured { rmse, ..Measured::default() })
    })
}

pub(super) fn fm(common: &Common, args: &Factored) -> Result<()> {
    let files = args.steps.data.clone();
    let factors = (&args.factors).into();
    let settings = fm::Settings { files, factors, descent: args.rule.descent("adagrad") };
    let loss = sgd::Loss::Logistic;
    let test = examples(loss, &args.test)?;
    train_in_steps::<fm::Fm>(common, &args.steps, settings, |trained, out| {
        let model = RowModel::new("fm", json!({}), trained);
        out.map_or(Ok(()), |out| model.write(out))?;
        Measured::of(loss, test.as_ref(), |test| fm::margins(&model, test))
    })
}

pub(super) fn linreg(common: &Common, args: &LinReg) -> Result<()> {
    let files = args.steps.data.clone();
    let features = linreg::features(&read(sgd::Loss::Squared, &files)?)?;
    ensure!(features > 0, "no row with a key is in {}", listed(&files));
    let settings = linreg::Settings { files, features, rate: args.rate, steps: args.pass_steps };
    train_in_steps::<linreg::LinReg>(common, &args.steps, settings, |trained, out| {
        let model = sgd::model(&trained.rows)?;
        let comment = format!("linreg: objective {}", trained.objective);
        out.map_or(Ok(()), |out| model.write(out, Format::of(out), &comment))?;
        Ok(Measured::default())
    })
}

/// Reads whole files of examples, if there are any.
fn examples(loss: sgd::Loss, files: &[PathBuf]) -> Result<Option<Examples>> {
    if files.is_empty() {
        return Ok(None);
    }
    read(loss, files).map(Some)
}

/// Reads whole files of documents, if there are any.
fn documents(files: &[PathBuf]) -> Result<Option<lda::Corpus>> {
    if files.is_empty() {
        return Ok(None);
    }
    let corpus = lda::Corpus::read(files, Shard::ALL)?;
    ensure!(corpus.vocabulary() > 0, "no words are in {}", listed(files));
    Ok(Some(corpus))
}

/// What a model is worth on the test examples.
#[derive(Debug, Default)]
struct Measured {
    quality: Quality,
    rmse: Option<f64>,
    perplexity: Option<f64>,
}

impl Measured {
    /// The quality of margins of examples, if there are any.
    ///
    /// # Errors
    /// As [`Quality::of`].
    fn of(
        loss: sgd::Loss,
        test: Option<&Examples>,
        margins: impl FnOnce(&Examples) -> Vec<f64>,
    ) -> Result<Self> {
        let of = |test| Quality::of(loss, test, &margins(test));
        let quality = test.map_or_else(|| Ok(Quality::default()), of)?;
        Ok(Measured { quality, rmse: quality.rmse, ..Measured::default() })
    }
}

/// Trains, writes the model by `finish`, and prints the rows.
fn train_in_steps<T: Trainer>(
    common: &Common,
    args: &Steps,
    settings: T::Settings,
    finish: impl FnOnce(&Trained<T::Value>, Option<&Path>) -> Result<Measured>,
) -> Result<()> {
    let mut job = Job::new(settings);
    job.consistency = args.consistency;
    job.parts = args.parts.map(|parts| parts as usize);
    job.reading = args.read;
    job.hint = args.hint;
    job.passes = if common.smoke { 1 } else { args.passes };
    job.replicas = args.replicas;
    let mut config = cluster::config(common)?;
    // A job that is submitted takes the servers that are there.
    let servers = common.job.is_none().then_some(config.servers);
    job.check_replicas(servers).map_err(|error| Usage(error.to_string()))?;
    spare(&mut config, job.replicas);
    let mut run = Run::begin(common, &config, args.model.as_deref())?;
    job.stop = run.stop.clone();
    let mut rows = run.rows(common, job.passes as usize);
    let trained = train::<T>(&mut run.cluster, &job, |pass| rows.step(pass))?;
    let Measured { quality, rmse, perplexity } = finish(&trained, args.model.as_deref())?;
    rows.row(&Outcome {
        algorithm: T::NAME,
        consistency: job.hint.under(job.consistency),
        objective: trained.objective,
        rows: trained.rows.keys.len(),
        passes: trained.passes,
        seconds: trained.seconds,
        load_seconds: trained.load_seconds,
        test_logloss: quality.logloss,
        test_auc: quality.auc,
        test_accuracy: quality.accuracy,
        test_pr_auc: quality.pr_auc,
        test_rmse: rmse,
        test_perplexity: perplexity,
    });
    run.end(rows, trained.stopped)
}

impl Row for Progress {
    const KIND: &'static str = "pass";

    fn heading(&self) -> Option<String> {
        let heading = "\n\
            # objective of the pass; rows pulled and pushed in the pass; sent since the start in MB \
            (10^6)\n\
            pass   seconds       objective   examples |     pulled     pushed |  workers  servers";
        Some(heading.to_owned())
    }

    fn text(&self) -> String {
        let Progress { pass, seconds, objective, sums, .. } = self;
        let sent = [self.worker_bytes_sent, self.server_bytes_sent];
        let [workers, servers] = sent.map(|bytes| bytes as f64 / 1e6);
        format!(
            "{pass:<4} {seconds:>9.3} {objective:>15.8e} {:>10} | {:>10} {:>10} | {workers:>8.3} \
             {servers:>8.3}",
            sums.examples, sums.rows_pulled, sums.rows_pushed
        )
    }
}

/// The result of a run in steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Outcome {
    algorithm: &'static str,
    consistency: String,
    objective: f64,
    rows: usize,
    passes: u64,
    seconds: f64,
    load_seconds: f64,
    // None without test examples, or without a meaning.
    test_logloss: Option<f64>,
    test_auc: Option<f64>,
    test_accuracy: Option<f64>,
    test_pr_auc: Option<f64>,
    test_rmse: Option<f64>,
    test_perplexity: Option<f64>,
}

impl Row for Outcome {
    const KIND: &'static str = "trained";

    fn text(&self) -> String {
        let Outcome { algorithm, consistency, objective, rows, passes, .. } = self;
        let Outcome { seconds, load_seconds, .. } = self;
        let quality = Quality {
            logloss: self.test_logloss,
            auc: self.test_auc,
            accuracy: self.test_accuracy,
            pr_auc: self.test_pr_auc,
            rmse: self.test_rmse,
        };
        let perplexity = self.test_perplexity;
        let perplexity = perplexity.map(|figure| format!("\ntest: perplexity {figure:.6}"));
        format!(
            "\n{algorithm} under {consistency}: objective {objective:.10}, {rows} rows, {passes} \
             passes in {seconds:.2} s after {load_seconds:.2} s of loading{}{}",
            quality.text("\ntest: "),
            perplexity.unwrap_or_default()
        )
    }
}
