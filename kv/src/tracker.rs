//! Outstanding requests: which servers have not answered yet, and where their answers go.
//!
//! Path: the way back, codec > answer > **tracker**. The last server's answer completes the
//! request. Slots and their parts are reused, so a request allocates nothing, and memory does not
//! grow with the number of requests.
//!
//! A request is *short* if it has one part, no error and no callback. Its slot holds its whole
//! state; any other request has a [`Progress`].

use std::fmt;

use caravan_van::{Buffer, Message, Shared};

use crate::error::{Error, Result};
use crate::op::Op;

/// Number of a request, ascending in the order of requests. [`Worker::wait`] takes it.
///
/// [`Worker::wait`]: crate::Worker::wait
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The request's number for messages, counted from 1.
    #[doc(hidden)]
    pub fn count(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count())
    }
}

/// The low bits of a timestamp are its slot; the others count requests.
const SLOT_BITS: u32 = 20;

/// Most requests that may be outstanding or unclaimed at a time.
const SLOTS_MAX: usize = 1 << SLOT_BITS;

/// One server's part of a request.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Its number in messages. The first part has its request's, the others their own.
    pub(crate) timestamp: u64,
    /// Index of the server.
    pub(crate) server: usize,
    pub(crate) answered: bool,
    /// Number of keys.
    pub(crate) keys: usize,
    /// Destination of the values, unless it is offered to the server.
    pub(crate) into: Option<Buffer>,
    /// Bytes of values in the answering message; 0 if unknown.
    pub(crate) bytes: usize,
    /// Key of the offer that holds the destination of the values.
    pub(crate) offered: Option<u64>,
}

/// Runs as soon as a request has its outcome.
pub type Callback = Box<dyn FnOnce(Result<&Answer, &Error>)>;

/// The answer to a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// The pulled values, in the order of the keys; empty for a push.
    pub values: Option<Buffer>,
    /// The pulled values in the server's memory, in place of [`Answer::values`]: long values of one
    /// server that a van of shared memory lends.
    ///
    /// They do not change while any part of this is held. Meanwhile, a push to them makes the
    /// server copy them.
    ///
    /// A server that breaks the rules can write them at any time. Copy them before checking
    /// anything in them that later code relies on (`van/docs/decisions/0018-lent-bytes.md`).
    pub lent: Option<Shared>,
    /// Number of values of each key, for tables whose rows have their own lengths.
    pub lengths: Vec<u32>,
    /// Each shard's reply to a command, in the order of the shards.
    pub replies: Vec<Vec<u8>>,
}

impl Answer {
    /// The pulled values as numbers; empty for a push or if the type does not fit.
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

/// Progress of a request that is not short.
pub(crate) struct Progress {
    pub(crate) timestamp: u64,
    /// Its error was returned before all answers had come; its answer will not be claimed.
    pub(crate) abandoned: bool,
    pub(crate) op: Op,
    /// Answers that have not come, plus one until all parts are sent.
    pub(crate) missing: usize,
    pub(crate) parts: Vec<Part>,
    /// Answers without a destination, in the order of the parts.
    pub(crate) messages: Vec<Option<Message>>,
    pub(crate) error: Option<Error>,
    pub(crate) answer: Answer,
    pub(crate) callback: Option<Callback>,
}

/// The place of one request, which fits into a cache line. Code reads and writes single fields: a
/// move of a whole slot would load what was just stored.
struct Slot {
    /// The request that has this slot, or had it last.
    timestamp: u64,
    state: State,
    op: Op,
    /// Destination of a short request's values; `None` for a push.
    values: Option<Buffer>,
}

const _: () = assert!(size_of::<Slot>() == 48);

/// State of a request.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Nothing of the request is left to claim.
    Closed,
    /// It is short, and this server has not answered.
    Asked(u32),
    /// It is short, and its values have come.
    Answered,
    /// It is not short, or a part of one that is not; this is the index of its progress.
    Open(u32),
}

/// All requests of one worker.
#[derive(Default)]
pub(crate) struct Tracker {
    slots: Vec<Slot>,
    /// Closed slots.
    free: Vec<u32>,
    progress: Vec<Progress>,
    /// Unused places in `progress`.
    spare: Vec<u32>,
    count: u64,
}

impl Tracker {
    /// Records a request. One answer more than its parts is missing, until all parts are sent.
    pub(crate) fn begin(&mut self, op: Op) -> Result<Timestamp> {
        let timestamp = self.enter(op, State::Closed)?.timestamp;
        let place = self.open(timestamp, op, 1);
        self.slots[slot_of(timestamp)].state = State::Open(place);
        Ok(Timestamp(timestamp))
    }

    /// A timestamp for the next part of a request that is being sent.
    pub(crate) fn begin_part(&mut self, request: Timestamp) -> Result<u64> {
        let State::Open(place) = self.slots[slot_of(request.0)].state else { return Ok(request.0) };
        let Progress { op, ref parts, .. } = self.progress[place as usize];
        if parts.is_empty() {
            return Ok(request.0);
        }
        Ok(self.enter(op, State::Open(place))?.timestamp)
    }

