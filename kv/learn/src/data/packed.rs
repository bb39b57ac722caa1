//! Rows on their way to columns: what training keeps of a file while it is read.
//!
//! [`Examples`] suit whoever wants rows. Training wants columns, and may hold no more than the data twice on the way there:
//! keys are kept in 32 bits while they fit, and where they are about as dense as the entries are counted in a plain array
//! instead of a hash table.
//!
//! Path: source > libsvm > **gather** > `Columns`.

use super::{Columns, Examples, check_count, number_keys};
use crate::Result;

/// Keys up to so many times the number of entries are counted in an array: 4 bytes each, less than an entry's own.
const ARRAY_PER_ENTRY: u64 = 1;

/// Keys up to this one are in any case.
const ARRAY_MIN: u64 = 1 << 16;

/// Rows so far.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    labels: Vec<i8>,
    /// Entries of each row.
    lengths: Vec<u32>,
    keys: Keys,
    values: Option<Vec<f64>>,
}

#[derive(Debug)]
enum Keys {
    Short(Vec<u32>),
    Long(Vec<u64>),
}

impl Default for Keys {
    fn default() -> Self {
        Keys::Short(Vec::new())
    }
}

impl Keys {
    fn len(&self) -> usize {
        match self {
            Keys::Short(keys) => keys.len(),
            Keys::Long(keys) => keys.len(),
        }
    }

    fn extend(&mut self, more: &[u64]) {
        let fits = more.iter().all(|&key| key <= u64::from(u32::MAX));
        match self {
            Keys::Short(keys) if fits => keys.extend(more.iter().map(|&key| key as u32)),
            Keys::Short(keys) => {
                let widened = keys.iter().map(|&key| u64::from(key)).chain(more.iter().copied());
                *self = Keys::Long(widened.collect());
            }
            Keys::Long(keys) => keys.extend_from_slice(more),
        }
    }
}

impl Gather {
    /// Adds rows after those that are here.
    pub(crate) fn append(&mut self, part: &Examples) {
        let lengths = part.row_starts.windows(2).map(|row| (row[1] - row[0]) as u32);
        match (&mut self.values, &part.values) {
            (None, None) => {}
            (Some(values), Some(more)) => values.extend_from_slice(more),
            (Some(values), None) => values.resize(values.len() + part.keys.len(), 1.0),
            (values @ None, Some(more)) => {
                let mut all = vec![1.0; self.keys.len()];
                all.extend_from_slice(more);
                *values = Some(all);
            }
        }
        self.labels.extend_from_slice(&part.labels);
        self.lengths.extend(lengths);
        self.keys.extend(&part.keys);
    }

    /// The labels, and the entries column by column. Linear in the entries.
    ///
    /// # Errors
    /// [`crate::Error::TooMany`] from 2^32 rows or columns on.
    pub(crate) fn into_columns(self) -> Result<(Vec<i8>, Columns)> {
        check_count("rows", self.labels.len())?;
        let Gather { labels, lengths, keys, values } = self;
        let numbered = match keys {
            Keys::Short(keys) => number_short(keys)?,
            Keys::Long(mut keys) => {
                let (seen, counts) = number_keys(&mut keys)?;
                let ids = keys.iter().map(|&id| id as u32).collect();
                drop(keys);
                sort_numbers(ids, &seen, &counts)
            }
        };
        Ok((labels, transpose(numbered, &lengths, values)))
    }
}

/// Entries whose keys have been replaced by numbers of columns, in the order of some table.
struct Numbered {
    /// `[entries]`: places in `next`.
    ids: Vec<u32>,
    /// Where the next entry of each id goes.
    next: Vec<usize>,
    /// As in [`Columns`].
    keys: Vec<u64>,
    starts: Vec<usize>,
}

