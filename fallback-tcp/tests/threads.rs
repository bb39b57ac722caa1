//! Two threads that really wait for each other, and callers that are no vans.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use caravan_fallback_tcp::Tcp;
use caravan_van::handshake::{Credentials, refusal};
use caravan_van::socket::CARRIER;
use caravan_van::{Buffer, Event, FRAME_PREFIX, PeerId, Transport, VanConfig, Wait};

const LONG: Duration = Duration::from_secs(60);

fn tcp(node: u32, wait: Wait) -> Tcp {
    Tcp::new(&VanConfig { node, wait, ..VanConfig::default() }).expect("a free port")
}

/// Waits, as long as it takes, for the next event.
fn next(van: &mut Tcp, events: &mut Vec<Event>) -> Event {
    while events.is_empty() {
        van.wait(LONG).expect("the van works");
        van.poll(events).expect("the van works");
    }
    events.remove(0)
}

fn connected(event: Event) -> PeerId {
    let Event::Connected { peer, .. } = event else { panic!("{event:?}") };
    peer
}

/// Answers every frame by one with a byte added, until the peer is gone; returns how many.
fn serve(van: &mut Tcp) -> u64 {
    let mut events = Vec::new();
    let peer = connected(next(van, &mut events));
    let mut count = 0;
    loop {
        match next(van, &mut events) {
            Event::Received { frame, .. } => {
                count += 1;
                let mut reply =
                    van.about().memory.allocate(FRAME_PREFIX + frame.len() + 1).unwrap();
                reply[FRAME_PREFIX..FRAME_PREFIX + frame.len()].copy_from_slice(&frame);
                van.post_send(peer, reply.into()).unwrap();
            }
            Event::Lost { .. } => return count,
            event => panic!("{event:?}"),
        }
    }
}

/// Runs `count` round trips between two threads that wait like this; returns the caller's counters
/// for them.
fn ping_pong(wait: Wait, count: u64) -> caravan_van::Counters {
    let (tell, told) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut van = tcp(1, wait);
        tell.send(van.about().address.clone()).unwrap();
        assert_eq!(serve(&mut van), count);
    });
    let mut van = tcp(2, wait);
    let mut events = Vec::new();
    let peer = van.connect(&told.recv().unwrap()).unwrap();
    assert_eq!(connected(next(&mut van, &mut events)), peer);
    let before = van.counters();
    for round in 0..count {
        let mut frame = van.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
        frame[FRAME_PREFIX..].copy_from_slice(&round.to_le_bytes());
        van.post_send(peer, frame.into()).unwrap();
        let Event::Received { frame, .. } = next(&mut van, &mut events) else { panic!("lost") };
        assert_eq!((frame.len(), &frame[..8]), (9, &round.to_le_bytes()[..]));
    }
    let mut counters = van.counters();
    counters.system_calls -= before.system_calls;
    drop(van);
    server.join().unwrap();
    counters
}

#[test]
fn two_threads_that_block() {
    let counters = ping_pong(Wait::Block, 2000);
    assert!(counters.sleeps > 0);
    // Send, find nothing, sleep, read: three to five a round trip, plus a few for looking around.
    assert!(counters.system_calls < 2000 * 7, "{counters:?}");
}

#[test]
fn two_threads_that_yield_then_sleep() {
    let counters = ping_pong(Wait::default(), 2000);
    assert_eq!((counters.frames_sent, counters.frames_received), (2000, 2000));
}

#[test]
fn two_threads_that_never_sleep() {
    assert_eq!(ping_pong(Wait::Yield, 500).sleeps, 0);
}

/// Who was busy for so long that nobody watched its sockets any more is woken all the same when it
/// sleeps.
#[test]
fn who_sleeps_after_a_busy_time_is_woken() {
    let (tell, told) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut van = tcp(1, Wait::default());
        tell.send(van.about().address.clone()).unwrap();
        serve(&mut van)
    });
    let mut van = tcp(2, Wait::default());
    let mut events = Vec::new();
    let peer = van.connect(&told.recv().unwrap()).unwrap();
    connected(next(&mut van, &mut events));
    let mut count = 0;
    for _ in 0..3 {
        let busy = van.about().clock.now() + Duration::from_millis(10);
        while van.about().clock.now() < busy {
            let frame = van.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
            van.post_send(peer, frame.into()).unwrap();
            count += 1;
            assert!(matches!(next(&mut van, &mut events), Event::Received { .. }));
        }
        std::thread::sleep(Duration::from_millis(20)); // by now the server sleeps
        let began = van.about().clock.now();
        let frame = van.about().memory.allocate(FRAME_PREFIX + 8).unwrap();
        van.post_send(peer, frame.into()).unwrap();
        count += 1;
        assert!(matches!(next(&mut van, &mut events), Event::Received { .. }));
        assert!(van.about().clock.now() - began < LONG / 2, "the server slept its time out");
    }
    drop(van);
    assert_eq!(server.join().unwrap(), count);
}

