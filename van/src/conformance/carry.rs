//! The contract among friends: what is posted arrives, in place, in order, and costs no memory.

use std::time::Duration;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};

use super::net::{Net, Written, check};
use crate::draws::mix;
use crate::{Buffer, Error, Event, Frame, Gather, Identity, Shared, Transport, VanConfig};

const MIB: usize = 1 << 20;

/// Both ends learn who the other one is, what it admits and what it takes.
pub fn says_hello<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::new(&make, 0);
    let identity = Identity { role: 3, rank: Some(8), incarnation: 1 << 40 };
    let odd =
        VanConfig { cluster: 7, node: 41, credits: 3, frame_bytes: 1000, ..VanConfig::default() };
    let odd = VanConfig { identity, ..odd };
    net.add(make(odd.clone()));
    net.add(make(VanConfig { node: 42, credits: 5, frame_bytes: 2000, ..odd }));
    let address = net.van(1).about().address.clone();
    let peer = net.van(0).connect(&address).unwrap();
    for (node, who) in [(0, (42, 5, 2000)), (1, (41, 3, 1000))] {
        let is_up = |event: &Event| matches!(event, Event::Connected { .. });
        let (id, hello) = net.event(node, "hello", is_up, |event| match event {
            Event::Connected { peer, hello } => (peer, hello),
            _ => unreachable!("picked"),
        });
        assert!(node == 1 || id == peer, "connect() told the number");
        assert_eq!((hello.node.get(), hello.credits.get(), hello.frame_bytes.get()), who);
        let said = (hello.role, Some(hello.rank.get()), hello.incarnation.get());
        assert_eq!(said, (identity.role, identity.rank, identity.incarnation));
    }
    assert!(net.rest(0).is_empty() && net.rest(1).is_empty(), "it is reported once");
    assert_eq!(net.van(0).about().limits.frame_bytes, 1000);
    assert!(!net.van(0).about().name.is_empty());
}

/// Frames of no bytes, of odd lengths and of the longest arrive whole, in order, at aligned
/// addresses.
pub fn frames_of_all_lengths_arrive_whole<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let limit = net.van(0).about().limits.frame_bytes.min(net.van(1).about().limits.frame_bytes);
    let lengths: Vec<usize> =
        (0..=200).chain((200..limit).step_by(997)).chain(limit - 9..=limit).collect();
    for (seed, &len) in (0..).zip(&lengths) {
        net.send(0, there, seed, len);
    }
    for (seed, &len) in (0..).zip(&lengths) {
        let frame = net.frame(1, back);
        assert_eq!(frame.as_ptr() as usize % 8, 0, "a frame of {len} bytes is aligned");
        check(&frame, seed, len);
    }
    assert!(net.rest(1).is_empty());
    let (sent, received) = (net.van(0).counters(), net.van(1).counters());
    assert_eq!(sent.frames_sent, lengths.len() as u64);
    assert_eq!(received.frames_received, lengths.len() as u64);
    let bytes: usize = lengths.iter().sum();
    assert!(sent.bytes_sent >= bytes as u64 && received.bytes_received >= bytes as u64);
}

