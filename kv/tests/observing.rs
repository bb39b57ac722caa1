//! Goal: whoever knows the secret sees what the nodes of a running cluster do, and which worker is
//! slow.
//! Method: whole clusters on the simulated network, whose workers compute for different times; a
//! cluster of threads, of which a stranger asks.

use std::time::Duration;

use caravan_kv::node::{NodeState, Observer, Role};
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, SecretSource, TableSpec, Target,
    ValueType, WorkerNode,
};
use caravan_van::Secret;
use caravan_van::sim::{Faults, Network};
use serde_json::{Value, json};

const SLOW: usize = 1;
const ITERATIONS: u64 = 60;

/// Computes and pushes once an iteration; all workers wait for each other at its end.
struct Iterates;

impl App for Iterates {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let text = |error: Error| error.to_string();
        let worker = &mut node.worker;
        let table = worker.admin().create_table(&TableSpec::new(1, "w", ValueType::F32, 1));
        let table = table.map_err(text)?;
        for clock in 1..=ITERATIONS {
            let worker = &mut node.worker;
            worker.set_clock(clock);
            let takes = if body["slow"] == node.rank { 600 } else { 100 };
            worker.charge(Duration::from_millis(takes)).map_err(text)?;
            let pushed = worker.push(table, &[1, u64::MAX], &[1.0f32, 1.0]).map_err(text)?;
            worker.wait(pushed).map_err(text)?;
            // Ahead of the barrier, as a worker under BSP announces the end of its iteration.
            worker.set_clock(clock + 1);
            node.barrier(&clock.to_string()).map_err(text)?;
        }
        Ok(Value::Null)
    }
}

/// How the nodes of a simulated cluster are after 20 seconds of the workers' iterations.
fn states(slow: Option<usize>) -> Vec<NodeState> {
    let network = Network::new(7, Faults::jittery());
    let driver = network.spawn("driver", move |_| {
        let config = ClusterConfig { workers: 4, servers: 2, ..ClusterConfig::default() };
        let apps = Apps::default().with("iterates", || Box::new(Iterates));
        let mut cluster =
            Cluster::launch(&config, Launch::Simulated(Handles::default(), apps)).unwrap();
        let body = json!({ "slow": slow });
        let task = cluster.submit(Target::Workers, "iterates", &body).unwrap();
        let mut observer = Observer::attach(&cluster.config().node).unwrap();
        observer.pause(Duration::from_secs(5)).unwrap();
        let early = observer.nodes().unwrap();
        observer.pause(Duration::from_secs(if slow.is_some() { 15 } else { 0 })).unwrap();
        let late = observer.nodes().unwrap();
        for (early, late) in early.iter().zip(&late) {
            let (early, late) = (early.vitals.unwrap(), late.vitals.unwrap());
            assert!(slow.is_none() || late.messages_received > early.messages_received);
        }
        cluster.wait(task).unwrap();
        drop(observer);
        cluster.shutdown().unwrap();
        late
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"))
}

#[test]
fn a_slow_worker_is_named_and_all_tell_what_they_do() {
    let states = states(Some(SLOW));
    let names: Vec<_> = states.iter().map(|node| (node.role, node.rank)).collect();
    let (server, worker) = (Role::Server, Role::Worker);
    let expected = [(server, 0), (server, 1), (worker, 0), (worker, 1), (worker, 2), (worker, 3)];
    assert_eq!(names, expected);
    for node in &states {
        let vitals = node.vitals.unwrap();
        let slow = node.role == Role::Worker && node.rank == SLOW;
        assert_eq!(node.is_slow, slow, "{node:?}");
        assert!(vitals.bytes_sent > 0 && vitals.taken_ns > 10_000_000_000, "{node:?}");
        // Simulated runs repeat exactly, so that nothing of this process may show.
        assert_eq!((vitals.cpu_ns, vitals.memory_bytes, node.host.as_str()), (0, 0, ""));
        if node.role == Role::Worker {
            assert!(vitals.clock > 10, "{node:?}");
        }
    }
}

#[test]
fn equal_workers_are_not_slow() {
    assert!(states(None).iter().all(|node| !node.is_slow && node.behind < 0.4));
}

#[test]
fn who_does_not_know_the_secret_sees_nothing() {
    let mut config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
    config.node.secret = SecretSource::Given(Secret::random());
    let launch = Launch::Threads(Handles::default(), Apps::default());
    let cluster = Cluster::launch(&config, launch).unwrap();
    let mut node = cluster.config().node.clone();
    node.secret = SecretSource::Given(Secret::random());
    node.join_timeout = Duration::from_millis(200);
    let error = Observer::attach(&node).err().unwrap().to_string();
    assert!(error.contains("joining the cluster"), "{error}");
    let mut observer = Observer::attach(&cluster.config().node).unwrap();
    assert_eq!(observer.nodes().unwrap().len(), 3);
    cluster.shutdown().unwrap();
    let error = observer.nodes().err().unwrap().to_string();
    assert!(error.contains("the scheduler at"), "{error}");
}
