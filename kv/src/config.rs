//! Settings: those that all nodes of a cluster share, those that may differ, and the environment
//! variables that set them.
//!
//! Nothing else in the project reads the environment; a test compares kv/docs/variables.md with
//! [`VARS`].

mod source;
mod vars;

use std::path::PathBuf;
use std::time::Duration;

use caravan_numa::{HugePages, PageSource};
use caravan_van::{Identity, RdmaConfig, Secret, VanConfig, Wait};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::node::{Numa, Van};

pub use source::SecretSource;
pub use vars::{VARS, Var};

/// The role of a process in a job, as a launcher gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobRole {
    /// The driver of the job, with its scheduler.
    Scheduler,
    /// A server.
    Server,
    /// A worker.
    Worker,
}

impl JobRole {
    /// All of them.
    pub const ALL: [JobRole; 3] = [JobRole::Scheduler, JobRole::Server, JobRole::Worker];

    /// Its name in variables.
    pub fn name(self) -> &'static str {
        match self {
            JobRole::Scheduler => "scheduler",
            JobRole::Server => "server",
            JobRole::Worker => "worker",
        }
    }

    /// The role of that name, if there is one.
    pub fn named(name: &str) -> Option<JobRole> {
        JobRole::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Settings of one node; [`Default`] works on one machine.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Address of the scheduler, `host:port`.
    pub scheduler: String,
    /// The role that a launcher gave this process; a program that takes every role decides by it.
    pub role: Option<JobRole>,
    /// Its rank among the nodes of its role; the scheduler chooses one if there is none.
    pub rank: Option<usize>,
    /// The job's number: nodes of other jobs are refused.
    pub job: u64,
    /// Source of the job's secret, which all its nodes prove to know.
    pub secret: SecretSource,
    /// Whether a node that others can reach may run without a secret.
    pub insecure: bool,
    /// Whether everything sent over sockets is encrypted.
    pub encrypt: bool,
    /// This node's identity, which it proves to its peers.
    pub identity: Identity,
    /// The van that carries the data.
    pub van: Van,
    /// If that is [`Van::Mixed`], the vans that it is made of, fastest first. A node learns them by
    /// joining.
    pub vans: Vec<Van>,
    /// Settings of the rdma van.
    pub rdma: RdmaConfig,
    /// Number of the node or the thread among those of its host: they begin at different ones of
    /// equal ports.
    pub turn: u32,
    /// Host name or address to listen on, which peers connect to.
    pub host: String,
    /// How a thread waits for work.
    pub wait: Wait,
    /// Limit of a thread's memory in bytes: registered memory, and what it keeps for peers.
    pub memory_bytes: usize,
    /// Messages up to this many bytes go in one frame; 512 B to 32 KiB.
    pub eager_bytes: usize,
    /// Requests that may be outstanding on a lane; 1 to 4096.
    pub credits: u16,
    /// How long to wait for all nodes to join.
    pub join_timeout: Duration,
    /// Folder where the scheduler keeps its state, or `http://HOST:PORT` of an etcd, so that one
    /// which is started again goes on with the cluster; without a state the cluster ends with it.
    pub state: Option<PathBuf>,
    /// How long nodes wait for a scheduler that keeps its state and is away, before they end.
    pub scheduler_away: Duration,
    /// Whether the scheduler was there before this node, which then ends once nothing listens there
    /// any more.
    pub launched: bool,
    /// Time between two heartbeats; a node counts as lost after five times as long, a server that
    /// may be lost after twice.
    pub heartbeat: Duration,
    /// How long a client of the servers waits without any answer before it gives up a request.
    pub request_timeout: Duration,
    /// Whether server threads are pinned to cores.
    pub pin: bool,
    /// NUMA node of server threads and their memory.
    pub numa: Numa,
    /// Page size of registered memory.
    pub huge_pages: HugePages,
    /// Folder of the files that a worker may be told to read. By default, a launched worker may
    /// read any file it is told to, and another one those below the folder it was started in.
    pub data_root: Option<PathBuf>,
    /// Workers that may be lost while the others go on; the loss of one more ends the cluster.
    pub losses_max: usize,
    /// Servers that may be lost while the others go on; the loss of one more ends the cluster. What
    /// a lost server held is gone but for tables with replicas.
    pub server_losses_max: usize,
    /// Folder of the histories of tables with a consistency model, which servers record if there is
    /// one.
    pub history: Option<PathBuf>,
    /// File of the trace of all messages, if there is to be one.
    pub trace: Option<PathBuf>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            scheduler: "127.0.0.1:0".to_owned(),
            role: None,
            rank: None,
            job: 0,
            secret: SecretSource::default(),
            insecure: false,
            encrypt: false,
            identity: Identity::default(),
            van: Van::Auto,
            vans: Vec::new(),
            rdma: RdmaConfig::default(),
            turn: 0,
            host: "127.0.0.1".to_owned(),
            wait: Wait::default(),
            memory_bytes: 8 << 30,
            eager_bytes: 24 << 10,
            credits: 256,
            join_timeout: Duration::from_secs(60),
            state: None,
            scheduler_away: Duration::from_secs(60),
            launched: false,
            heartbeat: Duration::from_secs(1),
            request_timeout: REQUEST_TIMEOUT,
            pin: true,
            numa: Numa::NearNic,
            huge_pages: HugePages::Transparent,
            data_root: None,
            losses_max: 0,
            server_losses_max: 0,
            history: None,
            trace: None,
        }
    }
}

