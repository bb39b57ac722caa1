//! What labels of rows are to whoever reads them: classes, numbers, or nothing.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::number::parse_value;
use super::source::Block;
use super::words::words;
use crate::{Error, Result};

/// How labels are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Labels {
    /// One of two classes: +1 or 1, and -1 or 0. All files write the second class in one way, as a
    /// third class would be taken for it otherwise.
    #[default]
    Classes,
    /// A number, as it is written.
    Targets,
    /// Any word without a colon, which is not kept.
    Ignored,
}

const CLASS: &str =
    "a label: +1, 1, -1 or 0; least squares takes any number (--loss squared, linreg)";
const TARGET: &str = "a label: a finite number";
const WORD: &str = "a label before the first `key:value`";

impl Labels {
    /// The label of a word of LIBSVM text: its number, and 0 where it is ignored.
    ///
    /// # Errors
    /// What is expected.
    pub(super) fn parse(self, word: &[u8]) -> Result<f64, &'static str> {
        let is_word =
            |word: &[u8]| !word.iter().any(|byte| *byte == b':' || byte.is_ascii_control());
        match self {
            Labels::Classes => {
                written(word).map(|class| if class > 0 { 1.0 } else { -1.0 }).ok_or(CLASS)
            }
            Labels::Targets => parse_value(word).ok_or(TARGET),
            Labels::Ignored => is_word(word).then_some(0.0).ok_or(WORD),
        }
    }

    /// What a number stands for in formats of click logs, where those above 0 are clicks.
    pub(super) fn of_clicks(self, number: f64) -> f64 {
        match self {
            Labels::Classes if number > 0.0 => 1.0,
            Labels::Classes => -1.0,
            Labels::Targets => number,
            Labels::Ignored => 0.0,
        }
    }
}

/// A class as it is written: 1, -1 or 0, in any spelling.
fn written(word: &[u8]) -> Option<i8> {
    match word {
        b"+1" | b"1" => Some(1),
        b"-1" => Some(-1),
        b"0" => Some(0),
        _ => match parse_value(word)? {
            1.0 => Some(1),
            0.0 => Some(0),
            -1.0 => Some(-1),
            _ => None,
        },
    }
}

/// How the second of two classes is written, -1 or 0, and the first row that has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Second {
    label: i8,
    path: PathBuf,
    line: u64,
}

impl Second {
    /// That of a block's rows, also those of other shards: no worker sees all rows of its own.
    ///
    /// # Errors
    /// As [`Second::join`].
    pub(super) fn of(block: &Block) -> Result<Option<Second>> {
        let mut second = None;
        for (line, _, text) in block.numbered_rows() {
            let label = words(text).next().and_then(|(_, word)| written(word));
            if let Some(label @ (-1 | 0)) = label
                && second.as_ref().is_none_or(|second: &Second| second.label != label)
            {
                Second::join(
                    &mut second,
                    Some(Second { label, path: block.path.to_path_buf(), line }),
                )?;
            }
        }
        Ok(second)
    }

    /// Adds that of the rows after these.
    ///
    /// # Errors
    /// [`Error::ThirdClass`] names the first row of the other.
    pub(crate) fn join(second: &mut Option<Second>, next: Option<Second>) -> Result<()> {
        match (&*second, next) {
            (Some(Second { label: before, .. }), Some(Second { label, path, line }))
                if *before != label =>
            {
                Err(Error::ThirdClass { path, line, label, before: *before })
            }
            (None, next) => {
                *second = next;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::num::NonZeroUsize;
    use std::path::PathBuf;

    use super::*;
    use crate::data::testing::Folder;
    use crate::data::{ReadAhead, Shard, read, read_as};

    const ONE: NonZeroUsize = NonZeroUsize::MIN;

    #[test]
    fn labels_are_classes_numbers_or_nothing() {
        let folder = Folder::new("labels");
        let labels = |text: &str, labels| {
            let file = folder.write("rows", text.as_bytes());
            read_as(labels, &[file], Shard::ALL, ONE).map(|rows| rows.labels)
        };
        let text = "2.5 1:1\n-0.5\n0 1:2\n1\n-1 2:1\n1e300\n";
        let targets = labels(text, Labels::Targets).unwrap();
        assert_eq!(targets, [2.5, -0.5, 0.0, 1.0, -1.0, 1e300]);
        assert_eq!(labels("3 1:1\nblue\n1,7 1:1\n", Labels::Ignored).unwrap(), [0.0; 3]);
        assert_eq!(labels("0 1:1\n+1\n0.0\n", Labels::Classes).unwrap(), [-1.0, 1.0, -1.0]);
        for (text, how, says) in [
            (
                "1\n3 1:1\n",
                Labels::Classes,
                "rows:2:1: found `3`, expected a label: +1, 1, -1 or 0",
            ),
            ("blue 1:1\n", Labels::Targets, "found `blue`, expected a label: a finite number"),
            ("nan 1:1\n", Labels::Targets, "found `nan`, expected a label: a finite number"),
            ("1 1:1\n3:1\n", Labels::Ignored, "rows:2:1: found `3:1`, expected a label before"),
        ] {
            let error = labels(text, how).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let clicks = "7 1 3 9:1\n8 1 0 9:1\n";
        assert_eq!(labels(clicks, Labels::Classes).unwrap(), [1.0, -1.0]);
        assert_eq!(labels(clicks, Labels::Targets).unwrap(), [3.0, 0.0]);
    }

    /// Whoever reads, in blocks, files and shards.
    #[test]
    fn a_third_class_is_named_wherever_it_is() {
        let folder = Folder::new("third-class");
        let third = |text: String, line: u64, label: i8| {
            let files: [PathBuf; 2] =
                [folder.write("first", b"1 1:1\n-1\n"), folder.write("second", text.as_bytes())];
            let shard = Shard::new(1, 7).unwrap();
            let packed = crate::data::read_packed(&files, shard, ONE, None);
            let ahead = ReadAhead::start(&files, shard, 1).unwrap();
            let ahead = std::iter::from_fn(|| ahead.next()).find_map(Result::err);
            let errors = [read(&files, Shard::ALL, ONE).err(), packed.err(), ahead];
            for error in errors {
                let said = error.unwrap().to_string();
                let place = format!("second:{line}: {label} is a third class beside 1 and -1");
                assert!(said.contains(&place), "{said}");
            }
        };
        third("0\n".to_owned(), 1, 0);
        third(format!("{}0.0 7:1\n", "-1 1:1\n".repeat(100_000)), 100_001, 0);
    }
}
