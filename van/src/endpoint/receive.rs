//! What comes: frames are read as the caller takes them, run by run or message by message; answers give back credits and landings.
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

/// A frame, as far as it was not read yet.
pub(super) struct Reading {
    peer: PeerId,
    images: Images,
}

impl Reading {
    pub(super) const NOTHING: Reading = Reading { peer: PeerId(0), images: Images::NONE };

    /// Ends what came from a peer.
    pub(super) fn forget(&mut self, peer: PeerId) {
        if self.peer == peer {
            *self = Reading::NOTHING;
        }
    }
}

/// What came next.
#[derive(Debug)]
pub enum Next {
    /// Messages in a row that are alike, from this peer: [`Endpoint::run`].
    Batch(PeerId),
    /// Anything else.
    Arrival(Arrival),
}

impl Endpoint {
    /// The next thing that a poll brought. After many of them there is none until the next poll.
    #[inline]
    pub fn take(&mut self) -> Option<Arrival> {
        match self.take_up_to(1)? {
            Next::Arrival(arrival) => Some(arrival),
            Next::Batch(_) => self.pop(),
        }
    }

    /// The first message of the [run](Endpoint::run), by itself.
    #[inline(never)]
    pub fn pop(&mut self) -> Option<Arrival> {
        let Reading { peer, ref mut images } = self.reading;
        let run = &mut images.run.left;
        match run.first() {
            Some(Record { timestamp, .. }) if run.are_acks() => {
                run.advance();
                Some(Arrival::Answered { peer, timestamp })
            }
            _ => run.message().map(|mut message| {
                if message.kind() == Kind::Reply {
                    message.take_offer(); // a landing, which has been entered
                }
                Arrival::Message { peer, message }
            }),
        }
    }

    /// As [`Endpoint::take`], but messages that came in a row and are alike are taken together, and read by [`Endpoint::run`]. They
    /// are what comes next until they are passed.
    #[inline]
    pub fn take_batch(&mut self) -> Option<Next> {
        self.take_up_to(usize::MAX)
    }

    /// The run that was taken last, as far as it has not been passed. It ends when its lane is closed.
    #[inline(always)]
    pub fn batch(&self) -> &Messages {
        &self.reading.images.run.left
    }

    /// Likewise, to pass its messages.
    #[inline(always)]
    pub fn batch_mut(&mut self) -> &mut Messages {
        &mut self.reading.images.run.left
    }

    #[inline(always)]
    fn take_up_to(&mut self, most: usize) -> Option<Next> {
        if !self.reading.images.run.left.is_empty() {
            return Some(Next::Batch(self.reading.peer));
        }
        if self.takes_left == 0 || !self.has_arrivals() {
            return None;
        }
        self.open_batch(most)
    }

    #[inline(never)]
    fn open_batch(&mut self, most: usize) -> Option<Next> {
        while self.reading.images.run.left.is_empty() {
            if self.reading.images.run.is_over() && !self.opens_like_the_last() {
                match self.next_image() {
                    Continue(()) => continue,
                    Break(arrival) => {
                        self.takes_left -= 1;
                        return arrival.map(Next::Arrival);
                    }
                }
            }
            match self.reading.images.run.open(most.min(self.takes_left)) {
                Ok(count) => self.enter_batch(count),
                Err(error) => self.refuse(error.into()),
            }
        }
        Some(Next::Batch(self.reading.peer))
    }

    /// Enters messages that were opened in the ledger of their lane.
    #[inline(always)]
    fn enter_batch(&mut self, count: usize) {
        let Reading { peer, ref images } = self.reading;
        let Ok(open) = lane(&mut self.lanes, peer) else {
            self.reading = Reading::NOTHING; // closed meanwhile
            return;
        };
        let run = &images.run.left;
        let is_request = run.kind() == Kind::Request;
        let are_due = match is_request {
            true => open.requested(count, self.credits),
            false => open.answered(count),
        };
        if !are_due {
            return self.refuse_undue(is_request);
        }
        if !is_request && !open.places.is_empty() {
            run.timestamps().for_each(|timestamp| open.places.answered(timestamp));
        }
        self.takes_left -= count;
        self.counted.messages_received += count as u64;
        if !is_request && run.have_offers() {
            self.take_landings();
        }
    }

