//! The server's side of DBPG as a table: pushes are summed until every worker's has arrived, then
//! the block steps.
//!
//! Rows have their own lengths: a push carries (gradient, curvature) of the columns a worker
//! computed; a pull answers one weight for an active coordinate and nothing for a filtered one. A
//! request's clock is the number of its task. A pull of a block that has not stepped yet is parked
//! until it has.
//!
//! Requests name active columns only, so filtered ones cost nothing. Both sides know which those
//! are: a pass begins when every worker has applied all pulls of the previous one, and a column's
//! filter bit changes only in the step of its own block. With an exact delay, pulls stay
//! outstanding across passes; then requests name all columns, and a push carries nothing for a
//! filtered one. With key caching requests also name all columns, so that their lists stay the
//! same.
//!
//! [`super::filters`] describes what lossy passes omit.
//!
//! Path: codec > thread > **shard** > answer. [`super::coordinates`] does the computation.

mod state;

use caravan_kv::{Refusal, Refused};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use caravan_kv::consistency::Admission;
use caravan_kv::server::{Extract, Part, Pulled, Request};
use caravan_van::{Account, Pool, Value};

use super::blocks::KeyBlock;
use super::coordinates::{BlockSum, Coordinates};
use super::filters::Lossy;
use super::gradient::TrustRegion;
use super::orders::{Command, Options, Report};
use super::proximal::{self, Proximal};
use crate::copies::{
    image,
    sums::{Summed, union},
};
use crate::data::places;

/// Name of this shard's update rule.
pub const HANDLE: &str = "dbpg";

/// Bytes of a block in all lists of blocks.
const BLOCK_BYTES: usize = 64;

/// Bytes of a worker's key until all workers have announced theirs, while keys become positions,
/// and from then on.
const HELD_BYTES: [usize; 2] = [2 * size_of::<u64>() + size_of::<u32>(), size_of::<u32>()];

/// Bytes of a task without its sums, counted twice while it is created, and of each of its workers.
const TASK_BYTES: [usize; 2] = [2 * size_of::<Task>(), 8];

/// Most bytes that a key of a push takes in all lists made of it.
const PUSHED_BYTES: usize = 64;

/// Most bytes of a parsed command, per byte of its text.
const COMMAND_BYTES: usize = 24;

/// Why a pass cannot go on.
const NOT_FINITE: &str = "a gradient is not a finite number: values or row weights are too large for f64; scale them down";

/// Most bytes of a weight in an answer, including the growth of its text.
const ANSWER_BYTES: usize = 128;

/// A server thread's coordinates.
pub struct Shard {
    state: Coordinates,
    workers: usize,
    blocks: Vec<KeyBlock>,
    /// Positions of each block's coordinates.
    ranges: Vec<Range<usize>>,
    rounds: bool,
    /// Workers that have announced their keys, with those keys or their positions.
    announced: Vec<(u32, Held)>,
    threshold: f64,
    lossy: Lossy,
    /// Sums of the changes of each coordinate, while workers send changes.
    kept: Vec<[f64; 2]>,
    /// Tasks up to this one have stepped.
    clock: u64,
    /// The tasks after it, in order.
    tasks: VecDeque<Task>,
    /// Gain of each block in the pass: `[blocks]`.
    gains: Vec<f64>,
    /// Time spent on the pushes and pulls of the pass.
    busy: Duration,
    lengths: Vec<u32>,
    answer: Vec<f64>,
    /// Accounts for all of it.
    memory: Account,
    /// Most keys of any request so far.
    keys_max: usize,
}

/// A worker's keys until all workers have announced theirs, then positions.
enum Held {
    Keys(Vec<u64>),
    Positions(Vec<u32>),
}

impl Held {
    /// Whether it has any of the coordinates `range` that count.
    fn any(&self, range: &Range<usize>, counts: impl Fn(usize) -> bool) -> bool {
        let Held::Positions(held) = self else { return false };
        let from = held.partition_point(|&k| (k as usize) < range.start);
        let inside = held[from..].iter().map(|&k| k as usize).take_while(|&k| k < range.end);
        inside.into_iter().any(counts)
    }
}

#[derive(Debug)]
struct Task {
    block: usize,
    /// Number of workers that push.
    workers: usize,
    /// Those whose pushes have not come, ascending.
    missing: Vec<u32>,
    /// Pushes that came before that of a lower worker. They are added in this order, because sums
    /// of floating-point numbers depend on it.
    early: BTreeMap<u32, Push>,
    sum: Option<BlockSum>,
}

