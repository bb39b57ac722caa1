//! Batches of rows, each with its distinct keys, so that a step pulls every weight once.

use crate::data::Examples;

/// Consecutive rows of a part.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Batch {
    /// Distinct keys of the rows, ascending.
    pub(crate) keys: Vec<u64>,
    labels: Vec<f64>,
    /// `[rows + 1]`.
    starts: Vec<u32>,
    /// `[nonzeros]`: positions among `keys`.
    places: Vec<u32>,
    /// `[nonzeros]`; `None` if all are 1.
    values: Option<Vec<f64>>,
}

impl Batch {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Positions among the keys of a row.
    pub(crate) fn places(&self, row: usize) -> impl Iterator<Item = usize> {
        let entries = self.starts[row] as usize..self.starts[row + 1] as usize;
        self.places[entries].iter().map(|&place| place as usize)
    }

    /// Each row: its label, and positions among the keys with their values.
    pub(crate) fn iter(
        &self,
    ) -> impl Iterator<Item = (f64, impl Iterator<Item = (usize, f64)> + Clone)> {
        self.labels.iter().zip(self.starts.windows(2)).map(|(label, ends)| {
            let entries = ends[0] as usize..ends[1] as usize;
            let entry = |at: usize| {
                (self.places[at] as usize, self.values.as_ref().map_or(1.0, |values| values[at]))
            };
            (*label, entries.map(entry))
        })
    }
}

/// Batches of rows that come in pieces.
#[derive(Debug)]
pub(crate) struct Batches {
    rows_max: usize,
    batches: Vec<Batch>,
    /// Rows that do not fill a batch.
    rest: Examples,
}

impl Batches {
    /// Batches of `rows_max` rows; the last may have fewer.
    pub(crate) fn new(rows_max: usize) -> Result<Self, String> {
        match rows_max {
            0 => Err("a batch has at least 1 row, not 0".to_owned()),
            _ => Ok(Batches { rows_max, batches: Vec::new(), rest: Examples::default() }),
        }
    }

    /// Adds rows. `finish` changes each new batch.
    pub(crate) fn add(
        &mut self,
        rows: &Examples,
        finish: impl Fn(&mut Batch) -> Result<(), String>,
    ) -> Result<(), String> {
        self.rest.append(rows);
        let mut first = 0;
        while self.rest.rows() - first >= self.rows_max {
            self.cut(first, first + self.rows_max, &finish)?;
            first += self.rows_max;
        }
        if first > 0 {
            self.rest = self.rest.tail(first);
        }
        Ok(())
    }

    /// Makes the rows that are left the last batch.
    pub(crate) fn end(
        &mut self,
        finish: impl Fn(&mut Batch) -> Result<(), String>,
    ) -> Result<(), String> {
        let rest = self.rest.rows();
        if rest > 0 {
            self.cut(0, rest, &finish)?;
        }
        self.rest = Examples::default();
        Ok(())
    }

    fn cut(
        &mut self,
        first: usize,
        end: usize,
        finish: &impl Fn(&mut Batch) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut batch = batch(&self.rest, first, end)?;
        finish(&mut batch)?;
        self.batches.push(batch);
        Ok(())
    }

    /// The batches so far.
    pub(crate) fn all(&self) -> &[Batch] {
        &self.batches
    }
}

fn batch(examples: &Examples, first: usize, end: usize) -> Result<Batch, String> {
    let rows = || (first..end).map(|row| examples.row(row));
    let entries: usize = rows().map(|row| row.keys.len()).sum();
    if u32::try_from(entries).is_err() {
        return Err(format!("a batch has {entries} entries, 2^32 or more: take fewer rows"));
    }
    let (keys, places) = placed(rows().flat_map(|row| row.keys.iter().copied()));
    let mut batch = Batch {
        labels: rows().map(|row| row.label).collect(),
        starts: vec![0],
        places,
        values: examples.values.as_ref().map(|_| Vec::with_capacity(entries)),
        keys,
    };
    let mut end = 0;
    for row in rows() {
        if let (Some(all), Some(values)) = (&mut batch.values, row.values) {
            all.extend_from_slice(values);
        }
        end += row.keys.len();
        batch.starts.push(end as u32);
    }
    Ok(batch)
}

