//! The flags of `caravan sketch`.

use std::path::PathBuf;

use caravan_learn::sketch::Options;
use clap::{Args, Subcommand, ValueEnum};

use super::values::{count, count_to};

/// What to do with sketches of a running cluster, which CARAVAN_SCHEDULER, CARAVAN_JOB and the
/// secret name. A sketch is a table; its counts are never too small.
#[derive(Debug, Subcommand)]
pub(crate) enum SketchCommand {
    /// Creates a sketch, which stays until it is dropped or the cluster ends
    Create(CreateSketch),
    /// Counts the keys of files or of standard input: a key a line, with a count behind it if that
    /// is not 1
    Insert(InsertIntoSketch),
    /// Prints the counts of keys, or more
    Query(QuerySketch),
    /// Adds a sketch to another one of the same keys, cells and hash functions
    Merge(MergeSketches),
    /// Halves the cells, for half the memory and twice the error
    Halve(SketchTable),
    /// Drops a sketch
    Drop(SketchTable),
}

/// A sketch of the cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct SketchTable {
    /// Number of its table
    #[arg(long, value_name = "ID")]
    pub(crate) table: u32,
    /// Namespace of its table
    #[arg(long, default_value = "")]
    pub(crate) namespace: String,
}

/// A new sketch.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateSketch {
    #[command(flatten)]
    pub(crate) table: SketchTable,
    /// Cells of each server thread; a count exceeds the true one by more than e·K·total / cells
    /// with a probability of e^-K at most, for K hash functions
    #[arg(long, default_value_t = 1 << 20, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) cells: u64,
    /// Hash functions
    #[arg(long, default_value_t = 4, value_name = "K", value_parser = count_to(Options::HASHES_MAX.into()))]
    pub(crate) hashes: u32,
    /// Type of counts, which end at its largest number
    #[arg(long, value_enum, default_value_t = CountType::U64)]
    pub(crate) value: CountType,
    /// Keys are below N and are cut evenly among the servers [default: all numbers of 64 bits]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: Option<u64>,
    /// Copies on other servers, as many of which may then be lost
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) replicas: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CountType {
    U8,
    U32,
    U64,
}

/// Keys to count.
#[derive(Debug, Clone, Args)]
pub(crate) struct InsertIntoSketch {
    #[command(flatten)]
    pub(crate) table: SketchTable,
    /// Lines that are sent together
    #[arg(long, default_value_t = 65536, value_name = "N", value_parser = count())]
    pub(crate) batch: u32,
    /// Files with keys; without one, standard input
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

/// Keys whose counts are asked for.
#[derive(Debug, Clone, Args)]
pub(crate) struct QuerySketch {
    #[command(flatten)]
    pub(crate) table: SketchTable,
    /// Keys; without one, those of standard input, one a line
    #[arg(value_name = "KEY")]
    pub(crate) keys: Vec<u64>,
}

/// Two sketches.
#[derive(Debug, Clone, Args)]
pub(crate) struct MergeSketches {
    #[command(flatten)]
    pub(crate) table: SketchTable,
    /// Number of the table, in the same namespace, to which it is added
    #[arg(long, value_name = "ID")]
    pub(crate) into: u32,
}
