//! Headers of messages and connections: typed, little-endian, with asserted sizes.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "CRVN": refuses strangers before anything else is read.
pub const MAGIC: u32 = u32::from_le_bytes(*b"CRVN");

/// Version of all layouts in this file, of streams and of rings in shared memory.
pub const VERSION: u8 = 9;

/// First 64 bytes of every message: one cache line, without padding.
///
/// The sections follow, each 8-byte aligned: an [`Origin`] if [`flags::ORIGIN`], a signature if
/// [`flags::SIGNATURE`], an [`Offer`] if [`flags::OFFER`], keys, lengths, values.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: U32,
    /// [`VERSION`].
    pub version: u8,
    /// A [`Kind`].
    pub kind: u8,
    /// Operation code of the layer above; the van ignores it.
    pub op: u8,
    /// [`flags`].
    pub flags: u8,
    /// Command of the request, which the handle of its table defines; the van ignores it.
    pub command: I32,
    /// Table of the message.
    pub table: U32,
    /// The sender's request number; a reply repeats that of its request.
    pub timestamp: U64,
    /// The sender's iteration.
    pub clock: U64,
    /// First key of the range.
    pub range_begin: U64,
    /// One past the last key of the range; 0 stands for 2^64.
    pub range_end: U64,
    /// Length of the key section on the wire, without padding.
    pub key_bytes: U32,
    /// Length of the lengths section on the wire, without padding; in a batch, of its records.
    pub length_bytes: U32,
    /// Length of the value section on the wire, without padding.
    pub value_bytes: U32,
    /// CRC32C of the frame, with 0 in this field, in the header of the frame's first image. It
    /// omits values under [`flags::VALUES_UNCOVERED`]. It is 0 in other images, and where a carrier
    /// checks every byte.
    pub checksum: U32,
}

const _: () = assert!(size_of::<Header>() == 64);
const _: () = assert!(std::mem::offset_of!(Header, timestamp) == 16);
const _: () = assert!(std::mem::offset_of!(Header, range_begin) == 32);
const _: () = assert!(std::mem::offset_of!(Header, checksum) == 60);

/// The van's kinds of messages: whether one spends a credit, returns one, or arranges a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A request, which spends a credit until its reply arrives.
    Request = 1,
    /// The answer to the request with the same timestamp. Its offer section grants a landing, as
    /// [`Kind::Grant`] does.
    Reply = 2,
    /// An answer that reports an error: the values are UTF-8 text.
    Failure = 3,
    /// Asks for a landing of `timestamp` bytes, or for none if that is 0. The values are the keys
    /// (`u64`) of granted landings that this side returns.
    Want = 4,
    /// Grants a landing, which the offer section names.
    Grant = 5,
    /// A batch of replies: see `wire/batch.rs`.
    Replies = 6,
    /// A batch of requests about one key each.
    Requests = 7,
}

impl Kind {
    /// Returns the kind with number `raw`, if there is one.
    pub fn from_raw(raw: u8) -> Option<Kind> {
        Some(match raw {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Failure,
            4 => Kind::Want,
            5 => Kind::Grant,
            6 => Kind::Replies,
            7 => Kind::Requests,
            _ => return None,
        })
    }
}

/// Bits of [`Header::flags`]; all others are zero.
pub mod flags {
    /// An [`Offer`](super::Offer) follows the header.
    pub const OFFER: u8 = 1;
    /// Keys are delta-coded.
    pub const KEYS_DELTA: u8 = 2;
    /// The key section is Snappy-compressed (after delta coding).
    pub const KEYS_SNAPPY: u8 = 4;
    /// The lengths section is Snappy-compressed.
    pub const LENGTHS_SNAPPY: u8 = 8;
    /// The value section is Snappy-compressed.
    pub const VALUES_SNAPPY: u8 = 16;
    /// The checksum omits the values, which the carrier checks: they were sent from where they lay.
    /// Only an image that has its frame to itself may have this flag.
    pub const VALUES_UNCOVERED: u8 = 32;
    /// The signature of a list of keys, 8 bytes, follows the header. The receiver remembers the
    /// keys of the message under it. A message without keys names a remembered list.
    pub const SIGNATURE: u8 = 64;
    /// An [`Origin`](super::Origin) follows the header: the sender forwards the request of another
    /// node.
    pub const ORIGIN: u8 = 128;
    /// Flags of sections that lie as they are: nothing is coded, and the values are not apart.
    pub(crate) const PLAIN: u8 = OFFER | SIGNATURE | ORIGIN;
    /// Some section is coded.
    pub(crate) const CODED: u8 = KEYS_DELTA | KEYS_SNAPPY | LENGTHS_SNAPPY | VALUES_SNAPPY;
    /// All flags.
    pub const ALL: u8 = 255;
}

