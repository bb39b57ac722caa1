//! A worker's packed rows in blocks on disk, for data that does not fit into memory.
//!
//! Each block is a cache file of its own (`cache`) with [`BLOCK_ROWS`] rows. The last one has
//! fewer, maybe none, so that a list of blocks that was cut off is never taken for a whole one.
//! Text is read once, block by block; after that only blocks are, one at a time.
//!
//! Path: source > libsvm > packed > **blocks on disk** > screening > `Columns` of a block.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::read::read_parts;
use super::{ByKey, Examples, Labels, PackedRows, Shard, cache, check_shared};
use crate::{Error, Result};

/// Rows of a block: as many as 16 bits can number.
pub(crate) const BLOCK_ROWS: usize = 1 << 16;

/// Packed rows in blocks on disk.
#[derive(Debug)]
pub(crate) struct KeptRows {
    blocks: Vec<PathBuf>,
    identity: String,
    /// `[rows]`, each +1 or -1.
    labels: Vec<i8>,
    nonzeros: usize,
    range: Option<(u64, u64)>,
    has_values: bool,
    bytes_max: usize,
    nonzeros_max: usize,
}

impl KeptRows {
    /// The blocks of these files in `folder`; made from the text unless they are there.
    ///
    /// # Errors
    /// As [`super::read`]; [`Error::Write`] if a block cannot be written.
    pub(crate) fn open(
        paths: &[PathBuf],
        shard: Shard,
        threads: NonZeroUsize,
        folder: &Path,
    ) -> Result<Self> {
        check_shared(paths)?;
        let name = |block| cache::block_path(folder, paths, shard, block);
        let mut found = Self::none(cache::identity(paths, shard)?);
        loop {
            let path = name(found.blocks.len());
            match cache::load(&path, found.identity_of(found.blocks.len()).as_bytes()) {
                Ok(Some(rows)) => {
                    found.note(path, &rows);
                    if rows.labels.len() < BLOCK_ROWS {
                        return Ok(found);
                    }
                }
                Ok(None) => break,
                Err(reason) => {
                    tracing::warn!("{} will be replaced: {reason}", path.display());
                    break;
                }
            }
        }
        let mut kept = Self::none(found.identity);
        let mut rest = PackedRows::default();
        let pack = |part: Examples| PackedRows::from(&part);
        read_parts(paths, (shard, Labels::Classes), threads, pack, |part| {
            rest.append(&part);
            while rest.labels.len() >= BLOCK_ROWS {
                let block = rest.take_first(BLOCK_ROWS);
                kept.store(name(kept.blocks.len()), &block)?;
            }
            Ok(())
        })?;
        kept.store(name(kept.blocks.len()), &rest)?;
        Ok(kept)
    }

    fn none(identity: String) -> Self {
        KeptRows {
            blocks: Vec::new(),
            identity,
            labels: Vec::new(),
            nonzeros: 0,
            range: None,
            has_values: false,
            bytes_max: 0,
            nonzeros_max: 0,
        }
    }

    fn identity_of(&self, block: usize) -> String {
        format!("{}block {block} of {BLOCK_ROWS} rows\n", self.identity)
    }

    fn store(&mut self, path: PathBuf, rows: &PackedRows) -> Result<()> {
        cache::store(&path, self.identity_of(self.blocks.len()).as_bytes(), rows)?;
        self.note(path, rows);
        Ok(())
    }

