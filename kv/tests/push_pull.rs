//! Goal: push and pull work as documented, for every kind of table, size and schedule, over every
//! van between threads.
//! Method: server threads and a worker over real sockets, compared with plain maps.

use std::collections::BTreeMap;

use crate::support::{Servers, config, handles, runs_over, vans};
use caravan_kv::{Error, Store, TableSpec, ValueType, Van};
use caravan_van::{Buffer, KeyRange, Value, bf16, f16};

const GIB: usize = 1 << 30;

fn kind<V: Value>() -> ValueType {
    ValueType::of::<V>().unwrap()
}

/// Pushes and pulls random keys of a table with a handle, and compares with `apply` on a map.
fn follows_a_map<V: Value + PartialEq + std::fmt::Debug>(
    servers: &Servers,
    spec: &TableSpec,
    number: impl Fn(u64) -> V,
    apply: impl Fn(V, V) -> V,
) {
    let mut worker = servers.worker();
    let table = worker.admin().create_table(spec).unwrap();
    let range = spec.range().unwrap();
    let width = spec.width as usize;
    let mut map: BTreeMap<u64, Vec<V>> = BTreeMap::new();
    let mut state = u64::from(spec.id) + 1;
    let mut draw = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 20
    };
    for round in 0..40 {
        let mut keys: Vec<u64> = (0..draw() % 40)
            .map(|_| match range.count() {
                0..=1000 => range.begin() + (u128::from(draw()) % range.count()) as u64,
                _ => range.last() - draw() % 60 * (u64::MAX / 60),
            })
            .collect();
        keys.push(range.last());
        keys.sort_unstable();
        keys.dedup();
        let values: Vec<V> = (0..keys.len() * width).map(|_| number(draw() % 1000)).collect();
        let pulled = match round % 3 {
            0 => worker.push_pull(table, &keys, &values).unwrap(),
            1 => {
                worker.push(table, &keys, &values).unwrap();
                worker.pull(table, &keys).unwrap()
            }
            _ => {
                let shared = Buffer::adopt(values.clone()).share();
                let into = worker.memory().allocate(size_of_val(&values[..])).unwrap();
                worker.push_pull_shared(table, &keys, &shared, into).unwrap()
            }
        };
        for (key, pushed) in keys.iter().zip(values.chunks(width)) {
            let stored = map.entry(*key).or_insert_with(|| vec![V::default(); width]);
            stored
                .iter_mut()
                .zip(pushed)
                .for_each(|(stored, pushed)| *stored = apply(*stored, *pushed));
        }
        let expected: Vec<V> = keys.iter().flat_map(|key| map[key].clone()).collect();
        assert_eq!(worker.wait(pulled).unwrap().values::<V>(), expected, "{}", spec.name);
    }
    // Keys never pushed read as zero, also between others.
    let begin = range.begin();
    let pulled = worker.pull(table, &[begin, range.last()]).unwrap();
    let zero = vec![V::default(); width];
    let of = |key| map.get(&key).unwrap_or(&zero).clone();
    assert_eq!(worker.wait(pulled).unwrap().values::<V>(), [of(begin), of(range.last())].concat());
}

