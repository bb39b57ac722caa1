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
//! Messages to a peer stay in order, whichever way they travel.
//!
//! `endpoint/send.rs` picks the way of a message. `endpoint/packing.rs` packs short messages into
//! frames. `endpoint/rendezvous.rs` sends the long ones. `endpoint/receive.rs` reads what arrives.
//! `endpoint/lane.rs` holds the state of one peer, and `endpoint/landing.rs` the ledger of
//! landings.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

mod landing;
mod lane;
mod packing;
mod receive;
mod rendezvous;
mod send;

use std::time::Duration;

use self::lane::{Lane, lane};
pub use self::receive::Next;
use self::receive::Reading;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool};
use crate::message::Message;
use crate::metrics::Counters;
use crate::transport::{Clock, Event, Limits, PeerId, Transport};
use crate::wire::{Hello, Offer};

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
    /// A reply without keys and values: the request is done.
    Answered {
        /// The sender.
        peer: PeerId,
        /// Timestamp of the request.
        timestamp: u64,
    },
    /// A request, a failure, or a reply with content.
    Message {
        /// The sender.
        peer: PeerId,
        /// The message.
        message: Message,
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
            | Arrival::Answered { peer, .. }
            | Arrival::Message { peer, .. }
            | Arrival::Placed { peer, .. }
            | Arrival::Lost { peer, .. } => *peer,
        }
    }
}

/// The lanes of one thread to all its peers.
pub struct Endpoint {
    transport: Box<dyn Transport>,
    memory: Pool,
    limits: Limits,
    clock: Clock,
    node: u32,
    credits: u16,
    /// Indexed by peer number; `None` once the peer is gone.
    lanes: Vec<Option<Lane>>,
    /// Events of past polls that were not read yet, the oldest last.
    events: Vec<Event>,
    reading: Reading,
    /// Number of messages that may still be taken before the next poll.
    takes_left: usize,
    /// Whether a peer waits for a landing because memory was short.
    starved: bool,
    /// Lanes that had an open frame since the last poll.
    open: Vec<PeerId>,
    /// Lanes that this side closed and has not reported yet.
    closed: Vec<(PeerId, Error)>,
    /// Peers whose loss the last poll reported. Memory offered to them can be withdrawn until the
    /// next poll.
    lost: Vec<PeerId>,
    /// Counters of messages; the transport counts everything else.
    counted: Counters,
}

impl Endpoint {
    /// Creates the endpoint of node `node` over `transport`. Each peer may have `credits` requests
    /// outstanding here.
    pub fn new(transport: Box<dyn Transport>, node: u32, credits: u16) -> Self {
        let about = transport.about();
        let limits = about.limits;
        let memory = about.memory.clone();
        let clock = about.clock.clone();
        Endpoint {
            transport,
            memory,
            limits,
            clock,
            node,
            credits,
            lanes: Vec::new(),
            events: Vec::with_capacity(64),
            reading: Reading::NOTHING,
            takes_left: 0,
            starved: false,
            open: Vec::with_capacity(16),
            closed: Vec::new(),
            lost: Vec::new(),
            counted: Counters::default(),
        }
    }

