//! Goal: threads of a process share pulled chunks and add up increments; each model holds among
//! them without the network, and the table's model between processes.
//! Method: processes are nodes of the simulated network, whose threads are real ones; what a thread
//! reads tells which increments it has seen, and counters tell what was sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::simulated::{Draws, connect, start, weather};
use caravan_kv::consistency::Model;
use caravan_kv::{Error, Handles, Shared, Sharer, Sharing, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use caravan_van::sim::{Network, for_each_seed};

const SERVERS: usize = 2;

/// Runs `work` in processes on a network whose weather comes from the seed.
fn run(
    seed: u64,
    processes: u64,
    work: impl Fn(&Network, &mut Worker, u64) + Clone + Send + 'static,
) {
    let network = Network::new(seed, weather(seed));
    let (addresses, stop) = start(&network, SERVERS, &Handles::default(), |server| server);
    let nodes: Vec<_> = (0..processes)
        .map(|rank| {
            let addresses = addresses.clone();
            let work = work.clone();
            network.spawn(&format!("process {rank}"), move |network| {
                let mut worker = connect(network, 100 + rank as u32, &addresses);
                work(network, &mut worker, rank);
            })
        })
        .collect();
    for node in nodes {
        node.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    }
    stop.store(true, Ordering::Relaxed);
}

/// Counters at the keys 5 to 104, in chunks of 8 that begin before the table does.
fn counters() -> TableSpec {
    TableSpec::new(1, "counters", ValueType::I64, 1).keys(KeyRange::new(5, 105).unwrap())
}

fn sharing(threads: usize, model: Model) -> Sharing {
    Sharing { threads, model, chunk_keys: 8, age: 0 }
}

fn key(thread: usize) -> u64 {
    5 + 9 * thread as u64
}

fn keys(threads: usize) -> Vec<u64> {
    (0..threads).map(key).collect()
}

fn get(sharer: &mut Sharer<'_, i64>, keys: &[u64]) -> Result<Vec<i64>, Error> {
    let mut values = vec![0; keys.len()];
    sharer.get(keys, &mut values)?;
    Ok(values)
}

/// Every thread of a process counts its iterations, and sees of the others as many as the model
/// says, of itself all.
fn counts(seed: u64, model: Model, bound: u64, exact: bool) {
    const THREADS: usize = 4;
    run(seed, 1, move |_, worker, _| {
        let table = worker.admin().create_table(&counters()).unwrap();
        let shared = worker.share::<i64, _>(table, &sharing(THREADS, model), |sharer| {
            let mut draws = Draws(seed << 8 | sharer.thread() as u64);
            for round in 0..3u64 {
                for inner in 1..=10 {
                    let clock = 10 * round + inner;
                    if draws.below(4) == 0 {
                        std::thread::sleep(Duration::from_micros(draws.below(200)));
                    }
                    let seen = get(sharer, &keys(THREADS))?;
                    for (of, count) in seen.into_iter().enumerate() {
                        let others = (clock - 1).saturating_sub(bound).max(10 * round);
                        let is_own = of == sharer.thread();
                        let least = if is_own { clock - 1 } else { others };
                        let most = if is_own || exact { clock - 1 } else { 10 * (round + 1) };
                        let count = count as u64;
                        assert!((least..=most).contains(&count), "{model}, {clock}: {count}");
                    }
                    sharer.inc(&[key(sharer.thread())], &[1])?;
                    assert_eq!(get(sharer, &[key(sharer.thread())])?, [clock as i64], "its own");
                    match inner {
                        10 => sharer.sync()?,
                        _ => sharer.clock()?,
                    }
                }
            }
            Ok(sharer.iteration())
        });
        let Shared { results, chunks_pulled, syncs, .. } = shared.unwrap();
        assert!(results.iter().all(|clock| *clock == results[0]), "{results:?}");
        // The four counters are in four chunks, each pulled once in each iteration of the process.
        assert_eq!((chunks_pulled, syncs), (4 * 3, 3));
        let pulled = worker.pull(table, &keys(THREADS)).unwrap();
        assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [30; THREADS]);
    });
}

#[test]
fn bsp_among_threads_sees_all_and_no_more() {
    for_each_seed(12, |seed| counts(seed, Model::Bsp, 0, true));
}

#[test]
fn ssp_among_threads_sees_all_but_its_staleness() {
    for_each_seed(12, |seed| counts(seed, Model::Ssp { staleness: seed % 3 }, seed % 3, false));
}

#[test]
fn asp_among_threads_sees_its_own() {
    for_each_seed(6, |seed| counts(seed, Model::Asp, u64::MAX, false));
}