/// A worker's part of a block's sums: `[n]` each.
#[derive(Debug)]
struct Push {
    positions: Vec<usize>,
    gradient: Vec<f64>,
    curvature: Vec<f64>,
    active: Vec<bool>,
}

impl Push {
    /// Reads a push to coordinates with these keys, whose numbers are rounded or not.
    fn of(
        all: &[u64],
        (keys, lengths, values): (&[u64], &[u32], &[f64]),
        rounds: bool,
        lossy: Lossy,
    ) -> Result<Push, Refused> {
        let sane = lengths.iter().all(|&length| length == 0 || length == 2);
        let pairs = lengths.iter().filter(|&&length| length == 2).count();
        if !sane || lengths.len() != keys.len() || values.len() != 2 * pairs {
            return Err(Refusal::Shape.because(format!(
                "a push of {} keys came with {} values in {pairs} pairs",
                keys.len(),
                values.len()
            )));
        }
        let positions = places(all, keys).ok_or_else(|| {
            Refusal::Order.because("it pushes a key that it never announced, or of another block")
        })?;
        let mut next = values.as_chunks::<2>().0.iter();
        let [mut gradient, mut curvature] = [Vec::new(), Vec::new()];
        let mut active = Vec::new();
        // The values may be lent: a value is never read again after its check.
        for &length in lengths {
            let pair = if length == 0 { None } else { next.next().copied() };
            let [g, u] = pair.unwrap_or_default();
            if !g.is_finite() || !u.is_finite() {
                return Err(Refusal::Shape.because(NOT_FINITE));
            }
            gradient.push(g);
            let is_rounded = rounds && pair.is_some();
            curvature.push(if is_rounded { proximal::from_logarithm(u) } else { u });
            active.push(pair.is_some() || lossy.sends_changes());
        }
        Ok(Push { positions, gradient, curvature, active })
    }

    fn add_to(&self, sum: &mut BlockSum) {
        sum.add(&self.positions, &self.gradient, &self.curvature, &self.active);
    }

    /// Bytes of a column.
    const BYTES: usize = 2 * size_of::<f64>() + size_of::<usize>() + size_of::<bool>();

    fn bytes(&self) -> usize {
        Push::BYTES * self.positions.len()
    }
}

impl Task {
    /// Adds the pushes whose turn has come to the sum of a block of `len` coordinates; returns the
    /// bytes that they took.
    fn absorb(&mut self, len: usize) -> usize {
        let Task { missing, early, sum, .. } = self;
        let sum = sum.get_or_insert_with(|| BlockSum::new(len));
        let mut bytes = 0;
        while let Some(first) = early.first_entry()
            && missing.first().is_none_or(|missing| first.key() < missing)
        {
            let push = first.remove();
            push.add_to(sum);
            bytes += push.bytes();
        }
        bytes
    }
}

impl Shard {
    pub(crate) fn new(options: &Options, memory: &Pool) -> Result<Self, Refused> {
        let Options { lambda, l2, free, learning_rate, delta_init, delta_max, workers, .. } =
            *options;
        let sane = lambda >= 0.0
            && l2 >= 0.0
            && learning_rate > 0.0
            && delta_init > 0.0
            && delta_max > 0.0
            && workers > 0;
        if !sane {
            return Err(
                Refusal::Shape.because(format!("the settings of DBPG are invalid: {options:?}"))
            );
        }
        let mut memory = Account::new(memory, "the coordinates of DBPG");
        charge(memory.add(options.blocks.len() * BLOCK_BYTES))?;
        let trust = TrustRegion { init: delta_init, max: delta_max };
        let blocks: Vec<_> =
            options.blocks.iter().map(|&(first, last)| KeyBlock { first, last }).collect();
        Ok(Shard {
            state: Coordinates::new(Proximal { lambda, l2, free, learning_rate, trust })
                .narrow(options.narrow)
                .scaled(options.scaling.clone()),
            rounds: options.rounds,
            workers,
            ranges: Vec::new(),
            blocks,
            announced: Vec::new(),
            threshold: 0.0,
            lossy: Lossy::NONE,
            kept: Vec::new(),
            clock: 0,
            tasks: VecDeque::new(),
            gains: Vec::new(),
            busy: Duration::ZERO,
            lengths: Vec::new(),
            answer: Vec::new(),
            memory,
            keys_max: 0,
        })
    }

