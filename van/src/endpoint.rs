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
//! `endpoint/rendezvous.rs` carries the long ones out, and `endpoint/landing.rs` is the ledger of landings.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

mod landing;
mod packing;
mod rendezvous;

use std::collections::VecDeque;
use std::time::Duration;

use self::landing::{Grants, Landings, Places};
use self::packing::{PACKED_BYTES_MAX, Packer};
use self::rendezvous::landed_bytes;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::message::{Draft, Message, Outgoing};
use crate::metrics::Counters;
use crate::transport::{Event, FRAME_PREFIX, Limits, PeerId, Transport, check_write};
use crate::wire::{Coding, Header, Hello, Images, Kind, Offer, TRAILER};

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
    /// A request, a reply or a failure, or several replies that say nothing ([`Message::timestamps`]).
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

/// One thread's lanes to all its peers.
pub struct Endpoint {
    transport: Box<dyn Transport>,
    memory: Pool,
    limits: Limits,
    node: u32,
    credits: u16,
    /// By peer number; `None` once the peer is gone.
    lanes: Vec<Option<Lane>>,
    events: Vec<Event>,
    /// Whether a peer waits for a landing that there was no room for.
    starved: bool,
    /// Lanes that have had an open frame since the last poll.
    open: Vec<PeerId>,
    /// Lanes that this side has closed, to be reported at the next poll.
    closed: Vec<(PeerId, Error)>,
    /// Of messages; all else is counted by the transport.
    counted: Counters,
}

/// What is under way with one peer.
#[derive(Default)]
struct Lane {
    /// Who it is, for people: its address, or its node if it called.
    name: String,
    /// Requests that may still be posted; 0 until the peer has said hello.
    credits: u16,
    /// Requests that the peer takes at a time.
    credits_max: u16,
    /// Requests of the peer that wait for our reply.
    unanswered: u16,
    frame_bytes: usize,
    /// Short messages that are about to leave.
    packer: Packer,
    /// Whether the next poll knows that it has to close a frame of this lane.
    is_listed: bool,
    /// What waits for a landing, and what must not overtake it.
    outbox: VecDeque<Item>,
    grants: Grants,
    landings: Landings,
    places: Places,
}

impl Lane {
    /// `count` answers came: their requests' credits are back.
    fn answered(&mut self, peer: PeerId, count: usize) -> Result<()> {
        if count > usize::from(self.credits_max - self.credits) {
            return Err(Error::Unasked { peer, what: "an answer" });
        }
        self.credits += count as u16;
        Ok(())
    }

    /// Enters a message that was posted: a request has spent a credit, and an answer been given.
    #[inline]
    fn enter(&mut self, kind: Kind, timestamp: u64, offer: Option<Offer>) {
        if kind != Kind::Request {
            self.unanswered = self.unanswered.saturating_sub(1);
            return;
        }
        self.credits -= 1;
        if let Some(offer) = offer {
            self.places.enter(offer.key.get(), timestamp, self.credits_max.into());
        }
    }

    /// Whether what is posted now leaves at once, with nothing else to be said.
    #[inline]
    fn is_free(&self) -> bool {
        self.outbox.is_empty() && self.landings.is_settled()
    }

    /// Messages up to this long are packed.
    fn packed_bytes(&self) -> usize {
        self.frame_bytes.min(PACKED_BYTES_MAX)
    }

    /// Takes the landing that an item needs, if it needs one.
    ///
    /// # Errors
    /// How long a landing it needs when none that is held will do.
    fn landing_for(&mut self, item: &Item) -> Result<Option<Offer>, usize> {
        match item.landing_bytes(self.frame_bytes) {
            0 => Ok(None),
            bytes => self.grants.take(bytes).map(Some).ok_or(bytes),
        }
    }
}

enum Item {
    Image(Outgoing),
    Place {
        data: Shared,
        into: Offer,
    },
    /// Values that stay where they are, and the rest of their message.
    Loan {
        frame: Buffer,
        values: Shared,
    },
}

