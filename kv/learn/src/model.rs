//! A linear model: its file, and its margins on rows. Not how it is trained.
//!
//! The file is text, `key<tab>weight` a line, nonzeros only, ascending by key; weights are in the shortest form that reads back
//! the same. Lines that start with `#` are comments. Parts written by several servers may be joined in any order.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;
use std::path::Path;

use crate::data::source::{Block, Blocks};
use crate::data::{Examples, Row, libsvm, parse_key, parse_value};
use crate::replace_file::Replacement;
use crate::{Error, Result};

/// Weights by key; what is not there is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Strictly ascending.
    keys: Vec<u64>,
    /// As many, finite and not 0.
    weights: Vec<f64>,
}

impl Model {
    /// Takes weights in any order; zeros are dropped.
    ///
    /// # Errors
    /// [`Error::BadWeight`] when one is not finite or a key occurs twice.
    pub fn new(mut weights: Vec<(u64, f64)>) -> Result<Self> {
        weights.sort_by_key(|&(key, _)| key);
        let bad = weights.iter().find(|(_, weight)| !weight.is_finite());
        let twice = weights.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|pair| &pair[1]);
        if let Some(&(key, weight)) = bad.or(twice) {
            return Err(Error::BadWeight { key, weight });
        }
        weights.retain(|&(_, weight)| weight != 0.0);
        let (keys, weights) = weights.into_iter().unzip();
        Ok(Self { keys, weights })
    }

    /// How many weights are not 0.
    pub fn nonzeros(&self) -> usize {
        self.keys.len()
    }

    /// The nonzero weights, ascending by key.
    pub fn iter(&self) -> impl Iterator<Item = (u64, f64)> {
        self.keys.iter().copied().zip(self.weights.iter().copied())
    }

    /// The weight of `key`.
    pub fn weight(&self, key: u64) -> f64 {
        self.keys.binary_search(&key).map_or(0.0, |at| self.weights[at])
    }

    /// The inner product of the weights and `row`: above 0 speaks for +1.
    pub fn margin(&self, row: Row<'_>) -> f64 {
        let (mut from, mut margin) = (0, 0.0);
        for (at, key) in row.keys.iter().enumerate() {
            // Both sides ascend: what lies before the last find is done with.
            match self.keys[from..].binary_search(key) {
                Ok(found) => {
                    margin +=
                        self.weights[from + found] * row.values.map_or(1.0, |values| values[at]);
                    from += found + 1;
                }
                Err(next) => from += next,
            }
        }
        margin
    }

    /// Writes the model to `path`, whole or not at all. Each line of `header` becomes a comment.
    ///
    /// # Errors
    /// [`Error::Write`]; then the file is as it was.
    pub fn write(&self, path: &Path, header: &str) -> Result<()> {
        let mut file = Replacement::create(path)?;
        for line in header.lines() {
            file.write(format!("# {line}\n").as_bytes())?;
        }
        let mut line = Vec::new();
        for (key, weight) in self.iter() {
            line.clear();
            writeln!(line, "{key}\t{weight:?}").expect("a Vec takes all that is written");
            file.write(&line)?;
        }
        file.commit()
    }

    /// Reads a model file, plain or compressed.
    ///
    /// # Errors
    /// [`Error::Syntax`] or [`Error::DuplicateWeight`] with the line, or what reading the file gave.
    pub fn read(path: &Path) -> Result<Self> {
        let mut weights = Vec::new();
        let mut lines = HashMap::new();
        for block in Blocks::new(vec![path.to_path_buf()]) {
            let block = block?;
            for (line, _, text) in block.numbered_rows() {
                let (key, weight) = parse_weight(&block, line, text)?;
                match lines.entry(key) {
                    Entry::Vacant(new) => new.insert(line),
                    Entry::Occupied(first) => {
                        let (path, first_line) = (path.to_path_buf(), *first.get());
                        return Err(Error::DuplicateWeight { path, line, first_line, key });
                    }
                };
                weights.push((key, weight));
            }
        }
        Self::new(weights)
    }
}

/// The margins of all rows, in order: `[rows]`.
pub fn predict(model: &Model, examples: &Examples) -> Vec<f64> {
    examples.iter().map(|row| model.margin(row)).collect()
}

