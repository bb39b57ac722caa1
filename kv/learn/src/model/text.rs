//! Models as text.
//!
//! The checksum covers the numbers between it and the head before it, not their spelling.

use std::io::Write;
use std::path::Path;

use crc_fast::{CrcAlgorithm, Digest};

use super::Model;
use crate::data::{libsvm, parse_key, parse_value};
use crate::replace_file::Replacement;
use crate::{Error, Result};

/// First line of a model, or of a part of one, that ends with a checksum.
const HEAD: &str = "# caravan model";

/// A line with at least this many bytes of the head is a truncated head.
const SURELY_HEAD: usize = 6;

/// The intercept's key.
const INTERCEPT: &str = "intercept";

/// The numbers written or read since the head.
struct Sum {
    crc: Digest,
    weights: u64,
}

impl Sum {
    fn new() -> Self {
        Sum { crc: Digest::new(CrcAlgorithm::Crc32Iscsi), weights: 0 }
    }

    fn add(&mut self, key: Option<u64>, weight: f64) {
        let key = key.map_or([0xff; 9], |key| {
            let mut bytes = [0; 9];
            bytes[..8].copy_from_slice(&key.to_le_bytes());
            bytes
        });
        self.crc.update(&key);
        self.crc.update(&weight.to_le_bytes());
        self.weights += 1;
    }

    /// The last line.
    fn line(&self) -> String {
        format!("# crc32c {:08x} of {} weights", self.crc.finalize(), self.weights)
    }
}

/// Writes a model to a file. Each line of `comment` becomes one comment line.
pub(super) fn write(model: &Model, mut file: Replacement, comment: &str) -> Result<()> {
    let mut text = format!("{HEAD}\n");
    for line in comment.lines() {
        text.push_str(&format!("# {line}\n"));
    }
    file.write(text.as_bytes())?;
    let intercept = (model.intercept != 0.0).then_some((None, model.intercept));
    let weights = model.iter().map(|(key, weight)| (Some(key), weight));
    let mut sum = Sum::new();
    let mut line = Vec::new();
    for (key, weight) in intercept.into_iter().chain(weights) {
        line.clear();
        match key {
            Some(key) => write!(line, "{key}"),
            None => write!(line, "{INTERCEPT}"),
        }
        .and_then(|()| writeln!(line, "\t{weight:?}"))
        .expect("a Vec takes all that is written");
        sum.add(key, weight);
        file.write(&line)?;
    }
    file.write(format!("{}\n", sum.line()).as_bytes())?;
    file.commit()
}

/// Reads a whole file, plain or compressed.
pub(super) fn read(path: &Path) -> Result<Model> {
    let mut weights: Vec<Weight> = Vec::new();
    let mut intercept: Option<Weight> = None;
    let mut sum: Option<Sum> = None; // since a head
    let mut has_head = false;
    for block in super::text(path)? {
        let block = block?;
        for (line, text) in (block.first_line..).zip(block.text.split(|&byte| byte == b'\n')) {
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            let start = text.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
            match start {
                None => continue,
                Some(b'#') => {
                    check(path, line, text, &mut sum)?;
                    has_head |= sum.is_some();
                    continue;
                }
                Some(_) => {}
            }
            let (key, weight) = parse_weight(path, line, text)?;
            if let Some(sum) = &mut sum {
                sum.add(key, weight);
            }
            match (key, &intercept) {
                (Some(key), _) => weights.push(Weight { key, line, weight }),
                (None, None) => intercept = Some(Weight { key: 0, line, weight }),
                (None, Some(first)) => {
                    return Err(twice(path, first.line, line, INTERCEPT.to_owned()));
                }
            }
        }
    }
    match sum {
        Some(sum) => {
            let reason = format!("it ends after {} weights, without a checksum", sum.weights);
            Err(Error::DamagedModel { path: path.to_path_buf(), reason })
        }
        None if weights.is_empty() && intercept.is_none() && !has_head => {
            let reason = "it is empty".to_owned();
            Err(Error::DamagedModel { path: path.to_path_buf(), reason })
        }
        None => {
            check_keys(path, &mut weights)?;
            let weights = weights.into_iter().map(|it| (it.key, it.weight)).collect();
            Model::new(weights)?.with_intercept(intercept.map_or(0.0, |it| it.weight))
        }
    }
}

/// A weight, and the line that has it.
struct Weight {
    key: u64,
    line: u64,
    weight: f64,
}

/// Sorts weights, and checks that no two have one key.
fn check_keys(path: &Path, weights: &mut [Weight]) -> Result<()> {
    weights.sort_unstable_by_key(|it| (it.key, it.line));
    let again = weights.windows(2).filter(|pair| pair[0].key == pair[1].key);
    match again.min_by_key(|pair| pair[1].line) {
        Some([first, other]) => {
            Err(twice(path, first.line, other.line, format!("key {}", first.key)))
        }
        _ => Ok(()),
    }
}

fn twice(path: &Path, first_line: u64, line: u64, key: String) -> Error {
    Error::DuplicateWeight { path: path.to_path_buf(), line, first_line, key }
}

