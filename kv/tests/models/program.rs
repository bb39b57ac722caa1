//! Programs of the parameter database: in each iteration every worker reads all chunks, and then
//! writes its own. All their histories are counted, by walking a controller or by formula.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

use caravan_kv::consistency::{Access, Controller, Order, Parked, Verdict};

/// The order of a worker's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// One iteration after the other, reads in any order.
    AnyOrder,
    /// One iteration after the other, reads in the order of the chunks.
    FixedOrder,
    /// Reads of later iterations may come before writes of earlier ones.
    Prefetch,
}

/// A program's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) form: Form,
    /// Workers, and chunks.
    pub(crate) workers: usize,
    pub(crate) iterations: u64,
}

/// An operation: a read of a chunk, or the write of the worker's own chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub(crate) worker: usize,
    pub(crate) clock: u64,
    /// The chunk, which is the key, too.
    pub(crate) key: [u64; 1],
    pub(crate) writes: bool,
}

impl Op {
    pub(crate) fn access(&self) -> Access<'_> {
        Access {
            worker: self.worker as u32,
            clock: self.clock,
            reads: !self.writes,
            writes: self.writes,
            keys: &self.key,
        }
    }

    pub(crate) fn chunk(&self) -> usize {
        self.key[0] as usize
    }
}

/// How far a program has been executed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Program {
    pub(crate) shape: Shape,
    /// The last iteration in which a worker has read a chunk, at `worker * workers + chunk`.
    pub(crate) reads: Vec<u64>,
    /// By worker, the iteration of its last write.
    pub(crate) writes: Vec<u64>,
}

impl Program {
    pub(crate) fn new(shape: Shape) -> Self {
        let Shape { workers, .. } = shape;
        Program { shape, reads: vec![0; workers * workers], writes: vec![0; workers] }
    }

    /// The operations that may come next by the program alone.
    pub(crate) fn next(&self) -> Vec<Op> {
        let Shape { form, workers, iterations } = self.shape;
        let mut next = Vec::new();
        for worker in 0..workers {
            let reads = &self.reads[worker * workers..][..workers];
            let written = self.writes[worker];
            let mut is_first = true;
            for (chunk, &read) in reads.iter().enumerate() {
                let may_read = match form {
                    Form::Prefetch => read < iterations,
                    Form::AnyOrder => read == written && read < iterations,
                    Form::FixedOrder => is_first && read == written && read < iterations,
                };
                if may_read {
                    is_first = false;
                    let key = [chunk as u64];
                    next.push(Op { worker, clock: read + 1, key, writes: false });
                }
            }
            if reads.iter().all(|read| *read > written) {
                let key = [worker as u64];
                next.push(Op { worker, clock: written + 1, key, writes: true });
            }
        }
        next
    }

    pub(crate) fn execute(&mut self, op: &Op) {
        let at = op.worker * self.shape.workers + op.chunk();
        let done = if op.writes { &mut self.writes[op.worker] } else { &mut self.reads[at] };
        assert_eq!(*done + 1, op.clock, "{op:?} is executed once, and in order");
        *done = op.clock;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.writes.iter().all(|written| *written == self.shape.iterations)
    }
}

/// All workers of a program take part from iteration 1 on.
pub(crate) fn join_all(controller: &mut impl Controller, workers: usize) {
    for worker in 0..workers {
        assert_eq!(controller.join(worker as u32, 1), 1);
    }
}

/// Number of complete histories whose operations a controller admits one after the other. A worker
/// announces its next clock with its write.
pub(crate) fn admitted<C: Controller + Clone + Hash>(shape: Shape, controller: C) -> u128 {
    let mut controller = controller;
    join_all(&mut controller, shape.workers);
    Walk::default().histories(&Program::new(shape), &controller)
}

/// The numbers of histories from states that were met before. A state is known by 128 bits of its
/// hash.
#[derive(Default)]
struct Walk {
    known: HashMap<[u64; 2], u128>,
    hashes: [RandomState; 2],
}

impl Walk {
    fn histories<C: Controller + Clone + Hash>(
        &mut self,
        program: &Program,
        controller: &C,
    ) -> u128 {
        if program.is_done() {
            return 1;
        }
        let key = [0, 1].map(|at: usize| self.hashes[at].hash_one((program, controller)));
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let mut histories = 0;
        for op in program.next() {
            let mut controller = controller.clone();
            controller.announce(&op.access()).unwrap();
            match controller.admit(&op.access()) {
                Verdict::Admit => {}
                Verdict::Park(_) => continue,
                verdict => panic!("{op:?}: {verdict:?}"),
            }
            if op.writes {
                controller.advance(op.worker as u32, op.clock + 1, 0);
            }
            let mut program = program.clone();
            program.execute(&op);
            histories += self.histories(&program, &controller);
        }
        self.known.insert(key, histories);
        histories
    }
}

