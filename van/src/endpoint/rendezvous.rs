//! Rendezvous: the endpoint asks for landings, grants them, writes into them, reads them and
//! replaces them. `landing.rs` keeps the ledger; `send.rs` decides which message needs a landing.
//!
//! | notice | `timestamp` | `clock` | offer | values |
//! |---|---|---|---|---|
//! | [`Kind::Want`] | bytes needed, 0 for none | – | – | keys of returned landings, 8 bytes each |
//! | [`Kind::Grant`] | – | – | the landing | – |
//!
//! A landing that replaces a used one comes in the offer section of an answer where possible. No
//! notice announces a landed message: the write itself does, with its offset and length.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use super::Connections;
use super::connection::lane;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Shared};
use crate::message::{Draft, Message, Outgoing, Values};
use crate::transport::{FRAME_PREFIX, Gather, PeerId, WRITE_AT_END, WRITE_BYTES_MAX};
use crate::wire::{Coding, Header, Kind, Offer, TRAILER, decode, decode_landed};

/// Offset in a landing of a message that begins with its header.
const HEAD_FIRST: u64 = 8;

/// Offset in a landing of a message that begins with its values; see [`Message::decode_landed`].
const VALUES_FIRST: u64 = 0;

/// Longest message and its offset in a landing: the most memory that a peer may ask for, in bytes.
const MESSAGE_BYTES_MAX: u64 = WRITE_BYTES_MAX as u64 + WRITE_AT_END;

