//! Goal: a table with a consistency model and replicas keeps both promises whatever dies, stops or
//! is cut off: no acknowledged push is lost or applied twice, and no read is older than its model
//! allows. Method: the real worker and server code on the simulated van. Workers count their
//! iterations, so that a read tells what it has seen; the history of every copy is checked. A
//! failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::faults::{FAULTS, Fault};
use crate::support::oracle::Oracle;
use crate::support::simulated::{Draws, connect, endpoint_with};
use caravan_kv::consistency::Model;
use caravan_kv::node::Role;
use caravan_kv::server::ChainCounters;
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, NodeConfig, Placement,
    ServerAddress, ServerThread, Table, TableSpec, Target, ValueType, Worker, WorkerNode, history,
};
use caravan_van::KeyRange;
use caravan_van::sim::{Faults, Network, for_each_seed};
use serde_json::{Value, json};

/// Most workers of a run; each has a key of its own, and all push to the others.
const WORKERS: u64 = 4;
const KEYS: u64 = 12;

/// Iterations of a worker, at least and at most; between them it waits for faults to come.
const ITERATIONS: [u64; 2] = [12, 400];

/// What all nodes of a run share besides the network.
#[derive(Clone, Default)]
struct Run {
    oracle: Oracle,
    /// Credits of each lane.
    credits: u16,
    /// By worker, the iterations that it has made when it leaves, else 0.
    left: Arc<[AtomicU64; WORKERS as usize]>,
    /// The largest bound that the model has had.
    bound: Arc<AtomicU64>,
    histories: Arc<Mutex<Vec<Written>>>,
}

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

impl Run {
    /// Under BSP pushes keep their credits until the iteration ends, under SparseSSP pulls that are
    /// announced: there are as many as these need.
    fn of(model: Model) -> Run {
        let credits = match model {
            Model::Bsp => 8,
            Model::SparseSsp { .. } => 40,
            _ => 4,
        };
        let run = Run { credits, ..Run::default() };
        run.bound.store(bound_of(model), Ordering::Relaxed);
        run
    }

    fn connect(&self, network: &Network, node: u32, servers: &[ServerAddress]) -> Worker {
        let endpoint = endpoint_with(network, node, Role::Worker.number(), self.credits);
        self.oracle.tell(Worker::new(endpoint, servers, Duration::from_secs(60)).unwrap())
    }

    fn start(&self, network: &Network, count: usize) -> (Vec<ServerAddress>, Arc<AtomicBool>) {
        let Run { credits, ref histories, .. } = *self;
        let histories = histories.clone();
        self.oracle.start(network, count, move |network, index| {
            let endpoint = endpoint_with(network, index as u32, Role::Server.number(), credits);
            let server = ServerThread::new(endpoint, index, count, Handles::default());
            let histories = histories.clone();
            server.move_by(100).record_histories(move |_, _| {
                let written = Written::default();
                histories.lock().unwrap().push(written.clone());
                Ok(Box::new(written))
            })
        })
    }

    /// Checks the history of each copy; returns the numbers of their reads and writes.
    fn check_histories(&self, what: &str) -> [u64; 2] {
        let histories = self.histories.lock().unwrap();
        let texts: Vec<Vec<u8>> = histories.iter().map(|it| it.0.lock().unwrap().clone()).collect();
        let checked = history::check(texts.len(), |file| Ok(&texts[file][..]));
        let summary = checked.unwrap_or_else(|trouble| panic!("{what}: {trouble}"));
        [summary.reads, summary.writes]
    }
}

fn counters(model: Model, workers: u64, replicas: u32) -> TableSpec {
    let spec = TableSpec::new(1, "counters", ValueType::I64, 1);
    let spec = spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Even(3));
    spec.consistency(model, workers as u32).replicas(replicas)
}

/// The key of a worker: those of two are in different shards.
fn key(rank: u64) -> u64 {
    rank * (KEYS / WORKERS)
}

fn pull(worker: &mut Worker, table: Table) -> Vec<i64> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

/// The bound of a model's reads.
fn bound_of(model: Model) -> u64 {
    match model {
        Model::Bsp => 0,
        Model::Ssp { staleness } => staleness,
        Model::BoundedDelay { delay } => delay,
        _ => u64::MAX / 2,
    }
}

