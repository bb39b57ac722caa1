//! The RDMA devices of this machine as the kernel lists them in sysfs: their ports and addresses.
//!
//! This module only reads files. Without an RDMA library or driver it works and finds nothing. It
//! opens no device: [`verbs`](super::verbs) asks a device for its capabilities.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::str::FromStr;

use caravan_numa::{interface_addresses, names_in};

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// For example `mlx5_0`.
    pub name: String,
    /// The NUMA node it is attached to, where the machine has them and it is attached to one.
    pub numa_node: Option<u32>,
    /// By number.
    pub ports: Vec<PortInfo>,
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// From 1.
    pub number: u8,
    /// `ACTIVE`, `DOWN`, …
    pub state: String,
    /// The cable: `LinkUp`, `Disabled`, `Polling`, …
    pub physical_state: String,
    /// `Ethernet` (RoCE) or `InfiniBand`.
    pub link_layer: String,
    /// As the kernel words it, for example `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// The entries of its table of addresses that are in use.
    pub gids: Vec<Gid>,
    /// Of an InfiniBand port, the network interface that carries IP over it.
    pub interface: Option<String>,
}

/// An address in a port's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u32,
    /// On Ethernet an IP address, IPv4 as `::ffff:a.b.c.d`.
    pub address: Ipv6Addr,
    /// `RoCE v2` or `IB/RoCE v1`.
    pub kind: String,
    /// The network interface that has this address.
    pub interface: Option<String>,
}

/// The devices listed below `root`, which is `/sys`, by name. It leaves out what cannot be read or
/// is malformed.
pub fn devices(root: &Path) -> Vec<DeviceInfo> {
    let list = names_in(&root.join("class/infiniband")).into_iter();
    list.filter_map(|name| device(&root.join("class/infiniband").join(&name), name)).collect()
}

/// The partitions (P_Keys) of a port, by their places; the default one if they cannot be read.
pub fn partitions(root: &Path, device: &str, port: u8) -> Vec<u16> {
    const DEFAULT: u16 = 0xffff;
    let at = root.join(format!("class/infiniband/{device}/ports/{port}/pkeys"));
    let pkey = |index: usize| {
        let hex = text(&at.join(index.to_string()))?;
        u16::from_str_radix(hex.trim_start_matches("0x"), 16).ok()
    };
    let table: Vec<u16> = (0..).map_while(pkey).collect();
    if table.is_empty() { vec![DEFAULT] } else { table }
}

fn device(at: &Path, name: String) -> Option<DeviceInfo> {
    let mut ports: Vec<PortInfo> = names_in(&at.join("ports"))
        .iter()
        .filter_map(|number| port(at, number.parse().ok().filter(|&number| number > 0)?))
        .collect();
    ports.sort_by_key(|port| port.number);
    let numa_node = number(&at.join("device/numa_node"));
    (!ports.is_empty()).then_some(DeviceInfo { name, numa_node, ports })
}

fn port(device: &Path, number: u8) -> Option<PortInfo> {
    let at = device.join("ports").join(number.to_string());
    let link_layer = text(&at.join("link_layer"))?;
    let indices = names_in(&at.join("gids"));
    let mut gids: Vec<Gid> = indices.iter().filter_map(|index| gid(&at, index)).collect();
    gids.sort_by_key(|gid| gid.index);
    let is_infiniband = link_layer == "InfiniBand";
    Some(PortInfo {
        number,
        state: meaning(text(&at.join("state"))?),
        physical_state: text(&at.join("phys_state")).map(meaning).unwrap_or_default(),
        rate: text(&at.join("rate")).unwrap_or_default(),
        gids,
        interface: is_infiniband.then(|| ip_interface(device, number)).flatten(),
        link_layer,
    })
}

/// An entry of the table; none if it is not in use.
fn gid(port: &Path, index: &str) -> Option<Gid> {
    let address = text(&port.join("gids").join(index))?.parse().ok()?;
    let kind = text(&port.join("gid_attrs/types").join(index))?;
    let interface = text(&port.join("gid_attrs/ndevs").join(index));
    let index = index.parse().ok()?;
    (address != Ipv6Addr::UNSPECIFIED).then_some(Gid { index, address, kind, interface })
}

