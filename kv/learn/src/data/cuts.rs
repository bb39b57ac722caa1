//! Cuts files into blocks for readers that share them, and reads the lines of one. Knows lines, not
//! their contents.
//!
//! A line belongs to the block that it begins in. So a block begins behind the first newline from
//! the byte before it on, and ends where the next one begins: whoever reads a block needs none of
//! the others, and each line is read once, however long it is.

use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::labels::Second;
use super::read::{Format, parsed};
use super::source::{self, Blocks, Lines};
use super::{Examples, Input, Labels, Shard};
use crate::{Error, Result};

/// A part of a file.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Cut {
    /// The file.
    pub path: PathBuf,
    /// Its first byte.
    pub begin: u64,
    /// The first byte behind it.
    pub end: u64,
}

/// Cuts files into blocks of `bytes` each, the last of a file shorter. A compressed file is one
/// block, and an empty one has none.
///
/// # Errors
/// [`Error::Open`] and [`Error::Read`] name the file; [`Error::Option`] for blocks of 0 bytes.
pub fn cut(paths: &[PathBuf], bytes: u64) -> Result<Vec<Cut>> {
    if bytes == 0 {
        let value = bytes.to_string();
        return Err(Error::Option { name: "bytes of a block", value, expected: "at least 1" });
    }
    let mut cuts = Vec::new();
    for path in paths {
        let (len, format) = source::length_and_format(path)?;
        cuts.extend(cut_file(path, len, if format.is_some() { len } else { bytes }));
    }
    Ok(cuts)
}

/// Cuts a file of `len` bytes into blocks of `bytes` each, at least 1.
pub(crate) fn cut_file(path: &Path, len: u64, bytes: u64) -> impl Iterator<Item = Cut> {
    let count = len.div_ceil(bytes.max(1));
    let end = move |blocks: u64| len.min(blocks.saturating_mul(bytes));
    (0..count).map(move |at| Cut { path: path.to_path_buf(), begin: end(at), end: end(at + 1) })
}

impl Cut {
    /// The whole lines of this block, and decompressed ones of a compressed file.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Read`] name the file.
    pub(super) fn lines(&self) -> Result<Lines> {
        let (len, format) = source::length_and_format(&self.path)?;
        if self.end > len {
            return Err(Error::Changed { path: self.path.clone() });
        }
        if format.is_some() {
            return Lines::open(&self.path);
        }
        let mut file = Input::open(&self.path)?;
        let watch = file.watch().map_err(at_read(&self.path))?;
        let begin = first_line(&mut file, self.begin, len).map_err(at_read(&self.path))?;
        let end = first_line(&mut file, self.end, len).map_err(at_read(&self.path))?;
        file.seek(SeekFrom::Start(begin)).map_err(at_read(&self.path))?;
        Ok(Lines::of(self.name(), file, end - begin).watching(watch))
    }

    /// The rows of this block, as they are read, with how they write the second class. Errors count
    /// its lines from the beginning of the block.
    pub(crate) fn rows(
        &self,
        labels: Labels,
    ) -> impl Iterator<Item = Result<(Examples, Option<Second>)>> + use<> {
        let format = (self.begin > 0).then(|| Format::of_file(&self.path)).transpose();
        let begun = format.and_then(|format| Ok((format, self.lines()?)));
        let (format, blocks, wrong) = match begun {
            Ok((format, lines)) => (format, Some(Blocks::of(lines)), None),
            Err(error) => (None, None, Some(Err(error))),
        };
        let parsed = parsed(blocks.into_iter().flatten(), format, vec![Shard::ALL], labels);
        let all = |(mut rows, second): (Vec<Examples>, _)| (rows.pop().unwrap_or_default(), second);
        parsed.map(move |rows| rows.map(all)).chain(wrong)
    }

    /// What errors call it: they count lines from the beginning of the block.
    fn name(&self) -> PathBuf {
        match self.begin {
            0 => self.path.clone(),
            begin => format!("{}, from byte {begin}", self.path.display()).into(),
        }
    }
}

