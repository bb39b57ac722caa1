//! The schedule of the same work if messages took no time: what the models themselves cost.
//!
//! Requests are executed at once when their model admits them. All that an iteration waits for is
//! of earlier ones, so one pass over the iterations gives the time of each event.

use std::collections::HashMap;
use std::time::Duration;

use caravan_kv::consistency::Model;

use super::program::{Program, Task, Work};

/// When the last worker has finished its last iteration.
pub(super) fn ends(task: &Task) -> Duration {
    match task.program {
        Program::Sparse { .. } => sparse(task),
        Program::Regression { .. } => regression(task),
    }
}

/// Times by iteration, from 0, and worker.
type Times = Vec<Vec<Duration>>;

fn latest(times: &[Duration]) -> Duration {
    times.iter().copied().max().unwrap_or_default()
}

fn sparse(task: &Task) -> Duration {
    let none = u64::MAX;
    let (free, speculation) = match task.model {
        Model::Bsp => (0, 0),
        Model::Ssp { staleness } => (staleness, 0),
        Model::SparseSsp { staleness, speculation } => (staleness, speculation),
        _ => (none, 0),
    };
    let mut ends: Times = vec![vec![Duration::ZERO; task.workers]];
    let mut touched = Touched::default();
    for clock in 1..=task.iterations {
        let finished = |before: u64| clock.checked_sub(before.saturating_add(1));
        let all = finished(free.saturating_add(speculation)).unwrap_or(0);
        let all = latest(&ends[all as usize]);
        let mut now = Vec::with_capacity(task.workers);
        for rank in 0..task.workers {
            let mut begins = ends[clock as usize - 1][rank].max(all);
            if speculation > 0 {
                let older = finished(free).unwrap_or(0);
                let conflict = touched.latest(task.drawn(rank, clock), rank, older, &ends);
                begins = begins.max(conflict);
            }
            let Work { reading, ending } = task.work(rank, clock);
            now.push(begins + reading + ending);
        }
        ends.push(now);
        if speculation > 0 {
            (0..task.workers).for_each(|rank| touched.add(rank, clock, task.drawn(rank, clock)));
            touched.forget(clock, (free + speculation).saturating_add(1));
        }
    }
    latest(&ends[task.iterations as usize])
}

/// Who has touched which key in which of the last iterations.
#[derive(Default)]
struct Touched {
    keys: HashMap<u64, Vec<Touch>>,
}

#[derive(Clone, Copy)]
struct Touch {
    rank: usize,
    clock: u64,
}

impl Touched {
    fn add(&mut self, rank: usize, clock: u64, keys: impl Iterator<Item = u64>) {
        keys.for_each(|key| self.keys.entry(key).or_default().push(Touch { rank, clock }));
    }

    /// When the last of the iterations up to `older` ends in which another worker touches these
    /// keys.
    fn latest(
        &self,
        keys: impl Iterator<Item = u64>,
        rank: usize,
        older: u64,
        ends: &Times,
    ) -> Duration {
        let touches = keys.filter_map(|key| self.keys.get(&key)).flatten();
        let conflicts = touches.filter(|touch| touch.rank != rank && touch.clock <= older);
        conflicts.map(|touch| ends[touch.clock as usize][touch.rank]).max().unwrap_or_default()
    }

    /// Forgets iterations that no later one looks at.
    fn forget(&mut self, clock: u64, kept: u64) {
        if clock.is_multiple_of(kept) {
            self.keys.retain(|_, touches| {
                touches.retain(|touch| touch.clock + kept > clock);
                !touches.is_empty()
            });
        }
    }
}

