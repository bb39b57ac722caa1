//! What goes: which way a message goes, and what is posted for it; short ones share the lane's open frame.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use super::Endpoint;
use super::lane::{Item, lane};
use super::packing::Packer;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::message::{Draft, Outgoing, Values};
use crate::metrics::Counters;
use crate::transport::{FRAME_PREFIX, Frame, Limits, PeerId, Transport, check_write};
use crate::wire::{Coding, Kind, Offer, TRAILER, encode};

impl Endpoint {
    /// Encodes and posts a message. Nothing has happened when it cannot be encoded.
    ///
    /// # Errors
    /// [`Error::QueueFull`] when a request finds no credit; [`Error::NotConnected`]; what [`encode`] and the transport report.
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
        open.enter(draft.kind, draft.timestamp, draft.offer.as_ref());
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
        let is_request = kind == Kind::Request;
        let bytes = draft.image_bytes_max();
        let stays = matches!(&draft.values, Values::Apart(values) if self.lends(values.len()));
        let open = lane(&mut self.lanes, peer)?;
        let packs = open.outbox.is_empty() && !stays;
        let room = open.packed_bytes().checked_sub(bytes).filter(|_| packs);
        let is_settled = open.landings.is_settled();
        self.counted.messages_sent += 1;
        let mut draft = draft;
        match room {
            None => self.post_alone(peer, draft, coding)?,
            Some(room) if !is_settled && !is_request && room >= size_of::<Offer>() => {
                self.pack_with_landing(peer, &mut draft, bytes, coding)?;
            }
            Some(_) => self.pack(peer, &mut draft, bytes, coding)?,
        }
        lane(&mut self.lanes, peer)?.enter(kind, timestamp, offer.as_ref());
        // A message that has to wait for a landing, or for others that do, must not keep the peer waiting for one.
        if is_settled { Ok(()) } else { self.replace_landings(peer) }
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
        self.enqueue(peer, Item::Place { data, into }, false)?;
        let open = lane(&mut self.lanes, peer)?;
        open.unanswered = open.unanswered.saturating_sub(1);
        open.landings.placed(into.key.get());
        // Behind the values, where it costs a van that reads ahead nothing to look for more.
        self.replace_landings(peer)
    }

    /// Sends a message of the endpoint's own, a short one.
    pub(super) fn notify(&mut self, peer: PeerId, draft: Draft<'_>) -> Result<()> {
        let mut draft = draft;
        let bytes = draft.image_bytes_max();
        self.pack(peer, &mut draft, bytes, &mut Coding::plain())?;
        Ok(())
    }

    /// Puts a message of up to `bytes` bytes behind those that are about to leave.
    pub(super) fn pack(
        &mut self,
        peer: PeerId,
        draft: &mut Draft<'_>,
        bytes: usize,
        coding: &mut Coding,
    ) -> Result<()> {
        self.open_frame(peer, bytes)?;
        let open = lane(&mut self.lanes, peer)?;
        if !open.packer.extend(draft) {
            let image = (draft, bytes, open.frame_bytes);
            open.packer.append(self.node, image, coding, &self.memory)?;
        }
        if !std::mem::replace(&mut open.is_listed, true) {
            self.open.push(peer);
        }
        Ok(())
    }

    /// Closes a lane's frame if a message of up to `bytes` bytes does not go into it any more.
    pub(super) fn open_frame(&mut self, peer: PeerId, bytes: usize) -> Result<()> {
        let open = lane(&mut self.lanes, peer)?;
        if open.packer.takes(bytes) { Ok(()) } else { self.close_frame(peer) }
    }

    /// Posts a lane's open frame, if there is one. When that fails the lane is closed: what was in it was taken on before.
    fn close_frame(&mut self, peer: PeerId) -> Result<()> {
        let packer = &mut lane(&mut self.lanes, peer)?.packer;
        let posted =
            post_frame(packer, &self.limits, &mut self.counted, &mut *self.transport, peer);
        if let Err(error) = &posted {
            self.not_sent(peer, error);
        }
        posted
    }

    /// Posts all open frames.
    #[inline(never)]
    pub(super) fn close_frames(&mut self) {
        while let Some(peer) = self.open.pop() {
            let Some(Some(lane)) = self.lanes.get_mut(peer.0 as usize) else { continue };
            lane.is_listed = false;
            let (packer, counted) = (&mut lane.packer, &mut self.counted);
            let posted = post_frame(packer, &self.limits, counted, &mut *self.transport, peer);
            if let Err(error) = posted {
                self.not_sent(peer, &error); // its lane is closed then
            }
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
        coding.carrier_checks = self.limits.checks_bytes;
        let is_request = draft.kind == Kind::Request;
        let outgoing = encode(self.node, draft, coding, &self.memory)?;
        let frame_bytes = lane(&mut self.lanes, peer)?.frame_bytes;
        let item = match outgoing {
            Outgoing { head, values: Some(values) }
                if head.len() - TRAILER <= FRAME_PREFIX + frame_bytes
                    && self.lends(values.len()) =>
            {
                let mut frame = head;
                frame.truncate(frame.len() - TRAILER);
                Item::Loan { frame, values }
            }
            outgoing => Item::Image(outgoing),
        };
        self.enqueue(peer, item, is_request)
    }

    fn enqueue(&mut self, peer: PeerId, item: Item, is_request: bool) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        if lane.outbox.is_empty()
            && let Ok(landing) = lane.landing_for(&item)
        {
            return self.send(peer, item, landing);
        }
        self.hold(peer, item, is_request)
    }

    /// Keeps an item back until a landing is there, and asks for one if it needs it. How many requests wait is up to this side; how
    /// many answers, to a peer that grants no landing for them.
    fn hold(&mut self, peer: PeerId, item: Item, is_request: bool) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        let bytes = item.landing_bytes(lane.frame_bytes);
        let free = (!is_request).then(|| self.memory.bytes_free());
        let held = lane.hold(item, free);
        held.map_err(|item| self.memory.refusal(item.bytes()))?;
        if bytes == 0 {
            return Ok(());
        }
        lane.grants.ask();
        self.want(peer, bytes)
    }

    /// Sends what was held back, as far as it goes.
    pub(super) fn flush(&mut self, peer: PeerId) -> Result<()> {
        loop {
            let lane = lane(&mut self.lanes, peer)?;
            let Some(item) = lane.release() else { return Ok(()) };
            match lane.landing_for(&item) {
                Ok(landing) => self.send(peer, item, landing)?,
                Err(bytes) => {
                    lane.put_back(item);
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
            (Item::Loan { frame, values }, _) => {
                let declined = self.transport.post_send(peer, Frame::Lent { frame, values })?;
                let Some(Frame::Lent { frame, values }) = declined else { return Ok(()) };
                let outgoing = Outgoing::with_trailer(&frame, values, &self.memory)?;
                self.send_first(peer, Item::Image(outgoing))
            }
            (Item::Image(outgoing), None) => {
                let frame = whole(outgoing, &self.memory)?;
                self.transport.post_send(peer, frame.into())?;
                Ok(())
            }
            (Item::Image(outgoing), Some(landing)) => self.land(peer, outgoing, landing),
        }
    }

    /// Sends an item before all that is held back, or holds it back as the first.
    #[cold]
    fn send_first(&mut self, peer: PeerId, item: Item) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        match lane.landing_for(&item) {
            Ok(landing) => self.send(peer, item, landing),
            Err(bytes) => {
                lane.put_back(item);
                lane.grants.ask();
                self.want(peer, bytes)
            }
        }
    }
}

/// Posts the open frame of a packer, if there is one: copied if it is short and the van can, or as it lies.
#[inline(always)]
fn post_frame(
    packer: &mut Packer,
    limits: &Limits,
    counted: &mut Counters,
    transport: &mut dyn Transport,
    peer: PeerId,
) -> Result<()> {
    let Some(frame) = packer.close(limits.checks_bytes) else { return Ok(()) };
    let bytes = frame.len();
    counted.message_bytes_copied += bytes as u64;
    if bytes <= limits.copy_bytes && transport.post_send(peer, Frame::Borrowed(frame))?.is_none() {
        return Ok(());
    }
    let Some(frame) = packer.take(bytes) else { return Ok(()) };
    transport.post_send(peer, Frame::Owned(frame))?;
    Ok(())
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
