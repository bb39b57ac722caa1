//! The worker's side: trains its parts pass by pass.

use std::collections::VecDeque;

use caravan_kv::consistency::Model;
use caravan_kv::error::with_sources;
use caravan_kv::node::is_simulated;
use caravan_kv::{Answer, App, Error, Table, TableSpec, Timestamp, Worker, WorkerNode};
use caravan_van::Counters;
use serde::{Deserialize, Serialize};

use super::diverged;
use super::feed::{self, Feed, Sight};
use super::{Hint, Part, Reading, RowsOf, Step, Sums, Trainer, local, parts_of};
use crate::data::Second;
use crate::data_root::DataRoot;

/// An order of the driver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order<S> {
    /// Load your parts and join the table. Answered with [`Loaded`].
    Load { settings: S, table: Box<TableSpec>, parts: usize, reading: Reading },
    /// Load all parts, and keep the model as the hint says. Answered with [`Loaded`].
    Local { settings: S, hint: Hint, model: Model, parts: usize },
    /// Push the model that is kept here. Answered with its keys.
    Publish,
    /// Train a pass of so many steps, or to the end of the rows that come. Answered with
    /// [`Passed`].
    Pass { pass: u64, steps: Option<u64> },
    /// Take part again, from this iteration on.
    Rejoin { clock: u64 },
    /// Answered with the keys that you have read so far.
    Keys,
}

/// What a worker knows before the first pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Loaded {
    /// Steps of a pass, unless rows are still to come.
    pub(super) steps: Option<u64>,
    /// What it sees of the files of which it is given blocks.
    pub(super) sights: Vec<Result<Sight, String>>,
}

/// What a worker has done in a pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Passed {
    pub(super) sums: Sums,
    /// Steps of its parts.
    pub(super) steps: u64,
    /// The iteration in which it has left the table, because others have more steps.
    pub(super) left: Option<u64>,
    /// How its rows write the second class, where others cannot know.
    pub(super) second: Option<Second>,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
}

/// What a worker adds up.
pub(super) const LOSSES: &str = "the sum of losses";

/// Pushes of a part that may be on the way.
const PUSHES_MAX: usize = 4;

/// A worker's parts.
pub(super) struct Task<T: Trainer> {
    training: Option<Training<T>>,
    local: Option<Local<T>>,
}

/// All parts, with their model, in one worker.
struct Local<T: Trainer> {
    trained: local::Trained<T>,
    /// What had been sent and received before.
    before: Counters,
}

