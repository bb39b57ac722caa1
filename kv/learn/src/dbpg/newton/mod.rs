//! The second-order method: proximal Newton steps on a working set, at any support.
//!
//! F is minimised by outer steps. With margins m_i, σ(-m_i) of the wrong label, and row weights
//! c_i,
//!
//! ```text
//! p_i = -y_i c_i σ(-m_i)      D_i = c_i (a_i + θ (tanh(m_i / 2) / (2 m_i) - a_i))
//! g = Xᵀp    h = (X²)ᵀD       a_i = σ(m_i) σ(-m_i)
//! q(v) = g·(v - w) + ½ (v - w)ᵀ XᵀDX (v - w) + λ‖v‖₁ + ½ λ₂‖v‖²
//! ```
//!
//! θ = 1 is Jaakkola and Jordan's upper bound of the loss (Statistics and Computing 2000), θ = 0 is
//! Newton's model; θ falls while full steps are taken, and rises when one is not, which is the
//! damping. The working set W has the support and the columns that violate |g| ≤ λ most. Blocks of
//! W in random order take coordinate descent on their exact small Hessians, which are summed once
//! an outer step; where that crawls, conjugate gradients on the active set { v ≠ 0 } move all of it
//! at once (`active_set`). F is then measured on the way from w to v, and falls by Armijo's rule
//! (proximal Newton with a line search: Lee, Sun and Saunders, SIAM J. Optim. 2014; newGLMNET:
//! Yuan, Ho and Lin, JMLR 2012). A duality gap bounds F - F* and ends the run (`bound`).
//!
//! Workers hold rows, servers sum over workers and solve blocks, the driver decides. All sums over
//! rows are of integers (`fixed`), so a run takes the same steps to the bit for any number of
//! workers, threads and servers.
//!
//! ```text
//! worker  task: g, h of all columns ----> scores   sums; the columns that violate most
//! driver  step: W, in blocks -----------> blocks   w, v, h and the Hessian of each block
//! worker  task: X_Bᵀ(p + D Xd) ---------> blocks   coordinate descent
//!               Xd += X_B Δ_B  <---Δ_B---
//! driver  active_set: direction -> worker: its product -> blocks: sum -> driver
//! ```

mod active_set;
mod blocks;
mod bound;
mod disk;
mod plan;
mod scores;
mod step;
mod task;
mod working;

use caravan_kv::filter::Filters;
use caravan_kv::{Refusal, Refused, Store, Table, TableSpec, ValueType};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};

use super::scaling::Scaling;

pub(super) use blocks::{Blocks, HANDLE as BLOCKS};
pub(super) use disk::Disk;
pub(super) use scores::{HANDLE as SCORES, Scores};
pub(super) use step::{ASKED_MIN, Data, Newton, Outer, keys_of};
pub(super) use task::{Order, Run, Task};

/// Columns of a block by default.
pub const BLOCK_COLUMNS: usize = 256;

/// Most columns of a block: a worker numbers them in 16 bits, and a block's Hessian takes 4 MiB.
pub(super) const BLOCK_COLUMNS_MAX: usize = 1024;

/// Ids of the tables.
const SCORES_TABLE: u32 = 2;
const BLOCKS_TABLE: u32 = 5;

/// Log₂ of the keys that a server thread has in the table of blocks, and of those of a kind.
const THREAD_BITS: u32 = 32;
const KIND_BITS: u32 = 24;

/// The kinds of rows in the table of blocks: each block has one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// From the driver: key, weight and curvature of each column.
    Plan,
    /// From workers: their parts of the Hessian. Driver and workers pull nothing of it.
    Gram,
    /// From workers: their parts of the gradient of q; answered with the block's step.
    Step,
    /// From workers: numbers of the columns of the active set, summed; to the driver.
    Sum,
    /// From the driver: a direction, or a step; to workers.
    Direction,
    /// To the driver: v. From the driver: a new one.
    Iterate,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Plan, Kind::Gram, Kind::Step, Kind::Sum, Kind::Direction, Kind::Iterate];

    /// The key of the row of block `block`, of which server thread `block % threads` has each.
    fn key(self, block: usize, threads: usize) -> u64 {
        let thread = (block % threads) as u64;
        thread << THREAD_BITS | (self as u64) << KIND_BITS | (block / threads) as u64
    }

    /// The kind of a row, and its number among those of its thread.
    fn of(key: u64) -> Option<(Kind, usize)> {
        let kind = Kind::ALL.get((key >> KIND_BITS) as usize & 0xff).copied();
        kind.map(|kind| (kind, key as usize & ((1 << KIND_BITS) - 1)))
    }
}

