//! Goal: workers that share files by blocks read each row once in a pass, near blocks first, pass
//! after pass.
//! Method: workers of a simulated cluster ask the driver for blocks, and return the rows that they
//! have read.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use caravan_kv::{App, Apps, Cluster, ClusterConfig, Handles, Launch, Target, WorkerNode};
use caravan_learn::data::assigner::{self, Assigner, Placed, Reader};
use caravan_learn::data::{cut, read_cut};
use caravan_van::sim::{Faults, Network, for_each_seed};
use serde_json::{Value, json};

const WORKERS: usize = 3;
const ROWS: u64 = 400;
const PASSES: usize = 3;

/// Reads blocks until none is left, in each pass. Returns the first key of each row.
struct Reads;

impl App for Reads {
    fn run(&mut self, node: &mut WorkerNode, _: Value) -> Result<Value, String> {
        let reader = Reader { number: node.rank, host: host(node.rank), takes_far: true, holds: 0 };
        let mut passes = Vec::new();
        for _ in 0..PASSES {
            let mut rows: Vec<u64> = Vec::new();
            while let Some(block) =
                assigner::ask(node, "blocks", &reader).map_err(|error| error.to_string())?
            {
                let examples = read_cut(&block).map_err(|error| error.to_string())?;
                rows.extend(examples.iter().map(|row| row.keys[0]));
            }
            passes.push(rows);
            node.barrier("pass").map_err(|error| error.to_string())?;
        }
        Ok(json!(passes))
    }
}

fn host(rank: usize) -> String {
    format!("host{rank}")
}

fn file() -> PathBuf {
    let name = format!("caravan-blocks-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let rows = (0..ROWS).map(|row| format!("1 {row}:1\n"));
    std::fs::write(&path, rows.collect::<String>()).unwrap();
    path
}

#[test]
fn workers_read_each_row_once_a_pass() {
    let path = file();
    let file = path.clone();
    for_each_seed(5, move |seed| {
        let file = file.clone();
        let network = Network::new(seed, Faults::jittery());
        let driver = network.spawn("driver", move |_| {
            let apps = Apps::default().with("reads", || Box::new(Reads));
            let config = ClusterConfig { workers: WORKERS, ..ClusterConfig::default() };
            let launch = Launch::Simulated(Handles::default(), apps);
            let mut cluster = Cluster::launch(&config, launch).unwrap();
            let blocks = cut(&[file], 100).unwrap().into_iter().enumerate();
            let hosts = |at: usize| BTreeSet::from([host(at % WORKERS)]);
            let blocks = blocks.map(|(at, cut)| Placed { cut, hosts: hosts(at) });
            let assigner = Assigner::new(blocks.collect(), WORKERS);
            let answers = assigner::answers(assigner);
            cluster.rpc(|rpc| rpc.set_handler("blocks", answers)).unwrap();
            let task = cluster.submit(Target::Workers, "reads", &Value::Null).unwrap();
            let read = cluster.wait(task).unwrap();
            cluster.shutdown().unwrap();
            read
        });
        let read = driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        for pass in 0..PASSES {
            let rows = read.iter().flat_map(|worker| worker[pass].as_array().unwrap());
            let mut rows: Vec<u64> = rows.map(|row| row.as_u64().unwrap()).collect();
            rows.sort_unstable();
            assert_eq!(rows, (0..ROWS).collect::<Vec<_>>(), "seed {seed}, pass {pass}");
        }
    });
    std::fs::remove_file(path).unwrap();
}
