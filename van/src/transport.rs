//! The contract of a van: what every backend owes the layers above, and all they may ask of it.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::metrics::Counters;
use crate::wire::{Hello, Offer};

/// Bytes at the start of every frame given to [`Transport::post_send`] that belong to the van: it writes its own framing
/// there, so that a frame leaves in one piece without being copied.
pub const FRAME_PREFIX: usize = 16;

/// A write begins below this offset in the offered memory, and at a multiple of [`WRITE_AT_ALIGN`].
///
/// That is enough for values to begin on a page whatever stands before them, and few enough offsets that a van can name each
/// in 9 bits beside the offer's own number: 32 bits of immediate data, say.
pub const WRITE_AT_END: u64 = 4096;

/// See [`WRITE_AT_END`].
pub const WRITE_AT_ALIGN: u64 = 8;

/// Longest write, in bytes.
pub const WRITE_BYTES_MAX: usize = u32::MAX as usize;

/// A connected peer, as one transport numbers it. The number of one that has been [disconnected](Transport::disconnect) is given to
/// a later caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What happened since the last [`Transport::poll`].
#[derive(Debug)]
pub enum Event {
    /// A connection is up, whichever side asked for it, and the peer has proved that it belongs here: see
    /// [`handshake`](crate::handshake).
    Connected {
        /// The new peer.
        peer: PeerId,
        /// What it said of itself.
        hello: Hello,
    },
    /// A frame arrived whole, without the prefix, its first byte 8-byte aligned. Dropping it gives its memory back.
    Received {
        /// From whom.
        peer: PeerId,
        /// What.
        frame: Buffer,
    },
    /// As [`Event::Received`], with values that the peer has lent: they are read where it has them. They go back by themselves
    /// at the next poll after their last part is dropped. Only from vans that lend: see [`Transport::lends`].
    Lent {
        /// From whom.
        peer: PeerId,
        /// What.
        frame: Buffer,
        /// 8-byte aligned. They stay as they are, also when the peer is lost; only who breaks the rules changes them.
        values: Shared,
    },
    /// A peer wrote into memory that was offered to it, which comes back whole: the offer has ended.
    Written {
        /// Who.
        peer: PeerId,
        /// The [`Offer::key`].
        key: u64,
        /// All of the memory that was offered.
        memory: Buffer,
        /// Where in it the write begins.
        at: usize,
        /// How long it is. What lies outside of it may have been written over.
        len: usize,
    },
    /// The connection is gone and nothing more will come of it. What was posted to it may or may not have arrived.
    Lost {
        /// Who.
        peer: PeerId,
        /// Why: [`Error::PeerLost`], [`Error::Connect`] or [`Error::Decode`].
        error: Error,
    },
}

impl Event {
    /// Whom it is about.
    pub fn peer(&self) -> PeerId {
        match self {
            Event::Connected { peer, .. }
            | Event::Received { peer, .. }
            | Event::Lent { peer, .. }
            | Event::Written { peer, .. }
            | Event::Lost { peer, .. } => *peer,
        }
    }
}

/// What one write carries: one or two parts, to lie one right behind the other.
#[derive(Debug, Clone)]
pub struct Gather {
    /// Comes first.
    pub head: Shared,
    /// Follows it.
    pub tail: Option<Shared>,
}

impl Gather {
    /// Bytes of both.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, |tail| tail.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Shared> for Gather {
    #[inline]
    fn from(head: Shared) -> Gather {
        Gather { head, tail: None }
    }
}

/// What a van can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest frame of [`Transport::post_send`], without the prefix.
    pub frame_bytes: usize,
    /// Sends and writes that may be queued to one peer.
    pub queue_depth: usize,
    /// Whether the carrier itself checks every byte from end to end, by 32 bits or more, so that messages need not.
    pub checks_bytes: bool,
    /// Longest frame that [`Transport::post_copy`] may take, without the prefix; 0 where frames are sent from where they lie.
    pub copy_bytes: usize,
    /// Values from this length on are better [lent](Transport::post_loan) than copied, where they can be.
    pub lent_bytes_min: usize,
}

impl Limits {
    /// Those of a van that sends frames from where they lie, leaves it to others to check them, and lends nothing.
    pub fn plain(frame_bytes: usize, queue_depth: usize) -> Limits {
        let (checks_bytes, copy_bytes, lent_bytes_min) = (false, 0, usize::MAX);
        Limits { frame_bytes, queue_depth, checks_bytes, copy_bytes, lent_bytes_min }
    }
}

/// One node's lanes to its peers. Owned by one thread; only [`Transport::wait`] blocks.
///
/// Contract, run against every backend by `van::conformance`:
/// * frames and writes to a peer arrive whole, once and in posting order, each with an event of its own, or the peer is
///   reported lost;
/// * an offer is for one write: the write ends it, and the memory is handed back with [`Event::Written`]. Nobody can write it
///   any more by then;
/// * posted work leaves at the next [`Transport::poll`] or [`Transport::wait`] at the latest, so that what is posted between
///   two polls can leave together;
/// * a buffer that was posted is dropped once its bytes have left or its peer is lost: a slot comes home by itself;
/// * a peer writes only memory offered to it, once, within its bounds; anything else loses that peer, not this node, and
///   reaches no memory but what that peer might have written;
/// * a full queue is [`Error::QueueFull`], never a wait;
/// * dropping a transport closes its connections; peers see [`Event::Lost`].
pub trait Transport {
    /// The van's name: "tcp", "uring", "sim", …
    fn name(&self) -> &'static str;

