//! Flags of the algorithms that train in steps over one table, `caravan train sgd` and its like,
//! and of k-means, which trains in stages.

use std::path::PathBuf;

use caravan_kv::consistency::Model;
use caravan_learn::kmeans::Batches;
use caravan_learn::lda;
use caravan_learn::sgd::Loss;
use caravan_learn::trainer::{Descent, Factors, Hint, Reading};
use clap::{Args, ValueEnum};

use super::values::{batches, count, count_to, large_count, non_negative, option, positive};

/// What all of them take.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct Steps {
    /// Files to train on, plain or compressed (.gz, .zst, .xz)
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) data: Vec<PathBuf>,
    /// What steps may see of each other's updates: bsp, ssp:STALENESS, asp, delay:CLOCKS,
    /// sparse-ssp:STALENESS:SPECULATION, or data:DELAY where workers own what they write
    #[arg(long, value_name = "MODEL", default_value = "bsp")]
    pub(crate) consistency: Model,
    /// Parts of the data, each with its own steps; under bsp a run is the same to the bit with any
    /// number of workers [default: one for each worker]
    #[arg(long, value_name = "N", value_parser = count_to(1 << 20))]
    pub(crate) parts: Option<u32>,
    /// When rows of sgd and fm are read: `ahead` while the first pass trains, `first` before it, or
    /// `near`, where workers that have a file get blocks of it, of 4 MiB or as `near:BYTES` says
    #[arg(long, value_name = "HOW", default_value_t = Reading::Ahead)]
    pub(crate) read: Reading,
    /// Where the model is: `ps` on the servers; in one worker for `seq`, in one thread, for
    /// `hogwild`, in threads without locks, and for `spmt`, in threads under --consistency
    #[arg(long, value_name = "HINT", default_value_t = Hint::Ps)]
    pub(crate) hint: Hint,
    /// Passes over the data
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = large_count())]
    pub(crate) passes: u64,
    /// Copies of each server's part of the model, on other servers; training goes on without as
    /// many servers that are lost
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) replicas: u32,
    /// Where to write the model
    #[arg(long, value_name = "OUT")]
    pub(crate) model: Option<PathBuf>,
}

/// Linear models by stochastic gradient descent.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sgd {
    #[command(flatten)]
    pub(crate) steps: Steps,
    /// Examples to test the model on
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) test: Vec<PathBuf>,
    /// What is minimised
    #[arg(long, value_enum, default_value_t = LossName::Logistic)]
    pub(crate) loss: LossName,
    /// Takes the mean of a batch's gradients in place of their sum
    #[arg(long)]
    pub(crate) mean: bool,
    #[command(flatten)]
    pub(crate) rule: Rule,
}

/// What methods with factors take, `mf` and `fm`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Factored {
    #[command(flatten)]
    pub(crate) steps: Steps,
    /// Examples or ratings to test the model on
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) test: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) factors: FactorArgs,
    #[command(flatten)]
    pub(crate) rule: Rule,
}

/// Vectors of users, items or features.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Method")]
pub(crate) struct FactorArgs {
    /// Factors of each
    #[arg(long, value_name = "K", default_value_t = 8, value_parser = count_to(Factors::COUNT_MAX as usize))]
    pub(crate) factors: u32,
    /// Weight of half their squared norms, in each example
    #[arg(long, value_name = "L2", default_value_t = 0.01, value_parser = non_negative)]
    pub(crate) l2: f64,
    /// Determines the first factors
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl From<&FactorArgs> for Factors {
    fn from(args: &FactorArgs) -> Self {
        let FactorArgs { factors, l2, seed } = *args;
        Factors { factors, l2, seed }
    }
}

/// Least squares by gradient descent on all data.
#[derive(Debug, Clone, Args)]
pub(crate) struct LinReg {
    #[command(flatten)]
    pub(crate) steps: Steps,
    /// Steps of a pass
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = large_count())]
    pub(crate) pass_steps: u64,
    /// Share of the step that the largest curvature allows; less tolerates more delay
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = positive)]
    pub(crate) rate: f64,
}

/// Topics of documents.
#[derive(Debug, Clone, Args)]
pub(crate) struct Lda {
    #[command(flatten)]
    pub(crate) steps: Steps,
    /// Documents to foretell: every second word, by the topics of the others
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) test: Vec<PathBuf>,
    /// Number of topics
    #[arg(long, value_name = "K", default_value_t = 100, value_parser = count_to(lda::TOPICS_MAX as usize))]
    pub(crate) topics: u32,
    /// Prior of a document's topics
    #[arg(long, value_name = "A", default_value_t = 0.1, value_parser = positive)]
    pub(crate) alpha: f64,
    /// Prior of a topic's words
    #[arg(long, value_name = "B", default_value_t = 0.01, value_parser = positive)]
    pub(crate) beta: f64,
    /// Most distinct words of a step, unless one document has more
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = count())]
    pub(crate) step_words: u32,
    /// Determines all draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Clusters of points.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct Kmeans {
    /// Points: images (IDX) or LIBSVM text, plain or compressed
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) data: Vec<PathBuf>,
    /// Number of clusters
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = count())]
    pub(crate) clusters: u32,
    /// Stages, one after another: how many workers share each batch, points of a batch, and number
    /// of batches, as 1:100:50,4:1000:20 [default: 100 batches of 1000 points by all workers]
    #[arg(long, value_name = "W:P:B,…", value_delimiter = ',', value_parser = batches)]
    pub(crate) stages: Vec<Batches>,
    /// Draws the first centres, and the order of points
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Copies of each server's part of the tables, on other servers; training goes on without as
    /// many servers that are lost
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) replicas: u32,
    /// Where to write the model
    #[arg(long, value_name = "OUT")]
    pub(crate) model: Option<PathBuf>,
}

/// How servers apply gradients.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Method")]
pub(crate) struct Rule {
    /// Examples of a step
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count())]
    pub(crate) batch: u32,
    /// The update rule: sgd, momentum, adagrad, adam or ftrl [default: ftrl of sgd, else adagrad]
    #[arg(long, value_name = "RULE", value_parser = ["sgd", "momentum", "adagrad", "adam", "ftrl"])]
    pub(crate) handle: Option<String>,
    /// Settings of the rule, as rate=0.1,l1=1 [default: rate=0.1]
    #[arg(long, value_name = "NAME=NUMBER,…", value_delimiter = ',', value_parser = option)]
    pub(crate) option: Vec<(String, f64)>,
}

/// Learning rate of all rules.
const RATE: f64 = 0.1;

impl Rule {
    /// The rule as the library takes it.
    pub(crate) fn descent(&self, default: &str) -> Descent {
        let rate = [("rate".to_owned(), RATE)];
        let options = rate.into_iter().chain(self.option.iter().cloned()).collect();
        let handle = self.handle.clone().unwrap_or_else(|| default.to_owned());
        Descent { batch: self.batch as usize, handle, options }
    }
}

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LossName {
    /// log(1 + exp(-y m))
    Logistic,
    /// (m - y)² / 2
    Squared,
}

impl From<LossName> for Loss {
    fn from(name: LossName) -> Self {
        match name {
            LossName::Logistic => Loss::Logistic,
            LossName::Squared => Loss::Squared,
        }
    }
}
