//! What is outstanding: which servers have not answered which request, and where the answers go.
//!
//! Path: 13 of 13: the last server's answer completes the request. Slots and their parts are reused, so that a request
//! allocates nothing and nothing grows with the number of requests made.

use std::fmt;

use caravan_van::{Buffer, Message, Shared};

use crate::error::{Error, Result};

/// Number of a request, in the order of making. Asked for by `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// For people: requests counted from 1.
    pub(crate) fn count(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count())
    }
}

/// The low bits of a timestamp are its slot, the others count requests.
const SLOT_BITS: u32 = 20;

/// Requests that can be outstanding or unclaimed at a time.
const SLOTS_MAX: usize = 1 << SLOT_BITS;

/// What a request is, to whoever reports on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Push,
    Pull,
    PushPull,
    Create,
    Command,
    Spent,
}

impl What {
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::Push => "a push",
            What::Pull => "a pull",
            What::PushPull => "a push-pull",
            What::Create => "to create a table",
            What::Command => "a command",
            What::Spent => "what it has spent",
        }
    }
}

/// One server's share of a request.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Index of the server.
    pub(crate) server: usize,
    pub(crate) answered: bool,
    /// Keys asked for.
    pub(crate) keys: usize,
    /// Where its values go, unless they are offered.
    pub(crate) into: Option<Buffer>,
    /// Bytes of values that it answers with in a message, where that is known.
    pub(crate) bytes: usize,
    /// Key of the offer that holds the place for its values.
    pub(crate) offered: Option<u64>,
}

/// Runs when a request is complete.
pub type Callback = Box<dyn FnOnce(Result<&Answer, &Error>)>;

/// What came of a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// The pulled values, in the order of the keys; empty for a push.
    pub values: Option<Buffer>,
    /// The pulled values where the server has them, in place of [`Answer::values`]: long ones of one server, from a van in shared
    /// memory. They stay as they are while any part of this is held, and cost the server a copy of what it stores to meanwhile.
    pub lent: Option<Shared>,
    /// Number of values of each key, for tables whose keys have their own.
    pub lengths: Vec<u32>,
    /// What each server answered to a command, in the order of the servers.
    pub replies: Vec<Vec<u8>>,
}

impl Answer {
    /// The pulled values as numbers; empty for a push or when the type does not fit.
    pub fn values<V: caravan_van::Value>(&self) -> &[V] {
        V::view(self.bytes()).unwrap_or(&[])
    }

    /// The pulled values, wherever they are; empty for a push.
    pub fn bytes(&self) -> &[u8] {
        match (&self.values, &self.lent) {
            (Some(values), _) => values,
            (None, Some(lent)) => lent,
            (None, None) => &[],
        }
    }
}

pub(crate) struct Slot {
    timestamp: u64,
    pub(crate) open: bool,
    /// Its error was returned before all answers had come; nobody asks for it any more.
    pub(crate) abandoned: bool,
    pub(crate) what: What,
    pub(crate) missing: usize,
    pub(crate) parts: Vec<Part>,
    /// Answers whose size was not known before, as far as they have come, in the order of the parts.
    pub(crate) messages: Vec<Option<Message>>,
    pub(crate) error: Option<Error>,
    pub(crate) answer: Answer,
    pub(crate) callback: Option<Callback>,
}

/// All requests of one worker.
#[derive(Default)]
pub(crate) struct Tracker {
    slots: Vec<Slot>,
    free: Vec<u32>,
    count: u64,
}

impl Tracker {
    /// Enters a request, with one thing missing: that all its parts have been sent.
    pub(crate) fn begin(&mut self, what: What) -> Result<Timestamp> {
        self.open(what).map(|slot| Timestamp(slot.timestamp))
    }

    /// Enters a request of one part, whose answer is all that is missing.
    #[inline]
    pub(crate) fn begin_one(&mut self, what: What, part: Part) -> Result<Timestamp> {
        let slot = self.open(what)?;
        slot.parts.push(part);
        Ok(Timestamp(slot.timestamp))
    }

    /// That one part could not be sent.
    #[cold]
    pub(crate) fn fail_one(&mut self, timestamp: Timestamp, error: Error) {
        if let Some(slot) = self.slot(timestamp.0) {
            slot.parts.clear();
            (slot.missing, slot.error) = (0, Some(error));
        }
    }

