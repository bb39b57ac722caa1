//! Goal: rows that workers keep are never staler than their bounds, lose nothing that was added,
//! and save most of a stream by popularity at an equal objective.
//! Method: real servers; a regression that is planted in a Zipf stream, with rows kept and without,
//! and all bytes counted.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::support::{Servers, any, config};
use caravan_kv::cache::{Bounds, Cache, Eviction};
use caravan_kv::consistency::Model;
use caravan_kv::filter::Draws;
use caravan_kv::{Error, Handles, Table, TableSpec, ValueType, Worker};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn servers(count: usize) -> Servers {
    Servers::start(any(), count, &config(64, 256 * MIB), &Handles::default())
}

fn spec(id: u32, value: ValueType, width: u32) -> TableSpec {
    TableSpec::new(id, "rows", value, width)
}

/// What a table has, by a worker that keeps nothing.
fn pull(worker: &mut Worker, table: Table, keys: &[u64]) -> Vec<i64> {
    let pulled = worker.pull(table, keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

#[derive(Debug, Clone)]
enum Step {
    Read(Vec<u64>),
    Add(Vec<u64>, i64),
    Others(Vec<u64>, i64),
    Advance,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keys =
        || prop::collection::btree_set(0_u64..12, 1..6).prop_map(|keys| keys.into_iter().collect());
    let step = prop_oneof![
        3 => keys().prop_map(Step::Read),
        3 => (keys(), 1_i64..100).prop_map(|(keys, by)| Step::Add(keys, by)),
        2 => (keys(), 1_i64..100).prop_map(|(keys, by)| Step::Others(keys, by)),
        1 => Just(Step::Advance),
    ];
    prop::collection::vec(step, 1..60)
}

fn evictions() -> impl Strategy<Value = Eviction> {
    prop_oneof![
        Just(Eviction::LeastRecent),
        Just(Eviction::LeastFrequent),
        (0_u64..1000).prop_map(Eviction::Random),
    ]
}

/// Others only add, so a row is at least what it was when its pull had to come, with all of the
/// worker's own additions, and at most what it is.
fn follows_its_bounds(worker: &mut Worker, other: &mut Worker, bounds: Bounds, steps: &[Step]) {
    let table = worker.admin().create_table(&spec(1, ValueType::I64, 1)).unwrap();
    let theirs = other.admin().create_table(&spec(1, ValueType::I64, 1)).unwrap();
    let mut cache = Cache::<i64>::new(worker, table, bounds).unwrap();
    let (mut own, mut others): (BTreeMap<u64, i64>, BTreeMap<u64, i64>) = Default::default();
    // What the others had added at the ends of rounds.
    let mut history = vec![others.clone()];
    for step in steps {
        match step {
            Step::Read(keys) => {
                let values = cache.read(worker, keys).unwrap().to_vec();
                assert_eq!(values.len(), keys.len());
                let oldest = (history.len() - 1).saturating_sub(bounds.rounds as usize);
                for (key, value) in keys.iter().zip(values) {
                    let own = own.get(key).copied().unwrap_or(0);
                    let least = history[oldest].get(key).copied().unwrap_or(0);
                    let most = others.get(key).copied().unwrap_or(0);
                    let seen = value - own;
                    assert!((least..=most).contains(&seen), "{key}: {least} {seen} {most}");
                    if bounds.reads == 1 {
                        assert_eq!(seen, most, "{key}");
                    }
                }
            }
            Step::Add(keys, by) => {
                cache.add(worker, keys, &vec![*by; keys.len()]).unwrap();
                keys.iter().for_each(|key| *own.entry(*key).or_default() += by);
            }
            Step::Others(keys, by) => {
                let pushed = other.push(theirs, keys, &vec![*by; keys.len()]).unwrap();
                other.wait(pushed).unwrap();
                keys.iter().for_each(|key| *others.entry(*key).or_default() += by);
            }
            Step::Advance => {
                cache.advance(worker).unwrap();
                history.push(others.clone());
            }
        }
    }
    cache.flush(worker).unwrap();
    let keys: Vec<u64> = (0..12).collect();
    let sum = |key: &u64| own.get(key).unwrap_or(&0) + others.get(key).unwrap_or(&0);
    assert_eq!(pull(other, theirs, &keys), keys.iter().map(sum).collect::<Vec<_>>());
    let counters = cache.counters();
    assert!(counters.pulled <= counters.read && counters.pushed <= counters.added, "{counters:?}");
    worker.admin().drop_table(table).unwrap();
}

#[test]
fn rows_are_as_fresh_as_their_bounds_and_lose_nothing() {
    let servers = servers(2);
    let workers = RefCell::new([servers.worker(), servers.worker()]);
    let bounds = (1_u32..6, 0_u64..4, 1_usize..14, evictions());
    let runner = &mut proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(100));
    let run = runner.run(&(bounds, steps()), |((reads, rounds, rows_max, eviction), steps)| {
        let bounds = Bounds { reads, rounds, rows_max, eviction };
        let [worker, other] = &mut *workers.borrow_mut();
        follows_its_bounds(worker, other, bounds, &steps);
        Ok(())
    });
    run.unwrap();
}

/// Reads row 1 first and most often, then 2 to 4, and 5, for which there is no room; returns which
/// of the four have stayed.
fn stayed(worker: &mut Worker, eviction: Eviction) -> Vec<u64> {
    let table = worker.admin().create_table(&spec(1, ValueType::I64, 1)).unwrap();
    let bounds = Bounds { reads: u32::MAX, rounds: u64::MAX, rows_max: 4, eviction };
    let mut cache = Cache::<i64>::new(worker, table, bounds).unwrap();
    for key in [1, 1, 1, 1, 2, 2, 2, 3, 4, 4, 5] {
        cache.read(worker, &[key]).unwrap();
        cache.add(worker, &[key], &[10]).unwrap();
        cache.advance(worker).unwrap();
        // There is room for four, and reading one of them again takes none.
        assert!(key == 5 || (1..=key).all(|it| cache.keeps(it)));
    }
    let left = (1..=4).filter(|key| cache.keeps(*key)).collect();
    let all: Vec<u64> = (1..=5).collect();
    assert_eq!(cache.read(worker, &all).unwrap(), [40, 30, 10, 20, 10], "nothing is lost");
    worker.admin().drop_table(table).unwrap();
    left
}

#[test]
fn rows_go_by_age_by_use_or_by_chance() {
    let servers = servers(1);
    let worker = &mut servers.worker();
    assert_eq!(stayed(worker, Eviction::LeastRecent), [3, 4]);
    assert_eq!(stayed(worker, Eviction::LeastFrequent), [1, 2]);
    let mut stays = [0; 5];
    for seed in 0..64 {
        let left = stayed(worker, Eviction::Random(seed));
        assert_eq!(left, stayed(worker, Eviction::Random(seed)), "a seed replays");
        assert_eq!(left.len(), 2);
        left.iter().for_each(|key| stays[*key as usize] += 1);
    }
    assert!(stays[1..].iter().all(|count| (16..=48).contains(count)), "half each: {stays:?}");
}

#[test]
fn tables_that_do_not_suit_are_refused_with_the_reason() {
    let servers = servers(1);
    let mut worker = servers.worker();
    let bounds = Bounds { reads: 10, rounds: 10, rows_max: 10, eviction: Eviction::default() };
    let i64s = |id| spec(id, ValueType::I64, 1);
    for (spec, bounds, says) in [
        (i64s(1).handle("assign"), bounds, "the handle add"),
        (spec(2, ValueType::I64, 0), bounds, "rows of one length"),
        (i64s(3).consistency(Model::Asp, 1), bounds, "no consistency model"),
        (i64s(4), Bounds { reads: 0, ..bounds }, "at least 1 read"),
        (i64s(5), Bounds { rows_max: 0, ..bounds }, "1 row"),
        (spec(6, ValueType::F32, 1), bounds, "f32"),
    ] {
        let table = worker.admin().create_table(&spec).unwrap();
        let said = Cache::<i64>::new(&worker, table, bounds).err().unwrap().to_string();
        assert!(said.contains(says), "{said}");
    }
    let table = worker.admin().create_table(&i64s(7)).unwrap();
    let mut cache = Cache::<i64>::new(&worker, table, bounds).unwrap();
    let wrong = cache.add(&mut worker, &[1, 2], &[1]);
    assert!(matches!(wrong, Err(Error::WrongLength { expected: 2, found: 1, .. })), "{wrong:?}");
    assert!(cache.read(&mut worker, &[2, 1]).is_err(), "keys ascend");
}

/// Distinct keys, draws of a round, rounds, and values of a row.
const KEYS: u64 = 2_000;
const DRAWS: usize = 1024;
const ROUNDS: usize = 400;
const WIDTH: usize = 8;

/// Share of the step to the planted values.
const RATE: f32 = 0.02;

/// Least share of the bytes that rows kept save, and most by which the objective may differ.
const SAVED_MIN: f64 = 0.88;
const DIFFERENCE_MAX: f64 = 0.01;

/// Probabilities by Zipf's law with exponent 1.05.
fn popularity() -> Vec<f64> {
    let weights: Vec<f64> = (1..=KEYS).map(|rank| (rank as f64).powf(-1.05)).collect();
    let all: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / all).collect()
}

