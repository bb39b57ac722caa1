//! Goal: a refusal reaches its caller with its kind, by which a program can decide.
//! Method: a handle that refuses whatever it is asked for by each kind, over every van; and servers
//! that are asked for what they refuse by themselves.

use crate::support::raw_lane::RawLane;
use crate::support::{Servers, config, endpoint, handles, vans};
use caravan_kv::consistency::Model;
use caravan_kv::error::Advice;
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{Error, Refusal, Refused, Shard, TableSpec, Timestamp, ValueType, Worker};
use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, KeyRange, Pool, Values};

const GIB: usize = 1 << 30;

/// The operation that creates a table.
const CREATE: u8 = 4;

/// The operation of a part of a checkpoint; the value 0 cuts a shard.
const CHECKPOINT: u8 = 23;

fn keys(end: u64) -> KeyRange {
    KeyRange::new(0, end).unwrap()
}

/// Refuses all requests by the kind whose number they carry.
struct Refuses;

fn refuse<T>(number: i32) -> Result<T, Refused> {
    Err(Refusal::from_number(number).because(format!("kind {number}")))
}

impl Shard for Refuses {
    fn push(&mut self, request: &Request<'_>, _: &Pool) -> Result<(), Refused> {
        refuse(request.command)
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        refuse(request.command)
    }

    fn read(&mut self, _: &Request<'_>, _: &mut [u8]) {}

    fn command(&mut self, _: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        refuse(i32::from(body[0]))
    }
}

/// Why a request is refused: the kind, the server and the reason.
fn why(worker: &mut Worker, asked: caravan_kv::Result<Timestamp>) -> (Refusal, String, String) {
    match asked.and_then(|asked| worker.wait(asked).map(|_| ())) {
        Err(Error::Refused { server, kind, reason, .. }) => (kind, server, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_kind_comes_over_every_van() {
    for van in vans() {
        let handles = handles().with("refuses", |_, _, _| Ok(Box::new(Refuses)));
        let servers = Servers::start(van, 2, &config(16, GIB), &handles);
        let mut worker = servers.worker();
        let spec = TableSpec::new(1, "no", ValueType::I64, 1).handle("refuses");
        let table = worker.admin().create_table(&spec).unwrap();
        for kind in Refusal::ALL {
            worker.set_command(kind.number());
            let expected =
                |server: &str| (*kind, server.to_owned(), format!("kind {}", *kind as u8));
            let pushed = worker.push(table, &[1], &[1i64]);
            assert_eq!(why(&mut worker, pushed), expected("server 0"));
            let pulled = worker.pull(table, &[u64::MAX]);
            assert_eq!(why(&mut worker, pulled), expected("server 1"));
            let both = worker.push_pull(table, &[1], &[1i64]);
            assert_eq!(why(&mut worker, both), expected("server 0"));
            let commanded = worker.command(table, &[*kind as u8]);
            assert_eq!(why(&mut worker, commanded).0, *kind);
        }
    }
}

/// What servers refuse by themselves, by kind. Those of a chain are in `departing.rs`.
#[test]
fn servers_refuse_by_kind() {
    let van = vans()[0];
    let servers = Servers::start(van, 2, &config(16, 64 << 20), &handles());
    let mut worker = servers.worker();
    let table = worker.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 1)).unwrap();

    let other =
        worker.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 2)).unwrap_err();
    assert!(matches!(other, Error::Refused { kind: Refusal::Shape, .. }), "{other}");
    let unknown = TableSpec::new(2, "u", ValueType::I64, 1).handle("nobody's");
    let unknown = worker.admin().create_table(&unknown).unwrap_err();
    assert!(matches!(unknown, Error::Refused { kind: Refusal::Unsupported, .. }), "{unknown}");
    let commanded = worker.command(table, b"do something");
    assert_eq!(why(&mut worker, commanded).0, Refusal::Unsupported);
    let fresh = worker.clocks(table).freshness().unwrap_err();
    assert_eq!(fresh.advice(), Advice::Mend, "{fresh}");

    let dense = TableSpec::new(3, "d", ValueType::F64, 1 << 20).keys(keys(1 << 30));
    let long = worker.admin().create_table(&dense.dense()).unwrap_err();
    assert!(matches!(long, Error::Refused { kind: Refusal::Memory, .. }), "{long}");
    assert_eq!(long.advice(), Advice::Retry);

    let vectors = TableSpec::new(4, "v", ValueType::F64, 1).keys(keys(100)).handle("vectors");
    let vectors = worker.admin().create_table(&vectors.dense()).unwrap();
    worker.set_command(7);
    let pushed = worker.push(vectors, &[5], &[1.0]);
    assert_eq!(why(&mut worker, pushed).0, Refusal::Key);

    let once = TableSpec::new(5, "m", ValueType::I64, 1).consistency(Model::Asp, 1).once();
    let once = worker.admin().create_table(&once).unwrap();
    worker.clocks(once).join().unwrap();
    let pushed = worker.push(once, &[1, 5], &[1i64, 1]).unwrap();
    worker.wait(pushed).unwrap();
    let pushed = worker.push(once, &[5, 9], &[1i64, 1]);
    assert_eq!(why(&mut worker, pushed).0, Refusal::Order);

    let lane_to = |server: usize| {
        let address = &servers.addresses[server].address;
        RawLane::to(address, endpoint(van, &config(16, GIB)), Coding::plain())
    };
    let mut lane = lane_to(1);
    let create = serde_json::to_vec(&TableSpec::new(6, "n", ValueType::I64, 1)).unwrap();
    let values = Values::Copied(&create);
    let number = lane.ask(Draft { op: CREATE, values, ..Draft::new(Kind::Request) }).unwrap_err();
    assert_eq!(number.kind, Refusal::NotHead, "{number}");

    let [mut reader, mut another] = [lane_to(0), lane_to(0)];
    let cut = || Draft { values: Values::Copied(&[0]), ..Draft::new(Kind::Request) };
    let cut = || Draft { op: CHECKPOINT, table: 1, ..cut() };
    reader.ask(cut()).unwrap();
    assert_eq!(another.ask(cut()).unwrap_err().kind, Refusal::Busy);

    let mut late = servers.worker();
    let seen = late.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 1)).unwrap();
    worker.admin().drop_table(table).unwrap();
    let pushed = late.push(seen, &[1], &[1i64]).unwrap();
    let dropped = late.wait(pushed).unwrap_err();
    assert!(matches!(dropped, Error::TableDropped { .. }), "{dropped}");
    assert_eq!(dropped.advice(), Advice::GiveUp);
}
