//! Whatever a worker repeats after its lanes have broken is applied once, and how fresh a table is
//! is never too much.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::{Error, Refusal, Table, TableSpec, ValueType, Worker};
use caravan_van::sim::{Faults, Network, for_each_seed};

use crate::sim::faults::Fault;
use crate::sim::{Hand, Setup, Sim, has_all_seeds};
use crate::support::simulated::connect;

const SERVERS: u64 = 2;
const ITERATIONS: u64 = 20;

/// A key of each worker on each server, in the order of the keys.
fn keys(rank: u64) -> Vec<u64> {
    (0..SERVERS).map(|server| server * (u64::MAX / SERVERS + 1) + rank).collect()
}

fn counters(model: Model, workers: u64) -> TableSpec {
    TableSpec::new(1, "counters", ValueType::I64, 1).consistency(model, workers as u32)
}

/// What a worker gave up, by server: those went on without its iteration.
type GivenUp = Arc<Mutex<Vec<[u64; SERVERS as usize]>>>;

/// Reads and counts in one iteration; ends it by the last push, or when all have been answered.
fn iterate(
    worker: &mut Worker,
    table: Table,
    rank: u64,
    ends_last: bool,
    given_up: &GivenUp,
) -> Result<(), Error> {
    let pulled = worker.pull(table, &keys(rank))?;
    worker.wait(pulled)?;
    let wait = |worker: &mut Worker, server: usize, pushed| match worker.wait(pushed) {
        Err(Error::Refused { kind: Refusal::Order, .. }) => {
            given_up.lock().unwrap()[rank as usize][server] += 1;
            Ok(())
        }
        waited => waited.map(drop),
    };
    let [one, other] = keys(rank)[..] else { unreachable!() };
    let first = worker.push(table, &[one], &[1i64])?;
    if ends_last {
        let last = worker.clocks(table).push_last(&[other], &[1i64])?;
        wait(worker, 0, first)?;
        return wait(worker, 1, last);
    }
    wait(worker, 0, first)?;
    let last = worker.push(table, &[other], &[1i64])?;
    wait(worker, 1, last)?;
    let advanced = worker.clocks(table).advance()?;
    worker.wait(advanced).map(drop)
}

