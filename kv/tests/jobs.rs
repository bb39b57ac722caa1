//! Goal: several jobs share a cluster, each with its tables, apps, clocks and barriers; a job ends
//! with its driver and leaves nothing behind.
//! Method: drivers on a simulated network attach to a cluster that another has started; over a real
//! van, a driver in another thread does.

use std::time::Duration;

use crate::support::{node, vans};
use caravan_kv::consistency::Model;
use caravan_kv::{
    Answered, App, Apps, Asked, Cluster, ClusterConfig, Error, Group, Handles, Jobs, Launch,
    NodeConfig, NodeName, Rpc, TableSpec, Target, ValueType, WorkerNode,
};
use caravan_van::sim::{Faults, Network, for_each_seed};
use serde_json::{Value, json};

/// Adds to table 1 of its job and counts its own tasks.
#[derive(Default)]
struct Adds {
    tasks: u64,
}

impl App for Adds {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        self.tasks += 1;
        self.add(node, body["width"].as_u64().unwrap()).map_err(|error| error.to_string())
    }
}

impl Adds {
    fn add(&self, node: &mut WorkerNode, width: u64) -> caravan_kv::Result<Value> {
        let clock = node.worker.info().clock();
        let spec = TableSpec::new(1, "sums", ValueType::I64, width as u32);
        let table = node.worker.admin().create_table(&spec)?;
        let pushed = node.worker.push(table, &[1, u64::MAX], &vec![1i64; 2 * width as usize])?;
        node.worker.wait(pushed)?;
        node.worker.set_clock(clock + width);
        node.barrier("added")?;
        let pulled = node.worker.pull(table, &[u64::MAX])?;
        let sums = node.worker.wait(pulled)?.values::<i64>().to_vec();
        node.barrier("pulled")?;
        Ok(json!({ "job": node.job, "tasks": self.tasks, "clock": clock, "sums": sums }))
    }
}

/// Goes on for ever: worker 0 with requests that are answered at once, worker 1 at a barrier that
/// nobody else comes to, the others with a read that waits for those two.
struct Endless;

impl App for Endless {
    fn run(&mut self, node: &mut WorkerNode, _: Value) -> Result<Value, String> {
        let ended = self.go_on(node).unwrap_err();
        Err(ended.to_string())
    }
}

impl Endless {
    fn go_on(&self, node: &mut WorkerNode) -> caravan_kv::Result<()> {
        let spec = TableSpec::new(1, "sums", ValueType::I64, 1);
        let table = node.worker.admin().create_table(&spec)?;
        let together = TableSpec::new(2, "together", ValueType::I64, 1);
        let together = together.consistency(Model::Bsp, node.workers as u32);
        let together = node.worker.admin().create_table(&together)?;
        node.worker.clocks(together).join()?;
        match node.rank {
            0 => loop {
                let pushed = node.worker.push(table, &[1], &[1i64])?;
                node.worker.wait(pushed)?;
            },
            1 => node.barrier("alone"),
            _ => loop {
                let pushed = node.worker.clocks(together).push_last(&[1], &[1i64])?;
                node.worker.wait(pushed)?;
                let pulled = node.worker.pull(together, &[1])?;
                node.worker.wait(pulled)?;
            },
        }
    }
}

/// Asks the driver of its task for its name; returns who has answered, and what.
struct AsksDriver;

impl App for AsksDriver {
    fn run(&mut self, node: &mut WorkerNode, _: Value) -> Result<Value, String> {
        let to = node.driver();
        let asked = node.rpc(|rpc| rpc.ask(to, "name", 0, b"")).and_then(|asked| asked);
        let answers = asked.and_then(|asked| node.wait_for(asked, Duration::from_secs(10)));
        let Answered { node, outcome } = answers.map_err(|error| error.to_string())?.remove(0);
        Ok(json!([node.to_string(), String::from_utf8(outcome?).unwrap()]))
    }
}

/// Answers with the name of who asks.
fn who(rpc: &mut Rpc, asked: Asked) {
    rpc.answer(asked.token, asked.from.to_string().as_bytes()).unwrap();
}

fn launch() -> Launch {
    let apps = Apps::default().with("adds", || Box::new(Adds::default()));
    let apps = apps.with("asks driver", || Box::new(AsksDriver));
    let apps = apps.with_handler("who", || Box::new(who));
    Launch::Simulated(Handles::default(), apps.with("endless", || Box::new(Endless)))
}

