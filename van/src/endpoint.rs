//! An endpoint sends and receives messages over a transport. It decides how each message travels
//! and refuses one when its lane is full.
//!
//! * A **request** spends one credit of its lane, and its reply returns the credit. A lane
//!   therefore holds a bounded number of requests, and neither side needs memory for more.
//! * A message whose image fits into one frame goes **eagerly**. Short messages share a frame,
//!   which leaves at the next poll or wait.
//! * A longer message goes by **rendezvous**: the sender writes its image into a *landing*, memory
//!   that the receiver granted for it. No other message announces it. The first long message asks
//!   for a landing ([`Kind::Want`](crate::wire::Kind::Want)). Each later answer grants a landing
//!   for one that was used, so a steady stream of long messages asks for nothing.
//! * A reply that holds only values can be **placed**: the sender writes it straight into memory
//!   that the request offered. The offer identifies the request, so nothing else is sent.
//!
//! Messages to a peer stay in order, whichever way they travel. On a lane of [`Endpoint::open`] one
//! request may be posted before the peer has answered; it waits in the outbox.
//!
//! An endpoint has two halves, so that a caller can answer one message while it reads the next:
//! [`Lanes`] sends, and the [`Inbox`] holds what arrived.
//!
//! `endpoint/send.rs` picks the way of a message. `endpoint/packing.rs` packs short messages into
//! frames. `endpoint/rendezvous.rs` sends the long ones. `endpoint/receive.rs` reads what arrives.
//! `endpoint/connections.rs` has the lanes, `endpoint/connection.rs` the state of one, and
//! `endpoint/landing.rs` the ledger of landings.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

mod connection;
mod connections;
mod landing;
mod packing;
mod receive;
mod rendezvous;
mod send;

use std::time::Duration;

pub use self::connections::Connections;
pub use self::receive::Inbox;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::message::Message;
use crate::metrics::Counters;
use crate::transport::{PeerId, Transport};
use crate::wire::Hello;

/// Upper bound of messages taken between two polls. The answers to them then leave while this side
/// handles the next ones, so both sides of a lane stay busy.
const TAKES_MAX: usize = 64;

/// Lower bound while answers are outstanding. The side otherwise takes two thirds of the
/// outstanding answers. It can then send as many new requests while the other answers are in
/// flight. The price of a poll hardly depends on how much it brings, so each poll should bring
/// many.
const TAKES_WAITING: usize = 16;

/// One thing that a poll brought.
#[derive(Debug)]
pub enum Arrival {
    /// A connection is established.
    Connected {
        /// The new peer.
        peer: PeerId,
        /// The peer's hello.
        hello: Hello,
    },
    /// A request, a reply or a failure: the inbox holds it, and [`Endpoint::take`] returns this
    /// again until all of its records were passed.
    Message {
        /// The sender.
        peer: PeerId,
    },
    /// The answer to a request, which the peer wrote into the offered memory.
    Placed {
        /// The sender.
        peer: PeerId,
        /// Timestamp of the request.
        timestamp: u64,
        /// All of the memory that was offered.
        memory: Buffer,
        /// Number of bytes that the peer wrote. The rest of the memory keeps its old content.
        len: usize,
    },
    /// A peer is lost, with everything outstanding at it.
    Lost {
        /// The lost peer.
        peer: PeerId,
        /// The reason.
        error: Error,
    },
}

impl Arrival {
    /// The peer that this arrival concerns.
    #[inline]
    pub fn peer(&self) -> PeerId {
        match self {
            Arrival::Connected { peer, .. }
            | Arrival::Message { peer }
            | Arrival::Placed { peer, .. }
            | Arrival::Lost { peer, .. } => *peer,
        }
    }
}

/// A thread's connections to all its peers: what it sends, and what arrived.
pub struct Endpoint {
    /// The sending half.
    pub lanes: Connections,
    /// The receiving half.
    pub inbox: Inbox,
}

impl Endpoint {
    /// Creates the endpoint of node `node` over `transport`. Each peer may have `credits` requests
    /// outstanding here.
    pub fn new(transport: Box<dyn Transport>, node: u32, credits: u16) -> Self {
        Endpoint { lanes: Connections::new(transport, node, credits), inbox: Inbox::new() }
    }

    /// Starts a connection; [`Arrival::Connected`] or [`Arrival::Lost`] follows.
    ///
    /// # Errors
    /// As [`Transport::connect`].
    pub fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.forget_closed();
        self.lanes.connect(address)
    }

    /// As [`Endpoint::connect`]; one request may be posted already. It is sent when the connection
    /// is established, before any other, and is lost with a connection that cannot be.
    ///
    /// # Errors
    /// As [`Transport::connect`].
    pub fn open(&mut self, address: &str) -> Result<PeerId> {
        let peer = self.connect(address)?;
        self.lanes.admit_early(peer);
        Ok(peer)
    }

    /// Closes a connection and forgets everything outstanding on it.
    pub fn disconnect(&mut self, peer: PeerId) {
        self.lanes.disconnect(peer);
        self.inbox.forget(peer);
    }

    /// Makes progress without blocking. Returns whether [`Endpoint::take`] has anything to return.
    ///
    /// Callers take until nothing is left: taking also reads the notices between endpoints, for
    /// which a peer may wait.
    ///
    /// # Errors
    /// Only if the van itself fails.
    #[inline(always)] // most polls of a thread find nothing
    pub fn poll(&mut self) -> Result<bool> {
        if self.lanes.has_chores {
            self.do_chores();
        }
        self.lanes.settle();
        let left = self.inbox.events.len();
        let polled = self.lanes.transport.poll(&mut self.inbox.events);
        if self.inbox.events.len() > left.max(1) {
            self.inbox.put_behind(left);
        }
        let arrived = self.has_arrivals();
        if arrived {
            self.inbox.takes_left = self.takes();
        }
        polled.map(|()| arrived)
    }

    /// Does what is seldom due before a poll.
    #[cold]
    fn do_chores(&mut self) {
        self.lanes.do_chores();
        self.forget_closed();
    }

    /// Drops what came from peers whose lanes this side has closed: the transport may give their
    /// numbers to other peers soon.
    fn forget_closed(&mut self) {
        for (peer, _) in &self.lanes.closed {
            self.inbox.forget(*peer);
        }
    }

    /// Number of messages to take before the next poll.
    #[inline]
    fn takes(&self) -> usize {
        let Counters { messages_sent, messages_received, .. } = self.lanes.counted;
        match messages_sent.saturating_sub(messages_received) {
            0 => TAKES_MAX,
            waited_for => TAKES_WAITING.max(waited_for as usize * 2 / 3),
        }
    }

    /// Sleeps until a poll may find something or `timeout` has passed.
    ///
    /// # Errors
    /// As [`Transport::wait`].
    #[inline]
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.lanes.close_frames();
        if self.has_arrivals() { Ok(()) } else { self.lanes.transport.wait(timeout) }
    }

    /// Whether there is anything to take.
    #[inline]
    fn has_arrivals(&self) -> bool {
        !self.inbox.is_empty() || !self.lanes.closed.is_empty()
    }

    /// Removes the next record of the message that arrived last, as a message of its own.
    #[inline]
    pub fn pop(&mut self) -> Option<Message> {
        self.inbox.message_mut().pop()
    }
}
