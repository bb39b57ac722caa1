//! Where a scheduler keeps its state, so that one that is started again goes on with it.
//!
//! Two files of a folder are written in turn, so that one of them is whole whenever power is lost.
//! Each has a line with its number, its length and its checksum before the state. The whole one
//! with the higher number counts; of what follows from a state that is not whole, nothing was sent.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checkpoint::sync_folder;
use crate::error::{Error, Result};

/// Version of the files.
const FORMAT: u32 = 1;

/// The files that are written in turn.
const FILES: [&str; 2] = ["state-0", "state-1"];

/// The file that the one scheduler of a folder locks.
const LOCK: &str = "lock";

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    number: u64,
    bytes: usize,
    crc32c: u32,
}

/// The folder with the state.
pub(super) struct Keeper {
    folder: PathBuf,
    /// Number of the last state.
    number: u64,
    /// Held while this lives.
    _lock: File,
}

impl Keeper {
    /// Takes a folder, which is made if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] if another scheduler has it, or the system refuses it.
    pub(super) fn open(folder: &Path) -> Result<Keeper> {
        let refused = |error: &dyn std::fmt::Display| {
            let folder = folder.display();
            Error::Config(format!("the scheduler cannot keep its state in {folder}: {error}"))
        };
        let opened = fs::create_dir_all(folder).and_then(|()| {
            File::options().write(true).create(true).truncate(false).open(folder.join(LOCK))
        });
        let lock = opened.map_err(|error| refused(&error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Keeper { folder: folder.to_owned(), number: 0, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(refused(&"another scheduler that runs has its state there; take another folder"))
            }
            Err(TryLockError::Error(error)) => Err(refused(&error)),
        }
    }

    /// The last state that was kept, if there is one.
    ///
    /// # Errors
    /// [`Error::Config`] for files that are there, of which none is whole, or that another version
    /// has written.
    pub(super) fn load<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut found: Option<(u64, Vec<u8>)> = None;
        let mut damaged = Vec::new();
        for name in FILES {
            let path = self.folder.join(name);
            let bytes = match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                read => read.map_err(|error| self.failed("read", &error))?,
            };
            match whole(&bytes) {
                Some((head, state)) if head.format == FORMAT => {
                    if found.as_ref().is_none_or(|(number, _)| *number < head.number) {
                        found = Some((head.number, state.to_vec()));
                    }
                }
                Some((Head { format, .. }, _)) => {
                    let why = format!("{name} has format {format}, this build knows {FORMAT}");
                    return Err(self.failed("read", &why));
                }
                None => damaged.push(name),
            }
        }
        let Some((number, state)) = found else {
            // The first state of all may have been cut off: nobody has heard of it.
            return match damaged.len() {
                0 | 1 => Ok(None),
                _ => Err(self.failed("read", &"both files are damaged")),
            };
        };
        self.number = number;
        serde_json::from_slice(&state).map(Some).map_err(|error| self.failed("read", &error))
    }

    /// Keeps a state, durably.
    ///
    /// # Errors
    /// [`Error::Config`] names the folder and the system's reason.
    pub(super) fn save(&mut self, state: &impl Serialize) -> Result<()> {
        let state = serde_json::to_vec(state)?;
        let number = self.number + 1;
        let crc32c = crc_fast::crc32_iscsi(&state);
        let head = Head { format: FORMAT, number, bytes: state.len(), crc32c };
        let mut text = serde_json::to_vec(&head)?;
        text.push(b'\n');
        text.extend(state);
        let path = self.folder.join(FILES[usize::from(number.is_multiple_of(2))]);
        let is_new = !path.exists();
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_data()?;
            if is_new { sync_folder(&self.folder) } else { Ok(()) }
        });
        written.map_err(|error| self.failed("write", &error))?;
        self.number = number;
        Ok(())
    }

    /// Removes the state: the cluster has ended.
    pub(super) fn clear(&mut self) {
        for name in FILES {
            if let Err(error) = fs::remove_file(self.folder.join(name))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, file = name, "cannot remove the scheduler's state");
            }
        }
    }

    fn failed(&self, what: &str, why: &dyn std::fmt::Display) -> Error {
        let folder = self.folder.display();
        Error::Config(format!("cannot {what} the scheduler's state in {folder}: {why}"))
    }
}

/// The head and the state of a file, if it is whole.
fn whole(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
    let state = &bytes[end + 1..];
    let is_whole = state.len() == head.bytes && crc_fast::crc32_iscsi(state) == head.crc32c;
    is_whole.then_some((head, state))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn keeper(folder: &tempfile::TempDir) -> Keeper {
        Keeper::open(folder.path()).unwrap()
    }

    fn load(folder: &tempfile::TempDir) -> Result<Option<Vec<u32>>> {
        keeper(folder).load()
    }

    #[test]
    fn the_last_whole_state_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(&folder).unwrap(), None);
        for last in 1..=5 {
            let mut keeper = keeper(&folder);
            keeper.load::<Vec<u32>>().unwrap();
            keeper.save(&vec![last; 100]).unwrap();
            drop(keeper);
            assert_eq!(load(&folder).unwrap(), Some(vec![last; 100]));
        }
        // Whatever becomes of the write of the fifth, the fourth is there.
        let path = folder.path().join(FILES[0]);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(load(&folder).unwrap(), Some(vec![4; 100]), "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            fs::write(&path, &damaged).unwrap();
            assert!(matches!(load(&folder), Ok(Some(it)) if it == [4; 100]) || at < 60, "{at}");
        }
        fs::write(folder.path().join(FILES[1]), "").unwrap();
        fs::write(&path, "").unwrap();
        let error = load(&folder).unwrap_err().to_string();
        assert!(error.contains("both files are damaged"), "{error}");
        keeper(&folder).clear();
        assert_eq!(load(&folder).unwrap(), None);
    }

    #[test]
    fn a_folder_has_one_scheduler() {
        let folder = tempfile::tempdir().unwrap();
        let first = keeper(&folder);
        let error = Keeper::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("another scheduler") && error.contains("folder"), "{error}");
        drop(first);
        keeper(&folder);
        let file = folder.path().join(LOCK).join("below");
        let error = Keeper::open(&file).err().unwrap().to_string();
        assert!(error.contains("cannot keep its state in"), "{error}");
    }
}
