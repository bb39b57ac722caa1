//! From flags to tasks: which shapes a run measures, and how long. Checks combinations of flags.

use std::time::Duration;

use anyhow::Result;

use super::subject::{Bench, Copies, Effort, Op, Shape, Task};
use crate::cli::ending::Usage;
use crate::cli::values::size;
use crate::cli::{BenchCommand, Requests};
use crate::floor::lengths::check;

/// All rows that a command asks for, in order.
///
/// # Errors
/// [`Usage`] for a size that keys cannot share evenly, and for a window that the floor cannot hold.
pub(super) fn tasks(command: &BenchCommand, smoke: bool) -> Result<Vec<Task>> {
    let plan = |bench, requests, window, iterations| {
        Plan { requests, window, iterations, defaults: Defaults::of(bench, smoke) }.tasks(bench)
    };
    match command {
        BenchCommand::Latency(args) => plan(Bench::Latency, &args.requests, None, args.iterations),
        BenchCommand::Bandwidth(args) => {
            plan(Bench::Bandwidth, &args.requests, args.window, args.iterations)
        }
        BenchCommand::Rate(args) => plan(Bench::Rate, &args.requests, args.window, args.iterations),
        BenchCommand::All(args) => {
            let op = args.op.clone();
            let duration = args.duration;
            let requests = Requests {
                op,
                keys: 1,
                key_cache: true,
                sizes: Vec::new(),
                duration,
                replicas: 0,
                asynchronous: false,
                slower: 0,
            };
            let benches = [Bench::Latency, Bench::Bandwidth, Bench::Rate];
            let all = benches.map(|bench| plan(bench, &requests, None, None));
            Ok(all.into_iter().collect::<Result<Vec<_>>>()?.concat())
        }
        // These have commands of their own.
        BenchCommand::Verbs(_)
        | BenchCommand::Placement
        | BenchCommand::Wait(_)
        | BenchCommand::Load(_)
        | BenchCommand::Fabric(_)
        | BenchCommand::Failover(_)
        | BenchCommand::Sketch(_)
        | BenchCommand::Consistency(_)
        | BenchCommand::Scale(_) => Ok(Vec::new()),
    }
}

/// The flags of one bench.
struct Plan<'a> {
    requests: &'a Requests,
    window: Option<u32>,
    iterations: Option<u64>,
    defaults: Defaults,
}

impl Plan<'_> {
    fn tasks(&self, bench: Bench) -> Result<Vec<Task>> {
        let Requests { op, keys, key_cache, sizes, duration, replicas, asynchronous, slower } =
            self.requests;
        let copies = Copies { replicas: *replicas, asynchronous: *asynchronous };
        let keys = *keys as usize;
        let sizes = if sizes.is_empty() { self.defaults.sizes } else { sizes };
        let ops = if op.is_empty() { &[Op::Push, Op::Pull] } else { op.as_slice() };
        let unit = size_of::<f32>() * keys;
        if let Some(bytes) = sizes.iter().find(|bytes| **bytes % unit != 0) {
            let text = size(bytes);
            return Err(Usage(format!(
                "{text} cannot be shared out among {keys} keys of whole 4-byte values; \
                 take a multiple of {unit}"
            ))
            .into());
        }
        let window = self.window.map_or(self.defaults.window, |window| window as usize);
        let task = |op, bytes| {
            let shape = Shape { op, keys, bytes, window };
            check(shape).map_err(|error| Usage(error.to_string()))?;
            let count = self.iterations.unwrap_or_else(|| self.defaults.count(bytes));
            let effort = Effort::new(count, self.defaults.batches);
            Ok(Task {
                lasts: duration.map(Duration::from_secs_f64),
                key_cache: *key_cache,
                slower_percent: *slower,
                copies,
                ..Task::new(bench, shape, effort)
            })
        };
        ops.iter().flat_map(|&op| sizes.iter().map(move |&bytes| task(op, bytes))).collect()
    }
}

/// What a bench does unless told otherwise.
struct Defaults {
    sizes: &'static [usize],
    window: usize,
    batches: u32,
    count_min: u64,
    count_max: u64,
    /// Payload of a row, if its count is between the two.
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
        if !smoke {
            return full;
        }
        let (sizes, count): (&[usize], _) = match bench {
            Bench::Latency => (&[8, 4 << 10, 256 << 10], 40),
            Bench::Bandwidth => (&[64 << 10], 40),
            Bench::Rate => (&[8], 400),
        };
        Defaults { sizes, batches: 2, count_min: count, count_max: count, ..full }
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

    fn plan(line: &str) -> Result<Vec<Task>> {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Bench(command) = &cli.command else { panic!("{line}") };
        tasks(command, cli.common.smoke)
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
        assert!(tasks.iter().all(|task| task.effort.count == 100 && task.shape.window == 1));
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
        assert!(smoke.iter().all(|task| task.effort.count <= 400));
    }

    #[test]
    fn rows_may_last_a_time_instead() {
        for bench in ["latency", "bandwidth", "rate", "all"] {
            let tasks = plan(&format!("caravan bench {bench} --duration 2.5")).unwrap();
            let lasts = Some(Duration::from_millis(2500));
            assert!(tasks.iter().all(|task| task.lasts == lasts && task.effort.batches == 20));
        }
        let both = "caravan bench rate --duration 1 --iterations 5".split(' ');
        assert!(Cli::try_parse_from(both).is_err());
    }

    #[test]
    fn sizes_that_keys_cannot_share_are_wrong_usage() {
        for line in ["caravan bench latency --sizes 6", "caravan bench latency --keys 3 --sizes 8"]
        {
            assert!(plan(line).unwrap_err().is::<Usage>(), "{line}");
        }
        assert!(plan("caravan bench latency --keys 3 --sizes 12").is_ok());
    }
}
