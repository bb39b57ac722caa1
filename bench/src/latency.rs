//! Latency: a closed loop with one request in flight, the full round trip as the caller of `push` or `pull` and `wait` sees it.
//!
//! Each request is timed alone. What came is compared in full, and what goes next is written, while no clock runs.

use std::time::Instant;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::report::{Shown, columns, decimals};
use crate::subject::{Effort, Shape, Subject, median, spread_warning, take_turns};
use crate::units::{self, milli};

/// One row of `caravan bench latency`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) van: String,
    pub(crate) op: String,
    pub(crate) keys: usize,
    pub(crate) bytes: usize,
    pub(crate) count: u64,
    pub(crate) min_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    pub(crate) floor_p50_us: f64,
    pub(crate) floor_p99_us: f64,
    /// The median of what each round of floor and subject gave.
    pub(crate) ratio_p50: f64,
    pub(crate) wrong: u64,
}

impl Shown for Latency {
    fn heading(&self) -> Option<String> {
        Some(format!(
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
        ))
    }

    fn text(&self) -> String {
        let mut cells = vec![self.van.clone(), self.op.clone(), self.keys.to_string()];
        cells.extend([units::size(self.bytes), self.count.to_string()]);
        let times = [self.min_us, self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.max_us];
        cells.extend(times.iter().chain(&[self.floor_p50_us, self.floor_p99_us]).map(decimals));
        cells.extend([format!("{:.2}", self.ratio_p50), self.wrong.to_string()]);
        columns(&cells)
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// Measures `subject` against `floor`; returns the row and what a reader should doubt.
///
/// # Errors
/// The first error of either, and a floor that got a wrong answer.
pub(crate) fn measure(
    van: &str,
    shape: Shape,
    effort: Effort,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
) -> Result<(Latency, Vec<String>)> {
    floor.prepare(shape)?;
    subject.prepare(shape)?;
    let rounds = take_turns(effort, floor, subject, |subject| batch(effort, subject))?;
    let wrong = |which: usize| rounds.iter().map(|round| round[which].1).sum::<u64>();
    ensure!(wrong(0) == 0, "the floor itself got {} wrong answers", wrong(0));
    let [mut of_floor, mut of_subject] = [nanoseconds(), nanoseconds()];
    for [(floor, _), (subject, _)] in &rounds[1..] {
        of_floor += floor;
        of_subject += subject;
    }
    let p50 = |times: &Histogram<u64>| times.value_at_quantile(0.5) as f64;
    let ratio = median(rounds[1..].iter().map(|[(floor, _), (own, _)]| p50(own) / p50(floor)));
    let medians = rounds[1..].iter().map(|[(floor, _), _]| p50(floor));
    let warnings =
        spread_warning("floor's median", medians).into_iter().chain(tail(&of_floor)).collect();
    let row = row(van, shape, [&of_floor, &of_subject], ratio, wrong(1));
    Ok((row, warnings))
}

fn row(
    van: &str,
    shape: Shape,
    [floor, subject]: [&Histogram<u64>; 2],
    ratio: f64,
    wrong: u64,
) -> Latency {
    let at = |quantile| micros(subject.value_at_quantile(quantile));
    let floor_at = |quantile| micros(floor.value_at_quantile(quantile));
    Latency {
        van: van.to_owned(),
        op: shape.op.name().to_owned(),
        keys: shape.keys,
        bytes: shape.bytes,
        count: subject.len(),
        min_us: micros(subject.min()),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: micros(subject.max()),
        floor_p50_us: floor_at(0.5),
        floor_p99_us: floor_at(0.99),
        ratio_p50: milli(ratio),
        wrong,
    }
}

/// One batch: its times, and how many answers were wrong.
pub(crate) fn batch(effort: Effort, subject: &mut dyn Subject) -> Result<(Histogram<u64>, u64)> {
    let mut nanos = nanoseconds();
    let mut wrong = 0;
    for _ in 0..effort.warm_up() {
        subject.once()?;
        wrong += subject.check()?;
    }
    for _ in 0..effort.batch {
        // Where both sides share a core, the system makes up for the time that checking took: let it, before the clock runs.
        std::thread::yield_now();
        let began = Instant::now();
        subject.once()?;
        let took = began.elapsed();
        nanos.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
        wrong += subject.check()?;
    }
    wrong += subject.settle()?;
    Ok((nanos, wrong))
}

/// Three digits, up to a minute.
fn nanoseconds() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .expect("three digits up to a minute is in range")
}

fn micros(nanos: u64) -> f64 {
    milli(nanos as f64 / 1e3)
}

fn tail(floor: &Histogram<u64>) -> Option<String> {
    let times = floor.value_at_quantile(0.99) as f64 / floor.value_at_quantile(0.5) as f64;
    (times > TAIL_MAX).then(|| {
        format!(
            "noisy run: the floor's p99 is {times:.1} x its p50; the tails here are the machine's"
        )
    })
}

/// How far the floor's p99 may be above its median before a run is called noisy.
const TAIL_MAX: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Op;
    use crate::subject::mock::Mock;

    const SHAPE: Shape = Shape { op: Op::Pull, keys: 1, bytes: 8, window: 1 };

    #[test]
    fn counts_what_counts_and_orders_its_quantiles() {
        let (mut floor, mut subject) = (Mock::default(), Mock::default());
        let effort = Effort { batches: 4, batch: 100 };
        let (row, _) = measure("mock", SHAPE, effort, &mut floor, &mut subject).unwrap();
        assert_eq!((row.count, row.wrong), (400, 0));
        assert!(row.min_us > 0.0 && row.min_us <= row.p50_us && row.p50_us <= row.p90_us);
        assert!(row.p90_us <= row.p99_us && row.p99_us <= row.p999_us && row.p999_us <= row.max_us);
        assert!(row.ratio_p50.is_finite());
        assert_eq!(floor.requests, subject.requests);
    }

    #[test]
    fn wrong_answers_reach_the_row_and_errors_the_caller() {
        let effort = Effort { batches: 1, batch: 20 };
        let mut wrong = Mock { wrong_check: 1, wrong_settle: 1, ..Mock::default() };
        let (row, _) = measure("mock", SHAPE, effort, &mut Mock::default(), &mut wrong).unwrap();
        assert_eq!(row.wrong, 2 * (20 + effort.warm_up() + 1));
        assert!(measure("mock", SHAPE, effort, &mut wrong, &mut Mock::default()).is_err());
        let mut fails = Mock { fail: true, ..Mock::default() };
        assert!(measure("mock", SHAPE, effort, &mut Mock::default(), &mut fails).is_err());
    }

    #[test]
    fn a_long_tail_warns() {
        let mut floor = nanoseconds();
        floor.record_n(1000, 900).unwrap();
        assert_eq!(tail(&floor), None);
        floor.record_n(100_000, 100).unwrap();
        assert!(tail(&floor).is_some());
    }
}
