//! Goal: push and pull return what was pushed, over every van between threads, for any shape of the
//! cluster.
//! Method: a whole embedded cluster in this process, with real sockets, driven like an application.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{any, auto_may_take, node, vans};
use caravan_kv::consistency::Model;
use caravan_kv::history;
use caravan_kv::node::{SchedulerClient, is_built, run_server, run_worker};
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Handles, Launch, NodeConfig, TableSpec, Target, ValueType,
    Van, WorkerNode,
};
use serde_json::{Value, json};

struct PushPull;

impl App for PushPull {
    fn run(&mut self, node: &mut WorkerNode, _body: Value) -> Result<Value, String> {
        push_pull(node).map_err(|error| error.to_string())
    }
}

fn push_pull(node: &mut WorkerNode) -> caravan_kv::Result<Value> {
    let worker = &mut node.worker;
    let table = worker.admin().create_table(&TableSpec::new(1, "weights", ValueType::F32, 2))?;
    let keys: Vec<u64> = (0..1000).map(|i| i * (u64::MAX / 999)).collect();
    let values: Vec<f32> = (0..2000).map(|i| i as f32).collect();
    let pushed = worker.push(table, &keys, &values)?;
    worker.wait(pushed)?;
    node.barrier("pushed")?;
    let worker = &mut node.worker;
    let pulled = worker.pull(table, &keys)?;
    let answer = worker.wait(pulled)?;
    let workers = node.workers as f32;
    let right =
        answer.values::<f32>().iter().zip(&values).filter(|(a, b)| **a == workers * **b).count();
    Ok(json!({ "right": right }))
}

fn apps() -> Apps {
    Apps::default().with("push-pull", || Box::new(PushPull))
}

fn run(van: Van, servers: usize, threads: usize, workers: usize) {
    run_with(node(van), servers, threads, workers);
}

fn run_with(node: NodeConfig, servers: usize, threads: usize, workers: usize) {
    let van = node.van;
    let config = ClusterConfig { servers, threads, workers, node };
    let launch = Launch::Threads(Handles::default(), apps());
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    let taken = cluster.config().node.van;
    assert!(taken == van || van == Van::Auto && auto_may_take(taken), "{taken}");
    let task = cluster.submit(Target::Workers, "push-pull", &Value::Null).unwrap();
    let answers = cluster.wait(task).unwrap();
    assert_eq!(answers, vec![json!({ "right": 2000 }); workers]);
    cluster.shutdown().unwrap();
}

#[test]
fn one_of_each() {
    vans().into_iter().chain([Van::Auto]).for_each(|van| run(van, 1, 1, 1));
}

#[test]
fn many_of_each() {
    for van in vans() {
        run(van, 2, 2, 3);
        run(van, 3, 1, 4);
    }
}

/// The control plane has its own number of credits, which must fit settings for few credits.
#[test]
fn any_documented_number_of_credits_works() {
    for van in vans() {
        for credits in [1, 2, 47, 4096] {
            run_with(NodeConfig { credits, ..node(van) }, 2, 1, 2);
        }
    }
}

/// A scheduler and nodes that are set to these vans: a server with two threads, and a worker.
fn mixed(server: Van, worker: Van) -> (caravan_kv::Result<Van>, [caravan_kv::Result<()>; 2]) {
    let mut scheduler = SchedulerClient::bind(&ClusterConfig::default()).unwrap();
    let [server, worker] = [server, worker]
        .map(|van| NodeConfig { scheduler: scheduler.address().to_owned(), ..node(van) });
    std::thread::scope(|scope| {
        let server = scope.spawn(|| run_server(&server, None, 2, &Handles::default(), false));
        let worker = scope.spawn(|| run_worker(&worker, None, &apps(), false));
        let taken = scheduler.gather(|| Ok(()));
        if taken.is_ok() {
            let task = scheduler.submit(Target::Workers, "push-pull", &Value::Null).unwrap();
            assert_eq!(scheduler.wait(task).unwrap(), [json!({ "right": 2000 })]);
        }
        scheduler.end(None).unwrap();
        (taken, [server.join().unwrap(), worker.join().unwrap()])
    })
}

#[test]
fn nodes_take_a_van_that_both_have() {
    for (server, worker) in [(Van::Auto, Van::Tcp), (Van::Tcp, Van::Auto), (Van::Tcp, Van::Tcp)] {
        let (taken, ended) = mixed(server, worker);
        // The server's: over sockets each end takes its own.
        assert!([Van::Tcp, Van::Uring].contains(&taken.unwrap()));
        ended.into_iter().for_each(|ended| ended.unwrap());
    }
    let (taken, _) = mixed(Van::Auto, Van::Auto);
    assert!(auto_may_take(taken.unwrap()));
}

#[test]
fn nodes_that_have_no_van_in_common_are_named() {
    if !is_built(Van::Shm) {
        eprintln!("skipped: needs the shm van, which is left out of this build");
        return;
    }
    let (taken, ended) = mixed(Van::Tcp, Van::Shm);
    let told = ended.map(|ended| ended.unwrap_err().to_string());
    for text in told.into_iter().chain([taken.unwrap_err().to_string()]) {
        assert!(text.contains("shm: not for server 0 (process"), "{text}");
        assert!(text.contains("it was told to use tcp; tcp: not for worker 0 (process"), "{text}");
    }
}

/// Counts iterations in a bulk synchronous table, whose name is not one of a file.
struct Count;

impl App for Count {
    fn run(&mut self, node: &mut WorkerNode, _body: Value) -> Result<Value, String> {
        count(node).map_err(|error| error.to_string())
    }
}

fn count(node: &mut WorkerNode) -> caravan_kv::Result<Value> {
    let worker = &mut node.worker;
    let spec = TableSpec::new(1, "../a table", ValueType::I64, 1);
    let table = worker.admin().create_table(&spec.consistency(Model::Bsp, node.workers as u32))?;
    worker.clocks(table).join()?;
    for _ in 0..5 {
        worker.clocks(table).push_last(&[0, u64::MAX], &[1i64, 1])?;
    }
    let pulled = worker.pull(table, &[0, u64::MAX])?;
    let counted = worker.wait(pulled)?.values::<i64>().to_vec();
    Ok(json!(counted))
}

/// Each server thread writes the history of a table with a model to its file. Where it cannot,
/// there is no table.
#[test]
fn servers_record_histories_in_a_folder() {
    // The folder of the build may be read-only.
    let folder = std::env::temp_dir().join(format!("caravan-histories-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let run = |folder: &Path| {
        let history = Some(folder.to_owned());
        // A busy host opens the ports of seven nodes slowly.
        let join_timeout = Duration::from_secs(180);
        let node = NodeConfig { history, join_timeout, ..node(any()) };
        let config = ClusterConfig { servers: 2, threads: 2, workers: 3, node };
        let apps = Apps::default().with("count", || Box::new(Count));
        let mut cluster =
            Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap();
        let task = cluster.submit(Target::Workers, "count", &Value::Null).unwrap();
        let counted = cluster.wait(task);
        cluster.shutdown().unwrap();
        counted
    };
    assert_eq!(run(&folder).unwrap(), vec![json!([15, 15]); 3]);
    let file = |thread| folder.join(format!("1-___a_table.{thread}.history"));
    let files: Vec<PathBuf> = (0..4).map(file).collect();
    let checked = history::check_files(&files).unwrap();
    assert_eq!((checked.reads, checked.writes), (2 * 3, 2 * 5 * 3));
    let refused = run(&files[0]).unwrap_err().to_string();
    assert!(refused.contains("no history") && refused.contains("1-___a_table"), "{refused}");
}
