//! Peers that do as they please, on raw transports: each loses its own lane, and no other.

use super::*;

/// A peer that does as it pleases.
struct Hostile {
    transport: SimTransport,
    peer: PeerId,
}

impl Hostile {
    fn frame(&mut self, draft: Draft<'_>) -> Result<(), Error> {
        let outgoing = encode(draft, &mut Coding::plain(), &self.transport.about().memory)?;
        self.transport.post_send(self.peer, outgoing.head.into()).map(drop)
    }

    fn garbage(&mut self, bytes: &[u8]) {
        let mut frame = self.transport.about().memory.allocate(FRAME_PREFIX + bytes.len()).unwrap();
        frame[FRAME_PREFIX..].copy_from_slice(bytes);
        self.transport.post_send(self.peer, frame.into()).unwrap();
    }

    /// Sends a request that fills the landing it was granted.
    fn request_into(&mut self, grant: Offer, timestamp: u64) {
        let values = vec![0; grant.len.get() as usize - 200];
        let draft =
            Draft { timestamp, values: Values::Copied(&values), ..Draft::new(Kind::Request) };
        let memory = &self.transport.about().memory;
        let mut outgoing = encode(draft, &mut Coding::plain(), memory).unwrap();
        let image = outgoing.head.split_off(FRAME_PREFIX).share();
        self.transport.post_write(self.peer, image.into(), &grant, 8).unwrap();
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.transport.wait(BACKOFF).unwrap();
        self.transport.poll(&mut events).unwrap();
        events
    }
}

/// What `misdeed` does must lose its own lane, for a reason that holds `words`, and leave an honest
/// one alone.
fn only_its_own_lane_is_lost(words: &str, misdeed: impl Fn(&mut Hostile)) {
    let network = Network::new(1, Faults::none());
    let config = config(2048, 4, 512 * MIB);
    let (mut honest, mut victim) = pair(&network, &config);
    let transport = network.transport(&config);
    let mut hostile = Hostile { transport, peer: PeerId(0) };
    hostile.peer = hostile.transport.connect(victim.endpoint.lanes.address()).unwrap();
    let lane = victim.peer;
    settle(&mut honest, &mut victim);
    assert!(matches!(hostile.events()[..], [Event::Connected { .. }]));
    misdeed(&mut hostile);
    hostile.events();
    settle(&mut honest, &mut victim);
    let error = victim.lost.take().expect("the hostile lane is lost").to_string();
    assert!(error.contains(words), "{error}");
    let events = hostile.events();
    let noticed = events.iter().any(|event| matches!(event, Event::Lost { .. }));
    assert!(noticed, "after {error}: {events:?}");
    victim.peer = lane;
    victim.came.clear();
    let values = filled(&honest, 5 * MIB, 3);
    honest.post(Kind::Request, 1, Values::Apart(values)).unwrap();
    settle(&mut honest, &mut victim);
    assert!(is_filled(victim.came[0].values(), 5 * MIB, 3), "the honest lane still works");
    assert!(
        victim.endpoint.lanes.memory().bytes_reserved() < 64 * MIB,
        "nothing is taken for nothing"
    );
}

