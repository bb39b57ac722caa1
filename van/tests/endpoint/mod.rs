//! Goal: lanes keep their promises (order, credits, landings within bounds) to honest peers, and
//! lose hostile ones alone. Method: both ends of a lane on the simulated network, driven by hand
//! from one thread. Requests before the peer's hello are in `early.rs`, hostile peers in
//! `hostile.rs`, lent values in `lent.rs`, frames and images that messages share in `packed.rs`.

mod early;
mod hostile;
#[cfg(all(target_os = "linux", feature = "shm"))]
mod lent;
mod packed;
mod side;
mod watched;

use std::collections::VecDeque;
use std::time::Duration;

use caravan_van::sim::{Faults, Network, SimTransport, for_each_seed};
use caravan_van::wire::{Coding, Kind, Offer, Origin};
use caravan_van::{
    Arrival, Buffer, Draft, Endpoint, Error, Event, FRAME_PREFIX, Message, PeerId, Transport,
    Values, VanConfig, encode,
};

use side::{Side, filled, is_filled, pair, settle};

const BACKOFF: Duration = Duration::from_millis(5);
const MIB: usize = 1 << 20;

fn config(frame_bytes: usize, credits: u16, memory_bytes: usize) -> VanConfig {
    let queue_depth = 4 * usize::from(credits) + 64;
    VanConfig { frame_bytes, credits, memory_bytes, queue_depth, ..VanConfig::default() }
}

/// A generator for tests: the schedule must not depend on the network's own draws.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn messages_of_every_size_arrive_in_order_and_credits_come_back() {
    let run = |seed: u64, faults: Faults| {
        let network = Network::new(seed, faults);
        let config = config(2048, 6, 64 * MIB);
        let (mut a, mut b) = pair(&network, &config);
        let mut draws = Draws(seed);
        let (mut posted, mut served, mut answered) = (VecDeque::new(), 0, 0);
        while answered < 60 {
            if a.endpoint.lanes.credits(a.peer) > 0
                && posted.len() + answered < 60
                && draws.below(3) > 0
            {
                let near_the_limit = 2048 - 64 - 3 + draws.below(6) as usize;
                let bytes =
                    [draws.below(3000) as usize, near_the_limit, draws.below(300_000) as usize];
                let bytes = bytes[draws.below(3) as usize].max(1); // who answers with nothing is told of otherwise
                let number = (answered + posted.len()) as u64;
                let values = filled(&a, bytes, number);
                let values = if draws.below(2) == 0 {
                    Values::Copied(&values)
                } else {
                    Values::Apart(values)
                };
                a.post(Kind::Request, number, values).unwrap();
                posted.push_back(bytes);
            }
            for side in [&mut a, &mut b] {
                side.endpoint.wait(Duration::from_micros(draws.below(300))).unwrap();
                side.poll();
            }
            // b answers with as many bytes, sometimes late.
            while draws.below(4) > 0
                && let Some(request) = b.came.pop_front()
            {
                assert_eq!(request.timestamp(), served);
                assert!(is_filled(request.values(), posted[served as usize - answered], served));
                served += 1;
                let reply = filled(&b, request.values().len(), !request.timestamp());
                b.post(Kind::Reply, request.timestamp(), Values::Apart(reply)).unwrap();
            }
            while let Some(reply) = a.came.pop_front() {
                assert_eq!(reply.timestamp(), answered as u64);
                let bytes = posted.pop_front().unwrap();
                assert!(is_filled(reply.values(), bytes, !reply.timestamp()));
                answered += 1;
            }
            assert!(a.lost.is_none() && b.lost.is_none(), "{:?} {:?}", a.lost, b.lost);
        }
        assert_eq!(a.endpoint.lanes.credits(a.peer), 6);
        network.trace()
    };
    for_each_seed(30, |seed| {
        run(seed, Faults::none());
        run(seed, Faults::jittery());
        assert_eq!(run(seed, Faults::harsh()), run(seed, Faults::harsh()), "seed {seed}");
    });
}

#[test]
fn a_full_lane_is_an_error_and_opens_with_an_answer() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(2048, 3, 64 * MIB));
    for number in 0..3 {
        a.post(Kind::Request, number, Values::None).unwrap();
    }
    let error = a.post(Kind::Request, 3, Values::None).unwrap_err();
    assert!(matches!(error, Error::QueueFull { depth: 3, .. }), "{error}");
    settle(&mut a, &mut b);
    b.post(Kind::Reply, 0, Values::None).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(a.endpoint.lanes.credits(a.peer), 1);
    a.post(Kind::Request, 3, Values::None).unwrap();
}

