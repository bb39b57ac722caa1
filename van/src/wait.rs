//! How a thread waits for work: spin, yield, sleep; and one poll and one wait for the vans that
//! find their work by looking.
//!
//! A wake-up from the kernel takes long, so a thread with a core of its own polls repeatedly; a
//! thread that shares its core must let the other one run. A yield after every empty poll suits
//! both cases almost, at the price of a system call. So a thread first polls without yielding where
//! this has paid recently, and retries it ever more rarely where it has not. After a bounded time
//! it sleeps, so that an idle process costs nothing.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::transport::Event;

/// How a transport waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Polls again at once and never sleeps. Only for a thread with a core of its own.
    Spin,
    /// Yields after each empty poll and never sleeps.
    Yield,
    /// Polls again at once while that pays, then yields after each empty poll, and sleeps after
    /// this long without work.
    Adaptive(Duration),
    /// Sleeps at once.
    Block,
}

impl Default for Wait {
    fn default() -> Self {
        Wait::Adaptive(Duration::from_micros(200))
    }
}

impl Wait {
    /// Spins or yields between two polls.
    #[inline]
    pub fn give_way(self) {
        match self {
            Wait::Spin => std::hint::spin_loop(),
            Wait::Yield | Wait::Adaptive(_) | Wait::Block => std::thread::yield_now(),
        }
    }
}

/// Empty polls before a wait reads the clock. Most waits are shorter, and reading the clock can
/// take longer than a poll.
const LOOKS_UNTIMED: u32 = 16;

/// How long an adaptive wait spins: some socket round trips between two cores.
const SPIN_MAX: Duration = Duration::from_micros(20);

/// Upper bound of `trust`: successful spins remembered. A failed one counts as two.
const TRUST_MAX: u32 = 8;

/// Upper bound of `rests`: where spinning does not pay, one wait in this many tries it again.
const REST_MAX: u32 = 1024;

/// How a thread waits, and what it has learned from earlier waits.
#[derive(Debug)]
pub struct Idle {
    wait: Wait,
    /// How often spinning has paid recently; a thread spins while this is above 0.
    trust: u32,
    /// Waits left until spinning is tried again.
    rest: u32,
    /// The number from which `rest` was last counted down.
    rests: u32,
    /// Current stage of this wait; `None` when its time is up, and before the first.
    stage: Option<Stage>,
    timeout: Duration,
    looks: u32,
    /// When the clock was first read; the time of this wait counts from here.
    began: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Spinning,
    Yielding,
    /// Yields from the start, without spinning first.
    YieldingAtOnce,
    Sleeping,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Poll once more.
    Look,
    /// Sleep in the kernel for at most this long.
    Sleep(Duration),
    /// The time is up.
    Return,
}

impl Idle {
    /// A thread that waits by this policy and is assumed to have a core of its own.
    pub fn new(wait: Wait) -> Self {
        Idle {
            wait,
            trust: TRUST_MAX,
            rest: 0,
            rests: 1,
            stage: None,
            timeout: Duration::ZERO,
            looks: 0,
            began: None,
        }
    }

    /// Begins a wait of at most `timeout` and a few polls. The previous wait has ended by finding
    /// work.
    #[inline]
    pub fn begin(&mut self, timeout: Duration) {
        self.stage = Some(match self.wait {
            Wait::Spin => Stage::Spinning,
            Wait::Yield => Stage::YieldingAtOnce,
            Wait::Block => Stage::Sleeping,
            Wait::Adaptive(_) => self.learn(),
        });
        self.timeout = timeout;
        self.looks = 0;
        self.began = None;
    }

    /// The first stage, after the outcome of the previous wait.
    #[inline]
    fn learn(&mut self) -> Stage {
        match self.stage {
            Some(Stage::Spinning) if self.looks > 0 => {
                self.trust = TRUST_MAX.min(self.trust + 1);
                self.rests = 1;
            }
            Some(Stage::Yielding) => {
                self.trust = self.trust.saturating_sub(2);
                if self.trust == 0 {
                    self.rest = self.rests;
                    self.rests = REST_MAX.min(2 * self.rests);
                }
            }
            _ => {} // neither paid nor failed
        }
        if self.trust > 0 || self.rest == 0 {
            return Stage::Spinning;
        }
        self.rest -= 1;
        Stage::YieldingAtOnce
    }

    /// What to do after an empty poll; spins or yields itself where the policy says so.
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

/// What a van remembers between two looks.
#[derive(Debug)]
pub struct Pace {
    idle: Idle,
    /// The last look found nothing, so another one at once would find nothing either.
    looked: bool,
}

impl Pace {
    /// For a van that waits like this.
    pub fn new(wait: Wait) -> Pace {
        Pace { idle: Idle::new(wait), looked: false }
    }
}

/// A van whose transport polls and waits by [`poll`] and [`wait`].
pub trait Progress {
    /// Its memory of earlier looks.
    fn pace(&mut self) -> &mut Pace;

    /// Events that were found and not reported yet.
    fn ready(&mut self) -> &mut Vec<Event>;

    /// Whether something was posted since the last turn.
    fn has_posted(&self) -> bool;

    /// Looks once: sends what was posted and takes in what has come. Returns whether anything
    /// moved, with or without an event: a wait ends then, because more may follow at once.
    ///
    /// # Errors
    /// As [`Transport::poll`](crate::Transport::poll).
    fn turn(&mut self) -> Result<bool>;

    /// Sends what was posted while events wait to be reported; need not look for more.
    ///
    /// # Errors
    /// As [`Transport::poll`](crate::Transport::poll).
    #[inline]
    fn send_posted(&mut self) -> Result<()> {
        if self.has_posted() { self.turn().map(drop) } else { Ok(()) }
    }

    /// Sleeps until a turn may find something, for at most `limit`.
    ///
    /// # Errors
    /// As [`Transport::poll`](crate::Transport::poll).
    fn sleep(&mut self, limit: Duration) -> Result<()>;
}

/// As [`Transport::poll`](crate::Transport::poll).
///
/// # Errors
/// Likewise.
#[inline]
pub fn poll(van: &mut impl Progress, events: &mut Vec<Event>) -> Result<()> {
    if van.ready().is_empty() {
        van.turn()?;
    } else {
        van.send_posted()?;
    }
    let found_nothing = van.ready().is_empty();
    van.pace().looked = found_nothing;
    if !found_nothing {
        events.append(van.ready()); // both keep their memory
    }
    Ok(())
}

/// As [`Transport::wait`](crate::Transport::wait).
///
/// # Errors
/// Likewise.
#[inline]
pub fn wait(van: &mut impl Progress, timeout: Duration) -> Result<()> {
    van.pace().idle.begin(timeout);
    loop {
        let looks = !std::mem::take(&mut van.pace().looked) || van.has_posted();
        let moved = looks && van.turn()?;
        if moved || !van.ready().is_empty() {
            return Ok(());
        }
        match van.pace().idle.after_empty_look() {
            Next::Look => {}
            Next::Return => return Ok(()),
            Next::Sleep(left) => van.sleep(left)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// The outcome of polls that all find nothing, and how many there were.
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

    /// Whether each of `count` waits begins by spinning. Each finds work at the second poll or, if
    /// `late`, when it no longer spins.
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
