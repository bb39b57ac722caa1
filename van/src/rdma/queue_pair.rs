//! One peer's lane: what waits to leave, the credits of the peer, and what leaves with one
//! doorbell.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::control_words::{CHUNK_BYTES, Credits, Notice, last};
use super::verbs::{OpenWindow, QueuePair, Through, Window, Work};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::metrics::Counters;
use crate::transport::{Gather, PeerId, check_write};
use crate::wire::Offer;

/// Sends of one lane that the device holds at most.
pub(super) const SENDS: usize = 256;

/// The same for lanes of a transport that has many: each takes memory of the device.
pub(super) const SENDS_OF_MANY: usize = 64;

/// Places among them that are reserved for opening windows, which must never wait.
const SENDS_KEPT: usize = 32;

/// Most receive buffers that a peer may fill before it is told that some are free again.
pub(super) const RECEIVES: u32 = 128;

/// Receive buffers of a new lane. A lane in use gets more. At two of them that are free again the
/// peer is told so: at one, each notice would call for another one.
pub(super) const RECEIVES_FIRST: u32 = 4;

/// Up to this many last bytes of a write leave in the message that closes its window. They are what
/// follows the values of a message.
const LAST_BYTES_MAX: usize = 512;

/// Number of receive buffers that are replaced with one doorbell.
const REPLACED_TOGETHER: u32 = 16;

/// After this many sends without a completion the next chain asks for one, which frees their
/// places.
const REPORT_EVERY: u32 = 16;

/// Most bytes that travel inside a work request, if the device allows as many.
pub(super) const INLINE_BYTES: usize = 220;

/// What waits to leave.
pub(super) enum Unit {
    /// A frame without its prefix.
    Frame(Shared),
    /// The rest of a write. The message behind it closes a window; a region is closed by its owner.
    Write { data: Gather, address: u64, key: u32, notice: Notice, len: u64, closes: bool },
    /// The message that closes the window of a write.
    Last { message: Shared, key: u32 },
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
pub(super) struct QueuePairState {
    pub(super) queue_pair: QueuePair,
    /// Number of sends that it can hold.
    pub(super) sends_max: usize,
    /// Which completion queue of the transport it has.
    pub(super) reported: usize,
    /// Longest frame the peer takes.
    pub(super) frame_bytes: usize,
    queue: VecDeque<Unit>,
    /// Whether the transport has it on the list of lanes to flush.
    is_eager: bool,
    pub(super) receives: Receives,
    /// Sends since the last one that reports its completion.
    unreported: u32,
    /// Whether one of those holds memory or is waited for.
    holds: bool,
    hearing: Hearing,
}

/// The receive buffers of both sides of a lane: the credits of this side, and what it owes its
/// peer.
#[derive(Default)]
pub(super) struct Receives {
    /// Receive buffers that the peer has free for this lane.
    credits: u32,
    /// Receive buffers of our own that belong to this lane.
    pub(super) kept: u32,
    /// Our receive buffers that are free again and that the peer has not been told of.
    owed: u32,
    /// Our receive buffers that the peer has used up and that are not replaced yet.
    pub(super) used: u32,
    /// Receive buffers that the next doorbell replaces and that are not owed yet.
    pub(super) replaced: u32,
}

/// When something last came from the peer.
struct Hearing {
    /// The last look that found something new.
    at: Instant,
    /// Whether something came since.
    heard: bool,
    /// Whether a probe is under way.
    probing: bool,
}

impl QueuePairState {
    /// A lane on which nothing can be sent before [`QueuePairState::greet`].
    pub(super) fn new(queue_pair: QueuePair, reported: usize, now: Instant) -> QueuePairState {
        QueuePairState {
            sends_max: queue_pair.room(),
            reported,
            queue_pair,
            frame_bytes: 0,
            queue: VecDeque::new(),
            is_eager: false,
            receives: Receives { kept: RECEIVES_FIRST, ..Receives::default() },
            unreported: 0,
            holds: false,
            hearing: Hearing { at: now, heard: true, probing: false },
        }
    }

    /// Notes the longest frame of the peer and the receive buffers that it begins with.
    pub(super) fn greet(&mut self, frame_bytes: usize, credits: u32) {
        self.frame_bytes = frame_bytes;
        self.receives.credits = credits;
    }

    /// Whether the device has work of this lane that has not completed.
    pub(super) fn is_busy(&self) -> bool {
        self.queue_pair.room() < self.sends_max
    }

