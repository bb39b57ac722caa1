//! Packed rows, which training holds from reading until it knows the columns it needs.
//!
//! [`Examples`] suit users of rows. Training needs columns, and only those that screening leaves,
//! but before that the keys of all. Here a key is stored as its difference from the previous one in
//! its row, in as few bytes as possible, usually two or three. [`PackedRows::into_columns`] then
//! builds only the wanted columns.
//!
//! Path: source > libsvm > **packed** > screening > `Columns`.

use super::{ByKey, Columns, Examples, check_count};
use crate::Result;

/// Bits of a delta in each of its bytes, lowest first; the bit above them means that another byte
/// follows.
const DELTA_BITS: u32 = 7;
const FOLLOWED: u8 = 1 << DELTA_BITS;

/// Parts in which rows become columns: with more, fewer rows are held beside columns made of them.
const PARTS: usize = 2;

/// Labelled sparse rows in few bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PackedRows {
    /// `[rows]`, each +1 or -1.
    pub(super) labels: Vec<i8>,
    /// Number of entries of each row.
    pub(super) lengths: Vec<u32>,
    /// Difference of each key from the previous one in its row, of the first from 0.
    pub(super) deltas: Vec<u8>,
    /// `[nonzeros]`, finite and not 0; `None` if all are exactly 1.
    pub(super) values: Option<Vec<f64>>,
    pub(super) nonzeros: usize,
    /// Smallest and largest key.
    pub(super) range: Option<(u64, u64)>,
}

impl From<&Examples> for PackedRows {
    fn from(examples: &Examples) -> Self {
        let mut rows = Self {
            labels: examples.labels.iter().map(|&label| if label > 0.0 { 1 } else { -1 }).collect(),
            lengths: examples.row_starts.windows(2).map(|row| (row[1] - row[0]) as u32).collect(),
            deltas: Vec::with_capacity(3 * examples.nonzeros()),
            values: examples.values.clone(),
            nonzeros: examples.nonzeros(),
            range: None,
        };
        for row in examples.iter() {
            let mut last = 0;
            for &key in row.keys {
                push_delta(&mut rows.deltas, key - last);
                last = key;
            }
            rows.widen(row.keys.first().copied().zip(row.keys.last().copied()));
        }
        rows
    }
}

impl PackedRows {
    /// Number of entries.
    pub fn nonzeros(&self) -> usize {
        self.nonzeros
    }

    /// `[rows]`, each +1 or -1.
    pub fn labels(&self) -> &[i8] {
        &self.labels
    }

    /// Smallest and largest key.
    pub fn key_range(&self) -> Option<(u64, u64)> {
        self.range
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.labels.len()
            + size_of_val(&self.lengths[..])
            + self.deltas.len()
            + self.values.as_deref().map_or(0, size_of_val)
    }

    fn widen(&mut self, other: Option<(u64, u64)>) {
        let both = self.range.into_iter().chain(other);
        self.range = both.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
    }

    /// Appends rows.
    pub(super) fn append(&mut self, part: &Self) {
        match (&mut self.values, &part.values) {
            (None, None) => {}
            (Some(values), Some(more)) => values.extend_from_slice(more),
            (Some(values), None) => values.resize(values.len() + part.nonzeros, 1.0),
            (values @ None, Some(more)) => {
                let mut all = vec![1.0; self.nonzeros];
                all.extend_from_slice(more);
                *values = Some(all);
            }
        }
        self.labels.extend_from_slice(&part.labels);
        self.lengths.extend_from_slice(&part.lengths);
        self.deltas.extend_from_slice(&part.deltas);
        self.nonzeros += part.nonzeros;
        self.widen(part.range);
    }

