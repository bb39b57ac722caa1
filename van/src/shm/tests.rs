//! Goal: whatever a peer sends, writes or leaves undone, this node goes on: the peer is lost,
//! nothing is read out of bounds, nothing panics or waits, and nothing is left behind.
//! Method: a stranger speaks the protocol by hand and gets it wrong in one place at a time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_numa::Pages;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::arenas::{LendRecord, Reference, WriteRecord};
use super::connect::{Packet, Taken, name_in, send, take};
use super::ring::{ASLEEP, CLOSED, CONSUMED, FRAME_LINES_MAX, Kind, LINES, SEGMENT_BYTES, Stamp};
use super::segment::{Foreign, Own, seal};
use super::socket::Socket;
use super::stranger::{Caller, SHARED, Stranger, node};
use super::*;
use crate::FRAME_PREFIX;
use crate::handshake::Credentials;

mod pairs;

impl Stranger {
    /// Puts a record into its ring.
    fn put(&mut self, kind: Kind, record: &[u8]) {
        self.put_stamp(Stamp::of(kind), record);
    }

    fn put_stamp(&mut self, stamp: Stamp, record: &[u8]) {
        self.put_word(stamp.word(self.head), record);
        self.head += stamp.lines();
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

fn reference(arena: u32, offset: u64, len: u64) -> Reference {
    Reference {
        arena: U32::new(arena),
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

/// Makes the test of this name run in a process of its own, where nobody else opens or closes
/// anything; true there.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "CARAVAN_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    let output =
        program.args(["--exact", &format!("{module}::{test}")]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[test]
fn proofs_with_a_wrong_descriptor_are_turned_away() {
    if !is_alone("proofs_with_a_wrong_descriptor_are_turned_away") {
        return;
    }
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
        let caller = Caller::welcomed(&mut node);
        let file: Option<BorrowedFd<'_>> = file.map(AsFd::as_fd);
        send(&caller.socket, Packet::Greeting(&caller.proof), file).unwrap();
        ends(&mut node, &caller.socket);
        assert!(node.hub.ready.is_empty() && node.table.peers.is_empty(), "nobody was taken in");
    }
    assert_eq!(belongings(), (before.0 + open, before.1), "nothing is left of them");
    Stranger::peer(&mut node);
}

#[test]
fn who_does_not_know_the_secret_gets_no_memory() {
    if !is_alone("who_does_not_know_the_secret_gets_no_memory") {
        return;
    }
    let mut node = node();
    let before = belongings();
    let other = VanConfig { cluster: 1, ..VanConfig::default() };
    let call = Credentials::new(&other, NAME).call().1;
    let packets: [&[u8]; 5] = [&[], b"GET /", &call, &[0; 89], &call[..20]];
    for packet in packets {
        let socket = Socket::connect(name_in(&node.about().address).unwrap()).unwrap();
        send(&socket, Packet::Greeting(packet), None).unwrap();
        ends(&mut node, &socket);
    }
    // Who says nothing costs a descriptor, and goes after a while; the oldest of too many goes at
    // once.
    let silent = || Socket::connect(name_in(&node.about().address).unwrap()).unwrap();
    let sockets = [silent(), silent()];
    for _ in 0..100 {
        node.look_at_sockets(Duration::ZERO).unwrap();
    }
    assert_eq!(belongings().1, before.1, "no ring was made");
    drop(sockets);
    for _ in 0..100 {
        node.look_at_sockets(Duration::ZERO).unwrap();
    }
    assert_eq!(belongings(), before);
    assert!(node.hub.ready.is_empty() && node.table.peers.is_empty());
    Stranger::peer(&mut node);
}

#[test]
fn a_recorded_handshake_gets_nobody_in() {
    let mut node = node();
    let credentials = Credentials::new(&VanConfig { node: 9, ..VanConfig::default() }, NAME);
    let (calling, call) = credentials.call();
    let (mut old, mut sockets) = (None, Vec::new());
    for calling in [Some(calling), None] {
        let socket = Socket::connect(name_in(&node.about().address).unwrap()).unwrap();
        send(&socket, Packet::Greeting(&call), None).unwrap();
        let welcome = loop {
            match take(&socket).unwrap() {
                Taken::Greeting(welcome, Some(_)) => break welcome,
                Taken::Nothing => node.wait(Duration::from_millis(1)).unwrap(),
                _ => panic!("a call of this job is welcomed"),
            }
        };
        if let Some(calling) = calling {
            old = Some(credentials.prove(calling, &welcome).unwrap().1);
        }
        let own = Own::new(SEGMENT_BYTES).unwrap();
        send(&socket, Packet::Greeting(&old.unwrap()), Some(own.file())).unwrap();
        if node.table.peers.is_empty() {
            assert!(matches!(next(&mut node), Event::Connected { .. }), "the first is no record");
        } else {
            ends(&mut node, &socket);
        }
        sockets.push(socket);
    }
    assert!(
        node.hub.ready.is_empty() && node.table.peers.len() == 1,
        "the second is nobody's peer"
    );
}

#[test]
fn a_lack_of_descriptors_is_told_and_nobody_elses_fault() {
    if !is_alone("a_lack_of_descriptors_is_told_and_nobody_elses_fault") {
        return;
    }
    let (mut called, mut caller) = (node(), node());
    caller.connect(&called.about().address).unwrap();
    let held = belongings().0;
    while belongings().0 < held + 2 {
        called.look_at_sockets(Duration::ZERO).unwrap(); // accepts, and makes its ring
    }
    called.look_at_sockets(Duration::ZERO).unwrap(); // and has sent its welcome
    let open = || std::fs::File::open("/dev/null").ok();
    let all_there_are: Vec<_> = std::iter::from_fn(open).collect();
    let told = lost(&mut caller);
    drop(all_there_are);
    assert!(told.contains("ulimit -n"), "{told}");
    Stranger::peer(&mut called);
}

/// Waits until the node has closed its end.
fn ends(node: &mut Shm, socket: &Socket) {
    let began = Instant::now();
    loop {
        node.wait(Duration::from_millis(1)).unwrap();
        node.turn().unwrap();
        match take(socket) {
            Ok(Taken::Ended(_)) => return,
            Ok(_) => assert!(began.elapsed() < Duration::from_secs(20), "it is still there"),
            Err(reason) => panic!("{reason}"),
        }
    }
}

#[test]
fn packets_that_are_none_lose_their_sender() {
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
    stranger.link.send(Packet::Greeting(&[0; 56]), None).unwrap();
    assert!(lost(&mut node).contains("hello twice"));
    for len in [0, SEGMENT_BYTES as u64 + 1, 1 << 40, u64::MAX] {
        let (stranger, _) = Stranger::peer(&mut node);
        stranger.link.send(Packet::Arena(len), Some(stranger.link.own.file())).unwrap();
        lost(&mut node);
    }
}

#[test]
fn records_that_lie_lose_their_sender() {
    let mut node = node();
    let frames = [
        (reference(1, 0, 8), "arena 1, which it has not shared"),
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
        assert!(lost(&mut node).contains("in place of a stamp"));
    }
    let (mut stranger, _) = Stranger::peer(&mut node);
    stranger.put(Kind::Piece, reference(0, 0, 8).as_bytes());
    assert!(lost(&mut node).contains("a piece of no write"));
}

#[test]
fn writes_that_lie_lose_their_sender_and_change_nothing_beside() {
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
        let mut memory = node.about().memory.allocate(4096).unwrap();
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
    let offer = node.offer(peer, node.about().memory.allocate(200).unwrap()).unwrap();
    let (at, len) = (U64::new(0), U64::new(200));
    stranger.put(Kind::Write, WriteRecord { key: offer.key, at, len, parts: whole }.as_bytes());
    stranger.put(Kind::Frame, reference(0, 0, 8).as_bytes());
    assert!(lost(&mut node).contains("before a write had ended"));
}

#[test]
fn a_count_of_what_was_read_that_cannot_be_loses_its_sender() {
    let mut node = node();
    for consumed in [u64::MAX, 2, 1 << 40] {
        let (stranger, peer) = Stranger::peer(&mut node);
        let frame = node.about().memory.allocate(FRAME_PREFIX + 8000).unwrap();
        // A reference, which the node holds until it is read.
        node.post_send(peer, frame.into()).unwrap();
        stranger.link.own.store(CONSUMED, consumed, Ordering::Release);
        assert!(lost(&mut node).contains("it says it has read"));
    }
    let (stranger, peer) = Stranger::peer(&mut node);
    for consumed in [1, 0] {
        let frame = node.about().memory.allocate(FRAME_PREFIX + 8000).unwrap();
        node.post_send(peer, frame.into()).unwrap();
        stranger.link.own.store(CONSUMED, consumed, Ordering::Release);
        node.turn().unwrap();
    }
    assert!(lost(&mut node).contains("it says it has read 0 lines, and has read 1"));
}

#[test]
fn a_peer_that_reads_nothing_fills_its_queue_and_nobody_elses() {
    let mut node = node();
    let (_stranger, peer) = Stranger::peer(&mut node);
    let mut posted = 0u64;
    let error = loop {
        let mut frame = node.about().memory.allocate(FRAME_PREFIX + 100).unwrap();
        frame.fill(0); // one line each
        match node.post_send(peer, frame.into()) {
            Ok(_) => posted += 1,
            Err(error) => break error,
        }
        node.turn().unwrap();
    };
    assert!(matches!(error, Error::QueueFull { depth: 1024, .. }), "{error}");
    assert_eq!(posted, LINES - FRAME_LINES_MAX + 1024);
}

#[test]
fn memory_that_was_given_away_while_it_was_read_is_not_handed_on() {
    let mut node = node();
    let (mut stranger, _) = Stranger::peer(&mut node);
    stranger.link.own.store(CLOSED, 1, Ordering::Release);
    stranger.put(Kind::Frame, reference(0, 0, 3000).as_bytes());
    assert!(lost(&mut node).contains("it closed the connection"));
}

#[test]
fn a_ring_of_noise_is_no_harm() {
    let mut node = node();
    let mut word = 1u64;
    let mut random = move || {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        word >> 11
    };
    for _ in 0..300 {
        let (mut stranger, peer) = Stranger::peer(&mut node);
        node.offer(peer, node.about().memory.allocate(1000).unwrap()).unwrap();
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

#[test]
fn a_borrower_that_returns_nothing_is_lent_so_much_and_no_more() {
    let mut node = node();
    let (stranger, peer) = Stranger::peer(&mut node);
    let row = node.about().memory.allocate(4096).unwrap().share();
    let mut lent = 0;
    loop {
        let frame = node.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
        let loan = Frame::Lent { frame, values: row.clone() };
        if node.post_send(peer, loan).unwrap().is_some() {
            break;
        }
        lent += 1;
        // It reads everything, and gives nothing back.
        stranger.link.own.store(CONSUMED, 2 * lent, Ordering::Release);
        node.turn().unwrap();
    }
    assert_eq!(lent, super::loan::LOANS_MAX as u64);
}

#[test]
fn loans_that_lie_lose_their_sender() {
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
