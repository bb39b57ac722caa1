//! A request that is posted before the peer has said hello.

use super::*;

/// Posts a request on a lane that is not up, and one more when it is.
fn post_early(early: impl Fn(&Side) -> Values<'static>, credits: [u16; 2]) -> (Side, Side) {
    let network = Network::new(1, Faults::none());
    let [ours, theirs] = credits.map(|credits| config(2048, credits, 64 * MIB));
    let (mut a, mut b) = (Side::new(&network, &ours), Side::new(&network, &theirs));
    let address = b.endpoint.lanes.address().to_owned();
    a.peer = a.endpoint.open(&address).unwrap();
    assert_eq!(a.endpoint.lanes.credits(a.peer), 1);
    let values = early(&a);
    a.post(Kind::Request, 1, values).unwrap();
    assert_eq!(a.endpoint.lanes.credits(a.peer), 0);
    let full = a.post(Kind::Request, 2, Values::None);
    assert!(matches!(full, Err(Error::QueueFull { .. })), "{full:?}");
    settle(&mut a, &mut b);
    assert_eq!(a.endpoint.lanes.credits(a.peer), usize::from(credits[1] - 1));
    for timestamp in 2..=u64::from(credits[1]) {
        a.post(Kind::Request, timestamp, Values::Copied(b"behind it")).unwrap();
    }
    settle(&mut a, &mut b);
    assert!(a.lost.is_none() && b.lost.is_none(), "{:?} {:?}", a.lost, b.lost);
    let came: Vec<u64> = b.came.iter().map(Message::timestamp).collect();
    assert_eq!(came, (1..=u64::from(credits[1])).collect::<Vec<_>>());
    for timestamp in came {
        b.endpoint.lanes.answer(b.peer, timestamp).unwrap();
    }
    settle(&mut a, &mut b);
    assert_eq!(a.endpoint.lanes.credits(a.peer), usize::from(credits[1]));
    (a, b)
}

#[test]
fn it_leaves_first_when_the_lane_is_up() {
    for credits in [[4, 4], [1, 4], [4, 1]] {
        let (_, b) = post_early(|_| Values::Copied(b"early"), credits);
        assert_eq!(b.came[0].values(), b"early");
        for bytes in [8, 1900, 5000, 3 * MIB] {
            let (_, b) = post_early(|a| Values::Apart(filled(a, bytes, 9)), credits);
            assert!(is_filled(b.came[0].values(), bytes, 9), "{bytes} bytes");
        }
    }
}

#[test]
fn it_goes_with_a_lane_that_cannot_be_made() {
    let network = Network::new(1, Faults::none());
    let config = config(2048, 4, 64 * MIB);
    let (mut a, mut b) = (Side::new(&network, &config), Side::new(&network, &config));
    let left = |side: &Side| side.endpoint.lanes.memory().bytes_left();
    let mut after = Vec::new();
    for _ in 0..3 {
        a.peer = a.endpoint.open("sim:77").unwrap();
        let values = Values::Apart(filled(&a, 3 * MIB, 9));
        a.post(Kind::Request, 1, values).unwrap();
        settle(&mut a, &mut b);
        assert!(matches!(a.lost.take(), Some(Error::Connect { .. })));
        after.push(left(&a));
    }
    assert!(after.iter().all(|left| *left == after[0]), "its memory comes back: {after:?}");
    assert!(matches!(a.post(Kind::Request, 2, Values::None), Err(Error::NotConnected { .. })));
}
