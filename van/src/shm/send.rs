//! The sending half of a lane: records into the own ring, and the memory they refer to until the
//! peer has read it.
//!
//! Short frames are copied into the ring. Longer frames and writes are references into memory that
//! this node shares, and the receiver copies from there. Memory that is not shared, a user's own,
//! is copied through a few shared chunks. What the ring has no room for waits in a bounded queue.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**shm**).

use std::collections::VecDeque;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::arenas::{Announced, LendRecord, RETURNS_MAX, Reference, WriteRecord};
use super::connect::Link;
use super::loan::Lent;
use super::receive::Hub;
use super::ring::{FRAME_LINES_MAX, INLINE_BYTES_MAX, Kind, WRITE_LINES, Writer};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared, Views};
use crate::transport::{FRAME_PREFIX, Gather, PeerId, check_write};
use crate::wire::Offer;

/// Bytes of memory that is not shared that are copied at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Most such chunks under way on a lane: one being read, one waiting, one being filled.
const CHUNKS_MAX: usize = 3;

/// The sending half of a lane.
#[derive(Debug)]
pub(super) struct Sender {
    peer: PeerId,
    depth: usize,
    pub(super) ring: Writer,
    /// Memory that records refer to.
    held: VecDeque<Held>,
    /// Number of chunks in `held`.
    chunks: usize,
    /// What the ring had no room for.
    outbox: VecDeque<Unit>,
    announced: Announced,
    /// What the peer has borrowed.
    pub(super) lent: Lent,
    /// What the peer did wrong, if anything.
    pub(super) broken: Option<String>,
}

/// Memory that a record refers to, until the peer has read the ring up to `end`.
#[derive(Debug)]
struct Held {
    end: u64,
    is_chunk: bool,
    _data: Shared,
}

/// What waits for room in the ring.
#[derive(Debug)]
enum Unit {
    /// A frame and the values that are lent with it.
    Frame(Shared, Option<Shared>),
    Write(Write),
}

/// A write that is not wholly in the ring yet.
#[derive(Debug)]
struct Write {
    key: u64,
    at: u64,
    data: Gather,
    begun: bool,
    /// Bytes that the ring refers to.
    sent: usize,
}

impl Sender {
    pub(super) fn new(peer: PeerId, depth: usize) -> Sender {
        Sender {
            peer,
            depth,
            ring: Writer::default(),
            held: VecDeque::new(),
            chunks: 0,
            outbox: VecDeque::new(),
            announced: Announced::default(),
            lent: Lent::default(),
            broken: None,
        }
    }

    /// Whether something waits for room in the ring.
    pub(super) fn waits(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether there is something to move, to release or to report.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.outbox.is_empty() || !self.held.is_empty() || self.broken.is_some()
    }

    /// Copies a frame without its prefix into the ring. Returns false if the frame is too long, the
    /// ring has no room, or other frames wait.
    #[inline(always)]
    pub(super) fn copy(&mut self, link: &mut Link, frame: &[u8], hub: &mut Hub) -> bool {
        if !self.outbox.is_empty() || !self.put_inline(link, frame) {
            return false;
        }
        hub.counters.frames_sent += 1;
        hub.counters.bytes_sent += (FRAME_PREFIX + frame.len()) as u64;
        true
    }

    /// Takes a frame with its prefix, and the values that are lent with it. It copies what the peer
    /// must read in place and cannot see.
    ///
    /// # Errors
    /// [`Error::QueueFull`]; [`Error::OutOfMemory`] if there is no shared memory for a copy.
    pub(super) fn frame(
        &mut self,
        link: &mut Link,
        frame: Buffer,
        values: Option<Shared>,
        hub: &mut Hub,
    ) -> Result<()> {
        if values.is_none() && self.copy(link, &frame[FRAME_PREFIX..], hub) {
            return Ok(());
        }
        self.check_depth()?;
        let bytes = frame.len() + values.as_ref().map_or(0, |values| values.len());
        let mut values = values;
        if let Some(values) = &mut values
            && (!values.is_from(&hub.pool) || !values.as_ptr().addr().is_multiple_of(8))
        {
            *values = copy_of(values, &hub.pool)?;
            hub.counters.payload_bytes_copied += values.len() as u64;
        }
        let mut frame = frame;
        frame.advance(FRAME_PREFIX);
        let mut frame = frame.share();
        if frame.len() > INLINE_BYTES_MAX && !frame.is_from(&hub.pool) {
            frame = copy_of(&frame, &hub.pool)?;
        }
        hub.counters.frames_sent += 1;
        hub.counters.bytes_sent += bytes as u64;
        self.outbox.push_back(Unit::Frame(frame, values));
        self.pump(link, hub);
        Ok(())
    }

