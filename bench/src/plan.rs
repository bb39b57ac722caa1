//! From flags to rows: which shapes are measured, and how long each. Checks what only makes sense together.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::cli::{BenchCommand, Requests};
use crate::report::Row;
use crate::subject::{Effort, Op, Shape, Subject};
use crate::units;
use crate::usage::Usage;
use crate::{bandwidth, floor, latency, rate};

/// Which bench makes a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bench {
    Latency,
    Bandwidth,
    Rate,
}

/// One row to be measured. Travels to the worker as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    /// By which bench.
    pub(crate) bench: Bench,
    /// What is asked.
    pub(crate) shape: Shape,
    /// How often.
    pub(crate) effort: Effort,
    /// Whether keys that come again are named instead of sent.
    pub(crate) key_cache: bool,
}

impl Task {
    /// For a progress bar.
    pub(crate) fn describe(&self, van: &str) -> String {
        let bench = match self.bench {
            Bench::Latency => "latency",
            Bench::Bandwidth => "bandwidth",
            Bench::Rate => "rate",
        };
        format!("{bench} {van} {} {}", self.shape.op.name(), units::size(self.shape.bytes))
    }

    /// Measures the row; returns it and what a reader should doubt.
    ///
    /// # Errors
    /// The first error of either subject.
    pub(crate) fn run(
        &self,
        van: &str,
        floor: &mut dyn Subject,
        subject: &mut dyn Subject,
    ) -> Result<(Row, Vec<String>)> {
        let Task { bench, shape, effort, .. } = *self;
        Ok(match bench {
            Bench::Latency => {
                let (row, warnings) = latency::measure(van, shape, effort, floor, subject)?;
                (Row::Latency(row), warnings)
            }
            Bench::Bandwidth => {
                let (row, warnings) = bandwidth::measure(van, shape, effort, floor, subject)?;
                (Row::Bandwidth(row), warnings)
            }
            Bench::Rate => {
                let (row, warnings) = rate::measure(van, shape, effort, floor, subject)?;
                (Row::Rate(row), warnings)
            }
        })
    }
}

/// All rows a command asks for, in order.
///
/// # Errors
/// [`Usage`] when a size cannot be shared out among the keys, or a window is more than the floor holds.
pub(crate) fn rows(command: &BenchCommand, smoke: bool) -> Result<Vec<Task>> {
    match command {
        BenchCommand::Latency(args) => {
            tasks(Bench::Latency, &args.requests, None, args.iterations, smoke)
        }
        BenchCommand::Bandwidth(args) => {
            tasks(Bench::Bandwidth, &args.requests, args.window, args.iterations, smoke)
        }
        BenchCommand::Rate(args) => {
            tasks(Bench::Rate, &args.requests, args.window, args.iterations, smoke)
        }
        BenchCommand::All(args) => {
            let requests =
                Requests { op: args.op.clone(), keys: 1, key_cache: true, sizes: Vec::new() };
            let mut all = Vec::new();
            for bench in [Bench::Latency, Bench::Bandwidth, Bench::Rate] {
                all.extend(tasks(bench, &requests, None, None, smoke)?);
            }
            Ok(all)
        }
        // `verbs/` asks nothing of servers, and `placement.rs`, `wait.rs` and `scale.rs` have servers of their own.
        BenchCommand::Verbs(_)
        | BenchCommand::Placement
        | BenchCommand::Wait(_)
        | BenchCommand::Scale(_) => Ok(Vec::new()),
    }
}

fn tasks(
    bench: Bench,
    requests: &Requests,
    window: Option<u32>,
    iterations: Option<u64>,
    smoke: bool,
) -> Result<Vec<Task>> {
    let defaults = Defaults::of(bench, smoke);
    let keys = requests.keys as usize;
    let sizes = if requests.sizes.is_empty() { defaults.sizes } else { &requests.sizes };
    let ops = if requests.op.is_empty() { &[Op::Push, Op::Pull][..] } else { &requests.op };
    for &bytes in sizes {
        ensure!(
            bytes % (VALUE_BYTES * keys) == 0,
            Usage(format!(
                "{} cannot be shared out among {keys} keys of whole 4-byte values; take a multiple of {}",
                units::size(bytes),
                VALUE_BYTES * keys
            ))
        );
    }
    let task = |(op, bytes)| {
        let window = window.map_or(defaults.window, |window| window as usize);
        let count = iterations.unwrap_or_else(|| defaults.count(bytes));
        Task {
            bench,
            shape: Shape { op, keys, bytes, window },
            effort: Effort::new(count, defaults.batches),
            key_cache: requests.key_cache,
        }
    };
    let all = ops.iter().flat_map(|&op| sizes.iter().map(move |&bytes| (op, bytes)));
    let tasks: Vec<Task> = all.map(task).collect();
    for task in &tasks {
        floor::check(task.shape).map_err(|error| Usage(error.to_string()))?;
    }
    Ok(tasks)
}

