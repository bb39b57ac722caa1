//! What a node tells about itself with each heartbeat, and what the scheduler makes of it.

use std::fmt;
use std::fs;
use std::time::Duration;

use caravan_van::{Counters, Gauge};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::backend::is_simulated;
use super::control::Role;

/// What a node has done since its process began, and how it is. Rates are differences of two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Vitals {
    /// When this was taken, in nanoseconds on the clock of the node's control plane.
    pub taken_ns: u64,
    /// CPU time of the process; 0 if the system does not report it, or the node is simulated.
    pub cpu_ns: u64,
    /// Memory of the process that is resident, likewise.
    pub memory_bytes: u64,
    /// Bytes that its threads have handed to the van of the data.
    pub bytes_sent: u64,
    /// Bytes that they have taken from it.
    pub bytes_received: u64,
    /// Requests and answers sent.
    pub messages_sent: u64,
    /// Requests and answers received.
    pub messages_received: u64,
    /// System calls of the van.
    pub system_calls: u64,
    /// Times that its threads have slept for want of work.
    pub sleeps: u64,
    /// The iteration that a worker is in; 0 if it has not named one.
    pub clock: u64,
    /// The lanes that its threads have.
    pub lanes: LanesByVan,
}

/// How many lanes of a node each van carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LanesByVan {
    pub shm: usize,
    pub rdma: usize,
    pub uring: usize,
    pub tcp: usize,
    pub sim: usize,
}

impl LanesByVan {
    /// The numbers with their vans' names.
    pub fn named(&self) -> [(&'static str, usize); 5] {
        let LanesByVan { shm, rdma, uring, tcp, sim } = *self;
        [("shm", shm), ("rdma", rdma), ("uring", uring), ("tcp", tcp), ("sim", sim)]
    }

    fn add(&mut self, van: &str, lanes: usize) {
        let count = match van {
            "shm" => &mut self.shm,
            "rdma" => &mut self.rdma,
            "uring" => &mut self.uring,
            "tcp" => &mut self.tcp,
            _ => &mut self.sim,
        };
        *count += lanes;
    }
}

impl fmt::Display for LanesByVan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = self.named().into_iter().filter(|(_, lanes)| *lanes > 0);
        let texts: Vec<_> = some.map(|(van, lanes)| format!("{lanes} {van}")).collect();
        f.pad(if texts.is_empty() { "-".to_owned() } else { texts.join(" + ") }.as_str())
    }
}

impl Vitals {
    /// What the threads of `gauges` show at time `now`, and what the system says of this process.
    pub(super) fn of(gauges: &[Gauge], now: Duration) -> Vitals {
        let mut vitals = Vitals { taken_ns: nanoseconds(now), ..Vitals::default() };
        if !is_simulated() {
            vitals.cpu_ns = cpu_ns();
            vitals.memory_bytes = resident_bytes();
        }
        for gauge in gauges {
            let Counters {
                bytes_sent,
                bytes_received,
                messages_sent,
                messages_received,
                system_calls,
                sleeps,
                ..
            } = gauge.counters();
            vitals.bytes_sent += bytes_sent;
            vitals.bytes_received += bytes_received;
            vitals.messages_sent += messages_sent;
            vitals.messages_received += messages_received;
            vitals.system_calls += system_calls;
            vitals.sleeps += sleeps;
            vitals.clock = vitals.clock.max(gauge.marked());
            gauge.lanes().into_iter().for_each(|(van, lanes)| vitals.lanes.add(van, lanes));
        }
        vitals
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of this process.
fn cpu_ns() -> u64 {
    let time = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime));
    time.map_or(0, nanoseconds)
}

/// Resident memory of this process; 0 if the system does not report it.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// A node as the scheduler knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    /// Its role.
    pub role: Role,
    /// Its rank among the nodes of the role.
    pub rank: usize,
    /// Name of its host; empty if the node has not told.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Why it is lost, if it is.
    pub lost: Option<String>,
    /// What it told last; `None` before its first heartbeat, and of a thread of the driver's
    /// process, which sends none.
    pub vitals: Option<Vitals>,
    /// Iterations that a worker has been behind the middle one lately.
    pub behind: f64,
    /// Whether others have to wait for this worker.
    pub is_slow: bool,
}
