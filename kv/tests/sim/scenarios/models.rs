//! A table with a consistency model and replicas keeps both promises whatever dies, stops or is cut
//! off: no acknowledged push is lost or applied twice, and no read is older than its model allows.

use std::collections::BTreeMap;
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::server::{ChainCounters, Copies};
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, NodeConfig, Placement, TableSpec,
    Target, ValueType, Worker, WorkerNode,
};
use caravan_van::KeyRange;
use caravan_van::sim::{Faults, Network, Node, for_each_seed};
use serde_json::{Value, json};

use crate::sim::faults::Fault;
use crate::sim::scenarios::rechained::shift;
use crate::sim::workload::chunks;
use crate::sim::workload::counts::{Counts, KEYS, WORKERS, counters, key};
use crate::sim::{Hand, Setup, Sim, has_all_seeds};
use crate::support::simulated::Draws;

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

/// Moves shards of a table about meanwhile, with every third seed.
fn moves(sim: &Sim, seed: u64, spec: TableSpec) -> Option<Node<u64>> {
    let servers = sim.setup.servers;
    seed.is_multiple_of(3).then(|| {
        sim.spawn("mover", 60, move |hand| {
            let table = hand.create(&spec);
            shift(hand, &[table], servers)
        })
    })
}

/// One run; returns its fault, what its servers have counted, and the reads in their histories.
fn run(seed: u64) -> (Fault, ChainCounters, u64) {
    let (fault, model) = (Fault::of(seed), model(seed));
    let mut draws = Draws(seed);
    let (servers, workers) = (3 + draws.below(2), 2 + draws.below(WORKERS - 1));
    let replicas = 1 + draws.below(2) as u32;
    let spec = counters(model, workers, replicas);
    let counts = Counts::default();
    let sim = counts.start(seed, model, Setup { servers, workers, ..Setup::default() });
    let of = counts.clone();
    let moved = spec.clone();
    let nodes = sim.workers(move |hand| of.work(hand, &spec));
    let mover = moves(&sim, seed, moved);
    let fate = sim.fate(fault, replicas, 6000);
    sim.join(fate);
    mover.map(|mover| sim.join(mover));
    let oracle = sim.oracle.clone();
    let what = format!("seed {seed}, {fault:?}, {model}");
    let [reads, writes] = counts.check(sim, nodes, &what);
    assert!(reads > 0 && writes > 0);
    (fault, oracle.counters().0, reads)
}

#[test]
fn nothing_is_lost_and_no_read_is_too_old() {
    let mut totals: BTreeMap<(String, Fault), [u64; 7]> = BTreeMap::new();
    for_each_seed(84, |seed| {
        let (fault, counters, reads) = run(seed);
        let ChainCounters { passed_again, repeated, awaited, copied, gathered, .. } = counters;
        let total = totals.entry((model(seed).to_string(), fault)).or_default();
        let of = [1, passed_again, repeated, awaited, copied, reads, gathered];
        total.iter_mut().zip(of).for_each(|(total, it)| *total += it);
    });
    println!("model, fault: runs, passed again, repeated, waited for it, copies, reads, gathered");
    totals.iter().for_each(|((model, fault), total)| println!("{model}, {fault:?}: {total:?}"));
    let sum = |of: usize| totals.values().map(|total| total[of]).sum::<u64>();
    let has_met = (1..7).all(|of| sum(of) > 0);
    assert!(has_met || !has_all_seeds(), "something was never tried");
}

/// One run under data-centric constraints; returns what its servers have counted.
fn run_on_chunks(seed: u64) -> (Fault, ChainCounters) {
    let (fault, delay) = (Fault::of(seed), seed / 6 % 3);
    let mut draws = Draws(seed);
    let (servers, workers) = (3 + draws.below(2), 2 + draws.below(WORKERS - 1));
    let replicas = 1 + draws.below(2) as u32;
    let spec = chunks::table(delay, workers, replicas);
    let counts = Counts::default();
    let model = spec.consistency.unwrap().model;
    let sim = counts.start(seed, model, Setup { servers, workers, ..Setup::default() });
    let of = counts.clone();
    let moved = spec.clone();
    let nodes = sim.workers(move |hand| of.work_on_chunks(hand, &spec));
    let mover = moves(&sim, seed, moved);
    let fate = sim.fate(fault, replicas, 6000);
    sim.join(fate);
    mover.map(|mover| sim.join(mover));
    let oracle = sim.oracle.clone();
    let [reads, writes] = counts.check(sim, nodes, &format!("seed {seed}, {fault:?}, {model}"));
    assert!(reads > 0 && writes > 0);
    (fault, oracle.counters().0)
}

