//! The worker's side of `caravan bench wait`: requests as a scene has them come.

use std::time::{Duration, Instant};

use anyhow::Result;
use caravan_kv::{App, WorkerNode};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::floor::place;
use crate::measure::answers::answered;
use crate::measure::figures::quantile_us;
use crate::measure::latency::Timed;
use crate::measure::requests::{Requests, Tables};
use crate::measure::subject::{Op, Shape, Subject};

/// Where the two sides run, and when requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scene {
    /// One request in flight, a core for each side.
    TwoCores,
    /// One request in flight, both sides on the same core.
    OneCore,
    /// A core for each side; [`BURST`] requests one after the other, then nothing for 5 to 50 ms.
    Bursts,
}

/// Requests a burst.
pub(super) const BURST: u64 = 32;

/// Idle times between bursts, in ms, taken in turn.
const GAPS_MS: [u64; 6] = [5, 33, 12, 50, 8, 21];

/// How long a scene lasts at most: spinning on a shared core takes milliseconds a request.
const TIME_MAX: Duration = Duration::from_millis(1500);

const SHAPE: Shape = Shape { op: Op::Push, keys: 1, bytes: 8, window: 1 };

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) scene: Scene,
    pub(super) requests: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) van: String,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// With those that were not timed.
    pub(super) requests: u64,
    pub(super) wrong: u64,
    /// The launching side adds this.
    pub(super) cpu_us_per_msg: f64,
}

#[derive(Default)]
pub(crate) struct Waits {
    tables: Tables,
}

impl Waits {
    pub(crate) const NAME: &str = "bench-wait";

    fn measure(&mut self, node: &mut WorkerNode, task: Task) -> Result<Measured> {
        let seat = match task.scene {
            Scene::OneCore => place::SERVER,
            Scene::TwoCores | Scene::Bursts => node.worker.info().servers(),
        };
        place::pin(seat, &node.config);
        node.worker.admin().open_connections()?;
        let van = node.worker.info().van();
        let mut subject =
            Requests::new(&mut node.worker, &mut self.tables, node.config.eager_bytes);
        subject.prepare(SHAPE)?;
        Ok(Measured { van, ..drive(&mut subject, task)? })
    }
}

impl App for Waits {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        answered(body, |task| self.measure(node, task))
    }
}

/// Makes the task's requests, or as many as time allows.
fn drive(subject: &mut dyn Subject, task: Task) -> Result<Measured> {
    let mut timed = Timed::default();
    for _ in 0..2 {
        subject.once()?;
        timed.wrong += subject.check()?;
    }
    let began = Instant::now();
    let mut gaps = GAPS_MS.iter().cycle();
    for number in 0..task.requests {
        if began.elapsed() > TIME_MAX {
            break;
        }
        if task.scene == Scene::Bursts && number % BURST == 0 {
            let gap_ms = *gaps.next().expect("a cycle has no end");
            std::thread::sleep(Duration::from_millis(gap_ms));
        }
        timed.request(subject)?;
    }
    Ok(Measured {
        wrong: timed.wrong + subject.settle()?,
        requests: timed.nanos.len() + 3,
        p50_us: quantile_us(&timed.nanos, 0.5),
        p99_us: quantile_us(&timed.nanos, 0.99),
        ..Measured::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::mock::Mock;

    #[test]
    fn every_scene_counts_its_requests() {
        for scene in Scene::value_variants() {
            let task = Task { scene: *scene, requests: BURST };
            let measured = drive(&mut Mock::default(), task).unwrap();
            assert_eq!((measured.requests, measured.wrong), (BURST + 3, 0));
            assert!(measured.p50_us <= measured.p99_us);
        }
        let mut wrong = Mock { wrong_check: 1, ..Mock::default() };
        let task = Task { scene: Scene::TwoCores, requests: 5 };
        assert_eq!(drive(&mut wrong, task).unwrap().wrong, 7);
    }
}
