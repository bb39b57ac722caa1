//! Writes a file whole or not at all: beside its place first, then renamed into it. Not a log: nobody reads it half way.
//! What a process leaves there that is killed while it writes is removed by the next one that writes the same file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

const BUFFER_BYTES: usize = 1 << 18;

/// How the names of files that are being written end.
const PARTIAL: &str = ".partial";

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
            let name = destination.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            remove_left_behind(&destination, name);
            let (temporary, file) = create_locked(&destination, name)?;
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

/// Creates the file beside `destination`, locked for as long as it is written. Its name is never used twice: who takes an
/// older one for left behind does not remove this one.
fn create_locked(destination: &Path, name: &OsStr) -> io::Result<(PathBuf, File)> {
    static CREATED: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let mut name = name.to_owned();
        name.push(format!(".{}-{number}{PARTIAL}", process::id()));
        let temporary = destination.with_file_name(name);
        let file = File::create(&temporary)?;
        // Where files cannot be locked, none is ever taken for left behind.
        let is_locked = file.lock().is_ok();
        // Between the two lines it may have been.
        if !is_locked || temporary.exists() {
            return Ok((temporary, file));
        }
    }
}

/// Removes what processes that were ended while they wrote `destination` have left beside it: the files nobody holds a lock
/// on, as the system takes it back from whoever ends.
fn remove_left_behind(destination: &Path, name: &OsStr) {
    let folder = destination.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Ok(entries) = fs::read_dir(folder.unwrap_or(Path::new("."))) else { return };
    for entry in entries.flatten() {
        let is_partial = entry.file_name().to_str().zip(name.to_str()).is_some_and(|(at, name)| {
            let number = at.strip_prefix(name).and_then(|rest| rest.strip_suffix(PARTIAL));
            number.and_then(|number| number.strip_prefix('.')).is_some_and(is_number)
        });
        if is_partial && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            // Tidying up is no reason to write nothing.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether that is what [`create_locked`] puts before [`PARTIAL`].
fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
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
    fn what_an_ended_process_has_left_is_removed_and_nothing_else() {
        let folder = Folder::new("left behind");
        let path = folder.path().join("out");
        folder.write("out.1-0.partial", b"half");
        folder.write("out.1.partial", b"half");
        let others = ["out.partial", "out.train.1-0.partial", "out.old.partial", "in.1-0.partial"];
        for other in others {
            folder.write(other, b"whole");
        }
        let mut two = [Replacement::create(&path).unwrap(), Replacement::create(&path).unwrap()];
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), others.len() + 2);
        for (at, one) in two.iter_mut().enumerate() {
            one.write(&[at as u8]).unwrap();
        }
        for (at, one) in two.into_iter().enumerate() {
            one.commit().unwrap();
            assert_eq!(fs::read(&path).unwrap(), [at as u8]);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), others.len() + 1);
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
