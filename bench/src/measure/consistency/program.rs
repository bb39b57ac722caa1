//! What the workers of a run do: which keys they touch in an iteration, and how long they compute.
//! All of it follows from the seed, so that workers, the serial run and the schedule without
//! messages agree.

use std::ops::Range;
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::filter::Draws;
use serde::{Deserialize, Serialize};

/// One run of all workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) model: Model,
    pub(super) workers: usize,
    pub(super) iterations: u64,
    pub(super) program: Program,
    pub(super) pauses: Pauses,
    pub(super) seed: u64,
}

/// What a worker does in an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Program {
    /// It reads keys of its own choice, computes, and adds to them, as in FlexPS's report, section
    /// 9.2.
    Sparse {
        /// Keys of the table.
        dimensions: u64,
        /// Keys that it draws.
        nonzeros: u64,
        compute: Duration,
    },
    /// It reads all chunks of features, computes on each as it comes, and writes its own: gradient
    /// descent for linear regression, as in the parameter database's paper, section 6.
    Regression {
        /// Features of each chunk.
        chunk: u64,
        examples: u64,
    },
}

/// What makes stragglers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Pauses {
    /// Share of iterations in which a worker is slow.
    pub(super) share: f64,
    /// How much longer it computes then, at most.
    pub(super) longest: Duration,
    /// How many times as long the last worker computes.
    pub(super) slowest: f64,
}

/// The time that a worker computes in an iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work {
    /// On what it has read.
    pub(super) reading: Duration,
    /// After all of it.
    pub(super) ending: Duration,
}

/// Time of one multiplication and addition on a core.
const MULTIPLY_NANOS: f64 = 1.0;

impl Task {
    /// The draws of a worker's iteration.
    fn draws(&self, rank: usize, clock: u64) -> Draws {
        Draws::new(self.seed, (rank as u64) << 32 | clock)
    }

    pub(super) fn work(&self, rank: usize, clock: u64) -> Work {
        let Pauses { share, longest, slowest } = self.pauses;
        let multiply = |count: u64| Duration::from_nanos((count as f64 * MULTIPLY_NANOS) as u64);
        let work = match self.program {
            Program::Sparse { compute, .. } => Work { reading: compute, ending: Duration::ZERO },
            Program::Regression { chunk, examples } => Work {
                reading: multiply(examples * chunk * self.workers as u64),
                ending: multiply(examples * chunk),
            },
        };
        let mut draws = self.draws(rank, clock);
        let is_slow = draws.next_unit() < share;
        let pause = if is_slow { longest.mul_f64(draws.next_unit()) } else { Duration::ZERO };
        let factor = if rank + 1 == self.workers { slowest } else { 1.0 };
        Work {
            reading: (work.reading + pause).mul_f64(factor),
            ending: work.ending.mul_f64(factor),
        }
    }

    /// The keys that a worker draws for an iteration, which may repeat; none after the last one.
    pub(super) fn drawn(&self, rank: usize, clock: u64) -> impl Iterator<Item = u64> + use<> {
        let (dimensions, nonzeros) = match self.program {
            Program::Sparse { dimensions, nonzeros, .. } if clock <= self.iterations => {
                (dimensions, nonzeros)
            }
            _ => (1, 0),
        };
        let mut draws = Draws::new(!self.seed, (rank as u64) << 32 | clock);
        (0..nonzeros).map(move |_| draws.next_bits() % dimensions)
    }

    /// The same as the keys of a request.
    pub(super) fn keys(&self, rank: usize, clock: u64) -> Vec<u64> {
        let mut keys: Vec<u64> = self.drawn(rank, clock).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The keys of a worker's chunk.
    pub(super) fn chunk(&self, rank: usize) -> Range<u64> {
        let Program::Regression { chunk, .. } = self.program else { return 0..0 };
        rank as u64 * chunk..(rank as u64 + 1) * chunk
    }

    /// How many iterations before or after the last one a chunk's version may be that a worker
    /// reads.
    pub(super) fn slack(&self) -> u64 {
        match self.model {
            Model::Bsp => 0,
            Model::DataCentric { delay: Some(delay), .. } => delay,
            _ => u64::MAX,
        }
    }

    /// The next values of a worker's chunk: the iteration, and numbers that every value it has read
    /// changes.
    pub(super) fn next(&self, rank: usize, clock: u64, read: &[i32]) -> Vec<i32> {
        let mut hash = rank as u64 + 1;
        for value in read {
            hash = (hash ^ u64::from(value.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        let numbers = self.chunk(rank).map(|key| hash.wrapping_add(key << 7) as i32);
        std::iter::once(clock as i32).chain(numbers.skip(1)).collect()
    }

    /// All chunks after the run of one worker that does all the work.
    pub(super) fn serial(&self) -> Vec<i32> {
        let mut values = vec![0; self.chunk(self.workers - 1).end as usize];
        for clock in 1..=self.iterations {
            let next = (0..self.workers).flat_map(|rank| self.next(rank, clock, &values));
            values = next.collect();
        }
        values
    }
}
