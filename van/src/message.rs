//! A message: a key range, and values for some of its keys. The codec knows its bytes.
//!
//! Path: worker > slicer > filter > **message** > codec > endpoint > transport.

use std::fmt;
use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use crate::error::Result;
use crate::memory::{Buffer, Pool, Shared};
use crate::transport::FRAME_PREFIX;
use crate::wire::{Header, Kind, Offer, TRAILER, flags};

/// Keys from `begin` up to, not including, `end`; never empty.
///
/// An `end` of 0 stands for 2^64, so that ranges can include the last key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    begin: u64,
    end: u64,
}

impl KeyRange {
    /// All keys.
    pub const ALL: KeyRange = KeyRange { begin: 0, end: 0 };

    /// Creates the range `[begin, end)`, where an `end` of 0 stands for 2^64; `None` if it is
    /// empty.
    #[inline]
    pub fn new(begin: u64, end: u64) -> Option<KeyRange> {
        (begin < end || end == 0).then_some(KeyRange { begin, end })
    }

    /// First key.
    #[inline]
    pub fn begin(self) -> u64 {
        self.begin
    }

    /// One past the last key; 0 stands for 2^64.
    #[inline]
    pub fn end(self) -> u64 {
        self.end
    }

    /// Last key.
    #[inline]
    pub fn last(self) -> u64 {
        self.end.wrapping_sub(1)
    }

    /// Number of keys, up to 2^64.
    pub fn count(self) -> u128 {
        u128::from(self.last() - self.begin) + 1
    }

    /// Whether the range contains `key`.
    #[inline]
    pub fn contains(self, key: u64) -> bool {
        self.begin <= key && key <= self.last()
    }

    /// Returns the keys that are in both ranges, if any.
    pub fn intersect(self, other: KeyRange) -> Option<KeyRange> {
        let begin = self.begin.max(other.begin);
        let last = self.last().min(other.last());
        (begin <= last).then_some(KeyRange { begin, end: last.wrapping_add(1) })
    }

    /// Cuts the range into `parts` of even size, in order; into fewer if there are fewer keys.
    pub fn cut(self, parts: usize) -> impl Iterator<Item = KeyRange> {
        let parts = (parts.max(1) as u128).min(self.count());
        let bound = move |i: u128| self.begin.wrapping_add((self.count() * i / parts) as u64);
        (0..parts).map(move |i| KeyRange {
            begin: bound(i),
            end: if i + 1 == parts { self.end } else { bound(i + 1) },
        })
    }
}

impl Header {
    /// The key range, in which all keys lie.
    #[inline]
    pub(crate) fn range(&self) -> KeyRange {
        KeyRange { begin: self.range_begin.get(), end: self.range_end.get() }
    }
}

/// A message to send. Start from [`Draft::new`] and fill it in; [`crate::encode`] encodes it.
pub struct Draft<'a> {
    /// Kind of the message: request, reply, …
    pub kind: Kind,
    /// Operation code of the layer above; the van ignores it.
    pub op: u8,
    /// Table of the message.
    pub table: u32,
    /// The sender's request number; a reply repeats that of its request.
    pub timestamp: u64,
    /// The sender's iteration.
    pub clock: u64,
    /// The key range, in which all keys lie.
    pub range: KeyRange,
    /// Memory that the receiver may write once; in a request, for its placed answer.
    pub offer: Option<Offer>,
    /// Signature of the list of keys, under which the receiver knows it or remembers it.
    pub signature: Option<u64>,
    /// `[n]`, strictly ascending; empty if the receiver knows them by the signature.
    pub keys: &'a [u64],
    /// `[n]`: number of values of each key; empty if all keys have the same. Keys that the receiver
    /// knows may be omitted beside them.
    pub lengths: &'a [u32],
    /// The values, in the order of the keys.
    pub values: Values<'a>,
}

impl Draft<'_> {
    /// Creates a message of `kind` with the range of all keys, and without keys and values.
    #[inline]
    pub fn new(kind: Kind) -> Self {
        Draft {
            kind,
            op: 0,
            table: 0,
            timestamp: 0,
            clock: 0,
            range: KeyRange::ALL,
            offer: None,
            signature: None,
            keys: &[],
            lengths: &[],
            values: Values::None,
        }
    }

    /// Upper bound of its image's length, in bytes; exact if nothing is coded.
    #[inline]
    pub(crate) fn image_bytes_max(&self) -> usize {
        let offer = if self.offer.is_some() { size_of::<Offer>() } else { 0 };
        let lengths = size_of_val(self.lengths).next_multiple_of(8);
        let signature = if self.signature.is_some() { size_of::<u64>() } else { 0 };
        let sections = signature + offer + size_of_val(self.keys) + lengths;
        (size_of::<Header>() + sections).saturating_add(self.values.len())
    }
}