#[test]
fn large_writes_between_threads_are_not_copied() {
    let (len, rounds) = (4 << 20, 20);
    let (tell, told) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut van = tcp(1, Wait::Block);
        tell.send(van.about().address.clone()).unwrap();
        let mut events = Vec::new();
        let peer = connected(next(&mut van, &mut events));
        for _ in 0..rounds {
            let offer = van.offer(peer, Buffer::adopt(vec![0u8; len])).unwrap();
            let mut frame = van.about().memory.allocate(FRAME_PREFIX + 24).unwrap();
            frame[FRAME_PREFIX..].copy_from_slice(zerocopy::IntoBytes::as_bytes(&offer));
            van.post_send(peer, frame.into()).unwrap();
        }
        let mut first = 0;
        for round in 0..rounds {
            let Event::Written { memory, .. } = next(&mut van, &mut events) else { panic!("lost") };
            if round == 0 {
                first = van.counters().payload_bytes_copied;
            }
            assert!(memory.iter().enumerate().all(|(i, &byte)| byte == i as u8));
        }
        assert!(first <= 64 << 10, "{first} bytes were staged at first");
        assert_eq!(van.counters().payload_bytes_copied, first);
    });
    let mut van = tcp(2, Wait::Block);
    let mut events = Vec::new();
    let peer = van.connect(&told.recv().unwrap()).unwrap();
    connected(next(&mut van, &mut events));
    let data = Buffer::adopt((0..len).map(|i| i as u8).collect()).share();
    for _ in 0..rounds {
        let Event::Received { frame, .. } = next(&mut van, &mut events) else { panic!("lost") };
        let offer = zerocopy::FromBytes::read_from_bytes(&frame).unwrap();
        van.post_write(peer, data.clone().into(), &offer, 0).unwrap();
    }
    assert!(matches!(next(&mut van, &mut events), Event::Lost { .. }), "the server is done");
    server.join().unwrap();
}

/// Drives `van` until it has hung up on `socket`, and returns what the socket got to hear.
fn hear(van: &mut Tcp, socket: &mut TcpStream, events: &mut Vec<Event>) -> Vec<u8> {
    socket.set_nonblocking(true).unwrap();
    let mut heard = Vec::new();
    loop {
        van.wait(Duration::from_millis(1)).unwrap();
        van.poll(events).unwrap();
        match socket.read_to_end(&mut heard) {
            Ok(_) => return heard,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
        }
    }
}

#[test]
fn a_stranger_hears_that_he_is_refused_and_no_more() {
    let mut van = tcp(1, Wait::Block);
    let other = VanConfig { cluster: 99, ..VanConfig::default() };
    let of_another_job = Credentials::new(&other, CARRIER).call().1;
    for (call, answer) in [(&of_another_job[..], &refusal()[..]), (b"GET / HTTP/1.1", &[])] {
        let mut socket = TcpStream::connect(&van.about().address).unwrap();
        // More than a call, so that hanging up on unread bytes would take the answer back.
        let mut talk = call.to_vec();
        talk.resize(100_000, 0);
        socket.write_all(&talk).unwrap();
        let mut events = Vec::new();
        assert_eq!(hear(&mut van, &mut socket, &mut events), answer);
        assert!(events.is_empty(), "nobody here knew it: {events:?}");
    }
}

#[test]
fn who_says_nothing_is_hung_up_on() {
    let mut van = tcp(1, Wait::Block);
    let mut socket = TcpStream::connect(&van.about().address).unwrap();
    let mut events = Vec::new();
    hear(&mut van, &mut socket, &mut events);
    assert!(events.is_empty());
}

#[test]
fn who_does_not_answer_is_given_up() {
    // The system accepts for this listener, but nobody ever says hello.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut van = tcp(1, Wait::Block);
    let address = silent.local_addr().unwrap().to_string();
    let peer = van.connect(&address).unwrap();
    let Event::Lost { peer: lost, error } = next(&mut van, &mut Vec::new()) else {
        panic!("it spoke")
    };
    assert_eq!(lost, peer);
    assert!(error.to_string().contains(&address), "{error}");
}

#[test]
fn what_cannot_work_is_refused_with_the_reason() {
    let bad = |config: VanConfig| Tcp::new(&config).unwrap_err().to_string();
    assert!(bad(VanConfig { frame_bytes: 40_000, ..VanConfig::default() }).contains("40000"));
    assert!(bad(VanConfig { credits: 0, ..VanConfig::default() }).contains("credits is 0"));
    let taken = tcp(1, Wait::Block);
    let listen = taken.about().address.clone();
    assert!(bad(VanConfig { listen: listen.clone(), ..VanConfig::default() }).contains(&listen));
    assert!(
        bad(VanConfig { listen: "nonsense".into(), ..VanConfig::default() }).contains("nonsense")
    );
}
