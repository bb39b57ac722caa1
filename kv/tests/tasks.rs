//! Goal: tasks start when those that they wait for are finished, also their sub-tasks, at each
//! worker by itself; graphs are shipped, and virtual tasks are finished by their driver. Where one
//! worker fails the others wait for it no longer.
//! Method: whole clusters on the simulated network, whose apps write into a log.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, Step, TableSpec, Target, ValueType,
    WorkerNode,
};
use caravan_van::sim::{Faults, Network, for_each_seed};
use serde_json::{Value, json};

const WORKERS: usize = 3;

/// Which app has begun and ended where, as "name rank begins".
type Log = Arc<Mutex<Vec<String>>>;

/// Does what its input says: takes some milliseconds, starts sub-tasks, waits for others, fails.
struct Does(Log);

impl App for Does {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let name = body["name"].as_str().unwrap();
        let rank = node.rank;
        let note = |what: &str| self.0.lock().unwrap().push(format!("{name} {rank} {what}"));
        note("begins");
        let part = &body["part"];
        if !part.is_null() {
            let to =
                part["to"].as_u64().map_or(Target::Workers, |rank| Target::Worker(rank as usize));
            node.spawn(to, "does", part).map_err(|error| error.to_string())?;
        }
        let slower = if body["slow"] == rank { 1000 } else { 1 };
        Network::here().unwrap().sleep(Duration::from_millis(slower));
        if body["fails_at"] == rank {
            return Err(format!("{name} was told to"));
        }
        if body["meets"] == true {
            node.barrier("here").map_err(|error| error.to_string())?;
        }
        if body["steps"] == true {
            step(node).map_err(|error| error.to_string())?;
        }
        note("ends");
        match body["fails"].as_bool() {
            Some(true) => Err(format!("{name} was told to")),
            _ => Ok(json!(format!("{name} {}", node.rank))),
        }
    }
}

/// Takes two iterations of a table under BSP, of which nobody gets past the first alone.
fn step(node: &mut WorkerNode) -> caravan_kv::Result<()> {
    let spec =
        TableSpec::new(1, "steps", ValueType::I64, 1).consistency(Model::Bsp, WORKERS as u32);
    let worker = &mut node.worker;
    let table = worker.admin().create_table(&spec)?;
    worker.clocks(table).join()?;
    for _ in 0..2 {
        let pulled = worker.pull(table, &[1])?;
        worker.wait(pulled)?;
        worker.clocks(table).push_last(&[1], &[1_i64])?;
    }
    let left = worker.clocks(table).leave()?;
    worker.wait(left).map(drop)
}

/// Runs `drive` as the driver of three workers; returns the log.
fn run(seed: u64, drive: impl Fn(&mut Cluster) + Send + 'static) -> Vec<String> {
    let network = Network::new(seed, Faults::jittery());
    let log = Log::default();
    let noted = log.clone();
    let driver = network.spawn("driver", move |_| {
        let apps = Apps::default().with("does", move || Box::new(Does(noted.clone())));
        let config = ClusterConfig { workers: WORKERS, ..ClusterConfig::default() };
        let launch = Launch::Simulated(Handles::default(), apps);
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        drive(&mut cluster);
        cluster.shutdown().unwrap();
    });
    driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    let log = log.lock().unwrap();
    log.clone()
}

fn at(log: &[String], what: &str) -> usize {
    log.iter().position(|line| line == what).unwrap_or_else(|| panic!("no {what}: {log:?}"))
}

#[test]
fn a_task_starts_at_each_worker_when_those_before_are_finished_there() {
    for_each_seed(10, |seed| {
        let log = run(seed, |cluster| {
            let first = json!({ "name": "first", "slow": 2 });
            let first = cluster.submit(Target::Workers, "does", &first).unwrap();
            let both = json!({ "name": "both" });
            let both = cluster.submit_after(&[first], Target::Workers, "does", &both).unwrap();
            let own = json!({ "name": "own" });
            let own =
                cluster.submit_after(&[first, both], Target::Worker(1), "does", &own).unwrap();
            // Worker 0 does not run it, so it waits for its end there.
            let last = json!({ "name": "last" });
            let last = cluster.submit_after(&[own], Target::Worker(0), "does", &last).unwrap();
            assert_eq!(cluster.wait(last).unwrap(), [json!("last 0")]);
            let ends: Vec<Value> = (0..3).map(|rank| json!(format!("both {rank}"))).collect();
            assert_eq!(cluster.wait(both).unwrap(), ends);
            cluster.wait(own).unwrap();
            cluster.wait(first).unwrap();
        });
        assert!(at(&log, "own 1 begins") < at(&log, "first 2 ends"), "{log:?}");
        assert!(at(&log, "own 1 ends") < at(&log, "last 0 begins"), "{log:?}");
        for rank in 0..WORKERS {
            let ends = at(&log, &format!("first {rank} ends"));
            assert!(ends < at(&log, &format!("both {rank} begins")), "{log:?}");
        }
    });
}