/// A request without any answer for this long is given up.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// The shape of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Server processes.
    pub servers: usize,
    /// Threads of each server, each with its own shard.
    pub threads: usize,
    /// Worker processes.
    pub workers: usize,
    /// Settings of its nodes.
    pub node: NodeConfig,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig { servers: 1, threads: 1, workers: 1, node: NodeConfig::default() }
    }
}

impl ClusterConfig {
    /// Most servers, and most workers.
    pub const NODES_MAX: usize = 10_000;
    /// Most threads of a server.
    pub const THREADS_MAX: usize = 1024;

    /// The defaults, overridden by the environment.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable, its value, and its valid values; also for a `CARAVAN_`
    /// variable that does not exist.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        }))
    }

    /// The defaults, overridden by `vars`.
    ///
    /// # Errors
    /// As [`ClusterConfig::from_env`].
    pub fn from_vars(vars: impl Iterator<Item = (String, String)>) -> Result<Self> {
        let mut config = ClusterConfig::default();
        for (name, value) in vars.filter(|(name, _)| name.starts_with("CARAVAN_")) {
            if FOR_TESTS.contains(&name.as_str()) || name.starts_with("CARAVAN_TEST_") {
                continue;
            }
            let Some(var) = VARS.iter().find(|var| var.name == name) else {
                let known: Vec<_> = VARS.iter().map(|var| var.name).collect();
                return Err(Error::Config(format!(
                    "there is no variable {name}; there are {}",
                    known.join(", ")
                )));
            };
            (var.set)(&mut config, &value).ok_or_else(|| {
                let shown = if name == "CARAVAN_SECRET" { "…" } else { &value };
                Error::Config(format!(
                    "{name}={shown} is not valid: {} (default {})",
                    var.help, var.default
                ))
            })?;
        }
        Ok(config)
    }

    /// The variables that start another process with these settings.
    pub fn to_vars(&self) -> impl Iterator<Item = (&'static str, String)> {
        VARS.iter().map(|var| (var.name, (var.show)(self)))
    }

    /// Server threads of the whole cluster.
    pub fn shards(&self) -> usize {
        self.servers * self.threads
    }
}

/// Most credits of a lane of the control plane, whatever the setting for data lanes.
const CONTROL_CREDITS: u16 = 64;

/// Variables that only tests read, like all that begin with `CARAVAN_TEST_` (`ci/vm` sets some).
const FOR_TESTS: &[&str] = &["CARAVAN_DATA", "CARAVAN_SEED", "CARAVAN_FUZZ_MESSAGES"];

impl NodeConfig {
    /// Lower bound of `memory_bytes`: the first arena of a thread's pool, and as much for tables.
    pub const MEMORY_BYTES_MIN: usize = 2 * VanConfig::MEMORY_BYTES_MIN;