/// Handles a comment: a head, a checksum, or any other.
fn check(path: &Path, line: u64, text: &[u8], sum: &mut Option<Sum>) -> Result<()> {
    let damaged = |reason| Err(Error::DamagedModel { path: path.to_path_buf(), reason });
    if text == HEAD.as_bytes() {
        return match sum.replace(Sum::new()) {
            Some(_) => damaged(format!("another begins in line {line}, before the checksum")),
            None => Ok(()),
        };
    }
    if text.len() >= SURELY_HEAD && HEAD.as_bytes().starts_with(text) {
        return damaged(format!("line {line} is cut off"));
    }
    let is_checksum = text.starts_with(b"# crc32c ");
    match sum.take_if(|_| is_checksum).map(|sum| sum.line()) {
        Some(expected) if expected.as_bytes() != text => damaged(format!(
            "line {line} should be `{expected}`; if weights were changed on purpose, drop the comments"
        )),
        _ => Ok(()),
    }
}

/// A key, or `None` for the intercept, and its weight.
fn parse_weight(path: &Path, line: u64, text: &[u8]) -> Result<(Option<u64>, f64)> {
    let fault = |column: usize, expected| Error::Syntax {
        path: path.to_path_buf(),
        line,
        column: column + 1,
        found: libsvm::shorten(&text[column..]),
        expected,
    };
    let Some(tab) = memchr::memchr(b'\t', text) else {
        return Err(fault(0, "a key, a tab and a weight"));
    };
    let key = match &text[..tab] {
        name if name == INTERCEPT.as_bytes() => None,
        key => Some(parse_key(key).ok_or_else(|| fault(0, "a key, then a tab"))?),
    };
    let weight = parse_value(&text[tab + 1..]).ok_or_else(|| fault(tab + 1, "a finite weight"))?;
    Ok((key, weight))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::{Folder, gzip};
    use crate::model::Format;
    use std::fs;

    #[test]
    fn the_file_is_sorted_text_without_zeros() {
        let folder = Folder::new("model-file");
        let path = folder.path().join("m");
        let weights = vec![(u64::MAX, -0.1), (3, 1e-300), (9, 0.0), (0, 2.0)];
        let model = Model::new(weights).unwrap();
        let model = model.with_intercept(-0.5).unwrap();
        model.write(&path, Format::Text, "dbpg lambda 1\nby a test").unwrap();
        let expected = "# caravan model\n# dbpg lambda 1\n# by a test\nintercept\t-0.5\n0\t2.0\n3\t1e-300\n18446744073709551615\t-0.1\n# crc32c ";
        let written = fs::read_to_string(&path).unwrap();
        let checksum = written.strip_prefix(expected).unwrap();
        assert!(checksum.len() == 22 && checksum.ends_with(" of 4 weights\n"), "{written}");
        assert_eq!(Model::read(&path).unwrap(), model);
        let joined = folder.write("joined", &gzip(b"7\t1\r\n\n# part 2\n3\t-2.5\n8\t0\n"));
        assert_eq!(Model::read(&joined).unwrap(), Model::new(vec![(3, -2.5), (7, 1.0)]).unwrap());
        let joined = [written.as_bytes(), b"7\t1\n"].concat();
        let joined = folder.write("joined", &joined);
        assert_eq!(
            Model::read(&joined).unwrap().weight(7),
            1.0,
            "what has no head has no checksum"
        );
        Model::default().write(&path, Format::Text, "of zeros").unwrap();
        assert_eq!(Model::read(&path).unwrap(), Model::default());
    }

    /// A short file that holds far more text than models do is refused by the numbers, before its
    /// text is in memory; decompressed it is read.
    #[test]
    fn a_compressed_model_has_a_bound() {
        let folder = Folder::new("model-bomb");
        let comment = format!("#{}\n", " ".repeat((1 << 20) - 2));
        let text = comment.repeat(64) + "7\t1\n";
        let bomb = folder.write("bomb", &gzip(text.as_bytes()));
        let bytes = fs::metadata(&bomb).unwrap().len();
        let error = Model::read(&bomb).unwrap_err().to_string();
        let says = format!("bomb holds more than 67108864 bytes of text in its {bytes}, the most");
        assert!(error.contains(&says) && error.contains("decompress it"), "{error}");
        let plain = Model::read(&folder.write("plain", text.as_bytes())).unwrap();
        assert_eq!(plain.weight(7), 1.0);
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
            ("intercept\t1\nintercept\t1\n", "bad:2: intercept was already given in line 1"),
            ("", "bad is a damaged model: it is empty"),
            ("# neither head nor weights\n\n", "bad is a damaged model: it is empty"),
            ("# caravan model\n5\t1\n", "bad is a damaged model: it ends after 1 weights"),
            ("# caravan model\n# caravan model\n", "another begins in line 2"),
            (
                "# caravan model\n# crc32c 00000001 of 0 weights\n",
                "line 2 should be `# crc32c 00000000 of 0",
            ),
        ] {
            let error = Model::read(&folder.write("bad", text.as_bytes())).unwrap_err().to_string();
            assert!(error.contains(message), "{text:?}: {error}");
        }
    }
}
