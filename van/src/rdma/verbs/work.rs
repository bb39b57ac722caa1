//! What a queue pair is given to do, and what it holds meanwhile.

use std::rc::Rc;

use super::domain::WindowHandle;
use crate::memory::Buffer;
use crate::transport::Gather;

/// What a queue pair is to do.
#[derive(Debug)]
pub enum Work {
    /// Sends into the next buffer of the peer's receive queue.
    Send {
        /// What.
        data: Gather,
        /// If given, comes with it.
        imm: Option<u32>,
    },
    /// Writes into the peer's memory.
    Write {
        /// What.
        data: Gather,
        /// Where.
        address: u64,
        /// The remote key of the memory there.
        key: u32,
        /// If given, comes after it, and takes up one of the peer's receives.
        imm: Option<u32>,
    },
    /// Sends into the next buffer of the peer's receive queue, and makes a key that the peer gave out useless before the peer
    /// hears of it. What was written by that key before has arrived then.
    SendLast {
        /// What.
        data: Gather,
        /// The remote key of an open window of the peer's.
        key: u32,
    },
    /// Fills `into` from the peer's memory.
    Read {
        /// Where to, the whole of it.
        into: Buffer,
        /// Where from.
        address: u64,
        /// The remote key of the memory there.
        key: u32,
    },
    /// Sends nothing but a number; takes up one of the peer's receives.
    Notice {
        /// The number.
        imm: u32,
    },
    /// Writes nothing, so as to see whether the peer's device answers. The peer notices nothing.
    Probe,
}

/// What the device may use because of one request, from push to retirement: at most one of these.
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
