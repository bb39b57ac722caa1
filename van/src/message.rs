//! Messages: a [`Draft`] to send, and a received [`Message`].
//!
//! Path: worker > slicer > filter > **message** > codec > endpoint > transport.

mod draft;
mod range;

use std::mem::offset_of;

use zerocopy::{FromBytes, IntoBytes};

pub use self::draft::{Draft, Outgoing, Values};
pub use self::range::KeyRange;
use crate::error::Result;
use crate::memory::{Buffer, Pool, Shared};
use crate::wire::{DecodeError, Header, Kind, Layout, Offer, Origin, flags};
use crate::wire::{check_key, check_keys, check_lengths, check_padding};

/// Bytes of a key.
const KEY: usize = size_of::<u64>();

/// A received message: records that share a header. Most messages have one; short ones of one lane
/// that differ only in timestamp, offer, key and values arrive as one message of many records.
///
/// The endpoint holds the message in place while its records are read one by one. A record that is
/// needed for longer is [taken out](Message::pop) as a message of its own.
///
/// Every byte of a record has been checked before it can be read, by functions that panic if no
/// record is left. Plain sections are viewed in
/// place; coded ones are decoded into memory of their own.
#[derive(Debug)]
pub struct Message {
    /// The image, which begins with the header; present while records are left.
    image: Option<Shared>,
    /// The values, if they are not in the image. Such a message has one record.
    pub(crate) apart: Option<Shared>,
    /// Offset of the next record's timestamp.
    timestamp_at: usize,
    /// Offset of the next record's keys. Its offer, if any, ends here.
    keys_at: usize,
    key_bytes: usize,
    length_bytes: usize,
    value_bytes: usize,
    /// Distance from a record's keys to its values.
    values_from: usize,
    /// Bytes of a record before its keys.
    lead: usize,
    /// Distance from one record to the next.
    stride: usize,
    /// Number of records left in the image.
    count: usize,
    /// Number of these that are checked and may be read.
    open: usize,
    kind: Kind,
    flags: u8,
    /// Whether the values lie in memory of their sender.
    pub(crate) is_lent: bool,
}

impl Message {
    /// A message without records.
    pub(crate) const NONE: Message = Message {
        image: None,
        apart: None,
        timestamp_at: 0,
        keys_at: 0,
        key_bytes: 0,
        length_bytes: 0,
        value_bytes: 0,
        values_from: 0,
        lead: 0,
        stride: 0,
        count: 0,
        open: 0,
        kind: Kind::Reply,
        flags: 0,
        is_lent: false,
    };

    /// Checks and decodes a message that fills `image`, which is 8-byte aligned.
    ///
    /// # Errors
    /// [`crate::Error::Decode`] if it is not exactly an image of [`crate::encode`];
    /// [`crate::Error::OutOfMemory`] if `pool` has no room for decoded sections.
    pub fn decode(image: Buffer, pool: &Pool) -> Result<Message> {
        whole(crate::wire::decode(image, false, pool)?)
    }

    /// Decodes a message whose values precede it, as in a landing.
    ///
    /// # Errors
    /// As [`Message::decode`].
    pub fn decode_landed(landed: Buffer, pool: &Pool) -> Result<Message> {
        whole(crate::wire::decode_landed(landed, false, pool)?)
    }

    /// A message of the layout `layout`, none of whose records is open yet. The values are `apart`
    /// if that is given.
    ///
    /// # Errors
    /// The reason why coded sections are invalid; [`crate::Error::OutOfMemory`] if `pool` has no
    /// room for them.
    pub(crate) fn new(
        layout: &Layout,
        image: Shared,
        apart: Option<Shared>,
        pool: &Pool,
    ) -> Result<Message> {
        let mut message = Message {
            image: Some(image),
            apart,
            timestamp_at: offset_of!(Header, timestamp),
            keys_at: layout.keys_at,
            key_bytes: layout.key_bytes,
            length_bytes: layout.length_bytes,
            value_bytes: layout.value_bytes,
            values_from: layout.values_from,
            lead: layout.lead,
            stride: layout.stride,
            count: layout.count,
            open: 0,
            kind: layout.kind,
            flags: layout.flags,
            is_lent: false,
        };
        if message.flags & flags::CODED != 0 {
            check_record_padding(&message, message.keys_at)?;
            crate::wire::expand(&mut message, layout, pool)?;
        }
        Ok(message)
    }

