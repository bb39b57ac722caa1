//! Goal: filters change the bytes, and the values only as documented: not at all, on average, or
//! later.
//! Method: real servers and workers on a van, compared with the same requests to a table without
//! filters, and with the counters of both ends.

mod own;

use crate::support::own_filters::own;
use crate::support::raw_lane::RawLane;
use crate::support::{Servers, any, config, endpoint};
use caravan_kv::filter::{Draws, Filters, OwnFilters, Stage, Traffic};
use caravan_kv::{Error, Handles, Table, TableSpec, ValueType, Worker};
use caravan_van::wire::Kind;
use caravan_van::{Coding, Draft, KeyRange, Value, Values};

/// Two server threads.
fn servers(filters: OwnFilters) -> Servers {
    let handles = Handles::default().with_filters(filters);
    Servers::start(any(), 2, &config(16, 1 << 28), &handles)
}

fn filters(list: &str) -> Filters {
    list.parse().unwrap()
}

/// A table over 1000 keys, so that both servers have some.
fn table(value: ValueType, width: u32) -> TableSpec {
    TableSpec::new(1, "t", value, width).keys(KeyRange::new(0, 1000).unwrap())
}

fn keys() -> Vec<u64> {
    (0..1000).filter(|key| key % 3 != 1).collect()
}

/// Mostly zeros and f32s.
fn values(count: usize, seed: u64) -> Vec<f64> {
    let mut draws = Draws::new(seed, 7);
    let value = |_| match draws.next_unit() {
        u if u < 0.6 => 0.0,
        u if u < 0.9 => f64::from((u * 1000.0) as f32 - 500.0),
        u => u - 0.95,
    };
    (0..count).map(value).collect()
}

fn pull<V: Value>(worker: &mut Worker, table: Table, keys: &[u64]) -> Vec<V> {
    let pulled = worker.pull(table, keys).unwrap();
    worker.wait(pulled).unwrap().values::<V>().to_vec()
}

fn flow(traffic: &Traffic, stage: Stage) -> (u64, u64) {
    let flow = traffic.sent[stage as usize];
    (flow.bytes_in, flow.bytes_out)
}

#[test]
fn what_loses_nothing_changes_nothing_and_both_ends_count_the_same() {
    let all = "mask,zero,narrow,key-cache,snappy";
    let lists = ["mask", "zero", "narrow", "key-cache", "snappy", "zero,snappy", all];
    for (list, own_count) in lists.iter().flat_map(|list| [(*list, 0), (*list, 2)]) {
        let mut servers = servers(own());
        let mut worker = servers.worker();
        worker.admin().set_filters(own());
        let mut spec = table(ValueType::F64, 3).filters(filters(list));
        for _ in 0..own_count {
            spec = spec.own_filter("trim", serde_json::Value::Null);
        }
        let filtered = worker.admin().create_table(&spec).unwrap();
        let plain = TableSpec { id: 2, ..table(ValueType::F64, 3) };
        let plain = worker.admin().create_table(&plain).unwrap();
        let keys = keys();
        for round in 0..5 {
            // Short ones take another path in plain tables, and in tables that only cache keys.
            let keys = if round == 3 { &keys[..1] } else { &keys[..] };
            let values = values(3 * keys.len(), round);
            let mut answers = [plain, filtered].map(|table| {
                let pushed = worker.push(table, keys, &values).unwrap();
                worker.wait(pushed).unwrap();
                let both = worker.push_pull(table, keys, &values).unwrap();
                let both = worker.wait(both).unwrap().values::<f64>().to_vec();
                (both, pull::<f64>(&mut worker, table, keys))
            });
            let filtered = std::mem::take(&mut answers[1]);
            assert_eq!(filtered, answers[0], "{list}, round {round}");
        }
        let at_worker = worker.info().traffic(filtered).unwrap();
        assert_eq!(worker.info().traffic(plain).unwrap(), Traffic::default());
        let sent: Vec<_> =
            at_worker.sent.iter().map(|flow| (flow.bytes_in, flow.bytes_out)).collect();
        assert!(sent.windows(2).all(|pair| pair[0].1 == pair[1].0), "{list}: {sent:?}");
        if !["mask", "narrow", "key-cache"].contains(&list) {
            assert!(sent[Stage::Snappy as usize].1 * 3 < sent[0].0 * 2, "{list}: {sent:?}");
            assert!(
                at_worker.received[Stage::Snappy as usize].bytes_out
                    < at_worker.received[0].bytes_in,
                "{list}"
            );
        }
        drop(worker);
        let at_servers = servers.end(0).plus(&servers.end(1));
        assert_eq!(at_worker.sent, at_servers.received, "{list}");
        assert_eq!(at_worker.received, at_servers.sent, "{list}");
    }
}

