//! Reads batches, which `batch.rs` writes: record by record in place, or each record as a message.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::batch::{TIMESTAMP, keys_of};
use super::{ALIGN, DecodeError, Header, Kind, Offer, check_padding, flags};
use crate::memory::Shared;
use crate::message::{KeyRange, Message, Sections};

/// Layout of a received image that is a batch, or could be the first message of one.
#[derive(Clone, Copy)]
pub(super) struct BatchLayout {
    kind: Kind,
    range: KeyRange,
    offer_bytes: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// Number of messages.
    count: usize,
    /// End of the image.
    pub(super) end: usize,
    /// The words of the header that determine this layout.
    words: [u64; 5],
}

/// Returns the words of a header that are equal in images with the same layout.
#[inline(always)]
fn layout_words(header: &Header) -> [u64; 5] {
    let [kind, _, _, _, begin, end, keys, values]: &[U64; 8] = zerocopy::transmute_ref!(header);
    let values = values.get() & u64::from(u32::MAX); // without the checksum above them
    [kind.get(), begin.get(), end.get(), keys.get(), values]
}

impl BatchLayout {
    /// Layout of no image, because no image is that long.
    const NONE: BatchLayout = BatchLayout {
        kind: Kind::Reply,
        range: KeyRange::ALL,
        offer_bytes: 0,
        key_bytes: 0,
        value_bytes: 0,
        count: 0,
        end: usize::MAX,
        words: [0; 5],
    };

    /// Whether an image of `bytes` bytes that begins with `header` has this layout; its sizes need
    /// no other check then.
    #[inline(always)]
    pub(super) fn matches(&self, header: &Header, bytes: usize) -> bool {
        let differ = |so_far, (word, own): (&u64, &u64)| so_far | (word ^ own);
        self.end == bytes && layout_words(header).iter().zip(&self.words).fold(0, differ) == 0
    }

    /// Returns the layout of the image of `have` bytes that begins with `header`, or nothing if it
    /// cannot belong to a batch.
    ///
    /// # Errors
    /// The reason why the image is invalid.
    #[inline(always)]
    pub(super) fn of(
        header: &Header,
        kind: Kind,
        have: usize,
    ) -> Result<Option<BatchLayout>, DecodeError> {
        let [keys, records, values] =
            [header.key_bytes, header.length_bytes, header.value_bytes].map(|n| n.get() as usize);
        let offer_bytes = if header.flags & flags::OFFER == 0 { 0 } else { size_of::<Offer>() };
        let has_layout = header.flags & !flags::OFFER == 0
            && keys_of(kind).is_some_and(|count| keys == 8 * count);
        // This cannot overflow where it is used: `has_layout` bounds `keys` there.
        let first = size_of::<Header>() + offer_bytes + keys;
        let (kind, count, end, what) = match kind {
            Kind::Request | Kind::Reply if has_layout && records == 0 => {
                (kind, 1, first + values, "its sections")
            }
            Kind::Requests | Kind::Replies => {
                let sections = keys.saturating_add(values.next_multiple_of(ALIGN));
                let len = offer_bytes.saturating_add(sections);
                if !has_layout || records == 0 || !records.is_multiple_of(TIMESTAMP + len) {
                    return Err(DecodeError::Batch { keys, values, records });
                }
                let kind = if kind == Kind::Requests { Kind::Request } else { Kind::Reply };
                let count = 1 + records / (TIMESTAMP + len);
                (kind, count, size_of::<Header>() + len + records, "its records")
            }
            _ => return Ok(None),
        };
        if have < end {
            return Err(DecodeError::TooShort { what, have, need: end });
        }
        let begin = header.range_begin.get();
        let last = header.range_end.get();
        let range =
            KeyRange::new(begin, last).ok_or(DecodeError::EmptyRange { begin, end: last })?;
        let key_bytes = keys;
        let value_bytes = values;
        let words = layout_words(header);
        Ok(Some(BatchLayout {
            kind,
            range,
            offer_bytes,
            key_bytes,
            value_bytes,
            count,
            end,
            words,
        }))
    }
}

