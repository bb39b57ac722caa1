//! RDMA verbs: a safe interface to the user-space libraries, which owns everything the device is
//! using.
//!
//! All unsafe code of the RDMA van is in this folder; the code above passes no addresses. The
//! device accesses memory on its own while work is outstanding or a peer has access. So all such
//! memory has an owner here, and nobody outside can change or drop it meanwhile: the ledger of a
//! [`QueuePair`], the slots of a [`ReceiveQueue`], an [`OpenWindow`], an [`Exposed`]. An owner
//! releases memory when a [`Completion`], which only the device's queue creates, reports the end of
//! the work, or when the device's object is destroyed. This folder does not decide what
//! connections, credits and offers mean, and only [`sleep`] blocks.
//!
//! ```text
//! Channel > Connection > Device         connections and devices    (connection, address, device)
//! Path                                  a connection made directly (path)
//! Domain > Window, OpenWindow, Exposed  memory of the device       (domain)
//! CompletionQueue, ReceiveQueue         shared by all connections  (completion, receive)
//! QueuePair                             one connection's work      (queue_pair, chain, work)
//! ```
//!
//! Everything belongs to the thread that created it. The libraries are loaded at run time
//! (`library`): [`available`].
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**verbs**).

mod address;
#[allow(dead_code, unreachable_pub, non_camel_case_types, reason = "C's names and structs, whole")]
mod bindings;
mod chain;
mod completion;
mod connection;
mod device;
mod domain;
mod library;
mod path;
mod queue_pair;
mod receive;
mod work;

pub use completion::{
    Batch, Completion, CompletionQueue, Outcome, POLL_MAX, Slot, Status, TakenBack, Through,
};
pub use connection::{Channel, CmEvent, CmKind, Connection, ConnectionKey};
pub use device::{AsyncEvent, AsyncKind, Capabilities, Device, PortState};
pub use domain::{Domain, Exposed, Invalidated, OpenWindow, Window};
pub use library::{Missing, available, has_devices, sleep};
pub use path::{Global, Path};
pub use queue_pair::QueuePair;
pub use receive::ReceiveQueue;
pub use work::Work;
