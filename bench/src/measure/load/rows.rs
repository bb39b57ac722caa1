//! The rows of `caravan bench load`, from the answers of all workers.

use anyhow::{Context, Result, ensure};
use caravan_kv::ClusterConfig;
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use super::drive::KINDS;
use super::rates::{Rate, Skew};
use super::worker::{PULL, PUSH, Part, Task};
use crate::cli::values::{name, size};
use crate::measure::figures::{decoded, encoded, milli, nano, nanoseconds, quantile_us};
use crate::report::{figure, row};

row! {
    /// One kind of request of one run of `caravan bench load`.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct Load is "load" {
        van: String => "van",
        op: String => "op",
        rate: String => "rate",
        /// Requests of this kind a second, if the loop is open.
        asked_per_s: Option<f64> => "asked/s" as asked,
        per_s: f64 => "per s" as figure,
        arrivals: Option<String>,
        keys: usize,
        bytes: usize => "size" as size,
        table_keys: u64,
        skew: String,
        workers: usize,
        servers: usize,
        threads: usize,
        window: usize,
        seconds: f64,
        count: u64 => "count",
        min_us: f64,
        p50_us: f64 => "p50" as figure,
        p90_us: f64 => "p90" as figure,
        p99_us: f64 => "p99" as figure,
        p999_us: f64 => "p99.9" as figure,
        p9999_us: f64,
        max_us: f64 => "max" as figure,
        /// How long after its time a request was sent.
        late_p99_us: f64 => "late p99" as figure,
        /// Requests of all kinds that were due and never sent.
        unsent: u64 => "unsent",
        wrong: u64 => "wrong",
        /// All times, as HdrHistogram writes them.
        histogram: String,
        /// Rows a second for each server thread.
        mrows_per_s_thread: f64 => "Mrows/s a thread" as figure,
    }
    title |row| format!(
        "load: {} workers, {} servers x {} threads, {} of {} keys a request ({}), open or closed \
         loop, µs from when a request was due",
        row.workers, row.servers, row.threads, row.keys, row.table_keys, row.skew
    );
    counts wrong;
}

fn asked(rate: &Option<f64>) -> String {
    rate.as_ref().map_or_else(|| "-".to_owned(), figure)
}

/// What rows say of their run.
#[derive(Debug, Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) rate: Rate,
    pub(super) skew: Skew,
    pub(super) task: &'a Task,
    pub(super) config: &'a ClusterConfig,
}

/// The answers of all workers together.
#[derive(Debug)]
pub(super) struct Merged {
    van: String,
    workers: usize,
    nanos: [Histogram<u64>; KINDS],
    pub(super) wrong: [u64; KINDS],
    /// Requests a second, of each kind.
    per_s: [f64; KINDS],
    seconds: f64,
    late: Histogram<u64>,
    unsent: u64,
}

impl Merged {
    /// Adds the answers up. `pushed` is the sum of the table's values before this run, modulo 2^32,
    /// and then after it.
    pub(super) fn of(answers: Vec<Value>, task: &Task, pushed: &mut u32) -> Result<Merged> {
        ensure!(!answers.is_empty(), "no worker answered");
        let mut merged = Merged {
            van: String::new(),
            workers: answers.len(),
            nanos: [(); KINDS].map(|()| nanoseconds()),
            wrong: [0; KINDS],
            per_s: [0.0; KINDS],
            seconds: 0.0,
            late: nanoseconds(),
            unsent: 0,
        };
        let ones = (task.bytes / size_of::<i32>()) as u64;
        let mut sum = None;
        for answer in answers {
            let part: Part = serde_json::from_value(answer)?;
            for (kind, of) in part.kinds.iter().enumerate() {
                let nanos = decoded(&of.histogram)?;
                merged.per_s[kind] += nanos.len() as f64 / part.seconds.max(1e-9);
                merged.nanos[kind] += nanos;
                merged.wrong[kind] += of.wrong;
            }
            merged.seconds = merged.seconds.max(part.seconds);
            merged.late += decoded(&part.late)?;
            merged.unsent += part.unsent;
            merged.van = part.van;
            *pushed = pushed.wrapping_add(part.pushed.wrapping_mul(ones) as u32);
            sum = match (sum, part.sum) {
                (Some(sum), Some(more)) => Some(u32::wrapping_add(sum, more)),
                (sum, more) => sum.or(more),
            };
        }
        let sum = sum.context("worker 0 has not added the table up")?;
        // Ones that are missing, or too many.
        let off = sum.wrapping_sub(*pushed) as i32;
        merged.wrong[PUSH] += u64::from(off.unsigned_abs()).div_ceil(ones);
        *pushed = sum;
        Ok(merged)
    }

    /// Requests of all kinds a second.
    pub(super) fn per_second(&self) -> f64 {
        self.per_s.iter().sum()
    }

    /// The times of all kinds.
    pub(super) fn all(&self) -> Histogram<u64> {
        let mut all = nanoseconds();
        self.nanos.iter().for_each(|nanos| all += nanos);
        all
    }

    /// A row for each kind that was made, or was wrong.
    pub(super) fn rows(&self, about: &About<'_>) -> Vec<Load> {
        let share = [about.task.pushes, 1.0 - about.task.pushes];
        let is_there = |kind: &usize| share[*kind] > 0.0 || self.wrong[*kind] > 0;
        [PUSH, PULL].into_iter().filter(is_there).map(|kind| self.row(about, kind, share)).collect()
    }