/// A received image with the layout of a batch. A single message is a batch of one.
pub(crate) struct Batch {
    pub(super) layout: BatchLayout,
    /// The messages that have not been passed.
    pub(crate) rest: Messages,
}

impl Batch {
    /// A batch without messages.
    pub(super) const NONE: Batch = Batch { layout: BatchLayout::NONE, rest: Messages::NONE };

    /// Continues with `image`, which has the layout `layout`, once all messages were passed.
    pub(super) fn begin(&mut self, layout: BatchLayout, image: Shared) {
        let BatchLayout { kind, offer_bytes, key_bytes, value_bytes, .. } = layout;
        let lead = TIMESTAMP + offer_bytes;
        let stride = lead + (key_bytes + value_bytes).next_multiple_of(ALIGN);
        self.layout = layout;
        self.rest = Messages { kind, lead, key_bytes, value_bytes, stride, ..Messages::NONE };
        self.resume(image);
    }

    /// Continues with `image`, which has the last image's layout, once all messages were passed.
    #[inline(always)]
    pub(crate) fn resume(&mut self, image: Shared) {
        let rest = &mut self.rest;
        rest.timestamp_at = std::mem::offset_of!(Header, timestamp);
        rest.at = size_of::<Header>() + self.layout.offer_bytes;
        rest.count = self.layout.count;
        rest.image = Some(image);
    }

    /// Whether all messages were passed.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.rest.count == 0
    }

    /// Checks and opens up to `count_max` messages, and returns their number. Those opened before
    /// must have been passed.
    ///
    /// # Errors
    /// The reason why one of them is invalid.
    #[inline(always)]
    pub(crate) fn open(&mut self, count_max: usize) -> Result<usize, DecodeError> {
        let count = self.rest.count.min(count_max);
        self.rest.check(count, self.layout.range)?;
        self.rest.open = count;
        Ok(count)
    }
}

/// The messages of a batch: short, from one peer, different only in timestamp, offer, key and
/// values. Requests name one key each, replies none.
pub struct Messages {
    /// The image, which begins with the common header; present while messages are left.
    image: Option<Shared>,
    /// Offset of the next message's timestamp.
    timestamp_at: usize,
    /// Offset of the next message's key, or of its values if it has none. Its offer, if any, ends
    /// here.
    at: usize,
    /// Bytes of a record before its key.
    lead: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// Distance from one record to the next.
    stride: usize,
    /// Number of messages left in the image.
    count: usize,
    /// Number of these that are checked and may be read.
    open: usize,
    kind: Kind,
}

/// One of [`Messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The request's number.
    pub timestamp: u64,
    /// The key of a request; 0 in a reply.
    pub key: u64,
    /// The values, 8-byte aligned.
    pub values: &'a [u8],
}

impl Messages {
    const NONE: Messages = Messages {
        image: None,
        timestamp_at: 0,
        at: 0,
        lead: TIMESTAMP,
        key_bytes: 0,
        value_bytes: 0,
        stride: TIMESTAMP,
        count: 0,
        open: 0,
        kind: Kind::Reply,
    };

    /// Whether no open message is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Number of open messages left.
    #[inline]
    pub fn len(&self) -> usize {
        self.open
    }

    /// Request or reply.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes of values of each message.
    #[inline]
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Whether each message has an offer.
    #[inline]
    pub fn have_offers(&self) -> bool {
        self.lead > TIMESTAMP
    }

    /// Whether the messages are replies without content.
    #[inline]
    pub fn are_acks(&self) -> bool {
        self.key_bytes | self.value_bytes == 0
    }

    /// The common header, as [`Message::header`].
    ///
    /// # Panics
    /// If no message is left.
    #[inline]
    pub fn header(&self) -> &Header {
        let (header, _) = Header::ref_from_prefix(self.image()).expect("decode has read it");
        header
    }

    /// The key range, in which all keys lie.
    ///
    /// # Panics
    /// As [`Messages::header`].
    #[inline]
    pub fn range(&self) -> KeyRange {
        self.header().range()
    }

