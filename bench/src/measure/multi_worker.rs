//! Many workers at a time: all stream their own requests for the same time. The figures are the sum
//! of their rates and how far the slowest worker falls behind.
//!
//! Every worker has tables of its own. Their keys are spread over the server threads, so each
//! thread serves many lanes. Answers are checked as those of one worker are.

use std::time::Instant;

use anyhow::{Result, ensure};
use caravan_kv::{App, ClusterConfig, Worker, WorkerNode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::answered;
use super::figures::milli;
use super::requests::{Requests, Tables};
use super::subject::{Copies, Shape, Subject};

/// Share of the time that does not count: until all workers have begun.
const WARM_UP: f64 = 0.2;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct MultiWorkerTask {
    /// Of its requests.
    pub(crate) shape: Shape,
    pub(crate) key_cache: bool,
    pub(crate) copies: Copies,
    pub(crate) seconds: f64,
    /// Number of the task in this run, which names its barrier.
    pub(crate) number: usize,
}

/// What a worker answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Share {
    requests: u64,
    seconds: f64,
    wrong: u64,
}

/// Further fields of a row of many workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Workers {
    pub(crate) workers: usize,
    pub(crate) servers: usize,
    pub(crate) threads: usize,
    /// Rate of the slowest worker against the mean.
    pub(crate) slowest_over_mean: f64,
}

impl Workers {
    /// For the end of a line.
    pub(super) fn text(self) -> String {
        let Workers { workers, servers, threads, slowest_over_mean: slowest } = self;
        format!(
            "  {workers} workers, {servers} servers x {threads} threads; \
             slowest over mean {slowest:.2}"
        )
    }
}

/// The figures of many workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MultiWorkerRate {
    pub(crate) crowd: Workers,
    /// Of all together.
    pub(crate) mmsg_per_s: f64,
    pub(crate) wrong: u64,
}

/// Puts the workers' answers together.
pub(crate) fn sum_up(config: &ClusterConfig, answers: Vec<Value>) -> Result<MultiWorkerRate> {
    ensure!(!answers.is_empty(), "no worker answered");
    let shares: Vec<Share> =
        answers.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
    let rate = |share: &Share| share.requests as f64 / share.seconds.max(1e-9) / 1e6;
    let total: f64 = shares.iter().map(rate).sum();
    let slowest = shares.iter().map(rate).fold(f64::INFINITY, f64::min);
    let crowd = Workers {
        workers: shares.len(),
        servers: config.servers,
        threads: config.threads,
        slowest_over_mean: milli(slowest * shares.len() as f64 / total.max(1e-9)),
    };
    let wrong = shares.iter().map(|share| share.wrong).sum();
    Ok(MultiWorkerRate { crowd, mmsg_per_s: total, wrong })
}

/// The worker's side.
#[derive(Default)]
pub(crate) struct MultiWorker {
    tables: Tables,
}

impl MultiWorker {
    pub(crate) const NAME: &str = "bench-crowd";

    /// Streams for the time of the task, with the shape's window in flight.
    fn stream(&mut self, node: &mut WorkerNode, task: MultiWorkerTask) -> Result<Share> {
        let MultiWorkerTask { shape, key_cache, copies, seconds, number } = task;
        let (rank, workers) = (node.rank, node.workers);
        let eager_bytes = node.config.eager_bytes;
        let requests = self.requests(&mut node.worker, eager_bytes, rank, workers);
        requests.copies(copies).prepare(shape)?;
        node.barrier(&format!("crowd {number}"))?;
        let requests = self.requests(&mut node.worker, eager_bytes, rank, workers);
        let mut requests = requests.key_cache(key_cache).copies(copies);
        requests.prepare(shape)?;
        stream(&mut requests, shape, seconds)
    }

    fn requests<'a>(
        &'a mut self,
        worker: &'a mut Worker,
        eager_bytes: usize,
        rank: usize,
        workers: usize,
    ) -> Requests<'a> {
        Requests::new(worker, &mut self.tables, eager_bytes).of_worker(rank, workers)
    }
}

impl App for MultiWorker {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        answered(body, |task| self.stream(node, task))
    }
}

/// Streams in batches of which each takes a share of the time, since the window runs empty at the
/// end of one.
fn stream(subject: &mut dyn Subject, shape: Shape, seconds: f64) -> Result<Share> {
    let began = Instant::now();
    let batch_min = 4 * shape.window.max(1) as u64;
    let mut batch = batch_min;
    let mut share = Share { requests: 0, seconds: 0.0, wrong: 0 };
    while began.elapsed().as_secs_f64() < seconds || share.requests == 0 {
        let from = Instant::now();
        let counts = from.duration_since(began).as_secs_f64() >= seconds * WARM_UP;
        subject.stream(batch)?;
        let took = from.elapsed().as_secs_f64();
        if counts {
            share.requests += batch;
            share.seconds += took;
        }
        let grows = seconds * BATCH_SHARE / took.max(1e-9);
        batch = ((batch as f64 * grows.min(2.0)) as u64).max(batch_min);
    }
    share.wrong = subject.settle()?;
    Ok(share)
}

/// Share of the time that a batch takes.
const BATCH_SHARE: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::mock::{Mock, Slow};
    use crate::measure::subject::Op;

    #[test]
    fn batches_fill_the_time() {
        let shape = Shape { op: Op::Pull, keys: 1, bytes: 8, window: 2 };
        let mut mock = Slow(Mock { wrong_settle: 3, ..Mock::default() });
        let share = stream(&mut mock, shape, 0.05).unwrap();
        assert!(share.requests < mock.0.requests && share.requests > 0, "{share:?}");
        assert!(share.wrong == 3, "{share:?}");
    }

    #[test]
    fn the_slowest_is_held_against_the_mean() {
        let share = |requests| Share { requests, seconds: 2.0, wrong: 1 };
        let answers =
            [1_000_000, 3_000_000].map(|requests| serde_json::to_value(share(requests)).unwrap());
        let MultiWorkerRate { crowd, mmsg_per_s, wrong } =
            sum_up(&ClusterConfig::default(), answers.into()).unwrap();
        assert_eq!((crowd.workers, crowd.slowest_over_mean), (2, 0.5));
        assert_eq!((mmsg_per_s, wrong), (2.0, 2));
        assert!(sum_up(&ClusterConfig::default(), Vec::new()).is_err());
    }
}
