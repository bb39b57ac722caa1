//! Faults that implementations of the data-centric protocol are known for, each built into a state
//! machine written after the protocol's pseudo-code. The checks that the real controller passes
//! must find every one of them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};

use caravan_kv::consistency::{
    Access, Controller, DataCentric, Forbidden, Members, Parked, Verdict, WaitReason,
};

use super::program::{Form, Formula, Op, Program, Shape, admitted, allowed, join_all};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    None,
    BitNotClearedAtWrite,
    BitSetAtArrival,
    DelayOffByOne,
    NotRetriedAfterRead,
    OwnReadOmitted,
    LaterVersionForRetriedRead,
    RetriedWriteAppliedTwice,
    LargestReadCounts,
}

pub(crate) const FAULTS: [Fault; 8] = [
    Fault::BitNotClearedAtWrite,
    Fault::BitSetAtArrival,
    Fault::DelayOffByOne,
    Fault::NotRetriedAfterRead,
    Fault::OwnReadOmitted,
    Fault::LaterVersionForRetriedRead,
    Fault::RetriedWriteAppliedTwice,
    Fault::LargestReadCounts,
];

/// The protocol with a bit (δ = 0) or an iteration (δ > 0) for each reader of a chunk. Chunk `i` is
/// worker `i`'s.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Protocol {
    fault: Fault,
    delay: u64,
    members: Members,
    chunks: Vec<Chunk>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Chunk {
    iteration: u64,
    bits: BTreeMap<u32, bool>,
    reads: BTreeMap<u32, Vec<u64>>,
}

impl Protocol {
    pub(crate) fn new(workers: usize, delay: u64, fault: Fault) -> Self {
        let chunks = vec![Chunk::default(); workers];
        Protocol { fault, delay, members: Members::new(workers), chunks }
    }

    /// The last iteration up to which `worker` has read the chunk without a gap.
    fn last_read(&self, chunk: &Chunk, worker: u32) -> u64 {
        let reads = chunk.reads.get(&worker).map(Vec::as_slice).unwrap_or_default();
        if self.fault == Fault::LargestReadCounts {
            return reads.iter().copied().max().unwrap_or(0);
        }
        (1..).take_while(|version| reads.contains(version)).last().unwrap_or(0)
    }

    fn read(&mut self, access: &Access<'_>) -> Verdict {
        let &Access { worker, clock, keys, .. } = access;
        let Protocol { fault, delay, ref mut chunks, .. } = *self;
        let chunk = &mut chunks[keys[0] as usize];
        let wanted = (clock - 1).saturating_sub(delay);
        let wait_reason = WaitReason::Written { chunk: keys[0], version: wanted };
        if chunk.iteration < wanted {
            if fault == Fault::BitSetAtArrival {
                chunk.bits.insert(worker, true);
            }
            return Verdict::Park(wait_reason);
        }
        if delay == 0 && chunk.iteration > wanted && fault != Fault::LaterVersionForRetriedRead {
            return Verdict::Previous;
        }
        chunk.bits.insert(worker, true);
        chunk.reads.entry(worker).or_default().push(clock);
        Verdict::Admit
    }

    fn write(&mut self, access: &Access<'_>) -> Verdict {
        let &Access { worker, clock, keys, .. } = access;
        let chunk = &self.chunks[keys[0] as usize];
        let is_repeated = chunk.iteration >= clock;
        if is_repeated {
            return match self.fault {
                Fault::RetriedWriteAppliedTwice => Verdict::Admit,
                _ => Verdict::Repeated,
            };
        }
        if !self.members.is_complete() {
            return Verdict::Park(WaitReason::Joins);
        }
        let omits_own = self.fault == Fault::OwnReadOmitted;
        let readers: Vec<u32> = self.members.workers().collect();
        let mut readers = readers.into_iter().filter(|reader| !(omits_own && *reader == worker));
        let off = u64::from(self.fault == Fault::DelayOffByOne);
        let needed = clock.saturating_sub(self.delay + off);
        let is_read = match self.delay + off {
            0 => readers.all(|reader| chunk.bits.get(&reader) == Some(&true)),
            _ => readers.all(|reader| self.last_read(chunk, reader) >= needed),
        };
        if !is_read {
            return Verdict::Park(WaitReason::Read { chunk: keys[0], version: needed });
        }
        let chunk = &mut self.chunks[keys[0] as usize];
        chunk.iteration = clock;
        if self.fault != Fault::BitNotClearedAtWrite {
            chunk.bits.clear();
        }
        Verdict::Admit
    }
}

