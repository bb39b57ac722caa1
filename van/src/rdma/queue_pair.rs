//! One peer's lane: what waits to leave, what the peer has room for, and what leaves together.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::verbs::{OpenWindow, QueuePair, Through, Window, Work};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::metrics::Counters;
use crate::transport::{Gather, check_write};
use crate::wire::Offer;

/// Sends that the device holds of one lane.
pub(super) const SENDS: usize = 256;

/// Of those, kept free for opening windows, which nothing may hold up.
const SENDS_KEPT: usize = 32;

/// Receive buffers that a peer may fill before it is told that they are free again.
pub(super) const RECEIVES: u32 = 128;

/// The last bytes of a write leave in the message that closes its window, when they are few: those of a message behind its values.
const LAST_BYTES_MAX: usize = 512;

/// Receive buffers are replaced so many at a time, with one doorbell.
const REPLACED_TOGETHER: u32 = 16;

/// What a lane can have in the completion queue: every send when it fails, and every receive.
pub(super) const COMPLETIONS: usize = SENDS + RECEIVES as usize;

/// One send in so many reports its completion at least, so that its place is known to be free.
const SIGNAL_EVERY: u32 = 16;

/// Longest write that devices take in one piece, in bytes.
const CHUNK_BYTES: usize = 1 << 30;

/// Most bytes that travel inside a work request, where the device takes as many.
pub(super) const INLINE_BYTES: usize = 220;

/// What waits to leave.
pub(super) enum Unit {
    /// A frame without its prefix.
    Frame(Shared),
    /// A piece of a write, up to its end. A window is closed by the message that follows it, a region by its owner.
    Write { data: Gather, address: u64, key: u32, notice: Notice, len: u64, closes: bool },
    /// What closes the window of a write.
    Last { message: Shared, key: u32 },
}

/// What closes the window of a write begins with this; behind it are the write's last bytes, where they were few.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Last {
    notice: U32,
    zero: U32,
    /// Bytes of the write, from first to last.
    len: U64,
}

impl Last {
    /// Takes a message apart: what it says, how long the write is, and its last bytes.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(super) fn read(message: &[u8]) -> Result<(Notice, usize, &[u8]), String> {
        let (last, tail) =
            Last::ref_from_prefix(message).map_err(|_| "it closed a window and said nothing")?;
        let len = usize::try_from(last.len.get()).unwrap_or(usize::MAX);
        if last.zero.get() != 0 || tail.len() > len {
            return Err(format!("it ended a write of {len} bytes by {} more", tail.len()));
        }
        Ok((Notice::from_word(last.notice.get()), len, tail))
    }
}

/// What the immediate word of a write says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Notice {
    /// The offer's place in its owner's table, 20 bits.
    pub(super) index: u32,
    /// Where in the offered memory the write begins, a multiple of 8: 9 bits.
    pub(super) at: u64,
    /// How many pieces of [`CHUNK_BYTES`] came before the last one, 3 bits.
    pub(super) chunks: u32,
}

impl Notice {
    /// Offers that one transport can have open.
    pub(super) const INDEX_END: u32 = 1 << 20;
    /// In the key of an offer, beside its index: it is a window, which the writer closes.
    pub(super) const WINDOW: u32 = 1 << 31;

    fn to_word(self) -> u32 {
        self.index << 12 | (self.at as u32 / 8) << 3 | self.chunks
    }

    pub(super) fn from_word(word: u32) -> Notice {
        Notice { index: word >> 12, at: u64::from(word >> 3 & 511) * 8, chunks: word & 7 }
    }

    /// Length of the write whose last piece has `bytes`.
    pub(super) fn len(self, bytes: u32) -> usize {
        self.chunks as usize * CHUNK_BYTES + bytes as usize
    }
}

/// What the immediate word of a message that is no write says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credits {
    /// Receive buffers that are free again.
    pub(super) count: u32,
    /// Whether a frame comes with it.
    pub(super) frame: bool,
}

impl Credits {
    const NO_FRAME: u32 = 1 << 31;

    fn to_word(self) -> u32 {
        self.count | if self.frame { 0 } else { Self::NO_FRAME }
    }

    pub(super) fn from_word(word: u32) -> Credits {
        Credits { count: word & !Self::NO_FRAME, frame: word & Self::NO_FRAME == 0 }
    }
}

