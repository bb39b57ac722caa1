//! Compares ways to use the ring, side by side and interleaved, and prints medians; asserts nothing about time.
//!
//! `cargo test --release -p caravan-van --lib uring::compare -- --ignored --nocapture --test-threads 1`. Threads are pinned
//! with the `taskset` program, both to one core and then to one each.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Uring;
use super::probe::Mode;
use crate::config::VanConfig;
use crate::memory::Shared;
use crate::transport::{Event, FRAME_PREFIX, PeerId, Transport};
use crate::wait::Wait;
use crate::wire::Offer;

/// A small frame: a header, a key, a value.
const SMALL: usize = 80;
const LARGE: usize = 1 << 20;
const WINDOW: usize = 8;
const ROUNDS: usize = 7;

#[derive(Clone, Copy, Debug)]
enum Means {
    BlockingSockets,
    YieldingSockets,
    Ring(Mode, Wait),
}

fn means() -> Vec<Means> {
    let mut means = vec![Means::BlockingSockets, Means::YieldingSockets];
    for wait in [Wait::default(), Wait::Yield] {
        means.extend([Mode::Deferred, Mode::Cooperative].map(|mode| Means::Ring(mode, wait)));
    }
    means
}

/// Pins this thread.
fn pin(core: usize) {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = link.file_name().unwrap();
    let core = core.to_string();
    let pinned = Command::new("taskset").arg("-cp").arg(core).arg(thread).output().unwrap();
    assert!(pinned.status.success(), "{pinned:?}");
}

/// Round trips of one in flight: `send` bytes there, [`SMALL`] bytes back. Returns the median in microseconds.
fn sockets(nonblocking: bool, core: usize, send: usize, count: usize) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        pin(core);
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(nonblocking).unwrap();
        let mut buffer = vec![0; send];
        while read(&mut socket, &mut buffer) {
            socket.write_all(&buffer[..SMALL]).unwrap();
        }
    });
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_nonblocking(nonblocking).unwrap();
    let mut buffer = vec![0; send];
    let median = median_of(count, || {
        write(&mut socket, &buffer);
        assert!(read(&mut socket, &mut buffer[..SMALL]));
    });
    drop(socket);
    server.join().unwrap();
    median
}

fn read(socket: &mut TcpStream, buffer: &mut [u8]) -> bool {
    let mut at = 0;
    while at < buffer.len() {
        match socket.read(&mut buffer[at..]) {
            Ok(0) => return false,
            Ok(bytes) => at += bytes,
            Err(_) => std::thread::yield_now(),
        }
    }
    true
}

fn write(socket: &mut TcpStream, buffer: &[u8]) {
    let mut at = 0;
    while at < buffer.len() {
        match socket.write(&buffer[at..]) {
            Ok(bytes) => at += bytes,
            Err(_) => std::thread::yield_now(),
        }
    }
}

fn median_of(count: usize, mut round_trip: impl FnMut()) -> f64 {
    let mut nanos = Vec::with_capacity(count);
    for _ in 0..count / 5 {
        round_trip();
    }
    for _ in 0..count {
        let start = Instant::now();
        round_trip();
        nanos.push(start.elapsed().as_nanos() as u64);
    }
    nanos.sort_unstable();
    nanos[count / 2] as f64 / 1e3
}

fn next(van: &mut Uring, events: &mut Vec<Event>) -> Event {
    loop {
        if let Some(event) = events.pop() {
            return event;
        }
        van.poll(events).unwrap();
        if events.is_empty() {
            van.wait(Duration::from_secs(1)).unwrap();
        }
    }
}

/// A ring and a peer on a thread of its own, which answers each frame or write with a frame.
struct Link {
    van: Uring,
    peer: PeerId,
    events: Vec<Event>,
    /// [`LARGE`] bytes at the peer, up to [`WINDOW`] at a time.
    offers: mpsc::Receiver<Offer>,
    /// As many here.
    data: Shared,
    server: JoinHandle<()>,
}

impl Link {
    fn new(mode: Mode, wait: Wait, core: usize) -> Link {
        let config = VanConfig { wait, ..VanConfig::default() };
        let (tell_address, address) = mpsc::channel();
        let (tell_offer, offers) = mpsc::channel();
        let server_config = config.clone();
        let server = std::thread::spawn(move || {
            pin(core);
            let mut van = Uring::with_modes(&server_config, &[mode]).unwrap();
            tell_address.send(van.about().address.clone()).unwrap();
            let mut events = Vec::new();
            let Event::Connected { peer, .. } = next(&mut van, &mut events) else { panic!() };
            for _ in 0..WINDOW {
                let place = van.about().memory.allocate(LARGE).unwrap();
                tell_offer.send(van.offer(peer, place).unwrap()).unwrap();
            }
            loop {
                match next(&mut van, &mut events) {
                    Event::Received { .. } => post(&mut van, peer),
                    Event::Written { memory, .. } => {
                        tell_offer.send(van.offer(peer, memory).unwrap()).unwrap();
                        post(&mut van, peer);
                    }
                    _ => return,
                }
            }
        });
        let mut van = Uring::with_modes(&config, &[mode]).unwrap();
        let peer = van.connect(&address.recv().unwrap()).unwrap();
        let mut events = Vec::new();
        assert!(matches!(next(&mut van, &mut events), Event::Connected { .. }));
        let data = van.about().memory.allocate(LARGE).unwrap().share();
        Link { van, peer, events, offers, data, server }
    }

