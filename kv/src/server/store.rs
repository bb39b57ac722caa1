//! Rows of equal width: the shard of ordinary tables.
//!
//! Rows lie in chunks of registered memory. A pull of consecutive values in one chunk is answered
//! without a copy if the values are long, or of medium length and the van lends them. While a
//! reader holds a chunk, a push to it writes to a fresh copy, so values in flight never change.
//! Hidden values lie in chunks of their own, which nobody else reads.

use std::iter::once;
use std::slice::{from_mut, from_ref};

use caravan_van::{Account, Buffer, KeyRange, Pool, Shared, Value, long};

use super::found::{Found, Piece};
use super::handle::{Number, Origin, Rule};
use super::index::{Index, NO_ROW};
use super::initial::Start;
use super::shard::{Pulled, Request, Shard};
use crate::table::{SHARED_BYTES_MIN, Store, TableSpec};

/// Size of chunks of small rows, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Values of at least this many bytes are lent if the van lends them.
const LENT_BYTES_MIN: usize = 2 << 10;

/// After a push to a chunk that was being read, this many pulls copy their values before one is
/// lent again, unless the values are long. A push to a lent chunk copies all of it, which costs
/// more than several loans save.
const COPIES_AFTER_PUSH: u32 = 16;

/// Most bytes of a shard of a dense table, all of whose rows exist from the start.
const DENSE_BYTES_MAX: u128 = 64 << 30;

/// Rows of `width` values each.
pub(crate) struct Rows<V, R> {
    keys: Keys,
    width: usize,
    /// Binary logarithm of the number of rows in a chunk.
    chunk_shift: u32,
    chunks: Vec<Shared>,
    /// Hidden values of the rows of each chunk; none if the rule has none.
    hidden: Vec<Buffer>,
    /// Pulls below [`SHARED_BYTES_MIN`] to copy before one is lent again.
    copies_due: u32,
    rule: R,
    start: Start<V>,
    /// Rows of the current request, unless its list of keys holds them.
    found: Found,
    /// Charged for the lists of chunks and of found rows.
    memory: Account,
    /// Keys for which `memory` is charged for `found`.
    found_max: usize,
}

/// Most bytes that a found row takes, runs included; lists may have twice the capacity they need.
const FOUND_BYTES: usize = 12;

/// There is always room to find this many keys, so a full table still serves its rows.
pub(super) const FOUND_MIN: usize = 1024;

/// An account of a table's memory, with the table's name.
fn account(spec: &TableSpec, memory: &Pool) -> Account {
    Account::new(memory, format!("table {}", spec.name))
}

/// The accounts of a table's index and of its other unregistered memory: its lists, and room to
/// find [`FOUND_MIN`] keys.
pub(super) fn accounts(spec: &TableSpec, memory: &Pool) -> Result<[Account; 2], String> {
    let mut others = account(spec, memory);
    others.set(FOUND_MIN * FOUND_BYTES).map_err(|error| error.to_string())?;
    Ok([account(spec, memory), others])
}

/// Charges `memory` for `keys` found rows, and sets `room` to that number.
#[cold]
pub(super) fn make_room_to_find(
    memory: &mut Account,
    room: &mut usize,
    keys: usize,
) -> Result<(), String> {
    memory.add((keys - *room) * FOUND_BYTES).map_err(|error| error.to_string())?;
    *room = keys;
    Ok(())
}

enum Keys {
    /// Row = key - begin.
    Dense(KeyRange),
    Sparse(Index),
}