    /// Takes a write.
    ///
    /// # Errors
    /// [`Error::QueueFull`], and those of [`check_write`].
    pub(super) fn write(
        &mut self,
        link: &mut Link,
        data: Gather,
        (into, at): (&Offer, u64),
        hub: &mut Hub,
    ) -> Result<()> {
        let (key, len) = (into.key.get(), data.len() as u64);
        check_write(key, at, len, into.len.get())?;
        self.check_depth()?;
        hub.counters.bytes_sent += len + size_of::<WriteRecord>() as u64;
        self.outbox.push_back(Unit::Write(Write { key, at, data, begun: false, sent: 0 }));
        self.pump(link, hub);
        Ok(())
    }

    /// Releases the loans that the peer has returned.
    #[inline]
    pub(super) fn take_back(&mut self, returned: &mut Vec<u64>) {
        while let Some(number) = returned.pop() {
            if !self.lent.take_back(number) {
                let reason = format!("it returns loan {number}, which it does not have");
                self.broken.get_or_insert(reason);
            }
        }
    }

    /// Returns the loans that this side has finished with, as far as the ring has room.
    #[inline(always)]
    pub(super) fn give_back(&mut self, link: &mut Link, views: &Views) {
        if views.has_returned() {
            self.put_returns(link, views);
        }
    }

    #[inline(never)]
    fn put_returns(&mut self, link: &mut Link, views: &Views) {
        while views.has_returned() && self.has_room(link, 1) {
            let mut record = [0; 8 * RETURNS_MAX];
            let returned = std::iter::from_fn(|| views.take_returned());
            for (to, number) in record.chunks_exact_mut(8).zip(returned) {
                to.copy_from_slice(&number.to_le_bytes());
            }
            self.ring.put(&mut link.own, Kind::Return, &record);
        }
    }

    fn check_depth(&self) -> Result<()> {
        if self.outbox.len() >= self.depth {
            return Err(Error::QueueFull { peer: self.peer, depth: self.depth });
        }
        Ok(())
    }

    /// Releases what the peer has read and moves what waits into the ring; returns whether anything
    /// moved.
    ///
    /// # Errors
    /// What the peer did wrong.
    #[inline]
    pub(super) fn turn(&mut self, link: &mut Link, hub: &mut Hub) -> Result<bool, String> {
        if !self.has_work() {
            return Ok(false);
        }
        let before = self.ring.head;
        self.release(link);
        self.pump(link, hub);
        self.broken.take().map_or(Ok(self.ring.head != before), Err)
    }

    fn pump(&mut self, link: &mut Link, hub: &mut Hub) {
        while let Some(mut unit) = self.outbox.pop_front() {
            let is_put = match &mut unit {
                Unit::Frame(frame, values) => self.put_frame(link, frame, values.as_ref()),
                Unit::Write(write) => self.put_write(link, write, hub),
            };
            if is_put.is_none() {
                self.outbox.push_front(unit);
                return;
            }
        }
    }

    /// Puts a frame and the loan of its values into the ring; `None` if not both can go now.
    fn put_frame(
        &mut self,
        link: &mut Link,
        frame: &Shared,
        values: Option<&Shared>,
    ) -> Option<()> {
        if !self.has_room(link, 1 + FRAME_LINES_MAX) {
            return None;
        }
        let is_long = frame.len() > INLINE_BYTES_MAX;
        let frame_at = if is_long { Some(self.refer(link, frame)?) } else { None };
        if let Some(values) = values {
            let values_at = self.refer(link, values)?;
            let number = U64::new(self.lent.lend(values.clone()));
            self.ring.put(
                &mut link.own,
                Kind::Lend,
                LendRecord { number, values: values_at }.as_bytes(),
            );
        }
        match frame_at {
            None => {
                let is_put = self.put_inline(link, frame);
                debug_assert!(is_put, "there is room");
            }
            Some(reference) => {
                self.ring.put(&mut link.own, Kind::Frame, reference.as_bytes());
                self.hold(frame.clone(), false);
            }
        }
        Some(())
    }

