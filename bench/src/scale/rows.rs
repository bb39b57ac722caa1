//! Rows of `caravan bench scale`.

use serde::{Deserialize, Serialize};

use crate::report::{Shown, columns, decimals};
use crate::train::Traffic;

/// What all rows after it have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Model {
    pub(crate) seed: u64,
    pub(crate) rows: u64,
    pub(crate) lambda: f64,
    pub(crate) blocks: usize,
    /// F*, the least of the objective, found by the full method.
    pub(crate) optimum: f64,
    /// How far above it a run ends, relatively.
    pub(crate) target: f64,
    pub(crate) gbit: f64,
    pub(crate) latency_us: [f64; 2],
    pub(crate) overhead_us: f64,
    pub(crate) overhead_ns_per_byte: f64,
    /// Rows that each row of the data stands for where computing is charged.
    pub(crate) stands_for: f64,
}

impl Shown for Model {
    fn text(&self) -> String {
        let [shortest, longest] = self.latency_us;
        format!(
            "# {} rows of clicks, each for {}, lambda {}, {} blocks, seed {}; to {:.0e} above F* = {:.10e}\n\
             # cards of {} Gbit/s, latency {shortest} to {longest} us, {} us and {} ns a byte of a processor for each message, at both ends",
            self.rows,
            self.stands_for,
            self.lambda,
            self.blocks,
            self.seed,
            self.target,
            self.optimum,
            self.gbit,
            self.overhead_us,
            self.overhead_ns_per_byte
        )
    }
}

/// One simulated run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scale {
    pub(crate) workers: usize,
    pub(crate) servers: usize,
    pub(crate) delay: u32,
    pub(crate) filters: String,
    /// How many times as long a straggler computes, the share of workers that always does, and the mean times between and
    /// within spells of all others, in ms.
    pub(crate) straggle: [f64; 4],
    pub(crate) passes: u64,
    /// Simulated, until the end of the pass that reached the target.
    pub(crate) seconds: f64,
    /// Against the first row of the same delay, filters and stragglers.
    pub(crate) speedup: f64,
    /// Share of that time in which workers did not compute, on average.
    pub(crate) idle: f64,
    pub(crate) objective: f64,
    /// F / F* - 1.
    pub(crate) relative: f64,
    pub(crate) nnz: usize,
    pub(crate) worker_bytes_sent: u64,
    pub(crate) server_bytes_sent: u64,
    /// What each filter made of that.
    pub(crate) traffic: Vec<Traffic>,
    /// 1 for a run that did not reach the target.
    pub(crate) wrong: u64,
}

impl Shown for Scale {
    fn heading(&self) -> Option<String> {
        Some(format!(
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
        ))
    }

    fn text(&self) -> String {
        let mut cells =
            [self.workers, self.servers, self.delay as usize].map(|n| n.to_string()).to_vec();
        cells.push(self.passes.to_string());
        cells.extend([format!("{:.4}", self.seconds), format!("{:.2}", self.speedup)]);
        cells.extend([format!("{:.3}", self.idle), format!("{:.2e}", self.relative)]);
        cells.push(self.nnz.to_string());
        let sent = [self.worker_bytes_sent, self.server_bytes_sent];
        cells.extend(sent.map(|bytes| format!("{:.2}", bytes as f64 / 1e6)));
        cells.extend([self.wrong.to_string(), format!("  {}", self.filters)]);
        let own = self.traffic.iter().filter(|t| !["frames", "all"].contains(&&*t.filter));
        own.fold(columns(&cells), |text, stage| text + "\n  " + &stage.text())
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// What a pass takes one worker, in simulated time and in this machine's, and what its messages take the server here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Calibration {
    pub(crate) pass: u64,
    pub(crate) charged_ms: f64,
    pub(crate) measured_ms: f64,
    pub(crate) ratio: f64,
    pub(crate) worker_bytes_sent: u64,
    pub(crate) server_ns_per_byte: f64,
}

impl Shown for Calibration {
    fn heading(&self) -> Option<String> {
        Some(format!(
            "\n# calibration: what a pass keeps one worker busy, in ms; MB that it sends, and ns that each byte takes the server\n{}",
            columns(&["pass", "charged", "measured", "ratio", "worker MB", "ns/byte"])
        ))
    }

    fn text(&self) -> String {
        let sent = self.worker_bytes_sent as f64 / 1e6;
        let figures =
            [self.charged_ms, self.measured_ms, self.ratio, sent, self.server_ns_per_byte];
        let cells = figures.map(|figure| decimals(&figure));
        columns(&[&[self.pass.to_string()][..], &cells].concat())
    }
}
