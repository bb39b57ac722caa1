//! What is outstanding: which servers have not answered which request, and where the answers go.
//!
//! Path: the way back, codec > answer > **tracker**: the last server's answer completes the request. Slots and
//! their parts are reused, so that a request allocates nothing and nothing grows with the number of requests made.

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
pub(crate) enum RequestKind {
    Push,
    Pull,
    PushPull,
    Create,
    Command,
    Cost,
}

impl RequestKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            RequestKind::Push => "a push",
            RequestKind::Pull => "a pull",
            RequestKind::PushPull => "a push-pull",
            RequestKind::Create => "to create a table",
            RequestKind::Command => "a command",
            RequestKind::Cost => "its cost",
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
    ///
    /// A server that breaks the rules can write them at any time. Copy them before checking
    /// anything in them that later code relies on (`van/docs/decisions/0018-lent-bytes.md`).
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

/// What has come so far of a request that is not short, as [`State`] says.
pub(crate) struct Progress {
    /// Its error was returned before all answers had come; nobody asks for it any more.
    pub(crate) abandoned: bool,
    pub(crate) kind: RequestKind,
    pub(crate) missing: usize,
    pub(crate) parts: Vec<Part>,
    /// Answers whose size was not known before, as far as they have come, in the order of the parts.
    pub(crate) messages: Vec<Option<Message>>,
    pub(crate) error: Option<Error>,
    pub(crate) answer: Answer,
    pub(crate) callback: Option<Callback>,
}

/// One request's place. It fits into a cache line, and holds all there is to know of most requests. Whoever enters or takes
/// something sets or reads one field: a slot that is moved as a whole would be read before it is written.
struct Slot {
    /// Of the request that has it, or had it last.
    timestamp: u64,
    state: State,
    kind: RequestKind,
    /// Where the values of a short request go, or have gone; none for a push.
    values: Option<Buffer>,
}

const _: () = assert!(size_of::<Slot>() == 48);

/// How far a request is. It is short if it is of one part, nothing has gone wrong, and no callback waits for it.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// There is nothing to be told of the request any more.
    Closed,
    /// It is short, and this server's answer is missing.
    Asked(u32),
    /// It is short, and its values are there.
    Answered,
    /// It is not short; its progress is at this place.
    Open(u32),
}

/// All requests of one worker.
#[derive(Default)]
pub(crate) struct Tracker {
    slots: Vec<Slot>,
    /// Slots that are closed.
    free: Vec<u32>,
    progress: Vec<Progress>,
    /// Places there that no slot names.
    spare: Vec<u32>,
    count: u64,
}

impl Tracker {
    /// Enters a request, with one thing missing: that all its parts have been sent.
    pub(crate) fn begin(&mut self, kind: RequestKind) -> Result<Timestamp> {
        let timestamp = self.enter(kind, State::Closed)?.timestamp;
        let place = self.open(kind, 1);
        self.slots[slot_of(timestamp)].state = State::Open(place);
        Ok(Timestamp(timestamp))
    }

    /// Enters a request of one part, whose answer is all that is missing: values that fill `into`, or nothing if it is a push.
    #[inline(always)]
    pub(crate) fn begin_short(
        &mut self,
        kind: RequestKind,
        server: u32,
        into: Option<Buffer>,
    ) -> Result<Timestamp> {
        let slot = self.enter(kind, State::Asked(server))?;
        slot.values = into;
        Ok(Timestamp(slot.timestamp))
    }

