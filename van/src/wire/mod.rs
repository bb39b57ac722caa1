//! The wire format: bytes in, bytes out. No I/O, no clock, no unsafe.
//!
//! A message image is one piece: header, [`Origin`], signature and [`Offer`] if flagged, keys,
//! lengths, values.
//! Each section starts at a multiple of 8, with zeros in between; the values end the image.
//!
//! A frame holds one or more images, each at a multiple of 8, with zeros in between and nothing
//! behind the last. One checksum covers them all, unless the carrier checks every byte. Messages
//! that share a header form a batch of records (`batch.rs`), which is read as one message. In a
//! landing, values that were sent from where they lay come first, and the rest behind them.

mod batch;
mod decode;
mod delta;
mod encode;
mod header;
mod images;
mod layout;
mod peek;
mod snappy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use crate::message::KeyRange;
pub(crate) use batch::{BatchKey, close_batch, write_sections};
pub(crate) use decode::{check_key, check_keys, check_lengths, expand};
pub(crate) use decode::{decode, decode_landed, decode_lent};
pub use encode::{Coding, encode};
pub(crate) use encode::{encode_into, seal};
pub use header::{Beside, Header, Hello, Kind, MAGIC, Offer, Origin, VERSION, flags};
pub use images::Images;
pub(crate) use layout::Layout;
pub(crate) use peek::{Peeked, peek, peek_landed};

#[cfg(target_endian = "big")]
compile_error!(
    "messages are little-endian and viewed in place: this crate needs a little-endian machine"
);

/// Length of the trailer behind a head whose values are apart: it holds the length of the head's
/// image.
pub(crate) const TRAILER: usize = 8;

/// Every section starts at a multiple of this many bytes.
const ALIGN: usize = 8;

/// Position of [`Header::checksum`] in a header.
const CHECKSUM: Range<usize> = std::mem::offset_of!(Header, checksum)..size_of::<Header>();

/// CRC32C of a frame whose header holds 0 for it.
#[inline(never)] // keeps the query of the processor's features out of the callers
fn checksum(covered: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(covered)
}

/// Returns a key outside `range`, if there is one. Keys ascend, so it checks the first and the
/// last.
#[inline]
fn key_outside(keys: &[u64], range: KeyRange) -> Option<u64> {
    let first = *keys.first()?;
    let last = *keys.last()?;
    [first, last].into_iter().find(|&key| !range.contains(key))
}

/// Whether keys ascend strictly. It always looks at all of them, because only a loop without an
/// early end can be vectorised.
fn ascend(keys: &[u64]) -> bool {
    let above = keys.iter().skip(1);
    keys.iter().zip(above).fold(true, |so_far, (key, next)| so_far & (key < next))
}

