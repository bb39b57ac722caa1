//! Latency: a closed loop with one request in flight, the full round trip as a caller of `push` or
//! `pull` and `wait` sees it.
//!
//! Each request is timed alone. Between the timed parts the answer is compared in full and the next
//! request is written.

use std::time::Instant;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::figures::{
    encoded, median, milli, nanoseconds, quantile_us, ratio, record, spread_warning, tail_warning,
};
use super::subject::{Subject, Task, take_turns, warm_up};
use crate::cli::values::{name, size};
use crate::report::{figure, row};

row! {
    /// One row of `caravan bench latency`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(crate) struct Latency is "latency" {
        van: String => "van",
        op: String => "op",
        keys: usize => "keys",
        bytes: usize => "size" as size,
        count: u64 => "count",
        min_us: f64 => "min" as figure,
        p50_us: f64 => "p50" as figure,
        p90_us: f64 => "p90" as figure,
        p99_us: f64 => "p99" as figure,
        p999_us: f64 => "p99.9" as figure,
        max_us: f64 => "max" as figure,
        floor_p50_us: f64 => "floor p50" as figure,
        floor_p99_us: f64 => "p99" as figure,
        /// The median over rounds of the subject's median against the floor's.
        ratio_p50: f64 => "ratio" as ratio,
        wrong: u64 => "wrong",
        /// The worker's ports that its lanes go over, where the van has ports.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ports: Vec<String>; "" |row| row.ports.join("+"),
        /// The median of each round, which shows how far they swing.
        rounds: Vec<f64>,
        floor_rounds: Vec<f64>,
        /// All times, as HdrHistogram writes them.
        histogram: String,
        floor_histogram: String,
    }
    title |_| "latency: round trip of one request in flight, closed loop, µs";
    counts wrong;
}

/// Measures `subject` against `floor`; returns the row and what a reader should doubt.
pub(super) fn measure(
    van: &str,
    task: &Task,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
) -> Result<(Latency, Vec<String>)> {
    let Task { shape, effort, .. } = *task;
    floor.prepare(shape)?;
    subject.prepare(shape)?;
    let rounds = take_turns(effort, floor, subject, batch)?;
    let mut floor = Timed::default();
    let mut subject = Timed::default();
    for (at, round) in rounds.iter().enumerate() {
        floor.add(&round.floor, at > 0);
        subject.add(&round.subject, at > 0);
    }
    ensure!(floor.wrong == 0, "the floor itself got {} wrong answers", floor.wrong);
    let floor_medians = rounds[1..].iter().map(|round| quantile_us(&round.floor.nanos, 0.5));
    let medians = rounds[1..].iter().map(|round| quantile_us(&round.subject.nanos, 0.5));
    let pairs = medians.clone().zip(floor_medians.clone());
    let ratio = median(pairs.map(|(own, floor)| own / floor));
    let spread = spread_warning("floor's median", floor_medians.clone());
    let warnings = spread.into_iter().chain(tail_warning(&floor.nanos)).collect();
    let Timed { nanos, wrong } = subject;
    let at = |quantile| milli(quantile_us(&nanos, quantile));
    let row = Latency {
        van: van.to_owned(),
        op: name(&shape.op),
        keys: shape.keys,
        bytes: shape.bytes,
        count: nanos.len(),
        min_us: milli(nanos.min() as f64 / 1e3),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: milli(nanos.max() as f64 / 1e3),
        floor_p50_us: milli(quantile_us(&floor.nanos, 0.5)),
        floor_p99_us: milli(quantile_us(&floor.nanos, 0.99)),
        ratio_p50: milli(ratio),
        wrong,
        ports: Vec::new(),
        rounds: medians.map(milli).collect(),
        floor_rounds: floor_medians.map(milli).collect(),
        histogram: encoded(&nanos),
        floor_histogram: encoded(&floor.nanos),
    };
    Ok((row, warnings))
}

/// Times of requests, and how many answers were wrong.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) nanos: Histogram<u64>,
    pub(super) wrong: u64,
}

impl Default for Timed {
    fn default() -> Self {
        Timed { nanos: nanoseconds(), wrong: 0 }
    }
}

impl Timed {
    /// Adds a batch; wrong answers count in any case, times only if `counts`.
    pub(super) fn add(&mut self, batch: &Timed, counts: bool) {
        self.wrong += batch.wrong;
        if counts {
            self.nanos += &batch.nanos;
        }
    }

    /// Times one request, and counts its answer if that is wrong.
    pub(super) fn request(&mut self, subject: &mut dyn Subject) -> Result<()> {
        let began = Instant::now();
        subject.once()?;
        record(&mut self.nanos, began.elapsed());
        self.wrong += subject.check()?;
        Ok(())
    }
}

/// Times so many requests, after some that do not count.
pub(super) fn batch(requests: u64, subject: &mut dyn Subject) -> Result<Timed> {
    let mut timed = Timed::default();
    for _ in 0..warm_up(requests) {
        subject.once()?;
        timed.wrong += subject.check()?;
    }
    for _ in 0..requests {
        // Checking took time that the system owes the other side if both share a core. The other
        // side gets it now, before the next request is timed.
        std::thread::yield_now();
        timed.request(subject)?;
    }
    timed.wrong += subject.settle()?;
    Ok(timed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::mock::Mock;
    use crate::measure::subject::{Bench, Effort, Op, Shape};

    fn task(count: u64, batches: u32) -> Task {
        let shape = Shape { op: Op::Pull, keys: 1, bytes: 8, window: 1 };
        Task::new(Bench::Latency, shape, Effort::new(count, batches))
    }

    #[test]
    fn counts_what_counts_and_orders_its_quantiles() {
        let (mut floor, mut subject) = (Mock::default(), Mock::default());
        let (row, _) = measure("mock", &task(410, 20), &mut floor, &mut subject).unwrap();
        assert_eq!((row.count, row.rounds.len(), row.wrong), (410, 20, 0));
        assert!(row.min_us > 0.0 && row.min_us <= row.p50_us && row.p50_us <= row.p90_us);
        assert!(row.p90_us <= row.p99_us && row.p99_us <= row.p999_us && row.p999_us <= row.max_us);
        assert!(row.ratio_p50.is_finite());
        assert_eq!(floor.requests, subject.requests);
    }

    #[test]
    fn wrong_answers_reach_the_row_and_errors_the_caller() {
        let task = task(20, 1);
        let mut wrong = Mock { wrong_check: 1, wrong_settle: 1, ..Mock::default() };
        let (row, _) = measure("mock", &task, &mut Mock::default(), &mut wrong).unwrap();
        assert_eq!(row.wrong, 2 * (20 + warm_up(20) + 1));
        assert!(measure("mock", &task, &mut wrong, &mut Mock::default()).is_err());
        let mut fails = Mock { fail: true, ..Mock::default() };
        assert!(measure("mock", &task, &mut Mock::default(), &mut fails).is_err());
    }
}
