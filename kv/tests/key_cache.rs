//! Goal: keys that are named instead of sent change only the bytes: for any faults, however little
//! the servers remember, and whichever node dies.
//! Method: the real worker and server code on the simulated van, with random lists that recur,
//! servers that forget, and requests of all kinds in flight, compared with plain maps and counters
//! of the savings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::simulated::{self, Draws, connect, weather};
use caravan_kv::{Error, Handles, ServerAddress, Table, TableSpec, Timestamp, ValueType, Worker};
use caravan_van::Buffer;
use caravan_van::sim::{Faults, Network, for_each_seed};

/// Servers that remember `bytes` bytes of lists each.
fn start(network: &Network, count: usize, bytes: usize) -> (Vec<ServerAddress>, Arc<AtomicBool>) {
    simulated::start(network, count, &Handles::default(), move |server| {
        server.remember_bytes(bytes)
    })
}

fn sums() -> TableSpec {
    TableSpec::new(1, "sums", ValueType::I64, 3)
}

fn lists() -> TableSpec {
    TableSpec::new(2, "lists", ValueType::I64, 0).handle("assign")
}

/// Lists of keys that only `node` writes, with some keys in several of them; short ones are never
/// named.
fn keys_of(node: u64, draws: &mut Draws) -> Vec<Vec<u64>> {
    let list = |draws: &mut Draws, count: u64| {
        let mut keys: Vec<u64> =
            (0..count).map(|_| (draws.below(600) * 8 + node) * (u64::MAX / 4808)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    [5, 40, 60, 100, 300, 500].map(|count| list(draws, count)).into()
}

/// One worker's requests, all checked. Returns the numbers of messages that were named and asked
/// for.
fn run_worker(worker: &mut Worker, node: u64, draws: &mut Draws) -> (u64, u64) {
    let sums: Table = worker.admin().create_table(&sums()).unwrap();
    let lists = worker.admin().create_table(&lists()).unwrap();
    worker.filters(sums).cache_keys().unwrap();
    worker.filters(lists).cache_keys().unwrap();
    let (mut numbers, mut varying) = (BTreeMap::new(), BTreeMap::new());
    let all = keys_of(node, draws);
    let mut waiting: Vec<(Timestamp, Option<Vec<i64>>)> = Vec::new();
    for _ in 0..60 {
        let keys = &all[draws.below(all.len() as u64) as usize];
        let expect = |numbers: &BTreeMap<u64, [i64; 3]>| -> Vec<i64> {
            keys.iter().flat_map(|key| *numbers.get(key).unwrap_or(&[0; 3])).collect()
        };
        let request = match draws.below(5) {
            op @ (0 | 1) => {
                let values: Vec<i64> =
                    keys.iter().flat_map(|_| [draws.below(9) as i64; 3]).collect();
                for (key, pushed) in keys.iter().zip(values.as_chunks::<3>().0) {
                    let stored: &mut [i64; 3] = numbers.entry(*key).or_default();
                    (0..3).for_each(|at| stored[at] += pushed[at]);
                }
                if op == 0 {
                    (worker.push(sums, keys, &values).unwrap(), None)
                } else {
                    let into = Buffer::adopt(vec![0i64; values.len()]);
                    let shared = Buffer::adopt(values).share();
                    let timestamp = worker.push_pull_shared(sums, keys, &shared, into).unwrap();
                    (timestamp, Some(expect(&numbers)))
                }
            }
            2 => (worker.pull(sums, keys).unwrap(), Some(expect(&numbers))),
            3 => {
                let lengths: Vec<u32> = keys.iter().map(|_| draws.below(4) as u32).collect();
                let total = lengths.iter().map(|&n| n as usize).sum();
                let values: Vec<i64> = (0..total).map(|_| draws.below(1000) as i64).collect();
                let mut rest = &values[..];
                for (key, &length) in keys.iter().zip(&lengths) {
                    let (mine, others) = rest.split_at(length as usize);
                    varying.insert(*key, mine.to_vec());
                    rest = others;
                }
                (worker.push_varying(lists, keys, &lengths, &values).unwrap(), None)
            }
            _ => {
                let of = |key| varying.get(key).cloned().unwrap_or_default();
                let expected = keys.iter().flat_map(of).collect();
                (worker.pull(lists, keys).unwrap(), Some(expected))
            }
        };
        waiting.push(request);
        while waiting.len() > draws.below(12) as usize {
            let (timestamp, expected) = waiting.remove(draws.below(waiting.len() as u64) as usize);
            let answer = worker.wait(timestamp).unwrap();
            if let Some(expected) = expected {
                assert_eq!(answer.values::<i64>(), expected);
            }
        }
    }
    for (timestamp, expected) in waiting {
        let answer = worker.wait(timestamp).unwrap();
        assert!(expected.is_none_or(|expected| answer.values::<i64>() == expected));
    }
    let counters =
        [worker.info().key_cache(sums).unwrap(), worker.info().key_cache(lists).unwrap()];
    (
        counters.iter().map(|counters| counters.messages_named).sum(),
        counters.iter().map(|counters| counters.messages_asked).sum(),
    )
}

#[test]
fn named_keys_change_nothing_however_little_servers_remember() {
    for_each_seed(90, |seed| {
        let network = Network::new(seed, weather(seed));
        let mut draws = Draws(seed);
        let (servers, workers) = (1 + draws.below(3) as usize, 1 + draws.below(3));
        // None, two or three lists, all.
        let bytes = [0, 4 << 10, 1 << 20][draws.below(3) as usize];
        let (addresses, stop) = start(&network, servers, bytes);
        let nodes: Vec<_> = (0..workers)
            .map(|node| {
                let addresses = addresses.clone();
                network.spawn(&format!("worker {node}"), move |network| {
                    let mut worker = connect(network, 100 + node as u32, &addresses);
                    let (named, asked) =
                        run_worker(&mut worker, node, &mut Draws(seed << 8 | node));
                    assert!(named > 0);
                    match bytes {
                        0 => assert_eq!(asked, named, "whatever is named must be asked for"),
                        4096 => assert!(asked <= named),
                        _ => assert_eq!(asked, 0),
                    }
                })
            })
            .collect();
        for node in nodes {
            node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Pushes that overwrite: a request whose keys were asked for must not be applied after later
/// pushes.
#[test]
fn requests_stay_in_order_while_keys_are_asked_for() {
    for_each_seed(30, |seed| {
        let network = Network::new(seed, weather(seed));
        let (addresses, stop) = start(&network, 2, 1 << 10);
        let node = network.spawn("worker", move |network| {
            let mut worker = connect(network, 100, &addresses);
            let spec = TableSpec::new(1, "last", ValueType::I64, 1).handle("assign");
            let table = worker.admin().create_table(&spec).unwrap();
            worker.filters(table).cache_keys().unwrap();
            let step = u64::MAX / 120;
            let all: Vec<Vec<u64>> =
                [1, 2, 3].map(|every| (0..120).step_by(every).map(|at| at * step).collect()).into();
            let mut draws = Draws(seed);
            let mut last = vec![0; 120];
            for number in 1..100 {
                let every = draws.below(3) as usize;
                let keys = &all[every];
                worker.push(table, keys, &vec![number; keys.len()]).unwrap();
                last.iter_mut().step_by(every + 1).for_each(|last| *last = number);
                if draws.below(8) == 0 {
                    let pulled = worker.pull(table, &all[0]).unwrap();
                    assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), last);
                }
            }
            assert!(worker.info().key_cache(table).unwrap().messages_asked > 0);
        });
        node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// A server dies at a random moment, possibly while it waits for keys: every request ends.
#[test]
fn a_crash_ends_requests_that_named_their_keys() {
    for_each_seed(45, |seed| {
        let network = Network::new(seed, weather(seed));
        let (addresses, stop) = start(&network, 2, [0, 1 << 20][seed as usize % 2]);
        let node = network.spawn("worker", move |network| {
            let mut worker = connect(network, 100, &addresses);
            let table = worker.admin().create_table(&sums()).unwrap();
            worker.filters(table).cache_keys().unwrap();
            let mut draws = Draws(seed);
            let crash_at = network.now() + Duration::from_micros(draws.below(3000));
            let killer = network.spawn("killer", move |network| {
                network.sleep(crash_at.saturating_sub(network.now()));
                network.crash("server 1");
            });
            let keys: Vec<u64> = (0..200).map(|at| at * (u64::MAX / 200)).collect();
            let (mut done, mut lost) = (0, 0);
            for _ in 0..60 {
                let made: Vec<_> = (0..3)
                    .filter_map(|_| worker.push_pull(table, &keys, &[1i64; 600]).ok())
                    .collect();
                for timestamp in made {
                    match worker.wait(timestamp) {
                        Ok(answer) => {
                            done += 1;
                            assert!(answer.values::<i64>().iter().all(|sum| *sum == done));
                        }
                        Err(Error::ServerLost { server, .. }) => {
                            assert_eq!(server, "server 1");
                            lost += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            killer.join().unwrap();
            assert_eq!(done + lost, 180, "every request has an outcome");
            // The other server continues, and has what was acknowledged.
            let pulled = worker.pull(table, &keys[..80]).unwrap();
            let answer = worker.wait(pulled).unwrap();
            let sums = answer.values::<i64>();
            assert!(sums.iter().all(|sum| *sum == sums[0]) && (done..=180).contains(&sums[0]));
        });
        node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_is_saved_is_counted_and_shows_in_the_bytes() {
    let network = Network::new(1, Faults::none());
    let (addresses, stop) = start(&network, 1, 1 << 20);
    let node = network.spawn("worker", move |network| {
        let keys: Vec<u64> = (0..1000).map(|at| at * 3).collect();
        let values = [1i64; 3000];
        let mut sent = [0; 2];
        for cached in [false, true] {
            let mut worker = connect(network, 100 + u32::from(cached), &addresses);
            let table = worker.admin().create_table(&sums()).unwrap();
            if cached {
                worker.filters(table).cache_keys().unwrap();
            }
            let before = worker.info().counters().bytes_sent;
            for _ in 0..11 {
                let pushed = worker.push(table, &keys, &values).unwrap();
                worker.wait(pushed).unwrap();
            }
            sent[usize::from(cached)] = worker.info().counters().bytes_sent - before;
            let counters = worker.info().key_cache(table).unwrap();
            let saved = if cached { 10 * 999 * 8 } else { 0 };
            assert_eq!(counters.bytes_saved, saved);
            assert_eq!(counters.messages_named, if cached { 10 } else { 0 });
        }
        // The first message carries the signature beside the keys.
        assert_eq!(sent[0] - sent[1], 10 * 999 * 8 - 8);
    });
    node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    stop.store(true, Ordering::Relaxed);
}

/// A short list takes the path of a table without key caching, and its bytes still count for every
/// stage.
#[test]
fn a_list_too_short_to_be_named_counts_as_it_is() {
    let network = Network::new(1, Faults::none());
    let (addresses, stop) = start(&network, 1, 1 << 20);
    let node = network.spawn("worker", move |network| {
        let mut worker = connect(network, 100, &addresses);
        let table = worker.admin().create_table(&sums()).unwrap();
        worker.filters(table).cache_keys().unwrap();
        for _ in 0..2 {
            let pushed = worker.push(table, &[1, 5], &[7i64; 6]).unwrap();
            worker.wait(pushed).unwrap();
        }
        let pulled = worker.pull(table, &[1, 5]).unwrap();
        assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [14; 6]);
        assert_eq!(worker.info().key_cache(table).unwrap().messages_named, 0);
        for flow in worker.info().traffic(table).unwrap().sent {
            let bytes = 2 * (2 * 8 + 6 * 8) + 2 * 8;
            assert_eq!((flow.bytes_in, flow.bytes_out), (bytes, bytes));
        }
    });
    node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    stop.store(true, Ordering::Relaxed);
}
