//! `caravan table`: rows of a running cluster's tables, for other programs and other clusters.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use caravan_kv::export::{Format, export_table, import_table};
use caravan_kv::{TableSpec, Worker};
use caravan_learn::replace_file::Replacement;
use caravan_van::KeyRange;

use crate::cli::{Common, ExportTable, ImportTable, NamedTable, TableCommand};
use crate::cluster;

/// The job that this command is to the cluster.
const JOB: &str = "table";

/// Runs `caravan table`.
///
/// # Errors
/// If the cluster cannot be reached, or has no such table; names the file that cannot be read or
/// written, and the row that is none.
pub(crate) fn run(common: &Common, command: &TableCommand) -> Result<()> {
    let node = cluster::running(common)?;
    let rows = cluster::with_client(&node, JOB, |client| match command {
        TableCommand::Export(args) => export(client, args),
        TableCommand::Import(args) => import(client, args),
    })?;
    eprintln!("{rows} rows");
    Ok(())
}

fn export(client: &mut Worker, args: &ExportTable) -> Result<u64> {
    let ExportTable { table, from, to, file } = args;
    let keys = KeyRange::new(*from, to.wrapping_add(1));
    let keys = keys.with_context(|| format!("there are no keys from {from} to {to}"))?;
    let (spec, format) = find(client, table)?;
    let Some(path) = file else {
        return Ok(export_table(client, &spec, keys, format, &mut io::stdout().lock())?);
    };
    let mut file = Replacement::create(path)?;
    let exported = export_table(client, &spec, keys, format, file.writer());
    let rows = exported.with_context(|| named(path))?;
    file.commit()?;
    Ok(rows)
}

fn import(client: &mut Worker, args: &ImportTable) -> Result<u64> {
    let ImportTable { table, file } = args;
    let mut input: Box<dyn BufRead> = match file {
        Some(path) => Box::new(BufReader::new(File::open(path).with_context(|| named(path))?)),
        None => Box::new(io::stdin().lock()),
    };
    let (spec, format) = find(client, table)?;
    Ok(import_table(client, &spec, format, &mut input)?)
}

fn named(path: &Path) -> String {
    format!("file {}", path.display())
}

/// The specification of a table, and the format of its rows.
fn find(client: &mut Worker, args: &NamedTable) -> Result<(TableSpec, Format)> {
    let NamedTable { table, namespace, binary, arrow } = args;
    let tables = client.admin().list_tables(namespace)?;
    let is_it = |spec: &TableSpec| spec.id == *table && spec.namespace == *namespace;
    let spec = tables.into_iter().find(is_it);
    let spec =
        spec.with_context(|| format!("there is no table {table} in namespace {namespace:?}"))?;
    let format = match (binary, arrow) {
        (_, true) => Format::Arrow,
        (true, _) => Format::Binary,
        _ => Format::Text,
    };
    Ok((spec, format))
}