    /// Continues with another image of the same layout, once all records were passed.
    #[inline(always)]
    pub(crate) fn resume(&mut self, layout: &Layout, image: Shared) {
        self.timestamp_at = offset_of!(Header, timestamp);
        self.keys_at = layout.keys_at;
        self.count = layout.count;
        self.image = Some(image);
    }

    /// Checks and opens up to `count_max` records, and returns their number. Those opened before
    /// must have been passed.
    ///
    /// # Errors
    /// The reason why one of them is invalid.
    #[inline(always)]
    pub(crate) fn open(&mut self, count_max: usize) -> Result<usize, DecodeError> {
        let count = self.count.min(count_max);
        if self.key_bytes | self.length_bytes | self.value_bytes != 0 {
            self.check(count)?;
        }
        self.open = count;
        Ok(count)
    }

    /// Checks the keys, lengths and padding of the next `count` records.
    #[inline(always)]
    fn check(&self, count: usize) -> Result<(), DecodeError> {
        let range = self.range();
        let image = self.image();
        let sizes = self.key_bytes | self.length_bytes | self.value_bytes;
        let is_padded = !sizes.is_multiple_of(8);
        let stride = self.stride;
        for at in (0..count).map(|n| self.keys_at + n * stride) {
            match self.key_bytes {
                0 => {}
                KEY => check_key(number(&image[at..]), range)?,
                bytes => check_keys(&image[at..][..bytes], range)?,
            }
            if self.length_bytes > 0 {
                check_lengths(self.length_bytes, self.key_bytes / KEY)?;
            }
            if is_padded {
                check_record_padding(self, at)?;
            }
        }
        Ok(())
    }

    /// Replaces coded sections by decoded ones: `image` holds the keys at the same offset and the
    /// lengths behind them.
    pub(crate) fn expanded(
        &mut self,
        image: Shared,
        key_bytes: usize,
        length_bytes: usize,
        values: Option<Shared>,
    ) {
        self.image = Some(image);
        self.key_bytes = key_bytes;
        self.length_bytes = length_bytes;
        self.apart = values.or_else(|| self.apart.take());
        self.value_bytes = self.apart.as_ref().map_or(0, |values| values.len());
    }

    /// Whether no open record is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Number of open records left.
    #[inline]
    pub fn len(&self) -> usize {
        self.open
    }