impl Controller for Protocol {
    fn members(&self) -> &Members {
        &self.members
    }

    fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    fn announce(&mut self, _access: &Access<'_>) -> Result<(), Forbidden> {
        Ok(())
    }

    fn admit(&mut self, access: &Access<'_>) -> Verdict {
        if access.writes { self.write(access) } else { self.read(access) }
    }

    fn releases(&self) -> bool {
        self.fault != Fault::NotRetriedAfterRead
    }
}

/// Passes for a correct controller; `make` makes one for a number of workers and a delay.
fn check<C: Controller + Clone + Eq + Hash + Debug>(make: impl Fn(usize, u64) -> C) {
    for (workers, iterations) in [(2, 1), (2, 2), (3, 1)] {
        for form in [Form::AnyOrder, Form::FixedOrder, Form::Prefetch] {
            for delay in 0..3 {
                let shape = Shape { form, workers, iterations };
                let expected = allowed(shape, Formula::Delay(delay));
                assert_eq!(
                    admitted(shape, make(workers, delay)),
                    expected,
                    "{shape:?}, δ = {delay}"
                );
            }
        }
    }
    for seed in 0..300 {
        arrive_at_random(seed, make(3, seed % 3), seed % 3);
    }
    retry(make(2, 0));
    own_read_counts(make(2, 0));
    a_parked_read_counts_for_nothing(make(2, 0));
    a_missing_read_counts(make(2, 1));
}

/// Every operation arrives when the program allows it or earlier, and is parked until it is
/// admitted: the order of execution keeps the constraints, and nothing is left over.
fn arrive_at_random<C: Controller>(seed: u64, controller: C, delay: u64) {
    let workers = 3;
    let mut controller = controller;
    join_all(&mut controller, workers);
    let shape = Shape { form: Form::Prefetch, workers, iterations: 4 };
    let mut program = Program::new(shape);
    let mut arrived = Program::new(shape);
    let mut parked: Parked<Op> = Parked::default();
    let mut draws = Draws(seed);
    while !program.is_done() {
        // Reads may arrive before earlier ones are executed; a write needs its reads' answers.
        let reads = arrived.next().into_iter().filter(|op| !op.writes);
        let writes = program.next().into_iter().filter(|op| op.writes);
        let is_new = |op: &Op| arrived.writes[op.worker] < op.clock;
        let next: Vec<Op> = reads.chain(writes.filter(is_new)).collect();
        assert!(!next.is_empty(), "seed {seed}: {} parked for ever", parked.len());
        let op = next[draws.below(next.len())];
        arrived.execute(&op);
        match controller.admit(&op.access()) {
            Verdict::Park(wait_reason) => {
                parked.park(controller.order(&op.access()), wait_reason, op)
            }
            Verdict::Admit => {
                executed(&mut program, &op, delay, seed);
                if controller.releases() {
                    parked.rewind();
                }
            }
            verdict => panic!("seed {seed}: {op:?}: {verdict:?}"),
        }
        while let Some((op, verdict)) = parked.next(&mut controller, Op::access) {
            assert_eq!(verdict, Verdict::Admit, "seed {seed}: {op:?}");
            executed(&mut program, &op, delay, seed);
        }
    }
}

