//! Which sockets the system watches: those of a thread that sleeps, and none that is busy. Alone in
//! its process, whose watched sockets it counts.
#![cfg(target_os = "linux")]

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

/// Repeats `turn` until the system watches `count` sockets: on a busy host that takes a while.
fn until_watched(count: usize, mut turn: impl FnMut()) {
    let began = Instant::now();
    while watched() != count {
        assert!(began.elapsed() < Duration::from_secs(20), "{} watched, not {count}", watched());
        turn();
    }
}

/// Exchanges frames without sleeping, until only the listeners are watched.
fn stay_busy(net: &mut Net<Tcp>, there: PeerId, back: PeerId) {
    let mut events = Vec::new();
    until_watched(2, || {
        for _ in 0..1000 {
            for (node, peer) in [(0, there), (1, back)] {
                let frame = net.framed(node, 7, 8);
                net.van(node).post_send(peer, frame.into()).unwrap();
                net.van(node).poll(&mut events).unwrap();
            }
            events.clear();
        }
    });
}

/// Sleeps, until a socket of each node is watched as well.
fn sleep(net: &mut Net<Tcp>) {
    until_watched(4, || {
        for node in [0, 1] {
            net.van(node).wait(Duration::from_millis(2)).unwrap();
            net.van(node).poll(&mut Vec::new()).unwrap();
        }
    });
}

#[test]
fn only_those_who_sleep_have_their_sockets_watched() {
    let mut net = Net::new(&|config: VanConfig| Tcp::new(&config).unwrap(), 2);
    let (there, back) = net.connect(0, 1);
    stay_busy(&mut net, there, back);
    sleep(&mut net);
    stay_busy(&mut net, there, back);
}
