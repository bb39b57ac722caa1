//! Lanes with credits on top of a transport: which message goes eagerly, which by rendezvous, and when a lane is full.
//!
//! * A **request** spends one of its lane's credits and the reply gives it back, so a lane holds a bounded number of requests
//!   and neither side ever needs more memory than that.
//! * A message whose image fits into one frame goes **eagerly**. A longer one goes by **rendezvous**: its image is written into
//!   a *landing*, memory that the receiver granted for it, and a short notice follows. The first long message asks for a
//!   landing ([`Kind::Want`]); after that the receiver grants a new one for each that was used, together with the reply, so
//!   that a steady stream of long messages asks for nothing.
//! * The values of a reply can be **placed**: written straight into memory that the request offered for them.
//!
//! Messages to a peer stay in order, whichever way they go.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::message::{Draft, Message, Outgoing, Values};
use crate::metrics::Counters;
use crate::transport::{Event, FRAME_PREFIX, Limits, PeerId, Transport};
use crate::wire::{Coding, Hello, Kind, Offer, encode};

/// Landings granted to one peer and not used yet hold at most this many bytes, unless a single message is longer.
const LANDING_BYTES_MAX: usize = 128 << 20;

/// Longest message, in bytes: what a peer may ask memory for.
const MESSAGE_BYTES_MAX: u64 = 4 << 30;

/// A single write is at most this long, in bytes.
const WRITE_BYTES_MAX: usize = 1 << 30;

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
    /// A request, a reply or a failure.
    Message {
        /// From whom.
        peer: PeerId,
        /// What.
        message: Message,
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
    limits: Limits,
    node: u32,
    credits: u16,
    /// By peer number; `None` once the peer is gone.
    lanes: Vec<Option<Lane>>,
    events: Vec<Event>,
    plain: Coding,
}

/// What is under way with one peer.
struct Lane {
    /// Requests that may still be posted; 0 until the peer has said hello.
    credits: u16,
    /// Requests of the peer that wait for our reply.
    unanswered: u16,
    frame_bytes: usize,
    /// What waits for a landing, and what must not overtake it.
    outbox: VecDeque<Item>,
    /// Landings the peer granted us.
    grants: Vec<Offer>,
    /// Grants asked for and not received yet.
    wants: usize,
    /// Landings we granted the peer: key and length.
    landings: Vec<(u64, usize)>,
    /// Lengths of used landings that are to be replaced.
    used: VecDeque<usize>,
    /// Lengths the peer asked for while it held its share.
    wanted: VecDeque<usize>,
}

enum Item {
    Image(Outgoing),
    Place { data: Shared, into: Offer },
}

impl Lane {
    fn new() -> Self {
        Lane {
            credits: 0,
            unanswered: 0,
            frame_bytes: 0,
            outbox: VecDeque::new(),
            grants: Vec::new(),
            wants: 0,
            landings: Vec::new(),
            used: VecDeque::new(),
            wanted: VecDeque::new(),
        }
    }

    /// Removes and returns the smallest grant that holds `len` bytes.
    fn take_grant(&mut self, len: usize) -> Option<Offer> {
        let fits = |(_, offer): &(usize, &Offer)| offer.len.get() >= len as u64;
        let best =
            self.grants.iter().enumerate().filter(fits).min_by_key(|(_, offer)| offer.len.get())?.0;
        Some(self.grants.swap_remove(best))
    }

    fn landing_bytes(&self) -> usize {
        self.landings.iter().map(|(_, len)| len).sum()
    }
}