/// The network interface over an InfiniBand port. Interfaces count ports from 0.
fn ip_interface(device: &Path, port: u8) -> Option<String> {
    const ARPHRD_INFINIBAND: u32 = 32;
    let at = device.join("device/net");
    names_in(&at).into_iter().find(|name| {
        number(&at.join(name).join("type")) == Some(ARPHRD_INFINIBAND)
            && number(&at.join(name).join("dev_port")) == Some(u32::from(port - 1))
    })
}

impl PortInfo {
    /// Whether it carries traffic.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// The address to listen on so that peers connect through this port: an IPv4 address if there
    /// is one, else an IPv6 address, a link-local one last. `None` if the port has no address.
    pub fn address(&self) -> Option<IpAddr> {
        best(self.addresses())
    }

    /// All addresses that peers can connect to through this port.
    pub fn addresses(&self) -> Vec<IpAddr> {
        match &self.interface {
            Some(interface) => interface_addresses(interface).unwrap_or_default(),
            None => self.gids.iter().filter(|gid| gid.kind == "RoCE v2").map(Gid::ip).collect(),
        }
    }
}

impl Gid {
    fn ip(&self) -> IpAddr {
        self.address.to_canonical()
    }
}

fn best(addresses: Vec<IpAddr>) -> Option<IpAddr> {
    addresses.into_iter().min_by_key(|address| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    })
}

