//! Writes a file whole or not at all: to a partial file beside it, which is then renamed. Not for
//! logs: nobody can read it half way.
//!
//! Only a plain file of this user is replaced, and its mode is kept. Others who may write to the
//! folder can put a link or a pipe there: no link is followed, and no pipe is waited for. A process
//! that is killed while it writes leaves its partial file behind; the next one that writes the same
//! file removes it.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, IntoInnerError, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use caravan_kv::checkpoint::sync_folder;
use caravan_kv::files;
use tempfile::{Builder, NamedTempFile};

use crate::{Error, Result};

const BUFFER_BYTES: usize = 1 << 18;

/// Suffix of partial files.
const PARTIAL: &str = ".partial";

/// Random letters and digits before the suffix.
const DRAWN: usize = 12;

/// Most partial files to begin while other processes take each for left behind.
const ATTEMPTS: usize = 8;

/// Mode of a new file, before the process's mask.
const MODE: u32 = 0o666;

/// Writes `bytes` to `path`, whole or not at all.
///
/// # Errors
/// [`Error::Write`] and [`Error::NoFile`]; then the file is unchanged.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = Replacement::create(path)?;
    file.write(bytes)?;
    file.commit()
}

/// Checks that `path` can be written, before the work that will fill it.
///
/// # Errors
/// As [`replace`]; the file is unchanged in any case.
pub fn check(path: &Path) -> Result<()> {
    Replacement::create(path).map(drop)
}

/// A file being written beside `destination`. Dropping it without [`commit`](Self::commit) leaves
/// no trace.
pub struct Replacement {
    destination: PathBuf,
    writer: BufWriter<NamedTempFile>,
}