    /// Whether all records were passed, those that are not open included.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.count == 0
    }

    /// Whether the records have no content: no keys, lengths, values or signature.
    pub fn is_ack(&self) -> bool {
        self.key_bytes | self.length_bytes | self.value_bytes == 0
            && self.flags & flags::SIGNATURE == 0
    }

    /// Passes the next record, if there is one.
    #[inline(always)]
    pub fn advance(&mut self) {
        let passed = usize::from(self.open > 0);
        self.open -= passed;
        self.count -= passed;
        if self.count == 0 {
            self.image = None;
            if self.apart.is_some() {
                self.apart = None;
            }
        }
        self.keys_at += self.stride;
        self.timestamp_at = self.keys_at - self.lead;
    }

    /// Passes the next record and returns it as a message of its own, if there is one.
    #[inline(never)]
    pub fn pop(&mut self) -> Option<Message> {
        if self.open == 0 {
            return None;
        }
        let image = if self.count == 1 { self.image.take() } else { self.image.clone() };
        let apart = self.apart.take();
        let message = Message { image, apart, count: 1, open: 1, ..*self };
        self.advance();
        Some(message)
    }

    /// Passes `count` records, or all that are left.
    pub fn pass(&mut self, count: usize) {
        (0..count.min(self.open)).for_each(|_| self.advance());
    }

    /// A message of the next `count` records at most, which stay here as well. Both share the
    /// memory of the image.
    pub fn first(&self, count: usize) -> Message {
        let open = self.open.min(count);
        Message { image: self.image.clone(), apart: self.apart.clone(), count: open, open, ..*self }
    }

    #[inline(always)]
    pub(crate) fn image(&self) -> &[u8] {
        self.image.as_deref().unwrap_or(&[])
    }

    /// Bytes `range` of the image, which share its memory.
    pub(crate) fn part(&self, range: std::ops::Range<usize>) -> Shared {
        self.image.as_ref().expect("a record is left").slice(range)
    }

    /// The header as it was sent, but for the checksum, with the timestamp of the first record.
    ///
    /// # Panics
    /// If no record is left, as for all functions below.
    #[inline]
    pub fn header(&self) -> &Header {
        let (header, _) = Header::ref_from_prefix(self.image()).expect("decode has read it");
        header
    }

    /// Kind of the message: request, reply, …
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Operation code of the layer above.
    #[inline]
    pub fn op(&self) -> u8 {
        self.header().op
    }

    /// Command of the request.
    #[inline]
    pub fn command(&self) -> i32 {
        self.header().command.get()
    }

    /// Table of the message.
    #[inline]
    pub fn table(&self) -> u32 {
        self.header().table.get()
    }

    /// The sender's iteration.
    #[inline]
    pub fn clock(&self) -> u64 {
        self.header().clock.get()
    }

    /// The key range, in which all keys lie.
    #[inline]
    pub fn range(&self) -> KeyRange {
        self.header().range()
    }

    /// The sender's request number in the next record; a reply repeats that of its request.
    #[inline(always)]
    pub fn timestamp(&self) -> u64 {
        number(&self.image()[self.timestamp_at..])
    }

    /// Keys of the next record: `[n]`, strictly ascending, within the range.
    #[inline(always)]
    pub fn keys(&self) -> &[u64] {
        let bytes = &self.image()[self.keys_at..][..self.key_bytes];
        <[u64]>::ref_from_bytes(bytes).expect("decode checked alignment and length")
    }

    /// Lengths of the next record: `[n]`, or empty; of any number if it names no keys.
    #[inline(always)]
    pub fn lengths(&self) -> &[u32] {
        if self.length_bytes == 0 {
            return &[];
        }
        let bytes = &self.image()[self.keys_at + self.key_bytes..][..self.length_bytes];
        <[u32]>::ref_from_bytes(bytes).expect("decode checked alignment and length")
    }

    /// Values of the next record, 8-byte aligned.
    #[inline(always)]
    pub fn values(&self) -> &[u8] {
        match &self.apart {
            None => &self.image()[self.keys_at + self.values_from..][..self.value_bytes],
            Some(values) => values,
        }
    }

    /// Values of the next record, which share the memory of the message.
    pub fn share_values(&self) -> Shared {
        match &self.apart {
            None => self.part(
                self.keys_at + self.values_from..self.keys_at + self.values_from + self.value_bytes,
            ),
            Some(values) => values.clone(),
        }
    }

    /// Whether each record has an offer.
    #[inline]
    pub fn has_offers(&self) -> bool {
        self.flags & flags::OFFER != 0
    }

    /// Memory of the sender that may be written: in a request, for the answer to the next record.
    /// The offer of an answer is a landing, which the endpoint has taken.
    #[inline]
    pub fn offer(&self) -> Option<Offer> {
        self.offers().next()
    }

    /// The offers of the open records, in order, if they have any.
    pub(crate) fn offers(&self) -> impl Iterator<Item = Offer> {
        let count = if self.has_offers() { self.open } else { 0 };
        let all = (0..count).map(|n| self.keys_at - size_of::<Offer>() + n * self.stride);
        all.map(|at| Offer::read_from_prefix(&self.image()[at..]).expect("whole records").0)
    }

    /// The timestamps of the next records, in order.
    pub fn timestamps(&self) -> impl Iterator<Item = u64> {
        let behind = (1..self.open).map(|n| self.keys_at + n * self.stride - self.lead);
        let all = (0..self.open.min(1)).map(|_| self.timestamp_at).chain(behind);
        all.map(|at| number(&self.image()[at..]))
    }

    /// Signature of the list of keys: of the message's own, which the receiver shall remember, or
    /// of a remembered one.
    #[inline]
    pub fn signature(&self) -> Option<u64> {
        if self.flags & flags::SIGNATURE == 0 {
            return None;
        }
        let origin = if self.flags & flags::ORIGIN == 0 { 0 } else { Origin::BYTES };
        Some(number(&self.image()[size_of::<Header>() + origin..]))
    }

    /// The node that has made the requests, if their sender forwards them.
    #[inline]
    pub fn origin(&self) -> Option<Origin> {
        if self.flags & flags::ORIGIN == 0 {
            return None;
        }
        Origin::read(&self.image()[size_of::<Header>()..])
    }

    /// The values in their sender's memory, if they are lent. They stay there while any part of
    /// them is held.
    #[inline]
    pub fn lent(&self) -> Option<&Shared> {
        self.apart.as_ref().filter(|_| self.is_lent)
    }

    /// Returns the message with other lengths, if given, and other values, which the layer above
    /// decoded.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] if `pool` has no room for the lengths.
    pub fn decoded(
        mut self,
        lengths: Option<&[u32]>,
        values: Buffer,
        pool: &Pool,
    ) -> Result<Message> {
        if let Some(lengths) = lengths {
            let at = self.keys_at + self.key_bytes;
            let bytes = lengths.as_bytes();
            let mut image = pool.allocate(at + bytes.len())?;
            image[..at].copy_from_slice(&self.image()[..at]);
            image[at..].copy_from_slice(bytes);
            self.length_bytes = bytes.len();
            self.image = Some(image.share());
        }
        self.apart = Some(values.share());
        self.is_lent = false;
        Ok(self)
    }

    /// Returns the message with a copy of its values, if they are lent. A sender can still write
    /// values that it lends. Copy them before reading them twice, or before taking more than plain
    /// numbers from them.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] if `pool` has no room for them.
    pub fn kept(mut self, pool: &Pool) -> Result<Message> {
        if let Some(lent) = self.lent() {
            let mut values = pool.allocate(lent.len())?;
            values.copy_from_slice(lent);
            self.apart = Some(values.share());
            self.is_lent = false;
        }
        Ok(self)
    }

    /// Bytes of a record's keys, lengths and values on the wire.
    pub fn wire_bytes(&self) -> usize {
        let Header { kind, key_bytes, length_bytes, value_bytes, .. } = self.header();
        let is_alone = *kind == self.kind as u8;
        let length_bytes = if is_alone { length_bytes.get() } else { 0 }; // a batch's records
        key_bytes.get() as usize + length_bytes as usize + value_bytes.get() as usize
    }

    /// Whether nobody else holds the memory of the values: then [`Message::into_values`] copies
    /// nothing.
    #[inline]
    pub fn owns_values(&self) -> bool {
        match (&self.apart, &self.image) {
            (Some(_), _) => !self.is_lent,
            (None, Some(image)) => self.count == 1 && image.is_exclusive(),
            (None, None) => false,
        }
    }

    /// Returns the values of the next record and releases the memory of all other sections. The
    /// values are copied unless the message [owns](Message::owns_values) them.
    pub fn into_values(self) -> Buffer {
        let Message { image, apart, keys_at, values_from, value_bytes, .. } = self;
        let image = image.expect("a record is left");
        let values = apart.unwrap_or_else(|| {
            let at = keys_at + values_from;
            image.slice(at..at + value_bytes)
        });
        drop(image); // which may hold the same memory
        values.reclaim().unwrap_or_else(|values| Buffer::adopt(values.to_vec()))
    }
}

