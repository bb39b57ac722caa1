//! Goal: tables under every consistency model keep its guarantee on a network that delays, stalls
//! and cuts, also when workers come late, leave or die.
//! Method: the real worker and server code on the simulated van; what a worker reads tells which
//! writes it has seen. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.

mod serial;
mod sparse;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::simulated::{self, Draws, connect, start, weather};
use caravan_kv::consistency::{Consistency, Model};
use caravan_kv::{Error, Handles, ServerThread, Table, TableSpec, ValueType, Worker, history};
use caravan_van::sim::{Faults, Network, for_each_seed};
use caravan_van::wire::{Coding, Kind};
use caravan_van::{Arrival, Draft, Endpoint};
use serial::{CHUNK_KEYS, bsp_to_the_bit, data_centric_to_the_bit, parameter_database};
use sparse::announces;

const SERVERS: usize = 3;

/// One row of a table's keys for each worker, spread over all servers.
fn key(worker: u64) -> u64 {
    worker.wrapping_mul(u64::MAX / 7)
}

fn keys(workers: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..workers).map(key).collect();
    keys.sort_unstable();
    keys
}

/// Histories of a cluster's tables, by id; the server threads write them.
#[derive(Clone, Default)]
struct Histories(Arc<Mutex<BTreeMap<u32, Vec<Written>>>>);

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Histories {
    /// Makes a server thread record its histories here.
    fn record(&self, server: ServerThread) -> ServerThread {
        let Histories(histories) = self.clone();
        server.record_histories(move |_, spec| {
            let written = Written::default();
            histories.lock().unwrap().entry(spec.id).or_default().push(written.clone());
            Ok(Box::new(written))
        })
    }

    /// The text of each server's history, by table.
    fn texts(&self) -> Vec<Vec<String>> {
        let text = |it: &Written| String::from_utf8(it.0.lock().unwrap().clone()).unwrap();
        let histories = self.0.lock().unwrap();
        histories.values().map(|written| written.iter().map(text).collect()).collect()
    }

    /// Checks all of them; returns the number of their events.
    fn check(&self, seed: u64) -> u64 {
        let check = |texts: Vec<String>| {
            let checked = history::check(texts.len(), |file| Ok(texts[file].as_bytes()));
            checked.unwrap_or_else(|trouble| {
                texts.iter().for_each(|text| println!("{text}"));
                panic!("seed {seed}: {trouble}")
            })
        };
        self.texts().into_iter().map(|texts| check(texts).events).sum()
    }
}

/// Runs `work` on every worker of a cluster whose weather comes from the seed, and checks the
/// histories of its tables.
fn run(
    seed: u64,
    workers: u64,
    work: impl Fn(&Network, &mut Worker, u64, &mut Draws) + Clone + Send + 'static,
) -> Histories {
    let network = Network::new(seed, weather(seed));
    let histories = Histories::default();
    let record = histories.clone();
    let set_up = move |server| record.record(server);
    let (addresses, stop) = start(&network, SERVERS, &Handles::default(), set_up);
    let nodes: Vec<_> = (0..workers)
        .map(|rank| {
            let addresses = addresses.clone();
            let work = work.clone();
            network.spawn(&format!("worker {rank}"), move |network| {
                let mut worker = connect(network, 100 + rank as u32, &addresses);
                work(network, &mut worker, rank, &mut Draws(seed << 8 | rank));
            })
        })
        .collect();
    cut(&network, seed, workers);
    for node in nodes {
        node.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    }
    stop.store(true, Ordering::Relaxed);
    assert!(histories.check(seed) > 0);
    histories
}

/// Cuts workers off from servers, one after the other, for too short to lose a lane.
fn cut(network: &Network, seed: u64, workers: u64) {
    let half = weather(seed).detection / 2;
    let mut draws = Draws(!seed);
    for _ in 0..draws.below(4) {
        network.sleep(Duration::from_micros(draws.below(1000)));
        let worker = format!("worker {}", draws.below(workers));
        let server = format!("server {}", draws.below(SERVERS as u64));
        let duration = half.mul_f64(draws.below(1000) as f64 / 1000.0);
        network.cut(&worker, &server, duration);
        network.sleep(duration);
    }
}

/// A table of counters: each worker adds 1 to its own in every iteration.
fn counters(id: u32, model: Model, workers: u64) -> TableSpec {
    TableSpec::new(id, "counters", ValueType::I64, 1).consistency(model, workers as u32)
}

