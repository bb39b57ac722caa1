//! Rows of `caravan bench scale`.

use caravan_learn::dbpg::FilterTraffic;
use serde::Serialize;

use crate::measure::figures::{four, megabytes, ratio, three};
use crate::report::{Row, figure, row};

/// What all rows after it have in common.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// Rows that each row of the data stands for in the charge for computing.
    pub(crate) stands_for: f64,
}

impl Row for Model {
    const KIND: &'static str = "model";

    fn text(&self) -> String {
        let [shortest, longest] = self.latency_us;
        let Model { rows, stands_for, lambda, blocks, seed, target, optimum, .. } = self;
        let Model { gbit, overhead_us, overhead_ns_per_byte, .. } = self;
        format!(
            "# {rows} rows of clicks, each for {stands_for}, lambda {lambda}, {blocks} blocks, \
             seed {seed}; to {target:.0e} above F* = {optimum:.10e}\n\
             # cards of {gbit} Gbit/s, latency {shortest} to {longest} us, {overhead_us} us and \
             {overhead_ns_per_byte} ns a byte of a processor for each message, at both ends"
        )
    }
}

row! {
    /// One simulated run.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct Scale is "scale" {
        workers: usize => "nodes",
        servers: usize => "servers",
        delay: u32 => "delay",
        filters: String,
        /// How many times as long a straggler computes, the share of workers that always does, and
        /// the mean times between and within spells of all others, in ms.
        straggle: [f64; 4],
        passes: u64 => "passes",
        /// Blocks visited, products on the face, and orders to the second-order method.
        rounds: u64 => "rounds",
        /// Simulated, until the end of the pass that reached the target.
        seconds: f64 => "seconds" as four,
        /// Against the first row of the same delay, filters and stragglers.
        speedup: f64 => "speed-up" as ratio,
        /// The seconds of one worker that waits for no message.
        alone: f64 => "alone" as four,
        /// Against those, divided by the number of workers.
        of_perfect: f64 => "perfect" as ratio,
        /// Share of that time in which workers did not compute, on average.
        idle: f64 => "idle" as three,
        objective: f64,
        /// F / F* - 1.
        relative: f64 => "relative" as exponent,
        nnz: usize => "nnz",
        worker_bytes_sent: u64 => "worker MB" as megabytes,
        server_bytes_sent: u64 => "server MB" as megabytes,
        /// What each filter made of those bytes.
        traffic: Vec<FilterTraffic>,
        /// 1 for a run that did not reach the target.
        wrong: u64 => "wrong"; "  filters" |row| row.filters_text(),
    }
    title |_| "scale: until the target, in simulated seconds; \
               alone = those of one worker that waits for nothing; perfect = against alone / nodes; \
               idle = share of it that workers did not compute, sent in MB (10^6)";
    counts wrong;
}

fn exponent(value: &f64) -> String {
    format!("{value:.2e}")
}

impl Scale {
    /// Their names, and below a line for each.
    fn filters_text(&self) -> String {
        let own = self.traffic.iter().filter(|t| !["frames", "all"].contains(&t.filter));
        let names = format!("{:>10}", format!("  {}", self.filters));
        own.fold(names, |text, stage| text + "\n  " + &stage.text())
    }
}

row! {
    /// Time of a pass of one worker, simulated and on this machine, and the time that its messages
    /// take the server here.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct Calibration is "calibration" {
        pass: u64 => "pass",
        charged_ms: f64 => "charged" as figure,
        measured_ms: f64 => "measured" as figure,
        ratio: f64 => "ratio" as figure,
        worker_bytes_sent: u64; "worker MB" |row| figure(&(row.worker_bytes_sent as f64 / 1e6)),
        server_ns_per_byte: f64 => "ns/byte" as figure,
    }
    title |_| "calibration: what a pass keeps one worker busy, in ms; \
               MB that it sends, and ns that each byte takes the server";
}
