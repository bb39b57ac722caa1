//! Names of nodes, and the groups that requests and barriers are for.

use std::fmt;
use std::ops::BitOr;

use serde::{Deserialize, Serialize};

use super::control::Role;

/// A node of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeName {
    /// The driver that started the cluster.
    Scheduler,
    /// The server of this rank.
    Server(usize),
    /// The worker of this rank.
    Worker(usize),
    /// A driver that has joined the cluster to run a job of its own, by its number.
    Driver(u32),
}

impl NodeName {
    /// The node of this role and rank.
    pub(crate) fn of(role: Role, rank: usize) -> NodeName {
        match role {
            Role::Server => NodeName::Server(rank),
            Role::Worker => NodeName::Worker(rank),
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeName::Scheduler => f.write_str("the scheduler"),
            NodeName::Server(rank) => write!(f, "{} {rank}", Role::Server),
            NodeName::Worker(rank) => write!(f, "{} {rank}", Role::Worker),
            NodeName::Driver(number) => write!(f, "driver {number}"),
        }
    }
}

/// A group of nodes; `|` unites two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group(u8);

impl Group {
    /// The driver that started the cluster.
    pub const SCHEDULER: Group = Group(1);
    /// All servers.
    pub const SERVERS: Group = Group(2);
    /// All workers.
    pub const WORKERS: Group = Group(4);
    /// All nodes.
    pub const ALL: Group = Group(7);

    /// Whether a node belongs to it.
    pub fn has(self, node: NodeName) -> bool {
        let of = match node {
            NodeName::Scheduler => Group::SCHEDULER,
            NodeName::Server(_) => Group::SERVERS,
            NodeName::Worker(_) => Group::WORKERS,
            NodeName::Driver(_) => return false,
        };
        self.0 & of.0 != 0
    }
}

impl BitOr for Group {
    type Output = Group;

    fn bitor(self, other: Group) -> Group {
        Group(self.0 | other.0)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Group::SCHEDULER, "the scheduler"),
            (Group::SERVERS, "servers"),
            (Group::WORKERS, "workers"),
        ];
        let names = names.into_iter().filter(|(group, _)| self.0 & group.0 != 0);
        f.write_str(&names.map(|(_, name)| name).collect::<Vec<_>>().join(" and "))
    }
}

/// The nodes that a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recipients {
    /// One node.
    Node(NodeName),
    /// Every node of a group that is not lost, also the one that asks if it belongs to it.
    Group(Group),
    /// The driver of this task, which the worker that asks runs: [`crate::WorkerNode::driver`].
    DriverOf(u64),
}

impl From<NodeName> for Recipients {
    fn from(node: NodeName) -> Recipients {
        Recipients::Node(node)
    }
}

impl From<Group> for Recipients {
    fn from(group: Group) -> Recipients {
        Recipients::Group(group)
    }
}

impl fmt::Display for Recipients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recipients::Node(node) => node.fmt(f),
            Recipients::Group(group) => group.fmt(f),
            Recipients::DriverOf(task) => write!(f, "the driver of task {task}"),
        }
    }
}