    /// Records a worker's keys, once, before the first pass.
    fn announce(&mut self, sender: u32, keys: &[u64]) -> Result<(), Refused> {
        let known = self.announced.iter().any(|(worker, _)| *worker == sender);
        if !self.ranges.is_empty() || known {
            return Err(Refusal::Order.because(format!(
                "worker node {sender} has announced its keys before, or training has begun"
            )));
        }
        if self.announced.len() == self.workers {
            let workers = self.workers;
            return Err(Refusal::Order
                .because(format!("all {workers} workers have announced their keys already")));
        }
        // Both the former coordinates and the new ones exist for a moment.
        let before = self.state.keys().len();
        let most = before + keys.len();
        charge(self.memory.add(keys.len() * HELD_BYTES[0] + most * Coordinates::BYTES))?;
        self.announced.push((sender, Held::Keys(keys.to_vec())));
        self.state.insert_keys(keys);
        let less = before + most - self.state.keys().len();
        self.memory.release(less * Coordinates::BYTES);
        Ok(())
    }

    /// Turns keys into positions, once all workers have announced theirs.
    fn settle(&mut self) {
        let all = 0..self.state.keys().len();
        for (_, held) in &mut self.announced {
            let Held::Keys(keys) = held else { continue };
            let places = self.state.positions(all.clone(), keys);
            let places = places.expect("they were inserted when they were named");
            self.memory.release(keys.len() * (HELD_BYTES[0] - HELD_BYTES[1]));
            *held = Held::Positions(places.into_iter().map(|k| k as u32).collect());
        }
        self.ranges = self.blocks.iter().map(|block| self.state.locate(block)).collect();
    }

    fn begin_pass(
        &mut self,
        first: u64,
        blocks: &[usize],
        threshold: f64,
        lossy: Lossy,
        reset: bool,
        all: bool,
    ) -> Result<(), Refused> {
        if let Some(block) = blocks.iter().find(|&&block| block >= self.blocks.len()) {
            return Err(Refusal::Key
                .because(format!("there is no block {block}, only {}", self.blocks.len())));
        }
        if first != self.clock + 1 || !self.tasks.is_empty() {
            let next = self.clock + 1;
            return Err(Refusal::Order.because(format!(
                "a pass begins at task {first}, but {} tasks are outstanding from {next} on",
                self.tasks.len()
            )));
        }
        if self.ranges.is_empty() {
            self.settle();
        }
        let kept = if lossy.sends_changes() { self.state.keys().len() } else { 0 };
        let more = kept.saturating_sub(self.kept.len()) * size_of::<[f64; 2]>();
        charge(self.memory.add(more + blocks.len() * self.task_bytes()))?;
        self.threshold = threshold;
        self.lossy = lossy;
        if kept > self.kept.len() {
            self.kept = vec![[0.0; 2]; kept];
        }
        self.busy = Duration::ZERO;
        self.gains = vec![0.0; self.blocks.len()];
        self.state.begin_pass(reset);
        let Shard { state, ranges, announced, .. } = &*self;
        let task = |(number, &block): (u64, &usize)| {
            let skips = lossy.skips(number);
            let counts = |k: usize| all || state.active()[k] && !skips(state.keys()[k]);
            let missing = announced.iter().filter(|(_, held)| held.any(&ranges[block], counts));
            let mut missing: Vec<u32> = missing.map(|(worker, _)| *worker).collect();
            missing.sort_unstable();
            Task { block, workers: missing.len(), missing, early: BTreeMap::new(), sum: None }
        };
        let tasks: Vec<Task> = (first..).zip(blocks).map(task).collect();
        self.tasks.extend(tasks);
        self.step();
        Ok(())
    }

    /// Adds one worker's push to the sum of its task, and steps the blocks that are complete.
    fn add(&mut self, request: &Request<'_>) -> Result<(), Refused> {
        let task = self.task(request.clock)?;
        let values = f64::view(request.values)
            .ok_or_else(|| Refusal::Shape.because("gradients are pairs of f64"))?;
        let range = self.ranges[self.tasks[task].block].clone();
        let numbers = (request.keys, request.lengths, values);
        let keys = &self.state.keys()[range.clone()];
        let push = Push::of(keys, numbers, self.rounds, self.lossy);
        let push = push.inspect_err(|why| {
            if why.reason == NOT_FINITE {
                self.abandon();
            }
        })?;
        let Task { missing, sum, .. } = &self.tasks[task];
        let Ok(place) = missing.binary_search(&request.sender) else {
            return Err(Refusal::Order.because(format!(
                "worker node {} has pushed for task {} before",
                request.sender, request.clock
            )));
        };
        let sum_bytes = if sum.is_none() { range.len() * BlockSum::BYTES } else { 0 };
        charge(self.memory.add(sum_bytes + push.bytes()))?;
        let task = &mut self.tasks[task];
        task.missing.remove(place);
        task.early.insert(request.sender, push);
        let absorbed = task.absorb(range.len());
        self.memory.release(absorbed);
        self.step();
        Ok(())
    }

