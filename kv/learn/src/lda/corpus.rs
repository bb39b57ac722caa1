//! Reads documents in the format of LDA-C: `PAIRS word:count …` a line, plain or compressed.

use std::path::{Path, PathBuf};

use crate::data::source::Blocks;
use crate::data::{self, libsvm, parse_key};
use crate::{Error, Result};

/// Documents as tokens, each its word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Corpus {
    /// `[documents + 1]`, or empty without documents.
    pub starts: Vec<usize>,
    /// `[tokens]`.
    pub words: Vec<u32>,
}

/// Most tokens of one word in a document.
const COUNT_MAX: u64 = 1 << 20;

/// Most tokens of a part.
const TOKENS_MAX: usize = u32::MAX as usize;

const HEAD: &str = "the number of pairs in the line";
const PAIR: &str = "`word:count`, a word below 2147483648 and a count from 1 to 1048576";

impl Corpus {
    /// Reads the documents of a shard.
    ///
    /// # Errors
    /// Names the file, and the line and column where one is wrong.
    pub fn read(files: &[PathBuf], shard: data::Shard) -> Result<Self> {
        let mut corpus = Corpus { starts: vec![0], words: Vec::new() };
        for block in Blocks::new(files.to_vec()) {
            let block = block?;
            for (line, row, text) in block.numbered_rows() {
                if shard.owns(row) {
                    corpus.add(&block.path, line, text)?;
                }
            }
        }
        Ok(corpus)
    }

    /// Number of documents.
    pub fn documents(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// One more than the largest word.
    pub fn vocabulary(&self) -> u64 {
        self.words.iter().max().map_or(0, |&word| u64::from(word) + 1)
    }

    /// The tokens of a document.
    ///
    /// # Panics
    /// If there is no such document.
    pub fn document(&self, document: usize) -> &[u32] {
        &self.words[self.starts[document]..self.starts[document + 1]]
    }

    fn add(&mut self, path: &Path, line: u64, text: &[u8]) -> Result<()> {
        let fault = |at: usize, expected| Error::Syntax {
            path: path.to_path_buf(),
            line,
            column: at + 1,
            found: libsvm::shorten(&text[at..]),
            expected,
        };
        let mut words = words(text);
        let (column, head) = words.next().unwrap_or((0, b""));
        let pairs = parse_key(head).ok_or_else(|| fault(column, HEAD))?;
        let mut found = 0;
        for (column, word) in words {
            let (word, count) = pair(word).ok_or_else(|| fault(column, PAIR))?;
            let tokens = self.words.len() + count;
            if tokens > TOKENS_MAX {
                let (count, count_max) = (tokens as u64, TOKENS_MAX as u64);
                return Err(Error::TooMany { what: "tokens", count, count_max });
            }
            self.words.resize(tokens, word);
            found += 1;
        }
        if found != pairs {
            return Err(fault(column, HEAD));
        }
        self.starts.push(self.words.len());
        Ok(())
    }
}

/// The words of a line with their columns, from 0.
fn words(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r');
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].iter().position(|byte| !blank(byte))?;
        let len = text[start..].iter().position(blank);
        at = len.map_or(text.len(), |len| start + len);
        Some((start, &text[start..at]))
    })
}

fn pair(word: &[u8]) -> Option<(u32, usize)> {
    let colon = word.iter().position(|&byte| byte == b':')?;
    let key = parse_key(&word[..colon]).filter(|&key| key < 1 << 31)?;
    let count = parse_key(&word[colon + 1..]).filter(|count| (1..=COUNT_MAX).contains(count))?;
    Some((key as u32, count as usize))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::Folder;

    #[test]
    fn documents_are_read_as_tokens_and_faults_have_a_place() {
        let folder = Folder::new("corpus");
        let read =
            |text: &str| Corpus::read(&[folder.write("c", text.as_bytes())], data::Shard::ALL);
        let corpus = read("2 0:2 7:1\n0\n1 3:1\n").unwrap();
        assert_eq!((corpus.documents(), corpus.vocabulary()), (3, 8));
        assert_eq!(corpus.document(0), [0, 0, 7]);
        assert_eq!((corpus.document(1), corpus.document(2)), (&[][..], &[3][..]));
        assert_eq!(read("").unwrap().documents(), 0);
        for (text, place) in [
            ("2 0:1\n", "c:1:1"),
            ("1 0:1\nx 0:1\n", "c:2:1"),
            ("1 0\n", "c:1:3"),
            ("1 0:0\n", "c:1:3"),
            ("1 0:1048577\n", "c:1:3"),
            ("1 2147483648:1\n", "c:1:3"),
            ("2 0:1 1:-1\n", "c:1:7"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(place), "{text:?}: {error}");
        }
    }
}