impl Unit {
    /// A write of `data` into an offer, as one unit.
    ///
    /// # Errors
    /// As [`check_write`].
    pub(super) fn write(data: Gather, into: &Offer, at: u64) -> Result<Unit> {
        let (key, len) = (into.key.get(), data.len());
        check_write(key, at, len as u64, into.len.get())?;
        let (index, closes) = (key as u32 & !Notice::WINDOW, key as u32 & Notice::WINDOW != 0);
        if index >= Notice::INDEX_END {
            return Err(Error::OutsideOffer { key, at, len: len as u64, offered: 0 });
        }
        let notice = Notice { index, at, chunks: (len.saturating_sub(1) / CHUNK_BYTES) as u32 };
        Ok(Unit::Write {
            data,
            address: into.address.get() + at,
            key: (key >> 32) as u32,
            notice,
            len: len as u64,
            closes,
        })
    }
}

/// The lane to one peer.
pub(super) struct Lane {
    pub(super) queue_pair: QueuePair,
    /// Sends that it takes.
    sends_max: usize,
    /// Longest frame the peer takes.
    pub(super) frame_bytes: usize,
    queue: VecDeque<Unit>,
    /// Whether it is among those that the transport will flush.
    is_eager: bool,
    /// Receive buffers that the peer has free for this lane.
    credits: u32,
    /// Most that it can have.
    credits_max: u32,
    /// Our receive buffers that are free again, and of which the peer has not been told.
    owed: u32,
    /// Our receive buffers that the peer has used up, and that are not replaced yet.
    pub(super) used: u32,
    /// Sends since the last one that reports its completion.
    unsignalled: u32,
    /// One of those holds memory.
    holds: bool,
    heard_at: Instant,
    heard: bool,
    probing: bool,
}

impl Lane {
    /// A lane on which nothing can be sent before [`Lane::greet`].
    pub(super) fn new(queue_pair: QueuePair, now: Instant) -> Lane {
        Lane {
            sends_max: queue_pair.room(),
            queue_pair,
            frame_bytes: 0,
            queue: VecDeque::with_capacity(SENDS),
            is_eager: false,
            credits: 0,
            credits_max: 0,
            owed: 0,
            used: 0,
            unsignalled: 0,
            holds: false,
            heard_at: now,
            heard: true,
            probing: false,
        }
    }

    /// The peer has said how long its frames are and how many receive buffers it keeps for this lane.
    pub(super) fn greet(&mut self, frame_bytes: usize, credits: u32) {
        self.frame_bytes = frame_bytes;
        (self.credits, self.credits_max) = (credits, credits);
    }

    /// Units that have not been handed to the device.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether the device has work of this lane that has not ended.
    pub(super) fn is_busy(&self) -> bool {
        self.queue_pair.room() < self.sends_max
    }

