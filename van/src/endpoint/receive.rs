//! What comes: frames are read message by message as the caller takes them, answers give back credits and landings.
//!
//! Path: the way back, transport > codec > **endpoint** > server or worker.

use super::lane::lane;
use super::{Arrival, Endpoint};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Shared};
use crate::message::Message;
use crate::transport::{Event, PeerId};
use crate::wire::{Entry, Hello, Images, Kind, decode_lent};

/// A frame, as far as it was not read yet.
pub(super) struct Reading {
    peer: PeerId,
    images: Images,
}

impl Endpoint {
    /// The next thing that a poll brought. After many of them there is none until the next poll.
    pub fn take(&mut self) -> Option<Arrival> {
        self.takes_left = self.takes_left.checked_sub(1)?;
        loop {
            while self.reading.is_some() {
                if let Some(arrival) = self.read() {
                    return Some(arrival);
                }
            }
            if let Some((peer, error)) = self.closed.pop() {
                return Some(Arrival::Lost { peer, error });
            }
            let event = self.events.pop()?;
            if let Event::Received { peer, frame } = event {
                self.reading = Some(Reading { peer, images: self.images(frame) });
                continue;
            }
            let peer = event.peer();
            match self.sort_out(event) {
                Ok(None) => {}
                Ok(arrival) => return arrival,
                Err(error) => self.drop_lane(peer, &error),
            }
        }
    }

    /// Whether there is something to take.
    pub(super) fn has_arrivals(&self) -> bool {
        self.reading.is_some() || !self.events.is_empty() || !self.closed.is_empty()
    }

    fn images(&self, frame: Buffer) -> Images {
        if self.limits.checks_bytes {
            return Images::checked_by_carrier(frame);
        }
        Images::new(frame)
    }

    #[inline(never)]
    fn sort_out(&mut self, event: Event) -> Result<Option<Arrival>> {
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
        (lane.credits, lane.credits_max) = (hello.credits.get(), hello.credits.get());
        // An honest peer has one landing for each message under way, and one more while those of the wrong size are
        // on their way back.
        let landings_max = 4 * (usize::from(credits) + usize::from(lane.credits_max));
        lane.grants.count_max = landings_max;
        lane.landings.count_max = landings_max;
        lane.frame_bytes = limit.min(hello.frame_bytes.get() as usize);
        Arrival::Connected { peer, hello }
    }

    /// Reads the next message of a frame, unless it is the endpoint's own, or no message.
    #[inline(always)]
    fn read(&mut self) -> Option<Arrival> {
        let Reading { peer, images } = self.reading.as_mut()?;
        let peer = *peer;
        let Ok(open) = lane(&mut self.lanes, peer) else {
            self.reading = None; // closed meanwhile
            return None;
        };
        let entry = images.next(&self.memory);
        if images.is_empty() {
            self.reading = None;
        }
        let failed = match entry {
            Ok(Entry::Message(message)) if message.kind() == Kind::Request => {
                if open.unanswered < self.credits {
                    open.unanswered += 1;
                    self.counted.messages_received += 1;
                    return Some(Arrival::Message { peer, message });
                }
                Err(Error::QueueFull { peer, depth: self.credits.into() })
            }
            Ok(Entry::Answer(timestamp)) => match open.answered(peer, 1) {
                Ok(()) => {
                    open.places.answered(timestamp);
                    self.counted.messages_received += 1;
                    return Some(Arrival::Answered { peer, timestamp });
                }
                failed => failed,
            },
            Ok(Entry::Message(message)) => match message.kind() {
                Kind::Want => self.grant_wanted(peer, &message),
                Kind::Grant => self.take_grant(peer, message.offer()),
                _ => match self.admit(peer, message) {
                    Ok(arrival) => return Some(arrival),
                    Err(error) => Err(error),
                },
            },
            Err(error) => Err(error),
        };
        if let Err(error) = failed {
            self.reading = None;
            self.drop_lane(peer, &error);
        }
        None
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
        open.answered(peer, 1)?;
        self.counted.messages_received += 1;
        Ok(Arrival::Placed { peer, timestamp, memory, len })
    }

    /// Enters a request that came in the lane's ledger, or what an answer gives back: a credit, and perhaps a landing.
    fn admit(&mut self, peer: PeerId, message: Message) -> Result<Arrival> {
        let mut message = message;
        let open = lane(&mut self.lanes, peer)?;
        if message.kind() == Kind::Request {
            if open.unanswered == self.credits {
                return Err(Error::QueueFull { peer, depth: self.credits.into() });
            }
            open.unanswered += 1;
        } else {
            open.answered(peer, 1)?;
            open.places.answered(message.timestamp());
            if let Some(landing) = message.take_offer() {
                self.take_grant(peer, Some(landing))?;
            }
        }
        self.counted.messages_received += 1;
        if message.kind() == Kind::Reply && message.is_bare() {
            return Ok(Arrival::Answered { peer, timestamp: message.timestamp() });
        }
        Ok(Arrival::Message { peer, message })
    }
}
