//! The server's sums of gradients and curvatures, by key, and the choice of the working set.
//!
//! Path: worker: task > **scores** > driver: step. A worker pushes two integers for each of its
//! columns, the driver one for each weight that is not 0: the weight's bits. A request's clock is
//! the number of the measurement.

use caravan_kv::{Refusal, Refused};
use std::time::{Duration, Instant};

use caravan_kv::server::{Extract, Part, Pulled, Request};
use caravan_van::{Account, Pool, Value};
use serde::{Deserialize, Serialize};

use crate::copies::image::{self, Reader, Writer};
use crate::copies::sums::{Summed, add_pairs};
use crate::dbpg::proximal::{Penalties, Proximal};
use crate::dbpg::scaling::Scaling;
use crate::numeric::Scale;

use super::Options;

/// Name of this shard's update rule.
pub(crate) const HANDLE: &str = "dbpg-scores";

/// A command of the driver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Answers with [`Selected::encode`] for measurement `clock`.
    Select {
        clock: u64,
        lambda: f64,
        l2: f64,
        free: Option<u64>,
        /// Most columns at 0 that are named.
        count: usize,
        scales: [Scale; 2],
    },
    /// Answers with Σ max(|g| + off - λ, 0)² over all columns but `free`, as JSON. Gradients of
    /// divided columns may be off by `off`.
    Excess { lambda: f64, off: f64, free: Option<u64>, scale: Scale },
    /// Answers with the largest |g| + off of them, as JSON.
    Steepest { off: f64, free: Option<u64>, scale: Scale },
}

/// A column with its numbers, as it is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Column {
    pub(super) key: u64,
    pub(super) weight: f64,
    pub(super) gradient: f64,
    pub(super) curvature: f64,
}

impl Column {
    /// How much is gained by letting it in: its violation, in relation to what it costs.
    fn score(&self, penalties: Penalties) -> f64 {
        let violation = (self.gradient.abs() - penalties.lambda).max(0.0);
        violation * violation / self.curvature.sqrt()
    }
}

/// What a server thread knows after a measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Selected {
    /// The weights that are not 0, and `free`.
    pub(super) support: Vec<Column>,
    /// The columns at 0 that violate most.
    pub(super) others: Vec<Column>,
    /// Largest |g| with a penalty, in the units of the data.
    pub(super) steepest: f64,
    /// Largest |g| at a weight of 0.
    pub(super) steepest_at_zero: f64,
    /// Number of columns.
    pub(super) columns: u64,
    /// Time spent on pushes.
    pub(super) busy_seconds: f64,
}

/// Bytes of a column in an answer.
const COLUMN_BYTES: usize = 32;

impl Selected {
    fn encode(&self) -> Vec<u8> {
        let head = [
            self.support.len() as u64,
            self.columns,
            self.steepest.to_bits(),
            self.steepest_at_zero.to_bits(),
            self.busy_seconds.to_bits(),
        ];
        let columns = self.support.iter().chain(&self.others).flat_map(|column| {
            let Column { key, weight, gradient, curvature } = *column;
            [key, weight.to_bits(), gradient.to_bits(), curvature.to_bits()]
        });
        head.into_iter().chain(columns).flat_map(u64::to_le_bytes).collect()
    }

    /// Reads what [`Command::Select`] was answered with.
    pub(super) fn decode(bytes: &[u8]) -> Option<Selected> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (head, columns) = words.split_at_checked(5)?;
        let (columns, []) = columns.as_chunks::<4>() else { return None };
        let column = |&[key, weight, gradient, curvature]: &[u64; 4]| Column {
            key,
            weight: f64::from_bits(weight),
            gradient: f64::from_bits(gradient),
            curvature: f64::from_bits(curvature),
        };
        let support = usize::try_from(head[0]).ok().filter(|&count| count <= columns.len())?;
        Some(Selected {
            support: columns[..support].iter().map(column).collect(),
            others: columns[support..].iter().map(column).collect(),
            columns: head[1],
            steepest: f64::from_bits(head[2]),
            steepest_at_zero: f64::from_bits(head[3]),
            busy_seconds: f64::from_bits(head[4]),
        })
    }

    /// Adds another thread's; at most `count` others are kept.
    pub(super) fn join(
        &mut self,
        other: Selected,
        penalties: impl Fn(u64) -> Penalties,
        count: usize,
    ) {
        self.support.extend(other.support);
        self.others.extend(other.others);
        keep_best(&mut self.others, penalties, count);
        self.steepest = self.steepest.max(other.steepest);
        self.steepest_at_zero = self.steepest_at_zero.max(other.steepest_at_zero);
        self.columns += other.columns;
        self.busy_seconds = self.busy_seconds.max(other.busy_seconds);
    }
}

