//! The layout of a lane's segment: who writes which word, and how records lie in the lines of the
//! ring. No I/O.
//!
//! A lane has a segment for each direction, which the sender of that direction writes. It holds the
//! sender's ring and words about the other ring, which the sender reads:
//!
//! ```text
//!     0  consumed   how many lines of the other side's ring have been read
//!   128  asleep     0, or the number of this sleep and what shall end it
//!   256  closed     1 once memory that was referred to may change
//!  4096  ring       LINES of LINE_BYTES
//! ```
//!
//! A record starts with its stamp at the start of a line and takes as many lines as it needs. Lines
//! wrap around at the end of the ring. The stamp is stored last. It holds the position of its line,
//! the kind of the record and its length, so a reader waits on the very line that brings the
//! record. Older content is never mistaken for a new record: before a sender publishes a record, it
//! clears the line behind it if that looks like the next stamp.
//!
//! Most of the time of a short message is the transfer of cache lines between two cores. So a frame
//! is coded against the frame before it: of its first 64 bytes, a message's header, the ring holds
//! only the words that changed. A message of up to 40 bytes that is like the last one takes one
//! line.
//!
//! ```text
//!   stamp     [head words: a bit each 8][kind 8][length of the frame 16][position + 1 32]
//!   INLINE    [the frame behind its first 64 bytes, zeros up to a word][head words 8 each]
//!   FRAME     [reference]                                     to all of the frame
//!   WRITE     [key 8][at 8][length 8][reference][reference]   the rest follows in pieces
//!   LEND      [number of the loan 8][reference]               values of the frame behind it
//!   RETURN    [number 8] up to 7 times, 0 ends them           finished loans of the other side
//!   PIECE     [reference]                                     of the write under way
//!   reference [arena 4][0 4][offset 8][length 8]              into memory that its owner shares
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::segment::{Foreign, Own};
pub(super) use crate::memory::long::LINE_BYTES;
use crate::wire::VERSION;

/// Lines of a ring: a power of two.
pub(super) const LINES: u64 = 1024;

/// Bytes of a stamp.
const STAMP: usize = size_of::<u64>();

/// Lines of the longest frame that lies in the ring.
pub(super) const FRAME_LINES_MAX: u64 = 32;

/// Longest frame that lies in the ring; a longer one is a reference.
pub(super) const INLINE_BYTES_MAX: usize = FRAME_LINES_MAX as usize * LINE_BYTES - STAMP;

/// Lines of a write record, the longest record but a frame.
pub(super) const WRITE_LINES: u64 = 2;

pub(super) const CONSUMED: usize = 0;
pub(super) const ASLEEP: usize = 128;
pub(super) const CLOSED: usize = 256;
const RING_AT: usize = 4096;
const RING_BYTES: usize = LINES as usize * LINE_BYTES;

/// Words of a line.
pub(super) const LINE_WORDS: usize = LINE_BYTES / STAMP;

/// Length of a lane's segment.
pub(super) const SEGMENT_BYTES: usize = RING_AT + RING_BYTES;

/// The kind of a record.
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

/// The first word of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) kind: Kind,
    /// Bytes of an inline frame; 0 for the other kinds.
    pub(super) len: usize,
    /// The words of an inline frame's head that follow it, the first in the lowest bit.
    pub(super) words: u8,
}

impl Stamp {
    /// The stamp of a record other than an inline frame.
    pub(super) fn of(kind: Kind) -> Stamp {
        Stamp { kind, len: 0, words: 0 }
    }

    /// The stamp as stored at `position`.
    #[inline]
    pub(super) fn word(self, position: u64) -> u64 {
        let about = self.len as u64 | self.kind.number() << 16 | u64::from(self.words) << 24;
        turn(position) << 32 | about
    }

    /// Number of lines that its record takes.
    #[cfg(test)]
    pub(super) fn lines(self) -> u64 {
        match self.kind {
            Kind::Inline => {
                let behind = self.len.saturating_sub(HEAD).div_ceil(STAMP);
                lines_of(self.words.count_ones() as usize + behind)
            }
            Kind::Write => WRITE_LINES,
            Kind::Frame | Kind::Piece | Kind::Lend | Kind::Return => 1,
        }
    }

