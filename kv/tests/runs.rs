//! Goal: a request for runs of keys does what the same request with all its keys does, to the bit,
//! and sends hardly more than the values.
//! Method: twin tables in two namespaces, one used by keys and one by runs, over every van, with
//! filters, on clusters of several servers; the bytes on the wire are counted.

use crate::support::{Servers, config, handles, vans};
use caravan_kv::filter::Filters;
use caravan_kv::{Error, Handles, Runs, Table, TableSpec, Timestamp, ValueType, Van, Worker};
use caravan_van::{Buffer, KeyRange};

const GIB: usize = 1 << 30;

/// Keys of the tables: enough that three servers have a part each.
const KEYS: u64 = 3000;

/// Runs by name.
fn cases() -> Vec<(&'static str, Runs)> {
    vec![
        ("whole", Runs::range(0..KEYS)),
        ("one key", Runs::range(17..=17)),
        ("empty", Runs::range(5..5)),
        ("first keys", Runs::range(..40)),
        ("straddling two shards", Runs::range(990..1010)),
        ("straddling three shards", Runs::range(999..2001)),
        ("ends with a shard", Runs::range(900..1000)),
        ("begins with a shard", Runs::range(1000..1100)),
        ("chunks", Runs::chunks(64, &[0, 2, 3, 15, 31, 45])),
        ("unaligned chunks", Runs::chunks(7, &[1, 142, 143, 200, 400])),
        ("single keys", Runs::range(3..4).and(5..6).and(1500..=1500).and(2999..KEYS)),
        (
            "all kinds",
            Runs::range(1..2).and(10..500).and(998..=1003).and(2000..=2000).and(2500..KEYS),
        ),
    ]
}

/// All keys of runs.
fn keys(runs: &Runs) -> Vec<u64> {
    let all: Vec<u64> = runs.iter().flatten().collect();
    assert_eq!(all.len() as u128, runs.keys());
    all
}

fn values(count: usize, round: usize) -> Vec<f64> {
    (0..count).map(|n| ((n * 37 + round * 11) % 101) as f64 / 8.0 - 5.0).collect()
}

fn pulled(worker: &mut Worker, request: Timestamp) -> Vec<u64> {
    worker.wait(request).unwrap().values::<f64>().iter().map(|value| value.to_bits()).collect()
}

/// Twins with this specification: by keys and by runs.
fn twins(worker: &mut Worker, spec: &TableSpec) -> [Table; 2] {
    ["keys", "runs"].map(|name| worker.admin().create_table(&spec.clone().namespace(name)).unwrap())
}

fn is_same(worker: &mut Worker, [by_keys, by_runs]: [Table; 2], what: &str, width: usize) {
    for (round, (case, runs)) in cases().into_iter().enumerate() {
        let keys = keys(&runs);
        let values = values(keys.len() * width, round);
        let what = format!("{what}, {case}");
        worker.push(by_keys, &keys, &values).unwrap();
        worker.push(by_runs, &runs, &values).unwrap();
        let expected = worker.pull(by_keys, &keys).unwrap();
        let expected = pulled(worker, expected);
        assert_eq!(expected.len(), values.len(), "{what}");
        let found = worker.pull(by_runs, &runs).unwrap();
        assert_eq!(pulled(worker, found), expected, "{what}: pulled");
        let into = Buffer::adopt(vec![0.0f64; values.len()]);
        let found = worker.pull_into(by_runs, &runs, into).unwrap();
        assert_eq!(pulled(worker, found), expected, "{what}: pulled into");
        let found = worker.pull(by_runs, &keys).unwrap();
        assert_eq!(pulled(worker, found), expected, "{what}: by keys");
        let found = worker.pull(by_keys, &runs).unwrap();
        assert_eq!(pulled(worker, found), expected, "{what}: by runs what was pushed by keys");
        let expected = worker.push_pull(by_keys, &keys, &values).unwrap();
        let expected = pulled(worker, expected);
        let found = worker.push_pull(by_runs, &runs, &values).unwrap();
        assert_eq!(pulled(worker, found), expected, "{what}: both at once");
    }
    let all = [by_keys, by_runs].map(|table| {
        let found = worker.pull(table, &Runs::range(0..KEYS)).unwrap();
        pulled(worker, found)
    });
    assert_eq!(all[0], all[1], "{what}: at the end");
}

fn spec(width: u32) -> TableSpec {
    TableSpec::new(1, "twin", ValueType::F64, width).keys(KeyRange::new(0, KEYS).unwrap())
}

#[test]
fn runs_are_their_keys_over_every_van() {
    for van in vans() {
        let servers = Servers::start(van, 3, &config(16, GIB), &Handles::default());
        let mut worker = servers.worker();
        for (id, spec) in [
            (1, spec(1)),
            (2, spec(3).dense()),
            (3, spec(40).handle("adam")),
            (4, spec(1).dense().handle("assign")),
        ] {
            let width = spec.width as usize;
            let what = format!("{van}, {} width {width}", spec.handle);
            let twins = twins(&mut worker, &TableSpec { id, ..spec });
            is_same(&mut worker, twins, &what, width);
        }
    }
}