#[inline]
pub(crate) fn check_padding(image: &[u8], range: Range<usize>) -> Result<(), DecodeError> {
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
    /// Keys of the message: `u64`, ascending.
    Keys,
    /// Numbers of values of the keys: `u32`, or none if all keys have the same.
    Lengths,
    /// Values of the keys.
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

/// The reason why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There are fewer bytes than the item takes.
    #[error("{have} bytes are too few for {what}, which takes {need}")]
    TooShort {
        /// The item.
        what: &'static str,
        /// Bytes present.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The message is longer than its header announces.
    #[error("{have} bytes are too many for a message whose header announces {need}")]
    TooLong {
        /// Bytes present.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The message lies at an address at which its sections cannot be viewed.
    #[error("it lies {offset} bytes past a multiple of 8; the van must receive it 8-byte aligned")]
    Misaligned {
        /// Address modulo 8.
        offset: usize,
    },
    /// The values before the message differ from those that it announces.
    #[error(
        "{have} bytes lie before a message whose header announces {need} bytes of values apart"
    )]
    ValuesApart {
        /// Bytes present, padding included.
        have: usize,
        /// Bytes announced.
        need: usize,
    },
    /// The sender speaks another protocol.
    #[error(
        "it begins with {magic:#010x}, not with {MAGIC:#010x}: the sender speaks another protocol"
    )]
    Magic {
        /// The value found.
        magic: u32,
    },
    /// The sender has another version.
    #[error("it has version {version}, this is {VERSION}: run the same build everywhere")]
    Version {
        /// Version of the sender.
        version: u8,
    },
    /// The kind does not exist.
    #[error("no message kind has number {kind}")]
    UnknownKind {
        /// The value found.
        kind: u8,
    },
    /// Flags exclude each other in this kind of message.
    #[error("flags {flags:#010b} contradict each other in a message of kind {kind:?}")]
    Contradiction {
        /// The value found.
        flags: u8,
        /// Kind of the message.
        kind: Kind,
    },
    /// A flag concerns the coding of an empty section.
    #[error("flags {flags:#010b} speak of {section}, and there are none")]
    CodedEmpty {
        /// The section.
        section: Section,
        /// The value found.
        flags: u8,
    },
    /// A batch has impossible sizes, or stands where none may.
    #[error(
        "no run has {keys} bytes of keys and {values} of values a message, and {records} bytes of \
         records"
    )]
    Batch {
        /// Bytes of keys of each message.
        keys: usize,
        /// Bytes of values of each message.
        values: usize,
        /// Bytes of all messages but the first.
        records: usize,
    },
    /// The key range is empty.
    #[error("the key range [{begin}, {end}) is empty")]
    EmptyRange {
        /// First key of the range.
        begin: u64,
        /// One past the last key of the range.
        end: u64,
    },
    /// The bytes differ from those that were sent.
    #[error("checksum {found:#010x} does not match the content's {computed:#010x}: it was damaged")]
    Checksum {
        /// Checksum in the header.
        found: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// A byte between two sections is not zero.
    #[error("the padding byte at {at} is {byte}, not 0")]
    Padding {
        /// Offset of the byte in the message.
        at: usize,
        /// The value found.
        byte: u8,
    },
    /// A section ends in the middle of an item.
    #[error("{bytes} bytes of {section} are no multiple of {item}")]
    PartialItem {
        /// The section.
        section: Section,
        /// Length of the decoded section.
        bytes: usize,
        /// Bytes of an item.
        item: usize,
    },
    /// Keys do not ascend.
    #[error("key {key} at index {index} does not ascend from {previous}")]
    KeyOrder {
        /// Index of the second of the two keys.
        index: usize,
        /// The second key.
        key: u64,
        /// The first key.
        previous: u64,
    },
    /// A key lies outside the range of the message.
    #[error("key {key} lies outside of the key range [{begin}, {end})")]
    KeyOutsideRange {
        /// The key.
        key: u64,
        /// First key of the range.
        begin: u64,
        /// One past the last key of the range; 0 stands for 2^64.
        end: u64,
    },
    /// A delta-coded key exceeds 64 bits.
    #[error("key {index} of {count} delta-coded ones exceeds 64 bits")]
    KeyOverflow {
        /// Index of the key.
        index: u64,
        /// Number of keys.
        count: u64,
    },
    /// More delta-coded keys are announced than there are bytes.
    #[error("{count} delta-coded keys cannot lie in {have} bytes")]
    KeyCount {
        /// Keys announced.
        count: u64,
        /// Bytes present for the keys.
        have: usize,
    },
    /// A variable-length number is cut off or has too many bits.
    #[error("the varint at byte {at} of the delta-coded keys is cut off or exceeds 64 bits")]
    Varint {
        /// Offset of the number.
        at: usize,
    },
    /// Bytes follow the last delta-coded key.
    #[error("{bytes} bytes are left behind {count} delta-coded keys")]
    KeysTrailing {
        /// Number of these bytes.
        bytes: usize,
        /// Keys announced.
        count: u64,
    },
    /// The lengths do not match the named keys.
    #[error("{lengths} lengths do not match {keys} keys")]
    LengthCount {
        /// Number of lengths.
        lengths: usize,
        /// Number of keys.
        keys: usize,
    },
    /// A Snappy section announces more bytes than it can hold.
    #[error(
        "{wire_bytes} bytes of Snappy cannot hold the {raw_bytes} bytes of {section} they announce"
    )]
    SnappyRatio {
        /// The section.
        section: Section,
        /// Length of the section on the wire.
        wire_bytes: usize,
        /// Length that it announces.
        raw_bytes: usize,
    },
    /// A section is not valid Snappy.
    #[error("{wire_bytes} bytes of {section} are no Snappy: {source}")]
    Snappy {
        /// The section.
        section: Section,
        /// Length of the section on the wire.
        wire_bytes: usize,
        /// Error of the Snappy decoder.
        source: snap::Error,
    },
}
