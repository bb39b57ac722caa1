//! Rows of numbers: the shard behind ordinary tables.
//!
//! Rows of equal width lie in chunks of registered memory. A pull whose values lie together in one chunk is answered from
//! there without a copy; while a van still sends from a chunk, a push to it writes to a fresh copy instead, so that what is
//! on its way never changes.

use caravan_van::{Buffer, KeyRange, Pool, Shared, Value};

use super::handle::Rule;
use super::index::Index;
use super::shard::{Pulled, Request, Shard};
use crate::table::{Store, TableSpec};

/// Size that chunks of small rows have, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Values of at least this many bytes are sent from where they lie; fewer are copied into the message.
const SHARED_BYTES_MIN: usize = 16 << 10;

/// Dense tables take this many bytes a shard at most: their rows exist from the start.
const DENSE_BYTES_MAX: u128 = 64 << 30;

/// Rows of `width` values each.
pub(crate) struct Rows<V, R> {
    keys: Keys,
    width: usize,
    /// Rows a chunk holds: 2^this.
    chunk_shift: u32,
    chunks: Vec<Shared>,
    rule: R,
    /// Where the rows of the request at hand are, [`NO_ROW`] for those that are not.
    rows: Vec<u32>,
    values: std::marker::PhantomData<V>,
}

const NO_ROW: u32 = u32::MAX;

/// Bytes of a thread's memory that tables may take: the rest is for messages, without which no lane lives.
fn share(memory: &Pool) -> usize {
    memory.bytes_max() - memory.bytes_max() / 8
}

enum Keys {
    /// Row = key - begin.
    Dense(KeyRange),
    Sparse(Index),
}

impl<V: Value, R: Rule<V>> Rows<V, R> {
    pub(crate) fn new(
        spec: &TableSpec,
        range: Option<KeyRange>,
        rule: R,
        memory: &Pool,
    ) -> Result<Self, String> {
        let width = spec.width as usize;
        let row_bytes = width * V::BYTES;
        let chunk_shift = (CHUNK_BYTES / row_bytes).max(1).ilog2();
        let keys = match (spec.store, range) {
            (Store::Dense, Some(range)) => Keys::Dense(range),
            _ => Keys::Sparse(Index::default()),
        };
        let (chunks, rows) = (Vec::new(), Vec::new());
        let mut store =
            Rows { keys, width, chunk_shift, chunks, rule, rows, values: std::marker::PhantomData };
        if let Keys::Dense(range) = store.keys {
            let bytes = range.count() * row_bytes as u128;
            let most = DENSE_BYTES_MAX.min(share(memory) as u128);
            if bytes > most || range.count() >= u128::from(NO_ROW) {
                return Err(format!(
                    "a dense shard of {} rows with {row_bytes} bytes each is over {most} bytes (make it sparse, or raise CARAVAN_MEMORY)",
                    range.count()
                ));
            }
            store.grow(range.count() as usize, memory)?;
        }
        Ok(store)
    }

    /// Makes room for `count` rows; new ones are zero.
    fn grow(&mut self, count: usize, memory: &Pool) -> Result<(), String> {
        let chunk_bytes = (self.width * V::BYTES) << self.chunk_shift;
        while self.chunks.len() << self.chunk_shift < count {
            let (taken, most) = (memory.bytes_cut(), share(memory));
            if chunk_bytes > most.saturating_sub(taken) {
                return Err(format!(
                    "no room for {chunk_bytes} more bytes of rows: {taken} bytes of registered memory are taken, of which tables may take {most} (raise CARAVAN_MEMORY)"
                ));
            }
            let mut chunk = memory.allocate(chunk_bytes).map_err(|error| error.to_string())?;
            chunk.fill(0);
            self.chunks.push(chunk.share());
        }
        Ok(())
    }

    /// Finds the rows of the request's keys, into `self.rows`.
    fn find(&mut self, keys: &[u64]) {
        self.rows.clear();
        match &self.keys {
            Keys::Dense(range) => {
                self.rows.extend(keys.iter().map(|key| (key - range.begin()) as u32))
            }
            Keys::Sparse(index) => index.find(keys, |_, row| self.rows.push(row.unwrap_or(NO_ROW))),
        }
    }

    /// As [`Rows::find`], with new rows for keys that have none.
    fn find_or_insert(&mut self, keys: &[u64], memory: &Pool) -> Result<(), String> {
        self.find(keys);
        let Keys::Sparse(index) = &self.keys else { return Ok(()) };
        let new = self.rows.iter().filter(|row| **row == NO_ROW).count();
        if new == 0 {
            return Ok(());
        }
        let count = index.len() + new;
        if count >= NO_ROW as usize {
            return Err(format!("a shard holds at most {NO_ROW} rows"));
        }
        // First the room, then the keys: with the keys alone, rows would be found that do not exist.
        self.grow(count, memory)?;
        if let Keys::Sparse(index) = &mut self.keys {
            index.insert(keys);
        }
        self.find(keys);
        Ok(())
    }

