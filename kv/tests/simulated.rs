//! Goal: whole clusters keep their guarantees on a network that delays, stalls, cuts and crashes,
//! the same for the same seed.
//! Method: the real worker and server code on the simulated van, random schedules from a seed,
//! compared with plain models. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays
//! it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::simulated::{Draws, connect, start, weather};
use caravan_kv::consistency::Admission;
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, Placement, Refusal, Refused,
    ServerAddress, Shard, Table, TableSpec, Target, Timestamp, ValueType, Worker, WorkerNode,
};
use caravan_van::sim::{Faults, Hosts, Network, Node, for_each_seed};
use caravan_van::{Buffer, Pool};

/// The expected answer of an outstanding request.
enum Expected {
    Push,
    Numbers(Vec<i64>),
    Varying(Vec<Vec<i64>>),
}

/// What a worker has pushed to keys that only it writes.
#[derive(Default)]
struct Model {
    numbers: BTreeMap<u64, [i64; 40]>,
    lists: BTreeMap<u64, Vec<i64>>,
}

/// One worker's random requests for its own keys, all checked.
#[allow(clippy::too_many_lines, reason = "one scenario, told in its order")]
fn schedule(
    worker: &mut Worker,
    tables: [Table; 2],
    node: u64,
    draws: &mut Draws,
    model: &mut Model,
) {
    let [fixed, varying] = tables;
    let Model { numbers, lists } = model;
    let mut waiting: VecDeque<(Timestamp, Expected)> = VecDeque::new();
    for _ in 0..8 {
        let most = [2, 6, 200][draws.below(3) as usize];
        let mut keys: Vec<u64> =
            (0..draws.below(most)).map(|_| draws.below(250) * 8 + node).collect();
        keys.iter_mut().for_each(|key| *key = key.wrapping_mul(u64::MAX / 2008));
        keys.sort_unstable();
        keys.dedup();
        let request = match draws.below(5) {
            op @ (0 | 1) => {
                let values: Vec<i64> =
                    (0..keys.len() * 40).map(|_| draws.below(9) as i64).collect();
                for (key, pushed) in keys.iter().zip(values.chunks(40)) {
                    let stored = numbers.entry(*key).or_insert([0; 40]);
                    stored.iter_mut().zip(pushed).for_each(|(stored, pushed)| *stored += pushed);
                }
                if op == 0 {
                    (worker.push(fixed, &keys, &values).unwrap(), Expected::Push)
                } else {
                    let expected = keys.iter().flat_map(|key| numbers[key]).collect();
                    let shared = Buffer::adopt(values.clone()).share();
                    let into = Buffer::adopt(vec![0i64; values.len()]);
                    let timestamp = worker.push_pull_shared(fixed, &keys, &shared, into).unwrap();
                    (timestamp, Expected::Numbers(expected))
                }
            }
            2 => {
                let of = |key: &u64| *numbers.get(key).unwrap_or(&[0; 40]);
                (
                    worker.pull(fixed, &keys).unwrap(),
                    Expected::Numbers(keys.iter().flat_map(of).collect()),
                )
            }
            3 => {
                let lengths: Vec<u32> = keys.iter().map(|_| draws.below(60) as u32).collect();
                let total = lengths.iter().map(|&n| n as usize).sum();
                let values: Vec<i64> = (0..total).map(|_| draws.below(1000) as i64).collect();
                let mut rest = &values[..];
                for (key, &length) in keys.iter().zip(&lengths) {
                    let (mine, others) = rest.split_at(length as usize);
                    lists.insert(*key, mine.to_vec());
                    rest = others;
                }
                (worker.push_varying(varying, &keys, &lengths, &values).unwrap(), Expected::Push)
            }
            _ => {
                let of = |key: &u64| lists.get(key).cloned().unwrap_or_default();
                (
                    worker.pull(varying, &keys).unwrap(),
                    Expected::Varying(keys.iter().map(of).collect()),
                )
            }
        };
        waiting.push_back(request);
        while waiting.len() > draws.below(12) as usize {
            let next = draws.below(waiting.len() as u64) as usize;
            let (timestamp, expected) = waiting.remove(next).unwrap();
            let answer = worker.wait(timestamp).unwrap();
            match expected {
                Expected::Push => assert!(answer.values.is_none()),
                Expected::Numbers(expected) => assert_eq!(answer.values::<i64>(), expected),
                Expected::Varying(expected) => {
                    let lengths: Vec<_> = expected.iter().map(|list| list.len() as u32).collect();
                    assert_eq!(
                        (answer.lengths.clone(), answer.values::<i64>()),
                        (lengths, &expected.concat()[..])
                    );
                }
            }
        }
    }
    for (timestamp, _) in waiting {
        worker.wait(timestamp).unwrap();
    }
}

