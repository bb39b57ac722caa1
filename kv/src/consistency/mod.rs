//! When a request may be executed: the consistency models, one file each.
//!
//! A [`Controller`] is a pure object beside a shard. It hears which workers take part, how far each
//! has come, and which requests arrive, and says of each request whether it is executed now. It
//! knows no messages, no time and no threads, so its every state can be enumerated.
//!
//! A worker's **clock** is the number of the iteration that it works on, from 1. Announcing clock
//! `c` means that its iterations below `c` are finished: it writes nothing more for them. Clock 0
//! stands for an observer, which takes no part and is bound by nothing.
//!
//! | model | a read at clock `c` waits for | a write at clock `c` waits for |
//! |---|---|---|
//! | [`Bsp`] | all writes of iterations below `c` | all workers to finish `c`; then in order of rank |
//! | [`Ssp`] | all workers to finish `c - 1 - s` | – |
//! | [`Asp`] | – | – |
//! | [`BoundedDelay`] | all workers to finish `c - 1 - τ` | the same |
//! | [`SparseSsp`] | as [`Ssp`], up to `sp` more if no slower worker has its keys | – |
//! | [`DataCentric`] | its chunks' writes of iteration `c - 1 - δ` | all reads of its chunks at `c - δ` |

mod asp;
mod bounded_delay;
mod bsp;
mod chunk;
mod data_centric;
mod members;
mod parked;
mod ranged_clock;
mod recorder;
mod sparse_ssp;
mod spec;
mod ssp;
mod standing;

pub use self::asp::Asp;
pub use self::bounded_delay::BoundedDelay;
pub use self::bsp::Bsp;
pub use self::data_centric::DataCentric;
pub(crate) use self::data_centric::chunks;
pub use self::members::Members;
pub use self::parked::Parked;
pub use self::ranged_clock::{RangedClock, VectorClock};
pub use self::recorder::{MapRecorder, Recorder, RingRecorder};
pub use self::sparse_ssp::SparseSsp;
pub use self::spec::{Consistency, Model};
pub use self::ssp::Ssp;
pub use self::standing::Standing;

/// What a shard says of a request by the clock of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Execute it.
    Now,
    /// Park it until the shard's clock has reached this value.
    AfterClock(u64),
    /// Give it to the shard with a token ([`Shard::keep`](crate::Shard::keep)), which answers it
    /// now or later.
    Kept,
}

/// A request as a model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access<'a> {
    /// Number of the worker.
    pub worker: u32,
    /// The iteration that it belongs to, from 1; 0 for an observer.
    pub clock: u64,
    /// Whether it reads.
    pub reads: bool,
    /// Whether it writes.
    pub writes: bool,
    /// Its keys, strictly ascending. Only [`SparseSsp`] and [`DataCentric`] look at them.
    pub keys: &'a [u64],
}

impl Access<'_> {
    /// Whether it touches rows. What does not is a checkpoint: it waits for the clocks alone.
    pub fn touches(&self) -> bool {
        self.reads || self.writes
    }
}

/// What a controller says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Execute it now. The controller counts it as executed.
    Admit,
    /// Keep it, and ask again when [`Controller::is_blocked`] says no.
    Park(WaitReason),
    /// It is a write that was executed before: acknowledge it, and apply nothing.
    Repeated,
    /// It is a read that was executed before, and some of its chunks have been written since:
    /// answer it with their version before that write.
    Previous,
    /// It cannot be executed, now or later.
    Refuse(Forbidden),
}

/// What a parked request waits for first. While it is there, the request need not be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// The slowest worker's clock is below this.
    Slowest(u64),
    /// Fewer workers have joined than are expected.
    Joins,
    /// A slower worker will touch this key in this iteration.
    Key {
        /// The iteration.
        version: u64,
        /// The key.
        key: u64,
    },
    /// This worker has not said what it touches up to this iteration.
    Undisclosed {
        /// The worker.
        worker: u32,
        /// The iteration.
        version: u64,
    },
    /// This worker has not reached this clock, at which the request counts.
    Own {
        /// The worker.
        worker: u32,
        /// The clock.
        clock: u64,
    },
    /// This chunk's last write is of an earlier iteration than this.
    Written {
        /// The chunk.
        chunk: u64,
        /// The iteration.
        version: u64,
    },
    /// A reader of this chunk has not read it in this iteration.
    Read {
        /// The chunk.
        chunk: u64,
        /// The iteration.
        version: u64,
    },
}

/// Why a request cannot be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// The worker takes no part.
    #[error("worker {worker} takes no part in this table (let it join first)")]
    NotJoined {
        /// The worker.
        worker: u32,
    },
    /// A write for an iteration that its worker has finished.
    #[error("worker {worker} writes for iteration {clock}, and has announced {announced}")]
    Finished {
        /// The worker.
        worker: u32,
        /// The request's clock.
        clock: u64,
        /// The worker's clock.
        announced: u64,
    },
    /// A request that reads and writes, where the two have to wait for different things.
    #[error("this table's model takes pushes and pulls apart (no push_pull)")]
    ReadsAndWrites,
    /// A write to a chunk of another worker.
    #[error("worker {worker} writes chunk {chunk}, which worker {owner} owns")]
    NotOwner {
        /// The worker.
        worker: u32,
        /// The chunk.
        chunk: u64,
        /// The chunk's owner.
        owner: u32,
    },
    /// A write to a chunk that was written in a later iteration.
    #[error("iteration {clock} of chunk {chunk} is written after iteration {written}")]
    OutOfOrder {
        /// The chunk.
        chunk: u64,
        /// The request's clock.
        clock: u64,
        /// The iteration of the chunk's last write.
        written: u64,
    },
    /// A read of a version that is gone.
    #[error("chunk {chunk} is read at iteration {clock}, and has iteration {written}")]
    Stale {
        /// The chunk.
        chunk: u64,
        /// The request's clock.
        clock: u64,
        /// The iteration of the chunk's last write.
        written: u64,
    },
    /// The model has no bound that could be changed.
    #[error("this table's model has no bound that can be changed")]
    NoBound,
}

