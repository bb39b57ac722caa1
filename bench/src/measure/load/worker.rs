//! The worker's side of `caravan bench load`: its part of the requests, to a table that all workers
//! share.
//!
//! A push adds 1 to every value of its keys. So the values of a key are always equal, which every
//! pull checks, and at the end the table holds as many ones as all workers have pushed, which
//! worker 0 adds up: a push that was lost or applied twice shows.

use std::time::Duration;

use anyhow::{Context, Result};
use caravan_kv::filter::Draws;
use caravan_kv::{App, Table, TableSpec, Timestamp, ValueType, Worker, WorkerNode};
use caravan_van::{Buffer, KeyRange, Shared, Value as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::drive::{Driven, Finished, KINDS, Limits, Service, drive};
use super::schedule::{Arrivals, Schedule};
use crate::measure::answers::answered;
use crate::measure::figures::encoded;
use crate::measure::keys::{Lists, Named, NewKeys};
use crate::measure::requests::{KEY_GAP, SHARED_BYTES_MIN, scattered};

/// One run of all workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// Number of the task, which names its barriers.
    pub(super) number: usize,
    /// Number of the table.
    pub(super) table: u32,
    pub(super) table_keys: u64,
    /// Exponent of the keys' popularity; `None` if each push names new keys.
    pub(super) zipf: Option<f64>,
    /// Keys of a request.
    pub(super) keys: usize,
    /// Values of a request, in bytes.
    pub(super) bytes: usize,
    /// Share of pushes; the others pull.
    pub(super) pushes: f64,
    /// Requests a second of all workers; a closed loop if `None`.
    pub(super) rate: Option<f64>,
    pub(super) arrivals: Arrivals,
    pub(super) window: usize,
    pub(super) seconds: f64,
    pub(super) seed: u64,
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) van: String,
    /// Of pushes and of pulls.
    pub(super) kinds: [KindPart; KINDS],
    pub(super) seconds: f64,
    pub(super) late: String,
    pub(super) unsent: u64,
    /// Pushes, counted or not.
    pub(super) pushed: u64,
    /// Worker 0: the sum of all values of the table, modulo 2^32. If each push names new keys, each
    /// worker: the sum of its own.
    pub(super) sum: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KindPart {
    pub(super) histogram: String,
    pub(super) wrong: u64,
}

pub(super) const PUSH: usize = 0;
pub(super) const PULL: usize = 1;

/// Share of the time that does not count: until all workers have begun.
const WARM_UP: f64 = 0.2;

/// Bytes of values of a request that fills or reads the table.
const SWEEP_BYTES: usize = 1 << 20;

pub(crate) struct Loads;

impl Loads {
    pub(crate) const NAME: &str = "bench-load";
}

impl App for Loads {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        answered(body, |task| part(node, &task))
    }
}

fn part(node: &mut WorkerNode, task: &Task) -> Result<Part> {
    let Task { number, rate, arrivals, seed, .. } = *task;
    let (rank, workers) = (node.rank, node.workers);
    let place = (rank, workers);
    let mut store = Store::new(&mut node.worker, task, place, node.config.eager_bytes)?;
    if task.zipf.is_some() {
        store.fill(&mut node.worker, rank, workers)?;
    }
    node.barrier(&format!("load {number} begins"))?;
    let schedule = Schedule::new(rate, arrivals, rank, workers, draws(seed, rank, TIMES));
    let seconds = Duration::from_secs_f64(task.seconds);
    let limits = Limits { warm_up: seconds.mul_f64(WARM_UP), seconds, window: task.window };
    let mut served = Served { worker: &mut node.worker, store: &mut store };
    let driven = drive(&mut served, schedule, limits)?;
    node.barrier(&format!("load {number} ends"))?;
    let sum = match task.zipf {
        Some(_) => {
            if rank == 0 {
                Some(store.sum(&mut node.worker)?)
            } else {
                None
            }
        }
        None => {
            let sum = store.sum_of_new(&mut node.worker)?;
            node.barrier(&format!("load {number} is added up"))?;
            store.drop(&mut node.worker)?;
            Some(sum)
        }
    };
    let Driven { kinds, seconds, late, unsent } = driven;
    let kinds = kinds.map(|kind| KindPart { histogram: encoded(&kind.nanos), wrong: kind.wrong });
    let van = node.worker.info().van();
    Ok(Part { van, kinds, seconds, late: encoded(&late), unsent, pushed: store.pushed, sum })
}

