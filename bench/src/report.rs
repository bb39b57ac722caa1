//! Rows, as programs read them (`--json`, one object a line) and as people do (aligned columns). Only rows go to standard
//! output; what a reader should know besides goes to standard error.

use std::io::{self, Write};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Bandwidth;
use crate::doctor::VanCheck;
use crate::latency::Latency;
use crate::layout::Layout;
use crate::machine::Machine;
use crate::placement::PlacementCost;
use crate::progress::Progress;
use crate::rate::Rate;
use crate::scale::{Calibration, Model, Scale};
use crate::terminal::harmless;
use crate::train::{Outcome, Pass, Prediction, Traffic};
use crate::usage::Unwritten;
use crate::verbs::doctor::RdmaDevice;
use crate::verbs::{VerbsBandwidth, VerbsLatency};
use crate::wait::WaitRow;

/// One line of `--json`; names and order of the fields are a contract with scripts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "row", rename_all = "lowercase")]
pub(crate) enum Row {
    /// Always first.
    Machine(Machine),
    Latency(Latency),
    Bandwidth(Bandwidth),
    Rate(Rate),
    Wait(WaitRow),
    /// Of `bench verbs`.
    #[serde(rename = "verbs-latency")]
    VerbsLatency(VerbsLatency),
    #[serde(rename = "verbs-bandwidth")]
    VerbsBandwidth(VerbsBandwidth),
    /// Of `bench placement`.
    #[serde(rename = "placement")]
    PlacementCost(PlacementCost),
    /// Of `bench scale`.
    Model(Model),
    Scale(Scale),
    Calibration(Calibration),
    /// Of `caravan doctor`.
    Layout(Layout),
    Van(VanCheck),
    #[serde(rename = "rdma-device")]
    RdmaDevice(RdmaDevice),
    /// Of training, after each pass.
    Progress(Pass),
    /// Of training, a filter of messages each.
    Traffic(Traffic),
    /// Of training, last.
    Result(Outcome),
    /// Of `caravan predict`.
    Predict(Prediction),
}

impl Row {
    pub(crate) fn shown(&self) -> &dyn Shown {
        match self {
            Row::Machine(row) => row,
            Row::Latency(row) => row,
            Row::Bandwidth(row) => row,
            Row::Rate(row) => row,
            Row::Wait(row) => row,
            Row::VerbsLatency(row) => row,
            Row::VerbsBandwidth(row) => row,
            Row::PlacementCost(row) => row,
            Row::Model(row) => row,
            Row::Scale(row) => row,
            Row::Calibration(row) => row,
            Row::Layout(row) => row,
            Row::Van(row) => row,
            Row::RdmaDevice(row) => row,
            Row::Progress(row) => row,
            Row::Traffic(row) => row,
            Row::Result(row) => row,
            Row::Predict(row) => row,
        }
    }
}

/// How a kind of row reads for people.
pub(crate) trait Shown {
    /// The lines above the first row of a kind.
    fn heading(&self) -> Option<String> {
        None
    }

    /// The row, without the end of the line.
    fn text(&self) -> String;

    /// How many answers were not what they had to be.
    fn wrong(&self) -> u64 {
        0
    }
}

/// Cells side by side: names to the left, figures to the right.
pub(crate) fn columns(cells: &[impl AsRef<str>]) -> String {
    let mut line = String::new();
    for (at, cell) in cells.iter().enumerate() {
        let cell = cell.as_ref();
        match at {
            0 => line.push_str(&format!("{cell:<6}")),
            1 => line.push_str(&format!("{cell:<10}")),
            _ => line.push_str(&format!("{cell:>10}")),
        }
    }
    line
}

