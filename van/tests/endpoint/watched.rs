//! Goal: who watches a transport sees every message once, at both ends alike, however it travels.
//! Method: requests and answers that share a frame, that are long, whose values lie apart, and that
//! are placed, between two watched ends.

use std::cell::RefCell;
use std::rc::Rc;

use caravan_van::watched::{Passing, Watched};

use super::*;

type Seen = Rc<RefCell<Vec<Passing>>>;

fn watched(network: &Network, config: &VanConfig) -> (Side, Seen) {
    let seen = Seen::default();
    let saw = seen.clone();
    let watcher = move |passing: &Passing| saw.borrow_mut().push(*passing);
    let transport = Watched::new(Box::new(network.transport(config)), || Duration::ZERO, watcher);
    (Side::over(Box::new(transport), config), seen)
}

#[test]
fn every_message_is_seen_at_both_ends() {
    let network = Network::new(3, Faults::jittery());
    let config = VanConfig { node: 7, ..config(2048, 16, 64 * MIB) };
    let ((mut a, at_a), (mut b, at_b)) = (watched(&network, &config), watched(&network, &config));
    let address = b.endpoint.lanes.address().to_owned();
    a.peer = a.endpoint.connect(&address).unwrap();
    while a.endpoint.lanes.credits(a.peer) == 0 {
        settle(&mut a, &mut b);
    }
    // Three in one frame, a long one, one whose values lie apart, and one with a place.
    for timestamp in 1..=3 {
        a.post(Kind::Request, timestamp, Values::Copied(&[7; 16])).unwrap();
    }
    a.post(Kind::Request, 4, Values::Copied(&vec![7; 100_000])).unwrap();
    let shared = filled(&a, 200_000, 1);
    a.post(Kind::Request, 5, Values::Apart(shared)).unwrap();
    let offer = a.ask(6, 3000, Values::Copied(&[]));
    settle(&mut a, &mut b);
    assert_eq!(b.came.len(), 6);
    for timestamp in 1..=4 {
        b.post(Kind::Reply, timestamp, Values::Copied(&[1; 8])).unwrap();
    }
    b.post(Kind::Failure, 5, Values::Copied(b"why")).unwrap();
    let values = filled(&b, 3000, 2);
    b.endpoint.lanes.place(b.peer, values, offer).unwrap();
    settle(&mut a, &mut b);

    // Notices between endpoints are theirs alone.
    let told = |seen: &Seen, is_sent: bool| {
        let seen = seen.borrow();
        let messages = seen.iter().filter(|it| it.is_sent == is_sent);
        let messages = messages.filter(|it| !matches!(it.kind, Kind::Want | Kind::Grant));
        let mut told: Vec<_> =
            messages.map(|it| (it.timestamp, it.kind as u8, it.bytes, it.node)).collect();
        told.sort_unstable();
        told
    };
    let (request, reply, failure) = (Kind::Request as u8, Kind::Reply as u8, Kind::Failure as u8);
    let asked = [
        (1, request, 16, 7),
        (2, request, 16, 7),
        (3, request, 16, 7),
        (4, request, 100_000, 7),
        (5, request, 200_000, 7),
        (6, request, 0, 7),
    ];
    assert_eq!(told(&at_a, true), asked);
    assert_eq!(told(&at_b, false), asked);
    let answered = [
        (1, reply, 8, 7),
        (2, reply, 8, 7),
        (3, reply, 8, 7),
        (4, reply, 8, 7),
        (5, failure, 3, 7),
        (6, reply, 3000, 7),
    ];
    assert_eq!(told(&at_b, true), answered);
    assert_eq!(told(&at_a, false), answered);
}
