//! Pushes that are parts of sums: a handle of the test's own adds up a push of each worker before
//! it steps, as DBPG does. What a task does to a row depends on those before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_kv::consistency::Admission;
use caravan_kv::server::{Extract, Part, Pulled, Request};
use caravan_kv::{Handles, Placement, Refusal, Refused, Shard, TableSpec, ValueType};
use caravan_van::{KeyRange, Pool, Value};
use serde::{Deserialize, Serialize};

use crate::sim::{FIRST_WORKER, Hand};

/// The table's id.
pub(crate) const SUMS: u32 = 1;
pub(crate) const WORKERS: u64 = 3;

const KEYS: u64 = 40;
const TASKS: u64 = 120;

/// A worker is this many tasks ahead of its last answer.
const AHEAD: u64 = 4;

/// Parts of all tasks.
pub(crate) fn parts() -> u64 {
    (1..=TASKS).map(|task| members(task).len() as u64).sum()
}

/// Handles with that of these tables.
pub(crate) fn handles() -> Handles {
    Handles::default().with("sums", |_, range, _| Ok(Box::new(Sums::new(range))))
}

/// The workers that push for a task.
fn members(task: u64) -> Vec<u32> {
    let bits = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..WORKERS as u32).filter(|worker| bits >> worker & 1 == 1 || task.is_multiple_of(3)).collect()
}

fn pushed(task: u64, worker: u32, key: u64) -> i64 {
    (task * 31 + u64::from(worker) * 7 + key) as i64
}

/// A row after this many tasks.
fn expected(tasks: u64, key: u64) -> i64 {
    (1..=tasks).fold(0, |row, task| {
        let sum: i64 = members(task).iter().map(|worker| pushed(task, *worker, key)).sum();
        step(row, sum)
    })
}

/// What a task does to a row depends on those before it.
fn step(row: i64, sum: i64) -> i64 {
    row.wrapping_mul(3).wrapping_add(sum)
}

/// Rows that step when all pushes of a task are there, one task behind the other.
#[derive(Default, Serialize, Deserialize)]
struct Sums {
    begin: u64,
    rows: Vec<i64>,
    /// Tasks up to this one have stepped.
    clock: u64,
    /// Who has pushed for the later ones, and the sums of that.
    tasks: BTreeMap<u64, (BTreeSet<u32>, Vec<i64>)>,
    commands: u64,
    answer: Vec<i64>,
}

impl Sums {
    fn new(range: KeyRange) -> Sums {
        let rows = vec![0; (range.last() - range.begin() + 1) as usize];
        let mut sums = Sums { begin: range.begin(), rows, ..Sums::default() };
        sums.step();
        sums
    }

    fn add(&mut self, task: u64, of: &[u32], keys: &[u64], values: &[i64]) -> Result<(), Refused> {
        let (done, sums) =
            self.tasks.entry(task).or_insert((BTreeSet::new(), vec![0; self.rows.len()]));
        for worker in of {
            if !members(task).contains(worker) || !done.insert(*worker) {
                return Err(Refusal::Shape
                    .because(format!("worker {worker} has pushed for task {task} before")));
            }
        }
        for (key, value) in keys.iter().zip(values) {
            sums[(key - self.begin) as usize] += value;
        }
        self.step();
        Ok(())
    }

    fn step(&mut self) {
        loop {
            let next = self.clock + 1;
            let done = self.tasks.get(&next).map_or(0, |(done, _)| done.len());
            if next > TASKS || done < members(next).len() {
                return;
            }
            let none = || (BTreeSet::new(), vec![0; self.rows.len()]);
            let (_, sums) = self.tasks.remove(&next).unwrap_or_else(none);
            self.rows.iter_mut().zip(sums).for_each(|(row, sum)| *row = step(*row, sum));
            self.clock = next;
        }
    }
}

impl Shard for Sums {
    fn admit(&self, request: &Request<'_>) -> Admission {
        match request.pulls && request.clock > self.clock {
            true => Admission::AfterClock(request.clock),
            false => Admission::Now,
        }
    }

    fn clock(&self) -> u64 {
        self.clock
    }

    fn push(&mut self, request: &Request<'_>, _: &Pool) -> Result<(), Refused> {
        let values = i64::view(request.values).unwrap();
        self.add(request.clock, &[request.sender - FIRST_WORKER], request.keys, values)
    }

