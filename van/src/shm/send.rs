//! The sending half of a lane: records into the own ring, and what they refer to until it has been
//! read.
//!
//! Short frames are copied into the ring. Of longer ones, and of writes, the ring holds references
//! into memory that this node shares: the receiver copies from where it lies. Memory that is not
//! shared, a user's own, passes through a few chunks that are. What the ring has no room for waits
//! in a bounded queue.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**shm**).

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

use caravan_numa::Pages;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::connect::{Link, Packet};
use super::loan::Lent;
use super::receive::Hub;
use super::ring::{
    self, CONSUMED, FRAME_LINES_MAX, Head, Kind, LINES, LendRecord, RETURNS_MAX, Reference,
    WRITE_LINES, WriteRecord,
};
use super::segment;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared, Views};
use crate::transport::{FRAME_PREFIX, Gather, PeerId, check_write};
use crate::wire::Offer;

mod inline;

/// How much of memory that is not shared is copied at a time, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// Such chunks that a lane has under way at most: one being read, one waiting, one being filled.
const CHUNKS_MAX: usize = 3;

/// Segments that are announced on one lane at most; a pool's arenas grow with it, so it has few.
pub(super) const SEGMENTS_MAX: usize = 1024;

/// The sending half of a lane.
#[derive(Debug)]
pub(super) struct Sender {
    peer: PeerId,
    depth: usize,
    /// Lines written so far.
    pub(super) head: u64,
    /// Lines that the peer had read when we last looked.
    pub(super) freed: u64,
    /// From this line on nothing stands in the ring but what began at its line: no middle of a
    /// frame that looks like a stamp.
    clear_from: u64,
    /// How the last frame began that stands in the ring, ...
    last: Head,
    /// ... and how many lines the last record took.
    lines: u64,
    /// What records refer to, up to which line.
    held: VecDeque<Held>,
    /// How many of those are chunks.
    chunks: usize,
    /// What the ring had no room for.
    outbox: VecDeque<Unit>,
    /// Where the arenas begin that the peer was told of, by their number on this lane. They are the
    /// pool's, so they stay.
    announced: Vec<usize>,
    /// What the peer has borrowed.
    pub(super) lent: Lent,
    /// Whether there are records that the peer, if it sleeps, was not woken for.
    pub(super) posted: bool,
    /// What is wrong with the peer, once something is.
    pub(super) broken: Option<String>,
}

#[derive(Debug)]
struct Held {
    end: u64,
    is_chunk: bool,
    _data: Shared,
}

#[derive(Debug)]
enum Unit {
    Frame(Shared),
    Write(Write),
    /// A frame, and values that are lent with it.
    Lend(Shared, Shared),
}