impl<T: Trainer> Default for Task<T> {
    fn default() -> Self {
        Task { training: None, local: None }
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
    /// Rows of a step, if rows come.
    rows_of_step: u64,
    /// Rows that are still to come.
    feed: Option<Feed>,
    /// Steps of a pass, once they are known.
    steps: Option<u64>,
    /// Whether nobody knows the steps of other workers.
    leaves: bool,
    /// How the rows of blocks that were given to this worker write the second class.
    second: Option<Second>,
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
            Order::Load { settings, table, parts, reading } => {
                (self.training, self.local) = (None, None);
                let training = Training::<T>::load(node, &settings, &table, (parts, reading))?;
                let sights = match (reading, T::rows_of(&settings)) {
                    (Reading::Near(_), Some(RowsOf { files, .. })) => {
                        feed::sights(&DataRoot::of(&node.config)?, files)
                    }
                    _ => Vec::new(),
                };
                let steps = training.feed.is_none().then(|| training.own_steps());
                self.training = Some(training);
                serde_json::to_value(Loaded { steps, sights })
            }
            Order::Local { settings, hint, model, parts } => {
                let root = DataRoot::of(&node.config)?;
                let trained = local::Trained::<T>::load(&settings, hint, model, (parts, &root))?;
                let steps = Some(trained.steps());
                self.local = Some(Local { trained, before: node.worker.info().counters() });
                serde_json::to_value(Loaded { steps, sights: Vec::new() })
            }
            Order::Publish => {
                let local = self.local.as_mut().ok_or("there is no model: load first")?;
                let published = local.trained.publish(&mut node.worker);
                serde_json::to_value(published.map_err(|error| with_sources(&error))?)
            }
            Order::Pass { pass, .. } if self.local.is_some() => {
                let local = self.local.as_mut().ok_or("load first")?;
                let sums = local
                    .trained
                    .pass(pass)
                    .and_then(|sums| diverged::check::<T>(pass, LOSSES, sums.loss).map(|()| sums));
                let sums = sums.map_err(|error| with_sources(&error))?;
                let (now, before) = (node.worker.info().counters(), local.before);
                let bytes_sent = now.bytes_sent - before.bytes_sent;
                let bytes_received = now.bytes_received - before.bytes_received;
                let (steps, left, second) = (local.trained.steps(), None, None);
                let passed = Passed { sums, steps, left, second, bytes_sent, bytes_received };
                serde_json::to_value(passed)
            }
            Order::Pass { pass, steps } => {
                let training = self.training()?;
                training.steps = steps.or(training.steps);
                let passed = training.pass(node, pass).and_then(|sums| {
                    diverged::check::<T>(pass, LOSSES, sums.loss)?;
                    let (steps, left) = (training.own_steps(), training.leave_early(node)?);
                    let second = training.second.clone();
                    let Counters { bytes_sent, bytes_received, .. } = node.worker.info().counters();
                    Ok(Passed { sums, steps, left, second, bytes_sent, bytes_received })
                });
                let passed = passed.map_err(|error| {
                    training.give_up(node);
                    with_sources(&error)
                });
                serde_json::to_value(passed?)
            }
            Order::Rejoin { clock } => {
                let table = self.training()?.table;
                let joined = node.worker.clocks(table).rejoin(clock);
                serde_json::to_value(joined.map_err(|error| with_sources(&error))?)
            }
            Order::Keys => serde_json::to_value(self.training()?.seen.keys()),
        };
        answer.map_err(text)
    }
}

impl<T: Trainer> Task<T> {
    fn training(&mut self) -> Result<&mut Training<T>, String> {
        self.training.as_mut().ok_or_else(|| "there is nothing to train on: load first".to_owned())
    }
}

impl<T: Trainer> Training<T> {
    fn load(
        node: &mut WorkerNode,
        settings: &T::Settings,
        spec: &TableSpec,
        (parts, reading): (usize, Reading),
    ) -> Result<Self, String> {
        let load = |number| {
            let root = DataRoot::of(&node.config)?;
            T::load(settings, &Part { number, parts, root })
        };
        let own = parts_of(node.rank, node.workers, parts);
        let mut trainers: Vec<T> = own.clone().map(load).collect::<Result<_, _>>()?;
        let rows = T::rows_of(settings);
        let feed = rows.map(|rows| Feed::start(node, rows, reading, (own, parts)));
        let mut feed = feed.transpose()?;
        if reading == Reading::First
            && let Some(mut feed) = feed.take()
        {
            while feed.give(node, &mut trainers, &|_| Ok(false))? {}
        }
        let worker = &mut node.worker;
        let joined = worker.admin().create_table(spec).and_then(|table| {
            worker.clocks(table).join()?;
            Ok(table)
        });
        let table = joined.map_err(|error| with_sources(&error))?;
        let ahead = match spec.consistency.map(|it| it.model) {
            Some(Model::SparseSsp { speculation, .. }) => speculation,
            _ => 0,
        };
        let width = spec.width as usize;
        let (seen, pushed) = Default::default();
        Ok(Training {
            table,
            width,
            trainers,
            ahead,
            seen,
            pushed,
            rows_of_step: rows.map_or(1, |rows| rows.step as u64),
            leaves: matches!(feed, Some(Feed::Given(_))),
            feed,
            steps: None,
            second: None,
        })
    }

    /// Steps of a pass over the rows of this worker.
    fn own_steps(&self) -> u64 {
        self.trainers.iter().map(Trainer::steps).max().unwrap_or(0)
    }