    /// The next message, until it is passed.
    #[inline(always)]
    pub fn first(&self) -> Option<Record<'_>> {
        if self.open == 0 {
            return None;
        }
        let key_bytes = self.key_bytes;
        let bytes = self.key_bytes + self.value_bytes;
        let sections = &self.image()[self.at..][..bytes];
        let key = if key_bytes == 0 { 0 } else { number(sections) };
        let timestamp = number(&self.image()[self.timestamp_at..]);
        Some(Record { timestamp, key, values: &sections[key_bytes..] })
    }

    /// The offer of the next message, if the messages have any.
    #[inline]
    pub fn offer(&self) -> Option<Offer> {
        self.offers().next()
    }

    /// The offers of the open messages, in order, if they have any.
    pub(crate) fn offers(&self) -> impl Iterator<Item = Offer> {
        let count = if self.have_offers() { self.open } else { 0 };
        let all = (0..count).map(|n| self.at - size_of::<Offer>() + n * self.stride);
        all.map(|at| Offer::read_from_prefix(&self.image()[at..]).expect("whole records").0)
    }

    /// The timestamps of the open messages, in order.
    pub(crate) fn timestamps(&self) -> impl Iterator<Item = u64> {
        let behind = (1..self.open).map(|n| self.at + n * self.stride - self.lead);
        let all = (0..self.open.min(1)).map(|_| self.timestamp_at).chain(behind);
        all.map(|at| number(&self.image()[at..]))
    }

    /// Passes the next message, if there is one.
    #[inline(always)]
    pub fn advance(&mut self) {
        let passed = usize::from(self.open > 0);
        self.open -= passed;
        self.count -= passed;
        if self.count == 0 {
            self.image = None;
        }
        self.at += self.stride;
        self.timestamp_at = self.at - self.lead;
    }

    /// Passes the next message and returns it as a message of its own.
    #[inline]
    pub(crate) fn message(&mut self) -> Option<Message> {
        let timestamp = self.first()?.timestamp;
        let sections = Sections {
            keys_at: self.at as u32,
            key_bytes: self.key_bytes as u32,
            length_bytes: 0,
            value_bytes: self.value_bytes as u32,
        };
        let image = if self.count == 1 { self.image.take()? } else { self.image.clone()? };
        self.advance();
        let flags = if self.have_offers() { flags::OFFER } else { 0 };
        let apart = None;
        let kind = self.kind;
        let is_lent = false;
        Some(Message { image, apart, timestamp, sections, kind, flags, is_lent })
    }

    #[inline(always)]
    fn image(&self) -> &[u8] {
        self.image.as_deref().unwrap_or(&[])
    }

    /// Checks that the keys of the next `count` messages lie within `range`, and that zeros follow
    /// their values.
    #[inline(always)]
    fn check(&self, count: usize, range: KeyRange) -> Result<(), DecodeError> {
        let len = self.key_bytes + self.value_bytes;
        let padding = self.stride - self.lead - len;
        if self.key_bytes | padding == 0 {
            return Ok(());
        }
        let image = self.image();
        let stride = self.stride;
        for at in (0..count).map(|n| self.at + n * stride) {
            if self.key_bytes > 0 && !range.contains(number(&image[at..])) {
                let key = number(&image[at..]);
                let begin = range.begin();
                let end = range.end();
                return Err(DecodeError::KeyOutsideRange { key, begin, end });
            }
            if padding > 0 {
                let end = at + len;
                check_padding(image, end..(end + padding).min(image.len()))?;
            }
        }
        Ok(())
    }
}

