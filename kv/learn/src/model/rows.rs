//! A model of rows: what the table of an algorithm held, with the algorithm's settings.
//!
//! A file is text: a head with JSON, a line `key<tab>value<tab>…` for each row, ascending by key,
//! and CRC32C of all lines before the last. Values are in the shortest form that reads back the
//! same.

use std::io::Write;
use std::path::Path;

use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};

use super::text;
use crate::data::source::LINE_BYTES_MAX;
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
        let block = text(path)?.next().transpose()?;
        Ok(block.is_some_and(|block| block.text.starts_with(HEAD)))
    }

    /// Reads a model, plain or compressed.
    ///
    /// # Errors
    /// [`Error::DamagedModel`] with the line; errors of reading.
    pub fn read(path: &Path) -> Result<Self> {
        let damaged = |reason| Error::DamagedModel { path: path.to_path_buf(), reason };
        let mut reading = Reading::default();
        for block in text(path)? {
            for line in block?.text.split_inclusive(|&byte| byte == b'\n') {
                reading.add(line).map_err(damaged)?;
            }
        }
        reading.end().map_err(damaged)
    }
}

/// Most values of a row, each of which takes two bytes of a line.
const WIDTH_MAX: usize = LINE_BYTES_MAX / 2;

/// A model of which some lines were read.
#[derive(Default)]
struct Reading {
    /// Since the first line.
    model: Option<RowModel>,
    /// Of the lines before the last.
    crc: Option<Digest>,
    lines: u64,
}

impl Reading {
    /// Reads one more line, with its end.
    fn add(&mut self, line: &[u8]) -> std::result::Result<(), String> {
        self.lines += 1;
        let number = self.lines;
        let Some(model) = &mut self.model else {
            let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
            crc.update(line);
            self.model = Some(begin(line)?);
            self.crc = Some(crc);
            return Ok(());
        };
        let Some(mut crc) = self.crc.take() else {
            return Err(format!("there is more after line {}", number - 1));
        };
        if let Some(sum) = line.strip_prefix(END) {
            let expected = format!("{:08x}", crc.finalize());
            return match sum.trim_ascii_end() == expected.as_bytes() {
                true => Ok(()),
                false => Err(format!("line {number} should end with {expected}")),
            };
        }
        crc.update(line);
        self.crc = Some(crc);
        let width = model.rows.width;
        add_row(&mut model.rows, line.trim_ascii_end()).ok_or_else(|| {
            format!("line {number} is no key above those before with {width} values")
        })
    }

    /// The model, once all lines were read.
    fn end(self) -> std::result::Result<RowModel, String> {
        let model = self.model.ok_or("it has no head")?;
        match self.crc {
            None => Ok(model),
            Some(_) => {
                let rows = model.rows.keys.len();
                Err(format!("it ends after {rows} rows, without a checksum"))
            }
        }
    }
}

/// The model without rows of this first line.
fn begin(line: &[u8]) -> std::result::Result<RowModel, String> {
    let head = line.strip_prefix(HEAD).ok_or("it has no head")?;
    let head: Head = serde_json::from_slice(head).map_err(|error| format!("line 1: {error}"))?;
    let Head { algorithm, width, settings } = head;
    if !(1..=WIDTH_MAX).contains(&width) {
        return Err(format!("line 1: rows have 1 to {WIDTH_MAX} values, not {width}"));
    }
    let rows = Rows { keys: Vec::new(), values: Vec::new(), width };
    Ok(RowModel { algorithm, settings, rows })
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

    /// What a head claims takes no memory.
    #[test]
    fn a_width_without_rows_is_only_a_number() {
        let folder = Folder::new("row-model-width");
        let model = |width: u64| {
            let head = format!(r#"{{"algorithm":"fm","width":{width},"settings":{{}}}}"#);
            let text = [HEAD, head.as_bytes(), b"\n"].concat();
            let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
            crc.update(&text);
            let end = format!("{:08x}\n", crc.finalize());
            RowModel::read(&folder.write("m", &[&text[..], END, end.as_bytes()].concat()))
        };
        for width in [0, WIDTH_MAX as u64 + 1, 1 << 31, u64::MAX] {
            let said = model(width).unwrap_err().to_string();
            assert!(said.contains(&format!("1 to 33554432 values, not {width}")), "{said}");
        }
        let widest = model(WIDTH_MAX as u64).unwrap();
        let examples = crate::data::parse(Path::new("t"), b"+1 1:1\n").unwrap();
        assert_eq!(crate::fm::margins(&widest, &examples), [0.0]);
    }

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
