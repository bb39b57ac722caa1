//! The clock of a van: time passes by itself, or as a simulation decides.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::error::Result;

/// A van's clock: monotonic, from an arbitrary start. Clones are the same clock.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Real(Instant),
    Simulated(Rc<dyn SimulatedTime>),
}

/// The time of a simulated node.
pub trait SimulatedTime {
    /// The node's time.
    fn now(&self) -> Duration;

    /// Lets the time pass that the node takes for `work`; see [`Clock::charge`].
    ///
    /// # Errors
    /// As [`Transport::poll`](super::Transport::poll).
    fn charge(&self, work: Duration) -> Result<()>;
}

impl Clock {
    /// A clock that starts now and goes on by itself.
    pub fn start() -> Clock {
        Clock(Source::Real(Instant::now()))
    }

    /// The clock of a simulated node.
    pub fn simulated(time: impl SimulatedTime + 'static) -> Clock {
        Clock(Source::Simulated(Rc::new(time)))
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Source::Real(start) => start.elapsed(),
            Source::Simulated(time) => time.now(),
        }
    }

    /// Tells the clock what computing has just been done, as the time that it takes a core at full
    /// speed. A simulated node is busy for that long, times what its machine is slower; where time
    /// passes by itself nothing happens.
    ///
    /// # Errors
    /// As [`Transport::poll`](super::Transport::poll).
    pub fn charge(&self, work: Duration) -> Result<()> {
        match &self.0 {
            Source::Real(_) => Ok(()),
            Source::Simulated(time) => time.charge(work),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}
