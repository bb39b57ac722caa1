//! Tables whose rows come and go. A shard of one thread without a network gets the same pushes.

use std::collections::BTreeMap;

use caravan_kv::eviction::EvictionRule;
use caravan_kv::server::{Extract, Request};
use caravan_kv::{Handles, Placement, Shard, Table, TableSpec, ValueType, Worker};
use caravan_van::{KeyRange, Pool, Value};

use crate::sim::Hand;
use crate::support::simulated::Draws;

const KEYS: u64 = 1000;

/// Values of a row.
const WIDTH: u32 = 32;

/// Rounds of a worker, at least and at most; between them it waits for faults to come.
const ROUNDS: [u64; 2] = [25, 1000];

/// Tables of all kinds; the last one has rows of their own lengths. Those of the first worker alone
/// come first, then one that all share.
pub(crate) fn tables(replicas: u32) -> Vec<TableSpec> {
    let none = EvictionRule::default();
    let capped = EvictionRule { bytes_max: Some(600_000), ..none };
    let evictions = [
        (
            WIDTH,
            EvictionRule { pushes_min: Some(2), cells: Some(500), probability: Some(0.8), ..none },
        ),
        (WIDTH, EvictionRule { idle_max: Some(3), ..capped }),
        (0, EvictionRule { score_min: Some(0.5), decay: Some(0.7), ..capped }),
        (WIDTH, EvictionRule { pushes_min: Some(2), cells: Some(500), ..capped }),
    ];
    let spec = |(id, (width, eviction))| {
        let spec = TableSpec::new(id, "t", ValueType::I64, width).eviction(eviction);
        spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Even(1)).replicas(replicas)
    };
    (1..).zip(evictions).map(spec).collect()
}

/// Shards of one table without copies, in this thread.
struct Reference {
    shards: Vec<(KeyRange, Box<dyn Shard>)>,
    memory: Pool,
}

impl Reference {
    fn new(worker: &Worker, table: Table, spec: &TableSpec) -> Reference {
        let memory = Pool::new(64 << 20);
        let handles = Handles::default();
        let build = |range| (range, handles.build(spec, range, &memory).unwrap());
        let shards =
            worker.info().shards(table).unwrap().iter().map(|it| build(it.range)).collect();
        Reference { shards, memory }
    }

    /// Pushes to the shards of these keys; returns whether all take it.
    fn push(&mut self, push: &Push) -> bool {
        let mut is_taken = true;
        for (range, shard) in &mut self.shards {
            let part = push.within(*range);
            let (keys, lengths) = (&part.keys, &part.lengths);
            let (sender, command, clock) = (100, 0, part.clock);
            let (pushes, pulls, rows, values) = (true, false, None, i64::bytes(&part.values));
            let range = *range;
            let request = Request {
                sender,
                command,
                clock,
                range,
                keys,
                lengths,
                values,
                pushes,
                pulls,
                rows,
            };
            is_taken &= keys.is_empty() || shard.push(&request, &self.memory).is_ok();
        }
        is_taken
    }

    /// The first value of each row.
    fn rows(&self) -> BTreeMap<u64, i64> {
        let mut all = BTreeMap::new();
        for (range, shard) in &self.shards {
            let mut rows = Extract::default();
            assert_eq!(shard.give(range.begin(), usize::MAX, &mut rows), Ok(None));
            let values: Vec<i64> =
                rows.values.as_chunks().0.iter().map(|it| i64::from_le_bytes(*it)).collect();
            let mut at = 0;
            for (place, key) in rows.keys.iter().enumerate() {
                all.insert(*key, values[at]);
                at += rows.lengths.get(place).map_or(WIDTH as usize, |it| *it as usize);
            }
        }
        all
    }
}

/// A push to one table.
struct Push {
    clock: u64,
    keys: Vec<u64>,
    lengths: Vec<u32>,
    values: Vec<i64>,
}

impl Push {
    /// Ones to random keys, of which those are left out that are not `of`; to keys of a short range
    /// more often. Some rows have a length that others have not.
    fn draw(draws: &mut Draws, clock: u64, width: u32, of: impl Fn(u64) -> bool) -> Push {
        let many = if draws.below(3) == 0 { 120 } else { 8 };
        let range = [KEYS, KEYS, 30][draws.below(3) as usize];
        let begin = draws.below(KEYS - range + 1);
        let mut keys: Vec<u64> = (0..many).map(|_| begin + draws.below(range)).collect();
        keys.retain(|key| of(*key));
        keys.sort_unstable();
        keys.dedup();
        let is_wrong = width == 0 && draws.below(8) == 0;
        let row = WIDTH as usize - usize::from(is_wrong);
        let lengths = if width == 0 { vec![row as u32; keys.len()] } else { Vec::new() };
        let values = vec![1; keys.len() * row];
        Push { clock, keys, lengths, values }
    }

    fn within(&self, range: KeyRange) -> Push {
        let at = |key: &u64| range.contains(*key);
        let begin = self.keys.iter().take_while(|key| !at(key)).count();
        let count = self.keys[begin..].iter().take_while(|key| at(key)).count();
        let row = self.values.len().checked_div(self.keys.len()).unwrap_or(0);
        let lengths = self.lengths.iter().skip(begin).take(count).copied().collect();
        Push {
            clock: self.clock,
            keys: self.keys[begin..begin + count].to_vec(),
            lengths,
            values: self.values[begin * row..(begin + count) * row].to_vec(),
        }
    }
}

