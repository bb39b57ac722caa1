//! Messages between nodes and the scheduler: requests and replies of the van with JSON values.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use caravan_van::Identity;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::backend::{Van, incarnation};
use super::barriers::Party;
use super::choice::Candidate;
use super::group::{NodeName, Recipients};
use super::vitals::Vitals;
use crate::error::{Error, Result};
use crate::membership::{Departed, Event};
use crate::rechain::Rechain;
use crate::server_address::ServerAddress;

/// The role of a node.
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

/// Credits of lanes to the scheduler; a node makes few requests at a time.
pub(crate) const CREDITS: u16 = 64;

/// Most tasks that a worker may have at a time.
pub(super) const TASKS_MAX: usize = 60;

/// Role numbers of processes, as their lanes prove them ([`Identity::role`]).
pub(crate) const SCHEDULER: u8 = 1;
const SERVER: u8 = 2;
const WORKER: u8 = 3;
/// The driver that started the cluster: the scheduler's own process, which is also a client of the
/// servers.
pub(crate) const DRIVER: u8 = 4;
/// The driver of another job, from outside that process.
pub(crate) const GUEST: u8 = 5;

impl Role {
    /// Its number in a hello ([`Identity::role`]). Server threads ask each other for some things
    /// that they answer to nobody else.
    pub fn number(self) -> u8 {
        match self {
            Role::Server => SERVER,
            Role::Worker => WORKER,
        }
    }

    /// The role with this number, if it is a node's.
    pub(crate) fn of(number: u8) -> Option<Role> {
        [Role::Server, Role::Worker].into_iter().find(|role| role.number() == number)
    }
}

/// Whether a process with this role number is a client of the servers that hears from the scheduler
/// who is lost: a worker or a driver.
pub(crate) fn is_client(role: u8) -> bool {
    matches!(role, WORKER | DRIVER | GUEST)
}

/// A new identity of this process: its role, its rank if known, and a new incarnation.
pub(crate) fn identity(role: u8, rank: Option<usize>) -> Identity {
    let rank = rank.and_then(|rank| u32::try_from(rank).ok());
    Identity { role, rank, incarnation: incarnation() }
}

/// A node's request to the scheduler. The lane has proved who asks: role, rank and incarnation are
/// never repeated.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Join the cluster. Answered with a [`Roster`] when the cluster is complete.
    Join(Join),
    /// What concerns other nodes.
    Post(Post),
    /// The member that this lane has proved to be is alive, and has done this. Answered with
    /// [`Pulse`].
    Alive(Vitals),
    /// Start a sub-task of the task of this number, which the sender runs. Answered with
    /// [`Submitted`].
    Spawn { task: u64, target: Target, app: String, body: serde_json::Value },
}

/// The workers that run a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Every worker that is not lost.
    Workers,
    /// The worker of this rank.
    Worker(usize),
    /// The workers of these ranks.
    Some(Vec<usize>),
}

impl Target {
    /// Its workers, of `workers` in all and those `live`. Ascending.
    ///
    /// # Errors
    /// If one of them does not exist, or there is none.
    pub(crate) fn ranks(
        self,
        workers: usize,
        live: impl FnOnce() -> Vec<usize>,
    ) -> std::result::Result<Vec<usize>, String> {
        let mut ranks = match self {
            Target::Workers => return Ok(live()),
            Target::Worker(rank) => vec![rank],
            Target::Some(ranks) => ranks,
        };
        ranks.sort_unstable();
        ranks.dedup();
        match ranks.last() {
            Some(&last) if last < workers => Ok(ranks),
            Some(last) => Err(format!("there is no worker {last}, there are {workers}")),
            None => Err("a task needs a worker that runs it".to_owned()),
        }
    }
}

/// What a node wants of others, or answers them. The scheduler hands it on.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Post {
    /// Make a request; `id` is the sender's. Acknowledged with the nodes that it goes to.
    Request { id: u64, to: Recipients, handler: String, command: i32, body: Body },
    /// Answer the request with this number in its [`Envelope`]. Acknowledged with no nodes.
    Answer { number: u64, outcome: Result<Body, String> },
    /// Acknowledged with no nodes when all nodes of the party have asked this.
    Barrier { party: Party, name: String },
    /// Give up waiting at this barrier. Acknowledged with those that did not come.
    Missing { party: Party, name: String },
}

