//! The operation that a request asks for: the `op` byte of its header.

use crate::filter::FILTERED;
use crate::tracker::RequestKind;

/// Operations of the key-value layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Push = 1,
    Pull = 2,
    PushPull = 3,
    /// The values are a table's specification as JSON. Table 0 asks the first server thread for the
    /// table's number, which its answer holds; the others are told.
    Create = 4,
    /// The table's handle defines the values.
    Command = 5,
    /// The keys of an earlier request with this timestamp, whose signature the server did not know.
    /// The server asks for them by a failure with this operation.
    Keys = 6,
    /// The answer's values are the server thread's [`Cost`](crate::Cost) so far, as JSON.
    Cost = 7,
    /// Drops the table. As the operation of a failure: the table of the request was dropped.
    Drop = 8,
    /// The values are a namespace. The answer's values are the number and the specification of each
    /// table within, as JSON.
    Tables = 9,
    /// The sender takes part in the table from the header's clock on. The answer's values are its
    /// clock there, `u64`.
    Join = 10,
    /// The sender has finished its iterations below the header's clock. The values say below which
    /// iteration it has announced its requests, `u64`.
    Clock = 11,
    /// The sender takes part no longer.
    Leave = 12,
    /// The values are the new bound of the table's model, `u64`.
    Bound = 13,
    /// The shard of the range is to move to another server thread.
    Move = 14,
    /// A failure: the request comes back, since its shard has moved. A worker sends it again.
    Moved = 15,
    /// Nothing but an answer: the worker has heard everything from before.
    Mark = 16,
    /// From the owner of a shard to a newcomer: it will come.
    Take = 17,
    /// Rows of it.
    Rows = 18,
    /// A push to it, which the owner has applied.
    Forward = 19,
    /// The newcomer owns it now.
    Own = 20,
    /// It does not come.
    Abandon = 21,
    /// How fresh a shard is under its table's model.
    Fresh = 22,
    /// A [`Wish`](crate::checkpoint::Wish) of a client that writes or restores a checkpoint.
    Checkpoint = 23,
    /// What the sender knows of the server threads, as JSON ([`View`](crate::view::View)).
    View = 24,
    /// From a thread of a shard's chain to the next one: follow. The answer's value says whether
    /// that has a whole copy.
    Follow = 25,
    /// The inputs of a request, which the sender has applied.
    Replicate = 26,
    /// The copy is whole. The values say what was applied of whom.
    Whole = 27,
    /// A failure: the server thread that asked counts as lost.
    Lost = 28,
}

/// Bit of the operation of a push that ends its worker's iteration: the worker has finished all
/// iterations up to the header's clock.
pub(crate) const FINISHES: u8 = 0x40;

/// Bit beside [`FINISHES`]: the worker has announced its requests as far ahead as the table's model
/// looks.
pub(crate) const DISCLOSES: u8 = 0x20;

/// All bits beside the number of an operation.
pub(crate) const BITS: u8 = FILTERED | FINISHES | DISCLOSES;

impl Op {
    pub(crate) fn from_raw(raw: u8) -> Option<Op> {
        Some(match raw {
            1 => Op::Push,
            2 => Op::Pull,
            3 => Op::PushPull,
            4 => Op::Create,
            5 => Op::Command,
            6 => Op::Keys,
            7 => Op::Cost,
            8 => Op::Drop,
            9 => Op::Tables,
            10 => Op::Join,
            11 => Op::Clock,
            12 => Op::Leave,
            13 => Op::Bound,
            14 => Op::Move,
            15 => Op::Moved,
            16 => Op::Mark,
            17 => Op::Take,
            18 => Op::Rows,
            19 => Op::Forward,
            20 => Op::Own,
            21 => Op::Abandon,
            22 => Op::Fresh,
            23 => Op::Checkpoint,
            24 => Op::View,
            25 => Op::Follow,
            26 => Op::Replicate,
            27 => Op::Whole,
            28 => Op::Lost,
            _ => return None,
        })
    }

    /// Whether server threads alone ask each other for it.
    pub(crate) fn is_between_servers(self) -> bool {
        use Op::{Abandon, Follow, Forward, Own, Replicate, Rows, Take, Whole};
        matches!(self, Take | Rows | Forward | Own | Abandon | Follow | Replicate | Whole)
    }

    pub(crate) fn pushes(self) -> bool {
        matches!(self, Op::Push | Op::PushPull)
    }

    pub(crate) fn pulls(self) -> bool {
        matches!(self, Op::Pull | Op::PushPull)
    }
}

impl From<RequestKind> for Op {
    fn from(kind: RequestKind) -> Op {
        match kind {
            RequestKind::Push => Op::Push,
            RequestKind::Pull => Op::Pull,
            RequestKind::PushPull => Op::PushPull,
            RequestKind::Create => Op::Create,
            RequestKind::Command => Op::Command,
            RequestKind::Cost => Op::Cost,
            RequestKind::Drop => Op::Drop,
            RequestKind::Tables => Op::Tables,
            RequestKind::Join => Op::Join,
            RequestKind::Clock => Op::Clock,
            RequestKind::Leave => Op::Leave,
            RequestKind::Bound => Op::Bound,
            RequestKind::Move => Op::Move,
            RequestKind::Fresh => Op::Fresh,
            RequestKind::Checkpoint => Op::Checkpoint,
        }
    }
}
