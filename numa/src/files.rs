//! Information about devices: directory listings, and the addresses of network interfaces.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::Path;

use crate::ids::NumaId;
use crate::sys;

/// The sorted names in a folder; empty if there is no such folder.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The NUMA node of a device by its folder in `/sys`: its own, or that of the nearest device above
/// it that has an entry; `None` if that names no node. A paravirtual device has no entry itself.
pub fn device_node(device: &Path) -> Option<NumaId> {
    let device = fs::canonicalize(device).ok()?;
    let entry = |at: &Path| read_text(&at.join("numa_node"), NUMBER_BYTES_MAX).ok()?;
    device.ancestors().find_map(entry)?.trim().parse().ok().map(NumaId) // -1 means no node
}

/// The file's text, or `None` if it is longer than `bytes_max`.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let mut text = String::new();
    let read = File::open(path)?.take(bytes_max + 1).read_to_string(&mut text)? as u64;
    Ok((read <= bytes_max).then_some(text))
}

/// The addresses of a network interface, in the system's order; empty if there is no such
/// interface.
///
/// # Errors
/// If the system does not tell.
pub fn interface_addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    sys::interface_addresses(interface)
}

/// No number is longer.
const NUMBER_BYTES_MAX: u64 = 64;

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
