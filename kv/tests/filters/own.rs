//! Goal: filters from outside the crate work in a stack with the others, and noise changes sums
//! only as its deviation says.
//! Method: real servers and workers on a van, compared with the same requests to a table without
//! filters.

use caravan_kv::filter::{Draws, Filter, OwnFilters, Stage};
use caravan_kv::{TableSpec, ValueType, Worker};
use serde_json::json;

use super::{own, pull, servers, table};
use crate::support::Servers;

fn worker(servers: &Servers) -> Worker {
    let mut worker = servers.worker();
    worker.admin().set_filters(own());
    worker
}

fn spec(id: u32, value: ValueType, width: u32) -> TableSpec {
    TableSpec { id, ..table(value, width) }
}

#[test]
fn in_a_stack_with_others_they_lose_nothing() {
    let stacks =
        ["none", "mask", "zero", "narrow", "key-cache", "snappy", "zero,narrow,key-cache,snappy"];
    for stack in stacks {
        for names in [&["trim"][..], &["turn", "trim"], &["trim", "turn", "trim"]] {
            let servers = servers(own());
            let mut worker = worker(&servers);
            let plain = worker.admin().create_table(&spec(2, ValueType::F64, 3)).unwrap();
            let filtered = spec(1, ValueType::F64, 3).filters(stack.parse().unwrap());
            let named = |spec: TableSpec, name: &&str| spec.own_filter(name, json!(null));
            let filtered =
                worker.admin().create_table(&names.iter().fold(filtered, named)).unwrap();
            let mut draws = Draws::new(3, 4);
            for round in 0..4 {
                let count = if round == 3 { 1 } else { 600 };
                let keys: Vec<u64> = (0..count).collect();
                let mut value = || if draws.next_unit() < 0.7 { 0.0 } else { draws.next_unit() };
                let mut values: Vec<f64> = (0..3 * count).map(|_| value()).collect();
                values[3 * count as usize - 1] = 0.0;
                let answers = [plain, filtered].map(|table| {
                    let pushed = worker.push(table, &keys, &values).unwrap();
                    worker.wait(pushed).unwrap();
                    let both = worker.push_pull(table, &keys, &values).unwrap();
                    (
                        worker.wait(both).unwrap().values::<f64>().to_vec(),
                        pull::<f64>(&mut worker, table, &keys),
                    )
                });
                assert_eq!(answers[0], answers[1], "{stack} {names:?} {round}");
            }
            let sent = worker.info().traffic(filtered).unwrap().sent;
            let [own, last] = [Stage::Own, Stage::Snappy].map(|stage| sent[stage as usize]);
            // Others may have left no zeros to trim; what is turned gets longer by its head.
            assert!(
                names.len() == 1 || own.bytes_in != own.bytes_out,
                "{stack} {names:?}: {own:?}"
            );
            assert!(
                last.bytes_out > 0 && sent.windows(2).all(|it| it[0].bytes_out == it[1].bytes_in)
            );
        }
    }
}

/// The sum of many noisy pushes is the sum of the pushes, but for what the deviation says; the same
/// seed gives the same, and without losses there is none.
#[test]
fn noise_has_its_deviation_and_mean_0() {
    let rounds = 200;
    let keys: Vec<u64> = (0..900).collect();
    let run = |seed: u64, is_lossless: bool, stack: &str| {
        let servers = servers(own());
        let mut worker = worker(&servers);
        let options = json!({ "deviation": 0.5, "seed": seed });
        let spec = spec(1, ValueType::F64, 1).own_filter("noise", options);
        let table = worker.admin().create_table(&spec.filters(stack.parse().unwrap())).unwrap();
        worker.filters(table).set_lossless(is_lossless).unwrap();
        for _ in 0..rounds {
            let pushed = worker.push(table, &keys, &vec![1.0; keys.len()]).unwrap();
            worker.wait(pushed).unwrap();
        }
        pull::<f64>(&mut worker, table, &keys)
    };
    let sums = run(7, false, "none");
    let count = keys.len() as f64;
    let errors = sums.iter().map(|sum| sum - f64::from(rounds));
    let deviation = 0.5 * f64::from(rounds).sqrt();
    let mean = errors.clone().sum::<f64>() / count;
    assert!(mean.abs() < 5.0 * deviation / count.sqrt(), "{mean}");
    let variance = errors.map(|error| error * error).sum::<f64>() / count;
    let bound = 5.0 * deviation * deviation * (2.0 / count).sqrt();
    assert!((variance - deviation * deviation).abs() < bound, "{variance}");
    assert_eq!(run(7, false, "none"), sums);
    assert_eq!(run(7, false, "mask,zero,key-cache,snappy"), sums, "others change none of it");
    assert_ne!(run(8, false, "none"), sums);
    assert_eq!(run(7, true, "none"), vec![f64::from(rounds); keys.len()]);
}

#[test]
fn unknown_names_are_refused_at_both_ends_with_the_known_ones() {
    let servers = servers(OwnFilters::default());
    let mut stranger = servers.worker();
    let spec = spec(1, ValueType::F64, 1).own_filter("turn", json!(null));
    let said = stranger.admin().create_table(&spec).unwrap_err().to_string();
    assert!(said.contains("filter turn: this worker has noise"), "{said}");
    let mut worker = worker(&servers);
    let said = worker.admin().create_table(&spec).unwrap_err().to_string();
    assert!(said.contains("filter turn: this server has noise"), "{said}");
}

/// What a peer codes with another filter of the same name is refused by name, and the next push is
/// served.
#[test]
fn what_cannot_be_undone_is_refused() {
    struct Longer;
    impl Filter for Longer {
        fn encode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
            out.resize(bytes.len() + 1, 1);
            bytes[0] == 1
        }
    }
    let servers = servers(own());
    let mut worker = servers.worker();
    worker.admin().set_filters(OwnFilters::default().with("turn", |_| Ok(Box::new(Longer))));
    let spec = spec(1, ValueType::U8, 1).own_filter("turn", json!(null));
    let table = worker.admin().create_table(&spec).unwrap();
    let pushed = worker.push(table, &[3], &[1_u8]).unwrap();
    let said = worker.wait(pushed).unwrap_err().to_string();
    assert!(said.contains("2 bytes came for 1"), "{said}");
    let pushed = worker.push(table, &[3], &[2_u8]).unwrap();
    worker.wait(pushed).unwrap();
    let pulled = worker.pull(table, &[3]).unwrap();
    assert_eq!(worker.wait(pulled).unwrap().values::<u8>(), [2]);
}
