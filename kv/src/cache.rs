//! Rows that a worker keeps: hot keys are read and added to without a message, for a bounded time.
//!
//! ```text
//!   read ──── rows that are here and fresh enough ─────────────────────────┐
//!     └────── the others: what was added to them is pushed, then a pull ───┴─▶ values
//!   add ───── to the rows, and to sums that go to the servers later
//! ```
//!
//! What a read returns is the servers' state at the row's pull, and everything that this worker has
//! added since. A row is pulled again once it has been read [`Bounds::reads`] times, or after
//! [`Bounds::rounds`] rounds; a sum waits no longer than that either. Both counts are a row's own:
//! keys that are seldom read are seldom sent, too, and keys that are often read do not get old.
//! Miao et al., "HET: Scaling out Huge Embedding Model Training via Cache-enabled Distributed
//! Framework", VLDB 2022, bound the staleness of each row by its own clock like that.

use std::collections::{HashMap, VecDeque};

use crate::error::{Error, Result};
use crate::filter::Draws;
use crate::server::Sum;
use crate::table::ValueType;
use crate::tracker::Timestamp;
use crate::worker::{Table, Worker};

/// Which rows go when more come than are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Those that were not read for longest (LRU).
    #[default]
    LeastRecent,
    /// Those that were read least often since they came (LFU).
    LeastFrequent,
    /// Those that draws from this seed choose.
    Random(u64),
}

/// How stale rows may get, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Reads of a row between two pulls of it, at least 1.
    pub reads: u32,
    /// Rounds between two pulls of a row that is read, and for which a sum waits.
    pub rounds: u64,
    /// Most rows, at least 1. A read of more keys than that keeps all of them until the next one.
    pub rows_max: usize,
    /// Which half of them go when there are more.
    pub eviction: Eviction,
}

/// What a cache has saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Rows that were read.
    pub read: u64,
    /// Of these, rows that were pulled.
    pub pulled: u64,
    /// Rows to which something was added, each time once.
    pub added: u64,
    /// Rows whose sum was pushed.
    pub pushed: u64,
}

/// Rows of a table that a worker keeps. Only this thread reads and adds. After an error of a push
/// its sums may be with the servers or not: drop the cache, as nothing that it shows is certain.
pub struct Cache<V> {
    table: Table,
    width: usize,
    bounds: Bounds,
    rows: HashMap<u64, Row<V>>,
    round: u64,
    /// Rows with sums, and the rounds in which they had none before; some are in it no more.
    waiting: VecDeque<(u64, u64)>,
    /// Pushes that were not waited for.
    pushes: VecDeque<Timestamp>,
    /// The values of the last read.
    answer: Vec<V>,
    counters: CacheCounters,
    /// How often room was made.
    evictions: u64,
}

struct Row<V> {
    /// The values of the last pull, and what was added since.
    shown: Vec<V>,
    /// What was added and the servers do not have; empty if there is nothing.
    sum: Vec<V>,
    /// The last round in which it was entered into those that wait.
    waits_since: Option<u64>,
    pulled_in: u64,
    read_in: u64,
    /// Reads since the last pull.
    reads: u32,
    /// Reads since the row came.
    reads_in_all: u64,
}

/// Rows that may wait whatever the number of rows.
const WAITING_MIN: usize = 64;

/// Pushes on the way.
const PUSHES_MAX: usize = 4;

