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
//! Records with references are types of `arenas.rs`.
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

use zerocopy::{FromBytes, IntoBytes};

use super::segment::{Foreign, Own};
pub(super) use crate::memory::long::LINE_BYTES;
use crate::wire::VERSION;

/// Lines of a ring: a power of two.
pub(super) const LINES: u64 = 1024;

/// Bytes of a stamp.
pub(super) const STAMP: usize = size_of::<u64>();

/// Lines of the longest frame that lies in the ring.
pub(super) const FRAME_LINES_MAX: u64 = 32;

/// Longest frame that lies in the ring; a longer one is a reference.
pub(super) const INLINE_BYTES_MAX: usize = FRAME_LINES_MAX as usize * LINE_BYTES - STAMP;

/// Lines of a write record, the longest record but a frame.
pub(super) const WRITE_LINES: u64 = 2;

/// The writer moves frames of this many lines or more out of its core's cache, where the peer finds
/// them sooner.
const LINES_HANDED_OVER: u64 = 8;

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

/// The writing end of a ring.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Lines written so far.
    pub(super) head: u64,
    /// Lines that the peer had read at the last look.
    pub(super) freed: u64,
    /// From this position on, no line holds the middle of a frame, which could look like a stamp.
    clear_from: u64,
    /// The head of the last inline frame.
    last: Head,
    /// Number of lines of the last record.
    lines: u64,
    /// Whether there are new records for which the peer, if it sleeps, was not woken.
    pub(super) posted: bool,
}

impl Writer {
    /// Whether the ring has room for `lines` more, as far as is known. The line behind them stays
    /// free too: the peer polls it.
    #[inline]
    pub(super) fn has_room(&self, lines: u64) -> bool {
        self.head + lines < self.freed + LINES
    }

    /// Reads how far the peer has read.
    ///
    /// # Errors
    /// If it cannot have read so far.
    pub(super) fn look(&mut self, foreign: &Foreign) -> Result<(), String> {
        let consumed = foreign.load(CONSUMED, Ordering::Acquire);
        let (freed, head) = (self.freed, self.head);
        if consumed < freed || consumed > head {
            return Err(format!(
                "it says it has read {consumed} lines, and has read {freed} to {head}"
            ));
        }
        self.freed = consumed;
        Ok(())
    }

    /// Begins to fetch the lines of the next record, if it is as long as the last one.
    #[inline(always)]
    pub(super) fn prepare(&self, own: &Own) {
        (self.head..self.head + self.lines).for_each(|position| own.claim(line_at(position)));
    }

    /// Writes a frame of up to [`INLINE_BYTES_MAX`] bytes into the ring, which has room.
    #[inline]
    pub(super) fn put_frame(&mut self, own: &mut Own, frame: &[u8]) {
        let mut padded;
        let (head, rest) = match frame.split_first_chunk::<HEAD>() {
            Some((head, rest)) => (zerocopy::transmute_ref!(head), rest),
            None => {
                padded = HeadBytes::default();
                padded.as_flattened_mut()[..frame.len()].copy_from_slice(frame);
                (&padded, &[][..])
            }
        };
        let (position, behind) = (self.head, rest.len().div_ceil(STAMP));
        let words = self::own(own);
        let (changed, count) = write_head(words, position, behind, head, &mut self.last);
        write(own, position, rest);
        let lines = lines_of(behind + count);
        self.publish(own, Stamp { kind: Kind::Inline, len: frame.len(), words: changed }, lines);
        if lines >= LINES_HANDED_OVER {
            hand_over(own, position + 1, lines - 1);
        }
    }

    /// Writes any other record into the ring, which has room.
    pub(super) fn put(&mut self, own: &mut Own, kind: Kind, record: &[u8]) {
        write(own, self.head, record);
        self.publish(own, Stamp::of(kind), lines_of(record.len().div_ceil(STAMP)));
    }

