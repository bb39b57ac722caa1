//! The worker's side: inserts, and what it knows of the most popular keys.

use anyhow::{Context, Result, ensure};
use caravan_kv::filter::Draws;
use caravan_kv::{App, ValueType, WorkerNode};
use caravan_learn::sketch::{Inserts, Options, estimates, spec};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::measure::answers::answered;
use crate::measure::keys::{Lists, key_of, keys_end};

/// One run of all workers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) table_keys: u64,
    pub(super) zipf: f64,
    pub(super) cells: u64,
    pub(super) hashes: u8,
    pub(super) batch: usize,
    pub(super) seconds: f64,
    pub(super) seed: u64,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) van: String,
    pub(super) seconds: f64,
    pub(super) inserts: u64,
    pub(super) pairs: u64,
    pub(super) bytes_sent: u64,
    /// What it has inserted of each checked key.
    pub(super) counts: Vec<u64>,
    /// Worker 0: what the servers have counted.
    pub(super) estimates: Vec<u64>,
}

/// Id of the table.
const TABLE: u32 = 1;

/// Keys that are checked, the most popular ones.
pub(super) const CHECKED: u64 = 1000;

/// Inserts between two looks at the clock.
const BETWEEN_LOOKS: usize = 4096;

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
    let table = node.worker.admin().create_table(&spec)?;
    let mut draws = Draws::new(seed, node.rank as u64);
    let keys = Lists::draw(table_keys, zipf, 1, &mut draws).into_keys();
    node.barrier("sketch begins")?;
    let worker = &mut node.worker;
    let (began, sent) = (worker.now(), worker.info().counters().bytes_sent);
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
    let bytes_sent = worker.info().counters().bytes_sent - sent;
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
    let (van, pairs) = (node.worker.info().van(), inserts.pairs());
    Ok(Part { van, seconds, inserts: all, pairs, bytes_sent, counts, estimates: of_servers })
}
