//! Goal: the contents of tables do not depend on the van, to the bit: every value type, few keys
//! and many in one message.
//! Method: two workers take turns at a fixed sequence of requests, and what they read is compared
//! with the tcp van's.

use crate::support::{Servers, config, handles, vans};
use caravan_kv::{Store, TableSpec, Timestamp, ValueType, Van, Worker};
use caravan_van::{Buffer, KeyRange, Value, bf16, f16};

const GIB: usize = 1 << 30;

/// Keys of the largest message; each of three servers gets a third.
const KEYS: u64 = 30_000;

/// What a worker reads during many requests on a table.
fn read<V: Value>(workers: &mut [Worker; 2], spec: &TableSpec, number: fn(u64) -> V) -> Vec<u8> {
    let tables = workers.each_mut().map(|worker| worker.admin().create_table(spec).unwrap());
    let range = spec.range().unwrap();
    let step = (range.count() / u128::from(KEYS)) as u64;
    let mut all = Vec::new();
    for round in 0..12u64 {
        let (worker, table) = (&mut workers[round as usize % 2], tables[round as usize % 2]);
        let count = [3, 500, KEYS][round as usize % 3];
        let keys: Vec<u64> =
            (0..count).map(|i| range.begin() + i * (KEYS / count) * step).collect();
        let values: Vec<V> = (0..count * u64::from(spec.width))
            .map(|i| number(i.wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ round) >> 40))
            .collect();
        let bytes = size_of_val(&values[..]);
        let mut requests: Vec<Timestamp> = vec![
            worker.push(table, &keys, &values).unwrap(),
            worker.pull(table, &keys).unwrap(),
            worker.push_pull(table, &keys, &values).unwrap(),
        ];
        let into = worker.memory().allocate(bytes).unwrap();
        requests.push(worker.pull_into(table, &keys, into).unwrap());
        let (shared, into) = (Buffer::adopt(values).share(), Buffer::adopt(vec![0u8; bytes]));
        requests.push(worker.push_pull_shared(table, &keys, &shared, into).unwrap());
        for request in requests {
            let answer = worker.wait(request).unwrap();
            all.extend_from_slice(answer.bytes());
        }
    }
    all
}

/// What is read from a table of every kind.
fn tables(van: Van) -> Vec<(String, Vec<u8>)> {
    let servers = Servers::start(van, 3, &config(64, GIB), &handles());
    let mut workers = [servers.worker(), servers.worker()];
    let few = KeyRange::new(7, 7 + 2 * KEYS).unwrap();
    let mut found = Vec::new();
    for (store, handle) in [
        (Store::Sparse, "add"),
        (Store::Sparse, "assign"),
        (Store::Dense, "add"),
        (Store::Dense, "assign"),
        (Store::Sparse, "min"),
        (Store::Dense, "adam"),
    ] {
        let is_for_all = handle != "adam";
        for value in ValueType::ALL.into_iter().filter(|it| is_for_all || !it.is_integer()) {
            let name = format!("{value:?} {handle} {store:?}");
            let spec = TableSpec::new(found.len() as u32, &name, value, 3).handle(handle);
            let spec = if store == Store::Dense { spec.keys(few).dense() } else { spec };
            let read = match value {
                ValueType::F32 => read::<f32>(&mut workers, &spec, |n| n as f32 / 7.0 - 1e5),
                ValueType::F64 => read::<f64>(&mut workers, &spec, |n| n as f64 / 7.0 - 1e5),
                ValueType::I32 => read::<i32>(&mut workers, &spec, |n| i32::MAX - n as i32),
                ValueType::I64 => read::<i64>(&mut workers, &spec, |n| i64::MAX - n as i64),
                ValueType::U8 => read::<u8>(&mut workers, &spec, |n| n as u8),
                ValueType::U32 => read::<u32>(&mut workers, &spec, |n| u32::MAX - n as u32),
                ValueType::U64 => read::<u64>(&mut workers, &spec, |n| u64::MAX - n),
                ValueType::F16 => {
                    read(&mut workers, &spec, |n| f16::from_f32(n as f32 / 7.0 - 1e3))
                }
                ValueType::BF16 => {
                    read(&mut workers, &spec, |n| bf16::from_f32(n as f32 / 7.0 - 1e5))
                }
            };
            found.push((name, read));
        }
    }
    found
}

#[test]
fn every_van_reads_the_same_to_the_bit() {
    let expected = tables(Van::Tcp);
    for van in vans().into_iter().filter(|van| *van != Van::Tcp) {
        for ((name, bytes), (_, right)) in tables(van).iter().zip(&expected) {
            assert!(bytes == right, "{van}: {name}");
        }
    }
}