    /// Stores the stamp of the record at the head of the ring, which takes `lines`.
    #[inline(always)] // the line is in transit from the peer's core: a call would delay the stamp
    fn publish(&mut self, own: &Own, stamp: Stamp, lines: u64) {
        let (words, next) = (self::own(own), self.head + lines);
        if lines > 1 {
            self.clear_from = next + LINES;
        }
        let behind = word(words, next, 0);
        if next < self.clear_from && Stamp::is_at(behind.load(Ordering::Relaxed), next) {
            behind.store(Stamp::none(next), Ordering::Relaxed);
        }
        word(words, self.head, 0).store(stamp.word(self.head), Ordering::Release);
        (self.head, self.lines) = (next, lines);
        self.posted = true;
    }
}

/// The reading end of a ring.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Lines read so far.
    pub(super) next: u64,
    /// The head of the last inline frame.
    last: Head,
}

impl Reader {
    /// The stamp of the next record; `None` if it is not there yet.
    ///
    /// # Errors
    /// As [`Stamp::read`].
    #[inline(always)]
    pub(super) fn look(&self, foreign: &Foreign) -> Result<Option<Stamp>, String> {
        let stamp = word(self::foreign(foreign), self.next, 0).load(Ordering::Acquire);
        if !Stamp::is_at(stamp, self.next) {
            // Two lines of the next record are then in transit together.
            foreign.prefetch(line_at(self.next + 1));
            return Ok(None);
        }
        Stamp::read(stamp).map(Some)
    }

    /// Takes an inline frame: reads it into `frame`, which has a head and whole words.
    ///
    /// # Panics
    /// If `frame` is shorter than [`HEAD`].
    #[inline(always)]
    pub(super) fn take_frame(&mut self, foreign: &Foreign, changed: u8, frame: &mut [u8]) {
        let (head, rest) = frame.split_first_chunk_mut::<HEAD>().expect("it has a head");
        let (words, behind) = (self::foreign(foreign), rest.len() / STAMP);
        read(foreign, self.next, rest);
        let head = zerocopy::transmute_mut!(head);
        let count = read_head(words, self.next, behind, changed, head, &mut self.last);
        self.next += lines_of(behind + count);
    }

    /// Copies a record other than an inline frame; [`Reader::advance`] takes it off the ring.
    pub(super) fn record<R: FromBytes + IntoBytes>(&self, foreign: &Foreign) -> R {
        let mut record = R::new_zeroed();
        read(foreign, self.next, record.as_mut_bytes());
        record
    }

    /// Goes on behind a record of `lines`.
    pub(super) fn advance(&mut self, lines: u64) {
        self.next += lines;
    }
}

/// Number of lines of a record with `words` words behind its stamp.
#[inline]
fn lines_of(words: usize) -> u64 {
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
type Words = [AtomicU64; RING_BYTES / 8];

/// The words of the ring in a segment of this process.
#[inline]
fn own(own: &Own) -> &Words {
    own.words(RING_AT)
}

/// The words of the ring in a peer's segment.
#[inline]
fn foreign(foreign: &Foreign) -> &Words {
    foreign.words(RING_AT)
}

/// A word of the record at `position`, counted from its stamp.
#[inline]
fn word(words: &Words, position: u64, word: usize) -> &AtomicU64 {
    &words[(position as usize * LINE_WORDS + word) % words.len()]
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
fn read(foreign: &Foreign, position: u64, into: &mut [u8]) {
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
fn hand_over(own: &Own, position: u64, count: u64) {
    let here = count.min(LINES - position % LINES);
    own.hand_over(line_at(position), here as usize);
    own.hand_over(RING_AT, (count - here) as usize);
}

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 64;

/// The first bytes of a frame as words; a shorter frame is padded with zeros.
type Head = [u64; HEAD / 8];

/// The same bytes as they lie in the frame.
type HeadBytes = [[u8; 8]; HEAD / 8];

/// Writes the words of `head` that differ from `last`, `behind` words after the stamp, and updates
/// `last`; returns which words they are and their number.
///
/// It compares word by word: a load of more than was stored at once would wait for the stores.
#[inline(always)]
fn write_head(
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
fn read_head(
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

const _: () = assert!(VERSION == 9, "a change of the records above is a new version");
const _: () = assert!(LINES.is_power_of_two() && INLINE_BYTES_MAX <= 0xffff);

#[cfg(test)]
mod tests;
