//! What is measured, as the benches see it, and how two of them take turns.
//!
//! The van and its floor are both a [`Subject`]: the same loop times both, batch by batch in turn (A B A B …), so that a
//! machine that drifts drifts for both and their ratio stays.

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
    /// Likewise, and leaves long values where the server has them, to be read there. Only for a van that lends them, as shm does.
    PullLent,
    /// Sends values and fetches those of the same keys.
    PushPull,
}

impl Op {
    /// Whether a request carries values.
    pub(crate) fn pushes(self) -> bool {
        matches!(self, Op::Push | Op::PushPull)
    }

    /// Whether an answer carries values.
    pub(crate) fn pulls(self) -> bool {
        self != Op::Push
    }

    /// As in a row.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Push => "push",
            Op::Pull => "pull",
            Op::PullLent => "pull-lent",
            Op::PushPull => "push-pull",
        }
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
    /// Most requests in flight.
    pub(crate) window: usize,
}

/// What requests have cost both sides.
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

    fn plus(self, other: Work) -> Work {
        Work { worker: self.worker + other.worker, servers: self.servers + other.servers }
    }
}

/// Something that answers requests of a shape.
///
/// `once` and `stream` are timed, the others are not: there a subject checks what came and readies what goes next.
pub(crate) trait Subject {
    /// Gets ready for requests of `shape`: memory, tables, a first pattern.
    fn prepare(&mut self, shape: Shape) -> Result<()>;

    /// One request, and its answer. Timed.
    fn once(&mut self) -> Result<()>;

    /// After `once`: checks all of its answer and readies the next request. Returns how many were wrong, 0 or 1.
    fn check(&mut self) -> Result<u64>;

    /// `count` requests with the shape's window in flight, all of them answered. Timed.
    fn stream(&mut self, count: u64) -> Result<()>;

    /// What requests have cost so far, where that is counted. Asking the servers is a request, too.
    fn work(&mut self) -> Result<Work> {
        Ok(Work::default())
    }

    /// After a batch: checks what is left to check. Returns how many were wrong since the last call, besides `check`'s.
    fn settle(&mut self) -> Result<u64>;
}

/// How many requests a row takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effort {
    /// Batches of each subject that count.
    pub(crate) batches: u32,
    /// Requests a batch.
    pub(crate) batch: u64,
}

impl Effort {
    /// At least `count` requests in `batches` batches.
    pub(crate) fn new(count: u64, batches: u32) -> Self {
        let batches = batches.clamp(1, u32::try_from(count.max(1)).unwrap_or(u32::MAX));
        Effort { batches, batch: count.max(1).div_ceil(u64::from(batches)) }
    }

    /// Requests of each subject that count.
    pub(crate) fn count(self) -> u64 {
        self.batch * u64::from(self.batches)
    }

    /// Requests before each batch that don't: the first ones wake whoever slept during the other one's turn.
    pub(crate) fn warm_up(self) -> u64 {
        self.batch / 20 + 2
    }
}

/// Lets `floor` and `subject` take turns: one round to warm up, then the effort's batches. `batch` runs one. Returns all
/// rounds, the warm-up first: its times don't count, its wrong answers do.
///
/// # Errors
/// The first error of either.
pub(crate) fn take_turns<T>(
    effort: Effort,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
    mut batch: impl FnMut(&mut dyn Subject) -> Result<T>,
) -> Result<Vec<[T; 2]>> {
    let mut rounds = Vec::with_capacity(effort.batches as usize + 1);
    for _ in 0..=effort.batches {
        rounds.push([batch(&mut *floor)?, batch(&mut *subject)?]);
    }
    Ok(rounds)
}

/// One batch of streaming.
pub(crate) struct Batch {
    pub(crate) took: Duration,
    pub(crate) work: Work,
    pub(crate) wrong: u64,
}

/// Streams one batch: how long it took, what it cost, and how many answers were wrong.
pub(crate) fn timed_stream(effort: Effort, subject: &mut dyn Subject) -> Result<Batch> {
    subject.stream(effort.warm_up())?;
    let before = subject.work()?;
    let began = Instant::now();
    subject.stream(effort.batch)?;
    let took = began.elapsed();
    let work = subject.work()?.since(before);
    Ok(Batch { took, work, wrong: subject.settle()? })
}

/// What streaming both gave.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Streams {
    /// Time of all batches of the floor, then of the subject.
    pub(crate) seconds: [f64; 2],
    /// The median of the batches' ratios of the floor's time to the subject's. Where both swing together, as on a machine that is
    /// shared, their sums are as far off as the swings, and this is not.
    pub(crate) ratio: f64,
    /// What those batches of the subject cost.
    pub(crate) work: Work,
    /// The subject's wrong answers.
    pub(crate) wrong: u64,
    /// What a reader should doubt.
    pub(crate) warnings: Vec<String>,
}

/// Streams both in turn and adds up.
///
/// # Errors
/// The first error of either, and a floor that got a wrong answer: then nothing here can be trusted.
pub(crate) fn stream_both(
    effort: Effort,
    floor: &mut dyn Subject,
    subject: &mut dyn Subject,
) -> Result<Streams> {
    let rounds = take_turns(effort, floor, subject, |subject| timed_stream(effort, subject))?;
    let wrong = |which: usize| rounds.iter().map(|round| round[which].wrong).sum::<u64>();
    anyhow::ensure!(wrong(0) == 0, "the floor itself got {} wrong answers", wrong(0));
    let seconds =
        |which: usize| rounds[1..].iter().map(move |round| round[which].took.as_secs_f64());
    // Never 0, so that a rate stays a number: a nanosecond is less than any clock sees.
    let total = |which: usize| seconds(which).sum::<f64>().max(1e-9);
    Ok(Streams {
        seconds: [total(0), total(1)],
        ratio: median(seconds(0).zip(seconds(1)).map(|(floor, subject)| floor / subject.max(1e-9))),
        work: rounds[1..].iter().fold(Work::default(), |sum, round| sum.plus(round[1].work)),
        wrong: wrong(1),
        warnings: spread_warning("time a batch of the floor", seconds(0)).into_iter().collect(),
    })
}