fn number_short(keys: Vec<u32>) -> Result<Numbered> {
    let largest = u64::from(keys.iter().copied().max().unwrap_or(0));
    if largest > ARRAY_MIN.max(ARRAY_PER_ENTRY * keys.len() as u64) {
        let mut keys: Vec<u64> = keys.into_iter().map(u64::from).collect();
        let (seen, counts) = number_keys(&mut keys)?;
        let ids = keys.iter().map(|&id| id as u32).collect();
        drop(keys);
        return Ok(sort_numbers(ids, &seen, &counts));
    }
    let mut next = vec![0_usize; largest as usize + 1];
    keys.iter().for_each(|&key| next[key as usize] += 1);
    let columns = next.iter().filter(|&&count| count > 0).count();
    let (mut found, mut starts) = (Vec::with_capacity(columns), Vec::with_capacity(columns + 1));
    let mut end = 0;
    for (key, place) in next.iter_mut().enumerate() {
        let count = std::mem::replace(place, end);
        if count > 0 {
            found.push(key as u64);
            starts.push(end);
            end += count;
        }
    }
    starts.push(end);
    Ok(Numbered { ids: keys, next, keys: found, starts })
}

/// From ids in order of first sight, each one's key, and how often it occurs.
fn sort_numbers(ids: Vec<u32>, seen: &[u64], counts: &[usize]) -> Numbered {
    let mut order: Vec<u32> = (0..seen.len() as u32).collect();
    order.sort_unstable_by_key(|&id| seen[id as usize]);
    let mut next = vec![0; seen.len()];
    let mut starts = Vec::with_capacity(seen.len() + 1);
    let mut end = 0;
    for &id in &order {
        starts.push(end);
        next[id as usize] = end;
        end += counts[id as usize];
    }
    starts.push(end);
    let keys = order.into_iter().map(|id| seen[id as usize]).collect();
    Numbered { ids, next, keys, starts }
}

fn transpose(numbered: Numbered, lengths: &[u32], values: Option<Vec<f64>>) -> Columns {
    let Numbered { ids, mut next, keys, starts } = numbered;
    let mut rows = vec![0; ids.len()];
    let mut sorted = values.as_ref().map(|values| vec![0.0; values.len()]);
    let mut at = 0;
    for (row, &length) in lengths.iter().enumerate() {
        let range = at..at + length as usize;
        at = range.end;
        for (offset, &id) in ids[range.clone()].iter().enumerate() {
            let place = &mut next[id as usize];
            rows[*place] = row as u32;
            if let (Some(to), Some(from)) = (&mut sorted, &values) {
                to[*place] = from[range.start + offset];
            }
            *place += 1;
        }
    }
    Columns { keys, starts, rows, values: sorted }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data;
    use proptest::prelude::*;
    use std::fmt::Write;

    proptest! {
        /// Short and long keys, dense and sparse, with and without values, in parts.
        #[test]
        fn columns_are_those_of_the_examples(
            rows in prop::collection::vec(
                prop::collection::btree_map((0_u64..40, 0_u8..5), 1_u8..3, 0..6), 0..30),
            wide in 0_u8..5,
            parts in 1_usize..4,
        ) {
            let key = |(low, high): (u64, u8)| if high < wide { low } else { low << (high * 10) };
            let lines: Vec<String> = rows.iter().map(|row| {
                let mut entries: std::collections::BTreeMap<u64, u8> = Default::default();
                row.iter().for_each(|(&at, &value)| { entries.insert(key(at), value); });
                entries.iter().fold("1".to_owned(), |mut line, (key, value)| {
                    write!(line, " {key}:{value}").unwrap();
                    line
                }) + "\n"
            }).collect();
            let parse = |lines: &[String]| data::parse("t".as_ref(), lines.concat().as_bytes()).unwrap();
            let mut gather = Gather::default();
            for part in lines.chunks(lines.len().div_ceil(parts).max(1)) {
                gather.append(&parse(part));
            }
            let examples = parse(&lines);
            let mut expected = std::collections::BTreeMap::<u64, Vec<(u32, f64)>>::new();
            for (row, entries) in examples.iter().enumerate() {
                for (at, &key) in entries.keys.iter().enumerate() {
                    let value = entries.values.map_or(1.0, |values| values[at]);
                    expected.entry(key).or_default().push((row as u32, value));
                }
            }
            let (labels, columns) = gather.into_columns().unwrap();
            prop_assert_eq!(labels, examples.labels);
            prop_assert_eq!(columns.starts.last(), Some(&columns.rows.len()));
            let found = (0..columns.columns()).map(|at| {
                let (rows, values) = columns.column(at);
                let value = |i: usize| values.map_or(1.0, |values| values[i]);
                let entries = rows.iter().enumerate().map(|(i, &row)| (row, value(i)));
                (columns.keys[at], entries.collect::<Vec<_>>())
            });
            prop_assert!(found.eq(expected));
        }
    }
}
