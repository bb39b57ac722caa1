//! Long values over two ports at once, which two sockets stand for: the contract of a van, and what
//! may go wrong between the pieces of a write.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use caravan_fallback_tcp::Tcp;
use caravan_van::mixed::Mixed;
use caravan_van::wire::Offer;
use caravan_van::{
    Buffer, Error, Event, FRAME_PREFIX, PeerId, Shared, Sleeper, Transport, VanConfig, Wait,
};

use support::{Switched, Switches};

mod support;

const LONG: Duration = Duration::from_secs(60);

const MIB: usize = 1 << 20;

/// A node with `count` ports, and the switches of each.
fn on_ports(config: &VanConfig, count: usize) -> (Mixed, Vec<Rc<Switches>>) {
    let switches = Vec::from_iter((0..count).map(|_| Rc::new(Switches::default())));
    let ports = switches.iter().map(|switches| {
        let port = Switched(Tcp::new(config).unwrap(), switches.clone());
        Box::new(port) as Box<dyn Sleeper>
    });
    (Mixed::new(ports.collect(), config.wait).unwrap(), switches)
}

mod on_two_ports {
    caravan_van::conformance!(|config| super::on_ports(&config, 2).0);
}

mod on_three_ports_asleep {
    caravan_van::conformance!(|config: super::VanConfig| {
        super::on_ports(&super::VanConfig { wait: super::Wait::Block, ..config }, 3).0
    });
}

/// Two nodes, and what has come to each.
struct Two {
    vans: [Mixed; 2],
    ports: [Vec<Rc<Switches>>; 2],
    /// What each calls the other.
    peers: [PeerId; 2],
    events: [VecDeque<Event>; 2],
}

impl Two {
    /// Two nodes with so many ports each, connected.
    fn new(ports: [usize; 2]) -> Two {
        let config = VanConfig { memory_bytes: 64 << 20, ..VanConfig::default() };
        let make =
            |node: usize| on_ports(&VanConfig { node: node as u32, ..config.clone() }, ports[node]);
        let ((a, a_ports), (b, b_ports)) = (make(0), make(1));
        let mut two = Two {
            vans: [a, b],
            ports: [a_ports, b_ports],
            peers: [PeerId(0); 2],
            events: Default::default(),
        };
        two.connect();
        two
    }

    fn connect(&mut self) {
        let address = self.vans[1].about().address.clone();
        let there = self.vans[0].connect(&address).unwrap();
        let connected = |event| match event {
            Event::Connected { peer, .. } => peer,
            event => panic!("{event:?}"),
        };
        assert_eq!(connected(self.next(0)), there);
        self.peers = [there, connected(self.next(1))];
    }

    fn turn(&mut self) {
        let mut events = Vec::new();
        for (van, all) in self.vans.iter_mut().zip(&mut self.events) {
            van.wait(Duration::from_micros(50)).unwrap();
            van.poll(&mut events).unwrap();
            all.extend(events.drain(..));
        }
    }

    /// The next event at a node.
    fn next(&mut self, node: usize) -> Event {
        let began = Instant::now();
        while began.elapsed() < LONG {
            if let Some(event) = self.events[node].pop_front() {
                return event;
            }
            self.turn();
        }
        panic!("nothing came");
    }

    /// Asserts that nothing comes for a while.
    fn rest(&mut self) {
        for _ in 0..200 {
            self.turn();
        }
        assert!(self.events.iter().all(VecDeque::is_empty), "{:?}", self.events);
    }

    fn send(&mut self, node: usize, bytes: &[u8]) {
        let mut frame =
            self.vans[node].about().memory.allocate(FRAME_PREFIX + bytes.len()).unwrap();
        frame[FRAME_PREFIX..].copy_from_slice(bytes);
        self.vans[node].post_send(self.peers[node], frame.into()).unwrap();
    }

