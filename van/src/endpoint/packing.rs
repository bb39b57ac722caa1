//! The open frame of a lane: short messages are encoded right into it, one behind the other, and leave together.
//!
//! A frame is closed when the next message does not fit, when something else must not overtake it, and at the next poll or
//! wait. What is left of its memory is the next frame's: a short frame allocates nothing. No I/O: the endpoint posts.
//!
//! Messages in a row that are alike become one image, a run, of which each takes few bytes and next to no work: see `wire/run.rs`.
//! A message like the last one of the frame before has its header copied.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use zerocopy::{FromBytes, IntoBytes};

use crate::error::Result;
use crate::memory::{Buffer, Pool};
use crate::message::Draft;
use crate::transport::FRAME_PREFIX;
use crate::wire::{
    Coding, Header, Kind, Shape, close_run, encode_into, seal, write_record, write_sections,
};

/// Memory is taken so many bytes at a time: it stays in the caches, and holds some dozens of small messages.
const SLOT_BYTES: usize = 8 << 10;

/// Messages whose image is at most this long are packed.
pub(super) const PACKED_BYTES_MAX: usize = SLOT_BYTES - FRAME_PREFIX;

/// What is left of a slot is given up when it is shorter than this, so that frames do not get ever shorter.
const REST_BYTES_MIN: usize = 1 << 10;

/// Frames begin at a cache line.
const FRAME_ALIGN: usize = 64;

/// One lane's open frame, if there is one, and the memory for more.
#[derive(Default)]
pub(super) struct Packer {
    /// The open frame, then room.
    memory: Option<Buffer>,
    /// Where the frame ends, its prefix included; 0 when none is open.
    end: usize,
    /// How far it may reach.
    limit: usize,
    /// How long a frame the peer takes.
    frame_bytes: usize,
    /// What the last message was like, if others can be like it.
    form: Option<Form>,
    /// The last image of the open frame, if others of that form may follow it as records.
    run: Option<Run>,
}

struct Form {
    shape: Shape,
    record_bytes: usize,
    /// Of a message of this form, but for its timestamp.
    header: Header,
    /// How long it is by itself.
    image_bytes: usize,
}

struct Run {
    /// Where it begins.
    at: usize,
    /// Where its records do, if there are any.
    records_at: usize,
}

impl Packer {
    /// Whether an image of `bytes` bytes goes into the open frame; it does when none is open.
    #[inline]
    pub(super) fn takes(&self, bytes: usize) -> bool {
        self.end == 0 || self.end.next_multiple_of(8) + bytes <= self.limit
    }

    /// Appends a message that is like the last one, if there is room: as a record, or as the first of a frame. Returns how long
    /// it is.
    #[inline]
    pub(super) fn extend(&mut self, draft: &mut Draft<'_>) -> Option<usize> {
        let form = self.form.as_ref().filter(|form| form.shape.fits(draft))?;
        if self.run.is_none() {
            return self.begin(draft);
        }
        let bytes = form.record_bytes;
        write_record(draft, self.record(bytes)?);
        Some(bytes)
    }

    /// Answers one more request, if the last message did the same and no more, and there is room.
    #[inline]
    pub(super) fn answer(&mut self, timestamp: u64) -> bool {
        if !self.form.as_ref().is_some_and(|form| form.shape == Shape::BARE) {
            return false;
        }
        if self.run.is_none() {
            return self.begin(&mut Draft { timestamp, ..Draft::new(Kind::Reply) }).is_some();
        }
        let place = self.record(size_of::<u64>());
        place.map(|place| place.copy_from_slice(&timestamp.to_le_bytes())).is_some()
    }

