//! A linear model: its file, and its margins on rows; and models of rows of any meaning. Training
//! is elsewhere.
//!
//! A file is [text](Format::Text), which people can read and tools can join and compress, or
//! [binary](Format::Binary), a third of the size. Both hold every weight to the bit and a checksum;
//! the first bytes tell which one a file is.

mod binary;
mod rows;
mod text;

use std::io::{Read, Write};
use std::path::Path;

pub use self::rows::RowModel;
use crate::data::source::{Block, Blocks};
use crate::data::{Examples, Input, Row};
use crate::replace_file::Replacement;
use crate::{Error, Result};

/// Format of a model file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Lines `key<tab>weight`, none 0, ascending by key, each weight in the shortest form that
    /// reads back the same; before them `intercept<tab>weight`, if there is one. Lines that begin
    /// with `#` are comments, the last of which has the checksum. Parts written by several servers
    /// may be joined in any order.
    #[default]
    Text,
    /// Little-endian numbers: a head of 40 bytes, the comment, the keys, the weights, and CRC32C of
    /// everything before.
    Binary,
}

impl Format {
    /// The format for the name of a file: binary for `.bin`, else text.
    pub fn of(path: &Path) -> Self {
        let binary = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("bin"));
        if binary { Format::Binary } else { Format::Text }
    }
}

/// Weights by key; missing ones are 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Strictly ascending.
    keys: Vec<u64>,
    /// As many, finite and not 0.
    weights: Vec<f64>,
    /// Added to every margin; finite.
    intercept: f64,
}

