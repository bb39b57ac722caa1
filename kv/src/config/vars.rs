//! The environment variables: a row for each, with its parser and the text that hands it down to a
//! child process.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use caravan_numa::HugePages;
use caravan_van::{RdmaConfig, Secret, VanConfig, Wait};

use super::{ClusterConfig, JobRole, NodeConfig};
use super::{huge_pages_named, is_address, parse_bytes, parse_hexadecimal, wait_named};
use crate::config::SecretSource;
use crate::node::Van;

/// One environment variable.
pub struct Var {
    /// `CARAVAN_…`.
    pub name: &'static str,
    /// Text of the default, with its unit.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
    pub(super) set: fn(&mut ClusterConfig, &str) -> Option<()>,
    pub(super) show: fn(&ClusterConfig) -> String,
}

/// All of them.
pub const VARS: &[Var] = &[
    Var {
        name: "CARAVAN_SCHEDULER",
        default: "127.0.0.1:0",
        help: "address of the scheduler, `host:port`",
        set: |c, v| is_address(v).then(|| c.node.scheduler = v.to_owned()),
        show: |c| c.node.scheduler.clone(),
    },
    Var {
        name: "CARAVAN_ROLE",
        default: "",
        help: "role of this process in a launched job: scheduler, server or worker; `caravan launch` sets it",
        set: |c, v| {
            c.node.role = if v.is_empty() { None } else { Some(JobRole::named(v)?) };
            Some(())
        },
        show: |c| c.node.role.map_or("", JobRole::name).to_owned(),
    },
    Var {
        name: "CARAVAN_RANK",
        default: "",
        help: "its rank among the nodes of its role, from 0; without one the scheduler chooses",
        set: |c, v| {
            c.node.rank = if v.is_empty() { None } else { Some(v.parse().ok()?) };
            Some(())
        },
        show: |c| c.node.rank.map_or_else(String::new, |rank| rank.to_string()),
    },
    Var {
        name: "CARAVAN_JOB",
        default: "0",
        help: "number of the job, hexadecimal; nodes of other jobs are refused",
        set: |c, v| parse_hexadecimal(v).map(|n| c.node.job = n),
        show: |c| format!("{:x}", c.node.job),
    },
    Var {
        name: "CARAVAN_SECRET",
        default: "",
        help: "secret of the job: 64 hexadecimal digits, or - for the first line of standard input; without one, only this user's processes on this host can join",
        set: |c, v| {
            let said = match v {
                "" => SecretSource::User,
                "-" => SecretSource::StandardInput,
                digits => SecretSource::Variable(Secret::from_hex(digits).ok()?),
            };
            c.node.secret = std::mem::take(&mut c.node.secret).beside(said);
            Some(())
        },
        // A secret is handed down by standard input, where others cannot see it.
        show: |c| if c.node.secret == SecretSource::User { "" } else { "-" }.to_owned(),
    },
    Var {
        name: "CARAVAN_SECRET_FILE",
        default: "",
        help: "file with that secret, readable only by its owner (mode 600); beside `CARAVAN_SECRET` it has to hold the same",
        set: |c, v| {
            if !v.is_empty() {
                let file = SecretSource::File(v.into());
                c.node.secret = std::mem::take(&mut c.node.secret).beside(file);
            }
            Some(())
        },
        show: |_| String::new(),
    },
    Var {
        name: "CARAVAN_INSECURE",
        default: "0",
        help: "1 lets a node that others can reach run without a secret: whoever reaches it can join, read and end the job",
        set: |c, v| flag(v).map(|insecure| c.node.insecure = insecure),
        show: |c| u8::from(c.node.insecure).to_string(),
    },
    Var {
        name: "CARAVAN_ENCRYPT",
        default: "0",
        help: "1 encrypts everything sent over sockets: data of uring and tcp, and the control plane; rdma and shm have no encryption",
        set: |c, v| flag(v).map(|encrypt| c.node.encrypt = encrypt),
        show: |c| u8::from(c.node.encrypt).to_string(),
    },
    Var {
        name: "CARAVAN_SERVERS",
        default: "1",
        help: "server processes, 1 to 10000",
        set: |c, v| count(v, ClusterConfig::NODES_MAX).map(|n| c.servers = n),
        show: |c| c.servers.to_string(),
    },
    Var {
        name: "CARAVAN_THREADS",
        default: "1",
        help: "threads of each server, each with its own shard, 1 to 1024",
        set: |c, v| count(v, ClusterConfig::THREADS_MAX).map(|n| c.threads = n),
        show: |c| c.threads.to_string(),
    },
    Var {
        name: "CARAVAN_WORKERS",
        default: "1",
        help: "worker processes, 1 to 10000",
        set: |c, v| count(v, ClusterConfig::NODES_MAX).map(|n| c.workers = n),
        show: |c| c.workers.to_string(),
    },
    Var {
        name: "CARAVAN_VAN",
        default: "auto",
        help: "van that carries the data: shm, rdma, uring, tcp, or auto, for each pair of nodes the first of them that works for both",
        set: |c, v| v.parse().ok().map(|van| c.node.van = van),
        // Who joins a mixed cluster learns its own vans there.
        show: |c| match c.node.van {
            Van::Mixed => Van::Auto.to_string(),
            van => van.to_string(),
        },
    },
    Var {
        name: "CARAVAN_RDMA_DEVICE",
        default: "auto",
        help: "RDMA device, as `mlx5_0`; auto selects the one with `CARAVAN_HOST`, else the first with an active port, and those like it",
        set: |c, v| {
            c.node.rdma.device = Some(v.to_owned()).filter(|v| !v.is_empty() && v != "auto");
            Some(())
        },
        show: |c| c.node.rdma.device.clone().unwrap_or_else(|| "auto".to_owned()),
    },
    Var {
        name: "CARAVAN_RDMA_CONNECT",
        default: "auto",
        help: "how the rdma van connects: cm (the connection manager, which needs an IP address on the port), direct (over TCP to `CARAVAN_HOST`), or auto, cm where the port has an address and else direct",
        set: |c, v| v.parse().ok().map(|way| c.node.rdma.connect = way),
        show: |c| c.node.rdma.connect.name().to_owned(),
    },
    Var {
        name: "CARAVAN_RDMA_PORT",
        default: "auto",
        help: "port of the RDMA device, from 1; auto is the first active one, and those like it",
        set: |c, v| or_auto(v, |v| count(v, 255)).map(|n| c.node.rdma.port = n.map(|n| n as u8)),
        show: |c| shown(c.node.rdma.port),
    },
    Var {
        name: "CARAVAN_RDMA_GID",
        default: "auto",
        help: "entry of the port's GID table, 0 to 255, for direct connections; auto takes RoCE v2 and the family and subnet of the peer",
        set: |c, v| or_auto(v, |v| v.parse().ok()).map(|n| c.node.rdma.gid = n),
        show: |c| shown(c.node.rdma.gid),
    },
    Var {
        name: "CARAVAN_RDMA_PKEY",
        default: "auto",
        help: "partition (P_Key), hexadecimal as 0x8001, for direct connections; auto is the first of the port",
        set: |c, v| {
            let key = |v: &str| u16::try_from(parse_hexadecimal(v)?).ok();
            or_auto(v, key).map(|n| c.node.rdma.pkey = n)
        },
        show: |c| c.node.rdma.pkey.map_or("auto".to_owned(), |n| format!("{n:#06x}")),
    },
    Var {
        name: "CARAVAN_RDMA_SERVICE_LEVEL",
        default: "0",
        help: "service level of direct connections, 0 to 15; the same on all nodes",
        set: |c, v| {
            let level = v.parse().ok().filter(|n| *n <= RdmaConfig::SERVICE_LEVEL_MAX);
            level.map(|n| c.node.rdma.service_level = n)
        },
        show: |c| c.node.rdma.service_level.to_string(),
    },
    Var {
        name: "CARAVAN_RDMA_TRAFFIC_CLASS",
        default: "0",
        help: "traffic class of RDMA packets, 0 to 255; on RoCE the DSCP times 4",
        set: |c, v| v.parse().ok().map(|n| c.node.rdma.traffic_class = n),
        show: |c| c.node.rdma.traffic_class.to_string(),
    },
    Var {
        name: "CARAVAN_RDMA_MTU",
        default: "auto",
        help: "path MTU of direct connections in bytes: 256, 512, 1024, 2048, 4096; auto is the largest that both ports have",
        set: |c, v| {
            let mtu = |v: &str| v.parse().ok().filter(|n| RdmaConfig::MTUS.contains(n));
            or_auto(v, mtu).map(|n| c.node.rdma.mtu = n)
        },
        show: |c| shown(c.node.rdma.mtu),
    },
    Var {
        name: "CARAVAN_RDMA_ACK_TIMEOUT",
        default: "14",
        help: "the RDMA device sends again after 4.096 µs times 2 to this power, 1 to 31",
        set: |c, v| {
            count(v, RdmaConfig::ACK_TIMEOUT_MAX.into()).map(|n| c.node.rdma.ack_timeout = n as u8)
        },
        show: |c| c.node.rdma.ack_timeout.to_string(),
    },
    Var {
        name: "CARAVAN_RDMA_RETRIES",
        default: "6",
        help: "how often the RDMA device sends again before a peer is lost, 0 to 7",
        set: |c, v| {
            let retries = v.parse().ok().filter(|n| *n <= RdmaConfig::RETRIES_MAX);
            retries.map(|n| c.node.rdma.retries = n)
        },
        show: |c| c.node.rdma.retries.to_string(),
    },
    Var {
        name: "CARAVAN_HOST",
        default: "127.0.0.1",
        help: "address to listen on, which peers can reach",
        set: |c, v| (!v.is_empty()).then(|| c.node.host = v.to_owned()),
        show: |c| c.node.host.clone(),
    },
    Var {
        name: "CARAVAN_WAIT",
        default: "adaptive",
        help: "how a thread waits for work: spin, yield, adaptive (spin while that pays, yield, then sleep), block",
        set: |c, v| wait_named(v).map(|wait| c.node.wait = wait),
        show: |c| wait_name(c.node.wait).to_owned(),
    },
    Var {
        name: "CARAVAN_MEMORY",
        default: "8GiB",
        help: "limit of a thread's memory, registered or kept for peers, as 512MiB; 2 MiB or more",
        set: |c, v| {
            bytes(v, NodeConfig::MEMORY_BYTES_MIN..=usize::MAX).map(|n| c.node.memory_bytes = n)
        },
        show: |c| c.node.memory_bytes.to_string(),
    },
    Var {
        name: "CARAVAN_EAGER_LIMIT",
        default: "24KiB",
        help: "longer messages go by rendezvous; 512 B to 32 KiB, at most 8 KiB on the rdma van; the shm van lends shared values of 2 KiB or more",
        set: |c, v| bytes(v, VanConfig::FRAME_BYTES).map(|n| c.node.eager_bytes = n),
        show: |c| c.node.eager_bytes.to_string(),
    },
    Var {
        name: "CARAVAN_CREDITS",
        default: "256",
        help: "requests that may be outstanding on a lane, 1 to 4096",
        set: |c, v| count(v, VanConfig::CREDITS_MAX.into()).map(|n| c.node.credits = n as u16),
        show: |c| c.node.credits.to_string(),
    },
    Var {
        name: "CARAVAN_JOIN_TIMEOUT_S",
        default: "60",
        help: "seconds to wait for all nodes to join, 1 to 86400",
        set: |c, v| count(v, 86_400).map(|n| c.node.join_timeout = Duration::from_secs(n as u64)),
        show: |c| whole_seconds(c.node.join_timeout),
    },
    Var {
        name: "CARAVAN_STATE",
        default: "",
        help: "folder where the scheduler keeps its state, or http://HOST:PORT of an etcd: killed and started again, it goes on with the cluster that runs; without a state the cluster ends with it",
        set: |c, v| {
            c.node.state = Some(PathBuf::from(v)).filter(|_| !v.is_empty());
            Some(())
        },
        show: |c| c.node.state.as_ref().map_or_else(String::new, |it| it.display().to_string()),
    },
    Var {
        name: "CARAVAN_SCHEDULER_AWAY_S",
        default: "60",
        help: "seconds that nodes wait for a scheduler which keeps its state and is away, before they end, 1 to 86400; the scheduler tells them",
        set: |c, v| count(v, 86_400).map(|n| c.node.scheduler_away = Duration::from_secs(n as u64)),
        show: |c| whole_seconds(c.node.scheduler_away),
    },
    Var {
        name: "CARAVAN_LAUNCHED",
        default: "0",
        help: "1 in nodes that a scheduler's process has started: they end when it no longer listens; 0 waits for the scheduler",
        set: |c, v| flag(v).map(|launched| c.node.launched = launched),
        show: |c| u8::from(c.node.launched).to_string(),
    },
    Var {
        name: "CARAVAN_HEARTBEAT_MS",
        default: "1000",
        help: "milliseconds between two heartbeats, 10 to 3600000; a node counts as lost after five times as long, a server that may be lost after twice",
        set: |c, v| {
            count(v, 3_600_000)
                .filter(|n| *n >= 10)
                .map(|n| c.node.heartbeat = Duration::from_millis(n as u64))
        },
        show: |c| c.node.heartbeat.as_millis().to_string(),
    },
    Var {
        name: "CARAVAN_HEARTBEAT_S",
        default: "",
        help: "the same in whole seconds, 1 to 3600",
        set: |c, v| {
            if !v.is_empty() {
                c.node.heartbeat = Duration::from_secs(count(v, 3600)? as u64);
            }
            Some(())
        },
        show: |_| String::new(),
    },
    Var {
        name: "CARAVAN_REQUEST_TIMEOUT_S",
        default: "600",
        help: "seconds without any server's answer after which a request is given up, 1 to 86400; raise it if workers wait longer for each other",
        set: |c, v| {
            count(v, 86_400).map(|n| c.node.request_timeout = Duration::from_secs(n as u64))
        },
        show: |c| whole_seconds(c.node.request_timeout),
    },
    Var {
        name: "CARAVAN_PIN",
        default: "1",
        help: "1 pins server threads to cores, 0 leaves them to the kernel",
        set: |c, v| flag(v).map(|pin| c.node.pin = pin),
        show: |c| u8::from(c.node.pin).to_string(),
    },
    Var {
        name: "CARAVAN_NUMA_NODE",
        default: "near-nic",
        help: "NUMA node of server threads and their memory: a number, near-nic, or any (all in turn)",
        set: |c, v| v.parse().ok().map(|numa| c.node.numa = numa),
        show: |c| c.node.numa.to_string(),
    },
    Var {
        name: "CARAVAN_HUGE_PAGES",
        default: "transparent",
        help: "pages of registered memory: transparent huge ones where available, reserved ones (`vm.nr_hugepages`), or system for the system's default",
        set: |c, v| huge_pages_named(v).map(|huge| c.node.huge_pages = huge),
        show: |c| huge_pages_name(c.node.huge_pages).to_owned(),
    },
    Var {
        name: "CARAVAN_DATA_ROOT",
        default: "auto",
        help: "folder of all files and caches that a worker may be told to use; auto is any folder for workers that a scheduler's process has started, else the folder the worker was started in",
        set: |c, v| {
            c.node.data_root = Some(PathBuf::from(v)).filter(|_| !v.is_empty() && v != "auto");
            Some(())
        },
        show: |c| {
            c.node.data_root.as_ref().map_or("auto".into(), |root| root.display().to_string())
        },
    },
    Var {
        name: "CARAVAN_LOSSES_MAX",
        default: "0",
        help: "workers that may be lost while the others go on, 0 to 10000; the loss of one more ends the job",
        set: |c, v| {
            let losses = v.parse().ok().filter(|n| *n <= ClusterConfig::NODES_MAX);
            losses.map(|n| c.node.losses_max = n)
        },
        show: |c| c.node.losses_max.to_string(),
    },
    Var {
        name: "CARAVAN_SERVER_LOSSES_MAX",
        default: "0",
        help: "servers that may be lost while the others go on with tables that have replicas, 0 to 10000; the loss of one more ends the job",
        set: |c, v| {
            let losses = v.parse().ok().filter(|n| *n <= ClusterConfig::NODES_MAX);
            losses.map(|n| c.node.server_losses_max = n)
        },
        show: |c| c.node.server_losses_max.to_string(),
    },
    Var {
        name: "CARAVAN_HISTORY",
        default: "",
        help: "folder in which servers record who read and wrote which version of tables with a consistency model, for `caravan check-history`",
        set: |c, v| {
            c.node.history = Some(PathBuf::from(v)).filter(|_| !v.is_empty());
            Some(())
        },
        show: |c| c.node.history.as_ref().map_or_else(String::new, |it| it.display().to_string()),
    },
    Var {
        name: "CARAVAN_TRACE",
        default: "",
        help: "file to which the nodes of this host append a trace of every message, for ui.perfetto.dev",
        set: |c, v| {
            c.node.trace = Some(v).filter(|v| !v.is_empty()).map(Into::into);
            Some(())
        },
        show: |c| c.node.trace.as_ref().map_or_else(String::new, |it| it.display().to_string()),
    },
];

