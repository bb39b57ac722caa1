//! One side of one test of a device: what the two sides agree on, their memory, and how a message
//! of each kind is posted.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use caravan_van::rdma::verbs::{Exposed, Work};
use caravan_van::{Buffer, Shared, Wait};
use clap::ValueEnum;

use super::kinds::{Measure, Op, WINDOW_MAX};
use crate::floor::link::{Arrival, Asked, Link, Remote, Room};
use crate::floor::outbox::Outbox;
use crate::floor::words::{pack, unpack};

/// One test, which both sides have to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) measure: Measure,
    pub(crate) op: Op,
    pub(crate) bytes: usize,
    /// Most messages in flight.
    pub(crate) window: usize,
    /// Messages of at most so many bytes go inside the work request, if the device can.
    pub(crate) inline_bytes: usize,
}

/// The kind of the words that the two sides exchange.
const TEST: u64 = u64::from_le_bytes(*b"cvverbs1");
/// Longest message, in bytes: what a device takes in one piece.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// Posted receives of a receiver, in windows.
const RECEIVES_A_WINDOW: usize = 2;

impl Test {
    fn words(&self) -> [u64; 4] {
        let kind = (self.measure as u64) << 8 | self.op as u64;
        [kind, self.bytes as u64, self.window as u64, self.inline_bytes as u64]
    }

    fn from_words([kind, bytes, window, inline_bytes]: [u64; 4]) -> Result<Self> {
        let measure =
            [Measure::Latency, Measure::Bandwidth].into_iter().find(|m| *m as u64 == kind >> 8);
        let op = Op::value_variants().iter().find(|op| **op as u64 == kind & 0xff);
        ensure!((1..=MESSAGE_BYTES_MAX).contains(&bytes), "no message has {bytes} bytes");
        ensure!((1..=u64::from(WINDOW_MAX)).contains(&window), "no window is {window}");
        Ok(Test {
            measure: measure.context("an unknown measure")?,
            op: *op.context("an unknown kind of message")?,
            bytes: bytes as usize,
            window: window as usize,
            inline_bytes: inline_bytes.min(4096) as usize,
        })
    }

    fn room(&self) -> Room {
        let messages = if self.op == Op::Send { self.bytes } else { 8 };
        Room {
            sends: self.window + SENDS,
            receives: RECEIVES_A_WINDOW * self.window,
            receive_bytes: messages,
            inline_bytes: self.inline_bytes,
        }
    }

    /// Receives that the other side has posted before it reports that it took messages.
    pub(crate) fn credits(&self) -> usize {
        RECEIVES_A_WINDOW * self.window
    }
}

pub(crate) struct Side {
    pub(crate) test: Test,
    pub(crate) link: Link,
    /// Memory that the other side writes or reads. The message lies at its end, which is the end of
    /// a word.
    mine: Exposed,
    /// The message in the other side's memory.
    theirs: Option<Remote>,
    /// Messages to send.
    outbox: Outbox,
    pub(crate) arrivals: Vec<Arrival>,
}

impl Side {
    /// The asking side, connected to a listener.
    pub(crate) fn dial(from: IpAddr, to: SocketAddr, test: Test, wait: Wait) -> Result<Self> {
        let link = Link::dial(Some(from), to, test.room(), wait)?;
        let mut side = Side::new(link, test, &[])?;
        let [kind, bytes, window, inline] = test.words();
        // Inline sizes and keys share a word.
        let words =
            [kind, bytes, window, inline << 32 | u64::from(side.mine.remote_key()), side.place()];
        let said = side.link.connect(&pack(TEST, words))?;
        let [address, key] = unpack(TEST, &said)?;
        side.theirs = Remote::at(address, key);
        Ok(side)
    }

    /// The answering side of a request; `None` if it was rejected.
    pub(crate) fn answer(asked: Asked, wait: Wait) -> Result<Option<Self>> {
        let read = unpack(TEST, &asked.said).and_then(|words| {
            let [kind, bytes, window, inline_key, address] = words;
            let test = Test::from_words([kind, bytes, window, inline_key >> 32])?;
            Ok((test, Remote::at(address, inline_key)))
        });
        let (test, theirs) = match read {
            Ok(read) => read,
            Err(error) => return asked.reject(&error.to_string()).map(|()| None),
        };
        let contents = match test.op {
            Op::Read => pattern(test.bytes),
            _ => Vec::new(),
        };
        let mut side = Side::new(asked.link(test.room(), wait)?, test, &contents)?;
        side.theirs = theirs;
        let words = [side.place(), u64::from(side.mine.remote_key())];
        side.link.accept(&pack(TEST, words))?;
        Ok(Some(side))
    }

