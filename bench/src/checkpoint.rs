//! `caravan checkpoint`: writes the tables of a running cluster to a folder, lists, verifies,
//! exports and prunes what is there, and restores it.

use anyhow::{Context, Result, ensure};
use caravan_kv::Worker;
use caravan_kv::checkpoint::{Checkpoints, Disk, Manifest, SavedTable};
use caravan_kv::objects;
use serde::Serialize;

use crate::cli::{CheckpointCommand, CheckpointFolder, Common, ExportCheckpoint, StoredCheckpoint};
use crate::cluster;
use crate::report::{Report, Row, print};

/// A table of a checkpoint.
#[derive(Debug, Serialize)]
struct Saved<'a> {
    checkpoint: u64,
    namespace: &'a str,
    table: &'a str,
    id: u32,
    /// The checkpoint since which rows have changed; `None` if all rows are there.
    parent: Option<u64>,
    shards: usize,
    rows: u64,
    gone: u64,
    bytes: u64,
}

impl Row for Saved<'_> {
    const KIND: &'static str = "checkpoint";

    fn text(&self) -> String {
        let Saved { checkpoint, namespace, table, id, parent, shards, rows, gone, bytes } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        let what = match parent {
            None => format!("{rows} rows"),
            Some(parent) => format!("{rows} rows and {gone} tombstones since {parent}"),
        };
        format!(
            "checkpoint {checkpoint}: {namespace}{slash}{table} (table {id}) has {what} in \
             {shards} shards, {bytes} bytes"
        )
    }
}

/// Runs `caravan checkpoint`.
///
/// # Errors
/// If the cluster cannot be reached, or the checkpoint cannot be written, read or restored.
pub(crate) fn run(common: &Common, command: &CheckpointCommand) -> Result<()> {
    match command {
        CheckpointCommand::Create(args) => {
            let mut checkpoints = open(&args.folder)?.at_clock(args.clock);
            let number = with_client(common, |client| {
                let tables = client.admin().list_tables(&args.namespace)?;
                ensure!(!tables.is_empty(), "no table is in namespace {:?}", args.namespace);
                Ok(if args.incremental {
                    checkpoints.create_increment(client, &tables)?
                } else {
                    checkpoints.create(client, &tables)?
                })
            })?;
            report(common, [(number, checkpoints.manifest(number)?)])
        }
        CheckpointCommand::List(folder) => list(common, &open(folder)?),
        CheckpointCommand::Prune(args) => {
            let mut checkpoints = open(&args.folder)?;
            checkpoints.prune(args.keep.get())?;
            list(common, &checkpoints)
        }
        CheckpointCommand::Verify(args) => {
            let (checkpoints, number) = find(args)?;
            report(common, [(number, checkpoints.verify(number)?)])
        }
        CheckpointCommand::Export(args) => export(args),
        CheckpointCommand::Restore(args) => {
            let (checkpoints, number) = find(&args.stored)?;
            let restore = |client: &mut Worker| {
                Ok(checkpoints.restore_with(client, number, args.replicas)?)
            };
            report(common, [(number, with_client(common, restore)?)])
        }
    }
}

/// The job that this command is to the cluster.
const JOB: &str = "checkpoint";

fn with_client<T>(common: &Common, work: impl FnOnce(&mut Worker) -> Result<T>) -> Result<T> {
    cluster::with_client(&cluster::running(common)?, JOB, work)
}

fn open(folder: &CheckpointFolder) -> Result<Checkpoints<Box<dyn Disk>>> {
    let disk = objects::disk(&folder.dir);
    Ok(Checkpoints::new(disk.with_context(|| folder.dir.display().to_string())?))
}

/// The checkpoints of a folder, and the number of the one that is meant.
fn find(args: &StoredCheckpoint) -> Result<(Checkpoints<Box<dyn Disk>>, u64)> {
    let checkpoints = open(&args.folder)?;
    let number = match args.number {
        Some(number) => Some(number),
        None => checkpoints.list()?.pop(),
    };
    let number = number
        .with_context(|| format!("folder {} has no checkpoint", args.folder.dir.display()))?;
    Ok((checkpoints, number))
}

/// Prints the rows of all checkpoints.
fn list(common: &Common, checkpoints: &Checkpoints<Box<dyn Disk>>) -> Result<()> {
    let numbers = checkpoints.list()?.into_iter();
    let manifests = numbers.map(|number| Ok((number, checkpoints.manifest(number)?)));
    report(common, manifests.collect::<Result<Vec<_>>>()?)
}

/// Writes the rows of a table as text.
fn export(args: &ExportCheckpoint) -> Result<()> {
    let (checkpoints, number) = find(&args.stored)?;
    let manifest = checkpoints.manifest(number)?;
    let is_meant =
        |table: &&SavedTable| table.spec.id == args.table && table.spec.namespace == args.namespace;
    let table = manifest.tables.iter().find(is_meant).with_context(|| {
        let ExportCheckpoint { table, namespace, .. } = args;
        format!("checkpoint {number} has no table {table} in namespace {namespace:?}")
    })?;
    checkpoints.export(number, &table.spec, |lines| lines.strip_suffix('\n').map_or(Ok(()), print))
}

/// Prints a row for each table.
fn report(common: &Common, checkpoints: impl IntoIterator<Item = (u64, Manifest)>) -> Result<()> {
    let mut report = Report::new(common.format(), 0);
    for (checkpoint, manifest) in checkpoints {
        for SavedTable { spec, is_increment, shards } in &manifest.tables {
            let parent = manifest.parent.filter(|_| *is_increment);
            report.row(&Saved {
                checkpoint,
                namespace: &spec.namespace,
                table: &spec.name,
                id: spec.id,
                parent: parent.map(|parent| parent.number),
                shards: shards.len(),
                rows: shards.iter().map(|shard| shard.rows).sum(),
                gone: shards.iter().map(|shard| shard.gone).sum(),
                bytes: shards.iter().map(|shard| shard.bytes).sum(),
            })?;
        }
    }
    Ok(())
}
