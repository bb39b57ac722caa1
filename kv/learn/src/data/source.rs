//! Reads text files, plain or compressed, as blocks of whole lines. Knows lines and rows, not their
//! contents.
//!
//! Path: **source** > libsvm > `Examples`. A file is streamed: memory is a few blocks, whatever its
//! size.

use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::GzDecoder;
use memchr::{memchr, memchr_iter, memrchr};

use super::Input;
use super::input::Watch;
use crate::{Error, Result};

/// Text read at a time: short enough that one block's memory is reused for the next.
const BLOCK_BYTES: usize = 256 << 10;

/// Longest line: 64 MiB, about five million `key:value` pairs.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 20;
const _: () = assert!(BLOCK_BYTES <= LINE_BYTES_MAX, "see `check_line_length`");

/// Most memory an xz file may request; the highest preset requests 65 MiB.
const XZ_MEMORY_BYTES_MAX: u64 = 512 << 20;

/// Some whole lines of one file.
#[derive(Debug)]
pub struct Block {
    /// The file, as given.
    pub path: Arc<Path>,
    /// The number of the first line, from 1, in this file.
    pub first_line: u64,
    /// Number of the first row, from 0, over all files.
    pub first_row: u64,
    /// Number of rows: lines that are neither blank nor a comment.
    pub rows: u64,
    /// The lines, each with its `\n`, except possibly the file's last.
    pub text: Vec<u8>,
}

impl Block {
    /// The rows as (line number, row number, text without the `\n`).
    pub fn numbered_rows(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let mut row = self.first_row;
        (self.first_line..).zip(lines(&self.text)).filter(|(_, line)| is_row(line)).map(
            move |(line, text)| {
                row += 1;
                (line, row - 1, text)
            },
        )
    }
}

/// The lines of `text` without their `\n`.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    let ends = memchr_iter(b'\n', text).chain(if text.last().is_none_or(|&last| last == b'\n') {
        None
    } else {
        Some(text.len())
    });
    ends.map(move |end| {
        let line = &text[start..end];
        start = end + 1;
        line
    })
}

/// Whether `line` holds data: not blank, not a `#` comment.
fn is_row(line: &[u8]) -> bool {
    line.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r')).is_some_and(|&byte| byte != b'#')
}

/// The blocks of several files in the given order; row numbers continue from one file to the next.
pub struct Blocks {
    paths: std::vec::IntoIter<PathBuf>,
    current: Option<Lines>,
    next_row: u64,
}

impl Blocks {
    /// Reads `paths` one after the other, and opens each when it is due.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths: paths.into_iter(), current: None, next_row: 0 }
    }

    /// The blocks of an open file, plain or compressed.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Read`].
    pub(crate) fn of_input(path: &Path, input: Input) -> Result<Self> {
        Lines::of_input(path, input).map(Self::of)
    }

    /// The blocks of one input.
    pub(super) fn of(lines: Lines) -> Self {
        Self { current: Some(lines), ..Self::new(Vec::new()) }
    }

    fn next_block(&mut self) -> Result<Option<Block>> {
        loop {
            let lines = match &mut self.current {
                Some(lines) => lines,
                None => match self.paths.next() {
                    Some(path) => self.current.insert(Lines::open(&path)?),
                    None => return Ok(None),
                },
            };
            if let Some((first_line, text)) = lines.next_lines()? {
                let path = lines.path.clone();
                let mut block = Block { path, first_line, first_row: self.next_row, rows: 0, text };
                block.rows = block.numbered_rows().count() as u64;
                self.next_row += block.rows;
                return Ok(Some(block));
            }
            self.current = None;
        }
    }
}

impl Iterator for Blocks {
    type Item = Result<Block>;

    /// The next block. After an error the iterator ends.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_block();
        if next.is_err() {
            *self = Self::new(Vec::new());
        }
        next.transpose()
    }
}

