//! Work of a queue pair, and the memory it holds meanwhile.

use std::rc::Rc;

use super::domain::WindowHandle;
use crate::memory::Buffer;
use crate::transport::Gather;

/// Work for a queue pair.
#[derive(Debug)]
pub enum Work {
    /// Sends into the next buffer of the peer's receive queue.
    Send {
        /// The data.
        data: Gather,
        /// An immediate value to send with it.
        imm: Option<u32>,
    },
    /// Writes into the peer's memory.
    Write {
        /// The data.
        data: Gather,
        /// The address there.
        address: u64,
        /// The remote key of that memory.
        key: u32,
        /// An immediate value to deliver afterwards; it uses up one of the peer's receives.
        imm: Option<u32>,
    },
    /// Sends into the next buffer of the peer's receive queue, and invalidates a key of the peer
    /// before the peer sees the message. Everything written under that key before has arrived then.
    SendLast {
        /// The data.
        data: Gather,
        /// The remote key of a window that the peer has open.
        key: u32,
    },
    /// Fills `into` from the peer's memory.
    Read {
        /// The destination, filled entirely.
        into: Buffer,
        /// The address there.
        address: u64,
        /// The remote key of that memory.
        key: u32,
    },
    /// Sends only an immediate value; uses up one of the peer's receives.
    Notice {
        /// The value.
        imm: u32,
    },
    /// Writes nothing, to learn whether the peer's device answers. The peer does not notice it.
    Probe,
}

/// The memory that the device may use for one request, from push to retirement: at most one of the
/// two.
#[derive(Default)]
pub(super) struct Held {
    /// What it reads.
    pub(super) data: Option<Gather>,
    pub(super) other: Option<Other>,
}

pub(super) enum Other {
    Read(Buffer),
    Bind(Rc<WindowHandle>),
}

impl From<Gather> for Held {
    #[inline]
    fn from(data: Gather) -> Held {
        Held { data: Some(data), other: None }
    }
}

impl From<Other> for Held {
    fn from(other: Other) -> Held {
        Held { data: None, other: Some(other) }
    }
}
