//! Bandwidth: large requests, a window of them in flight, closed loop.
//!
//! The clock runs over whole batches, from the first post to the last answer. While it runs each pulled payload is checked
//! by its stamps, one value a page; those still in memory are compared in full when it has stopped.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::report::{Shown, columns, decimals};
use crate::subject::{Effort, Shape, Subject, stream_both};
use crate::units::{self, milli};

/// One row of `caravan bench bandwidth`. A push-pull moves `bytes` both ways and counts them once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    pub(crate) van: String,
    pub(crate) op: String,
    pub(crate) keys: usize,
    pub(crate) bytes: usize,
    pub(crate) window: usize,
    pub(crate) seconds: f64,
    pub(crate) gb_per_s: f64,
    pub(crate) floor_gb_per_s: f64,
    /// The median of what each round of floor and subject gave.
    pub(crate) ratio: f64,
    pub(crate) wrong: u64,
}

impl Shown for Bandwidth {
    fn heading(&self) -> Option<String> {
        Some(format!(
            "\n# bandwidth: a window of requests in flight, closed loop, value payload in GB/s (10^9)\n{}",
            columns(&[
                "van", "op", "keys", "size", "window", "seconds", "GB/s", "floor", "ratio", "wrong"
            ])
        ))
    }

    fn text(&self) -> String {
        let mut cells = vec![self.van.clone(), self.op.clone(), self.keys.to_string()];
        cells.extend([units::size(self.bytes), self.window.to_string()]);
        cells.extend([self.seconds, self.gb_per_s, self.floor_gb_per_s].iter().map(decimals));
        cells.extend([format!("{:.2}", self.ratio), self.wrong.to_string()]);
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
) -> Result<(Bandwidth, Vec<String>)> {
    floor.prepare(shape)?;
    subject.prepare(shape)?;
    let streams = stream_both(effort, floor, subject)?;
    let bytes = effort.count() as f64 * shape.bytes as f64;
    let [floor_rate, rate] = streams.seconds.map(|seconds| bytes / seconds / 1e9);
    let row = Bandwidth {
        van: van.to_owned(),
        op: shape.op.name().to_owned(),
        keys: shape.keys,
        bytes: shape.bytes,
        window: shape.window,
        seconds: milli(streams.seconds[1]),
        gb_per_s: milli(rate),
        floor_gb_per_s: milli(floor_rate),
        ratio: milli(streams.ratio),
        wrong: streams.wrong,
    };
    Ok((row, streams.warnings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Op;
    use crate::subject::mock::Mock;

    #[test]
    fn counts_bytes_and_wrong_answers() {
        let shape = Shape { op: Op::Push, keys: 1, bytes: 1 << 20, window: 4 };
        let effort = Effort { batches: 2, batch: 10 };
        let (mut floor, mut subject) =
            (Mock::default(), Mock { wrong_settle: 1, ..Mock::default() });
        let (row, _) = measure("mock", shape, effort, &mut floor, &mut subject).unwrap();
        assert_eq!((row.op.as_str(), row.bytes, row.window, row.wrong), ("push", 1 << 20, 4, 3));
        assert!(row.gb_per_s > 0.0 && row.floor_gb_per_s > 0.0 && row.ratio > 0.0);
        assert_eq!(floor.calls[0], "prepare");
    }
}
