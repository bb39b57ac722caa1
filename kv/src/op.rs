//! The operation that a request asks for: the `op` byte of its header.

use crate::tracker::RequestKind;

/// Operations of the key-value layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Push = 1,
    Pull = 2,
    PushPull = 3,
    /// The values are a table's specification as JSON.
    Create = 4,
    /// The table's handle defines the values.
    Command = 5,
    /// The keys of an earlier request with this timestamp, whose signature the server did not know.
    /// The server asks for them by a failure with this operation.
    Keys = 6,
    /// The answer's values are the server thread's [`Cost`](crate::Cost) so far, as JSON.
    Cost = 7,
}

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
            _ => return None,
        })
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
        }
    }
}