    /// Posts a frame, or a write of all of `data` if it is `large`.
    fn post(&mut self, large: bool) {
        if large {
            let offer = self.offers.recv().unwrap();
            self.van.post_write(self.peer, self.data.clone().into(), &offer, 0).unwrap();
        } else {
            post(&mut self.van, self.peer);
        }
    }

    fn receive(&mut self) {
        assert!(matches!(next(&mut self.van, &mut self.events), Event::Received { .. }));
    }

    fn end(self) {
        drop(self.van);
        self.server.join().unwrap();
    }
}

fn ring(mode: Mode, wait: Wait, core: usize, send: usize, count: usize) -> (f64, f64) {
    let mut link = Link::new(mode, wait, core);
    let before = link.van.counters().system_calls;
    let median = median_of(count, || {
        link.post(send > SMALL);
        link.receive();
    });
    let calls = (link.van.counters().system_calls - before) as f64 / (count + count / 5) as f64;
    link.end();
    (median, calls)
}

/// Sends `count` times [`LARGE`] bytes with up to [`WINDOW`] on the way. Returns microseconds for each.
fn stream_sockets(nonblocking: bool, core: usize, count: usize) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        pin(core);
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(nonblocking).unwrap();
        let mut buffer = vec![0; LARGE];
        for _ in 0..count {
            assert!(read(&mut socket, &mut buffer));
        }
        socket.write_all(&buffer[..SMALL]).unwrap();
    });
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_nonblocking(nonblocking).unwrap();
    let mut buffer = vec![0; LARGE];
    let start = Instant::now();
    for _ in 0..count {
        write(&mut socket, &buffer);
    }
    assert!(read(&mut socket, &mut buffer[..SMALL]));
    let micros = start.elapsed().as_nanos() as f64 / 1e3;
    server.join().unwrap();
    micros / count as f64
}

/// Likewise, with an answer for each.
fn stream_ring(mode: Mode, wait: Wait, core: usize, count: usize) -> f64 {
    let mut link = Link::new(mode, wait, core);
    let start = Instant::now();
    for at in 0..count + WINDOW {
        if at >= WINDOW {
            link.receive();
        }
        if at < count {
            link.post(true);
        }
    }
    let micros = start.elapsed().as_nanos() as f64 / 1e3;
    link.end();
    micros / count as f64
}

fn post(van: &mut Uring, peer: PeerId) {
    let frame = van.about().memory.allocate(FRAME_PREFIX + SMALL).unwrap();
    van.post_send(peer, frame.into()).unwrap();
}

fn compare(core: usize, send: usize, count: usize) {
    pin(0);
    let means = means();
    let mut medians = vec![Vec::new(); means.len()];
    let mut calls = vec![0.0; means.len()];
    for _ in 0..ROUNDS {
        for (index, means) in means.iter().enumerate() {
            let median = match *means {
                Means::BlockingSockets => sockets(false, core, send, count),
                Means::YieldingSockets => sockets(true, core, send, count),
                Means::Ring(mode, wait) => {
                    let (median, enters) = ring(mode, wait, core, send, count);
                    calls[index] = enters;
                    median
                }
            };
            medians[index].push(median);
        }
    }
    for medians in &mut medians {
        medians.sort_by(f64::total_cmp);
    }
    let yielding = medians[1][ROUNDS / 2];
    for ((means, medians), calls) in means.iter().zip(&medians).zip(&calls) {
        let median = medians[ROUNDS / 2];
        let (least, ratio) = (medians[0], median / yielding);
        println!(
            "{send:>8} B, cores 0 and {core}  median {median:8.2} us  least {least:8.2} us  ratio {ratio:5.2}  {calls:5.2} calls  {means:?}"
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn small_on_one_core() {
    compare(0, SMALL, 4_000);
}

#[test]
#[ignore = "a measurement"]
fn small_on_two_cores() {
    compare(1, SMALL, 4_000);
}

#[test]
#[ignore = "a measurement"]
fn large_on_one_core() {
    compare(0, LARGE, 300);
}

#[test]
#[ignore = "a measurement"]
fn large_on_two_cores() {
    compare(1, LARGE, 300);
}

#[test]
#[ignore = "a measurement"]
fn streams() {
    pin(0);
    for (core, wait) in [(0, Wait::Yield), (0, Wait::Block), (1, Wait::Yield), (1, Wait::Block)] {
        let modes = [Mode::Deferred, Mode::Cooperative];
        let mut ratios = vec![Vec::new(); modes.len()];
        for _ in 0..ROUNDS {
            for (mode, ratios) in modes.iter().zip(&mut ratios) {
                let floor = stream_sockets(wait == Wait::Yield, core, 300);
                ratios.push(floor / stream_ring(*mode, wait, core, 300));
            }
        }
        for (mode, mut ratios) in modes.iter().zip(ratios) {
            ratios.sort_by(f64::total_cmp);
            let median = ratios[ROUNDS / 2];
            println!(
                "cores 0 and {core}, {wait:?}, {mode:?}: {median:.2} of the bandwidth of sockets"
            );
        }
    }
}
