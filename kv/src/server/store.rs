//! Rows of equal width: the shard of ordinary tables.
//!
//! Path: codec > thread > shard > **store** > answer. Keys are found, new ones get rows with the
//! table's initial values, and the rule changes rows where they lie.

use std::iter::once;
use std::slice::{from_mut, from_ref};

use caravan_van::{Account, Buffer, KeyRange, Pool, Value, long};

use super::chunks::{Chunks, RowsMut};
use super::found::{Found, Piece};
use super::handle::{Number, Origin, Rule};
use super::index::{Index, NO_ROW};
use super::initial::Start;
use super::shard::{Extract, Pulled, Request, Shard};
use crate::refusal::{Refusal, Refused};
use crate::table::{SHARED_BYTES_MIN, Store, TableSpec};

/// Most bytes of a shard of a dense table, all of whose rows exist from the start.
const DENSE_BYTES_MAX: u128 = 64 << 30;

/// Scattered rows are loaded this many rows before they are needed.
const AHEAD: usize = 32;

/// Rows of `width` values each.
pub(crate) struct Rows<V, R: Rule<V>> {
    keys: RowNumbers,
    chunks: Chunks<V, R::Hidden>,
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
pub(super) const FOUND_BYTES: usize = 12;

/// There is always room to find this many keys, so a full table still serves its rows.
pub(super) const FOUND_MIN: usize = 1024;

/// An account of a table's memory, with the table's name.
fn account(spec: &TableSpec, memory: &Pool) -> Account {
    Account::new(memory, format!("table {}", spec.name))
}

/// The accounts of a table's index and of its other unregistered memory: its lists, and room to
/// find [`FOUND_MIN`] keys.
pub(super) fn accounts(spec: &TableSpec, memory: &Pool) -> Result<[Account; 2], Refused> {
    let mut others = account(spec, memory);
    others.set(FOUND_MIN * FOUND_BYTES)?;
    Ok([account(spec, memory), others])
}

/// Charges `memory` for `keys` found rows, and sets `room` to that number.
#[cold]
pub(super) fn make_room_to_find(
    memory: &mut Account,
    room: &mut usize,
    keys: usize,
) -> Result<(), Refused> {
    memory.add((keys - *room) * FOUND_BYTES)?;
    *room = keys;
    Ok(())
}

#[allow(
    clippy::large_enum_variant,
    reason = "a shard has one, and a box would be one more load for each look-up"
)]
enum RowNumbers {
    /// Row = key - begin.
    Dense(KeyRange),
    Sparse(Index),
}

impl<V: Number, R: Rule<V>> Rows<V, R> {
    pub(super) fn new(
        spec: &TableSpec,
        range: KeyRange,
        rule: R,
        start: Start<V>,
        memory: &Pool,
    ) -> Result<Self, Refused> {
        let [index, others] = accounts(spec, memory)?;
        let keys = match spec.store {
            Store::Dense => RowNumbers::Dense(range),
            Store::Sparse => RowNumbers::Sparse(Index::new(index)),
        };
        let mut store = Rows {
            keys,
            chunks: Chunks::new(spec.width as usize),
            rule,
            start,
            found: Found::default(),
            memory: others,
            found_max: FOUND_MIN,
        };
        if let RowNumbers::Dense(range) = store.keys {
            let row_bytes = store.chunks.row_bytes() + store.hidden() * size_of::<R::Hidden>();
            let bytes = range.count() * row_bytes as u128;
            let bytes_max = DENSE_BYTES_MAX.min(memory.bytes_left() as u128);
            if bytes > bytes_max || range.count() >= u128::from(NO_ROW) {
                return Err(Refusal::Memory.because(format!(
                    "a dense shard of {} rows with {row_bytes} bytes each is over {bytes_max} bytes (make it sparse, or raise CARAVAN_MEMORY)",
                    range.count()
                )));
            }
            let rows = range.count() as usize;
            let all = range.begin()..=range.last();
            store.make_rows(rows, (0..rows as u32, 0), all, memory)?;
        }
        Ok(store)
    }

