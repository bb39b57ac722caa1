//! Goal: many workers of few server threads all get their share, the slowest at least half of the
//! mean, while the servers are always busy and their memory stays as configured.
//! Method: the real worker and server code on the simulated van. Serving takes simulated time, the
//! same for each request, so that there is more work than time; half of the workers push more and
//! larger requests than the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caravan_kv::{Handles, ServerAddress, ServerThread, TableSpec, ValueType, Worker};
use caravan_van::sim::{Faults, Network, for_each_seed};
use caravan_van::{Endpoint, VanConfig};

const WORKERS: usize = 32;
const SERVERS: usize = 4;

/// Service time of one request.
const SERVICE: Duration = Duration::from_micros(2);

/// How long the workers push.
const TIME: Duration = Duration::from_millis(20);

/// Memory of each node: frames for all lanes, and little more.
const MEMORY_BYTES: usize = 8 << 20;

fn endpoint(network: &Network, node: u32) -> Endpoint {
    let config = VanConfig {
        node,
        credits: 16,
        frame_bytes: 1024,
        queue_depth: 128,
        memory_bytes: MEMORY_BYTES,
        ..VanConfig::default()
    };
    Endpoint::new(Box::new(network.transport(&config)), node, 16)
}

/// A server thread that takes [`SERVICE`] for each push.
fn serve(network: &Network, index: usize, stop: &AtomicBool) -> u64 {
    let served = Arc::new(AtomicU64::new(0));
    let counter = served.clone();
    let handles = Handles::default().with_rule::<i64, _>("counted", move |_| {
        let counter = counter.clone();
        move |_key: u64, stored: &mut [i64], pushed: &[i64]| {
            counter.fetch_add(1, Ordering::Relaxed);
            stored.iter_mut().zip(pushed).for_each(|(stored, pushed)| *stored += pushed);
        }
    });
    let mut server = ServerThread::new(endpoint(network, index as u32), index, SERVERS, handles);
    let mut before = 0;
    while !stop.load(Ordering::Relaxed) {
        server.step().unwrap();
        let now = served.load(Ordering::Relaxed);
        network.sleep(SERVICE * (now - before).max(1) as u32);
        before = now;
    }
    before
}

/// Pushes until the time is over, once all are `ready`; returns how many pushes were applied.
fn push(network: &Network, rank: usize, servers: &[ServerAddress], ready: &AtomicU64) -> u64 {
    let endpoint = endpoint(network, 100 + rank as u32);
    let mut worker = Worker::connect(endpoint, servers, Duration::from_secs(60)).unwrap();
    // Half of them push longer rows.
    let width = if rank.is_multiple_of(2) { 1 } else { 60 };
    let spec = TableSpec::new(width, "rows", ValueType::I64, width).handle("counted");
    let table = worker.admin().create_table(&spec).unwrap();
    let values = vec![1i64; width as usize];
    let key =
        |at: usize| (at as u64 % SERVERS as u64) * (u64::MAX / SERVERS as u64 + 1) + rank as u64;
    ready.fetch_add(1, Ordering::Relaxed);
    while ready.load(Ordering::Relaxed) < WORKERS as u64 {
        network.sleep(Duration::from_micros(10));
    }
    let begins = network.now();
    let mut last = [None; SERVERS];
    let mut pushes = 0;
    while network.now() < begins + TIME {
        // As many as there are credits, so that the lanes are always full.
        last[pushes % SERVERS] = Some(worker.push(table, &[key(pushes)], &values).unwrap());
        pushes += 1;
    }
    for timestamp in last.into_iter().flatten() {
        worker.wait(timestamp).unwrap();
    }
    let held: i64 = (0..SERVERS)
        .map(|at| {
            let pulled = worker.pull(table, &[key(at)]).unwrap();
            worker.wait(pulled).unwrap().values::<i64>()[0]
        })
        .sum();
    assert_eq!(held, pushes as i64, "all of them, once each");
    pushes as u64
}

#[test]
fn no_worker_of_many_starves() {
    for_each_seed(3, |seed| {
        let faults = if seed % 2 == 0 { Faults::none() } else { Faults::jittery() };
        let network = Network::new(seed, faults);
        let stop = Arc::new(AtomicBool::new(false));
        let mut servers = Vec::new();
        for index in 0..SERVERS {
            let stop = stop.clone();
            let server = move |network: &Network| serve(network, index, &stop);
            servers.push(network.spawn(&format!("server {index}"), server));
            network.sleep(Duration::from_micros(1)); // keeps addresses in order
        }
        let at = |index| ServerAddress {
            name: format!("server {index}"),
            address: format!("sim:{index}"),
        };
        let addresses: Vec<_> = (0..SERVERS).map(at).collect();
        let ready = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..WORKERS)
            .map(|rank| {
                let (addresses, ready) = (addresses.clone(), ready.clone());
                network.spawn(&format!("worker {rank}"), move |network| {
                    push(network, rank, &addresses, &ready)
                })
            })
            .collect();
        let pushes: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        let served: u64 = servers.into_iter().map(|server| server.join().unwrap()).sum();
        let total: u64 = pushes.iter().sum();
        assert_eq!(served, total);
        let most = SERVERS as u64 * TIME.as_micros() as u64 / SERVICE.as_micros() as u64;
        assert!(total > most / 2, "seed {seed}: the servers were busy: {total} of {most}");
        let (slowest, mean) = (*pushes.iter().min().unwrap(), total / WORKERS as u64);
        println!("seed {seed}: slowest {slowest}, mean {mean}, fastest {:?}", pushes.iter().max());
        assert!(2 * slowest >= mean, "seed {seed}: {pushes:?}");
    });
}
