//! Where data comes from: a file, or an object of a store by its address.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use caravan_kv::files;
use caravan_kv::objects::{Object, is_address};

use crate::{Error, Result};

/// Checks the names of data that several processes or passes read, before they do: each can be sent
/// to a worker, and none is a pipe or a device, which only one reader would get. Names of what is
/// not there are left to whoever opens them, maybe elsewhere.
///
/// # Errors
/// [`Error::Name`] and [`Error::ReadOnce`] name the file.
pub fn check_shared(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        if path.to_str().is_none() {
            return Err(Error::Name { path: path.clone() });
        }
        let found = fs::metadata(path).ok().filter(|found| !found.is_dir());
        let other = found.filter(|found| !found.is_file());
        if let Some(what) = other.map(|found| files::kind_of(found.file_type())) {
            return Err(Error::ReadOnce { path: path.clone(), what });
        }
    }
    Ok(())
}

/// Plain files that several processes read, as they are before the first one does. What is no plain
/// file here is left out: objects watch themselves, and a file elsewhere is seen by its reader.
#[derive(Debug)]
pub(crate) struct SharedFiles {
    before: Vec<(PathBuf, Stamp)>,
}

impl SharedFiles {
    /// Begins to watch those of these files that are here.
    pub(crate) fn watch(paths: &[PathBuf]) -> Self {
        let stamped = |path: &PathBuf| {
            let found = fs::metadata(path).ok().filter(Metadata::is_file)?;
            Some((path.clone(), Stamp::of(&found)))
        };
        SharedFiles { before: paths.iter().filter_map(stamped).collect() }
    }

    /// Refuses what not all readers have read alike, once all have read it.
    ///
    /// # Errors
    /// [`Error::Changed`] names the file.
    pub(crate) fn check(&self) -> Result<()> {
        for (path, before) in &self.before {
            if fs::metadata(path).ok().is_none_or(|now| Stamp::of(&now) != *before) {
                return Err(Error::Changed { path: path.clone() });
            }
        }
        Ok(())
    }
}

/// An open file or object.
#[derive(Debug)]
pub(crate) enum Input {
    /// A file.
    File(File),
    /// An object.
    Object(Box<Object>),
}

impl Input {
    /// Opens a file, or an object by its address.
    ///
    /// # Errors
    /// [`Error::Open`], also where this program was built without object stores.
    pub(crate) fn open(path: &Path) -> Result<Input> {
        let opened = match path.to_str() {
            Some(address) if is_address(path) => {
                Object::open(address).map(|object| Input::Object(Box::new(object)))
            }
            _ => File::open(path).map(Input::File),
        };
        opened.map_err(|source| Error::Open { path: path.to_path_buf(), source })
    }

    /// As [`Input::open`], but a pipe or a device is refused.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) fn open_plain(path: &Path) -> Result<Input> {
        if is_address(path) {
            return Input::open(path);
        }
        let opened = files::open(path).map(Input::File);
        opened.map_err(|source| Error::Open { path: path.to_path_buf(), source })
    }

    /// Begins to watch a plain file; objects watch themselves.
    ///
    /// # Errors
    /// That of the system.
    pub(super) fn watch(&self) -> io::Result<Option<Watch>> {
        let Input::File(file) = self else { return Ok(None) };
        let found = file.metadata()?;
        let watch = || Ok(Watch { file: file.try_clone()?, opened: Stamp::of(&found) });
        found.is_file().then(watch).transpose()
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// That of the system.
    pub(crate) fn total_bytes(&self) -> io::Result<u64> {
        match self {
            Input::File(file) => Ok(file.metadata()?.len()),
            Input::Object(object) => Ok(object.total_bytes()),
        }
    }
}

/// What is another once a file has other content, whatever its length and its time of modification
/// are set to: the system alone sets the time of change, and a copy has another number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    bytes: u64,
    modified_ns: i128,
    changed_ns: i128,
}

