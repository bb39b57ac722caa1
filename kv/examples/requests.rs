//! Nodes ask each other: the driver asks all servers, each of which asks the workers before it
//! answers; then all nodes meet at a barrier.
//!
//! Run: `cargo run -p caravan-kv --example requests`

use std::time::Duration;

use caravan_kv::{
    Answered, App, Apps, Asked, Cluster, ClusterConfig, Error, Group, Handles, Launch, Result, Rpc,
    Target, WorkerNode,
};
use serde_json::Value;

/// Answers at once, with twice the number that was asked.
fn twice(rpc: &mut Rpc, asked: Asked) {
    let answered = rpc.answer(asked.token, (asked.command * 2).to_string().as_bytes());
    answered.expect("it was not answered before");
}

/// Answers when all workers have answered.
fn of_workers(rpc: &mut Rpc, asked: Asked) {
    let answer = move |rpc: &mut Rpc, answers: Result<Vec<Answered>>| {
        let texts = answers.into_iter().flatten().filter_map(|answer| answer.outcome.ok());
        let joined = texts.collect::<Vec<_>>().join(&b' ');
        rpc.answer(asked.token, &joined).expect("it was not answered before");
    };
    let request = rpc.ask(Group::WORKERS, "twice", asked.command, &[]);
    request.and_then(|request| rpc.then(request, answer)).expect("few requests are open");
}

/// Waits for all other nodes.
struct Meets;

impl App for Meets {
    fn run(&mut self, node: &mut WorkerNode, _: Value) -> Result<Value, String> {
        node.meet(Group::SCHEDULER | Group::WORKERS, "end").map_err(|error| error.to_string())?;
        Ok(Value::Null)
    }
}

fn main() -> Result<(), Error> {
    let handles = Handles::default().with_handler("of workers", || Box::new(of_workers));
    let apps =
        Apps::default().with("meets", || Box::new(Meets)).with_handler("twice", || Box::new(twice));
    let config = ClusterConfig { servers: 2, workers: 3, ..ClusterConfig::default() };
    let mut cluster = Cluster::launch(&config, Launch::Threads(handles, apps))?;
    let request = cluster.rpc(|rpc| rpc.ask(Group::SERVERS, "of workers", 21, &[]))??;
    for Answered { node, outcome } in cluster.wait_for(request, Duration::from_secs(10))? {
        let text = outcome.map(|body| String::from_utf8_lossy(&body).into_owned());
        println!("{node}: {}", text.unwrap_or_else(|why| format!("no answer: {why}")));
    }
    let task = cluster.submit(Target::Workers, "meets", &Value::Null)?;
    cluster.meet(Group::SCHEDULER | Group::WORKERS, "end")?;
    cluster.wait(task)?;
    cluster.shutdown()
}