/// The sum of numbers whose order counts is the serial one to the bit.
#[test]
fn bsp_among_threads_is_the_serial_run() {
    const THREADS: usize = 5;
    let add = |thread: usize, clock: u64, read: f32| {
        let draw = Draws((thread as u64) << 16 | clock).below(1000) as f32;
        (draw + 0.1) / 3.0 * 100f32.powi(thread as i32) - read * 0.3
    };
    let mut serial = 0f32;
    for clock in 1..=8 {
        let read = serial;
        serial = (0..THREADS).fold(read, |sum, thread| sum + add(thread, clock, read));
    }
    for_each_seed(12, |seed| {
        run(seed, 1, move |_, worker, _| {
            let table =
                worker.admin().create_table(&TableSpec::new(1, "sum", ValueType::F32, 1)).unwrap();
            let shared = worker.share::<f32, _>(table, &sharing(THREADS, Model::Bsp), |sharer| {
                let mut read = [0f32];
                for clock in 1..=8 {
                    sharer.get(&[3], &mut read)?;
                    let thread = sharer.thread();
                    if (seed + thread as u64 + clock).is_multiple_of(3) {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    sharer.inc(&[3], &[add(thread, clock, read[0])])?;
                    sharer.clock()?;
                }
                sharer.get(&[3], &mut read)?;
                Ok(read[0])
            });
            let bits: Vec<u32> = shared.unwrap().results.into_iter().map(f32::to_bits).collect();
            assert_eq!(bits, [serial.to_bits(); THREADS], "seed {seed}");
        });
    });
}

/// However long the threads go on between two syncs, nothing more is sent.
#[test]
fn iterations_of_threads_send_nothing() {
    let sent = |iterations: u64| {
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        run(0, 1, move |_, worker, _| {
            let table = worker.admin().create_table(&counters()).unwrap();
            let ssp = sharing(4, Model::Ssp { staleness: 2 });
            let shared = worker.share::<i64, _>(table, &ssp, |sharer| {
                for _ in 0..iterations {
                    get(sharer, &keys(4))?;
                    sharer.inc(&[key(sharer.thread())], &[1])?;
                    sharer.clock()?;
                }
                Ok(())
            });
            let shared = shared.unwrap();
            assert_eq!((shared.chunks_pulled, shared.chunks_read), (4, 16 * iterations));
            counted.store(worker.info().counters().bytes_sent, Ordering::Relaxed);
        });
        bytes.load(Ordering::Relaxed)
    };
    assert_eq!(sent(10), sent(1000));
}

/// Four threads that read the same chunks pull each once in an iteration of the process, and with
/// an age once in several.
#[test]
fn no_chunk_is_pulled_twice() {
    for (age, pulled) in [(0, 14 * 6), (1, 14 * 3), (2, 14 * 2), (9, 14)] {
        run(0, 1, move |_, worker, _| {
            let table = worker.admin().create_table(&counters()).unwrap();
            let sharing = Sharing { age, ..sharing(4, Model::Asp) };
            let shared = worker.share::<i64, _>(table, &sharing, |sharer| {
                let all: Vec<u64> = (5..105).collect();
                for round in 0..6 {
                    for _ in 0..3 {
                        let seen = get(sharer, &all)?;
                        assert!(seen.iter().all(|count| (round..4 * 6).contains(count)));
                        sharer.clock()?;
                    }
                    sharer.inc(&all, &[1; 100])?;
                    sharer.sync()?;
                    // Others may have added their next one.
                    let seen = get(sharer, &[99])?[0] - 4 * (round + 1);
                    assert!((0..4).contains(&seen), "nothing is added twice: {seen}");
                }
                Ok(())
            });
            // The last read may pull its chunk again.
            let shared = shared.unwrap();
            assert!((pulled..=pulled + 1).contains(&shared.chunks_pulled), "{age}: {shared:?}");
        });
    }
}

/// Three processes of two threads each, under the table's own model: a read in an iteration of the
/// process sees what that model says of the others.
#[test]
fn the_tables_model_holds_between_processes() {
    const THREADS: usize = 2;
    const PROCESSES: u64 = 3;
    for_each_seed(18, |seed| {
        let staleness = seed / 3 % 3;
        let model = match seed % 2 {
            0 => Model::Ssp { staleness },
            _ => Model::Bsp,
        };
        let bound = if model == Model::Bsp { 0 } else { staleness };
        run(seed, PROCESSES, move |_, worker, rank| {
            let spec = counters().consistency(model, PROCESSES as u32);
            let table = worker.admin().create_table(&spec).unwrap();
            worker.clocks(table).join().unwrap();
            let all: Vec<u64> = (0..THREADS * PROCESSES as usize).map(key).collect();
            let shared = worker.share::<i64, _>(table, &sharing(THREADS, Model::Bsp), |sharer| {
                let own = rank as usize * THREADS + sharer.thread();
                for clock in 1..=6u64 {
                    let seen = get(sharer, &all)?;
                    for (of, count) in seen.into_iter().enumerate() {
                        let is_own = of / THREADS == rank as usize;
                        let bound = if is_own { 0 } else { bound };
                        let least = (clock - 1).saturating_sub(bound);
                        let is_exact = is_own || model == Model::Bsp;
                        let most = if is_exact { clock - 1 } else { 6 };
                        assert!(
                            (least..=most).contains(&(count as u64)),
                            "seed {seed}, {model}, {clock}: {count} of {of}"
                        );
                    }
                    sharer.inc(&[key(own)], &[1])?;
                    sharer.sync()?;
                }
                Ok(())
            });
            assert_eq!(shared.unwrap().syncs, 6);
            let left = worker.clocks(table).leave().unwrap();
            worker.wait(left).unwrap();
        });
    });
}

/// A thread that ends or waits for the servers holds up nobody; its increments are there.
#[test]
fn threads_may_end_at_different_times() {
    for model in [Model::Bsp, Model::Ssp { staleness: 0 }, Model::Asp] {
        run(1, 1, move |_, worker, _| {
            let table = worker.admin().create_table(&counters()).unwrap();
            let shared = worker.share::<i64, _>(table, &sharing(3, model), |sharer| {
                for _ in 0..=3 * sharer.thread() {
                    get(sharer, &keys(3))?;
                    sharer.inc(&[key(sharer.thread())], &[1])?;
                    sharer.clock()?;
                }
                if sharer.thread() > 0 {
                    sharer.sync()?;
                }
                sharer.inc(&[50], &[1])?;
                Ok(())
            });
            assert_eq!(shared.unwrap().syncs, 2, "{model}");
            let pulled = worker.pull(table, &[key(0), key(1), key(2), 50]).unwrap();
            assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [1, 4, 7, 3], "{model}");
        });
    }
}

