//! The receiving half of a lane: records out of the peer's ring, checked as they are read.
//!
//! The peer can change its ring and all it refers to at any time. So a record is copied out before
//! anything in it is looked at, what it refers to must lie in a segment as it was mapped, and a
//! frame is handed on as a copy of our own.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**shm**).

use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::connect::{Link, Taken, take};
use super::ring::{
    self, CLOSED, CONSUMED, HEAD, Head, Kind, LINE_WORDS, LendRecord, RETURNS_MAX, Reference,
    Stamp, WRITE_LINES, WriteRecord,
};
use super::segment::Foreign;
use super::send::SEGMENTS_MAX;
use crate::config::VanConfig;
use crate::memory::{Buffer, Lendable, Pool, Shared, Slab, Views};
use crate::metrics::Counters;
use crate::offers::Offers;
use crate::transport::{Event, PeerId};

/// Records that one look takes from a lane at most, so that the others get their turn.
const RECORDS_MAX: usize = 64;

/// Bytes that one look copies out of a peer's segments, about.
const COPY_BYTES_MAX: usize = 1 << 20;

/// Bytes of the longest frame that has no more behind its head than goes into a line.
const SHORT_BYTES_MAX: usize = HEAD + 8 * (LINE_WORDS - 1);

/// Bytes of the place of such a frame.
const SHORT_PLACE: usize = SHORT_BYTES_MAX.next_multiple_of(64);
const _: () = assert!(SHORT_BYTES_MAX <= *VanConfig::FRAME_BYTES.start()); // it is over no limit

/// The receiving half of a lane.
pub(super) struct Receiver {
    peer: PeerId,
    frame_bytes_max: usize,
    /// Lines read so far.
    pub(super) next: u64,
    /// How the last frame began that stood in the ring.
    last: Head,
    /// What the peer announced, in order.
    segments: Vec<Segment>,
    writing: Option<Write>,
    /// Values that belong to the next frame.
    borrowed: Option<Shared>,
    /// What this side has borrowed.
    pub(super) views: Views,
    /// Loans that the peer is done with.
    pub(super) returned: Vec<u64>,
    /// Whether the peer, if it sleeps until there is room, was not woken since.
    pub(super) consumed: bool,
}

/// Memory that a peer shares.
struct Segment {
    memory: Rc<Foreign>,
    lendable: Lendable,
}

/// A write under way.
#[derive(Debug)]
struct Write {
    key: u64,
    into: Buffer,
    begin: usize,
    /// What is left to fill: `[at, end)`.
    at: usize,
    end: usize,
    /// What to fill it with next, of the record at hand.
    parts: [Reference; 2],
    /// Lines of that record; 0 once it has been taken off the ring.
    lines: u64,
}