impl<V: Number, R: Rule<V>> Rows<V, R> {
    pub(super) fn new(
        spec: &TableSpec,
        range: Option<KeyRange>,
        rule: R,
        start: Start<V>,
        memory: &Pool,
    ) -> Result<Self, String> {
        let width = spec.width as usize;
        let row_bytes = width * V::BYTES;
        let chunk_shift = (CHUNK_BYTES / row_bytes).max(1).ilog2();
        let [index, others] = accounts(spec, memory)?;
        let keys = match (spec.store, range) {
            (Store::Dense, Some(range)) => Keys::Dense(range),
            _ => Keys::Sparse(Index::new(index)),
        };
        let mut store = Rows {
            keys,
            width,
            chunk_shift,
            chunks: Vec::new(),
            hidden: Vec::new(),
            copies_due: 0,
            rule,
            start,
            found: Found::default(),
            memory: others,
            found_max: FOUND_MIN,
        };
        if let Keys::Dense(range) = store.keys {
            let row_bytes = row_bytes + store.hidden_bytes();
            let bytes = range.count() * row_bytes as u128;
            let bytes_max = DENSE_BYTES_MAX.min(memory.bytes_left() as u128);
            if bytes > bytes_max || range.count() >= u128::from(NO_ROW) {
                return Err(format!(
                    "a dense shard of {} rows with {row_bytes} bytes each is over {bytes_max} bytes (make it sparse, or raise CARAVAN_MEMORY)",
                    range.count()
                ));
            }
            store.grow(range.count() as usize, memory)?;
            store.start_rows(0, range.begin()..=range.last(), memory)?;
        }
        Ok(store)
    }

    /// Makes room for `count` rows; new ones are zero.
    fn grow(&mut self, count: usize, memory: &Pool) -> Result<(), String> {
        let [stored_bytes, hidden_bytes] =
            [self.row_bytes(), self.hidden_bytes()].map(|bytes| bytes << self.chunk_shift);
        let chunk_bytes = stored_bytes + hidden_bytes;
        while self.chunks.len() << self.chunk_shift < count {
            let left = memory.bytes_left();
            let limit = memory.bytes_max();
            if chunk_bytes > left {
                return Err(format!(
                    "no room for {chunk_bytes} more bytes of rows: {left} of {limit} are left for tables (raise CARAVAN_MEMORY)"
                ));
            }
            self.memory.reserve(&mut self.chunks, 1).map_err(|error| error.to_string())?;
            let chunk = zeros(stored_bytes, memory)?;
            if hidden_bytes > 0 {
                self.memory.reserve(&mut self.hidden, 1).map_err(|error| error.to_string())?;
                self.hidden.push(zeros(hidden_bytes, memory)?);
            }
            self.chunks.push(chunk.share());
        }
        Ok(())
    }

    /// Gives the rows from `first` on, which are those of new `keys`, their initial values.
    fn start_rows(
        &mut self,
        first: usize,
        keys: impl Iterator<Item = u64>,
        memory: &Pool,
    ) -> Result<(), String> {
        let hidden_width = self.rule.hidden(self.width);
        if hidden_width == 0 && self.start.is_zero() {
            return Ok(());
        }
        for (row, key) in (first as u32..).zip(keys) {
            let (chunk, at) = self.place(row);
            let within = self.within(row);
            let range = at..at + self.row_bytes();
            let bytes = writable(&mut self.chunks[chunk], &mut self.copies_due, memory)?;
            let stored = V::view_mut(&mut bytes[range]).expect(WHOLE_ROWS);
            self.start.fill(key, stored);
            let hidden = hidden_of(&mut self.hidden, chunk, hidden_width);
            let hidden = &mut hidden[within * hidden_width..][..hidden_width];
            hidden.fill(R::Hidden::default()); // an earlier attempt may have lacked memory for the index
            self.rule.init(key, stored, hidden);
        }
        Ok(())
    }

    /// Forgets the previous request's rows, and charges memory for this one's, unless its list of
    /// keys holds them.
    #[inline]
    fn begin_to_find(&mut self, request: &Request<'_>) -> Result<(), String> {
        self.found.forget();
        let keys = request.keys.len();
        if keys > self.found_max && request.rows.is_none() {
            make_room_to_find(&mut self.memory, &mut self.found_max, keys)?;
        }
        Ok(())
    }

