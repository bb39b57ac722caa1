//! Goal: a worker has lanes to the servers that it asks and to no others, and whatever happens
//! while a lane opens harms no request.
//! Method: the real worker and server code on the simulated van. Lanes are counted at both ends;
//! servers die, shards move and lanes are cut while others open. A failure prints its seed.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::simulated::{
    Draws, addresses, connect, server_endpoint, start, start_nodes, weather,
};
use crate::support::{config, vans};
use caravan_kv::{
    Apps, Cluster, ClusterConfig, Error, Handles, Launch, Placement, ServerAddress, ServerThread,
    Table, TableSpec, ValueType, Van, Worker,
};
use caravan_van::KeyRange;
use caravan_van::sim::{Faults, Network, for_each_seed};

/// A table of 1000 keys in shards of even size, of which these server threads have one each.
fn at(id: u32, owners: &[u32]) -> TableSpec {
    let size = 1000 / owners.len() as u64;
    let shard = |(place, owner): (usize, &u32)| (place as u64 * size, *owner);
    let cut = owners.iter().enumerate().map(shard).collect();
    let spec = TableSpec::new(id, "t", ValueType::I64, 1).placement(Placement::Cut(cut));
    spec.keys(KeyRange::new(0, 1000).unwrap())
}

fn push(worker: &mut Worker, table: Table, key: u64, value: i64) -> Result<(), Error> {
    let pushed = worker.push(table, &[key], &[value])?;
    worker.wait(pushed).map(drop)
}

fn pull(worker: &mut Worker, table: Table, key: u64) -> i64 {
    let pulled = worker.pull(table, &[key]).unwrap();
    worker.wait(pulled).unwrap().values::<i64>()[0]
}

const SERVERS: usize = 24;

