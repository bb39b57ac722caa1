//! Data-centric read and write constraints of the parameter database, with admissible delay `δ`.
//!
//! The keys are cut into chunks; each chunk has one worker that writes it, and all workers that
//! take part read it. In iteration `α` a worker reads chunks, and then writes its own. The
//! constraints (Algorithms 2a and 2b) hold for each chunk by itself:
//!
//! * a read at `α` waits for the chunk's write of iteration `α - 1 - δ`; with δ = 0 it sees exactly
//!   the write of `α - 1`;
//! * a write at `α` waits until all readers have read the chunk at `α - δ`.
//!
//! δ = 0 gives the result of the serial run to the bit. An infinite δ is Hogwild. An extra reader
//! that writes nothing, as a judge of convergence, keeps all chunks at its iteration.
//!
//! A worker that announces a clock has finished its iterations below: a chunk that it did not read
//! there no longer waits for it. Where all workers have finished an iteration, the chunk counts as
//! written in it, also if its owner wrote nothing or left.
//!
//! With δ = 0 the next write of a chunk may come as soon as all have read it. So a read whose
//! answer was lost is one of the version before ([`Verdict::Previous`]).

use std::collections::BTreeMap;

use super::chunk::{Chunk, Reads};
use super::{Access, Controller, Forbidden, Members, Standing, Verdict, WaitReason};

/// Bounds the delay between the reads and the writes of each chunk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DataCentric {
    members: Members,
    /// `None` is infinite.
    delay: Option<u64>,
    chunk_keys: u64,
    chunks: BTreeMap<u64, Chunk>,
    /// Number of all readers' entries in the chunks.
    readers: usize,
    /// Number of all their reads ahead.
    ahead: usize,
}

/// Memory of a chunk, and of each of its readers.
const CHUNK_BYTES: usize = 128;

/// Memory of a read ahead.
const READ_BYTES: usize = 48;

impl DataCentric {
    /// For `workers` readers, judges included, and chunks of `chunk_keys` keys, at least 1; `delay`
    /// is `None` for an infinite one.
    pub fn new(workers: usize, delay: Option<u64>, chunk_keys: u64) -> Self {
        let members = Members::new(workers);
        let chunks = BTreeMap::new();
        DataCentric { members, delay, chunk_keys: chunk_keys.max(1), chunks, readers: 0, ahead: 0 }
    }

    /// The iteration of a chunk's last write.
    pub fn written(&self, chunk: u64) -> u64 {
        self.chunks.get(&chunk).map_or(0, |chunk| chunk.written)
    }

    /// The last iteration whose write a chunk is done with.
    fn settled(&self, chunk: u64) -> u64 {
        self.written(chunk).max(self.members.slowest() - 1)
    }

    /// Whether all readers have read a chunk in iteration `version`, or have finished it.
    fn is_read(&self, chunk: u64, version: u64) -> bool {
        if version > 0 && !self.members.is_complete() {
            return false;
        }
        let chunk = self.chunks.get(&chunk);
        let through =
            |worker| chunk.and_then(|chunk| chunk.reads(worker)).map_or(0, |reads| reads.through);
        self.members.iter().all(|(worker, clock)| clock > version || through(worker) >= version)
    }

    /// Counts a request of a worker in iteration `announced` as executed.
    fn count(&mut self, access: &Access<'_>, announced: u64) {
        let Access { worker, clock, writes, keys, .. } = *access;
        for chunk in chunks(keys, self.chunk_keys) {
            let chunk = self.chunks.entry(chunk).or_default();
            if writes {
                chunk.written = chunk.written.max(clock);
                chunk.owner = Some(worker);
            } else {
                let at = chunk.position(worker).unwrap_or_else(|at| {
                    self.readers += 1;
                    chunk.readers.reserve_exact(1);
                    chunk.readers.insert(at, (worker, Reads::default()));
                    at
                });
                let reads = &mut chunk.readers[at].1;
                self.ahead -= reads.beyond.len();
                reads.through = reads.through.max(announced - 1);
                reads.add(clock);
                self.ahead += reads.beyond.len();
            }
        }
    }

