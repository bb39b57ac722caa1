//! The connections of a transport by number, by queue pair and by connection. On the path it finds
//! the lane of a completion.

use std::collections::HashMap;

use super::connect::{Peer, Stage};
use super::queue_pair::QueuePairState;
use super::verbs::ConnectionKey;
use crate::numbers::Numbers;

/// Every connection, in whatever stage.
#[derive(Default)]
pub(super) struct Peers {
    /// By [`PeerId`](crate::PeerId); `None` once gone.
    list: Vec<Option<Peer>>,
    /// Closed lanes whose last completions may still wait in the queue.
    pub(super) closed: Vec<QueuePairState>,
    pub(super) numbers: Numbers,
    by_queue: HashMap<u32, u32>,
    /// The queue pair of the last look-up, and its peer.
    last_queue: Option<(u32, u32)>,
    by_connection: HashMap<ConnectionKey, u32>,
    /// Peers whose lanes may have something to send.
    pub(super) eager: Vec<u32>,
    /// Connections that are not up yet.
    pub(super) handshaking: usize,
}

impl Peers {
    /// One more than the largest number in the table.
    pub(super) fn end(&self) -> u32 {
        self.list.len() as u32
    }

    /// Peers that have a queue pair.
    pub(super) fn queues(&self) -> usize {
        self.by_queue.len()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.list.iter_mut().flatten()
    }

    pub(super) fn get(&self, id: u32) -> Option<&Peer> {
        self.list.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Peer> {
        self.list.get_mut(id as usize)?.as_mut()
    }

    /// The lane to `id`, if it is up.
    #[inline]
    pub(super) fn lane(&mut self, id: u32) -> Option<&mut QueuePairState> {
        match self.list.get_mut(id as usize) {
            Some(Some(Peer { stage: Stage::Up(lane), .. })) => Some(lane),
            _ => None,
        }
    }

    /// Records a new connection; returns its number.
    pub(super) fn enter(&mut self, peer: Peer) -> u32 {
        let id = if peer.called { self.numbers.unused() } else { self.numbers.free() };
        if self.list.len() <= id as usize {
            self.list.resize_with(id as usize + 1, || None);
        }
        self.handshaking += 1;
        self.put(id, peer);
        id
    }

    /// Takes a connection out to change it. The caller [puts](Peers::put) it back or
    /// [forgets](Peers::forget) it.
    pub(super) fn take(&mut self, id: u32) -> Option<Peer> {
        self.list.get_mut(id as usize)?.take()
    }

    /// Puts a connection in the place of `id` and into the tables.
    pub(super) fn put(&mut self, id: u32, peer: Peer) {
        match &peer.stage {
            Stage::Seeking(connection) => {
                self.by_connection.insert(connection.key(), id);
            }
            Stage::Dialling => {}
            Stage::Calling(lane, _) | Stage::Answering(lane, _) | Stage::Up(lane) => {
                if let Some(connection) = lane.queue_pair.connection() {
                    self.by_connection.insert(connection.key(), id);
                }
                self.by_queue.insert(lane.queue_pair.number(), id);
            }
        }
        self.list[id as usize] = Some(peer);
    }

    /// Removes a connection that was taken out from the tables.
    pub(super) fn forget(&mut self, stage: &Stage) {
        self.handshaking -= usize::from(!matches!(stage, Stage::Up(_)));
        match stage {
            Stage::Seeking(connection) => {
                self.by_connection.remove(&connection.key());
            }
            Stage::Dialling => {}
            Stage::Calling(lane, _) | Stage::Answering(lane, _) | Stage::Up(lane) => {
                if let Some(connection) = lane.queue_pair.connection() {
                    self.by_connection.remove(&connection.key());
                }
                self.by_queue.remove(&lane.queue_pair.number());
                self.last_queue = None;
            }
        }
    }

    /// Removes a connection that was taken out and could not be made.
    pub(super) fn forget_connection(&mut self, key: &ConnectionKey) {
        self.by_connection.remove(key);
        self.handshaking -= 1;
    }

    /// Whether a peer still has to prove itself.
    pub(super) fn is_answering(&self, id: u32) -> bool {
        matches!(self.get(id), Some(Peer { stage: Stage::Answering(..), .. }))
    }

    /// The peer that a connection leads to.
    pub(super) fn of_connection(&self, key: &ConnectionKey) -> Option<u32> {
        self.by_connection.get(key).copied()
    }

    /// The peer at the other end of a queue pair.
    #[inline]
    pub(super) fn of_queue(&mut self, queue: u32) -> Option<u32> {
        match self.last_queue {
            Some((last, peer)) if last == queue => Some(peer),
            _ => self.look_up(queue),
        }
    }

    #[inline(never)]
    fn look_up(&mut self, queue: u32) -> Option<u32> {
        let peer = *self.by_queue.get(&queue)?;
        self.last_queue = Some((queue, peer));
        Some(peer)
    }
}
