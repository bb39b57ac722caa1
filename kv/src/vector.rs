//! Vectors that servers add up and multiply where they lie.
//!
//! A table with the handle `vectors` has several vectors of one length. An element of all of them
//! is one row, so they lie together wherever the row is: servers compute with them on their shards,
//! and nothing travels but the steps and their sums. Elements are pushed and pulled like those of
//! any table.
//!
//! A sum, as of [`Step::Dot`], is exact up to one rounding at its end ([`ExactSum`]): it has the
//! same bits for any number of servers and shards, wherever these are.

mod sum;

use caravan_van::{KeyRange, Value};
use serde_json::json;

pub use self::sum::ExactSum;
use crate::error::{Error, Result};

use crate::table::{TableSpec, ValueType};
use crate::tracker::Timestamp;
use crate::worker::{Keys, Table, Worker};

/// The handle of tables of vectors, which servers always have.
///
/// Their values are `f32`, `f64`, `f16` or `bf16`; their width is 1, and they are dense.
pub const HANDLE: &str = "vectors";

/// One of a table's vectors, from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vector(pub u32);

/// A table of `count` vectors of this length. Pushes are added to them; all are 0 at first.
pub fn spec(id: u32, name: &str, value: ValueType, length: u64, count: u32) -> TableSpec {
    let keys = KeyRange::new(0, length).unwrap_or(KeyRange::ALL);
    let spec = TableSpec::new(id, name, value, 1).keys(keys).dense();
    spec.handle(HANDLE).options(json!({ "count": count }))
}

/// What servers do with vectors. The table's type computes, halves as `f32`; each operation rounds.
///
/// `into` may be one of the others.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the formulas name them")]
pub enum Step {
    /// x ← a, in each place.
    Fill { a: f64, x: Vector },
    /// into ← a · x.
    Scale { a: f64, x: Vector, into: Vector },
    /// into ← a · x + b · y.
    Combine { a: f64, x: Vector, b: f64, y: Vector, into: Vector },
    /// into ← x · y, in each place.
    Multiply { x: Vector, y: Vector, into: Vector },
    /// The sum of x · y. Products are rounded to `f64`, which has those of shorter types exactly.
    Dot { x: Vector, y: Vector },
    /// The sum of x.
    Sum { x: Vector },
}

impl Step {
    /// into ← x.
    pub fn copy(x: Vector, into: Vector) -> Step {
        Step::Scale { a: 1.0, x, into }
    }

    /// into ← into + x.
    pub fn add(x: Vector, into: Vector) -> Step {
        Step::axpy(1.0, x, into)
    }

    /// into ← a · x + into.
    pub fn axpy(a: f64, x: Vector, into: Vector) -> Step {
        Step::Combine { a, x, b: 1.0, y: into, into }
    }

    /// Whether it has a sum, and changes nothing.
    pub fn sums(self) -> bool {
        matches!(self, Step::Dot { .. } | Step::Sum { .. })
    }

    /// The vectors that it names.
    pub(crate) fn vectors(self) -> [Vector; 3] {
        match self {
            Step::Fill { x, .. } | Step::Sum { x } => [x; 3],
            Step::Scale { x, into, .. } => [x, into, into],
            Step::Combine { x, y, into, .. } | Step::Multiply { x, y, into } => [x, y, into],
            Step::Dot { x, y } => [x, y, y],
        }
    }

    /// Bytes of a step in a command.
    pub(crate) const BYTES: usize = 32;

    fn bytes(self) -> [u8; Step::BYTES] {
        let (number, a, b) = match self {
            Step::Fill { a, .. } => (1, a, 0.0),
            Step::Scale { a, .. } => (2, a, 0.0),
            Step::Combine { a, b, .. } => (3, a, b),
            Step::Multiply { .. } => (4, 0.0, 0.0),
            Step::Dot { .. } => (5, 0.0, 0.0),
            Step::Sum { .. } => (6, 0.0, 0.0),
        };
        let [x, y, into] = self.vectors().map(|vector| vector.0);
        let mut bytes = [0; Step::BYTES];
        let places = bytes.as_chunks_mut().0.iter_mut();
        places.zip([number, x, y, into]).for_each(|(place, it)| *place = it.to_le_bytes());
        bytes[16..24].copy_from_slice(&a.to_le_bytes());
        bytes[24..].copy_from_slice(&b.to_le_bytes());
        bytes
    }

    /// Reads a step; returns `None` if it is none.
    pub(crate) fn read(bytes: &[u8; Step::BYTES]) -> Option<Step> {
        let (words, factors) = bytes.split_at(16);
        let word = |at: usize| words.as_chunks().0.get(at).copied().map(u32::from_le_bytes);
        let [x, y, into] = [word(1)?, word(2)?, word(3)?].map(Vector);
        let factor = |at: usize| factors.as_chunks().0.get(at).copied().map(f64::from_le_bytes);
        let [a, b] = [factor(0)?, factor(1)?];
        Some(match word(0)? {
            1 => Step::Fill { a, x },
            2 => Step::Scale { a, x, into },
            3 => Step::Combine { a, x, b, y, into },
            4 => Step::Multiply { x, y, into },
            5 => Step::Dot { x, y },
            6 => Step::Sum { x },
            _ => return None,
        })
    }
}

/// A table of vectors.
///
/// Each call is one request to each shard, and waits for it; [`Vectors::push`] and
/// [`Vectors::pull`] return at once. What a worker asks of a shard happens in the order in which it
/// asks. Several workers agree by barriers on when vectors are ready.
#[derive(Debug, Clone, Copy)]
pub struct Vectors {
    table: Table,
}