/// Neither more than this van carries nor more than the peer takes can be posted.
pub fn too_long_a_frame_is_refused<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::new(&make, 1);
    let frame_bytes = 1000;
    net.add(make(VanConfig { cluster: 7, node: 101, frame_bytes, ..VanConfig::default() }));
    let (there, back) = net.connect(0, 1);
    for (node, peer) in [(0, there), (1, back)] {
        let frame = net.framed(node, 1, 1001);
        let error = net.van(node).post_send(peer, frame.into()).unwrap_err();
        assert!(matches!(error, Error::FrameTooLong { len: 1001, limit: 1000 }), "{error}");
        let (frame, values) = (net.framed(node, 1, 1001), net.bytes(node, 1, 5000));
        match net.van(node).post_send(peer, Frame::Lent { frame, values }) {
            Err(Error::FrameTooLong { len: 1001, limit: 1000 }) | Ok(Some(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    net.send(0, there, 5, 1000);
    check(&net.frame(1, back), 5, 1000);
}

/// Posting without polling ends in an error, after at least as many as the queue is deep; then all
/// of them arrive.
pub fn a_full_queue_is_an_error_and_recovers<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let config = VanConfig { credits: 1, queue_depth: 4, ..VanConfig::default() };
    let mut net = Net::with(&make, 2, config);
    let (there, back) = net.connect(0, 1);
    let len = net.van(0).about().limits.frame_bytes;
    for round in 0..3 {
        let mut posted = 0;
        let error = loop {
            let frame = net.framed(0, posted, len);
            match net.van(0).post_send(there, frame.into()) {
                Ok(_) => posted += 1,
                Err(error) => break error,
            }
            assert!(posted < 10_000, "the queue is bounded");
        };
        assert!(matches!(error, Error::QueueFull { depth: 4, .. }), "round {round}: {error}");
        assert!(posted >= 4, "round {round}: only {posted} fit");
        for seed in 0..posted {
            check(&net.frame(1, back), seed, len);
        }
    }
}

/// Frames and writes arrive in the order of posting, each once and whole, whatever their lengths,
/// none included.
pub fn frames_and_writes_arrive_in_the_order_of_posting<T: Transport>(
    make: impl Fn(VanConfig) -> T,
) {
    let (mut net, there, back) = Net::pair(&make);
    let writes = [(0, 1), (8, 7), (4088, 64), (72, 1000), (1072, 99_999), (104, 0), (4080, MIB)];
    for round in 0..3 {
        let mut offers = Vec::new();
        for (seed, (at, len)) in (round..).zip(writes) {
            let offer = net.offer(1, back, at + len + 5);
            let data = net.bytes(0, seed, len);
            net.van(0).post_write(there, data.into(), &offer, at as u64).unwrap();
            offers.push(offer);
            // None, one or two frames behind a write.
            (0..seed % 3).for_each(|frame| net.send(0, there, seed, 88 * frame as usize));
        }
        for ((seed, (at, len)), offer) in (round..).zip(writes).zip(&offers) {
            match net.next(1, back) {
                Event::Written { key, memory, at: found, len: bytes, .. } => {
                    Written { key, memory, at: found, len: bytes }.check(offer, at, seed, len);
                }
                other => panic!("a write of {len} bytes is due, not {other:?}"),
            }
            for frame in 0..seed % 3 {
                match net.next(1, back) {
                    Event::Received { frame: found, .. } => {
                        check(&found, seed, 88 * frame as usize)
                    }
                    other => panic!("frame {frame} behind {len} bytes is due, not {other:?}"),
                }
            }
        }
        assert!(net.rest(1).is_empty());
    }
}

/// The bytes land at the address of the memory that the caller offered, its own included, and it
/// gets that memory back.
pub fn writes_land_in_the_memory_that_was_offered<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    for len in [8, 4096, MIB + 8] {
        let pooled = net.van(1).about().memory.allocate(len).unwrap();
        for into in [pooled, Buffer::adopt(vec![0u64; len / 8])] {
            let address = into.as_ptr();
            let offer = net.offer_memory(1, back, into);
            let data = net.bytes(0, 5, len);
            net.van(0).post_write(there, data.into(), &offer, 0).unwrap();
            let written = net.written(1, back);
            assert_eq!(written.memory.as_ptr(), address);
            written.check(&offer, 0, 5, len);
            let again = net.van(1).withdraw(back, offer.key.get()).unwrap_err();
            assert!(matches!(again, Error::OutsideOffer { .. }), "it is used up: {again}");
        }
    }
    let adopted = Buffer::adopt(vec![7u64; 1000]).share();
    let unaligned = Shared::from(Bytes::from(vec![9u8; 8003]).slice(3..));
    for user in [adopted, unaligned] {
        let offer = net.offer(1, back, 8000);
        net.van(0).post_write(there, user.slice(800..).into(), &offer, 800).unwrap();
        let Written { memory, at, len, .. } = net.written(1, back);
        assert_eq!((at, len), (800, 7200));
        assert_eq!(memory[800..], user[800..], "user memory is sent, too");
    }
}

/// The parts of a write lie back to back, whatever their lengths and alignment, and are sent from
/// where they lie.
pub fn parts_of_a_write_arrive_back_to_back<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    for (seed, (front, rear)) in (0..).zip([(0, 0), (64, MIB), (88, 0), (0, 77), (3, 100_001)]) {
        let data = net.bytes(0, seed, front + rear);
        let gather = Gather { head: data.slice(..front), tail: Some(data.slice(front..)) };
        assert_eq!((gather.len(), gather.is_empty()), (front + rear, front + rear == 0));
        let offer = net.offer(1, back, front + rear + 4096);
        net.van(0).post_write(there, gather, &offer, 64).unwrap();
        net.written(1, back).check(&offer, 64, seed, front + rear);
        reclaim(&mut net, data);
    }
}

/// Both ends post many megabytes, large writes and small frames in turn, before either polls:
/// neither waits for the other.
pub fn both_directions_at_once_do_not_block_each_other<T: Transport>(
    make: impl Fn(VanConfig) -> T,
) {
    let (mut net, there, back) = Net::pair(&make);
    let ends = [(0, there), (1, back)];
    let rounds = 24;
    let offers = ends
        .map(|(node, peer)| (0..rounds).map(|_| net.offer(node, peer, MIB)).collect::<Vec<_>>());
    for (node, peer) in ends {
        let data = net.bytes(node, node as u64, MIB);
        for (round, offer) in (0..).zip(&offers[1 - node]) {
            net.van(node).post_write(peer, data.clone().into(), offer, 0).unwrap();
            let frame = net.framed(node, round, 100);
            net.van(node).post_send(peer, frame.into()).unwrap();
        }
    }
    for (node, peer) in ends {
        for (round, offer) in (0..).zip(&offers[node]) {
            check(&net.frame(node, peer), round, 100);
            net.written(node, peer).check(offer, 0, 1 - node as u64, MIB);
        }
    }
}