/// As [`admitted`], for a controller that keeps writes until an iteration is finished: each write
/// arrives with its worker's last read, and is executed when the controller releases it.
pub(crate) fn released<C: Controller + Clone + Hash>(shape: Shape, controller: C) -> u128 {
    let mut controller = controller;
    join_all(&mut controller, shape.workers);
    let state = Keeping { controller, parked: Parked::default(), program: Program::new(shape) };
    keeping_histories(&state, &mut HashMap::new())
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Keeping<C> {
    controller: C,
    parked: Parked<Op>,
    program: Program,
}

fn keeping_histories<C: Controller + Clone + Hash>(
    state: &Keeping<C>,
    known: &mut HashMap<Program, u128>,
) -> u128 {
    if state.program.is_done() {
        return 1;
    }
    if let Some(known) = known.get(&state.program) {
        return *known;
    }
    let mut histories = 0;
    for read in state.program.next().into_iter().filter(|op| !op.writes) {
        let mut state = state.clone();
        if state.controller.admit(&read.access()) != Verdict::Admit {
            continue;
        }
        state.program.execute(&read);
        let write =
            state.program.next().into_iter().find(|op| op.writes && op.worker == read.worker);
        if let Some(write) = write {
            let order = state.controller.order(&write.access());
            match state.controller.admit(&write.access()) {
                Verdict::Park(wait_reason) => state.parked.park(order, wait_reason, write),
                verdict => panic!("{write:?} arrives before others finish: {verdict:?}"),
            }
            state.controller.advance(write.worker as u32, write.clock + 1, 0);
            let mut last = Order::default();
            state.parked.rewind();
            while let Some((op, verdict)) = state.parked.next(&mut state.controller, Op::access) {
                assert_eq!(verdict, Verdict::Admit);
                let order = state.controller.order(&op.access());
                assert!(last < order, "writes are applied in order of rank");
                last = order;
                state.program.execute(&op);
            }
        }
        histories += keeping_histories(&state, known);
    }
    known.insert(state.program.clone(), histories);
    histories
}

/// A model's constraints, as formulas of the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formula {
    /// Read barrier and write barrier.
    Bsp,
    /// RC and WC with this delay.
    Delay(u64),
    /// None.
    Free,
}

impl Formula {
    /// Whether `before` has to come before `after`.
    fn orders(self, before: &Op, after: &Op) -> bool {
        let same_chunk = before.key == after.key;
        match (self, before.writes, after.writes) {
            (Formula::Free, ..) => false,
            (Formula::Bsp, true, false) => before.clock < after.clock,
            (Formula::Bsp, false, true) => before.clock <= after.clock,
            (Formula::Delay(delay), true, false) => {
                same_chunk && before.clock + 1 + delay <= after.clock
            }
            (Formula::Delay(delay), false, true) => {
                same_chunk && before.clock + delay <= after.clock
            }
            _ => false,
        }
    }
}

/// Whether the program alone orders two operations of one worker.
fn program_orders(form: Form, before: &Op, after: &Op) -> bool {
    if before.worker != after.worker {
        return false;
    }
    let is_dam = !before.writes && after.writes && before.clock <= after.clock;
    let is_sequence = match form {
        Form::Prefetch => {
            before.writes == after.writes && before.key == after.key && before.clock < after.clock
        }
        Form::AnyOrder => before.clock < after.clock,
        Form::FixedOrder => {
            (before.clock, before.writes, before.key) < (after.clock, after.writes, after.key)
        }
    };
    is_dam || is_sequence
}

/// Number of orders of all operations that a formula allows: no controller takes part.
pub(crate) fn allowed(shape: Shape, formula: Formula) -> u128 {
    let Shape { form, workers, iterations } = shape;
    let mut ops = Vec::new();
    for worker in 0..workers {
        for clock in 1..=iterations {
            let read = |key| Op { worker, clock, key: [key], writes: false };
            ops.extend((0..workers as u64).map(read));
            ops.push(Op { worker, clock, key: [worker as u64], writes: true });
        }
    }
    let before = |after: &Op| {
        let comes_before = |op: &Op| program_orders(form, op, after) || formula.orders(op, after);
        ops.iter().enumerate().filter(|(_, op)| comes_before(op)).map(|(at, _)| 1u64 << at).sum()
    };
    let needed: Vec<u64> = ops.iter().map(before).collect();
    extensions(0, &needed, &mut HashMap::new())
}

fn extensions(done: u64, needed: &[u64], known: &mut HashMap<u64, u128>) -> u128 {
    if done == (1 << needed.len()) - 1 {
        return 1;
    }
    if let Some(known) = known.get(&done) {
        return *known;
    }
    let is_next = |at: &usize| done >> at & 1 == 0 && done & needed[*at] == needed[*at];
    let next: Vec<usize> = (0..needed.len()).filter(is_next).collect();
    let histories = next.into_iter().map(|at| extensions(done | 1 << at, needed, known)).sum();
    known.insert(done, histories);
    histories
}
