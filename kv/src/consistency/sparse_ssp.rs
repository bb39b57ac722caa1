//! SSP for sparse requests, as FlexPS codes it (`server/sparsessp`): a reader that is more than `s`
//! clocks ahead of the slowest worker goes on for up to `sp` clocks if no slower worker will touch
//! its keys.
//!
//! Workers announce their requests `sp` iterations ahead, by pulls that are parked until their
//! worker gets there. A worker writes only keys that it pulls in the same iteration. Where FlexPS
//! takes every iteration for announced, a worker here says up to which iteration it has announced
//! its requests; what is not announced yet conflicts with everything. So a table whose workers
//! announce nothing behaves as under [`Ssp`](super::Ssp).
//!
//! Copies of a shard hear of no announcements. Those that wait come again to a copy that is to
//! serve next; of an iteration whose reads were answered it knows nothing, until its worker has
//! ended it. So what workers have announced counts there from the end of their next iteration on
//! (`server/tables/admission.rs`).

use std::collections::{BTreeMap, BTreeSet};

use super::recorder::Recorder;
use super::{Access, Controller, Forbidden, Members, Verdict, WaitReason, check_member};

/// Bounds how far a reader may be ahead of slower workers, by the keys that they share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseSsp<R> {
    members: Members,
    staleness: u64,
    speculation: u64,
    recorder: R,
    /// The keys of requests that have been announced and are not finished, by worker and iteration.
    announced: BTreeMap<Announced, Vec<u64>>,
    /// Number of all these keys.
    keys: usize,
    /// Announced requests that are too far ahead for the recorder, by iteration. Another server may
    /// know more of the slowest worker, and have let this one's worker go on.
    far: BTreeSet<Far>,
    /// By worker: its requests below this iteration are announced.
    disclosed: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Announced {
    worker: u32,
    version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Far {
    version: u64,
    worker: u32,
}

/// Memory of an announced request besides its keys.
const ANNOUNCED_BYTES: usize = 96;

impl<R: Recorder> SparseSsp<R> {
    /// For `workers` workers, `staleness` clocks that are free, and `speculation` more for requests
    /// without conflicts. A [`RingRecorder`](super::RingRecorder) needs
    /// [`SparseSsp::<R>::versions`] iterations.
    pub fn new(workers: usize, staleness: u64, speculation: u64, recorder: R) -> Self {
        let members = Members::new(workers);
        let announced = BTreeMap::new();
        let disclosed = BTreeMap::new();
        let far = BTreeSet::new();
        SparseSsp { members, staleness, speculation, recorder, announced, keys: 0, far, disclosed }
    }

    /// The number of iterations that are counted at a time.
    pub fn versions(staleness: u64, speculation: u64) -> u64 {
        staleness.saturating_add(speculation.saturating_mul(2)).saturating_add(2)
    }

    /// The last iteration that is counted.
    fn most(&self) -> u64 {
        let versions = Self::versions(self.staleness, self.speculation);
        self.members.slowest().saturating_add(versions - 1)
    }

    /// What the request of a worker ahead of the slowest one conflicts with first.
    fn conflict(&self, access: &Access<'_>) -> Option<WaitReason> {
        if !self.members.is_complete() {
            return Some(WaitReason::Joins); // nobody knows what the others will touch
        }
        let last = access.clock.checked_sub(self.staleness.saturating_add(1))?;
        let all_disclosed = self.all_disclosed();
        for version in (self.members.slowest()..=last).rev() {
            let undisclosed = |(worker, clock): &(u32, u64)| {
                *worker != access.worker
                    && *clock <= version
                    && self.disclosed.get(worker).is_none_or(|below| *below <= version)
            };
            if version >= all_disclosed
                && let Some((worker, _)) = self.members.iter().find(undisclosed)
            {
                return Some(WaitReason::Undisclosed { worker, version });
            }
            // A worker's own requests of iterations before its clock are not counted any more.
            let touched = access.keys.iter().find(|key| self.recorder.touches(version, **key));
            if let Some(&key) = touched {
                return Some(WaitReason::Key { version, key });
            }
        }
        None
    }

    /// Below this iteration, all workers have announced their requests.
    fn all_disclosed(&self) -> u64 {
        let is_known = self.disclosed.len() == self.members.len();
        let least = self.disclosed.values().copied().min();
        least.filter(|_| is_known).unwrap_or(0)
    }

    /// Removes a worker's announced requests of iterations below `clock`.
    fn finish(&mut self, worker: u32, clock: u64) {
        let first = Announced { worker, version: 0 };
        while let Some((&at, _)) =
            self.announced.range(first..Announced { version: clock, ..first }).next()
            && let Some(keys) = self.announced.remove(&at)
        {
            self.keys -= keys.len();
            if !self.far.remove(&Far { version: at.version, worker }) {
                self.recorder.remove(at.version, &keys);
            }
        }
    }

    /// Counts announced requests that are not too far ahead any more.
    fn count_near(&mut self) {
        let most = self.most();
        while let Some(&Far { version, worker }) = self.far.first()
            && version <= most
        {
            self.far.pop_first();
            if let Some(keys) = self.announced.get(&Announced { worker, version }) {
                self.recorder.add(version, keys);
            }
        }
    }
}

impl<R: Recorder> Controller for SparseSsp<R> {
    fn members(&self) -> &Members {
        &self.members
    }

    fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    fn advance(&mut self, worker: u32, clock: u64, disclosed: u64) -> bool {
        let Some(before) = self.members.clock(worker) else { return false };
        self.members.advance(worker, clock);
        self.finish(worker, clock);
        self.count_near();
        let known = self.disclosed.entry(worker).or_insert(0);
        let rose = *known < disclosed || before < clock;
        *known = (*known).max(disclosed);
        rose
    }

    fn leave(&mut self, worker: u32) {
        self.members.leave(worker);
        self.finish(worker, u64::MAX);
        self.count_near();
        self.disclosed.remove(&worker);
    }

    fn announce(&mut self, access: &Access<'_>) -> Result<(), Forbidden> {
        let Access { worker, clock, reads, keys, .. } = *access;
        let is_open = self.members.clock(worker).is_some_and(|own| own <= clock);
        if !check_member(&self.members, access)? || !reads || !is_open {
            return Ok(());
        }
        let is_far = Far { version: clock, worker };
        let most = self.most();
        let known = self.announced.entry(Announced { worker, version: clock }).or_default();
        let begin = known.len();
        if begin == 0 {
            known.extend(keys);
        } else {
            // What is announced again is counted once.
            let before: BTreeSet<u64> = known.iter().copied().collect();
            known.extend(keys.iter().filter(|key| !before.contains(key)));
        }
        let new = &known[begin..];
        if clock > most || self.far.contains(&is_far) {
            self.far.insert(is_far);
        } else {
            self.recorder.add(clock, new);
        }
        self.keys += new.len();
        Ok(())
    }

    fn admit(&mut self, access: &Access<'_>) -> Verdict {
        match check_member(&self.members, access) {
            Err(forbidden) => return Verdict::Refuse(forbidden),
            Ok(false) => return Verdict::Admit,
            Ok(true) if !access.reads => return Verdict::Admit,
            Ok(true) => {}
        }
        let Access { worker, clock, .. } = *access;
        if self.members.clock(worker) < Some(clock) {
            return Verdict::Park(WaitReason::Own { worker, clock });
        }
        let slowest = self.members.slowest();
        let free = slowest.saturating_add(self.staleness);
        if clock <= free {
            return Verdict::Admit;
        }
        if clock - free > self.speculation {
            return Verdict::Park(WaitReason::Slowest(clock - self.staleness - self.speculation));
        }
        match self.conflict(access) {
            Some(wait_reason) => Verdict::Park(wait_reason),
            None => Verdict::Admit,
        }
    }

    fn is_blocked(&self, wait_reason: &WaitReason) -> bool {
        match *wait_reason {
            WaitReason::Slowest(clock) => self.members.slowest() < clock,
            WaitReason::Joins => !self.members.is_complete(),
            WaitReason::Own { worker, clock } => {
                self.members.clock(worker).is_some_and(|own| own < clock)
            }
            WaitReason::Key { version, key } => self.recorder.touches(version, key),
            WaitReason::Undisclosed { worker, version } => {
                self.members.clock(worker).is_some_and(|clock| clock <= version)
                    && self.disclosed.get(&worker).is_none_or(|below| *below <= version)
            }
            _ => false,
        }
    }

    fn bytes(&self) -> usize {
        size_of::<u64>() * self.keys
            + ANNOUNCED_BYTES * self.announced.len()
            + self.recorder.bytes()
    }
}
