//! The stages that make one block of bytes of a message's values, and back.
//!
//! ```text
//!  0 stages u8: MASK, ZERO, NARROW, QUANTIZE, LENGTHS     1 bytes of a number, of QUANTIZE     2 zero u16
//!  4 rows u32     8 values of a row u32
//! 12 MASK: a bit a row, set where it carries values
//!    ZERO: a bit a value of those rows, set where it is not 0
//!    QUANTIZE: least value and step, f64 each, for each place in a row (or one for all, where rows are long)
//!    the values that are left: numbers of 1 to 3 bytes, f32s under NARROW, or as they were
//! ```
//!
//! All numbers are little-endian. Under LENGTHS the block stands for the numbers of values as well: a row has either none or
//! as many as it says. Else they are in the message, if the table's rows have their own, and all values count as one row.
//! In a table whose rows are equally long, one without values holds zeros.
//!
//! Path: worker > slicer > **filter** > message > codec > endpoint > transport.

use caravan_van::{Buffer, Pool, Value};
use half::{bf16, f16};

use super::bits::{self, Bitmap};
use super::draws::Draws;
use super::quantize::{self, RANGE_BYTES, Range};
use super::spec::Filters;
use super::traffic::{Passage, Stage};
use super::{narrow, zero};
use crate::table::{TableSpec, ValueType, with_type};

/// Of the operation: the values are a block.
pub(crate) const FILTERED: u8 = 0x80;

const HEAD_BYTES: usize = 12;

const MASK: u8 = 1;
const ZERO: u8 = 2;
const NARROW: u8 = 4;
const QUANTIZE: u8 = 8;
const LENGTHS: u8 = 16;
const ALL: u8 = 31;

/// A number that can be rounded.
pub(super) trait Number: Value {
    fn to_f64(self) -> f64;
    fn from_f64(value: f64) -> Self;
    /// From as many bytes as it has.
    fn from_le(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($of:ty),*) => {$(
        impl Number for $of {
            #[inline]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline]
            fn from_f64(value: f64) -> Self {
                value as $of
            }
            #[inline]
            fn from_le(bytes: &[u8]) -> Self {
                <$of>::from_le_bytes(bytes.try_into().expect("as many as it has"))
            }
        }
    )*};
}
number!(f32, f64, i32, i64, u8);

macro_rules! half {
    ($($of:ty),*) => {$(
        impl Number for $of {
            #[inline]
            fn to_f64(self) -> f64 {
                self.into()
            }
            #[inline]
            fn from_f64(value: f64) -> Self {
                <$of>::from_f64(value)
            }
            #[inline]
            fn from_le(bytes: &[u8]) -> Self {
                <$of>::from_le_bytes(bytes.try_into().expect("as many as it has"))
            }
        }
    )*};
}
half!(f16, bf16);

/// Rows about to be sent.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Values of each row; 0 if rows have their own numbers of them.
    pub(super) width: usize,
    /// Those numbers, then.
    pub(super) lengths: &'a [u32],
    /// Of rows equally long: which carry values; all if `None`.
    pub(super) carrying: Option<&'a [bool]>,
    /// How many there are.
    pub(super) count: usize,
    /// The values of the rows that carry any.
    pub(super) values: &'a [u8],
}

impl Rows<'_> {
    /// The number of values that every row has which has any, if it is the same for all: a row of none counts as masked.
    fn equal_width(&self) -> Option<usize> {
        let width = self.lengths.iter().copied().find(|&length| length > 0).unwrap_or(0);
        let equal = self.lengths.iter().all(|&length| length == 0 || length == width);
        equal.then_some(width as usize)
    }
}

/// Values as a block.
pub(crate) struct Block {
    pub(crate) bytes: Buffer,
    /// Whether it stands for the numbers of values as well.
    pub(crate) holds_lengths: bool,
}

