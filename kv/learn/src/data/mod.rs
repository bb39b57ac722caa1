//! Training data in memory: rows as read or packed, and the column-major matrix made from them. The
//! readers are submodules.
//!
//! Values are `f64`: they come from decimal text, and the reference optima were computed with that
//! precision. Most data sets store none, because values that are all exactly 1 are omitted.

mod ascending;
pub mod assigner;
mod by_key;
mod cache;
pub mod clicks;
mod columns;
mod criteo;
mod cuts;
mod grouped;
pub(crate) mod groups;
mod input;
mod kept;
mod labels;
pub mod libsvm;
mod lookup;
mod number;
mod ordered;
mod packed;
mod read;
mod read_ahead;
pub mod source;
mod store;
mod words;

pub use ascending::Ascending;
pub(crate) use by_key::ByKey;
pub use columns::Columns;
pub(crate) use columns::for_each;
pub(crate) use cuts::cut_file;
pub use cuts::{Cut, cut};
pub(crate) use input::Input;
pub(crate) use input::SharedFiles;
pub use input::check_shared;
pub(crate) use kept::{BLOCK_ROWS, KeptRows, Share};
pub use labels::Labels;
pub(crate) use labels::Second;
pub(crate) use lookup::{gallop, places};
pub(crate) use number::{parse_key, parse_value};
pub use packed::PackedRows;
pub(crate) use packed::{pack_keys, unpack_keys};
pub use read::{listed, parse, read, read_as, read_cut, read_packed};
pub use read_ahead::ReadAhead;
pub(crate) use source::length_and_format;
pub use store::{DataStore, Sample, Sampler, Take};

use crate::{Error, Result};

/// Consecutive rows of the same shard: few enough to spread small files, enough to skip in runs.
pub const SHARD_ROWS: u64 = 16;

/// One worker's part of the rows: row `r` belongs to shard `(r / 16) % count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// All rows.
    pub const ALL: Self = Self { index: 0, count: 1 };

    /// Part `index`, counted from 0, of `count`.
    ///
    /// # Errors
    /// [`Error::Option`] unless `index < count`.
    pub fn new(index: u32, count: u32) -> Result<Self> {
        if index >= count {
            let value = format!("{index} of {count}");
            return Err(Error::Option {
                name: "shard",
                value,
                expected: "an index below the count",
            });
        }
        Ok(Self { index, count })
    }

    /// How many of the first `rows` rows of all files are in this part.
    pub(crate) fn rows_of(self, rows: u64) -> u64 {
        let round = SHARD_ROWS * u64::from(self.count);
        let own = SHARD_ROWS * u64::from(self.index);
        rows / round * SHARD_ROWS + (rows % round).saturating_sub(own).min(SHARD_ROWS)
    }

    /// Whether row `row`, counted from 0 over all files, is in this part.
    pub fn owns(self, row: u64) -> bool {
        row / SHARD_ROWS % u64::from(self.count) == u64::from(self.index)
    }
}

/// Labelled sparse rows, in the order of the files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Examples {
    /// `[rows]`, as [`Labels`] says: each +1 or -1 of two classes.
    pub labels: Vec<f64>,
    /// `[rows + 1]`, or empty without rows: row `r` is `row_starts[r]..row_starts[r + 1]` of the
    /// next two.
    pub row_starts: Vec<usize>,
    /// `[nonzeros]`, strictly ascending within a row.
    pub keys: Vec<u64>,
    /// `[nonzeros]`, finite and not 0; `None` if all are exactly 1.
    pub values: Option<Vec<f64>>,
    /// Rows in the files, including those of other shards.
    pub rows_in_all_shards: u64,
}

/// One row of [`Examples`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    /// As in [`Examples::labels`].
    pub label: f64,
    /// Strictly ascending.
    pub keys: &'a [u64],
    /// One per key; `None` if all are exactly 1.
    pub values: Option<&'a [f64]>,
}

impl Examples {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Number of stored entries.
    pub fn nonzeros(&self) -> usize {
        self.keys.len()
    }

