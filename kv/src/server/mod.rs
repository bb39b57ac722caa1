//! A server: threads, each of which owns a shard of every table.

mod answer;
mod chunks;
mod eviction;
mod found;
mod handle;
mod index;
mod initial;
mod owed;
mod shard;
mod store;
mod tables;
mod thread;
mod varying;

pub use found::FoundRows;
pub use handle::{
    AdaGrad, Adam, Add, Assign, Ftrl, Handles, Momentum, Number, Origin, Rule, Sgd, Sum,
};
pub use owed::Answers;
pub use shard::{Extract, Part, Pulled, Request, Shard};
#[doc(hidden)]
pub use tables::LogStep;
pub(crate) use tables::Served;
pub use tables::{ChainCounters, Copies, MoveCounters, MoveStep, ShardStep};
pub(crate) use tables::{Destination, SentBack};
pub use thread::ServerThread;
