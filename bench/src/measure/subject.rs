//! What a bench measures, and how two subjects take turns.
//!
//! The van and its floor are both a [`Subject`]. The same loop times both, batch by batch in turn
//! (A B A B …): a machine that drifts drifts for both, and their ratio stays.

use std::time::{Duration, Instant};

use anyhow::Result;
use caravan_kv::Cost;
use serde::{Deserialize, Serialize};

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// Sends values; the answer is empty.
    Push,
    /// Fetches values; the request holds keys only.
    Pull,
    /// Likewise, and leaves long values where the server has them, to be read there. Only for a van
    /// that lends them, as shm does.
    PullLent,
    /// Sends values and fetches those of the same keys.
    PushPull,
}

impl Op {
    /// Whether a request carries values.
    pub(crate) fn pushes(self) -> bool {
        matches!(self, Op::Push | Op::PushPull)
    }

    pub(crate) fn pulls(self) -> bool {
        self != Op::Push
    }
}

/// The requests of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// What each does.
    pub(crate) op: Op,
    /// Keys a request.
    pub(crate) keys: usize,
    /// Value payload of one request, in bytes: the same number of `f32` for each key.
    pub(crate) bytes: usize,
    pub(crate) window: usize,
}

/// Which bench makes a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bench {
    Latency,
    Bandwidth,
    Rate,
}

/// One row to measure, as it travels to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) bench: Bench,
    pub(crate) shape: Shape,
    pub(crate) effort: Effort,
    /// How long the row may take; its effort then has the number of batches only.
    pub(crate) lasts: Option<Duration>,
    /// Whether the worker names lists of keys that it sends again.
    pub(crate) key_cache: bool,
    /// So much longer every request is made to take, in percent: for tests of `compare`.
    pub(crate) slower_percent: u32,
    pub(crate) copies: Copies,
}

/// Copies of each shard beside the one that serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Copies {
    pub(crate) replicas: u32,
    pub(crate) asynchronous: bool,
}

impl Task {
    /// A row of so many requests as `effort` has, whose lists of keys have names.
    pub(crate) fn new(bench: Bench, shape: Shape, effort: Effort) -> Task {
        let copies = Copies::default();
        Task { bench, shape, effort, lasts: None, key_cache: true, slower_percent: 0, copies }
    }
}

/// The cost of requests on both sides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// The thread that measures.
    pub(crate) worker: Cost,
    /// All server threads together.
    pub(crate) servers: Cost,
}

impl Work {
    fn since(self, before: Work) -> Work {
        Work { worker: self.worker - before.worker, servers: self.servers - before.servers }
    }

    pub(super) fn plus(self, other: Work) -> Work {
        Work { worker: self.worker + other.worker, servers: self.servers + other.servers }
    }
}

/// Something that answers requests of a shape.
///
/// `once` and `stream` are timed. In the other calls a subject checks answers and prepares
/// requests.
pub(crate) trait Subject {
    /// Prepares requests of `shape`: memory, tables, a first pattern.
    fn prepare(&mut self, shape: Shape) -> Result<()>;

    /// One request, and its answer. Timed.
    fn once(&mut self) -> Result<()>;

    /// After `once`: checks its whole answer and prepares the next request. Returns the number of
    /// wrong answers, 0 or 1.
    fn check(&mut self) -> Result<u64>;

    /// `count` requests with the shape's window in flight, all of them answered. Timed.
    fn stream(&mut self, count: u64) -> Result<()>;

    /// The cost of requests so far, if that is counted. Asking the servers is a request, too.
    fn work(&mut self) -> Result<Work> {
        Ok(Work::default())
    }

    /// After a batch: checks what is left to check. Returns the number of wrong answers since the
    /// last call, without those of `check`.
    fn settle(&mut self) -> Result<u64>;
}

/// A subject whose requests take longer, on purpose.
pub(crate) struct Slower<'a> {
    pub(crate) subject: &'a mut dyn Subject,
    pub(crate) percent: u32,
}

impl Slower<'_> {
    fn timed<T>(&mut self, run: impl FnOnce(&mut dyn Subject) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let outcome = run(self.subject)?;
        let took = began.elapsed();
        let until = took + took * self.percent / 100;
        while began.elapsed() < until {
            std::hint::spin_loop();
        }
        Ok(outcome)
    }
}

