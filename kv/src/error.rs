//! Errors of push and pull, with the position or the node they concern.

use std::io;

pub use caravan_van::error::with_sources;

use crate::node::Van;
use crate::refusal::Refusal;

/// The key-value layer's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that a user, a peer or the operating system can cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Keys are not sorted, or repeat.
    #[error(
        "keys must be strictly ascending: key {key} at position {position} follows {previous} (sort them, and merge equal ones)"
    )]
    KeysNotAscending {
        /// Index into the keys.
        position: usize,
        /// The key there.
        key: u64,
        /// The key before it.
        previous: u64,
    },
    /// A key is outside the table.
    #[error(
        "key {key} at position {position} lies outside table {table}, which has keys {begin} to {last}"
    )]
    KeyOutsideTable {
        /// Index into the keys.
        position: usize,
        /// The key there.
        key: u64,
        /// The table's name.
        table: String,
        /// Its first key.
        begin: u64,
        /// Its last key.
        last: u64,
    },
    /// A slice or buffer has the wrong size.
    #[error("{what} of table {table} must hold {expected}, not {found}")]
    WrongLength {
        /// The argument.
        what: &'static str,
        /// The table's name.
        table: String,
        /// The length it must have.
        expected: usize,
        /// Its length.
        found: usize,
    },
    /// Values are of another type than the table's.
    #[error("table {table} holds {expected} values, not {found}")]
    WrongType {
        /// The table's name.
        table: String,
        /// The table's type.
        expected: &'static str,
        /// The type used.
        found: &'static str,
    },
    /// The worker did not create or join this table, or has dropped it.
    #[error(
        "this worker has no table with number {table}: it dropped it, or another worker created it (call create_table here)"
    )]
    UnknownTable {
        /// Its number in messages.
        table: u32,
    },
    /// Another worker has dropped the table.
    #[error("table {table} was dropped (create it again)")]
    TableDropped {
        /// The table's name.
        table: String,
    },
    /// A table with rows of varying length does not offer this call.
    #[error(
        "{what} needs to know the number of values beforehand, and the keys of table {table} have their own (use {instead})"
    )]
    VaryingTable {
        /// The call.
        what: &'static str,
        /// The table's name.
        table: String,
        /// The call to use instead.
        instead: &'static str,
    },
    /// A server answered a request with an error.
    #[error("{server} refused {what}: {reason}")]
    Refused {
        /// The server.
        server: String,
        /// The request.
        what: &'static str,
        /// Why, for programs.
        kind: Refusal,
        /// Why, for people.
        reason: String,
    },
    /// A server's connection ended while requests were outstanding, or before they were made.
    #[error("{server} at {address} was lost: {reason}")]
    ServerLost {
        /// The server.
        server: String,
        /// Its address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// A node of the cluster is gone.
    #[error("{node} was lost: {reason}")]
    NodeLost {
        /// The node, with its address.
        node: String,
        /// The reason.
        reason: String,
    },
    /// Something did not happen in time.
    #[error("{what} is not complete after {seconds:.1} s; missing: {missing}")]
    Timeout {
        /// What the caller waited for.
        what: String,
        /// How long it waited.
        seconds: f64,
        /// The nodes or things missing, with addresses.
        missing: String,
    },
    /// A timestamp that was never assigned.
    #[error("request {timestamp} was never made here")]
    UnknownTimestamp {
        /// The timestamp.
        timestamp: u64,
    },
    /// A request of another node that waits for no answer.
    #[error("request {number} of another node was answered before, or that node is gone")]
    Answered {
        /// Its number.
        number: u64,
    },
    /// A task ended with an error at the node that ran it.
    #[error("{node} failed at {app}: {reason}")]
    TaskFailed {
        /// The node.
        node: String,
        /// The app it ran.
        app: String,
        /// The app's reason.
        reason: String,
    },
    /// The job has ended before its work has.
    #[error("the job {job} was cancelled, or its driver is gone")]
    Cancelled {
        /// Its name.
        job: String,
    },
    /// Threads that share a table cannot go on, because one of them or their worker has failed.
    #[error("the threads that share table {table} cannot go on: {reason}")]
    SharingStopped {
        /// The table's name.
        table: String,
        /// What has failed.
        reason: String,
    },
    /// A setting is invalid.
    #[error("{0}")]
    Config(String),
    /// This build does not have the van.
    #[error(
        "the {van} van was left out of this build: take another van, or build on Linux with `--features {van}`"
    )]
    VanLeftOut {
        /// The van.
        van: Van,
    },
    /// A message of the control plane cannot be parsed.
    #[error("control message refused: {0}")]
    Control(#[from] serde_json::Error),
    /// A process could not be started.
    #[error("cannot start {what}")]
    Spawn {
        /// The process or thread.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A checkpoint cannot be written, read or restored.
    #[error("{what}: {reason}")]
    Checkpoint {
        /// The checkpoint or its file.
        what: String,
        /// The reason.
        reason: String,
    },
    /// The van failed.
    #[error(transparent)]
    Van(#[from] caravan_van::Error),
}

/// What a program can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// The same call may succeed later: when memory is free again, or when what is missing has
    /// come.
    Retry,
    /// This node, or this lane to it, does it no longer. Another one may.
    AskElsewhere,
    /// The call, the table or a setting is wrong, and the same call fails again.
    Mend,
    /// What was asked about is gone, or broken: restore a checkpoint, or end.
    GiveUp,
}

impl Error {
    /// What to do about it; `docs/errors.md` lists all errors.
    ///
    /// Of a request that failed at one server, others may have done their part, and the outcome at
    /// a lost one is not known. A push that is repeated then is applied twice there, unless its
    /// table applies it [once](crate::TableSpec::once).
    pub fn advice(&self) -> Advice {
        use Error::*;
        match self {
            Refused { kind, .. } => kind.advice(),
            Van(error) => of_van(error),
            Timeout { .. } => Advice::Retry,
            ServerLost { .. } => Advice::AskElsewhere,
            KeysNotAscending { .. }
            | KeyOutsideTable { .. }
            | WrongLength { .. }
            | WrongType { .. }
            | UnknownTable { .. }
            | VaryingTable { .. }
            | UnknownTimestamp { .. }
            | Answered { .. }
            | Config(_)
            | VanLeftOut { .. }
            | Spawn { .. }
            | Checkpoint { .. } => Advice::Mend,
            TableDropped { .. }
            | NodeLost { .. }
            | TaskFailed { .. }
            | Cancelled { .. }
            | SharingStopped { .. }
            | Control(_) => Advice::GiveUp,
        }
    }
}

fn of_van(error: &caravan_van::Error) -> Advice {
    use caravan_van::Error::*;
    match error {
        OutOfMemory { .. } | OverBudget { .. } | Register { .. } | QueueFull { .. } => {
            Advice::Retry
        }
        NotConnected { .. } | PeerLost { .. } | Connect { .. } => Advice::AskElsewhere,
        Decode(_) | Unasked { .. } | OutsideOffer { .. } | Os { .. } => Advice::GiveUp,
        _ => Advice::Mend,
    }
}

/// The error for a panic of a node or a part of it.
pub(crate) fn panicked(node: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    Error::NodeLost { node: node.to_owned(), reason: format!("it panicked: {text}") }
}
