//! Bandwidth of a device: a window of messages in flight in one direction, as with perftest's
//! `ib_write_bw` and its kin. The clock runs from the first post to the last completion; one
//! message in several asks for its completion.
//!
//! With perftest a sender may run ahead of the posted receives, and the device tries again. Here
//! the receiver reports from time to time how many messages it took, and the sender waits for that.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caravan_van::Buffer;
use serde::Serialize;

use super::how::{How, padded, yes};
use super::kinds::Op;
use super::side::{Side, Test, pattern};
use crate::cli::values::size;
use crate::floor::link::Arrival;
use crate::measure::figures::{four, micro, milli, nano};
use crate::report::{figure, row};

row! {
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct VerbsBandwidth is "verbs-bandwidth" {
        device: String,
        op: Op => "op        " as padded,
        bytes: usize => "size" as size,
        count: u64 => "count",
        window: usize => "window"
            ; "list" |row| row.how.list
            ; "signal" |row| row.how.signal_every
            ; "inline" |row| yes(row.how.inline),
        seconds: f64,
        /// 2^20 bytes a second, as perftest prints it.
        mib_per_s: f64 => "MiB/s" as figure,
        gb_per_s: f64 => "GB/s" as figure,
        mmsg_per_s: f64 => "Mmsg/s" as four,
        #[serde(flatten)]
        how: How,
        wrong: u64 => "wrong",
    }
    title |row| format!(
        "bandwidth of {}: one direction, MiB (2^20), GB (10^9), million messages a second; {}",
        row.device,
        row.how.text()
    );
    counts wrong;
}

/// Longer messages ask for more completions: that costs them little, and frees their memory sooner.
const SMALL_BYTES: usize = 8 << 10;
/// The immediate data of the last message: the receiver reports at once how many it took.
const LAST: u32 = 1;
/// In the receiver's report, beside the number of messages: one of them was wrong.
const WRONG: u32 = 1 << 31;

/// Messages for one completion: at most half a window. With lists it is one list, so that the next
/// list can follow at once.
fn signal_every(bytes: usize, window: usize, list: usize) -> usize {
    let every = if bytes > SMALL_BYTES { 4 } else { 64 };
    if list > 1 { list } else { every.min(window / 2).max(1) }
}

/// Measures `count` messages, `list` at a doorbell, as the asking side.
pub(super) fn measure(side: Side, count: u64, list: usize) -> Result<VerbsBandwidth> {
    let Test { op, bytes, window, .. } = side.test;
    let device = side.link.device().name();
    let list = list.min(window);
    let every = signal_every(bytes, window, list);
    let mut stream = Stream::new(side, list, every)?;
    let how = How::of(&mut stream.side, list, every)?;
    stream.run((count / 20).max(1))?;
    // Never 0, so that a rate stays a number: a nanosecond is less than any clock measures.
    let seconds = stream.run(count)?.as_secs_f64().max(1e-9);
    let messages_per_s = count as f64 / seconds;
    let bytes_per_s = messages_per_s * bytes as f64;
    Ok(VerbsBandwidth {
        device,
        op,
        bytes,
        count,
        window,
        seconds: nano(seconds),
        mib_per_s: milli(bytes_per_s / f64::from(1 << 20)),
        gb_per_s: micro(bytes_per_s / 1e9),
        mmsg_per_s: messages_per_s.round() / 1e6,
        how,
        wrong: stream.verify()?,
    })
}

/// The asking side between messages.
struct Stream {
    side: Side,
    list: usize,
    every: usize,
    posted: u64,
    /// Messages that the other side took, if it counts them.
    taken: u64,
    wrong: u64,
    /// Memory for reads.
    landing: Vec<Buffer>,
    /// Memory with finished reads, which the next ones use first.
    landed: Vec<Buffer>,
}

impl Stream {
    fn new(side: Side, list: usize, every: usize) -> Result<Self> {
        let reads = if side.test.op == Op::Read { side.test.window } else { 0 };
        let memory = side.link.memory();
        let landing =
            (0..reads).map(|_| Ok(memory.allocate(side.test.bytes)?)).collect::<Result<_>>()?;
        Ok(Stream { side, list, every, posted: 0, taken: 0, wrong: 0, landing, landed: Vec::new() })
    }

    /// Moves `count` messages to their completion; returns how long that took.
    fn run(&mut self, count: u64) -> Result<Duration> {
        let began = Instant::now();
        let from = self.posted;
        let until = from + count;
        while self.posted < until || self.side.link.under_way() > 0 {
            while self.posted < until && self.has_room() {
                for _ in self.posted..until.min(self.posted + self.list as u64) {
                    self.post(until)?;
                }
                // The last message asks for its own completion, wherever in a round it is.
                let is_round = (self.posted - from).is_multiple_of(self.every as u64);
                let signal = is_round || self.posted == until;
                self.side.link.queue().ring(signal)?;
            }
            self.wait()?;
        }
        Ok(began.elapsed())
    }

