//! A worker's packed rows as arrays on disk, so that later runs parse no text, and so that rows
//! need not fit into memory: then each block of them is a file (`kept`).
//!
//! A folder holds one file for each list of text files and shard. It is valid only for their paths,
//! [`Stamp`]s, the shard, and [`VERSION`]. A stale or damaged file is logged
//! and made again from the text. Files are written whole or not at all.
//!
//! Arrays are read into the memory that training uses, not mapped: that memory is freed once
//! columns are built, and a mapping would depend on other writers of the file.
//!
//! ```text
//! 8 bytes magic | u64 order: 1, as this machine writes it | u64 version | u64 bytes of identity
//! u64 rows | u64 nonzeros | u64 bytes of deltas | u64 1 if there are values
//! u64 smallest key | u64 largest key
//! identity | lengths u32 | deltas u8 | values f64 | labels i8 | CRC32C of all that, u32
//! ```

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use caravan_kv::files;
use caravan_kv::objects::{Object, is_address};
use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::input::Stamp;
use super::{PackedRows, Shard};
use crate::replace_file::Replacement;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"caravanC";

/// Version of the layout, of keys, and of what counts as a value; incremented when any of them
/// changes.
const VERSION: u64 = 3;

/// Numbers after the magic.
const HEAD: usize = 9;
const CHECKSUM_BYTES: usize = 4;

/// Returns the cached rows of these files from `folder`, or else those that `make` reads, which are
/// then cached.
///
/// # Errors
/// Those of `make`; [`Error::Read`] if a text file cannot be examined. A failure to read or write
/// the cache is only logged.
pub(super) fn read_or_make(
    folder: &Path,
    paths: &[PathBuf],
    shard: Shard,
    make: impl FnOnce() -> Result<PackedRows>,
) -> Result<PackedRows> {
    let identity = identity(paths, shard)?;
    let file = folder.join(name(paths, shard));
    match load(&file, identity.as_bytes()) {
        Ok(Some(data)) => return Ok(data),
        Ok(None) => {}
        Err(reason) => {
            tracing::warn!("{} is not used and will be replaced: {reason}", file.display());
        }
    }
    let data = make()?;
    if let Err(error) = store(&file, identity.as_bytes(), &data) {
        let error = caravan_kv::error::with_sources(&error);
        tracing::warn!("the next run has to read text again: {error}");
    }
    Ok(data)
}

/// Everything the data depends on, as text.
pub(super) fn identity(paths: &[PathBuf], shard: Shard) -> Result<String> {
    let mut text = format!("shard {} of {}\n", shard.index, shard.count);
    for path in paths {
        if let (true, Some(address)) = (is_address(path), path.to_str()) {
            text +=
                &of_object(address).map_err(|source| Error::Open { path: path.clone(), source })?;
            continue;
        }
        let at_read = |source| Error::Read { path: path.clone(), source };
        let stamp = Stamp::of(&fs::metadata(path).map_err(at_read)?);
        text += &format!("{:?} is {stamp}\n", fs::canonicalize(path).map_err(at_read)?);
    }
    Ok(text)
}

/// As [`identity`], of one object.
fn of_object(address: &str) -> std::io::Result<String> {
    let object = Object::open(address)?;
    let bytes = object.total_bytes();
    match object.tag() {
        Some(tag) => Ok(format!("{address} of {bytes} bytes, tagged {tag}\n")),
        None => {
            let why = "its store has no tags that change with it: leave out the cache";
            Err(std::io::Error::new(ErrorKind::Unsupported, why))
        }
    }
}

/// The file of a block of a shard's rows.
pub(super) fn block_path(folder: &Path, paths: &[PathBuf], shard: Shard, block: usize) -> PathBuf {
    folder.join(name(paths, shard)).with_extension(format!("{block}.caravan"))
}

/// Depends only on paths and shard, so that a stale file is replaced.
fn name(paths: &[PathBuf], shard: Shard) -> String {
    let full = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let listed = paths.iter().map(|path| format!("{:?}\n", full(path))).collect::<String>();
    let first = paths.first().and_then(|path| path.file_name()).unwrap_or_default();
    let first = first.to_string_lossy();
    let list = crc32_iscsi(listed.as_bytes());
    format!("{first}-{list:08x}-{}-of-{}.caravan", shard.index, shard.count)
}

