//! Goal: whatever a peer sends, writes or leaves undone, this node goes on: the peer is lost, nothing is read out of bounds,
//! nothing panics or waits, and nothing is left behind.
//! Method: a stranger that speaks the protocol by hand, and gets it wrong in one place at a time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_numa::Pages;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::connect::{Link, Packet, Taken, name_in};
use super::ring::{
    ASLEEP, CLOSED, CONSUMED, FRAME_LINES_MAX, HEAD, INLINE_BYTES_MAX, Kind, LINE_BYTES, LINES,
    Reference, SEGMENT_BYTES, Stamp, WriteRecord, line_at, write,
};
use super::segment::{Foreign, Own, seal};
use super::socket::Socket;
use super::*;
use crate::wire::Hello;

const SHARED: usize = 1 << 16;

fn node() -> Shm {
    Shm::new(&VanConfig { memory_bytes: 64 << 20, ..VanConfig::default() }).unwrap()
}

fn hello() -> Hello {
    VanConfig { node: 9, ..VanConfig::default() }.hello()
}

/// Somebody who knows the protocol and has no scruples.
struct Stranger {
    link: Link,
    head: u64,
}

impl Stranger {
    fn connect(node: &Shm) -> Stranger {
        let socket = Socket::connect(name_in(node.address()).unwrap()).unwrap();
        let own = Own::new(SEGMENT_BYTES).unwrap();
        Stranger { link: Link { own, foreign: None, socket: Rc::new(socket) }, head: 0 }
    }

    /// One that has said hello, and what the node calls it; it has shared a segment of [`SHARED`] bytes.
    fn peer(node: &mut Shm) -> (Stranger, PeerId) {
        let mut stranger = Stranger::connect(node);
        stranger.link.send(Packet::Hello(&hello()), Some(stranger.link.own.file())).unwrap();
        let Event::Connected { peer, .. } = next(node) else { panic!("it is a peer") };
        while stranger.link.foreign.is_none() {
            match stranger.link.take().unwrap() {
                Taken::Hello(hello) => stranger.link.foreign = Some(hello.1),
                Taken::Nothing => node.turn().map(drop).unwrap(),
                _ => panic!("the node says hello first"),
            }
        }
        let shared = Own::new(SHARED).unwrap();
        stranger.link.send(Packet::Segment(SHARED as u64), Some(shared.file())).unwrap();
        (stranger, peer)
    }

    /// Puts a record into its ring.
    fn put(&mut self, kind: Kind, record: &[u8]) {
        self.put_stamp(Stamp::of(kind), record);
    }

    fn put_stamp(&mut self, stamp: Stamp, record: &[u8]) {
        self.put_word(stamp.word(self.head), record);
        self.head += stamp.lines();
    }

    fn put_word(&mut self, word: u64, record: &[u8]) {
        write(&mut self.link.own, self.head, 0, record);
        self.link.own.store(line_at(self.head), word, Ordering::Release);
    }
}

/// The next thing that the node reports.
fn next(node: &mut Shm) -> Event {
    let (mut events, began) = (Vec::new(), Instant::now());
    while events.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "nothing came");
        node.wait(Duration::from_millis(1)).unwrap();
        node.poll(&mut events).unwrap();
    }
    events.remove(0)
}

