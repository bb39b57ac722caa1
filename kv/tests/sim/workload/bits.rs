//! Pushes of which each has a bit of its own, in a column of its worker. So a worker reads which of
//! the pushes on a broken lane were applied, and makes the others again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::server::MoveStep;
use caravan_kv::{Error, Placed, Placement, Table, TableSpec, Timestamp, ValueType};
use caravan_van::KeyRange;
use caravan_van::sim::Network;

use crate::sim::Hand;
use crate::sim::faults::DETECTION;
use crate::sim::oracle::Oracle;
use crate::support::simulated::Draws;

pub(crate) const WORKERS: usize = 8;
pub(crate) const KEYS: u64 = 240;

/// Pushes of a worker, each of which has a bit of an `i64`.
const PUSHES: u64 = 40;

/// A sparse and a dense table, with two shards on each server at first.
pub(crate) fn tables() -> [TableSpec; 2] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let sparse = TableSpec::new(1, "sparse", ValueType::I64, WORKERS as u32);
    let dense = TableSpec::new(2, "dense", ValueType::I64, WORKERS as u32).dense();
    [sparse, dense].map(|spec| {
        spec.keys(keys).placement(Placement::Even(2)).filters("key-cache".parse().unwrap())
    })
}

/// How far a move has come at the server to which a push goes. `None` is a shard that has left it.
pub(crate) type Step = Option<MoveStep>;

pub(crate) const STEPS: [Step; 6] = [
    Some(MoveStep::Still),
    Some(MoveStep::Asked),
    Some(MoveStep::Copying),
    Some(MoveStep::Closing),
    None,
    Some(MoveStep::Arriving),
];

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    Answered,
    /// Its lane broke before it was applied.
    Lost,
    /// Its lane broke when it was applied, and not answered.
    Unanswered,
}

pub(crate) const FATES: [Fate; 3] = [Fate::Answered, Fate::Lost, Fate::Unanswered];

/// How many pushes to one shard had this step when they were made, and this fate.
pub(crate) type Pairs = BTreeMap<(Step, Fate), u64>;

/// The last push of each worker that it waits for.
pub(crate) type Notes = Arc<Mutex<[Option<Last>; WORKERS]>>;

/// A push to one shard.
#[derive(Clone, Copy)]
pub(crate) struct Last {
    table: u32,
    range: KeyRange,
    server: usize,
    step: Step,
}

impl Last {
    /// The server besides that of the push where its shard is or will be.
    fn other(&self, oracle: &Oracle) -> Option<usize> {
        let shards = oracle.shards();
        let has_it = shards.iter().find(|(server, it)| {
            *server != self.server && (it.table, it.range) == (self.table, self.range)
        });
        has_it.map(|(server, _)| *server)
    }
}

/// A push that has not been answered.
struct Sent {
    /// Its bit.
    number: u64,
    /// Which of the two tables.
    table: usize,
    keys: Vec<u64>,
    /// Of its shard, if all its keys are of one.
    step: Option<Step>,
    /// `None` if it could not be posted; parts of it may be on their way.
    timestamp: Option<Timestamp>,
}

/// A worker that knows which of its pushes are applied.
pub(crate) struct Counting<'a, 'b> {
    pub(crate) hand: &'a mut Hand<'b>,
    pub(crate) notes: Notes,
    node: usize,
    tables: [Table; 2],
    /// By table and key, the bits of its pushes that are applied for certain.
    known: [Vec<i64>; 2],
    pairs: Pairs,
}

impl<'a, 'b> Counting<'a, 'b> {
    pub(crate) fn new(hand: &'a mut Hand<'b>, notes: &Notes) -> Counting<'a, 'b> {
        let tables = tables().map(|spec| hand.create(&spec));
        let known = [(); 2].map(|()| vec![0; KEYS as usize]);
        let (node, notes) = (hand.rank as usize, notes.clone());
        Counting { hand, notes, node, tables, known, pairs: Pairs::new() }
    }

