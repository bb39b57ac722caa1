//! Bounded delay of the parameter server (OSDI 2014, section 3.4): a task starts when all tasks of
//! more than `τ` iterations ago are finished. 0 is sequential, a large τ eventual.

use super::{Access, Controller, Forbidden, Members, Verdict, WaitReason, check_member};

/// Bounds how far any request may be ahead of the slowest worker. The bound may change while the
/// workers run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BoundedDelay {
    members: Members,
    delay: u64,
}

impl BoundedDelay {
    /// For `workers` workers, with delay `delay`.
    pub fn new(workers: usize, delay: u64) -> Self {
        BoundedDelay { members: Members::new(workers), delay }
    }
}

impl Controller for BoundedDelay {
    fn members(&self) -> &Members {
        &self.members
    }

    fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    fn bound(&self) -> Option<u64> {
        Some(self.delay)
    }

    fn set_bound(&mut self, bound: u64) -> Result<(), Forbidden> {
        self.delay = bound;
        Ok(())
    }

    fn admit(&mut self, access: &Access<'_>) -> Verdict {
        match check_member(&self.members, access) {
            Err(forbidden) => return Verdict::Refuse(forbidden),
            Ok(false) => return Verdict::Admit,
            Ok(true) => {}
        }
        let needed = access.clock.saturating_sub(self.delay);
        if self.members.slowest() < needed {
            return Verdict::Park(WaitReason::Slowest(needed));
        }
        Verdict::Admit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_delay_holds_at_once() {
        let mut delayed = BoundedDelay::new(2, 0);
        delayed.join(0, 1);
        delayed.join(1, 1);
        delayed.advance(0, 3, 0);
        let write = Access { worker: 0, clock: 3, reads: false, writes: true, keys: &[] };
        assert_eq!(delayed.admit(&write), Verdict::Park(WaitReason::Slowest(3)));
        assert_eq!(delayed.set_bound(1), Ok(()));
        assert_eq!(delayed.admit(&write), Verdict::Park(WaitReason::Slowest(2)));
        assert_eq!(delayed.set_bound(2), Ok(()));
        assert_eq!(delayed.admit(&write), Verdict::Admit);
    }
}