    /// Calls `visit(row, key, value)` for each entry, row by row in the order of keys.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(usize, u64, f64)) {
        let mut bytes = self.deltas.iter();
        let mut entry = 0;
        for (row, &length) in self.lengths.iter().enumerate() {
            let mut key = 0_u64;
            for _ in 0..length {
                key = key.wrapping_add(next_delta(&mut bytes));
                visit(row, key, self.values.as_ref().map_or(1.0, |values| values[entry]));
                entry += 1;
            }
        }
    }

    /// Splits off the first `rows` rows.
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn take_first(&mut self, rows: usize) -> Self {
        let lengths: Vec<u32> = self.lengths.drain(..rows).collect();
        let nonzeros = lengths.iter().map(|&length| length as usize).sum();
        let ends = self.deltas.iter().enumerate().filter(|(_, byte)| **byte < FOLLOWED);
        let bytes = ends.map(|(at, _)| at + 1).take(nonzeros).last().unwrap_or(0);
        let mut first = Self {
            labels: self.labels.drain(..rows).collect(),
            lengths,
            deltas: self.deltas.drain(..bytes).collect(),
            values: self.values.as_mut().map(|values| values.drain(..nonzeros).collect()),
            nonzeros,
            range: None,
        };
        self.nonzeros -= nonzeros;
        for part in [&mut first, self] {
            let mut range = None;
            part.for_each(|_, key, _| {
                let (least, most) = range.unwrap_or((key, key));
                range = Some((key.min(least), key.max(most)));
            });
            part.range = range;
        }
        first
    }

    /// Adds 1 to the count of each row's keys, up to 255.
    pub(super) fn count(&self, counts: &mut ByKey<u8>) {
        self.for_each(|_, key, _| {
            let count = counts.entry(key);
            *count = count.saturating_add(1);
        });
    }

    /// All keys: sorted, unique.
    pub fn distinct_keys(&self) -> Vec<u64> {
        let mut counts = ByKey::new(self.range, self.nonzeros);
        self.count(&mut counts);
        counts.sorted(|count| count > 0).into_iter().map(|(key, _)| key).collect()
    }

    /// Drops all entries except those of `keys`.
    pub(crate) fn retain(&mut self, keys: &[u64]) {
        let mut wanted = ByKey::new(self.range, self.nonzeros);
        keys.iter().for_each(|&key| *wanted.entry(key) = true);
        self.retain_where(|_, key, _| wanted.get(key));
    }

    /// Calls `keep(row, key, value)` for each entry, in the order of [`for_each`](Self::for_each),
    /// drops those that it does not keep, and gives their memory back. Entries move up in place: a
    /// delta takes no more bytes than those that it is the sum of.
    fn retain_where(&mut self, mut keep: impl FnMut(usize, u64, f64) -> bool) {
        let (mut from, mut to) = (0, 0);
        let (mut entry, mut kept) = (0, 0);
        self.range = None;
        for row in 0..self.lengths.len() {
            let (mut key, mut last) = (0_u64, 0);
            let first = kept;
            for _ in 0..self.lengths[row] {
                let mut bytes = self.deltas[from..].iter();
                key = key.wrapping_add(next_delta(&mut bytes));
                from = self.deltas.len() - bytes.len();
                let value = self.values.as_ref().map_or(1.0, |values| values[entry]);
                entry += 1;
                if keep(row, key, value) {
                    put_delta(key - last, |byte| {
                        self.deltas[to] = byte;
                        to += 1;
                    });
                    self.values.iter_mut().for_each(|values| values[kept] = value);
                    self.widen(Some((key, key)));
                    last = key;
                    kept += 1;
                }
            }
            self.lengths[row] = (kept - first) as u32;
        }
        self.deltas.truncate(to);
        self.deltas.shrink_to_fit();
        if let Some(values) = &mut self.values {
            values.truncate(kept);
            values.shrink_to_fit();
        }
        self.nonzeros = kept;
    }

    /// The entries of the columns `keys`, column by column; drops the others. `keys`: sorted,
    /// unique. Linear in the entries. Rows become columns in parts and give back the memory of each
    /// before the next.
    ///
    /// # Errors
    /// [`crate::Error::TooMany`] from 2^32 rows or columns on.
    pub fn into_columns(mut self, keys: Vec<u64>) -> Result<Columns> {
        check_count("rows", self.labels.len())?;
        let mut number = ByKey::new(self.range, self.nonzeros);
        for (column, &key) in keys.iter().enumerate() {
            *number.entry(key) = check_count("columns", column + 1)?; // 0 for unwanted ones
        }
        // While columns are filled, `starts[c + 1]` is the place of column c's next entry,
        // initially its first.
        let mut starts = vec![0; keys.len() + 1];
        self.for_each(|_, key, _| starts[number.get(key) as usize] += 1);
        let mut end = 0;
        starts[0] = 0;
        for start in &mut starts[1..] {
            end += std::mem::replace(start, end);
        }
        let mut rows = vec![0; end];
        let mut values = self.values.as_ref().map(|_| vec![0.0; end]);
        for part in 1..=PARTS {
            let filled = starts.partition_point(|&start| start < end * part / PARTS);
            self.retain_where(|row, key, value| {
                let column = number.get(key) as usize;
                if column > 0 && column < filled {
                    let at = starts[column];
                    rows[at] = row as u32;
                    if let Some(values) = &mut values {
                        values[at] = value;
                    }
                    starts[column] += 1;
                }
                column >= filled
            });
        }
        Ok(Columns::new(&keys, &starts[1..], rows, values))
    }

    /// Whether `deltas` hold as many keys as `lengths` say, each row's keys ascend, and `range` and
    /// `nonzeros` match. The rest is valid with any content.
    pub(super) fn is_sound(&self) -> bool {
        let mut bytes = &self.deltas[..];
        let mut sound = true;
        let mut found = Self::default();
        for &length in &self.lengths {
            let mut first = None;
            let mut last = None;
            for _ in 0..length {
                let Some((delta, rest)) = checked_delta(bytes) else { return false };
                bytes = rest;
                let key = last.map_or(Some(delta), |last: u64| last.checked_add(delta));
                sound &= key.is_some() && (last.is_none() || delta > 0);
                last = key.or(last);
                first = first.or(last);
            }
            found.widen(first.zip(last));
            found.nonzeros += length as usize;
        }
        sound && bytes.is_empty() && (found.nonzeros, found.range) == (self.nonzeros, self.range)
    }
}