#[test]
fn what_cannot_be_encoded_spends_nothing() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(2048, 3, 2 * MIB));
    let much = vec![1; 4 * MIB];
    let error = a.post(Kind::Request, 1, Values::Copied(&much)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!(a.endpoint.lanes.credits(a.peer), 3);
    a.post(Kind::Request, 2, Values::Copied(b"fits")).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(b.came.len(), 1);
    let error = b.post(Kind::Reply, 2, Values::Copied(&much)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    b.post(Kind::Failure, 2, Values::Copied(b"too much")).unwrap();
    settle(&mut a, &mut b);
    assert_eq!((a.came[0].kind(), a.endpoint.lanes.credits(a.peer)), (Kind::Failure, 3));
}

/// Goal: a long message is one write, and nothing else is sent for it; a used landing is replaced
/// in the answer, by a notice of its own only where the answer is placed. Method: counts frames,
/// once the first messages have asked for landings.
#[test]
fn nothing_is_sent_beside_long_messages() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(2048, 4, 256 * MIB));
    let frames = |side: &Side| side.endpoint.lanes.counters().frames_sent;
    // Whether the request is long, and whether its answer is placed; the frames that each side
    // sends.
    for (long, placed, expected) in
        [(true, false, (0, 1)), (false, true, (1, 0)), (true, true, (0, 1)), (false, false, (1, 1))]
    {
        for number in 0..10 {
            let before = (frames(&a), frames(&b));
            let values = filled(&a, if long { MIB } else { 8 }, number);
            let values = Values::Apart(values);
            match placed {
                true => drop(a.ask(number, MIB, values)),
                false => a.post(Kind::Request, number, values).unwrap(),
            }
            settle(&mut a, &mut b);
            let request = b.came.pop_front().unwrap();
            match request.offer() {
                Some(offer) => {
                    let values = filled(&b, MIB, !number);
                    b.endpoint.lanes.place(b.peer, values, offer).unwrap();
                    settle(&mut a, &mut b);
                    let (timestamp, memory, len) = a.placed.pop_front().unwrap();
                    assert_eq!((timestamp, len), (number, MIB));
                    assert!(is_filled(&memory, MIB, !number) && a.came.is_empty());
                }
                None => {
                    b.post(Kind::Reply, number, Values::None).unwrap();
                    settle(&mut a, &mut b);
                    assert_eq!((a.answered.pop(), a.came.len()), (Some(number), 0));
                }
            }
            let sent = (frames(&a) - before.0, frames(&b) - before.1);
            assert!(number == 0 || sent == expected, "{long} {placed} {number}: {sent:?}");
            assert_eq!(a.endpoint.lanes.credits(a.peer), 4);
        }
    }
}

#[test]
fn placed_answers_keep_their_order_behind_what_waits_for_a_landing() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(2048, 4, 256 * MIB));
    a.post(Kind::Request, 1, Values::None).unwrap();
    let offer = a.ask(2, 5000, Values::None);
    a.post(Kind::Request, 3, Values::None).unwrap();
    settle(&mut a, &mut b);
    let values = filled(&b, MIB, 1);
    b.post(Kind::Reply, 1, Values::Apart(values)).unwrap();
    let values = filled(&b, 5001, 2);
    let error = b.endpoint.lanes.place(b.peer, values, offer).unwrap_err();
    assert!(matches!(error, Error::OutsideOffer { len: 5001, offered: 5000, .. }), "{error}");
    let values = filled(&b, 4000, 2);
    b.endpoint.lanes.place(b.peer, values, offer).unwrap();
    b.post(Kind::Reply, 3, Values::None).unwrap();
    while a.answered.is_empty() {
        a.endpoint.wait(BACKOFF).unwrap();
        a.poll();
        b.endpoint.wait(BACKOFF).unwrap();
        b.poll();
    }
    assert_eq!((a.came[0].timestamp(), &a.answered[..]), (1, &[3][..]));
    let (timestamp, memory, len) = a.placed.pop_front().unwrap();
    assert_eq!((timestamp, memory.len(), len), (2, 5000, 4000));
    assert!(is_filled(&memory[..4000], 4000, 2));
    assert_eq!(a.endpoint.lanes.credits(a.peer), 4);
}

