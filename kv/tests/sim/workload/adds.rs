//! Sums, sparse and dense, runs of keys, hidden values and commands. A worker pushes whole numbers
//! to keys of all, and checks at once what only it writes.

use std::collections::{BTreeMap, VecDeque};

use caravan_kv::{Placement, Runs, Table, TableSpec, Timestamp, ValueType};
use caravan_van::KeyRange;
use caravan_van::sim::Node;

use crate::sim::{FIRST_WORKER, Hand, Sim};
use crate::support::ticks::{check_ticks, tick, ticks};

pub(crate) const KEYS: u64 = 120;

/// The keys below this one are each of one worker.
const SHARED: u64 = 10;

/// Ids of the tables of [`tables`].
const SPARSE: u32 = 11;
const DENSE: u32 = 12;

/// A sparse table with lists of keys that servers remember, a dense one with blocks, one whose rows
/// have hidden values, and one whose shards are no rows.
pub(crate) fn tables(replicas: u32) -> [TableSpec; 4] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let sparse = TableSpec::new(SPARSE, "sparse", ValueType::I64, 1);
    let sparse = sparse.filters("key-cache".parse().unwrap());
    let dense = TableSpec::new(DENSE, "dense", ValueType::I64, 3).dense();
    let dense = dense.filters("mask".parse().unwrap());
    let steps = TableSpec::new(13, "steps", ValueType::F64, 2).handle("momentum").dense();
    let all = [sparse, dense, steps, ticks(KEYS)];
    all.map(|spec| spec.keys(keys).placement(Placement::Even(2)).replicas(replicas))
}

/// Adds of a worker.
#[derive(Clone, Copy)]
pub(crate) struct Adds {
    pub(crate) replicas: u32,
    /// Rounds at least, and at most; between them it waits for faults to come.
    pub(crate) rounds: [u64; 2],
    /// The longest time between two rounds, in microseconds.
    pub(crate) pause_us: u64,
}

/// What a worker has added, and what it reads when all have.
pub(crate) struct Added {
    pushed: Vec<i64>,
    commands: Vec<Vec<u64>>,
    read: [Vec<i64>; 2],
    steps: Vec<f64>,
}

/// A request that is not answered: the keys of a push, and what a pull has to find.
struct Sent {
    timestamp: Timestamp,
    table: u32,
    pushed: Vec<u64>,
    expected: Option<i64>,
}

impl Adds {
    pub(crate) fn work(&self, hand: &mut Hand<'_>) -> Added {
        let tables = tables(self.replicas).map(|spec| hand.create(&spec));
        hand.oracle.begin();
        let mut pushed = vec![0; KEYS as usize];
        let mut commands: Vec<Vec<u64>> = Vec::new();
        let mut own = 0;
        let mut waiting = VecDeque::new();
        let mut seen: BTreeMap<u64, i64> = BTreeMap::new();
        for round in 0..self.rounds[1] {
            if round >= self.rounds[0] && hand.oracle.is_calm() {
                break;
            }
            hand.pause(self.pause_us);
            let keys = draw_keys(hand);
            let values: Vec<i64> = keys.iter().map(|_| 1 + hand.draws.below(9) as i64).collect();
            keys.iter().zip(&values).for_each(|(key, value)| pushed[*key as usize] += value);
            own += values[0];
            self.push(hand, &tables, (&keys, &values), own, &mut waiting);
            self.push_run(hand, &tables, &mut pushed, &mut waiting);
            if hand.draws.below(4) == 0 {
                let before = commands.last().map_or(0, |last| last[0]);
                commands.push(tick(&mut hand.worker, tables[3], before));
            }
            if hand.draws.below(4) == 0 {
                self.read_again(hand, tables[0], &mut seen);
            }
            while waiting.len() > hand.draws.below(16) as usize {
                let next = hand.draws.below(waiting.len() as u64) as usize;
                let sent = waiting.remove(next).unwrap();
                self.wait(hand, sent);
            }
        }
        waiting.into_iter().for_each(|sent| self.wait(hand, sent));
        hand.end();
        let read = [0, 1].map(|at| firsts(hand, tables[at], [1, 3][at]));
        Added { pushed, commands, read, steps: hand.pull(tables[2], KEYS) }
    }

