//! Which sockets the system watches: those of a thread that sleeps, and none that is busy. Alone in
//! its process, whose watched sockets it counts.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use caravan_fallback_tcp::Tcp;
use caravan_van::conformance::Net;
use caravan_van::{PeerId, Transport, VanConfig};

/// Sockets of this process that the system watches.
fn watched() -> usize {
    let folders = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    // The descriptor that reads the folder is gone by now.
    let texts = folders.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
    texts.map(|text| text.lines().filter(|line| line.starts_with("tfd:")).count()).sum()
}

/// Exchanges frames without sleeping for long enough that the sockets are taken out.
fn stay_busy(net: &mut Net<Tcp>, there: PeerId, back: PeerId) {
    let mut events = Vec::new();
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < Duration::from_millis(20) || rounds < 1000 {
        rounds += 1;
        for (node, peer) in [(0, there), (1, back)] {
            let frame = net.framed(node, 7, 8);
            net.van(node).post_send(peer, frame.into()).unwrap();
            net.van(node).poll(&mut events).unwrap();
        }
        events.clear();
    }
}

#[test]
fn only_those_who_sleep_have_their_sockets_watched() {
    let mut net = Net::new(&|config: VanConfig| Tcp::new(&config).unwrap(), 2);
    let (there, back) = net.connect(0, 1);
    stay_busy(&mut net, there, back);
    assert_eq!(watched(), 2, "the listeners");
    for node in [0, 1] {
        // What is on its way first, then a sleep.
        for _ in 0..3 {
            net.van(node).wait(Duration::from_millis(2)).unwrap();
            net.van(node).poll(&mut Vec::new()).unwrap();
        }
    }
    assert_eq!(watched(), 4, "and one socket each");
    stay_busy(&mut net, there, back);
    assert_eq!(watched(), 2, "busy again");
}
