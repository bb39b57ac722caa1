//! What the fuzz targets do with their bytes. `tests/corpus.rs` runs the same over the kept corpus,
//! without a fuzzer.

use std::io::IoSlice;
use std::rc::Rc;

use caravan_van::handshake::{Credentials, Greeter};
use caravan_van::offers::Offers;
use caravan_van::socket::{CARRIER, Receiver, Sender};
use caravan_van::wire::{Images, MAGIC, VERSION};
use caravan_van::{Event, Message, PeerId, Pool, VanConfig};

/// Where the checksum stands in a message.
const CHECKSUM: std::ops::Range<usize> = 60..64;

const PEER: PeerId = PeerId(3);
const FRAME_BYTES: usize = 16 << 10;
/// Bytes of each of the two places that the peer of a stream may write to; their keys are 0 and 1.
const OFFERED: usize = 64;

thread_local! {
    static POOL: Pool = Pool::new(256 << 20);
}

/// Decodes arbitrary bytes as messages, their first bytes and checksum made right, so that a fuzzer
/// sees what lies behind them.
pub(crate) fn decode(bytes: &[u8]) {
    let pool = POOL.with(Pool::clone);
    if let Ok(mut landed) = pool.allocate(bytes.len()) {
        landed.copy_from_slice(bytes);
        if let Ok(message) = Message::decode_landed(landed, &pool) {
            message.into_values();
        }
    }
    let Ok(mut image) = pool.allocate(bytes.len()) else { return };
    image.copy_from_slice(bytes);
    if image.len() >= CHECKSUM.end {
        image[..4].copy_from_slice(&MAGIC.to_le_bytes());
        image[4] = VERSION;
        image[CHECKSUM].fill(0);
        let sum = crc_fast::crc32_iscsi(&image);
        image[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    }
    let mut images = Images::new(image);
    while !images.is_empty() {
        let Ok(message) = images.next(&pool) else { break };
        let keys = message.keys();
        let lengths = message.lengths();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(lengths.is_empty() || keys.is_empty() || lengths.len() == keys.len());
        message.offer();
        message.into_values();
    }
}

/// Receives arbitrary bytes from a peer that has proved itself, cut into pieces as the first byte
/// says. However a stream is cut, the same comes out of it.
pub(crate) fn stream(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let pool = POOL.with(Pool::clone);
    let piece = usize::from(cut) + 1;
    assert_eq!(received(bytes, piece, &pool), received(bytes, usize::MAX, &pool), "{piece}");
}

/// What came out of a stream: frames, writes with their place, and how it ended.
#[derive(Debug, PartialEq)]
struct Outcome {
    units: Vec<(usize, Vec<u8>)>,
    failed: bool,
}

fn received(bytes: &[u8], piece: usize, pool: &Pool) -> Outcome {
    let mut receiver = greeted(pool);
    let mut offers = Offers::default();
    for _ in 0..2 {
        let Ok(mut memory) = pool.allocate(OFFERED) else { panic!("the pool is empty") };
        memory.fill(0);
        offers.open(PEER, memory);
    }
    let mut events = Vec::new();
    let mut failed = false;
    let mut left = bytes;
    while !left.is_empty() && !failed {
        let count = fill(&mut receiver, &left[..left.len().min(piece)]);
        left = &left[count..];
        failed = receiver.received(count, pool, &mut offers, &mut events).is_err();
    }
    Outcome { units: events.into_iter().map(unit).collect(), failed }
}

fn unit(event: Event) -> (usize, Vec<u8>) {
    match event {
        Event::Received { frame, .. } => {
            assert!(frame.len() <= FRAME_BYTES);
            (usize::MAX, frame.to_vec())
        }
        Event::Written { memory, at, len, .. } => (at, memory[at..at + len].to_vec()),
        other => panic!("{other:?} of bytes behind the handshake"),
    }
}

/// Puts bytes where the receiver wants them; returns how many it had room for.
fn fill(receiver: &mut Receiver, bytes: &[u8]) -> usize {
    let spaces = receiver.spaces();
    let mut count = 0;
    for space in [spaces.head, spaces.place, spaces.staging] {
        let here = space.len().min(bytes.len() - count);
        space[..here].copy_from_slice(&bytes[count..count + here]);
        count += here;
    }
    count
}

/// A receiver whose peer has proved itself.
fn greeted(pool: &Pool) -> Receiver {
    let credentials = || Rc::new(Credentials::new(&VanConfig::default(), CARRIER));
    let (greeter, call) = Greeter::calling(credentials());
    let mut caller = Receiver::new(PEER, greeter, FRAME_BYTES);
    let mut called = Receiver::new(PEER, Greeter::called(credentials()), FRAME_BYTES);
    let mut from_caller = Sender::new(PEER);
    let mut from_called = Sender::new(PEER);
    from_caller.greet(call);
    let mut events = Vec::new();
    for _ in 0..2 {
        hear(&mut called, &mut from_called, &said(&mut from_caller), pool, &mut events);
        hear(&mut caller, &mut from_caller, &said(&mut from_called), pool, &mut events);
    }
    assert!(called.is_greeted() && caller.is_greeted());
    called
}

/// Makes one side of a handshake take in bytes, one by one, and queue its replies.
fn hear(
    receiver: &mut Receiver,
    sender: &mut Sender,
    bytes: &[u8],
    pool: &Pool,
    events: &mut Vec<Event>,
) {
    let mut offers = Offers::default();
    for byte in bytes {
        receiver.spaces().staging[0] = *byte;
        let outcome = receiver.received(1, pool, &mut offers, events);
        assert_eq!(outcome, Ok(()));
        if let Some(reply) = receiver.take_reply() {
            sender.reply(reply, 1);
        }
    }
}

/// All that is queued.
fn said(sender: &mut Sender) -> Vec<u8> {
    let mut said = Vec::new();
    while !sender.is_empty() {
        let before = said.len();
        let add =
            |slices: &[IoSlice<'_>]| slices.iter().for_each(|slice| said.extend_from_slice(slice));
        sender.with_slices(add);
        sender.sent(said.len() - before);
    }
    said
}
