//! The ledger of one lane: the landings that each side granted, and the places that requests offer
//! for their answers. No I/O: the endpoint allocates, offers and notifies the peer.
//!
//! A landing is granted, then used by one long message or returned. A place is used by the answer
//! to its request, or closed when the answer arrives as a message.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use std::collections::VecDeque;

use crate::memory::Pool;
use crate::wire::Offer;

/// Upper bound on the bytes of one peer's unused landings, unless a single message is longer.
const LANDING_BYTES_MAX: usize = 128 << 20;

/// Landings that the peer granted to this side.
#[derive(Default)]
pub(super) struct Grants {
    held: Vec<Offer>,
    /// Number of landings asked for and not received yet.
    wanted: usize,
    /// Upper bound on the number held at a time.
    pub(super) count_max: usize,
}

impl Grants {
    /// Records a received grant; false if the peer has granted too many already.
    pub(super) fn enter(&mut self, offer: Offer) -> bool {
        if self.held.len() >= self.count_max {
            return false;
        }
        self.held.push(offer);
        self.wanted = self.wanted.saturating_sub(1);
        true
    }

    /// Removes and returns the smallest landing that holds `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Option<Offer> {
        let fits = |(_, offer): &(usize, &Offer)| offer.len.get() >= len as u64;
        let best =
            self.held.iter().enumerate().filter(fits).min_by_key(|(_, offer)| offer.len.get())?.0;
        Some(self.held.swap_remove(best))
    }

    /// Removes up to `count` landings, to be returned to the peer.
    pub(super) fn give_back(&mut self, count: usize) -> impl ExactSizeIterator<Item = Offer> {
        let count = count.min(self.held.len());
        self.held.drain(..count)
    }

    /// Whether no landing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Records that the endpoint asks for one more landing.
    pub(super) fn ask(&mut self) {
        self.wanted += 1;
    }

    /// Returns the length to ask for when a message of `len` bytes waits and every held landing is
    /// too short. It is `len` if no landing is still to come. It is 0 if some are, to return those
    /// that are held. It is `None` if there is nothing to send.
    pub(super) fn ask_again(&mut self, len: usize) -> Option<usize> {
        match (self.wanted, self.held.is_empty()) {
            (0, _) => {
                self.wanted = 1;
                Some(len)
            }
            (_, false) => Some(0),
            (_, true) => None,
        }
    }
}

/// Landings that this side granted to the peer.
#[derive(Default)]
pub(super) struct Landings {
    /// Key and length of the unused landings.
    granted: Vec<(u64, usize)>,
    /// Requests that arrived in a landing and have no answer yet.
    landed: Vec<Landed>,
    /// Bytes of memory in `granted` and `landed`.
    held: usize,
    /// Lengths of used landings that are to be replaced.
    used: VecDeque<usize>,
    /// Lengths that the peer asked for while its share had no room.
    wanted: VecDeque<usize>,
    /// Number of entries in `landed`, `used` and `wanted`, so that a message needs one comparison.
    unsettled: usize,
    /// Upper bound on the number granted or wanted at a time.
    pub(super) count_max: usize,
}

/// A request that keeps the landing in which it arrived.
struct Landed {
    timestamp: u64,
    /// Key of the offer for its answer. A placed answer names nothing else.
    place: Option<u64>,
    len: usize,
}

impl Landings {
    /// Records a grant.
    pub(super) fn enter(&mut self, key: u64, len: usize) {
        self.granted.push((key, len));
        self.held += Pool::slot_bytes(len);
    }

    /// Records that a message used this landing, which is to be replaced; false if it was not
    /// granted.
    #[must_use]
    pub(super) fn use_up(&mut self, key: u64) -> bool {
        let len = self.remove(key);
        self.used.extend(len);
        self.unsettled += usize::from(len.is_some());
        len.is_some()
    }

    /// Records that the message was a request, whose landing counts until the answer.
    pub(super) fn keep(&mut self, timestamp: u64, place: Option<u64>, len: usize) {
        self.landed.push(Landed { timestamp, place, len });
        self.held += Pool::slot_bytes(len);
        self.unsettled += 1;
    }

    /// Records that a message answers the request with this timestamp.
    #[inline(never)]
    pub(super) fn answered(&mut self, timestamp: u64) {
        self.let_go(|landed| landed.timestamp == timestamp);
    }

    /// Records that the request that offered this place is answered there.
    pub(super) fn placed(&mut self, place: u64) {
        self.let_go(|landed| landed.place == Some(place));
    }

    fn let_go(&mut self, is_it: impl Fn(&Landed) -> bool) {
        if let Some(at) = self.landed.iter().position(is_it) {
            self.held -= Pool::slot_bytes(self.landed.swap_remove(at).len);
            self.unsettled -= 1;
        }
    }

