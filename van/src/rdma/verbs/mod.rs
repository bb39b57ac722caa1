//! RDMA verbs: a safe surface over the user-space libraries, which owns all that the device has in hand.
//!
//! All unsafe code of the RDMA van is in this folder; what is above names no address. The device reads and writes memory by
//! itself, while work is in hand or a peer has been let in, so everything it may touch has an owner here that nobody outside can
//! change or drop meanwhile: the ledger of a [`QueuePair`], the slots of a [`ReceiveQueue`], an [`OpenWindow`], an [`Exposed`].
//! They let go when a [`Completion`] says so, which only the device's queue makes, or when the object that the device uses is
//! destroyed. What connections, credits and offers mean is not decided here, and nothing here waits but [`sleep`].
//!
//! ```text
//!   Channel > Connection > Device        who is connected, over what       (connection, address, device)
//!   Domain > Window, OpenWindow, Exposed what memory the device may touch  (domain)
//!   CompletionQueue, ReceiveQueue        shared by all connections         (completion, receive)
//!   QueuePair                            one connection's work             (queue_pair, chain, work)
//! ```
//!
//! Everything belongs to the thread that made it. The libraries are loaded when they are there (`library`): [`available`].
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**verbs**).

mod address;
mod chain;
mod completion;
mod connection;
mod device;
mod domain;
mod library;
mod queue_pair;
mod receive;
mod work;

pub use completion::{
    Batch, Completion, CompletionQueue, Outcome, POLL_MAX, Slot, Status, TakenBack, Through,
};
pub use connection::{Channel, CmEvent, CmKind, Connection, ConnectionKey};
pub use device::{AsyncEvent, AsyncKind, Capabilities, Device, PortState};
pub use domain::{Domain, Exposed, Invalidated, OpenWindow, Window};
pub use library::{available, sleep};
pub use queue_pair::QueuePair;
pub use receive::ReceiveQueue;
pub use work::Work;
