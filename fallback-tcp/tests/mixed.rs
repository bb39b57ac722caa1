//! A transport made of shared memory and sockets: the contract of a van over each of the two, and
//! what is its own.
#![cfg(target_os = "linux")]

use crate::support;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use caravan_fallback_tcp::Tcp;
use caravan_van::mixed::Mixed;
use caravan_van::shm::Shm;
use caravan_van::wire::{Coding, Kind};
use caravan_van::{
    Arrival, Buffer, Draft, Endpoint, Error, Event, FRAME_PREFIX, PeerId, Secret, Transport,
    Values, VanConfig, Wait,
};

use support::{Switched, Switches};

const LONG: Duration = Duration::from_secs(60);

/// A node with both vans.
fn mixed(config: &VanConfig) -> Mixed {
    let shm = Shm::new(config).expect("this machine lets processes share memory");
    let tcp = Tcp::new(config).expect("a free port");
    Mixed::new(vec![Box::new(shm), Box::new(tcp)], config.wait).unwrap()
}

fn near(wait: Wait) -> impl Fn(VanConfig) -> Mixed {
    move |config| mixed(&VanConfig { wait, ..config })
}

/// Nodes that are each on a host of their own.
fn far(wait: Wait) -> impl Fn(VanConfig) -> Mixed {
    static HOSTS: AtomicU32 = AtomicU32::new(0);
    move |config| {
        let host = HOSTS.fetch_add(1, Ordering::Relaxed);
        mixed(&VanConfig { wait, ..config }).on_host(&host.to_string())
    }
}

mod in_memory_asleep {
    caravan_van::conformance!(super::near(super::Wait::Block));
}

mod by_sockets {
    caravan_van::conformance!(super::far(super::Wait::Adaptive(super::Duration::from_micros(50))));
}

fn config(node: u32) -> VanConfig {
    VanConfig { node, memory_bytes: 64 << 20, wait: Wait::Block, ..VanConfig::default() }
}

fn frame(van: &Mixed, bytes: &[u8]) -> Buffer {
    let mut frame = van.about().memory.allocate(FRAME_PREFIX + bytes.len()).unwrap();
    frame[FRAME_PREFIX..].copy_from_slice(bytes);
    frame
}

/// Waits, as long as it takes, for the next event.
fn next(van: &mut Mixed, events: &mut Vec<Event>) -> Event {
    while events.is_empty() {
        van.wait(LONG).expect("the van works");
        van.poll(events).expect("the van works");
    }
    events.remove(0)
}

/// Moves both along until the first has something to report.
fn first(van: &mut Mixed, other: &mut Mixed) -> Event {
    let mut events = Vec::new();
    let began = Instant::now();
    while began.elapsed() < LONG {
        van.wait(Duration::from_micros(100)).unwrap();
        van.poll(&mut events).unwrap();
        other.wait(Duration::from_micros(100)).unwrap();
        if !events.is_empty() {
            return events.remove(0);
        }
    }
    panic!("nothing came");
}

/// Connects `a` to `b`; returns what each calls the other.
fn connect(a: &mut Mixed, b: &mut Mixed, address: &str) -> (PeerId, PeerId) {
    let there = a.connect(address).unwrap();
    let event = first(a, b);
    assert!(matches!(event, Event::Connected { peer, .. } if peer == there), "{event:?}");
    let event = first(b, a);
    let Event::Connected { peer: back, .. } = event else { panic!("{event:?}") };
    (there, back)
}

