//! The one place that names concrete vans, and knows what each needs.

use std::fmt;
use std::net::ToSocketAddrs;
use std::str::FromStr;

use caravan_fallback_tcp::Tcp;
use caravan_van::rdma::{self, Rdma};
use caravan_van::shm::Shm;
use caravan_van::uring::Uring;
use caravan_van::{Transport, VanConfig};
use serde::{Deserialize, Serialize};

use crate::config::NodeConfig;
use crate::error::{Error, Result};

/// Which van to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Van {
    /// The fastest that works for all nodes of the cluster.
    Auto,
    /// Shared memory, between processes of one host.
    Shm,
    /// Verbs: InfiniBand and RoCE.
    Rdma,
    /// io_uring over TCP.
    Uring,
    /// Plain sockets.
    Tcp,
}

/// All vans there are, fastest first.
pub const VANS: [Van; 4] = [Van::Shm, Van::Rdma, Van::Uring, Van::Tcp];

impl fmt::Display for Van {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Van::Auto => "auto",
            Van::Shm => "shm",
            Van::Rdma => "rdma",
            Van::Uring => "uring",
            Van::Tcp => "tcp",
        })
    }
}

impl FromStr for Van {
    type Err = Error;

    fn from_str(name: &str) -> Result<Van> {
        let van = [Van::Auto].into_iter().chain(VANS).find(|van| van.to_string() == name);
        van.ok_or_else(|| {
            Error::Config(format!(
                "there is no van {name} between processes; there are auto, shm, rdma, uring and tcp"
            ))
        })
    }
}

/// Opens a transport: the named van, or the first that opens for [`Van::Auto`].
///
/// # Errors
/// Why the van does not work here.
pub fn open(van: Van, config: &VanConfig) -> Result<Box<dyn Transport>> {
    Ok(match van {
        Van::Shm => Box::new(Shm::new(config)?),
        Van::Rdma => Box::new(Rdma::new(config)?),
        Van::Uring => Box::new(Uring::new(config)?),
        Van::Tcp => Box::new(Tcp::new(config)?),
        Van::Auto => {
            let opens = VANS.into_iter().find_map(|van| open(van, config).ok());
            opens.map_or_else(|| open(Van::Tcp, config), Ok)?
        }
    })
}

/// A van that was opened before it is known whether it is the one, or why it could not be.
pub(crate) type Opened = (Van, Result<Box<dyn Transport>>);

/// Opens every van that this node's settings allow, in order; which one is taken, all nodes decide together. A van that fails is
/// there with its error.
///
/// # Errors
/// When a van was named and does not work here.
pub(crate) fn open_all(config: &NodeConfig) -> Result<Vec<Opened>> {
    let van_config = config.van_config(0);
    if config.van != Van::Auto {
        return Ok(vec![(config.van, Ok(open(config.van, &van_config)?))]);
    }
    let try_out = |van| {
        reaches(van, &van_config, &config.scheduler)?;
        open(van, &van_config)
    };
    Ok(VANS.into_iter().map(|van| (van, try_out(van))).collect())
}

/// Whether there is a way by this van to where the scheduler is; the nodes are taken to be where it is.
fn reaches(van: Van, config: &VanConfig, scheduler: &str) -> Result<()> {
    if van == Van::Rdma && !is_local(scheduler) {
        rdma::reaches(config, scheduler)?;
    }
    Ok(())
}

/// Whether only this machine can reach that address, so that the whole cluster is here.
fn is_local(address: &str) -> bool {
    let local = |ip: std::net::IpAddr| ip.is_loopback() || ip.is_unspecified();
    address.to_socket_addrs().is_ok_and(|mut found| found.all(|address| local(address.ip())))
}

/// Opens the transport of the control plane, which sleeps rather than spins.
pub(crate) fn open_control(config: &VanConfig) -> Result<Box<dyn Transport>> {
    Ok(Box::new(Tcp::new(config)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn vans_have_names() {
        for van in [Van::Auto].into_iter().chain(VANS) {
            assert_eq!(van.to_string().parse::<Van>().unwrap(), van);
            assert_eq!(serde_json::to_string(&van).unwrap(), format!("\"{van}\""));
        }
        let error = "pigeon".parse::<Van>().unwrap_err().to_string();
        assert!(VANS.iter().all(|van| error.contains(&van.to_string())), "{error}");
    }

    #[test]
    fn a_named_van_is_tried_alone_and_auto_tries_all() {
        let named = NodeConfig { van: Van::Tcp, ..NodeConfig::default() };
        let opened = open_all(&named).unwrap();
        assert!(matches!(&opened[..], [(Van::Tcp, Ok(_))]));
        let nowhere = NodeConfig { host: "192.0.2.1".to_owned(), ..named };
        assert!(open_all(&nowhere).is_err(), "nobody has this address");
        let opened = open_all(&NodeConfig { van: Van::Auto, ..nowhere }).unwrap();
        assert_eq!(opened.iter().map(|(van, _)| *van).collect::<Vec<_>>(), VANS);
        assert!(opened.iter().any(|(van, outcome)| *van == Van::Tcp && outcome.is_err()));
    }

    #[test]
    fn a_cluster_on_one_machine_needs_no_route() {
        for here in ["127.0.0.1:7000", "[::1]:7000", "0.0.0.0:7000", "localhost:7000"] {
            assert!(is_local(here), "{here}");
        }
        for elsewhere in ["192.0.2.1:7000", "[2001:db8::1]:7000", "no address"] {
            assert!(!is_local(elsewhere), "{elsewhere}");
        }
    }
}