/// The values of a draft, and how they are sent.
pub enum Values<'a> {
    /// No values.
    None,
    /// Values that are copied into the message.
    Copied(&'a [u8]),
    /// Values of that many bytes, which the function writes directly into the message. It fills its
    /// whole slice, which holds old bytes before.
    Written(usize, &'a mut dyn FnMut(&mut [u8])),
    /// Values that are sent from where they lie: not copied, not compressed, and not covered by the
    /// message's checksum. In a short message they are copied.
    Apart(Shared),
}

impl Values<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::None => 0,
            Values::Copied(bytes) => bytes.len(),
            Values::Written(bytes, _) => *bytes,
            Values::Apart(bytes) => bytes.len(),
        }
    }

    /// Writes the values into `place`, which has their length.
    #[inline]
    pub(crate) fn write(&mut self, place: &mut [u8]) {
        match self {
            Values::None => {}
            Values::Copied(bytes) => place.copy_from_slice(bytes),
            Values::Written(_, write) => write(place),
            Values::Apart(bytes) => place.copy_from_slice(bytes),
        }
    }
}

impl fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::None => write!(f, "None"),
            Values::Copied(bytes) => write!(f, "Copied({} bytes)", bytes.len()),
            Values::Written(bytes, _) => write!(f, "Written({bytes} bytes)"),
            Values::Apart(bytes) => write!(f, "Apart({} bytes)", bytes.len()),
        }
    }
}

/// An encoded message, ready for an endpoint.
#[derive(Debug)]
pub struct Outgoing {
    /// [`FRAME_PREFIX`] bytes for the van, then the image. If the values are apart, the image ends
    /// where they would begin, and its length follows in 8 bytes.
    pub head: Buffer,
    /// The values, if they are apart.
    pub values: Option<Shared>,
}

impl Outgoing {
    /// Converts a frame whose values were to be lent into a message whose values are apart.
    pub(crate) fn with_trailer(frame: &Buffer, values: Shared, pool: &Pool) -> Result<Outgoing> {
        let mut head = pool.allocate(frame.len() + TRAILER)?;
        let (image, trailer) = head.split_at_mut(frame.len());
        image.copy_from_slice(frame);
        let image_bytes = (frame.len() - FRAME_PREFIX) as u64;
        trailer.copy_from_slice(&image_bytes.to_le_bytes());
        Ok(Outgoing { head, values: Some(values) })
    }

    /// Length of the whole message without the prefix, with values that are apart.
    pub fn image_bytes(&self) -> usize {
        let head = self.head.len() - FRAME_PREFIX;
        self.values.as_ref().map_or(head, |values| head - TRAILER + values.len())
    }
}

/// A received message whose every byte has been checked. Plain sections are viewed in place; coded
/// ones are decoded into memory of their own.
#[derive(Debug)]
pub struct Message {
    /// The image, which begins with the message's header, or with that of its batch.
    pub(crate) image: Shared,
    /// The values, if they are not in the image.
    pub(crate) apart: Option<Shared>,
    pub(crate) timestamp: u64,
    pub(crate) sections: Sections,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    /// Whether the values lie in memory of their sender.
    pub(crate) is_lent: bool,
}

/// Where sections lie in an image: the lengths right behind the keys, the values behind those at a
/// multiple of 8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sections {
    pub(crate) keys_at: u32,
    pub(crate) key_bytes: u32,
    pub(crate) length_bytes: u32,
    pub(crate) value_bytes: u32,
}

impl Sections {
    #[inline]
    fn keys(self) -> Range<usize> {
        let at = self.keys_at as usize;
        at..at + self.key_bytes as usize
    }

    #[inline]
    fn lengths(self) -> Range<usize> {
        let at = self.keys().end;
        at..at + self.length_bytes as usize
    }

    #[inline]
    fn values(self) -> Range<usize> {
        let at = self.lengths().end.next_multiple_of(8);
        at..at + self.value_bytes as usize
    }
}

impl Message {
    /// Checks and decodes a message that fills `image`, which is 8-byte aligned.
    ///
    /// # Errors
    /// [`crate::Error::Decode`] if it is not exactly an image of [`crate::encode`];
    /// [`crate::Error::OutOfMemory`] if `pool` has no room for decoded sections.
    pub fn decode(image: Buffer, pool: &Pool) -> Result<Message> {
        crate::wire::decode(image, false, pool)
    }

    /// Decodes a message whose values precede it, as in a landing.
    ///
    /// # Errors
    /// As [`Message::decode`].
    pub fn decode_landed(landed: Buffer, pool: &Pool) -> Result<Message> {
        crate::wire::decode_landed(landed, false, pool)
    }

    /// The header as it was sent, but for the checksum. A message from a batch has the common
    /// header, with the timestamp of the first message.
    #[inline]
    pub fn header(&self) -> &Header {
        let (header, _) = Header::ref_from_prefix(&self.image).expect("decode has read it");
        header
    }

