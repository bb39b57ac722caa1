//! Nodes that crash, panic, wait forever or are cut off, and which nodes learn of it.

use super::*;

#[test]
fn a_crashed_node_is_lost_after_the_detection_delay() {
    let network = Network::new(1, Faults::none());
    let mut a = van(&network, 0);
    let node = network.spawn("victim", |network| {
        let mut van = van(network, 1);
        van.connect("sim:0").unwrap();
        loop {
            van.wait(SECOND).unwrap();
            poll(&mut van);
        }
    });
    assert!(matches!(next(&mut a), Event::Connected { .. }));
    network.sleep(SECOND);
    network.crash("victim");
    let crashed_at = network.now();
    assert!(lost(&next(&mut a)).contains("no longer answers"));
    let noticed = network.now() - crashed_at;
    assert_eq!(noticed, Faults::none().detection + MICRO * 10);
    let node: Node<()> = node;
    assert_eq!(node.join(), Err(Stopped::Crashed { node: "victim".to_owned() }));
    let start = network.now();
    a.connect("sim:1").unwrap();
    assert!(lost(&next(&mut a)).contains("nobody"));
    assert!(network.now() - start > Faults::none().detection);
}

/// A thread goes with its node: crashed, cut off and frozen under the node's name.
#[test]
fn threads_of_a_node_share_its_fate() {
    let run = |harm: fn(&Network)| {
        let network = Network::new(1, Faults { detection: SECOND * 10, ..Faults::none() });
        let mut a = van(&network, 0);
        let _node = network.spawn("node", |network| {
            let talks = |network: &Network| {
                let mut van = van(network, 1);
                let peer = van.connect("sim:0").unwrap();
                next(&mut van);
                for i in 0..4 {
                    let extra = frame(&van, &[i]);
                    van.post_send(peer, extra.into()).unwrap();
                    poll(&mut van);
                    network.sleep(SECOND);
                }
            };
            network.try_spawn_thread("its thread", talks).unwrap();
            network.sleep(SECOND * 100);
        });
        assert!(matches!(next(&mut a), Event::Connected { .. }));
        network.sleep(SECOND / 2);
        harm(&network);
        let mut heard = Vec::new();
        loop {
            match next(&mut a) {
                Event::Received { frame, .. } => heard.push((frame[0], network.now().as_millis())),
                Event::Lost { .. } => return heard,
                event => panic!("{event:?}"),
            }
        }
    };
    let (all, frozen) = (run(|_| ()), run(|network| network.freeze("node", SECOND * 5)));
    assert_eq!(all.iter().map(|heard| heard.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(frozen.iter().map(|heard| heard.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(all[1].1 < 2000 && frozen[1].1 > 5000, "{all:?} {frozen:?}");
    assert_eq!(run(|network| network.crash("node")).len(), 1);
    let cut = run(|network| network.cut("main", "node", SECOND * 3 / 2));
    assert!(cut.len() == 4 && cut[1].1 == cut[2].1, "{cut:?}");
}

#[test]
fn a_cut_of_one_way_holds_nothing_back_on_the_other() {
    let heard = |from: &'static str, to: &'static str| {
        let network = Network::new(1, Faults { detection: SECOND * 2, ..Faults::none() });
        let mut a = van(&network, 0);
        let _talker = network.spawn("talker", move |network| {
            let mut van = van(network, 1);
            let peer = van.connect("sim:0").unwrap();
            next(&mut van);
            network.cut_one_way(from, to, SECOND);
            let extra = frame(&van, &[1]);
            van.post_send(peer, extra.into()).unwrap();
            poll(&mut van);
            network.sleep(SECOND * 3);
        });
        assert!(matches!(next(&mut a), Event::Connected { .. }));
        assert!(matches!(next(&mut a), Event::Received { .. }));
        network.now()
    };
    let [held, free] = [heard("talker", "main"), heard("main", "talker")];
    assert!(held >= SECOND && free < SECOND, "{held:?} {free:?}");
}

#[test]
fn a_fast_clock_shows_more_time_and_waits_less() {
    let network = Network::new(1, Faults::none());
    let node = network.spawn("node", |network| {
        let mut van = van(network, 0);
        let clock = van.about().clock.clone();
        network.sleep(SECOND);
        assert_eq!(clock.now(), network.now());
        network.skew("node", 1.05);
        let (began, at) = (clock.now(), network.now());
        assert_eq!(began, at);
        network.sleep(SECOND * 20);
        assert_eq!(clock.now() - began, SECOND * 21);
        let at = network.now();
        van.wait(SECOND * 21).unwrap();
        assert_eq!(network.now() - at, SECOND * 20);
        van.wait(Duration::from_micros(1)).unwrap();
        network.skew("node", 1.0);
        let (shown, at) = (clock.now(), network.now());
        network.sleep(SECOND);
        assert_eq!((clock.now() - shown, network.now() - at), (SECOND, SECOND));
        network.now()
    });
    assert!(node.join().unwrap_or_else(|stopped| panic!("{stopped}")) > SECOND);
}

/// A wire of 1 MB/s carries 10 kB; returns how long after the begin they arrive.
fn arrives_after(slow: impl Fn(&Network)) -> Duration {
    let bytes_per_second = NonZeroU64::new(1_000_000);
    let network = Network::new(1, Faults { bytes_per_second, ..Faults::none() });
    slow(&network);
    let mut a = van(&network, 0);
    let _talker = network.spawn("talker", |network| {
        let mut van = van(network, 1);
        let peer = van.connect("sim:0").unwrap();
        next(&mut van);
        let long = frame(&van, &[7; 10_000]);
        van.post_send(peer, long.into()).unwrap();
        poll(&mut van);
        network.sleep(SECOND);
    });
    assert!(matches!(next(&mut a), Event::Connected { .. }));
    assert!(matches!(next(&mut a), Event::Received { .. }));
    network.now()
}

#[test]
fn a_slow_wire_takes_longer_to_send() {
    let usual = arrives_after(|_| ());
    let slow = arrives_after(|network| network.slow("talker", "main", 1.5));
    assert!(slow > usual * 14 / 10 && slow < usual * 16 / 10, "{usual:?} {slow:?}");
    assert_eq!(arrives_after(|network| network.slow("talker", "other", 1.5)), usual);
}

/// "talker" sends a message every millisecond; returns when each arrived at main, and whether the
/// lane was lost.
fn cut_for(duration: Duration) -> (Vec<Duration>, bool) {
    let network = Network::new(1, Faults::none());
    let mut a = van(&network, 0);
    let _talker = network.spawn("talker", |network| {
        let mut van = van(network, 1);
        let peer = van.connect("sim:0").unwrap();
        next(&mut van);
        for i in 0..20 {
            let extra = frame(&van, &[i]);
            if van.post_send(peer, extra.into()).is_err() {
                return;
            }
            poll(&mut van);
            network.sleep(MICRO * 1000);
        }
        network.sleep(SECOND);
    });
    assert!(matches!(next(&mut a), Event::Connected { .. }));
    network.cut("talker", "main", duration);
    let mut times = Vec::new();
    while times.len() < 20 {
        match next(&mut a) {
            Event::Received { frame, .. } => {
                assert_eq!(usize::from(frame[0]), times.len());
                times.push(network.now());
            }
            event => {
                assert!(lost(&event).contains("nothing came through"));
                return (times, true);
            }
        }
    }
    (times, false)
}

#[test]
fn a_short_cut_delays_and_a_long_one_loses() {
    let (times, was_lost) = cut_for(MICRO * 5000);
    assert!(!was_lost && times[0] >= MICRO * 5000 && times.is_sorted());
    let (times, was_lost) = cut_for(MICRO * 50_000);
    assert!(was_lost && times.is_empty(), "{times:?}");
}

#[test]
fn the_first_panic_stops_everybody_and_join_reports_it() {
    let network = Network::new(1, Faults::none());
    let patient = network.spawn("patient", |network| {
        loop {
            network.sleep(SECOND);
        }
    });
    let hasty = network.spawn("hasty", |network| {
        let _van = van(network, 0);
        network.sleep(MICRO);
        panic!("a test's panic, {}", 42);
    });
    let (patient, hasty): (Node<()>, Node<()>) = (patient, hasty);
    let reason =
        Stopped::Panicked { node: "hasty".to_owned(), message: "a test's panic, 42".to_owned() };
    assert_eq!(patient.join(), Err(reason.clone()));
    assert_eq!(hasty.join(), Err(reason));
    assert_eq!(network.now(), MICRO);
}

#[test]
#[should_panic(
    expected = "main for the end of left, right for a message, left for the end of right"
)]
fn a_stuck_simulation_says_who_waits_for_what() {
    let network = Network::new(1, Faults::none());
    let right = network.spawn("right", |network| {
        van(network, 0).wait(Duration::MAX).unwrap();
    });
    let left = network.spawn("left", |_| right.join());
    let _ = left.join().map_err(|stopped| panic!("{stopped}"));
}

#[test]
#[should_panic(expected = "nothing can happen any more")]
fn a_single_thread_that_waits_for_ever_is_told() {
    let network = Network::new(1, Faults::none());
    let _ = van(&network, 0).wait(Duration::MAX);
}

#[test]
fn a_dropped_network_stops_its_nodes_and_keeps_its_transports() {
    let network = Network::new(1, Faults::none());
    let node: Node<()> = network.spawn("endless", |network| {
        loop {
            network.sleep(SECOND);
        }
    });
    let unborn = network.spawn("unborn", |_| ());
    let (mut a, mut b) = (van(&network, 0), van(&network, 1));
    network.sleep(Duration::ZERO);
    unborn.join().unwrap();
    let unborn = network.spawn("unborn", |_| ());
    drop(network);
    assert_eq!(node.join(), Err(Stopped::Ended { node: "endless".to_owned() }));
    assert_eq!(unborn.join(), Err(Stopped::Ended { node: "unborn".to_owned() }));
    connect(&mut a, &mut b);
}

#[test]
fn a_node_that_unwinds_gets_errors_and_not_the_turn() {
    struct Flusher(SimTransport);
    impl Drop for Flusher {
        fn drop(&mut self) {
            assert!(self.0.wait(SECOND).is_err());
            assert!(self.0.poll(&mut Vec::new()).is_err());
        }
    }
    let network = Network::new(1, Faults::none());
    let node: Node<()> = network.spawn("victim", |network| {
        let mut flusher = Flusher(van(network, 0));
        loop {
            flusher.0.wait(SECOND).unwrap();
        }
    });
    network.sleep(SECOND);
    network.crash("victim");
    assert_eq!(node.join(), Err(Stopped::Crashed { node: "victim".to_owned() }));
}
