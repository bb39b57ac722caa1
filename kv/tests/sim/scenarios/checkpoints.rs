//! A checkpoint of shards with copies holds each as it was between two requests, all that was
//! acknowledged before it began is in it, and it comes back bit-equal, with as many copies or with
//! another number; whichever server dies meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use caravan_kv::checkpoint::Checkpoints;
use caravan_kv::consistency::Model;
use caravan_kv::{Placement, TableSpec, ValueType};
use caravan_van::KeyRange;
use caravan_van::sim::{Network, for_each_seed};

use crate::sim::oracle::Oracle;
use crate::sim::{Hand, Setup, Sim, has_all_seeds};
use crate::support::drive::{Drive, export, stored};
use crate::support::iterations::{self, LAST, WORKERS, iterate};
use crate::support::simulated::{CREDITS, Draws, weather};

const KEYS: u64 = 200;
const SERVERS: usize = 4;

/// Shards of a table for each server.
const SHARDS: u32 = 2;

const ROUNDS: i64 = 12;

/// One to which all keys get the same at once, one whose rows have hidden values and their own
/// lengths, and one to whose keys is pushed in turn.
fn tables(replicas: u32) -> [TableSpec; 3] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let sums = TableSpec::new(11, "sums", ValueType::I64, 1);
    let steps = TableSpec::new(12, "steps", ValueType::F64, 2).handle("momentum");
    let order = TableSpec::new(13, "order", ValueType::I64, 1);
    let placed = |spec: TableSpec| spec.keys(keys).placement(Placement::Even(SHARDS));
    [sums, steps, order].map(|spec| placed(spec).replicas(replicas))
}

/// Servers in the weather of a seed.
fn start(seed: u64, servers: usize, credits: u16) -> Sim {
    let (network, servers, piece_bytes) = (weather(seed), servers as u64, 300);
    Sim::start(
        seed,
        Setup { servers, workers: 2, credits, piece_bytes, network, ..Setup::default() },
    )
}

