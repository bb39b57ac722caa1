//! Incoming frames, which the endpoint reads as the caller takes them, batch by batch or message by
//! message. Answers return credits and bring landings.
//!
//! Path: the way back, transport > codec > **endpoint** > server or worker.

use std::ops::ControlFlow::{self, Break, Continue};

use super::lane::lane;
use super::{Arrival, Endpoint};
use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Shared};
use crate::message::Message;
use crate::transport::{Event, PeerId};
use crate::wire::{Hello, Images, Kind, Messages, Record, decode_lent};

/// The unread part of a frame.
pub(super) struct Reading {
    peer: PeerId,
    images: Images,
}

impl Reading {
    pub(super) const NOTHING: Reading = Reading { peer: PeerId(0), images: Images::NONE };

    /// Drops the frame if it is from `peer`.
    pub(super) fn forget(&mut self, peer: PeerId) {
        if self.peer == peer {
            *self = Reading::NOTHING;
        }
    }
}

/// What [`Endpoint::take_batch`] found next.
#[derive(Debug)]
pub enum Next {
    /// A batch of messages from this peer, which [`Endpoint::batch`] returns.
    Batch(PeerId),
    /// Anything else.
    Arrival(Arrival),
}

impl Endpoint {
    /// Returns the next arrival. After a bounded number of messages there is none until the next
    /// poll.
    #[inline]
    pub fn take(&mut self) -> Option<Arrival> {
        match self.take_up_to(1)? {
            Next::Arrival(arrival) => Some(arrival),
            Next::Batch(_) => self.pop(),
        }
    }

    /// Removes the first message of the [batch](Endpoint::batch) and returns it alone.
    #[inline(never)]
    pub fn pop(&mut self) -> Option<Arrival> {
        let Reading { peer, ref mut images } = self.reading;
        let batch = &mut images.batch.rest;
        match batch.first() {
            Some(Record { timestamp, .. }) if batch.are_acks() => {
                batch.advance();
                Some(Arrival::Answered { peer, timestamp })
            }
            _ => batch.message().map(|mut message| {
                if message.kind() == Kind::Reply {
                    message.take_offer(); // a landing, which the ledger has
                }
                Arrival::Message { peer, message }
            }),
        }
    }

    /// As [`Endpoint::take`], but the messages of a batch are taken together, and
    /// [`Endpoint::batch`] returns them. The batch stays next until the caller has advanced past
    /// all of its messages.
    #[inline]
    pub fn take_batch(&mut self) -> Option<Next> {
        self.take_up_to(usize::MAX)
    }

    /// The rest of the batch that was taken last. It becomes empty when its lane is closed.
    #[inline(always)]
    pub fn batch(&self) -> &Messages {
        &self.reading.images.batch.rest
    }

    /// The same batch, to advance through its messages.
    #[inline(always)]
    pub fn batch_mut(&mut self) -> &mut Messages {
        &mut self.reading.images.batch.rest
    }

    #[inline(always)]
    fn take_up_to(&mut self, count_max: usize) -> Option<Next> {
        if !self.reading.images.batch.rest.is_empty() {
            return Some(Next::Batch(self.reading.peer));
        }
        if self.takes_left == 0 || !self.has_arrivals() {
            return None;
        }
        self.open_batch(count_max)
    }

    #[inline(never)]
    fn open_batch(&mut self, count_max: usize) -> Option<Next> {
        while self.reading.images.batch.rest.is_empty() {
            if self.reading.images.batch.is_over() && !self.open_repeated() {
                match self.next_image() {
                    Continue(()) => continue,
                    Break(arrival) => {
                        self.takes_left -= 1;
                        return arrival.map(Next::Arrival);
                    }
                }
            }
            match self.reading.images.batch.open(count_max.min(self.takes_left)) {
                Ok(count) => self.enter_batch(count),
                Err(error) => self.refuse(error.into()),
            }
        }
        Some(Next::Batch(self.reading.peer))
    }

