//! `caravan predict`: a model's margins on examples, their quality, and the predictions themselves.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use caravan_learn::data::{self, Examples, Shard};
use caravan_learn::model::{self, Model, RowModel};
use caravan_learn::sgd::Loss;
use caravan_learn::{fm, kmeans, lda, mf, replace_file};

use super::kmeans::Distances;
use super::rows::{Perplexity, Prediction, Quality, Rmse, finite};
use crate::cli::{Common, Predict};
use crate::report::Report;

pub(crate) fn run(common: &Common, args: &Predict) -> Result<()> {
    if let Some(path) = &args.out {
        replace_file::check(path)?;
    }
    if RowModel::is_one(&args.model)? {
        return rows(common, args, &RowModel::read(&args.model)?);
    }
    let model = Model::read(&args.model)?;
    let examples = read(args.loss.into(), &args.data)?;
    scored(common, args, (args.loss.into(), &examples), &model::predict(&model, &examples))
}

/// Writes margins and prints their quality.
fn scored(
    common: &Common,
    args: &Predict,
    (loss, examples): (Loss, &Examples),
    margins: &[f64],
) -> Result<()> {
    let quality = Quality::of(loss, examples, margins)?;
    if let Some(path) = &args.out {
        model::write_predictions(path, margins)?;
    }
    Report::new(common.format(), 0).row(&Prediction { rows: examples.rows(), quality })
}

/// Measures a model of rows, as its algorithm says.
fn rows(common: &Common, args: &Predict, model: &RowModel) -> Result<()> {
    let path = || args.model.display().to_string();
    let algorithm = &model.algorithm;
    let marginless = args.out.is_none() || ["fm", "kmeans"].contains(&algorithm.as_str());
    ensure!(marginless, "a model of {algorithm} has no margins to write to --out");
    match algorithm.as_str() {
        "fm" => {
            let examples = read(Loss::Logistic, &args.data)?;
            scored(common, args, (Loss::Logistic, &examples), &fm::margins(model, &examples))
        }
        "mf" => {
            let ratings = mf::Ratings::read(&args.data, Shard::ALL)?;
            let rmse = finite("RMSE", mf::rmse(model, &ratings).with_context(path)?)?;
            let rmse =
                rmse.ok_or_else(|| anyhow!("no ratings are in {}", data::listed(&args.data)))?;
            let ratings = ratings.all.len() as u64;
            Report::new(common.format(), 0).row(&Rmse { ratings, rmse })
        }
        "lda" => {
            let corpus = lda::Corpus::read(&args.data, Shard::ALL)?;
            let foretold = lda::Topics::of(model).with_context(path)?.foretell(&corpus);
            ensure!(
                foretold.tokens > 0,
                "no words of the model are in {}",
                data::listed(&args.data)
            );
            finite("perplexity", Some(foretold.perplexity))?;
            Report::new(common.format(), 0).row(&Perplexity::of(foretold))
        }
        "kmeans" => {
            let centres = kmeans::Centres::of_model(model).with_context(path)?;
            let points = kmeans::Points::read(&args.data)?;
            ensure!(!points.is_empty(), "no points are in {}", data::listed(&args.data));
            let distances = Distances::of(&centres, &points, args.out.as_deref())?;
            Report::new(common.format(), 0).row(&distances)
        }
        other => bail!("{}: this program knows no algorithm {other}", path()),
    }
}

/// Reads whole files, in order, on all cores, with labels as a loss takes them.
pub(crate) fn read(loss: Loss, files: &[PathBuf]) -> Result<Examples> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let examples = data::read_as(loss.labels(), files, Shard::ALL, threads)?;
    ensure!(examples.rows() > 0, "no examples are in {}", data::listed(files));
    Ok(examples)
}