/// Returns the number at the start of `bytes`.
#[inline(always)]
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("whole records"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::error::Error;
    use crate::memory::Pool;
    use crate::message::{Draft, Values};
    use crate::transport::FRAME_PREFIX;
    use crate::wire::tests::buffer;
    use crate::wire::{
        BatchKey, CHECKSUM, Coding, Entry, Images, MAGIC, close_batch, encode, flags, seal,
        write_sections,
    };

    /// Returns the messages of a frame that follows others, up to the first error.
    fn read(images: &mut Images, frame: &[u8], carrier_checks: bool, pool: &Pool) -> Vec<String> {
        let say = |message: &Message| {
            format!("{:?} {:?} {message:?}", message.keys(), message.values())
                + &format!("{:?} {}", message.range(), message.sender())
        };
        let mut buffer = buffer(frame, pool);
        let mut messages = Vec::new();
        if images.repeats_layout(&mut buffer, carrier_checks) {
            images.batch.resume(buffer.share());
        } else {
            match images.begin(buffer, carrier_checks, pool) {
                Ok(first) => messages.extend(first.iter().map(say)),
                Err(error) => return vec![error.to_string()],
            }
        }
        while !images.is_empty() {
            messages.push(match images.next(pool) {
                Ok(Entry::Message(message)) => say(&message),
                Ok(Entry::Answer(timestamp)) => format!("answer {timestamp}"),
                Err(error) => return [messages, vec![error.to_string()]].concat(),
            });
        }
        messages
    }

    /// A batch of three requests.
    fn batch(pool: &Pool) -> Vec<u8> {
        let range = KeyRange::new(3, 9).unwrap();
        let values = Values::Copied(b"value");
        let draft = Draft { range, keys: &[5], values, ..Draft::new(Kind::Request) };
        let outgoing = encode(1, draft, &mut Coding::plain(), pool).unwrap();
        let mut image = outgoing.head[FRAME_PREFIX..].to_vec();
        image.resize(image.len().next_multiple_of(ALIGN), 0);
        for timestamp in [7u64, 8] {
            image.extend([timestamp.to_le_bytes(), 4u64.to_le_bytes()].as_flattened());
            image.extend(b"other\0\0\0");
        }
        close_batch(&mut image, 2 * 24);
        image[CHECKSUM].fill(0);
        seal(&mut image, false);
        image
    }

    #[test]
    #[cfg_attr(miri, ignore = "hundreds of frames take Miri minutes")]
    fn a_frame_is_read_the_same_whatever_came_before() {
        let pool = Pool::new(1 << 22);
        let batch = batch(&pool);
        let alone = encode(1, Draft::new(Kind::Reply), &mut Coding::plain(), &pool).unwrap();
        for (magic, wrong) in [(0, "another protocol"), (MAGIC, "version 0")] {
            let mut blank = [0; size_of::<Header>()];
            blank[..4].copy_from_slice(&magic.to_le_bytes());
            let messages = read(&mut { Images::NONE }, &blank, true, &pool);
            assert!(messages.len() == 1 && messages[0].contains(wrong), "{messages:?}");
        }
        let alone = &alone.head[FRAME_PREFIX..];
        for (frame, count, checks) in
            [(&batch[..], 3, true), (&batch, 3, false), (alone, 1, true), (alone, 1, false)]
        {
            let like = |other: &[u8]| {
                let mut images = Images::NONE;
                assert_eq!(read(&mut images, frame, checks, &pool).len(), count, "it is sound");
                assert_eq!(
                    read(&mut images, other, checks, &pool),
                    read(&mut { Images::NONE }, other, checks, &pool),
                    "{other:?}"
                );
            };
            (0..frame.len()).for_each(|len| like(&frame[..len]));
            like(&[frame, &[0; 8]].concat());
            for (at, damage) in (0..frame.len()).flat_map(|at| [1, 2, 0x80].map(|bit| (at, bit))) {
                let mut other = frame.to_vec();
                other[at] ^= damage;
                like(&other);
            }
        }
    }

    /// Goal: a batch is read message by message as it was written. Method: batches as the endpoint
    /// writes them, of each layout.
    #[test]
    fn a_batch_is_read_message_by_message() {
        let pool = Pool::new(1 << 22);
        let offer = |number: usize| Offer {
            key: (number as u64).into(),
            address: 7.into(),
            len: 1000.into(),
        };
        for (kind, value_bytes, offers) in [
            (Kind::Request, 0, false),
            (Kind::Request, 13, false),
            (Kind::Reply, 16, false),
            (Kind::Request, 5, true),
            (Kind::Reply, 0, true),
        ] {
            let keys = [[3], [8], [4]];
            let draft = |number: usize| Draft {
                timestamp: 10 + number as u64,
                range: KeyRange::new(3, 9).unwrap(),
                offer: offers.then(|| offer(number)),
                keys: if kind == Kind::Request { &keys[number] } else { &[] },
                values: Values::Copied(&[[1; 16], [2; 16], [3; 16]][number][..value_bytes]),
                ..Draft::new(kind)
            };
            let image = encode(1, draft(0), &mut Coding::plain(), &pool).unwrap().head;
            let mut frame = image[FRAME_PREFIX..].to_vec();
            frame.resize(frame.len().next_multiple_of(8), 0);
            let key = BatchKey::of(&draft(0)).unwrap();
            for number in 1..3 {
                let mut record = vec![0xff; key.record_bytes()];
                assert!(key.fits(&draft(number)));
                record[..8].copy_from_slice(&draft(number).timestamp.to_le_bytes());
                write_sections(&mut draft(number), &mut record[8..]);
                frame.extend(record);
            }
            close_batch(&mut frame, 2 * key.record_bytes());
            frame[CHECKSUM].fill(0);
            seal(&mut frame, false);
            assert!(Message::decode(buffer(&frame, &pool), &pool).is_err(), "it is no single one");
            let mut images = Images::new(buffer(&frame, &pool));
            for number in 0..3 {
                let Ok(Entry::Message(message)) = images.next(&pool) else { panic!("{number}") };
                assert_eq!((message.kind(), message.timestamp()), (kind, 10 + number as u64));
                assert_eq!(message.keys(), draft(number).keys);
                assert_eq!(message.offer(), offers.then(|| offer(number)));
                assert_eq!(message.values(), vec![1 + number as u8; value_bytes]);
            }
            assert!(images.is_empty());
        }
    }

    #[test]
    fn records_are_checked_like_messages() {
        let pool = Pool::new(1 << 22);
        let values = Values::Copied(b"value");
        let range = KeyRange::new(3, 9).unwrap();
        let draft = Draft { range, keys: &[3], values, ..Draft::new(Kind::Request) };
        let mut frame = encode(1, draft, &mut Coding::plain(), &pool).unwrap().head[16..].to_vec();
        frame.resize(80 + 24, 0);
        frame[88] = 4; // key of the second message
        let refused = |damage: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = frame.clone();
            close_batch(&mut frame, 24);
            damage(&mut frame);
            frame[CHECKSUM].fill(0);
            seal(&mut frame, false);
            let mut images = Images::new(buffer(&frame, &pool));
            let mut next = || images.next(&pool).map(|_| ());
            match next().and_then(|()| next()) {
                Ok(()) => None,
                Err(Error::Decode(error)) => Some(error),
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(refused(&|_| {}), None);
        let outside = |key| Some(DecodeError::KeyOutsideRange { key, begin: 3, end: 9 });
        assert_eq!(refused(&|frame| frame[64] = 2), outside(2));
        assert_eq!(refused(&|frame| frame[88] = 9), outside(9));
        assert_eq!(refused(&|frame| frame[79] = 1), Some(DecodeError::Padding { at: 79, byte: 1 }));
        assert_eq!(
            refused(&|frame| frame[103] = 1),
            Some(DecodeError::Padding { at: 103, byte: 1 })
        );
        assert_eq!(
            refused(&|frame| frame[40] = 3),
            Some(DecodeError::EmptyRange { begin: 3, end: 3 })
        );
        for (at, byte) in [(7, flags::OFFER), (52, 23)] {
            assert!(matches!(refused(&|frame| frame[at] = byte), Some(DecodeError::Batch { .. })));
        }
        assert!(matches!(refused(&|frame| frame.truncate(96)), Some(DecodeError::TooShort { .. })));
    }
}
