//! What goes into a sender comes out of a receiver, however the stream is cut; nothing else gets
//! in.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::collection::vec;
use proptest::prelude::*;
use std::io::IoSlice;

use super::send::SLICES_MAX;
use super::*;
use std::rc::Rc;

use crate::config::VanConfig;
use crate::handshake::{Credentials, Greeter, refusal};
use crate::memory::{Buffer, Pool};
use crate::offers::Offers;
use crate::socket::CARRIER;
use crate::transport::{Event, Gather, PeerId};
use crate::wire::Offer;

const FRAME_BYTES: usize = 16 << 10;
const DEPTH: usize = 1000;
const PEER: PeerId = PeerId(3);

/// One thing to send.
#[derive(Debug, Clone)]
enum Item {
    Frame(usize),
    Write { at: usize, len: usize },
}

/// The two halves of a connection, with the bytes between them held in memory.
struct SocketState {
    pool: Pool,
    offers: Offers,
    sender: Sender,
    receiver: Receiver,
    wire: Vec<u8>,
    events: Vec<Event>,
}

/// One side of a connection that is made.
struct Side {
    sender: Sender,
    receiver: Receiver,
}

impl Side {
    fn calling(credentials: &Rc<Credentials>) -> Side {
        let (greeter, call) = Greeter::calling(credentials.clone());
        let mut sender = Sender::new(PEER);
        sender.greet(call);
        Side { sender, receiver: Receiver::new(PEER, greeter, FRAME_BYTES) }
    }

    fn called(credentials: &Rc<Credentials>) -> Side {
        let greeter = Greeter::called(credentials.clone());
        Side { sender: Sender::new(PEER), receiver: Receiver::new(PEER, greeter, FRAME_BYTES) }
    }

    /// All that is queued.
    fn said(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        while !self.sender.is_empty() {
            let before = said.len();
            let add = |slices: &[IoSlice<'_>]| {
                slices.iter().for_each(|slice| said.extend_from_slice(slice))
            };
            self.sender.with_slices(add);
            self.sender.sent(said.len() - before);
        }
        said
    }

    /// Takes in `bytes`, byte by byte as long as it is greeted.
    fn hear(&mut self, bytes: &[u8], pool: &Pool, events: &mut Vec<Event>) -> Result<(), String> {
        let mut offers = Offers::default();
        for byte in bytes {
            self.receiver.spaces().staging[0] = *byte;
            let outcome = self.receiver.received(1, pool, &mut offers, events);
            if let Some(reply) = self.receiver.take_reply() {
                self.sender.reply(reply, DEPTH);
            }
            outcome.map_err(|reason| reason.to_string())?;
        }
        Ok(())
    }
}

fn credentials(config: &VanConfig) -> Rc<Credentials> {
    Rc::new(Credentials::new(config, CARRIER))
}

/// Two sides that have proved themselves, the one that called first.
fn friends(config: &VanConfig, pool: &Pool) -> (Side, Side) {
    let (a, b) = (credentials(config), credentials(config));
    let (mut a, mut b) = (Side::calling(&a), Side::called(&b));
    let mut events = Vec::new();
    for _ in 0..2 {
        b.hear(&a.said(), pool, &mut events).unwrap();
        a.hear(&b.said(), pool, &mut events).unwrap();
    }
    assert!(a.receiver.is_greeted() && b.receiver.is_greeted());
    assert!(matches!(events[..], [Event::Connected { .. }, Event::Connected { .. }]), "{events:?}");
    (a, b)
}

impl SocketState {
    fn greeted() -> Self {
        SocketState::over(&VanConfig::default())
    }

    fn encrypted() -> Self {
        SocketState::over(&VanConfig { encrypt: true, ..VanConfig::default() })
    }

