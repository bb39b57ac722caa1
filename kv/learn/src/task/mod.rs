//! Tasks in stages, each with workers, threads, place and layout of its own (Huang et al.,
//! "FlexPS: Flexible Parallelism Control in Parameter Server Architecture", PVLDB 11, 2018).
//!
//! ```text
//!   Task ── next stage ──> Queue ── start at these workers ──> Engine ──> Cluster::submit
//!    ^                       │ Schedule: which stage, which workers         │
//!    │                       │ Trigger: when to look                        v
//!    └── how it has ended ───┴────────────────── all its workers have reported
//! ```
//!
//! A [`Task`] gives out its stages one by one, so the next may depend on how the last one ended. A
//! [`Queue`] decides which waiting stage starts at which workers; it is a plain object that is told
//! the time. An [`Engine`] runs what it decides on a cluster. A worker runs one stage at a time,
//! with as many threads as the stage says.
//!
//! `kv/docs/tasks.md` shows a whole task.

mod engine;
mod models;
mod parallelism;
mod place;
mod queue;
pub mod schedule;
mod trigger;

use std::time::Duration;

use caravan_kv::TaskId;
use serde::{Deserialize, Serialize};

pub use self::engine::{Engine, Outcome};
pub use self::models::{ModelStore, Models, Owner};
pub use self::parallelism::Climb;
pub use self::place::Wants;
pub use self::queue::{Queue, Start};
pub use self::schedule::Schedule;
pub use self::trigger::Trigger;

/// One stage of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// The app that its workers run.
    pub app: String,
    /// The input of the app, which finds it in [`Part::body`].
    pub body: serde_json::Value,
    /// How many workers, and which.
    pub wants: Wants,
    /// Threads of each worker, at least 1.
    pub threads: usize,
    /// Server threads that hold no shards of the job's tables from this stage on, counted from 0
    /// over all servers. `None` leaves shards where they are.
    pub drained: Option<Vec<usize>>,
}

impl Stage {
    /// A stage of one thread at each worker, which leaves shards where they are.
    pub fn new(app: &str, body: serde_json::Value, wants: Wants) -> Self {
        Stage { app: app.to_owned(), body, wants, threads: 1, drained: None }
    }
}

/// How a stage has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The workers that ran it, ascending.
    pub workers: Vec<usize>,
    /// What they returned, in this order.
    pub results: Vec<serde_json::Value>,
    /// From its start until the last of them had reported.
    pub took: Duration,
}

/// A task: its stages, one after another.
pub trait Task {
    /// The next stage; `None` ends the task. `last` is how the stage before it has ended.
    fn next(&mut self, last: Option<&Ended>) -> Option<Stage>;
}

/// Stages that are known from the start.
impl Task for std::vec::IntoIter<Stage> {
    fn next(&mut self, _last: Option<&Ended>) -> Option<Stage> {
        Iterator::next(self)
    }
}

/// What an app of a stage gets as its input.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The task of this stage, by the number that its first stage has on the cluster.
    pub task: TaskId,
    /// Number of this stage in its task, from 0.
    pub stage: usize,
    /// The workers of the stage, ascending.
    pub workers: Vec<usize>,
    /// Threads of each worker.
    pub threads: usize,
    /// The input of the stage.
    pub body: serde_json::Value,
}

/// What the engine sends for it.
#[derive(Serialize, Deserialize)]
struct Order {
    /// `None` with the first stage, whose own number this is.
    task: Option<TaskId>,
    stage: usize,
    workers: Vec<usize>,
    threads: usize,
    body: serde_json::Value,
}

impl Part {
    /// The part that the scheduler has sent to a worker, and the worker's rank among those of the
    /// stage. `WorkerNode::barrier` waits for these alone.
    ///
    /// # Errors
    /// If the input is not that of a stage, or of another worker's.
    pub fn of(
        node: &caravan_kv::WorkerNode,
        input: serde_json::Value,
    ) -> Result<(Part, usize), String> {
        let order = serde_json::from_value(input).map_err(|error| error.to_string())?;
        let Order { task, stage, workers, threads, body } = order;
        let rank = workers.iter().position(|worker| *worker == node.rank);
        let rank = rank.ok_or_else(|| format!("the stage is not for worker {}", node.rank))?;
        let task = task.unwrap_or(node.task());
        Ok((Part { task, stage, workers, threads, body }, rank))
    }
}
