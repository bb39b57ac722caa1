//! Whether other hosts reach the addresses that servers announce. A node tells at joining whether
//! it is on another host than the scheduler.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use super::backend::{Van, ports_of};
use super::choice::Candidate;
use crate::config::NodeConfig;
use crate::error::{Error, Result};

/// Checks that a server announces an address of some host.
///
/// # Errors
/// [`Error::Config`] for one that stands for all addresses, as 0.0.0.0.
pub(crate) fn check_host(config: &NodeConfig) -> Result<()> {
    let host = &config.host;
    // A failed look-up is reported by the code that needs the address.
    let mut found = (host.as_str(), 0).to_socket_addrs().into_iter().flatten();
    match found.any(|at| at.ip().is_unspecified()) {
        true => Err(Error::Config(format!(
            "CARAVAN_HOST={host} is no address that other nodes can connect to: set CARAVAN_HOST \
             to the address by which they reach this host"
        ))),
        false => Ok(()),
    }
}

/// Checks that other hosts reach a server by one of these vans, if it has any that leave its host.
///
/// # Errors
/// The addresses, with the remedy.
pub(crate) fn check_announced<'a>(
    vans: impl Iterator<Item = &'a Candidate>,
) -> std::result::Result<(), String> {
    let leaving = vans.filter(|van| van.host.is_none());
    let known: Vec<&str> =
        leaving.flat_map(|van| van.threads.iter().flatten()).map(String::as_str).collect();
    match known.is_empty() || known.iter().any(|address| !is_bound_to_host(address)) {
        true => Ok(()),
        false => Err(format!(
            "it announces {}, which other hosts cannot reach, and there are nodes on several: set \
             CARAVAN_HOST to the address by which they reach its host",
            known.join(", ")
        )),
    }
}

/// The vans among these that a node has been given.
pub(crate) fn taken<'a>(
    offered: &'a [Candidate],
    vans: &'a [Van],
) -> impl Iterator<Item = &'a Candidate> {
    offered.iter().filter(|offer| vans.contains(&offer.van))
}

fn is_bound_to_host(address: &str) -> bool {
    ports_of(address).all(|port| {
        let ip = port.parse().map(|at: SocketAddr| at.ip());
        ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
    })
}

/// Whether `address`, as `host:port`, is of another host than this one, as far as the routes of
/// this one tell.
pub(crate) fn is_elsewhere(address: &str) -> bool {
    let found: Vec<SocketAddr> = address.to_socket_addrs().into_iter().flatten().collect();
    let is_far = |at: &SocketAddr| {
        let is_own = at.ip().is_loopback() || at.ip().is_unspecified();
        !is_own && own_address_on_the_way(*at).is_some_and(|own| own != at.ip())
    };
    !found.is_empty() && found.iter().all(is_far)
}

/// The address of this host from which `peer` is reached: that under which others reach it, too.
pub fn own_address_towards(peer: &str) -> Option<IpAddr> {
    (peer, DISCARD).to_socket_addrs().ok()?.find_map(own_address_on_the_way)
}

fn own_address_on_the_way(target: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match target.ip() {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0_u16; 8].into(),
    };
    // Nothing is sent: connecting only chooses the route.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A port to choose a route by.
const DISCARD: u16 = 9;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn an_address_of_no_host_is_refused() {
        for (host, fits) in
            [("0.0.0.0", false), ("::", false), ("127.0.0.1", true), ("192.0.2.1", true)]
        {
            let config = NodeConfig { host: host.to_owned(), ..NodeConfig::default() };
            let checked = check_host(&config).map_err(|error| error.to_string());
            assert_eq!(checked.is_ok(), fits, "{checked:?}");
            assert!(fits || checked.unwrap_err().contains("set CARAVAN_HOST"));
        }
    }

    #[test]
    fn other_hosts_need_an_address_that_leaves_this_one() {
        let offer = |van, addresses: &[&str], host: Option<&str>| Candidate {
            van,
            threads: Ok(addresses.iter().map(|it| (*it).to_owned()).collect()),
            host: host.map(str::to_owned),
            ports: 1,
        };
        let shm = offer(Van::Shm, &["/x"], Some("here"));
        let near = offer(Van::Tcp, &["127.0.0.1:1", "[::1]:2"], None);
        let far = offer(Van::Uring, &["192.0.2.1:1", "192.0.2.1:2"], None);
        let rails = offer(Van::Rdma, &["127.0.0.1:1;192.0.2.1:1"], None);
        let lacks = Candidate { threads: Err("no".to_owned()), ..near.clone() };
        for (offers, fits) in [
            (vec![&shm], true),
            (vec![&near], false),
            (vec![&shm, &near], false),
            (vec![&near, &far], true),
            (vec![&rails], true),
            (vec![&shm, &lacks], true),
        ] {
            let checked = check_announced(offers.into_iter());
            assert_eq!(checked.is_ok(), fits, "{checked:?}");
        }
        let offers = [near, far];
        assert!(check_announced(taken(&offers, &[Van::Tcp])).is_err());
        assert!(check_announced(taken(&offers, &[Van::Tcp, Van::Uring])).is_ok());
    }

    #[test]
    fn the_own_address_is_on_the_way_to_the_peer() {
        assert_eq!(own_address_towards("127.0.0.1"), Some([127, 0, 0, 1].into()));
        assert_eq!(own_address_towards("no such host"), None);
        for here in ["127.0.0.1:7000", "[::1]:7000", "0.0.0.0:7000", "no such host:7000", ""] {
            assert!(!is_elsewhere(here), "{here}");
        }
        // Of a host that has a route to others, its own address is not elsewhere, and theirs is.
        if let Some(own) = own_address_towards("192.0.2.1") {
            assert!(!is_elsewhere(&SocketAddr::new(own, 7000).to_string()));
            assert!(is_elsewhere("192.0.2.1:7000"));
        }
    }
}
