//! Feature groups: slots or fields named by the leading bits of a key.
//!
//! In most groups an example has at most one feature, so that columns of such a group share no row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Columns, PackedRows};

/// Most leading bits that can name a group, because groups are counted in an array.
pub(crate) const BITS_MAX: u32 = 16;

/// Counts of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    number: u32,
    /// Rows that have any of its features.
    pub(crate) rows: u64,
    pub(crate) nonzeros: u64,
    /// Smallest and largest key.
    pub(crate) keys: (u64, u64),
}

/// Groups by number, if they have features: `[2^bits]`.
struct Counts {
    bits: u32,
    groups: Vec<Option<Group>>,
}

impl Counts {
    fn new(bits: u32) -> Self {
        Counts { bits, groups: vec![None; 1 << bits] }
    }

    fn number(&self, key: u64) -> u32 {
        (key >> (u64::BITS - self.bits)) as u32
    }

    /// Adds a feature of a group with `nonzeros` entries, `rows` of them in rows without an earlier
    /// feature of the group.
    fn add(&mut self, number: u32, key: u64, rows: u64, nonzeros: u64) {
        let new = Group { number, rows: 0, nonzeros: 0, keys: (key, key) };
        self.groups[number as usize].get_or_insert(new).join(rows, nonzeros, (key, key));
    }

    fn known(self) -> Vec<Group> {
        self.groups.into_iter().flatten().collect()
    }
}

impl Group {
    /// A group of which `rows` rows have any feature.
    #[cfg(test)]
    pub(crate) fn new(number: u32, rows: u64, nonzeros: u64, keys: (u64, u64)) -> Self {
        Group { number, rows, nonzeros, keys }
    }

    fn join(&mut self, rows: u64, nonzeros: u64, keys: (u64, u64)) {
        self.rows += rows;
        self.nonzeros += nonzeros;
        self.keys = (self.keys.0.min(keys.0), self.keys.1.max(keys.1));
    }
}

/// The groups of rows, by the number in their `bits` leading bits (1 to [`BITS_MAX`]).
pub(crate) fn of_rows(rows: &PackedRows, bits: u32) -> Vec<Group> {
    let mut counts = Counts::new(bits);
    let mut last = None;
    rows.for_each(|row, key, _| {
        // A row's keys are in order, so those of a group are adjacent.
        let at = (row, counts.number(key));
        let is_first = last.replace(at) != Some(at);
        counts.add(at.1, key, is_first.into(), 1);
    });
    counts.known()
}

/// As [`of_rows`], for `rows` rows that have become columns.
pub(crate) fn of_columns(columns: &Columns, rows: usize, bits: u32) -> Vec<Group> {
    let mut counts = Counts::new(bits);
    let mut last = None;
    let mut seen = vec![false; rows];
    for (column, key) in columns.keys().iter().enumerate() {
        let number = counts.number(key);
        if last.replace(number) != Some(number) {
            seen.fill(false);
        }
        let (of, _) = columns.column(column);
        let new = of.iter().filter(|&&row| !std::mem::replace(&mut seen[row as usize], true));
        counts.add(number, key, new.count() as u64, of.len() as u64);
    }
    counts.known()
}

/// The groups of all workers, by number.
pub(crate) fn of_all(counted: Vec<Group>) -> impl Iterator<Item = Group> {
    let mut all = BTreeMap::<u32, Group>::new();
    for group in counted {
        all.entry(group.number)
            .and_modify(|sum| sum.join(group.rows, group.nonzeros, group.keys))
            .or_insert(group);
    }
    all.into_values()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::testing::Folder;
    use crate::data::{self, Shard};

    fn key(group: u64, key: u64) -> u64 {
        group << 60 | key
    }

    /// Group 1 has at most one feature per row, group 3 up to three, and the others none.
    fn rows(numbers: std::ops::Range<u64>) -> PackedRows {
        let row = |n: u64| {
            let bag = (0..n % 4).map(|k| key(3, 10 * k + n));
            let single = (!n.is_multiple_of(5)).then(|| key(1, n % 7));
            let words = single.into_iter().chain(bag).map(|key| format!(" {key}:1"));
            format!("1{}\n", words.collect::<String>())
        };
        let folder = Folder::new(&format!("groups-{:?}", std::thread::current().id()));
        let file = folder.write("rows", numbers.map(row).collect::<String>().as_bytes());
        let one = std::num::NonZeroUsize::MIN;
        data::read_packed(&[file], Shard::new(0, 1).expect("one of one"), one, None)
            .expect("it is well formed")
    }

    #[test]
    fn rows_and_columns_have_the_same_groups() {
        for bits in [1, 4, BITS_MAX] {
            let rows = rows(0..100);
            let (groups, keys) = (of_rows(&rows, bits), rows.distinct_keys());
            let columns = rows.into_columns(keys).expect("there are few");
            assert_eq!(of_columns(&columns, 100, bits), groups, "{bits}");
        }
        let groups = of_rows(&rows(0..100), 4);
        let single = Group { number: 1, rows: 80, nonzeros: 80, keys: (key(1, 0), key(1, 6)) };
        let bag = Group { number: 3, rows: 75, nonzeros: 150, keys: (key(3, 1), key(3, 119)) };
        assert_eq!(groups, [single, bag]);
    }

    #[test]
    fn groups_are_the_same_however_rows_are_shared_out() {
        let counted = [0..30, 30..40, 40..100].map(|numbers| of_rows(&rows(numbers), 4));
        let all: Vec<Group> = of_all(counted.concat()).collect();
        assert_eq!(all, of_rows(&rows(0..100), 4));
    }
}
