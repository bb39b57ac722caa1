//! The files that a worker reads on an order.
//!
//! An order comes from another process, perhaps on another machine, and a worker has its user's
//! rights. A launched worker was started by the very process that gives the orders, and may read
//! any file. Any other worker reads and caches below one folder only.

use std::fs;
use std::path::{Component, Path, PathBuf};

use caravan_kv::NodeConfig;
use caravan_kv::objects::is_address;

use crate::data::check_shared;

/// The folder that contains all files of orders, or the address that all objects of orders begin
/// with; `None` is everywhere.
#[derive(Debug, Clone)]
pub(crate) struct DataRoot(Option<PathBuf>);

impl DataRoot {
    /// The folder of a worker with these settings.
    ///
    /// # Errors
    /// If there is no such folder.
    pub(crate) fn of(config: &NodeConfig) -> Result<Self, String> {
        let root = match &config.data_root {
            Some(root) => root,
            None if config.launched => return Ok(DataRoot(None)),
            None => &PathBuf::from("."),
        };
        if is_address(root) {
            return Ok(DataRoot(Some(root.clone())));
        }
        let found = fs::canonicalize(root);
        let found = found.map_err(|error| {
            let root = root.display();
            format!("cannot look into the data root {root} ({error}): name a folder (--data-root, CARAVAN_DATA_ROOT)")
        });
        found.map(|root| DataRoot(Some(root)))
    }

    /// Any file, for code that takes no orders.
    pub(crate) fn anywhere() -> Self {
        DataRoot(None)
    }

    /// The files that an order has `readers` workers or parts read.
    ///
    /// # Errors
    /// As [`DataRoot::allow`]; a file that only one of several readers would get.
    pub(crate) fn files(&self, paths: &[PathBuf], readers: usize) -> Result<Vec<PathBuf>, String> {
        let files: Vec<PathBuf> =
            paths.iter().map(|path| self.allow(path)).collect::<Result<_, _>>()?;
        match readers {
            0 | 1 => Ok(files),
            _ => check_shared(&files).map_err(|error| error.to_string()).map(|()| files),
        }
    }

    /// The file that `path` names, which is below the root. It need not exist yet.
    ///
    /// # Errors
    /// If it is outside the root, or could be once it exists. The error does not reveal whether
    /// anything exists outside.
    pub(crate) fn allow(&self, path: &Path) -> Result<PathBuf, String> {
        let Some(root) = &self.0 else { return Ok(path.to_path_buf()) };
        let found = match is_address(root) || is_address(path) {
            true => below(root, path),
            false => resolve(&root.join(path)).filter(|found| found.starts_with(root)),
        };
        found.ok_or_else(|| {
            format!(
                "{} is not below {}, the data root of this worker: move it there, or start the worker with another one (--data-root, CARAVAN_DATA_ROOT)",
                path.display(),
                root.display()
            )
        })
    }
}

/// The address of an object below the address `root`, or of one that `path` names from there on.
fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    let (root, path) = (root.to_str()?.trim_end_matches('/'), path.to_str()?);
    let rest = match path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')) {
        Some(rest) => rest,
        None if path.starts_with('/') || is_address(Path::new(path)) => return None,
        None => path,
    };
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('%');
    let is_below = is_address(Path::new(root)) && rest.split('/').all(is_plain);
    is_below.then(|| format!("{root}/{rest}").into())
}