    /// A word that is no stamp at `position`. Zero would be one, once in 2^32 lines.
    pub(super) fn none(position: u64) -> u64 {
        !turn(position) << 32
    }

    /// Whether a word is the stamp of a record at `position`.
    #[inline]
    pub(super) fn is_at(word: u64, position: u64) -> bool {
        word >> 32 == turn(position)
    }

    /// Decodes a stamp.
    ///
    /// # Errors
    /// If no sender of this protocol stores such a word.
    #[inline(always)] // an inline frame, the usual record, takes one comparison
    pub(super) fn read(word: u64) -> Result<Stamp, String> {
        // With any other kind the difference is out of range.
        let len = (word as u32 & 0xff_ffff).wrapping_sub((Kind::Inline.number() as u32) << 16);
        if len as usize <= INLINE_BYTES_MAX {
            return Ok(Stamp { kind: Kind::Inline, len: len as usize, words: (word >> 24) as u8 });
        }
        Stamp::read_other(word)
    }

    #[inline(never)]
    fn read_other(word: u64) -> Result<Stamp, String> {
        let (number, rest) = (word >> 16 & 0xff, word & 0xff00_ffff);
        match Kind::ALL.get((number as usize).wrapping_sub(1)) {
            Some(&kind) if kind != Kind::Inline && rest == 0 => Ok(Stamp::of(kind)),
            _ => Err(format!("its ring holds {word:#018x} in place of a stamp")),
        }
    }
}

/// Number of lines of a record with `words` words behind its stamp.
#[inline]
pub(super) fn lines_of(words: usize) -> u64 {
    (words / LINE_WORDS + 1) as u64
}

/// The upper half of every stamp at `position`.
#[inline]
fn turn(position: u64) -> u64 {
    (position + 1) & u64::from(u32::MAX)
}

/// Offset in the segment of the line of `position`.
#[inline]
pub(super) fn line_at(position: u64) -> usize {
    RING_AT + (position % LINES) as usize * LINE_BYTES
}

/// The words of a ring.
pub(super) type Words = [AtomicU64; RING_BYTES / 8];

/// The words of the ring in a segment of this process.
#[inline]
pub(super) fn own(own: &Own) -> &Words {
    own.words(RING_AT)
}

/// The words of the ring in a peer's segment.
#[inline]
pub(super) fn foreign(foreign: &Foreign) -> &Words {
    foreign.words(RING_AT)
}

/// A word of the record at `position`, counted from its stamp.
#[inline]
pub(super) fn word(words: &Words, position: u64, word: usize) -> &AtomicU64 {
    &words[(position as usize * LINE_WORDS + word) % words.len()]
}

/// Loads the stamp at `position`, and with it all that was written before it.
#[inline]
pub(super) fn stamp(words: &Words, position: u64) -> u64 {
    word(words, position, 0).load(Ordering::Acquire)
}

/// The words of the line of `position`.
#[inline(always)]
fn line(words: &Words, position: u64) -> &[AtomicU64; LINE_WORDS] {
    &words.as_chunks().0[(position % LINES) as usize]
}

