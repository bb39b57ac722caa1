//! What nodes and the scheduler say to each other: requests and replies of the van whose values are JSON.

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, Endpoint, Message, PeerId, Values};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::backend::Van;
use super::choice::Candidate;
use crate::error::Result;
use crate::worker::ServerAddress;

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Role {
    Server,
    Worker,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Server => "server",
            Role::Worker => "worker",
        })
    }
}

/// What a node asks of the scheduler.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Take me in. Answered with a [`Roster`] when the cluster is complete.
    Join {
        role: Role,
        /// The rank it wants, if any.
        rank: Option<usize>,
        pid: u32,
        /// Which vans it can take.
        vans: Vec<Candidate>,
    },
    /// Tell me when all nodes of my role have asked this.
    Barrier { name: String },
    /// Whom does this barrier wait for? I have waited long enough. Answered with their names.
    Missing { name: String },
    /// I am alive. Answered with [`Pulse`].
    Alive { role: Role, rank: usize },
}

/// The scheduler's answer to a sign of life.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pulse {
    /// Why the cluster has ended, if it has.
    pub(crate) ended: Option<String>,
}

/// What the scheduler asks of a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Run this; answered with a [`Report`].
    Run { app: String, body: serde_json::Value },
    /// The job is over.
    End,
}

/// What came of a task.
pub(crate) type Report = std::result::Result<serde_json::Value, String>;

/// Who is who, once all are in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Roster {
    /// This node's id in messages.
    pub node: u32,
    /// This node's place among those of its role.
    pub rank: usize,
    /// The van that all nodes take.
    pub van: Van,
    /// All server threads, in the order of key ranges.
    pub servers: Vec<ServerAddress>,
    /// Place of this server's first thread among them; 0 for workers.
    pub first_thread: usize,
    /// Number of workers.
    pub workers: usize,
}

/// Sends a request whose answer will carry `timestamp`.
pub(crate) fn ask<T: Serialize>(
    endpoint: &mut Endpoint,
    peer: PeerId,
    timestamp: u64,
    what: &T,
) -> Result<()> {
    say(endpoint, peer, Kind::Request, timestamp, what)
}

/// Answers the request with that timestamp.
pub(crate) fn answer<T: Serialize>(
    endpoint: &mut Endpoint,
    peer: PeerId,
    timestamp: u64,
    what: &T,
) -> Result<()> {
    say(endpoint, peer, Kind::Reply, timestamp, what)
}

/// Refuses the request with that timestamp.
pub(crate) fn refuse(
    endpoint: &mut Endpoint,
    peer: PeerId,
    timestamp: u64,
    why: &str,
) -> Result<()> {
    let draft =
        Draft { timestamp, values: Values::Copied(why.as_bytes()), ..Draft::new(Kind::Failure) };
    Ok(endpoint.post(peer, draft, &mut Coding::plain())?)
}

fn say<T: Serialize>(
    endpoint: &mut Endpoint,
    peer: PeerId,
    kind: Kind,
    timestamp: u64,
    what: &T,
) -> Result<()> {
    let text = serde_json::to_vec(what)?;
    let draft = Draft { timestamp, values: Values::Copied(&text), ..Draft::new(kind) };
    Ok(endpoint.post(peer, draft, &mut Coding::plain())?)
}

/// What a control message says.
pub(crate) fn read<T: DeserializeOwned>(message: &Message) -> Result<T> {
    Ok(serde_json::from_slice(message.values())?)
}
