//! Push and pull: workers, servers, tables, and the scheduler that brings them together.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod config;
pub mod consistency;
pub mod error;
pub mod node;
mod op;
pub mod server;
pub mod slicer;
pub mod table;
mod tracker;
pub mod worker;

pub use cluster::{Cluster, Launch};
pub use config::{ClusterConfig, NodeConfig};
pub use error::{Error, Result};
pub use node::{App, Apps, Target, Van, WorkerNode};
pub use server::{Handles, ServerThread, Shard};
pub use table::{Store, TableSpec, ValueType};
pub use tracker::{Answer, Callback, Timestamp};
pub use worker::{ServerAddress, Table, Worker};
