//! Goal: tables come and go: after a drop nothing of a table stays, its number is free for another
//! one, and no request for the first ever reaches the second.
//! Method: several workers create, use and drop tables of one number on simulated networks, with
//! values that tell which table answers; over real vans, the memory of servers and workers is
//! counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc;

use crate::support::simulated::{Draws, connect, start, weather};
use crate::support::{Servers, TIMEOUT, config, endpoint, handles, vans};
use allocation_counter::measure;
use caravan_kv::filter::Filters;
use caravan_kv::{
    Error, Handles, Initial, Refusal, Refused, ServerAddress, ServerThread, Shard, Table,
    TableSpec, Timestamp, ValueType, Van, Worker,
};
use caravan_van::KeyRange;
use caravan_van::sim::{Network, for_each_seed};

const GIB: usize = 1 << 30;

/// Waits for a request; whether its table was dropped, in place of the answer's values.
fn outcome(worker: &mut Worker, request: Timestamp) -> Result<Vec<i64>, String> {
    match worker.wait(request) {
        Ok(answer) => Ok(answer.values::<i64>().to_vec()),
        Err(Error::TableDropped { table }) => Err(table),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_table_is_created_again_with_another_layout() {
    let servers = Servers::start(vans()[0], 2, &config(16, GIB), &handles());
    let mut worker = servers.worker();
    let mut other = servers.worker();
    let first = TableSpec::new(1, "first", ValueType::I64, 3);
    let table = worker.admin().create_table(&first).unwrap();
    let same = other.admin().create_table(&first).unwrap();
    let pushed = worker.push(table, &[1, u64::MAX], &[7i64; 6]).unwrap();
    worker.wait(pushed).unwrap();
    let second = TableSpec::new(1, "second", ValueType::F32, 2);
    let second = second.keys(KeyRange::new(0, 100).unwrap()).dense().handle("assign");
    let error = worker.admin().create_table(&second).unwrap_err().to_string();
    assert!(error.contains("table 1 exists and is another one"), "{error}");
    worker.admin().drop_table(table).unwrap();
    let again = worker.admin().create_table(&second).unwrap();
    assert_ne!(again, table);
    let pulled = worker.pull(again, &[1, 99]).unwrap();
    assert_eq!(worker.wait(pulled).unwrap().values::<f32>(), [0.0; 4]);

    // The handle of the table that was dropped here, and of the one that another has dropped.
    for request in [worker.pull(table, &[1]), worker.push(table, &[1], &[1i64; 3])] {
        let error = request.unwrap_err();
        assert!(matches!(error, Error::UnknownTable { table: 1 }), "{error}");
        assert!(error.to_string().contains("call create_table here"), "{error}");
    }
    assert!(matches!(worker.admin().drop_table(table), Err(Error::UnknownTable { .. })));
    let stale = other.pull(same, &[1]).unwrap();
    let error = other.wait(stale).unwrap_err();
    assert_eq!(error.to_string(), "table first was dropped (create it again)");
    let stale = other.command(same, b"x").unwrap();
    assert_eq!(outcome(&mut other, stale), Err("first".to_owned()));
    other.admin().drop_table(same).unwrap();
    let same = other.admin().create_table(&second).unwrap();
    let pushed = other.push(same, &[1], &[1.0f32, 2.0]).unwrap();
    other.wait(pushed).unwrap();
    let pulled = worker.pull(again, &[1]).unwrap();
    assert_eq!(worker.wait(pulled).unwrap().values::<f32>(), [1.0, 2.0]);
}

#[test]
fn namespaces_have_tables_of_the_same_number() {
    let servers = Servers::start(vans()[0], 2, &config(16, GIB), &handles());
    let mut worker = servers.worker();
    let spec = |namespace: &str, width| {
        TableSpec::new(1, "weights", ValueType::I64, width).namespace(namespace)
    };
    let tables: Vec<Table> = [("", 1), ("a", 2), ("b", 3)]
        .map(|(namespace, width)| worker.admin().create_table(&spec(namespace, width)).unwrap())
        .to_vec();
    let others = TableSpec::new(2, "others", ValueType::I64, 2).namespace("a/b");
    let others = worker.admin().create_table(&others).unwrap();
    for (n, table) in (1i64..).zip(&tables) {
        worker.push(*table, &[5], &vec![n; n as usize]).unwrap();
    }
    assert_eq!(worker.admin().drop_tables("a").unwrap(), 2);
    assert_eq!(worker.admin().drop_tables("a").unwrap(), 0);
    for (n, table) in (1i64..).zip(&tables) {
        let pulled = worker.pull(*table, &[5]);
        match n {
            2 => assert!(matches!(pulled, Err(Error::UnknownTable { .. }))),
            _ => assert_eq!(outcome(&mut worker, pulled.unwrap()), Ok(vec![n; n as usize])),
        }
    }
    assert!(matches!(worker.pull(others, &[5]), Err(Error::UnknownTable { .. })));
    let again = worker.admin().create_table(&spec("a", 1)).unwrap();
    let pulled = worker.pull(again, &[5]).unwrap();
    assert_eq!(outcome(&mut worker, pulled), Ok(vec![0]));
}

#[test]
fn a_request_that_waits_for_a_clock_ends_with_its_table() {
    for van in vans() {
        let servers = Servers::start(van, 1, &config(16, GIB), &handles());
        let [mut worker, mut other] = [servers.worker(), servers.worker()];
        let spec = TableSpec::new(1, "clocked", ValueType::I64, 1).handle("clocked");
        let table = worker.admin().create_table(&spec).unwrap();
        let same = other.admin().create_table(&spec).unwrap();
        worker.set_clock(9);
        let waits = worker.pull(table, &[1]).unwrap();
        let asked = worker.command(table, b"pulls").unwrap();
        assert_eq!(worker.wait(asked).unwrap().replies, [b"0"]);
        other.admin().drop_table(same).unwrap();
        assert_eq!(outcome(&mut worker, waits), Err("clocked".to_owned()));
        let table = worker.admin().create_table(&spec).unwrap();
        worker.set_clock(0);
        let pulled = worker.pull(table, &[1]).unwrap();
        assert_eq!(outcome(&mut worker, pulled), Ok(vec![1]), "the new table's first pull");
    }
}

/// A table with number 1 whose values are all `layout` modulo 1000, whatever is pushed.
fn layout(layout: u64) -> TableSpec {
    let filters = if layout.is_multiple_of(2) { "key-cache" } else { "none" };
    TableSpec::new(1, &format!("layout {layout}"), ValueType::I64, 1 + layout as u32 % 3)
        .initial(Initial::constant(layout))
        .filters(filters.parse::<Filters>().unwrap())
}

/// Uses, drops and creates tables of number 1 for a while, as others do; returns how often a table
/// was dropped under a request.
fn come_and_go(worker: &mut Worker, draws: &mut Draws) -> u64 {
    let mut stale = 0;
    let mut tables: VecDeque<(u64, Table)> = VecDeque::new();
    for _ in 0..25 {
        let of = 1 + draws.below(5);
        match worker.admin().create_table(&layout(of)) {
            Ok(table) => tables.push_back((of, table)),
            Err(Error::TableDropped { table }) => assert_eq!(table, format!("layout {of}")),
            Err(Error::Refused { reason, .. }) => {
                assert!(reason.contains("another one"), "{reason}")
            }
            Err(error) => panic!("{error}"),
        }
        let mut waiting = Vec::new();
        for &(of, table) in &tables {
            let many = [1, 40, 200][draws.below(3) as usize];
            let keys: Vec<u64> = (0..many).map(|key| key * (u64::MAX / 200)).collect();
            let values = vec![1000i64; keys.len() * (1 + of as usize % 3)];
            for pushes in [true, false] {
                let request = match pushes {
                    true => worker.push(table, &keys, &values),
                    false => worker.pull(table, &keys),
                };
                match request {
                    Ok(request) => waiting.push((of, pushes, values.len(), request)),
                    Err(Error::UnknownTable { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        for (of, pushes, len, request) in waiting {
            match outcome(worker, request) {
                Ok(values) if pushes => assert!(values.is_empty()),
                Ok(values) => {
                    assert_eq!(values.len(), len);
                    assert!(
                        values.iter().all(|value| value % 1000 == of as i64),
                        "{of}: {values:?}"
                    );
                }
                Err(table) => {
                    assert_eq!(table, format!("layout {of}"));
                    stale += 1;
                }
            }
        }
        while tables.len() > draws.below(4) as usize {
            let (_, table) = tables.pop_front().unwrap();
            match worker.admin().drop_table(table) {
                Ok(()) | Err(Error::UnknownTable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    stale
}

#[test]
fn a_request_never_reaches_another_table_of_its_number() {
    let mut stale = 0;
    for_each_seed(60, |seed| {
        let network = Network::new(seed, weather(seed));
        let servers = 1 + seed % 3;
        // Few remembered lists, so that servers ask for keys while tables go.
        let few = |server: ServerThread| server.remember_bytes(4 << 10);
        let (addresses, stop) = start(&network, servers as usize, &Handles::default(), few);
        let nodes: Vec<_> = (0..3)
            .map(|node| {
                let addresses = addresses.clone();
                network.spawn(&format!("worker {node}"), move |network| {
                    let mut worker = connect(network, 100 + node, &addresses);
                    come_and_go(&mut worker, &mut Draws(seed << 8 | u64::from(node)))
                })
            })
            .collect();
        for node in nodes {
            stale += node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        let mut worker = connect(&network, 99, &addresses);
        worker.admin().drop_tables("").unwrap();
        let table = worker.admin().create_table(&layout(7)).unwrap();
        let pulled = worker.pull(table, &[0]).unwrap();
        assert_eq!(outcome(&mut worker, pulled), Ok(vec![7; 2]));
        stop.store(true, Ordering::Relaxed);
    });
    println!("{stale} requests found their table dropped");
    assert!(stale > 0);
}

/// The answer of each server thread to a command of the table "memory": bytes left in its pool.
fn bytes_left(worker: &mut Worker, watch: Table) -> u64 {
    let asked = worker.command(watch, b"").unwrap();
    let replies = worker.wait(asked).unwrap().replies;
    replies.iter().map(|reply| String::from_utf8_lossy(reply).parse::<u64>().unwrap()).sum()
}

/// Tells how much memory its thread has left.
struct Left(caravan_van::Pool);

impl Shard for Left {
    fn push(
        &mut self,
        _: &caravan_kv::server::Request<'_>,
        _: &caravan_van::Pool,
    ) -> Result<(), Refused> {
        Err(Refusal::Shape.because("nothing is pushed here"))
    }

    fn pull(
        &mut self,
        _: &caravan_kv::server::Request<'_>,
    ) -> Result<caravan_kv::server::Pulled<'_>, Refused> {
        Err(Refusal::Shape.because("nothing is pulled here"))
    }

    fn read(&mut self, _: &caravan_kv::server::Request<'_>, _: &mut [u8]) {}

    fn command(&mut self, _: u32, _: &[u8]) -> Result<Vec<u8>, Refused> {
        Ok(self.0.bytes_left().to_string().into_bytes())
    }
}

/// 1000 tables with rows, lists of keys and filters, `together` of them at a time.
fn thousand(worker: &mut Worker, together: u32) {
    let keys: Vec<u64> = (0..300).map(|key| key * (u64::MAX / 300)).collect();
    let filters: Filters = "key-cache,significant=1,snappy".parse().unwrap();
    for round in 0..1000 / together {
        let tables: Vec<Table> = (0..together)
            .map(|id| {
                let spec = TableSpec::new(id, "many", ValueType::F64, 4 + round % 3);
                let table = worker.admin().create_table(&spec.filters(filters)).unwrap();
                let values = vec![2.0; keys.len() * (4 + round as usize % 3)];
                for _ in 0..3 {
                    let pushed = worker.push(table, &keys, &values).unwrap();
                    worker.wait(pushed).unwrap();
                }
                let pulled = worker.pull(table, &keys).unwrap();
                drop(worker.wait(pulled).unwrap());
                table
            })
            .collect();
        for table in tables {
            worker.admin().drop_table(table).unwrap();
        }
    }
}

#[test]
fn a_thousand_tables_leave_no_memory_behind() {
    let kept = &AtomicI64::new(0);
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (say, hear) = mpsc::channel();
        let serve = move || {
            let left = |_: &_, _: _, memory: &caravan_van::Pool| {
                Ok(Box::new(Left(memory.clone())) as Box<dyn Shard>)
            };
            let handles = Handles::default().with("left", left);
            let endpoint = endpoint(Van::Tcp, &config(16, GIB));
            let mut server = ServerThread::new(endpoint, 0, 1, handles);
            say.send(server.address().to_owned()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let step = measure(|| assert!(server.step().is_ok()));
                kept.fetch_add(step.bytes_current, Ordering::SeqCst);
                std::thread::yield_now();
            }
        };
        let server = scope.spawn(serve);
        let address = ServerAddress { name: "server 0".into(), address: hear.recv().unwrap() };
        let client = endpoint(Van::Tcp, &config(16, GIB));
        let mut worker = Worker::connect(client, &[address], TIMEOUT).unwrap();
        let watch = TableSpec::new(5000, "memory", ValueType::I64, 1).handle("left");
        let watch = worker.admin().create_table(&watch).unwrap();
        for together in [1, 500] {
            thousand(&mut worker, together); // warm: the most tables at a time
            let before = bytes_left(&mut worker, watch);
            let here = worker.memory().bytes_left();
            let kept_before = kept.load(Ordering::SeqCst);
            let own = measure(|| thousand(&mut worker, together)).bytes_current;
            let after = bytes_left(&mut worker, watch);
            let more = kept.load(Ordering::SeqCst) - kept_before;
            println!(
                "{together} at a time: server {before} bytes left, then {after}, {more} of {kept_before} \
                 bytes more from the allocator; worker {here}, then {}, {own} more",
                worker.memory().bytes_left()
            );
            let used = |left: u64| GIB as u64 - left;
            assert!(used(after) * 100 <= used(before) * 101, "{before} bytes left, then {after}");
            assert!(more * 100 <= kept_before, "{more} bytes more than {kept_before}");
            assert!(own < 4 << 10, "{own} bytes more at the worker");
            assert!(worker.memory().bytes_left() >= here);
        }
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap();
    });
}
