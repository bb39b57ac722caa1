//! Goal: server threads run, and their memory lies, where they were placed.
//! Method: inside the thread, a shard asks the system on which core it runs, and on which nodes the
//! slab and its own memory are.
//!
//! Tests that need two NUMA nodes are ignored: `ci/suites/numa` runs them in a machine with two.

use std::fs;

use caravan_kv::cluster::Launch;
use caravan_kv::node::Numa;
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{
    Apps, Cluster, ClusterConfig, Handles, Refusal, Refused, Shard, TableSpec, ValueType, Van,
};
use caravan_numa::{HugePages, NumaId, Topology, nodes_of};
use caravan_van::{KeyRange, Pool};
use serde::{Deserialize, Serialize};

/// What one server thread found.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    /// The processing unit it runs on.
    pu: usize,
    /// Those it may run on, in the kernel's notation.
    allowed: String,
    /// Nodes of the pages that a large push landed in.
    slab: Vec<usize>,
    /// Nodes of memory that the shard took from the allocator.
    own: Vec<usize>,
}

/// Answers with what it found at the last push.
#[derive(Default)]
struct Witness {
    seen: Option<Seen>,
    rows: Vec<u8>,
}

impl Shard for Witness {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        // Fresh from the system, because it is longer than what the allocator keeps from ended
        // threads of another node.
        self.rows = Vec::with_capacity(64 << 20);
        self.rows.extend_from_slice(request.values);
        self.seen = Some(Seen {
            pu: caravan_numa::current_pu().map_err(unknown)?.0,
            allowed: status("Cpus_allowed_list"),
            slab: nodes(request.values)?,
            own: nodes(&self.rows)?,
        });
        Ok(())
    }

    fn pull(&mut self, _request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        Err(Refusal::Shape.because("it only pushes"))
    }

    fn read(&mut self, _request: &Request<'_>, _into: &mut [u8]) {}

    fn command(&mut self, _sender: u32, _body: &[u8]) -> Result<Vec<u8>, Refused> {
        serde_json::to_vec(&self.seen).map_err(Refused::from)
    }
}

fn unknown(error: impl std::fmt::Display) -> Refused {
    Refusal::Internal.because(error.to_string())
}

/// The nodes of the pages of `bytes`, each once.
fn nodes(bytes: &[u8]) -> Result<Vec<usize>, Refused> {
    let mut nodes: Vec<usize> = nodes_of(bytes)
        .map_err(unknown)?
        .into_iter()
        .map(|node| node.map(|node| node.0).ok_or_else(|| unknown("a page that is not there")))
        .collect::<Result<_, _>>()?;
    nodes.sort_unstable();
    nodes.dedup();
    Ok(nodes)
}