/// Keeps the `count` columns with the best scores, of equal ones those with smaller keys.
fn keep_best(columns: &mut Vec<Column>, penalties: impl Fn(u64) -> Penalties, count: usize) {
    if columns.len() > count {
        let score = |column: &Column| column.score(penalties(column.key));
        let order = |a: &Column, b: &Column| score(b).total_cmp(&score(a)).then(a.key.cmp(&b.key));
        columns.select_nth_unstable_by(count, order);
        columns.truncate(count);
    }
}

/// Bytes of a key in the lists, old and new, while a push is merged.
const KEY_BYTES: usize = 48;

/// A server thread's sums.
pub(crate) struct Scores {
    scaling: Scaling,
    /// Number of the measurement.
    clock: u64,
    /// Number of pushes to it, and to the one before: those workers push that have columns here.
    parts: [usize; 2],
    keys: Vec<u64>,
    /// Of gradients and curvatures: `[keys]`.
    sums: Vec<[i64; 2]>,
    /// The weights that are not 0, sorted by key.
    weights: Vec<(u64, f64)>,
    /// The measurement that they belong to.
    weights_clock: u64,
    busy: Duration,
    memory: Account,
}

impl Scores {
    pub(crate) fn new(options: &serde_json::Value, memory: &Pool) -> Result<Self, Refused> {
        Ok(Scores {
            scaling: Options::of(options)?.scaling,
            clock: 0,
            parts: [0; 2],
            keys: Vec::new(),
            sums: Vec::new(),
            weights: Vec::new(),
            weights_clock: 0,
            busy: Duration::ZERO,
            memory: Account::new(memory, "gradients of columns"),
        })
    }

    /// Adds the pushes of this many workers to measurement `clock`, or their sum.
    fn add(
        &mut self,
        clock: u64,
        workers: usize,
        keys: &[u64],
        parts: &[[i64; 2]],
    ) -> Result<(), Refused> {
        let room = (self.keys.len() + keys.len()) * KEY_BYTES;
        self.memory.set(room)?;
        if clock != self.clock {
            self.clock = clock;
            self.parts = [0, self.parts[0]];
            self.busy = Duration::ZERO;
            self.sums.fill([0; 2]);
        }
        self.parts[0] = self.parts[0].saturating_add(workers);
        if self.keys != keys && !keys.iter().all(|key| self.keys.binary_search(key).is_ok()) {
            self.insert(keys);
        }
        let mut at = 0;
        for (key, part) in keys.iter().zip(parts) {
            while self.keys[at] != *key {
                at += 1;
            }
            let sum = &mut self.sums[at];
            *sum = [sum[0].wrapping_add(part[0]), sum[1].wrapping_add(part[1])];
        }
        Ok(())
    }