#[test]
fn hostile_peers_lose_only_their_own_lane() {
    let mine = |key: u64, len: u64| Offer { key: key.into(), address: 0.into(), len: len.into() };
    only_its_own_lane_is_lost("too few", |hostile| hostile.garbage(b"hello?"));
    only_its_own_lane_is_lost("another protocol", |hostile| hostile.garbage(&[0x55; 200]));
    let pack = |drafts: Vec<Draft<'_>>| {
        let (pool, mut frame) = (caravan_van::Pool::new(MIB), Vec::new());
        for draft in drafts {
            frame.resize(usize::next_multiple_of(frame.len(), 8), 0);
            let at = frame.len();
            let image = encode(draft, &mut Coding::plain(), &pool).unwrap().head;
            frame.extend_from_slice(&image[FRAME_PREFIX..]);
            frame[at + 60..at + 64].fill(0);
        }
        let sum = crc_fast::crc32_iscsi(&frame);
        frame[60..64].copy_from_slice(&sum.to_le_bytes());
        frame
    };
    // A bare reply, with `bytes` bytes behind it that it says are records.
    let run = |kind: Kind, bytes: usize, damage: fn(&mut [u8])| {
        let pool = caravan_van::Pool::new(MIB);
        let image = encode(Draft::new(Kind::Reply), &mut Coding::plain(), &pool).unwrap().head;
        let mut frame = image[FRAME_PREFIX..].to_vec();
        frame[5] = kind as u8;
        frame[52..56].copy_from_slice(&(bytes as u32).to_le_bytes());
        frame.resize(frame.len() + bytes, 0);
        damage(&mut frame);
        frame[60..64].fill(0);
        let sum = crc_fast::crc32_iscsi(&frame);
        frame[60..64].copy_from_slice(&sum.to_le_bytes());
        frame
    };
    let request = |timestamp| Draft { timestamp, ..Draft::new(Kind::Request) };
    only_its_own_lane_is_lost("full at 4", |hostile| {
        hostile.garbage(&pack((0..5).map(request).collect()));
    });
    only_its_own_lane_is_lost("does not match", |hostile| {
        let mut frame = pack((0..3).map(request).collect());
        frame[64 + 20] ^= 1;
        hostile.garbage(&frame);
    });
    only_its_own_lane_is_lost("an answer that nobody asked for", |hostile| {
        hostile.garbage(&pack(vec![request(1), Draft::new(Kind::Reply)]));
    });
    for bytes in [8, 1600] {
        only_its_own_lane_is_lost("an answer that nobody asked for", |hostile| {
            hostile.garbage(&run(Kind::Replies, bytes, |_| {}));
        });
    }
    for (bytes, damage) in [
        (0, (|_| {}) as fn(&mut [u8])),
        (12, |_| {}),
        (8, |image| image[7] = 64),
        (8, |image| image[48] = 8),
        (8, |image| image[56] = 1),
    ] {
        only_its_own_lane_is_lost("no run has", |hostile| {
            hostile.garbage(&run(Kind::Replies, bytes, damage));
        });
    }
    only_its_own_lane_is_lost("no run has", |hostile| {
        hostile.garbage(&run(Kind::Requests, 16, |_| {}));
    });
    only_its_own_lane_is_lost("full at 4", |hostile| {
        for timestamp in 0..5 {
            hostile.frame(Draft { timestamp, ..Draft::new(Kind::Request) }).unwrap();
        }
    });
    for kind in [Kind::Reply, Kind::Failure] {
        only_its_own_lane_is_lost("an answer that nobody asked for", |hostile| {
            hostile.frame(Draft::new(kind)).unwrap();
        });
    }
    only_its_own_lane_is_lost("0 bytes offered", |hostile| {
        let data = hostile.transport.about().memory.allocate(100).unwrap().share();
        hostile.transport.post_write(hostile.peer, data.into(), &mine(3, 100), 0).unwrap();
    });
    for bytes in [u64::MAX, 5 << 30, 513 << 20] {
        only_its_own_lane_is_lost("bytes offered", |hostile| {
            hostile.frame(Draft { timestamp: bytes, ..Draft::new(Kind::Want) }).unwrap();
        });
    }
    only_its_own_lane_is_lost("is full at", |hostile| {
        for _ in 0..70 {
            hostile.frame(Draft { timestamp: 3000, ..Draft::new(Kind::Want) }).unwrap();
        }
    });
    only_its_own_lane_is_lost("0 bytes offered", |hostile| {
        let values = Values::Copied(&[7; 8]); // gives back what it does not hold
        hostile.frame(Draft { timestamp: 10, values, ..Draft::new(Kind::Want) }).unwrap();
    });
    only_its_own_lane_is_lost("a landing that nobody asked for", |hostile| {
        for key in 0..70 {
            hostile.frame(Draft { offer: Some(mine(key, 1)), ..Draft::new(Kind::Grant) }).unwrap();
        }
    });
    only_its_own_lane_is_lost("a landing that nobody asked for", |hostile| {
        hostile.frame(Draft::new(Kind::Grant)).unwrap();
    });
}

