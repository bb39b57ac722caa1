//! What the driver tells DBPG's server threads, and what they report.
//!
//! Place: driver > **orders** > shard.

use serde::{Deserialize, Serialize};

use super::filters::Lossy;

/// What the table's options say.
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
    /// Whether pushes are rounded, and curvatures come as logarithms for that.
    pub(crate) rounds: bool,
    /// First and last key of each block.
    pub(crate) blocks: Vec<(u64, u64)>,
}

/// What the driver tells every server thread.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// A pass begins: its tasks are numbered from `first`, in the order of `blocks`.
    /// With `all`, requests name filtered columns too.
    Pass {
        first: u64,
        blocks: Vec<usize>,
        threshold: f64,
        reset: bool,
        all: bool,
        lossy: Option<Lossy>,
    },
    /// Go on with this λ. The next pass begins with a reset, if there was one before.
    Lambda { lambda: f64 },
    /// How far it has got, with the gains of blocks if they are wanted. Answered with a [`Report`].
    Report { gains: bool },
    /// The non-zero weights. Answered with pairs of key and weight, as JSON.
    Weights,
    /// The weights of the coordinates that the filter leaves in, 0 or not. After a pass that began with all of them and moved
    /// none, those are the ones with |g| = λ or hardly less. Answered as [`Command::Weights`].
    Border,
    /// Set these weights, sorted by key, between passes. Answered with the number of them that are this thread's.
    Set { weights: Vec<(u64, f64)> },
}

/// One server thread's share of the progress columns.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// λ‖w‖₁ + ½ λ₂‖w‖².
    pub(crate) penalty: f64,
    pub(crate) nonzeros: usize,
    pub(crate) active: usize,
    /// Largest |g| at a weight of 0.
    pub(crate) steepest: f64,
    pub(crate) coordinates: usize,
    /// Spent on the pushes and pulls of the pass.
    pub(crate) busy_seconds: f64,
    pub(crate) peak_rss_mib: f64,
    pub(crate) process: u32,
    /// What each block has gained in the pass, as [`Coordinates::update`] says: `[blocks]`, or nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gains: Vec<f64>,
}