impl Endpoint {
    /// Lanes over `transport` for node `node`, whose peers may each have `credits` requests outstanding here.
    pub fn new(transport: Box<dyn Transport>, node: u32, credits: u16) -> Self {
        let limits = transport.limits();
        Endpoint {
            transport,
            limits,
            node,
            credits,
            lanes: Vec::new(),
            events: Vec::with_capacity(64),
            plain: Coding::plain(),
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

    /// The memory messages are built in and values land in.
    pub fn memory(&self) -> &Pool {
        self.transport.memory()
    }

    /// The transport's clock.
    pub fn now(&self) -> Duration {
        self.transport.now()
    }

    /// What the transport has done so far.
    pub fn counters(&self) -> Counters {
        self.transport.counters()
    }

    /// Starts a connection; [`Arrival::Connected`] or [`Arrival::Lost`] follows.
    ///
    /// # Errors
    /// As [`Transport::connect`].
    pub fn connect(&mut self, address: &str) -> Result<PeerId> {
        let peer = self.transport.connect(address)?;
        self.enter(peer);
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

    /// Lets `peer` place values in `into`.
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
        self.transport.withdraw(peer, key)
    }

    /// Encodes and posts a message.
    ///
    /// # Errors
    /// [`Error::QueueFull`] when a request finds no credit; [`Error::NotConnected`]; what [`encode`] and the transport report.
    pub fn post(&mut self, peer: PeerId, draft: Draft<'_>, coding: &mut Coding) -> Result<()> {
        let kind = draft.kind;
        let credits = self.credits;
        let lane = lane(&mut self.lanes, peer)?;
        match kind {
            Kind::Request if lane.credits == 0 => {
                return Err(Error::QueueFull { peer, depth: credits.into() });
            }
            Kind::Request => lane.credits -= 1,
            Kind::Reply | Kind::Failure => lane.unanswered = lane.unanswered.saturating_sub(1),
            Kind::Want | Kind::Grant | Kind::Landed => {}
        }
        self.replace_landings(peer)?;
        let outgoing = encode(self.node, draft, coding, self.transport.memory())?;
        self.enqueue(peer, Item::Image(outgoing))
    }

    /// Writes `data` into memory that `peer` offered with a request, ahead of the reply.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::OutsideOffer`].
    pub fn place(&mut self, peer: PeerId, data: Shared, into: Offer) -> Result<()> {
        let (len, offered, key) = (data.len() as u64, into.len.get(), into.key.get());
        if len > offered {
            return Err(Error::OutsideOffer { key, at: 0, len, offered });
        }
        self.enqueue(peer, Item::Place { data, into })
    }

    /// Moves work along without blocking and appends what arrived; true if anything did.
    ///
    /// # Errors
    /// Only when the van itself is broken.
    pub fn poll(&mut self, arrivals: &mut Vec<Arrival>) -> Result<bool> {
        let mut events = std::mem::take(&mut self.events);
        let polled = self.transport.poll(&mut events);
        let any = !events.is_empty();
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
        self.transport.wait(timeout)
    }

    fn enter(&mut self, peer: PeerId) -> &mut Lane {
        let index = peer.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index].get_or_insert_with(Lane::new)
    }

    fn sort_out(&mut self, event: Event, arrivals: &mut Vec<Arrival>) {
        match event {
            Event::Connected { peer, hello } => {
                let limit = self.limits.frame_bytes;
                let lane = self.enter(peer);
                lane.credits = hello.credits.get();
                lane.frame_bytes = limit.min(hello.frame_bytes.get() as usize);
                arrivals.push(Arrival::Connected { peer, hello });
            }
            Event::Received { peer, frame } => {
                if let Err(error) = self.receive(peer, frame, arrivals) {
                    let error = Error::PeerLost {
                        peer,
                        address: "connected".to_owned(),
                        reason: format!("dropped by this side: {error}"),
                    };
                    self.disconnect(peer);
                    arrivals.push(Arrival::Lost { peer, error });
                }
            }
            Event::Lost { peer, error } => {
                if let Some(lane) = self.lanes.get_mut(peer.0 as usize) {
                    *lane = None;
                }
                arrivals.push(Arrival::Lost { peer, error });
            }
        }
    }

    /// Takes in one frame of a peer that is still connected.
    fn receive(&mut self, peer: PeerId, frame: Buffer, arrivals: &mut Vec<Arrival>) -> Result<()> {
        let Ok(open) = lane(&mut self.lanes, peer) else { return Ok(()) };
        let message = Message::decode(frame, self.transport.memory())?;
        match message.kind() {
            Kind::Want => return self.grant_wanted(peer, &message),
            Kind::Grant => {
                open.grants.extend(message.offer());
                open.wants = open.wants.saturating_sub(1);
                return self.flush(peer);
            }
            Kind::Landed => {
                let message = self.pick_up(peer, &message)?;
                return self.deliver(peer, message, arrivals);
            }
            Kind::Request | Kind::Reply | Kind::Failure => {}
        }
        self.deliver(peer, message, arrivals)
    }

    fn deliver(
        &mut self,
        peer: PeerId,
        message: Message,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<()> {
        let credits = self.credits;
        let lane = lane(&mut self.lanes, peer)?;
        match message.kind() {
            Kind::Request if lane.unanswered == credits => {
                return Err(Error::QueueFull { peer, depth: credits.into() });
            }
            Kind::Request => lane.unanswered += 1,
            _ => lane.credits = lane.credits.saturating_add(1),
        }
        arrivals.push(Arrival::Message { peer, message });
        Ok(())
    }

    /// Reads the long message that `notice` says has landed.
    fn pick_up(&mut self, peer: PeerId, notice: &Message) -> Result<Message> {
        let key = notice.offer().map_or(u64::MAX, |offer| offer.key.get());
        let lane = lane(&mut self.lanes, peer)?;
        let landing = lane.landings.iter().position(|(landing, _)| *landing == key);
        let missing = Error::OutsideOffer { key, at: 0, len: notice.timestamp(), offered: 0 };
        let Some(landing) = landing else { return Err(missing) };
        let (_, len) = lane.landings.swap_remove(landing);
        lane.used.push_back(len);
        let mut image = self.transport.withdraw(peer, key)?;
        if notice.timestamp() > image.len() as u64 {
            return Err(missing);
        }
        image.truncate(notice.timestamp() as usize);
        let message = Message::decode(image, self.transport.memory())?;
        match message.kind() {
            Kind::Request | Kind::Reply | Kind::Failure => Ok(message),
            Kind::Want | Kind::Grant | Kind::Landed => Err(missing),
        }
    }

    /// Answers a [`Kind::Want`] now if the peer is within its share, else when it has used a landing.
    fn grant_wanted(&mut self, peer: PeerId, want: &Message) -> Result<()> {
        let bytes = want.timestamp();
        if bytes > MESSAGE_BYTES_MAX {
            return Err(Error::OutsideOffer {
                key: 0,
                at: 0,
                len: bytes,
                offered: MESSAGE_BYTES_MAX,
            });
        }
        for key in want.values().chunks_exact(8).filter_map(|key| key.first_chunk()) {
            let key = u64::from_le_bytes(*key);
            lane(&mut self.lanes, peer)?.landings.retain(|(landing, _)| *landing != key);
            drop(self.transport.withdraw(peer, key)?);
        }
        lane(&mut self.lanes, peer)?.wanted.push_back(bytes as usize);
        self.serve_wants(peer)
    }

    /// Replaces the landings that the peer has used; the messages that lay there are gone by now.
    fn replace_landings(&mut self, peer: PeerId) -> Result<()> {
        while let Some(len) = lane(&mut self.lanes, peer)?.used.pop_front() {
            let wanted = &mut lane(&mut self.lanes, peer)?.wanted;
            if wanted.is_empty() {
                wanted.push_back(len);
            }
        }
        self.serve_wants(peer)
    }

    fn serve_wants(&mut self, peer: PeerId) -> Result<()> {
        loop {
            let lane = lane(&mut self.lanes, peer)?;
            let Some(&len) = lane.wanted.front() else { return Ok(()) };
            let held = lane.landing_bytes();
            if held > 0 && held + len > LANDING_BYTES_MAX {
                return Ok(());
            }
            let landing = match self.transport.memory().allocate(len) {
                Ok(landing) => landing,
                // Memory comes back when the peer has used what it holds; with nothing held there is none to come.
                Err(_) if held > 0 => return Ok(()),
                Err(error) => return Err(error),
            };
            lane.wanted.pop_front();
            let offer = self.transport.offer(peer, landing)?;
            lane.landings.push((offer.key.get(), len));
            self.notify(peer, Kind::Grant, 0, Some(offer), Values::None)?;
        }
    }

    /// Sends a message of the endpoint's own.
    fn notify(
        &mut self,
        peer: PeerId,
        kind: Kind,
        bytes: u64,
        offer: Option<Offer>,
        values: Values<'_>,
    ) -> Result<()> {
        let draft = Draft { timestamp: bytes, offer, values, ..Draft::new(kind) };
        let outgoing = encode(self.node, draft, &mut self.plain, self.transport.memory())?;
        self.transport.post_send(peer, outgoing.head)
    }

    fn enqueue(&mut self, peer: PeerId, item: Item) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        if lane.outbox.is_empty() {
            return match self.try_send(peer, item)? {
                Some(item) => self.hold(peer, item),
                None => Ok(()),
            };
        }
        self.hold(peer, item)
    }

    /// Keeps an item back until a landing is there, and asks for one if it needs it.
    fn hold(&mut self, peer: PeerId, item: Item) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        let mut bytes = 0;
        if let Item::Image(outgoing) = &item
            && outgoing.image_bytes() > lane.frame_bytes
        {
            bytes = outgoing.image_bytes();
            lane.wants += 1;
        }
        lane.outbox.push_back(item);
        if bytes == 0 {
            return Ok(());
        }
        let mut keys = [0u8; 8 * 64];
        let returned = lane.grants.len().min(64);
        for (slot, offer) in keys.chunks_exact_mut(8).zip(lane.grants.drain(..returned)) {
            slot.copy_from_slice(&offer.key.get().to_le_bytes());
        }
        self.notify(peer, Kind::Want, bytes as u64, None, Values::Copied(&keys[..8 * returned]))
    }

