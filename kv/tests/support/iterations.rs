//! Workers that iterate, so that a checkpoint of an iteration has sums of which it is known.

use std::collections::VecDeque;
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::{TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use caravan_van::sim::Network;

use super::simulated::Draws;

pub(crate) const KEYS: u64 = 200;
pub(crate) const WORKERS: u64 = 3;
pub(crate) const LAST: u64 = 12;

/// Sums, one for each key.
pub(crate) fn spec(model: Model) -> TableSpec {
    let spec = TableSpec::new(1, "sums", ValueType::I64, 1).keys(KeyRange::new(0, KEYS).unwrap());
    spec.consistency(model, WORKERS as u32)
}

/// Takes part in a table: pushes 1 to all keys in each iteration. The first worker pulls nothing,
/// and may be ahead.
pub(crate) fn iterate(
    network: &Network,
    worker: &mut Worker,
    spec: &TableSpec,
    rank: u64,
    draws: &mut Draws,
) {
    let table = worker.admin().create_table(spec).unwrap();
    worker.clocks(table).join().unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut pushes = VecDeque::new();
    for _ in 1..=LAST {
        if rank > 0 {
            let pulled = worker.pull(table, &keys).unwrap();
            worker.wait(pulled).unwrap();
        }
        let push = worker.push(table, &keys, &[1i64; KEYS as usize]).unwrap();
        let end = worker.clocks(table).advance().unwrap();
        worker.wait(end).unwrap();
        pushes.push_back(push);
        while pushes.len() > usize::from(rank == 0) {
            pushes.pop_front().into_iter().for_each(|it| drop(worker.wait(it).unwrap()));
        }
        network.sleep(Duration::from_micros(draws.below(300)));
    }
    let left = worker.clocks(table).leave().unwrap();
    worker.wait(left).unwrap();
    pushes.into_iter().for_each(|it| drop(worker.wait(it).unwrap()));
}

/// Checks the rows of a checkpoint of an iteration; returns whether nobody had left before it.
pub(crate) fn check(of: u64, model: Model, rows: &[(u64, String)]) -> bool {
    let sums: Vec<u64> = rows.iter().map(|(_, sum)| sum.parse().unwrap()).collect();
    let (before, all) = (WORKERS * (of - 1), WORKERS * LAST);
    let has_left = |sum: &u64| *sum == all; // and nobody takes part any more
    match model {
        Model::Bsp => {
            assert!(sums.iter().all(|sum| *sum == before || has_left(sum)), "{of}: {sums:?}");
            assert!(sums.len() as u64 == KEYS || before == 0, "{of}: {sums:?}");
        }
        _ => assert!(sums.iter().all(|sum| *sum >= before), "{of}: {sums:?}"),
    }
    sums.iter().all(|sum| !has_left(sum))
}
