//! The memory of rows of equal width: chunks of the values that pulls show, and chunks of the
//! hidden ones beside them.
//!
//! Path: codec > thread > shard > store (**chunks**) > answer. A pull of consecutive values in one
//! chunk is answered without a copy if the values are long, or of medium length and the van lends
//! them. While a reader holds a chunk, a push to it writes to a fresh copy, so values in flight
//! never change. Nobody but the rule reads hidden values.

use std::marker::PhantomData;

use caravan_van::{Account, Buffer, Pool, Shared, Value, prefetch};

use super::shard::Pulled;
use crate::refusal::{Refusal, Refused};
use crate::table::SHARED_BYTES_MIN;

/// Size of chunks of small rows, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// A pool lends slots of this many bytes or a higher power of two.
const SLOT_BYTES_MIN: usize = 512;

/// Values of at least this many bytes are lent if the van lends them.
const LENT_BYTES_MIN: usize = 2 << 10;

/// After a push to a chunk that was being read, this many pulls copy their values before one is
/// lent again, unless the values are long. A push to a lent chunk copies all of it, which costs
/// more than several loans save.
const COPIES_AFTER_PUSH: u32 = 16;

const WHOLE_ROWS: &str = "chunks are aligned and hold whole rows";

/// Rows of `width` shown values of type `V` each, and hidden ones of type `H`.
///
/// Callers pass the number of hidden values of a row, which the compiler knows to be 0 for most
/// rules.
pub(super) struct Chunks<V, H> {
    width: usize,
    /// Binary logarithm of the number of rows in a chunk.
    shift: u32,
    shown: Vec<Shared>,
    /// One for each chunk of `shown`; none if no values are hidden.
    hidden: Vec<Buffer>,
    /// Pulls below [`SHARED_BYTES_MIN`] to copy before one is lent again.
    copies_due: u32,
    types: PhantomData<(V, H)>,
}

/// Values to write: of one row, or of a whole chunk.
pub(super) struct RowsMut<'a, V, H> {
    pub(super) shown: &'a mut [V],
    pub(super) hidden: &'a mut [H],
}

impl<V: Value, H: Value> Chunks<V, H> {
    /// No rows; they will have `width` values, at least one.
    pub(super) fn new(width: usize) -> Self {
        Chunks {
            width,
            shift: (CHUNK_BYTES / (width * V::BYTES)).max(1).ilog2(),
            shown: Vec::new(),
            hidden: Vec::new(),
            copies_due: 0,
            types: PhantomData,
        }
    }

    /// Shown values of a row.
    #[inline]
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Bytes of a row's shown values.
    #[inline]
    pub(super) fn row_bytes(&self) -> usize {
        self.width * V::BYTES
    }

    /// Binary logarithm of the number of rows in a chunk.
    #[inline]
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// A row's place in its chunk.
    #[inline]
    pub(super) fn within(&self, row: u32) -> usize {
        row as usize & ((1 << self.shift) - 1)
    }

    /// Makes room for `count` rows with `hidden` values each; new ones are zero. Charges `account`
    /// for the lists of chunks.
    ///
    /// # Errors
    /// A text with the bytes that are needed and left, and the remedy.
    pub(super) fn grow(
        &mut self,
        count: usize,
        hidden: usize,
        account: &mut Account,
        memory: &Pool,
    ) -> Result<(), Refused> {
        let shown_bytes = self.row_bytes() << self.shift;
        let hidden_bytes = (hidden * H::BYTES) << self.shift;
        let bytes = shown_bytes + hidden_bytes;
        while self.shown.len() << self.shift < count {
            let left = memory.bytes_left();
            let limit = memory.bytes_max();
            if bytes > left {
                return Err(Refusal::Memory.because(format!(
                    "no room for {bytes} more bytes of rows: {left} of {limit} are left for tables (raise CARAVAN_MEMORY)"
                )));
            }
            account.reserve(&mut self.shown, 1)?;
            let shown = zeros(shown_bytes, memory)?;
            if hidden > 0 {
                account.reserve(&mut self.hidden, 1)?;
                self.hidden.push(zeros(hidden_bytes, memory)?);
            }
            self.shown.push(shown.share());
        }
        Ok(())
    }

    /// Bytes that `count` rows with `hidden` values each take at most.
    pub(super) fn footprint(&self, count: usize, hidden: usize) -> usize {
        let slot = |bytes: usize| bytes.next_power_of_two().max(SLOT_BYTES_MIN);
        let shown = slot(self.row_bytes() << self.shift);
        let lists = 3 * (size_of::<Shared>() + size_of::<Buffer>()); // old and new ones
        let hidden = match hidden {
            0 => 0,
            _ => slot((hidden * H::BYTES) << self.shift),
        };
        // A list has room for 8 chunks at least.
        count.div_ceil(1 << self.shift) * (shown + hidden + lists) + 8 * lists
    }

