//! A ranged message: a key range, and what is said about some of its keys. Its bytes are the codec's business.
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
/// An `end` of 0 stands for 2^64, so that the very last key belongs to a range like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    begin: u64,
    end: u64,
}

impl KeyRange {
    /// Every key there is.
    pub const ALL: KeyRange = KeyRange { begin: 0, end: 0 };

    /// The keys of `[begin, end)`, with 0 standing for 2^64 as `end`; `None` when there are none.
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

    /// Whether `key` is one of them.
    #[inline]
    pub fn contains(self, key: u64) -> bool {
        self.begin <= key && key <= self.last()
    }

    /// The keys that are in both, if any.
    pub fn intersect(self, other: KeyRange) -> Option<KeyRange> {
        let (begin, last) = (self.begin.max(other.begin), self.last().min(other.last()));
        (begin <= last).then_some(KeyRange { begin, end: last.wrapping_add(1) })
    }

    /// Cuts the range into `parts` of even size, in order; fewer when there are fewer keys than parts.
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
    /// All keys are within.
    #[inline]
    pub(crate) fn range(&self) -> KeyRange {
        KeyRange { begin: self.range_begin.get(), end: self.range_end.get() }
    }
}

/// What a message will say. Fill it in from [`Draft::new`]; [`crate::encode`] turns it into bytes.
pub struct Draft<'a> {
    /// Request, reply, …
    pub kind: Kind,
    /// What the layer above asks for; the van never looks at it.
    pub op: u8,
    /// The table it is about.
    pub table: u32,
    /// The sender's request number; a reply carries that of its request.
    pub timestamp: u64,
    /// The sender's iteration.
    pub clock: u64,
    /// All keys are within.
    pub range: KeyRange,
    /// Memory that the receiver may write, once: to place the answer in, if this is a request.
    pub offer: Option<Offer>,
    /// The name of the list of keys, under which the receiver may know it or remember it.
    pub signature: Option<u64>,
    /// `[n]`, strictly ascending; none if the receiver knows them by the signature.
    pub keys: &'a [u64],
    /// `[n]`: values of each key; empty when all keys have the same number. May stand without keys that the receiver knows.
    pub lengths: &'a [u32],
    /// Likewise in the order of the keys.
    pub values: Values<'a>,
}

impl Draft<'_> {
    /// A message of `kind` about nothing: all keys in range, none named.
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

    /// Most bytes its image takes: exactly as many where nothing is coded.
    #[inline]
    pub(crate) fn image_bytes_max(&self) -> usize {
        let offer = if self.offer.is_some() { size_of::<Offer>() } else { 0 };
        let lengths = size_of_val(self.lengths).next_multiple_of(8);
        let signature = if self.signature.is_some() { size_of::<u64>() } else { 0 };
        let sections = signature + offer + size_of_val(self.keys) + lengths;
        (size_of::<Header>() + sections).saturating_add(self.values.len())
    }
}