/// The scheduler's answer to a [`Post`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Acknowledged {
    /// These nodes will answer.
    Asked(BTreeSet<NodeName>),
    /// These nodes did not come to the barrier.
    Missing(BTreeSet<NodeName>),
}

/// What the scheduler hands on to a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Envelope {
    /// A request, for a handler of this name; its answer carries the number.
    Request { number: u64, from: NodeName, handler: String, command: i32, body: Body },
    /// An answer to the request that has this number where it was made.
    Answer { id: u64, from: NodeName, outcome: Result<Body, String> },
    /// Another worker has failed at a task that this one runs as well: what that waits for fails.
    Failed(Failure),
}

/// Why a task cannot succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Its number.
    pub(crate) task: u64,
    pub(crate) app: String,
    /// The worker that has failed first.
    pub(crate) rank: usize,
    pub(crate) why: String,
}

impl From<Failure> for Error {
    fn from(Failure { app, rank, why, .. }: Failure) -> Error {
        Error::TaskFailed { node: format!("worker {rank}"), app, reason: why }
    }
}

impl Envelope {
    /// Its length, about.
    pub(crate) fn bytes(&self) -> usize {
        let body = match self {
            Envelope::Request { body, .. } | Envelope::Answer { outcome: Ok(body), .. } => {
                body.0.len()
            }
            Envelope::Answer { outcome: Err(why), .. } => why.len(),
            Envelope::Failed(Failure { app, why, .. }) => app.len() + why.len(),
        };
        size_of::<Envelope>() + body
    }
}

/// Bytes within JSON, in base 64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Body, D::Error> {
        let text = String::deserialize(from)?;
        BASE64_STANDARD.decode(text).map(Body).map_err(serde::de::Error::custom)
    }
}

/// What a node tells about itself when it joins.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    pub(crate) pid: u32,
    /// Name of its host, for people.
    #[serde(default)]
    pub(crate) host: String,
    /// Whether it is on another host than the scheduler.
    #[serde(default)]
    pub(crate) is_elsewhere: bool,
    /// Whether it will send heartbeats: it counts as lost without them.
    pub(crate) beats: bool,
    /// Whether it is a server beside those of a cluster that is complete, and not one of these.
    #[serde(default)]
    pub(crate) is_further: bool,
    /// The vans it can use.
    pub(crate) vans: Vec<Candidate>,
}

/// The scheduler's answer to a heartbeat.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pulse {
    /// Why the cluster has ended, if it has.
    pub(crate) ended: Option<String>,
    /// Whether a loss has ended it, so that a scheduler which goes does not come back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_lost: bool,
}

/// A node that was lost, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loss {
    pub(crate) node: String,
    pub(crate) reason: String,
}

impl From<Loss> for Error {
    fn from(Loss { node, reason }: Loss) -> Error {
        Error::NodeLost { node, reason }
    }
}

/// What has become of the cluster since it was complete.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Server threads that are lost and not needed to go on, by their place among all.
    pub(crate) lost: Vec<usize>,
    /// Nodes of lost workers, by their ids in messages.
    pub(crate) workers: Vec<u32>,
    /// Those that leave or have left, in their order.
    pub(crate) events: Vec<Event>,
}

/// The scheduler's request to a node; of [`Order::Envelopes`] alone, to a driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Run this task of a job; answered with a [`Report`].
    Run { job: String, app: String, body: serde_json::Value },
    /// Run these steps of a job, each after those that it waits for; answered with a [`Report`] of
    /// all results.
    Steps { job: String, steps: Vec<Step> },
    /// A job has ended: what still runs of it fails at its next wait; then forget its apps and
    /// tables. Answered with a [`Report`]. The worker of this rank drops the tables.
    Forget { job: String, rank: usize },
    /// Envelopes of other nodes; answered at once. The next ones are sent after that.
    Envelopes(Vec<Envelope>),
    /// Another node was lost, so that nothing that needs it can succeed. Not answered.
    Lost(Loss),
    /// These server threads are lost as well, and the others go on without them. Answered at once.
    LostServers(Vec<usize>),
    /// These server threads have joined, leave or have left, or these chains have changed, beside
    /// what it was told. Answered at once.
    ServerEvents(Vec<Event>),
    /// These nodes of workers are lost so far; to servers alone. Answered at once.
    LostWorkers(Vec<u32>),
    /// The job is over.
    End,
}

