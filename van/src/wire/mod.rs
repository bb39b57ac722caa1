//! Bytes in, bytes out: the wire format. No I/O, no clock, no unsafe.
//!
//! A message image is one piece: header, signature and [`Offer`] if flagged, keys, lengths, values. Each section starts at a
//! multiple of 8, with zeros in between; the values end the image. A frame holds one image or several, each from a multiple of
//! 8, again with zeros in between, and nothing behind the last; one checksum covers them all, unless the carrier checks every
//! byte. Short messages that are alike share an image (`batch.rs`). In a landing, values that were sent from where they lay come
//! first, and the rest behind them.

mod batch;
mod decode;
mod delta;
mod encode;
mod header;
mod images;
mod records;
mod snappy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use crate::message::KeyRange;
pub(crate) use batch::{BatchKey, close_batch, write_sections};
pub(crate) use decode::{decode, decode_landed, decode_lent};
pub use encode::{Coding, encode};
pub(crate) use encode::{encode_into, seal};
pub use header::{Header, Hello, Kind, MAGIC, Offer, VERSION, flags};
pub use images::{Entry, Images};
pub use records::{Messages, Record};

#[cfg(target_endian = "big")]
compile_error!(
    "messages are little-endian and viewed in place: this crate needs a little-endian machine"
);

/// Bytes behind the head of a message whose values are apart, in which its length stands.
pub(crate) const TRAILER: usize = 8;

/// Every section starts at a multiple of this many bytes.
const ALIGN: usize = 8;

/// Where [`Header::checksum`] stands.
const CHECKSUM: Range<usize> = std::mem::offset_of!(Header, checksum)..size_of::<Header>();

/// CRC32C, of a frame whose header says 0 for it.
#[inline(never)] // else what it asks about the processor stands wherever it is called
fn checksum(covered: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(covered)
}

/// A key that lies outside of the range that all should be in, if there is one; looks at both ends of ascending keys.
#[inline]
fn key_outside(keys: &[u64], range: KeyRange) -> Option<u64> {
    let (first, last) = (*keys.first()?, *keys.last()?);
    [first, last].into_iter().find(|&key| !range.contains(key))
}

/// Whether each key is above the one before. Looks at all of them, since a loop without an early end can be vectorised.
fn ascend(keys: &[u64]) -> bool {
    let above = keys.iter().skip(1);
    keys.iter().zip(above).fold(true, |so_far, (key, next)| so_far & (key < next))
}

#[inline]
fn check_padding(image: &[u8], range: Range<usize>) -> Result<(), DecodeError> {
    for at in range {
        if image[at] != 0 {
            return Err(DecodeError::Padding { at, byte: image[at] });
        }
    }
    Ok(())
}

fn snappy_flag(section: Section) -> u8 {
    match section {
        Section::Keys => flags::KEYS_SNAPPY,
        Section::Lengths => flags::LENGTHS_SNAPPY,
        Section::Values => flags::VALUES_SNAPPY,
    }
}