/// What a peer writes into a landing is read like a frame.
#[test]
fn what_lands_is_checked() {
    let network = Network::new(1, Faults::none());
    let config = config(2048, 4, 64 * MIB);
    let notice = |memory: &caravan_van::Pool| {
        let draft = Draft { timestamp: 10, ..Draft::new(Kind::Want) };
        let mut outgoing = encode(draft, &mut Coding::plain(), memory).unwrap();
        outgoing.head.split_off(FRAME_PREFIX)
    };
    let garbage = |memory: &caravan_van::Pool| {
        let mut garbage = memory.allocate(200).unwrap();
        garbage.fill(0x55);
        garbage
    };
    let short = |memory: &caravan_van::Pool| memory.allocate(7).unwrap();
    type Make<'a> = &'a dyn Fn(&caravan_van::Pool) -> Buffer;
    let makes: [(Make<'_>, &str); 3] = [
        (&notice, "a long notice that nobody asked for"),
        (&garbage, "another protocol"),
        (&short, "too few"),
    ];
    for (make, words) in makes {
        let mut victim = Side::new(&network, &config);
        let transport = network.transport(&config);
        let mut hostile = Hostile { transport, peer: PeerId(0) };
        hostile.peer = hostile.transport.connect(victim.endpoint.lanes.address()).unwrap();
        let mut grant = None;
        let mut asked = false;
        while grant.is_none() {
            victim.endpoint.wait(BACKOFF).unwrap();
            victim.poll();
            for event in hostile.events() {
                match event {
                    Event::Connected { .. } if !asked => {
                        let draft = Draft { timestamp: 3000, ..Draft::new(Kind::Want) };
                        hostile.frame(draft).unwrap();
                        asked = true;
                    }
                    Event::Received { frame, .. } => {
                        let memory = &hostile.transport.about().memory;
                        grant = Message::decode(frame, memory).unwrap().offer();
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        let data = make(&hostile.transport.about().memory).share();
        hostile.transport.post_write(hostile.peer, data.into(), &grant.unwrap(), 8).unwrap();
        hostile.events();
        victim.endpoint.wait(BACKOFF).unwrap();
        victim.poll();
        let error = victim.lost.expect("the hostile lane is lost").to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// A peer may give back only landings, not memory that was offered with a request.
#[test]
fn keys_of_other_offers_cannot_be_given_back() {
    let network = Network::new(1, Faults::none());
    let config = config(2048, 4, 64 * MIB);
    let mut server = network.transport(&config);
    let mut worker = Side::new(&network, &config);
    worker.endpoint.connect(&server.about().address).unwrap();
    let mut events = Vec::new();
    for _ in 0..3 {
        server.wait(BACKOFF).unwrap();
        server.poll(&mut events).unwrap();
        worker.endpoint.wait(BACKOFF).unwrap();
        worker.poll();
    }
    let Event::Connected { peer, .. } = events[0] else { panic!("{events:?}") };
    let place = worker.endpoint.lanes.memory().allocate(100).unwrap();
    let offer = worker.endpoint.lanes.offer(worker.peer, place).unwrap();
    let mut hostile = Hostile { transport: server, peer };
    let values = Values::Copied(&offer.key.to_bytes());
    hostile.frame(Draft { timestamp: 10, values, ..Draft::new(Kind::Want) }).unwrap();
    hostile.events();
    worker.endpoint.wait(BACKOFF).unwrap();
    worker.poll();
    assert!(worker.lost.is_some());
}

/// An honest lane and two hostile ones to the same endpoint, which has 64 MiB.
struct Crowd {
    honest: Side,
    victim: Side,
    /// The honest lane, as the victim knows it.
    lane: PeerId,
    hostile: Vec<Hostile>,
}

impl Crowd {
    fn new() -> Crowd {
        let network = Network::new(1, Faults::none());
        let config = config(2048, 8, 64 * MIB);
        let (mut honest, mut victim) = pair(&network, &config);
        let lane = victim.peer;
        let connect = |_| {
            let mut hostile = Hostile { transport: network.transport(&config), peer: PeerId(0) };
            hostile.peer = hostile.transport.connect(victim.endpoint.lanes.address()).unwrap();
            hostile
        };
        let mut hostile: Vec<_> = (0..2).map(connect).collect();
        settle(&mut honest, &mut victim);
        for one in &mut hostile {
            assert!(matches!(one.events()[..], [Event::Connected { .. }]));
        }
        Crowd { honest, victim, lane, hostile }
    }

    /// The honest lane still carries long messages both ways.
    fn honest_lane_is_served(mut self) {
        let Crowd { honest, victim, lane, .. } = &mut self;
        victim.peer = *lane;
        const BYTES: usize = 400 << 10;
        for number in 0..20 {
            victim.came.clear();
            let values = filled(honest, BYTES, number);
            honest.post(Kind::Request, number, Values::Apart(values)).unwrap();
            settle(honest, victim);
            assert!(is_filled(victim.came[0].values(), BYTES, number), "request {number}");
            let values = filled(victim, BYTES, !number);
            victim.post(Kind::Reply, number, Values::Apart(values)).unwrap();
            settle(honest, victim);
            assert!(is_filled(honest.came.pop_front().unwrap().values(), BYTES, !number));
        }
        assert!(victim.lost.is_none() && honest.lost.is_none(), "{:?}", victim.lost);
    }
}

/// Lanes that ask for all the landings they can get, to keep them or to send what is never
/// answered, leave some to others.
#[test]
fn greedy_lanes_leave_landings_to_others() {
    for uses in [false, true] {
        let mut crowd = Crowd::new();
        let mut kept = VecDeque::new();
        for round in 0..2 {
            for hostile in &mut crowd.hostile {
                for at in 0..30 {
                    let timestamp = if at < 20 { 3 << 20 } else { 500 << 10 };
                    hostile.frame(Draft { timestamp, ..Draft::new(Kind::Want) }).unwrap();
                }
                hostile.events();
                settle(&mut crowd.honest, &mut crowd.victim);
                let mut grants = Vec::new();
                for event in hostile.events() {
                    let Event::Received { frame, .. } = event else { panic!("{event:?}") };
                    grants.extend(offers(frame, &hostile.transport.about().memory));
                }
                assert!(round > 0 || !grants.is_empty(), "it is served, too, as far as it goes");
                for (number, grant) in grants.into_iter().filter(|_| uses).enumerate().take(4) {
                    hostile.request_into(grant, 4 * round + number as u64);
                }
                hostile.events();
                settle(&mut crowd.honest, &mut crowd.victim);
            }
            kept.append(&mut crowd.victim.came); // as requests that are parked
        }
        assert!(uses != kept.is_empty());
        crowd.honest_lane_is_served();
    }
}

/// Offers of the grants in a frame.
fn offers(frame: Buffer, memory: &caravan_van::Pool) -> Vec<Offer> {
    let bytes = 64 + size_of::<Offer>();
    let images = frame.chunks_exact(bytes).map(|image| {
        let mut copy = memory.allocate(bytes).unwrap();
        copy.copy_from_slice(image);
        copy
    });
    let grants = images.enumerate().map(|(at, image)| {
        let mut image = image;
        if at > 0 || frame.len() > bytes {
            // The checksum of all lies in the first.
            image[60..64].fill(0);
            let sum = crc_fast::crc32_iscsi(&image);
            image[60..64].copy_from_slice(&sum.to_le_bytes());
        }
        Message::decode(image, memory).unwrap().offer().unwrap()
    });
    grants.collect()
}

/// Answers that wait for a peer to grant a landing, which it never does, leave memory for others.
#[test]
fn answers_that_are_not_fetched_leave_memory_to_others() {
    let mut crowd = Crowd::new();
    let mut refused = 0;
    for peer in [1, 2] {
        for timestamp in 0..8 {
            let hostile = &mut crowd.hostile[peer - 1];
            hostile.frame(Draft { timestamp, ..Draft::new(Kind::Request) }).unwrap();
            hostile.events();
            settle(&mut crowd.honest, &mut crowd.victim);
            crowd.victim.came.pop_front().expect("the request came");
            crowd.victim.peer = PeerId(peer as u32);
            let victim = &mut crowd.victim;
            let Ok(values) = victim.endpoint.lanes.memory().allocate(4 * MIB) else { continue };
            match victim.post(Kind::Reply, timestamp, Values::Apart(values.share())) {
                Ok(()) => {}
                Err(Error::OutOfMemory { .. }) => {
                    victim.post(Kind::Failure, timestamp, Values::Copied(b"no memory")).unwrap();
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 0);
    crowd.honest_lane_is_served();
}
