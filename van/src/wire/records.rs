//! Reads runs, which `batch.rs` writes: their messages where they lie, or each as a message again.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::batch::{TIMESTAMP, keys_of};
use super::{ALIGN, DecodeError, Header, Kind, Offer, check_padding, flags};
use crate::memory::Shared;
use crate::message::{KeyRange, Message, Sections};

/// What the messages of a received image have in common, if it is a run or could be the first of one.
#[derive(Clone, Copy)]
pub(super) struct Form {
    kind: Kind,
    range: KeyRange,
    offer_bytes: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// How many they are.
    count: usize,
    /// Where the image ends.
    pub(super) end: usize,
    /// What a header says of all this.
    said: [u64; 5],
}

/// What headers of images of one form have in common.
#[inline(always)]
fn said(header: &Header) -> [u64; 5] {
    let [kind, _, _, _, begin, end, keys, values]: &[U64; 8] = zerocopy::transmute_ref!(header);
    let values = values.get() & u64::from(u32::MAX); // the checksum stands above
    [kind.get(), begin.get(), end.get(), keys.get(), values]
}

impl Form {
    /// That of no message: no image is as long.
    const NONE: Form = Form {
        kind: Kind::Reply,
        range: KeyRange::ALL,
        offer_bytes: 0,
        key_bytes: 0,
        value_bytes: 0,
        count: 0,
        end: usize::MAX,
        said: [0; 5],
    };

    /// Whether an image of `bytes` bytes that begins with `header` has this form: it is not looked at otherwise then.
    #[inline(always)]
    pub(super) fn is_of(&self, header: &Header, bytes: usize) -> bool {
        let differ = |so_far, (said, own): (&u64, &u64)| so_far | (said ^ own);
        self.end == bytes && said(header).iter().zip(&self.said).fold(0, differ) == 0
    }