    /// The values in their sender's memory, if they are lent. They stay there while any part of
    /// them is held.
    #[inline]
    pub fn lent(&self) -> Option<&Shared> {
        self.apart.as_ref().filter(|_| self.is_lent)
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

    /// Node id of the sender.
    #[inline]
    pub fn sender(&self) -> u32 {
        self.header().sender.get()
    }

    /// Table of the message.
    #[inline]
    pub fn table(&self) -> u32 {
        self.header().table.get()
    }

    /// The sender's request number; a reply repeats that of its request.
    #[inline]
    pub fn timestamp(&self) -> u64 {
        self.timestamp
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

    /// Memory of the sender that may be written.
    #[inline]
    pub fn offer(&self) -> Option<Offer> {
        if self.flags & flags::OFFER == 0 {
            return None;
        }
        let at = self.sections.keys_at as usize - size_of::<Offer>();
        let (offer, _) = Offer::read_from_prefix(&self.image[at..])
            .expect("decode has seen that the keys start behind it");
        Some(offer)
    }

    /// Removes and returns the offer, so that the layers above do not see it.
    pub(crate) fn take_offer(&mut self) -> Option<Offer> {
        let offer = self.offer()?;
        self.flags &= !flags::OFFER;
        Some(offer)
    }

    /// Whether it has no content: no keys, lengths, values or signature.
    pub(crate) fn is_ack(&self) -> bool {
        let Sections { key_bytes, length_bytes, value_bytes, .. } = self.sections;
        key_bytes | length_bytes | value_bytes == 0 && self.flags & flags::SIGNATURE == 0
    }

    /// Signature of the list of keys: of the message's own, which the receiver shall remember, or
    /// of a remembered one.
    #[inline]
    pub fn signature(&self) -> Option<u64> {
        if self.flags & flags::SIGNATURE == 0 {
            return None;
        }
        let signature = self.image[size_of::<Header>()..].first_chunk();
        Some(u64::from_le_bytes(*signature.expect("decode has seen that the keys start behind it")))
    }

    /// `[n]`, strictly ascending, within the range.
    #[inline]
    pub fn keys(&self) -> &[u64] {
        let bytes = &self.image[self.sections.keys()];
        <[u64]>::ref_from_bytes(bytes).expect("decode checked alignment and length")
    }

    /// `[n]`, or empty; of any number if the message names no keys.
    #[inline]
    pub fn lengths(&self) -> &[u32] {
        if self.sections.length_bytes == 0 {
            return &[];
        }
        let bytes = &self.image[self.sections.lengths()];
        <[u32]>::ref_from_bytes(bytes).expect("decode checked alignment and length")
    }

    /// The values, 8-byte aligned.
    #[inline]
    pub fn values(&self) -> &[u8] {
        match &self.apart {
            None => &self.image[self.sections.values()],
            Some(values) => values,
        }
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
            let at = self.sections.keys().end;
            let bytes = lengths.as_bytes();
            let mut image = pool.allocate(at + bytes.len())?;
            image[..at].copy_from_slice(&self.image[..at]);
            image[at..].copy_from_slice(bytes);
            self.sections.length_bytes = bytes.len() as u32;
            self.image = image.share();
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

    /// Bytes of its keys, lengths and values on the wire.
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
        if self.apart.is_some() { !self.is_lent } else { self.image.is_exclusive() }
    }

    /// Returns the values and releases the memory of all other sections. The values are copied
    /// unless the message [owns](Message::owns_values) them.
    pub fn into_values(self) -> Buffer {
        let values = match self.apart {
            Some(values) => {
                drop(self.image); // which may hold the same memory
                values
            }
            None => {
                let values = self.image.slice(self.sections.values());
                drop(self.image);
                values
            }
        };
        values.reclaim().unwrap_or_else(|values| Buffer::adopt(values.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_range_reaches_the_last_key() {
        assert!(KeyRange::ALL.contains(u64::MAX) && KeyRange::ALL.contains(0));
        assert_eq!(KeyRange::ALL.count(), 1 << 64);
        assert_eq!(KeyRange::new(5, 5), None);
        assert_eq!(KeyRange::new(u64::MAX, 0).unwrap().count(), 1);
    }

    #[test]
    fn parts_tile_the_range() {
        for range in
            [KeyRange::ALL, KeyRange::new(3, 10).unwrap(), KeyRange::new(u64::MAX - 4, 0).unwrap()]
        {
            for parts in [1, 2, 3, 7, 100] {
                let cut: Vec<_> = range.cut(parts).collect();
                assert_eq!(
                    (cut[0].begin(), cut.last().unwrap().end()),
                    (range.begin(), range.end())
                );
                assert!(cut.windows(2).all(|pair| pair[0].end() == pair[1].begin()));
                assert_eq!(cut.len() as u128, (parts as u128).min(range.count()));
            }
        }
    }

    #[test]
    fn intersections_are_exact() {
        let a = KeyRange::new(3, 10).unwrap();
        let b = KeyRange::new(9, 0).unwrap();
        assert_eq!(a.intersect(b), KeyRange::new(9, 10));
        assert_eq!(a.intersect(KeyRange::new(10, 0).unwrap()), None);
        assert_eq!(KeyRange::ALL.intersect(b), Some(b));
    }
}