/// `None` if there is no such file; else why it cannot be used. Anyone who may write to the folder
/// may have put anything there.
pub(super) fn load(path: &Path, identity: &[u8]) -> Result<Option<PackedRows>, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut input = match files::open_unlinked(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => Summed {
            len: 0,
            crc: Digest::new(CrcAlgorithm::Crc32Iscsi),
            file: opened.map_err(text)?,
        },
    };
    input.len = input.file.metadata().map_err(text)?.len();
    let mut magic = [0; 8];
    let mut head = [0_u64; HEAD];
    input.fill(&mut magic).and_then(|()| input.fill(&mut head)).map_err(text)?;
    let [order, version, identity_len, rows, nonzeros, deltas, has_values, first, last] = head;
    if magic != *MAGIC || order != 1 || version != VERSION {
        return Err(format!("it is no cache of version {VERSION} from a machine like this"));
    }
    // In u128, because the numbers are not trusted yet; no more is allocated than the file holds.
    let expected = (size_of_val(&magic) + size_of_val(&head) + CHECKSUM_BYTES) as u128
        + u128::from(identity_len)
        + u128::from(rows) * 5
        + u128::from(deltas)
        + u128::from(nonzeros) * u128::from(has_values) * 8;
    if expected != u128::from(input.len) || has_values > 1 || nonzeros > deltas {
        return Err(format!("it should have {expected} bytes, not {}", input.len));
    }
    let mut found = vec![0; identity_len as usize];
    input.fill(&mut found).map_err(text)?;
    if found != identity {
        return Err("the text has changed since it was made".to_owned());
    }
    let mut data = PackedRows {
        labels: vec![0; rows as usize],
        lengths: vec![0; rows as usize],
        deltas: vec![0; deltas as usize],
        values: (has_values == 1).then(|| vec![0.0; nonzeros as usize]),
        nonzeros: nonzeros as usize,
        range: (nonzeros > 0).then_some((first, last)),
    };
    input.fill_rows(&mut data).map_err(text)?;
    let summed = input.crc.finalize() as u32;
    let mut stored = 0_u32;
    input.fill(std::slice::from_mut(&mut stored)).map_err(text)?;
    if stored != summed {
        return Err("it is damaged: its checksum does not fit".to_owned());
    }
    if !is_sane(&data) {
        return Err("its arrays contradict each other".to_owned());
    }
    Ok(Some(data))
}

/// A file being read, and the checksum of what was read.
struct Summed {
    file: File,
    len: u64,
    crc: Digest,
}

impl Summed {
    fn fill<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        into: &mut [T],
    ) -> std::io::Result<()> {
        self.file.read_exact(into.as_mut_bytes())?;
        self.crc.update(into.as_bytes());
        Ok(())
    }

    fn fill_rows(&mut self, rows: &mut PackedRows) -> std::io::Result<()> {
        self.fill::<u32>(&mut rows.lengths)?;
        self.fill::<u8>(&mut rows.deltas)?;
        rows.values.iter_mut().try_for_each(|values| self.fill::<f64>(values))?;
        self.fill::<i8>(&mut rows.labels)
    }
}

/// Whether training can use these arrays, whatever they hold.
fn is_sane(rows: &PackedRows) -> bool {
    rows.is_sound()
        && rows.labels.iter().all(|&label| label == 1 || label == -1)
        && rows.values.iter().flatten().all(|value| value.is_finite())
}

