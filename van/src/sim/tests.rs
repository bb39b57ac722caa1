//! Guarantees of the simulated van: order, time, and that the seed determines everything.
#![allow(clippy::unwrap_used, reason = "tests")]

mod faults;
mod hosts;

use std::num::NonZeroU64;
use std::time::Duration;

use super::*;
use crate::message::{Draft, Values};
use crate::transport::{Event, FRAME_PREFIX, PeerId, Transport};
use crate::wire::{Coding, Kind};
use crate::{Arrival, Endpoint};

const SECOND: Duration = Duration::from_secs(1);
const MICRO: Duration = Duration::from_micros(1);

fn van(network: &Network, node: u32) -> SimTransport {
    network.transport(&VanConfig { node, memory_bytes: 16 << 20, ..VanConfig::default() })
}

fn frame(van: &SimTransport, payload: &[u8]) -> crate::Buffer {
    let mut frame = van.about().memory.allocate(FRAME_PREFIX + payload.len()).unwrap();
    frame[FRAME_PREFIX..].copy_from_slice(payload);
    frame
}

fn send(van: &mut SimTransport, peer: PeerId, payload: &[u8]) {
    let frame = frame(van, payload);
    van.post_send(peer, frame.into()).unwrap();
}

fn poll(van: &mut SimTransport) -> Vec<Event> {
    let mut events = Vec::new();
    van.poll(&mut events).unwrap();
    events
}