    /// Records the opened messages in the ledger of their lane.
    #[inline(always)]
    fn enter_batch(&mut self, count: usize) {
        let Reading { peer, ref images } = self.reading;
        let Ok(open) = lane(&mut self.lanes, peer) else {
            self.reading = Reading::NOTHING; // the lane was closed meanwhile
            return;
        };
        let batch = &images.batch.rest;
        let is_request = batch.kind() == Kind::Request;
        let are_due = match is_request {
            true => open.requested(count, self.credits),
            false => open.answered(count),
        };
        if !are_due {
            return self.refuse_undue(is_request);
        }
        if !is_request && !open.places.is_empty() {
            batch.timestamps().for_each(|timestamp| open.places.answered(timestamp));
        }
        self.takes_left -= count;
        self.counted.messages_received += count as u64;
        if !is_request && batch.have_offers() {
            self.take_landings();
        }
    }

    /// Records the landings that the answers of a batch grant, and sends what waited for them.
    #[inline(never)]
    fn take_landings(&mut self) {
        let Reading { peer, ref images } = self.reading;
        let Ok(open) = lane(&mut self.lanes, peer) else { return };
        let are_due = images.batch.rest.offers().all(|landing| open.grants.enter(landing));
        let unasked = || Error::Unasked { peer, what: "a landing" };
        let entered = if are_due { self.flush(peer) } else { Err(unasked()) };
        if let Err(error) = entered {
            self.refuse(error);
        }
    }

    /// Whether there is anything to take.
    #[inline]
    pub(super) fn has_arrivals(&self) -> bool {
        !self.reading.images.is_empty() || !self.events.is_empty() || !self.closed.is_empty()
    }

    /// Opens the next frame if it is one image with the last one's layout, as most frames are. The
    /// last frame must be read to its end.
    #[inline(always)]
    fn open_repeated(&mut self) -> bool {
        let Reading { peer: sender, images } = &mut self.reading;
        if !images.is_empty() || !self.closed.is_empty() {
            return false;
        }
        let Some(Event::Received { frame, .. }) = self.events.last_mut() else { return false };
        if !images.repeats_layout(frame, self.limits.checks_bytes) {
            return false;
        }
        let Some(Event::Received { peer, frame }) = self.events.pop() else { return false };
        *sender = peer;
        images.batch.resume(frame.share());
        true
    }

    /// Opens the next image, of this frame or the next. An image that is no batch breaks with its
    /// own arrival. Without further images it breaks with none.
    #[inline(never)]
    fn next_image(&mut self) -> ControlFlow<Option<Arrival>> {
        let Reading { peer: sender, images } = &mut self.reading;
        let opened = if !images.is_empty() {
            images.open(&self.memory)
        } else if let Some((peer, error)) = self.closed.pop() {
            return Break(Some(Arrival::Lost { peer, error }));
        } else {
            match self.events.pop() {
                Some(Event::Received { peer, frame }) => {
                    *sender = peer;
                    images.begin(frame, self.limits.checks_bytes, &self.memory)
                }
                Some(event) => return self.take_event(event),
                None => return Break(None),
            }
        };
        match opened {
            Ok(None) => Continue(()),
            Ok(Some(message)) => self.take_message(message),
            Err(error) => {
                self.refuse(error);
                Continue(())
            }
        }
    }

    #[inline(never)]
    fn take_event(&mut self, event: Event) -> ControlFlow<Option<Arrival>> {
        let peer = event.peer();
        match self.dispatch(event) {
            Ok(None) => Continue(()),
            Ok(arrival) => Break(arrival),
            Err(error) => {
                self.drop_lane(peer, &error);
                Continue(())
            }
        }
    }