    /// Row `row`, counted from 0.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> Row<'_> {
        let range = self.row_starts[row]..self.row_starts[row + 1];
        let values = self.values.as_ref().map(|values| &values[range.clone()]);
        Row { label: self.labels[row], keys: &self.keys[range], values }
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.rows()).map(|row| self.row(row))
    }

    /// Appends one entry to the row being built.
    fn push(&mut self, key: u64, value: f64) {
        if value != 1.0 && self.values.is_none() {
            self.values = Some(vec![1.0; self.keys.len()]);
        }
        self.keys.push(key);
        if let Some(values) = &mut self.values {
            values.push(value);
        }
    }

    /// Ends the row being built: everything pushed since the last one.
    fn end_row(&mut self, label: f64) {
        if self.row_starts.is_empty() {
            self.row_starts.push(0);
        }
        self.labels.push(label);
        self.row_starts.push(self.keys.len());
    }

    /// Appends the rows of `other`.
    pub(crate) fn append(&mut self, other: &Self) {
        match (&mut self.values, &other.values) {
            (None, None) => {}
            (Some(values), Some(more)) => values.extend_from_slice(more),
            (Some(values), None) => values.resize(values.len() + other.keys.len(), 1.0),
            (None, Some(more)) => {
                let mut values = vec![1.0; self.keys.len()];
                values.extend_from_slice(more);
                self.values = Some(values);
            }
        }
        let base = self.keys.len();
        let skip = usize::from(!self.row_starts.is_empty());
        self.row_starts.extend(other.row_starts.iter().skip(skip).map(|start| base + start));
        self.keys.extend_from_slice(&other.keys);
        self.labels.extend_from_slice(&other.labels);
        self.rows_in_all_shards += other.rows_in_all_shards;
    }

    /// The rows from `first` on.
    pub(crate) fn tail(&self, first: usize) -> Examples {
        let Some(labels) = self.labels.get(first..).filter(|labels| !labels.is_empty()) else {
            return Examples::default();
        };
        let from = self.row_starts[first];
        Examples {
            labels: labels.to_vec(),
            row_starts: self.row_starts[first..].iter().map(|start| start - from).collect(),
            keys: self.keys[from..].to_vec(),
            values: self.values.as_ref().map(|values| values[from..].to_vec()),
            rows_in_all_shards: 0,
        }
    }

    /// The labels of two classes, and the entries column by column. Linear in the entries.
    ///
    /// # Errors
    /// [`Error::TooMany`] from 2^32 rows or columns on.
    pub fn into_columns(self) -> Result<(Vec<i8>, Columns)> {
        let rows = PackedRows::from(&self);
        let keys = rows.distinct_keys();
        Ok((rows.labels.clone(), rows.into_columns(keys)?))
    }
}

/// `count` as u32, the type of row and column numbers.
fn check_count(what: &'static str, count: usize) -> Result<u32> {
    let count_max = u64::from(u32::MAX);
    u32::try_from(count).map_err(|_| Error::TooMany { what, count: count as u64, count_max })
}

#[cfg(test)]
pub(crate) mod testing {
    //! Shared by the readers' tests: a temporary folder and compressors.
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;
    use std::io::Write;
    use std::path::{Path, PathBuf};

    /// A folder for one test, removed at the end.
    pub(crate) struct Folder(PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("caravan-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }

        pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, bytes).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn xz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Rows from maps of entries: the plain form.
    fn build(rows: &[BTreeMap<u64, f64>]) -> Examples {
        let mut examples = Examples::default();
        for row in rows {
            row.iter().for_each(|(&key, &value)| examples.push(key, value));
            examples.end_row(1.0);
        }
        examples
    }

    #[test]
    fn shards_part_the_rows() {
        let shards: Vec<_> = (0..3).map(|index| Shard::new(index, 3).unwrap()).collect();
        for row in 0..200 {
            let owners: Vec<_> = shards.iter().filter(|shard| shard.owns(row)).collect();
            assert_eq!(owners, [&shards[(row / 16 % 3) as usize]]);
            assert!(Shard::ALL.owns(row));
            for shard in &shards {
                let owned = (0..row).filter(|row| shard.owns(*row)).count();
                assert_eq!(shard.rows_of(row), owned as u64);
            }
        }
        assert!(Shard::new(3, 3).is_err() && Shard::new(0, 0).is_err());
    }

    proptest! {
        #[test]
        fn columns_hold_the_entries_of_the_rows(
            rows in prop::collection::vec(prop::collection::btree_map(0_u64..9, 1_u8..3, 0..6), 0..20),
            cut in 0_usize..20,
        ) {
            let rows: Vec<BTreeMap<u64, f64>> =
                rows.iter().map(|row| row.iter().map(|(&key, &value)| (key, f64::from(value))).collect()).collect();
            let mut expected = BTreeMap::<u64, Vec<(u32, f64)>>::new();
            for (row, entries) in rows.iter().enumerate() {
                entries.iter().for_each(|(&key, &value)| expected.entry(key).or_default().push((row as u32, value)));
            }
            let mut joined = build(&rows[..cut.min(rows.len())]);
            joined.append(&build(&rows[cut.min(rows.len())..]));
            prop_assert_eq!(&joined, &build(&rows));
            let (_, columns) = joined.into_columns().unwrap();
            let found: BTreeMap<u64, Vec<(u32, f64)>> = (0..columns.columns()).map(|at| {
                let (rows, values) = columns.column(at);
                let entries = rows.iter().enumerate().map(|(i, &row)| (row, values.map_or(1.0, |values| values[i])));
                (columns.keys().get(at), entries.collect())
            }).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