    fn has_room(&mut self) -> bool {
        let Side { test, link, .. } = &mut self.side;
        let fits = link.under_way() + self.list <= test.window;
        let credited = (self.posted - self.taken) as usize + self.list <= test.credits();
        fits && (credited || !test.op.is_received())
    }

    fn post(&mut self, until: u64) -> Result<()> {
        self.posted += 1;
        if self.side.test.op == Op::Read {
            let into = self.landed.pop().or_else(|| self.landing.pop());
            let into = into.context("more reads than the window")?;
            return self.side.push_read(into);
        }
        let imm = if self.posted == until { LAST } else { 0 };
        let message = self.side.message();
        self.side.push(message, imm)
    }

    fn wait(&mut self) -> Result<()> {
        let Side { link, arrivals, test, .. } = &mut self.side;
        ensure!(link.wait(arrivals, true)?, "the other side went away");
        for arrival in arrivals.drain(..) {
            match arrival {
                Arrival::Message { slot, imm, .. } => {
                    link.give_back(slot)?;
                    // Modulo 2^31: the other side never takes more than was posted.
                    let new = (imm & !WRONG).wrapping_sub(self.taken as u32) & !WRONG;
                    self.taken += u64::from(new);
                    self.wrong = u64::from(imm & WRONG != 0);
                }
                Arrival::Read { memory } => {
                    self.wrong += u64::from(memory.len() != test.bytes);
                    self.landed.push(memory);
                }
                Arrival::Written { .. } => anyhow::bail!("nothing was to be written here"),
            }
        }
        Ok(())
    }

    /// After the clock has stopped: the number of wrong messages.
    fn verify(mut self) -> Result<u64> {
        let op = self.side.test.op;
        let expected = pattern(self.side.test.bytes);
        while op.is_received() && self.taken < self.posted {
            self.wait()?;
        }
        let differ = |found: &Buffer| u64::from(found[..] != expected[..]);
        Ok(match op {
            Op::Read => self.wrong + self.landed.iter().map(differ).sum::<u64>(),
            Op::Send => self.wrong,
            Op::Write | Op::WriteImm => {
                let into = self.side.link.memory().allocate(expected.len())?;
                self.wrong + differ(&self.side.read(into)?)
            }
        })
    }
}

/// Takes messages until the other side hangs up.
pub(super) fn answer(side: &mut Side) -> Result<()> {
    if !side.test.op.is_received() {
        return side.link.sleep_until_goodbye();
    }
    let expected = pattern(side.test.bytes);
    let mut taken = 0u32;
    let mut reported = 0u32;
    let mut wrong = 0;
    loop {
        if !side.link.wait(&mut side.arrivals, true)? {
            return Ok(());
        }
        let mut last = false;
        let Side { link, arrivals, .. } = side;
        for arrival in arrivals.drain(..) {
            let imm = match arrival {
                Arrival::Message { slot, bytes, imm } => {
                    // The first message is checked in full, the others by their ends, which arrive
                    // last.
                    let message = link.message(&slot, bytes)?;
                    let right = match taken {
                        0 => message[..] == expected[..],
                        _ => message.last() == expected.last(),
                    };
                    drop(message);
                    wrong |= if right { 0 } else { WRONG };
                    link.give_back(slot)?;
                    imm
                }
                Arrival::Written { imm } => imm,
                Arrival::Read { .. } => anyhow::bail!("nothing was to be read"),
            };
            last |= imm == LAST;
            taken = taken.wrapping_add(1);
        }
        if last || taken.wrapping_sub(reported) as usize >= side.test.window / 2 {
            side.push_notice(wrong | (taken & !WRONG))?;
            side.link.queue().ring(true)?;
            reported = taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_window_always_holds_a_message_that_asks_for_completion() {
        for window in [1, 2, 3, 16, 128, 4096] {
            for list in [1, 2, 16] {
                for bytes in [8, 1 << 20] {
                    let list = list.min(window);
                    let every = signal_every(bytes, window, list);
                    assert!(every.is_multiple_of(list), "{window} {list}");
                    assert!(every <= window.max(list), "{window} {list}");
                }
            }
        }
        assert_eq!(signal_every(64, 128, 16), 16);
        assert_eq!(signal_every(64, 128, 1), 64);
        assert_eq!(signal_every(1 << 20, 16, 1), 4);
    }
}
