//! Rows, as programs read them (`--json`, one object a line) and as people do (aligned columns). Only rows go to standard
//! output; what a reader should know besides goes to standard error.

use std::io::{self, Write};

use clap::ValueEnum;
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
use crate::train::{Outcome, Pass, Prediction, Traffic};
use crate::units;
use crate::verbs::doctor::RdmaDevice;
use crate::verbs::{Op as VerbsOp, VerbsBandwidth, VerbsLatency};
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
    /// How many answers were not what they had to be.
    pub(crate) fn wrong(&self) -> u64 {
        match self {
            Row::Latency(row) => row.wrong,
            Row::Bandwidth(row) => row.wrong,
            Row::Rate(row) => row.wrong,
            Row::Wait(row) => row.wrong,
            Row::VerbsLatency(row) => row.wrong,
            Row::VerbsBandwidth(row) => row.wrong,
            Row::PlacementCost(row) => row.wrong,
            Row::Scale(row) => row.wrong,
            Row::Machine(_)
            | Row::Model(_)
            | Row::Calibration(_)
            | Row::Layout(_)
            | Row::Van(_)
            | Row::RdmaDevice(_)
            | Row::Progress(_)
            | Row::Traffic(_)
            | Row::Result(_)
            | Row::Predict(_) => 0,
        }
    }

    /// The line above the first row of a kind, for people.
    fn heading(&self) -> Option<String> {
        Some(match self {
            Row::Latency(_) => format!(
                "\n# latency: round trip of one request in flight, closed loop, µs\n{}",
                columns(&[
                    "van",
                    "op",
                    "keys",
                    "size",
                    "count",
                    "min",
                    "p50",
                    "p90",
                    "p99",
                    "p99.9",
                    "max",
                    "floor p50",
                    "p99",
                    "ratio",
                    "wrong",
                ])
            ),
            Row::Bandwidth(_) => format!(
                "\n# bandwidth: a window of requests in flight, closed loop, value payload in GB/s (10^9)\n{}",
                columns(&[
                    "van", "op", "keys", "size", "window", "seconds", "GB/s", "floor", "ratio",
                    "wrong"
                ])
            ),
            Row::Rate(_) => format!(
                "\n# rate: small requests, a window of them in flight, closed loop, million answered a second;\n# calls, copied bytes and time of a core for each, on the worker's side and on the servers'\n{}",
                columns(&[
                    "van",
                    "op",
                    "size",
                    "window",
                    "Mmsg/s",
                    "floor",
                    "ratio",
                    "calls",
                    "copied",
                    "cpu us",
                    "srv calls",
                    "copied",
                    "cpu us",
                    "wrong"
                ])
            ),
            Row::Wait(_) => format!(
                "\n# wait: round trip of one request in flight, µs, and processor time of both sides for each\n{}",
                columns(&[
                    "van", "policy", "scene", "p50", "p99", "cpu", "best p50", "ratio", "wrong"
                ])
            ),
            Row::Progress(_) => Pass::HEADING.to_owned(),
            Row::Traffic(_) => Traffic::HEADING.to_owned(),
            Row::VerbsLatency(row) => format!(
                "\n# latency of {}: {}, closed loop, µs; {}\n{}",
                row.device,
                "half a round trip (read: all of it)",
                row.how.text(),
                columns(&[
                    "op        ",
                    "size",
                    "count",
                    "min",
                    "p50",
                    "p90",
                    "p99",
                    "p99.9",
                    "max",
                    "mean",
                    "inline",
                    "wrong"
                ])
            ),
            Row::VerbsBandwidth(row) => format!(
                "\n# bandwidth of {}: one direction, MiB (2^20), GB (10^9), million messages a second; {}\n{}",
                row.device,
                row.how.text(),
                columns(&[
                    "op        ",
                    "size",
                    "count",
                    "window",
                    "list",
                    "signal",
                    "inline",
                    "MiB/s",
                    "GB/s",
                    "Mmsg/s",
                    "wrong"
                ])
            ),
            Row::PlacementCost(row) => format!(
                "\n# placement: pushes to a server thread in this process, worker on PU {}; 64 B with one in flight, 1 MiB with a window\n{}",
                row.worker_pu,
                columns(&[
                    "van",
                    "PU",
                    "memory",
                    "p50 µs",
                    "p99",
                    "GB/s",
                    "p50 ratio",
                    "GB ratio",
                    "wrong",
                    "  server"
                ])
            ),
            Row::Scale(_) => format!(
                "\n# scale: until the target, in simulated seconds; idle = share of it that workers did not compute, sent in MB (10^6)\n{}",
                columns(&[
                    "nodes",
                    "servers",
                    "delay",
                    "passes",
                    "seconds",
                    "speed-up",
                    "idle",
                    "relative",
                    "nnz",
                    "worker MB",
                    "server MB",
                    "wrong",
                    "  filters"
                ])
            ),
            Row::Calibration(_) => format!(
                "\n# calibration: what a pass keeps one worker busy, in ms; MB that it sends, and ns that each byte takes the server\n{}",
                columns(&["pass", "charged", "measured", "ratio", "worker MB", "ns/byte"])
            ),
            Row::Machine(_)
            | Row::Model(_)
            | Row::Layout(_)
            | Row::Van(_)
            | Row::RdmaDevice(_)
            | Row::Result(_)
            | Row::Predict(_) => return None,
        })
    }

    /// The row for people, without the end of the line.
    fn text(&self) -> String {
        match self {
            Row::Machine(machine) => machine.lines().join("\n"),
            Row::Layout(layout) => format!("{}\n", layout.text()),
            Row::PlacementCost(r) => {
                let place =
                    |place: Option<usize>| place.map_or("any".to_owned(), |n| n.to_string());
                let mut cells = vec![r.van.clone(), place(r.server_pu)];
                cells.push(r.memory_node.map_or("touch".to_owned(), |node| format!("node {node}")));
                cells.extend([r.p50_us, r.p99_us, r.gb_per_s].iter().map(decimals));
                cells.extend([r.ratio_p50, r.ratio_gb].map(|ratio| format!("{ratio:.2}")));
                cells.extend([r.wrong.to_string(), format!("  {}", r.server)]);
                columns(&cells)
            }
            Row::Model(model) => model.text(),
            Row::Scale(r) => {
                let mut cells =
                    [r.workers, r.servers, r.delay as usize].map(|n| n.to_string()).to_vec();
                cells.push(r.passes.to_string());
                cells.extend([format!("{:.4}", r.seconds), format!("{:.2}", r.speedup)]);
                cells.extend([format!("{:.3}", r.idle), format!("{:.2e}", r.relative)]);
                cells.push(r.nnz.to_string());
                let sent = [r.worker_bytes_sent, r.server_bytes_sent];
                cells.extend(sent.map(|bytes| format!("{:.2}", bytes as f64 / 1e6)));
                cells.extend([r.wrong.to_string(), format!("  {}", r.filters)]);
                let own = r.traffic.iter().filter(|t| !["frames", "all"].contains(&&*t.filter));
                own.fold(columns(&cells), |text, stage| text + "\n  " + &stage.text())
            }
            Row::Calibration(r) => {
                let sent = r.worker_bytes_sent as f64 / 1e6;
                let figures = [r.charged_ms, r.measured_ms, r.ratio, sent, r.server_ns_per_byte];
                let cells = figures.map(|figure| decimals(&figure));
                columns(&[&[r.pass.to_string()][..], &cells].concat())
            }
            Row::Van(check) => check.text(),
            Row::RdmaDevice(device) => device.text(),
            Row::VerbsLatency(r) => {
                let mut cells = vec![verbs_op(r.op), units::size(r.bytes), r.count.to_string()];
                let times =
                    [r.min_us, r.p50_us, r.p90_us, r.p99_us, r.p999_us, r.max_us, r.mean_us];
                cells.extend(times.iter().map(decimals));
                cells.extend([yes(r.how.inline), r.wrong.to_string()]);
                columns(&cells)
            }
            Row::VerbsBandwidth(r) => {
                let mut cells = vec![verbs_op(r.op), units::size(r.bytes), r.count.to_string()];
                cells.extend([r.window, r.how.list, r.how.signal_every].map(|n| n.to_string()));
                cells.extend([yes(r.how.inline), decimals(&r.mib_per_s), decimals(&r.gb_per_s)]);
                cells.extend([format!("{:.4}", r.mmsg_per_s), r.wrong.to_string()]);
                columns(&cells)
            }
            Row::Latency(r) => {
                let mut cells = vec![r.van.clone(), r.op.clone(), r.keys.to_string()];
                cells.extend([units::size(r.bytes), r.count.to_string()]);
                let times = [r.min_us, r.p50_us, r.p90_us, r.p99_us, r.p999_us, r.max_us];
                cells.extend(times.iter().chain(&[r.floor_p50_us, r.floor_p99_us]).map(decimals));
                cells.extend([format!("{:.2}", r.ratio_p50), r.wrong.to_string()]);
                columns(&cells)
            }
            Row::Bandwidth(r) => {
                let mut cells = vec![r.van.clone(), r.op.clone(), r.keys.to_string()];
                cells.extend([units::size(r.bytes), r.window.to_string()]);
                cells.extend([r.seconds, r.gb_per_s, r.floor_gb_per_s].iter().map(decimals));
                cells.extend([format!("{:.2}", r.ratio), r.wrong.to_string()]);
                columns(&cells)
            }
            Row::Progress(pass) => pass.text(),
            Row::Traffic(traffic) => traffic.text(),
            Row::Result(outcome) => outcome.text(),
            Row::Predict(prediction) => prediction.text(),
            Row::Wait(r) => {
                let mut cells = vec![r.van.clone(), r.policy.clone(), r.scene.name().to_owned()];
                let times = [r.p50_us, r.p99_us, r.cpu_us_per_msg, r.best_p50_us];
                cells.extend(times.iter().map(decimals));
                cells.extend([format!("{:.2}", r.ratio), r.wrong.to_string()]);
                columns(&cells)
            }
            Row::Rate(r) => {
                let mut cells =
                    vec![r.van.clone(), r.op.clone(), units::size(r.bytes), r.window.to_string()];
                cells
                    .extend([format!("{:.4}", r.mmsg_per_s), format!("{:.4}", r.floor_mmsg_per_s)]);
                cells.push(format!("{:.2}", r.ratio));
                for (calls, copied, cpu_us) in [
                    (r.syscalls_per_msg, r.bytes_copied_per_msg, r.cpu_us_per_msg),
                    (
                        r.server_syscalls_per_msg,
                        r.server_bytes_copied_per_msg,
                        r.server_cpu_us_per_msg,
                    ),
                ] {
                    cells.extend([format!("{calls:.3}"), format!("{copied:.0}")]);
                    cells.push(format!("{cpu_us:.3}"));
                }
                cells.push(r.wrong.to_string());
                let many = r.crowd.map_or_else(String::new, |crowd| {
                    format!(
                        "  {} workers, {} servers x {} threads; slowest over mean {:.2}",
                        crowd.workers, crowd.servers, crowd.threads, crowd.slowest_over_mean
                    )
                });
                columns(&cells) + &many
            }
        }
    }
}

/// As on the command line.
fn verbs_op(op: VerbsOp) -> String {
    let value = op.to_possible_value().expect("no kind of message is hidden");
    format!("{:<10}", value.get_name())
}

fn yes(it_is: bool) -> String {
    if it_is { "yes" } else { "no" }.to_owned()
}

/// Cells side by side: names to the left, figures to the right.
fn columns(cells: &[impl AsRef<str>]) -> String {
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
fn decimals(value: &f64) -> String {
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
    /// When standard output cannot be written to.
    pub(crate) fn row(&mut self, row: &Row, progress: &Progress) -> io::Result<()> {
        self.wrong += row.wrong();
        let text = self.render(row);
        progress.hidden(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{text}")?;
            out.flush()
        })
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
        let heading = row.heading().filter(|_| first);
        match heading {
            Some(heading) => format!("{heading}\n{}", row.text()),
            None => row.text(),
        }
    }
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
