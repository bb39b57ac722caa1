//! Short messages that share frames and images.

use super::*;

/// Goal: short messages share frames, bare answers even an image, and none of it waits for more
/// than a poll. Method: counts frames and messages of a burst that is longer than a frame.
#[test]
fn short_messages_leave_together_at_a_poll() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(2048, 200, 64 * MIB));
    for round in 0..50 {
        let (sent, answered) = (a.endpoint.lanes.counters(), b.endpoint.lanes.counters());
        for number in 0..100 {
            let values = filled(&a, number as usize, number); // 64 to 163 bytes, some of them padded
            a.post(Kind::Request, number, Values::Copied(&values)).unwrap();
        }
        assert_eq!(a.endpoint.lanes.credits(a.peer), 100, "round {round}");
        settle(&mut a, &mut b);
        for number in 0..100 {
            let request = b.came.pop_front().unwrap();
            assert_eq!(request.timestamp(), number);
            assert!(is_filled(request.values(), number as usize, number));
            match number {
                40 => b.post(Kind::Failure, 40, Values::Copied(b"no")).unwrap(),
                60 => b.post(Kind::Reply, 60, Values::Apart(filled(&b, 9, 9))).unwrap(),
                _ => b.endpoint.lanes.answer(b.peer, number).unwrap(),
            }
        }
        settle(&mut a, &mut b);
        let bare = (0..100).filter(|&number| number != 40 && number != 60);
        assert!(a.answered.drain(..).eq(bare), "round {round}");
        let came: Vec<_> = a.came.drain(..).map(|came| (came.timestamp(), came.kind())).collect();
        assert_eq!(came, [(40, Kind::Failure), (60, Kind::Reply)], "round {round}");
        let frames = (
            a.endpoint.lanes.counters().frames_sent - sent.frames_sent,
            b.endpoint.lanes.counters().frames_sent - answered.frames_sent,
        );
        assert!((6..=8).contains(&frames.0) && frames.1 == 1, "{frames:?}");
        assert_eq!(b.endpoint.lanes.counters().messages_sent - answered.messages_sent, 100);
        assert_eq!(a.endpoint.lanes.counters().messages_received - sent.messages_received, 100);
        assert_eq!(a.endpoint.lanes.credits(a.peer), 200);
    }
}

/// Goal: what is packed is not overtaken by writes and longer frames behind it. Method: answers of
/// all kinds in a row.
#[test]
fn packed_answers_keep_their_place_among_others() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(16 << 10, 16, 256 * MIB));
    let mut offers = Vec::new();
    for number in 0..12 {
        match number % 4 {
            1 => offers.push(a.ask(number, 5000, Values::None)),
            _ => a.post(Kind::Request, number, Values::None).unwrap(),
        }
    }
    settle(&mut a, &mut b);
    b.came.clear();
    let mut offers = offers.into_iter();
    for number in 0..12 {
        match number % 4 {
            0 => b.endpoint.lanes.answer(b.peer, number).unwrap(),
            1 => {
                let values = filled(&b, 5000, number);
                b.endpoint.lanes.place(b.peer, values, offers.next().unwrap()).unwrap();
            }
            2 => {
                let bytes = if number == 2 { 12_000 } else { 300_000 }; // a frame of its own, or a landing
                let values = filled(&b, bytes, number);
                b.post(Kind::Reply, number, Values::Apart(values)).unwrap();
            }
            _ => b.post(Kind::Failure, number, Values::Copied(b"no")).unwrap(),
        }
    }
    let mut order = Vec::new();
    for _ in 0..20 {
        a.endpoint.wait(BACKOFF).unwrap();
        a.endpoint.poll().unwrap();
        order.extend(a.timestamps());
        b.endpoint.wait(BACKOFF).unwrap();
        b.poll();
    }
    assert_eq!(order, (0..12).collect::<Vec<_>>());
    assert_eq!(a.endpoint.lanes.credits(a.peer), 16);
}

