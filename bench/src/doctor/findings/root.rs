//! Files that the kernel tells a machine's state by, below a folder: `/`, or one of a test.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Root(pub(super) PathBuf);

impl Root {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// The text of a file, trimmed; `None` where it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The number that a file begins with.
    pub(super) fn number(&self, path: &str) -> Option<f64> {
        self.text(path)?.split_whitespace().next()?.parse().ok()
    }

    /// The sorted names in a folder.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        caravan_numa::names_in(&self.at(path))
    }

    /// What follows `key` in the first line that begins with it: `Seccomp:` of a status.
    pub(super) fn entry(&self, path: &str, key: &str) -> Option<String> {
        let text = self.text(path)?;
        text.lines().find_map(|line| line.strip_prefix(key)).map(|rest| rest.trim().to_owned())
    }

    /// The number after a key.
    pub(super) fn counted(&self, path: &str, key: &str) -> Option<f64> {
        self.entry(path, key)?.split_whitespace().next()?.parse().ok()
    }

    /// A file of this process's control group and of each above it, where limits apply as well.
    pub(super) fn of_groups(&self, file: &str) -> Vec<String> {
        let group = self.entry("/proc/self/cgroup", "0::").unwrap_or_default();
        let group = Path::new("/sys/fs/cgroup").join(group.trim_start_matches('/'));
        let above = group.ancestors().take_while(|it| it.starts_with("/sys/fs/cgroup"));
        above.filter_map(|group| self.text(&group.join(file).to_string_lossy())).collect()
    }
}

/// How many numbers a kernel's list has, as `0-3,8`.
pub(super) fn list_len(list: &str) -> usize {
    let len = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: usize = first.trim().parse().ok()?;
        let last: usize = last.trim().parse().ok()?;
        Some(last.checked_sub(first)?.saturating_add(1))
    };
    list.split(',').filter_map(len).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted() {
        for (list, len) in [("0-3,8", 5), ("0", 1), ("", 0), ("3-1,x", 0), ("0-1,4-5", 4)] {
            assert_eq!(list_len(list), len, "{list:?}");
        }
    }
}