#[test]
fn a_task_is_finished_when_its_sub_tasks_are() {
    for_each_seed(10, |seed| {
        let log = run(seed, |cluster| {
            let leaf = json!({ "name": "leaf", "slow": 0, "to": 0 });
            let part = json!({ "name": "part", "slow": 2, "part": leaf });
            let whole = json!({ "name": "whole", "part": part });
            let whole = cluster.submit(Target::Worker(1), "does", &whole).unwrap();
            let next = json!({ "name": "next" });
            let next = cluster.submit_after(&[whole], Target::Worker(1), "does", &next).unwrap();
            assert_eq!(cluster.wait(whole).unwrap(), [json!("whole 1")]);
            cluster.wait(next).unwrap();
        });
        assert!(at(&log, "whole 1 ends") < at(&log, "part 2 ends"), "{log:?}");
        assert_eq!(log.iter().filter(|line| line.starts_with("leaf 0 ends")).count(), 3, "{log:?}");
        let last = log.iter().rposition(|line| line == "leaf 0 ends").unwrap();
        assert!(last < at(&log, "next 1 begins"), "{log:?}");
    });
}

#[test]
fn a_failed_sub_task_is_named_by_its_task() {
    run(1, |cluster| {
        let part = json!({ "name": "part", "fails": true, "to": 2 });
        let whole = json!({ "name": "whole", "part": part });
        let whole = cluster.submit(Target::Worker(0), "does", &whole).unwrap();
        let next = json!({ "name": "next" });
        let next = cluster.submit_after(&[whole], Target::Workers, "does", &next).unwrap();
        let error = cluster.wait(whole).unwrap_err();
        let Error::TaskFailed { node, reason, .. } = &error else { panic!("{error}") };
        assert_eq!(node, "worker 0");
        assert!(reason.contains("worker 2") && reason.contains("part was told to"), "{reason}");
        assert_eq!(cluster.wait(next).unwrap().len(), 3, "what waited goes on");
        let lost = json!({ "name": "whole", "part": { "name": "part", "to": 7 } });
        let lost = cluster.submit(Target::Worker(0), "does", &lost).unwrap();
        let error = cluster.wait(lost).unwrap_err().to_string();
        assert!(error.contains("no worker 7"), "{error}");
    });
}

#[test]
fn who_waits_for_a_worker_that_has_failed_ends_with_its_reason() {
    for_each_seed(10, |seed| {
        let log = run(seed, |cluster| {
            for part in ["meets", "steps"] {
                cluster.begin(part).unwrap();
                let good = json!({ "name": "good", part: true });
                let good_one = cluster.submit(Target::Workers, "does", &good).unwrap();
                assert_eq!(cluster.wait(good_one).unwrap().len(), WORKERS);
                cluster.end().unwrap();
                cluster.begin(part).unwrap();
                let began = cluster.now();
                let busy = json!({ "name": "busy", "slow": 2 });
                let busy = cluster.submit(Target::Worker(2), "does", &busy).unwrap();
                let bad = json!({ "name": part, part: true, "fails_at": 1 });
                let bad = cluster.submit(Target::Workers, "does", &bad).unwrap();
                let error = cluster.wait(bad).unwrap_err();
                let Error::TaskFailed { node, app, reason } = &error else { panic!("{error}") };
                assert_eq!((&node[..], &app[..]), ("worker 1", "does"));
                assert_eq!(reason, &format!("{part} was told to"));
                let took = cluster.now() - began;
                assert!(took < Duration::from_secs(5), "it waits for a timeout: {took:?}");
                cluster.wait(busy).unwrap();
                cluster.end().unwrap();
            }
        });
        for part in ["meets", "steps"] {
            at(&log, &format!("{part} 0 begins"));
            assert!(!log.contains(&format!("{part} 0 ends")), "{log:?}");
            assert!(!log.contains(&format!("{part} 2 begins")), "it was not begun: {log:?}");
        }
    });
}

#[test]
fn the_driver_finishes_virtual_tasks() {
    let log = run(1, |cluster| {
        let promise = cluster.promise().unwrap();
        let second = json!({ "name": "second" });
        let second = cluster.submit_after(&[promise], Target::Workers, "does", &second).unwrap();
        let first = json!({ "name": "first", "slow": 1 });
        let first = cluster.submit(Target::Workers, "does", &first).unwrap();
        cluster.wait(first).unwrap();
        assert!(matches!(cluster.finish(second), Err(Error::UnknownTimestamp { .. })));
        cluster.finish(promise).unwrap();
        assert_eq!(cluster.wait(second).unwrap().len(), 3);
        assert!(cluster.wait(promise).unwrap().is_empty());
        // Its number is known for good.
        let third = json!({ "name": "third" });
        let third = cluster.submit_after(&[promise], Target::Workers, "does", &third).unwrap();
        cluster.wait(third).unwrap();
        assert!(cluster.finish(promise).is_err());
    });
    assert!(at(&log, "first 1 ends") < at(&log, "second 1 begins"), "{log:?}");
}