/// A line of the calling thread's status.
fn status(name: &str) -> String {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Runs a cluster in this process, pushes 4 MiB to each server thread, and asks them.
fn seen(config: &ClusterConfig) -> Vec<Seen> {
    let make =
        |_: &TableSpec, _: KeyRange, _: &Pool| Ok(Box::new(Witness::default()) as Box<dyn Shard>);
    let handles = Handles::default().with("witness", make);
    let cluster = Cluster::launch(config, Launch::Threads(handles, Apps::default())).unwrap();
    let mut worker = cluster.client().unwrap();
    let keys: Vec<u64> = (0..config.shards() as u64).collect();
    let range = KeyRange::new(0, keys.len() as u64).unwrap();
    let width = 1 << 20;
    let spec = TableSpec::new(1, "t", ValueType::F32, width).keys(range).handle("witness");
    let table = worker.admin().create_table(&spec).unwrap();
    let pushed = worker.push(table, &keys, &vec![1.0_f32; keys.len() * width as usize]).unwrap();
    worker.wait(pushed).unwrap();
    let asked = worker.command(table, b"").unwrap();
    let answers = worker.wait(asked).unwrap().replies;
    let seen = answers.iter().map(|answer| serde_json::from_slice(answer).unwrap()).collect();
    drop(worker);
    cluster.shutdown().unwrap();
    eprintln!("{:?}, pin {}: {seen:?}", config.node.numa, config.node.pin);
    seen
}

fn config(numa: Numa, pin: bool, threads: usize) -> ClusterConfig {
    let mut config = ClusterConfig { threads, workers: 0, ..ClusterConfig::default() };
    config.node.van = Van::Tcp;
    (config.node.numa, config.node.pin) = (numa, pin);
    config
}

fn node(number: usize) -> Numa {
    Numa::Node(NumaId(number))
}

#[test]
fn a_pinned_thread_has_one_core_and_its_memory_beside_it() {
    let topology = Topology::this_machine().unwrap();
    if nodes_of(&[1; 100]).is_err() || caravan_numa::current_pu().is_err() {
        eprintln!("skipped: this system does not tell where threads and memory are");
        return;
    }
    for seen in seen(&config(Numa::Any, true, 1)) {
        let local = topology.node_of(caravan_numa::PuId(seen.pu)).unwrap();
        if seen.allowed == seen.pu.to_string() {
            assert_eq!((seen.slab, seen.own), (vec![local.0], vec![local.0]));
        } else {
            eprintln!("skipped: this system pins no thread");
        }
    }
}

#[test]
fn a_node_that_is_not_there_ends_the_server_with_what_is() {
    let launch = Launch::Threads(Handles::default(), Apps::default());
    let Err(error) = Cluster::launch(&config(node(4000), true, 1), launch) else {
        panic!("there is a node 4000")
    };
    assert!(error.to_string().contains("there is no NUMA node 4000 here, only 0"), "{error}");
}

fn is_on(seen: &Seen, place: usize) -> bool {
    // In the machine of `ci/suites/numa`, node N has only processing unit N.
    *seen == Seen { pu: place, allowed: place.to_string(), slab: vec![place], own: vec![place] }
}

#[test]
#[ignore = "needs two NUMA nodes: ci/suites/numa"]
fn threads_take_the_nodes_in_turn() {
    let seen = seen(&config(Numa::Any, true, 2));
    assert!(is_on(&seen[0], 0) && is_on(&seen[1], 1), "{seen:?}");
}

#[test]
#[ignore = "needs two NUMA nodes: ci/suites/numa"]
fn a_named_node_has_thread_and_memory() {
    for place in [1, 0] {
        for huge in [HugePages::AsSystem, HugePages::Transparent, HugePages::Reserved] {
            let mut config = config(node(place), true, 1);
            config.node.huge_pages = huge;
            let seen = seen(&config);
            assert!(is_on(&seen[0], place), "{huge:?}: {seen:?}");
        }
    }
}

#[test]
#[ignore = "needs two NUMA nodes: ci/suites/numa"]
fn threads_are_near_the_nic_that_has_the_address() {
    let mut config = config(Numa::NearNic, true, 1);
    config.node.host = std::env::var("CARAVAN_TEST_NIC_ADDRESS").unwrap();
    let near = seen(&config);
    assert!(is_on(&near[0], 1), "{near:?}");
    config.node.host = "127.0.0.1".to_owned();
    let anywhere = seen(&config);
    assert!(is_on(&anywhere[0], 0), "no NIC to be near to: {anywhere:?}");
}

#[test]
#[ignore = "needs two NUMA nodes: ci/suites/numa"]
fn memory_of_an_unpinned_thread_is_bound_all_the_same() {
    for place in [0, 1] {
        let seen = seen(&config(node(place), false, 1));
        assert_eq!(seen[0].allowed, "0-1");
        assert_eq!((&seen[0].slab, &seen[0].own), (&vec![place], &vec![place]), "{seen:?}");
    }
}

#[test]
#[ignore = "needs two NUMA nodes: ci/suites/numa"]
fn without_a_wish_memory_lies_where_it_is_first_touched() {
    let topology = Topology::this_machine().unwrap();
    for place in [1, 0] {
        // Threads of the cluster inherit the affinity of this one.
        let seen = std::thread::scope(|scope| {
            let run = || {
                let pinned = caravan_numa::pin_current_thread(&topology, caravan_numa::PuId(place));
                assert!(pinned.is_pinned(), "{pinned}");
                seen(&config(Numa::Any, false, 1))
            };
            scope.spawn(run).join().unwrap()
        });
        assert!(is_on(&seen[0], place), "{seen:?}");
    }
}
