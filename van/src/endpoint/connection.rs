//! State of the lane to one peer: its credits, its open frame, and the items that wait. No I/O.
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

/// What the van of a lane does with frames: see [`Limits`](crate::transport::Limits). The default
/// is what every van understands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    pub(super) checks_bytes: bool,
    pub(super) copy_bytes: usize,
}

/// State of the lane to one peer.
#[derive(Default)]
pub(super) struct Connection {
    /// Name of the peer in error messages: its address, or its node if it connected to us.
    pub(super) name: String,
    /// Number of requests that may still be posted; until the peer's hello has arrived 0, or 1.
    pub(super) credits: u16,
    /// Number of requests that the peer accepts at a time.
    pub(super) credits_max: u16,
    /// Number of the peer's requests that have no reply yet.
    pub(super) unanswered: u16,
    /// Longest frame that both sides take; 0 until the peer's hello has arrived, so that no frame
    /// takes a message.
    pub(super) frame_bytes: usize,
    /// The default until the peer's hello has arrived: another van may come to carry the lane.
    pub(super) rules: Rules,
    /// Open frame of short messages.
    pub(super) packer: Packer,
    /// Whether the endpoint's list of open frames names this lane.
    pub(super) is_listed: bool,
    /// Items that wait for a landing, and the items behind them, which must not overtake.
    pub(super) outbox: VecDeque<Item>,
    /// Total bytes of the items in `outbox`.
    pub(super) outbox_bytes: usize,
    pub(super) grants: Grants,
    pub(super) landings: Landings,
    pub(super) places: Places,
}

impl Connection {
    /// Records `count` requests that arrived. Returns false, and records nothing, if more than
    /// `credits` would be unanswered.
    #[must_use]
    #[inline]
    pub(super) fn requested(&mut self, count: usize, credits: u16) -> bool {
        let is_due = count <= usize::from(credits.saturating_sub(self.unanswered));
        self.unanswered += if is_due { count as u16 } else { 0 };
        is_due
    }

    /// Records `count` answers that arrived and returns their requests' credits. Returns false, and
    /// records nothing, if fewer requests are outstanding.
    #[must_use]
    #[inline]
    pub(super) fn answered(&mut self, count: usize) -> bool {
        let is_due = count <= usize::from(self.credits_max - self.credits);
        self.credits += if is_due { count as u16 } else { 0 };
        is_due
    }

    /// Records a posted message: a request spends a credit, an answer settles a request.
    ///
    /// # Panics
    /// If an answer has an offer: the endpoint itself uses that section.
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

    /// Appends an item to the outbox.
    ///
    /// # Errors
    /// Returns an answer that would push the lane over its share of the memory, of which `free`
    /// bytes are free.
    pub(super) fn hold(&mut self, item: Item, free: Option<usize>) -> Result<(), Item> {
        let bytes = self.outbox_bytes + item.bytes();
        if free.is_some_and(|free| !is_within_share(bytes, free + bytes)) {
            return Err(item);
        }
        self.outbox_bytes = bytes;
        self.outbox.push_back(item);
        Ok(())
    }

    /// Removes and returns the item that has waited longest.
    pub(super) fn release(&mut self) -> Option<Item> {
        let item = self.outbox.pop_front()?;
        self.outbox_bytes -= item.bytes();
        Some(item)
    }

    /// Returns an item to the front of the outbox.
    pub(super) fn put_back(&mut self, item: Item) {
        self.outbox_bytes += item.bytes();
        self.outbox.push_front(item);
    }

    /// Whether the peer's hello has arrived.
    pub(super) fn is_up(&self) -> bool {
        self.frame_bytes > 0
    }

    /// Records what the peer's hello admits. Returns whether messages waited for it.
    pub(super) fn greeted(&mut self, credits: u16, frame_bytes: usize) -> bool {
        let early = self.credits_max - self.credits;
        self.credits_max = credits;
        self.credits = credits.saturating_sub(early);
        self.frame_bytes = frame_bytes;
        !self.outbox.is_empty()
    }

    /// Whether the next message leaves at once and no landing needs a message of its own.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.outbox.is_empty() && self.landings.is_settled()
    }

    /// Length of the longest message that is packed, in bytes.
    pub(super) fn packed_bytes(&self) -> usize {
        self.frame_bytes.min(PACKED_BYTES_MAX)
    }

    /// Takes a landing for an item that needs one.
    ///
    /// # Errors
    /// Returns the length of the landing to ask for if no held landing is long enough.
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
    /// Values that stay in the sender's memory, and the rest of their message.
    Loan {
        frame: Buffer,
        values: Shared,
    },
}

impl Item {
    /// Bytes of memory that the item holds.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Item::Image(outgoing) => outgoing.image_bytes(),
            Item::Place { data, .. } => data.len(),
            Item::Loan { frame, values } => frame.len() + values.len(),
        }
    }

    /// Length of the landing that the item needs at a peer with frames of `frame_bytes`; 0 for
    /// none.
    pub(super) fn landing_bytes(&self, frame_bytes: usize) -> usize {
        match self {
            Item::Image(outgoing) if outgoing.image_bytes() > frame_bytes => landed_bytes(outgoing),
            Item::Image(_) | Item::Place { .. } | Item::Loan { .. } => 0,
        }
    }
}

/// Returns the open lane to `peer`.
#[inline]
pub(super) fn lane(lanes: &mut [Option<Connection>], peer: PeerId) -> Result<&mut Connection> {
    match lanes.get_mut(peer.0 as usize) {
        Some(Some(lane)) => Ok(lane),
        _ => Err(Error::NotConnected { peer }),
    }
}
