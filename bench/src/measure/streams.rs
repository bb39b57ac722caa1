//! Bandwidth and rate: requests in a closed loop with a window of them in flight, large ones in
//! GB/s, small ones in millions answered a second.
//!
//! The clock runs over whole batches, from the first post to the last answer. While it runs, small
//! payloads are compared in full and large ones by their stamps; the large ones still in memory are
//! compared in full when it has stopped.
//!
//! The floor of sockets makes one call for each message. A van that sends several messages with one
//! call can be faster, which is what the rate shows.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::figures::{four, median, micro, milli, nano, ratio, spread_warning, three};
use super::multi_worker::{MultiWorkerRate, Workers};
use super::subject::{Batch, Round, Subject, Task, Work, take_turns, timed_stream};
use crate::cli::values::{name, size};
use crate::report::{figure, row};

/// What people have to know of the floor before they read its ratio as a limit.
const FLOOR: &str = "floor: a plain program and no limit; over sockets it makes one call a message";

row! {
    /// One row of `caravan bench bandwidth`. A push-pull moves `bytes` both ways and counts them
    /// once.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(crate) struct Bandwidth is "bandwidth" {
        van: String => "van",
        op: String => "op",
        keys: usize => "keys",
        bytes: usize => "size" as size,
        window: usize => "window",
        seconds: f64 => "seconds" as figure,
        gb_per_s: f64 => "GB/s" as figure,
        floor_gb_per_s: f64 => "floor" as figure,
        /// The median over rounds of the floor's time against the subject's.
        ratio: f64 => "ratio" as ratio,
        wrong: u64 => "wrong",
        /// The worker's ports that its lanes go over, where the van has ports.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ports: Vec<String>; "" |row| row.ports.join("+"),
        /// Of many workers at a time.
        #[serde(flatten, skip_serializing_if = "Option::is_none")]
        crowd: Option<Workers>; "" |row| row.crowd.map_or_else(String::new, Workers::text),
        /// The figure of each round of one pair, which shows how far they swing.
        rounds: Vec<f64>,
        floor_rounds: Vec<f64>,
    }
    title |_| format!("bandwidth: a window of requests in flight, closed loop, \
                       value payload in GB/s (10^9);\n# {FLOOR}");
    counts wrong;
}

row! {
    /// One row of `caravan bench rate`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(crate) struct Rate is "rate" {
        van: String => "van",
        op: String => "op",
        bytes: usize => "size" as size,
        window: usize => "window",
        mmsg_per_s: f64 => "Mmsg/s" as four,
        floor_mmsg_per_s: f64 => "floor" as four,
        ratio: f64 => "ratio" as ratio,
        /// The worker's system calls for a request and its answer.
        syscalls_per_msg: f64 => "calls" as three,
        /// Bytes of a request that the worker copied in user space, header included.
        bytes_copied_per_msg: f64 => "copied" as whole,
        /// Time that the worker's thread had a core, in microseconds; 0 if the kernel does not
        /// tell.
        cpu_us_per_msg: f64 => "cpu us" as three,
        /// The same of all server threads together. A thread that polls takes all the time there
        /// is.
        server_syscalls_per_msg: f64 => "srv calls" as three,
        server_bytes_copied_per_msg: f64 => "copied" as whole,
        server_cpu_us_per_msg: f64 => "cpu us" as three,
        wrong: u64 => "wrong",
        /// The worker's ports that its lanes go over, where the van has ports.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ports: Vec<String>; "" |row| row.ports.join("+"),
        /// Of many workers at a time.
        #[serde(flatten, skip_serializing_if = "Option::is_none")]
        crowd: Option<Workers>; "" |row| row.crowd.map_or_else(String::new, Workers::text),
        /// The figure of each round of one pair, which shows how far they swing.
        rounds: Vec<f64>,
        floor_rounds: Vec<f64>,
    }
    title |_| format!("rate: small requests, a window of them in flight, closed loop, \
                       million answered a second;\n# {FLOOR};\n\
                       # calls, copied bytes and time of a core for each, \
                       on the worker's side and on the servers'");
    counts wrong;
}