#[test]
fn tables_of_all_kinds_follow_their_rules() {
    for van in vans() {
        for threads in [1, 3] {
            let servers = Servers::start(van, threads, &config(64, GIB), &handles());
            let small = KeyRange::new(u64::MAX - 200, 0).unwrap();
            let mut id = 0;
            let mut spec = |value, width, handle: &str, store| {
                id += 1;
                let spec =
                    TableSpec::new(id, &format!("{value:?} {handle} {store:?}"), value, width);
                let spec = spec.handle(handle);
                if store == Store::Dense { spec.keys(small).dense() } else { spec }
            };
            for store in [Store::Sparse, Store::Dense] {
                let add = spec(kind::<f32>(), 1, "add", store);
                follows_a_map::<f32>(&servers, &add, |n| n as f32, |a, b| a + b);
                let add = spec(kind::<f64>(), 3, "add", store);
                follows_a_map::<f64>(&servers, &add, |n| n as f64, |a, b| a + b);
                let add = spec(kind::<i32>(), 5, "add", store);
                follows_a_map::<i32>(&servers, &add, |n| i32::MAX - n as i32, i32::wrapping_add);
                let add = spec(kind::<i64>(), 2, "add", store);
                follows_a_map::<i64>(&servers, &add, |n| i64::MAX - n as i64, i64::wrapping_add);
                let add = spec(kind::<u8>(), 3, "add", store);
                follows_a_map::<u8>(&servers, &add, |n| n as u8, u8::wrapping_add);
                let add = spec(kind::<f16>(), 7, "add", store);
                follows_a_map::<f16>(&servers, &add, |n| f16::from_f64(n as f64), |a, b| a + b);
                let add = spec(kind::<bf16>(), 130, "add", store);
                follows_a_map::<bf16>(&servers, &add, |n| bf16::from_f64(n as f64), |a, b| a + b);
                let assign = spec(kind::<u8>(), 1, "assign", store);
                follows_a_map::<u8>(&servers, &assign, |n| n as u8, |_, b| b);
                let assign = spec(kind::<f32>(), 2, "assign", store);
                follows_a_map::<f32>(&servers, &assign, |n| n as f32, |_, b| b);
                let assign = spec(kind::<i64>(), 1000, "assign", store);
                follows_a_map::<i64>(&servers, &assign, |n| n as i64, |_, b| b);
                let max = spec(kind::<f64>(), 4, "max", store);
                follows_a_map::<f64>(&servers, &max, |n| n as f64, f64::max);
            }
        }
    }
}

/// Long values that begin and end anywhere among the rows.
fn from_any_row<V: Value>(servers: &Servers, id: u32, number: fn(u64) -> V) {
    let mut worker = servers.worker();
    let range = KeyRange::new(0, 200_000).unwrap();
    let spec = TableSpec::new(id, V::NAME, kind::<V>(), 1).keys(range).dense();
    let table = worker.admin().create_table(&spec).unwrap();
    let keys: Vec<u64> = (0..200_000).collect();
    let values: Vec<V> = keys.iter().map(|&key| number(key)).collect();
    let pushed = worker.push(table, &keys, &values).unwrap();
    worker.wait(pushed).unwrap();
    for begin in 0..9 {
        let within = begin..190_000 - 3 * begin;
        let pulled = worker.pull(table, &keys[within.clone()]).unwrap();
        assert!(worker.wait(pulled).unwrap().values::<V>() == &values[within], "from {begin}");
    }
}

#[test]
fn long_values_may_begin_at_any_row() {
    for van in vans() {
        let servers = Servers::start(van, 1, &config(64, GIB), &handles());
        from_any_row(&servers, 1, |key| key as u8);
        from_any_row(&servers, 2, |key| f16::from_bits(key as u16 & 0x3fff));
        from_any_row(&servers, 3, |key| bf16::from_bits(key as u16 & 0x3fff));
        from_any_row(&servers, 4, |key| key as f32);
    }
}

#[test]
fn keys_with_their_own_number_of_values() {
    for van in vans() {
        let servers = Servers::start(van, 3, &config(64, GIB), &handles());
        let mut worker = servers.worker();
        let spec = TableSpec::new(1, "varying", ValueType::F32, 0).handle("assign");
        let table = worker.admin().create_table(&spec).unwrap();
        let keys = [0, 7, u64::MAX / 2, u64::MAX - 1, u64::MAX];
        let values: Vec<f32> = (0..100_010).map(|i| i as f32).collect();
        let lengths = [1, 0, 100_000, 4, 5];
        worker.push_varying(table, &keys, &lengths, &values).unwrap();
        let pulled = worker.pull(table, &keys).unwrap();
        let answer = worker.wait(pulled).unwrap();
        assert_eq!(answer.lengths, lengths);
        assert!(answer.values::<f32>() == values);
        worker.push_varying(table, &keys[..1], &[3], &[1.0f32, 2.0, 3.0]).unwrap();
        let pulled = worker.pull(table, &[0, 1]).unwrap();
        let answer = worker.wait(pulled).unwrap();
        assert_eq!(
            (&answer.lengths[..], answer.values::<f32>()),
            (&[3, 0][..], &[1.0, 2.0, 3.0][..])
        );
        // Nothing on any server.
        let pulled = worker.pull(table, &[3, u64::MAX - 7]).unwrap();
        let answer = worker.wait(pulled).unwrap();
        assert_eq!((answer.lengths, answer.values.unwrap().len()), (vec![0, 0], 0));
        // Adding needs equal lengths.
        let spec = TableSpec::new(2, "sums", ValueType::I64, 0);
        let table = worker.admin().create_table(&spec).unwrap();
        worker.push_varying(table, &[5], &[2], &[1i64, 2]).unwrap();
        let wrong = worker.push_varying(table, &[5], &[3], &[1i64, 2, 3]).unwrap();
        let error = worker.wait(wrong).unwrap_err().to_string();
        assert!(error.contains("key 5 holds 2 values"), "{error}");
        let into = worker.memory().allocate(0).unwrap();
        let error = worker.pull_into(table, &[5], into).unwrap_err();
        assert!(matches!(error, Error::VaryingTable { .. }), "{error}");
    }
}

