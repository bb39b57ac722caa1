//! Shards with copies move while requests go on and servers die, and nothing is lost, applied twice
//! or out of order.

use std::collections::BTreeMap;

use caravan_kv::server::ChainCounters;
use caravan_kv::{Error, Handles, Table};
use caravan_van::sim::for_each_seed;

use crate::sim::faults::{FAULTS, Fault, quick, stalling};
use crate::sim::workload::adds::{self, Adds};
use crate::sim::{Hand, Setup, Sim, has_all_seeds};
use crate::support::simulated::Draws;
use crate::support::ticks::with_ticks;

/// Moves random shards about until all workers are done; returns how many have moved. A thread that
/// is lost meanwhile gets none.
fn shift(hand: &mut Hand<'_>, tables: &[Table], servers: u64) -> u64 {
    let mut moved = 0;
    while !hand.oracle.is_over(hand.workers) {
        hand.pause(2000);
        let table = tables[hand.draws.below(tables.len() as u64) as usize];
        let shards = hand.worker.shards(table).unwrap();
        let shard = shards[hand.draws.below(shards.len() as u64) as usize];
        let server = hand.draws.below(servers) as usize;
        let wish = hand.worker.move_shard(table, shard.range.begin(), server).unwrap();
        match hand.worker.wait(wish) {
            Ok(_) => {
                let is_it = |it: &&caravan_kv::Placed| it.range == shard.range;
                let now = hand.worker.shards(table).unwrap().iter().find(is_it).unwrap().server;
                assert!(now == server || hand.oracle.lost::<Vec<usize>>().contains(&server));
                moved += u64::from(server != shard.server);
            }
            Err(Error::Config(why)) => {
                let is_named =
                    why.contains("another server has to join") || why.contains("is lost");
                assert!(is_named, "{why}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    moved
}

/// Returns the fault, how many shards have moved, and what the servers have counted.
fn run(seed: u64) -> (Fault, u64, ChainCounters) {
    let mut draws = Draws(seed);
    let (servers, workers) = (3 + draws.below(3), 1 + draws.below(3));
    let replicas = 1 + draws.below(2) as u32;
    let handles = with_ticks(Handles::default());
    let network = if draws.below(2) == 0 { quick() } else { stalling() };
    let sim = Sim::start(seed, Setup { servers, workers, handles, network, ..Setup::default() });
    let adds = Adds { replicas, rounds: [30, 1000], pause_us: 700 };
    let nodes = sim.workers(move |hand| adds.work(hand));
    let mover = sim.spawn("mover", 60, move |hand| {
        let tables = adds::tables(replicas).map(|spec| hand.create(&spec));
        shift(hand, &tables, servers)
    });
    let fate = sim.fate(Fault::of(seed), replicas, 12_000);
    sim.join(fate);
    adds::check(&sim, replicas, nodes);
    let moved = sim.join(mover);
    assert!(sim.oracle.looks() > 0, "no log was held against another one");
    (Fault::of(seed), moved, sim.stop().0)
}

#[test]
fn nothing_is_lost_or_doubled_while_shards_with_copies_move() {
    let mut sums: BTreeMap<Fault, (u64, ChainCounters)> = BTreeMap::new();
    for_each_seed(48, |seed| {
        let (fault, moved, counters) = run(seed);
        let sum = sums.entry(fault).or_default();
        sum.0 += moved;
        sum.1 += counters;
    });
    for (fault, sum) in &sums {
        println!("{fault:?}: {sum:?}");
    }
    for fault in FAULTS.into_iter().filter(|_| has_all_seeds()) {
        let (moved, counters) = &sums[&fault];
        assert!(*moved > 0 && counters.left > 0, "{fault:?}: {moved} moved, {counters:?}");
    }
}
