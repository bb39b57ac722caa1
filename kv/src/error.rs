//! What can go wrong in push and pull, with the position or the node it concerns.

use std::io;

use crate::node::Van;

/// The key-value layer's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that a user, a peer or the operating system can cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Keys that are not sorted, or twice the same.
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
    /// A key that the table does not have.
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
    /// A slice or buffer of the wrong size.
    #[error("{what} of table {table} must hold {expected}, not {found}")]
    WrongLength {
        /// Which argument.
        what: &'static str,
        /// The table's name.
        table: String,
        /// What it must hold.
        expected: usize,
        /// What it holds.
        found: usize,
    },
    /// Values of another type than the table's.
    #[error("table {table} holds {expected} values, not {found}")]
    WrongType {
        /// The table's name.
        table: String,
        /// The table's type.
        expected: &'static str,
        /// The type used.
        found: &'static str,
    },
    /// A table that this worker did not create or join.
    #[error(
        "this worker knows no table {table} (a table belongs to the worker whose create_table returned it)"
    )]
    UnknownTable {
        /// Its place among the worker's tables.
        table: u32,
    },
    /// Something a table with rows of varying length does not offer.
    #[error(
        "{what} needs to know the number of values beforehand, and the keys of table {table} have their own (use {instead})"
    )]
    VaryingTable {
        /// What was called.
        what: &'static str,
        /// The table's name.
        table: String,
        /// What to call.
        instead: &'static str,
    },
    /// A server answered a request with an error.
    #[error("{server} refused {what}: {reason}")]
    Refused {
        /// Which server.
        server: String,
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        reason: String,
    },
    /// A server's connection ended while requests were outstanding, or before they were made.
    #[error("{server} at {address} was lost: {reason}")]
    ServerLost {
        /// Which server.
        server: String,
        /// Its address.
        address: String,
        /// What was seen.
        reason: String,
    },
    /// A node of the cluster is gone.
    #[error("{node} was lost: {reason}")]
    NodeLost {
        /// Which node, with its address.
        node: String,
        /// What was seen.
        reason: String,
    },
    /// Something did not happen in time.
    #[error("{what} is not complete after {seconds:.1} s; missing: {missing}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: f64,
        /// Whom or what it waits for, with addresses.
        missing: String,
    },
    /// A request number that was not given out.
    #[error("request {timestamp} was never made here")]
    UnknownTimestamp {
        /// The number.
        timestamp: u64,
    },
    /// A task ended with an error at the node that ran it.
    #[error("{node} failed at {app}: {reason}")]
    TaskFailed {
        /// Which node.
        node: String,
        /// What it ran.
        app: String,
        /// What it said.
        reason: String,
    },
    /// A setting that makes no sense.
    #[error("{0}")]
    Config(String),
    /// A van that this build does not have.
    #[error(
        "the {van} van was left out of this build: take another van, or build on Linux with `--features {van}`"
    )]
    VanLeftOut {
        /// Which van.
        van: Van,
    },
    /// A message of the control plane that cannot be read.
    #[error("control message refused: {0}")]
    Control(#[from] serde_json::Error),
    /// A process could not be started.
    #[error("cannot start {what}")]
    Spawn {
        /// What.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The van failed.
    #[error(transparent)]
    Van(#[from] caravan_van::Error),
}

/// An error and what it came from, in one line.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

/// A node, or a part of one, that has panicked, with what it said.
pub(crate) fn panicked(node: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    Error::NodeLost { node: node.to_owned(), reason: format!("it panicked: {text}") }
}
