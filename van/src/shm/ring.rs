//! What lies in a lane's segment: who writes which word, and how a record stands in the lines of
//! its ring. No I/O.
//!
//! A lane has a segment for each direction, written by the sender of that direction. It holds that
//! sender's ring, and words about the other ring, which it reads:
//!
//! ```text
//!     0  consumed   how many lines of the other side's ring have been read
//!   128  asleep     0, or the number of this sleep and what shall end it
//!   256  closed     1 once memory that was referred to may change
//!  4096  ring       LINES of LINE_BYTES
//! ```
//!
//! A record begins with its stamp at a line and takes as many lines as its bytes need; the one
//! behind the last of the ring is the first. The stamp is stored last: it says that the record is
//! there, of which kind it is and how long. It holds the position of its line, so that a reader
//! waits on the very line that brings the record. What stood in that line before is not mistaken
//! for news: before a record is there to be read, its sender sees to it that no stamp stands behind
//! it that would be the next.
//!
//! What moves between two cores moves by lines, and that takes most of a short message's time. So
//! of a frame's first 64 bytes, which with messages are a header, the ring has only those words
//! that are not as in the last frame that stood in it: a message of up to 40 bytes that is like the
//! one before takes one line.
//!
//! ```text
//!   stamp     [words of the head that follow: a bit each 8][kind 8][length of the frame 16][position + 1 32]
//!   INLINE    [the frame behind its first 64 bytes, and zeros up to a word][words of the head 8 each]
//!   FRAME     [reference]                                              to all of the frame
//!   WRITE     [key 8][at 8][length 8][reference][reference]            what the references lack follows in pieces
//!   LEND      [number of the loan 8][reference]                        values that belong to the frame behind it
//!   RETURN    [number 8] up to 7 times, 0 ends them                    loans of the other side that are done with
//!   PIECE     [reference]                                              of the write under way
//!   reference [segment 4][0 4][offset 8][length 8]                     into memory that its owner has shared
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::segment::{Foreign, Own};
pub(super) use crate::memory::long::LINE_BYTES;
use crate::wire::{Header, VERSION};

/// Lines of a ring: a power of two.
pub(super) const LINES: u64 = 1024;

/// Bytes of a stamp.
const STAMP: usize = size_of::<u64>();

/// Lines of the longest frame that stands in the ring.
pub(super) const FRAME_LINES_MAX: u64 = 32;

/// Frames up to this long stand in the ring; of longer ones a reference does.
pub(super) const INLINE_BYTES_MAX: usize = FRAME_LINES_MAX as usize * LINE_BYTES - STAMP;

/// Lines of the beginning of a write, which is the longest of the other records.
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

/// What the first word of a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) kind: Kind,
    /// Bytes of a frame that stands in the ring; 0 for the other kinds.
    pub(super) len: usize,
    /// Which words of its head do, the first in the lowest bit.
    pub(super) words: u8,
}

impl Stamp {
    /// That of a record that is no frame in the ring.
    pub(super) fn of(kind: Kind) -> Stamp {
        Stamp { kind, len: 0, words: 0 }
    }

    /// The word that announces it at `position`.
    #[inline]
    pub(super) fn word(self, position: u64) -> u64 {
        let about = self.len as u64 | self.kind.number() << 16 | u64::from(self.words) << 24;
        turn(position) << 32 | about
    }

    /// Lines that its record takes.
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

    /// A word that announces nothing at `position`. 0 would, once in 2^32 lines.
    pub(super) fn none(position: u64) -> u64 {
        !turn(position) << 32
    }

    /// Whether a word says that something stands at `position`.
    #[inline]
    pub(super) fn is_at(word: u64, position: u64) -> bool {
        word >> 32 == turn(position)
    }

