//! A shard whose lane between its two owners breaks as it moves is neither lost nor counted twice,
//! and one thread owns it, also if one of the two dies.

use std::time::Duration;

use caravan_kv::server::{MoveCounters, MoveStep, ShardStep};
use caravan_kv::{Handles, Placement, TableSpec, ValueType};
use caravan_van::KeyRange;
use caravan_van::sim::{Network, for_each_seed};

use crate::sim::faults::cut_moves;
use crate::sim::oracle::Oracle;
use crate::sim::workload::adds::{self, Adds};
use crate::sim::workload::moves::shift_on;
use crate::sim::{Hand, Setup, Sim, has_all_seeds};
use crate::support::simulated::{Draws, connect};
use crate::support::ticks::with_ticks;

const SERVERS: u64 = 3;

/// How often a server looks for work.
const LOOK: Duration = Duration::from_micros(20);

/// Ids of [`rows`] and of a table with replicas.
const ROWS: u32 = 8;
const COPIED: u32 = 9;
const KEYS: u64 = 120;

fn start(seed: u64, workers: u64) -> Sim {
    let handles = with_ticks(Handles::default());
    Sim::start(seed, Setup { servers: SERVERS, workers, look: LOOK, handles, ..Setup::default() })
}

/// How many shards there are without replicas, how many of them move, and how many have keys that
/// another has.
fn count(oracle: &Oracle) -> [usize; 3] {
    let all = oracle.shards().into_iter().map(|(_, it)| it).filter(|it| it.table != COPIED);
    let all: Vec<ShardStep> = all.collect();
    let moving = all.iter().filter(|it| it.step != MoveStep::Still).count();
    let meets = |one: &ShardStep, other: &ShardStep| {
        one.table == other.table && one.range.intersect(other.range).is_some()
    };
    let doubled = |it: &&ShardStep| all.iter().filter(|other| meets(it, other)).count() > 1;
    [all.len(), moving, all.iter().filter(doubled).count()]
}

/// Waits until no shard moves; returns as [`count`].
fn settle(network: &Network, oracle: &Oracle) -> [usize; 3] {
    let counted = (0..500).find_map(|_| {
        network.sleep(Duration::from_millis(1));
        Some(count(oracle)).filter(|[_, moving, _]| *moving == 0)
    });
    counted.unwrap_or_else(|| count(oracle))
}

/// One run; returns how often a lane broke while a shard was handed over.
fn run(seed: u64) -> (MoveCounters, u64) {
    const WORKERS: u64 = 3;
    let sim = start(seed, WORKERS);
    let adds = Adds { replicas: 0, rounds: [40, 40], pause_us: 2000 };
    let nodes = sim.workers(move |hand| adds.work(hand));
    let mover = sim.spawn("mover", 60, |hand| {
        let tables = adds::tables(0).map(|spec| hand.create(&spec));
        shift_on(hand, &tables, SERVERS, 2);
    });
    let oracle = sim.oracle.clone();
    let cutter =
        sim.network.spawn("cutter", move |network| cut_moves(network, &oracle, WORKERS, seed));
    sim.join(mover);
    let cuts = sim.join(cutter);
    adds::check(&sim, 0, nodes);
    let counted = settle(&sim.network, &sim.oracle);
    let shards = 4 * 2 * SERVERS as usize;
    assert_eq!(counted, [shards, 0, 0], "seed {seed}: shards, those that move, doubled ones");
    (sim.stop().1, cuts)
}

/// Lanes must have broken while shards were handed over.
#[test]
fn nothing_is_lost_if_the_lane_breaks() {
    let (mut moves, mut cuts) = (MoveCounters::default(), 0);
    for_each_seed(10, |seed| {
        let (of_seed, cut) = run(seed);
        moves += of_seed;
        cuts += cut;
    });
    println!("{cuts} cuts while a shard was handed over; {moves:?}");
    assert_eq!(moves.left, moves.arrived);
    let MoveCounters { left, failed, asked_again, .. } = moves;
    let has_met = left > 0 && failed > 0 && asked_again > 0;
    assert!(has_met || !has_all_seeds(), "{moves:?}");
}

/// A table of one shard, which server 2 has first.
fn rows() -> TableSpec {
    let spec = TableSpec::new(ROWS, "rows", ValueType::I64, 2);
    spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Cut(vec![(0, 2)]))
}