    /// The rows, and in place of the last one how many tasks have stepped.
    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        let row = |key: &u64| match (key - self.begin) as usize + 1 {
            last if last == self.rows.len() => self.clock as i64,
            at => self.rows[at - 1],
        };
        self.answer = request.keys.iter().map(row).collect();
        Ok(Pulled::Bytes(self.answer.len() * 8))
    }

    fn read(&mut self, _: &Request<'_>, into: &mut [u8]) {
        into.copy_from_slice(i64::bytes(&self.answer));
    }

    fn part(&self, request: &Request<'_>) -> Option<Part> {
        let of = members(request.clock).len();
        let has = self.tasks.get(&request.clock).map_or(0, |(done, _)| done.len());
        Some(Part { sum: request.clock, of, left: of - has })
    }

    fn add_up(&self, parts: &[Request<'_>], extract: &mut Extract) -> bool {
        let senders: BTreeSet<u32> = parts.iter().map(|part| part.sender - FIRST_WORKER).collect();
        assert_eq!(senders.len(), parts.len(), "one push a worker");
        extract.keys = parts[0].keys.to_vec();
        let mut sums = vec![0; extract.keys.len()];
        for part in parts {
            assert_eq!((part.clock, part.keys), (parts[0].clock, parts[0].keys));
            let values = i64::view(part.values).unwrap();
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        extract.values = parts[0].clock.to_le_bytes().to_vec();
        extract.values.extend(i64::bytes(&sums));
        true
    }

    fn take(&mut self, keys: &[u64], _: &[u32], values: &[u8], _: &Pool) -> Result<(), Refused> {
        let values = i64::view(values).unwrap();
        let task = values[0] as u64;
        self.add(task, &members(task), keys, &values[1..])
    }

    fn image_bytes(&self) -> Option<usize> {
        Some(serde_json::to_vec(self).unwrap().len())
    }

    fn image(&self, image: &mut Vec<u8>) {
        image.extend(serde_json::to_vec(self).unwrap());
    }

    fn restore(&mut self, image: &[u8], _: &Pool) -> Result<(), Refused> {
        *self = serde_json::from_slice(image).unwrap();
        Ok(())
    }

    fn command(&mut self, _: u32, _: &[u8]) -> Result<Vec<u8>, Refused> {
        self.commands += 1;
        Ok(self.commands.to_le_bytes().to_vec())
    }
}

/// Parts of a worker.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) replicas: u32,
    /// A worker is late once in so many tasks, by more than others wait for it; 0 for never.
    pub(crate) late: u64,
    /// Number of commands that were answered.
    pub(crate) commands: Arc<AtomicU64>,
}

impl Parts {
    /// Pushes its parts, ahead of their answers, and checks what all have come to.
    pub(crate) fn work(&self, hand: &mut Hand<'_>) {
        let (seed, me) = (hand.seed, hand.rank as u32);
        let spec = TableSpec::new(SUMS, "sums", ValueType::I64, 1).handle("sums");
        let spec = spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Even(1));
        let table = hand.create(&spec.replicas(self.replicas));
        let shards = hand.worker.info().shards(table).unwrap();
        let shards: Vec<KeyRange> = shards.iter().map(|it| it.range).collect();
        hand.oracle.begin();
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut waiting = VecDeque::new();
        for task in 1..=TASKS + AHEAD {
            while waiting.front().is_some_and(|(of, _)| of + AHEAD <= task) {
                let (of, request) = waiting.pop_front().unwrap();
                let answer = hand.worker.wait(request).unwrap();
                if !answer.values::<i64>().is_empty() {
                    check(seed, of, &shards, answer.values());
                }
            }
            if task > TASKS {
                continue;
            }
            let is_late = self.late > 0 && hand.draws.below(self.late) == 0;
            hand.pause(if is_late { 2_500_000 } else { 400 });
            hand.worker.set_clock(task);
            if members(task).contains(&me) {
                let values: Vec<i64> = keys.iter().map(|key| pushed(task, me, *key)).collect();
                waiting.push_back((task, hand.worker.push(table, &keys, &values).unwrap()));
            }
            waiting.push_back((task, hand.worker.pull(table, &keys).unwrap()));
            if hand.draws.below(8) == 0 {
                let told = hand.worker.command(table, &[]).unwrap();
                hand.wait(told);
                self.commands.fetch_add(1, Ordering::Relaxed);
            }
        }
        hand.end();
        if me == 0 {
            let told = hand.worker.command(table, &[]).unwrap();
            let counts = hand.worker.wait(told).unwrap().replies.to_vec();
            let expected = self.commands.load(Ordering::Relaxed) + 1;
            assert!(counts.iter().all(|count| count[..] == expected.to_le_bytes()), "seed {seed}");
        }
    }
}

/// Checks the rows that a worker has pulled, which have come to this task or further.
fn check(seed: u64, task: u64, shards: &[KeyRange], rows: &[i64]) {
    for range in shards {
        let tasks = rows[range.last() as usize] as u64;
        assert!(tasks >= task, "seed {seed}: {tasks} tasks, not {task}");
        for key in range.begin()..range.last() {
            let (row, expected) = (rows[key as usize], expected(tasks, key));
            assert_eq!(row, expected, "seed {seed}, task {task} of {tasks}, key {key}");
        }
    }
}
