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

/// Who spins looks at the clock once in so many looks, as that takes as long as a look.
const LOOKS_PER_CLOCK: u32 = 64;

/// One stretch of waiting.
#[derive(Debug)]
pub struct Idle {
    wait: Wait,
    /// When the clock was looked at first.
    began: Option<Instant>,
    timeout: Duration,
    looks: u32,
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
    /// Begins to wait, for at most `timeout`.
    pub fn begin(wait: Wait, timeout: Duration) -> Self {
        let began = if wait == Wait::Spin { None } else { Some(Instant::now()) };
        // Who has no time at all is told so by the first look at it.
        let looks = if timeout.is_zero() { LOOKS_PER_CLOCK - 1 } else { 0 };
        Idle { wait, began, timeout, looks }
    }

    /// What to do after an empty look; yields the core by itself where the policy says so.
    #[inline]
    pub fn after_empty_look(&mut self) -> Next {
        if self.wait == Wait::Spin {
            self.looks += 1;
            if !self.looks.is_multiple_of(LOOKS_PER_CLOCK) {
                std::hint::spin_loop();
                return Next::Look;
            }
            self.looks = 0;
        }
        self.after_clock()
    }

    fn after_clock(&mut self) -> Next {
        let passed = self.began.get_or_insert_with(Instant::now).elapsed();
        let left = self.timeout.saturating_sub(passed);
        if left.is_zero() {
            return Next::Return;
        }
        match self.wait {
            Wait::Spin => std::hint::spin_loop(),
            Wait::Yield => std::thread::yield_now(),
            Wait::Adaptive(bound) if passed < bound => std::thread::yield_now(),
            Wait::Adaptive(_) | Wait::Block => return Next::Sleep(left),
        }
        Next::Look
    }
}
