//! Decodes a received block to a message's values. Each claimed size is checked before memory is
//! allocated.
//!
//! Path: endpoint > codec > **filter** > server or worker.

use caravan_van::{Account, Buffer, Pool};

use super::{ALL, HEAD_BYTES, LENGTHS, MASK, NARROW, Number, QUANTIZE, Sizes, ZERO};
use crate::filter::bits::{self, Bitmap};
use crate::filter::quantize::{self, RANGE_BYTES, Range};
use crate::refusal::{Refusal, Refused};
use crate::table::{TableSpec, ValueType, with_type};

/// A decoded block.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// Numbers of values, if the block held them.
    pub(crate) lengths: Option<Vec<u32>>,
    pub(crate) values: Buffer,
    /// Bytes of the numbers of values, and of the values of rows that carry any.
    pub(in crate::filter) raw_bytes: usize,
    pub(in crate::filter) sizes: Sizes,
    /// Accounts for the numbers of values.
    _memory: Account,
}

impl Decoded {
    /// Values that are no block.
    pub(in crate::filter) fn plain(values: Buffer, pool: &Pool) -> Decoded {
        let (raw_bytes, sizes) = (values.len(), Sizes::default());
        let _memory = Account::new(pool, "a block's numbers of values");
        Decoded { lengths: None, values, raw_bytes, sizes, _memory }
    }
}

/// A received block, cut into its parts, whose sizes were checked to be consistent.
struct Parts<'a> {
    stages: u8,
    rows: usize,
    width: usize,
    carrying: Option<Bitmap<'a>>,
    left: Option<Bitmap<'a>>,
    ranges: &'a [[u8; RANGE_BYTES]],
    /// Bytes of one number.
    unit: usize,
    numbers: &'a [u8],
    /// Number of values in rows that carry any.
    values: usize,
}

impl<'a> Parts<'a> {
    fn cut(block: &'a [u8], spec: &TableSpec) -> Result<Parts<'a>, Refused> {
        let mut rest = block;
        let head = take(&mut rest, HEAD_BYTES, "head")?;
        let [stages, bytes, 0, 0, ref numbers @ ..] = *head else {
            return Err(Refusal::Shape.because("its head is not that of a block"));
        };
        let is_set = |stage| stages & stage != 0;
        let number =
            |at: usize| u32::from_le_bytes(std::array::from_fn(|i| numbers[at + i])) as usize;
        let rows = number(0);
        let width = number(4);
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
            // Without a mask, each row must have values, so that the block's length bounds the
            // rows.
            && (width > 0 || is_set(MASK) || rows <= 1);
        if !sane {
            return Err(Refusal::Shape.because(format!(
                "stages {stages:#x} with {bytes} bytes a number, {rows} rows of {width} values, are not for this table"
            )));
        }
        let carrying = match is_set(MASK) {
            true => Some(Bitmap::read(take(&mut rest, bits::bytes(rows), "mask")?, rows)?),
            false => None,
        };
        let carry = carrying.map_or(rows, Bitmap::set);
        let values = carry.checked_mul(width).filter(|&n| n.checked_mul(8).is_some());
        let values = values.ok_or_else(|| {
            Refusal::Shape.because(format!("{carry} rows of {width} values are too many"))
        })?;
        if spec.width > 0 && rows.checked_mul(width * 8).is_none() {
            return Err(
                Refusal::Shape.because(format!("{rows} rows of {width} values are too many"))
            );
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
            return Err(Refusal::Shape
                .because(format!("its numbers take {need} bytes, and {} are there", rest.len())));
        }
        Ok(Parts { stages, rows, width, carrying, left, ranges, unit, numbers: rest, values })
    }

    fn holds_lengths(&self) -> bool {
        self.stages & LENGTHS != 0
    }

    /// The sizes that its sender has counted.
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
    fn write<V: Number>(&self, into: &mut [V]) -> Result<(), Refused> {
        let mut numbers = self.numbers.chunks_exact(self.unit);
        let mut next = || numbers.next().expect("they were counted");
        match self.stages & (QUANTIZE | NARROW) {
            QUANTIZE => {
                let ranges: Result<Vec<Range>, Refused> =
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

    /// Puts the results of `next` where values remain, and zeros elsewhere.
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

/// Undoes [`encode`] for a message whose operation announces a block. It reads the block more than
/// once, so nobody else may be able to write it.
///
/// # Errors
/// The reason why the block is invalid. Memory is allocated only once the block's bytes are known
/// to justify it.
pub(in crate::filter) fn decode(
    spec: &TableSpec,
    block: &[u8],
    pool: &Pool,
) -> Result<Decoded, Refused> {
    let parts = Parts::cut(block, spec)?;
    let whole = if spec.width > 0 { parts.rows * parts.width } else { parts.values };
    let bytes = whole * spec.value.bytes();
    let sizes = parts.sizes(spec.value.bytes());
    let mut memory = Account::new(pool, "a block's numbers of values");
    memory.set(sizes.lengths)?;
    let mut values = pool.allocate(bytes)?;
    with_type!(spec.value, V => unpack::<V>(&parts, &mut values))?;
    let raw_bytes = parts.values * spec.value.bytes() + sizes.lengths;
    Ok(Decoded { lengths: parts.lengths(), values, raw_bytes, sizes, _memory: memory })
}

/// Writes the values of all rows; masked rows hold zeros.
fn unpack<V: Number>(parts: &Parts<'_>, into: &mut [u8]) -> Result<(), Refused> {
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
fn take<'a>(rest: &mut &'a [u8], len: usize, what: &str) -> Result<&'a [u8], Refused> {
    let have = rest.len();
    let (part, others) = rest.split_at_checked(len).ok_or_else(|| {
        Refusal::Shape.because(format!("its {what} takes {len} bytes, and {have} are there"))
    })?;
    *rest = others;
    Ok(part)
}
