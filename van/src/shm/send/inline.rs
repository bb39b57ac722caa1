//! How records come to stand in the ring, and short frames, as most are, in the fewest steps.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**shm**).

use std::sync::atomic::Ordering;

use super::Sender;
use crate::shm::connect::Link;
use crate::shm::receive::Hub;
use crate::shm::ring::{
    self, FRAME_LINES_MAX, HEAD, HeadBytes, Kind, LINE_WORDS, LINES, NUMBER, Stamp, Words,
};
use crate::transport::FRAME_PREFIX;

/// Frames that take so many lines of the ring, or more, are moved out of this core's cache: the
/// peer then finds them sooner.
const LINES_HANDED_OVER: u64 = 8;

impl Sender {
    /// Begins to fetch the lines where the next record will stand, if it is as long as the last
    /// one.
    #[inline(always)]
    pub(in crate::shm) fn prepare(&self, link: &Link) {
        ring::claim(&link.own, self.head, self.lines);
    }

    /// Copies a frame without its prefix into the ring; false if it does not stand there, or not
    /// now.
    #[inline(always)]
    pub(in crate::shm) fn copy(&mut self, link: &mut Link, frame: &[u8], hub: &mut Hub) -> bool {
        if !self.outbox.is_empty()
            || !self.copy_short(link, frame) && !self.copy_inline(link, frame)
        {
            return false;
        }
        hub.counters.frames_sent += 1;
        hub.counters.bytes_sent += (FRAME_PREFIX + frame.len()) as u64;
        true
    }

    /// Does so with a short frame that is like the last one, as most by far are; false if it is
    /// another one.
    #[inline(always)]
    fn copy_short(&mut self, link: &Link, frame: &[u8]) -> bool {
        let Some((head, rest)) = frame.split_first_chunk::<HEAD>() else { return false };
        let (head, (rest, left)): (&HeadBytes, _) =
            (zerocopy::transmute_ref!(head), rest.as_chunks::<8>());
        let fits = rest.len() < LINE_WORDS - 1
            && left.is_empty()
            && self.head + FRAME_LINES_MAX < self.freed + LINES;
        if !fits || !ring::is_next(head, &self.last) {
            return false;
        }
        let words = ring::own(&link.own);
        for (at, word) in rest.iter().enumerate() {
            ring::word(words, self.head, 1 + at)
                .store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        self.last[NUMBER] = u64::from_le_bytes(head[NUMBER]);
        ring::word(words, self.head, 1 + rest.len()).store(self.last[NUMBER], Ordering::Relaxed);
        self.publish(words, Stamp { kind: Kind::Inline, len: frame.len(), words: 1 << NUMBER }, 1);
        true
    }

    /// Does so with any other frame.
    #[inline(never)]
    fn copy_inline(&mut self, link: &mut Link, frame: &[u8]) -> bool {
        let has_room =
            frame.len() <= ring::INLINE_BYTES_MAX && self.has_room(link, FRAME_LINES_MAX);
        if has_room {
            self.put_inline(link, frame);
        }
        has_room
    }

    /// Writes a frame that is not too long into the ring, which has room for it.
    pub(super) fn put_inline(&mut self, link: &mut Link, frame: &[u8]) {
        let mut short = HeadBytes::default();
        let (head, rest) = match frame.split_first_chunk::<HEAD>() {
            Some((head, rest)) => (zerocopy::transmute_ref!(head), rest),
            None => {
                short.as_flattened_mut()[..frame.len()].copy_from_slice(frame);
                (&short, &[][..])
            }
        };
        let (position, behind) = (self.head, rest.len().div_ceil(8));
        let words = ring::own(&link.own);
        let (changed, count) = ring::write_head(words, position, behind, head, &mut self.last);
        ring::write(&mut link.own, position, rest);
        let words = ring::own(&link.own);
        let stamp = Stamp { kind: Kind::Inline, len: frame.len(), words: changed };
        let lines = ring::lines_of(behind + count);
        self.publish(words, stamp, lines);
        if lines >= LINES_HANDED_OVER {
            ring::hand_over(&link.own, position + 1, lines - 1);
        }
    }

    /// Writes another record into the ring, which has room for it.
    pub(super) fn put(&mut self, link: &mut Link, kind: Kind, record: &[u8]) {
        ring::write(&mut link.own, self.head, record);
        let lines = ring::lines_of(record.len().div_ceil(8));
        self.publish(ring::own(&link.own), Stamp::of(kind), lines);
    }

    /// Lets the peer see the record at the head of the ring, which takes `lines`.
    #[inline(always)] // the line is on its way from the peer's core: nothing more may wait for it
    fn publish(&mut self, words: &Words, stamp: Stamp, lines: u64) {
        let next = self.head + lines;
        if lines > 1 {
            self.clear_from = next + LINES;
        }
        let behind = ring::word(words, next, 0);
        if next < self.clear_from && Stamp::is_at(behind.load(Ordering::Relaxed), next) {
            behind.store(Stamp::none(next), Ordering::Relaxed);
        }
        ring::word(words, self.head, 0).store(stamp.word(self.head), Ordering::Release);
        (self.head, self.lines) = (next, lines);
        self.posted = true;
    }
}
