//! How a server falls.

use clap::ValueEnum;
use serde::Serialize;

/// How a server falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fall {
    /// Its process is killed: its lanes break.
    Kill,
    /// Its process is stopped: it falls silent.
    Stop,
}
