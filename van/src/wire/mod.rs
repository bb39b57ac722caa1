//! Bytes in, bytes out: the wire format. No I/O, no clock, no unsafe.

mod header;

pub use header::{Header, Hello, Kind, MAGIC, Offer, VERSION, flags};

/// Why bytes are no message of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Shorter than what it has to hold.
    #[error("{have} bytes are too few for {what}, which takes {need}")]
    TooShort {
        /// What was read.
        what: &'static str,
        /// Bytes there are.
        have: usize,
        /// Bytes it takes.
        need: usize,
    },
}