    /// Whether a read may be executed, without its effect.
    fn check_read(&self, access: &Access<'_>, delay: u64) -> Verdict {
        let Access { worker, clock, .. } = *access;
        let needed = (clock - 1).saturating_sub(delay);
        let mut is_repeated = false;
        for chunk in chunks(access.keys, self.chunk_keys) {
            let written = self.settled(chunk);
            if written < needed {
                return Verdict::Park(WaitReason::Written { chunk, version: needed });
            }
            if delay > 0 || written == needed {
                continue;
            }
            let reads = self.chunks.get(&chunk).and_then(|chunk| chunk.reads(worker));
            let was_read = reads.is_some_and(|reads| reads.through >= clock);
            if self.written(chunk) != clock || !was_read {
                return Verdict::Refuse(Forbidden::Stale { chunk, clock, written });
            }
            is_repeated = true;
        }
        if is_repeated { Verdict::Previous } else { Verdict::Admit }
    }

    /// Whether a write may be executed, without its effect.
    fn check_write(&self, access: &Access<'_>, delay: u64, announced: u64) -> Verdict {
        let Access { worker, clock, keys, .. } = *access;
        let is_repeated = |chunk| {
            let known = self.chunks.get(&chunk);
            known.is_some_and(|known| known.written >= clock && known.owner == Some(worker))
        };
        if !keys.is_empty() && chunks(keys, self.chunk_keys).all(is_repeated) {
            return Verdict::Repeated;
        }
        if clock < announced {
            return Verdict::Refuse(Forbidden::Finished { worker, clock, announced });
        }
        let needed = clock.saturating_sub(delay);
        let mut wait_reason = None;
        for chunk in chunks(keys, self.chunk_keys) {
            let owner = self.chunks.get(&chunk).and_then(|chunk| chunk.owner);
            let other = owner.filter(|&owner| owner != worker);
            if let Some(owner) = other.filter(|owner| self.members.clock(*owner).is_some()) {
                return Verdict::Refuse(Forbidden::NotOwner { worker, chunk, owner });
            }
            let written = self.written(chunk);
            let done = written.max(announced - 1);
            if done > clock - 1 {
                return Verdict::Refuse(Forbidden::OutOfOrder { chunk, clock, written });
            }
            if done < clock - 1 {
                // That of the iteration before is parked, and with it the worker's clock.
                wait_reason = Some(WaitReason::Written { chunk, version: clock - 1 });
            }
            if wait_reason.is_none() && !self.is_read(chunk, needed) {
                wait_reason = Some(WaitReason::Read { chunk, version: needed });
            }
        }
        wait_reason.map_or(Verdict::Admit, Verdict::Park)
    }
}

impl Controller for DataCentric {
    fn members(&self) -> &Members {
        &self.members
    }

    fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    /// A worker that comes when others have begun starts after the last write, so that no chunk is
    /// past its first iteration.
    fn join(&mut self, worker: u32, clock: u64) -> u64 {
        let written = self.chunks.values().map(|chunk| chunk.written);
        let last = if self.members.is_complete() { written.max().unwrap_or(0) } else { 0 };
        self.members.join(worker, clock.max(last.saturating_add(1)))
    }

    fn advance(&mut self, worker: u32, clock: u64, _disclosed: u64) -> bool {
        let rises = self.members.clock(worker).is_some_and(|before| before < clock);
        self.members.advance(worker, clock);
        rises
    }

    fn leave(&mut self, worker: u32) {
        self.members.leave(worker);
        for chunk in self.chunks.values_mut() {
            if let Ok(at) = chunk.position(worker) {
                let (_, reads) = chunk.readers.remove(at);
                self.readers -= 1;
                self.ahead -= reads.beyond.len();
            }
        }
    }

    fn announce(&mut self, access: &Access<'_>) -> Result<(), Forbidden> {
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
        let Some(announced) = self.members.clock(worker) else {
            return Verdict::Refuse(Forbidden::NotJoined { worker });
        };
        let Some(delay) = self.delay else { return Verdict::Admit };
        let verdict = match writes {
            true => self.check_write(access, delay, announced),
            false => self.check_read(access, delay),
        };
        if verdict == Verdict::Admit {
            self.count(access, announced);
        }
        verdict
    }

    fn counts_reads(&self) -> bool {
        self.delay.is_some()
    }

    fn repeat(&mut self, access: &Access<'_>) -> bool {
        let Access { worker, clock, writes, keys, .. } = *access;
        let (Some(announced), Some(_), 1..) = (self.members.clock(worker), self.delay, clock)
        else {
            return true;
        };
        let is_counted = |chunk: &Chunk| match writes {
            true => chunk.written >= clock,
            false => chunk.reads(worker).is_some_and(|reads| reads.has(clock)),
        };
        let mut all = chunks(keys, self.chunk_keys);
        if all.all(|chunk| self.chunks.get(&chunk).is_some_and(is_counted)) {
            return false;
        }
        self.count(access, announced);
        true
    }

