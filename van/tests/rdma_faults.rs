//! The RDMA van in trouble: packets lost and late, a link that goes down, a peer that is killed.
//! Whatever happens, every frame arrives once and in order or its peer is reported lost, nothing
//! hangs, and the device gets all of its resources back.
//!
//! `CARAVAN_TEST_ADDRESS` and `CARAVAN_TEST_ADDRESS2` are addresses of two devices joined by a
//! link, and `CARAVAN_TEST_FAULTS` says that the commands `link up|down` and `netem
//! SPEC|blackhole|off` may be used on it. Without them the tests are skipped.
#![cfg(all(target_os = "linux", feature = "rdma"))]

use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use caravan_van::rdma::Rdma;
use caravan_van::wire::Offer;
use caravan_van::{Event, FRAME_PREFIX, PeerId, Transport, VanConfig};
use zerocopy::{FromBytes, IntoBytes};

/// There is one link, and tests look at all of a device's resources.
static LINK: Mutex<()> = Mutex::new(());

/// How long anything may take. A test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of an offer that is written.
const OFFERED: usize = 40 << 10;

/// Says which test this process was started for.
const CHILD: &str = "CARAVAN_TEST_CHILD";

/// Lets `scenario` run between the two addresses of a link that is well, in a process of its own: a
/// device that a process holds cannot be made anew, which Soft-RoCE needs after a link was down.
fn alone(test: &str, scenario: impl FnOnce(&[String; 2])) {
    let names = ["CARAVAN_TEST_FAULTS", "CARAVAN_TEST_ADDRESS", "CARAVAN_TEST_ADDRESS2"];
    let [Some(_), Some(one), Some(other)] = names.map(|name| std::env::var(name).ok()) else {
        eprintln!("skipped: {} are not all set (`ci/vm` sets them)", names.join(", "));
        return;
    };
    if std::env::var(CHILD).is_ok() {
        return scenario(&[one, other]);
    }
    let _guard = LINK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    mend();
    let before = resources();
    let program = std::env::current_exe().unwrap();
    let status =
        Command::new(program).args(["--exact", test, "--nocapture"]).env(CHILD, test).status();
    mend();
    assert!(status.unwrap().success(), "{test} failed; see above");
    assert_eq!(resources(), before, "all resources are given back");
}

