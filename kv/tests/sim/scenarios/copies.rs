//! No acknowledged push to a table with replicas is lost or applied twice, whatever dies, stops or
//! is cut off, and no read is older than one before it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::server::{ChainCounters, Pulled, Request};
use caravan_kv::{
    Apps, Cluster, ClusterConfig, Handles, Launch, Placement, Refusal, Refused, ServerAddress,
    ServerThread, Shard, Table, TableSpec, ValueType, Worker,
};
use caravan_van::sim::{Faults, Network, for_each_seed};
use caravan_van::wire::{Coding, Kind, Origin};
use caravan_van::{Account, Arrival, Draft, KeyRange, PeerId, Pool, Value, Values};

use crate::sim::faults::{At, FAULTS, Fault};
use crate::sim::oracle::{Oracle, wait_until};
use crate::sim::workload::adds::{self, Adds};
use crate::sim::{Setup, Sim, has_all_seeds};
use crate::support::simulated::{
    CREDITS, Draws, connect, endpoint_of, server_endpoint, start_nodes,
};
use crate::support::ticks::with_ticks;

fn run(seed: u64) -> (Fault, ChainCounters, Vec<At>) {
    let mut draws = Draws(seed);
    let (servers, workers) = (3 + draws.below(2), 1 + draws.below(4));
    let replicas = 1 + draws.below(2) as u32;
    let handles = with_ticks(Handles::default());
    let sim = Sim::start(seed, Setup { servers, workers, handles, ..Setup::default() });
    let adds = Adds { replicas, rounds: [40, 2000], pause_us: 700 };
    let nodes = sim.workers(move |hand| adds.work(hand));
    let fate = sim.fate(Fault::of(seed), replicas, 12_000);
    let at = sim.join(fate);
    adds::check(&sim, replicas, nodes);
    assert!(sim.oracle.looks() > 0, "no log was held against another one");
    (Fault::of(seed), sim.stop().0, at)
}

/// A head is cut off from a new copy about when that is whole, and dies. Returns the pushes that
/// were made and those that are there; none if the copy was not whole.
fn cut_off_from_a_new_copy(seed: u64) -> Option<[i64; 2]> {
    let sim = Sim::start(seed, Setup { workers: 1, ..Setup::default() });
    let spec = TableSpec::new(1, "counts", ValueType::I64, 1).replicas(1);
    let spec = spec.keys(KeyRange::new(0, 30).unwrap()); // ten on each server
    let pusher = sim.spawn("worker 0", 0, move |hand| {
        let table = hand.create(&spec);
        let all: Vec<u64> = (0..10).collect();
        let pushed = hand.worker.push(table, &all, &[0_i64; 10]).unwrap();
        hand.wait(pushed);
        hand.oracle.begin();
        let (mut made, mut waiting) = (0, VecDeque::new());
        while !hand.oracle.is_calm() {
            made += 1;
            waiting.push_back(hand.worker.push(table, &[0], &[1_i64]).ok()?);
            hand.worker.poll().ok()?;
            hand.pause(60);
            while waiting.len() > 8 {
                hand.worker.wait(waiting.pop_front()?).ok()?;
            }
        }
        for pushed in waiting {
            hand.worker.wait(pushed).ok()?;
        }
        let pulled = hand.worker.pull(table, &[0]).ok()?;
        Some([made, hand.worker.wait(pulled).ok()?.values::<i64>()[0]])
    });
    let (oracle, mut draws) = (sim.oracle.clone(), Draws(seed));
    let fate = sim.network.spawn("fate", move |network| {
        oracle.wait_for_workers(network, 1);
        network.sleep(Duration::from_millis(2));
        network.crash("server 1");
        oracle.lose(1);
        wait_until(network, || oracle.copies(2).coming > 0);
        network.sleep(Duration::from_micros(draws.below(1500)));
        network.cut("server 0", "server 2", Duration::from_secs(1));
        network.sleep(Duration::from_micros(draws.below(1500)));
        network.crash("server 0");
        oracle.lose(0);
        oracle.calm_down();
    });
    sim.join(fate);
    sim.join(pusher)
}

#[test]
fn what_is_answered_when_a_copy_becomes_whole_is_in_it() {
    let mut whole = 0;
    for_each_seed(150, |seed| {
        if let Some([made, found]) = cut_off_from_a_new_copy(seed) {
            assert_eq!(made, found, "seed {seed}");
            whole += 1;
        }
    });
    println!("{whole} copies were whole");
    assert!((20..140).contains(&whole) || !has_all_seeds(), "{whole} copies were whole");
}

