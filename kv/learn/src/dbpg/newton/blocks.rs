//! The server's blocks of the working set: sums over workers, and coordinate descent on a block.
//!
//! Path: driver: step > **blocks** < worker: task. Tasks are numbered by the driver and follow each
//! other; a request's clock is the number of its task. A pull is parked until its task is complete:
//! a direction when the driver has pushed it, a sum or a block's step when all workers have pushed
//! their parts.

mod state;

use caravan_kv::{Refusal, Refused};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use caravan_kv::consistency::Admission;
use caravan_kv::server::{Extract, Part, Pulled, Request};
use caravan_van::{Account, Pool, Value};
use serde::{Deserialize, Serialize};

use super::{BLOCK_COLUMNS_MAX, Kind, Options, change, least_subgradient, soft};
use crate::copies::{image, sums::Summed};
use crate::dbpg::scaling::Scaling;
use crate::numeric::Scale;

/// Name of this shard's update rule.
pub(crate) const HANDLE: &str = "dbpg-blocks";

/// Most passes of coordinate descent over a block in one step, and the share of the first one's
/// change at which they end.
const PASSES_MAX: usize = 5;
const PASSES_END: f64 = 0.01;

/// The clock of blocks that met a number that is not finite: every pull of theirs is answered, with
/// that, and nobody waits for those who have met it.
const BROKEN: u64 = u64::MAX;
const NOT_FINITE: &str = "a gradient is not a finite number";

/// A command of the driver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// An outer step begins: forgets all blocks.
    Begin {
        lambda: f64,
        l2: f64,
        free: Option<u64>,
        /// Of parts of gradients.
        scale: Scale,
        units: Units,
    },
    /// Answers with a list of [`Stepped`] since the last one, as JSON.
    Stepped,
}

/// What multiples the Hessians are sent in, so that sums fit 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Units {
    /// All columns are of ones: the same for all, as no entry is above the largest on the diagonal.
    Same(f64),
    /// Each entry in relation to the square root of its two on the diagonal, as powers of 2.
    Own,
}

/// Most of an entry's integer.
const ENTRY_MAX: f64 = 1_073_741_824.0; // 2^30

impl Units {
    /// For Hessians with diagonals of up to `largest`.
    pub(super) fn of_ones(largest: f64) -> Units {
        Units::Same(2_f64.powi((ENTRY_MAX / largest.max(1e-300)).log2().floor().min(900.0) as i32))
    }

    /// A column's factor, for its number on the diagonal: an entry's factor is that of its two
    /// columns.
    pub(super) fn factor(self, curvature: f64) -> f64 {
        match self {
            Units::Same(_) => 1.0,
            Units::Own => 2_f64.powi(-(curvature.log2().ceil() as i32).div_euclid(2) - 1),
        }
    }

    /// The factor of all entries.
    pub(super) fn of_all(self) -> f64 {
        match self {
            Units::Same(units) => units,
            Units::Own => ENTRY_MAX,
        }
    }
}

/// A block's step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Stepped {
    pub(super) block: usize,
    /// Σ s² / h before the step, for the subgradient s of least norm.
    pub(super) distance: f64,
    /// How much q fell.
    pub(super) gain: f64,
}

/// A block of columns.
#[derive(Debug, Default)]
struct Block {
    /// As the driver pushed them: key, weight and curvature of each column.
    plan: Vec<i64>,
    penalties: Vec<[f64; 2]>,
    iterate: Vec<f64>,
    curvatures: Vec<f64>,
    /// The Hessian, all rows of a symmetric matrix, once all workers' parts are in it.
    gram: Vec<f32>,
    /// The sum of their parts until then, the lower triangle row by row, and their number.
    entries: Vec<i32>,
    parts: usize,
    sum: Sum,
    /// A direction, or a new v, as bits.
    direction: Vec<i64>,
}

/// A sum of parts.
#[derive(Debug, Default)]
struct Sum {
    clock: u64,
    pushed: usize,
    numbers: Vec<i64>,
}

impl Sum {
    /// Adds the parts of this many workers for task `clock`, or their sum; returns how many are in.
    fn add(&mut self, clock: u64, workers: usize, part: &[i64]) -> Result<usize, Refused> {
        if self.clock != clock {
            *self = Sum { clock, pushed: 0, numbers: vec![0; part.len()] };
        }
        if self.numbers.len() != part.len() {
            return Err(Refusal::Shape.because(format!(
                "workers push {} and {} numbers of a block",
                self.numbers.len(),
                part.len()
            )));
        }
        self.numbers.iter_mut().zip(part).for_each(|(sum, part)| *sum = sum.wrapping_add(*part));
        self.pushed = self.pushed.saturating_add(workers);
        Ok(self.pushed)
    }
}