/// Pushes the same to all keys of a table at once, and to the keys of the last table in turn.
/// Counts rounds whose pushes are answered.
fn work(hand: &mut Hand<'_>, answered: &AtomicI64) {
    let worker = &mut hand.worker;
    let [sums, steps, order] = tables(1).map(|spec| worker.admin().create_table(&spec).unwrap());
    let keys: Vec<u64> = (0..KEYS).collect();
    for _ in 0..ROUNDS {
        let mut made = vec![
            worker.push(sums, &keys, &vec![1i64; keys.len()]).unwrap(),
            worker.push(steps, &keys, &vec![1.0; 2 * keys.len()]).unwrap(),
        ];
        for key in keys.iter().step_by(5) {
            made.push(worker.push(order, &[*key], &[1i64]).unwrap());
        }
        made.into_iter().for_each(|push| drop(worker.wait(push).unwrap()));
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Crashes a server after this time, or stops it for some, and has it count as lost a little later.
fn kill(network: &Network, oracle: &Oracle, server: u64, after: Duration, stops: bool) {
    network.sleep(after);
    let name = format!("server {server}");
    match stops {
        true => network.freeze(&name, Duration::from_micros(network.number() % 3000)),
        false => network.crash(&name),
    }
    network.sleep(Duration::from_micros(200));
    oracle.lose(server);
}

/// Calls this until nothing dies in it; returns how often it has failed.
fn persist(mut attempt: impl FnMut() -> caravan_kv::Result<()>) -> u64 {
    let mut failures = 0;
    while let Err(error) = attempt() {
        let said = error.to_string();
        let expected = ["is not cut", "was lost", "another checkpoint of it"];
        assert!(expected.iter().any(|part| said.contains(part)), "{said}");
        failures += 1;
        assert!(failures < 100, "{said}");
    }
    failures
}

/// Writes a checkpoint while two workers push and a server dies; returns it, and the number of
/// attempts that have failed.
fn written(seed: u64) -> (Checkpoints<Drive>, u64, u64) {
    let mut draws = Draws(seed);
    let sim = start(seed, SERVERS, CREDITS);
    let answered = Arc::new(AtomicI64::new(0));
    let of = answered.clone();
    let workers = sim.workers(move |hand| {
        work(hand, &of);
        hand.end();
    });
    let wait = Duration::from_micros(draws.below(6000));
    // The writer hears of the loss later than others: it may ask a server that is lost and awake.
    let hears = Oracle::of(3);
    let of = hears.clone();
    let writer = sim.spawn("writer", 60, move |hand| {
        let mut checkpoints = Checkpoints::new(Drive::default());
        hand.network.sleep(wait);
        hand.hear(&of);
        let (mut before, mut number) = (0, 0);
        let failures = persist(|| {
            before = answered.load(Ordering::Relaxed);
            number = checkpoints.create(&mut hand.worker, &tables(1))?;
            Ok(())
        });
        (checkpoints, before, number, failures)
    });
    let (server, after) = (draws.below(4), Duration::from_micros(draws.below(6000)));
    kill(&sim.network, &sim.oracle, server, after, seed % 2 == 1);
    sim.network.sleep(Duration::from_micros(draws.below(20_000)));
    hears.lose(server);
    let (checkpoints, before, number, failures) = sim.join(writer);
    sim.join_all(workers);
    let rows = export(&checkpoints, number);
    let shard_keys = KEYS / u64::from(SHARDS) / SERVERS as u64;
    let of_shards = |table: usize| {
        let shards = rows[table].chunk_by(|a, b| a.0 / shard_keys == b.0 / shard_keys);
        shards.map(|shard| shard.iter().map(|row| row.1.trim()).collect::<Vec<_>>())
    };
    for table in [0, 1] {
        for shard in of_shards(table) {
            assert!(shard.iter().all(|row| *row == shard[0]), "{shard:?}");
        }
    }
    for shard in of_shards(0) {
        let sum: i64 = shard[0].parse().unwrap();
        assert!(sum >= before && sum <= 2 * ROUNDS, "{sum} of {before} that were answered");
    }
    for shard in of_shards(2) {
        let counts: Vec<i64> = shard.iter().map(|row| row.parse().unwrap()).collect();
        assert!(counts.is_sorted_by(|a, b| a >= b), "{shard:?}");
        assert!(counts[0] - counts.last().unwrap() <= 2, "{shard:?}");
    }
    (checkpoints, number, failures)
}

/// Restores a checkpoint on so many servers, of which one dies, and writes another one of what is
/// there.
fn copied(
    checkpoints: &mut Checkpoints<Drive>,
    number: u64,
    seed: u64,
    replicas: u32,
) -> Checkpoints<Drive> {
    let sim = start(seed + 1, SERVERS, CREDITS);
    let own = checkpoints.disk().clone();
    let restorer = sim.spawn("restorer", 60, move |hand| {
        hand.oracle.begin();
        let from = Checkpoints::new(own);
        from.restore_with(&mut hand.worker, number, Some(replicas)).unwrap();
        let mut copy = Checkpoints::new(Drive::default());
        let mut number = 0;
        persist(|| {
            number = copy.create(&mut hand.worker, &tables(replicas))?;
            Ok(())
        });
        (copy, number)
    });
    sim.oracle.wait_for_workers(&sim.network, 1);
    let mut draws = Draws(seed + 7);
    if replicas > 0 {
        let (server, after) = (draws.below(4), Duration::from_micros(draws.below(8000)));
        kill(&sim.network, &sim.oracle, server, after, seed % 2 == 1);
    }
    let (mut copy, number) = sim.join(restorer);
    assert_eq!(copy.manifest(number).unwrap().tables[0].spec.replicas, replicas);
    assert!(copy.prune(1).is_ok());
    copy
}

#[test]
fn it_is_of_one_moment_and_comes_back_bit_equal_whatever_dies() {
    let mut failures = 0;
    for_each_seed(30, |seed| {
        let (mut checkpoints, number, failed) = written(seed);
        failures += failed;
        let rows = export(&checkpoints, number);
        let hidden = stored(&mut checkpoints, number, 1);
        assert!(hidden.iter().all(|row| row.1.len() > 2 * size_of::<f64>()), "hidden values");
        let replicas = seed as u32 % 3;
        let mut copy = copied(&mut checkpoints, number, seed, replicas);
        let last = *copy.list().unwrap().last().unwrap();
        assert_eq!(export(&copy, last), rows, "seed {seed}, {replicas} replicas");
        assert_eq!(stored(&mut copy, last, 1), hidden, "seed {seed}, {replicas} replicas");
    });
    println!("{failures} attempts were cut off by a death");
    assert!(failures > 0 || !has_all_seeds());
}

/// A thread that has stopped, counts as lost and wakes without knowing it is not read: the writer,
/// who has not heard of it either, gets what the next thread has acknowledged since.
#[test]
fn a_lost_thread_that_wakes_is_not_read() {
    for_each_seed(6, |seed| {
        let sim = start(seed, 2, CREDITS);
        let (hears, step) = (Oracle::of(3), Arc::new(AtomicU64::new(0)));
        let wait_for = |network: &Network, step: &AtomicU64, wanted: u64| {
            while step.load(Ordering::Relaxed) < wanted {
                network.sleep(Duration::from_micros(10));
            }
        };
        let of = step.clone();
        let worker = sim.spawn("worker", 0, move |hand| {
            let table = hand.create(&tables(1)[0]);
            for round in [1, 3] {
                wait_for(hand.network, &of, round);
                let pushed = hand.worker.push(table, &[0], &[1i64]).unwrap();
                hand.wait(pushed);
                of.store(round + 1, Ordering::Relaxed);
            }
        });
        let (of, heard) = (step.clone(), hears.clone());
        let writer = sim.spawn("writer", 60, move |hand| {
            hand.hear(&heard);
            let table = hand.create(&tables(1)[0]);
            let pulled = hand.worker.pull(table, &[0]).unwrap();
            hand.wait(pulled);
            of.store(1, Ordering::Relaxed);
            wait_for(hand.network, &of, 4);
            let mut checkpoints = Checkpoints::new(Drive::default());
            checkpoints.create(&mut hand.worker, &tables(1)[..1]).unwrap();
            export(&checkpoints, 1)
        });
        wait_for(&sim.network, &step, 2);
        let stops = Duration::from_millis(400);
        sim.network.freeze("server 0", stops);
        sim.network.sleep(Duration::from_micros(200));
        sim.oracle.lose(0);
        step.store(3, Ordering::Relaxed);
        wait_for(&sim.network, &step, 4);
        sim.network.sleep(stops + Duration::from_millis(50));
        hears.lose(0);
        let rows = sim.join(writer);
        assert_eq!(rows, [[(0, "2".to_owned())]], "both pushes were acknowledged");
        sim.join(worker);
    });
}

/// The same of an iteration, for which it waits at the first thread of each chain: copies change
/// nothing in what it has, nor do deaths; but an iteration may be over when it is tried again.
#[test]
fn one_of_an_iteration_has_all_pushes_before_it_whatever_dies() {
    let (mut ahead, mut late, mut failed) = (0, 0, 0);
    for_each_seed(30, |seed| {
        let mut draws = Draws(seed);
        let of = 1 + draws.below(LAST);
        let model = if seed % 3 == 0 { Model::Ssp { staleness: 2 } } else { Model::Bsp };
        let spec = iterations::spec(model).placement(Placement::Even(2)).replicas(1);
        let sim = start(seed, SERVERS, 64); // for an iteration's pushes
        let iterated = spec.clone();
        let iterate = move |hand: &mut Hand<'_>| {
            let Hand { network, worker, draws, rank, .. } = hand;
            iterate(network, worker, &iterated, *rank, draws);
            hand.oracle.end();
            while !hand.oracle.is_over(WORKERS) {
                hand.network.sleep(Duration::from_micros(500));
            }
        };
        let names = (0..WORKERS).map(|rank| (format!("worker {rank}"), rank));
        let workers = names.map(|(name, rank)| sim.spawn(&name, rank, iterate.clone()));
        let workers: Vec<_> = workers.collect();
        let wait = Duration::from_micros(draws.below(20_000));
        let writer = sim.spawn("writer", 60, move |hand| {
            hand.network.sleep(wait);
            let mut checkpoints = Checkpoints::new(Drive::default()).at_clock(Some(of));
            let over = format!("iteration {of} is over");
            let mut number = None;
            let failures = persist(|| {
                match checkpoints.create(&mut hand.worker, std::slice::from_ref(&spec)) {
                    Err(error) if error.to_string().contains(&over) => Ok(()),
                    created => created.map(|created| number = Some(created)),
                }
            });
            (number.map(|number| export(&checkpoints, number)), failures)
        });
        if draws.below(4) > 0 {
            let (server, after) = (draws.below(4), Duration::from_micros(draws.below(20_000)));
            kill(&sim.network, &sim.oracle, server, after, seed % 2 == 1);
        }
        let (tables, failures) = sim.join(writer);
        sim.join_all(workers);
        failed += failures;
        match tables {
            Some(tables) => ahead += u64::from(iterations::check(of, model, &tables[0])),
            None => late += 1,
        }
    });
    println!("{ahead} of a past iteration, {late} too late, {failed} attempts were cut off");
    assert!(ahead > 10 && late > 0 || !has_all_seeds());
}
