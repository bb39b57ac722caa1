//! The flags of `caravan table`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do with tables of a running cluster, which CARAVAN_SCHEDULER, CARAVAN_JOB and the secret
/// name.
#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Writes rows while requests go on: a line for each key, with the values that pulls show
    Export(ExportTable),
    /// Pushes rows that `export` has written to a table whose handle is assign or add
    Import(ImportTable),
}

/// A table of the cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct NamedTable {
    /// Number of the table
    #[arg(long, value_name = "ID")]
    pub(crate) table: u32,
    /// Namespace of the table
    #[arg(long, default_value = "")]
    pub(crate) namespace: String,
    /// Binary records instead of lines: key (u64), number of values (u32) and values,
    /// little-endian
    #[arg(long, conflicts_with = "arrow")]
    pub(crate) binary: bool,
    /// A file of Arrow's IPC (Feather 2) instead of lines, with the columns key and values; builds
    /// with --features arrow have it
    #[arg(long)]
    pub(crate) arrow: bool,
}

/// Rows to write.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExportTable {
    #[command(flatten)]
    pub(crate) table: NamedTable,
    /// First key
    #[arg(long, default_value_t = 0, value_name = "KEY")]
    pub(crate) from: u64,
    /// Last key
    #[arg(long, default_value_t = u64::MAX, value_name = "KEY")]
    pub(crate) to: u64,
    /// File to write [default: standard output]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Rows to push.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImportTable {
    #[command(flatten)]
    pub(crate) table: NamedTable,
    /// File to read [default: standard input]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}