/// Packs ascending keys as differences.
pub(crate) fn pack_keys(keys: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut last = 0;
    for key in keys {
        push_delta(&mut bytes, key - std::mem::replace(&mut last, key));
    }
    bytes
}

/// Appends the keys that [`pack_keys`] packed into `bytes`; `None` if they are not such bytes.
pub(crate) fn unpack_keys(mut bytes: &[u8], keys: &mut Vec<u64>) -> Option<()> {
    let mut last = 0_u64;
    while !bytes.is_empty() {
        let (delta, rest) = checked_delta(bytes)?;
        last = last.checked_add(delta)?;
        keys.push(last);
        bytes = rest;
    }
    Some(())
}

fn push_delta(to: &mut Vec<u8>, delta: u64) {
    put_delta(delta, |byte| to.push(byte));
}

fn put_delta(mut delta: u64, mut put: impl FnMut(u8)) {
    while delta >= u64::from(FOLLOWED) {
        put(delta as u8 | FOLLOWED);
        delta >>= DELTA_BITS;
    }
    put(delta as u8);
}

fn next_delta<'a>(bytes: &mut impl Iterator<Item = &'a u8>) -> u64 {
    let mut delta = 0;
    let mut shift = 0;
    for &byte in bytes {
        delta |= u64::from(byte & !FOLLOWED) << shift;
        if byte < FOLLOWED {
            break;
        }
        shift = (shift + DELTA_BITS) % u64::BITS; // at most this in valid rows
    }
    delta
}

