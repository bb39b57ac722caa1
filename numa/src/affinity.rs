//! Assigns threads to processing units (PUs), and pins them there.
//!
//! [`Plan`] is a pure function of a [`Topology`]; pinning is one system call of the calling thread.
//! Nothing here fails: a thread that cannot be pinned runs unpinned, and [`Placement`] gives the
//! reason. This module starts no threads and binds no memory: Linux takes pages from the node of
//! the thread that first writes them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::ids::{NumaId, PuId};
use crate::sys;
use crate::topology::{Topology, count, ranges, thread_mask};

/// What threads should run close to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Near<'a> {
    /// Nothing: spread over all nodes, to use all their memory bandwidth.
    Anywhere,
    /// A NUMA node.
    Node(NumaId),
    /// The node of a network device by name, such as `mlx5_0`.
    Device(&'a str),
}

/// A place for one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Where the thread runs.
    pub pu: PuId,
    /// The node whose memory is local there.
    pub node: Option<NumaId>,
}

/// Seats for the threads of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    seats: Vec<Seat>,
    dry_run: bool,
    note: Option<String>,
}

/// The outcome of pinning one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// The thread now runs on `pu` only.
    Pinned {
        /// Where it runs.
        pu: PuId,
        /// The node whose memory is local there.
        node: Option<NumaId>,
    },
    /// The topology is not this machine's; the thread would run on `pu`.
    DryRun {
        /// Where it would run.
        pu: PuId,
        /// The node whose memory would be local there.
        node: Option<NumaId>,
    },
    /// There are more threads than PUs; the kernel places this one.
    NoSeat {
        /// Index of the thread in the plan.
        thread: usize,
        /// Number of seats in the plan.
        seats: usize,
    },
    /// The process may not use this PU, or the machine does not have it.
    NotUsable {
        /// The PU asked for.
        pu: PuId,
    },
    /// The system refused.
    Refused {
        /// The PU asked for.
        pu: PuId,
        /// The system's reason.
        reason: String,
    },
}

impl Plan {
    /// Gives seats to the threads numbered `threads` among all that share this machine: a process
    /// alone on a machine plans for `0..n`, the second of two processes with `n` threads each for
    /// `n..2 * n`.
    ///
    /// Order of seats: one PU of each core before any core's second one; within that, the preferred
    /// node first; then the nodes in turn. Threads past the last PU get no seat: two threads that
    /// poll on one PU are worse off than two that the kernel may move.
    ///
    /// Never fails. [`note`](Self::note) tells what could not be honoured, which is also logged
    /// once.
    pub fn new(topology: &Topology, near: Near<'_>, threads: Range<usize>) -> Self {
        let (node, complaint) = match resolve(topology, near) {
            Ok(node) => (node, None),
            Err(complaint) => (None, Some(complaint)),
        };
        let order = order(topology, node);
        let seats: Vec<Seat> =
            order.iter().skip(threads.start).take(threads.len()).copied().collect();

        let mut notes: Vec<String> = complaint.into_iter().collect();
        if !topology.is_this_machine() {
            notes.push("the topology is not this machine's, so threads stay unpinned".to_owned());
        }
        if seats.len() < threads.len() {
            notes.push(format!(
                "threads {}..{} want a PU each and {} usable, so {} unpinned",
                threads.start,
                threads.end,
                match order.len() {
                    1 => "1 is".to_owned(),
                    n => format!("{n} are"),
                },
                match threads.len() - seats.len() {
                    1 => "1 stays".to_owned(),
                    n => format!("{n} stay"),
                },
            ));
        }
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        if let Some(note) = &note {
            tracing::warn!("thread placement: {note}");
        }
        Self { seats, dry_run: !topology.is_this_machine(), note }
    }

    /// The seats in thread order; fewer than requested if there are too few PUs.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// One line on what could not be honoured, if anything.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Pins the calling thread to the seat of this process's `thread`, counted from 0.
    pub fn pin_current_thread(&self, thread: usize) -> Placement {
        match self.seats.get(thread) {
            None => Placement::NoSeat { thread, seats: self.seats.len() },
            Some(&Seat { pu, node }) if self.dry_run => Placement::DryRun { pu, node },
            Some(&seat) => pin(seat),
        }
    }
}

/// Pins the calling thread to one PU, without a plan.
pub fn pin_current_thread(topology: &Topology, pu: PuId) -> Placement {
    let node = topology.node_of(pu);
    if !topology.usable_pus().contains(&pu) {
        Placement::NotUsable { pu }
    } else if !topology.is_this_machine() {
        Placement::DryRun { pu, node }
    } else {
        pin(Seat { pu, node })
    }
}