/// Counts iterations until all faults have come; returns what was pushed to each key.
fn work(
    network: &Network,
    worker: &mut Worker,
    run: &Run,
    spec: &TableSpec,
    [seed, rank, workers]: [u64; 3],
) -> Vec<i64> {
    let mut draws = Draws(seed << 8 | rank);
    let is_bsp = spec.consistency.is_some_and(|it| it.model == Model::Bsp);
    let table = worker.create_table(spec).unwrap();
    assert_eq!(worker.join(table).unwrap(), 1);
    run.oracle.begin();
    let mut pushed = vec![0; KEYS as usize];
    let mut seen = vec![0; KEYS as usize];
    let mut waiting = Vec::new();
    let mut clock = 1;
    while clock <= ITERATIONS[0] || !run.oracle.is_calm() {
        assert!(clock < ITERATIONS[1], "seed {seed}: faults do not end");
        network.sleep(Duration::from_micros(draws.below(500)));
        let now = pull(worker, table);
        let bound = run.bound.load(Ordering::Relaxed);
        for of in 0..workers {
            let count = now[key(of) as usize] as u64;
            let left = run.left[of as usize].load(Ordering::Relaxed);
            let done = if left > 0 { left } else { u64::MAX };
            let least = if of == rank { clock - 1 } else { (clock - 1).saturating_sub(bound) };
            let is_exact = of == rank || is_bsp;
            assert!(
                count >= least.min(done) && (!is_exact || count == (clock - 1).min(done)),
                "seed {seed}: in iteration {clock}, worker {rank} sees {count} of worker {of}"
            );
        }
        let grows = now.iter().zip(&seen).all(|(now, before)| now >= before);
        assert!(grows, "seed {seed}, worker {rank}: {seen:?}, then {now:?}");
        seen = now;
        for _ in 0..draws.below(3) {
            let shared = draws.below(WORKERS) * (KEYS / WORKERS) + 1 + draws.below(2);
            let value = 1 + draws.below(9) as i64;
            pushed[shared as usize] += value;
            waiting.push(worker.push(table, &[shared], &[value]).unwrap());
        }
        pushed[key(rank) as usize] += 1;
        let own = [key(rank)];
        match draws.below(if is_bsp { 2 } else { 3 }) {
            0 => waiting.push(worker.push_last(table, &own, &[1_i64]).unwrap()),
            1 => {
                waiting.push(worker.push(table, &own, &[1_i64]).unwrap());
                waiting.push(worker.advance(table).unwrap());
            }
            _ => {
                waiting.push(worker.push_pull(table, &own, &[1_i64]).unwrap());
                waiting.push(worker.advance(table).unwrap());
            }
        }
        if seed % 3 == 0 && rank == 0 && clock % 4 == 2 && spec_has_bound(spec) {
            let bound = bound_of(spec.consistency.unwrap().model) + clock % 3;
            run.bound.fetch_max(bound, Ordering::Relaxed);
            worker.set_bound(table, bound).unwrap();
        }
        while waiting.len() > draws.below(8) as usize {
            let next = draws.below(waiting.len() as u64) as usize;
            worker.wait(waiting.swap_remove(next)).unwrap();
        }
        clock += 1;
    }
    run.left[rank as usize].store(clock - 1, Ordering::Relaxed);
    waiting.push(worker.leave(table).unwrap());
    waiting.into_iter().for_each(|it| drop(worker.wait(it).unwrap()));
    pushed
}

