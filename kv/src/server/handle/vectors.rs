//! Vectors that lie together: the shard of tables with the handle `vectors`.
//!
//! Path: codec > thread > shard > store (handle, **vectors**) > answer. The command number of a
//! push or a pull names the vector; commands are steps of [`vector`](crate::vector).

use std::ops::Range;
use std::slice::{from_mut, from_ref};

use caravan_van::{Account, KeyRange, Pool};
use serde::{Deserialize, Serialize};

use super::number::{Float, Number, Real};
use super::{options, unsuited};
use crate::refusal::{Refusal, Refused};
use crate::server::shard::{Extract, Pulled, Request, Shard};
use crate::table::{Store, TableSpec, with_type};
use crate::vector::{ExactSum, Step, Vector};

/// Options of the handle.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Number of vectors.
    count: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { count: 1 }
    }
}

/// Elements of a step at a time, copies of which stay in the nearest cache.
const BLOCK: usize = 512;

/// The elements of a key range of all vectors.
struct Vectors<V> {
    range: KeyRange,
    vectors: Vec<Vec<V>>,
    /// Accounts for them.
    _memory: Account,
}

/// Builds a shard of vectors.
///
/// # Errors
/// What the table must have instead, or that memory is short.
pub(super) fn build(
    spec: &TableSpec,
    range: KeyRange,
    memory: &Pool,
) -> Result<Box<dyn Shard>, Refused> {
    let Options { count } = options::read(spec)?;
    if count == 0 {
        return Err(options::refuse(spec, "option count is 0, and must be 1 or more"));
    }
    if spec.width != 1 || spec.store != Store::Dense {
        return Err(options::refuse(spec, "its table is dense and has a width of 1"));
    }
    with_type!(
        spec.value, V => Ok(Box::new(Vectors::<V>::new(spec, range, count, memory)?));
        F32 = f32, F64 = f64, F16 = half::f16, BF16 = half::bf16;
        else Err(unsuited(spec, "f32, f64, f16 and bf16"))
    )
}

impl<V: Float> Vectors<V> {
    fn new(
        spec: &TableSpec,
        range: KeyRange,
        count: u32,
        memory: &Pool,
    ) -> Result<Vectors<V>, Refused> {
        let bytes = range.count().saturating_mul(u128::from(count) * V::BYTES as u128);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut account = Account::new(memory, format!("table {}", spec.name));
        account.set(bytes)?;
        let length = range.count() as usize;
        let make = |_| {
            let mut vector = Vec::new();
            let reserved = vector.try_reserve_exact(length);
            reserved.map_err(|error| {
                let why = format!("no memory for {bytes} bytes of vectors: {error}");
                Refusal::Memory.because(why)
            })?;
            vector.resize(length, V::default());
            Ok(vector)
        };
        let vectors = (0..count).map(make).collect::<Result<_, Refused>>()?;
        Ok(Vectors { range, vectors, _memory: account })
    }

    fn place(&self, key: u64) -> usize {
        (key - self.range.begin()) as usize
    }

    /// The elements of these keys, if they follow each other.
    fn run(&self, keys: &[u64]) -> Option<Range<usize>> {
        let (first, last) = (self.place(*keys.first()?), self.place(*keys.last()?));
        (last - first == keys.len() - 1).then_some(first..last + 1)
    }

    /// The vector that a request names.
    fn named(&self, request: &Request<'_>) -> Result<usize, Refused> {
        let number = usize::try_from(request.command).ok();
        number.filter(|number| *number < self.vectors.len()).ok_or_else(|| {
            let count = self.vectors.len();
            let number = request.command;
            let why =
                format!("the table has {count} vectors from 0 on; there is no vector {number}");
            Refusal::Key.because(why)
        })
    }

    /// Reads the steps of a command.
    fn steps(&self, body: &[u8]) -> Result<Vec<Step>, Refused> {
        let (steps, rest) = body.as_chunks();
        if !rest.is_empty() {
            return Err(
                Refusal::Shape.because(format!("{} bytes are no steps of vectors", body.len()))
            );
        }
        let read = |bytes| {
            let step = Step::read(bytes)
                .ok_or_else(|| Refusal::Shape.because(format!("{bytes:?} is no step")))?;
            let count = self.vectors.len();
            let is_there = |Vector(number): Vector| (number as usize) < count;
            match step.vectors().into_iter().all(is_there) {
                true => Ok(step),
                false => Err(Refusal::Shape.because(format!(
                    "the table has {count} vectors from 0 on, too few for {step:?}"
                ))),
            }
        };
        steps.iter().map(read).collect()
    }