    fn came(&mut self, node: usize, bytes: &[u8]) {
        match self.next(node) {
            Event::Received { frame, .. } => assert_eq!(frame[..], *bytes),
            event => panic!("{event:?}"),
        }
    }

    /// An offer of a node to the other one, which has heard of it.
    fn offer(&mut self, node: usize, len: usize) -> Offer {
        let into = self.vans[node].about().memory.allocate(len).unwrap();
        let offer = self.vans[node].offer(self.peers[node], into).unwrap();
        self.send(node, b"an offer");
        self.came(1 - node, b"an offer");
        offer
    }

    fn write(&mut self, node: usize, data: &Shared, into: &Offer, at: usize) {
        self.vans[node].post_write(self.peers[node], data.clone().into(), into, at as u64).unwrap();
    }

    /// Asserts that a write of `data` has come.
    fn written(&mut self, node: usize, data: &Shared, into: &Offer, place: usize) {
        match self.next(node) {
            Event::Written { key, memory, at, len, .. } => {
                assert_eq!((key, at, len), (into.key.get(), place, data.len()));
                assert_eq!(memory.len() as u64, into.len.get());
                assert!(memory[at..at + len] == data[..], "{len} bytes at {at}");
            }
            event => panic!("{event:?}"),
        }
    }

    /// Makes each write go over all ports from now on.
    fn begin(&mut self) {
        let offer = self.offer(1, MIB);
        let data = data(7, MIB);
        self.write(0, &data, &offer, 0);
        self.written(1, &data, &offer, 0);
        self.rest();
    }

    /// Makes all ports take in what comes.
    fn thaw(&self) {
        self.ports.iter().flatten().for_each(|port| port.is_frozen.set(false));
    }

    /// Bytes that a node has written over each port.
    fn by_port(&self, node: usize) -> Vec<usize> {
        self.ports[node].iter().map(|switches| switches.written.get()).collect()
    }

    fn lost(&mut self, node: usize) -> String {
        match self.next(node) {
            Event::Lost { peer, error } => {
                assert_eq!(peer, self.peers[node]);
                error.to_string()
            }
            event => panic!("{event:?}"),
        }
    }
}

fn data(seed: usize, len: usize) -> Shared {
    let bytes = (0..len).map(|at| ((at * 131 + seed * 31) >> 3) as u8).collect::<Vec<_>>();
    Buffer::adopt(bytes).share()
}

/// Goal: from the second long value on each port carries its part, in both directions, whoever
/// called; short ones go over one.
#[test]
fn each_port_carries_its_part() {
    for (ports, parts) in [([2, 2], 2), ([3, 4], 3), ([4, 2], 2), ([1, 2], 1), ([2, 1], 1)] {
        for begins in 0..2 {
            let mut two = Two::new(ports);
            for node in [begins, 1 - begins] {
                let (offer, whole) = (two.offer(1 - node, MIB), data(1, MIB));
                two.write(node, &whole, &offer, 0);
                two.written(1 - node, &whole, &offer, 0);
                two.rest();
                let before = two.by_port(node);
                for (at, len) in [(0, 4 * MIB), (4088, 4 * MIB), (8, 1000)] {
                    let (offer, data) = (two.offer(1 - node, at + len), data(len, len));
                    two.write(node, &data, &offer, at);
                    two.written(1 - node, &data, &offer, at);
                }
                let carried =
                    two.by_port(node).into_iter().zip(before).map(|(now, then)| now - then);
                let mut carried: Vec<_> = carried.filter(|&bytes| bytes > 0).collect();
                carried.sort_unstable();
                assert_eq!(carried.len(), parts, "{ports:?}");
                assert!(carried[parts - 1] - carried[0] <= 16 << 10, "{carried:?}");
            }
        }
    }
}