    /// Enters the landings that the answers of a run bring, and sends what waited for them.
    #[inline(never)]
    fn take_landings(&mut self) {
        let Reading { peer, ref images } = self.reading;
        let Ok(open) = lane(&mut self.lanes, peer) else { return };
        let are_due = images.run.left.offers().all(|landing| open.grants.enter(landing));
        let unasked = || Error::Unasked { peer, what: "a landing" };
        let entered = if are_due { self.flush(peer) } else { Err(unasked()) };
        if let Err(error) = entered {
            self.refuse(error);
        }
    }

    /// Whether there is something to take.
    #[inline]
    pub(super) fn has_arrivals(&self) -> bool {
        !self.reading.images.is_empty() || !self.events.is_empty() || !self.closed.is_empty()
    }

    /// Opens the next frame, if it is like the last one and that was read to its end: most are.
    #[inline(always)]
    fn opens_like_the_last(&mut self) -> bool {
        let Reading { peer: from, images } = &mut self.reading;
        if !images.is_empty() || !self.closed.is_empty() {
            return false;
        }
        let Some(Event::Received { frame, .. }) = self.events.last_mut() else { return false };
        if !images.is_like_the_last(frame, self.limits.checks_bytes) {
            return false;
        }
        let Some(Event::Received { peer, frame }) = self.events.pop() else { return false };
        *from = peer;
        images.run.resume(frame.share());
        true
    }

    /// Opens the next image, of this frame or the next. What is no run arrives by itself; nothing does when there is no more.
    #[inline(never)]
    fn next_image(&mut self) -> ControlFlow<Option<Arrival>> {
        let Reading { peer: from, images } = &mut self.reading;
        let opened = if !images.is_empty() {
            images.open(&self.memory)
        } else if let Some((peer, error)) = self.closed.pop() {
            return Break(Some(Arrival::Lost { peer, error }));
        } else {
            match self.events.pop() {
                Some(Event::Received { peer, frame }) => {
                    *from = peer;
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

    /// Takes in a message that is an image by itself, unless it is the endpoint's own.
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

    /// Drops the lane of a frame with something that no honest peer sends.
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

    /// What is wrong with a request for which the peer had no credit, or an answer that nobody waits for.
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
            return Ok(None); // closed by this side, and reported then or closed on purpose
        }
        match event {
            Event::Connected { peer, hello } => Ok(Some(self.greeted(peer, hello))),
            Event::Received { .. } => Ok(None), // read by `take`
            Event::Lent { peer, frame, values } => self.lent(peer, frame, values).map(Some),
            Event::Written { peer, key, memory, at, len } => {
                self.written(peer, key, memory, (at, len)).map(Some)
            }
            Event::Lost { peer, error } => {
                self.lanes[peer.0 as usize] = None;
                self.lost.push(peer);
                Ok(Some(Arrival::Lost { peer, error }))
            }
        }
    }

    fn greeted(&mut self, peer: PeerId, hello: Hello) -> Arrival {
        let (limit, credits) = (self.limits.frame_bytes, self.credits);
        let lane = self.enter(peer);
        if lane.name.is_empty() {
            lane.name = format!("node {}, which called", hello.node);
        }
        let admitted = hello.credits.get().min(VanConfig::CREDITS_MAX);
        (lane.credits, lane.credits_max) = (admitted, admitted);
        // An honest peer has one landing for each message under way, and one more while those of the wrong size are
        // on their way back.
        let landings_max = 4 * (usize::from(credits) + usize::from(lane.credits_max));
        lane.grants.count_max = landings_max;
        lane.landings.count_max = landings_max;
        lane.frame_bytes = limit.min(hello.frame_bytes.get() as usize);
        Arrival::Connected { peer, hello }
    }

    /// Takes in a message whose values its sender has lent.
    fn lent(&mut self, peer: PeerId, frame: Buffer, values: Shared) -> Result<Arrival> {
        let message = decode_lent(frame, values, self.limits.checks_bytes, &self.memory)?;
        if !matches!(message.kind(), Kind::Request | Kind::Reply) {
            return Err(Error::Unasked { peer, what: "a loan" });
        }
        self.admit(peer, message)
    }

    /// Takes in what a peer wrote into memory that was offered to it.
    fn written(
        &mut self,
        peer: PeerId,
        key: u64,
        memory: Buffer,
        (at, len): (usize, usize),
    ) -> Result<Arrival> {
        let open = lane(&mut self.lanes, peer)?;
        if open.landings.use_up(key) {
            let message = self.pick_up(peer, memory, (at, len))?;
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

    /// Enters a request that came in the lane's ledger, or what an answer gives back: a credit, and perhaps a landing.
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
