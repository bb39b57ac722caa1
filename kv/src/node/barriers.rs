//! Workers waiting at barriers of the tasks that they run. A worker waits at one at a time, so there
//! are never more barriers than workers.

use std::collections::{BTreeMap, BTreeSet};

use caravan_van::PeerId;

use super::members::{Seat, Violation};

/// Longest name of a barrier, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// A worker at a barrier, and where to send the answer.
pub(crate) struct Waiting {
    pub(crate) seat: Seat,
    pub(crate) peer: PeerId,
    pub(crate) timestamp: u64,
}

/// A barrier of a task.
#[derive(Default)]
struct Barrier {
    waiting: Vec<Waiting>,
    /// Ranks of the task's other workers.
    missing: BTreeSet<usize>,
}

/// All barriers with waiting workers, by task and name.
#[derive(Default)]
pub(crate) struct Barriers(BTreeMap<(u64, String), Barrier>);

impl Barriers {
    /// Adds a worker to a barrier of the task that workers of these `ranks` run. Returns all that
    /// wait there once none is missing.
    ///
    /// # Errors
    /// If the name is too long.
    pub(crate) fn arrive(
        &mut self,
        task: u64,
        name: String,
        waiting: Waiting,
        ranks: &BTreeSet<usize>,
    ) -> Result<Vec<Waiting>, Violation> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Violation::LongName(name.len()));
        }
        // A worker that asks again has given up its earlier wait.
        self.forget(waiting.seat);
        let new = || Barrier { waiting: Vec::new(), missing: ranks.clone() };
        let barrier = self.0.entry((task, name)).or_insert_with(new);
        barrier.missing.remove(&waiting.seat.rank);
        barrier.waiting.push(waiting);
        Ok(self.full())
    }

    /// Ends a worker's wait and returns the ranks of those that have not come; `None` if it did not
    /// wait.
    pub(crate) fn give_up(&mut self, task: u64, name: String, seat: Seat) -> Option<Vec<usize>> {
        let barrier = self.0.get(&(task, name))?;
        let waits = barrier.waiting.iter().any(|waiting| waiting.seat == seat);
        let missing = barrier.missing.iter().copied().collect();
        self.forget(seat);
        waits.then_some(missing)
    }

    /// Has nobody wait for a worker any more. Returns those that have waited for it alone.
    pub(crate) fn lose(&mut self, rank: usize) -> Vec<Waiting> {
        self.0.values_mut().for_each(|barrier| {
            barrier.missing.remove(&rank);
        });
        self.full()
    }

    /// Removes the barriers where nobody is missing.
    fn full(&mut self) -> Vec<Waiting> {
        let is_full = |_: &_, barrier: &mut Barrier| barrier.missing.is_empty();
        self.0.extract_if(.., is_full).flat_map(|(_, barrier)| barrier.waiting).collect()
    }

    /// Ends any wait of a worker.
    pub(crate) fn forget(&mut self, seat: Seat) {
        self.0.retain(|_, Barrier { waiting, missing }| {
            let before = waiting.len();
            waiting.retain(|waiting| waiting.seat != seat);
            if waiting.len() < before {
                missing.insert(seat.rank);
            }
            !waiting.is_empty()
        });
    }
}
