//! Encoding and decoding take their memory from pools, none from the heap.

use caravan_van::wire::Kind;
use caravan_van::{Coding, Draft, FRAME_PREFIX, Message, Pool, Values, encode};

fn round_trip(coding: &mut Coding, pool: &Pool, keys: &[u64], values: &[u8]) {
    let draft = Draft { keys, values: Values::Copied(values), ..Draft::new(Kind::Request) };
    let mut outgoing = encode(draft, coding, pool).unwrap();
    let message = Message::decode(outgoing.head.split_off(FRAME_PREFIX), pool).unwrap();
    assert_eq!((message.keys().len(), message.values().len()), (keys.len(), values.len()));
}

#[test]
fn a_message_costs_no_heap_allocation() {
    let pool = Pool::new(64 << 20);
    let (keys, values): (Vec<u64>, Vec<u8>) = ((0..5000).collect(), vec![7; 20_000]);
    for mut coding in [Coding::plain(), Coding::compact()] {
        round_trip(&mut coding, &pool, &keys, &values); // slots and tables are made once
        let heap = allocation_counter::measure(|| {
            for _ in 0..10 {
                round_trip(&mut coding, &pool, &keys, &values);
            }
        });
        assert_eq!((heap.count_total, heap.bytes_total), (0, 0));
    }
}
