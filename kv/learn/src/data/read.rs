//! Reads text files of any known format in parallel, as rows or packed. The formats themselves are
//! elsewhere.
//!
//! Path: source > **read** (libsvm, criteo, grouped) > `Examples` or `PackedRows`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::labels::Second;
use super::libsvm::Fault;
use super::ordered::map_in_order;
use super::source::{Block, Blocks};
use super::words::words;
use super::{
    Cut, Examples, Labels, PackedRows, Shard, cache, check_shared, criteo, grouped, libsvm,
};
use crate::Result;

/// Reads the rows of `shard` from `paths`, plain or compressed, in order; row numbers continue from
/// file to file.
///
/// Each file is LIBSVM text, or a click log as Criteo, adfea or terafea has it, as its first rows
/// tell together.
/// `threads` parse while one more reads and decompresses; the result does not depend on them. Rows
/// of other shards are skipped unparsed. An explicit value of 0 is checked like any other, and then
/// dropped.
///
/// # Errors
/// The first one in the order of the files: a file that cannot be read ([`crate::Error::Open`],
/// [`crate::Error::Read`], [`crate::Error::Decompress`], [`crate::Error::LineTooLong`]) or parsed
/// ([`crate::Error::Syntax`], [`crate::Error::DuplicateKey`], [`crate::Error::ThirdClass`]).
pub fn read(paths: &[PathBuf], shard: Shard, threads: NonZeroUsize) -> Result<Examples> {
    read_as(Labels::Classes, paths, shard, threads)
}

/// As [`read`], with labels that are not those of two classes.
///
/// # Errors
/// As [`read`].
pub fn read_as(
    labels: Labels,
    paths: &[PathBuf],
    shard: Shard,
    threads: NonZeroUsize,
) -> Result<Examples> {
    let mut all = Examples::default();
    let sink = |part: Examples| {
        all.append(&part);
        Ok(())
    };
    read_parts(paths, (shard, labels), threads, |part| part, sink)?;
    Ok(all)
}

/// The names of files, for an error message.
pub fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// As [`read`], but into packed rows, which take a fraction of the memory. With a folder `cache`,
/// the rows are cached there, and read from there while the files are the same.
///
/// # Errors
/// As [`read`].
pub fn read_packed(
    paths: &[PathBuf],
    shard: Shard,
    threads: NonZeroUsize,
    cache: Option<&Path>,
) -> Result<PackedRows> {
    // Caches know files by what stays the same from one reading to the next.
    if cache.is_some() || shard != Shard::ALL {
        check_shared(paths)?;
    }
    let from_text = || {
        let mut all = PackedRows::default();
        let pack = |part: Examples| PackedRows::from(&part);
        read_parts(paths, (shard, Labels::Classes), threads, pack, |part| {
            all.append(&part);
            Ok(())
        })?;
        Ok(all)
    };
    match cache {
        Some(folder) => cache::read_or_make(folder, paths, shard, from_text),
        None => from_text(),
    }
}

/// Reads the rows of a block of a file. Errors count its lines from the beginning of the block.
///
/// # Errors
/// As [`read`].
pub fn read_cut(cut: &Cut) -> Result<Examples> {
    let (mut all, mut second) = (Examples::default(), None);
    for rows in cut.rows(Labels::Classes) {
        let (rows, of_block) = rows?;
        Second::join(&mut second, of_block)?;
        all.append(&rows);
    }
    Ok(all)
}

/// Parses all of `text`; `path` only appears in errors.
///
/// # Errors
/// As [`read`], for its text.
pub fn parse(path: &Path, text: &[u8]) -> Result<Examples> {
    let mut block =
        Block { path: path.into(), first_line: 1, first_row: 0, rows: 0, text: text.to_vec() };
    block.rows = block.numbered_rows().count() as u64;
    let parsed =
        rows_of(std::iter::once(Ok(block)), None, vec![Shard::ALL], Labels::Classes).next();
    parsed.unwrap_or_else(|| Ok(Vec::new())).map(|mut rows| rows.pop().unwrap_or_default())
}

/// Hands the rows of a shard to `sink` in order, block by block, each converted by `make` on the
/// thread that parsed it.
pub(super) fn read_parts<T: Send>(
    paths: &[PathBuf],
    (shard, labels): (Shard, Labels),
    threads: NonZeroUsize,
    make: impl Fn(Examples) -> T + Sync,
    mut sink: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let blocks = formatted(Blocks::new(paths.to_vec()), None);
    let parse = |block: Formatted| {
        let second = block.second(labels)?;
        let rows = block.parse(shard, labels).map(&make)?;
        Ok((rows, second))
    };
    let mut second = None;
    map_in_order(threads, blocks, parse, |(rows, of_block)| {
        Second::join(&mut second, of_block)?;
        sink(rows)
    })
}

/// The rows of each of these shards, block by block. `format` is that of the first file, where the
/// blocks are not of its beginning.
pub(super) fn rows_of(
    blocks: impl Iterator<Item = Result<Block>>,
    format: Option<Format>,
    shards: Vec<Shard>,
    labels: Labels,
) -> impl Iterator<Item = Result<Vec<Examples>>> {
    let mut second = None;
    parsed(blocks, format, shards, labels).map(move |block| {
        let (rows, of_block) = block?;
        Second::join(&mut second, of_block)?;
        Ok(rows)
    })
}

