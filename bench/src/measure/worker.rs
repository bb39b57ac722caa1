//! The worker's side of `caravan bench`: worker 0 measures one task against its own floor and
//! answers with the row.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use caravan_kv::node::address_over;
use caravan_kv::{App, Worker, WorkerNode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::answered;
use super::latency::{self, Latency};
use super::requests::{Requests, Tables};
use super::streams::{self, Bandwidth, Rate};
use super::subject::{Bench, Effort, Slower, Subject, Task, timed_stream};
use crate::floor;
use crate::floor::place;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) row: MeasuredRow,
    /// What a reader should doubt.
    pub(super) warnings: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum MeasuredRow {
    Latency(Latency),
    Bandwidth(Bandwidth),
    Rate(Rate),
}

impl MeasuredRow {
    fn ports(&mut self) -> &mut Vec<String> {
        match self {
            MeasuredRow::Latency(row) => &mut row.ports,
            MeasuredRow::Bandwidth(row) => &mut row.ports,
            MeasuredRow::Rate(row) => &mut row.ports,
        }
    }
}

/// The ports that a worker's lanes go over, each once.
fn ports(worker: &Worker) -> Vec<String> {
    let ports = worker.info().ports().into_iter().flatten().map(str::to_owned);
    ports.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Measures the tasks of a run.
#[derive(Default)]
pub(crate) struct Measure {
    floor: Option<Box<dyn Subject>>,
    /// What a reader should doubt of it.
    doubt: Option<String>,
    tables: Tables,
}

impl Measure {
    pub(crate) const NAME: &str = "bench";

    fn measure(&mut self, node: &mut WorkerNode, task: &Task) -> Result<Measured> {
        node.worker.admin().open_connections()?; // else a mixed cluster has no van to name
        let van = node.worker.info().van();
        let floor = match &mut self.floor {
            Some(floor) => floor,
            none => {
                let server = node.worker.info().addresses().next();
                let server = server.context("a worker has a server")?;
                let van = node.worker.info().vans()[0].context("the server's lane has broken")?;
                let at = address_over(&server.address, van).to_owned();
                let (floor, doubt) = floor::spawn(van, &node.config, &at)?;
                self.doubt = doubt;
                let floor = none.insert(floor);
                if node.config.pin {
                    place::pin(node.worker.info().servers(), &node.config);
                }
                floor
            }
        };
        let ports = ports(&node.worker);
        let mut subject =
            Requests::new(&mut node.worker, &mut self.tables, node.config.eager_bytes)
                .key_cache(task.key_cache)
                .copies(task.copies);
        let percent = task.slower_percent;
        let mut slower = Slower { subject: &mut subject, percent };
        let subject: &mut dyn Subject = if percent == 0 { slower.subject } else { &mut slower };
        let mut measured = measure(&van, task, &mut **floor, subject)?;
        *measured.row.ports() = ports;
        measured.warnings.extend(self.doubt.clone());
        Ok(measured)
    }
}

impl App for Measure {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        answered(body, |task| self.measure(node, &task))
    }
}

fn measure(
    van: &str,
    task: &Task,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
) -> Result<Measured> {
    let task = &match task.lasts {
        Some(lasts) => Task { effort: effort_for(lasts, task, floor, subject)?, ..*task },
        None => *task,
    };
    if task.bench == Bench::Latency {
        let (row, warnings) = latency::measure(van, task, floor, subject)?;
        return Ok(Measured { row: MeasuredRow::Latency(row), warnings });
    }
    let streams = streams::measure(task, floor, subject)?;
    let row = match task.bench {
        Bench::Bandwidth => MeasuredRow::Bandwidth(streams::bandwidth(van, task, &streams)),
        _ => MeasuredRow::Rate(streams::rate(van, task, &streams)),
    };
    Ok(Measured { row, warnings: streams.warnings })
}

/// How many requests make a row last so long, its floor and its rounds to warm up included.
fn effort_for(
    lasts: Duration,
    task: &Task,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
) -> Result<Effort> {
    floor.prepare(task.shape)?;
    subject.prepare(task.shape)?;
    let batches = task.effort.batches;
    let round = lasts / (batches + 1);
    let timed = |batch, one: &mut dyn Subject| match task.bench {
        Bench::Latency => latency::batch(batch, one).map(drop),
        Bench::Bandwidth | Bench::Rate => timed_stream(batch, one).map(drop),
    };
    let mut took = |batch| -> Result<Duration> {
        let began = Instant::now();
        timed(batch, floor)?;
        timed(batch, subject)?;
        Ok(began.elapsed())
    };
    let mut batch = 1;
    loop {
        let mut shortest = took(batch)?;
        // Longer ones were held up.
        for _ in 1..LOOKS {
            if shortest >= round / 2 {
                shortest = shortest.min(took(batch)?);
            }
        }
        if shortest >= round / 2 || batch >= BATCH_MAX {
            let times = round.as_secs_f64() / shortest.as_secs_f64().max(1e-9);
            let fits = (batch as f64 * times) as u64;
            return Ok(Effort::of(batches, fits.clamp(1, BATCH_MAX)));
        }
        batch *= 2;
    }
}

/// Batches that tell how long one takes.
const LOOKS: u32 = 3;
/// Most requests of a batch.
const BATCH_MAX: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::mock::{Mock, Slow};
    use crate::measure::subject::{Op, Shape};

    /// At least 200 µs a request, of the floor and of the subject: in a quarter of a second at most
    /// 625 of each in four rounds, one of which warms up.
    #[test]
    fn a_row_lasts_as_long_as_it_is_told() {
        for bench in [Bench::Latency, Bench::Bandwidth, Bench::Rate] {
            let shape = Shape { op: Op::Pull, keys: 1, bytes: 8, window: 2 };
            let effort = Effort::of(3, 1_000_000_000);
            let quarter = Duration::from_millis(250);
            let task = Task { lasts: Some(quarter), ..Task::new(bench, shape, effort) };
            let [mut floor, mut subject] = [(); 2].map(|()| Slow(Mock::default()));
            let effort = effort_for(quarter, &task, &mut floor, &mut subject).unwrap();
            assert!((3..=468).contains(&effort.count) && effort.batches == 3, "{effort:?}");
            measure("mock", &task, &mut floor, &mut subject).unwrap();
        }
    }

    #[test]
    fn a_task_and_its_row_travel() {
        for bench in [Bench::Latency, Bench::Bandwidth, Bench::Rate] {
            let shape = Shape { op: Op::Pull, keys: 1, bytes: 8, window: 2 };
            let effort = Effort::of(2, 20);
            let task = Task::new(bench, shape, effort);
            let text = serde_json::to_string(&task).unwrap();
            let task: Task = serde_json::from_str(&text).unwrap();
            let made = measure("mock", &task, &mut Mock::default(), &mut Mock::default()).unwrap();
            let text = serde_json::to_string(&made).unwrap();
            let came: Measured = serde_json::from_str(&text).unwrap();
            match (&made.row, &came.row) {
                (MeasuredRow::Latency(made), MeasuredRow::Latency(came)) => assert_eq!(made, came),
                (MeasuredRow::Bandwidth(made), MeasuredRow::Bandwidth(came)) => {
                    assert_eq!(made, came);
                }
                (MeasuredRow::Rate(made), MeasuredRow::Rate(came)) => assert_eq!(made, came),
                other => panic!("{other:?}"),
            }
        }
    }
}
