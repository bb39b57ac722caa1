//! Examines the RDMA devices of this machine, and names a remedy for each obstacle.
//!
//! Most of it comes from the kernel's files, so a machine without the libraries has it, too.

use std::path::Path;

use caravan_van::VanConfig;
use caravan_van::rdma::devices::{DeviceInfo, Gid, PortInfo, devices};
use caravan_van::rdma::verbs::{Missing, available};
use caravan_van::rdma::{equal_ports, port_name};

use super::{Found, Memlock, Obstacle, RdmaDevice, RdmaGid};
use crate::floor::address::{SYSFS, mtu};

/// Examines all RDMA devices of this machine; threads have these settings.
pub(crate) fn find(config: &VanConfig) -> Found {
    let devices = devices(Path::new(SYSFS));
    let general = machine_obstacle(&devices, Path::new("/dev/infiniband"), available());
    let memlock = Memlock::read();
    let used = equal_ports(&devices, config);
    let ports: Vec<_> = devices
        .iter()
        .flat_map(|device| device.ports.iter().map(move |port| (device, port)))
        .map(|(device, port)| {
            let row = row(device, port, &memlock, general.as_ref());
            let used = row.works && used.contains(&port_name(&device.name, port.number));
            RdmaDevice { used, ..row }
        })
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
        used: false,
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
    available: Result<(), Missing>,
) -> Option<Obstacle> {
    let Err(missing) = available else { return None };
    if devices.is_empty() {
        let mut obstacle = no_device();
        // Without the libraries a device alone would not work either.
        if let Missing::Libraries { .. } = missing {
            obstacle.remedy = format!("{}; and {}", obstacle.remedy, missing.remedy());
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
    let what = missing.what();
    Some(Obstacle::new(format!("this machine has {names}, but {what}"), missing.remedy()))
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
    // On InfiniBand the van then connects without.
    if port.address().is_none() && port.link_layer == "Ethernet" {
        return Some(Obstacle::new(
            format!("{named} has no IP address, and the connection manager needs one"),
            format!(
                "ip address add ADDRESS/PREFIX dev {named}, or without: CARAVAN_RDMA_CONNECT=direct"
            ),
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::report::Row;

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
        let none = machine_obstacle(&[], Path::new("/"), Err(Missing::Device)).unwrap();
        assert!(none.remedy.contains("rdma_rxe") && !none.remedy.contains("apt-get"), "{none:?}");
        let libraries =
            || Err(Missing::Libraries { state: "cannot be loaded", reason: "x".to_owned() });
        let bare = machine_obstacle(&[], Path::new("/"), libraries()).unwrap();
        assert!(bare.remedy.contains("rdma_rxe") && bare.remedy.contains("apt-get"), "{bare:?}");
        let devices = [device(port("ACTIVE", &GIDS))];
        let library = machine_obstacle(&devices, Path::new("/"), libraries()).unwrap();
        assert!(
            library.why.contains("mlx5_0") && library.remedy.contains("apt-get"),
            "{library:?}"
        );
        let nodes = Path::new("/dev/there is no such folder");
        let container = machine_obstacle(&devices, nodes, Err(Missing::Device)).unwrap();
        assert!(container.remedy.contains("--device=/dev/infiniband"), "{container:?}");
        assert_eq!(machine_obstacle(&devices, nodes, Ok(())), None);
    }
}
