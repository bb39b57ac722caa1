//! Where checkpoints lie: a folder, or in tests a disk that fails.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::files;

/// Named files. What was written survives a loss of power only after [`Disk::sync`], and a new or
/// other name only after [`Disk::sync_names`].
pub trait Disk {
    /// Appends to a file, which is created if it does not exist.
    ///
    /// # Errors
    /// Of the system, as for all functions here.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Makes the content of a file durable; it is not written any more.
    ///
    /// # Errors
    /// Of the system.
    fn sync(&mut self, name: &str) -> io::Result<()>;

    /// Gives a file another name, which it replaces.
    ///
    /// # Errors
    /// Of the system.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Makes all names durable.
    ///
    /// # Errors
    /// Of the system.
    fn sync_names(&mut self) -> io::Result<()>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Of the system.
    fn open(&self, name: &str) -> io::Result<Box<dyn Read>>;

    /// Deletes a file that is not being written.
    ///
    /// # Errors
    /// Of the system.
    fn remove(&mut self, name: &str) -> io::Result<()>;

    /// The names of all files.
    ///
    /// # Errors
    /// Of the system.
    fn names(&self) -> io::Result<Vec<String>>;
}

impl Disk for Box<dyn Disk> {
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.as_mut().append(name, bytes)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.as_mut().sync(name)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.as_mut().rename(from, to)
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.as_mut().sync_names()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read>> {
        self.as_ref().open(name)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.as_mut().remove(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.as_ref().names()
    }
}

/// A folder of a file system.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Files that are being written.
    open: BTreeMap<String, File>,
}

impl Folder {
    /// This folder, which is created with the first file in it.
    pub fn new(path: impl Into<PathBuf>) -> Folder {
        Folder { path: path.into(), open: BTreeMap::new() }
    }
}

impl Disk for Folder {
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if !self.open.contains_key(name) {
            fs::create_dir_all(&self.path)?;
            let file = files::create_new(&self.path.join(name), files::MODE)?;
            self.open.insert(name.to_owned(), file);
        }
        self.open.get_mut(name).map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.open.remove(name).map_or(Ok(()), |file| file.sync_all())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync_names(&mut self) -> io::Result<()> {
        sync_folder(&self.path)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(files::open_unlinked(&self.path.join(name))?))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
        names.collect()
    }
}

/// Makes the names in a folder durable. Ignores a folder that may not be opened, or that its file
/// system does not sync separately.
///
/// # Errors
/// Of the system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let Ok(folder) = File::open(folder) else { return Ok(()) };
    match folder.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_others_have_planted_is_neither_read_nor_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "precious").unwrap();
        symlink(at("victim"), at("1.0.0.rows")).unwrap();
        symlink("/dev/zero", at("1.manifest")).unwrap();
        let mut disk = Folder::new(folder.path());
        for name in ["1.0.0.rows", "1.manifest"] {
            assert!(disk.open(name).err().unwrap().to_string().contains("it is a link"));
            disk.append(name, b"rows").unwrap_err();
        }
        assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
        disk.append("2.0.0.rows", b"ro").unwrap();
        disk.append("2.0.0.rows", b"ws").unwrap();
        disk.sync("2.0.0.rows").unwrap();
        assert_eq!(fs::read(at("2.0.0.rows")).unwrap(), b"rows");
    }
}
