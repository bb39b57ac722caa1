//! The secret of a node's job: its source, and when none is needed.
//!
//! All nodes of a job prove to each other that they know its secret (`caravan_van::handshake`). A
//! launcher creates one and passes it to its nodes by standard input. Nodes started elsewhere read
//! it from a file that nobody else may read, or from the environment. Without a source, only this
//! user's processes on this host belong together: they share a secret in a folder that only this
//! user can enter, and no node may be reachable from elsewhere.

use std::fs;
use std::io::{self, BufRead, Read};
use std::net::ToSocketAddrs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use caravan_van::Secret;

use crate::config::{NodeConfig, join_host};
use crate::error::{Error, Result};
use crate::files;

/// Source of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SecretSource {
    /// None given: the user's own, within this host.
    #[default]
    User,
    /// This secret.
    Given(Secret),
    /// The first line of standard input.
    StandardInput,
    /// This file, which only its owner may read.
    File(PathBuf),
}

/// Longest text that may hold a secret, in bytes.
const TEXT_MAX: u64 = 4096;

/// Mode bits of a file that give access to others than its owner.
const OTHERS: u32 = 0o077;

impl NodeConfig {
    /// The settings of a new job, for its launcher: with the job's number and its secret. Those
    /// that are given stay; the user's own secret is replaced by one of this job alone.
    ///
    /// # Errors
    /// [`Error::Config`] if a given secret cannot be read.
    pub fn for_launch(&self) -> Result<NodeConfig> {
        let mut config = self.clone();
        if config.job == 0 {
            config.job = job_number();
        }
        if config.secret == SecretSource::User {
            config.secret = SecretSource::Given(Secret::random());
        }
        config.secured()
    }

    /// The settings with the secret itself, to be called once before anything connects.
    ///
    /// # Errors
    /// [`Error::Config`], with the remedy, if the secret cannot be read, others may read it, or
    /// there is none although others can reach this node.
    pub(crate) fn secured(&self) -> Result<NodeConfig> {
        let secret = match &self.secret {
            SecretSource::Given(secret) => secret.clone(),
            SecretSource::StandardInput => from_input(&mut io::stdin().lock())?,
            SecretSource::File(path) => from_file(path)?,
            SecretSource::User if self.insecure => {
                tracing::warn!(
                    scheduler = self.scheduler,
                    host = self.host,
                    "INSECURE: whoever reaches this node's ports can join, read and end the job"
                );
                Secret::NONE
            }
            SecretSource::User => {
                self.check_local()?;
                of_user(&user_folder())?
            }
        };
        Ok(NodeConfig { secret: SecretSource::Given(secret), ..self.clone() })
    }

    /// Checks that only this host can reach this node.
    fn check_local(&self) -> Result<()> {
        let host = join_host(&self.host, 0);
        for (name, address) in [("CARAVAN_SCHEDULER", &self.scheduler), ("CARAVAN_HOST", &host)] {
            // A failed look-up is reported by the code that needs the address.
            let found = address.to_socket_addrs().into_iter().flatten();
            if let Some(reachable) = found.map(|at| at.ip()).find(|ip| !ip.is_loopback()) {
                return Err(Error::Config(format!(
                    "{name} is {reachable}, which others can reach, and this job has no secret: write one into a file for \
                     all nodes (`head -c 32 /dev/urandom | xxd -p -c 32 > job.secret; chmod 600 job.secret`) and set \
                     CARAVAN_SECRET_FILE, or take --insecure"
                )));
            }
        }
        Ok(())
    }
}

/// A number unique to this job on this machine, from the process id and the start time.
fn job_number() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (u64::from(std::process::id()) << 40) ^ now.as_nanos() as u64
}

/// Reads the secret from the first line of another process's output.
fn from_input(input: &mut impl BufRead) -> Result<Secret> {
    let mut line = String::new();
    let read = input.take(TEXT_MAX).read_line(&mut line);
    read.map_err(|error| wrong("standard input", error))?;
    Secret::from_hex(&line).map_err(|error| wrong("standard input", error))
}

fn from_file(path: &Path) -> Result<Secret> {
    let shown = path.display();
    let failed = |error: io::Error| wrong(&shown, error);
    let file = files::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    if mode & OTHERS != 0 {
        let why = format!("others may read it (mode {mode:o}): chmod 600 {shown}");
        return Err(wrong(&shown, why));
    }
    files::check_own(&file).map_err(failed)?;
    let text = files::read_up_to(file, TEXT_MAX).map_err(failed)?;
    Secret::from_hex(&String::from_utf8_lossy(&text)).map_err(|error| wrong(&shown, error))
}