    /// Number of hidden values of a row.
    #[inline]
    fn hidden(&self) -> usize {
        self.rule.hidden(self.chunks.width())
    }

    /// Makes rows, `count` in all, and gives `rows` to these keys, of which the first `used` had
    /// others.
    fn make_rows(
        &mut self,
        count: usize,
        (rows, used): (impl Iterator<Item = u32>, usize),
        keys: impl Iterator<Item = u64>,
        memory: &Pool,
    ) -> Result<(), Refused> {
        let hidden = self.hidden();
        self.chunks.grow(count, hidden, &mut self.memory, memory)?;
        let is_filled = hidden == 0 && self.start.is_zero();
        let rows = rows.take(if is_filled { used } else { usize::MAX });
        for (row, key) in rows.zip(keys) {
            let row = self.chunks.row_mut(row, hidden, memory)?;
            self.start.fill(key, row.shown);
            // They are not, if there was no memory to insert this row before.
            row.hidden.fill(R::Hidden::default());
            self.rule.init(key, row.shown, row.hidden);
        }
        Ok(())
    }

    /// Forgets the previous request's rows, and charges memory for this one's, unless its list of
    /// keys holds them.
    #[inline]
    fn begin_to_find(&mut self, request: &Request<'_>) -> Result<(), Refused> {
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
        let shift = self.chunks.shift();
        match (&self.keys, keys) {
            _ if found.is_complete(keys.len()) => {}
            (_, [key]) => match self.row(*key) {
                Some(row) => found.enter_consecutive(row, 1, shift),
                None => found.enter(1, shift, |rows| {
                    rows.push(NO_ROW);
                    1
                }),
            },
            (RowNumbers::Dense(range), [first, .., last])
                if last - first == keys.len() as u64 - 1 =>
            {
                found.enter_consecutive((first - range.begin()) as u32, keys.len(), shift);
            }
            (RowNumbers::Dense(range), _) => found.enter(keys.len(), shift, |rows| {
                rows.extend(keys.iter().map(|key| (key - range.begin()) as u32));
                0
            }),
            (RowNumbers::Sparse(index), _) => {
                found.enter(keys.len(), shift, |rows| index.find(keys, rows));
            }
        }
    }

    /// Finds the rows of a pull; returns the first one if all are consecutive in one chunk.
    #[inline(never)]
    fn find_run(&mut self, request: &Request<'_>) -> Result<Option<u32>, Refused> {
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
    ) -> Result<(), Refused> {
        self.find(keys, found);
        if found.missing() == 0 {
            return Ok(());
        }
        found.complete(self.chunks.shift(), |rows, missing| {
            let new = keys.iter().zip(&*rows).filter(|(_, row)| **row == NO_ROW);
            self.make_next_rows(missing, new.map(|(key, _)| *key), memory)?;
            let RowNumbers::Sparse(index) = &mut self.keys else { return Ok(()) };
            index.insert(keys, rows, missing).map_err(Refused::from)
        })
    }

    /// Makes `missing` more rows, for these keys. This precedes the insertion of their keys: if
    /// memory is short, the index must not name rows that do not exist.
    fn make_next_rows(
        &mut self,
        missing: usize,
        keys: impl Iterator<Item = u64>,
        memory: &Pool,
    ) -> Result<(), Refused> {
        let RowNumbers::Sparse(index) = &self.keys else { return Ok(()) };
        let (rows, used) = index.next_rows(missing);
        let count = index.rows() + missing - used;
        if count >= NO_ROW as usize {
            return Err(
                Refusal::Unsupported.because(format!("a shard holds at most {NO_ROW} rows"))
            );
        }
        self.make_rows(count, (rows, used), keys, memory)
    }

