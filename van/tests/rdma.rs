//! The RDMA van on a device of this machine: the contract of a van, for each way to wait and over a
//! link, and what is its own.
//!
//! `CARAVAN_TEST_DEVICE` names the device; without it every test is skipped. `CARAVAN_TEST_ADDRESS`
//! and `CARAVAN_TEST_ADDRESS2` are addresses of two devices joined by a link, where there are two.
#![cfg(all(target_os = "linux", feature = "rdma"))]

use crate::support;
use std::time::{Duration, Instant};

use caravan_van::conformance::{a_crowd_costs_the_active_lane_nothing, lanes};
use caravan_van::mixed::Mixed;
use caravan_van::rdma::Rdma;
use caravan_van::wire::{Coding, Kind};
use caravan_van::{
    Arrival, Buffer, Draft, Endpoint, Error, Event, PeerId, RdmaConfig, RdmaConnect, Sleeper,
    Transport, Values, VanConfig, Wait,
};
use support::{connect, frame};

const MIB: usize = 1 << 20;

/// What the tests run on, or `None` with a line that says why not.
fn device() -> Option<String> {
    let device = std::env::var("CARAVAN_TEST_DEVICE").ok();
    if device.is_none() {
        eprintln!("skipped: CARAVAN_TEST_DEVICE names no RDMA device (`ci/vm` has one)");
    }
    device
}

fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok();
    if value.is_none() {
        eprintln!("skipped: {name} is not set");
    }
    value
}

/// A device, and how `CARAVAN_TEST_CONNECT` says that connections are made.
fn on(device: Option<String>) -> RdmaConfig {
    let connect = std::env::var("CARAVAN_TEST_CONNECT").ok();
    let connect = connect.map_or(RdmaConnect::Auto, |way| way.parse().unwrap());
    RdmaConfig { device, connect, ..RdmaConfig::default() }
}

fn config(wait: Wait) -> VanConfig {
    let device = std::env::var("CARAVAN_TEST_DEVICE").ok();
    VanConfig { wait, rdma: on(device), memory_bytes: 256 << 20, ..VanConfig::default() }
}

/// What makes transports that wait like this; a test where there is no device ends here.
macro_rules! makes {
    ($wait:expr) => {{
        let Some(device) = super::device() else { return };
        move |config| {
            let rdma = super::on(Some(device.clone()));
            super::Rdma::new(&super::VanConfig { wait: $wait, rdma, ..config }).unwrap()
        }
    }};
}

/// What makes transports on the devices at both ends of a link, in turn.
macro_rules! makes_linked {
    ($one:expr, $other:expr) => {{
        let (Some(one), Some(other)) = (super::variable($one), super::variable($other)) else {
            return;
        };
        move |config: super::VanConfig| {
            let address = if config.node % 2 == 0 { &one } else { &other };
            let listen = std::net::SocketAddr::new(address.parse().unwrap(), 0).to_string();
            super::Rdma::new(&super::VanConfig { listen, ..config }).unwrap()
        }
    }};
}
use {makes, makes_linked};

mod adaptive {
    caravan_van::conformance!(super::makes!(super::Wait::default()));
}

mod block {
    caravan_van::conformance!(super::makes!(super::Wait::Block));
}

mod direct {
    /// As `makes`, without the connection manager.
    macro_rules! makes_direct {
        () => {{
            let Some(device) = super::device() else { return };
            move |config| {
                let (device, connect) = (Some(device.clone()), super::RdmaConnect::Direct);
                let rdma = super::RdmaConfig { device, connect, ..super::RdmaConfig::default() };
                super::Rdma::new(&super::VanConfig { rdma, ..config }).unwrap()
            }
        }};
    }
    caravan_van::conformance!(makes_direct!());
}

mod linked {
    caravan_van::conformance!(super::makes_linked!(
        "CARAVAN_TEST_ADDRESS",
        "CARAVAN_TEST_ADDRESS2"
    ));
}

mod linked_by_ipv6 {
    caravan_van::conformance!(super::makes_linked!(
        "CARAVAN_TEST_ADDRESS6",
        "CARAVAN_TEST_ADDRESS26"
    ));
}

/// A transport on all ports that a thread uses.
fn on_ports(config: &VanConfig) -> Mixed {
    let ports = Rdma::on_ports(config).unwrap().into_iter();
    let members = ports.map(|port| Box::new(port) as Box<dyn Sleeper>).collect();
    Mixed::new(members, config.wait).unwrap()
}