    fn write(&self, image: &mut Writer<'_>) {
        image.number(self.memory.bytes() as u64);
        image.time(self.busy);
        image.number(self.clock);
        image.places(&self.parts);
        image.list(&self.keys);
        image.list(self.sums.as_flattened());
        image.number(self.weights_clock);
        image.number(self.weights.len() as u64);
        for &(key, weight) in &self.weights {
            image.number(key);
            image.real(weight);
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let mut image = Reader::of(bytes);
        let most = usize::try_from(image.number()?).unwrap_or(usize::MAX);
        self.memory.set(most.max(bytes.len()))?;
        self.busy = image.time()?;
        self.clock = image.number()?;
        let parts = image.places()?.try_into();
        self.parts = parts.map_err(|_| image::damaged("pushes of no measurement"))?;
        self.keys = image::keys(&mut image)?;
        self.sums = image::pairs(image.list()?)?;
        image::check(self.sums.len() == self.keys.len(), "sums of other keys")?;
        self.weights_clock = image.number()?;
        for _ in 0..image.count()? {
            self.weights.push((image.number()?, image.real()?));
        }
        let is_sorted = self.weights.is_sorted_by(|(a, _), (b, _)| a < b);
        image::check(is_sorted, "weights are not in order")?;
        self.memory.release(bytes.len().saturating_sub(most));
        image.end()
    }

    fn insert(&mut self, keys: &[u64]) {
        let mut old = std::mem::take(&mut self.keys)
            .into_iter()
            .zip(std::mem::take(&mut self.sums))
            .peekable();
        let mut new = keys.iter().copied().peekable();
        while let Some(key) =
            old.peek().map(|(key, _)| *key).into_iter().chain(new.peek().copied()).min()
        {
            let held = old.next_if(|(held, _)| *held == key);
            new.next_if_eq(&key);
            self.keys.push(key);
            self.sums.push(held.map_or([0; 2], |(_, sum)| sum));
        }
    }

    /// All columns, with their weights.
    fn columns(&self, scales: [Scale; 2]) -> impl Iterator<Item = Column> {
        let weights: &[(u64, f64)] =
            if self.weights_clock == self.clock { &self.weights } else { &[] };
        let mut weights = weights.iter().copied().peekable();
        self.keys.iter().zip(&self.sums).map(move |(&key, sum)| {
            while weights.next_if(|(own, _)| *own < key).is_some() {}
            let weight = weights.next_if(|(own, _)| *own == key).map_or(0.0, |(_, weight)| weight);
            let curvature = scales[1].from(sum[1]).max(super::step::CURVATURE_MIN);
            Column { key, weight, gradient: scales[0].from(sum[0]), curvature }
        })
    }

    /// |g| of all columns but `free`, and how far it may be off, in the units of the data.
    fn steepness(
        &self,
        off: f64,
        free: Option<u64>,
        scale: Scale,
    ) -> impl Iterator<Item = (f64, f64)> {
        let columns = self.columns([scale; 2]).filter(move |column| Some(column.key) != free);
        columns.map(move |column| {
            let factor = self.scaling.factor(column.key);
            (column.gradient.abs() * factor, off * factor)
        })
    }

    fn select(&self, rule: Proximal, count: usize, scales: [Scale; 2]) -> Selected {
        let penalties = |key: u64| rule.penalties(key, &self.scaling);
        let mut selected = Selected {
            columns: self.keys.len() as u64,
            // A simulated run, which has no process of its own, must not depend on real time.
            busy_seconds: match crate::memory::process() {
                (0, _) => 0.0,
                _ => self.busy.as_secs_f64(),
            },
            ..Selected::default()
        };
        for mut column in self.columns(scales) {
            if rule.free == Some(column.key) {
                selected.support.push(column);
                continue;
            }
            let steepness = column.gradient.abs() * self.scaling.factor(column.key);
            selected.steepest = selected.steepest.max(steepness);
            if column.weight != 0.0 {
                column.gradient += penalties(column.key).l2 * column.weight;
                selected.support.push(column);
            } else {
                selected.steepest_at_zero = selected.steepest_at_zero.max(steepness);
                if steepness > rule.lambda {
                    selected.others.push(column);
                }
            }
        }
        keep_best(&mut selected.others, penalties, count);
        selected
    }
}

impl caravan_kv::Shard for Scores {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        let began = Instant::now();
        let values = i64::view(request.values)
            .ok_or_else(|| Refusal::Shape.because("gradients are integers"))?;
        let width = request.lengths.first().copied().unwrap_or(0);
        let sane = request.lengths.iter().all(|&length| length == width);
        if !sane || !(1..=2).contains(&width) || values.len() != request.keys.len() * width as usize
        {
            return Err(Refusal::Shape.because(format!(
                "a push of {} keys came with {} values: each has one, its weight, or two, its gradient and its curvature",
                request.keys.len(),
                values.len()
            )));
        }
        if width == 1 {
            let room = (self.keys.len() + request.keys.len()) * KEY_BYTES;
            self.memory.set(room)?;
            let weights = values.iter().map(|bits| f64::from_bits(*bits as u64));
            self.weights = request.keys.iter().copied().zip(weights).collect();
            self.weights_clock = request.clock;
            return Ok(());
        }
        self.add(request.clock, 1, request.keys, values.as_chunks::<2>().0)?;
        self.busy += began.elapsed();
        Ok(())
    }