    /// That of the image which begins with `header`, of which there are `have` bytes; nothing if it is a message of another form.
    ///
    /// # Errors
    /// Says what is wrong with it.
    #[inline(always)]
    pub(super) fn of(
        header: &Header,
        kind: Kind,
        have: usize,
    ) -> Result<Option<Form>, DecodeError> {
        let [keys, records, values] =
            [header.key_bytes, header.length_bytes, header.value_bytes].map(|n| n.get() as usize);
        let offers = if header.flags & flags::OFFER == 0 { 0 } else { size_of::<Offer>() };
        let is_form = header.flags & !flags::OFFER == 0
            && keys_of(kind).is_some_and(|count| keys == 8 * count);
        let first = size_of::<Header>() + offers + keys; // no longer than an offer and a key, once `is_form`
        let (kind, count, end, what) = match kind {
            Kind::Request | Kind::Reply if is_form && records == 0 => {
                (kind, 1, first + values, "its sections")
            }
            Kind::Requests | Kind::Replies => {
                let sections = keys.saturating_add(values.next_multiple_of(ALIGN)); // of 32 bits each
                let len = offers.saturating_add(sections);
                if !is_form || records == 0 || !records.is_multiple_of(TIMESTAMP + len) {
                    return Err(DecodeError::Run { keys, values, records });
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
        let (begin, last) = (header.range_begin.get(), header.range_end.get());
        let range =
            KeyRange::new(begin, last).ok_or(DecodeError::EmptyRange { begin, end: last })?;
        let (offer_bytes, key_bytes, value_bytes) = (offers, keys, values);
        let said = said(header);
        Ok(Some(Form { kind, range, offer_bytes, key_bytes, value_bytes, count, end, said }))
    }
}

/// The messages of a received image that has a form.
pub(crate) struct Run {
    pub(super) form: Form,
    /// Those that have not been passed.
    pub(crate) left: Messages,
}

impl Run {
    /// One of no messages.
    pub(super) const NONE: Run = Run { form: Form::NONE, left: Messages::NONE };

    /// Goes on with those of `image`, which has the form `form`, once all were passed.
    pub(super) fn begin(&mut self, form: Form, image: Shared) {
        let Form { kind, offer_bytes, key_bytes, value_bytes, .. } = form;
        let lead = TIMESTAMP + offer_bytes;
        let stride = lead + (key_bytes + value_bytes).next_multiple_of(ALIGN);
        self.form = form;
        self.left = Messages { kind, lead, key_bytes, value_bytes, stride, ..Messages::NONE };
        self.resume(image);
    }

    /// Goes on with those of `image`, which has the form of the last one, once all were passed.
    #[inline(always)]
    pub(crate) fn resume(&mut self, image: Shared) {
        let left = &mut self.left;
        left.timestamp_at = std::mem::offset_of!(Header, timestamp);
        left.at = size_of::<Header>() + self.form.offer_bytes;
        left.count = self.form.count;
        left.image = Some(image);
    }

    /// Whether all were passed.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.left.count == 0
    }

    /// Opens the next messages, up to `most` of them; returns how many. Those that were opened before have been passed.
    ///
    /// # Errors
    /// Says what is wrong with one of them.
    #[inline(always)]
    pub(crate) fn open(&mut self, most: usize) -> Result<usize, DecodeError> {
        let count = self.left.count.min(most);
        self.left.check(count, self.form.range)?;
        self.left.open = count;
        Ok(count)
    }
}

/// Short messages of one peer that came one behind the other and differ in nothing but timestamp, offer, key and values: requests
/// about one key each, or replies that name none.
pub struct Messages {
    /// Begins with the header that they have in common; there is one as long as there are messages.
    image: Option<Shared>,
    /// Where the next one's timestamp stands.
    timestamp_at: usize,
    /// Where its key does, or its values. Its offer, if they have any, ends there.
    at: usize,
    /// Bytes of a record before its key.
    lead: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// From one to the next.
    stride: usize,
    /// How many there are in the image.
    count: usize,
    /// How many of them may be read.
    open: usize,
    kind: Kind,
}

/// What one of [`Messages`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The request's number.
    pub timestamp: u64,
    /// What a request is about; 0 in a reply.
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

    /// Whether there are none, or all have been passed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// How many there are that have not been passed.
    #[inline]
    pub fn len(&self) -> usize {
        self.open
    }

    /// Request or reply.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes of values that each has.
    #[inline]
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Whether each has an offer.
    #[inline]
    pub fn have_offers(&self) -> bool {
        self.lead > TIMESTAMP
    }

    /// Whether they are replies that say nothing about any keys.
    #[inline]
    pub fn are_acks(&self) -> bool {
        self.key_bytes | self.value_bytes == 0
    }

    /// What they have in common: as [`Message::header`].
    ///
    /// # Panics
    /// If there is none left.
    #[inline]
    pub fn header(&self) -> &Header {
        let (header, _) = Header::ref_from_prefix(self.image()).expect("decode has read it");
        header
    }

    /// All keys are within.
    ///
    /// # Panics
    /// As [`Messages::header`].
    #[inline]
    pub fn range(&self) -> KeyRange {
        self.header().range()
    }

    /// The next one, until it is passed.
    #[inline(always)]
    pub fn first(&self) -> Option<Record<'_>> {
        if self.open == 0 {
            return None;
        }
        let (key_bytes, bytes) = (self.key_bytes, self.key_bytes + self.value_bytes);
        let sections = &self.image()[self.at..][..bytes];
        let key = if key_bytes == 0 { 0 } else { number(sections) };
        let timestamp = number(&self.image()[self.timestamp_at..]);
        Some(Record { timestamp, key, values: &sections[key_bytes..] })
    }

    /// The offer of the next one, if they have any.
    #[inline]
    pub fn offer(&self) -> Option<Offer> {
        self.offers().next()
    }

    /// Their offers, in order, if they have any.
    pub(crate) fn offers(&self) -> impl Iterator<Item = Offer> {
        let count = if self.have_offers() { self.open } else { 0 };
        let all = (0..count).map(|n| self.at - size_of::<Offer>() + n * self.stride);
        all.map(|at| Offer::read_from_prefix(&self.image()[at..]).expect("whole records").0)
    }

    /// The numbers of the requests, in order.
    pub(crate) fn timestamps(&self) -> impl Iterator<Item = u64> {
        let behind = (1..self.open).map(|n| self.at + n * self.stride - self.lead);
        let all = (0..self.open.min(1)).map(|_| self.timestamp_at).chain(behind);
        all.map(|at| number(&self.image()[at..]))
    }

