//! Where copies get the sum of several pushes in their place, no push is lost or counts twice,
//! whatever dies: after each task all copies are what a shard without a network is.

use std::sync::Arc;

use caravan_kv::server::ChainCounters;
use caravan_van::sim::for_each_seed;

use crate::sim::faults::Fault;
use crate::sim::workload::parts::{self, Parts, SUMS, WORKERS};
use crate::sim::{Setup, Sim, has_all_seeds};
use crate::support::simulated::Draws;

/// One run; returns the counters of the servers that were left.
pub(crate) fn run(seed: u64, fault: Fault, late: u64) -> ChainCounters {
    run_with(16, seed, fault, late)
}

/// As [`run`], with so many credits on each lane.
fn run_with(credits: u16, seed: u64, fault: Fault, late: u64) -> ChainCounters {
    let mut draws = Draws(seed);
    let (servers, replicas) = (3 + draws.below(2), 1 + draws.below(2) as u32);
    let (handles, piece_bytes) = (parts::handles(), 400);
    let setup =
        Setup { servers, workers: WORKERS, handles, piece_bytes, credits, ..Setup::default() };
    let sim = Sim::start(seed, setup);
    sim.oracle.leave_unordered(SUMS);
    let parts = Parts { replicas, late, commands: Arc::default() };
    let nodes = sim.workers(move |hand| parts.work(hand));
    // Where a worker is late, parts of others wait for most of the time.
    let fate = sim.fate(fault, replicas, if late > 0 { 800_000 } else { 9000 });
    sim.join_all(nodes);
    sim.join(fate);
    sim.stop().0
}

#[test]
fn no_part_of_a_sum_is_lost_or_counts_twice() {
    let mut sum = ChainCounters::default();
    let late = |seed: u64| if (seed / 6).is_multiple_of(6) { 80 } else { 0 };
    for_each_seed(36, |seed| sum += run(seed, Fault::of(seed), late(seed)));
    println!("{sum:?}");
    let all = [sum.copied, sum.repeated, sum.passed_again, sum.gathered];
    assert!(all.iter().all(|count| *count > 0) || !has_all_seeds(), "{sum:?}");
}

/// A sum goes on when its last part comes, though there was room for that part alone. It leaves the
/// credits of records that end at the next thread, or lanes would wait for each other in a circle.
#[test]
fn lanes_full_of_sums_never_wait_in_a_circle() {
    for_each_seed(12, |seed| {
        let counters = run_with(4, seed, Fault::Nothing, 0);
        assert!(counters.gathered > 0, "seed {seed}: {counters:?}");
    });
}

/// A worker that is late holds up the answers to the others' parts for a second, not for ever, and
/// then parts pass on as they are.
#[test]
fn parts_wait_for_others_and_not_for_ever() {
    let [prompt, late] = [0, 20].map(|late| run(1, Fault::Nothing, late));
    println!("{prompt:?}, {late:?}");
    let ChainCounters { gathered, passed, .. } = prompt;
    assert!(gathered > 0 && passed > 0 && late.gathered < gathered && parts::parts() > 0);
}