/// Checks the constraints of an operation that is executed now.
fn executed(program: &mut Program, op: &Op, delay: u64, seed: u64) {
    let workers = program.shape.workers;
    if op.writes {
        let reads = |worker: usize| program.reads[worker * workers + op.chunk()];
        let is_read = (0..workers).all(|worker| reads(worker) + delay >= op.clock);
        assert!(is_read, "seed {seed}: {op:?} comes too early");
    } else {
        let written = program.writes[op.chunk()];
        assert!(written + delay + 1 >= op.clock, "seed {seed}: {op:?} comes too early");
        assert!(written <= op.clock - 1 + delay, "seed {seed}: {op:?} sees iteration {written}");
    }
    program.execute(op);
}

fn op(worker: usize, clock: u64, chunk: u64, writes: bool) -> Op {
    Op { worker, clock, key: [chunk], writes }
}

/// A lost answer makes a worker ask again: nothing is executed twice, and a read that was answered
/// before its chunk was written again is answered with the same version.
fn retry(controller: impl Controller) {
    let mut controller = controller;
    join_all(&mut controller, 2);
    for (worker, chunk) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!(controller.admit(&op(worker, 1, chunk, false).access()), Verdict::Admit);
    }
    assert_eq!(controller.admit(&op(1, 1, 0, false).access()), Verdict::Admit, "not yet written");
    assert_eq!(controller.admit(&op(0, 1, 0, true).access()), Verdict::Admit);
    assert_eq!(controller.admit(&op(1, 1, 0, false).access()), Verdict::Previous);
    assert_eq!(controller.admit(&op(0, 1, 0, true).access()), Verdict::Repeated);
}

fn own_read_counts(controller: impl Controller) {
    let mut controller = controller;
    join_all(&mut controller, 2);
    assert_eq!(controller.admit(&op(1, 1, 0, false).access()), Verdict::Admit);
    assert!(matches!(controller.admit(&op(0, 1, 0, true).access()), Verdict::Park(_)));
}

/// A read that waits for a later iteration does not stand for one of this iteration.
fn a_parked_read_counts_for_nothing(controller: impl Controller) {
    let mut controller = controller;
    join_all(&mut controller, 2);
    assert!(matches!(controller.admit(&op(1, 2, 0, false).access()), Verdict::Park(_)));
    assert_eq!(controller.admit(&op(0, 1, 0, false).access()), Verdict::Admit);
    assert!(matches!(controller.admit(&op(0, 1, 0, true).access()), Verdict::Park(_)));
}

/// A read that comes before an earlier one of the same worker does not stand for it.
fn a_missing_read_counts(controller: impl Controller) {
    let mut controller = controller;
    join_all(&mut controller, 2);
    for clock in [1, 2] {
        assert_eq!(controller.admit(&op(0, clock, 0, false).access()), Verdict::Admit);
    }
    assert_eq!(controller.admit(&op(1, 2, 0, false).access()), Verdict::Admit);
    assert_eq!(controller.admit(&op(0, 1, 0, true).access()), Verdict::Admit);
    assert!(matches!(controller.admit(&op(0, 2, 0, true).access()), Verdict::Park(_)));
    assert_eq!(controller.admit(&op(1, 1, 0, false).access()), Verdict::Admit);
    assert_eq!(controller.admit(&op(0, 2, 0, true).access()), Verdict::Admit);
}

struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn the_controller_passes_every_check() {
    check(|workers, delay| DataCentric::new(workers, Some(delay), 1));
}

#[test]
fn the_protocol_without_faults_passes_every_check() {
    check(|workers, delay| Protocol::new(workers, delay, Fault::None));
}

#[test]
fn every_fault_is_found() {
    for fault in FAULTS {
        let checked = || check(|workers, delay| Protocol::new(workers, delay, fault));
        assert!(catch_unwind(AssertUnwindSafe(checked)).is_err(), "{fault:?} passes every check");
    }
}