    /// Makes the last of what is under way report its completion, so that the end of all of it can be waited for.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.unsignalled == 0 || self.queue_pair.room() == 0 {
            return Ok(());
        }
        self.mark()
    }

    /// Writes nothing, and has it reported.
    fn mark(&mut self) -> Result<()> {
        (self.unsignalled, self.holds) = (0, false);
        self.queue_pair.push(Work::Probe, true)?;
        self.ring()
    }

    /// Lets `unit` wait for the next flush; true if the transport has to be told to flush this lane.
    pub(super) fn enqueue(&mut self, unit: Unit) -> bool {
        self.queue.push_back(unit);
        !std::mem::replace(&mut self.is_eager, true)
    }

    /// The peer has used up one of our receive buffers; true if it is time to replace those that it has.
    pub(super) fn use_receive(&mut self) -> bool {
        self.used += 1;
        self.used >= REPLACED_TOGETHER
    }

    /// Whether memory was short when it was time to replace them.
    pub(super) fn starves(&self) -> bool {
        self.used >= REPLACED_TOGETHER
    }

    /// Receive buffers of ours were replaced; true if the transport has to flush this lane, to tell the peer.
    pub(super) fn owe(&mut self, replaced: u32) -> bool {
        self.used -= replaced;
        self.owed += replaced;
        self.owes_much() && !std::mem::replace(&mut self.is_eager, true)
    }

    fn owes_much(&self) -> bool {
        self.owed >= RECEIVES / 2
    }

    /// The peer has `count` more receive buffers free; true if the transport has to flush this lane.
    ///
    /// # Errors
    /// Says what is wrong with that.
    pub(super) fn credit(&mut self, count: u32) -> Result<bool, String> {
        let credits = self.credits.saturating_add(count);
        if credits > self.credits_max {
            return Err(format!(
                "it hands back {count} receive buffers, and {} of {} are free",
                self.credits, self.credits_max
            ));
        }
        self.credits = credits;
        Ok(self.rouse())
    }

    /// Whether the transport has to flush this lane, because something that waited may leave now.
    pub(super) fn rouse(&mut self) -> bool {
        !self.queue.is_empty() && !std::mem::replace(&mut self.is_eager, true)
    }

    /// Hands to the device what it has room for and the peer has buffers for, with as few doorbells as there can be.
    pub(super) fn flush(&mut self, pool: &Pool, counters: &mut Counters) -> Result<()> {
        self.is_eager = false;
        while self.may_send()
            && let Some(unit) = self.queue.pop_front()
        {
            let work = self.prepare(unit, pool, counters)?;
            self.push(work)?;
        }
        // The last credit is for this: two sides that have filled each other's buffers go on.
        if self.owes_much() && self.credits > 0 && self.queue_pair.room() > 0 {
            let imm = self.hand_back(false);
            self.credits -= 1;
            let signal = self.signals(false);
            self.queue_pair.push(Work::Notice { imm }, signal)?;
        }
        self.ring()
    }

    fn ring(&mut self) -> Result<()> {
        let rung = self.queue_pair.ring();
        rung.map_err(|source| Error::Os { call: "posting to the RDMA device", source })
    }

    fn may_send(&self) -> bool {
        self.credits > 1 && self.queue_pair.room() > SENDS_KEPT
    }

    /// What the device has to do for `unit`.
    fn prepare(&mut self, unit: Unit, pool: &Pool, counters: &mut Counters) -> Result<Work> {
        Ok(match unit {
            Unit::Frame(frame) => {
                counters.frames_sent += 1;
                counters.bytes_sent += frame.len() as u64;
                Work::Send { data: frame.into(), imm: Some(self.hand_back(true)) }
            }
            Unit::Write { data, address, key, notice, len, closes } if data.len() > CHUNK_BYTES => {
                let (data, rest) = cut(data, CHUNK_BYTES);
                let behind = address + CHUNK_BYTES as u64;
                let rest = Unit::Write { data: rest, address: behind, key, notice, len, closes };
                self.queue.push_front(rest);
                counters.bytes_sent += CHUNK_BYTES as u64;
                Work::Write { data, address, key, imm: None }
            }
            Unit::Write { data, address, key, notice, closes: false, .. } => {
                counters.bytes_sent += data.len() as u64;
                Work::Write { data, address, key, imm: Some(notice.to_word()) }
            }
            Unit::Write { data, address, key, notice, len, .. } => {
                counters.bytes_sent += data.len() as u64;
                let Gather { head, tail } = data;
                let (rides, stays) = match tail {
                    Some(tail) if tail.len() <= LAST_BYTES_MAX => (Some(tail), None),
                    tail => (None, tail),
                };
                let message = last(pool, notice, len, rides.as_deref().unwrap_or_default())?;
                self.queue.push_front(Unit::Last { message, key });
                Work::Write { data: Gather { head, tail: stays }, address, key, imm: None }
            }
            Unit::Last { message, key } => Work::SendLast { data: message.into(), key },
        })
    }

    /// Gives work to the device with the next doorbell; what the peer needs a receive buffer for costs a credit.
    fn push(&mut self, work: Work) -> Result<()> {
        let (bytes, credits) = match &work {
            Work::Send { data, .. }
            | Work::SendLast { data, .. }
            | Work::Write { data, imm: Some(_), .. } => (data.len(), 1),
            Work::Write { data, .. } => (data.len(), 0),
            _ => (0, 0),
        };
        self.credits -= credits;
        let signal = self.signals(bytes > self.queue_pair.inline_bytes());
        self.queue_pair.push(work, signal)
    }

    /// Whether the next send reports its completion: now and then, and the last of a batch when one of them `holds` memory.
    fn signals(&mut self, holds: bool) -> bool {
        self.holds |= holds;
        self.unsignalled += 1;
        let is_last = self.queue.is_empty() || self.credits <= 1;
        let is_full = self.queue_pair.room() <= SENDS_KEPT + 1;
        let signal = self.unsignalled >= SIGNAL_EVERY || is_full || (is_last && self.holds);
        if signal {
            (self.unsignalled, self.holds) = (0, false);
        }
        signal
    }

    fn hand_back(&mut self, frame: bool) -> u32 {
        let count = std::mem::take(&mut self.owed);
        Credits { count, frame }.to_word()
    }

    /// Sends have ended, up to the one that says so.
    pub(super) fn retire(&mut self, through: Through) {
        self.probing = false;
        self.queue_pair.retire(through, &mut Vec::new()); // nothing is read
    }

    /// Something came from the peer.
    pub(super) fn hears(&mut self) {
        self.heard = true;
    }

    /// Finds out whether the peer is there, when nothing was heard of it for `silence`: a connection whose other side has gone
    /// reports nothing unless something is sent.
    pub(super) fn probe(&mut self, now: Instant, silence: Duration) -> Result<()> {
        if std::mem::take(&mut self.heard) {
            self.heard_at = now;
            return Ok(());
        }
        if now < self.heard_at + silence || self.probing || self.queue_pair.room() == 0 {
            return Ok(());
        }
        self.heard_at = now;
        self.probing = true;
        self.mark()
    }

    /// Opens a window; see [`QueuePair::bind`].
    pub(super) fn bind(&mut self, window: Window, memory: Buffer) -> Result<OpenWindow> {
        self.unsignalled += 1;
        self.queue_pair.bind(window, memory)
    }
}

