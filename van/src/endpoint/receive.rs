//! Incoming frames. The endpoint reads one message at a time and holds it in place while the caller
//! takes its records. Answers return credits and bring landings.
//!
//! Path: the way back, transport > codec > **endpoint** > server or worker.

use super::connection::lane;
use super::{Arrival, Connections, Endpoint};
use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::message::Message;
use crate::transport::{Event, PeerId};
use crate::wire::{Hello, Images, Kind, decode_lent};

/// What arrived at an endpoint and was not taken: the receiving half.
pub struct Inbox {
    /// Events of past polls that were not read yet, the oldest last.
    pub(super) events: Vec<Event>,
    /// Sender of the open message.
    peer: PeerId,
    /// The open message, and the unread rest of its frame.
    images: Images,
    /// Number of records that may still be taken before the next poll.
    pub(super) takes_left: usize,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox {
            events: Vec::with_capacity(64),
            peer: PeerId(0),
            images: Images::NONE,
            takes_left: 0,
        }
    }

    /// The message that [`Arrival::Message`] announced, with the records that were not passed yet.
    #[inline(always)]
    pub fn message(&self) -> &Message {
        &self.images.message
    }

    /// The same message, to pass its records.
    #[inline(always)]
    pub fn message_mut(&mut self) -> &mut Message {
        &mut self.images.message
    }

    /// Whether everything was taken.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.images.is_empty() && self.events.is_empty()
    }

    /// Drops everything that came from `peer`.
    pub(super) fn forget(&mut self, peer: PeerId) {
        if self.peer == peer {
            self.images = Images::NONE;
        }
        self.events.retain(|event| event.peer() != peer);
    }

    /// Orders the events from index `left` on before the others: the oldest event is last.
    #[inline(never)]
    pub(super) fn put_behind(&mut self, left: usize) {
        self.events[left..].reverse();
        self.events.rotate_left(left);
    }

    /// Opens the next frame if it is one image with the last one's layout, as most frames are.
    /// Returns whether it did. The last frame must be read to its end.
    #[inline(always)]
    fn open_repeated(&mut self, lanes: &Connections) -> bool {
        let Some(Event::Received { peer, frame }) = self.events.last_mut() else { return false };
        if !self.images.repeats_layout(frame, lanes.checks_bytes(*peer)) {
            return false;
        }
        let Some(Event::Received { peer, frame }) = self.events.pop() else { return false };
        self.peer = peer;
        self.images.resume(frame);
        true
    }
}

