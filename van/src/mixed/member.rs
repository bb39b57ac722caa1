//! One of the vans that a transport is made of.

use super::address::digest;
use crate::error::Result;
use crate::transport::{PeerId, Sleeper};

/// Turns between two looks at a member without lanes, which somebody may call.
const IDLE_TURNS: u32 = 64;

/// What a peer of a member is to the transport.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) peer: PeerId,
    pub(super) stripe: Stripe,
}

/// What a member's lane carries of the lane to a peer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stripe {
    /// All of it.
    Whole,
    /// All of it but the other pieces of long values.
    First,
    /// Those of this number.
    Beside(usize),
}

/// One of the vans.
pub(super) struct Member {
    pub(super) van: Box<dyn Sleeper>,
    /// Where a van that does not leave the host is.
    pub(super) host: Option<String>,
    /// What wakes a thread that sleeps on it.
    pub(super) descriptors: Vec<i32>,
    /// What each of its own numbers stands for.
    pub(super) peers: Vec<Option<Place>>,
    /// How many of those there are.
    lanes: usize,
    /// Turns until a look at it while it has no lanes.
    pub(super) turns_left: u32,
    pub(super) is_broken: bool,
}

impl Member {
    /// # Errors
    /// As [`Sleeper::descriptors`].
    pub(super) fn new(van: Box<dyn Sleeper>) -> Result<Member> {
        let mut van = van;
        let host = van.about().host.as_deref().map(digest);
        let descriptors = van.descriptors()?;
        let (peers, lanes, turns_left, is_broken) = (Vec::new(), 0, 0, false);
        Ok(Member { van, host, descriptors, peers, lanes, turns_left, is_broken })
    }

    pub(super) fn name(&self) -> &'static str {
        self.van.about().name
    }

    /// Its name for people, with its port.
    pub(super) fn label(&self) -> String {
        match &self.van.about().port {
            Some(port) => format!("{} (port {port})", self.name()),
            None => self.name().to_owned(),
        }
    }

    #[inline]
    pub(super) fn place(&self, inner: PeerId) -> Option<Place> {
        self.peers.get(inner.0 as usize).copied().flatten()
    }

    pub(super) fn enter(&mut self, inner: PeerId, place: Place) {
        let index = inner.0 as usize;
        if self.peers.len() <= index {
            self.peers.resize(index + 1, None);
        }
        self.lanes += usize::from(self.peers[index].is_none());
        self.peers[index] = Some(place);
    }

    /// Makes the van forget a peer.
    pub(super) fn forget(&mut self, inner: PeerId) {
        if let Some(place) = self.peers.get_mut(inner.0 as usize)
            && place.take().is_some()
        {
            self.lanes -= 1;
        }
        self.van.disconnect(inner);
    }

    /// Whether it is to be looked at in this turn.
    ///
    /// # Errors
    /// As [`Sleeper::unpark`].
    #[inline]
    pub(super) fn is_due(&mut self) -> Result<bool> {
        if self.lanes > 0 {
            return Ok(!self.is_broken);
        }
        self.look_for_callers()
    }

    #[inline(never)]
    fn look_for_callers(&mut self) -> Result<bool> {
        if self.turns_left > 0 {
            self.turns_left -= 1;
            return Ok(false);
        }
        self.turns_left = IDLE_TURNS;
        if !self.is_broken {
            self.van.unpark()?; // its next poll misses no caller
        }
        Ok(!self.is_broken)
    }
}