impl<V: Sum> Cache<V> {
    /// No rows of a table so far. The table has the handle `add`, rows of one length, and no model.
    ///
    /// # Errors
    /// [`Error::Config`] for another table, or bounds of 0; [`Error::WrongType`];
    /// [`Error::UnknownTable`].
    pub fn new(worker: &Worker, table: Table, bounds: Bounds) -> Result<Self> {
        let spec = worker.info().spec(table)?;
        let table_name = || spec.name.clone();
        if Some(spec.value) != ValueType::of::<V>() {
            let (expected, found) = (spec.value.name(), V::NAME);
            return Err(Error::WrongType { table: table_name(), expected, found });
        }
        let why = if spec.handle != "add" || spec.width == 0 || spec.consistency.is_some() {
            "its table needs the handle add, rows of one length, and no consistency model"
        } else if bounds.reads == 0 || bounds.rows_max == 0 {
            "it takes at least 1 read and 1 row"
        } else {
            return Ok(Cache {
                table,
                width: spec.width as usize,
                bounds,
                rows: HashMap::new(),
                round: 0,
                waiting: VecDeque::new(),
                pushes: VecDeque::new(),
                answer: Vec::new(),
                counters: CacheCounters::default(),
                evictions: 0,
            });
        };
        Err(Error::Config(format!("rows of table {} cannot be kept: {why}", spec.name)))
    }

    /// What it has saved so far.
    pub fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// Whether the row of a key is here.
    pub fn keeps(&self, key: u64) -> bool {
        self.rows.contains_key(&key)
    }

    /// The values of sorted `keys: [n]`, `[n * width]` of them.
    ///
    /// # Errors
    /// As [`Worker::pull`] and [`Worker::wait`].
    pub fn read(&mut self, worker: &mut Worker, keys: &[u64]) -> Result<&[V]> {
        self.make_room(worker, keys)?;
        let is_old = |row: &Row<V>| {
            row.reads >= self.bounds.reads || self.round - row.pulled_in > self.bounds.rounds
        };
        let is_missing = |key: &u64| self.rows.get(key).is_none_or(is_old);
        let missing: Vec<u64> = keys.iter().copied().filter(is_missing).collect();
        self.pull(worker, &missing)?;
        self.counters.read += keys.len() as u64;
        self.answer.clear();
        for key in keys {
            let Some(row) = self.rows.get_mut(key) else { continue };
            row.reads += 1;
            row.reads_in_all += 1;
            row.read_in = self.round;
            self.answer.extend_from_slice(&row.shown);
        }
        Ok(&self.answer)
    }

    /// Adds `values: [n * width]` to the rows of sorted `keys: [n]`.
    ///
    /// # Errors
    /// [`Error::WrongLength`]; as [`Worker::push`] for rows that are not kept.
    pub fn add(&mut self, worker: &mut Worker, keys: &[u64], values: &[V]) -> Result<()> {
        let expected = keys.len() * self.width;
        if values.len() != expected {
            let found = values.len();
            let table = worker.info().spec(self.table)?.name.clone();
            return Err(Error::WrongLength { what: "values", table, expected, found });
        }
        self.counters.added += keys.len() as u64;
        let (mut others, mut of_others) = (Vec::new(), Vec::new());
        for (key, values) in keys.iter().zip(values.chunks_exact(self.width)) {
            let Some(row) = self.rows.get_mut(key) else {
                others.push(*key);
                of_others.extend_from_slice(values);
                continue;
            };
            if row.sum.is_empty() {
                row.sum.resize(self.width, V::default());
                if row.waits_since.replace(self.round) != Some(self.round) {
                    self.waiting.push_back((self.round, *key));
                }
            }
            V::add_up(&mut row.shown, values);
            V::add_up(&mut row.sum, values);
        }
        if self.waiting.len() > 2 * self.rows.len() + WAITING_MIN {
            self.forget_pushed();
        }
        self.push(worker, &others, &of_others)
    }

    /// Ends a round: pushes the sums that have waited long enough.
    ///
    /// # Errors
    /// As [`Worker::push`] and [`Worker::wait`].
    pub fn advance(&mut self, worker: &mut Worker) -> Result<()> {
        self.round += 1;
        let mut due = Vec::new();
        while let Some((since, key)) = self.waiting.front().copied()
            && self.round - since > self.bounds.rounds
        {
            self.waiting.pop_front();
            due.push(key);
        }
        self.push_sums(worker, due)
    }

