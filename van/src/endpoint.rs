//! Lanes with credits on top of a transport: which message goes eagerly, which by rendezvous, and when a lane is full.
//!
//! * A **request** spends one of its lane's credits and the reply gives it back, so a lane holds a bounded number of requests
//!   and neither side ever needs more memory than that.
//! * A message whose image fits into one frame goes **eagerly**; short ones share a frame with those before and behind them, and
//!   leave at the next poll or wait. A longer one goes by **rendezvous**: its image is written into a *landing*, memory that
//!   the receiver granted for it, and nothing else is sent. The first long message asks for a landing ([`Kind::Want`]); after that the receiver grants a new one for each that was used, in the reply, so that a steady
//!   stream of long messages asks for nothing.
//! * A reply that is nothing but values can be **placed**: written straight into memory that the request offered for them,
//!   which says which request is answered. Again nothing else is sent.
//!
//! Messages to a peer stay in order, whichever way they go.
//!
//! Here is decided which way a message goes, and whether it may; `endpoint/packing.rs` puts the short ones together,
//! `endpoint/rendezvous.rs` carries the long ones out, `endpoint/receive.rs` takes in what comes, `endpoint/lane.rs` is what is under way with a peer,
//! and `endpoint/landing.rs` the ledger of landings.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

mod landing;
mod lane;
mod packing;
mod receive;
mod rendezvous;

use std::time::Duration;

use self::lane::{Item, Lane, lane};
use self::receive::Reading;
pub use self::receive::Taken;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::message::{Draft, Message, Outgoing, Values};
use crate::metrics::Counters;
use crate::transport::{Event, FRAME_PREFIX, Limits, PeerId, Transport, check_write};
use crate::wire::{Coding, Hello, Kind, Offer, TRAILER};

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
    /// Of messages; all else is counted by the transport.
    counted: Counters,
}

impl Endpoint {
    /// Lanes over `transport` for node `node`, whose peers may each have `credits` requests outstanding here.
    pub fn new(transport: Box<dyn Transport>, node: u32, credits: u16) -> Self {
        let (limits, memory) = (transport.limits(), transport.memory().clone());
        Endpoint {
            transport,
            memory,
            limits,
            node,
            credits,
            lanes: Vec::new(),
            events: Vec::with_capacity(64),
            reading: Reading::NOTHING,
            takes_left: 0,
            starved: false,
            open: Vec::with_capacity(16),
            closed: Vec::new(),
            counted: Counters::default(),
        }
    }