/// Writes rows to a file, and makes its folder.
///
/// # Errors
/// [`Error::Write`] and [`Error::NoFile`].
pub(super) fn store(path: &Path, identity: &[u8], rows: &PackedRows) -> Result<()> {
    if let Some(folder) = path.parent() {
        let at_make = |source| Error::Write { path: folder.to_path_buf(), source };
        fs::create_dir_all(folder).map_err(at_make)?;
    }
    let PackedRows { labels, lengths, deltas, values, nonzeros, range } = rows;
    let (first, last) = range.unwrap_or_default();
    let mut head = [1, VERSION, 0, 0, 0, 0, u64::from(values.is_some()), first, last];
    let counts = [identity.len(), labels.len(), *nonzeros, deltas.len()];
    head[2..6].copy_from_slice(&counts.map(|count| count as u64));
    let mut file = Replacement::create(path)?;
    let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in [
        &MAGIC[..],
        head.as_bytes(),
        identity,
        lengths.as_bytes(),
        deltas.as_bytes(),
        values.as_deref().unwrap_or_default().as_bytes(),
        labels.as_bytes(),
    ] {
        crc.update(part);
        file.write(part)?;
    }
    file.write((crc.finalize() as u32).as_bytes())?;
    file.commit()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::num::NonZeroUsize;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::data::{read_packed, testing::Folder};

    fn make() -> Result<PackedRows> {
        panic!("the text is read");
    }

    /// The only file in the cache.
    fn file(cache: &Path) -> PathBuf {
        let mut files = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
        let file = files.next().unwrap();
        assert!(files.next().is_none());
        file
    }

    #[test]
    fn what_was_kept_is_what_was_read_until_the_text_changes() {
        let folder = Folder::new("cache-kept");
        let cache = folder.path().join("a/b");
        for text in ["1 3:1 18446744073709551615:1\n\n-1 3:1\n1\n", "-1 2:0.5 9:3\n1 9:1\n", ""] {
            let paths = [folder.write("t", text.as_bytes())];
            let read = |cache| read_packed(&paths, Shard::ALL, NonZeroUsize::MIN, cache).unwrap();
            let plain = read(None);
            assert_eq!(read(Some(&cache)), plain);
            assert_eq!(read_or_make(&cache, &paths, Shard::ALL, make).unwrap(), plain);
        }
        file(&cache);
        let paths = [folder.path().join("t")];
        let other = Shard::new(1, 2).unwrap();
        let found = load(&cache.join(name(&paths, other)), b"");
        assert_eq!(found, Ok(None), "another shard's file is another");
        let missing = [folder.path().join("none")];
        assert!(matches!(read_or_make(&cache, &missing, other, make), Err(Error::Read { .. })));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason_and_made_again() {
        let folder = Folder::new("cache-refused");
        let cache = folder.path().join("cache");
        let paths = [folder.write("t", b"1 3:0.5 7:1\n-1 7:2\n")];
        let read = || read_packed(&paths, Shard::ALL, NonZeroUsize::MIN, Some(&cache)).unwrap();
        let plain = read();
        let path = file(&cache);
        let identity = identity(&paths, Shard::ALL).unwrap();
        let whole = fs::read(&path).unwrap();
        let changed = |at: usize, to: u8| {
            let mut bytes = whole.clone();
            bytes[at] = to;
            bytes
        };
        let end = whole.len();
        let resummed = |mut bytes: Vec<u8>| {
            let crc = crc32_iscsi(&bytes[..end - CHECKSUM_BYTES]);
            bytes[end - CHECKSUM_BYTES..].copy_from_slice(crc.as_bytes());
            bytes
        };
        for (bytes, reason) in [
            (whole[..40].to_vec(), "failed to fill whole buffer"),
            (whole[..end - 1].to_vec(), "it should have"),
            (changed(0, b'x'), "it is no cache of version 3"),
            (changed(16, 2), "it is no cache of version 3"),
            (changed(8, 0), "it is no cache of version 3 from a machine like this"),
            (changed(47, 0xff), "it should have"),
            (changed(80, b'x'), "the text has changed since it was made"),
            (changed(end - 30, 0x55), "it is damaged: its checksum does not fit"),
            (resummed(changed(end - 5, 3)), "its arrays contradict each other"),
        ] {
            fs::write(&path, &bytes).unwrap();
            let found = load(&path, identity.as_bytes());
            assert!(found.as_ref().is_err_and(|why| why.contains(reason)), "{reason}: {found:?}");
            assert_eq!(read(), plain);
            assert_eq!(fs::read(&path).unwrap(), whole, "it was made again");
        }
        for (at, byte) in whole.iter().enumerate() {
            fs::write(&path, changed(at, byte ^ 0x10)).unwrap();
            assert!(load(&path, identity.as_bytes()).is_err(), "byte {at}");
        }
    }

    /// Goal: other content in the place of a text is not taken for it, though its length and its
    /// time of modification are the same. Method: a copy in its place, and the file itself written
    /// anew, until the system's clock has gone on.
    #[test]
    fn a_text_of_the_same_length_and_time_is_another() {
        let folder = Folder::new("cache-same");
        let cache = folder.path().join("cache");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let date = |path: &Path| {
            File::options().append(true).open(path).unwrap().set_modified(long_ago).unwrap();
            Stamp::of(&fs::metadata(path).unwrap())
        };
        let path = folder.write("t", b"1 3:1\n");
        let keys = || {
            let paths = std::slice::from_ref(&path);
            read_packed(paths, Shard::ALL, NonZeroUsize::MIN, Some(&cache)).unwrap().key_range()
        };
        let first = date(&path);
        assert_eq!((keys(), keys()), (Some((3, 3)), Some((3, 3))));
        date(&folder.write("copy", b"1 4:1\n"));
        fs::rename(folder.path().join("copy"), &path).unwrap();
        assert_eq!(keys(), Some((4, 4)), "a copy in its place");
        let copy = Stamp::of(&fs::metadata(&path).unwrap());
        assert_ne!(copy, first);
        loop {
            fs::write(&path, b"1 5:1\n").unwrap();
            if date(&path) != copy {
                break;
            }
        }
        assert_eq!(keys(), Some((5, 5)), "the file itself");
    }

    /// Neither read, nor waited for, nor written through: training continues from the text.
    #[test]
    fn a_pipe_or_a_link_that_others_put_there_is_no_cache() {
        let folder = Folder::new("cache-planted");
        let (cache, victim) = (folder.path().join("cache"), folder.write("victim", b"precious"));
        fs::create_dir(&cache).unwrap();
        let paths = [folder.write("t", b"1 3:1\n")];
        let read = |cache| read_packed(&paths, Shard::ALL, NonZeroUsize::MIN, cache).unwrap();
        let entry = cache.join(name(&paths, Shard::ALL));
        let made = std::process::Command::new("mkfifo").arg(&entry).status();
        assert!(made.unwrap().success());
        assert_eq!(read(Some(&cache)), read(None));
        assert!(load(&entry, b"").is_err_and(|said| said.contains("it is a pipe")));
        fs::remove_file(&entry).unwrap();
        std::os::unix::fs::symlink(&victim, &entry).unwrap();
        assert_eq!(read(Some(&cache)), read(None));
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_cache_that_cannot_be_written_costs_only_time() {
        let folder = Folder::new("cache-unwritable");
        let paths = [folder.write("t", b"1 3:1\n")];
        let no_folder = folder.write("file", b"");
        let read = |cache| read_packed(&paths, Shard::ALL, NonZeroUsize::MIN, cache).unwrap();
        assert_eq!(read(Some(&no_folder)), read(None));
    }
}