/// The keys of a round, sorted.
fn draw(popularity: &[f64], draws: &mut Draws) -> Vec<u64> {
    let sums: Vec<f64> = popularity
        .iter()
        .scan(0.0, |sum, share| {
            *sum += share;
            Some(*sum)
        })
        .collect();
    let mut key =
        || sums.partition_point(|sum| *sum <= draws.next_unit()).min(sums.len() - 1) as u64;
    let mut keys: Vec<u64> = (0..DRAWS).map(|_| key()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// What a row is to become.
fn planted(key: u64, column: usize) -> f32 {
    Draws::new(3, key * WIDTH as u64 + column as u64).next_unit() as f32
}

/// The steps of rows towards what they are to become, which is seen with noise.
fn steps_of(rows: &[f32], keys: &[u64], draws: &mut Draws) -> Vec<f32> {
    let step = |(at, value): (usize, &f32)| {
        let noise = draws.next_unit() as f32 - 0.5;
        -RATE * (value - planted(keys[at / WIDTH], at % WIDTH) - noise)
    };
    rows.iter().enumerate().map(step).collect()
}

/// Trains two workers in turn; returns all bytes, and the expected loss of the table at the end.
fn train(bounds: Option<Bounds>) -> (u64, f64) {
    let servers = servers(1);
    let mut workers = [servers.worker(), servers.worker()];
    let popularity = popularity();
    let mut draws = Draws::new(9, 0);
    let spec = spec(1, ValueType::F32, WIDTH as u32);
    let tables = workers.each_mut().map(|worker| worker.admin().create_table(&spec).unwrap());
    let bytes = |workers: &[Worker; 2]| {
        let of = |worker: &Worker| {
            worker.info().counters().bytes_sent + worker.info().counters().bytes_received
        };
        workers.iter().map(of).sum::<u64>()
    };
    let before = bytes(&workers);
    let mut caches = [0, 1].map(|at| {
        bounds.map(|bounds| Cache::<f32>::new(&workers[at], tables[at], bounds).unwrap())
    });
    for at in (0..2 * ROUNDS).map(|turn| turn % 2) {
        let worker = &mut workers[at];
        let keys = draw(&popularity, &mut draws);
        match &mut caches[at] {
            Some(cache) => {
                let steps = steps_of(cache.read(worker, &keys).unwrap(), &keys, &mut draws);
                cache.add(worker, &keys, &steps).unwrap();
                cache.advance(worker).unwrap();
            }
            None => {
                let pulled = worker.pull(tables[at], &keys).unwrap();
                let answer = worker.wait(pulled).unwrap();
                let steps = steps_of(answer.values(), &keys, &mut draws);
                let pushed = worker.push(tables[at], &keys, &steps).unwrap();
                worker.wait(pushed).unwrap();
            }
        }
    }
    for at in 0..2 {
        caches[at].iter_mut().for_each(|cache| cache.flush(&mut workers[at]).unwrap());
    }
    let bytes = bytes(&workers) - before;
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = workers[0].pull(tables[0], &keys).unwrap();
    let answer = workers[0].wait(pulled).unwrap();
    let of = |(at, value): (usize, &f32)| {
        let error = f64::from(value - planted(keys[at / WIDTH], at % WIDTH));
        popularity[at / WIDTH] * error * error / WIDTH as f64
    };
    let noise = 1.0 / 12.0;
    (bytes, noise + answer.values::<f32>().iter().enumerate().map(of).sum::<f64>())
}

/// HET's figure: 88 % of the traffic, at an equal objective.
#[test]
fn rows_kept_save_most_of_a_stream_by_popularity() {
    let (bytes, loss) = train(None);
    let eviction = Eviction::default();
    let bounds = Bounds { reads: 16, rounds: u64::MAX, rows_max: KEYS as usize, eviction };
    let (kept_bytes, kept_loss) = train(Some(bounds));
    let saved = 1.0 - kept_bytes as f64 / bytes as f64;
    println!("{bytes} bytes, with rows kept {kept_bytes}: {saved:.4}; loss {loss}, {kept_loss}");
    assert!(saved >= SAVED_MIN, "{saved}");
    assert!(kept_loss / loss - 1.0 <= DIFFERENCE_MAX, "{kept_loss} and {loss}");
}
