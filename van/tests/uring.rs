//! The io_uring van on this machine's kernel: the contract of a van, for each way to wait, and what
//! is its own.
#![cfg(all(target_os = "linux", feature = "uring"))]

use crate::support;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use caravan_van::conformance::{a_crowd_costs_the_active_lane_nothing, lanes};
use caravan_van::handshake::{Credentials, refusal};
#[cfg(feature = "shm")]
use caravan_van::mixed::Mixed;
use caravan_van::socket::CARRIER;
use caravan_van::uring::Uring;
use caravan_van::{Error, Event, FRAME_PREFIX, PeerId, Transport, VanConfig, Wait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{connect, frame};

/// A transport, or `None` with a line that says why this machine has none.
fn uring(config: &VanConfig) -> Option<Uring> {
    match Uring::new(config) {
        Ok(uring) => Some(uring),
        Err(Error::Unavailable { reason, .. }) => {
            eprintln!("skipped: the uring van does not work here: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// What makes transports that wait like this; a test where there are none ends here.
macro_rules! makes {
    ($wait:expr) => {
        makes!($wait, false)
    };
    ($wait:expr, $encrypt:expr) => {{
        let Some(_) = super::uring(&super::VanConfig::default()) else { return };
        |config| {
            let config = super::VanConfig { wait: $wait, encrypt: $encrypt, ..config };
            super::Uring::new(&config).expect("as before")
        }
    }};
}
use makes;

fn config(wait: Wait) -> VanConfig {
    VanConfig { wait, memory_bytes: 64 << 20, ..VanConfig::default() }
}

/// Moves all of `vans` along until the one at `at` has something to report.
fn next(vans: &mut [&mut Uring], at: usize) -> Event {
    let began = Instant::now();
    let mut events = Vec::new();
    loop {
        for (index, van) in vans.iter_mut().enumerate() {
            let mut others = Vec::new();
            van.wait(Duration::from_millis(1)).unwrap();
            van.poll(if index == at { &mut events } else { &mut others }).unwrap();
        }
        if !events.is_empty() {
            return events.remove(0);
        }
        assert!(began.elapsed() < Duration::from_secs(20), "nothing came");
    }
}

/// Two that are connected, and what each calls the other.
fn pair(wait: Wait) -> Option<(Uring, Uring, PeerId, PeerId)> {
    let (mut a, mut b) = (uring(&config(wait))?, uring(&config(wait))?);
    let (to_b, to_a) = connect(&mut a, &mut b);
    Some((a, b, to_b, to_a))
}

/// Goal: memory that the kernel is still working on comes back only after it has let go. Method:
/// fill the connection until a send is stuck, with a write into an offer half done, then drop
/// either side.
#[test]
fn a_connection_can_end_with_operations_under_way() {
    for drop_sender in [true, false] {
        let Some((mut a, mut b, to_b, to_a)) = pair(Wait::default()) else { return };
        let place = b.about().memory.allocate(32 << 20).unwrap();
        let address = place.as_ptr();
        let offer = b.offer(to_a, place).unwrap();
        let data = a.about().memory.allocate(32 << 20).unwrap().share();
        a.post_write(to_b, data.clone().into(), &offer, 0).unwrap();
        let mut events = Vec::new();
        a.poll(&mut events).unwrap();
        b.poll(&mut events).unwrap();
        b.poll(&mut events).unwrap();
        assert!(events.is_empty(), "{events:?}");
        if drop_sender {
            drop(a);
            assert!(data.reclaim().is_ok(), "the lane is gone and so is its hold on the data");
            let event = next(&mut [&mut b], 0);
            assert!(matches!(event, Event::Lost { peer, .. } if peer == to_a), "{event:?}");
            assert!(b.withdraw(to_a, offer.key.get()).is_err(), "its write has begun");
            assert_eq!(
                b.about().memory.allocate(32 << 20).unwrap().as_ptr(),
                address,
                "dropped with it"
            );
        } else {
            drop(b);
            let event = next(&mut [&mut a], 0);
            assert!(matches!(event, Event::Lost { peer, .. } if peer == to_b), "{event:?}");
            assert!(data.reclaim().is_ok(), "a lost lane holds nothing");
        }
    }
}

#[test]
fn strangers_are_refused_and_silent_ones_dropped() {
    let Some(mut van) = uring(&config(Wait::default())) else { return };
    let mut stranger = TcpStream::connect(&van.about().address).unwrap();
    let mut silent = TcpStream::connect(&van.about().address).unwrap();
    let other = VanConfig { cluster: 99, ..VanConfig::default() };
    stranger.write_all(&Credentials::new(&other, CARRIER).call().1).unwrap();
    for socket in [&stranger, &silent] {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    let (mut told, mut unread) = (Vec::new(), Vec::new());
    let (mut told_all, mut dropped) = (false, false);
    let began = Instant::now();
    let mut events = Vec::new();
    while !(told_all && dropped) {
        van.wait(Duration::from_millis(20)).unwrap();
        van.poll(&mut events).unwrap();
        told_all |= stranger.read_to_end(&mut told).is_ok();
        dropped |= silent.read_to_end(&mut unread).is_ok();
        assert!(began.elapsed() < Duration::from_secs(20), "{told_all} {dropped}");
    }
    assert_eq!(told, refusal());
    assert!(unread.is_empty(), "{unread:02x?}");
    assert!(events.is_empty(), "nobody hears of strangers: {events:?}");
}

#[test]
fn a_hundred_peers_are_served_by_one_ring() {
    let Some(mut server) = uring(&config(Wait::default())) else { return };
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = uring(&config(Wait::default())).unwrap();
        let to_server = client.connect(&server.about().address).unwrap();
        let event = next(&mut [&mut client, &mut server], 0);
        assert!(matches!(event, Event::Connected { .. }), "{event:?}");
        clients.push((client, to_server));
    }
    for (client, to_server) in &mut clients {
        client.post_send(*to_server, frame(client, b"request").into()).unwrap();
        client.poll(&mut Vec::new()).unwrap();
    }
    let (mut received, began) = (0, Instant::now());
    let mut events = Vec::new();
    while received < clients.len() {
        server.wait(Duration::from_millis(10)).unwrap();
        server.poll(&mut events).unwrap();
        for event in events.drain(..) {
            if let Event::Received { peer, frame: request } = event {
                assert_eq!(&request[..], b"request");
                server.post_send(peer, frame(&server, b"answer").into()).unwrap();
                received += 1;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{received}");
    }
    server.poll(&mut events).unwrap();
    for (client, _) in &mut clients {
        let event = next(&mut [client], 0);
        assert!(matches!(&event, Event::Received { frame, .. } if &frame[..] == b"answer"));
    }
}

#[test]
fn an_idle_transport_sleeps() {
    let Some((_a, mut b, ..)) = pair(Wait::default()) else { return };
    b.wait(Duration::from_millis(100)).unwrap(); // the tries after the hello end
    let before = b.counters();
    b.wait(Duration::from_millis(100)).unwrap();
    let after = b.counters();
    assert!(after.sleeps > before.sleeps, "it never slept");
    assert!(after.system_calls - before.system_calls < 10, "{after:?}");
}

/// Goal: the ring wakes a thread that sleeps on its descriptor, as one beside other vans does.
/// Method: two threads that sleep at once, and for a minute if nobody wakes them.
#[test]
#[cfg(feature = "shm")]
fn the_rings_descriptor_ends_a_sleep() {
    const ROUNDS: u64 = 500;
    let Some(_) = uring(&config(Wait::Block)) else { return };
    let beside = || {
        let ring = Uring::new(&config(Wait::Block)).unwrap();
        Mixed::new(vec![Box::new(ring)], Wait::Block).unwrap()
    };
    let next = |van: &mut Mixed, events: &mut Vec<Event>| {
        while events.is_empty() {
            van.wait(Duration::from_secs(60)).unwrap();
            van.poll(events).unwrap();
        }
        events.remove(0)
    };
    let (say, address) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let (mut van, mut events) = (beside(), Vec::new());
        say.send(van.about().address.clone()).unwrap();
        assert!(matches!(next(&mut van, &mut events), Event::Connected { .. }));
        while let Event::Received { peer, .. } = next(&mut van, &mut events) {
            let answer = van.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
            van.post_send(peer, answer.into()).unwrap();
        }
        van.counters()
    });
    let (mut van, mut events) = (beside(), Vec::new());
    let peer = van.connect(&address.recv().unwrap()).unwrap();
    assert!(matches!(next(&mut van, &mut events), Event::Connected { .. }));
    for _ in 0..ROUNDS {
        let request = van.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
        van.post_send(peer, request.into()).unwrap();
        assert!(matches!(next(&mut van, &mut events), Event::Received { .. }));
    }
    drop(van);
    assert!(server.join().unwrap().sleeps > 0);
}

/// Goal: a round trip costs each side one call to hand over the answer and look once, and one for
/// each look after that. Nothing is allocated, neither for a frame nor for a write of many parts.
#[test]
fn a_round_trip_is_counted() {
    const ROUNDS: u64 = 300;
    let Some((mut a, mut b, to_b, to_a)) = pair(Wait::default()) else { return };
    let mut place = Some(b.about().memory.allocate(1 << 20).unwrap());
    let data = a.about().memory.allocate(1 << 20).unwrap().share();
    let mut events = Vec::with_capacity(8);
    let mut receive = |van: &mut Uring, other: &mut Uring| {
        let mut looks = 0;
        loop {
            van.poll(&mut events).unwrap();
            looks += 1;
            match events.pop() {
                Some(Event::Received { .. }) => return (looks, None),
                Some(Event::Written { memory, .. }) => return (looks, Some(memory)),
                None => other.poll(&mut events).unwrap(), // what did not fit into the socket
                other => panic!("{other:?}"),
            }
        }
    };
    let mut round_trips = |len: usize| {
        let mut looks = 0;
        for _ in 0..ROUNDS {
            if len > 0 {
                let offer = b.offer(to_a, place.take().unwrap()).unwrap();
                a.post_write(to_b, data.slice(..len).into(), &offer, 0).unwrap();
            } else {
                a.post_send(to_b, frame(&a, b"request").into()).unwrap();
            }
            a.poll(&mut Vec::new()).unwrap();
            let (_, memory) = receive(&mut b, &mut a);
            place = memory.or(place.take());
            b.post_send(to_a, frame(&b, b"answer").into()).unwrap();
            b.poll(&mut Vec::new()).unwrap();
            looks += receive(&mut a, &mut b).0;
        }
        (looks, a.counters().system_calls)
    };
    for len in [0, 100, 1 << 20] {
        let (_, before) = round_trips(len);
        let (mut looks, mut after) = (0, 0);
        let allocated = allocation_counter::measure(|| (looks, after) = round_trips(len));
        assert_eq!(allocated.count_total, 0, "{len} bytes: {allocated:?}");
        if len < 1 << 20 {
            assert!(after - before <= ROUNDS + looks, "{len} bytes: {} calls", after - before);
        }
    }
}

mod adaptive {
    caravan_van::conformance!(super::makes!(super::Wait::Adaptive(super::Duration::from_micros(
        50
    ))));
}

mod block {
    caravan_van::conformance!(super::makes!(super::Wait::Block));
}

mod strangers {
    caravan_van::socket_conformance!(super::makes!(super::Wait::default()));
}

mod strangers_of_a_node_that_sleeps {
    caravan_van::socket_conformance!(super::makes!(super::Wait::Block));
}

mod encrypted {
    caravan_van::conformance!(super::makes!(super::Wait::default(), true));
}

#[test]
fn an_active_lane_among_a_thousand() {
    let Some(_) = uring(&config(Wait::default())) else { return };
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let make = |config| Uring::new(&VanConfig { wait: Wait::Block, ..config }).unwrap();
    let bytes = a_crowd_costs_the_active_lane_nothing(make, lanes(1000));
    println!("{bytes} bytes of registered memory a lane");
}
