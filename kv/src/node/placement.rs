//! Placement of a server's threads and memory: NUMA node, core, and what could not be honoured.
//!
//! It is decided once before the threads start, and each applies it before it touches any memory. A
//! wish that a restricted container does not grant is logged; only a node that does not exist is an
//! error.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use caravan_numa::{Near, NumaId, Plan, Seat, Topology};

use super::backend::{self, Nic};
use crate::config::NodeConfig;
use crate::error::{Error, Result};

/// A wish for a NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// The node of the network device that carries the messages; any if it has none.
    NearNic,
    /// All nodes in turn.
    Any,
    /// This node.
    Node(NumaId),
}

impl Numa {
    /// The node that memory is bound to; `None` if it is placed by first use.
    pub fn node(self) -> Option<NumaId> {
        match self {
            Numa::Node(node) => Some(node),
            Numa::NearNic | Numa::Any => None,
        }
    }
}

impl fmt::Display for Numa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Numa::NearNic => f.write_str("near-nic"),
            Numa::Any => f.write_str("any"),
            Numa::Node(node) => node.fmt(f),
        }
    }
}

impl FromStr for Numa {
    type Err = Error;

    fn from_str(text: &str) -> Result<Numa> {
        match text {
            "near-nic" => Ok(Numa::NearNic),
            "any" => Ok(Numa::Any),
            number => number.parse().map(|node| Numa::Node(NumaId(node))).map_err(|_| {
                Error::Config(format!(
                    "{text:?} is no NUMA node; it takes a number, near-nic or any"
                ))
            }),
        }
    }
}

/// The places of a server's threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seating {
    /// The device that carries the messages, if there is one and it matters.
    pub nic: Option<Nic>,
    /// The node to start from; `None` for all in turn.
    pub node: Option<NumaId>,
    /// The core of each thread; `None` if threads are not pinned.
    pub plan: Option<Plan>,
}

impl Seating {
    /// Seats for the server threads numbered `threads` among all that share the machine, on
    /// `topology`, where `nic` carries the messages.
    ///
    /// # Errors
    /// [`Error::Config`] for a node that the machine does not have.
    pub fn new(
        config: &NodeConfig,
        topology: &Topology,
        nic: Option<Nic>,
        threads: Range<usize>,
    ) -> Result<Seating> {
        let node = match config.numa {
            Numa::Any => None,
            Numa::NearNic => {
                nic.as_ref().and_then(|nic| nic.node).filter(|&node| is_known(node, topology))
            }
            Numa::Node(node) if is_known(node, topology) => Some(node),
            Numa::Node(node) => return Err(unknown(node, topology)),
        };
        let near = node.map_or(Near::Anywhere, Near::Node);
        let plan = config.pin.then(|| Plan::new(topology, near, threads));
        Ok(Seating { nic, node, plan })
    }

    /// Seats on this machine for the `threads` threads of the server of this rank; `None`, with a
    /// log line, if the machine cannot be read.
    ///
    /// # Errors
    /// As [`Seating::new`].
    pub(super) fn here(
        config: &NodeConfig,
        rank: usize,
        threads: usize,
    ) -> Result<Option<Seating>> {
        match Topology::this_machine() {
            Ok(topology) => {
                let nic = backend::nic(config, Path::new("/sys"));
                let threads = rank * threads..(rank + 1) * threads;
                Seating::new(config, &topology, nic, threads).map(Some)
            }
            Err(error) => {
                tracing::warn!(%error, "the system places server threads and their memory");
                Ok(None)
            }
        }
    }

    /// The seat of this server's `thread`, counted from 0; `None` if it is not pinned.
    pub fn seat(&self, thread: usize) -> Option<Seat> {
        self.plan.as_ref()?.seats().get(thread).copied()
    }

    /// The node of the memory of this server's `thread`: that of its seat, else the one to start
    /// from; `None` for placement by first use.
    pub fn memory_node(&self, thread: usize) -> Option<NumaId> {
        self.seat(thread).map_or(self.node, |seat| seat.node)
    }