    /// The van's name.
    pub fn van(&self) -> &'static str {
        self.transport.name()
    }

    /// Where peers connect to.
    pub fn address(&self) -> &str {
        self.transport.address()
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

    /// Whether long values that are sent from where they lie are read there by `peer`, and need no memory of its own.
    pub fn lends(&self, peer: PeerId) -> bool {
        self.transport.lends(peer)
    }

    /// The memory messages are built in and values land in.
    #[inline]
    pub fn memory(&self) -> &Pool {
        &self.memory
    }

    /// The transport's clock.
    pub fn now(&self) -> Duration {
        self.transport.now()
    }

    /// Says what computing has just been done here; see [`Transport::charge`].
    ///
    /// # Errors
    /// As [`Transport::poll`].
    pub fn charge(&mut self, work: Duration) -> Result<()> {
        self.transport.charge(work)
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

    /// Encodes and posts a message. Nothing has happened when it cannot be encoded.
    ///
    /// # Errors
    /// [`Error::QueueFull`] when a request finds no credit; [`Error::NotConnected`]; what [`encode`](crate::encode) and the transport report.
    ///
    /// # Panics
    /// If an answer comes with an offer: that section of it is the endpoint's own.
    pub fn post(
        &mut self,
        peer: PeerId,
        mut draft: Draft<'_>, // where the caller has it: it is long
        coding: &mut Coding,
    ) -> Result<()> {
        let open = lane(&mut self.lanes, peer)?;
        if draft.kind == Kind::Request && open.credits == 0 {
            return Err(Error::QueueFull { peer, depth: open.credits_max.into() });
        }
        if !open.is_free() || !open.packer.extend(&mut draft) {
            return self.post_image(peer, draft, coding);
        }
        open.enter(draft.kind, draft.timestamp, None);
        if !std::mem::replace(&mut open.is_listed, true) {
            self.open.push(peer);
        }
        self.counted.messages_sent += 1;
        Ok(())
    }

    /// Posts a message that is not like the one before.
    #[inline(never)]
    fn post_image(&mut self, peer: PeerId, draft: Draft<'_>, coding: &mut Coding) -> Result<()> {
        let (kind, timestamp, offer) = (draft.kind, draft.timestamp, draft.offer);
        assert!(kind == Kind::Request || offer.is_none(), "only a request can offer memory");
        let open = lane(&mut self.lanes, peer)?;
        let bytes = draft.image_bytes_max();
        self.counted.messages_sent += 1;
        if !open.is_free() || bytes > open.packed_bytes() {
            self.post_alone(peer, draft, coding)?;
            lane(&mut self.lanes, peer)?.enter(kind, timestamp, offer);
            return Ok(());
        }
        let mut draft = draft;
        self.pack(peer, &mut draft, bytes, coding)?.enter(kind, timestamp, offer);
        Ok(())
    }

    /// Answers a request that has nothing more to be told. Such answers in a row take 8 bytes each.
    ///
    /// # Errors
    /// As [`Endpoint::post`].
    #[inline]
    pub fn answer(&mut self, peer: PeerId, timestamp: u64) -> Result<()> {
        self.reply(peer, 0, timestamp, &[])
    }

    /// Answers a request about `table` with nothing but `values`, which are copied.
    ///
    /// # Errors
    /// As [`Endpoint::post`].
    #[inline(always)]
    pub fn reply(&mut self, peer: PeerId, table: u32, timestamp: u64, values: &[u8]) -> Result<()> {
        let open = lane(&mut self.lanes, peer)?;
        if open.is_free() && open.packer.reply(table, timestamp, values) {
            open.unanswered = open.unanswered.saturating_sub(1);
            if !std::mem::replace(&mut open.is_listed, true) {
                self.open.push(peer);
            }
            self.counted.messages_sent += 1;
            return Ok(());
        }
        let values = Values::Copied(values);
        let draft = Draft { table, timestamp, values, ..Draft::new(Kind::Reply) };
        self.post_image(peer, draft, &mut Coding::plain())
    }

    /// Answers a request with nothing but values, which are written where its offer said.
    ///
    /// # Errors
    /// [`Error::NotConnected`]; what [`check_write`] says, and the request is still unanswered then.
    pub fn place(&mut self, peer: PeerId, data: Shared, into: Offer) -> Result<()> {
        check_write(into.key.get(), 0, data.len() as u64, into.len.get())?;
        self.counted.messages_sent += 1;
        self.enqueue(peer, Item::Place { data, into })?;
        let open = lane(&mut self.lanes, peer)?;
        open.unanswered = open.unanswered.saturating_sub(1);
        // Behind the values, where it costs a van that reads ahead nothing to look for more.
        self.replace_landings(peer)
    }

    /// Moves work along without blocking; true if anything arrived, which [`Endpoint::take`] hands out.
    ///
    /// Take until there is none: what endpoints say to each other is read on the way, and others may wait for it.
    ///
    /// # Errors
    /// Only when the van itself is broken.
    pub fn poll(&mut self) -> Result<bool> {
        if self.starved {
            self.feed();
        }
        if !self.open.is_empty() {
            self.close_frames();
        }
        self.takes_left = self.takes();
        let left = self.events.len();
        let polled = self.transport.poll(&mut self.events);
        if self.events.len() > left.max(1) {
            self.put_behind(left);
        }
        polled?;
        Ok(self.has_arrivals())
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

    /// Sends a message of the endpoint's own, a short one.
    fn notify(&mut self, peer: PeerId, draft: Draft<'_>) -> Result<()> {
        let mut draft = draft;
        let bytes = draft.image_bytes_max();
        self.pack(peer, &mut draft, bytes, &mut Coding::plain())?;
        Ok(())
    }

    /// Puts a message of up to `bytes` bytes behind those that are about to leave.
    fn pack(
        &mut self,
        peer: PeerId,
        draft: &mut Draft<'_>,
        bytes: usize,
        coding: &mut Coding,
    ) -> Result<&mut Lane> {
        let open = lane(&mut self.lanes, peer)?;
        if !open.packer.takes(bytes) {
            self.close_frame(peer)?;
        }
        let open = lane(&mut self.lanes, peer)?;
        let image = (draft, bytes, open.frame_bytes);
        open.packer.append(self.node, image, coding, &self.memory)?;
        if !std::mem::replace(&mut open.is_listed, true) {
            self.open.push(peer);
        }
        Ok(open)
    }

    /// Posts a lane's open frame, if there is one. When that fails the lane is closed: what was in it was taken on before.
    #[inline]
    fn close_frame(&mut self, peer: PeerId) -> Result<()> {
        let packer = &mut lane(&mut self.lanes, peer)?.packer;
        let Some(frame) = packer.close(self.limits.checks_bytes) else { return Ok(()) };
        self.counted.message_bytes_copied += frame.len() as u64;
        let is_short = frame.len() <= self.limits.copy_bytes;
        let copied = if is_short { self.transport.post_copy(peer, frame) } else { Ok(false) };
        let posted = match copied {
            Ok(false) => {
                packer.take().map_or(Ok(()), |frame| self.transport.post_send(peer, frame))
            }
            copied => {
                packer.reuse();
                copied.map(drop)
            }
        };
        if let Err(error) = &posted {
            self.not_sent(peer, error);
        }
        posted
    }

    /// Posts all open frames.
    #[inline(never)]
    fn close_frames(&mut self) {
        while let Some(peer) = self.open.pop() {
            let Ok(lane) = lane(&mut self.lanes, peer) else { continue };
            lane.is_listed = false;
            let _ = self.close_frame(peer); // its lane is closed then
        }
    }

    /// Closes a lane on which a frame could not be sent: what was in it was taken on before.
    #[cold]
    fn not_sent(&mut self, peer: PeerId, error: &Error) {
        if !matches!(error, Error::NotConnected { .. }) {
            self.drop_lane(peer, error); // otherwise the transport will report it
        }
    }

    /// Posts a message that has a frame to itself, or none.
    fn post_alone(&mut self, peer: PeerId, draft: Draft<'_>, coding: &mut Coding) -> Result<()> {
        let outgoing = self.encode(peer, draft, coding)?;
        let frame_bytes = lane(&mut self.lanes, peer)?.frame_bytes;
        let item = match outgoing {
            Outgoing { head, values: Some(values) }
                if head.len() - TRAILER <= FRAME_PREFIX + frame_bytes
                    && head.len() + values.len() > FRAME_PREFIX + TRAILER + frame_bytes
                    && self.transport.lends(peer) =>
            {
                let mut frame = head;
                frame.truncate(frame.len() - TRAILER);
                Item::Loan { frame, values }
            }
            outgoing => Item::Image(outgoing),
        };
        self.enqueue(peer, item)
    }

    fn enqueue(&mut self, peer: PeerId, item: Item) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        if lane.outbox.is_empty()
            && let Ok(landing) = lane.landing_for(&item)
        {
            return self.send(peer, item, landing);
        }
        self.hold(peer, item)
    }

    /// Keeps an item back until a landing is there, and asks for one if it needs it.
    fn hold(&mut self, peer: PeerId, item: Item) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        let bytes = item.landing_bytes(lane.frame_bytes);
        lane.outbox.push_back(item);
        if bytes == 0 {
            return Ok(());
        }
        lane.grants.ask();
        self.want(peer, bytes)
    }

    /// Sends what was held back, as far as it goes.
    fn flush(&mut self, peer: PeerId) -> Result<()> {
        loop {
            let lane = lane(&mut self.lanes, peer)?;
            let Some(item) = lane.outbox.pop_front() else { return Ok(()) };
            match lane.landing_for(&item) {
                Ok(landing) => self.send(peer, item, landing)?,
                Err(bytes) => {
                    lane.outbox.push_front(item);
                    // What was granted is too short. It goes back, and this one is asked for again if that was the last to
                    // come.
                    return match lane.grants.ask_again(bytes) {
                        Some(bytes) => self.want(peer, bytes),
                        None => Ok(()),
                    };
                }
            }
        }
    }

    /// Posts an item, into the landing that it needs.
    fn send(&mut self, peer: PeerId, item: Item, landing: Option<Offer>) -> Result<()> {
        self.close_frame(peer)?; // which came before
        match (item, landing) {
            (Item::Place { data, into }, _) => {
                self.transport.post_write(peer, data.into(), &into, 0)
            }
            (Item::Loan { frame, values }, _) => self.transport.post_loan(peer, frame, values),
            (Item::Image(outgoing), None) => {
                let frame = whole(outgoing, &self.memory)?;
                self.transport.post_send(peer, frame)
            }
            (Item::Image(outgoing), Some(landing)) => self.land(peer, outgoing, landing),
        }
    }
}

/// One frame that holds the whole image; short values that lay apart are copied behind the head.
fn whole(outgoing: Outgoing, pool: &Pool) -> Result<Buffer> {
    let Some(values) = outgoing.values else { return Ok(outgoing.head) };
    let head_bytes = outgoing.head.len() - TRAILER;
    let mut frame = pool.allocate(head_bytes + values.len())?;
    let (head, rest) = frame.split_at_mut(head_bytes);
    head.copy_from_slice(&outgoing.head[..head_bytes]);
    rest.copy_from_slice(&values);
    Ok(frame)
}
