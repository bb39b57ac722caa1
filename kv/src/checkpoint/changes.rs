//! What changed in a shard between two checkpoints, as bytes: rows that are new or others than
//! before, and the keys of rows that went.

use super::Piece;
use crate::server::Extract;
use crate::slicer;

/// Rows as they are now, and tombstones.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Changes {
    /// Keys of rows that went, ascending; none of them is in `piece`.
    pub(crate) gone: Vec<u64>,
    pub(crate) piece: Piece,
}

/// A row of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    pub(crate) key: u64,
    /// Where rows have their own.
    pub(crate) length: Option<u32>,
    /// All that a shard keeps for the key.
    pub(crate) values: &'a [u8],
}

/// Decodes what changed between two checkpoints, and encodes it again, to the same bytes.
///
/// # Errors
/// The reason why these bytes are no changes.
pub fn recode_changes(bytes: &[u8]) -> Result<Vec<u8>, String> {
    Changes::decode(bytes).map(|changes| changes.encode())
}

impl From<Piece> for Changes {
    /// All rows of a piece.
    fn from(piece: Piece) -> Changes {
        Changes { gone: Vec::new(), piece }
    }
}

impl Changes {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.gone.len() as u64).to_le_bytes().to_vec();
        self.gone.iter().for_each(|key| bytes.extend_from_slice(&key.to_le_bytes()));
        bytes.extend_from_slice(&self.piece.encode());
        bytes
    }

    /// # Errors
    /// The reason why these bytes are no changes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Changes, String> {
        let (count, rest) = bytes.as_chunks::<8>().0.split_first().ok_or("it is cut off")?;
        let count = u64::from_le_bytes(*count);
        let fits = usize::try_from(count).ok().filter(|count| *count <= rest.len());
        let fits = fits.ok_or_else(|| format!("it is too short for {count} tombstones"))?;
        let gone: Vec<u64> = rest[..fits].iter().map(|key| u64::from_le_bytes(*key)).collect();
        if !slicer::are_ascending(&gone) {
            return Err("its tombstones do not ascend".to_owned());
        }
        let piece = Piece::decode(&bytes[8 * (1 + fits)..])?;
        if let Some(key) = gone.iter().find(|key| piece.rows.keys.binary_search(key).is_ok()) {
            return Err(format!("key {key} has both a row and a tombstone"));
        }
        Ok(Changes { gone, piece })
    }

    /// Its lowest key.
    pub(super) fn first(&self) -> Option<u64> {
        let keys = [self.gone.first(), self.piece.rows.keys.first()];
        keys.into_iter().flatten().min().copied()
    }

    /// Its highest key.
    pub(super) fn last(&self) -> Option<u64> {
        self.gone.last().max(self.piece.rows.keys.last()).copied()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.gone[..]) + self.piece.rows.bytes()
    }
}

impl Extract {
    /// Appends a row, whose key is above all others.
    pub(super) fn push(&mut self, row: Row<'_>) {
        self.keys.push(row.key);
        self.lengths.extend(row.length);
        self.values.extend_from_slice(row.values);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    fn changes() -> Changes {
        let mut rows = Extract::default();
        for (key, length, values) in [(1, 1, &[7, 8][..]), (4, 0, &[]), (9, 2, &[1, 2, 3, 4])] {
            rows.push(Row { key, length: Some(length), values });
        }
        Changes { gone: vec![2, 3, u64::MAX], piece: Piece { rows, is_last: true } }
    }

    #[test]
    fn they_come_back() {
        let changes = changes();
        assert_eq!(Changes::decode(&changes.encode()).unwrap(), changes);
        assert_eq!((changes.first(), changes.last()), (Some(1), Some(u64::MAX)));
        let none = Changes::default();
        assert_eq!(Changes::decode(&none.encode()).unwrap(), none);
        assert_eq!((none.first(), none.last()), (None, None));
    }

    #[test]
    fn a_key_has_a_row_or_a_tombstone() {
        let both = Changes { gone: vec![4], ..changes() };
        let said = Changes::decode(&both.encode()).unwrap_err();
        assert!(said.contains("key 4 has both"), "{said}");
        let twice = Changes { gone: vec![5, 5], ..changes() };
        assert!(Changes::decode(&twice.encode()).unwrap_err().contains("do not ascend"));
    }

    proptest! {
        /// Neither random bytes nor changed ones make it panic; what it takes it writes again.
        #[test]
        fn no_bytes_make_it_panic(
            random in prop::collection::vec(any::<u8>(), 0..120), at in 0usize..120, byte: u8,
            cut in 0usize..120,
        ) {
            let mut bytes = changes().encode();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            for bytes in [random, bytes] {
                if let Ok(changes) = Changes::decode(&bytes) {
                    prop_assert_eq!(changes.encode(), bytes);
                }
            }
        }
    }
}
