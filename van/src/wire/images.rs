//! The images of a received frame, one behind the other. Each is checked before anything else is
//! read from it: see `decode.rs`.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use super::decode::{blanked, check_checksum, check_header, read_header};
use super::{ALIGN, CHECKSUM, DecodeError, Header, Layout, check_padding, flags};
use crate::error::Result;
use crate::memory::{Buffer, Pool};
use crate::message::Message;

/// The images of a received frame. Each begins at a multiple of 8 bytes, with zeros in between, and
/// the last one ends the frame. The checksum of the first covers all of them.
pub struct Images {
    /// The images that have not been opened.
    rest: Option<Buffer>,
    /// The open image.
    pub(crate) message: Message,
    /// Layout of the last image that was read from a frame.
    layout: Layout,
    sum: Sum,
}

/// The checksum expected in the next image's header.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sum {
    /// The checksum of the frame.
    OfFrame,
    /// Any value: the carrier has checked every byte.
    Any,
    /// 0, because an image before it held the checksum.
    Zero,
}

impl Images {
    /// No images.
    pub(crate) const NONE: Images =
        Images { rest: None, message: Message::NONE, layout: Layout::NONE, sum: Sum::Zero };

    /// Reads the images of `frame`, which begins 8-byte aligned.
    pub fn new(frame: Buffer) -> Images {
        Images { rest: Some(frame), sum: Sum::OfFrame, ..Images::NONE }
    }

    /// Reads the images of a frame without a checksum, whose carrier has checked every byte.
    pub fn checked_by_carrier(frame: Buffer) -> Images {
        Images { rest: Some(frame), sum: Sum::Any, ..Images::NONE }
    }

    /// Continues with another frame, once all images have been read, and opens its first image.
    ///
    /// # Errors
    /// As [`Images::next`].
    pub(crate) fn begin(&mut self, frame: Buffer, carrier_checks: bool, pool: &Pool) -> Result<()> {
        self.sum = if carrier_checks { Sum::Any } else { Sum::OfFrame };
        self.read(frame, pool)
    }

    /// Whether `frame` is one sound image with the layout of the last one. It does not look for the
    /// cause if not.
    #[inline(always)]
    pub(crate) fn repeats_layout(&self, frame: &mut Buffer, carrier_checks: bool) -> bool {
        let Ok(header) = read_header(frame) else { return false };
        let found = header.checksum.get();
        if !self.layout.matches(header, frame.len()) {
            return false;
        }
        let is_sound = carrier_checks || blanked(frame) == found;
        if !is_sound {
            frame[CHECKSUM].copy_from_slice(&found.to_le_bytes());
        }
        is_sound
    }

    /// Continues with `frame`, which [repeats](Images::repeats_layout) the layout of the last one,
    /// once all images have been read.
    #[inline(always)]
    pub(crate) fn resume(&mut self, frame: Buffer) {
        self.message.resume(&self.layout, frame.share());
    }

    /// Makes `message`, which came without a frame, the open image.
    pub(crate) fn put(&mut self, message: Message) {
        self.message = message;
        self.layout = Layout::NONE;
    }

    /// Whether all messages have been read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_none() && self.message.is_over()
    }

    /// Reads the next record as a message of its own. After an error the rest is undefined.
    ///
    /// # Errors
    /// As [`Message::decode`]; also if there is no message left.
    #[allow(clippy::should_implement_trait, reason = "it takes a pool, and fails")]
    pub fn next(&mut self, pool: &Pool) -> Result<Message> {
        if self.message.is_over() {
            self.open(pool)?;
        }
        self.message.open(1)?;
        let message = self.message.pop();
        Ok(message.expect("an image has a record"))
    }

    /// Opens the next image, once all records of the last one were passed.
    ///
    /// # Errors
    /// As [`Images::next`].
    #[inline(never)]
    pub(crate) fn open(&mut self, pool: &Pool) -> Result<()> {
        let none =
            || DecodeError::TooShort { what: "a message", have: 0, need: size_of::<Header>() };
        let image = self.rest.take().ok_or_else(none)?;
        self.read(image, pool)
    }

    /// Opens the image at the start of `image`.
    #[inline(never)]
    fn read(&mut self, mut image: Buffer, pool: &Pool) -> Result<()> {
        let header = read_header(&image)?;
        let kind = check_header(header)?;
        let have = image.len();
        let layout = Layout::of(header, kind, have, None)?;
        let found = header.checksum.get();
        let is_alone = self.sum != Sum::Zero && layout.end == have;
        if !is_alone && layout.flags & flags::VALUES_UNCOVERED != 0 {
            return Err(DecodeError::Contradiction { flags: layout.flags, kind }.into());
        }
        let covered = if is_alone { layout.covered } else { have };
        self.check(&mut image[..covered], found)?;
        if layout.end < have {
            self.cut(&mut image, layout.end)?;
        }
        self.message = Message::new(&layout, image.share(), None, pool)?;
        self.layout = layout;
        Ok(())
    }

    /// Checks `found`, the checksum in the header at the start of `covered`.
    fn check(&mut self, covered: &mut [u8], found: u32) -> Result<(), DecodeError> {
        match std::mem::replace(&mut self.sum, Sum::Zero) {
            Sum::OfFrame => check_checksum(found, covered),
            Sum::Zero if found != 0 => Err(DecodeError::Checksum { found, computed: 0 }),
            Sum::Any | Sum::Zero => Ok(()),
        }
    }

    /// Cuts off the images behind one that ends at `end`.
    fn cut(&mut self, image: &mut Buffer, end: usize) -> Result<(), DecodeError> {
        let have = image.len();
        let next = end.next_multiple_of(ALIGN);
        if next >= have {
            return Err(DecodeError::TooLong { have, need: end });
        }
        check_padding(image, end..next)?;
        self.rest = Some(image.split_off(next));
        image.truncate(end);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
