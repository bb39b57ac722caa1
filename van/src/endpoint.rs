//! Lanes with credits on top of a transport: which message goes eagerly, which by rendezvous, and when a lane is full.
//!
//! * A **request** spends one of its lane's credits and the reply gives it back, so a lane holds a bounded number of requests
//!   and neither side ever needs more memory than that.
//! * A message whose image fits into one frame goes **eagerly**; short ones share a frame with those before and behind them, and
//!   leave at the next poll or wait. A longer one goes by **rendezvous**: its image is written into a *landing*, memory that
//!   the receiver granted for it, and nothing else is sent. The first long message asks for a landing ([`Kind::Want`](crate::wire::Kind::Want)); after that the receiver grants a new one for each that was used, in the reply, so that a steady
//!   stream of long messages asks for nothing.
//! * A reply that is nothing but values can be **placed**: written straight into memory that the request offered for them,
//!   which says which request is answered. Again nothing else is sent.
//!
//! Messages to a peer stay in order, whichever way they go.
//!
//! `endpoint/send.rs` decides which way a message goes, and whether it may; `endpoint/packing.rs` puts the short ones together,
//! `endpoint/rendezvous.rs` carries the long ones out, `endpoint/receive.rs` takes in what comes, `endpoint/lane.rs` is what is
//! under way with a peer, and `endpoint/landing.rs` the ledger of landings.
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

/// Messages that a side takes between two polls at most, which answers them or waits for few: what it sends leaves while it looks
/// at the others, so that both sides of a lane have something to do.
const TAKES_MAX: usize = 64;

/// Of a side that waits for answers, the least. It takes two thirds of those it waits for: then it sends as many again while the
/// others are on their way, and a poll, whose price hardly depends on how much it brings, is worth most.
const TAKES_WAITING: usize = 16;

/// What a poll brought.
#[derive(Debug)]
pub enum Arrival {
    /// A connection is up.
    Connected {
        /// The new peer.
        peer: PeerId,
        /// What it said of itself.
        hello: Hello,
    },
    /// A reply that says nothing: the request is done.
    Answered {
        /// From whom.
        peer: PeerId,
        /// Of the request.
        timestamp: u64,
    },
    /// A request, a failure, or a reply that says something.
    Message {
        /// From whom.
        peer: PeerId,
        /// What.
        message: Message,
    },
    /// The answer to a request, placed where its offer said.
    Placed {
        /// From whom.
        peer: PeerId,
        /// Of the request.
        timestamp: u64,
        /// All of the memory that was offered.
        memory: Buffer,
        /// How many bytes the peer wrote there. It wrote all of the memory only if they are as many.
        len: usize,
    },
    /// A peer is gone, and so is all that was outstanding with it.
    Lost {
        /// Who.
        peer: PeerId,
        /// Why.
        error: Error,
    },
}

impl Arrival {
    /// Whom it is about.
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

/// One thread's lanes to all its peers.
pub struct Endpoint {
    transport: Box<dyn Transport>,
    memory: Pool,
    limits: Limits,
    clock: Clock,
    node: u32,
    credits: u16,
    /// By peer number; `None` once the peer is gone.
    lanes: Vec<Option<Lane>>,
    /// What the last poll brought and was not looked at, the oldest last.
    events: Vec<Event>,
    /// The frame that is being read.
    reading: Reading,
    /// Messages that may still be taken before the next poll.
    takes_left: usize,
    /// Whether a peer waits for a landing that there was no room for.
    starved: bool,
    /// Lanes that have had an open frame since the last poll.
    open: Vec<PeerId>,
    /// Lanes that this side has closed, to be reported.
    closed: Vec<(PeerId, Error)>,
    /// Peers whose loss was reported at the last poll. What was offered to them can be taken back until the next.
    lost: Vec<PeerId>,
    /// Of messages; all else is counted by the transport.
    counted: Counters,
}

impl Endpoint {
    /// Lanes over `transport` for node `node`, whose peers may each have `credits` requests outstanding here.
    pub fn new(transport: Box<dyn Transport>, node: u32, credits: u16) -> Self {
        let about = transport.about();
        let (limits, memory, clock) = (about.limits, about.memory.clone(), about.clock.clone());
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

    /// The van's name.
    pub fn van(&self) -> &'static str {
        self.transport.about().name
    }

    /// Where peers connect to.
    pub fn address(&self) -> &str {
        &self.transport.about().address
    }

