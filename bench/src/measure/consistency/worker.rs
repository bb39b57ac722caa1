//! The worker's side of `caravan bench consistency`.
//!
//! A simulated worker is charged for computing; a real one sleeps for as long, so that a small
//! machine can run many of them.

use std::collections::VecDeque;
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::node::is_simulated;
use caravan_kv::{App, Result, Table, TableSpec, Timestamp, ValueType, WorkerNode};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::program::{Program, Task, Work};
use crate::measure::answers::answered;

/// What a worker answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    /// From the moment when all had joined, until its last write was acknowledged.
    pub(super) seconds: f64,
    /// Of which it computed.
    pub(super) busy_seconds: f64,
    pub(super) bytes_sent: u64,
    /// Reads of a version that the model forbids, and a result that is not the serial run's.
    pub(super) wrong: u64,
}

/// Runs iterations over a table with a consistency model.
#[derive(Debug)]
pub(crate) struct Iterates;

impl Iterates {
    /// Name of its tasks.
    pub(crate) const NAME: &str = "consistency";
}

impl App for Iterates {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> std::result::Result<Value, String> {
        answered(body, |task| Ok(run(node, &task)?))
    }
}

/// The table of a task.
pub(super) fn spec(task: &Task) -> Result<TableSpec> {
    let workers = task.workers as u32;
    let last = |end: u64| {
        KeyRange::new(0, end).ok_or_else(|| caravan_kv::Error::Config("no keys".to_owned()))
    };
    Ok(match task.program {
        Program::Sparse { dimensions, .. } => {
            let spec = TableSpec::new(1, "sparse", ValueType::F32, 1).keys(last(dimensions)?);
            spec.consistency(task.model, workers)
        }
        Program::Regression { .. } => {
            let range = last(task.chunk(task.workers - 1).end)?;
            let spec = TableSpec::new(1, "regression", ValueType::I32, 1).handle("assign");
            spec.keys(range).dense().consistency(task.model, workers)
        }
    })
}

fn run(node: &mut WorkerNode, task: &Task) -> Result<Part> {
    let table = node.worker.admin().create_table(&spec(task)?)?;
    node.worker.clocks(table).join()?;
    node.barrier("all have joined")?;
    let (began, sent) = (node.worker.now(), node.worker.info().counters().bytes_sent);
    let mut iterating = Iterating { node, task, table, busy: Duration::ZERO, wrong: 0 };
    match task.program {
        Program::Sparse { .. } => iterating.sparse()?,
        Program::Regression { .. } => iterating.regression()?,
    }
    let Iterating { busy, mut wrong, .. } = iterating;
    let worker = &mut node.worker;
    let part = Part {
        seconds: (worker.now() - began).as_secs_f64(),
        busy_seconds: busy.as_secs_f64(),
        bytes_sent: worker.info().counters().bytes_sent - sent,
        wrong: 0,
    };
    if matches!(task.program, Program::Regression { .. }) && task.slack() == 0 {
        let keys: Vec<u64> = (0..task.chunk(task.workers - 1).end).collect();
        let pulled = worker.pull(table, &keys)?;
        wrong += u64::from(worker.wait(pulled)?.values::<i32>() != task.serial());
    }
    let left = worker.clocks(table).leave()?;
    worker.wait(left)?;
    Ok(Part { wrong, ..part })
}

struct Iterating<'a> {
    node: &'a mut WorkerNode,
    task: &'a Task,
    table: Table,
    busy: Duration,
    wrong: u64,
}