/// Numbers, lists of them, and sums to which all workers add.
fn tables(seed: u64, servers: u32) -> [TableSpec; 3] {
    let filters = if seed.is_multiple_of(5) { "key-cache" } else { "none" };
    [
        TableSpec::new(1, "fixed", ValueType::I64, 40).filters(filters.parse().unwrap()),
        TableSpec::new(2, "varying", ValueType::I64, 0).handle("assign"),
        TableSpec::new(3, "sums", ValueType::I32, 1),
    ]
    .map(|spec| spec.placement(placement(seed, servers)))
}

/// A node that moves shards about while others use them.
fn start_mover(network: &Network, addresses: &[ServerAddress], seed: u64) -> Node<()> {
    let addresses = addresses.to_vec();
    network.spawn("mover", move |network| {
        let mut draws = Draws(seed ^ 77);
        let mut worker = connect(network, 98, &addresses);
        let tables = tables(seed, addresses.len() as u32)
            .map(|spec| worker.admin().create_table(&spec).unwrap());
        for _ in 0..20 {
            network.sleep(Duration::from_micros(draws.below(1000)));
            let table = tables[draws.below(3) as usize];
            let shards = worker.info().shards(table).unwrap();
            let shard = shards[draws.below(shards.len() as u64) as usize];
            let server = draws.below(addresses.len() as u64) as usize;
            let moved = worker.admin().move_shard(table, shard.range.begin(), server).unwrap();
            worker.wait(moved).unwrap();
            let shards = worker.info().shards(table).unwrap();
            let now = shards.iter().find(|it| it.range == shard.range).unwrap();
            assert_eq!(
                (now.server, now.epoch),
                (server, shard.epoch + u64::from(server != shard.server))
            );
        }
    })
}

/// Tables are placed in all ways.
fn placement(seed: u64, servers: u32) -> Placement {
    match seed % 4 {
        0 => Placement::default(),
        1 => Placement::Even(3),
        2 => Placement::Ring(4),
        _ => Placement::Cut((0..5).map(|at| (at << 61, at as u32 * 7 % servers)).collect()),
    }
}

/// A cluster of random shape in which every worker runs a schedule and all add to one row; returns
/// the network's trace.
fn run(seed: u64) -> u64 {
    let network = Network::new(seed, weather(seed));
    let mut draws = Draws(seed);
    let (servers, workers) = (1 + draws.below(4), 1 + draws.below(3));
    let (addresses, stop) = start(&network, servers as usize, &Handles::default(), |server| server);
    let nodes: Vec<_> = (0..workers)
        .map(|node| {
            let addresses = addresses.clone();
            network.spawn(&format!("worker {node}"), move |network| {
                let mut draws = Draws(seed << 8 | node);
                let mut worker = connect(network, 100 + node as u32, &addresses);
                let [fixed, varying, sums] = tables(seed, servers as u32)
                    .map(|spec| worker.admin().create_table(&spec).unwrap());
                let tables = [fixed, varying];
                let mut model = Model::default();
                for n in 0..10 {
                    worker.push(sums, &[0, u64::MAX], &[n, 1]).unwrap();
                    network.sleep(Duration::from_micros(draws.below(1000)));
                    schedule(&mut worker, tables, node, &mut draws, &mut model);
                }
                // Of both keys, so that the pushes to either shard have arrived.
                let last = worker.pull(sums, &[0, u64::MAX]).unwrap();
                worker.wait(last).unwrap();
            })
        })
        .collect();
    let mover = (servers > 1).then(|| start_mover(&network, &addresses, seed));
    for node in nodes.into_iter().chain(mover) {
        node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    }
    let mut worker = connect(&network, 99, &addresses);
    let [.., sums] = tables(seed, servers as u32);
    let sums = worker.admin().create_table(&sums).unwrap();
    let pulled = worker.pull(sums, &[0, u64::MAX]).unwrap();
    let n = workers as i32;
    assert_eq!(worker.wait(pulled).unwrap().values::<i32>(), [45 * n, 10 * n]);
    stop.store(true, Ordering::Relaxed);
    network.trace()
}

