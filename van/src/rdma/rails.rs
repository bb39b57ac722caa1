//! Set-up: the ports that one thread uses at once. Not on the path.
//!
//! Ports are equal if lanes can go over one as well as over another, as far as this machine can
//! tell: they are active, and have the link layer and the rate of the port that a thread with one
//! port would take, and an IP address if that has one. A thread takes those at its own NUMA node
//! first. Threads begin at different ones among those that are equally near, so that they share
//! them evenly.

use std::net::IpAddr;
use std::path::Path;

use super::Rdma;
use super::devices::{DeviceInfo, PortInfo, devices};
use super::listen::{SYSFS, choose, first_address};
use crate::config::{RdmaConfig, RdmaConnect, VanConfig};
use crate::error::Result;

/// Most ports of one thread: each has queues, a pool and lanes of its own.
const PORTS_MAX: usize = 4;

/// A port and its device.
type Port<'a> = (&'a DeviceInfo, &'a PortInfo);

impl Rdma {
    /// A transport on each port that a thread with these settings uses, first choice first. It is
    /// the one of [`Rdma::new`] where no two ports are equal. A port that cannot be used is left
    /// out with a line.
    ///
    /// # Errors
    /// As [`Rdma::new`], if no port can be used.
    pub fn on_ports(config: &VanConfig) -> Result<Vec<Rdma>> {
        let devices = devices(Path::new(SYSFS));
        let ports = equal(&devices, config);
        if ports.len() < 2 {
            return Ok(vec![Rdma::new(config)?]);
        }
        let mut opened = Vec::new();
        let mut failed = None;
        for (device, port) in ports.into_iter().take(PORTS_MAX) {
            let (name, number) = (Some(device.name.clone()), Some(port.number));
            let rdma = RdmaConfig { device: name, port: number, ..config.rdma.clone() };
            match Rdma::new(&VanConfig { rdma, ..config.clone() }) {
                Ok(van) => opened.push(van),
                Err(error) => {
                    let (device, port) = (&device.name, port.number);
                    tracing::warn!(%error, "going on without port {port} of {device}");
                    failed.get_or_insert(error);
                }
            }
        }
        failed.filter(|_| opened.is_empty()).map_or(Ok(opened), Err)
    }
}

/// The ports among those of `devices` that threads with these settings use between them, by their
/// names, in the order of this thread.
pub fn equal_ports(devices: &[DeviceInfo], config: &VanConfig) -> Vec<String> {
    let ports = equal(devices, config).into_iter();
    ports.map(|(device, port)| port_name(&device.name, port.number)).collect()
}

/// A port's name: "mlx5_0/1".
pub fn port_name(device: &str, port: u8) -> String {
    format!("{device}/{port}")
}

/// The ports of a thread with these settings, in its order.
fn equal<'a>(devices: &'a [DeviceInfo], config: &VanConfig) -> Vec<Port<'a>> {
    let Ok(allowed) = choose(devices, &config.rdma) else { return Vec::new() };
    let address = first_address(&config.listen).ok().map(|address| address.ip());
    let by_address = config.rdma.connect != RdmaConnect::Direct;
    let Some(first) = single(&allowed, address, by_address) else { return Vec::new() };
    let is_equal = |(_, port): &Port<'a>| {
        port.link_layer == first.link_layer
            && port.rate == first.rate
            && (!by_address || port.address().is_some() == first.address().is_some())
    };
    let near = config.near.map(|node| node.0 as u32);
    let is_near = |(device, _): &Port<'a>| near.is_some() && device.numa_node == near;
    let (mut here, mut elsewhere): (Vec<_>, Vec<_>) =
        allowed.into_iter().filter(is_equal).partition(is_near);
    for ports in [&mut here, &mut elsewhere] {
        let turn = config.turn as usize % ports.len().max(1);
        ports.rotate_left(turn);
    }
    here.append(&mut elsewhere);
    here
}