/// Runs `rounds` tasks of a job whose table has this width, and checks their results.
fn work(cluster: &mut Cluster, width: usize, rounds: std::ops::Range<u64>) {
    let workers = cluster.config().workers as u64;
    for round in rounds {
        let task = cluster.submit(Target::Workers, "adds", &json!({ "width": width })).unwrap();
        for answer in cluster.wait(task).unwrap() {
            let clock = round * width as u64;
            let sums = vec![workers * (round + 1); width];
            let job = cluster.namespace();
            let expected = json!({ "job": job, "tasks": round + 1, "clock": clock, "sums": sums });
            assert_eq!(answer, expected);
        }
    }
}

/// The values of the last key of table 1 in a driver's namespace.
fn sums(cluster: &Cluster, width: u32) -> Vec<i64> {
    let mut client = cluster.client().unwrap();
    let table =
        client.admin().create_table(&TableSpec::new(1, "sums", ValueType::I64, width)).unwrap();
    let pulled = client.pull(table, &[u64::MAX]).unwrap();
    client.wait(pulled).unwrap().values::<i64>().to_vec()
}

#[test]
fn jobs_in_turn_and_at_once_have_tables_apps_and_clocks_of_their_own() {
    let network = Network::new(3, Faults::jittery());
    let launcher = network.spawn("launcher", |network| {
        let config = ClusterConfig { servers: 2, workers: 3, ..ClusterConfig::default() };
        let mut own = Cluster::launch(&config, launch()).unwrap();
        work(&mut own, 2, 0..2);
        let drivers: Vec<_> = [("a", 1), ("b", 3), ("c", 5)]
            .into_iter()
            .map(|(job, width)| {
                let node = own.config().node.clone();
                network.spawn(job, move |_| {
                    let mut cluster = Cluster::attach(&node, job).unwrap();
                    assert_eq!(cluster.config().workers, 3);
                    work(&mut cluster, width, 0..10);
                    assert_eq!(sums(&cluster, width as u32), vec![30; width]);
                    // A part has tables and apps of its own again, and so has the next.
                    for part in ["first", "second"] {
                        cluster.begin(part).unwrap();
                        assert_eq!(cluster.namespace(), format!("{job}/{part}"));
                        work(&mut cluster, 4, 0..3);
                    }
                    cluster.end().unwrap();
                    work(&mut cluster, width, 10..12);
                    cluster.shutdown().unwrap();
                })
            })
            .collect();
        work(&mut own, 2, 2..9);
        drivers.into_iter().for_each(|driver| driver.join().unwrap());
        work(&mut own, 2, 9..10);
        let mut client = own.client().unwrap();
        for job in ["a", "b", "c"] {
            client.admin().set_namespace(job);
            assert_eq!(client.admin().drop_tables("").unwrap(), 0, "{job} left tables");
        }
        client.admin().set_namespace("");
        assert_eq!(client.admin().drop_tables("").unwrap(), 1);
        drop(client);
        own.shutdown().unwrap();
    });
    launcher.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

/// The driver of each job asks nodes, and answers the workers that run its tasks.
#[test]
fn drivers_from_outside_ask_and_answer() {
    let network = Network::new(6, Faults::jittery());
    let launcher = network.spawn("launcher", |network| {
        let config = ClusterConfig { servers: 1, workers: 2, ..ClusterConfig::default() };
        let own = Cluster::launch(&config, launch()).unwrap();
        let attach = |job: &str| Cluster::attach(&own.config().node, job).unwrap();
        let [a, b] = ["a", "b"].map(attach);
        let mut drivers = [("the scheduler", own), ("driver 1", a), ("driver 2", b)];
        for (name, cluster) in &mut drivers {
            let name = *name;
            let answers = move |rpc: &mut Rpc, asked: Asked| {
                rpc.answer(asked.token, name.as_bytes()).unwrap();
            };
            cluster.rpc(|rpc| rpc.set_handler("name", answers)).unwrap();
            let asked = cluster.rpc(|rpc| rpc.ask(Group::WORKERS, "who", 0, b""));
            let answers = cluster.wait_for(asked.unwrap().unwrap(), Duration::from_secs(10));
            let answers = answers.unwrap();
            assert_eq!(answers.len(), 2);
            assert!(answers.iter().all(|it| it.outcome.as_deref() == Ok(name.as_bytes())));
        }
        let tasks = drivers.each_mut().map(|(_, cluster)| {
            cluster.submit(Target::Workers, "asks driver", &Value::Null).unwrap()
        });
        for ((name, cluster), task) in drivers.iter_mut().zip(tasks) {
            assert_eq!(cluster.wait(task).unwrap(), vec![json!([name, name]); 2]);
        }
        let [(_, mut own), (_, mut a), (_, b)] = drivers;
        let error = a.meet(Group::WORKERS, "here").unwrap_err().to_string();
        assert!(error.contains("driver 1 is none of workers"), "{error}");
        b.shutdown().unwrap();
        network.sleep(Duration::from_secs(1));
        for gone in [2, 3] {
            let asked = own.rpc(|rpc| rpc.ask(NodeName::Driver(gone), "name", 0, b""));
            let error = own.wait_for(asked.unwrap().unwrap(), Duration::from_secs(10));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(&format!("there is no driver {gone}")), "{error}");
        }
        a.shutdown().unwrap();
        own.shutdown().unwrap();
    });
    launcher.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

#[test]
fn a_job_ends_with_its_driver_and_its_name_is_free_again() {
    let network = Network::new(4, Faults::none());
    let launcher = network.spawn("launcher", |network| {
        let config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
        let own = Cluster::launch(&config, launch()).unwrap();
        let attach = |job: &str| Cluster::attach(&own.config().node, job);
        let mut cluster = attach("ads").unwrap();
        work(&mut cluster, 3, 0..2);
        // The name is taken; others cannot be.
        for (job, why) in [
            ("ads", "the job ads has a driver"),
            ("", "needs a name"),
            ("a/b", "no slash"),
            (&"x".repeat(300), "may have 256 bytes"),
        ] {
            let error = attach(job).err().unwrap();
            assert!(matches!(&error, Error::Config(text) if text.contains(why)), "{error}");
        }
        // Its last task is never waited for.
        cluster.submit(Target::Workers, "adds", &json!({ "width": 3 })).unwrap();
        drop(cluster);
        network.sleep(Duration::from_millis(10));
        // The next of that name begins anew, with another layout, when the first has ended.
        let mut cluster = attach("ads").unwrap();
        work(&mut cluster, 1, 0..2);
        cluster.shutdown().unwrap();
        own.shutdown().unwrap();
    });
    launcher.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

/// Whoever looks after a cluster waits for no task of others, and its name is free again at once.
#[test]
fn a_visit_waits_for_no_worker() {
    let network = Network::new(4, Faults::none());
    let launcher = network.spawn("launcher", |_| {
        let config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
        let own = Cluster::launch(&config, launch()).unwrap();
        let node = &own.config().node;
        let mut long = Cluster::attach(node, "long").unwrap();
        long.submit(Target::Workers, "endless", &json!({})).unwrap();
        for _ in 0..2 {
            let mut visit = Cluster::visit(node, "visit").unwrap();
            let mut client = visit.client().unwrap();
            let spec = TableSpec::new(1, "kept", ValueType::I64, 1);
            client.admin().create_table(&spec).unwrap();
            let why = visit.submit(Target::Workers, "adds", &json!({})).unwrap_err().to_string();
            assert!(why.contains("a driver that visits a cluster has no tasks"), "{why}");
            drop(client);
            visit.shutdown().unwrap();
        }
        drop(long);
        // What a visit creates is nobody's, so it stays.
        let mut client = own.client().unwrap();
        while client.admin().list_tables("").unwrap().len() > 1 {
            client.sleep(Duration::from_millis(1)).unwrap();
        }
        drop(client);
        own.shutdown().unwrap();
    });
    launcher.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

#[test]
fn a_cancelled_job_leaves_nothing_and_others_go_on() {
    for_each_seed(10, |seed| {
        let network = Network::new(seed, Faults::jittery());
        let launcher = network.spawn("launcher", |network| {
            let config = ClusterConfig { servers: 2, workers: 3, ..ClusterConfig::default() };
            let mut own = Cluster::launch(&config, launch()).unwrap();
            let node = own.config().node.clone();
            let endless = network.spawn("a", move |_| {
                let mut cluster = Cluster::attach(&node, "a").unwrap();
                let task = cluster.submit(Target::Workers, "endless", &Value::Null).unwrap();
                let behind = json!({ "width": 1 });
                cluster.submit(Target::Workers, "adds", &behind).unwrap();
                let error = cluster.wait(task).unwrap_err();
                assert!(matches!(&error, Error::Cancelled { job } if job == "a"), "{error}");
                let error = cluster.submit(Target::Workers, "adds", &behind).unwrap_err();
                assert!(matches!(&error, Error::Cancelled { job } if job == "a"), "{error}");
            });
            network.sleep(Duration::from_millis(500));
            // Its tasks are behind those of the other.
            let node = own.config().node.clone();
            let other = network.spawn("b", move |_| {
                let mut cluster = Cluster::attach(&node, "b").unwrap();
                work(&mut cluster, 2, 0..5);
                cluster.shutdown().unwrap();
            });
            network.sleep(Duration::from_millis(500));

            let mut jobs = Jobs::of(&own.config().node).unwrap();
            let listed = jobs.list().unwrap();
            let names: Vec<&str> = listed.iter().map(|it| it.job.as_str()).collect();
            assert_eq!(names, ["", "a", "b"]);
            assert_eq!((listed[0].tasks, listed[1].tasks, listed[2].tasks), (0, 2, 1));
            assert_eq!(listed[1].workers, [0, 1, 2].into());
            assert!(listed.iter().all(|it| !it.ends), "{listed:?}");
            let tables = own.client().unwrap().admin().list_tables("").unwrap();
            assert!(tables.iter().any(|table| table.namespace == "a"), "{tables:?}");
            for (job, why) in [("c", "only a, b"), ("", "no job \"\"")] {
                let error = jobs.cancel(job).unwrap_err();
                assert!(matches!(&error, Error::Config(text) if text.contains(why)), "{error}");
            }
            jobs.cancel("a").unwrap();
            let listed = jobs.list().unwrap();
            assert!(listed.iter().all(|it| it.job != "a"), "{listed:?}");
            let mut client = own.client().unwrap();
            client.admin().set_namespace("a");
            assert_eq!(client.admin().drop_tables("").unwrap(), 0);
            drop(client);
            endless.join().unwrap();
            other.join().unwrap();
            // Another job of that name begins anew, and barriers are as good as before.
            let mut again = Cluster::attach(&own.config().node, "a").unwrap();
            work(&mut again, 4, 0..2);
            again.shutdown().unwrap();
            work(&mut own, 2, 0..2);
            own.shutdown().unwrap();
        });
        launcher.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    });
}

#[test]
fn a_driver_from_outside_learns_of_losses_and_of_the_end() {
    let network = Network::new(5, Faults::none());
    let launcher = network.spawn("launcher", |network| {
        let config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
        let own = Cluster::launch(&config, launch()).unwrap();
        let node = own.config().node.clone();
        let mut first = Cluster::attach(&node, "first").unwrap();
        network.crash("worker 1");
        let task = first.submit(Target::Workers, "adds", &json!({ "width": 1 }));
        let error = task.and_then(|task| first.wait(task).map(drop)).unwrap_err();
        assert!(matches!(&error, Error::NodeLost { node, .. } if node.contains("worker 1")));
        drop(own);
        network.sleep(Duration::from_secs(1));
        let error = first.submit(Target::Workers, "adds", &Value::Null).unwrap_err();
        let Error::NodeLost { node: lost, .. } = &error else { panic!("{error}") };
        assert_eq!(lost, &format!("the scheduler at {}", node.scheduler));
        let late = NodeConfig { join_timeout: Duration::from_millis(300), ..node };
        let error = Cluster::attach(&late, "late").err().unwrap();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    });
    launcher.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

/// The same over real vans, at once.
#[test]
fn jobs_share_a_cluster_over_every_van() {
    for van in vans() {
        let config = ClusterConfig { servers: 2, workers: 2, threads: 1, node: node(van) };
        let Launch::Simulated(handles, apps) = launch() else { unreachable!() };
        let mut own = Cluster::launch(&config, Launch::Threads(handles, apps)).unwrap();
        let shared = own.config().node.clone();
        std::thread::scope(|scope| {
            for (job, width) in [("a", 1), ("b", 3)] {
                let shared = &shared;
                scope.spawn(move || {
                    let mut cluster = Cluster::attach(shared, job).unwrap();
                    work(&mut cluster, width, 0..20);
                    cluster.shutdown().unwrap();
                });
            }
            work(&mut own, 2, 0..20);
        });
        own.shutdown().unwrap();
    }
}