    /// A row with its `hidden` values, to write. Replaces its chunk by a copy if a reader holds it.
    ///
    /// # Errors
    /// If there is no memory for the copy.
    #[inline]
    pub(super) fn row_mut(
        &mut self,
        row: u32,
        hidden: usize,
        memory: &Pool,
    ) -> Result<RowsMut<'_, V, H>, Refused> {
        let within = self.within(row);
        let bytes = within * self.row_bytes()..(within + 1) * self.row_bytes();
        let chunk = row as usize >> self.shift;
        let shown = writable(&mut self.shown[chunk], &mut self.copies_due, memory)?;
        let shown = V::view_mut(&mut shown[bytes]).expect(WHOLE_ROWS);
        let all = hidden_of(&mut self.hidden, chunk, hidden);
        Ok(RowsMut { shown, hidden: &mut all[within * hidden..][..hidden] })
    }

    /// As [`Chunks::row_mut`], the whole chunk of a row.
    ///
    /// # Errors
    /// Likewise.
    #[inline]
    pub(super) fn chunk_mut(
        &mut self,
        row: u32,
        hidden: usize,
        memory: &Pool,
    ) -> Result<RowsMut<'_, V, H>, Refused> {
        let chunk = row as usize >> self.shift;
        let shown = writable(&mut self.shown[chunk], &mut self.copies_due, memory)?;
        let hidden = hidden_of(&mut self.hidden, chunk, hidden);
        Ok(RowsMut { shown: V::view_mut(shown).expect(WHOLE_ROWS), hidden })
    }

    /// The shown values of a row's chunk; empty if there is no such row.
    #[inline]
    pub(super) fn chunk(&self, row: u32) -> &[V] {
        let chunk = self.shown.get(row as usize >> self.shift);
        chunk.map_or(&[], |chunk| V::view(chunk).expect(WHOLE_ROWS))
    }

    /// Makes the processor load these rows, of which some may be missing, before they are needed,
    /// and their `hidden` values, if these are needed as well.
    #[inline]
    pub(super) fn load<'a>(&self, rows: impl Iterator<Item = &'a u32>, hidden: usize) {
        for row in rows {
            let chunk = *row as usize >> self.shift;
            let within = self.within(*row);
            if let Some(shown) = self.shown.get(chunk) {
                prefetch(shown.as_ptr().wrapping_add(within * self.row_bytes()));
            }
            if hidden > 0
                && let Some(chunk) = self.hidden.get(chunk)
            {
                prefetch(chunk.as_ptr().wrapping_add(within * hidden * H::BYTES));
            }
        }
    }

    /// Appends a row's shown values and its `hidden` ones to `into`.
    pub(super) fn copy(&self, row: u32, hidden: usize, into: &mut Vec<u8>) {
        let within = self.within(row);
        let chunk = row as usize >> self.shift;
        into.extend_from_slice(&self.shown[chunk][within * self.row_bytes()..][..self.row_bytes()]);
        if let Some(chunk) = self.hidden.get(chunk) {
            let bytes = hidden * H::BYTES;
            into.extend_from_slice(&chunk[within * bytes..][..bytes]);
        }
    }

    /// Answers a pull of `bytes` bytes from `row` on, all in its chunk.
    #[inline(always)] // a call would pass the result through memory
    pub(super) fn pull(&mut self, row: u32, bytes: usize) -> Pulled<'_> {
        let at = self.within(row) * self.row_bytes();
        let chunk = &self.shown[row as usize >> self.shift];
        let range = at..at + bytes;
        if bytes < LENT_BYTES_MIN {
            return Pulled::Stored(&chunk[range]);
        }
        if bytes < SHARED_BYTES_MIN && self.copies_due > 0 {
            self.copies_due -= 1;
            return Pulled::Stored(&chunk[range]);
        }
        Pulled::Shared(chunk.slice(range))
    }

    /// Replaces a row that is a chunk by itself.
    pub(super) fn replace(&mut self, row: u32, values: Buffer) {
        self.shown[row as usize >> self.shift] = values.share();
    }
}

/// Memory that is zero.
fn zeros(bytes: usize, memory: &Pool) -> Result<Buffer, Refused> {
    let mut zeros = memory.allocate(bytes)?;
    zeros.fill(0);
    Ok(zeros)
}

/// The hidden values of a chunk's rows, `width` each.
#[inline]
fn hidden_of<H: Value>(hidden: &mut [Buffer], chunk: usize, width: usize) -> &mut [H] {
    if width == 0 {
        return &mut [];
    }
    H::view_mut(&mut hidden[chunk]).expect(WHOLE_ROWS)
}

/// The bytes of a chunk to write; replaces the chunk by a copy if a reader still holds it.
#[inline]
fn writable<'a>(
    chunk: &'a mut Shared,
    copies_due: &mut u32,
    memory: &Pool,
) -> Result<&'a mut [u8], Refused> {
    let before = chunk.as_ptr();
    let bytes = chunk.make_mut(memory)?;
    if bytes.as_ptr() != before {
        *copies_due = COPIES_AFTER_PUSH;
    }
    Ok(bytes)
}