/// Goal: a write that is shorter than its offer, or has no bytes, arrives as one.
#[test]
fn writes_of_all_lengths_use_an_offer_up() {
    let mut two = Two::new([3, 3]);
    two.begin();
    let third = MIB / 3;
    for len in [0, 1, third - 1, third, third + 1, third + 5000, 2 * third, MIB - 4096, MIB] {
        for at in [0, 8, 4088] {
            let (offer, data) = (two.offer(1, MIB + 4096), data(len + at, len));
            two.write(0, &data, &offer, at);
            two.written(1, &data, &offer, at);
        }
    }
}

/// Goal: what follows a write waits for all pieces of it, and so do later writes.
#[test]
fn order_stays_however_late_a_port_is() {
    let mut two = Two::new([2, 2]);
    two.begin();
    let offers = [MIB, 2 * MIB, 100, MIB].map(|len| two.offer(1, len));
    let values = [MIB, 2 * MIB, 100, MIB].map(|len| data(len, len));
    for late in [0, 1, 2] {
        if late < 2 {
            two.ports[1][late].is_frozen.set(true);
        }
        let (offer, value) = (&offers[late], &values[late]);
        two.send(0, b"before");
        two.write(0, value, offer, 0);
        two.send(0, b"behind");
        if late == 0 {
            two.rest();
        } else {
            two.came(1, b"before");
            if late == 1 {
                two.write(0, &values[3], &offers[3], 0);
                two.rest();
            }
        }
        two.thaw();
        if late == 0 {
            two.came(1, b"before");
        }
        two.written(1, value, offer, 0);
        two.came(1, b"behind");
        if late == 1 {
            two.written(1, &values[3], &offers[3], 0);
        }
    }
    two.rest();
}

/// Goal: a piece is written once it is known to be open, with room or when there is room.
#[test]
fn a_piece_is_written_once_it_is_open() {
    let mut two = Two::new([3, 3]);
    two.begin();
    for full in [None, Some(1), Some(2)] {
        two.ports[0][1..].iter().for_each(|port| port.is_frozen.set(true));
        let (offer, data) = (two.offer(1, MIB), data(5, MIB));
        let before = two.by_port(0);
        two.write(0, &data, &offer, 0);
        two.send(0, b"behind");
        two.rest();
        let after = two.by_port(0);
        assert!(after[0] > before[0] && after[1..] == before[1..], "{after:?}");
        let full = full.map(|port| two.ports[0][port].clone());
        full.iter().for_each(|port| port.is_full.set(true));
        let second = two.vans[0].post_write(two.peers[0], data.clone().into(), &offer, 0);
        assert!(matches!(second, Err(Error::OutsideOffer { .. })), "{second:?}");
        two.thaw();
        if full.is_some() {
            two.rest();
        }
        full.iter().for_each(|port| port.is_full.set(false));
        two.written(1, &data, &offer, 0);
        two.came(1, b"behind");
        assert_eq!(two.by_port(0).iter().sum::<usize>() - before.iter().sum::<usize>(), MIB);
    }
}

/// Goal: a piece that finds no room is posted by the next try, and no piece twice.
#[test]
fn a_full_port_is_tried_again() {
    let mut two = Two::new([3, 3]);
    two.begin();
    for full in 0..3 {
        let (offer, data) = (two.offer(1, MIB), data(full, MIB));
        let before: usize = two.by_port(0).iter().sum();
        two.ports[0][full].is_full.set(true);
        for _ in 0..3 {
            let posted = two.vans[0].post_write(two.peers[0], data.clone().into(), &offer, 0);
            assert!(matches!(posted, Err(Error::QueueFull { .. })), "{posted:?}");
        }
        two.ports[0][full].is_full.set(false);
        two.write(0, &data, &offer, 0);
        two.written(1, &data, &offer, 0);
        assert_eq!(two.by_port(0).iter().sum::<usize>() - before, MIB);
    }
}