    /// Calls `with` with the found rows of the request. Those of a remembered list of keys are kept
    /// between requests.
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

    /// Finds the rows of `keys`, unless `found` holds them already.
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

    /// Finds the rows of a pull; returns the first one if all are consecutive in one chunk.
    #[inline(never)]
    fn find_run(&mut self, request: &Request<'_>) -> Result<Option<u32>, String> {
        self.begin_to_find(request)?;
        Ok(self.with_found(request, |rows, found| {
            rows.find(request.keys, found);
            found.only_run()
        }))
    }

    /// As [`Rows::find`], but inserts missing rows.
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
        found.complete(self.chunk_shift, |rows, missing| {
            let new = keys.iter().zip(&*rows).filter(|(_, row)| **row == NO_ROW);
            self.make_rows(missing, new.map(|(key, _)| *key), memory)?;
            let Keys::Sparse(index) = &mut self.keys else { return Ok(()) };
            index.insert(keys, rows, missing).map_err(|error| error.to_string())
        })
    }

    /// Makes `missing` more rows, for these keys. This precedes the insertion of their keys: if
    /// memory is short, the index must not name rows that do not exist.
    fn make_rows(
        &mut self,
        missing: usize,
        keys: impl Iterator<Item = u64>,
        memory: &Pool,
    ) -> Result<(), String> {
        let Keys::Sparse(index) = &self.keys else { return Ok(()) };
        let first = index.len();
        let count = first + missing;
        if count >= NO_ROW as usize {
            return Err(format!("a shard holds at most {NO_ROW} rows"));
        }
        self.grow(count, memory)?;
        self.start_rows(first, keys, memory)
    }

    /// The row of a key, if it has one.
    #[inline]
    fn row(&self, key: u64) -> Option<u32> {
        match &self.keys {
            Keys::Dense(range) => Some((key - range.begin()) as u32),
            Keys::Sparse(index) => index.row(key),
        }
    }

    #[inline]
    fn row_or_insert(&mut self, key: u64, memory: &Pool) -> Result<u32, String> {
        match self.row(key) {
            Some(row) => Ok(row),
            None => self.insert(key, memory),
        }
    }

    /// Inserts a row for a key that has none.
    #[inline(never)] // most keys have one
    fn insert(&mut self, key: u64, memory: &Pool) -> Result<u32, String> {
        self.make_rows(1, once(key), memory)?;
        let mut row = [NO_ROW];
        if let Keys::Sparse(index) = &mut self.keys {
            index.insert(&[key], &mut row, 1).map_err(|error| error.to_string())?;
        }
        Ok(row[0])
    }

    /// Pushes one row, the most frequent request.
    #[inline]
    fn push_one(
        &mut self,
        origin: Origin,
        key: u64,
        pushed: &[V],
        memory: &Pool,
    ) -> Result<(), String> {
        let row = self.row_or_insert(key, memory)?;
        let (chunk, at) = self.place(row);
        let within = self.within(row);
        let range = at..at + self.row_bytes();
        let bytes = writable(&mut self.chunks[chunk], &mut self.copies_due, memory)?;
        let stored = V::view_mut(&mut bytes[range]).expect(WHOLE_ROWS);
        let hidden_width = self.rule.hidden(self.width);
        let hidden = hidden_of(&mut self.hidden, chunk, hidden_width);
        let hidden = &mut hidden[within * hidden_width..][..hidden_width];
        self.rule.apply(origin, key, stored, hidden, pushed);
        Ok(())
    }

    /// Pushes the values of all `keys`, whose rows are in `found`.
    fn push_all(
        &mut self,
        origin: Origin,
        keys: &[u64],
        found: &Found,
        pushed: &[V],
        memory: &Pool,
    ) -> Result<(), String> {
        let shift = self.chunk_shift;
        let width = self.width;
        let hidden_width = self.rule.hidden(width);
        // All chunks are made writable first: a push that lacks memory must not be half applied.
        for piece in found.pieces(shift) {
            let chunk = &mut self.chunks[piece.row() as usize >> shift];
            writable(chunk, &mut self.copies_due, memory)?;
        }
        let mut at = 0;
        for piece in found.pieces(shift) {
            let chunk = piece.row() as usize >> shift;
            let bytes = writable(&mut self.chunks[chunk], &mut self.copies_due, memory)?;
            let stored = V::view_mut(bytes).expect(WHOLE_ROWS);
            let hidden = hidden_of(&mut self.hidden, chunk, hidden_width);
            let keys = &keys[at..at + piece.len()];
            let pushed = &pushed[at * width..][..keys.len() * width];
            at += keys.len();
            let mask = (1 << shift) - 1;
            match piece {
                Piece::Run { row, len } => {
                    let row = row as usize & mask;
                    let stored = &mut stored[row * width..][..len * width];
                    let hidden = &mut hidden[row * hidden_width..][..len * hidden_width];
                    apply_run(&mut self.rule, origin, keys, stored, hidden, pushed);
                }
                Piece::Rows(rows) if width == 1 => {
                    for ((row, &key), pushed) in rows.iter().zip(keys).zip(pushed) {
                        let row = *row as usize & mask;
                        let stored = from_mut(&mut stored[row]);
                        let hidden = &mut hidden[row * hidden_width..][..hidden_width];
                        self.rule.apply(origin, key, stored, hidden, from_ref(pushed));
                    }
                }
                Piece::Rows(rows) => {
                    let pushed = pushed.chunks_exact(width);
                    for ((row, &key), pushed) in rows.iter().zip(keys).zip(pushed) {
                        let row = *row as usize & mask;
                        let stored = &mut stored[row * width..][..width];
                        let hidden = &mut hidden[row * hidden_width..][..hidden_width];
                        self.rule.apply(origin, key, stored, hidden, pushed);
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies the values of the rows in `found`, which are those of `keys`, to `into`.
    fn read_all(&self, keys: &[u64], found: &Found, into: &mut [V]) {
        let shift = self.chunk_shift;
        let width = self.width;
        let mask = (1 << shift) - 1;
        let mut later = keys;
        let mut rest = into;
        for piece in found.pieces(shift) {
            let (into, others) = rest.split_at_mut(piece.len() * width);
            rest = others;
            let (keys, others) = later.split_at(piece.len());
            later = others;
            let chunk = self.chunks.get(piece.row() as usize >> shift);
            let stored = chunk.map_or(&[][..], |chunk| view(chunk));
            match piece {
                Piece::Run { row: NO_ROW, .. } => {
                    let rows = keys.iter().zip(into.chunks_exact_mut(width));
                    rows.for_each(|(key, into)| self.start.fill(*key, into));
                }
                Piece::Run { row, .. } => {
                    let stored = &stored[(row as usize & mask) * width..][..into.len()];
                    long::copy(V::bytes_mut(into), V::bytes(stored));
                }
                Piece::Rows(rows) if width == 1 => {
                    for ((&row, &key), into) in rows.iter().zip(keys).zip(into) {
                        match row {
                            NO_ROW => self.start.fill(key, from_mut(into)),
                            _ => *into = stored[row as usize & mask],
                        }
                    }
                }
                Piece::Rows(rows) => {
                    for ((&row, &key), into) in
                        rows.iter().zip(keys).zip(into.chunks_exact_mut(width))
                    {
                        match row {
                            NO_ROW => self.start.fill(key, into),
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

    /// Bytes of a row's hidden values.
    #[inline]
    fn hidden_bytes(&self) -> usize {
        self.rule.hidden(self.width) * R::Hidden::BYTES
    }

    /// Chunk and byte offset of a row.
    #[inline]
    fn place(&self, row: u32) -> (usize, usize) {
        (row as usize >> self.chunk_shift, self.within(row) * self.row_bytes())
    }

    /// A row's place in its chunk.
    #[inline]
    fn within(&self, row: u32) -> usize {
        row as usize & ((1 << self.chunk_shift) - 1)
    }
}

const WHOLE_ROWS: &str = "chunks are aligned and hold whole rows";

/// A chunk as numbers.
#[inline]
fn view<V: Value>(chunk: &[u8]) -> &[V] {
    V::view(chunk).expect(WHOLE_ROWS)
}

/// The hidden values of a chunk's rows, `width` each.
#[inline]
fn hidden_of<H: Value>(hidden: &mut [Buffer], chunk: usize, width: usize) -> &mut [H] {
    if width == 0 {
        return &mut [];
    }
    H::view_mut(&mut hidden[chunk]).expect(WHOLE_ROWS)
}

/// Applies `pushed` to consecutive rows of equal width; all slices hold as many rows as `keys`.
#[inline]
fn apply_run<V, R: Rule<V>>(
    rule: &mut R,
    origin: Origin,
    keys: &[u64],
    stored: &mut [V],
    hidden: &mut [R::Hidden],
    pushed: &[V],
) {
    if R::BY_VALUE {
        return rule.apply(origin, keys[0], stored, hidden, pushed);
    }
    let width = pushed.len() / keys.len();
    let hidden_width = rule.hidden(width);
    let rows = stored.chunks_exact_mut(width).zip(pushed.chunks_exact(width));
    for ((at, key), (stored, pushed)) in keys.iter().enumerate().zip(rows) {
        let hidden = &mut hidden[at * hidden_width..][..hidden_width];
        rule.apply(origin, *key, stored, hidden, pushed);
    }
}

/// Memory that is zero.
fn zeros(bytes: usize, memory: &Pool) -> Result<Buffer, String> {
    let mut zeros = memory.allocate(bytes).map_err(|error| error.to_string())?;
    zeros.fill(0);
    Ok(zeros)
}

/// The bytes of a chunk to write; replaces the chunk by a copy if a reader still holds it.
#[inline]
fn writable<'a>(
    chunk: &'a mut Shared,
    copies_due: &mut u32,
    memory: &Pool,
) -> Result<&'a mut [u8], String> {
    let before = chunk.as_ptr();
    let bytes = chunk.make_mut(memory).map_err(|error| error.to_string())?;
    if bytes.as_ptr() != before {
        *copies_due = COPIES_AFTER_PUSH;
    }
    Ok(bytes)
}

impl<V: Number, R: Rule<V>> Shard for Rows<V, R> {
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
            return self.push_one(request.origin(), *key, pushed, memory);
        }
        self.begin_to_find(request)?;
        self.with_found(request, |rows, found| {
            rows.find_or_insert(keys, found, memory)?;
            rows.push_all(request.origin(), keys, found, pushed, memory)
        })
    }

    fn reads_once(&self) -> bool {
        R::READS_ONCE
    }

    /// A large row that is a chunk by itself can be replaced as a whole.
    fn adopts(&self, request: &Request<'_>) -> bool {
        let row_bytes = self.row_bytes();
        let whole = request.values.len() == row_bytes && self.chunk_shift == 0;
        let is_plain = R::REPLACES && self.hidden_bytes() == 0;
        is_plain && whole && request.keys.len() == 1 && row_bytes >= SHARED_BYTES_MIN
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
        let row = match row {
            Some(row) => Some(row),
            None => self.find_run(request)?,
        };
        let Some(row) = row else { return Ok(Pulled::Bytes(bytes)) };
        let (chunk, at) = self.place(row);
        let chunk = &self.chunks[chunk];
        let range = at..at + bytes;
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
        let into =
            V::view_mut(into).expect("its alignment and length are those that `pull` required");
        self.with_found(request, |rows, found| rows.read_all(request.keys, found, into));
    }
}