    fn note(&mut self, path: PathBuf, rows: &PackedRows) {
        self.blocks.push(path);
        self.labels.extend_from_slice(&rows.labels);
        self.nonzeros += rows.nonzeros;
        let both = self.range.into_iter().chain(rows.range);
        self.range = both.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
        self.has_values |= rows.values.is_some();
        self.bytes_max = self.bytes_max.max(rows.bytes());
        self.nonzeros_max = self.nonzeros_max.max(rows.nonzeros);
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Smallest and largest key.
    pub(crate) fn key_range(&self) -> Option<(u64, u64)> {
        self.range
    }

    /// Number of entries.
    pub(crate) fn nonzeros(&self) -> usize {
        self.nonzeros
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Reads a block, whose first row is number `block` times [`BLOCK_ROWS`].
    ///
    /// # Errors
    /// [`Error::Read`] if it is not what was written.
    pub(crate) fn block(&self, block: usize) -> Result<PackedRows> {
        let path = &self.blocks[block];
        let why = match cache::load(path, self.identity_of(block).as_bytes()) {
            Ok(Some(rows)) => return Ok(rows),
            Ok(None) => "it was removed while it was in use".to_owned(),
            Err(reason) => reason,
        };
        Err(Error::Read { path: path.clone(), source: std::io::Error::other(why) })
    }

    /// Whether any value is not 1.
    pub(crate) fn has_values(&self) -> bool {
        self.has_values
    }

    /// Size in memory of the largest block.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Most entries of a block.
    pub(crate) fn nonzeros_max(&self) -> usize {
        self.nonzeros_max
    }
}

/// A worker's rows.
#[derive(Debug)]
pub(crate) enum Share {
    /// In memory.
    Held(PackedRows),
    /// On disk.
    Kept(KeptRows),
}

impl Default for Share {
    fn default() -> Self {
        Share::Held(PackedRows::default())
    }
}

impl Share {
    /// `[rows]`, each +1 or -1.
    pub(crate) fn labels(&self) -> &[i8] {
        match self {
            Share::Held(rows) => &rows.labels,
            Share::Kept(rows) => &rows.labels,
        }
    }

    /// Number of entries.
    pub(crate) fn nonzeros(&self) -> usize {
        match self {
            Share::Held(rows) => rows.nonzeros,
            Share::Kept(rows) => rows.nonzeros,
        }
    }

    /// Smallest and largest key.
    pub(crate) fn key_range(&self) -> Option<(u64, u64)> {
        match self {
            Share::Held(rows) => rows.range,
            Share::Kept(rows) => rows.range,
        }
    }

    /// Calls `visit` with all rows, part by part in their order, and the number of the part's first
    /// row.
    ///
    /// # Errors
    /// As [`KeptRows::block`].
    pub(crate) fn for_each_part(&self, mut visit: impl FnMut(usize, &PackedRows)) -> Result<()> {
        match self {
            Share::Held(rows) => visit(0, rows),
            Share::Kept(rows) => {
                for block in 0..rows.blocks() {
                    visit(block * BLOCK_ROWS, &rows.block(block)?);
                }
            }
        }
        Ok(())
    }

    /// Number of rows of each key, up to 255.
    ///
    /// # Errors
    /// As [`Share::for_each_part`].
    pub(crate) fn counts(&self) -> Result<ByKey<u8>> {
        let mut counts = ByKey::new(self.key_range(), self.nonzeros());
        self.for_each_part(|_, rows| rows.count(&mut counts))?;
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;

    use super::*;
    use crate::data::{read_packed, testing::Folder};

    /// Rows of one to three keys, every fourth with a value.
    fn text(rows: usize) -> String {
        let row = |at: usize| match at % 4 {
            0 => format!("1 {}:0.5\n", at % 50 + 1),
            1 => format!("-1 {}:1 90000:1\n", at % 7 + 1),
            2 => "1\n".to_owned(),
            _ => format!("-1 1:1 {}:1 80:1\n", at % 60 + 2),
        };
        (0..rows).map(row).collect()
    }

    #[test]
    fn blocks_hold_the_rows_in_order_and_are_made_once() {
        let folder = Folder::new("kept-rows");
        let cache = folder.path().join("cache");
        for rows in [BLOCK_ROWS + 7, BLOCK_ROWS, 5] {
            let paths = [folder.write("t", text(rows).as_bytes())];
            let one = NonZeroUsize::MIN;
            let whole = read_packed(&paths, Shard::ALL, one, None).unwrap();
            let mut written = None;
            for _ in 0..2 {
                let kept = KeptRows::open(&paths, Shard::ALL, one, &cache).unwrap();
                assert_eq!(kept.blocks(), rows / BLOCK_ROWS + 1);
                assert!(kept.has_values());
                let largest = (0..kept.blocks()).map(|at| kept.block(at).unwrap().bytes()).max();
                assert_eq!(Some(kept.bytes_max()), largest);
                let first = cache::block_path(&cache, &paths, Shard::ALL, 0);
                let at = fs::metadata(first).unwrap().modified().unwrap();
                assert_eq!(written.replace(at).unwrap_or(at), at, "the second time it is read");
                let share = Share::Kept(kept);
                assert_eq!(share.labels(), whole.labels());
                assert_eq!(share.nonzeros(), whole.nonzeros());
                assert_eq!(share.key_range(), whole.key_range());
                let mut all = PackedRows::default();
                share
                    .for_each_part(|first, part| {
                        assert_eq!(first, all.labels.len());
                        assert!(part.is_sound());
                        all.append(part);
                    })
                    .unwrap();
                assert_eq!(all, whole);
                let sorted = |share: &Share| share.counts().unwrap().sorted(|count| count > 0);
                assert_eq!(sorted(&share), sorted(&Share::Held(whole.clone())));
            }
        }
    }

    /// Neither a block that changed nor a list without its end is used.
    #[test]
    fn what_is_damaged_or_cut_off_is_named_in_use_and_made_again_before() {
        let folder = Folder::new("kept-damaged");
        let cache = folder.path().join("cache");
        let paths = [folder.write("t", text(BLOCK_ROWS + 7).as_bytes())];
        let open = || KeptRows::open(&paths, Shard::ALL, NonZeroUsize::MIN, &cache).unwrap();
        let kept = open();
        let blocks = [0, 1].map(|at| cache::block_path(&cache, &paths, Shard::ALL, at));
        let whole = blocks.clone().map(|path| fs::read(path).unwrap());
        for block in [0, 1] {
            let mut bytes = whole[block].clone();
            let end = bytes.len();
            bytes[end - 6] ^= 1;
            fs::write(&blocks[block], bytes).unwrap();
            let error = kept.block(block).unwrap_err();
            let error = caravan_kv::error::with_sources(&error);
            let path = blocks[block].display().to_string();
            assert!(error.contains(&path) && error.contains("damaged"), "{error}");
            open();
            assert_eq!(fs::read(&blocks[block]).unwrap(), whole[block]);
            fs::remove_file(&blocks[block]).unwrap();
            let error = caravan_kv::error::with_sources(&kept.block(block).unwrap_err());
            assert!(error.contains("was removed"), "{error}");
            open();
            assert_eq!(fs::read(&blocks[block]).unwrap(), whole[block]);
        }
    }
}