/// Writes what follows the stamp of a record, its first line last: the peer polls that line, and
/// would fetch it back before the stamp is in it.
#[inline(always)]
pub(super) fn write(own: &mut Own, position: u64, bytes: &[u8]) {
    let (first, behind) = bytes.split_at(bytes.len().min(LINE_BYTES - STAMP));
    if !behind.is_empty() {
        let at = line_at(position + 1);
        let (here, rest) = behind.split_at(behind.len().min(SEGMENT_BYTES - at));
        own.write(at, here);
        own.write(RING_AT, rest);
    }
    let [_, line @ ..] = line(self::own(own), position);
    let (whole, rest) = first.as_chunks::<STAMP>();
    for (to, bytes) in line.iter().zip(whole) {
        to.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut bytes = [0; STAMP];
        bytes[..rest.len()].copy_from_slice(rest);
        line[whole.len()].store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// Reads what follows the stamp of a record, a multiple of 8 bytes.
#[inline(always)]
pub(super) fn read(foreign: &Foreign, position: u64, into: &mut [u8]) {
    let (first, behind) = into.split_at_mut(into.len().min(LINE_BYTES - STAMP));
    let [_, line @ ..] = line(self::foreign(foreign), position);
    for (bytes, from) in first.as_chunks_mut::<STAMP>().0.iter_mut().zip(line) {
        *bytes = from.load(Ordering::Relaxed).to_le_bytes();
    }
    if !behind.is_empty() {
        let at = line_at(position + 1);
        let (here, rest) = behind.split_at_mut(behind.len().min(SEGMENT_BYTES - at));
        foreign.read_words(at, here);
        foreign.read_words(RING_AT, rest);
    }
}

/// Moves `count` lines from that of `position` on out of this core's cache, where the peer finds
/// them sooner.
pub(super) fn hand_over(own: &Own, position: u64, count: u64) {
    let here = count.min(LINES - position % LINES);
    own.hand_over(line_at(position), here as usize);
    own.hand_over(RING_AT, (count - here) as usize);
}

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 64;

/// The first bytes of a frame as words; a shorter frame is padded with zeros.
pub(super) type Head = [u64; HEAD / 8];

/// The same bytes as they lie in the frame.
pub(super) type HeadBytes = [[u8; 8]; HEAD / 8];

/// Writes the words of `head` that differ from `last`, `behind` words after the stamp, and updates
/// `last`; returns which words they are and their number.
///
/// It compares word by word: a load of more than was stored at once would wait for the stores.
#[inline(always)]
pub(super) fn write_head(
    words: &Words,
    position: u64,
    behind: usize,
    head: &HeadBytes,
    last: &mut Head,
) -> (u8, usize) {
    let differ = |at: usize| u8::from(u64::from_le_bytes(head[at]) != last[at]) << at;
    let changed = (0..head.len()).fold(0, |words, at| words | differ(at));
    let mut count = 0;
    for at in bits(changed) {
        last[at] = u64::from_le_bytes(head[at]);
        word(words, position, 1 + behind + count).store(last[at], Ordering::Relaxed);
        count += 1;
    }
    (changed, count)
}

/// Reads what [`write_head`] wrote: `head` is `last` with the changed words, as `last` is then.
/// Returns the number of those words.
///
/// It copies `last` before it stores words of it, for the same reason.
#[inline(always)]
pub(super) fn read_head(
    words: &Words,
    position: u64,
    behind: usize,
    changed: u8,
    head: &mut HeadBytes,
    last: &mut Head,
) -> usize {
    *head = last.map(u64::to_le_bytes);
    let mut count = 0;
    for at in bits(changed) {
        last[at] = word(words, position, 1 + behind + count).load(Ordering::Relaxed);
        head[at] = last[at].to_le_bytes();
        count += 1;
    }
    count
}

/// The positions of the bits of `words`.
#[inline(always)]
fn bits(words: u8) -> impl Iterator<Item = usize> {
    let mut left = words;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let at = left.trailing_zeros() as usize % 8;
        left &= left - 1;
        Some(at)
    })
}

/// A range of the memory that a sender shares.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Reference {
    /// Number of the announced arena on this lane, from 0.
    pub(super) arena: U32,
    pub(super) reserved: U32,
    pub(super) offset: U64,
    pub(super) len: U64,
}

/// A write, with references to its first bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct WriteRecord {
    pub(super) key: U64,
    pub(super) at: U64,
    pub(super) len: U64,
    /// References to its first bytes; empty ones are ignored.
    pub(super) parts: [Reference; 2],
}

/// A loan of values, which belong to the next frame.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LendRecord {
    /// Never 0.
    pub(super) number: U64,
    pub(super) values: Reference,
}