/// Waits until something happens.
fn next(van: &mut SimTransport) -> Event {
    let mut events = Vec::new();
    while events.is_empty() {
        van.wait(SECOND).unwrap();
        van.poll(&mut events).unwrap();
    }
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

/// Everything that happens to `van` within a simulated second.
fn settle(van: &mut SimTransport) -> Vec<Event> {
    let until = van.about().clock.now() + SECOND;
    let mut events = Vec::new();
    while van.about().clock.now() < until {
        van.poll(&mut events).unwrap();
        van.wait(until - van.about().clock.now()).unwrap();
    }
    events
}

fn connect(a: &mut SimTransport, b: &mut SimTransport) -> (PeerId, PeerId) {
    let to_b = a.connect(&b.about().address).unwrap();
    let Event::Connected { peer: to_a, .. } = next(b) else { panic!("no connection") };
    let Event::Connected { peer, hello } = next(a) else { panic!("no connection") };
    assert_eq!((peer, hello.frame_bytes.get() as usize), (to_b, b.about().limits.frame_bytes));
    (to_b, to_a)
}

fn received(event: Event) -> (PeerId, Vec<u8>) {
    let Event::Received { peer, frame } = event else { panic!("{event:?} is no frame") };
    (peer, frame.to_vec())
}

fn lost(event: &Event) -> String {
    let Event::Lost { error, .. } = event else { panic!("{event:?} is no loss") };
    match error {
        Error::Connect { source, .. } => format!("{error}: {source}"),
        error => error.to_string(),
    }
}

/// Plays `rounds` of ping-pong between pairs of nodes; returns the trace and the final time.
fn ping_pong(seed: u64, faults: Faults, pairs: u32, rounds: u8) -> (u64, Duration) {
    let network = Network::new(seed, faults);
    let mut nodes = Vec::new();
    for pair in 0..pairs {
        // The transport's number is known only once it is made, so the first of the pair makes both
        // nodes' addresses.
        nodes.push(network.spawn(&format!("pong {pair}"), move |network| {
            let mut van = van(network, pair);
            let address = van.about().address.clone();
            let ping = network.spawn(&format!("ping {pair}"), move |network| {
                ping(network, &address, rounds);
            });
            let Event::Connected { peer, .. } = next(&mut van) else { panic!("no connection") };
            for round in 0..rounds {
                assert_eq!(received(next(&mut van)), (peer, vec![round; 100]));
                send(&mut van, peer, &[round; 100]);
            }
            assert!(lost(&next(&mut van)).contains("closed"));
            ping.join().unwrap();
        }));
    }
    nodes.into_iter().for_each(|node| node.join().unwrap());
    (network.trace(), network.now())
}

fn ping(network: &Network, address: &str, rounds: u8) {
    let mut van = van(network, 1000);
    let peer = van.connect(address).unwrap();
    assert!(matches!(next(&mut van), Event::Connected { .. }));
    for round in 0..rounds {
        send(&mut van, peer, &[round; 100]);
        assert_eq!(received(next(&mut van)), (peer, vec![round; 100]));
    }
}

#[test]
fn the_same_seed_is_the_same_run_and_another_seed_another() {
    let run = |seed| ping_pong(seed, Faults::harsh(), 4, 20);
    let first = run(1);
    assert_eq!(first, run(1));
    assert_eq!(first, run(1));
    assert_ne!(first.0, run(2).0);
}

#[test]
fn virtual_time_is_the_modelled_latency() {
    // Connect and accept, ten rounds of two messages, and the loss that the last sender sees: each
    // takes 10 µs one way.
    let (_, end) = ping_pong(3, Faults::none(), 1, 10);
    assert_eq!(end, MICRO * 10 * (2 + 20 + 1));
}

#[test]
fn bandwidth_holds_buffers_and_adds_to_latency() {
    let rate = NonZeroU64::new(1_000_000);
    let network = Network::new(1, Faults { bytes_per_second: rate, ..Faults::none() });
    let (mut a, mut b) = (van(&network, 0), van(&network, 1));
    let (to_b, _) = connect(&mut a, &mut b);
    let start = network.now();
    let data = frame(&a, &[1; 984]).share();
    let offer = crate::wire::Offer { key: 1.into(), address: 0.into(), len: 1000.into() };
    a.post_write(to_b, data.clone().into(), &offer, 0).unwrap();
    poll(&mut a);
    let data = data.reclaim().expect_err("it is still being sent");
    a.wait(SECOND).unwrap();
    assert_eq!(network.now() - start, MICRO * 1016, "a byte a microsecond");
    poll(&mut a);
    assert!(data.reclaim().is_ok());
    b.wait(SECOND).unwrap();
    assert_eq!(network.now() - start, MICRO * 1026);
}

#[test]
fn two_hundred_participants_play_ping_pong() {
    ping_pong(5, Faults::jittery(), 100, 50);
}

/// Sends `lengths.len()` requests at once to an echo and checks the replies; returns the trace.
fn echo(seed: u64, lengths: &'static [usize]) -> u64 {
    let network = Network::new(seed, Faults::harsh());
    let server = network.spawn("server", move |network| {
        let mut endpoint = Endpoint::new(Box::new(van(network, 0)), 0, 16);
        loop {
            match next_arrival(&mut endpoint) {
                Arrival::Message { peer } => {
                    let message = endpoint.pop().unwrap();
                    let timestamp = message.timestamp();
                    let values = Values::Apart(message.into_values().share());
                    let reply = Draft { timestamp, values, ..Draft::new(Kind::Reply) };
                    endpoint.lanes.post(peer, reply, &mut Coding::plain()).unwrap();
                }
                Arrival::Lost { .. } => return,
                _ => {}
            }
        }
    });
    let worker = network.spawn("worker", move |network| {
        // Spawned nodes start in random order; the server must be sim:0.
        network.sleep(MICRO);
        let mut endpoint = Endpoint::new(Box::new(van(network, 1)), 1, 16);
        let peer = endpoint.connect("sim:0").unwrap();
        assert!(matches!(next_arrival(&mut endpoint), Arrival::Connected { .. }));
        for (timestamp, &len) in (0..).zip(lengths) {
            let values = vec![timestamp as u8; len];
            let values = Values::Copied(&values);
            let request = Draft { timestamp, values, ..Draft::new(Kind::Request) };
            endpoint.lanes.post(peer, request, &mut Coding::plain()).unwrap();
        }
        for (timestamp, &len) in (0..).zip(lengths) {
            match next_arrival(&mut endpoint) {
                Arrival::Message { .. } => {
                    let message = endpoint.pop().unwrap();
                    assert_eq!((message.timestamp(), message.values().len()), (timestamp, len));
                    assert!(message.values().iter().all(|&byte| byte == timestamp as u8));
                }
                other => panic!("{other:?}"),
            }
        }
    });
    worker.join().unwrap();
    server.join().unwrap();
    network.trace()
}

fn next_arrival(endpoint: &mut Endpoint) -> Arrival {
    loop {
        endpoint.wait(SECOND).unwrap();
        endpoint.poll().unwrap();
        if let Some(arrival) = endpoint.take() {
            return arrival;
        }
    }
}

#[test]
fn endpoints_run_on_it_and_repeat_exactly() {
    for_each_seed(20, |seed| {
        let run = || echo(seed, &[8, 100_000, 8, 300_000, 16_000, 0, 1_000_000, 8]);
        assert_eq!(run(), run());
    });
}

#[test]
fn peers_keep_their_order_and_overtake_each_other() {
    for_each_seed(20, |seed| {
        let network = Network::new(seed, Faults::harsh());
        let mut vans: Vec<_> = (0..5).map(|node| van(&network, node)).collect();
        let mut hub = vans.pop().unwrap();
        let peers: Vec<_> = vans.iter_mut().map(|van| connect(van, &mut hub)).collect();
        for i in 0..50 {
            for (van, (to_hub, _)) in vans.iter_mut().zip(&peers) {
                send(van, *to_hub, &[i]);
                poll(van);
            }
        }
        let all: Vec<_> = settle(&mut hub).into_iter().map(received).collect();
        for (_, from) in &peers {
            let bytes: Vec<u8> =
                all.iter().filter(|(peer, _)| peer == from).map(|(_, bytes)| bytes[0]).collect();
            assert_eq!(bytes, (0..50).collect::<Vec<u8>>());
        }
        let sorted = all.is_sorted_by_key(|(_, bytes)| bytes[0]);
        assert!(!sorted, "peers never overtook each other");
    });
}

#[test]
fn writes_and_frames_keep_their_order() {
    for_each_seed(20, |seed| {
        let network = Network::new(seed, Faults::harsh());
        let (mut a, mut b) = (van(&network, 0), van(&network, 1));
        let (to_b, to_a) = connect(&mut a, &mut b);
        for part in 0..10u8 {
            let offer = b.offer(to_a, b.about().memory.allocate(100).unwrap()).unwrap();
            let mut data = a.about().memory.allocate(10).unwrap();
            data.fill(part);
            a.post_write(to_b, data.share().into(), &offer, u64::from(part) * 8).unwrap();
            send(&mut a, to_b, &[part]);
        }
        poll(&mut a);
        let mut events = settle(&mut b).into_iter();
        for part in 0..10u8 {
            let event = events.next();
            let Some(Event::Written { peer, key, memory, at, len }) = event else {
                panic!("{event:?}")
            };
            assert_eq!((peer, at, len), (to_a, usize::from(part) * 8, 10));
            assert_eq!(memory[at..at + len], [part; 10]);
            assert!(b.withdraw(to_a, key).is_err());
            assert_eq!(events.next().map(received), Some((to_a, vec![part])));
        }
    });
}

#[test]
fn a_write_outside_an_offer_loses_the_peer_at_both_ends() {
    let network = Network::new(1, Faults::none());
    for (wrong_key, at) in [(1, 0), (0, 8), (0, 4088)] {
        let (mut a, mut b) = (van(&network, 0), van(&network, 1));
        let (to_b, to_a) = connect(&mut a, &mut b);
        let mut offer = b.offer(to_a, b.about().memory.allocate(8).unwrap()).unwrap();
        let data = a.about().memory.allocate(8).unwrap().share();
        assert!(a.post_write(to_b, data.clone().into(), &offer, 8).is_err());
        assert!(a.post_write(to_b, data.clone().into(), &offer, u64::MAX).is_err());
        offer.len = 5000.into();
        offer.key = (offer.key.get() + wrong_key).into();
        a.post_write(to_b, data.into(), &offer, at).unwrap();
        poll(&mut a);
        assert!(lost(&next(&mut b)).contains("outside"));
        assert!(lost(&next(&mut a)).contains("refused a write"));
        assert!(matches!(a.offer(to_b, frame(&a, &[])), Err(Error::NotConnected { .. })));
        assert!(settle(&mut b).is_empty() && settle(&mut a).is_empty());
        let key = offer.key.get() - wrong_key;
        assert_eq!(b.withdraw(to_a, key).unwrap().len(), 8, "lost, and still ours to take back");
    }
}

#[test]
fn a_full_queue_is_an_error_until_it_has_drained() {
    let rate = NonZeroU64::new(1_000_000);
    let network = Network::new(1, Faults { bytes_per_second: rate, ..Faults::none() });
    let (mut a, mut b) = (van(&network, 0), van(&network, 1));
    let (to_b, _) = connect(&mut a, &mut b);
    let depth = a.about().limits.queue_depth;
    for i in 0..depth {
        send(&mut a, to_b, &[i as u8]);
    }
    poll(&mut a);
    let extra = frame(&a, &[0]);
    let error = a.post_send(to_b, extra.into()).unwrap_err();
    assert!(matches!(error, Error::QueueFull { depth: d, .. } if d == depth), "{error}");
    a.wait(SECOND).unwrap();
    poll(&mut a);
    send(&mut a, to_b, &[0]);
    poll(&mut a);
    assert_eq!(settle(&mut b).len(), depth + 1);
    let long = a.about().memory.allocate(FRAME_PREFIX + a.about().limits.frame_bytes + 1).unwrap();
    assert!(matches!(a.post_send(to_b, long.into()), Err(Error::FrameTooLong { .. })));
}

#[test]
fn what_was_sent_arrives_before_the_loss() {
    let network = Network::new(1, Faults::harsh());
    let (mut a, mut b) = (van(&network, 0), van(&network, 1));
    let (to_b, to_a) = connect(&mut a, &mut b);
    send(&mut a, to_b, b"last words");
    poll(&mut a);
    drop(a);
    let events = settle(&mut b);
    assert_eq!(events.len(), 2);
    assert!(lost(&events[1]).contains("closed the connection"));
    let extra = frame(&b, &[0]);
    assert!(matches!(b.post_send(to_a, extra.into()), Err(Error::NotConnected { .. })));
}

#[test]
fn a_disconnected_peer_is_forgotten() {
    let network = Network::new(1, Faults::none());
    let (mut a, mut b) = (van(&network, 0), van(&network, 1));
    let (to_b, to_a) = connect(&mut a, &mut b);
    let offer = b.offer(to_a, frame(&b, &[])).unwrap();
    send(&mut a, to_b, b"unheard");
    poll(&mut a);
    b.disconnect(to_a);
    assert!(b.withdraw(to_a, offer.key.get()).is_err());
    assert!(settle(&mut b).is_empty());
    assert!(lost(&next(&mut a)).contains("closed"));
    let to_b = a.connect("sim:1").unwrap();
    a.disconnect(to_b);
    assert!(settle(&mut a).is_empty());
    assert!(matches!(settle(&mut b)[..], [Event::Connected { .. }]), "accepted too late");
    assert!(settle(&mut a).is_empty());
    assert!(lost(&next(&mut b)).contains("gave up the connection"));
}

#[test]
fn strangers_and_empty_addresses_are_refused() {
    let network = Network::new(1, Faults::none());
    let mut a = van(&network, 0);
    let mut stranger = network.transport(&VanConfig { cluster: 8, ..VanConfig::default() });
    a.connect(&stranger.about().address).unwrap();
    while network.now() < MICRO * 10 {
        stranger.wait(SECOND).unwrap();
    }
    assert!(poll(&mut stranger).is_empty());
    assert!(lost(&next(&mut a)).contains("refused this node"));
    a.connect("sim:99").unwrap();
    assert!(lost(&next(&mut a)).contains("nobody is at sim:99"));
    let gone = stranger.about().address.clone();
    a.connect(&gone).unwrap();
    a.wait(SECOND).unwrap();
    drop(stranger);
    assert!(lost(&next(&mut a)).contains("nobody"));
    for address in ["", "sim:", "sim:-1", "sim:4294967296", "127.0.0.1:80"] {
        assert!(a.connect(address).is_err(), "{address}");
    }
    a.connect("sim:0").unwrap();
    assert!(lost(&next(&mut a)).contains("refused this node"), "nobody talks to itself");
}

#[test]
fn memory_that_runs_out_loses_no_frame() {
    let network = Network::new(1, Faults::none());
    let mut a = van(&network, 0);
    let mut b = network.transport(&VanConfig { memory_bytes: 4096, ..VanConfig::default() });
    let (to_b, _) = connect(&mut a, &mut b);
    let held: Vec<_> = (0..8).map(|_| b.about().memory.allocate(8).unwrap()).collect();
    send(&mut a, to_b, b"patience");
    poll(&mut a);
    b.wait(SECOND).unwrap();
    let error = b.poll(&mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    drop(held);
    assert_eq!(received(next(&mut b)).1, b"patience");
}

#[test]
fn seeds_are_counted_or_named() {
    assert_eq!(seeds(3, None), 0..3);
    assert_eq!(seeds(3, Some("41")), 41..42);
    assert_eq!(seeds(3, Some("41..50")), 41..50);
    for none in ["forty", "", "5..5", "5..", "18446744073709551615"] {
        assert!(catch_unwind(|| seeds(3, Some(none))).is_err(), "{none}");
    }
}

/// Machines whose card takes a microsecond for 100 bytes of payload, and whose processor takes no
/// time.
#[test]
fn nodes_know_their_network() {
    let network = Network::new(1, Faults::none());
    assert!(Network::here().is_none(), "main is no node");
    let node = network.spawn("node", |network| {
        network.sleep(SECOND);
        Network::here().unwrap().now()
    });
    assert_eq!(node.join().unwrap(), SECOND);
}