/// Memory that one node lets one peer write, once.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Offer {
    /// Number that the offering transport gave the memory.
    pub key: U64,
    /// Address of the memory, for vans that write by address.
    pub address: U64,
    /// Length of the memory in bytes.
    pub len: U64,
}

const _: () = assert!(size_of::<Offer>() == 24);

/// The node that has made a request which another one forwards. The timestamp of the message is
/// that of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// [`Hello::incarnation`] of the node.
    pub incarnation: u64,
    /// Id of the node.
    pub node: u32,
}

impl Origin {
    /// Bytes of its section: both numbers, and zeros up to the next section.
    pub(crate) const BYTES: usize = 16;

    #[inline]
    pub(crate) fn write(self, place: &mut [u8]) {
        place[..8].copy_from_slice(&self.incarnation.to_le_bytes());
        place[8..].copy_from_slice(&u64::from(self.node).to_le_bytes());
    }

    /// Reads a section.
    pub(crate) fn read(section: &[u8]) -> Option<Origin> {
        let (incarnation, rest) = section.split_first_chunk()?;
        let node = rest.first_chunk()?;
        let incarnation = u64::from_le_bytes(*incarnation);
        Some(Origin { incarnation, node: u32::from_le_bytes(*node) })
    }
}

/// Data that each side of a new connection sends, sealed with the job's secret: see `handshake.rs`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Hello {
    /// Number of requests that the peer may have outstanding here.
    pub credits: U16,
    /// Number of receive buffers kept for the peer, by vans that have them.
    pub receives: U16,
    /// Length of the longest frame that this side accepts, in bytes.
    pub frame_bytes: U32,
    /// Node id of the sender.
    pub node: U32,
    /// Rank of the sender among the nodes of its role; [`Hello::NO_RANK`] if it has none yet.
    pub rank: U32,
    /// Random number drawn when the node started, which tells a restarted node from the former one.
    pub incarnation: U64,
    /// Random number of the transport, by which a transport recognizes itself.
    pub transport: U32,
    /// Role of the node; the van ignores it.
    pub role: u8,
    /// A [`Beside`], or 0 for a lane of its own.
    pub beside: [u8; 3],
}

const _: () = assert!(size_of::<Hello>() == 32);

/// What a lane that carries stripes of another one says of itself: see `mixed/stripes.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Number that the called side gave the other lane: 1 to [`Beside::LANES`].
    pub lane: u32,
    /// Which stripe it carries: 1 to [`Beside::STRIPES`].
    pub stripe: usize,
}

impl Beside {
    /// Highest number of a lane.
    pub const LANES: u32 = (1 << 22) - 1;
    /// Highest number of a stripe.
    pub const STRIPES: usize = 3;

    /// Its bytes in a [`Hello`].
    pub fn to_bytes(self) -> [u8; 3] {
        let [a, b, c, _] = (self.lane << 2 | self.stripe as u32).to_le_bytes();
        [a, b, c]
    }
}

impl Hello {
    /// Rank of a node that has none.
    pub const NO_RANK: u32 = u32::MAX;

    /// Decodes a peer's hello.
    ///
    /// # Errors
    /// A sentence for the log that says what is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<Hello, String> {
        let hello = Hello::read_from_bytes(bytes).map_err(|_| {
            format!("a hello has {} bytes, not {}", size_of::<Hello>(), bytes.len())
        })?;
        let is_beside = hello.beside().is_none_or(|it| it.lane > 0 && it.stripe > 0);
        if !is_beside || hello.credits.get() == 0 {
            return Err("its hello is malformed".to_owned());
        }
        Ok(hello)
    }

    /// The lane whose stripes this one carries, if it is not a lane of its own.
    pub fn beside(&self) -> Option<Beside> {
        let [a, b, c] = self.beside;
        let word = u32::from_le_bytes([a, b, c, 0]);
        (word != 0).then_some(Beside { lane: word >> 2, stripe: word as usize & 3 })
    }
}
