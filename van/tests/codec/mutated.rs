//! Images with bytes changed, dropped and made up: they are refused, or true of themselves.

use zerocopy::{FromBytes, IntoBytes};

use caravan_van::draws::Random;

use super::*;

/// Valid messages with every combination of sections and codings, short enough to be mutated often
/// in every place.
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
            origin: (case % 7 == 0).then_some(Origin::default()),
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
    for _ in 0..1 + random.index(4) {
        let at = random.index(image.len());
        match random.index(8) {
            0 => image[at] ^= 1 << random.index(8),
            1 => image[at] = random.next() as u8,
            2 => image.truncate(at.max(1)),
            3 => image.resize(image.len() + random.index(40), random.next() as u8),
            4 => {
                // A number of 4 or 8 bytes, at its place in the header or anywhere.
                let size = 4 << random.index(2);
                let at = if random.index(2) == 0 { random.index(16) * 4 } else { at };
                let number = EDGES[random.index(EDGES.len())].to_le_bytes();
                image.iter_mut().skip(at).zip(&number[..size]).for_each(|(to, from)| *to = *from);
            }
            5 => {
                let flags = random.next() as u8 & flags::ALL;
                image.iter_mut().skip(7).take(1).for_each(|byte| *byte = flags);
            }
            6 => {
                // A section grows or shrinks by what the image does, so that the sizes still fit.
                let field = 48 + 4 * random.index(3);
                let by = 8 * random.index(4);
                if image.len() >= 64 {
                    let bytes = u32::from_le_bytes(image[field..field + 4].try_into().unwrap());
                    let more = bytes.saturating_add(by as u32);
                    image[field..field + 4].copy_from_slice(&more.to_le_bytes());
                    let at = at.max(64);
                    image.splice(at..at, std::iter::repeat_n(random.next() as u8, by));
                }
            }
            _ => {
                let (from, len) = (random.index(image.len()), random.index(16));
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
    let origin = if header.flags & flags::ORIGIN != 0 { 16 } else { 0 };
    let before = size_of::<Header>() + origin + signature + offer + keys.next_multiple_of(8);
    let need = before + lengths.next_multiple_of(8) + values;
    if need <= 1 << 14 {
        image.resize(need, 0);
    }
}

/// Computes the checksum anew, so that a mutation gets past it. What it covers depends on the
/// header, as in the codec.
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

/// Most memory that decoding `len` bytes may take: Snappy expands by at most 64/3 and delta coding
/// by at most 8 more, a slot is less than twice what is asked for, and each of four sizes of slots
/// may be cut a batch of 1 MiB ahead.
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
    let (images, mut random) = (Pool::new(64 << 20), Random::new(1));
    let (mut accepted, mut past_checksum) = (0u64, 0u64);
    let mut image = Vec::new();
    for round in 0..messages {
        image.clone_from(&corpus[random.index(corpus.len())]);
        mutate(&mut image, &mut random);
        if random.index(4) != 0 {
            fit(&mut image);
        }
        if random.index(16) != 0 {
            reseal(&mut image);
        }
        // Now and then a pool with room for no more than the bound: refusals must not be about
        // memory.
        let tight = round % 16 == 0;
        let pool = if tight { Pool::new(reserved_max(image.len())) } else { images.clone() };
        if round % 4 == 0 {
            // Bytes that a peer wrote into a landing: as much of them as it says is the head.
            let mut landed = image.clone();
            let head = random.index(landed.len() + 9) as u64;
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
    let mut outgoing = encode(draft, &mut coding, &Pool::new(256 << 20)).unwrap();
    let image = outgoing.head.split_off(FRAME_PREFIX);
    let (len, pool) = (image.len(), Pool::new(1 << 40));
    let message = Message::decode(image, &pool).unwrap();
    assert_eq!((message.keys().len(), message.values().len()), (3_000_000, 12_000_000));
    let taken = pool.bytes_cut();
    assert!(taken > 10 * len, "this message is to expand: {taken} for {len}");
    assert!(taken <= reserved_max(len), "{taken} for {len}");
}
