//! Stale synchronous parallel, as in FlexPS's `SSPModel`, Bosen and PD2F: a read at clock `c`
//! waits until all workers have finished iteration `c - 1 - s`. Writes never wait.

use super::{Access, Controller, Members, Verdict, WaitReason, check_member};

/// Bounds how far a reader may be ahead of the slowest worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ssp {
    members: Members,
    staleness: u64,
}

impl Ssp {
    /// For `workers` workers, of which none reads more than `staleness` clocks past the slowest.
    pub fn new(workers: usize, staleness: u64) -> Self {
        Ssp { members: Members::new(workers), staleness }
    }
}

impl Controller for Ssp {
    fn members(&self) -> &Members {
        &self.members
    }

    fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    fn bound(&self) -> Option<u64> {
        Some(self.staleness)
    }

    fn set_bound(&mut self, bound: u64) -> Result<(), super::Forbidden> {
        self.staleness = bound;
        Ok(())
    }

    fn admit(&mut self, access: &Access<'_>) -> Verdict {
        match check_member(&self.members, access) {
            Err(forbidden) => return Verdict::Refuse(forbidden),
            Ok(false) => return Verdict::Admit,
            Ok(true) => {}
        }
        let needed = access.clock.saturating_sub(self.staleness);
        if access.reads && self.members.slowest() < needed {
            return Verdict::Park(WaitReason::Slowest(needed));
        }
        Verdict::Admit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consistency::Forbidden;

    fn read(worker: u32, clock: u64) -> Access<'static> {
        Access { worker, clock, reads: true, writes: false, keys: &[] }
    }

    fn write(worker: u32, clock: u64) -> Access<'static> {
        Access { reads: false, writes: true, ..read(worker, clock) }
    }

    #[test]
    fn a_reader_is_at_most_the_staleness_ahead_of_the_slowest() {
        let mut ssp = Ssp::new(2, 2);
        ssp.join(0, 1);
        assert_eq!(ssp.admit(&read(0, 3)), Verdict::Admit, "two ahead of one who never came");
        ssp.join(1, 1);
        ssp.advance(0, 4, 0);
        assert_eq!(ssp.admit(&read(0, 4)), Verdict::Park(WaitReason::Slowest(2)));
        assert_eq!(ssp.admit(&write(0, 4)), Verdict::Admit, "writes never wait");
        assert!(ssp.is_blocked(&WaitReason::Slowest(2)));
        assert!(ssp.advance(1, 2, 0));
        assert_eq!(ssp.admit(&read(0, 4)), Verdict::Admit);
        assert_eq!(ssp.admit(&read(1, 9)), Verdict::Park(WaitReason::Slowest(7)));
        ssp.leave(1);
        assert_eq!(ssp.admit(&read(0, 6)), Verdict::Admit, "those who left block nobody");
    }

    #[test]
    fn strangers_and_finished_iterations_are_refused_and_observers_pass() {
        let mut ssp = Ssp::new(1, 0);
        assert_eq!(ssp.admit(&read(5, 1)), Verdict::Refuse(Forbidden::NotJoined { worker: 5 }));
        assert_eq!(ssp.admit(&read(5, 0)), Verdict::Admit);
        ssp.join(5, 1);
        ssp.advance(5, 3, 0);
        let finished = Forbidden::Finished { worker: 5, clock: 2, announced: 3 };
        assert_eq!(ssp.admit(&write(5, 2)), Verdict::Refuse(finished));
        assert_eq!(ssp.admit(&read(5, 2)), Verdict::Admit);
    }
}
