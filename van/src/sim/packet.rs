//! Packets of the simulated network, their ends and their weight: the types that `transport.rs` and
//! `clock.rs` share.

use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::handshake::Credentials;

/// One side of a connection.
#[derive(Clone, Copy)]
pub(super) struct End {
    /// Port of the transport.
    pub(super) port: u32,
    /// That transport's number for the peer.
    pub(super) peer: u32,
}

/// A packet.
pub(super) enum Packet {
    Connect { from: End, credentials: Arc<Credentials> },
    Accept { from: End, credentials: Arc<Credentials> },
    Frame(Box<[u8]>),
    Write { key: u64, at: u64, data: Box<[u8]> },
    Close(String),
}

impl Packet {
    /// A value that differs between packets.
    pub(super) fn fingerprint(&self) -> (u8, u64, usize, u32) {
        let (kind, place, bytes) = match self {
            Packet::Connect { credentials, .. } => (1, 0, credentials.hello().as_bytes()),
            Packet::Accept { credentials, .. } => (2, 0, credentials.hello().as_bytes()),
            Packet::Frame(bytes) => (3, 0, &bytes[..]),
            Packet::Write { key, at, data } => (4, key.rotate_left(32) ^ at, &data[..]),
            Packet::Close(reason) => (5, 0, reason.as_bytes()),
        };
        (kind, place, bytes.len(), crc_fast::crc32_iscsi(bytes))
    }
}

/// The size of a packet and its sender's delay.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) bytes: usize,
    /// Processor time before it is ready to leave.
    pub(super) after: Duration,
    /// Whether it occupies network cards.
    pub(super) metered: bool,
}

/// One direction of a connection, kept by its sender.
#[derive(Default)]
pub(super) struct Link {
    /// When it has sent everything it was given.
    pub(super) free_at: Duration,
    /// When the last packet arrives.
    pub(super) last_arrival: Duration,
    /// True once nothing passes any more.
    pub(super) broken: bool,
}

impl Link {
    /// The first instant after everything sent so far.
    pub(super) fn after_last(&self) -> Duration {
        self.last_arrival.saturating_add(Duration::from_nanos(1))
    }
}