    /// The row of a key, if it has one.
    #[inline]
    fn row(&self, key: u64) -> Option<u32> {
        match &self.keys {
            RowNumbers::Dense(range) => Some((key - range.begin()) as u32),
            RowNumbers::Sparse(index) => index.row(key),
        }
    }

    #[inline]
    fn row_or_insert(&mut self, key: u64, memory: &Pool) -> Result<u32, Refused> {
        match self.row(key) {
            Some(row) => Ok(row),
            None => self.insert(key, memory),
        }
    }

    /// Inserts a row for a key that has none.
    #[inline(never)] // most keys have one
    fn insert(&mut self, key: u64, memory: &Pool) -> Result<u32, Refused> {
        self.make_next_rows(1, once(key), memory)?;
        let mut row = [NO_ROW];
        if let RowNumbers::Sparse(index) = &mut self.keys {
            index.insert(&[key], &mut row, 1)?;
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
    ) -> Result<(), Refused> {
        let row = self.row_or_insert(key, memory)?;
        let hidden = self.hidden();
        let row = self.chunks.row_mut(row, hidden, memory)?;
        self.rule.apply(origin, key, row.shown, row.hidden, pushed);
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
    ) -> Result<(), Refused> {
        let shift = self.chunks.shift();
        let width = self.chunks.width();
        let hidden_width = self.hidden();
        // All chunks are made writable first: a push that lacks memory must not be half applied.
        for piece in found.pieces(shift) {
            self.chunks.chunk_mut(piece.row(), hidden_width, memory)?;
        }
        let mut at = 0;
        let mut ahead = found.scattered().iter();
        self.chunks.load(ahead.by_ref().take(AHEAD), hidden_width);
        for piece in found.pieces(shift) {
            self.chunks.load(ahead.by_ref().take(piece.len()), hidden_width);
            let RowsMut { shown: stored, hidden } =
                self.chunks.chunk_mut(piece.row(), hidden_width, memory)?;
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
        let shift = self.chunks.shift();
        let width = self.chunks.width();
        let mask = (1 << shift) - 1;
        let mut later = keys;
        let mut rest = into;
        let mut ahead = found.scattered().iter();
        self.chunks.load(ahead.by_ref().take(AHEAD), 0);
        for piece in found.pieces(shift) {
            self.chunks.load(ahead.by_ref().take(piece.len()), 0);
            let (into, others) = rest.split_at_mut(piece.len() * width);
            rest = others;
            let (keys, others) = later.split_at(piece.len());
            later = others;
            let stored = self.chunks.chunk(piece.row());
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

impl<V: Number, R: Rule<V>> Shard for Rows<V, R> {
    fn push(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), Refused> {
        let keys = request.keys;
        let expected = keys.len() * self.chunks.row_bytes();
        let pushed = V::view(request.values).filter(|_| request.values.len() == expected);
        let Some(pushed) = pushed else {
            return Err(Refusal::Shape.because(format!(
                "a push of {} keys takes {expected} bytes, not {}",
                keys.len(),
                request.values.len()
            )));
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
        let row_bytes = self.chunks.row_bytes();
        let is_plain = R::REPLACES && self.hidden() == 0;
        let is_whole = request.values.len() == row_bytes && self.chunks.shift() == 0;
        is_plain && is_whole && request.keys.len() == 1 && row_bytes >= SHARED_BYTES_MIN
    }

    fn adopt(&mut self, key: u64, values: Buffer, memory: &Pool) -> Result<(), Refused> {
        let row = self.row_or_insert(key, memory)?;
        self.chunks.replace(row, values);
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        let bytes = request.keys.len() * self.chunks.row_bytes();
        let row = match *request.keys {
            [key] => self.row(key),
            _ => None,
        };
        let row = match row {
            Some(row) => Some(row),
            None => self.find_run(request)?,
        };
        let Some(row) = row else { return Ok(Pulled::Bytes(bytes)) };
        Ok(self.chunks.pull(row, bytes))
    }

    fn give(
        &self,
        from: u64,
        bytes_max: usize,
        extract: &mut Extract,
    ) -> Result<Option<u64>, Refused> {
        let hidden = self.hidden();
        let mut rows: Box<dyn Iterator<Item = (u64, u32)>> = match &self.keys {
            RowNumbers::Dense(range) => {
                let begin = range.begin();
                Box::new((from..=range.last()).map(move |key| (key, (key - begin) as u32)))
            }
            RowNumbers::Sparse(index) => Box::new(index.from(from)),
        };
        for (key, row) in &mut rows {
            extract.keys.push(key);
            self.chunks.copy(row, hidden, &mut extract.values);
            if extract.values.len() + size_of_val(&extract.keys[..]) >= bytes_max {
                break;
            }
        }
        Ok(rows.next().map(|(key, _)| key))
    }

    fn give_of(&self, keys: &[u64], extract: &mut Extract) -> bool {
        let mut found = Found::default();
        self.find(keys, &mut found);
        if found.missing() > 0 {
            return false;
        }
        extract.keys.extend_from_slice(keys);
        let hidden = self.hidden();
        let mut copy = |row: u32| self.chunks.copy(row, hidden, &mut extract.values);
        for piece in found.pieces(self.chunks.shift()) {
            match piece {
                Piece::Run { row, len } => (row..row + len as u32).for_each(&mut copy),
                Piece::Rows(rows) => rows.iter().copied().for_each(&mut copy),
            }
        }
        true
    }

    fn take(
        &mut self,
        keys: &[u64],
        _lengths: &[u32],
        values: &[u8],
        memory: &Pool,
    ) -> Result<(), Refused> {
        let hidden = self.hidden();
        let shown_bytes = self.chunks.row_bytes();
        let row_bytes = shown_bytes + hidden * size_of::<R::Hidden>();
        if values.len() != keys.len() * row_bytes {
            return Err(Refusal::Shape.because(format!(
                "{} rows of {row_bytes} bytes came with {} bytes",
                keys.len(),
                values.len()
            )));
        }
        if keys.len() > self.found_max {
            make_room_to_find(&mut self.memory, &mut self.found_max, keys.len())?;
        }
        let mut found = std::mem::take(&mut self.found);
        found.forget();
        let inserted = self.find_or_insert(keys, &mut found, memory);
        self.found = found;
        inserted?;
        for (&key, values) in keys.iter().zip(values.chunks_exact(row_bytes)) {
            let row = self.row_or_insert(key, memory)?;
            let row = self.chunks.row_mut(row, hidden, memory)?;
            let (shown, hidden) = values.split_at(shown_bytes);
            V::bytes_mut(row.shown).copy_from_slice(shown);
            <R::Hidden as Value>::bytes_mut(row.hidden).copy_from_slice(hidden);
        }
        Ok(())
    }

    fn remove(&mut self, keys: &[u64]) -> Result<(), Refused> {
        match &mut self.keys {
            RowNumbers::Dense(_) => {
                Err(Refusal::Unsupported.because("a dense table has all of its rows"))
            }
            RowNumbers::Sparse(index) => index.remove(keys, |_| {}).map_err(Refused::from),
        }
    }

    fn footprint(&self, rows: usize, _values: usize) -> Option<usize> {
        let RowNumbers::Sparse(_) = &self.keys else { return None };
        let others = FOUND_MIN * FOUND_BYTES + Index::footprint(rows);
        Some(self.chunks.footprint(rows, self.hidden()) + others)
    }

    fn read(&mut self, request: &Request<'_>, into: &mut [u8]) {
        let into =
            V::view_mut(into).expect("its alignment and length are those that `pull` required");
        self.with_found(request, |rows, found| rows.read_all(request.keys, found, into));
    }
}