/// A file's only line.
fn text(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

fn number<N: FromStr>(file: &Path) -> Option<N> {
    text(file)?.parse().ok()
}

/// Of a text such as `4: ACTIVE` what the number means.
fn meaning(text: String) -> String {
    text.split_once(':').map_or(text.clone(), |(_, meaning)| meaning.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::path::PathBuf;

    use super::*;

    /// Files in a folder of their own, gone when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(test: &str, files: &[(&str, &[u8])]) -> Tree {
            let root = std::env::temp_dir().join(format!("caravan-{test}-{}", std::process::id()));
            for (name, contents) in files {
                let file = root.join("class/infiniband").join(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, contents).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn roce_ports_have_the_addresses_of_their_interface() {
        let tree = Tree::new(
            "roce",
            &[
                ("mlx5_1/device/numa_node", b"1\n"),
                ("mlx5_1/ports/1/state", b"4: ACTIVE\n"),
                ("mlx5_1/ports/1/phys_state", b"5: LinkUp\n"),
                ("mlx5_1/ports/1/rate", b"100 Gb/sec (4X EDR)\n"),
                ("mlx5_1/ports/1/link_layer", b"Ethernet\n"),
                ("mlx5_1/ports/1/gids/0", b"fe80:0000:0000:0000:0000:00ff:fe77:0001\n"),
                ("mlx5_1/ports/1/gid_attrs/types/0", b"IB/RoCE v1\n"),
                ("mlx5_1/ports/1/gids/1", b"fe80:0000:0000:0000:0000:00ff:fe77:0001\n"),
                ("mlx5_1/ports/1/gid_attrs/types/1", b"RoCE v2\n"),
                ("mlx5_1/ports/1/gids/2", b"0000:0000:0000:0000:0000:ffff:0a4d:0001\n"),
                ("mlx5_1/ports/1/gid_attrs/types/2", b"IB/RoCE v1\n"),
                ("mlx5_1/ports/1/gids/10", b"0000:0000:0000:0000:0000:ffff:0a4d:0001\n"),
                ("mlx5_1/ports/1/gid_attrs/types/10", b"RoCE v2\n"),
                ("mlx5_1/ports/1/gid_attrs/ndevs/10", b"eth2\n"),
                ("mlx5_1/ports/1/gids/3", b"0000:0000:0000:0000:0000:0000:0000:0000\n"),
                ("mlx5_1/ports/1/gid_attrs/types/3", b"RoCE v2\n"),
            ],
        );
        let found = devices(&tree.0);
        assert_eq!((found.len(), &*found[0].name, found[0].numa_node), (1, "mlx5_1", Some(1)));
        let [port] = &found[0].ports[..] else { panic!("{found:?}") };
        assert!(port.is_active() && port.physical_state == "LinkUp");
        assert_eq!((port.number, &*port.rate), (1, "100 Gb/sec (4X EDR)"));
        let indices: Vec<u32> = port.gids.iter().map(|gid| gid.index).collect();
        assert_eq!(indices, [0, 1, 2, 10], "in order, without the one that is not in use");
        assert_eq!(port.gids[3].interface.as_deref(), Some("eth2"));
        assert_eq!(port.gids[0].interface, None);
        assert_eq!(port.address(), Some("10.77.0.1".parse().unwrap()));
    }

    #[test]
    fn infiniband_ports_have_the_interface_of_their_number() {
        let tree = Tree::new(
            "ib",
            &[
                ("mlx4_0/device/numa_node", b"-1\n"),
                ("mlx4_0/device/net/eth0/type", b"1\n"),
                ("mlx4_0/device/net/eth0/dev_port", b"1\n"),
                ("mlx4_0/device/net/ib0/type", b"32\n"),
                ("mlx4_0/device/net/ib0/dev_port", b"0\n"),
                ("mlx4_0/device/net/ib1/type", b"32\n"),
                ("mlx4_0/device/net/ib1/dev_port", b"1\n"),
                ("mlx4_0/ports/2/state", b"4: ACTIVE\n"),
                ("mlx4_0/ports/2/link_layer", b"InfiniBand\n"),
                ("mlx4_0/ports/2/gids/0", b"fe80:0000:0000:0000:0002:c903:0008:a123\n"),
                ("mlx4_0/ports/2/gid_attrs/types/0", b"IB/RoCE v1\n"),
                ("mlx4_0/ports/1/state", b"1: DOWN\n"),
                ("mlx4_0/ports/1/phys_state", b"2: Polling\n"),
                ("mlx4_0/ports/1/link_layer", b"InfiniBand\n"),
            ],
        );
        let found = devices(&tree.0);
        assert_eq!(found[0].numa_node, None);
        let [first, second] = &found[0].ports[..] else { panic!("{found:?}") };
        assert!(!first.is_active() && second.is_active());
        assert_eq!((&*first.state, &*first.physical_state), ("DOWN", "Polling"));
        assert_eq!(first.interface.as_deref(), Some("ib0"));
        assert_eq!(second.interface.as_deref(), Some("ib1"));
        assert_eq!(second.address(), None, "no such interface here, and its GID is no IP address");
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let tree = Tree::new(
            "garbage",
            &[
                ("a/ports/1/state", b"\xff\xfe\n"),
                ("a/ports/1/link_layer", b"Ethernet\n"),
                ("b/ports/0x1/state", b"4: ACTIVE\n"),
                ("b/ports/256/state", b"4: ACTIVE\n"),
                ("b/ports/256/link_layer", b"Ethernet\n"),
                ("c", b"a file\n"),
                ("d/device/numa_node", b"many\n"),
                ("d/ports/0/state", b"odd"),
                ("d/ports/0/link_layer", b"InfiniBand"),
                ("d/ports/1/state", b"ACTIVE"),
                ("d/ports/1/link_layer", b"Ethernet"),
                ("d/ports/1/gids/0", b"ten\n"),
                ("d/ports/1/gid_attrs/types/0", b"RoCE v2\n"),
                ("d/ports/1/gids/x", b"::1\n"),
                ("d/ports/1/gid_attrs/types/x", b"RoCE v2\n"),
                ("d/ports/1/gids/1", b"::1\n"),
            ],
        );
        let found = devices(&tree.0);
        let [device] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&*device.name, device.numa_node), ("d", None));
        let [port] = &device.ports[..] else { panic!("ports count from 1: {device:?}") };
        assert!(port.is_active() && port.gids.is_empty() && port.address().is_none());
    }

    #[test]
    fn a_machine_without_devices_has_none() {
        assert_eq!(devices(Path::new("/nonexistent")), []);
        devices(Path::new("/sys"));
    }

    #[test]
    fn ipv4_comes_first_and_link_local_last() {
        let all = ["fe80::1", "fd77::1", "10.77.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(best(all.to_vec()), Some(all[2]));
        assert_eq!(best(all[..2].to_vec()), Some(all[1]));
        assert_eq!(best(all[..1].to_vec()), Some(all[0]));
        assert_eq!(best(Vec::new()), None);
    }
}
