//! States in a folder. Two files are written in turn, so that one of them is whole whenever power
//! is lost. Each has a line with its number before the state, and a checksum of both behind it. The
//! whole one with the higher number counts; of what follows from a state that is not whole, nothing
//! was sent, or a node that has heard of it says so.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Failure, Kept};
use crate::checkpoint::sync_folder;
use crate::files;

/// Version of the files.
const FORMAT: u32 = 2;

/// Bytes of a checksum, in hexadecimal digits.
const CHECKSUM_BYTES: usize = 8;

/// Longest state.
const BYTES_MAX: u64 = 1 << 30;

/// The files that are written in turn.
const FILES: [&str; 2] = ["state-0", "state-1"];

/// The file that the one scheduler of a folder locks.
const LOCK: &str = "lock";

/// How long a lock may outlive its scheduler: a child that it was about to start has a copy of all
/// that is open until it has become another program.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two attempts to lock.
const LOCK_NAP: Duration = Duration::from_millis(5);

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    number: u64,
}

/// A folder with the state of one scheduler.
pub(super) struct Folder {
    folder: PathBuf,
    /// Held while this lives.
    _lock: File,
}

impl Folder {
    /// Takes a folder, which is made if there is none.
    ///
    /// # Errors
    /// If another scheduler has it, or the system refuses it.
    pub(super) fn open(folder: &Path) -> Kept<Folder> {
        let opened = fs::create_dir_all(folder)
            .and_then(|()| files::create(&folder.join(LOCK), files::MODE_OWN));
        let lock = opened?;
        let began = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Folder { folder: folder.to_owned(), _lock: lock }),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(LOCK_NAP);
                }
                Err(TryLockError::WouldBlock) => {
                    let why =
                        "another scheduler that runs has its state there; take another folder";
                    return Err(why.into());
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
    }

    /// The last state that was kept, if there is one.
    ///
    /// # Errors
    /// For files that are there, of which none is whole, or that another version has written.
    pub(super) fn load(&mut self) -> Kept<Option<Vec<u8>>> {
        let mut found: Option<(u64, Vec<u8>)> = None;
        let mut damaged = Vec::new();
        for name in FILES {
            let bytes = match files::read_own(&self.folder.join(name), BYTES_MAX) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                read => read.map_err(|error| format!("{name}: {error}"))?,
            };
            match whole(&bytes) {
                Some((Head { format: FORMAT, number }, state)) => {
                    if found.as_ref().is_none_or(|(last, _)| *last < number) {
                        found = Some((number, state.to_vec()));
                    }
                }
                Some((Head { format, .. }, _)) => {
                    let why = format!("{name} has format {format}, this build knows {FORMAT}");
                    return Err(why.into());
                }
                None => damaged.push(name),
            }
        }
        match found {
            Some((number, state)) => {
                for name in damaged {
                    let folder = self.folder.display();
                    tracing::warn!(%folder, number, "{name} is not whole: the other one counts");
                }
                Ok(Some(state))
            }
            // The first state of all may have been cut off: nobody has heard of it.
            None if damaged.len() < FILES.len() => Ok(None),
            None => Err(format!("{} are damaged", FILES.join(" and ")).into()),
        }
    }

    /// Keeps the state of this number, durably, in place of the last but one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn save(&mut self, number: u64, state: &[u8]) -> Kept<()> {
        let mut text = serde_json::to_vec(&Head { format: FORMAT, number })?;
        text.push(b'\n');
        text.extend(state);
        text.extend(checksum(&text).as_bytes());
        if text.len() as u64 > BYTES_MAX {
            return Err(format!("a state of {} bytes is over {BYTES_MAX}", text.len()).into());
        }
        let path = self.folder.join(FILES[usize::from(number.is_multiple_of(2))]);
        let is_new = !path.exists();
        // It has what tasks were given, which is nobody else's.
        let mut file = files::create(&path, files::MODE_OWN)?;
        file.write_all(&text)?;
        file.sync_data()?;
        if is_new {
            sync_folder(&self.folder)?;
        }
        Ok(())
    }

    /// Removes the state.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn clear(&mut self) -> Kept<()> {
        for name in FILES {
            match fs::remove_file(self.folder.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Failure::Full(error.to_string())
            }
            _ => Failure::Other(error.to_string()),
        }
    }
}

/// The head and the state of a file, if it is whole. One of another format has its head alone.
fn whole(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
    if head.format != FORMAT {
        return Some((head, &[]));
    }
    let (text, found) = bytes.split_at(bytes.len().checked_sub(CHECKSUM_BYTES)?);
    let is_whole = end < text.len() && found == checksum(text).as_bytes();
    is_whole.then(|| (head, &text[end + 1..]))
}