    /// Pushes to all tables of rows, and pulls what this worker alone has pushed.
    fn push(
        &self,
        hand: &mut Hand<'_>,
        [sparse, dense, steps, _]: &[Table; 4],
        (keys, values): (&[u64], &[i64]),
        own: i64,
        waiting: &mut VecDeque<Sent>,
    ) {
        let sent = |timestamp, table| Sent { timestamp, table, pushed: vec![], expected: None };
        let push = |timestamp, table, keys: &[u64]| Sent {
            pushed: keys.to_vec(),
            ..sent(timestamp, table)
        };
        let rows: Vec<i64> = values.iter().flat_map(|value| [*value, 0, 0]).collect();
        let worker = &mut hand.worker;
        if hand.draws.below(3) == 0 {
            let timestamp = worker.push_pull(*sparse, keys, values).unwrap();
            waiting.push_back(Sent { expected: Some(own), ..push(timestamp, SPARSE, keys) });
            let timestamp = worker.push_pull(*dense, keys, &rows).unwrap();
            waiting.push_back(push(timestamp, DENSE, keys));
        } else {
            waiting.push_back(push(worker.push(*sparse, keys, values).unwrap(), SPARSE, keys));
            waiting.push_back(push(worker.push(*dense, keys, &rows).unwrap(), DENSE, keys));
            for (table, id) in [(*sparse, SPARSE), (*dense, DENSE)] {
                let timestamp = worker.pull(table, &[hand.rank]).unwrap();
                waiting.push_back(Sent { expected: Some(own), ..sent(timestamp, id) });
            }
        }
        let step = worker.push(*steps, &keys[..1], &[0.5, hand.rank as f64]).unwrap();
        waiting.push_back(sent(step, 0));
    }

    /// Pushes ones to neighbours, which all workers push to.
    fn push_run(
        &self,
        hand: &mut Hand<'_>,
        [sparse, dense, ..]: &[Table; 4],
        pushed: &mut [i64],
        waiting: &mut VecDeque<Sent>,
    ) {
        let first = SHARED + hand.draws.below(KEYS - SHARED);
        let keys: Vec<u64> = (first..KEYS.min(first + 9)).collect();
        keys.iter().for_each(|key| pushed[*key as usize] += 1);
        let run = Runs::range(first..first + keys.len() as u64);
        let ones = vec![1i64; keys.len()];
        let rows: Vec<i64> = ones.iter().flat_map(|_| [1, 0, 0]).collect();
        for (table, id, values) in [(*sparse, SPARSE, ones), (*dense, DENSE, rows)] {
            let timestamp = hand.worker.push(table, &run, &values).unwrap();
            let pushed = keys.clone();
            waiting.push_back(Sent { timestamp, table: id, pushed, expected: None });
        }
    }

    /// What one read has seen, a later one has, too.
    fn read_again(&self, hand: &mut Hand<'_>, table: Table, seen: &mut BTreeMap<u64, i64>) {
        let key = SHARED + hand.draws.below(KEYS - SHARED);
        let pulled = hand.worker.pull(table, &[key]).unwrap();
        let value = hand.worker.wait(pulled).unwrap().values::<i64>()[0];
        let before = seen.insert(key, value).unwrap_or(0);
        assert!(value >= before, "seed {}: key {key} was {before} and is {value}", hand.seed);
    }

    fn wait(&self, hand: &mut Hand<'_>, sent: Sent) {
        let answer = hand.worker.wait(sent.timestamp).unwrap();
        if let Some(expected) = sent.expected {
            let found = answer.values::<i64>()[0];
            // Where there are copies, one that was posted again may see later pushes, too.
            let is_right = if self.replicas > 0 { found >= expected } else { found == expected };
            let (seed, rank) = (hand.seed, hand.rank);
            assert!(is_right, "seed {seed}: worker {rank} wrote {expected}, and reads {found}");
        }
        let at = (sent.table, &sent.pushed[..]);
        hand.oracle.acknowledge(FIRST_WORKER + hand.rank as u32, sent.timestamp, at);
    }
}

/// Random keys; the first one is this worker's alone.
fn draw_keys(hand: &mut Hand<'_>) -> Vec<u64> {
    let most = [1, 4, 50][hand.draws.below(3) as usize];
    let count = hand.draws.below(most);
    let mut keys: Vec<u64> = (0..count).map(|_| SHARED + hand.draws.below(KEYS - SHARED)).collect();
    keys.push(hand.rank);
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The first value of each row.
fn firsts(hand: &mut Hand<'_>, table: Table, width: usize) -> Vec<i64> {
    hand.pull::<i64>(table, KEYS).iter().step_by(width).copied().collect()
}

/// Checks that all workers and one that comes last read all that was added, once, and that commands
/// were counted once.
pub(crate) fn check(sim: &Sim, replicas: u32, nodes: Vec<Node<Added>>) {
    let all = sim.join_all(nodes);
    let mut sums = vec![0; KEYS as usize];
    for added in &all {
        sums.iter_mut().zip(&added.pushed).for_each(|(sum, pushed)| *sum += pushed);
    }
    let what = format!("seed {}", sim.seed);
    check_ticks(all.iter().flat_map(|added| &added.commands), &what);
    let late = sim.spawn("late", 50, move |hand| {
        let [sparse, dense, steps, _] = tables(replicas).map(|spec| hand.create(&spec));
        let read = [firsts(hand, sparse, 1), firsts(hand, dense, 3)];
        (read, hand.pull::<f64>(steps, KEYS))
    });
    let (read, steps) = sim.join(late);
    assert_eq!(read, [sums.clone(), sums], "{what}");
    for added in all {
        assert_eq!(added.read, read, "{what}");
        assert_eq!(added.steps, steps, "{what}: all read the same");
    }
}
