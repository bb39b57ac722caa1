//! What tests share; the location of the reference sets.

pub(crate) mod example;
pub(crate) mod jobs;
pub(crate) mod reference;
#[cfg(feature = "stores")]
pub(crate) mod s3;

use std::path::{Path, PathBuf};

/// The folder with the sets; without it, prints that and returns `None`.
pub(crate) fn data_folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("CARAVAN_DATA").map_or(beside, PathBuf::from);
    if folder.join("optima.csv").exists() {
        return Some(folder);
    }
    eprintln!("skipped: no reference sets in {} (set CARAVAN_DATA)", folder.display());
    None
}