/// Tells servers who is lost, as a worker does with a table that has replicas.
fn tell(hand: &mut Hand<'_>) {
    let copied = TableSpec::new(COPIED, "copied", ValueType::I64, 1).replicas(1);
    let table = hand.create(&copied);
    while !hand.oracle.is_over(1) {
        hand.network.sleep(Duration::from_millis(1));
        let pulled = hand.worker.pull(table, &[0, u64::MAX / 2, u64::MAX - 1]).unwrap();
        hand.wait(pulled);
    }
}

/// Moves the shard from server 1 to server 2, cuts them off from each other, and crashes `victim`;
/// returns whether the move failed, and whether the shard lives on.
fn crash(seed: u64, victim: usize) -> (bool, bool) {
    let sim = start(seed, 1);
    let teller = sim.spawn("teller", 60, tell);
    let addresses = sim.addresses.clone();
    let worker = sim.network.spawn("worker", {
        let oracle = sim.oracle.clone();
        move |network| {
            // It hears of no loss: what becomes of the move, servers have to say.
            let worker = connect(network, 100, &addresses);
            let (draws, workers) = (Draws(seed ^ 55), 1);
            let hand = Hand { network, worker, oracle, seed, rank: 0, workers, draws };
            let mut reader = connect(network, 101, &addresses);
            move_and_crash(hand, &mut reader, victim)
        }
    });
    let end = sim.join(worker);
    sim.oracle.end();
    sim.join(teller);
    end
}

fn move_and_crash(
    hand: Hand<'_>,
    stranger: &mut caravan_kv::Worker,
    victim: usize,
) -> (bool, bool) {
    let Hand { network, mut worker, oracle, mut draws, .. } = hand;
    let table = worker.admin().create_table(&rows()).unwrap();
    let there = worker.admin().move_shard(table, 0, 1).unwrap();
    worker.wait(there).unwrap();
    let ones = vec![1i64; 2 * KEYS as usize];
    let keys: Vec<u64> = (0..KEYS).collect();
    let pushed = worker.push(table, &keys, &ones).unwrap();
    worker.wait(pushed).unwrap();
    let back = worker.admin().move_shard(table, 0, 2).unwrap();
    // The crash alone at any instant; or a cut first, soon after the last rows, or some rows.
    let kind = draws.below(4);
    let has_come = |step| oracle.moving(step).is_some();
    while kind > 0 && !has_come(MoveStep::Closing) && !(kind == 1 && has_come(MoveStep::Copying)) {
        worker.poll().unwrap();
        network.sleep(LOOK);
    }
    network.sleep(Duration::from_micros(draws.below(1200)));
    if kind > 0 {
        network.cut("server 1", "server 2", Duration::from_millis(5 + draws.below(8)));
        network.sleep(Duration::from_micros(draws.below(12_000)));
    }
    network.crash(&format!("server {victim}"));
    oracle.lose(victim as u64);
    let failed = worker.wait(back).is_err();
    let [count, moving, doubled] = settle(network, &oracle);
    assert_eq!((moving, doubled), (0, 0), "of {count} shards");
    let owner = 3 - victim;
    let lives = oracle.shards().iter().any(|(at, it)| *at == owner && it.table == ROWS);
    if !lives {
        return (failed, false);
    }
    // Whoever comes now asks server 2, which had the shard first; server 1 is known here.
    let reader = if victim == 1 { stranger } else { &mut worker };
    let table = reader.admin().create_table(&rows()).unwrap();
    let pulled = reader.pull(table, &keys).unwrap();
    assert_eq!(reader.wait(pulled).unwrap().values::<i64>(), ones);
    (failed, true)
}

/// Runs so many seeds. A shard dies with the newcomer only if that owned it, as all know then, and
/// with the owner only if it had not come whole.
fn crashes_of(victim: usize, count: u64) {
    let (mut runs, mut failed, mut living) = (0, 0, 0);
    for_each_seed(count, |seed| {
        let (has_failed, lives) = crash(seed, victim);
        let is_right = if victim == 2 { lives == has_failed } else { lives || has_failed };
        assert!(is_right, "the move has failed: {has_failed}, the shard lives: {lives}");
        runs += 1;
        failed += u64::from(has_failed);
        living += u64::from(lives);
    });
    println!("server {victim} died in {runs} runs: {failed} moves failed, {living} shards live on");
    let has_both = living > 0 && living < runs;
    assert!(has_both || !has_all_seeds(), "{living} of {runs} live on");
}

#[test]
fn the_owner_keeps_a_shard_whose_newcomer_dies() {
    crashes_of(2, 20);
}

#[test]
fn the_newcomer_owns_a_whole_shard_whose_owner_dies() {
    crashes_of(1, 20);
}
