//! Vans over TCP sockets: what they share.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**socket**).

mod framing;
mod options;

pub use framing::{Receiver, Reply, SLICES_MAX, Sender, Spaces};
pub use options::set_up;

/// The carrier that handshakes name: all vans over sockets speak alike, so they connect to each other.
pub const CARRIER: &str = "socket";
