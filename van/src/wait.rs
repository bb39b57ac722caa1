//! What a thread does while there is nothing to do: spin, yield, sleep.
//!
//! A wake-up from the kernel costs tens of microseconds, so a thread that has a core looks again and again; a thread that
//! shares its core must let the other one run. Giving the core away after every empty look is right in both cases: with a
//! core of its own the thread comes straight back. After a bounded time it sleeps, so that an idle process costs nothing.

use std::time::{Duration, Instant};

/// How a transport waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Look again at once, never sleep. Only for a thread with a core of its own.
    Spin,
    /// Yield after each empty look, never sleep.
    Yield,
    /// Yield after each empty look, sleep after this long without anything.
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

/// One stretch of waiting.
#[derive(Debug)]
pub struct Idle {
    wait: Wait,
    timeout: Duration,
    looks: u32,
    /// When it had looked so often, from where on its time is counted.
    began: Option<Instant>,
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
    /// Begins to wait, for at most `timeout` and a few looks.
    pub fn begin(wait: Wait, timeout: Duration) -> Self {
        Idle { wait, timeout, looks: 0, began: None }
    }

    /// What to do after an empty look; yields the core by itself where the policy says so.
    #[inline]
    pub fn after_empty_look(&mut self) -> Next {
        if self.looks == LOOKS_UNTIMED || self.wait == Wait::Block || self.timeout.is_zero() {
            return self.by_the_clock();
        }
        self.looks += 1;
        self.wait.give_way();
        Next::Look
    }

    fn by_the_clock(&mut self) -> Next {
        let passed = self.began.get_or_insert_with(Instant::now).elapsed();
        let left = self.timeout.saturating_sub(passed);
        if left.is_zero() {
            return Next::Return;
        }
        match self.wait {
            Wait::Spin | Wait::Yield => self.wait.give_way(),
            Wait::Adaptive(bound) if passed < bound => self.wait.give_way(),
            Wait::Adaptive(_) | Wait::Block => return Next::Sleep(left),
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
        let mut idle = Idle::begin(wait, timeout);
        let mut looks = 0;
        loop {
            match idle.after_empty_look() {
                Next::Look => looks += 1,
                next => return (next, looks),
            }
        }
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
}