/// As [`rows_of`], each block with how it writes the second class: it is not compared with others.
pub(super) fn parsed(
    blocks: impl Iterator<Item = Result<Block>>,
    format: Option<Format>,
    shards: Vec<Shard>,
    labels: Labels,
) -> impl Iterator<Item = Result<(Vec<Examples>, Option<Second>)>> {
    formatted(blocks, format).map(move |block| {
        let block = block?;
        let rows = shards.iter().map(|shard| block.parse(*shard, labels)).collect::<Result<_>>()?;
        Ok((rows, block.second(labels)?))
    })
}

/// A format of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Libsvm,
    Criteo,
    Terafea,
    Adfea,
}

/// Rows that tell the format of their file.
const TELLING_ROWS: usize = 16;

impl Format {
    /// That of a file.
    ///
    /// # Errors
    /// As [`read`].
    pub(super) fn of_file(path: &Path) -> Result<Format> {
        for block in Blocks::new(vec![path.to_path_buf()]) {
            let block = block?;
            if block.rows > 0 {
                return Ok(Format::of(&block));
            }
        }
        Ok(Format::Libsvm)
    }

    /// The one that most of a file's first rows have, the earlier one if several have as many.
    fn of(block: &Block) -> Format {
        let first = block.numbered_rows().take(TELLING_ROWS);
        let votes: Vec<Format> = first.filter_map(|(_, _, text)| Self::of_row(text)).collect();
        let count = |format: &Format| votes.iter().filter(|vote| *vote == format).count();
        // Of equal counts the last is taken.
        votes.iter().rev().copied().max_by_key(count).unwrap_or(Format::Libsvm)
    }

    /// That of a row; `None` if it is well formed in none.
    fn of_row(text: &[u8]) -> Option<Format> {
        let has_pair = || words(text).nth(1).is_none_or(|(_, word)| word.contains(&b':'));
        match () {
            () if criteo::is_row(text) => Some(Format::Criteo),
            () if grouped::is_terafea(text) => Some(Format::Terafea),
            () if grouped::is_adfea(text) => Some(Format::Adfea),
            () => has_pair().then_some(Format::Libsvm),
        }
    }
}

/// A block with the format of its file.
struct Formatted {
    block: Block,
    format: Format,
}

/// Blocks with the formats of their files, which the first rows of each tell together, unless that
/// of the first is known.
fn formatted(
    blocks: impl Iterator<Item = Result<Block>>,
    mut first: Option<Format>,
) -> impl Iterator<Item = Result<Formatted>> {
    let mut known: Option<(Arc<Path>, Format)> = None;
    blocks.map(move |block| {
        let block = block?;
        let same = known.as_ref().filter(|(path, _)| Arc::ptr_eq(path, &block.path));
        let same = same.map(|(_, format)| *format).or(first);
        let format = same.unwrap_or_else(|| Format::of(&block));
        if block.rows > 0 {
            known = Some((block.path.clone(), format));
            first = None;
        }
        Ok(Formatted { block, format })
    })
}

impl Formatted {
    /// The rows of a shard.
    fn parse(&self, shard: Shard, labels: Labels) -> Result<Examples> {
        let Formatted { block, format } = self;
        let parse_row = match format {
            Format::Libsvm => libsvm::parse_row,
            Format::Criteo => criteo::parse_row,
            Format::Terafea => grouped::parse_terafea,
            Format::Adfea => grouped::parse_adfea,
        };
        let mut part = Examples { rows_in_all_shards: block.rows, ..Examples::default() };
        for (line, _, text) in block.numbered_rows().filter(|&(_, row, _)| shard.owns(row)) {
            parse_row(text, labels, &mut part)
                .map_err(|fault: Fault| fault.at(&block.path, line, text))?;
        }
        Ok(part)
    }

    /// How the second class is written, where a third could be taken for it.
    fn second(&self, labels: Labels) -> Result<Option<Second>> {
        match (labels, self.format) {
            (Labels::Classes, Format::Libsvm) => Second::of(&self.block),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::{cut, testing::Folder};

    /// Goal: a file has one format, whatever single rows look like, in all its blocks.
    #[test]
    fn the_first_rows_tell_the_format_together() {
        let folder = Folder::new("formats");
        let criteo = |label: u32| format!("{label}{}\n", "\t7".repeat(39));
        let short = format!("0\t1\t2\n{}", criteo(1).repeat(3));
        let path = folder.write("short", short.as_bytes());
        let error = read(std::slice::from_ref(&path), Shard::ALL, NonZeroUsize::MIN).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("short:1:") && said.contains("39 fields"), "{said}");
        // A block of its own begins with the row that looks otherwise.
        let text = format!("{}7 1 3 5:2\n", criteo(0).repeat(20));
        let at = text.rfind("7 1 3").unwrap() as u64;
        let path = folder.write("cut", text.as_bytes());
        let error = read_cut(&cut(&[path], at).unwrap()[1]).unwrap_err().to_string();
        assert!(error.contains("39 fields") || error.contains("0 or 1"), "{error}");
        // Rows without entries are LIBSVM's, too.
        let path = folder.write("empty", b"1\n0\n1 3:1\n");
        let rows = read(&[path], Shard::ALL, NonZeroUsize::MIN).unwrap();
        assert_eq!((rows.rows(), rows.nonzeros()), (3, 1));
    }
}