/// The one in the middle; of an even number the upper of the two.
///
/// # Panics
/// If there are none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A warning when the batches of a floor, which does the same again and again, are too far apart.
pub(crate) fn spread_warning(what: &str, batches: impl Iterator<Item = f64>) -> Option<String> {
    let mut batches: Vec<f64> = batches.collect();
    batches.sort_by(f64::total_cmp);
    // The middle four fifths: one interrupted batch in twenty is not yet a noisy run.
    let cut = batches.len() / 10;
    let (low, high) = (batches.get(cut)?, batches.get(batches.len() - 1 - cut)?);
    (*high > SPREAD_MAX * *low).then(|| {
        format!(
            "noisy run: the {what} spread by {:.1} x between batches; stop other programs, pin, or take more iterations",
            high / low
        )
    })
}

/// How far apart batches may be before a run is called noisy.
const SPREAD_MAX: f64 = 1.5;

#[cfg(test)]
pub(crate) mod mock {
    //! A subject that counts, and is wrong when told to.

    use super::*;

    #[derive(Debug, Default)]
    pub(crate) struct Mock {
        pub(crate) calls: Vec<&'static str>,
        pub(crate) requests: u64,
        pub(crate) wrong_check: u64,
        pub(crate) wrong_settle: u64,
        pub(crate) fail: bool,
    }

    impl Subject for Mock {
        fn prepare(&mut self, _: Shape) -> Result<()> {
            self.calls.push("prepare");
            Ok(())
        }

        fn once(&mut self) -> Result<()> {
            anyhow::ensure!(!self.fail, "told to fail");
            self.requests += 1;
            Ok(())
        }

        fn check(&mut self) -> Result<u64> {
            Ok(self.wrong_check)
        }

        fn stream(&mut self, count: u64) -> Result<()> {
            anyhow::ensure!(!self.fail, "told to fail");
            self.calls.push("stream");
            self.requests += count;
            Ok(())
        }

        fn settle(&mut self) -> Result<u64> {
            self.calls.push("settle");
            Ok(self.wrong_settle)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mock::Mock;
    use super::*;

    #[test]
    fn effort_covers_the_count() {
        let effort = Effort::new(100_000, 20);
        assert_eq!((effort.batches, effort.batch, effort.count()), (20, 5000, 100_000));
        assert_eq!(Effort::new(3, 20), Effort { batches: 3, batch: 1 });
        assert_eq!(Effort::new(0, 0), Effort { batches: 1, batch: 1 });
        assert_eq!(Effort::new(21, 20).count(), 40);
    }

    #[test]
    fn both_take_turns_with_a_round_to_warm_up() {
        let (mut floor, mut subject) = (Mock::default(), Mock::default());
        let effort = Effort { batches: 3, batch: 40 };
        let mut order = Vec::new();
        let rounds = take_turns(effort, &mut floor, &mut subject, |subject| {
            subject.stream(effort.batch)?;
            order.push(());
            Ok(order.len())
        })
        .unwrap();
        assert_eq!(rounds, [[1, 2], [3, 4], [5, 6], [7, 8]]);
        assert_eq!((floor.requests, subject.requests), (160, 160));
    }

    #[test]
    fn wrong_answers_are_counted_and_a_wrong_floor_is_an_error() {
        let effort = Effort { batches: 2, batch: 10 };
        let mut wrong = Mock { wrong_settle: 3, ..Mock::default() };
        let streams = stream_both(effort, &mut Mock::default(), &mut wrong).unwrap();
        assert_eq!(streams.wrong, 9);
        assert!(streams.seconds.iter().all(|seconds| *seconds > 0.0));
        assert!(stream_both(effort, &mut wrong, &mut Mock::default()).is_err());
        let mut fails = Mock { fail: true, ..Mock::default() };
        assert!(stream_both(effort, &mut Mock::default(), &mut fails).is_err());
    }

    /// One batch in which only the floor was held up, and one in which both were, change nothing.
    #[test]
    fn the_median_of_ratios_stays_where_sums_do_not() {
        let rounds = [(2.0, 1.0), (2.0, 1.0), (90.0, 1.0), (20.0, 10.0), (2.0, 1.0)];
        assert_eq!(median(rounds.iter().map(|(floor, subject)| floor / subject)), 2.0);
        assert_eq!(median([3.0, 1.0].into_iter()), 3.0);
    }

    #[test]
    fn a_spread_run_warns() {
        assert_eq!(spread_warning("x", [1.0; 20].into_iter()), None);
        assert_eq!(spread_warning("x", std::iter::empty()), None);
        let one_bad = (0..20).map(|n| if n == 3 { 9.0 } else { 1.0 });
        assert_eq!(spread_warning("x", one_bad), None);
        let half_bad = (0..20).map(|n| if n % 2 == 0 { 2.0 } else { 1.0 });
        assert!(spread_warning("x", half_bad).unwrap().contains("2.0 x"));
    }
}