    /// The length of the frame and the words of its head, if the word is the stamp of one that
    /// stands in the ring.
    #[inline]
    pub(super) fn inline(word: u64) -> Option<(usize, u8)> {
        // Of another kind, so long that it is too long.
        let len = (word as u32 & 0xff_ffff).wrapping_sub((Kind::Inline.number() as u32) << 16);
        (len as usize <= INLINE_BYTES_MAX).then_some((len as usize, (word >> 24) as u8))
    }

    /// What a word announces.
    ///
    /// # Errors
    /// A word that no sender of ours stores.
    pub(super) fn read(word: u64) -> Result<Stamp, String> {
        if let Some((len, words)) = Stamp::inline(word) {
            return Ok(Stamp { kind: Kind::Inline, len, words });
        }
        let (number, rest) = (word >> 16 & 0xff, word & 0xff00_ffff);
        match Kind::ALL.get((number as usize).wrapping_sub(1)) {
            Some(&kind) if kind != Kind::Inline && rest == 0 => Ok(Stamp::of(kind)),
            _ => Err(no_stamp(word)),
        }
    }
}

#[cold]
fn no_stamp(word: u64) -> String {
    format!("its ring holds {word:#018x} where a record should begin")
}

/// Lines of a record of so many words behind its stamp.
#[inline]
pub(super) fn lines_of(words: usize) -> u64 {
    (words / LINE_WORDS + 1) as u64
}

/// What the stamps of `position` have in their upper half.
#[inline]
fn turn(position: u64) -> u64 {
    (position + 1) & u64::from(u32::MAX)
}

/// Where in the segment the line of `position` begins.
#[inline]
pub(super) fn line_at(position: u64) -> usize {
    RING_AT + (position % LINES) as usize * LINE_BYTES
}

/// The words of a ring.
pub(super) type Words = [AtomicU64; RING_BYTES / 8];

/// Those of the ring in a segment of this process, ...
#[inline]
pub(super) fn own(own: &Own) -> &Words {
    own.words(RING_AT)
}

/// ... and in one of a peer.
#[inline]
pub(super) fn foreign(foreign: &Foreign) -> &Words {
    foreign.words(RING_AT)
}

/// A word of the record at `position`, counted from its stamp.
#[inline]
pub(super) fn word(words: &Words, position: u64, word: usize) -> &AtomicU64 {
    &words[(position as usize * LINE_WORDS + word) % words.len()]
}

/// The stamp at `position`, and what was written before it was.
#[inline]
pub(super) fn stamp(words: &Words, position: u64) -> u64 {
    word(words, position, 0).load(Ordering::Acquire)
}

/// Writes what follows the stamp of a record, its first line last: the peer looks there, and would
/// fetch it back before the stamp is in it.
pub(super) fn write(own: &mut Own, position: u64, bytes: &[u8]) {
    let (first, behind) = bytes.split_at(bytes.len().min(LINE_BYTES - STAMP));
    if !behind.is_empty() {
        let at = line_at(position + 1);
        let (here, rest) = behind.split_at(behind.len().min(SEGMENT_BYTES - at));
        own.write(at, here);
        own.write(RING_AT, rest);
    }
    own.write(line_at(position) + STAMP, first);
}

/// Moves `count` lines from that of `position` on out of this core's cache, to where the peer finds
/// them sooner.
pub(super) fn hand_over(own: &Own, position: u64, count: u64) {
    let here = count.min(LINES - position % LINES);
    own.hand_over(line_at(position), here as usize);
    own.hand_over(RING_AT, (count - here) as usize);
}

/// Begins to take `count` lines from that of `position` on from the peer, which looks at them, to
/// write there soon.
#[inline(always)]
pub(super) fn claim(own: &Own, position: u64, count: u64) {
    (position..position + count).for_each(|position| own.claim(line_at(position)));
}

/// Reads likewise.
pub(super) fn read(foreign: &Foreign, position: u64, into: &mut [u8]) {
    let (at, whole) = place(position, into.len());
    for (at, part) in [(at, 0..whole), (RING_AT, whole..into.len())] {
        let part = &mut into[part];
        if part.len() > LINE_BYTES { foreign.read(at, part) } else { foreign.read_words(at, part) }
    }
}