    /// Records that the peer returns an unused landing; false if it was not granted.
    #[must_use]
    pub(super) fn return_unused(&mut self, key: u64) -> bool {
        self.remove(key).is_some()
    }

    fn remove(&mut self, key: u64) -> Option<usize> {
        let at = self.granted.iter().position(|(granted, _)| *granted == key)?;
        let (_, len) = self.granted.swap_remove(at);
        self.held -= Pool::slot_bytes(len);
        Some(len)
    }

    /// Records that the peer asks for a landing of `len` bytes; false if it asks for too many.
    #[must_use]
    pub(super) fn want(&mut self, len: usize) -> bool {
        let room = self.granted.len() + self.wanted.len() < self.count_max;
        if room {
            self.wanted.push_back(len);
            self.unsettled += 1;
        }
        room
    }

    /// Whether no landing is to be replaced, none is wanted, and no request keeps one.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled == 0
    }

    /// Whether the peer waits for a landing.
    pub(super) fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// The wanted length that has waited longest.
    pub(super) fn next_wanted(&self) -> Option<usize> {
        self.wanted.front().copied()
    }

    /// Removes that length: the endpoint grants it now.
    pub(super) fn serve_next(&mut self) {
        self.unsettled -= usize::from(self.wanted.pop_front().is_some());
    }

    /// Removes and returns the next length to replace. It skips lengths for which a share of `free`
    /// bytes has no room, and all lengths while the peer waits for others.
    pub(super) fn next_replaced(&mut self, free: impl Fn() -> usize) -> Option<usize> {
        while let Some(len) = self.used.pop_front() {
            self.unsettled -= 1;
            let may = self.granted.len() < self.count_max && !self.is_wanted();
            if may && self.has_room(len, free()) {
                return Some(len);
            }
        }
        None
    }

    /// Bytes of the unused landings.
    pub(super) fn bytes(&self) -> usize {
        self.granted.iter().map(|(_, len)| len).sum()
    }

    /// Whether another landing of `len` bytes is within the lane's share while `free` bytes are
    /// free.
    pub(super) fn has_room(&self, len: usize, free: usize) -> bool {
        let granted = self.bytes();
        let held = self.held.saturating_add(Pool::slot_bytes(len));
        (granted == 0 || granted + len <= LANDING_BYTES_MAX)
            && is_within_share(held, free.saturating_add(self.held))
    }
}

/// Whether a lane may hold `held` bytes of memory, of which `free` bytes would be free without it.
/// Its share is three quarters, so that some memory is left for the next lane.
pub(super) fn is_within_share(held: usize, free: usize) -> bool {
    held <= free / 4 * 3
}

/// Open places, in which requests want their answers.
#[derive(Default)]
pub(super) struct Places(Vec<(u64, u64)>);

impl Places {
    /// Records the place of one more request, and drops the oldest beyond `count_max`. Only a peer
    /// that answers requests nobody made leaves more places open.
    pub(super) fn enter(&mut self, key: u64, timestamp: u64, count_max: usize) {
        if self.0.len() >= count_max {
            self.0.remove(0);
        }
        self.0.push((key, timestamp));
    }

    /// Whether no place is open.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Closes a place and returns the timestamp of its request, if it was open.
    pub(super) fn remove(&mut self, key: u64) -> Option<u64> {
        let at = self.0.iter().position(|&(open, _)| open == key)?;
        Some(self.0.remove(at).1)
    }