/// Frames and writes of random sizes, a window of them at a time: a checksum over all tells whether
/// a byte is wrong.
pub fn random_sizes_add_up<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let limit = net.van(0).about().limits.frame_bytes;
    let mut word = 2024;
    let mut next = |below: usize| {
        word = mix(word);
        (word % below as u64) as usize
    };
    let [mut posted, mut arrived] = [Digest::new(CrcAlgorithm::Crc32Iscsi); 2];
    for _ in 0..40 {
        let count = 1 + next(8);
        for _ in 0..count {
            let seed = next(1000) as u64;
            if next(2) == 0 {
                let frame = net.framed(0, seed, next(limit + 1));
                posted.update(&frame[crate::FRAME_PREFIX..]);
                net.van(0).post_send(there, frame.into()).unwrap();
            } else {
                let (at, longest) = (8 * next(512), 1 << next(21));
                let data = net.bytes(0, seed, next(longest + 1));
                posted.update(&data);
                let offer = net.offer(1, back, at + data.len() + next(100));
                net.van(0).post_write(there, data.into(), &offer, at as u64).unwrap();
            }
        }
        for _ in 0..count {
            match net.next(1, back) {
                Event::Written { memory, at, len, .. } => arrived.update(&memory[at..at + len]),
                Event::Received { frame, .. } => arrived.update(&frame),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(posted.finalize(), arrived.finalize());
}

/// Slots go back to their pools by themselves, and what was shared can be taken back once it has
/// left.
pub fn memory_comes_home<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let mut reserved = None;
    for round in 0..300 {
        let offer = net.offer(1, back, 100_000);
        let unused = net.offer(1, back, 50_000);
        let data = net.bytes(0, round, 100_000);
        net.van(0).post_write(there, data.clone().into(), &offer, 0).unwrap();
        net.send(0, there, round, 5000);
        drop(net.frame(1, back));
        drop(net.written(1, back));
        drop(net.van(1).withdraw(back, unused.key.get()).unwrap());
        reclaim(&mut net, data);
        let now = [0, 1].map(|node| net.van(node).about().memory.bytes_reserved());
        if round == 20 {
            reserved = Some(now);
        }
        assert!(reserved.is_none_or(|before| before == now), "round {round}: {now:?} bytes");
    }
}

/// Waits until no van holds `data` any more.
pub(super) fn reclaim<T: Transport>(net: &mut Net<T>, data: Shared) -> Buffer {
    let mut data = Some(data);
    net.until("memory to come home", |_| match data.take()?.reclaim() {
        Ok(buffer) => Some(buffer),
        Err(held) => {
            data = Some(held);
            None
        }
    })
}

/// Sixteen peers on one transport each get their answers, also while one of them sends as much as
/// it can.
pub fn many_peers_are_served_alike<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (peers, rounds) = (16, 20);
    let config = VanConfig { credits: 4, queue_depth: 16, ..VanConfig::default() };
    let mut net = Net::with(&make, peers + 1, config);
    let links: Vec<_> = (1..=peers).map(|node| net.connect(node, 0)).collect();
    let (flood, back) = links[0];
    let len = 128 << 10;
    let data = net.bytes(1, 3, len);
    let mut offers = Vec::new();
    for round in 0..rounds {
        offers.resize_with(17, || net.offer(0, back, len));
        while let Some(offer) = offers.pop()
            && net.van(1).post_write(flood, data.clone().into(), &offer, 0).is_ok()
        {}
        for (node, &(there, _)) in (2..).zip(&links[1..]) {
            net.send(node, there, round, 64 + node);
        }
        for (node, &(there, from)) in (2..).zip(&links[1..]) {
            check(&net.frame(0, from), round, 64 + node);
            net.send(0, from, round, 32 + node);
            check(&net.frame(node, there), round, 32 + node);
        }
    }
    let error = net.van(1).post_send(flood, Buffer::adopt(vec![0u8; 16]).into()).err();
    assert!(
        error.is_none_or(|error| matches!(error, Error::QueueFull { .. })),
        "it is still there"
    );
}

/// A wait with nothing to come ends, and leaves no event behind.
pub fn waiting_for_nothing_ends<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, ..) = Net::pair(&make);
    net.rest(0);
    let van = net.van(0);
    let until = van.about().clock.now() + Duration::from_millis(20);
    while van.about().clock.now() < until {
        van.wait(Duration::from_millis(5)).unwrap();
    }
    van.wait(Duration::ZERO).unwrap();
    assert!(net.rest(0).is_empty() && net.rest(1).is_empty());
}

/// A wait ends long before its time when something arrives, and the next polls deliver it.
pub fn waiting_ends_with_an_event<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    net.rest(0);
    let far = Duration::from_secs(3600);
    for round in 0..5 {
        net.send(0, there, round, 100);
        let mut events = Vec::new();
        net.van(0).poll(&mut events).unwrap();
        let began = net.van(1).about().clock.now();
        while events.is_empty() {
            net.van(1).wait(far).unwrap();
            net.van(1).poll(&mut events).unwrap();
        }
        assert!(net.van(1).about().clock.now() - began < far);
        let [Event::Received { peer, frame }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(*peer, back);
        check(frame, round, 100);
    }
}