impl Connections {
    /// Returns all landings that the peer granted, none of which is long enough, and asks for one
    /// of `bytes` unless that is 0. A peer may wait for the use of a held landing before it grants
    /// another, so none is kept.
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
            let bytes = if last { bytes as u64 } else { 0 };
            let values = Values::Copied(&keys[..8 * returned]);
            self.notify(peer, Draft { timestamp: bytes, values, ..Draft::new(Kind::Want) })?;
            if last {
                return Ok(());
            }
        }
    }

    /// Writes a long message into a landing that holds it. Values in memory of their own go first,
    /// to the start of a page. The kernel copies faster to there, and a device's packets do not
    /// straddle pages.
    pub(super) fn land(&mut self, peer: PeerId, outgoing: Outgoing, landing: Offer) -> Result<()> {
        let Outgoing { mut head, values } = outgoing;
        let (data, at) = match values {
            None => {
                head.advance(FRAME_PREFIX);
                (head.share().into(), HEAD_FIRST)
            }
            Some(values) => {
                head.advance(FRAME_PREFIX - padding(&values)); // the prefix holds zeros
                (Gather { head: values, tail: Some(head.share()) }, VALUES_FIRST)
            }
        };
        self.transport.post_write(peer, data, &landing, at)
    }

    /// Reads the long message that lies in `len` bytes at `at` of a landing.
    pub(super) fn pick_up(
        &mut self,
        peer: PeerId,
        landing: Buffer,
        at: usize,
        len: usize,
    ) -> Result<Message> {
        let landing_bytes = landing.len();
        let mut image = landing;
        image.advance(at);
        image.truncate(len);
        let memory = &self.memory;
        let checked = self.checks_bytes(peer);
        let message = match at as u64 {
            VALUES_FIRST => decode_landed(image, checked, memory)?,
            _ => decode(image, checked, memory)?,
        };
        if message.kind() == Kind::Request {
            let place = message.offer().map(|offer| offer.key.get());
            lane(&mut self.lanes, peer)?.landings.keep(message.timestamp(), place, landing_bytes);
        }
        // Other messages may have waited for the use of this landing. They are served before this
        // message is answered, because its answer may in turn wait for one of them.
        self.serve_wants(peer, true)?;
        match message.kind() {
            Kind::Request | Kind::Reply | Kind::Failure => Ok(message),
            Kind::Requests | Kind::Replies | Kind::Want | Kind::Grant => {
                Err(Error::Unasked { peer, what: "a long notice" })
            }
        }
    }

    /// Records a landing that the peer grants, and sends what waited for it.
    pub(super) fn take_grant(&mut self, peer: PeerId, landing: Option<Offer>) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        if !landing.is_some_and(|landing| lane.grants.enter(landing)) {
            return Err(Error::Unasked { peer, what: "a landing" });
        }
        self.flush(peer)
    }

    /// Answers a [`Kind::Want`] now if the peer is within its share, else when the peer has used a
    /// landing.
    pub(super) fn grant_wanted(&mut self, peer: PeerId, want: &Message) -> Result<()> {
        let bytes = want.timestamp();
        let longest = (self.memory.bytes_max() as u64).min(MESSAGE_BYTES_MAX);
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

    /// Packs an answer of up to `bytes` bytes, with a landing in place of a used one unless memory
    /// is short. The memory of the answer itself is reserved first.
    #[inline(never)]
    pub(super) fn pack_with_landing(
        &mut self,
        peer: PeerId,
        draft: &mut Draft<'_>,
        bytes: usize,
        coding: &mut Coding,
    ) -> Result<()> {
        let bytes = bytes + size_of::<Offer>();
        self.open_frame(peer, bytes)?;
        let open = lane(&mut self.lanes, peer)?;
        let memory = &self.memory;
        open.packer.reserve(bytes, memory)?;
        let replaced = open.landings.next_replaced(|| memory.bytes_free());
        let landing = replaced.and_then(|len| memory.allocate(len).ok());
        draft.offer = landing.map(|landing| self.open_landing(peer, landing)).transpose()?;
        let packed = self.pack(peer, draft, bytes, coding);
        if let (Err(_), Some(offer)) = (&packed, draft.offer) {
            // The peer has not heard of this landing and will ask for one.
            let _ = lane(&mut self.lanes, peer)?.landings.return_unused(offer.key.get());
            drop(self.transport.withdraw(peer, offer.key.get())?);
        }
        packed
    }

    /// Replaces the landings that the peer has used. If the peer waits for others, or memory is
    /// short, the peer will ask.
    pub(super) fn replace_landings(&mut self, peer: PeerId) -> Result<()> {
        loop {
            let landings = &mut lane(&mut self.lanes, peer)?.landings;
            let Some(len) = landings.next_replaced(|| self.memory.bytes_free()) else { break };
            if let Ok(landing) = self.memory.allocate(len) {
                self.grant(peer, landing)?;
            }
        }
        self.serve_wants(peer, true)
    }

    /// Grants the wanted landings as far as the peer's share and the memory allow. If they do not,
    /// and the peer holds none that will come back, `patient` callers try again at the next poll;
    /// others get the error.
    fn serve_wants(&mut self, peer: PeerId, patient: bool) -> Result<()> {
        loop {
            let lane = lane(&mut self.lanes, peer)?;
            let Some(len) = lane.landings.next_wanted() else { return Ok(()) };
            let landing = match lane.landings.has_room(len, self.memory.bytes_free()) {
                true => self.memory.allocate(len),
                false => Err(self.memory.refusal(len)),
            };
            let landing = match landing {
                Ok(landing) => landing,
                Err(_) if patient || lane.landings.bytes() > 0 || lane.unanswered > 0 => {
                    (self.starved, self.has_chores) = (true, true);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            lane.landings.serve_next();
            self.grant(peer, landing)?;
        }
    }

    /// Serves the peers that wait for a landing because memory was short.
    #[cold]
    pub(super) fn feed(&mut self) {
        self.starved = false;
        for index in 0..self.lanes.len() {
            let waits = self.lanes[index].as_ref().is_some_and(|lane| lane.landings.is_wanted());
            let peer = PeerId(index as u32);
            if waits && let Err(error) = self.serve_wants(peer, false) {
                self.drop_lane(peer, &error);
            }
        }
    }

    fn grant(&mut self, peer: PeerId, landing: Buffer) -> Result<()> {
        let offer = self.open_landing(peer, landing)?;
        self.notify(peer, Draft { offer: Some(offer), ..Draft::new(Kind::Grant) })
    }

    fn open_landing(&mut self, peer: PeerId, landing: Buffer) -> Result<Offer> {
        let len = landing.len();
        let offer = self.transport.offer(peer, landing)?;
        lane(&mut self.lanes, peer)?.landings.enter(offer.key.get(), len);
        Ok(offer)
    }
}

/// Length of the landing for a message that does not fit into a frame.
pub(super) fn landed_bytes(outgoing: &Outgoing) -> usize {
    match &outgoing.values {
        None => HEAD_FIRST as usize + outgoing.image_bytes(),
        Some(values) => outgoing.image_bytes() + padding(values) + TRAILER,
    }
}

/// Number of zero bytes between values and the next section.
fn padding(values: &Shared) -> usize {
    values.len().wrapping_neg() % 8
}