    /// Frees the slot of a part that is answered or was not sent, unless it is that of its request.
    pub(crate) fn end_part(&mut self, part: u64, request: u64) {
        if part != request {
            self.slots[slot_of(part)].state = State::Closed;
            self.free.push(slot_of(part) as u32);
        }
    }

    /// Records a request of one part, whose answer fills `into`; a push has none.
    #[inline(always)]
    pub(crate) fn begin_short(
        &mut self,
        op: Op,
        server: u32,
        into: Option<Buffer>,
    ) -> Result<Timestamp> {
        let slot = self.enter(op, State::Asked(server))?;
        slot.values = into;
        Ok(Timestamp(slot.timestamp))
    }

    /// Gives a new request a slot and a timestamp.
    #[inline(always)]
    fn enter(&mut self, op: Op, state: State) -> Result<&mut Slot> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.add_slot()?,
        };
        self.count += 1;
        let slot = &mut self.slots[index as usize];
        slot.timestamp = self.count << SLOT_BITS | u64::from(index);
        slot.op = op;
        slot.state = state;
        Ok(slot)
    }

    #[cold]
    fn add_slot(&mut self) -> Result<u32> {
        if self.slots.len() == SLOTS_MAX {
            let reason =
                format!("{SLOTS_MAX} requests are outstanding or not waited for; wait for some");
            return Err(Error::Config(reason));
        }
        let op = Op::Push;
        self.slots.push(Slot { timestamp: 0, state: State::Closed, op, values: None });
        Ok(self.slots.len() as u32 - 1)
    }

    /// Takes an unused progress for a request; returns its index.
    fn open(&mut self, timestamp: u64, op: Op, missing: usize) -> u32 {
        let place = self.spare.pop().unwrap_or_else(|| {
            self.progress.push(Progress {
                timestamp,
                abandoned: false,
                op,
                missing,
                parts: Vec::new(),
                messages: Vec::new(),
                error: None,
                answer: Answer::default(),
                callback: None,
            });
            self.progress.len() as u32 - 1
        });
        let progress = &mut self.progress[place as usize];
        progress.timestamp = timestamp;
        progress.abandoned = false;
        progress.op = op;
        progress.missing = missing;
        place
    }

    /// Fails a request whose only part could not be sent; returns its timestamp.
    #[cold]
    pub(crate) fn fail(&mut self, timestamp: Timestamp, error: Error) -> Timestamp {
        if let Some(progress) = self.progress(timestamp.0) {
            progress.parts.clear();
            progress.missing = 0;
            progress.error = Some(error);
        }
        timestamp
    }

    /// The slot of a request, unless another request has it now.
    #[inline]
    fn slot(&mut self, timestamp: u64) -> Option<&mut Slot> {
        self.slots.get_mut(slot_of(timestamp)).filter(|slot| slot.timestamp == timestamp)
    }

    /// The progress of a request that is not closed; a short one gets a progress.
    pub(crate) fn progress(&mut self, timestamp: u64) -> Option<&mut Progress> {
        let place = match self.slot(timestamp)?.state {
            State::Closed => return None,
            State::Open(place) => place,
            State::Asked(_) | State::Answered => self.lengthen(timestamp)?,
        };
        Some(&mut self.progress[place as usize])
    }

    /// Gives a short request a progress; returns its index.
    #[cold]
    fn lengthen(&mut self, timestamp: u64) -> Option<u32> {
        let slot = self.slot(timestamp)?;
        let state = slot.state;
        let op = slot.op;
        let values = slot.values.take();
        let place = self.open(timestamp, op, usize::from(state != State::Answered));
        self.slot(timestamp)?.state = State::Open(place);
        let progress = &mut self.progress[place as usize];
        match state {
            State::Asked(server) => {
                let server = server as usize;
                let part = Part { timestamp, server, into: values, ..Part::default() };
                progress.parts.push(part);
            }
            _ => progress.answer.values = values,
        }
        Some(place)
    }

    /// The progress of a request, and the index of its part with this timestamp, if `server` has to
    /// answer it.
    pub(crate) fn part(&mut self, timestamp: u64, server: usize) -> Option<(&mut Progress, usize)> {
        let progress = self.progress(timestamp)?;
        let asked =
            |part: &Part| part.timestamp == timestamp && part.server == server && !part.answered;
        let at = progress.parts.iter().position(asked)?;
        Some((progress, at))
    }

    /// As [`Tracker::part`], and marks the part as answered.
    pub(crate) fn answered(
        &mut self,
        timestamp: u64,
        server: usize,
    ) -> Option<(&mut Progress, usize)> {
        let (progress, at) = self.part(timestamp, server)?;
        progress.parts[at].answered = true;
        let request = progress.timestamp;
        self.end_part(timestamp, request);
        Some((self.progress(request)?, at))
    }

    /// Completes a short request that `server` has answered with `found`; returns false and changes
    /// nothing if the request is not one or expects another size.
    #[inline]
    pub(crate) fn complete(&mut self, timestamp: u64, server: usize, found: &[u8]) -> bool {
        let Some(slot) = self.asked(timestamp, server) else { return false };
        if slot.op == Op::Push {
            slot.state = State::Closed;
            self.free.push(slot_of(timestamp) as u32);
            return true;
        }
        let Some(values) = slot.values.as_deref_mut().filter(|into| into.len() == found.len())
        else {
            return false;
        };
        values.copy_from_slice(found);
        slot.state = State::Answered;
        true
    }

    /// The slot of a short request that waits for this server's answer.
    #[inline]
    fn asked(&mut self, timestamp: u64, server: usize) -> Option<&mut Slot> {
        let is_asked = |state| matches!(state, State::Asked(asked) if asked as usize == server);
        self.slot(timestamp).filter(|slot| is_asked(slot.state))
    }

    /// Whether this worker has ever made that request.
    #[inline]
    pub(crate) fn was_made(&self, timestamp: u64) -> bool {
        self.slots.get(slot_of(timestamp)).is_some_and(|slot| timestamp <= slot.timestamp)
            && timestamp >> SLOT_BITS > 0
    }

    /// Timestamps of all requests that are not closed.
    pub(crate) fn open_timestamps(&self) -> Vec<u64> {
        let open = self.slots.iter().filter(|slot| slot.state != State::Closed);
        open.map(|slot| slot.timestamp).collect()
    }

    /// Whether `server` has to answer any request.
    pub(crate) fn awaits(&self, server: usize) -> bool {
        self.slots.iter().any(|slot| match slot.state {
            State::Closed | State::Answered => false,
            State::Asked(asked) => asked as usize == server,
            State::Open(place) => {
                let parts = &self.progress[place as usize].parts;
                parts.iter().any(|part| part.server == server && !part.answered)
            }
        })
    }

    /// Whether a request has its outcome: all answers, or an error, after which answers may still
    /// come.
    #[inline]
    pub(crate) fn is_settled(&self, timestamp: u64) -> bool {
        let Some(slot) = self.slots.get(slot_of(timestamp)) else { return true };
        match slot.state {
            _ if slot.timestamp != timestamp => true,
            State::Closed | State::Answered => true,
            State::Asked(_) => false,
            State::Open(place) => {
                let Progress { missing, error, abandoned, .. } = &self.progress[place as usize];
                *missing == 0 || error.is_some() || *abandoned
            }
        }
    }

    /// Closes the slot of a complete request that leaves nothing to claim: a push without an error,
    /// or a request whose error was returned.
    pub(crate) fn release_if_nothing_to_claim(&mut self, timestamp: u64) {
        let Some(progress) = self.progress(timestamp) else { return };
        if progress.abandoned {
            progress.answer = Answer::default();
            progress.error = None;
        } else if progress.error.is_some() || progress.op != Op::Push {
            return;
        }
        self.close(timestamp);
    }

    /// Returns the outcome of a request, and closes its slot unless answers are missing. A second
    /// call returns an empty answer. `None` if it has no outcome yet or was never made.
    #[inline(always)]
    pub(crate) fn claim(&mut self, timestamp: Timestamp) -> Option<Result<Answer>> {
        let slot = self.slots.get_mut(slot_of(timestamp.0))?;
        if slot.timestamp != timestamp.0 {
            let is_over = slot.timestamp > timestamp.0 && timestamp.count() > 0;
            return is_over.then(|| Ok(Answer::default()));
        }
        let values = match slot.state {
            State::Closed => None,
            State::Answered => {
                slot.state = State::Closed;
                self.free.push(slot_of(timestamp.0) as u32);
                slot.values.take()
            }
            State::Asked(_) => return None,
            State::Open(place) => {
                let progress = self.settled(timestamp, place)?;
                let answer = std::mem::take(&mut progress.answer);
                let error = progress.error.take();
                return Some(error.map_or(Ok(answer), Err));
            }
        };
        Some(Ok(Answer { values, ..Answer::default() }))
    }

    /// The progress of a settled request, for the caller to take its answer and error. Closes the
    /// slot unless answers are missing.
    #[inline(never)]
    fn settled(&mut self, timestamp: Timestamp, place: u32) -> Option<&mut Progress> {
        if !self.is_settled(timestamp.0) {
            return None;
        }
        if self.progress[place as usize].missing > 0 {
            self.progress[place as usize].abandoned = true;
        } else {
            self.close(timestamp.0);
        }
        Some(&mut self.progress[place as usize])
    }

    /// Frees the slot of a request.
    #[inline]
    fn close(&mut self, timestamp: u64) {
        let Some(slot) = self.slot(timestamp) else { return };
        if let State::Open(place) = slot.state {
            self.spare.push(place);
        }
        self.slots[slot_of(timestamp)].state = State::Closed;
        self.free.push(slot_of(timestamp) as u32);
    }
}

/// Index of the slot of a timestamp.
#[inline]
pub(crate) fn slot_of(timestamp: u64) -> usize {
    timestamp as usize & (SLOTS_MAX - 1)
}

#[cfg(test)]
mod tests;
