//! What the system says of devices and threads in files.

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

/// Time that this thread has had a core for so far, in nanoseconds; 0 where the system does not say.
pub fn thread_cpu_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
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

    #[test]
    fn time_on_a_core_only_grows() {
        let before = thread_cpu_ns();
        while before > 0 && thread_cpu_ns() == before {
            std::hint::spin_loop();
        }
        assert!(thread_cpu_ns() >= before);
    }
}