/// Most loans that one record returns.
pub(super) const RETURNS_MAX: usize = (LINE_BYTES - STAMP) / 8;

const _: () = assert!(VERSION == 7, "a change of the records above is a new version");
const _: () = assert!(LINES.is_power_of_two() && INLINE_BYTES_MAX <= 0xffff);
const _: () = assert!(size_of::<LendRecord>() <= LINE_BYTES - STAMP);
const _: () = assert!(size_of::<WriteRecord>() <= WRITE_LINES as usize * LINE_BYTES - STAMP);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stamp_is_read_at_its_own_position_only() {
        let inline = |len, words| Stamp { kind: Kind::Inline, len, words };
        for stamp in [inline(0, 0), inline(INLINE_BYTES_MAX, 255), Stamp::of(Kind::Write)] {
            for position in [0, 1, LINES, 7 * LINES + 3, (1 << 39) + 5] {
                let word = stamp.word(position);
                assert_eq!(Stamp::read(word), Ok(stamp));
                assert!(Stamp::is_at(word, position) && !Stamp::is_at(0, position));
                for other in [position + 1, position + LINES, position.wrapping_sub(LINES)] {
                    assert!(!Stamp::is_at(word, other));
                }
            }
        }
    }

    #[test]
    fn a_frame_like_the_last_one_takes_few_lines() {
        for (len, words, lines) in [(0, 0, 1), (64, 1, 1), (64 + 48, 1, 1), (64 + 49, 1, 2)] {
            assert_eq!(Stamp { kind: Kind::Inline, len, words }.lines(), lines);
        }
        assert_eq!(Stamp { kind: Kind::Inline, len: INLINE_BYTES_MAX, words: 255 }.lines(), 32);
        assert_eq!(line_at(LINES), line_at(0));
        assert_eq!(line_at(LINES - 1) + LINE_BYTES, SEGMENT_BYTES);
    }

    #[test]
    fn a_record_goes_on_where_the_ring_begins() {
        let mut own = Own::new(SEGMENT_BYTES).unwrap();
        let foreign = Foreign::map(own.file(), SEGMENT_BYTES).unwrap();
        let bytes: Vec<u8> = (1..=200).collect();
        for position in [0, LINES - 1, 2 * LINES - 2] {
            for len in [0, 1, 7, 8, 20, LINE_BYTES, LINE_BYTES + 1, 200] {
                write(&mut own, position, &bytes[..len]);
                let mut found = vec![0; len.next_multiple_of(8)];
                read(&foreign, position, &mut found);
                assert_eq!(found[..len], bytes[..len], "{position}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_word_is_more_than_it_may_be(word: u64, position in 0u64..1 << 41) {
            if let Ok(stamp) = Stamp::read(word) {
                prop_assert_eq!(stamp.word(position) as u32, word as u32);
                prop_assert!(stamp.len <= INLINE_BYTES_MAX && stamp.lines() <= 32);
            }
            prop_assert_eq!(Stamp::is_at(word, position), word >> 32 == turn(position));
        }

        #[test]
        fn a_head_is_the_last_one_with_its_words_changed(
            begin: Head,
            changes: Head,
            mask: u8,
            behind in 0usize..9,
            position in prop_oneof![0u64..9, LINES - 2..LINES],
        ) {
            let own_ring = Own::new(SEGMENT_BYTES).unwrap();
            let peers = Foreign::map(own_ring.file(), SEGMENT_BYTES).unwrap();
            let (mut sent, mut received, mut head) = (begin, begin, begin.map(u64::to_le_bytes));
            bits(mask).for_each(|at| head[at] = changes[at].to_le_bytes());
            let (changed, count) = write_head(own(&own_ring), position, behind, &head, &mut sent);
            let mut found = HeadBytes::default();
            let words = foreign(&peers);
            let read = read_head(words, position, behind, changed, &mut found, &mut received);
            prop_assert_eq!((changed, read, found), (mask, count, head));
            prop_assert_eq!((sent, received), (head.map(u64::from_le_bytes), sent));
        }
    }
}