/// Lets four workers of 24 servers do this at once, by rank; returns how many lanes each server
/// thread has while no worker has ended.
fn lanes_of(work: impl Fn(&Network, &mut Worker, u32) + Clone + Send + 'static) -> Vec<usize> {
    let network = Network::new(1, Faults::jittery());
    let [stop, done] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let (addresses, servers) = start_nodes(&network, SERVERS, move |network, index| {
        let endpoint = server_endpoint(network, index as u32);
        let mut server = ServerThread::new(endpoint, index, SERVERS, Handles::default());
        server.run(&stopped).unwrap();
        server.lanes()
    });
    let workers: Vec<_> = (0..4)
        .map(|rank| {
            let (addresses, done, work) = (addresses.clone(), done.clone(), work.clone());
            network.spawn(&format!("worker {rank}"), move |network| {
                let mut worker = connect(network, 100 + rank, &addresses);
                assert_eq!(worker.info().connections(), 0);
                work(network, &mut worker, rank);
                while !done.load(Ordering::Relaxed) {
                    network.sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    network.sleep(Duration::from_secs(1));
    stop.store(true, Ordering::Relaxed);
    let lanes = servers.into_iter().map(|it| it.join().unwrap()).collect();
    done.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|it| it.join().unwrap_or_else(|stopped| panic!("{stopped}")));
    lanes
}

#[test]
fn lanes_go_to_the_owners_of_a_table_alone() {
    let lanes = lanes_of(|_, worker, rank| {
        let table = worker.admin().create_table(&at(rank, &[2 + rank, 9 + rank])).unwrap();
        let pushed = worker.push(table, &[1, 999], &[3i64, 4]).unwrap();
        worker.wait(pushed).unwrap();
        assert_eq!(worker.info().connections(), 3, "the first thread numbers tables");
    });
    let expected = |server| match server {
        0 => 4,
        2..6 | 9..13 => 1,
        _ => 0,
    };
    assert_eq!(lanes, (0..SERVERS).map(expected).collect::<Vec<_>>());
}

/// One worker creates a table on all threads; the others ask for a few of its shards.
#[test]
fn lanes_go_to_the_shards_that_a_worker_asks_for_alone() {
    let lanes = lanes_of(|network, worker, rank| {
        let keys = KeyRange::new(0, 100 * SERVERS as u64).unwrap();
        let spec = TableSpec::new(1, "wide", ValueType::I64, 1).keys(keys);
        if rank > 0 {
            network.sleep(Duration::from_millis(300));
        }
        let table = worker.admin().create_table(&spec).unwrap();
        assert_eq!(worker.info().connections(), if rank == 0 { SERVERS } else { 1 });
        if rank == 0 {
            return;
        }
        let keys = [2, 9].map(|first| 100 * (first + u64::from(rank)) + 7);
        let pushed = worker.push(table, &keys, &[3i64, 4]).unwrap();
        assert_eq!(
            worker.info().connections(),
            3,
            "a push does not wait for its lanes, one after the other"
        );
        let pulled = worker.pull(table, &keys).unwrap();
        worker.wait(pushed).unwrap();
        assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [3, 4]);
        assert_eq!(worker.info().connections(), 3);
    });
    let expected = |server| match server {
        0 => 4,
        3..6 | 10..13 => 2,
        _ => 1,
    };
    assert_eq!(lanes, (0..SERVERS).map(expected).collect::<Vec<_>>());
}

/// The first request to a server that is dead is an error that names it; others go on.
#[test]
fn a_server_that_dies_before_the_first_request_is_named() {
    for_each_seed(6, |seed| {
        let network = Network::new(seed, weather(seed));
        let (addresses, stop) = start(&network, 4, &Handles::default(), |server| server);
        let node = network.spawn("worker", move |network| {
            let mut worker = connect(network, 100, &addresses);
            let lives = worker.admin().create_table(&at(1, &[1])).unwrap();
            network.crash("server 3");
            let error = worker.admin().create_table(&at(2, &[3])).unwrap_err();
            let Error::ServerLost { server, address, .. } = &error else { panic!("{error}") };
            assert_eq!((&server[..], &address[..]), ("server 3", "sim:3"));
            push(&mut worker, lives, 5, 5).unwrap();
            assert_eq!(pull(&mut worker, lives, 5), 5);
            assert_eq!(worker.info().connections(), 2);
        });
        node.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// Nobody listens at one address; whoever listens at the other says nothing.
#[test]
fn a_server_that_cannot_be_reached_is_named_in_time() {
    for van in vans() {
        let timeout = Duration::from_millis(300);
        let asks = |address: String| {
            let servers = [ServerAddress { name: "server 7 thread 2".to_owned(), address }];
            let endpoint = crate::support::endpoint(van, &config(4, 1 << 28));
            let mut worker = Worker::new(endpoint, &servers, timeout).unwrap();
            worker.admin().create_table(&at(1, &[0])).unwrap_err()
        };
        let error = asks("127.0.0.1:1".to_owned()).to_string();
        assert!(error.contains("server 7 thread 2 at 127.0.0.1:1"), "{error}");
        if matches!(van, Van::Rdma | Van::Shm) {
            continue; // only a van's own code listens there
        }
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = mute.local_addr().unwrap().to_string();
        let error = asks(address.clone());
        let Error::Timeout { what, missing, seconds } = &error else { panic!("{error}") };
        assert_eq!((&what[..], missing.contains(&address)), ("connecting to the servers", true));
        assert!(*seconds < 5.0, "{error}");
    }
}

/// Losses of servers without a lane are heard of from the scheduler.
#[test]
fn a_loss_is_heard_of_without_a_lane() {
    // The network itself notices nothing for an hour.
    let detection = Duration::from_secs(3600);
    let network = Network::new(1, Faults { detection, ..Faults::none() });
    let driver = network.spawn("driver", |network| {
        let mut config = ClusterConfig { servers: 4, workers: 0, ..ClusterConfig::default() };
        config.node.server_losses_max = 2;
        config.node.heartbeat = Duration::from_millis(100);
        let launch = Launch::Simulated(Handles::default(), Apps::default());
        let cluster = Cluster::launch(&config, launch).unwrap();
        let mut client = cluster.client().unwrap();
        network.crash("server 3");
        // It is not known yet: the first request waits for the news.
        let sums = client.admin().create_table(&at(1, &[0, 1, 2, 3]).replicas(1)).unwrap();
        assert_eq!(client.info().connections(), 3);
        for key in [0, 250, 500, 750] {
            push(&mut client, sums, key, 7).unwrap();
        }
        network.crash("server 1");
        network.sleep(Duration::from_secs(2));
        // It is known, and this client has no lane to either.
        let mut late = cluster.client().unwrap();
        let same = late.admin().create_table(&at(1, &[0, 1, 2, 3]).replicas(1)).unwrap();
        assert_eq!([0, 250, 500, 750].map(|key| pull(&mut late, same, key)), [7; 4]);
        assert_eq!(late.info().connections(), 2);
        let alone = late.admin().create_table(&at(2, &[1, 2])).unwrap();
        push(&mut late, alone, 999, 1).unwrap();
        let error = push(&mut late, alone, 1, 1).unwrap_err().to_string();
        assert!(error.contains("server 1") && error.contains("counts as lost"), "{error}");
        drop((client, late));
        cluster.shutdown().unwrap();
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

/// A shard goes from server to server while a worker pushes to it: each time the worker opens a
/// lane to follow it.
#[test]
fn lanes_open_during_moves() {
    for_each_seed(24, |seed| {
        let network = Network::new(seed, weather(seed));
        let (addresses, stop) = start(&network, 5, &Handles::default(), |it| it.move_by(200));
        let to = addresses.clone();
        let mover = network.spawn("mover", move |network| {
            let mut worker = connect(network, 98, &to);
            let table = worker.admin().create_table(&at(1, &[1])).unwrap();
            for server in [2, 3, 4] {
                network.sleep(Duration::from_millis(2 + seed % 5));
                let moved = worker.admin().move_shard(table, 0, server).unwrap();
                worker.wait(moved).unwrap();
            }
        });
        let node = network.spawn("worker", move |network| {
            let mut worker = connect(network, 100, &addresses);
            let table = worker.admin().create_table(&at(1, &[1])).unwrap();
            let mut sums = [0; 100];
            let mut pushed = Vec::new();
            while worker.info().connections() < 5 || pushed.len() < 100 {
                let key = pushed.len() as u64 % 100;
                sums[key as usize] += 1;
                pushed.push(worker.push(table, &[key], &[1i64]).unwrap());
                let pulled = worker.pull(table, &[key]).unwrap();
                let found = worker.wait(pulled).unwrap().values::<i64>()[0];
                assert_eq!(found, sums[key as usize], "seed {seed}: it reads what it wrote");
            }
            pushed.into_iter().for_each(|it| drop(worker.wait(it).unwrap()));
            let found = (0..100).map(|key| pull(&mut worker, table, key));
            assert_eq!(found.collect::<Vec<_>>(), sums);
        });
        mover.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        node.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// How many requests failed because their lane could not be made, and because it broke.
#[derive(Default)]
struct Met {
    unmade: AtomicU64,
    broken: AtomicU64,
}

/// Does `what` again and again until no lane breaks under it; returns its outcome and how often it
/// may have been done.
fn insist<T>(
    network: &Network,
    worker: &mut Worker,
    met: &Met,
    mut what: impl FnMut(&mut Worker) -> Result<T, Error>,
) -> (T, i64) {
    for times in 1.. {
        match what(worker) {
            Ok(done) => return (done, times),
            Err(Error::ServerLost { reason, .. }) => {
                let count = if reason.contains("connect") { &met.unmade } else { &met.broken };
                count.fetch_add(1, Ordering::Relaxed);
            }
            Err(other) => panic!("{other}"),
        }
        while worker.admin().reconnect(Duration::from_millis(200)).is_err() {
            network.sleep(Duration::from_millis(1));
        }
    }
    unreachable!("it tries for ever");
}

/// Uses a table of each server once, in random order, while the lane to that one is cut.
fn open_under_cuts(network: &Network, rank: u64, seed: u64, replicas: u32, met: &Met) {
    let mut draws = Draws(seed << 8 | rank);
    let mut worker = connect(network, 100 + rank as u32, &addresses(4));
    if replicas > 0 {
        worker.admin().watch_servers(|| Ok(Vec::new()), Duration::from_micros(300));
    }
    for server in 0..4u64 {
        let server = (server + draws.below(4)) % 4;
        let [wait, lasts] = [draws.below(400), 2000 + draws.below(4000)].map(Duration::from_micros);
        network.spawn(&format!("fate {rank}"), move |network| {
            network.sleep(wait);
            network.cut(&format!("worker {rank}"), &format!("server {server}"), lasts);
        });
        let id = (rank * 4 + server) as u32;
        let spec = at(id, &[server as u32]).replicas(replicas);
        let create = |worker: &mut Worker| worker.admin().create_table(&spec);
        let (table, _) = insist(network, &mut worker, met, create);
        let before = pull_surely(network, &mut worker, met, table);
        let (_, most) = insist(network, &mut worker, met, |it| push(it, table, 0, 1));
        let sum = pull_surely(network, &mut worker, met, table) - before;
        assert!((1..=most).contains(&sum), "seed {seed}, table {id}: {sum} of {most} pushes");
        assert!(replicas == 0 || most == 1, "seed {seed}: nothing fails where all is kept");
    }
}

fn pull_surely(network: &Network, worker: &mut Worker, met: &Met, table: Table) -> i64 {
    let pull = |worker: &mut Worker| {
        let pulled = worker.pull(table, &[0])?;
        Ok(worker.wait(pulled)?.values::<i64>()[0])
    };
    insist(network, worker, met, pull).0
}

#[test]
fn lanes_may_be_cut_right_at_opening() {
    let met = Arc::new(Met::default());
    for_each_seed(200, |seed| {
        let detection = Duration::from_millis(1);
        let network = Network::new(seed, Faults { detection, ..Faults::jittery() });
        let (_, stop) = start(&network, 4, &Handles::default(), |server| server);
        let workers: Vec<_> = (0..2)
            .map(|rank| {
                let met = met.clone();
                network.spawn(&format!("worker {rank}"), move |network| {
                    open_under_cuts(network, rank, seed, seed as u32 % 2, &met);
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let [unmade, broken] = [&met.unmade, &met.broken].map(|it| it.load(Ordering::Relaxed));
    println!("{unmade} requests failed before their lane was up, {broken} after that");
    if std::env::var("CARAVAN_SEED").is_err() {
        assert!(unmade > 0 && broken > 0);
    }
}