    /// A slot for a request that begins.
    #[inline(always)]
    fn enter(&mut self, kind: RequestKind, state: State) -> Result<&mut Slot> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.add_slot()?,
        };
        self.count += 1;
        let slot = &mut self.slots[index as usize];
        slot.timestamp = self.count << SLOT_BITS | u64::from(index);
        (slot.kind, slot.state) = (kind, state);
        Ok(slot)
    }

    #[cold]
    fn add_slot(&mut self) -> Result<u32> {
        if self.slots.len() == SLOTS_MAX {
            let reason =
                format!("{SLOTS_MAX} requests are outstanding or not waited for; wait for some");
            return Err(Error::Config(reason));
        }
        let (kind, state, values) = (RequestKind::Push, State::Closed, None);
        self.slots.push(Slot { timestamp: 0, state, kind, values });
        Ok(self.slots.len() as u32 - 1)
    }

    /// A place for the progress of a request.
    fn open(&mut self, kind: RequestKind, missing: usize) -> u32 {
        let place = self.spare.pop().unwrap_or_else(|| {
            self.progress.push(Progress {
                abandoned: false,
                kind,
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
        (progress.abandoned, progress.kind, progress.missing) = (false, kind, missing);
        place
    }

    /// That the only part of a request could not be sent: the request, whose timestamp is returned, has failed.
    #[cold]
    pub(crate) fn fail(&mut self, timestamp: Timestamp, error: Error) -> Timestamp {
        if let Some(progress) = self.progress(timestamp.0) {
            progress.parts.clear();
            (progress.missing, progress.error) = (0, Some(error));
        }
        timestamp
    }

    /// The slot of a request, unless another has it by now.
    #[inline]
    fn slot(&mut self, timestamp: u64) -> Option<&mut Slot> {
        self.slots.get_mut(slot_of(timestamp)).filter(|slot| slot.timestamp == timestamp)
    }

    /// What has come so far of a request that is not closed.
    pub(crate) fn progress(&mut self, timestamp: u64) -> Option<&mut Progress> {
        let place = match self.slot(timestamp)?.state {
            State::Closed => return None,
            State::Open(place) => place,
            State::Asked(_) | State::Answered => self.lengthen(timestamp)?,
        };
        Some(&mut self.progress[place as usize])
    }

    /// Opens the progress of a request that was short so far.
    #[cold]
    fn lengthen(&mut self, timestamp: u64) -> Option<u32> {
        let slot = self.slot(timestamp)?;
        let (state, kind, values) = (slot.state, slot.kind, slot.values.take());
        let place = self.open(kind, usize::from(state != State::Answered));
        self.slot(timestamp)?.state = State::Open(place);
        let progress = &mut self.progress[place as usize];
        match state {
            State::Asked(server) => {
                let server = server as usize;
                progress.parts.push(Part { server, into: values, ..Part::default() });
            }
            _ => progress.answer.values = values,
        }
        Some(place)
    }

    /// Notes that `server` has answered its part of an open request; returns that part's index, unless none was missing.
    pub(crate) fn answered(
        &mut self,
        timestamp: u64,
        server: usize,
    ) -> Option<(&mut Progress, usize)> {
        let progress = self.progress(timestamp)?;
        let missing = |part: &Part| part.server == server && !part.answered;
        let at = progress.parts.iter().position(missing)?;
        progress.parts[at].answered = true;
        Some((progress, at))
    }

    /// Completes a short push, which `server` has answered. Nothing happens if it is none.
    #[inline]
    pub(crate) fn complete_push(&mut self, timestamp: u64, server: usize) -> bool {
        let Some(slot) = self.asked(timestamp, server) else { return false };
        if slot.kind != RequestKind::Push {
            return false;
        }
        slot.state = State::Closed;
        self.free.push(slot_of(timestamp) as u32);
        true
    }

    /// Completes a short pull, which `server` has answered with `found`. Nothing happens if it is none, or if it is not for these
    /// values.
    #[inline]
    pub(crate) fn complete_pull(&mut self, timestamp: u64, server: usize, found: &[u8]) -> bool {
        let Some(slot) = self.asked(timestamp, server) else { return false };
        let Some(values) = slot.values.as_deref_mut().filter(|into| into.len() == found.len())
        else {
            return false;
        };
        values.copy_from_slice(found);
        slot.state = State::Answered;
        true
    }

    /// The slot of a short request that waits for an answer of this server.
    #[inline]
    fn asked(&mut self, timestamp: u64, server: usize) -> Option<&mut Slot> {
        let is_asked = |state| matches!(state, State::Asked(asked) if asked as usize == server);
        self.slot(timestamp).filter(|slot| is_asked(slot.state))
    }

    /// Whether that request was made here, now or earlier.
    #[inline]
    pub(crate) fn was_made(&self, timestamp: u64) -> bool {
        self.slots.get(slot_of(timestamp)).is_some_and(|slot| timestamp <= slot.timestamp)
            && timestamp >> SLOT_BITS > 0
    }

    /// The requests that are not claimed.
    pub(crate) fn open_timestamps(&self) -> Vec<u64> {
        let open = self.slots.iter().filter(|slot| slot.state != State::Closed);
        open.map(|slot| slot.timestamp).collect()
    }

    /// Whether a request has its outcome: all answers, or an error, with which some may still be missing.
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

    /// Closes the slot of a complete request that nobody will claim: it has neither an answer nor an error to tell, or its
    /// error was told.
    pub(crate) fn release_if_nothing_to_claim(&mut self, timestamp: u64) {
        let Some(progress) = self.progress(timestamp) else { return };
        if progress.abandoned {
            (progress.answer, progress.error) = (Answer::default(), None);
        } else if progress.error.is_some() || progress.kind != RequestKind::Push {
            return;
        }
        self.close(timestamp);
    }

    /// Returns what came of a request, and closes its slot unless answers are missing; nothing but that the second time. `None` if
    /// it has no outcome yet, or was never made.
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
                let (answer, error) = (std::mem::take(&mut progress.answer), progress.error.take());
                return Some(error.map_or(Ok(answer), Err));
            }
        };
        Some(Ok(Answer { values, ..Answer::default() }))
    }

    /// The progress of an open request, if that is settled, to take its answer and error out: its slot is free, unless answers are
    /// missing.
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

    /// Frees the slot of a request whose answer and error have been taken.
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

/// The slot that a timestamp names.
#[inline]
fn slot_of(timestamp: u64) -> usize {
    timestamp as usize & (SLOTS_MAX - 1)
}

#[cfg(test)]
mod tests;