/// The first thread that fails stops the others, wherever they wait, and names the reason.
#[test]
fn a_failed_thread_stops_the_others() {
    for panics in [false, true] {
        run(1, 1, move |_, worker, _| {
            let table = worker.admin().create_table(&counters()).unwrap();
            let stopped = Arc::new(Mutex::new(Vec::new()));
            let told = stopped.clone();
            let failed = AtomicBool::new(false);
            let shared = worker.share::<i64, ()>(table, &sharing(4, Model::Bsp), |sharer| {
                sharer.sync()?;
                if sharer.thread() == 2 {
                    failed.store(true, Ordering::Relaxed);
                    assert!(!panics, "as it was told");
                    return Err(Error::Config("as it was told".to_owned()));
                }
                // The others wait for one that is too slow, or for all.
                let ended = loop {
                    let waited = match sharer.thread() {
                        0 => sharer.sync(),
                        _ => get(sharer, &[7]).and_then(|_| sharer.clock()),
                    };
                    if waited.is_err() {
                        break waited;
                    }
                };
                told.lock().unwrap().push(ended.as_ref().unwrap_err().to_string());
                ended
            });
            let error = shared.unwrap_err().to_string();
            assert!(error.contains("as it was told"), "{error}");
            let stopped = stopped.lock().unwrap();
            let reason = if panics { "thread 2 panicked" } else { "as it was told" };
            assert!(stopped.len() == 3 && stopped.iter().all(|why| why.contains(reason)));
        });
    }
}

#[test]
fn what_does_not_suit_is_refused() {
    run(0, 1, |_, worker, _| {
        let mut refused = |spec: TableSpec, sharing: Sharing| {
            let table = worker.admin().create_table(&spec).unwrap();
            worker.share::<i64, ()>(table, &sharing, |_| Ok(())).unwrap_err().to_string()
        };
        let good = sharing(1, Model::Asp);
        let named = |id, name: &str| TableSpec::new(id, name, ValueType::I64, 1);
        let sparse = Model::SparseSsp { staleness: 1, speculation: 1 };
        for (spec, sharing, part) in [
            (named(2, "a").handle("assign"), good.clone(), "handle add"),
            (named(3, "b").consistency(sparse, 1), good.clone(), "under BSP"),
            (named(4, "c"), Sharing { threads: 0, ..good.clone() }, "1 thread"),
            (named(4, "c"), Sharing { chunk_keys: 0, ..good.clone() }, "1 key"),
            (named(4, "c"), Sharing { chunk_keys: u64::MAX, ..good.clone() }, "longer than"),
            (named(4, "c"), Sharing { model: sparse, ..good.clone() }, "SparseSSP"),
            (TableSpec::new(5, "d", ValueType::F32, 1), good.clone(), "f32"),
        ] {
            let why = refused(spec, sharing);
            assert!(why.contains(part), "{part}: {why}");
        }
        let table = worker.admin().create_table(&counters()).unwrap();
        let wrong = worker.share::<i64, _>(table, &good, |sharer| {
            let mut values = [0; 2];
            let sizes = sharer.get(&[5], &mut values).unwrap_err();
            let order = sharer.get(&[6, 5], &mut values).unwrap_err();
            let outside = sharer.inc(&[105], &[1]).unwrap_err();
            Ok([sizes, order, outside].map(|error| error.to_string()))
        });
        let [sizes, order, outside] = &wrong.unwrap().results[0];
        assert!(sizes.contains("must hold 1, not 2") && order.contains("ascending"));
        assert!(outside.contains("keys 5 to 104"), "{outside}");
    });
}