/// One step of a graph that workers run by themselves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The app that it runs.
    pub app: String,
    /// Its input.
    pub body: serde_json::Value,
    /// Places of earlier steps that it waits for. If one of them has failed, it is not run.
    pub after: Vec<usize>,
}

/// A request of a driver to the thread that schedules. Nobody else may make one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Which jobs there are. Answered at once with a list of [`JobStatus`]. A driver needs no job
    /// of its own to ask.
    Jobs,
    /// Answered at once with the reason why the scheduler takes no changes now, if there is one. A
    /// driver needs no job of its own to ask.
    Paused,
    /// Ends the job of another driver. Answered once all workers have forgotten it; refused if
    /// there is no such job. A driver needs no job of its own to ask.
    Cancel { job: String },
    /// This driver's job has this name. Only drivers from outside may ask; they must, before
    /// anything else. Answered once an earlier job of that name has ended; refused if another
    /// driver has it. The job of a driver that `visits` is a name alone: it has no tasks and no
    /// tables, so no worker has to forget it.
    Begin { job: String, visits: bool },
    /// Answered with [`Gathered`] once all nodes have joined, or when the time for that is over.
    Gather,
    /// Starts a task of this part of the job once others are finished. Answered with [`Submitted`]
    /// at once.
    Submit { part: String, target: Target, program: Program, after: Vec<u64> },
    /// Adds a task that nobody runs. Answered with [`Submitted`] at once.
    Promise,
    /// Finishes such a task. Answered at once with whether there is one.
    Finish { task: u64 },
    /// Makes all workers forget this part of the job, and drops its tables. Answered as a task.
    Forget { part: String },
    /// Answered with [`Waited`] when the task is done or a node was lost; then the task is
    /// forgotten.
    Wait { task: u64 },
    /// Answered with the number of the first of these tasks that a wait for would be answered at
    /// once. Another such question takes the place of one that is not answered.
    First { tasks: Vec<u64> },
    /// What concerns other nodes.
    Post(Post),
    /// Answered with [`Losses`] when a loss has ended the cluster, or there are more changes than
    /// those that the driver knows.
    Watch(Heard),
    /// Tells everybody that the server of this rank will leave the cluster. Answered with the
    /// places of its threads among all; refused with the reason why it may not.
    AnnounceLeave { server: usize },
    /// Tells everybody that the threads of this server own nothing any more, so that it can leave.
    /// Answered at once, or refused as [`Command::AnnounceLeave`].
    Leave { server: usize, departed: Vec<Departed> },
    /// Tells everybody that these chains are others from now on. Answered at once with the number
    /// of the change; with none if one of them is not the one that the driver has seen; or refused
    /// with the reason why it cannot be.
    Rechain(Vec<Rechain>),
    /// Answered at once with the [`Loss`] of a node, if any was lost.
    Check,
    /// Answered at once with a list of [`NodeState`](super::vitals::NodeState). A driver needs no
    /// job to ask.
    Nodes,
    /// Ends the cluster for this reason. Only the driver that started it may. Answered when all
    /// nodes have left, or soon in any case.
    End { reason: String },
}

/// Of how many changes somebody has heard.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Heard {
    /// Server threads that are lost.
    pub(crate) lost: usize,
    /// What was said of those that leave.
    pub(crate) events: usize,
}

/// What a driver that watches hears of losses.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Losses {
    /// The one that has ended the cluster.
    pub(crate) fatal: Option<Loss>,
    /// Server threads that are lost beside those that the driver knows, in the order of their
    /// losses.
    pub(crate) servers: Vec<usize>,
    /// What was said of those that leave, beside what the driver knows, in its order.
    #[serde(default)]
    pub(crate) events: Vec<Event>,
    /// This driver's job, if it was cancelled.
    #[serde(default)]
    pub(crate) cancelled: Option<String>,
}

