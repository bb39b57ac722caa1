//! Goal: any node asks any other and any group, and answers at once, later, from the answers of
//! others, or never; barriers are for groups; whoever waits names who is missing.
//! Method: whole clusters on a simulated network, and one of threads over TCP; workers and servers
//! report what they heard to the driver.

use std::time::Duration;

use caravan_kv::{
    Answered, App, Apps, Asked, Cluster, ClusterConfig, Error, Group, Handles, Launch, NodeConfig,
    NodeName, Rpc, Target, Token, WorkerNode,
};
use caravan_van::sim::{Faults, Network, for_each_seed};
use serde_json::{Value, json};

const SERVERS: usize = 2;
const WORKERS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);

/// All groups, in the order of their numbers in ps-lite.
fn groups() -> [Group; 7] {
    let (scheduler, servers, workers) = (Group::SCHEDULER, Group::SERVERS, Group::WORKERS);
    [
        scheduler,
        servers,
        scheduler | servers,
        workers,
        scheduler | workers,
        servers | workers,
        Group::ALL,
    ]
}

/// The nodes of a group.
fn nodes(group: Group) -> Vec<NodeName> {
    let servers = (0..SERVERS).map(NodeName::Server);
    let workers = (0..WORKERS).map(NodeName::Worker);
    let all = [NodeName::Scheduler].into_iter().chain(servers).chain(workers);
    all.filter(|node| group.has(*node)).collect()
}

/// Answers with the asker's name, its command and its body.
fn echo(rpc: &mut Rpc, asked: Asked) {
    let Asked { from, command, body, token } = asked;
    let text = format!("{from} {command} {}", String::from_utf8(body).unwrap());
    rpc.answer(token, text.as_bytes()).unwrap();
}

/// Checks the answers of [`echo`]; returns who answered.
fn check(answers: &[Answered], asker: &str, command: i32) -> Vec<NodeName> {
    for Answered { node, outcome } in answers {
        let expected = format!("{asker} {command} body");
        assert_eq!(outcome.as_deref(), Ok(expected.as_bytes()), "{node}");
    }
    answers.iter().map(|answer| answer.node).collect()
}

/// Asks a group on behalf of another, and answers when all have answered.
fn relay(rpc: &mut Rpc, asked: Asked) {
    let Asked { command, token, .. } = asked;
    let request = rpc.ask(groups()[command as usize], "echo", command, b"body").unwrap();
    let answer = move |rpc: &mut Rpc, answers: caravan_kv::Result<Vec<Answered>>| {
        let answers = answers.unwrap();
        let who = format!("{:?}", check(&answers, "server 1", command));
        rpc.answer(token, who.as_bytes()).unwrap();
    };
    rpc.then(request, answer).unwrap();
}

/// Asks every group in turn, as a task of worker 2.
struct AsksAll;

impl App for AsksAll {
    fn run(&mut self, node: &mut WorkerNode, _: Value) -> Result<Value, String> {
        for (command, group) in (0..).zip(groups()) {
            let asks = |rpc: &mut Rpc| rpc.ask(group, "echo", command, b"body");
            let request = node.rpc(asks).unwrap().unwrap();
            let answers = node.wait_for(request, 10 * SECOND).unwrap();
            assert_eq!(check(&answers, "worker 2", command), nodes(group));
        }
        Ok(Value::Null)
    }
}

/// Meets the groups that workers belong to, in turn; worker 1 is late for one.
struct Meets;

impl App for Meets {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        if body["late"] == node.rank {
            Network::here().unwrap().sleep(2 * SECOND);
        }
        let group = groups()[body["group"].as_u64().unwrap() as usize];
        node.meet(group, "here").map_err(|error| error.to_string())?;
        Ok(json!(node.worker.now().as_secs()))
    }
}

/// Arrives at the barrier of a group, and answers when all have arrived.
fn arrives(rpc: &mut Rpc, asked: Asked) {
    let Asked { command, token, .. } = asked;
    let met = rpc.barrier(groups()[command as usize], "here").unwrap();
    let answer = move |rpc: &mut Rpc, met: caravan_kv::Result<Vec<Answered>>| match met {
        Ok(_) => rpc.answer(token, b"met").unwrap(),
        Err(error) => rpc.refuse(token, &error.to_string()).unwrap(),
    };
    rpc.then(met, answer).unwrap();
}

/// Keeps requests, and answers them when it is told to.
fn keeps() -> impl FnMut(&mut Rpc, Asked) {
    let mut kept: Vec<Token> = Vec::new();
    move |rpc, asked| match asked.command {
        0 => kept.push(asked.token),
        1 => rpc.answer(asked.token, &[]).unwrap(),
        _ => {
            rpc.answer(kept[0], b"late").unwrap();
            let again = rpc.answer(kept[0], b"again").unwrap_err().to_string();
            rpc.answer(asked.token, again.as_bytes()).unwrap();
        }
    }
}