impl Replacement {
    /// Starts a replacement of `path`.
    ///
    /// # Errors
    /// As [`replace`].
    pub fn create(path: &Path) -> Result<Self> {
        let destination = path.to_path_buf();
        let failed = |source| Error::Write { path: path.to_path_buf(), source };
        let mode = match fs::symlink_metadata(path) {
            Ok(found) => Some(mode_of(path, &found)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        let partial = create_partial(path, mode).map_err(failed)?;
        Ok(Self { destination, writer: BufWriter::with_capacity(BUFFER_BYTES, partial) })
    }

    /// Appends `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.writer.write_all(bytes);
        written.map_err(|source| Error::Write { path: self.destination.clone(), source })
    }

    /// Takes what is to be appended.
    pub fn writer(&mut self) -> &mut impl Write {
        &mut self.writer
    }

    /// Moves the file into place, so that it survives a loss of power.
    ///
    /// # Errors
    /// [`Error::Write`]; then the file is unchanged.
    pub fn commit(self) -> Result<()> {
        let Self { destination, writer } = self;
        let put = || -> io::Result<()> {
            let partial = writer.into_inner().map_err(IntoInnerError::into_error)?;
            partial.as_file().sync_all()?;
            partial.persist(&destination).map_err(|failed| failed.error)?;
            sync_folder(folder_of(&destination))
        };
        put().map_err(|source| Error::Write { path: destination.clone(), source })
    }
}

/// The mode of an existing file, if it is a plain file that nobody else has put there.
fn mode_of(path: &Path, found: &Metadata) -> Result<u32> {
    let path = path.to_path_buf();
    if !found.is_file() {
        return Err(Error::NoFile { path, what: files::kind_of(found.file_type()) });
    }
    files::check_owner(found).map_err(|source| Error::Write { path, source })?;
    Ok(found.permissions().mode() & 0o777)
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Creates the partial file beside `destination`, and locks it while it is written. Names are never
/// reused: a process that takes an older one for left behind does not remove this one.
fn create_partial(destination: &Path, mode: Option<u32>) -> io::Result<NamedTempFile> {
    let name = destination.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = folder_of(destination);
    remove_left_behind(folder, name);
    let mut prefix = name.to_owned();
    prefix.push(".");
    let mut builder = Builder::new();
    builder.prefix(&prefix).rand_bytes(DRAWN).suffix(PARTIAL);
    let mut options = File::options();
    options.write(true).create_new(true).mode(mode.unwrap_or(MODE));
    for _ in 0..ATTEMPTS {
        let partial = builder.make_in(folder, |path| options.open(path))?;
        // Where files cannot be locked, none is ever taken for left behind.
        let is_taken = matches!(partial.as_file().try_lock(), Err(TryLockError::WouldBlock));
        if !is_taken && partial.path().exists() {
            if let Some(mode) = mode {
                partial.as_file().set_permissions(Permissions::from_mode(mode))?;
            }
            return Ok(partial);
        }
    }
    let reason = format!(
        "another process locks or removes {}.*{PARTIAL} as soon as it is there: end it, or write elsewhere",
        destination.display()
    );
    Err(io::Error::new(ErrorKind::WouldBlock, reason))
}

/// Removes partial files of `name` left by killed processes: those that nobody locks, because the
/// system releases the locks of a process that ends.
fn remove_left_behind(folder: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let is_left = is_partial(&entry.file_name(), name)
            && files::open_unlinked(&entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if is_left {
            // A failed clean-up is no reason to write nothing.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a file has the name of one of [`create_partial`]'s for `name`.
fn is_partial(beside: &OsStr, name: &OsStr) -> bool {
    let drawn = beside.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
    let drawn = drawn.and_then(|rest| rest.strip_prefix(b"."));
    let drawn = drawn.and_then(|rest| rest.strip_suffix(PARTIAL.as_bytes()));
    drawn.is_some_and(|drawn| drawn.len() == DRAWN && drawn.iter().all(u8::is_ascii_alphanumeric))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::data::testing::Folder;

    fn entries(folder: &Folder) -> usize {
        fs::read_dir(folder.path()).unwrap().count()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

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
        assert_eq!(entries(&folder), 1);
    }

    #[test]
    fn what_an_ended_process_has_left_is_removed_and_nothing_else() {
        let folder = Folder::new("left behind");
        let path = folder.path().join("out");
        folder.write("out.abcdef012345.partial", b"half");
        folder.write("out.ABCDEFGHIJKL.partial", b"half");
        let others = [
            "out.partial",
            "out.train.abcdef012345.partial",
            "out.abcdef0123456.partial",
            "out.abcdef.12345.partial",
            "in.abcdef012345.partial",
        ];
        for other in others {
            folder.write(other, b"whole");
        }
        let mut two = [Replacement::create(&path).unwrap(), Replacement::create(&path).unwrap()];
        assert_eq!(entries(&folder), others.len() + 2);
        for (at, one) in two.iter_mut().enumerate() {
            one.write(&[at as u8]).unwrap();
        }
        for (at, one) in two.into_iter().enumerate() {
            one.commit().unwrap();
            assert_eq!(fs::read(&path).unwrap(), [at as u8]);
        }
        assert_eq!(entries(&folder), others.len() + 1);
    }

    /// Locks of others, pipes and links under the names of partial files: no wait, no link
    /// followed, nothing removed.
    #[test]
    fn what_others_put_beside_it_is_left_alone() {
        let folder = Folder::new("planted");
        let path = folder.write("out", b"old");
        let locked = File::open(folder.write("out.LOCKEDLOCKED.partial", b"theirs")).unwrap();
        locked.lock().unwrap();
        let victim = folder.write("victim", b"precious");
        symlink(&victim, folder.path().join("out.LINKLINKLINK.partial")).unwrap();
        let _socket = UnixListener::bind(folder.path().join("out.SOCKETSOCKET.partial")).unwrap();
        let fifo = folder.path().join("out.FIFOFIFOFIFO.partial");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(entries(&folder), 6);
    }

    #[test]
    fn an_old_file_keeps_its_mode_and_a_new_one_has_that_of_the_mask() {
        let folder = Folder::new("modes");
        let plain = folder.write("plain", b"");
        let path = folder.path().join("out");
        replace(&path, b"new").unwrap();
        assert_eq!(mode(&path), mode(&plain), "as any file that is made here");
        for kept in [0o600, 0o640, 0o666, 0o755] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            let mut file = Replacement::create(&path).unwrap();
            assert_eq!(mode(file.writer.get_ref().path()), kept, "while it is written, too");
            file.write(b"newer").unwrap();
            file.commit().unwrap();
            assert_eq!(mode(&path), kept);
        }
    }

    #[test]
    fn only_a_plain_file_is_replaced() {
        let folder = Folder::new("no file");
        let victim = folder.write("victim", b"precious");
        let at = |name: &str| folder.path().join(name);
        symlink(&victim, at("link")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let before = entries(&folder);
        for (path, what) in [
            (at("link"), "is a link; name the file that it leads to"),
            (at("dangling"), "is a link"),
            (at("folder"), "is a directory"),
            (at("fifo"), "is a pipe"),
            (at("socket"), "is a device or a socket"),
            (PathBuf::from("/dev/null"), "is a device or a socket"),
        ] {
            for refused in [check(&path), replace(&path, b"new")] {
                let said = refused.unwrap_err().to_string();
                assert!(said.contains(what) && said.contains(path.to_str().unwrap()), "{said}");
            }
        }
        assert_eq!((entries(&folder), fs::read(&victim).unwrap()), (before, b"precious".to_vec()));
    }

    #[test]
    fn a_file_of_another_user_is_not_replaced() {
        let folder = Folder::new("other user");
        let path = folder.write("out", b"theirs");
        if std::os::unix::fs::chown(&path, Some(65_534), None).is_err() {
            println!("skipped: only root may give files away");
            return;
        }
        for refused in [check(&path), replace(&path, b"new")] {
            let said = caravan_kv::error::with_sources(&refused.unwrap_err());
            assert!(said.contains("user 65534 owns it"), "{said}");
        }
        assert_eq!((entries(&folder), fs::read(&path).unwrap()), (1, b"theirs".to_vec()));
    }

    #[test]
    fn names_the_file_it_cannot_write() {
        for path in ["/no/such/folder/m", "/proc/self/m", ""] {
            let error = check(Path::new(path)).unwrap_err();
            assert!(matches!(&error, Error::Write { .. }), "{error:?}");
            assert_eq!(error.to_string(), format!("cannot write {path}"));
        }
    }

    #[test]
    fn a_check_leaves_no_trace() {
        let folder = Folder::new("check");
        let old = folder.write("old", b"old");
        check(&old).unwrap();
        check(&folder.path().join("new")).unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"old");
        assert_eq!(entries(&folder), 1);
    }
}