impl Iterating<'_> {
    fn sparse(&mut self) -> Result<()> {
        let Iterating { task, table, .. } = *self;
        let rank = self.node.rank;
        let ahead = match task.model {
            Model::SparseSsp { speculation, .. } => speculation,
            _ => 0,
        };
        let mut announced = VecDeque::new();
        for clock in 1..=1 + ahead {
            announced.push_back(self.announce(clock, clock - 1)?);
        }
        let mut pushed = match ahead {
            0 => None,
            _ => Some(self.node.worker.clocks(table).disclose()?),
        };
        for clock in 1..=task.iterations {
            let Some(Announced { keys, pull }) = announced.pop_front() else { break };
            self.node.worker.wait(pull)?;
            if let Some(pushed) = pushed.take() {
                self.node.worker.wait(pushed)?;
            }
            let Work { reading, ending } = task.work(rank, clock);
            self.compute(reading + ending)?;
            let ones = vec![1f32; keys.len()];
            pushed = Some(self.node.worker.clocks(table).push_last(&keys, &ones)?);
            if clock < task.iterations {
                announced.push_back(self.announce(clock + 1 + ahead, ahead)?);
            }
        }
        pushed.map_or(Ok(()), |pushed| self.node.worker.wait(pushed).map(drop))
    }

    /// Pulls the keys of an iteration that is `ahead` ones after this one.
    fn announce(&mut self, clock: u64, ahead: u64) -> Result<Announced> {
        let keys = self.task.keys(self.node.rank, clock);
        let pull = self.node.worker.clocks(self.table).pull_ahead(ahead, &keys)?;
        Ok(Announced { keys, pull })
    }

    fn regression(&mut self) -> Result<()> {
        let Iterating { task, table, .. } = *self;
        let rank = self.node.rank;
        let own: Vec<u64> = task.chunk(rank).collect();
        let chunks: Vec<Vec<u64>> =
            (0..task.workers).map(|chunk| task.chunk(chunk).collect()).collect();
        self.node.worker.filters(table).cache_keys()?;
        let mut read = vec![0; own.len() * task.workers];
        let mut pushed = None;
        for clock in 1..=task.iterations {
            let Work { reading, ending } = task.work(rank, clock);
            let pull = |keys: &Vec<u64>| self.node.worker.pull(table, keys);
            let pulls: Result<Vec<Timestamp>> = chunks.iter().map(pull).collect();
            self.read(clock, pulls?, reading / task.workers as u32, &mut read)?;
            self.compute(ending)?;
            if let Some(pushed) = pushed.take() {
                self.node.worker.wait(pushed)?;
            }
            let next = task.next(rank, clock, &read);
            pushed = Some(self.node.worker.clocks(table).push_last(&own, &next)?);
        }
        pushed.map_or(Ok(()), |pushed| self.node.worker.wait(pushed).map(drop))
    }

    /// Takes chunks in the order in which they come, and computes on each for `each`.
    fn read(
        &mut self,
        clock: u64,
        pulls: Vec<Timestamp>,
        each: Duration,
        read: &mut [i32],
    ) -> Result<()> {
        let slack = self.task.slack();
        let mut open: Vec<(usize, Timestamp)> = pulls.into_iter().enumerate().collect();
        while !open.is_empty() {
            let mut done = None;
            for (at, (_, pull)) in open.iter().enumerate() {
                if self.node.worker.is_done(*pull)? {
                    done = Some(at);
                    break;
                }
            }
            let Some(at) = done else {
                self.node.worker.sleep(Duration::from_secs(1))?;
                self.node.worker.poll()?;
                continue;
            };
            let (chunk, pull) = open.remove(at);
            let answer = self.node.worker.wait(pull)?;
            let values = answer.values::<i32>();
            let begin = chunk * values.len();
            read[begin..begin + values.len()].copy_from_slice(values);
            let version = u64::from(values[0].cast_unsigned());
            self.wrong += u64::from(version.abs_diff(clock - 1) > slack);
            self.compute(each)?;
        }
        Ok(())
    }

    fn compute(&mut self, work: Duration) -> Result<()> {
        self.busy += work;
        if is_simulated() {
            return self.node.worker.charge(work);
        }
        std::thread::sleep(work);
        Ok(())
    }
}

/// A pull of an iteration's keys.
struct Announced {
    keys: Vec<u64>,
    pull: Timestamp,
}
