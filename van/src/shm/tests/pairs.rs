//! Goal: what one node of this process sends to another arrives unchanged, and nothing is left
//! behind, whatever the ring held before, wherever its positions are and whenever a lane ends.
//! Method: two transports, and looks at what they hold.

use std::time::{Duration, Instant};

use super::super::ring::{CONSUMED, HEAD, INLINE_BYTES_MAX, Kind, LINE_BYTES, LINES, Stamp};
use super::super::*;
use crate::FRAME_PREFIX;
use crate::memory::Shared;

use super::{belongings, is_alone, lost, next, node};

#[test]
fn a_frame_that_is_copied_overtakes_none_that_waits() {
    let (mut a, mut b, there, _) = pair();
    let mut number = 0u64;
    let copy =
        |a: &mut Shm, frame: &[u8]| a.post_send(there, Frame::Borrowed(frame)).unwrap().is_none();
    while copy(&mut a, &number.to_le_bytes()) {
        number += 1;
    }
    let mut frame = a.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
    frame[FRAME_PREFIX..].copy_from_slice(&number.to_le_bytes());
    a.post_send(there, frame.into()).unwrap();
    let (mut expected, mut copies) = (0..=number, 0);
    while !expected.is_empty() {
        copies += u64::from(copy(&mut a, &[0]));
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

/// Whether a frame is like the one before it or not, short or long, alone or one of many, and
/// however long it is kept.
#[test]
fn frames_of_every_length_arrive_and_stay_as_they_are() {
    let (mut a, mut b, there, _) = pair();
    let (mut kept, mut number) = (Vec::new(), 0u64);
    for len in (0..300).chain([INLINE_BYTES_MAX, 0, INLINE_BYTES_MAX + 1]) {
        for changed in [0, 1 << 2, 1, 0xff, 0x81] {
            let mut frame = a.about().memory.allocate(FRAME_PREFIX + len).unwrap();
            number += 1;
            for (at, word) in frame[FRAME_PREFIX..].chunks_mut(8).enumerate() {
                let is_new = at >= 8 || changed >> at & 1 != 0;
                let value = if is_new { number << 32 | at as u64 } else { len as u64 };
                word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
            }
            kept.push((frame[FRAME_PREFIX..].to_vec(), None));
            a.post_send(there, frame.into()).unwrap();
        }
        let (count, mut events) = (kept.len(), Vec::new());
        b.poll(&mut events).unwrap();
        assert_eq!(events.len(), 5);
        for ((_, place), event) in kept[count - 5..].iter_mut().zip(events) {
            let Event::Received { frame, .. } = event else { panic!("it is a frame") };
            assert_eq!(frame.as_ptr().addr() % 8, 0);
            *place = Some(frame);
        }
    }
    for (sent, frame) in kept {
        assert_eq!(frame.as_deref(), Some(&sent[..]));
    }
}

/// The middle of a frame may look like the stamp of the record that comes to stand there a turn of
/// the ring later.
#[test]
fn frames_arrive_as_they_are_whatever_they_hold() {
    let (mut a, mut b, there, _) = pair();
    let short = Stamp { kind: Kind::Inline, len: 8, words: 0 };
    for _ in 0..1000 {
        for len in [HEAD + 8 * LINE_BYTES - 8, short.len] {
            let mut frame = a.about().memory.allocate(FRAME_PREFIX + len).unwrap();
            frame.fill(0);
            let middle = frame[FRAME_PREFIX..].chunks_exact_mut(8).skip(8);
            for (word, place) in middle.enumerate().skip(7).step_by(8) {
                let position = a.table.peers[0].sender.ring.head + word as u64 / 8 + 1 + LINES;
                place.copy_from_slice(&short.word(position).to_le_bytes());
            }
            let sent = frame[FRAME_PREFIX..].to_vec();
            a.post_send(there, frame.into()).unwrap();
            let Event::Received { frame, .. } = next(&mut b) else { panic!("it is a frame") };
            assert_eq!(&frame[..], sent);
            b.turn().unwrap();
            assert!(b.hub.ready.is_empty(), "nothing stands behind it");
        }
    }
}

/// A stamp has 32 bits of its position, which are all 0 at one of them, as is the middle of many a
/// frame.
#[test]
fn frames_go_on_where_positions_begin_anew() {
    let (mut a, mut b, there, back) = pair();
    let begin = u64::from(u32::MAX) - 30;
    let (sender, reader) = (&mut a.table.peers[0].sender, &mut b.table.peers[0]);
    (sender.ring.head, sender.ring.freed, reader.receiver.ring.next) = (begin, begin, begin);
    reader.link.own.store(CONSUMED, begin, Ordering::Release);
    for number in 1..1000u64 {
        let mut frame = a.about().memory.allocate(FRAME_PREFIX + HEAD + 2 * LINE_BYTES).unwrap();
        frame.fill(0);
        frame[FRAME_PREFIX..][..8].copy_from_slice(&number.to_le_bytes());
        let sent = frame[FRAME_PREFIX..].to_vec();
        a.post_send(there, frame.into()).unwrap();
        let Event::Received { peer, frame } = next(&mut b) else { panic!("it is a frame") };
        assert_eq!((peer, &frame[..]), (back, &sent[..]));
        b.turn().unwrap();
        assert!(b.hub.ready.is_empty(), "nothing stands behind it");
    }
}

/// Two nodes that are connected, and what the first calls the second and the other way round.
fn pair() -> (Shm, Shm, PeerId, PeerId) {
    let (mut a, mut b) = (node(), node());
    let (there, back) = join(&mut a, &mut b);
    (a, b, there, back)
}

/// Connects `a` to `b`; what each calls the other.
fn join(a: &mut Shm, b: &mut Shm) -> (PeerId, PeerId) {
    let there = a.connect(&b.about().address).unwrap();
    while a.hub.ready.is_empty() {
        b.look_at_sockets(Duration::ZERO).unwrap();
        a.look_at_sockets(Duration::ZERO).unwrap();
    }
    assert!(matches!(next(a), Event::Connected { .. }));
    let Event::Connected { peer: back, .. } = next(b) else { panic!("it connects") };
    (there, back)
}

/// Lends `b` a mebibyte of sevens; what `a` still holds of it and what `b` got.
fn lend(a: &mut Shm, there: PeerId, b: &mut Shm) -> (*const u8, Shared) {
    let mut values = a.about().memory.allocate(1 << 20).unwrap();
    values.fill(7);
    let address = values.as_ptr();
    let frame = a.about().memory.allocate(FRAME_PREFIX + 100).unwrap();
    let loan = Frame::Lent { frame, values: values.share() };
    assert!(a.post_send(there, loan).unwrap().is_none());
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
        let Ok(memory) = a.about().memory.allocate(1 << 20) else { return false };
        if memory.as_ptr() == address {
            return true;
        }
        held.push(memory);
    }
}

#[test]
fn what_is_lent_comes_home_when_its_last_part_is_dropped() {
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
    let pool = a.about().memory.clone();
    drop(a);
    while let Ok(mut memory) = pool.allocate(1 << 20) {
        memory.fill(9);
        std::mem::forget(memory);
    }
    assert!(values.iter().all(|&byte| byte == 7));
}

#[test]
fn connections_leave_nothing_behind() {
    if !is_alone("pairs::connections_leave_nothing_behind") {
        return;
    }
    let (mut a, mut b) = (node(), node());
    let mut round = |abrupt: bool| {
        let (there, back) = join(&mut a, &mut b);
        let frame = a.about().memory.allocate(FRAME_PREFIX + 9000).unwrap();
        a.post_send(there, frame.into()).unwrap();
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

/// Both sides sleep after every message, so that each wake-up races with its sleep. One that is
/// lost shows as a wait that brings nothing.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u64 = 20_000;
    let wait = crate::Wait::Block;
    let make = move || Shm::new(&VanConfig { wait, memory_bytes: 4 << 20, ..VanConfig::default() });
    let awaited = |van: &mut Shm, events: &mut Vec<Event>| {
        let mut backoffs = 0;
        while events.is_empty() {
            let began = Instant::now();
            van.wait(Duration::from_secs(20)).unwrap();
            van.poll(events).unwrap();
            backoffs += 1;
            assert!(!events.is_empty() || began.elapsed() < Duration::from_secs(15), "overslept");
            assert!(backoffs < 1000, "woken for nothing");
        }
        events.remove(0)
    };
    let (say, hear) = std::sync::mpsc::channel();
    let answering = std::thread::spawn(move || {
        let (mut van, mut events) = (make().unwrap(), Vec::new());
        say.send(van.about().address.clone()).unwrap();
        loop {
            match awaited(&mut van, &mut events) {
                Event::Received { peer, .. } => {
                    let frame = van.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
                    van.post_send(peer, frame.into()).unwrap();
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
        let frame = van.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
        van.post_send(peer, frame.into()).unwrap();
        assert!(matches!(awaited(&mut van, &mut events), Event::Received { .. }));
    }
    assert!(van.counters().sleeps > 0);
    drop(van);
    answering.join().unwrap();
}
