//! Shards move while requests go on, and nothing is lost, applied twice or out of order.

use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::server::MoveCounters;
use caravan_kv::{Error, Handles, Placement, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use caravan_van::sim::for_each_seed;

use crate::sim::workload::adds::{self, Adds};
use crate::sim::workload::moves::shift;
use crate::sim::{Hand, Setup, Sim, has_all_seeds};
use crate::support::simulated::{Draws, connect, weather};
use crate::support::ticks::with_ticks;

/// So many servers with so many workers, in the weather of a seed.
fn start(seed: u64, servers: u64, workers: u64) -> Sim {
    let handles = with_ticks(Handles::default());
    let (piece_bytes, network) = (40, weather(seed));
    let setup = Setup { servers, workers, piece_bytes, handles, network, ..Setup::default() };
    Sim::start(seed, setup)
}

fn run(seed: u64) -> MoveCounters {
    let mut draws = Draws(seed);
    let (servers, workers) = (2 + draws.below(3), 1 + draws.below(8));
    let sim = start(seed, servers, workers);
    let adds = Adds { replicas: 0, rounds: [25, 25], pause_us: 1 };
    let nodes = sim.workers(move |hand| adds.work(hand));
    let mover = sim.spawn("mover", 60, move |hand| {
        let tables = adds::tables(0).map(|spec| hand.create(&spec));
        shift(hand, &tables, servers, 12);
    });
    sim.join(mover);
    adds::check(&sim, 0, nodes);
    sim.stop().1
}

#[test]
fn nothing_is_lost_or_doubled_while_shards_move() {
    let mut sum = MoveCounters::default();
    for_each_seed(100, |seed| sum += run(seed));
    println!("{sum:?}");
    let MoveCounters { left, arrived, failed, asked_again, pieces, bytes, .. } = sum;
    assert_eq!((left, failed, asked_again), (arrived, 0, 0));
    let held = [sum.held_copying, sum.held_leaving, sum.held_arriving];
    let met = [[pieces, bytes, sum.forwarded], held, [sum.sent_back; 3]].concat();
    let has_met = met.iter().all(|count| *count > 0);
    assert!(has_met || !has_all_seeds(), "every step meets requests: {sum:?}");
}

#[test]
fn a_worker_that_joins_again_during_a_move_reads_what_it_wrote() {
    for_each_seed(40, |seed| {
        let sim = start(seed, 2, 1);
        let spec = TableSpec::new(1, "numbers", ValueType::I64, 1);
        let spec = spec.placement(Placement::Cut(vec![(0, 1)]));
        let moved = spec.clone();
        let mover = sim.spawn("mover", 60, move |hand| {
            let table = hand.create(&moved);
            for server in [0, 1].repeat(20) {
                hand.pause(100);
                let moved = hand.worker.admin().move_shard(table, 0, server).unwrap();
                hand.wait(moved);
            }
            hand.oracle.calm_down();
        });
        let worker = sim.spawn("worker", 0, move |hand| {
            let table = hand.create(&spec);
            let mut pushed = 0;
            while !hand.oracle.is_calm() {
                let push = hand.worker.push(table, &[7], &[1i64]).unwrap();
                pushed += 1;
                hand.create(&spec); // says where the shard is now
                let pull = hand.worker.pull(table, &[7]).unwrap();
                hand.wait(push);
                let answer = hand.worker.wait(pull).unwrap();
                assert_eq!(answer.values::<i64>(), [pushed], "seed {seed}");
            }
        });
        sim.join_all(vec![worker, mover]);
    });
}

/// A table of numbers in three shards, and keys of all of them.
fn numbers() -> (TableSpec, Vec<u64>) {
    let spec = TableSpec::new(1, "numbers", ValueType::I64, 100).placement(Placement::Even(3));
    (spec, (0..300).map(|key| key * (u64::MAX / 300)).collect())
}

#[test]
fn thousands_of_held_requests_are_sent_back_one_by_one() {
    let network = weather(0);
    let look = Duration::from_micros(1);
    let setup = Setup { servers: 2, workers: 1, credits: 4096, look, network, ..Setup::default() };
    let sim = Sim::start(1, Setup { piece_bytes: 1 << 16, ..setup });
    let worker = sim.spawn("worker", 0, move |hand| {
        let spec = TableSpec::new(1, "numbers", ValueType::I64, 1);
        let table = hand.create(&spec.placement(Placement::Cut(vec![(0, 0)])));
        let mut pushed = 0;
        for (turn, to) in [1, 0].repeat(30).into_iter().enumerate() {
            let moved = hand.worker.admin().move_shard(table, 0, to).unwrap();
            hand.worker.poll().unwrap();
            hand.network.sleep(Duration::from_micros(2 * turn as u64)); // some meet its end
            let push = |_| {
                let push = hand.worker.push(table, &[7], &[1i64]).unwrap();
                hand.worker.poll().unwrap(); // sends it by itself
                push
            };
            let pushes: Vec<_> = (0..4000).map(push).collect();
            pushed += pushes.len() as i64;
            pushes.into_iter().for_each(|push| hand.wait(push));
            hand.wait(moved);
        }
        let pulled = hand.worker.pull(table, &[7]).unwrap();
        assert_eq!(hand.worker.wait(pulled).unwrap().values::<i64>(), [pushed]);
    });
    sim.join(worker);
    let moves = sim.stop().1;
    assert!(moves.held_leaving >= 2000, "requests waited for the end of a move: {moves:?}");
}

#[test]
fn moves_that_cannot_be_are_refused_by_name() {
    let sim = start(0, 2, 1);
    let refused = sim.spawn("worker", 0, move |hand| {
        let worker = &mut hand.worker;
        let (spec, keys) = numbers();
        let table = worker.admin().create_table(&spec).unwrap();
        let refused = |worker: &mut Worker, server| {
            let moved = worker.admin().move_shard(table, 0, server).unwrap();
            worker.wait(moved).unwrap_err().to_string()
        };
        let error = refused(worker, 2);
        assert!(error.contains("there is no server thread 2, only 2 from 0 on"), "{error}");
        let again = worker.admin().move_shard(table, 0, 0).unwrap();
        worker.wait(again).unwrap();
        assert_eq!(worker.info().shards(table).unwrap()[0].epoch, 0, "it was there");
        let values = vec![1i64; 100 * keys.len()];
        let pushed = worker.push(table, &keys, &values).unwrap();
        worker.wait(pushed).unwrap();
        let [first, second] =
            [1, 1].map(|server| worker.admin().move_shard(table, 0, server).unwrap());
        worker.wait(first).unwrap();
        worker.wait(second).unwrap();
        let spec = TableSpec::new(2, "rounds", ValueType::I64, 1).consistency(Model::Bsp, 1);
        let rounds = worker.admin().create_table(&spec).unwrap();
        let moved = worker.admin().move_shard(rounds, 0, 1).unwrap();
        let error = worker.wait(moved).unwrap_err().to_string();
        assert!(error.contains("table rounds has a consistency model"), "{error}");
        let dropped = worker.admin().move_shard(table, 0, 0).unwrap();
        worker.admin().drop_table(table).unwrap();
        let outcome = worker.wait(dropped);
        assert!(outcome.is_ok() || outcome.unwrap_err().to_string().contains("dropped"));
    });
    sim.join(refused);
}

/// Creates a table of 12 shards, of which thread `lost` of 3 has some or none. Then that is lost,
/// and the shards are spread.
fn spread_without(hand: &mut Hand<'_>, lost: usize) {
    let has_some = hand.draws.below(2) == 0;
    let worker = &mut hand.worker;
    let next = (lost + 1) % 3;
    let owner = |at| if has_some && at % 4 == 0 { lost } else { next };
    let spec = TableSpec::new(1, "t", ValueType::I64, 1).keys(KeyRange::new(0, 1200).unwrap());
    let firsts = (0..12).map(|at| (100 * at, owner(at) as u32)).collect();
    let table = worker.admin().create_table(&spec.placement(Placement::Cut(firsts))).unwrap();
    let keys: Vec<u64> = (0..1200).collect();
    let values: Vec<i64> = (0..1200).collect();
    let pushed = worker.push(table, &keys, &values).unwrap();
    worker.wait(pushed).unwrap();
    hand.network.crash(&format!("server {lost}"));
    hand.oracle.lose(lost as u64);
    let moved = worker.admin().rebalance(table, &[]).unwrap();
    let shards = worker.info().shards(table).unwrap().to_vec();
    let of = |server| shards.iter().filter(|shard| shard.server == server).count();
    let stay = if has_some { 3 } else { 0 };
    assert_eq!(of(lost), stay, "no shard goes to a lost thread, or comes from there: {shards:?}");
    assert_eq!(moved.len(), of((lost + 2) % 3), "{moved:?}");
    assert!(of(next).abs_diff(of((lost + 2) % 3)) <= 1, "{shards:?}");
    let living = shards.iter().filter(|shard| shard.server != lost);
    let keys: Vec<u64> = living.flat_map(|it| it.range.begin()..it.range.end()).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    let rows = worker.wait(pulled).unwrap();
    assert!(rows.values::<i64>().iter().map(|row| *row as u64).eq(keys), "they are all there");
    let error = worker.admin().rebalance(table, &[next, (lost + 2) % 3]).unwrap_err().to_string();
    assert!(error.contains("not lost is to be drained; leave one"), "{error}");
}

#[test]
fn shards_are_spread_over_the_threads_that_live() {
    for_each_seed(30, |seed| {
        let sim = start(seed, 3, 1);
        let worker = sim.spawn("worker", 0, move |hand| spread_without(hand, seed as usize % 3));
        sim.join(worker);
    });
}

/// Creates a table at threads 2 and 5 of 8, whose second shard moves on to 6 and 7, and on and on;
/// then another worker joins, and drops it.
fn follow_a_table(one: &mut Worker, two: &mut Worker) {
    let at = |server| Placement::Cut(vec![(0, 2), (500, server)]);
    let spec = TableSpec::new(1, "t", ValueType::I64, 1).keys(KeyRange::new(0, 1000).unwrap());
    let table = one.admin().create_table(&spec.clone().placement(at(5))).unwrap();
    let pushed = one.push(table, &[1, 999], &[3i64, 4]).unwrap();
    one.wait(pushed).unwrap();
    for to in [6, 7, 5, 6, 7] {
        let moved = one.admin().move_shard(table, 999, to).unwrap();
        one.wait(moved).unwrap();
    }
    let joined = two.admin().create_table(&spec.clone().placement(at(5))).unwrap();
    assert_eq!(two.info().connections(), 1, "whoever joins asks the first thread alone");
    let pulled = two.pull(joined, &[1, 999]).unwrap();
    assert_eq!(two.wait(pulled).unwrap().values::<i64>(), [3, 4]);
    let owners: Vec<usize> =
        two.info().shards(joined).unwrap().iter().map(|it| it.server).collect();
    assert_eq!(owners, [2, 7], "and follows the shard to where it is");
    two.admin().drop_table(joined).unwrap();
    for key in [1, 999] {
        let late = one.push(table, &[key], &[1i64]).unwrap();
        let error = one.wait(late).unwrap_err();
        assert!(matches!(error, Error::TableDropped { .. }), "{error}");
    }
    // Those that had the shard on its way have forgotten it as well.
    let again = two.admin().create_table(&spec.placement(at(6))).unwrap();
    let pulled = two.pull(again, &[1, 999]).unwrap();
    assert_eq!(two.wait(pulled).unwrap().values::<i64>(), [0, 0]);
    two.admin().drop_table(again).unwrap();
    assert!(two.admin().list_tables("").unwrap().is_empty());
}

#[test]
fn owners_alone_hear_of_a_table_and_its_drop_follows_the_shards() {
    for_each_seed(6, |seed| {
        let sim = start(seed, 8, 1);
        let addresses = sim.addresses.clone();
        // They hear of no loss: else all threads would hear of the table.
        let worker = sim.network.spawn("worker", move |network| {
            let [mut one, mut two] = [90, 91].map(|node| connect(network, node, &addresses));
            follow_a_table(&mut one, &mut two);
        });
        sim.join(worker);
        let heard = sim.oracle.heard();
        let asked = [0, 2, 5, 6, 7];
        assert_eq!(heard, asked, "the first thread, and those that had shards");
    });
}
