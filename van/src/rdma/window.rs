//! The memory that peers may write: one window for each offer, open for one peer until its write
//! has come.
//!
//! The lane itself binds a window of type 2, ahead of the frame that tells the peer about it. The
//! message behind the peer's write closes it: the peer's device asks ours to invalidate the key,
//! and our device reports with that message which key it has invalidated. Neither step costs an
//! extra message. Without such windows, on the device or on the lane at that time, an offer gets a
//! region that is registered for it alone and deregistered when the write has come: slower, and as
//! strict.
//!
//! A peer that lies gains nothing. Our device, not the peer, says whose window it is and whether it
//! is closed. A notice of a write without that ends the connection, and so does one that reaches
//! beyond the offer. A peer can claim to have written more of the offered bytes than it did: the
//! earlier content then counts as its message. It can close a window without writing, which is the
//! same. Soft-RoCE does not check whose window it is, so a peer can close the window of another
//! peer with a guessed key: the write of that peer fails, and nobody's memory is touched.

use std::rc::Rc;

use super::control_words::Notice;
use super::queue_pair::QueuePairState;
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
    /// Windows that are not bound.
    idle: Vec<Window>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

struct Entry {
    peer: PeerId,
    opening: Opening,
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

    /// The key of the offer with this index.
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
    pub(super) fn open(
        &mut self,
        peer: PeerId,
        lane: &mut QueuePairState,
        into: Buffer,
    ) -> Result<Offer> {
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
                self.entries[index as usize] = Some(Entry { peer, opening });
                Ok(Offer { key: key.into(), address: address.into(), len: (len as u64).into() })
            }
            Err(error) => {
                self.free.push(index);
                Err(error)
            }
        }
    }

    fn bind(&mut self, lane: &mut QueuePairState, into: Buffer) -> Result<Opening> {
        // A window of no bytes cannot be bound.
        if self.can_bind && !into.is_empty() && lane.queue_pair.can_bind() {
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
        let is_it = |entry: &&Entry| entry.opening.offer_key(index) == key;
        let Some(_) = self.entry(peer, index).filter(is_it) else { return Err(missing) };
        let entry = self.remove(index).ok_or(missing)?;
        Ok(entry.opening.revoke())
    }

    /// Ends an offer without a window that `peer` has written `len` bytes of. Returns its key and
    /// its memory.
    ///
    /// # Errors
    /// The reason that the notice is wrong.
    pub(super) fn written(
        &mut self,
        peer: PeerId,
        notice: Notice,
        len: usize,
    ) -> std::result::Result<(u64, Buffer), String> {
        let index = notice.index;
        let missing = || format!("it wrote offer {index}, which is not open");
        let entry = self.entry(peer, index).ok_or_else(missing)?;
        if let Opening::Window(_) = entry.opening {
            return Err(format!("it wrote offer {index} and did not close its window"));
        }
        let key = check(entry, notice, len)?;
        let entry = self.remove(index).ok_or_else(missing)?;
        Ok((key, entry.opening.revoke()))
    }

    /// Ends an offer whose window `peer` has closed after it wrote `len` bytes; `proof` is the
    /// device's report. Returns the offer's key and its memory.
    ///
    /// # Errors
    /// The reason that the notice is wrong.
    pub(super) fn closed(
        &mut self,
        peer: PeerId,
        notice: Notice,
        len: usize,
        proof: Invalidated,
    ) -> std::result::Result<(u64, Buffer), String> {
        let index = notice.index;
        let missing = || format!("it closed a window that is not the one of offer {index}");
        let is_it = |entry: &&Entry| match &entry.opening {
            Opening::Window(window) => window.remote_key() == proof.key(),
            Opening::Region(_) => false,
        };
        let key = check(self.entry(peer, index).filter(is_it).ok_or_else(missing)?, notice, len)?;
        let Some(Entry { opening: Opening::Window(window), .. }) = self.remove(index) else {
            return Err(missing());
        };
        let (window, memory) = window.close(proof);
        self.idle.push(window);
        Ok((key, memory))
    }

    /// Drops all offers to `peer`.
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

/// The key of an offer, if it admits a write of `len` bytes where the notice says.
///
/// # Errors
/// As [`check_write`].
fn check(entry: &Entry, notice: Notice, len: usize) -> std::result::Result<u64, String> {
    let (key, (_, offered)) = (entry.opening.offer_key(notice.index), entry.opening.span());
    let checked = check_write(key, notice.at, len as u64, offered as u64);
    checked.map(|()| key).map_err(|error| error.to_string())
}
