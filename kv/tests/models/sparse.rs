//! SparseSSP against its rule, looked up in everything that was ever announced.

use std::collections::BTreeSet;

use caravan_kv::consistency::{
    Access, Controller, MapRecorder, RingRecorder, SparseSsp, Ssp, Verdict, WaitReason,
};
use proptest::prelude::*;

const WORKERS: u32 = 4;
const KEYS: u64 = 12;

type Mapped = SparseSsp<MapRecorder>;
type Ringed = SparseSsp<RingRecorder>;

fn ring(staleness: u64, speculation: u64) -> Ringed {
    let versions = Ringed::versions(staleness, speculation);
    let recorder = RingRecorder::new(0, KEYS as usize, versions);
    SparseSsp::new(WORKERS as usize, staleness, speculation, recorder)
}

fn map(staleness: u64, speculation: u64) -> Mapped {
    SparseSsp::new(WORKERS as usize, staleness, speculation, MapRecorder::default())
}

/// Everything that a schedule has said, and the rule.
struct Oracle {
    staleness: u64,
    speculation: u64,
    clocks: Vec<u64>,
    disclosed: Vec<u64>,
    announced: Vec<(u32, u64, BTreeSet<u64>)>,
}

impl Oracle {
    fn new(staleness: u64, speculation: u64) -> Self {
        let clocks = vec![1; WORKERS as usize];
        let disclosed = vec![0; WORKERS as usize];
        Oracle { staleness, speculation, clocks, disclosed, announced: Vec::new() }
    }

    fn admits(&self, worker: u32, clock: u64, keys: &BTreeSet<u64>) -> bool {
        let slowest = self.clocks.iter().copied().min().unwrap();
        if self.clocks[worker as usize] < clock {
            return false;
        }
        if clock <= slowest + self.staleness {
            return true;
        }
        if clock > slowest + self.staleness + self.speculation {
            return false;
        }
        let others = (0..WORKERS).filter(|other| *other != worker);
        others.flat_map(|other| (slowest..clock - self.staleness).map(move |v| (other, v))).all(
            |(other, version)| {
                let is_finished = self.clocks[other as usize] > version;
                let is_disclosed = self.disclosed[other as usize] > version;
                let touches = |said: &&(u32, u64, BTreeSet<u64>)| {
                    (said.0, said.1) == (other, version) && !said.2.is_disjoint(keys)
                };
                is_finished || (is_disclosed && !self.announced.iter().any(|said| touches(&said)))
            },
        )
    }
}

/// What a worker does next.
#[derive(Debug, Clone)]
struct Step {
    worker: u32,
    /// Draws this worker's next announced keys.
    keys: BTreeSet<u64>,
    /// Whether it finishes its iteration without asking whether it may read.
    hurries: bool,
}

fn steps(keys_max: usize) -> impl Strategy<Value = Vec<Step>> {
    let keys = proptest::collection::btree_set(0..KEYS, 0..keys_max);
    let step = (0..WORKERS, keys, proptest::bool::weighted(0.1))
        .prop_map(|(worker, keys, hurries)| Step { worker, keys, hurries });
    proptest::collection::vec(step, 0..200)
}

/// Runs a schedule in which workers announce `ahead` iterations ahead, and returns the largest lead
/// of an admitted reader.
fn run(staleness: u64, speculation: u64, ahead: u64, steps: &[Step]) -> Result<u64, TestCaseError> {
    let mut map = map(staleness, speculation);
    let mut ring = ring(staleness, speculation);
    let mut ssp = Ssp::new(WORKERS as usize, staleness);
    let mut oracle = Oracle::new(staleness, speculation);
    let mut lead = 0;
    for worker in 0..WORKERS {
        map.join(worker, 1);
        ring.join(worker, 1);
        ssp.join(worker, 1);
    }
    for Step { worker, keys, hurries } in steps {
        let worker = *worker;
        let at = worker as usize;
        let clock = oracle.clocks[at];
        // Announces its request of the iteration `ahead` of the one that it works on.
        let next = oracle.disclosed[at].max(clock);
        let list: Vec<u64> = keys.iter().copied().collect();
        let announced = Access { worker, clock: next, reads: true, writes: false, keys: &list };
        let slowest = oracle.clocks.iter().copied().min().unwrap();
        if ahead > 0 && next <= clock + ahead {
            prop_assert_eq!(map.announce(&announced), Ok(()));
            prop_assert_eq!(ring.announce(&announced), Ok(()));
            map.advance(worker, clock, next + 1);
            ring.advance(worker, clock, next + 1);
            oracle.disclosed[at] = next + 1;
            oracle.announced.push((worker, next, keys.clone()));
        }
        // Asks for the keys announced for its iteration, or for these.
        let said = oracle.announced.iter().find(|said| (said.0, said.1) == (worker, clock));
        let wanted = said.map_or_else(|| keys.clone(), |said| said.2.clone());
        let list: Vec<u64> = wanted.iter().copied().collect();
        let read = Access { worker, clock, reads: true, writes: false, keys: &list };
        let verdict = map.admit(&read);
        prop_assert_eq!(verdict, ring.admit(&read), "both recorders say the same");
        let admits = oracle.admits(worker, clock, &wanted);
        prop_assert_eq!(verdict == Verdict::Admit, admits, "{:?}: {:?}", read, verdict);
        if let Verdict::Park(wait_reason) = verdict {
            prop_assert!(
                map.is_blocked(&wait_reason) && ring.is_blocked(&wait_reason),
                "{:?}",
                wait_reason
            );
        }
        if speculation == 0 || ahead == 0 {
            let same = ssp.admit(&read) == Verdict::Admit;
            prop_assert_eq!(verdict == Verdict::Admit, same, "as under SSP");
        }
        if admits {
            lead = lead.max(clock - slowest);
        }
        if admits || *hurries {
            oracle.clocks[at] += 1;
            map.advance(worker, clock + 1, 0);
            ring.advance(worker, clock + 1, 0);
            ssp.advance(worker, clock + 1, 0);
        }
    }
    // Nothing is kept of what is finished.
    for worker in 0..WORKERS {
        map.leave(worker);
        ring.leave(worker);
    }
    prop_assert_eq!(map.bytes(), 0);
    prop_assert_eq!(ring, self::ring_after_all_left(staleness, speculation));
    Ok(lead)
}

