//! A server: threads that each own a shard of every table.

mod handle;
mod index;
mod shard;
mod store;
mod thread;

pub use handle::{Add, Assign, Handles, Rule};
pub use shard::{Pulled, Request, Shard};
pub use thread::ServerThread;