/// Reads count as well: a chunk is written when all have read it, and whoever lost the answer to
/// its read sees what that had.
#[test]
fn chunks_are_as_in_a_serial_run_whatever_dies() {
    let mut totals: BTreeMap<Fault, [u64; 5]> = BTreeMap::new();
    for_each_seed(36, |seed| {
        let (fault, counters) = run_on_chunks(seed);
        let ChainCounters { passed_again, repeated, awaited, copied, .. } = counters;
        let total = totals.entry(fault).or_default();
        let of = [1, passed_again, repeated, awaited, copied];
        total.iter_mut().zip(of).for_each(|(total, it)| *total += it);
    });
    println!("fault: runs, passed again, repeated, waited for it, copies");
    totals.iter().for_each(|(fault, total)| println!("{fault:?}: {total:?}"));
    let sum = |of: usize| totals.values().map(|total| total[of]).sum::<u64>();
    assert!((1..5).all(|of| sum(of) > 0) || !has_all_seeds(), "something was never tried");
}

/// The answer to a read is lost, and its chunk is written, before a new copy is made or while it
/// comes; then the thread dies that served it. Returns what the reader sees in this iteration and
/// the next.
fn lose_the_answer_to_a_read(seed: u64) -> [i64; 2] {
    const CHUNKS: u64 = 150; // what was overwritten takes longer than the rows
    let model = Model::DataCentric { delay: Some(0), chunk_keys: 1 };
    let spec = TableSpec::new(1, "chunks", ValueType::I64, 1).consistency(model, 2).replicas(1);
    let spec = spec.keys(KeyRange::new(0, CHUNKS).unwrap()).placement(Placement::Cut(vec![(0, 0)]));
    let sim = Counts::default().start(seed, model, Setup { workers: 2, ..Setup::default() });
    let of_writer = spec.clone();
    let writer = sim.spawn("worker 0", 0, move |hand| {
        let (network, oracle) = (hand.network, hand.oracle.clone());
        let table = hand.create(&of_writer);
        hand.worker.clocks(table).join().unwrap();
        let all: Vec<u64> = (0..CHUNKS).collect();
        let write = |hand: &mut Hand<'_>, keys: &[u64]| {
            hand.pull::<i64>(table, CHUNKS);
            let pushed = hand.worker.push(table, keys, &vec![1_i64; keys.len()]).unwrap();
            hand.wait(pushed);
        };
        let end = |hand: &mut Hand<'_>| {
            let ended = hand.worker.clocks(table).advance().unwrap();
            hand.wait(ended);
        };
        write(hand, &all);
        end(hand);
        network.sleep(Duration::from_millis(10));
        network.cut_one_way("server 0", "worker 1", Duration::from_secs(1));
        network.sleep(Duration::from_millis(10)); // the other one reads
        if seed.is_multiple_of(8) {
            write(hand, &[0]);
        }
        network.crash("server 1");
        oracle.lose(1);
        hand.pull::<i64>(table, 1); // tells of the loss
        network.sleep(Duration::from_micros(hand.draws.below(20_000)));
        if !seed.is_multiple_of(8) {
            write(hand, &[0]);
        }
        let is_whole = |it: Copies| it.lost == 1 && it.missing + it.coming == 0;
        while ![0, 2].iter().all(|server| is_whole(oracle.copies(*server))) {
            hand.pull::<i64>(table, 1);
            network.sleep(Duration::from_micros(500));
        }
        network.crash("server 0");
        oracle.lose(0);
        end(hand);
    });
    let reader = sim.spawn("worker 1", 1, move |hand| {
        let table = hand.create(&spec);
        hand.worker.clocks(table).join().unwrap();
        let mut seen = [0; 3];
        for (clock, seen) in seen.iter_mut().enumerate() {
            hand.network.sleep(Duration::from_millis([0, 15, 0][clock]));
            let pulled = hand.worker.pull(table, &[0]).unwrap();
            *seen = hand.worker.wait(pulled).unwrap().values::<i64>()[0];
            let rest: Vec<u64> = (1..CHUNKS).collect();
            let pulled = hand.worker.pull(table, &rest).unwrap();
            hand.worker.wait(pulled).unwrap();
            let ended = hand.worker.clocks(table).advance().unwrap();
            hand.wait(ended);
        }
        assert_eq!(seen[0], 0);
        [seen[1], seen[2]]
    });
    sim.join(writer);
    sim.join(reader)
}

#[test]
fn a_read_whose_answer_was_lost_sees_what_that_had() {
    for_each_seed(40, |seed| assert_eq!(lose_the_answer_to_a_read(seed), [1, 2], "seed {seed}"));
}

