//! Writes a file whole or not at all: beside its place first, then renamed into it. Not a log: nobody reads it half way.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;

use crate::{Error, Result};

const BUFFER_BYTES: usize = 1 << 18;

/// Writes `bytes` to `path`, whole or not at all.
///
/// # Errors
/// [`Error::Write`]; then the file is as it was.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = Replacement::create(path)?;
    file.write(bytes)?;
    file.commit()
}

/// Whether `path` can be written, before the work that is to fill it. A device or a pipe is not looked at: opening it says
/// something to who reads it.
///
/// # Errors
/// [`Error::Write`]; the file is as it was in any case.
pub fn check(path: &Path) -> Result<()> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    Replacement::create(path).map(drop)
}

/// A file being written beside `destination`. Dropped without [`commit`](Self::commit), it leaves no trace.
pub(crate) struct Replacement {
    destination: PathBuf,
    /// None when the destination is a device or a pipe, which is written directly: a rename would replace it.
    temporary: Option<PathBuf>,
    writer: BufWriter<File>,
}

impl Replacement {
    /// Starts a replacement of `path`; a link is followed, so that its target is what gets replaced.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let destination = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let open = || -> io::Result<_> {
            if fs::metadata(&destination).is_ok_and(|found| !found.is_file()) {
                return Ok((None, File::options().write(true).open(&destination)?));
            }
            let mut name = destination.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
            name.push(format!(".{}.partial", process::id()));
            let temporary = destination.with_file_name(name);
            let file = File::create(&temporary)?;
            Ok((Some(temporary), file))
        };
        match open() {
            Ok((temporary, file)) => {
                let writer = BufWriter::with_capacity(BUFFER_BYTES, file);
                Ok(Self { destination, temporary, writer })
            }
            Err(source) => Err(Error::Write { path: path.to_path_buf(), source }),
        }
    }

    /// Appends `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|source| self.error(source))
    }

    /// Puts what was written into place.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.try_commit().map_err(|source| self.error(source))
    }

    fn try_commit(&mut self) -> io::Result<()> {
        self.writer.flush()?;
        if let Some(temporary) = &self.temporary {
            self.writer.get_ref().sync_all()?;
            fs::rename(temporary, &self.destination)?;
            self.temporary = None;
        }
        Ok(())
    }

    fn error(&self, source: io::Error) -> Error {
        Error::Write { path: self.destination.clone(), source }
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The error that brought us here is the one to report, not that of tidying up.
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::Folder;

    #[test]
    fn replaces_whole_or_not_at_all() {
        let folder = Folder::new("replace");
        let path = folder.write("out", b"old");
        let mut dropped = Replacement::create(&path).unwrap();
        dropped.write(b"half").unwrap();
        drop(dropped);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let mut kept = Replacement::create(&path).unwrap();
        kept.write(b"new").unwrap();
        kept.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        if !Path::new("/dev/null").exists() {
            return eprintln!("skipped: no /dev/null here");
        }
        let mut null = Replacement::create(Path::new("/dev/null")).unwrap();
        null.write(b"gone").unwrap();
        null.commit().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn names_the_file_it_cannot_write() {
        let Err(error) = Replacement::create(Path::new("/no/such/folder/m")) else {
            panic!("wrote")
        };
        assert!(error.to_string().contains("/no/such/folder/m"), "{error}");
        assert_eq!(
            check(Path::new("/no/such/folder/m")).unwrap_err().to_string(),
            error.to_string()
        );
    }

    #[test]
    fn a_check_leaves_no_trace() {
        let folder = Folder::new("check");
        let old = folder.write("old", b"old");
        check(&old).unwrap();
        check(&folder.path().join("new")).unwrap();
        check(folder.path()).expect_err("a folder");
        assert_eq!(fs::read(&old).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
