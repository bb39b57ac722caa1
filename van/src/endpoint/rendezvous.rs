//! Rendezvous: how landings are asked for, granted, written to, picked up and replaced. Who has which is `landing.rs`'s
//! business; which message goes this way is the endpoint's.
//!
//! | notice | `timestamp` | `clock` | offer | values |
//! |---|---|---|---|---|
//! | [`Kind::Want`] | bytes needed, 0 for none | – | – | keys of landings that go back, 8 bytes each |
//! | [`Kind::Grant`] | – | – | the landing | – |
//! | [`Kind::Landed`] | bytes of the image | where in the landing it begins | the landing | – |
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use super::{Arrival, Endpoint, lane};
use crate::error::{Error, Result};
use crate::memory::{Buffer, SLOT_ALIGN};
use crate::message::{Draft, Message, Outgoing, Values};
use crate::transport::{FRAME_PREFIX, PeerId};
use crate::wire::{Header, Kind, Offer};

/// Longest message, in bytes: what a peer may ask memory for.
const MESSAGE_BYTES_MAX: u64 = 4 << 30;

impl Endpoint {
    /// Gives back all landings that the peer granted, none of which is long enough, and asks for one of `bytes` unless that
    /// is 0. What is not given back counts as held, and the peer may wait for it to be used before it grants another.
    pub(super) fn want(&mut self, peer: PeerId, bytes: usize) -> Result<()> {
        loop {
            let mut keys = [0u8; 8 * 64];
            let lane = lane(&mut self.lanes, peer)?;
            let room = (lane.frame_bytes.saturating_sub(size_of::<Header>()) / 8).clamp(1, 64);
            let offers = lane.grants.give_back(room);
            let returned = offers.len();
            for (slot, offer) in keys.chunks_exact_mut(8).zip(offers) {
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

    /// Writes a long message into a landing that holds it, and says that it is there.
    pub(super) fn land(&mut self, peer: PeerId, outgoing: Outgoing, landing: Offer) -> Result<()> {
        let (bytes, skew) = (outgoing.image_bytes() as u64, skew(&outgoing) as u64);
        let Outgoing { mut head, values } = outgoing;
        let head = head.split_off(FRAME_PREFIX).share();
        let head_bytes = head.len() as u64;
        self.write(peer, head, &landing, skew)?;
        if let Some(values) = values {
            self.write(peer, values, &landing, skew + head_bytes)?;
        }
        let (timestamp, clock, offer) = (bytes, skew, Some(landing));
        self.notify(peer, Draft { timestamp, clock, offer, ..Draft::new(Kind::Landed) })
    }

    /// Reads the long message that `notice` says has landed.
    pub(super) fn pick_up(&mut self, peer: PeerId, notice: &Message) -> Result<Message> {
        let key = notice.offer().map_or(u64::MAX, |offer| offer.key.get());
        let lane = lane(&mut self.lanes, peer)?;
        let missing = Error::OutsideOffer { key, at: 0, len: notice.timestamp(), offered: 0 };
        if !lane.landings.use_up(key) {
            return Err(missing);
        }
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
    pub(super) fn grant_wanted(&mut self, peer: PeerId, want: &Message) -> Result<()> {
        let (bytes, offered) = (want.timestamp(), MESSAGE_BYTES_MAX);
        let longest = (self.transport.memory().bytes_max() as u64).min(offered);
        if bytes > longest {
            return Err(Error::OutsideOffer { key: 0, at: 0, len: bytes, offered: longest });
        }
        let lane = lane(&mut self.lanes, peer)?;
        for key in want.values().chunks_exact(8).filter_map(|key| key.first_chunk()) {
            let key = u64::from_le_bytes(*key);
            if !lane.landings.return_unused(key) {
                return Err(Error::OutsideOffer { key, at: 0, len: 0, offered: 0 });
            }
            drop(self.transport.withdraw(peer, key)?);
        }
        if bytes > 0 && !lane.landings.want(bytes as usize) {
            return Err(Error::QueueFull { peer, depth: lane.landings.count_max });
        }
        self.serve_wants(peer, false)
    }

    /// Replaces the landings that the peer has used, unless it waits for others, or memory is short: then it will ask.
    pub(super) fn replace_landings(&mut self, peer: PeerId) -> Result<()> {
        while let Some(len) = lane(&mut self.lanes, peer)?.landings.next_replaced() {
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
            let Some(len) = lane.landings.next_wanted() else { return Ok(()) };
            let landing = match self.transport.memory().allocate(len) {
                Ok(landing) => landing,
                Err(_) if patient || lane.landings.bytes() > 0 || lane.unanswered > 0 => {
                    self.starved = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            lane.landings.serve_next();
            self.grant(peer, landing)?;
        }
    }

    /// Tries again to serve those for whom memory was short.
    pub(super) fn feed(&mut self, arrivals: &mut Vec<Arrival>) {
        self.starved = false;
        for index in 0..self.lanes.len() {
            let waits = self.lanes[index].as_ref().is_some_and(|lane| lane.landings.is_wanted());
            let peer = PeerId(index as u32);
            if waits && let Err(error) = self.serve_wants(peer, false) {
                self.drop_lane(peer, &error, arrivals);
            }
        }
    }

    fn grant(&mut self, peer: PeerId, landing: Buffer) -> Result<()> {
        let len = landing.len();
        let offer = self.transport.offer(peer, landing)?;
        lane(&mut self.lanes, peer)?.landings.enter(offer.key.get(), len);
        self.notify(peer, Draft { offer: Some(offer), ..Draft::new(Kind::Grant) })
    }
}

/// Where in a landing a message begins, so that values that lie apart come to lie at the start of a page: the kernel copies
/// much faster to there.
pub(super) fn skew(outgoing: &Outgoing) -> usize {
    match outgoing.values {
        Some(_) => (outgoing.head.len() - FRAME_PREFIX).wrapping_neg() % SLOT_ALIGN,
        None => 0,
    }
}
