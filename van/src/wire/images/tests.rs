#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use crate::error::Error;
use crate::message::{Draft, KeyRange, Values};
use crate::transport::FRAME_PREFIX;
use crate::wire::tests::buffer;
use crate::wire::{
    BatchKey, Coding, Kind, MAGIC, Offer, close_batch, encode, seal, write_sections,
};

/// Returns the messages of a frame that follows others, up to the first error.
fn read(images: &mut Images, frame: &[u8], carrier_checks: bool, pool: &Pool) -> Vec<String> {
    let say = |message: &Message| {
        format!("{:?} {:?} {message:?}", message.keys(), message.values())
            + &format!("{:?} {}", message.range(), message.command())
    };
    let mut buffer = buffer(frame, pool);
    let mut messages = Vec::new();
    if images.repeats_layout(&mut buffer, carrier_checks) {
        images.resume(buffer);
    } else if let Err(error) = images.begin(buffer, carrier_checks, pool) {
        return vec![error.to_string()];
    }
    while !images.is_empty() {
        messages.push(match images.next(pool) {
            Ok(message) => say(&message),
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
    let outgoing = encode(draft, &mut Coding::plain(), pool).unwrap();
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
    let alone = encode(Draft::new(Kind::Reply), &mut Coding::plain(), &pool).unwrap();
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

/// A batch is read record by record as it was written. The batches are of each layout that the
/// endpoint writes.
#[test]
fn a_batch_is_read_message_by_message() {
    let pool = Pool::new(1 << 22);
    let offer =
        |number: usize| Offer { key: (number as u64).into(), address: 7.into(), len: 1000.into() };
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
        let image = encode(draft(0), &mut Coding::plain(), &pool).unwrap().head;
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
            let message = images.next(&pool).unwrap();
            assert_eq!((message.kind(), message.timestamp()), (kind, 10 + number as u64));
            assert_eq!(message.keys(), draft(number).keys);
            assert_eq!(message.offers().next(), offers.then(|| offer(number)));
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
    let mut frame = encode(draft, &mut Coding::plain(), &pool).unwrap().head[16..].to_vec();
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
    assert_eq!(refused(&|frame| frame[103] = 1), Some(DecodeError::Padding { at: 103, byte: 1 }));
    assert_eq!(refused(&|frame| frame[40] = 3), Some(DecodeError::EmptyRange { begin: 3, end: 3 }));
    for (at, byte) in [(7, flags::OFFER), (52, 23)] {
        assert!(matches!(refused(&|frame| frame[at] = byte), Some(DecodeError::Batch { .. })));
    }
    assert!(matches!(refused(&|frame| frame.truncate(96)), Some(DecodeError::TooShort { .. })));
}
