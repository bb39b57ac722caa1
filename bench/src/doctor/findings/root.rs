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

    /// The folders of this process's control groups, and of each above them, where limits apply as
    /// well. Version 2 has one tree of groups for all controllers; version 1 has several, below the
    /// name of a controller or of all that a tree has.
    pub(super) fn groups(&self, controller: &str) -> Vec<String> {
        let mut groups = Vec::new();
        for line in self.text("/proc/self/cgroup").unwrap_or_default().lines() {
            let mut words = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(group)) = (words.next(), words.next()) else { continue };
            let mut trees = vec![""];
            if !controllers.is_empty() {
                let is_it = controllers.split(',').any(|it| it == controller);
                trees = if is_it { vec![controller, controllers] } else { Vec::new() };
            }
            for tree in trees {
                let tree = Path::new("/sys/fs/cgroup").join(tree);
                let group = tree.join(group.trim_start_matches('/'));
                let above = group.ancestors().take_while(|it| it.starts_with(&tree));
                groups.extend(above.map(|it| it.display().to_string()));
            }
        }
        groups
    }

    /// The least number in one of these files of this process's control groups.
    pub(super) fn least_of_groups(&self, controller: &str, files: &[&str]) -> Option<f64> {
        let groups = self.groups(controller).into_iter();
        let paths =
            groups.flat_map(|group| files.iter().map(move |file| format!("{group}/{file}")));
        paths.filter_map(|path| self.number(&path)).reduce(f64::min)
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