/// A node of each turn takes another port of two: lanes go over a device or over the link.
mod on_ports {
    macro_rules! makes_on_ports {
        () => {{
            let Some(_) = super::device() else { return };
            move |config: super::VanConfig| {
                super::on_ports(&super::VanConfig { turn: config.node, ..config })
            }
        }};
    }
    caravan_van::conformance!(makes_on_ports!());
}

/// Goal: threads share two equal ports evenly, at both ends, without a setting, and any port
/// reaches any other. Method: a client and a server of each turn, and a lane between each two.
#[test]
fn threads_begin_at_different_ports() {
    let (Some(_), Some(_)) = (device(), variable("CARAVAN_TEST_ADDRESS2")) else { return };
    let make = |node: u32| {
        let common =
            VanConfig { wait: Wait::default(), memory_bytes: 64 << 20, ..VanConfig::default() };
        on_ports(&VanConfig { node, turn: node, ..common })
    };
    let (mut clients, mut servers) = ([0, 1].map(make), [0, 1].map(make));
    let port = |van: &Mixed, peer| van.about_of(peer).port.clone().unwrap();
    let mut found = Vec::new();
    for client in &mut clients {
        for server in &mut servers {
            let (there, back) = connect(client, server);
            client.post_send(there, frame(client, b"over it").into()).unwrap();
            let mut events = Vec::new();
            let began = Instant::now();
            while events.is_empty() {
                client.poll(&mut Vec::new()).unwrap();
                server.poll(&mut events).unwrap();
                assert!(began.elapsed() < Duration::from_secs(60), "nothing came");
            }
            assert!(matches!(&events[0], Event::Received { peer, .. } if *peer == back));
            found.push((port(client, there), port(server, back)));
        }
    }
    let one = found[0].0.clone();
    let other = found[3].0.clone();
    assert_ne!(one, other);
    let expected = [(&one, &one), (&one, &other), (&other, &one), (&other, &other)];
    assert_eq!(found.iter().map(|(from, to)| (from, to)).collect::<Vec<_>>(), expected);
}

/// Goal: a long value goes over both ports of two nodes that have two, in either direction and
/// without a setting. Method: the packets that each device has sent.
#[test]
fn long_values_go_over_both_ports() {
    let (Some(first), Some(second)) = (device(), variable("CARAVAN_TEST_DEVICE2")) else { return };
    let sent = || {
        [&first, &second].map(|device| {
            let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
            std::fs::read_to_string(path).map_or(0, |text| text.trim().parse::<u64>().unwrap())
        })
    };
    let config = VanConfig { memory_bytes: 64 << 20, ..VanConfig::default() };
    let vans = [0, 1].map(|turn| on_ports(&VanConfig { node: turn, turn, ..config.clone() }));
    let [mut client, mut server] = vans;
    let (there, back) = connect(&mut client, &mut server);
    for round in 0..6 {
        let before = sent();
        let (writer, to, reader, from) = match round % 2 {
            0 => (&mut client, there, &mut server, back),
            _ => (&mut server, back, &mut client, there),
        };
        let into = reader.about().memory.allocate(1 << 20).unwrap();
        let offer = reader.offer(from, into).unwrap();
        reader.post_send(from, frame(reader, b"an offer").into()).unwrap();
        let data = Vec::from_iter((0..1 << 20).map(|at: u32| (at >> 3) as u8 ^ round));
        let (mut heard, mut events, began) = (false, Vec::new(), Instant::now());
        let memory = loop {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing came");
            reader.poll(&mut events).unwrap();
            if let Some(Event::Written { memory, len, .. }) = events.pop() {
                assert_eq!(len, data.len());
                break memory;
            }
            writer.poll(&mut events).unwrap();
            if !heard && !events.is_empty() {
                heard = true;
                let data = Buffer::adopt(data.clone()).share();
                writer.post_write(to, data.into(), &offer, 0).unwrap();
            }
            events.clear();
        };
        assert!(memory[..] == data[..]);
        let sent: Vec<_> = sent().iter().zip(before).map(|(now, then)| now - then).collect();
        if round >= 2 {
            assert!(sent.iter().all(|&packets| packets >= 128), "round {round}: {sent:?}");
        }
        // The lanes beside it come about behind the first value.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            client.wait(Duration::from_millis(1)).unwrap();
            client.poll(&mut events).unwrap();
            server.wait(Duration::from_millis(1)).unwrap();
            server.poll(&mut events).unwrap();
            assert!(events.is_empty(), "{events:?}");
        }
    }
}

