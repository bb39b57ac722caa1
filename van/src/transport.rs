//! The contract of a van: what every backend owes the layers above, and all they may ask of it.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

mod clock;
mod sleeper;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

pub use self::clock::{Clock, SimulatedTime};
pub use self::sleeper::Sleeper;

use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::metrics::Counters;
use crate::wire::{Hello, Offer};

/// Bytes at the start of a [`Frame`] that moves in: they belong to the van, which writes its own
/// framing there, so that the frame leaves in one piece without being copied.
pub const FRAME_PREFIX: usize = 16;

/// A write begins below this offset in the offered memory, and at a multiple of [`WRITE_AT_ALIGN`].
///
/// That is enough for values to begin on a page whatever stands before them, and few enough offsets
/// that a van can name each in 9 bits beside the offer's own number: 32 bits of immediate data,
/// say.
pub const WRITE_AT_END: u64 = 4096;

/// See [`WRITE_AT_END`].
pub const WRITE_AT_ALIGN: u64 = 8;

/// Name of a transport that is made of several: its lanes have the names of the vans that carry
/// them, by [`Transport::about_of`].
pub const MIXED: &str = "mixed";

/// Longest write, in bytes.
pub const WRITE_BYTES_MAX: usize = u32::MAX as usize;

/// A connected peer, as one transport numbers it. The number of one that has been
/// [disconnected](Transport::disconnect) is given to a later caller.
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
    /// A connection is up, whichever side asked for it, and the peer has proved that it belongs
    /// here: see [`handshake`](crate::handshake).
    Connected {
        /// The new peer.
        peer: PeerId,
        /// What it said of itself.
        hello: Hello,
    },
    /// A frame arrived whole, without the prefix, its first byte 8-byte aligned. Dropping it gives
    /// its memory back.
    Received {
        /// From whom.
        peer: PeerId,
        /// What.
        frame: Buffer,
    },
    /// As [`Event::Received`], with values that the peer has lent: they are read where it has them.
    /// They go back by themselves at the next poll after their last part is dropped. Only from vans
    /// that lend: see [`Frame::Lent`].
    Lent {
        /// From whom.
        peer: PeerId,
        /// What.
        frame: Buffer,
        /// 8-byte aligned. They stay as they are, also when the peer is lost; only who breaks the
        /// rules changes them.
        values: Shared,
    },
    /// A peer wrote into memory that was offered to it, which comes back whole: the offer has
    /// ended.
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
    /// The connection is gone and nothing more will come of it. What was posted to it may or may
    /// not have arrived.
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

    /// The same about this peer, for a transport that numbers the peers of another anew.
    #[must_use]
    #[inline]
    pub(crate) fn of(mut self, own: PeerId) -> Event {
        let (Event::Connected { peer, .. }
        | Event::Received { peer, .. }
        | Event::Lent { peer, .. }
        | Event::Written { peer, .. }
        | Event::Lost { peer, .. }) = &mut self;
        *peer = own;
        self
    }
}

/// A frame to be sent, and whose its bytes are afterwards.
#[derive(Debug)]
pub enum Frame<'a> {
    /// A frame behind [`FRAME_PREFIX`] bytes, which moves in. Every van takes it.
    Owned(Buffer),
    /// A short frame, without the prefix, which the van copies: its memory is the caller's again.
    /// Up to [`Limits::copy_bytes`].
    Borrowed(&'a [u8]),
    /// A frame behind [`FRAME_PREFIX`] bytes, and values of any length that belong to it and are
    /// not copied: the peer reads them where they lie, and the van holds them until it has returned
    /// them or cannot read them any more. From [`Limits::lent_bytes_min`] on.
    Lent {
        /// What is said of the values.
        frame: Buffer,
        /// They stay as they are while they are lent.
        values: Shared,
    },
}

impl From<Buffer> for Frame<'_> {
    #[inline]
    fn from(frame: Buffer) -> Self {
        Frame::Owned(frame)
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

    /// The bytes in `range`, without a copy.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Gather {
        let middle = self.head.len();
        let cut = |at: usize| at.saturating_sub(middle);
        let head = self.head.slice(range.start.min(middle)..range.end.min(middle));
        let tail = self.tail.as_ref().map(|tail| tail.slice(cut(range.start)..cut(range.end)));
        Gather { head, tail }
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
    /// Longest frame, without the prefix.
    pub frame_bytes: usize,
    /// Sends and writes that may be queued to one peer.
    pub queue_depth: usize,
    /// Whether the carrier itself checks every byte from end to end, by 32 bits or more, so that
    /// messages need not.
    pub checks_bytes: bool,
    /// Longest [`Frame::Borrowed`] that the van may take; 0 where frames are sent from where they
    /// lie.
    pub copy_bytes: usize,
    /// Values from this length on are better [lent](Frame::Lent) than copied; `usize::MAX` from a
    /// van that does not lend.
    pub lent_bytes_min: usize,
}