/// Where a draft's values come from, and where they go.
pub enum Values<'a> {
    /// There are none.
    None,
    /// Copied into the message.
    Copied(&'a [u8]),
    /// That many bytes, written straight into the message. The writer fills its whole slice, which holds old bytes before.
    Written(usize, &'a mut dyn FnMut(&mut [u8])),
    /// Sent from where they lie, not copied, not compressed, left out of the message's checksum; copied where the message is short.
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

    /// Puts them into `place`, which is as long as they are.
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

/// An encoded message on its way to an endpoint.
#[derive(Debug)]
pub struct Outgoing {
    /// [`FRAME_PREFIX`] bytes for the van, then the message. When its values are apart, that is up to where they would begin, and
    /// its length follows, 8 bytes.
    pub head: Buffer,
    /// The rest of the message, when its values are apart.
    pub values: Option<Shared>,
}

impl Outgoing {
    /// A message that is a frame and values which were to be lent, as one whose values are apart.
    pub(crate) fn with_trailer(frame: &Buffer, values: Shared, pool: &Pool) -> Result<Outgoing> {
        let mut head = pool.allocate(frame.len() + TRAILER)?;
        let (image, trailer) = head.split_at_mut(frame.len());
        image.copy_from_slice(frame);
        let image_bytes = (frame.len() - FRAME_PREFIX) as u64;
        trailer.copy_from_slice(&image_bytes.to_le_bytes());
        Ok(Outgoing { head, values: Some(values) })
    }

    /// Length of the whole message, without the prefix, values that are apart included.
    pub fn image_bytes(&self) -> usize {
        let head = self.head.len() - FRAME_PREFIX;
        self.values.as_ref().map_or(head, |values| head - TRAILER + values.len())
    }
}

/// A received message whose every byte has been checked. Sections are viewed in place, coded ones in memory of their own.
#[derive(Debug)]
pub struct Message {
    /// Begins with its header, or that of the run that it is part of.
    pub(crate) image: Shared,
    /// Its values, if they are not in the image.
    pub(crate) apart: Option<Shared>,
    pub(crate) timestamp: u64,
    pub(crate) sections: Sections,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    /// The values are where their sender has them.
    pub(crate) is_lent: bool,
}

/// Where sections are in an image: the lengths right behind the keys, the values behind those at a multiple of 8.
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
    /// Checks and decodes a message that lies in `image` from its first, 8-byte aligned, to its last byte.
    ///
    /// # Errors
    /// [`crate::Error::Decode`] when it is not exactly what [`crate::encode`] makes; [`crate::Error::OutOfMemory`] when
    /// `pool` has no room for the sections that were coded.
    pub fn decode(image: Buffer, pool: &Pool) -> Result<Message> {
        crate::wire::decode(image, false, pool)
    }

    /// The same for a message whose values lie before it, as a long one lands whose values were sent from where they lay.
    ///
    /// # Errors
    /// As [`Message::decode`].
    pub fn decode_landed(landed: Buffer, pool: &Pool) -> Result<Message> {
        crate::wire::decode_landed(landed, false, pool)
    }

    /// What was sent before its sections, but for the checksum: of a message that came with others of its form, what all have in
    /// common, and the first one's timestamp.
    #[inline]
    pub fn header(&self) -> &Header {
        let (header, _) = Header::ref_from_prefix(&self.image).expect("decode has read it");
        header
    }

    /// Its values where their sender has them, if they are lent: they stay so while any part of them is held.
    #[inline]
    pub fn lent(&self) -> Option<&Shared> {
        self.apart.as_ref().filter(|_| self.is_lent)
    }

    /// Request, reply, …
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the layer above asks for.
    #[inline]
    pub fn op(&self) -> u8 {
        self.header().op
    }

    /// The sender's node id.
    #[inline]
    pub fn sender(&self) -> u32 {
        self.header().sender.get()
    }

    /// The table it is about.
    #[inline]
    pub fn table(&self) -> u32 {
        self.header().table.get()
    }

    /// The sender's request number; a reply carries that of its request.
    #[inline]
    pub fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// The sender's iteration.
    #[inline]
    pub fn clock(&self) -> u64 {
        self.header().clock.get()
    }

    /// All keys are within.
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

    /// Takes that memory out, so that nobody above sees it.
    pub(crate) fn take_offer(&mut self) -> Option<Offer> {
        let offer = self.offer()?;
        self.flags &= !flags::OFFER;
        Some(offer)
    }

    /// Whether it says nothing about any keys.
    pub(crate) fn is_ack(&self) -> bool {
        let Sections { key_bytes, length_bytes, value_bytes, .. } = self.sections;
        key_bytes | length_bytes | value_bytes == 0 && self.flags & flags::SIGNATURE == 0
    }

    /// The name of the list of keys: those of the message, which the receiver shall remember, or ones that it knows.
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

    /// `[n]`, or empty; of any number when no keys are named.
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

    /// The same message with what the layer above has made of its lengths, if anything, and of its values.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] when `pool` has no room for the lengths.
    pub fn decoded(
        mut self,
        lengths: Option<&[u32]>,
        values: Buffer,
        pool: &Pool,
    ) -> Result<Message> {
        if let Some(lengths) = lengths {
            let (at, bytes) = (self.sections.keys().end, lengths.as_bytes());
            let mut image = pool.allocate(at + bytes.len())?;
            image[..at].copy_from_slice(&self.image[..at]);
            image[at..].copy_from_slice(bytes);
            self.sections.length_bytes = bytes.len() as u32;
            self.image = image.share();
        }
        (self.apart, self.is_lent) = (Some(values.share()), false);
        Ok(self)
    }

    /// The same message with a copy of its values, if they are lent: a sender can still write those that it lends, so whoever looks
    /// at values more than once, or takes more than plain numbers from them, looks at a copy.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] when `pool` has no room for them.
    pub fn kept(mut self, pool: &Pool) -> Result<Message> {
        if let Some(lent) = self.lent() {
            let mut values = pool.allocate(lent.len())?;
            values.copy_from_slice(lent);
            (self.apart, self.is_lent) = (Some(values.share()), false);
        }
        Ok(self)
    }

    /// Bytes of its keys, lengths and values as they came.
    pub fn wire_bytes(&self) -> usize {
        let Header { kind, key_bytes, length_bytes, value_bytes, .. } = self.header();
        let is_alone = *kind == self.kind as u8;
        let length_bytes = if is_alone { length_bytes.get() } else { 0 }; // of records
        key_bytes.get() as usize + length_bytes as usize + value_bytes.get() as usize
    }

    /// Whether nobody else holds the memory of its values: then [`Message::into_values`] copies nothing.
    #[inline]
    pub fn owns_values(&self) -> bool {
        if self.apart.is_some() { !self.is_lent } else { self.image.is_exclusive() }
    }

    /// Keeps the values and gives back the memory of everything else. They are copied unless it [owns](Message::owns_values) them.
    pub fn into_values(self) -> Buffer {
        let values = match self.apart {
            Some(values) => {
                drop(self.image); // perhaps of the same memory
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
        let (a, b) = (KeyRange::new(3, 10).unwrap(), KeyRange::new(9, 0).unwrap());
        assert_eq!(a.intersect(b), KeyRange::new(9, 10));
        assert_eq!(a.intersect(KeyRange::new(10, 0).unwrap()), None);
        assert_eq!(KeyRange::ALL.intersect(b), Some(b));
    }
}
