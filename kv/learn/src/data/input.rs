//! Where data comes from: a file, or an object of a store by its address.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use caravan_kv::files;
use caravan_kv::objects::{Object, is_address};

use crate::{Error, Result};

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