/// Where in the segment `len` bytes behind a stamp begin, and how many of them stand before the end
/// of the ring.
fn place(position: u64, len: usize) -> (usize, usize) {
    let at = line_at(position) + STAMP;
    (at, len.min(SEGMENT_BYTES - at))
}

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 64;

/// The first bytes of a frame as words, and zeros where it is shorter.
pub(super) type Head = [u64; HEAD / 8];

/// Likewise, as they lie there.
pub(super) type HeadBytes = [[u8; 8]; HEAD / 8];

/// The word of a head that is another one in every message.
pub(super) const NUMBER: usize = std::mem::offset_of!(Header, timestamp) / 8;

/// Whether no other word of a head is another one than in the last.
#[inline(always)]
pub(super) fn is_next(head: &HeadBytes, last: &Head) -> bool {
    let mut differ = 0;
    for at in 0..head.len() {
        if at != NUMBER {
            differ |= u64::from_le_bytes(head[at]) ^ last[at];
        }
    }
    differ == 0
}

/// Writes the words of `head` that are not as in `last`, which it then is, behind so many others;
/// returns which they are and how many.
///
/// They are looked at one by one, as they were written: what has just been stored in parts is slow
/// to read as a whole.
#[inline]
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

/// Reads likewise; returns how many there were. `head` is `last` as a whole before words of both
/// are stored: what has just been stored in parts is slow to read as a whole.
#[inline(always)]
pub(super) fn read_head(
    words: &Words,
    position: u64,
    behind: usize,
    changed: u8,
    head: &mut HeadBytes,
    last: &mut Head,
) -> usize {
    *head = zerocopy::transmute!(*last);
    let mut count = 0;
    for at in bits(changed) {
        last[at] = word(words, position, 1 + behind + count).load(Ordering::Relaxed);
        head[at] = last[at].to_le_bytes();
        count += 1;
    }
    count
}

/// Where the bits of `words` are.
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
    fn lines_are_claimed_beyond_the_end_of_the_ring() {
        let own = Own::new(SEGMENT_BYTES).unwrap();
        for position in [0, LINES - 1, LINES, 3 * LINES - 2] {
            claim(&own, position, FRAME_LINES_MAX); // a line outside of the segment would panic
        }
    }

    #[test]
    fn a_record_goes_on_where_the_ring_begins() {
        let mut own = Own::new(SEGMENT_BYTES).unwrap();
        let foreign = Foreign::map(own.file(), SEGMENT_BYTES).unwrap();
        let bytes: Vec<u8> = (1..=200).collect();
        for position in [0, LINES - 1, 2 * LINES - 2] {
            for len in [0, 1, 7, 8, 20, LINE_BYTES, LINE_BYTES + 1, 200] {
                write(&mut own, position, &bytes[..len]);
                let mut found = vec![0; len];
                read(&foreign, position, &mut found);
                assert_eq!(found, bytes[..len], "{position}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_word_is_more_than_it_may_be(word: u64, position in 0u64..1 << 41) {
            if let Ok(stamp) = Stamp::read(word) {
                prop_assert_eq!(stamp.word(position) as u32, word as u32);
                prop_assert!(stamp.len <= INLINE_BYTES_MAX && stamp.lines() <= 32);
                prop_assert_eq!(Stamp::inline(word).is_some(), stamp.kind == Kind::Inline);
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
            prop_assert_eq!(is_next(&head, &begin), mask & !(1 << NUMBER) == 0);
            let (changed, count) = write_head(own(&own_ring), position, behind, &head, &mut sent);
            let mut found = HeadBytes::default();
            let words = foreign(&peers);
            let read = read_head(words, position, behind, changed, &mut found, &mut received);
            prop_assert_eq!((changed, read, found), (mask, count, head));
            prop_assert_eq!((sent, received), (head.map(u64::from_le_bytes), sent));
        }
    }
}
