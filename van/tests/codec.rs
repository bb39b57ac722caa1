//! Properties of the codec: what is encoded is decoded, and no bytes can panic it, fool it, or make it take much memory.
//!
//! `CARAVAN_FUZZ_MESSAGES=10000000 cargo test --release -p caravan-van --test codec` tries that many mutations.

#![allow(clippy::unwrap_used, reason = "tests")]

use caravan_van::wire::{DecodeError, Entry, Header, Images, Kind, Offer, flags};
use caravan_van::{
    Buffer, Coding, Draft, Error, FRAME_PREFIX, KeyRange, Message, Outgoing, Pool, Values, encode,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

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
            table: self.numbers[1] as u32,
            timestamp: self.numbers[2],
            clock: self.numbers[3],
            range: self.range,
            offer: self.offer,
            signature: self.signature,
            keys: &self.keys,
            lengths: &self.lengths,
            values,
        };
        encode(self.numbers[1] as u32 ^ 1, draft, coding, pool).unwrap()
    }

    fn check(&self, message: &Message) {
        assert_eq!((message.kind(), message.op()), (self.kind, self.numbers[0] as u8));
        let (table, sender) = (self.numbers[1] as u32, self.numbers[1] as u32 ^ 1);
        assert_eq!((message.table(), message.sender()), (table, sender));
        assert_eq!((message.timestamp(), message.clock()), (self.numbers[2], self.numbers[3]));
        assert_eq!((message.range(), message.offer()), (self.range, self.offer));
        assert_eq!(message.signature(), self.signature);
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
    let before = (proptest::option::of(offers), proptest::option::of(any::<u64>()));
    (kinds(), any::<[u64; 4]>(), before, sections).prop_map(
        |(kind, numbers, (offer, signature), ((range, keys), length, values, carrier))| {
            let lengths = match length {
                Some(most) => {
                    keys.iter().map(|&key| (key % (u64::from(most) + 1)) as u32).collect()
                }
                None => Vec::new(),
            };
            Content { kind, numbers, range, offer, signature, keys, lengths, values, carrier }
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

    /// A frame of several images gives them all, and only as a whole: cut or damaged anywhere it is refused, and so is what
    /// comes behind it.
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
        match images.next(pool)? {
            Entry::Message(message) => messages.push(message),
            Entry::Answer(_) => {}
        }
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

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Valid messages with every combination of sections and codings, short enough to be mutated often in every place.
fn corpus() -> Vec<Vec<u8>> {
    let pool = Pool::new(64 << 20);
    let mut images = Vec::new();
    for case in 0..3 * 3 * 2 * 2 * 2 {
        let (carrier, sizes) = (case % 3, case / 3 % 3);
        let (with_lengths, with_offer, compact) = (case / 9 % 2, case / 18 % 2, case / 36 % 2);
        let count = [0, 3, 300][sizes];
        let keys: Vec<u64> = (0..count).map(|i| 1000 + i * i).collect();
        let offer = Offer { key: U64::new(1), address: U64::new(2), len: U64::new(3) };
        let content = Content {
            kind: Kind::Request,
            numbers: [1, 2, 3, 4],
            range: KeyRange::new(1000, 200_000).unwrap(),
            offer: (with_offer == 1).then_some(offer),
            signature: (case % 5 == 0).then_some(5),
            lengths: if with_lengths == 1 { vec![2; keys.len()] } else { Vec::new() },
            values: (0..count * 3).map(|i| i as u8 / 16).collect(),
            keys,
            carrier: [Carrier::Copied, Carrier::Written, Carrier::Apart][carrier],
        };
        let mut coding = if compact == 1 { Coding::compact() } else { Coding::plain() };
        images.push(receive(content.encode(&mut coding, &pool)));
    }
    images
}

/// Numbers at the edges of types and of checks.
const EDGES: [u64; 10] = [0, 1, 7, 8, 64, 512, 1 << 31, u32::MAX as u64, u64::MAX >> 1, u64::MAX];

fn mutate(image: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(image.len());
        match random.below(8) {
            0 => image[at] ^= 1 << random.below(8),
            1 => image[at] = random.next() as u8,
            2 => image.truncate(at.max(1)),
            3 => image.resize(image.len() + random.below(40), random.next() as u8),
            4 => {
                // A number of 4 or 8 bytes, at its place in the header or anywhere.
                let size = 4 << random.below(2);
                let at = if random.below(2) == 0 { random.below(16) * 4 } else { at };
                let number = EDGES[random.below(EDGES.len())].to_le_bytes();
                image.iter_mut().skip(at).zip(&number[..size]).for_each(|(to, from)| *to = *from);
            }
            5 => {
                let flags = random.next() as u8 & flags::ALL;
                image.iter_mut().skip(7).take(1).for_each(|byte| *byte = flags);
            }
            6 => {
                // A section grows or shrinks by what the image does, so that the sizes still fit.
                let field = 48 + 4 * random.below(3);
                let by = 8 * random.below(4);
                if image.len() >= 64 {
                    let bytes = u32::from_le_bytes(image[field..field + 4].try_into().unwrap());
                    let more = bytes.saturating_add(by as u32);
                    image[field..field + 4].copy_from_slice(&more.to_le_bytes());
                    let at = at.max(64);
                    image.splice(at..at, std::iter::repeat_n(random.next() as u8, by));
                }
            }
            _ => {
                let (from, len) = (random.below(image.len()), random.below(16));
                let end = (from + len).min(image.len());
                let piece = image[from..end].to_vec();
                image.iter_mut().skip(at).zip(piece).for_each(|(to, from)| *to = from);
            }
        }
    }
}

/// Gives the image the length its header announces, as long as that is a short one.
fn fit(image: &mut Vec<u8>) {
    let Ok((header, _)) = Header::read_from_prefix(image) else { return };
    let [keys, lengths, values] = [header.key_bytes, header.length_bytes, header.value_bytes]
        .map(|bytes| bytes.get() as usize);
    let offer = if header.flags & flags::OFFER != 0 { size_of::<Offer>() } else { 0 };
    let signature = if header.flags & flags::SIGNATURE != 0 { size_of::<u64>() } else { 0 };
    let before = size_of::<Header>() + signature + offer + keys.next_multiple_of(8);
    let need = before + lengths.next_multiple_of(8) + values;
    if need <= 1 << 14 {
        image.resize(need, 0);
    }
}

/// Computes the checksum anew, so that a mutation gets past it. What it covers depends on the header, as in the codec.
fn reseal(image: &mut [u8]) {
    let Ok((header, _)) = Header::read_from_prefix(image) else { return };
    let apart =
        if header.flags & flags::VALUES_UNCOVERED != 0 { header.value_bytes.get() } else { 0 };
    let covered = image.len().saturating_sub(apart as usize).max(size_of::<Header>());
    image[CHECKSUM].fill(0);
    let checksum = crc_fast::crc32_iscsi(&image[..covered]);
    image[CHECKSUM].copy_from_slice(checksum.as_bytes());
}

/// What is accepted is true of itself.
fn check_accepted(message: Message) {
    let (keys, range) = (message.keys(), message.range());
    assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(keys.iter().all(|&key| range.contains(key)));
    let lengths = message.lengths();
    assert!(lengths.is_empty() || keys.is_empty() || lengths.len() == keys.len());
    assert_eq!(message.values().as_ptr().addr() % 8, 0);
    let bytes = message.values().len();
    assert_eq!(message.into_values().len(), bytes);
}

/// Most memory that decoding `len` bytes may take: Snappy expands by at most 64/3 and delta coding by at most 8 more, a
/// slot is less than twice what is asked for, and each of four sizes of slots may be cut a batch of 1 MiB ahead.
fn reserved_max(len: usize) -> usize {
    (4 << 20) + 2 * len * (64 + 64 * 8) / 3
}

#[test]
fn no_bytes_can_panic_it() {
    let messages: u64 = match std::env::var("CARAVAN_FUZZ_MESSAGES") {
        Ok(count) => count.parse().expect("CARAVAN_FUZZ_MESSAGES is a number"),
        Err(_) => 100_000,
    };
    let corpus = corpus();
    let (images, mut random) = (Pool::new(64 << 20), Random(1));
    let (mut accepted, mut past_checksum) = (0u64, 0u64);
    let mut image = Vec::new();
    for round in 0..messages {
        image.clone_from(&corpus[random.below(corpus.len())]);
        mutate(&mut image, &mut random);
        if random.below(4) != 0 {
            fit(&mut image);
        }
        if random.below(16) != 0 {
            reseal(&mut image);
        }
        // Now and then a pool with room for no more than the bound: refusals must not be about memory.
        let tight = round % 16 == 0;
        let pool = if tight { Pool::new(reserved_max(image.len())) } else { images.clone() };
        if round % 4 == 0 {
            // Bytes that a peer wrote into a landing: as much of them as it says is the head.
            let mut landed = image.clone();
            let head = random.below(landed.len() + 9) as u64;
            landed.extend_from_slice(&head.to_le_bytes());
            if let Ok(message) = Message::decode_landed(buffer(&landed, &images), &images) {
                check_accepted(message);
            }
        }
        match Message::decode(buffer(&image, &images), &pool) {
            Ok(message) => {
                check_accepted(message);
                accepted += 1;
                past_checksum += 1;
            }
            Err(Error::Decode(error)) => {
                use caravan_van::wire::DecodeError::*;
                past_checksum += u64::from(matches!(
                    error,
                    Padding { .. }
                        | PartialItem { .. }
                        | KeyOrder { .. }
                        | KeyOutsideRange { .. }
                        | KeyOverflow { .. }
                        | KeyCount { .. }
                        | Varint { .. }
                        | KeysTrailing { .. }
                        | LengthCount { .. }
                        | SnappyRatio { .. }
                        | Snappy { .. }
                ));
            }
            Err(error) => panic!("round {round}: {error} for {} bytes", image.len()),
        }
    }
    eprintln!("{messages} mutations: {accepted} accepted, {past_checksum} got past the checksum");
    assert!(
        past_checksum > messages / 4,
        "the mutations are to reach what lies behind the checksum"
    );
}

/// Each way to expand, at its worst.
#[test]
fn memory_stays_in_proportion_to_the_input() {
    let keys: Vec<u64> = (0..3_000_000).collect();
    let (lengths, values) = (vec![1; keys.len()], vec![0; 12_000_000]);
    let draft = Draft {
        keys: &keys,
        lengths: &lengths,
        values: Values::Copied(&values),
        ..Draft::new(Kind::Request)
    };
    let mut coding = Coding::compact();
    let mut outgoing = encode(1, draft, &mut coding, &Pool::new(256 << 20)).unwrap();
    let image = outgoing.head.split_off(FRAME_PREFIX);
    let (len, pool) = (image.len(), Pool::new(1 << 40));
    let message = Message::decode(image, &pool).unwrap();
    assert_eq!((message.keys().len(), message.values().len()), (3_000_000, 12_000_000));
    let taken = pool.bytes_cut();
    assert!(taken > 10 * len, "this message is to expand: {taken} for {len}");
    assert!(taken <= reserved_max(len), "{taken} for {len}");
}