    /// Where peers connect to, in the form [`Transport::connect`] takes; empty where [`VanConfig::accepts`](crate::VanConfig) is not set.
    fn address(&self) -> &str;

    /// For a van that does not leave the host, where that is: it connects only those that say the same.
    fn host(&self) -> Option<&str> {
        None
    }

    /// What this van can carry.
    fn limits(&self) -> Limits;

    /// The memory this van sends from and receives into.
    fn memory(&self) -> &Pool;

    /// Starts a connection; [`Event::Connected`] or [`Event::Lost`] follows.
    ///
    /// # Errors
    /// [`Error::Connect`] when it is already clear that it cannot be made.
    fn connect(&mut self, address: &str) -> Result<PeerId>;

    /// Forgets a peer, also one that was reported lost: closes the connection, drops what was posted and offered to it. No event
    /// follows.
    fn disconnect(&mut self, peer: PeerId);

    /// Eager: sends `frame` into memory the peer keeps ready. The first [`FRAME_PREFIX`] bytes are the van's to overwrite.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::QueueFull`], [`Error::FrameTooLong`].
    fn post_send(&mut self, peer: PeerId, frame: Buffer) -> Result<()>;

    /// Sends a short frame, given without the prefix, as [`Transport::post_send`] does, by copying it: its memory is the caller's
    /// again. False if it cannot copy this one now; nothing has happened then. Only up to [`Limits::copy_bytes`].
    ///
    /// # Errors
    /// As [`Transport::post_send`].
    fn post_copy(&mut self, _peer: PeerId, _frame: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// Lets `peer` write `into`, once, from when something that is posted to it after this has arrived there.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer>;

    /// Ends an offer that was not used and returns its memory, also when the peer is lost by now (until
    /// [`Transport::disconnect`]). The peer must not write it any more.
    ///
    /// # Errors
    /// [`Error::OutsideOffer`] when there is no such offer to that peer: also once its write has come, or has begun to. The
    /// memory is in the event then, or was dropped when the peer was lost in the middle of writing it.
    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer>;

    /// Says that something will be posted to `peer` in a moment, so that a van can fetch meanwhile what it will write to. A hint.
    fn prepare(&mut self, _peer: PeerId) {}

    /// Rendezvous: writes `data` straight into memory the peer has offered, `at` bytes from its start, which uses the offer
    /// up; the peer gets an [`Event::Written`]. See [`WRITE_AT_END`] for what `at` can be.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::QueueFull`], and what [`check_write`] says.
    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()>;

    /// Whether [`Transport::post_loan`] can be used to send to `peer` now. Not while it has more on loan than it should.
    fn lends(&self, _peer: PeerId) -> bool {
        false
    }

    /// Sends `frame` as [`Transport::post_send`] does, and with it values of any length that are not copied: the peer reads them
    /// where they lie. They are held until it returns them or cannot read them any more.
    ///
    /// # Errors
    /// As [`Transport::post_send`]; [`Error::OutOfMemory`] when the peer cannot see them where they are and there is no room for
    /// a copy; [`Error::NotConnected`] from a van that does not lend.
    fn post_loan(&mut self, peer: PeerId, _frame: Buffer, _values: Shared) -> Result<()> {
        Err(Error::NotConnected { peer })
    }

    /// Moves work along without blocking and appends what happened to `events`.
    ///
    /// # Errors
    /// Only when the van itself is broken; trouble with a peer is an [`Event::Lost`].
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()>;

    /// Sleeps until a poll may find something, or `timeout` has passed. May return early.
    ///
    /// # Errors
    /// As [`Transport::poll`].
    fn wait(&mut self, timeout: Duration) -> Result<()>;

    /// This van's clock: monotonic, from an arbitrary start; simulated vans have simulated time.
    fn now(&self) -> Duration;

    /// Says what computing has just been done, as the time that it takes a core at full speed. A simulated node is busy for that
    /// long, times what its machine is slower; where time passes by itself nothing happens.
    ///
    /// # Errors
    /// As [`Transport::poll`].
    fn charge(&mut self, _work: Duration) -> Result<()> {
        Ok(())
    }

    /// What this transport has done so far.
    fn counters(&self) -> Counters;
}

/// What a van checks where a write is posted and again where it arrives: `len` bytes at `at` of the `offered` bytes that
/// `key` names.
///
/// # Errors
/// [`Error::WriteAt`], [`Error::WriteTooLong`], [`Error::OutsideOffer`].
pub fn check_write(key: u64, at: u64, len: u64, offered: u64) -> Result<()> {
    if at >= WRITE_AT_END || !at.is_multiple_of(WRITE_AT_ALIGN) {
        return Err(Error::WriteAt { at });
    }
    if len > WRITE_BYTES_MAX as u64 {
        return Err(Error::WriteTooLong { len });
    }
    match at.checked_add(len) {
        Some(end) if end <= offered => Ok(()),
        _ => Err(Error::OutsideOffer { key, at, len, offered }),
    }
}
