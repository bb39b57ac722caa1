//! Placement of threads and memory: the machine's layout, thread pinning, and pages on a NUMA node.
//!
//! A server process runs one thread per core it was given, pinned near the NIC it serves, with its
//! memory on its own node. This crate reads the layout from `/sys` or by libhwloc, assigns
//! processing units to threads, pins them, and takes pages from the system. It is not a scheduler
//! and starts no threads. All of it is set-up: nothing here is on the path of a push.
//!
//! ```text
//! /sys | libhwloc (this machine | XML | synthetic)   the thread's affinity mask
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
//! use caravan_numa::{Near, Plan, Topology};
//!
//! let topology = Topology::this_machine()?;
//! let plan = Plan::new(&topology, Near::Anywhere, 0..1);
//! assert_eq!(plan.seats().len(), 1);
//! println!("{plan}"); // 1 thread on PU 0 (node 0)
//! println!("{}", plan.pin_current_thread(0)); // pinned to PU 0 on node 0
//! # Ok::<(), caravan_numa::Error>(())
//! ```
//!
//! The feature `hwloc` reads the layout by libhwloc, also that of other machines. The crate of that
//! name was written for the binary interface of libhwloc 1.11 and reads a libhwloc 2 wrongly, so
//! `hwlocality` is used as `hwloc`.
#![deny(unsafe_code)] // except in `sys.rs`

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
mod topology;

pub use affinity::{Near, Placement, Plan, Seat, pin_current_thread};
pub use files::{device_node, interface_addresses, names_in};
pub use ids::{NumaId, PuId};
pub use pages::{
    HUGE_PAGE_BYTES, HugePages, PAGE_BYTES, PageSource, Pages, PagesError, current_pu, nodes_of,
    prefer_node, return_freed_blocks, thread_cpu_ns,
};
pub use topology::{Cache, CacheKind, Core, Device, DeviceKind, Error, NumaNode, Topology};
