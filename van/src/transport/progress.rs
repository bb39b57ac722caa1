//! One poll and one wait for the vans that find their work by looking.

use std::time::Duration;

use super::Event;
use crate::error::Result;
use crate::wait::{Idle, Next, Wait};

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

    /// Looks once: sends what was posted and takes in what has come. Returns whether anything moved,
    /// with or without an event: a wait ends then, because more may follow at once.
    ///
    /// # Errors
    /// As [`Transport::poll`](super::Transport::poll).
    fn turn(&mut self) -> Result<bool>;

    /// Sends what was posted while events wait to be reported; need not look for more.
    ///
    /// # Errors
    /// As [`Transport::poll`](super::Transport::poll).
    #[inline]
    fn send_posted(&mut self) -> Result<()> {
        if self.has_posted() { self.turn().map(drop) } else { Ok(()) }
    }

    /// Sleeps until a turn may find something, for at most `limit`.
    ///
    /// # Errors
    /// As [`Transport::poll`](super::Transport::poll).
    fn sleep(&mut self, limit: Duration) -> Result<()>;
}

/// As [`Transport::poll`](super::Transport::poll).
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

/// As [`Transport::wait`](super::Transport::wait).
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
