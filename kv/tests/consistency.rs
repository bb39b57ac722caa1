//! Goal: tables under every consistency model keep its guarantee on a network that delays, stalls
//! and cuts, also when workers come late, leave or die.
//! Method: the real worker and server code on the simulated van; what a worker reads tells which
//! writes it has seen. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/simulated.rs"]
mod cluster;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::consistency::{Consistency, Model};
use caravan_kv::{Error, Handles, ServerThread, Table, TableSpec, ValueType, Worker, history};
use caravan_van::sim::{Faults, Network, for_each_seed};
use caravan_van::wire::{Coding, Kind};
use caravan_van::{Arrival, Draft, Endpoint, KeyRange};
use cluster::{Draws, connect, start, weather};

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
        let table = worker.create_table(&counters(1, model, workers)).unwrap();
        assert_eq!(worker.join(table).unwrap(), 1);
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
                worker.push_last(table, &[key(rank)], &[1i64]).unwrap();
            } else {
                worker.push(table, &[key(rank)], &[1i64]).unwrap();
                worker.advance(table).unwrap();
            }
        }
        let left = worker.leave(table).unwrap();
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

/// What worker `rank` adds in iteration `clock` to the sum that it has read.
fn contribution(rank: u64, clock: u64, sum: f32) -> f32 {
    let draw = Draws((rank << 16 | clock).wrapping_mul(0x9e37_79b9_7f4a_7c15)).below(1000) as f32;
    (draw + 0.1) / 3.0 * 100f32.powi(rank as i32) - sum * 0.3
}

/// Five workers add numbers whose sum depends on the order: every run gives the bits of the serial
/// one, in every iteration.
fn bsp_to_the_bit(seeds: u64) {
    const WORKERS: u64 = 5;
    const ITERATIONS: u64 = 6;
    let mut sums = vec![0f32];
    for clock in 1..=ITERATIONS {
        let read = sums[clock as usize - 1];
        let add = |sum, rank| sum + contribution(rank, clock, read);
        sums.push((0..WORKERS).fold(read, add));
    }
    let order_counts = |clock: u64| {
        let read = sums[clock as usize - 1];
        let add = |sum, rank| sum + contribution(rank, clock, read);
        (0..WORKERS).rev().fold(read, add).to_bits() != sums[clock as usize].to_bits()
    };
    assert!((1..=ITERATIONS).any(order_counts), "{sums:?}");
    let sums = Arc::new(sums);
    for_each_seed(seeds, |seed| {
        let sums = sums.clone();
        run(seed, WORKERS, move |network, worker, rank, draws| {
            let spec =
                TableSpec::new(1, "sum", ValueType::F32, 1).consistency(Model::Bsp, WORKERS as u32);
            let table = worker.create_table(&spec).unwrap();
            worker.join(table).unwrap();
            for clock in 1..=ITERATIONS {
                let pulled = worker.pull(table, &[7, u64::MAX]).unwrap();
                let read = worker.wait(pulled).unwrap().values::<f32>().to_vec();
                let expected = sums[clock as usize - 1];
                assert_eq!(
                    [read[0], read[1]].map(f32::to_bits),
                    [expected.to_bits(); 2],
                    "seed {seed}"
                );
                network.sleep(Duration::from_micros(draws.below(500)));
                let add = contribution(rank, clock, read[0]);
                worker.push_last(table, &[7, u64::MAX], &[add, add]).unwrap();
            }
            let pulled = worker.pull(table, &[7]).unwrap();
            let read = worker.wait(pulled).unwrap().values::<f32>()[0];
            assert_eq!(read.to_bits(), sums[ITERATIONS as usize].to_bits(), "seed {seed}");
        });
    });
}

#[test]
fn bsp_is_the_serial_run_to_the_bit() {
    bsp_to_the_bit(60);
}

