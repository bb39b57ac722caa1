//! What nodes and the scheduler say to each other: requests and replies of the van whose values are JSON.

use caravan_van::wire::{Coding, Hello, Kind};
use caravan_van::{Draft, Endpoint, Identity, Message, PeerId, Values};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::backend::{Van, is_simulated};
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

/// What a process is, as its lanes prove it in [`Hello::role`].
pub(crate) const SCHEDULER: u8 = 1;
const SERVER: u8 = 2;
const WORKER: u8 = 3;
/// Whoever drives the job, as a client of the servers.
pub(crate) const DRIVER: u8 = 4;

impl Role {
    /// As it stands in a hello.
    pub(crate) fn number(self) -> u8 {
        match self {
            Role::Server => SERVER,
            Role::Worker => WORKER,
        }
    }

    /// The role of a node whose lane has proved this number.
    pub(crate) fn of(number: u8) -> Option<Role> {
        [Role::Server, Role::Worker].into_iter().find(|role| role.number() == number)
    }
}

/// Who a process is from its start on: its role, its rank where that is known, and an incarnation that no other start has. On a
/// simulated network nothing is drawn: a run is repeated exactly.
pub(crate) fn identity(role: u8, rank: Option<usize>) -> Identity {
    let rank = rank.and_then(|rank| u32::try_from(rank).ok());
    let incarnation = match is_simulated() {
        true => u64::from(role) << 32 | u64::from(rank.unwrap_or(Hello::NO_RANK)),
        false => getrandom::u64().expect("the system has random numbers"),
    };
    Identity { role, rank, incarnation }
}

/// What a node asks of the scheduler. Who asks is what the lane has proved: role, rank and incarnation are never said again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Take me in. Answered with a [`Roster`] when the cluster is complete.
    Join(Join),
    /// Tell me when all nodes of my role have asked this.
    Barrier { name: String },
    /// Whom does this barrier wait for? I have waited long enough. Answered with their names.
    Missing { name: String },
    /// The member that this lane has proved to be is alive. Answered with [`Pulse`].
    Alive,
}

/// What a node says of itself when it joins.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    pub(crate) pid: u32,
    /// Whether it will give signs of life: it is lost when it gives none.
    pub(crate) beats: bool,
    /// Which vans it can take.
    pub(crate) vans: Vec<Candidate>,
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
