//! Models of the protocol between two processes on a shared-memory lane (`van/src/shm`), with the
//! orderings that its code uses. loom tries every order in which the two may see each other's
//! stores.
//!
//! | model | code |
//! |---|---|
//! | [`Ring`] | `ring.rs`: stamps, words, what is cleared; `CONSUMED` there and in `receive.rs` |
//! | [`Bell`] | `mod.rs`: `sleep` and `wake_sleepers` |
//! | [`Lease`] | `connect.rs`: `Link::close`; `arenas.rs`: `Mapped::copy` |
//!
//! A change of an ordering there is made here first. Each model has a test that weakens one
//! ordering and sees loom refuse it.

use loom::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};

/// Lines of the modelled ring.
const LINES: u64 = 3;
/// Words of a line: a stamp or payload, and payload.
const WORDS: u64 = 2;

/// What announces a record at `position`. A payload word may look the same.
pub const fn stamp(position: u64) -> u64 {
    100 + position
}

/// A ring of three lines, with the position up to which its reader has read.
pub struct Ring {
    words: [AtomicU64; (LINES * WORDS) as usize],
    consumed: AtomicU64,
    rules: Rules,
}

/// What the sender of a ring keeps to.
#[derive(Clone, Copy)]
pub struct Rules {
    /// By which ordering it stores a stamp.
    pub publish: Ordering,
    /// Whether it clears what looks like the next stamp behind a record.
    pub clears: bool,
}

impl Rules {
    /// Those of the code.
    pub const KEPT: Rules = Rules { publish: Release, clears: true };
}

impl Ring {
    /// An empty ring.
    pub fn new(rules: Rules) -> Ring {
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        Ring { words, consumed: AtomicU64::new(0), rules }
    }

    fn word(&self, position: u64, word: u64) -> &AtomicU64 {
        &self.words[((position * WORDS + word) % (LINES * WORDS)) as usize]
    }

    /// Sends a record of `payload` at `position`, which takes one line or two; returns the next
    /// position.
    pub fn send(&self, position: u64, payload: &[u64]) -> u64 {
        let next = position + payload.len() as u64 / WORDS + 1;
        // Room for the line behind it as well, as that may be cleared.
        while next + 1 - self.consumed.load(Acquire) > LINES {
            loom::thread::yield_now();
        }
        for (word, value) in (1..).zip(payload) {
            self.word(position, word).store(*value, Relaxed);
        }
        if self.rules.clears && self.word(next, 0).load(Relaxed) == stamp(next) {
            self.word(next, 0).store(0, Relaxed);
        }
        self.word(position, 0).store(stamp(position), self.rules.publish);
        next
    }

    /// Waits for the record of `len` words at `position`; returns them and the next position.
    pub fn receive(&self, position: u64, len: u64) -> (Vec<u64>, u64) {
        while self.word(position, 0).load(Acquire) != stamp(position) {
            loom::thread::yield_now();
        }
        let payload = (1..=len).map(|word| self.word(position, word).load(Relaxed)).collect();
        let next = position + len / WORDS + 1;
        self.consumed.store(next, Release);
        (payload, next)
    }
}

/// A reader that sleeps when it finds nothing, and a sender that wakes it.
#[derive(Default)]
pub struct Bell {
    record: AtomicBool,
    asleep: AtomicBool,
    /// Whether a packet is in the socket.
    woken: AtomicBool,
}

impl Bell {
    /// The sender's part: stores a record, then looks whether the reader sleeps. A fence stands
    /// between them if `fenced`.
    pub fn post(&self, fenced: bool) {
        self.record.store(true, Release);
        if fenced {
            fence(SeqCst);
        }
        if self.asleep.load(Relaxed) {
            self.woken.store(true, Release);
        }
    }

    /// The reader's part: says that it sleeps and looks once more; returns whether it sleeps
    /// without the record.
    pub fn sleeps(&self) -> bool {
        self.asleep.store(true, Relaxed);
        fence(SeqCst);
        !self.record.load(Acquire)
    }

    /// Whether somebody woke the reader.
    pub fn is_woken(&self) -> bool {
        self.woken.load(Acquire)
    }
}

/// Memory that a lane refers to, and the word that says when it may hold something else.
pub struct Lease {
    memory: AtomicU64,
    closed: AtomicBool,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease { memory: AtomicU64::new(1), closed: AtomicBool::new(false) }
    }
}

impl Lease {
    /// The owner's part: ends the lane, then uses the memory for something else.
    pub fn reuse(&self, fenced: bool) {
        self.closed.store(true, Release);
        if fenced {
            fence(SeqCst);
        }
        self.memory.store(2, Relaxed);
    }

    /// The reader's part: what it copied, unless the lane had ended before.
    pub fn copy(&self) -> Option<u64> {
        let copied = self.memory.load(Relaxed);
        fence(SeqCst);
        (!self.closed.load(Relaxed)).then_some(copied)
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The second word of the first record stands where the stamp of position 4 will be, and looks
    /// like it.
    const RECORDS: [&[u64]; 4] = [&[7, stamp(4)], &[8], &[9], &[10]];

    /// Sends records around the ring, and reads them.
    fn around_the_ring(rules: Rules) {
        loom::model(move || {
            let ring = Arc::new(Ring::new(rules));
            let sender = {
                let ring = ring.clone();
                thread::spawn(move || {
                    RECORDS.iter().fold(0, |at, payload| ring.send(at, payload));
                })
            };
            let mut position = 0;
            for record in RECORDS {
                let (found, next) = ring.receive(position, record.len() as u64);
                assert_eq!(found, record, "at {position}");
                position = next;
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn records_come_whole_and_in_order() {
        around_the_ring(Rules::KEPT);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_stamp_without_release_shows_words_that_are_not_there_yet() {
        around_the_ring(Rules { publish: Relaxed, ..Rules::KEPT });
    }

    #[test]
    #[should_panic(expected = "at 4")]
    fn an_old_word_that_is_not_cleared_is_taken_for_a_stamp() {
        around_the_ring(Rules { clears: false, ..Rules::KEPT });
    }

    fn sleep_and_wake(fenced: bool) {
        loom::model(move || {
            let bell = Arc::new(Bell::default());
            let sender = {
                let bell = bell.clone();
                thread::spawn(move || bell.post(fenced))
            };
            let sleeps = bell.sleeps();
            sender.join().unwrap();
            assert!(!sleeps || bell.is_woken(), "it sleeps with a record in the ring");
        });
    }

    #[test]
    fn nobody_sleeps_with_a_record_in_the_ring() {
        sleep_and_wake(true);
    }

    #[test]
    #[should_panic(expected = "it sleeps with a record in the ring")]
    fn without_its_fence_a_sender_misses_a_sleeper() {
        sleep_and_wake(false);
    }

    fn copy_while_it_ends(fenced: bool) {
        loom::model(move || {
            let lease = Arc::new(Lease::default());
            let owner = {
                let lease = lease.clone();
                thread::spawn(move || lease.reuse(fenced))
            };
            let copied = lease.copy();
            assert!(copied.is_none_or(|copied| copied == 1), "it copied what came after the end");
            owner.join().unwrap();
        });
    }

    #[test]
    fn nothing_is_copied_that_came_after_the_end_of_a_lane() {
        copy_while_it_ends(true);
    }

    #[test]
    #[should_panic(expected = "it copied what came after the end")]
    fn without_its_fence_an_owner_overtakes_the_end() {
        copy_while_it_ends(false);
    }
}