/// The port that a thread with one port takes.
fn single<'a>(
    allowed: &[Port<'a>],
    address: Option<IpAddr>,
    by_address: bool,
) -> Option<&'a PortInfo> {
    let mut ports = allowed.iter().map(|(_, port)| *port);
    let has_it = |port: &&PortInfo| address.is_some_and(|it| port.addresses().contains(&it));
    let found = ports.clone().find(has_it).filter(|_| by_address);
    let found = found.or_else(|| ports.clone().find(|port| by_address && port.address().is_some()));
    found.or_else(|| ports.next())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use caravan_numa::NumaId;

    use super::super::devices::Gid;
    use super::*;

    /// An active port with a rate, and an address if there is one.
    fn device(name: &str, node: Option<u32>, rate: &str, address: &str) -> DeviceInfo {
        let gid = address.parse().ok().map(|address| Gid {
            index: 0,
            address,
            kind: "RoCE v2".to_owned(),
            interface: None,
        });
        let port = PortInfo {
            number: 1,
            state: "ACTIVE".to_owned(),
            physical_state: "LinkUp".to_owned(),
            link_layer: "Ethernet".to_owned(),
            rate: rate.to_owned(),
            gids: gid.into_iter().collect(),
            interface: None,
        };
        DeviceInfo { name: name.to_owned(), numa_node: node, ports: vec![port] }
    }

    fn down(device: DeviceInfo) -> DeviceInfo {
        let mut device = device;
        device.ports[0].state = "DOWN".to_owned();
        device
    }

    fn names(devices: &[DeviceInfo], config: &VanConfig) -> Vec<String> {
        equal(devices, config).iter().map(|(device, _)| device.name.clone()).collect()
    }

    #[test]
    fn threads_take_the_nearest_ports_and_share_those_that_are_equally_near() {
        let devices: Vec<_> = [("a", 0), ("b", 0), ("c", 1), ("d", 1)]
            .map(|(name, node)| device(name, Some(node), "400", "::ffff:10.0.0.1"))
            .into();
        let of = |node: Option<usize>, turn| {
            let near = node.map(NumaId);
            names(&devices, &VanConfig { near, turn, ..VanConfig::default() }).concat()
        };
        assert_eq!([0, 1, 2, 3].map(|turn| of(Some(1), turn)), ["cdab", "dcba", "cdab", "dcba"]);
        assert_eq!([0, 1].map(|turn| of(Some(0), turn)), ["abcd", "badc"]);
        assert_eq!([0, 1, 6].map(|turn| of(None, turn)), ["abcd", "bcda", "cdab"]);
        assert_eq!(of(Some(7), 3), "dabc", "a node that no device is at");
    }

    #[test]
    fn only_ports_like_the_one_that_would_be_taken_alone_are_used() {
        let devices = [
            down(device("a", None, "100", "::ffff:10.0.0.1")),
            device("b", None, "25", "::ffff:10.0.0.2"),
            device("c", None, "100", "::ffff:10.0.0.3"),
            device("d", None, "100", "none"),
            device("e", None, "100", "::ffff:10.0.0.5"),
        ];
        let listening = |listen: &str| {
            let listen = listen.to_owned();
            names(&devices, &VanConfig { listen, ..VanConfig::default() })
        };
        assert_eq!(listening("10.0.0.3:0"), ["c", "e"]);
        assert_eq!(listening("10.0.0.5:0"), ["c", "e"]);
        assert_eq!(listening("127.0.0.1:0"), ["b"], "the first one");
        assert_eq!(listening("10.0.0.1:0"), ["b"], "one that is down is none");
        let directly = |device: Option<&str>| {
            let device = device.map(str::to_owned);
            let rdma = RdmaConfig { device, connect: RdmaConnect::Direct, ..RdmaConfig::default() };
            names(&devices[2..], &VanConfig { rdma, ..VanConfig::default() })
        };
        assert_eq!(directly(None), ["c", "d", "e"], "addresses do not matter");
        assert_eq!(directly(Some("d")), ["d"], "a setting names one");
        assert_eq!(names(&devices[..1], &VanConfig::default()), [""; 0]);
    }
}
