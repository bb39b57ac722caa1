//! Encodes a message's values as one block of bytes.
//!
//! Path: worker > slicer > **filter** > message > codec > endpoint > transport.

use caravan_van::Pool;

use super::{Block, HEAD_BYTES, LENGTHS, MASK, NARROW, Number, QUANTIZE, Rows, Sizes, ZERO};
use crate::filter::bits;
use crate::filter::draws::Draws;
use crate::filter::quantize::{self, RANGE_BYTES, Range};
use crate::filter::spec::Filters;
use crate::filter::traffic::Passage;
use crate::filter::{narrow, zero};
use crate::refusal::{Refusal, Refused};

/// Encodes the values of `rows` as a block; `None` if that would not be shorter.
///
/// # Errors
/// If values to be rounded span more than a number can hold, or `pool` has no room.
pub(in crate::filter) fn encode<V: Number>(
    filters: &Filters,
    draws: &mut Draws,
    rows: Rows<'_>,
    pool: &Pool,
    passage: &mut Passage,
) -> Result<Option<Block>, Refused> {
    let values =
        V::view(rows.values).ok_or_else(|| Refusal::Shape.because("values are not aligned"))?;
    let equal_width = if rows.width == 0 { rows.equal_width() } else { None };
    let holds_lengths = equal_width.is_some();
    let (count, width) = match (rows.width, equal_width) {
        (0, Some(width)) => (rows.count, width),
        (0, None) => (1, values.len()),
        (width, _) => (rows.count, width),
    };
    let is_masked = if holds_lengths {
        width == 0 || rows.lengths.contains(&0)
    } else {
        rows.carrying.is_some()
    };
    let raw_bytes = size_of_val(values) + if holds_lengths { 4 * rows.count } else { 0 };
    let places = quantize::places(width);
    let most = HEAD_BYTES
        + if is_masked { bits::bytes(count) } else { 0 }
        + bits::bytes(values.len())
        + places * RANGE_BYTES
        + size_of_val(values);
    let (Ok(rows_u32), Ok(width_u32)) = (u32::try_from(count), u32::try_from(width)) else {
        return Ok(None);
    };
    let mut out = pool.allocate(most)?;
    let mut sizes = Sizes { head: HEAD_BYTES, ..Sizes::default() };
    let mut stages = if holds_lengths { LENGTHS } else { 0 };
    sizes.lengths = if holds_lengths { 4 * rows.count } else { 0 };
    let mut at = HEAD_BYTES;
    if is_masked {
        let place = &mut out[at..at + bits::bytes(count)];
        match rows.carrying {
            Some(carrying) => bits::write(carrying.iter().copied(), place),
            None => bits::write(rows.lengths.iter().map(|&length| length > 0), place),
        };
        stages |= MASK;
        sizes.mask = Some(place.len());
        at += place.len();
    }
    let zeros = if filters.zero { values.iter().filter(|v| zero::is_zero(*v)).count() } else { 0 };
    let drops = zero::pays(zeros, values.len(), V::BYTES);
    if drops {
        let place = &mut out[at..at + bits::bytes(values.len())];
        bits::write(values.iter().map(|v| !zero::is_zero(v)), place);
        stages |= ZERO;
        sizes.zero = Some((place.len(), zeros * V::BYTES));
        at += place.len();
    }
    let left = Left { values, count: values.len() - if drops { zeros } else { 0 }, drops };
    let written = left.write(filters, places, draws, &mut sizes, &mut out, at)?;
    stages |= written.stage;
    at = written.end;
    if at >= raw_bytes && rows.carrying.is_none() {
        return Ok(None);
    }
    out[..4].copy_from_slice(&[stages, written.bytes_a_number, 0, 0]);
    out[4..8].copy_from_slice(&rows_u32.to_le_bytes());
    out[8..12].copy_from_slice(&width_u32.to_le_bytes());
    out.truncate(at);
    sizes.pass(passage);
    Ok(Some(Block { bytes: out, holds_lengths }))
}

/// The values that remain after zero suppression, if it applies.
struct Left<'a, V> {
    values: &'a [V],
    count: usize,
    drops: bool,
}

/// The form in which remaining values were written.
struct Written {
    stage: u8,
    /// Bytes of a rounded number, else 0.
    bytes_a_number: u8,
    /// Where they end in the block.
    end: usize,
}

impl<'a, V: Number> Left<'a, V> {
    fn is_left(&self, value: &V) -> bool {
        !self.drops || !zero::is_zero(value)
    }

    fn iter(&self) -> impl Iterator<Item = &'a V> {
        self.values.iter().filter(|value| self.is_left(value))
    }

    /// Writes the values into `out` from byte `at` on: rounded, as f32s or unchanged.
    fn write(
        &self,
        filters: &Filters,
        places: usize,
        draws: &mut Draws,
        sizes: &mut Sizes,
        out: &mut [u8],
        at: usize,
    ) -> Result<Written, Refused> {
        if let Some(bytes) = filters.quantize.filter(|_| self.count > 0) {
            let end = self.write_rounded(places, bytes, draws, out, at)?;
            sizes.quantize = Some((end - at, self.count * V::BYTES));
            return Ok(Written { stage: QUANTIZE, bytes_a_number: bytes, end });
        }
        let is_single = |value: &V| narrow::fits(value.to_f64());
        if filters.narrow && self.count > 0 && self.values.iter().all(is_single) {
            let (places, _) = out[at..].as_chunks_mut::<4>();
            for (place, value) in places.iter_mut().zip(self.iter()) {
                *place = (value.to_f64() as f32).to_le_bytes();
            }
            sizes.narrow = Some(self.count * (V::BYTES - 4));
            let end = at + 4 * self.count;
            return Ok(Written { stage: NARROW, bytes_a_number: 0, end });
        }
        let end = at + self.count * V::BYTES;
        let place = &mut out[at..end];
        if self.drops {
            for (place, value) in place.chunks_exact_mut(V::BYTES).zip(self.iter()) {
                place.copy_from_slice(V::bytes(std::slice::from_ref(value)));
            }
        } else {
            place.copy_from_slice(V::bytes(self.values));
        }
        Ok(Written { stage: 0, bytes_a_number: 0, end })
    }

    /// Writes their ranges, all finite, and their integers into `out` from byte `at` on; returns
    /// the end.
    fn write_rounded(
        &self,
        places: usize,
        bytes: u8,
        draws: &mut Draws,
        out: &mut [u8],
        at: usize,
    ) -> Result<usize, Refused> {
        let mut spans = vec![Range::EMPTY; places];
        let placed = self.values.iter().zip((0..places).cycle());
        for (value, place) in placed.filter(|(value, _)| self.is_left(value)) {
            let value = value.to_f64();
            let (low, high) = &mut spans[place];
            *low = low.min(value);
            *high = high.max(value);
        }
        let mut end = at;
        let mut ranges = Vec::with_capacity(places);
        for (low, high) in spans {
            let range = Range::new(low, high, bytes)?;
            out[end..end + RANGE_BYTES].copy_from_slice(&range.to_bytes());
            end += RANGE_BYTES;
            ranges.push(range);
        }
        let number_bytes = usize::from(bytes);
        let ranged = self.values.iter().zip(ranges.iter().cycle());
        for (value, range) in ranged.filter(|(value, _)| self.is_left(value)) {
            let number = range.encode(value.to_f64(), bytes, draws);
            out[end..end + number_bytes].copy_from_slice(&number.to_le_bytes()[..number_bytes]);
            end += number_bytes;
        }
        Ok(end)
    }
}