fn ring_after_all_left(staleness: u64, speculation: u64) -> Ringed {
    let mut ring = ring(staleness, speculation);
    (0..WORKERS).for_each(|worker| {
        ring.join(worker, 1);
    });
    (0..WORKERS).for_each(|worker| ring.leave(worker));
    ring
}

proptest! {
    #[test]
    fn it_is_its_rule(staleness in 0..4u64, speculation in 0..5u64, steps in steps(3)) {
        let lead = run(staleness, speculation, speculation + 1, &steps)?;
        prop_assert!(lead <= staleness + speculation);
    }

    #[test]
    fn without_speculation_it_is_ssp(staleness in 0..4u64, steps in steps(6)) {
        run(staleness, 0, 1, &steps)?;
    }

    #[test]
    fn without_announcements_it_is_ssp(
        staleness in 0..4u64,
        speculation in 0..5u64,
        steps in steps(3),
    ) {
        run(staleness, speculation, 0, &steps)?;
    }
}

fn read(worker: u32, clock: u64, keys: &[u64]) -> Access<'_> {
    Access { worker, clock, reads: true, writes: false, keys }
}

/// Two workers under SparseSSP(0, 1) whose announced keys do, or do not, meet.
fn two(own: &[u64], other: &[u64]) -> (Mapped, Verdict) {
    let mut sparse = SparseSsp::new(2, 0, 1, MapRecorder::default());
    sparse.join(0, 1);
    sparse.join(1, 1);
    for worker in [0, 1] {
        let keys = if worker == 0 { own } else { other };
        sparse.announce(&read(worker, 1, keys)).unwrap();
        sparse.announce(&read(worker, 2, keys)).unwrap();
        sparse.advance(worker, 1, 3);
    }
    assert_eq!(sparse.admit(&read(0, 1, own)), Verdict::Admit);
    assert_eq!(
        sparse.admit(&read(0, 2, own)),
        Verdict::Park(WaitReason::Own { worker: 0, clock: 2 })
    );
    sparse.advance(0, 2, 3);
    let verdict = sparse.admit(&read(0, 2, own));
    (sparse, verdict)
}

#[test]
fn disjoint_keys_go_on_and_shared_ones_wait_for_the_slower_worker() {
    assert_eq!(two(&[1, 5], &[2, 6]).1, Verdict::Admit);
    let (mut sparse, verdict) = two(&[1, 5], &[2, 5]);
    let wait_reason = WaitReason::Key { version: 1, key: 5 };
    assert_eq!(verdict, Verdict::Park(wait_reason));
    assert!(sparse.is_blocked(&wait_reason));
    sparse.advance(1, 2, 3);
    assert!(!sparse.is_blocked(&wait_reason));
    assert_eq!(sparse.admit(&read(0, 2, &[1, 5])), Verdict::Admit);
}

#[test]
fn a_reader_too_far_ahead_waits_for_the_slowest_whatever_its_keys() {
    let (mut sparse, _) = two(&[1], &[2]);
    sparse.announce(&read(0, 3, &[1])).unwrap();
    sparse.advance(0, 3, 4);
    assert_eq!(sparse.admit(&read(0, 3, &[1])), Verdict::Park(WaitReason::Slowest(2)));
    sparse.advance(1, 2, 3);
    assert_eq!(sparse.admit(&read(0, 3, &[1])), Verdict::Admit);
}

#[test]
fn a_worker_that_leaves_takes_its_announcements_with_it() {
    let (mut sparse, verdict) = two(&[5], &[5]);
    assert_eq!(verdict, Verdict::Park(WaitReason::Key { version: 1, key: 5 }));
    sparse.leave(1);
    assert_eq!(sparse.admit(&read(0, 2, &[5])), Verdict::Admit);
    sparse.leave(0);
    assert_eq!(sparse.bytes(), 0);
}