#[test]
fn wrong_arguments_are_errors_that_name_the_place() {
    let servers = Servers::start(Van::Tcp, 2, &config(64, GIB), &handles());
    let mut worker = servers.worker();
    let spec = TableSpec::new(1, "weights", ValueType::F32, 2).keys(KeyRange::new(10, 20).unwrap());
    let table = worker.admin().create_table(&spec).unwrap();
    let error = worker.push(table, &[11, 13, 12], &[0f32; 6]).unwrap_err();
    assert!(matches!(error, Error::KeysNotAscending { position: 2, key: 12, previous: 13 }));
    let error = worker.pull(table, &[11, 11]).unwrap_err();
    assert!(matches!(error, Error::KeysNotAscending { position: 1, .. }));
    for (keys, at) in [([9, 10, 11], 0), ([18, 19, 20], 2), ([11, 20, u64::MAX], 1)] {
        let error = worker.push_pull(table, &keys, &[0f32; 6]).unwrap_err();
        assert!(
            matches!(error, Error::KeyOutsideTable { position, .. } if position == at),
            "{error}"
        );
    }
    let error = worker.push(table, &[11], &[0f32; 3]).unwrap_err();
    assert!(matches!(error, Error::WrongLength { expected: 2, found: 3, .. }), "{error}");
    let error = worker.push(table, &[11], &[0f64; 2]).unwrap_err();
    assert!(matches!(error, Error::WrongType { expected: "f32", found: "f64", .. }), "{error}");
    let shared = worker.memory().allocate(9).unwrap().share();
    assert!(matches!(worker.push_shared(table, &[11], &shared), Err(Error::WrongLength { .. })));
    let into = worker.memory().allocate(9).unwrap();
    assert!(matches!(worker.pull_into(table, &[11], into), Err(Error::WrongLength { .. })));
    let lengths = worker.push_varying(table, &[11], &[2], &[0f32; 2]);
    assert!(matches!(lengths, Err(Error::WrongLength { what: "lengths", .. })));
    // A table of another worker.
    let mut other = servers.worker();
    assert!(matches!(other.pull(table, &[11]), Err(Error::UnknownTable { table: 1 })));
    assert!(matches!(other.push(table, &[11], &[0f32; 2]), Err(Error::UnknownTable { .. })));
    assert!(matches!(other.command(table, b""), Err(Error::UnknownTable { .. })));
    assert!(other.filters(table).compact().is_err());
    // None of this changed the table.
    let pulled = worker.push_pull(table, &[10, 19], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(worker.wait(pulled).unwrap().values::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    let nothing = worker.push_pull::<f32>(table, &[], &[]).unwrap();
    assert!(worker.wait(nothing).unwrap().values::<f32>().is_empty());
    let into = worker.memory().allocate(0).unwrap();
    let nothing = worker.pull_into(table, &[], into).unwrap();
    assert_eq!(worker.wait(nothing).unwrap().values.unwrap().len(), 0);
    assert!(
        caravan_kv::Worker::connect(
            crate::support::endpoint(Van::Tcp, &config(1, GIB)),
            &[],
            crate::support::TIMEOUT
        )
        .is_err()
    );
}

#[test]
fn tables_that_exist_are_joined_if_equal_and_refused_if_not() {
    let servers = Servers::start(Van::Tcp, 2, &config(64, 64 << 20), &handles());
    let (mut one, mut other) = (servers.worker(), servers.worker());
    let spec = TableSpec::new(1, "weights", ValueType::F32, 2);
    let table = one.admin().create_table(&spec).unwrap();
    let pushed = one.push(table, &[1], &[1f32, 2.0]).unwrap();
    one.wait(pushed).unwrap();
    assert_eq!(one.admin().create_table(&spec).unwrap(), table);
    let joined = other.admin().create_table(&spec).unwrap();
    let pulled = other.pull(joined, &[1]).unwrap();
    assert_eq!(other.wait(pulled).unwrap().values::<f32>(), [1.0, 2.0]);
    let differing = [
        TableSpec::new(1, "weights", ValueType::F32, 3),
        TableSpec::new(1, "weights", ValueType::I32, 2),
        TableSpec::new(1, "other", ValueType::F32, 2),
        spec.clone().handle("assign"),
        spec.clone().dense().keys(KeyRange::new(0, 10).unwrap()),
        spec.clone().options(serde_json::json!({"a": 1})),
    ];
    for spec in differing {
        let error = one.admin().create_table(&spec).unwrap_err();
        assert!(
            matches!(&error, Error::Refused { reason, .. } if reason.contains("another one")),
            "{error}"
        );
    }
    let error = one
        .admin()
        .create_table(&TableSpec::new(2, "x", ValueType::F32, 1).handle("nope"))
        .unwrap_err();
    assert!(error.to_string().contains("add, and, assign, clocked, div"), "{error}");
    let error = one
        .admin()
        .create_table(&TableSpec::new(2, "x", ValueType::F32, 1).handle("max"))
        .unwrap_err();
    assert!(error.to_string().contains("f64"), "{error}");
    let error =
        one.admin().create_table(&TableSpec::new(2, "x", ValueType::F32, 1).dense()).unwrap_err();
    assert!(error.to_string().contains("make it sparse"), "{error}");
    let dense = TableSpec::new(2, "x", ValueType::F32, 1).dense();
    let too_big = dense.keys(KeyRange::new(0, 1 << 26).unwrap());
    let error = one.admin().create_table(&too_big).unwrap_err();
    assert!(error.to_string().contains("CARAVAN_MEMORY"), "{error}");
    let mut empty = spec.clone();
    (empty.begin, empty.end) = (5, 5);
    assert!(matches!(one.admin().create_table(&empty), Err(Error::Config(_))));
    let pulled = one.pull(table, &[1]).unwrap();
    assert_eq!(one.wait(pulled).unwrap().values::<f32>(), [1.0, 2.0]);
}

#[test]
fn fewer_keys_than_threads() {
    for van in vans() {
        let servers = Servers::start(van, 5, &config(64, GIB), &handles());
        let mut worker = servers.worker();
        for (id, store) in [(1, Store::Dense), (2, Store::Sparse)] {
            let mut spec = TableSpec::new(id, "few", ValueType::I64, 1);
            spec.store = store;
            let spec = spec.keys(KeyRange::new(u64::MAX - 1, 0).unwrap());
            let table = worker.admin().create_table(&spec).unwrap();
            let keys = [u64::MAX - 1, u64::MAX];
            worker.push(table, &keys, &[1i64, 2]).unwrap();
            let pulled = worker.push_pull(table, &keys, &[10i64, 20]).unwrap();
            assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [11, 22]);
        }
    }
}

/// ps-lite: of 1,000 asynchronous pushes of one key, two thirds reached the handler out of order.
/// Here they stay in order although the key moves from server to server meanwhile.
#[test]
fn requests_of_a_worker_stay_in_order() {
    for van in vans() {
        for credits in [2, 256] {
            let servers = Servers::start(van, 2, &config(credits, GIB), &handles());
            let mut worker = servers.worker();
            let spec = TableSpec::new(1, "last wins", ValueType::I64, 1).handle("assign");
            let table = worker.admin().create_table(&spec).unwrap();
            for n in 0..1000i64 {
                worker.push(table, &[5, u64::MAX], &[n, -n]).unwrap();
                if n % 90 == 50 {
                    let moved = worker.admin().move_shard(table, 5, n as usize % 4 / 2).unwrap();
                    worker.then(moved, Box::new(|moved| assert!(moved.is_ok()))).unwrap();
                }
                if n % 100 == 7 {
                    let pulled = worker.pull(table, &[5, u64::MAX]).unwrap();
                    assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [n, -n]);
                }
            }
            let pulled = worker.pull(table, &[5, u64::MAX]).unwrap();
            assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [999, -999]);
            // Long and short requests keep their order as well.
            let wide = TableSpec::new(2, "wide", ValueType::I64, 50_000).handle("assign");
            let wide = worker.admin().create_table(&wide).unwrap();
            let (mut pulls, mut moves) = (Vec::new(), Vec::new());
            for n in 0..40i64 {
                worker.push(wide, &[9], &vec![n; 50_000]).unwrap();
                worker.push(table, &[5], &[n]).unwrap();
                if n % 10 == 5 {
                    moves.push(worker.admin().move_shard(wide, 9, n as usize % 4 / 2).unwrap());
                    moves.push(worker.admin().move_shard(table, 5, n as usize % 4 / 2).unwrap());
                }
                pulls.push((worker.pull(table, &[5]).unwrap(), worker.pull(wide, &[9]).unwrap()));
            }
            for (n, (narrow, wide)) in (0..).zip(pulls) {
                assert_eq!(worker.wait(narrow).unwrap().values::<i64>(), [n]);
                assert!(worker.wait(wide).unwrap().values::<i64>() == vec![n; 50_000]);
            }
            moves.into_iter().for_each(|moved| drop(worker.wait(moved).unwrap()));
        }
    }
}

