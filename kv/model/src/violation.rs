//! What may never happen.

use crate::entry::ServerId;
use crate::log::{Records, RequestId, RequestSet};
use crate::workload::{ClientId, ROWS, Row};

/// A promise of the protocol that a run broke.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A request was applied more than once.
    Doubled {
        /// Which request.
        request: RequestId,
        /// How often the log has it.
        times: usize,
        /// Whose log.
        server: ServerId,
    },
    /// A request was answered, and a member of the chain lacks it.
    Lost {
        /// Which request.
        request: RequestId,
        /// Who lacks it.
        server: ServerId,
    },
    /// A client heard another outcome than a member of the chain has.
    OtherOutcome {
        /// Which request.
        request: RequestId,
        /// Who has the other one.
        server: ServerId,
    },
    /// The rows of a member are not what its log comes to.
    WrongRows {
        /// Whose rows.
        server: ServerId,
        /// The rows that it has.
        rows: [Row; ROWS],
        /// How many of them have arrived.
        arrived: u8,
        /// What each should be.
        wanted: Row,
    },
    /// The log of a member is no prefix of the log of its predecessor.
    NoPrefix {
        /// Whose log.
        server: ServerId,
        /// Its predecessor.
        predecessor: ServerId,
    },
    /// A read did not see all that was answered before it began.
    StaleRead {
        /// Which read.
        request: RequestId,
        /// Its client.
        client: ClientId,
        /// What it did not see.
        unseen: RequestSet,
    },
    /// A follower has more than its predecessor.
    SuccessorAhead {
        /// The follower.
        server: ServerId,
        /// Its predecessor.
        predecessor: ServerId,
    },
    /// A record came that does not follow the last one.
    Gap {
        /// Who got it.
        server: ServerId,
        /// How many records are before it.
        at: Records,
        /// How many the server has.
        length: Records,
    },
    /// Nothing but a fault can happen any more, and somebody still waits.
    Stuck,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Violation::Doubled { request, times, server } => {
                write!(f, "request {request} is {times} times in the log of server {server}")
            }
            Violation::Lost { request, server } => {
                write!(f, "request {request} was answered, and server {server} lacks it")
            }
            Violation::OtherOutcome { request, server } => write!(
                f,
                "the client of request {request} heard another outcome than server {server} has"
            ),
            Violation::WrongRows { server, rows, arrived, wanted } => write!(
                f,
                "server {server} has {arrived} rows, {rows:x?}, and its log comes to {wanted:x}"
            ),
            Violation::NoPrefix { server, predecessor } => write!(
                f,
                "the log of server {server} is no prefix of the log of server {predecessor}"
            ),
            Violation::StaleRead { request, client, unseen } => {
                write!(f, "read {request} of client {client} does not see {unseen:?}")
            }
            Violation::SuccessorAhead { server, predecessor } => {
                write!(f, "server {server} has more than its predecessor, server {predecessor}")
            }
            Violation::Gap { server, at, length } => {
                write!(f, "server {server} got record {at} and has {length} records")
            }
            Violation::Stuck => write!(f, "somebody waits for ever"),
        }
    }
}
