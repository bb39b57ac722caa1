//! One side of one test of a device: what the two agree on, their memory, and how a message of each kind is posted.

use std::cell::Cell;

use anyhow::{Context, Result, ensure};
use caravan_van::rdma::verbs::{Exposed, Work};
use caravan_van::{Buffer, Shared, Wait};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::link::{Arrival, Asked, Link, Room};
use super::words::{pack, unpack};

/// How a message is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// SEND into a posted receive
    Send,
    /// RDMA WRITE; the other side watches its memory
    Write,
    /// RDMA WRITE with immediate data, which completes a receive
    WriteImm,
    /// RDMA READ; the other side has no part in it
    Read,
}

impl Op {
    /// As on the command line, in a column.
    pub(super) fn padded(self) -> String {
        let value = self.to_possible_value().expect("no kind of message is hidden");
        format!("{:<10}", value.get_name())
    }

    /// Whether a message uses up a receive of the other side.
    pub(crate) fn is_received(self) -> bool {
        matches!(self, Op::Send | Op::WriteImm)
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measure {
    /// One message at a time, to and fro
    Latency,
    /// A window of messages under way, one direction
    Bandwidth,
}

/// One test, as both sides have to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) measure: Measure,
    pub(crate) op: Op,
    pub(crate) bytes: usize,
    /// Most messages under way.
    pub(crate) window: usize,
    /// Messages of at most so many bytes go inside the work request, where the device can.
    pub(crate) inline_bytes: usize,
}

/// The kind of what the asking side says, and of what it is told.
const TEST: u64 = u64::from_le_bytes(*b"cvverbs1");
/// Longest message, in bytes: what a device takes in one piece.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// Most messages under way.
pub(crate) const WINDOW_MAX: u32 = 4096;
/// Messages a receiver has posted receives for, in windows.
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

    /// Messages the other side has receives posted for before it says that it took some.
    pub(crate) fn credits(&self) -> usize {
        RECEIVES_A_WINDOW * self.window
    }
}

/// One side of a test.
pub(crate) struct Side {
    pub(crate) test: Test,
    pub(crate) link: Link,
    /// Memory the other side writes to or reads from. The message lies at its end, which is the end of a word.
    mine: Exposed,
    /// That of the other side: address of the message, and key.
    theirs: (u64, u32),
    /// What is sent, one after the other, each with its number as the last byte.
    messages: Vec<Shared>,
    next: usize,
    pub(crate) arrivals: Vec<Arrival>,
}

impl Side {
    /// The asking side, connected to a listener.
    ///
    /// # Errors
    /// When there is no way to it, or it does not do this test.
    pub(crate) fn dial(
        from: std::net::IpAddr,
        to: std::net::SocketAddr,
        test: Test,
        wait: Wait,
    ) -> Result<Self> {
        let link = Link::dial(Some(from), to, test.room(), wait)?;
        let mut side = Side::new(link, test, &[])?;
        let [kind, bytes, window, inline] = test.words();
        // Inline sizes and keys share a word.
        let words =
            [kind, bytes, window, inline << 32 | u64::from(side.mine.remote_key()), side.place()];
        let said = side.link.connect(&pack(TEST, words))?;
        side.set_theirs(unpack(TEST, &said)?);
        Ok(side)
    }

