//! The worker's side of `caravan bench`: worker 0 measures one task against its own floor and
//! answers with the row.

use anyhow::{Context, Result};
use caravan_kv::{App, WorkerNode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::latency::{self, Latency};
use super::requests::{Requests, Tables};
use super::streams::{self, Bandwidth, Rate};
use super::subject::{Bench, Slower, Subject, Task};
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

    fn measure(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value> {
        let task: Task = serde_json::from_value(body)?;
        let van = node.worker.van();
        let floor = match &mut self.floor {
            Some(floor) => floor,
            none => {
                let server = node.worker.server_addresses().next();
                let server = server.context("a worker has a server")?.address.clone();
                let (floor, doubt) = floor::spawn(van, &node.config, &server)?;
                self.doubt = doubt;
                let floor = none.insert(floor);
                if node.config.pin {
                    place::pin(node.worker.servers(), &node.config);
                }
                floor
            }
        };
        let mut subject =
            Requests::new(&mut node.worker, &mut self.tables, node.config.eager_bytes)
                .key_cache(task.key_cache);
        let percent = task.slower_percent;
        let mut slower = Slower { subject: &mut subject, percent };
        let subject: &mut dyn Subject = if percent == 0 { slower.subject } else { &mut slower };
        let mut measured = measure(van, &task, &mut **floor, subject)?;
        measured.warnings.extend(self.doubt.clone());
        Ok(serde_json::to_value(measured)?)
    }
}

impl App for Measure {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        self.measure(node, body).map_err(|error| format!("{error:#}"))
    }
}

fn measure(
    van: &str,
    task: &Task,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
) -> Result<Measured> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::mock::Mock;
    use crate::measure::subject::{Effort, Op, Shape};

    #[test]
    fn a_task_and_its_row_travel() {
        for bench in [Bench::Latency, Bench::Bandwidth, Bench::Rate] {
            let shape = Shape { op: Op::Pull, keys: 1, bytes: 8, window: 2 };
            let effort = Effort { batches: 2, batch: 20 };
            let task = Task { bench, shape, effort, key_cache: true, slower_percent: 0 };
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
