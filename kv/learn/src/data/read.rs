//! Reads text files of any known format in parallel, as rows or packed. The formats themselves are
//! elsewhere.
//!
//! Path: source > **read** (libsvm, criteo, grouped) > `Examples` or `PackedRows`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::libsvm::Fault;
use super::ordered::map_in_order;
use super::source::{Block, Blocks};
use super::{Cut, Examples, PackedRows, Shard, cache, check_shared, criteo, grouped, libsvm};
use crate::Result;

/// Reads the rows of `shard` from `paths`, plain or compressed, in order; row numbers continue from
/// file to file.
///
/// Each file is LIBSVM text, or a click log as Criteo, adfea or terafea has it, as its rows tell.
/// `threads` parse while one more reads and decompresses; the result does not depend on them. Rows
/// of other shards are skipped unparsed. An explicit value of 0 is checked like any other, and then
/// dropped.
///
/// # Errors
/// The first one in the order of the files: a file that cannot be read ([`crate::Error::Open`],
/// [`crate::Error::Read`], [`crate::Error::Decompress`], [`crate::Error::LineTooLong`]) or parsed
/// ([`crate::Error::Syntax`], [`crate::Error::DuplicateKey`]).
pub fn read(paths: &[PathBuf], shard: Shard, threads: NonZeroUsize) -> Result<Examples> {
    let mut all = Examples::default();
    let sink = |part: Examples| {
        all.append(&part);
        Ok(())
    };
    read_parts(paths, shard, threads, |part| part, sink)?;
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
        read_parts(paths, shard, threads, pack, |part| {
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
    let mut all = Examples::default();
    cut.rows().try_for_each(|rows| rows.map(|rows| all.append(&rows)))?;
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
    parse_block(&block, Shard::ALL)
}

/// Hands the rows of a shard to `sink` in order, block by block, each converted by `make` on the
/// thread that parsed it.
pub(super) fn read_parts<T: Send>(
    paths: &[PathBuf],
    shard: Shard,
    threads: NonZeroUsize,
    make: impl Fn(Examples) -> T + Sync,
    sink: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let blocks = Blocks::new(paths.to_vec());
    let parse = |block: Block| parse_block(&block, shard).map(&make);
    map_in_order(threads, blocks, parse, sink)
}

/// Appends one row to the rows of a block.
type ParseRow = fn(&[u8], &mut Examples) -> Result<(), Fault>;

/// Parses the rows of a shard. The block's first row tells the format of its file.
pub(super) fn parse_block(block: &Block, shard: Shard) -> Result<Examples> {
    let mut part = Examples { rows_in_all_shards: block.rows, ..Examples::default() };
    let first = block.numbered_rows().next();
    let parse_row: ParseRow = match first {
        Some((_, _, text)) if criteo::is_row(text) => criteo::parse_row,
        Some((_, _, text)) if grouped::is_terafea(text) => grouped::parse_terafea,
        Some((_, _, text)) if grouped::is_adfea(text) => grouped::parse_adfea,
        _ => libsvm::parse_row,
    };
    for (line, _, text) in block.numbered_rows().filter(|&(_, row, _)| shard.owns(row)) {
        parse_row(text, &mut part).map_err(|fault| fault.at(&block.path, line, text))?;
    }
    Ok(part)
}