fn launch(config: &ClusterConfig, launch: impl Fn(Handles, Apps) -> Launch) -> Cluster {
    let handles = Handles::default()
        .with_handler("echo", || Box::new(echo))
        .with_handler("relay", || Box::new(relay))
        .with_handler("arrives", || Box::new(arrives))
        .with_handler("keeps", || Box::new(keeps()));
    let apps = Apps::default()
        .with("asks all", || Box::new(AsksAll))
        .with("meets", || Box::new(Meets))
        .with_handler("echo", || Box::new(echo));
    let mut cluster = Cluster::launch(config, launch(handles, apps)).unwrap();
    cluster.rpc(|rpc| rpc.set_handler("echo", echo)).unwrap();
    cluster
}

fn config() -> ClusterConfig {
    ClusterConfig { servers: SERVERS, workers: WORKERS, ..ClusterConfig::default() }
}

/// Runs `drive` as the driver of a simulated cluster.
fn simulate(seed: u64, config: ClusterConfig, drive: impl FnOnce(&mut Cluster) + Send + 'static) {
    let network = Network::new(seed, Faults::jittery());
    let driver = network.spawn("driver", move |_| {
        let mut cluster = launch(&config, Launch::Simulated);
        drive(&mut cluster);
        cluster.shutdown().unwrap();
    });
    driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
}

fn asked(cluster: &mut Cluster, node: NodeName, handler: &str, command: i32) -> Answered {
    let request = cluster.rpc(|rpc| rpc.ask(node, handler, command, b"body"));
    cluster.wait_for(request.unwrap().unwrap(), 10 * SECOND).unwrap().remove(0)
}

/// The scheduler, a server and a worker ask all seven groups.
fn ask_all(cluster: &mut Cluster) {
    for (command, group) in (0..).zip(groups()) {
        let request = cluster.rpc(|rpc| rpc.ask(group, "echo", command, b"body"));
        let answers = cluster.wait_for(request.unwrap().unwrap(), 10 * SECOND).unwrap();
        assert_eq!(check(&answers, "the scheduler", command), nodes(group));
        let relayed = asked(cluster, NodeName::Server(1), "relay", command).outcome.unwrap();
        assert_eq!(String::from_utf8(relayed).unwrap(), format!("{:?}", nodes(group)));
    }
    let task = cluster.submit(Target::Worker(2), "asks all", &Value::Null).unwrap();
    cluster.wait(task).unwrap();
}

#[test]
fn three_kinds_of_nodes_ask_seven_groups() {
    for_each_seed(5, |seed| simulate(seed, config(), ask_all));
    let mut cluster = launch(&config(), Launch::Threads);
    ask_all(&mut cluster);
    cluster.shutdown().unwrap();
}

#[test]
fn an_answer_may_come_late_once_or_never() {
    simulate(1, config(), |cluster| {
        let server = NodeName::Server(1);
        let first = cluster.rpc(|rpc| rpc.ask(server, "keeps", 0, &[])).unwrap().unwrap();
        let never = cluster.rpc(|rpc| rpc.ask(server, "keeps", 0, &[])).unwrap().unwrap();
        for _ in 0..1000 {
            asked(cluster, server, "keeps", 1);
        }
        assert!(!cluster.rpc(|rpc| rpc.is_done(first)).unwrap().unwrap());
        let again = asked(cluster, server, "keeps", 2).outcome.unwrap();
        let again = String::from_utf8(again).unwrap();
        assert!(again.contains("was answered before"), "{again}");
        let late = cluster.wait_for(first, SECOND).unwrap();
        assert_eq!(late, [Answered { node: server, outcome: Ok(b"late".to_vec()) }]);
        assert!(matches!(cluster.wait_for(first, SECOND), Err(Error::UnknownTimestamp { .. })));
        let timeout = cluster.wait_for(never, SECOND).unwrap_err();
        let Error::Timeout { what, missing, .. } = &timeout else { panic!("{timeout}") };
        assert_eq!(
            (what.as_str(), missing.as_str()),
            ("command 0 to keeps of server 1", "server 1")
        );
        // Thousands at once wait for each other, not for memory.
        let all = |rpc: &mut Rpc| {
            (0..5000).map(|_| rpc.ask(server, "keeps", 1, &[0; 100]).unwrap()).collect::<Vec<_>>()
        };
        for request in cluster.rpc(all).unwrap() {
            assert!(cluster.wait_for(request, SECOND).unwrap()[0].outcome.is_ok());
        }
    });
}

