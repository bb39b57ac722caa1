//! RDMA in `caravan doctor`: every port of every device, and a remedy for each obstacle.
//!
//! Most of it comes from the kernel's files, so a machine without the libraries has it, too.

use std::path::Path;

use caravan_van::rdma::devices::{DeviceInfo, Gid, PortInfo, devices};
use caravan_van::rdma::verbs::available;
use serde::Serialize;

use crate::cli::values::size;
use crate::floor::address::{SYSFS, mtu};
use crate::report::Row;

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
        let mut text = format!(
            "{} port {}  {}, {}, {}, {mtu}, {node}, memlock {memlock}",
            self.device, self.port, self.state, self.link_layer, self.rate
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

/// Examines all RDMA devices of this machine.
pub(crate) fn find() -> Found {
    let devices = devices(Path::new(SYSFS));
    let general = machine_obstacle(&devices, Path::new("/dev/infiniband"), available());
    let memlock = Memlock::read();
    let ports: Vec<_> = devices
        .iter()
        .flat_map(|device| device.ports.iter().map(move |port| (device, port)))
        .map(|(device, port)| row(device, port, &memlock, general.as_ref()))
        .collect();
    let obstacle = match ports.iter().find(|port| !port.works) {
        _ if general.is_some() => general,
        _ if ports.iter().any(|port| port.works) => None,
        Some(port) => Some(Obstacle::new(
            format!("{} port {}: {}", port.device, port.port, port.why),
            port.remedy.clone(),
        )),
        None => Some(no_device()),
    };
    Found { ports, obstacle }
}

fn row(
    device: &DeviceInfo,
    port: &PortInfo,
    memlock: &Memlock,
    general: Option<&Obstacle>,
) -> RdmaDevice {
    let address = port.address();
    let obstacle = general.cloned().or_else(|| port_obstacle(port)).or_else(|| memlock.obstacle());
    let chosen = port.gids.iter().position(|gid| {
        address.is_some_and(|address| gid.address.to_canonical() == address && !is_old(gid))
    });
    let gids = port.gids.iter().enumerate().map(|(at, gid)| RdmaGid {
        index: gid.index,
        address: gid.address.to_canonical().to_string(),
        kind: gid.kind.clone(),
        interface: gid.interface.clone(),
        chosen: chosen == Some(at),
    });
    RdmaDevice {
        device: device.name.clone(),
        port: port.number,
        state: port.state.clone(),
        link_layer: port.link_layer.clone(),
        rate: port.rate.clone(),
        mtu: address.filter(|_| general.is_none()).and_then(mtu),
        numa_node: device.numa_node,
        address: address.map(|address| address.to_string()),
        gids: gids.collect(),
        memlock_bytes: memlock.bytes,
        works: obstacle.is_none(),
        why: obstacle.as_ref().map_or(String::new(), |obstacle| obstacle.why.clone()),
        remedy: obstacle.map_or(String::new(), |obstacle| obstacle.remedy),
    }
}

/// RoCE v1 does not cross routers: v2 is chosen where both are offered.
fn is_old(gid: &Gid) -> bool {
    gid.kind.contains("v1")
}

fn no_device() -> Obstacle {
    Obstacle::new(
        "this machine has no RDMA device",
        "nothing is missing without a card; to try RDMA in software: modprobe rdma_rxe && \
         rdma link add rxe0 type rxe netdev eth0",
    )
}

/// What keeps all devices of this machine from working.
fn machine_obstacle(
    devices: &[DeviceInfo],
    nodes: &Path,
    available: Result<(), String>,
) -> Option<Obstacle> {
    let Err(reason) = available else { return None };
    if devices.is_empty() {
        let mut obstacle = no_device();
        // Without the libraries a device alone would not work either.
        let libraries = reason.split_once("; ").filter(|(why, _)| why.contains("libraries cannot"));
        if let Some((_, remedy)) = libraries {
            obstacle.remedy = format!("{}; and {remedy}", obstacle.remedy);
        }
        return Some(obstacle);
    }
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let names = names.join(", ");
    if !nodes.exists() {
        return Some(Obstacle::new(
            format!("this machine has {names}, but {} is not here", nodes.display()),
            "in a container: --device=/dev/infiniband --ulimit memlock=-1; \
             else modprobe ib_uverbs rdma_ucm",
        ));
    }
    let (why, remedy) = reason.split_once("; ").unwrap_or((&reason, "see `dmesg | grep -i rdma`"));
    Some(Obstacle::new(format!("this machine has {names}, but {why}"), remedy))
}

/// What keeps one port from working.
fn port_obstacle(port: &PortInfo) -> Option<Obstacle> {
    let of_gids = port.gids.iter().find_map(|gid| gid.interface.as_deref());
    let interface = port.interface.as_deref().or(of_gids);
    let named = interface.unwrap_or("its interface");
    if !port.is_active() {
        return Some(Obstacle::new(
            format!("the port is {}, its link {}", port.state, port.physical_state),
            format!(
                "plug the cable in, and: ip link set {named} up; \
                 on InfiniBand a subnet manager has to run (opensm)"
            ),
        ));
    }
    if port.address().is_none() {
        return Some(Obstacle::new(
            format!("{named} has no IP address, and connections are made by address"),
            format!("ip address add ADDRESS/PREFIX dev {named}"),
        ));
    }
    None
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
fn limit(limits: &str) -> Option<u64> {
    let row = limits.lines().find_map(|row| row.strip_prefix("Max locked memory"))?;
    row.split_whitespace().next()?.parse().ok()
}

/// Whether `/proc/self/status` names the capability in effect.
fn capable(status: &str) -> bool {
    let bits = status.lines().find_map(|row| row.strip_prefix("CapEff:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn port(state: &str, addresses: &[(&str, &str)]) -> PortInfo {
        let gids = addresses.iter().enumerate().map(|(at, (address, kind))| Gid {
            index: at as u32,
            address: address.parse().unwrap(),
            kind: (*kind).to_owned(),
            interface: Some("eth7".to_owned()),
        });
        PortInfo {
            number: 1,
            state: state.to_owned(),
            physical_state: "LinkUp".to_owned(),
            interface: None,
            link_layer: "Ethernet".to_owned(),
            rate: "100 Gb/sec (4X EDR)".to_owned(),
            gids: gids.collect(),
        }
    }

    fn device(port: PortInfo) -> DeviceInfo {
        DeviceInfo { name: "mlx5_0".to_owned(), numa_node: Some(1), ports: vec![port] }
    }

    const UNLIMITED: Memlock = Memlock { bytes: None };
    const GIDS: [(&str, &str); 3] = [
        ("fe80::1", "RoCE v2"),
        ("::ffff:192.0.2.7", "IB/RoCE v1"),
        ("::ffff:192.0.2.7", "RoCE v2"),
    ];

    #[test]
    fn a_good_port_works_and_its_roce_v2_address_is_chosen() {
        let device = device(port("ACTIVE", &GIDS));
        let row = row(&device, &device.ports[0], &UNLIMITED, None);
        assert!(row.works && row.why.is_empty() && row.remedy.is_empty());
        assert_eq!(row.address.as_deref(), Some("192.0.2.7"));
        let chosen: Vec<bool> = row.gids.iter().map(|gid| gid.chosen).collect();
        assert_eq!(chosen, [false, false, true]);
        let text = row.text();
        assert!(text.contains("NUMA node 1") && text.contains("100 Gb/sec"), "{text}");
        assert!(text.contains("gid 2  192.0.2.7  RoCE v2 on eth7  (default)"), "{text}");
    }

    #[test]
    fn each_obstacle_has_its_remedy() {
        let low = Memlock { bytes: Some(8 << 20) };
        for (port, memlock, part) in [
            (port("DOWN", &GIDS), &UNLIMITED, "ip link set eth7 up"),
            (port("ACTIVE", &[("fe80::1", "IB/RoCE v1")]), &UNLIMITED, "ip address add"),
            (port("ACTIVE", &GIDS), &low, "ulimit -l"),
        ] {
            let device = device(port);
            let row = row(&device, &device.ports[0], memlock, None);
            assert!(!row.works && !row.why.is_empty() && row.remedy.contains(part), "{row:?}");
            assert!(row.text().contains(&row.remedy));
        }
    }

    #[test]
    fn machines_without_devices_libraries_or_nodes_are_told_apart() {
        let none = machine_obstacle(
            &[],
            Path::new("/"),
            Err("no RDMA device that the libraries know; apt-get install z".to_owned()),
        )
        .unwrap();
        assert!(none.remedy.contains("rdma_rxe") && !none.remedy.contains("apt-get"), "{none:?}");
        let libraries = || {
            Err("the RDMA libraries cannot be loaded (x); install them: apt-get install y"
                .to_owned())
        };
        let bare = machine_obstacle(&[], Path::new("/"), libraries()).unwrap();
        assert!(bare.remedy.contains("rdma_rxe") && bare.remedy.contains("apt-get"), "{bare:?}");
        let devices = [device(port("ACTIVE", &GIDS))];
        let library = machine_obstacle(&devices, Path::new("/"), libraries()).unwrap();
        assert!(
            library.why.contains("mlx5_0") && library.remedy.contains("apt-get"),
            "{library:?}"
        );
        let nodes = Path::new("/dev/there is no such folder");
        let container = machine_obstacle(&devices, nodes, Err("x".to_owned())).unwrap();
        assert!(container.remedy.contains("--device=/dev/infiniband"), "{container:?}");
        assert_eq!(machine_obstacle(&devices, nodes, Ok(())), None);
    }

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
