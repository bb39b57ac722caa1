//! The contract of frames that are copied or come with lent values: they arrive as others do, in
//! one order with them, and memory is back with its owner when it should be. A van that has no use
//! for a form hands every such frame back.

use bytes::Bytes;

use super::carry::reclaim;
use super::net::{Net, Written, check, fill};
use crate::{Buffer, Event, FRAME_PREFIX, Frame, PeerId, Shared, Transport, VanConfig};

const MIB: usize = 1 << 20;

/// Whether the van copies short frames.
fn copies<T: Transport>(net: &mut Net<T>) -> bool {
    net.limits(0).copy_bytes > 0
}

/// Whether the van lends values.
fn lends<T: Transport>(net: &mut Net<T>) -> bool {
    net.limits(0).lent_bytes_min < usize::MAX
}

/// Posts `values` on loan, with a frame of `len` bytes that `seed` decides, from node 0; whether
/// the van took them.
fn lend<T: Transport>(
    net: &mut Net<T>,
    there: PeerId,
    seed: u64,
    len: usize,
    values: Shared,
) -> bool {
    let frame = net.framed(0, seed, len);
    let (address, bytes) = (values.as_ptr(), values.len());
    match net.van(0).post_send(there, Frame::Lent { frame, values }).unwrap() {
        None => true,
        Some(Frame::Lent { frame, values }) => {
            check(&frame[FRAME_PREFIX..], seed, len);
            assert_eq!((values.as_ptr(), values.len()), (address, bytes), "as it was");
            false
        }
        Some(other) => panic!("{other:?} was not posted"),
    }
}

/// The next frame with lent values at node 1.
fn lent<T: Transport>(net: &mut Net<T>, back: PeerId) -> (Buffer, Shared) {
    match net.next(1, back) {
        Event::Lent { frame, values, .. } => (frame, values),
        other => panic!("values are lent, not {other:?}"),
    }
}

/// A copied frame arrives as it was when it was posted, though its memory is used again at once.
pub fn copies_leave_their_memory_to_the_caller<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let copy_bytes = net.limits(0).copy_bytes;
    let mut memory = vec![0; copy_bytes + 1];
    for (seed, len) in (0..).zip(0..=copy_bytes.min(300)).chain([(301, copy_bytes)]) {
        fill(&mut memory[..len], seed);
        let declined = net.van(0).post_send(there, Frame::Borrowed(&memory[..len])).unwrap();
        let is_declined = declined.is_some();
        memory.fill(0xee);
        assert!(is_declined || copy_bytes > 0, "a van that copies nothing says so");
        if is_declined {
            net.send(0, there, seed, len);
        }
        let frame = net.frame(1, back);
        assert_eq!(frame.as_ptr() as usize % 8, 0, "a frame of {len} bytes is aligned");
        check(&frame, seed, len);
    }
    assert!(net.rest(1).is_empty());
}

/// A frame that is too long to be copied, or that finds no room, is handed back as it was, and does
/// not arrive; those before it do. Whatever form they have, frames to a peer without room end in an
/// error.
pub fn a_copy_is_handed_back_and_nothing_has_happened<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let config = VanConfig { credits: 1, queue_depth: 4, ..VanConfig::default() };
    let mut net = Net::with(&make, 2, config);
    let (there, back) = net.connect(0, 1);
    let long = vec![7; net.limits(0).copy_bytes + 1];
    let handed_back = |posted: Option<Frame<'_>>, bytes: &[u8]| match posted {
        Some(Frame::Borrowed(frame)) => frame.as_ptr() == bytes.as_ptr(),
        _ => false,
    };
    let posted = net.van(0).post_send(there, Frame::Borrowed(&long)).unwrap();
    assert!(handed_back(posted, &long), "it is too long to be copied");
    let mut memory = [0; 64];
    for round in 0..3 {
        let mut taken = 0;
        loop {
            fill(&mut memory, taken);
            let posted = net.van(0).post_send(there, Frame::Borrowed(&memory)).unwrap();
            if posted.is_some() {
                assert!(handed_back(posted, &memory), "as it was");
                break;
            }
            taken += 1;
            assert!(taken < 100_000, "the queue is bounded");
        }
        assert_eq!(taken > 0, copies(&mut net), "round {round}");
        net.send(0, there, 1000, 100);
        for seed in 0..taken {
            check(&net.frame(1, back), seed, memory.len());
        }
        check(&net.frame(1, back), 1000, 100);
    }
    assert!(net.rest(1).is_empty(), "what was handed back does not arrive");
}

