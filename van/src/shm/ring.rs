//! What lies in a lane's segment: who writes which word, and how a record stands in the slots of its ring. No I/O.
//!
//! A lane has a segment for each direction, written by the sender of that direction. It holds that sender's ring, and words about
//! the other ring, which it reads:
//!
//! ```text
//!     0  consumed   how many slots of the other side's ring have been read
//!   128  asleep     0, or the number of this sleep and what shall end it
//!   256  closed     1 once memory that was referred to may change
//!  4096  slots      SLOTS of SLOT_BYTES: a stamp of 8 bytes, then the slot's part of a record
//! ```
//!
//! A record takes one slot or, if it is a frame that stands in the ring itself, as many as its bytes need. Its first slot's stamp
//! is stored last: it says that the record is there, of which kind it is and how long. It holds the record's position, which no
//! slot has twice, so that a reader waits on the very line that brings the record, and what was there before is never
//! mistaken for news. The stamps of a record's other slots stay as they were.
//!
//! ```text
//!   stamp     [length: 16][kind: 8][position + 1: 40]
//!   INLINE    the frame
//!   FRAME     [reference]                                              to all of the frame
//!   WRITE     [key 8][at 8][length 8][reference][reference]            what the references lack follows in pieces
//!   LEND      [number of the loan 8][reference]                        values that belong to the frame behind it
//!   RETURN    [number 8] up to 15 times, 0 ends them                   loans of the other side that are done with
//!   PIECE     [reference]                                              of the write under way
//!   reference [segment 4][0 4][offset 8][length 8]                     into memory that its owner has shared
//! ```

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Slots of a ring: a power of two.
pub(super) const SLOTS: u64 = 512;

/// A line of the cache.
pub(super) const LINE_BYTES: usize = 64;

/// Two of them, as processors fetch them together.
pub(super) const SLOT_BYTES: usize = 2 * LINE_BYTES;

/// Bytes of a record in each slot.
pub(super) const SLOT_ROOM: usize = SLOT_BYTES - 8;

/// Frames up to this long stand in the ring; of longer ones a reference does.
pub(super) const INLINE_BYTES_MAX: usize = 16 * SLOT_ROOM;

pub(super) const CONSUMED: usize = 0;
pub(super) const ASLEEP: usize = 128;
pub(super) const CLOSED: usize = 256;
const SLOTS_AT: usize = 4096;

/// Length of a lane's segment.
pub(super) const SEGMENT_BYTES: usize = SLOTS_AT + SLOTS as usize * SLOT_BYTES;

const POSITION_BITS: u32 = 40;

/// What kind of record a stamp announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Inline,
    Frame,
    Write,
    Piece,
    Lend,
    Return,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Inline, Kind::Frame, Kind::Write, Kind::Piece, Kind::Lend, Kind::Return];

    fn number(self) -> u64 {
        self as u64 + 1
    }
}

/// What a first slot says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) kind: Kind,
    /// Bytes of a frame that stands in the ring; 0 for the other kinds.
    pub(super) len: usize,
}

impl Stamp {
    /// The word that announces it at `position`.
    pub(super) fn word(self, position: u64) -> u64 {
        turn(position) << 24 | self.kind.number() << 16 | self.len as u64
    }

    /// Slots that its record takes.
    pub(super) fn slots(self) -> u64 {
        slots_of(self.len)
    }

    /// Whether a word says that something stands at `position`.
    #[inline]
    pub(super) fn is_at(word: u64, position: u64) -> bool {
        word >> 24 == turn(position)
    }