#[test]
fn runs_are_their_keys_with_filters() {
    let servers = Servers::start(vans()[0], 3, &config(16, GIB), &Handles::default());
    let mut worker = servers.worker();
    for (id, list) in [
        (1, "key-cache"),
        (2, "mask,zero"),
        (3, "snappy"),
        (4, "mask,zero,narrow,key-cache,snappy"),
        (5, "significant=1"),
        (6, "skip=0.5,seed=7"),
        (7, "quantize=2,key-cache,snappy"),
        (8, "skip=0.25,significant=0.5,snappy"),
    ] {
        for width in [1, 3] {
            let filters: Filters = list.parse().unwrap();
            let spec = TableSpec { id: id + 10 * width, ..spec(width) }.filters(filters);
            let twins = twins(&mut worker, &spec);
            is_same(&mut worker, twins, &format!("{list}, width {width}"), width as usize);
        }
    }
}

/// Runs that wait for a clock are kept apart, although the server writes out their keys into memory
/// that it uses again.
#[test]
fn runs_wait_for_their_clock() {
    for van in vans() {
        let servers = Servers::start(van, 1, &config(16, GIB), &handles());
        let mut worker = servers.worker();
        let table = TableSpec::new(1, "clocked", ValueType::I64, 1).handle("clocked");
        let table = worker.admin().create_table(&table).unwrap();
        worker.set_clock(1);
        let waiting = [3, 1, 9].map(|keys| (keys, worker.pull(table, &Runs::range(10..10 + keys))));
        let pushed = worker.push(table, &Runs::range(1..3), &[0i64; 2]).unwrap();
        worker.wait(pushed).unwrap();
        for (number, (keys, request)) in (1..).zip(waiting) {
            let answer = worker.wait(request.unwrap()).unwrap();
            assert_eq!(answer.values::<i64>(), vec![number; keys as usize], "{van}");
        }
    }
}

#[test]
fn wrong_runs_are_refused() {
    let servers = Servers::start(vans()[0], 2, &config(16, 64 << 20), &Handles::default());
    let mut worker = servers.worker();
    let table = worker.admin().create_table(&spec(1)).unwrap();
    let error = worker.pull(table, &Runs::range(5..9).and(8..10)).unwrap_err();
    assert!(matches!(error, Error::KeysNotAscending { position: 4, key: 8, .. }), "{error}");
    let error = worker.pull(table, &Runs::range(2990..3010)).unwrap_err();
    assert!(matches!(error, Error::KeyOutsideTable { key: 3000, .. }), "{error}");
    let error = worker.pull(table, &Runs::range(..)).unwrap_err();
    assert!(error.to_string().contains("CARAVAN_MEMORY"), "{error}");
    let error = worker.push(table, &Runs::range(0..4), &[1.0f64; 3]).unwrap_err();
    assert!(matches!(error, Error::WrongLength { expected: 4, found: 3, .. }), "{error}");
    let varying = TableSpec { id: 2, ..spec(0) };
    let varying = worker.admin().create_table(&varying).unwrap();
    let error = worker.pull(varying, &Runs::range(0..4)).unwrap_err();
    assert!(matches!(error, Error::VaryingTable { .. }), "{error}");
}

#[test]
fn hardly_more_than_the_values_goes_over_the_wire() {
    const BYTES: usize = 64 << 10;
    let servers = Servers::start(Van::Tcp, 2, &config(16, GIB), &Handles::default());
    let mut worker = servers.worker();
    let whole = TableSpec::new(1, "f32", ValueType::F32, 1);
    let table =
        worker.admin().create_table(&whole.keys(KeyRange::new(0, 1 << 16).unwrap())).unwrap();
    let keys = (BYTES / 4) as u64;
    let values = vec![1.5f32; BYTES / 4];
    let third = Runs::chunks(keys / 4, &[0, 2, 4, 5]);
    let straddling = Runs::range((1 << 15) - keys / 2..(1 << 15) + keys / 2);
    for runs in [Runs::range(0..keys), straddling, third] {
        assert_eq!(runs.keys(), u128::from(keys));
        let before = worker.info().counters();
        let pushed = worker.push(table, &runs, &values).unwrap();
        worker.wait(pushed).unwrap();
        let between = worker.info().counters();
        let pulled = worker.pull(table, &runs).unwrap();
        assert_eq!(worker.wait(pulled).unwrap().values::<f32>(), values);
        let after = worker.info().counters();
        let sent = between.bytes_sent - before.bytes_sent;
        let both =
            after.bytes_received - between.bytes_received + after.bytes_sent - between.bytes_sent;
        println!("{sent} bytes for a push and {both} for a pull of {BYTES}");
        assert!(sent as f64 <= 1.02 * BYTES as f64 && both as f64 <= 1.02 * BYTES as f64);
        let less = vec![-1.5f32; values.len()];
        let pushed = worker.push(table, &runs, &less).unwrap();
        worker.wait(pushed).unwrap();
    }
}
