//! What can go wrong in the van, with the numbers a caller needs to act on it.

use std::io;

use crate::handshake::{REFUSED, STRANGE};
use crate::transport::{PeerId, WRITE_AT_ALIGN, WRITE_AT_END, WRITE_BYTES_MAX};

/// The van's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that a peer, the operating system or a user can cause. Our own bugs are asserts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool's limit is reached, or the system's.
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
        /// What the system said, if it was the one that had no more.
        source: Option<io::Error>,
    },
    /// More than is left for what a thread keeps because a peer asked for it.
    #[error(
        "{what} would take {wanted} bytes more, and {left} of {limit} are left on this thread (raise CARAVAN_MEMORY)"
    )]
    OverBudget {
        /// What would take them, as a table's name.
        what: String,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes left.
        left: usize,
        /// The limit of the thread's pool.
        limit: usize,
    },
    /// Memory that a device could not be told of.
    #[error(
        "cannot register {len} bytes with {device}: this process may lock {locked} (see `ulimit -l`; raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity for a service, or --ulimit memlock=-1 for a container)"
    )]
    Register {
        /// Bytes to register.
        len: usize,
        /// The device's name.
        device: String,
        /// How much the process may lock, in words.
        locked: String,
        /// What the system said.
        source: io::Error,
    },
    /// A setting that no van over sockets can work with.
    #[error("{name} is {value}; it takes {min} {}", up_to(*.max))]
    Setting {
        /// Which field of the [`VanConfig`](crate::config::VanConfig).
        name: &'static str,
        /// What it was set to.
        value: usize,
        /// The least it takes.
        min: usize,
        /// The most it takes; `usize::MAX` where nothing bounds it.
        max: usize,
    },
    /// More is queued for a peer than its lane holds.
    #[error("the lane to {peer} is full at {depth} messages; poll before posting more")]
    QueueFull {
        /// Whose lane.
        peer: PeerId,
        /// Messages it holds.
        depth: usize,
    },
    /// A peer that breaks the rules of a lane.
    #[error("{peer} sent {what} that nobody asked for")]
    Unasked {
        /// Who.
        peer: PeerId,
        /// What.
        what: &'static str,
    },
    /// A peer that is not connected, or no longer.
    #[error("{peer} is not connected")]
    NotConnected {
        /// Who.
        peer: PeerId,
    },
    /// The connection to a peer ended.
    #[error("{peer} ({address}) was lost: {reason}")]
    PeerLost {
        /// Who.
        peer: PeerId,
        /// Its address as this side knows it.
        address: String,
        /// What was seen.
        reason: String,
    },
    /// A connection could not be made.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where to.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The own address could not be bound.
    #[error("cannot listen on {address} (is it in use, or not this machine's?)")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A van that this machine does not offer.
    #[error("the {van} van does not work here: {reason}")]
    Unavailable {
        /// Which van.
        van: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// A frame longer than the van carries in one piece.
    #[error("a frame of {len} bytes is over this van's {limit}; send it by rendezvous")]
    FrameTooLong {
        /// Its length.
        len: usize,
        /// The van's limit.
        limit: usize,
    },
    /// A write outside of the memory that was offered.
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
        /// Length of the offer; 0 when there is no such offer.
        offered: u64,
    },
    /// A write that begins where none may.
    #[error(
        "a write cannot begin at {at}: only at multiples of {WRITE_AT_ALIGN} below {WRITE_AT_END}"
    )]
    WriteAt {
        /// Where.
        at: u64,
    },
    /// A write longer than any van carries in one piece.
    #[error(
        "a write of {len} bytes is over the {WRITE_BYTES_MAX} that one can have; cut it into several"
    )]
    WriteTooLong {
        /// Its length.
        len: u64,
    },
    /// More in one message than its header can count.
    #[error(
        "{bytes} bytes of {section} are over a message's {limit}; cut the key range into smaller messages"
    )]
    MessageTooLong {
        /// The section that is too long.
        section: crate::wire::Section,
        /// Its length.
        bytes: usize,
        /// The longest that it can be beside the others.
        limit: usize,
    },
    /// Bytes that are no message of ours.
    #[error("message refused: {0}")]
    Decode(#[from] crate::wire::DecodeError),
    /// The operating system failed a call.
    #[error("{call} failed")]
    Os {
        /// The call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// Whether a peer was found and there can be no lane to it: one of the two could not prove that it belongs to the other's job.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Error::PeerLost { reason, .. } if [REFUSED, STRANGE].contains(&&reason[..]))
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