    /// Takes the sum of all workers' pushes for a task, and steps the blocks that are complete.
    fn take_sum(&mut self, keys: &[u64], lengths: &[u32], values: &[u8]) -> Result<(), Refused> {
        let Summed { clock, parts, values } = Summed::read(values)?;
        let task = self.task(clock)?;
        let range = self.ranges[self.tasks[task].block].clone();
        let numbers = (keys, lengths, values);
        let push = Push::of(&self.state.keys()[range.clone()], numbers, false, self.lossy)?;
        let Task { workers, missing, .. } = &self.tasks[task];
        if [*workers, missing.len()] != [parts; 2] {
            return Err(Refusal::Order.because(format!(
                "a sum of {parts} pushes came for task {clock}, of which {} of {workers} are missing",
                missing.len()
            )));
        }
        charge(self.memory.add(range.len() * BlockSum::BYTES))?;
        let task = &mut self.tasks[task];
        task.missing.clear();
        push.add_to(task.sum.insert(BlockSum::new(range.len())));
        self.step();
        Ok(())
    }

    /// Bytes of a task without its sums.
    fn task_bytes(&self) -> usize {
        let [task, worker] = TASK_BYTES;
        task + self.announced.len() * worker
    }

    /// Accounts for the memory that a request for this many keys needs.
    fn make_room(&mut self, keys: usize) -> Result<(), Refused> {
        let more = keys.saturating_sub(self.keys_max);
        if more > 0 {
            charge(self.memory.add(more * PUSHED_BYTES))?;
            self.keys_max = keys;
        }
        Ok(())
    }

    /// Index of an outstanding task.
    fn task(&self, number: u64) -> Result<usize, Refused> {
        let index = number.checked_sub(self.clock + 1).map(|index| index as usize);
        index.filter(|&index| index < self.tasks.len()).ok_or_else(|| {
            let first = self.clock + 1;
            let count = self.tasks.len();
            let why =
                format!("task {number} is not outstanding here: {count} are, from {first} on");
            Refusal::Order.because(why)
        })
    }

    /// Steps the blocks at the front whose pushes have all arrived.
    fn step(&mut self) {
        while let Some(task) = self.tasks.pop_front_if(|task| task.missing.is_empty()) {
            self.clock += 1;
            self.memory.release(self.task_bytes());
            let Some(mut sum) = task.sum else { continue };
            let range = self.ranges[task.block].clone();
            if self.lossy.sends_changes() {
                sum.add_to(&mut self.kept[range.clone()]);
            }
            let skips = self.lossy.skips(self.clock);
            let keys = self.state.keys()[range.clone()].iter().enumerate();
            keys.filter(|(_, key)| skips(**key)).for_each(|(k, _)| sum.skip(k));
            self.memory.release(range.len() * BlockSum::BYTES);
            self.gains[task.block] += self.state.update(range, &sum, self.threshold);
        }
    }

    /// Ends the pass without the steps that are left: nobody waits for a worker that has met a
    /// number that is not finite, whose error ends the run.
    fn abandon(&mut self) {
        for task in std::mem::take(&mut self.tasks) {
            self.clock += 1;
            let range = &self.ranges[task.block];
            let sum = task.sum.map_or(0, |_| range.len() * BlockSum::BYTES);
            let early: usize = task.early.values().map(Push::bytes).sum();
            self.memory.release(self.task_bytes() + sum + early);
        }
    }

    fn report(&self, gains: bool) -> Report {
        // A simulated run, which has no process of its own, must not depend on real time.
        let (process, peak_rss_mib) = crate::memory::process();
        Report {
            penalty: self.state.penalty(),
            nonzeros: self.state.nonzeros(),
            active: self.state.active_count(),
            steepest: self.state.steepest(),
            coordinates: self.state.keys().len(),
            busy_seconds: if process == 0 { 0.0 } else { self.busy.as_secs_f64() },
            peak_rss_mib,
            process,
            gains: if gains { self.gains.clone() } else { Vec::new() },
        }
    }

    fn set_lambda(&mut self, lambda: f64) -> Result<(), Refused> {
        if !self.tasks.is_empty() || lambda.is_nan() || lambda < 0.0 {
            let tasks = self.tasks.len();
            return Err(Refusal::Order
                .because(format!("lambda {lambda} cannot be set with {tasks} tasks outstanding")));
        }
        self.state.set_lambda(lambda);
        Ok(())
    }

