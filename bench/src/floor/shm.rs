//! The floor of the van in shared memory: a count in memory that the other process reads, and the bytes that it speaks of.
//!
//! A request lies in the asking side's segment, one place for each in the window, and its first word is its number; the answering
//! side copies it out, writes the number into a reply in its own segment and says so, and the asking side copies that out. The
//! rest of the bytes lie there from the beginning, as values do that a van sends from where they lie: each is copied once.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caravan_van::Wait;
use caravan_van::shm::bare::{Bare, Channel, Listener};

use crate::floor::{
    Answerer, Lengths, PATIENCE, Process, answers, end_with_input, patterned, say_address,
};
use crate::subject::{Shape, Subject};

/// Places begin at a multiple of this: two lines of the cache.
const ALIGN: usize = 128;
/// Most requests in flight either side agrees to.
const WINDOW_MAX: u64 = 1 << 16;
/// Most bytes of one side's segment.
const SEGMENT_BYTES_MAX: usize = 8 << 30;

/// The asking side.
#[derive(Debug)]
pub(crate) struct Floor {
    pair: Option<Pair>, // before the channel that it borrows, which is leaked: one a floor
    channel: &'static Channel,
    wait: Wait,
    expected: Vec<u8>,
    pulls: bool,
    _process: Option<Process>,
}

/// Both segments while requests have one shape.
#[derive(Debug)]
struct Pair {
    bare: Bare<'static>,
    window: u64,
    /// Bytes from one request to the next.
    stride: usize,
    /// Bytes from one reply to the next.
    reply_stride: usize,
    number: u64,
    reply: Vec<u8>,
}

impl Floor {
    /// Starts the answering side; it ends with this value.
    ///
    /// # Errors
    /// When the program cannot be started or does not say where it listens.
    pub(crate) fn spawn(wait: Wait) -> Result<Self> {
        let here = Ipv4Addr::LOCALHOST.into();
        let (process, address) = Process::start_anywhere(Answerer::Memory, here, wait)?;
        let mut floor = Floor::connect(&address, wait)?;
        floor._process = Some(process);
        Ok(floor)
    }

    fn connect(address: &str, wait: Wait) -> Result<Self> {
        let channel =
            Channel::connect(address).context("cannot reach the floor's other process")?;
        let channel = Box::leak(Box::new(channel));
        Ok(Floor { pair: None, channel, wait, expected: Vec::new(), pulls: false, _process: None })
    }
}
