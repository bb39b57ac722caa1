//! The address of a node with several vans: `shm@HOST=ADDRESS|socket=ADDRESS`, each with its
//! carrier, and the host where the carrier does not leave it.

use crc_fast::CrcAlgorithm;

/// Between two vans.
const NEXT: char = '|';

/// One van of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) carrier: &'a str,
    /// Digest of where the van is, if it does not leave the host.
    pub(super) host: Option<&'a str>,
    /// In the form that the van takes; empty if nobody can connect to it.
    pub(super) address: &'a str,
}

/// A way to a peer: a member, and the address there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) member: usize,
    pub(super) address: String,
}

/// A short name of a host.
pub(super) fn digest(host: &str) -> String {
    format!("{:016x}", crc_fast::checksum(CrcAlgorithm::Crc64Nvme, host.as_bytes()))
}

/// The address of a node with these vans, without those that nobody can connect to.
pub(super) fn join<'a>(vans: impl Iterator<Item = Named<'a>>) -> String {
    let vans = vans.filter(|van| !van.address.is_empty());
    let texts = vans.map(|Named { carrier, host, address }| match host {
        Some(host) => format!("{carrier}@{host}={address}"),
        None => format!("{carrier}={address}"),
    });
    texts.collect::<Vec<_>>().join(&NEXT.to_string())
}

/// The vans of an address; of another text, none.
pub(super) fn ways(address: &str) -> Vec<Named<'_>> {
    let named = address.split(NEXT).filter_map(|text| {
        let (carrier, address) = text.split_once('=')?;
        let (carrier, host) = match carrier.split_once('@') {
            Some((carrier, host)) => (carrier, Some(host)),
            None => (carrier, None),
        };
        Some(Named { carrier, host, address })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_the_vans_that_can_be_called() {
        let host = digest("here");
        let near = Named { carrier: "shm", host: Some(&host), address: "shm:caravan-1" };
        let far = Named { carrier: "socket", host: None, address: "[::1]:4000" };
        let silent = Named { carrier: "rdma", host: None, address: "" };
        let address = join([near, silent, far].into_iter());
        assert_eq!(address, format!("shm@{host}=shm:caravan-1|socket=[::1]:4000"));
        assert_eq!(ways(&address), [near, far]);
        assert_eq!(join([silent].into_iter()), "");
        for other in ["", "192.0.2.1:4000", "shm:caravan-1", "|"] {
            assert_eq!(ways(other), [], "{other}");
        }
        assert_ne!(digest("here"), digest("there"));
    }
}
