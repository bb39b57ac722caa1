//! SparseSSP: workers announce the keys that they will touch.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::{Handles, Worker};
use caravan_van::sim::{Faults, Network, for_each_seed};

use super::{Histories, SERVERS, counters, key, run};
use crate::support::simulated::{Draws, connect, start};

/// The keys that a worker reads and writes in an iteration.
fn plan(seed: u64, rank: u64, clock: u64) -> Vec<u64> {
    let mut draws = Draws((seed << 16 | rank << 8 | clock).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut keys: Vec<u64> = (0..4).map(|_| draws.below(60) * (u64::MAX / 60)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Workers announce what they will touch, and see of every key what others wrote to it more than
/// the staleness ago.
pub(crate) fn announces(seed: u64, staleness: u64, speculation: u64) -> Histories {
    let workers = 2 + seed % 4;
    let iterations = 10;
    run(seed, workers, move |network, worker, rank, draws| {
        let model = Model::SparseSsp { staleness, speculation };
        let table = worker.admin().create_table(&counters(1, model, workers)).unwrap();
        worker.clocks(table).join().unwrap();
        let keys_of = |clock| if clock > iterations { vec![] } else { plan(seed, rank, clock) };
        let mut pulled = VecDeque::new();
        for clock in 1..=1 + speculation {
            let ahead = clock - 1;
            pulled.push_back(worker.clocks(table).pull_ahead(ahead, &keys_of(clock)).unwrap());
        }
        for clock in 1..=iterations {
            let keys = keys_of(clock);
            let seen = worker.wait(pulled.pop_front().unwrap()).unwrap();
            for (key, count) in keys.iter().zip(seen.values::<i64>()) {
                let before = |of| if of == rank { clock } else { clock.saturating_sub(staleness) };
                let wrote = |of: &u64, clock| plan(seed, *of, clock).contains(key);
                let least =
                    (0..workers).map(|of| (1..before(of)).filter(|c| wrote(&of, *c)).count());
                let least = least.sum::<usize>() as i64;
                assert!(*count >= least, "seed {seed}: worker {rank}, {clock}: {count} < {least}");
            }
            network.sleep(Duration::from_micros(draws.below(400)));
            if draws.below(3) == 0 {
                worker.push(table, &keys, &vec![1i64; keys.len()]).unwrap();
                worker.clocks(table).advance().unwrap();
            } else {
                worker.clocks(table).push_last(&keys, &vec![1i64; keys.len()]).unwrap();
            }
            let next = keys_of(clock + 1 + speculation);
            pulled.push_back(worker.clocks(table).pull_ahead(speculation, &next).unwrap());
        }
        let left = worker.clocks(table).leave().unwrap();
        worker.wait(left).unwrap();
    })
}

#[test]
fn sparse_ssp_sees_all_older_writes_of_its_keys() {
    for_each_seed(60, |seed| drop(announces(seed, seed / 3 % 3, seed / 9 % 4)));
}

/// Beside a worker that stands still in its first iteration, another gets as far as the speculation
/// allows if they share no key, and as far as the staleness if they do.
#[test]
fn speculation_lets_a_worker_pass_one_that_shares_no_key() {
    for shares in [false, true] {
        let network = Network::new(1, Faults::none());
        let (addresses, stop) = start(&network, 1, &Handles::default(), |server| server);
        let (staleness, speculation) = (1, 3);
        let nodes: Vec<_> = (0..2u64)
            .map(|rank| {
                let addresses = addresses.clone();
                network.spawn(&format!("worker {rank}"), move |network| {
                    let mut worker = connect(network, 100 + rank as u32, &addresses);
                    let model = Model::SparseSsp { staleness, speculation };
                    let table = worker.admin().create_table(&counters(1, model, 2)).unwrap();
                    worker.clocks(table).join().unwrap();
                    let keys = [if shares { 5 } else { rank }];
                    let mut pulled = VecDeque::new();
                    for ahead in 0..=speculation {
                        pulled.push_back(worker.clocks(table).pull_ahead(ahead, &keys).unwrap());
                    }
                    let mut at_20_ms = 0;
                    let soon = network.now() + Duration::from_millis(20);
                    for clock in 1..=12 {
                        worker.wait(pulled.pop_front().unwrap()).unwrap();
                        if network.now() < soon {
                            at_20_ms = clock;
                        }
                        if (rank, clock) == (1, 2) {
                            network.sleep(Duration::from_millis(40));
                        }
                        worker.clocks(table).push_last(&keys, &[1i64]).unwrap();
                        pulled.push_back(
                            worker.clocks(table).pull_ahead(speculation, &keys).unwrap(),
                        );
                    }
                    let left = worker.clocks(table).leave().unwrap();
                    worker.wait(left).unwrap();
                    // The other one stands in iteration 2.
                    let most = 2 + staleness + if shares { 0 } else { speculation };
                    assert!(rank == 1 || at_20_ms == most, "{shares}: {at_20_ms}, not {most}");
                })
            })
            .collect();
        for node in nodes {
            node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        stop.store(true, Ordering::Relaxed);
    }
}

/// Once it has said what it will touch, a worker that has not ended any iteration holds up nobody
/// who touches other keys.
#[test]
fn disclosed_announcements_count_at_once() {
    for discloses in [false, true] {
        let network = Network::new(1, Faults::none());
        let (addresses, stop) = start(&network, SERVERS, &Handles::default(), |server| server);
        let nodes: Vec<_> = (0..2u64)
            .map(|rank| {
                let addresses = addresses.clone();
                network.spawn(&format!("worker {rank}"), move |network| {
                    let mut worker = connect(network, 100 + rank as u32, &addresses);
                    let model = Model::SparseSsp { staleness: 0, speculation: 2 };
                    let table = worker.admin().create_table(&counters(1, model, 2)).unwrap();
                    worker.clocks(table).join().unwrap();
                    let pull = |worker: &mut Worker, ahead| {
                        worker.clocks(table).pull_ahead(ahead, &[key(rank)]).unwrap()
                    };
                    let mut pulled: VecDeque<_> =
                        (0..=2).map(|ahead| pull(&mut worker, ahead)).collect();
                    if discloses {
                        let told = worker.clocks(table).disclose().unwrap();
                        worker.wait(told).unwrap();
                    }
                    let began = network.now();
                    network.sleep(Duration::from_millis(rank * 20));
                    for clock in 1..=3 {
                        worker.wait(pulled.pop_front().unwrap()).unwrap();
                        let waited = network.now() > began + Duration::from_millis(10);
                        let has_to = clock > 1 && !discloses;
                        assert!(rank == 1 || waited == has_to, "{discloses}, {clock}");
                        worker.clocks(table).push_last(&[key(rank)], &[1i64]).unwrap();
                        pulled.push_back(pull(&mut worker, 2));
                    }
                    let left = worker.clocks(table).leave().unwrap();
                    worker.wait(left).unwrap();
                })
            })
            .collect();
        for node in nodes {
            node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        stop.store(true, Ordering::Relaxed);
    }
}
