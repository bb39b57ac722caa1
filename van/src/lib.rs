//! The van moves messages with a key range between nodes.
//!
//! ```text
//!   message (ranges, keys, values)   wire (the format)   memory (registered slots)
//!                     \                 |               /
//!                      endpoint (credits; eager or rendezvous)
//!                                       |
//!                      transport (the contract; `conformance` tests every backend)
//!        /              |                |                 |                \
//!   rdma/ (verbs)  shm/ (memory)  uring/ (io_uring)  sim/ (simulated)  caravan-fallback-tcp
//!                     socket/, offers, wait (shared by vans); mixed/ (several vans as one)
//! ```
//!
//! Every lane begins with a handshake in which both ends prove that they know the secret of their
//! job ([`handshake`]).
//!
//! The van carries keys and ranges as numbers and does not know the meaning of a push.
//!
//! # Thread rules
//! A [`Transport`], its [`Pool`] and all its buffers belong to the thread that made them. They are
//! not `Send`, and no call on the path takes a lock. Only [`Transport::wait`] blocks.
//!
//! # Features
//! * `rdma` (default): the verbs backend, Linux only. It opens the libraries of RDMA at run time.
//! * `uring` (default): the io_uring backend, Linux only.
//! * `shm` (default): shared memory within one host, Linux only.
//! * `conformance`: the contract as generic tests, for tests of backends.
//!
//! # Example
//! Two transports in one thread, over the simulated network:
//! ```
//! use std::time::Duration;
//! use caravan_van::sim::{Faults, Network};
//! use caravan_van::{Event, FRAME_PREFIX, Transport, VanConfig};
//!
//! let network = Network::new(1, Faults::none());
//! let mut a = network.transport(&VanConfig::default());
//! let mut b = network.transport(&VanConfig::default());
//! let peer = a.connect(&b.about().address)?;
//! let mut events = Vec::new();
//! while !events.iter().any(|event| matches!(event, Event::Connected { .. })) {
//!     a.wait(Duration::from_millis(1))?;
//!     a.poll(&mut events)?;
//!     b.poll(&mut Vec::new())?;
//! }
//! let mut frame = a.about().memory.allocate(FRAME_PREFIX + 5)?;
//! frame[FRAME_PREFIX..].copy_from_slice(b"hello");
//! a.post_send(peer, frame.into())?;
//! a.poll(&mut events)?;
//! let received = loop {
//!     b.wait(Duration::from_millis(1))?;
//!     let mut events = Vec::new();
//!     b.poll(&mut events)?;
//!     let frames = events.into_iter().find_map(|event| match event {
//!         Event::Received { frame, .. } => Some(frame),
//!         _ => None,
//!     });
//!     if let Some(frame) = frames {
//!         break frame;
//!     }
//! };
//! assert_eq!(&*received, b"hello");
//! # Ok::<(), caravan_van::Error>(())
//! ```

#![cfg_attr(
    not(all(target_os = "linux", feature = "rdma", feature = "shm", feature = "uring")),
    allow(dead_code, unused_imports, reason = "some code serves only the vans that are left out")
)]

pub mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod endpoint;
pub mod error;
pub mod gauge;
pub mod handshake;
pub mod memory;
pub mod message;
pub mod metrics;
#[cfg(all(target_os = "linux", any(feature = "rdma", feature = "shm")))]
pub mod mixed;
mod numbers;
pub mod offers;
#[cfg(all(target_os = "linux", feature = "rdma"))]
pub mod rdma;
#[cfg(all(target_os = "linux", feature = "shm"))]
pub mod shm;
pub mod sim;
pub mod socket;
pub mod transport;
#[cfg(all(target_os = "linux", feature = "uring"))]
pub mod uring;
pub mod value;
pub mod wait;
pub mod watched;
pub mod wire;

pub use config::{Identity, RdmaConfig, RdmaConnect, VanConfig};
pub use endpoint::{Arrival, Connections, Endpoint, Inbox};
pub use error::{Error, Result};
pub use gauge::Gauge;
pub use half::{bf16, f16};
pub use handshake::Secret;
pub use memory::{Account, Buffer, Pool, Registrar, Registration, Shared, long, prefetch};
pub use message::{Draft, KeyRange, Message, Outgoing, Values};
pub use metrics::Counters;
pub use numbers::Numbers;
pub use transport::{
    About, Clock, Event, FRAME_PREFIX, Frame, Gather, Limits, MIXED, PeerId, SimulatedTime,
    Sleeper, Transport,
};
pub use value::Value;
pub use wait::Wait;
pub use wire::{Coding, encode};