#[test]
fn nothing_is_lost_or_doubled_when_servers_die() {
    let mut sums: BTreeMap<Fault, ChainCounters> = BTreeMap::new();
    let mut pairs: BTreeMap<(Fault, At), u64> = BTreeMap::new();
    for_each_seed(180, |seed| {
        let (fault, counters, at) = run(seed);
        *sums.entry(fault).or_default() += counters;
        at.into_iter().for_each(|at| *pairs.entry((fault, at)).or_default() += 1);
    });
    for (fault, counters) in &sums {
        println!("{fault:?}: {counters:?}");
    }
    println!("{pairs:?}");
    if has_all_seeds() {
        let met = |fault, count: fn(&ChainCounters) -> u64| count(&sums[&fault]) > 0;
        for fault in FAULTS {
            assert!(met(fault, |it| it.passed) && met(fault, |it| it.held), "{fault:?}");
        }
        assert!(met(Fault::Crash, |it| it.repeated) && met(Fault::Crash, |it| it.pieces));
        assert!(met(Fault::CutWorker, |it| it.repeated));
        assert!(met(Fault::CutServers, |it| it.passed_again));
        assert!(met(Fault::Pause, |it| it.refused) && met(Fault::Pause, |it| it.copied));
        assert!(met(Fault::Again, |it| it.repeated) && met(Fault::Again, |it| it.copied));
        let met = |fault, at| pairs.get(&(fault, at)).is_some_and(|count| *count > 0);
        for fault in [Fault::Crash, Fault::Pause] {
            let has_met = met(fault, At::Rest) && met(fault, At::Gives);
            assert!(has_met, "{fault:?} in {pairs:?}");
        }
        assert!(met(Fault::Crash, At::Takes), "{pairs:?}");
        assert!(pairs[&(Fault::Again, At::Rest)] > 0);
    }
}

/// So many servers on a network without faults.
fn quiet(servers: u64) -> Sim {
    let network = Faults::none();
    Sim::start(1, Setup { servers, workers: 1, network, ..Setup::default() })
}

const KEYS: u64 = 60;

/// A table with lists of keys that servers remember, and one whose rule is not a sum.
fn tables(replicas: u32) -> [TableSpec; 2] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let sums = TableSpec::new(1, "sums", ValueType::I64, 1).filters("key-cache".parse().unwrap());
    let steps = TableSpec::new(2, "steps", ValueType::F64, 2).handle("momentum").dense();
    [sums, steps].map(|spec| spec.keys(keys).placement(Placement::Even(2)).replicas(replicas))
}

fn pull<V: caravan_van::Value>(worker: &mut Worker, table: Table) -> Vec<V> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    worker.wait(pulled).unwrap().values::<V>().to_vec()
}

/// Clients of one process count their requests from the beginning, each for itself.
#[test]
fn clients_of_one_process_are_told_apart() {
    let network = Network::new(1, Faults::none());
    let driver = network.spawn("driver", |_| {
        let config = ClusterConfig { servers: 2, workers: 0, ..ClusterConfig::default() };
        let launch = Launch::Simulated(Handles::default(), Apps::default());
        let cluster = Cluster::launch(&config, launch).unwrap();
        let [sums, _] = tables(1);
        for pushed in [3, 2, 1] {
            let mut client = cluster.client().unwrap();
            let table = client.admin().create_table(&sums).unwrap();
            for _ in 0..pushed {
                let timestamp = client.push(table, &[7], &[1_i64]).unwrap();
                client.wait(timestamp).unwrap();
            }
        }
        let mut client = cluster.client().unwrap();
        let table = client.admin().create_table(&sums).unwrap();
        let sum = pull::<i64>(&mut client, table)[7];
        drop(client);
        cluster.shutdown().unwrap();
        sum
    });
    assert_eq!(driver.join().unwrap_or_else(|stopped| panic!("{stopped}")), 6);
}

/// A cluster of which three servers may die.
fn four_servers() -> Cluster {
    let mut config = ClusterConfig { servers: 4, workers: 0, ..ClusterConfig::default() };
    config.node.server_losses_max = 3;
    Cluster::launch(&config, Launch::Simulated(Handles::default(), Apps::default())).unwrap()
}