    fn over(config: &VanConfig) -> Self {
        let pool = Pool::new(64 << 20);
        let (Side { sender, .. }, Side { receiver, .. }) = friends(config, &pool);
        let offers = Offers::default();
        SocketState { pool, offers, sender, receiver, wire: Vec::new(), events: Vec::new() }
    }

    fn frame(&mut self, bytes: &[u8]) {
        let mut frame = self.pool.allocate(FRAME_PREFIX + bytes.len()).unwrap();
        frame[FRAME_PREFIX..].copy_from_slice(bytes);
        self.sender.frame(frame).unwrap();
    }

    fn write(&mut self, bytes: &[u8], into: &Offer, at: usize) {
        let mut data = self.pool.allocate(bytes.len()).unwrap();
        data.copy_from_slice(bytes);
        self.sender.write(data.share().into(), into, at as u64).unwrap();
    }

    fn offer(&mut self, len: usize) -> Offer {
        let mut into = self.pool.allocate(len).unwrap();
        into.fill(0);
        self.offers.open(PEER, into)
    }

    /// Takes all that is queued from the sender and hands it over in pieces of the sizes that
    /// `chunk` says.
    fn carry(&mut self, mut chunk: impl FnMut(usize) -> usize) -> Result<(), String> {
        while !self.sender.is_empty() {
            let before = self.wire.len();
            let wire = &mut self.wire;
            self.sender.with_slices(|slices| {
                for slice in slices {
                    let take = slice.len().min(chunk(slice.len()).max(1));
                    wire.extend_from_slice(&slice[..take]);
                    if take < slice.len() {
                        break;
                    }
                }
            });
            let left = self.wire.len() - before;
            self.sender.sent(left);
        }
        self.deliver(chunk)
    }

    /// Hands what lies in `wire` to the receiver.
    fn deliver(&mut self, mut chunk: impl FnMut(usize) -> usize) -> Result<(), String> {
        let wire = std::mem::take(&mut self.wire);
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            let Spaces { head, place, staging } = self.receiver.spaces_ahead(&mut self.offers);
            let room = head.len() + place.len() + staging.len();
            assert!(room > 0, "there is always room for more");
            let len = chunk(room).clamp(1, room.min(rest.len()));
            let mut now;
            (now, rest) = rest.split_at(len);
            for space in [head, place, staging] {
                let here;
                (here, now) = now.split_at(now.len().min(space.len()));
                space[..here.len()].copy_from_slice(here);
            }
            let received =
                self.receiver.received(len, &self.pool, &mut self.offers, &mut self.events);
            received.map_err(|reason| reason.to_string())?;
        }
        Ok(())
    }
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (((i + 1) * (seed + 7) * 31) >> 3) as u8).collect()
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        (0..300usize).prop_map(Item::Frame),
        (0..=FRAME_BYTES).prop_map(Item::Frame),
        (0..512usize, 0..300usize).prop_map(|(at, len)| Item::Write { at: 8 * at, len }),
        (0..512usize, 0..90_000usize).prop_map(|(at, len)| Item::Write { at: 8 * at, len }),
    ]
}

/// Of few lengths and places, so that one often is like the one before.
fn like_others() -> impl Strategy<Value = Item> {
    let len = || prop_oneof![0..3usize, Just(100), Just(9_001), Just(65_616)];
    prop_oneof![
        len().prop_map(|len| Item::Frame(len.min(FRAME_BYTES))),
        (0..2usize, len()).prop_map(|(at, len)| Item::Write { at: 8 * at, len }),
    ]
}

