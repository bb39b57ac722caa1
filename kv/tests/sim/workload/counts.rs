//! Workers that count their iterations under a consistency model, so that a read tells what it has
//! seen. Each has a key of its own, and all push to the others.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use caravan_kv::consistency::Model;
use caravan_kv::{Placement, ServerThread, TableSpec, ValueType, Worker, history};
use caravan_van::KeyRange;
use caravan_van::sim::Node;

use crate::sim::{Hand, Setup, Sim};
use crate::support::simulated::Draws;

/// Most workers of a run.
pub(crate) const WORKERS: u64 = 4;
pub(crate) const KEYS: u64 = 12;

/// The table's id.
const COUNTERS: u32 = 1;

/// Iterations of a worker, at least and at most; between them it waits for faults to come.
pub(super) const ITERATIONS: [u64; 2] = [12, 400];

/// What all workers of a run share besides the network.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    /// By worker, the iterations that it has made when it leaves, else 0.
    left: Arc<[AtomicU64; WORKERS as usize]>,
    /// The largest bound that the model has had.
    bound: Arc<AtomicU64>,
    histories: Arc<Mutex<Vec<Written>>>,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a worker has pushed to each key, and what it reads when all have left: the counts, and how
/// fresh they are.
pub(crate) struct Counted {
    pushed: Vec<i64>,
    found: Vec<i64>,
    fresh: u64,
}

impl Counts {
    /// Starts servers that keep histories.
    ///
    /// Under BSP pushes keep their credits until the iteration ends, under SparseSSP pulls that are
    /// announced: there are as many as these need.
    pub(crate) fn start(&self, seed: u64, model: Model, setup: Setup) -> Sim {
        let credits = match model {
            Model::Bsp => 8,
            Model::SparseSsp { .. } => 40,
            _ => 4,
        };
        self.bound.store(bound_of(model), Ordering::Relaxed);
        let histories = self.histories.clone();
        let credits = credits.max(setup.credits);
        Sim::prepare(seed, Setup { credits, ..setup }, move |server: ServerThread| {
            let histories = histories.clone();
            server.record_histories(move |_, _| {
                let written = Written::default();
                histories.lock().unwrap().push(written.clone());
                Ok(Box::new(written))
            })
        })
    }

    /// Counts iterations until all faults have come.
    pub(crate) fn work(&self, hand: &mut Hand<'_>, spec: &TableSpec) -> Counted {
        let pushed = match spec.consistency.map(|it| it.model) {
            Some(Model::SparseSsp { staleness, speculation }) => {
                self.count_ahead(hand, spec, [staleness, speculation])
            }
            _ => self.count(hand, spec),
        };
        self.counted(hand, spec, pushed)
    }

    /// What a worker has pushed, and what it reads when all have left.
    pub(super) fn counted(
        &self,
        hand: &mut Hand<'_>,
        spec: &TableSpec,
        pushed: Vec<i64>,
    ) -> Counted {
        hand.end();
        let table = hand.create(spec);
        let found = hand.pull(table, KEYS);
        let fresh = hand.worker.clocks(table).freshness().unwrap();
        Counted { pushed, found, fresh }
    }

    /// The last iteration of a worker; the largest number while it has not left.
    pub(super) fn last_of(&self, rank: u64) -> u64 {
        let left = self.left[rank as usize].load(Ordering::Relaxed);
        if left > 0 { left } else { u64::MAX }
    }

    /// Records the last iteration of a worker, which is about to leave.
    pub(super) fn left_at(&self, rank: u64, clock: u64) {
        self.left[rank as usize].store(clock, Ordering::Relaxed);
    }

    /// Checks that each worker reads all that was pushed, once, and the history of each copy;
    /// returns the numbers of their reads and writes.
    pub(crate) fn check(&self, sim: Sim, nodes: Vec<Node<Counted>>, what: &str) -> [u64; 2] {
        let all = sim.join_all(nodes);
        let mut sums = vec![0; KEYS as usize];
        for counted in &all {
            sums.iter_mut().zip(&counted.pushed).for_each(|(sum, pushed)| *sum += pushed);
        }
        for Counted { found, fresh, .. } in all {
            assert_eq!(found, sums, "{what}");
            assert_eq!(fresh, u64::MAX - 1, "{what}: all workers have left");
        }
        sim.stop();
        let histories = self.histories.lock().unwrap();
        let texts: Vec<Vec<u8>> = histories.iter().map(|it| it.0.lock().unwrap().clone()).collect();
        let checked = history::check(texts.len(), |file| Ok(&texts[file][..]));
        let summary = checked.unwrap_or_else(|trouble| panic!("{what}: {trouble}"));
        [summary.reads, summary.writes]
    }