fn whole(value: &f64) -> String {
    format!("{value:.0}")
}

impl Bandwidth {
    /// The same row for many workers at a time, against the floor of one pair.
    pub(super) fn of_many(self, many: MultiWorkerRate) -> Bandwidth {
        let gb_per_s = many.mmsg_per_s * self.bytes as f64 / 1e3;
        Bandwidth {
            gb_per_s: micro(gb_per_s),
            ratio: milli(gb_per_s / self.floor_gb_per_s),
            wrong: self.wrong + many.wrong,
            crowd: Some(many.crowd),
            ..self
        }
    }
}

impl Rate {
    /// The same row for many workers at a time, against the floor of one pair.
    pub(super) fn of_many(self, many: MultiWorkerRate) -> Rate {
        Rate {
            mmsg_per_s: micro(many.mmsg_per_s),
            ratio: milli(many.mmsg_per_s / self.floor_mmsg_per_s),
            wrong: self.wrong + many.wrong,
            crowd: Some(many.crowd),
            ..self
        }
    }
}

/// The figures of streaming through both.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Streams {
    /// Time of all batches of the subject.
    seconds: f64,
    /// Likewise of the floor.
    floor_seconds: f64,
    /// The median over rounds. On a shared machine both sums swing, but not what a round compares.
    ratio: f64,
    /// The cost of those batches of the subject.
    work: Work,
    /// Requests a second in each round that counts, of the subject and of the floor.
    rounds: Vec<Round<f64>>,
    /// The subject's wrong answers.
    wrong: u64,
    /// What a reader should doubt.
    pub(super) warnings: Vec<String>,
}

/// Streams through both in turn.
pub(super) fn measure(
    task: &Task,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
) -> Result<Streams> {
    floor.prepare(task.shape)?;
    subject.prepare(task.shape)?;
    let effort = task.effort;
    let rounds = take_turns(effort, floor, subject, timed_stream)?;
    let floor_wrong: u64 = rounds.iter().map(|round| round.floor.wrong).sum();
    ensure!(floor_wrong == 0, "the floor itself got {floor_wrong} wrong answers");
    let timed = &rounds[1..];
    let ratios = timed.iter().map(|round| round.floor.seconds / round.subject.seconds);
    let per_second = |batch: &Batch| batch.requests as f64 / batch.seconds;
    let floor_times = timed.iter().map(|round| per_second(&round.floor).recip());
    let warning = spread_warning("time a request of the floor", floor_times);
    Ok(Streams {
        seconds: timed.iter().map(|round| round.subject.seconds).sum(),
        floor_seconds: timed.iter().map(|round| round.floor.seconds).sum(),
        ratio: median(ratios),
        work: timed.iter().fold(Work::default(), |sum, round| sum.plus(round.subject.work)),
        rounds: timed
            .iter()
            .map(|round| Round {
                floor: per_second(&round.floor),
                subject: per_second(&round.subject),
            })
            .collect(),
        wrong: rounds.iter().map(|round| round.subject.wrong).sum(),
        warnings: warning.into_iter().collect(),
    })
}

impl Streams {
    /// The figures of the rounds, of the subject and of the floor: `amount` a request in a second.
    fn rates(&self, amount: f64) -> (Vec<f64>, Vec<f64>) {
        let rate = |per_second: f64| micro(amount * per_second);
        self.rounds.iter().map(|round| (rate(round.subject), rate(round.floor))).unzip()
    }
}