/// A server thread's blocks.
pub(crate) struct Blocks {
    workers: usize,
    scaling: Scaling,
    lambda: f64,
    l2: f64,
    free: Option<u64>,
    scale: Scale,
    units: Units,
    blocks: BTreeMap<usize, Block>,
    /// Tasks up to this one are complete.
    clock: u64,
    /// Pushes of the task of sums that is not complete.
    sums: (u64, usize),
    stepped: Vec<Stepped>,
    busy: Duration,
    lengths: Vec<u32>,
    answer: Vec<i64>,
    memory: Account,
}

impl Blocks {
    pub(crate) fn new(options: &serde_json::Value, memory: &Pool) -> Result<Self, Refused> {
        let Options { workers, scaling } = Options::of(options)?;
        Ok(Blocks {
            workers,
            scaling,
            lambda: 0.0,
            l2: 0.0,
            free: None,
            scale: Scale::new(1, 1.0),
            units: Units::Own,
            blocks: BTreeMap::new(),
            clock: 0,
            sums: (0, 0),
            stepped: Vec::new(),
            busy: Duration::ZERO,
            lengths: Vec::new(),
            answer: Vec::new(),
            memory: Account::new(memory, "blocks of a working set"),
        })
    }

    fn block(&mut self, slot: usize) -> Result<&mut Block, Refused> {
        self.blocks
            .get_mut(&slot)
            .ok_or_else(|| Refusal::Key.because(format!("there is no block {slot} here")))
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Refused> {
        self.memory.add(bytes).map_err(Refused::from)
    }

    /// Takes the columns of a block.
    fn plan(&mut self, slot: usize, plan: &[i64]) -> Result<(), Refused> {
        let (columns, rest) = plan.as_chunks::<3>();
        let n = columns.len();
        if !rest.is_empty() || !(1..=BLOCK_COLUMNS_MAX).contains(&n) {
            return Err(Refusal::Shape.because(format!(
                "a block of {} numbers is not one of 1 to {BLOCK_COLUMNS_MAX} columns",
                plan.len()
            )));
        }
        self.charge(n * n * size_of::<f32>() + n * 128 + size_of::<Block>())?;
        let number = |bits: i64| f64::from_bits(bits as u64);
        let penalties = |&[key, ..]: &[i64; 3]| match self.free {
            Some(free) if free == key as u64 => [0.0; 2],
            _ => self.scaling.penalties(key as u64, self.lambda, self.l2).into(),
        };
        let block = Block {
            penalties: columns.iter().map(penalties).collect(),
            iterate: columns.iter().map(|column| number(column[1])).collect(),
            curvatures: columns.iter().map(|column| number(column[2])).collect(),
            plan: plan.to_vec(),
            entries: vec![0; 2 * (n * (n + 1) / 2).div_ceil(2)],
            ..Block::default()
        };
        self.blocks.insert(slot, block);
        Ok(())
    }

    fn begin(&mut self, lambda: f64, l2: f64, free: Option<u64>, scale: Scale, units: Units) {
        (self.lambda, self.l2, self.free, self.scale, self.units) =
            (lambda, l2, free, scale, units);
        self.blocks.clear();
        self.memory.release(usize::MAX);
        self.busy = Duration::ZERO;
    }

    /// Executes the pushes of `parts` workers to a row, or their sum.
    fn put(
        &mut self,
        (clock, parts): (u64, usize),
        kind: Kind,
        slot: usize,
        values: &[i64],
    ) -> Result<(), Refused> {
        let workers = self.workers;
        let units = self.units;
        let scale = self.scale;
        match kind {
            Kind::Plan => self.plan(slot, values),
            Kind::Gram => self.block(slot)?.add_gram((values, parts), units, workers),
            Kind::Sum => self.block(slot)?.sum.add(clock, parts, values).map(drop),
            Kind::Direction => {
                let block = self.block(slot)?;
                block.direction = values.to_vec();
                self.clock = self.clock.max(clock);
                Ok(())
            }
            Kind::Iterate => {
                let block = self.block(slot)?;
                block.hold(values.len())?;
                block.iterate = values.iter().map(|bits| f64::from_bits(*bits as u64)).collect();
                Ok(())
            }
            Kind::Step => {
                let block = self.block(slot)?;
                block.hold(values.len())?;
                if block.sum.add(clock, parts, values)? < workers {
                    return Ok(());
                }
                let Some((distance, gain)) = block.step(scale) else {
                    self.clock = BROKEN;
                    return Err(Refusal::Shape.because(NOT_FINITE));
                };
                self.stepped.push(Stepped { block: slot, distance, gain });
                self.clock = self.clock.max(clock);
                Ok(())
            }
        }
    }

    /// Executes the pushes of `parts` workers, or their sum.
    fn put_all(
        &mut self,
        (clock, parts): (u64, usize),
        keys: &[u64],
        lengths: &[u32],
        mut values: &[i64],
    ) -> Result<(), Refused> {
        let began = Instant::now();
        if lengths.len() != keys.len() {
            return Err(Refusal::Shape.because("rows of blocks have their own lengths"));
        }
        let mut sums = false;
        for (&key, &length) in keys.iter().zip(lengths) {
            let (own, rest) = values
                .split_at_checked(length as usize)
                .ok_or_else(|| Refusal::Internal.because("a row is cut off"))?;
            values = rest;
            let (kind, slot) = Kind::of(key)
                .ok_or_else(|| Refusal::Key.because(format!("there is no row {key}")))?;
            sums |= kind == Kind::Sum;
            self.put((clock, parts), kind, slot, own)?;
        }
        if sums {
            let (of, pushed) = &mut self.sums;
            if *of != clock {
                (*of, *pushed) = (clock, 0);
            }
            *pushed = pushed.saturating_add(parts);
            if *pushed == self.workers {
                self.clock = self.clock.max(clock);
            }
        }
        self.busy += began.elapsed();
        Ok(())
    }
}

/// The two numbers of 32 bits in an integer.
fn halves(both: i64) -> [i32; 2] {
    [both as i32, (both >> 32) as i32]
}

/// Two numbers of 32 bits, and those in an integer added to them.
fn add_halves([low, high]: [i32; 2], both: i64) -> [i32; 2] {
    let more = halves(both);
    [low.wrapping_add(more[0]), high.wrapping_add(more[1])]
}

/// An integer of two numbers of 32 bits.
pub(super) fn both([low, high]: [i32; 2]) -> i64 {
    i64::from(low as u32) | i64::from(high) << 32
}

impl Block {
    /// Number of parts that have come for a row of task `clock`, if that is a sum.
    fn parts(&self, kind: Kind, clock: u64) -> Option<usize> {
        match kind {
            Kind::Gram => Some(self.parts),
            Kind::Step | Kind::Sum if self.sum.clock == clock => Some(self.sum.pushed),
            Kind::Step | Kind::Sum => Some(0),
            Kind::Plan | Kind::Direction | Kind::Iterate => None,
        }
    }