    /// Goes on behind the next one, if there is one.
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

    /// The next one as a message by itself, which is passed.
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
        let (apart, kind, is_lent) = (None, self.kind, false);
        Some(Message { image, apart, timestamp, sections, kind, flags, is_lent })
    }

    #[inline(always)]
    fn image(&self) -> &[u8] {
        self.image.as_deref().unwrap_or(&[])
    }

    /// Checks that the next `count` keys are within `range`, and that there are zeros behind the values.
    #[inline(always)]
    fn check(&self, count: usize, range: KeyRange) -> Result<(), DecodeError> {
        let len = self.key_bytes + self.value_bytes;
        let padding = self.stride - self.lead - len;
        if self.key_bytes | padding == 0 {
            return Ok(());
        }
        let (image, stride) = (self.image(), self.stride);
        for at in (0..count).map(|n| self.at + n * stride) {
            if self.key_bytes > 0 && !range.contains(number(&image[at..])) {
                let (key, begin, end) = (number(&image[at..]), range.begin(), range.end());
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

/// The number with which `bytes` begins.
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

    /// What is read of a frame behind others, up to what is wrong with it.
    fn read(images: &mut Images, frame: &[u8], carrier_checks: bool, pool: &Pool) -> Vec<String> {
        let say = |message: &Message| {
            format!("{:?} {:?} {message:?}", message.keys(), message.values())
                + &format!("{:?} {}", message.range(), message.sender())
        };
        let mut buffer = buffer(frame, pool);
        let mut said = Vec::new();
        if images.is_like_the_last(&mut buffer, carrier_checks) {
            images.run.resume(buffer.share());
        } else {
            match images.begin(buffer, carrier_checks, pool) {
                Ok(first) => said.extend(first.iter().map(say)),
                Err(error) => return vec![error.to_string()],
            }
        }
        while !images.is_empty() {
            said.push(match images.next(pool) {
                Ok(Entry::Message(message)) => say(&message),
                Ok(Entry::Answer(timestamp)) => format!("answer {timestamp}"),
                Err(error) => return [said, vec![error.to_string()]].concat(),
            });
        }
        said
    }

    /// A request and two that are like it, as one image.
    fn run(pool: &Pool) -> Vec<u8> {
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
    fn what_a_frame_says_does_not_depend_on_the_one_before() {
        let pool = Pool::new(1 << 22);
        let run = run(&pool);
        let alone = encode(1, Draft::new(Kind::Reply), &mut Coding::plain(), &pool).unwrap();
        for (magic, wrong) in [(0, "another protocol"), (MAGIC, "version 0")] {
            let mut blank = [0; size_of::<Header>()];
            blank[..4].copy_from_slice(&magic.to_le_bytes());
            let said = read(&mut { Images::NONE }, &blank, true, &pool);
            assert!(said.len() == 1 && said[0].contains(wrong), "{said:?}");
        }
        let alone = &alone.head[FRAME_PREFIX..];
        for (frame, count, checks) in
            [(&run[..], 3, true), (&run, 3, false), (alone, 1, true), (alone, 1, false)]
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

    /// Goal: what goes in as a run comes out message by message. Method: runs as the endpoint writes them, of each form.
    #[test]
    fn a_run_is_read_message_by_message() {
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
            let shape = BatchKey::of(&draft(0)).unwrap();
            for number in 1..3 {
                let mut record = vec![0xff; shape.record_bytes()];
                assert!(shape.fits(&draft(number)));
                record[..8].copy_from_slice(&draft(number).timestamp.to_le_bytes());
                write_sections(&mut draft(number), &mut record[8..]);
                frame.extend(record);
            }
            close_batch(&mut frame, 2 * shape.record_bytes());
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
        frame[88] = 4; // the second one's key
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
            assert!(matches!(refused(&|frame| frame[at] = byte), Some(DecodeError::Run { .. })));
        }
        assert!(matches!(refused(&|frame| frame.truncate(96)), Some(DecodeError::TooShort { .. })));
    }
}