    /// Closes the place, if any, of a request that a message answered.
    pub(super) fn answered(&mut self, timestamp: u64) {
        if let Some(at) = self.0.iter().position(|&(_, of)| of == timestamp) {
            self.0.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(key: u64, len: u64) -> Offer {
        Offer { key: key.into(), address: 0.into(), len: len.into() }
    }

    #[test]
    fn the_smallest_grant_that_fits_is_taken() {
        let mut grants = Grants { count_max: 3, ..Grants::default() };
        for (key, len) in [(1, 300), (2, 100), (3, 200)] {
            assert!(grants.enter(offer(key, len)));
        }
        assert!(!grants.enter(offer(4, 1)), "a fourth is one too many");
        assert_eq!(grants.take(150).map(|offer| offer.key.get()), Some(3));
        assert_eq!(grants.take(150).map(|offer| offer.key.get()), Some(1));
        assert_eq!(grants.take(150), None, "100 bytes are too short");
        assert!(!grants.is_empty());
    }

    #[test]
    fn short_grants_go_back_and_the_last_to_come_is_asked_for_again() {
        let mut grants = Grants { count_max: 8, ..Grants::default() };
        grants.ask();
        grants.ask();
        assert_eq!(grants.ask_again(500), None, "two are still to come");
        assert!(grants.enter(offer(1, 10)));
        assert_eq!(grants.ask_again(500), Some(0), "one is still to come, and one goes back");
        assert_eq!(grants.give_back(64).len(), 1);
        assert!(grants.enter(offer(2, 10)) && grants.enter(offer(3, 10)));
        assert_eq!(grants.ask_again(500), Some(500), "none is to come");
        assert_eq!(grants.give_back(1).map(|offer| offer.key.get()).collect::<Vec<_>>(), [2]);
        assert!(!grants.is_empty());
    }

    #[test]
    fn a_landing_is_used_once_and_only_if_it_was_granted() {
        let mut landings = Landings { count_max: 4, ..Landings::default() };
        landings.enter(7, 100);
        landings.enter(8, 200);
        assert!(!landings.use_up(9) && !landings.return_unused(9));
        assert!(landings.use_up(7) && !landings.use_up(7) && !landings.return_unused(7));
        assert!(landings.return_unused(8));
        assert_eq!(landings.bytes(), 0);
        assert_eq!(
            landings.next_replaced(|| usize::MAX),
            Some(100),
            "what was returned is not replaced"
        );
        assert_eq!(landings.next_replaced(|| usize::MAX), None);
    }

    #[test]
    fn a_place_is_for_one_answer_and_there_are_no_more_than_requests() {
        let mut places = Places::default();
        (1..=3).for_each(|key| places.enter(key, 10 * key, 3));
        assert_eq!(places.remove(2), Some(20));
        assert_eq!(places.remove(2), None);
        places.answered(30);
        places.answered(99);
        assert_eq!(places.remove(3), None, "its request was answered otherwise");
        (4..=6).for_each(|key| places.enter(key, 10 * key, 3));
        assert_eq!((places.remove(1), places.remove(4)), (None, Some(40)), "the oldest went");
    }

    #[test]
    fn wants_are_bounded_and_wait_for_the_share_to_have_room() {
        let mut landings = Landings { count_max: 3, ..Landings::default() };
        let long = LANDING_BYTES_MAX + 1;
        assert!(landings.want(long) && landings.want(1));
        assert_eq!(landings.next_wanted(), Some(long));
        assert!(landings.has_room(long, usize::MAX), "a single one may be longer");
        landings.serve_next();
        landings.enter(1, long);
        assert!(landings.is_wanted());
        assert!(!landings.has_room(1, usize::MAX));
        assert!(landings.want(1) && !landings.want(1), "one granted and two wanted are enough");
        assert!(landings.use_up(1));
        assert!(landings.has_room(1, usize::MAX));
    }

    /// Each lane may hold three quarters of what would be free without it, so that the next lane
    /// finds some.
    #[test]
    fn a_share_leaves_some_for_others_until_requests_are_answered() {
        const MIB: usize = 1 << 20;
        let mut landings = Landings { count_max: 9, ..Landings::default() };
        assert!(!landings.has_room(33 * MIB, 64 * MIB), "it would take 64");
        assert!(landings.has_room(32 * MIB, 63 * MIB));
        landings.enter(1, 32 * MIB);
        assert!(landings.has_room(8 * MIB, 31 * MIB) && !landings.has_room(16 * MIB, 31 * MIB));
        assert!(landings.use_up(1));
        assert_eq!(landings.held, 0, "what came in it was an answer");
        landings.enter(2, 32 * MIB);
        assert!(landings.use_up(2));
        landings.keep(70, None, 32 * MIB);
        landings.keep(71, Some(5), 1000);
        landings.answered(99);
        landings.placed(6);
        assert!(!landings.has_room(16 * MIB, 31 * MIB), "a request keeps its landing");
        landings.answered(70);
        assert_eq!(landings.held, 1024);
        landings.placed(5);
        assert_eq!(landings.held, 0);
    }

    #[test]
    fn used_landings_are_replaced_unless_others_are_wanted_or_there_is_no_room() {
        let mut landings = Landings { count_max: 3, ..Landings::default() };
        (1..=3).for_each(|key| landings.enter(key, 10));
        assert!(landings.use_up(1) && landings.want(20));
        assert_eq!(landings.next_replaced(|| usize::MAX), None, "the peer waits for another");
        landings.serve_next();
        assert!(landings.use_up(2) && landings.use_up(3));
        landings.enter(4, LANDING_BYTES_MAX - 10);
        assert_eq!(landings.next_replaced(|| usize::MAX), Some(10));
        landings.enter(5, 10);
        assert_eq!(landings.next_replaced(|| usize::MAX), None, "the share is full");
    }
}