/// Of all that stands before it.
fn checksum(text: &[u8]) -> String {
    format!("{:0CHECKSUM_BYTES$x}", crc_fast::crc32_iscsi(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(folder: &tempfile::TempDir) -> Kept<Option<Vec<u8>>> {
        Folder::open(folder.path()).unwrap().load()
    }

    /// As a child has it that was started and has not become another program yet.
    #[test]
    fn a_lock_may_outlive_its_scheduler() {
        let folder = tempfile::tempdir().unwrap();
        let copy = Folder::open(folder.path()).unwrap()._lock.try_clone().unwrap();
        let child = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            drop(copy);
        });
        assert_eq!(load(&folder), Ok(None));
        child.join().unwrap();
    }

    #[test]
    fn the_last_whole_state_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(&folder), Ok(None));
        for last in 1..=5 {
            Folder::open(folder.path()).unwrap().save(last, &[last as u8; 100]).unwrap();
            assert_eq!(load(&folder), Ok(Some(vec![last as u8; 100])));
        }
        for name in FILES {
            let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "others may not read it");
        }
        // Whatever becomes of the write of the fifth, the fourth is there.
        let path = folder.path().join(FILES[0]);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(load(&folder), Ok(Some(vec![4; 100])), "{length} bytes");
        }
        let other = String::from_utf8(whole).unwrap().replace("\"format\":2", "\"format\":9");
        fs::write(&path, other).unwrap();
        let why = load(&folder).unwrap_err().to_string();
        assert!(why.contains("has format 9, this build knows 2"), "{why}");
        FILES.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        assert_eq!(load(&folder), Err("state-0 and state-1 are damaged".into()));
        Folder::open(folder.path()).unwrap().clear().unwrap();
        assert_eq!(load(&folder), Ok(None));
    }

    /// Every bit of the last state counts, those of its number as well.
    #[test]
    fn no_bit_of_a_state_can_change() {
        let folder = tempfile::tempdir().unwrap();
        let mut state_store = Folder::open(folder.path()).unwrap();
        state_store.save(8, b"the eighth").unwrap();
        state_store.save(9, b"the ninth").unwrap();
        drop(state_store);
        let path = folder.path().join(FILES[0]);
        let whole = fs::read(&path).unwrap();
        for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            fs::write(&path, &damaged).unwrap();
            match load(&folder) {
                Ok(state) => assert_eq!(state.as_deref(), Some(&b"the eighth"[..]), "{at}.{bit}"),
                Err(why) => assert!(why.to_string().contains("state-0 has format"), "{why}"),
            }
        }
    }

    #[test]
    fn a_full_disk_is_told_apart() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            assert!(matches!(Failure::from(io::Error::from(kind)), Failure::Full(_)));
        }
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FILES[1])).unwrap();
        let mut state_store = Folder::open(folder.path()).unwrap();
        assert!(matches!(state_store.save(2, b"the second"), Err(Failure::Other(_))));
    }

    #[test]
    fn a_state_that_others_may_write_or_have_linked_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut state_store = Folder::open(folder.path()).unwrap();
        state_store.save(1, b"first").unwrap();
        state_store.save(2, b"second").unwrap();
        let path = folder.path().join(FILES[0]);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let why = state_store.load().unwrap_err().to_string();
        assert!(why.contains("state-0: others may write to it (mode 666)"), "{why}");
        let why = state_store.save(3, b"third").unwrap_err().to_string();
        assert!(why.contains("others may write to it"), "{why}");
        let victim = folder.path().join("victim");
        fs::rename(&path, &victim).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        for why in [state_store.load().unwrap_err(), state_store.save(3, b"third").unwrap_err()] {
            let why = why.to_string();
            assert!(why.contains("it is a link"), "{why}");
        }
        assert_eq!(fs::read(&victim).unwrap(), b"");
        drop(state_store);
        fs::remove_file(folder.path().join(LOCK)).unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(LOCK)).unwrap();
        let why = Folder::open(folder.path()).err().unwrap().to_string();
        assert!(why.contains("it is a link"), "{why}");
    }

    #[test]
    fn a_folder_has_one_scheduler() {
        let folder = tempfile::tempdir().unwrap();
        let first = Folder::open(folder.path()).unwrap();
        let why = Folder::open(folder.path()).err().unwrap().to_string();
        assert!(why.contains("another scheduler") && why.contains("folder"), "{why}");
        drop(first);
        Folder::open(folder.path()).unwrap();
        assert!(Folder::open(&folder.path().join(LOCK).join("below")).is_err());
    }
}
