//! Commands and flags of training, predicting and generating.

use std::path::PathBuf;

use caravan_learn::dbpg::blocks::BLOCK_RATIO;
use caravan_learn::dbpg::{Filters, Straggle};
use caravan_learn::model::Format;
use clap::{Args, Subcommand, ValueEnum};

use super::steps::{Factored, Kmeans, Lda, LinReg, LossName, Sgd};
use super::values::{
    Delay, count, count_to, delay, filters, key_range, large_count, memory, non_negative, pauses,
    positive,
};

#[derive(Debug, Subcommand)]
pub(crate) enum TrainCommand {
    /// Sparse logistic regression by delayed block proximal gradient
    Dbpg(Box<Dbpg>),
    /// Logistic regression or least squares by stochastic gradient descent
    Sgd(Sgd),
    /// Topics of documents by latent Dirichlet allocation
    Lda(Lda),
    /// Ratings of items by users, by matrix factorisation
    Mf(Factored),
    /// Logistic regression with interactions of features, by factorisation machines
    Fm(Factored),
    /// Least squares by gradient descent on all data, a chunk of the weights for each worker
    Linreg(LinReg),
    /// Clusters of points by k-means, in stages with batches and workers of their own
    Kmeans(Kmeans),
}

impl TrainCommand {
    /// The files to train on.
    pub(crate) fn data(&self) -> &[PathBuf] {
        match self {
            TrainCommand::Dbpg(args) => &args.data,
            TrainCommand::Sgd(args) => &args.steps.data,
            TrainCommand::Lda(args) => &args.steps.data,
            TrainCommand::Mf(args) | TrainCommand::Fm(args) => &args.steps.data,
            TrainCommand::Linreg(args) => &args.steps.data,
            TrainCommand::Kmeans(args) => &args.data,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Dbpg {
    /// Training examples, LIBSVM or Criteo text, plain or compressed (.gz, .zst, .xz)
    #[arg(long, value_name = "FILE", required = true, num_args = 1.., help_heading = "Data")]
    pub(crate) data: Vec<PathBuf>,
    /// Folder where workers keep parsed data, so that later runs on these files parse no text
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub(crate) cache: Option<PathBuf>,
    /// Most memory of each worker, as 2GiB: its rows stay in blocks in the folder of --cache, and
    /// only what a step needs of them is in memory
    #[arg(long, value_name = "SIZE", value_parser = memory, requires = "cache", conflicts_with = "lambda_path", help_heading = "Data")]
    pub(crate) memory: Option<u64>,
    /// Examples to test the model on
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Data")]
    pub(crate) test: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) objective: Objective,
    #[command(flatten)]
    pub(crate) method: Method,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
}

/// The objective.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Objective")]
pub(crate) struct Objective {
    /// Weight of the L1 norm against sums over examples; several, separated by commas, go from the
    /// largest down, each from the solution before it
    #[arg(long, value_name = "L,…", value_delimiter = ',', required = true, value_parser = non_negative)]
    pub(crate) lambda: Vec<f64>,
    /// N lambdas instead of one: from the smallest that leaves all weights at 0 down to --lambda,
    /// each the same part of the one before
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) lambda_path: Option<u32>,
    /// Weight of half the squared L2 norm: with --lambda the elastic net
    #[arg(long, value_name = "L2", default_value_t = 0.0, value_parser = non_negative)]
    pub(crate) l2: f64,
    /// Adds a weight without penalty to every margin
    #[arg(long)]
    pub(crate) intercept: bool,
    /// How much a positive example counts against a negative one
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = positive)]
    pub(crate) positive_weight: f64,
}