    /// Keys of one shard that are the same each time, or random ones of all shards.
    fn draw_keys(&mut self, table: usize) -> Vec<u64> {
        if self.hand.draws.below(4) == 0 {
            let mut keys: Vec<u64> =
                (0..=self.hand.draws.below(30)).map(|_| self.hand.draws.below(KEYS)).collect();
            keys.sort_unstable();
            keys.dedup();
            return keys;
        }
        let moving = self.moving(tables()[table].id);
        let shards = self.hand.worker.info().shards(self.tables[table]).unwrap();
        let any = shards[self.hand.draws.below(shards.len() as u64) as usize].range;
        let range = moving.get(self.hand.draws.below(3) as usize).copied().unwrap_or(any);
        let length = [1, 20, 40][self.hand.draws.below(3) as usize];
        (range.begin()..=range.last()).take(length).collect()
    }

    /// The shards of a table that move.
    fn moving(&self, table: u32) -> Vec<KeyRange> {
        let shards = self.hand.oracle.shards().into_iter().map(|(_, it)| it);
        let moving = shards.filter(|it| it.table == table && it.step != MoveStep::Still);
        moving.map(|it| it.range).collect()
    }

    fn push(&mut self, number: u64, table: usize, keys: Vec<u64>) -> Sent {
        let shards = self.hand.worker.info().shards(self.tables[table]).unwrap();
        let (first, last) = (keys[0], keys[keys.len() - 1]);
        let is_whole = |it: &&Placed| it.range.contains(first) && it.range.contains(last);
        let shard = shards.iter().find(is_whole);
        let id = tables()[table].id;
        let step = shard.map(|it| self.hand.oracle.step(it.server, (id, it.range)));
        let last = shard.zip(step).map(|(it, step)| Last {
            table: id,
            range: it.range,
            server: it.server,
            step,
        });
        self.notes.lock().unwrap()[self.node] = last;
        let mut rows = vec![0i64; keys.len() * WORKERS];
        rows.iter_mut().skip(self.node).step_by(WORKERS).for_each(|it| *it = 1 << number);
        let timestamp = match self.hand.worker.push(self.tables[table], &keys, &rows) {
            Ok(timestamp) => Some(timestamp),
            Err(Error::ServerLost { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        Sent { number, table, keys, step, timestamp }
    }

    /// Waits for a push; returns it if its lane broke.
    fn wait(&mut self, sent: Sent) -> Option<Sent> {
        let waited = sent.timestamp.map(|timestamp| self.hand.worker.wait(timestamp));
        self.notes.lock().unwrap()[self.node] = None;
        match waited {
            Some(Ok(_)) => {
                sent.keys.iter().for_each(|key| self.enter(&sent, *key));
                self.count(sent.step, Fate::Answered);
                None
            }
            Some(Err(Error::ServerLost { .. })) | None => Some(sent),
            Some(Err(error)) => panic!("{error}"),
        }
    }

    fn enter(&mut self, sent: &Sent, key: u64) {
        self.known[sent.table][key as usize] |= 1 << sent.number;
    }

    fn count(&mut self, step: Option<Step>, fate: Fate) {
        if let Some(step) = step {
            *self.pairs.entry((step, fate)).or_default() += 1;
        }
    }

    /// What the servers have of this worker's pushes to these keys. Connects again as long as it
    /// takes.
    fn read(&mut self, table: usize, keys: &[u64]) -> Vec<i64> {
        loop {
            let read =
                self.hand.worker.admin().reconnect(Duration::from_millis(50)).and_then(|_| {
                    let pulled = self.hand.worker.pull(self.tables[table], keys)?;
                    self.hand.worker.wait(pulled)
                });
            match read {
                Ok(answer) => {
                    let rows = answer.values::<i64>().chunks(WORKERS);
                    return rows.map(|row| row[self.node]).collect();
                }
                Err(Error::ServerLost { .. } | Error::Timeout { .. }) => {
                    self.hand.network.sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Finds out what has become of pushes whose lanes broke; returns those to be made again, with
    /// their keys.
    fn resolve(&mut self, failed: &[Sent]) -> Vec<(u64, usize, Vec<u64>)> {
        let mut again = Vec::new();
        for sent in failed {
            let found = self.read(sent.table, &sent.keys);
            let bit = 1 << sent.number;
            let unsure = |key: u64| {
                let of_key = |it: &&Sent| it.table == sent.table && it.keys.contains(&key);
                failed.iter().filter(of_key).fold(0, |bits, it| bits | 1 << it.number)
            };
            let mut lost = Vec::new();
            for (&key, found) in sent.keys.iter().zip(found) {
                let known = self.known[sent.table][key as usize];
                let unsure = unsure(key);
                assert_eq!(found | unsure, known | unsure, "key {key}: {found:b}, {known:b}");
                match found & bit {
                    0 => lost.push(key),
                    _ => self.enter(sent, key),
                }
            }
            let is_lost = !lost.is_empty();
            if sent.step.is_some() {
                assert!(!is_lost || lost == sent.keys, "half of a push to one shard: {lost:?}");
            }
            self.count(sent.step, if is_lost { Fate::Lost } else { Fate::Unanswered });
            if is_lost {
                again.push((sent.number, sent.table, lost));
            }
        }
        again
    }

    /// Makes all pushes; returns what each key has then.
    pub(crate) fn work(mut self) -> ([Vec<i64>; 2], Pairs) {
        let mut waiting: VecDeque<Sent> = VecDeque::new();
        for number in 0..PUSHES {
            self.hand.pause(500);
            let table = self.hand.draws.below(2) as usize;
            let keys = self.draw_keys(table);
            waiting.push_back(self.push(number, table, keys));
            let most = if number + 1 < PUSHES { self.hand.draws.below(6) as usize } else { 0 };
            while waiting.len() > most {
                let Some(sent) = waiting.pop_front() else { break };
                let Some(failed) = self.wait(sent) else { continue };
                let rest = waiting.drain(..).collect::<Vec<_>>();
                let rest = rest.into_iter().filter_map(|sent| self.wait(sent));
                let failed: Vec<Sent> = std::iter::once(failed).chain(rest).collect();
                for (number, table, keys) in self.resolve(&failed) {
                    waiting.push_back(self.push(number, table, keys));
                }
            }
        }
        self.hand.oracle.end();
        (self.known, self.pairs)
    }
}

/// Cuts workers off from servers soon after they have pushed to a shard at a drawn step of its
/// move: from the server that has the push, or the one to which it goes when it comes back.
pub(crate) fn cut(network: &Network, oracle: &Oracle, notes: &Notes, seed: u64) {
    let mut draws = Draws(seed ^ 99);
    while !oracle.is_over(WORKERS as u64) {
        let step = STEPS[(draws.below(8) as usize).min(STEPS.len() - 1)]; // the last one is rare
        let found = (0..200).find_map(|_| {
            network.sleep(Duration::from_micros(20));
            let last = notes.lock().unwrap();
            let has_step = |last: &Last| last.step == step;
            (0..WORKERS).find_map(|worker| Some((worker, last[worker].filter(has_step)?)))
        });
        let Some((worker, last)) = found else { continue };
        let goes_on = draws.below(2) == 0 || matches!(step, Some(MoveStep::Closing) | None);
        network.sleep(Duration::from_micros(draws.below(if goes_on { 3000 } else { 800 })));
        let server = last.other(oracle).filter(|_| goes_on).unwrap_or(last.server);
        let duration = DETECTION + Duration::from_micros(1 + draws.below(4000));
        network.cut(&format!("worker {worker}"), &format!("server {server}"), duration);
        network.sleep(Duration::from_micros(draws.below(1000)));
    }
}