fn chunks() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![vec(1..40usize, 1..20), vec(1..100_000usize, 1..20), Just(vec![usize::MAX])]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_sequence_survives_any_cutting(
        items in vec(item(), 0..30),
        sizes in chunks(),
        encrypt in any::<bool>(),
    ) {
        let mut lane = if encrypt { SocketState::encrypted() } else { SocketState::greeted() };
        let mut keys = Vec::new();
        for (seed, item) in items.iter().enumerate() {
            match *item {
                Item::Frame(len) => lane.frame(&bytes(seed, len)),
                Item::Write { at, len } => {
                    let into = lane.offer(at + len + 3);
                    lane.write(&bytes(seed, len), &into, at);
                    keys.push(into.key.get());
                }
            }
        }
        let mut next = sizes.iter().copied().cycle();
        lane.carry(|_| next.next().unwrap()).unwrap();
        let (mut events, mut keys) = (lane.events.into_iter(), keys.into_iter());
        for (seed, item) in items.iter().enumerate() {
            match (item, events.next()) {
                (&Item::Frame(len), Some(Event::Received { peer: PEER, frame })) => {
                    prop_assert_eq!(frame.as_ptr() as usize % ALIGN, 0);
                    prop_assert!(*frame == bytes(seed, len)[..], "a frame of {} bytes is wrong", len);
                }
                (&Item::Write { at, len }, Some(Event::Written { peer: PEER, key, memory, at: found, len: bytes_found })) => {
                    prop_assert_eq!((Some(key), at, len), (keys.next(), found, bytes_found));
                    prop_assert!(memory[at..at + len] == bytes(seed, len)[..], "a write of {} bytes is wrong", len);
                }
                (item, event) => panic!("{item:?} came as {event:?}"),
            }
        }
        prop_assert!(events.next().is_none());
    }

    /// With one place to write to at a time, and so often one for which a write is expected that is
    /// another, or a frame.
    #[test]
    fn what_is_not_expected_arrives_as_well(
        items in vec((like_others(), any::<bool>()), 0..30),
        sizes in chunks(),
    ) {
        let mut lane = SocketState::greeted();
        let mut next = sizes.iter().copied().cycle();
        let mut into = Some(lane.offer(70_000));
        for (seed, (item, leaves)) in items.iter().enumerate() {
            if matches!(item, Item::Write { .. }) && into.is_none() {
                lane.carry(|_| next.next().unwrap()).unwrap();
                into = Some(lane.offer(70_000));
            }
            match *item {
                Item::Frame(len) => lane.frame(&bytes(seed, len)),
                Item::Write { at, len } => lane.write(&bytes(seed, len), &into.take().unwrap(), at),
            }
            if *leaves {
                lane.carry(|_| next.next().unwrap()).unwrap();
                into = into.or_else(|| Some(lane.offer(70_000)));
            }
        }
        lane.carry(|_| next.next().unwrap()).unwrap();
        prop_assert_eq!(lane.events.len(), items.len());
        for (seed, ((item, _), event)) in items.iter().zip(lane.events).enumerate() {
            match (item, event) {
                (&Item::Frame(len), Event::Received { frame, .. }) => {
                    prop_assert_eq!(frame.as_ptr() as usize % ALIGN, 0);
                    prop_assert!(*frame == bytes(seed, len)[..], "a frame of {} bytes is wrong", len);
                }
                (&Item::Write { at, len }, Event::Written { memory, at: found, len: bytes_found, .. }) => {
                    prop_assert_eq!((at, len), (found, bytes_found));
                    prop_assert!(memory[at..at + len] == bytes(seed, len)[..], "a write of {} bytes is wrong", len);
                }
                (item, event) => panic!("{item:?} came as {event:?}"),
            }
        }
    }

    #[test]
    fn garbage_is_refused_or_waited_for(garbage in vec(any::<u8>(), 0..2000), sizes in chunks()) {
        let pool = Pool::new(1 << 20);
        let mut stranger = Side::called(&credentials(&VanConfig::default()));
        let outcome = stranger.hear(&garbage, &pool, &mut Vec::new());
        prop_assert!(outcome.is_err() || garbage.len() < 4);
        let mut next = sizes.iter().copied().cycle();
        let mut peer = SocketState::greeted();
        let into = peer.offer(100);
        peer.wire = garbage;
        drop(peer.deliver(|_| next.next().unwrap()));
        prop_assert!(peer.offers.close(PEER, into.key.get()).is_ok());
    }

    #[test]
    fn hostile_prefixes_never_panic(
        kind in 0..5u8,
        zero in prop_oneof![3 => Just(0), 1 => any::<u8>()],
        len in prop_oneof![0..200u32, any::<u32>()],
        word in prop_oneof![Just(0), any::<u64>()],
        at in prop_oneof![Just(0), 0..200u16, any::<u16>()],
        tail in vec(any::<u8>(), 0..200),
    ) {
        let mut lane = SocketState::greeted();
        let offered = lane.offer(100);
        let key = if word == 0 { offered.key.get() } else { word };
        let mut head = prefix(kind, at, len, if kind == WRITE { key } else { word });
        head[1] = zero;
        lane.wire.extend_from_slice(&head);
        lane.wire.extend_from_slice(&tail);
        let reserved = lane.pool.bytes_reserved();
        let outcome = lane.deliver(|_| usize::MAX);
        let inside = key == offered.key.get() && at % 8 == 0 && u64::from(at) + u64::from(len) <= 100;
        let plain = word == 0 && at == 0;
        if zero != 0 || !(1..=REFUSAL).contains(&kind) || !(if kind == WRITE { inside } else { plain }) {
            prop_assert!(outcome.is_err(), "kind {} len {} word {} at {}", kind, len, word, at);
        }
        prop_assert_eq!(lane.pool.bytes_reserved(), reserved, "nothing is allocated on a stranger's word");
    }
}