    /// The id this node puts into its messages.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Takes the id that the scheduler gave.
    pub fn set_node(&mut self, node: u32) {
        self.node = node;
        self.lanes.iter_mut().flatten().for_each(|lane| lane.packer.forget());
    }

    /// Images up to this long go in one frame.
    #[inline]
    pub fn eager_bytes(&self) -> usize {
        self.limits.frame_bytes
    }

    /// Whether a peer reads `bytes` bytes of values that are sent from where they lie right there,
    /// with no memory of its own for them. When too much is on loan to it, it gets a copy.
    #[inline]
    pub fn lends(&self, bytes: usize) -> bool {
        bytes >= self.limits.lent_bytes_min
    }

    /// The memory messages are built in and values land in.
    #[inline]
    pub fn memory(&self) -> &Pool {
        &self.memory
    }

    /// The transport's clock.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Says what computing has just been done here; see [`Clock::charge`].
    ///
    /// # Errors
    /// As [`Clock::charge`].
    pub fn charge(&mut self, work: Duration) -> Result<()> {
        self.clock.charge(work)
    }

    /// What the transport has done so far, and what was made of it here.
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

    /// Closes a connection and forgets what was outstanding on it.
    pub fn disconnect(&mut self, peer: PeerId) {
        self.transport.disconnect(peer);
        if let Some(lane) = self.lanes.get_mut(peer.0 as usize) {
            *lane = None;
        }
        self.reading.forget(peer);
        // Its number may be another's soon.
        self.events.retain(|event| event.peer() != peer);
        self.lost.retain(|lost| *lost != peer);
    }

    /// Requests that can be posted to `peer` right now.
    #[inline]
    pub fn credits(&self, peer: PeerId) -> usize {
        self.lanes
            .get(peer.0 as usize)
            .and_then(Option::as_ref)
            .map_or(0, |lane| lane.credits.into())
    }

    /// Lets `peer` place the answer to a request in `into`: the one that [`Endpoint::post`] posts with this offer.
    ///
    /// # Errors
    /// As [`Transport::offer`].
    pub fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.transport.offer(peer, into)
    }

    /// Takes offered memory back.
    ///
    /// # Errors
    /// As [`Transport::withdraw`].
    pub fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        if let Ok(lane) = lane(&mut self.lanes, peer) {
            lane.places.remove(key);
        }
        self.transport.withdraw(peer, key)
    }

    /// Moves work along without blocking; true if anything arrived, which [`Endpoint::take`] hands out.
    ///
    /// Take until there is none: what endpoints say to each other is read on the way, and others may wait for it.
    ///
    /// # Errors
    /// Only when the van itself is broken.
    #[inline(always)] // a look that finds nothing is most of what a thread does
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

    /// Has the transport forget the peers whose loss was reported.
    #[cold]
    fn forget_lost(&mut self) {
        for peer in std::mem::take(&mut self.lost) {
            self.transport.disconnect(peer);
        }
    }

    /// Puts the events from `left` on behind those before them: the oldest is last.
    #[inline(never)]
    fn put_behind(&mut self, left: usize) {
        self.events[left..].reverse();
        self.events.rotate_left(left);
    }

    /// Messages to take before the next poll.
    #[inline]
    fn takes(&self) -> usize {
        let Counters { messages_sent, messages_received, .. } = self.counted;
        match messages_sent.saturating_sub(messages_received) {
            0 => TAKES_MAX,
            waited_for => TAKES_WAITING.max(waited_for as usize * 2 / 3),
        }
    }

    /// Sleeps until a poll may find something, or `timeout` has passed.
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

    /// Closes the lane to a peer that broke the rules, or for which there is no memory.
    fn drop_lane(&mut self, peer: PeerId, error: &Error) {
        let closed = self.close_lane(peer, error);
        self.closed.extend(closed.map(|error| (peer, error)));
    }

    /// Closes a lane, if it is open, because of `error`; returns what is to be told of it.
    #[cold]
    fn close_lane(&mut self, peer: PeerId, error: &Error) -> Option<Error> {
        let lane = self.lanes.get_mut(peer.0 as usize).and_then(Option::as_mut)?;
        let address = std::mem::take(&mut lane.name);
        let reason = format!("dropped by this side: {error}");
        self.disconnect(peer);
        Some(Error::PeerLost { peer, address, reason })
    }
}