/// The first value of each row that is not 0, by key.
fn pull(worker: &mut Worker, table: Table) -> BTreeMap<u64, i64> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    let answer = worker.wait(pulled).unwrap();
    let (lengths, values) = (answer.lengths.clone(), answer.values::<i64>().to_vec());
    let length = |key: usize| lengths.get(key).map_or(WIDTH as usize, |it| *it as usize);
    let mut at = 0;
    let mut firsts = BTreeMap::new();
    for key in keys {
        let row = &values[at..at + length(key as usize)];
        at += row.len();
        firsts.extend(row.first().filter(|first| **first != 0).map(|first| (key, *first)));
    }
    firsts
}

/// Does what a worker does, and returns what it has seen, and all rows of the shared table at last.
pub(crate) fn work(hand: &mut Hand<'_>, replicas: u32) -> ([usize; 2], BTreeMap<u64, i64>) {
    let specs = tables(replicas);
    let (shared, own) = specs.split_last().unwrap();
    let mut seen = [0; 2];
    match hand.rank {
        0 => seen = work_alone(hand, own),
        _ => work_among_others(hand, shared),
    }
    hand.end();
    let shared = hand.create(shared);
    (seen, pull(&mut hand.worker, shared))
}

/// Pushes to tables of its own, which have to have the rows of a shard without a network. Returns
/// how many pushes were refused, and how many rows went.
fn work_alone(hand: &mut Hand<'_>, specs: &[TableSpec]) -> [usize; 2] {
    let Hand { network, worker, oracle, draws, seed, .. } = hand;
    let tables: Vec<Table> =
        specs.iter().map(|it| worker.admin().create_table(it).unwrap()).collect();
    let pairs = tables.iter().zip(specs);
    let mut references: Vec<_> =
        pairs.map(|(table, spec)| Reference::new(worker, *table, spec)).collect();
    oracle.begin();
    let mut before = vec![BTreeMap::new(); specs.len()];
    let (mut refused, mut gone) = (0, 0);
    for round in 0..ROUNDS[1] {
        if round >= ROUNDS[0] && oracle.is_calm() {
            break;
        }
        network.sleep(std::time::Duration::from_micros(draws.below(600)));
        worker.set_clock(round / 2);
        let mut waiting = Vec::new();
        for _ in 0..1 + draws.below(4) {
            let of = draws.below(specs.len() as u64) as usize;
            let push = Push::draw(draws, round / 2, specs[of].width, |_| true);
            if push.keys.is_empty() {
                continue;
            }
            let is_taken = references[of].push(&push);
            let Push { keys, lengths, values, .. } = &push;
            let pushed = match lengths.is_empty() {
                true => worker.push(tables[of], keys, values).unwrap(),
                false => worker.push_varying(tables[of], keys, lengths, values).unwrap(),
            };
            waiting.push((pushed, is_taken));
        }
        for (pushed, is_taken) in waiting {
            assert_eq!(worker.wait(pushed).is_ok(), is_taken, "seed {seed}, round {round}");
            refused += usize::from(!is_taken);
        }
        for ((reference, table), before) in references.iter().zip(&tables).zip(&mut before) {
            let (rows, expected) = (pull(worker, *table), reference.rows());
            let keys = rows.keys().chain(expected.keys());
            let found: Vec<_> = keys.filter(|key| rows.get(key) != expected.get(key)).collect();
            let pair = |key: &&u64| (**key, rows.get(key), expected.get(key));
            let found: Vec<_> = found.iter().map(pair).collect();
            assert!(found.is_empty(), "seed {seed}, round {round}, {table:?}: {found:?}");
            gone += before.keys().filter(|key| !rows.contains_key(key)).count();
            *before = rows;
        }
    }
    [refused, gone]
}

/// Pushes to keys of its own in a table of all: once a row has come it counts on, or begins anew.
fn work_among_others(hand: &mut Hand<'_>, spec: &TableSpec) {
    let Hand { network, worker, oracle, draws, seed, rank: node, .. } = hand;
    let table = worker.admin().create_table(spec).unwrap();
    oracle.begin();
    let mut sums = BTreeMap::new();
    for round in 0..ROUNDS[1] {
        if round >= ROUNDS[0] && oracle.is_calm() {
            break;
        }
        network.sleep(std::time::Duration::from_micros(draws.below(600)));
        let push = Push::draw(draws, round, spec.width, |key| key % 3 == *node);
        let made = worker.push_pull(table, &push.keys, &push.values).unwrap();
        let rows = worker.wait(made).unwrap().values::<i64>().to_vec();
        for (key, row) in push.keys.iter().zip(rows.chunks_exact(WIDTH as usize)) {
            let had = sums.insert(*key, row[0]).unwrap_or(0);
            let is_new = row[0] <= 1;
            assert!(row[0] == had + 1 || is_new, "seed {seed}, key {key}: {had}, {}", row[0]);
            assert!(row.iter().all(|value| *value == row[0]), "seed {seed}: half a push");
        }
    }
}
