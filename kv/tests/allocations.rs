//! Goal: the path of a push or pull makes no heap allocation once it is warm, on the worker and on
//! the server, and requests that nobody waits for keep memory constant.
//! Method: a worker and a server thread over real sockets; each counts the allocations of its own
//! thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use crate::support::{TIMEOUT, config, endpoint, vans};
use allocation_counter::measure;
use caravan_kv::{Handles, ServerAddress, ServerThread, Table, TableSpec, ValueType, Van, Worker};
use caravan_van::{Endpoint, Identity, KeyRange, VanConfig};

/// Counters of the server threads, on request.
#[derive(Default)]
struct Count {
    stop: AtomicBool,
    counting: AtomicBool,
    allocations: AtomicU64,
}

/// Stops the server threads when dropped, even if a test fails: otherwise they would be waited for
/// forever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An endpoint with a pool cut for every frame size: which sizes occur, and when, depends on how
/// many answers the other side sends together.
fn warm(endpoint: Endpoint) -> Endpoint {
    for bits in 6..16 {
        drop(endpoint.lanes.memory().allocate(1 << bits).unwrap());
    }
    endpoint
}

/// Numbers of roles.
const SERVER: u8 = 2;
const WORKER: u8 = 3;

fn of_role(role: u8) -> VanConfig {
    VanConfig { identity: Identity { role, ..Identity::default() }, ..config(64, 256 << 20) }
}

/// Runs `body` with a worker of two server threads that count into `count`.
fn with_servers(van: Van, body: impl FnOnce(&mut Worker, &Count)) {
    let count = Count::default();
    std::thread::scope(|scope| {
        let _stop = Stop(&count.stop);
        let (say, hear) = mpsc::channel();
        for index in 0..2 {
            let (count, say) = (&count, say.clone());
            scope.spawn(move || {
                let endpoint = warm(endpoint(van, &of_role(SERVER)));
                let mut server = ServerThread::new(endpoint, index, 2, Handles::default());
                say.send((index, server.address().to_owned())).unwrap();
                while !count.stop.load(Ordering::Relaxed) {
                    let counting = count.counting.load(Ordering::SeqCst);
                    let step = measure(|| assert!(server.step().is_ok()));
                    if counting {
                        count.allocations.fetch_add(step.count_total, Ordering::SeqCst);
                    }
                    std::thread::yield_now();
                }
            });
        }
        let mut addresses: Vec<_> = (0..2).map(|_| hear.recv().unwrap()).collect();
        addresses.sort();
        let address = |(index, address)| ServerAddress { name: format!("server {index}"), address };
        let addresses: Vec<_> = addresses.into_iter().map(address).collect();
        let endpoint = warm(endpoint(van, &of_role(WORKER)));
        let mut worker = Worker::connect(endpoint, &addresses, TIMEOUT).unwrap();
        body(&mut worker, &count);
    });
}

/// The allocations of a run of `requests`, on both sides.
fn count(worker: &mut Worker, count: &Count, mut requests: impl FnMut(&mut Worker)) -> (u64, u64) {
    count.allocations.store(0, Ordering::SeqCst);
    count.counting.store(true, Ordering::SeqCst);
    let here = measure(|| requests(worker)).count_total;
    count.counting.store(false, Ordering::SeqCst);
    (here, count.allocations.load(Ordering::SeqCst))
}

#[test]
fn a_small_request_allocates_nothing() {
    for van in vans() {
        with_servers(van, |worker, counts| {
            let sparse = TableSpec::new(1, "sparse", ValueType::F32, 4);
            let dense = TableSpec::new(2, "dense", ValueType::F64, 1).dense().handle("assign");
            let dense = dense.keys(KeyRange::new(0, 1000).unwrap());
            let sparse = worker.admin().create_table(&sparse).unwrap();
            let dense = worker.admin().create_table(&dense).unwrap();
            let keys: Vec<u64> = (0..60).map(|i| i * (u64::MAX / 60)).collect();
            let (few, values) = ([3, 500, 999], vec![0.5f32; 240]);
            let round = |worker: &mut Worker, rounds: usize, in_flight: usize| {
                let mut waiting = [None; 8];
                for n in 0..rounds {
                    worker.push(sparse, &keys, &values).unwrap();
                    let pulled = match n % 3 {
                        0 => worker.pull(sparse, &keys).unwrap(),
                        1 => worker.push_pull(dense, &few, &[1.0, 2.0, n as f64]).unwrap(),
                        _ => {
                            let into = worker.memory().allocate(24).unwrap();
                            worker.pull_into(dense, &few, into).unwrap()
                        }
                    };
                    if let Some(earlier) = waiting[n % in_flight].replace(pulled) {
                        drop(worker.wait(earlier).unwrap());
                    }
                }
                for timestamp in waiting.into_iter().flatten() {
                    drop(worker.wait(timestamp).unwrap());
                }
            };
            for in_flight in [1, 8] {
                // Pools are warm once they have grown to their peak use and are cut for it, which
                // depends on the speed of the other side and takes some rounds. An allocation per
                // request would show in all of them.
                let mut counted = (0, 0);
                for _ in 0..10 {
                    counted = count(worker, counts, |worker| round(worker, 3000, in_flight));
                    if counted == (0, 0) {
                        break;
                    }
                }
                let (here, there) = counted;
                println!(
                    "{van}, {in_flight} in flight: {here} allocations by the worker, {there} by the servers"
                );
                assert_eq!((here, there), (0, 0), "{van} with {in_flight} in flight");
            }
        });
    }
}