/// Goal: an offer that was not used is given back whole, unless its write has begun.
#[test]
fn an_offer_is_withdrawn_whole() {
    let mut two = Two::new([2, 2]);
    two.begin();
    let offer = two.offer(1, MIB);
    let back = two.vans[1].withdraw(two.peers[1], offer.key.get()).unwrap();
    assert_eq!((back.len(), back.as_ptr() as u64), (MIB, offer.address.get()));
    assert!(two.vans[1].withdraw(two.peers[1], offer.key.get()).is_err(), "it is gone");
    two.rest();

    // The second piece has come, the first has not.
    let (offer, data) = (two.offer(1, MIB), data(3, MIB));
    two.ports[1][0].is_frozen.set(true);
    two.write(0, &data, &offer, 0);
    two.rest();
    let back = two.vans[1].withdraw(two.peers[1], offer.key.get()).unwrap();
    assert_eq!(back.len(), MIB);
    two.ports[1][0].is_frozen.set(false);
    two.lost(1); // it writes what is not open any more
    two.lost(0);
}

/// Goal: the first piece has come, so the write has begun.
#[test]
fn an_offer_whose_write_has_begun_is_not_withdrawn() {
    let mut two = Two::new([2, 2]);
    two.begin();
    let (offer, data) = (two.offer(1, MIB), data(3, MIB));
    two.ports[1][1].is_frozen.set(true);
    two.write(0, &data, &offer, 0);
    two.rest();
    let outcome = two.vans[1].withdraw(two.peers[1], offer.key.get());
    assert!(matches!(outcome, Err(Error::OutsideOffer { .. })), "{outcome:?}");
    two.ports[1][1].is_frozen.set(false);
    two.written(1, &data, &offer, 0);
}

/// Goal: a port that breaks ends the lane, at both ends and once; memory on offer comes back, and
/// the next lane goes over the port that is left.
#[test]
fn a_port_that_breaks_ends_the_lane_and_the_next_one_does_without() {
    for broken in 0..2 {
        for is_writing in [false, true] {
            let mut two = Two::new([2, 2]);
            two.begin();
            let offer = two.offer(1, MIB);
            if is_writing {
                two.ports[1][1].is_frozen.set(true);
                two.write(0, &data(1, MIB), &offer, 0);
                two.send(0, b"behind");
                two.rest();
            }
            two.ports[1][broken].is_broken.set(true);
            let why = two.lost(1);
            assert!(why.contains("it is unplugged"), "{why}");
            let sent = two.vans[1].about().memory.allocate(FRAME_PREFIX).unwrap();
            let posted = two.vans[1].post_send(two.peers[1], sent.into());
            assert!(matches!(posted, Err(Error::NotConnected { .. })), "{posted:?}");
            let back = two.vans[1].withdraw(two.peers[1], offer.key.get());
            assert!(is_writing || back.unwrap().len() == MIB);
            two.vans[1].disconnect(two.peers[1]);
            two.lost(0);
            two.vans[0].disconnect(two.peers[0]);
            two.rest();

            if broken == 0 {
                continue; // who calls there waits until the time for a proof is over
            }
            two.thaw();
            two.connect();
            two.begin();
            let (offer, data) = (two.offer(1, MIB), data(2, MIB));
            two.write(0, &data, &offer, 0);
            two.written(1, &data, &offer, 0);
        }
    }
}

/// Goal: what was sent before an orderly end arrives, whichever port shows the end first.
#[test]
fn what_was_sent_before_the_end_arrives() {
    for late in 0..2 {
        let mut two = Two::new([2, 2]);
        two.begin();
        let offer = two.offer(1, MIB);
        two.ports[1][late].is_frozen.set(true);
        two.send(0, b"the last");
        two.vans[0].poll(&mut Vec::new()).unwrap();
        two.vans[0].disconnect(two.peers[0]);
        for _ in 0..20 {
            two.turn();
        }
        two.thaw();
        two.came(1, b"the last");
        two.lost(1);
        assert_eq!(two.vans[1].withdraw(two.peers[1], offer.key.get()).unwrap().len(), MIB);
    }
}