/// Bytes of an `f32`.
const VALUE_BYTES: usize = 4;

/// What a bench does unless told otherwise.
struct Defaults {
    sizes: &'static [usize],
    window: usize,
    batches: u32,
    count_min: u64,
    count_max: u64,
    /// Payload a row moves, if that is between the two counts.
    bytes: u64,
}

impl Defaults {
    fn of(bench: Bench, smoke: bool) -> Self {
        let full = match bench {
            Bench::Latency => Defaults {
                sizes: &[8, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20],
                window: 1,
                batches: 20,
                count_min: 500,
                count_max: 40_000,
                bytes: 512 << 20,
            },
            Bench::Bandwidth => Defaults {
                sizes: &[64 << 10, 1 << 20, 4 << 20],
                window: 16,
                batches: 20,
                count_min: 400,
                count_max: 20_000,
                bytes: 2 << 30,
            },
            Bench::Rate => Defaults {
                sizes: &[8, 64],
                window: 64,
                batches: 20,
                count_min: 1_000,
                count_max: 200_000,
                bytes: 1 << 30,
            },
        };
        match (smoke, bench) {
            (false, _) => full,
            (true, Bench::Latency) => {
                Defaults { sizes: &[8, 4 << 10, 256 << 10], ..full }.smoke(40)
            }
            (true, Bench::Bandwidth) => Defaults { sizes: &[64 << 10], ..full }.smoke(40),
            (true, Bench::Rate) => Defaults { sizes: &[8], ..full }.smoke(400),
        }
    }

    fn smoke(self, count: u64) -> Self {
        Defaults { batches: 2, count_min: count, count_max: count, ..self }
    }

    fn count(&self, bytes: usize) -> u64 {
        (self.bytes / bytes as u64).clamp(self.count_min, self.count_max)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::subject::mock::Mock;

    fn plan(line: &str) -> Result<Vec<Task>> {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Bench(command) = &cli.command else { panic!("{line}") };
        rows(command, cli.common.smoke)
    }

    #[test]
    fn every_op_and_size_is_a_row() {
        let tasks =
            plan("caravan bench latency --op pull,push-pull --sizes 8,1KiB --iterations 100")
                .unwrap();
        let shapes: Vec<_> = tasks.iter().map(|task| (task.shape.op, task.shape.bytes)).collect();
        assert_eq!(
            shapes,
            [(Op::Pull, 8), (Op::Pull, 1024), (Op::PushPull, 8), (Op::PushPull, 1024)]
        );
        assert!(tasks.iter().all(|task| task.effort.count() == 100 && task.shape.window == 1));
        let tasks = plan("caravan bench rate --window 7").unwrap();
        assert_eq!(tasks.len(), 4);
        assert!(tasks.iter().all(|task| task.shape.window == 7));
    }

    #[test]
    fn all_is_the_three_and_smoke_is_tiny() {
        let all = plan("caravan bench all").unwrap();
        assert_eq!(all.len(), 2 * (9 + 3 + 2));
        assert!(all.iter().all(|task| task.effort.batches == 20));
        let smoke = plan("caravan bench all --smoke").unwrap();
        assert_eq!(smoke.len(), 2 * 5);
        assert!(smoke.iter().all(|task| task.effort.count() <= 400));
    }

    #[test]
    fn sizes_that_keys_cannot_share_are_wrong_usage() {
        for line in ["caravan bench latency --sizes 6", "caravan bench latency --keys 3 --sizes 8"]
        {
            assert!(plan(line).unwrap_err().is::<Usage>(), "{line}");
        }
        assert!(plan("caravan bench latency --keys 3 --sizes 12").is_ok());
    }

    #[test]
    fn a_task_travels_and_runs() {
        for task in plan("caravan bench all --smoke").unwrap() {
            let text = serde_json::to_string(&task).unwrap();
            let task: Task = serde_json::from_str(&text).unwrap();
            let (row, _) = task.run("mock", &mut Mock::default(), &mut Mock::default()).unwrap();
            assert_eq!(row.shown().wrong(), 0);
            assert!(task.describe("mock").contains("mock"));
        }
    }
}
