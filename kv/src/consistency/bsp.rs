//! Bulk synchronous parallel: a read at clock `c` sees all writes of iterations below `c`, and no
//! other.
//!
//! Writes of an iteration are kept until all workers have finished it, and are then applied in
//! order of rank. So a sum of floating-point numbers is the same to the bit in every run, and with
//! workers that take their parts of one serial run it is that run's.

use super::{Access, Controller, Forbidden, Members, Order, Verdict, WaitReason, check_member};

/// Separates the reads and the writes of iterations by barriers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bsp {
    members: Members,
}

impl Bsp {
    /// For `workers` workers.
    pub fn new(workers: usize) -> Self {
        Bsp { members: Members::new(workers) }
    }
}

impl Controller for Bsp {
    fn members(&self) -> &Members {
        &self.members
    }

    fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    fn announce(&mut self, access: &Access<'_>) -> Result<(), Forbidden> {
        check_member(&self.members, access)?;
        match access.reads && access.writes && access.clock > 0 {
            true => Err(Forbidden::ReadsAndWrites),
            false => Ok(()),
        }
    }

    fn admit(&mut self, access: &Access<'_>) -> Verdict {
        let Access { worker, clock, writes, .. } = *access;
        if clock == 0 {
            return Verdict::Admit;
        }
        // A write is applied after its iteration is finished, and perhaps after its worker left.
        if !writes && self.members.clock(worker).is_none() {
            return Verdict::Refuse(Forbidden::NotJoined { worker });
        }
        let needed = if writes { clock.saturating_add(1) } else { clock };
        if self.members.slowest() < needed {
            return Verdict::Park(WaitReason::Slowest(needed));
        }
        Verdict::Admit
    }

    /// A write waits for the clock that ends its iteration.
    fn precedes_clock(&self, _access: &Access<'_>) -> bool {
        false
    }

    /// Writes of finished iterations do: other servers may have applied theirs already.
    fn outlives(&self, access: &Access<'_>) -> bool {
        access.writes && self.members.clock(access.worker).is_some_and(|own| access.clock < own)
    }

    fn order(&self, access: &Access<'_>) -> Order {
        Order { clock: access.clock, writes: access.writes, worker: access.worker }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_two_iterations_ahead_waits_like_others() {
        let mut bsp = Bsp::new(2);
        bsp.join(0, 1);
        bsp.join(1, 1);
        let write = |clock| Access { worker: 0, clock, reads: false, writes: true, keys: &[] };
        let read = |clock| Access { worker: 0, clock, reads: true, writes: false, keys: &[] };
        assert_eq!(bsp.admit(&write(1)), Verdict::Park(WaitReason::Slowest(2)));
        bsp.advance(0, 2, 0);
        assert_eq!(bsp.admit(&write(2)), Verdict::Park(WaitReason::Slowest(3)));
        bsp.advance(0, 3, 0);
        assert_eq!(bsp.admit(&read(2)), Verdict::Park(WaitReason::Slowest(2)));
        assert!(bsp.advance(1, 2, 0));
        assert!(bsp.order(&write(1)) < bsp.order(&read(2)));
        assert_eq!(bsp.admit(&write(1)), Verdict::Admit);
        assert_eq!(bsp.admit(&read(2)), Verdict::Admit);
        assert_eq!(bsp.admit(&write(2)), Verdict::Park(WaitReason::Slowest(3)));
    }
}
