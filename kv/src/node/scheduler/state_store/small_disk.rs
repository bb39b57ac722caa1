//! A folder on a file system that has room for a few files, which only root can mount.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder; it is unmounted when this is dropped.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// With room for `files` files; `None`, with a line, where it cannot be mounted.
    pub(crate) fn new(files: usize) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let options = format!("nr_inodes={}", files + 1); // the folder is one
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "caravan-test"])
            .arg(folder.path())
            .output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            return Some(SmallDisk(folder));
        }
        println!("SKIPPED: only root can mount a small disk");
        None
    }

    /// Its folder.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes the room of a file, which is removed.
    ///
    /// # Panics
    /// If there is room left.
    pub(crate) fn fill(folder: &Path, file: &Path) -> PathBuf {
        let filler = folder.join("filler");
        let _ = std::fs::remove_file(file);
        std::fs::write(&filler, "").expect("a file has left room");
        std::fs::write(folder.join("more"), "").expect_err("the disk is full");
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
