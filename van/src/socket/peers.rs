//! The peers of a transport by number, and which of them have something to do.

use std::time::Instant;

use super::connect::Dial;
use super::driver::Fault;
use super::engine::Socket;
use super::state::{Hub, SocketState};
use crate::error::{Error, Result};
use crate::numbers::Numbers;
use crate::transport::PeerId;

/// A peer, or somebody who still has to prove that it is one.
pub(super) struct Peer<S> {
    pub(super) id: PeerId,
    /// As it was dialled, or as it called from.
    pub(super) address: String,
    /// Whether this side asked for the connection, and so waits to hear of it.
    pub(super) is_dialled: bool,
    pub(super) stage: Stage,
    /// Longest frame that both sides take.
    pub(super) frame_bytes: usize,
    pub(super) lane: SocketState<S>,
    /// Whether it is on the list of those with something to do.
    pub(super) is_due: bool,
}

/// How far a connection has come.
pub(super) enum Stage {
    /// The socket is not connected yet.
    Dialling(Dial),
    /// Connected; it is closed at this time unless the peer has proved itself.
    Handshaking(Instant),
    /// The peer has proved itself.
    Up,
}

impl<S: Socket> Peer<S> {
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    /// Whether it has called and not proved itself: nobody above knows it.
    #[inline]
    pub(super) fn is_stranger(&self) -> bool {
        !self.is_dialled && !self.is_up()
    }

    #[inline]
    pub(super) fn is_dialling(&self) -> bool {
        matches!(self.stage, Stage::Dialling(_))
    }

    /// When to look at it although nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Dialling(dial) => Some(dial.deadline),
            Stage::Handshaking(until) => Some(*until),
            Stage::Up => None,
        }
    }

    /// What the layer above hears about `fault`.
    pub(super) fn error(&self, fault: Fault) -> Error {
        let address = self.address.clone();
        match fault {
            Fault::Connect(source) => Error::Connect { address, source },
            Fault::Gone(reason) => {
                Error::PeerLost { peer: self.id, address, reason: reason.into() }
            }
            Fault::Misdeed(reason) => Error::PeerLost { peer: self.id, address, reason },
        }
    }
}

/// All peers of a transport.
pub(super) struct Peers<S> {
    /// By number; `None` once gone.
    table: Vec<Option<Box<Peer<S>>>>,
    pub(super) numbers: Numbers,
    /// How many are no strangers.
    known: usize,
    /// Those that this side has called, and that have not proved themselves.
    pub(super) handshaking: Vec<u32>,
    /// Known peers with something to do: bytes to move for all that is known, or a direct lane.
    due: Vec<u32>,
}

impl<S: Socket> Peers<S> {
    pub(super) fn new() -> Peers<S> {
        let (table, handshaking, due) = (Vec::new(), Vec::new(), Vec::new());
        Peers { table, numbers: Numbers::default(), known: 0, handshaking, due }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Peer<S>> {
        self.table.get(number as usize)?.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Peer<S>> {
        self.table.get_mut(number as usize)?.as_deref_mut()
    }

    /// The peer of that number that has proved itself.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub(super) fn up(&mut self, peer: PeerId) -> Result<&mut Peer<S>> {
        let found = self.get_mut(peer.0).filter(|peer| peer.is_up());
        found.ok_or(Error::NotConnected { peer })
    }

    /// Records a new connection under its number.
    pub(super) fn enter(&mut self, peer: Peer<S>) {
        let PeerId(number) = peer.id;
        let index = number as usize;
        if self.table.len() <= index {
            self.table.resize_with(index + 1, || None);
        }
        if peer.is_dialled {
            self.known += 1;
            self.handshaking.push(number);
        }
        self.table[index] = Some(Box::new(peer));
    }

    /// Notes that a peer has proved itself, and that frames of up to `frame_bytes` may be sent to
    /// it.
    pub(super) fn proved(&mut self, number: u32, frame_bytes: usize) {
        let Some(peer) = self.get_mut(number) else { return };
        peer.stage = Stage::Up;
        peer.frame_bytes = peer.frame_bytes.min(frame_bytes);
        if peer.is_dialled {
            self.handshaking.retain(|&other| other != number);
        } else {
            self.known += 1;
        }
    }

    /// Takes a connection out of the table; what becomes of its number is the caller's to say.
    pub(super) fn remove(&mut self, number: u32, hub: &mut Hub) -> Option<Box<Peer<S>>> {
        let mut peer = self.table.get_mut(number as usize)?.take()?;
        peer.lane.end_direct(hub);
        self.due.retain(|&other| other != number);
        self.handshaking.retain(|&other| other != number);
        self.known -= usize::from(!peer.is_stranger());
        Some(peer)
    }

    /// Takes all connections out of the table.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Peer<S>>> {
        self.table.drain(..).flatten()
    }

    /// Notes that a known peer has something to do.
    pub(super) fn list(&mut self, number: u32) {
        let Some(peer) = self.get_mut(number) else { return };
        if !std::mem::replace(&mut peer.is_due, true) {
            self.due.push(number);
        }
    }

    /// The list of those with something to do, to be given back by [`Peers::put_back`].
    #[inline]
    pub(super) fn take_due(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.due)
    }

    /// Gives a list back, less those that have nothing to do any more. Others may have come in
    /// meanwhile.
    #[inline]
    pub(super) fn put_back(&mut self, mut due: Vec<u32>) {
        due.append(&mut self.due);
        self.due = due;
    }

    #[inline]
    pub(super) fn due(&self) -> impl Iterator<Item = &Peer<S>> {
        self.due.iter().filter_map(|&number| self.get(number))
    }

    /// Whether only the engine can tell what comes for some of them.
    #[inline]
    pub(super) fn need_engine(&self, direct: usize) -> bool {
        direct == 0 || direct < self.known
    }
}
