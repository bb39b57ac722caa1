//! Goal: a model passes from stage to stage without the servers: in one process without a message,
//! to another without a byte of table traffic; a model whose job is gone is freed.
//! Method: workers with stores of their own, as processes have them, and with a common one, run the
//! stages of a task; each counts what goes over its lanes to the servers.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::thread::JoinHandle;

use caravan_kv::node::{run_server, run_worker};
use caravan_kv::{App, Apps, Cluster, ClusterConfig, Handles, Launch, NodeConfig, WorkerNode};
use caravan_learn::task::schedule::Greedy;
use caravan_learn::task::{Engine, ModelStore, Models, Part, Stage, Trigger, Wants};
use serde_json::{Value, json};

/// Takes the model of the stage before, or reads it where several do, adds 1 to each byte, and
/// keeps it. Returns its length, its first byte, and the messages to and from servers.
struct Trains {
    models: Models,
}

impl App for Trains {
    fn run(&mut self, node: &mut WorkerNode, input: Value) -> Result<Value, String> {
        let (part, _) = Part::of(node, input)?;
        let traffic = |node: &WorkerNode| {
            let counters = node.worker.counters();
            counters.messages_sent + counters.messages_received
        };
        let before = traffic(node);
        let model = match part.body["from"].as_u64() {
            Some(from) if part.body["reads"] == true => {
                let model = self.models.read(node, "weights", &[from as usize])?;
                node.barrier("read").map_err(|error| error.to_string())?;
                model
            }
            Some(from) => self.models.take(node, "weights", from as usize)?,
            None => vec![0; part.body["bytes"].as_u64().unwrap_or(0) as usize].into(),
        };
        let model: Vec<u8> = model.iter().map(|byte| byte + 1).collect();
        let result = json!([model.len(), model.first(), traffic(node) - before]);
        self.models.keep(node, "weights", model);
        Ok(result)
    }
}

fn apps() -> (ModelStore, Apps) {
    let (store, apps) = ModelStore::with(Apps::default());
    let made = store.clone();
    (store, apps.with("trains", move || Box::new(Trains { models: made.models() })))
}

/// Runs stages at these workers, each with the model of the one before; returns the last result, or
/// why a stage failed.
fn train(cluster: &mut Cluster, bytes: usize, workers: &[usize]) -> Result<Value, String> {
    let stages = workers.iter().enumerate().map(|(at, worker)| {
        let from = at.checked_sub(1).map(|before| workers[before]);
        let body = json!({ "bytes": bytes, "from": from });
        Stage::new("trains", body, Wants::These(BTreeSet::from([*worker])))
    });
    let mut engine = Engine::new(cluster, Greedy, Trigger::AT_ONCE);
    engine.submit(stages.collect::<Vec<_>>().into_iter());
    let outcome = engine.run().unwrap().remove(0);
    outcome.map(|ended| ended.unwrap().results[0].clone())
}

/// A cluster of two workers with stores of their own.
fn apart() -> (Cluster, Vec<ModelStore>, Vec<JoinHandle<caravan_kv::Result<()>>>) {
    let scheduler = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let node = NodeConfig { scheduler, ..NodeConfig::default() };
    let config = ClusterConfig { workers: 2, node: node.clone(), ..ClusterConfig::default() };
    let (stores, apps): (Vec<ModelStore>, Vec<Apps>) = (0..2).map(|_| apps()).unzip();
    let mut nodes = Vec::new();
    for (rank, apps) in apps.into_iter().enumerate() {
        let node = node.clone();
        nodes.push(std::thread::spawn(move || run_worker(&node, Some(rank), &apps, false)));
    }
    let server = move || run_server(&node, Some(0), 1, &Handles::default(), false);
    nodes.push(std::thread::spawn(server));
    (Cluster::launch(&config, Launch::External).unwrap(), stores, nodes)
}

