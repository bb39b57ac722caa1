//! Reads ratings: lines `user item rating`, with blanks, tabs or commas between, plain or
//! compressed. More words of a line, as times of ratings, are ignored.

use std::path::PathBuf;

use crate::data::source::Blocks;
use crate::data::{self, libsvm, parse_key, parse_value};
use crate::{Error, Result};

/// Largest number of a user or an item.
pub const KEY_MAX: u64 = (1 << 62) - 1;

/// A user's rating of an item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rating {
    /// The user, at most [`KEY_MAX`].
    pub user: u64,
    /// The item, at most [`KEY_MAX`].
    pub item: u64,
    /// Finite.
    pub value: f64,
}

/// Ratings in the order of the files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ratings {
    /// All of them.
    pub all: Vec<Rating>,
}

const RATING: &str =
    "`user item rating`: two whole numbers up to 4611686018427387903, and a number";

impl Ratings {
    /// Reads the ratings of a shard.
    ///
    /// # Errors
    /// Names the file, and the line where one is wrong.
    pub fn read(files: &[PathBuf], shard: data::Shard) -> Result<Self> {
        let mut all = Vec::new();
        for block in Blocks::new(files.to_vec()) {
            let block = block?;
            for (line, row, text) in block.numbered_rows() {
                if shard.owns(row) {
                    all.push(parse(text).ok_or_else(|| Error::Syntax {
                        path: block.path.to_path_buf(),
                        line,
                        column: 1,
                        found: libsvm::shorten(text),
                        expected: RATING,
                    })?);
                }
            }
        }
        Ok(Ratings { all })
    }

    /// The mean of all ratings; 0 without any.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.all.iter().map(|rating| rating.value).sum();
        sum / self.all.len().max(1) as f64
    }
}

fn parse(text: &[u8]) -> Option<Rating> {
    let is_between = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b',');
    let mut words = text.split(is_between).filter(|word| !word.is_empty());
    let mut key = || parse_key(words.next()?).filter(|key| *key <= KEY_MAX);
    let (user, item) = (key()?, key()?);
    Some(Rating { user, item, value: parse_value(words.next()?)? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::Folder;

    #[test]
    fn ratings_are_read_and_faults_have_a_line() {
        let folder = Folder::new("ratings");
        let read =
            |text: &str| Ratings::read(&[folder.write("r", text.as_bytes())], data::Shard::ALL);
        let ratings = read("1 2 3.5\n4,5,-1,978300760\n\n0\t0\t1\r\n").unwrap();
        let found: Vec<_> = ratings.all.iter().map(|it| (it.user, it.item, it.value)).collect();
        assert_eq!(found, [(1, 2, 3.5), (4, 5, -1.0), (0, 0, 1.0)]);
        assert_eq!(read("").unwrap().mean(), 0.0);
        for text in ["1 2\n", "1 x 3\n", "1 2 inf\n", "4611686018427387904 1 1\n", "-1 1 1\n"] {
            let error = read(&format!("1 1 1\n{text}")).unwrap_err().to_string();
            assert!(error.contains("r:2:1") && error.contains("user item rating"), "{error}");
        }
    }
}
