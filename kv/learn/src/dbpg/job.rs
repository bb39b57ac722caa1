//! A training job: the problem and its settings, the progress of a run, and its result.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_van::draws::{mix, unit};
use serde::{Deserialize, Serialize};

use super::blocks;
use super::filters::{FilterTraffic, Filters};
use super::gradient::Curvature;
use super::newton::{BLOCK_COLUMNS, BLOCK_COLUMNS_MAX};
use super::proximal::Proximal;
use super::schedule::{KKT_RATIO, RESET_EVERY, Stop};
use crate::data::groups;
use crate::model::Model;
use crate::sketch::Tail;

/// How often prior groups are visited before the first pass.
pub const PRIOR_ROUNDS: u64 = 5;

/// The problem and how to solve it.
#[derive(Debug, Clone)]
pub struct Job {
    /// LIBSVM or Criteo text, read in this order.
    pub files: Vec<PathBuf>,
    /// Folder where each worker caches its share of the data, for later runs on the same files.
    pub cache: Option<PathBuf>,
    /// Most bytes of each worker. Its rows then stay in blocks in `cache`, and only the working set
    /// is in memory. For the second-order method alone.
    pub memory: Option<u64>,
    /// λ, λ₂ and the step. For a path of several λ, the smallest.
    pub proximal: Proximal,
    /// Whether a weight without penalty is added to every margin.
    pub intercept: bool,
    /// Weight of a row of label +1 relative to one of label -1.
    pub positive_weight: f64,
    /// Initial weights instead of 0.
    pub warm_start: Option<Model>,
    /// The curvature bound.
    pub curvature: Curvature,
    /// Most slices of the key space; chosen from the data if `None`.
    pub blocks: Option<usize>,
    /// Number of blocks per feature of an average row, if `blocks` is `None`.
    pub block_ratio: f64,
    /// Leading bits of a key that name its feature group, at most 16. Each group is then cut into
    /// blocks separately, by the block ratio; 0 for no groups.
    pub group_bits: u32,
    /// First and last keys of the most important groups. Before the first pass their blocks are
    /// visited [`PRIOR_ROUNDS`] times, without delay or filter, so that the others start with these
    /// already fitted.
    pub prior: Vec<(u64, u64)>,
    /// The order of blocks in a pass.
    pub order: blocks::Order,
    /// τ: how many tasks may be outstanding besides the one that computes.
    pub delay: u64,
    /// Whether τ is halved after a pass in which F rose, and is 0 in the last one.
    pub adapt_delay: bool,
    /// Whether a task sees the updates of exactly the tasks up to τ + 1 before it, instead of at
    /// least those: slower, but independent of timing.
    pub exact_delay: bool,
    /// ε of the stop rule: relative decrease of the objective in a pass.
    pub epsilon: f64,
    /// Most passes.
    pub passes_max: u64,
    /// Weakness of the KKT filter; infinite turns it off.
    pub kkt_ratio: f64,
    /// Passes after which the filter is reset in any case.
    pub reset_every: Option<u64>,
    /// Filters of messages. The KKT filter is off without `kkt`, whatever its ratio.
    pub filters: Filters,
    /// The filter that drops rare features first, if any.
    pub tail: Option<Tail>,
    /// Columns of a block of the second-order method, which a run ends with; `None` is the plain
    /// published method.
    pub newton: Option<usize>,
    /// Threads with which each worker reads and computes; results do not depend on them.
    pub threads: usize,
    /// Copies of each shard, with which training outlives as many servers; the cluster has to spare
    /// them ([`caravan_kv::NodeConfig::server_losses_max`]).
    pub replicas: u32,
    /// Artificial pauses of workers, to measure what a delay is worth on a machine without
    /// stragglers.
    pub straggle: Option<Straggle>,
    /// After how many passes each [`super::Driver::solve_saving`] hands the weights over; 0 for
    /// never.
    pub save_every: u64,
    /// Set from any thread to end the run after the current pass.
    pub stop: Arc<AtomicBool>,
}

impl Job {
    /// The second-order method; safe full first-order steps, no delay, filter on.
    pub fn new(files: Vec<PathBuf>, lambda: f64) -> Self {
        Job {
            files,
            cache: None,
            memory: None,
            proximal: Proximal::new(lambda),
            intercept: false,
            positive_weight: 1.0,
            warm_start: None,
            curvature: Curvature::Safe,
            blocks: None,
            block_ratio: blocks::BLOCK_RATIO,
            group_bits: 0,
            prior: Vec::new(),
            order: blocks::Order::Key,
            delay: 0,
            adapt_delay: false,
            exact_delay: false,
            epsilon: 1e-9,
            passes_max: 1000,
            kkt_ratio: KKT_RATIO,
            reset_every: Some(RESET_EVERY),
            filters: Filters::default(),
            tail: None,
            newton: Some(BLOCK_COLUMNS),
            threads: 1,
            replicas: 0,
            straggle: None,
            save_every: 0,
            stop: Arc::default(),
        }
    }

