//! Set-up: chooses the device and the address to listen on, and checks whether a route leads from
//! there to a peer. Not on the path.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::NAME;
#[cfg(doc)]
use super::Rdma;
use super::devices::{DeviceInfo, PortInfo, devices, partitions};
use super::endpoints::Port;
use super::side_channels::SideChannels;
use super::verbs::{self, Channel, CmKind, Connection, Device};
use crate::config::{RdmaConfig, RdmaConnect, VanConfig};
use crate::error::{Error, Result};

/// Limit on the time to resolve an address or the route to it.
pub(super) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The folder in which the kernel lists devices.
pub(super) const SYSFS: &str = "/sys";

/// Stands before the address of an end that is connected directly.
pub(super) const DIRECT: &str = "direct:";

/// Separates the addresses of a transport, the one to be tried first before the other.
pub(super) const OR: char = ',';

/// A device, and the ways to connect that it has.
pub(super) struct Nic {
    pub(super) device: Device,
    pub(super) manager: Option<Manager>,
    pub(super) direct: Option<Direct>,
}

/// The connection manager, and the connection that listens or is bound to the device's address.
pub(super) struct Manager {
    pub(super) listener: Connection,
    pub(super) channel: Rc<Channel>,
}

/// What direct connections need.
pub(super) struct Direct {
    pub(super) side_channels: SideChannels,
    pub(super) port: Port,
}

/// Listens where `config` says, in each way that it allows and that the port has; returns the
/// address for peers, too.
pub(super) fn listen(config: &VanConfig) -> Result<(Nic, String)> {
    let unavailable = |reason| Error::Unavailable { van: NAME, reason };
    verbs::has_devices().map_err(|missing| unavailable(missing.to_string()))?;
    let only_direct = config.rdma.only_direct();
    if let (Some(name), RdmaConnect::Manager) = (only_direct, config.rdma.connect) {
        let reason = format!("{name} needs CARAVAN_RDMA_CONNECT=direct; it is cm");
        return Err(unavailable(reason));
    }
    let is_direct = config.rdma.connect == RdmaConnect::Direct || only_direct.is_some();
    let managed = if is_direct { None } else { Some(manage(config)) };
    let (manager, device) = match managed {
        Some(Ok((manager, device))) => (Some(manager), device),
        Some(Err(error)) if config.rdma.connect == RdmaConnect::Manager => return Err(error),
        Some(Err(_)) | None => (None, named(&config.rdma)?),
    };
    let mut addresses = Vec::new();
    if let Some(manager) = manager.as_ref().filter(|_| config.accepts) {
        let failed = |source| Error::Listen { address: config.listen.clone(), source };
        manager.listener.listen(BACKLOG).map_err(failed)?;
        let address = manager.listener.local_address().ok_or_else(|| failed(no_address()))?;
        addresses.push(address.to_string());
    }
    let direct = match config.rdma.connect {
        RdmaConnect::Manager => None,
        RdmaConnect::Auto | RdmaConnect::Direct => match direct(config, device) {
            Ok((direct, address)) => {
                addresses.extend(address.map(|address| format!("{DIRECT}{address}")));
                Some(direct)
            }
            // One way is enough.
            Err(_) if manager.is_some() => None,
            Err(error) => return Err(error),
        },
    };
    Ok((Nic { device, manager, direct }, addresses.join(&OR.to_string())))
}

/// The connection manager, bound to the device that `config` names or to the first one with an
/// address.
fn manage(config: &VanConfig) -> Result<(Manager, Device)> {
    let unavailable = |reason| Error::Unavailable { van: NAME, reason };
    verbs::available().map_err(|missing| unavailable(missing.to_string()))?;
    let os = |call| move |source| Error::Os { call, source };
    let channel = Channel::open().map_err(os("opening the RDMA connection manager"))?;
    let failed = |source| Error::Listen { address: config.listen.clone(), source };
    let wanted = first_address(&config.listen).map_err(failed)?;
    let is_wanted = |device: &Device| {
        let RdmaConfig { device: name, port, .. } = &config.rdma;
        name.as_ref().is_none_or(|name| *name == device.name())
            && port.is_none_or(|port| port == device.port())
    };
    let found = bound(&channel, wanted).filter(|(_, device)| is_wanted(device));
    let (listener, device) = match found {
        Some(found) => found,
        None => {
            let devices = devices(Path::new(SYSFS));
            let ip = choose(&devices, &config.rdma).and_then(|active| with_address(&active));
            let address = SocketAddr::new(ip.map_err(unavailable)?, wanted.port());
            bound(&channel, address).ok_or_else(|| {
                unavailable(format!("{address} belongs to an RDMA device, and cannot be bound"))
            })?
        }
    };
    Ok((Manager { listener, channel }, device))
}

