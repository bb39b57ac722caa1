//! A table with replicas in which rows come and go has the same rows after the loss of a server as
//! without: no acknowledged push is lost or counts twice, no row comes back that went, and none
//! goes that stays.

use caravan_kv::server::ChainCounters;
use caravan_van::sim::for_each_seed;

use crate::sim::faults::Fault;
use crate::sim::workload::rows;
use crate::sim::{Setup, Sim, has_all_seeds};
use crate::support::simulated::Draws;

/// One run; returns the counters of its servers, how many pushes were refused, and how many rows
/// went.
pub(crate) fn run(seed: u64, fault: Fault) -> (ChainCounters, [usize; 2]) {
    let mut draws = Draws(seed);
    let (servers, replicas) = (3 + draws.below(2), 1 + draws.below(2) as u32);
    let sim = Sim::start(seed, Setup { servers, piece_bytes: 4000, ..Setup::default() });
    let nodes = sim.workers(move |hand| rows::work(hand, replicas));
    let fate = sim.fate(fault, replicas, 9000);
    sim.join(fate);
    let joined = sim.join_all(nodes);
    assert!(joined.iter().all(|(_, rows)| *rows == joined[0].1), "seed {seed}: all read the same");
    (sim.stop().0, joined[0].0)
}

#[test]
fn rows_come_and_go_alike_on_all_copies() {
    let (mut sum, mut seen) = (ChainCounters::default(), [0; 2]);
    for_each_seed(60, |seed| {
        let (counters, here) = run(seed, Fault::of(seed));
        sum += counters;
        seen.iter_mut().zip(here).for_each(|(sum, here)| *sum += here);
    });
    let [refused, gone] = seen;
    println!("{sum:?}, {refused} pushes were refused, {gone} rows went");
    if has_all_seeds() {
        assert!(sum.copied > 0 && sum.pieces > sum.copied && sum.repeated > 0);
        assert!(refused > 0 && gone > 0);
    }
}