    /// Whether a pass has this step. Reads on until that is known, and the rows of the step are
    /// there.
    fn has_step(&mut self, node: &mut WorkerNode, step: u64) -> caravan_kv::Result<bool> {
        let pushed = &self.pushed;
        let sends = |node: &mut WorkerNode| send_on(&mut node.worker, pushed);
        while let Some(feed) = &mut self.feed
            && self.trainers.iter().any(|trainer| trainer.steps() <= step)
        {
            if feed.give(node, &mut self.trainers, &sends).map_err(Error::Config)? {
                continue;
            }
            // All workers make as many steps as the one with the largest part.
            self.second = feed.second();
            let rows = feed.rows_of_largest();
            let steps = rows.map(|rows| rows.div_ceil(self.rows_of_step));
            self.steps = Some(steps.unwrap_or_else(|| self.own_steps()));
            self.feed = None;
        }
        Ok(self.steps.is_none_or(|steps| step < steps))
    }

    /// Leaves the table where other workers have more steps, so that they need not wait for this
    /// one; returns its iteration.
    fn leave_early(&mut self, node: &mut WorkerNode) -> caravan_kv::Result<Option<u64>> {
        if !std::mem::take(&mut self.leaves) {
            return Ok(None);
        }
        let clock = node.worker.clocks(self.table).iteration()?;
        let left = node.worker.clocks(self.table).leave()?;
        node.worker.wait(left)?;
        Ok(Some(clock))
    }

    /// Leaves the table after an error, so that the others can end their pass.
    fn give_up(&mut self, node: &mut WorkerNode) {
        let left = node.worker.clocks(self.table).leave().and_then(|left| node.worker.wait(left));
        // The error that made this worker give up is the one to report.
        drop(left);
    }

    /// Trains a pass, and waits until the servers have all that it has pushed.
    fn pass(&mut self, node: &mut WorkerNode, pass: u64) -> caravan_kv::Result<Sums> {
        let mut sums = Sums::default();
        let mut pulling = VecDeque::new();
        let mut announced = 0;
        let mut step = 0;
        while self.has_step(node, step)? {
            while announced <= step + self.ahead && self.has_step(node, announced)? {
                pulling.push_back(self.pull(node, pass, announced, announced - step)?);
                announced += 1;
            }
            let pulls = pulling.pop_front().unwrap_or_default();
            self.step(node, pass, step, pulls, &mut sums)?;
            step += 1;
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
                            Some(node.worker.clocks(self.table).pull_ahead(ahead, &keys)?)
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
                true => worker.clocks(self.table).push_last(keys, values)?,
                false => worker.push(self.table, keys, values)?,
            });
        }
        if !is_ended {
            self.pushed.push_back(worker.clocks(self.table).advance()?);
        }
        // Pushes of this iteration may wait for other workers.
        while self.pushed.len() > PUSHES_MAX * self.trainers.len().max(1) {
            self.pushed.pop_front().map_or(Ok(()), |pushed| worker.wait(pushed).map(drop))?;
        }
        Ok(())
    }
}

/// Goes on with what is on the way to the servers, which a worker does only when it is called;
/// returns whether some push has not been answered. In simulated time none is answered meanwhile:
/// it stands still while a thread reads.
fn send_on(worker: &mut Worker, pushed: &VecDeque<Timestamp>) -> caravan_kv::Result<bool> {
    while worker.poll()? {}
    if is_simulated() {
        return Ok(false);
    }
    for timestamp in pushed {
        if !worker.is_done(*timestamp)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Keys that were read.
#[derive(Default)]
pub(super) struct Seen {
    /// The first `sorted` ascend, each once; those behind them are as they came.
    keys: Vec<u64>,
    sorted: usize,
}

impl Seen {
    pub(super) fn add(&mut self, keys: &[u64]) {
        // Keys that come again are found by the next sort, at less cost than by a search for each.
        self.keys.extend_from_slice(keys);
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