/// The delta at the start of `bytes` and the bytes after it; `None` if it is cut off or no u64.
fn checked_delta(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let len = 1 + bytes.iter().position(|&byte| byte < FOLLOWED)?;
    let mut delta = 0_u128;
    for (at, &byte) in bytes[..len].iter().enumerate().take(10) {
        delta |= u128::from(byte & !FOLLOWED) << (at as u32 * DELTA_BITS);
    }
    Some((u64::try_from(delta).ok().filter(|_| len <= 10)?, &bytes[len..]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fmt::Write;

    proptest! {
        /// Short and long keys, dense and sparse, with and without values, in parts; all columns,
        /// and every other one.
        #[test]
        fn columns_are_those_of_the_examples(
            rows in prop::collection::vec(
                prop::collection::btree_map((0_u64..40, 0_u8..5), 1_u8..3, 0..6), 0..30),
            wide in 0_u8..5,
            parts in 1_usize..4,
        ) {
            let key = |(low, high): (u64, u8)| if high < wide { low } else { low << (high * 10) };
            let lines: Vec<String> = rows.iter().map(|row| {
                let mut entries: BTreeMap<u64, u8> = Default::default();
                row.iter().for_each(|(&at, &value)| { entries.insert(key(at), value); });
                entries.iter().fold("1".to_owned(), |mut line, (key, value)| {
                    write!(line, " {key}:{value}").unwrap();
                    line
                }) + "\n"
            }).collect();
            let parse = |lines: &[String]| data::parse("t".as_ref(), lines.concat().as_bytes()).unwrap();
            let mut packed = PackedRows::default();
            for part in lines.chunks(lines.len().div_ceil(parts).max(1)) {
                packed.append(&PackedRows::from(&parse(part)));
            }
            let examples = parse(&lines);
            let mut expected = BTreeMap::<u64, Vec<(u32, f64)>>::new();
            for (row, entries) in examples.iter().enumerate() {
                for (at, &key) in entries.keys.iter().enumerate() {
                    let value = entries.values.map_or(1.0, |values| values[at]);
                    expected.entry(key).or_default().push((row as u32, value));
                }
            }
            prop_assert!(packed.is_sound());
            let labels: Vec<f64> = packed.labels().iter().map(|&label| label.into()).collect();
            prop_assert_eq!(&labels, &examples.labels);
            prop_assert_eq!(packed.nonzeros(), examples.nonzeros());
            let all = packed.distinct_keys();
            prop_assert!(all.iter().eq(expected.keys()));
            prop_assert_eq!(packed.key_range(), all.first().copied().zip(all.last().copied()));
            for keys in [all.clone(), all.iter().copied().step_by(2).collect()] {
                let columns = packed.clone().into_columns(keys.clone()).unwrap();
                let found = (0..columns.columns()).map(|at| {
                    let (rows, values) = columns.column(at);
                    let value = |i: usize| values.map_or(1.0, |values| values[i]);
                    let entries = rows.iter().enumerate().map(|(i, &row)| (row, value(i)));
                    (columns.keys().get(at), entries.collect::<Vec<_>>())
                });
                expected.retain(|key, _| keys.contains(key));
                prop_assert!(found.eq(expected.clone()));
                let mut some = packed.clone();
                some.retain(&keys);
                prop_assert!(some.is_sound());
                prop_assert_eq!(some.distinct_keys(), keys.clone());
                prop_assert_eq!(some.into_columns(keys).unwrap(), columns);
            }
        }

        #[test]
        fn deltas_come_back(deltas in prop::collection::vec(any::<u64>(), 0..20), shift in 0_u32..64) {
            let mut bytes = Vec::new();
            deltas.iter().for_each(|delta| push_delta(&mut bytes, delta >> shift));
            let (mut all, mut rest) = (bytes.iter(), &bytes[..]);
            for delta in deltas {
                prop_assert_eq!(next_delta(&mut all), delta >> shift);
                let (found, behind) = checked_delta(rest).unwrap();
                prop_assert_eq!(found, delta >> shift);
                rest = behind;
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn keys_come_back(keys in prop::collection::btree_set(any::<u64>(), 0..20), shift in 0_u32..64) {
            let keys: std::collections::BTreeSet<u64> = keys.iter().map(|key| key >> shift).collect();
            let mut found = vec![7];
            unpack_keys(&pack_keys(keys.iter().copied()), &mut found).unwrap();
            prop_assert!(found[1..].iter().eq(&keys) && found[0] == 7);
        }

        #[test]
        fn no_bytes_panic(lengths in prop::collection::vec(0_u32..4, 0..5), deltas: Vec<u8>) {
            let nonzeros = lengths.iter().map(|length| *length as usize).sum();
            let labels = vec![1; lengths.len()];
            let rows = PackedRows { labels, lengths, deltas, nonzeros, ..Default::default() };
            let _ = rows.is_sound();
            rows.for_each(|_, _, _| {});
        }
    }

    #[test]
    fn near_keys_take_a_byte_each() {
        assert_eq!(pack_keys((1 << 40..).step_by(100).take(1000)).len(), 6 + 999);
        let cut = pack_keys([5, u64::MAX].into_iter());
        assert_eq!(unpack_keys(&cut[..cut.len() - 1], &mut Vec::new()), None);
        assert_eq!(unpack_keys(&[&cut[..], &[9]].concat(), &mut Vec::new()), None, "too large");
    }

    #[test]
    fn rows_that_are_not_sound_are_told() {
        let sound = PackedRows::from(&data::parse("t".as_ref(), b"1 3:1 300:1\n-1\n").unwrap());
        assert_eq!((sound.deltas.len(), sound.is_sound()), (3, true));
        let changes: [fn(&mut PackedRows); 7] = [
            |rows| rows.deltas.truncate(2),
            |rows| rows.deltas.push(1),
            |rows| rows.lengths[1] = 1,
            |rows| rows.deltas = vec![3, 0],
            |rows| rows.nonzeros = 3,
            |rows| rows.range = Some((3, 299)),
            |rows| rows.deltas = [vec![3], vec![0xff; 9], vec![1]].concat(),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut rows = sound.clone();
            change(&mut rows);
            assert!(!rows.is_sound(), "change {at}");
        }
        assert_eq!(checked_delta(&[0xff; 11]), None);
        assert_eq!(checked_delta(&[&[0xff; 10][..], &[1]].concat()), None);
        assert_eq!(checked_delta(&[&[0xff; 9][..], &[1]].concat()), Some((u64::MAX, &[][..])));
    }
}