impl Limits {
    /// Those of a van that sends frames from where they lie, leaves it to others to check them, and
    /// lends nothing.
    pub fn plain(frame_bytes: usize, queue_depth: usize) -> Limits {
        let (checks_bytes, copy_bytes, lent_bytes_min) = (false, 0, usize::MAX);
        Limits { frame_bytes, queue_depth, checks_bytes, copy_bytes, lent_bytes_min }
    }
}

/// What stays the same about a transport from when it was made.
#[derive(Debug)]
pub struct About {
    /// The van's name: "tcp", "uring", "sim", …
    pub name: &'static str,
    /// Where peers connect to, in the form [`Transport::connect`] takes; empty where
    /// [`VanConfig::accepts`](crate::VanConfig) is not set.
    pub address: String,
    /// For a van that does not leave the host, where that is: it connects only those that say the
    /// same.
    pub host: Option<String>,
    /// The port of the device that it is on, as "mlx5_0/1".
    pub port: Option<String>,
    /// What this van can carry.
    pub limits: Limits,
    /// The memory this van sends from and receives into.
    pub memory: Pool,
    /// The time that its waits take.
    pub clock: Clock,
}

/// One node's lanes to its peers. Owned by one thread; only [`Transport::wait`] blocks.
///
/// Contract, run against every backend by `van::conformance`:
/// * frames and writes to a peer arrive whole, once and in posting order, each with an event of its
///   own, or the peer is reported lost;
/// * an offer is for one write: the write ends it, and the memory is handed back with
///   [`Event::Written`]. Nobody can write it any more by then;
/// * posted work leaves at the next [`Transport::poll`] or [`Transport::wait`] at the latest, so
///   that what is posted between two polls can leave together;
/// * a buffer that was posted is dropped once its bytes have left or its peer is lost: a slot comes
///   home by itself; one that was lent is, once the peer has returned it or is lost and cannot read
///   it any more;
/// * a peer writes only memory offered to it, once, within its bounds; anything else loses that
///   peer, not this node, and reaches no memory but what that peer might have written;
/// * a full queue is [`Error::QueueFull`], never a wait;
/// * dropping a transport closes its connections; peers see [`Event::Lost`].
pub trait Transport {
    /// Name, address, limits, memory and clock of this transport.
    fn about(&self) -> &About;

    /// The same of the van that carries the lane to `peer`: another one only where a transport is
    /// made of several, and once the lane is up.
    fn about_of(&self, _peer: PeerId) -> &About {
        self.about()
    }

    /// Starts a connection; [`Event::Connected`] or [`Event::Lost`] follows.
    ///
    /// # Errors
    /// [`Error::Connect`] when it is already clear that it cannot be made.
    fn connect(&mut self, address: &str) -> Result<PeerId>;

    /// Forgets a peer, also one that was reported lost: closes the connection, drops what was
    /// posted and offered to it. No event follows.
    fn disconnect(&mut self, peer: PeerId);

    /// Eager: sends `frame` into memory the peer keeps ready. Hands it back if the van cannot take
    /// it in this form now, and nothing has happened then: a borrowed frame that it has no room to
    /// copy, values that would be more on loan to `peer` than there should be, either one on a van
    /// that has no use for the form. An owned frame is never handed back.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::QueueFull`], [`Error::FrameTooLong`];
    /// [`Error::OutOfMemory`] when the peer cannot see lent values where they are and there is no
    /// room for a copy.
    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>>;

    /// Lets `peer` write `into`, once, from when something that is posted to it after this has
    /// arrived there.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer>;

    /// Ends an offer that was not used and returns its memory, also when the peer is lost by now
    /// (until [`Transport::disconnect`]). The peer must not write it any more.
    ///
    /// # Errors
    /// [`Error::OutsideOffer`] when there is no such offer to that peer: also once its write has
    /// come, or has begun to. The memory is in the event then, or was dropped when the peer was
    /// lost in the middle of writing it.
    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer>;

    /// Rendezvous: writes `data` straight into memory the peer has offered, `at` bytes from its
    /// start, which uses the offer up; the peer gets an [`Event::Written`]. See [`WRITE_AT_END`]
    /// for what `at` can be.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::QueueFull`], and what [`check_write`] says.
    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()>;

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

    /// What this transport has done so far.
    fn counters(&self) -> Counters;
}

/// Checks that a frame that moves in, with its prefix, is not longer than `limit` without it.
///
/// # Errors
/// [`Error::FrameTooLong`].
///
/// # Panics
/// If it does not begin with the prefix.
#[inline]
pub fn check_frame(frame: &Buffer, limit: usize) -> Result<()> {
    let len = frame.len().checked_sub(FRAME_PREFIX).expect("a frame begins with its prefix");
    if len > limit { Err(Error::FrameTooLong { len, limit }) } else { Ok(()) }
}

/// What a van checks where a write is posted and again where it arrives: `len` bytes at `at` of the
/// `offered` bytes that `key` names.
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