/// Goal: a port that cannot be reached costs a lane nothing but time. Method: the address of a
/// server whose first port refuses callers.
#[test]
fn a_port_that_refuses_is_passed_over() {
    let (Some(_), Some(address)) = (device(), variable("CARAVAN_TEST_ADDRESS")) else { return };
    let config = VanConfig { memory_bytes: 64 << 20, ..VanConfig::default() };
    let (mut client, mut server) = (on_ports(&config), on_ports(&config));
    let address = format!("rdma={address}:1|{}", server.about().address); // nobody listens there
    let there = client.connect(&address).unwrap();
    let began = Instant::now();
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "no lane");
        client.wait(Duration::from_millis(1)).unwrap();
        client.poll(&mut events).unwrap();
        server.wait(Duration::from_millis(1)).unwrap();
        server.poll(&mut Vec::new()).unwrap();
    }
    let is_up = matches!(events[0], Event::Connected { peer, .. } if peer == there);
    assert!(is_up && client.about_of(there).name == "rdma", "{events:?}");
}

/// More lanes than one completion queue of Soft-RoCE serves.
#[test]
fn an_active_lane_among_many() {
    among_lanes(lanes(300));
}

#[test]
#[ignore = "it takes minutes in an emulated machine"]
fn an_active_lane_among_a_thousand() {
    among_lanes(lanes(1000));
}

fn among_lanes(lanes: usize) {
    let Some(_) = device() else { return };
    let make = |other: VanConfig| {
        let rdma = config(Wait::default()).rdma;
        Rdma::new(&VanConfig { rdma, ..other }).unwrap()
    };
    let bytes = a_crowd_costs_the_active_lane_nothing(make, lanes);
    println!("{bytes} bytes of registered memory a lane");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap());
    assert!(bytes < 256 << 10, "{bytes} bytes for both ends of a lane that had one message");
}

/// Two that are connected, and what each calls the other.
fn pair(config: &VanConfig) -> (Rdma, Rdma, PeerId, PeerId) {
    let (mut a, mut b) = (Rdma::new(config).unwrap(), Rdma::new(config).unwrap());
    let (to_b, to_a) = connect(&mut a, &mut b);
    (a, b, to_b, to_a)
}

