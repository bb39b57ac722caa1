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
use crate::memory::{Buffer, Pool, SLOT_ALIGN, Shared};
use crate::message::{Draft, Message, Outgoing, Values};
use crate::metrics::Counters;
use crate::transport::{Event, FRAME_PREFIX, Limits, PeerId, Transport};
use crate::wire::{Coding, Header, Hello, Kind, Offer, encode};

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
    /// Whether a peer waits for a landing that there was no room for.
    starved: bool,
}

/// What is under way with one peer.
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
    /// Landings that either side grants and is asked for at a time. An honest peer has one for each message under way, and
    /// one more while those of the wrong size are on their way back.
    landings_max: usize,
}

enum Item {
    Image(Outgoing),
    Place { data: Shared, into: Offer },
}

impl Item {
    /// How long a landing it needs at a peer that takes frames of `frame_bytes`; 0 for none.
    fn landing_bytes(&self, frame_bytes: usize) -> usize {
        match self {
            Item::Image(outgoing) if outgoing.image_bytes() > frame_bytes => {
                outgoing.image_bytes() + skew(outgoing)
            }
            Item::Image(_) | Item::Place { .. } => 0,
        }
    }
}

impl Lane {
    fn new() -> Self {
        Lane {
            name: String::new(),
            credits: 0,
            credits_max: 0,
            unanswered: 0,
            frame_bytes: 0,
            outbox: VecDeque::new(),
            grants: Vec::new(),
            wants: 0,
            landings: Vec::new(),
            used: VecDeque::new(),
            wanted: VecDeque::new(),
            landings_max: 0,
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
            starved: false,
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

    /// Encodes and posts a message. Nothing has happened when it cannot be encoded.
    ///
    /// # Errors
    /// [`Error::QueueFull`] when a request finds no credit; [`Error::NotConnected`]; what [`encode`] and the transport report.
    pub fn post(&mut self, peer: PeerId, draft: Draft<'_>, coding: &mut Coding) -> Result<()> {
        let kind = draft.kind;
        let open = lane(&mut self.lanes, peer)?;
        if kind == Kind::Request && open.credits == 0 {
            return Err(Error::QueueFull { peer, depth: open.credits_max.into() });
        }
        let outgoing = encode(self.node, draft, coding, self.transport.memory())?;
        self.replace_landings(peer)?;
        self.enqueue(peer, Item::Image(outgoing))?;
        let open = lane(&mut self.lanes, peer)?;
        match kind {
            Kind::Request => open.credits -= 1,
            Kind::Reply | Kind::Failure => open.unanswered = open.unanswered.saturating_sub(1),
            Kind::Want | Kind::Grant | Kind::Landed => {}
        }
        Ok(())
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
        if self.starved {
            self.feed(arrivals);
        }
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
                let (limit, credits) = (self.limits.frame_bytes, self.credits);
                let lane = self.enter(peer);
                if lane.name.is_empty() {
                    lane.name = format!("node {}, which called", hello.node);
                }
                (lane.credits, lane.credits_max) = (hello.credits.get(), hello.credits.get());
                lane.landings_max = 4 * (usize::from(credits) + usize::from(lane.credits_max));
                lane.frame_bytes = limit.min(hello.frame_bytes.get() as usize);
                arrivals.push(Arrival::Connected { peer, hello });
            }
            Event::Received { peer, frame } => {
                if let Err(error) = self.receive(peer, frame, arrivals) {
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
        let lane = self.lanes.get_mut(peer.0 as usize).and_then(Option::as_mut);
        let address = lane.map_or_else(String::new, |lane| std::mem::take(&mut lane.name));
        let reason = format!("dropped by this side: {error}");
        self.disconnect(peer);
        arrivals.push(Arrival::Lost { peer, error: Error::PeerLost { peer, address, reason } });
    }

    /// Takes in one frame of a peer that is still connected.
    fn receive(&mut self, peer: PeerId, frame: Buffer, arrivals: &mut Vec<Arrival>) -> Result<()> {
        let Ok(open) = lane(&mut self.lanes, peer) else { return Ok(()) };
        let message = Message::decode(frame, self.transport.memory())?;
        match message.kind() {
            Kind::Want => return self.grant_wanted(peer, &message),
            Kind::Grant => {
                let unasked = Error::Unasked { peer, what: "a landing" };
                let room = open.grants.len() < open.landings_max;
                open.grants.push(message.offer().filter(|_| room).ok_or(unasked)?);
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
            _ if lane.credits == lane.credits_max => {
                return Err(Error::Unasked { peer, what: "an answer" });
            }
            _ => lane.credits += 1,
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
        let (skew, bytes) = (notice.clock(), notice.timestamp());
        if skew.checked_add(bytes).is_none_or(|end| end > image.len() as u64) {
            return Err(missing);
        }
        drop(image.split_to(skew as usize));
        image.truncate(bytes as usize);
        let message = Message::decode(image, self.transport.memory())?;
        // Others may have waited for this landing to be used. It must not wait for an answer to this message, which may in
        // turn wait for one of them.
        self.serve_wants(peer, true)?;
        match message.kind() {
            Kind::Request | Kind::Reply | Kind::Failure => Ok(message),
            Kind::Want | Kind::Grant | Kind::Landed => Err(missing),
        }
    }

    /// Answers a [`Kind::Want`] now if the peer is within its share, else when it has used a landing.
    fn grant_wanted(&mut self, peer: PeerId, want: &Message) -> Result<()> {
        let (bytes, offered) = (want.timestamp(), MESSAGE_BYTES_MAX);
        let longest = (self.transport.memory().bytes_max() as u64).min(offered);
        if bytes > longest {
            return Err(Error::OutsideOffer { key: 0, at: 0, len: bytes, offered: longest });
        }
        let lane = lane(&mut self.lanes, peer)?;
        for key in want.values().chunks_exact(8).filter_map(|key| key.first_chunk()) {
            let key = u64::from_le_bytes(*key);
            let landing = lane.landings.iter().position(|(landing, _)| *landing == key);
            let missing = Error::OutsideOffer { key, at: 0, len: 0, offered: 0 };
            lane.landings.swap_remove(landing.ok_or(missing)?);
            drop(self.transport.withdraw(peer, key)?);
        }
        if bytes > 0 {
            let depth = lane.landings_max;
            if lane.landings.len() + lane.wanted.len() >= depth {
                return Err(Error::QueueFull { peer, depth });
            }
            lane.wanted.push_back(bytes as usize);
        }
        self.serve_wants(peer, false)
    }

    /// Replaces the landings that the peer has used, unless it waits for others, or memory is short: then it will ask.
    fn replace_landings(&mut self, peer: PeerId) -> Result<()> {
        while let Some(len) = lane(&mut self.lanes, peer)?.used.pop_front() {
            let lane = lane(&mut self.lanes, peer)?;
            let held = lane.landing_bytes();
            if !lane.wanted.is_empty()
                || lane.landings.len() >= lane.landings_max
                || (held > 0 && held + len > LANDING_BYTES_MAX)
            {
                continue;
            }
            if let Ok(landing) = self.transport.memory().allocate(len) {
                self.grant(peer, landing)?;
            }
        }
        self.serve_wants(peer, true)
    }

    /// Grants what the peer waits for, as far as its share and memory go. With no memory, and none to come back from the peer,
    /// that is an error unless the caller is `patient`: it is tried again at the next poll.
    fn serve_wants(&mut self, peer: PeerId, patient: bool) -> Result<()> {
        loop {
            let lane = lane(&mut self.lanes, peer)?;
            let Some(&len) = lane.wanted.front() else { return Ok(()) };
            let held = lane.landing_bytes();
            if held > 0 && held + len > LANDING_BYTES_MAX {
                return Ok(());
            }
            let landing = match self.transport.memory().allocate(len) {
                Ok(landing) => landing,
                Err(_) if patient || held > 0 || lane.unanswered > 0 => {
                    self.starved = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            lane.wanted.pop_front();
            self.grant(peer, landing)?;
        }
    }

    /// Tries again to serve those for whom memory was short.
    fn feed(&mut self, arrivals: &mut Vec<Arrival>) {
        self.starved = false;
        for index in 0..self.lanes.len() {
            let waits = self.lanes[index].as_ref().is_some_and(|lane| !lane.wanted.is_empty());
            let peer = PeerId(index as u32);
            if waits && let Err(error) = self.serve_wants(peer, false) {
                self.drop_lane(peer, &error, arrivals);
            }
        }
    }

    fn grant(&mut self, peer: PeerId, landing: Buffer) -> Result<()> {
        let len = landing.len();
        let offer = self.transport.offer(peer, landing)?;
        lane(&mut self.lanes, peer)?.landings.push((offer.key.get(), len));
        self.notify(peer, Draft { offer: Some(offer), ..Draft::new(Kind::Grant) })
    }

    /// Sends a message of the endpoint's own.
    fn notify(&mut self, peer: PeerId, draft: Draft<'_>) -> Result<()> {
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
        let bytes = item.landing_bytes(lane.frame_bytes);
        lane.outbox.push_back(item);
        if bytes == 0 {
            return Ok(());
        }
        lane.wants += 1;
        self.want(peer, bytes)
    }

    /// Gives back all landings that the peer granted, none of which is long enough, and asks for one of `bytes` unless that
    /// is 0. What is not given back counts as held, and the peer may wait for it to be used before it grants another.
    fn want(&mut self, peer: PeerId, bytes: usize) -> Result<()> {
        loop {
            let mut keys = [0u8; 8 * 64];
            let lane = lane(&mut self.lanes, peer)?;
            let room = (lane.frame_bytes.saturating_sub(size_of::<Header>()) / 8).clamp(1, 64);
            let returned = lane.grants.len().min(room);
            for (slot, offer) in keys.chunks_exact_mut(8).zip(lane.grants.drain(..returned)) {
                slot.copy_from_slice(&offer.key.get().to_le_bytes());
            }
            let last = lane.grants.is_empty();
            let (bytes, keys) = (if last { bytes as u64 } else { 0 }, &keys[..8 * returned]);
            let values = Values::Copied(keys);
            self.notify(peer, Draft { timestamp: bytes, values, ..Draft::new(Kind::Want) })?;
            if last {
                return Ok(());
            }
        }
    }

    /// Sends what was held back, as far as it goes.
    fn flush(&mut self, peer: PeerId) -> Result<()> {
        while let Some(item) = lane(&mut self.lanes, peer)?.outbox.pop_front() {
            let Some(item) = self.try_send(peer, item)? else { continue };
            let lane = lane(&mut self.lanes, peer)?;
            let bytes = item.landing_bytes(lane.frame_bytes);
            lane.outbox.push_front(item);
            // What was granted is too short. It goes back, and this one is asked for again if that was the last to come.
            return match (lane.wants, lane.grants.is_empty()) {
                (0, _) => {
                    lane.wants = 1;
                    self.want(peer, bytes)
                }
                (_, false) => self.want(peer, 0),
                (_, true) => Ok(()),
            };
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
        let skew = skew(&outgoing);
        let landing = lane.take_grant(skew + bytes);
        let Some(landing) = landing else { return Ok(Some(Item::Image(outgoing))) };
        let Outgoing { mut head, values } = outgoing;
        let head = head.split_off(FRAME_PREFIX).share();
        let head_bytes = head.len() as u64;
        self.write(peer, head, &landing, skew as u64)?;
        if let Some(values) = values {
            self.write(peer, values, &landing, skew as u64 + head_bytes)?;
        }
        let notice = Draft::new(Kind::Landed);
        let (timestamp, clock, offer) = (bytes as u64, skew as u64, Some(landing));
        self.notify(peer, Draft { timestamp, clock, offer, ..notice })?;
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

/// Where in a landing a message begins, so that values that lie apart come to lie at the start of a page: the kernel copies
/// much faster to there.
fn skew(outgoing: &Outgoing) -> usize {
    match outgoing.values {
        Some(_) => (outgoing.head.len() - FRAME_PREFIX).wrapping_neg() % SLOT_ALIGN,
        None => 0,
    }
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