/// Streams of a worker's draws.
const TIMES: u64 = 0;
const LISTS: u64 = 1;
const PUSHES: u64 = 2;

fn draws(seed: u64, rank: usize, stream: u64) -> Draws {
    Draws::new(seed, rank as u64 * 3 + stream)
}

/// The table, and what a worker's requests to it are made of.
struct Store {
    table: Table,
    table_keys: u64,
    /// Values a key.
    width: usize,
    named: Named,
    /// What a push adds.
    ones: Shared,
    /// Memory for long answers.
    landing: Vec<Buffer>,
    is_long: bool,
    pushes: f64,
    draws: Draws,
    requests: u64,
    pushed: u64,
}

impl Store {
    fn new(
        worker: &mut Worker,
        task: &Task,
        (rank, workers): (usize, usize),
        eager_bytes: usize,
    ) -> Result<Store> {
        let Task { table, table_keys, zipf, keys, bytes, pushes, seed, .. } = *task;
        let width = bytes / size_of::<i32>() / keys;
        let range = KeyRange::new(0, table_keys * KEY_GAP).context("a table needs keys")?;
        let spec = TableSpec::new(table, &format!("load {table}"), ValueType::I32, width as u32);
        let table = worker.admin().create_table(&spec.keys(range))?;
        let mut ones = worker.memory().allocate(bytes)?;
        i32::view_mut(&mut ones).context("a whole number of values")?.fill(1);
        let named = match zipf {
            Some(zipf) => {
                Named::Drawn(Lists::draw(table_keys, zipf, keys, &mut draws(seed, rank, LISTS)))
            }
            None => Named::New(NewKeys::new(table_keys, keys, rank, workers)),
        };
        Ok(Store {
            table,
            table_keys,
            width,
            named,
            ones: ones.share(),
            landing: Vec::new(),
            is_long: bytes > eager_bytes,
            pushes,
            draws: draws(seed, rank, PUSHES),
            requests: 0,
            pushed: 0,
        })
    }

    /// Keys of a request that fills or reads the table.
    fn sweep(&self) -> u64 {
        (SWEEP_BYTES / (self.width * size_of::<i32>())).max(1) as u64
    }

    /// Makes this worker's part of the rows, so that no request has to.
    fn fill(&self, worker: &mut Worker, rank: usize, workers: usize) -> Result<()> {
        let part =
            |rank: usize| (u128::from(self.table_keys) * rank as u128 / workers as u128) as u64;
        let mut at = part(rank);
        let end = part(rank + 1);
        while at < end {
            let until = end.min(at + self.sweep());
            let keys: Vec<u64> = (at..until).map(scattered).collect();
            let timestamp =
                worker.push(self.table, &keys, &vec![0_i32; keys.len() * self.width])?;
            worker.wait(timestamp)?;
            at = until;
        }
        Ok(())
    }

    /// The sum of all values, modulo 2^32.
    fn sum(&self, worker: &mut Worker) -> Result<u32> {
        let mut sum = 0_u32;
        let mut at = 0;
        while at < self.table_keys {
            let until = self.table_keys.min(at + self.sweep());
            let keys: Vec<u64> = (at..until).map(scattered).collect();
            let timestamp = worker.pull(self.table, &keys)?;
            let answer = worker.wait(timestamp)?;
            sum = answer.values::<i32>().iter().fold(sum, |sum, v| sum.wrapping_add(*v as u32));
            at = until;
        }
        Ok(sum)
    }

    /// The sum of the values of the keys that this worker has pushed, modulo 2^32.
    fn sum_of_new(&mut self, worker: &mut Worker) -> Result<u32> {
        let mut sum = 0_u32;
        for number in 0..self.requests {
            let timestamp = worker.pull(self.table, self.named.of(number)?)?;
            let answer = worker.wait(timestamp)?;
            sum = answer.values::<i32>().iter().fold(sum, |sum, v| sum.wrapping_add(*v as u32));
        }
        Ok(sum)
    }