/// Frames of every form and writes arrive in the order of posting; what is handed back goes as a
/// frame that moves in.
pub fn all_that_is_posted_arrives_in_the_order_of_posting<T: Transport>(
    make: impl Fn(VanConfig) -> T,
) {
    let (mut net, there, back) = Net::pair(&make);
    let values = net.bytes(0, 77, MIB);
    let mut memory = [0; 500];
    for round in 0..20usize {
        let offer = net.offer(1, back, 100_000);
        let mut forms = Vec::new();
        for seed in 0..40u64 {
            let form = (seed as usize * 7 + round) % 5;
            let len = 8 + (seed as usize * 61 + round * 13) % 400;
            let is_taken = match form {
                0 => {
                    fill(&mut memory[..len], seed);
                    let frame = Frame::Borrowed(&memory[..len]);
                    net.van(0).post_send(there, frame).unwrap().is_none()
                }
                1 | 2 => lend(&mut net, there, seed, len, values.slice(..len << form << 2)),
                3 if seed == 13 + round as u64 % 5 => {
                    let data = values.slice(..99_999);
                    net.van(0).post_write(there, data.into(), &offer, 0).unwrap();
                    true
                }
                _ => false,
            };
            if !is_taken {
                let frame = net.framed(0, seed, len);
                net.van(0).post_send(there, frame.into()).unwrap();
            }
            forms.push((seed, len, form, is_taken));
        }
        for (seed, len, form, is_taken) in forms {
            match (net.next(1, back), form, is_taken) {
                (Event::Lent { frame, values, .. }, 1 | 2, true) => {
                    check(&frame, seed, len);
                    check(&values, 77, len << form << 2);
                }
                (Event::Written { key, memory, at, len, .. }, 3, true) => {
                    Written { key, memory, at, len }.check(&offer, 0, 77, 99_999);
                }
                (Event::Received { frame, .. }, 0, _)
                | (Event::Received { frame, .. }, _, false) => {
                    check(&frame, seed, len);
                }
                (other, ..) => panic!("round {round}: {seed} is due, not {other:?}"),
            }
        }
        drop(net.van(1).withdraw(back, offer.key.get()));
    }
    assert!(net.rest(1).is_empty());
    reclaim(&mut net, values);
}

/// Lent values of every length and from anywhere arrive whole and aligned, stay as long as any part
/// of them is kept, and come home when the last one is dropped.
pub fn lent_values_are_read_where_they_lie<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let mut reserved = None;
    for round in 0..60u64 {
        for len in [8, 1000, 4096, 100_001, MIB] {
            let values = net.bytes(0, round, len);
            let is_taken = lend(&mut net, there, 9, 40, values.clone());
            assert_eq!(is_taken, lends(&mut net), "{len} bytes of its own memory");
            if is_taken {
                let (frame, arrived) = lent(&mut net, back);
                check(&frame, 9, 40);
                check(&arrived, round, len);
                assert_eq!(arrived.as_ptr() as usize % 8, 0);
                let part = arrived.slice(..8);
                drop(arrived);
                net.turn();
                net.turn();
                let values = values.reclaim().expect_err("a part of it is still read");
                drop(part);
                reclaim(&mut net, values);
            }
        }
        let now = [0, 1].map(|node| net.van(node).about().memory.bytes_reserved());
        reserved = reserved.or(Some(now).filter(|_| round == 20));
        assert!(reserved.is_none_or(|before| before == now), "round {round}: {now:?} bytes");
    }
    let adopted = Buffer::adopt(vec![7u64; 1000]).share();
    let unaligned = Shared::from(Bytes::from(vec![9u8; 8003]).slice(3..));
    for user in [adopted, unaligned] {
        if lend(&mut net, there, 1, 0, user.clone()) {
            let (frame, values) = lent(&mut net, back);
            assert!(frame.is_empty() && values[..] == user[..], "user memory is lent, too");
            assert_eq!(values.as_ptr() as usize % 8, 0);
        }
    }
    assert!(net.rest(1).is_empty());
}

/// A peer that keeps all it borrows gets so many loans and no more. Other frames still go to it,
/// and it is lent values again when it has returned some.
pub fn so_much_is_lent_and_no_more<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let row = net.bytes(0, 5, 4096);
    for _ in 0..2 {
        let mut kept = Vec::new();
        while lend(&mut net, there, 1, 8, row.clone()) {
            kept.push(lent(&mut net, back));
            assert!(kept.len() < 100_000, "loans are bounded");
        }
        assert_eq!(!kept.is_empty(), lends(&mut net));
        net.exchange(0, there, 1, back);
        assert!(kept.iter().all(|(_, values)| values[..] == row[..]));
        drop(kept);
        (0..3).for_each(|_| net.turn()); // they go back
    }
    net.exchange(0, there, 1, back);
    reclaim(&mut net, row);
}

/// Values that a peer has borrowed stay as they are after the lane has ended, whoever ended it,
/// until the last view of them is dropped; then they are the lender's again.
pub fn loans_outlive_the_lane_while_they_are_read<T: Transport>(make: impl Fn(VanConfig) -> T) {
    for lender_ends in [true, false] {
        let (mut net, there, back) = Net::pair(&make);
        let values = net.bytes(0, 3, MIB);
        if !lend(&mut net, there, 1, 8, values.clone()) {
            continue;
        }
        let (_, arrived) = lent(&mut net, back);
        if lender_ends {
            net.van(0).disconnect(there);
            net.lost(1, back);
        } else {
            net.van(1).disconnect(back);
            net.lost(0, there);
        }
        assert!(net.rest(0).is_empty() && net.rest(1).is_empty());
        let values = values.reclaim().expect_err("it is still read");
        check(&arrived, 3, MIB);
        drop(arrived);
        let mut memory = reclaim(&mut net, values);
        memory.fill(0);
    }
}

/// What is on loan to a peer that goes away comes home, read or not.
pub fn loans_to_a_lost_peer_come_home<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let values = net.bytes(0, 3, MIB);
    for seed in 0..10 {
        lend(&mut net, there, seed, 8, values.clone());
    }
    if lends(&mut net) {
        drop(lent(&mut net, back));
    }
    net.vans[1] = None;
    net.lost(0, there);
    // What the node that went away had received and not read is dropped with it.
    net.forget(1);
    reclaim(&mut net, values);
}
