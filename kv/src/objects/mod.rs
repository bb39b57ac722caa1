//! Objects of S3-style stores, by addresses like `s3://BUCKET/KEY`.
//!
//! A build has them by its feature `stores`; without it they are refused with that remedy. Settings
//! are the `AWS_*` variables that tools of S3 have, and `object_store` reads them itself: keys,
//! region, `AWS_ENDPOINT` of another store, `AWS_SKIP_SIGNATURE` for public buckets.

#[cfg_attr(not(feature = "stores"), path = "left_out.rs")]
mod s3;

use std::io;
use std::path::Path;

use crate::checkpoint::{Disk, Folder};
pub use s3::Object;
use s3::Prefix;

/// What addresses begin with.
const SCHEME: &str = "s3://";

/// Whether a path is the address of an object, rather than of a file.
pub fn is_address(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.starts_with(SCHEME))
}

/// What holds checkpoints: a folder, or all objects below an address, which are there once they are
/// whole.
///
/// # Errors
/// What is wrong with the address or the `AWS_*` variables, or that this build has no stores.
pub fn disk(path: &Path) -> io::Result<Box<dyn Disk>> {
    Ok(match path.to_str() {
        Some(address) if is_address(path) => Box::new(Prefix::open(address)?),
        _ => Box::new(Folder::new(path)),
    })
}