#[test]
fn every_answer_is_what_a_map_would_say() {
    for_each_seed(60, |seed| {
        run(seed);
    });
}

#[test]
fn the_same_seed_is_the_same_run() {
    for_each_seed(9, |seed| assert_eq!(run(seed), run(seed)));
    assert_ne!(run(1), run(4), "and another is another");
}

/// Pulls wait until every worker's push of that clock has arrived: a minimal handle of a
/// synchronous table.
struct Synchronous {
    workers: u64,
    pushes: u64,
    sum: i64,
}

impl Shard for Synchronous {
    fn admit(&self, request: &Request<'_>) -> Admission {
        match request.pulls && request.clock > self.clock() {
            true => Admission::AfterClock(request.clock),
            false => Admission::Now,
        }
    }

    fn clock(&self) -> u64 {
        self.pushes / self.workers
    }

    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        self.pushes += 1;
        self.sum += <i64 as caravan_van::Value>::view(request.values)
            .ok_or_else(|| Refusal::Shape.because("not i64"))?[0];
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        Ok(Pulled::Bytes(8 * request.keys.len()))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        into.copy_from_slice(&self.sum.to_le_bytes());
    }
}

fn synchronous(workers: u64) -> Handles {
    Handles::default().with("synchronous", move |_, _, _| {
        Ok(Box::new(Synchronous { workers, pushes: 0, sum: 0 }) as Box<dyn Shard>)
    })
}