/// What each stage does to the length of a message, in bytes.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    head: usize,
    lengths: usize,
    mask: Option<usize>,
    /// Longer and shorter by.
    zero: Option<(usize, usize)>,
    narrow: Option<usize>,
    quantize: Option<(usize, usize)>,
}

impl Sizes {
    pub(super) fn pass(&self, passage: &mut Passage) {
        let mut head = self.head;
        if self.mask.is_some() || self.lengths > 0 {
            let longer = self.mask.unwrap_or(0) + std::mem::take(&mut head);
            passage.through(Stage::Mask, longer, self.lengths);
        }
        if let Some((longer, shorter)) = self.zero {
            passage.through(Stage::Zero, longer + std::mem::take(&mut head), shorter);
        }
        if let Some(shorter) = self.narrow {
            passage.through(Stage::Narrow, std::mem::take(&mut head), shorter);
        }
        if let Some((longer, shorter)) = self.quantize {
            passage.through(Stage::Quantize, longer + head, shorter);
        }
    }
}

/// Makes a block of the values of `rows`, unless that would be no shorter.
///
/// # Errors
/// When values that are to be rounded span more than a number can say; when `pool` has no room.
pub(super) fn encode<V: Number>(
    filters: &Filters,
    draws: &mut Draws,
    rows: Rows<'_>,
    pool: &Pool,
    passage: &mut Passage,
) -> Result<Option<Block>, String> {
    let values = V::view(rows.values).ok_or("values are not aligned")?;
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
    let mut out = pool.allocate(most).map_err(|error| error.to_string())?;
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
    let left = values.len() - if drops { zeros } else { 0 };
    let is_left = |value: &V| !drops || !zero::is_zero(value);
    let mut bytes_a_number = 0;
    if let Some(bytes) = filters.quantize.filter(|_| left > 0) {
        let from = at;
        at = write_rounded(values, is_left, (places, bytes), draws, (&mut out, at))?;
        (stages, bytes_a_number) = (stages | QUANTIZE, bytes);
        sizes.quantize = Some((at - from, left * V::BYTES));
    } else if filters.narrow && values.iter().all(|v| narrow::fits(v.to_f64())) && left > 0 {
        for value in values.iter().filter(|v| is_left(v)) {
            out[at..at + 4].copy_from_slice(&(value.to_f64() as f32).to_le_bytes());
            at += 4;
        }
        stages |= NARROW;
        sizes.narrow = Some(left * (V::BYTES - 4));
    } else if drops {
        for value in values.iter().filter(|v| is_left(v)) {
            out[at..at + V::BYTES].copy_from_slice(V::bytes(std::slice::from_ref(value)));
            at += V::BYTES;
        }
    } else {
        out[at..at + size_of_val(values)].copy_from_slice(V::bytes(values));
        at += size_of_val(values);
    }
    if at >= raw_bytes && rows.carrying.is_none() {
        return Ok(None);
    }
    out[..4].copy_from_slice(&[stages, bytes_a_number, 0, 0]);
    out[4..8].copy_from_slice(&rows_u32.to_le_bytes());
    out[8..12].copy_from_slice(&width_u32.to_le_bytes());
    out.truncate(at);
    sizes.pass(passage);
    Ok(Some(Block { bytes: out, holds_lengths }))
}