    #[inline]
    fn open(&mut self, what: What) -> Result<&mut Slot> {
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None if self.slots.len() == SLOTS_MAX => {
                let reason = format!(
                    "{SLOTS_MAX} requests are outstanding or not waited for; wait for some"
                );
                return Err(Error::Config(reason));
            }
            None => {
                self.slots.push(Slot {
                    timestamp: 0,
                    open: false,
                    abandoned: false,
                    what,
                    missing: 0,
                    parts: Vec::new(),
                    messages: Vec::new(),
                    error: None,
                    answer: Answer::default(),
                    callback: None,
                });
                self.slots.len() - 1
            }
        };
        self.count += 1;
        let slot = &mut self.slots[index];
        slot.timestamp = self.count << SLOT_BITS | index as u64;
        (slot.open, slot.abandoned, slot.what, slot.missing) = (true, false, what, 1);
        Ok(slot)
    }

    /// The open slot of a request.
    pub(crate) fn slot(&mut self, timestamp: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(timestamp as usize & (SLOTS_MAX - 1))?;
        (slot.open && slot.timestamp == timestamp).then_some(slot)
    }

    /// Notes that `server` has answered its part of an open request; returns that part's index, unless none was missing.
    pub(crate) fn answered(&mut self, timestamp: u64, server: usize) -> Option<(&mut Slot, usize)> {
        let slot = self.slot(timestamp)?;
        let missing = |part: &Part| part.server == server && !part.answered;
        let at = slot.parts.iter().position(missing)?;
        slot.parts[at].answered = true;
        Some((slot, at))
    }

    /// Completes a push to one server alone, if nobody wants to hear of it: `server` has answered it. Else nothing happens.
    #[inline]
    pub(crate) fn complete_push(&mut self, timestamp: u64, server: usize) -> bool {
        let Some(slot) = self.slot(timestamp) else { return false };
        let quiet = slot.error.is_none() && slot.callback.is_none() && !slot.abandoned;
        let [part] = &slot.parts[..] else { return false };
        let last = slot.missing == 1 && part.server == server && !part.answered;
        if slot.what != What::Push || !last || !quiet || part.offered.is_some() {
            return false;
        }
        slot.parts.clear();
        slot.open = false;
        self.free.push(timestamp as u32 & (SLOTS_MAX as u32 - 1));
        true
    }

    /// Whether that request was made here, now or earlier.
    pub(crate) fn was_made(&self, timestamp: u64) -> bool {
        let index = timestamp as usize & (SLOTS_MAX - 1);
        self.slots.get(index).is_some_and(|slot| timestamp <= slot.timestamp)
            && timestamp >> SLOT_BITS > 0
    }

    /// The requests that are not claimed.
    pub(crate) fn open_timestamps(&self) -> Vec<u64> {
        self.slots.iter().filter(|slot| slot.open).map(|slot| slot.timestamp).collect()
    }

    /// Whether a request has its outcome: all answers, or an error, with which some may still be missing.
    pub(crate) fn is_settled(&mut self, timestamp: u64) -> bool {
        self.slot(timestamp)
            .is_none_or(|slot| slot.missing == 0 || slot.error.is_some() || slot.abandoned)
    }

    /// Closes the slot of a complete request that nobody will claim: it has neither an answer nor an error to tell, or its
    /// error was told.
    pub(crate) fn release_if_nothing_to_claim(&mut self, timestamp: u64) {
        let Some(slot) = self.slot(timestamp) else { return };
        if slot.abandoned {
            (slot.answer, slot.error) = (Answer::default(), None);
        } else if slot.error.is_some() || slot.what != What::Push {
            return;
        }
        self.close(timestamp);
    }

    /// Returns what came of a settled request, and closes its slot unless answers are missing; nothing the second time.
    pub(crate) fn claim(&mut self, timestamp: Timestamp) -> Result<Answer> {
        let Some(slot) = self.slot(timestamp.0) else { return Ok(Answer::default()) };
        let answer = std::mem::take(&mut slot.answer);
        let error = slot.error.take();
        if slot.missing > 0 {
            slot.abandoned = true;
        } else {
            self.close(timestamp.0);
        }
        error.map_or(Ok(answer), Err)
    }

    /// Frees the slot of a request whose answer and error have been taken.
    fn close(&mut self, timestamp: u64) {
        if let Some(slot) = self.slot(timestamp) {
            slot.open = false;
            self.free.push(timestamp as u32 & (SLOTS_MAX as u32 - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// As the worker does it: one answer came.
    fn answer(tracker: &mut Tracker, timestamp: Timestamp, error: Option<Error>) {
        let slot = tracker.slot(timestamp.0).unwrap();
        slot.missing -= 1;
        slot.error = slot.error.take().or(error);
        if slot.missing == 0 {
            tracker.release_if_nothing_to_claim(timestamp.0);
        }
    }

    #[test]
    fn slots_are_used_again_and_timestamps_are_not() {
        let mut tracker = Tracker::default();
        let mut last = 0;
        for _ in 0..1000 {
            let push = tracker.begin(What::Push).unwrap();
            assert!(push.0 > last && !tracker.is_settled(push.0));
            last = push.0;
            answer(&mut tracker, push, None);
            assert!(tracker.is_settled(push.0) && tracker.was_made(push.0));
        }
        assert_eq!((tracker.slots.len(), tracker.free.len()), (1, 1));
        assert!(!tracker.was_made(last + (1 << SLOT_BITS)) && !tracker.was_made(last + 1));
        assert!(!tracker.was_made(0) && !tracker.was_made(u64::MAX));
    }

    #[test]
    fn an_error_is_told_once_and_the_slot_stays_until_all_have_answered() {
        let mut tracker = Tracker::default();
        let pull = tracker.begin(What::Pull).unwrap();
        tracker.slot(pull.0).unwrap().missing = 2;
        assert!(!tracker.is_settled(pull.0));
        answer(&mut tracker, pull, Some(Error::Config("no".to_owned())));
        assert!(tracker.is_settled(pull.0));
        assert!(tracker.claim(pull).is_err());
        assert!(tracker.claim(pull).is_ok(), "told once");
        let other = tracker.begin(What::Pull).unwrap();
        assert_ne!(other.0 & 0xff, pull.0 & 0xff, "its slot is not free yet");
        answer(&mut tracker, pull, None);
        assert!(tracker.slot(pull.0).is_none() && tracker.free.len() == 1);
    }

    #[test]
    fn answers_stay_until_they_are_claimed() {
        let mut tracker = Tracker::default();
        let pull = tracker.begin(What::Pull).unwrap();
        answer(&mut tracker, pull, None);
        assert!(tracker.slot(pull.0).is_some());
        tracker.slot(pull.0).unwrap().answer.lengths.push(7);
        assert_eq!(tracker.claim(pull).unwrap().lengths, [7]);
        assert!(tracker.claim(pull).unwrap().lengths.is_empty());
    }
}