/// Each worker pushes and pulls at once; the pull must hold the pushes of all workers up to that
/// clock. It may arrive late, when others have their pulls and have pushed for the next clock, but
/// for no clock after that.
#[test]
fn parked_pulls_see_all_pushes_of_their_clock() {
    for_each_seed(45, |seed| {
        let network = Network::new(seed, weather(seed));
        let workers = 2 + seed % 3;
        let (addresses, stop) = start(&network, 2, &synchronous(workers), |server| server);
        let nodes: Vec<_> = (0..workers)
            .map(|node| {
                let addresses = addresses.clone();
                network.spawn(&format!("worker {node}"), move |network| {
                    let mut worker = connect(network, 100 + node as u32, &addresses);
                    let spec =
                        TableSpec::new(1, "clocked", ValueType::I64, 1).handle("synchronous");
                    let table = worker.admin().create_table(&spec).unwrap();
                    let keys = [1, u64::MAX];
                    for clock in 1..=12 {
                        worker.set_clock(clock);
                        worker.push(table, &keys, &[(node + 1) as i64 * clock as i64; 2]).unwrap();
                        let pulled = worker.pull(table, &keys).unwrap();
                        let answer = worker.wait(pulled).unwrap();
                        let all = (workers * (workers + 1) / 2 * clock * (clock + 1) / 2) as i64;
                        let others = workers * (workers + 1) / 2 - (node + 1);
                        let most = all + (others * (clock + 1)) as i64;
                        let values = answer.values::<i64>();
                        assert!(
                            values.iter().all(|sum| (all..=most).contains(sum)),
                            "{clock}: {values:?}"
                        );
                    }
                })
            })
            .collect();
        for node in nodes {
            node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A server dies at a random moment: every request ends, with an answer or with an error that names
/// it, soon after the network has noticed; what others have acknowledged stays.
#[test]
fn a_crash_ends_every_request_that_needs_the_server() {
    for_each_seed(60, |seed| {
        let network = Network::new(seed, weather(seed));
        let mut draws = Draws(seed);
        let victim = draws.below(3);
        let (addresses, stop) = start(&network, 3, &Handles::default(), |server| server);
        let node = network.spawn("worker", move |network| {
            let mut draws = Draws(seed + 1);
            let mut worker = connect(network, 100, &addresses);
            let table =
                worker.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 1)).unwrap();
            let third = u64::MAX / 3 + 1;
            let crash_at = network.now() + Duration::from_micros(draws.below(3000));
            let killer = network.spawn("killer", move |network| {
                network.sleep(crash_at.saturating_sub(network.now()));
                network.crash(&format!("server {victim}"));
            });
            let (mut acknowledged, mut lost) = ([0i64; 3], 0);
            for _ in 0..40 {
                let server = draws.below(3);
                let wide = draws.below(3) == 0;
                let keys: Vec<u64> =
                    if wide { (0..3).map(|i| i * third).collect() } else { vec![server * third] };
                let many = [1, 600][draws.below(2) as usize];
                let keys: Vec<u64> =
                    keys.iter().flat_map(|key| (0..many).map(move |i| key + i)).collect();
                let pushed = worker.push_pull(table, &keys, &vec![1i64; keys.len()]).unwrap();
                match worker.wait(pushed) {
                    Ok(_) if wide => acknowledged.iter_mut().for_each(|sum| *sum += 1),
                    Ok(_) => acknowledged[server as usize] += 1,
                    Err(Error::ServerLost { server: name, .. }) => {
                        assert_eq!(name, format!("server {victim}"));
                        assert!(wide || server == victim);
                        lost += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            killer.join().unwrap();
            assert!(network.now() < Duration::from_secs(60), "nothing waits for ever");
            for server in (0..3).filter(|server| *server != victim) {
                let pulled = worker.pull(table, &[server * third]).unwrap();
                let sum = worker.wait(pulled).unwrap().values::<i64>()[0];
                let known = acknowledged[server as usize];
                // A request that failed because of the victim may have reached the others.
                assert!((known..=known + lost).contains(&sum), "{known} acknowledged, {sum} there");
            }
        });
        node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// Adds its rank to a row, and returns when it was done.
struct Adds;

impl App for Adds {
    fn run(
        &mut self,
        node: &mut WorkerNode,
        _: serde_json::Value,
    ) -> Result<serde_json::Value, String> {
        let mut add = || {
            let table =
                node.worker.admin().create_table(&TableSpec::new(1, "sum", ValueType::I64, 1))?;
            let pushed = node.worker.push(table, &[0, u64::MAX], &[node.rank as i64, 1])?;
            node.worker.wait(pushed)?;
            node.worker.charge(Duration::from_millis(node.rank as u64))?;
            node.barrier("added")?;
            let pulled = node.worker.pull(table, &[0, u64::MAX])?;
            let sums = node.worker.wait(pulled)?.values::<i64>().to_vec();
            Ok((sums, node.worker.now()))
        };
        let done: caravan_kv::Result<_> = add();
        done.map(|done| serde_json::json!(done)).map_err(|error| error.to_string())
    }
}

fn simulated(config: &ClusterConfig) -> caravan_kv::Result<Vec<serde_json::Value>> {
    let launch =
        Launch::Simulated(Handles::default(), Apps::default().with("adds", || Box::new(Adds)));
    let mut cluster = Cluster::launch(config, launch)?;
    let task = cluster.submit(Target::Workers, "adds", &serde_json::Value::Null)?;
    let answers = cluster.wait(task)?;
    cluster.shutdown()?;
    Ok(answers)
}

/// Joins, tasks and barriers run in simulated time as well.
#[test]
fn a_cluster_with_its_scheduler_is_simulated_as_a_whole() {
    let config = ClusterConfig { servers: 3, workers: 20, ..ClusterConfig::default() };
    let run = |seed| {
        let hosts = Hosts { overhead: Duration::from_micros(1), ..Hosts::default() };
        let network = Network::of_hosts(seed, Faults::jittery(), hosts);
        let config = config.clone();
        let scheduler = network.spawn("scheduler", move |_| simulated(&config).unwrap());
        let answers = scheduler.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        (answers, network.now())
    };
    let (answers, end) = run(1);
    assert_eq!(answers.len(), 20);
    assert!(answers.iter().all(|answer| answer[0] == serde_json::json!([190, 20])), "{answers:?}");
    assert!(end > Duration::from_millis(19) && end < Duration::from_secs(1), "{end:?}");
    assert_eq!(run(1), (answers, end));
    assert_ne!(run(2).1, end);
}

#[test]
fn a_simulated_cluster_that_cannot_be_is_refused() {
    let error = simulated(&ClusterConfig::default()).unwrap_err().to_string();
    assert!(error.contains("nodes of a simulated network"), "{error}");
    let network = Network::new(1, Faults::none());
    let refused = network.spawn("scheduler", |_| {
        simulated(&ClusterConfig { threads: 2, ..ClusterConfig::default() })
    });
    let error = refused.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("one thread each, not 2"), "{error}");
}