    fn pull(&mut self, _request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        Err(Refusal::Unsupported.because("sums of gradients are not pulled"))
    }

    fn read(&mut self, _request: &Request<'_>, _into: &mut [u8]) {
        unreachable!("no pull is answered");
    }

    image::methods!(Scores::write, Scores::read);

    /// As many workers push as to the measurement before.
    fn part(&self, request: &Request<'_>) -> Option<Part> {
        let [has, of] = match request.clock == self.clock {
            true => self.parts,
            false => [0, self.parts[0]],
        };
        let is_part = request.lengths.first() == Some(&2) && has < of;
        is_part.then(|| Part { sum: request.clock, of, left: of - has })
    }

    fn add_up(&self, parts: &[Request<'_>], extract: &mut Extract) -> bool {
        add_pairs(parts, extract).is_some()
    }

    fn take(
        &mut self,
        keys: &[u64],
        lengths: &[u32],
        values: &[u8],
        _memory: &Pool,
    ) -> Result<(), Refused> {
        let Summed { clock, parts, values } = Summed::<i64>::read(values)?;
        let (pairs, rest) = values.as_chunks::<2>();
        let are_pairs = rest.is_empty() && pairs.len() == keys.len();
        if !are_pairs || lengths.iter().any(|length| *length != 2) {
            return Err(Refusal::Shape.because(format!(
                "a sum of {} keys came with {} values",
                keys.len(),
                values.len()
            )));
        }
        self.add(clock, parts, keys, pairs)
    }

    fn command(&mut self, _sender: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let command = serde_json::from_slice(body)?;
        self.memory.check(self.keys.len() * 2 * COLUMN_BYTES)?;
        match command {
            Command::Select { clock, .. } if clock != self.clock && !self.keys.is_empty() => {
                Err(Refusal::Order.because(format!(
                    "measurement {clock} is asked for, but {} is here",
                    self.clock
                )))
            }
            Command::Select { lambda, l2, free, count, scales, .. } => {
                let rule = Proximal { l2, free, ..Proximal::new(lambda) };
                Ok(self.select(rule, count, scales).encode())
            }
            Command::Excess { lambda, off, free, scale } => {
                let over = self.steepness(off, free, scale).map(|(g, off)| g - (lambda - off));
                let sum: f64 = over.map(|over| over.max(0.0) * over.max(0.0)).sum();
                serde_json::to_vec(&sum).map_err(Refused::from)
            }
            Command::Steepest { off, free, scale } => {
                let steepest = self.steepness(off, free, scale).map(|(g, off)| g + off);
                let steepest = steepest.fold(0.0, f64::max);
                serde_json::to_vec(&steepest).map_err(Refused::from)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::copies::image::testing;
    use crate::copies::sums;
    use caravan_kv::Shard;
    use caravan_van::KeyRange;

    const ONE: Scale = Scale { up: 1.0, down: 1.0 };

    fn select(scores: &mut Scores, count: usize) -> Selected {
        let command = Command::Select {
            clock: 1,
            lambda: 2.0,
            l2: 0.5,
            free: Some(9),
            count,
            scales: [ONE; 2],
        };
        let reply = scores.command(0, &serde_json::to_vec(&command).unwrap()).unwrap();
        Selected::decode(&reply).unwrap()
    }

    #[test]
    fn parts_add_up_and_the_worst_columns_are_named() {
        let mut scores =
            Scores::new(&serde_json::json!({ "workers": 2 }), &Pool::new(1 << 20)).unwrap();
        scores.add(1, 1, &[2, 5, 7], &[[3, 1], [-8, 4], [1, 1]]).unwrap();
        scores.add(1, 1, &[3, 5, 9], &[[9, 1], [1, 5], [6, 2]]).unwrap();
        (scores.weights, scores.weights_clock) = (vec![(7, 2.0)], 1);
        let column = |key, weight, gradient, curvature| Column { key, weight, gradient, curvature };
        let new =
            || Scores::new(&serde_json::json!({ "workers": 2 }), &Pool::new(1 << 20)).unwrap();
        let go_on = |scores: &mut Scores| {
            let _ = scores.add(1, 1, &[3, 8], &[[1, 1]; 2]);
            let excess = Command::Excess { lambda: 1.0, off: 0.0, free: None, scale: ONE };
            let _ = scores.command(0, &serde_json::to_vec(&excess).unwrap());
        };
        let mut copy = testing::restore(&testing::image(&scores), new, go_on);
        let all = select(&mut scores, 9);
        assert_eq!(select(&mut copy, 9), all);
        assert_eq!(all.support, [column(7, 2.0, 2.0, 1.0), column(9, 0.0, 6.0, 2.0)]);
        let others =
            [column(2, 0.0, 3.0, 1.0), column(3, 0.0, 9.0, 1.0), column(5, 0.0, -7.0, 9.0)];
        assert_eq!(all.others, others);
        assert_eq!((all.columns, all.steepest, all.steepest_at_zero), (5, 9.0, 9.0));
        assert_eq!(select(&mut scores, 1).others, [others[1]]);
        assert_eq!(Selected::decode(&all.encode()).unwrap(), all);
        assert_eq!(Selected::decode(&all.encode()[8..]), None);
        let mut both = all.clone();
        both.join(all.clone(), |_| Penalties { lambda: 2.0, l2: 0.0 }, 2);
        assert!(both.others.len() == 2 && both.support.len() == 4 && both.columns == 10);
        let excess = Command::Excess { lambda: 2.5, off: 0.5, free: Some(9), scale: ONE };
        let excess = scores.command(0, &serde_json::to_vec(&excess).unwrap()).unwrap();
        assert_eq!(excess, b"75.0");
        scores.add(2, 1, &[2], &[[1, 1]]).unwrap();
        assert_eq!(scores.sums, [[1, 1], [0, 0], [0, 0], [0, 0], [0, 0]], "a new measurement");
        let command = Command::Select {
            clock: 1,
            lambda: 2.0,
            l2: 0.0,
            free: None,
            count: 1,
            scales: [ONE; 2],
        };
        let error = scores.command(0, &serde_json::to_vec(&command).unwrap()).unwrap_err();
        assert!(error.reason.contains("measurement 1") && error.reason.contains('2'), "{error}");
        let many: Vec<u64> = (0..60_000).collect();
        let error = scores.add(3, 1, &many, &vec![[1; 2]; 60_000]).unwrap_err();
        assert!(error.reason.contains("gradients of columns would take"), "{error}");
    }

    /// Two of three workers have columns here, and not the same.
    #[test]
    fn a_sum_of_pushes_does_what_they_do() {
        let pool = || Pool::new(1 << 20);
        let keys = [&[2_u64, 5, 7][..], &[3, 5]];
        let values: [&[i64]; 2] = [&[3, 1, -8, 4, i64::MAX, 1], &[9, 1, 1, 5]];
        let request = |clock: u64, worker: usize| Request {
            sender: worker as u32,
            command: 0,
            clock,
            range: KeyRange::ALL,
            keys: keys[worker],
            lengths: &[2; 3][..keys[worker].len()],
            values: i64::bytes(values[worker]),
            pushes: true,
            pulls: false,
            rows: None,
        };
        let new = || {
            let mut scores = Scores::new(&serde_json::json!({ "workers": 2 }), &pool()).unwrap();
            for worker in [0, 1] {
                let request = request(1, worker);
                assert_eq!(scores.part(&request), None, "who pushes is not known before");
                scores.push(&request, &pool()).unwrap();
            }
            scores
        };
        let parts = [request(2, 1), request(2, 0)];
        let [first, copy] = sums::testing::add_up(new(), new, &parts);
        assert_eq!((&copy.keys[..], &copy.sums), (&[2, 3, 5, 7][..], &first.sums));
        assert_eq!(copy.sums[2], [-7, 9]);
        let images = [first, copy].map(|mut scores| {
            scores.busy = Duration::ZERO;
            scores.memory.set(0).unwrap();
            testing::image(&scores)
        });
        assert_eq!(images[0], images[1]);
    }
}