/// The keys that a worker touches in an iteration: its own, another worker's, and some that are
/// nobody's own.
fn touched(seed: u64, [rank, workers, clock]: [u64; 3]) -> Vec<u64> {
    let mut draws = Draws((seed << 20) + (rank << 12) + clock);
    let mut keys = vec![key(rank)];
    keys.extend((draws.below(2) == 0).then(|| key(draws.below(workers))));
    keys.extend((0..draws.below(3)).map(|_| key(draws.below(WORKERS)) + 1 + draws.below(2)));
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// As [`work`], under SparseSSP: what is read is announced ahead. Each worker touches its own key
/// in every iteration, so whoever reads it too is no more than the staleness ahead.
fn work_ahead(
    network: &Network,
    worker: &mut Worker,
    run: &Run,
    spec: &TableSpec,
    [seed, rank, workers]: [u64; 3],
) -> Vec<i64> {
    let Some(Model::SparseSsp { staleness, speculation }) = spec.consistency.map(|it| it.model)
    else {
        panic!("{:?}", spec.consistency)
    };
    let mut draws = Draws(seed << 8 | rank);
    let table = worker.create_table(spec).unwrap();
    assert_eq!(worker.join(table).unwrap(), 1);
    run.oracle.begin();
    let mut pushed = vec![0; KEYS as usize];
    let (mut announced, mut waiting) = (VecDeque::new(), Vec::new());
    let announce = |worker: &mut Worker, clock: u64, ahead: u64| {
        let keys = touched(seed, [rank, workers, clock + ahead]);
        worker.pull_ahead(table, ahead, &keys).unwrap()
    };
    announced.extend((0..=speculation).map(|ahead| announce(worker, 1, ahead)));
    let mut clock = 1;
    while let Some(pulled) = announced.pop_front() {
        assert!(clock < ITERATIONS[1], "seed {seed}: faults do not end");
        network.sleep(Duration::from_micros(draws.below(500) * (1 + rank)));
        let keys = touched(seed, [rank, workers, clock]);
        let now = worker.wait(pulled).unwrap().values::<i64>().to_vec();
        for of in 0..workers {
            let Ok(at) = keys.binary_search(&key(of)) else { continue };
            let count = now[at] as u64;
            let left = run.left[of as usize].load(Ordering::Relaxed);
            let done = if left > 0 { left } else { u64::MAX };
            let bound = if of == rank { 0 } else { staleness };
            let least = (clock - 1).saturating_sub(bound).min(done);
            assert!(
                count >= least && (of != rank || count == clock - 1),
                "seed {seed}: in iteration {clock}, worker {rank} sees {count} of worker {of}"
            );
        }
        for shared in keys.iter().filter(|it| *it % (KEYS / WORKERS) > 0) {
            let value = 1 + draws.below(9) as i64;
            pushed[*shared as usize] += value;
            waiting.push(worker.push(table, &[*shared], &[value]).unwrap());
        }
        pushed[key(rank) as usize] += 1;
        let own = [key(rank)];
        if draws.below(2) == 0 {
            waiting.push(worker.push_last(table, &own, &[1_i64]).unwrap());
        } else {
            waiting.push(worker.push(table, &own, &[1_i64]).unwrap());
            waiting.push(worker.advance(table).unwrap());
        }
        clock += 1;
        if clock <= ITERATIONS[0] || !run.oracle.is_calm() {
            announced.push_back(announce(worker, clock, speculation));
        }
        while waiting.len() > draws.below(8) as usize {
            let next = draws.below(waiting.len() as u64) as usize;
            worker.wait(waiting.swap_remove(next)).unwrap();
        }
    }
    run.left[rank as usize].store(clock - 1, Ordering::Relaxed);
    waiting.push(worker.leave(table).unwrap());
    waiting.into_iter().for_each(|it| drop(worker.wait(it).unwrap()));
    pushed
}

fn spec_has_bound(spec: &TableSpec) -> bool {
    spec.consistency.is_some_and(|it| !matches!(it.model, Model::Asp | Model::Bsp))
}

/// Brings faults about.
fn act(network: &Network, run: &Run, fault: Fault, sizes: [u64; 3], draws: &mut Draws) {
    let [servers, workers, replicas] = sizes;
    let times = match fault {
        Fault::Crash | Fault::Pause => replicas,
        Fault::Again => servers - 1,
        Fault::Nothing | Fault::CutWorker | Fault::CutServers => 4,
    };
    for _ in 0..times {
        network.sleep(Duration::from_micros(draws.below(6000)));
        let server = run.oracle.living(draws.below(servers), servers);
        if fault == Fault::Again {
            run.oracle.wait_for_copies(network);
        }
        let name = format!("server {server}");
        let broken = Duration::from_millis(5 + draws.below(10));
        let detected = Duration::from_micros(500 + draws.below(8000));
        match fault {
            Fault::Nothing => continue,
            Fault::CutWorker => {
                network.cut(&format!("worker {}", draws.below(workers)), &name, broken);
                continue;
            }
            Fault::CutServers => {
                network.cut(&format!("server {}", (server + 1) % servers), &name, broken);
                continue;
            }
            Fault::Crash | Fault::Again => network.crash(&name),
            Fault::Pause => {
                network.freeze(&name, detected + Duration::from_micros(draws.below(6000)));
            }
        }
        network.sleep(detected);
        run.oracle.lose(server);
    }
    run.oracle.calm_down();
}

fn model(seed: u64) -> Model {
    match seed / 6 % 7 {
        0 => Model::Asp,
        1 => Model::Ssp { staleness: 0 },
        2 => Model::Ssp { staleness: 2 },
        3 => Model::BoundedDelay { delay: 0 },
        4 => Model::BoundedDelay { delay: 2 },
        5 => Model::SparseSsp { staleness: seed % 2, speculation: 2 },
        _ => Model::Bsp,
    }
}

/// One run; returns its fault, what its servers have counted, and the reads in their histories.
fn run(seed: u64) -> (Fault, ChainCounters, u64) {
    let fault = FAULTS[(seed % 6) as usize];
    let model = model(seed);
    let detection = Duration::from_millis(4);
    let network = Network::new(seed, Faults { detection, ..Faults::jittery() });
    let mut draws = Draws(seed);
    let (servers, workers) = (3 + draws.below(2), 2 + draws.below(WORKERS - 1));
    let replicas = 1 + draws.below(2) as u32;
    let spec = counters(model, workers, replicas);
    let all = Run::of(model);
    let (addresses, stop) = all.start(&network, servers as usize);
    let nodes: Vec<_> = (0..workers)
        .map(|rank| {
            let (addresses, all, spec) = (addresses.clone(), all.clone(), spec.clone());
            network.spawn(&format!("worker {rank}"), move |network| {
                let mut worker = all.connect(network, 100 + rank as u32, &addresses);
                let work = if matches!(model, Model::SparseSsp { .. }) { work_ahead } else { work };
                let pushed = work(network, &mut worker, &all, &spec, [seed, rank, workers]);
                all.oracle.end(network, workers);
                let table = worker.create_table(&spec).unwrap();
                (pushed, pull(&mut worker, table), worker.freshness(table).unwrap())
            })
        })
        .collect();
    let run = all.clone();
    let fate = network.spawn("fate", move |network| {
        run.oracle.wait_for_workers(network, workers);
        act(network, &run, fault, [servers, workers, u64::from(replicas)], &mut draws);
    });
    fate.join().unwrap_or_else(|stopped| panic!("seed {seed}, {fault:?}: {stopped}"));
    let joined = nodes.into_iter().map(|node| node.join());
    let joined: Vec<_> =
        joined.map(|it| it.unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"))).collect();
    let mut sums = vec![0; KEYS as usize];
    for (pushed, ..) in &joined {
        sums.iter_mut().zip(pushed).for_each(|(sum, pushed)| *sum += pushed);
    }
    for (_, found, fresh) in joined {
        assert_eq!(found, sums, "seed {seed}, {fault:?}, {model}");
        assert_eq!(fresh, u64::MAX - 1, "seed {seed}, {fault:?}, {model}: all workers have left");
    }
    stop.store(true, Ordering::Relaxed);
    network.sleep(Duration::from_millis(2));
    let [reads, writes] = all.check_histories(&format!("seed {seed}, {fault:?}, {model}"));
    assert!(reads > 0 && writes > 0);
    (fault, all.oracle.counters(), reads)
}

/// Runs these seeds, and prints what happened in them.
fn both_promises_are_kept(seeds: u64) {
    let mut totals: BTreeMap<(String, Fault), [u64; 7]> = BTreeMap::new();
    for_each_seed(seeds, |seed| {
        let (fault, counters, reads) = run(seed);
        let ChainCounters { passed_again, repeated, awaited, copied, gathered, .. } = counters;
        let total = totals.entry((model(seed).to_string(), fault)).or_default();
        let of = [1, passed_again, repeated, awaited, copied, reads, gathered];
        total.iter_mut().zip(of).for_each(|(total, it)| *total += it);
    });
    println!(
        "model, fault: runs, passed on again, repeated, waited for the model, copies, reads, gathered"
    );
    totals.iter().for_each(|((model, fault), total)| println!("{model}, {fault:?}: {total:?}"));
    if std::env::var("CARAVAN_SEED").is_ok() {
        return;
    }
    let sum = |of: usize| totals.values().map(|total| total[of]).sum::<u64>();
    assert!((1..7).all(|of| sum(of) > 0), "something was never tried");
}

#[test]
fn nothing_is_lost_and_no_read_is_too_old() {
    both_promises_are_kept(84);
}

#[test]
#[ignore = "thousands of runs: an hour's work of ci/soak"]
fn nothing_is_lost_and_no_read_is_too_old_in_any_of_many_runs() {
    both_promises_are_kept(6000);
}

/// Under BSP the pushes of an iteration, and its end, fit into the credits of one lane: the server
/// that has all the shards at last.
#[test]
fn an_iteration_under_bsp_has_as_many_pushes_as_one_lane_has_room_for() {
    let network = Network::new(1, Faults::none());
    let run = Run::of(Model::Bsp);
    let (addresses, stop) = run.start(&network, 3);
    let driver = network.spawn("driver", move |network| {
        let mut worker = run.connect(network, 100, &addresses);
        let table = worker.create_table(&counters(Model::Bsp, 1, 2)).unwrap();
        assert_eq!(worker.join(table).unwrap(), 1);
        for clock in 1..=4 {
            let pushed = |worker: &mut Worker, key| worker.push(table, &[key], &[1_i64]);
            let mut waiting = Vec::new();
            let keys = [0, KEYS / 2, KEYS - 1];
            for key in keys {
                waiting.push(pushed(&mut worker, key).unwrap());
            }
            let why = pushed(&mut worker, 1).unwrap_err().to_string();
            let says = [
                format!("iteration {clock} of table counters has 4 pushes"),
                "with 8 credits".to_owned(),
                "at most 3: push fewer".to_owned(),
                "raise CARAVAN_CREDITS".to_owned(),
            ];
            assert!(says.iter().all(|part| why.contains(part)), "{why}");
            if clock == 2 || clock == 3 {
                let server = clock - 2;
                network.crash(&format!("server {server}"));
                run.oracle.lose(server as u64);
            }
            waiting.push(worker.advance(table).unwrap());
            waiting.into_iter().for_each(|it| drop(worker.wait(it).unwrap()));
            let mut expected = vec![0; KEYS as usize];
            for key in keys {
                expected[key as usize] = clock;
            }
            assert_eq!(pull(&mut worker, table), expected);
        }
        let left = worker.leave(table).unwrap();
        assert_eq!(worker.join(table).unwrap(), 1, "it takes part anew");
        worker.wait(left).unwrap();
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    stop.store(true, Ordering::Relaxed);
}

/// Replication after aggregation: where workers push the same keys, all of an iteration cost a copy
/// as many bytes as one of them, and no bit of a sum is another one.
#[test]
fn the_pushes_of_an_iteration_go_to_copies_as_one() {
    const WIDTH: usize = 10_000;
    const LAST: u64 = 5;
    const SHARDS: u64 = 9; // three for each server
    let pushed = |rank: u64, clock: u64| -> Vec<f32> {
        let value = |at: usize| 1.0 / (1 + at as u64 + 7 * rank + 31 * clock) as f32;
        (0..KEYS as usize * WIDTH).map(value).collect()
    };
    for (workers, replicas) in [(1, 1), (4, 1), (3, 2)] {
        let network = Network::new(1, Faults::none());
        let run = Run { credits: 64, ..Run::of(Model::Bsp) };
        let (addresses, stop) = run.start(&network, 3);
        let spec = TableSpec::new(1, "sums", ValueType::F32, WIDTH as u32);
        let spec = spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Even(3));
        let spec = spec.consistency(Model::Bsp, workers as u32).replicas(replicas);
        let nodes: Vec<_> = (0..workers)
            .map(|rank| {
                let (run, addresses, spec) = (run.clone(), addresses.clone(), spec.clone());
                network.spawn(&format!("worker {rank}"), move |network| {
                    let mut worker = run.connect(network, 100 + rank as u32, &addresses);
                    let table = worker.create_table(&spec).unwrap();
                    worker.join(table).unwrap();
                    let keys: Vec<u64> = (0..KEYS).collect();
                    for clock in 1..=LAST {
                        let pulled = worker.pull(table, &keys).unwrap();
                        worker.wait(pulled).unwrap();
                        let push = worker.push(table, &keys, &pushed(rank, clock)).unwrap();
                        let end = worker.advance(table).unwrap();
                        [push, end].into_iter().for_each(|it| drop(worker.wait(it).unwrap()));
                    }
                    let pulled = worker.pull(table, &keys).unwrap();
                    let sums = worker.wait(pulled).unwrap().values::<f32>().to_vec();
                    let left = worker.leave(table).unwrap();
                    worker.wait(left).unwrap();
                    sums
                })
            })
            .collect();
        let sums = nodes.into_iter().map(|node| node.join().unwrap());
        let mut expected = vec![0.0_f32; KEYS as usize * WIDTH];
        for (clock, rank) in (1..=LAST).flat_map(|it| (0..workers).map(move |rank| (it, rank))) {
            expected.iter_mut().zip(pushed(rank, clock)).for_each(|(sum, it)| *sum += it);
        }
        for sums in sums {
            assert!(sums == expected, "{workers} workers, {replicas} replicas");
        }
        stop.store(true, Ordering::Relaxed);
        network.sleep(Duration::from_millis(2));
        let ChainCounters { gathered, bytes, .. } = run.oracle.counters();
        let copies = u64::from(replicas) * LAST;
        let of_one = KEYS * (8 + 4 * WIDTH as u64);
        println!(
            "{workers} workers, {replicas} replicas: {gathered} pushes gathered, {bytes} bytes"
        );
        assert_eq!(gathered, if workers > 1 { workers * LAST * SHARDS } else { 0 });
        assert!(bytes < copies * of_one * 102 / 100, "{bytes} bytes");
    }
}

/// What comes while others wait for their turn is not the reason to ask about all of them again.
#[test]
fn what_waits_for_its_turn_is_seldom_looked_at() {
    const PUSHES: usize = 30;
    let network = Network::new(1, Faults::none());
    let run = Run { credits: 64, ..Run::of(Model::Bsp) };
    let (addresses, stop) = run.start(&network, 2);
    let nodes = [PUSHES, 1].map(|pushes| {
        let (run, addresses) = (run.clone(), addresses.clone());
        network.spawn(&format!("worker of {pushes}"), move |network| {
            let mut worker = run.connect(network, 100 + pushes as u32, &addresses);
            let table = worker.create_table(&counters(Model::Bsp, 2, 1)).unwrap();
            worker.join(table).unwrap();
            if pushes == 1 {
                network.sleep(Duration::from_millis(100)); // the others wait for this one
            }
            let mut waiting = Vec::new();
            for _ in 0..pushes {
                waiting.push(worker.push(table, &[0], &[1_i64]).unwrap());
                worker.poll().unwrap(); // sends it by itself
                network.sleep(Duration::from_millis(1));
            }
            waiting.push(worker.advance(table).unwrap());
            assert_eq!(pull(&mut worker, table)[0], PUSHES as i64 + 1);
            waiting.push(worker.leave(table).unwrap());
            waiting.into_iter().for_each(|it| drop(worker.wait(it).unwrap()));
        })
    });
    for node in nodes {
        node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    }
    stop.store(true, Ordering::Relaxed);
    network.sleep(Duration::from_millis(2));
    let ChainCounters { awaited, looks, .. } = run.oracle.counters();
    println!("{awaited} requests waited, {looks} looks");
    assert!(awaited >= PUSHES as u64, "{awaited} requests waited");
    assert!(looks <= 5 * awaited, "{looks} looks at {awaited} requests");
}

/// Models whose state is more than clocks are refused, with what they would need.
#[test]
fn other_models_have_no_replicas() {
    let network = Network::new(1, Faults::none());
    let (addresses, stop) = Run::of(Model::Asp).start(&network, 2);
    let driver = network.spawn("driver", move |network| {
        let mut worker = connect(network, 100, &addresses);
        let mut refusal = |spec: &TableSpec| match worker.create_table(spec) {
            Err(Error::Config(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let model = Model::DataCentric { delay: Some(0), chunk_keys: 1 };
        let why = refusal(&counters(model, 1, 1));
        assert!(why.contains("has no replicas yet: it counts reads"), "{why}");
        let why = refusal(&counters(Model::Asp, 1, 1).once());
        assert!(why.contains("knows repeats by itself"), "{why}");
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    stop.store(true, Ordering::Relaxed);
}

/// Counts to 30, and checks what it reads.
struct Counts;

impl Counts {
    fn run(node: &mut WorkerNode, body: &Value) -> Result<u64, Error> {
        let model: Model = serde_json::from_value(body["model"].clone())?;
        let workers = node.workers as u64;
        let table = node.worker.create_table(&counters(model, workers, 1))?;
        node.worker.join(table)?;
        node.barrier("joined")?;
        let own = [key(node.rank as u64)];
        let mut own_reads = 0;
        for clock in 1..=30 {
            let keys: Vec<u64> = (0..workers).map(key).collect();
            let pulled = node.worker.pull(table, &keys)?;
            let counts = node.worker.wait(pulled)?.values::<i64>().to_vec();
            own_reads += u64::from(counts[node.rank] == clock - 1);
            node.worker.charge(Duration::from_millis(10))?;
            node.worker.push_last(table, &own, &[1_i64])?;
        }
        let left = node.worker.leave(table)?;
        node.worker.wait(left)?;
        Ok(own_reads)
    }
}

impl App for Counts {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        Counts::run(node, &body).map(Value::from).map_err(|error| error.to_string())
    }
}

/// A worker dies, and a server before or after it: the scheduler tells the servers that nobody has
/// to wait for that worker, whoever serves then.
#[test]
fn the_others_go_on_without_a_worker_and_a_server() {
    for_each_seed(15, |seed| {
        let network = Network::new(seed, Faults { ..Faults::jittery() });
        let driver = network.spawn("driver", move |network| {
            let fate = move |network: &Network| {
                let mut draws = Draws(seed);
                network.sleep(Duration::from_millis(20 + draws.below(100)));
                let server = format!("server {}", draws.below(3));
                let mut victims = ["worker 1", &server];
                victims.rotate_left(draws.below(2) as usize);
                for victim in victims {
                    match draws.below(2) {
                        0 => network.crash(victim),
                        _ => network.freeze(victim, Duration::from_secs(3600)),
                    }
                    network.sleep(Duration::from_millis(draws.below(100)));
                }
            };
            network.spawn("fate", fate);
            let node = NodeConfig {
                heartbeat: Duration::from_millis(50),
                losses_max: 1,
                server_losses_max: 1,
                ..NodeConfig::default()
            };
            let config = ClusterConfig { servers: 3, workers: 3, node, ..ClusterConfig::default() };
            let apps = Apps::default().with("counts", || Box::new(Counts));
            let launch = Launch::Simulated(Handles::default(), apps);
            let mut cluster = Cluster::launch(&config, launch).unwrap();
            let body = json!({ "model": model(6 + 6 * (seed % 5)) });
            let task = cluster.submit(Target::Workers, "counts", &body).unwrap();
            let read = cluster.wait(task).unwrap();
            assert_eq!(read, [json!(30), json!(30)], "seed {seed}");
            let mut client = cluster.client().unwrap();
            let model: Model = serde_json::from_value(body["model"].clone()).unwrap();
            let table = client.create_table(&counters(model, 3, 1)).unwrap();
            let found = pull(&mut client, table);
            let counts = [0, 2].map(|rank| found[key(rank) as usize]);
            assert_eq!(counts, [30, 30], "seed {seed}");
            assert!(found[key(1) as usize] <= 30, "seed {seed}: {found:?}");
            drop(client);
            cluster.shutdown().unwrap();
        });
        driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    });
}
