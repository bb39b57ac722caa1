//! The time of cards and processors.

use super::*;

fn cards() -> Hosts {
    let rate = NonZeroU64::new((FRAME_PREFIX as u64 + 100) * 1_000_000);
    Hosts { card_bytes_per_second: rate, ..Hosts::default() }
}

/// Nodes that each take `count` frames; returns when they received them.
fn takers(network: &Network, nodes: u32, count: usize) -> Vec<Node<Vec<Duration>>> {
    let taker = |node| {
        network.spawn(&format!("taker {node}"), move |network| {
            let mut van = van(network, node);
            let mut times = Vec::new();
            while times.len() < count {
                match next(&mut van) {
                    Event::Received { .. } => times.push(network.now()),
                    event => assert!(matches!(event, Event::Connected { .. }), "{event:?}"),
                }
            }
            network.sleep(SECOND);
            times
        })
    };
    let nodes = (0..nodes).map(|node| (taker(node), network.sleep(MICRO)).0);
    nodes.collect()
}

#[test]
fn a_card_sends_one_message_after_the_other_to_whomever() {
    let network = Network::of_hosts(1, Faults::none(), cards());
    let takers = takers(&network, 3, 2);
    let mut hub = van(&network, 9);
    let peers = ["sim:0", "sim:1", "sim:2"].map(|address| hub.connect(address).unwrap());
    peers.iter().for_each(|_| assert!(matches!(next(&mut hub), Event::Connected { .. })));
    network.sleep(SECOND);
    let start = network.now();
    peers.iter().for_each(|&peer| send(&mut hub, peer, &[0; 100]));
    peers.iter().for_each(|&peer| send(&mut hub, peer, &[1; 100]));
    poll(&mut hub);
    let times: Vec<_> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
    // Lanes are emptied in turn.
    assert_eq!(times, [11, 12, 13, 14, 15, 16].map(|micros| start + MICRO * micros));
}

#[test]
fn a_card_receives_one_message_after_the_other_from_whomever() {
    let network = Network::of_hosts(1, Faults::none(), cards());
    let mut hub = van(&network, 9);
    for node in 0..4 {
        network.spawn(&format!("giver {node}"), move |network| {
            let mut van = van(network, node);
            let peer = van.connect("sim:0").unwrap();
            assert!(matches!(next(&mut van), Event::Connected { .. }));
            network.sleep(SECOND - network.now());
            send(&mut van, peer, &[0; 100]);
            poll(&mut van);
            network.sleep(SECOND);
        });
    }
    let mut times = Vec::new();
    while times.len() < 4 {
        match next(&mut hub) {
            Event::Received { .. } => times.push(network.now() - SECOND),
            event => assert!(matches!(event, Event::Connected { .. }), "{event:?}"),
        }
    }
    assert_eq!(times, [11, 12, 13, 14].map(|micros| MICRO * micros));
}

#[test]
fn messages_keep_processors_busy_and_the_control_plane_keeps_nothing_busy() {
    let hosts = Hosts { overhead: MICRO * 3, overhead_nanos_per_byte: 10.0, ..cards() };
    let network = Network::of_hosts(1, Faults::none(), hosts);
    let (mut a, mut b) = (van(&network, 0), van(&network, 1));
    let (to_b, _) = connect(&mut a, &mut b);
    let start = network.now();
    send(&mut a, to_b, &[0; 84]);
    send(&mut a, to_b, &[1; 84]);
    poll(&mut a);
    // 100 bytes take a processor 4 µs, and the card less than that.
    assert_eq!(network.now() - start, MICRO * 8, "the sender's time has passed");
    assert_eq!(settle(&mut b).len(), 2);
    let received_at = {
        send(&mut a, to_b, &[2; 84]);
        let start = network.now();
        poll(&mut a);
        assert_eq!(received(next(&mut b)).1, [2; 84]);
        network.now() - start
    };
    let passing = Duration::from_nanos(863); // 100 of 116 bytes of a microsecond
    assert_eq!(received_at, MICRO * (4 + 10 + 4) + passing);

    let mut c = network.control_transport(&VanConfig { node: 2, ..VanConfig::default() });
    let to_b = c.connect("sim:1").unwrap();
    assert!(matches!(next(&mut b), Event::Connected { .. }));
    assert!(matches!(next(&mut c), Event::Connected { .. }));
    let start = network.now();
    send(&mut c, to_b, &[0; 1000]);
    poll(&mut c);
    assert_eq!(network.now(), start);
}

#[test]
fn computing_takes_the_time_it_is_charged_with_whatever_arrives() {
    let stragglers = Stragglers { factor: 3.0, always: 1.0, ..Stragglers::default() };
    let hosts = Hosts { slower: 2.0, stragglers, ..Hosts::default() };
    let network = Network::of_hosts(1, Faults::none(), hosts);
    let (mut a, mut b) = (van(&network, 0), van(&network, 1));
    let (to_b, _) = connect(&mut a, &mut b);
    send(&mut a, to_b, b"while you work");
    poll(&mut a);
    let start = network.now();
    b.about().clock.charge(Duration::ZERO).unwrap();
    assert_eq!(network.now(), start);
    b.about().clock.charge(SECOND).unwrap();
    assert_eq!(network.now() - start, SECOND * 6);
    assert_eq!(received(next(&mut b)).1, b"while you work");
}