/// What all lanes of a transport share.
pub(super) struct Hub {
    pub(super) pool: Pool,
    /// Where short frames come to lie.
    pub(super) slab: Slab,
    pub(super) offers: Offers,
    /// Found, and not yet reported.
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
            next: 0,
            last: Head::default(),
            segments: Vec::new(),
            writing: None,
            borrowed: None,
            views: Views::default(),
            returned: Vec::new(),
            consumed: false,
        }
    }

    /// Takes in memory that the peer shares.
    ///
    /// # Errors
    /// Says why the peer has to be dropped, as all functions here do.
    pub(super) fn announce(&mut self, link: &Link, segment: Foreign) -> Result<(), String> {
        if self.segments.len() == SEGMENTS_MAX {
            return Err(format!("it shares more than {SEGMENTS_MAX} segments"));
        }
        let memory = Rc::new(segment);
        // The lender keeps what it has lent until the socket is closed.
        let lendable = memory.lendable(link.socket.clone());
        self.segments.push(Segment { memory, lendable });
        Ok(())
    }

    /// Whether something is being taken in, or is to go back.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.writing.is_some() || self.views.has_returned()
    }

    /// Takes short frames that stand in the ring; whether there was one, and whether something else
    /// stands there then.
    ///
    /// Most of what comes by far is that, and needs none of the questions that
    /// [`Receiver::receive`] asks, nor its answers: what is in any way special is left to it.
    #[inline(always)]
    pub(super) fn receive_short(&mut self, link: &Link, hub: &mut Hub) -> (bool, bool) {
        let foreign = &link.foreign;
        let (words, before, mut next, mut is_more) =
            (ring::foreign(foreign), self.next, self.next, true);
        for _ in 0..RECORDS_MAX {
            let word = ring::stamp(words, next);
            if !Stamp::is_at(word, next) {
                // So that two lines of the next record are on their way together.
                foreign.prefetch(ring::line_at(next + 1));
                is_more = false;
                break;
            }
            let Some((len, changed)) = Stamp::inline(word) else { break };
            if len > SHORT_BYTES_MAX || self.writing.is_some() || self.borrowed.is_some() {
                break;
            }
            let Some(place) = hub.slab.place::<SHORT_PLACE>(&hub.pool) else { break };
            let (head, rest) = place.split_first_chunk_mut::<HEAD>().expect("it is longer");
            for (at, into) in rest.as_chunks_mut().0.iter_mut().take(LINE_WORDS - 1).enumerate() {
                *into = ring::word(words, next, 1 + at).load(Ordering::Relaxed).to_le_bytes();
            }
            let (behind, head) =
                (len.saturating_sub(HEAD).div_ceil(8), zerocopy::transmute_mut!(head));
            let count = ring::read_head(words, next, behind, changed, head, &mut self.last);
            next += ring::lines_of(behind + count);
            let frame = hub.slab.cut::<SHORT_PLACE>(len);
            hub.counters.frames_received += 1;
            hub.counters.bytes_received += len as u64;
            hub.ready.push(Event::Received { peer: self.peer, frame });
        }
        self.next = next;
        (self.acknowledge(link, before), is_more)
    }

    /// Takes what has come, as much as is fair; whether there was anything.
    pub(super) fn receive(&mut self, link: &Link, hub: &mut Hub) -> Result<bool, String> {
        let foreign = &link.foreign;
        let (before, mut budget) = (self.next, COPY_BYTES_MAX);
        for _ in 0..RECORDS_MAX {
            let word = ring::stamp(ring::foreign(foreign), self.next);
            if !Stamp::is_at(word, self.next) || budget == 0 {
                break;
            }
            self.take(link, foreign, Stamp::read(word)?, &mut budget, hub)?;
        }
        Ok(self.acknowledge(link, before) || budget < COPY_BYTES_MAX)
    }

    /// Says how far the peer's ring has been read; whether that is further than `before`.
    #[inline(always)]
    fn acknowledge(&mut self, link: &Link, before: u64) -> bool {
        if self.next == before {
            return false;
        }
        link.own.store(CONSUMED, self.next, Ordering::Release);
        self.consumed = true;
        true
    }

    /// Takes a record.
    fn take(
        &mut self,
        link: &Link,
        foreign: &Foreign,
        stamp: Stamp,
        budget: &mut usize,
        hub: &mut Hub,
    ) -> Result<(), String> {
        let lends = self.borrowed.is_some();
        match (stamp.kind, &mut self.writing) {
            (_, Some(write)) if write.lines > 0 => self.fill(link, foreign, budget, hub),
            (Kind::Piece, Some(write)) => {
                write.parts = [record::<Reference>(foreign, self.next), Reference::default()];
                write.lines = 1;
                self.fill(link, foreign, budget, hub)
            }
            (Kind::Piece, None) => Err("it sent a piece of no write".to_owned()),
            (_, Some(_)) => Err("it sent something else before a write had ended".to_owned()),
            (Kind::Inline, None) => self.inline(foreign, stamp, hub),
            (Kind::Frame, None) => {
                let reference = record::<Reference>(foreign, self.next);
                *budget = budget.saturating_sub(reference.len.get() as usize);
                self.frame(link, foreign, &reference, hub)
            }
            (_, None) if lends => Err("it lent values to no frame".to_owned()),
            (Kind::Write, None) => {
                let record = record::<WriteRecord>(foreign, self.next);
                self.begin_write(&record, hub)?;
                self.fill(link, foreign, budget, hub)
            }
            (Kind::Lend, None) => self.borrow(link, &record::<LendRecord>(foreign, self.next)),
            (Kind::Return, None) => {
                let numbers = record::<[U64; RETURNS_MAX]>(foreign, self.next);
                self.returned.extend(numbers.map(U64::get).into_iter().take_while(|&n| n != 0));
                self.next += 1;
                Ok(())
            }
        }
    }

    /// A frame that stands in the ring.
    fn inline(&mut self, foreign: &Foreign, stamp: Stamp, hub: &mut Hub) -> Result<(), String> {
        let mut frame = self.allocate(stamp.len, &hub.pool)?;
        let mut short = [0; HEAD];
        let (head, rest) = match frame.split_first_chunk_mut() {
            Some(parts) => parts,
            None => (&mut short, &mut [][..]),
        };
        ring::read(foreign, self.next, rest);
        let (words, behind) = (ring::foreign(foreign), rest.len().div_ceil(8));
        let head = zerocopy::transmute_mut!(head);
        let count = ring::read_head(words, self.next, behind, stamp.words, head, &mut self.last);
        self.next += ring::lines_of(behind + count);
        if stamp.len < HEAD {
            frame.copy_from_slice(&short[..stamp.len]);
        }
        self.deliver(frame, hub);
        Ok(())
    }

    /// A frame that the ring refers to.
    fn frame(
        &mut self,
        link: &Link,
        foreign: &Foreign,
        reference: &Reference,
        hub: &mut Hub,
    ) -> Result<(), String> {
        let len = usize::try_from(reference.len.get()).unwrap_or(usize::MAX);
        let mut frame = self.allocate(len, &hub.pool)?;
        self.copy(link, foreign, reference, &mut frame)?;
        self.next += 1;
        self.deliver(frame, hub);
        Ok(())
    }

    fn allocate(&self, len: usize, pool: &Pool) -> Result<Buffer, String> {
        if len > self.frame_bytes_max {
            return Err(too_long(len, self.frame_bytes_max));
        }
        pool.allocate(len).map_err(|error| error.to_string())
    }

    /// Hands a frame on.
    fn deliver(&mut self, frame: Buffer, hub: &mut Hub) {
        hub.counters.frames_received += 1;
        hub.counters.bytes_received += frame.len() as u64;
        let peer = self.peer;
        hub.ready.push(match self.borrowed.take() {
            None => Event::Received { peer, frame },
            Some(values) => Event::Lent { peer, frame, values },
        });
    }

    /// Values that the peer lends.
    fn borrow(&mut self, link: &Link, record: &LendRecord) -> Result<(), String> {
        let number = record.number.get();
        let (segment, place) = self.find(link, &record.values)?;
        if number == 0 || !place.0.is_multiple_of(8) {
            return Err(format!("it lends bytes at {} as number {number}", place.0));
        }
        self.borrowed = Some(self.views.view(&self.segments[segment].lendable, place, number));
        self.next += 1;
        Ok(())
    }

    fn begin_write(&mut self, record: &WriteRecord, hub: &mut Hub) -> Result<(), String> {
        let WriteRecord { key, at, len, parts } = *record;
        let (key, at, len) = (key.get(), at.get(), len.get());
        let into = hub.offers.take(self.peer, key, at, len).map_err(|error| error.to_string())?;
        let (begin, end) = (at as usize, (at + len) as usize); // within the offer, as was just checked
        let lines = WRITE_LINES;
        self.writing = Some(Write { key, into, begin, at: begin, end, parts, lines });
        Ok(())
    }

    /// Copies what the record at hand refers to, as far as the budget goes.
    fn fill(
        &mut self,
        link: &Link,
        foreign: &Foreign,
        budget: &mut usize,
        hub: &mut Hub,
    ) -> Result<(), String> {
        let mut write = self.writing.take().expect("a write is under way");
        for part in 0..write.parts.len() {
            let reference = write.parts[part];
            let bytes = usize::try_from(reference.len.get()).unwrap_or(usize::MAX);
            if bytes > write.end - write.at {
                return Err(format!("it goes on with {bytes} bytes where its write lacks fewer"));
            }
            let here = bytes.min(*budget);
            let place = &mut write.into[write.at..write.at + here];
            self.copy(link, foreign, &reference, place)?;
            hub.counters.bytes_received += here as u64;
            *budget -= here;
            write.at += here;
            let left = &mut write.parts[part];
            left.offset.set(left.offset.get() + here as u64);
            left.len.set((bytes - here) as u64);
            if here < bytes {
                self.writing = Some(write);
                return Ok(());
            }
        }
        self.next += std::mem::take(&mut write.lines);
        if write.at < write.end {
            self.writing = Some(write);
            return Ok(());
        }
        let Write { key, into: memory, begin: at, end, .. } = write;
        let len = end - at;
        hub.ready.push(Event::Written { peer: self.peer, key, memory, at, len });
        Ok(())
    }

    /// Copies the first bytes that a reference names, as many as there is place for.
    fn copy(
        &mut self,
        link: &Link,
        foreign: &Foreign,
        reference: &Reference,
        into: &mut [u8],
    ) -> Result<(), String> {
        if into.is_empty() {
            return Ok(());
        }
        let (segment, (offset, _)) = self.find(link, reference)?;
        self.segments[segment].memory.read(offset, into);
        // Had the peer given the memory to somebody else while we read, it would have said so
        // before: see `Link::close`.
        fence(Ordering::SeqCst);
        if foreign.load(CLOSED, Ordering::Relaxed) != 0 {
            return Err("it closed the connection".to_owned());
        }
        Ok(())
    }

    /// The number of the segment that a reference is to, and which bytes of it.
    fn find(
        &mut self,
        link: &Link,
        reference: &Reference,
    ) -> Result<(usize, (usize, usize)), String> {
        let number = reference.segment.get() as usize;
        self.fetch_segments(link, number)?;
        let Some(segment) = self.segments.get(number) else {
            return Err(format!("it refers to segment {number}, which it has not shared"));
        };
        let (offset, bytes, len) =
            (reference.offset.get(), reference.len.get(), segment.memory.len());
        if offset.checked_add(bytes).is_none_or(|end| end > len as u64) {
            return Err(format!("it refers to {bytes} bytes at {offset} of a segment of {len}"));
        }
        Ok((number, (offset as usize, bytes as usize)))
    }

    /// Takes in announcements until segment `number` is there or there are no more.
    fn fetch_segments(&mut self, link: &Link, number: usize) -> Result<(), String> {
        while self.segments.len() <= number {
            match take(&link.socket)? {
                Taken::Segment(segment) => self.announce(link, segment)?,
                Taken::Wake => {}
                Taken::Nothing => return Ok(()),
                Taken::Ended(reason) => return Err(reason),
                Taken::Greeting(..) => {
                    return Err("it said hello twice".to_owned());
                }
            }
        }
        Ok(())
    }
}

#[cold]
fn too_long(len: usize, limit: usize) -> String {
    format!("it sent a frame of {len} bytes, over the limit of {limit}")
}

/// Copies the record at `position`.
fn record<R: FromBytes + IntoBytes>(foreign: &Foreign, position: u64) -> R {
    let mut record = R::new_zeroed();
    ring::read(foreign, position, record.as_mut_bytes());
    record
}
