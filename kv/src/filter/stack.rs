//! Encodes a message's values as one block of bytes, and back.
//!
//! ```text
//!  0 stages u8: MASK, ZERO, NARROW, QUANTIZE, LENGTHS     1 bytes of an integer, of QUANTIZE
//!  2 zero u16     4 rows u32     8 values of a row u32
//! 12 MASK: a bit a row, set if it carries values
//!    ZERO: a bit a value of those rows, set if it is not 0
//!    QUANTIZE: smallest value and step, f64 each, per place in a row (or one for all in long rows)
//!    the remaining values: integers of 1 to 3 bytes, f32s under NARROW, or unchanged
//! ```
//!
//! All numbers are little-endian. Under LENGTHS the block also holds the numbers of values: a row
//! has either none or the common number. Otherwise they are in the message, if the table's rows
//! have their own, and all values count as one row. In a table of equally long rows, a row without
//! values holds zeros.
//!
//! Path: worker > slicer > **filter** > message > codec > endpoint > transport.

mod decode;
mod encode;

use caravan_van::{Buffer, Value};
use half::{bf16, f16};

pub(super) use decode::{Decoded, decode};
pub(super) use encode::encode;

use super::traffic::{Passage, Stage};

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
    /// Reads a number from exactly its bytes.
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
number!(f32, f64, i32, i64, u8, u32, u64);

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
    /// Those numbers, if `width` is 0.
    pub(super) lengths: &'a [u32],
    /// For rows of equal width, which of them carry values; all if `None`.
    pub(super) carrying: Option<&'a [bool]>,
    /// Number of rows.
    pub(super) count: usize,
    /// The values of the rows that carry any.
    pub(super) values: &'a [u8],
}

impl Rows<'_> {
    /// The common number of values of all rows that have any, if there is one; a row without values
    /// counts as masked.
    fn equal_width(&self) -> Option<usize> {
        let width = self.lengths.iter().copied().find(|&length| length > 0).unwrap_or(0);
        let equal = self.lengths.iter().all(|&length| length == 0 || length == width);
        equal.then_some(width as usize)
    }
}

/// Encoded values.
pub(crate) struct Block {
    pub(crate) bytes: Buffer,
    /// Whether the block also holds the numbers of values.
    pub(crate) holds_lengths: bool,
}

/// Change of a message's length by each stage, in bytes.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    head: usize,
    lengths: usize,
    mask: Option<usize>,
    /// Bytes added and removed.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::filter::draws::Draws;
    use crate::filter::spec::Filters;
    use crate::table::{TableSpec, ValueType};
    use caravan_van::Pool;
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
        // Of the 80 values in tens the first is 0 as well.
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

    /// Zeros, f32s and f64s.
    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![Just(0.0), (-1e6_f32..1e6).prop_map(f64::from), -1e6..1e6]
    }

    #[test]
    fn values_that_are_one_row_cannot_be_masked() {
        let block = [MASK, 0, 0, 0, 1, 0, 0, 0, 0, 0, 246, 0, 0];
        let error = decode(&table(ValueType::F32, 0), &block, &pool()).unwrap_err();
        assert!(error.reason.contains("not for this table"), "{error}");
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
