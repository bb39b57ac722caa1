//! Goal: a model passes from stage to stage without the servers: in one process without a message,
//! to another without a byte of table traffic; a model whose task or job is gone is freed.
//! Method: workers with stores of their own, as processes have them, and with a common one, run the
//! stages of a task; each counts what goes over its lanes to the servers.

use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caravan_kv::node::{run_server, run_worker};
use caravan_kv::{App, Apps, Cluster, ClusterConfig, Handles, Launch, NodeConfig, WorkerNode};
use caravan_learn::task::schedule::Greedy;
use caravan_learn::task::{
    Ended, Engine, ModelStore, Models, Owner, Part, Stage, Task, Trigger, Wants,
};
use serde_json::{Value, json};

/// Takes the model of the stage before, or reads it where several do, adds 1 to each byte, and
/// keeps it, all as one of the task or of the job. Returns its length, its first byte, and the
/// messages to and from servers.
struct Trains {
    models: Models,
}

impl App for Trains {
    fn run(&mut self, node: &mut WorkerNode, input: Value) -> Result<Value, String> {
        let (part, _) = Part::of(node, input)?;
        let traffic = |node: &WorkerNode| {
            let counters = node.worker.info().counters();
            counters.messages_sent + counters.messages_received
        };
        let before = traffic(node);
        let owner = match part.body["job"] == true {
            true => Owner::job(node),
            false => Owner::from(&part),
        };
        let model = match part.body["from"].as_u64() {
            Some(from) if part.body["reads"] == true => {
                let model = self.models.read(node, owner.clone(), "weights", &[from as usize])?;
                node.barrier("read").map_err(|error| error.to_string())?;
                model
            }
            Some(from) => self.models.take(node, owner.clone(), "weights", from as usize)?,
            None => vec![0; part.body["bytes"].as_u64().unwrap_or(0) as usize].into(),
        };
        let model: Vec<u8> = model.iter().map(|byte| byte + 1).collect();
        let result = json!([model.len(), model.first(), traffic(node) - before]);
        self.models.keep(node, owner, "weights", model);
        match part.body["fails"] == true {
            true => Err("it should".to_owned()),
            false => Ok(result),
        }
    }
}

fn apps() -> (ModelStore, Apps) {
    let (store, apps) = ModelStore::with(Apps::default());
    let made = store.clone();
    (store, apps.with("trains", move || Box::new(Trains { models: made.models() })))
}

fn stage(body: Value, workers: &[usize]) -> Stage {
    Stage::new("trains", body, Wants::These(workers.iter().copied().collect()))
}

fn kept(stores: &[ModelStore]) -> Vec<usize> {
    stores.iter().map(ModelStore::len).collect()
}

/// Runs stages at these workers, each with the job's model from the one before; returns the last
/// result, or why a stage failed.
fn train(cluster: &mut Cluster, bytes: usize, workers: &[usize]) -> Result<Value, String> {
    let stages = workers.iter().enumerate().map(|(at, worker)| {
        let from = at.checked_sub(1).map(|before| workers[before]);
        stage(json!({ "bytes": bytes, "from": from, "job": true }), &[*worker])
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
    let none = stage(json!({ "from": 0, "job": true }), &[1]);
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
        let mut engine = Engine::new(&mut cluster, Greedy, Trigger::AT_ONCE);
        let reads = stage(json!({ "from": 0, "reads": true, "job": true }), &[0, 1]);
        let keeps = stage(json!({ "bytes": bytes, "job": true }), &[0]);
        engine.submit(vec![keeps, reads].into_iter());
        let outcome = engine.run().unwrap().remove(0).unwrap().unwrap();
        let first = if bytes == 0 { Value::Null } else { json!(2) };
        assert_eq!(outcome.results, vec![json!([bytes, first, 0]); 2]);
        assert_eq!(stores[0].pieces_sent() - before, pieces, "to the worker of another process");
        assert_eq!(kept(&stores), [1, 1]);
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
    let reads = stage(json!({ "from": 0, "reads": true, "job": true }), &[1]);
    engine.submit(vec![reads; 2].into_iter());
    let outcome = engine.run().unwrap().remove(0).unwrap().unwrap();
    assert_eq!(outcome.results, [json!([9, 2, 0])]);
    assert_eq!(kept(&stores), [1, 1]);
    cluster.end().unwrap();
    assert!(stores.iter().all(ModelStore::is_empty));
    cluster.shutdown().unwrap();
    nodes.into_iter().for_each(|node| node.join().unwrap().unwrap());
}

/// A task of two stages, which looks at what workers keep between them and at its end.
struct Looks<F> {
    stages: std::vec::IntoIter<Stage>,
    look: F,
}

impl<F: FnMut()> Task for Looks<F> {
    fn next(&mut self, last: Option<&Ended>) -> Option<Stage> {
        if last.is_some() {
            (self.look)();
        }
        Task::next(&mut self.stages, last)
    }
}

/// Waits until the workers keep so many models.
fn wait_for(stores: &[ModelStore], wanted: [usize; 2]) {
    let began = Instant::now();
    while kept(stores) != wanted {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?} kept", kept(stores));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_model_whose_task_is_gone_is_freed() {
    let (mut cluster, stores, nodes) = apart();
    cluster.begin("job").unwrap();
    let mut engine = Engine::new(&mut cluster, Greedy, Trigger::AT_ONCE);
    // Three tasks keep a model of the same name at worker 0: one ends, one fails, one goes on.
    engine.submit(vec![stage(json!({ "bytes": 7 }), &[0, 1])].into_iter());
    engine.submit(vec![stage(json!({ "bytes": 8, "fails": true }), &[0, 1])].into_iter());
    let mut looks = 0;
    let stages = vec![stage(json!({ "bytes": 9 }), &[0]), stage(json!({ "from": 0 }), &[1])];
    let look = || {
        wait_for(&stores, [[1, 0], [0, 1]][looks]);
        looks += 1;
    };
    engine.submit(Looks { stages: stages.into_iter(), look });
    let outcomes = engine.run().unwrap();
    assert!(outcomes[1].as_ref().unwrap_err().contains("it should"), "{outcomes:?}");
    assert_eq!(outcomes[2].as_ref().unwrap().as_ref().unwrap().results, [json!([9, 2, 0])]);
    assert_eq!(looks, 2);
    // The last task has ended, too, and the job goes on.
    wait_for(&stores, [0, 0]);
    train(&mut cluster, 5, &[1]).unwrap();
    assert_eq!(kept(&stores), [0, 1], "the job's");
    cluster.end().unwrap();
    assert_eq!(kept(&stores), [0, 0]);
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
