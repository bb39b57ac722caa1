//! Goal: the command number of a push or a pull reaches the handle of its table, whatever way the
//! request takes.
//! Method: a rule that multiplies what is pushed by the command. Requests alone, in rows that share
//! frames, in parts, filtered and as runs go over every van; on a simulated network they are sent
//! back from a shard that moves, forwarded, replicated, and sent again after a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Servers, config, simulated, vans};
use caravan_kv::server::{Origin, Rule};
use caravan_kv::{Handles, Placement, Runs, Table, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use caravan_van::sim::{Faults, Network, for_each_seed};

const GIB: usize = 1 << 30;

/// `stored += pushed * command`.
struct Times;

impl Rule<i64> for Times {
    type Hidden = i64;

    fn apply(&mut self, origin: Origin, _: u64, stored: &mut [i64], _: &mut [i64], pushed: &[i64]) {
        let command = i64::from(origin.command);
        stored.iter_mut().zip(pushed).for_each(|(stored, pushed)| *stored += pushed * command);
    }
}

fn times() -> Handles {
    Handles::default().with_rule("times", |_| Times)
}

fn spec(id: u32) -> TableSpec {
    TableSpec::new(id, "times", ValueType::I64, 1)
        .handle("times")
        .keys(KeyRange::new(0, 900).unwrap())
}

fn pull(worker: &mut Worker, table: Table, keys: &[u64]) -> Vec<i64> {
    let pulled = worker.pull(table, keys).unwrap();
    worker.wait(pulled).unwrap().values::<i64>().to_vec()
}

#[test]
fn commands_reach_the_handle_on_every_van() {
    for van in vans() {
        let servers = Servers::start(van, 3, &config(64, GIB), &times());
        let mut worker = servers.worker();
        let filtered = spec(2).filters("zero,key-cache,snappy".parse().unwrap());
        for spec in [spec(1), filtered] {
            let table = worker.admin().create_table(&spec).unwrap();
            let commands = [1, 1, -3, i32::MAX, i32::MIN, 0, 7, 7, 7];
            let mut made = Vec::new();
            for command in commands {
                worker.set_command(command);
                made.push(worker.push(table, &[5], &[2_i64]).unwrap());
            }
            made.into_iter().for_each(|pushed| drop(worker.wait(pushed).unwrap()));
            let sum = commands.iter().map(|command| 2 * i64::from(*command)).sum::<i64>();
            assert_eq!(pull(&mut worker, table, &[5]), [sum], "{van:?}");
            let keys: Vec<u64> = (100..800).collect();
            for command in [-1, 4] {
                worker.set_command(command);
                let values = vec![10_i64; keys.len()];
                let pushed = worker.push(table, &keys, &values).unwrap();
                worker.wait(pushed).unwrap();
                let pushed = worker.push_pull(table, &keys, &values).unwrap();
                worker.wait(pushed).unwrap();
            }
            let runs = Runs::range(100..800);
            let pushed = worker.push(table, &runs, &vec![100_i64; keys.len()]).unwrap();
            worker.wait(pushed).unwrap();
            assert_eq!(pull(&mut worker, table, &keys), vec![460; keys.len()], "{van:?}");
            worker.set_command(0);
        }
    }
}

#[test]
fn commands_follow_a_shard_that_moves() {
    for_each_seed(20, |seed| {
        let network = Network::new(seed, simulated::weather(seed));
        let small = |server: caravan_kv::ServerThread| server.move_by(64);
        let (addresses, stop) = simulated::start(&network, 2, &times(), small);
        let driver = network.spawn("driver", move |network| {
            let mut one = simulated::connect(network, 100, &addresses);
            let mut other = simulated::connect(network, 101, &addresses);
            let spec = spec(1).placement(Placement::Cut(vec![(0, 0)]));
            let table = one.admin().create_table(&spec).unwrap();
            other.admin().create_table(&spec).unwrap();
            let keys: Vec<u64> = (0..300).collect();
            for worker in [&mut one, &mut other] {
                worker.set_command(-2);
            }
            let pushed = one.push(table, &keys, &[1_i64; 300]).unwrap();
            one.wait(pushed).unwrap();
            let moved = one.admin().move_shard(table, 0, 1).unwrap();
            let mut count = 1;
            while !one.is_done(moved).unwrap() {
                let pushed = other.push(table, &keys, &[1_i64; 300]).unwrap();
                other.wait(pushed).unwrap();
                count += 1;
                one.poll().unwrap();
            }
            one.wait(moved).unwrap();
            let pushed = other.push(table, &keys, &[1_i64; 300]).unwrap();
            other.wait(pushed).unwrap();
            assert_eq!(pull(&mut one, table, &keys), [-2 * (count + 1); 300], "seed {seed}");
        });
        driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// Copies apply what their primary applied, and what a crash left unanswered goes again.
#[test]
fn commands_outlive_a_primary() {
    for_each_seed(20, |seed| {
        let network = Network::new(seed, Faults::jittery());
        let (addresses, stop) = simulated::start(&network, 2, &times(), |server| server);
        let driver = network.spawn("driver", move |network| {
            let mut worker = simulated::connect(network, 100, &addresses);
            let is_lost = Arc::new(AtomicBool::new(false));
            let watched = is_lost.clone();
            let watch = move || Ok(Vec::from_iter(watched.load(Ordering::Relaxed).then_some(0)));
            worker.admin().watch_servers(watch, Duration::from_micros(300));
            let spec = spec(1).placement(Placement::Cut(vec![(0, 0)])).replicas(1);
            let table = worker.admin().create_table(&spec).unwrap();
            let push = |worker: &mut Worker, command| {
                worker.set_command(command);
                worker.push(table, &[3, 4], &[1_i64, 10]).unwrap()
            };
            let first = push(&mut worker, 5);
            worker.wait(first).unwrap();
            let others = [-7, 100].map(|command| push(&mut worker, command));
            network.sleep(Duration::from_micros(5 * seed));
            network.crash("server 0");
            is_lost.store(true, Ordering::Relaxed);
            others.into_iter().for_each(|pushed| drop(worker.wait(pushed).unwrap()));
            assert_eq!(pull(&mut worker, table, &[3, 4]), [98, 980], "seed {seed}");
        });
        driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}