#[test]
fn integers_take_bitmaps() {
    let servers = servers(own());
    let mut worker = servers.worker();
    let counts =
        worker.admin().create_table(&table(ValueType::I32, 2).filters(filters("zero"))).unwrap();
    let keys = keys();
    let values: Vec<i32> =
        (0..2 * keys.len() as i32).map(|i| if i % 7 == 0 { -i } else { 0 }).collect();
    worker.push(counts, &keys, &values).unwrap();
    assert_eq!(pull::<i32>(&mut worker, counts, &keys), values);
    let (before, after) = flow(&worker.info().traffic(counts).unwrap(), Stage::Zero);
    assert!(after < before, "{before} {after}");
}

#[test]
fn long_values_are_filtered_like_short_ones() {
    let servers = servers(own());
    let mut worker = servers.worker();
    let spec = table(ValueType::F64, 1000).filters(filters("zero,narrow"));
    let long = worker.admin().create_table(&spec).unwrap();
    let keys = keys();
    let values = values(1000 * keys.len(), 3);
    let pushed =
        worker.push_shared(long, &keys, &caravan_van::Buffer::adopt(values.clone()).share());
    let pushed = pushed.unwrap();
    worker.wait(pushed).unwrap();
    assert!(pull::<f64>(&mut worker, long, &keys) == values);
    let into = worker.memory().allocate(8 * values.len()).unwrap();
    let pulled = worker.pull_into(long, &keys, into).unwrap();
    assert!(worker.wait(pulled).unwrap().values::<f64>() == values);
}

#[test]
fn what_is_rounded_or_skipped_is_right_on_average_and_repeats_with_its_seed() {
    let rounds = 400;
    let run = |list: &str| {
        let servers = servers(own());
        let mut worker = servers.worker();
        let table =
            worker.admin().create_table(&table(ValueType::F64, 2).filters(filters(list))).unwrap();
        let (keys, values) = (keys(), values(2 * keys().len(), 11));
        for _ in 0..rounds {
            worker.push(table, &keys, &values).unwrap();
        }
        let sums = pull::<f64>(&mut worker, table, &keys);
        (values, sums, worker.info().traffic(table).unwrap())
    };
    for (list, variance) in [
        // At most a quarter of a step squared each; values lie within 500, so a step is at most
        // 1000 / 255.
        ("quantize=1", (1000.0_f64 / 255.0).powi(2) / 4.0),
        // v² (1 - q) / q each, with |v| at most 500.
        ("skip=0.5", 500.0_f64.powi(2)),
        ("skip=0.5,quantize=2,zero", 500.0_f64.powi(2) + (2000.0_f64 / 65535.0).powi(2) / 4.0),
    ] {
        let (values, sums, traffic) = run(list);
        let count = values.len() as f64;
        let mut mean = 0.0;
        for (value, sum) in values.iter().zip(&sums) {
            let error = sum / f64::from(rounds) - value;
            // Six standard deviations, because there are many of them.
            assert!(
                error.abs() <= 6.0 * (variance / f64::from(rounds)).sqrt(),
                "{list}: {value} {error}"
            );
            mean += error / count;
        }
        let bound = 5.0 * (variance / f64::from(rounds) / count).sqrt();
        assert!(mean.abs() <= bound, "{list}: off by {mean} on average, over {bound}");
        assert_eq!(run(list).1, sums, "{list} repeats itself");
        assert_ne!(run(&format!("{list},seed=1")).1, sums, "{list} with another seed");
        assert!(
            traffic.sent[Stage::Snappy as usize].bytes_out < traffic.sent[0].bytes_in,
            "{list}"
        );
    }
}

#[test]
fn nothing_is_lost_of_what_is_not_significant() {
    let servers = servers(own());
    let mut worker = servers.worker();
    let list = "significant=400,mask,zero,key-cache";
    let table =
        worker.admin().create_table(&table(ValueType::F64, 2).filters(filters(list))).unwrap();
    let keys = keys();
    let mut sums = vec![0.0; 2 * keys.len()];
    for clock in 1..=20 {
        worker.set_clock(clock);
        // Integers, so that sums are exact in any order.
        let values: Vec<f64> =
            values(2 * keys.len(), clock).iter().map(|v| (v / 60.0).round()).collect();
        worker.push(table, &keys, &values).unwrap();
        sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        let there = pull::<f64>(&mut worker, table, &keys);
        let kept = there.iter().zip(&sums).filter(|(there, sum)| there != sum).count();
        assert!(kept > 0, "clock {clock}: something is kept");
        let threshold = 400.0 / clock as f64;
        assert!(there.iter().zip(&sums).all(|(a, b)| (a - b).abs() < threshold), "clock {clock}");
    }
    let flushed = worker.filters(table).flush().unwrap().unwrap();
    worker.wait(flushed).unwrap();
    assert_eq!(pull::<f64>(&mut worker, table, &keys), sums);
    assert!(worker.filters(table).flush().unwrap().is_none());
    let (before, after) = flow(&worker.info().traffic(table).unwrap(), Stage::Significant);
    assert!(after < before, "{before} {after}");
}