impl Endpoint {
    /// Returns the next arrival. After a bounded number of records there is none until the next
    /// poll.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Arrival> {
        if !self.inbox.message().is_empty() {
            return Some(Arrival::Message { peer: self.inbox.peer });
        }
        if self.inbox.takes_left == 0 || !self.has_arrivals() {
            return None;
        }
        self.open_message()
    }

    /// Opens the next message, or returns another arrival.
    #[inline(never)]
    fn open_message(&mut self) -> Option<Arrival> {
        loop {
            if self.inbox.message().is_over() && !self.open_repeated() {
                match self.open_next() {
                    Ok(None) => {}
                    Ok(Some(arrival)) => {
                        self.inbox.takes_left -= 1;
                        return Some(arrival);
                    }
                    Err(error) => self.refuse(&error),
                }
                if self.inbox.message().is_over() {
                    if self.has_arrivals() {
                        continue;
                    }
                    return None;
                }
            }
            if self.enter() {
                return Some(Arrival::Message { peer: self.inbox.peer });
            }
        }
    }

    #[inline(always)]
    fn open_repeated(&mut self) -> bool {
        self.inbox.images.is_empty()
            && self.lanes.closed.is_empty()
            && self.inbox.open_repeated(&self.lanes)
    }

    /// Opens the next image, of this frame or the next. Returns an arrival that is no message.
    #[inline(never)]
    fn open_next(&mut self) -> Result<Option<Arrival>> {
        let Endpoint { lanes, inbox } = self;
        if !inbox.images.is_empty() {
            inbox.images.open(&lanes.memory)?;
            return Ok(None);
        }
        if let Some((peer, error)) = lanes.closed.pop() {
            inbox.forget(peer);
            return Ok(Some(Arrival::Lost { peer, error }));
        }
        let Some(event) = inbox.events.pop() else { return Ok(None) };
        let peer = event.peer();
        inbox.peer = peer;
        if !matches!(event, Event::Connected { .. }) && lane(&mut lanes.lanes, peer).is_err() {
            return Ok(None); // this side has closed the lane
        }
        let checked = lanes.checks_bytes(peer);
        match event {
            Event::Connected { hello, .. } => return Ok(Some(self.greeted(peer, hello))),
            Event::Received { frame, .. } => inbox.images.begin(frame, checked, &lanes.memory)?,
            Event::Lent { frame, values, .. } => {
                let message = decode_lent(frame, values, checked, &lanes.memory)?;
                if !matches!(message.kind(), Kind::Request | Kind::Reply) {
                    return Err(Error::Unasked { peer, what: "a loan" });
                }
                inbox.images.put(message);
            }
            Event::Written { key, memory, at, len, .. } => {
                return self.written(peer, key, memory, at, len);
            }
            Event::Lost { error, .. } => {
                lanes.lanes[peer.0 as usize] = None;
                lanes.lost.push(peer);
                lanes.has_chores = true;
                return Ok(Some(Arrival::Lost { peer, error }));
            }
        }
        Ok(None)
    }

    /// Handles a peer's write of `len` bytes at `at` into offered memory: a long message, or the
    /// answer to a request.
    fn written(
        &mut self,
        peer: PeerId,
        key: u64,
        memory: Buffer,
        at: usize,
        len: usize,
    ) -> Result<Option<Arrival>> {
        let lanes = &mut self.lanes;
        let open = lane(&mut lanes.lanes, peer)?;
        if open.landings.use_up(key) {
            self.inbox.images.put(lanes.pick_up(peer, memory, at, len)?);
            return Ok(None);
        }
        let Some(timestamp) = open.places.remove(key) else {
            return Err(Error::Unasked { peer, what: "a write" });
        };
        if !open.answered(1) {
            return Err(Error::Unasked { peer, what: "an answer" });
        }
        lanes.counted.messages_received += 1;
        Ok(Some(Arrival::Placed { peer, timestamp, memory, len }))
    }

    /// Opens the next records of the message, as many as may be taken, and records them in the
    /// ledger of their lane. Returns whether they are for the caller: notices between endpoints are
    /// handled here, and the lane of a message that no honest peer sends is closed.
    #[inline(always)]
    fn enter(&mut self) -> bool {
        let Endpoint { lanes, inbox } = self;
        let Ok(open) = lane(&mut lanes.lanes, inbox.peer) else {
            inbox.images = Images::NONE; // the lane was closed meanwhile
            return false;
        };
        let message = &mut inbox.images.message;
        let count = match message.open(inbox.takes_left) {
            Ok(count) => count,
            Err(error) => {
                self.refuse(&error.into());
                return false;
            }
        };
        let kind = message.kind();
        let is_request = kind == Kind::Request;
        if !is_request && kind != Kind::Reply && kind != Kind::Failure {
            self.take_notice();
            return false;
        }
        let are_due = match is_request {
            true => open.requested(count, lanes.credits),
            false => open.answered(count),
        };
        if !are_due {
            self.refuse_undue(is_request);
            return false;
        }
        inbox.takes_left -= count;
        lanes.counted.messages_received += count as u64;
        if !is_request {
            if !open.places.is_empty() {
                message.timestamps().for_each(|timestamp| open.places.answered(timestamp));
            }
            if message.has_offers() {
                return self.take_landings();
            }
        }
        true
    }

    /// Handles a notice between endpoints.
    #[inline(never)]
    fn take_notice(&mut self) {
        let Endpoint { lanes, inbox } = self;
        let peer = inbox.peer;
        let Some(notice) = inbox.message_mut().pop() else { return };
        let taken = match notice.kind() {
            Kind::Want => lanes.grant_wanted(peer, &notice),
            _ => lanes.take_grant(peer, notice.offers().next()),
        };
        if let Err(error) = taken {
            self.refuse(&error);
        }
    }

    /// Records the landings that answers grant, and sends what waited for them. Returns whether the
    /// answers are sound.
    #[inline(never)]
    fn take_landings(&mut self) -> bool {
        let Endpoint { lanes, inbox } = self;
        let peer = inbox.peer;
        let mut landings = inbox.message().offers();
        match landings.try_for_each(|landing| lanes.take_grant(peer, Some(landing))) {
            Ok(()) => true,
            Err(error) => {
                drop(landings);
                self.refuse(&error);
                false
            }
        }
    }

    /// Closes the lane of a request without a credit, or of an answer without a request.
    #[cold]
    fn refuse_undue(&mut self, is_request: bool) {
        let peer = self.inbox.peer;
        let error = match is_request {
            true => Error::QueueFull { peer, depth: self.lanes.credits.into() },
            false => Error::Unasked { peer, what: "an answer" },
        };
        self.refuse(&error);
    }

    /// Closes the lane of a frame that no honest peer sends.
    #[cold]
    fn refuse(&mut self, error: &Error) {
        let peer = self.inbox.peer;
        self.inbox.images = Images::NONE;
        self.lanes.drop_lane(peer, error);
    }

    fn greeted(&mut self, peer: PeerId, hello: Hello) -> Arrival {
        let frame_bytes = self.lanes.limits.frame_bytes;
        let credits = self.lanes.credits;
        let rules = self.lanes.rules(peer);
        let lane = self.lanes.enter(peer);
        lane.rules = rules;
        if lane.name.is_empty() {
            lane.name = format!("node {}, which called", hello.node);
        }
        let admitted = hello.credits.get().min(VanConfig::CREDITS_MAX);
        let frame_bytes = frame_bytes.min(hello.frame_bytes.get() as usize);
        let has_early = lane.greeted(admitted, frame_bytes);
        // An honest peer has one landing for each outstanding message, and one more while landings
        // of the wrong size are being returned.
        let landings_max = 4 * (usize::from(credits) + usize::from(lane.credits_max));
        lane.grants.count_max = landings_max;
        lane.landings.count_max = landings_max;
        if has_early && let Err(error) = self.lanes.flush(peer) {
            self.lanes.drop_lane(peer, &error);
        }
        Arrival::Connected { peer, hello }
    }
}