/// The node to start from, or why the wish cannot be met.
fn resolve(topology: &Topology, near: Near<'_>) -> Result<Option<NumaId>, String> {
    let node = match near {
        Near::Anywhere => return Ok(None),
        Near::Node(node) => node,
        Near::Device(name) => match topology.device(name) {
            Some(device) => match device.node {
                Some(node) => node,
                None => return Err(format!("device {name} is near no one node")),
            },
            None => return Err(format!("no device {name} here; {}", known_devices(topology))),
        },
    };
    if !topology.nodes().iter().any(|known| known.id == node) {
        let known: Vec<String> = topology.nodes().iter().map(|node| node.id.to_string()).collect();
        return Err(format!("no NUMA node {node} here; known: {}", known.join(", ")));
    }
    if !topology.usable_pus().iter().any(|&pu| topology.node_of(pu) == Some(node)) {
        return Err(format!("no usable PU on NUMA node {node}"));
    }
    Ok(Some(node))
}

fn known_devices(topology: &Topology) -> String {
    let names: Vec<&str> = topology.devices().iter().map(|device| device.name.as_str()).collect();
    if names.is_empty() { "none known".to_owned() } else { format!("known: {}", names.join(", ")) }
}

/// All usable PUs, best seat first.
fn order(topology: &Topology, near: Option<NumaId>) -> Vec<Seat> {
    let mut cores_on_node: BTreeMap<Option<NumaId>, usize> = BTreeMap::new();
    let mut ranked = Vec::new();
    for core in topology.cores() {
        let usable: Vec<PuId> =
            core.pus.iter().copied().filter(|pu| topology.usable_pus().contains(pu)).collect();
        if usable.is_empty() {
            continue;
        }
        let rank_on_node = cores_on_node.entry(core.node).or_default();
        let is_away = near.is_some() && core.node != near;
        for (sibling, &pu) in usable.iter().enumerate() {
            let rank = (sibling, is_away, *rank_on_node, core.node, pu);
            ranked.push((rank, Seat { pu, node: core.node }));
        }
        *rank_on_node += 1;
    }
    ranked.sort_unstable_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, seat)| seat).collect()
}

/// Pins the thread, then checks the result: a sandbox may agree and do nothing.
fn pin(Seat { pu, node }: Seat) -> Placement {
    let refused = |reason: String| {
        tracing::warn!(pu = pu.0, reason, "thread stays unpinned");
        Placement::Refused { pu, reason }
    };
    if let Err(error) = sys::run_on(pu) {
        return refused(error.to_string());
    }
    match thread_mask() {
        Some(mask) if mask.iter().eq([&pu]) => Placement::Pinned { pu, node },
        Some(mask) => {
            let mask: Vec<PuId> = mask.into_iter().collect();
            refused(format!("the system agreed but left the mask at {}", ranges(&mask)))
        }
        None => refused("the system agreed but doesn't show the mask".to_owned()),
    }
}

impl Placement {
    /// Whether the thread is pinned.
    pub fn is_pinned(&self) -> bool {
        matches!(self, Self::Pinned { .. })
    }

    /// The node whose memory is local to the thread; `None` unless it is pinned.
    pub fn node(&self) -> Option<NumaId> {
        match self {
            Self::Pinned { node, .. } => *node,
            _ => None,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned { pu, node: Some(node) } => write!(f, "pinned to PU {pu} on node {node}"),
            Self::Pinned { pu, node: None } => write!(f, "pinned to PU {pu}"),
            Self::DryRun { pu, .. } => {
                write!(f, "unpinned: PU {pu} is of a topology that is not this machine's")
            }
            Self::NoSeat { thread, seats } => {
                let seats = count(*seats, "thread");
                write!(f, "unpinned: thread {thread} is beyond the PUs there are for {seats}")
            }
            Self::NotUsable { pu } => {
                write!(f, "unpinned: PU {pu} is not among those this process may use")
            }
            Self::Refused { pu, reason } => write!(f, "unpinned: PU {pu} was refused: {reason}"),
        }
    }
}