/// The method.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Method")]
pub(crate) struct Method {
    /// Threads of each worker [default: its share of this machine's cores]
    #[arg(long, value_name = "N", value_parser = count_to(1024))]
    pub(crate) worker_threads: Option<u32>,
    /// Most blocks that a worker may be ahead of the slowest answer: a number, or 0..T to begin
    /// with T and lower it when the objective rises
    #[arg(long, value_name = "T|0..T", default_value = "0", value_parser = delay)]
    pub(crate) delay: Delay,
    /// Blocks of features; chosen from the data if not given
    #[arg(long, value_name = "B", value_parser = count())]
    pub(crate) blocks: Option<u32>,
    /// Blocks for each feature of an average example, if --blocks is not given
    #[arg(long, value_name = "R", default_value_t = BLOCK_RATIO, value_parser = positive, conflicts_with = "blocks")]
    pub(crate) block_ratio: f64,
    /// Leading bits of a key that name its feature group; each group has blocks of its own; 6 for
    /// the fields of Criteo text
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=16), conflicts_with = "blocks")]
    pub(crate) group_bits: u32,
    /// Order in which a pass visits the blocks
    #[arg(long, value_enum, default_value_t = BlockOrder::Key)]
    pub(crate) order: BlockOrder,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keys whose blocks are visited five times before the first pass: single ones, or FIRST..LAST,
    /// separated by commas
    #[arg(long, value_name = "KEYS", value_delimiter = ',', value_parser = key_range)]
    pub(crate) prior: Vec<(u64, u64)>,
    /// Share of the full step, up to 1: less is slower and tolerates more delay
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = positive)]
    pub(crate) learning_rate: f64,
    /// How far above the least objective training may end, in relation to it; with --no-newton,
    /// the relative decrease of the objective that ends training
    #[arg(long, value_name = "E", value_parser = non_negative, default_value = "1e-9")]
    pub(crate) epsilon: f64,
    /// Passes over the data, at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = large_count())]
    pub(crate) passes: u64,
    /// Fails where training ends before --epsilon is reached; models and rows are written all the
    /// same
    #[arg(long)]
    pub(crate) strict: bool,
    /// Only first-order steps, published but for their curvature, not the second-order method
    #[arg(long)]
    pub(crate) no_newton: bool,
    /// Drops features that at most N examples of all workers have; a sketch counts them, and keeps
    /// some
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..255))]
    pub(crate) tail_frequency: u8,
    /// Hash functions of that sketch
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=30))]
    pub(crate) countmin_k: u8,
    /// Bytes of that sketch for each feature
    #[arg(long, value_name = "R", default_value_t = 2.0, value_parser = positive)]
    pub(crate) countmin_ratio: f64,
    /// What messages leave out: a list of screen, kkt, skip=SHARE, significant=T, zero, narrow,
    /// quantize=BYTES, key-cache, snappy, seed=N; or all, or none
    #[arg(long, value_name = "LIST", value_parser = filters, default_value = "screen,kkt")]
    pub(crate) filters: Filters,
    /// A model with the weights to begin with, instead of 0
    #[arg(long, value_name = "FILE")]
    pub(crate) warm_start: Option<PathBuf>,
    /// Copies of each server's part of the job, on other servers; training goes on without as many
    /// servers that are lost
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) replicas: u32,
    /// Share of the blocks, 0 to 1, at which a worker pauses for MS: shows the effect of a delay if
    /// machines differ
    #[arg(long, value_name = "SHARE:MS", value_parser = pauses)]
    pub(crate) straggle: Option<Straggle>,
}

/// In which order a pass visits the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BlockOrder {
    /// By key, every pass the same
    Key,
    /// Another one each pass
    Random,
    /// First those with the largest gain in the pass before
    Importance,
}

/// The outputs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Outcome {
    /// Where to write the model; with several lambdas one for each, the lambda before the ending
    #[arg(long, value_name = "OUT")]
    pub(crate) model: Option<PathBuf>,
    /// Its format [default: binary if its name ends in .bin, else text]
    #[arg(long, value_enum)]
    pub(crate) model_format: Option<ModelFormat>,
    /// As --warm-start FILE --model FILE: goes on where an interrupted run ended, or begins without
    /// that file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "warm_start", "lambda_path"])]
    pub(crate) resume: Option<PathBuf>,
    /// Writes the weights into the model's file after every N passes; --resume goes on from there
    /// if all of the job is killed
    #[arg(long, value_name = "N", value_parser = large_count())]
    pub(crate) save_every: Option<u64>,
    /// How many times a new cluster goes on from the weights last saved when a node is lost
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) restarts: u32,
    /// Where to draw the convergence, as SVG
    #[arg(long, value_name = "OUT.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// How a model is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelFormat {
    /// A line a weight
    Text,
    /// A third of the size
    Binary,
}

impl From<ModelFormat> for Format {
    fn from(format: ModelFormat) -> Self {
        match format {
            ModelFormat::Text => Format::Text,
            ModelFormat::Binary => Format::Binary,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Predict {
    /// The model, as written by train
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Examples to score; documents for a model of lda, ratings for one of mf, points for kmeans
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) data: Vec<PathBuf>,
    /// What a linear model was trained for: with `squared` labels are any numbers, and the RMSE is
    /// measured
    #[arg(long, value_enum, default_value_t = LossName::Logistic)]
    pub(crate) loss: LossName,
    /// Where to write the predictions: for each row its label, the probability of +1, and the
    /// margin, separated by tabs; of kmeans the cluster and the squared distance to its centre
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GenerateCommand {
    /// Sparse rows with power-law keys, as of ad clicks: OUT.train and OUT.test
    Clicks(Clicks),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Clicks {
    /// Files to write, without their endings
    pub(crate) out: PathBuf,
    /// Training rows
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub(crate) rows: u64,
    /// Test rows
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) test_rows: u64,
    /// Seed of all data
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Draws a row
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) slots: u32,
    /// How many of them go to the bag slot
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) bag: u32,
    /// The first categorical slot has 2^K keys or so
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) kmin: u32,
    /// The last categorical slot has 2^K keys or so
    #[arg(long, value_name = "K", default_value_t = 20)]
    pub(crate) kmax: u32,
    /// The bag slot has 2^K keys or so
    #[arg(long, value_name = "K", default_value_t = 20)]
    pub(crate) kbag: u32,
    /// The margin of a row without relevant keys
    #[arg(long, value_name = "B", default_value_t = -2.2, allow_negative_numbers = true)]
    pub(crate) bias: f64,
    /// Standard deviation of the relevant weights
    #[arg(long, value_name = "S", default_value_t = 0.45)]
    pub(crate) scale: f64,
    /// How keys are written
    #[arg(long, value_enum, default_value_t = KeyFormat::Compact)]
    pub(crate) format: KeyFormat,
}

/// How generated keys are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyFormat {
    /// 1, 2, … in the order of the hashed keys
    Compact,
    /// The hashed 64-bit keys
    Keys,
}