fn pull(worker: &mut Worker, table: Table, keys: &[u64]) -> Vec<i64> {
    let pulled = worker.pull(table, keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

/// Every worker counts its iterations; a read in iteration `c` must see at least `c - 1 - bound` of
/// each, and of its own all.
fn counts(seed: u64, model: Model, bound: u64, exact: bool) -> Histories {
    let workers = 2 + seed % 4;
    let iterations = 8u64;
    run(seed, workers, move |network, worker, rank, draws| {
        let table = worker.admin().create_table(&counters(1, model, workers)).unwrap();
        assert_eq!(worker.clocks(table).join().unwrap(), 1);
        let mut ranks: Vec<u64> = (0..workers).collect();
        ranks.sort_unstable_by_key(|rank| key(*rank));
        for clock in 1..=iterations {
            network.sleep(Duration::from_micros(draws.below(400)));
            let seen = pull(worker, table, &keys(workers));
            for (of, count) in ranks.iter().zip(seen) {
                let least = if *of == rank { clock - 1 } else { (clock - 1).saturating_sub(bound) };
                let most = if exact { clock - 1 } else { iterations };
                let count = count as u64;
                assert!(
                    (least..=most).contains(&count),
                    "seed {seed}: in iteration {clock}, worker {rank} sees {count} of worker {of}"
                );
            }
            if draws.below(2) == 0 {
                worker.clocks(table).push_last(&[key(rank)], &[1i64]).unwrap();
            } else {
                worker.push(table, &[key(rank)], &[1i64]).unwrap();
                worker.clocks(table).advance().unwrap();
            }
        }
        let left = worker.clocks(table).leave().unwrap();
        worker.wait(left).unwrap();
    })
}

#[test]
fn ssp_sees_all_but_its_staleness() {
    for_each_seed(45, |seed| {
        let staleness = seed / 3 % 4;
        counts(seed, Model::Ssp { staleness }, staleness, false);
    });
}

#[test]
fn bounded_delay_sees_all_but_its_delay() {
    for_each_seed(30, |seed| {
        let delay = seed / 3 % 3;
        counts(seed, Model::BoundedDelay { delay }, delay, false);
    });
}

#[test]
fn asp_sees_its_own() {
    for_each_seed(9, |seed| drop(counts(seed, Model::Asp, u64::MAX, false)));
}

#[test]
fn bsp_sees_all_and_no_more() {
    for_each_seed(45, |seed| drop(counts(seed, Model::Bsp, 0, true)));
}

/// A bound is changed by a worker, and holds for all at once.
#[test]
fn a_bound_is_changed_while_workers_run() {
    for_each_seed(15, |seed| {
        run(seed, 2, move |network, worker, rank, _| {
            let table = worker
                .admin()
                .create_table(&counters(1, Model::BoundedDelay { delay: 0 }, 2))
                .unwrap();
            worker.clocks(table).join().unwrap();
            if rank == 1 {
                // Stays in iteration 1, and lets the other go on.
                network.sleep(Duration::from_millis(5));
                worker.clocks(table).set_bound(3).unwrap();
                network.sleep(Duration::from_millis(5));
                let left = worker.clocks(table).leave().unwrap();
                worker.wait(left).unwrap();
                return;
            }
            for clock in 1..=5 {
                assert_eq!(pull(worker, table, &[0])[0], clock - 1);
                let now = network.now();
                assert!(
                    clock == 1 || now > Duration::from_millis(5),
                    "iteration {clock} at {now:?}"
                );
                assert!(
                    clock < 5 || now > Duration::from_millis(10),
                    "iteration {clock} at {now:?}"
                );
                worker.clocks(table).push_last(&[0], &[1i64]).unwrap();
            }
        });
    });
}

/// Two tables with two bounds have two clocks in one worker.
#[test]
fn tables_of_one_worker_have_clocks_of_their_own() {
    for_each_seed(15, |seed| {
        run(seed, 3, move |network, worker, rank, draws| {
            let tight = worker.admin().create_table(&counters(1, Model::Bsp, 3)).unwrap();
            let loose =
                worker.admin().create_table(&counters(2, Model::Ssp { staleness: 2 }, 3)).unwrap();
            let free =
                worker.admin().create_table(&TableSpec::new(3, "free", ValueType::I64, 1)).unwrap();
            worker.clocks(tight).join().unwrap();
            worker.clocks(loose).join().unwrap();
            for clock in 1..=4u64 {
                for inner in 1..=3u64 {
                    let iteration = 3 * (clock - 1) + inner;
                    let seen = pull(worker, loose, &keys(3));
                    let least = (iteration - 1).saturating_sub(2) as i64;
                    assert!(seen.iter().all(|count| *count >= least), "{seen:?}");
                    network.sleep(Duration::from_micros(draws.below(200)));
                    worker.clocks(loose).push_last(&[key(rank)], &[1i64]).unwrap();
                }
                assert_eq!(pull(worker, tight, &keys(3)), [clock as i64 - 1; 3]);
                worker.clocks(tight).push_last(&[key(rank)], &[1i64]).unwrap();
                let pushed = worker.push(free, &[key(rank)], &[1i64]).unwrap();
                worker.wait(pushed).unwrap();
                assert_eq!(
                    (
                        worker.clocks(tight).iteration().unwrap(),
                        worker.clocks(free).iteration().unwrap()
                    ),
                    (clock + 1, 0)
                );
            }
        });
    });
}

/// What tables of a cluster that loses a worker keep.
const MORTAL: [Model; 7] = [
    Model::Bsp,
    Model::Ssp { staleness: 1 },
    Model::Asp,
    Model::BoundedDelay { delay: 1 },
    Model::SparseSsp { staleness: 1, speculation: 2 },
    Model::DataCentric { delay: Some(0), chunk_keys: 1 },
    Model::DataCentric { delay: Some(1), chunk_keys: 1 },
];

/// A worker dies in the middle of its iterations: the others go on without it.
fn one_dies(seeds: u64) {
    for_each_seed(seeds, |seed| {
        let model = MORTAL[(seed / 3) as usize % MORTAL.len()];
        let network = Network::new(seed, weather(seed));
        let histories = Histories::default();
        let record = histories.clone();
        let set_up = move |server| record.record(server);
        let (addresses, stop) = start(&network, SERVERS, &Handles::default(), set_up);
        let joined = Arc::new(AtomicU64::new(0));
        let nodes: Vec<_> = (0..4u64)
            .map(|rank| {
                let addresses = addresses.clone();
                let joined = joined.clone();
                network.spawn(&format!("worker {rank}"), move |network| {
                    let mut draws = Draws(seed << 8 | rank);
                    let mut worker = connect(network, 100 + rank as u32, &addresses);
                    let worker = &mut worker;
                    let table = worker.admin().create_table(&counters(1, model, 4)).unwrap();
                    worker.clocks(table).join().unwrap();
                    joined.fetch_add(1, Ordering::Relaxed);
                    while joined.load(Ordering::Relaxed) < 4 {
                        network.sleep(Duration::from_micros(20));
                    }
                    for _ in 0..8 {
                        pull(worker, table, &keys(4));
                        network.sleep(Duration::from_micros(100 + draws.below(200)));
                        worker.clocks(table).push_last(&[key(rank)], &[1i64]).unwrap();
                    }
                    let left = worker.clocks(table).leave().unwrap();
                    worker.wait(left).unwrap();
                })
            })
            .collect();
        while joined.load(Ordering::Relaxed) < 4 {
            network.sleep(Duration::from_micros(20));
        }
        network.sleep(Duration::from_micros(Draws(seed).below(800)));
        network.crash("worker 3");
        for (rank, node) in nodes.into_iter().enumerate() {
            let ended = node.join();
            assert!(rank == 3 || ended.is_ok(), "seed {seed}, {model:?}: {ended:?}");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(histories.check(seed) > 0);
    });
}

#[test]
fn the_dead_block_nobody() {
    one_dies(42);
}

/// A late worker begins where the slowest is, and one that has not joined only observes.
#[test]
fn a_late_worker_begins_where_the_slowest_is() {
    for_each_seed(15, |seed| {
        let is_joined = Arc::new(AtomicBool::new(false));
        run(seed, 3, move |network, worker, rank, _| {
            let model = Model::Ssp { staleness: 0 };
            let table = worker.admin().create_table(&counters(1, model, 2)).unwrap();
            if rank == 2 {
                assert!(matches!(worker.clocks(table).advance(), Err(Error::Config(_))));
                // An observer's pulls wait for nobody.
                while pull(worker, table, &[key(0)])[0] < 3 {
                    network.sleep(Duration::from_micros(100));
                }
                let first = worker.clocks(table).join().unwrap();
                is_joined.store(true, Ordering::Relaxed);
                assert!(first > 1, "seed {seed}: {first}");
                for clock in first..first + 3 {
                    let seen = pull(worker, table, &keys(3));
                    let least = seen.iter().filter(|count| **count + 1 >= clock as i64).count();
                    assert!(least >= 2 || clock > first, "seed {seed}, {clock}: {seen:?}");
                    worker.clocks(table).push_last(&[key(rank)], &[1i64]).unwrap();
                }
            } else {
                worker.clocks(table).join().unwrap();
                for _ in 0..20 {
                    pull(worker, table, &keys(3));
                    network.sleep(Duration::from_micros(500));
                    worker.clocks(table).push_last(&[key(rank)], &[1i64]).unwrap();
                }
                // Where nobody takes part any more, a worker begins with iteration 1.
                while !is_joined.load(Ordering::Relaxed) {
                    network.sleep(Duration::from_micros(500));
                }
            }
            let left = worker.clocks(table).leave().unwrap();
            worker.wait(left).unwrap();
        });
    });
}

/// A sender is who its lane's hello said: one lane is one worker, however often it joins.
#[test]
fn a_lane_is_one_worker() {
    let network = Network::new(1, Faults::none());
    let (addresses, stop) = start(&network, 1, &Handles::default(), |server| server);
    let node = network.spawn("twice", move |network| {
        let mut honest = connect(network, 102, &addresses);
        let model = Model::Ssp { staleness: 0 };
        let table = honest.admin().create_table(&counters(1, model, 2)).unwrap();
        let mut twice = simulated::endpoint(network, 100);
        let peer = twice.connect(&addresses[0].address).unwrap();
        let mut answers = 0;
        let poll = |twice: &mut Endpoint, answers: &mut usize| {
            twice.wait(Duration::from_millis(1)).unwrap();
            twice.poll().unwrap();
            while let Some(arrival) = twice.take() {
                if let Arrival::Message { .. } = arrival {
                    *answers += 1;
                    twice.pop();
                }
            }
        };
        poll(&mut twice, &mut answers);
        // Joins twice, and ends the first iteration twice.
        (0..9).for_each(|_| poll(&mut twice, &mut answers));
        for (op, clock) in [(10, 1), (10, 1), (11, 2), (11, 2)] {
            let request = Draft { op, table: 1, timestamp: 1, clock, ..Draft::new(Kind::Request) };
            twice.lanes.post(peer, request, &mut Coding::plain()).unwrap();
            (0..9).for_each(|_| poll(&mut twice, &mut answers));
        }
        assert_eq!(answers, 4);
        let keys = &[0];
        let pull =
            Draft { op: 2, table: 1, timestamp: 2, clock: 2, keys, ..Draft::new(Kind::Request) };
        twice.lanes.post(peer, pull, &mut Coding::plain()).unwrap();
        (0..9).for_each(|_| poll(&mut twice, &mut answers));
        assert_eq!(answers, 4, "it waits for the second worker");
        honest.clocks(table).join().unwrap();
        (0..9).for_each(|_| poll(&mut twice, &mut answers));
        assert_eq!(answers, 4, "it waits for the second worker's first iteration");
        let advanced = honest.clocks(table).advance().unwrap();
        honest.wait(advanced).unwrap();
        (0..9).for_each(|_| poll(&mut twice, &mut answers));
        assert_eq!(answers, 5);
    });
    node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    stop.store(true, Ordering::Relaxed);
}

/// How many of these histories the checker refuses, if it takes their table for one under `model`.
fn refusals(histories: &[Histories], model: Model) -> usize {
    let refuses = |histories: &Histories| {
        histories.texts().iter().any(|texts| {
            let claim = |text: &String| {
                let (head, events) = text.split_once('\n').unwrap();
                let json = head.strip_prefix("caravan-history 1 ").unwrap();
                let recorded: Consistency = serde_json::from_str(json).unwrap();
                let claimed = Consistency { model, ..recorded };
                let json = serde_json::to_string(&claimed).unwrap();
                format!("caravan-history 1 {json}\n{events}")
            };
            let texts: Vec<String> = texts.iter().map(claim).collect();
            match history::check(texts.len(), |file| Ok(texts[file].as_bytes())) {
                Ok(_) => false,
                Err(history::Trouble::Violated(_)) => true,
                Err(other) => panic!("{other}"),
            }
        })
    };
    histories.iter().filter(|it| refuses(it)).count()
}

/// The checker sees that a cluster has kept less than the model that its histories claim, and
/// accepts a weaker one.
#[test]
fn histories_of_a_weaker_model_are_refused() {
    const SEEDS: u64 = 6;
    let free: Vec<_> = (0..SEEDS).map(|seed| counts(seed, Model::Asp, u64::MAX, false)).collect();
    let wider: Vec<_> =
        (0..SEEDS).map(|seed| counts(seed, Model::Ssp { staleness: 3 }, 3, false)).collect();
    for claimed in [Model::Bsp, Model::Ssp { staleness: 0 }, Model::BoundedDelay { delay: 0 }] {
        assert!(refusals(&free, claimed) > 0, "ASP as {claimed}");
        assert!(refusals(&wider, claimed) > 0, "SSP(3) as {claimed}");
    }
    assert_eq!(refusals(&wider, Model::Ssp { staleness: 4 }), 0);
    assert_eq!(refusals(&wider, Model::Asp), 0);
    let sparse: Vec<_> = (0..SEEDS).map(|seed| announces(seed, 1, 3)).collect();
    let claim = |staleness, speculation| Model::SparseSsp { staleness, speculation };
    assert!(refusals(&sparse, claim(0, 0)) > 0);
    assert!(refusals(&sparse, claim(0, 4)) > 0, "a conflict");
    assert_eq!(refusals(&sparse, claim(2, 3)), 0);
    let late: Vec<_> =
        (0..SEEDS).map(|seed| parameter_database(seed, 4, 6, Some(2)).histories).collect();
    let claim = |delay| Model::DataCentric { delay: Some(delay), chunk_keys: CHUNK_KEYS };
    assert!(refusals(&late, claim(0)) > 0);
    assert_eq!(refusals(&late, claim(3)), 0);
}

/// Runs one schedule, drawn from a seed.
type Schedule = fn(u64);

/// How many schedules of each model the long test runs.
const MANY: u64 = 10_000;

/// All models under very many schedules, on every kind of network, with cuts:
/// `cargo test -p caravan-kv --test kv consistency:: -- --ignored` runs this and the next one, and
/// takes about two hours on a busy machine.
#[test]
#[ignore = "an hour"]
fn many_schedules_of_each_model() {
    let models: [(&str, Schedule); 8] = [
        ("BSP", |seed| drop(counts(seed, Model::Bsp, 0, true))),
        ("SSP", |seed| {
            let staleness = seed / 3 % 4;
            drop(counts(seed, Model::Ssp { staleness }, staleness, false));
        }),
        ("ASP", |seed| drop(counts(seed, Model::Asp, u64::MAX, false))),
        ("bounded delay", |seed| {
            let delay = seed / 3 % 3;
            drop(counts(seed, Model::BoundedDelay { delay }, delay, false));
        }),
        ("SparseSSP", |seed| drop(announces(seed, seed / 3 % 3, seed / 9 % 4))),
        ("data-centric, no delay", |seed| {
            parameter_database(seed, 2 + seed % 4, 6, Some(0));
        }),
        ("data-centric, delay", |seed| {
            parameter_database(seed, 2 + seed % 4, 6, Some(1 + seed / 3 % 3));
        }),
        ("data-centric, no bound", |seed| {
            parameter_database(seed, 2 + seed % 4, 6, None);
        }),
    ];
    for (name, schedule) in models {
        for_each_seed(MANY, schedule);
        println!("{name}: {MANY} schedules");
    }
    bsp_to_the_bit(MANY / 10);
    data_centric_to_the_bit(MANY / 10);
    println!("to the bit: {} schedules of BSP and as many data-centric ones", MANY / 10);
}

/// As many schedules of each model in which a worker dies.
#[test]
#[ignore = "an hour"]
fn many_schedules_of_each_model_with_a_death() {
    one_dies(MANY * MORTAL.len() as u64);
    println!("a worker dies: {MANY} schedules of each of {} models", MORTAL.len());
}
