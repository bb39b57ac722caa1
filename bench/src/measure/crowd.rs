//! Many workers at a time: all stream their own small requests for the same time. The figures are
//! the sum of their rates and how far the slowest worker falls behind.
//!
//! Every worker has one key in a table of its own. The keys are spread over the server threads, so
//! each thread serves many lanes. Every pull is compared, and so is the last push, by a pull at the
//! end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caravan_kv::{App, ClusterConfig, TableSpec, ValueType, WorkerNode};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::figures::milli;
use super::subject::{Op, Shape};

/// Tables of workers are numbered from here.
const TABLE_FIRST: u32 = 1 << 16;

/// Share of the time that does not count: until all workers have begun.
const WARM_UP: f64 = 0.2;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct CrowdTask {
    /// Of its requests, which have one key.
    pub(crate) shape: Shape,
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
pub(crate) struct Crowd {
    pub(crate) workers: usize,
    pub(crate) servers: usize,
    pub(crate) threads: usize,
    /// Rate of the slowest worker against the mean.
    pub(crate) slowest_over_mean: f64,
}

impl Crowd {
    /// For the end of a line.
    pub(super) fn text(self) -> String {
        let Crowd { workers, servers, threads, slowest_over_mean: slowest } = self;
        format!(
            "  {workers} workers, {servers} servers x {threads} threads; \
             slowest over mean {slowest:.2}"
        )
    }
}

/// The figures of many workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CrowdRate {
    pub(crate) crowd: Crowd,
    /// Of all together.
    pub(crate) mmsg_per_s: f64,
    pub(crate) wrong: u64,
}

/// Puts the workers' answers together.
pub(crate) fn sum_up(config: &ClusterConfig, answers: Vec<Value>) -> Result<CrowdRate> {
    ensure!(!answers.is_empty(), "no worker answered");
    let shares: Vec<Share> =
        answers.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
    let rate = |share: &Share| share.requests as f64 / share.seconds.max(1e-9) / 1e6;
    let total: f64 = shares.iter().map(rate).sum();
    let slowest = shares.iter().map(rate).fold(f64::INFINITY, f64::min);
    let crowd = Crowd {
        workers: shares.len(),
        servers: config.servers,
        threads: config.threads,
        slowest_over_mean: milli(slowest * shares.len() as f64 / total.max(1e-9)),
    };
    let wrong = shares.iter().map(|share| share.wrong).sum();
    Ok(CrowdRate { crowd, mmsg_per_s: total, wrong })
}

/// The worker's side.
pub(crate) struct Crowded;

impl Crowded {
    pub(crate) const NAME: &str = "bench-crowd";
}

impl App for Crowded {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let streamed = serde_json::from_value(body)
            .map_err(anyhow::Error::from)
            .and_then(|task| Ok(serde_json::to_value(stream(node, task)?)?));
        streamed.map_err(|error| format!("{error:#}"))
    }
}

/// Streams for the time of the task, with the shape's window in flight.
fn stream(node: &mut WorkerNode, task: CrowdTask) -> Result<Share> {
    let CrowdTask { shape: Shape { op, bytes, window, .. }, seconds, number } = task;
    let width = bytes / size_of::<f32>();
    let id = TABLE_FIRST + node.rank as u32 * 64 + (width as u32).ilog2();
    let key = KeyRange::ALL.cut(node.workers).nth(node.rank).context("a part a worker")?.begin();
    let spec =
        TableSpec::new(id, &format!("crowd {} x {width}", node.rank), ValueType::F32, width as u32);
    let table = node.worker.create_table(&spec.handle("assign"))?;
    let mut values: Vec<f32> = (0..width).map(|at| (node.rank * 1000 + at) as f32).collect();
    let first = node.worker.push(table, &[key], &values)?;
    node.worker.wait(first)?;
    node.barrier(&format!("crowd {number}"))?;

    let worker = &mut node.worker;
    let mut in_flight = VecDeque::with_capacity(window);
    let mut requests = 0;
    let mut wrong = 0;
    let began = Instant::now();
    let counts_from = began + Duration::from_secs_f64(seconds * WARM_UP);
    let ends = began + Duration::from_secs_f64(seconds);
    let mut now = began;
    let mut counted_from = None;
    while now < ends {
        for _ in 0..window {
            if in_flight.len() == window
                && let Some(oldest) = in_flight.pop_front()
            {
                let answer = worker.wait(oldest)?;
                wrong += u64::from(!op.pushes() && answer.values::<f32>() != values);
                requests += u64::from(counted_from.is_some());
            }
            if op.pushes() {
                values[0] += 1.0;
            }
            in_flight.push_back(match op {
                Op::Push => worker.push(table, &[key], &values)?,
                Op::Pull | Op::PullLent => worker.pull(table, &[key])?,
                Op::PushPull => worker.push_pull(table, &[key], &values)?,
            });
        }
        now = Instant::now();
        if now >= counts_from {
            counted_from.get_or_insert(now);
        }
    }
    let seconds = now.duration_since(counted_from.unwrap_or(began)).as_secs_f64();
    for timestamp in in_flight {
        worker.wait(timestamp)?;
    }
    let last = worker.pull(table, &[key])?;
    wrong += u64::from(worker.wait(last)?.values::<f32>() != values);
    Ok(Share { requests, seconds, wrong })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_held_against_the_mean() {
        let share = |requests| Share { requests, seconds: 2.0, wrong: 1 };
        let answers =
            [1_000_000, 3_000_000].map(|requests| serde_json::to_value(share(requests)).unwrap());
        let CrowdRate { crowd, mmsg_per_s, wrong } =
            sum_up(&ClusterConfig::default(), answers.into()).unwrap();
        assert_eq!((crowd.workers, crowd.slowest_over_mean), (2, 0.5));
        assert_eq!((mmsg_per_s, wrong), (2.0, 2));
        assert!(sum_up(&ClusterConfig::default(), Vec::new()).is_err());
    }
}