#[test]
fn lossy_filters_can_be_suspended() {
    let servers = servers(own());
    let mut worker = servers.worker();
    let list = "skip=0.3,significant=1e6,quantize=1";
    let table =
        worker.admin().create_table(&table(ValueType::F32, 1).filters(filters(list))).unwrap();
    let keys = keys();
    let values: Vec<f32> = keys.iter().map(|&key| key as f32 + 0.125).collect();
    worker.push(table, &keys, &values).unwrap();
    assert_eq!(pull::<f32>(&mut worker, table, &keys), vec![0.0; keys.len()], "all is kept");
    worker.filters(table).flush().unwrap();
    let before = pull::<f32>(&mut worker, table, &keys);
    worker.filters(table).set_lossless(true).unwrap();
    worker.push(table, &keys, &values).unwrap();
    let after = pull::<f32>(&mut worker, table, &keys);
    let exact: Vec<f32> =
        before.iter().zip(&values).map(|(before, value)| before + value).collect();
    assert_eq!(after, exact);
}

#[test]
fn tables_that_cannot_have_a_filter_are_refused() {
    let servers = servers(own());
    let mut worker = servers.worker();
    let counts = table(ValueType::I64, 1).filters(filters("quantize=2"));
    let error = worker.admin().create_table(&counts).unwrap_err().to_string();
    assert!(error.contains("counts are exact"), "{error}");
    let rounded = worker
        .admin()
        .create_table(&table(ValueType::F64, 1).filters(filters("quantize=2")))
        .unwrap();
    let error = worker.push(rounded, &[1, 2], &[1.0, f64::NAN]).unwrap_err();
    assert!(matches!(&error, Error::Config(why) if why.contains("value 1 ")), "{error}");
    let wide = [f64::MAX, -f64::MAX];
    let keys: Vec<u64> = (0..100).collect();
    let pushed = worker.push(rounded, &keys, &wide.repeat(50)).unwrap();
    let error = worker.wait(pushed).unwrap_err().to_string();
    assert!(error.contains("span more than"), "{error}");
    worker.push(rounded, &[1], &[1.0]).unwrap();
    assert_eq!(pull::<f64>(&mut worker, rounded, &[1]), [1.0], "the table is none the worse");
}

#[test]
fn blocks_that_are_none_are_refused_and_the_lane_lives() {
    let servers = servers(own());
    let mut worker = servers.worker();
    worker.admin().create_table(&table(ValueType::F64, 2).filters(filters("zero"))).unwrap();
    worker.admin().create_table(&TableSpec { id: 2, ..table(ValueType::F64, 2) }).unwrap();
    // A client without filters that makes blocks.
    let lanes = endpoint(any(), &config(16, 1 << 28));
    let mut client = RawLane::to(&servers.addresses[0].address, lanes, Coding::plain());
    let (push, pull, filtered) = (1, 2, 0x80);
    let bare = [0; 12];
    let truncated = [2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0x0f, 1, 2, 3];
    for (table, op, block, says) in [
        (1, push | filtered, &bare[..], "not for this table"),
        (1, push | filtered, &truncated, "its numbers take 32 bytes, and 3 are there"),
        (1, push | filtered, &[1, 2], "its head takes 12 bytes"),
        (2, push | filtered, &truncated, "the table has no filters"),
        (1, pull | filtered, &bare, "no operation"),
        (1, 100 | filtered, &bare, "no operation"),
        (9, push | filtered, &bare, "unknown here"),
    ] {
        let values = Values::Copied(block);
        let draft = Draft { op, table, keys: &[1, 2], values, ..Draft::new(Kind::Request) };
        let text = client.ask(draft).unwrap_err();
        assert!(text.reason.contains(says), "table {table}, op {op:#x}: {text}");
    }
    let draft = Draft {
        op: push | filtered,
        table: 1,
        keys: &[1, 2],
        values: Values::Copied(&[2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0]),
        ..Draft::new(Kind::Request)
    };
    assert!(client.ask(draft).is_err(), "two bits of four are behind the last byte");
}