    /// into ← `of` each element of x and y.
    fn map(&mut self, [x, y, into]: [Vector; 3], of: impl Fn(V::Real, V::Real) -> V::Real) {
        let mut copies = [[V::default(); BLOCK]; 2];
        let [x, y, into] = [x, y, into].map(|vector| vector.0 as usize);
        let length = self.vectors[into].len();
        for begin in (0..length).step_by(BLOCK) {
            let block = begin..length.min(begin + BLOCK);
            let count = block.len();
            let [xs, ys] = &mut copies;
            xs[..count].copy_from_slice(&self.vectors[x][block.clone()]);
            ys[..count].copy_from_slice(&self.vectors[y][block.clone()]);
            let places = self.vectors[into][block].iter_mut();
            for ((place, x), y) in places.zip(&*xs).zip(&*ys) {
                *place = V::round(of(x.widen(), y.widen()));
            }
        }
    }

    /// Executes a step; returns its sum if it has one.
    fn execute(&mut self, step: Step) -> Option<ExactSum> {
        let real = V::Real::from_f64;
        let of = |Vector(number): Vector| self.vectors[number as usize].iter();
        let number = |element: &V| element.widen().to_f64();
        let mut sum = ExactSum::default();
        match step {
            Step::Fill { a, x } => self.vectors[x.0 as usize].fill(V::round(real(a))),
            Step::Scale { a, .. } => {
                let a = real(a);
                self.map(step.vectors(), |x, _| a * x);
            }
            Step::Combine { a, b, .. } => {
                let [a, b] = [a, b].map(real);
                self.map(step.vectors(), |x, y| a * x + b * y);
            }
            Step::Multiply { .. } => self.map(step.vectors(), |x, y| x * y),
            Step::Dot { x, y } => {
                of(x).zip(of(y)).for_each(|(x, y)| sum.add(number(x) * number(y)));
            }
            Step::Sum { x } => of(x).for_each(|x| sum.add(number(x))),
        }
        step.sums().then_some(sum)
    }
}

impl<V: Float> Shard for Vectors<V> {
    fn reads_once(&self) -> bool {
        true
    }

    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        let keys = request.keys;
        let pushed = V::view(request.values).filter(|pushed| pushed.len() == keys.len());
        let pushed = pushed.ok_or_else(|| {
            let (keys, bytes) = (keys.len(), request.values.len());
            Refusal::Shape.because(format!("{keys} elements came with {bytes} bytes"))
        })?;
        let number = self.named(request)?;
        match self.run(keys) {
            Some(run) => V::add_up(&mut self.vectors[number][run], pushed),
            None => {
                for (key, pushed) in keys.iter().zip(pushed) {
                    let place = self.place(*key);
                    let stored = &mut self.vectors[number][place];
                    V::add_up(from_mut(stored), from_ref(pushed));
                }
            }
        }
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        let number = self.named(request)?;
        Ok(match self.run(request.keys) {
            Some(run) => Pulled::Stored(V::bytes(&self.vectors[number][run])),
            None => Pulled::Bytes(request.keys.len() * V::BYTES),
        })
    }

    fn read(&mut self, request: &Request<'_>, into: &mut [u8]) {
        let into =
            V::view_mut(into).expect("its alignment and length are those that `pull` required");
        let vector = &self.vectors[request.command as usize];
        let begin = self.range.begin();
        let places = into.iter_mut().zip(request.keys);
        places.for_each(|(place, key)| *place = vector[(key - begin) as usize]);
    }

    /// A row is an element of all vectors.
    fn give(
        &self,
        from: u64,
        bytes_max: usize,
        extract: &mut Extract,
    ) -> Result<Option<u64>, Refused> {
        let row_bytes = self.vectors.len() * V::BYTES + size_of::<u64>();
        let length = self.vectors[0].len();
        let first = self.place(from);
        let end = length.min(first + (bytes_max / row_bytes).max(1));
        for place in first..end {
            extract.keys.push(self.range.begin() + place as u64);
            for vector in &self.vectors {
                extract.values.extend_from_slice(V::bytes(&vector[place..=place]));
            }
        }
        Ok((end < length).then(|| self.range.begin() + end as u64))
    }

    fn take(
        &mut self,
        keys: &[u64],
        _lengths: &[u32],
        values: &[u8],
        _memory: &Pool,
    ) -> Result<(), Refused> {
        let row_bytes = self.vectors.len() * V::BYTES;
        if values.len() != keys.len() * row_bytes {
            return Err(Refusal::Shape.because(format!(
                "{} rows of {row_bytes} bytes came with {} bytes",
                keys.len(),
                values.len()
            )));
        }
        for (key, row) in keys.iter().zip(values.chunks_exact(row_bytes)) {
            let place = self.place(*key);
            for (vector, element) in self.vectors.iter_mut().zip(row.chunks_exact(V::BYTES)) {
                V::bytes_mut(from_mut(&mut vector[place])).copy_from_slice(element);
            }
        }
        Ok(())
    }

    fn changes_rows(&self, body: &[u8]) -> bool {
        let steps = body.as_chunks().0.iter().filter_map(Step::read);
        steps.into_iter().any(|step| !step.sums())
    }

    fn command(&mut self, _sender: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut sums = Vec::new();
        for step in self.steps(body)? {
            if let Some(sum) = self.execute(step) {
                sum.append(&mut sums);
            }
        }
        Ok(sums)
    }
}
