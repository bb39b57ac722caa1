//! Information about devices: directory listings, and the addresses of network interfaces.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::sys;

/// The sorted names in a folder; empty if there is no such folder.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The addresses of a network interface, in the system's order; empty if there is no such
/// interface.
///
/// # Errors
/// If the system does not tell.
pub fn interface_addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    sys::interface_addresses(interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_a_missing_folder_has_none() {
        let names = names_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        assert!(names.is_sorted() && names.iter().any(|name| name == "files.rs"), "{names:?}");
        assert!(names_in(Path::new("/no/such/folder")).is_empty());
    }
}