    /// Settings for a transport of this node.
    pub fn van_config(&self, node: u32) -> VanConfig {
        VanConfig {
            cluster: self.job,
            secret: match &self.secret {
                SecretSource::Given(secret) => secret.clone(),
                _ => Secret::NONE,
            },
            node,
            identity: self.identity,
            encrypt: self.encrypt,
            accepts: true,
            credits: self.credits,
            listen: join_host(&self.host, 0),
            rdma: self.rdma.clone(),
            near: self.numa.node(),
            turn: self.turn,
            memory_bytes: self.memory_bytes,
            pages: PageSource { node: self.numa.node(), huge: self.huge_pages, shareable: false },
            frame_bytes: self.eager_bytes,
            // A request takes up to four entries of its lane's queue: two writes, a notice and a
            // want. The control plane uses these settings too, with its own number of credits.
            queue_depth: 4 * usize::from(self.credits.max(CONTROL_CREDITS)) + 64,
            wait: self.wait,
            silence_max: VanConfig::SILENCE_MAX,
        }
    }
}

/// Whether `text` is `host:port`; the host is not looked up.
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// `host:port`, with brackets around IPv6.
pub fn join_host(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Units of sizes, the largest first.
pub const BYTE_UNITS: [(&str, u64); 4] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Parses a number of bytes: `8`, `64KiB`, `1MiB`, `2GiB`, or in short `64K`, `1M`, `2G`, in
/// capital or small letters; no fractions and no exponents.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &text[digits.len()..];
    let is_unit = |name: &str| [name, &name[..1]].iter().any(|it| it.eq_ignore_ascii_case(suffix));
    let unit = match suffix {
        "" => 1,
        _ => BYTE_UNITS.iter().find(|(name, _)| is_unit(name))?.1,
    };
    parse_digits(digits.trim_end(), 10)?.checked_mul(unit)
}

/// Parses a hexadecimal number, with `0x` before it or without.
pub fn parse_hexadecimal(text: &str) -> Option<u64> {
    parse_digits(text.strip_prefix("0x").unwrap_or(text), 16)
}

/// Parses digits alone; the standard library takes a sign, too.
fn parse_digits(text: &str, radix: u32) -> Option<u64> {
    let are_digits = text.chars().all(|c| c.is_digit(radix));
    are_digits.then(|| u64::from_str_radix(text, radix).ok())?
}

/// The wait policy called `name`, if there is one.
pub fn wait_named(name: &str) -> Option<Wait> {
    match name {
        "spin" => Some(Wait::Spin),
        "yield" => Some(Wait::Yield),
        "adaptive" => Some(Wait::default()),
        "block" => Some(Wait::Block),
        _ => None,
    }
}

