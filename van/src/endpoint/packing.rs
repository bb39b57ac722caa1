//! A lane's open frame: short messages are encoded directly into it, one behind the other, and
//! leave together.
//!
//! The endpoint closes a frame when the next message does not fit, when another item must not
//! overtake it, and at each poll or wait. The next frame uses the rest of the memory, or all of it
//! if the van copied the frame. A short frame therefore allocates nothing. No I/O: the endpoint
//! posts.
//!
//! Consecutive messages with a common header form a batch, one image of records: see
//! `wire/batch.rs`. A record costs few bytes and little work. The first message of the next frame
//! copies the header if it belongs to the same batch.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use crate::error::Result;
use crate::memory::{Buffer, Pool};
use crate::message::{Draft, Message, records_behind};
use crate::transport::FRAME_PREFIX;
use crate::wire::{
    BatchKey, Coding, Header, Origin, close_batch, encode_into, seal, write_sections,
};

/// Bytes of memory allocated at a time. A slot stays in the caches and holds dozens of small
/// messages.
const SLOT_BYTES: usize = 8 << 10;

/// Length of the longest image that is packed.
pub(super) const PACKED_BYTES_MAX: usize = SLOT_BYTES - FRAME_PREFIX;

/// A shorter rest of a slot is given up, so that frames do not become ever shorter.
const REST_BYTES_MIN: usize = 1 << 10;

/// Position of the timestamp in a header.
const TIMESTAMP: Range<usize> = {
    let at = std::mem::offset_of!(Header, timestamp);
    at..at + size_of::<u64>()
};

/// Frames begin at a multiple of a cache line.
const FRAME_ALIGN: usize = 64;

/// The open frame of one lane, if any, and memory for the next frames.
#[derive(Default)]
pub(super) struct Packer {
    /// The open frame, followed by free memory.
    memory: Option<Buffer>,
    /// End of the frame, its prefix included; 0 when no frame is open.
    end: usize,
    /// Largest end of a frame that the peer accepts.
    end_max: usize,
    /// Header and sizes of the last message, if a message of the same batch can follow.
    template: Option<Template>,
    /// The last image of the open frame, if records may follow it.
    batch: Option<OpenBatch>,
}

/// Header and sizes of the messages of one batch.
struct Template {
    key: BatchKey,
    /// Table and value bytes, if the messages are replies with only values.
    reply: Option<(u32, usize)>,
    record_bytes: usize,
    /// Header of the messages, with any timestamp.
    header: Header,
    /// What stands behind the header of an image, if they are forwarded.
    origin: Option<Origin>,
    /// Length of the image of one message.
    image_bytes: usize,
}

/// Where the open frame's last image lies.
struct OpenBatch {
    /// Offset of its header in the frame.
    at: usize,
    /// Offset of its first record, if any follows.
    records_at: usize,
}

impl Packer {
    /// Whether an image of `bytes` bytes fits into the open frame. It always does when no frame is
    /// open.
    #[inline]
    pub(super) fn takes(&self, bytes: usize) -> bool {
        let room = self.end_max.min(self.memory.as_ref().map_or(0, |memory| memory.len()));
        self.end == 0 || self.end.next_multiple_of(8) + bytes <= room
    }

    /// Appends a message of the last one's batch if there is room: as a record, or as the first
    /// message of a frame. Returns whether it did.
    #[inline(always)]
    pub(super) fn extend(&mut self, draft: &mut Draft<'_>) -> bool {
        let Some(template) = &self.template else { return false };
        if !template.key.fits(draft) {
            return false;
        }
        let record_bytes = template.record_bytes;
        let image_bytes = template.image_bytes;
        let Some(place) = self.place(draft.timestamp, record_bytes, image_bytes) else {
            return false;
        };
        write_sections(draft, place);
        true
    }

    /// Appends a reply with only `values` if the last message was such a reply of the same length,
    /// and there is room. Returns whether it did.
    #[inline(always)]
    pub(super) fn reply(&mut self, table: u32, timestamp: u64, values: &[u8]) -> bool {
        let matches = |template: &&Template| template.reply == Some((table, values.len()));
        let Some(template) = self.template.as_ref().filter(matches) else { return false };
        let record_bytes = template.record_bytes;
        let image_bytes = template.image_bytes;
        let Some(place) = self.place(timestamp, record_bytes, image_bytes) else { return false };
        let (place, padding) = place.split_at_mut(values.len());
        place.copy_from_slice(values);
        if !padding.is_empty() {
            padding.fill(0);
        }
        true
    }

    /// Appends records behind the first of a received message to the current batch, of which the
    /// first was the last message: as they lie, as many as there is room for, and at most so many.
    /// Returns how many.
    pub(super) fn append_records(&mut self, message: &Message, most: usize) -> usize {
        let (Some(template), Some(memory)) = (&self.template, &mut self.memory) else { return 0 };
        let key = &template.key;
        let is_alike =
            self.batch.is_some() && key.is_of_requests() && key.range() == message.range();
        let Some((bytes, stride)) = records_behind(message, key.value_bytes()).filter(|_| is_alike)
        else {
            return 0;
        };
        let at = self.end.next_multiple_of(8);
        let room = self.end_max.min(memory.len()).saturating_sub(at) / stride;
        let count = room.min(most).min(bytes.len() / stride);
        if count == 0 || stride != template.record_bytes {
            return 0;
        }
        memory[self.end..at].fill(0);
        let bytes = &bytes[..count * stride];
        memory[at..at + bytes.len()].copy_from_slice(bytes);
        self.end = at + bytes.len();
        count
    }