fn mend() {
    run("netem", &["off"]);
    run("link", &["up"]);
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

fn van(ip: &str, node: u32) -> Rdma {
    let listen = format!("{ip}:0");
    Rdma::new(&VanConfig { listen, node, memory_bytes: 512 << 20, ..VanConfig::default() }).unwrap()
}

/// Two ends of the link, connected or in the making.
struct Ends {
    vans: [Rdma; 2],
    peers: [Option<PeerId>; 2],
    events: [Vec<Event>; 2],
    /// Writes that each has made, modulo 256.
    filled: [u8; 2],
    began: Instant,
}

impl Ends {
    fn new(addresses: &[String; 2]) -> Ends {
        let vans = [van(&addresses[0], 1), van(&addresses[1], 2)];
        let events = [Vec::new(), Vec::new()];
        let mut ends =
            Ends { vans, peers: [None; 2], events, filled: [0; 2], began: Instant::now() };
        let address = ends.vans[1].about().address.clone();
        ends.vans[0].connect(&address).unwrap();
        while ends.peers.iter().any(Option::is_none) {
            ends.turn();
            for (events, peer) in ends.events.iter_mut().zip(&mut ends.peers) {
                for event in events.drain(..) {
                    let Event::Connected { peer: up, .. } = event else { panic!("{event:?}") };
                    *peer = Some(up);
                }
            }
        }
        ends
    }

    fn turn(&mut self) {
        for (van, events) in self.vans.iter_mut().zip(&mut self.events) {
            van.wait(Duration::from_millis(1)).unwrap();
            van.poll(events).unwrap();
        }
        assert!(self.began.elapsed() < PATIENCE, "nothing came: {:?}", self.events);
    }

    fn post(&mut self, from: usize, number: u64) {
        let mut frame = self.vans[from].about().memory.allocate(FRAME_PREFIX + 2000).unwrap();
        frame[FRAME_PREFIX..][..8].copy_from_slice(&number.to_le_bytes());
        self.vans[from].post_send(self.peers[from].unwrap(), frame.into()).unwrap();
    }

    /// Numbers sent from each side to the other until `count` have come both ways, or one is lost:
    /// then `None`.
    fn exchange(&mut self, count: u64) -> Option<()> {
        self.began = Instant::now();
        for number in 0..count {
            (0..2).for_each(|from| self.post(from, number));
        }
        let mut received = [0; 2];
        while received != [count; 2] {
            self.turn();
            for (events, received) in self.events.iter_mut().zip(&mut received) {
                for event in events.drain(..) {
                    match event {
                        Event::Received { frame, .. } => {
                            assert_eq!(frame[..8], u64::to_le_bytes(*received), "once, in order");
                            *received += 1;
                        }
                        Event::Lost { .. } => return None,
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        Some(())
    }

    /// Memory offered by each side to the other, and written by it, until `count` writes have come
    /// both ways, or one side is lost: then why. Frames that go beside keep the queues busy.
    fn place(&mut self, count: u64) -> Result<(), String> {
        self.began = Instant::now();
        self.filled = [0; 2];
        let (mut offered, mut written) = ([0; 2], [0; 2]);
        while written != [count; 2] {
            for (from, (offered, written)) in offered.iter_mut().zip(written).enumerate() {
                while *offered < count && *offered < written + 4 {
                    *offered += 1;
                    self.offer(from);
                    self.post(from, u64::MAX);
                }
            }
            self.turn();
            for (to, written) in written.iter_mut().enumerate() {
                for event in std::mem::take(&mut self.events[to]) {
                    match event {
                        Event::Received { frame, .. } => self.fill(to, &frame),
                        Event::Written { memory, at: 0, len: OFFERED, .. } => {
                            assert!(memory.iter().all(|byte| *byte == *written as u8), "whole");
                            *written += 1;
                        }
                        Event::Lost { error, .. } => return Err(error.to_string()),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        Ok(())
    }

    /// Offers memory, and says so in a frame.
    fn offer(&mut self, from: usize) {
        let (van, peer) = (&mut self.vans[from], self.peers[from].unwrap());
        let memory = van.about().memory.allocate(OFFERED).unwrap();
        let offer = van.offer(peer, memory).unwrap();
        let mut frame = van.about().memory.allocate(FRAME_PREFIX + size_of::<Offer>()).unwrap();
        frame[FRAME_PREFIX..].copy_from_slice(offer.as_bytes());
        van.post_send(peer, frame.into()).unwrap();
    }

    /// Writes where `frame` says, if it is an offer: the number of the write, all over.
    fn fill(&mut self, to: usize, frame: &[u8]) {
        let Ok(offer) = Offer::read_from_bytes(frame) else { return };
        let (van, peer) = (&mut self.vans[to], self.peers[to].unwrap());
        let mut values = van.about().memory.allocate(offer.len.get() as usize).unwrap();
        values.fill(self.filled[to]);
        self.filled[to] = self.filled[to].wrapping_add(1);
        van.post_write(peer, values.share().into(), &offer, 0).unwrap();
    }

    /// Why each side has lost the other.
    fn losses(mut self) -> [String; 2] {
        self.began = Instant::now();
        let mut losses = [None, None];
        while losses.iter().any(Option::is_none) {
            self.turn();
            for (events, loss) in self.events.iter_mut().zip(&mut losses) {
                for event in events.drain(..) {
                    if let Event::Lost { error, .. } = event {
                        assert!(loss.replace(error.to_string()).is_none(), "it is reported once");
                    }
                }
            }
        }
        losses.map(Option::unwrap)
    }
}

/// Queue pairs and memory regions of all devices, as the kernel counts them.
fn resources() -> Vec<String> {
    let shown = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let of = |name: &str| {
            let at = words.iter().position(|word| *word == name);
            at.map_or("?", |at| words[at + 1]).to_owned()
        };
        format!("{}: qp {} mr {} cq {} pd {}", words[1], of("qp"), of("mr"), of("cq"), of("pd"))
    };
    text.lines().filter(|text| text.contains("qp")).map(line).collect()
}

/// What the device holds once the connection manager has made what it keeps.
fn warmed_up(addresses: &[String; 2]) -> Vec<String> {
    Ends::new(addresses).exchange(1).unwrap();
    resources()
}

#[test]
fn lost_and_late_packets_are_sent_again() {
    alone("lost_and_late_packets_are_sent_again", |addresses| {
        let before = warmed_up(addresses);
        let mut ends = Ends::new(addresses);
        for weather in ["loss 1%", "delay 1ms"] {
            run("netem", &[weather]);
            ends.exchange(500).unwrap_or_else(|| panic!("a peer was lost under {weather}"));
        }
        run("netem", &["off"]);
        ends.exchange(100).expect("all is well again");
        drop(ends);
        assert_eq!(resources(), before, "all resources are given back");
    });
}

/// Soft-RoCE does the work that opens windows again together with what it sends again, which its
/// own windows do not bear. It sends again after 67 ms, so it sends everything twice while a round
/// trip takes 100.
#[test]
fn windows_stay_open_when_packets_are_sent_again() {
    alone("windows_stay_open_when_packets_are_sent_again", |addresses| {
        let mut ends = Ends::new(addresses);
        for weather in ["loss 1%", "delay 1ms", "delay 50ms"] {
            run("netem", &[weather]);
            let count = if weather == "loss 1%" { 300 } else { 20 };
            ends.place(count).unwrap_or_else(|lost| panic!("{weather}: {lost}"));
        }
    });
}

/// A link that is down for two seconds: what is under way ends with an error that names the peer,
/// or survives; nothing hangs, and new connections work.
#[test]
fn a_link_that_goes_down_is_survived_or_reported() {
    alone("a_link_that_goes_down_is_survived_or_reported", |addresses| {
        let before = warmed_up(addresses);
        let mut ends = Ends::new(addresses);
        ends.exchange(10).unwrap();
        (0..2).for_each(|from| ends.post(from, 0));
        run("link", &["down"]);
        let until = Instant::now() + Duration::from_secs(2);
        let mut losses = Vec::new();
        ends.began = Instant::now();
        while Instant::now() < until {
            ends.turn();
            for event in ends.events.iter_mut().flat_map(|events| events.drain(..)) {
                if let Event::Lost { error, .. } = event {
                    losses.push(error.to_string());
                }
            }
        }
        for loss in &losses {
            assert!(addresses.iter().any(|address| loss.contains(address.as_str())), "{loss}");
        }
        if losses.is_empty() {
            run("link", &["up"]);
            ends.exchange(10); // it may still be lost, but must not hang
        }
        drop(ends);
        assert_eq!(resources(), before, "all resources are given back");
    });
    if std::env::var(CHILD).is_err() {
        resources_are_few_and_given_back();
    }
}

/// A network that swallows everything, in silence: both sides find out, also the one that sends
/// nothing.
#[test]
fn a_silent_network_is_noticed_by_both_sides() {
    alone("a_silent_network_is_noticed_by_both_sides", |addresses| {
        let before = warmed_up(addresses);
        let mut ends = Ends::new(addresses);
        ends.exchange(10).unwrap();
        run("netem", &["blackhole"]);
        let losses = ends.losses();
        for (loss, address) in losses.iter().zip([&addresses[1], &addresses[0]]) {
            assert!(loss.contains(address.as_str()), "{loss} names {address}");
        }
        assert_eq!(resources(), before, "all resources are given back");
    });
}

/// A few regions and one queue pair a peer, however much is sent; and all of them go.
#[test]
fn resources_are_few_and_given_back() {
    alone("resources_are_few_and_given_back", |addresses| {
        let before = warmed_up(addresses);
        for _ in 0..5 {
            Ends::new(addresses).exchange(50).unwrap();
            assert_eq!(resources(), before);
        }
        let (regions, pairs) = (count("mr"), count("qp"));
        let mut ends = Ends::new(addresses);
        for _ in 0..5 {
            let memory = &ends.vans[0].about().memory;
            let held: Vec<_> =
                (0..200).map(|size| memory.allocate(100 << (size % 16)).unwrap()).collect();
            drop(held);
            ends.exchange(100).unwrap();
        }
        assert_eq!(count("qp") - pairs, 2);
        let regions = count("mr") - regions;
        assert!(regions <= 20, "{regions} regions for two transports");
    });
}

/// How many of a kind all devices have.
fn count(kind: &str) -> usize {
    let of_device = |line: &String| {
        let mut words = line.split_whitespace().skip_while(|word| *word != kind);
        words.nth(1).unwrap().parse::<usize>().unwrap()
    };
    resources().iter().map(of_device).sum()
}