/// The device and port that `config` names, or the first with an active port. It needs no address.
fn named(config: &RdmaConfig) -> Result<Device> {
    let unavailable = |reason| Error::Unavailable { van: NAME, reason };
    let devices = devices(Path::new(SYSFS));
    let (info, port) = choose(&devices, config).map_err(unavailable)?[0];
    let opened = Device::named(&info.name, port.number)
        .map_err(|source| Error::Os { call: "opening the RDMA device", source })?;
    opened.ok_or_else(|| unavailable(format!("{} cannot be opened", info.name)))
}

/// What direct connections over `device` need, and the address to call, if the node accepts.
fn direct(config: &VanConfig, device: Device) -> Result<(Direct, Option<SocketAddr>)> {
    let unavailable = |reason| Error::Unavailable { van: NAME, reason };
    let able = device
        .capabilities()
        .map_err(|source| Error::Os { call: "asking the RDMA device for its limits", source })?;
    let (name, number) = (device.name(), device.port());
    let devices = devices(Path::new(SYSFS));
    let info = devices
        .iter()
        .filter(|device| device.name == name)
        .flat_map(|device| &device.ports)
        .find(|port| port.number == number)
        .ok_or_else(|| unavailable(format!("the kernel lists no port {number} of {name}")))?;
    let pkeys = partitions(Path::new(SYSFS), &name, number);
    let port = Port::new(&name, info, &able, &pkeys, &config.rdma).map_err(unavailable)?;
    // What is said over a wire is always sealed; the data is not.
    let sealed = VanConfig { encrypt: true, ..config.clone() };
    let credentials = super::credentials(&sealed, "rdma direct");
    let (side_channels, bound) =
        SideChannels::new(Rc::new(credentials), config.accepts.then_some(&config.listen))
            .map_err(|source| Error::Listen { address: config.listen.clone(), source })?;
    tracing::debug!(%port, "takes direct connections");
    Ok((Direct { side_channels, port }, bound))
}

/// A connection bound to `address`; `None` if that is not the address of an RDMA device.
fn bound(channel: &Rc<Channel>, address: SocketAddr) -> Option<(Connection, Device)> {
    // The connection manager would take any device for the loopback address.
    if address.ip().is_loopback() || address.ip().is_unspecified() {
        return None;
    }
    let connection = Connection::new(channel).ok()?;
    connection.bind(address).ok()?;
    let device = connection.device()?;
    Some((connection, device))
}

/// The active ports that the settings allow; at least one.
///
/// # Errors
/// The reason that there is none, with the remedy.
pub(super) fn choose<'a>(
    devices: &'a [DeviceInfo],
    config: &RdmaConfig,
) -> Result<Vec<(&'a DeviceInfo, &'a PortInfo)>, String> {
    if devices.is_empty() {
        return Err("this machine has no RDMA device".to_owned());
    }
    let name = config.device.as_deref();
    let named: Vec<_> =
        devices.iter().filter(|device| name.is_none_or(|name| name == device.name)).collect();
    if let (Some(name), true) = (name, named.is_empty()) {
        return Err(format!("there is no RDMA device {name}; there are {}", names(devices)));
    }
    let ports = named.iter().flat_map(|device| device.ports.iter().map(|port| (*device, port)));
    let mut ports: Vec<_> = ports.collect();
    if let Some(number) = config.port {
        ports.retain(|(_, port)| port.number == number);
        if ports.is_empty() {
            let whose = names(named);
            return Err(format!("CARAVAN_RDMA_PORT is {number}, and {whose} has no such port"));
        }
    }
    ports.retain(|(_, port)| port.is_active());
    if ports.is_empty() {
        let whose = names(named);
        return Err(format!("no port of {whose} is active (see `rdma link` and the cable)"));
    }
    Ok(ports)
}

/// The first address of these ports.
fn with_address(ports: &[(&DeviceInfo, &PortInfo)]) -> Result<IpAddr, String> {
    ports.iter().find_map(|(_, port)| port.address()).ok_or_else(|| {
        format!(
            "the network interface of {} has no address; give it one (ip address add …), or do \
             without (CARAVAN_RDMA_CONNECT=direct)",
            names(ports.iter().map(|(device, _)| *device))
        )
    })
}

