//! What a round trip costs: system calls and allocations, counted.

use caravan_fallback_tcp::Tcp;
use caravan_van::conformance::Net;
use caravan_van::{Event, FRAME_PREFIX, PeerId, Transport, VanConfig};

const ROUNDS: u64 = 1000;

/// Polls until one frame is there; returns how many polls found nothing.
fn receive(van: &mut Tcp, events: &mut Vec<Event>) -> u64 {
    for empty in 0.. {
        van.poll(events).unwrap();
        match events.pop() {
            Some(Event::Received { .. }) => return empty,
            None => std::thread::yield_now(),
            other => panic!("{other:?}"),
        }
    }
    unreachable!("it arrives")
}

fn post(van: &mut Tcp, peer: PeerId, len: usize) {
    let frame = van.about().memory.allocate(FRAME_PREFIX + len).unwrap();
    van.post_send(peer, frame.into()).unwrap();
}

/// Sends a frame there and back `rounds` times; returns how many polls of the caller found nothing.
fn ping_pong(net: &mut Net<Tcp>, links: (PeerId, PeerId), rounds: u64) -> u64 {
    let mut events = Vec::with_capacity(8);
    let mut empty = 0;
    for _ in 0..rounds {
        post(net.van(0), links.0, 100);
        net.van(0).poll(&mut events).unwrap();
        receive(net.van(1), &mut events);
        post(net.van(1), links.1, 100);
        net.van(1).poll(&mut events).unwrap();
        empty += receive(net.van(0), &mut events);
    }
    empty
}

fn pair() -> (Net<Tcp>, (PeerId, PeerId)) {
    let mut net = Net::new(&|config: VanConfig| Tcp::new(&config).unwrap(), 2);
    let links = net.connect(0, 1);
    ping_pong(&mut net, links, 100);
    (net, links)
}

#[test]
fn a_round_trip_takes_one_write_and_two_reads() {
    let (mut net, links) = pair();
    let (began, before) = (net.van(0).about().clock.now(), net.van(0).counters());
    let empty = ping_pong(&mut net, links, ROUNDS);
    let (passed, after) = (net.van(0).about().clock.now() - began, net.van(0).counters());
    let calls = after.system_calls - before.system_calls;
    // The read behind the write finds nothing yet. Once a millisecond at most, the listener is
    // looked after by a call; once, the socket is taken from the system's watch.
    let around = passed.as_millis() as u64 + 2;
    assert!(calls <= 3 * ROUNDS + empty + around, "{calls} calls, {empty} empty polls");
    assert_eq!(after.sleeps, before.sleeps);
}

#[test]
fn a_round_trip_allocates_nothing() {
    let (mut net, links) = pair();
    let allocated = allocation_counter::measure(|| {
        ping_pong(&mut net, links, ROUNDS);
    });
    assert!(allocated.count_total <= 1, "{allocated:?}: no more than the list of events");
}