    /// Name of the van.
    pub fn van(&self) -> &'static str {
        self.transport.about().name
    }

    /// Address to which peers connect.
    pub fn address(&self) -> &str {
        &self.transport.about().address
    }

    /// Id that this node writes into its messages.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Sets the id that the scheduler assigned.
    pub fn set_node(&mut self, node: u32) {
        self.node = node;
        self.lanes.iter_mut().flatten().for_each(|lane| lane.packer.forget());
    }

    /// Length of the longest image that fits into one frame, in bytes.
    #[inline]
    pub fn eager_bytes(&self) -> usize {
        self.limits.frame_bytes
    }

    /// Whether the van lends `bytes` bytes of values: the peer then reads them where they lie,
    /// without memory of its own for them. While too many bytes are on loan, the peer gets a copy.
    #[inline]
    pub fn lends(&self, bytes: usize) -> bool {
        bytes >= self.limits.lent_bytes_min
    }

    /// Memory in which messages are built and values land.
    #[inline]
    pub fn memory(&self) -> &Pool {
        &self.memory
    }

    /// The transport's clock.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Adds the time of a computation to the clock; see [`Clock::charge`].
    ///
    /// # Errors
    /// As [`Clock::charge`].
    pub fn charge(&mut self, work: Duration) -> Result<()> {
        self.clock.charge(work)
    }

    /// Counters of the transport and of the messages that this endpoint sent and received.
    pub fn counters(&self) -> Counters {
        let Counters { messages_sent, messages_received, message_bytes_copied, .. } = self.counted;
        Counters {
            messages_sent,
            messages_received,
            message_bytes_copied,
            ..self.transport.counters()
        }
    }

    /// Starts a connection; [`Arrival::Connected`] or [`Arrival::Lost`] follows.
    ///
    /// # Errors
    /// As [`Transport::connect`].
    pub fn connect(&mut self, address: &str) -> Result<PeerId> {
        let peer = self.transport.connect(address)?;
        self.enter(peer).name = address.to_owned();
        Ok(peer)
    }

    /// Closes a connection and forgets everything outstanding on it.
    pub fn disconnect(&mut self, peer: PeerId) {
        self.transport.disconnect(peer);
        if let Some(lane) = self.lanes.get_mut(peer.0 as usize) {
            *lane = None;
        }
        self.reading.forget(peer);
        // The transport may give the peer's number to another peer soon.
        self.events.retain(|event| event.peer() != peer);
        self.lost.retain(|lost| *lost != peer);
    }

    /// Number of requests that can be posted to `peer` now.
    #[inline]
    pub fn credits(&self, peer: PeerId) -> usize {
        self.lanes
            .get(peer.0 as usize)
            .and_then(Option::as_ref)
            .map_or(0, |lane| lane.credits.into())
    }

    /// Offers `into` to `peer` for the answer to the request that [`Endpoint::post`] posts with
    /// this offer.
    ///
    /// # Errors
    /// As [`Transport::offer`].
    pub fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.transport.offer(peer, into)
    }

    /// Withdraws offered memory and returns it.
    ///
    /// # Errors
    /// As [`Transport::withdraw`].
    pub fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        if let Ok(lane) = lane(&mut self.lanes, peer) {
            lane.places.remove(key);
        }
        self.transport.withdraw(peer, key)
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
        if self.starved {
            self.feed();
        }
        if !self.open.is_empty() {
            self.close_frames();
        }
        if !self.lost.is_empty() {
            self.forget_lost();
        }
        let left = self.events.len();
        let polled = self.transport.poll(&mut self.events);
        if self.events.len() > left.max(1) {
            self.put_behind(left);
        }
        let arrived = self.has_arrivals();
        if arrived {
            self.takes_left = self.takes();
        }
        polled.map(|()| arrived)
    }

    /// Makes the transport forget the peers whose loss was reported.
    #[cold]
    fn forget_lost(&mut self) {
        for peer in std::mem::take(&mut self.lost) {
            self.transport.disconnect(peer);
        }
    }

    /// Orders the events from index `left` on before the others: the oldest event is last.
    #[inline(never)]
    fn put_behind(&mut self, left: usize) {
        self.events[left..].reverse();
        self.events.rotate_left(left);
    }

    /// Number of messages to take before the next poll.
    #[inline]
    fn takes(&self) -> usize {
        let Counters { messages_sent, messages_received, .. } = self.counted;
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
        if !self.open.is_empty() {
            self.close_frames();
        }
        if self.has_arrivals() { Ok(()) } else { self.transport.wait(timeout) }
    }

    fn enter(&mut self, peer: PeerId) -> &mut Lane {
        let index = peer.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index].get_or_insert_default()
    }

    /// Closes the lane to a peer that broke the protocol, or for which memory ran out.
    fn drop_lane(&mut self, peer: PeerId, error: &Error) {
        let closed = self.close_lane(peer, error);
        self.closed.extend(closed.map(|error| (peer, error)));
    }

    /// Closes a lane, if it is open, because of `error`. Returns the error to report.
    #[cold]
    fn close_lane(&mut self, peer: PeerId, error: &Error) -> Option<Error> {
        let lane = self.lanes.get_mut(peer.0 as usize).and_then(Option::as_mut)?;
        let address = std::mem::take(&mut lane.name);
        let reason = format!("dropped by this side: {error}");
        self.disconnect(peer);
        Some(Error::PeerLost { peer, address, reason })
    }
}
