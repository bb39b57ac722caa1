//! RDMA verbs: a safe surface over the user-space libraries, which owns all that the card has in hand.

mod connection;
mod device;
mod domain;
mod library;
mod queue;
mod queue_pair;

pub use connection::{Channel, CmEvent, CmKind, Connection, ConnectionKey};
pub use device::{AsyncEvent, AsyncKind, Capabilities, Device, PortState};
pub use domain::{Domain, Exposed, Invalidated, OpenWindow, Window};
pub use library::{available, sleep};
pub use queue::{Completion, CompletionQueue, Outcome, ReceiveQueue, Slot, Status, Through};
pub use queue_pair::{Done, QueuePair, Work};