/// Connects again until the table has this worker back.
fn come_back(network: &Network, worker: &mut Worker, table: Table, clock: u64) -> u64 {
    loop {
        let timeout = Duration::from_millis(200);
        match worker.admin().reconnect(timeout).and_then(|_| worker.clocks(table).rejoin(clock)) {
            Ok(first) => return first,
            Err(Error::ServerLost { .. } | Error::Timeout { .. }) => {
                network.sleep(Duration::from_millis(3));
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Counts iterations, and repeats those that a broken lane has cut off.
fn count(hand: &mut Hand<'_>, spec: &TableSpec, given_up: &GivenUp, returns: &AtomicU64) {
    let (seed, rank) = (hand.seed, hand.rank);
    let table = hand.create(spec);
    hand.worker.clocks(table).join().unwrap();
    hand.oracle.begin();
    let is_bsp = spec.consistency.is_some_and(|it| it.model == Model::Bsp);
    let (mut clock, mut skipped) = (1, 0);
    while clock <= ITERATIONS {
        hand.pause(500);
        let ends_last = is_bsp || hand.draws.below(2) == 0;
        match iterate(&mut hand.worker, table, rank, ends_last, given_up) {
            Ok(()) => clock += 1,
            Err(Error::ServerLost { .. }) => {
                returns.fetch_add(1, Ordering::Relaxed);
                let first = come_back(hand.network, &mut hand.worker, table, clock);
                skipped += first - clock;
                clock = first;
            }
            Err(other) => panic!("seed {seed}, worker {rank}: {other}"),
        }
    }
    given_up.lock().unwrap()[rank as usize].iter_mut().for_each(|it| *it += skipped);
    hand.network.sleep(Duration::from_millis(20));
}

/// Workers that are cut off now and then count their iterations; returns how often they came back,
/// or how many were counted twice.
fn counts(seed: u64, model: Model, workers: u64, once: bool) -> u64 {
    let sim = Sim::start(seed, Setup { servers: SERVERS, workers, ..Setup::default() });
    let returns = Arc::new(AtomicU64::new(0));
    let given_up = GivenUp::new(Mutex::new(vec![[0; SERVERS as usize]; workers as usize]));
    let spec = counters(model, workers);
    let spec = if once { spec.once() } else { spec };
    let (of, skipped, back) = (spec.clone(), given_up.clone(), returns.clone());
    let nodes = sim.workers(move |hand| count(hand, &of, &skipped, &back));
    let fate = sim.fate(Fault::CutWorker, 0, 4000);
    sim.join(fate);
    sim.join_all(nodes);
    let reader = sim.spawn("reader", 60, move |hand| {
        let table = hand.create(&spec);
        let given_up = given_up.lock().unwrap();
        let mut twice = 0;
        for rank in 0..workers {
            let pulled = hand.worker.pull(table, &keys(rank)).unwrap();
            let counts = hand.worker.wait(pulled).unwrap().values::<i64>().to_vec();
            for (count, given_up) in counts.into_iter().zip(given_up[rank as usize]) {
                let count = count as u64;
                let expected = ITERATIONS - given_up.min(ITERATIONS);
                // Whoever gave up an iteration may have done part of it before.
                assert!(count >= expected, "seed {seed}, {model}, {rank}: {count}");
                assert!(!once || count <= ITERATIONS, "seed {seed}, {model}, {rank}: {count}");
                twice += count.saturating_sub(ITERATIONS);
            }
        }
        twice
    });
    let twice = sim.join(reader);
    if once { returns.load(Ordering::Relaxed) } else { twice }
}

#[test]
fn repeated_pushes_are_applied_once() {
    let models = [
        Model::Bsp,
        Model::Asp,
        Model::Ssp { staleness: 0 },
        Model::Ssp { staleness: 3 },
        Model::BoundedDelay { delay: 1 },
        Model::SparseSsp { staleness: 1, speculation: 1 },
    ];
    let returns = AtomicU64::new(0);
    for_each_seed(60, |seed| {
        let model = models[(seed % 6) as usize];
        returns.fetch_add(counts(seed, model, 1 + seed / 6 % 4, true), Ordering::Relaxed);
    });
    let returns = returns.into_inner();
    assert!(returns > 20 || !has_all_seeds(), "{returns}");
}

/// Without that the same repeats are applied twice, so the test above can fail.
#[test]
fn without_it_repeats_count_twice() {
    let twice = AtomicU64::new(0);
    for_each_seed(20, |seed| {
        twice.fetch_add(counts(seed, Model::Asp, 3, false), Ordering::Relaxed);
    });
    assert!(twice.into_inner() > 0 || !has_all_seeds());
}

/// Runs `work` with two workers of a quiet network.
fn alone(work: impl Fn(&Network, &mut [Worker]) + Send + 'static) {
    let network = Faults::none();
    let sim = Sim::start(1, Setup { servers: SERVERS, workers: 1, network, ..Setup::default() });
    let addresses = sim.addresses.clone();
    let node = sim.network.spawn("workers", move |network| {
        let connected = (0..2).map(|rank| connect(network, 100 + rank, &addresses));
        work(network, &mut connected.collect::<Vec<Worker>>());
    });
    sim.join(node);
}

#[test]
fn a_second_push_of_an_iteration_is_a_repeat() {
    alone(|_, workers| {
        let spec = counters(Model::Asp, 2).once();
        let tables: Vec<Table> =
            workers.iter_mut().map(|it| it.admin().create_table(&spec).unwrap()).collect();
        let [one, other] = workers else { unreachable!() };
        let push = |worker: &mut Worker, keys: &[u64]| {
            let pushed = worker.push(tables[0], keys, &vec![1i64; keys.len()]).unwrap();
            worker.wait(pushed).map(drop)
        };
        let read = |worker: &mut Worker, keys: &[u64]| {
            let pulled = worker.pull(tables[0], keys).unwrap();
            worker.wait(pulled).unwrap().values::<i64>().to_vec()
        };
        // Observers have no iterations.
        push(one, &[5]).unwrap();
        push(one, &[5]).unwrap();
        assert_eq!(read(one, &[5]), [2]);
        one.clocks(tables[0]).join().unwrap();
        other.clocks(tables[1]).join().unwrap();
        push(one, &[10, 20]).unwrap();
        push(one, &[10, 20]).unwrap();
        push(one, &[15, 20]).unwrap();
        push(other, &[10, 20]).unwrap();
        push(one, &[21, 30]).unwrap();
        assert_eq!(read(one, &[10, 15, 20, 21, 30]), [2, 0, 2, 1, 1]);
        let partly = push(one, &[20, 40]).unwrap_err().to_string();
        assert!(partly.contains("some of the keys 20 to 40 in iteration 1"), "{partly}");
        let advanced = one.clocks(tables[0]).advance().unwrap();
        one.wait(advanced).unwrap();
        push(one, &[20, 40]).unwrap();
        assert_eq!(read(one, &[20, 40]), [3, 1]);
        let no_model = TableSpec::new(2, "plain", ValueType::I64, 1).once();
        let refused = one.admin().create_table(&no_model).unwrap_err().to_string();
        assert!(refused.contains("consistency model"), "{refused}");
    });
}

/// A push that could not be applied is no repeat when it comes again.
#[test]
fn a_refused_push_may_come_again() {
    alone(|_, workers| {
        let spec = TableSpec::new(1, "lines", ValueType::I64, 0).handle("assign");
        let spec = spec.consistency(Model::Asp, 1).once();
        let table = workers[0].admin().create_table(&spec).unwrap();
        workers[0].clocks(table).join().unwrap();
        let pushed = workers[0].push_varying(table, &[7], &[2], &[1i64, 2]).unwrap();
        workers[0].wait(pushed).unwrap();
        let pushed = workers[0].push_varying(table, &[7], &[1], &[9i64]).unwrap();
        workers[0].wait(pushed).unwrap();
        let pulled = workers[0].pull(table, &[7]).unwrap();
        assert_eq!(workers[0].wait(pulled).unwrap().values::<i64>(), [1, 2]);
    });
}

#[test]
fn a_table_is_as_fresh_as_its_slowest_worker() {
    alone(|_, workers| {
        let spec = counters(Model::Ssp { staleness: 9 }, 2).once();
        let table = workers[0].admin().create_table(&spec).unwrap();
        workers[1].admin().create_table(&spec).unwrap();
        workers[0].clocks(table).join().unwrap();
        assert_eq!(workers[0].clocks(table).freshness().unwrap(), 0, "one worker has not come");
        workers[1].clocks(table).join().unwrap();
        for clock in 1..=4u64 {
            for worker in workers.iter_mut() {
                assert_eq!(worker.clocks(table).freshness().unwrap(), clock - 1);
                let pushed = worker.clocks(table).push_last(&[0, u64::MAX], &[1i64, 1]).unwrap();
                worker.wait(pushed).unwrap();
            }
        }
        let left = workers[1].clocks(table).leave().unwrap();
        workers[1].wait(left).unwrap();
        let pushed = workers[0].clocks(table).push_last(&[0], &[1i64]).unwrap();
        workers[0].wait(pushed).unwrap();
        assert_eq!(workers[0].clocks(table).freshness().unwrap(), 5);
        let plain =
            workers[0].admin().create_table(&TableSpec::new(2, "p", ValueType::I64, 1)).unwrap();
        assert!(matches!(workers[0].clocks(plain).freshness(), Err(Error::Refused { .. })));
    });
}