/// Goal: messages in a row that are alike are taken together, each once and in order, however many
/// are read at a time, up to what a side takes between two polls; those that are left end with
/// their lane.
#[test]
fn runs_are_taken_together_until_their_lane_is_closed() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(8192, 200, 64 * MIB));
    let post = |a: &mut Side, number: u64| {
        let values = [number as u8; 6];
        let (keys, values) = (&[number][..], Values::Copied(&values));
        let draft = Draft { keys, values, timestamp: number, ..Draft::new(Kind::Request) };
        a.endpoint.lanes.post(a.peer, draft, &mut Coding::plain()).unwrap();
    };
    let run = |side: &mut Side| -> usize {
        while !side.endpoint.poll().unwrap() {
            side.endpoint.wait(BACKOFF).unwrap();
        }
        match side.endpoint.take() {
            Some(Arrival::Message { peer }) if peer == side.peer => {
                side.endpoint.inbox.message().len()
            }
            other => panic!("{other:?}"),
        }
    };
    (0..100).for_each(|number| post(&mut a, number));
    a.endpoint.poll().unwrap();
    let mut next = 0;
    while next < 100 {
        let len = run(&mut b);
        assert!(len == 64 || next + len == 100, "{len} behind {next}");
        for _ in 0..len {
            let values = [next as u8; 6];
            let is_next = |message: &Message| {
                assert_eq!(
                    (message.timestamp(), message.keys()),
                    (next as u64, &[next as u64][..])
                );
                assert_eq!(message.values(), values);
            };
            is_next(b.endpoint.inbox.message());
            match next % 2 {
                0 => b.endpoint.inbox.message_mut().advance(),
                _ => is_next(&b.endpoint.pop().unwrap()),
            }
            b.endpoint.lanes.reply(b.peer, 0, next as u64, &values).unwrap();
            next += 1;
        }
        assert!(b.endpoint.inbox.message().is_empty() && b.endpoint.pop().is_none());
    }
    b.endpoint.poll().unwrap();
    let mut replied = 0;
    while replied < 100 {
        run(&mut a);
        while !a.endpoint.inbox.message().is_empty() {
            let message = a.endpoint.inbox.message();
            let expected = (replied, &[replied as u8; 6][..]);
            assert_eq!((message.timestamp(), message.values()), expected);
            a.endpoint.inbox.message_mut().advance();
            replied += 1;
        }
    }
    assert_eq!(a.endpoint.lanes.credits(a.peer), 200);
    (0..10).for_each(|number| post(&mut a, number));
    a.endpoint.poll().unwrap();
    assert_eq!(run(&mut b), 10);
    b.endpoint.inbox.message_mut().advance();
    b.endpoint.disconnect(b.peer);
    assert!(b.endpoint.inbox.message().is_empty() && b.endpoint.take().is_none());
}

/// Goal: answers that bring landings, and requests with an offer, are alike: they share a frame and
/// a run, and each offer arrives.
#[test]
fn offers_come_in_runs() {
    const COUNT: u64 = 8;
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(2048, 16, 256 * MIB));
    let frames = |side: &Side| side.endpoint.lanes.counters().frames_sent;
    for round in 0..5 {
        let before = (frames(&a), frames(&b));
        for number in 0..COUNT {
            let values = filled(&a, 50_000, number);
            a.post(Kind::Request, number, Values::Apart(values)).unwrap();
        }
        settle(&mut a, &mut b);
        for request in std::mem::take(&mut b.came) {
            let number = request.timestamp();
            assert!(is_filled(request.values(), 50_000, number), "{round}: {number}");
            b.endpoint.lanes.answer(b.peer, number).unwrap();
        }
        settle(&mut a, &mut b);
        assert!(a.answered.drain(..).eq(0..COUNT));
        let sent = (frames(&a) - before.0, frames(&b) - before.1);
        assert!(round == 0 || sent == (0, 1), "{round}: {sent:?}, with no landing asked for");
    }
    for round in 0..2 {
        let mut offers = Vec::new();
        for number in 0..COUNT {
            let place = a.endpoint.lanes.memory().allocate(3000).unwrap();
            let offer = Some(a.endpoint.lanes.offer(a.peer, place).unwrap());
            let (keys, timestamp) = (&[number][..], number);
            let draft = Draft { keys, timestamp, offer, ..Draft::new(Kind::Request) };
            a.endpoint.lanes.post(a.peer, draft, &mut Coding::plain()).unwrap();
            offers.extend(offer);
        }
        a.endpoint.poll().unwrap();
        while !b.endpoint.poll().unwrap() {
            b.endpoint.wait(BACKOFF).unwrap();
        }
        assert!(matches!(b.endpoint.take(), Some(Arrival::Message { .. })));
        let message = b.endpoint.inbox.message();
        assert!(message.has_offers() && message.len() == COUNT as usize);
        for (number, offer) in (0..).zip(offers) {
            assert_eq!(b.endpoint.inbox.message().offer(), Some(offer), "{round}: {number}");
            match number % 2 {
                0 => b.endpoint.inbox.message_mut().advance(),
                _ => {
                    let message = b.endpoint.pop().unwrap();
                    assert_eq!((message.offer(), message.keys()), (Some(offer), &[number][..]));
                }
            }
            let values = filled(&b, 3000, number);
            b.endpoint.lanes.place(b.peer, values, offer).unwrap();
        }
        settle(&mut a, &mut b);
        for (number, (timestamp, memory, len)) in (0..).zip(a.placed.drain(..)) {
            assert!(timestamp == number && is_filled(&memory[..len], 3000, number));
        }
        assert_eq!(a.endpoint.lanes.credits(a.peer), 16);
    }
}

