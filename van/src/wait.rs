//! What a thread does while there is nothing to do: spin, yield, sleep.
//!
//! A wake-up from the kernel costs tens of microseconds, so a thread that has a core looks again and again; a thread that
//! shares its core must let the other one run. Giving the core away after every empty look is nearly right in both cases: with a
//! core of its own the thread comes straight back, later by a system call. So it looks without that at first where this has paid
//! of late, and where it has not tries it again ever more rarely. After a bounded time it sleeps, so that an idle process costs nothing.

use std::time::{Duration, Instant};

/// How a transport waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Look again at once, never sleep. Only for a thread with a core of its own.
    Spin,
    /// Yield after each empty look, never sleep.
    Yield,
    /// Look again at once while that pays, then yield after each empty look, and sleep after this long without anything.
    Adaptive(Duration),
    /// Sleep at once.
    Block,
}

impl Default for Wait {
    fn default() -> Self {
        Wait::Adaptive(Duration::from_micros(200))
    }
}

impl Wait {
    /// What to do between two looks that follow each other at once.
    #[inline]
    pub fn give_way(self) {
        match self {
            Wait::Spin => std::hint::spin_loop(),
            Wait::Yield | Wait::Adaptive(_) | Wait::Block => std::thread::yield_now(),
        }
    }
}

/// Empty looks before a stretch of waiting reads the clock: most are shorter, and reading it can take longer than looking.
const LOOKS_UNTIMED: u32 = 16;

/// Adaptive waiting looks again at once for about so long: some round trips of a socket between two cores.
const SPIN_MAX: Duration = Duration::from_micros(20);

/// How many stretches that spinning has ended count, at most; one that it has not counts for two of them.
const TRUST_MAX: u32 = 8;

/// Where spinning does not pay, it is tried in one of so many stretches at last.
const REST_MAX: u32 = 1024;

/// How a thread waits, one stretch after the other, and what it has learned from them.
#[derive(Debug)]
pub struct Idle {
    wait: Wait,
    /// How often spinning has paid of late; it is done while it has.
    trust: u32,
    /// Stretches until it is tried again nevertheless, ...
    rest: u32,
    /// ... and from how many on that was counted down last.
    rests: u32,
    /// Where this stretch is; `None` when its time is up, and before the first.
    stage: Option<Stage>,
    timeout: Duration,
    looks: u32,
    /// When it had looked so often, from where on its time is counted.
    began: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Spinning,
    Yielding,
    /// It has begun with this, without spinning.
    YieldingAtOnce,
    Sleeping,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Look once more.
    Look,
    /// Sleep in the kernel for at most this long.
    Sleep(Duration),
    /// The time is up.
    Return,
}

impl Idle {
    /// A thread that waits like this, and has a core of its own for all it knows.
    pub fn new(wait: Wait) -> Self {
        let (timeout, stage) = (Duration::ZERO, None);
        Idle { wait, trust: TRUST_MAX, rest: 0, rests: 1, stage, timeout, looks: 0, began: None }
    }

    /// Begins to wait, for at most `timeout` and a few looks. The stretch before has ended as it was: something was found.
    #[inline]
    pub fn begin(&mut self, timeout: Duration) {
        self.stage = Some(match self.wait {
            Wait::Spin => Stage::Spinning,
            Wait::Yield => Stage::YieldingAtOnce,
            Wait::Block => Stage::Sleeping,
            Wait::Adaptive(_) => self.learn(),
        });
        (self.timeout, self.looks, self.began) = (timeout, 0, None);
    }

    /// How to begin, after what came of the stretch before.
    #[inline]
    fn learn(&mut self) -> Stage {
        match self.stage {
            Some(Stage::Spinning) if self.looks > 0 => {
                (self.trust, self.rests) = (TRUST_MAX.min(self.trust + 1), 1);
            }
            Some(Stage::Yielding) => {
                self.trust = self.trust.saturating_sub(2);
                if self.trust == 0 {
                    self.rest = self.rests;
                    self.rests = REST_MAX.min(2 * self.rests);
                }
            }
            _ => {} // that says nothing
        }
        if self.trust > 0 || self.rest == 0 {
            return Stage::Spinning;
        }
        self.rest -= 1;
        Stage::YieldingAtOnce
    }

    /// What to do after an empty look; yields the core by itself where the policy says so.
    #[inline]
    pub fn after_empty_look(&mut self) -> Next {
        self.looks = self.looks.wrapping_add(1);
        let is_timed = match self.stage {
            Some(Stage::Spinning) => self.looks.is_multiple_of(LOOKS_UNTIMED),
            Some(Stage::Yielding | Stage::YieldingAtOnce) => self.looks > LOOKS_UNTIMED,
            Some(Stage::Sleeping) | None => true,
        };
        if is_timed || self.timeout.is_zero() {
            return self.by_the_clock();
        }
        self.give_way()
    }

