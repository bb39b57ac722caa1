//! Goal: a shard may keep the token of a push, a pull or a command and answer it at once, after any
//! number of other requests, or never; it answers once.
//! Method: a handle that keeps what it is told to, on server threads over real sockets; clusters on
//! a simulated network for what is never answered and for workers that are gone.

use std::time::Duration;

use crate::support::{Servers, config, vans};
use caravan_kv::consistency::{Admission, Model};
use caravan_kv::filter::Filters;
use caravan_kv::server::{Answers, Pulled, Request};
use caravan_kv::{
    Cluster, ClusterConfig, Error, Handles, Launch, NodeConfig, Refusal, Refused, Shard, Table,
    TableSpec, Token, ValueType, Worker,
};
use caravan_van::sim::{Faults, Network};
use caravan_van::{Pool, Value};

const GIB: usize = 1 << 30;

/// Pushes and pulls of these keys wait for the commands `first` and `last`, which answer the first
/// or last of them. All others are answered at once.
const KEPT: std::ops::Range<u64> = 100..200;

/// The sum of all pushes, which each pull shows for each of its keys.
#[derive(Default)]
struct Keeps {
    sum: i64,
    /// Tokens with the number of keys to answer for.
    kept: Vec<(Token, usize)>,
    answered: Vec<Token>,
}

impl Keeps {
    fn command(&mut self, body: &[u8], answers: &mut Answers<'_>) -> Result<(), Error> {
        let (token, count) = match body {
            b"first" => self.kept.remove(0),
            b"last" => self.kept.pop().unwrap(),
            b"again" => (self.answered[0], 0),
            b"never" => (self.kept[0].0, 0),
            other => panic!("{other:?}"),
        };
        if body == b"never" {
            answers.refuse(token, &Refusal::Order.because("it never comes"))?;
            self.kept.remove(0);
        } else {
            answers.answer(token, i64::bytes(&vec![self.sum; count]))?;
        }
        self.answered.push(token);
        Ok(())
    }
}

impl Shard for Keeps {
    fn admit(&self, request: &Request<'_>) -> Admission {
        // Pulls of key 0 are of the usual kind.
        if request.keys == [0] { Admission::Now } else { Admission::Kept }
    }

    fn keep(&mut self, request: &Request<'_>, token: Token, answers: &mut Answers<'_>) {
        let Request { keys, values, pushes, pulls, .. } = *request;
        if !pushes && !pulls {
            let outcome = self.command(values, answers);
            let said = outcome.map_or_else(|error| error.to_string(), |()| "done".to_owned());
            return answers.answer(token, said.as_bytes()).unwrap();
        }
        if pushes {
            self.sum += i64::view(values).unwrap().iter().sum::<i64>();
        }
        let count = if pulls { keys.len() } else { 0 };
        match keys.iter().any(|key| KEPT.contains(key)) {
            true => self.kept.push((token, count)),
            false => answers.answer(token, i64::bytes(&vec![self.sum; count])).unwrap(),
        }
    }

    fn push(&mut self, _: &Request<'_>, _: &Pool) -> Result<(), Refused> {
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        Ok(Pulled::Bytes(8 * request.keys.len()))
    }

    fn read(&mut self, _: &Request<'_>, into: &mut [u8]) {
        into.copy_from_slice(&self.sum.to_le_bytes());
    }
}

fn keeping() -> Handles {
    Handles::default().with("keeps", |_, _, _| Ok(Box::new(Keeps::default()) as Box<dyn Shard>))
}

fn spec() -> TableSpec {
    TableSpec::new(1, "kept", ValueType::I64, 1).handle("keeps")
}

/// What a command's only shard says.
fn tell(worker: &mut Worker, table: Table, body: &[u8]) -> String {
    let told = worker.command(table, body).unwrap();
    String::from_utf8(worker.wait(told).unwrap().replies.remove(0)).unwrap()
}