/// Distinct keys, ascending, and the place of each given key among them. Entries are sorted with
/// their numbers, so that none of them has to be searched for.
fn placed<K: Ord + Copy>(keys: impl Iterator<Item = K>) -> (Vec<K>, Vec<u32>) {
    let mut entries: Vec<(K, u32)> = keys.zip(0..).collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    let mut places = vec![0; entries.len()];
    let mut distinct: Vec<K> = Vec::new();
    for (key, entry) in entries {
        if distinct.last() != Some(&key) {
            distinct.push(key);
        }
        places[entry as usize] = distinct.len() as u32 - 1;
    }
    (distinct, places)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::cell::Cell;
    use std::cmp::Ordering;

    use caravan_kv::filter::Draws;

    use super::*;
    use crate::data;

    /// The rows in one piece, and cut after `at` of them.
    fn cut(examples: &Examples, at: usize, rows_max: usize) -> Batches {
        let mut head = examples.clone();
        head.labels.truncate(at);
        head.row_starts.truncate(at + 1);
        head.keys.truncate(examples.row_starts[at]);
        head.values.iter_mut().for_each(|values| values.truncate(examples.row_starts[at]));
        let mut batches = Batches::new(rows_max).unwrap();
        for piece in [head, examples.tail(at)] {
            batches.add(&piece, |_| Ok(())).unwrap();
        }
        batches.end(|_| Ok(())).unwrap();
        batches
    }

    #[test]
    fn batches_hold_the_rows_with_each_key_once() {
        let text = b"+1 3:1 9:0.5\n-1 3:2\n+1 1:4 7:1 9:1\n";
        let examples = data::parse("t".as_ref(), text).unwrap();
        for rows in 1..5 {
            let whole = cut(&examples, 3, rows);
            assert_eq!(whole.all().len(), 3_usize.div_ceil(rows));
            for piece in 0..3 {
                assert_eq!(cut(&examples, piece, rows).all(), whole.all(), "in two pieces");
            }
            let mut at = 0;
            for batch in whole.all() {
                assert!(batch.keys.windows(2).all(|pair| pair[0] < pair[1]));
                for (label, entries) in batch.iter() {
                    let row = examples.row(at);
                    let found: Vec<(u64, f64)> =
                        entries.map(|(place, value)| (batch.keys[place], value)).collect();
                    let values = row.values.unwrap().iter().copied();
                    let expected: Vec<_> = row.keys.iter().copied().zip(values).collect();
                    assert_eq!((label, found), (row.label, expected));
                    at += 1;
                }
            }
            assert_eq!(at, 3);
        }
        assert!(Batches::new(0).is_err());
    }

    /// A key that counts how often it is compared.
    #[derive(Debug, Clone, Copy)]
    struct Counted<'a>(u64, &'a Cell<u64>);

    impl Counted<'_> {
        fn count(&self) {
            self.1.set(self.1.get() + 1);
        }
    }

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.count();
            self.0 == other.0
        }
    }

    impl Eq for Counted<'_> {}

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.count();
            self.0.cmp(&other.0)
        }
    }

    /// Goal: the thread that trains makes batches with little more than a sort of their keys; it
    /// makes them while others are read. Method: keys of rows, as distinct as those of click logs,
    /// count their comparisons; a search for each place would need as many again.
    #[test]
    fn a_batch_takes_one_sort_of_its_keys() {
        let compared = Cell::new(0);
        let mut draws = Draws::new(5, 0);
        let mut key = || (draws.next_unit() * 8000.0) as u64;
        let keys: Vec<u64> = (0..20_000).map(|_| key()).collect();
        let mut sorted: Vec<Counted<'_>> =
            keys.iter().map(|key| Counted(*key, &compared)).collect();
        sorted.sort_unstable();
        let sort = compared.replace(0);
        let (distinct, places) = placed(keys.iter().map(|key| Counted(*key, &compared)));
        let all = compared.get();
        println!("{all} comparisons, {sort} of a sort");
        assert!(all < sort + sort / 4, "{all} comparisons, {sort} of a sort");
        let found: Vec<u64> = places.iter().map(|place| distinct[*place as usize].0).collect();
        assert!(found == keys, "each key is at its place");
        assert!(distinct.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
