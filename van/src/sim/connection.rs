//! A simulated transport's lane to one peer, with its queues.

use std::collections::VecDeque;
use std::time::Duration;

use super::packet::{End, Link, Packet};
use crate::memory::Buffer;
use crate::transport::{FRAME_PREFIX, Gather};
use crate::wire::Hello;

/// The lane to one peer.
pub(super) struct Connection {
    pub(super) address: String,
    pub(super) state: ConnectionState,
    /// Longest frame the peer accepts.
    pub(super) frame_bytes: usize,
    pub(super) link: Link,
    /// Sent at the next poll or wait.
    pub(super) posted: VecDeque<Posted>,
    /// Handed to the network, and kept until the last byte has left.
    pub(super) leaving: VecDeque<(Duration, Posted)>,
}

#[derive(Clone, Copy)]
pub(super) enum ConnectionState {
    Connecting,
    Up(End),
    Lost,
}

pub(super) enum Posted {
    Frame(Buffer),
    Write { data: Gather, key: u64, at: u64 },
}

impl Connection {
    pub(super) fn open(&mut self, to: End, hello: &Hello) {
        self.state = ConnectionState::Up(to);
        self.frame_bytes = hello.frame_bytes.get() as usize;
    }

    pub(super) fn queued(&self) -> usize {
        self.posted.len() + self.leaving.len()
    }

    /// When a full lane has room again, or a lane that is sending has sent everything.
    pub(super) fn room_at(&self, depth: usize) -> Option<Duration> {
        let full = self.queued() >= depth;
        let next = if full { self.leaving.front() } else { self.leaving.back() };
        next.map(|&(left_at, _)| left_at)
    }
}

impl Posted {
    /// A copy of what is sent, and its bytes on the wire.
    pub(super) fn packet(&self) -> (Packet, usize) {
        match self {
            Posted::Frame(frame) => (Packet::Frame(frame[FRAME_PREFIX..].into()), frame.len()),
            Posted::Write { data, key, at } => {
                let bytes = [&data.head[..], data.tail.as_deref().unwrap_or(&[])].concat();
                let packet = Packet::Write { key: *key, at: *at, data: bytes.into() };
                (packet, FRAME_PREFIX + data.len())
            }
        }
    }
}