/// Enough digits for small and large figures to be compared by eye.
pub(crate) fn decimals(value: &f64) -> String {
    match value.abs() {
        v if v < 10.0 => format!("{value:.3}"),
        v if v < 1000.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// Where rows go.
#[derive(Debug)]
pub(crate) struct Report {
    json: bool,
    last: Option<std::mem::Discriminant<Row>>,
    wrong: u64,
}

impl Report {
    /// Rows as JSON or as columns.
    pub(crate) fn new(json: bool) -> Self {
        Report { json, last: None, wrong: 0 }
    }

    /// Writes one row, past a progress bar if there is one.
    ///
    /// # Errors
    /// [`Unwritten`].
    pub(crate) fn row(&mut self, row: &Row, progress: &Progress) -> Result<()> {
        self.wrong += row.shown().wrong();
        let text = self.render(row);
        progress.hidden(|| print(&text))
    }

    /// Wrong answers in all rows so far.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong
    }

    fn render(&mut self, row: &Row) -> String {
        if self.json {
            return serde_json::to_string(row).expect("a row is numbers and text");
        }
        let kind = std::mem::discriminant(row);
        let first = self.last.replace(kind) != Some(kind);
        let row = row.shown();
        let heading = row.heading().filter(|_| first);
        let heading = heading.map_or_else(String::new, |heading| heading + "\n");
        heading + &row.text()
    }
}

/// Writes a line, or several, to standard output, at once and harmless for a terminal.
///
/// # Errors
/// [`Unwritten`].
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{}", harmless(text)).and_then(|()| out.flush());
    written.map_err(|error| Unwritten(error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency() -> Row {
        Row::Latency(Latency {
            van: "uring".to_owned(),
            op: "pull".to_owned(),
            keys: 1,
            bytes: 8,
            count: 100_000,
            min_us: 7.5,
            p50_us: 8.25,
            p90_us: 9.0,
            p99_us: 12.0,
            p999_us: 40.0,
            max_us: 1200.0,
            floor_p50_us: 8.0,
            floor_p99_us: 11.0,
            ratio_p50: 1.031,
            wrong: 2,
        })
    }

    #[test]
    fn json_rows_are_the_contract() {
        assert_eq!(
            Report::new(true).render(&latency()),
            r#"{"row":"latency","van":"uring","op":"pull","keys":1,"bytes":8,"count":100000,"min_us":7.5,"p50_us":8.25,"p90_us":9.0,"p99_us":12.0,"p999_us":40.0,"max_us":1200.0,"floor_p50_us":8.0,"floor_p99_us":11.0,"ratio_p50":1.031,"wrong":2}"#
        );
        let bandwidth = Row::Bandwidth(Bandwidth {
            van: "tcp".to_owned(),
            op: "push".to_owned(),
            keys: 1,
            bytes: 1 << 20,
            window: 16,
            seconds: 1.5,
            gb_per_s: 4.0,
            floor_gb_per_s: 5.0,
            ratio: 0.8,
            wrong: 0,
        });
        assert_eq!(
            Report::new(true).render(&bandwidth),
            r#"{"row":"bandwidth","van":"tcp","op":"push","keys":1,"bytes":1048576,"window":16,"seconds":1.5,"gb_per_s":4.0,"floor_gb_per_s":5.0,"ratio":0.8,"wrong":0}"#
        );
        let rate = Row::Rate(Rate {
            van: "tcp".to_owned(),
            op: "push".to_owned(),
            bytes: 8,
            window: 64,
            mmsg_per_s: 2.5,
            floor_mmsg_per_s: 0.125,
            ratio: 20.0,
            syscalls_per_msg: 0.05,
            bytes_copied_per_msg: 80.0,
            cpu_us_per_msg: 0.25,
            server_syscalls_per_msg: 0.125,
            server_bytes_copied_per_msg: 8.0,
            server_cpu_us_per_msg: 0.5,
            wrong: 0,
            crowd: None,
        });
        assert_eq!(
            Report::new(true).render(&rate),
            r#"{"row":"rate","van":"tcp","op":"push","bytes":8,"window":64,"mmsg_per_s":2.5,"floor_mmsg_per_s":0.125,"ratio":20.0,"syscalls_per_msg":0.05,"bytes_copied_per_msg":80.0,"cpu_us_per_msg":0.25,"server_syscalls_per_msg":0.125,"server_bytes_copied_per_msg":8.0,"server_cpu_us_per_msg":0.5,"wrong":0}"#
        );
        let machine = Report::new(true).render(&Row::Machine(Machine::read()));
        let order = ["row", "cpu", "cores", "numa_nodes", "kernel", "nic", "commit", "caravan"];
        let places: Vec<_> =
            order.iter().map(|key| machine.find(&format!("\"{key}\":")).expect(key)).collect();
        assert!(places.is_sorted(), "{machine}");
    }

    #[test]
    fn a_row_comes_back_from_json() {
        let text = serde_json::to_string(&latency()).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), latency());
    }

    #[test]
    fn columns_line_up_below_one_heading() {
        let mut report = Report::new(false);
        let first = report.render(&latency());
        let lines: Vec<&str> = first.trim_start().lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1].chars().count(), lines[2].chars().count());
        assert!(lines[0].starts_with('#'));
        assert_eq!(report.render(&latency()), lines[2]);
    }
}