    /// Returns what was pushed to each key.
    fn count(&self, hand: &mut Hand<'_>, spec: &TableSpec) -> Vec<i64> {
        let Hand { seed, rank, workers, .. } = *hand;
        let is_bsp = spec.consistency.is_some_and(|it| it.model == Model::Bsp);
        let table = hand.create(spec);
        assert_eq!(hand.worker.clocks(table).join().unwrap(), 1);
        hand.oracle.begin();
        let mut pushed = vec![0; KEYS as usize];
        let mut seen = vec![0; KEYS as usize];
        let mut waiting = Vec::new();
        let mut clock = 1;
        while clock <= ITERATIONS[0] || !hand.oracle.is_calm() {
            assert!(clock < ITERATIONS[1], "seed {seed}: faults do not end");
            hand.pause(500);
            let now = hand.pull::<i64>(table, KEYS);
            let bound = self.bound.load(Ordering::Relaxed);
            for of in 0..workers {
                let count = now[key(of) as usize] as u64;
                let done = self.last_of(of);
                let least = if of == rank { clock - 1 } else { (clock - 1).saturating_sub(bound) };
                let is_exact = of == rank || is_bsp;
                assert!(
                    count >= least.min(done) && (!is_exact || count == (clock - 1).min(done)),
                    "seed {seed}: in iteration {clock}, worker {rank} sees {count} of worker {of}"
                );
            }
            let grows = now.iter().zip(&seen).all(|(now, before)| now >= before);
            assert!(grows, "seed {seed}, worker {rank}: {seen:?}, then {now:?}");
            seen = now;
            for _ in 0..hand.draws.below(3) {
                let shared = hand.draws.below(WORKERS) * (KEYS / WORKERS) + 1 + hand.draws.below(2);
                let value = 1 + hand.draws.below(9) as i64;
                pushed[shared as usize] += value;
                waiting.push(hand.worker.push(table, &[shared], &[value]).unwrap());
            }
            pushed[key(rank) as usize] += 1;
            let own = [key(rank)];
            match hand.draws.below(if is_bsp { 2 } else { 3 }) {
                0 => waiting.push(hand.worker.clocks(table).push_last(&own, &[1_i64]).unwrap()),
                1 => {
                    waiting.push(hand.worker.push(table, &own, &[1_i64]).unwrap());
                    waiting.push(hand.worker.clocks(table).advance().unwrap());
                }
                _ => {
                    waiting.push(hand.worker.push_pull(table, &own, &[1_i64]).unwrap());
                    waiting.push(hand.worker.clocks(table).advance().unwrap());
                }
            }
            if seed % 3 == 0 && rank == 0 && clock % 4 == 2 && spec_has_bound(spec) {
                let bound = bound_of(spec.consistency.unwrap().model) + clock % 3;
                self.bound.fetch_max(bound, Ordering::Relaxed);
                hand.worker.clocks(table).set_bound(bound).unwrap();
            }
            while waiting.len() > hand.draws.below(8) as usize {
                let next = hand.draws.below(waiting.len() as u64) as usize;
                hand.worker.wait(waiting.swap_remove(next)).unwrap();
            }
            clock += 1;
        }
        self.left_at(rank, clock - 1);
        waiting.push(hand.worker.clocks(table).leave().unwrap());
        waiting.into_iter().for_each(|it| drop(hand.worker.wait(it).unwrap()));
        pushed
    }