    fn hold(&self, columns: usize) -> Result<(), Refused> {
        match self.iterate.len() {
            own if own == columns => Ok(()),
            own => Err(Refusal::Shape.because(format!("a block has {own} columns, not {columns}"))),
        }
    }

    /// Adds workers' parts of the Hessian, or the sum of this many: the lower triangle row by row,
    /// two numbers of 32 bits in each integer. The last part makes it a matrix.
    fn add_gram(
        &mut self,
        (part, parts): (&[i64], usize),
        units: Units,
        workers: usize,
    ) -> Result<(), Refused> {
        let n = self.iterate.len();
        if part.len() != self.entries.len() / 2 {
            return Err(Refusal::Shape
                .because(format!("{} integers are no triangle of {n} columns", part.len())));
        }
        for (sums, part) in self.entries.as_chunks_mut::<2>().0.iter_mut().zip(part) {
            *sums = add_halves(*sums, *part);
        }
        self.parts = self.parts.saturating_add(parts);
        if self.parts < workers {
            return Ok(());
        }
        let factors: Vec<f64> = self.curvatures.iter().map(|h| 1.0 / units.factor(*h)).collect();
        let all = 1.0 / units.of_all();
        let mut entries = std::mem::take(&mut self.entries).into_iter();
        self.gram = vec![0.0; n * n];
        for row in 0..n {
            for (column, sum) in (0..=row).zip(&mut entries) {
                let entry = (f64::from(sum) * all * factors[row] * factors[column]) as f32;
                self.gram[row * n + column] = entry;
                self.gram[column * n + row] = entry;
            }
            self.gram[row * n + row] = self.curvatures[row] as f32;
        }
        Ok(())
    }

