//! Goal: joining, heartbeats and the loss of nodes run in simulated time, the same for the same
//! seed, and whoever waits names the node that is lost.
//! Method: whole clusters on a simulated network whose nodes are crashed, frozen or cut off at
//! known times; what happens is written into a log with its time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, NodeConfig, TableSpec, Target,
    ValueType, WorkerNode,
};
use caravan_van::sim::{Faults, Network, for_each_seed};
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);

/// Time between two heartbeats. A node is lost after five times as long, a server that may be lost
/// after twice.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// How late a loss may be noticed, at most: the patience, and messages on the way.
const NOTICED: Duration = Duration::from_millis(600);

/// What happened, and when.
type Log = Arc<Mutex<Vec<(Duration, String)>>>;

fn note(log: &Log, at: Duration, what: impl Into<String>) {
    log.lock().unwrap().push((at, what.into()));
}

/// Pushes and pulls until that fails, or waits at a barrier; notes the error.
struct Waits(Log);

impl App for Waits {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let mut waits = || -> Result<(), Error> {
            let table =
                node.worker.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 1))?;
            if body["meets"] == true {
                if node.rank == 1 {
                    node.worker.charge(3600 * SECOND)?;
                }
                return node.barrier("here");
            }
            loop {
                let pushed = node.worker.push_pull(table, &[0, u64::MAX], &[1i64, 1])?;
                node.worker.wait(pushed)?;
                node.worker.charge(Duration::from_millis(10))?;
            }
        };
        let Err(error) = waits() else { return Ok(Value::Null) };
        let error = error.to_string();
        note(&self.0, node.worker.now(), format!("worker {}: {error}", node.rank));
        Err(error)
    }
}

/// What befalls the cluster of a run.
#[derive(Clone, Copy)]
struct Fate {
    /// Done by another node one second after the start, when the cluster works, or at once, before
    /// nodes join.
    harm: fn(&Network),
    at_once: bool,
    /// Input of the task.
    meets: bool,
    /// The driver computes for so long before it waits for the task.
    computes: Duration,
}

const NOTHING: Fate = Fate { harm: |_| (), at_once: false, meets: false, computes: SECOND };

