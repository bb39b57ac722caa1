//! The images of a received frame, one behind the other. Each is checked before anything is read from it: see `decode.rs`.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use super::decode::{Layout, blanked, check_checksum, check_header, read_header, read_sections};
use super::records::{Form, Record, Run};
use super::{ALIGN, CHECKSUM, DecodeError, Header, Kind, check_padding, flags};
use crate::error::Result;
use crate::memory::{Buffer, Pool};
use crate::message::Message;

/// What stands in a frame.
#[derive(Debug)]
pub enum Entry {
    /// A message, with an image of its own or as a record of a run.
    Message(Message),
    /// A reply that says nothing, to the request with this timestamp.
    Answer(u64),
}

/// The images of a received frame: each begins at a multiple of 8 bytes, with zeros in between, and the last one ends the
/// frame. The checksum of the first covers all of them.
pub struct Images {
    /// Those that have not been opened.
    rest: Option<Buffer>,
    /// What is left of the one that has.
    pub(crate) run: Run,
    sum: Sum,
}

/// What the next image's header holds for a checksum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sum {
    /// That of the frame.
    OfFrame,
    /// Something that need not be looked at: the carrier has checked every byte.
    Any,
    /// 0: there was one before.
    Zero,
}

impl Images {
    /// None at all.
    pub(crate) const NONE: Images = Images { rest: None, run: Run::NONE, sum: Sum::Zero };

    /// The images of `frame`, which begins 8-byte aligned.
    pub fn new(frame: Buffer) -> Images {
        Images { rest: Some(frame), sum: Sum::OfFrame, ..Images::NONE }
    }

    /// Likewise, of a frame without a checksum: its carrier has checked every byte.
    pub fn checked_by_carrier(frame: Buffer) -> Images {
        Images { rest: Some(frame), sum: Sum::Any, ..Images::NONE }
    }

    /// Goes on with another frame, once all images have been read, and opens its first.
    ///
    /// # Errors
    /// As [`Images::next`].
    pub(crate) fn begin(
        &mut self,
        frame: Buffer,
        carrier_checks: bool,
        pool: &Pool,
    ) -> Result<Option<Message>> {
        self.sum = if carrier_checks { Sum::Any } else { Sum::OfFrame };
        self.read(frame, pool)
    }

    /// Whether `frame` is one sound image of the form of the last one. What is wrong with it otherwise is not looked for.
    #[inline(always)]
    pub(crate) fn is_like_the_last(&self, frame: &mut Buffer, carrier_checks: bool) -> bool {
        let Ok(header) = read_header(frame) else { return false };
        let found = header.checksum.get();
        if !self.run.form.is_of(header, frame.len()) {
            return false;
        }
        let is_sound = carrier_checks || blanked(frame) == found;
        if !is_sound {
            frame[CHECKSUM].copy_from_slice(&found.to_le_bytes());
        }
        is_sound
    }

    /// Whether all have been read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_none() && self.run.is_over()
    }

    /// Reads the next message. After an error the rest is not to be looked at.
    ///
    /// # Errors
    /// As [`Message::decode`], also when there is none.
    #[allow(clippy::should_implement_trait, reason = "it takes a pool, and fails")]
    pub fn next(&mut self, pool: &Pool) -> Result<Entry> {
        loop {
            self.run.open(1)?;
            let one = &mut self.run.left;
            if let Some(Record { timestamp, .. }) = one.first()
                && one.are_acks()
                && !one.have_offers()
            {
                one.advance();
                return Ok(Entry::Answer(timestamp));
            }
            if let Some(message) = one.message() {
                return Ok(Entry::Message(message));
            }
            if let Some(message) = self.open(pool)? {
                return Ok(Entry::Message(message));
            }
        }
    }

    /// Opens the next image: as [`Images::run`], or if it is a message of another form, that is returned.
    ///
    /// # Errors
    /// As [`Images::next`].
    #[inline(never)]
    pub(crate) fn open(&mut self, pool: &Pool) -> Result<Option<Message>> {
        let none =
            || DecodeError::TooShort { what: "a message", have: 0, need: size_of::<Header>() };
        let image = self.rest.take().ok_or_else(none)?;
        self.read(image, pool)
    }

    /// Opens the image with which `image` begins.
    #[inline(never)]
    fn read(&mut self, mut image: Buffer, pool: &Pool) -> Result<Option<Message>> {
        let header = read_header(&image)?;
        let kind = check_header(header)?;
        let Some(form) = Form::of(header, kind, image.len())? else {
            return self.open_other(image, kind, pool).map(Some);
        };
        let found = header.checksum.get();
        self.check(&mut image, found)?;
        if form.end < image.len() {
            self.cut(&mut image, form.end)?;
        }
        self.run.begin(form, image.share());
        Ok(None)
    }

    /// Reads an image that is no run, and could not be the first of one.
    #[inline(never)]
    fn open_other(&mut self, mut image: Buffer, kind: Kind, pool: &Pool) -> Result<Message> {
        let (have, header) = (image.len(), read_header(&image)?);
        let (layout, found) = (Layout::new(header, have, None)?, header.checksum.get());
        let is_alone = self.sum != Sum::Zero && layout.end == have;
        if !is_alone && layout.flags & flags::VALUES_UNCOVERED != 0 {
            return Err(DecodeError::Contradiction { flags: layout.flags, kind }.into());
        }
        let covered = if is_alone { layout.covered } else { have };
        self.check(&mut image[..covered], found)?;
        if layout.end < have {
            self.cut(&mut image, layout.end)?;
        }
        read_sections(image.share(), kind, &layout, None, pool)
    }

    /// Checks the checksum that was found in the header with which `covered` begins.
    fn check(&mut self, covered: &mut [u8], found: u32) -> Result<(), DecodeError> {
        match std::mem::replace(&mut self.sum, Sum::Zero) {
            Sum::OfFrame => check_checksum(found, covered),
            Sum::Zero if found != 0 => Err(DecodeError::Checksum { found, computed: 0 }),
            Sum::Any | Sum::Zero => Ok(()),
        }
    }

    /// Cuts off what stands behind an image that ends at `end`.
    fn cut(&mut self, image: &mut Buffer, end: usize) -> Result<(), DecodeError> {
        let (have, next) = (image.len(), end.next_multiple_of(ALIGN));
        if next >= have {
            return Err(DecodeError::TooLong { have, need: end });
        }
        check_padding(image, end..next)?;
        self.rest = Some(image.split_off(next));
        image.truncate(end);
        Ok(())
    }
}