    /// Sends what was held back, as far as it goes.
    fn flush(&mut self, peer: PeerId) -> Result<()> {
        while let Some(item) = lane(&mut self.lanes, peer)?.outbox.pop_front() {
            if let Some(item) = self.try_send(peer, item)? {
                let lane = lane(&mut self.lanes, peer)?;
                let lost_want = lane.wants == 0;
                lane.outbox.push_front(item);
                if lost_want {
                    // The grants were of other sizes: ask once more, for this one.
                    let held = lane.outbox.pop_front();
                    let behind = std::mem::take(&mut lane.outbox);
                    if let Some(item) = held {
                        self.hold(peer, item)?;
                    }
                    self::lane(&mut self.lanes, peer)?.outbox.extend(behind);
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Posts an item, or hands it back when it needs a landing that is not there.
    fn try_send(&mut self, peer: PeerId, item: Item) -> Result<Option<Item>> {
        let lane = lane(&mut self.lanes, peer)?;
        let outgoing = match item {
            Item::Place { data, into } => {
                self.write(peer, data, &into, 0)?;
                return Ok(None);
            }
            Item::Image(outgoing) => outgoing,
        };
        let bytes = outgoing.image_bytes();
        if bytes <= lane.frame_bytes {
            let frame = whole(outgoing, self.transport.memory())?;
            self.transport.post_send(peer, frame)?;
            return Ok(None);
        }
        let Some(landing) = lane.take_grant(bytes) else { return Ok(Some(Item::Image(outgoing))) };
        let Outgoing { mut head, values } = outgoing;
        let head = head.split_off(FRAME_PREFIX).share();
        let head_bytes = head.len() as u64;
        self.write(peer, head, &landing, 0)?;
        if let Some(values) = values {
            self.write(peer, values, &landing, head_bytes)?;
        }
        self.notify(peer, Kind::Landed, bytes as u64, Some(landing), Values::None)?;
        Ok(None)
    }

    fn write(&mut self, peer: PeerId, data: Shared, into: &Offer, at: u64) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let end = data.len().min(done + WRITE_BYTES_MAX);
            self.transport.post_write(peer, data.slice(done..end), into, at + done as u64)?;
            done = end;
        }
        Ok(())
    }
}

/// The open lane to `peer`.
fn lane(lanes: &mut [Option<Lane>], peer: PeerId) -> Result<&mut Lane> {
    lanes.get_mut(peer.0 as usize).and_then(Option::as_mut).ok_or(Error::NotConnected { peer })
}

/// One frame that holds the whole image; short values that lay apart are copied behind the head.
fn whole(outgoing: Outgoing, pool: &Pool) -> Result<Buffer> {
    let Some(values) = outgoing.values else { return Ok(outgoing.head) };
    let mut frame = pool.allocate(outgoing.head.len() + values.len())?;
    let (head, rest) = frame.split_at_mut(outgoing.head.len());
    head.copy_from_slice(&outgoing.head);
    rest.copy_from_slice(&values);
    Ok(frame)
}