    /// Copies a frame into the ring; returns false if it is too long or there is no room.
    #[inline(always)]
    fn put_inline(&mut self, link: &mut Link, frame: &[u8]) -> bool {
        let fits = frame.len() <= INLINE_BYTES_MAX && self.has_room(link, FRAME_LINES_MAX);
        if fits {
            self.ring.put_frame(&mut link.own, frame);
        }
        fits
    }

    /// Puts a write into the ring piece by piece; `None` if not all of it can go now.
    fn put_write(&mut self, link: &mut Link, write: &mut Write, hub: &mut Hub) -> Option<()> {
        while !write.begun || write.sent < write.data.len() {
            if !self.has_room(link, WRITE_LINES) {
                return None;
            }
            let mut parts = [None, None];
            let parts_max = if write.begun { 1 } else { 2 };
            let mut references = [Reference::default(); 2];
            for (part, reference) in parts.iter_mut().zip(&mut references).take(parts_max) {
                let Some((found, data, is_chunk)) = self.next_part(link, write, hub) else {
                    break;
                };
                write.sent += data.len();
                *reference = found;
                self.chunks += usize::from(is_chunk);
                *part = Some((data, is_chunk));
            }
            if !write.begun {
                let (key, at) = (U64::new(write.key), U64::new(write.at));
                let len = U64::new(write.data.len() as u64);
                let record = WriteRecord { key, at, len, parts: references };
                self.ring.put(&mut link.own, Kind::Write, record.as_bytes());
                write.begun = true;
            } else if parts[0].is_some() {
                self.ring.put(&mut link.own, Kind::Piece, references[0].as_bytes());
            } else {
                return None;
            }
            for (data, is_chunk) in parts.into_iter().flatten() {
                self.hold(data, is_chunk);
            }
        }
        Some(())
    }

    /// The next part of a write, in shared memory; `None` if there is no more or it has to wait.
    fn next_part(
        &mut self,
        link: &mut Link,
        write: &Write,
        hub: &mut Hub,
    ) -> Option<(Reference, Shared, bool)> {
        let Gather { head, tail } = &write.data;
        let rest = match tail {
            _ if write.sent < head.len() => head.slice(write.sent..),
            Some(tail) if write.sent < write.data.len() => tail.slice(write.sent - head.len()..),
            _ => return None,
        };
        if rest.is_from(&hub.pool) {
            return Some((self.refer(link, &rest)?, rest, false));
        }
        if self.chunks == CHUNKS_MAX {
            return None;
        }
        let chunk = copy_of(&rest[..rest.len().min(CHUNK_BYTES)], &hub.pool).ok()?;
        hub.counters.payload_bytes_copied += chunk.len() as u64;
        Some((self.refer(link, &chunk)?, chunk, true))
    }

    /// Keeps the memory that the last record refers to.
    fn hold(&mut self, data: Shared, is_chunk: bool) {
        self.held.push_back(Held { end: self.ring.head, is_chunk, _data: data });
    }

    /// A reference to `data`, which lies in the shared pool; `None` if it cannot be made now.
    fn refer(&mut self, link: &Link, data: &Shared) -> Option<Reference> {
        self.announced.refer(link, data).unwrap_or_else(|reason| {
            self.broken.get_or_insert(reason);
            None
        })
    }

    /// Whether the ring has room for `lines` more.
    #[inline]
    fn has_room(&mut self, link: &Link, lines: u64) -> bool {
        if self.ring.has_room(lines) {
            return true;
        }
        self.release(link);
        self.ring.has_room(lines)
    }

    /// Reads how far the peer has read, and releases the memory it no longer needs.
    fn release(&mut self, link: &Link) {
        if let Err(reason) = self.ring.look(&link.foreign) {
            self.broken.get_or_insert(reason);
            return;
        }
        let freed = self.ring.freed;
        while let Some(held) = self.held.pop_front_if(|held| held.end <= freed) {
            self.chunks -= usize::from(held.is_chunk);
        }
    }
}

/// A copy of `bytes` in the shared pool.
///
/// # Errors
/// [`Error::OutOfMemory`].
fn copy_of(bytes: &[u8], pool: &Pool) -> Result<Shared> {
    let mut copy = pool.allocate(bytes.len())?;
    copy.copy_from_slice(bytes);
    Ok(copy.share())
}
