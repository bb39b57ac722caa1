//! `caravan submit`, `status` and `cancel`: jobs of a running cluster.

use anyhow::Result;
use caravan_kv::{JobStatus, Jobs, TableCopies, TableSpec};
use serde::Serialize;

use crate::cli::ending::Usage;
use crate::cli::{CancelArgs, Common, SubmitArgs};
use crate::cluster;
use crate::report::{Report, Row};
use crate::train;

/// Runs `caravan submit`: this process is the driver of the job, which ends with it.
///
/// # Errors
/// As those of `caravan train`; [`Usage`] for flags that say what a cluster is like; if another
/// driver has a job of that name.
pub(crate) fn submit(common: &Common, args: &SubmitArgs) -> Result<()> {
    let Common { workers, servers, threads, van, in_process, external, .. } = common;
    let counts = [workers, servers, threads].iter().any(|count| count.is_some());
    if counts || van.is_some() || *in_process || *external {
        let why = "a cluster that runs is taken as it is: submit without --workers, --servers, \
                   --threads, --van, --in-process and --external";
        return Err(Usage(why.to_owned()).into());
    }
    let common = Common { job: Some(args.job.clone()), ..common.clone() };
    train::run(&common, &args.train)
}

/// Runs `caravan status`.
///
/// # Errors
/// If the cluster cannot be reached, or a row cannot be written.
pub(crate) fn status(common: &Common) -> Result<()> {
    let mut report = Report::new(common.format(), 0);
    let mut jobs = of_cluster(common)?;
    let paused = jobs.paused()?;
    if let Some(why) = &paused {
        report.row(&Paused { why: why.clone() })?;
    }
    for JobStatus { job, tasks, workers, ends } in jobs.list()? {
        report.row(&Job { job, tasks, workers: workers.into_iter().collect(), ends })?;
    }
    if paused.is_some() {
        return Ok(()); // whoever asks servers is a driver, which the scheduler takes later
    }
    let node = cluster::running(common)?;
    cluster::with_client(&node, &cluster::name_of_one("status"), |client| {
        client.admin().copies_of_tables("")?.into_iter().try_for_each(|copies| {
            report.row(&Table::from(copies))?;
            Ok(())
        })
    })
}

/// Runs `caravan cancel`.
///
/// # Errors
/// If the cluster cannot be reached, or has no such job.
pub(crate) fn cancel(common: &Common, args: &CancelArgs) -> Result<()> {
    Ok(of_cluster(common)?.cancel(&args.job)?)
}

fn of_cluster(common: &Common) -> Result<Jobs> {
    Ok(Jobs::of(&cluster::running(common)?)?)
}

/// A scheduler that takes no changes now.
#[derive(Debug, Serialize)]
struct Paused {
    why: String,
}

impl Row for Paused {
    const KIND: &'static str = "paused";

    fn text(&self) -> String {
        format!("paused: {}", self.why)
    }
}

/// A job.
#[derive(Debug, Serialize)]
struct Job {
    job: String,
    tasks: usize,
    workers: Vec<usize>,
    ends: bool,
}

impl Row for Job {
    const KIND: &'static str = "job";

    fn text(&self) -> String {
        let Job { job, tasks, workers, ends } = self;
        let name = if job.is_empty() { "the cluster's own job" } else { job };
        let workers = workers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let at = if workers.is_empty() { String::new() } else { format!(" at workers {workers}") };
        let ends = if *ends { ", ends" } else { "" };
        format!("{name}: {tasks} tasks{at}{ends}")
    }
}

/// A table, and how its copies are.
#[derive(Debug, Serialize)]
struct Table {
    namespace: String,
    table: String,
    id: u32,
    replicas: u32,
    /// Shards that lack a copy.
    missing: usize,
    /// Copies that are on their way.
    coming: usize,
    /// The first and the last key of each range that no server has any more.
    lost: Vec<(u64, u64)>,
}

impl From<TableCopies> for Table {
    fn from(copies: TableCopies) -> Table {
        let TableCopies { table, missing, coming, lost } = copies;
        let lost = lost.iter().map(|keys| (keys.begin(), keys.last())).collect();
        let TableSpec { namespace, name, id, replicas, .. } = table;
        Table { namespace, table: name, id, replicas, missing, coming, lost }
    }
}

impl Row for Table {
    const KIND: &'static str = "table";

    fn text(&self) -> String {
        let Table { namespace, table, id, replicas, missing, coming, lost } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        let copies = match (replicas, missing, coming) {
            (0, ..) => "no copies".to_owned(),
            (_, 0, 0) => format!("{replicas} copies of each shard, all whole"),
            _ => format!("{missing} shards lack a copy, {coming} copies are on their way"),
        };
        let ranges: Vec<String> =
            lost.iter().map(|(first, last)| format!("{first} to {last}")).collect();
        let lost = match ranges.is_empty() {
            true => String::new(),
            false => format!("; lost are keys {}", ranges.join(", ")),
        };
        format!("table {namespace}{slash}{table} ({id}): {copies}{lost}")
    }
}