    /// Pushes all sums, and waits until the servers have everything that was added.
    ///
    /// # Errors
    /// As [`Worker::push`] and [`Worker::wait`].
    pub fn flush(&mut self, worker: &mut Worker) -> Result<()> {
        let all = self.waiting.drain(..).map(|(_, key)| key).collect();
        self.push_sums(worker, all)?;
        while let Some(pushed) = self.pushes.pop_front() {
            worker.wait(pushed)?;
        }
        Ok(())
    }

    /// Pulls rows, behind the sums for them.
    fn pull(&mut self, worker: &mut Worker, keys: &[u64]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.push_sums(worker, keys.to_vec())?;
        let pulled = worker.pull(self.table, keys)?;
        let answer = worker.wait(pulled)?;
        self.counters.pulled += keys.len() as u64;
        for (key, values) in keys.iter().zip(answer.values::<V>().chunks_exact(self.width)) {
            let before = self.rows.get(key);
            let row = Row {
                reads_in_all: before.map_or(0, |row| row.reads_in_all),
                shown: values.to_vec(),
                sum: Vec::new(),
                waits_since: None,
                pulled_in: self.round,
                read_in: self.round,
                reads: 0,
            };
            self.rows.insert(*key, row);
        }
        Ok(())
    }

    /// Pushes the sums of those keys that have one. Afterwards `waiting` may still name them.
    fn push_sums(&mut self, worker: &mut Worker, keys: Vec<u64>) -> Result<()> {
        let mut keys = keys;
        keys.sort_unstable();
        keys.dedup();
        let mut values = Vec::new();
        keys.retain(|key| {
            let Some(row) = self.rows.get_mut(key).filter(|row| !row.sum.is_empty()) else {
                return false;
            };
            values.append(&mut row.sum);
            row.waits_since = None; // the next sum is entered anew, though it be in the same round
            true
        });
        self.push(worker, &keys, &values)
    }

    fn push(&mut self, worker: &mut Worker, keys: &[u64], values: &[V]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.counters.pushed += keys.len() as u64;
        self.pushes.push_back(worker.push(self.table, keys, values)?);
        while self.pushes.len() > PUSHES_MAX
            && let Some(first) = self.pushes.pop_front()
        {
            worker.wait(first)?;
        }
        Ok(())
    }

    /// Makes room for the rows of these keys: if there is none, half of all rows go.
    fn make_room(&mut self, worker: &mut Worker, keys: &[u64]) -> Result<()> {
        let new = keys.iter().filter(|key| !self.keeps(**key)).count();
        if self.rows.len() + new <= self.bounds.rows_max || self.rows.is_empty() {
            return Ok(());
        }
        self.evictions += 1;
        let worth = |(key, row): (&u64, &Row<V>)| match self.bounds.eviction {
            Eviction::LeastRecent => row.read_in,
            Eviction::LeastFrequent => row.reads_in_all,
            // Numbers from 0 on are in the order of their bits.
            Eviction::Random(seed) => Draws::new(seed, self.evictions).of(*key).to_bits(),
        };
        // Equal ones go in order of their keys.
        let mut ranked: Vec<(u64, u64)> =
            self.rows.iter().map(|(key, row)| (worth((key, row)), *key)).collect();
        // Rows of these keys may go, too, and come back.
        let kept = (self.bounds.rows_max / 2).min(self.bounds.rows_max.saturating_sub(keys.len()));
        let going = ranked.len().saturating_sub(kept);
        if going > 0 && going < ranked.len() {
            ranked.select_nth_unstable(going);
        }
        let going: Vec<u64> = ranked[..going].iter().map(|(_, key)| *key).collect();
        self.push_sums(worker, going.clone())?;
        going.iter().for_each(|key| drop(self.rows.remove(key)));
        self.forget_pushed();
        Ok(())
    }

    /// Forgets of those that wait the ones that were pushed, or entered again.
    fn forget_pushed(&mut self) {
        let rows = &self.rows;
        self.waiting.retain(|(since, key)| {
            rows.get(key).is_some_and(|row| !row.sum.is_empty() && row.waits_since == Some(*since))
        });
    }
}