/// Writes the ranges of the values that are left, all of them finite, and their numbers, from `at` on; returns where they end.
fn write_rounded<V: Number>(
    values: &[V],
    is_left: impl Fn(&V) -> bool,
    (places, bytes): (usize, u8),
    draws: &mut Draws,
    (out, at): (&mut [u8], usize),
) -> Result<usize, String> {
    let mut spans = vec![Range::EMPTY; places];
    for (value, place) in values.iter().zip((0..places).cycle()).filter(|(v, _)| is_left(v)) {
        let (value, (low, high)) = (value.to_f64(), &mut spans[place]);
        (*low, *high) = (low.min(value), high.max(value));
    }
    let mut end = at;
    let mut ranges = Vec::with_capacity(places);
    for span in spans {
        let range = Range::new(span, bytes)?;
        out[end..end + RANGE_BYTES].copy_from_slice(&range.to_bytes());
        end += RANGE_BYTES;
        ranges.push(range);
    }
    let number_bytes = usize::from(bytes);
    for (value, range) in values.iter().zip(ranges.iter().cycle()).filter(|(v, _)| is_left(v)) {
        let number = range.encode(value.to_f64(), bytes, draws);
        out[end..end + number_bytes].copy_from_slice(&number.to_le_bytes()[..number_bytes]);
        end += number_bytes;
    }
    Ok(end)
}

/// What a block stood for.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// Numbers of values, if they were in it.
    pub(crate) lengths: Option<Vec<u32>>,
    pub(crate) values: Buffer,
    /// Bytes of the numbers of values, and of the values of rows that carry any.
    pub(super) raw_bytes: usize,
    pub(super) sizes: Sizes,
}

/// A received block, cut into its parts; what each stands for has been counted, and adds up.
struct Parts<'a> {
    stages: u8,
    rows: usize,
    width: usize,
    carrying: Option<Bitmap<'a>>,
    left: Option<Bitmap<'a>>,
    ranges: &'a [[u8; RANGE_BYTES]],
    /// Bytes of one of the numbers.
    unit: usize,
    numbers: &'a [u8],
    /// Values of the rows that carry any.
    values: usize,
}