    fn by_the_clock(&mut self) -> Next {
        let passed = self.began.get_or_insert_with(Instant::now).elapsed();
        let left = self.timeout.saturating_sub(passed);
        if left.is_zero() {
            self.stage = None;
            return Next::Return;
        }
        if let Wait::Adaptive(bound) = self.wait {
            if passed >= bound {
                self.stage = Some(Stage::Sleeping);
            } else if passed >= SPIN_MAX && self.stage == Some(Stage::Spinning) {
                self.stage = Some(Stage::Yielding);
            }
        }
        match self.stage {
            Some(Stage::Sleeping) | None => Next::Sleep(left),
            Some(_) => self.give_way(),
        }
    }

    #[inline]
    fn give_way(&self) -> Next {
        match self.stage {
            Some(Stage::Spinning) => std::hint::spin_loop(),
            _ => std::thread::yield_now(),
        }
        Next::Look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// What comes of looks that all find nothing, until it is no longer to look again at once; and how many those were.
    fn outcome(wait: Wait, timeout: Duration) -> (Next, u32) {
        let mut idle = Idle::new(wait);
        idle.begin(timeout);
        let mut looks = 0;
        loop {
            match idle.after_empty_look() {
                Next::Look => looks += 1,
                next => return (next, looks),
            }
        }
    }

    /// Whether each of `count` stretches spins first, of which every one finds something at the second look, or when it spins no
    /// longer.
    fn spins(idle: &mut Idle, count: usize, late: bool) -> Vec<bool> {
        let stretch = |_| {
            idle.begin(LONG);
            let spins = idle.stage == Some(Stage::Spinning);
            assert_eq!(idle.after_empty_look(), Next::Look);
            while late && idle.stage == Some(Stage::Spinning) {
                assert_eq!(idle.after_empty_look(), Next::Look);
            }
            spins
        };
        (0..count).map(stretch).collect()
    }

    #[test]
    fn who_has_no_time_returns_and_who_blocks_sleeps_at_once() {
        for wait in [Wait::Spin, Wait::Yield, Wait::default(), Wait::Block] {
            assert_eq!(outcome(wait, Duration::ZERO), (Next::Return, 0));
        }
        assert!(matches!(outcome(Wait::Block, LONG), (Next::Sleep(left), 0) if left <= LONG));
    }

    #[test]
    fn others_look_a_while_and_then_keep_to_their_time() {
        let short = Duration::from_millis(1);
        for wait in [Wait::Spin, Wait::Yield] {
            let (next, looks) = outcome(wait, short);
            assert!(next == Next::Return && looks >= LOOKS_UNTIMED, "{wait:?} {looks}");
        }
        let (next, looks) = outcome(Wait::Adaptive(short), LONG);
        assert!(matches!(next, Next::Sleep(_)) && looks >= LOOKS_UNTIMED, "{looks}");
    }

    #[test]
    fn spinning_that_does_not_pay_is_tried_ever_more_rarely_until_it_does() {
        let mut idle = Idle::new(Wait::Adaptive(LONG));
        let late = spins(&mut idle, 300, true);
        assert!(late[..TRUST_MAX as usize / 2].iter().all(|spins| *spins));
        let tries = late[TRUST_MAX as usize / 2..].iter().filter(|spins| **spins).count();
        assert!((1..=8).contains(&tries), "1, 2, 4 … stretches lie between them: {tries}");
        let soon = spins(&mut idle, 2 * REST_MAX as usize, false);
        let resumed = soon.iter().position(|spins| *spins).expect("it is tried again");
        assert!(soon[resumed..].iter().all(|spins| *spins), "and goes on where it pays");
    }

    #[test]
    fn one_long_stretch_among_short_ones_does_not_end_spinning() {
        let mut idle = Idle::new(Wait::Adaptive(LONG));
        for burst in 0..100 {
            assert_eq!(spins(&mut idle, 1, true), [true], "burst {burst}");
            assert!(spins(&mut idle, 31, false).iter().all(|spins| *spins), "burst {burst}");
        }
    }

    #[test]
    fn what_is_found_at_the_first_look_or_after_a_sleep_teaches_nothing() {
        let mut idle = Idle::new(Wait::Adaptive(Duration::ZERO));
        for _ in 0..100 {
            idle.begin(LONG);
            while idle.after_empty_look() == Next::Look {}
            idle.begin(LONG);
        }
        assert_eq!(idle.trust, TRUST_MAX);
    }
}