/// Sends `rounds` large writes, `frames` frames behind each, in pieces; returns how many bytes of
/// them were copied.
fn copied_by(lane: &mut SocketState, frames: usize, rounds: usize, fragmented: bool) -> u64 {
    let before = lane.receiver.payload_bytes_copied();
    for round in 0..rounds {
        let into = lane.offer(300_003);
        lane.write(&bytes(round, 300_003), &into, 0);
        (0..frames).for_each(|_| lane.frame(&bytes(round, 88)));
    }
    // As off a slow wire: pieces end within prefixes, frames and padding.
    let mut piece = 0;
    lane.carry(|_| {
        piece = piece % 9_000 + 1448 / 3;
        if fragmented { piece } else { usize::MAX }
    })
    .unwrap();
    lane.events.clear();
    lane.receiver.payload_bytes_copied() - before
}

#[test]
fn a_steady_large_pattern_is_never_copied() {
    for frames in [0, 1] {
        let mut lane = SocketState::greeted();
        assert!(copied_by(&mut lane, frames, 1, false) <= 64 << 10, "what was staged");
        assert_eq!(copied_by(&mut lane, frames, 10, false), 0);
        assert_eq!(copied_by(&mut lane, frames, 20, true), 0);
    }
}

#[test]
fn a_write_like_the_last_is_read_with_its_prefix() {
    let mut lane = SocketState::greeted();
    for round in 0..3 {
        let into = lane.offer(90_000);
        lane.write(&bytes(round, 80_001), &into, 8);
        lane.carry(|_| usize::MAX).unwrap();
        let Some(Event::Written { memory, .. }) = lane.events.pop() else { panic!("no write") };
        assert!(memory[8..80_009] == bytes(round, 80_001)[..]);
        assert_eq!(memory[80_009..], [0; 90_000 - 80_009]);
    }
    lane.offer(90_000);
    let Spaces { head, place, staging } = lane.receiver.spaces_ahead(&mut lane.offers);
    assert_eq!((head.len(), place.len(), staging.len()), (FRAME_PREFIX, 80_001, 7 + FRAME_PREFIX));
    lane.offer(90_000);
    let Spaces { head, place, .. } = lane.receiver.spaces_ahead(&mut lane.offers);
    assert!(head.is_empty() && place.is_empty(), "it may be written to either");
}