/// Goal: forwarded requests of one origin are a run, of which the first ones can be kept while the
/// others are read. Method: two origins in turn, and the same frame layout over and over.
#[test]
fn forwarded_requests_of_one_origin_come_in_runs() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = pair(&network, &config(8192, 200, 64 * MIB));
    let origin = |node: u32| Origin { node, incarnation: 9 << 40 };
    for round in 0..4 {
        for number in 0..40 {
            let values = [number as u8; 6];
            let (keys, values) = (&[number][..], Values::Copied(&values));
            let origin = Some(origin(number as u32 / 10 % 2));
            let draft =
                Draft { keys, values, origin, timestamp: number, ..Draft::new(Kind::Request) };
            a.endpoint.lanes.post(a.peer, draft, &mut Coding::plain()).unwrap();
        }
        let mut kept = Vec::new();
        let mut next = 0;
        while next < 40 {
            a.endpoint.poll().unwrap();
            b.endpoint.wait(BACKOFF).unwrap();
            b.endpoint.poll().unwrap();
            while let Some(arrival) = b.endpoint.take() {
                let Arrival::Message { peer } = arrival else { panic!("{arrival:?}") };
                assert_eq!(b.endpoint.inbox.message().len(), 10, "round {round}");
                let message = b.endpoint.inbox.message_mut();
                kept.push(message.first(4));
                for _ in 0..10 {
                    assert_eq!(message.origin(), Some(origin(next as u32 / 10 % 2)));
                    assert_eq!(
                        (message.timestamp(), message.keys(), message.values()),
                        (next, &[next][..], &[next as u8; 6][..])
                    );
                    message.advance();
                    next += 1;
                }
                (next - 10..next).for_each(|it| b.endpoint.lanes.answer(peer, it).unwrap());
            }
        }
        for (at, mut message) in (0..).zip(kept) {
            for number in at * 10..at * 10 + 4 {
                assert_eq!(message.origin(), Some(origin(at as u32 % 2)));
                assert_eq!((message.timestamp(), message.keys()), (number, &[number][..]));
                message.advance();
            }
            assert!(message.is_empty());
        }
        settle(&mut a, &mut b);
    }
    assert_eq!(a.endpoint.lanes.credits(a.peer), 200);
}

/// Goal: a lane that goes while messages wait in its open frame is reported once, and takes nothing
/// any more.
#[test]
fn a_lane_lost_with_an_open_frame_is_reported_once() {
    for closes in [true, false] {
        let network = Network::new(1, Faults::none());
        let (mut a, mut b) = pair(&network, &config(2048, 8, 64 * MIB));
        if closes {
            b.endpoint.disconnect(b.peer);
        } else {
            drop(b);
            b = Side::new(&network, &config(2048, 8, 64 * MIB));
        }
        for _ in 0..2 {
            b.endpoint.wait(BACKOFF).unwrap();
            b.poll();
        }
        a.post(Kind::Request, 1, Values::None).unwrap();
        a.post(Kind::Request, 2, Values::None).unwrap();
        let mut arrivals = Vec::new();
        for _ in 0..5 {
            a.endpoint.wait(BACKOFF).unwrap();
            a.endpoint.poll().unwrap();
            arrivals.extend(std::iter::from_fn(|| a.endpoint.take()));
        }
        assert!(matches!(arrivals[..], [Arrival::Lost { .. }]), "{arrivals:?}");
        let error = a.post(Kind::Request, 3, Values::None).unwrap_err();
        assert!(matches!(error, Error::NotConnected { .. }), "{error}");
        assert!(a.endpoint.lanes.answer(a.peer, 3).is_err());
    }
}

/// What was taken on is sent or the lane is lost: a transport whose queue is shorter than the
/// lane's credits allow loses it.
#[test]
fn a_frame_that_cannot_be_posted_loses_its_lane() {
    let network = Network::new(1, Faults::none());
    let config = VanConfig { queue_depth: 1, ..config(512, 100, 64 * MIB) };
    let (mut a, _b) = pair(&network, &config);
    let values = [7; 400];
    let posted = (0..5).map(|number| a.post(Kind::Request, number, Values::Copied(&values)));
    let errors: Vec<Error> = posted.filter_map(Result::err).collect();
    assert!(matches!(
        errors[..],
        [Error::QueueFull { depth: 1, .. }, Error::NotConnected { .. }, ..]
    ));
    assert!(a.poll());
    let lost = a.lost.expect("it is reported").to_string();
    assert!(lost.contains("full at 1"), "{lost}");
}
