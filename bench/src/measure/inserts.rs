//! `caravan bench sketch`: how many inserts a second sketches on the servers take, and in how many
//! bits.
//!
//! Workers draw keys by popularity ahead of the clock, and count them as `caravan sketch insert`
//! does: batches are sorted, and equal keys of a batch are one pair. At the end the counts of the
//! most popular keys are at least what all workers have inserted.

use anyhow::{Context, Result, ensure};
use caravan_kv::filter::Draws;
use caravan_kv::{App, Target, ValueType, WorkerNode};
use caravan_learn::sketch::{Inserts, Options, estimates, spec};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answered;
use super::figures::{milli, nano};
use super::load::keys::{Lists, key_of, keys_end};
use super::load::rates::Skew;
use crate::cli::ending::Usage;
use crate::cli::{Common, SketchArgs};
use crate::cluster;
use crate::doctor::machine::Machine;
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

/// One run of all workers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Task {
    table_keys: u64,
    zipf: f64,
    cells: u64,
    hashes: u8,
    batch: usize,
    seconds: f64,
    seed: u64,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    van: String,
    seconds: f64,
    inserts: u64,
    pairs: u64,
    bytes_sent: u64,
    /// What it has inserted of each checked key.
    counts: Vec<u64>,
    /// Worker 0: what the servers have counted.
    estimates: Vec<u64>,
}

/// Id of the table.
const TABLE: u32 = 1;

/// Keys that are checked, the most popular ones.
const CHECKED: u64 = 1000;

/// Inserts between two looks at the clock.
const BETWEEN_LOOKS: usize = 4096;

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

/// The worker's side.
pub(crate) struct Counts;

impl Counts {
    pub(crate) const NAME: &str = "bench-sketch";
}

impl App for Counts {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        answered(body, |task| part(node, &task))
    }
}

fn part(node: &mut WorkerNode, task: &Task) -> Result<Part> {
    let Task { table_keys, zipf, cells, hashes, batch, seconds, seed } = *task;
    let range = KeyRange::new(0, keys_end(table_keys)).context("a table needs keys")?;
    let spec = spec(TABLE, "bench sketch", ValueType::U64, range, Options { cells, hashes });
    let table = node.worker.create_table(&spec)?;
    let mut draws = Draws::new(seed, node.rank as u64);
    let keys = Lists::draw(table_keys, zipf, 1, &mut draws).into_keys();
    node.barrier("sketch begins")?;
    let worker = &mut node.worker;
    let (began, sent) = (worker.now(), worker.counters().bytes_sent);
    let mut inserts = Inserts::new(worker, table, batch)?;
    let mut rounds = vec![0_u64; keys.chunks(BETWEEN_LOOKS).count()];
    'all: loop {
        for (keys, rounds) in keys.chunks(BETWEEN_LOOKS).zip(&mut rounds) {
            if (worker.now() - began).as_secs_f64() >= seconds {
                break 'all;
            }
            for key in keys {
                inserts.add(worker, *key, 1)?;
            }
            *rounds += 1;
        }
    }
    inserts.finish(worker)?;
    let seconds = (worker.now() - began).as_secs_f64();
    let bytes_sent = worker.counters().bytes_sent - sent;
    let checked: Vec<u64> =
        (0..CHECKED.min(table_keys)).map(|rank| key_of(rank, table_keys)).collect();
    let mut counts = vec![0; checked.len()];
    let mut places: Vec<(u64, usize)> = checked.iter().copied().zip(0..).collect();
    places.sort_unstable();
    let mut all = 0;
    for (keys, rounds) in keys.chunks(BETWEEN_LOOKS).zip(rounds) {
        all += rounds * keys.len() as u64;
        for key in keys {
            if let Ok(at) = places.binary_search_by_key(key, |(key, _)| *key) {
                counts[places[at].1] += rounds;
            }
        }
    }
    node.barrier("sketch ends")?;
    let of_servers = match node.rank {
        0 => estimates(&mut node.worker, table, &checked)?,
        _ => Vec::new(),
    };
    ensure!(all > 0, "nothing was inserted in {seconds} s");
    let (van, pairs) = (node.worker.van(), inserts.pairs());
    Ok(Part { van, seconds, inserts: all, pairs, bytes_sent, counts, estimates: of_servers })
}
