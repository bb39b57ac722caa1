//! The open frame of a lane: short messages are encoded right into it, one behind the other, and leave together.
//!
//! A frame is closed when the next message does not fit, when something else must not overtake it, and at the next poll or
//! wait. What is left of its memory is the next frame's, or all of it where the van has copied the frame: a short frame allocates
//! nothing. No I/O: the endpoint posts.
//!
//! Messages in a row that are alike become one image, a run, of which each takes few bytes and next to no work: see `wire/batch.rs`.
//! A message like the last one of the frame before has its header copied.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use crate::error::Result;
use crate::memory::{Buffer, Pool};
use crate::message::Draft;
use crate::transport::FRAME_PREFIX;
use crate::wire::{BatchKey, Coding, Header, close_batch, encode_into, seal, write_sections};

/// Memory is taken so many bytes at a time: it stays in the caches, and holds some dozens of small messages.
const SLOT_BYTES: usize = 8 << 10;

/// Messages whose image is at most this long are packed.
pub(super) const PACKED_BYTES_MAX: usize = SLOT_BYTES - FRAME_PREFIX;

/// What is left of a slot is given up when it is shorter than this, so that frames do not get ever shorter.
const REST_BYTES_MIN: usize = 1 << 10;

/// Where a header has its timestamp.
const TIMESTAMP: Range<usize> = {
    let at = std::mem::offset_of!(Header, timestamp);
    at..at + size_of::<u64>()
};

/// Frames begin at a cache line.
const FRAME_ALIGN: usize = 64;

/// One lane's open frame, if there is one, and the memory for more.
#[derive(Default)]
pub(super) struct Packer {
    /// The open frame, then room.
    memory: Option<Buffer>,
    /// Where the frame ends, its prefix included; 0 when none is open.
    end: usize,
    /// How far the peer lets a frame reach.
    end_max: usize,
    /// What the last message was like, if others can be like it.
    form: Option<Form>,
    /// The last image of the open frame, if others of that form may follow it as records.
    run: Option<Run>,
}

struct Form {
    shape: BatchKey,
    /// The table and the bytes of values, of replies with nothing but values.
    reply: Option<(u32, usize)>,
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
        let room = self.end_max.min(self.memory.as_ref().map_or(0, |memory| memory.len()));
        self.end == 0 || self.end.next_multiple_of(8) + bytes <= room
    }

    /// Appends a message that is like the last one, if there is room: as a record, or as the first of a frame.
    #[inline(always)]
    pub(super) fn extend(&mut self, draft: &mut Draft<'_>) -> bool {
        let Some(form) = &self.form else { return false };
        if !form.shape.fits(draft) {
            return false;
        }
        let (record_bytes, image_bytes) = (form.record_bytes, form.image_bytes);
        let Some(place) = self.place(draft.timestamp, record_bytes, image_bytes) else {
            return false;
        };
        write_sections(draft, place);
        true
    }

    /// Replies with nothing but `values`, if the last message did the same with as many, and there is room.
    #[inline(always)]
    pub(super) fn reply(&mut self, table: u32, timestamp: u64, values: &[u8]) -> bool {
        let like = |form: &&Form| form.reply == Some((table, values.len()));
        let Some(form) = self.form.as_ref().filter(like) else { return false };
        let (record_bytes, image_bytes) = (form.record_bytes, form.image_bytes);
        let Some(place) = self.place(timestamp, record_bytes, image_bytes) else { return false };
        let (place, padding) = place.split_at_mut(values.len());
        place.copy_from_slice(values);
        if !padding.is_empty() {
            padding.fill(0);
        }
        true
    }

    /// Room for the sections of a message of the form, whose timestamp is laid down: in a record of `record_bytes` bytes or, where
    /// no frame is open, an image of `image_bytes`.
    #[inline(always)]
    fn place(
        &mut self,
        timestamp: u64,
        record_bytes: usize,
        image_bytes: usize,
    ) -> Option<&mut [u8]> {
        let memory = self.memory.as_mut()?;
        if self.end == 0 {
            let header = &self.form.as_ref()?.header;
            let (prefix, image) = memory.split_at_mut_checked(FRAME_PREFIX)?;
            let (place, sections) =
                image.get_mut(..image_bytes)?.split_first_chunk_mut::<{ size_of::<Header>() }>()?;
            prefix.fill(0);
            place.copy_from_slice(header.as_bytes());
            place[TIMESTAMP].copy_from_slice(&timestamp.to_le_bytes());
            let (at, end) = (FRAME_PREFIX, FRAME_PREFIX + image_bytes);
            self.run = Some(Run { at, records_at: end.next_multiple_of(8) });
            self.end = end;
            return Some(sections);
        }
        self.run.as_ref()?;
        let at = self.end.next_multiple_of(8);
        let end = at + record_bytes;
        if end > self.end_max {
            return None;
        }
        let (before, place) = memory.get_mut(..end)?.split_at_mut(at);
        if at > self.end {
            before[self.end..].fill(0);
        }
        let (place, sections) = place.split_first_chunk_mut()?;
        *place = timestamp.to_le_bytes();
        self.end = end;
        Some(sections)
    }

    /// Sees to it that there is memory for an image of `bytes` bytes, which the open frame [takes](Packer::takes).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub(super) fn reserve(&mut self, bytes: usize, pool: &Pool) -> Result<()> {
        let end = self.next_at() + bytes;
        if self.memory.as_ref().is_none_or(|memory| memory.len() < end) {
            self.memory = Some(pool.allocate(SLOT_BYTES)?);
        }
        Ok(())
    }

    /// Where the next image begins.
    #[inline]
    fn next_at(&self) -> usize {
        if self.end == 0 { FRAME_PREFIX } else { self.end.next_multiple_of(8) }
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
        self.reserve(bytes, pool)?;
        let at = self.next_at();
        let memory = self.memory.as_mut().expect("it was reserved");
        let shape = if coding.is_plain() { BatchKey::of(draft) } else { None };
        let len = encode_into(sender, draft, coding, pool, &mut memory[at..])?;
        if at != self.end {
            memory[self.end..at].fill(0); // the prefix, or padding
        }
        self.end_max = FRAME_PREFIX + frame_bytes;
        close(self.run.take(), &mut memory[..self.end]);
        self.end = at + len;
        let records_at = self.end.next_multiple_of(8);
        self.run = shape.map(|_| Run { at, records_at });
        self.form = shape.map(|shape| {
            let (header, _) = Header::read_from_prefix(&memory[at..]).expect("it was laid there");
            let (reply, record_bytes) = (shape.reply(), shape.record_bytes());
            Form { shape, reply, record_bytes, header, image_bytes: len }
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

    /// Closes the open frame, with a checksum unless the carrier needs none, and returns what it holds behind the prefix. It is to
    /// be sent at once: copied, so that its memory is that of the next frame, or [taken](Packer::take).
    #[inline(always)]
    pub(super) fn close(&mut self, carrier_checks: bool) -> Option<&[u8]> {
        let end = std::mem::take(&mut self.end);
        if end == 0 {
            return None;
        }
        let frame = &mut self.memory.as_mut()?[..end];
        close(self.run.take(), frame);
        let images = &mut frame[FRAME_PREFIX..];
        seal(images, carrier_checks);
        Some(images)
    }

    /// Gives up the frame that was closed last, with `bytes` bytes behind the prefix.
    #[inline(always)]
    pub(super) fn take(&mut self, bytes: usize) -> Option<Buffer> {
        let memory = self.memory.as_mut()?;
        let end = FRAME_PREFIX + bytes;
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
        close_batch(&mut frame[at..], bytes);
    }
}