/// The row of large requests.
pub(super) fn bandwidth(van: &str, task: &Task, streams: &Streams) -> Bandwidth {
    let bytes = task.effort.count as f64 * task.shape.bytes as f64;
    let (rounds, floor_rounds) = streams.rates(task.shape.bytes as f64 / 1e9);
    Bandwidth {
        van: van.to_owned(),
        op: name(&task.shape.op),
        keys: task.shape.keys,
        bytes: task.shape.bytes,
        window: task.shape.window,
        seconds: nano(streams.seconds),
        gb_per_s: micro(bytes / streams.seconds / 1e9),
        floor_gb_per_s: micro(bytes / streams.floor_seconds / 1e9),
        ratio: milli(streams.ratio),
        wrong: streams.wrong,
        ports: Vec::new(),
        crowd: None,
        rounds,
        floor_rounds,
    }
}

/// The row of small requests.
pub(super) fn rate(van: &str, task: &Task, streams: &Streams) -> Rate {
    let count = task.effort.count as f64;
    let each = |total: u64| total as f64 / count;
    let Work { worker, servers } = streams.work;
    let (rounds, floor_rounds) = streams.rates(1e-6);
    Rate {
        van: van.to_owned(),
        op: name(&task.shape.op),
        bytes: task.shape.bytes,
        window: task.shape.window,
        mmsg_per_s: micro(count / streams.seconds / 1e6),
        floor_mmsg_per_s: micro(count / streams.floor_seconds / 1e6),
        ratio: milli(streams.ratio),
        syscalls_per_msg: micro(each(worker.system_calls)),
        bytes_copied_per_msg: milli(each(worker.bytes_copied)),
        cpu_us_per_msg: micro(each(worker.cpu_ns) / 1e3),
        server_syscalls_per_msg: micro(each(servers.system_calls)),
        server_bytes_copied_per_msg: milli(each(servers.bytes_copied)),
        server_cpu_us_per_msg: micro(each(servers.cpu_ns) / 1e3),
        wrong: streams.wrong,
        ports: Vec::new(),
        crowd: None,
        rounds,
        floor_rounds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::mock::Mock;
    use crate::measure::subject::{Bench, Effort, Op, Shape};

    fn task(op: Op, bytes: usize, batch: u64) -> Task {
        let shape = Shape { op, keys: 1, bytes, window: 4 };
        Task::new(Bench::Rate, shape, Effort::of(2, batch))
    }

    #[test]
    fn counts_requests_bytes_and_wrong_answers() {
        let mut floor = Mock::default();
        let mut subject = Mock { wrong_settle: 1, ..Mock::default() };
        let large = task(Op::Push, 1 << 20, 10);
        let streams = measure(&large, &mut floor, &mut subject).unwrap();
        let row = bandwidth("mock", &large, &streams);
        assert_eq!((row.op.as_str(), row.bytes, row.window, row.wrong), ("push", 1 << 20, 4, 3));
        assert!(row.gb_per_s > 0.0 && row.floor_gb_per_s > 0.0 && row.ratio > 0.0);
        assert_eq!(floor.calls[0], "prepare");
        let small = task(Op::PushPull, 8, 100);
        let streams = measure(&small, &mut floor, &mut subject).unwrap();
        let row = rate("mock", &small, &streams);
        assert_eq!((row.op.as_str(), row.bytes, row.window, row.wrong), ("push-pull", 8, 4, 3));
        assert!(row.mmsg_per_s > 0.0 && row.ratio.is_finite());
    }

    #[test]
    fn wrong_answers_are_counted_and_a_wrong_floor_is_an_error() {
        let task = task(Op::Pull, 8, 10);
        let mut wrong = Mock { wrong_settle: 3, ..Mock::default() };
        let streams = measure(&task, &mut Mock::default(), &mut wrong).unwrap();
        assert_eq!(streams.wrong, 9);
        assert!(streams.seconds > 0.0 && streams.floor_seconds > 0.0);
        assert!(measure(&task, &mut wrong, &mut Mock::default()).is_err());
        let mut fails = Mock { fail: true, ..Mock::default() };
        assert!(measure(&task, &mut Mock::default(), &mut fails).is_err());
    }
}