    pub(super) fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether rows can be read block by block.
    fn reads_blocks(&self) -> bool {
        self.cache.is_some()
            && self.newton.is_some()
            && self.delay == 0
            && !self.filters.is_lossy()
            && self.prior.is_empty()
            && self.group_bits == 0
            && self.tail.is_none()
    }

    /// Refuses invalid settings, with the reason. Training does so as well; a check before it needs
    /// no cluster.
    ///
    /// # Errors
    /// [`caravan_kv::Error::Config`] names the setting, its value, and its valid values.
    pub fn check(&self) -> caravan_kv::Result<()> {
        let Proximal { lambda, l2, learning_rate, .. } = self.proximal;
        let wrong = |what: &str, value: f64, takes: &str| {
            Err(caravan_kv::Error::Config(format!("{what} must be {takes}, not {value}")))
        };
        let weight = self.positive_weight;
        match () {
            () if !(lambda >= 0.0 && lambda.is_finite()) => {
                wrong("lambda", lambda, "a finite number, 0 or more")
            }
            () if !(l2 >= 0.0 && l2.is_finite()) => {
                wrong("the l2 penalty", l2, "a finite number, 0 or more")
            }
            () if !(weight > 0.0 && weight.is_finite()) => {
                wrong("the weight of positive rows", weight, "a finite number above 0")
            }
            () if !(learning_rate > 0.0 && learning_rate <= 1.0) => {
                wrong("the learning rate", learning_rate, "above 0 and at most 1")
            }
            () if !(self.epsilon >= 0.0 && self.epsilon < 1.0) => {
                wrong("epsilon", self.epsilon, "0 or more and below 1")
            }
            () if !(self.block_ratio > 0.0 && self.block_ratio.is_finite()) => {
                wrong("the block ratio", self.block_ratio, "a finite number above 0")
            }
            () if self.straggle.is_some_and(|straggle| !(0.0..=1.0).contains(&straggle.share)) => {
                let share = self.straggle.map_or(0.0, |straggle| straggle.share);
                wrong("the share of blocks with a pause", share, "from 0 to 1")
            }
            () if self.blocks == Some(0) => wrong("blocks", 0.0, "1 or more"),
            () if self.group_bits > groups::BITS_MAX => {
                wrong("the bits of a group", self.group_bits.into(), "16 or fewer")
            }
            () if self.blocks.is_some() && self.group_bits > 0 => wrong(
                "the number of blocks",
                self.blocks.map_or(0.0, |blocks| blocks as f64),
                "left to the block ratio if each group is cut separately",
            ),
            () if self.newton.is_some_and(|n| n == 0 || n > BLOCK_COLUMNS_MAX) => {
                wrong("newton", self.newton.unwrap_or(0) as f64, "1 to 1024 columns of a block")
            }
            () if self.newton.is_some() && self.exact_delay => Err(caravan_kv::Error::Config(
                "an exact delay leaves updates outstanding after a pass, but second-order steps need all of them: switch one of them off"
                    .to_owned(),
            )),
            () if self.memory.is_some() && !self.reads_blocks() => Err(caravan_kv::Error::Config(
                "a limit of memory needs a folder for caches and the second-order method alone: without a delay, lossy filters, prior keys, groups, or rare columns to drop"
                    .to_owned(),
            )),
            () => {
                self.tail.map_or(Ok(()), |tail| tail.check())?;
                self.filters.check(self.exact_delay)
            }
        }
    }
}

/// Pauses of workers while they compute, drawn for each worker and block; the same in every run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Straggle {
    /// Probability that a block has one: 0 to 1.
    pub share: f64,
    /// Its length.
    pub pause: Duration,
}

impl Straggle {
    /// The pause of worker `rank` in task `task`.
    pub(super) fn of(&self, rank: usize, task: u64) -> Duration {
        let drawn = unit(mix(task << 16 ^ rank as u64));
        if drawn < self.share { self.pause } else { Duration::ZERO }
    }
}