fn at_read(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Read { path: path.clone(), source }
}

/// Where the first line begins at or behind byte `at` of a file of `len` bytes; its end if none
/// does.
fn first_line(file: &mut Input, at: u64, len: u64) -> std::io::Result<u64> {
    if at == 0 || at >= len {
        return Ok(at.min(len));
    }
    // The line of the byte before ends there, or goes on.
    let before = at - 1;
    file.seek(SeekFrom::Start(before))?;
    let skipped = BufReader::new(file).skip_until(b'\n')?;
    Ok(len.min(before + skipped as u64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::{Folder, gzip};

    /// The text of each block.
    fn texts(path: &Path, bytes: u64) -> Vec<Vec<u8>> {
        let cuts = cut(&[path.to_owned()], bytes).unwrap();
        let text = |cut: &Cut| {
            let mut lines = cut.lines().unwrap();
            let parts = std::iter::from_fn(|| lines.next_lines().unwrap());
            parts.flat_map(|(_, text)| text).collect()
        };
        cuts.iter().map(text).collect()
    }

    #[test]
    fn each_line_is_in_the_block_that_it_begins_in() {
        let folder = Folder::new("cuts");
        for (name, text) in [
            ("a newline at a boundary", "aaa\nbbb\nccc\n"),
            ("one at the start", "\n\naaa\nb"),
            ("a line longer than blocks", "a\nbbbbbbbbbbbbbbbbbbbbbbbb\nc\nd\n"),
            ("one long line", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
            ("no final newline", "aa\nbb\ncc"),
            ("lines that end in two bytes", "a\r\nbb\r\n\r\nc"),
            ("newlines alone", "\n\n\n\n\n"),
            ("an empty file", ""),
        ] {
            let path = folder.write("t", text.as_bytes());
            for bytes in 1..text.len() as u64 + 2 {
                let found = texts(&path, bytes);
                // The obvious way: each line at the block of its first byte.
                let mut expected = vec![Vec::new(); found.len()];
                let mut at = 0;
                for line in text.split_inclusive('\n') {
                    expected[at / bytes as usize].extend_from_slice(line.as_bytes());
                    at += line.len();
                }
                assert_eq!(found, expected, "{name}, blocks of {bytes}");
                assert_eq!(found, texts(&path, bytes), "a second pass");
            }
        }
    }

    #[test]
    fn a_file_that_is_shorter_than_it_was_is_named() {
        let folder = Folder::new("cuts-shorter");
        let path = folder.write("t", b"1 1:1\n1 1:1\n");
        let cuts = cut(std::slice::from_ref(&path), 6).unwrap();
        std::fs::write(&path, b"1 1:1\n").unwrap();
        let error = crate::data::read_cut(&cuts[1]).unwrap_err().to_string();
        assert!(error.contains("t has changed while it was read"), "{error}");
    }

    #[test]
    fn a_compressed_file_is_one_block() {
        let folder = Folder::new("cuts-packed");
        let path = folder.write("packed", &gzip(b"one\ntwo\n"));
        assert_eq!(texts(&path, 3), [b"one\ntwo\n".to_vec()]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = cut(&["/no/such/file".into()], 1).unwrap_err().to_string();
        assert!(error.contains("/no/such/file"), "{error}");
        assert!(cut(&[], 0).unwrap_err().to_string().contains("bytes of a block"));
        let gone = Cut { path: "/no/such/file".into(), begin: 5, end: 9 };
        assert!(gone.lines().err().unwrap().to_string().contains("/no/such/file"));
        let folder = Folder::new("cuts-named");
        let path = folder.write("t", b"1 1:1\n1 2:x\n");
        let cuts = cut(&[path], 6).unwrap();
        let error = crate::data::read_cut(&cuts[1]).unwrap_err().to_string();
        assert!(error.contains("t, from byte 6:1:5: found `x`"), "{error}");
    }
}
