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
use super::devices::{DeviceInfo, devices};
use super::verbs::{self, Channel, CmKind, Connection, Device};
use crate::config::VanConfig;
use crate::error::{Error, Result};

/// Limit on the time to resolve an address or the route to it.
pub(super) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens where `config` says; returns the listener, its device and the address for peers.
pub(super) fn listen(config: &VanConfig) -> Result<(Rc<Channel>, Connection, Device, String)> {
    let unavailable = |reason| Error::Unavailable { van: NAME, reason };
    verbs::available().map_err(unavailable)?;
    let os = |call| move |source| Error::Os { call, source };
    let channel = Channel::open().map_err(os("opening the RDMA connection manager"))?;
    let failed = |source| Error::Listen { address: config.listen.clone(), source };
    let wanted = first_address(&config.listen).map_err(failed)?;
    let found = bound(&channel, wanted).filter(|(_, device)| is_wanted(config, &device.name()));
    let (listener, device) = match found {
        Some(found) => found,
        None => {
            let ip = choose(&devices(Path::new("/sys")), config.device.as_deref())
                .map_err(unavailable)?;
            let address = SocketAddr::new(ip, wanted.port());
            bound(&channel, address).ok_or_else(|| {
                unavailable(format!("{address} belongs to an RDMA device, and cannot be bound"))
            })?
        }
    };
    let mut address = String::new();
    if config.accepts {
        listener.listen(BACKLOG).map_err(failed)?;
        address = listener.local_address().ok_or_else(|| failed(no_address()))?.to_string();
    }
    Ok((channel, listener, device, address))
}

/// Whether the settings name this device or none.
fn is_wanted(config: &VanConfig, name: &str) -> bool {
    config.device.as_deref().is_none_or(|wanted| wanted == name)
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

/// The address of the device `name`, or of the first usable device.
///
/// # Errors
/// The reason that there is none, with the remedy.
fn choose(devices: &[DeviceInfo], name: Option<&str>) -> Result<IpAddr, String> {
    if devices.is_empty() {
        return Err("this machine has no RDMA device".to_owned());
    }
    let names = || devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
    let named: Vec<_> =
        devices.iter().filter(|device| name.is_none_or(|name| name == device.name)).collect();
    if let (Some(name), true) = (name, named.is_empty()) {
        return Err(format!("there is no RDMA device {name}; there are {}", names()));
    }
    let active = || named.iter().flat_map(|device| &device.ports).filter(|port| port.is_active());
    if active().next().is_none() {
        return Err(format!("no port of {} is active (see `rdma link` and the cable)", names()));
    }
    active().find_map(|port| port.address()).ok_or_else(|| {
        format!(
            "the network interface of {} has no address; give it one (ip address add …)",
            names()
        )
    })
}

/// Checks that a van made from `config` would find a route to `address`, a `host:port`. It asks the
/// connection manager only and contacts no peer.
///
/// # Errors
/// [`Error::Unavailable`] as [`Rdma::new`] says; [`Error::Connect`] if no route leads there from
/// its device.
pub fn reaches(config: &VanConfig, address: &str) -> Result<()> {
    let (channel, listener, device, _) = listen(config)?;
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

fn first_address(name: &str) -> io::Result<SocketAddr> {
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
        assert_eq!(choose(&devices, None).unwrap().to_string(), "10.0.0.3");
        assert_eq!(choose(&devices, Some("c")).unwrap().to_string(), "10.0.0.3");
        for (name, words) in [("a", "is active"), ("b", "no address"), ("d", "there are a, b, c")] {
            let error = choose(&devices, Some(name)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(choose(&[], None).unwrap_err().contains("no RDMA device"));
    }
}