    fn standing(&self) -> Standing {
        let chunks = self.chunks.clone();
        Standing { chunks, ..Standing::new(self.members.clone(), None) }
    }

    fn take(&mut self, standing: Standing) -> Result<(), Forbidden> {
        self.members = standing.members;
        self.chunks = standing.chunks;
        let readers = || self.chunks.values().flat_map(|chunk| &chunk.readers);
        self.readers = readers().count();
        self.ahead = readers().map(|(_, reads)| reads.beyond.len()).sum();
        Ok(())
    }

    fn is_blocked(&self, wait_reason: &WaitReason) -> bool {
        match *wait_reason {
            WaitReason::Written { chunk, version } => self.settled(chunk) < version,
            WaitReason::Read { chunk, version } => !self.is_read(chunk, version),
            _ => false,
        }
    }

    /// An iteration is finished when its reads are executed, too.
    fn precedes_clock(&self, _access: &Access<'_>) -> bool {
        true
    }

    fn releases(&self) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        CHUNK_BYTES * (self.chunks.len() + self.readers) + READ_BYTES * self.ahead
    }
}

/// The chunks of ascending keys, each once.
pub(crate) fn chunks(keys: &[u64], chunk_keys: u64) -> impl Iterator<Item = u64> + '_ {
    let mut rest = keys;
    std::iter::from_fn(move || {
        let chunk = rest.first()? / chunk_keys;
        let len = rest.iter().take_while(|key| **key / chunk_keys == chunk).count();
        rest = &rest[len..];
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that has heard of the same requests, or has taken over the standing, decides alike.
    #[test]
    fn a_copy_counts_what_another_one_has_admitted() {
        let new = || {
            let mut chunks = DataCentric::new(2, Some(0), 1);
            assert_eq!([0, 1].map(|worker| chunks.join(worker, 1)), [1, 1]);
            chunks
        };
        let (mut first, mut copy, mut later) = (new(), new(), DataCentric::new(2, Some(0), 1));
        let access =
            |worker, writes: bool| Access { worker, clock: 1, reads: !writes, writes, keys: &[0] };
        for access in [access(0, false), access(1, false), access(1, false), access(0, true)] {
            copy.repeat(&access);
            assert_eq!(first.admit(&access), Verdict::Admit);
            assert!(!copy.repeat(&access), "{access:?} is counted already");
            assert_eq!(first, copy);
        }
        assert_eq!(later.take(first.standing()), Ok(()));
        assert_eq!(later, first);
        for mut one in [copy, later] {
            assert_eq!(one.admit(&access(1, false)), Verdict::Previous);
            assert_eq!(one.admit(&access(0, true)), Verdict::Repeated);
        }
    }

    #[test]
    fn what_no_worker_that_takes_part_has_done_is_not_counted() {
        let mut chunks = DataCentric::new(1, Some(0), 1);
        chunks.join(0, 1);
        let before = chunks.clone();
        let stranger = Access { worker: 7, clock: 1, reads: true, writes: false, keys: &[0] };
        chunks.repeat(&stranger);
        chunks.repeat(&Access { worker: 0, clock: 0, ..stranger });
        assert_eq!(chunks, before);
    }

    /// A worker that does not wait for its writes sends the next one while the last is parked.
    #[test]
    fn a_write_waits_for_a_parked_one_of_its_worker() {
        let mut chunks = DataCentric::new(2, Some(1), 1);
        chunks.join(0, 1);
        chunks.join(1, 1);
        let access = |worker, clock, writes: bool| Access {
            worker,
            clock,
            reads: !writes,
            writes,
            keys: &[0],
        };
        assert_eq!(chunks.admit(&access(0, 1, true)), Verdict::Admit);
        chunks.advance(0, 2, 0);
        let unread = Verdict::Park(WaitReason::Read { chunk: 0, version: 1 });
        assert_eq!(chunks.admit(&access(0, 2, true)), unread);
        let behind = WaitReason::Written { chunk: 0, version: 2 };
        assert_eq!(chunks.admit(&access(0, 3, true)), Verdict::Park(behind));
        assert!(chunks.is_blocked(&behind));
        assert_eq!(chunks.admit(&access(1, 1, false)), Verdict::Admit);
        assert_eq!(chunks.admit(&access(0, 2, true)), Verdict::Admit);
        assert!(!chunks.is_blocked(&behind));
        let unread = Verdict::Park(WaitReason::Read { chunk: 0, version: 2 });
        assert_eq!(chunks.admit(&access(0, 3, true)), unread);
    }
}