/// The page size called `name`, if there is one.
pub fn huge_pages_named(name: &str) -> Option<HugePages> {
    match name {
        "transparent" => Some(HugePages::Transparent),
        "reserved" => Some(HugePages::Reserved),
        "system" => Some(HugePages::AsSystem),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
        pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn wrong_settings_name_the_variable() {
        assert!(
            ClusterConfig::from_vars(vars(&[("PATH", "/bin"), ("CARAVAN_WORKERS", "3")]))
                .unwrap()
                .workers
                == 3
        );
        for pair in [
            ("CARAVAN_WORKERS", "0"),
            ("CARAVAN_VAN", "pigeon"),
            ("CARAVAN_EAGER_LIMIT", "1GiB"),
            ("CARAVAN_WROKERS", "1"),
            ("CARAVAN_NUMA_NODE", "nearby"),
            ("CARAVAN_HUGE_PAGES", "1"),
            ("CARAVAN_HEARTBEAT_MS", "9"),
            ("CARAVAN_ROLE", "master"),
            ("CARAVAN_RANK", "-1"),
            ("CARAVAN_HEARTBEAT_S", "0"),
            ("CARAVAN_MEMORY", "2097151"),
            ("CARAVAN_MEMORY", "2kb"),
            ("CARAVAN_JOB", "0x0x7"),
            ("CARAVAN_JOB", "+7"),
            ("CARAVAN_RDMA_PKEY", "0x10000"),
            ("CARAVAN_SCHEDULER", "nonsense"),
            ("CARAVAN_SCHEDULER", "host:99999"),
            ("CARAVAN_SCHEDULER", ":7000"),
        ] {
            let error = ClusterConfig::from_vars(vars(&[pair])).unwrap_err().to_string();
            assert!(error.contains(pair.0), "{error}");
        }
    }

    #[test]
    fn settings_survive_the_way_to_a_child() {
        let given = vars(&[
            ("CARAVAN_JOB", "beef"),
            ("CARAVAN_ROLE", "worker"),
            ("CARAVAN_RANK", "3"),
            ("CARAVAN_WAIT", "block"),
            ("CARAVAN_MEMORY", "64MiB"),
            ("CARAVAN_PIN", "0"),
            ("CARAVAN_LAUNCHED", "1"),
            ("CARAVAN_DATA_ROOT", "/data"),
            ("CARAVAN_HEARTBEAT_S", "3"),
            ("CARAVAN_REQUEST_TIMEOUT_S", "7"),
            ("CARAVAN_NUMA_NODE", "3"),
            ("CARAVAN_HUGE_PAGES", "reserved"),
            ("CARAVAN_RDMA_DEVICE", "mlx5_0"),
            ("CARAVAN_ENCRYPT", "1"),
            ("CARAVAN_INSECURE", "1"),
        ]);
        let config = ClusterConfig::from_vars(given).unwrap();
        let copy =
            ClusterConfig::from_vars(config.to_vars().map(|(n, v)| (n.to_owned(), v))).unwrap();
        assert_eq!(format!("{config:?}"), format!("{copy:?}"));
    }

    #[test]
    fn a_secret_is_never_shown() {
        let digits = Secret::random().to_hex();
        let config = ClusterConfig::from_vars(vars(&[("CARAVAN_SECRET", &digits)])).unwrap();
        assert_eq!(config.node.secret, SecretSource::Variable(Secret::from_hex(&digits).unwrap()));
        assert!(!format!("{config:?}").contains(&digits));
        assert!(config.to_vars().all(|(_, value)| !value.contains(&digits)));
        let wrong = format!("{digits}0");
        let error = ClusterConfig::from_vars(vars(&[("CARAVAN_SECRET", &wrong)])).unwrap_err();
        assert!(!error.to_string().contains(&digits), "{error}");
        let file =
            ClusterConfig::from_vars(vars(&[("CARAVAN_SECRET_FILE", "job.secret")])).unwrap();
        assert_eq!(file.node.secret, SecretSource::File("job.secret".into()));
    }

    #[test]
    fn no_device_is_named_by_default() {
        for (value, device) in [("", None), ("auto", None), ("rxe0", Some("rxe0"))] {
            let pair = [("CARAVAN_RDMA_DEVICE", value)];
            let config = ClusterConfig::from_vars(vars(&pair)).unwrap();
            assert_eq!(config.node.rdma.device.as_deref(), device);
            assert_eq!(config.node.van_config(1).rdma.device.as_deref(), device);
        }
    }

    #[test]
    fn parts_of_seconds_are_rounded_up_for_a_child() {
        let mut config = ClusterConfig::default();
        config.node.join_timeout = Duration::from_millis(300);
        let copy =
            ClusterConfig::from_vars(config.to_vars().map(|(n, v)| (n.to_owned(), v))).unwrap();
        assert_eq!(copy.node.join_timeout, Duration::from_secs(1));
    }

    #[test]
    fn defaults_in_the_table_are_the_defaults() {
        let mut config = ClusterConfig::default();
        for var in VARS {
            (var.set)(&mut config, var.default).unwrap();
        }
        assert_eq!(format!("{config:?}"), format!("{:?}", ClusterConfig::default()));
    }

    #[test]
    fn sizes_have_units() {
        for text in ["16KiB", "16kib", "16K", "16k", "16384", "16384B"] {
            assert_eq!(parse_bytes(text), Some(16384), "{text}");
        }
        assert_eq!(parse_bytes("4 MiB"), Some(4 << 20));
        for text in ["", "MiB", "8x", "8kb", "+8", "1.5K", "99999999999GiB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn hexadecimal_numbers_have_one_prefix_or_none() {
        assert_eq!(["beef", "0xbeef"].map(parse_hexadecimal), [Some(0xbeef); 2]);
        for text in ["", "0x", "0x0x7", "+7", "g", "10000000000000000"] {
            assert_eq!(parse_hexadecimal(text), None, "{text}");
        }
    }
}
