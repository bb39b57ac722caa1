//! Tests of the codec: the layout of a message, and each reason to refuse bytes. Properties:
//! `van/tests/codec`.

#![allow(clippy::unwrap_used, reason = "tests")]

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::error::Error;
use crate::memory::{Buffer, Pool};
use crate::message::{Draft, KeyRange, Message, Values};
use crate::transport::FRAME_PREFIX;

/// A header to damage, and the sections behind it.
struct Forged {
    header: Header,
    sections: Vec<u8>,
}

/// A valid request: keys 3, 5, 8 in [3, 9), lengths 1, 0, 2, and 5 bytes of values.
fn request() -> Forged {
    Forged::new(Draft {
        range: KeyRange::new(3, 9).unwrap(),
        keys: &[3, 5, 8],
        lengths: &[1, 0, 2],
        values: Values::Copied(b"value"),
        ..Draft::new(Kind::Request)
    })
}

impl Forged {
    fn new(draft: Draft<'_>) -> Forged {
        let outgoing = encode(draft, &mut Coding::plain(), &Pool::new(1 << 20)).unwrap();
        let (header, sections) = Header::read_from_prefix(&outgoing.head[FRAME_PREFIX..]).unwrap();
        Forged { header, sections: sections.to_vec() }
    }

    fn header(mut self, damage: impl FnOnce(&mut Header)) -> Forged {
        damage(&mut self.header);
        self
    }

    /// Replaces the key section by `keys`, and removes the sections behind it.
    fn keys(mut self, flags: u8, keys: &[u8]) -> Forged {
        self.header.flags = flags;
        self.header.key_bytes = U32::new(keys.len() as u32);
        self.header.length_bytes = U32::new(0);
        self.header.value_bytes = U32::new(0);
        self.sections = keys.to_vec();
        self.sections.resize(keys.len().next_multiple_of(8), 0);
        self
    }

    fn image(mut self, pool: &Pool) -> Buffer {
        self.header.checksum = U32::new(0);
        let sum = checksum(&[self.header.as_bytes(), &self.sections].concat());
        self.header.checksum = U32::new(sum);
        buffer(&[self.header.as_bytes(), &self.sections].concat(), pool)
    }

    fn refusal(self) -> DecodeError {
        let pool = Pool::new(1 << 20);
        refusal(self.image(&pool))
    }
}