#[test]
fn what_cannot_be_asked_is_refused_with_the_reason() {
    simulate(1, config(), |cluster| {
        let nobody = asked(cluster, NodeName::Server(0), "nobody", 1).outcome.unwrap_err();
        assert!(nobody.contains("no handler called nobody"), "{nobody}");
        let request = cluster.rpc(|rpc| rpc.ask(NodeName::Server(7), "echo", 1, &[]));
        let error = cluster.wait_for(request.unwrap().unwrap(), SECOND).unwrap_err().to_string();
        assert!(error.contains("no server 7") && error.contains("2 servers"), "{error}");
        let long = vec![0; caravan_kv::node::BODY_BYTES_MAX + 1];
        let long = cluster.rpc(|rpc| rpc.ask(Group::SERVERS, "echo", 1, &long)).unwrap();
        assert!(long.unwrap_err().to_string().contains("1048577 bytes"));
        let named = "x".repeat(257);
        let named = cluster.rpc(|rpc| rpc.ask(Group::SERVERS, &named, 1, &[])).unwrap();
        assert!(named.unwrap_err().to_string().contains("257 bytes"));
        // The longest one goes to all, and comes back.
        let longest = vec![b'x'; caravan_kv::node::BODY_BYTES_MAX - 100];
        let longest = cluster.rpc(|rpc| rpc.ask(Group::ALL, "echo", 1, &longest));
        let answers = cluster.wait_for(longest.unwrap().unwrap(), 60 * SECOND).unwrap();
        assert_eq!(answers.len(), 1 + SERVERS + WORKERS);
        assert!(answers.iter().all(|it| it.outcome.as_ref().unwrap().len() > 1 << 19));
    });
}

#[test]
fn barriers_are_for_any_group() {
    for_each_seed(3, |seed| {
        simulate(seed, config(), |cluster| {
            for (at, group) in groups().into_iter().enumerate() {
                let command = i32::try_from(at).unwrap();
                let task = group.has(NodeName::Worker(0)).then(|| {
                    let body = json!({ "group": at, "late": 1 });
                    cluster.submit(Target::Workers, "meets", &body).unwrap()
                });
                let servers = cluster.rpc(|rpc| rpc.ask(Group::SERVERS, "arrives", command, &[]));
                if group.has(NodeName::Scheduler) {
                    cluster.meet(group, "here").unwrap();
                } else {
                    let error = cluster.meet(group, "here").unwrap_err().to_string();
                    assert!(error.contains("the scheduler is none of"), "{error}");
                }
                let servers = cluster.wait_for(servers.unwrap().unwrap(), 10 * SECOND).unwrap();
                for Answered { node, outcome } in servers {
                    assert_eq!(outcome.is_ok(), group.has(node), "{group}: {outcome:?}");
                }
                task.into_iter().for_each(|task| drop(cluster.wait(task).unwrap()));
            }
        });
    });
}

#[test]
fn who_is_missing_at_a_barrier_is_named() {
    let node = NodeConfig { join_timeout: 5 * SECOND, ..NodeConfig::default() };
    simulate(1, ClusterConfig { node, ..config() }, |cluster| {
        let body = json!({ "group": 6, "late": 1 });
        let task = cluster.submit(Target::Worker(1), "meets", &body).unwrap();
        asked(cluster, NodeName::Server(0), "echo", 0);
        let error = cluster.meet(Group::ALL, "here").unwrap_err().to_string();
        assert!(error.contains("missing: server 0, server 1, worker 0, worker 2"), "{error}");
        let error = cluster.wait(task).unwrap_err().to_string();
        assert!(error.contains("worker 0, worker 2"), "{error}");
    });
}

/// Who is lost answers nothing, and does not hold up the others.
#[test]
fn the_loss_of_a_node_that_is_spared_is_its_answer() {
    let node = NodeConfig { losses_max: 1, ..NodeConfig::default() };
    simulate(1, ClusterConfig { node, ..config() }, |cluster| {
        let network = Network::here().unwrap();
        network.freeze("worker 1", 3600 * SECOND);
        let request = cluster.rpc(|rpc| rpc.ask(Group::WORKERS, "echo", 3, b"body"));
        let mut answers = cluster.wait_for(request.unwrap().unwrap(), 60 * SECOND).unwrap();
        let lost = answers.remove(1);
        assert_eq!(lost.node, NodeName::Worker(1));
        assert!(lost.outcome.unwrap_err().contains("lost"));
        let who = check(&answers, "the scheduler", 3);
        assert_eq!(who, [NodeName::Worker(0), NodeName::Worker(2)]);
        let request = cluster.rpc(|rpc| rpc.ask(Group::WORKERS, "echo", 3, b"body"));
        assert_eq!(cluster.wait_for(request.unwrap().unwrap(), SECOND).unwrap(), answers);
    });
}
