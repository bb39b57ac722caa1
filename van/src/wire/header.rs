//! The first bytes of every message and every connection: typed, little-endian, asserted.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "CRVN": turns a stranger away before anything else is read.
pub const MAGIC: u32 = u32::from_le_bytes(*b"CRVN");

/// Version of all layouts in this file, and of those of streams and of rings in shared memory.
pub const VERSION: u8 = 7;

/// First 64 bytes of every message: one cache line, no padding.
///
/// What follows, each section 8-byte aligned: a signature if [`flags::SIGNATURE`], an [`Offer`] if [`flags::OFFER`], keys, lengths,
/// values.
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
    /// What the layer above asks for; the van never looks at it.
    pub op: u8,
    /// [`flags`].
    pub flags: u8,
    /// The sender's node id.
    pub sender: U32,
    /// The table it is about.
    pub table: U32,
    /// The sender's request number; a reply carries that of its request.
    pub timestamp: U64,
    /// The sender's iteration.
    pub clock: U64,
    /// Key range `[begin, end)`.
    pub range_begin: U64,
    /// Likewise; 0 stands for 2^64.
    pub range_end: U64,
    /// Length of the key section on the wire, without padding.
    pub key_bytes: U32,
    /// Length of the lengths section on the wire, without padding; of a run, the length of its records.
    pub length_bytes: U32,
    /// Length of the value section on the wire, without padding.
    pub value_bytes: U32,
    /// CRC32C of the frame (with 0 here) in the header of its first image, except values under [`flags::VALUES_UNCOVERED`]; 0 in the
    /// others, and wherever a carrier checks every byte itself.
    pub checksum: U32,
}

const _: () = assert!(size_of::<Header>() == 64);
const _: () = assert!(std::mem::offset_of!(Header, timestamp) == 16);
const _: () = assert!(std::mem::offset_of!(Header, range_begin) == 32);
const _: () = assert!(std::mem::offset_of!(Header, checksum) == 60);

/// What a message is to the van: whether it spends a credit, returns one, or arranges a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Asks for something; spends a credit until its reply comes.
    Request = 1,
    /// Answers the request with the same timestamp. An offer section grants a landing, as [`Kind::Grant`] does.
    Reply = 2,
    /// Answers it with an error: the values are UTF-8 text. Otherwise like a reply.
    Failure = 3,
    /// Asks for memory to write a long message into: `timestamp` is its length in bytes, 0 to ask for none. The values are the
    /// keys, `u64`s, of landings that this side holds and gives back.
    Want = 4,
    /// Grants such memory: the offer section names it.
    Grant = 5,
    /// Several replies that are alike, as a run: see `wire/batch.rs`.
    Replies = 6,
    /// Several requests about one key each that are alike, as a run.
    Requests = 7,
}

impl Kind {
    /// The kind with number `raw`, if there is one.
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
    /// An [`Offer`](super::Offer) stands behind the header.
    pub const OFFER: u8 = 1;
    /// Keys are delta-coded.
    pub const KEYS_DELTA: u8 = 2;
    /// The key section is Snappy-compressed (after delta coding).
    pub const KEYS_SNAPPY: u8 = 4;
    /// The lengths section is Snappy-compressed.
    pub const LENGTHS_SNAPPY: u8 = 8;
    /// The value section is Snappy-compressed.
    pub const VALUES_SNAPPY: u8 = 16;
    /// The checksum leaves the values to the carrier's own: they were sent from where they lay. Only of an image that has its
    /// frame to itself.
    pub const VALUES_UNCOVERED: u8 = 32;
    /// The signature of a list of keys, 8 bytes, stands behind the header. The receiver remembers the keys of the message under it,
    /// or knows them if there are none.
    pub const SIGNATURE: u8 = 64;
    /// All of the above.
    pub const ALL: u8 = 127;
}

/// Names memory that one node lets one peer write, once.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Offer {
    /// The offering transport's number for it.
    pub key: U64,
    /// Where it lies, for vans that write by address.
    pub address: U64,
    /// Its length in bytes.
    pub len: U64,
}

const _: () = assert!(size_of::<Offer>() == 24);

/// What each side of a new connection says of itself, sealed with the job's secret: see `handshake.rs`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Hello {
    /// Requests the peer may have outstanding here.
    pub credits: U16,
    /// Receive buffers kept for the peer, by a van that has such.
    pub receives: U16,
    /// Longest frame it takes, in bytes.
    pub frame_bytes: U32,
    /// The sender's node id.
    pub node: U32,
    /// Its place among the nodes of its role, [`Hello::NO_RANK`] if it has none yet.
    pub rank: U32,
    /// Drawn at random when the node started: one that was started again has another.
    pub incarnation: U64,
    /// Drawn at random for each transport, which does not talk to itself.
    pub transport: U32,
    /// What the node is; the van never looks at it.
    pub role: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<Hello>() == 32);

impl Hello {
    /// Stands for the rank of a node that has none.
    pub const NO_RANK: u32 = u32::MAX;

    /// Reads a peer's hello.
    ///
    /// # Errors
    /// Says in a sentence for the log what is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<Hello, String> {
        let hello = Hello::read_from_bytes(bytes).map_err(|_| {
            format!("a hello has {} bytes, not {}", size_of::<Hello>(), bytes.len())
        })?;
        if hello.reserved != [0; 3] || hello.credits.get() == 0 {
            return Err("its hello is malformed".to_owned());
        }
        Ok(hello)
    }
}