impl Item {
    /// How long a landing it needs at a peer that takes frames of `frame_bytes`; 0 for none.
    fn landing_bytes(&self, frame_bytes: usize) -> usize {
        match self {
            Item::Image(outgoing) if outgoing.image_bytes() > frame_bytes => landed_bytes(outgoing),
            Item::Image(_) | Item::Place { .. } | Item::Loan { .. } => 0,
        }
    }
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
    }

    /// Images up to this long go in one frame.
    pub fn eager_bytes(&self) -> usize {
        self.limits.frame_bytes
    }

    /// Whether long values that are sent from where they lie are read there by `peer`, and need no memory of its own.
    pub fn lends(&self, peer: PeerId) -> bool {
        self.transport.lends(peer)
    }

    /// The memory messages are built in and values land in.
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
    }

    /// Requests that can be posted to `peer` right now.
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
    pub fn post(&mut self, peer: PeerId, draft: Draft<'_>, coding: &mut Coding) -> Result<()> {
        let (kind, timestamp, offer) = (draft.kind, draft.timestamp, draft.offer);
        assert!(kind == Kind::Request || offer.is_none(), "only a request can offer memory");
        let open = lane(&mut self.lanes, peer)?;
        if kind == Kind::Request && open.credits == 0 {
            return Err(Error::QueueFull { peer, depth: open.credits_max.into() });
        }
        let bytes = draft.image_bytes_max();
        self.counted.messages_sent += 1;
        if !open.is_free() || bytes > open.packed_bytes() {
            self.post_alone(peer, draft, coding)?;
            lane(&mut self.lanes, peer)?.enter(kind, timestamp, offer);
            return Ok(());
        }
        let mut draft = draft;
        self.pack(peer, &mut draft, bytes, coding)?.enter(kind, timestamp, offer); // the path of most
        Ok(())
    }

    /// Answers a request that has nothing more to be told. Such answers in a row take 8 bytes each.
    ///
    /// # Errors
    /// As [`Endpoint::post`].
    pub fn answer(&mut self, peer: PeerId, timestamp: u64) -> Result<()> {
        let open = lane(&mut self.lanes, peer)?;
        if open.is_free() && open.packer.answer(timestamp, open.frame_bytes) {
            open.unanswered = open.unanswered.saturating_sub(1);
            self.counted.messages_sent += 1;
            return Ok(());
        }
        let mut draft = Draft { timestamp, ..Draft::new(Kind::Reply) };
        if !open.is_free() {
            return self.post(peer, draft, &mut Coding::plain());
        }
        let bytes = size_of::<Header>();
        self.counted.messages_sent += 1;
        let open = self.pack(peer, &mut draft, bytes, &mut Coding::plain())?;
        open.packer.is_bare_answer(bytes);
        open.enter(Kind::Reply, timestamp, None);
        Ok(())
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

    /// Moves work along without blocking and appends what arrived; true if anything did.
    ///
    /// # Errors
    /// Only when the van itself is broken.
    pub fn poll(&mut self, arrivals: &mut Vec<Arrival>) -> Result<bool> {
        if self.starved {
            self.feed(arrivals);
        }
        if !self.open.is_empty() {
            self.close_frames();
        }
        let mut any = !self.closed.is_empty();
        if any {
            let lost = self.closed.drain(..);
            arrivals.extend(lost.map(|(peer, error)| Arrival::Lost { peer, error }));
        }
        let mut events = std::mem::take(&mut self.events);
        let polled = self.transport.poll(&mut events);
        any |= !events.is_empty();
        for event in events.drain(..) {
            self.sort_out(event, arrivals);
        }
        self.events = events;
        polled.map(|()| any)
    }

    /// Sleeps until a poll may find something, or `timeout` has passed.
    ///
    /// # Errors
    /// As [`Transport::wait`].
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.close_frames();
        if self.closed.is_empty() { self.transport.wait(timeout) } else { Ok(()) }
    }

    fn enter(&mut self, peer: PeerId) -> &mut Lane {
        let index = peer.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index].get_or_insert_default()
    }

    fn sort_out(&mut self, event: Event, arrivals: &mut Vec<Arrival>) {
        match event {
            Event::Connected { peer, hello } => {
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
                arrivals.push(Arrival::Connected { peer, hello });
            }
            Event::Received { peer, frame } => {
                if let Err(error) = self.receive(peer, frame, arrivals) {
                    self.drop_lane(peer, &error, arrivals);
                }
            }
            Event::Lent { peer, frame, values } => {
                if let Err(error) = self.receive_lent(peer, frame, values, arrivals) {
                    self.drop_lane(peer, &error, arrivals);
                }
            }
            Event::Written { peer, key, memory, at, len } => {
                if let Err(error) = self.written(peer, key, memory, (at, len), arrivals) {
                    self.drop_lane(peer, &error, arrivals);
                }
            }
            Event::Lost { peer, error } => {
                // A lane that this side has closed was reported then, or was closed on purpose.
                if self.lanes.get_mut(peer.0 as usize).and_then(Option::take).is_some() {
                    arrivals.push(Arrival::Lost { peer, error });
                }
            }
        }
    }

    /// Closes the lane to a peer that broke the rules, or for which there is no memory.
    fn drop_lane(&mut self, peer: PeerId, error: &Error, arrivals: &mut Vec<Arrival>) {
        if let Some(error) = self.close_lane(peer, error) {
            arrivals.push(Arrival::Lost { peer, error });
        }
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

    /// Takes in one frame of a peer that is still connected.
    fn receive(&mut self, peer: PeerId, frame: Buffer, arrivals: &mut Vec<Arrival>) -> Result<()> {
        if lane(&mut self.lanes, peer).is_err() {
            return Ok(());
        }
        let mut images = Images::new(frame);
        while !images.is_empty() {
            let mut message = images.next(&self.memory)?;
            match message.kind() {
                Kind::Want => self.grant_wanted(peer, &message)?,
                Kind::Grant => self.take_grant(peer, message.offer())?,
                _ => {
                    self.admit(peer, &mut message)?;
                    self.counted.messages_received += 1;
                    arrivals.push(Arrival::Message { peer, message });
                }
            }
        }
        Ok(())
    }

    /// Takes in a message whose values its sender has lent.
    fn receive_lent(
        &mut self,
        peer: PeerId,
        frame: Buffer,
        values: Shared,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<()> {
        if lane(&mut self.lanes, peer).is_err() {
            return Ok(());
        }
        let mut message = Message::decode_lent(frame, values, self.transport.memory())?;
        if !matches!(message.kind(), Kind::Request | Kind::Reply) {
            return Err(Error::Unasked { peer, what: "a loan" });
        }
        self.admit(peer, &mut message)?;
        self.counted.messages_received += 1;
        arrivals.push(Arrival::Message { peer, message });
        Ok(())
    }

    /// Takes in what a peer that is still connected wrote into memory that was offered to it.
    fn written(
        &mut self,
        peer: PeerId,
        key: u64,
        memory: Buffer,
        (at, len): (usize, usize),
        arrivals: &mut Vec<Arrival>,
    ) -> Result<()> {
        let Ok(open) = lane(&mut self.lanes, peer) else { return Ok(()) };
        if open.landings.use_up(key) {
            let mut message = self.pick_up(peer, memory, (at, len))?;
            self.admit(peer, &mut message)?;
            self.counted.messages_received += 1;
            arrivals.push(Arrival::Message { peer, message });
            return Ok(());
        }
        let Some(timestamp) = open.places.remove(key) else {
            return Err(Error::Unasked { peer, what: "a write" });
        };
        open.answered(peer, 1)?;
        self.counted.messages_received += 1;
        arrivals.push(Arrival::Placed { peer, timestamp, memory, len });
        Ok(())
    }

    /// Enters a request that came in the lane's ledger, or what an answer gives back: a credit, and perhaps a landing.
    fn admit(&mut self, peer: PeerId, message: &mut Message) -> Result<()> {
        let credits = self.credits;
        let lane = lane(&mut self.lanes, peer)?;
        match message.kind() {
            Kind::Request if lane.unanswered == credits => {
                return Err(Error::QueueFull { peer, depth: credits.into() });
            }
            Kind::Request => lane.unanswered += 1,
            Kind::Replies => {
                let bare = message.keys().is_empty() && message.lengths().is_empty();
                if !bare || !message.values().len().is_multiple_of(8) || message.offer().is_some() {
                    return Err(Error::Unasked { peer, what: "a list of answers like this" });
                }
                let others = message.values().len() / 8;
                lane.answered(peer, 1 + others)?;
                self.counted.messages_received += others as u64;
                message.timestamps().for_each(|timestamp| lane.places.answered(timestamp));
            }
            _ => {
                lane.answered(peer, 1)?;
                lane.places.answered(message.timestamp());
                if let Some(landing) = message.take_offer() {
                    self.take_grant(peer, Some(landing))?;
                }
            }
        }
        Ok(())
    }

    /// Sends a message of the endpoint's own, a short one.
    fn notify(&mut self, peer: PeerId, draft: Draft<'_>) -> Result<()> {
        let mut draft = draft;
        let bytes = draft.image_bytes_max();
        self.pack(peer, &mut draft, bytes, &mut Coding::plain())?;
        Ok(())
    }

    /// Puts a message of up to `bytes` bytes behind those that are about to leave.
    #[inline(always)]
    fn pack(
        &mut self,
        peer: PeerId,
        draft: &mut Draft<'_>,
        bytes: usize,
        coding: &mut Coding,
    ) -> Result<&mut Lane> {
        let open = lane(&mut self.lanes, peer)?;
        if !open.packer.takes(bytes, open.frame_bytes) {
            self.close_frame(peer)?;
        }
        self.counted.message_bytes_copied += bytes as u64;
        let open = lane(&mut self.lanes, peer)?;
        open.packer.append(self.node, (draft, bytes), coding, &self.memory)?;
        if !std::mem::replace(&mut open.is_listed, true) {
            self.open.push(peer);
        }
        Ok(open)
    }

    /// Posts a lane's open frame, if there is one. When that fails the lane is closed: what was in it was taken on before.
    fn close_frame(&mut self, peer: PeerId) -> Result<()> {
        let frame = lane(&mut self.lanes, peer)?.packer.close(self.limits.checks_bytes);
        let Some(frame) = frame else { return Ok(()) };
        let posted = self.transport.post_send(peer, frame);
        match &posted {
            Ok(()) | Err(Error::NotConnected { .. }) => {} // the transport will report it
            Err(error) => {
                let closed = self.close_lane(peer, error);
                self.closed.extend(closed.map(|error| (peer, error)));
            }
        }
        posted
    }

    /// Posts all open frames.
    fn close_frames(&mut self) {
        while let Some(peer) = self.open.pop() {
            if let Ok(lane) = lane(&mut self.lanes, peer) {
                lane.is_listed = false;
            }
            let _ = self.close_frame(peer); // told in other ways
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

/// The open lane to `peer`.
fn lane(lanes: &mut [Option<Lane>], peer: PeerId) -> Result<&mut Lane> {
    match lanes.get_mut(peer.0 as usize) {
        Some(Some(lane)) => Ok(lane),
        _ => Err(Error::NotConnected { peer }),
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
