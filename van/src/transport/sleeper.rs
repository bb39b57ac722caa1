//! What a transport owes a thread that sleeps on several at once: its sleep in two halves.

use std::io;
use std::time::Duration;

use super::{PeerId, Transport};
use crate::error::{Error, Result};
use crate::wire::Beside;

/// A transport beside which others can sleep. [`Transport::wait`] is for a thread that has no
/// other.
///
/// The thread takes in what [`Transport::poll`] reports, has every transport park, sleeps until
/// a descriptor is readable, and has all of them wake.
pub trait Sleeper: Transport {
    /// What carries the bytes. Transports of one carrier connect to each other, whatever their
    /// names are.
    fn carrier(&self) -> &'static str;

    /// As [`Transport::connect`], for a lane that carries stripes of another one: its hello says
    /// so.
    ///
    /// # Errors
    /// [`Error::Connect`], always from a van of which a node has only one.
    fn connect_beside(&mut self, address: &str, _beside: Beside) -> Result<PeerId> {
        let source = io::Error::new(io::ErrorKind::Unsupported, "its lanes carry no stripes");
        Err(Error::Connect { address: address.to_owned(), source })
    }

    /// The descriptors that become readable when a sleep has to end. They stay the same.
    ///
    /// # Errors
    /// [`Error::Os`].
    fn descriptors(&mut self) -> Result<Vec<i32>>;

    /// Begins a sleep: from now on a descriptor becomes readable as soon as a poll would find
    /// something. Returns how long the thread may sleep, at most `limit`; no time if a poll finds
    /// something now.
    ///
    /// # Errors
    /// As [`Transport::poll`].
    fn park(&mut self, limit: Duration) -> Result<Duration>;

    /// Ends a sleep, also one that took no time. A poll follows.
    ///
    /// # Errors
    /// As [`Transport::poll`].
    fn unpark(&mut self) -> Result<()>;
}
