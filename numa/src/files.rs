//! What the system says of devices in files.

use std::fs;
use std::path::Path;

/// The names of what lies in a folder, sorted; none if there is no such folder.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
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