    /// The answering side of whoever asked; `None` when they were turned away.
    ///
    /// # Errors
    /// When the link cannot be made.
    pub(crate) fn answer(asked: Asked, wait: Wait) -> Result<Option<Self>> {
        let read =
            unpack(TEST, &asked.said).and_then(|[kind, bytes, window, inline_key, place]| {
                let key = inline_key & u64::from(u32::MAX);
                Ok((Test::from_words([kind, bytes, window, inline_key >> 32])?, [place, key]))
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
        side.set_theirs(theirs);
        let words = [side.place(), u64::from(side.mine.remote_key())];
        side.link.accept(&pack(TEST, words))?;
        Ok(Some(side))
    }

    fn new(link: Link, test: Test, contents: &[u8]) -> Result<Self> {
        let mine = link.expose(exposed_bytes(test.bytes), contents)?;
        // One message is under way and the next one is written; of a stream all are the same.
        let count = if test.measure == Measure::Latency { MESSAGES } else { 1 };
        let contents = pattern(test.bytes);
        let message = |_| {
            let mut message = link.memory().allocate(test.bytes)?;
            message.copy_from_slice(&contents);
            Ok(message.share())
        };
        let messages = (0..count).map(message).collect::<Result<_>>()?;
        Ok(Side { test, link, mine, theirs: (0, 0), messages, next: 0, arrivals: Vec::new() })
    }

    fn place(&self) -> u64 {
        self.mine.address() + (self.mine.len() - self.test.bytes) as u64
    }

    fn set_theirs(&mut self, [address, key]: [u64; 2]) {
        self.theirs = (address, key as u32);
    }

    /// The next message, its last byte `number`.
    pub(crate) fn numbered(&mut self, number: u8) -> Result<Shared> {
        let at = self.next;
        self.next = (at + 1) % self.messages.len();
        let message = &mut self.messages[at];
        let bytes = message.make_mut(self.link.memory())?;
        *bytes.last_mut().expect("a message has a byte") = number;
        Ok(message.clone())
    }

    /// The message that goes again and again in a stream.
    pub(crate) fn message(&self) -> Shared {
        self.messages[0].clone()
    }

    /// Queues one message for the next doorbell.
    #[inline]
    pub(crate) fn push(&mut self, message: Shared, imm: u32) -> Result<()> {
        let (data, (address, key), queue) = (message.into(), self.theirs, self.link.queue());
        match self.test.op {
            Op::Send if imm == 0 => queue.push(Work::Send { data, imm: None })?,
            Op::Send => queue.push(Work::Send { data, imm: Some(imm) })?,
            Op::Write => queue.push(Work::Write { data, address, key, imm: None })?,
            Op::WriteImm => queue.push(Work::Write { data, address, key, imm: Some(imm) })?,
            Op::Read => anyhow::bail!("a read brings a message, it takes none"),
        }
        Ok(())
    }

    /// Queues a read of the other side's message.
    pub(crate) fn push_read(&mut self, into: Buffer) -> Result<()> {
        let (address, key) = self.theirs;
        Ok(self.link.queue().push(Work::Read { into, address, key })?)
    }

    /// Queues word to the other side that carries a number only.
    pub(crate) fn push_notice(&mut self, imm: u32) -> Result<()> {
        Ok(self.link.queue().push(Work::Notice { imm })?)
    }

    /// Reads the other side's message; waits for it.
    pub(crate) fn read_back(&mut self) -> Result<Buffer> {
        let into = self.link.memory().allocate(self.test.bytes)?;
        self.push_read(into)?;
        self.link.queue().ring(true)?;
        loop {
            let stands = self.link.wait(&mut self.arrivals, true)?;
            for arrival in self.arrivals.drain(..) {
                if let Arrival::Read { memory } = arrival {
                    return Ok(memory);
                }
            }
            ensure!(stands, "the other side hung up");
        }
    }

    /// The last byte of what was written here.
    pub(crate) fn last_byte(&self) -> u8 {
        last_byte(&self.mine)
    }

    /// Watches memory until its last byte is `number`; `false` when the other side hung up.
    pub(crate) fn watch(&mut self, number: u8) -> Result<bool> {
        let Side { link, mine, .. } = self;
        let seen = Cell::new(0);
        link.watch(|| {
            seen.set(last_byte(mine));
            seen.get() == number
        })
    }

    /// What was written here, the connection being over.
    pub(crate) fn into_written(self) -> Buffer {
        let Side { link, mine, test, .. } = self;
        drop(link);
        let mut memory = mine.close();
        memory.split_off(memory.len() - test.bytes)
    }
}

/// Sends under way beside the window, most of them finished: only now and then is that asked for.
pub(crate) const SENDS: usize = 64;
/// Messages a side of a latency test takes turns with: each is free again when its turn comes.
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