/// A place of no bytes is none, and what comes into `head` would be lost.
#[test]
fn an_empty_write_is_not_expected() {
    let mut lane = SocketState::greeted();
    for _ in 0..2 {
        let into = lane.offer(100);
        lane.write(&[], &into, 0);
        lane.carry(|_| usize::MAX).unwrap();
    }
    lane.offer(100);
    assert!(lane.receiver.spaces_ahead(&mut lane.offers).head.is_empty());
}

#[test]
fn a_long_frame_where_a_write_was_expected_is_put_together() {
    let mut lane = SocketState::greeted();
    for len in [200_000, 200_000] {
        let into = lane.offer(len);
        lane.write(&bytes(1, len), &into, 0);
        lane.carry(|_| usize::MAX).unwrap();
    }
    lane.offer(200_000);
    lane.events.clear();
    (0..12).for_each(|seed| lane.frame(&bytes(seed, FRAME_BYTES)));
    lane.carry(|_| usize::MAX).unwrap();
    assert_eq!(lane.events.len(), 12);
    for (seed, event) in lane.events.iter().enumerate() {
        let Event::Received { frame, .. } = event else { panic!("{event:?}") };
        assert!(**frame == bytes(seed, FRAME_BYTES)[..]);
    }
}

#[test]
fn frames_after_writes_are_read_many_at_once_again() {
    let mut lane = SocketState::greeted();
    copied_by(&mut lane, 0, 2, false);
    assert_eq!(lane.receiver.spaces().staging.len(), FRAME_PREFIX);
    for round in 0..3 {
        lane.frame(&bytes(round, 24));
        lane.carry(|_| usize::MAX).unwrap();
    }
    assert!(lane.receiver.spaces().staging.len() > 1000);
}

#[test]
fn parts_of_a_write_are_sent_from_where_they_lie() {
    let mut lane = SocketState::greeted();
    let into = lane.offer(2000);
    let (head, tail) = (lane.pool.allocate(88).unwrap(), Buffer::adopt(vec![7u8; 1001]));
    let addresses = [head.as_ptr(), tail.as_ptr()];
    let gather = Gather { head: head.share(), tail: Some(tail.share()) };
    lane.sender.write(gather, &into, 8).unwrap();
    lane.sender.with_slices(|slices| {
        let lens: Vec<usize> = slices.iter().map(|slice| slice.len()).collect();
        assert_eq!(lens, [FRAME_PREFIX, 88, 1001, 7]);
        assert_eq!([slices[1].as_ptr(), slices[2].as_ptr()], addresses);
    });
}

#[test]
fn no_more_slices_are_listed_than_a_call_takes_and_none_is_lost() {
    let mut lane = SocketState::greeted();
    for count in [1, 2, 3, 40, 100] {
        (0..count).for_each(|number| lane.frame(&[number; 13]));
        let listed = lane.sender.with_slices(|slices| slices.len());
        assert_eq!(listed, SLICES_MAX.min(2 * usize::from(count)), "a frame and its padding each");
        lane.carry(|_| usize::MAX).unwrap();
        let first = |event: &Event| match event {
            Event::Received { frame, .. } => frame[0],
            other => panic!("{other:?}"),
        };
        assert!(lane.events.drain(..).map(|event| first(&event)).eq(0..count));
    }
}

#[test]
fn a_frame_over_the_limit_names_the_numbers() {
    let mut lane = SocketState::greeted();
    lane.frame(&[0; FRAME_BYTES + 1]);
    let reason = lane.carry(|_| usize::MAX).unwrap_err();
    assert!(reason.contains("16385") && reason.contains("16384"), "{reason}");
}