/// The message that closes the window of a write of `len` bytes, whose last ones are `tail`.
fn last(pool: &Pool, notice: Notice, len: u64, tail: &[u8]) -> Result<Shared> {
    const HEAD: usize = size_of::<Last>();
    let mut message = pool.allocate(HEAD + tail.len())?;
    let head = Last { notice: notice.to_word().into(), zero: 0.into(), len: len.into() };
    message[..HEAD].copy_from_slice(head.as_bytes());
    message[HEAD..].copy_from_slice(tail);
    Ok(message.share())
}

/// The first `at` bytes, and the others.
fn cut(data: Gather, at: usize) -> (Gather, Gather) {
    let Gather { head, tail } = data;
    let head_bytes = head.len();
    match tail {
        Some(tail) if at > head_bytes => {
            let behind = tail.slice(at - head_bytes..);
            let tail = Some(tail.slice(..at - head_bytes));
            (Gather { head, tail }, behind.into())
        }
        tail => {
            let behind = Gather { head: head.slice(at..), tail };
            (head.slice(..at).into(), behind)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn words_carry_what_they_say() {
        for notice in [
            Notice { index: 0, at: 0, chunks: 0 },
            Notice { index: Notice::INDEX_END - 1, at: 4088, chunks: 7 },
            Notice { index: 70_000, at: 8, chunks: 3 },
        ] {
            assert_eq!(Notice::from_word(notice.to_word()), notice);
        }
        assert_eq!(Notice { index: 0, at: 0, chunks: 3 }.len(5), (3 << 30) + 5);
        for (count, frame) in [(0, true), (64, false), (127, true)] {
            let credits = Credits { count, frame };
            assert_eq!(Credits::from_word(credits.to_word()), credits);
        }
    }

    #[test]
    fn what_closes_a_window_is_taken_apart_and_a_wrong_one_refused() {
        let pool = Pool::new(1 << 20);
        let notice = Notice { index: 7, at: 16, chunks: 0 };
        let message = last(&pool, notice, 100, b"the end").unwrap();
        assert_eq!(Last::read(&message).unwrap(), (notice, 100, &b"the end"[..]));
        assert_eq!(Last::read(&message[..16]).unwrap().2, b"");
        assert!(Last::read(&message[..15]).is_err());
        let short = last(&pool, notice, 6, b"the end").unwrap();
        assert!(Last::read(&short).unwrap_err().contains("6 bytes by 7"));
    }

    #[test]
    fn a_write_is_checked_against_its_offer() {
        let pool = Pool::new(1 << 20);
        let data = || Gather::from(pool.allocate(100).unwrap().share());
        let offer =
            |key: u64, len: u64| Offer { key: key.into(), address: 0x1000.into(), len: len.into() };
        let unit = Unit::write(data(), &offer(7 << 32 | 3, 200), 8).unwrap();
        let Unit::Write { address: 0x1008, key: 7, notice, len: 100, closes: false, .. } = unit
        else {
            panic!()
        };
        assert_eq!(notice, Notice { index: 3, at: 8, chunks: 0 });
        let window = offer(7 << 32 | u64::from(Notice::WINDOW) | 3, 200);
        let unit = Unit::write(data(), &window, 8).unwrap();
        assert!(matches!(unit, Unit::Write { notice: Notice { index: 3, .. }, closes: true, .. }));
        assert!(Unit::write(data(), &offer(3, 99), 0).is_err());
        assert!(Unit::write(data(), &offer(3, 200), 4).is_err());
        assert!(Unit::write(data(), &offer(Notice::INDEX_END.into(), 200), 0).is_err());
    }

    #[test]
    fn pieces_of_a_gather_make_up_the_whole() {
        let pool = Pool::new(1 << 20);
        let mut head = pool.allocate(10).unwrap();
        head.fill(1);
        let mut tail = pool.allocate(20).unwrap();
        tail.fill(2);
        let whole = Gather { head: head.share(), tail: Some(tail.share()) };
        let bytes = |gather: &Gather| {
            let tail = gather.tail.as_deref().unwrap_or_default();
            [&gather.head[..], tail].concat()
        };
        for at in [1, 9, 10, 11, 29] {
            let (front, back) = cut(whole.clone(), at);
            assert_eq!((front.len(), back.len()), (at, 30 - at));
            assert_eq!([bytes(&front), bytes(&back)].concat(), bytes(&whole));
        }
    }
}