impl Losses {
    /// Whether there is anything in it.
    pub(crate) fn is_news(&self) -> bool {
        let Losses { fatal, servers, events, cancelled } = self;
        let is_empty = servers.is_empty() && events.is_empty();
        fatal.is_some() || cancelled.is_some() || !is_empty
    }
}

/// A job of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its name; empty for the job of the driver that started the cluster.
    pub job: String,
    /// Number of its tasks that are not finished.
    pub tasks: usize,
    /// The workers that run them now, or have them next.
    pub workers: BTreeSet<usize>,
    /// Whether its driver is gone, or it was cancelled: its last tasks end, and then its tables go.
    pub ends: bool,
}

/// Whether all nodes have joined.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Gathered {
    /// They have, and each pair that may have a lane has a van for it.
    All(Roster),
    /// They have, but not all can have lanes to the servers, for this reason.
    NoVan(String),
    /// The nodes with these names have not.
    Missing(String),
}

/// What a task runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Program {
    /// An app of this name with this input.
    App { app: String, body: serde_json::Value },
    /// Steps of a graph.
    Steps(Vec<Step>),
}

/// Whether a task was started.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Submitted {
    /// It has this number.
    Task(u64),
    /// A worker that should run it is lost.
    Lost(Loss),
    /// The worker of this rank has too many tasks.
    Full(usize),
    /// It cannot be started, for this reason.
    Refused(String),
}

impl Submitted {
    /// The task's number.
    ///
    /// # Errors
    /// [`Error::NodeLost`]; [`Error::Config`] says why it was not started.
    pub(crate) fn started(self) -> Result<u64> {
        match self {
            Submitted::Task(number) => Ok(number),
            Submitted::Lost(loss) => Err(loss.into()),
            Submitted::Full(rank) => Err(Error::Config(format!(
                "worker {rank} has {TASKS_MAX} tasks that it has not finished: wait for one of them before the next",
            ))),
            Submitted::Refused(why) => Err(Error::Config(why)),
        }
    }
}

/// The outcome of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Waited {
    /// All workers have ended it; their reports are in order of rank. `first` has failed before
    /// others, whose failures follow from that.
    Done { app: String, reports: BTreeMap<usize, Report>, first: Option<usize> },
    /// A node was lost first.
    Lost(Loss),
    /// There is no task of this number, or it was waited for already.
    Unknown,
}

/// Result of a task.
pub(crate) type Report = std::result::Result<serde_json::Value, String>;

/// The complete cluster, from one node's view.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Roster {
    /// This node's id in messages.
    pub node: u32,
    /// This node's rank in its role.
    pub rank: usize,
    /// The van of this node.
    pub van: Van,
    /// If it is a mixed one, the vans that it is made of, fastest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vans: Vec<Van>,
    /// All server threads: first the founders, in order of key ranges, then those that have joined
    /// since.
    pub servers: Vec<ServerAddress>,
    /// How many of them were there when the cluster was complete.
    pub founders: usize,
    /// Threads of each server, which are side by side among them; 1 if servers differ.
    pub threads: usize,
    /// Index of this server's first thread among them; 0 for workers.
    pub first_thread: usize,
    /// Number of workers.
    pub workers: usize,
    /// Servers that may be lost while the others go on.
    #[serde(default)]
    pub server_losses_max: usize,
    /// How long the scheduler may stay away; zero if it keeps no state and so does not come back.
    #[serde(default)]
    pub away_max: Duration,
    /// Number of this node among those of its role on its host.
    #[serde(default)]
    pub turn: u32,
}

/// The job or part of a job called `part` within `job`.
pub(crate) fn within(job: &str, part: &str) -> String {
    if part.is_empty() { job.to_owned() } else { format!("{job}/{part}") }
}

/// Whether `job` is `of` or a part of it.
pub(crate) fn is_within(job: &str, of: &str) -> bool {
    job.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