    /// Asks for a completion behind all that is under way, so that a caller can wait for its end.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.unreported == 0 || self.queue_pair.room() == 0 {
            return Ok(());
        }
        self.mark()
    }

    /// Posts a write of no bytes that reports its completion.
    fn mark(&mut self) -> Result<()> {
        self.holds = true;
        self.queue_pair.push(Work::Probe)?;
        self.ring()
    }

    /// Whether a frame can go on the chain at once: nothing waits and there is room.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.queue.is_empty() && self.may_send()
    }

    /// Puts a frame on the chain for the next doorbell. The caller has checked that there is room.
    #[inline]
    pub(super) fn send(&mut self, frame: Shared, counters: &mut Counters) -> Result<()> {
        counters.frames_sent += 1;
        counters.bytes_sent += frame.len() as u64;
        let imm = Some(self.receives.hand_back(true));
        self.spend(1, frame.len());
        self.queue_pair.push(Work::Send { data: frame.into(), imm })
    }

    /// Sends the proof that begins a lane. It reports its completion at once: windows may wait for
    /// it.
    pub(super) fn send_proof(&mut self, proof: Shared) -> Result<()> {
        self.send(proof, &mut Counters::default())?; // it is no frame of the layer above
        self.holds = true;
        Ok(())
    }

    /// Queues `unit` to leave at a flush, behind what was posted before.
    ///
    /// # Errors
    /// [`Error::QueueFull`] if `depth` units wait.
    pub(super) fn enqueue(&mut self, peer: PeerId, unit: Unit, depth: usize) -> Result<()> {
        if self.queue.len() >= depth {
            return Err(Error::QueueFull { peer, depth });
        }
        self.queue.push_back(unit);
        Ok(())
    }

    /// Notes that something was posted; returns whether the transport must list this lane to flush.
    #[inline]
    pub(super) fn has_to_leave(&mut self) -> bool {
        !std::mem::replace(&mut self.is_eager, true)
    }

    /// Whether the transport must list this lane to flush, because something that waited may leave.
    pub(super) fn wake(&mut self) -> bool {
        !self.queue.is_empty() && self.has_to_leave()
    }

    /// Hands to the device what it has room for and the peer has buffers for, with as few doorbells
    /// as possible.
    pub(super) fn flush(&mut self, pool: &Pool, counters: &mut Counters) -> Result<()> {
        self.is_eager = false;
        while self.may_send()
            && let Some(unit) = self.queue.pop_front()
        {
            match unit {
                Unit::Frame(frame) => self.send(frame, counters)?,
                write => self.chain_write(write, pool, counters)?,
            }
        }
        // The last credit is reserved for this notice: without it, two sides that have filled each
        // other's buffers would wait for ever.
        if self.receives.owes_much() && self.receives.credits > 0 && self.queue_pair.room() > 0 {
            let imm = self.receives.hand_back(false);
            self.spend(1, 0);
            self.queue_pair.push(Work::Notice { imm })?;
        }
        self.ring()
    }

    /// Rings for what is on the chain. The chain reports its completion if it holds memory, if the
    /// queue is full, or after [`REPORT_EVERY`] sends.
    fn ring(&mut self) -> Result<()> {
        if self.queue_pair.chained() == 0 {
            return Ok(());
        }
        let is_full = self.queue_pair.room() <= SENDS_KEPT;
        let report = self.holds || is_full || self.unreported >= REPORT_EVERY;
        if report {
            (self.unreported, self.holds) = (0, false);
        }
        let rung = self.queue_pair.ring(report);
        rung.map_err(|source| Error::Os { call: "posting to the RDMA device", source })
    }

    #[inline]
    fn may_send(&self) -> bool {
        self.receives.credits > 1 && self.queue_pair.room() > SENDS_KEPT
    }

    /// Puts a write on the chain, which has room. The rest of a long write and its closing message
    /// follow, or wait for room.
    fn chain_write(&mut self, unit: Unit, pool: &Pool, counters: &mut Counters) -> Result<()> {
        let mut next = Some(unit);
        while let Some(unit) = next {
            if !self.may_send() {
                self.queue.push_front(unit);
                break;
            }
            next = self.chain_piece(unit, pool, counters)?;
        }
        Ok(())
    }

    /// Puts a write or its first piece on the chain; returns what must follow.
    fn chain_piece(
        &mut self,
        unit: Unit,
        pool: &Pool,
        counters: &mut Counters,
    ) -> Result<Option<Unit>> {
        let (data, address, key, notice, len, closes) = match unit {
            Unit::Frame(_) => unreachable!("`send` is for those"),
            Unit::Last { message, key } => {
                self.spend(1, message.len());
                self.queue_pair.push(Work::SendLast { data: message.into(), key })?;
                return Ok(None);
            }
            Unit::Write { data, address, key, notice, len, closes } => {
                (data, address, key, notice, len, closes)
            }
        };
        if data.len() > CHUNK_BYTES {
            let (data, rest) = cut(data, CHUNK_BYTES);
            let behind = address + CHUNK_BYTES as u64;
            counters.bytes_sent += CHUNK_BYTES as u64;
            self.spend(0, CHUNK_BYTES);
            self.queue_pair.push(Work::Write { data, address, key, imm: None })?;
            return Ok(Some(Unit::Write { data: rest, address: behind, key, notice, len, closes }));
        }
        counters.bytes_sent += data.len() as u64;
        if !closes {
            self.spend(1, data.len());
            let imm = Some(notice.to_word());
            self.queue_pair.push(Work::Write { data, address, key, imm })?;
            return Ok(None);
        }
        let Gather { head, tail } = data;
        let (rides, stays) = match tail {
            Some(tail) if tail.len() <= LAST_BYTES_MAX => (Some(tail), None),
            tail => (None, tail),
        };
        let message = last(pool, notice, len, rides.as_deref().unwrap_or_default())?;
        let data = Gather { head, tail: stays };
        self.spend(0, data.len());
        self.queue_pair.push(Work::Write { data, address, key, imm: None })?;
        Ok(Some(Unit::Last { message, key }))
    }

    /// Accounts for one more send of `bytes`. It costs a credit if the peer needs a receive buffer.
    #[inline]
    fn spend(&mut self, credits: u32, bytes: usize) {
        self.receives.credits -= credits;
        self.unreported += 1;
        self.holds |= bytes > self.queue_pair.inline_bytes();
    }

    /// Retires the sends that have completed, up to the reported one.
    pub(super) fn retire(&mut self, through: Through) {
        self.hearing.probing = false;
        self.queue_pair.retire(through, &mut Vec::new()); // nothing is read
    }

    /// Notes that something came from the peer.
    pub(super) fn hears(&mut self) {
        self.hearing.heard = true;
    }

    /// Probes a peer that was silent for `silence`: a connection whose other side is gone reports
    /// nothing until something is sent.
    pub(super) fn probe(&mut self, now: Instant, silence: Duration) -> Result<()> {
        let hearing = &mut self.hearing;
        if std::mem::take(&mut hearing.heard) {
            hearing.at = now;
            return Ok(());
        }
        if now < hearing.at + silence || hearing.probing || self.queue_pair.room() == 0 {
            return Ok(());
        }
        (hearing.at, hearing.probing) = (now, true);
        self.mark()
    }

    /// Opens a window; see [`QueuePair::bind`].
    pub(super) fn bind(&mut self, window: Window, memory: Buffer) -> Result<OpenWindow> {
        self.unreported += 1;
        self.queue_pair.bind(window, memory)
    }
}