fn regression(task: &Task) -> Duration {
    let delay = match task.model {
        Model::DataCentric { delay, .. } => delay.unwrap_or(u64::MAX),
        _ => 0,
    };
    let is_bsp = task.model == Model::Bsp;
    let workers = task.workers;
    let mut written: Times = vec![vec![Duration::ZERO; workers]];
    // When every chunk was read by its last reader.
    let mut read: Times = vec![vec![Duration::ZERO; workers]];
    let mut free = vec![Duration::ZERO; workers];
    for clock in 1..=task.iterations {
        let needed = (clock - 1).saturating_sub(delay) as usize;
        let barrier = latest(&written[needed]);
        let mut last_read = vec![Duration::ZERO; workers];
        for (rank, free) in free.iter_mut().enumerate() {
            let comes = |chunk: usize| if is_bsp { barrier } else { written[needed][chunk] };
            let mut reads: Vec<Duration> =
                (0..workers).map(|chunk| comes(chunk).max(*free)).collect();
            last_read.iter_mut().zip(&reads).for_each(|(last, read)| *last = (*last).max(*read));
            reads.sort_unstable();
            let Work { reading, ending } = task.work(rank, clock);
            let each = reading / workers as u32;
            *free = reads.into_iter().fold(*free, |now, read| now.max(read) + each) + ending;
        }
        read.push(last_read);
        let write = |rank: usize| match clock.checked_sub(delay) {
            Some(needed) if !is_bsp => free[rank].max(read[needed as usize][rank]),
            _ => free[rank],
        };
        written.push((0..workers).map(write).collect());
    }
    latest(&written[task.iterations as usize])
}

#[cfg(test)]
mod tests {
    use super::super::program::Pauses;
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn task(model: Model, program: Program, slowest: f64) -> Task {
        let pauses = Pauses { share: 0.0, longest: Duration::ZERO, slowest };
        Task { model, workers: 4, iterations: 10, program, pauses, seed: 1 }
    }

    #[test]
    fn one_slow_worker_holds_up_all_but_as_many_iterations_as_the_model_lets_them() {
        let sparse = Program::Sparse { dimensions: 1_000_000, nonzeros: 2, compute: MILLI };
        for model in [
            Model::Bsp,
            Model::Ssp { staleness: 3 },
            Model::SparseSsp { staleness: 1, speculation: 2 },
            Model::Asp,
        ] {
            assert_eq!(ends(&task(model, sparse, 2.0)), 20 * MILLI, "{model}");
            assert_eq!(ends(&task(model, sparse, 1.0)), 10 * MILLI, "{model}");
        }
        // In one iteration of a thousand examples and a chunk of a thousand: 4 + 1 ms.
        let chunks = Program::Regression { chunk: 1000, examples: 1000 };
        for delay in [Some(0), Some(1), None] {
            let model = Model::DataCentric { delay, chunk_keys: 1000 };
            assert_eq!(ends(&task(model, chunks, 1.0)), 50 * MILLI, "{model}");
        }
        assert_eq!(ends(&task(Model::Bsp, chunks, 1.0)), 50 * MILLI);
        assert_eq!(ends(&task(Model::Bsp, chunks, 3.0)), 150 * MILLI);
    }

    /// Keys that all workers touch make SparseSSP as slow as SSP.
    #[test]
    fn conflicts_are_waited_for() {
        let ends = |model, dimensions| {
            let program = Program::Sparse { dimensions, nonzeros: 1, compute: MILLI };
            let pauses = Pauses { share: 0.2, longest: 20 * MILLI, slowest: 1.0 };
            let task = task(model, program, 1.0);
            ends(&Task { pauses, workers: 20, iterations: 50, ..task })
        };
        let sparse = Model::SparseSsp { staleness: 1, speculation: 3 };
        assert_eq!(ends(sparse, 1), ends(Model::Ssp { staleness: 1 }, 1));
        assert_eq!(ends(sparse, u64::MAX), ends(Model::Ssp { staleness: 4 }, 1));
        assert!(ends(sparse, 1) > ends(sparse, u64::MAX));
        assert!(ends(Model::Bsp, 1) > ends(sparse, 1));
    }
}