/// The length of a file or object, and its compression.
pub(crate) fn length_and_format(path: &Path) -> Result<(u64, Option<&'static str>)> {
    let at_read = |source| Error::Read { path: path.to_path_buf(), source };
    let file = Input::open(path)?;
    let len = file.total_bytes().map_err(at_read)?;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    file.take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(at_read)?;
    refuse(path, &head)?;
    Ok((len, detect(&head)))
}

/// A file or object, decompressed as it is read.
pub(crate) struct Unpacked {
    format: Option<&'static str>,
    watch: Option<Watch>,
    /// Its content.
    pub(crate) input: Box<dyn Read + Send>,
}

impl Unpacked {
    /// Opens a file, or an object by its address.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Read`] name the file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::of(path, Input::open(path)?)
    }

    fn of(path: &Path, mut file: Input) -> Result<Self> {
        let at_open = |source| Error::Open { path: path.to_path_buf(), source };
        let at_read = |source| Error::Read { path: path.to_path_buf(), source };
        let watch = file.watch().map_err(at_read)?;
        let mut head = Vec::with_capacity(HEAD_BYTES);
        (&mut file).take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(at_read)?;
        let format = detect(&head);
        let input = decompress(format, Cursor::new(head).chain(file)).map_err(at_open)?;
        Ok(Unpacked { format, watch, input })
    }
}

/// One file's lines, decompressed on demand.
pub(super) struct Lines {
    path: Arc<Path>,
    format: Option<&'static str>,
    watch: Option<Watch>,
    input: Box<dyn Read + Send>,
    /// The start of a line whose end was not read yet.
    carry: Vec<u8>,
    next_line: u64,
    block_bytes: usize,
    line_bytes_max: usize,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::of_input(path, Input::open(path)?)
    }

    fn of_input(path: &Path, input: Input) -> Result<Self> {
        let Unpacked { format, watch, input } = Unpacked::of(path, input)?;
        Ok(Self { format, watch, input, ..Self::of(path.to_owned(), std::io::empty(), 0) })
    }

    /// The next `len` bytes of a file that is not compressed, which are whole lines.
    pub(super) fn of(path: PathBuf, file: impl Read + Send + 'static, len: u64) -> Self {
        Self {
            path: path.into(),
            format: None,
            watch: None,
            input: Box::new(file.take(len)),
            carry: Vec::new(),
            next_line: 1,
            block_bytes: BLOCK_BYTES,
            line_bytes_max: LINE_BYTES_MAX,
        }
    }

    /// The same lines, unless their file changes meanwhile.
    pub(super) fn watching(self, watch: Option<Watch>) -> Self {
        Self { watch, ..self }
    }

    /// The next whole lines and the number of the first; `None` at the end.
    pub(super) fn next_lines(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let mut text = std::mem::take(&mut self.carry);
        loop {
            let scanned = text.len();
            let ended = self.read_more(&mut text)?;
            let end = memrchr(b'\n', &text[scanned..]).map(|at| scanned + at + 1);
            self.check_line_length(&text)?;
            match end {
                Some(end) => self.carry = text.split_off(end),
                None if !ended => continue,
                None if text.is_empty() => return Ok(None),
                None => {}
            }
            let first_line = self.next_line;
            if first_line == 1 {
                refuse(&self.path, &text)?;
                let mark =
                    if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
                text.drain(..mark);
            }
            self.next_line += memchr_iter(b'\n', &text).count() as u64;
            return Ok(Some((first_line, text)));
        }
    }

    /// Appends up to a block; true at the end of the file.
    fn read_more(&mut self, text: &mut Vec<u8>) -> Result<bool> {
        let got = (&mut self.input).take(self.block_bytes as u64).read_to_end(text);
        if !got.as_ref().is_ok_and(|bytes| *bytes == self.block_bytes) {
            self.watch.iter().try_for_each(|watch| watch.check(&self.path))?;
        }
        got.map(|bytes| bytes < self.block_bytes).map_err(|source| {
            let path = self.path.to_path_buf();
            match self.format {
                Some(format) => Error::Decompress { path, format, source },
                None => Error::Read { path, source },
            }
        })
    }

    /// Only the first line of `text` can be longer than a block, and so too long: its end was not
    /// in earlier blocks.
    fn check_line_length(&self, text: &[u8]) -> Result<()> {
        let bytes_max = self.line_bytes_max;
        if text.len() > bytes_max && memchr(b'\n', text).unwrap_or(text.len()) > bytes_max {
            return Err(Error::LineTooLong {
                path: self.path.to_path_buf(),
                line: self.next_line,
                bytes_max,
            });
        }
        Ok(())
    }
}

