//! The van: messages with a key range, moved between nodes as fast as the wire goes.

pub mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod endpoint;
pub mod error;
pub mod memory;
pub mod message;
pub mod metrics;
pub mod offers;
pub mod sim;
pub mod stream;
pub mod transport;
#[cfg(all(target_os = "linux", feature = "uring"))]
pub mod uring;
pub mod value;
pub mod wait;
pub mod wire;

pub use config::VanConfig;
pub use endpoint::{Arrival, Endpoint};
pub use error::{Error, Result};
pub use memory::{Buffer, Pool, Shared};
pub use message::{Draft, KeyRange, Message, Outgoing, Values};
pub use metrics::Counters;
pub use transport::{Event, FRAME_PREFIX, Limits, PeerId, Transport};
pub use value::Value;
pub use wait::Wait;
pub use wire::{Coding, encode};
