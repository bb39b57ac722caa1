//! Roles and membership: which nodes belong to the cluster, where they are, and whether they are
//! alive.
//!
//! The control plane uses plain TCP, apart from the data: nodes join the [`SchedulerClient`], which
//! sends them tasks and keeps barriers. The scheduler serves them on a thread of its own, so that a
//! driver that computes for a minute keeps nobody waiting. A node has one control lane on its main
//! thread and another on a small thread for heartbeats, so that a worker that computes for a minute
//! still counts as alive. When a node is lost, the scheduler tells the driver and all others, whose
//! waits end with the node's name. All this takes its time from the clock of the control van, and
//! therefore runs in simulated time as well.
//!
//! A server may join a cluster that is complete, beside its servers; the scheduler then tells all
//! nodes and drivers where it is. It may leave again when its shards have gone to others.
//!
//! The whole cluster uses one van for data: each node opens those that work for it and lists them
//! when it joins, and the roster names the one that all have.

mod backend;
mod barriers;
mod choice;
mod control;
mod group;
mod heartbeat;
mod lane;
mod member;
mod members;
mod messages;
mod observer;
mod paces;
mod pairs;
mod placement;
mod reach;
mod roles;
mod rpc;
mod scheduler;
mod session;
mod thread;
mod vitals;

pub(crate) use backend::SimulatedNode;
pub use backend::{Nic, VANS, Van, address_over, is_built, is_simulated, nic, open};
pub(crate) use barriers::Party;
pub(crate) use control::{Command, DRIVER, Program, identity, is_client, is_within, within};
pub use control::{JobStatus, Role, Roster, Step, Target};
pub use group::{Group, NodeName, Recipients};
pub(crate) use heartbeat::end_with_launcher;
pub use member::{Member, Task, Work};
pub use observer::Observer;
pub(crate) use placement::check_numa;
pub use placement::{Numa, Seating};
pub(crate) use reach::check_host;
pub use reach::own_address_towards;
pub(crate) use roles::watched_client;
pub use roles::{App, Apps, Ended, WorkerNode, client, join_server, run_server, run_worker};
pub use rpc::{Answered, Asked, BODY_BYTES_MAX, Handler, RequestId, Rpc, Token};
pub(crate) use rpc::{AtRpc, Handlers};
pub use scheduler::{SchedulerClient, TaskId};
pub use vitals::{LanesByVan, NodeState, Vitals};
