//! Errors of the van, with the numbers a caller needs to act on them.

use std::io;

use crate::handshake::Reason;
use crate::transport::{PeerId, WRITE_AT_ALIGN, WRITE_AT_END, WRITE_BYTES_MAX};

/// The van's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that a peer, the operating system or a user can cause. Our own bugs are asserts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool's or the system's limit is reached.
    #[error(
        "cannot allocate {wanted} bytes: {reserved} of {limit} bytes are taken {}", remedy(.source)
    )]
    OutOfMemory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes taken so far, registered or kept for peers.
        reserved: usize,
        /// The pool's limit.
        limit: usize,
        /// The system's error, if the system refused.
        source: Option<io::Error>,
    },
    /// State that a thread would keep for a peer exceeds what is left.
    #[error(
        "{what} would take {wanted} bytes more, and {left} of {limit} are left on this thread (raise CARAVAN_MEMORY)"
    )]
    OverBudget {
        /// What needs the bytes, for example a table.
        what: String,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes left.
        left: usize,
        /// The limit of the thread's pool.
        limit: usize,
    },
    /// A device could not register memory.
    #[error(
        "cannot register {len} bytes with {device}: this process may lock {locked} (see `ulimit -l`; raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity for a service, or --ulimit memlock=-1 for a container)"
    )]
    Register {
        /// Bytes to register.
        len: usize,
        /// The device's name.
        device: String,
        /// How much the process may lock, as text.
        locked: String,
        /// The system's error.
        source: io::Error,
    },
    /// A setting is outside its range.
    #[error("{name} is {value}; it takes {min} {}", up_to(*.max))]
    Setting {
        /// Which field of the [`VanConfig`](crate::config::VanConfig).
        name: &'static str,
        /// Its value.
        value: usize,
        /// Smallest value allowed.
        min: usize,
        /// Largest value allowed; `usize::MAX` if unbounded.
        max: usize,
    },
    /// A lane's queue is full.
    #[error("the lane to {peer} is full at {depth} messages; poll before posting more")]
    QueueFull {
        /// The lane's peer.
        peer: PeerId,
        /// Messages the lane holds.
        depth: usize,
    },
    /// A peer violates the protocol of a lane.
    #[error("{peer} sent {what} that nobody asked for")]
    Unasked {
        /// The peer.
        peer: PeerId,
        /// What it sent.
        what: &'static str,
    },
    /// The peer is not connected, or no longer.
    #[error("{peer} is not connected")]
    NotConnected {
        /// The peer.
        peer: PeerId,
    },
    /// The connection to a peer ended.
    #[error("{peer} ({address}) was lost: {reason}")]
    PeerLost {
        /// The peer.
        peer: PeerId,
        /// Its address as this side knows it.
        address: String,
        /// The reason.
        reason: Reason,
    },
    /// A connection could not be made.
    #[error("cannot connect to {address}")]
    Connect {
        /// The peer's address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The node's own address could not be bound.
    #[error("cannot listen on {address} (is it in use, or not this machine's?)")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// This machine does not support a van.
    #[error("the {van} van does not work here: {reason}")]
    Unavailable {
        /// Which van.
        van: &'static str,
        /// The reason, and the remedy.
        reason: String,
    },
    /// A frame exceeds the van's limit.
    #[error("a frame of {len} bytes is over this van's limit of {limit}; send it by rendezvous")]
    FrameTooLong {
        /// Its length.
        len: usize,
        /// The van's limit.
        limit: usize,
    },
    /// A write lies outside the memory that was offered.
    #[error(
        "a write of {len} bytes at {at} lies outside the {offered} bytes offered under key {key}"
    )]
    OutsideOffer {
        /// The offer's key.
        key: u64,
        /// Offset of the write.
        at: u64,
        /// Length of the write.
        len: u64,
        /// Length of the offer; 0 if there is no such offer.
        offered: u64,
    },
    /// A write begins at an offset that is not allowed.
    #[error(
        "a write cannot begin at {at}: only at multiples of {WRITE_AT_ALIGN} below {WRITE_AT_END}"
    )]
    WriteAt {
        /// The offset.
        at: u64,
    },
    /// A write is longer than any van carries in one piece.
    #[error("a write of {len} bytes is over the limit of {WRITE_BYTES_MAX}; split it")]
    WriteTooLong {
        /// Its length.
        len: u64,
    },
    /// A section of a message is longer than its header can count.
    #[error(
        "{bytes} bytes of {section} are over a message's {limit}; cut the key range into smaller messages"
    )]
    MessageTooLong {
        /// The section that is too long.
        section: crate::wire::Section,
        /// Its length.
        bytes: usize,
        /// Its limit beside the other sections.
        limit: usize,
    },
    /// The bytes are no valid message.
    #[error("message refused: {0}")]
    Decode(#[from] crate::wire::DecodeError),
    /// The operating system failed a call.
    #[error("{call} failed")]
    Os {
        /// The call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// The same about this peer, for a transport that numbers the peers of another anew.
    #[must_use]
    pub fn of(mut self, own: PeerId) -> Error {
        match &mut self {
            Error::QueueFull { peer, .. }
            | Error::Unasked { peer, .. }
            | Error::NotConnected { peer }
            | Error::PeerLost { peer, .. } => *peer = own,
            _ => {}
        }
        self
    }

    /// Whether a lane to a reachable peer was refused because one of the two could not prove that
    /// it belongs to the other's cluster.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Error::PeerLost { reason: Reason::Refused | Reason::Unproved, .. })
    }
}

fn remedy(system: &Option<io::Error>) -> &'static str {
    match system {
        None => "(raise CARAVAN_MEMORY)",
        Some(_) => {
            "and the system has no more (see `ulimit -v`, vm.overcommit_memory and the container's limit)"
        }
    }
}

fn up_to(max: usize) -> String {
    if max == usize::MAX { "or more".to_owned() } else { format!("to {max}") }
}

/// An error and its causes in one line; a cause that the text before it has is left out.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| match source.to_string() {
        source if text.contains(&source) => text,
        source => format!("{text}: {source}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Step {
        text: &'static str,
        source: Option<Box<Step>>,
    }

    #[test]
    fn causes_are_said_once() {
        let step = |text, source: Option<Step>| Step { text, source: source.map(Box::new) };
        let refused = || step("refused", None);
        let twice = step("cannot connect: refused", Some(refused()));
        assert_eq!(with_sources(&refused()), "refused");
        assert_eq!(with_sources(&twice), "cannot connect: refused");
        let deep = step("no lane", Some(step("cannot connect", Some(refused()))));
        assert_eq!(with_sources(&deep), "no lane: cannot connect: refused");
    }
}
