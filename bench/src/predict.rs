//! `caravan predict`: a model's margins on examples, how good they are, and the predictions themselves.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use caravan_learn::data::{self, Examples, Shard};
use caravan_learn::model::{self, Model};
use caravan_learn::replace_file;

use crate::cli::{Common, Predict};
use crate::progress::Progress;
use crate::report::{Report, Row};
use crate::train::{Prediction, Quality};

/// Runs `caravan predict`.
///
/// # Errors
/// Names the file, and the line that is wrong.
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
    let row = Row::Predict(Prediction { rows: examples.rows(), quality });
    Report::new(common.json).row(&row, &Progress::new(0, true))
}

/// Reads whole files, in order, on all cores.
///
/// # Errors
/// Names the file, and the line that is wrong; files without examples.
pub(crate) fn read(files: &[PathBuf]) -> Result<Examples> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let examples = data::read(files, Shard::ALL, threads)?;
    ensure!(examples.rows() > 0, "no examples are in {}", data::listed(files));
    Ok(examples)
}
