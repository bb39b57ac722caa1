//! Sketches at servers, as their clients see them.

use std::collections::VecDeque;

use caravan_kv::{Error, Placed, Result, Table, TableSpec, Timestamp, ValueType, Worker};
use caravan_van::{KeyRange, Value};

use super::HANDLE;
use super::shard::{self, Options};

/// Batches on the way.
const PUSHES_MAX: usize = 4;

/// A table of sketches for these keys, with messages as short as they get: `u8`, `u32` or `u64`
/// counts.
pub fn spec(id: u32, name: &str, value: ValueType, keys: KeyRange, options: Options) -> TableSpec {
    let filters = caravan_kv::filter::Filters { snappy: true, ..Default::default() };
    let options = serde_json::json!({"cells": options.cells, "hashes": options.hashes});
    let spec = TableSpec::new(id, name, value, 1).keys(keys).handle(HANDLE);
    spec.options(options).filters(filters)
}

/// Counts keys in a table of sketches, a batch at a time.
pub struct Inserts {
    table: Table,
    value: ValueType,
    batch: usize,
    counts: Vec<(u64, u64)>,
    pushed: VecDeque<Timestamp>,
    pairs: u64,
}

impl Inserts {
    /// Counts in this table, up to `batch` inserts in a message; equal keys become one.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn new(worker: &Worker, table: Table, batch: usize) -> Result<Self> {
        let value = worker.info().spec(table)?.value;
        let (counts, pushed) = (Vec::new(), VecDeque::new());
        Ok(Inserts { table, value, batch: batch.max(1), counts, pushed, pairs: 0 })
    }

    /// Adds `count` to the count of `key`.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn add(&mut self, worker: &mut Worker, key: u64, count: u64) -> Result<()> {
        self.counts.push((key, count));
        if self.counts.len() < self.batch { Ok(()) } else { self.send(worker) }
    }

    /// Waits until servers have counted everything.
    ///
    /// # Errors
    /// As [`Worker::wait`].
    pub fn finish(&mut self, worker: &mut Worker) -> Result<()> {
        self.send(worker)?;
        while let Some(pushed) = self.pushed.pop_front() {
            worker.wait(pushed)?;
        }
        Ok(())
    }

    /// Pairs of key and count that were sent.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    fn send(&mut self, worker: &mut Worker) -> Result<()> {
        self.counts.sort_unstable_by_key(|(key, _)| *key);
        self.counts.dedup_by(|(key, count), (kept, sum)| {
            let is_same = key == kept;
            *sum = if is_same { sum.saturating_add(*count) } else { *sum };
            is_same
        });
        if self.counts.is_empty() {
            return Ok(());
        }
        let pushed = match self.value {
            ValueType::U8 => self.push(worker, |count| count.try_into().unwrap_or(u8::MAX)),
            ValueType::U32 => self.push(worker, |count| count.try_into().unwrap_or(u32::MAX)),
            _ => self.push(worker, |count| count),
        }?;
        self.pairs += self.counts.len() as u64;
        self.counts.clear();
        self.pushed.push_back(pushed);
        while self.pushed.len() > PUSHES_MAX
            && let Some(first) = self.pushed.pop_front()
        {
            worker.wait(first)?;
        }
        Ok(())
    }

    fn push<C: Value>(&self, worker: &mut Worker, of: impl Fn(u64) -> C) -> Result<Timestamp> {
        let keys: Vec<u64> = self.counts.iter().map(|(key, _)| *key).collect();
        let counts: Vec<C> = self.counts.iter().map(|(_, count)| of(*count)).collect();
        worker.push(self.table, &keys, &counts)
    }
}

/// The counts of keys in any order, or more.
///
/// # Errors
/// As [`Worker::pull`] and [`Worker::wait`].
pub fn estimates(worker: &mut Worker, table: Table, keys: &[u64]) -> Result<Vec<u64>> {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let pulled = worker.pull(table, &sorted)?;
    let answer = worker.wait(pulled)?;
    let counts: Vec<u64> = match worker.info().spec(table)?.value {
        ValueType::U8 => answer.values::<u8>().iter().map(|&count| count.into()).collect(),
        ValueType::U32 => answer.values::<u32>().iter().map(|&count| count.into()).collect(),
        _ => answer.values::<u64>().to_vec(),
    };
    let of = |key: &u64| sorted.binary_search(key).map_or(0, |at| counts[at]);
    Ok(keys.iter().map(of).collect())
}

/// Adds the sketches of one table to those of another, which has the same keys, values, cells and
/// hash functions: the result counts what both have counted.
///
/// # Errors
/// As [`Worker::command_to`]; one that differs is refused before anything is added, and after any
/// other error some of it may have been.
pub fn merge(worker: &mut Worker, from: Table, into: Table) -> Result<()> {
    let ranges = |shards: &[Placed]| shards.iter().map(|it| it.range).collect::<Vec<_>>();
    let (shards, others) =
        (ranges(worker.info().shards(from)?), ranges(worker.info().shards(into)?));
    if shards != others {
        let why = "sketches can be added if their tables have the same keys and shards";
        return Err(Error::Config(why.to_owned()));
    }
    for shard in 0..shards.len() {
        let mut next = 0;
        loop {
            let asked = worker.command_to(from, shard, &shard::cells_from(next))?;
            let answer = worker.wait(asked)?.replies.pop().unwrap_or_default();
            let cells = shard::cells_in(&answer);
            // An answer without cells is sent, too: it is refused if the sketches differ.
            let added = worker.command_to(into, shard, &shard::merge_from(next, &answer))?;
            worker.wait(added)?;
            if cells == 0 {
                break;
            }
            next += cells;
        }
    }
    Ok(())
}

/// Halves the cells of all sketches of a table, for half the memory and twice the error.
///
/// # Errors
/// As [`Worker::command`]; [`Error::Refused`] if their number is odd.
pub fn halve(worker: &mut Worker, table: Table) -> Result<()> {
    let halved = worker.command(table, shard::HALVE)?;
    worker.wait(halved).map(drop)
}