/// A variable part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// What the message is about: `u64`s, ascending.
    Keys,
    /// How many values each key has: `u32`s; none when all have the same.
    Lengths,
    /// What is said about the keys.
    Values,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Section::Keys => "keys",
            Section::Lengths => "lengths",
            Section::Values => "values",
        })
    }
}

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
    /// Longer than its header says.
    #[error("{have} bytes are too many for a message whose header announces {need}")]
    TooLong {
        /// Bytes there are.
        have: usize,
        /// Bytes it takes.
        need: usize,
    },
    /// It was received at an address at which its sections cannot be viewed.
    #[error("it lies {offset} bytes past a multiple of 8; the van must receive it 8-byte aligned")]
    Misaligned {
        /// Address modulo 8.
        offset: usize,
    },
    /// Values before the message that are not those it speaks of.
    #[error(
        "{have} bytes lie before a message whose header announces {need} bytes of values apart"
    )]
    ValuesApart {
        /// Bytes there are, padding included.
        have: usize,
        /// Bytes it announces.
        need: usize,
    },
    /// A stranger's first bytes.
    #[error(
        "it begins with {magic:#010x}, not with {MAGIC:#010x}: the sender speaks another protocol"
    )]
    Magic {
        /// What stood there.
        magic: u32,
    },
    /// A version this build does not speak.
    #[error("it has version {version}, this is {VERSION}: run the same build everywhere")]
    Version {
        /// The sender's.
        version: u8,
    },
    /// A kind that does not exist.
    #[error("no message kind has number {kind}")]
    UnknownKind {
        /// What stood there.
        kind: u8,
    },
    /// A flag that does not exist.
    #[error("flags {flags:#010b} hold bits outside of {all:#010b}", all = flags::ALL)]
    UnknownFlags {
        /// What stood there.
        flags: u8,
    },
    /// Values that cannot be where the flags put them.
    #[error("flags {flags:#010b} contradict each other in a message of kind {kind:?}")]
    Contradiction {
        /// What stood there.
        flags: u8,
        /// In which kind of message.
        kind: Kind,
    },
    /// A flag about the coding of a section that has no bytes.
    #[error("flags {flags:#010b} speak of {section}, and there are none")]
    CodedEmpty {
        /// Which section.
        section: Section,
        /// What stood there.
        flags: u8,
    },
    /// A run whose messages cannot be of that form, or where there is none.
    #[error(
        "no run has {keys} bytes of keys and {values} of values a message, and {records} bytes of records"
    )]
    Run {
        /// Bytes of keys of each message.
        keys: usize,
        /// Bytes of values of each message.
        values: usize,
        /// Bytes of all but the first.
        records: usize,
    },
    /// A key range without keys.
    #[error("the key range [{begin}, {end}) is empty")]
    EmptyRange {
        /// Its first key.
        begin: u64,
        /// One past its last.
        end: u64,
    },
    /// The bytes are not those that were sent.
    #[error("checksum {found:#010x} does not match the content's {computed:#010x}: it was damaged")]
    Checksum {
        /// What the header says.
        found: u32,
        /// What the bytes say.
        computed: u32,
    },
    /// Something between two sections.
    #[error("the padding byte at {at} is {byte}, not 0")]
    Padding {
        /// Offset in the message.
        at: usize,
        /// What stood there.
        byte: u8,
    },
    /// A section that ends in the middle of an item.
    #[error("{bytes} bytes of {section} are no multiple of {item}")]
    PartialItem {
        /// Which section.
        section: Section,
        /// Its length, decoded.
        bytes: usize,
        /// Bytes of an item.
        item: usize,
    },
    /// Keys that do not ascend.
    #[error("key {key} at index {index} does not ascend from {previous}")]
    KeyOrder {
        /// Index of the second of the two.
        index: usize,
        /// The second.
        key: u64,
        /// The first.
        previous: u64,
    },
    /// A key that the message is not about.
    #[error("key {key} lies outside of the key range [{begin}, {end})")]
    KeyOutsideRange {
        /// The key.
        key: u64,
        /// First key of the range.
        begin: u64,
        /// One past its last; 0 stands for 2^64.
        end: u64,
    },
    /// Delta-coded keys past 2^64.
    #[error("key {index} of {count} delta-coded ones exceeds 64 bits")]
    KeyOverflow {
        /// Which one.
        index: u64,
        /// Of how many.
        count: u64,
    },
    /// More delta-coded keys announced than there are bytes.
    #[error("{count} delta-coded keys cannot lie in {have} bytes")]
    KeyCount {
        /// Keys announced.
        count: u64,
        /// Bytes for them.
        have: usize,
    },
    /// A variable-length number that has no end, or too many bits.
    #[error("the varint at byte {at} of the delta-coded keys is cut off or exceeds 64 bits")]
    Varint {
        /// Where it starts.
        at: usize,
    },
    /// Bytes behind the last delta-coded key.
    #[error("{bytes} bytes are left behind {count} delta-coded keys")]
    KeysTrailing {
        /// Bytes left.
        bytes: usize,
        /// Keys announced.
        count: u64,
    },
    /// Lengths for other than all keys that are named.
    #[error("{lengths} lengths do not match {keys} keys")]
    LengthCount {
        /// Lengths there are.
        lengths: usize,
        /// Keys there are.
        keys: usize,
    },
    /// A Snappy section announces more than Snappy can hold.
    #[error(
        "{wire_bytes} bytes of Snappy cannot hold the {raw_bytes} bytes of {section} they announce"
    )]
    SnappyRatio {
        /// Which section.
        section: Section,
        /// Its length on the wire.
        wire_bytes: usize,
        /// What it announces.
        raw_bytes: usize,
    },
    /// A Snappy section that is none.
    #[error("{wire_bytes} bytes of {section} are no Snappy: {source}")]
    Snappy {
        /// Which section.
        section: Section,
        /// Its length on the wire.
        wire_bytes: usize,
        /// What its decoder says.
        source: snap::Error,
    },
}