pub(super) fn buffer(bytes: &[u8], pool: &Pool) -> Buffer {
    let mut buffer = pool.allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

fn refusal(image: Buffer) -> DecodeError {
    match Message::decode(image, &Pool::new(1 << 24)).unwrap_err() {
        Error::Decode(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_kind_is_read_by_its_number() {
    for raw in 0..=u8::MAX {
        let known = (Kind::Request as u8..=Kind::Requests as u8).contains(&raw).then_some(raw);
        assert_eq!(Kind::from_raw(raw).map(|kind| kind as u8), known);
    }
}

#[test]
fn a_plain_message_is_viewed_in_place() {
    let pool = Pool::new(1 << 22);
    let draft = Draft {
        op: 7,
        table: 2,
        command: -9,
        timestamp: 3,
        clock: 4,
        range: KeyRange::new(10, 20).unwrap(),
        keys: &[10, 12, 19],
        lengths: &[1, 0, 2],
        values: Values::Copied(&[1, 2, 3]),
        ..Draft::new(Kind::Request)
    };
    let outgoing = encode(draft, &mut Coding::plain(), &pool).unwrap();
    assert_eq!(outgoing.image_bytes(), 64 + 24 + 16 + 3);
    let mut image = outgoing.head;
    assert_eq!(&*image.split_to(FRAME_PREFIX), [0; FRAME_PREFIX]);
    let address = image.as_ptr().addr();
    let message = Message::decode(image, &pool).unwrap();
    assert_eq!((message.op(), message.table(), message.timestamp()), (7, 2, 3));
    assert_eq!((message.clock(), message.command(), message.kind()), (4, -9, Kind::Request));
    assert_eq!((message.range(), message.offer()), (KeyRange::new(10, 20).unwrap(), None));
    assert_eq!((message.keys(), message.lengths()), (&[10, 12, 19][..], &[1, 0, 2][..]));
    assert_eq!(message.values(), [1, 2, 3]);
    assert_eq!(message.keys().as_ptr().addr(), address + 64);
    let values = message.into_values();
    assert_eq!((&*values, values.as_ptr().addr()), (&[1, 2, 3][..], address + 64 + 24 + 16));
}

#[test]
fn values_apart_follow_the_head() {
    let pool = Pool::new(1 << 22);
    let values = Buffer::adopt(vec![1.0f32, 2.0, 3.0]).share();
    let draft = Draft {
        keys: &[5],
        lengths: &[3],
        values: Values::Apart(values.clone()),
        ..Draft::new(Kind::Request)
    };
    let outgoing = encode(draft, &mut Coding::plain(), &pool).unwrap();
    let apart = outgoing.values.as_ref().unwrap();
    assert_eq!(apart.as_ptr(), values.as_ptr());
    assert_eq!((outgoing.head.len(), outgoing.image_bytes()), (16 + 64 + 16 + 8, 64 + 16 + 12));
    let head = &outgoing.head[FRAME_PREFIX..];
    let image = buffer(&[&head[..80], apart].concat(), &pool);
    let landed = buffer(&[apart, &[0; 4][..], head].concat(), &pool);
    let address = landed.as_ptr();
    for message in [Message::decode(image, &pool), Message::decode_landed(landed, &pool)] {
        let message = message.unwrap();
        assert_eq!(message.values(), &*values);
        assert_eq!((message.keys(), message.lengths()), (&[5][..], &[3][..]));
        if message.values().as_ptr() == address {
            assert_eq!(message.into_values().as_ptr(), address, "they stay where they landed");
        }
    }
}

#[test]
fn what_lands_in_the_wrong_shape_is_refused() {
    let pool = Pool::new(1 << 22);
    let values = Values::Apart(Buffer::adopt(vec![7u8; 12]).share());
    let draft = Draft { keys: &[5], values, ..Draft::new(Kind::Request) };
    let outgoing = encode(draft, &mut Coding::plain(), &pool).unwrap();
    let head = &outgoing.head[FRAME_PREFIX..];
    let landed = [&[7; 12][..], &[0; 4], head].concat();
    let refusal = |bytes: &[u8]| match Message::decode_landed(buffer(bytes, &pool), &pool) {
        Err(Error::Decode(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(Message::decode_landed(buffer(&landed, &pool), &pool).is_ok());
    let with = |at: usize, byte: u8| {
        let mut bytes = landed.clone();
        bytes[at] = byte;
        refusal(&bytes)
    };
    let trailer = landed.len() - 8;
    assert!(with(13, 1).contains("padding byte at 13"));
    assert!(with(trailer, 200).contains("too few"));
    assert!(with(trailer + 7, 255).contains("too few"), "a length that no memory has");
    assert!(
        with(trailer, 64).contains("it must receive it")
            || with(trailer, 64).contains("begins with")
    );
    assert!(with(trailer, 71).contains("past a multiple of 8"));
    assert!(refusal(&landed[8..]).contains("8 bytes lie before"), "values are missing");
    assert!(refusal(&landed[16..]).contains("0 bytes lie before"));
    assert!(refusal(&landed[landed.len() - 7..]).contains("too few"));
    assert!(refusal(&[]).contains("too few"));
    let plain = encode(Draft::new(Kind::Request), &mut Coding::plain(), &pool).unwrap();
    let head = &plain.head[FRAME_PREFIX..];
    let not_apart = [&[0; 8][..], head, &64u64.to_le_bytes()].concat();
    assert!(refusal(&not_apart).contains("8 bytes lie before a message whose header announces 0"));
}

#[test]
fn empty_values_apart_are_none() {
    let pool = Pool::new(1 << 22);
    let values = Values::Apart(pool.allocate(0).unwrap().share());
    let draft = Draft { values, ..Draft::new(Kind::Request) };
    let mut outgoing = encode(draft, &mut Coding::plain(), &pool).unwrap();
    assert!(outgoing.values.is_none());
    let message = Message::decode(outgoing.head.split_off(FRAME_PREFIX), &pool).unwrap();
    assert_eq!((message.header().flags, message.values()), (0, &[][..]));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of keys take Miri minutes")]
fn compact_messages_are_smaller_and_the_same() {
    let pool = Pool::new(1 << 24);
    let keys: Vec<u64> = (1 << 40..(1 << 40) + 5000).collect();
    let lengths = vec![3; 5000];
    let values = vec![7; 60_000];
    let draft = Draft {
        keys: &keys,
        lengths: &lengths,
        values: Values::Copied(&values),
        ..Draft::new(Kind::Request)
    };
    let mut outgoing = encode(draft, &mut Coding::compact(), &pool).unwrap();
    assert!(outgoing.image_bytes() < 6000, "{} bytes", outgoing.image_bytes());
    let message = Message::decode(outgoing.head.split_off(FRAME_PREFIX), &pool).unwrap();
    let coded =
        [flags::KEYS_DELTA, flags::KEYS_SNAPPY, flags::LENGTHS_SNAPPY, flags::VALUES_SNAPPY];
    assert_eq!(message.header().flags, coded.iter().sum::<u8>());
    assert_eq!((message.keys(), message.lengths()), (&keys[..], &lengths[..]));
    assert_eq!(message.values(), values);
    assert_eq!(&*message.into_values(), values);
}

#[test]
fn keys_far_apart_are_not_delta_coded() {
    let pool = Pool::new(1 << 22);
    let draft = Draft { keys: &[1 << 60, 1 << 62], ..Draft::new(Kind::Request) };
    let mut outgoing = encode(draft, &mut Coding::compact(), &pool).unwrap();
    let message = Message::decode(outgoing.head.split_off(FRAME_PREFIX), &pool).unwrap();
    assert_eq!((message.header().flags, message.keys()), (0, &[1 << 60, 1 << 62][..]));
}

#[test]
fn too_long_a_section_is_an_error_with_a_remedy() {
    let pool = Pool::new(1 << 20);
    for bytes in [u32::MAX as usize + 1, usize::MAX] {
        let mut never =
            |_: &mut [u8]| unreachable!("nothing is written before the sizes are checked");
        let values = Values::Written(bytes, &mut never);
        let draft = Draft { values, ..Draft::new(Kind::Request) };
        let error = encode(draft, &mut Coding::plain(), &pool).unwrap_err();
        let text =
            format!("{bytes} bytes of values are over a message's 4294967295; cut the key range");
        assert!(error.to_string().starts_with(&text), "{error}");
    }
    let mut never = |_: &mut [u8]| unreachable!("it does not fit beside the keys");
    let values = Values::Written(u32::MAX as usize - 64, &mut never);
    let draft = Draft { keys: &[7], values, ..Draft::new(Kind::Request) };
    let error = encode(draft, &mut Coding::plain(), &pool).unwrap_err();
    assert!(error.to_string().contains("over a message's 4294967223"), "{error}");
    let mut never = |_: &mut [u8]| unreachable!("there is no memory for it");
    let values = Values::Written(u32::MAX as usize - 64, &mut never);
    let draft = Draft { values, ..Draft::new(Kind::Request) };
    let error = encode(draft, &mut Coding::plain(), &pool).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

#[test]
#[should_panic(expected = "2 lengths for 1 keys")]
fn lengths_for_other_keys_are_a_bug() {
    let draft = Draft { keys: &[1], lengths: &[1, 1], ..Draft::new(Kind::Request) };
    let _ = encode(draft, &mut Coding::plain(), &Pool::new(1 << 20));
}

#[test]
#[should_panic(expected = "key 9 lies outside")]
fn keys_outside_the_range_are_a_bug() {
    let range = KeyRange::new(0, 9).unwrap();
    let draft = Draft { range, keys: &[1, 9], ..Draft::new(Kind::Request) };
    let _ = encode(draft, &mut Coding::plain(), &Pool::new(1 << 20));
}

#[test]
fn forging_itself_is_sound() {
    let pool = Pool::new(1 << 20);
    let message = Message::decode(request().image(&pool), &pool).unwrap();
    assert_eq!((message.keys(), message.values()), (&[3, 5, 8][..], &b"value"[..]));
}

#[test]
fn wrong_sizes_are_refused() {
    let pool = Pool::new(1 << 20);
    let what = "a message header";
    assert_eq!(
        refusal(buffer(&[0; 63], &pool)),
        DecodeError::TooShort { what, have: 63, need: 64 }
    );
    let mut misaligned = buffer(&[0; 100], &pool);
    misaligned.split_to(3);
    assert_eq!(refusal(misaligned), DecodeError::Misaligned { offset: 3 });
    let have = request().image(&pool).len();
    let mut cut = request();
    cut.sections.pop();
    let what = "its sections";
    assert_eq!(cut.refusal(), DecodeError::TooShort { what, have: have - 1, need: have });
    let mut longer = request();
    longer.sections.push(0);
    assert_eq!(longer.refusal(), DecodeError::TooLong { have: have + 1, need: have });
    let huge = request().header(|header| {
        header.key_bytes = U32::new(u32::MAX);
        header.length_bytes = U32::new(u32::MAX);
        header.value_bytes = U32::new(u32::MAX);
    });
    assert!(matches!(huge.refusal(), DecodeError::TooShort { need, .. } if need > 12 << 30));
}

#[test]
fn strangers_are_refused() {
    let forged = request().header(|header| header.magic = U32::new(1));
    assert_eq!(forged.refusal(), DecodeError::Magic { magic: 1 });
    let forged = request().header(|header| header.version = 1);
    assert_eq!(forged.refusal(), DecodeError::Version { version: 1 });
    for kind in [0, 8, 255] {
        let forged = request().header(|header| header.kind = kind);
        assert_eq!(forged.refusal(), DecodeError::UnknownKind { kind });
    }
}

#[test]
fn contradictory_flags_are_refused() {
    let forwarded = request().header(|header| {
        (header.flags, header.kind) = (flags::ORIGIN, Kind::Reply as u8);
    });
    let (flags, kind) = (flags::ORIGIN, Kind::Reply);
    assert_eq!(forwarded.refusal(), DecodeError::Contradiction { flags, kind });
    let apart_and_snappy = flags::VALUES_UNCOVERED | flags::VALUES_SNAPPY;
    for (kind, flags) in [(Kind::Request, apart_and_snappy), (Kind::Reply, apart_and_snappy)] {
        let forged = request().header(|header| (header.kind, header.flags) = (kind as u8, flags));
        assert_eq!(forged.refusal(), DecodeError::Contradiction { flags, kind });
    }
    let coded = [
        (Section::Keys, flags::KEYS_DELTA),
        (Section::Keys, flags::KEYS_SNAPPY),
        (Section::Lengths, flags::LENGTHS_SNAPPY),
        (Section::Values, flags::VALUES_SNAPPY),
        (Section::Values, flags::VALUES_UNCOVERED),
    ];
    for (section, flags) in coded {
        let empty = Forged::new(Draft::new(Kind::Reply)).header(|header| header.flags = flags);
        assert_eq!(empty.refusal(), DecodeError::CodedEmpty { section, flags });
    }
}

#[test]
fn empty_ranges_are_refused() {
    let forged = request().header(|header| header.range_begin = U64::new(9));
    assert_eq!(forged.refusal(), DecodeError::EmptyRange { begin: 9, end: 9 });
}

#[test]
#[cfg_attr(miri, ignore = "a pool for each byte takes Miri minutes")]
fn damage_anywhere_is_noticed() {
    let pool = Pool::new(1 << 20);
    let whole = request().image(&pool);
    for at in 0..whole.len() {
        let mut image = buffer(&whole, &pool);
        image[at] ^= 0x10;
        let error = refusal(image);
        let seen = matches!(error, DecodeError::Checksum { found, computed } if found != computed);
        assert!(seen || at < size_of::<Header>(), "byte {at}: {error}");
    }
}

#[test]
fn padding_is_zero() {
    let mut forged = request();
    forged.sections[24 + 12] = 9;
    assert_eq!(forged.refusal(), DecodeError::Padding { at: 64 + 24 + 12, byte: 9 });
    let mut forged = request().keys(flags::KEYS_DELTA, &[1, 2]);
    forged.sections[7] = 1;
    assert_eq!(forged.refusal(), DecodeError::Padding { at: 64 + 7, byte: 1 });
}

#[test]
fn sections_hold_whole_items() {
    let section = Section::Keys;
    let forged = request().keys(0, &[0; 12]);
    assert_eq!(forged.refusal(), DecodeError::PartialItem { section, bytes: 12, item: 8 });
    let forged = request().header(|header| header.length_bytes = U32::new(11));
    let section = Section::Lengths;
    assert_eq!(forged.refusal(), DecodeError::PartialItem { section, bytes: 11, item: 4 });
}

#[test]
fn keys_ascend_within_their_range() {
    let forged = request().keys(0, [3u64, 5, 5].as_bytes());
    assert_eq!(forged.refusal(), DecodeError::KeyOrder { index: 2, key: 5, previous: 5 });
    let forged = request().keys(0, [4u64, 3, 8].as_bytes());
    assert_eq!(forged.refusal(), DecodeError::KeyOrder { index: 1, key: 3, previous: 4 });
    for (keys, key) in [([2u64, 3, 8], 2), ([3, 5, 9], 9)] {
        let forged = request().keys(0, keys.as_bytes());
        assert_eq!(forged.refusal(), DecodeError::KeyOutsideRange { key, begin: 3, end: 9 });
    }
    let forged = request().keys(flags::KEYS_DELTA, &[2, 0, 5]);
    assert_eq!(forged.refusal(), DecodeError::KeyOutsideRange { key: 9, begin: 3, end: 9 });
}

#[test]
fn delta_coded_keys_are_checked() {
    let forged = |keys: &[u8]| request().keys(flags::KEYS_DELTA, keys).refusal();
    assert_eq!(forged(&[4, 0, 0, 0]), DecodeError::KeyCount { count: 4, have: 3 });
    assert_eq!(forged(&[1, 0x80]), DecodeError::Varint { at: 1 });
    assert_eq!(forged(&[1, 0, 0]), DecodeError::KeysTrailing { bytes: 1, count: 1 });
    let last = [1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert_eq!(forged(&last), DecodeError::KeyOverflow { index: 0, count: 1 });
}

#[test]
fn there_are_as_many_lengths_as_keys() {
    let forged = request().header(|header| header.length_bytes = U32::new(16));
    assert_eq!(forged.refusal(), DecodeError::LengthCount { lengths: 4, keys: 3 });
    let forged = request().header(|header| {
        header.key_bytes = U32::new(16);
        header.length_bytes = U32::new(20);
    });
    assert_eq!(forged.refusal(), DecodeError::LengthCount { lengths: 5, keys: 2 });
    let pool = Pool::new(1 << 20);
    let keyless = Forged::new(Draft { lengths: &[4, 2], ..Draft::new(Kind::Reply) });
    let message = Message::decode(keyless.image(&pool), &pool).unwrap();
    assert_eq!((message.keys(), message.lengths()), (&[][..], &[4, 2][..]));
}

#[test]
fn snappy_sections_are_checked() {
    let section = Section::Keys;
    let forged = request().keys(flags::KEYS_SNAPPY, &[100, 0, 1]);
    let announced = DecodeError::SnappyRatio { section, wire_bytes: 3, raw_bytes: 100 };
    assert_eq!(forged.refusal(), announced);
    let cut = request().keys(flags::KEYS_SNAPPY, &[8, 7 << 2, 1]).refusal();
    assert!(
        matches!(cut, DecodeError::Snappy { section: Section::Keys, wire_bytes: 3, .. }),
        "{cut}"
    );
    let values = request().header(|header| header.flags = flags::VALUES_SNAPPY).refusal();
    assert!(
        matches!(values, DecodeError::SnappyRatio { section: Section::Values, wire_bytes: 5, .. }),
        "{values}"
    );
}

#[test]
#[cfg_attr(miri, ignore = "thousands of keys take Miri minutes")]
fn a_pool_without_room_is_no_fault_of_the_sender() {
    let keys: Vec<u64> = (0..400_000).collect();
    let draft = Draft { keys: &keys, ..Draft::new(Kind::Request) };
    let mut outgoing = encode(draft, &mut Coding::compact(), &Pool::new(1 << 24)).unwrap();
    let error = Message::decode(outgoing.head.split_off(FRAME_PREFIX), &Pool::new(1 << 20));
    assert!(matches!(error, Err(Error::OutOfMemory { limit, .. }) if limit == 1 << 20));
}

/// A carrier that checks every byte gets no checksum, and the decoder computes none.
#[test]
fn a_carrier_that_checks_needs_no_checksum() {
    let pool = Pool::new(1 << 22);
    let mut coding = Coding::plain();
    coding.carrier_checks = true;
    let draft = Draft { keys: &[5], values: Values::Copied(&[7; 20]), ..Draft::new(Kind::Request) };
    let image = encode(draft, &mut coding, &pool).unwrap().head.split_off(FRAME_PREFIX);
    assert_eq!(image[CHECKSUM], [0; 4]);
    assert!(matches!(refusal(buffer(&image, &pool)), DecodeError::Checksum { found: 0, .. }));
    let mut message = decode(buffer(&image, &pool), true, &pool).unwrap();
    assert_eq!(message.open(1).unwrap(), 1);
    assert_eq!((message.values(), message.header().flags), (&[7; 20][..], 0));
    let mut images = Images::checked_by_carrier(image);
    assert!(images.next(&pool).is_ok() && images.is_empty());
}