/// Memory that the van lends out is returned before the answer to the push.
#[test]
fn what_was_lent_can_be_written_again_once_the_push_is_answered() {
    if !runs_over(Van::Shm) {
        return;
    }
    let servers = Servers::start(Van::Shm, 1, &config(64, GIB), &handles());
    let mut worker = servers.worker();
    for (id, width) in [(1, 1 << 10), (2, 1 << 14), (3, 1 << 18)] {
        let spec = TableSpec::new(id, "wide", ValueType::F32, width).handle("assign");
        let table = worker.admin().create_table(&spec).unwrap();
        let mut values = worker.memory().allocate(4 * width as usize).unwrap();
        for round in 0..100 {
            f32::view_mut(&mut values).unwrap().fill(round as f32);
            let shared = values.share();
            let pushed = worker.push_shared(table, &[5], &shared).unwrap();
            worker.wait(pushed).unwrap();
            values = shared.reclaim().expect("nobody reads it any more");
        }
        let pulled = worker.pull(table, &[5]).unwrap();
        assert!(worker.wait(pulled).unwrap().values::<f32>() == vec![99.0; width as usize]);
    }
}

#[test]
fn long_requests_are_carried_without_copies_into_the_callers_memory() {
    const WIDTH: usize = 1 << 18; // 1 MiB of f32
    for van in vans() {
        let servers = Servers::start(van, 2, &config(64, 2 * GIB), &handles());
        let mut worker = servers.worker();
        let spec = TableSpec::new(1, "wide", ValueType::F32, WIDTH as u32).handle("assign");
        let table = worker.admin().create_table(&spec).unwrap();
        let keys = [3, u64::MAX];
        let mut copied = 0;
        for round in 0..4 {
            let mut pushes = Vec::new();
            for n in 0..10 {
                let values: Vec<f32> =
                    (0..2 * WIDTH).map(|i| (i + n + 100 * round) as f32).collect();
                let at = values.as_ptr();
                let shared = Buffer::adopt(values).share();
                let pushed = worker.push_shared(table, &keys, &shared).unwrap();
                pushes.push((pushed, shared, at));
            }
            for (pushed, shared, at) in pushes {
                worker.wait(pushed).unwrap();
                // The van may hold it until it learns that the last bytes have left.
                let mut shared = shared;
                let mut buffer = loop {
                    match shared.reclaim() {
                        Ok(buffer) => break buffer,
                        Err(still) => shared = still,
                    }
                    worker.poll().unwrap();
                };
                assert_eq!(buffer.as_ptr().cast::<f32>(), at, "the memory comes back");
                buffer.fill(0);
            }
            let mut pulls = Vec::new();
            for _ in 0..10 {
                let into = Buffer::adopt(vec![0f32; 2 * WIDTH]);
                let at = into.as_ptr();
                pulls.push((worker.pull_into(table, &keys, into).unwrap(), at));
            }
            for (pulled, at) in pulls {
                let answer = worker.wait(pulled).unwrap();
                assert_eq!(answer.values.as_ref().unwrap().as_ptr(), at, "it lands in place");
                let right = |(i, value): (usize, &f32)| *value == (i + 9 + 100 * round) as f32;
                assert!(answer.values::<f32>().iter().enumerate().all(right));
            }
            let now = worker.info().counters().payload_bytes_copied;
            let fresh = now - copied;
            copied = now;
            // Pushed values lie in the caller's own memory, which no other process sees: that van
            // copies them to shared memory.
            let fresh = if van == Van::Shm { fresh - 80 * WIDTH as u64 } else { fresh };
            println!("{van}: {fresh} of {} pulled bytes copied in round {round}", 80 * WIDTH);
            assert!(round == 0 || fresh < 80 * WIDTH as u64 / 100, "{van}: {fresh} bytes");
        }
    }
}

