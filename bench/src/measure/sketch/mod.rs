//! `caravan bench sketch`: how many inserts a second sketches on the servers take, and in how many
//! bits.
//!
//! Workers draw keys by popularity ahead of the clock, and count them as `caravan sketch insert`
//! does: batches are sorted, and equal keys of a batch are one pair. At the end the counts of the
//! most popular keys are at least what all workers have inserted.

pub(crate) mod worker;

use anyhow::{Context, Result};
use caravan_kv::Target;
use serde::Serialize;

use self::worker::{Counts, Part, Task};
use crate::cli::ending::Usage;
use crate::cli::{Common, SketchArgs};
use crate::cluster;
use crate::doctor::machine::Machine;
use crate::measure::figures::{milli, nano};
use crate::measure::load::rates::Skew;
use crate::report::{figure, row};

row! {
    /// The row of `caravan bench sketch`.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct InsertsRow is "inserts" {
        van: String => "van",
        skew: String => "skew",
        table_keys: u64,
        cells: u64 => "cells",
        hashes: u32,
        batch: u32 => "batch",
        workers: usize => "workers",
        servers: usize => "servers",
        threads: usize => "threads",
        seconds: f64,
        inserts: u64,
        /// Pairs of key and count that were sent.
        pairs: u64,
        minserts_per_s: f64 => "M inserts/s" as figure,
        mpairs_per_s: f64 => "M pairs/s" as figure,
        bits_per_pair: f64 => "bits a pair" as figure,
        wrong: u64 => "wrong",
    }
    title |_| "sketch: inserts of all workers, until servers have counted them";
    counts wrong;
}

/// Seconds of a run with `--smoke`.
const SMOKE_SECONDS: f64 = 0.1;

/// Runs `caravan bench sketch`.
///
/// # Errors
/// [`Usage`] for a skew without popularity; if the cluster fails.
pub(crate) fn run(common: &Common, args: &SketchArgs) -> Result<()> {
    let Skew::Zipf(zipf) = args.skew else {
        return Err(Usage("a sketch counts keys again and again: take --skew zipf:S".into()).into());
    };
    let task = Task {
        table_keys: args.table_keys,
        zipf,
        cells: args.cells,
        hashes: args.hashes as u8,
        batch: args.batch as usize,
        seconds: if common.smoke { SMOKE_SECONDS } else { args.duration },
        seed: args.seed,
    };
    let config = cluster::config(common)?;
    let mut report = Machine::first(common, 1)?;
    let mut cluster = cluster::launch(&config, common)?;
    report.doing("inserts".to_owned());
    let id = cluster.submit(Target::Workers, Counts::NAME, &serde_json::to_value(task)?)?;
    let parts = cluster.wait(id)?.into_iter().map(serde_json::from_value);
    let parts: Vec<Part> = parts.collect::<Result<_, _>>()?;
    let first = parts.first().context("no worker answered")?;
    let seconds = parts.iter().map(|part| part.seconds).fold(1e-9, f64::max);
    let sum = |of: fn(&Part) -> u64| parts.iter().map(of).sum::<u64>();
    let (inserts, pairs) = (sum(|it| it.inserts), sum(|it| it.pairs));
    let inserted = |at: usize| parts.iter().map(|part| part.counts[at]).sum::<u64>();
    let is_under = |(at, estimate): &(usize, &u64)| **estimate < inserted(*at);
    report.row(&InsertsRow {
        van: first.van.clone(),
        skew: args.skew.to_string(),
        table_keys: args.table_keys,
        cells: args.cells,
        hashes: args.hashes,
        batch: args.batch,
        workers: parts.len(),
        servers: config.servers,
        threads: config.threads,
        seconds: nano(seconds),
        inserts,
        pairs,
        minserts_per_s: inserts as f64 / seconds / 1e6,
        mpairs_per_s: pairs as f64 / seconds / 1e6,
        bits_per_pair: milli(8.0 * sum(|it| it.bytes_sent) as f64 / pairs.max(1) as f64),
        wrong: first.estimates.iter().enumerate().filter(is_under).count() as u64,
    })?;
    report.step();
    cluster.shutdown()?;
    report.end("counts")
}