    /// Minimises q over the block, given the sum of the parts of its gradient: leaves the new v in
    /// `direction`. Returns Σ s² / h before it and how much q fell; `None` for numbers that are not
    /// finite.
    fn step(&mut self, scale: Scale) -> Option<(f64, f64)> {
        let gradients = self.sum.numbers.iter().zip(&self.iterate).zip(&self.penalties);
        let gradients: Vec<f64> =
            gradients.map(|((sum, at), [_, l2])| scale.from(*sum) + l2 * at).collect();
        let before = self.iterate.clone();
        let descent = Descent { block: self, gradients: gradients.clone() };
        let (distance, after) = pulp::Arch::new().dispatch(descent);
        let mut gain = 0.0;
        for k in 0..before.len() {
            let [lambda, _] = self.penalties[k];
            let gradient = 0.5 * (gradients[k] + after[k]);
            gain -=
                change(before[k], self.iterate[k], self.iterate[k] - before[k], gradient, lambda);
        }
        self.direction.clear();
        self.direction.extend(self.iterate.iter().map(|to| to.to_bits() as i64));
        (distance.is_finite() && gain.is_finite()).then_some((distance, gain))
    }
}

/// Coordinate descent on a block, in the form that `pulp` compiles for each vector width.
struct Descent<'a> {
    block: &'a mut Block,
    gradients: Vec<f64>,
}

impl pulp::NullaryFnOnce for Descent<'_> {
    /// Σ s² / h before, and the gradients after.
    type Output = (f64, Vec<f64>);

    #[inline(always)]
    fn call(self) -> Self::Output {
        let Descent { block, mut gradients } = self;
        let n = block.iterate.len();
        let curvature = |k: usize| block.curvatures[k] + block.penalties[k][1];
        let least =
            |k: usize| least_subgradient(block.iterate[k], gradients[k], block.penalties[k][0]);
        let distance: f64 = (0..n).map(|k| least(k) * least(k) / curvature(k)).sum();
        let mut first = 0.0;
        for pass in 0..PASSES_MAX {
            let mut moved = 0.0;
            for k in 0..n {
                let [lambda, l2] = block.penalties[k];
                let curvature = block.curvatures[k] + l2;
                let at = block.iterate[k];
                let to = soft(at, gradients[k], curvature, lambda);
                let step = to - at;
                if step == 0.0 {
                    continue;
                }
                moved += curvature * step * step;
                block.iterate[k] = to;
                let row = &block.gram[k * n..(k + 1) * n];
                for (gradient, entry) in gradients.iter_mut().zip(row) {
                    *gradient += step * f64::from(*entry);
                }
                gradients[k] += step * l2;
            }
            if pass == 0 {
                first = moved;
            }
            if moved <= PASSES_END * first {
                break;
            }
        }
        (distance, gradients)
    }
}

impl caravan_kv::Shard for Blocks {
    fn admit(&self, request: &Request<'_>) -> Admission {
        if request.pulls && request.clock > self.clock {
            Admission::AfterClock(request.clock)
        } else {
            Admission::Now
        }
    }