/// Goal: a thread that sleeps on two vans misses nothing of either. Method: a server with a client
/// in memory and one by sockets, all of which sleep at once and for a minute if nobody wakes them;
/// the clients take turns, so that every frame meets sleepers.
#[test]
fn whoever_sleeps_on_two_vans_is_woken_by_both() {
    const ROUNDS: u64 = 2000;
    let (say, address) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut van = mixed(&config(1)).on_host("here");
        say.send(van.about().address.clone()).unwrap();
        let (mut events, mut lost, mut vans) = (Vec::new(), 0, Vec::new());
        while lost < 2 {
            match next(&mut van, &mut events) {
                Event::Connected { peer, .. } => vans.push(van.about_of(peer).name),
                Event::Received { peer, frame: request } => {
                    let answer = frame(&van, &request);
                    van.post_send(peer, answer.into()).unwrap();
                }
                Event::Lost { .. } => lost += 1,
                event => panic!("{event:?}"),
            }
        }
        vans.sort_unstable();
        assert_eq!(vans, ["shm", "tcp"]);
        van.counters()
    });
    let address = address.recv().unwrap();
    let mut clients = ["here", "elsewhere"].map(|host| mixed(&config(2)).on_host(host));
    let mut events = Vec::new();
    let peers = clients.each_mut().map(|client| {
        let peer = client.connect(&address).unwrap();
        assert!(matches!(next(client, &mut events), Event::Connected { .. }));
        peer
    });
    for round in 0..ROUNDS {
        let (client, peer) = (&mut clients[round as usize % 2], peers[round as usize % 2]);
        client.post_send(peer, frame(client, &round.to_le_bytes()).into()).unwrap();
        let event = next(client, &mut events);
        assert!(matches!(&event, Event::Received { frame, .. } if **frame == round.to_le_bytes()));
    }
    drop(clients);
    let counters = server.join().unwrap();
    assert_eq!(counters.frames_received, ROUNDS, "of both vans together");
    assert!(counters.sleeps > 0);
}

/// Goal: a round trip allocates nothing, whichever van carries it.
#[test]
fn a_round_trip_allocates_nothing() {
    for host in ["here", "elsewhere"] {
        let mut a = mixed(&config(1)).on_host("here");
        let mut b = mixed(&config(2)).on_host(host);
        let address = b.about().address.clone();
        let (there, back) = connect(&mut a, &mut b, &address);
        let mut events = Vec::with_capacity(8);
        let mut pass = |from: &mut Mixed, to: &mut Mixed, peer| {
            from.post_send(peer, frame(from, b"a frame").into()).unwrap();
            while events.is_empty() {
                from.poll(&mut Vec::new()).unwrap();
                to.poll(&mut events).unwrap();
            }
            events.clear();
        };
        let mut round_trips = || {
            for _ in 0..100 {
                pass(&mut a, &mut b, there);
                pass(&mut b, &mut a, back);
            }
        };
        round_trips();
        let allocated = allocation_counter::measure(round_trips);
        assert_eq!(allocated.count_total, 0, "{host}: {allocated:?}");
    }
}

#[test]
fn the_next_van_is_taken_where_no_lane_comes_about() {
    let mut a = mixed(&config(1));
    let mut b = mixed(&config(2));
    let address = b.about().address.clone();
    let (near, far) = address.split_once('|').unwrap();
    let gone = Shm::new(&config(3)).unwrap().about().address.clone(); // nobody listens there
    let (host, _) = near.split_once('=').unwrap();
    let (there, back) = connect(&mut a, &mut b, &format!("{host}={gone}|{far}"));
    assert_eq!((a.about_of(there).name, b.about_of(back).name), ("tcp", "tcp"));
    let (there, back) = connect(&mut a, &mut b, &address);
    assert_eq!((a.about_of(there).name, b.about_of(back).name), ("shm", "shm"));
    let error = a.connect(&format!("{host}={gone}")).unwrap_err();
    assert!(matches!(&error, Error::Connect { address, .. } if address.contains(&gone)), "{error}");
    let error = a.connect("rdma=192.0.2.1:7").unwrap_err();
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("none of this node's vans: shm, tcp"), "{why}");
}

/// Who is refused over one van is not let in over the next.
#[test]
fn a_refusal_is_final() {
    let mut a = mixed(&VanConfig { secret: Secret::from([1; 32]), ..config(1) });
    let mut b = mixed(&VanConfig { secret: Secret::from([2; 32]), ..config(2) });
    let there = a.connect(&b.about().address).unwrap();
    let event = first(&mut a, &mut b);
    let Event::Lost { peer, error } = &event else { panic!("{event:?}") };
    assert!(*peer == there && error.is_refusal(), "{error}");
    assert_eq!(a.about_of(there).name, "shm", "it was the first van's word");
}