    /// Frees the rows for the next run.
    fn drop(&self, worker: &mut Worker) -> Result<()> {
        Ok(worker.admin().drop_table(self.table)?)
    }

    fn is_wrong(&self, values: &[i32]) -> bool {
        size_of_val(values) != self.ones.len()
            || values.chunks(self.width).any(|row| row[1..].iter().any(|value| *value != row[0]))
    }
}

/// A worker with its requests.
struct Served<'a> {
    worker: &'a mut Worker,
    store: &'a mut Store,
}

/// A request in flight.
struct Made {
    timestamp: Timestamp,
    kind: usize,
}

impl Service for Served<'_> {
    type Made = Made;

    fn now(&self) -> Duration {
        self.worker.now()
    }

    fn post(&mut self) -> Result<Made> {
        let worker = &mut *self.worker;
        let store = &mut *self.store;
        let Store { table, named, ones, landing, draws, requests, pushed, .. } = store;
        let keys = named.of(*requests)?;
        *requests += 1;
        if draws.next_unit() < store.pushes {
            *pushed += 1;
            let timestamp = if ones.len() >= SHARED_BYTES_MIN {
                worker.push_shared(*table, keys, ones)?
            } else {
                worker.push(*table, keys, i32::view(ones).context("a whole number of values")?)?
            };
            return Ok(Made { timestamp, kind: PUSH });
        }
        let timestamp = if store.is_long {
            let into = landing.pop().map_or_else(|| worker.memory().allocate(ones.len()), Ok)?;
            worker.pull_into(*table, keys, into)?
        } else {
            worker.pull(*table, keys)?
        };
        Ok(Made { timestamp, kind: PULL })
    }

    fn look(&mut self) -> Result<bool> {
        Ok(self.worker.poll()?)
    }

    fn is_done(&mut self, made: &Made) -> Result<bool> {
        Ok(self.worker.is_done(made.timestamp)?)
    }

    fn finish(&mut self, made: Made) -> Result<Finished> {
        let mut answer = self.worker.wait(made.timestamp)?;
        let is_wrong = made.kind == PULL && self.store.is_wrong(answer.values());
        if self.store.is_long
            && let Some(buffer) = answer.values.take()
        {
            self.store.landing.push(buffer);
        }
        Ok(Finished { kind: made.kind, is_wrong })
    }

    fn wait(&mut self, most: Duration) -> Result<()> {
        Ok(self.worker.sleep(most)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::cell::RefCell;
    use std::rc::Rc;

    use caravan_kv::node::Numa;
    use caravan_kv::{Apps, Cluster, ClusterConfig, Launch, NodeConfig, Target};
    use caravan_numa::HugePages;
    use caravan_van::sim::{Faults, Hosts, Network};

    use super::super::rates::Rate;
    use super::super::rows::Merged;
    use super::*;
    use crate::measure::figures::{decoded, nanoseconds, record};

    fn task(number: usize, rate: Option<f64>) -> Task {
        Task {
            number,
            table: 1,
            table_keys: 200,
            zipf: Some(1.05),
            keys: 3,
            bytes: 24,
            pushes: 0.5,
            rate,
            arrivals: Arrivals::Random,
            window: 4096,
            seconds: 0.1,
            seed: 7,
        }
    }

    /// Another generator of the same requests, made otherwise: one loop that sends by the clock,
    /// and callbacks that say which requests have their answers. Returns all times.
    fn other(node: &mut WorkerNode, task: &Task) -> Result<Value> {
        let (rank, workers) = (node.rank, node.workers);
        let place = (rank, workers);
        let mut store = Store::new(&mut node.worker, task, place, node.config.eager_bytes)?;
        store.fill(&mut node.worker, rank, workers)?;
        node.barrier(&format!("other {} begins", task.number))?;
        let stream = draws(task.seed, rank, TIMES);
        let mut times = Schedule::new(task.rate, task.arrivals, rank, workers, stream);
        let mut nanos = nanoseconds();
        let answered = Rc::new(RefCell::new(Vec::new()));
        let worker = &mut node.worker;
        let began = worker.now();
        let end = Duration::from_secs_f64(task.seconds);
        let mut in_flight = 0;
        let mut due = times.due(Duration::ZERO);
        while due < end || in_flight > 0 {
            let now = worker.now() - began;
            if due <= now && due < end {
                let made = Served { worker, store: &mut store }.post()?;
                let answered = answered.clone();
                let since = due;
                worker.then(
                    made.timestamp,
                    Box::new(move |_| answered.borrow_mut().push((made.timestamp, since))),
                )?;
                in_flight += 1;
                times.advance();
                due = times.due(Duration::ZERO);
            } else if !worker.poll()? {
                let most = if due < end { due - now } else { Duration::from_millis(1) };
                worker.sleep(most)?;
            }
            let now = worker.now() - began;
            for (timestamp, since) in answered.take() {
                in_flight -= 1;
                worker.wait(timestamp)?;
                if since.as_secs_f64() >= task.seconds * WARM_UP {
                    record(&mut nanos, now - since);
                }
            }
        }
        node.barrier(&format!("other {} ends", task.number))?;
        Ok(Value::String(encoded(&nanos)))
    }

    struct Other;

    impl App for Other {
        fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
            let task: Task = serde_json::from_value(body).unwrap();
            other(node, &task).map_err(|error| format!("{error:#}"))
        }
    }

    /// Goal: latencies of an open loop are right up to the tail, at 50, 80 and 95 % of what the
    /// servers can do. Method: four workers on simulated hosts, where a frame takes 5 µs of a
    /// processor; against another generator with the same due times, within 2 %.
    #[test]
    fn another_generator_finds_the_same_latencies() {
        let latency = Duration::from_micros(10)..=Duration::from_micros(10);
        let hosts = Hosts { overhead: Duration::from_micros(5), ..Hosts::default() };
        let network = Network::of_hosts(1, Faults { latency, ..Faults::none() }, hosts);
        let node = NodeConfig {
            huge_pages: HugePages::AsSystem,
            numa: Numa::Any,
            credits: 4096,
            join_timeout: Duration::from_secs(3600),
            heartbeat: Duration::from_secs(3600),
            ..NodeConfig::default()
        };
        let config = ClusterConfig { workers: 4, node, ..ClusterConfig::default() };
        let run = move |_: &Network| {
            let apps = Apps::default()
                .with(Loads::NAME, || Box::new(Loads))
                .with("other", || Box::new(Other));
            let launch = Launch::Simulated(crate::apps::handles(), apps);
            let mut cluster = Cluster::launch(&config, launch).unwrap();
            let mut ask = |app: &str, task: &Task| {
                let body = serde_json::to_value(task).unwrap();
                let id = cluster.submit(Target::Workers, app, &body).unwrap();
                cluster.wait(id).unwrap()
            };
            let mut pushed = 0;
            let closed = Task { window: 64, ..task(0, None) };
            let closed = Merged::of(ask(Loads::NAME, &closed), &closed, &mut pushed).unwrap();
            for (number, share) in [(1, 0.5), (2, 0.8), (3, 0.95)] {
                let rate = Rate::Share(share).per_second(Some(closed.per_second()));
                let task = task(number, rate);
                let merged = Merged::of(ask(Loads::NAME, &task), &task, &mut pushed).unwrap();
                assert_eq!(merged.wrong, [0, 0]);
                let found = merged.all();
                let mut expected = nanoseconds();
                for answer in ask("other", &Task { table: 2, ..task }) {
                    expected += decoded(answer.as_str().unwrap()).unwrap();
                }
                assert!(found.len() == expected.len() && found.len() > 3_000, "{}", found.len());
                for quantile in [0.5, 0.9, 0.99, 0.999] {
                    let [found, expected] =
                        [&found, &expected].map(|times| times.value_at_quantile(quantile));
                    let apart = found.abs_diff(expected) as f64 / expected as f64;
                    assert!(apart < 0.02, "{share}, {quantile}: {found} and {expected}");
                }
            }
            cluster.shutdown().unwrap();
        };
        network.spawn("scheduler", run).join().unwrap();
    }
}
