//! Push and pull: workers, servers, tables, and the scheduler that brings them together.
//!
//! ```text
//!   scheduler (node/scheduler.rs)   joins, ranks, tasks, barriers, heartbeats: plain TCP
//!      │ tasks            │
//!      ▼                  ▼
//!   worker (worker.rs)   server process, its threads (server/thread.rs), each with shards
//!      │  push, pull        ▲
//!      └────────────────────┘   data: a lane from each worker to each server thread, over any van
//! ```
//!
//! The path of a push: [`worker`] > `slicer` > `caravan_van::message` > codec > endpoint >
//! transport > [`server`] > reply > `tracker`. It runs on the caller's thread and on the server's
//! thread, and on no other; it allocates nothing once warm.
//!
//! Keys are `u64`, sorted and unique in every request; each table's key range is cut evenly among
//! all server threads. Requests of one worker to one server thread are served in the order in which
//! they were made.
//!
//! # Thread rules
//! A [`Worker`] and what it hands out belong to one thread. A [`ServerThread`] owns its shards. The
//! scheduler serves nodes on a thread of its own (`node/scheduler/thread.rs`); each node has
//! another for heartbeats (`node/heartbeat.rs`).
//!
//! # Who is lost
//! Servers and workers of their own processes tell the scheduler every `CARAVAN_HEARTBEAT_MS` that
//! they live. After five heartbeats without a sign, or when its lane breaks, a node is lost; after
//! two a server that may be lost, without which the others go on (`CARAVAN_SERVER_LOSSES_MAX`). The
//! scheduler tells the driver and all nodes: [`Cluster::wait`], every wait of a client of
//! [`Cluster::client`], and every wait of a worker end with [`Error::NodeLost`]. A driver that
//! computes keeps nobody waiting; while its process is stopped, as by Ctrl-Z, nobody counts as
//! silent, and its nodes wait as long as its lane stands. A node that lives and answers nothing is
//! given up after `CARAVAN_REQUEST_TIMEOUT_S`. Launched nodes end with their launcher, and all
//! nodes with their scheduler.
#![doc = ""]
#![doc = include_str!("../docs/glossary.md")]
#![forbid(unsafe_code)]

pub mod cache;
pub mod checkpoint;
pub mod cluster;
pub mod config;
pub mod consistency;
pub mod cost;
pub mod error;
pub mod eviction;
pub mod export;
pub mod files;
pub mod filter;
pub mod history;
pub mod jobs;
pub mod map;
mod membership;
pub mod node;
pub mod objects;
mod op;
mod rechain;
mod refusal;
pub mod runs;
pub mod secret;
pub mod server;
mod server_address;
mod shared_view;
pub mod sharing;
pub mod sketch;
pub mod slicer;
pub mod table;
mod tracker;
pub mod vector;
pub mod worker;

pub use cluster::{Cluster, Handover, Launch, how_ended, spawn_node};
pub use config::{ClusterConfig, JobRole, NodeConfig, SecretSource};
pub use cost::Cost;
pub use error::{Advice, Error, Result};
pub use jobs::{JobStatus, Jobs};
pub use map::{Placed, Placement};
pub use node::{
    Answered, App, Apps, Asked, Group, Handler, NodeName, Recipients, RequestId, Rpc, Step, Target,
    TaskId, Token, Van, WorkerNode,
};
pub use refusal::{Refusal, Refused};
pub use runs::Runs;
pub use server::{Handles, ServerThread, Shard};
pub use server_address::ServerAddress;
pub use shared_view::SharedView;
pub use sharing::{Shared, Sharer, Sharing};
pub use table::{Initial, Store, TableSpec, ValueType};
pub use tracker::{Answer, Callback, Timestamp};
pub use worker::{Admin, Clocks, Info, Keys, Table, TableCopies, TableFilters, Worker};

/// The programs in the pages build.
#[cfg(doctest)]
#[doc = include_str!("../docs/requests.md")]
struct Requests;

#[cfg(doctest)]
#[doc = include_str!("../docs/errors.md")]
struct ErrorsPage;

#[cfg(doctest)]
#[doc = include_str!("../docs/vectors.md")]
struct VectorsPage;