#[test]
fn strangers_take_no_memory_and_are_told_nothing() {
    let pool = Pool::new(1 << 20);
    let with = |config: VanConfig| credentials(&config);
    let mut older = Side::calling(&with(VanConfig::default())).said();
    older[4] = 6;
    let other = VanConfig { cluster: 8, ..VanConfig::default() };
    for (call, word, answer) in [
        (Side::calling(&with(other)).said(), "could not prove", &refusal()[..]),
        (older, "version 6", &refusal()[..]),
        (b"GET / HTTP/1.1\r\n".to_vec(), "does not speak", &[]),
    ] {
        let mut events = Vec::new();
        let mut called = Side::called(&with(VanConfig::default()));
        let reason = called.hear(&call, &pool, &mut events).unwrap_err();
        assert!(reason.contains(word), "{reason}");
        called.sender.refuse(&reason);
        assert_eq!(called.said(), answer);
        assert!(events.is_empty() && pool.bytes_reserved() == 0);
    }
    // Who is refused says so.
    let mut caller = Side::calling(&with(VanConfig::default()));
    let reason = caller.hear(&refusal(), &pool, &mut Vec::new()).unwrap_err();
    assert!(reason.contains("it refused this node"), "{reason}");
}

#[test]
fn an_encrypted_lane_shows_nothing_and_notices_what_is_changed() {
    let text = b"what nobody else shall read, however long it may be";
    for turned in [None, Some(0), Some(3), Some(20), Some(70)] {
        let mut lane = SocketState::encrypted();
        lane.frame(text);
        lane.sender.with_slices(|slices| lane.wire.extend_from_slice(&slices[0]));
        lane.sender.sent(lane.wire.len());
        assert!(!lane.wire.windows(8).any(|bytes| text.starts_with(bytes)));
        if let Some(at) = turned {
            lane.wire[at] ^= 1;
        }
        let delivered = lane.deliver(|_| usize::MAX);
        match turned {
            None => assert!(
                matches!(&lane.events[..], [Event::Received { frame, .. }] if frame[..] == text[..])
            ),
            Some(at) => assert!(
                delivered.is_err() || lane.events.is_empty(),
                "byte {at} of a message was changed, and it was taken"
            ),
        }
    }
}

#[test]
fn a_refusal_says_why_and_replaces_what_has_not_left() {
    let mut lane = SocketState::greeted();
    let kept = lane.pool.allocate(1000).unwrap().share();
    let into = lane.offer(1000);
    lane.sender.write(kept.clone().into(), &into, 0).unwrap();
    lane.sender.refuse("the house is full");
    assert!(kept.reclaim().is_ok(), "what was posted came home");
    let reason = lane.carry(|_| usize::MAX).unwrap_err();
    assert_eq!(reason, "it refused this node: the house is full");
}

#[test]
fn a_refusal_waits_for_the_unit_that_is_leaving() {
    let mut lane = SocketState::greeted();
    lane.frame(&[1; 100]);
    lane.frame(&[2; 100]);
    lane.sender.with_slices(|slices| lane.wire.extend_from_slice(&slices[0][..50]));
    lane.sender.sent(50);
    lane.sender.refuse("enough");
    assert!(lane.carry(|_| usize::MAX).is_err());
    let frames = lane.events.iter().filter(|event| matches!(event, Event::Received { .. }));
    assert_eq!(frames.count(), 1);
}

#[test]
fn the_queue_has_a_depth() {
    let pool = Pool::new(1 << 20);
    let mut sender = Sender::new(PEER);
    let reply = Reply { message: None, is_proved: true, cipher: None };
    sender.reply(reply, 2);
    let frame = || pool.allocate(FRAME_PREFIX).unwrap();
    assert!(sender.frame(frame()).is_ok() && sender.frame(frame()).is_ok());
    let error = sender.frame(frame()).unwrap_err();
    assert!(matches!(error, crate::Error::QueueFull { peer: PEER, depth: 2 }), "{error}");
    sender.sent(FRAME_PREFIX);
    assert_eq!(sender.frames_sent(), 1);
    assert!(sender.frame(frame()).is_ok());
}