/// Runs two servers and two workers until the driver's wait fails; returns the log, in which the
/// driver's entries come from its node alone.
fn run(seed: u64, fate: Fate) -> Vec<(Duration, String)> {
    let faults = Faults { detection: 3600 * SECOND, ..Faults::jittery() };
    let network = Network::new(seed, faults);
    let log = Log::default();
    let drives = log.clone();
    let driver = network.spawn("driver", move |network| {
        let harms = move |network: &Network| {
            if !fate.at_once {
                network.sleep(SECOND);
            }
            (fate.harm)(network);
        };
        network.spawn("fate", harms);
        let apps = drives.clone();
        let apps = Apps::default().with("waits", move || Box::new(Waits(apps.clone())));
        let node =
            NodeConfig { heartbeat: HEARTBEAT, join_timeout: 10 * SECOND, ..NodeConfig::default() };
        let config = ClusterConfig { servers: 2, workers: 2, node, ..ClusterConfig::default() };
        let drive = || -> Result<(), Error> {
            let mut cluster =
                Cluster::launch(&config, Launch::Simulated(Handles::default(), apps))?;
            note(&drives, network.now(), "complete");
            let body = serde_json::json!({ "meets": fate.meets });
            let task = cluster.submit(Target::Workers, "waits", &body)?;
            network.sleep(fate.computes);
            note(&drives, network.now(), "waits");
            let waited = cluster.wait(task).map(drop);
            // What the driver pushes and pulls itself waits for nobody either.
            if let Err(lost) = &waited {
                let client = cluster.client().map(drop).unwrap_err();
                assert_eq!(client.to_string(), lost.to_string());
            }
            waited
        };
        let error = drive().unwrap_err().to_string();
        note(&drives, network.now(), format!("driver: {error}"));
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    drop(network);
    Arc::into_inner(log).unwrap().into_inner().unwrap()
}

/// The time of the first entry that contains this.
fn time_of(log: &[(Duration, String)], what: &str) -> Duration {
    let found = log.iter().find(|(_, entry)| entry.contains(what));
    found.unwrap_or_else(|| panic!("no {what}: {log:?}")).0
}

/// Runs every seed twice and hands over its log.
fn for_each_log(fate: Fate, check: impl Fn(&[(Duration, String)])) {
    for_each_seed(6, |seed| {
        let log = run(seed, fate);
        check(&log);
        assert_eq!(log, run(seed, fate), "seed {seed}");
    });
}

#[test]
fn a_frozen_server_is_named_by_worker_and_driver_in_time() {
    let harm = |network: &Network| network.freeze("server 1", 3600 * SECOND);
    for_each_log(Fate { harm, ..NOTHING }, |log| {
        for who in ["worker 0: server 1", "worker 1: server 1", "driver: server 1"] {
            let at = time_of(log, who);
            assert!(at > SECOND && at < SECOND + NOTICED, "{who}: {log:?}");
        }
        let said = &log.last().unwrap().1;
        assert!(said.contains("no heartbeat for 0."), "{log:?}");
        assert!(
            said.contains("CARAVAN_SERVER_LOSSES_MAX=0") && said.contains("replicas"),
            "{said}"
        );
    });
}

#[test]
fn a_frozen_worker_is_named_at_the_barrier() {
    let harm = |network: &Network| network.freeze("worker 1", 3600 * SECOND);
    for_each_log(Fate { harm, meets: true, ..NOTHING }, |log| {
        let at = time_of(log, "worker 0: worker 1");
        assert!(at > SECOND && at < SECOND + NOTICED, "{log:?}");
        time_of(log, "driver: worker 1");
    });
}

/// Workers hear of the loss while the driver computes; it hears of it afterwards.
#[test]
fn a_driver_that_computes_keeps_no_worker_waiting() {
    let harm = |network: &Network| network.freeze("server 0", 3600 * SECOND);
    for_each_log(Fate { harm, computes: 60 * SECOND, ..NOTHING }, |log| {
        let [complete, told, other, waits, driver] = log else { panic!("{log:?}") };
        assert!(complete.1 == "complete" && waits.1 == "waits", "{log:?}");
        assert!(told.0 < SECOND + NOTICED && other.0 < SECOND + NOTICED, "{log:?}");
        assert!(told.1.contains("server 0") && driver.1.contains("server 0"), "{log:?}");
        assert!(waits.0 > 60 * SECOND && driver.0 < 61 * SECOND, "{log:?}");
    });
}

/// A crash is noticed by the heartbeats as well: the network itself needs an hour.
#[test]
fn a_crashed_node_is_named() {
    for_each_log(Fate { harm: |network| network.crash("server 1"), ..NOTHING }, |log| {
        let at = time_of(log, "driver: server 1");
        assert!(at > SECOND && at < SECOND + NOTICED, "{log:?}");
    });
}

/// A node that is cut off counts as lost, although it lives.
#[test]
fn a_node_that_is_cut_off_is_named() {
    let harm = |network: &Network| network.cut("driver", "worker 1", 60 * SECOND);
    for_each_log(Fate { harm, ..NOTHING }, |log| {
        let at = time_of(log, "driver: worker 1");
        assert!(at > SECOND && at < SECOND + NOTICED, "{log:?}");
    });
}

/// Less than five heartbeats harm nobody.
#[test]
fn a_short_stop_is_no_loss() {
    let harm = |network: &Network| {
        for name in ["server 0", "server 1", "worker 0", "worker 1"] {
            network.freeze(name, 3 * HEARTBEAT);
            network.sleep(SECOND);
        }
        network.freeze("worker 0", 3600 * SECOND);
    };
    for_each_log(Fate { harm, ..NOTHING }, |log| {
        let at = time_of(log, "driver: worker 0");
        assert!(at > 5 * SECOND && at < 5 * SECOND + NOTICED, "{log:?}");
    });
}

/// Pushes to a table with replicas go on two heartbeats after their server has stopped. Of a server
/// that may not be lost it takes five.
#[test]
fn a_server_that_may_be_lost_is_given_up_sooner() {
    for_each_seed(6, |seed| {
        let network = Network::new(seed, Faults { detection: 3600 * SECOND, ..Faults::jittery() });
        let driver = network.spawn("driver", move |network| {
            let node =
                NodeConfig { heartbeat: HEARTBEAT, server_losses_max: 1, ..NodeConfig::default() };
            let config = ClusterConfig { servers: 3, workers: 0, node, ..ClusterConfig::default() };
            let launch = Launch::Simulated(Handles::default(), Apps::default());
            let cluster = Cluster::launch(&config, launch).unwrap();
            let mut client = cluster.client().unwrap();
            let spec = TableSpec::new(1, "t", ValueType::I64, 1).replicas(1);
            let table = client.admin().create_table(&spec).unwrap();
            let mut push_without = |server: &str| {
                network.freeze(server, 3600 * SECOND);
                let began = network.now();
                let pushed = client.push(table, &[0, u64::MAX], &[1_i64, 1]).unwrap();
                (client.wait(pushed).map(drop), network.now() - began)
            };
            network.sleep(SECOND);
            let (pushed, took) = push_without("server 0");
            pushed.unwrap();
            assert!(took > HEARTBEAT && took < 3 * HEARTBEAT, "seed {seed}: {took:?}");
            let (lost, took) = push_without("server 1");
            let lost = lost.unwrap_err().to_string();
            assert!(lost.contains("CARAVAN_SERVER_LOSSES_MAX=1"), "seed {seed}: {lost}");
            assert!(took > 4 * HEARTBEAT && took < NOTICED, "seed {seed}: {took:?}");
        });
        driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    });
}

/// The driver's own process counts nobody as silent for the time in which it was frozen itself.
#[test]
fn a_driver_that_stood_still_misses_nobody() {
    let harm = |network: &Network| {
        network.freeze("driver", 4 * SECOND);
        network.sleep(5 * SECOND);
        network.freeze("server 0", 3600 * SECOND);
    };
    for_each_log(Fate { harm, ..NOTHING }, |log| {
        let at = time_of(log, "driver: server 0");
        assert!(at > 6 * SECOND && at < 6 * SECOND + NOTICED, "{log:?}");
    });
}

/// Nobody is missed if a clock runs 5 % too fast: that of the scheduler, a server or a worker.
#[test]
fn a_clock_that_runs_too_fast_misses_nobody() {
    fn skew(network: &Network, name: &str) {
        network.skew(name, 1.05);
        network.sleep(20 * SECOND);
        network.freeze("server 0", 3600 * SECOND);
    }
    let harms: [fn(&Network); 3] =
        [|it| skew(it, "driver"), |it| skew(it, "server 0"), |it| skew(it, "worker 1")];
    for harm in harms {
        for_each_log(Fate { harm, ..NOTHING }, |log| {
            let at = time_of(log, "driver: server 0");
            assert!(at > 20 * SECOND && at < 21 * SECOND + NOTICED, "{log:?}");
        });
    }
}

/// A node that comes late is waited for; one that does not come is named when the time is over.
#[test]
fn nodes_join_in_simulated_time() {
    let late = |network: &Network| {
        network.cut("driver", "worker 1", 5 * SECOND);
        network.sleep(10 * SECOND);
        network.crash("worker 0");
    };
    for_each_log(Fate { harm: late, at_once: true, ..NOTHING }, |log| {
        let at = time_of(log, "complete");
        assert!(at > 5 * SECOND && at < 6 * SECOND, "{log:?}");
    });
    let never = |network: &Network| network.cut("driver", "worker 1", 3000 * SECOND);
    for_each_log(Fate { harm: never, at_once: true, ..NOTHING }, |log| {
        let [(at, error)] = log else { panic!("{log:?}") };
        assert!(error.ends_with("missing: worker 1"), "{log:?}");
        assert!(*at > 10 * SECOND && *at < 13 * SECOND, "{log:?}");
    });
}

/// Meets the others twice, the second time with a worker less.
struct Meets;

impl App for Meets {
    fn run(&mut self, node: &mut WorkerNode, _: Value) -> Result<Value, String> {
        let mut meets = || -> Result<Duration, Error> {
            node.barrier("all")?;
            node.worker.charge(SECOND)?;
            node.barrier("all")?;
            Ok(node.worker.now())
        };
        meets().map(|at| Value::from(at.as_secs_f64())).map_err(|error| error.to_string())
    }
}

/// A frozen worker that the cluster spares keeps the others waiting until it counts as lost. When
/// it wakes it hears that it is out. A task for it alone fails.
#[test]
fn the_others_go_on_without_a_frozen_worker() {
    for_each_seed(6, |seed| {
        let network = Network::new(seed, Faults { detection: 3600 * SECOND, ..Faults::jittery() });
        let driver = network.spawn("driver", |network| {
            let fate = |network: &Network| {
                network.sleep(SECOND);
                network.freeze("worker 0", 3 * SECOND);
            };
            network.spawn("fate", fate);
            let node = NodeConfig {
                heartbeat: HEARTBEAT,
                join_timeout: 10 * SECOND,
                losses_max: 1,
                ..NodeConfig::default()
            };
            let config = ClusterConfig { servers: 1, workers: 3, node, ..ClusterConfig::default() };
            let apps = Apps::default().with("meets", || Box::new(Meets));
            let launch = Launch::Simulated(Handles::default(), apps);
            let mut cluster = Cluster::launch(&config, launch).unwrap();
            let task = cluster.submit(Target::Workers, "meets", &Value::Null).unwrap();
            let met = cluster.wait(task).unwrap();
            assert_eq!(met.len(), 2);
            for at in met {
                let at = Duration::from_secs_f64(at.as_f64().unwrap());
                assert!(at > SECOND && at < SECOND + SECOND / 5 + NOTICED, "{at:?}");
            }
            let only = cluster.submit(Target::Worker(0), "meets", &Value::Null).unwrap_err();
            assert!(only.to_string().contains("worker 0"), "{only}");
            let task = cluster.submit(Target::Workers, "meets", &Value::Null).unwrap();
            assert_eq!(cluster.wait(task).unwrap().len(), 2);
            network.sleep(5 * SECOND);
            cluster.shutdown().unwrap();
        });
        driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    });
}
