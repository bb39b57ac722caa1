//! The asking side of every floor: numbers requests, keeps the window full and checks replies. A
//! [`Lane`] moves the bytes.

use std::time::Duration;

use anyhow::Result;

use super::lengths::{Lengths, patterned};
use super::process::Process;
use crate::measure::subject::{Shape, Subject};

/// How long a reply may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The asking side's end of one means to move bytes. Requests are numbered from 0 after each
/// `agree`, and replies come in their order.
pub(super) trait Lane {
    /// Agrees with the other side on the lengths and on the number of requests in flight.
    fn agree(&mut self, lengths: Lengths, window: usize) -> Result<()>;

    /// Sends requests from `sent` on, `until` at most, without waiting; `done` are answered.
    /// Returns the first that is not sent.
    fn send(&mut self, sent: u64, done: u64, until: u64) -> Result<u64>;

    /// Takes replies from `done` on, and waits if it makes sense to; each has to return its
    /// number. Returns the first that has not come.
    fn receive(&mut self, done: u64) -> Result<u64>;

    /// Sends one request and waits for its reply.
    fn once(&mut self, number: u64) -> Result<()> {
        let mut sent = number;
        let mut done = number;
        while done == number {
            sent = self.send(sent, done, number + 1)?;
            done = self.receive(done)?;
        }
        Ok(())
    }

    /// Whether the last reply, which is to request `number`, is `expected` after its number.
    fn last_is(&self, number: u64, expected: &[u8]) -> bool;
}

#[derive(Debug)]
pub(super) struct Floor<L> {
    pub(super) lane: L,
    number: u64,
    pulls: bool,
    pub(super) expected: Vec<u8>,
    /// Goes after the lane to it.
    _process: Option<Process>,
}

impl<L> Floor<L> {
    pub(super) fn new(lane: L, process: Option<Process>) -> Self {
        Floor { lane, number: 0, pulls: false, expected: Vec::new(), _process: process }
    }
}

impl<L: Lane> Subject for Floor<L> {
    fn prepare(&mut self, shape: Shape) -> Result<()> {
        let lengths = Lengths::of(shape);
        self.lane.agree(lengths, shape.window.max(1))?;
        self.expected = patterned(lengths.reply);
        self.pulls = shape.op.pulls();
        self.number = 0;
        Ok(())
    }

    fn once(&mut self) -> Result<()> {
        self.lane.once(self.number)?;
        self.number += 1;
        Ok(())
    }

    fn check(&mut self) -> Result<u64> {
        let last = self.number.wrapping_sub(1);
        Ok(u64::from(self.pulls && !self.lane.last_is(last, &self.expected)))
    }

    fn stream(&mut self, count: u64) -> Result<()> {
        let mut sent = self.number;
        let mut done = self.number;
        self.number += count;
        while done < self.number {
            sent = self.lane.send(sent, done, self.number)?;
            done = self.lane.receive(done)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<u64> {
        self.check()
    }
}