/// A counter of the device, where it has it.
fn hardware_counter(name: &str) -> Option<u64> {
    let device = std::env::var("CARAVAN_TEST_DEVICE").ok()?;
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Goal: a flooded peer always has a receive buffer ready, since senders wait for credits.
/// Method: post far more than there are receive buffers, in both directions, and look at the
/// device's own counters.
#[test]
fn a_flood_waits_for_credits() {
    let Some(_) = device() else { return };
    let (mut a, mut b, to_b, to_a) =
        pair(&VanConfig { queue_depth: 4096, ..config(Wait::default()) });
    let before = hardware_counter("rcvd_rnr_err");
    const COUNT: u32 = 3000;
    for number in 0..COUNT {
        a.post_send(to_b, frame(&a, &number.to_le_bytes()).into()).unwrap();
        b.post_send(to_a, frame(&b, &number.to_le_bytes()).into()).unwrap();
    }
    // One side does not look at all for a while: the other one must stop.
    let mut events = Vec::new();
    for _ in 0..100 {
        a.poll(&mut events).unwrap();
    }
    let (mut received, began) = ([0u32; 2], Instant::now());
    while received != [COUNT; 2] {
        for (van, received) in [&mut a, &mut b].into_iter().zip(&mut received) {
            van.poll(&mut events).unwrap();
            for event in events.drain(..) {
                let Event::Received { frame, .. } = event else { panic!("{event:?}") };
                assert_eq!(frame[..], received.to_le_bytes());
                *received += 1;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{received:?}");
    }
    assert_eq!(hardware_counter("rcvd_rnr_err"), before, "a receiver was not ready");
}

/// Goal: no long message is copied. Its values leave from the caller's own memory and
/// land in memory that the receiver granted, and long answers land in the caller's own.
#[test]
fn long_messages_are_not_copied() {
    let Some(_) = device() else { return };
    let config = config(Wait::default());
    let mut ends = [1, 2].map(|node| {
        Endpoint::new(Box::new(Rdma::new(&VanConfig { node, ..config.clone() }).unwrap()), node, 64)
    });
    let address = ends[1].lanes.address().to_owned();
    let there = ends[0].connect(&address).unwrap();
    let turn = |ends: &mut [Endpoint; 2], at: usize| {
        let began = Instant::now();
        loop {
            ends[1 - at].poll().unwrap();
            // What endpoints say to each other is taken in as it is come upon.
            while let Some(arrival) = ends[1 - at].take() {
                assert!(matches!(arrival, Arrival::Connected { .. }), "{arrival:?}");
            }
            ends[at].poll().unwrap();
            if let Some(arrival) = ends[at].take() {
                return arrival;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "nothing came");
            std::thread::yield_now();
        }
    };
    let Arrival::Connected { .. } = turn(&mut ends, 0) else { panic!() };
    for round in 0..5u64 {
        let values: Vec<u64> = (0..MIB as u64 / 8).map(|at| at * (round + 3)).collect();
        let source = Buffer::adopt(values.clone()).share();
        let into = Buffer::adopt(vec![0u64; values.len()]);
        let goal = into.as_ptr();
        let offer = ends[0].lanes.offer(there, into).unwrap();
        let draft = Draft {
            timestamp: round,
            values: Values::Apart(source),
            offer: Some(offer),
            ..Draft::new(Kind::Request)
        };
        ends[0].lanes.post(there, draft, &mut Coding::plain()).unwrap();
        let (back, request) = loop {
            match turn(&mut ends, 1) {
                Arrival::Message { peer } => break (peer, ends[1].pop().unwrap()),
                Arrival::Connected { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        let (offer, landed) = (request.offer().unwrap(), request.into_values());
        // It is answered from where it landed.
        ends[1].lanes.place(back, landed.share(), offer).unwrap();
        let Arrival::Placed { timestamp, memory, len, .. } = turn(&mut ends, 0) else { panic!() };
        assert_eq!((timestamp, len, memory.as_ptr()), (round, MIB, goal));
        let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(memory[..] == expected[..], "round {round}");
    }
    for end in &ends {
        let counters = end.lanes.counters();
        assert_eq!(counters.payload_bytes_copied, 0, "{counters:?}");
        assert!(counters.bytes_received > 5 * MIB as u64, "{counters:?}");
    }
}

/// Nothing is allocated for frames and writes once all is warm, on either side.
#[test]
fn a_round_trip_allocates_nothing() {
    const ROUNDS: u64 = 200;
    let Some(_) = device() else { return };
    let (mut a, mut b, to_b, to_a) = pair(&config(Wait::default()));
    let data = a.about().memory.allocate(MIB).unwrap().share();
    let mut place = Some(b.about().memory.allocate(MIB).unwrap());
    let mut events = Vec::with_capacity(8);
    let mut round_trips = |len: usize| {
        for _ in 0..ROUNDS {
            if len > 0 {
                let offer = b.offer(to_a, place.take().unwrap()).unwrap();
                // The offer holds from when something that follows it has arrived.
                b.post_send(to_a, frame(&b, b"offer").into()).unwrap();
                while events.is_empty() {
                    b.poll(&mut Vec::new()).unwrap();
                    a.poll(&mut events).unwrap();
                    std::thread::yield_now();
                }
                events.clear();
                a.post_write(to_b, data.slice(..len).into(), &offer, 0).unwrap();
            }
            a.post_send(to_b, frame(&a, b"request").into()).unwrap();
            let mut came = false;
            while !came {
                a.poll(&mut events).unwrap();
                b.poll(&mut events).unwrap();
                for event in events.drain(..) {
                    match event {
                        Event::Written { memory, .. } => place = Some(memory),
                        Event::Received { .. } => came = true,
                        other => panic!("{other:?}"),
                    }
                }
                std::thread::yield_now();
            }
            b.post_send(to_a, frame(&b, b"answer").into()).unwrap();
            while events.is_empty() {
                b.poll(&mut Vec::new()).unwrap();
                a.poll(&mut events).unwrap();
                std::thread::yield_now();
            }
            events.clear();
        }
    };
    for len in [0, 100, MIB] {
        round_trips(len);
        let allocated = allocation_counter::measure(|| round_trips(len));
        assert_eq!(allocated.count_total, 0, "{len} bytes: {allocated:?}");
    }
}

#[test]
fn an_idle_transport_sleeps() {
    let Some(_) = device() else { return };
    let (_a, mut b, ..) = pair(&config(Wait::default()));
    b.wait(Duration::from_millis(100)).unwrap();
    let before = b.counters();
    b.wait(Duration::from_millis(300)).unwrap();
    assert!(b.counters().sleeps > before.sleeps, "it never slept");
}

#[test]
fn what_cannot_be_used_is_named() {
    let Some(name) = device() else { return };
    let none = VanConfig { rdma: on(Some("no_such_device".to_owned())), ..config(Wait::default()) };
    let error = Rdma::new(&none).err().unwrap().to_string();
    assert!(error.contains("no_such_device") && error.contains(&name), "{error}");
    let error = Rdma::new(&VanConfig { credits: 0, ..config(Wait::default()) }).err().unwrap();
    assert!(matches!(error, Error::Setting { name: "credits", value: 0, .. }));
}

/// There is a way to an address of the device's own network, and none to one that nobody has.
#[test]
fn routes_are_found() {
    let Some(_) = device() else { return };
    let van = Rdma::new(&config(Wait::default())).unwrap();
    let own = van.about().address.split(',').next().unwrap();
    caravan_van::rdma::reaches(&config(Wait::default()), own).unwrap();
    let error = caravan_van::rdma::reaches(&config(Wait::default()), "203.0.113.9:1").unwrap_err();
    assert!(error.to_string().contains("203.0.113.9:1"), "{error}");
}

/// What a caller with one setting hears that connects directly to a transport with another.
fn refusal_between(one: RdmaConfig, other: RdmaConfig) -> String {
    let made = |rdma| Rdma::new(&VanConfig { rdma, ..config(Wait::default()) });
    let (mut a, mut b) = (made(one).unwrap(), made(other).unwrap());
    let began = Instant::now();
    let mut events = match a.connect(&b.about().address.clone()) {
        Ok(_) => Vec::new(),
        Err(error) => return with_source(&error),
    };
    while events.is_empty() {
        b.wait(Duration::from_millis(1)).unwrap();
        b.poll(&mut Vec::new()).unwrap();
        a.wait(Duration::from_millis(1)).unwrap();
        a.poll(&mut events).unwrap();
        assert!(began.elapsed() < Duration::from_secs(30), "nothing came");
    }
    let Event::Lost { error, .. } = events.remove(0) else { panic!("{events:?}") };
    with_source(&error)
}

fn with_source(error: &Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    format!("{error}: {}", source.unwrap_or_default())
}

#[test]
fn wrong_settings_of_direct_connections_are_named_with_those_of_both_ends() {
    let Some(device) = device() else { return };
    let direct = || RdmaConfig {
        device: Some(device.clone()),
        connect: RdmaConnect::Direct,
        ..RdmaConfig::default()
    };
    let level = RdmaConfig { service_level: 3, ..direct() };
    let said = refusal_between(direct(), level.clone());
    assert!(said.contains("service level 0") && said.contains("service level 3"), "{said}");
    let small = RdmaConfig { mtu: Some(1024), ..direct() };
    let large = RdmaConfig { mtu: Some(2048), ..direct() };
    let said = refusal_between(small.clone(), large);
    assert!(said.contains("MTU 1024") && said.contains("MTU 2048"), "{said}");
    let managed = RdmaConfig { connect: RdmaConnect::Manager, ..direct() };
    if std::env::var("CARAVAN_TEST_CONNECT").is_err() {
        let gid = |gid| RdmaConfig { gid: Some(gid), ..direct() };
        let said = refusal_between(gid(0), gid(1));
        assert!(said.contains("GID 0 (fe80:") && said.contains("GID 1 (10."), "{said}");
        let said = refusal_between(direct(), managed.clone());
        assert!(said.contains("CARAVAN_RDMA_CONNECT"), "{said}");
    }
    for (wrong, words) in [
        (RdmaConfig { pkey: Some(0x8001), ..direct() }, ["0x8001", "0xffff"]),
        (RdmaConfig { gid: Some(99), ..direct() }, ["CARAVAN_RDMA_GID is 99", "GID 0 (fe80:"]),
        (RdmaConfig { port: Some(7), ..direct() }, ["CARAVAN_RDMA_PORT is 7", &device]),
        (RdmaConfig { connect: RdmaConnect::Manager, ..level }, ["SERVICE_LEVEL", "is cm"]),
    ] {
        let made = Rdma::new(&VanConfig { rdma: wrong, ..config(Wait::default()) });
        let error = made.err().unwrap().to_string();
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
    }
    // What fits is agreed on by both.
    let plain = VanConfig { rdma: direct(), ..config(Wait::default()) };
    let mut a = Rdma::new(&plain).unwrap();
    let mut b = Rdma::new(&VanConfig { rdma: small, ..plain }).unwrap();
    connect(&mut a, &mut b);
}
