//! Bandwidth of a device: a window of messages under way in one direction, as perftest's `ib_write_bw` and its kin do. The clock
//! runs from the first post to the last completion; one completion in several is asked for.
//!
//! perftest lets a sender run into receives that are not posted yet and relies on the device to try again. Here the receiver
//! says now and then how many messages it took, and the sender waits for that.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use caravan_van::Buffer;
use serde::{Deserialize, Serialize};

use super::link::Arrival;
use super::side::{Op, Side, pattern};
use super::{About, How, yes};
use crate::report::{Shown, columns, decimals};
use crate::units::{self, milli};

/// One row of bandwidth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct VerbsBandwidth {
    pub(crate) device: String,
    pub(crate) op: Op,
    pub(crate) bytes: usize,
    pub(crate) count: u64,
    pub(crate) window: usize,
    pub(crate) seconds: f64,
    /// 2^20 bytes a second, as perftest prints it.
    pub(crate) mib_per_s: f64,
    pub(crate) gb_per_s: f64,
    pub(crate) mmsg_per_s: f64,
    #[serde(flatten)]
    pub(crate) how: How,
    pub(crate) wrong: u64,
}

impl Shown for VerbsBandwidth {
    fn heading(&self) -> Option<String> {
        Some(format!(
            "\n# bandwidth of {}: one direction, MiB (2^20), GB (10^9), million messages a second; {}\n{}",
            self.device,
            self.how.text(),
            columns(&[
                "op        ",
                "size",
                "count",
                "window",
                "list",
                "signal",
                "inline",
                "MiB/s",
                "GB/s",
                "Mmsg/s",
                "wrong"
            ])
        ))
    }

    fn text(&self) -> String {
        let mut cells = vec![self.op.padded(), units::size(self.bytes), self.count.to_string()];
        cells.extend([self.window, self.how.list, self.how.signal_every].map(|n| n.to_string()));
        cells.extend([yes(self.how.inline), decimals(&self.mib_per_s), decimals(&self.gb_per_s)]);
        cells.extend([format!("{:.4}", self.mmsg_per_s), self.wrong.to_string()]);
        columns(&cells)
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// Longer messages ask for more completions: there is time for them, and their memory is free sooner.
const SMALL_BYTES: usize = 8 << 10;
/// The imm of a last message: the receiver is to say at once how many it took.
const LAST: u32 = 1;
/// In the receiver's word beside the number of messages it took: one of them was wrong.
const WRONG: u32 = 1 << 31;

/// Messages for one completion: at most half a window. With lists it is one list, so that the next can follow at once.
fn signal_every(bytes: usize, window: usize, list: usize) -> usize {
    let every = if bytes > SMALL_BYTES { 4 } else { 64 };
    if list > 1 { list } else { every.min(window / 2).max(1) }
}

/// Measures `count` messages, at least, `list` at a doorbell, as the asking side.
///
/// # Errors
/// When the other side goes away, or work fails.
pub(crate) fn measure(
    side: Side,
    count: u64,
    list: usize,
    about: &About,
) -> Result<VerbsBandwidth> {
    let list = list.min(side.test.window);
    let every = signal_every(side.test.bytes, side.test.window, list);
    let mut stream = Stream::new(side, list, every)?;
    let how = How::of(&mut stream.side, list, every, about)?;
    stream.run((count / 20).max(1))?;
    // Whole rounds of completions, so that the last message asks for its own.
    let count = count.next_multiple_of(every as u64);
    let took = stream.run(count)?;
    Ok(row(about, count, took, how, stream.verify()?))
}

/// What the asking side keeps between messages.
struct Stream {
    side: Side,
    list: usize,
    every: usize,
    /// Messages posted and taken by the other side, from the beginning, where it counts.
    posted: u64,
    taken: u64,
    wrong: u64,
    /// Where reads can land,
    landing: Vec<Buffer>,
    /// and where some have, which are used again first.
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

    /// Moves at least `count` messages, all of them completed at the end; returns how long that took.
    fn run(&mut self, count: u64) -> Result<Duration> {
        let began = Instant::now();
        let until = self.posted + count.next_multiple_of(self.every as u64);
        while self.posted < until || self.side.link.under_way() > 0 {
            while self.posted < until && self.has_room() {
                for _ in 0..self.list {
                    self.post(until)?;
                }
                let signal = self.posted.is_multiple_of(self.every as u64);
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
            let into = into.ok_or_else(|| anyhow::anyhow!("more reads than the window"))?;
            return self.side.push_read(into);
        }
        let imm = if self.posted == until { LAST } else { 0 };
        self.side.push(self.side.message(), imm)
    }

    fn wait(&mut self) -> Result<()> {
        let Side { link, arrivals, test, .. } = &mut self.side;
        ensure!(link.wait(arrivals, true)?, "the other side went away");
        for arrival in arrivals.drain(..) {
            match arrival {
                Arrival::Message { slot, imm, .. } => {
                    link.give_back(slot)?;
                    // Counted modulo 2^31: the other side has never taken more than was posted.
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

    /// After the clock has stopped: how many messages are known to be wrong.
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
            Op::Write | Op::WriteImm => self.wrong + differ(&self.side.read_back()?),
        })
    }
}

/// Takes what comes until the other side hangs up.
///
/// # Errors
/// When work fails.
pub(crate) fn answer(side: &mut Side) -> Result<()> {
    if !side.test.op.is_received() {
        return side.link.sleep_until_goodbye();
    }
    let expected = pattern(side.test.bytes);
    let (mut taken, mut told, mut wrong) = (0u32, 0u32, 0);
    loop {
        if !side.link.wait(&mut side.arrivals, true)? {
            return Ok(());
        }
        let mut last = false;
        let Side { link, arrivals, .. } = side;
        for arrival in arrivals.drain(..) {
            let imm = match arrival {
                Arrival::Message { slot, bytes, imm } => {
                    // The first of a row in full, the others by their ends, which are there last.
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
        if last || taken.wrapping_sub(told) as usize >= side.test.window / 2 {
            side.push_notice(wrong | (taken & !WRONG))?;
            side.link.queue().ring(true)?;
            told = taken;
        }
    }
}

fn row(about: &About, count: u64, took: Duration, how: How, wrong: u64) -> VerbsBandwidth {
    // Never 0, so that a rate stays a number: a nanosecond is less than any clock sees.
    let seconds = took.as_secs_f64().max(1e-9);
    let (bytes, count_f64) = (about.test.bytes, count as f64);
    VerbsBandwidth {
        device: about.device.clone(),
        op: about.test.op,
        bytes,
        count,
        window: about.test.window,
        seconds: milli(seconds),
        mib_per_s: milli(count_f64 * bytes as f64 / seconds / f64::from(1 << 20)),
        gb_per_s: milli(count_f64 * bytes as f64 / seconds / 1e9),
        mmsg_per_s: (count_f64 / seconds).round() / 1e6,
        how,
        wrong,
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