#[test]
fn a_graph_is_shipped_and_run_by_each_worker() {
    let log = run(1, |cluster| {
        let step = |name: &str, fails: bool, after: &[usize]| Step {
            app: "does".to_owned(),
            body: json!({ "name": name, "fails": fails }),
            after: after.to_vec(),
        };
        let good = [step("a", false, &[]), step("b", false, &[0]), step("c", false, &[0, 1])];
        let done = cluster.submit_steps(&[], Target::Workers, &good).unwrap();
        let results = cluster.wait(done).unwrap();
        assert_eq!(results[2], json!(["a 2", "b 2", "c 2"]));
        let bad = [step("d", true, &[]), step("e", false, &[0]), step("f", false, &[])];
        let failed = cluster.submit_steps(&[done], Target::Worker(1), &bad).unwrap();
        let error = cluster.wait(failed).unwrap_err().to_string();
        assert!(error.contains("step 0: d was told to; step 1: step 0, for which"), "{error}");
        let circle = [step("g", false, &[1]), step("h", false, &[0])];
        let error = cluster.submit_steps(&[], Target::Workers, &circle).unwrap_err().to_string();
        assert!(error.contains("step 0 waits for step 1"), "{error}");
    });
    assert!(at(&log, "d 1 ends") < at(&log, "f 1 begins"));
    assert!(!log.iter().any(|line| line.starts_with('e') || line.starts_with('g')), "{log:?}");
}

/// A long chain is submitted at once: nobody waits for the driver, and workers get no more tasks at
/// a time than they may have.
#[test]
fn a_long_chain_runs_by_itself() {
    let log = run(1, |cluster| {
        let mut after = Vec::new();
        for number in 0..200 {
            let body = json!({ "name": format!("task-{number}") });
            let task = cluster.submit_after(&after, Target::Worker(number % 3), "does", &body);
            after = vec![task.unwrap()];
        }
        assert_eq!(cluster.wait(after[0]).unwrap(), [json!("task-199 1")]);
        let unknown = unknown_task(cluster);
        assert!(unknown.contains("there is no task"), "{unknown}");
    });
    let begins: Vec<&String> = log.iter().filter(|line| line.ends_with("begins")).collect();
    let in_order = |(number, line): (usize, &&String)| line.starts_with(&format!("task-{number} "));
    assert!(begins.len() == 200 && begins.iter().enumerate().all(in_order));
}

/// The refusal of a task that waits for one of another cluster.
fn unknown_task(cluster: &mut Cluster) -> String {
    let other = Network::new(2, Faults::none());
    let number = other.spawn("driver", |_| {
        let config = ClusterConfig::default();
        let apps = Apps::default().with("does", || Box::new(Does(Log::default())));
        let mut other =
            Cluster::launch(&config, Launch::Simulated(Handles::default(), apps)).unwrap();
        let mut last = other.promise().unwrap();
        for _ in 0..1000 {
            last = other.promise().unwrap();
        }
        last
    });
    let number = number.join().unwrap();
    let body = json!({ "name": "never" });
    cluster.submit_after(&[number], Target::Workers, "does", &body).unwrap_err().to_string()
}

#[test]
fn tasks_at_some_workers_run_at_once_and_meet_by_themselves() {
    for_each_seed(10, |seed| {
        let log = run(seed, |cluster| {
            let slow = json!({ "name": "slow", "meets": true, "slow": 2 });
            let some = Target::Some(vec![2, 0, 2]);
            let slow = cluster.submit(some, "does", &slow).unwrap();
            let fast = json!({ "name": "fast", "meets": true });
            let fast = cluster.submit(Target::Some(vec![1]), "does", &fast).unwrap();
            let brief = Duration::from_millis(1);
            assert_eq!(cluster.wait_first(&[slow], brief).unwrap(), None, "it takes a second");
            let long = Duration::from_secs(10);
            assert_eq!(cluster.wait_first(&[slow, fast], long).unwrap(), Some(fast));
            assert_eq!(cluster.wait(fast).unwrap(), [json!("fast 1")]);
            assert_eq!(cluster.wait_first(&[slow, fast], long).unwrap(), Some(fast), "is unknown");
            assert_eq!(cluster.wait_first(&[slow], long).unwrap(), Some(slow));
            assert_eq!(cluster.wait(slow).unwrap(), [json!("slow 0"), json!("slow 2")]);
            for (ranks, why) in [(vec![1, 3], "no worker 3"), (Vec::new(), "needs a worker")] {
                let wrong = cluster.submit(Target::Some(ranks), "does", &json!({ "name": "no" }));
                let wrong = wrong.unwrap_err().to_string();
                assert!(wrong.contains(why), "{wrong}");
            }
        });
        assert!(at(&log, "fast 1 ends") < at(&log, "slow 2 ends"), "{log:?}");
    });
}
