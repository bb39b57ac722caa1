//! The faults of simulated clusters whose shards have copies.

/// A fault that a run can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Nothing,
    /// Servers die, as many as there are copies.
    Crash,
    /// Servers die, each when the copies of those before were made good, until one is left.
    Again,
    /// A server stops and wakes when it counts as lost.
    Pause,
    /// The lane of a worker to a server breaks.
    CutWorker,
    /// The lane between two servers breaks.
    CutServers,
}

pub(crate) const FAULTS: [Fault; 6] =
    [Fault::Nothing, Fault::Crash, Fault::Again, Fault::Pause, Fault::CutWorker, Fault::CutServers];
