//! `caravan rebalance`: moves shards of the tables of a running cluster, so that its server threads
//! have keys evenly, or some of them none; or has a server leave.

use anyhow::{Result, ensure};
use caravan_kv::{Cluster, Handover, NodeConfig, Placed, TableSpec, Worker};
use serde::Serialize;

use crate::cli::{Common, RebalanceArgs};
use crate::cluster;
use crate::report::{Report, Row, say};

/// A shard that has moved.
#[derive(Debug, Serialize)]
struct Moved {
    namespace: String,
    table: String,
    first: u64,
    last: u64,
    from: usize,
    to: usize,
}

impl Row for Moved {
    const KIND: &'static str = "move";

    fn text(&self) -> String {
        let Moved { namespace, table, first, last, from, to } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        format!("{namespace}{slash}{table}: keys {first} to {last} from thread {from} to {to}")
    }
}

/// Runs `caravan rebalance`.
///
/// # Errors
/// If the cluster cannot be reached, or a table's shards cannot move; the others have moved then.
/// If the server may not leave.
pub(crate) fn run(common: &Common, args: &RebalanceArgs) -> Result<()> {
    let mut report = Report::new(common.format(), 0);
    let node = cluster::running(common)?;
    match args.leave {
        Some(rank) => release(&node, rank, &mut report),
        None => cluster::with_client(&node, JOB, |client| rebalance(client, args, &mut report)),
    }
}

/// Makes a server leave the cluster.
fn release(node: &NodeConfig, rank: usize, report: &mut Report) -> Result<()> {
    let cluster = Cluster::visit(node, JOB)?;
    let moved = cluster.release_server(rank);
    let ended = cluster.shutdown();
    for Handover { table, before, server } in moved? {
        report.row(&row(&table, &before, server))?;
    }
    ended?;
    say(format_args!("server {rank} leaves: it ends when nobody has a lane to it"));
    Ok(())
}

fn rebalance(client: &mut Worker, args: &RebalanceArgs, report: &mut Report) -> Result<()> {
    let tables = client.admin().list_tables(&args.namespace)?;
    let mut stay = 0;
    for spec in tables.iter().filter(|spec| args.table.is_none_or(|id| id == spec.id)) {
        let table = client.admin().create_table(spec)?;
        match client.admin().rebalance(table, &args.drain) {
            Ok(moved) => {
                let now = client.info().shards(table)?;
                for row in rows(spec, &moved, now) {
                    report.row(&row)?;
                }
            }
            Err(error) => {
                say(format_args!("table {} stays: {error}", spec.name));
                stay += 1;
            }
        }
    }
    ensure!(stay == 0, "{stay} of {} tables could not be rebalanced", tables.len());
    Ok(())
}

/// The job that this command is to the cluster.
const JOB: &str = "rebalance";

/// A row for each shard that has moved: as it was before, and where it is now.
fn rows(spec: &TableSpec, moved: &[Placed], now: &[Placed]) -> Vec<Moved> {
    let row = |before: &Placed| {
        let after = now.iter().find(|shard| shard.range == before.range)?;
        Some(row(spec, before, after.server))
    };
    moved.iter().filter_map(row).collect()
}

/// The row of a shard that has moved to server thread `to`.
fn row(spec: &TableSpec, before: &Placed, to: usize) -> Moved {
    Moved {
        namespace: spec.namespace.clone(),
        table: spec.name.clone(),
        first: before.range.begin(),
        last: before.range.last(),
        from: before.server,
        to,
    }
}