/// Rounded up, because the variables take no fractions.
fn whole_seconds(time: Duration) -> String {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).to_string()
}

fn count(text: &str, max: usize) -> Option<usize> {
    text.parse().ok().filter(|n| (1..=max).contains(n))
}

fn bytes(text: &str, range: RangeInclusive<usize>) -> Option<usize> {
    usize::try_from(parse_bytes(text)?).ok().filter(|bytes| range.contains(bytes))
}

/// What `read` makes of a text; none of "auto".
fn or_auto<T>(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if text.is_empty() || text == "auto" { Some(None) } else { read(text).map(Some) }
}

fn shown(number: Option<impl ToString>) -> String {
    number.map_or("auto".to_owned(), |number| number.to_string())
}

fn flag(text: &str) -> Option<bool> {
    ["0", "1"].contains(&text).then(|| text == "1")
}

fn wait_name(wait: Wait) -> &'static str {
    match wait {
        Wait::Spin => "spin",
        Wait::Yield => "yield",
        Wait::Adaptive(_) => "adaptive",
        Wait::Block => "block",
    }
}

fn huge_pages_name(huge: HugePages) -> &'static str {
    match huge {
        HugePages::Transparent => "transparent",
        HugePages::Reserved => "reserved",
        HugePages::AsSystem => "system",
    }
}
