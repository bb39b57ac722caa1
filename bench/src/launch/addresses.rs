//! The addresses by which the hosts of a job reach each other, from what each agent sees.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use anyhow::{Context, Result};

use super::hosts::Host;
use super::protocol::Hello;
use crate::cli::ending::Usage;

/// How one agent's processes reach the scheduler, and others reach them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) launcher: IpAddr,
    pub(super) own: IpAddr,
}

/// The addresses of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) of_agents: Vec<Seen>,
    /// Where the scheduler listens, and the address of this host.
    pub(super) listen: IpAddr,
    pub(super) own: IpAddr,
}

/// The addresses of a job's hosts, from what each agent sees.
///
/// # Errors
/// [`Usage`] if the hosts cannot reach each other.
pub(super) fn addresses(hellos: &[(&str, &Hello)]) -> Result<Addresses> {
    let seen = |hello: &Hello| Some(Seen { launcher: hello.launcher?, own: hello.own? });
    let remote: Vec<(&str, Seen)> =
        hellos.iter().filter_map(|(host, hello)| Some((*host, seen(hello)?))).collect();
    let blind = hellos.iter().find(|(host, hello)| *host != Host::HERE && seen(hello).is_none());
    if let Some((host, _)) = blind {
        let why = format!("{host} cannot tell its address: neither ssh nor srun names it there");
        return Err(Usage(why).into());
    }
    let far = remote.iter().find(|(_, seen)| !seen.own.is_loopback());
    let near = remote.iter().find(|(_, seen)| seen.own.is_loopback());
    if let (Some((far, _)), Some((near, _))) = (far, near) {
        return Err(Usage(format!(
            "{near} is reached by its loopback address, which {far} cannot reach: \
             name it by an address of its own, or by localhost"
        ))
        .into());
    }
    let own = remote.first().map_or(Ipv4Addr::LOCALHOST.into(), |(_, seen)| seen.launcher);
    let is_one = remote.iter().all(|(_, seen)| seen.launcher == own);
    let listen = match own {
        _ if is_one => own,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let here = Seen { launcher: own, own };
    let of_agents = hellos.iter().map(|(_, hello)| seen(hello).unwrap_or(here)).collect();
    Ok(Addresses { of_agents, listen, own })
}

/// A port of this host that nobody uses now.
pub(super) fn free_port(address: IpAddr) -> Result<u16> {
    let listener = TcpListener::bind((address, 0)).with_context(|| {
        format!(
            "hosts see this machine as {address}, which is no address of its own: \
             set CARAVAN_SCHEDULER=HOST:PORT to an address that they can reach"
        )
    })?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::launch::protocol::VERSION;

    fn hello(launcher: &str, own: &str) -> Hello {
        let address = |text: &str| text.parse().ok();
        Hello { version: VERSION.to_owned(), launcher: address(launcher), own: address(own) }
    }

    #[test]
    fn hosts_are_reached_where_they_are_seen() {
        let here = hello("", "");
        let local = addresses(&[(Host::HERE, &here)]).unwrap();
        assert_eq!(
            (local.listen.to_string(), local.own.to_string()),
            ("127.0.0.1".to_owned(), "127.0.0.1".to_owned())
        );
        let one = hello("192.0.2.1", "192.0.2.2");
        let two = hello("192.0.2.1", "192.0.2.3");
        let all = addresses(&[("A", &one), ("B", &two), (Host::HERE, &here)]).unwrap();
        assert_eq!(all.listen.to_string(), "192.0.2.1");
        assert_eq!(all.of_agents[2].own, all.own, "others reach this host there, too");
        let elsewhere = hello("198.51.100.1", "198.51.100.2");
        let split = addresses(&[("A", &one), ("B", &elsewhere)]).unwrap();
        assert!(split.listen.is_unspecified());
        assert_eq!(split.of_agents[1].launcher.to_string(), "198.51.100.1");
        let loopback = hello("127.0.0.1", "127.0.0.1");
        let mixed = addresses(&[("A", &one), ("me", &loopback)]).unwrap_err();
        assert!(mixed.is::<Usage>() && mixed.to_string().contains("me is reached by its loopback"));
        assert!(addresses(&[("A", &here)]).unwrap_err().to_string().contains("A cannot tell"));
        assert!(addresses(&[("A", &loopback), ("B", &loopback)]).is_ok());
    }

    #[test]
    fn an_address_of_others_is_refused_with_the_remedy() {
        let error = free_port("192.0.2.1".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("CARAVAN_SCHEDULER"), "{error}");
        assert!(free_port("127.0.0.1".parse().unwrap()).unwrap() > 0);
    }
}