    fn new(link: Link, test: Test, contents: &[u8]) -> Result<Self> {
        let mine = link.expose(exposed_bytes(test.bytes), contents)?;
        // While one message is in flight the next one is written; those of a stream are all the
        // same.
        let count = if test.measure == Measure::Latency { MESSAGES } else { 1 };
        let outbox = Outbox::new(link.memory(), &pattern(test.bytes), count)?;
        Ok(Side { test, link, mine, theirs: None, outbox, arrivals: Vec::new() })
    }

    fn place(&self) -> u64 {
        self.mine.address() + (self.mine.len() - self.test.bytes) as u64
    }

    /// The next message of a latency test, its last byte `number`.
    pub(crate) fn numbered(&mut self, number: u8) -> Result<Shared> {
        let last = |bytes: &mut [u8]| *bytes.last_mut().expect("a message has a byte") = number;
        self.outbox.next(last)
    }

    /// The message of a stream.
    pub(crate) fn message(&self) -> Shared {
        self.outbox.first()
    }

    /// Queues one message for the next doorbell.
    #[inline]
    pub(crate) fn push(&mut self, message: Shared, imm: u32) -> Result<()> {
        let data = message.into();
        let Remote { address, key } = self.theirs.context("the other side exposed no memory")?;
        let work = match self.test.op {
            Op::Send => Work::Send { data, imm: Some(imm).filter(|imm| *imm != 0) },
            Op::Write => Work::Write { data, address, key, imm: None },
            Op::WriteImm => Work::Write { data, address, key, imm: Some(imm) },
            Op::Read => anyhow::bail!("a read brings a message, it takes none"),
        };
        Ok(self.link.queue().push(work)?)
    }

    /// Queues a read of the other side's message.
    pub(crate) fn push_read(&mut self, into: Buffer) -> Result<()> {
        let Remote { address, key } = self.theirs.context("the other side exposed no memory")?;
        Ok(self.link.queue().push(Work::Read { into, address, key })?)
    }

    /// Queues a report to the other side, which carries a number only.
    pub(crate) fn push_notice(&mut self, imm: u32) -> Result<()> {
        Ok(self.link.queue().push(Work::Notice { imm })?)
    }

    /// Reads the other side's message and waits for it.
    pub(crate) fn read(&mut self, into: Buffer) -> Result<Buffer> {
        self.push_read(into)?;
        self.link.queue().ring(true)?;
        loop {
            let stands = self.link.wait(&mut self.arrivals, true)?;
            for arrival in self.arrivals.drain(..) {
                if let Arrival::Read { memory } = arrival {
                    return Ok(memory);
                }
            }
            ensure!(stands, "the other side went away");
        }
    }

    /// The last byte of the written message.
    pub(crate) fn last_byte(&self) -> u8 {
        last_byte(&self.mine)
    }

    /// Watches memory until its last byte is `number`; `false` when the other side hung up.
    pub(crate) fn watch(&mut self, number: u8) -> Result<bool> {
        let Side { link, mine, .. } = self;
        link.watch(|| last_byte(mine) == number)
    }

    /// The written message; ends the connection.
    pub(crate) fn into_written(self) -> Buffer {
        let Side { link, mine, test, .. } = self;
        drop(link);
        let mut memory = mine.close();
        memory.split_off(memory.len() - test.bytes)
    }
}

/// Sends in the queue beside the window. Most of them are finished, but few ask for completion.
pub(crate) const SENDS: usize = 64;
/// Messages of a latency test: each is free again when its turn comes.
const MESSAGES: usize = SENDS;

/// The last byte of a word in memory order is the highest of a little-endian number.
fn last_byte(memory: &Exposed) -> u8 {
    (u64::from_le(memory.word(memory.len() - 8)) >> 56) as u8
}

fn exposed_bytes(message: usize) -> usize {
    message.next_multiple_of(8)
}

/// A message in which every byte depends on its place.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(0x85EB_CA6B).to_le_bytes()[3] | 1).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_test_travels() {
        for op in Op::value_variants() {
            for measure in Measure::value_variants() {
                let test =
                    Test { measure: *measure, op: *op, bytes: 5, window: 7, inline_bytes: 220 };
                assert_eq!(Test::from_words(test.words()).unwrap(), test);
            }
        }
    }

    #[test]
    fn tests_out_of_range_are_refused() {
        for words in [
            [9 << 8, 1, 1, 0],
            [9, 1, 1, 0],
            [0, 0, 1, 0],
            [0, 1 << 40, 1, 0],
            [0, 1, 0, 0],
            [0, 1, 1 << 20, 0],
        ] {
            assert!(Test::from_words(words).is_err(), "{words:?}");
        }
    }
}