    /// Opens a frame with a message like the last one, if there is memory for it.
    fn begin(&mut self, draft: &mut Draft<'_>) -> Option<usize> {
        let (form, at) = (self.form.as_mut().filter(|_| self.end == 0)?, FRAME_PREFIX);
        let memory = self.memory.as_mut()?;
        self.limit = memory.len().min(FRAME_PREFIX + self.frame_bytes);
        let image = memory.get_mut(at..at + form.image_bytes)?;
        form.header.timestamp.set(draft.timestamp);
        let (header, sections) = image.split_first_chunk_mut::<{ size_of::<Header>() }>()?;
        header.copy_from_slice(form.header.as_bytes());
        write_sections(draft, sections);
        memory[..at].fill(0);
        self.end = at + form.image_bytes;
        self.run = Some(Run { at, records_at: self.end.next_multiple_of(8) });
        Some(form.image_bytes)
    }

    /// Room for a record of `bytes` bytes behind the last image, if there is any.
    #[inline]
    fn record(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let at = self.end.next_multiple_of(8);
        let end = at + bytes;
        let memory = self.memory.as_mut().filter(|_| end <= self.limit)?;
        if at > self.end {
            memory[self.end..at].fill(0);
        }
        self.end = end;
        Some(&mut memory[at..end])
    }

    /// Appends an image of up to `bytes` bytes, for which there is room, and opens a frame for it if none is open, which the peer
    /// takes up to `frame_bytes` of.
    ///
    /// # Errors
    /// As [`encode_into`]; nothing has changed then.
    pub(super) fn append(
        &mut self,
        sender: u32,
        (draft, bytes, frame_bytes): (&mut Draft<'_>, usize, usize),
        coding: &mut Coding,
        pool: &Pool,
    ) -> Result<()> {
        let at = if self.end == 0 { FRAME_PREFIX } else { self.end.next_multiple_of(8) };
        let memory = match &mut self.memory {
            Some(memory) if memory.len() >= at + bytes => memory,
            none => none.insert(pool.allocate(SLOT_BYTES)?),
        };
        let shape = if coding.is_plain() { Shape::of(draft) } else { None };
        let len = encode_into(sender, draft, coding, pool, &mut memory[at..])?;
        if at != self.end {
            memory[self.end..at].fill(0); // the prefix, or padding
        }
        self.frame_bytes = frame_bytes;
        self.limit = memory.len().min(FRAME_PREFIX + frame_bytes);
        close(self.run.take(), &mut memory[..self.end]);
        self.end = at + len;
        let records_at = self.end.next_multiple_of(8);
        self.run = shape.map(|_| Run { at, records_at });
        self.form = shape.map(|shape| {
            let (header, _) = Header::read_from_prefix(&memory[at..]).expect("it was laid there");
            Form { record_bytes: shape.record_bytes(), shape, header, image_bytes: len }
        });
        Ok(())
    }

    /// Forgets what messages were like: the sender has another number now.
    pub(super) fn forget(&mut self) {
        if let Some(memory) = &mut self.memory {
            close(self.run.take(), &mut memory[..self.end]);
        }
        self.form = None;
    }

    /// Closes the open frame and returns it, with a checksum unless the carrier needs none.
    pub(super) fn close(&mut self, carrier_checks: bool) -> Option<Buffer> {
        if self.end == 0 {
            return None;
        }
        let memory = self.memory.as_mut()?;
        let end = std::mem::take(&mut self.end);
        close(self.run.take(), &mut memory[..end]);
        seal(&mut memory[FRAME_PREFIX..end], carrier_checks);
        let next = end.next_multiple_of(FRAME_ALIGN);
        let mut frame = match memory.len().checked_sub(next) {
            Some(rest) if rest >= REST_BYTES_MIN => memory.split_to(next),
            _ => self.memory.take()?,
        };
        frame.truncate(end);
        Some(frame)
    }
}

/// Says in its header that the last image of `frame` is a run, if it is one by now.
#[inline]
fn close(run: Option<Run>, frame: &mut [u8]) {
    if let Some(Run { at, records_at, .. }) = run
        && frame.len() > records_at
    {
        let bytes = frame.len() - records_at;
        close_run(&mut frame[at..], bytes);
    }
}