    /// Makes the chunks of `self.rows` writable, so that a push for which memory is short leaves no half of itself behind.
    fn claim(&mut self, memory: &Pool) -> Result<(), String> {
        for run in self.rows.chunk_by(|a, b| a >> self.chunk_shift == b >> self.chunk_shift) {
            let chunk = &mut self.chunks[run[0] as usize >> self.chunk_shift];
            chunk.make_mut(memory).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Chunk and byte offset of a row.
    fn place(&self, row: u32) -> (usize, usize) {
        let within = row as usize & ((1 << self.chunk_shift) - 1);
        (row as usize >> self.chunk_shift, within * self.width * V::BYTES)
    }
}

impl<V: Value, R: Rule<V>> Shard for Rows<V, R> {
    fn push(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), String> {
        let expected = request.keys.len() * self.width * V::BYTES;
        let pushed = V::view(request.values).filter(|_| request.values.len() == expected);
        let Some(pushed) = pushed else {
            return Err(format!(
                "a push of {} keys takes {expected} bytes, not {}",
                request.keys.len(),
                request.values.len()
            ));
        };
        self.find_or_insert(request.keys, memory)?;
        if request.keys.len() > 1 {
            self.claim(memory)?;
        }
        let shift = self.chunk_shift;
        let mut pushes = request.keys.iter().zip(pushed.chunks_exact(self.width));
        // Runs of rows in one chunk.
        for rows in self.rows.chunk_by(|a, b| a >> shift == b >> shift) {
            let chunk = &mut self.chunks[rows[0] as usize >> shift];
            let bytes = chunk.make_mut(memory).map_err(|error| error.to_string())?;
            let stored = V::view_mut(bytes).expect("chunks are aligned and hold whole rows");
            for (&row, (&key, pushed)) in rows.iter().zip(&mut pushes) {
                let begin = (row as usize & ((1 << shift) - 1)) * self.width;
                self.rule.apply(key, &mut stored[begin..begin + self.width], pushed);
            }
        }
        Ok(())
    }

    /// One large row, which is a chunk by itself, can be exchanged as a whole.
    fn adopts(&self, request: &Request<'_>) -> bool {
        let row_bytes = self.width * V::BYTES;
        let whole = request.values.len() == row_bytes && self.chunk_shift == 0;
        R::REPLACES && whole && request.keys.len() == 1 && row_bytes >= SHARED_BYTES_MIN
    }

    fn adopt(&mut self, key: u64, values: Buffer, memory: &Pool) -> Result<(), String> {
        self.find_or_insert(&[key], memory)?;
        let (chunk, _) = self.place(self.rows[0]);
        self.chunks[chunk] = values.share();
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled, String> {
        self.find(request.keys);
        let bytes = request.keys.len() * self.width * V::BYTES;
        let (Some(&first), Some(&last)) = (self.rows.first(), self.rows.last()) else {
            return Ok(Pulled::Bytes(0));
        };
        let together = bytes >= SHARED_BYTES_MIN
            && first != NO_ROW
            && first >> self.chunk_shift == last >> self.chunk_shift
            && self.rows.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if !together {
            return Ok(Pulled::Bytes(bytes));
        }
        let (chunk, offset) = self.place(first);
        Ok(Pulled::Shared(self.chunks[chunk].slice(offset..offset + bytes)))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        let row_bytes = self.width * V::BYTES;
        for (&row, into) in self.rows.iter().zip(into.chunks_exact_mut(row_bytes)) {
            if row == NO_ROW {
                into.fill(0);
                continue;
            }
            let (chunk, offset) = self.place(row);
            into.copy_from_slice(&self.chunks[chunk][offset..offset + row_bytes]);
        }
    }
}

/// Rows whose keys have their own number of values.
pub(crate) struct VaryingRows<V, R> {
    index: Index,
    stored: Vec<Vec<V>>,
    rule: R,
    rows: Vec<Option<u32>>,
    lengths: Vec<u32>,
}

impl<V: Value, R: Rule<V>> VaryingRows<V, R> {
    pub(crate) fn new(rule: R) -> Self {
        let index = Index::default();
        VaryingRows { index, stored: Vec::new(), rule, rows: Vec::new(), lengths: Vec::new() }
    }

    fn find(&mut self, keys: &[u64]) {
        self.rows.clear();
        self.index.find(keys, |_, row| self.rows.push(row));
    }
}

impl<V: Value, R: Rule<V>> Shard for VaryingRows<V, R> {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), String> {
        let total: usize = request.lengths.iter().map(|&n| n as usize).sum();
        let mut pushed = V::view(request.values).ok_or("the values do not fit the table's type")?;
        if request.lengths.len() != request.keys.len() || pushed.len() != total {
            return Err(format!(
                "a push of {} keys came with {} lengths, which add up to {total}, and {} values",
                request.keys.len(),
                request.lengths.len(),
                pushed.len()
            ));
        }
        self.find(request.keys);
        for (at, row) in self.rows.iter().enumerate() {
            let stored = row.map_or(0, |row| self.stored[row as usize].len());
            let length = request.lengths[at] as usize;
            if stored != 0 && stored != length && !R::REPLACES {
                return Err(format!(
                    "key {} holds {stored} values, so {length} cannot be combined with them",
                    request.keys[at]
                ));
            }
        }
        self.index.insert(request.keys);
        self.stored.resize_with(self.index.len(), Vec::new);
        self.find(request.keys);
        for (at, row) in self.rows.iter().enumerate() {
            let Some(row) = row else { continue };
            let (mine, rest) = pushed.split_at(request.lengths[at] as usize);
            let stored = &mut self.stored[*row as usize];
            stored.resize(mine.len(), V::default());
            self.rule.apply(request.keys[at], stored, mine);
            pushed = rest;
        }
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled, String> {
        self.find(request.keys);
        self.lengths.clear();
        let lengths =
            self.rows.iter().map(|row| row.map_or(0, |row| self.stored[row as usize].len() as u32));
        self.lengths.extend(lengths);
        let total: usize = self.lengths.iter().map(|&n| n as usize).sum();
        Ok(Pulled::Varying(total * V::BYTES))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        let mut at = 0;
        for row in self.rows.iter().flatten() {
            let bytes = V::bytes(&self.stored[*row as usize]);
            into[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }

    fn lengths(&self) -> &[u32] {
        &self.lengths
    }
}