/// Who answers otherwise has answered: the offer is the requester's again, and to write it after
/// that loses the lane.
#[test]
fn an_offer_ends_with_whichever_answer_comes() {
    for withdrawn in [true, false] {
        let network = Network::new(1, Faults::none());
        let (mut a, mut b) = pair(&network, &config(2048, 4, 64 * MIB));
        let offer = a.ask(1, 5000, Values::None);
        a.ask(2, 5000, Values::None);
        settle(&mut a, &mut b);
        b.post(Kind::Failure, 1, Values::Copied(b"no")).unwrap();
        settle(&mut a, &mut b);
        assert_eq!((a.came[0].kind(), a.endpoint.lanes.credits(a.peer)), (Kind::Failure, 3));
        if withdrawn {
            assert_eq!(a.endpoint.lanes.withdraw(a.peer, offer.key.get()).unwrap().len(), 5000);
        }
        let values = filled(&b, 5000, 1);
        b.endpoint.lanes.place(b.peer, values, offer).unwrap();
        settle(&mut a, &mut b);
        assert!(a.lost.is_some() && b.lost.is_some() && a.placed.is_empty());
    }
}

/// More long answers than a peer's share of landings holds, to a side that posts nothing meanwhile.
#[test]
fn a_used_landing_makes_room_for_the_next_answer() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(2048, 16, 1 << 30));
    for number in 0..16 {
        a.post(Kind::Request, number, Values::None).unwrap();
    }
    settle(&mut a, &mut b);
    for number in 0..16 {
        let reply = filled(&b, 12 * MIB, number);
        b.post(Kind::Reply, number, Values::Apart(reply)).unwrap();
    }
    for number in 0..16 {
        settle(&mut a, &mut b);
        let reply = a.came.pop_front().expect("every answer comes");
        assert!(is_filled(reply.values(), 12 * MIB, number));
    }
}

/// Requests that wait for each other on the server must not wait for a landing of one of them.
#[test]
fn a_landing_is_served_before_the_message_is_answered() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(2048, 8, 1 << 30));
    for number in 0..3 {
        let values = filled(&a, 60 * MIB, number);
        a.post(Kind::Request, number, Values::Apart(values)).unwrap();
    }
    settle(&mut a, &mut b);
    assert_eq!(b.came.len(), 3, "all come although none is answered");
}

#[test]
fn landings_of_the_wrong_size_go_back_however_many() {
    for frame_bytes in [512, 16 << 10] {
        let network = Network::new(1, Faults::none());
        let (mut a, mut b) = pair(&network, &config(frame_bytes, 100, 1 << 30));
        for number in 0..90 {
            let values = filled(&a, 1200 << 10, number);
            a.post(Kind::Request, number, Values::Apart(values)).unwrap();
        }
        settle(&mut a, &mut b);
        assert_eq!(b.came.len(), 90);
        b.came.clear();
        for number in 0..90 {
            b.post(Kind::Reply, number, Values::None).unwrap();
        }
        settle(&mut a, &mut b);
        // Now a holds 90 landings of 1.2 MiB, and needs one of 100 MiB, which is more than its
        // share has left.
        let values = filled(&a, 100 * MIB, 5);
        a.post(Kind::Request, 90, Values::Apart(values)).unwrap();
        a.post(Kind::Request, 91, Values::Copied(b"behind it")).unwrap();
        settle(&mut a, &mut b);
        assert!(a.lost.is_none() && b.lost.is_none(), "{:?} {:?}", a.lost, b.lost);
        assert_eq!(b.came.len(), 2, "frames of {frame_bytes}");
        assert!(is_filled(b.came[0].values(), 100 * MIB, 5));
        assert_eq!(b.came[1].values(), b"behind it");
    }
}

#[test]
fn a_lane_that_wants_more_than_memory_holds_is_lost_and_says_so() {
    let network = Network::new(1, Faults::none());
    let (big, small) = (config(2048, 4, 64 * MIB), config(2048, 4, 4 * MIB));
    let (mut a, mut b) = (Side::new(&network, &big), Side::new(&network, &small));
    let address = b.endpoint.lanes.address().to_owned();
    a.endpoint.connect(&address).unwrap();
    settle(&mut a, &mut b);
    let values = filled(&a, 8 * MIB, 0);
    a.post(Kind::Request, 0, Values::Apart(values)).unwrap();
    settle(&mut a, &mut b);
    let error = b.lost.expect("b cannot take it").to_string();
    assert!(error.contains("dropped by this side") && error.contains("4194304"), "{error}");
    assert!(a.lost.is_some());
}