/// Progress after a pass; field by field the program's progress row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Progress {
    /// Number of the pass, from 0.
    pub pass: u64,
    /// Since training began, without loading.
    pub seconds: f64,
    /// F(w), after all updates.
    pub objective: f64,
    /// Relative decrease of F against the previous pass; 1 for the first.
    pub relative: f64,
    /// Non-zero weights.
    pub nnz: usize,
    /// Coordinates that the KKT filter leaves in.
    pub active: usize,
    /// Largest violation of |g| ≤ λ at a zero weight.
    pub violation: f64,
    /// Share of the pass that workers computed, on average.
    pub worker_busy: f64,
    /// Bytes all workers have sent so far.
    pub worker_bytes_sent: u64,
    /// Bytes all servers have sent to workers so far.
    pub server_bytes_sent: u64,
    /// λ.
    pub lambda: f64,
    /// The τ of the pass.
    pub delay: u64,
    /// The KKT threshold of the pass.
    pub threshold: f64,
    /// Times within the pass.
    #[serde(flatten)]
    pub times: Times,
    /// Columns of all workers that were dropped as rare.
    pub tail_dropped: u64,
    /// The objective is at most this far above the least; `None` if that is unknown.
    pub bound: Option<f64>,
    /// Column gradients computed so far.
    #[serde(skip)]
    pub columns_computed: usize,
    /// Rounds so far, each of which ends when all workers have taken part: blocks visited, products
    /// on the active set, and orders of the driver to the second-order method.
    #[serde(skip)]
    pub rounds: u64,
    /// The stop rule's decision.
    #[serde(skip)]
    pub stop: Stop,
}

/// Times within a pass, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Times {
    /// Computation of the worker that had least to do.
    #[serde(rename = "worker_seconds_min")]
    pub worker_min: f64,
    /// Computation of the worker that had most to do.
    #[serde(rename = "worker_seconds_max")]
    pub worker_max: f64,
    /// Pushes and pulls at the busiest server thread.
    #[serde(rename = "server_seconds")]
    pub server: f64,
    /// The second-order step after measuring, messages included.
    #[serde(rename = "polish_seconds")]
    pub polish: f64,
    /// The rest after the busiest worker, server thread and the second-order step: messages in
    /// transit, and waiting. 0 if these overlap so well that nothing is left.
    #[serde(rename = "other_seconds")]
    pub other: f64,
    /// The whole pass.
    #[serde(rename = "pass_seconds")]
    pub total: f64,
}

/// The result of a run.
#[derive(Debug)]
pub struct Trained {
    /// The non-zero weights, and the intercept if there is one.
    pub model: Model,
    /// λ.
    pub lambda: f64,
    /// F at these weights.
    pub objective: f64,
    /// F is at most this far above the least; `None` if that is unknown.
    pub bound: Option<f64>,
    /// Passes made.
    pub passes: u64,
    /// Whether the stop rule ended the run, rather than the limit on passes or [`Job::stop`].
    pub converged: bool,
    /// Whether [`Job::stop`] ended it.
    pub stopped: bool,
    /// Training time.
    pub seconds: f64,
    /// Time to read and arrange the data.
    pub load_seconds: f64,
    /// Sum of the peak resident sets of all processes.
    pub peak_rss_mib: f64,
    /// The most that a worker's data took of memory, as counted, with [`Job::memory`].
    pub data_bytes: Option<u64>,
    /// Rows of all workers.
    pub rows: u64,
    /// Number of blocks.
    pub blocks: usize,
    /// Columns of all workers, and those of them that were dropped as rare.
    pub columns: [u64; 2],
    /// Weights of [`Job::warm_start`] that were dropped: the data lacks their keys, they are too
    /// rare, or they are 0 in every solution.
    pub left_out: usize,
    /// Effect of each filter on the messages so far.
    pub traffic: Vec<FilterTraffic>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_as_frequent_as_asked_for_and_the_same_again() {
        let pause = Duration::from_millis(20);
        let paused = |share: f64, rank: usize| {
            let straggle = Straggle { share, pause };
            (1..10_000).map(move |task| straggle.of(rank, task)).collect::<Vec<_>>()
        };
        let count = |pauses: &[Duration]| pauses.iter().filter(|pause| !pause.is_zero()).count();
        assert_eq!((count(&paused(0.0, 0)), count(&paused(1.0, 0))), (0, 9_999));
        let some = paused(0.05, 0);
        assert!((400..600).contains(&count(&some)), "{}", count(&some));
        assert_eq!(some, paused(0.05, 0));
        assert_ne!(some, paused(0.05, 1), "workers do not pause together");
    }
}
