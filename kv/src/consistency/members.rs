//! The workers that take part in a table, and how far each has come.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The clock of every worker that takes part.
///
/// The slowest worker's clock bounds the others. Until the expected number of workers has joined,
/// the slowest clock is 1: nobody has finished anything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Members {
    /// Sorted by worker.
    clocks: Vec<Member>,
    /// Workers that have ever joined, until the expected number of them has.
    awaited: Option<Awaited>,
    slowest: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Member {
    worker: u32,
    clock: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Awaited {
    expected: usize,
    seen: BTreeSet<u32>,
}

impl Members {
    /// None yet, of `expected` ones.
    pub fn new(expected: usize) -> Self {
        let awaited = (expected > 0).then(|| Awaited { expected, seen: BTreeSet::new() });
        let slowest = if awaited.is_some() { 1 } else { u64::MAX };
        Members { clocks: Vec::new(), awaited, slowest }
    }

    fn position(&self, worker: u32) -> Result<usize, usize> {
        self.clocks.binary_search_by_key(&worker, |member| member.worker)
    }

    /// The clock that `worker` has announced, if it takes part.
    pub fn clock(&self, worker: u32) -> Option<u64> {
        self.position(worker).ok().map(|at| self.clocks[at].clock)
    }

    /// The slowest worker's clock: all iterations below it are finished. `u64::MAX` if all workers
    /// have left.
    #[inline]
    pub fn slowest(&self) -> u64 {
        self.slowest
    }

    /// Whether the expected number of workers has joined.
    pub fn is_complete(&self) -> bool {
        self.awaited.is_none()
    }

    /// The workers that take part, ascending.
    pub fn workers(&self) -> impl Iterator<Item = u32> + '_ {
        self.clocks.iter().map(|member| member.worker)
    }

    /// The workers with their clocks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.clocks.iter().map(|member| (member.worker, member.clock))
    }

    /// Number of workers that take part.
    pub fn len(&self) -> usize {
        self.clocks.len()
    }

    /// Whether none takes part.
    pub fn is_empty(&self) -> bool {
        self.clocks.is_empty()
    }

    /// `worker` takes part from `clock` on, or from the slowest clock if that is larger; a member
    /// stays as it is. Returns its clock.
    pub fn join(&mut self, worker: u32, clock: u64) -> u64 {
        let at = match self.position(worker) {
            Ok(at) => return self.clocks[at].clock,
            Err(at) => at,
        };
        let slowest = if self.clocks.is_empty() { 1 } else { self.slowest };
        let clock = clock.max(slowest).max(1);
        self.clocks.insert(at, Member { worker, clock });
        if let Some(awaited) = &mut self.awaited {
            awaited.seen.insert(worker);
            if awaited.seen.len() >= awaited.expected {
                self.awaited = None;
            }
        }
        self.find_slowest();
        clock
    }

    /// `worker` has finished its iterations below `clock`. Returns whether the slowest clock rose.
    pub fn advance(&mut self, worker: u32, clock: u64) -> bool {
        let Ok(at) = self.position(worker) else { return false };
        let before = self.clocks[at].clock;
        if clock <= before {
            return false;
        }
        self.clocks[at].clock = clock;
        before == self.slowest && self.find_slowest()
    }

    /// `worker` takes part no longer. Returns whether the slowest clock rose.
    pub fn leave(&mut self, worker: u32) -> bool {
        let Ok(at) = self.position(worker) else { return false };
        self.clocks.remove(at);
        self.find_slowest()
    }

    /// `worker` is as it is in `others`: its clock may fall, and it may take part again or no
    /// longer.
    pub(crate) fn take_from(&mut self, others: &Members, worker: u32) {
        match (self.position(worker), others.clock(worker)) {
            (Ok(at), Some(clock)) => self.clocks[at].clock = clock,
            (Ok(at), None) => drop(self.clocks.remove(at)),
            (Err(at), Some(clock)) => self.clocks.insert(at, Member { worker, clock }),
            (Err(_), None) => {}
        }
        self.find_slowest();
    }

    /// Returns whether the slowest clock rose.
    fn find_slowest(&mut self) -> bool {
        let before = self.slowest;
        self.slowest = match self.awaited {
            Some(_) => 1,
            None => self.clocks.iter().map(|member| member.clock).min().unwrap_or(u64::MAX),
        };
        self.slowest > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_nobody_until_all_have_joined() {
        let mut members = Members::new(2);
        assert_eq!(members.join(7, 0), 1);
        assert!(!members.advance(7, 5));
        members.leave(7);
        members.join(7, 5);
        assert_eq!(members.slowest(), 1, "the same worker again is not the second one");
        assert_eq!(members.join(3, 1), 1);
        assert!(members.advance(3, 4));
        assert_eq!(members.slowest(), 4);
        assert_eq!(members.join(9, 1), 4, "a late worker begins where the slowest is");
        assert!(!members.advance(3, 2), "a clock never falls");
        assert!(!members.advance(8, 9), "a stranger's clock counts for nobody");
        for worker in [3, 7, 9] {
            members.leave(worker);
        }
        assert_eq!(members.slowest(), u64::MAX, "nobody waits for those who left");
    }

    #[test]
    fn one_worker_is_taken_from_other_members() {
        let mut settled = Members::new(2);
        settled.join(3, 1);
        settled.join(7, 1);
        let mut ahead = settled.clone();
        ahead.advance(3, 4);
        assert!(ahead.leave(7));
        assert_eq!(ahead.slowest(), 4);
        ahead.take_from(&settled, 7);
        assert_eq!((ahead.clock(7), ahead.slowest()), (Some(1), 1));
        ahead.advance(7, 4);
        ahead.take_from(&settled, 3);
        assert_eq!((ahead.clock(3), ahead.slowest()), (Some(1), 1));
        settled.leave(3);
        ahead.take_from(&settled, 3);
        ahead.take_from(&settled, 9);
        assert_eq!((ahead.clock(3), ahead.len(), ahead.slowest()), (None, 1, 4));
    }
}
