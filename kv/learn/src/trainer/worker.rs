//! The worker's side: trains its parts pass by pass.

use std::collections::VecDeque;

use caravan_kv::consistency::Model;
use caravan_kv::{Answer, App, Table, TableSpec, Timestamp, WorkerNode};
use serde::{Deserialize, Serialize};

use super::{Part, Step, Sums, Trainer, parts_of};
use crate::data_root::DataRoot;

/// An order of the driver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order<S> {
    /// Load your parts and join the table. Answered with the steps of a pass.
    Load { settings: S, table: Box<TableSpec>, parts: usize },
    /// Train a pass of so many steps. Answered with [`Passed`].
    Pass { pass: u64, steps: u64 },
    /// Answered with the keys that you have read so far.
    Keys,
}

/// What a worker has done in a pass.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Passed {
    pub(super) sums: Sums,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
}

/// Pushes of a part that may be on the way.
const PUSHES_MAX: usize = 4;

/// A worker's parts.
pub(super) struct Task<T> {
    training: Option<Training<T>>,
}

impl<T> Default for Task<T> {
    fn default() -> Self {
        Task { training: None }
    }
}

struct Training<T> {
    table: Table,
    width: usize,
    trainers: Vec<T>,
    /// Steps by which reads are announced ahead.
    ahead: u64,
    seen: Seen,
    pushed: VecDeque<Timestamp>,
}

/// The keys of a part's step, and the pull on the way unless steps do not read.
struct Pulling {
    keys: Vec<u64>,
    timestamp: Option<Timestamp>,
}

impl<T: Trainer> App for Task<T> {
    fn run(
        &mut self,
        node: &mut WorkerNode,
        body: serde_json::Value,
    ) -> Result<serde_json::Value, String> {
        let text = |error: serde_json::Error| error.to_string();
        let order: Order<T::Settings> = serde_json::from_value(body).map_err(text)?;
        let answer = match order {
            Order::Load { settings, table, parts } => {
                self.training = None;
                let training = Training::<T>::load(node, &settings, &table, parts)?;
                let steps = training.trainers.iter().map(Trainer::steps).max().unwrap_or(0);
                self.training = Some(training);
                serde_json::to_value(steps)
            }
            Order::Pass { pass, steps } => {
                let training = self.training()?;
                let sums = training.pass(node, pass, steps).map_err(|error| error.to_string())?;
                let counters = node.worker.counters();
                let (bytes_sent, bytes_received) = (counters.bytes_sent, counters.bytes_received);
                serde_json::to_value(Passed { sums, bytes_sent, bytes_received })
            }
            Order::Keys => serde_json::to_value(self.training()?.seen.keys()),
        };
        answer.map_err(text)
    }
}

impl<T> Task<T> {
    fn training(&mut self) -> Result<&mut Training<T>, String> {
        self.training.as_mut().ok_or_else(|| "there is nothing to train on: load first".to_owned())
    }
}

impl<T: Trainer> Training<T> {
    fn load(
        node: &mut WorkerNode,
        settings: &T::Settings,
        spec: &TableSpec,
        parts: usize,
    ) -> Result<Self, String> {
        let load = |number| {
            let root = DataRoot::of(&node.config)?;
            T::load(settings, &Part { number, parts, root })
        };
        let own = parts_of(node.rank, node.workers, parts);
        let trainers: Vec<T> = own.map(load).collect::<Result<_, _>>()?;
        let worker = &mut node.worker;
        let joined = worker.create_table(spec).and_then(|table| {
            worker.join(table)?;
            Ok(table)
        });
        let table = joined.map_err(|error| error.to_string())?;
        let ahead = match spec.consistency.map(|it| it.model) {
            Some(Model::SparseSsp { speculation, .. }) => speculation,
            _ => 0,
        };
        let width = spec.width as usize;
        let (seen, pushed) = Default::default();
        Ok(Training { table, width, trainers, ahead, seen, pushed })
    }

