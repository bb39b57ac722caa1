//! What is under way with one peer: its credits, what is about to leave, and what waits. No I/O.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use std::collections::VecDeque;

use super::landing::{Grants, Landings, Places, is_within_share};
use super::packing::{PACKED_BYTES_MAX, Packer};
use super::rendezvous::landed_bytes;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Shared};
use crate::message::Outgoing;
use crate::transport::PeerId;
use crate::wire::{Kind, Offer};

/// What is under way with one peer.
#[derive(Default)]
pub(super) struct Lane {
    /// Who it is, for people: its address, or its node if it called.
    pub(super) name: String,
    /// Requests that may still be posted; 0 until the peer has said hello.
    pub(super) credits: u16,
    /// Requests that the peer takes at a time.
    pub(super) credits_max: u16,
    /// Requests of the peer that wait for our reply.
    pub(super) unanswered: u16,
    pub(super) frame_bytes: usize,
    /// Short messages that are about to leave.
    pub(super) packer: Packer,
    /// Whether the next poll knows that it has to close a frame of this lane.
    pub(super) is_listed: bool,
    /// What waits for a landing, and what must not overtake it.
    pub(super) outbox: VecDeque<Item>,
    /// Bytes of all of that.
    pub(super) outbox_bytes: usize,
    pub(super) grants: Grants,
    pub(super) landings: Landings,
    pub(super) places: Places,
}

impl Lane {
    /// Enters `count` requests that came, of at most `credits` that are not answered; false if they are too many.
    #[must_use]
    #[inline]
    pub(super) fn requested(&mut self, count: usize, credits: u16) -> bool {
        let are_due = count <= usize::from(credits.saturating_sub(self.unanswered));
        self.unanswered += if are_due { count as u16 } else { 0 };
        are_due
    }

    /// Enters `count` answers that came: their requests' credits are back. False if there are not as many requests.
    #[must_use]
    #[inline]
    pub(super) fn answered(&mut self, count: usize) -> bool {
        let are_due = count <= usize::from(self.credits_max - self.credits);
        self.credits += if are_due { count as u16 } else { 0 };
        are_due
    }

    /// Enters a message that was posted: a request has spent a credit, and an answer been given.
    ///
    /// # Panics
    /// If an answer comes with an offer: that section of it is the endpoint's own.
    #[inline(always)]
    pub(super) fn enter(&mut self, kind: Kind, timestamp: u64, offer: Option<&Offer>) {
        let is_request = kind == Kind::Request;
        match is_request {
            true => self.credits -= 1,
            false => {
                self.unanswered = self.unanswered.saturating_sub(1);
                if !self.landings.is_settled() {
                    self.landings.answered(timestamp);
                }
            }
        }
        if let Some(offer) = offer {
            assert!(is_request, "only a request can offer memory");
            self.places.enter(offer.key.get(), timestamp, self.credits_max.into());
        }
    }

    /// Puts an item behind those that wait.
    ///
    /// # Errors
    /// Hands back an answer with which the lane would hold more than its share of the memory, of which so many bytes are `free`.
    pub(super) fn hold(&mut self, item: Item, free: Option<usize>) -> Result<(), Item> {
        let bytes = self.outbox_bytes + item.bytes();
        if free.is_some_and(|free| !is_within_share(bytes, free + bytes)) {
            return Err(item);
        }
        self.outbox_bytes = bytes;
        self.outbox.push_back(item);
        Ok(())
    }

    /// Takes out the item that has waited longest.
    pub(super) fn release(&mut self) -> Option<Item> {
        let item = self.outbox.pop_front()?;
        self.outbox_bytes -= item.bytes();
        Some(item)
    }

    /// Puts that item back.
    pub(super) fn put_back(&mut self, item: Item) {
        self.outbox_bytes += item.bytes();
        self.outbox.push_front(item);
    }

    /// Whether what is posted now leaves at once, with nothing else to be said.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.outbox.is_empty() && self.landings.is_settled()
    }

    /// Messages up to this long are packed.
    pub(super) fn packed_bytes(&self) -> usize {
        self.frame_bytes.min(PACKED_BYTES_MAX)
    }

    /// Takes the landing that an item needs, if it needs one.
    ///
    /// # Errors
    /// How long a landing it needs when none that is held will do.
    pub(super) fn landing_for(&mut self, item: &Item) -> Result<Option<Offer>, usize> {
        match item.landing_bytes(self.frame_bytes) {
            0 => Ok(None),
            bytes => self.grants.take(bytes).map(Some).ok_or(bytes),
        }
    }
}

pub(super) enum Item {
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
    /// Bytes of memory that it holds.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Item::Image(outgoing) => outgoing.image_bytes(),
            Item::Place { data, .. } => data.len(),
            Item::Loan { frame, values } => frame.len() + values.len(),
        }
    }

    /// How long a landing it needs at a peer that takes frames of `frame_bytes`; 0 for none.
    pub(super) fn landing_bytes(&self, frame_bytes: usize) -> usize {
        match self {
            Item::Image(outgoing) if outgoing.image_bytes() > frame_bytes => landed_bytes(outgoing),
            Item::Image(_) | Item::Place { .. } | Item::Loan { .. } => 0,
        }
    }
}

/// The open lane to `peer`.
#[inline]
pub(super) fn lane(lanes: &mut [Option<Lane>], peer: PeerId) -> Result<&mut Lane> {
    match lanes.get_mut(peer.0 as usize) {
        Some(Some(lane)) => Ok(lane),
        _ => Err(Error::NotConnected { peer }),
    }
}