/// Goal: a long answer of one server is read in the server's memory, however long it is, and does
/// not change after it came.
/// Method: pull a row, store to it, pull again; compare both answers with the values at the time of
/// each request.
#[test]
fn answers_that_are_lent_stay_as_they_came() {
    const WIDTH: usize = 1 << 18; // 1 MiB of f32
    if !runs_over(Van::Shm) {
        return;
    }
    let servers = Servers::start(Van::Shm, 1, &config(64, GIB), &handles());
    let mut worker = servers.worker();
    let spec = TableSpec::new(1, "wide", ValueType::F32, WIDTH as u32).handle("add");
    let table = worker.admin().create_table(&spec).unwrap();
    let ones = vec![1f32; WIDTH];
    let mut answers = Vec::new();
    for _ in 0..4 {
        let pushed = worker.push(table, &[7], &ones).unwrap();
        worker.wait(pushed).unwrap();
        let before = worker.info().counters();
        let pulled = worker.pull(table, &[7]).unwrap();
        answers.push(worker.wait(pulled).unwrap());
        let copied = worker.info().counters().payload_bytes_copied - before.payload_bytes_copied;
        assert_eq!(copied, 0);
    }
    for (at, answer) in (1..).zip(&answers) {
        assert!(answer.lent.is_some() && answer.values.is_none());
        assert!(answer.values::<f32>().iter().all(|&value| value == at as f32));
    }
    // Returned memory is used again: many more rows than the server has memory for.
    drop(answers);
    for _ in 0..2000 {
        let pushed = worker.push(table, &[7], &ones).unwrap();
        worker.wait(pushed).unwrap();
        let pulled = worker.pull(table, &[7]).unwrap();
        assert!(worker.wait(pulled).unwrap().lent.is_some());
    }
}