/// Goal: a van that breaks costs its lanes, and new ones go over the next; the last one's error is
/// the transport's.
#[test]
fn a_broken_van_is_replaced_by_the_next() {
    let switches = Rc::new(Switches::default());
    let fragile = Switched(Shm::new(&config(1)).unwrap(), switches.clone());
    let tcp = Tcp::new(&config(1)).unwrap();
    let mut a = Mixed::new(vec![Box::new(fragile), Box::new(tcp)], Wait::Block).unwrap();
    let mut b = mixed(&config(2));
    let mut far = mixed(&config(3)).on_host("elsewhere");
    let address = b.about().address.clone();
    let (broken, back) = connect(&mut a, &mut b, &address);
    let address = a.about().address.clone();
    let (_, whole) = connect(&mut far, &mut a, &address);
    let into = a.about().memory.allocate(1000).unwrap();
    let offer = a.offer(broken, into).unwrap();

    switches.is_broken.set(true);
    let event = first(&mut a, &mut b);
    let Event::Lost { peer, error } = &event else { panic!("{event:?}") };
    assert_eq!(*peer, broken);
    let text = error.to_string();
    assert!(text.contains("shm van is broken") && text.contains("unplugged"), "{text}");
    assert_eq!(a.withdraw(broken, offer.key.get()).unwrap().len(), 1000, "until it is forgotten");
    a.disconnect(broken);
    let event = first(&mut b, &mut a);
    assert!(matches!(event, Event::Lost { peer, .. } if peer == back), "{event:?}");

    let address = b.about().address.clone();
    let (there, _) = connect(&mut a, &mut b, &address);
    assert_eq!(a.about_of(there).name, "tcp");
    for (peer, other) in [(there, &mut b), (whole, &mut far)] {
        a.post_send(peer, frame(&a, b"goes on").into()).unwrap();
        let event = first(other, &mut a);
        assert!(matches!(&event, Event::Received { frame, .. } if **frame == *b"goes on"));
    }

    switches.is_broken.set(false);
    let alone = Switched(Shm::new(&config(4)).unwrap(), switches.clone());
    let mut alone = Mixed::new(vec![Box::new(alone)], Wait::Block).unwrap();
    switches.is_broken.set(true);
    assert!(alone.poll(&mut Vec::new()).is_err(), "nothing is left");
    assert!(Mixed::new(Vec::new(), Wait::Block).is_err());
}

/// Goal: a request that is posted before its lane is up has no form that only the van has which was
/// to carry it. Method: that van breaks before the lane is up.
#[test]
fn an_early_request_arrives_over_whichever_van_comes_up() {
    for bytes in [8, 5000, 3 << 20] {
        let switches = Rc::new(Switches::default());
        let fragile = Switched(Shm::new(&config(1)).unwrap(), switches.clone());
        let tcp = Tcp::new(&config(1)).unwrap();
        let a = Mixed::new(vec![Box::new(fragile), Box::new(tcp)], Wait::Block).unwrap();
        let mut a = Endpoint::new(Box::new(a), 1, 4);
        let mut b = Endpoint::new(Box::new(mixed(&config(2))), 2, 4);
        let there = a.open(b.lanes.address()).unwrap();
        assert_eq!(a.lanes.van_of(there), None, "nobody knows yet");
        let mut values = a.lanes.memory().allocate(bytes).unwrap();
        values.fill(7);
        let values = Values::Apart(values.share());
        let draft = Draft { timestamp: 1, values, ..Draft::new(Kind::Request) };
        a.lanes.post(there, draft, &mut Coding::plain()).unwrap();

        switches.is_broken.set(true);
        let came = came(&mut b, &mut a);
        assert_eq!(came.len(), bytes);
        assert!(came.iter().all(|byte| *byte == 7));
        assert_eq!(a.lanes.van_of(there), Some("tcp"));
    }
}

/// Moves both along until a message comes to the first; returns its values.
fn came(end: &mut Endpoint, other: &mut Endpoint) -> Vec<u8> {
    let began = Instant::now();
    while began.elapsed() < LONG {
        for end in [&mut *other, &mut *end] {
            end.wait(Duration::from_micros(100)).unwrap();
            end.poll().unwrap();
            while let Some(arrival) = end.take() {
                match arrival {
                    Arrival::Connected { .. } => {}
                    Arrival::Message { .. } => return end.pop().unwrap().values().to_vec(),
                    arrival => panic!("{arrival:?}"),
                }
            }
        }
    }
    panic!("nothing came");
}
