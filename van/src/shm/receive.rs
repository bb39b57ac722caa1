//! The receiving half of a lane: records out of the peer's ring, checked as they are read.
//!
//! The peer can change its ring and all that records refer to at any time. So the van copies a
//! record before it checks it, checks every reference against the arena as it was mapped, and hands
//! on a frame as its own copy.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**shm**).

use std::sync::atomic::Ordering;

use zerocopy::little_endian::U64;

use super::arenas::{LendRecord, Mapped, RETURNS_MAX, Reference, WriteRecord};
use super::connect::Link;
use super::ring::{CONSUMED, HEAD, Kind, Reader, STAMP, Stamp, WRITE_LINES};
use crate::memory::{Buffer, Pool, Shared, Slab, Views};
use crate::metrics::Counters;
use crate::offers::Offers;
use crate::transport::{Event, PeerId};

/// Most records that one look takes from a lane, so that the other lanes get their turn.
const RECORDS_MAX: usize = 64;

/// Bytes that one look copies out of a peer's arenas, about.
const COPY_BYTES_MAX: usize = 1 << 20;

/// The receiving half of a lane.
pub(super) struct Receiver {
    peer: PeerId,
    frame_bytes_max: usize,
    pub(super) ring: Reader,
    pub(super) arenas: Mapped,
    writing: Option<Write>,
    /// Values that belong to the next frame.
    borrowed: Option<Shared>,
    /// What this side has borrowed.
    pub(super) views: Views,
    /// Loans that the peer has returned.
    pub(super) returned: Vec<u64>,
    /// Bytes that this look may still copy out of the peer's arenas.
    budget: usize,
    /// Whether the ring has new room for which the peer, if it sleeps, was not woken.
    pub(super) consumed: bool,
}

/// A write under way.
#[derive(Debug)]
struct Write {
    key: u64,
    into: Buffer,
    begin: usize,
    /// The rest to fill: `[at, end)`.
    at: usize,
    end: usize,
    /// The references of the current record that are not copied yet.
    parts: [Reference; 2],
    /// Number of lines of that record; 0 once it has been taken off the ring.
    lines: u64,
}

/// The state that all lanes of a transport share.
pub(super) struct Hub {
    pub(super) pool: Pool,
    /// The memory of short frames.
    pub(super) slab: Slab,
    pub(super) offers: Offers,
    /// Events that are not reported yet.
    pub(super) ready: Vec<Event>,
    pub(super) counters: Counters,
}

impl Hub {
    pub(super) fn new(pool: &Pool) -> Hub {
        Hub {
            pool: pool.clone(),
            slab: Slab::new(),
            offers: Offers::default(),
            ready: Vec::with_capacity(64),
            counters: Counters::default(),
        }
    }
}

impl Receiver {
    pub(super) fn new(peer: PeerId, frame_bytes_max: usize) -> Receiver {
        Receiver {
            peer,
            frame_bytes_max,
            ring: Reader::default(),
            arenas: Mapped::default(),
            writing: None,
            borrowed: None,
            views: Views::default(),
            returned: Vec::new(),
            budget: 0,
            consumed: false,
        }
    }

    /// Takes what has come, as much as is fair; returns whether there was anything.
    ///
    /// # Errors
    /// The reason to drop the peer, as in all functions here.
    #[inline(always)]
    pub(super) fn receive(&mut self, link: &Link, hub: &mut Hub) -> Result<bool, String> {
        let before = self.ring.next;
        self.budget = COPY_BYTES_MAX;
        for _ in 0..RECORDS_MAX {
            let Some(stamp) = self.ring.look(&link.foreign)? else { break };
            if stamp.kind == Kind::Inline && self.writing.is_none() {
                self.inline(link, stamp, hub)?;
                continue;
            }
            self.take(link, stamp.kind, hub)?;
            if self.budget == 0 {
                break;
            }
        }
        if self.ring.next != before {
            link.own.store(CONSUMED, self.ring.next, Ordering::Release);
            self.consumed = true;
        }
        Ok(self.ring.next != before || self.budget < COPY_BYTES_MAX)
    }

    /// Takes a record that is no frame in the ring, or goes on with the current write.
    #[inline(never)]
    fn take(&mut self, link: &Link, kind: Kind, hub: &mut Hub) -> Result<(), String> {
        let lends = self.borrowed.is_some();
        match (kind, &mut self.writing) {
            (_, Some(write)) if write.lines > 0 => self.fill(link, hub),
            (Kind::Piece, Some(write)) => {
                write.parts = [self.ring.record(&link.foreign), Reference::default()];
                write.lines = 1;
                self.fill(link, hub)
            }
            (Kind::Piece, None) => Err("it sent a piece of no write".to_owned()),
            (_, Some(_)) => Err("it sent something else before a write had ended".to_owned()),
            (Kind::Frame, None) => self.frame(link, &self.ring.record(&link.foreign), hub),
            (_, None) if lends => Err("it lent values to no frame".to_owned()),
            (Kind::Write, None) => {
                self.begin_write(&self.ring.record(&link.foreign), hub)?;
                self.fill(link, hub)
            }
            (Kind::Lend, None) => self.borrow(link, &self.ring.record(&link.foreign)),
            (Kind::Inline, None) => unreachable!("`receive` takes it"),
            (Kind::Return, None) => {
                let numbers = self.ring.record::<[U64; RETURNS_MAX]>(&link.foreign);
                self.returned.extend(numbers.map(U64::get).into_iter().take_while(|&n| n != 0));
                self.ring.advance(1);
                Ok(())
            }
        }
    }

