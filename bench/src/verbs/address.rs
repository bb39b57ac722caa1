//! Which address of this machine leads over which RDMA device: the connection manager knows devices by addresses.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use caravan_van::rdma::devices::{DeviceInfo, devices};
use caravan_van::rdma::verbs::{Channel, Connection, Device, available};

/// Below which the kernel lists devices.
pub(crate) const SYSFS: &str = "/sys";

/// A device that can carry a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usable {
    /// Its name, `mlx5_0`.
    pub(crate) device: String,
    /// The address that leads over it.
    pub(crate) address: IpAddr,
}

/// The devices with an active port that has an address, one for each port.
///
/// # Errors
/// What keeps verbs from being used on this machine at all.
pub(crate) fn usable() -> Result<Vec<Usable>> {
    available().map_err(|reason| anyhow::anyhow!("{reason}; see `caravan doctor`"))?;
    Ok(of(&devices(Path::new(SYSFS))))
}

fn of(devices: &[DeviceInfo]) -> Vec<Usable> {
    let ports =
        devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let active = ports.filter(|(_, port)| port.is_active());
    active
        .filter_map(|(device, port)| {
            Some(Usable { device: device.name.clone(), address: port.address()? })
        })
        .collect()
}

/// The address of a device by its name, or of the first that is usable.
///
/// # Errors
/// When there is none.
pub(crate) fn usable_named(name: Option<&str>) -> Result<Usable> {
    let all = usable()?;
    let names: Vec<&str> = all.iter().map(|usable| usable.device.as_str()).collect();
    let at = match name {
        Some(name) => names.iter().position(|found| *found == name).with_context(|| {
            let others = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            format!("{name} has no active port with an address; those that do: {others}")
        })?,
        None => 0,
    };
    ensure!(
        !all.is_empty(),
        "no RDMA device has an active port with an address; see `caravan doctor`"
    );
    Ok(all[at].clone())
}

/// The address of a host on this machine; for one that leads over no device, such as 127.0.0.1, that of the named device, or of
/// the first.
///
/// # Errors
/// When it has no address, or there is no device.
pub(crate) fn address_of(host: &str, device: Option<&str>) -> Result<IpAddr> {
    let mut found =
        (host, 0).to_socket_addrs().with_context(|| format!("{host} has no address"))?;
    let address = found.next().with_context(|| format!("{host} has no address"))?.ip();
    if address.is_loopback() { Ok(usable_named(device)?.address) } else { Ok(address) }
}

/// Bytes of a packet on the device with this address; none where it cannot be opened.
pub(crate) fn mtu(address: IpAddr) -> Option<usize> {
    device_at(address)?.capabilities().ok().map(|capabilities| capabilities.mtu_bytes)
}

/// The device with this address.
fn device_at(address: IpAddr) -> Option<Device> {
    let connection = Connection::new(&Channel::open().ok()?).ok()?;
    connection.bind((address, 0).into()).ok()?;
    connection.device()
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