/// An iteration is finished when its reads are executed: a worker that does not wait for them sees
/// in each what was written in the iteration before.
#[test]
fn a_clock_waits_for_the_reads_before_it() {
    const LAST: u64 = 5;
    for replicas in [0, 1] {
        let spec = chunks::table(0, 2, replicas);
        let sim = quiet(spec.consistency.unwrap().model, 2, 2, 64);
        let nodes = sim.workers(move |hand| {
            let table = hand.create(&spec);
            hand.worker.clocks(table).join().unwrap();
            // The reader says all that it has to say before anything is written.
            hand.network.sleep(Duration::from_millis(5 + 20 * (1 - hand.rank)));
            let (mut pulls, mut others) = (Vec::new(), Vec::new());
            for _ in 1..=LAST {
                pulls.push(hand.worker.pull(table, &[0]).unwrap());
                if hand.rank == 0 {
                    others.push(hand.worker.push(table, &[0], &[1_i64]).unwrap());
                }
                others.push(hand.worker.clocks(table).advance().unwrap());
            }
            others.into_iter().for_each(|it| hand.wait(it));
            let seen = pulls.into_iter().map(|it| hand.worker.wait(it).unwrap().values::<i64>()[0]);
            seen.collect::<Vec<_>>()
        });
        let each: Vec<i64> = (0..LAST as i64).collect();
        assert_eq!(sim.join_all(nodes), [each.clone(), each], "{replicas} replicas");
    }
}

/// A quiet cluster whose workers count under a model, with so many credits on each lane.
fn quiet(model: Model, servers: u64, workers: u64, credits: u16) -> Sim {
    let network = Faults::none();
    let setup = Setup { servers, workers, credits, network, ..Setup::default() };
    Counts::default().start(1, model, setup)
}

fn pull(worker: &mut Worker, table: caravan_kv::Table) -> Vec<i64> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

/// Under BSP the pushes of an iteration, and its end, fit into the credits of one lane: the server
/// that has all the shards at last.
#[test]
fn an_iteration_under_bsp_has_as_many_pushes_as_one_lane_has_room_for() {
    let sim = quiet(Model::Bsp, 3, 1, 8);
    let worker = sim.spawn("worker 0", 0, move |hand| {
        let table = hand.create(&counters(Model::Bsp, 1, 2));
        assert_eq!(hand.worker.clocks(table).join().unwrap(), 1);
        for clock in 1..=4 {
            let pushed = |worker: &mut Worker, key| worker.push(table, &[key], &[1_i64]);
            let mut waiting = Vec::new();
            let keys = [0, KEYS / 2, KEYS - 1];
            for key in keys {
                waiting.push(pushed(&mut hand.worker, key).unwrap());
            }
            let why = pushed(&mut hand.worker, 1).unwrap_err().to_string();
            let says = [
                format!("iteration {clock} of table counters has 4 pushes"),
                "with 8 credits".to_owned(),
                "at most 3: push fewer".to_owned(),
                "raise CARAVAN_CREDITS".to_owned(),
            ];
            assert!(says.iter().all(|part| why.contains(part)), "{why}");
            if clock == 2 || clock == 3 {
                let server = clock - 2;
                hand.network.crash(&format!("server {server}"));
                hand.oracle.lose(server as u64);
            }
            waiting.push(hand.worker.clocks(table).advance().unwrap());
            waiting.into_iter().for_each(|it| hand.wait(it));
            let mut expected = vec![0; KEYS as usize];
            for key in keys {
                expected[key as usize] = clock;
            }
            assert_eq!(hand.pull::<i64>(table, KEYS), expected);
        }
        let left = hand.worker.clocks(table).leave().unwrap();
        assert_eq!(hand.worker.clocks(table).join().unwrap(), 1, "it takes part anew");
        hand.wait(left);
    });
    sim.join(worker);
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
        let sim = quiet(Model::Bsp, 3, workers, 64);
        let spec = TableSpec::new(1, "sums", ValueType::F32, WIDTH as u32);
        let spec = spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Even(3));
        let spec = spec.consistency(Model::Bsp, workers as u32).replicas(replicas);
        let nodes = sim.workers(move |hand| {
            let table = hand.create(&spec);
            hand.worker.clocks(table).join().unwrap();
            let keys: Vec<u64> = (0..KEYS).collect();
            for clock in 1..=LAST {
                hand.pull::<f32>(table, KEYS);
                let values = pushed(hand.rank, clock);
                let push = hand.worker.push(table, &keys, &values).unwrap();
                let end = hand.worker.clocks(table).advance().unwrap();
                [push, end].into_iter().for_each(|it| hand.wait(it));
            }
            let sums = hand.pull::<f32>(table, KEYS);
            let left = hand.worker.clocks(table).leave().unwrap();
            hand.wait(left);
            sums
        });
        let sums = sim.join_all(nodes);
        let mut expected = vec![0.0_f32; KEYS as usize * WIDTH];
        for (clock, rank) in (1..=LAST).flat_map(|it| (0..workers).map(move |rank| (it, rank))) {
            expected.iter_mut().zip(pushed(rank, clock)).for_each(|(sum, it)| *sum += it);
        }
        for sums in sums {
            assert!(sums == expected, "{workers} workers, {replicas} replicas");
        }
        let ChainCounters { gathered, bytes, .. } = sim.stop().0;
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
    const PUSHES: [usize; 2] = [30, 1];
    let sim = quiet(Model::Bsp, 2, 2, 64);
    let nodes = sim.workers(|hand| {
        let table = hand.create(&counters(Model::Bsp, 2, 1));
        hand.worker.clocks(table).join().unwrap();
        if hand.rank == 1 {
            hand.network.sleep(Duration::from_millis(100)); // the others wait for this one
        }
        let mut waiting = Vec::new();
        for _ in 0..PUSHES[hand.rank as usize] {
            waiting.push(hand.worker.push(table, &[0], &[1_i64]).unwrap());
            hand.worker.poll().unwrap(); // sends it by itself
            hand.network.sleep(Duration::from_millis(1));
        }
        waiting.push(hand.worker.clocks(table).advance().unwrap());
        let all: usize = PUSHES.iter().sum();
        assert_eq!(hand.pull::<i64>(table, KEYS)[0], all as i64);
        waiting.push(hand.worker.clocks(table).leave().unwrap());
        waiting.into_iter().for_each(|it| hand.wait(it));
    });
    sim.join_all(nodes);
    let ChainCounters { awaited, looks, .. } = sim.stop().0;
    println!("{awaited} requests waited, {looks} looks");
    assert!(awaited >= PUSHES[0] as u64, "{awaited} requests waited");
    assert!(looks <= 5 * awaited, "{looks} looks at {awaited} requests");
}