fn names<'a>(devices: impl IntoIterator<Item = &'a DeviceInfo>) -> String {
    let mut names: Vec<_> = devices.into_iter().map(|device| device.name.as_str()).collect();
    names.dedup();
    names.join(", ")
}

/// Checks that a van made from `config` would find a route to `address`, a `host:port`. It asks the
/// connection manager only and contacts no peer. Nobody can tell for a direct connection: it is
/// taken to reach what is on InfiniBand, and everything if a setting asks for it.
///
/// # Errors
/// [`Error::Unavailable`] as [`Rdma::new`] says; [`Error::Connect`] if no route leads there from
/// its device.
pub fn reaches(config: &VanConfig, address: &str) -> Result<()> {
    let quiet = VanConfig { accepts: false, ..config.clone() };
    let (nic, _) = listen(&quiet)?;
    let Some(Manager { listener, channel }) = nic.manager else {
        let is_asked = config.rdma.connect == RdmaConnect::Direct;
        let on_ethernet = nic.direct.is_some_and(|direct| direct.port.is_ethernet());
        if on_ethernet && !is_asked && config.rdma.only_direct().is_none() {
            let reason = format!(
                "port {} of {} has no IP address; give it one, or CARAVAN_RDMA_CONNECT=direct",
                nic.device.port(),
                nic.device.name()
            );
            return Err(Error::Unavailable { van: NAME, reason });
        }
        return Ok(());
    };
    let device = nic.device;
    let failed = |source| Error::Connect { address: address.to_owned(), source };
    let to = first_address(address).map_err(failed)?;
    let from = listener.local_address().map(|address| SocketAddr::new(address.ip(), 0));
    let connection = Connection::new(&channel).map_err(failed)?;
    connection.resolve_address(from, to, RESOLVE_TIMEOUT).map_err(failed)?;
    let until = Instant::now() + RESOLVE_TIMEOUT;
    while Instant::now() < until {
        match channel.next().map_err(failed)? {
            Some(event) if event.kind == CmKind::AddressResolved => {
                if connection.device().is_some_and(|by| by.name() == device.name()) {
                    return Ok(());
                }
                break;
            }
            Some(_) => break,
            None => drop(verbs::sleep(&[channel.fd()], RESOLVE_TIMEOUT).map_err(failed)?),
        }
    }
    let none = format!("no route leads there from the RDMA device {}", device.name());
    Err(failed(io::Error::new(io::ErrorKind::HostUnreachable, none)))
}

pub(super) fn first_address(name: &str) -> io::Result<SocketAddr> {
    name.to_socket_addrs()?.next().ok_or_else(no_address)
}

pub(super) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::devices::{Gid, PortInfo};
    use super::*;

    fn device(name: &str, state: &str, gids: &[&str]) -> DeviceInfo {
        let gids = gids
            .iter()
            .zip(0..)
            .map(|(address, index)| Gid {
                index,
                address: address.parse().unwrap(),
                kind: "RoCE v2".to_owned(),
                interface: Some("v0".to_owned()),
            })
            .collect();
        let port = PortInfo {
            number: 1,
            state: state.to_owned(),
            physical_state: "LinkUp".to_owned(),
            link_layer: "Ethernet".to_owned(),
            rate: "100 Gb/sec".to_owned(),
            gids,
            interface: None,
        };
        DeviceInfo { name: name.to_owned(), numa_node: None, ports: vec![port] }
    }

    #[test]
    fn the_first_device_with_an_active_port_and_an_address_is_taken() {
        let devices = [
            device("a", "DOWN", &["::ffff:10.0.0.1"]),
            device("b", "ACTIVE", &[]),
            device("c", "ACTIVE", &["fe80::1", "::ffff:10.0.0.3"]),
        ];
        let address = |device: Option<&str>, port| {
            let device = device.map(str::to_owned);
            let config = RdmaConfig { device, port, ..RdmaConfig::default() };
            with_address(&choose(&devices, &config)?)
        };
        assert_eq!(address(None, None).unwrap().to_string(), "10.0.0.3");
        assert_eq!(address(Some("c"), Some(1)).unwrap().to_string(), "10.0.0.3");
        for (name, port, words) in [
            ("a", None, "is active"),
            ("b", None, "no address"),
            ("c", Some(2), "no such port"),
            ("d", None, "there are a, b, c"),
        ] {
            let error = address(Some(name), port).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let none = choose(&[], &RdmaConfig::default()).unwrap_err();
        assert!(none.contains("no RDMA device"));
    }
}
