//! Placement of threads and memory: the machine's layout, thread pinning, and pages on a NUMA node.
//!
//! A server process runs one thread per core it was given, pinned near the NIC it serves, with its
//! memory on its own node. This crate reads the layout with libhwloc, assigns processing units to
//! threads, pins them, and takes pages from the system. It is not a scheduler and starts no
//! threads. All of it is set-up: nothing here is on the path of a push.
//!
//! ```text
//! libhwloc (this machine | XML | synthetic)          the thread's affinity mask
//!          └──────────────► Topology ◄───────────────────────┘   read once, before pinning
//!                              │
//!                 Plan::new(near a node or a NIC)      which PU for which thread
//!                              │
//!             Plan::pin_current_thread(i), in thread i  ──►  Placement: what was done
//!             Pages::new(len, on that node, in huge pages) ──►  Pages: what could not be honoured
//! ```
//!
//! Placement is an improvement, never a condition: if a container forbids it, or the topology is
//! not this machine's, threads run unpinned, and [`Placement`] and [`Plan::note`] give the reason.
//!
//! ```
//! use caravan_numa::{Near, Placement, Plan, Topology};
//!
//! let topology = Topology::from_synthetic("pack:2 [numa(memory=8GB)] l3:1 core:4 pu:2")?;
//! let plan = Plan::new(&topology, Near::Anywhere, 0..2);
//! assert_eq!(plan.to_string(), "2 threads on PUs 0, 8 (nodes 0, 1)");
//!
//! // Not this machine: the first thread learns where it would run, and goes on unpinned.
//! let placement = plan.pin_current_thread(0);
//! assert!(matches!(placement, Placement::DryRun { .. }));
//! # Ok::<(), caravan_numa::Error>(())
//! ```
//!
//! Features: `hwloc` (on by default) reads the layout with libhwloc. `topology` alone treats the
//! machine as one NUMA node and needs no library. Without both, only [`Pages`] are available.
//!
//! `hwloc` here is the crate `hwlocality`: the crate published as `hwloc` was written for the
//! binary interface of libhwloc 1.11 and reads a libhwloc 2 wrongly.
#![deny(unsafe_code)] // except in `sys.rs`

#[cfg(feature = "topology")]
mod affinity;
mod files;
mod ids;
mod pages;
#[cfg(all(target_os = "linux", not(miri)))]
#[allow(unsafe_code, reason = "the system's calls, and nothing else")]
mod sys;
#[cfg(not(all(target_os = "linux", not(miri))))]
#[path = "heap.rs"]
mod sys;
#[cfg(feature = "topology")]
mod topology;

#[cfg(feature = "topology")]
pub use affinity::{Near, Placement, Plan, Seat, pin_current_thread};
pub use files::{interface_addresses, names_in};
pub use ids::{NumaId, PuId};
pub use pages::{
    HUGE_PAGE_BYTES, HugePages, PAGE_BYTES, PageSource, Pages, PagesError, current_pu, nodes_of,
    prefer_node, return_freed_blocks, thread_cpu_ns,
};
#[cfg(feature = "topology")]
pub use topology::{Core, Device, DeviceKind, Error, NumaNode, Topology};