/// The tables' specifications.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tables {
    scores: TableSpec,
    blocks: TableSpec,
}

impl Tables {
    /// For weights with these keys on as many server threads.
    pub(super) fn new(
        keys: KeyRange,
        threads: usize,
        workers: usize,
        scaling: &Scaling,
        filters: Filters,
    ) -> Self {
        let table = |id, name, handle: &str, keys| {
            let mut spec = TableSpec::new(id, name, ValueType::I64, 0).handle(handle).keys(keys);
            spec.store = Store::Sparse;
            let options = Options { workers, scaling: scaling.clone() };
            spec.filters(filters)
                .options(serde_json::to_value(options).expect("numbers and lists are JSON"))
        };
        let rows = KeyRange::new(0, (threads as u64) << THREAD_BITS);
        Tables {
            scores: table(SCORES_TABLE, "scores", SCORES, keys),
            blocks: table(BLOCKS_TABLE, "blocks", BLOCKS, rows.expect("there is a server thread")),
        }
    }

    /// The same with this many copies of each shard.
    pub(super) fn replicas(mut self, replicas: u32) -> Self {
        self.scores.replicas = replicas;
        self.blocks.replicas = replicas;
        self
    }

    /// Creates them, or finds them.
    pub(super) fn create(&self, by: &mut caravan_kv::Worker) -> caravan_kv::Result<Open> {
        let scores = by.admin().create_table(&self.scores)?;
        let blocks = by.admin().create_table(&self.blocks)?;
        Ok(Open { scores, blocks })
    }
}

/// The tables of the method, as their users hold them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) scores: Table,
    pub(super) blocks: Table,
}

/// The options of both tables.
#[derive(Debug, Serialize, Deserialize)]
struct Options {
    workers: usize,
    /// How columns are divided.
    #[serde(default, skip_serializing_if = "Scaling::is_empty")]
    scaling: Scaling,
}

impl Options {
    fn of(options: &serde_json::Value) -> Result<Options, Refused> {
        match serde_json::from_value(options.clone()) {
            Ok(Options { workers: 0, .. }) => {
                Err(Refusal::Shape.because("a table of Newton steps needs a worker"))
            }
            Ok(options) => Ok(options),
            Err(error) => Err(error.into()),
        }
    }
}

/// The signs and sizes of a step of coordinate descent: the v that minimises
/// gradient (v - at) + ½ curvature (v - at)² + λ|v|.
fn soft(at: f64, gradient: f64, curvature: f64, lambda: f64) -> f64 {
    let free = at - gradient / curvature;
    let room = lambda / curvature;
    if free > room {
        free - room
    } else if free < -room {
        free + room
    } else {
        0.0
    }
}

/// The component of the subgradient of least norm of q plus the penalty at `at`.
fn least_subgradient(at: f64, gradient: f64, lambda: f64) -> f64 {
    if at > 0.0 {
        gradient + lambda
    } else if at < 0.0 {
        gradient - lambda
    } else {
        gradient.signum() * (gradient.abs() - lambda).max(0.0)
    }
}

/// gradient step + λ (|to| - |from|), exact to its own rounding where no sign changes.
fn change(from: f64, to: f64, step: f64, gradient: f64, lambda: f64) -> f64 {
    if from * to >= 0.0 {
        let sign = if from + to < 0.0 { -1.0 } else { 1.0 };
        step * (gradient + lambda * sign)
    } else {
        step * gradient + lambda * (to.abs() - from.abs())
    }
}
