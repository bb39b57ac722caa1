//! Runs the stages of tasks on a cluster, as the queue decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caravan_kv::error::with_sources;
use caravan_kv::{Cluster, Rpc, Target, TaskId};

use super::models::free_models_of;
use super::place::Wants;
use super::queue::{Queue, Start};
use super::schedule::Schedule;
use super::trigger::Trigger;
use super::{Ended, Order, Stage, Task};
use crate::{Error, Result};

/// Longest wait for a stage to end while no trigger is due.
const WAIT: Duration = Duration::from_secs(3600);

/// How a task has ended: what its last stage was, or why a stage could not run.
pub type Outcome = Result<Option<Ended>, String>;

/// The tasks of a job on a cluster.
pub struct Engine<'a> {
    cluster: &'a mut Cluster,
    queue: Queue,
    tasks: Vec<Known<'a>>,
    /// Stages that run, by the cluster's number.
    running: BTreeMap<TaskId, Running>,
}

struct Known<'a> {
    /// Its stages; `None` once it has ended.
    task: Option<Box<dyn Task + 'a>>,
    /// The stage that waits.
    stage: Option<Stage>,
    /// Stages begun.
    begun: usize,
    /// The first of them, and all workers that have run one.
    first: Option<TaskId>,
    workers: BTreeSet<usize>,
    outcome: Outcome,
}

struct Running {
    task: usize,
    began: Duration,
}

impl<'a> Engine<'a> {
    /// An engine for all workers of a cluster. Tasks share the tables of the cluster's job, or of
    /// the part of it that runs.
    pub fn new(
        cluster: &'a mut Cluster,
        schedule: impl Schedule + 'static,
        trigger: Trigger,
    ) -> Self {
        let queue = Queue::new(cluster.config().workers, schedule, trigger);
        Engine { cluster, queue, tasks: Vec::new(), running: BTreeMap::new() }
    }

    /// Adds a task; its first stage waits from now on. Returns its number, from 0.
    pub fn submit(&mut self, task: impl Task + 'a) -> usize {
        let number = self.tasks.len();
        let task: Option<Box<dyn Task + 'a>> = Some(Box::new(task));
        let (first, workers) = (None, BTreeSet::new());
        let known = Known { task, stage: None, begun: 0, first, workers, outcome: Ok(None) };
        self.tasks.push(known);
        self.proceed(number, None);
        number
    }

    /// Runs all tasks to their ends; returns how each has ended, in the order in which they came.
    /// The failure of one is no failure of the others.
    ///
    /// # Errors
    /// [`Error::Train`] if a node was lost.
    pub fn run(mut self) -> Result<Vec<Outcome>> {
        loop {
            if self.queue.has_waiting() {
                self.queue.share(self.cluster.busy_with_others().map_err(failed)?);
            }
            for start in self.queue.start(self.cluster.now()) {
                self.start(start)?;
            }
            let due = self.queue.due().map(|due| due.saturating_sub(self.cluster.now()));
            if self.running.is_empty() && due.is_none() {
                break;
            }
            let running: Vec<TaskId> = self.running.keys().copied().collect();
            let first = self.cluster.wait_first(&running, due.unwrap_or(WAIT)).map_err(failed)?;
            if let Some(number) = first {
                self.end(number)?;
            }
        }
        Ok(self.tasks.into_iter().map(|task| task.outcome).collect())
    }

    /// Makes the next stage of a task wait, or ends the task.
    fn proceed(&mut self, number: usize, last: Option<&Ended>) {
        let known = &mut self.tasks[number];
        known.stage = known.task.as_mut().and_then(|task| task.next(last));
        let wants = known.stage.as_ref().map(|stage| stage.wants.clone());
        let waits = wants.map(|wants: Wants| self.queue.wait(number, wants, self.cluster.now()));
        match waits {
            Some(Ok(())) => {}
            Some(Err(why)) => self.give_up(number, why),
            None => self.forget(number),
        }
    }

    /// Ends a task whose stage cannot run.
    fn give_up(&mut self, number: usize, why: String) {
        let known = &mut self.tasks[number];
        known.outcome = Err(format!("stage {} of task {number}: {why}", known.begun));
        self.forget(number);
    }

    /// Forgets a task that has ended, here and where it has run.
    fn forget(&mut self, number: usize) {
        self.queue.forget(number);
        let known = &mut self.tasks[number];
        known.task = None;
        if let Some(first) = known.first {
            let free = |rpc: &mut Rpc| free_models_of(first, &known.workers, rpc);
            // Where a node is lost the job ends, and its models with it.
            drop(self.cluster.rpc(free));
        }
    }

    fn start(&mut self, start: Start) -> Result<()> {
        let Start { task, workers } = start;
        let known = &mut self.tasks[task];
        let Some(stage) = known.stage.take() else { return Ok(()) };
        if let Some(drained) = &stage.drained {
            lay_out(self.cluster, drained).map_err(failed)?;
        }
        let workers: Vec<usize> = workers.into_iter().collect();
        known.workers.extend(&workers);
        let order = Order {
            task: known.first,
            stage: known.begun,
            workers: workers.clone(),
            threads: stage.threads,
            body: stage.body,
        };
        let input = serde_json::to_value(&order).map_err(|error| failed(error.into()))?;
        let began = self.cluster.now();
        let number = self.cluster.submit(Target::Some(workers), &stage.app, &input);
        let number = number.map_err(failed)?;
        known.first.get_or_insert(number);
        self.running.insert(number, Running { task, began });
        Ok(())
    }

    /// Takes the results of a stage whose workers have all reported.
    fn end(&mut self, number: TaskId) -> Result<()> {
        let Some(Running { task, began }) = self.running.remove(&number) else { return Ok(()) };
        let now = self.cluster.now();
        let workers = self.queue.ended(task, now).into_iter().collect();
        match self.cluster.wait(number) {
            Ok(results) => {
                let ended = Ended { workers, results, took: now - began };
                self.tasks[task].begun += 1;
                self.proceed(task, Some(&ended));
                if self.tasks[task].outcome.is_ok() {
                    self.tasks[task].outcome = Ok(Some(ended));
                }
            }
            Err(error @ caravan_kv::Error::TaskFailed { .. }) => {
                self.give_up(task, with_sources(&error));
            }
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }
}

/// Moves the shards of all tables of the job away from server threads.
fn lay_out(cluster: &Cluster, drained: &[usize]) -> caravan_kv::Result<()> {
    let own = cluster.namespace();
    let mut client = cluster.client()?;
    // All tables, under their full names.
    client.admin().set_namespace("");
    let tables = client.admin().list_tables("")?;
    for spec in tables.into_iter().filter(|spec| spec.namespace == own) {
        let table = client.admin().create_table(&spec)?;
        client.admin().rebalance(table, drained)?;
    }
    Ok(())
}

fn failed(error: caravan_kv::Error) -> Error {
    Error::Train { reason: with_sources(&error) }
}