/// Goal: nonsense about stripes loses who tells it, and nothing else.
#[test]
fn nonsense_about_stripes_loses_the_peer() {
    let told = |what: u32, number: u64, rest: &[u8]| {
        [b"CRVS", &what.to_le_bytes()[..], &number.to_le_bytes(), rest].concat()
    };
    let piece = |stripe: u64, len: u64| [stripe, 1, 4096, len].map(u64::to_le_bytes).concat();
    let pieces = |all: &[[u64; 2]]| {
        let bytes: Vec<_> = all.iter().map(|&[stripe, len]| piece(stripe, len)).collect();
        told(4, all.len() as u64, &bytes.concat())
    };
    for wrong in [
        b"CRVS".to_vec(),
        told(0, 1, &[]),
        told(5, 1, &[]), // not on this lane
        told(7, 1, &[]),
        told(2, 0, &[]),
        told(2, 1 << 22, &[]),
        told(3, 0, &[]),
        told(3, 4, &[]),
        told(4, 1 << 60, &[]),
        told(4, 2, &[0; 63]),
        pieces(&[]),
        pieces(&[[0, 5000]]),
        pieces(&[[1, 5000], [0, 5000]]),
        pieces(&[[0, 5000], [0, 5000]]),
        pieces(&[[0, 5000], [2, 5000]]), // a lane that is not there
        pieces(&[[0, 5000], [9, 5000]]),
        pieces(&[[0, 5000], [u64::MAX, 5000]]),
        pieces(&[[0, 5000], [1, 1 << 40]]),
        pieces(&[[0, 100], [1, 5000]]),
    ] {
        let mut two = Two::new([2, 2]);
        two.begin();
        two.send(0, &wrong);
        let why = two.lost(1);
        assert!(why.contains("it "), "{why}");
        two.vans[1].disconnect(two.peers[1]);
        two.lost(0);
        two.vans[0].disconnect(two.peers[0]);
        two.connect();
        two.begin();
    }
}

/// Small numbers that look random.
struct Dice(u64);

impl Dice {
    /// One below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one_of(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// Goal: whatever is posted, and whichever port lags, all of it arrives whole and in order.
#[test]
fn random_traffic_over_lagging_ports_stays_whole() {
    for seed in 0..20 {
        let mut dice = Dice(seed);
        let mut two = Two::new([2 + dice.below(3), 2 + dice.below(3)]);
        if dice.one_of(2) {
            two.begin();
        }
        let mut posted: VecDeque<(Option<(Offer, usize)>, Shared)> = VecDeque::new();
        for step in 0..120 {
            for port in two.ports.iter().flatten() {
                port.is_frozen.set(dice.one_of(6));
            }
            let value = data(step, [17, 5000, 300_000, MIB][dice.below(4)]);
            if value.len() < 8000 && dice.one_of(2) {
                two.send(0, &value);
                posted.push_back((None, value));
            } else if posted.is_empty() {
                two.thaw();
                two.ports[0].iter().skip(1).for_each(|port| port.is_frozen.set(dice.one_of(3)));
                for _ in 0..=dice.below(5) {
                    let (at, more) = (8 * dice.below(512), dice.below(MIB));
                    let value = data(step + more, 8 + dice.below(MIB));
                    let offer = two.offer(1, at + value.len() + more);
                    posted.push_back((Some((offer, at)), value));
                }
                for (to, value) in &posted {
                    let (offer, at) = to.as_ref().unwrap();
                    two.write(0, value, offer, *at);
                }
            }
            two.turn();
            if dice.one_of(3) {
                two.thaw();
                for (to, value) in posted.drain(..) {
                    match to {
                        Some((offer, at)) => two.written(1, &value, &offer, at),
                        None => two.came(1, &value),
                    }
                }
                assert!(two.events.iter().all(VecDeque::is_empty), "{:?}", two.events);
            }
        }
    }
}