impl Model {
    /// Creates a model from weights in any order; drops zeros.
    ///
    /// # Errors
    /// [`Error::BadWeight`] if one is not finite or a key occurs twice.
    pub fn new(mut weights: Vec<(u64, f64)>) -> Result<Self> {
        weights.sort_by_key(|&(key, _)| key);
        let bad = weights.iter().find(|(_, weight)| !weight.is_finite());
        let twice = weights.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|pair| &pair[1]);
        if let Some(&(key, weight)) = bad.or(twice) {
            return Err(Error::BadWeight { key, weight });
        }
        weights.retain(|&(_, weight)| weight != 0.0);
        let (keys, weights) = weights.into_iter().unzip();
        Ok(Self { keys, weights, intercept: 0.0 })
    }

    /// The same model with an intercept, which is added to every margin.
    ///
    /// # Errors
    /// [`Error::BadIntercept`] if it is not finite.
    pub fn with_intercept(self, intercept: f64) -> Result<Self> {
        if !intercept.is_finite() {
            return Err(Error::BadIntercept { intercept });
        }
        Ok(Self { intercept, ..self })
    }

    /// Number of non-zero weights, without the intercept.
    pub fn nonzeros(&self) -> usize {
        self.keys.len()
    }

    /// The non-zero weights, ascending by key, without the intercept.
    pub fn iter(&self) -> impl Iterator<Item = (u64, f64)> {
        self.keys.iter().copied().zip(self.weights.iter().copied())
    }

    /// The weight of `key`.
    pub fn weight(&self, key: u64) -> f64 {
        self.keys.binary_search(&key).map_or(0.0, |at| self.weights[at])
    }

    /// Added to every margin; 0 for a model without intercept.
    pub fn intercept(&self) -> f64 {
        self.intercept
    }

    /// The inner product of the weights and `row`, plus the intercept; above 0 predicts +1.
    pub fn margin(&self, row: Row<'_>) -> f64 {
        let mut from = 0;
        let mut margin = self.intercept;
        for (at, key) in row.keys.iter().enumerate() {
            // Both sides ascend, so nothing before the last match is needed any more.
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

    /// Writes the model to `path`, whole or not at all, with a comment about its origin.
    ///
    /// # Errors
    /// [`Error::Write`]; then the file is unchanged.
    pub fn write(&self, path: &Path, format: Format, comment: &str) -> Result<()> {
        let file = Replacement::create(path)?;
        match format {
            Format::Text => text::write(self, file, comment),
            Format::Binary => binary::write(self, file, comment),
        }
    }

    /// Reads a model file: text, plain or compressed, or binary.
    ///
    /// # Errors
    /// [`Error::Syntax`] or [`Error::DuplicateWeight`] with the line; [`Error::DamagedModel`] if it
    /// is incomplete or was changed; errors of reading.
    pub fn read(path: &Path) -> Result<Self> {
        if is_binary(path)? { binary::read(path) } else { text::read(path) }
    }
}

/// Whether a file begins like binary models.
fn is_binary(path: &Path) -> Result<bool> {
    let mut head = Vec::new();
    Input::open_plain(path)?
        .take(binary::MAGIC.len() as u64)
        .read_to_end(&mut head)
        .map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
    Ok(head == binary::MAGIC)
}

/// Bytes of text that any compressed model may hold.
const TEXT_BYTES: u64 = 64 << 20;

/// Bytes of text for each byte of a compressed model, if that is more.
const TEXT_FACTOR: u64 = 16;

/// The text of a model, plain or compressed, some whole lines at a time. A file that is not
/// compressed holds what is read of it; a short one that is could hold any amount.
fn text(path: &Path) -> Result<impl Iterator<Item = Result<Block>>> {
    let input = Input::open_plain(path)?;
    let bytes = input.total_bytes();
    let bytes = bytes.map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
    let bytes_max = bytes.saturating_mul(TEXT_FACTOR).max(TEXT_BYTES);
    let path = path.to_path_buf();
    let blocks = Blocks::of_input(&path, input)?;
    let mut read = 0;
    Ok(blocks.map(move |block| {
        let block = block?;
        read += block.text.len() as u64;
        match read <= bytes_max {
            true => Ok(block),
            false => Err(Error::LongModel { path: path.clone(), bytes, bytes_max }),
        }
    }))
}

/// The margins of all rows, in order: `[rows]`.
pub fn predict(model: &Model, examples: &Examples) -> Vec<f64> {
    examples.iter().map(|row| model.margin(row)).collect()
}

/// Writes predictions, a line a row: label, probability of +1, margin, separated by tabs. `margins:
/// [rows]`.
///
/// # Errors
/// [`Error::Write`]; then the file is unchanged.
pub fn write_predictions(path: &Path, margins: &[f64]) -> Result<()> {
    let mut file = Replacement::create(path)?;
    let mut line = Vec::new();
    for margin in margins {
        line.clear();
        let label = if *margin > 0.0 { "+1" } else { "-1" };
        let probability = 1.0 / (1.0 + (-margin).exp());
        writeln!(line, "{label}\t{probability}\t{margin}")
            .expect("a Vec takes all that is written");
        file.write(&line)?;
    }
    file.commit()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::Folder;
    use proptest::prelude::*;
    use std::fs;

    #[test]
    fn bad_weights_are_no_model() {
        assert!(matches!(
            Model::new(vec![(1, 1.0), (1, 0.0)]),
            Err(Error::BadWeight { key: 1, .. })
        ));
        assert!(matches!(Model::new(vec![(2, f64::NAN)]), Err(Error::BadWeight { key: 2, .. })));
        let bad = Model::default().with_intercept(f64::INFINITY);
        assert!(matches!(bad, Err(Error::BadIntercept { .. })));
    }

    #[test]
    fn only_plain_files_are_models() {
        let folder = Folder::new("model-pipe");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&pipe, Path::new("/dev/zero")] {
            let (row_model, model) = (RowModel::is_one(path).map(drop), Model::read(path));
            for read in [row_model, RowModel::read(path).map(drop), model.map(drop)] {
                let said = caravan_kv::error::with_sources(&read.unwrap_err());
                assert!(said.contains("name a plain file"), "{said}");
            }
        }
    }

    #[test]
    fn the_ending_names_the_format() {
        for (name, format) in
            [("m", Format::Text), ("m.BIN", Format::Binary), ("bin", Format::Text)]
        {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }

    #[test]
    fn margins_are_inner_products() {
        let model = Model::new(vec![(2, 0.5), (5, -1.0), (u64::MAX, 4.0)]).unwrap();
        let text = b"+1 1:9 2:2 5:3 18446744073709551615:0.25\n-1\n-1 2:1 3:1\n";
        let examples = crate::data::parse(Path::new("t"), text).unwrap();
        assert_eq!(predict(&model, &examples), [-1.0, 0.0, 0.5]);
        assert_eq!((model.weight(5), model.weight(6), model.nonzeros()), (-1.0, 0.0, 3));
        let model = model.with_intercept(0.25).unwrap();
        assert_eq!(predict(&model, &examples), [-0.75, 0.25, 0.75]);
    }

    #[test]
    fn predictions_are_a_line_a_row() {
        let folder = Folder::new("predictions");
        let path = folder.path().join("p");
        write_predictions(&path, &[0.0, 1e3, -1e3, -0.5]).unwrap();
        let expected = "-1\t0.5\t0\n+1\t1\t1000\n-1\t0\t-1000\n-1\t0.3775406687981454\t-0.5\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_reads_back(
            weights in prop::collection::btree_map(any::<u64>(), proptest::num::f64::NORMAL, 0..20),
            intercept in prop_oneof![Just(0.0), -1e300..1e300],
            comment in ".{0,40}",
        ) {
            let folder = Folder::new("model-round-trip");
            let path = folder.path().join("m");
            let model = Model::new(weights.into_iter().collect()).unwrap();
            let model = model.with_intercept(intercept).unwrap();
            for format in [Format::Text, Format::Binary] {
                model.write(&path, format, &comment).unwrap();
                prop_assert_eq!(&Model::read(&path).unwrap(), &model);
            }
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let folder = Folder::new("model-bytes");
            let _ = Model::read(&folder.write("m", &bytes));
            let _ = Model::read(&folder.write("m", &[&binary::MAGIC[..], &bytes].concat()));
        }

        /// Any changed byte and any truncation is noticed.
        #[test]
        fn damage_is_noticed(
            weights in prop::collection::btree_map(any::<u64>(), proptest::num::f64::NORMAL, 1..20),
            at: prop::sample::Index,
            change in 1_u8..=255,
        ) {
            let folder = Folder::new("model-damage");
            let path = folder.path().join("m");
            let model = Model::new(weights.into_iter().collect()).unwrap();
            for format in [Format::Text, Format::Binary] {
                model.write(&path, format, "x").unwrap();
                let whole = fs::read(&path).unwrap();
                let mut changed = whole.clone();
                changed[at.index(whole.len())] ^= change;
                for bytes in [&changed[..], &whole[..at.index(whole.len())]] {
                    // In text, a changed comment or a short one changes nothing, and no text at all
                    // is a model too.
                    let read = Model::read(&folder.write("damaged", bytes));
                    let fine = read.as_ref().is_ok_and(|read| *read == model || bytes.len() < 6);
                    let text = format == Format::Text || bytes.is_empty();
                    prop_assert!(read.is_err() || text && fine, "{read:?}");
                }
            }
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
            let row = Row { label: 1.0, keys: &keys, values: Some(&values) };
            prop_assert_eq!(model.margin(row), f64::from(expected));
        }
    }
}