impl Subject for Slower<'_> {
    fn prepare(&mut self, shape: Shape) -> Result<()> {
        self.subject.prepare(shape)
    }

    fn once(&mut self) -> Result<()> {
        self.timed(|subject| subject.once())
    }

    fn check(&mut self) -> Result<u64> {
        self.subject.check()
    }

    fn stream(&mut self, count: u64) -> Result<()> {
        self.timed(|subject| subject.stream(count))
    }

    fn work(&mut self) -> Result<Work> {
        self.subject.work()
    }

    fn settle(&mut self) -> Result<u64> {
        self.subject.settle()
    }
}

/// How many requests a row takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effort {
    /// Requests of each subject that count.
    pub(crate) count: u64,
    /// The batches that they come in.
    pub(crate) batches: u32,
}

impl Effort {
    /// `count` requests in `batches` batches, or fewer if that would leave some empty.
    pub(crate) fn new(count: u64, batches: u32) -> Self {
        let count = count.max(1);
        Effort { count, batches: batches.clamp(1, u32::try_from(count).unwrap_or(u32::MAX)) }
    }

    /// `batches` batches of `batch` requests each.
    pub(crate) fn of(batches: u32, batch: u64) -> Self {
        Effort { count: batch.saturating_mul(batches.into()), batches }
    }

    /// Requests of each batch; the first ones have one more than the last where it takes that.
    pub(crate) fn each(self) -> impl Iterator<Item = u64> + Clone {
        let batches = u64::from(self.batches);
        (0..batches).map(move |at| self.count / batches + u64::from(at < self.count % batches))
    }
}

/// Requests before a batch of `batch` that don't count: they wake threads that slept during the
/// other subject's turn.
pub(crate) fn warm_up(batch: u64) -> u64 {
    batch / 20 + 2
}

/// What one batch gave, of the floor and of the subject.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Round<T> {
    pub(crate) floor: T,
    pub(crate) subject: T,
}

/// Lets `floor` and `subject` take turns: one round to warm up, then the effort's batches. `batch`
/// runs one of so many requests. Returns all rounds, the warm-up first: its wrong answers count,
/// its times don't.
pub(crate) fn take_turns<T>(
    effort: Effort,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
    mut batch: impl FnMut(u64, &mut dyn Subject) -> Result<T>,
) -> Result<Vec<Round<T>>> {
    let round = |requests| {
        Ok(Round { floor: batch(requests, &mut *floor)?, subject: batch(requests, &mut *subject)? })
    };
    effort.each().take(1).chain(effort.each()).map(round).collect()
}

pub(crate) struct Batch {
    pub(crate) requests: u64,
    /// Never 0, so that a rate stays a number: a nanosecond is less than any clock measures.
    pub(crate) seconds: f64,
    pub(crate) work: Work,
    pub(crate) wrong: u64,
}

pub(crate) fn timed_stream(requests: u64, subject: &mut dyn Subject) -> Result<Batch> {
    subject.stream(warm_up(requests))?;
    let before = subject.work()?;
    let began = Instant::now();
    subject.stream(requests)?;
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    let work = subject.work()?.since(before);
    Ok(Batch { requests, seconds, work, wrong: subject.settle()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::mock::Mock;

    #[test]
    fn effort_is_the_count_and_no_batch_is_empty() {
        for (count, batches, expected) in [
            (100_000, 20, vec![5000; 20]),
            (50, 20, [[3; 10], [2; 10]].concat()),
            (3, 20, vec![1; 3]),
            (0, 0, vec![1]),
            (7, 3, vec![3, 2, 2]),
        ] {
            let effort = Effort::new(count, batches);
            assert_eq!(effort.each().collect::<Vec<_>>(), expected);
            assert_eq!(effort.each().sum::<u64>(), effort.count);
        }
        assert_eq!(Effort::of(3, 7).each().collect::<Vec<_>>(), [7; 3]);
    }

    #[test]
    fn both_take_turns_with_a_round_to_warm_up() {
        let (mut floor, mut subject) = (Mock::default(), Mock::default());
        let effort = Effort::of(3, 40);
        let mut order = Vec::new();
        let rounds = take_turns(effort, &mut floor, &mut subject, |requests, subject| {
            subject.stream(requests)?;
            order.push(());
            Ok(order.len())
        })
        .unwrap();
        let expected = [1, 3, 5, 7].map(|floor| Round { floor, subject: floor + 1 });
        assert_eq!(rounds, expected);
        assert_eq!((floor.requests, subject.requests), (160, 160));
    }
}