impl Receives {
    /// Counts a receive buffer that the peer has used up, `replaced` or not; returns whether it is
    /// time to replace used ones and to ring for them.
    #[inline]
    pub(super) fn use_one(&mut self, replaced: bool) -> bool {
        self.replaced += u32::from(replaced);
        self.used += u32::from(!replaced);
        self.used + self.replaced >= self.replaced_together()
    }

    fn replaced_together(&self) -> u32 {
        REPLACED_TOGETHER.min(self.kept / 2)
    }

    /// How many more receive buffers a lane in use should have, of `spare` ones.
    pub(super) fn lacks(&self, spare: usize) -> u32 {
        let more = self.kept.min(RECEIVES.saturating_sub(self.kept));
        more.min(u32::try_from(spare).unwrap_or(u32::MAX))
    }

    /// Takes `more` receive buffers into this lane, which the device has or is about to have.
    pub(super) fn grow(&mut self, more: u32) {
        self.kept += more;
        self.replaced += more;
    }

    /// Whether used receive buffers could not be replaced for want of memory.
    pub(super) fn starve(&self) -> bool {
        self.used >= self.replaced_together()
    }

    /// Counts the replaced receive buffers, which the device has now, as owed; returns whether it
    /// is time to tell the peer.
    pub(super) fn owe(&mut self) -> bool {
        self.owed += std::mem::take(&mut self.replaced);
        self.owes_much()
    }

    fn owes_much(&self) -> bool {
        self.owed >= self.kept / 2
    }

    /// Adds `count` receive buffers that the peer has freed, or has added to the lane.
    ///
    /// # Errors
    /// The reason that the count is impossible.
    pub(super) fn credit(&mut self, count: u32) -> Result<(), String> {
        let credits = self.credits.saturating_add(count);
        if credits > RECEIVES {
            return Err(format!(
                "it hands back {count} receive buffers, and {} of {RECEIVES} are free",
                self.credits
            ));
        }
        self.credits = credits;
        Ok(())
    }

    fn hand_back(&mut self, frame: bool) -> u32 {
        let count = std::mem::take(&mut self.owed);
        Credits { count, frame }.to_word()
    }
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