impl Stamp {
    /// That of a file now.
    pub(crate) fn of(found: &Metadata) -> Stamp {
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Stamp {
            inode: found.ino(),
            bytes: found.len(),
            modified_ns: ns(found.mtime(), found.mtime_nsec()),
            changed_ns: ns(found.ctime(), found.ctime_nsec()),
        }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp { inode, bytes, modified_ns, changed_ns } = self;
        write!(f, "{inode} of {bytes} bytes, modified at {modified_ns}, changed at {changed_ns}")
    }
}

/// A plain file as it was when it was opened.
pub(super) struct Watch {
    file: File,
    opened: Stamp,
}

impl Watch {
    /// Refuses a file that is not as it was.
    ///
    /// # Errors
    /// [`Error::Changed`] with `path`; that of the system.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let now = self.file.metadata();
        let now = now.map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
        match Stamp::of(&now) == self.opened {
            true => Ok(()),
            false => Err(Error::Changed { path: path.to_path_buf() }),
        }
    }
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::File(file) => file.read(into),
            Input::Object(object) => object.read(into),
        }
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Input::File(file) => file.seek(to),
            Input::Object(object) => object.seek(to),
        }
    }
}

#[cfg(all(test, not(feature = "stores")))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn without_the_feature_an_address_is_refused_with_the_remedy() {
        let error = Input::open("s3://bucket/t".as_ref()).unwrap_err();
        let said = caravan_kv::error::with_sources(&error);
        assert!(said.contains("s3://bucket/t") && said.contains("--features stores"), "{said}");
    }
}

#[cfg(all(test, unix))]
mod shared {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::ffi::OsStr;
    use std::num::NonZeroUsize;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;
    use crate::data::testing::Folder;
    use crate::data::{KeptRows, Shard, read_packed};

    #[test]
    fn a_file_that_changes_while_others_read_it_is_named() {
        let folder = Folder::new("changes");
        let files = [folder.write("kept", b"1 1:1\n"), folder.write("written", b"1 1:1\n")];
        let none = folder.path().join("none");
        let paths = [files[0].clone(), files[1].clone(), none, folder.path().to_owned()];
        let watched = SharedFiles::watch(&paths);
        watched.check().unwrap();
        // As long as before, and as old.
        let modified = fs::metadata(&files[1]).unwrap().modified().unwrap();
        fs::write(&files[1], b"0 2:2\n").unwrap();
        File::options().write(true).open(&files[1]).unwrap().set_modified(modified).unwrap();
        let said = watched.check().unwrap_err().to_string();
        assert!(said.contains("written has changed while it was read"), "{said}");
        let watched = SharedFiles::watch(&paths);
        fs::remove_file(&files[0]).unwrap();
        let said = watched.check().unwrap_err().to_string();
        assert!(said.contains("kept has changed"), "{said}");
    }

    /// Goal: what one reader alone would get is refused wherever several read. Method: a pipe that
    /// nobody writes to, so that whoever opens it waits for ever.
    #[test]
    fn what_one_reader_alone_gets_is_refused_by_name() {
        let folder = Folder::new("shared");
        let file = folder.write("file", b"1 1:1\n");
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let none = folder.path().join("none");
        check_shared(&[file.clone(), none, folder.path().to_owned()]).unwrap();
        let half = Shard::new(1, 2).unwrap();
        let one = NonZeroUsize::MIN;
        let cache = folder.path().join("cache");
        let paths = [file, pipe];
        for error in [
            check_shared(&paths).unwrap_err(),
            read_packed(&paths, half, one, None).unwrap_err(),
            read_packed(&paths, Shard::ALL, one, Some(&cache)).unwrap_err(),
            KeptRows::open(&paths, Shard::ALL, one, &cache).unwrap_err(),
            crate::kmeans::Points::read(&paths).unwrap_err(),
        ] {
            let said = error.to_string();
            assert!(said.contains("pipe is a pipe") && said.contains("to a file"), "{said}");
        }
        let name = PathBuf::from(OsStr::from_bytes(b"na\xffme"));
        let said = check_shared(&[name]).unwrap_err().to_string();
        assert!(said.contains(r"na\xFFme"), "{said}");
    }
}