fn pull(worker: &mut Worker, table: Table, key: u64) -> Vec<i64> {
    let pulled = worker.pull(table, &[key]).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

#[test]
fn answers_come_after_a_thousand_others_once_and_in_any_order() {
    for van in vans() {
        let servers = Servers::start(van, 1, &config(64, GIB), &keeping());
        let (mut one, mut other) = (servers.worker(), servers.worker());
        let table = one.admin().create_table(&spec()).unwrap();
        let at_other = other.admin().create_table(&spec()).unwrap();
        let pulled = one.pull(table, &[100, 101]).unwrap();
        let pushed = one.push(table, &[102], &[1_000_000i64]).unwrap();
        let long: Vec<u64> = (100..20_100).collect();
        let both = one.push_pull(table, &long, &vec![0i64; long.len()]).unwrap();
        let elsewhere = other.pull(at_other, &[150]).unwrap();
        for n in 1..=500 {
            one.push(table, &[1], &[1i64]).unwrap();
            assert_eq!(pull(&mut one, table, 7), [1_000_000 + n], "{van:?}");
            assert_eq!(pull(&mut one, table, 0), [1_000_000 + n], "{van:?}");
        }
        for late in [pulled, pushed, both] {
            assert!(!one.is_done(late).unwrap(), "{van:?}");
        }
        // Another worker has them answered, the last one first.
        assert_eq!(tell(&mut other, at_other, b"last"), "done");
        assert_eq!(other.wait(elsewhere).unwrap().values::<i64>(), [1_000_500]);
        assert_eq!(tell(&mut other, at_other, b"last"), "done");
        assert_eq!(one.wait(both).unwrap().values::<i64>(), vec![1_000_500; long.len()]);
        assert_eq!(tell(&mut other, at_other, b"first"), "done");
        assert_eq!(one.wait(pulled).unwrap().values::<i64>(), [1_000_500; 2]);
        assert!(!one.is_done(pushed).unwrap());
        let again = tell(&mut one, table, b"again");
        assert!(again.contains("was answered before"), "{van:?}: {again}");
        assert_eq!(tell(&mut other, at_other, b"never"), "done");
        let never = one.wait(pushed).unwrap_err();
        assert!(matches!(&never, Error::Refused { reason, .. } if reason == "it never comes"));
    }
}

/// Requests share frames; each of a frame may be kept or answered at once.
#[test]
fn requests_in_a_row_are_each_kept_or_answered() {
    for van in vans() {
        let servers = Servers::start(van, 1, &config(64, GIB), &keeping());
        let mut worker = servers.worker();
        let table = worker.admin().create_table(&spec()).unwrap();
        let keys = [1, 100, 0, 2, 101, 3, 102, 0];
        let made = keys.map(|key| worker.pull(table, &[key]).unwrap());
        for (key, request) in keys.into_iter().zip(made) {
            if !KEPT.contains(&key) {
                assert_eq!(worker.wait(request).unwrap().values::<i64>(), [0], "{van:?}: {key}");
            }
        }
        for at in [1, 4, 6] {
            assert!(!worker.is_done(made[at]).unwrap(), "{van:?}: {at}");
            assert_eq!(tell(&mut worker, table, b"first"), "done");
            assert_eq!(worker.wait(made[at]).unwrap().values::<i64>(), [0]);
        }
    }
}

#[test]
fn a_dropped_table_refuses_what_it_has_kept() {
    let servers = Servers::start(vans()[0], 1, &config(64, GIB), &keeping());
    let (mut one, mut other) = (servers.worker(), servers.worker());
    let table = one.admin().create_table(&spec()).unwrap();
    let at_other = other.admin().create_table(&spec()).unwrap();
    let kept = one.pull(table, &[100]).unwrap();
    pull(&mut one, table, 1);
    other.admin().drop_table(at_other).unwrap();
    let error = one.wait(kept).unwrap_err();
    assert!(matches!(error, Error::TableDropped { .. }), "{error}");
}

#[test]
fn tables_that_must_answer_at_once_refuse_to_keep() {
    let servers = Servers::start(vans()[0], 1, &config(64, GIB), &keeping());
    let mut worker = servers.worker();
    let filters = Filters { key_cache: true, ..Filters::default() };
    let filtered = spec().filters(filters);
    let governed = TableSpec::new(2, "governed", ValueType::I64, 1).handle("keeps");
    let governed = governed.consistency(Model::Asp, 1);
    for (spec, why) in [(filtered, "has filters"), (governed, "has a consistency model")] {
        let table = worker.admin().create_table(&spec).unwrap();
        let told = worker.command(table, b"first").unwrap();
        let error = worker.wait(told).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("cannot answer later"), "{error}");
    }
}

/// Runs `drive` as the driver of a simulated cluster.
fn simulate(drive: impl FnOnce(&Cluster) + Send + 'static) {
    let network = Network::new(1, Faults::jittery());
    let driver = network.spawn("driver", move |_| {
        let node = NodeConfig { request_timeout: Duration::from_secs(5), ..NodeConfig::default() };
        let config = ClusterConfig { servers: 1, node, ..ClusterConfig::default() };
        let nodes = Launch::Simulated(keeping(), caravan_kv::Apps::default());
        let cluster = Cluster::launch(&config, nodes).unwrap();
        drive(&cluster);
        cluster.shutdown().unwrap();
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

#[test]
fn a_wait_for_what_is_never_answered_names_who_owes_it() {
    simulate(|cluster| {
        let mut worker = cluster.client().unwrap();
        let table = worker.admin().create_table(&spec()).unwrap();
        let never = worker.pull(table, &[100]).unwrap();
        let timeout = worker.wait(never).unwrap_err();
        let Error::Timeout { what, missing, .. } = &timeout else { panic!("{timeout}") };
        assert_eq!(*what, format!("request {never}"));
        assert!(missing.starts_with("server 0"), "{missing}");
        // It may come after all.
        assert_eq!(tell(&mut worker, table, b"first"), "done");
        assert_eq!(worker.wait(never).unwrap().values::<i64>(), [0]);
    });
}

#[test]
fn a_worker_that_is_gone_is_not_answered() {
    simulate(|cluster| {
        let mut stays = cluster.client().unwrap();
        let table = stays.admin().create_table(&spec()).unwrap();
        let mut goes = cluster.client().unwrap();
        let at_goes = goes.admin().create_table(&spec()).unwrap();
        goes.pull(at_goes, &[100]).unwrap();
        pull(&mut goes, at_goes, 1);
        drop(goes);
        Network::here().unwrap().sleep(Duration::from_secs(1));
        let gone = tell(&mut stays, table, b"first");
        assert!(gone.contains("that node is gone"), "{gone}");
        assert_eq!(pull(&mut stays, table, 1), [0]);
    });
}
