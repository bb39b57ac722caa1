//! The loop that makes requests when they are due, and times them from then on.
//!
//! A request that was sent late because the servers or this thread were busy has waited all the
//! same, and its latency says so: nothing is left out because the answer before it was slow (Tene,
//! "How not to measure latency", 2013: coordinated omission).

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::schedule::Schedule;
use crate::measure::figures::{nanoseconds, record};

/// Where requests go.
pub(super) trait Service {
    /// A request that has been made.
    type Made;

    fn now(&self) -> Duration;

    /// Makes the next request.
    fn post(&mut self) -> Result<Self::Made>;

    /// Looks for answers, without waiting; returns whether any came.
    fn look(&mut self) -> Result<bool>;

    /// Whether a request has been answered.
    fn is_done(&mut self, made: &Self::Made) -> Result<bool>;

    /// Takes its answer, waiting for it if need be.
    fn finish(&mut self, made: Self::Made) -> Result<Finished>;

    /// Waits for answers, but not for longer than this.
    fn wait(&mut self, most: Duration) -> Result<()>;
}

/// An answer that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Finished {
    /// Number of its kind.
    pub(super) kind: usize,
    pub(super) is_wrong: bool,
}

/// How long requests are made, and how many at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Requests due earlier are not counted, unless they are sent after twice as long.
    pub(super) warm_up: Duration,
    /// Requests are due up to then.
    pub(super) seconds: Duration,
    /// Most requests in flight. More that are due wait here, and their time counts.
    pub(super) window: usize,
}

/// Kinds of requests: pushes and pulls.
pub(super) const KINDS: usize = 2;

/// What a run gave.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) kinds: [Timed; KINDS],
    /// Time in which the counted requests were made and answered.
    pub(super) seconds: f64,
    /// How long after their time requests were sent.
    pub(super) late: Histogram<u64>,
    /// Requests that were due and never sent, since the servers took too long for the others.
    pub(super) unsent: u64,
}

/// Requests of one kind.
#[derive(Debug)]
pub(super) struct Timed {
    /// From when they were due to their answer.
    pub(super) nanos: Histogram<u64>,
    pub(super) wrong: u64,
}

/// Makes the requests of `schedule`, and waits for all their answers. Requests that are not sent
/// when as much time again has passed are given up.
pub(super) fn drive<S: Service>(
    service: &mut S,
    mut schedule: Schedule,
    limits: Limits,
) -> Result<Driven> {
    let Limits { warm_up, seconds, window } = limits;
    let began = service.now();
    let mut in_flight: Vec<(S::Made, Duration, bool)> = Vec::with_capacity(window);
    let mut kinds = [(); KINDS].map(|()| Timed { nanos: nanoseconds(), wrong: 0 });
    let mut late = nanoseconds();
    let mut from = None;
    let mut ended = seconds;
    let mut now = Duration::ZERO;
    let mut due = schedule.due(now);
    let may_send = |due: Duration, now: Duration| due < seconds && now < 2 * seconds;
    while may_send(due, now) || !in_flight.is_empty() {
        while due <= now && may_send(due, now) && in_flight.len() < window {
            // At a rate far above what the servers can do only the first requests are ever sent.
            let counts = due >= warm_up || now >= 2 * warm_up;
            in_flight.push((service.post()?, due, counts));
            if counts {
                record(&mut late, now - due);
                from.get_or_insert(now - due.saturating_sub(warm_up));
            }
            schedule.advance();
            now = service.now() - began;
            due = schedule.due(now);
        }
        if !service.look()? {
            let sends = may_send(due, now) && in_flight.len() < window;
            service.wait(if sends { pause(due.saturating_sub(now)) } else { BACKOFF })?;
            service.look()?;
        }
        now = service.now() - began;
        // Whoever still has not answered by then is waited for, with the patience of any request.
        let is_over = now >= 2 * seconds;
        let mut at = 0;
        while at < in_flight.len() {
            if !is_over && !service.is_done(&in_flight[at].0)? {
                at += 1;
                continue;
            }
            let (made, due, counts) = in_flight.swap_remove(at);
            let Finished { kind, is_wrong } = service.finish(made)?;
            kinds[kind].wrong += u64::from(is_wrong);
            let answered = if is_over { service.now() - began } else { now };
            if counts {
                record(&mut kinds[kind].nanos, answered - due);
                ended = answered.max(seconds);
            }
        }
        due = schedule.due(now);
    }
    let seconds = ended.saturating_sub(from.unwrap_or(warm_up)).as_secs_f64();
    Ok(Driven { kinds, seconds, late, unsent: schedule.left(limits.seconds) })
}

