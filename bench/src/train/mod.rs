//! `caravan train` and `caravan predict`, each kind of algorithm in a file of its own.

mod dbpg;
pub(crate) mod generate;
mod kmeans;
mod plot;
pub(crate) mod predict;
mod rows;
mod steps;
mod training;

use std::path::PathBuf;

use anyhow::{Result, bail};
use caravan_learn::data::check_shared;

use crate::cli::{Common, TrainCommand};

/// Where a process finds what it has open, and each process something else.
const OWN: [&str; 3] = ["/dev/stdin", "/dev/fd", "/proc/self"];

/// Runs `caravan train`.
///
/// # Errors
/// Names the file or the node; rows that cannot be written; an interruption after Ctrl-C or
/// SIGTERM.
pub(crate) fn run(common: &Common, command: &TrainCommand) -> Result<()> {
    check_shared(command.data())?;
    let is_own = |path: &&PathBuf| OWN.iter().any(|own| path.starts_with(own));
    if let Some(path) = command.data().iter().find(is_own) {
        let path = path.display();
        bail!("{path} is open in this process alone, and not in workers: name the file itself");
    }
    match command {
        TrainCommand::Dbpg(args) => dbpg::run(common, args),
        TrainCommand::Sgd(args) => steps::sgd(common, args),
        TrainCommand::Lda(args) => steps::lda(common, args),
        TrainCommand::Mf(args) => steps::mf(common, args),
        TrainCommand::Fm(args) => steps::fm(common, args),
        TrainCommand::Linreg(args) => steps::linreg(common, args),
        TrainCommand::Kmeans(args) => kmeans::run(common, args),
    }
}
