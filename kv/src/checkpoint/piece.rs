//! A piece of a shard: consecutive rows with all that the shard keeps for them, as bytes. Servers
//! answer with pieces, files hold them, and servers take them again.

use std::ops::Range;

use crate::server::Extract;
use crate::slicer;

/// Bytes before the keys: whether the piece is the last one, number of keys, number of lengths.
const HEAD: usize = 24;

/// Rows of a shard, and whether they are its last ones.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) rows: Extract,
    pub(crate) is_last: bool,
}

/// Decodes a piece of a shard, reads each of its rows, and encodes it again, to the same bytes.
///
/// # Errors
/// The reason why these bytes are no piece.
pub fn recode_piece(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let piece = Piece::decode(bytes)?;
    let rows = piece.rows.values_of().map(|(_, values)| values.len());
    debug_assert_eq!(rows.sum::<usize>(), piece.rows.values.len());
    Ok(piece.encode())
}

impl Piece {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Extract { keys, lengths, values } = &self.rows;
        let mut bytes =
            Vec::with_capacity(HEAD + 8 * keys.len() + 4 * lengths.len() + values.len());
        for number in [u64::from(self.is_last), keys.len() as u64, lengths.len() as u64] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        keys.iter().for_each(|key| bytes.extend_from_slice(&key.to_le_bytes()));
        lengths.iter().for_each(|length| bytes.extend_from_slice(&length.to_le_bytes()));
        bytes.extend_from_slice(values);
        bytes
    }

    /// # Errors
    /// The reason why these bytes are no piece.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Piece, String> {
        let (numbers, rest) =
            bytes.as_chunks::<8>().0.split_at_checked(3).ok_or("it is cut off")?;
        let [is_last, keys, lengths] = [0, 1, 2].map(|at| u64::from_le_bytes(numbers[at]));
        if is_last > 1 {
            return Err(format!("its mark of the last piece is {is_last}, not 0 or 1"));
        }
        let count = usize::try_from(keys).ok().filter(|count| *count <= rest.len());
        let count = count.ok_or_else(|| format!("it is too short for {keys} keys"))?;
        if lengths != 0 && lengths != keys {
            return Err(format!("it has {lengths} lengths for {keys} keys"));
        }
        let keys = rest[..count].iter().map(|key| u64::from_le_bytes(*key)).collect::<Vec<_>>();
        if !slicer::are_ascending(&keys) {
            return Err("its keys do not ascend".to_owned());
        }
        let rest = &bytes[HEAD + 8 * count..];
        let lengths_bytes = 4 * lengths as usize; // not above that of the keys
        let (lengths, values) = rest.split_at_checked(lengths_bytes).ok_or("it lacks lengths")?;
        let lengths = lengths.as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it));
        let lengths = lengths.collect::<Vec<_>>();
        let rows = Extract { keys, lengths, values: values.to_vec() };
        if !rows.is_whole() {
            return Err(format!("its {} bytes of values are no whole rows", values.len()));
        }
        Ok(Piece { rows, is_last: is_last == 1 })
    }
}

impl Extract {
    /// Whether the values can belong to the rows.
    fn is_whole(&self) -> bool {
        let rows = match &self.lengths[..] {
            [] => self.keys.len(),
            lengths => lengths.iter().map(|length| *length as usize).sum(),
        };
        match rows {
            0 => self.values.is_empty(),
            rows => self.values.len().is_multiple_of(rows),
        }
    }

    /// Bytes of the values of the first `count` rows.
    fn bytes_of(&self, count: usize) -> usize {
        let units = match &self.lengths[..] {
            [] => count,
            lengths => lengths[..count].iter().map(|length| *length as usize).sum(),
        };
        self.unit_bytes() * units
    }

    /// Bytes of the values of a row, or of a unit of length where rows have their own.
    pub(super) fn unit_bytes(&self) -> usize {
        let units = match &self.lengths[..] {
            [] => self.keys.len(),
            lengths => lengths.iter().map(|length| *length as usize).sum(),
        };
        self.values.len().checked_div(units).unwrap_or(0)
    }

    /// The values of each row.
    pub(crate) fn values_of(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = &self.values[..];
        let unit = self.unit_bytes();
        self.keys.iter().enumerate().map(move |(at, key)| {
            let bytes = self.lengths.get(at).map_or(unit, |length| *length as usize * unit);
            let (values, others) = rest.split_at(bytes);
            rest = others;
            (*key, values)
        })
    }

    /// Some of the rows.
    pub(crate) fn part(&self, range: Range<usize>) -> Extract {
        let values = self.bytes_of(range.start)..self.bytes_of(range.end);
        Extract {
            keys: self.keys[range.clone()].to_vec(),
            lengths: self.lengths.get(range).unwrap_or_default().to_vec(),
            values: self.values[values].to_vec(),
        }
    }

    /// Keeps the rows of keys below `until`.
    pub(crate) fn truncate(&mut self, until: u64) {
        let count = self.keys.partition_point(|key| *key < until);
        let bytes = self.bytes_of(count);
        self.values.truncate(bytes);
        self.keys.truncate(count);
        self.lengths.truncate(count);
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.keys[..]) + size_of_val(&self.lengths[..]) + self.values.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    fn piece(keys: Vec<u64>, lengths: Vec<u32>, bytes: usize) -> Piece {
        let values = (0..bytes).map(|at| at as u8).collect();
        Piece { rows: Extract { keys, lengths, values }, is_last: true }
    }

    #[test]
    fn comes_back_and_is_cut() {
        for piece in [
            piece(vec![], vec![], 0),
            piece(vec![3, u64::MAX], vec![], 24),
            piece(vec![1, 2, 9], vec![0, 2, 1], 12),
        ] {
            assert_eq!(Piece::decode(&piece.encode()).unwrap(), piece);
            let rows = piece.rows;
            let count = rows.keys.len();
            let each = (0..count).map(|at| rows.part(at..at + 1).values).collect::<Vec<_>>();
            assert_eq!(each.concat(), rows.values);
            assert!(rows.values_of().zip(&each).all(|((_, row), each)| row == each));
        }
        let mut rows = piece(vec![1, 2, 9], vec![0, 2, 1], 12).rows;
        rows.truncate(9);
        assert_eq!((rows.keys.len(), rows.lengths.len(), rows.values.len()), (2, 2, 8));
    }

    proptest! {
        /// Neither random bytes nor changed pieces make it panic; what it takes can be read.
        #[test]
        fn no_bytes_make_it_panic(
            random in prop::collection::vec(any::<u8>(), 0..80), at in 0usize..80, byte: u8,
            cut in 0usize..80,
        ) {
            let mut bytes = piece(vec![1, 2, 9], vec![0, 2, 1], 12).encode();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            for bytes in [random, bytes] {
                if let Ok(piece) = Piece::decode(&bytes) {
                    prop_assert_eq!(piece.rows.values_of().count(), piece.rows.keys.len());
                    prop_assert_eq!(piece.encode(), bytes);
                }
            }
        }
    }
}