    /// What stands at `position`, if it is there already.
    ///
    /// # Errors
    /// A word that no sender of ours stores there.
    #[inline]
    pub(super) fn read(word: u64, position: u64) -> Result<Option<Stamp>, String> {
        if !Stamp::is_at(word, position) {
            return Ok(None);
        }
        let (number, len) = (word >> 16 & 0xff, (word & 0xffff) as usize);
        let kind = Kind::ALL.get((number as usize).wrapping_sub(1)).copied();
        match kind {
            Some(Kind::Inline) if len <= INLINE_BYTES_MAX => {
                Ok(Some(Stamp { kind: Kind::Inline, len }))
            }
            Some(kind) if kind != Kind::Inline && len == 0 => Ok(Some(Stamp { kind, len })),
            _ => Err(no_stamp(word)),
        }
    }
}

#[cold]
fn no_stamp(word: u64) -> String {
    format!("its ring holds {word:#018x} where a record should begin")
}

/// What the stamps of `position` have in their upper bits.
fn turn(position: u64) -> u64 {
    (position + 1) & ((1 << POSITION_BITS) - 1)
}

/// Slots for a frame of `len` bytes that stands in the ring.
#[inline]
pub(super) fn slots_of(len: usize) -> u64 {
    if len <= SLOT_ROOM { 1 } else { len.div_ceil(SLOT_ROOM) as u64 } // most take no division
}

/// Where in the segment the slot of `position` begins.
pub(super) fn slot_at(position: u64) -> usize {
    SLOTS_AT + (position % SLOTS) as usize * SLOT_BYTES
}

/// Bytes of a sender's shared memory.
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
pub(super) struct Reference {
    /// Which of the segments that were announced on this lane, from 0.
    pub(super) segment: U32,
    pub(super) reserved: U32,
    pub(super) offset: U64,
    pub(super) len: U64,
}

/// The beginning of a write.
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
pub(super) struct WriteRecord {
    pub(super) key: U64,
    pub(super) at: U64,
    pub(super) len: U64,
    /// Its first bytes; empty ones count for nothing.
    pub(super) parts: [Reference; 2],
}

/// Values that are lent.
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
pub(super) struct LendRecord {
    /// Never 0.
    pub(super) number: U64,
    pub(super) values: Reference,
}

/// Loans that one record returns at most.
pub(super) const RETURNS_MAX: usize = SLOT_ROOM / 8;

const _: () = assert!(SLOTS.is_power_of_two() && INLINE_BYTES_MAX <= 0xffff);
const _: () = assert!(size_of::<WriteRecord>() <= SLOT_ROOM);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stamp_is_read_at_its_own_position_only() {
        for (kind, len) in [(Kind::Inline, 0), (Kind::Inline, INLINE_BYTES_MAX), (Kind::Write, 0)] {
            let stamp = Stamp { kind, len };
            for position in [0, 1, SLOTS, 7 * SLOTS + 3, (1 << 39) + 5] {
                let word = stamp.word(position);
                assert_eq!(Stamp::read(word, position), Ok(Some(stamp)));
                for other in [position + 1, position + SLOTS, position.wrapping_sub(SLOTS)] {
                    assert_eq!(Stamp::read(word, other), Ok(None));
                }
                assert_eq!(Stamp::read(0, position), Ok(None), "a fresh slot");
            }
        }
    }

    #[test]
    fn frames_fill_slots() {
        for (len, slots) in [(0, 1), (1, 1), (SLOT_ROOM, 1), (SLOT_ROOM + 1, 2)] {
            assert_eq!(slots_of(len), slots);
        }
        assert_eq!(slot_at(SLOTS), slot_at(0));
        assert_eq!(slot_at(SLOTS - 1) + SLOT_BYTES, SEGMENT_BYTES);
    }

    proptest! {
        #[test]
        fn no_word_is_more_than_it_may_be(word: u64, position in 0u64..1 << 41) {
            match Stamp::read(word, position) {
                Ok(Some(stamp)) => {
                    prop_assert_eq!(stamp.word(position), word);
                    prop_assert!(stamp.len <= INLINE_BYTES_MAX && stamp.slots() <= SLOTS);
                }
                Ok(None) => prop_assert_ne!(word >> 24, turn(position)),
                Err(_) => prop_assert_eq!(word >> 24, turn(position)),
            }
        }
    }
}
