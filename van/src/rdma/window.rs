//! The memory that peers may write: one window for each offer, open for one peer until its write has come.
//!
//! Windows of type 2 are bound by the lane itself, ahead of the frame that tells the peer about them, and closed by a local
//! invalidation; both cost no message. A device that has none of them, or a lane with no room for another work request, gets
//! a region that is registered for this one offer: slower, and as strict.

use std::rc::Rc;

use super::queue_pair::{Lane, Notice};
use super::verbs::{Domain, Exposed, Invalidated, OpenWindow, Window};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::transport::{PeerId, check_write};
use crate::wire::Offer;

/// All open offers of one transport.
pub(super) struct Windows {
    domain: Rc<Domain>,
    /// Whether the device has windows that can be bound to one peer.
    can_bind: bool,
    /// Windows that are bound to nothing.
    idle: Vec<Window>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

struct Entry {
    peer: PeerId,
    opening: Opening,
    /// Its write has come, and it is being closed.
    closing: bool,
}

enum Opening {
    Window(OpenWindow),
    Region(Exposed),
}

impl Opening {
    fn key(&self) -> u32 {
        match self {
            Opening::Window(window) => window.remote_key(),
            Opening::Region(region) => region.remote_key(),
        }
    }

    /// What the offer with this index goes by.
    fn offer_key(&self, index: u32) -> u64 {
        let kind = match self {
            Opening::Window(_) => Notice::WINDOW,
            Opening::Region(_) => 0,
        };
        u64::from(self.key()) << 32 | u64::from(kind | index)
    }

    fn span(&self) -> (u64, usize) {
        match self {
            Opening::Window(window) => (window.address(), window.len()),
            Opening::Region(region) => (region.address(), region.len()),
        }
    }

    fn revoke(self) -> Buffer {
        match self {
            Opening::Window(window) => window.revoke(),
            Opening::Region(region) => region.close(),
        }
    }
}

/// What becomes of an offer whose write has come.
pub(super) enum Closing {
    /// Its window has to be invalidated first, by this key.
    Invalidate(u32),
    /// It is closed.
    Closed(u64, Buffer),
}

impl Windows {
    pub(super) fn new(domain: &Rc<Domain>, can_bind: bool) -> Windows {
        Windows {
            domain: domain.clone(),
            can_bind,
            idle: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Lets `peer`, to which `lane` leads, write `into`.
    pub(super) fn open(&mut self, peer: PeerId, lane: &mut Lane, into: Buffer) -> Result<Offer> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() < Notice::INDEX_END as usize => {
                self.entries.push(None);
                self.entries.len() as u32 - 1
            }
            None => return Err(Error::QueueFull { peer, depth: Notice::INDEX_END as usize }),
        };
        match self.bind(lane, into) {
            Ok(opening) => {
                let ((address, len), key) = (opening.span(), opening.offer_key(index));
                self.entries[index as usize] = Some(Entry { peer, opening, closing: false });
                Ok(Offer { key: key.into(), address: address.into(), len: (len as u64).into() })
            }
            Err(error) => {
                self.free.push(index);
                Err(error)
            }
        }
    }

    fn bind(&mut self, lane: &mut Lane, into: Buffer) -> Result<Opening> {
        // A window of no bytes cannot be bound.
        if self.can_bind && lane.queue_pair.room() > 0 && !into.is_empty() {
            let window = self.idle.pop().map_or_else(|| Window::new(&self.domain), Ok);
            if let Ok(window) = window {
                return lane.bind(window, into).map(Opening::Window);
            }
        }
        Exposed::new(&self.domain, into, false).map(Opening::Region)
    }

    /// Ends an offer that was not used, and returns its memory.
    pub(super) fn revoke(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        let missing = Error::OutsideOffer { key, at: 0, len: 0, offered: 0 };
        let index = key as u32 & !Notice::WINDOW;
        let is_it = |entry: &&Entry| entry.opening.offer_key(index) == key && !entry.closing;
        let Some(_) = self.entry(peer, index).filter(is_it) else { return Err(missing) };
        let entry = self.remove(index).ok_or(missing)?;
        Ok(entry.opening.revoke())
    }

    /// A write of `peer` has come, `len` bytes at `at`.
    ///
    /// # Errors
    /// Says what is wrong with that.
    pub(super) fn written(
        &mut self,
        peer: PeerId,
        notice: Notice,
        len: usize,
    ) -> std::result::Result<Closing, String> {
        let Notice { index, at, .. } = notice;
        let entry = self.entry(peer, index).filter(|entry| !entry.closing);
        let entry = entry.ok_or_else(|| format!("it wrote offer {index}, which is not open"))?;
        let key = entry.opening.offer_key(index);
        let (_, offered) = entry.opening.span();
        check_write(key, at, len as u64, offered as u64).map_err(|error| error.to_string())?;
        if let Opening::Window(window) = &entry.opening {
            return Ok(Closing::Invalidate(window.remote_key()));
        }
        self.close_at_once(index).map(|(key, memory)| Closing::Closed(key, memory))
    }

    /// `peer` has closed the window of its offer behind a write of `len` bytes at `at`, of which `proof` is the proof.
    ///
    /// # Errors
    /// Says what is wrong with that.
    pub(super) fn closed_by_peer(
        &mut self,
        peer: PeerId,
        notice: Notice,
        len: usize,
        proof: Invalidated,
    ) -> std::result::Result<(u64, Buffer), String> {
        let Notice { index, at, .. } = notice;
        let missing = || format!("it closed offer {index}, which is not open");
        let is_it = |entry: &&Entry| {
            matches!(&entry.opening, Opening::Window(window) if window.remote_key() == proof.key())
                && !entry.closing
        };
        let entry = self.entry(peer, index).filter(is_it).ok_or_else(missing)?;
        let (key, (_, offered)) = (entry.opening.offer_key(index), entry.opening.span());
        check_write(key, at, len as u64, offered as u64).map_err(|error| error.to_string())?;
        self.closed(index, proof).ok_or_else(missing)
    }

    /// Makes the entry unusable while its window is being closed.
    pub(super) fn closing(&mut self, index: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(index as usize) {
            entry.closing = true;
        }
    }

    /// Closes an offer without the lane's help.
    ///
    /// # Errors
    /// When there is no such offer.
    pub(super) fn close_at_once(
        &mut self,
        index: u32,
    ) -> std::result::Result<(u64, Buffer), String> {
        let entry = self.remove(index).ok_or_else(|| format!("offer {index} is not open"))?;
        let key = entry.opening.offer_key(index);
        Ok((key, entry.opening.revoke()))
    }

    /// The window of offer `index` is closed, of which `proof` is the proof.
    pub(super) fn closed(&mut self, index: u32, proof: Invalidated) -> Option<(u64, Buffer)> {
        let entry = self.remove(index)?;
        let key = entry.opening.offer_key(index);
        let memory = match entry.opening {
            Opening::Window(window) => {
                let (window, memory) = window.close(proof);
                self.idle.push(window);
                memory
            }
            Opening::Region(region) => region.close(),
        };
        Some((key, memory))
    }

    /// Drops all that was offered to `peer`.
    pub(super) fn forget(&mut self, peer: PeerId) {
        for index in 0..self.entries.len() {
            if self.entries[index].as_ref().is_some_and(|entry| entry.peer == peer) {
                self.remove(index as u32);
            }
        }
    }

    fn entry(&self, peer: PeerId, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)?.as_ref().filter(|entry| entry.peer == peer)
    }

    fn remove(&mut self, index: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }
}