/// A copy of each shard, by requests to one shard and to two.
#[test]
fn a_request_to_a_table_with_copies_allocates_nothing() {
    for van in vans() {
        with_servers(van, |worker, counts| {
            let keys = KeyRange::new(0, 1000).unwrap();
            let spec = TableSpec::new(1, "copied", ValueType::F64, 1).dense().keys(keys);
            let table = worker.admin().create_table(&spec.replicas(1)).unwrap();
            let both = [3, 400, 700];
            let round = |worker: &mut Worker, rounds: u64| {
                let mut waiting = [None; 8];
                for n in 0..rounds {
                    let key = [n * 7 % 1000];
                    worker.push(table, &key, &[1.0]).unwrap();
                    let made = match n % 3 {
                        0 => worker.push(table, &both, &[1.0, 2.0, n as f64]).unwrap(),
                        1 => worker.pull(table, &key).unwrap(),
                        _ => worker.push_pull(table, &both, &[1.0; 3]).unwrap(),
                    };
                    if let Some(earlier) = waiting[n as usize % 8].replace(made) {
                        drop(worker.wait(earlier).unwrap());
                    }
                }
                for timestamp in waiting.into_iter().flatten() {
                    drop(worker.wait(timestamp).unwrap());
                }
            };
            let mut counted = (0, 0);
            for _ in 0..10 {
                counted = count(worker, counts, |worker| round(worker, 3000));
                if counted == (0, 0) {
                    break;
                }
            }
            println!("{van}, a copy: {} by the worker, {} by the servers", counted.0, counted.1);
            assert_eq!(counted, (0, 0), "{van}");
        });
    }
}

/// Lent, placed or adopted values: each size takes another path.
#[test]
fn a_long_request_allocates_nothing() {
    for van in vans() {
        with_servers(van, |worker, counts| {
            for (id, width) in [(1, 1 << 10), (2, 4 << 10), (3, 16 << 10)] {
                let spec = TableSpec::new(id, "rows", ValueType::F32, width as u32);
                let spec = spec.keys(KeyRange::new(0, 2).unwrap()).dense().handle("assign");
                let table = worker.admin().create_table(&spec).unwrap();
                let memory = worker.memory();
                let values = memory.allocate(4 * width).unwrap().share();
                let mut into = Some(memory.allocate(4 * width).unwrap());
                let mut round = |worker: &mut Worker, rounds: usize| {
                    for _ in 0..rounds {
                        let pushed = worker.push_shared(table, &[1], &values).unwrap();
                        worker.wait(pushed).unwrap();
                        let pulled = worker.pull(table, &[1]).unwrap();
                        assert_eq!(worker.wait(pulled).unwrap().values::<f32>().len(), width);
                        let place = into.take().unwrap();
                        let pulled = worker.pull_into(table, &[1], place).unwrap();
                        into = worker.wait(pulled).unwrap().values;
                    }
                };
                let mut counted = (0, 0);
                for _ in 0..10 {
                    counted = count(worker, counts, |worker| round(worker, 300));
                    if counted == (0, 0) {
                        break;
                    }
                }
                let (here, there) = counted;
                let bytes = 4 * width;
                println!(
                    "{van}, {bytes} bytes: {here} allocations by the worker, {there} by the servers"
                );
                assert_eq!((here, there), (0, 0), "{van} with {bytes} bytes");
            }
        });
    }
}

/// ps-lite's tracker grows by 8 bytes per request forever.
#[test]
fn a_million_pushes_that_nobody_waits_for() {
    for van in vans() {
        // A software device is slow.
        let pushes = if van == Van::Rdma { 100_000 } else { 1_000_000 };
        with_servers(van, |worker, counts| {
            let spec = TableSpec::new(1, "sums", ValueType::I64, 1);
            let table: Table = worker.admin().create_table(&spec).unwrap();
            let push = |worker: &mut Worker, pushes: usize| {
                for _ in 0..pushes {
                    worker.push(table, &[7], &[1i64]).unwrap();
                }
            };
            push(worker, 20_000);
            let before = worker.memory().bytes_reserved();
            let (here, there) = count(worker, counts, |worker| push(worker, pushes - 20_000));
            println!("{van}: {here} allocations by the worker, {there} by the servers");
            assert_eq!((here, there), (0, 0), "{van}");
            assert_eq!(worker.memory().bytes_reserved(), before, "{van}");
            let pulled = worker.pull(table, &[7]).unwrap();
            assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [pushes as i64]);
        });
    }
}