/// What the node says of the loss of a peer, which is what comes next.
fn lost(node: &mut Shm) -> String {
    match next(node) {
        Event::Lost { error, .. } => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn reference(segment: u32, offset: u64, len: u64) -> Reference {
    Reference {
        segment: U32::new(segment),
        reserved: U32::new(0),
        offset: U64::new(offset),
        len: U64::new(len),
    }
}

/// What this process has open and mapped: descriptors, and mappings of files without a name.
fn belongings() -> (usize, usize) {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (files, maps.lines().filter(|line| line.contains("/memfd:")).count())
}

/// Serialises the tests that count descriptors and mappings, and those that make some, within this process.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn hellos_with_a_wrong_descriptor_are_turned_away() {
    let _alone = alone();
    let mut node = node();
    let before = belongings();
    let memory_file = |len| {
        let source = PageSource { shareable: true, ..PageSource::default() };
        Pages::new(len, &source).unwrap().file().unwrap().try_clone_to_owned().unwrap()
    };
    let (unsealed, short) = (memory_file(SEGMENT_BYTES), memory_file(SEGMENT_BYTES - 4096));
    seal(short.as_fd()).unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let pipe = OwnedFd::from(pipe);
    let zero = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    let program = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let open = belongings().0 - before.0;
    let wrong: [Option<&OwnedFd>; 6] =
        [None, Some(&unsealed), Some(&short), Some(&pipe), Some(&zero), Some(&program)];
    for file in wrong {
        let stranger = Stranger::connect(&node);
        let file: Option<BorrowedFd<'_>> = file.map(AsFd::as_fd);
        stranger.link.send(Packet::Hello(&hello()), file).unwrap();
        ends(&mut node, &stranger);
        assert!(node.ready.is_empty() && node.peers.is_empty(), "nobody was taken in");
    }
    assert_eq!(belongings(), (before.0 + open, before.1), "nothing is left of them");
    Stranger::peer(&mut node);
}

/// Waits until the node has closed its end.
fn ends(node: &mut Shm, stranger: &Stranger) {
    let began = Instant::now();
    loop {
        node.wait(Duration::from_millis(1)).unwrap();
        node.turn().unwrap();
        match stranger.link.take() {
            Ok(Taken::Ended(_)) => return,
            Ok(_) => assert!(began.elapsed() < Duration::from_secs(20), "it is still there"),
            Err(reason) => panic!("{reason}"),
        }
    }
}

#[test]
fn packets_that_are_none_lose_their_sender() {
    let _alone = alone();
    let mut node = node();
    let long = [7u8; 3000];
    let packets: [&[u8]; 6] = [&[], &[0], &[3, 3], &[2, 1], &[1], &long];
    for packet in packets {
        let (stranger, _) = Stranger::peer(&mut node);
        let _ = stranger.link.socket.send(packet, None);
        lost(&mut node);
    }
    // A second hello, and a segment whose length is a lie.
    let (stranger, _) = Stranger::peer(&mut node);
    stranger.link.send(Packet::Hello(&hello()), Some(stranger.link.own.file())).unwrap();
    assert!(lost(&mut node).contains("hello twice"));
    for len in [0, SEGMENT_BYTES as u64 + 1, 1 << 40, u64::MAX] {
        let (stranger, _) = Stranger::peer(&mut node);
        stranger.link.send(Packet::Segment(len), Some(stranger.link.own.file())).unwrap();
        lost(&mut node);
    }
}

#[test]
fn records_that_lie_lose_their_sender() {
    let _alone = alone();
    let mut node = node();
    let frames = [
        (reference(1, 0, 8), "segment 1, which it has not shared"),
        (reference(u32::MAX, 0, 8), "which it has not shared"),
        (reference(0, SHARED as u64 - 7, 8), "refers to 8 bytes at"),
        (reference(0, u64::MAX - 3, 8), "refers to 8 bytes at"),
        (reference(0, 0, 1 << 20), "over the limit"),
        (reference(0, 0, u64::MAX), "over the limit"),
    ];
    for (frame, words) in frames {
        let (mut stranger, _) = Stranger::peer(&mut node);
        stranger.put(Kind::Frame, frame.as_bytes());
        let said = lost(&mut node);
        assert!(said.contains(words), "{said}");
    }
    for word in [0x0000_0000_u64, 0x00ff_0000, 0x0001_ffff, 0x0002_0001, 0x0102_0000] {
        let (mut stranger, _) = Stranger::peer(&mut node);
        stranger.put_word(1 << 32 | word, &[]);
        assert!(lost(&mut node).contains("where a record should begin"));
    }
    let (mut stranger, _) = Stranger::peer(&mut node);
    stranger.put(Kind::Piece, reference(0, 0, 8).as_bytes());
    assert!(lost(&mut node).contains("a piece of no write"));
}

#[test]
fn writes_that_lie_lose_their_sender_and_change_nothing_beside() {
    let _alone = alone();
    let mut node = node();
    let whole = [reference(0, 0, 100), Reference::default()];
    for (key, at, len, parts, words) in [
        (1u64, 0u64, 100u64, whole, "lies outside the 0 bytes offered"), // added to the offer's key
        (0, 0, 101, whole, "lies outside the 100 bytes offered"),
        (0, 4, 8, whole, "cannot begin at 4"),
        (0, 8, u64::MAX - 7, whole, "is over the"),
        (0, 0, 99, whole, "goes on with 100 bytes"),
        (0, 0, 100, [reference(0, 0, 100), reference(0, 0, 1)], "goes on with 1 bytes"),
        (0, 0, 100, [reference(0, SHARED as u64, 100), Reference::default()], "refers to 100"),
    ] {
        let (mut stranger, peer) = Stranger::peer(&mut node);
        let mut memory = node.memory().allocate(4096).unwrap();
        memory.fill(0xee);
        let place = memory.split_to(100);
        let offer = node.offer(peer, place).unwrap();
        let (key, at, len) = (U64::new(offer.key.get() + key), U64::new(at), U64::new(len));
        stranger.put(Kind::Write, WriteRecord { key, at, len, parts }.as_bytes());
        let said = lost(&mut node);
        assert!(said.contains(words), "{said}");
        assert!(memory.iter().all(|&byte| byte == 0xee));
        node.disconnect(peer);
    }
    // Something else while pieces are due.
    let (mut stranger, peer) = Stranger::peer(&mut node);
    let offer = node.offer(peer, node.memory().allocate(200).unwrap()).unwrap();
    let (at, len) = (U64::new(0), U64::new(200));
    stranger.put(Kind::Write, WriteRecord { key: offer.key, at, len, parts: whole }.as_bytes());
    stranger.put(Kind::Frame, reference(0, 0, 8).as_bytes());
    assert!(lost(&mut node).contains("before a write had ended"));
}

#[test]
fn a_count_of_what_was_read_that_cannot_be_loses_its_sender() {
    let _alone = alone();
    let mut node = node();
    for consumed in [u64::MAX, 2, 1 << 40] {
        let (stranger, peer) = Stranger::peer(&mut node);
        let frame = node.memory().allocate(FRAME_PREFIX + 8000).unwrap();
        node.post_send(peer, frame).unwrap(); // by reference, so that the node waits for it to be read
        stranger.link.own.store(CONSUMED, consumed, Ordering::Release);
        assert!(lost(&mut node).contains("it says it has read"));
    }
    let (stranger, peer) = Stranger::peer(&mut node);
    for consumed in [1, 0] {
        let frame = node.memory().allocate(FRAME_PREFIX + 8000).unwrap();
        node.post_send(peer, frame).unwrap();
        stranger.link.own.store(CONSUMED, consumed, Ordering::Release);
        node.turn().unwrap();
    }
    assert!(lost(&mut node).contains("it says it has read 0 lines, and has read 1"));
}

#[test]
fn a_peer_that_reads_nothing_fills_its_queue_and_nobody_elses() {
    let _alone = alone();
    let mut node = node();
    let (_stranger, peer) = Stranger::peer(&mut node);
    let mut posted = 0u64;
    let error = loop {
        let mut frame = node.memory().allocate(FRAME_PREFIX + 100).unwrap();
        frame.fill(0); // one line each
        match node.post_send(peer, frame) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        node.turn().unwrap();
    };
    assert!(matches!(error, Error::QueueFull { depth: 1024, .. }), "{error}");
    assert_eq!(posted, LINES - FRAME_LINES_MAX + 1024);
}

#[test]
fn a_frame_that_is_copied_overtakes_none_that_waits() {
    let _alone = alone();
    let (mut a, mut b, there, _) = pair();
    assert!(matches!(a.post_copy(PeerId(7), &[]), Err(Error::NotConnected { .. })));
    assert!(!a.post_copy(there, &[0; INLINE_BYTES_MAX + 1]).unwrap(), "it is lent to be read");
    let mut number = 0u64;
    while a.post_copy(there, &number.to_le_bytes()).unwrap() {
        number += 1;
    }
    let mut frame = a.memory().allocate(FRAME_PREFIX + 8).unwrap();
    frame[FRAME_PREFIX..].copy_from_slice(&number.to_le_bytes());
    a.post_send(there, frame).unwrap();
    let (mut expected, mut copies) = (0..=number, 0);
    while !expected.is_empty() {
        copies += u64::from(a.post_copy(there, &[0]).unwrap());
        a.turn().unwrap();
        let mut events = Vec::new();
        b.poll(&mut events).unwrap();
        for event in events {
            let Event::Received { frame, .. } = event else { panic!("it is a frame") };
            let expected = expected.next();
            assert_eq!(*frame, expected.map_or(vec![0], |number| number.to_le_bytes().to_vec()));
        }
    }
    assert!(copies > 0, "there is room again");
}

/// The middle of a frame may look like the stamp of the record that comes to stand there a turn of the ring later.
#[test]
fn frames_arrive_as_they_are_whatever_they_hold() {
    let _alone = alone();
    let (mut a, mut b, there, _) = pair();
    let short = Stamp { kind: Kind::Inline, len: 8, words: 0 };
    for _ in 0..1000 {
        for len in [HEAD + 8 * LINE_BYTES - 8, short.len] {
            let mut frame = a.memory().allocate(FRAME_PREFIX + len).unwrap();
            frame.fill(0);
            let middle = frame[FRAME_PREFIX..].chunks_exact_mut(8).skip(8);
            for (word, place) in middle.enumerate().skip(7).step_by(8) {
                let position = a.peers[0].sender.head + word as u64 / 8 + 1 + LINES;
                place.copy_from_slice(&short.word(position).to_le_bytes());
            }
            let sent = frame[FRAME_PREFIX..].to_vec();
            a.post_send(there, frame).unwrap();
            let Event::Received { frame, .. } = next(&mut b) else { panic!("it is a frame") };
            assert_eq!(&frame[..], sent);
            b.turn().unwrap();
            assert!(b.ready.is_empty(), "nothing stands behind it");
        }
    }
}

#[test]
fn memory_that_was_given_away_while_it_was_read_is_not_handed_on() {
    let _alone = alone();
    let mut node = node();
    let (mut stranger, _) = Stranger::peer(&mut node);
    stranger.link.own.store(CLOSED, 1, Ordering::Release);
    stranger.put(Kind::Frame, reference(0, 0, 3000).as_bytes());
    assert!(lost(&mut node).contains("it closed the connection"));
}

/// A stamp has 32 bits of its position, which are all 0 at one of them, as is the middle of many a frame.
#[test]
fn frames_go_on_where_positions_begin_anew() {
    let _alone = alone();
    let (mut a, mut b, there, back) = pair();
    let begin = u64::from(u32::MAX) - 30;
    let (sender, reader) = (&mut a.peers[0].sender, &mut b.peers[0]);
    (sender.head, sender.freed, reader.receiver.next) = (begin, begin, begin);
    reader.link.own.store(CONSUMED, begin, Ordering::Release);
    for number in 1..1000u64 {
        let mut frame = a.memory().allocate(FRAME_PREFIX + HEAD + 2 * LINE_BYTES).unwrap();
        frame.fill(0);
        frame[FRAME_PREFIX..][..8].copy_from_slice(&number.to_le_bytes());
        let sent = frame[FRAME_PREFIX..].to_vec();
        a.post_send(there, frame).unwrap();
        let Event::Received { peer, frame } = next(&mut b) else { panic!("it is a frame") };
        assert_eq!((peer, &frame[..]), (back, &sent[..]));
        b.turn().unwrap();
        assert!(b.ready.is_empty(), "nothing stands behind it");
    }
}

#[test]
fn a_ring_of_noise_is_no_harm() {
    let _alone = alone();
    let mut node = node();
    let mut word = 1u64;
    let mut random = move || {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        word >> 11
    };
    for _ in 0..300 {
        let (mut stranger, peer) = Stranger::peer(&mut node);
        node.offer(peer, node.memory().allocate(1000).unwrap()).unwrap();
        for _ in 0..40 {
            let kind = Kind::ALL[random() as usize % Kind::ALL.len()];
            let (len, words) = match kind {
                Kind::Inline => (random() as usize % 2000, random() as u8),
                _ => (0, 0),
            };
            let mut record = [0u8; 96];
            // Small numbers more often than not: they get further.
            for chunk in record.chunks_mut(8) {
                let small = random() % 3 > 0;
                let number = if small { random() % 200 } else { random() };
                chunk.copy_from_slice(&number.to_le_bytes());
            }
            stranger.put_stamp(Stamp { kind, len, words }, &record);
            for offset in [ASLEEP, CLOSED, CONSUMED] {
                if random() % 64 == 0 {
                    stranger.link.own.store(offset, random(), Ordering::Release);
                }
            }
            node.poll(&mut Vec::new()).unwrap();
        }
        node.disconnect(peer);
    }
}

/// Two nodes that are connected, and what the first calls the second and the other way round.
fn pair() -> (Shm, Shm, PeerId, PeerId) {
    let (mut a, mut b) = (node(), node());
    let there = a.connect(b.address()).unwrap();
    let Event::Connected { peer: back, .. } = next(&mut b) else { panic!("it connects") };
    assert!(matches!(next(&mut a), Event::Connected { .. }));
    (a, b, there, back)
}

/// Lends `b` a mebibyte of sevens; what `a` still holds of it and what `b` got.
fn lend(a: &mut Shm, there: PeerId, b: &mut Shm) -> (*const u8, Shared) {
    let mut values = a.memory().allocate(1 << 20).unwrap();
    values.fill(7);
    let address = values.as_ptr();
    let frame = a.memory().allocate(FRAME_PREFIX + 100).unwrap();
    a.post_loan(there, frame, values.share()).unwrap();
    let Event::Lent { frame, values, .. } = next(b) else { panic!("values are lent") };
    assert_eq!((frame.len(), values.len()), (100, 1 << 20));
    assert!(values.iter().all(|&byte| byte == 7));
    (address, values)
}

/// Whether the memory that was lent is free for something else.
fn is_home(a: &Shm, address: *const u8) -> bool {
    let mut held = Vec::new();
    loop {
        // The pool is small: all of it is looked at.
        let Ok(memory) = a.memory().allocate(1 << 20) else { return false };
        if memory.as_ptr() == address {
            return true;
        }
        held.push(memory);
    }
}

#[test]
fn what_is_lent_comes_home_when_its_last_part_is_dropped() {
    let _alone = alone();
    let (mut a, mut b, there, _) = pair();
    let (address, values) = lend(&mut a, there, &mut b);
    let part = values.slice(8..16);
    drop(values);
    for van in [&mut b, &mut a] {
        van.turn().unwrap();
    }
    assert!(!is_home(&a, address), "a part of it is still read");
    drop(part);
    for van in [&mut b, &mut a] {
        van.turn().unwrap();
    }
    assert!(is_home(&a, address));
}

#[test]
fn what_is_lent_outlives_the_lane_while_it_is_read() {
    let _alone = alone();
    for lender_ends in [true, false] {
        let (mut a, mut b, there, back) = pair();
        let (address, values) = lend(&mut a, there, &mut b);
        if lender_ends {
            a.disconnect(there);
            lost(&mut b);
        } else {
            b.disconnect(back);
            lost(&mut a);
        }
        a.look_at_sockets(Duration::ZERO).unwrap();
        assert!(!is_home(&a, address) && values.iter().all(|&byte| byte == 7));
        drop(values);
        a.look_at_sockets(Duration::ZERO).unwrap();
        assert!(is_home(&a, address), "nobody can read it any more");
    }
    // The lender goes altogether, and what it lent stays.
    let (mut a, mut b, there, _) = pair();
    let (_, values) = lend(&mut a, there, &mut b);
    let pool = a.memory().clone();
    drop(a);
    while let Ok(mut memory) = pool.allocate(1 << 20) {
        memory.fill(9);
        std::mem::forget(memory);
    }
    assert!(values.iter().all(|&byte| byte == 7));
}

#[test]
fn a_borrower_that_returns_nothing_is_lent_so_much_and_no_more() {
    let _alone = alone();
    let mut node = node();
    let (stranger, peer) = Stranger::peer(&mut node);
    let row = node.memory().allocate(4096).unwrap().share();
    let mut lent = 0;
    while node.lends(peer) {
        let frame = node.memory().allocate(FRAME_PREFIX + 8).unwrap();
        node.post_loan(peer, frame, row.clone()).unwrap();
        lent += 1;
        // It reads everything, and gives nothing back.
        stranger.link.own.store(CONSUMED, 2 * lent, Ordering::Release);
        node.turn().unwrap();
    }
    assert_eq!(lent, super::loan::LOANS_MAX as u64);
}

#[test]
fn loans_that_lie_lose_their_sender() {
    use super::ring::LendRecord;
    let _alone = alone();
    let mut node = node();
    let loan = |number, values| LendRecord { number: U64::new(number), values };
    for (loan, words) in [
        (loan(0, reference(0, 0, 8)), "as number 0"),
        (loan(1, reference(0, 4, 8)), "lends bytes at 4"),
        (loan(1, reference(0, 8, SHARED as u64)), "refers to"),
        (loan(1, reference(9, 0, 8)), "which it has not shared"),
    ] {
        let (mut stranger, _) = Stranger::peer(&mut node);
        stranger.put(Kind::Lend, loan.as_bytes());
        let said = lost(&mut node);
        assert!(said.contains(words), "{said}");
    }
    let (mut stranger, _) = Stranger::peer(&mut node);
    for _ in 0..2 {
        stranger.put(Kind::Lend, loan(1, reference(0, 0, 8)).as_bytes());
    }
    assert!(lost(&mut node).contains("to no frame"));
    let (mut stranger, _) = Stranger::peer(&mut node);
    stranger.put(Kind::Return, &77u64.to_le_bytes());
    assert!(lost(&mut node).contains("returns loan 77"));
}

#[test]
fn a_read_only_view_cannot_be_made_writable() {
    let own = Own::new(4096).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&own.file()));
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let refused = std::os::unix::fs::FileExt::write_at(&file, &[1], 0).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(file.set_len(0).is_err(), "it cannot shrink");
    assert_eq!(Foreign::map(own.file(), 4096).unwrap().load(0, Ordering::Relaxed), 0);
}