/// `path` without links and `..`. The part that does not exist yet has neither.
fn resolve(path: &Path) -> Option<PathBuf> {
    let there = path.ancestors().find_map(|at| Some((at, fs::canonicalize(at).ok()?)));
    let (at, found) = there?;
    let rest = path.strip_prefix(at).ok()?;
    let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    // A link to a missing file could lead anywhere.
    let leads_on = rest.components().next().is_some_and(|first| found.join(first).is_symlink());
    (is_plain && !leads_on).then(|| match rest.as_os_str().is_empty() {
        true => found,
        false => found.join(rest),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::data::testing::Folder;

    fn root(folder: &Path) -> DataRoot {
        let config = NodeConfig { data_root: Some(folder.to_path_buf()), ..NodeConfig::default() };
        DataRoot::of(&config).expect("it is there")
    }

    #[test]
    fn only_what_is_below_the_root_is_read() {
        let folder = Folder::new("data-root");
        let data = folder.path().join("data");
        fs::create_dir_all(data.join("sub")).expect("there is room");
        fs::create_dir(folder.path().join("database")).expect("there is room");
        let at = |name: &str| data.join(name);
        for name in ["data/a", "data/sub/b", "secret", "database/c"] {
            folder.write(name, b"1 1:1\n");
        }
        symlink(folder.path().join("secret"), at("out")).expect("there is room");
        symlink(folder.path(), at("up")).expect("there is room");
        symlink(folder.path().join("later"), at("dangling")).expect("there is room");
        symlink(at("a"), at("in")).expect("there is room");
        // The root may be named by a link itself.
        symlink(&data, folder.path().join("link")).expect("there is room");
        for root in [root(&data), root(&folder.path().join("link"))] {
            let real = fs::canonicalize(&data).expect("it is there");
            for (name, found) in [
                ("a", "a"),
                ("sub/b", "sub/b"),
                ("sub/../a", "a"),
                ("in", "a"),
                ("not/yet/there", "not/yet/there"),
                ("", ""),
            ] {
                let found = if found.is_empty() { real.clone() } else { real.join(found) };
                assert_eq!(root.allow(Path::new(name)), Ok(found.clone()), "{name}");
                assert_eq!(root.allow(&at(name)), Ok(found), "{name}");
            }
            for name in [
                "out",
                "up/secret",
                "up/nothing",
                "dangling",
                "dangling/below",
                "../secret",
                "../nothing",
                "sub/../../secret",
                "not/../../secret",
                "..",
                "../database/c",
                "/etc/passwd",
                "/no/such/file",
                "/",
            ] {
                let said = root.allow(Path::new(name)).expect_err(name);
                assert!(said.contains(name) && said.contains("--data-root"), "{said}");
            }
        }
    }

    #[test]
    fn only_objects_below_an_address_are_read() {
        let of_store = root(Path::new("s3://bucket/data/"));
        for (path, found) in
            [("s3://bucket/data/a", "s3://bucket/data/a"), ("a/b.gz", "s3://bucket/data/a/b.gz")]
        {
            assert_eq!(of_store.allow(Path::new(path)), Ok(found.into()), "{path}");
        }
        for path in [
            "s3://bucket/database/a",
            "s3://other/data/a",
            "s3://bucket/data/../a",
            "s3://bucket/data",
            "../a",
            "a/%2e%2e/b",
            "/etc/passwd",
            "",
        ] {
            of_store.allow(Path::new(path)).expect_err(path);
        }
        let folder = Folder::new("data-root-of-files");
        let said = root(folder.path()).allow(Path::new("s3://bucket/secret"));
        assert!(said.is_err_and(|said| said.contains("is not below")));
        let anywhere = DataRoot::anywhere().allow(Path::new("s3://bucket/a"));
        assert_eq!(anywhere, Ok("s3://bucket/a".into()));
    }

    #[test]
    fn a_launched_worker_goes_by_the_word_of_its_launcher_unless_it_has_a_root() {
        let folder = Folder::new("data-root-launched");
        let launched = NodeConfig { launched: true, ..NodeConfig::default() };
        let passwd = Path::new("/etc/../etc/passwd");
        assert_eq!(DataRoot::of(&launched).and_then(|root| root.allow(passwd)), Ok(passwd.into()));
        let data_root = Some(folder.path().to_path_buf());
        let both = NodeConfig { data_root, ..launched };
        assert!(DataRoot::of(&both).and_then(|root| root.allow(passwd)).is_err());
        let by_hand = DataRoot::of(&NodeConfig::default()).expect("there is a folder");
        assert!(by_hand.allow(passwd).is_err());
        assert!(by_hand.allow(Path::new("Cargo.toml")).is_ok_and(|found| found.is_file()));
        let nowhere = NodeConfig { data_root: Some("/no/such".into()), ..NodeConfig::default() };
        assert!(DataRoot::of(&nowhere).is_err_and(|said| said.contains("/no/such")));
    }
}