    /// Whether the last message was of the batch of this one.
    #[inline]
    pub(super) fn continues(&self, draft: &Draft<'_>) -> bool {
        self.template.as_ref().is_some_and(|template| template.key.fits(draft))
    }

    /// Appends a message of the current batch that has no sections; returns whether there was room.
    #[inline(always)]
    pub(super) fn repeat(&mut self, timestamp: u64) -> bool {
        let Some(Template { record_bytes, image_bytes, .. }) = self.template else { return false };
        record_bytes == size_of::<u64>()
            && self.place(timestamp, record_bytes, image_bytes).is_some()
    }

    /// Writes the timestamp of a message of the current batch and returns the room for its
    /// sections. The message becomes a record of `record_bytes` bytes or, if no frame is open, an
    /// image of `image_bytes`.
    #[inline(always)]
    fn place(
        &mut self,
        timestamp: u64,
        record_bytes: usize,
        image_bytes: usize,
    ) -> Option<&mut [u8]> {
        let memory = self.memory.as_mut()?;
        if self.end == 0 {
            let Template { header, origin, .. } = self.template.as_ref()?;
            let (prefix, image) = memory.split_at_mut_checked(FRAME_PREFIX)?;
            let (place, sections) =
                image.get_mut(..image_bytes)?.split_first_chunk_mut::<{ size_of::<Header>() }>()?;
            prefix.fill(0);
            place.copy_from_slice(header.as_bytes());
            place[TIMESTAMP].copy_from_slice(&timestamp.to_le_bytes());
            let end = FRAME_PREFIX + image_bytes;
            let records_at = end.next_multiple_of(8);
            self.batch = Some(OpenBatch { at: FRAME_PREFIX, records_at });
            self.end = end;
            let Some(origin) = origin else { return Some(sections) };
            let (place, sections) = sections.split_at_mut_checked(Origin::BYTES)?;
            origin.write(place);
            return Some(sections);
        }
        self.batch.as_ref()?;
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

    /// Allocates memory for an image of `bytes` bytes, which fits into the open frame
    /// ([`Packer::takes`]).
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

    /// Offset of the next image.
    #[inline]
    fn next_at(&self) -> usize {
        if self.end == 0 { FRAME_PREFIX } else { self.end.next_multiple_of(8) }
    }

    /// Appends an image of up to `bytes` bytes, which fits into the open frame. If no frame is
    /// open, it opens one that may reach the peer's limit of `frame_bytes`.
    ///
    /// # Errors
    /// As [`encode_into`]; the frame is unchanged then.
    pub(super) fn append(
        &mut self,
        draft: &mut Draft<'_>,
        bytes: usize,
        frame_bytes: usize,
        coding: &mut Coding,
        pool: &Pool,
    ) -> Result<()> {
        self.reserve(bytes, pool)?;
        let at = self.next_at();
        let memory = self.memory.as_mut().expect("it was reserved");
        let key = if coding.is_plain() { BatchKey::of(draft) } else { None };
        let len = encode_into(draft, coding, pool, &mut memory[at..])?;
        if at != self.end {
            memory[self.end..at].fill(0); // the prefix, or padding
        }
        self.end_max = FRAME_PREFIX + frame_bytes;
        close(self.batch.take(), &mut memory[..self.end]);
        self.end = at + len;
        let records_at = self.end.next_multiple_of(8);
        self.batch = key.map(|_| OpenBatch { at, records_at });
        self.template = key.map(|key| {
            let (header, _) = Header::read_from_prefix(&memory[at..]).expect("it was laid there");
            let reply = key.reply();
            let record_bytes = key.record_bytes();
            let origin = draft.origin;
            Template { key, reply, record_bytes, header, origin, image_bytes: len }
        });
        Ok(())
    }

    /// Closes the open frame, with a checksum unless the carrier needs none, and returns its bytes
    /// behind the prefix. The caller sends it at once: it copies the frame, so that the next one
    /// reuses the memory, or takes it ([`Packer::take`]).
    #[inline(always)]
    pub(super) fn close(&mut self, carrier_checks: bool) -> Option<&[u8]> {
        let end = std::mem::take(&mut self.end);
        if end == 0 {
            return None;
        }
        let frame = &mut self.memory.as_mut()?[..end];
        close(self.batch.take(), frame);
        let images = &mut frame[FRAME_PREFIX..];
        seal(images, carrier_checks);
        Some(images)
    }

    /// Removes and returns the frame that was closed last, with `bytes` bytes behind the prefix.
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

/// Marks the last image of `frame` as a batch if it has records.
#[inline]
fn close(batch: Option<OpenBatch>, frame: &mut [u8]) {
    if let Some(OpenBatch { at, records_at }) = batch
        && frame.len() > records_at
    {
        let bytes = frame.len() - records_at;
        close_batch(&mut frame[at..], bytes);
    }
}