#[test]
fn models_pass_between_workers_without_the_servers() {
    let (mut cluster, stores, nodes) = apart();
    let kept = |stores: &[ModelStore]| stores.iter().map(ModelStore::len).collect::<Vec<_>>();
    // Of several pieces, of one, and of none.
    for bytes in [1_000_000, 256 << 10, 7, 0] {
        cluster.begin("job").unwrap();
        let result = train(&mut cluster, bytes, &[0, 1, 1, 0]).unwrap();
        let first = if bytes == 0 { Value::Null } else { json!(4) };
        assert_eq!(result, json!([bytes, first, 0]));
        assert_eq!(kept(&stores), [1, 0], "only the last worker has it");
        // What no stage takes is freed with its part of the job.
        cluster.end().unwrap();
        assert_eq!(kept(&stores), [0, 0]);
    }
    cluster.begin("job").unwrap();
    train(&mut cluster, 7, &[0]).unwrap();
    let passed = train(&mut cluster, 7, &[1, 1, 0, 1]).unwrap();
    assert_eq!(passed[1], 4, "each name is its own worker's");
    let mut engine = Engine::new(&mut cluster, Greedy, Trigger::AT_ONCE);
    let none = Stage::new("trains", json!({ "from": 0 }), Wants::These(BTreeSet::from([1])));
    engine.submit(vec![none.clone(), none].into_iter());
    let why = engine.run().unwrap().remove(0).unwrap_err();
    assert!(why.contains("worker 0 has no model \"weights\""), "{why}");
    cluster.shutdown().unwrap();
    nodes.into_iter().for_each(|node| node.join().unwrap().unwrap());
}

#[test]
fn several_workers_read_a_model_that_stays() {
    let (mut cluster, stores, nodes) = apart();
    // Of two pieces, of one, and of none.
    for (bytes, pieces) in [(300_000, 2), (7, 1), (0, 1)] {
        cluster.begin("job").unwrap();
        let before = stores[0].pieces_sent();
        let stage = |body: Value, workers: &[usize]| {
            let wants = Wants::These(workers.iter().copied().collect());
            Stage::new("trains", body, wants)
        };
        let mut engine = Engine::new(&mut cluster, Greedy, Trigger::AT_ONCE);
        let reads = stage(json!({ "from": 0, "reads": true }), &[0, 1]);
        engine.submit(vec![stage(json!({ "bytes": bytes }), &[0]), reads].into_iter());
        let outcome = engine.run().unwrap().remove(0).unwrap().unwrap();
        let first = if bytes == 0 { Value::Null } else { json!(2) };
        assert_eq!(outcome.results, vec![json!([bytes, first, 0]); 2]);
        assert_eq!(stores[0].pieces_sent() - before, pieces, "to the worker of another process");
        assert_eq!(stores.iter().map(ModelStore::len).collect::<Vec<_>>(), [1, 1]);
        cluster.end().unwrap();
        assert!(stores.iter().all(ModelStore::is_empty));
    }
    cluster.shutdown().unwrap();
    nodes.into_iter().for_each(|node| node.join().unwrap().unwrap());
}

#[test]
fn a_second_task_reads_the_model_of_the_first() {
    let (mut cluster, stores, nodes) = apart();
    cluster.begin("job").unwrap();
    train(&mut cluster, 9, &[0]).unwrap();
    let mut engine = Engine::new(&mut cluster, Greedy, Trigger::AT_ONCE);
    let body = json!({ "from": 0, "reads": true });
    let stage = Stage::new("trains", body, Wants::These(BTreeSet::from([1])));
    engine.submit(vec![stage; 2].into_iter());
    let outcome = engine.run().unwrap().remove(0).unwrap().unwrap();
    assert_eq!(outcome.results, [json!([9, 2, 0])]);
    assert_eq!(stores.iter().map(ModelStore::len).collect::<Vec<_>>(), [1, 1]);
    cluster.end().unwrap();
    assert!(stores.iter().all(ModelStore::is_empty));
    cluster.shutdown().unwrap();
    nodes.into_iter().for_each(|node| node.join().unwrap().unwrap());
}

#[test]
fn in_one_process_nothing_is_sent() {
    let (store, apps) = apps();
    let config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
    let launch = Launch::Threads(Handles::default(), apps);
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    cluster.begin("job").unwrap();
    assert_eq!(train(&mut cluster, 9, &[0, 1, 0]).unwrap(), json!([9, 3, 0]));
    assert_eq!((store.len(), store.pieces_sent()), (1, 0));
    cluster.end().unwrap();
    assert!(store.is_empty());
    cluster.shutdown().unwrap();
}