    fn row(&self, about: &About<'_>, kind: usize, share: [f64; KINDS]) -> Load {
        let About { rate, skew, task, config } = *about;
        let nanos = &self.nanos[kind];
        let at = |quantile| milli(quantile_us(nanos, quantile));
        Load {
            van: self.van.clone(),
            op: ["push", "pull"][kind].to_owned(),
            rate: rate.to_string(),
            asked_per_s: task.rate.map(|rate| milli(rate * share[kind])),
            per_s: milli(self.per_s[kind]),
            arrivals: task.rate.map(|_| name(&task.arrivals)),
            keys: task.keys,
            bytes: task.bytes,
            table_keys: task.table_keys,
            skew: skew.to_string(),
            workers: self.workers,
            servers: config.servers,
            threads: config.threads,
            window: task.window,
            seconds: nano(self.seconds),
            count: nanos.len(),
            min_us: milli(nanos.min() as f64 / 1e3),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
            max_us: milli(nanos.max() as f64 / 1e3),
            late_p99_us: milli(quantile_us(&self.late, 0.99)),
            unsent: self.unsent,
            wrong: self.wrong[kind],
            histogram: encoded(nanos),
            mrows_per_s_thread: self.per_s[kind] * task.keys as f64
                / (config.servers * config.threads) as f64
                / 1e6,
        }
    }

    /// What a reader should doubt.
    pub(super) fn doubts(&self, task: &Task) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.unsent > 0 {
            doubts.push(format!(
                "{} requests that were due were never sent, since the servers do not keep up: \
                 latencies are longer than these; take a lower --rate",
                self.unsent
            ));
        }
        let answered = self.all().len();
        if answered < COUNT_MIN {
            doubts.push(format!(
                "{answered} requests tell nothing of one in a thousand; take a longer --duration"
            ));
        }
        let asked = task.rate.unwrap_or_default();
        let is_late = self.per_second() > 0.9 * asked && quantile_us(&self.late, 0.5) > LATE_MAX_US;
        if asked > 0.0 && is_late && self.unsent == 0 {
            doubts.push(format!(
                "half of the requests were sent over {LATE_MAX_US} µs after their time, since the \
                 window was full or the worker busy: take a lower --rate, more --workers or a \
                 larger --window"
            ));
        }
        doubts
    }
}

/// Fewer requests than this say nothing of p99.9.
const COUNT_MIN: u64 = 10_000;
/// A median lateness above this is that of the workers, in microseconds.
const LATE_MAX_US: f64 = 50.0;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::schedule::Arrivals;
    use super::super::worker::KindPart;
    use super::*;
    use crate::measure::figures::record;

    fn task() -> Task {
        Task {
            number: 0,
            table: 1,
            table_keys: 100,
            zipf: Some(1.0),
            keys: 2,
            bytes: 16,
            pushes: 0.25,
            rate: Some(1000.0),
            arrivals: Arrivals::Random,
            window: 8,
            seconds: 2.0,
            seed: 1,
        }
    }

    fn part(times_us: &[u64], pushed: u64, sum: Option<u32>) -> (Value, Histogram<u64>) {
        let mut nanos = nanoseconds();
        for us in times_us {
            record(&mut nanos, std::time::Duration::from_micros(*us));
        }
        let kind = KindPart { histogram: encoded(&nanos), wrong: 1 };
        let part = Part {
            van: "tcp".to_owned(),
            kinds: [kind.clone(), kind],
            seconds: 2.0,
            late: encoded(&nanoseconds()),
            unsent: 3,
            pushed,
            sum,
        };
        (serde_json::to_value(part).unwrap(), nanos)
    }

    /// Goal: histograms of several processes are that of all requests together, to the bucket.
    #[test]
    fn workers_add_up() {
        let times: Vec<Vec<u64>> =
            (1..=4).map(|rank| (1..500).map(|n| n * n * rank % 7001 + 3).collect()).collect();
        let parts = times.iter().enumerate();
        let parts = parts.map(|(rank, times)| part(times, 5, (rank == 0).then_some(80)));
        let (answers, nanos): (Vec<Value>, Vec<_>) = parts.unzip();
        let mut all = nanoseconds();
        nanos.iter().for_each(|one| all += one);
        let mut pushed = 0;
        let merged = Merged::of(answers, &task(), &mut pushed).unwrap();
        assert_eq!(pushed, 80, "four times five pushes of four values");
        assert_eq!(merged.nanos, [all.clone(), all]);
        assert_eq!((merged.wrong, merged.unsent), ([4, 4], 12));
        assert!((merged.per_second() - 2.0 * 4.0 * 499.0 / 2.0).abs() < 1e-6);
        let config = ClusterConfig::default();
        let skew = Skew::Zipf(1.0);
        let about = About { rate: Rate::PerSecond(1000.0), skew, task: &task(), config: &config };
        let rows = merged.rows(&about);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].op.as_str(), rows[0].asked_per_s), ("push", Some(250.0)));
        assert_eq!((rows[1].op.as_str(), rows[1].asked_per_s), ("pull", Some(750.0)));
        assert_eq!(decoded(&rows[1].histogram).unwrap(), merged.nanos[PULL]);
    }

    /// A push that was lost, and one that was applied twice.
    #[test]
    fn a_table_with_other_sums_is_wrong() {
        for sum in [16, 24] {
            let answer = part(&[5], 5, Some(sum)).0;
            let mut pushed = 0;
            let merged = Merged::of(vec![answer], &task(), &mut pushed).unwrap();
            assert_eq!(merged.wrong[PUSH], 2);
        }
        assert!(Merged::of(vec![part(&[5], 5, None).0], &task(), &mut 0).is_err());
        assert!(Merged::of(Vec::new(), &task(), &mut 0).is_err());
    }
}