    /// Takes a frame that lies in the ring.
    #[inline(never)]
    fn inline(&mut self, link: &Link, stamp: Stamp, hub: &mut Hub) -> Result<(), String> {
        // The ring holds whole words, and pads a frame that is shorter than a head.
        let mut frame = self.allocate(stamp.len.max(HEAD).next_multiple_of(STAMP), hub)?;
        self.ring.take_frame(&link.foreign, stamp.words, &mut frame);
        frame.truncate(stamp.len);
        self.deliver(frame, hub);
        Ok(())
    }

    /// Takes a frame that a record refers to.
    fn frame(&mut self, link: &Link, reference: &Reference, hub: &mut Hub) -> Result<(), String> {
        let len = usize::try_from(reference.len.get()).unwrap_or(usize::MAX);
        self.budget = self.budget.saturating_sub(len);
        let mut frame = self.allocate(len, hub)?;
        self.arenas.copy(link, reference, &mut frame)?;
        self.ring.advance(1);
        self.deliver(frame, hub);
        Ok(())
    }

    /// Memory for a frame of `len` bytes.
    #[inline(always)]
    fn allocate(&self, len: usize, hub: &mut Hub) -> Result<Buffer, String> {
        if len > self.frame_bytes_max {
            return Err(too_long(len, self.frame_bytes_max));
        }
        hub.slab.allocate(len, &hub.pool).map_err(|error| error.to_string())
    }

    /// Hands a frame on.
    #[inline(always)]
    fn deliver(&mut self, frame: Buffer, hub: &mut Hub) {
        hub.counters.frames_received += 1;
        hub.counters.bytes_received += frame.len() as u64;
        let peer = self.peer;
        hub.ready.push(match self.borrowed.take() {
            None => Event::Received { peer, frame },
            Some(values) => Event::Lent { peer, frame, values },
        });
    }

    /// Takes a loan of values, which belong to the next frame.
    fn borrow(&mut self, link: &Link, record: &LendRecord) -> Result<(), String> {
        let number = record.number.get();
        let (lendable, range) = self.arenas.lendable(link, &record.values)?;
        if number == 0 || !range.start.is_multiple_of(8) {
            return Err(format!("it lends bytes at {} as number {number}", range.start));
        }
        self.borrowed = Some(self.views.view(lendable, (range.start, range.len()), number));
        self.ring.advance(1);
        Ok(())
    }

    fn begin_write(&mut self, record: &WriteRecord, hub: &mut Hub) -> Result<(), String> {
        let WriteRecord { key, at, len, parts } = *record;
        let (key, at, len) = (key.get(), at.get(), len.get());
        let into = hub.offers.take(self.peer, key, at, len).map_err(|error| error.to_string())?;
        let (begin, end) = (at as usize, (at + len) as usize); // `take` has checked the range
        let lines = WRITE_LINES;
        self.writing = Some(Write { key, into, begin, at: begin, end, parts, lines });
        Ok(())
    }

    /// Copies what the current record refers to, within the budget.
    fn fill(&mut self, link: &Link, hub: &mut Hub) -> Result<(), String> {
        let mut write = self.writing.take().expect("a write is under way");
        for part in 0..write.parts.len() {
            let reference = write.parts[part];
            let bytes = usize::try_from(reference.len.get()).unwrap_or(usize::MAX);
            if bytes > write.end - write.at {
                return Err(format!("it goes on with {bytes} bytes where its write lacks fewer"));
            }
            let here = bytes.min(self.budget);
            let place = &mut write.into[write.at..write.at + here];
            self.arenas.copy(link, &reference, place)?;
            hub.counters.bytes_received += here as u64;
            self.budget -= here;
            write.at += here;
            let left = &mut write.parts[part];
            left.offset.set(left.offset.get() + here as u64);
            left.len.set((bytes - here) as u64);
            if here < bytes {
                self.writing = Some(write);
                return Ok(());
            }
        }
        self.ring.advance(std::mem::take(&mut write.lines));
        if write.at < write.end {
            self.writing = Some(write);
            return Ok(());
        }
        let Write { key, into: memory, begin: at, end, .. } = write;
        let len = end - at;
        hub.ready.push(Event::Written { peer: self.peer, key, memory, at, len });
        Ok(())
    }
}

#[cold]
fn too_long(len: usize, limit: usize) -> String {
    format!("it sent a frame of {len} bytes, over the limit of {limit}")
}