    fn clock(&self) -> u64 {
        self.clock
    }

    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        let values = i64::view(request.values)
            .ok_or_else(|| Refusal::Shape.because("blocks are of integers"))?;
        self.put_all((request.clock, 1), request.keys, request.lengths, values)
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        if self.clock == BROKEN {
            return Err(Refusal::Shape.because(NOT_FINITE));
        }
        self.lengths.clear();
        self.answer.clear();
        for &key in request.keys {
            let (kind, slot) = Kind::of(key)
                .ok_or_else(|| Refusal::Key.because(format!("there is no row {key}")))?;
            let before = self.answer.len();
            let block = self
                .blocks
                .get(&slot)
                .ok_or_else(|| Refusal::Key.because(format!("there is no block {slot} here")))?;
            match kind {
                Kind::Plan => self.answer.extend_from_slice(&block.plan),
                Kind::Step | Kind::Direction => self.answer.extend_from_slice(&block.direction),
                Kind::Sum => self.answer.extend_from_slice(&block.sum.numbers),
                Kind::Iterate => {
                    self.answer.extend(block.iterate.iter().map(|v| v.to_bits() as i64))
                }
                Kind::Gram => return Err(Refusal::Unsupported.because("Hessians are not pulled")),
            }
            self.lengths.push((self.answer.len() - before) as u32);
        }
        Ok(Pulled::Varying(self.answer.len() * i64::BYTES))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        into.copy_from_slice(i64::bytes(&self.answer));
    }

    fn lengths(&self) -> &[u32] {
        &self.lengths
    }

    image::methods!(state::write, state::read);

    /// Workers push the same rows of one kind: the Hessians of blocks one by one, without a clock.
    fn part(&self, request: &Request<'_>) -> Option<Part> {
        let key = *request.keys.first()?;
        let (kind, slot) = Kind::of(key)?;
        let has = self.blocks.get(&slot)?.parts(kind, request.clock)?;
        let (of, left) = (self.workers, self.workers.checked_sub(has)?);
        Some(Part { sum: if kind == Kind::Gram { key } else { request.clock }, of, left })
    }

    fn add_up(&self, parts: &[Request<'_>], extract: &mut Extract) -> bool {
        let Some(first) = parts.first() else { return false };
        let is_gram = first.keys.first().and_then(|key| Kind::of(*key));
        let is_gram = is_gram.is_some_and(|(kind, _)| kind == Kind::Gram);
        let mut sums = vec![0; first.values.len() / i64::BYTES];
        for part in parts {
            let values = i64::view(part.values).unwrap_or_default();
            if (part.keys, part.lengths, values.len()) != (first.keys, first.lengths, sums.len()) {
                return false;
            }
            for (sum, part) in sums.iter_mut().zip(values) {
                *sum = if is_gram {
                    both(add_halves(halves(*sum), *part))
                } else {
                    sum.wrapping_add(*part)
                };
            }
        }
        Summed::write(parts, &sums, extract);
        (extract.keys, extract.lengths) = (first.keys.to_vec(), first.lengths.to_vec());
        true
    }

    fn take(
        &mut self,
        keys: &[u64],
        lengths: &[u32],
        values: &[u8],
        _memory: &Pool,
    ) -> Result<(), Refused> {
        let Summed { clock, parts, values } = Summed::read(values)?;
        self.put_all((clock, parts), keys, lengths, values)
    }

    fn command(&mut self, _sender: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        match serde_json::from_slice(body)? {
            Command::Begin { lambda, l2, free, scale, units } => {
                self.begin(lambda, l2, free, scale, units);
                Ok(Vec::new())
            }
            Command::Stepped => {
                serde_json::to_vec(&std::mem::take(&mut self.stepped)).map_err(Refused::from)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use caravan_kv::Shard as _;
    use caravan_van::KeyRange;

    use super::*;
    use crate::copies::image::testing;
    use crate::copies::sums;
    use crate::dbpg::gradient::tests::noise;

    const N: usize = 9;

    /// AᵀA of more rows than columns.
    fn gram() -> Vec<f64> {
        let a = noise(20 * N, 3);
        let product = |k: usize, l: usize| (0..20).map(|row| a[row * N + k] * a[row * N + l]).sum();
        (0..N * N).map(|at| product(at / N, at % N)).collect()
    }

    fn bits(numbers: &[f64]) -> Vec<i64> {
        numbers.iter().map(|number| number.to_bits() as i64).collect()
    }

    /// A block of two workers' parts, whose Hessian is `gram`.
    fn blocks(gram: &[f64], units: Units, iterate: &[f64]) -> Blocks {
        let options = serde_json::json!({ "workers": 2 });
        let mut blocks = Blocks::new(&options, &Pool::new(1 << 22)).unwrap();
        blocks.begin(0.5, 0.25, Some(4), Scale::new(100, 10.0), units);
        let plan = (0..N).flat_map(|k| {
            let number = |x: f64| x.to_bits() as i64;
            [k as i64, number(iterate[k]), number(gram[k * N + k])]
        });
        let plan: Vec<i64> = plan.collect();
        blocks.put((0, 1), Kind::Plan, 0, &plan).unwrap();
        let factor = |k: usize| units.factor(gram[k * N + k]);
        let entry = |k: usize, l: usize| gram[k * N + l] * units.of_all() * factor(k) * factor(l);
        let triangle = (0..N).flat_map(|k| (0..=k).map(move |l| (k, l)));
        let mut parts: Vec<i32> = triangle.map(|(k, l)| (entry(k, l) / 2.0) as i32).collect();
        parts.push(0);
        let pairs = parts.as_chunks::<2>().0.iter();
        let pairs: Vec<i64> = pairs.map(|pair| both(*pair)).collect();
        blocks.put((0, 1), Kind::Gram, 0, &pairs).unwrap();
        blocks.put((0, 1), Kind::Gram, 0, &pairs).unwrap();
        blocks
    }

    /// Of the rows of each kind that is a sum: those of two workers, and their sum in their place.
    #[test]
    fn a_sum_of_pushes_does_what_they_do() {
        let (gram, options) = (gram(), serde_json::json!({ "workers": 2 }));
        let planned = || {
            let mut blocks = Blocks::new(&options, &Pool::new(1 << 22)).unwrap();
            blocks.begin(0.5, 0.25, Some(4), Scale::new(100, 10.0), Units::Own);
            let number = |x: f64| x.to_bits() as i64;
            for slot in 0..2 {
                let column = |k: usize| [k as i64, number(0.5), number(gram[k * N + k])];
                let plan: Vec<i64> = (0..N).flat_map(column).collect();
                blocks.put((0, 1), Kind::Plan, slot, &plan).unwrap();
            }
            blocks
        };
        let go_on = |blocks: &mut Blocks, (kind, slots): (Kind, usize), clock: u64| {
            let keys: Vec<u64> = (0..slots).map(|slot| kind.key(slot, 1)).collect();
            let n = if kind == Kind::Gram { N * (N + 1) / 4 + 1 } else { N };
            let pushed = |sender: u32| -> Vec<i64> {
                let numbers = noise(slots * n, 7 + u64::from(sender) + clock);
                numbers.iter().map(|number| (number * 1e18) as i64).collect()
            };
            let values = [pushed(1), pushed(2)];
            let lengths = vec![n as u32; slots];
            let part = |sender: u32| Request {
                sender,
                command: 0,
                clock,
                range: KeyRange::ALL,
                keys: &keys,
                lengths: &lengths,
                values: i64::bytes(&values[sender as usize - 1]),
                pushes: true,
                pulls: false,
                rows: None,
            };
            let before = testing::image(blocks);
            let new = || {
                let mut copy = Blocks::new(&options, &Pool::new(1 << 22)).unwrap();
                copy.restore(&before, &Pool::new(1 << 22)).unwrap();
                copy
            };
            let [first, copy] = sums::testing::add_up(new(), new, &[part(2), part(1)]);
            let images = [first, copy].map(|mut blocks| {
                blocks.busy = Duration::ZERO;
                testing::image(&blocks)
            });
            assert_eq!(images[0], images[1], "{kind:?}");
            assert_ne!(images[0], before);
            blocks.restore(&images[0], &Pool::new(1 << 22)).unwrap();
        };
        let mut blocks = planned();
        go_on(&mut blocks, (Kind::Gram, 1), 0);
        blocks.put((0, 1), Kind::Gram, 1, &[1; N * (N + 1) / 4 + 1]).unwrap();
        assert_eq!(blocks.blocks[&1].parts(Kind::Gram, 0), Some(1));
        go_on(&mut blocks, (Kind::Step, 1), 1);
        go_on(&mut blocks, (Kind::Sum, 2), 2);
        assert_eq!(blocks.clock, 2);
        let part = |kind: Kind| blocks.blocks[&0].parts(kind, 3);
        assert_eq!([Kind::Plan, Kind::Direction, Kind::Iterate].map(part), [None; 3]);
    }

    /// Steps end where no coordinate can gain, for both units, and say how much they gain.
    #[test]
    fn steps_minimise_the_block() {
        let gram = gram();
        let most = (0..N).map(|k| gram[k * N + k]).fold(0.0, f64::max);
        let start: Vec<f64> = noise(N, 8);
        let first: Vec<f64> = noise(N, 9).iter().map(|x| 4.0 * x).collect();
        let penalty = |k: usize| if k == 4 { [0.0; 2] } else { [0.5, 0.25] };
        let q = |v: &[f64]| -> f64 {
            let step: Vec<f64> = v.iter().zip(&start).map(|(v, from)| v - from).collect();
            let image = |k: usize| (0..N).map(|l| gram[k * N + l] * step[l]).sum::<f64>();
            (0..N)
                .map(|k| {
                    let [lambda, l2] = penalty(k);
                    step[k] * (first[k] + 0.5 * image(k))
                        + lambda * v[k].abs()
                        + 0.5 * l2 * v[k] * v[k]
                })
                .sum()
        };
        for units in [Units::of_ones(most), Units::Own] {
            let mut blocks = blocks(&gram, units, &start);
            let scale = blocks.scale;
            let mut gained = 0.0;
            for clock in 1..100 {
                let iterate = blocks.blocks[&0].iterate.clone();
                let moved: Vec<f64> =
                    iterate.iter().zip(&start).map(|(v, from)| v - from).collect();
                let gradient =
                    |k: usize| first[k] + (0..N).map(|l| gram[k * N + l] * moved[l]).sum::<f64>();
                let parts: Vec<i64> = (0..N).map(|k| scale.to(gradient(k) / 2.0)).collect();
                blocks.put((clock, 1), Kind::Step, 0, &parts).unwrap();
                assert_eq!(blocks.clock, clock - 1, "one worker has not pushed");
                blocks.put((clock, 1), Kind::Step, 0, &parts).unwrap();
                assert_eq!(blocks.clock, clock);
                gained += blocks.stepped.last().unwrap().gain;
            }
            let at = &blocks.blocks[&0];
            assert!(blocks.stepped.last().unwrap().distance < 1e-20, "{:?}", blocks.stepped);
            assert!((q(&start) - q(&at.iterate) - gained).abs() < 1e-4, "{gained}");
            for (k, offset) in (0..N).flat_map(|k| [(k, 1e-3), (k, -1e-3)]) {
                let mut other = at.iterate.clone();
                other[k] += offset;
                assert!(q(&other) > q(&at.iterate) - 1e-12, "{k}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut blocks = blocks(&gram(), Units::Own, &[0.0; N]);
        for (kind, slot, numbers, why) in [
            (Kind::Step, 1, 9, "no block 1"),
            (Kind::Step, 0, 8, "9 columns, not 8"),
            (Kind::Iterate, 0, 1, "9 columns, not 1"),
            (Kind::Plan, 1, 4, "4 numbers"),
            (Kind::Plan, 1, 3 * BLOCK_COLUMNS_MAX + 3, "1024 columns"),
            (Kind::Gram, 0, 1, "no triangle of 9"),
        ] {
            let error = blocks.put((9, 1), kind, slot, &vec![0; numbers]).unwrap_err();
            assert!(error.reason.contains(why), "{error}");
        }
        let nan = blocks.put((9, 1), Kind::Iterate, 0, &bits(&[f64::NAN; N]));
        assert_eq!(nan, Ok(()), "it is refused with the next step");
        blocks.put((9, 1), Kind::Step, 0, &[0; N]).unwrap();
        let error = blocks.put((9, 1), Kind::Step, 0, &[0; N]).unwrap_err();
        assert!(error.reason.contains("not a finite number"), "{error}");
        assert_eq!(blocks.clock, BROKEN, "nobody waits for the next step");
        let pulled = Request {
            sender: 1,
            command: 0,
            clock: 10,
            range: KeyRange::ALL,
            keys: &[Kind::Direction.key(0, 1)],
            lengths: &[],
            values: &[],
            pushes: false,
            pulls: true,
            rows: None,
        };
        assert_eq!(blocks.admit(&pulled), Admission::Now);
        assert!(blocks.pull(&pulled).is_err_and(|why| why.reason == NOT_FINITE));
        let mut blocks = self::blocks(&gram(), Units::Own, &[0.0; N]);
        blocks.put((10, 1), Kind::Sum, 0, &[1, 2]).unwrap();
        assert!(
            blocks.put((10, 1), Kind::Sum, 0, &[1]).unwrap_err().reason.contains("2 and 1 numbers")
        );
        let large = vec![0; 3 * BLOCK_COLUMNS_MAX];
        let error =
            (1..9).find_map(|slot| blocks.put((9, 1), Kind::Plan, slot, &large).err()).unwrap();
        assert!(error.reason.contains("blocks of a working set would take"), "{error}");
        assert!(Blocks::new(&serde_json::json!({ "workers": 0 }), &Pool::new(9)).is_err());
    }
}