    /// As [`Counts::count`], under SparseSSP: what is read is announced ahead. Each worker touches
    /// its own key in every iteration, so whoever reads it too is no more than the staleness ahead.
    fn count_ahead(
        &self,
        hand: &mut Hand<'_>,
        spec: &TableSpec,
        [staleness, speculation]: [u64; 2],
    ) -> Vec<i64> {
        let Hand { seed, rank, workers, .. } = *hand;
        let table = hand.create(spec);
        assert_eq!(hand.worker.clocks(table).join().unwrap(), 1);
        hand.oracle.begin();
        let mut pushed = vec![0; KEYS as usize];
        let (mut announced, mut waiting) = (VecDeque::new(), Vec::new());
        let announce = |worker: &mut Worker, clock: u64, ahead: u64| {
            let keys = touched(seed, [rank, workers, clock + ahead]);
            worker.clocks(table).pull_ahead(ahead, &keys).unwrap()
        };
        announced.extend((0..=speculation).map(|ahead| announce(&mut hand.worker, 1, ahead)));
        let mut clock = 1;
        while let Some(pulled) = announced.pop_front() {
            assert!(clock < ITERATIONS[1], "seed {seed}: faults do not end");
            hand.pause(500 * (1 + rank));
            let keys = touched(seed, [rank, workers, clock]);
            let now = hand.worker.wait(pulled).unwrap().values::<i64>().to_vec();
            for of in 0..workers {
                let Ok(at) = keys.binary_search(&key(of)) else { continue };
                let count = now[at] as u64;
                let done = self.last_of(of);
                let bound = if of == rank { 0 } else { staleness };
                let least = (clock - 1).saturating_sub(bound).min(done);
                assert!(
                    count >= least && (of != rank || count == clock - 1),
                    "seed {seed}: in iteration {clock}, worker {rank} sees {count} of worker {of}"
                );
            }
            for shared in keys.iter().filter(|it| *it % (KEYS / WORKERS) > 0) {
                let value = 1 + hand.draws.below(9) as i64;
                pushed[*shared as usize] += value;
                waiting.push(hand.worker.push(table, &[*shared], &[value]).unwrap());
            }
            pushed[key(rank) as usize] += 1;
            let own = [key(rank)];
            if hand.draws.below(2) == 0 {
                waiting.push(hand.worker.clocks(table).push_last(&own, &[1_i64]).unwrap());
            } else {
                waiting.push(hand.worker.push(table, &own, &[1_i64]).unwrap());
                waiting.push(hand.worker.clocks(table).advance().unwrap());
            }
            clock += 1;
            if clock <= ITERATIONS[0] || !hand.oracle.is_calm() {
                announced.push_back(announce(&mut hand.worker, clock, speculation));
            }
            while waiting.len() > hand.draws.below(8) as usize {
                let next = hand.draws.below(waiting.len() as u64) as usize;
                hand.worker.wait(waiting.swap_remove(next)).unwrap();
            }
        }
        self.left_at(rank, clock - 1);
        waiting.push(hand.worker.clocks(table).leave().unwrap());
        waiting.into_iter().for_each(|it| drop(hand.worker.wait(it).unwrap()));
        pushed
    }
}

/// The keys that a worker touches in an iteration: its own, another worker's, and some that are
/// nobody's own.
fn touched(seed: u64, [rank, workers, clock]: [u64; 3]) -> Vec<u64> {
    let mut draws = Draws((seed << 20) + (rank << 12) + clock);
    let mut keys = vec![key(rank)];
    keys.extend((draws.below(2) == 0).then(|| key(draws.below(workers))));
    keys.extend((0..draws.below(3)).map(|_| key(draws.below(WORKERS)) + 1 + draws.below(2)));
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Counters of all workers.
pub(crate) fn counters(model: Model, workers: u64, replicas: u32) -> TableSpec {
    let spec = TableSpec::new(COUNTERS, "counters", ValueType::I64, 1);
    let spec = spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Even(3));
    spec.consistency(model, workers as u32).replicas(replicas)
}

/// The key of a worker: those of two are in different shards.
pub(crate) fn key(rank: u64) -> u64 {
    rank * (KEYS / WORKERS)
}

/// The bound of a model's reads.
fn bound_of(model: Model) -> u64 {
    match model {
        Model::Bsp => 0,
        Model::Ssp { staleness } => staleness,
        Model::BoundedDelay { delay } => delay,
        _ => u64::MAX / 2,
    }
}

fn spec_has_bound(spec: &TableSpec) -> bool {
    spec.consistency.is_some_and(|it| !matches!(it.model, Model::Asp | Model::Bsp))
}
