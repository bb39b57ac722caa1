//! Rows of numbers: the shard behind ordinary tables.
//!
//! Rows of equal width lie in chunks of registered memory. A pull whose values lie together in one chunk is answered from
//! there without a copy, if they are long, or not short and a van lends them; while somebody still reads a chunk, a push to it
//! writes to a fresh copy instead, so that what is on its way never changes.

use std::slice::{from_mut, from_ref};

use caravan_van::{Buffer, KeyRange, Pool, Shared, Value, long};

use super::found::{Found, Piece};
use super::handle::Rule;
use super::index::{Index, NO_ROW};
use super::shard::{Pulled, Request, Shard};
use crate::table::{SHARED_BYTES_MIN, Store, TableSpec};

/// Size that chunks of small rows have, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Values from this size on may be lent, if the van does that, ...
const LENT_BYTES_MIN: usize = 2 << 10;

/// ... and, while they are not long, are copied so many times after a push has met a chunk that was being read: to copy all of that
/// costs a few microseconds, and a loan spares at most one.
const COPIES_AFTER_PUSH: u32 = 16;

/// Dense tables take this many bytes a shard at most: their rows exist from the start.
const DENSE_BYTES_MAX: u128 = 64 << 30;

/// Rows of `width` values each.
pub(crate) struct Rows<V, R> {
    keys: Keys,
    width: usize,
    /// Rows a chunk holds: 2^this.
    chunk_shift: u32,
    chunks: Vec<Shared>,
    /// Pulls of less than [`SHARED_BYTES_MIN`] to copy before one is lent again.
    copies_due: u32,
    rule: R,
    /// Where the rows of the request at hand are, unless they are kept with its keys.
    found: Found,
    values: std::marker::PhantomData<V>,
}

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
        let (chunks, found) = (Vec::new(), Found::default());
        let values = std::marker::PhantomData;
        let mut store =
            Rows { keys, width, chunk_shift, chunks, copies_due: 0, rule, found, values };
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

    /// Calls `with` with what is known of the rows of the request's keys: if they are remembered, from earlier requests.
    fn with_found<T>(
        &mut self,
        request: &Request<'_>,
        with: impl FnOnce(&mut Self, &mut Found) -> T,
    ) -> T {
        if let Some(rows) = request.rows {
            return with(self, &mut rows.0.borrow_mut());
        }
        let mut found = std::mem::take(&mut self.found);
        let result = with(self, &mut found);
        self.found = found;
        result
    }

    /// Finds the rows of `keys`, unless they were found before.
    fn find(&self, keys: &[u64], found: &mut Found) {
        let shift = self.chunk_shift;
        match (&self.keys, keys) {
            _ if found.is_complete(keys.len()) => {}
            (_, [key]) => match self.row(*key) {
                Some(row) => found.enter_consecutive(row, 1, shift),
                None => found.enter(1, shift, |rows| {
                    rows.push(NO_ROW);
                    1
                }),
            },
            (Keys::Dense(range), [first, .., last]) if last - first == keys.len() as u64 - 1 => {
                found.enter_consecutive((first - range.begin()) as u32, keys.len(), shift);
            }
            (Keys::Dense(range), _) => found.enter(keys.len(), shift, |rows| {
                rows.extend(keys.iter().map(|key| (key - range.begin()) as u32));
                0
            }),
            (Keys::Sparse(index), _) => {
                found.enter(keys.len(), shift, |rows| index.find(keys, rows));
            }
        }
    }

    /// Finds the rows of a pull; returns the first if they all lie one behind the other.
    #[inline(never)]
    fn find_run(&mut self, request: &Request<'_>) -> Option<u32> {
        self.found.forget();
        self.with_found(request, |rows, found| {
            rows.find(request.keys, found);
            found.only_run()
        })
    }

    /// As [`Rows::find`], with new rows for keys that have none.
    fn find_or_insert(
        &mut self,
        keys: &[u64],
        found: &mut Found,
        memory: &Pool,
    ) -> Result<(), String> {
        self.find(keys, found);
        if found.missing() == 0 {
            return Ok(());
        }
        self.make_room(found.missing(), memory)?;
        if let Keys::Sparse(index) = &mut self.keys {
            found.complete(self.chunk_shift, |rows| index.insert(keys, rows));
        }
        Ok(())
    }

    /// Makes room for so many more rows. That comes first, then the keys: with the keys alone, rows would be found that do not
    /// exist.
    fn make_room(&mut self, missing: usize, memory: &Pool) -> Result<(), String> {
        let Keys::Sparse(index) = &self.keys else { return Ok(()) };
        let count = index.len() + missing;
        if count >= NO_ROW as usize {
            return Err(format!("a shard holds at most {NO_ROW} rows"));
        }
        self.grow(count, memory)
    }

    /// The row of one key, if it has one.
    #[inline]
    fn row(&self, key: u64) -> Option<u32> {
        match &self.keys {
            Keys::Dense(range) => Some((key - range.begin()) as u32),
            Keys::Sparse(index) => index.row(key),
        }
    }

    #[inline]
    fn row_or_insert(&mut self, key: u64, memory: &Pool) -> Result<u32, String> {
        if let Some(row) = self.row(key) {
            return Ok(row);
        }
        self.make_room(1, memory)?;
        let mut row = [NO_ROW];
        if let Keys::Sparse(index) = &mut self.keys {
            index.insert(&[key], &mut row);
        }
        Ok(row[0])
    }

    /// Pushes one row, the request of most.
    #[inline]
    fn push_one(&mut self, key: u64, pushed: &[V], memory: &Pool) -> Result<(), String> {
        let row = self.row_or_insert(key, memory)?;
        let (chunk, at) = self.place(row);
        let range = at..at + self.row_bytes();
        let bytes = writable(&mut self.chunks[chunk], &mut self.copies_due, memory)?;
        let stored = V::view_mut(&mut bytes[range]).expect(WHOLE_ROWS);
        self.rule.apply(key, stored, pushed);
        Ok(())
    }

    /// Pushes the values of all `keys`, whose rows were found.
    fn push_all(
        &mut self,
        (keys, found): (&[u64], &Found),
        pushed: &[V],
        memory: &Pool,
    ) -> Result<(), String> {
        let (shift, width) = (self.chunk_shift, self.width);
        // All chunks are made writable first, so that a push for which memory is short leaves no half of itself behind.
        for piece in found.pieces(shift) {
            let chunk = &mut self.chunks[piece.row() as usize >> shift];
            writable(chunk, &mut self.copies_due, memory)?;
        }
        let mut at = 0;
        for piece in found.pieces(shift) {
            let chunk = &mut self.chunks[piece.row() as usize >> shift];
            let bytes = writable(chunk, &mut self.copies_due, memory)?;
            let stored = V::view_mut(bytes).expect(WHOLE_ROWS);
            let keys = &keys[at..at + piece.len()];
            let pushed = &pushed[at * width..][..keys.len() * width];
            at += keys.len();
            let mask = (1 << shift) - 1;
            match piece {
                Piece::Run { row, len } => {
                    let begin = (row as usize & mask) * width;
                    self.rule.apply_run(keys, &mut stored[begin..begin + len * width], pushed);
                }
                Piece::Rows(rows) if width == 1 => {
                    for ((row, &key), pushed) in rows.iter().zip(keys).zip(pushed) {
                        let stored = from_mut(&mut stored[*row as usize & mask]);
                        self.rule.apply(key, stored, from_ref(pushed));
                    }
                }
                Piece::Rows(rows) => {
                    let pushed = pushed.chunks_exact(width);
                    for ((row, &key), pushed) in rows.iter().zip(keys).zip(pushed) {
                        let begin = (*row as usize & mask) * width;
                        self.rule.apply(key, &mut stored[begin..begin + width], pushed);
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the values of rows that were found.
    fn read_all(&self, found: &Found, into: &mut [V]) {
        let (shift, width) = (self.chunk_shift, self.width);
        let mask = (1 << shift) - 1;
        let mut rest = into;
        for piece in found.pieces(shift) {
            let (into, others) = rest.split_at_mut(piece.len() * width);
            rest = others;
            let chunk = self.chunks.get(piece.row() as usize >> shift);
            let stored = chunk.map_or(&[][..], |chunk| view(chunk));
            match piece {
                Piece::Run { row: NO_ROW, .. } => into.fill(V::default()),
                Piece::Run { row, .. } => {
                    let stored = &stored[(row as usize & mask) * width..][..into.len()];
                    long::copy(V::bytes_mut(into), V::bytes(stored));
                }
                Piece::Rows(rows) if width == 1 => {
                    for (&row, into) in rows.iter().zip(into) {
                        let value = |row| stored[row as usize & mask];
                        *into = if row == NO_ROW { V::default() } else { value(row) };
                    }
                }
                Piece::Rows(rows) => {
                    for (&row, into) in rows.iter().zip(into.chunks_exact_mut(width)) {
                        match row {
                            NO_ROW => into.fill(V::default()),
                            _ => into
                                .copy_from_slice(&stored[(row as usize & mask) * width..][..width]),
                        }
                    }
                }
            }
        }
    }

    #[inline]
    fn row_bytes(&self) -> usize {
        self.width * V::BYTES
    }

    /// Chunk and byte offset of a row.
    #[inline]
    fn place(&self, row: u32) -> (usize, usize) {
        let within = row as usize & ((1 << self.chunk_shift) - 1);
        (row as usize >> self.chunk_shift, within * self.row_bytes())
    }
}

const WHOLE_ROWS: &str = "chunks are aligned and hold whole rows";

/// A chunk as numbers.
#[inline]
fn view<V: Value>(chunk: &[u8]) -> &[V] {
    V::view(chunk).expect(WHOLE_ROWS)
}

/// A chunk to write, in a copy if somebody still reads from it.
#[inline]
fn writable<'a>(
    chunk: &'a mut Shared,
    copies_due: &mut u32,
    memory: &Pool,
) -> Result<&'a mut [u8], String> {
    let read = chunk.as_ptr();
    let bytes = chunk.make_mut(memory).map_err(|error| error.to_string())?;
    if bytes.as_ptr() != read {
        *copies_due = COPIES_AFTER_PUSH;
    }
    Ok(bytes)
}

impl<V: Value, R: Rule<V>> Shard for Rows<V, R> {
    fn push(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), String> {
        let keys = request.keys;
        let expected = keys.len() * self.width * V::BYTES;
        let pushed = V::view(request.values).filter(|_| request.values.len() == expected);
        let Some(pushed) = pushed else {
            return Err(format!(
                "a push of {} keys takes {expected} bytes, not {}",
                keys.len(),
                request.values.len()
            ));
        };
        if let [key] = keys {
            return self.push_one(*key, pushed, memory);
        }
        self.found.forget();
        self.with_found(request, |rows, found| {
            rows.find_or_insert(keys, found, memory)?;
            rows.push_all((keys, found), pushed, memory)
        })
    }

    /// One large row, which is a chunk by itself, can be exchanged as a whole.
    fn adopts(&self, request: &Request<'_>) -> bool {
        let row_bytes = self.row_bytes();
        let whole = request.values.len() == row_bytes && self.chunk_shift == 0;
        R::REPLACES && whole && request.keys.len() == 1 && row_bytes >= SHARED_BYTES_MIN
    }

    fn adopt(&mut self, key: u64, values: Buffer, memory: &Pool) -> Result<(), String> {
        let row = self.row_or_insert(key, memory)?;
        let (chunk, _) = self.place(row);
        self.chunks[chunk] = values.share();
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, String> {
        let bytes = request.keys.len() * self.width * V::BYTES;
        let row = match *request.keys {
            [key] => self.row(key),
            _ => None,
        };
        let Some(row) = row.or_else(|| self.find_run(request)) else {
            return Ok(Pulled::Bytes(bytes));
        };
        let (chunk, at) = self.place(row);
        let (chunk, range) = (&self.chunks[chunk], at..at + bytes);
        if bytes < LENT_BYTES_MIN {
            return Ok(Pulled::Stored(&chunk[range]));
        }
        if bytes < SHARED_BYTES_MIN && self.copies_due > 0 {
            self.copies_due -= 1;
            return Ok(Pulled::Stored(&chunk[range]));
        }
        Ok(Pulled::Shared(chunk.slice(range)))
    }

    fn read(&mut self, request: &Request<'_>, into: &mut [u8]) {
        let into = V::view_mut(into).expect("it is as aligned and as long as `pull` asked for");
        self.with_found(request, |rows, found| rows.read_all(found, into));
    }
}

/// Rows whose keys have their own number of values.
pub(crate) struct VaryingRows<V, R> {
    index: Index,
    stored: Vec<Vec<V>>,
    rule: R,
    /// Of the request at hand.
    rows: Vec<u32>,
    lengths: Vec<u32>,
}

impl<V: Value, R: Rule<V>> VaryingRows<V, R> {
    pub(crate) fn new(rule: R) -> Self {
        let index = Index::default();
        VaryingRows { index, stored: Vec::new(), rule, rows: Vec::new(), lengths: Vec::new() }
    }

    /// Finds the rows of `keys`, into `self.rows`; returns how many have none.
    fn find(&mut self, keys: &[u64]) -> usize {
        self.rows.clear();
        self.index.find(keys, &mut self.rows)
    }

    /// What a row holds, nothing if there is none.
    fn stored(&self, row: u32) -> &[V] {
        self.stored.get(row as usize).map_or(&[], |values| values)
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
        let missing = self.find(request.keys);
        for (at, &row) in self.rows.iter().enumerate() {
            let stored = self.stored(row).len();
            let length = request.lengths[at] as usize;
            if stored != 0 && stored != length && !R::REPLACES {
                return Err(format!(
                    "key {} holds {stored} values, so {length} cannot be combined with them",
                    request.keys[at]
                ));
            }
        }
        if missing > 0 {
            self.index.insert(request.keys, &mut self.rows);
            self.stored.resize_with(self.index.len(), Vec::new);
        }
        for (at, row) in self.rows.iter().enumerate() {
            let (mine, rest) = pushed.split_at(request.lengths[at] as usize);
            let stored = &mut self.stored[*row as usize];
            stored.resize(mine.len(), V::default());
            self.rule.apply(request.keys[at], stored, mine);
            pushed = rest;
        }
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, String> {
        self.find(request.keys);
        let mut lengths = std::mem::take(&mut self.lengths);
        lengths.clear();
        lengths.extend(self.rows.iter().map(|&row| self.stored(row).len() as u32));
        self.lengths = lengths;
        let total: usize = self.lengths.iter().map(|&n| n as usize).sum();
        Ok(Pulled::Varying(total * V::BYTES))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        let mut at = 0;
        for &row in &self.rows {
            let bytes = V::bytes(self.stored(row));
            into[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }

    fn lengths(&self) -> &[u32] {
        &self.lengths
    }
}
