//! Shards with copies move while requests go on and servers die, and nothing is lost, applied twice
//! or out of order.

use std::collections::BTreeMap;
use std::time::Duration;

use caravan_kv::server::ChainCounters;
use caravan_kv::{Error, Handles, Placement, Table, TableSpec, ValueType};
use caravan_van::sim::for_each_seed;

use crate::sim::faults::{FAULTS, Fault, quick, stalling};
use crate::sim::oracle::{LOOK, Oracle};
use crate::sim::workload::adds::{self, Adds};
use crate::sim::workload::moves::draw;
use crate::sim::{Hand, Setup, Sim, has_all_seeds};
use crate::support::simulated::Draws;
use crate::support::ticks::with_ticks;

/// Moves random shards about until all workers are done; returns how many have moved. A thread that
/// is lost meanwhile gets none.
pub(crate) fn shift(hand: &mut Hand<'_>, tables: &[Table], servers: u64) -> u64 {
    let mut moved = 0;
    while !hand.oracle.is_over(hand.workers) {
        hand.pause(2000);
        let (table, shard) = draw(hand, tables);
        let server = hand.draws.below(servers) as usize;
        let wish = hand.worker.admin().move_shard(table, shard.range.begin(), server).unwrap();
        match hand.worker.wait(wish) {
            Ok(_) => {
                let is_it = |it: &&caravan_kv::Placed| it.range == shard.range;
                let now =
                    hand.worker.info().shards(table).unwrap().iter().find(is_it).unwrap().server;
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
    for_each_seed(36, |seed| {
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

/// A head is cut off from all who know that it has left its chain; returns what somebody reads
/// there who does not know either, after another one has pushed at the new head, and whether the
/// old one has heard by then.
fn read_at_one_that_left(seed: u64) -> (i64, bool) {
    let sim = Sim::start(seed, Setup { workers: 2, ..Setup::default() });
    let spec = TableSpec::new(1, "count", ValueType::I64, 1).replicas(1);
    let spec = spec.placement(Placement::Cut(vec![(0, 0)]));
    let (moved, pushed) = (spec.clone(), spec.clone());
    let mover = sim.spawn("mover", 60, move |hand| {
        let table = hand.create(&moved);
        hand.oracle.wait_for_workers(hand.network, 2);
        let wish = hand.worker.admin().move_shard(table, 0, 1).unwrap();
        hand.wait(wish);
    });
    let pusher = sim.spawn("worker 0", 0, move |hand| {
        let table = hand.create(&pushed);
        hand.oracle.begin();
        while hand.oracle.changes() < 2 {
            hand.network.sleep(LOOK / 10);
        }
        let push = hand.worker.push(table, &[7], &[1i64]).unwrap();
        hand.wait(push);
        hand.oracle.calm_down();
    });
    let reader = sim.spawn("worker 1", 1, move |hand| {
        let (table, oracle) = (hand.create(&spec), hand.oracle.clone());
        hand.hear(&Oracle::of(3));
        oracle.begin();
        while !oracle.is_calm() {
            hand.network.sleep(LOOK);
        }
        let has_heard = oracle.has_left(0);
        let pull = hand.worker.pull(table, &[7]).unwrap();
        for _ in 0..20 {
            hand.worker.poll().unwrap();
            hand.network.sleep(LOOK);
        }
        hand.hear(&oracle);
        (hand.worker.wait(pull).unwrap().values::<i64>()[0], has_heard)
    });
    let (oracle, mut draws) = (sim.oracle.clone(), Draws(seed));
    let fate = sim.network.spawn("fate", move |network| {
        while oracle.changes() < 1 {
            network.sleep(LOOK / 10);
        }
        network.cut("worker 0", "server 0", Duration::from_millis(100));
        network.sleep(Duration::from_micros(draws.below(2500)));
        network.cut_one_way("mover", "server 0", Duration::from_millis(100));
    });
    sim.join_all(vec![fate, mover, pusher]);
    sim.join(reader)
}

#[test]
fn who_has_not_heard_that_it_left_a_chain_answers_nothing() {
    let mut late = 0;
    for_each_seed(50, |seed| {
        let (read, has_heard) = read_at_one_that_left(seed);
        assert_eq!(read, 1, "seed {seed}: it was pushed before");
        late += u64::from(!has_heard);
    });
    println!("{late} had not heard");
    assert!(late > 3 || !has_all_seeds(), "{late} had not heard");
}
