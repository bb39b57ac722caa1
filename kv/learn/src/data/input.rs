//! Where data comes from: a file, or an object of a store by its address.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

#[cfg(feature = "object-stores")]
use super::remote::Object;
use crate::{Error, Result};

/// An open file or object.
#[derive(Debug)]
pub(crate) enum Input {
    /// A file.
    File(File),
    /// An object.
    #[cfg(feature = "object-stores")]
    Object(Box<Object>),
}

/// Addresses of objects begin so.
const SCHEMES: [&str; 3] = ["s3://", "http://", "https://"];

/// Whether a path is the address of an object.
pub(crate) fn is_address(path: &Path) -> bool {
    let text = path.to_str().unwrap_or("");
    SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// The path of `file:///path`; others as they are.
pub(crate) fn without_scheme(path: &Path) -> PathBuf {
    let text = path.to_str().and_then(|text| text.strip_prefix("file://"));
    text.filter(|rest| rest.starts_with('/')).map_or_else(|| path.to_path_buf(), PathBuf::from)
}

impl Input {
    /// Opens a file, or an object by its address.
    ///
    /// # Errors
    /// [`Error::Open`], also where this program was built without object stores.
    pub(crate) fn open(path: &Path) -> Result<Input> {
        let opened = match is_address(path) {
            true => object(path),
            false => File::open(without_scheme(path)).map(Input::File),
        };
        opened.map_err(|source| Error::Open { path: path.to_path_buf(), source })
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// That of the system.
    pub(crate) fn len(&self) -> io::Result<u64> {
        match self {
            Input::File(file) => Ok(file.metadata()?.len()),
            #[cfg(feature = "object-stores")]
            Input::Object(object) => Ok(object.len()),
        }
    }
}

#[cfg(feature = "object-stores")]
fn object(path: &Path) -> io::Result<Input> {
    Object::open(path.to_str().unwrap_or("")).map(|object| Input::Object(Box::new(object)))
}

#[cfg(not(feature = "object-stores"))]
fn object(_: &Path) -> io::Result<Input> {
    let why = "this caravan reads files alone: build it with --features object-stores";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::File(file) => file.read(into),
            #[cfg(feature = "object-stores")]
            Input::Object(object) => object.read(into),
        }
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Input::File(file) => file.seek(to),
            #[cfg(feature = "object-stores")]
            Input::Object(object) => object.seek(to),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::Folder;

    #[test]
    fn addresses_of_files_are_files() {
        let folder = Folder::new("input");
        let path = folder.write("t", b"one\n");
        let address = PathBuf::from(format!("file://{}", path.display()));
        let mut text = String::new();
        Input::open(&address).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\n");
        assert!(!is_address(&address) && is_address("s3://bucket/t".as_ref()));
        assert!(!is_address("s3:/bucket".as_ref()));
        assert_eq!(without_scheme("file://host/t".as_ref()), Path::new("file://host/t"));
    }

    #[cfg(not(feature = "object-stores"))]
    #[test]
    fn without_the_feature_an_address_is_refused_with_the_remedy() {
        let error = Input::open("s3://bucket/t".as_ref()).unwrap_err();
        let said = caravan_kv::error::with_sources(&error);
        assert!(said.contains("s3://bucket/t") && said.contains("object-stores"), "{said}");
    }
}