/// First bytes needed to distinguish the formats.
const HEAD_BYTES: usize = 10;

/// What a text in UTF-8 may begin with.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The first bytes of files that hold no rows of text, and what these are.
const NO_TEXT: [(&[u8], &str); 11] = [
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x04\x22\x4d\x18", "lz4 data"),
    (b"\x02\x21\x4c\x18", "lz4 data"),
    (b"\x1f\x9d", "data of compress"),
    (b"PAR1\x15", "a Parquet file"),
    (b"ARROW1\0", "an Arrow file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"\0\0\xfe\xff", "UTF-32 text"),
];

/// Refuses a file of another kind.
///
/// # Errors
/// [`Error::NoText`] names it.
fn refuse(path: &Path, head: &[u8]) -> Result<()> {
    let is_bzip2 = matches!(head, [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, ..]);
    let known = NO_TEXT.iter().find(|(bytes, _)| head.starts_with(bytes)).map(|(_, what)| *what);
    match known.or(is_bzip2.then_some("bzip2 data")) {
        Some(what) => Err(Error::NoText { path: path.to_path_buf(), what }),
        None => Ok(()),
    }
}

/// The compression of a file by its first bytes; its extension is ignored.
fn detect(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some("zstd"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("xz"),
        _ => None,
    }
}

/// Every format may have several members in a row, as `cat a.gz b.gz` makes them.
fn decompress(
    format: Option<&str>,
    input: impl Read + Send + 'static,
) -> std::io::Result<Box<dyn Read + Send>> {
    Ok(match format {
        Some("gzip") => Box::new(Members { member: Some(GzDecoder::new(BufReader::new(input))) }),
        Some("zstd") => Box::new(zstd::Decoder::new(input)?),
        Some("xz") => {
            let flags = liblzma::stream::CONCATENATED;
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES_MAX, flags)?;
            Box::new(liblzma::read::XzDecoder::new_stream(input, stream))
        }
        _ => Box::new(input),
    })
}

/// The members of a gzip file, with zeros behind them, as blocks of a fixed length leave them.
struct Members<R> {
    member: Option<GzDecoder<BufReader<R>>>,
}

impl<R: Read> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while let Some(member) = &mut self.member {
            let got = member.read(into)?;
            if got > 0 || into.is_empty() {
                return Ok(got);
            }
            let rest = self.member.take().map(GzDecoder::into_inner);
            self.member = rest.map(behind_zeros).transpose()?.flatten().map(GzDecoder::new);
        }
        Ok(0)
    }
}