    /// Trains a pass, and waits until the servers have all that it has pushed.
    fn pass(&mut self, node: &mut WorkerNode, pass: u64, steps: u64) -> caravan_kv::Result<Sums> {
        let mut sums = Sums::default();
        let mut pulling = VecDeque::new();
        let mut announced = 0;
        for step in 0..steps {
            while announced < steps && announced <= step + self.ahead {
                pulling.push_back(self.pull(node, pass, announced, announced - step)?);
                announced += 1;
            }
            let pulls = pulling.pop_front().unwrap_or_default();
            self.step(node, pass, step, pulls, &mut sums)?;
        }
        while let Some(pushed) = self.pushed.pop_front() {
            node.worker.wait(pushed)?;
        }
        Ok(sums)
    }

    /// Pulls what a step reads, for each part that still has one.
    fn pull(
        &mut self,
        node: &mut WorkerNode,
        pass: u64,
        step: u64,
        ahead: u64,
    ) -> caravan_kv::Result<Vec<Option<Pulling>>> {
        let mut pulls = Vec::with_capacity(self.trainers.len());
        for trainer in &self.trainers {
            let has_step = step < trainer.steps();
            let keys = if has_step { trainer.keys(pass, step) } else { Vec::new() };
            // Announcements say that there are no keys, too.
            pulls.push(match has_step && (self.ahead > 0 || !keys.is_empty()) {
                true => {
                    let timestamp = match T::READS {
                        true => {
                            self.seen.add(&keys);
                            Some(node.worker.pull_ahead(self.table, ahead, &keys)?)
                        }
                        false => None,
                    };
                    Some(Pulling { keys, timestamp })
                }
                false => None,
            });
        }
        Ok(pulls)
    }

    /// Takes a step of each part; the last push ends the iteration.
    fn step(
        &mut self,
        node: &mut WorkerNode,
        pass: u64,
        step: u64,
        pulls: Vec<Option<Pulling>>,
        sums: &mut Sums,
    ) -> caravan_kv::Result<()> {
        let worker = &mut node.worker;
        let last =
            pulls.iter().rposition(|pull| pull.as_ref().is_some_and(|it| !it.keys.is_empty()));
        let mut is_ended = false;
        for (part, pull) in pulls.into_iter().enumerate() {
            let Some(Pulling { keys, timestamp }) = pull else { continue };
            let answer = timestamp.map_or_else(|| Ok(Answer::default()), |it| worker.wait(it))?;
            let rows = answer.values::<T::Value>();
            let mut taken = Step::new(pass, step, &keys, rows, self.width);
            self.trainers[part].step(&mut taken);
            sums.add_step(&taken);
            let (keys, values) = taken.pushed();
            if keys.is_empty() {
                continue;
            }
            is_ended = Some(part) == last;
            self.pushed.push_back(match is_ended {
                true => worker.push_last(self.table, keys, values)?,
                false => worker.push(self.table, keys, values)?,
            });
        }
        if !is_ended {
            self.pushed.push_back(worker.advance(self.table)?);
        }
        // Pushes of this iteration may wait for other workers.
        while self.pushed.len() > PUSHES_MAX * self.trainers.len().max(1) {
            self.pushed.pop_front().map_or(Ok(()), |pushed| worker.wait(pushed).map(drop))?;
        }
        Ok(())
    }
}

/// Keys that were read, each once.
#[derive(Default)]
pub(super) struct Seen {
    /// The first `sorted` ascend.
    keys: Vec<u64>,
    sorted: usize,
}

impl Seen {
    pub(super) fn add(&mut self, keys: &[u64]) {
        let known = &self.keys[..self.sorted];
        let new: Vec<u64> =
            keys.iter().copied().filter(|key| known.binary_search(key).is_err()).collect();
        self.keys.extend(new);
        if self.keys.len() > 2 * self.sorted + 1024 {
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.keys.sort_unstable();
        self.keys.dedup();
        self.sorted = self.keys.len();
    }

    pub(super) fn keys(&mut self) -> &[u64] {
        self.sort();
        &self.keys
    }
}