    /// Pins the calling thread, which is this server's `thread`, and returns settings that place
    /// its memory beside it.
    pub(super) fn take(&self, thread: usize, config: &NodeConfig) -> NodeConfig {
        let placement = self.plan.as_ref().map(|plan| plan.pin_current_thread(thread));
        let node = match &placement {
            Some(placement) if placement.is_pinned() => placement.node(),
            _ => self.node,
        };
        // A pinned thread's memory is local by itself, except what other threads touch first.
        if placement.as_ref().is_none_or(|placement| !placement.is_pinned())
            && let Some(node) = node
            && let Err(error) = caravan_numa::prefer_node(Some(node))
        {
            tracing::warn!(%error, %node, "shards are placed by the thread that first writes them");
        }
        let placed =
            placement.map_or("unpinned, as asked for".to_owned(), |placed| placed.to_string());
        let memory =
            node.map_or("where it is first touched".to_owned(), |node| format!("on node {node}"));
        tracing::info!("server thread {thread}: {placed}; memory {memory}");
        NodeConfig { numa: node.map_or(Numa::Any, Numa::Node), ..config.clone() }
    }
}

/// Refuses a wish for a node that this machine does not have, before anything is started for it.
///
/// # Errors
/// [`Error::Config`]; none if the machine cannot be read.
pub(crate) fn check_numa(numa: Numa) -> Result<()> {
    let Some(node) = numa.node() else { return Ok(()) };
    match Topology::this_machine() {
        Ok(topology) if !is_known(node, &topology) => Err(unknown(node, &topology)),
        _ => Ok(()),
    }
}

fn is_known(node: NumaId, topology: &Topology) -> bool {
    topology.nodes().iter().any(|known| known.id == node)
}

fn unknown(node: NumaId, topology: &Topology) -> Error {
    let known: Vec<String> = topology.nodes().iter().map(|node| node.id.to_string()).collect();
    Error::Config(format!(
        "there is no NUMA node {node} here, only {}; --numa-node (CARAVAN_NUMA_NODE) takes one of these, near-nic or any",
        known.join(", ")
    ))
}

#[cfg(test)]
#[cfg(feature = "hwloc")]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const TWO_NODES: &str = "pack:2 [numa(memory=8GB)] core:2 pu:1";

    fn seating(numa: Numa, pin: bool, nic: Option<usize>) -> Result<Seating> {
        let config = NodeConfig { numa, pin, ..NodeConfig::default() };
        let nic = nic.map(|node| Nic { name: "eth0".to_owned(), node: Some(NumaId(node)) });
        Seating::new(&config, &Topology::from_synthetic(TWO_NODES).unwrap(), nic, 0..3)
    }

    fn nodes(seating: &Seating) -> Vec<Option<usize>> {
        (0..4).map(|thread| seating.memory_node(thread).map(|node| node.0)).collect()
    }

    #[test]
    fn threads_and_memory_start_at_the_node_that_is_wished_for() {
        let near = |nic| seating(Numa::NearNic, true, nic).unwrap();
        assert_eq!(nodes(&near(Some(1)))[..3], [Some(1), Some(1), Some(0)]);
        assert_eq!(nodes(&near(None))[..3], [Some(0), Some(1), Some(0)]);
        assert_eq!(near(Some(7)).node, None, "a node that no core belongs to");
        let named = seating(Numa::Node(NumaId(0)), true, Some(1)).unwrap();
        assert_eq!(nodes(&named)[..3], [Some(0), Some(0), Some(1)]);
        assert_eq!(seating(Numa::Any, true, Some(1)).unwrap().node, None);
    }

    #[test]
    fn without_pinning_memory_still_goes_where_it_is_wished() {
        let unpinned = seating(Numa::Node(NumaId(1)), false, None).unwrap();
        assert_eq!((unpinned.seat(0), nodes(&unpinned)), (None, vec![Some(1); 4]));
        assert_eq!(nodes(&seating(Numa::Any, false, Some(1)).unwrap()), [None; 4]);
    }

    #[test]
    fn a_node_that_is_not_there_is_an_error_that_says_what_is() {
        for pin in [false, true] {
            let error = seating(Numa::Node(NumaId(7)), pin, None).unwrap_err().to_string();
            assert!(error.contains("no NUMA node 7 here, only 0, 1;"), "{error}");
        }
    }

    #[test]
    fn wishes_have_names() {
        for (text, numa) in
            [("near-nic", Numa::NearNic), ("any", Numa::Any), ("12", Numa::Node(NumaId(12)))]
        {
            assert_eq!((text.parse::<Numa>().unwrap(), numa.to_string()), (numa, text.to_owned()));
        }
        for text in ["", "-1", "near", "0x1", "1.0"] {
            assert!(text.parse::<Numa>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_thread_on_a_topology_of_another_machine_goes_on_unpinned() {
        let seating = seating(Numa::Node(NumaId(1)), true, None).unwrap();
        let taken = std::thread::spawn(move || seating.take(0, &NodeConfig::default()).numa);
        assert_eq!(taken.join().unwrap(), Numa::Node(NumaId(1)));
    }
}
