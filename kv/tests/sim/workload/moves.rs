//! Shards that move while others work.

use std::collections::VecDeque;
use std::time::Duration;

use caravan_kv::{Placed, Table, Timestamp};

use crate::sim::Hand;

/// A random shard of one of these tables.
pub(crate) fn draw(hand: &mut Hand<'_>, tables: &[Table]) -> (Table, Placed) {
    let table = tables[hand.draws.below(tables.len() as u64) as usize];
    let shards = hand.worker.info().shards(table).unwrap();
    (table, shards[hand.draws.below(shards.len() as u64) as usize])
}

/// Moves random shards, one after the other, and then calms the workers down. Each goes where it is
/// told, under the next epoch.
pub(crate) fn shift(hand: &mut Hand<'_>, tables: &[Table], servers: u64, times: u64) {
    for _ in 0..times {
        hand.pause(300);
        let (table, shard) = draw(hand, tables);
        let server = hand.draws.below(servers) as usize;
        let moved = hand.worker.admin().move_shard(table, shard.range.begin(), server).unwrap();
        hand.wait(moved);
        let shards = hand.worker.info().shards(table).unwrap();
        let now = *shards.iter().find(|it| it.range == shard.range).unwrap();
        let moves = u64::from(server != shard.server);
        assert_eq!((now.server, now.epoch), (server, shard.epoch + moves));
    }
    hand.oracle.calm_down();
}

/// Moves random shards about until all workers are done, so many at a time. Where lanes between
/// servers break, a move may fail.
pub(crate) fn shift_on(hand: &mut Hand<'_>, tables: &[Table], servers: u64, ahead: usize) {
    let wait = |hand: &mut Hand<'_>, moved: Timestamp| match hand.worker.wait(moved) {
        Ok(_) => {}
        Err(error) => assert!(error.to_string().contains("stay here"), "{error}"),
    };
    let mut waiting = VecDeque::new();
    while !hand.oracle.is_over(hand.workers) {
        hand.network.sleep(Duration::from_micros(hand.draws.below(500)));
        let (table, shard) = draw(hand, tables);
        let server = hand.draws.below(servers) as usize;
        waiting
            .push_back(hand.worker.admin().move_shard(table, shard.range.begin(), server).unwrap());
        while waiting.len() > ahead {
            let moved = waiting.pop_front().unwrap();
            wait(hand, moved);
        }
    }
    waiting.into_iter().for_each(|moved| wait(hand, moved));
}
