//! Workers that write a chunk of their own in each iteration, from what they have read of all
//! others, under data-centric constraints. Without delay each read is that of a serial run.

use caravan_kv::TableSpec;
use caravan_kv::consistency::Model;

use super::counts::{Counted, Counts, ITERATIONS, KEYS, WORKERS, counters, key};
use crate::sim::Hand;

/// Keys of a chunk.
const CHUNK: u64 = KEYS / WORKERS;

/// Counters under data-centric constraints, a chunk for each worker.
pub(crate) fn table(delay: u64, workers: u64, replicas: u32) -> TableSpec {
    let model = Model::DataCentric { delay: Some(delay), chunk_keys: CHUNK };
    counters(model, workers, replicas)
}

/// What a worker adds to the keys of its chunk in an iteration in which it reads `rows`: 1 to the
/// first, something of all that it has read to the second, and to the third every other time.
fn added(rows: &[i64], rank: u64, clock: u64) -> Vec<i64> {
    let mixed = rows.iter().fold(clock as i64 + rank as i64, |mixed, row| {
        mixed.wrapping_mul(31).wrapping_add(*row) % 100_003
    });
    let all = [1, mixed, 7];
    all[..if clock.is_multiple_of(2) { 3 } else { 2 }].to_vec()
}

impl Counts {
    /// The rows after an iteration of a serial run, from those before it.
    fn serial(&self, rows: &[i64], workers: u64, clock: u64) -> Vec<i64> {
        let mut next = rows.to_vec();
        for rank in (0..workers).filter(|rank| clock <= self.last_of(*rank)) {
            let own = &mut next[key(rank) as usize..];
            own.iter_mut().zip(added(rows, rank, clock)).for_each(|(row, it)| *row += it);
        }
        next
    }

    /// Writes this worker's chunk until all faults have come.
    pub(crate) fn work_on_chunks(&self, hand: &mut Hand<'_>, spec: &TableSpec) -> Counted {
        let pushed = self.write_chunks(hand, spec);
        self.counted(hand, spec, pushed)
    }

    /// Returns what was pushed to each key.
    fn write_chunks(&self, hand: &mut Hand<'_>, spec: &TableSpec) -> Vec<i64> {
        let Hand { seed, rank, workers, .. } = *hand;
        let Some(Model::DataCentric { delay: Some(delay), .. }) =
            spec.consistency.map(|it| it.model)
        else {
            panic!("chunks are those of data-centric constraints");
        };
        let table = hand.create(spec);
        assert_eq!(hand.worker.clocks(table).join().unwrap(), 1);
        hand.oracle.begin();
        let all: Vec<u64> = (0..KEYS).collect();
        let mut pushed = vec![0; KEYS as usize];
        let mut before = None;
        let mut waiting = Vec::new();
        let mut clock = 1;
        while clock <= ITERATIONS[0] || !hand.oracle.is_calm() {
            assert!(clock < ITERATIONS[1], "seed {seed}: faults do not end");
            hand.pause(500);
            let (some, others) = all.split_at(1 + hand.draws.below(KEYS - 1) as usize);
            let pulls = [some, others].map(|keys| hand.worker.pull(table, keys).unwrap());
            let pulled = pulls.map(|it| hand.worker.wait(it).unwrap().values::<i64>().to_vec());
            let now = pulled.concat();
            for of in 0..workers {
                let least = (clock - 1).saturating_sub(delay).min(self.last_of(of));
                assert!(
                    now[key(of) as usize] as u64 >= least,
                    "seed {seed}: in iteration {clock}, worker {rank} sees {now:?}"
                );
            }
            if delay == 0 {
                // Whoever has not written in the iteration before has said that it leaves.
                let serial = before.map_or(vec![0; KEYS as usize], |before: Vec<i64>| {
                    self.serial(&before, workers, clock - 1)
                });
                assert_eq!(now, serial, "seed {seed}: worker {rank} in iteration {clock}");
            }
            let values = added(&now, rank, clock);
            let own: Vec<u64> = (key(rank)..).take(values.len()).collect();
            own.iter().zip(&values).for_each(|(key, value)| pushed[*key as usize] += value);
            if hand.draws.below(2) == 0 {
                waiting.push(hand.worker.clocks(table).push_last(&own, &values).unwrap());
            } else {
                waiting.push(hand.worker.push(table, &own, &values).unwrap());
                waiting.push(hand.worker.clocks(table).advance().unwrap());
            }
            while waiting.len() > hand.draws.below(6) as usize {
                let next = hand.draws.below(waiting.len() as u64) as usize;
                hand.worker.wait(waiting.swap_remove(next)).unwrap();
            }
            clock += 1;
            before = Some(now);
        }
        self.left_at(rank, clock - 1);
        waiting.push(hand.worker.clocks(table).leave().unwrap());
        waiting.into_iter().for_each(|it| drop(hand.worker.wait(it).unwrap()));
        pushed
    }
}