/// A consistency model's state for one shard.
///
/// Calls may come in any order, be repeated or be left out: none panics. A request is announced
/// once when it arrives, and then asked about until it is not parked any more.
pub trait Controller {
    /// The workers that take part.
    fn members(&self) -> &Members;

    /// As [`Controller::members`], to change.
    fn members_mut(&mut self) -> &mut Members;

    /// `worker` takes part from `clock` on, or from the slowest worker's if that is larger. Returns
    /// its clock. Parked requests may have become admissible.
    fn join(&mut self, worker: u32, clock: u64) -> u64 {
        self.members_mut().join(worker, clock)
    }

    /// `worker` has finished its iterations below `clock`, and has announced its requests for
    /// iterations below `disclosed`. Returns whether parked requests may have become admissible.
    fn advance(&mut self, worker: u32, clock: u64, disclosed: u64) -> bool {
        let _ = disclosed;
        self.members_mut().advance(worker, clock)
    }

    /// Whether a parked request stays when its worker leaves or dies. Others are to be dropped
    /// before [`Controller::leave`].
    fn outlives(&self, _access: &Access<'_>) -> bool {
        false
    }

    /// `worker` left or died: nobody waits for it any more. Parked requests may have become
    /// admissible.
    fn leave(&mut self, worker: u32) {
        self.members_mut().leave(worker);
    }

    /// The model's bound, if it can be changed.
    fn bound(&self) -> Option<u64> {
        None
    }

    /// Changes the model's bound. Parked requests may have become admissible.
    ///
    /// # Errors
    /// [`Forbidden::NoBound`] if the model has none, or its bound is fixed.
    fn set_bound(&mut self, _bound: u64) -> Result<(), Forbidden> {
        Err(Forbidden::NoBound)
    }

    /// Notes a request on its arrival.
    ///
    /// # Errors
    /// The reason why it cannot be executed.
    fn announce(&mut self, _access: &Access<'_>) -> Result<(), Forbidden> {
        Ok(())
    }

    /// What another copy of the shard takes over.
    fn standing(&self) -> Standing {
        Standing::new(self.members().clone(), self.bound())
    }

    /// Takes over what another copy of the shard has told.
    ///
    /// # Errors
    /// As [`Controller::set_bound`].
    fn take(&mut self, standing: Standing) -> Result<(), Forbidden> {
        *self.members_mut() = standing.members;
        standing.bound.map_or(Ok(()), |bound| self.set_bound(bound))
    }

    /// Whether reads change what is admitted later, so that all copies of a shard hear of them.
    fn counts_reads(&self) -> bool {
        false
    }

    /// Counts a request as executed that another copy of the shard has admitted. Returns whether it
    /// was not counted before: of a read, copies may hear again.
    fn repeat(&mut self, _access: &Access<'_>) -> bool {
        true
    }

    /// Whether a request may be executed now; if so, it counts as executed.
    fn admit(&mut self, access: &Access<'_>) -> Verdict;

    /// Announces a request, and asks whether it may be executed now.
    fn arrive(&mut self, access: &Access<'_>) -> Verdict {
        match self.announce(access) {
            Ok(()) => self.admit(access),
            Err(forbidden) => Verdict::Refuse(forbidden),
        }
    }

    /// Whether what a parked request waits for is still there.
    fn is_blocked(&self, wait_reason: &WaitReason) -> bool {
        match *wait_reason {
            WaitReason::Slowest(clock) => self.members().slowest() < clock,
            WaitReason::Joins => !self.members().is_complete(),
            WaitReason::Own { worker, clock } => {
                self.members().clock(worker).is_some_and(|own| own < clock)
            }
            _ => false,
        }
    }

    /// Whether a parked request has to be executed before later clocks of its worker count.
    fn precedes_clock(&self, access: &Access<'_>) -> bool {
        access.writes
    }

    /// Whether an executed request may let parked ones be executed.
    fn releases(&self) -> bool {
        false
    }

    /// The order in which parked requests are looked at; those of equal order, as they came.
    fn order(&self, _access: &Access<'_>) -> Order {
        Order::default()
    }

    /// Bytes of memory that grow with what workers announce.
    fn bytes(&self) -> usize {
        0
    }
}

/// The place of a parked request among others: by clock, then reads before writes, then by rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order {
    /// The iteration.
    pub clock: u64,
    /// Whether it writes.
    pub writes: bool,
    /// The worker.
    pub worker: u32,
}

/// Checks that the worker takes part, and does not write for an iteration that it has finished.
/// Returns whether the request is bound by the model, which an observer's is not.
fn check_member(members: &Members, access: &Access<'_>) -> Result<bool, Forbidden> {
    let Access { worker, clock, writes, .. } = *access;
    if clock == 0 {
        return Ok(false);
    }
    match members.clock(worker) {
        None => Err(Forbidden::NotJoined { worker }),
        Some(announced) if writes && clock < announced => {
            Err(Forbidden::Finished { worker, clock, announced })
        }
        Some(_) => Ok(true),
    }
}