fn wrong(place: impl std::fmt::Display, why: impl std::fmt::Display) -> Error {
    Error::Config(format!("no secret in {place}: {why}"))
}

/// The folder of the secret that this user's processes share.
fn user_folder() -> PathBuf {
    std::env::temp_dir().join(format!("caravan-{}", rustix::process::geteuid().as_raw()))
}

/// The secret that this user's processes share in `folder`; the first of them creates it.
fn of_user(folder: &Path) -> Result<Secret> {
    let shown = folder.display();
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(wrong(&shown, error)),
    }
    let known = fs::symlink_metadata(folder).map_err(|error| wrong(&shown, error))?;
    let own = known.uid() == rustix::process::geteuid().as_raw();
    if !known.is_dir() || !own || known.mode() & OTHERS != 0 {
        let why = "it has to be a folder that this user owns and nobody else may enter; remove it, or set CARAVAN_SECRET_FILE";
        return Err(wrong(&shown, why));
    }
    let path = folder.join("secret");
    if !path.exists() {
        let secret = format!("{}\n", Secret::random().to_hex());
        let made = files::begin(&path, secret.as_bytes(), files::MODE_OWN);
        made.map_err(|error| wrong(&shown, error))?;
    }
    from_file(&path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder for one test.
    fn folder(name: &str) -> PathBuf {
        let at = std::env::temp_dir().join(format!("caravan-kv-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&at);
        fs::create_dir(&at).unwrap();
        at
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = folder("secret-file");
        let path = folder.join("job.secret");
        let secret = Secret::random();
        fs::write(&path, format!("{}\n", secret.to_hex())).unwrap();
        for (mode, taken) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = from_file(&path);
            assert_eq!(found.is_ok(), taken, "{mode:o}: {found:?}");
            assert!(taken || found.unwrap_err().to_string().contains("chmod 600"));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "hunter2").unwrap();
        let error = from_file(&path).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits") && !error.contains("hunter2"), "{error}");
        assert!(from_file(&folder).unwrap_err().to_string().contains("a directory"));
        assert!(from_file(&folder.join("none")).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_users_processes_share_one_secret() {
        let folder = folder("secret-user").join("own");
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let folder = folder.clone();
                std::thread::spawn(move || of_user(&folder).unwrap())
            })
            .collect();
        let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(found.iter().all(|secret| *secret == found[0] && *secret != Secret::NONE));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left there");
        // Another user's file, or a folder that others may enter, is not trusted.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(of_user(&folder).unwrap_err().to_string().contains("nobody else may enter"));
        let parent = folder.parent().unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&folder, parent.join("link")).unwrap();
        assert!(of_user(&parent.join("link")).is_err(), "a link may lead anywhere");
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn without_a_secret_nobody_else_may_reach_a_node() {
        let local = NodeConfig::default();
        assert!(local.check_local().is_ok());
        for config in [
            NodeConfig { host: "192.0.2.1".to_owned(), ..NodeConfig::default() },
            NodeConfig { scheduler: "192.0.2.1:7000".to_owned(), ..NodeConfig::default() },
            NodeConfig { scheduler: "0.0.0.0:7000".to_owned(), ..NodeConfig::default() },
        ] {
            let error = config.secured().unwrap_err().to_string();
            assert!(
                error.contains("CARAVAN_SECRET_FILE") && error.contains("--insecure"),
                "{error}"
            );
            let insecure = NodeConfig { insecure: true, ..config.clone() }.secured().unwrap();
            assert_eq!(insecure.secret, SecretSource::Given(Secret::NONE));
            let secret = SecretSource::Given(Secret::random());
            let given = NodeConfig { secret: secret.clone(), ..config }.secured().unwrap();
            assert_eq!(given.secret, secret);
        }
    }

    #[test]
    fn a_line_of_input_is_a_secret() {
        let secret = Secret::random();
        let text = format!("{}\nmore", secret.to_hex());
        assert_eq!(from_input(&mut text.as_bytes()).unwrap(), secret);
        assert!(from_input(&mut "".as_bytes()).is_err());
        let endless = vec![b'0'; 1 << 20];
        assert!(from_input(&mut &endless[..]).unwrap_err().to_string().contains("4096 characters"));
    }
}
