//! The table that carries the workers' parts of a Hessian and a gradient to the driver, which adds
//! them up in order of ranks, so that runs repeat exactly.
//!
//! They are large, so they are sent in pieces: a worker computes, pushes and frees some at a time,
//! and a server frees what it has answered. Whole, they exist once, at the servers, until the
//! driver has pulled them.
//!
//! Place: worker: gram > **hessian** > driver: minimise.

use std::collections::BTreeMap;
use std::ops::Range;

use caravan_kv::filter::Filters;
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{Store, Table, TableSpec, ValueType, Worker};
use caravan_van::{Account, KeyRange, Pool, Value};
use serde::{Deserialize, Serialize};

use super::cholesky::triangle;
use super::correlations;
use super::support::{Gram, packed_len};

/// Name of its shards' update rule.
pub(super) const HANDLE: &str = "dbpg-hessian";

/// Id of the table.
const TABLE: u32 = 2;

/// Numbers per row. A row is sent at once, so it is in memory once more meanwhile, at both ends.
const PIECE: usize = 64 << 10;

/// Wire format of a Hessian and a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wire {
    /// Single precision, which suffices for a Newton step: only the gradient determines the
    /// minimum, and each of its numbers is sent as two, the second being the remainder of the
    /// first.
    Single,
    /// All numbers as two: only an exact Hessian tells which columns depend on each other.
    Double,
    /// Two bytes a number (`correlations`).
    Short,
}

impl Wire {
    /// Numbers on the wire for a support of n weights.
    fn len(self, n: usize) -> usize {
        match self {
            Wire::Single | Wire::Double => 2 * packed_len(n) - self.pairs_from(n),
            Wire::Short => correlations::wire_len(n),
        }
    }

    /// For floats, how many numbers are sent as one; the others follow as adjacent pairs.
    fn pairs_from(self, n: usize) -> usize {
        if self == Wire::Single { triangle(n) } else { 0 }
    }
}

/// A worker's place among all that push to the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) workers: usize,
}

/// The table for supports up to this size. Row `piece * workers + rank` holds a worker's numbers
/// from `piece * PIECE` on; a row can be pulled once.
pub(super) fn table(support_max: usize, workers: usize, wire: Wire, filters: Filters) -> TableSpec {
    let (value, longest) = match wire {
        Wire::Single | Wire::Double => (ValueType::F32, Wire::Double),
        Wire::Short => (ValueType::I32, Wire::Short),
    };
    let rows = longest.len(support_max).div_ceil(PIECE) * workers;
    let keys = KeyRange::new(0, rows as u64).expect("there is a worker, and a weight");
    let mut spec = TableSpec::new(TABLE, "hessian", value, 0).handle(HANDLE).keys(keys);
    spec.store = Store::Sparse;
    spec.filters(filters)
}

/// The rows of a worker's numbers, and the range of numbers in each.
fn rows(place: Place, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let Place { rank, workers } = place;
    let numbers = (0..len).step_by(PIECE).map(move |from| from..(from + PIECE).min(len));
    numbers.enumerate().map(move |(piece, numbers)| ((piece * workers + rank) as u64, numbers))
}

/// Pushes a worker's numbers for a support of n weights to its rows. `place` is its rank and the
/// number of workers.
pub(super) fn send(
    worker: &mut Worker,
    table: Table,
    place: Place,
    n: usize,
    gram: Gram<'_>,
    wire: Wire,
) -> caravan_kv::Result<()> {
    let len = wire.len(n);
    match wire {
        Wire::Single | Wire::Double => {
            let pairs_from = wire.pairs_from(n);
            let numbers = gram.enumerate().flat_map(|(at, number)| {
                let rest = (number - f64::from(number as f32)) as f32;
                std::iter::once(number as f32).chain((at >= pairs_from).then_some(rest))
            });
            push(worker, table, place, numbers, len)
        }
        Wire::Short => {
            let packed: Vec<f64> = gram.collect();
            push(worker, table, place, correlations::pack(n, &packed).into_iter(), len)
        }
    }
}

fn push<V: Value>(
    worker: &mut Worker,
    table: Table,
    place: Place,
    mut numbers: impl Iterator<Item = V>,
    len: usize,
) -> caravan_kv::Result<()> {
    let mut values = Vec::with_capacity(len.min(PIECE));
    for (row, of) in rows(place, len) {
        values.clear();
        values.extend(numbers.by_ref().take(of.len()));
        let pushed = worker.push_varying(table, &[row], &[values.len() as u32], &values)?;
        worker.wait(pushed)?;
    }
    Ok(())
}

/// The sum of all workers' numbers, added in order of ranks, in the order of [`Gram`].
pub(super) fn receive(
    servers: &mut Worker,
    table: Table,
    workers: usize,
    n: usize,
    wire: Wire,
) -> caravan_kv::Result<Vec<f64>> {
    let len = wire.len(n);
    let mut sum = vec![0.0; packed_len(n)];
    for rank in 0..workers {
        let place = Place { rank, workers };
        match wire {
            Wire::Single | Wire::Double => {
                let pairs_from = wire.pairs_from(n);
                pull(servers, table, place, len, |from, part: &[f32]| {
                    for (at, number) in (from..).zip(part) {
                        let pairs = at.saturating_sub(pairs_from);
                        sum[at - pairs.div_ceil(2)] += f64::from(*number);
                    }
                })?;
            }
            Wire::Short => {
                let mut numbers = Vec::with_capacity(len);
                pull(servers, table, place, len, |_, part: &[i32]| {
                    numbers.extend_from_slice(part);
                })?;
                correlations::add(n, &numbers, &mut sum);
            }
        }
    }
    Ok(sum)
}

