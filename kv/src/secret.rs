//! The secret of a node's job: its source, and when none is needed.
//!
//! All nodes of a job prove to each other that they know its secret (`caravan_van::handshake`). A
//! launcher creates one and passes it to its nodes by standard input. Nodes started elsewhere read
//! it from a file that nobody else may read, or from the environment. Without a source, only this
//! user's processes on this host belong together: they share a secret in a folder that only this
//! user can enter, and no node may be reachable from elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, Read};
use std::net::ToSocketAddrs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use caravan_van::Secret;

use crate::config::{NodeConfig, SecretSource, join_host};
use crate::error::{Error, Result};
use crate::files;

/// How a good secret is made.
const REMEDY: &str = "`head -c 32 /dev/urandom | xxd -p -c 32 > job.secret; chmod 600 job.secret`";

/// Fewer different bytes, or steps from byte to byte, are no accident in a random secret.
const DIFFERENT_MIN: usize = 12;

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

    /// Whether a launcher holds the other end of standard input while this node is to live: it has
    /// started the node, and hands it the secret there.
    pub(crate) fn is_held(&self) -> bool {
        (self.launched || self.role.is_some()) && self.secret == SecretSource::StandardInput
    }

    /// The settings with the secret itself, to be called once before anything connects.
    ///
    /// # Errors
    /// [`Error::Config`], with the remedy, if the secret cannot be read, others may read it, or
    /// there is none although others can reach this node.
    pub(crate) fn secured(&self) -> Result<NodeConfig> {
        let secret = self.read(&self.secret)?;
        Ok(NodeConfig { secret: SecretSource::Given(secret), ..self.clone() })
    }

    fn read(&self, source: &SecretSource) -> Result<Secret> {
        match source {
            SecretSource::Given(secret) => Ok(secret.clone()),
            SecretSource::Variable(secret) => self.known("CARAVAN_SECRET", secret.clone()),
            SecretSource::StandardInput => {
                self.known("standard input", from_input(&mut io::stdin().lock())?)
            }
            SecretSource::File(path) => self.known(path.display(), from_file(path)?),
            SecretSource::Both(said, path) => {
                let secret = self.read(said)?;
                match secret == from_file(path)? {
                    true => Ok(secret),
                    false => Err(Error::Config(format!(
                        "CARAVAN_SECRET and CARAVAN_SECRET_FILE ({}) have different secrets: unset \
                         one of them",
                        path.display()
                    ))),
                }
            }
            SecretSource::User if self.insecure => {
                tracing::warn!(
                    scheduler = self.scheduler,
                    host = self.host,
                    "INSECURE: whoever reaches this node's ports can join, read and end the job"
                );
                Ok(Secret::NONE)
            }
            SecretSource::User => {
                self.check_local()?;
                of_user(&user_folder())
            }
        }
    }

    /// The secret that was read at `place`, unless it is easy to guess and nobody says that this
    /// does not matter.
    fn known(&self, place: impl std::fmt::Display, secret: Secret) -> Result<Secret> {
        let why = weakness(&secret).filter(|_| !self.insecure);
        why.map_or(Ok(secret), |why| {
            Err(wrong(place, format!("it is easy to guess, {why}: make one by {REMEDY}")))
        })
    }

    /// Checks that only this host can reach this node.
    fn check_local(&self) -> Result<()> {
        let host = join_host(&self.host, 0);
        for (name, address) in [("CARAVAN_SCHEDULER", &self.scheduler), ("CARAVAN_HOST", &host)] {
            // A failed look-up is reported by the code that needs the address.
            let found = address.to_socket_addrs().into_iter().flatten();
            if let Some(reachable) = found.map(|at| at.ip()).find(|ip| !ip.is_loopback()) {
                return Err(Error::Config(format!(
                    "{name} is {reachable}, which others can reach, and this job has no secret: \
                     write one into a file for all nodes ({REMEDY}) and set CARAVAN_SECRET_FILE, \
                     or take --insecure"
                )));
            }
        }
        Ok(())
    }
}

/// Why a secret is easy to guess, if it is.
fn weakness(secret: &Secret) -> Option<String> {
    let digits = secret.to_hex();
    let bytes = (0..Secret::BYTES).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16));
    let bytes: Vec<u8> = bytes.map_while(Result::ok).collect();
    let different = |of: &mut dyn Iterator<Item = u8>| of.collect::<BTreeSet<u8>>().len();
    let values = different(&mut bytes.iter().copied());
    let steps = different(&mut bytes.windows(2).map(|two| two[1].wrapping_sub(two[0])));
    let half = Secret::BYTES / 2;
    let period = (1..=half).find(|period| bytes[*period..] == bytes[..bytes.len() - period]);
    match period {
        Some(period) => Some(format!("its bytes repeat after {period}")),
        None if values < DIFFERENT_MIN => Some(format!("it has only {values} different bytes")),
        None if steps < DIFFERENT_MIN => Some(format!("it has only {steps} steps between bytes")),
        None => None,
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

    fn of_bytes(byte: impl Fn(u8) -> u8) -> Secret {
        Secret::from(std::array::from_fn(|at| byte(at as u8)))
    }

    #[test]
    fn a_secret_that_is_easy_to_guess_is_refused() {
        let folder = folder("secret-weak");
        let path = folder.join("job.secret");
        let file = |secret: &Secret| {
            fs::write(&path, secret.to_hex()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            SecretSource::File(path.clone())
        };
        let weak = [
            Secret::NONE,
            of_bytes(|_| 0xff),
            of_bytes(|at| b"secret"[usize::from(at % 6)]),
            of_bytes(|at| (at % 16).wrapping_mul(31) ^ 5),
            of_bytes(|at| at),
            of_bytes(|at| 200 - 5 * at),
            of_bytes(|at| 9 * at.count_ones() as u8),
        ];
        for secret in &weak {
            for source in [SecretSource::Variable(secret.clone()), file(secret)] {
                let config = NodeConfig { secret: source, ..NodeConfig::default() };
                let error = config.secured().unwrap_err().to_string();
                assert!(error.contains("easy to guess") && error.contains(REMEDY), "{error}");
                assert!(!error.contains(&secret.to_hex()), "{error}");
                let insecure = NodeConfig { insecure: true, ..config }.secured().unwrap();
                assert_eq!(insecure.secret, SecretSource::Given(secret.clone()));
            }
        }
        for _ in 0..1000 {
            assert_eq!(weakness(&Secret::random()), None);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn two_secrets_are_not_taken_for_one() {
        let folder = folder("secret-two");
        let path = folder.join("job.secret");
        let [one, other] = [(); 2].map(|()| Secret::random());
        fs::write(&path, one.to_hex()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let shown = path.display().to_string();
        for (said, is_taken) in [(&one, true), (&other, false)] {
            let vars = [("CARAVAN_SECRET", said.to_hex()), ("CARAVAN_SECRET_FILE", shown.clone())];
            for turned in [false, true] {
                let mut vars = vars.clone().map(|(name, value)| (name.to_owned(), value));
                if turned {
                    vars.reverse();
                }
                let config = crate::ClusterConfig::from_vars(vars.into_iter()).unwrap();
                match config.node.secured() {
                    Ok(found) => {
                        assert!(is_taken);
                        assert_eq!(found.secret, SecretSource::Given(one.clone()));
                    }
                    Err(error) => {
                        let error = error.to_string();
                        let named = error.contains("CARAVAN_SECRET and CARAVAN_SECRET_FILE");
                        assert!(!is_taken && named && error.contains(&shown), "{error}");
                    }
                }
            }
        }
        fs::remove_dir_all(folder).unwrap();
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
