//! `caravan predict`: a model's margins on examples, their quality, and the predictions themselves.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use caravan_learn::data::{self, Examples, Shard};
use caravan_learn::model::{self, Model};
use caravan_learn::replace_file;

use super::rows::{Prediction, Quality};
use crate::cli::{Common, Predict};
use crate::report::Report;

pub(crate) fn run(common: &Common, args: &Predict) -> Result<()> {
    if let Some(path) = &args.out {
        replace_file::check(path)?;
    }
    let model = Model::read(&args.model)?;
    let examples = read(&args.data)?;
    let margins = model::predict(&model, &examples);
    if let Some(path) = &args.out {
        model::write_predictions(path, &margins)?;
    }
    let quality = Quality::of(&examples, &margins);
    Report::new(common.format(), 0).row(&Prediction { rows: examples.rows(), quality })
}

/// Reads whole files, in order, on all cores.
pub(crate) fn read(files: &[PathBuf]) -> Result<Examples> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let examples = data::read(files, Shard::ALL, threads)?;
    ensure!(examples.rows() > 0, "no examples are in {}", data::listed(files));
    Ok(examples)
}