/// The value that a worker gives its chunk, of which every read value is a part: five workers, and
/// a sum that depends on the order.
fn data_centric_to_the_bit(seeds: u64) {
    const WORKERS: u64 = 5;
    const ITERATIONS: u64 = 6;
    let next = |rank, clock, read: &[f32]| {
        let mean = read.iter().sum::<f32>() / WORKERS as f32;
        contribution(rank, clock, mean)
    };
    let mut serial = vec![vec![0f32; WORKERS as usize]];
    for clock in 1..=ITERATIONS {
        let read = &serial[clock as usize - 1];
        serial.push((0..WORKERS).map(|rank| next(rank, clock, read)).collect());
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let order_counts = |read: &Vec<f32>| {
        let back: Vec<f32> = read.iter().rev().copied().collect();
        next(0, 1, &back).to_bits() != next(0, 1, read).to_bits()
    };
    assert!(serial.iter().any(order_counts), "{serial:?}");
    let serial = Arc::new(serial);
    for_each_seed(seeds, |seed| {
        let serial = serial.clone();
        run(seed, WORKERS, move |network, worker, rank, draws| {
            let range = KeyRange::new(0, WORKERS).unwrap();
            let spec = TableSpec::new(1, "chunks", ValueType::F32, 1).handle("assign").keys(range);
            let model = Model::DataCentric { delay: Some(0), chunk_keys: 1 };
            let table = worker.create_table(&spec.consistency(model, WORKERS as u32)).unwrap();
            worker.join(table).unwrap();
            let all: Vec<u64> = (0..WORKERS).collect();
            for clock in 1..=ITERATIONS + 1 {
                let pulled = worker.pull(table, &all).unwrap();
                let read = worker.wait(pulled).unwrap().values::<f32>().to_vec();
                assert_eq!(bits(&read), bits(&serial[clock as usize - 1]), "seed {seed}, {clock}");
                if clock <= ITERATIONS {
                    network.sleep(Duration::from_micros(draws.below(300)));
                    worker.push_last(table, &[rank], &[next(rank, clock, &read)]).unwrap();
                }
            }
        });
    });
}

#[test]
fn data_centric_without_delay_is_the_serial_run_to_the_bit() {
    data_centric_to_the_bit(30);
}

const CHUNK_KEYS: u64 = 4;

/// The next values of a worker's chunk: every value that was read changes them.
fn mix(rank: u64, clock: u64, read: &[i64]) -> Vec<i64> {
    let seed = read.iter().fold(rank << 32 | clock, |hash, value| {
        (hash ^ *value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    });
    (0..CHUNK_KEYS).map(|at| seed.wrapping_add(at) as i64).collect()
}

fn chunks(workers: u64, delay: Option<u64>) -> TableSpec {
    // Chunks do not end where the servers' key ranges do.
    let range = KeyRange::new(0, workers * CHUNK_KEYS).unwrap();
    TableSpec::new(1, "chunks", ValueType::I64, 1)
        .handle("assign")
        .keys(range)
        .dense()
        .consistency(Model::DataCentric { delay, chunk_keys: CHUNK_KEYS }, workers as u32)
}

fn own_keys(rank: u64) -> Vec<u64> {
    (rank * CHUNK_KEYS..(rank + 1) * CHUNK_KEYS).collect()
}

/// The end of a run of the parameter database's program.
struct Ran {
    /// Each worker's last read.
    ends: Vec<Vec<i64>>,
    histories: Histories,
}

/// Runs the program of the parameter database.
fn parameter_database(seed: u64, workers: u64, iterations: u64, delay: Option<u64>) -> Ran {
    let ends = Arc::new(Mutex::new(vec![Vec::new(); workers as usize]));
    let results = ends.clone();
    let histories = run(seed, workers, move |network, worker, rank, draws| {
        let table = worker.create_table(&chunks(workers, delay)).unwrap();
        worker.join(table).unwrap();
        let all: Vec<u64> = (0..workers * CHUNK_KEYS).collect();
        for clock in 1..=iterations {
            // Chunk by chunk or all at once.
            let read = if draws.below(2) == 0 {
                pull(worker, table, &all)
            } else {
                let each = (0..workers).map(|chunk| worker.pull(table, &own_keys(chunk)).unwrap());
                let each: Vec<_> = each.collect();
                let values =
                    each.into_iter().map(|pulled| worker.wait(pulled).unwrap().values().to_vec());
                values.collect::<Vec<Vec<i64>>>().concat()
            };
            network.sleep(Duration::from_micros(draws.below(300)));
            let next = mix(rank, clock, &read);
            let pushed = worker.push_last(table, &own_keys(rank), &next).unwrap();
            if draws.below(2) == 0 {
                worker.wait(pushed).unwrap();
            }
        }
        let last = pull(worker, table, &all);
        ends.lock().unwrap()[rank as usize] = last;
    });
    Ran { ends: Arc::try_unwrap(results).unwrap().into_inner().unwrap(), histories }
}

#[test]
fn data_centric_without_delay_is_the_serial_run() {
    const ITERATIONS: u64 = 6;
    for_each_seed(60, |seed| {
        let workers = 2 + seed % 4;
        let mut serial = vec![0i64; (workers * CHUNK_KEYS) as usize];
        for clock in 1..=ITERATIONS {
            serial = (0..workers).flat_map(|rank| mix(rank, clock, &serial)).collect();
        }
        for read in parameter_database(seed, workers, ITERATIONS, Some(0)).ends {
            assert_eq!(read, serial, "seed {seed}");
        }
    });
}

#[test]
fn data_centric_with_delay_ends() {
    for_each_seed(30, |seed| {
        let delay = [Some(1), Some(3), None][(seed / 3 % 3) as usize];
        parameter_database(seed, 2 + seed % 4, 6, delay);
    });
}

/// A bound is changed by a worker, and holds for all at once.
#[test]
fn a_bound_is_changed_while_workers_run() {
    for_each_seed(15, |seed| {
        run(seed, 2, move |network, worker, rank, _| {
            let table =
                worker.create_table(&counters(1, Model::BoundedDelay { delay: 0 }, 2)).unwrap();
            worker.join(table).unwrap();
            if rank == 1 {
                // Stays in iteration 1, and lets the other go on.
                network.sleep(Duration::from_millis(5));
                worker.set_bound(table, 3).unwrap();
                network.sleep(Duration::from_millis(5));
                let left = worker.leave(table).unwrap();
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
                worker.push_last(table, &[0], &[1i64]).unwrap();
            }
        });
    });
}

/// Two tables with two bounds have two clocks in one worker.
#[test]
fn tables_of_one_worker_have_clocks_of_their_own() {
    for_each_seed(15, |seed| {
        run(seed, 3, move |network, worker, rank, draws| {
            let tight = worker.create_table(&counters(1, Model::Bsp, 3)).unwrap();
            let loose = worker.create_table(&counters(2, Model::Ssp { staleness: 2 }, 3)).unwrap();
            let free = worker.create_table(&TableSpec::new(3, "free", ValueType::I64, 1)).unwrap();
            worker.join(tight).unwrap();
            worker.join(loose).unwrap();
            for clock in 1..=4u64 {
                for inner in 1..=3u64 {
                    let iteration = 3 * (clock - 1) + inner;
                    let seen = pull(worker, loose, &keys(3));
                    let least = (iteration - 1).saturating_sub(2) as i64;
                    assert!(seen.iter().all(|count| *count >= least), "{seen:?}");
                    network.sleep(Duration::from_micros(draws.below(200)));
                    worker.push_last(loose, &[key(rank)], &[1i64]).unwrap();
                }
                assert_eq!(pull(worker, tight, &keys(3)), [clock as i64 - 1; 3]);
                worker.push_last(tight, &[key(rank)], &[1i64]).unwrap();
                let pushed = worker.push(free, &[key(rank)], &[1i64]).unwrap();
                worker.wait(pushed).unwrap();
                assert_eq!(
                    (worker.iteration(tight).unwrap(), worker.iteration(free).unwrap()),
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
                    let table = worker.create_table(&counters(1, model, 4)).unwrap();
                    worker.join(table).unwrap();
                    joined.fetch_add(1, Ordering::Relaxed);
                    while joined.load(Ordering::Relaxed) < 4 {
                        network.sleep(Duration::from_micros(20));
                    }
                    for _ in 0..8 {
                        pull(worker, table, &keys(4));
                        network.sleep(Duration::from_micros(100 + draws.below(200)));
                        worker.push_last(table, &[key(rank)], &[1i64]).unwrap();
                    }
                    let left = worker.leave(table).unwrap();
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
        run(seed, 3, move |network, worker, rank, _| {
            let model = Model::Ssp { staleness: 0 };
            let table = worker.create_table(&counters(1, model, 2)).unwrap();
            if rank == 2 {
                assert!(matches!(worker.advance(table), Err(Error::Config(_))));
                // An observer's pulls wait for nobody.
                while pull(worker, table, &[key(0)])[0] < 3 {
                    network.sleep(Duration::from_micros(100));
                }
                let first = worker.join(table).unwrap();
                assert!(first > 1, "seed {seed}: {first}");
                for clock in first..first + 3 {
                    let seen = pull(worker, table, &keys(3));
                    let least = seen.iter().filter(|count| **count + 1 >= clock as i64).count();
                    assert!(least >= 2 || clock > first, "seed {seed}, {clock}: {seen:?}");
                    worker.push_last(table, &[key(rank)], &[1i64]).unwrap();
                }
            } else {
                worker.join(table).unwrap();
                for _ in 0..20 {
                    pull(worker, table, &keys(3));
                    network.sleep(Duration::from_micros(500));
                    worker.push_last(table, &[key(rank)], &[1i64]).unwrap();
                }
            }
            let left = worker.leave(table).unwrap();
            worker.wait(left).unwrap();
        });
    });
}

/// The keys that a worker reads and writes in an iteration.
fn plan(seed: u64, rank: u64, clock: u64) -> Vec<u64> {
    let mut draws = Draws((seed << 16 | rank << 8 | clock).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut keys: Vec<u64> = (0..4).map(|_| draws.below(60) * (u64::MAX / 60)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Workers announce what they will touch, and see of every key what others wrote to it more than
/// the staleness ago.
fn announces(seed: u64, staleness: u64, speculation: u64) -> Histories {
    let workers = 2 + seed % 4;
    let iterations = 10;
    run(seed, workers, move |network, worker, rank, draws| {
        let model = Model::SparseSsp { staleness, speculation };
        let table = worker.create_table(&counters(1, model, workers)).unwrap();
        worker.join(table).unwrap();
        let keys_of = |clock| if clock > iterations { vec![] } else { plan(seed, rank, clock) };
        let mut pulled = VecDeque::new();
        for clock in 1..=1 + speculation {
            let ahead = clock - 1;
            pulled.push_back(worker.pull_ahead(table, ahead, &keys_of(clock)).unwrap());
        }
        for clock in 1..=iterations {
            let keys = keys_of(clock);
            let seen = worker.wait(pulled.pop_front().unwrap()).unwrap();
            for (key, count) in keys.iter().zip(seen.values::<i64>()) {
                let before = |of| if of == rank { clock } else { clock.saturating_sub(staleness) };
                let wrote = |of: &u64, clock| plan(seed, *of, clock).contains(key);
                let least =
                    (0..workers).map(|of| (1..before(of)).filter(|c| wrote(&of, *c)).count());
                let least = least.sum::<usize>() as i64;
                assert!(*count >= least, "seed {seed}: worker {rank}, {clock}: {count} < {least}");
            }
            network.sleep(Duration::from_micros(draws.below(400)));
            if draws.below(3) == 0 {
                worker.push(table, &keys, &vec![1i64; keys.len()]).unwrap();
                worker.advance(table).unwrap();
            } else {
                worker.push_last(table, &keys, &vec![1i64; keys.len()]).unwrap();
            }
            let next = keys_of(clock + 1 + speculation);
            pulled.push_back(worker.pull_ahead(table, speculation, &next).unwrap());
        }
        let left = worker.leave(table).unwrap();
        worker.wait(left).unwrap();
    })
}

#[test]
fn sparse_ssp_sees_all_older_writes_of_its_keys() {
    for_each_seed(60, |seed| drop(announces(seed, seed / 3 % 3, seed / 9 % 4)));
}

/// Beside a worker that stands still in its first iteration, another gets as far as the speculation
/// allows if they share no key, and as far as the staleness if they do.
#[test]
fn speculation_lets_a_worker_pass_one_that_shares_no_key() {
    for shares in [false, true] {
        let network = Network::new(1, Faults::none());
        let (addresses, stop) = start(&network, 1, &Handles::default(), |server| server);
        let (staleness, speculation) = (1, 3);
        let nodes: Vec<_> = (0..2u64)
            .map(|rank| {
                let addresses = addresses.clone();
                network.spawn(&format!("worker {rank}"), move |network| {
                    let mut worker = connect(network, 100 + rank as u32, &addresses);
                    let model = Model::SparseSsp { staleness, speculation };
                    let table = worker.create_table(&counters(1, model, 2)).unwrap();
                    worker.join(table).unwrap();
                    let keys = [if shares { 5 } else { rank }];
                    let mut pulled = VecDeque::new();
                    for ahead in 0..=speculation {
                        pulled.push_back(worker.pull_ahead(table, ahead, &keys).unwrap());
                    }
                    let mut at_20_ms = 0;
                    let soon = network.now() + Duration::from_millis(20);
                    for clock in 1..=12 {
                        worker.wait(pulled.pop_front().unwrap()).unwrap();
                        if network.now() < soon {
                            at_20_ms = clock;
                        }
                        if (rank, clock) == (1, 2) {
                            network.sleep(Duration::from_millis(40));
                        }
                        worker.push_last(table, &keys, &[1i64]).unwrap();
                        pulled.push_back(worker.pull_ahead(table, speculation, &keys).unwrap());
                    }
                    let left = worker.leave(table).unwrap();
                    worker.wait(left).unwrap();
                    // The other one stands in iteration 2.
                    let most = 2 + staleness + if shares { 0 } else { speculation };
                    assert!(rank == 1 || at_20_ms == most, "{shares}: {at_20_ms}, not {most}");
                })
            })
            .collect();
        for node in nodes {
            node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        stop.store(true, Ordering::Relaxed);
    }
}

/// Once it has said what it will touch, a worker that has not ended any iteration holds up nobody
/// who touches other keys.
#[test]
fn disclosed_announcements_count_at_once() {
    for discloses in [false, true] {
        let network = Network::new(1, Faults::none());
        let (addresses, stop) = start(&network, SERVERS, &Handles::default(), |server| server);
        let nodes: Vec<_> = (0..2u64)
            .map(|rank| {
                let addresses = addresses.clone();
                network.spawn(&format!("worker {rank}"), move |network| {
                    let mut worker = connect(network, 100 + rank as u32, &addresses);
                    let model = Model::SparseSsp { staleness: 0, speculation: 2 };
                    let table = worker.create_table(&counters(1, model, 2)).unwrap();
                    worker.join(table).unwrap();
                    let pull = |worker: &mut Worker, ahead| {
                        worker.pull_ahead(table, ahead, &[key(rank)]).unwrap()
                    };
                    let mut pulled: VecDeque<_> =
                        (0..=2).map(|ahead| pull(&mut worker, ahead)).collect();
                    if discloses {
                        let told = worker.disclose(table).unwrap();
                        worker.wait(told).unwrap();
                    }
                    let began = network.now();
                    network.sleep(Duration::from_millis(rank * 20));
                    for clock in 1..=3 {
                        worker.wait(pulled.pop_front().unwrap()).unwrap();
                        let waited = network.now() > began + Duration::from_millis(10);
                        let has_to = clock > 1 && !discloses;
                        assert!(rank == 1 || waited == has_to, "{discloses}, {clock}");
                        worker.push_last(table, &[key(rank)], &[1i64]).unwrap();
                        pulled.push_back(pull(&mut worker, 2));
                    }
                    let left = worker.leave(table).unwrap();
                    worker.wait(left).unwrap();
                })
            })
            .collect();
        for node in nodes {
            node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        stop.store(true, Ordering::Relaxed);
    }
}

/// A sender is who its lane's hello said: one lane is one worker, however often it joins.
#[test]
fn a_lane_is_one_worker() {
    let network = Network::new(1, Faults::none());
    let (addresses, stop) = start(&network, 1, &Handles::default(), |server| server);
    let node = network.spawn("twice", move |network| {
        let mut honest = connect(network, 102, &addresses);
        let model = Model::Ssp { staleness: 0 };
        let table = honest.create_table(&counters(1, model, 2)).unwrap();
        let mut twice = cluster::endpoint(network, 100);
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
        honest.join(table).unwrap();
        (0..9).for_each(|_| poll(&mut twice, &mut answers));
        assert_eq!(answers, 4, "it waits for the second worker's first iteration");
        let advanced = honest.advance(table).unwrap();
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
/// `cargo test -p caravan-kv --test consistency -- --ignored` runs this and the next one, and takes
/// about two hours on a busy machine.
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