/// One line: `2 threads on PUs 0, 8 (nodes 0, 1)`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seats.is_empty() {
            return f.write_str("no thread has a PU of its own");
        }
        let pus: Vec<String> = self.seats.iter().map(|seat| seat.pu.to_string()).collect();
        let mut nodes: Vec<NumaId> = self.seats.iter().filter_map(|seat| seat.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let nodes: Vec<String> = nodes.iter().map(NumaId::to_string).collect();
        let s = |n: usize| if n == 1 { "" } else { "s" };
        write!(f, "{} on PU{} {}", count(pus.len(), "thread"), s(pus.len()), pus.join(", "))?;
        match nodes.len() {
            0 => Ok(()),
            n => write!(f, " (node{} {})", s(n), nodes.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::thread;

    use super::*;
    use crate::topology::tree::{two_ib, two_nodes};

    fn pus(plan: &Plan) -> Vec<usize> {
        plan.seats().iter().map(|seat| seat.pu.0).collect()
    }

    #[test]
    fn anywhere_takes_the_nodes_in_turn_and_cores_before_siblings() {
        let plan = Plan::new(&two_nodes(), Near::Anywhere, 0..16);
        assert_eq!(pus(&plan), [0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15]);
        assert_eq!(plan.seats()[1].node, Some(NumaId(1)));
    }

    #[test]
    fn near_a_node_its_cores_come_first() {
        let plan = Plan::new(&two_nodes(), Near::Node(NumaId(1)), 0..10);
        assert_eq!(pus(&plan), [8, 10, 12, 14, 0, 2, 4, 6, 9, 11]);
    }

    #[test]
    fn near_a_nic_threads_sit_on_its_node() {
        let topology = two_ib();
        assert_eq!(pus(&Plan::new(&topology, Near::Device("mlx5_0"), 0..2)), [0, 2]);
        let plan = Plan::new(&topology, Near::Device("mlx5_1"), 0..2);
        assert_eq!(plan.to_string(), "2 threads on PUs 4, 6 (node 1)");
    }

    #[test]
    fn processes_on_one_machine_get_different_seats() {
        let topology = two_nodes();
        let first = Plan::new(&topology, Near::Anywhere, 0..3);
        let second = Plan::new(&topology, Near::Anywhere, 3..6);
        assert_eq!((pus(&first), pus(&second)), (vec![0, 8, 2], vec![10, 4, 12]));
    }

    #[test]
    fn what_cannot_be_honoured_is_noted() {
        let topology = two_nodes();
        let note = |near, threads| Plan::new(&topology, near, threads).note().unwrap().to_owned();
        let dry = "the topology is not this machine's, so threads stay unpinned";
        assert_eq!(note(Near::Anywhere, 0..2), dry);
        assert_eq!(
            note(Near::Device("mlx5_0"), 0..2),
            format!("no device mlx5_0 here; none known; {dry}")
        );
        assert_eq!(
            note(Near::Node(NumaId(7)), 0..2),
            format!("no NUMA node 7 here; known: 0, 1; {dry}")
        );
        let crowded = note(Near::Anywhere, 8..17);
        assert!(
            crowded
                .ends_with("threads 8..17 want a PU each and 16 are usable, so 1 stays unpinned")
        );
        let unknown = Plan::new(&two_ib(), Near::Device("eth9"), 0..2);
        assert!(
            unknown.note().unwrap().starts_with("no device eth9 here; known: mlx5_0, mlx5_1, ib0")
        );
        assert_eq!(pus(&unknown), [0, 4]);
    }

    #[test]
    fn absurd_thread_counts_cost_nothing() {
        let topology = two_nodes();
        let plan = Plan::new(&topology, Near::Anywhere, 0..usize::MAX);
        assert_eq!(plan.seats().len(), 16);
        let last = Plan::new(&topology, Near::Anywhere, usize::MAX - 1..usize::MAX);
        assert_eq!(last.to_string(), "no thread has a PU of its own");
        assert_eq!(last.pin_current_thread(0), Placement::NoSeat { thread: 0, seats: 0 });
        assert!(Plan::new(&topology, Near::Anywhere, 2..2).seats().is_empty());
    }

    #[test]
    fn a_fake_topology_is_a_dry_run() {
        let topology = two_nodes();
        let before = thread_mask();
        let placement = Plan::new(&topology, Near::Anywhere, 0..2).pin_current_thread(1);
        assert_eq!(placement, Placement::DryRun { pu: PuId(8), node: Some(NumaId(1)) });
        assert!(!placement.is_pinned());
        assert_eq!(placement.node(), None);
        let not_usable = Placement::NotUsable { pu: PuId(99) };
        assert_eq!(pin_current_thread(&topology, PuId(99)), not_usable);
        assert_eq!(thread_mask(), before);
    }

    #[test]
    fn pus_the_system_refuses_leave_the_thread_unpinned() {
        thread::spawn(|| {
            let before = thread_mask();
            for pu in [1023, 1024, 4095, usize::MAX] {
                let placement = pin(Seat { pu: PuId(pu), node: None });
                assert!(matches!(placement, Placement::Refused { .. }), "{placement}");
                assert!(placement.to_string().starts_with("unpinned: PU"), "{placement}");
            }
            assert_eq!(thread_mask(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn threads_of_this_machine_are_pinned_or_say_why() {
        let topology = Topology::this_machine().unwrap();
        let plan = Plan::new(&topology, Near::Anywhere, 0..2);
        for index in 0..plan.seats().len() {
            let (plan, seat) = (plan.clone(), plan.seats()[index]);
            thread::spawn(move || match plan.pin_current_thread(index) {
                Placement::Pinned { pu, node } => {
                    assert_eq!((pu, node), (seat.pu, seat.node));
                    assert!(thread_mask().unwrap().iter().eq([&pu]));
                }
                degraded => eprintln!("this machine can't pin: {degraded}"),
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn a_pinned_threads_topology_has_one_usable_pu() {
        let topology = Topology::this_machine().unwrap();
        let Some(&pu) = topology.usable_pus().last() else { return };
        thread::spawn(move || {
            if pin_current_thread(&topology, pu).is_pinned() {
                let narrow = Topology::this_machine().unwrap();
                assert!(narrow.usable_pus().iter().eq([&pu]));
                assert_eq!(pus(&Plan::new(&narrow, Near::Anywhere, 0..4)), [pu.0]);
            }
        })
        .join()
        .unwrap();
    }
}