/// Goal: a row of a few KiB is lent as well. If lent rows are kept while they are stored to, which
/// then copies the whole chunk, the server copies them into answers for a while.
/// Method: pull and store, with and without the answer at hand, and check which answers were lent.
#[test]
fn a_row_that_is_stored_to_while_it_is_lent_is_copied_for_a_while() {
    const WIDTH: usize = 1 << 10; // 4 KiB of f32
    if !runs_over(Van::Shm) {
        return;
    }
    let servers = Servers::start(Van::Shm, 1, &config(64, GIB), &handles());
    let mut worker = servers.worker();
    let spec = TableSpec::new(1, "rows", ValueType::F32, WIDTH as u32).handle("add");
    let table = worker.admin().create_table(&spec).unwrap();
    let mut sum = 0.0;
    let mut push_and_pull = || {
        let pushed = worker.push(table, &[7], &[1f32; WIDTH]).unwrap();
        worker.wait(pushed).unwrap();
        sum += 1.0;
        let pulled = worker.pull(table, &[7]).unwrap();
        let answer = worker.wait(pulled).unwrap();
        assert!(answer.values::<f32>().iter().all(|&value| value == sum));
        answer
    };
    for _ in 0..100 {
        assert!(push_and_pull().lent.is_some(), "nobody stores to what is lent");
    }
    let kept = push_and_pull();
    let lent = Vec::from_iter((0..40).map(|_| push_and_pull().lent.is_some()));
    assert_eq!(lent.iter().position(|lent| *lent), Some(16), "{lent:?}");
    assert!(lent[16..].iter().all(|lent| *lent), "{lent:?}");
    assert!(kept.values::<f32>().iter().all(|&value| value == 101.0), "it is as it came");
}

