//! The open frame of a lane: short messages are encoded right into it, one behind the other, and leave together.
//!
//! A frame is closed when the next message does not fit, when something else must not overtake it, and at the next poll or
//! wait. What is left of its memory is the next frame's: a short frame allocates nothing. No I/O: the endpoint posts.
//!
//! Bare answers in a row become one image: the first is a reply, those behind it are 8 bytes each ([`Kind::Replies`]).
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.
//!
//! [`Kind::Replies`]: crate::wire::Kind::Replies

use crate::error::Result;
use crate::memory::{Buffer, Pool};
use crate::message::Draft;
use crate::transport::FRAME_PREFIX;
use crate::wire::{Coding, encode_into, extend_answer, seal};

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
    images: usize,
    /// Where the image begins that is a bare answer, when it is the last one; 0 otherwise.
    answer_at: usize,
    /// Answers that stand behind that one.
    answers: usize,
}

impl Packer {
    /// Whether an image of `bytes` bytes goes into the open frame, whose peer takes frames of `frame_bytes`; it does when
    /// none is open.
    #[inline]
    pub(super) fn takes(&self, bytes: usize, frame_bytes: usize) -> bool {
        let Some(memory) = &self.memory else { return true };
        let limit = memory.len().min(FRAME_PREFIX + frame_bytes);
        self.end == 0 || self.end.next_multiple_of(8) + bytes <= limit
    }

    /// Appends an image of up to `bytes` bytes, for which there is room, and opens a frame for it if none is open.
    ///
    /// # Errors
    /// As [`encode_into`]; nothing has changed then.
    #[inline(always)]
    pub(super) fn append(
        &mut self,
        sender: u32,
        (draft, bytes): (&mut Draft<'_>, usize),
        coding: &mut Coding,
        pool: &Pool,
    ) -> Result<()> {
        let at = if self.end == 0 { FRAME_PREFIX } else { self.end.next_multiple_of(8) };
        let memory = match &mut self.memory {
            Some(memory) if memory.len() >= at + bytes => memory,
            none => none.insert(pool.allocate(SLOT_BYTES)?),
        };
        let len = encode_into(sender, draft, coding, pool, &mut memory[at..])?;
        if at != self.end {
            memory[self.end..at].fill(0); // the prefix, or padding
        }
        if self.answers > 0 {
            extend_answer(&mut memory[self.answer_at..self.end]);
        }
        (self.answer_at, self.answers) = (0, 0);
        self.end = at + len;
        self.images += 1;
        Ok(())
    }

    /// The image that was just appended answers a request and says nothing more: others may follow it.
    pub(super) fn is_bare_answer(&mut self, bytes: usize) {
        self.answer_at = self.end - bytes;
    }

    /// Answers one more request, if the last image is a bare answer, or several, and there is room.
    #[inline]
    pub(super) fn answer(&mut self, timestamp: u64, frame_bytes: usize) -> bool {
        if self.answer_at == 0 || !self.takes(8, frame_bytes) {
            return false;
        }
        let Some(memory) = &mut self.memory else { return false };
        memory[self.end..self.end + 8].copy_from_slice(&timestamp.to_le_bytes());
        self.end += 8;
        self.answers += 1;
        true
    }

    /// Closes the open frame and returns it, with the checksum that a carrier needs which checks nothing itself, or all.
    pub(super) fn close(&mut self, carrier_checks: bool) -> Option<Buffer> {
        if self.end == 0 {
            return None;
        }
        let memory = self.memory.as_mut()?;
        let Packer { end, images, answer_at, answers, .. } = *self;
        if answers > 0 {
            extend_answer(&mut memory[answer_at..end]);
        }
        (self.end, self.images, self.answer_at, self.answers) = (0, 0, 0, 0);
        seal(&mut memory[FRAME_PREFIX..end], images, carrier_checks);
        let next = end.next_multiple_of(FRAME_ALIGN);
        let mut frame = match memory.len().checked_sub(next) {
            Some(rest) if rest >= REST_BYTES_MIN => memory.split_to(next),
            _ => self.memory.take()?,
        };
        frame.truncate(end);
        Some(frame)
    }
}