fn parse_weight(block: &Block, line: u64, text: &[u8]) -> Result<(u64, f64)> {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let fault = |column: usize, expected| Error::Syntax {
        path: block.path.to_path_buf(),
        line,
        column: column + 1,
        found: libsvm::shorten(&text[column..]),
        expected,
    };
    let Some(tab) = memchr::memchr(b'\t', text) else {
        return Err(fault(0, "a key, a tab and a weight"));
    };
    let key = parse_key(&text[..tab]).ok_or_else(|| fault(0, "a key, then a tab"))?;
    let weight = parse_value(&text[tab + 1..]).ok_or_else(|| fault(tab + 1, "a finite weight"))?;
    Ok((key, weight))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::{Folder, gzip};
    use proptest::prelude::*;
    use std::fs;

    #[test]
    fn the_file_is_sorted_text_without_zeros() {
        let folder = Folder::new("model-file");
        let path = folder.path().join("m");
        let weights = vec![(u64::MAX, -0.1), (3, 1e-300), (9, 0.0), (0, 2.0)];
        let model = Model::new(weights).unwrap();
        model.write(&path, "dbpg lambda 1\nby a test").unwrap();
        let expected =
            "# dbpg lambda 1\n# by a test\n0\t2.0\n3\t1e-300\n18446744073709551615\t-0.1\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(Model::read(&path).unwrap(), model);
        let joined = folder.write("joined", &gzip(b"7\t1\r\n\n# part 2\n3\t-2.5\n8\t0\n"));
        assert_eq!(Model::read(&joined).unwrap(), Model::new(vec![(3, -2.5), (7, 1.0)]).unwrap());
        assert_eq!(Model::read(&folder.write("empty", b"")).unwrap(), Model::default());
    }

    #[test]
    fn bad_files_are_refused_with_the_line() {
        let folder = Folder::new("model-bad");
        for (text, message) in [
            ("1\t2\n# c\n1 2\n", "bad:3:1: found `1`, expected a key, a tab and a weight"),
            ("-1\t2\n", "bad:1:1: found `-1`, expected a key, then a tab"),
            ("12\tnan\n", "bad:1:4: found `nan`, expected a finite weight"),
            ("12\t1e999\n", "bad:1:4: found `1e999`, expected a finite weight"),
            ("12\t\n", "bad:1:4: found the end of the line, expected a finite weight"),
            ("12\t1\t2\n", "bad:1:4: found `1`, expected a finite weight"),
            ("5\t1\n6\t1\n5\t1\n", "bad:3: key 5 was already given in line 1"),
        ] {
            let error = Model::read(&folder.write("bad", text.as_bytes())).unwrap_err().to_string();
            assert!(error.contains(message), "{text:?}: {error}");
        }
        assert!(matches!(
            Model::new(vec![(1, 1.0), (1, 0.0)]),
            Err(Error::BadWeight { key: 1, .. })
        ));
        assert!(matches!(Model::new(vec![(2, f64::NAN)]), Err(Error::BadWeight { key: 2, .. })));
    }

    #[test]
    fn margins_are_inner_products() {
        let model = Model::new(vec![(2, 0.5), (5, -1.0), (u64::MAX, 4.0)]).unwrap();
        let text = b"+1 1:9 2:2 5:3 18446744073709551615:0.25\n-1\n-1 2:1 3:1\n";
        let examples = libsvm::parse(Path::new("t"), text).unwrap();
        assert_eq!(predict(&model, &examples), [-1.0, 0.0, 0.5]);
        assert_eq!((model.weight(5), model.weight(6), model.nonzeros()), (-1.0, 0.0, 3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_reads_back(
            weights in prop::collection::btree_map(any::<u64>(), proptest::num::f64::NORMAL, 0..20),
            header in ".{0,40}",
        ) {
            let folder = Folder::new("model-round-trip");
            let path = folder.path().join("m");
            let model = Model::new(weights.into_iter().collect()).unwrap();
            model.write(&path, &header).unwrap();
            prop_assert_eq!(Model::read(&path).unwrap(), model);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let folder = Folder::new("model-bytes");
            let _ = Model::read(&folder.write("m", &bytes));
        }

        #[test]
        fn a_margin_is_the_sum_over_the_row(
            weights in prop::collection::btree_map(0_u64..50, 1_i32..100, 0..30),
            row in prop::collection::btree_map(0_u64..50, 1_i32..100, 0..30),
        ) {
            let expected: i32 = row.iter().map(|(key, value)| value * weights.get(key).unwrap_or(&0)).sum();
            let model = Model::new(weights.into_iter().map(|(key, weight)| (key, f64::from(weight))).collect()).unwrap();
            let keys: Vec<u64> = row.keys().copied().collect();
            let values: Vec<f64> = row.values().map(|&value| f64::from(value)).collect();
            let row = Row { label: 1, keys: &keys, values: Some(&values) };
            prop_assert_eq!(model.margin(row), f64::from(expected));
        }
    }
}
