//! A model of rows: what the table of an algorithm held, with the algorithm's settings.
//!
//! A file is text: a head with JSON, a line `key<tab>value<tab>…` for each row, ascending by key,
//! and CRC32C of all lines before the last. Values are in the shortest form that reads back the
//! same.

use std::io::Write;
use std::path::Path;

use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};

use crate::data::source::Blocks;
use crate::data::{parse_key, parse_value};
use crate::replace_file::Replacement;
use crate::trainer::{Rows, Trained};
use crate::{Error, Result};

/// The beginning of the first line.
const HEAD: &[u8] = b"# caravan rows ";

/// The beginning of the last line.
const END: &[u8] = b"# crc32c ";

/// Rows by key, and what they mean.
#[derive(Debug, Clone, PartialEq)]
pub struct RowModel {
    /// The algorithm that trained them.
    pub algorithm: String,
    /// What is needed to use them, as the algorithm says.
    pub settings: serde_json::Value,
    /// The rows.
    pub rows: Rows<f64>,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    algorithm: String,
    width: usize,
    settings: serde_json::Value,
}

impl RowModel {
    /// The table of a run.
    pub fn new<V: Copy + Into<f64>>(
        algorithm: &str,
        settings: serde_json::Value,
        trained: &Trained<V>,
    ) -> Self {
        let Rows { keys, values, width } = &trained.rows;
        let values = values.iter().map(|&value| value.into()).collect();
        let rows = Rows { keys: keys.clone(), values, width: *width };
        RowModel { algorithm: algorithm.to_owned(), settings, rows }
    }

    /// Writes the model, whole or not at all.
    ///
    /// # Errors
    /// [`Error::BadWeight`] for a value that is not finite: training has diverged.
    /// [`Error::Write`]; then the file is unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        let bad = |(key, row): (u64, &[f64])| {
            row.iter().find(|value| !value.is_finite()).map(|&weight| (key, weight))
        };
        if let Some((key, weight)) = self.rows.iter().find_map(bad) {
            return Err(Error::BadWeight { key, weight });
        }
        let mut file = Replacement::create(path)?;
        let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let (algorithm, settings) = (self.algorithm.clone(), self.settings.clone());
        let head = Head { algorithm, width: self.rows.width, settings };
        let head = serde_json::to_string(&head).expect("names and numbers are JSON");
        let mut line = HEAD.to_vec();
        line.extend_from_slice(head.as_bytes());
        line.push(b'\n');
        let mut rows = self.rows.iter();
        loop {
            crc.update(&line);
            file.write(&line)?;
            let Some((key, row)) = rows.next() else { break };
            line.clear();
            write!(line, "{key}").expect("a Vec takes all that is written");
            for value in row {
                write!(line, "\t{value}").expect("a Vec takes all that is written");
            }
            line.push(b'\n');
        }
        file.write(END)?;
        file.write(format!("{:08x}\n", crc.finalize()).as_bytes())?;
        file.commit()
    }

    /// Whether a file begins as such a model.
    ///
    /// # Errors
    /// Those of reading.
    pub fn is_one(path: &Path) -> Result<bool> {
        let block = Blocks::new(vec![path.to_path_buf()]).next().transpose()?;
        Ok(block.is_some_and(|block| block.text.starts_with(HEAD)))
    }

    /// Reads a model, plain or compressed.
    ///
    /// # Errors
    /// [`Error::DamagedModel`] with the line; errors of reading.
    pub fn read(path: &Path) -> Result<Self> {
        let mut text = Vec::new();
        for block in Blocks::new(vec![path.to_path_buf()]) {
            text.extend_from_slice(&block?.text);
        }
        let model = parse(&text);
        model.map_err(|reason| Error::DamagedModel { path: path.to_path_buf(), reason })
    }
}

fn parse(text: &[u8]) -> std::result::Result<RowModel, String> {
    let mut lines = text.split_inclusive(|&byte| byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let head = first.strip_prefix(HEAD).ok_or("it has no head")?;
    let head: Head = serde_json::from_slice(head).map_err(|error| format!("line 1: {error}"))?;
    let Head { algorithm, width, settings } = head;
    if width == 0 {
        return Err("line 1: rows have at least 1 value, not 0".to_owned());
    }
    let mut rows = Rows { keys: Vec::new(), values: Vec::new(), width };
    let mut bytes = first.len();
    for (number, line) in (2..).zip(lines) {
        if let Some(sum) = line.strip_prefix(END) {
            let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
            crc.update(&text[..bytes]);
            let expected = format!("{:08x}", crc.finalize());
            if sum.trim_ascii_end() != expected.as_bytes() {
                return Err(format!("line {number} should end with {expected}"));
            }
            return match bytes + line.len() == text.len() {
                true => Ok(RowModel { algorithm, settings, rows }),
                false => Err(format!("there is more after line {number}")),
            };
        }
        bytes += line.len();
        add_row(&mut rows, line.trim_ascii_end()).ok_or_else(|| {
            format!("line {number} is no key above those before with {width} values")
        })?;
    }
    Err(format!("it ends after {} rows, without a checksum", rows.keys.len()))
}

fn add_row(rows: &mut Rows<f64>, line: &[u8]) -> Option<()> {
    let mut words = line.split(|&byte| byte == b'\t');
    let key = parse_key(words.next()?)?;
    if rows.keys.last().is_some_and(|&last| last >= key) {
        return None;
    }
    for word in words {
        rows.values.push(parse_value(word)?);
    }
    rows.keys.push(key);
    (Some(rows.values.len()) == rows.keys.len().checked_mul(rows.width)).then_some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::data::testing::Folder;

    proptest! {
        #[test]
        fn files_read_back_the_same_and_damage_is_noticed(
            rows in prop::collection::btree_map(any::<u64>(), prop::array::uniform2(proptest::num::f64::NORMAL), 0..9),
            at: prop::sample::Index,
            change in 1_u8..=255,
            bytes: Vec<u8>,
        ) {
            let folder = Folder::new("row-model");
            let path = folder.path().join("m");
            let (keys, values): (Vec<u64>, Vec<[f64; 2]>) = rows.into_iter().unzip();
            let rows = Rows { keys, values: values.concat(), width: 2 };
            let settings = serde_json::json!({"alpha": 0.1});
            let model = RowModel { algorithm: "a".to_owned(), settings, rows };
            model.write(&path).unwrap();
            prop_assert!(RowModel::is_one(&path).unwrap());
            prop_assert_eq!(&RowModel::read(&path).unwrap(), &model);
            let whole = fs::read(&path).unwrap();
            let mut changed = whole.clone();
            changed[at.index(whole.len() - 1)] ^= change;
            for bytes in [&changed[..], &whole[..at.index(whole.len() - 1)]] {
                let read = RowModel::read(&folder.write("damaged", bytes));
                prop_assert!(read.is_err(), "{:?}", read);
            }
            let _ = RowModel::read(&folder.write("bytes", &[HEAD, &bytes].concat()));
        }
    }
}