/// Servers hear of losses from the scheduler: three die one after the other while no worker waits,
/// and the last one has all copies.
#[test]
fn chains_are_filled_up_without_workers() {
    let network = Network::new(1, Faults::none());
    let driver = network.spawn("driver", |network| {
        let cluster = four_servers();
        let mut client = cluster.client().unwrap();
        let [sums, steps] = tables(1).map(|spec| client.admin().create_table(&spec).unwrap());
        let keys: Vec<u64> = (0..KEYS).collect();
        let values: Vec<i64> = (0..KEYS as i64).collect();
        let pushed = client.push(sums, &keys, &values).unwrap();
        client.wait(pushed).unwrap();
        let pushed = client.push(steps, &[7], &[0.5, 1.0]).unwrap();
        client.wait(pushed).unwrap();
        let before = pull::<f64>(&mut client, steps);
        for server in ["server 0", "server 1", "server 2"] {
            network.crash(server);
            network.sleep(Duration::from_secs(20));
        }
        assert_eq!(pull::<i64>(&mut client, sums), values);
        assert_eq!(pull::<f64>(&mut client, steps), before);
        drop(client);
        cluster.shutdown().unwrap();
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

/// Copies that are asynchronous: nobody waits for them, and what dies with a server is the end of
/// what it has answered, no more than a lane has credits; nothing is applied twice or in part.
#[test]
fn who_waits_for_no_copy_loses_no_more_than_what_was_under_way() {
    let mut lost = [0, 0];
    for_each_seed(60, |seed| {
        let is_cut = seed % 2 == 0;
        let network = Faults::jittery();
        let sim = Sim::start(seed, Setup { servers: 2, workers: 1, network, ..Setup::default() });
        sim.oracle.leave_unordered(1);
        let died = sim.spawn("worker 0", 0, move |hand| {
            let table = hand.create(&tables(1)[0].clone().asynchronous());
            let push = |worker: &mut Worker| {
                // Two keys of one shard, so a push that is applied in part shows.
                let pushed = worker.push(table, &[0, 1], &[1_i64, 1]).unwrap();
                worker.wait(pushed).unwrap();
            };
            let before = 20 + hand.draws.below(50) as i64;
            (0..before).for_each(|_| push(&mut hand.worker));
            if is_cut {
                hand.network.cut("server 0", "server 1", Duration::from_millis(50));
                let began = hand.network.now();
                push(&mut hand.worker);
                let took = hand.network.now() - began;
                assert!(took < Duration::from_millis(10), "it waits for a copy: {took:?}");
            }
            let acknowledged = before + i64::from(is_cut);
            hand.network.crash("server 0");
            hand.network.sleep(Duration::from_millis(5));
            hand.oracle.lose(0);
            let found = pull::<i64>(&mut hand.worker, table);
            assert_eq!(found[0], found[1], "seed {seed}");
            let lost = acknowledged - found[0];
            let is_little = (0..=i64::from(CREDITS)).contains(&lost);
            assert!(is_little, "seed {seed}: {lost} of {acknowledged}");
            (0..10).for_each(|_| push(&mut hand.worker));
            let now = pull::<i64>(&mut hand.worker, table);
            assert_eq!(now[..2], [found[0] + 10; 2], "seed {seed}");
            lost
        });
        lost[usize::from(is_cut)] += sim.join(died);
    });
    println!("pushes lost with a server: {lost:?} of a lane that works, and of one that is cut");
    assert!(lost[1] > 0 || !has_all_seeds(), "no push was under way");
}

/// What asynchronous copies are not for.
#[test]
fn asynchronous_copies_need_copies_and_no_model() {
    let sim = quiet(2);
    let refused = sim.spawn("worker", 0, |hand| {
        let [spec, _] = tables(0);
        let ssp = tables(1)[0].clone().consistency(Model::Ssp { staleness: 1 }, 1);
        for (spec, says) in [(spec, "give it replicas"), (ssp, "waits for clocks")] {
            let why =
                hand.worker.admin().create_table(&spec.asynchronous()).unwrap_err().to_string();
            assert!(why.contains("table sums: ") && why.contains(says), "{why}");
        }
    });
    sim.join(refused);
}

/// A loss of which nobody has heard yet, at each of the requests about whole tables; one client has
/// created none.
#[test]
fn tables_are_listed_and_dropped_when_servers_die() {
    let network = Network::new(1, Faults::none());
    let driver = network.spawn("driver", |network| {
        let cluster = four_servers();
        let mut creator = cluster.client().unwrap();
        let mut other = cluster.client().unwrap();
        let [sums, _] = tables(1).map(|spec| creator.admin().create_table(&spec).unwrap());
        network.crash("server 0");
        assert_eq!(other.admin().list_tables("").unwrap().len(), 2);
        network.sleep(Duration::from_secs(20)); // chains are filled up
        network.crash("server 1");
        creator.admin().drop_table(sums).unwrap();
        network.sleep(Duration::from_secs(20));
        network.crash("server 2");
        assert_eq!(other.admin().drop_tables("").unwrap(), 1);
        assert_eq!(creator.admin().list_tables("").unwrap().len(), 0);
        drop((creator, other));
        cluster.shutdown().unwrap();
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

/// A push that its primary has no memory for is in no copy, or in all of them.
#[test]
fn a_primary_without_memory_and_its_copy_stay_equal() {
    let network = Network::new(1, Faults::none());
    let is_full = Arc::new(AtomicBool::new(false));
    let (addresses, stop) = start_full(&network, &is_full);
    let driver = network.spawn("driver", move |network| {
        let oracle = Oracle::of(3);
        let mut known = oracle.tell(connect(network, 100, &addresses));
        let mut new = oracle.tell(connect(network, 101, &addresses));
        let [sums, _] = tables(1);
        let sums = sums.filters("".parse().unwrap());
        let table = known.admin().create_table(&sums).unwrap();
        assert_eq!(new.admin().create_table(&sums).unwrap(), table);
        let pushed = known.push(table, &[7], &[1_i64]).unwrap();
        known.wait(pushed).unwrap();
        is_full.store(true, Ordering::Relaxed);
        network.sleep(Duration::from_millis(1));
        let pushed = new.push(table, &[7], &[10_i64]).unwrap();
        let refused = new.wait(pushed).unwrap_err().to_string();
        assert!(refused.contains("what was applied of whom"), "{refused}");
        is_full.store(false, Ordering::Relaxed);
        network.sleep(Duration::from_millis(1));
        let first = pull::<i64>(&mut known, table)[7];
        network.crash("server 0");
        oracle.lose(0);
        (first, pull::<i64>(&mut known, table)[7])
    });
    let sums = driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    stop.store(true, Ordering::Relaxed);
    assert_eq!(sums, (1, 1), "of the primary, and of its copy");
}

/// A sum for each key, which takes memory of its own.
struct Charged {
    rows: BTreeMap<u64, i64>,
    memory: Account,
    answer: [u8; 8],
}

impl Shard for Charged {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        self.memory.add(64)?;
        let values =
            i64::view(request.values).ok_or_else(|| Refusal::Shape.because("sums are integers"))?;
        let pushed = request.keys.iter().zip(values);
        pushed.for_each(|(key, value)| *self.rows.entry(*key).or_default() += value);
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        let sum = self.rows.get(&request.keys[0]).copied().unwrap_or_default();
        self.answer = sum.to_le_bytes();
        Ok(Pulled::Stored(&self.answer))
    }

    fn read(&mut self, _request: &Request<'_>, _into: &mut [u8]) {}
}

/// Two servers with [`Charged`] as "charged"; the first has no memory while `is_full`.
fn start_full(
    network: &Network,
    is_full: &Arc<AtomicBool>,
) -> (Vec<ServerAddress>, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (is_full, stopped) = (is_full.clone(), stop.clone());
    let (addresses, _) = start_nodes(network, 2, move |network, index| {
        let endpoint = server_endpoint(network, index as u32);
        let pool = endpoint.lanes.memory().clone();
        let mut account = Account::new(&pool, "everything");
        let handles = Handles::default().with("charged", |_, _, memory| {
            let memory = Account::new(memory, "sums");
            Ok(Box::new(Charged { rows: BTreeMap::new(), memory, answer: [0; 8] }))
        });
        let mut server = ServerThread::new(endpoint, index, 2, handles);
        while !stopped.load(Ordering::Relaxed) {
            match is_full.load(Ordering::Relaxed) && index == 0 {
                true => (0..64).for_each(|part| drop(account.add(pool.bytes_left() >> part))),
                false => account.set(0).unwrap(),
            }
            server.step().unwrap();
            network.sleep(Duration::from_micros(20));
        }
    });
    (addresses, stop)
}

/// Fills and empties the memory of the first server, and breaks its lane to the worker, until
/// `done`.
fn trouble(network: &Network, seed: u64, is_full: &AtomicBool, done: &AtomicBool) {
    let mut draws = Draws(seed);
    while !done.load(Ordering::Relaxed) {
        network.sleep(Duration::from_micros(20 + draws.below(200)));
        is_full.store(draws.below(2) == 0, Ordering::Relaxed);
        if draws.below(8) == 0 {
            network.cut("worker", "server 0", Duration::from_micros(1200));
        }
    }
    is_full.store(false, Ordering::Relaxed);
}

/// Pushes once to each key; returns the refusals.
fn push_to_all(worker: &mut Worker, table: Table, keys: u64) -> BTreeMap<u64, String> {
    let mut waiting = VecDeque::new();
    let mut refused = BTreeMap::new();
    for key in 0..keys {
        waiting.push_back((key, worker.push(table, &[key], &[1_i64]).unwrap()));
        while waiting.len() > 3 || key + 1 == keys && !waiting.is_empty() {
            let (key, pushed) = waiting.pop_front().unwrap();
            if let Err(error) = worker.wait(pushed) {
                refused.insert(key, error.to_string());
            }
        }
    }
    refused
}

/// What was refused is not acknowledged when it comes again, and in no copy: each sum says whether
/// its push was acknowledged.
#[test]
fn what_was_refused_is_refused_again() {
    let mut again = 0;
    for_each_seed(20, |seed| {
        let detection = Duration::from_millis(1);
        let network = Network::new(seed, Faults { detection, ..Faults::jittery() });
        let is_full = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicBool::new(false));
        let (addresses, stop) = start_full(&network, &is_full);
        let worker = network.spawn("worker", move |network| {
            let oracle = Oracle::of(3);
            let mut worker = oracle.tell(connect(network, 100, &addresses));
            let spec = TableSpec::new(1, "sums", ValueType::I64, 1).handle("charged").replicas(1);
            let spec = spec.placement(Placement::Cut(vec![(0, 0)]));
            let table = worker.admin().create_table(&spec).unwrap();
            let pushed = worker.push(table, &[99], &[1_i64]).unwrap();
            worker.wait(pushed).unwrap();
            let (full, ended) = (is_full.clone(), done.clone());
            let fate = network.spawn("fate", move |network| trouble(network, seed, &full, &ended));
            let refused = push_to_all(&mut worker, table, 60);
            done.store(true, Ordering::Relaxed);
            fate.join().unwrap_or_else(|stopped| panic!("{stopped}"));
            for of in ["the first", "the copy"] {
                if of == "the copy" {
                    network.crash("server 0");
                    oracle.lose(0);
                }
                for key in 0..60 {
                    let pulled = worker.pull(table, &[key]).unwrap();
                    let sum = worker.wait(pulled).unwrap().values::<i64>()[0];
                    let expected = i64::from(!refused.contains_key(&key));
                    assert_eq!(sum, expected, "seed {seed}, {of}, key {key}: {refused:?}");
                }
            }
            refused.values().filter(|why| why.contains("refused before")).count()
        });
        again += worker.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
    println!("{again} pushes were refused again");
    assert!(again > 0 || !has_all_seeds());
}

/// The first answer to a message with this operation, from a node of this role, which forwards it
/// for another one or not.
fn ask(network: &Network, role: u8, op: u8, origin: Option<Origin>) -> String {
    let mut asking = endpoint_of(network, 7, role);
    let peer: PeerId = asking.connect("sim:0").unwrap();
    let mut is_posted = false;
    loop {
        asking.wait(Duration::from_millis(1)).unwrap();
        asking.poll().unwrap();
        while let Some(arrival) = asking.take() {
            match arrival {
                Arrival::Message { .. } => {
                    let message = asking.pop().unwrap();
                    return String::from_utf8_lossy(message.values()).into_owned();
                }
                Arrival::Lost { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        if !is_posted && asking.lanes.credits(peer) > 0 {
            let values = Values::Copied(b"{}");
            let draft = Draft { op, values, origin, timestamp: 1, ..Draft::new(Kind::Request) };
            asking.lanes.post(peer, draft, &mut Coding::plain()).unwrap();
            is_posted = true;
        }
    }
}

/// What a worker asks like a server is refused, and what anybody but workers and drivers says of
/// lost servers.
#[test]
fn servers_and_workers_are_told_apart() {
    let sim = quiet(2);
    let asked = sim.network.spawn("driver", |network| {
        let (push, view, own) = (1, 24, [17, 18, 19, 20, 21, 25, 27]);
        let [nobody, server, worker, driver, guest] = [0, 2, 3, 4, 5];
        let is_refused = |role, op, why| ask(network, role, op, None).contains(why);
        for op in own {
            let why = "comes from servers alone";
            let roles = [nobody, server, worker, driver, guest];
            assert_eq!(roles.map(|it| is_refused(it, op, why)), [true, false, true, true, true]);
        }
        for role in [nobody, worker, driver, guest] {
            let answer = ask(network, role, push, Some(Origin::default()));
            assert!(answer.contains("records come from servers alone"), "{role}: {answer}");
        }
        let answer = ask(network, server, push, Some(Origin::default()));
        assert!(answer.contains("has not asked this thread to follow"), "{answer}");
        for role in [nobody, server] {
            assert!(is_refused(role, view, "comes from workers and drivers alone"), "{role}");
        }
        for role in [worker, driver, guest] {
            assert!(is_refused(role, view, "missing field"), "{role}");
        }
    });
    sim.join(asked);
}
