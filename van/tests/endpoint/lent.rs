//! Values that are lent, through memory that both sides see.

use caravan_van::shm::Shm;

use super::*;

/// Messages that are posted before either side polls.
const ROUND: u64 = 8;

/// A peer that keeps all it borrows gets copies once it has its share, in order and of any length;
/// what fits into no frame goes by rendezvous. It is lent values again when it has returned some.
#[test]
fn a_peer_that_keeps_what_it_borrows_gets_the_rest_as_copies() {
    let config = config(16 << 10, 64, 256 * MIB);
    let node = || Side::over(Box::new(Shm::new(&config).unwrap()), &config);
    let (mut a, mut b) = (node(), node());
    let address = b.endpoint.lanes.address().to_owned();
    a.peer = a.endpoint.connect(&address).unwrap();
    while a.endpoint.lanes.credits(a.peer) == 0 {
        turn(&mut a, &mut b);
    }
    let values = filled(&a, 100_000, 1);
    let (mut kept, mut number) = (Vec::new(), 0);
    // How many of those that are kept are lent, and how many are not.
    let mut exchange = |a: &mut Side, b: &mut Side, kept: &mut Vec<Message>| {
        let numbers = number..number + ROUND;
        number += ROUND;
        for number in numbers.clone() {
            let values = Values::Apart(values.slice(..length(number)));
            a.post(Kind::Request, number, values).unwrap();
        }
        for number in numbers {
            while b.came.is_empty() {
                turn(a, b);
            }
            let message = b.came.pop_front().unwrap();
            assert_eq!(message.timestamp(), number);
            assert!(is_filled(message.values(), length(number), 1), "{number}");
            b.endpoint.lanes.answer(b.peer, number).unwrap();
            kept.push(message);
        }
        while a.endpoint.lanes.credits(a.peer) < 64 {
            turn(a, b);
        }
        let lent = kept.iter().filter(|message| message.lent().is_some()).count();
        (lent, kept.len() - lent)
    };
    let (share, _) = loop {
        let (lent, copied) = exchange(&mut a, &mut b, &mut kept);
        if copied > 0 {
            break (lent, copied);
        }
    };
    let before = kept.len();
    for round in 1..20 {
        let copied = before - share + round * ROUND as usize;
        assert_eq!(exchange(&mut a, &mut b, &mut kept), (share, copied), "no more is lent");
    }
    kept.clear();
    (0..10).for_each(|_| turn(&mut a, &mut b));
    assert_eq!(exchange(&mut a, &mut b, &mut kept), (ROUND as usize, 0));
    assert!(a.lost.is_none() && b.lost.is_none());
}

/// Some fit into a frame, and some do not.
fn length(number: u64) -> usize {
    [4096, 100_000, 3000, 20_000, 4096][number as usize % 5]
}

fn turn(a: &mut Side, b: &mut Side) {
    a.poll();
    b.poll();
}