/// Answers of unknown length, more at a time than a lane's share of landings.
#[test]
fn many_long_answers_without_an_offer() {
    for van in vans() {
        let servers = Servers::start(van, 1, &config(64, 3 * GIB), &handles());
        let mut worker = servers.worker();
        let spec = TableSpec::new(1, "varying", ValueType::F64, 0).handle("assign");
        let table = worker.admin().create_table(&spec).unwrap();
        let values: Vec<f64> = (0..2 << 20).map(|i| i as f64).collect();
        let pushed = worker.push_varying(table, &[8], &[2 << 20], &values).unwrap();
        worker.wait(pushed).unwrap();
        let pulls: Vec<_> = (0..12).map(|_| worker.pull(table, &[8]).unwrap()).collect();
        for pulled in pulls {
            let answer = worker.wait(pulled).unwrap();
            assert!(answer.lengths == [2 << 20] && answer.values::<f64>() == values);
        }
    }
}

#[test]
fn two_workers_add_up_exactly() {
    for van in vans() {
        let servers = Servers::start(van, 2, &config(16, GIB), &handles());
        let spec = TableSpec::new(1, "sums", ValueType::I64, 3);
        let keys: Vec<u64> = (0..50).map(|i| i * (u64::MAX / 49)).collect();
        std::thread::scope(|scope| {
            for n in 1..=2i64 {
                let (servers, spec, keys) = (&servers, &spec, &keys);
                scope.spawn(move || {
                    let mut worker = servers.worker();
                    let table = worker.admin().create_table(spec).unwrap();
                    for round in 0..400 {
                        worker.push(table, keys, &[n * round; 150]).unwrap();
                    }
                    let last = worker.push(table, keys, &[0i64; 150]).unwrap();
                    worker.wait(last).unwrap();
                });
            }
        });
        let mut worker = servers.worker();
        let table = worker.admin().create_table(&spec).unwrap();
        let pulled = worker.pull(table, &keys).unwrap();
        assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [3 * 399 * 400 / 2; 150]);
    }
}

#[test]
fn compact_coding_changes_nothing_but_the_bytes() {
    let servers = Servers::start(vans()[0], 2, &config(16, GIB), &handles());
    let mut worker = servers.worker();
    let spec =
        TableSpec::new(1, "weights", ValueType::F32, 4).keys(KeyRange::new(0, 100_000).unwrap());
    let table = worker.admin().create_table(&spec).unwrap();
    worker.filters(table).compact().unwrap();
    let keys: Vec<u64> = (0..50_000).map(|i| i * 2).collect();
    for round in 0..3 {
        let values: Vec<f32> = (0..200_000).map(|i| (i % 7) as f32).collect();
        let before = worker.info().counters().bytes_sent;
        let pulled = worker.push_pull(table, &keys, &values).unwrap();
        let answer = worker.wait(pulled).unwrap();
        let right = |(value, pushed): (&f32, &f32)| *value == pushed * (round + 1) as f32;
        assert!(answer.values::<f32>().iter().zip(&values).all(right));
        let sent = worker.info().counters().bytes_sent - before;
        assert!(sent < 600_000, "{sent} bytes for 1,200,000");
    }
}
