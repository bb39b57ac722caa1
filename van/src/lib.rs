//! The van: messages with a key range, moved between nodes as fast as the wire goes.

pub mod error;
pub mod memory;
pub mod message;
pub mod metrics;
pub mod sim;
pub mod transport;
pub mod wire;

pub use error::{Error, Result};
pub use memory::{Buffer, Pool, Shared};
pub use message::KeyRange;
pub use metrics::Counters;
pub use transport::{Event, FRAME_PREFIX, Limits, PeerId, Transport};