/// A write, as far as it is not in the ring yet.
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
            head: 0,
            freed: 0,
            clear_from: 0,
            last: Head::default(),
            lines: 1,
            held: VecDeque::new(),
            chunks: 0,
            outbox: VecDeque::new(),
            announced: Vec::new(),
            lent: Lent::default(),
            posted: false,
            broken: None,
        }
    }

    /// Whether something waits for the peer to make room.
    pub(super) fn waits(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether there is something to move, to let go of or to report.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.outbox.is_empty() || !self.held.is_empty() || self.broken.is_some()
    }

    /// Takes a frame with its prefix.
    pub(super) fn frame(&mut self, link: &mut Link, frame: Buffer, hub: &mut Hub) -> Result<()> {
        if self.copy(link, &frame[FRAME_PREFIX..], hub) {
            return Ok(());
        }
        self.check_depth()?;
        let bytes = frame.len();
        let frame = visible(frame, &hub.pool)?;
        hub.counters.frames_sent += 1;
        hub.counters.bytes_sent += bytes as u64;
        self.outbox.push_back(Unit::Frame(frame));
        self.pump(link, hub);
        Ok(())
    }

    /// Takes a write.
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

    /// Takes a frame with its prefix, and values that go with it without being copied; those that
    /// the peer cannot see are copied to where it can.
    pub(super) fn lend(
        &mut self,
        link: &mut Link,
        frame: Buffer,
        values: Shared,
        hub: &mut Hub,
    ) -> Result<()> {
        self.check_depth()?;
        let mut values = values;
        if !values.is_from(&hub.pool) || !values.as_ptr().addr().is_multiple_of(8) {
            let mut copy = hub.pool.allocate(values.len())?;
            copy.copy_from_slice(&values);
            hub.counters.payload_bytes_copied += values.len() as u64;
            values = copy.share();
        }
        hub.counters.frames_sent += 1;
        hub.counters.bytes_sent += (frame.len() + values.len()) as u64;
        let frame = visible(frame, &hub.pool)?;
        self.outbox.push_back(Unit::Lend(frame, values));
        self.pump(link, hub);
        Ok(())
    }

    /// Lets go of loans that the peer has returned.
    #[inline]
    pub(super) fn take_back(&mut self, returned: &mut Vec<u64>) {
        while let Some(number) = returned.pop() {
            if !self.lent.take_back(number) {
                let reason = format!("it returns loan {number}, which it has not");
                self.broken.get_or_insert(reason);
            }
        }
    }

    /// Gives back what this side has borrowed and is done with, as far as the ring has room.
    #[inline]
    pub(super) fn give_back(&mut self, link: &mut Link, views: &Views) {
        while views.has_returned() && self.has_room(link, 1) {
            let mut record = [0; 8 * RETURNS_MAX];
            let returned = std::iter::from_fn(|| views.take_returned());
            for (to, number) in record.chunks_exact_mut(8).zip(returned) {
                to.copy_from_slice(&number.to_le_bytes());
            }
            self.put(link, Kind::Return, &record);
        }
    }

    fn check_depth(&self) -> Result<()> {
        if self.outbox.len() >= self.depth {
            return Err(Error::QueueFull { peer: self.peer, depth: self.depth });
        }
        Ok(())
    }

    /// Lets go of what the peer has read, and moves what waits into the ring; whether anything
    /// moved.
    ///
    /// # Errors
    /// Says what is wrong with the peer, once something is.
    #[inline]
    pub(super) fn turn(&mut self, link: &mut Link, hub: &mut Hub) -> Result<bool, String> {
        if !self.has_work() {
            return Ok(false);
        }
        let before = self.head;
        self.release(link);
        self.pump(link, hub);
        self.broken.take().map_or(Ok(self.head != before), Err)
    }

    fn pump(&mut self, link: &mut Link, hub: &mut Hub) {
        while let Some(unit) = self.outbox.pop_front() {
            let left = match unit {
                Unit::Frame(frame) => self.put_frame(link, frame).map(Unit::Frame),
                Unit::Lend(frame, values) => self
                    .put_loan(link, frame, values)
                    .map(|(frame, values)| Unit::Lend(frame, values)),
                Unit::Write(write) => self.put_write(link, write, hub).map(Unit::Write),
            };
            if let Some(unit) = left {
                self.outbox.push_front(unit);
                return;
            }
        }
    }

    /// Puts a frame into the ring; hands it back if that has no room.
    fn put_frame(&mut self, link: &mut Link, frame: Shared) -> Option<Shared> {
        if frame.len() <= ring::INLINE_BYTES_MAX {
            if !self.has_room(link, FRAME_LINES_MAX) {
                return Some(frame);
            }
            self.put_inline(link, &frame);
            return None;
        }
        let reference = if self.has_room(link, 1) { self.refer(link, &frame) } else { None };
        let Some(reference) = reference else { return Some(frame) };
        self.put(link, Kind::Frame, reference.as_bytes());
        self.hold(frame, false);
        None
    }

    /// Puts a loan and its frame into the ring; hands them back if that has no room for both.
    fn put_loan(
        &mut self,
        link: &mut Link,
        frame: Shared,
        values: Shared,
    ) -> Option<(Shared, Shared)> {
        let is_inline = frame.len() <= ring::INLINE_BYTES_MAX;
        if !self.has_room(link, 1 + FRAME_LINES_MAX) {
            return Some((frame, values));
        }
        let Some(reference) = self.refer(link, &values) else { return Some((frame, values)) };
        if !is_inline && self.refer(link, &frame).is_none() {
            return Some((frame, values));
        }
        let number = U64::new(self.lent.lend(values));
        self.put(link, Kind::Lend, LendRecord { number, values: reference }.as_bytes());
        let left = self.put_frame(link, frame);
        debug_assert!(left.is_none(), "there is room, and its segment is announced");
        None
    }

    /// Puts a write into the ring, piece by piece; hands it back if not all of it has room.
    fn put_write(&mut self, link: &mut Link, mut write: Write, hub: &mut Hub) -> Option<Write> {
        while !write.begun || write.sent < write.data.len() {
            if !self.has_room(link, WRITE_LINES) {
                return Some(write);
            }
            let mut parts = [None, None];
            let parts_max = if write.begun { 1 } else { 2 };
            let mut references = [Reference::default(); 2];
            for (part, reference) in parts.iter_mut().zip(&mut references).take(parts_max) {
                let Some((found, data, is_chunk)) = self.next_part(link, &write, hub) else {
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
                self.put(link, Kind::Write, record.as_bytes());
                write.begun = true;
            } else if parts[0].is_some() {
                self.put(link, Kind::Piece, references[0].as_bytes());
            } else {
                return Some(write);
            }
            for (data, is_chunk) in parts.into_iter().flatten() {
                self.hold(data, is_chunk);
            }
        }
        None
    }

    /// What a write goes on with, in shared memory; nothing if there is no more or it has to wait.
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
        let len = rest.len().min(CHUNK_BYTES);
        let mut chunk = hub.pool.allocate(len).ok()?;
        chunk.copy_from_slice(&rest[..len]);
        hub.counters.payload_bytes_copied += len as u64;
        let chunk = chunk.share();
        Some((self.refer(link, &chunk)?, chunk, true))
    }

    /// Keeps what the last record refers to.
    fn hold(&mut self, data: Shared, is_chunk: bool) {
        self.held.push_back(Held { end: self.head, is_chunk, _data: data });
    }

    /// Where the peer finds `data`, which is from the pool that is shared; nothing if it cannot be
    /// told now.
    fn refer(&mut self, link: &mut Link, data: &Shared) -> Option<Reference> {
        let (pages, offset) = data.pages()?;
        let id = pages.base().addr().get();
        let found = self.announced.iter().position(|&announced| announced == id);
        let segment = match found {
            Some(segment) => segment,
            None => self.announce(link, pages)?,
        };
        Some(Reference {
            segment: U32::new(segment as u32),
            reserved: U32::new(0),
            offset: U64::new(offset as u64),
            len: U64::new(data.len() as u64),
        })
    }

    /// Tells the peer of an arena; returns its number, or nothing if it cannot be told now.
    #[cold]
    fn announce(&mut self, link: &mut Link, pages: &Pages) -> Option<usize> {
        let shared = match pages.file() {
            Some(file) if self.announced.len() < SEGMENTS_MAX => segment::seal(file)
                .and_then(|()| link.send(Packet::Segment(pages.len() as u64), Some(file))),
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        };
        match shared {
            Ok(()) => {
                self.announced.push(pages.base().addr().get());
                Some(self.announced.len() - 1)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => {
                self.broken.get_or_insert(format!("memory cannot be shared with it: {error}"));
                None
            }
        }
    }

    /// Whether the ring takes `lines` more; the one behind them stays free, too, for what the peer
    /// waits on.
    #[inline]
    fn has_room(&mut self, link: &Link, lines: u64) -> bool {
        if self.head + lines < self.freed + LINES {
            return true;
        }
        self.release(link);
        self.head + lines < self.freed + LINES
    }

    /// Looks how far the peer has read, and lets go of what it needs no longer.
    fn release(&mut self, link: &Link) {
        let foreign = &link.foreign;
        let consumed = foreign.load(CONSUMED, Ordering::Acquire);
        if consumed < self.freed || consumed > self.head {
            self.broken.get_or_insert(format!(
                "it says it has read {consumed} lines, and has read {} to {}",
                self.freed, self.head
            ));
            return;
        }
        self.freed = consumed;
        while let Some(held) = self.held.pop_front_if(|held| held.end <= consumed) {
            self.chunks -= usize::from(held.is_chunk);
        }
    }
}

/// A frame without its prefix, where the peer can read it if it is too long for the ring.
fn visible(frame: Buffer, pool: &Pool) -> Result<Shared> {
    let mut frame = frame;
    frame.advance(FRAME_PREFIX);
    let frame = frame.share();
    if frame.len() <= ring::INLINE_BYTES_MAX || frame.is_from(pool) {
        return Ok(frame);
    }
    let mut copy = pool.allocate(frame.len())?;
    copy.copy_from_slice(&frame);
    Ok(copy.share())
}