impl Vectors {
    /// Creates a table of [`spec`], or joins it.
    ///
    /// # Errors
    /// [`Error::Config`] if the table has another handle; as
    /// [`Admin::create_table`](crate::Admin::create_table).
    pub fn create(worker: &mut Worker, spec: &TableSpec) -> Result<Vectors> {
        if spec.handle != HANDLE {
            let TableSpec { name, handle, .. } = spec;
            let why =
                format!("table {name} has the handle {handle}; vectors need the handle {HANDLE}");
            return Err(Error::Config(why));
        }
        Ok(Vectors { table: worker.admin().create_table(spec)? })
    }

    /// The table.
    pub fn table(&self) -> Table {
        self.table
    }

    /// Executes steps in their order, in one request; returns the sums of those that have one.
    ///
    /// # Errors
    /// As [`Worker::command`]; [`Error::Refused`] names a vector that the table does not have.
    /// Nothing was done then at the servers that refuse.
    pub fn run(&self, worker: &mut Worker, steps: &[Step]) -> Result<Vec<f64>> {
        let body: Vec<u8> = steps.iter().flat_map(|step| step.bytes()).collect();
        let asked = worker.command(self.table, &body)?;
        let replies = worker.wait(asked)?.replies;
        let count = steps.iter().filter(|step| step.sums()).count();
        let mut sums = vec![ExactSum::default(); count];
        for reply in &replies {
            let mut rest = &reply[..];
            for sum in &mut sums {
                let part = ExactSum::read(&mut rest);
                sum.merge(&part.ok_or_else(|| Error::Config(CUT_OFF.to_owned()))?);
            }
        }
        Ok(sums.iter().map(ExactSum::value).collect())
    }

    fn run_one(&self, worker: &mut Worker, step: Step) -> Result<()> {
        self.run(worker, &[step]).map(drop)
    }

    fn sum_of(&self, worker: &mut Worker, step: Step) -> Result<f64> {
        Ok(self.run(worker, &[step])?.iter().sum())
    }

    /// x ← a, in each place.
    ///
    /// # Errors
    /// As [`Vectors::run`], here and below.
    pub fn fill(&self, worker: &mut Worker, a: f64, x: Vector) -> Result<()> {
        self.run_one(worker, Step::Fill { a, x })
    }

    /// into ← x.
    pub fn copy(&self, worker: &mut Worker, x: Vector, into: Vector) -> Result<()> {
        self.run_one(worker, Step::copy(x, into))
    }

    /// x ← a · x.
    pub fn scale(&self, worker: &mut Worker, a: f64, x: Vector) -> Result<()> {
        self.run_one(worker, Step::Scale { a, x, into: x })
    }

    /// into ← into + x.
    pub fn add(&self, worker: &mut Worker, x: Vector, into: Vector) -> Result<()> {
        self.run_one(worker, Step::add(x, into))
    }

    /// into ← a · x + into.
    pub fn axpy(&self, worker: &mut Worker, a: f64, x: Vector, into: Vector) -> Result<()> {
        self.run_one(worker, Step::axpy(a, x, into))
    }

    /// The sum of x · y.
    pub fn dot(&self, worker: &mut Worker, x: Vector, y: Vector) -> Result<f64> {
        self.sum_of(worker, Step::Dot { x, y })
    }

    /// The Euclidean norm of x: the root of its [`Vectors::dot`] with itself, which is infinite
    /// before the norm is.
    pub fn norm(&self, worker: &mut Worker, x: Vector) -> Result<f64> {
        Ok(self.dot(worker, x, x)?.sqrt())
    }

    /// Adds values to these elements of a vector.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn push<'k, V: Value>(
        &self,
        worker: &mut Worker,
        vector: Vector,
        keys: impl Into<Keys<'k>>,
        values: &[V],
    ) -> Result<Timestamp> {
        with_command(worker, vector, |worker| worker.push(self.table, keys, values))
    }

    /// Pulls these elements of a vector; [`Worker::wait`] returns them.
    ///
    /// # Errors
    /// As [`Worker::pull`].
    pub fn pull<'k>(
        &self,
        worker: &mut Worker,
        vector: Vector,
        keys: impl Into<Keys<'k>>,
    ) -> Result<Timestamp> {
        with_command(worker, vector, |worker| worker.pull(self.table, keys))
    }
}

const CUT_OFF: &str = "a server's sum is cut off: is its version of Caravan another one?";

/// Makes a request for one vector, which the command number names.
fn with_command<T>(
    worker: &mut Worker,
    vector: Vector,
    request: impl FnOnce(&mut Worker) -> Result<T>,
) -> Result<T> {
    let before = worker.command_number();
    worker.set_command(i32::try_from(vector.0).unwrap_or(i32::MAX));
    let made = request(worker);
    worker.set_command(before);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_were_written() {
        let [x, y, into] = [Vector(1), Vector(u32::MAX), Vector(3)];
        let (a, b) = (f64::NEG_INFINITY, 0.1);
        for step in [
            Step::Fill { a, x },
            Step::Scale { a, x, into },
            Step::Combine { a, x, b, y, into },
            Step::Multiply { x, y, into },
            Step::Dot { x, y },
            Step::Sum { x },
        ] {
            assert_eq!(Step::read(&step.bytes()), Some(step));
        }
        assert_eq!(Step::read(&[7; Step::BYTES]), None);
        assert_eq!(Step::read(&[0; Step::BYTES]), None);
    }
}