/// Calls `take` with all of a worker's numbers, piece by piece, and the index of each piece's
/// first.
fn pull<V: Value>(
    servers: &mut Worker,
    table: Table,
    place: Place,
    len: usize,
    mut take: impl FnMut(usize, &[V]),
) -> caravan_kv::Result<()> {
    for (row, of) in rows(place, len) {
        let pulled = servers.pull(table, &[row])?;
        let answer = servers.wait(pulled)?;
        let part = answer.values::<V>();
        if part.len() != of.len() {
            return Err(caravan_kv::Error::Config(format!(
                "worker {} has left {} numbers of its Hessian, not {}",
                place.rank,
                part.len(),
                of.len()
            )));
        }
        take(of.start, part);
    }
    Ok(())
}

/// Bytes of a number, of either type.
const NUMBER_BYTES: usize = 4;

/// Bytes of a row besides its numbers, in the map and in lists of answers.
const ROW_BYTES: usize = 128;

/// A server thread's rows that have not been pulled yet.
#[derive(Debug)]
pub(super) struct Parts {
    rows: BTreeMap<u64, Vec<u8>>,
    /// Accounts for the rows, including those being answered.
    memory: Account,
    /// The answer to the current request.
    answer: Vec<Vec<u8>>,
    lengths: Vec<u32>,
}

impl Parts {
    pub(super) fn new(memory: &Pool) -> Self {
        let memory = Account::new(memory, "rows of a Hessian");
        Parts { rows: BTreeMap::new(), memory, answer: Vec::new(), lengths: Vec::new() }
    }

    /// Stores rows. `lengths`: numbers of each of `rows`; `values`: all of them, as bytes.
    fn put(&mut self, rows: &[u64], lengths: &[u32], mut values: &[u8]) -> Result<(), String> {
        let bytes = lengths.iter().map(|&length| length as usize * NUMBER_BYTES);
        let total: usize = bytes.clone().sum();
        if (lengths.len(), values.len()) != (rows.len(), total) {
            return Err(format!(
                "a push of {} rows came with {} lengths and {} bytes, not {total}",
                rows.len(),
                lengths.len(),
                values.len()
            ));
        }
        let taken = self.memory.add(total + rows.len() * ROW_BYTES);
        taken.map_err(|error| error.to_string())?;
        for (&row, bytes) in rows.iter().zip(bytes) {
            let (own, rest) = values.split_at(bytes);
            if let Some(replaced) = self.rows.insert(row, own.to_vec()) {
                self.memory.release(replaced.len() + ROW_BYTES);
            }
            values = rest;
        }
        Ok(())
    }

    /// Takes rows out to answer with; missing ones have no numbers.
    fn take(&mut self, rows: &[u64]) -> Result<(), String> {
        self.forget_answer();
        self.memory.add(rows.len() * ROW_BYTES).map_err(|error| error.to_string())?;
        let there = rows.iter().filter(|row| self.rows.contains_key(row)).count();
        self.memory.release(there * ROW_BYTES); // they leave the map
        let taken = rows.iter().map(|row| self.rows.remove(row).unwrap_or_default());
        self.answer = taken.collect();
        let lengths = self.answer.iter().map(|row| (row.len() / NUMBER_BYTES) as u32);
        self.lengths = lengths.collect();
        Ok(())
    }

    /// Frees the last answer.
    fn forget_answer(&mut self) {
        let bytes: usize = self.answer.iter().map(Vec::len).sum();
        self.memory.release(bytes + self.lengths.len() * ROW_BYTES);
        self.answer.clear();
        self.lengths.clear();
    }
}

impl caravan_kv::Shard for Parts {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), String> {
        self.put(request.keys, request.lengths, request.values)
    }

    fn reads_once(&self) -> bool {
        true
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, String> {
        self.take(request.keys)?;
        Ok(Pulled::Varying(self.answer.iter().map(Vec::len).sum()))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        let mut rest = into;
        for row in self.answer.drain(..) {
            let (own, behind) = rest.split_at_mut(row.len());
            own.copy_from_slice(&row);
            rest = behind;
            self.memory.release(row.len());
        }
    }

    fn lengths(&self) -> &[u32] {
        &self.lengths
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn rows_are_answered_once() {
        let memory = Pool::new(1 << 20);
        let mut parts = Parts::new(&memory);
        parts.put(&[2, 5], &[1, 2], &[1; 12]).unwrap();
        parts.put(&[5], &[1], &[7; 4]).unwrap();
        for expected in [vec![vec![1; 4], vec![], vec![7; 4]], vec![Vec::new(); 3]] {
            parts.take(&[2, 3, 5]).unwrap();
            assert_eq!(parts.answer, expected);
            let lengths: Vec<u32> = expected.iter().map(|row| row.len() as u32 / 4).collect();
            assert_eq!(parts.lengths, lengths);
        }
        for (lengths, bytes) in [(&[1, 2][..], 12), (&[1], 8), (&[], 0), (&[u32::MAX], 4)] {
            let error = parts.put(&[2], lengths, &vec![0; bytes]).unwrap_err();
            assert!(error.contains("a push of 1 rows came with"), "{error}");
        }
        parts.take(&[]).unwrap();
        assert_eq!(parts.memory.bytes(), 0, "what was answered takes nothing");
        parts.put(&[1], &[180_000], &vec![0; 720_000]).unwrap();
        let error = parts.put(&[2], &[80_000], &vec![0; 320_000]).unwrap_err();
        assert!(error.contains("rows of a Hessian would take 320128 bytes more"), "{error}");
        parts.put(&[1], &[1], &[0; 4]).unwrap();
        assert_eq!(parts.memory.bytes(), 4 + ROW_BYTES, "nor what was replaced");
    }
}