/// What comes behind zeros, if anything does.
fn behind_zeros<R: BufRead>(mut rest: R) -> std::io::Result<Option<R>> {
    loop {
        let bytes = rest.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let (is_end, is_behind) = (bytes.is_empty(), zeros < bytes.len());
        rest.consume(zeros);
        if is_end || is_behind {
            return Ok(is_behind.then_some(rest));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs::File;
    use std::io::Write;
    use std::time::SystemTime;

    use super::*;
    use crate::data::cut;
    use crate::data::testing::{Folder, gzip, xz, zstd};

    #[test]
    fn padding_behind_members_is_skipped() {
        let folder = Folder::new("source-padding");
        let lines = [(1, b"one\ntwo\n".to_vec())];
        let padded = |encode: fn(&[u8]) -> Vec<u8>, padding: &[u8]| {
            [&encode(b"one\n")[..], padding, &encode(b"two\n"), padding].concat()
        };
        // A frame of zstd that decoders skip; a multiple of 4 zeros behind streams of xz.
        let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
        for (name, bytes) in [
            ("gzip", padded(gzip, &[0; 10_000])),
            ("zstd", padded(zstd, skipped)),
            ("xz", padded(xz, &[0; 8])),
        ] {
            let path = folder.write(name, &bytes);
            assert_eq!(read(&path, 1000, 100).unwrap(), lines, "{name}");
        }
        let path = folder.write("garbage", &[&gzip(b"one\n")[..], &[0; 7], b"x"].concat());
        let error = read(&path, 1000, 100).unwrap_err().to_string();
        assert!(error.contains("truncated or damaged gzip"), "{error}");
    }

    #[test]
    fn files_of_other_kinds_are_named_and_a_byte_order_mark_is_none() {
        let folder = Folder::new("source-kinds");
        for (head, what) in NO_TEXT.into_iter().chain([
            (&b"BZh91AY&SY"[..], "bzip2 data"),
            (b"BZh9\x17\x72\x45\x38\x50\x90", "bzip2 data"),
        ]) {
            let bytes = [head, b"1 1:1\n"].concat();
            let path = folder.write("kind", &bytes);
            let packed = folder.write("kind.gz", &gzip(&bytes));
            let errors = [
                read(&path, 1000, 100).unwrap_err(),
                cut(&[path], 4).unwrap_err(),
                read(&packed, 1000, 100).unwrap_err(),
            ];
            for error in errors {
                let said = error.to_string();
                assert!(said.contains(&format!(" is {what}, which is not read")), "{said}");
            }
        }
        let marked = folder.write("marked", b"\xef\xbb\xbf1 1:1\n\xef\xbb\xbf\n");
        let text = b"1 1:1\n\xef\xbb\xbf\n".to_vec();
        for block_bytes in [1, 1000] {
            let joined = read(&marked, block_bytes, 100).unwrap();
            assert_eq!(joined.into_iter().flat_map(|(_, text)| text).collect::<Vec<u8>>(), text);
        }
    }

    /// Goal: a file that changes while it is read is an error with its name. Method: between two
    /// blocks it is written to; its time of modification was long ago.
    #[test]
    fn a_file_that_changes_meanwhile_is_named() {
        let folder = Folder::new("source-changes");
        let text = b"1 1:1\n".repeat(10_000);
        for (name, bytes) in [("plain", text.clone()), ("gzip", gzip(&text))] {
            let path = folder.write(name, &bytes);
            File::options()
                .append(true)
                .open(&path)
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH)
                .unwrap();
            for _ in 0..2 {
                assert_eq!(Lines::open(&path).unwrap().next_lines().unwrap().unwrap().0, 1);
            }
            let mut lines = Lines { block_bytes: 100, ..Lines::open(&path).unwrap() };
            lines.next_lines().unwrap();
            File::options().append(true).open(&path).unwrap().write_all(b"\0").unwrap();
            let ended = std::iter::from_fn(|| lines.next_lines().transpose()).find_map(Result::err);
            let said = ended.unwrap().to_string();
            assert!(said.contains(&format!("{name} has changed while it was read")), "{said}");
        }
    }

    /// All lines of a file read in blocks of `block_bytes`, as (first line, text).
    fn read(path: &Path, block_bytes: usize, line_bytes_max: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut lines = Lines { block_bytes, line_bytes_max, ..Lines::open(path)? };
        std::iter::from_fn(|| lines.next_lines().transpose()).collect()
    }

    #[test]
    fn blocks_hold_whole_lines_and_know_their_number() {
        let folder = Folder::new("source-blocks");
        for text in
            ["", "a", "a\n", "\n", "\n\n\nlong line here\nx\n\nend", "aaaaaaaaaaaaaaaaaaaaa\nb\r\n"]
        {
            let path = folder.write("t", text.as_bytes());
            for block_bytes in 1..text.len() + 2 {
                let blocks = read(&path, block_bytes, 100).unwrap();
                let mut line = 1;
                for (at, (first_line, block)) in blocks.iter().enumerate() {
                    assert_eq!(*first_line, line);
                    assert!(at + 1 == blocks.len() || block.ends_with(b"\n"));
                    line += block.iter().filter(|&&byte| byte == b'\n').count() as u64;
                }
                let joined: Vec<u8> = blocks.into_iter().flat_map(|(_, block)| block).collect();
                assert_eq!(joined, text.as_bytes(), "block_bytes {block_bytes}");
            }
        }
    }

    #[test]
    fn the_longest_line_passes_and_one_byte_more_does_not() {
        let folder = Folder::new("source-long");
        let path = folder.write("t", b"ok\n12345678\n");
        for block_bytes in 1..8 {
            assert_eq!(read(&path, block_bytes, 8).unwrap().last().unwrap().1.last(), Some(&b'\n'));
            let error = read(&path, block_bytes, 7).unwrap_err().to_string();
            assert!(
                error.contains("t:2: the line is longer than 7 bytes"),
                "{block_bytes}: {error}"
            );
        }
    }

    #[test]
    fn compression_is_told_by_content_and_members_follow_each_other() {
        let folder = Folder::new("source-formats");
        for (name, encode) in [("gzip", gzip as fn(&[u8]) -> Vec<u8>), ("zstd", zstd), ("xz", xz)] {
            let path = folder.write(name, &[encode(b"one\ntw"), encode(b"o\n")].concat());
            assert_eq!(read(&path, 1000, 100).unwrap(), [(1, b"one\ntwo\n".to_vec())], "{name}");
            assert_eq!(read(&folder.write(name, &encode(b"")), 1000, 100).unwrap(), [], "{name}");
        }
    }

    #[test]
    fn truncation_anywhere_and_damage_name_the_file() {
        let folder = Folder::new("source-damage");
        let text: Vec<u8> = (0..2000_u32)
            .flat_map(|i| format!("{}\n", i.wrapping_mul(2_654_435_761)).into_bytes())
            .collect();
        for (name, encode) in [("gzip", gzip as fn(&[u8]) -> Vec<u8>), ("zstd", zstd), ("xz", xz)] {
            let whole = encode(&text);
            for len in (HEAD_BYTES..whole.len()).step_by(37).chain(whole.len() - 9..whole.len()) {
                let error = read(&folder.write("cut", &whole[..len]), 512, 100).unwrap_err();
                assert!(
                    error.to_string().contains("cut is truncated or damaged"),
                    "{name} {len}: {error}"
                );
            }
            let mut damaged = whole.clone();
            damaged[whole.len() / 2] ^= 0x10;
            let error = read(&folder.write("bad", &damaged), 512, 1 << 20).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("bad is truncated"), "{error}");
        }
    }

    #[test]
    fn rows_run_on_across_files_and_lines_do_not() {
        let folder = Folder::new("source-files");
        let paths = vec![
            folder.write("a", b"# c\nr0\n\n r1"),
            folder.write("b", b""),
            folder.write("c", b"r2\n\t\r\n#\nr3\n"),
        ];
        let blocks: Vec<Block> = Blocks::new(paths).collect::<Result<_>>().unwrap();
        let rows: Vec<_> =
            blocks.iter().flat_map(|block| block.numbered_rows()).map(|(l, r, _)| (l, r)).collect();
        assert_eq!(rows, [(2, 0), (4, 1), (1, 2), (4, 3)]);
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        for bad in ["/no/such/file", "/"] {
            let mut blocks = Blocks::new(vec![PathBuf::from(bad)]);
            let error = blocks.next().unwrap().unwrap_err().to_string();
            assert!(error.ends_with(&format!(" {bad}")), "{error}");
            assert!(blocks.next().is_none());
        }
    }
}
