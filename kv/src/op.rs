//! The operation that a request asks for: the `op` byte of its header.

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
    /// The values are a namespace. The answer's values are the numbers of the tables within, as
    /// JSON.
    Tables = 9,
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
            8 => Op::Drop,
            9 => Op::Tables,
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
            RequestKind::Drop => Op::Drop,
            RequestKind::Tables => Op::Tables,
        }
    }
}