    /// Handles a message with an image of its own: the caller's, or a notice between endpoints.
    #[inline(never)]
    fn take_message(&mut self, message: Message) -> ControlFlow<Option<Arrival>> {
        let peer = self.reading.peer;
        let taken = match message.kind() {
            Kind::Want => self.grant_wanted(peer, &message),
            Kind::Grant => self.take_grant(peer, message.offer()),
            _ => match self.admit(peer, message) {
                Ok(arrival) => return Break(Some(arrival)),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = taken {
            self.refuse(error);
        }
        Continue(())
    }

    /// Closes the lane of a frame that no honest peer sends.
    #[cold]
    fn refuse(&mut self, error: Error) {
        let peer = self.reading.peer;
        self.reading = Reading::NOTHING;
        self.drop_lane(peer, &error);
    }

    #[cold]
    fn refuse_undue(&mut self, is_request: bool) {
        let error = self.undue(self.reading.peer, is_request);
        self.refuse(error);
    }

    /// The error of a request without a credit, or of an answer without a request.
    #[cold]
    fn undue(&self, peer: PeerId, is_request: bool) -> Error {
        match is_request {
            true => Error::QueueFull { peer, depth: self.credits.into() },
            false => Error::Unasked { peer, what: "an answer" },
        }
    }

    #[inline(never)]
    fn dispatch(&mut self, event: Event) -> Result<Option<Arrival>> {
        if !matches!(event, Event::Connected { .. }) && lane(&mut self.lanes, event.peer()).is_err()
        {
            return Ok(None); // this side has closed the lane
        }
        match event {
            Event::Connected { peer, hello } => Ok(Some(self.greeted(peer, hello))),
            Event::Received { .. } => Ok(None), // read by `take`
            Event::Lent { peer, frame, values } => self.lent(peer, frame, values).map(Some),
            Event::Written { peer, key, memory, at, len } => {
                self.written(peer, key, memory, at, len).map(Some)
            }
            Event::Lost { peer, error } => {
                self.lanes[peer.0 as usize] = None;
                self.lost.push(peer);
                Ok(Some(Arrival::Lost { peer, error }))
            }
        }
    }

    fn greeted(&mut self, peer: PeerId, hello: Hello) -> Arrival {
        let frame_bytes = self.limits.frame_bytes;
        let credits = self.credits;
        let lane = self.enter(peer);
        if lane.name.is_empty() {
            lane.name = format!("node {}, which called", hello.node);
        }
        let admitted = hello.credits.get().min(VanConfig::CREDITS_MAX);
        lane.credits = admitted;
        lane.credits_max = admitted;
        // An honest peer has one landing for each outstanding message, and one more while landings
        // of the wrong size are being returned.
        let landings_max = 4 * (usize::from(credits) + usize::from(lane.credits_max));
        lane.grants.count_max = landings_max;
        lane.landings.count_max = landings_max;
        lane.frame_bytes = frame_bytes.min(hello.frame_bytes.get() as usize);
        Arrival::Connected { peer, hello }
    }

    /// Handles a message whose values its sender has lent.
    fn lent(&mut self, peer: PeerId, frame: Buffer, values: Shared) -> Result<Arrival> {
        let message = decode_lent(frame, values, self.limits.checks_bytes, &self.memory)?;
        if !matches!(message.kind(), Kind::Request | Kind::Reply) {
            return Err(Error::Unasked { peer, what: "a loan" });
        }
        self.admit(peer, message)
    }

    /// Handles a peer's write of `len` bytes at `at` into offered memory.
    fn written(
        &mut self,
        peer: PeerId,
        key: u64,
        memory: Buffer,
        at: usize,
        len: usize,
    ) -> Result<Arrival> {
        let open = lane(&mut self.lanes, peer)?;
        if open.landings.use_up(key) {
            let message = self.pick_up(peer, memory, at, len)?;
            return self.admit(peer, message);
        }
        let Some(timestamp) = open.places.remove(key) else {
            return Err(Error::Unasked { peer, what: "a write" });
        };
        if !open.answered(1) {
            return Err(self.undue(peer, false));
        }
        self.counted.messages_received += 1;
        Ok(Arrival::Placed { peer, timestamp, memory, len })
    }

    /// Records an arrived request in the ledger of the lane. An answer returns a credit, and may
    /// grant a landing.
    fn admit(&mut self, peer: PeerId, message: Message) -> Result<Arrival> {
        let mut message = message;
        let open = lane(&mut self.lanes, peer)?;
        let is_request = message.kind() == Kind::Request;
        let is_due = match is_request {
            true => open.requested(1, self.credits),
            false => open.answered(1),
        };
        if !is_due {
            return Err(self.undue(peer, is_request));
        }
        if !is_request && !open.places.is_empty() {
            open.places.answered(message.timestamp());
        }
        if !is_request && let Some(landing) = message.take_offer() {
            self.take_grant(peer, Some(landing))?;
        }
        self.counted.messages_received += 1;
        if message.kind() == Kind::Reply && message.is_ack() {
            return Ok(Arrival::Answered { peer, timestamp: message.timestamp() });
        }
        Ok(Arrival::Message { peer, message })
    }
}
