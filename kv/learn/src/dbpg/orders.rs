//! The driver's commands to DBPG's server threads, and their reports.
//!
//! Place: driver > **orders** > shard.

use serde::{Deserialize, Serialize};

use super::filters::Lossy;
use super::scaling::Scaling;
use crate::numeric::json;

/// Options of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) lambda: f64,
    pub(crate) l2: f64,
    /// Key of the intercept.
    pub(crate) free: Option<u64>,
    pub(crate) learning_rate: f64,
    pub(crate) delta_init: f64,
    pub(crate) delta_max: f64,
    pub(crate) workers: usize,
    /// Whether weights are kept to single precision.
    pub(crate) narrow: bool,
    /// Whether pushes are rounded, so that curvatures come as logarithms.
    pub(crate) rounds: bool,
    /// First and last key of each block.
    pub(crate) blocks: Vec<(u64, u64)>,
    /// How columns are divided.
    #[serde(default, skip_serializing_if = "Scaling::is_empty")]
    pub(crate) scaling: Scaling,
}

/// A command of the driver to every server thread.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// A pass begins: its tasks are numbered from `first`, in the order of `blocks`. With `all`,
    /// requests name filtered columns too.
    Pass {
        first: u64,
        blocks: Vec<usize>,
        threshold: f64,
        reset: bool,
        all: bool,
        lossy: Option<Lossy>,
    },
    /// Continue with this λ. The next pass begins with a reset, if there was one before.
    Lambda { lambda: f64 },
    /// Report progress, with the gains of blocks if requested. Answered with a [`Report`].
    Report { gains: bool },
    /// Return the non-zero weights. Answered with pairs of key and weight, as JSON.
    Weights,
    /// Set these weights, sorted by key, between passes. Answered with how many of them are this
    /// thread's.
    Set { weights: Vec<(u64, f64)> },
}

/// One server thread's share of the progress columns.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// λ‖w‖₁ + ½ λ₂‖w‖².
    #[serde(deserialize_with = "json::number")]
    pub(crate) penalty: f64,
    pub(crate) nonzeros: usize,
    pub(crate) active: usize,
    /// Largest |g| at a weight of 0.
    pub(crate) steepest: f64,
    pub(crate) coordinates: usize,
    /// Time spent on the pushes and pulls of the pass.
    pub(crate) busy_seconds: f64,
    pub(crate) peak_rss_mib: f64,
    pub(crate) process: u32,
    /// Gain of each block in the pass, from [`Coordinates::update`]: `[blocks]`, or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gains: Vec<f64>,
}