/// Copies know repeats without it.
#[test]
fn a_table_with_replicas_is_not_once() {
    let sim = quiet(Model::Asp, 2, 1, 4);
    let refused = sim.spawn("worker 0", 0, |hand: &mut Hand<'_>| {
        match hand.worker.admin().create_table(&counters(Model::Asp, 1, 1).once()) {
            Err(Error::Config(why)) => assert!(why.contains("knows repeats by itself"), "{why}"),
            other => panic!("{other:?}"),
        }
    });
    sim.join(refused);
}

/// Counts to 30, and checks what it reads.
struct CountsTo30;

impl CountsTo30 {
    fn run(node: &mut WorkerNode, body: &Value) -> Result<u64, Error> {
        let model: Model = serde_json::from_value(body["model"].clone())?;
        let workers = node.workers as u64;
        let table = node.worker.admin().create_table(&counters(model, workers, 1))?;
        node.worker.clocks(table).join()?;
        node.barrier("joined")?;
        let own = [key(node.rank as u64)];
        let mut own_reads = 0;
        for clock in 1..=30 {
            let keys: Vec<u64> = (0..workers).map(key).collect();
            let pulled = node.worker.pull(table, &keys)?;
            let counts = node.worker.wait(pulled)?.values::<i64>().to_vec();
            own_reads += u64::from(counts[node.rank] == clock - 1);
            node.worker.charge(Duration::from_millis(10))?;
            node.worker.clocks(table).push_last(&own, &[1_i64])?;
        }
        let left = node.worker.clocks(table).leave()?;
        node.worker.wait(left)?;
        Ok(own_reads)
    }
}

impl App for CountsTo30 {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        CountsTo30::run(node, &body).map(Value::from).map_err(|error| error.to_string())
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
            let apps = Apps::default().with("counts", || Box::new(CountsTo30));
            let launch = Launch::Simulated(Handles::default(), apps);
            let mut cluster = Cluster::launch(&config, launch).unwrap();
            let body = json!({ "model": model(6 + 6 * (seed % 5)) });
            let task = cluster.submit(Target::Workers, "counts", &body).unwrap();
            let read = cluster.wait(task).unwrap();
            assert_eq!(read, [json!(30), json!(30)], "seed {seed}");
            let mut client = cluster.client().unwrap();
            let model: Model = serde_json::from_value(body["model"].clone()).unwrap();
            let table = client.admin().create_table(&counters(model, 3, 1)).unwrap();
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
