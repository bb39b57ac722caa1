//! RDMA in `caravan doctor`: every port of every device, and a remedy for each obstacle.
//!
//! Here are the rows, and how much memory may be locked; `rdma/find.rs` examines the devices.

#[cfg(all(target_os = "linux", feature = "rdma"))]
mod find;
#[cfg(not(all(target_os = "linux", feature = "rdma")))]
#[path = "rdma/left_out.rs"]
mod find;

use serde::Serialize;

use crate::cli::values::size;
use crate::report::Row;

pub(crate) use find::find;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RdmaDevice {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) state: String,
    pub(crate) link_layer: String,
    pub(crate) rate: String,
    /// Bytes of a packet; none if the device cannot be opened.
    pub(crate) mtu: Option<usize>,
    /// None if it belongs to no node.
    pub(crate) numa_node: Option<u32>,
    /// The IP address that leads over it.
    pub(crate) address: Option<String>,
    pub(crate) gids: Vec<RdmaGid>,
    /// Bytes this process may register with devices; none for no limit.
    pub(crate) memlock_bytes: Option<u64>,
    /// Whether threads use it, where they use RDMA.
    pub(crate) used: bool,
    pub(crate) works: bool,
    /// The obstacle; empty if it works.
    pub(crate) why: String,
    /// What to do about it; empty if it works.
    pub(crate) remedy: String,
}

/// One address of a port on the wire.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RdmaGid {
    pub(crate) index: u32,
    pub(crate) address: String,
    /// `RoCE v2`, `IB/RoCE v1`.
    pub(crate) kind: String,
    pub(crate) interface: Option<String>,
    /// Whether connections use it by default.
    pub(crate) chosen: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) why: String,
    pub(crate) remedy: String,
}

impl Obstacle {
    fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Obstacle { why: why.into(), remedy: remedy.into() }
    }
}

impl Row for RdmaDevice {
    const KIND: &'static str = "rdma-device";

    fn text(&self) -> String {
        let mtu = self.mtu.map_or("MTU unknown".to_owned(), |mtu| format!("MTU {mtu}"));
        let node = self.numa_node.map_or("no NUMA node".to_owned(), |n| format!("NUMA node {n}"));
        let memlock = memlock_text(self.memlock_bytes);
        let used = if self.used { "  ◄ messages" } else { "" };
        let mut text = format!(
            "{} port {}  {}, {}, {}, {mtu}, {node}, memlock {memlock}{}",
            self.device, self.port, self.state, self.link_layer, self.rate, used
        );
        for gid in &self.gids {
            let on = gid.interface.as_ref().map_or(String::new(), |name| format!(" on {name}"));
            let chosen = if gid.chosen { "  (default)" } else { "" };
            text.push_str(&format!(
                "\n           gid {:<2} {}  {}{on}{chosen}",
                gid.index, gid.address, gid.kind
            ));
        }
        if !self.works {
            text.push_str(&format!("\n           {}\n           → {}", self.why, self.remedy));
        }
        text
    }
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) ports: Vec<RdmaDevice>,
    /// What keeps every device from working; none if one works.
    pub(crate) obstacle: Option<Obstacle>,
}

/// How much memory this process may register with devices.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Memlock {
    /// None for no limit.
    pub(crate) bytes: Option<u64>,
}

/// With less than this a van soon fails to grow, in bytes.
const MEMLOCK_BYTES_MIN: u64 = 256 << 20;
/// The bit of the capability that lifts the limit.
const CAP_IPC_LOCK: u32 = 14;

impl Memlock {
    pub(crate) fn read() -> Self {
        let read = |name| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        if capable(&read("status")) {
            return Memlock { bytes: None };
        }
        Memlock { bytes: limit(&read("limits")) }
    }

    fn obstacle(&self) -> Option<Obstacle> {
        let bytes = self.bytes.filter(|bytes| *bytes < MEMLOCK_BYTES_MIN)?;
        Some(Obstacle::new(
            format!("this process may lock {} of memory only", size(&(bytes as usize))),
            "ulimit -l unlimited, for good in /etc/security/limits.conf: `* - memlock unlimited`; \
             in a container --ulimit memlock=-1",
        ))
    }
}

pub(super) fn memlock_text(bytes: Option<u64>) -> String {
    bytes.map_or("no limit".to_owned(), |bytes| size(&(bytes as usize)))
}

/// The soft limit in `/proc/self/limits`; none for no limit, or if it cannot be read.
pub(super) fn limit(limits: &str) -> Option<u64> {
    let row = limits.lines().find_map(|row| row.strip_prefix("Max locked memory"))?;
    row.split_whitespace().next()?.parse().ok()
}

/// Whether `/proc/self/status` names the capability in effect.
pub(super) fn capable(status: &str) -> bool {
    let bits = status.lines().find_map(|row| row.strip_prefix("CapEff:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_capabilities_are_read() {
        let row = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608              16777216             bytes     \n";
        assert_eq!(limit(row), Some(8 << 20));
        assert_eq!(limit("Max locked memory         unlimited  unlimited  bytes\n"), None);
        assert_eq!(limit(""), None);
        assert!(capable("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(
            !capable("CapEff:\t00000000a80425fb") && !capable("CapEff:\tnonsense") && !capable("")
        );
    }
}