impl<'a> Parts<'a> {
    fn cut(block: &'a [u8], spec: &TableSpec) -> Result<Parts<'a>, String> {
        let mut rest = block;
        let head = take(&mut rest, HEAD_BYTES, "head")?;
        let [stages, bytes, 0, 0, ref numbers @ ..] = *head else {
            return Err("its head is not that of a block".to_owned());
        };
        let is_set = |stage| stages & stage != 0;
        let number =
            |at: usize| u32::from_le_bytes(std::array::from_fn(|i| numbers[at + i])) as usize;
        let (rows, width) = (number(0), number(4));
        let rounds = is_set(QUANTIZE);
        let floats = matches!(spec.value, ValueType::F32 | ValueType::F64);
        let sane = stages & !ALL == 0
            && is_set(LENGTHS) <= (spec.width == 0)
            && (spec.width == 0 || spec.width as usize == width)
            && (spec.width > 0 || is_set(LENGTHS) || (rows == 1 && !is_set(MASK)))
            && rounds == (1..=quantize::BYTES_MAX).contains(&bytes)
            && (rounds || bytes == 0)
            && (!rounds || floats)
            && (!is_set(NARROW) || (spec.value == ValueType::F64 && !rounds))
            // Without a mask every row has to show for itself.
            && (width > 0 || is_set(MASK) || rows <= 1);
        if !sane {
            return Err(format!(
                "stages {stages:#x} with {bytes} bytes a number, {rows} rows of {width} values, are not for this table"
            ));
        }
        let carrying = match is_set(MASK) {
            true => Some(Bitmap::read(take(&mut rest, bits::bytes(rows), "mask")?, rows)?),
            false => None,
        };
        let carry = carrying.map_or(rows, Bitmap::set);
        let values = carry.checked_mul(width).filter(|&n| n.checked_mul(8).is_some());
        let values =
            values.ok_or_else(|| format!("{carry} rows of {width} values are too many"))?;
        if spec.width > 0 && rows.checked_mul(width * 8).is_none() {
            return Err(format!("{rows} rows of {width} values are too many"));
        }
        let left = match is_set(ZERO) {
            true => Some(Bitmap::read(take(&mut rest, bits::bytes(values), "bitmap")?, values)?),
            false => None,
        };
        let places = if rounds { quantize::places(width) } else { 0 };
        let (ranges, _) = take(&mut rest, places * RANGE_BYTES, "ranges")?.as_chunks();
        let unit = match (rounds, is_set(NARROW)) {
            (true, _) => usize::from(bytes),
            (_, true) => 4,
            _ => spec.value.bytes(),
        };
        let need = left.map_or(values, Bitmap::set).saturating_mul(unit);
        if rest.len() != need {
            return Err(format!("its numbers take {need} bytes, and {} are there", rest.len()));
        }
        Ok(Parts { stages, rows, width, carrying, left, ranges, unit, numbers: rest, values })
    }

    fn holds_lengths(&self) -> bool {
        self.stages & LENGTHS != 0
    }

    /// What its sender has counted.
    fn sizes(&self, value_bytes: usize) -> Sizes {
        let left = self.numbers.len() / self.unit;
        let narrower = left * (value_bytes - self.unit.min(value_bytes));
        let numbers = self.ranges.len() * RANGE_BYTES + self.numbers.len();
        Sizes {
            head: HEAD_BYTES,
            lengths: if self.holds_lengths() { 4 * self.rows } else { 0 },
            mask: self.carrying.map(|_| bits::bytes(self.rows)),
            zero: self.left.map(|_| (bits::bytes(self.values), (self.values - left) * value_bytes)),
            narrow: (self.stages & NARROW != 0).then_some(narrower),
            quantize: (self.stages & QUANTIZE != 0).then_some((numbers, left * value_bytes)),
        }
    }

    fn lengths(&self) -> Option<Vec<u32>> {
        let width = self.width as u32;
        let of = |carries: bool| if carries { width } else { 0 };
        self.holds_lengths().then(|| match self.carrying {
            Some(carrying) => carrying.iter().map(of).collect(),
            None => vec![width; self.rows],
        })
    }

    /// Writes all values of rows that carry any, in order: `[values]`.
    fn write<V: Number>(&self, into: &mut [V]) -> Result<(), String> {
        let mut numbers = self.numbers.chunks_exact(self.unit);
        let mut next = || numbers.next().expect("they were counted");
        match self.stages & (QUANTIZE | NARROW) {
            QUANTIZE => {
                let ranges: Result<Vec<Range>, String> =
                    self.ranges.iter().map(Range::from_bytes).collect();
                let ranges = ranges?;
                self.spread(into, |at| {
                    let mut bytes = [0; 4];
                    bytes[..self.unit].copy_from_slice(next());
                    V::from_f64(ranges[at % ranges.len()].decode(u32::from_le_bytes(bytes)))
                });
            }
            NARROW => self.spread(into, |_| V::from_f64(f32::from_le(next()).into())),
            _ => self.spread(into, |_| V::from_le(next())),
        }
        Ok(())
    }

    /// Puts what `next` returns where values were left, and zeros elsewhere.
    fn spread<V: Number>(&self, into: &mut [V], mut next: impl FnMut(usize) -> V) {
        match self.left {
            None => into.iter_mut().enumerate().for_each(|(at, value)| *value = next(at)),
            Some(left) => {
                for ((at, value), is_left) in into.iter_mut().enumerate().zip(left.iter()) {
                    *value = if is_left { next(at) } else { V::default() };
                }
            }
        }
    }
}

/// The numbers of values, if it stands for them, and the values of a block of a message to or from that table: what both ends do
/// with what they receive.
///
/// # Errors
/// Says what is wrong with it.
pub fn decode_block(
    spec: &TableSpec,
    block: &[u8],
    pool: &Pool,
) -> Result<(Option<Vec<u32>>, Buffer), String> {
    decode(spec, block, pool).map(|decoded| (decoded.lengths, decoded.values))
}

/// Undoes [`encode`] for a message of a table whose operation says that its values are a block.
///
/// # Errors
/// Says what is wrong with the block; memory is asked for only once it is known that its bytes can stand for so much.
pub(super) fn decode(spec: &TableSpec, block: &[u8], pool: &Pool) -> Result<Decoded, String> {
    let parts = Parts::cut(block, spec)?;
    let whole = if spec.width > 0 { parts.rows * parts.width } else { parts.values };
    let bytes = whole * spec.value.bytes();
    let mut values = pool.allocate(bytes).map_err(|error| error.to_string())?;
    with_type!(spec.value, V => unpack::<V>(&parts, &mut values))?;
    let sizes = parts.sizes(spec.value.bytes());
    let raw_bytes = parts.values * spec.value.bytes() + sizes.lengths;
    Ok(Decoded { lengths: parts.lengths(), values, raw_bytes, sizes })
}

/// Writes the values of all rows; those that are masked hold zeros.
fn unpack<V: Number>(parts: &Parts<'_>, into: &mut [u8]) -> Result<(), String> {
    let into = V::view_mut(into).expect("memory of the pool is aligned");
    parts.write(&mut into[..parts.values])?;
    let (Some(carrying), width) = (parts.carrying, parts.width) else { return Ok(()) };
    if parts.holds_lengths() {
        return Ok(());
    }
    let mut end = parts.values;
    for row in (0..parts.rows).rev() {
        if carrying.is_set(row) {
            into.copy_within(end - width..end, row * width);
            end -= width;
        } else {
            into[row * width..][..width].fill(V::default());
        }
    }
    Ok(())
}

/// Cuts off the first `len` bytes.
fn take<'a>(rest: &mut &'a [u8], len: usize, what: &str) -> Result<&'a [u8], String> {
    let have = rest.len();
    let (part, others) = rest
        .split_at_checked(len)
        .ok_or_else(|| format!("its {what} takes {len} bytes, and {have} are there"))?;
    *rest = others;
    Ok(part)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    fn pool() -> Pool {
        Pool::new(64 << 20)
    }

    fn filters(list: &str) -> Filters {
        list.parse().unwrap()
    }

    fn table(value: ValueType, width: u32) -> TableSpec {
        TableSpec::new(1, "t", value, width)
    }

    fn make<V: Number>(filters: &Filters, rows: Rows<'_>) -> Option<(Block, Passage)> {
        let mut passage = Passage::new(4 * rows.lengths.len() + rows.values.len());
        let mut draws = Draws::new(1, 2);
        let block = encode::<V>(filters, &mut draws, rows, &pool(), &mut passage).unwrap();
        block.map(|block| (block, passage))
    }

    fn fixed<V: Value>(width: usize, values: &[V]) -> Rows<'_> {
        let count = values.len() / width;
        Rows { width, lengths: &[], carrying: None, count, values: V::bytes(values) }
    }

    fn varying<'a>(lengths: &'a [u32], values: &'a [f64]) -> Rows<'a> {
        let values = f64::bytes(values);
        Rows { width: 0, lengths, carrying: None, count: lengths.len(), values }
    }

    #[test]
    fn zeros_and_doubles_that_are_singles_take_few_bytes() {
        let mut values = vec![0.0; 800];
        (0..800).step_by(10).for_each(|i| values[i] = i as f64 / 4.0);
        let (block, _) = make::<f64>(&filters("zero,narrow"), fixed(1, &values)).unwrap();
        // Of the 80 in tens the first is 0 as well.
        assert_eq!(block.bytes.len(), HEAD_BYTES + 100 + 79 * 4);
        let back = decode(&table(ValueType::F64, 1), &block.bytes, &pool()).unwrap();
        assert_eq!(f64::view(&back.values).unwrap(), values);
        values[3] = -0.0;
        let (block, _) = make::<f64>(&filters("zero,narrow"), fixed(1, &values)).unwrap();
        let back = decode(&table(ValueType::F64, 1), &block.bytes, &pool()).unwrap();
        assert!(f64::view(&back.values).unwrap()[3].is_sign_negative());
        values[3] = 0.1;
        let (block, _) = make::<f64>(&filters("zero,narrow"), fixed(1, &values)).unwrap();
        assert_eq!(block.bytes.len(), HEAD_BYTES + 100 + 80 * 8, "0.1 is no f32");
    }

    #[test]
    fn what_would_not_be_shorter_goes_as_it_is() {
        let values = [1.5, 2.5];
        assert!(make::<f64>(&filters("zero,quantize=1"), fixed(2, &values)).is_none());
        assert!(make::<f64>(&filters("zero"), fixed(1, &[0.1; 500])).is_none());
        assert!(make::<f64>(&filters("zero"), fixed::<f64>(1, &[])).is_none());
    }

    #[test]
    fn rows_without_values_cost_a_bit_whichever_way_they_are_none() {
        let lengths: Vec<u32> = (0..400).map(|i| if i % 4 == 0 { 2 } else { 0 }).collect();
        let values: Vec<f64> = (0..200).map(|i| f64::from(i) + 0.1).collect();
        let (block, _) = make::<f64>(&filters("mask"), varying(&lengths, &values)).unwrap();
        assert_eq!((block.bytes.len(), block.holds_lengths), (HEAD_BYTES + 50 + 1600, true));
        let back = decode(&table(ValueType::F64, 0), &block.bytes, &pool()).unwrap();
        assert_eq!(f64::view(&back.values).unwrap(), values);
        assert_eq!(back.lengths.unwrap(), lengths);
        let carrying: Vec<bool> = lengths.iter().map(|&length| length > 0).collect();
        let rows =
            Rows { width: 2, count: 400, carrying: Some(&carrying), ..varying(&[], &values) };
        let (block, _) = make::<f64>(&filters("skip=0.5"), rows).unwrap();
        let back = decode(&table(ValueType::F64, 2), &block.bytes, &pool()).unwrap();
        let (pairs, _) = f64::view(&back.values).unwrap().as_chunks::<2>();
        assert_eq!(pairs[7..9], [[0.0, 0.0], [values[4], values[5]]]);
        let none = make::<f64>(&filters("mask"), varying(&[0; 100], &[])).unwrap().0;
        let back = decode(&table(ValueType::F64, 0), &none.bytes, &pool()).unwrap();
        assert_eq!((back.lengths.unwrap(), back.values.len()), (vec![0; 100], 0));
    }

    #[test]
    fn every_place_in_a_row_has_a_range_of_its_own() {
        let values: Vec<f64> =
            (0..200).flat_map(|i| [f64::from(i) * 1e9, f64::from(i) * 1e-9]).collect();
        let (block, _) = make::<f64>(&filters("quantize=2"), fixed(2, &values)).unwrap();
        let back = decode(&table(ValueType::F64, 2), &block.bytes, &pool()).unwrap();
        let back = f64::view(&back.values).unwrap();
        for (value, back) in values.iter().zip(back) {
            assert!(
                (value - back).abs() <= value.abs().max(1e-11) * 0.01 + 1e-11,
                "{value} {back}"
            );
        }
    }

    #[test]
    fn blocks_that_claim_much_take_no_memory() {
        let varying = table(ValueType::F64, 0);
        let wide = table(ValueType::F64, 1 << 20);
        let head = |stages, rows: u32, width: u32| {
            let mut bytes = vec![stages, 0, 0, 0];
            bytes.extend(rows.to_le_bytes());
            bytes.extend(width.to_le_bytes());
            bytes
        };
        for (spec, block) in [
            (&varying, head(LENGTHS, u32::MAX, 0)),
            (&varying, head(LENGTHS, u32::MAX, u32::MAX)),
            (&varying, head(LENGTHS | ZERO, u32::MAX, 1)),
            (&varying, head(0, 2, 1)),
            (&varying, head(32, 1, 1)),
            (&wide, head(MASK, u32::MAX, 1 << 20)),
            (&wide, head(0, 1, 1)),
            (&wide, head(LENGTHS, 1, 1 << 20)),
        ] {
            let pool = pool();
            assert!(decode(spec, &block, &pool).is_err(), "{block:?}");
            assert_eq!(pool.bytes_reserved(), 0);
        }
    }

    fn any_filters() -> impl Strategy<Value = Filters> {
        (any::<bool>(), any::<bool>(), any::<bool>(), prop::option::of(1_u8..4)).prop_map(
            |(mask, zero, narrow, quantize)| Filters {
                mask,
                zero,
                narrow,
                quantize,
                ..Filters::NONE
            },
        )
    }

    /// Zeros, singles and doubles.
    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![Just(0.0), (-1e6_f32..1e6).prop_map(f64::from), -1e6..1e6]
    }

    #[test]
    fn values_that_are_one_row_cannot_be_masked() {
        let block = [MASK, 0, 0, 0, 1, 0, 0, 0, 0, 0, 246, 0, 0];
        let error = decode(&table(ValueType::F32, 0), &block, &pool()).unwrap_err();
        assert!(error.contains("not for this table"), "{error}");
    }

    proptest! {
        #[test]
        fn blocks_come_back(
            filters in any_filters(),
            rows in prop::collection::vec((any::<bool>(), prop::collection::vec(number(), 3)), 0..200),
            is_varying in any::<bool>(),
        ) {
            let carrying: Vec<bool> = rows.iter().map(|(carries, _)| *carries).collect();
            let carried = rows.iter().filter(|(carries, _)| *carries);
            let values: Vec<f64> = carried.flat_map(|(_, values)| values.clone()).collect();
            let lengths: Vec<u32> = carrying.iter().map(|&carries| 3 * u32::from(carries)).collect();
            let all = match is_varying {
                true => varying(&lengths, &values),
                false => Rows {
                    width: 3, lengths: &[], carrying: Some(&carrying), count: rows.len(), values: f64::bytes(&values),
                },
            };
            let Some((block, sent)) = make::<f64>(&filters, all) else { return Ok(()) };
            let spec = table(ValueType::F64, if is_varying { 0 } else { 3 });
            let back = decode(&spec, &block.bytes, &pool()).unwrap();
            let expected: Vec<f64> = match is_varying {
                true => values.clone(),
                false => rows.iter().flat_map(|(carries, values)| if *carries { values.clone() } else { vec![0.0; 3] }).collect(),
            };
            let found = f64::view(&back.values).unwrap();
            prop_assert_eq!(found.len(), expected.len());
            let step = filters.quantize.map_or(0.0, |bytes| 2.1e6 / (f64::from(1_u32 << (8 * bytes)) - 1.0));
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert!((found - expected).abs() <= step, "{} {}", found, expected);
            }
            prop_assert_eq!(back.lengths, is_varying.then_some(lengths));
            let mut received = Passage::new(back.raw_bytes);
            back.sizes.pass(&mut received);
            let flows = |passage: Passage| {
                let mut flows = Default::default();
                passage.end(&mut flows);
                flows
            };
            prop_assert_eq!(flows(sent), flows(received), "both ends count the same");
        }

        #[test]
        fn no_bytes_can_break_the_decoder(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            stages in any::<u8>(),
            rows in 0_u32..40,
            width in 0_u32..4,
            is_varying in any::<bool>(),
            value in prop::sample::select(ValueType::ALL.to_vec()),
        ) {
            let mut block = vec![stages, bytes.first().map_or(0, |byte| byte % 4), 0, 0];
            block.extend(rows.to_le_bytes());
            block.extend(width.to_le_bytes());
            block.extend(&bytes);
            for block in [&block, &bytes] {
                if let Ok(decoded) = decode(&table(value, if is_varying { 0 } else { width.max(1) }), block, &pool()) {
                    prop_assert!(decoded.values.len() <= 64 * 8 * 8 * block.len());
                }
            }
        }
    }
}
