//! Properties of the codec: what is encoded is decoded, and no bytes can panic it, fool it, or make
//! it take much memory.
//!
//! `CARAVAN_FUZZ_MESSAGES=10000000 cargo test --release -p caravan-van --test codec` tries that
//! many mutations.

mod mutated;

use caravan_van::wire::{DecodeError, Header, Images, Kind, Offer, Origin, flags};
use caravan_van::{
    Buffer, Coding, Draft, Error, FRAME_PREFIX, KeyRange, Message, Outgoing, Pool, Values, encode,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use zerocopy::little_endian::U64;

/// Where the checksum stands in an image.
const CHECKSUM: std::ops::Range<usize> = 60..64;

#[derive(Debug, Clone, Copy)]
enum Carrier {
    Copied,
    Written,
    Apart,
}

/// A draft that owns its parts.
#[derive(Debug, Clone)]
struct Content {
    kind: Kind,
    numbers: [u64; 4],
    range: KeyRange,
    offer: Option<Offer>,
    origin: Option<Origin>,
    signature: Option<u64>,
    keys: Vec<u64>,
    lengths: Vec<u32>,
    values: Vec<u8>,
    carrier: Carrier,
}

impl Content {
    fn encode(&self, coding: &mut Coding, pool: &Pool) -> Outgoing {
        let mut write = |place: &mut [u8]| place.copy_from_slice(&self.values);
        let values = match self.carrier {
            Carrier::Copied => Values::Copied(&self.values),
            Carrier::Written => Values::Written(self.values.len(), &mut write),
            Carrier::Apart => Values::Apart(Buffer::adopt(self.values.clone()).share()),
        };
        let draft = Draft {
            kind: self.kind,
            op: self.numbers[0] as u8,
            command: self.numbers[1] as i32 ^ 1,
            table: self.numbers[1] as u32,
            timestamp: self.numbers[2],
            clock: self.numbers[3],
            range: self.range,
            offer: self.offer,
            origin: self.origin,
            signature: self.signature,
            keys: &self.keys,
            lengths: &self.lengths,
            values,
        };
        encode(draft, coding, pool).unwrap()
    }

    fn check(&self, message: &Message) {
        assert_eq!((message.kind(), message.op()), (self.kind, self.numbers[0] as u8));
        let (table, command) = (self.numbers[1] as u32, self.numbers[1] as i32 ^ 1);
        assert_eq!((message.table(), message.command()), (table, command));
        assert_eq!((message.timestamp(), message.clock()), (self.numbers[2], self.numbers[3]));
        assert_eq!((message.range(), message.offer()), (self.range, self.offer));
        assert_eq!((message.origin(), message.signature()), (self.origin, self.signature));
        assert_eq!((message.keys(), message.lengths()), (&self.keys[..], &self.lengths[..]));
        assert_eq!(message.values(), &self.values[..]);
    }
}

/// The image as a peer receives it.
fn receive(outgoing: Outgoing) -> Vec<u8> {
    let head = &outgoing.head[FRAME_PREFIX..];
    match &outgoing.values {
        None => head.to_vec(),
        Some(values) => [&head[..head.len() - 8], values].concat(),
    }
}

/// The same as it lies in a landing: values that are apart first.
fn land(outgoing: &Outgoing) -> Option<Vec<u8>> {
    let values = outgoing.values.as_ref()?;
    let padding = vec![0; values.len().wrapping_neg() % 8];
    Some([values, &padding[..], &outgoing.head[FRAME_PREFIX..]].concat())
}

fn buffer(bytes: &[u8], pool: &Pool) -> Buffer {
    let mut buffer = pool.allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

fn kinds() -> impl Strategy<Value = Kind> {
    (1..=5u8).prop_map(|raw| Kind::from_raw(raw).unwrap())
}

/// Keys close together, far apart, or anywhere, and a range around them, tight or loose.
fn keys() -> impl Strategy<Value = (KeyRange, Vec<u64>)> {
    let dense = (any::<u64>(), btree_set(0..2000u64, 0..600)).prop_map(|(base, gaps)| {
        let base = base.min(u64::MAX - 2000);
        gaps.into_iter().map(|gap| base + gap).collect::<Vec<u64>>()
    });
    let sparse = btree_set(any::<u64>(), 0..100).prop_map(|keys| keys.into_iter().collect());
    let edges = Just(vec![0, 1, u64::MAX - 1, u64::MAX]);
    (prop_oneof![4 => dense, 4 => sparse, 1 => edges], any::<bool>()).prop_map(|(keys, tight)| {
        let range = match (keys.first(), keys.last()) {
            (Some(&first), Some(&last)) if tight => KeyRange::new(first, last.wrapping_add(1)),
            _ => Some(KeyRange::ALL),
        };
        (range.unwrap(), keys)
    })
}

fn contents() -> impl Strategy<Value = Content> {
    let offers = any::<[u64; 3]>().prop_map(|[key, address, len]| Offer {
        key: U64::new(key),
        address: U64::new(address),
        len: U64::new(len),
    });
    let values = prop_oneof![
        vec(any::<u8>(), 0..3000),
        (any::<u8>(), 0..3000usize).prop_map(|(byte, len)| vec![byte; len]),
    ];
    let carriers = prop_oneof![Just(Carrier::Copied), Just(Carrier::Written), Just(Carrier::Apart)];
    let sections = (keys(), proptest::option::of(0..5u32), values, carriers);
    let origins = any::<(u64, u32)>().prop_map(|(incarnation, node)| Origin { incarnation, node });
    let (origins, signatures) = (proptest::option::of(origins), proptest::option::of(any::<u64>()));
    let before = (origins, proptest::option::of(offers), signatures);
    (kinds(), any::<[u64; 4]>(), before, sections).prop_map(
        |(kind, numbers, (origin, offer, signature), ((range, keys), length, values, carrier))| {
            let lengths = match length {
                Some(most) => {
                    keys.iter().map(|&key| (key % (u64::from(most) + 1)) as u32).collect()
                }
                None => Vec::new(),
            };
            let origin = origin.filter(|_| kind == Kind::Request);
            Content {
                kind,
                numbers,
                range,
                offer,
                origin,
                signature,
                keys,
                lengths,
                values,
                carrier,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Messages of one lane, encoded one after another, so that sampling goes through its states.
    #[test]
    fn what_is_encoded_is_decoded(contents in vec(contents(), 1..40)) {
        let (sender, receiver) = (Pool::new(64 << 20), Pool::new(64 << 20));
        for mut coding in [Coding::plain(), Coding::compact()] {
            for content in &contents {
                let outgoing = content.encode(&mut coding, &sender);
                if let Some(landed) = land(&outgoing) {
                    let landed = buffer(&landed, &receiver);
                    content.check(&Message::decode_landed(landed, &receiver).unwrap());
                }
                let bytes = outgoing.image_bytes();
                let image = receive(outgoing);
                prop_assert_eq!(image.len(), bytes);
                let message = Message::decode(buffer(&image, &receiver), &receiver).unwrap();
                content.check(&message);
                let values = message.values().to_vec();
                prop_assert_eq!(&*message.into_values(), &values[..]);
            }
        }
    }

    /// The same messages in the same order have the same bytes: nothing but counters decides.
    #[test]
    fn encoding_is_deterministic(contents in vec(contents(), 1..20)) {
        let pool = Pool::new(64 << 20);
        let (mut one, mut other) = (Coding::compact(), Coding::compact());
        for content in &contents {
            let image = receive(content.encode(&mut one, &pool));
            prop_assert_eq!(image, receive(content.encode(&mut other, &pool)));
        }
    }

    /// A frame of several images gives them all, and only as a whole: cut or damaged anywhere it is
    /// refused, and so is what comes behind it.
    #[test]
    fn a_frame_is_read_whole_or_refused(contents in vec(contents(), 1..6), place: prop::sample::Index, more in 1..40usize) {
        let pool = Pool::new(64 << 20);
        let frame = pack(contents.iter().map(copied).collect(), &pool);
        let read = read_all(&frame, &pool).unwrap();
        prop_assert_eq!(read.len(), contents.len());
        contents.iter().zip(&read).for_each(|(content, message)| content.check(message));
        let at = place.index(frame.len());
        prop_assert!(read_all(&frame[..at], &pool).is_err(), "cut at {at} of {}", frame.len());
        let mut damaged = frame.clone();
        damaged[at] ^= 4;
        prop_assert!(read_all(&damaged, &pool).is_err(), "damaged at {at}");
        let mut longer = frame.clone();
        longer.resize(frame.len() + more, 0);
        sum_up(&mut longer);
        prop_assert!(read_all(&longer, &pool).is_err(), "{more} zeros behind it");
    }

    /// Bytes of no form at all.
    #[test]
    fn noise_is_refused(bytes in vec(any::<u8>(), 0..500)) {
        let pool = Pool::new(1 << 20);
        let error = Message::decode(buffer(&bytes, &pool), &pool);
        prop_assert!(matches!(error, Err(Error::Decode(_))));
    }
}

/// The content, sent as one that shares a frame.
fn copied(content: &Content) -> Content {
    Content { carrier: Carrier::Copied, ..content.clone() }
}

/// A frame of these contents, as an endpoint packs them.
fn pack(contents: Vec<Content>, pool: &Pool) -> Vec<u8> {
    let mut frame = Vec::new();
    for content in contents {
        frame.resize(frame.len().next_multiple_of(8), 0);
        let mut image = receive(content.encode(&mut Coding::plain(), pool));
        image[CHECKSUM].fill(0);
        frame.extend(image);
    }
    sum_up(&mut frame);
    frame
}

fn sum_up(frame: &mut [u8]) {
    frame[CHECKSUM].fill(0);
    let sum = crc_fast::crc32_iscsi(frame);
    frame[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

fn read_all(frame: &[u8], pool: &Pool) -> Result<Vec<Message>, Error> {
    let mut images = Images::new(buffer(frame, pool));
    let mut messages = Vec::new();
    while !images.is_empty() {
        messages.push(images.next(pool)?);
    }
    Ok(messages)
}

/// Headers that lie about lengths, and what only a message by itself may say.
#[test]
fn a_frame_of_several_is_held_to_its_form() {
    let pool = Pool::new(1 << 20);
    let content = |values: usize| Content {
        kind: Kind::Request,
        numbers: [1, 2, 3, 4],
        range: KeyRange::ALL,
        offer: None,
        origin: None,
        signature: None,
        keys: vec![7],
        lengths: Vec::new(),
        values: vec![9; values],
        carrier: Carrier::Copied,
    };
    // Images at 0 and 96, of 93 and 80 bytes.
    let frame = pack(vec![content(21), content(8)], &pool);
    assert_eq!((frame.len(), read_all(&frame, &pool).unwrap().len()), (176, 2));
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let uncovered = |frame: &mut Vec<u8>, at: usize| frame[at + 7] = flags::VALUES_UNCOVERED;
    let cases: [(&str, Damage<'_>); 8] = [
        ("contradict", &|frame| uncovered(frame, 0)),
        ("contradict", &|frame| uncovered(frame, 96)),
        ("does not match", &|frame| frame[96 + 60] = 1),
        ("padding byte", &|frame| frame[95] = 1),
        ("too few", &|frame| frame[56] = 200),
        ("too few", &|frame| frame[96 + 56] = 9),
        ("too many", &|frame| frame[96 + 56] = 7),
        ("another protocol", &|frame| frame[96] = 0),
    ];
    for (words, damage) in cases {
        let mut frame = frame.clone();
        damage(&mut frame);
        sum_up(&mut frame);
        let error = read_all(&frame, &pool).unwrap_err();
        assert!(matches!(error, Error::Decode(_)) && error.to_string().contains(words), "{error}");
    }
    let alone = Message::decode(buffer(&frame, &pool), &pool);
    assert!(matches!(alone, Err(Error::Decode(DecodeError::TooLong { have: 176, .. }))));
    assert!(read_all(&[], &pool).is_err(), "a frame holds something");
}