/// Checks and opens all records of a message.
fn whole(mut message: Message) -> Result<Message> {
    message.open(usize::MAX)?;
    Ok(message)
}

/// The next records of a message but the first, as they lie in a batch of requests with so many
/// value bytes each: the timestamp, the key and the values of each. With them the distance from one
/// to the next. `None` if they do not lie so.
pub(crate) fn records_behind(message: &Message, value_bytes: usize) -> Option<(&[u8], usize)> {
    let is_run = message.stride > 0
        && message.kind == Kind::Request
        && (message.lead, message.key_bytes) == (size_of::<u64>(), KEY)
        && message.value_bytes == value_bytes
        && message.open > 1;
    if !is_run {
        return None;
    }
    let from = message.keys_at + message.stride - message.lead;
    let bytes = &message.image()[from..][..(message.open - 1) * message.stride];
    Some((bytes, message.stride))
}

/// Checks that zeros follow the keys, lengths and values of the record whose keys lie at `at`.
fn check_record_padding(message: &Message, at: usize) -> Result<(), DecodeError> {
    let image = message.image();
    let lengths_at = at + message.key_bytes.next_multiple_of(8);
    check_padding(image, at + message.key_bytes..lengths_at)?;
    if message.apart.is_some() {
        return Ok(());
    }
    let values_at = at + message.values_from;
    check_padding(image, lengths_at + message.length_bytes..values_at)?;
    let end = values_at + message.value_bytes;
    check_padding(image, end..end.next_multiple_of(8).min(image.len()))
}

/// Returns the number at the start of `bytes`.
#[inline(always)]
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("whole records"))
}
