//! The flags of `caravan checkpoint`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do with checkpoints. `create` and `restore` need a running cluster, which
/// CARAVAN_SCHEDULER, CARAVAN_JOB and the secret name.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Writes a checkpoint of the tables of a running cluster, while requests to them go on
    Create(CreateCheckpoint),
    /// Lists the checkpoints of a folder, the oldest first
    List(CheckpointFolder),
    /// Reads all of a checkpoint, and of those that it is based on, and checks it
    Verify(StoredCheckpoint),
    /// Writes a table of a checkpoint as text: a line for each key, with its values
    Export(ExportCheckpoint),
    /// Creates the tables of a checkpoint in a running cluster with any number of servers
    Restore(RestoreCheckpoint),
    /// Deletes all but the newest checkpoints and those that they are based on; lists what is left
    Prune(PruneCheckpoints),
}

/// A folder of checkpoints.
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckpointFolder {
    /// Folder of the checkpoints, or s3://BUCKET/FOLDER in a build with --features stores
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// A checkpoint that is to be restored.
#[derive(Debug, Clone, Args)]
pub(crate) struct RestoreCheckpoint {
    #[command(flatten)]
    pub(crate) stored: StoredCheckpoint,
    /// Copies of each shard, on other servers, instead of as many as the tables had
    #[arg(long, value_name = "K")]
    pub(crate) replicas: Option<u32>,
}

/// Tables of a running cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateCheckpoint {
    #[command(flatten)]
    pub(crate) folder: CheckpointFolder,
    /// Only tables within this namespace, as the name of their job
    #[arg(long, default_value = "")]
    pub(crate) namespace: String,
    /// Only rows that changed since the newest checkpoint, and the keys of those that went; all
    /// rows if there is none
    #[arg(long)]
    pub(crate) incremental: bool,
    /// Waits until all workers of tables with a consistency model have come to this iteration: all
    /// pushes of those before are there, and under BSP no other
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) clock: Option<u64>,
}

/// Checkpoints of a folder that are not needed any more.
#[derive(Debug, Clone, Args)]
pub(crate) struct PruneCheckpoints {
    #[command(flatten)]
    pub(crate) folder: CheckpointFolder,
    /// How many of the newest checkpoints to keep
    #[arg(long, value_name = "N")]
    pub(crate) keep: NonZeroUsize,
}

/// A checkpoint of a folder.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoredCheckpoint {
    #[command(flatten)]
    pub(crate) folder: CheckpointFolder,
    /// Number of the checkpoint [default: that of the newest]
    #[arg(long, value_name = "N")]
    pub(crate) number: Option<u64>,
}

/// A table of a checkpoint.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExportCheckpoint {
    #[command(flatten)]
    pub(crate) stored: StoredCheckpoint,
    /// Number of the table
    #[arg(long, value_name = "ID")]
    pub(crate) table: u32,
    /// Namespace of the table
    #[arg(long, default_value = "")]
    pub(crate) namespace: String,
}
