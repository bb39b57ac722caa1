//! Addresses of this machine and their RDMA devices: the connection manager knows devices by
//! address.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use caravan_van::rdma::devices::{DeviceInfo, devices};
use caravan_van::rdma::verbs::{Channel, Connection, available};

/// The folder in which the kernel lists devices.
pub(crate) const SYSFS: &str = "/sys";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usable {
    pub(crate) device: String,
    pub(crate) address: IpAddr,
}

/// The devices with an active port that has an address, one for each port.
pub(crate) fn usable() -> Result<Vec<Usable>> {
    available().map_err(|reason| anyhow::anyhow!("{reason}; see `caravan doctor`"))?;
    Ok(of(&devices(Path::new(SYSFS))))
}

fn of(devices: &[DeviceInfo]) -> Vec<Usable> {
    let of_device = |device: &DeviceInfo| {
        let active = device.ports.iter().filter(|port| port.is_active());
        let addresses = active.filter_map(|port| port.address());
        let usable = |address| Usable { device: device.name.clone(), address };
        addresses.map(usable).collect::<Vec<_>>()
    };
    devices.iter().flat_map(of_device).collect()
}

/// The address of a device by its name, or of the first that is usable.
pub(crate) fn usable_named(name: Option<&str>) -> Result<Usable> {
    let mut all = usable()?;
    let at = match name {
        Some(name) => all.iter().position(|usable| usable.device == name).with_context(|| {
            let names: Vec<&str> = all.iter().map(|usable| usable.device.as_str()).collect();
            let others = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            format!("{name} has no active port with an address; those that do: {others}")
        })?,
        None => 0,
    };
    ensure!(
        at < all.len(),
        "no RDMA device has an active port with an address; see `caravan doctor`"
    );
    Ok(all.swap_remove(at))
}

/// The address of a host on this machine; for a loopback address that of the named device, or of
/// the first.
pub(crate) fn address_of(host: &str, device: Option<&str>) -> Result<IpAddr> {
    let mut found =
        (host, 0).to_socket_addrs().with_context(|| format!("{host} has no address"))?;
    let address = found.next().with_context(|| format!("{host} has no address"))?.ip();
    if address.is_loopback() { Ok(usable_named(device)?.address) } else { Ok(address) }
}

/// Bytes of a packet on the device with this address; none if it cannot be opened.
pub(crate) fn mtu(address: IpAddr) -> Option<usize> {
    let connection = Connection::new(&Channel::open().ok()?).ok()?;
    connection.bind((address, 0).into()).ok()?;
    connection.device()?.capabilities().ok().map(|capabilities| capabilities.mtu_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_host_with_an_address_of_its_own_keeps_it() {
        assert_eq!(address_of("192.0.2.7", None).unwrap().to_string(), "192.0.2.7");
        assert!(address_of("no such host", None).is_err());
    }
}