    /// Sets the weights whose keys are stored here; returns their number. The sum over threads
    /// shows keys that none has.
    fn set(&mut self, weights: &[(u64, f64)]) -> Result<usize, Refused> {
        if !self.tasks.is_empty() {
            return Err(Refusal::Order.because(format!(
                "weights cannot be set with {} tasks outstanding",
                self.tasks.len()
            )));
        }
        if let Some((key, weight)) = weights.iter().find(|(_, weight)| !weight.is_finite()) {
            return Err(Refusal::Shape.because(format!(
                "the weight of key {key} must be a finite number, not {weight}"
            )));
        }
        let here: Vec<(u64, f64)> = weights
            .iter()
            .filter(|(key, _)| self.state.keys().binary_search(key).is_ok())
            .copied()
            .collect();
        let filtered =
            |key| Refusal::Key.because(format!("key {key} is filtered, its weight stays 0"));
        self.state.set(&here).map(|()| here.len()).map_err(filtered)
    }
}

/// Converts an accounting error to a shard's error.
fn charge(outcome: caravan_van::Result<()>) -> Result<(), Refused> {
    outcome.map_err(Refused::from)
}

impl caravan_kv::Shard for Shard {
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
        let began = Instant::now();
        self.make_room(request.keys.len())?;
        let done = match request.clock {
            0 => self.announce(request.sender, request.keys),
            _ => self.add(request),
        };
        self.busy += began.elapsed();
        done
    }

    fn reads_once(&self) -> bool {
        true
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        let began = Instant::now();
        self.make_room(request.keys.len())?;
        let all = 0..self.state.keys().len();
        let positions = self
            .state
            .positions(all, request.keys)
            .ok_or_else(|| Refusal::Order.because("it pulls a key that no worker announced"))?;
        self.lengths.clear();
        self.answer.clear();
        let skips = self.lossy.skips(request.clock);
        for (&key, k) in request.keys.iter().zip(positions) {
            let active = self.state.active()[k] && !skips(key);
            self.lengths.push(u32::from(active));
            self.answer.extend(active.then_some(self.state.weights()[k]));
        }
        self.busy += began.elapsed();
        Ok(Pulled::Varying(self.answer.len() * f64::BYTES))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        into.copy_from_slice(f64::bytes(&self.answer));
    }

    fn lengths(&self) -> &[u32] {
        &self.lengths
    }

    image::methods!(state::write, state::read);

    fn part(&self, request: &Request<'_>) -> Option<Part> {
        let Task { workers, missing, .. } = &self.tasks[self.task(request.clock).ok()?];
        Some(Part { sum: request.clock, of: *workers, left: missing.len() })
    }

    /// In the order of the workers, as the shard adds up itself.
    fn add_up(&self, parts: &[Request<'_>], extract: &mut Extract) -> bool {
        let mut parts = parts.to_vec();
        parts.sort_unstable_by_key(|part| part.sender);
        let keys = union(&parts);
        let mut sum = BlockSum::new(keys.len());
        for part in &parts {
            let values = f64::view(part.values).unwrap_or_default();
            match Push::of(&keys, (part.keys, part.lengths, values), self.rounds, self.lossy) {
                Ok(push) => push.add_to(&mut sum),
                Err(_) => return false,
            }
        }
        let values: Vec<[f64; 2]> = sum.sums().flatten().collect();
        Summed::write(&parts, values.as_flattened(), extract);
        extract.lengths = sum.sums().map(|pair| if pair.is_some() { 2 } else { 0 }).collect();
        extract.keys = keys;
        true
    }

    fn take(
        &mut self,
        keys: &[u64],
        lengths: &[u32],
        values: &[u8],
        _memory: &Pool,
    ) -> Result<(), Refused> {
        let began = Instant::now();
        self.make_room(keys.len())?;
        let done = self.take_sum(keys, lengths, values);
        self.busy += began.elapsed();
        done
    }

    fn command(&mut self, _sender: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        charge(self.memory.check(body.len() * COMMAND_BYTES))?;
        match serde_json::from_slice(body)? {
            Command::Pass { first, blocks, threshold, reset, all, lossy } => {
                let lossy = lossy.unwrap_or(Lossy::NONE);
                self.begin_pass(first, &blocks, threshold, lossy, reset, all).map(|()| Vec::new())
            }
            Command::Lambda { lambda } => self.set_lambda(lambda).map(|()| Vec::new()),
            Command::Report { gains } => Ok(serde_json::to_vec(&self.report(gains))?),
            Command::Weights => {
                charge(self.memory.check(self.state.held().count() * ANSWER_BYTES))?;
                let weights: Vec<(u64, f64)> = self.state.held().collect();
                Ok(serde_json::to_vec(&weights)?)
            }
            Command::Set { weights } => Ok(serde_json::to_vec(&self.set(&weights)?)?),
        }
    }
}