#[test]
fn connections_leave_nothing_behind() {
    let _alone = alone();
    let (mut a, mut b) = (node(), node());
    let mut round = |abrupt: bool| {
        let there = a.connect(b.address()).unwrap();
        let Event::Connected { peer: back, .. } = next(&mut b) else { panic!("it connects") };
        assert!(matches!(next(&mut a), Event::Connected { .. }));
        let frame = a.memory().allocate(FRAME_PREFIX + 9000).unwrap();
        a.post_send(there, frame).unwrap();
        assert!(matches!(next(&mut b), Event::Received { .. }));
        let (one, other, gone) =
            if abrupt { (&mut b, &mut a, back) } else { (&mut a, &mut b, there) };
        one.disconnect(gone);
        assert!(matches!(next(other), Event::Lost { .. }));
        belongings()
    };
    let first = round(false);
    for count in 0..50 {
        assert_eq!(round(count % 2 == 0), first);
    }
}

/// Both sides sleep after every message, so that each wake-up races with its sleep. One that is lost shows as a wait that brings
/// nothing.
#[test]
fn no_wake_up_is_lost() {
    let _alone = alone();
    const ROUNDS: u64 = 20_000;
    let wait = crate::Wait::Block;
    let make = move || Shm::new(&VanConfig { wait, memory_bytes: 4 << 20, ..VanConfig::default() });
    let awaited = |van: &mut Shm, events: &mut Vec<Event>| {
        let mut naps = 0;
        while events.is_empty() {
            let began = Instant::now();
            van.wait(Duration::from_secs(20)).unwrap();
            van.poll(events).unwrap();
            naps += 1;
            assert!(!events.is_empty() || began.elapsed() < Duration::from_secs(15), "overslept");
            assert!(naps < 1000, "woken for nothing");
        }
        events.remove(0)
    };
    let (say, hear) = std::sync::mpsc::channel();
    let answering = std::thread::spawn(move || {
        let (mut van, mut events) = (make().unwrap(), Vec::new());
        say.send(van.address().to_owned()).unwrap();
        loop {
            match awaited(&mut van, &mut events) {
                Event::Received { peer, .. } => {
                    let frame = van.memory().allocate(FRAME_PREFIX + 8).unwrap();
                    van.post_send(peer, frame).unwrap();
                }
                Event::Connected { .. } => {}
                _ => return,
            }
        }
    });
    let (mut van, mut events) = (make().unwrap(), Vec::new());
    let peer = van.connect(&hear.recv().unwrap()).unwrap();
    assert!(matches!(awaited(&mut van, &mut events), Event::Connected { .. }));
    for _ in 0..ROUNDS {
        let frame = van.memory().allocate(FRAME_PREFIX + 8).unwrap();
        van.post_send(peer, frame).unwrap();
        assert!(matches!(awaited(&mut van, &mut events), Event::Received { .. }));
    }
    assert!(van.counters().sleeps > 0);
    drop(van);
    answering.join().unwrap();
}
