//! Push and pull: workers, servers, tables, and the scheduler that brings them together.

#![forbid(unsafe_code)]

pub mod consistency;
pub mod error;
mod op;
pub mod server;
mod slicer;
pub mod table;
mod tracker;
pub mod worker;

pub use error::{Error, Result};
pub use server::{Handles, ServerThread, Shard};
pub use table::{Store, TableSpec, ValueType};
pub use tracker::{Answer, Callback, Timestamp};
pub use worker::{ServerAddress, Table, Worker};
