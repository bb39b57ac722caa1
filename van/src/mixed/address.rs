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

/// What one of this node's vans connects to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own<'a> {
    pub(super) member: usize,
    pub(super) carrier: &'a str,
    pub(super) host: Option<&'a str>,
}

/// The ways from this node's vans to those that an address names, the best first. Vans of one
/// carrier are ports: each of this node's may go to each of the peer's. The first of both comes
/// first, then the second of both and so on; the pairs that are left come behind them.
pub(super) fn ways(own: &[Own<'_>], named: &[Named<'_>]) -> Vec<Way> {
    let mut ways = Vec::new();
    let mut rest = own;
    while let Some(first) = rest.first() {
        let count = rest.iter().take_while(|van| van.carrier == first.carrier).count();
        let (ports, behind) = rest.split_at(count);
        let is_it = |way: &&Named<'_>| way.carrier == first.carrier && way.host == first.host;
        let theirs: Vec<_> = named.iter().filter(is_it).collect();
        for shift in 0..theirs.len() {
            ways.extend(ports.iter().enumerate().map(|(at, van)| Way {
                member: van.member,
                address: theirs[(at + shift) % theirs.len()].address.to_owned(),
            }));
        }
        rest = behind;
    }
    ways
}

/// The vans of an address; of another text, none.
pub(super) fn named(address: &str) -> Vec<Named<'_>> {
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
        assert_eq!(named(&address), [near, far]);
        assert_eq!(join([silent].into_iter()), "");
        for other in ["", "192.0.2.1:4000", "shm:caravan-1", "|"] {
            assert_eq!(named(other), [], "{other}");
        }
        assert_ne!(digest("here"), digest("there"));
    }

    #[test]
    fn every_port_may_go_to_every_port_and_the_first_ones_meet() {
        let own = |member, carrier| Own { member, carrier, host: None };
        let own = [own(0, "rdma"), own(1, "rdma"), own(2, "socket")];
        let to = |address: &str| {
            let ways = ways(&own, &named(address)).into_iter();
            ways.map(|way| format!("{}{}", way.member, way.address)).collect::<Vec<_>>()
        };
        assert_eq!(to("rdma=a|rdma=b|socket=s"), ["0a", "1b", "0b", "1a", "2s"]);
        assert_eq!(to("rdma=a|socket=s"), ["0a", "1a", "2s"]);
        assert_eq!(to("rdma=a|rdma=b|rdma=c"), ["0a", "1b", "0b", "1c", "0c", "1a"]);
        assert_eq!(to("shm@1=m|socket=s"), ["2s"]);
    }
}
