//! Shards move while workers are cut off from servers, and no push is missing or counted twice:
//! neither one that was acknowledged, nor one whose answer was lost.

use std::time::Duration;

use caravan_kv::server::MoveCounters;
use caravan_van::sim::for_each_seed;

use crate::sim::faults::stalling;
use crate::sim::workload::bits::{
    Counting, FATES, KEYS, Notes, Pairs, STEPS, WORKERS, cut, tables,
};
use crate::sim::workload::moves::shift_on;
use crate::sim::{Setup, Sim, has_all_seeds};

fn run(seed: u64) -> (Pairs, MoveCounters) {
    let (workers, look) = (WORKERS as u64, Duration::from_micros(20));
    let setup = Setup { workers, look, piece_bytes: 300, network: stalling(), ..Setup::default() };
    let sim = Sim::start(seed, setup);
    let notes = Notes::default();
    let of = notes.clone();
    let nodes = sim.workers(move |hand| Counting::new(hand, &of).work());
    let mover = sim.spawn("mover", 60, |hand| {
        let tables = tables().map(|spec| hand.create(&spec));
        shift_on(hand, &tables, 3, 3);
    });
    let oracle = sim.oracle.clone();
    let cutter = sim.network.spawn("cutter", move |network| cut(network, &oracle, &notes, seed));
    let joined = sim.join_all(nodes);
    sim.join_all(vec![mover, cutter]);
    let mut pairs = Pairs::new();
    let mut pushed = Vec::new();
    for (known, of_worker) in joined {
        pushed.push(known);
        of_worker.into_iter().for_each(|(pair, count)| *pairs.entry(pair).or_default() += count);
    }
    let reader = sim.spawn("reader", 61, |hand| {
        tables().map(|spec| {
            let table = hand.create(&spec);
            hand.pull::<i64>(table, KEYS)
        })
    });
    for (at, rows) in sim.join(reader).into_iter().enumerate() {
        for (key, row) in rows.chunks(WORKERS).enumerate() {
            let expected: Vec<i64> = pushed.iter().map(|known| known[at][key]).collect();
            assert_eq!(row, expected, "seed {seed}, key {key} of table {at}");
        }
    }
    (pairs, sim.stop().1)
}

/// All pairs of a step and a fate must occur.
#[test]
fn pushes_count_once_while_shards_move_and_lanes_break() {
    let mut pairs = Pairs::new();
    let mut moves = MoveCounters::default();
    for_each_seed(30, |seed| {
        let (of_seed, moved) = run(seed);
        moves += moved;
        of_seed.into_iter().for_each(|(pair, count)| *pairs.entry(pair).or_default() += count);
    });
    println!("{moves:?}");
    for step in STEPS {
        let name = step.map_or("Gone".to_owned(), |step| format!("{step:?}"));
        let counts = FATES.map(|fate| {
            format!("{fate:?} {}", pairs.get(&(step, fate)).copied().unwrap_or_default())
        });
        println!("{name}: {}", counts.join(", "));
    }
    assert_eq!(moves.left, moves.arrived);
    let has_met = pairs.len() == STEPS.len() * FATES.len();
    assert!(has_met || !has_all_seeds(), "every step meets every fate");
}
