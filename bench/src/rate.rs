//! Rate: small requests, a window of them in flight, closed loop; how many are answered a second.
//!
//! The floor makes one call for each message. A van that lets messages leave together passes it: that is what this row is
//! for. Payloads this small are compared in full while the clock runs.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::crowd::Crowd;
use crate::report::{Shown, columns};
use crate::subject::{Effort, Shape, Subject, Work, stream_both};
use crate::units;

/// One row of `caravan bench rate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) van: String,
    pub(crate) op: String,
    pub(crate) bytes: usize,
    pub(crate) window: usize,
    pub(crate) mmsg_per_s: f64,
    pub(crate) floor_mmsg_per_s: f64,
    pub(crate) ratio: f64,
    /// The worker's system calls for a request and its answer.
    pub(crate) syscalls_per_msg: f64,
    /// Bytes of a request that the worker copied in user space, those of its header included.
    pub(crate) bytes_copied_per_msg: f64,
    /// Time the worker's thread had a core for, in microseconds; 0 where the kernel does not say.
    pub(crate) cpu_us_per_msg: f64,
    /// The same of all server threads together. Those that wait by looking take all the time there is.
    pub(crate) server_syscalls_per_msg: f64,
    pub(crate) server_bytes_copied_per_msg: f64,
    pub(crate) server_cpu_us_per_msg: f64,
    pub(crate) wrong: u64,
    /// Of many workers at a time.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) crowd: Option<Crowd>,
}

impl Shown for Rate {
    fn heading(&self) -> Option<String> {
        Some(format!(
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
        ))
    }

    fn text(&self) -> String {
        let mut cells = vec![
            self.van.clone(),
            self.op.clone(),
            units::size(self.bytes),
            self.window.to_string(),
        ];
        cells.extend([format!("{:.4}", self.mmsg_per_s), format!("{:.4}", self.floor_mmsg_per_s)]);
        cells.push(format!("{:.2}", self.ratio));
        for (calls, copied, cpu_us) in [
            (self.syscalls_per_msg, self.bytes_copied_per_msg, self.cpu_us_per_msg),
            (
                self.server_syscalls_per_msg,
                self.server_bytes_copied_per_msg,
                self.server_cpu_us_per_msg,
            ),
        ] {
            cells.extend([format!("{calls:.3}"), format!("{copied:.0}")]);
            cells.push(format!("{cpu_us:.3}"));
        }
        cells.push(self.wrong.to_string());
        let many = self.crowd.map_or_else(String::new, |crowd| {
            format!(
                "  {} workers, {} servers x {} threads; slowest over mean {:.2}",
                crowd.workers, crowd.servers, crowd.threads, crowd.slowest_over_mean
            )
        });
        columns(&cells) + &many
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl Rate {
    /// The same row for many workers, which made `mmsg_per_s` requests and got `wrong` answers.
    pub(crate) fn of_many(self, (crowd, mmsg_per_s, wrong): (Crowd, f64, u64)) -> Rate {
        Rate {
            mmsg_per_s: micro(mmsg_per_s),
            ratio: units::milli(mmsg_per_s / self.floor_mmsg_per_s),
            wrong: self.wrong + wrong,
            crowd: Some(crowd),
            ..self
        }
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
) -> Result<(Rate, Vec<String>)> {
    floor.prepare(shape)?;
    subject.prepare(shape)?;
    let streams = stream_both(effort, floor, subject)?;
    let [floor_rate, rate] = streams.seconds.map(|seconds| effort.count() as f64 / seconds / 1e6);
    let each = |total: u64| total as f64 / effort.count() as f64;
    let Work { worker, servers } = streams.work;
    let row = Rate {
        van: van.to_owned(),
        op: shape.op.name().to_owned(),
        bytes: shape.bytes,
        window: shape.window,
        mmsg_per_s: micro(rate),
        floor_mmsg_per_s: micro(floor_rate),
        ratio: units::milli(streams.ratio),
        syscalls_per_msg: micro(each(worker.system_calls)),
        bytes_copied_per_msg: units::milli(each(worker.bytes_copied)),
        cpu_us_per_msg: micro(each(worker.cpu_ns) / 1e3),
        server_syscalls_per_msg: micro(each(servers.system_calls)),
        server_bytes_copied_per_msg: units::milli(each(servers.bytes_copied)),
        server_cpu_us_per_msg: micro(each(servers.cpu_ns) / 1e3),
        wrong: streams.wrong,
        crowd: None,
    };
    Ok((row, streams.warnings))
}

/// Six decimals: single messages a second.
fn micro(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Op;
    use crate::subject::mock::Mock;

    #[test]
    fn counts_messages_and_wrong_answers() {
        let shape = Shape { op: Op::PushPull, keys: 1, bytes: 8, window: 64 };
        let effort = Effort { batches: 2, batch: 100 };
        let mut subject = Mock { wrong_settle: 1, ..Mock::default() };
        let (row, _) = measure("mock", shape, effort, &mut Mock::default(), &mut subject).unwrap();
        assert_eq!((row.op.as_str(), row.bytes, row.window, row.wrong), ("push-pull", 8, 64, 3));
        assert!(row.mmsg_per_s > 0.0 && row.ratio.is_finite());
    }
}
