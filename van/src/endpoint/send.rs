//! Sending: picks the way of each message and posts it. Short messages share the lane's open frame.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use super::Connections;
use super::connection::{Connection, Item, Rules, lane};
use super::packing::Packer;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
use crate::message::{Draft, Message, Outgoing, Values};
use crate::metrics::Counters;
use crate::transport::{FRAME_PREFIX, Frame, PeerId, Transport, check_write};
use crate::wire::{Coding, Kind, Offer, TRAILER, encode};

impl Connections {
    /// Encodes and posts a message. If it cannot be encoded, the endpoint is unchanged.
    ///
    /// # Errors
    /// [`Error::QueueFull`] if a request finds no credit; [`Error::NotConnected`]; errors of
    /// [`encode`] and of the transport.
    ///
    /// # Panics
    /// If an answer has an offer: the endpoint itself uses that section.
    pub fn post(
        &mut self,
        peer: PeerId,
        mut draft: Draft<'_>, // not moved: it is long
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

    /// Posts requests of a received message behind its first one, which was posted last, each with
    /// the header of that one: as many as fit into the open frame, as they lie. Returns how many;
    /// none where they have to be posted one by one.
    pub fn post_records(&mut self, peer: PeerId, message: &Message) -> usize {
        let Ok(open) = lane(&mut self.lanes, peer) else { return 0 };
        if !open.is_free() {
            return 0;
        }
        let count = open.packer.append_records(message, open.credits.into());
        open.credits -= count as u16;
        self.counted.messages_sent += count as u64;
        count
    }

    /// Posts the answer of `draft`, which has no content, to each record of a message.
    ///
    /// # Errors
    /// As [`Connections::post`].
    pub fn answer_each(&mut self, peer: PeerId, draft: &Draft<'_>, of: &Message) -> Result<()> {
        let &Draft { kind, op, table, range, .. } = draft;
        let mut timestamps = of.timestamps();
        let mut next = timestamps.next();
        while let Some(timestamp) = next {
            let answer = Draft { op, table, range, timestamp, ..Draft::new(kind) };
            self.post(peer, answer, &mut Coding::plain())?;
            let open = lane(&mut self.lanes, peer)?;
            let is_alike = open.is_free() && open.packer.continues(draft);
            next = timestamps.next();
            while is_alike
                && let Some(timestamp) = next
                && open.packer.repeat(timestamp)
            {
                open.unanswered = open.unanswered.saturating_sub(1);
                self.counted.messages_sent += 1;
                next = timestamps.next();
            }
        }
        Ok(())
    }

    /// Posts a message that is not of the last one's batch.
    #[inline(never)]
    fn post_image(&mut self, peer: PeerId, draft: Draft<'_>, coding: &mut Coding) -> Result<()> {
        let kind = draft.kind;
        let timestamp = draft.timestamp;
        let offer = draft.offer;
        let is_request = kind == Kind::Request;
        let bytes = draft.image_bytes_max();
        let stays =
            matches!(&draft.values, Values::Apart(values) if self.lends(peer, values.len()));
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
        // A message that waits for a landing must not keep the peer waiting for one.
        if is_settled { Ok(()) } else { self.replace_landings(peer) }
    }

    /// Answers a request without content. Consecutive answers of this kind take 8 bytes each.
    ///
    /// # Errors
    /// As [`Connections::post`].
    #[inline]
    pub fn answer(&mut self, peer: PeerId, timestamp: u64) -> Result<()> {
        self.reply(peer, 0, timestamp, &[])
    }

    /// Answers a request about `table` with only `values`, which are copied.
    ///
    /// # Errors
    /// As [`Connections::post`].
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

    /// Answers a request with only values, which are written into the memory that the request
    /// offered.
    ///
    /// # Errors
    /// [`Error::NotConnected`]; the errors of [`check_write`], after which the request is still
    /// unanswered.
    pub fn place(&mut self, peer: PeerId, data: Shared, into: Offer) -> Result<()> {
        check_write(into.key.get(), 0, data.len() as u64, into.len.get())?;
        self.counted.messages_sent += 1;
        self.enqueue(peer, Item::Place { data, into }, false)?;
        let open = lane(&mut self.lanes, peer)?;
        open.unanswered = open.unanswered.saturating_sub(1);
        open.landings.placed(into.key.get());
        // Landings follow the values, where a van that reads ahead finds them at no cost.
        self.replace_landings(peer)
    }

    /// Sends a short notice between endpoints.
    pub(super) fn notify(&mut self, peer: PeerId, draft: Draft<'_>) -> Result<()> {
        let mut draft = draft;
        let bytes = draft.image_bytes_max();
        self.pack(peer, &mut draft, bytes, &mut Coding::plain())?;
        Ok(())
    }

    /// Packs a message of up to `bytes` bytes into the open frame.
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
            let frame_bytes = open.frame_bytes;
            open.packer.append(draft, bytes, frame_bytes, coding, &self.memory)?;
        }
        if !std::mem::replace(&mut open.is_listed, true) {
            self.open.push(peer);
        }
        Ok(())
    }

    /// Closes the lane's frame if a message of up to `bytes` bytes does not fit into it.
    pub(super) fn open_frame(&mut self, peer: PeerId, bytes: usize) -> Result<()> {
        let open = lane(&mut self.lanes, peer)?;
        if open.packer.takes(bytes) { Ok(()) } else { self.close_frame(peer) }
    }

    /// Posts the lane's open frame, if any. If that fails, the lane is closed, because its messages
    /// were accepted before.
    fn close_frame(&mut self, peer: PeerId) -> Result<()> {
        let Connection { packer, rules, .. } = lane(&mut self.lanes, peer)?;
        let posted = post_frame(packer, rules, &mut self.counted, &mut *self.transport, peer);
        if let Err(error) = &posted {
            not_sent(self, peer, error);
        }
        posted
    }

    /// Posts the open frames of all lanes.
    #[inline(always)]
    pub(super) fn close_frames(&mut self) {
        if !self.open.is_empty() {
            self.close_open_frames();
        }
    }

    #[inline(never)]
    fn close_open_frames(&mut self) {
        while let Some(peer) = self.open.pop() {
            let Some(Some(lane)) = self.lanes.get_mut(peer.0 as usize) else { continue };
            lane.is_listed = false;
            let Connection { packer, rules, .. } = lane;
            let counted = &mut self.counted;
            let posted = post_frame(packer, rules, counted, &mut *self.transport, peer);
            if let Err(error) = posted {
                not_sent(self, peer, &error);
            }
        }
    }

    /// Posts a message that does not share a frame: in a frame of its own, as a loan or by
    /// rendezvous.
    fn post_alone(&mut self, peer: PeerId, draft: Draft<'_>, coding: &mut Coding) -> Result<()> {
        coding.carrier_checks = lane(&mut self.lanes, peer)?.rules.checks_bytes;
        let is_request = draft.kind == Kind::Request;
        let outgoing = encode(draft, coding, &self.memory)?;
        let frame_bytes = lane(&mut self.lanes, peer)?.frame_bytes;
        let item = match outgoing {
            Outgoing { head, values: Some(values) }
                if head.len() - TRAILER <= FRAME_PREFIX + frame_bytes
                    && self.lends(peer, values.len()) =>
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

    /// Puts an item into the outbox, and asks for a landing if it needs one and the peer is up.
    /// This side bounds how many requests wait. A peer that grants no landings decides how many
    /// answers wait, so those are bounded by memory.
    fn hold(&mut self, peer: PeerId, item: Item, is_request: bool) -> Result<()> {
        let lane = lane(&mut self.lanes, peer)?;
        let bytes = item.landing_bytes(lane.frame_bytes);
        let free = (!is_request).then(|| self.memory.bytes_free());
        let held = lane.hold(item, free);
        held.map_err(|item| self.memory.refusal(item.bytes()))?;
        if bytes == 0 || !lane.is_up() {
            return Ok(());
        }
        lane.grants.ask();
        self.want(peer, bytes)
    }

    /// Sends the items of the outbox to a peer that is up, as far as landings go.
    pub(super) fn flush(&mut self, peer: PeerId) -> Result<()> {
        loop {
            let lane = lane(&mut self.lanes, peer)?;
            let Some(item) = lane.release() else { return Ok(()) };
            match lane.landing_for(&item) {
                Ok(landing) => self.send(peer, item, landing)?,
                Err(bytes) => {
                    lane.put_back(item);
                    // The granted landing is too short. It is returned, and a new one is asked for
                    // if no other is to come.
                    return match lane.grants.ask_again(bytes) {
                        Some(bytes) => self.want(peer, bytes),
                        None => Ok(()),
                    };
                }
            }
        }
    }

    /// Posts an item, into the landing if it needs one.
    fn send(&mut self, peer: PeerId, item: Item, landing: Option<Offer>) -> Result<()> {
        self.close_frame(peer)?; // its messages come first
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

    /// Sends an item ahead of the outbox, or puts it at the outbox's front.
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

/// Closes a lane whose frame could not be sent, because its messages were accepted before.
#[cold]
#[inline(never)]
fn not_sent(lanes: &mut Connections, peer: PeerId, error: &Error) {
    if !matches!(error, Error::NotConnected { .. }) {
        lanes.drop_lane(peer, error); // else the transport reports it
    }
}

/// Posts a packer's open frame, if any. A short frame is copied if the van can; others are handed
/// over.
#[inline(always)]
fn post_frame(
    packer: &mut Packer,
    rules: &Rules,
    counted: &mut Counters,
    transport: &mut dyn Transport,
    peer: PeerId,
) -> Result<()> {
    let Some(frame) = packer.close(rules.checks_bytes) else { return Ok(()) };
    let bytes = frame.len();
    counted.message_bytes_copied += bytes as u64;
    if bytes <= rules.copy_bytes && transport.post_send(peer, Frame::Borrowed(frame))?.is_none() {
        return Ok(());
    }
    let Some(frame) = packer.take(bytes) else { return Ok(()) };
    transport.post_send(peer, Frame::Owned(frame))?;
    Ok(())
}

/// Returns one frame that holds the whole image. Short values in memory of their own are copied
/// behind the head.
fn whole(outgoing: Outgoing, pool: &Pool) -> Result<Buffer> {
    let Some(values) = outgoing.values else { return Ok(outgoing.head) };
    let head_bytes = outgoing.head.len() - TRAILER;
    let mut frame = pool.allocate(head_bytes + values.len())?;
    let (head, rest) = frame.split_at_mut(head_bytes);
    head.copy_from_slice(&outgoing.head[..head_bytes]);
    rest.copy_from_slice(&values);
    Ok(frame)
}