/// How long to wait for answers before the next request is due. The kernel wakes a sleeper up to
/// milliseconds late, so the last of them pass without sleep if the wait policy allows it.
fn pause(until_due: Duration) -> Duration {
    if until_due > 2 * SLEEP_ERROR { until_due - SLEEP_ERROR } else { until_due.min(AWAKE) }
}

const SLEEP_ERROR: Duration = Duration::from_millis(2);
/// The adaptive policy stays awake for so long.
const AWAKE: Duration = Duration::from_micros(150);
/// How long a thread waits that has nothing to send.
const BACKOFF: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::collections::VecDeque;

    use caravan_kv::filter::Draws;

    use super::super::schedule::Arrivals;
    use super::*;

    /// One server that takes requests in order, in a time that only this test moves.
    struct Played {
        now: Duration,
        takes: Duration,
        /// No request is served from the first to the second time.
        stalls: [Duration; 2],
        free_at: Duration,
        posted: u64,
        answers: VecDeque<(u64, Duration)>,
        in_flight_max: usize,
    }

    impl Played {
        fn new(takes_us: u64, stalls_ms: [u64; 2]) -> Played {
            Played {
                now: Duration::ZERO,
                takes: Duration::from_micros(takes_us),
                stalls: stalls_ms.map(Duration::from_millis),
                free_at: Duration::ZERO,
                posted: 0,
                answers: VecDeque::new(),
                in_flight_max: 0,
            }
        }

        /// When a request that comes now is answered.
        fn serve(&mut self) -> Duration {
            let begins = self.free_at.max(self.now);
            let [from, to] = self.stalls;
            let begins = if (from..to).contains(&begins) { to } else { begins };
            self.free_at = begins + self.takes;
            self.free_at
        }
    }

    impl Service for Played {
        type Made = u64;

        fn now(&self) -> Duration {
            self.now
        }

        fn post(&mut self) -> Result<u64> {
            let at = self.serve();
            self.posted += 1;
            self.answers.push_back((self.posted, at));
            self.in_flight_max = self.in_flight_max.max(self.answers.len());
            Ok(self.posted)
        }

        fn look(&mut self) -> Result<bool> {
            Ok(self.answers.iter().any(|(_, at)| *at <= self.now))
        }

        fn is_done(&mut self, made: &u64) -> Result<bool> {
            Ok(self.answers.iter().any(|(number, at)| number == made && *at <= self.now))
        }

        fn finish(&mut self, made: u64) -> Result<Finished> {
            let answered = self.answers.iter().find(|(number, _)| *number == made);
            self.now = self.now.max(answered.unwrap().1);
            self.answers.retain(|(number, _)| *number != made);
            Ok(Finished { kind: (made % 2) as usize, is_wrong: made == 5 })
        }

        fn wait(&mut self, most: Duration) -> Result<()> {
            let next = self.answers.iter().map(|(_, at)| *at).min().unwrap_or(Duration::MAX);
            self.now = next.min(self.now + most);
            Ok(())
        }
    }

    fn limits(ms: u64, window: usize) -> Limits {
        Limits { warm_up: Duration::ZERO, seconds: Duration::from_millis(ms), window }
    }

    fn schedule(rate: Option<f64>, arrivals: Arrivals) -> Schedule {
        Schedule::new(rate, arrivals, 0, 1, Draws::new(3, 0))
    }

    fn all(driven: &Driven) -> Histogram<u64> {
        let mut all = driven.kinds[0].nanos.clone();
        all += &driven.kinds[1].nanos;
        all
    }

    /// Goal: no request is left out because the one before it was slow. Method: a server that
    /// answers within 10 µs stands still for 100 of 1000 ms; of 1000 requests a second those of
    /// that time wait for its end, 50 ms on average. A closed loop sees one slow request.
    #[test]
    fn requests_of_a_stall_count_with_their_whole_wait() {
        for window in [4, 1000] {
            let even = schedule(Some(1000.0), Arrivals::Even);
            let mut played = Played::new(10, [400, 500]);
            let driven = drive(&mut played, even, limits(1000, window)).unwrap();
            let nanos = all(&driven);
            assert_eq!((nanos.len(), driven.unsent), (1000, 0));
            let slow = |ms: u64| nanos.count_between(ms * 1_000_000, u64::MAX);
            assert!(slow(1).abs_diff(100) <= 2, "{}", slow(1));
            assert!(slow(50).abs_diff(50) <= 2, "{}", slow(50));
            assert!((nanos.value_at_quantile(0.95) / 1_000_000).abs_diff(50) <= 2);
            assert!(played.in_flight_max <= window);
        }
        let closed = schedule(None, Arrivals::Even);
        let driven = drive(&mut Played::new(10, [400, 500]), closed, limits(1000, 1)).unwrap();
        let nanos = all(&driven);
        assert_eq!(nanos.count_between(1_000_000, u64::MAX), 1);
        assert!(nanos.len().abs_diff(90_000) < 10, "{}", nanos.len());
    }

    /// Goal: latencies are those of the queue. Method: random arrivals at 80 % of the rate of a
    /// server, against Lindley's recursion over the same times.
    #[test]
    fn latencies_are_those_of_the_queue() {
        let random = schedule(Some(80_000.0), Arrivals::Random);
        let mut times = random.clone();
        let mut expected = nanoseconds();
        let takes = Duration::from_micros(10);
        let mut free_at = Duration::ZERO;
        while times.due(Duration::ZERO) < Duration::from_millis(1000) {
            let due = times.due(Duration::ZERO);
            free_at = free_at.max(due) + takes;
            record(&mut expected, free_at - due);
            times.advance();
        }
        let mut played = Played::new(10, [5000, 5000]);
        let driven = drive(&mut played, random, limits(1000, 10_000)).unwrap();
        let nanos = all(&driven);
        assert_eq!(nanos.len(), expected.len());
        for quantile in [0.5, 0.9, 0.99, 0.999] {
            let [found, expected] = [&nanos, &expected].map(|h| h.value_at_quantile(quantile));
            assert!(found.abs_diff(expected) * 50 <= expected, "{quantile}: {found} {expected}");
        }
        assert_eq!(driven.kinds[1].wrong, 1);
    }

    #[test]
    fn an_overload_ends_and_says_what_was_not_sent() {
        let even = schedule(Some(1000.0), Arrivals::Even);
        let mut played = Played::new(10_000, [5000, 5000]);
        let driven = drive(&mut played, even, limits(1000, 4)).unwrap();
        let nanos = all(&driven);
        assert_eq!(nanos.len() + driven.unsent, 1000);
        assert!(nanos.len().abs_diff(200) <= 5, "two seconds of 100 each: {}", nanos.len());
        assert!((nanos.max() / 1_000_000).abs_diff(1800) < 60, "{}", nanos.max());
        assert!((driven.seconds - 2.0).abs() < 0.1, "{}", driven.seconds);
    }

    /// A thousand times what the server can do: all that is ever sent was due in the warm-up.
    #[test]
    fn an_overload_that_never_gets_beyond_the_warm_up_says_what_was_done() {
        let even = schedule(Some(100_000.0), Arrivals::Even);
        let limits = Limits { warm_up: Duration::from_millis(200), ..limits(1000, 4) };
        let driven = drive(&mut Played::new(10_000, [5000, 5000]), even, limits).unwrap();
        let count = all(&driven).len();
        assert!(count.abs_diff(160) <= 5, "from 400 ms to two seconds: {count}");
        let per_s = count as f64 / driven.seconds;
        assert!((per_s - 100.0).abs() < 3.0, "{per_s}");
        assert!(driven.unsent.abs_diff(100_000 - 200) <= 5, "{}", driven.unsent);
    }

    #[test]
    fn requests_before_the_warm_up_do_not_count() {
        let even = schedule(Some(1000.0), Arrivals::Even);
        let warm_up = Duration::from_micros(199_500);
        let limits = Limits { warm_up, ..limits(1000, 10) };
        let driven = drive(&mut Played::new(10, [100, 150]), even, limits).unwrap();
        assert_eq!(all(&driven).len(), 800);
        assert!(all(&driven).max() < 1_000_000);
        assert!((driven.seconds - 0.8).abs() < 1e-3);
    }
}
